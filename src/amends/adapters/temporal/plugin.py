"""The plugin for a Temporal worker: with it, the worker's ``workflows`` are runs and its declared activities are calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from amends import AsyncRuntime, Runtime
from amends.adapters.durable_runs import IDLE_S, DurableRuns
from amends.adapters.temporal.activities import activities_of
from amends.adapters.temporal.interceptors import AmendsInterceptor
from amends.adapters.temporal.runs import LOOK_SIGNAL, Facts
from amends.errors import UsageError, log_error
from amends.visible import visible, visible_log

log = visible_log("amends")


class AmendsPlugin(SimplePlugin):
    """Add it to a worker, or to a Replayer: ``Worker(client, ..., plugins=[AmendsPlugin(rt)])``.

    Each ``workflow`` is then a run of the same id, as soon as it makes a call: through ``durable_run()``, or by an activity
    that has the name of a tool of ``rt``. The worker process must have the tools of the runs that it works on.
    """

    def __init__(
        self,
        rt: Runtime | AsyncRuntime,
        *,
        call_s: float = 3_600.0,
        heartbeat_s: float = 30.0,
        idle_s: float = IDLE_S,
        on_open_failure: Literal["rollback", "commit"] | None = None,
    ) -> None:
        """Guard the tools of ``rt``.

        ``call_s``: the longest that one request may take. ``heartbeat_s``: after so many seconds of silence Temporal gives
        up on a worker, and another one settles what it had begun. ``idle_s``: after so many seconds without a request this
        process lets a run go. ``on_open_failure``: as of ``rt.run``; say ``"rollback"`` for agents, whose runs then do not
        end well over a call that failed and was not made good.
        """
        if on_open_failure not in (None, "rollback", "commit"):
            raise UsageError(f"on_open_failure of AmendsPlugin is {on_open_failure!r}; it is 'rollback' or 'commit'")
        for name, seconds in {"call_s": call_s, "heartbeat_s": heartbeat_s, "idle_s": idle_s}.items():
            if isinstance(seconds, bool) or not seconds > 0:
                raise UsageError(f"{name} of AmendsPlugin is {seconds!r}; it is a number of seconds above 0")
        self._rt, self._idle_s = rt, idle_s
        self._runs: DurableRuns | None = None
        self._workers = 0
        known = DurableRuns(rt, engine="temporal")
        repeatable = frozenset(tool for tool in known.tools if known.may_repeat(tool))
        facts = Facts(known.tools, repeatable, float(call_s), float(heartbeat_s), on_open_failure)
        super().__init__(
            "amends.AmendsPlugin",
            interceptors=[AmendsInterceptor(self._present, facts)],
            activities=activities_of(self._present),
            workflow_runner=_passing_amends,
        )

    def _present(self) -> DurableRuns:
        if self._runs is None:
            raise UsageError(
                "the worker with this plugin is not running", hint="run the worker; a Replayer performs nothing"
            )
        return self._runs

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """Own runs while the worker runs; tell their ``workflows`` what people have decided in the ledger."""
        if self._runs is None:
            self._runs = await DurableRuns(self._rt, engine="temporal", idle_s=self._idle_s).__aenter__()
        runs, self._workers = self._runs, self._workers + 1
        telling = asyncio.create_task(_tell(worker.client, runs))
        try:
            await next(worker)
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
            self._workers -= 1
            if not self._workers:  # several workers of a process may share the plugin, and so the runs
                self._runs = None
                await runs.__aexit__(None, None, None)


async def _tell(client: Client, runs: DurableRuns) -> None:
    """Wake the ``workflows`` of runs about which somebody has decided something."""
    async for run in runs.decisions():
        try:
            await client.get_workflow_handle(run.id).signal(LOOK_SIGNAL)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                continue  # it has ended
            log.warning("run %s could not be woken; it looks by itself later: %s", visible(run.id), error)
        except Exception as error:  # otherwise nobody would be woken any more
            log_error(log, logging.ERROR, f"run {visible(run.id)} could not be woken; it looks by itself later", error)


def _passing_amends(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Let the sandbox pass amends through: its modules hold no state of a ``workflow``."""
    if isinstance(runner, SandboxedWorkflowRunner):
        return replace(runner, restrictions=runner.restrictions.with_passthrough_modules("amends", "pydantic"))
    if runner is None:
        raise AssertionError("a worker has a runner before its plugins are asked")
    return runner
