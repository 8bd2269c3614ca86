"""A recorded run, blocking: what a program is given instead of a live one. Nothing it asks for is done."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NoReturn, TypeVar

from amends.engine.call import Done
from amends.engine.session import Session, call_of
from amends.host import runs
from amends.host.host import Host
from amends.host.requests import direct_ask
from amends.ledger.flow import Flow, Op, run_flow
from amends.ledger.rows import RunRow
from amends.ledger.world import Flight, Sleep, Together
from amends.model import Answer, Costs, Staged, ToolCall
from amends.replay import driver
from amends.replay.answers import Replay, Stopped
from amends.replay.driver import born_in, denied
from amends.report import Report
from amends.run import AsyncAttempt, AsyncRun, Attempt, Run
from amends.states import RunState
from amends.tools.spec import Declaration
from amends.tools.tool import Options, enter_block, leave_scope

T = TypeVar("T")


@contextmanager
def opened(host: Host, replay: Replay) -> Iterator[Run]:
    """The recorded run in its block: what the program asks for is answered, and it reaches nothing else."""
    session = driver.session_of(host, replay)
    run = ReplayRun(host, replay, session, replay.record.run)
    home = threading.current_thread()
    replay.alone = lambda: threading.current_thread() is home and not born_in(replay)
    scope = enter_block(run)
    try:
        with denied(replay):
            yield run
    except Stopped:
        pass
    except (Exception, SystemExit) as error:  # a program that exits over it is no reason to say that all is well
        replay.end_by(error)
        raise
    finally:
        leave_scope(scope)
        run._shut()
    replay.end()


class ReplayRun(Run):
    """A run whose ledger is its record. The same names as ``Run``; whoever has one need not know."""

    _is_replay = True

    def __init__(self, host: Host, replay: Replay, session: Session, row: RunRow) -> None:
        super().__init__(host, None, session, row, over=False)  # type: ignore[arg-type]  # it drives its flows itself
        self._replay = replay
        self._output = self._output_was = None
        self._output_gone = None

    @property
    def state(self) -> RunState:
        """The run's state as far as its program has come."""
        return driver.state_now(self._replay, self._session.uid)  # type: ignore[return-value]

    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a tool called inside this run's context does; use ``call``."""
        return self._value(self._do(direct_ask(self._host, self._session, declared, options, args, kwargs)))

    def answer(
        self,
        tool: str,
        args: Mapping[str, Any] | str,
        *,
        handler: Callable[..., object] | None = None,
        tool_call_id: str | None = None,
        again: str | None = None,
    ) -> Answer:
        """What a model was told then; raises ``Diverged``, which no model is told."""
        told = super().answer(tool, args, handler=handler, tool_call_id=tool_call_id, again=again)
        if self._replay.broken is not None:
            raise self._replay.broken
        return told

    def answer_all(self, calls: Iterable[ToolCall], /) -> list[Answer]:
        """What a model was told of its turn then; raises ``Diverged``, which no model is told."""
        told = super().answer_all(calls)
        if self._replay.broken is not None:
            raise self._replay.broken
        return told

    def begin(
        self,
        tool: str,
        args: Mapping[str, Any],
        *,
        key: Any = None,
        kind: str | None = None,
        cost: Costs | None = None,
    ) -> Attempt:
        """The attempt as it ended: ``replayed``, with its result; what it failed with is raised here."""
        ask = runs.hand_ask(self._host, self._session, tool, args, key=key, kind=kind, cost=cost)
        done = self._do(ask)
        return ReplayedAttempt(self, ask, Done(done.row, done.value, replayed=True))

    def commit(self) -> None:
        """The program has come to its end."""
        self._shut()
        self._replay.over = True

    def rollback(self, why: str) -> NoReturn:
        """Raise ``RolledBack``, as then."""
        raise driver.taken_back(self._host, self._replay, self._session, why)

    def report(self) -> Report:
        """What this run did so far."""
        return driver.report_now(self._host, self._replay)

    @property
    def awaits_opening(self) -> bool:
        """Whether no block of the program's is around."""
        return not self._session.above and not self._replay.around

    def opened_again(self, id: str | None, input: object, *, block: bool) -> ReplayRun | None:
        """This run, where its program opens it itself; None: it has done so before."""
        is_mine = driver.open_again(self._host, self._replay, self._session, id, input, block=block)
        return self if is_mine else None

    def report_named(self, run_id: str) -> Report | None:
        """What ``rt.report`` says of this run; None: it is about another one."""
        return driver.report_named(self._host, self._replay, run_id)

    # ---- inside ---------------------------------------------------------------------------

    def _flow(self, flow: Flow[T]) -> T:
        return run_flow(flow, self._perform)

    def _perform(self, op: Op[Any]) -> Any:
        if isinstance(op, Sleep):
            time.sleep(op.seconds)
            return None
        if isinstance(op, Together):
            return driver.in_turn(self._replay, op.flows, self._perform)
        return driver.refuse(self._replay, op)

    def _watched(self, flow: Flow[T], flights: Sequence[Flight]) -> T:
        return self._flow(flow)

    def _value(self, done: Done) -> Any:
        spec = self._session.spec(done.row.tool)
        if spec is None or not spec.is_staging:
            return done.value
        host, replay, call_id = self._host, self._replay, done.row.id
        return Staged(call_of(done.row, spec), lambda: driver.staged_now(host, replay, call_id))

    def _check_here(self) -> None:
        runs.refuse_forked(self._pid, self.id)

    def _open_child(self, id: str | None, input: object) -> Run:
        row, session = driver.child_row(self._replay, self._session, id, input)
        return ReplayRun(self._host, self._replay, session, row)

    def _leave(self, error: BaseException | None) -> None:
        self._shut(wait=error is None or isinstance(error, Exception))
        driver.left(self._replay, self._session, error)

    def _shut(self, *, wait: bool = True) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=wait)

    def _release(self) -> None:
        self._replay.over = True


class ReplayedAttempt(Attempt):
    """An attempt of the record. What its program says of it again is taken as said."""

    def succeed(self, result: object = None) -> None:
        """It is recorded how it ended."""

    def fail(self, error: BaseException | str) -> None:
        """It is recorded how it ended."""


# ---- A recorded run on an event loop: the same names as ``replayrun``, awaited


@asynccontextmanager
async def opened_async(host: Host, replay: Replay) -> AsyncIterator[AsyncRun]:
    """The recorded run in its block: what the program asks for is answered, and it reaches nothing else."""
    session = driver.session_of(host, replay)
    run = AsyncReplayRun(host, replay, session, replay.record.run)
    replay.alone = lambda: len(asyncio.all_tasks()) == 1
    scope = enter_block(run)
    try:
        with denied(replay):
            yield run
    except Stopped:
        pass
    except (Exception, SystemExit) as error:  # a program that exits over it is no reason to say that all is well
        replay.end_by(error)
        raise
    finally:
        leave_scope(scope)
    replay.end()


class AsyncReplayRun(AsyncRun):
    """A run whose ledger is its record. The same names as ``AsyncRun``; whoever has one need not know."""

    _is_replay = True

    def __init__(self, host: Host, replay: Replay, session: Session, row: RunRow) -> None:
        super().__init__(host, None, session, row, over=False)  # type: ignore[arg-type]  # it drives its flows itself
        self._replay = replay
        self._output = self._output_was = None
        self._output_gone = None

    @property
    def state(self) -> RunState:
        """The run's state as far as its program has come."""
        return driver.state_now(self._replay, self._session.uid)  # type: ignore[return-value]

    async def direct(
        self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a tool called inside this run's context does; use ``call``."""
        return self._value(await self._do(direct_ask(self._host, self._session, declared, options, args, kwargs)))

    async def answer(
        self,
        tool: str,
        args: Mapping[str, Any] | str,
        *,
        handler: Callable[..., object] | None = None,
        tool_call_id: str | None = None,
        again: str | None = None,
    ) -> Answer:
        """What a model was told then; raises ``Diverged``, which no model is told."""
        told = await super().answer(tool, args, handler=handler, tool_call_id=tool_call_id, again=again)
        if self._replay.broken is not None:
            raise self._replay.broken
        return told

    async def answer_all(self, calls: Iterable[ToolCall], /) -> list[Answer]:
        """What a model was told of its turn then; raises ``Diverged``, which no model is told."""
        told = await super().answer_all(calls)
        if self._replay.broken is not None:
            raise self._replay.broken
        return told

    async def begin(
        self,
        tool: str,
        args: Mapping[str, Any],
        *,
        key: Any = None,
        kind: str | None = None,
        cost: Costs | None = None,
    ) -> AsyncAttempt:
        """The attempt as it ended: ``replayed``, with its result; what it failed with is raised here."""
        ask = runs.hand_ask(self._host, self._session, tool, args, key=key, kind=kind, cost=cost)
        done = await self._do(ask)
        return AsyncReplayedAttempt(self, ask, Done(done.row, done.value, replayed=True))

    async def commit(self) -> None:
        """The program has come to its end."""
        self._replay.over = True

    async def rollback(self, why: str) -> NoReturn:
        """Raise ``RolledBack``, as then."""
        raise driver.taken_back(self._host, self._replay, self._session, why)

    async def report(self) -> Report:
        """What this run did so far."""
        return driver.report_now(self._host, self._replay)

    @property
    def awaits_opening(self) -> bool:
        """Whether no block of the program's is around."""
        return not self._session.above and not self._replay.around

    def opened_again(self, id: str | None, input: object, *, block: bool) -> AsyncReplayRun | None:
        """This run, where its program opens it itself; None: it has done so before."""
        is_mine = driver.open_again(self._host, self._replay, self._session, id, input, block=block)
        return self if is_mine else None

    def report_named(self, run_id: str) -> Report | None:
        """What ``rt.report`` says of this run; None: it is about another one."""
        return driver.report_named(self._host, self._replay, run_id)

    # ---- inside ---------------------------------------------------------------------------

    async def _flow(self, flow: Flow[T]) -> T:
        try:
            op = flow.send(None)
            while True:
                try:
                    answer = await self._perform(op)
                except Exception as error:
                    op = flow.throw(error)
                else:
                    op = flow.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            flow.close()

    async def _perform(self, op: Op[Any]) -> Any:
        if isinstance(op, Sleep):
            return await asyncio.sleep(op.seconds)
        if isinstance(op, Together):
            return await asyncio.gather(*(self._flow(flow) for flow in op.flows), return_exceptions=True)
        return driver.refuse(self._replay, op)

    async def _watched(self, flow: Flow[T], flights: Sequence[Flight]) -> T:
        return await self._flow(flow)

    def _value(self, done: Done) -> Any:
        spec = self._session.spec(done.row.tool)
        if spec is None or not spec.is_staging:
            return done.value
        host, replay, call_id = self._host, self._replay, done.row.id
        return Staged(call_of(done.row, spec), lambda: driver.staged_now(host, replay, call_id))

    async def _check_here(self) -> None:
        runs.refuse_forked(self._pid, self.id)

    async def _open_child(self, id: str | None, input: object) -> AsyncRun:
        row, session = driver.child_row(self._replay, self._session, id, input)
        return AsyncReplayRun(self._host, self._replay, session, row)

    async def _refuse_waiting(self, *, but: object = None) -> None:
        """No transaction of the caller's is open: nothing rides in one here."""

    async def _leave(self, error: BaseException | None) -> None:
        mistake = await self._not_awaited() if error is None and self._pending else None
        driver.left(self._replay, self._session, mistake or error)
        if mistake is not None:
            raise mistake

    async def _let_others_end(self) -> None:
        """Nothing is under way: what is asked for is answered at once."""

    async def _given_up(self, *, is_quiet: bool | None = None) -> None:
        self._replay.over = True


class AsyncReplayedAttempt(AsyncAttempt):
    """An attempt of the record. What its program says of it again is taken as said."""

    async def succeed(self, result: object = None) -> None:
        """It is recorded how it ended."""

    async def fail(self, error: BaseException | str) -> None:
        """It is recorded how it ended."""
