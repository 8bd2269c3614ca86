"""The run of a Temporal ``workflow``, as its own code uses it. Deterministic: everything real is done by activities."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.converter import value_to_type
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from amends import Tool
from amends.adapters.durable_runs import (
    Decided,
    Decision,
    Ending,
    EngineCall,
    EngineRun,
    Failure,
    Outcome,
    PendingApproval,
)
from amends.errors import UsageError

CALL: Final = "amends.call"
SETTLE: Final = "amends.settle"
COMMIT: Final = "amends.commit"
ROLL_BACK: Final = "amends.roll_back"
DECIDE: Final = "amends.decide"
"""The activities that the plugin adds to its worker."""
DECISION_UPDATE: Final = "amends_decide"
"""The update by which a person approves or rejects a call: its argument is a ``Decision``."""
LOOK_SIGNAL: Final = "amends_look"
"""The signal by which a worker says that somebody has decided something in the ledger."""
APPROVALS_QUERY: Final = "amends_approvals"
"""The query for what waits for a person."""

AGAIN_S_MAX: Final = 300.0
"""The longest pause between two looks at something that a person need not decide."""
LOOK_S: Final = 60.0
"""A wait for a person is looked at after so many seconds, then after twice as many, and so on: no worker may have run when it
was decided, or the signal may be lost."""
LOOK_S_MAX: Final = 86_400.0
LOOK_PATCH: Final = "amends-look"
"""The patch id: executions that waited without looking go on as they began."""
PAUSE_FACTOR: Final = 2.0
REPEATED: Final = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=60))
ONCE: Final = RetryPolicy(maximum_attempts=1)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the worker knows of its tools and wants of its activities."""

    tools: frozenset[str] = frozenset()
    repeatable: frozenset[str] = frozenset()
    """The tools whose bodies the engine's own retry may start again."""
    call_s: float = 3_600.0
    heartbeat_s: float = 30.0
    on_open_failure: Literal["rollback", "commit"] | None = None


CURRENT: ContextVar[DurableRun] = ContextVar("amends_durable_run")
"""The run of the ``workflow`` that is being executed."""


def durable_run(
    *,
    input: Any = None,
    tags: list[str] | None = None,
    tenant: str | None = None,
    agent: str | None = None,
    principal: str | None = None,
    deadline: float | None = None,
    requires: list[str] | None = None,
    on_open_failure: Literal["rollback", "commit"] | None = None,
) -> DurableRun:
    """Return the run of this ``workflow``, for its own code. Its id is that of the ``workflow``.

    The run is opened by its first call. It is committed when the ``workflow`` returns, and rolled back when it fails or is
    cancelled; a ``workflow`` that continues as new goes on with it. The parameters are those of ``rt.run`` and count until
    the first call.
    """
    run = CURRENT.get(None)
    if run is None:
        raise UsageError(
            "durable_run() is for the code of a workflow whose worker has the plugin of amends",
            hint="add AmendsPlugin(rt) to the plugins of the worker",
        )
    given = {"input": input, "tags": tags, "tenant": tenant, "agent": agent, "principal": principal}
    given |= {"deadline": deadline, "requires": requires, "on_open_failure": on_open_failure}
    said = {name: value for name, value in given.items() if value is not None}
    if said:
        run.say(said)
    return run


class DurableRun:
    """One run, in the code of its ``workflow``. ``durable_run()`` returns it."""

    def __init__(self, run: EngineRun, facts: Facts, *, is_used: bool = False) -> None:
        """For the interceptor: one for each execution. ``is_used``: an execution that continued as new has begun it."""
        self._run, self._facts, self._is_used = run, facts, is_used
        self._requests = self._notices = 0
        self._approvals: dict[str, PendingApproval] = {}
        self._ended: Ending | None = None
        self.output: Any = None
        """What the run records as its output when it is committed."""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._run.id

    @property
    def place(self) -> EngineRun:
        """The run as its activities name it."""
        return self._run

    @property
    def is_used(self) -> bool:
        """Whether something was asked of it, by this execution or by those that it continues."""
        return self._is_used

    @property
    def is_over(self) -> bool:
        """Whether it was committed or rolled back."""
        return self._ended is not None

    @property
    def approvals(self) -> list[PendingApproval]:
        """What waits for a person now."""
        return list(self._approvals.values())

    def say(self, options: Mapping[str, Any]) -> None:
        """Set options of the run that ``durable_run`` was given; they count until its first call."""
        if self.is_used:
            raise UsageError(f"run {self.id} has already begun; say its options before its first call", run_id=self.id)
        self._run = replace(self._run, **options)

    # ---- Calls

    async def call(
        self,
        tool: str | Tool[..., Any],
        args: Mapping[str, Any] | None = None,
        /,
        *,
        again: str | None = None,
        result_type: type[T] | None = None,
    ) -> Any:
        """Do one call and return its result as JSON data, or as ``result_type``.

        It waits, durably, while the call waits for a person or its doubt is not settled. A call that failed or was refused
        raises ``ApplicationError`` with the name of the error as its ``type``; a staged one returns None.
        """
        outcome = await self.answer(tool, args, again=again)
        if outcome.status not in ("done", "staged"):
            raise application_error(outcome)
        value = outcome.value
        return value if result_type is None or value is None else value_to_type(result_type, value)

    async def answer(
        self,
        tool: str | Tool[..., Any],
        args: Mapping[str, Any] | None = None,
        /,
        *,
        request: str | None = None,
        again: str | None = None,
    ) -> Outcome:
        """Do one call and return its outcome, with a text for a model. A call that failed raises nothing.

        ``request``: names this request, if the code has a name for it, such as a model's id of its tool call: unique in
        the run. ``again``: why it is a deliberate repeat of an earlier call.
        """
        name = tool if isinstance(tool, str) else tool.name
        self.use()
        asked = EngineCall(name, dict(args or {}), request or self.next_request(), again)
        may_repeat = name in self._facts.repeatable
        seen, pauses = self.notices, Pauses()
        outcome = await self._asked(CALL, asked, REPEATED if may_repeat else ONCE)
        while outcome is None or not outcome.is_final:
            if outcome is not None:
                await self.wait(seen, outcome.again_s, outcome.approval, pauses)
            seen = self.notices
            outcome = await self._asked(SETTLE, asked, REPEATED)
        return outcome

    async def _asked(self, activity: str, asked: EngineCall, policy: RetryPolicy) -> Outcome | None:
        """Ask once; None: the engine does not know the outcome, so it must be settled."""
        try:
            return await self._execute(activity, [self._run, asked], Outcome, policy, summary=asked.tool)
        except ActivityError as error:
            if policy is not ONCE or is_cancelled_exception(error):
                raise
            return None

    def next_request(self) -> str:
        """Return an id for the next request: unique in the run, and the same in every replay."""
        self._requests += 1
        return f"{workflow.info().run_id}/{self._requests}"

    def use(self) -> None:
        """Note that something is asked of the run; raise if this code has ended it."""
        self._is_used = True
        if self._ended is not None:
            raise ApplicationError(
                f"run {self.id} is {self._ended.state}: it takes no new call", type="RunEnded", non_retryable=True
            )

    # ---- The end

    async def commit(self) -> Ending:
        """Commit the run now: its effects stay. Wait, durably, for what is staged, and for people.

        Raises ``ApplicationError`` if the run was rolled back instead.
        """
        ending = await self._to_its_end(COMMIT, [self._run, self.output])
        if ending.state != "committed":
            error = ending.error or Failure("RolledBack", ending.text or f"run {self.id} was rolled back")
            raise ApplicationError(error.message, ending, type=error.type, non_retryable=True)
        return ending

    async def rollback(self, why: str) -> Ending:
        """Compensate what the run has done, from the rows of the ledger. A cancellation does not interrupt it."""
        return await self._to_its_end(ROLL_BACK, [self._run, why])

    async def _to_its_end(self, activity: str, args: list[Any]) -> Ending:
        """Ask for the end until it is final, whatever is cancelled meanwhile."""
        self._ended = self._ended or Ending("ending")

        async def ask() -> Ending:
            pauses = Pauses()
            while True:
                seen = self.notices
                ending = await self._execute(activity, args, Ending, REPEATED, summary=self.id)
                if ending.is_final:
                    return ending
                await self.wait(seen, ending.again_s, ending.approval, pauses)

        self._ended = await shielded(ask())
        return self._ended

    async def _execute(
        self, activity: str, args: list[Any], result: type[T], policy: RetryPolicy, *, summary: str
    ) -> T:
        done: T = await workflow.execute_activity(
            activity, args=args, result_type=result, retry_policy=policy, summary=summary,
            start_to_close_timeout=timedelta(seconds=self._facts.call_s),
            heartbeat_timeout=timedelta(seconds=self._facts.heartbeat_s),
            # The body goes on and is recorded; the end of the run waits for it.
            cancellation_type=ActivityCancellationType.ABANDON,
        )  # fmt: skip
        return done

    # ---- Waiting

    @property
    def notices(self) -> int:
        """How often somebody was said to have decided something."""
        return self._notices

    async def wait(self, seen: int, again_s: float | None, approval: PendingApproval | None, pauses: Pauses) -> None:
        """Wait until somebody has decided something, or until it is time to look again.

        ``seen``: ``notices`` from before the request whose answer is to wait: what came since is not waited for.
        """
        if approval is not None:
            self._approvals[approval.id] = approval
            again_s = _left_s(approval)
        elif again_s is not None:
            again_s = pauses.next(again_s)
        if (approval is not None or again_s is None) and workflow.patched(LOOK_PATCH):
            again_s = pauses.look(again_s)
        try:
            timeout = None if again_s is None else timedelta(seconds=again_s)
            await workflow.wait_condition(lambda: self._notices > seen, timeout=timeout, timeout_summary=self.id)
        except TimeoutError:
            pass  # it is looked at again
        finally:
            if approval is not None:
                self._approvals.pop(approval.id, None)

    def look(self) -> None:
        """End the waits of this run: something was decided."""
        self._notices += 1

    def check_decision(self, decision: Decision) -> None:
        """Raise unless this is about a call that waits now, exactly as it was shown."""
        asked = self._approvals.get(decision.approval)
        if asked is None:
            raise ApplicationError(f"nothing waits for approval {decision.approval!r} in {self.id}", type="NotFound")
        if asked.digest != decision.digest:
            raise ApplicationError(
                f"approval {asked.id} is about another request: its digest is not the one that was given",
                type="ApprovalVoid",
            )
        if not decision.by:
            raise ApplicationError("a decision needs the name of who decides", type="UsageError")

    async def decide(self, decision: Decision) -> Decided:
        """Record a person's decision in the ledger, and go on."""
        decided = await self._execute(DECIDE, [self._run, decision], Decided, REPEATED, summary=decision.by)
        if decided.error is not None:
            raise ApplicationError(decided.error.message, decided, type=decided.error.type, non_retryable=True)
        self.look()
        return decided

    def listen(self) -> None:
        """Let people and workers reach the waits of this run."""
        workflow.set_update_handler(DECISION_UPDATE, _decided_by(self), validator=_checked_by(self))
        workflow.set_signal_handler(LOOK_SIGNAL, self.look)
        workflow.set_query_handler(APPROVALS_QUERY, _asked_of(self))


class Pauses:
    """Growing pauses between two looks at the same thing."""

    def __init__(self) -> None:
        self._factor, self._look_s = 1.0, LOOK_S

    def next(self, least_s: float) -> float:
        """Return the next pause."""
        pause = min(least_s * self._factor, max(least_s, AGAIN_S_MAX))
        self._factor *= PAUSE_FACTOR
        return pause

    def look(self, most_s: float | None) -> float:
        """Return for how long to wait for a person, at most ``most_s``: that somebody has decided may not reach the run."""
        pause, self._look_s = self._look_s, min(self._look_s * PAUSE_FACTOR, LOOK_S_MAX)
        return pause if most_s is None else min(pause, most_s)


async def shielded(work: Any) -> Any:
    """Finish ``work`` whatever is cancelled meanwhile; then raise the cancellation."""
    going = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not going.done():
        try:
            await asyncio.shield(going)
        except asyncio.CancelledError as stop:
            if going.cancelled():
                raise
            cancelled = stop
    if cancelled is not None:
        raise cancelled
    return going.result()


def application_error(outcome: Outcome) -> ApplicationError:
    """Return the error for a call that was not done, as Temporal records it."""
    error = outcome.error or Failure("RunEnded", outcome.text)
    return ApplicationError(error.message, outcome, type=error.type, non_retryable=True)


def _left_s(approval: PendingApproval) -> float | None:
    """Return the time until nobody can decide any more, and a second; None: it has no end."""
    if not approval.expires_at:
        return None
    return max(1.0, (datetime.fromisoformat(approval.expires_at) - workflow.now()).total_seconds() + 1.0)


# The handlers are functions: the types of their arguments tell the converter what to make of the payload.


def _decided_by(run: DurableRun) -> Callable[[Decision], Any]:
    async def decide(decision: Decision) -> Decided:
        return await run.decide(decision)

    return decide


def _checked_by(run: DurableRun) -> Callable[[Decision], None]:
    def check(decision: Decision) -> None:
        run.check_decision(decision)

    return check


def _asked_of(run: DurableRun) -> Callable[[], list[PendingApproval]]:
    def approvals() -> list[PendingApproval]:
        return run.approvals

    return approvals
