"""Hold the state of one opened run in this process (``Session``), and turn arguments into a request (``Ask``).

Also here: how recorded calls, arguments and results are given to user code, what of them is hidden, and how a
flow waits for another run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Any, Final, TypeAlias

from amends.budgets import Budget
from amends.encoding.annotations import Shape
from amends.encoding.canonical import (
    CLASS_MARK,
    CONSTANTS,
    PAYLOAD_BYTES_MAX,
    canonical,
    check_size,
    encode,
    plain_texts,
)
from amends.encoding.dataclass import dataclass, field
from amends.encoding.encoded_secrets import BOUNDED_CHARS_MAX
from amends.encoding.payloads import (
    Stored,
    Written,
    classes_of,
    decode,
    load_result,
    no_longer_fits,
    rebuild_args,
    round_trip,
    write_args,
)
from amends.encoding.redaction import NO_SECRETS, REDACTED, Known, Redactor
from amends.encoding.secret import MARK, MASK, SEALED, UNREADABLE, Secret
from amends.engine.costs import cost_of, undeclared_demands
from amends.engine.keys import call_key, compensation_key, identity_digest, provider_key, request_digest
from amends.errors import (
    BadArguments,
    Error,
    LedgerSealed,
    NotStorable,
    ResultGone,
    ResultLost,
    ToolFailed,
    UsageError,
    class_name,
    clean,
    cut,
    is_a,
    type_name,
    words_of,
)
from amends.ledger.budgets import read_charge
from amends.ledger.flow import Flow
from amends.ledger.leases import Lease
from amends.ledger.operations import CountReplays, ReadRun, ReleaseLease, Tree
from amends.ledger.plain import AdmitPlain, PlainRun, PlainTool, SettledPlain, Started
from amends.ledger.rows import FREE, PUT, PUT_BACK, BudgetDemand, CallCost, CallRow, RunRow, Tell, forked_key, lost_at
from amends.ledger.world import Await, Flight, LazyCall, LazyCompensation, ReadClocks, Watch
from amends.model import LOST, Call, Compensation, Order, Phase, Request, without_result
from amends.tools.checks import BEFORE, lock_names
from amends.tools.rules import Rule
from amends.tools.signature import admits_none
from amends.tools.spec import EVERYTHING, CompensationSpec, ProbeSpec, Spec, named_arguments

# ---- What this process remembers of a tree


KNOWN_MAX: Final = 10_000
"""The most spellings of hidden values that one tree remembers."""


POLL_S_MIN: Final = 0.005
POLL_S_MAX: Final = 0.25
"""The first and the longest interval between two looks at the ledger; the setting ``poll`` replaces the second."""
APPROVAL_POLL_S_MAX: Final = 1.0
"""The longest interval if the store does not signal what other processes decide: the setting ``poll_approval``."""
RESULTS_MAX: Final = 10_000
"""The most results that one tree remembers because the ledger could not store them."""


class Working:
    """The agents of one tree that work now, by the id of their child run, for threads and tasks."""

    def __init__(self) -> None:
        self._now: dict[str, object] = {}

    def add(self, run_id: str) -> bool:
        """Note that the agent of this run works; return False if it already does. Atomic."""
        mine = object()
        return self._now.setdefault(run_id, mine) is mine

    def discard(self, run_id: str) -> None:
        """Note that it has ended."""
        self._now.pop(run_id, None)


class Memory:
    """What this process knows about one tree and the ledger does not.

    Shared by its sessions, and lost with the last one.
    """

    def __init__(self) -> None:
        self.known: dict[str, Secret] = {}
        self.live: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        """By call: results that the ledger could not store, or not completely. A compensation in this process gets
        them."""
        self.agents = Working()
        """The child runs whose agents work now."""
        self.flights: dict[str, Flight] = {}
        """By call: what flows that close or recover the run have in flight, in case one of them is stopped."""
        self.reading: set[str] = set()
        """Calls that a flow of this process has prepared, and reads what is there before it starts them."""
        self.unread: dict[str, str] = {}
        """By staged call: why what is there before it could not be read; without those that could be read since."""

    def copy(self) -> Memory:
        """Return a copy for a rehearsal, so that what the rehearsal learns does not reach others."""
        made = Memory()
        made.known, made.live, made.results = dict(self.known), dict(self.live), dict(self.results)
        return made

    def flight(self, row: CallRow) -> Flight:
        """Return a new flight for a call or a compensation that is about to be sent."""
        made = self.flights[row.id] = Flight(row)
        return made

    def keep_result(self, call_id: str, value: object) -> None:
        """Remember a result that the ledger does not have."""
        self.results[call_id] = value
        while len(self.results) > RESULTS_MAX:
            del self.results[next(iter(self.results))]

    def keep(self, known: Known) -> None:
        """Remember the spellings of hidden values."""
        self.known.update(known)
        while len(self.known) > KNOWN_MAX:
            del self.known[next(iter(self.known))]


# ---- The cache of successes that this process saw itself

# Why the cached answer is also the ledger's answer. A succeeded call leaves that state in two ways only (``states``).
#
# First, it is compensated. If the owner of its tree does that in this epoch, it is a flow of this very process, which
# closes the cache before it begins. If another owner does it, it got the tree after we released it, which closes the
# cache first, or after our lease ended, which is checked last, on our own clock and with its margin, as before a body.
#
# Second, a person abandons the run. Then the effect stays, the answer is still true, and nothing starts after it,
# because the epoch has changed; the next renewal of the lease reports that here.
#
# Nothing else that others may do meanwhile affects such a call: a goal to roll back waits for the owner, a decision on
# a doubt or on a held call is about another state, late evidence about a succeeded call is no news, and garbage
# collection removes nothing from a tree whose root is open.


CALLS_MAX: Final = 1_000
"""The most calls that one tree remembers; with one more the cache starts anew."""
AS_OBJECTS: Final = 8
"""So many calls are kept as objects: few runs have more calls to take back, for which objects are needed."""
KEY_DIGITS: Final = 64
"""The length of a key that a request has; those of reads and of held conflicts are longer."""
CHARS_MAX: Final = 8_192
"""The most characters of arguments and result of a cached call: a tree caches eight million characters at most."""


KeptPlain: TypeAlias = tuple[int, int, bytes, bytes, str, str, str, int, float, int, float, str, str]
"""A plain call that has succeeded: number, tool, identity, digest, arguments, ``call_ref`` and their proof, number and time of
its start, number and time of its end, result and its proof."""


@dataclass(slots=True)
class Recall:
    """Succeeded calls by key, one cache for a run and its descendants. Once closed it stays empty.

    It is closed for good rather than emptied: a thread that saw its call succeed just before is too late in any case.
    """

    rows: dict[str, CallRow] = field(default_factory=dict)
    plain: dict[bytes, KeptPlain | SettledPlain] = field(default_factory=dict)
    """Those that were plain: behind the first ``AS_OBJECTS`` they are made again when somebody asks for one. As plain data they
    are nothing that the garbage collector has to look at: as objects they took it a twentieth of the time of a call."""
    tools: list[PlainTool] = field(default_factory=list)
    """The tools of those, which ``KeptPlain`` has as numbers."""
    run: PlainRun | None = None
    """The run of those: the root of the tree."""
    closed: bool = False
    record: Callable[[Any, Any], Flow[Any]] | None = None
    """In a replay: answers every request from the record of an earlier run; None: this run is live."""

    def keep(self, row: CallRow) -> None:
        """Cache a call that this process has settled as succeeded."""
        assert row.state == "succeeded", "only a success is cached"
        if self.closed or row.kind == "read" or len(row.args) + len(row.result or "") > CHARS_MAX:
            return
        self._make_room()
        self.rows[row.key] = row

    def keep_plain(self, settled: SettledPlain) -> None:
        """Cache a plain call that this process has settled as succeeded."""
        started, result = settled.started, settled.result
        op = started.op
        tool, args = op.tool, op.args
        if self.closed or tool.kind == "read" or len(args) + len(result) > CHARS_MAX:
            return
        if len(self.rows) + len(self.plain) >= CALLS_MAX:
            self._make_room()
        if self.run is not op.run:
            if self.run is not None:
                return
            self.run = op.run
        if len(self.plain) < AS_OBJECTS:
            self.plain[op.key] = settled
            return
        tools = self.tools
        if tool not in tools:
            tools.append(tool)  # and never removed: other threads have its place
        self.plain[op.key] = (
            op.number, tools.index(tool), op.ident, op.digest, args, op.call_ref, op.proof, started.n, started.at, settled.n,
            settled.at, result, settled.proof,
        )  # fmt: skip

    def _plain_of(self, key: bytes, kept: KeptPlain | SettledPlain) -> SettledPlain:
        """Return a plain call as ``keep_plain`` was given it, and keep it so: what is asked for once is asked for again."""
        if type(kept) is SettledPlain:
            return kept
        number, tool, ident, digest, args, call_ref, proof, n, at, settled_n, settled_at, result, result_proof = kept  # type: ignore[misc]
        assert self.run is not None, "a plain call has a run"
        op = AdmitPlain(self.run, self.tools[tool], number, key, ident, digest, args, call_ref, proof=proof)
        settled = SettledPlain(Started(op, n, at), settled_n, settled_at, result, proof=result_proof)
        if not self.closed:
            self.plain[key] = settled
        return settled

    def settled(self) -> list[SettledPlain]:
        """Return the plain calls, in the order of settling."""
        calls = [self._plain_of(key, kept) for key, kept in list(self.plain.items())]
        return sorted(calls, key=attrgetter("n"))

    def _make_room(self) -> None:
        if len(self.rows) + len(self.plain) >= CALLS_MAX:
            self.rows, self.plain = {}, {}

    def of(self, key: str, ident: str) -> CallRow | None:
        """Return the cached call with this key if it was requested with these arguments."""
        row = None if self.closed else self.rows.get(key)
        if row is None and self.plain and not self.closed and len(key) == KEY_DIGITS:
            plain = bytes.fromhex(key)
            kept = self.plain.get(plain)
            row = None if kept is None else self._plain_of(plain, kept).row
        return None if row is None or row.ident != ident else row

    def of_plain(self, key: bytes, ident: bytes) -> SettledPlain | None:
        """Return the cached plain call with this key if it was requested with these arguments."""
        kept = None if self.closed else self.plain.get(key)
        settled = None if kept is None else self._plain_of(key, kept)
        return None if settled is None or settled.started.op.ident != ident else settled

    def close(self) -> None:
        """Forget everything and cache nothing more: from now on succeeded calls may be compensated."""
        self.closed = True
        self.rows, self.plain = {}, {}


@dataclass(slots=True)
class Readings:
    """What programs and bodies of one tree have read from the clock, the random numbers and the new ids."""

    counters: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    recorded: Mapping[tuple[str, str], Sequence[float]] | None = None
    """Clock readings from before a resume, by run and by the call in whose body they were read; None: not looked up
    yet."""


@dataclass(slots=True)
class Closing:
    """What the program of a run says about its end. A root and its children share it."""

    text: str = ""
    """The run's ``completion``; empty: nobody said anything."""
    checks: tuple[Callable[[Any], object], ...] = ()
    """Functions of the report that must return True; only the process that was given them has them."""
    told: bool = False
    """Whether the model was told what is missing."""
    run: str = ""
    """The run that this is about; empty: the root."""


# ---- One opened run


MESSAGE_CHARS_MAX: Final = 2_000
NAME_CHARS_MAX: Final = 500


@dataclass(slots=True)
class Session:
    """What every flow of one run needs. Children share the lease and the counters of their root."""

    uid: str
    id: str
    root: str
    tenant: str
    agent: str
    principal: str
    generation: int
    lease: Lease
    specs: Mapping[str, Spec]
    order: Order
    wait_s: float
    new_id: Callable[[str], str]
    resumed: bool = False
    state: str = "open"
    run: Any = None
    replays: dict[str, int] = field(default_factory=dict)
    """How often calls were answered from the record, counted from what the ledger had."""
    counted: dict[str, int] = field(default_factory=dict)
    """What of it has been written."""
    handlers: dict[str, tuple[Callable[..., Any], bool]] = field(default_factory=dict)
    """Bodies of staged calls that came with the request instead of a declaration, and whether they are async."""
    above: tuple[str, ...] = ()
    """The runs around this one, innermost first."""
    recall: Recall = field(default_factory=Recall)
    budgets: tuple[Budget, ...] = ()
    """The budgets of the runtime and those that the run was opened with."""
    asked: set[str | bytes] = field(default_factory=set)
    """Keys that were requested here, those of plain calls as bytes: a second request is most likely answered by the
    record."""
    rules: tuple[Rule, ...] = ()
    repeats: bool = False
    """Whether a model may ask for a deliberate repeat."""
    anchor: Any = None
    wait_approval_s: float = 0.0
    asked_calls: set[str] = field(default_factory=set)  # calls that are staged, or may become so, and need an approval
    held_from_caller: dict[str, CallRow] = field(default_factory=dict)
    """Calls that wait for a person, and whose body came with the request."""
    tell: Tell | None = None
    redactor: Redactor = field(default_factory=Redactor)
    given: Any = None
    """The run's input as its caller gave it, if this process has it."""
    memory: Memory = field(default_factory=Memory)
    readings: Readings = field(default_factory=Readings)
    kin: str = ""
    """In a fork: the root that names the keys, so that the fork finds shared calls under the keys of the original."""
    bodies: dict[str, LazyCall] = field(default_factory=dict)
    """The bodies of this tree that run in this process, by the ids of their calls."""
    user_wait_s: float | None = None
    """``wait`` if the user has set it; None: ``wait_s`` is the default."""
    user_wait_approval_s: float | None = None
    """``wait_approval`` if the user has set it."""
    phases: tuple[tuple[str, str, str], ...] = ()
    counterparts: tuple[str, ...] = ()  # see ``counterparts_of`` in ``ledger/rows.py``
    plain: PlainRun | None = None
    """The run as its plain calls name it; None: no call of this session is plain."""
    waits_for_doubts: bool = False
    """Whether recovery has started the agent of this run again: a doubt that it meets is waited for, not rolled back."""
    closing: Closing = field(default_factory=Closing)
    poll_s: float = POLL_S_MAX
    poll_approval_s: float = APPROVAL_POLL_S_MAX
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    """The most that the ledger keeps of the arguments, and of the result, of one call."""

    @property
    def known(self) -> dict[str, Secret]:
        """Spellings of the values that this process has hidden in this tree: recorded errors must not contain them."""
        return self.memory.known

    @property
    def live(self) -> dict[str, Ask]:
        """Requests with hidden arguments that are not settled: only this process has their values."""
        return self.memory.live

    def spec(self, tool: str) -> Spec | None:
        """Return the declaration of a recorded call's tool, if this process has it."""
        return self.specs.get(tool)

    def body(self, row: CallRow) -> tuple[Callable[..., Any], bool] | None:
        """Return the body of a recorded call, and whether it is async, if this process has it."""
        spec = self.specs.get(row.tool)
        declared: tuple[Callable[..., Any], bool] | None = None
        # The request to an agent is recorded as a read, and the agent itself is not its body.
        if spec is not None and spec.fn is not None and spec.kind != "agent":
            declared = (spec.fn, spec.is_async)
        return None if spec is None else self.handlers.get(row.id, declared)

    def end_body(self, later: LazyCall) -> None:
        """Note that the body has ended or outlived its timeout: what it left running is no longer part of it."""
        self.bodies.pop(later.id, None)
        later.is_over = True
        around = self.bodies.get(later.row.parent)
        if around is not None and later.touched:
            # However this body ends, and whatever its kind: the effect was also inside the body around it.
            around.touched = True

    def child(self, uid: str, id: str, *, generation: int, resumed: bool, state: str, given: object = None) -> Session:
        """Return the session of a run inside this one."""
        return replace(
            self, uid=uid, id=id, generation=generation, resumed=resumed, state=state, run=None, above=self.lineage,
            given=given, plain=None,
        )  # fmt: skip

    @property
    def lineage(self) -> tuple[str, ...]:
        """This run and the runs around it: a running call keeps each of them from ending."""
        return (self.uid, *self.above)

    def may_repeat(self, tool: str) -> bool:
        """Return whether a model's ``again_because`` is honoured for this tool."""
        spec = self.specs.get(tool)
        return self.repeats and (spec is None or spec.may_repeat)

    def advises(self, spec: Spec) -> bool:
        """Return whether violations of the ordering rules are only recorded for this tool (``order="advise"``)."""
        return (spec.order or self.order) == "advise"


# ---- One request


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, bound and validated, in the form that is recorded; the ledger has not seen it yet."""

    spec: Spec
    args: Mapping[str, Any]
    """The arguments as they are recorded, for the engine to read; user code gets ``fresh()``."""
    text: str
    key: str
    ident: str
    whole: str
    fn: Callable[..., Any]
    is_async: bool
    again: str = ""
    call_ref: str = ""
    parent: str = ""
    grp: str = ""
    timeout: float | None = None
    locks: tuple[str, ...] = ()
    costs: CallCost = FREE
    undeclared: bool = False
    """The tool is not declared: a person must allow it, unless a rule does."""
    flight: Flight = field(default_factory=Flight)
    recorded_digest: str = ""
    shown: Mapping[str, Any] | None = None
    """The arguments as they are recorded, if they were given in another form; None: the same as ``args``."""
    known: Known = NO_SECRETS
    copy: Callable[[], Mapping[str, Any]] | None = None
    """Makes a new copy of the arguments; None: none of their values is mutable."""

    def fresh(self) -> Mapping[str, Any]:
        """Return the arguments as they were recorded, for one use by user code, which may change what it gets."""
        return _fresh_args(self.args, self.copy)

    @property
    def digest(self) -> str:
        """The digest of the tool's version and all arguments.

        Computed on demand, since a replayed answer does not need it.
        """
        return self.recorded_digest or request_digest(self.spec.name, self.spec.version, self.whole)


def ask_for(
    session: Session,
    spec: Spec,
    args: Mapping[str, Any],
    *,
    fn: Callable[..., Any] | None = None,
    is_async: bool | None = None,
    again: str | None = None,
    call_ref: str | None = None,
    parent: str = "",
    grp: str = "",
    timeout: float | None = None,
    shape: Shape | None = None,
) -> Ask:
    """Make the request. Raises ``NotStorable`` or ``TooLarge`` before anything is recorded.

    ``fn``, ``is_async``: a body that comes with the request instead of the declaration. ``again``: why this is a
    deliberate repeat. ``call_ref``: the framework's id of the call. ``parent``: the call in whose body the request is
    made. ``grp``: the group of parallel calls. ``timeout``: instead of the tool's. ``shape``: the classes that the
    arguments may have, if that is not what the tool's signature says.
    """
    body = fn or spec.fn
    assert body is not None, f"{spec.name} has a body or a handler"
    if call_ref is not None and not isinstance(call_ref, str):
        raise UsageError(f"tool_call_id= of a call of {spec.name} is a text, not {type(call_ref).__name__}")
    # Two lone surrogates beside each other would be read back as one character.
    call_ref, again = call_ref and clean(call_ref), again and clean(again)
    shown, known, copy = args, NO_SECRETS, None
    plain = plain_texts(args) if spec.redact is None else None
    if plain is not None and "[" not in plain[0] and plain[0].count("{") == 1:
        text, whole = plain  # plain immutable values: nearly every call
    else:
        if spec.redact is None:
            written = write_args(args, shape or spec.shape, plain, limit=session.payload_bytes_max)
            shown = args = written.args
        else:
            args, shown, written, known = _hide_some(session, spec, args, shape or spec.shape)
            again = again and session.redactor.scrub(again, known)
        text, whole, copy = written.text, written.meaning, written.copy
    check_size(text, path="args", limit=session.payload_bytes_max)
    meaning = named = whole
    if spec.key is not None or spec.ignore:
        given = _fresh_args(args, copy) if callable(spec.key) else args
        meaning, named = _identity_texts(session, spec, given, shown=shown, known=known, whole=whole)
    scope = "ledger" if spec.scope == "ledger" else session.kin or session.root
    key = call_key(session.tenant, scope, spec.name, named, again or "")
    return Ask(
        spec=spec,
        args=args,
        text=text,
        key=forked_key(key, session.root) if session.kin and spec.scope != "ledger" else key,
        ident=identity_digest(meaning),
        whole=whole,
        fn=body,
        is_async=spec.is_async if is_async is None else is_async,
        again=again or "",
        call_ref=call_ref or "",
        parent=parent,
        grp=grp,
        timeout=spec.timeout if timeout is None else timeout,
        locks=_locks(session, spec, _fresh_args(args, copy), known) if spec.locks is not None else (),
        shown=None if shown is args else shown,
        known=known,
        copy=copy,
        costs=FREE
        if spec.cost is None and not session.budgets
        else _cost(session, spec, _fresh_args(args, copy), known),
    )


def _fresh_args(args: Mapping[str, Any], copy: Callable[[], Mapping[str, Any]] | None) -> Mapping[str, Any]:
    """Return arguments for user code: constants need no copy, but the mapping is a new one."""
    return dict(args) if copy is None else copy()


def _hide_some(
    session: Session, spec: Spec, args: Mapping[str, Any], shape: Shape
) -> tuple[Mapping[str, Any], Mapping[str, Any], Written, Known]:
    """Return the arguments of a tool that hides some.

    For the body, as recorded, in written form, and the hidden values.
    """
    assert spec.redact is not None, "only a tool that hides arguments gets here"
    # Copied before anything is read: hidden values are not in the text, and must be the ones that the text stands for.
    kept = _copied(args)
    request = request_of(session, spec, kept)
    inside = shape if spec.signature is None else spec.anywhere
    shown, known = hide_args(session.redactor, session.memory, request, spec, places=spec.redact.places, shape=inside)
    if shown is kept:
        written = write_args(kept, shape, limit=session.payload_bytes_max)
        return written.args, written.args, written, known
    text = encode(dict(shown), path="args", shape=shape)
    return kept, shown, Written(kept, text, canonical(shown, shape=shape), partial(_copied, kept)), known


def _copied(args: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {name: value if type(value) in CONSTANTS else deepcopy(value) for name, value in args.items()}
    except Exception as error:
        raise NotStorable(f"args cannot be copied: {type(error).__name__}", path="args") from error


def _cost(session: Session, spec: Spec, args: Mapping[str, Any], known: Known) -> CallCost:
    request, redactor = request_of(session, spec, args), session.redactor
    return cost_of(spec, request, session.budgets, session.root, scrub=lambda text: redactor.scrub(text, known))


def _locks(session: Session, spec: Spec, args: Mapping[str, Any], known: Known) -> tuple[str, ...]:
    request = request_of(session, spec, args)
    return lock_names(spec, request) if spec.redact is None else hidden_locks(session.redactor, request, spec, known)


def cost_with_request_ids(session: Session, ask: Ask, *, wide: bool) -> CallCost:
    """Return the cost of the request, with the ids of the approval request to make if a budget holds it."""
    pays_for_others = ask.spec.kind == "pivot" and any(budget.then == "hold" for budget in session.budgets)
    holds = pays_for_others or any(want.holds for want in ask.costs.wants)
    asks = (session.new_id("apr"), session.new_id("nonce")) if holds else ("", "")
    return replace(ask.costs, wide=wide, ask=asks) if holds or wide else ask.costs


def put_of(spec: Spec) -> int:
    """Return whether calls of this tool set a value, and whether their compensations do (``CallRow.put``)."""
    return (PUT if spec.put else 0) | (PUT_BACK if spec.compensate is not None and spec.compensate.put else 0)


def undeclared_costs(session: Session, ask: Ask, reported: Mapping[str, int]) -> tuple[BudgetDemand, ...]:
    """Return the budgets to charge for units that the body reported and the tool did not declare."""
    return undeclared_demands(
        reported, ask.costs, session.budgets, request_of(session, ask.spec, ask.fresh()), session.root
    )


def request_of(session: Session, spec: Spec, args: Mapping[str, Any]) -> Request:
    """Return what the rules of a tool see."""
    return Request(
        run_id=session.id,
        tool=spec.name,
        version=spec.version,
        args=args,
        tenant=session.tenant or None,
        agent=session.agent or None,
        principal=session.principal or None,
    )


def _identity_texts(
    session: Session, spec: Spec, args: Mapping[str, Any], *, shown: Mapping[str, Any], known: Known, whole: str
) -> tuple[str, str]:
    """Return the texts for the identity and for the key, if the tool says that these are not all its arguments."""
    meaning = whole
    if spec.ignore:
        intent = spec.intent(shown)
        meaning = whole if len(intent) == len(shown) else _canonical_text(intent, spec.shape, path="args")
    identity: object | None
    if isinstance(spec.key, tuple) and all(map(shown.__contains__, spec.key)):
        # The same as the rule says, without making a request for it.
        identity = {name: shown[name] for name in spec.key}
    else:
        # A function is the user's own and sees the values; what it returns is hidden afterwards.
        identity = spec.identity(request_of(session, spec, args if callable(spec.key) else shown))
    if identity is None:
        return meaning, meaning
    named = _canonical_text(identity, spec.anywhere if callable(spec.key) else spec.shape, path="key")
    if spec.redact is not None and callable(spec.key) and session.redactor.holds(named, known):
        named = session.redactor.commit((session.tenant, spec.name), named)
    return meaning, named


def _canonical_text(value: object, shape: Shape, *, path: str) -> str:
    plain = plain_texts(value)
    return canonical(value, path=path, shape=shape) if plain is None else plain[1]


# ---- Recorded calls as users see them


def later_of(row: CallRow, ask: Ask) -> LazyCall:
    """Return the call as its body may ask for it."""
    return LazyCall(row, lambda: call_of(row, ask.spec, args=ask.fresh()))


def call_of(
    row: CallRow, spec: Spec | None, *, phase: Phase = "execute", args: Mapping[str, Any] | None = None
) -> Call:
    """Return a row of the ledger as users see it."""
    result_type = spec.result_type if spec is not None else Any
    gone_at = moment(lost_at(row.result))
    return Call(
        run_id=row.run_id,
        tool=row.tool,
        version=row.version,
        args=decode_args(row, spec) if args is None else args,
        tenant=row.tenant or None,
        agent=row.agent or None,
        principal=row.principal or None,
        id=row.id,
        key=compensation_key(row) if phase == "compensate" else provider_key(row),
        kind=row.kind,  # type: ignore[arg-type]  # the ledger's own words
        state=row.state,  # type: ignore[arg-type]
        generation=row.generation,
        attempt=row.comp_attempt if phase == "compensate" else row.attempt,
        phase=phase,
        digest=row.digest,
        result=None if gone_at is not None else _visible_result(row.result, result_type),
        loss=row.loss or None if gone_at is None else f"removed on {gone_at:%Y-%m-%d}",
        error=error_text(row.error),
        why=row.why or None,
        reason=row.reason or None,  # type: ignore[arg-type]
        again=row.again or None,
        tool_call_id=row.call_ref or None,
        parent=row.parent or None,
        violation=row.violation or None,
        compensation=_compensation_of(row),
        requested_at=moment(row.created_at),
        started_at=moment(row.started_at),
        settled_at=moment(row.settled_at),
        replays=row.replays,
        gone_at=gone_at or moment(row.lost_at),
        costs={unit: Decimal(text) for unit, text in read_charge(row.cost).totals().items()} if row.cost else {},
        shared=row.shared or None,
        classes=classes_of(row.args) if CLASS_MARK in row.args else {},
        before=None if row.before is None or lost_at(row.before) is not None else _visible_before(row.before, spec),
        twin=row.twin or None,
    )


def _visible_before(text: str, spec: Spec | None) -> Any:
    """Return what was there before a call, for people to see."""
    return _visible_result(text, Any if spec is None or spec.before is None else spec.before.returns)


def _visible_result(text: str | None, result_type: Any) -> Any:
    """Return a recorded result for people to see: of an encrypted one only that it exists."""
    return UNREADABLE if text is not None and text.startswith(SEALED) else load_result(text, result_type)


def decode_args(row: CallRow, spec: Spec | None) -> Mapping[str, Any]:
    """Return the recorded arguments in the types of the tool's signature; empty if garbage collection removed them.

    A hidden argument is a ``Secret``; so are all of them if this process lacks the key to read them.
    """
    if lost_at(row.args) is not None:
        return {}
    if row.args.startswith(SEALED):
        return {MASK: UNREADABLE}
    return args_of(row.args, spec)


def must_be_readable(row: CallRow) -> None:
    """Raise ``LedgerSealed`` if this process has no key for the arguments.

    Nobody may allow what they cannot be shown.
    """
    if row.args.startswith(SEALED):
        raise LedgerSealed(
            f"the arguments of call {row.id} ({row.tool}) are encrypted, and this process has no key to show them: "
            "nobody may allow what they cannot read",
            run_id=row.run_id,
        )


def args_of(text: str, spec: Spec | None) -> Mapping[str, Any]:
    """Return the arguments of a stored text, in the types of the tool's signature unless one is hidden."""
    if spec is None or spec.signature is None:
        plain: dict[str, Any] = decode(text)
        return plain
    # Rebuild them as they were, without the validators: those ran when the arguments were given, and a second time they
    # might change the values.
    found, unlike = rebuild_args(text, spec.signature.shape)
    is_whole = found.keys() == set(spec.signature.names) or spec.signature.rest is not None
    if MARK in text or (is_whole and not unlike):
        return found
    try:
        return spec.bind((), found)
    except BadArguments:
        return found  # recorded by another version of the tool: its compensation still gets what was recorded


def _compensation_of(row: CallRow) -> Compensation | None:
    if not row.comp_attempt:
        return None
    return Compensation(
        key=compensation_key(row),
        attempts=row.comp_attempt,
        error=error_text(row.comp_error),
        started_at=moment(row.comp_at),
        settled_at=moment(row.comp_settled_at),
        next_at=moment(row.comp_retry_at),
    )


def moment(seconds: float | None) -> datetime | None:
    """Return ledger time for people: an aware datetime in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def describe_error(error: BaseException, redactor: Redactor | None = None, known: Known = NO_SECRETS) -> str:
    """Return an exception as the ledger stores it: without hidden values, and marked where it was cut."""
    name, message = class_name(type(error)).removeprefix("builtins."), words_of(error)
    if redactor is not None:
        message = redactor.scrub(message, known)
    name, message = cut(name, NAME_CHARS_MAX), cut(message, MESSAGE_CHARS_MAX)
    return f"[{encode_basestring_ascii(name)}, {encode_basestring_ascii(message)}]"  # as ``json.dumps`` writes it


def error_parts(text: str) -> tuple[str, str]:
    """Return the type name and the message of a recorded error."""
    if not text:
        return "", ""
    if text.startswith(SEALED):
        return "", f"({MASK} encrypted)"
    name, message = json.loads(text)
    return name, message


def error_text(text: str) -> str | None:
    """Return a recorded error in one line."""
    if not text:
        return None
    name, message = error_parts(text)
    return ": ".join(word for word in (name, message) if word)


# ---- Hidden values and results, for bodies, compensations and probes


def remember_hidden_args(session: Session, ask: Ask, row: CallRow) -> None:
    """Remember a request that brings the hidden arguments of a recorded call, until the call is settled."""
    if ask.shown is not None and ask.digest == row.digest:
        session.live[row.id] = ask


def hidden_values_of(session: Session, row: CallRow) -> Known:
    """Return the spellings of the hidden values of a recorded call, as far as this process can know them."""
    ask = session.live.get(row.id)
    return secrets_of(session, session.redactor.known(row.args) if ask is None else ask.known)


def secrets_of(session: Session, own: Known) -> Known:
    """Return the spellings of the hidden values of a call and of its run: no text about the call may tell them."""
    return {**session.known, **own} if session.known else own


def kept_result(session: Session, spec: Spec, row: CallRow, stored: Stored, own: Known) -> Stored:
    """Return what the ledger keeps of a result: without the hidden values of the call, and of its run.

    ``own``: those of the call. A short value of the run is no reason to change what another tool returned: it is most
    likely a coincidence, and a replay would get a mask instead.
    """
    if spec.redact is None:
        own = NO_SECRETS
        if not session.known:
            return stored
    known = {**own, **long_secrets(session)} if session.known else own
    return session.redactor.kept(stored, known, (row.tenant, row.tool))


def long_secrets(session: Session) -> Known:
    """Return the hidden values of the run that are long enough to be searched for in what any of its tools returned."""
    return {spelled: secret for spelled, secret in session.known.items() if len(spelled) > BOUNDED_CHARS_MAX}


def body_args(session: Session, spec: Spec, row: CallRow) -> Mapping[str, Any]:
    """Return the arguments for the body of a recorded call; check ``lacking`` first."""
    ask = session.live.get(row.id)
    return _revealed_args(session, spec, row) if ask is None else ask.fresh()


def lacking(session: Session, row: CallRow, params: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the hidden arguments that a body needs and this process does not have.

    ``params``: of a compensation, guard or probe with these parameters instead. It gets only what every process could
    give it: success here must not hide that it fails elsewhere.
    """
    if MARK not in row.args or (params is None and row.id in session.live):
        return ()
    return session.redactor.lacking(row.args, params)


def lacking_words(names: Iterable[str]) -> str:
    """Return why a call cannot be started here, in words."""
    return f"its {', '.join(names)} is redacted, and only the program that asked for it has the value"


def missing(session: Session, spec: Spec, row: CallRow, asked: CompensationSpec | ProbeSpec) -> str:
    """Return why a compensation, guard or probe cannot be started for lack of what it needs; "" if it can."""
    if gone := lacking(session, row, dict.fromkeys((*asked.params, *asked.needs))):
        return f"it asks for {', '.join(gone)}, which is redacted and not kept"
    ours = ("result", BEFORE) if spec.before is not None else ("result",)
    if needed := [name for name in asked.needs if name not in ours]:
        args = () if lost_at(row.args) is not None else decode_args(row, spec)
        if absent := [name for name in needed if name not in args]:
            return f"it asks for {', '.join(absent)}, which the record of the call does not have"
    if BEFORE in asked.needs and spec.before is not None and (why := before_loss(session, spec, row)):
        return f"it asks for what was there before the call, which this process does not have: {why}"
    if "result" not in asked.needs or (asked.takes_none and row.comp_blind):
        return ""
    why = result_loss(session, spec, row)
    return f"it asks for the result of the call, which this process does not have: {why}" if why else ""


def result_loss(session: Session, spec: Spec | None, row: CallRow) -> str:
    """Return why this process does not have the whole result of a call; "" if it has it."""
    if row.id in session.memory.results:
        return ""
    if (gone_at := moment(lost_at(row.result))) is not None:
        return f"it was removed on {gone_at:%Y-%m-%d}"
    if row.result is None:
        return row.loss or "nobody knows its result"
    if row.loss.startswith(REDACTED):
        return row.loss
    if MARK in row.result and session.redactor.lacking(f'{{"result":{row.result}}}'):
        return "a part of it is encrypted, and this process has no key to read it"
    if spec is not None and not row.loss and no_longer_fits(session.redactor.revealed(row.result), spec.result_type):
        return f"what was recorded cannot be read as {spec.result_type} any more"
    return ""


def companion_args(
    session: Session, spec: Spec, asked: CompensationSpec | ProbeSpec, row: CallRow, *, call: Call
) -> tuple[dict[str, Any], Call]:
    """Return the arguments of a compensation, guard or probe, and its call; check ``missing`` first.

    A lost result is left out, or is None for a call in doubt if the function accepts that; ``call.result`` then raises.
    """
    usable = call.args
    if EVERYTHING in asked.params and MARK in row.args:
        gone = session.redactor.lacking(row.args)
        usable = {name: value for name, value in usable.items() if name not in gone}
    before = LOST if spec.before is None else before_of(session, spec, row)
    if before is not LOST:
        call = replace(call, before=before)
    result, why = _result_for(session, spec, asked, row)
    if why:
        call = without_result(call, ResultLost(f"{row.tool} ({row.id})", why=why, run_id=row.run_id))
    else:
        call = replace(call, result=result)
    return named_arguments(asked.params, args=usable, result=result, call=call, before=before), call


def before_loss(session: Session, spec: Spec, row: CallRow) -> str:
    """Return why this process does not have what was there before a call; "" if it has it."""
    if f"{BEFORE}:{row.id}" in session.memory.results:
        return ""
    if (gone_at := moment(lost_at(row.before))) is not None:
        return f"it was removed on {gone_at:%Y-%m-%d}"
    if row.before is None:
        return "the call was started without it" if row.attempt else "it was not read yet"
    if MARK in row.before and session.redactor.lacking(f'{{"before":{row.before}}}'):
        return "a part of it is redacted and not kept"
    assert spec.before is not None, "only a tool with a before has lost its value"
    if no_longer_fits(session.redactor.revealed(row.before), spec.before.returns):
        return f"what was recorded cannot be read as {spec.before.returns} any more"
    return ""


def before_of(session: Session, spec: Spec, row: CallRow) -> Any:
    """Return what was there before a call, as its compensation, probe or guard gets it; ``LOST`` if nobody has it."""
    if before_loss(session, spec, row):
        return LOST
    known = session.memory.results.get(f"{BEFORE}:{row.id}", LOST)
    if known is not LOST:
        return known
    assert spec.before is not None, "only a tool with a before has a value"
    return load_result(row.before and session.redactor.revealed(row.before), spec.before.returns)


def _result_for(session: Session, spec: Spec, asked: CompensationSpec | ProbeSpec, row: CallRow) -> tuple[Any, str]:
    """Return the result that a compensation, guard or probe gets, and why it is lost, if it is."""
    if why := result_loss(session, spec, row):
        return None if asked.takes_none and row.comp_blind else LOST, why
    result = session.memory.results.get(row.id, LOST)
    if result is LOST:
        is_untyped = bool(row.loss) or spec.result_type is Any  # the one who recorded it may have known the class
        result = result_of(session, spec, row, hint=asked.result_type if is_untyped else Any)
    return result, ""


def compensation_args(
    session: Session, spec: Spec, compensation: CompensationSpec, row: CallRow
) -> tuple[dict[str, Any], LazyCall]:
    """Return the arguments of a compensation, and the compensation as its function may ask for it.

    Most compensations take the result and nothing else: the call is then built only if ``current_call`` asks.
    """

    def whole() -> Call:
        call = call_of(row, spec, phase="compensate", args=_revealed_args(session, spec, row))
        return companion_args(session, spec, compensation, row, call=call)[1]

    if all(name == "result" for name in compensation.params):
        result = _result_for(session, spec, compensation, row)[0] if compensation.params else LOST
        kwargs = {} if result is LOST else {"result": result}
    else:
        kwargs, _ = companion_args(session, spec, compensation, row, call=revealed_call(session, spec, row))
    return kwargs, LazyCompensation(row, whole)


def revealed_call(session: Session, spec: Spec, row: CallRow, *, phase: Phase = "execute") -> Call:
    """Return the call as its own code sees it: with its hidden arguments, if they were stored and can be read here."""
    return call_of(row, spec, phase=phase, args=_revealed_args(session, spec, row))


def _revealed_args(session: Session, spec: Spec, row: CallRow) -> Mapping[str, Any]:
    return {} if lost_at(row.args) is not None else args_of(session.redactor.revealed(row.args), spec)


def result_of(session: Session, spec: Spec, row: CallRow, *, hint: Any = Any) -> Any:
    """Return the recorded result as its caller gets it; ``hint`` is its type if the tool does not declare one."""
    result_type = spec.result_type if hint is Any else hint
    return load_result(row.result and session.redactor.revealed(row.result), result_type)


def store_result(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[str | None, str]:
    """Return what the ledger stores of a body's result, and what of it is lost; remember here what it cannot store."""
    seen, stored = _stored(session, spec, row, value)
    remember(session, spec, row, seen, stored)
    return stored.text, stored.loss or ""


def reported_result(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[str | None, str]:
    """Return the same for a result reported by a probe or a person, who give None if they do not know it."""
    if value is LOST or (value is None and not admits_none(spec.result_type)):
        return None, "it was reported as happened without a result"
    _, stored = _stored(session, spec, row, value)
    return stored.text, stored.loss or ""


def _stored(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[Any, Stored]:
    seen, stored = round_trip(value, spec.result_type, limit=session.payload_bytes_max)
    ask = session.live.get(row.id)
    own = session.redactor.known(row.args) if ask is None else ask.known
    return seen, kept_result(session, spec, row, stored, own)


def remember(session: Session, spec: Spec, row: CallRow, value: object, stored: Stored) -> None:
    """Keep a result in this process if the ledger does not have all of it."""
    is_whole = stored.text is not None and not (stored.loss or "").startswith(REDACTED)
    if not is_whole or (type(value).__module__ == "builtins" and no_longer_fits(stored.text or "", spec.result_type)):
        session.memory.keep_result(row.id, value)


def first_result(session: Session, spec: Spec, row: CallRow) -> Any:
    """Return the result of a call to its first caller; raise ``ResultLost`` if nobody has it."""
    if row.id in session.memory.results:
        return session.memory.results[row.id]
    return recorded_result(session, spec, row)


def recorded_result(session: Session, spec: Spec, row: CallRow) -> Any:
    """Return the result as the ledger has it; raise ``ResultLost`` if it has none."""
    if (gone_at := moment(lost_at(row.result))) is not None:
        raise ResultGone(f"{row.tool} ({row.id})", gone_at=gone_at, call=call_of(row, spec), run_id=session.id)
    if row.result is None:
        why = row.loss or "nobody knows its result"
        raise ResultLost(f"{row.tool} ({row.id})", why=why, call=call_of(row, spec), run_id=session.id)
    return result_of(session, spec, row)


def recorded_error(session: Session, row: CallRow, error: BaseException) -> str:
    """Return an exception about a recorded call, as the ledger stores it."""
    return describe_error(error, session.redactor, hidden_values_of(session, row))


def scrubbed(session: Session, text: str) -> str:
    """Return a text of this run without its hidden values."""
    return session.redactor.scrub(text, session.known)


def cause_of(session: Session, error: BaseException | None, known: Known = NO_SECRETS) -> BaseException | None:
    """Return the cause to chain to one of our errors: the error itself, unless its text would tell a hidden value."""
    if error is None or is_a(error, Error):
        return error
    text = words_of(error)
    shown = session.redactor.scrub(text, {**session.known, **known})
    if shown == text:
        return error
    return ToolFailed(shown, call=None, type_name=type_name(error))


# ---- Redaction of arguments, before anything is written


def hide_args(
    redactor: Redactor, memory: Memory, request: Request, spec: Spec, *, places: tuple[str, ...], shape: Shape
) -> tuple[Mapping[str, Any], Known]:
    """Return the arguments as they are recorded, and the hidden values that no text may contain.

    Raises ``NotStorable`` for a staged call whose hidden values a worker would not have.
    """
    given = dict(request.args)
    shown, known = redactor.hide(given, (request.tenant or "", spec.name), places=places, path="args", shape=shape)
    if shown is given:
        return request.args, NO_SECRETS
    memory.keep(known)
    if spec.is_staging and redactor.vault is None:
        name = next(name for name in given if shown.get(name) is not given[name])
        raise NotStorable(
            f"args.{name} of {spec.name} is redacted, and {spec.name} is accepted for later: a worker that starts it "
            "would not have the value",
            path=f"args.{name}",
            hint="keep it encrypted with Runtime(encrypt=...), or pass a reference and look the value up in the body",
        )
    return shown, known


def hidden_locks(redactor: Redactor, request: Request, spec: Spec, known: Known) -> tuple[str, ...]:
    """Return the lock names of the request; a commitment stands for each hidden value in them."""
    # Not the tool's name: two tools that lock the same thing must get the same name.
    about = (request.tenant or "", "lock")
    return lock_names(spec, request, lambda name: redactor.name(name, known, about))


def hidden_effect(redactor: Redactor, tenant: str, spec: Spec, effect: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an effect of the world as the ledger would name it: with placeholders for its hidden arguments."""
    if spec.redact is None:
        return effect
    about, places = (tenant, spec.name), spec.redact.places
    shown: Mapping[str, Any] = redactor.hide(dict(effect), about, places=places, path="effect", shape=spec.anywhere)[0]
    return shown


# ---- Reading and releasing a run tree


async def release_tree(
    session: Session, wake_s: float | None, *, suspended: bool = False, silent_s: float | None = None
) -> RunRow:
    """Release the tree. ``wake_s``: when a worker should look at it; ``suspended``: it waits for a person.

    ``silent_s``: it is left to its client until its client lease has passed; so long has that been silent.
    """
    session.recall.close()  # close the cache first: from then on others may compensate what has succeeded here
    lease = session.lease
    release = ReleaseLease(session.root, lease.owner, lease.epoch, wake_s, suspended=suspended, replays=session.replays)
    clocks = await ReadClocks()
    release.boot, release.mono, release.silent_s = clocks.boot, clocks.mono, silent_s
    release.is_wanted = lease.is_wanted
    return await release


async def count_replays(session: Session) -> None:
    """Write how often calls were answered from the record, if the end of the run has not written it."""
    left = {id: count for id, count in session.replays.items() if session.counted.get(id) != count}
    if left:
        await CountReplays(session.root, left)
        session.counted.update(left)


async def read_tree(session: Session) -> Tree:
    """Return this run, its descendants and their calls, as they are now."""
    tree = await ReadRun(session.tenant, uid=session.uid)
    assert tree is not None, "an open run is in the ledger"
    return tree


# ---- Waiting for another run: watched, polled in growing intervals, and never for ever


@dataclass(slots=True)
class Wait:
    """One wait, from the first refusal on."""

    limit_s: float
    """The limit, in all."""
    since: float = 0.0
    waited: float = 0.0
    pause: float = POLL_S_MIN
    watcher: Any = None
    root: str = ""
    longest_s: float = POLL_S_MAX
    """The longest interval between two looks."""

    async def again(self, root: str) -> bool:
        """Wait until this tree may have changed; return False when the limit is reached."""
        clocks = await ReadClocks()
        self.since = self.since or clocks.mono
        self.waited = clocks.mono - self.since
        if self.waited >= self.limit_s:
            return False
        if self.root != root:
            # It may have changed just before it was watched: look once more.
            self.root, self.watcher = root, await Watch(root)
            return True
        await Await(self.watcher, min(self.pause, self.longest_s, self.limit_s - self.waited))
        self.pause = min(self.pause * 2, self.longest_s)
        return True
