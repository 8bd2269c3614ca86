"""Spans and metrics, with the real SDK and its exporters in memory."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from amends import AsyncRuntime, Happened, RunBlocked, Runtime, UsageError, current_call, tool
from amends.errors import OutOfOrder
from amends.telemetry import traced
from tests.world import FAST, ONCE

CANARY = "c4n4ry-5ecret"


class Seen:
    """A provider of each kind whose exporter is a list."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider(metric_readers=[self._reader])

    def trace(self, rt: Any) -> Any:
        return traced(rt, tracer_provider=self.tracers, meter_provider=self.meters)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def points(self, name: str) -> dict[tuple[str, ...], Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.name == name]
        return {
            tuple(str(value) for _, value in sorted((point.attributes or {}).items())): point
            for metric in found
            for point in metric.data.data_points
        }

    def counts(self, name: str) -> dict[tuple[str, ...], Any]:
        return {key: getattr(point, "value", None) or point.count for key, point in self.points(name).items()}


@pytest.fixture
def seen() -> Seen:
    return Seen()


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_in(inner: ReadableSpan, outer: ReadableSpan) -> bool:
    assert outer.context is not None
    return inner.parent is not None and inner.parent.span_id == outer.context.span_id


@tool(retry=ONCE)
def reserve(what: str) -> str:
    if what == "bad":
        raise ValueError(CANARY)
    return f"{what} {CANARY}"


@reserve.compensate
def release(what: str) -> None:
    pass


@tool(kind="pivot")
def pay(cents: int) -> str:
    return "paid"


def test_a_run_its_calls_and_their_attempts_are_spans_inside_each_other(seen: Seen) -> None:
    keys: list[str] = []

    @tool(kind="read")
    def look(at: str) -> str:
        keys.append(current_call().key)
        return at

    with seen.trace(Runtime("memory:", tools=[reserve, pay, look])) as rt:
        with rt.run("trip", agent="clerk") as run:
            look("here")
            reserve("room")
            pay(5)
        call = next(call for call in run.report().calls if call.tool == "reserve")
    run_span = seen.one("run clerk")
    assert facts(run_span) == {
        "amends.run": "trip",
        "amends.generation": 1,
        "amends.resumed": False,
        "amends.state": "committed",
    }
    span, attempt = seen.one("call reserve"), seen.one("attempt reserve")
    assert is_in(span, run_span)
    assert is_in(attempt, span)
    assert facts(span) == {
        "amends.run": "trip",
        "amends.call": call.id,
        "amends.key": call.key,
        "amends.tool": "reserve",
        "amends.kind": "compensatable",
        "amends.state": "succeeded",
    }
    assert facts(attempt) == facts(span) | {"amends.attempt": 1}
    assert facts(seen.one("call look"))["amends.key"] == keys[0]
    assert all(one.status.status_code is StatusCode.UNSET for one in seen.spans)
    assert seen.counts("amends.runs") == {("committed",): 1}
    assert seen.counts("amends.calls") == {
        ("read", "succeeded", "look"): 1,
        ("compensatable", "succeeded", "reserve"): 1,
        ("pivot", "succeeded", "pay"): 1,
    }
    assert sum(seen.counts("amends.attempt.duration").values()) == 3


def test_what_a_body_traces_is_inside_its_attempt_and_what_a_block_traces_inside_its_run(seen: Seen) -> None:
    tracer = seen.tracers.get_tracer("app")

    @tool(kind="read", timeout=5)
    def fetch(url: str) -> str:
        with tracer.start_as_current_span("GET"):
            return inner(url)

    @tool(kind="read")
    def inner(url: str) -> str:
        return url

    with seen.trace(Runtime("memory:", tools=[fetch, inner])) as rt, tracer.start_as_current_span("agent"):
        with rt.run("r"):
            with tracer.start_as_current_span("thinking"):
                fetch("x")
    assert is_in(seen.one("GET"), seen.one("attempt fetch"))
    assert is_in(seen.one("call inner"), seen.one("GET"))
    assert is_in(seen.one("call fetch"), seen.one("thinking"))
    assert is_in(seen.one("thinking"), seen.one("run"))
    assert is_in(seen.one("run"), seen.one("agent"))
    assert trace.get_current_span().get_span_context().is_valid is False


def test_a_failure_and_its_compensations_are_told_without_their_words(seen: Seen) -> None:
    with seen.trace(Runtime("memory:", tools=[reserve])) as rt, pytest.raises(ValueError), rt.run("r"):
        reserve(CANARY)
        reserve("bad")
    run, undo = seen.one("run"), seen.one("compensate reserve")
    assert facts(run)["amends.state"] == "rolled_back"
    assert is_in(undo, run)
    assert facts(undo)["amends.state"] == "compensated"
    done = next(span for span in seen.named("call reserve") if facts(span)["amends.state"] == "succeeded")
    assert [link.context.span_id for link in undo.links] == [done.context and done.context.span_id]
    bad = next(span for span in seen.named("attempt reserve") if facts(span)["amends.state"] == "failed")
    assert (facts(bad)["error.type"], bad.status.status_code) == ("ValueError", StatusCode.ERROR)
    assert not [span.name for span in seen.spans if span.events], "no exception is recorded"
    assert CANARY not in repr([span.to_json() for span in seen.spans])
    assert CANARY not in repr(seen.points("amends.calls"))
    assert seen.counts("amends.compensation.duration") == {("compensatable", "compensated", "reserve"): 1}


def test_every_attempt_is_a_span_of_the_same_call(seen: Seen) -> None:
    left = [OSError("no route"), OSError("no route")]

    @tool(retry=FAST, kind="read")
    def ask(x: str) -> str:
        if left:
            raise left.pop()
        return x

    with seen.trace(Runtime("memory:", tools=[ask])) as rt, rt.run("r"):
        assert ask("x") == "x"
    attempts = seen.named("attempt ask")
    assert [facts(span)["amends.attempt"] for span in attempts] == [1, 2, 3]
    assert [facts(span)["amends.state"] for span in attempts] == ["backing_off", "backing_off", "succeeded"]
    assert all(is_in(span, seen.one("call ask")) for span in attempts)


def test_doubt_is_told_as_doubt_and_an_answer_of_the_probe_ends_it(seen: Seen) -> None:
    lost = ["first"]

    @tool(retry=ONCE, probe=lambda call: Happened("kept"), compensate=lambda call: None)
    def send(x: str) -> str:
        if lost:
            lost.pop()
            raise TimeoutError("gone")
        return x

    with seen.trace(Runtime("memory:", tools=[send])) as rt, rt.run("r"):
        assert send("x") == "kept"
    assert facts(seen.one("attempt send"))["amends.state"] == "in_doubt"
    assert facts(seen.one("call send"))["amends.state"] == "succeeded"
    assert seen.one("probe send").status.status_code is StatusCode.UNSET


def test_a_doubt_that_stays_ends_with_its_run(seen: Seen) -> None:
    @tool(retry=ONCE, kind="pivot")
    def send(x: str) -> str:
        raise TimeoutError("gone")

    with seen.trace(Runtime("memory:", tools=[send], wait=0)) as rt, pytest.raises(RunBlocked):
        with rt.run("r"):
            send("x")
    call = seen.one("call send")
    assert (facts(call)["amends.state"], call.status.status_code) == ("in_doubt", StatusCode.ERROR)
    assert facts(seen.one("run"))["amends.state"] == "blocked"


def test_what_is_answered_from_the_record_held_or_refused_is_a_span_without_an_attempt(seen: Seen) -> None:
    store = "memory:"
    with seen.trace(Runtime(store, tools=[reserve, pay])) as rt:
        with pytest.raises(OutOfOrder):
            with rt.run("r"):
                pay(1)
                reserve("room")
    verdicts = Counter(facts(span).get("amends.verdict") for span in seen.spans if span.name.startswith("call"))
    assert verdicts == {None: 1, "refused": 1}
    refused = next(span for span in seen.spans if facts(span).get("amends.verdict") == "refused")
    assert refused.status.status_code is StatusCode.ERROR
    assert len(seen.named("attempt reserve")) == 0


def test_the_other_colour_is_traced_alike(seen: Seen, tmp_path: Any) -> None:
    tracer = seen.tracers.get_tracer("app")

    @tool(kind="read")
    async def fetch(url: str) -> str:
        with tracer.start_as_current_span("GET"):
            await asyncio.sleep(0)
            return url

    @tool(kind="read", timeout=5)
    def blocking(url: str) -> str:
        with tracer.start_as_current_span("READ"):
            return url

    async def main() -> None:
        async with seen.trace(AsyncRuntime(f"sqlite:///{tmp_path}/l.db", tools=[fetch, blocking])) as rt:
            async with rt.run("r") as run:
                await asyncio.gather(fetch("a"), fetch("b"))
                await run.call(blocking, "c")
                async with run.child("inside") as inner:
                    await inner.call(fetch, "d")

    asyncio.run(main())
    outer = next(span for span in seen.named("run") if facts(span)["amends.run"] == "r")
    inner = next(span for span in seen.named("run") if span is not outer)
    assert is_in(inner, outer)
    assert Counter(is_in(span, outer) for span in seen.named("call fetch")) == {True: 2, False: 1}
    assert any(is_in(span, inner) for span in seen.named("call fetch"))
    attempts = seen.named("attempt fetch")
    assert all(any(is_in(get, attempt) for attempt in attempts) for get in seen.named("GET"))
    assert is_in(seen.one("READ"), seen.one("attempt blocking"))


def test_threads_of_a_run_and_calls_by_hand_are_inside_it(seen: Seen) -> None:
    with seen.trace(Runtime("memory:", tools=[reserve])) as rt, rt.run("r") as run:
        run.submit(reserve, "there").result()
        with run.begin("reserve", {"what": "by hand"}) as attempt:
            attempt.succeed("kept")
    assert all(is_in(span, seen.one("run")) for span in seen.named("call reserve"))
    assert len(seen.named("attempt reserve")) == 2


def test_encrypted_ledgers_are_traced_without_what_they_seal(seen: Seen, tmp_path: Any) -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    with (
        seen.trace(Runtime(f"sqlite:///{tmp_path}/l.db", tools=[reserve], encrypt=key)) as rt,
        pytest.raises(ValueError),
    ):
        with rt.run("r"):
            reserve("room")
            reserve("bad")
    bad = next(span for span in seen.named("attempt reserve") if facts(span)["amends.state"] == "failed")
    assert facts(bad)["error.type"] == "ValueError"


def test_a_runtime_is_traced_once(seen: Seen) -> None:
    rt = seen.trace(Runtime("memory:"))
    with pytest.raises(UsageError, match="already traced"):
        seen.trace(rt)
