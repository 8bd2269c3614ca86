"""Spans and metrics of what a runtime does, through OpenTelemetry (extra ``otel``).

Told from what the ledger answered, so a span never says more than the record does. Said are ids, keys, tools, kinds
and states; never arguments, results, messages of errors, or anything else that a tool was given.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from amends.encoding.dataclass import changed
from amends.engine.session import provider_key
from amends.errors import LeaseLost, UsageError
from amends.ledger import operations
from amends.ledger.operations import Store, StoreOp
from amends.ledger.rows import CallRow, RunRow
from amends.ledger.world import Invoke
from amends.states import RUN_FINAL
from amends.visible import visible_log

log = visible_log("amends")

T = TypeVar("T")

OPEN_MAX: Final = 10_000
"""Spans that may be open at once; at one more the oldest ends: whoever forgets a run must not cost memory for ever."""
WAITS: Final = frozenset({"wait", "locked", "again", "retry", "doubt"})
"""Verdicts after which the same request is made again, or its call started again: no answer yet."""
WRONG: Final = frozenset({"refused", "rejected", "conflict", "spent", "ended", "void", "failed"})
"""Verdicts that nothing was done for."""
NOT_OVER: Final = frozenset({"started", "backing_off", "in_doubt"})
"""States in which a call's span stays open: another attempt, or an answer of its probe, belongs to it."""


class Traceable(Protocol):
    """A runtime of either colour."""

    _host: Any
    _driver: Any


R = TypeVar("R", bound=Traceable)


def traced(
    rt: R,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> R:
    """The same runtime, whose runs, calls, attempts and compensations are spans from now on."""
    live = rt._host.live
    if live.around is not None:
        raise UsageError("this runtime is traced already")
    spans = Spans(trace.get_tracer("amends", tracer_provider=tracer_provider), _meters(meter_provider))
    live.around, live.entered = spans.around, spans.entered
    rt._driver.through(lambda store: WatchedStore(store, spans))
    return rt


class Meters:
    """What is counted; by tool, kind and state only, since a metric of every call's key would be a ledger."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.runs = meter.create_counter("amends.runs", "{run}", "Runs that were left, by state")
        self.calls = meter.create_counter("amends.calls", "{call}", "Calls that were answered, by tool, kind, state")
        self.attempts = meter.create_histogram("amends.attempt.duration", "s", "How long attempts of calls took")
        self.compensations = meter.create_histogram(
            "amends.compensation.duration", "s", "How long attempts of compensations took"
        )


def _meters(provider: metrics.MeterProvider | None) -> Meters:
    return Meters(metrics.get_meter("amends", meter_provider=provider))


class WatchedStore:
    """A store of which every answer is heard."""

    def __init__(self, store: Store, spans: Spans) -> None:
        self.url = store.url
        self._store, self._spans = store, spans

    def open(self, *, create: bool) -> bool:
        """See ``Store``."""
        return self._store.open(create=create)

    def perform(self, op: StoreOp[T]) -> T:
        """See ``Store``."""
        since, why = time.time_ns(), _error_of(op)
        try:
            answer = self._store.perform(op)
        except LeaseLost:
            self._spans.lost(op)
            raise
        self._spans.heard(op, answer, since, why)
        return answer

    async def perform_async(self, op: StoreOp[T]) -> T:
        """See ``Store``."""
        since, why = time.time_ns(), _error_of(op)
        try:
            answer = await self._store.perform_async(op)
        except LeaseLost:
            self._spans.lost(op)
            raise
        self._spans.heard(op, answer, since, why)
        return answer

    def close(self) -> None:
        """See ``Store``."""
        self._store.close()


class Spans:
    """What is open now, by run and by call."""

    def __init__(self, tracer: trace.Tracer, meters: Meters) -> None:
        self._tracer, self._meters = tracer, meters
        self._open: dict[tuple[str, str], _Open] = {}
        self._lock = threading.Lock()
        self._hears: Mapping[type[Any], Callable[[Any, Any, int, str], None]] = {
            operations.OpenRun: self._opened, operations.OpenChild: self._opened, operations.ClaimRun: self._claimed,
            operations.AdmitCall: self._admitted, operations.StartCall: self._started, operations.SettleCall: self._settled,
            operations.ResolveCall: lambda _op, row, _since, _why: self._end_call(row),
            operations.BeginCompensation: self._undoing, operations.SettleCompensation: self._undone,
            operations.DecideCommit: self._decided, operations.CloseRun: self._closed, operations.LetGo: self._closed,
            operations.AbandonRun: self._closed, operations.FinishRun: self._closed,
        }  # fmt: skip

    def heard(self, op: Any, answer: Any, since: int, why: str) -> None:
        """The ledger has answered. What goes wrong here must not cost the answer."""
        hears = self._hears.get(type(op))
        try:
            if hears is not None:
                hears(op, answer, since, why)
        except Exception:
            log.exception("a span of %s was lost", type(op).__name__)

    def lost(self, op: Any) -> None:
        """The run of this operation has another owner by now: what is left of it is told there."""
        run = self._open.get(("run", getattr(op, "root", "") or getattr(op, "run", "")))
        if run is not None:
            self._end_run(run.of, "lost", wrong=True)

    # ---- user code ------------------------------------------------------------------------

    def around(self, op: Invoke) -> Invoke:
        """The same body, inside its span."""
        if op.phase == "notice":
            return op
        call = op.call
        if op.phase == "probe":
            start, facts = self._tracer.start_span, {"amends.run": call.run_id, "amends.call": call.id}
            facts["amends.tool"] = call.tool
            return changed(op, {"fn": _within(op.fn, lambda: start(f"probe {call.tool}", attributes=facts), ends=True)})
        found = self._open.get((op.phase, call.id))
        return op if found is None else changed(op, {"fn": _within(op.fn, lambda: found.span, ends=False)})

    @contextmanager
    def entered(self, uid: str) -> Iterator[None]:
        """The run's span is the current one inside its block."""
        found = self._open.get(("run", uid))
        with nullcontext() if found is None else _current(found.span):
            yield

    # ---- runs -----------------------------------------------------------------------------

    def _opened(
        self, op: operations.OpenRun | operations.OpenChild, answer: operations.Opened, since: int, _why: str
    ) -> None:
        if answer.how in ("fresh", "resumed"):
            self._begin_run(answer.run, since, resumed=answer.how == "resumed")

    def _claimed(self, op: operations.ClaimRun, answer: RunRow | None, since: int, _why: str) -> None:
        if answer is not None:
            self._begin_run(answer, since, resumed=True)

    def _begin_run(self, run: RunRow, since: int, *, resumed: bool) -> None:
        facts = {"amends.run": run.id, "amends.generation": run.generation, "amends.resumed": resumed}
        above = self._open.get(("run", run.parent)) if run.parent else None
        span = self._span(f"run {run.agent}".rstrip(), facts, since=since, within=above)
        self._add(("run", run.uid), _Open(span, run.uid, run.uid, since, {}))

    def _decided(self, op: operations.DecideCommit, answer: operations.Decision, _since: int, _why: str) -> None:
        if answer.how == "committed":
            self._end_run(op.run, answer.run.state)

    def _closed(self, op: Any, answer: RunRow, _since: int, _why: str) -> None:
        if answer.state in RUN_FINAL or answer.state == "blocked" or isinstance(op, operations.LetGo):
            self._end_run(answer.uid, answer.state, wrong=answer.state == "blocked")

    def _end_run(self, uid: str, state: str, *, wrong: bool = False) -> None:
        with self._lock:
            mine = [key for key, one in self._open.items() if one.of == uid and key[0] != "run"]
            left = [self._open.pop(key) for key in mine]
            run = self._open.pop(("run", uid), None)
        for one in left:
            self._end(one, one.state, wrong=one.state == "in_doubt")
        if run is not None:
            self._end(run, state, wrong=wrong)
            self._meters.runs.add(1, {"amends.state": state})

    # ---- calls ----------------------------------------------------------------------------

    def _admitted(self, op: operations.AdmitCall, answer: operations.Admission, since: int, _why: str) -> None:
        row = answer.call
        if answer.verdict == "start" and row is not None:
            self._begin_call(row, since)
        elif answer.verdict not in WAITS:
            facts = {"amends.tool": op.tool, "amends.kind": op.kind, "amends.verdict": answer.verdict}
            found = {} if row is None else _facts(row)
            run = self._open.get(("run", op.run))
            span = self._span(f"call {op.tool}", found | facts, since=since, within=run)
            state = "" if row is None else row.state
            one = _Open(span, op.run, op.call_id, since, {"amends.tool": op.tool, "amends.kind": op.kind})
            self._end(one, state, wrong=answer.verdict in WRONG)
            self._meters.calls.add(1, one.counted | {"amends.state": answer.verdict})

    def _started(self, op: operations.StartCall, answer: Any, since: int, _why: str) -> None:
        if isinstance(answer, CallRow):
            self._begin_call(answer, since)

    def _begin_call(self, row: CallRow, since: int) -> None:
        """The call's span, unless an earlier attempt opened it, and that of its attempt inside it."""
        call = self._open.get(("call", row.id))
        if call is None:
            span = self._span(f"call {row.tool}", _facts(row), since=since, within=self._open.get(("run", row.run)))
            call = _Open(span, row.run, row.id, since, _counted(row))
            self._add(("call", row.id), call)
        facts = _facts(row) | {"amends.attempt": row.attempt}
        begun = time.time_ns()  # its body starts once the admission is durable, not before
        span = self._tracer.start_span(
            f"attempt {row.tool}",
            trace.set_span_in_context(call.span),
            kind=SpanKind.CLIENT,
            attributes=facts,
            start_time=begun,
        )
        self._add(("execute", row.id), _Open(span, row.run, row.id, begun, _counted(row)))

    def _settled(self, op: operations.SettleCall, answer: operations.Settled, _since: int, why: str) -> None:
        row = answer.call
        attempt = self._take(("execute", op.call_id))
        if attempt is not None:
            state = "fenced" if answer.fenced else row.state
            self._end(attempt, state, wrong=state != "succeeded", why=why)
            self._meters.attempts.record(attempt.lasted, attempt.counted | {"amends.state": state})
        self._end_call(row)

    def _end_call(self, row: CallRow) -> None:
        call = self._open.get(("call", row.id))
        if call is None:
            return
        call.state = row.state
        if row.state not in NOT_OVER and self._take(("call", row.id)) is not None:
            self._end(call, row.state, wrong=row.state != "succeeded")
            self._meters.calls.add(1, call.counted | {"amends.state": row.state})
            run = self._open.get(("run", row.run))
            if run is not None and len(run.calls) < OPEN_MAX:
                run.calls[row.id] = call.span.get_span_context()

    def _undoing(self, op: operations.BeginCompensation, answer: CallRow | None, since: int, _why: str) -> None:
        if answer is None:
            return
        run = self._open.get(("run", answer.run))
        done = None if run is None else run.calls.get(answer.id)
        facts = _facts(answer) | {"amends.attempt": answer.comp_attempt}
        span = self._span(
            f"compensate {answer.tool}", facts, since=since, within=run, kind=SpanKind.CLIENT,
            links=[] if done is None else [Link(done)],
        )  # fmt: skip
        self._add(("compensate", answer.id), _Open(span, answer.run, answer.id, since, _counted(answer)))

    def _undone(self, op: operations.SettleCompensation, answer: operations.Settled, _since: int, why: str) -> None:
        one = self._take(("compensate", op.call_id))
        if one is not None:
            state = "fenced" if answer.fenced else answer.call.state
            self._end(one, state, wrong=state != "compensated", why=why)
            self._meters.compensations.record(one.lasted, one.counted | {"amends.state": state})

    # ---- spans ----------------------------------------------------------------------------

    def _span(
        self, name: str, facts: Mapping[str, Any], *, since: int, within: _Open | None, kind: SpanKind = SpanKind.INTERNAL,
        links: list[Link] | None = None,
    ) -> Span:  # fmt: skip
        """Inside what is current here; in a thread that does not know the run's trace, inside the run."""
        context = None
        if within is not None:
            here, above = trace.get_current_span().get_span_context(), within.span.get_span_context()
            if not here.is_valid or here.trace_id != above.trace_id:
                context = trace.set_span_in_context(within.span)
        return self._tracer.start_span(name, context, kind=kind, attributes=dict(facts), start_time=since, links=links)

    def _add(self, key: tuple[str, str], one: _Open) -> None:
        with self._lock:
            old = self._open.pop(key, None)
            oldest = next(iter(self._open)) if len(self._open) >= OPEN_MAX else None
            gone = None if oldest is None else self._open.pop(oldest)
            self._open[key] = one
        for left in (old, gone):
            if left is not None:
                self._end(left, left.state)

    def _take(self, key: tuple[str, str]) -> _Open | None:
        with self._lock:
            return self._open.pop(key, None)

    def _end(self, one: _Open, state: str, *, wrong: bool = False, why: str = "") -> None:
        if state:
            one.span.set_attribute("amends.state", state)
        if why:
            one.span.set_attribute("error.type", why)
        if wrong:
            one.span.set_status(Status(StatusCode.ERROR, state or None))
        one.span.end()


class _Open:
    """A span that has not ended, the run that it is of, and what its metrics are counted by."""

    __slots__ = ("_since", "about", "calls", "counted", "of", "span", "state")

    def __init__(self, span: Span, of: str, about: str, since: int, counted: Mapping[str, str]) -> None:
        self.span, self.of, self.about, self._since = span, of, about, since
        self.counted = dict(counted)
        self.state = ""
        self.calls: dict[str, SpanContext] = {}
        """Of a run: its calls that have ended, for the compensations that come after them."""

    @property
    def lasted(self) -> float:
        """Seconds since it began."""
        return max(0.0, (time.time_ns() - self._since) / 1e9)


@contextmanager
def _current(span: Span, *, ends: bool = False) -> Iterator[None]:
    # Not trace.use_span: it puts its token back, which only the context that made it may do. And what was raised may
    # say anything in its message: neither it nor its traceback is told.
    before = otel_context.get_current()
    mine = trace.set_span_in_context(span, before)
    otel_context.attach(mine)
    try:
        yield
    finally:
        if otel_context.get_current() is mine:
            otel_context.attach(before)
        if ends:
            span.end()


def _within(fn: Callable[..., Any], begin: Callable[[], Span], *, ends: bool) -> Callable[..., Any]:
    """The same function with a span around it; what it gives back to be awaited is awaited inside, too."""

    @wraps(fn)
    def inside(**kwargs: Any) -> Any:
        span = begin()
        awaited = False
        try:
            with _current(span):
                value = fn(**kwargs)
            awaited = isawaitable(value)
            return _awaited(value, span, ends=ends) if awaited else value
        finally:
            if ends and not awaited:
                span.end()

    return inside


async def _awaited(value: Any, span: Span, *, ends: bool) -> Any:
    with _current(span, ends=ends):
        return await value


def _facts(row: CallRow) -> dict[str, Any]:
    return {
        "amends.run": row.run_id,
        "amends.call": row.id,
        "amends.key": provider_key(row),
        "amends.tool": row.tool,
        "amends.kind": row.kind,
    }


def _counted(row: CallRow) -> dict[str, str]:
    return {"amends.tool": row.tool, "amends.kind": row.kind}


def _error_of(op: Any) -> str:
    """The name of the error that an attempt ended with; its message is not told."""
    if not isinstance(op, operations.SettleCall | operations.SettleCompensation) or not op.error:
        return ""
    try:
        name, _ = json.loads(op.error)
    except (ValueError, TypeError):
        return ""
    return str(name)
