"""For agents: runs that this process drives and the service owns, call by call.

The run is the service's; this process holds a client lease, which it renews by itself while the block is open. See
``docs/explanation/ownership.md``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, Literal, NoReturn, Self, TypeVar

from amends import Answer, Approval, Call, Held, Report, RolledBack, RunBlocked, ToolCall, Waiting
from amends.client import people, records
from amends.client.exchange import AnyClient, ask, part, post, said
from amends.client.flows import Flow, Repeat, Repeated, Stop, awaited, blocking
from amends.client.problems import ServiceError, Unreachable, answer_error
from amends.errors import Busy, Error, LeaseLost, LedgerError, RunEnded, UsageError

T = TypeVar("T")
WHY_MAX: Final = 2_000
RENEWALS: Final = 3
"""How many renewals of a lease may be lost before it ends."""
ENDED: Final = ("committed", "rolled_back", "abandoned")


# ---- Opening


async def opened(client: AnyClient, id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Open the run of this id, or take it up again."""
    body = {name: value for name, value in options.items() if value is not None}
    if "tags" in body:
        body["tags"] = list(body["tags"])
    if "requires" in body:
        body["requires"] = [body["requires"]] if isinstance(body["requires"], str) else list(body["requires"])
    answered = await ask(client, "POST", "/v1/runs", body={"id": id, **body}, route=id)
    found: dict[str, Any] = answered.json()
    return found | {"resumed": answered.status_code == 200}  # 201: it is new


class AnyRun:
    """A run of the service, of either colour."""

    def __init__(self, client: AnyClient, facts: Mapping[str, Any], *, recover: str, is_child: bool = False) -> None:
        self._client, self._driver, self._recover = client, client._driver, recover
        self._is_child = is_child
        self.id: str = facts["id"]
        self.state: str = facts["state"]
        """Its state when the service last told it: at opening and at the end. ``report`` asks."""
        self.generation: int = facts["generation"]
        self.resumed: bool = facts["resumed"]
        """Whether it was known before."""
        self.input: Any = facts["input"]
        self.is_over: bool = facts["over"]
        """Whether it has ended: it answers from its record, and accepts no call."""
        self.client_lease: float = facts["client_lease"]
        """Seconds without a sign of this process after which the service lets the run go."""
        self.output: Any = None
        """Set it before the end: it is recorded with the commit."""
        self.note = ""
        """What the end of the block has to say."""
        self._renewing: Repeated | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} of {self._client.url}, {self.state}>"

    @property
    def _at(self) -> str:
        return f"/v1/runs/{part(self.id)}"

    def _ended(self, report: Report) -> None:
        self.state, self.is_over = report.state, report.state in ENDED


async def answer(
    run: AnyRun,
    tool: str,
    args: Mapping[str, Any] | None = None,
    *,
    tool_call_id: str | None = None,
    again: str | None = None,
    key: str | None = None,
) -> Answer:
    """Make the call that a model asked for and phrase the outcome for the model.

    ``tool_call_id``: the model's id of this request. ``again``: why this is a deliberate repeat of an earlier call.
    ``key``: the key of this call instead of the declared one.
    """
    body = {"tool": tool, "args": dict(args or {}), **said(tool_call_id=tool_call_id, again=again, key=key)}
    is_repeatable = again is None  # a deliberate repeat that is sent twice is two repeats
    return people.answer_of(await post(run._client, f"{run._at}/calls", body, is_repeatable=is_repeatable))


async def call(run: AnyRun, tool: str, /, **args: Any) -> Any:
    """Call a tool of the service and return its result; raise what ``answer`` tells a model in words."""
    made = await answer(run, tool, args)
    if made.error is not None:
        raise made.error
    return made.value


async def approval_for(
    run: AnyRun,
    tool: str,
    args: Mapping[str, Any] | None = None,
    *,
    tool_call_id: str | None = None,
    key: str | None = None,
) -> Approval | None:
    """Return the approval that this call would wait for, requesting it if needed; None if it needs none. Starts nothing."""
    body = {"tool": tool, "args": dict(args or {}), **said(tool_call_id=tool_call_id, key=key)}
    found = (await post(run._client, f"{run._at}/approval_for", body))["approval"]
    return None if found is None else records.approval_of(found)


async def answer_all(run: AnyRun, calls: Iterable[ToolCall], /) -> list[Answer]:
    """Make the calls of one turn of a model in parallel, a pivot last, and phrase each outcome for the model."""
    made = await post(run._client, f"{run._at}/turns", {"calls": [_turn_call(one) for one in calls]})
    return [people.answer_of(one) for one in made["answers"]]


def _turn_call(one: ToolCall) -> dict[str, Any]:
    if not isinstance(one.args, Mapping):
        try:
            args = json.loads(one.args or "{}")
        except ValueError:
            args = None
        if not isinstance(args, dict):
            raise UsageError(f"the arguments of {one.tool} are no JSON object", hint="answer the model so, and go on")
        return {"tool": one.tool, "args": args, **said(tool_call_id=one.tool_call_id)}
    return {"tool": one.tool, "args": dict(one.args), **said(tool_call_id=one.tool_call_id)}


async def execute(run: AnyRun, plan: Sequence[Any], /) -> list[Answer]:
    """Execute a model's plan, a list of ``{"tool", "args"}``; the calls of an inner list run in parallel."""
    made = await post(run._client, f"{run._at}/execute", {"plan": people.plain_plan(plan)})
    return [people.answer_of(one) for one in made["answers"]]


async def before_end(run: AnyRun) -> str:
    """Return what to tell a model that is about to stop: what is missing or has failed; empty if the run is complete."""
    text: str = (await post(run._client, f"{run._at}/before_end", {}))["text"]
    return text


async def commit(run: AnyRun) -> None:
    """Commit the run: its effects stay. Raises ``Held`` if a call waits for a person."""
    body = {} if run.output is None else {"output": run.output}
    answered = await ask(run._client, "POST", f"{run._at}/commit", body=body)
    run._ended(records.report_of(answered.json()))
    if answered.status_code == 202:
        raise await _held(run, answered.headers.get("location", ""))


async def _held(run: AnyRun, place: str) -> Held:
    """Return the error for a run that waits for a person."""
    found = await people.report(run._client, run.id)
    waiting = next((one for one in found.calls if one.state == "held" and one.reason != "order"), None)
    asked = None
    if "/v1/approvals/" in place:
        with suppress(Error):
            answered = await ask(run._client, "GET", f"/v1/approvals/{place.rpartition('/')[2]}")
            asked = records.approval_of(answered.json())
    reason = "approval" if waiting is None else waiting.reason or "approval"
    about = "a call" if waiting is None else waiting.tool
    return Held(
        f"{about} of run {run.id} waits for a person", call=waiting, reason=reason, approval=asked, run_id=run.id
    )


async def rollback(run: AnyRun, why: str) -> NoReturn:
    """Compensate everything, then raise ``RolledBack``."""
    report = await _roll_back(run, why)
    words = f"run {run.id} was rolled back: {why}"
    if report.state not in ENDED:
        words = f"run {run.id} is {report.state} ({why}); a worker continues it"
    raise RolledBack(words, report=report, run_id=run.id)


async def _roll_back(run: AnyRun, why: str) -> Report:
    report = records.report_of(await post(run._client, f"{run._at}/rollback", {"why": why[:WHY_MAX] or "no reason"}))
    run._ended(report)
    run.is_over = True  # also while it is not finished (202): the service goes on with it, and takes no more calls
    return report


async def suspend(run: AnyRun) -> Report:
    """Let the run go as it is: nothing staged starts, nothing is taken back, and it can be opened again."""
    report = records.report_of(await post(run._client, f"{run._at}/suspend", {}))
    run._ended(report)
    run.is_over = True
    return report


async def renew(run: AnyRun) -> float:
    """Tell the service that this process is alive; return for how many seconds. The block of a run does it by itself."""
    found = await post(run._client, f"{run._at}/renew", {})
    run.state = found["state"]
    lease_s: float = found["client_lease"]
    return lease_s


async def report(run: AnyRun) -> Report:
    """Return what the run did so far."""
    return await people.report(run._client, run.id)


# ---- Blocks


async def entered(run: AnyRun) -> None:
    """Begin to renew the client lease."""
    if run.is_over:
        return

    async def renewed() -> bool:
        try:
            await renew(run)
        except (Busy, Unreachable, ServiceError):
            return True  # tried again in time for the next renewal
        except Error:
            return False  # it has ended, or has another owner: the next request says so
        return True

    run._renewing = await Repeat(renewed, run.client_lease / RENEWALS, f"amends-lease-{run.id}")


async def left(run: AnyRun, error: BaseException | None) -> None:
    """Leave the run as the end of a block does: commit it, roll it back over an error, suspend it over ``Waiting``."""
    try:
        if not run.is_over:
            await _leave(run, error)
    finally:
        if run._renewing is not None:
            renewing, run._renewing = run._renewing, None
            await Stop(renewing)


async def _leave(run: AnyRun, error: BaseException | None) -> None:
    if error is None:
        await commit(run)
        return
    if isinstance(error, LedgerError | Unreachable | RunEnded):
        return  # nothing can be recorded from here: when the lease ends, recovery follows the run's policy
    is_asked = getattr(error, "asked", False) is True
    is_stopped = run._recover != "rollback" and not isinstance(error, Exception)
    if isinstance(error, Waiting) or is_asked or is_stopped:
        if run._is_child:
            return  # the block around it lets all of it go
        await _quietly(run, error, suspend(run))
        return
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    await _quietly(run, error, _roll_back(run, words))


async def _quietly(run: AnyRun, error: BaseException, ending: Flow[Report]) -> None:
    """End the run over an error, which is raised unchanged afterwards, with a note."""
    try:
        found = await ending
    except (LedgerError, ServiceError) as lost:
        note = f"run {run.id} could not be ended from here ({lost}); the service recovers it by its policy"
    except RunBlocked as blocked:
        found = await people.report(run._client, run.id)
        run._ended(found)
        if not any(one.kind == "pivot" and one.state == "succeeded" for one in found.calls):
            raise blocked from error
        note = f"run {run.id} has pivoted and was interrupted; open it again or finish it"
    except Error as refused:
        note = f"run {run.id} was not rolled back: {refused}"
    else:
        undone = sum(one.state == "compensated" for one in found.calls)
        calls = f", {undone} call{'' if undone == 1 else 's'} compensated" if found.state == "rolled_back" else ""
        note = f"run {run.id} {found.state.replace('_', ' ')}{calls}"
    run.note = f"amends: {note}"
    error.add_note(run.note)


# ---- Calls that this process makes itself


async def claimed(
    run: AnyRun, tool: str, args: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> tuple[dict[str, Any], float]:
    """Claim a call; return what the service answers, and when it was asked on this process's own clock."""
    body = {"tool": tool, "args": dict(args or {}), **said(**options)}
    asked_at = time.monotonic()
    answered = await ask(run._client, "POST", f"{run._at}/claims", body=body)
    data: dict[str, Any] = answered.json()
    if answered.status_code == 202:
        error = answer_error(data["error"], None)
        raise error if error is not None else await _held(run, answered.headers.get("location", ""))
    return data, asked_at


class AnyAttempt:
    """A call that this process makes itself, of either colour."""

    def __init__(self, run: AnyRun, tool: str, args: Mapping[str, Any], claim: Mapping[str, Any], at: float) -> None:
        self._run, self._client, self._driver = run, run._client, run._client._driver
        self._token: str | None = claim["token"]
        self.call = Call(
            run.id, tool, "", dict(args), id=claim["call"], key=claim["key"], attempt=claim["attempt"],
            state=claim["state"],
        )  # fmt: skip
        """The call: ``key`` is the idempotency key for the provider."""
        self.replayed: bool = claim["replayed"]
        """Whether it was answered from the record: make nothing, ``result`` has it."""
        self.result: Any = claim["result"]
        self.lease: float = claim["lease"] or 0.0
        """The work lease in seconds: without a report or a renewal the call is in doubt after it."""
        self.state: str = claim["state"]
        self._until = at + self.lease
        self._open = not self.replayed
        self._spent: dict[str, Decimal] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.call.tool!r}, {'open' if self._open else 'ended'}>"

    @property
    def left_s(self) -> float:
        """How many seconds of the work lease are left, counted from before it was asked for; do nothing at zero."""
        return max(0.0, self._until - time.monotonic())

    def spent(self, amount: float | Decimal, unit: str = "usd") -> None:
        """Note what this attempt really cost; several amounts add up. Its report tells the service."""
        if not self._open:
            raise UsageError(f"the attempt of {self.call.tool} has already ended")
        self._spent[unit] = self._spent.get(unit, Decimal(0)) + Decimal(str(amount))

    @property
    def _at(self) -> str:
        return f"/v1/claims/{part(self.call.id)}"


async def succeed(attempt: AnyAttempt, result: object = None) -> None:
    """Report that the call happened, with this result."""
    await _report(attempt, "succeed", {"result": result})
    attempt.result = result


async def fail(attempt: AnyAttempt, error: BaseException | str) -> None:
    """Report that the call certainly had no effect."""
    await _report(attempt, "fail", {"error": _words(error), "no_effect": True})


async def raised(attempt: AnyAttempt, error: BaseException | str) -> None:
    """Report that the call ended with this error: it is judged as if the tool's body had raised it."""
    await _report(attempt, "fail", {"error": _words(error)})


async def doubt(attempt: AnyAttempt, why: str) -> None:
    """Report that nobody knows whether the call happened, and why."""
    await _report(attempt, "fail", {"error": _words(why), "doubt": True})


async def _report(attempt: AnyAttempt, how: Literal["succeed", "fail"], body: Mapping[str, Any]) -> None:
    if not attempt._open:
        raise UsageError(f"the attempt of {attempt.call.tool} has already ended")
    said: dict[str, Any] = {"token": attempt._token, **body}
    if attempt._spent:
        said["spent"] = {unit: float(amount) for unit, amount in attempt._spent.items()}
    done = await post(attempt._client, f"{attempt._at}/{how}", said, route=attempt.call.run_id)
    attempt.state = done["state"]
    attempt._open = False


def _words(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error[:WHY_MAX] or "no reason"
    return (f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[:WHY_MAX]


async def renew_claim(attempt: AnyAttempt) -> float:
    """Extend the work lease by its length from now; return the seconds.

    Raises ``LeaseLost`` if it is over: then stop, if you can, and report what happened all the same.
    """
    if not attempt._open:
        raise LeaseLost(f"the attempt of {attempt.call.tool} has ended")
    asked_at = time.monotonic()
    found = await post(attempt._client, f"{attempt._at}/renew", {"token": attempt._token}, route=attempt.call.run_id)
    attempt.lease = found["lease"]
    attempt._until = asked_at + attempt.lease
    return attempt.lease


async def attempt_left(attempt: AnyAttempt, error: BaseException | None) -> None:
    """End an attempt whose block is left without a report."""
    if not attempt._open:
        return
    if isinstance(error, Exception):
        await raised(attempt, error)
    else:
        await doubt(attempt, "its block was left without a report")


# ---- The two colours


class Attempt(AnyAttempt):
    """A call that this process makes itself. As a block it is safe: one that reports nothing leaves it in doubt."""

    succeed = blocking(succeed)
    fail = blocking(fail)
    raised = blocking(raised)
    doubt = blocking(doubt)
    renew = blocking(renew_claim)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._driver.run(attempt_left(self, error))


class AsyncAttempt(AnyAttempt):
    """``Attempt`` for an event loop."""

    succeed = awaited(succeed)
    fail = awaited(fail)
    raised = awaited(raised)
    doubt = awaited(doubt)
    renew = awaited(renew_claim)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await shielded(self._driver.run(attempt_left(self, error)))


async def begun(
    run: Run,
    tool: str,
    args: Mapping[str, Any] | None = None,
    *,
    lease: float = 60.0,
    key: str | None = None,
    kind: Literal["pivot", "read"] | None = None,
    cost: float | None = None,
) -> Attempt:
    """Claim a call, to make it in this process: its key, or the recorded answer (``replayed``).

    ``lease``: seconds without a report or a renewal until it is in doubt. ``key``: the key of this call instead of the
    declared one. ``kind``: of a tool that the service has not declared. ``cost``: what it will cost, in usd.
    """
    options = {"lease": float(lease), "key": key, "kind": kind, "cost": cost}
    return Attempt(run, tool, args or {}, *await claimed(run, tool, args, options))


async def begun_async(
    run: AsyncRun,
    tool: str,
    args: Mapping[str, Any] | None = None,
    *,
    lease: float = 60.0,
    key: str | None = None,
    kind: Literal["pivot", "read"] | None = None,
    cost: float | None = None,
) -> AsyncAttempt:
    """Claim a call, to make it in this process: its key, or the recorded answer (``replayed``).

    ``lease``: seconds without a report or a renewal until it is in doubt. ``key``: the key of this call instead of the
    declared one. ``kind``: of a tool that the service has not declared. ``cost``: what it will cost, in usd.
    """
    options = {"lease": float(lease), "key": key, "kind": kind, "cost": cost}
    return AsyncAttempt(run, tool, args or {}, *await claimed(run, tool, args, options))


async def opened_child(run: AnyRun, id: str, input: object = None) -> Any:
    """Open a run inside this one, in its colour."""
    answered = await ask(run._client, "POST", f"{run._at}/children", body={"id": id, **said(input=input)})
    facts = answered.json() | {"resumed": answered.status_code == 200}
    return type(run)(run._client, facts, recover=run._recover, is_child=True)


class Run(AnyRun):
    """One task of an agent, as one saga that the service owns. ``client.run`` and ``client.open`` return it."""

    def child(self, id: str, *, input: object = None) -> ChildBlock:
        """Open a run inside this one as a block: leaving it commits, an exception rolls it back. It is rolled back with this.

        The id is needed, because it is what makes a lost answer harmless: the same id finds the same child.
        """
        return ChildBlock(self, id, input)

    def open_child(self, id: str, *, input: object = None) -> Run:
        """Open a run inside this one without a block: end it with ``commit`` or ``rollback`` before this one ends."""
        made: Run = self._driver.run(opened_child(self, id, input))
        return made

    answer = blocking(answer)
    call = blocking(call)
    approval_for = blocking(approval_for)
    answer_all = blocking(answer_all)
    execute = blocking(execute)
    before_end = blocking(before_end)
    begin = blocking(begun)
    commit = blocking(commit)
    rollback = blocking(rollback)
    suspend = blocking(suspend)
    renew = blocking(renew)
    report = blocking(report)


class AsyncRun(AnyRun):
    """``Run`` for an event loop."""

    def child(self, id: str, *, input: object = None) -> AsyncChildBlock:
        """Open a run inside this one as a block: leaving it commits, an exception rolls it back. It is rolled back with this.

        The id is needed, because it is what makes a lost answer harmless: the same id finds the same child.
        """
        return AsyncChildBlock(self, id, input)

    async def open_child(self, id: str, *, input: object = None) -> AsyncRun:
        """Open a run inside this one without a block: end it with ``commit`` or ``rollback`` before this one ends."""
        made: AsyncRun = await self._driver.run(opened_child(self, id, input))
        return made

    answer = awaited(answer)
    call = awaited(call)
    approval_for = awaited(approval_for)
    answer_all = awaited(answer_all)
    execute = awaited(execute)
    before_end = awaited(before_end)
    begin = awaited(begun_async)
    commit = awaited(commit)
    rollback = awaited(rollback)
    suspend = awaited(suspend)
    renew = awaited(renew)
    report = awaited(report)


async def open(client: AnyClient, id: str, options: Mapping[str, Any]) -> Any:
    """Open a run in the colour of its client."""
    colour = AsyncRun if client._driver.is_async else Run
    return colour(client, await opened(client, id, options), recover=str(options.get("recover", "rollback")))


class Block:
    """``with client.run(...)``: opens the run on entry, so that calling ``run`` alone does nothing."""

    def __init__(self, client: AnyClient, id: str, options: Mapping[str, Any]) -> None:
        self._client, self._driver, self._id, self._options = client, client._driver, id, options
        self._run: Any = None

    def __enter__(self) -> Run:
        self._run = self._driver.run(_enter(self._client, self._id, self._options))
        return self._run  # type: ignore[no-any-return]

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._driver.run(left(self._run, error))


class AsyncBlock(Block):
    """``async with client.run(...)``; its end is shielded from cancellation."""

    async def __aenter__(self) -> AsyncRun:
        self._run = await self._driver.run(_enter(self._client, self._id, self._options))
        return self._run  # type: ignore[no-any-return]

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await shielded(self._driver.run(left(self._run, error)))


class ChildBlock:
    """``with run.child(...)``: opens the child on entry; its client lease is that of the run around it."""

    def __init__(self, run: AnyRun, id: str, input: object) -> None:
        self._around, self._driver, self._id, self._input = run, run._driver, id, input
        self._run: Any = None

    def __enter__(self) -> Run:
        self._run = self._driver.run(opened_child(self._around, self._id, self._input))
        return self._run  # type: ignore[no-any-return]

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._driver.run(left(self._run, error))


class AsyncChildBlock(ChildBlock):
    """``async with run.child(...)``; its end is shielded from cancellation."""

    async def __aenter__(self) -> AsyncRun:
        self._run = await self._driver.run(opened_child(self._around, self._id, self._input))
        return self._run  # type: ignore[no-any-return]

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await shielded(self._driver.run(left(self._run, error)))


async def _enter(client: AnyClient, id: str, options: Mapping[str, Any]) -> AnyRun:
    run: AnyRun = await open(client, id, options)
    await entered(run)
    return run


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Finish ``work`` even if the caller is cancelled meanwhile; raise the cancellation afterwards."""
    going = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not going.done():
        try:
            await asyncio.shield(going)
        except asyncio.CancelledError as stop:
            if going.cancelled():
                break
            cancelled = stop
        except BaseException:
            break
    if cancelled is not None:
        with suppress(BaseException):
            going.result()
        raise cancelled
    return going.result()
