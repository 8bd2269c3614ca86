"""For machines: health, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from amends import __version__
from amends.errors import Forbidden, UsageError
from amends.serve.exchange import Exchange, Reply
from amends.serve.problems import NoSuchRoute

if TYPE_CHECKING:
    from amends.serve.service import Service

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
    if x.service.own_tenant(x):
        raise Forbidden("metrics count what every tenant does: this needs a token of no named tenant", why="tenant")
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

        from amends.telemetry import Exposition, traced

        self._exposition = Exposition()
        provider = self._exposition.provider
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
        return self._exposition.text()
