"""What the plugin does around the code of a worker: it ends runs with their ``workflows``, and guards declared activities.

An activity that has the name of a declared tool is a call of that tool. The ``workflow`` that asks for it need not know:
its request gets an id in a header, the activity is admitted, run and settled in the ledger, and a doubt or an approval is
waited for in the place of the answer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final, NoReturn

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import default
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ApplicationErrorCategory,
    is_cancelled_exception,
)
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ContinueAsNewInput,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from amends import Tool
from amends.adapters.durable_runs import DurableRuns, EngineCall, EngineRun, Outcome
from amends.adapters.temporal.activities import alive
from amends.adapters.temporal.runs import CURRENT, ONCE, DurableRun, Facts, Pauses, application_error

HEADER: Final = "amends"
"""The header with the run and the request of a guarded activity."""
PATCH: Final = "amends-guard"
"""The patch id: executions that began without the plugin go on as they began."""
WAITS: Final = "amends.waits"
"""The type of the error by which a guarded activity says that its call waits; its detail is the ``Outcome``."""

_CONVERTER: Final = default().payload_converter


class AmendsInterceptor(Interceptor):
    """Both sides of a worker: its activities, and the code of its ``workflows``."""

    def __init__(self, runs: Callable[[], DurableRuns], facts: Facts) -> None:
        """For the plugin. ``runs``: those of this process, once the worker runs."""
        self._runs, self._facts = runs, facts

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _GuardedActivity(next, self._runs)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        facts = self._facts

        class WithFacts(_Inbound):
            worker_facts = facts

        return WithFacts


# ---- The code of a workflow


class _Inbound(WorkflowInboundInterceptor):
    """Give each execution its run, and end the run as the execution ends."""

    worker_facts = Facts()

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self.worker_facts))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        begun = input.headers.get(HEADER)
        new = EngineRun(workflow.info().workflow_id, on_open_failure=self.worker_facts.on_open_failure)
        place = new if begun is None else EngineRun(**_value(begun)["run"])
        run = DurableRun(place, self.worker_facts, is_used=begun is not None)
        CURRENT.set(run)
        run.listen()
        try:
            result = await super().execute_workflow(input)
        except BaseException as error:
            if run.is_used and not run.is_over and _fails(error):
                await run.rollback(_why(error))
            raise
        if run.is_used and not run.is_over:
            await run.commit()
        return result


def _fails(error: BaseException) -> bool:
    """Return whether the execution ends with this error. A fault of the code does not: Temporal lets people repair it."""
    if isinstance(error, asyncio.CancelledError):
        return True
    return isinstance(error, Exception) and workflow.is_failure_exception(error)


def _why(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "it was cancelled"
    cause = error.cause if isinstance(error, ActivityError) and error.cause is not None else error
    return f"{type(cause).__name__}: {cause}"[:500]


class _Outbound(WorkflowOutboundInterceptor):
    """Guard the activities that are declared tools."""

    def __init__(self, next: WorkflowOutboundInterceptor, facts: Facts) -> None:
        super().__init__(next)
        self._facts = facts

    def start_activity(self, input: StartActivityInput) -> Any:
        run = CURRENT.get(None)
        if run is None or input.activity not in self._facts.tools or not workflow.patched(PATCH):
            return super().start_activity(input)
        return asyncio.ensure_future(self._settled(run, input))

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        run = CURRENT.get(None)
        if run is not None and run.is_used and not run.is_over:
            input.headers = {**input.headers, HEADER: _payload({"run": asdict(run.place)})}
        super().continue_as_new(input)

    async def _settled(self, run: DurableRun, input: StartActivityInput) -> Any:
        """Start the activity, and again with the same request until its call is settled."""
        run.use()
        place = {"run": asdict(run.place), "request": run.next_request()}
        headers = {**input.headers, HEADER: _payload(place)}
        may_repeat = input.activity in self._facts.repeatable
        asked = replace(input, headers=headers, retry_policy=input.retry_policy if may_repeat else ONCE)
        pauses = Pauses()
        while True:
            seen = run.notices
            try:
                return await self.next.start_activity(asked)
            except ActivityError as error:
                waits = _waits(error)
                if waits is not None:
                    await run.wait(seen, waits.again_s, waits.approval, pauses)
                elif may_repeat or is_cancelled_exception(error) or _is_known(error):
                    raise
                else:  # the worker is gone, or slow: nobody knows, so the same request settles it
                    await run.wait(seen, 1.0, None, pauses)


def _payload(value: Any) -> Payload:
    return _CONVERTER.to_payloads([value])[0]


def _value(payload: Payload) -> Any:
    return _CONVERTER.from_payloads([payload])[0]


def _waits(error: ActivityError) -> Outcome | None:
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type != WAITS:
        return None
    return _CONVERTER.from_payloads(_CONVERTER.to_payloads(list(cause.details[:1])), [Outcome])[0]  # type: ignore[no-any-return]


def _is_known(error: ActivityError) -> bool:
    """Return whether the ledger has the end of the call, and this error is how it ended."""
    return isinstance(error.cause, ApplicationError) and error.cause.non_retryable


# ---- Activities


class _GuardedActivity(ActivityInboundInterceptor):
    """Make a guarded activity one request about its run."""

    def __init__(self, next: ActivityInboundInterceptor, runs: Callable[[], DurableRuns]) -> None:
        super().__init__(next)
        self._runs = runs

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._outbound = outbound
        super().init(outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        header = input.headers.get(HEADER)
        if header is None:
            return await super().execute_activity(input)
        place = _value(header)
        info = activity.info()
        runs = self._runs()
        may_repeat = runs.may_repeat(info.activity_type)
        # What the engine's own retry policy repeats is a request of its own: the key finds what became of the first.
        request = f"{place['request']}#{info.attempt}" if may_repeat else place["request"]
        call = EngineCall(info.activity_type, _arguments(input), request)
        body = None if isinstance(input.fn, Tool) else self._body(input)
        async with alive(self._outbound.heartbeat):
            outcome = await runs.perform(EngineRun(**place["run"]), call, body)
        if outcome.status in ("done", "staged"):
            return outcome.value
        if outcome.is_final:
            error = application_error(outcome)
            if may_repeat and outcome.status == "failed":
                error = ApplicationError(error.message, outcome, type=error.type)
            raise error
        # Nothing is wrong: Temporal neither logs nor counts it as a failure.
        category = ApplicationErrorCategory.BENIGN
        raise ApplicationError(outcome.text, outcome, type=WAITS, non_retryable=True, category=category)

    def _body(self, input: ExecuteActivityInput) -> Callable[..., Any]:
        """Return the activity itself as the body of its call."""

        async def body(**_: Any) -> Any:
            return await self.next.execute_activity(input)

        return body


def _arguments(input: ExecuteActivityInput) -> dict[str, Any]:
    """Return the arguments of an activity by the names that its function has for them."""
    return dict(inspect.signature(input.fn).bind(*input.args).arguments)
