"""A recorded run on an event loop: the same names as ``replayrun``, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

from amends import people, replaying
from amends.aiorun import AsyncRun
from amends.attempts import AsyncAttempt
from amends.budget import Costs
from amends.denying import denied
from amends.engine.call import Done
from amends.engine.replay import Replay, Stopped
from amends.engine.session import Session, call_of
from amends.flow import Flow, Op
from amends.hub import Hub
from amends.model import Answer, Staged, ToolCall
from amends.ops import Flight, Sleep, Together
from amends.report import Report
from amends.requesting import direct_ask
from amends.rows import RunRow
from amends.states import RunState
from amends.tool import Declaration, Options, enter_block, leave_scope

T = TypeVar("T")


@asynccontextmanager
async def opened(hub: Hub, replay: Replay) -> AsyncIterator[AsyncRun]:
    """The recorded run in its block: what the program asks for is answered, and it reaches nothing else."""
    session = replaying.session_of(hub, replay)
    run = AsyncReplayRun(hub, replay, session, replay.record.run)
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

    def __init__(self, hub: Hub, replay: Replay, session: Session, row: RunRow) -> None:
        super().__init__(hub, None, session, row, over=False)  # type: ignore[arg-type]  # it drives its flows itself
        self._replay = replay
        self._output = self._output_was = None
        self._output_gone = None

    @property
    def state(self) -> RunState:
        """The run's state as far as its program has come."""
        return replaying.state_now(self._replay, self._session.uid)  # type: ignore[return-value]

    async def direct(
        self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a tool called inside this run's context does; use ``call``."""
        return self._value(await self._do(direct_ask(self._hub, self._session, declared, options, args, kwargs)))

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
        ask = people.hand_ask(self._hub, self._session, tool, args, key=key, kind=kind, cost=cost)
        done = await self._do(ask)
        return AsyncReplayedAttempt(self, ask, Done(done.row, done.value, replayed=True))

    async def commit(self) -> None:
        """The program has come to its end."""
        self._replay.over = True

    async def rollback(self, why: str) -> NoReturn:
        """Raise ``RolledBack``, as then."""
        raise replaying.taken_back(self._hub, self._replay, self._session, why)

    async def report(self) -> Report:
        """What this run did so far."""
        return replaying.report_now(self._hub, self._replay)

    @property
    def awaits_opening(self) -> bool:
        """Whether no block of the program's is around."""
        return not self._session.above and not self._replay.around

    def opened_again(self, id: str | None, input: object, *, block: bool) -> AsyncReplayRun | None:
        """This run, where its program opens it itself; None: it has done so before."""
        is_mine = replaying.open_again(self._hub, self._replay, self._session, id, input, block=block)
        return self if is_mine else None

    def report_named(self, run_id: str) -> Report | None:
        """What ``rt.report`` says of this run; None: it is about another one."""
        return replaying.report_named(self._hub, self._replay, run_id)

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
        return replaying.refuse(self._replay, op)

    async def _watched(self, flow: Flow[T], flights: Sequence[Flight]) -> T:
        return await self._flow(flow)

    def _value(self, done: Done) -> Any:
        spec = self._session.spec(done.row.tool)
        if spec is None or not spec.is_staging:
            return done.value
        hub, replay, call_id = self._hub, self._replay, done.row.id
        return Staged(call_of(done.row, spec), lambda: replaying.staged_now(hub, replay, call_id))

    async def _check_here(self) -> None:
        people.refuse_forked(self._pid, self.id)

    async def _open_child(self, id: str | None, input: object) -> AsyncRun:
        row, session = replaying.child_row(self._replay, self._session, id, input)
        return AsyncReplayRun(self._hub, self._replay, session, row)

    async def _refuse_waiting(self, *, but: object = None) -> None:
        """No transaction of the caller's is open: nothing rides in one here."""

    async def _leave(self, error: BaseException | None) -> None:
        mistake = await self._not_awaited() if error is None and self._pending else None
        replaying.left(self._replay, self._session, mistake or error)
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
