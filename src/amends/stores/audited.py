"""The calls that an audit reads: what is plain about them is checked from their columns, without rows and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from amends.encoding.canonical import quoted
from amends.encoding.chain import MICROS, body_of, move_text, proof, run_text
from amends.encoding.ids import call_id
from amends.encoding.secret import SEALED
from amends.ledger.events import spelled
from amends.ledger.rows import GONE, CallRow, EventRow
from amends.states import NEW
from amends.stores.calls import DIGEST, READ_KEY, events_of, join, read_more, read_owners, success_facts, unpack

if TYPE_CHECKING:
    from amends.ledger.folded import FoldedCall, FoldedEvent


class _Tree:
    """What the events of one tree have in common."""

    __slots__ = ("_moved", "_whose", "owners", "run_id", "tenant", "uid")

    def __init__(self, uid: str, run_id: str, tenant: str, owners: Mapping[int, str]) -> None:
        self.uid, self.run_id, self.tenant, self.owners = uid, run_id, tenant, owners
        self._whose = ""  # written when it is first needed: every value may have been changed
        self._moved: dict[tuple[bool, int], str] = {}

    def body(self, call: str, is_settlement: bool, epoch: int, facts: str) -> str:
        """Return what ``body_of`` returns, from texts that are written once for a tree."""
        moved = self._moved.get((is_settlement, epoch))
        if moved is None:
            moved = move_text("call", *_MOVED[is_settlement], self.owners.get(epoch, ""), epoch)
            self._moved[is_settlement, epoch] = moved
            self._whose = run_text(self.uid, self.uid, self.run_id, self.tenant)
        text = f"{self._whose}str{len(call)}:{call}{moved}str{len(facts)}:{facts}"
        if text.isascii() and "\x00" not in text:
            return sha256(text.encode("ascii")).hexdigest()
        by = self.owners.get(epoch, "")
        return body_of(
            self.uid, self.uid, self.run_id, self.tenant, call, "call", *_MOVED[is_settlement], by, epoch, facts
        )  # fmt: skip


_MOVED: Final = ((NEW, "started"), ("started", "succeeded"))


class AuditedCall:
    """A plain call that an audit reads: neither its row nor its events are made unless somebody asks for them.

    Its ``more`` names at most the model's id of the request. Its admission is folded, so is its success unless it is
    still running, and nothing else happened to it. Of such a call row and events are made from the same columns: whether
    the hashes of the events fit the chain is all that can be wrong with it.
    """

    __slots__ = ("_of_tool", "_tree", "_values", "id", "root")

    def __init__(self, values: Sequence[Any], tree: _Tree, of_tool: tuple[str, str, str]) -> None:
        self._values, self._tree, self._of_tool = values, tree, of_tool
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
        return join(self._values[:-1])[0]

    def event(self, is_settlement: bool) -> EventRow:
        """Return one of its events."""
        row, hashes = join(self._values[:-1])
        return tuple(events_of(row, hashes, self._tree.owners))[is_settlement]

    def linked(self, is_settlement: bool, prev: str, n: int) -> str:
        """Return the hash of an event that is linked as event ``n`` to the hash before it; empty if it is not.

        Empty also if its time is not in whole microseconds, which amends never writes.
        """
        (
            _, _, _, _, _, _, _, _, _, _, _, _, _,
            key, gen, _, _, attempt, ident, digest, args, at, epoch, result, _, settled_at, _, _,
            _, hash, settled_hash, *_,
        ) = self._values  # fmt: skip
        if is_settlement:
            at, hash = settled_at, settled_hash
            facts = success_facts(attempt, proof(result))
        else:
            tool, first, rest = self._of_tool
            key = key.hex() if len(key) == DIGEST else unpack(key)
            columns = sha256(f"({first}, '{key}', {gen}, '{ident.hex()}', '{digest.hex()}', {rest})".encode("ascii"))
            facts = f'{{"tool": {tool}, "args": "{proof(args)}", "row": "{columns.hexdigest()}"}}'
        whole = round(at * MICROS)
        text = f"{prev}:{n}:{whole}:{self._tree.body(self.id, is_settlement, epoch, facts)}"
        is_linked = sha256(text.encode("ascii")).digest() == hash and whole / MICROS == at
        return hash.hex() if is_linked else ""


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
    trees: dict[str, _Tree] = {}
    of_tools: dict[tuple[Any, ...], tuple[str, str, str]] = {}
    events: list[EventRow | FoldedEvent] = []
    calls: list[CallRow | FoldedCall] = []
    for values in found:
        tree = trees.get(values[1])
        if tree is None:
            tree = trees[values[1]] = _Tree(values[1], values[2], values[3], read_owners(values[-1]))
        call_ref = _referred(values[28])
        if call_ref is not None and _is_plain(values):
            tooled = tuple(values[6:13])
            of_tool = of_tools.get(tooled)
            if of_tool is None:
                of_tool = of_tools[tooled] = _spelled_tool(tooled)
            if call_ref:
                of_tool = _spelled_tool(tooled, call_ref)
            call = AuditedCall(values, tree, of_tool)
            calls.append(call)
            events.append(AuditedEvent(call, False, values[15]))
            if values[24] is not None:
                events.append(AuditedEvent(call, True, values[24]))
        else:
            row, hashes = join(values[:-1])
            calls.append(row)
            events += events_of(row, hashes, tree.owners)
    return events, calls


def _referred(more: Any) -> str | None:
    """Return the model's id of the request if ``more`` says nothing else; None: it does."""
    if more is None:
        return ""
    said = read_more(more) if isinstance(more, str) and more.startswith('{"call_ref":') else None
    return said["call_ref"] if said is not None and len(said) == 1 else None


def _spelled_tool(tooled: tuple[Any, ...], call_ref: str = "") -> tuple[str, str, str]:
    """Return the name of a tool in JSON, and the beginning and the end of the text of ``call_columns_digest``."""
    tool, version, kind, scope, declared, undoable, at_commit = tooled
    rest = spelled(scope, declared, "", call_ref, "", "", at_commit, undoable, "", "")
    return quoted(tool), spelled(tool, version, kind), rest


def _is_plain(values: Sequence[Any]) -> bool:
    """Return whether an audit has nothing to compare of this call except its hashes. Every value may have been changed."""
    (
        _, uid, id, tenant, _, _, tool, _, _, _, _, _, _,
        key, gen, n, state, attempt, ident, digest, args, at, epoch, result, settled_n, settled_at, comp_at, undone_at,
        _, hash, settled_hash, comp_n, comp_epoch, comp_hash, undone_n, undone_hash, _,
    ) = values  # fmt: skip
    if not (
        comp_at is None and undone_at is None and comp_n is None and comp_epoch is None
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
