"""One opened run on an event loop: the same names as ``run``, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar, overload

from amends import people, turns
from amends.aiodrive import AsyncDriver
from amends.attempts import AsyncAttempt, end_open_async
from amends.blocks import AsyncEntered
from amends.budget import Costs
from amends.context import body_here, parent_call, reader, refuse_nowhere, refuse_own, refuse_reaching, within
from amends.drawn import dice, new_name
from amends.engine import ending, landing, leaving, plan
from amends.engine.call import Done, guarded_call
from amends.engine.joining import doubt_left
from amends.engine.session import Ask, Session
from amends.engine.telling import answer_done, answer_error, info_of, output_gone, report_of
from amends.engine.values import read_clock
from amends.errors import LedgerError, NotAwaited, TransactionOpen, UsageError
from amends.flow import Flow
from amends.hiding import given_to, output_of, output_said, output_seen
from amends.hub import Hub, is_over
from amends.joining import LEAVE_POLL_S, note_left_open, still_open, waits_for_itself
from amends.ledger import Tree
from amends.loop import is_on_loop, on_own_loop, shielded
from amends.model import Answer, Approval, ToolCall
from amends.ops import Flight
from amends.phrases import note_on
from amends.report import Report
from amends.requesting import direct_ask, model_ask, once_ask, stranger_name
from amends.riding import Ride, joined_ask
from amends.rows import RunRow
from amends.states import RunState
from amends.tool import Declaration, Options, Pending, Tool, as_coroutine_function
from amends.visible import printable

if TYPE_CHECKING:
    from datetime import datetime
    from random import Random
    from uuid import UUID

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

TICKS_MAX: Final = 3
"""How many turns of the loop a call that was just made has to be begun, when its block is left."""


def _noticed(fn: F) -> F:
    """Let the run know of a call from the moment it is made: one that is never awaited is a mistake."""

    async def begin(begun: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun()
        return await fn(*args, **kwargs)

    @functools.wraps(fn)
    def call(self: AsyncRun, *args: Any, **kwargs: Any) -> Any:
        what = args[0] if args else kwargs.get("tool")
        name = what if isinstance(what, str) else getattr(what, "name", f"run.{fn.__name__}")
        return self._pending.add(name, lambda begun: begin(begun, (self, *args), kwargs))

    return as_coroutine_function(call)  # type: ignore[return-value]


class AsyncRun:
    """One task of an agent: one saga. Received from ``rt.run``; threads inside one block share it."""

    is_async = True
    _is_nowhere = False
    _is_replay = False

    def __init__(self, hub: Hub, driver: AsyncDriver, session: Session, row: RunRow, *, over: bool) -> None:
        self._hub, self._driver, self._session, self._over = hub, driver, session, over
        session.run = self
        info = info_of(row)
        self.id: str = row.id
        self.tenant: str | None = info.tenant
        self.input: Any = given_to(session, row)
        self._output: Any = output_of(session, row)
        self._output_gone = output_gone(row)
        self.resumed: bool = session.resumed
        self.generation: int = row.generation
        self._output_was = self._output
        self._pid = os.getpid()
        self._attempts: set[AsyncAttempt] = set()
        self._pending = Pending()

    @property
    def awaits_opening(self) -> bool:
        """Whether this is a replay without a block of the program's around: ``rt.run`` by its id gives this run."""
        return False

    @property
    def output(self) -> Any:
        """What the run gives back; raises ``ResultGone`` when it ended long ago and gc removed it."""
        if self._output_gone is not None:
            raise self._output_gone
        return self._output

    @output.setter
    def output(self, value: object) -> None:
        self._output, self._output_gone = value, None

    @property
    def state(self) -> RunState:
        """The run's state when it was last looked at: opened, pivoted here, or left. ``report`` reads the ledger."""
        return self._session.state  # type: ignore[return-value]  # the ledger's own words

    @overload
    async def call(self, tool: Tool[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def call(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @_noticed
    async def call(self, tool: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Do a tool in this run, whatever its colour."""
        declared, options = people.declared_as(tool)
        return await self.direct(declared, options, args, kwargs)

    async def direct(
        self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a tool called inside this run's context does; use ``call``."""
        if options.connection is not None:
            return self._value(await self._ride(declared, options, args, kwargs))
        return self._value(await self._do(direct_ask(self._hub, self._session, declared, options, args, kwargs)))

    @_noticed
    async def answer(
        self,
        tool: str,
        args: Mapping[str, Any] | str,
        *,
        handler: Callable[..., object] | None = None,
        tool_call_id: str | None = None,
        again: str | None = None,
    ) -> Answer:
        """Do what a model asked for and phrase the outcome for it."""
        try:
            ask = model_ask(
                self._hub, self._session, tool, args, handler=handler, tool_call_id=tool_call_id, again=again
            )
            return answer_done(self._session, ask, await self._do(ask))
        except Exception as error:
            people.log_for(self._session, error, tool)
            return answer_error(self._session, tool, error)

    async def approval_for(
        self, tool: str, args: Mapping[str, Any] | str, *, tool_call_id: str | None = None
    ) -> Approval | None:
        """The request that this call would wait for, made if it was not yet; None: nobody is asked. Starts nothing."""
        return await turns.approval_for_async(self, tool, args, tool_call_id)

    @_noticed
    async def answer_all(self, calls: Iterable[ToolCall], /) -> list[Answer]:
        """Do what a model asked for in one turn, side by side and a pivot last, and phrase each outcome for it."""
        return await turns.answer_all_async(self, tuple(calls))

    @_noticed
    async def execute(self, plan_: Sequence[object], /) -> list[Answer]:
        """A model's plan: a list of ``{"tool", "args"}``; inner lists run in parallel."""
        await self._check_here()
        flights: list[Flight] = []
        flow = plan.run_plan(self._session, plan_, parent=parent_call(), flights=flights)
        return await self._watched(flow, flights)

    @overload
    async def once(
        self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @_noticed
    async def once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run undeclared code once in this run, as a child with its own pivot."""
        async with self.child(f"once:{key}") as inner:
            return inner._value(await inner._do(once_ask(inner._session, key, fn, args, kwargs)))

    @_noticed
    async def begin(
        self,
        tool: str,
        args: Mapping[str, Any],
        *,
        key: Any = None,
        kind: str | None = None,
        cost: Costs | None = None,
    ) -> AsyncAttempt:
        """Start by hand: ``attempt.succeed(result)`` or ``.fail(error)``; silence is doubt. ``cost``: of this call."""
        await self._check_here()
        ask = people.hand_ask(self._hub, self._session, tool, args, key=key, kind=kind, cost=cost)
        done = await self._flow(leaving.begin_by_hand(self._session, ask))
        return AsyncAttempt(self, ask, done)

    @asynccontextmanager
    async def child(self, id: str | None = None, *, input: object = None) -> AsyncIterator[AsyncRun]:
        """A run inside this one, taken back with it."""
        async with AsyncEntered(await self._open_child(id, input)) as inner:
            yield inner

    def submit(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Task[R]:
        """Start ``fn`` as a task that has this run; leaving the block waits for it."""
        live, lineage = self._hub.live, self._session.lineage
        task = asyncio.ensure_future(self.bind(fn)(*args, **kwargs))
        live.enter(lineage)  # it begins when this task next waits
        task.add_done_callback(lambda _: live.leave(lineage))
        return task

    def bind(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """The same function, carrying this run into whatever task or thread calls it."""
        body = body_here()
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def bound_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with within(self, body):
                    return await fn(*args, **kwargs)

            return bound_async  # type: ignore[return-value]

        @functools.wraps(fn)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            with within(self, body):
                made = fn(*args, **kwargs)
            return carried(made) if inspect.iscoroutine(made) else made  # type: ignore[return-value]

        async def carried(made: Coroutine[Any, Any, Any]) -> Any:
            with within(self, body):
                return await made  # a plain function gave it back: nothing of it has run yet

        return bound

    async def commit(self) -> None:
        """End the run: everything it did stands."""
        people.refuse_in_body(self.id, "committed")
        refuse_reaching(f"the commit of run {self.id}")
        await self._refuse_waiting()  # before it is given up: it may be committed after the transaction
        try:
            await shielded(self._leave(None))
        except LedgerError:
            raise  # the run is still ours, and may be committed again
        except BaseException:
            await self._given_up()
            raise
        await self._given_up()

    async def rollback(self, why: str) -> NoReturn:
        """Compensate everything, then raise ``RolledBack``."""
        people.refuse_in_body(self.id, "rolled back")
        await self._check_here()
        await end_open_async(self)
        try:
            await shielded(self._ending(leaving.take_back(self._session, why=why)))
        finally:
            await self._given_up()
            with contextlib.suppress(LedgerError):
                await self._look()
        raise AssertionError("taking back always raises")

    async def now(self) -> datetime:
        """The time, written down: the same again after a resume, and in a replay."""
        await self._check_here()
        return await self._flow(read_clock(self._session, reader()))

    def random(self) -> Random:
        """Dice of this run's own: the nth are the same after a resume, and in a replay."""
        return dice(self._session, reader())

    def uuid(self) -> UUID:
        """A new name: the nth of this run is the same after a resume, and in a replay."""
        return new_name(self._session, reader())

    async def leave(self, error: BaseException | None = None) -> None:
        """The run is left as the end of a block leaves it: committed, taken back over an error, let go over ``Waiting``.

        For runs from ``rt.open`` that end elsewhere than they began; the error itself is not raised here.
        """
        people.refuse_in_body(self.id, "left")
        if not self._is_replay:
            refuse_reaching(f"the end of run {self.id}")
        await self._go(error, gives_up=True)

    async def report(self) -> Report:
        """What this run did so far."""
        return report_of(self._session, await self._tree(), ledger=self._hub.store.url)

    # ---- inside ---------------------------------------------------------------------------

    async def _flow(self, flow: Flow[T]) -> T:
        return await self._driver.run(flow)

    async def _look(self) -> None:
        self._session.state = (await self._tree()).run.state

    async def _tree(self) -> Tree:
        return people.found(await self._flow(people.read(uid=self._session.uid)), self.id)

    async def _check_here(self) -> None:
        people.refuse_forked(self._pid, self.id)
        refuse_reaching(f"a call in run {self.id}")
        await self._refuse_waiting()

    async def _refuse_waiting(self, *, but: object = None) -> None:
        holds = waits_for_itself(self._session.lease.rides, but=but)
        if holds is not None and await asyncio.to_thread(holds, self._session.root):
            raise still_open(self.id)

    async def _kept_by_others(self) -> TransactionOpen | None:
        """Wait for transactions of other tasks that calls ride in, as long as the run waits for others; then say so."""
        rides = self._session.lease.rides
        until = time.monotonic() + self._session.wait_s
        while rides is not None and rides.are_open() and await asyncio.to_thread(rides.hold, self._session.root):
            if time.monotonic() >= until:
                return still_open(self.id)
            await asyncio.sleep(LEAVE_POLL_S)
        return None

    async def _do(self, ask: Ask) -> Done:
        refuse_nowhere(ask.spec.name)
        refuse_own(ask.key, ask.ident, ask.spec.name)
        await self._check_here()
        if ask.undeclared:
            async with self.child(stranger_name(ask)) as inner:
                return await inner._watched(guarded_call(inner._session, ask), [ask.flight])
        done = await self._watched(guarded_call(self._session, ask), [ask.flight])
        if done.row.kind == "pivot" and done.row.state == "succeeded" and not done.replayed:
            self._session.state = "pivoted"
        return done

    async def _ride(self, declared: Declaration, options: Options, args: Any, kwargs: Any) -> Done:
        """In the caller's own transaction: nothing of it is in flight, and stopped it never was."""
        refuse_nowhere(declared.name)
        refuse_reaching(f"a call in run {self.id}")
        people.refuse_forked(self._pid, self.id)
        ask, joined = await asyncio.to_thread(  # the first time it looks where the ledger is
            joined_ask, self._hub, self._session, declared, options, args, kwargs, is_async=True
        )
        await self._refuse_waiting(but=options.connection)
        ride = Ride(self._hub, self._session, ask, joined)
        try:
            return await ride.run_async()
        except Exception:
            if ride.is_over and not joined.is_open_on(joined.raw):
                await self._flow(doubt_left(self._session, ask.flight))
            raise

    async def _watched(self, flow: Flow[T], flights: Sequence[Flight]) -> T:
        """Calls: live while they run, doubt if they are stopped."""
        live, lineage = self._hub.live, self._session.lineage
        live.enter(lineage)
        try:
            return await self._flow(flow)
        except Exception:
            raise
        except BaseException:
            with contextlib.suppress(LedgerError):  # the lease runs out and recovery finds it
                for flight in flights:
                    await self._stop(flight)
            raise
        finally:
            live.leave(lineage)

    async def _ending(self, flow: Flow[T]) -> T:
        """Drive a flow that ends the run; stopped, it leaves doubt behind and a run that recovery can take at once."""
        try:
            return await self._flow(flow)
        except Exception:
            raise
        except BaseException:
            with contextlib.suppress(LedgerError):  # the lease runs out and recovery finds it
                await self._shielded(self._flow(landing.stop_here(self._session)))
            raise

    async def _stop(self, flight: Flight) -> None:
        await self._shielded(self._flow(ending.stop_call(self._session, flight)))

    async def _shielded(self, flow: Coroutine[Any, Any, T]) -> T:
        """Await it whatever happens to the caller; on a loop of its own where none runs any more."""
        return await shielded(flow) if is_on_loop() else on_own_loop(flow)

    def _value(self, done: Done) -> Any:
        return people.value_of(self._hub, self._session, done)

    async def _open_child(self, id: str | None, input: object) -> AsyncRun:
        await self._check_here()
        opened, session = await self._flow(people.child_of(self._hub, self._session, id, input))
        return AsyncRun(
            self._hub, self._driver, session, opened.run, over=is_over(opened) or session.state == "committed"
        )

    async def _go(self, error: BaseException | None, *, gives_up: bool = False) -> None:
        """Leave, unless that would wait for a transaction of this very task; then give the lease back if asked to.

        All of it is one shielded task: a coroutine that is closed while it waits here cannot cut it short.
        """
        if not is_on_loop():  # a coroutine or generator that outlived its loop, or is closed by a thread without one
            on_own_loop(self._go(error, gives_up=gives_up))
            return
        kept: TransactionOpen | None = None
        cancelled: asyncio.CancelledError | None = None
        try:
            await self._refuse_waiting()
        except TransactionOpen as found:
            kept = found
        except asyncio.CancelledError as stop:
            cancelled = stop  # raised when the run has been left
        await shielded(self._gone(error, kept, gives_up=gives_up))
        if cancelled is not None:
            raise cancelled

    async def _gone(self, error: BaseException | None, kept: TransactionOpen | None, *, gives_up: bool) -> None:
        is_quiet = True
        try:
            kept = kept or await self._kept_by_others()
            if kept is None:
                await self._leave(error)
            elif error is None:
                raise kept
            else:
                note_left_open(error, self.id)
            is_quiet = error is not None
        finally:
            self._pending.clear()
            if gives_up:
                await self._given_up(is_quiet=is_quiet)

    async def _leave(self, error: BaseException | None) -> None:
        mistake = await self._not_awaited() if error is None and self._pending else None
        if self._over and mistake is not None:
            raise mistake
        if self._over or (error is not None and self._pid != os.getpid()):
            return  # in a forked child it is not ours to leave
        people.refuse_forked(self._pid, self.id)
        await end_open_async(self, error)
        try:
            await self._leave_by(mistake or error)
            if mistake is not None:
                raise mistake
        finally:
            with contextlib.suppress(LedgerError):
                await self._look()

    async def _let_others_end(self) -> None:
        await self._flow(leaving.let_others_end(self._session))

    async def _not_awaited(self) -> NotAwaited | None:
        """Return what to say of calls that nobody has awaited, once every task had its chance to."""
        for _ in range(TICKS_MAX):  # a task that was only just started awaits its call now
            await asyncio.sleep(0)
        if self._pending.names() and not self._over:
            await self._let_others_end()
        names = self._pending.names()
        self._pending.clear()
        if not names:
            return None
        shown = ", ".join(dict.fromkeys(names))
        return NotAwaited(
            f"run {self.id} was left, and a call in it was never awaited: {shown}. Nothing of it was done.",
            tool=names[0],
            tools=names,
            run_id=self.id,
        )

    async def _leave_by(self, error: BaseException | None) -> None:
        output = None
        if error is None and self._output is not self._output_was:
            try:
                output = output_said(self._session, self._output)
            except UsageError as unstorable:  # the caller's mistake, and so the run's failure
                await self._leave_by(unstorable)
                raise
            self._output = output_seen(self._session, output, self._output)
        note = await self._ending(leaving.leave(self._session, error, output))
        if error is not None and note:
            note_on(error, printable(note))

    async def _given_up(self, *, is_quiet: bool | None = None) -> None:
        if is_quiet is None:
            is_quiet = sys.exc_info()[1] is not None
        self._over = True
        if self._session.above:
            return  # a child's lease is its root's, which goes on
        self._hub.keeper.forget(self._session.lease)
        checkpointer = self._hub.checkpointer
        if checkpointer.every_s == 0:  # the loop goes on while the run waits for it
            await asyncio.to_thread(checkpointer.left, self.id, quiet=is_quiet)
        else:
            checkpointer.wake()
