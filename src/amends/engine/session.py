"""One opened run as the engine sees it, and one request made in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

from amends.approvalrows import Tell
from amends.budget import Budget
from amends.budgetrows import FREE, Bill, Want
from amends.canonical import (
    ARGS_BYTES_MAX,
    CLASS_MARK,
    CONSTANTS,
    Shape,
    Written,
    canonical,
    check_size,
    classes_of,
    decode,
    digest,
    encode,
    load_result,
    revive_each,
    write_args,
)
from amends.charges import read_charge
from amends.check import lock_names
from amends.engine.hidden import Memory, hidden_locks, hide_args
from amends.engine.recall import Readings, Recall
from amends.engine.spending import bill_for, unreserved
from amends.errors import BadArguments, LedgerSealed, NotStorable
from amends.forkrows import forked_key
from amends.model import Call, Compensation, Order, Phase, Request
from amends.ops import Flight, Later, Lease
from amends.phrases import class_name, cut, words_of
from amends.plain import digest_of, head, plain_texts
from amends.record import dataclass, field
from amends.rows import CallRow, lost_at
from amends.rules import Rule
from amends.secret import MARK, MASK, SEALED, UNREADABLE, Secret
from amends.tool import Spec
from amends.veil import NO_SECRETS, Known, Veil

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
    veil: Veil = field(default_factory=Veil)
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
            again = again and session.veil.scrub(again, known)
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
    shown, known = hide_args(session.veil, session.memory, request, spec, places=spec.redact.places, shape=inside)
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
    request, veil = request_of(session, spec, args), session.veil
    return bill_for(spec, request, session.budgets, session.root, scrub=lambda text: veil.scrub(text, known))


def _locks(session: Session, spec: Spec, args: Mapping[str, Any], known: Known) -> tuple[str, ...]:
    request = request_of(session, spec, args)
    return lock_names(spec, request) if spec.redact is None else hidden_locks(session.veil, request, spec, known)


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
    if spec.redact is not None and callable(spec.key) and session.veil.holds(named, known):
        named = session.veil.commit((session.tenant, spec.name), named)
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


def describe_error(error: BaseException, veil: Veil | None = None, known: Known = NO_SECRETS) -> str:
    """Return an exception as the ledger keeps it: without what is hidden, and marked where it was cut."""
    name, message = class_name(type(error)).removeprefix("builtins."), words_of(error)
    if veil is not None:
        message = veil.scrub(message, known)
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
