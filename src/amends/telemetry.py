"""OpenTelemetry spans and metrics of a runtime (extra ``otel``).

They are made from the answers of the ledger, so a span never says more than the record. They hold ids, keys, tools,
kinds and states; never arguments, results, error messages, or anything else that a tool was given.
"""

from __future__ import annotations

import json
import math
import re
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
from amends.engine.keys import provider_key
from amends.errors import LeaseLost, UsageError
from amends.ledger import operations
from amends.ledger.operations import StoreOp
from amends.ledger.rows import CallRow, RunRow
from amends.ledger.store import Store
from amends.ledger.world import Invoke
from amends.states import RUN_FINAL
from amends.visible import visible_log

log = visible_log("amends")

T = TypeVar("T")

OPEN_MAX: Final = 10_000
"""How many spans may be open at once. At the limit the oldest is ended, so that a forgotten run does not leak memory."""
WAITS: Final = frozenset({"wait", "locked", "again", "retry", "doubt"})
"""Verdicts that are not an answer yet: the same request is made again, or its call is started again."""
WRONG: Final = frozenset({"refused", "rejected", "conflict", "spent", "ended", "void", "failed"})
"""Verdicts for which nothing was done."""
NOT_OVER: Final = frozenset({"started", "backing_off", "in_doubt"})
"""States in which the span of a call stays open: another attempt, or an answer of its probe, belongs to it."""


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
    """Trace the runs, calls, attempts and compensations of this runtime from now on, and return it."""
    live = rt._host.live
    if live.around is not None:
        raise UsageError("this runtime is already traced")
    spans = Spans(trace.get_tracer("amends", tracer_provider=tracer_provider), _meters(meter_provider))
    live.around, live.entered = spans.around, spans.entered
    rt._driver.through(lambda store: WatchedStore(store, spans))
    return rt


class Meters:
    """The metrics, by tool, kind and state only: a metric with the key of every call would be a ledger."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.runs = meter.create_counter("amends.runs", "{run}", "Closed or released runs, by state")
        self.calls = meter.create_counter("amends.calls", "{call}", "Answered calls, by tool, kind and state")
        self.attempts = meter.create_histogram("amends.attempt.duration", "s", "Duration of attempts of calls")
        self.compensations = meter.create_histogram(
            "amends.compensation.duration", "s", "Duration of attempts of compensations"
        )


def _meters(provider: metrics.MeterProvider | None) -> Meters:
    return Meters(metrics.get_meter("amends", meter_provider=provider))


class WatchedStore:
    """A store that reports every answer to the spans."""

    def __init__(self, store: Store, spans: Spans) -> None:
        self.url = store.url
        self._store, self._spans = store, spans

    def open(self, *, create: bool) -> bool:
        """Do what ``Store`` says."""
        return self._store.open(create=create)

    def perform(self, op: StoreOp[T]) -> T:
        """Do what ``Store`` says."""
        since, why = time.time_ns(), _error_of(op)
        try:
            answer = self._store.perform(op)
        except LeaseLost:
            self._spans.lost(op)
            raise
        self._spans.heard(op, answer, since, why)
        return answer

    async def perform_async(self, op: StoreOp[T]) -> T:
        """Do what ``Store`` says."""
        since, why = time.time_ns(), _error_of(op)
        try:
            answer = await self._store.perform_async(op)
        except LeaseLost:
            self._spans.lost(op)
            raise
        self._spans.heard(op, answer, since, why)
        return answer

    def close(self) -> None:
        """Do what ``Store`` says."""
        self._store.close()


class Spans:
    """The open spans, by run and by call."""

    def __init__(self, tracer: trace.Tracer, meters: Meters) -> None:
        self._tracer, self._meters = tracer, meters
        self._open: dict[tuple[str, str], _Open] = {}
        self._lock = threading.Lock()
        self._hears: Mapping[type[Any], Callable[[Any, Any, int, str], None]] = {
            operations.OpenRun: self._opened, operations.OpenChild: self._opened, operations.ClaimRun: self._claimed,
            operations.AdmitCall: self._admitted, operations.StartCall: self._started, operations.SettleCall: self._settled,
            operations.ResolveCall: lambda _op, row, _since, _why: self._end_call(row),
            operations.BeginCompensation: self._undoing, operations.SettleCompensation: self._undone,
            operations.DecideCommit: self._decided, operations.CloseRun: self._closed, operations.ReleaseLease: self._closed,
            operations.AbandonRun: self._closed, operations.FinishRun: self._closed,
        }  # fmt: skip

    def heard(self, op: Any, answer: Any, since: int, why: str) -> None:
        """Record an answer of the ledger. An error here must not lose the answer."""
        hears = self._hears.get(type(op))
        try:
            if hears is not None:
                hears(op, answer, since, why)
        except Exception:
            log.exception("a span of %s was lost", type(op).__name__)

    def lost(self, op: Any) -> None:
        """End the spans of a run that another process has taken over and now reports."""
        run = self._open.get(("run", getattr(op, "root", "") or getattr(op, "run", "")))
        if run is not None:
            self._end_run(run.of, "lost", wrong=True)

    # ---- Users' code

    def around(self, op: Invoke) -> Invoke:
        """Return the operation with its body inside a span."""
        if op.phase == "notice":
            return op
        call = op.call
        if op.phase in ("probe", "before"):
            start, facts = self._tracer.start_span, {"amends.run": call.run_id, "amends.call": call.id}
            facts["amends.tool"] = call.tool
            return changed(
                op, {"fn": _within(op.fn, lambda: start(f"{op.phase} {call.tool}", attributes=facts), ends=True)}
            )
        found = self._open.get((op.phase, call.id))
        return op if found is None else changed(op, {"fn": _within(op.fn, lambda: found.span, ends=False)})

    @contextmanager
    def entered(self, uid: str) -> Iterator[None]:
        """Make the span of a run the current one inside its block."""
        found = self._open.get(("run", uid))
        with nullcontext() if found is None else _current(found.span):
            yield

    # ---- Runs

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
        if answer.state in RUN_FINAL or answer.state == "blocked" or isinstance(op, operations.ReleaseLease):
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

    # ---- Calls

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
        """Open the span of the call, unless an earlier attempt did, and inside it the span of the attempt."""
        call = self._open.get(("call", row.id))
        if call is None:
            span = self._span(f"call {row.tool}", _facts(row), since=since, within=self._open.get(("run", row.run)))
            call = _Open(span, row.run, row.id, since, _counted(row))
            self._add(("call", row.id), call)
        facts = _facts(row) | {"amends.attempt": row.attempt}
        begun = time.time_ns()  # the body starts once the admission is durable, not before
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
        if answer.then is not None:
            self.heard(op.then, answer.then, _since, "")

    # ---- Spans

    def _span(
        self, name: str, facts: Mapping[str, Any], *, since: int, within: _Open | None, kind: SpanKind = SpanKind.INTERNAL,
        links: list[Link] | None = None,
    ) -> Span:  # fmt: skip
        """Start a span inside the current one, or inside the run in a thread without the run's trace."""
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
    """An open span, its run, and the attributes of its metrics."""

    __slots__ = ("_since", "about", "calls", "counted", "of", "span", "state")

    def __init__(self, span: Span, of: str, about: str, since: int, counted: Mapping[str, str]) -> None:
        self.span, self.of, self.about, self._since = span, of, about, since
        self.counted = dict(counted)
        self.state = ""
        self.calls: dict[str, SpanContext] = {}
        """For a run: its ended calls, to which the spans of compensations link."""

    @property
    def lasted(self) -> float:
        """Seconds since it began."""
        return max(0.0, (time.time_ns() - self._since) / 1e9)


@contextmanager
def _current(span: Span, *, ends: bool = False) -> Iterator[None]:
    # Not trace.use_span: it resets its token, which only the context that made it may do. It would also record the
    # exception, whose message and traceback may hold anything.
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
    """Return the function with a span around it; an awaitable result is awaited inside the span as well."""

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
    """Return the class name of the error that ended an attempt; its message is left out."""
    if not isinstance(op, operations.SettleCall | operations.SettleCompensation) or not op.error:
        return ""
    try:
        name, _ = json.loads(op.error)
    except (ValueError, TypeError):
        return ""
    return str(name)


# ---- For Prometheus


BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Of the histograms of durations, in seconds."""


class Exposition:
    """A provider of meters whose metrics are read in the text format of Prometheus; needs opentelemetry-sdk."""

    def __init__(self) -> None:
        from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

        self._reader = InMemoryMetricReader()
        in_seconds = View(instrument_name="*.duration", aggregation=ExplicitBucketHistogramAggregation(BOUNDS))
        # The text format has no exemplars.
        self.provider: metrics.MeterProvider = MeterProvider(
            [self._reader], views=[in_seconds], shutdown_on_exit=False, exemplar_filter=AlwaysOffExemplarFilter()
        )

    def text(self) -> bytes:
        """Return everything that its meters have counted."""
        data = self._reader.get_metrics_data()
        found = [] if data is None else [one for part in data.resource_metrics for one in part.scope_metrics]
        lines = [line for scope in found for metric in scope.metrics for line in _lines(metric)]
        return ("\n".join(lines) + "\n").encode()


def _lines(metric: Any) -> Iterator[str]:
    """Return one metric: its help, its type, and a line for each value."""
    name = re.sub(r"\W", "_", metric.name) + ("_seconds" if metric.unit == "s" else "")
    kind = {"Sum": "counter", "Gauge": "gauge", "Histogram": "histogram"}.get(type(metric.data).__name__)
    if kind is None:
        return
    name += "_total" if kind == "counter" else ""
    yield f"# HELP {name} {metric.description}"
    yield f"# TYPE {name} {kind}"
    for point in metric.data.data_points:
        labels = {re.sub(r"\W", "_", key): str(value) for key, value in point.attributes.items()}
        if kind != "histogram":
            yield f"{name}{_labels(labels)} {point.value}"
            continue
        count = 0
        for bound, more in zip([*point.explicit_bounds, math.inf], point.bucket_counts, strict=True):
            count += more
            yield f"{name}_bucket{_labels(labels | {'le': '+Inf' if bound == math.inf else f'{bound:g}'})} {count}"
        yield f"{name}_sum{_labels(labels)} {point.sum}"
        yield f"{name}_count{_labels(labels)} {point.count}"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n"}
    inside = ",".join(f'{name}="{value.translate(escaped)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""
