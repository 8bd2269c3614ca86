"""The client of the service, in Python (extra ``client``): the runtime's verbs over HTTP, blocking and async.

``Client`` and ``AsyncClient`` have the names and the records of ``Runtime``; errors are the runtime's own exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

from amends.client import events as streams
from amends.client import people
from amends.client import runs as run_verbs
from amends.client.exchange import AnyClient
from amends.client.flows import BlockingDriver, LoopDriver, awaited, blocking, listed, listed_async
from amends.client.problems import ServiceError, Unreachable
from amends.client.runs import AsyncAttempt, AsyncBlock, AsyncRun, Attempt, Block, Run
from amends.client.workers import AsyncWorker, Worker

__all__ = [
    "AsyncAttempt",
    "AsyncClient",
    "AsyncRun",
    "AsyncWorker",
    "Attempt",
    "Client",
    "Run",
    "ServiceError",
    "Unreachable",
    "Worker",
]

PATIENCE_S = 60.0
TIMEOUT_S = 60.0
Policy = Literal["rollback", "resume", "wait"]


def _made(colour: Literal["Client", "AsyncClient"], url: str) -> Any:
    """Return what speaks HTTP. The package is imported when the first client is made."""
    try:
        import httpx
    except ImportError as error:
        raise ImportError("amends.client needs the package httpx: pip install 'amends[client]'") from error
    # Loading certificates takes longer than a hundred requests; an address without TLS needs none.
    return getattr(httpx, colour)(verify=url.startswith("https:"))


class Client(AnyClient):
    """A client of a service, with the names of ``Runtime``.

    ``url``: of the service; it may have a path, if the service is mounted. ``token``: from ``amends tokens create``.
    ``tenant``: which one, for the token of an operator of every tenant.
    ``patience``: for how many seconds a request is tried again while the service cannot be reached or is busy.
    ``timeout``: seconds to wait for one answer. ``http``: an ``httpx.Client`` of yours (or of httpx2), for
    proxies and certificates; it stays open when the client is closed. ``route``: what a proxy with several servers routes
    by (``X-Amends-Route``), instead of the id of the run that a request is about.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        tenant: str | None = None,
        patience: float = PATIENCE_S,
        timeout: float = TIMEOUT_S,
        http: Any = None,
        route: str | None = None,
    ) -> None:
        super().__init__(url, token, tenant=tenant, patience=patience, timeout=timeout, route=route)
        self._owns = http is None
        self._driver = BlockingDriver(http or _made("Client", url))

    def run(
        self,
        id: str,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        recover: Policy = "rollback",
        interrupted: Literal["block", "commit"] | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: Literal["again", "raise"] = "again",
        requires: str | Sequence[str] | None = None,
        on_open_failure: Literal["rollback", "commit"] | None = None,
        history: bool = False,
        reads: Literal["record", "again"] = "record",
        agent: str | None = None,
        client_lease: float | None = None,
    ) -> Block:
        """Open a run as a block: leaving it commits, an exception rolls everything back. A known id resumes its run.

        The parameters are those of ``Runtime.run``; the id is needed, because it is what makes a lost answer harmless.
        ``client_lease``: seconds without a sign of this process after which the service lets the run go, and recovery
        follows ``recover``; the block renews it by itself.
        """
        return Block(self, id, _options(locals()))

    def open(
        self,
        id: str,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        recover: Policy = "rollback",
        interrupted: Literal["block", "commit"] | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: Literal["again", "raise"] = "again",
        requires: str | Sequence[str] | None = None,
        on_open_failure: Literal["rollback", "commit"] | None = None,
        history: bool = False,
        reads: Literal["record", "again"] = "record",
        agent: str | None = None,
        client_lease: float | None = None,
    ) -> Run:
        """Open a run without a block: end it with ``commit`` or ``rollback``, and ``renew`` it. Parameters as of ``run``."""
        opened: Run = self._driver.run(run_verbs.open(self, id, _options(locals())))
        return opened

    def worker(
        self, tools: Iterable[object], *, name: str = "", threads: int = 1, lease: float = 30.0, wait: float = 20.0
    ) -> Worker:
        """Perform tools for the service in this process: as a block, beside other work, or with ``run()`` until stopped.

        ``tools``: declared with ``@tool``, as for a runtime. ``name``: what people call this worker. ``threads``: how
        many pieces of work at once. ``lease``: seconds without a sign of this process until a piece of work is in
        doubt; it is renewed while a body runs. ``wait``: seconds of one request for work.
        """
        return Worker(self, tools, name=name, threads=threads, lease=lease, wait=wait)

    # ---- The service

    schemas = blocking(people.schemas)
    health = blocking(people.health)
    ready = blocking(people.ready)
    openapi = blocking(people.openapi)
    metrics = blocking(people.metrics)
    check = blocking(people.check)
    kind_of = blocking(people.kind_of)
    may_repeat = blocking(people.may_repeat)
    start = blocking(people.start)
    test_rules = blocking(people.test_rules)

    # ---- Runs and calls

    runs = listed(people.runs)
    info = blocking(people.info)
    report = blocking(people.report)
    calls = listed(people.calls)
    call = blocking(people.call)
    told = blocking(people.told)
    plan_rollback = blocking(people.plan_rollback)
    rollback = blocking(people.rollback)
    abandon = blocking(people.abandon)
    finish = blocking(people.finish)
    fork = blocking(people.fork)
    compare = blocking(people.compare)
    reconcile = blocking(people.reconcile)

    # ---- The inbox and approvals

    inbox = blocking(people.inbox)
    approvals = listed(people.approvals)
    approval = blocking(people.approval)
    precedents = blocking(people.precedents)
    approve = blocking(people.approve)
    reject = blocking(people.reject)
    edit = blocking(people.edit)
    withdraw = blocking(people.withdraw)
    ask_again = blocking(people.ask_again)
    bypass = blocking(people.bypass)
    delegate = blocking(people.delegate)
    oncall = blocking(people.oncall)
    check_oncall = blocking(people.check_oncall)
    redeem = blocking(people.redeem)

    # ---- Doubts

    doubts = listed(people.doubts)
    probe = blocking(people.probe)
    preview = blocking(people.preview)
    resolve = blocking(people.resolve)
    retry = blocking(people.retry)
    accept = blocking(people.accept)
    decide = blocking(people.decide)

    # ---- Budgets, costs, locks, halts, permits, tokens

    overview = blocking(people.overview)
    budgets = blocking(people.budgets)
    costs = blocking(people.costs)
    spending = blocking(people.spending)
    tool_use = blocking(people.tool_use)
    describe_tools = blocking(people.describe_tools)
    unfinished = blocking(people.unfinished)
    locks = listed(people.locks)
    halts = blocking(people.halts)
    halt = blocking(people.halt)
    unhalt = blocking(people.unhalt)
    permits = blocking(people.permits)
    permit = blocking(people.permit)
    revoke = blocking(people.revoke)
    tokens = blocking(people.tokens)
    create_token = blocking(people.create_token)
    revoke_token = blocking(people.revoke_token)
    workers = blocking(people.workers)

    # ---- The record

    events = listed(people.events)
    follow = listed(streams.follow)
    newest_event = blocking(people.newest_event)
    recent_events = blocking(people.recent_events)
    verify = blocking(people.verify)
    replay_each = blocking(people.replay_each)
    checkpoint = blocking(people.checkpoint)
    checkpoints = blocking(people.checkpoints)
    export = blocking(people.export)
    load = blocking(people.load)

    # ---- The service and its ledger

    settings = blocking(people.settings)
    warnings = blocking(people.warnings)
    schema = blocking(people.schema)
    gc = blocking(people.gc)
    erase = blocking(people.erase)
    reencrypt = blocking(people.reencrypt)
    recover = blocking(people.recover)

    def close(self) -> None:
        """Close the connections; runs that are still open are recovered by their policy when their client lease ends."""
        if self._owns:
            self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncClient(AnyClient):
    """``Client`` for an event loop: the same names and parameters, awaited. ``http``: an ``httpx.AsyncClient``."""

    def __init__(
        self,
        url: str,
        *,
        token: str,
        tenant: str | None = None,
        patience: float = PATIENCE_S,
        timeout: float = TIMEOUT_S,
        http: Any = None,
        route: str | None = None,
    ) -> None:
        super().__init__(url, token, tenant=tenant, patience=patience, timeout=timeout, route=route)
        self._owns = http is None
        self._driver = LoopDriver(http or _made("AsyncClient", url))

    def run(
        self,
        id: str,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        recover: Policy = "rollback",
        interrupted: Literal["block", "commit"] | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: Literal["again", "raise"] = "again",
        requires: str | Sequence[str] | None = None,
        on_open_failure: Literal["rollback", "commit"] | None = None,
        history: bool = False,
        reads: Literal["record", "again"] = "record",
        agent: str | None = None,
        client_lease: float | None = None,
    ) -> AsyncBlock:
        """Open a run as a block: leaving it commits, an exception rolls everything back. A known id resumes its run.

        The parameters are those of ``Runtime.run``; the id is needed, because it is what makes a lost answer harmless.
        ``client_lease``: seconds without a sign of this process after which the service lets the run go, and recovery
        follows ``recover``; the block renews it by itself.
        """
        return AsyncBlock(self, id, _options(locals()))

    async def open(
        self,
        id: str,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        recover: Policy = "rollback",
        interrupted: Literal["block", "commit"] | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: Literal["again", "raise"] = "again",
        requires: str | Sequence[str] | None = None,
        on_open_failure: Literal["rollback", "commit"] | None = None,
        history: bool = False,
        reads: Literal["record", "again"] = "record",
        agent: str | None = None,
        client_lease: float | None = None,
    ) -> AsyncRun:
        """Open a run without a block: end it with ``commit`` or ``rollback``, and ``renew`` it. Parameters as of ``run``."""
        opened: AsyncRun = await self._driver.run(run_verbs.open(self, id, _options(locals())))
        return opened

    def worker(
        self, tools: Iterable[object], *, name: str = "", threads: int = 1, lease: float = 30.0, wait: float = 20.0
    ) -> AsyncWorker:
        """Perform tools for the service in this process: as a block, beside other work, or with ``run()`` until stopped.

        ``tools``: declared with ``@tool``, as for a runtime. ``name``: what people call this worker. ``threads``: how
        many pieces of work at once. ``lease``: seconds without a sign of this process until a piece of work is in
        doubt; it is renewed while a body runs. ``wait``: seconds of one request for work.
        """
        return AsyncWorker(self, tools, name=name, threads=threads, lease=lease, wait=wait)

    # ---- The service

    schemas = awaited(people.schemas)
    health = awaited(people.health)
    ready = awaited(people.ready)
    openapi = awaited(people.openapi)
    metrics = awaited(people.metrics)
    check = awaited(people.check)
    kind_of = awaited(people.kind_of)
    may_repeat = awaited(people.may_repeat)
    start = awaited(people.start)
    test_rules = awaited(people.test_rules)

    # ---- Runs and calls

    runs = listed_async(people.runs)
    info = awaited(people.info)
    report = awaited(people.report)
    calls = listed_async(people.calls)
    call = awaited(people.call)
    told = awaited(people.told)
    plan_rollback = awaited(people.plan_rollback)
    rollback = awaited(people.rollback)
    abandon = awaited(people.abandon)
    finish = awaited(people.finish)
    fork = awaited(people.fork)
    compare = awaited(people.compare)
    reconcile = awaited(people.reconcile)

    # ---- The inbox and approvals

    inbox = awaited(people.inbox)
    approvals = listed_async(people.approvals)
    approval = awaited(people.approval)
    precedents = awaited(people.precedents)
    approve = awaited(people.approve)
    reject = awaited(people.reject)
    edit = awaited(people.edit)
    withdraw = awaited(people.withdraw)
    ask_again = awaited(people.ask_again)
    bypass = awaited(people.bypass)
    delegate = awaited(people.delegate)
    oncall = awaited(people.oncall)
    check_oncall = awaited(people.check_oncall)
    redeem = awaited(people.redeem)

    # ---- Doubts

    doubts = listed_async(people.doubts)
    probe = awaited(people.probe)
    preview = awaited(people.preview)
    resolve = awaited(people.resolve)
    retry = awaited(people.retry)
    accept = awaited(people.accept)
    decide = awaited(people.decide)

    # ---- Budgets, costs, locks, halts, permits, tokens

    overview = awaited(people.overview)
    budgets = awaited(people.budgets)
    costs = awaited(people.costs)
    spending = awaited(people.spending)
    tool_use = awaited(people.tool_use)
    describe_tools = awaited(people.describe_tools)
    unfinished = awaited(people.unfinished)
    locks = listed_async(people.locks)
    halts = awaited(people.halts)
    halt = awaited(people.halt)
    unhalt = awaited(people.unhalt)
    permits = awaited(people.permits)
    permit = awaited(people.permit)
    revoke = awaited(people.revoke)
    tokens = awaited(people.tokens)
    create_token = awaited(people.create_token)
    revoke_token = awaited(people.revoke_token)
    workers = awaited(people.workers)

    # ---- The record

    events = listed_async(people.events)
    follow = listed_async(streams.follow)
    newest_event = awaited(people.newest_event)
    recent_events = awaited(people.recent_events)
    verify = awaited(people.verify)
    replay_each = awaited(people.replay_each)
    checkpoint = awaited(people.checkpoint)
    checkpoints = awaited(people.checkpoints)
    export = awaited(people.export)
    load = awaited(people.load)

    # ---- The service and its ledger

    settings = awaited(people.settings)
    warnings = awaited(people.warnings)
    schema = awaited(people.schema)
    gc = awaited(people.gc)
    erase = awaited(people.erase)
    reencrypt = awaited(people.reencrypt)
    recover = awaited(people.recover)

    async def close(self) -> None:
        """Close the connections; runs that are still open are recovered by their policy when their client lease ends."""
        if self._owns:
            await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in ("self", "id")}
