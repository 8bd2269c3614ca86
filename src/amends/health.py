"""The HTTP endpoint of a worker: ``/health``, ``/ready`` and ``/metrics``, for probes and for Prometheus.

It is off unless ``work(listen=...)`` or ``amends worker --listen`` names a port, and on loopback unless that names an
address. Nothing needs a token: what it says are counts, states and names of tools, never arguments or results.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from amends import __version__
from amends.errors import Error, LedgerError, UsageError, described
from amends.host.host import Host
from amends.ledger.operations import ListHalts, ListUnfinished, SearchApprovals, SearchCalls
from amends.people.doubts import DOUBTFUL
from amends.runtime import AsyncRuntime, Runtime
from amends.stores.migrations import Migrating
from amends.visible import visible_log

log = visible_log("amends.worker")

COUNTED_MAX: Final = 10_000
"""How many unfinished runs, doubts or requests are counted: a metric that says 10,000 says enough."""
SNAPSHOT_S: Final = 1.0
"""For how long one look at the ledger serves the gauges that are made from it."""
REQUEST_S_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 16
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
PORT_MAX: Final = 65_535


class Watched(Protocol):
    """What the endpoint says about a worker."""

    rt: Runtime | AsyncRuntime
    concurrency: int
    passes: Counter[str]
    latest: str
    skipped: int
    running: dict[str, str]

    @property
    def is_alive(self) -> bool:
        """Return whether its loop works."""
        ...

    @property
    def is_draining(self) -> bool:
        """Return whether it was told to stop."""
        ...


class Endpoint:
    """A context manager: the endpoint of one worker, in threads of its own, until the block ends."""

    def __init__(self, worker: Watched, listen: str) -> None:
        self._worker = worker
        self._host, self._port = parse_address(listen)
        self._meters = _meters_of(worker)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Return where it listens, as a URL."""
        assert self._server is not None, "it listens inside its block"
        host, port = self._server.server_address[:2]
        name = str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def __enter__(self) -> Endpoint:
        try:
            self._server = _Server((self._host, self._port), self._answer)
        except OSError as error:
            raise UsageError(
                f"the worker cannot listen on {self._host}, port {self._port}: {error.strerror or error}",
                hint="choose a port that is free, and an address of this machine: --listen HOST:PORT",
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="amends-health", daemon=True)
        self._thread.start()
        log.info("listening on %s: /health, /ready, /metrics", self.address)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        assert self._server is not None, "it was entered"
        assert self._thread is not None, "it was entered"
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # ---- Answers

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        match path.partition("?")[0]:
            case "/health":
                return self._health()
            case "/ready":
                return self._ready()
            case "/metrics" if self._meters is not None:
                return 200, TEXT, self._meters.text()
            case "/metrics":
                return _said(404, status="failing", why="no metrics here: pip install opentelemetry-sdk")
            case _:
                return _said(404, status="failing", why="there are /health, /ready and /metrics")

    def _health(self) -> tuple[int, str, bytes]:
        """Say whether the process works; the ledger is not asked, since a restart does not mend it."""
        if not self._worker.is_alive:
            return _said(503, status="failing", why="it has not looked for runs for a long time")
        return _said(200, status="ok", version=__version__, running=len(self._worker.running))

    def _ready(self) -> tuple[int, str, bytes]:
        """Say whether it takes over runs: its last pass was a success, and it was not told to stop."""
        if self._worker.is_draining:
            return _said(503, status="draining", running=len(self._worker.running))
        if self._worker.latest != "ok":
            why = f"the last pass: {self._worker.latest}" if self._worker.latest else "it has not looked for runs yet"
            return _said(503, status="failing", why=why)
        return _said(200, status="ok", version=__version__, ledger="ok", running=len(self._worker.running))


def parse_address(listen: str) -> tuple[str, int]:
    """Return host and port of ``PORT`` (on loopback), ``HOST:PORT`` or ``[IPV6]:PORT``; raise ``UsageError`` otherwise."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise UsageError(
            f"listen is {listen!r}; it is PORT, HOST:PORT or [IPV6]:PORT, and a port is 0 to {PORT_MAX}",
            hint="for example --listen 9464, which is on 127.0.0.1, or --listen 0.0.0.0:9464",
        )
    return host, int(port)


def _said(code: int, /, **facts: Any) -> tuple[int, str, bytes]:
    return code, "application/json", json.dumps(facts).encode()


class _Server(ThreadingHTTPServer):
    """A server for a few connections at a time."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], answer: Callable[[str], tuple[int, str, bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.answer = answer
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request to the endpoint failed: %s", sys.exception())  # its client is gone, as a rule


class _Handler(BaseHTTPRequestHandler):
    """One request; the connection is closed after it."""

    timeout = REQUEST_S_MAX
    server_version = "amends"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        status, kind, body = self.server.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 (the name of http.server)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


# ---- Metrics: those of the runtime, and gauges of the worker and of its ledger


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What waits in the ledger, of every tenant that the runtime works for."""

    runs: Counter[str]
    """Root runs that have not ended, by state."""
    due: int
    """Runs that a worker should take over now, and that nobody has."""
    due_s: float
    """For how long the oldest of them has been due."""
    doubts: Counter[str]
    doubt_s: float
    approvals: int
    approval_s: float
    halts: int
    schema: int
    pending: int

    @classmethod
    def of(cls, host: Host, tenant: str | None) -> Snapshot:
        """Read the ledger. Raises what the ledger raises."""
        host.ready()
        now, store = time.time(), host.store
        roots = store.perform(ListUnfinished(tenant, limit=COUNTED_MAX))
        due = [root.wake_at for root in roots if root.wake_at is not None and root.wake_at <= now]
        calls = [row for row in store.perform(SearchCalls(tenant, DOUBTFUL, limit=COUNTED_MAX)) if not row.is_loaded]
        lost = [row.comp_settled_at or row.settled_at or row.created_at for row in calls]
        asked = store.perform(SearchApprovals(tenant, ("pending",), limit=COUNTED_MAX))
        waiting = [one.approval.requested_at for one in asked if one.approval.state_at(one.now) == "pending"]
        schema = store.schema() if isinstance(store, Migrating) else None
        return cls(
            runs=Counter(root.state for root in roots), due=len(due), due_s=_age(due, now),
            doubts=Counter(row.state for row in calls), doubt_s=_age(lost, now),
            approvals=len(waiting), approval_s=_age(waiting, now), halts=len(store.perform(ListHalts())),
            schema=0 if schema is None else schema.version, pending=0 if schema is None else len(schema.pending),
        )  # fmt: skip


def _age(times: Sequence[float], now: float) -> float:
    return max((now - at for at in times), default=0.0)


class _Meters:
    """The metrics of one worker, in the reader that also has those of its runtime (``amends.telemetry``)."""

    def __init__(self, worker: Watched) -> None:
        from amends.telemetry import Exposition, traced

        self._worker, self._lock = worker, threading.Lock()
        self._snapshot: tuple[float, Snapshot | None] = (float("-inf"), None)
        self._exposition = Exposition()
        with suppress(UsageError):  # its program has traced it, and exports that itself
            traced(worker.rt, meter_provider=self._exposition.provider)
        self._observe()

    def text(self) -> bytes:
        return self._exposition.text()

    def _observe(self) -> None:
        from opentelemetry.metrics import CallbackOptions, Observation

        meter = self._exposition.provider.get_meter("amends.worker")

        def counted(
            source: Callable[[], Counter[str]], name: str
        ) -> Callable[[CallbackOptions], Iterator[Observation]]:
            return lambda _: (Observation(count, {name: key}) for key, count in sorted(source().items()))

        def gauge(name: str, source: Callable[[], float], text: str, *, unit: str = "") -> None:
            meter.create_observable_gauge(name, [lambda _: [Observation(source())]], unit, text)

        def of_ledger(name: str, pick: Callable[[Snapshot], float], text: str, *, unit: str = "") -> None:
            def observe(_: CallbackOptions) -> list[Observation]:
                found = self._look()
                return [] if found is None else [Observation(pick(found))]

            meter.create_observable_gauge(name, [observe], unit, text)

        def by_state(name: str, pick: Callable[[Snapshot], Counter[str]], text: str, *states: str) -> None:
            def observe(_: CallbackOptions) -> list[Observation]:
                found = self._look()
                return [] if found is None else [Observation(pick(found)[one], {"amends.state": one}) for one in states]

            meter.create_observable_gauge(name, [observe], "", text)

        worker = self._worker
        meter.create_observable_counter(
            "amends.worker.passes",
            [counted(lambda: worker.passes, "amends.outcome")],
            "",
            "Searches for runs to recover",
        )
        gauge("amends.worker.running", lambda: len(worker.running), "Runs that this worker recovers now")
        gauge("amends.worker.concurrency", lambda: worker.concurrency, "Runs that it may recover at once")
        gauge(
            "amends.worker.skipped", lambda: worker.skipped, "Runs that the last pass left to workers with other tools"
        )
        gauge("amends.worker.draining", lambda: int(worker.is_draining), "1: it was told to stop, and claims nothing")
        of_ledger("amends.ledger.due", lambda one: one.due, "Runs that a worker should take over, and none has")
        of_ledger(
            "amends.ledger.due.oldest", lambda one: one.due_s, "How long the oldest of them has been due", unit="s"
        )
        by_state(
            "amends.ledger.runs", lambda one: one.runs, "Root runs that have not ended, by state",
            "open", "pivoted", "rolling_back", "blocked",
        )  # fmt: skip
        by_state("amends.ledger.doubts", lambda one: one.doubts, "Calls in doubt, by state", *DOUBTFUL)
        of_ledger("amends.ledger.doubts.oldest", lambda one: one.doubt_s, "Age of the oldest doubt", unit="s")
        of_ledger("amends.ledger.approvals", lambda one: one.approvals, "Requests for approval that nobody has decided")
        of_ledger("amends.ledger.approvals.oldest", lambda one: one.approval_s, "Age of the oldest of them", unit="s")
        of_ledger("amends.ledger.halts", lambda one: one.halts, "Halts that nobody has lifted")
        of_ledger("amends.ledger.schema", lambda one: one.schema, "Schema version of the ledger")
        of_ledger("amends.ledger.migrations", lambda one: one.pending, "Migrations of this amends that are not applied")

    def _look(self) -> Snapshot | None:
        """Return what waits in the ledger; None if it does not answer: then its gauges are missing, not zero."""
        with self._lock:
            at, found = self._snapshot
            if time.monotonic() - at > SNAPSHOT_S:
                try:
                    found = Snapshot.of(self._worker.rt._host, self._worker.rt._view.tenant or None)
                except LedgerError as error:
                    log.debug("the gauges of the ledger are missing: %s", error)
                    found = None
                except Error as error:
                    log.warning("the gauges of the ledger are missing: %s", described(error))
                    found = None
                self._snapshot = (time.monotonic(), found)
            return found


def _meters_of(worker: Watched) -> _Meters | None:
    try:
        return _Meters(worker)
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("opentelemetry"):
            raise
        return None  # the answer at /metrics says so
