"""For machines: health, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from amends import __version__
from amends.errors import UsageError
from amends.serve.exchange import Exchange, Reply
from amends.serve.problems import NoSuchRoute

if TYPE_CHECKING:
    from amends.serve.service import Service

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Of the histograms of durations, in seconds."""
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
READY_S_MAX: Final = 5.0
"""How long the ledger may take to answer."""


async def openapi(x: Exchange) -> Reply:
    """Describe every route: OpenAPI 3.1."""
    base = x.service.base(x.request)  # where the application is mounted
    return Reply(x.service.document() | ({"servers": [{"url": base}]} if base else {}))


async def health(_x: Exchange) -> Reply:
    """Say that the process runs; the ledger is not asked."""
    return Reply({"status": "ok", "version": __version__})


async def ready(x: Exchange) -> Reply:
    """Say whether the ledger answers, so that requests can be carried out."""
    try:
        async with asyncio.timeout(READY_S_MAX):
            await x.service.rt.newest_event()
    except Exception as error:
        why = type(error).__name__
        return Reply({"status": "failing", "version": __version__, "ledger": why}, 503, {"Retry-After": "5"})
    return Reply({"status": "ok", "version": __version__, "ledger": "ok", "runs": len(x.service.sessions)})


# ---- Prometheus


async def metrics(x: Exchange) -> Reply:
    """Return the metrics of the runtime and of the service, in the text format of Prometheus."""
    if x.service.meters is None:
        raise NoSuchRoute("this service has no metrics", hint="pip install opentelemetry-sdk")
    return Reply(await asyncio.to_thread(x.service.meters.text), media_type=TEXT)


class Meters:
    """The metrics of one service: requests, open runs and streams, and those of its runtime (``amends.telemetry``).

    One OpenTelemetry reader holds all of them. ``traces``: count what the runtime does, too, which makes each call about a
    fifth slower. A runtime that its program traces already keeps its own.
    """

    def __init__(self, service: Service, *, traces: bool) -> None:
        from opentelemetry.metrics import CallbackOptions, Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

        from amends.telemetry import traced

        self._reader = InMemoryMetricReader()
        in_seconds = View(instrument_name="*.duration", aggregation=ExplicitBucketHistogramAggregation(BOUNDS))
        provider = MeterProvider([self._reader], views=[in_seconds], shutdown_on_exit=False)
        if traces:
            with contextlib.suppress(UsageError):  # its program has traced it, and exports that itself
                traced(service.rt, meter_provider=provider)
        meter = provider.get_meter("amends.serve")
        self._duration = meter.create_histogram(
            "amends.serve.duration", "s", "Duration of requests, by route and status"
        )

        def runs(_: CallbackOptions) -> list[Observation]:
            return [Observation(len(service.sessions))]

        def streams(_: CallbackOptions) -> list[Observation]:
            return [Observation(service.streams)]

        meter.create_observable_gauge("amends.serve.runs", [runs], description="Runs that clients have open here")
        meter.create_observable_gauge("amends.serve.streams", [streams], description="Event streams that are open")

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._duration.record(seconds, {"route": route, "status": status})

    def text(self) -> bytes:
        """Return everything in the text format of Prometheus."""
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
