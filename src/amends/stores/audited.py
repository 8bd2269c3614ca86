"""The calls that an audit reads: what is plain about them is checked from their columns, without rows and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from amends.encoding.canonical import quoted
from amends.encoding.chain import body_of, link, proof
from amends.encoding.ids import call_id
from amends.encoding.secret import SEALED
from amends.ledger.events import spelled
from amends.ledger.rows import GONE, CallRow, EventRow
from amends.states import NEW
from amends.stores.calls import DIGEST, READ_KEY, events_of, join, read_owners, success_facts, unpack

if TYPE_CHECKING:
    from amends.ledger.folded import FoldedCall, FoldedEvent


class AuditedCall:
    """A plain call that an audit reads: neither its row nor its events are made unless somebody asks for them.

    It has no ``more``, its admission is folded, so is its success unless it is still running, and nothing else happened
    to it. Of such a call row and events are made from the same columns: whether the hashes of the events fit the chain
    is all that can be wrong with it.
    """

    __slots__ = ("_of_tool", "_owners", "_values", "id", "root")

    def __init__(self, values: Sequence[Any], owners: Mapping[int, str], of_tool: tuple[str, str, str]) -> None:
        self._values, self._owners, self._of_tool = values, owners, of_tool
        self.id, self.root = call_id(values[0]), values[1]

    @property
    def run_id(self) -> str:
        """The id of its run, which is the root of its tree."""
        return str(self._values[2])

    @property
    def tenant(self) -> str:
        """The tenant of its run."""
        return str(self._values[3])

    @property
    def tool(self) -> str:
        """The name of its tool."""
        return str(self._values[6])

    @property
    def is_settled(self) -> bool:
        """Whether it has succeeded; if not, it is still running."""
        return self._values[30] is not None

    @property
    def row(self) -> CallRow:
        """The call as a row."""
        return join(self._values)[0]

    def event(self, is_settlement: bool) -> EventRow:
        """Return one of its events."""
        row, hashes = join(self._values)
        return tuple(events_of(row, hashes, self._owners))[is_settlement]

    def link_of(self, is_settlement: bool, prev: str, n: int) -> tuple[float, str, bool]:
        """Return time and hash of an event, and whether it is linked as event ``n`` to the hash before it."""
        (
            _, uid, run_id, tenant, _, _, _, _, _, _, _, _, _,
            key, gen, _, _, attempt, ident, digest, args, at, epoch, result, _, settled_at, _, _,
            _, hash, settled_hash, *_,
        ) = self._values  # fmt: skip
        if is_settlement:
            at, hash, frm, to = settled_at, settled_hash, "started", "succeeded"
            facts = success_facts(attempt, proof(result))
        else:
            frm, to = NEW, "started"
            tool, first, rest = self._of_tool
            key = key.hex() if len(key) == DIGEST else unpack(key)
            columns = sha256(f"({first}, '{key}', {gen}, '{ident.hex()}', '{digest.hex()}', {rest})".encode("ascii"))
            facts = f'{{"tool": {tool}, "args": "{proof(args)}", "row": "{columns.hexdigest()}"}}'
        body = body_of(uid, uid, run_id, tenant, self.id, "call", frm, to, self._owners.get(epoch, ""), epoch, facts)
        said = hash.hex()
        return at, said, said == link(prev, n, at, body)


class AuditedEvent:
    """A folded event of such a call; it has every field of an ``EventRow``."""

    __slots__ = ("folded", "is_settlement", "n", "root")

    def __init__(self, folded: AuditedCall, is_settlement: bool, n: int) -> None:
        self.folded, self.is_settlement, self.n, self.root = folded, is_settlement, n, folded.root

    @property
    def made(self) -> EventRow:
        """The event as a row."""
        return self.folded.event(self.is_settlement)

    def __eq__(self, other: object) -> bool:
        return self.made == (other.made if isinstance(other, AuditedEvent) else other)

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)


def folded(found: Iterable[Sequence[Any]]) -> tuple[list[EventRow | FoldedEvent], list[CallRow | FoldedCall]]:
    """Return the folded events of these calls, and the calls; each has the owners of its tree as its last value."""
    owners_of: dict[str, dict[int, str]] = {}
    of_tools: dict[tuple[Any, ...], tuple[str, str, str]] = {}
    events: list[EventRow | FoldedEvent] = []
    calls: list[CallRow | FoldedCall] = []
    for values in found:
        text = values[-1]
        owners = owners_of.get(text)
        if owners is None:
            owners = owners_of[text] = read_owners(text)
        if _is_plain(values):
            tooled = tuple(values[6:13])
            of_tool = of_tools.get(tooled)
            if of_tool is None:
                tool, version, kind, scope, declared, undoable, at_commit = tooled
                rest = spelled(scope, declared, "", "", "", "", at_commit, undoable, "", "")
                of_tool = of_tools[tooled] = quoted(tool), spelled(tool, version, kind), rest
            call = AuditedCall(values[:-1], owners, of_tool)
            calls.append(call)
            events.append(AuditedEvent(call, False, values[15]))
            if values[24] is not None:
                events.append(AuditedEvent(call, True, values[24]))
        else:
            row, hashes = join(values[:-1])
            calls.append(row)
            events += events_of(row, hashes, owners)
    return events, calls


def _is_plain(values: Sequence[Any]) -> bool:
    """Return whether an audit has nothing to compare of this call except its hashes. Every value may have been changed."""
    (
        _, uid, id, tenant, _, _, tool, _, _, _, _, _, _,
        key, gen, n, state, attempt, ident, digest, args, at, epoch, result, settled_n, settled_at, comp_at, undone_at,
        more, hash, settled_hash, comp_n, comp_epoch, comp_hash, undone_n, undone_hash, _,
    ) = values  # fmt: skip
    if not (
        more is None and comp_at is None and undone_at is None and comp_n is None and comp_epoch is None
        and comp_hash is None and undone_n is None and undone_hash is None and attempt == 1
        and type(key) is bytes and len(key) in (DIGEST, READ_KEY)
        and type(ident) is type(digest) is type(hash) is bytes and len(ident) == len(digest) == len(hash) == DIGEST
        and type(gen) is type(n) is type(epoch) is type(attempt) is int and type(at) is float
        and type(args) is str and not args.startswith(_NOT_WRITTEN)
        and type(uid) is type(id) is type(tenant) is type(tool) is str
    ):  # fmt: skip
        return False
    if settled_hash is None:
        return state == "started" and settled_n is None and settled_at is None and result is None
    return (
        state == "succeeded" and type(settled_hash) is bytes and len(settled_hash) == DIGEST
        and type(settled_n) is int and settled_n > 0 and type(settled_at) is float
        and type(result) is str and not result.startswith(_NOT_WRITTEN)
    )  # fmt: skip


_NOT_WRITTEN: Final = (SEALED, GONE)
"""How a payload begins that is not as the body was given it or returned it."""
