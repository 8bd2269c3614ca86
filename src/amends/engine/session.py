"""One opened run as the engine sees it, and one request made in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

from amends.encoding.annotations import Shape
from amends.encoding.canonical import (
    ARGS_BYTES_MAX,
    CLASS_MARK,
    CONSTANTS,
    canonical,
    check_size,
    digest,
    digest_of,
    encode,
    head,
    plain_texts,
)
from amends.encoding.dataclass import dataclass, field
from amends.encoding.payloads import (
    Stored,
    Written,
    classes_of,
    decode,
    faithful,
    load_result,
    misfits,
    revive_each,
    write_args,
)
from amends.encoding.redaction import NO_SECRETS, REDACTED, Known, Redactor
from amends.encoding.secret import MARK, MASK, SEALED, UNREADABLE, Secret
from amends.errors import (
    BadArguments,
    BadCost,
    BudgetExceeded,
    Error,
    LedgerSealed,
    NotStorable,
    ResultGone,
    ResultLost,
    ToolFailed,
    class_name,
    cut,
    described,
    is_a,
    is_slip,
    type_name,
    words_of,
)
from amends.ledger.changes import read_charge
from amends.ledger.flow import Flow
from amends.ledger.operations import LetGo, ReadRun, Tree
from amends.ledger.rows import FREE, Bill, CallRow, Overrun, RunRow, Tell, Want, forked_key, lost_at
from amends.ledger.world import Await, Flight, Later, Lease, ReadClocks, Watch
from amends.model import (
    CALLS,
    LOST,
    ONE,
    Budget,
    Call,
    Compensation,
    Order,
    Phase,
    Request,
    billionths,
    costs_in,
    decimal_of,
    is_for,
    without_result,
)
from amends.tools.checks import lock_names
from amends.tools.rules import Rule
from amends.tools.signature import admits_none
from amends.tools.spec import EVERYTHING, ProbeSpec, Spec, Twin, twin_kwargs

# ---- Hiding what a request brings, before anything of it is written down


KNOWN_MAX: Final = 10_000
"""Spellings of hidden values that one tree remembers."""


RESULTS_MAX: Final = 10_000
"""Results that the ledger could not keep and that one tree remembers."""


class Memory:
    """What one process knows of one tree and the ledger does not: shared by its sessions, and gone with the last."""

    def __init__(self) -> None:
        self.known: dict[str, Secret] = {}
        self.live: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        """By call: results that could not be kept, or not whole. The compensation in this process gets them."""
        self.flights: dict[str, Flight] = {}
        """By call: what flows that close or recover the run have under way, in case one is stopped."""

    def copy(self) -> Memory:
        """Return what is known now, for whoever only tries something out: what that learns is nobody else's."""
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
        """Remember how hidden values are spelled."""
        self.known.update(known)
        while len(self.known) > KNOWN_MAX:
            del self.known[next(iter(self.known))]


def hide_args(
    redactor: Redactor, memory: Memory, request: Request, spec: Spec, *, places: tuple[str, ...], shape: Shape
) -> tuple[Mapping[str, Any], Known]:
    """The arguments as they are written down, and what no text may spell; refuses what could not be started later."""
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
    """The names of what the request must have to itself, in which a hidden value is a commitment."""
    about = (request.tenant or "", "lock")  # not the tool's: two tools that lock the same thing must meet
    return lock_names(spec, request, lambda name: redactor.name(name, known, about))


def hidden_effect(redactor: Redactor, tenant: str, spec: Spec, effect: Mapping[str, Any]) -> Mapping[str, Any]:
    """An effect of the world as the ledger would name it: its hidden arguments by what stands for them."""
    if spec.redact is None:
        return effect
    about, places = (tenant, spec.name), spec.redact.places
    shown: Mapping[str, Any] = redactor.hide(dict(effect), about, places=places, path="effect", shape=spec.anywhere)[0]
    return shown


# ---- What this process itself saw succeed in the tree that it owns: answered again without asking the led

# Why that is the ledger's answer too. A call that has succeeded leaves that state in two ways only (``states``). It is
# compensated: by the owner of its tree, in this epoch, and so by a flow of this very process, which closes the memory
# before it begins; or by another owner, who has the tree only after it was given back, which closes the memory first, or
# after our lease has run out, which is looked at last, on our own clock and with its margin, as before a body. Or a
# person abandons the run: then the effect stands, the answer is still true, and nothing starts on it any more, because
# the epoch has changed; the next renewal of the lease says so here. What else others may do meanwhile does not touch such
# a call: a goal to roll back waits for the owner, a word on a doubt or on a held call is about another state, late
# evidence about one that succeeded is no news, and gc takes nothing of a tree whose root is open.


CALLS_MAX: Final = 1_000
"""Calls that one tree remembers; at one more it begins anew."""
CHARS_MAX: Final = 8_192
"""Arguments and result of a call that is remembered, together: a tree remembers eight million characters at most."""


@dataclass(slots=True)
class Recall:
    """Succeeded calls by their keys; one for a run and all that are inside it. Once closed it stays empty.

    Closed for good rather than emptied: a thread that saw its call succeed just before is then late in any case.
    """

    rows: dict[str, CallRow] = field(default_factory=dict)
    closed: bool = False
    record: Callable[[Any, Any], Flow[Any]] | None = None
    """In a replay: answers every request from the record of a run that was; None: this run is live."""

    def keep(self, row: CallRow) -> None:
        """Remember a call that this process has settled as succeeded."""
        assert row.state == "succeeded", "only what has happened is answered again"
        if self.closed or row.kind == "read" or len(row.args) + len(row.result or "") > CHARS_MAX:
            return
        if len(self.rows) >= CALLS_MAX:
            self.rows = {}
        self.rows[row.key] = row

    def of(self, key: str, ident: str) -> CallRow | None:
        """The call of this key, if it is remembered and was asked for with these arguments."""
        row = None if self.closed else self.rows.get(key)
        return None if row is None or row.ident != ident else row

    def close(self) -> None:
        """Forget everything, and whatever comes: what has succeeded here may be taken back from now on."""
        self.closed = True
        self.rows = {}


@dataclass(slots=True)
class Readings:
    """What programs and bodies of one tree have read of the clock, dice and new names."""

    counters: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    recorded: Mapping[tuple[str, str], Sequence[float]] | None = None
    """What the clock said before a resume, by run and by the call in whose body it was read; None: not looked up."""


# ---- What a request costs, and which budgets it comes out of. Asked before anything is recorded


def bill_for(
    spec: Spec, request: Request, budgets: Sequence[Budget], root: str, *, scrub: Callable[[str], str] = str
) -> Bill:
    """What this request costs and what it must be reserved of; raises ``BadCost`` before anything runs.

    ``scrub``: takes out of a text what is hidden of the request; the function of ``cost=`` sees it.
    """
    costs = () if spec.cost is None else _said(spec, request, scrub)
    mine = [budget for budget in budgets if is_for(budget, spec.name)]
    if mine and callable(spec.cost):
        _check_units(spec, request, {unit for unit, _, _ in costs}, {budget.unit for budget in mine})
    if any(budget.unit == CALLS for budget in mine) and not any(unit == CALLS for unit, _, _ in costs):
        costs = (*costs, (CALLS, ONE, 0))
    if not costs:
        return FREE
    return Bill(costs, wants_of(mine, {unit: amount for unit, amount, _ in costs}, request, root))


def _said(spec: Spec, request: Request, scrub: Callable[[str], str]) -> tuple[tuple[str, int, int], ...]:
    try:
        return costs_in(spec.cost(request) if callable(spec.cost) else spec.cost)
    except Exception as error:
        said = words_of(error) if is_a(error, ValueError) else described(error)
        why = scrub(said)
        # A traceback shows what an error comes from, with what it says: not where that tells what is hidden.
        raise BadCost(spec.name, why=why[:500], run_id=request.run_id) from (error if why == said else None)


def _check_units(spec: Spec, request: Request, said: AbstractSet[str], capped: AbstractSet[str]) -> None:
    """Raise ``BadCost`` for a unit that is probably a budget's, mistyped: it would spend past that cap."""
    for unit in said - capped:
        for meant in capped - said:
            if is_slip(unit, meant):
                raise BadCost(
                    spec.name,
                    why=f"no budget is in {unit!r}; did you mean {meant!r}?",
                    run_id=request.run_id,
                )


def wants_of(budgets: Sequence[Budget], amounts: Mapping[str, int], request: Request, root: str) -> tuple[Want, ...]:
    """What these budgets are asked for. Of two that differ in nothing but the cap the lower one is both."""
    found: dict[tuple[str, ...], Want] = {}
    for budget in budgets:
        if budget.unit not in amounts or not is_for(budget, request.tool):
            continue
        who = {"run": root, "agent": request.agent or "", "tool": request.tool}.get(budget.per, "")
        ident = (budget.unit, budget.per, budget.every or "", budget.tool, budget.then)
        cap = billionths(budget.cap)
        if ident in found:
            cap = min(cap, found[ident].cap)
        unit, per, every, tool, then = ident
        found[ident] = Want(unit, cap, per, every, tool, then, who, amounts[unit])
    return tuple(found.values())


def unreserved(
    said: Mapping[str, int], bill: Bill, budgets: Sequence[Budget], request: Request, root: str
) -> tuple[Want, ...]:
    """The budgets of what a body spent and nobody had foreseen: nothing is asked of them, it is gone already."""
    asked = {unit for unit, _, _ in bill.costs}
    return wants_of(budgets, dict.fromkeys(set(said) - asked, 0), request, root)


def exceeded(tool: str, over: Overrun, run_id: str) -> BudgetExceeded:
    """The typed error for a call that would have passed a cap."""
    want = over.want
    budget = Budget(
        decimal_of(want.cap),
        want.unit,
        want.per,  # type: ignore[arg-type]  # the ledger's own words
        want.every or None,  # type: ignore[arg-type]
        want.tool,
        want.then,  # type: ignore[arg-type]
    )
    amounts = {name: decimal_of(getattr(over, name)) for name in ("spent", "reserved", "asked", "left")}
    return BudgetExceeded(over.tool or tool, budget=budget, period=over.period or None, run_id=run_id, **amounts)


# ---- One opened run as the engine sees it, and one request made in it


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
    handlers: dict[str, tuple[Callable[..., Any], bool]] = field(default_factory=dict)
    """Bodies, and whether they are async, that came with a request and not with a declaration: of staged calls."""
    above: tuple[str, ...] = ()
    """The runs that this one is inside of."""
    recall: Recall = field(default_factory=Recall)
    budgets: tuple[Budget, ...] = ()
    """Those of the runtime, and those that the run was opened with."""
    asked: set[str] = field(default_factory=set)
    """Keys that were asked for here: asked for again, the record most likely answers."""
    rules: tuple[Rule, ...] = ()
    repeats: bool = False
    """Whether a model may ask for a deliberate repeat."""
    anchor: Any = None
    wait_approval_s: float = 0.0
    asks: set[str] = field(default_factory=set)  # calls that are, or may become, staged and somebody is asked about
    strangers: dict[str, CallRow] = field(default_factory=dict)
    """Calls that wait for a person, and whose body came with the request."""
    tell: Tell | None = None
    redactor: Redactor = field(default_factory=Redactor)
    given: Any = None
    """The run's input as its caller gave it, where this process has it."""
    memory: Memory = field(default_factory=Memory)
    readings: Readings = field(default_factory=Readings)
    kin: str = ""
    """Of a fork: the root that keys are named by, so that it finds what it shares under the names of the original."""
    bodies: dict[str, Later] = field(default_factory=dict)
    """The bodies of this tree that run in this process, by the ids of their calls."""
    said_wait_s: float | None = None
    """``wait``, where somebody has set it; None: ``wait_s`` is the default."""
    said_approval_s: float | None = None
    """``wait_approval``, where somebody has set it."""
    phases: tuple[tuple[str, str, str], ...] = ()
    twins: tuple[str, ...] = ()  # see ``forkrows``

    @property
    def known(self) -> dict[str, Secret]:
        """Spellings of what this process has hidden in this tree: no error of its block is recorded with them."""
        return self.memory.known

    @property
    def live(self) -> dict[str, Ask]:
        """Requests with hidden arguments that are not settled: only this process has their values."""
        return self.memory.live

    def spec(self, tool: str) -> Spec | None:
        """The declaration of a recorded call's tool, if this process has it."""
        return self.specs.get(tool)

    def body(self, row: CallRow) -> tuple[Callable[..., Any], bool] | None:
        """What to run for a recorded call, if this process has it."""
        spec = self.specs.get(row.tool)
        declared = None if spec is None or spec.fn is None else (spec.fn, spec.is_async)
        return None if spec is None else self.handlers.get(row.id, declared)

    def end_body(self, later: Later) -> None:
        """The body has ended, or goes on past its timeout: what it left running is no part of it any more."""
        self.bodies.pop(later.id, None)
        later.is_over = True
        around = self.bodies.get(later.row.parent)
        if around is not None and later.touched:
            around.touched = True  # however this one ends, and whatever its kind: it was an effect inside that one too

    def child(self, uid: str, id: str, *, generation: int, resumed: bool, state: str, given: object = None) -> Session:
        """The session of a run inside this one."""
        return replace(
            self, uid=uid, id=id, generation=generation, resumed=resumed, state=state, run=None, above=self.lineage,
            given=given,
        )  # fmt: skip

    @property
    def lineage(self) -> tuple[str, ...]:
        """This run and those it is inside of: a call under way keeps each of them from ending."""
        return (self.uid, *self.above)

    def may_repeat(self, tool: str) -> bool:
        """Whether a model's ``again_because`` is honoured for this tool."""
        spec = self.specs.get(tool)
        return self.repeats and (spec is None or spec.may_repeat)

    def advises(self, spec: Spec) -> bool:
        """Whether the ordering law is only recorded for this tool."""
        return (spec.order or self.order) == "advise"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, bound, validated and written down, before the ledger has seen it."""

    spec: Spec
    args: Mapping[str, Any]
    """As they were written down, for the engine to read; user code gets ``fresh()``."""
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
    costs: Bill = FREE
    undeclared: bool = False
    """Nobody has declared this tool: a person must allow it, unless a rule does."""
    flight: Flight = field(default_factory=Flight)
    recorded_digest: str = ""
    shown: Mapping[str, Any] | None = None
    """The arguments as they are written down, where that is not how they were given."""
    known: Known = NO_SECRETS
    copy: Callable[[], Mapping[str, Any]] | None = None
    """Makes the arguments anew; None: none of their values can be changed."""

    def fresh(self) -> Mapping[str, Any]:
        """Return the arguments as they were written down, for one use by user code: it may change what it gets."""
        return _anew(self.args, self.copy)

    @property
    def digest(self) -> str:
        """Of the tool's version and all its arguments; taken when it is asked for, since an answer needs none."""
        return self.recorded_digest or digest_of(head("digest", self.spec.name, self.spec.version), self.whole)


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
    """Write the request down. Raises ``NotStorable`` or ``TooLarge`` before anything is recorded.

    ``shape``: which classes the arguments may have, where that is not what the tool's signature says.
    """
    body = fn or spec.fn
    assert body is not None, f"{spec.name} has a body or a handler"
    shown, known, copy = args, NO_SECRETS, None
    plain = plain_texts(args) if spec.redact is None else None
    if plain is not None and "[" not in plain[0] and plain[0].count("{") == 1:
        text, whole = plain  # plain values that nobody can change: nearly every call
    else:
        if spec.redact is None:
            written = write_args(args, shape or spec.shape, plain)
            shown = args = written.args
        else:
            args, shown, written, known = _hidden(session, spec, args, shape or spec.shape)
            again = again and session.redactor.scrub(again, known)
        text, whole, copy = written.text, written.meaning, written.copy
    check_size(text, path="args", limit=ARGS_BYTES_MAX)
    meaning = named = whole
    if spec.key is not None or spec.ignore:
        given = _anew(args, copy) if callable(spec.key) else args
        meaning, named = _meant(session, spec, given, shown=shown, known=known, whole=whole)
    scope = "ledger" if spec.scope == "ledger" else session.kin or session.root
    key = digest_of(head("call", session.tenant, scope, spec.name), named, again or "")
    return Ask(
        spec=spec,
        args=args,
        text=text,
        key=forked_key(key, session.root) if session.kin and spec.scope != "ledger" else key,
        ident=digest_of(head("ident"), meaning),
        whole=whole,
        fn=body,
        is_async=spec.is_async if is_async is None else is_async,
        again=again or "",
        call_ref=call_ref or "",
        parent=parent,
        grp=grp,
        timeout=spec.timeout if timeout is None else timeout,
        locks=_locks(session, spec, _anew(args, copy), known) if spec.locks is not None else (),
        shown=None if shown is args else shown,
        known=known,
        copy=copy,
        costs=FREE if spec.cost is None and not session.budgets else _bill(session, spec, _anew(args, copy), known),
    )


def _anew(args: Mapping[str, Any], copy: Callable[[], Mapping[str, Any]] | None) -> Mapping[str, Any]:
    """Return arguments for user code: where their values are constants, it may still put others in their place."""
    return dict(args) if copy is None else copy()


def _hidden(
    session: Session, spec: Spec, args: Mapping[str, Any], shape: Shape
) -> tuple[Mapping[str, Any], Mapping[str, Any], Written, Known]:
    """The arguments of a tool that hides some, as the body gets them and as they are written down."""
    assert spec.redact is not None, "only what hides something is hidden"
    # Copied before anything is read: what is hidden is not in the text, and must be what the text stands for.
    kept = _copied(args)
    request = request_of(session, spec, kept)
    inside = shape if spec.signature is None else spec.anywhere
    shown, known = hide_args(session.redactor, session.memory, request, spec, places=spec.redact.places, shape=inside)
    if shown is kept:
        written = write_args(kept, shape)
        return written.args, written.args, written, known
    text = encode(dict(shown), path="args", shape=shape)
    return kept, shown, Written(kept, text, canonical(shown, shape=shape), partial(_copied, kept)), known


def _copied(args: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {name: value if type(value) in CONSTANTS else deepcopy(value) for name, value in args.items()}
    except Exception as error:
        raise NotStorable(f"args cannot be copied: {type(error).__name__}", path="args") from error


def _bill(session: Session, spec: Spec, args: Mapping[str, Any], known: Known) -> Bill:
    request, redactor = request_of(session, spec, args), session.redactor
    return bill_for(spec, request, session.budgets, session.root, scrub=lambda text: redactor.scrub(text, known))


def _locks(session: Session, spec: Spec, args: Mapping[str, Any], known: Known) -> tuple[str, ...]:
    request = request_of(session, spec, args)
    return lock_names(spec, request) if spec.redact is None else hidden_locks(session.redactor, request, spec, known)


def asking_bill(session: Session, ask: Ask, *, wide: bool) -> Bill:
    """What the request costs, with what a person would be asked by if a budget held it."""
    pays_for_others = ask.spec.kind == "pivot" and any(budget.then == "hold" for budget in session.budgets)
    holds = pays_for_others or any(want.holds for want in ask.costs.wants)
    asks = (session.new_id("apr"), session.new_id("nonce")) if holds else ("", "")
    return replace(ask.costs, wide=wide, ask=asks) if holds or wide else ask.costs


def unforeseen(session: Session, ask: Ask, said: Mapping[str, int]) -> tuple[Want, ...]:
    """The budgets of what this request's body spent without having said so before."""
    return unreserved(said, ask.costs, session.budgets, request_of(session, ask.spec, ask.fresh()), session.root)


def request_of(session: Session, spec: Spec, args: Mapping[str, Any]) -> Request:
    """What the rules of a tool see."""
    return Request(
        run_id=session.id,
        tool=spec.name,
        version=spec.version,
        args=args,
        tenant=session.tenant or None,
        agent=session.agent or None,
        principal=session.principal or None,
    )


def _meant(
    session: Session, spec: Spec, args: Mapping[str, Any], *, shown: Mapping[str, Any], known: Known, whole: str
) -> tuple[str, str]:
    """What the request means, and what it is named by, where the tool says that this is not all its arguments."""
    meaning = whole
    if spec.ignore:
        meant = spec.intent(shown)
        meaning = whole if len(meant) == len(shown) else _meaning(meant, spec.shape, path="args")
    identity: object | None
    if isinstance(spec.key, tuple) and all(map(shown.__contains__, spec.key)):
        identity = {name: shown[name] for name in spec.key}  # as the rule says it, without a request to ask it with
    else:
        # A function is the user's own and sees the values; what it makes of them is hidden after.
        identity = spec.identity(request_of(session, spec, args if callable(spec.key) else shown))
    if identity is None:
        return meaning, meaning
    named = _meaning(identity, spec.anywhere if callable(spec.key) else spec.shape, path="key")
    if spec.redact is not None and callable(spec.key) and session.redactor.holds(named, known):
        named = session.redactor.commit((session.tenant, spec.name), named)
    return meaning, named


def _meaning(value: object, shape: Shape, *, path: str) -> str:
    plain = plain_texts(value)
    return canonical(value, path=path, shape=shape) if plain is None else plain[1]


def provider_key(row: CallRow) -> str:
    """What the destination gets to deduplicate on: this key, this generation."""
    return digest("provider", row.key, row.generation)


def compensation_key(row: CallRow) -> str:
    """A compensation is a call of its own, so it has a key of its own."""
    return digest("compensation", row.key, row.generation)


def later_of(row: CallRow, ask: Ask) -> Later:
    """The call as its body may ask for it."""
    return Later(row, lambda: call_of(row, ask.spec, args=ask.fresh()))


def call_of(
    row: CallRow, spec: Spec | None, *, phase: Phase = "execute", args: Mapping[str, Any] | None = None
) -> Call:
    """A row of the ledger as users see it."""
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
        result=None if gone_at is not None else _seen(row.result, result_type),
        loss=row.loss or None if gone_at is None else f"removed by gc on {gone_at:%Y-%m-%d}",
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
    )


def _seen(text: str | None, result_type: Any) -> Any:
    """A recorded result for people to see: what nobody here can read is only said to be there."""
    return UNREADABLE if text is not None and text.startswith(SEALED) else load_result(text, result_type)


def decode_args(row: CallRow, spec: Spec | None) -> Mapping[str, Any]:
    """The recorded arguments, in the types that the tool's signature says; none where gc removed them.

    A hidden one is a ``Secret``, and so it is where the key to read them is not here.
    """
    if lost_at(row.args) is not None:
        return {}
    if row.args.startswith(SEALED):
        return {MASK: UNREADABLE}
    return args_of(row.args, spec)


def must_be_readable(row: CallRow) -> None:
    """Raise ``LedgerSealed`` where this process has no key for the arguments: nobody allows what they cannot be shown."""
    if row.args.startswith(SEALED):
        raise LedgerSealed(
            f"the arguments of call {row.id} ({row.tool}) are encrypted, and this process has no key to show them: "
            "nobody can allow here what they cannot read",
            run_id=row.run_id,
        )


def args_of(text: str, spec: Spec | None) -> Mapping[str, Any]:
    """The arguments of a stored text, in the types that the tool's signature says where none is hidden."""
    if spec is None or spec.signature is None:
        plain: dict[str, Any] = decode(text)
        return plain
    # Put together as they were, without the validators: those saw the arguments when they were given, and a second
    # time they might make something else of them.
    found, unlike = revive_each(text, spec.signature.shape)
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
    """Ledger time for people: aware, UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def describe_error(error: BaseException, redactor: Redactor | None = None, known: Known = NO_SECRETS) -> str:
    """Return an exception as the ledger keeps it: without what is hidden, and marked where it was cut."""
    name, message = class_name(type(error)).removeprefix("builtins."), words_of(error)
    if redactor is not None:
        message = redactor.scrub(message, known)
    return json.dumps([cut(name, NAME_CHARS_MAX), cut(message, MESSAGE_CHARS_MAX)], ensure_ascii=True)


def error_parts(text: str) -> tuple[str, str]:
    """Type name and message of a recorded error."""
    if not text:
        return "", ""
    if text.startswith(SEALED):
        return "", f"({MASK} encrypted)"
    name, message = json.loads(text)
    return name, message


def error_text(text: str) -> str | None:
    """A recorded error in one line."""
    if not text:
        return None
    name, message = error_parts(text)
    return ": ".join(word for word in (name, message) if word)


# ---- Hidden values in the engine: given to bodies where they can be had, named where they cannot, spelled


def bring(session: Session, ask: Ask, row: CallRow) -> None:
    """Whoever asks for a recorded call in its own words brings its hidden arguments, until it is settled."""
    if ask.shown is not None and ask.digest == row.digest:
        session.live[row.id] = ask


def known_of(session: Session, row: CallRow) -> Known:
    """How the hidden values of a recorded call are spelled, where this process can know it."""
    ask = session.live.get(row.id)
    return {**session.known, **session.redactor.known(row.args)} if ask is None else ask.known


def body_args(session: Session, spec: Spec, row: CallRow) -> Mapping[str, Any]:
    """What the body of a recorded call is given; see ``lacking`` first."""
    ask = session.live.get(row.id)
    return _given(session, spec, row) if ask is None else ask.fresh()


def lacking(session: Session, row: CallRow, params: Iterable[str] | None = None) -> tuple[str, ...]:
    """The hidden arguments that a body, or a twin that asks for these, would need and that nobody here has.

    A twin gets only what every process could give it: that it worked here must not hide that it fails elsewhere.
    """
    if MARK not in row.args or (params is None and row.id in session.live):
        return ()
    return session.redactor.lacking(row.args, params)


def lacks(names: Iterable[str]) -> str:
    """Why a call cannot be started here, in words."""
    return f"its {', '.join(names)} is redacted, and only the program that asked for it has the value"


def missing(session: Session, spec: Spec, row: CallRow, asked: Twin | ProbeSpec) -> str:
    """Return why a compensation, guard or probe cannot be started: what it needs and nobody here has; "" otherwise."""
    if gone := lacking(session, row, dict.fromkeys((*asked.params, *asked.needs))):
        return f"it asks for {', '.join(gone)}, which is redacted and not kept"
    args = () if lost_at(row.args) is not None else decode_args(row, spec)
    if absent := [name for name in asked.needs if name != "result" and name not in args]:
        return f"it asks for {', '.join(absent)}, which the record of the call does not have"
    if "result" not in asked.needs or (asked.takes_none and row.comp_blind):
        return ""
    why = result_loss(session, spec, row)
    return f"it asks for the result of the call, which nobody here has: {why}" if why else ""


def result_loss(session: Session, spec: Spec | None, row: CallRow) -> str:
    """Return why this process does not have the whole result of a call; "" where it does."""
    if row.id in session.memory.results:
        return ""
    if (gone_at := moment(lost_at(row.result))) is not None:
        return f"gc removed it on {gone_at:%Y-%m-%d}"
    if row.result is None:
        return row.loss or "nobody knows what it gave back"
    if row.loss.startswith(REDACTED):
        return row.loss
    if MARK in row.result and session.redactor.lacking(f'{{"result":{row.result}}}'):
        return "a part of it is encrypted, and this process has no key to read it"
    if spec is not None and not row.loss and misfits(session.redactor.revealed(row.result), spec.result_type):
        return f"what was recorded cannot be read as {spec.result_type} any more"
    return ""


def twin_given(
    session: Session, spec: Spec, asked: Twin | ProbeSpec, row: CallRow, *, call: Call
) -> tuple[dict[str, Any], Call]:
    """Return what a compensation, a guard or a probe is called with, and its call; see ``missing`` first.

    A result that nobody has is left out; None for a call in doubt, where it says that it takes that. ``call.result``
    raises then.
    """
    usable = call.args
    if EVERYTHING in asked.params and MARK in row.args:
        gone = session.redactor.lacking(row.args)
        usable = {name: value for name, value in usable.items() if name not in gone}
    result: Any = LOST
    if why := result_loss(session, spec, row):
        lost = ResultLost(f"{row.tool} ({row.id})", why=why, run_id=row.run_id)
        call = without_result(call, lost)
        result = None if asked.takes_none and row.comp_blind else LOST
    else:
        result = session.memory.results.get(row.id, LOST)
        result = (
            result_of(session, spec, row, hint=asked.result_type if row.loss else Any) if result is LOST else result
        )
        call = replace(call, result=result)
    return twin_kwargs(asked.params, args=usable, result=result, call=call), call


def call_given(session: Session, spec: Spec, row: CallRow, *, phase: Phase = "execute") -> Call:
    """The call as its own code sees it: with its hidden arguments, where they were kept and can be read here."""
    return call_of(row, spec, phase=phase, args=_given(session, spec, row))


def _given(session: Session, spec: Spec, row: CallRow) -> Mapping[str, Any]:
    return {} if lost_at(row.args) is not None else args_of(session.redactor.revealed(row.args), spec)


def result_of(session: Session, spec: Spec, row: CallRow, *, hint: Any = Any) -> Any:
    """The recorded result as its caller gets it; as ``hint`` says, where the tool does not say what it is."""
    said = spec.result_type if hint is Any else hint
    return load_result(row.result and session.redactor.revealed(row.result), said)


def kept_result(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[str | None, str]:
    """Return what the ledger keeps of a body's result, and what of it is lost; remember here what it cannot keep."""
    seen, stored = _stored(session, spec, row, value)
    remember(session, spec, row, seen, stored)
    return stored.text, stored.loss or ""


def told_result(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[str | None, str]:
    """Return the same for a result that a probe or a person tells, who say None where they do not know it."""
    if value is LOST or (value is None and not admits_none(spec.result_type)):
        return None, "whoever said that it happened did not say its result"
    _, stored = _stored(session, spec, row, value)
    return stored.text, stored.loss or ""


def _stored(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[Any, Stored]:
    seen, stored = faithful(value, spec.result_type)
    if spec.redact:
        stored = session.redactor.kept(stored, known_of(session, row), (row.tenant, row.tool))
    return seen, stored


def remember(session: Session, spec: Spec, row: CallRow, value: object, stored: Stored) -> None:
    """Keep a result in this process where the ledger does not have the whole of it."""
    is_whole = stored.text is not None and not (stored.loss or "").startswith(REDACTED)
    if not is_whole or (type(value).__module__ == "builtins" and misfits(stored.text or "", spec.result_type)):
        session.memory.keep_result(row.id, value)


def first_result(session: Session, spec: Spec, row: CallRow) -> Any:
    """Return the result of a call to whoever waited for it; raise ``ResultLost`` where nobody has it."""
    if row.id in session.memory.results:
        return session.memory.results[row.id]
    return recorded_result(session, spec, row)


def recorded_result(session: Session, spec: Spec, row: CallRow) -> Any:
    """Return the result as the ledger has it; raise ``ResultLost`` where it has none."""
    call = call_of(row, spec)
    if (gone_at := moment(lost_at(row.result))) is not None:
        raise ResultGone(f"{row.tool} ({row.id})", gone_at=gone_at, call=call, run_id=session.id)
    if row.result is None:
        why = row.loss or "nobody knows what it gave back"
        raise ResultLost(f"{row.tool} ({row.id})", why=why, call=call, run_id=session.id)
    return result_of(session, spec, row)


def said_of(session: Session, row: CallRow, error: BaseException) -> str:
    """An exception about a recorded call, as the ledger keeps it."""
    return describe_error(error, session.redactor, known_of(session, row))


def scrubbed(session: Session, text: str) -> str:
    """A text of this run without what is hidden in it."""
    return session.redactor.scrub(text, session.known)


def cause_of(session: Session, error: BaseException | None, known: Known = NO_SECRETS) -> BaseException | None:
    """What an error of ours is said to come from: the error itself, unless its text would tell what is hidden."""
    if error is None or is_a(error, Error):
        return error
    text = words_of(error)
    shown = session.redactor.scrub(text, {**session.known, **known})
    if shown == text:
        return error
    return ToolFailed(shown, call=None, type_name=type_name(error))


# ---- Reading a run tree, and giving it back: to a person, a worker, or whoever opens it next


async def give_back(session: Session, wake_s: float | None, *, suspended: bool = False) -> RunRow:
    """The tree is nobody's; ``wake_s``: when a worker is to look at it, ``suspended``: it waits for a person."""
    session.recall.close()  # before it is gone: from then on others may take back what has succeeded here
    lease = session.lease
    return await LetGo(session.root, lease.owner, lease.epoch, wake_s, suspended=suspended, replays=session.replays)


async def read_tree(session: Session) -> Tree:
    """This run, its descendants and their calls, as they are now."""
    tree = await ReadRun(session.tenant, uid=session.uid)
    assert tree is not None, "an open run is in the ledger"
    return tree


# ---- Waiting for somebody else's run: watched, polled in growing pauses, and never for ever


POLL_S_MIN: Final = 0.005
POLL_S_MAX: Final = 0.25


@dataclass(slots=True)
class Wait:
    """One wait, from the first refusal on."""

    limit_s: float
    """How long at most, in all."""
    since: float = 0.0
    waited: float = 0.0
    pause: float = POLL_S_MIN
    watcher: Any = None
    root: str = ""

    async def again(self, root: str) -> bool:
        """Let time pass until this tree may have changed; False when the limit is reached."""
        clocks = await ReadClocks()
        self.since = self.since or clocks.mono
        self.waited = clocks.mono - self.since
        if self.waited >= self.limit_s:
            return False
        if self.root != root:
            # It may have changed just before it was watched: look once more.
            self.root, self.watcher = root, await Watch(root)
            return True
        await Await(self.watcher, min(self.pause, self.limit_s - self.waited))
        self.pause = min(self.pause * 2, POLL_S_MAX)
        return True
