"""A recorded run in both colours: what a program is given instead of a live run. It starts and writes nothing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NoReturn, Self, TypeVar

from amends.budgets import Costs
from amends.engine import agents, ending
from amends.engine.call import Done, guarded_call
from amends.engine.session import Ask, Session, call_of
from amends.host import runs
from amends.host.host import Host
from amends.host.requests import direct_ask
from amends.ledger.flow import Flow, Op, finish, run_flow_async
from amends.ledger.rows import RunRow
from amends.ledger.world import Flight, RunTogether, Sleep
from amends.model import Answer, Staged, ToolCall
from amends.replay import driver
from amends.replay.answers import Replay, Stopped, next_answer
from amends.replay.driver import born_in, denied
from amends.report import Report
from amends.run import AsyncAttempt, AsyncRun, Attempt, OpenAttempt, OpenRun, Run, awaited, blocking
from amends.run import answer as answer_live
from amends.run import answer_all as answer_all_live
from amends.states import RunState
from amends.tools.scope import Options, enter_block, leave_scope, scope_here
from amends.tools.spec import Declaration, KeyRule

T = TypeVar("T")


@contextmanager
def opened(host: Host, replay: Replay) -> Iterator[Run]:
    """Open a block with the recorded run: its calls are answered from the record, and it reaches nothing else."""
    run = ReplayRun(host, replay, driver.session_of(host, replay), replay.record.run)
    home = threading.current_thread()
    replay.alone = lambda: threading.current_thread() is home and not born_in(replay)
    with _in_block(run, replay):
        yield run


@asynccontextmanager
async def opened_async(host: Host, replay: Replay) -> AsyncIterator[AsyncRun]:
    """Open a block with the recorded run on an event loop; see ``opened``."""
    run = AsyncReplayRun(host, replay, driver.session_of(host, replay), replay.record.run)
    replay.alone = lambda: len(asyncio.all_tasks()) == 1
    with _in_block(run, replay):
        yield run


@contextmanager
def _in_block(run: _RecordedRun, replay: Replay) -> Iterator[None]:
    scope = enter_block(run)
    try:
        with denied(replay):
            yield
    except Stopped:
        pass
    except (Exception, SystemExit) as error:  # a program that exits because of an error has not ended well
        replay.end_by(error)
        raise
    finally:
        leave_scope(scope)
        run._end_threads()
    replay.end()


# ---- What both colours share


class _RecordedRun(OpenRun):
    """A run whose ledger is its record. It has the names of a live run, so a program need not know which it has."""

    _is_replay = True

    def __init__(self, host: Host, replay: Replay, session: Session, row: RunRow) -> None:
        super().__init__(host, None, session, row, over=False)  # no driver: it drives its flows itself
        self._replay = replay
        self._output = self._output_was = None
        self._output_gone = None

    @property
    def state(self) -> RunState:
        """The run's state at the point that its program has reached."""
        return driver.state_now(self._replay, self._session.uid)  # type: ignore[return-value]

    @property
    def awaits_opening(self) -> bool:
        """Whether the program has not opened a block with this run yet."""
        return not self._session.above and not self._replay.around

    def opened_again(self, id: str | None, input: object, *, block: bool) -> Self | None:
        """Return this run if its program opens it now; None if the program has opened it before."""
        is_mine = driver.open_again(self._host, self._replay, self._session, id, input, block=block)
        return self if is_mine else None

    def report_named(self, run_id: str) -> Report | None:
        """Return what ``rt.report`` says of this run; None if ``run_id`` is another run."""
        return driver.report_named(self._host, self._replay, run_id)

    def say_checks(self, options: Mapping[str, Any]) -> None:
        """Take the functions of ``requires=``, with which the program opens this run again: the record has their names."""
        self._session.closing.checks = self._host.completion(options)[1]

    # ---- steps

    async def _end_text(self) -> str:
        return ending.end_text(self._session, driver.tree_now(self._replay))

    async def _drive(self, flow: Flow[T]) -> T:
        return await run_flow_async(flow, self._answer_op)

    async def _answer_op(self, op: Op[Any]) -> Any:
        if isinstance(op, Sleep):
            return await self._pause(op.seconds)
        if isinstance(op, RunTogether):
            return await self._together(op.flows)
        return driver.refuse(self._replay, op)

    async def _together(self, flows: Sequence[Flow[Any]]) -> list[Any]:
        raise NotImplementedError

    async def _watched(self, flow: Flow[T], flights: Sequence[Flight]) -> T:
        return await self._drive(flow)

    async def _perform_joined(self, declared: Declaration, options: Options, args: Any, kwargs: Any) -> Done:
        return await self._perform(direct_ask(self._host, self._session, declared, options, args, kwargs))

    def _at_once(self, declared: Declaration, options: Options, args: Any, kwargs: Any) -> tuple[Any] | None:
        """Return the result of a request that is due now and has nothing unusual; None: ``_perform`` answers it."""
        compiled, scope = self._host.compiled_for(declared), scope_here()
        if compiled is None or options.again is not None or self._pid != os.getpid():
            return None
        if scope is not None and (scope.call is not None or scope.caller is not self):
            return None
        try:
            bound = compiled.bind(*args, **kwargs)
        except Exception:  # the general path raises what is wrong
            return None
        return None if bound is None else next_answer(self._replay, self._session, compiled, bound)

    def _value(self, done: Done) -> Any:
        spec = self._session.spec(done.row.tool)
        if spec is None or not spec.is_staging:
            return done.value
        host, replay, call_id = self._host, self._replay, done.row.id
        return Staged(call_of(done.row, spec), lambda: driver.staged_now(host, replay, call_id))

    async def _check_usable(self) -> None:
        runs.refuse_forked(self._pid, self.id)

    async def _begin(
        self, tool: str, args: Mapping[str, Any], key: Any, kind: str | None, cost: Costs | None, lease: float | None
    ) -> tuple[Ask, Done, None]:
        ask = runs.hand_ask(self._host, self._session, tool, args, key=key, kind=kind, cost=cost, lease=lease)
        done = await self._perform(ask)
        return ask, Done(done.row, done.value, replayed=True), None

    async def _open_child(self, id: str | None, input: object) -> Self:
        row, session = driver.child_row(self._replay, self._session, id, input)
        return type(self)(self._host, self._replay, session, row)

    async def _allow(self, ask: Ask) -> None:
        """Ask for what the record has: whether the request had to be allowed was decided then."""
        request = agents.request_to(ask)
        entry = self._replay.find(self._session, request)
        if entry is not None and entry.needed:
            await self._drive(guarded_call(self._session, request))

    async def _wait_for_person(self) -> None:
        """Do nothing: the record says how the agent ended."""

    async def _release(self, *, is_quiet: bool | None = None) -> None:
        self._replay.over = True


async def answer(
    run: _RecordedRun,
    tool: str,
    args: Mapping[str, Any] | str,
    *,
    handler: Callable[..., object] | None = None,
    tool_call_id: str | None = None,
    again: str | None = None,
    key: KeyRule | None = None,
    schema: Mapping[str, Any] | None = None,
    agent: bool = False,
    apart: bool = False,
) -> Answer:
    """Return what the model was told then. Raise ``Diverged``, which no model is told."""
    told = await answer_live(
        run,
        tool,
        args,
        handler=handler,
        tool_call_id=tool_call_id,
        again=again,
        key=key,
        schema=schema,
        agent=agent,
        apart=apart,
    )
    if run._replay.broken is not None:
        raise run._replay.broken
    return told


async def answer_all(run: _RecordedRun, calls: Iterable[ToolCall], /) -> list[Answer]:
    """Return what the model was told of its turn then. Raise ``Diverged``, which no model is told."""
    told = await answer_all_live(run, calls)
    if run._replay.broken is not None:
        raise run._replay.broken
    return told


async def commit(run: _RecordedRun) -> None:
    """Note that the program has reached its end."""
    run._end_threads()
    run._replay.over = True


async def rollback(run: _RecordedRun, why: str) -> NoReturn:
    """Raise ``RolledBack``, as the recorded run did."""
    raise driver.taken_back(run._host, run._replay, run._session, why)


async def report(run: _RecordedRun) -> Report:
    """Return what this run did so far."""
    return driver.report_now(run._host, run._replay)


async def succeed(attempt: OpenAttempt, result: object = None) -> None:
    """Do nothing: the record says how the attempt ended."""


async def fail(attempt: OpenAttempt, error: BaseException | str) -> None:
    """Do nothing: the record says how the attempt ended."""


async def raised(attempt: OpenAttempt, error: Exception) -> None:
    """Do nothing: the record says how the attempt ended."""


async def doubt(attempt: OpenAttempt, why: str) -> None:
    """Do nothing: the record says how the attempt ended."""


async def renew(attempt: OpenAttempt) -> float:
    """Return the seconds of the work lease: nobody performs anything."""
    return attempt._ask.spec.remote


# ---- Blocking


class ReplayRun(_RecordedRun, Run):
    """A recorded run in the place of a ``Run``."""

    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a tool that is called inside this run's context."""
        found = self._at_once(declared, options, args, kwargs)
        if found is not None:
            return found[0]
        return finish(self._result(direct_ask(self._host, self._session, declared, options, args, kwargs)))

    answer = blocking(answer)
    answer_all = blocking(answer_all)

    def begin(
        self,
        tool: str,
        args: Mapping[str, Any],
        *,
        key: Any = None,
        kind: str | None = None,
        cost: Costs | None = None,
        lease: float | None = None,
    ) -> Attempt:
        """Return the attempt as it ended: ``replayed``, with its result. Raise what it failed with."""
        return ReplayedAttempt(self, *finish(self._begin(tool, args, key, kind, cost, lease)))

    commit = blocking(commit)
    rollback = blocking(rollback)
    report = blocking(report)

    async def _together(self, flows: Sequence[Flow[Any]]) -> list[Any]:
        return driver.in_turn(self._replay, flows, lambda op: finish(self._answer_op(op)))

    async def _leave(self, error: BaseException | None) -> None:
        self._end_threads(wait=error is None or isinstance(error, Exception))
        driver.left(self._host, self._replay, self._session, error)


class ReplayedAttempt(Attempt):
    """An attempt of the record. What its program says of it again changes nothing."""

    succeed = blocking(succeed)
    fail = blocking(fail)
    raised = blocking(raised)
    doubt = blocking(doubt)
    renew = blocking(renew)


# ---- On an event loop


class AsyncReplayRun(_RecordedRun, AsyncRun):
    """A recorded run in the place of an ``AsyncRun``."""

    async def direct(
        self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer a tool that is called inside this run's context."""
        found = self._at_once(declared, options, args, kwargs)
        if found is not None:
            return found[0]
        return await self._result(direct_ask(self._host, self._session, declared, options, args, kwargs))

    answer = awaited(answer)
    answer_all = awaited(answer_all)

    async def begin(
        self,
        tool: str,
        args: Mapping[str, Any],
        *,
        key: Any = None,
        kind: str | None = None,
        cost: Costs | None = None,
        lease: float | None = None,
    ) -> AsyncAttempt:
        """Return the attempt as it ended: ``replayed``, with its result. Raise what it failed with."""
        return AsyncReplayedAttempt(self, *await self._begin(tool, args, key, kind, cost, lease))

    commit = awaited(commit)
    rollback = awaited(rollback)
    report = awaited(report)

    async def _together(self, flows: Sequence[Flow[Any]]) -> list[Any]:
        return await asyncio.gather(*(self._drive(flow) for flow in flows), return_exceptions=True)

    async def _leave(self, error: BaseException | None) -> None:
        mistake = await self._not_awaited() if error is None and self._pending else None
        driver.left(self._host, self._replay, self._session, mistake or error)
        if mistake is not None:
            raise mistake

    async def _let_others_end(self) -> None:
        """Do nothing: every call is answered at once, so none is under way."""


class AsyncReplayedAttempt(AsyncAttempt):
    """An attempt of the record. What its program says of it again changes nothing."""

    succeed = awaited(succeed)
    fail = awaited(fail)
    raised = awaited(raised)
    doubt = awaited(doubt)
    renew = awaited(renew)
