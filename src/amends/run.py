"""One opened run, blocking: what a program does inside ``with rt.run(...)``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, Self, TypeVar, overload

from amends.drivers.blocking import Driver
from amends.drivers.context import body_here, parent_call, reader, refuse_nowhere, refuse_own, refuse_reaching, within
from amends.drivers.event_loop import AsyncDriver, is_on_loop, on_own_loop, shielded
from amends.engine import ending, plans, rollback
from amends.engine.answers import answer_done, answer_error, info_of, output_gone, report_of
from amends.engine.call import Done, guarded_call
from amends.engine.joined import doubt_left
from amends.engine.plans import End, ask_first, do_turn
from amends.engine.recorded_values import read_clock
from amends.engine.session import Ask, Session, call_of
from amends.errors import Held, LedgerError, NotAwaited, TransactionOpen, UsageError, Waiting, is_a, log_error, note_on
from amends.host import runs
from amends.host.host import Host, is_over
from amends.host.joined import Ride, joined_ask
from amends.host.random import dice, new_name
from amends.host.requests import direct_ask, foreseen_ask, model_ask, once_ask, stranger_name, turn_asks
from amends.host.secrets import given_to, output_of, output_said, output_seen
from amends.ledger.flow import Flow
from amends.ledger.joined import LEAVE_POLL_S, note_left_open, refuse_waiting, still_open, waits_for_itself
from amends.ledger.operations import Tree
from amends.ledger.rows import RunRow
from amends.ledger.world import Ended, Flight
from amends.model import Answer, Approval, Call, Costs, Number, ToolCall, billionths, unit_of
from amends.report import Report
from amends.states import RunState
from amends.tools.spec import Declaration
from amends.tools.tool import Options, Pending, Scope, Tool, as_coroutine_function, enter_block, leave_scope
from amends.visible import printable, visible, visible_log

if TYPE_CHECKING:
    from datetime import datetime
    from random import Random
    from uuid import UUID


# ---- Calls that are started by hand, in both colours: ``run.begin`` gives one


log = visible_log("amends")


class Attempt:
    """A call started by hand. As a context manager it is safe: leaving without a word is doubt."""

    at_leave: Callable[[], object] | None = None
    """Called when the run is left while this is open: to end it with what is known by then. What it raises is logged."""

    def __init__(self, run: Any, ask: Ask, done: Done) -> None:
        self._run, self._ask, self._row = run, ask, done.row
        self.replayed = done.replayed
        self._value = done.value
        self._open = not done.replayed
        self._spent: dict[str, int] = {}
        self._around = sys.exception()
        """What the caller was handling when it began: no part of what then goes wrong."""
        if self._open:
            run._attempts.add(self)

    @property
    def call(self) -> Call:
        """The call in the ledger; its key is the provider's idempotency key."""
        return call_of(self._row, self._ask.spec)

    @property
    def result(self) -> Any:
        """The recorded result, when it was answered from the record."""
        return self._value

    def spent(self, amount: Number, unit: str = "usd") -> None:
        """This attempt has really cost this much; said more than once, it adds up. Said before it ends."""
        _add(self._spent, self._row.tool, amount, unit)

    def succeed(self, result: object = None) -> None:
        """It happened, with this result."""
        self._end(Ended(result))

    def fail(self, error: BaseException | str) -> None:
        """It certainly had no effect."""
        self._end(Ended(error=runs.certain(error)))

    def _end(self, ended: Ended) -> None:
        if not self._open:
            raise UsageError(f"the attempt of {self._row.tool} has already ended")
        self._run._refuse_waiting()
        self._row = self._run._flow(
            ending.end_by_hand(self._run._session, self._ask, self._row, ended, said=self._spent)
        )
        self._value, self._open = ended.value, False
        self._run._attempts.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._open:
            return
        self._open = False
        self._run._attempts.discard(self)
        session = self._run._session
        if is_a(error, Exception):
            self._row = self._run._flow(
                ending.end_by_hand(
                    session, self._ask, self._row, Ended(error=error, around=self._around), said=self._spent
                )
            )
        else:
            self._row = self._run._flow(ending.doubt_by_hand(session, self._ask, self._row, said=self._spent))


class AsyncAttempt:
    """A call started by hand. As a context manager it is safe: leaving without a word is doubt."""

    at_leave: Callable[[], Coroutine[Any, Any, object]] | None = None
    """Called when the run is left while this is open: to end it with what is known by then. What it raises is logged."""

    def __init__(self, run: Any, ask: Ask, done: Done) -> None:
        self._run, self._ask, self._row = run, ask, done.row
        self.replayed = done.replayed
        self._value = done.value
        self._open = not done.replayed
        self._spent: dict[str, int] = {}
        self._around = sys.exception()
        """What the caller was handling when it began: no part of what then goes wrong."""
        if self._open:
            run._attempts.add(self)

    @property
    def call(self) -> Call:
        """The call in the ledger; its key is the provider's idempotency key."""
        return call_of(self._row, self._ask.spec)

    @property
    def result(self) -> Any:
        """The recorded result, when it was answered from the record."""
        return self._value

    def spent(self, amount: Number, unit: str = "usd") -> None:
        """This attempt has really cost this much; said more than once, it adds up. Said before it ends."""
        _add(self._spent, self._row.tool, amount, unit)

    async def succeed(self, result: object = None) -> None:
        """It happened, with this result."""
        await self._end(Ended(result))

    async def fail(self, error: BaseException | str) -> None:
        """It certainly had no effect."""
        await self._end(Ended(error=runs.certain(error)))

    async def _end(self, ended: Ended) -> None:
        if not self._open:
            raise UsageError(f"the attempt of {self._row.tool} has already ended")
        await self._run._refuse_waiting()
        self._row = await self._run._flow(
            ending.end_by_hand(self._run._session, self._ask, self._row, ended, said=self._spent)
        )
        self._value, self._open = ended.value, False
        self._run._attempts.discard(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._open:
            return
        self._open = False
        self._run._attempts.discard(self)
        session = self._run._session
        if is_a(error, Exception):
            self._row = await self._run._flow(
                ending.end_by_hand(
                    session, self._ask, self._row, Ended(error=error, around=self._around), said=self._spent
                )
            )
        else:
            self._row = await self._run._flow(ending.doubt_by_hand(session, self._ask, self._row, said=self._spent))


def _add(spent: dict[str, int], tool: str, amount: Number, unit: str) -> None:
    try:
        unit = unit_of(unit)
        spent[unit] = spent.get(unit, 0) + billionths(amount)
    except ValueError as error:
        raise UsageError(f"spent() of {tool}: {error}") from error


def end_open(run: Any, error: BaseException | None = None) -> None:
    """Before a run is left: attempts that know how end themselves. The rest is doubt, or a read that failed."""
    if not _is_to_be_ended(run, error):
        return
    if error is None or is_a(error, Exception):
        run._flow(ending.let_others_end(run._session))
    for attempt in list(run._attempts):
        try:
            if attempt.at_leave is not None:
                attempt.at_leave()
        except Exception as broken:
            log_error(log, logging.ERROR, f"{visible(attempt.call.tool)} was not ended before its run was left", broken)


async def end_open_async(run: Any, error: BaseException | None = None) -> None:
    """The same, awaited."""
    if not _is_to_be_ended(run, error):
        return
    if error is None or is_a(error, Exception):
        await run._flow(ending.let_others_end(run._session))
    for attempt in list(run._attempts):
        try:
            if attempt.at_leave is not None:
                await attempt.at_leave()
        except Exception as broken:
            log_error(log, logging.ERROR, f"{visible(attempt.call.tool)} was not ended before its run was left", broken)


def _is_to_be_ended(run: Any, error: BaseException | None) -> bool:
    """Not over a broken ledger: it would only be asked in vain, for as long as a lease is."""
    attempts = list(run._attempts)  # a copy: other threads may begin and end theirs meanwhile
    return not is_a(error, LedgerError) and any(attempt.at_leave is not None for attempt in attempts)


# ---- A run in its block, in both colours. It may be left in another context, thread or task than it was e


class Entered:
    """A run in its block: the context is set, and leaving follows the table of nine ways out."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._block = _Block(run)

    def __enter__(self) -> Run:
        self._block.enter()
        return self.run

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._block.leave():
            return
        try:
            self.run._leave(error)
        finally:
            if self._block.is_root:
                self.run._release()
            self._block.end()


class AsyncEntered:
    """A run in its block: the context is set, and leaving follows the table of nine ways out."""

    def __init__(self, run: AsyncRun) -> None:
        self.run = run
        self._block = _Block(run)

    async def __aenter__(self) -> AsyncRun:
        self._block.enter()
        return self.run

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._block.leave():
            return
        try:
            await self.run._go(error, gives_up=self._block.is_root)
        finally:
            self._block.end()


class _Block:
    """What both colours have in common: the scope of the run, and what is put around it."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._scope: Scope | None = None
        self._around = run._host.live.block(run._session.uid)
        self.is_root = not run._session.above
        """A child's lease is its root's, which goes on."""

    def enter(self) -> None:
        """Begin the scope."""
        assert self._scope is None, "a block is entered once"
        self._scope = enter_block(self._run)
        self._around.__enter__()

    def leave(self) -> bool:
        """End the scope, in any context; False: it was left before."""
        scope = self._scope
        if scope is None or scope.is_left:
            return False
        leave_scope(scope, is_over=False)
        return True

    def end(self) -> None:
        """The run has been left."""
        assert self._scope is not None, "a block ends after it was entered"
        self._scope.is_over = True
        self._around.__exit__(None, None, None)

    def __del__(self) -> None:
        # A generator of a loop that is closed is dropped without being closed. Its run must not be kept alive for ever.
        if self.leave() and self._scope is not None and self.is_root:
            self._scope.is_over = True
            self._run._host.heartbeat.forget(self._run._session.lease)
            log.warning(
                "the block of run %s was dropped without being left; it is recovered by its policy when its lease ends",
                self._run.id,
            )


# ---- One turn of a model in an opened run, in both colours


def answer_all(run: Run, calls: Sequence[ToolCall]) -> list[Answer]:
    """Each was done, refused or held; a tool that nobody declared, in a run of its own, comes after the others."""
    asks = turn_asks(run._host, run._session, calls)
    known = _known(asks)
    try:
        _refuse_nowhere(calls)
        run._check_here()
        ends = run._watched(do_turn(run._session, known), [ask.flight for ask in known if isinstance(ask, Ask)])
    except Exception as error:  # of this place, and so of all of them
        return runs.told_turn(run._session, calls, asks, _all_with(asks, error))
    rest = iter(ends)
    whole = [_stranger(run, ask) if _is_stranger(ask) else next(rest) for ask in asks]
    return runs.told_turn(run._session, calls, asks, whole)


async def answer_all_async(run: AsyncRun, calls: Sequence[ToolCall]) -> list[Answer]:
    """The same, awaited."""
    asks = turn_asks(run._host, run._session, calls)
    known = _known(asks)
    try:
        _refuse_nowhere(calls)
        await run._check_here()
        ends = await run._watched(do_turn(run._session, known), [ask.flight for ask in known if isinstance(ask, Ask)])
    except Exception as error:
        return runs.told_turn(run._session, calls, asks, _all_with(asks, error))
    if any(isinstance(end, Done) and (end.row.kind, end.row.state) == ("pivot", "succeeded") for end in ends):
        run._session.state = "pivoted"
    rest = iter(ends)
    whole = [await _stranger_async(run, ask) if _is_stranger(ask) else next(rest) for ask in asks]
    return runs.told_turn(run._session, calls, asks, whole)


def approval_for(run: Run, tool: str, args: Mapping[str, Any] | str, call_id: str | None) -> Approval | None:
    """The request for a yes that such a call waits for, made if there was none."""
    ask = foreseen_ask(run._host, run._session, tool, args, tool_call_id=call_id)
    refuse_nowhere(ask.spec.name)
    run._check_here()
    try:
        if not ask.undeclared:
            run._watched(ask_first(run._session, ask), [ask.flight])
        with run.child(stranger_name(ask)) as inner:
            inner._watched(ask_first(inner._session, ask), [ask.flight])
    except Waiting as waits:
        return _asked_for(waits)


async def approval_for_async(
    run: AsyncRun, tool: str, args: Mapping[str, Any] | str, call_id: str | None
) -> Approval | None:
    """The same, awaited."""
    ask = foreseen_ask(run._host, run._session, tool, args, tool_call_id=call_id)
    refuse_nowhere(ask.spec.name)
    await run._check_here()
    try:
        if not ask.undeclared:
            await run._watched(ask_first(run._session, ask), [ask.flight])
        async with run.child(stranger_name(ask)) as inner:
            await inner._watched(ask_first(inner._session, ask), [ask.flight])
    except Waiting as waits:
        return _asked_for(waits)


def _asked_for(waits: Waiting) -> Approval | None:
    found: Approval | None = waits.approval if isinstance(waits, Held) else None
    return found


def _refuse_nowhere(calls: Sequence[ToolCall]) -> None:
    if calls:
        refuse_nowhere(calls[0].tool)


def _is_stranger(ask: Ask | Exception) -> bool:
    return isinstance(ask, Ask) and ask.undeclared


def _known(asks: Sequence[Ask | Exception]) -> list[Ask | Exception]:
    return [ask for ask in asks if not _is_stranger(ask)]


def _all_with(asks: Sequence[Ask | Exception], error: Exception) -> list[End]:
    return [ask if isinstance(ask, Exception) else error for ask in asks]


def _stranger(run: Run, ask: Ask | Exception) -> End:
    assert isinstance(ask, Ask), "a stranger was asked for"
    try:
        return run._do(ask)
    except Exception as error:
        return error


async def _stranger_async(run: AsyncRun, ask: Ask | Exception) -> End:
    assert isinstance(ask, Ask), "a stranger was asked for"
    try:
        return await run._do(ask)
    except Exception as error:
        return error


# ---- One opened run, blocking: what a program does inside ``with rt.run(...)``


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Run:
    """One task of an agent: one saga. Received from ``rt.run``; threads inside one block share it."""

    is_async = False
    _is_nowhere = False
    _is_replay = False

    def __init__(self, host: Host, driver: Driver, session: Session, row: RunRow, *, over: bool) -> None:
        self._host, self._driver, self._session, self._over = host, driver, session, over
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
        self._pool: ThreadPoolExecutor | None = None
        self._attempts: set[Attempt] = set()

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
        """The run's state in the ledger now."""
        return self._tree().run.state  # type: ignore[return-value]  # the ledger's own words

    @overload
    def call(self, tool: Tool[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def call(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def call(self, tool: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Do a tool in this run, whatever its colour."""
        declared, options = runs.declared_as(tool)
        return self.direct(declared, options, args, kwargs)

    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a tool called inside this run's context does; use ``call``."""
        if options.connection is not None:
            return self._value(self._ride(declared, options, args, kwargs))
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
        """Do what a model asked for and phrase the outcome for it."""
        try:
            ask = model_ask(
                self._host, self._session, tool, args, handler=handler, tool_call_id=tool_call_id, again=again
            )
            return answer_done(self._session, ask, self._do(ask))
        except Exception as error:
            runs.log_for(self._session, error, tool)
            return answer_error(self._session, tool, error)

    def approval_for(
        self, tool: str, args: Mapping[str, Any] | str, *, tool_call_id: str | None = None
    ) -> Approval | None:
        """The request that this call would wait for, made if it was not yet; None: nobody is asked. Starts nothing."""
        return approval_for(self, tool, args, tool_call_id)

    def answer_all(self, calls: Iterable[ToolCall], /) -> list[Answer]:
        """Do what a model asked for in one turn, side by side and a pivot last, and phrase each outcome for it."""
        return answer_all(self, tuple(calls))

    def execute(self, plan_: Sequence[object], /) -> list[Answer]:
        """A model's plan: a list of ``{"tool", "args"}``; inner lists run in parallel."""
        self._check_here()
        flights: list[Flight] = []
        flow = plans.run_plan(self._session, plan_, parent=parent_call(), flights=flights)
        return self._watched(flow, flights)

    @overload
    def once(self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run undeclared code once in this run, as a child with its own pivot."""
        with self.child(f"once:{key}") as inner:
            return inner._value(inner._do(once_ask(inner._session, key, fn, args, kwargs)))

    def begin(
        self,
        tool: str,
        args: Mapping[str, Any],
        *,
        key: Any = None,
        kind: str | None = None,
        cost: Costs | None = None,
    ) -> Attempt:
        """Start by hand: ``attempt.succeed(result)`` or ``.fail(error)``; silence is doubt. ``cost``: of this call."""
        self._check_here()
        ask = runs.hand_ask(self._host, self._session, tool, args, key=key, kind=kind, cost=cost)
        done = self._flow(ending.begin_by_hand(self._session, ask))
        return Attempt(self, ask, done)

    @contextmanager
    def child(self, id: str | None = None, *, input: object = None) -> Iterator[Run]:
        """A run inside this one, taken back with it."""
        with Entered(self._open_child(id, input)) as inner:
            yield inner

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run ``fn`` in a thread that has this run; leaving the block waits for it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix=f"amends-run-{self.id}")
        live, lineage = self._host.live, self._session.lineage
        live.enter(lineage)
        try:
            future = self._pool.submit(self.bind(fn), *args, **kwargs)
        except BaseException:
            live.leave(lineage)  # it never began: nobody waits for it
            raise
        future.add_done_callback(lambda _: live.leave(lineage))
        return future

    def bind(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """The same function, carrying this run into whatever thread calls it."""
        body = body_here()

        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            with within(self, body):
                return fn(*args, **kwargs)

        return bound

    def commit(self) -> None:
        """End the run: everything it did stands."""
        runs.refuse_in_body(self.id, "committed")
        refuse_reaching(f"the commit of run {self.id}")
        self._refuse_waiting()  # before it is given up: it may be committed after the transaction
        try:
            self._leave(None)
        except LedgerError:
            raise  # the run is still ours, and may be committed again
        except BaseException:
            self._release()
            raise
        self._release()

    def rollback(self, why: str) -> NoReturn:
        """Compensate everything, then raise ``RolledBack``."""
        runs.refuse_in_body(self.id, "rolled back")
        self._check_here()
        end_open(self)
        try:
            self._ending(ending.take_back(self._session, why=why))
        finally:
            self._release()
        raise AssertionError("taking back always raises")

    def now(self) -> datetime:
        """The time, written down: the same again after a resume, and in a replay."""
        self._check_here()
        return self._flow(read_clock(self._session, reader()))

    def random(self) -> Random:
        """Dice of this run's own: the nth are the same after a resume, and in a replay."""
        return dice(self._session, reader())

    def uuid(self) -> UUID:
        """A new name: the nth of this run is the same after a resume, and in a replay."""
        return new_name(self._session, reader())

    def leave(self, error: BaseException | None = None) -> None:
        """The run is left as the end of a block leaves it: committed, taken back over an error, let go over ``Waiting``.

        For runs from ``rt.open`` that end elsewhere than they began; the error itself is not raised here.
        """
        runs.refuse_in_body(self.id, "left")
        if not self._is_replay:
            refuse_reaching(f"the end of run {self.id}")
        try:
            self._leave(error)
        finally:
            self._release()

    def report(self) -> Report:
        """What this run did so far."""
        return report_of(self._session, self._tree(), ledger=self._host.store.url)

    # ---- inside ---------------------------------------------------------------------------

    def _flow(self, flow: Flow[T]) -> T:
        return self._driver.run(flow)

    def _tree(self) -> Tree:
        return runs.found(self._flow(runs.read(uid=self._session.uid)), self.id)

    def _check_here(self) -> None:
        runs.refuse_forked(self._pid, self.id)
        refuse_reaching(f"a call in run {self.id}")
        self._refuse_waiting()

    def _refuse_waiting(self, *, but: object = None) -> None:
        rides = self._session.lease.rides
        if rides is not None:
            refuse_waiting(rides, self._session.root, self.id, but=but)

    def _refuse_leaving(self) -> None:
        """Raise where leaving would wait for a transaction that a call rides in: in whatever thread, it may never end.

        One of another thread is waited for as long as the run waits for others; one of this thread not at all.
        """
        self._refuse_waiting()
        rides = self._session.lease.rides
        until = time.monotonic() + self._session.wait_s
        while rides is not None and rides.hold(self._session.root):
            if time.monotonic() >= until:
                raise still_open(self.id)
            time.sleep(LEAVE_POLL_S)

    def _do(self, ask: Ask) -> Done:
        refuse_nowhere(ask.spec.name)
        refuse_own(ask.key, ask.ident, ask.spec.name)
        self._check_here()
        if not ask.undeclared:
            return self._watched(guarded_call(self._session, ask), [ask.flight])
        with self.child(stranger_name(ask)) as inner:
            return inner._watched(guarded_call(inner._session, ask), [ask.flight])

    def _ride(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Done:
        """In the caller's own transaction: nothing of it is in flight, and stopped it never was."""
        from amends.host.joined import Ride, joined_ask  # few ride, and it needs asyncio

        refuse_nowhere(declared.name)
        refuse_reaching(f"a call in run {self.id}")
        runs.refuse_forked(self._pid, self.id)
        ask, joined = joined_ask(self._host, self._session, declared, options, args, kwargs, is_async=False)
        self._refuse_waiting(but=options.connection)
        ride = Ride(self._host, self._session, ask, joined)
        try:
            return ride.run()
        except Exception:
            if ride.is_over and not joined.is_open_on(joined.raw):
                self._flow(doubt_left(self._session, ask.flight))
            raise

    def _watched(self, flow: Flow[T], flights: Sequence[Flight]) -> T:
        """Calls: live while they run, doubt if they are stopped."""
        live, lineage = self._host.live, self._session.lineage
        live.enter(lineage)
        try:
            return self._flow(flow)
        except Exception:
            raise
        except BaseException:
            with contextlib.suppress(LedgerError):  # the lease runs out and recovery finds it
                for flight in flights:
                    self._flow(ending.stop_call(self._session, flight))
            raise
        finally:
            live.leave(lineage)

    def _ending(self, flow: Flow[T]) -> T:
        """Drive a flow that ends the run; stopped, it leaves doubt behind and a run that recovery can take at once."""
        try:
            return self._flow(flow)
        except Exception:
            raise
        except BaseException:
            with contextlib.suppress(LedgerError):  # the lease runs out and recovery finds it
                self._flow(rollback.stop_here(self._session))
            raise

    def _value(self, done: Done) -> Any:
        return runs.value_of(self._host, self._session, done)

    def _open_child(self, id: str | None, input: object) -> Run:
        self._check_here()
        opened, session = self._flow(runs.child_of(self._host, self._session, id, input))
        return Run(self._host, self._driver, session, opened.run, over=is_over(opened) or session.state == "committed")

    def _leave(self, error: BaseException | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=error is None or is_a(error, Exception))
        if self._over or (error is not None and self._pid != os.getpid()):
            return  # in a forked child it is not ours to leave
        runs.refuse_forked(self._pid, self.id)
        try:
            self._refuse_leaving()
        except TransactionOpen:
            if error is None:
                raise
            note_left_open(error, self.id)
        else:
            end_open(self, error)
            self._leave_by(error)

    def _leave_by(self, error: BaseException | None) -> None:
        output = None
        if error is None and self._output is not self._output_was:
            try:
                output = output_said(self._session, self._output)
            except UsageError as unstorable:  # the caller's mistake, and so the run's failure
                self._leave_by(unstorable)
                raise
            self._output = output_seen(self._session, output, self._output)
        note = self._ending(ending.leave(self._session, error, output))
        if error is not None and note:
            note_on(error, printable(note))

    def _release(self) -> None:
        self._over = True
        if not self._session.above:  # a child's lease is its root's, which goes on
            self._host.heartbeat.forget(self._session.lease)
            self._host.checkpointer.left(self.id, quiet=sys.exc_info()[1] is not None)


# ---- One opened run on an event loop: the same names as ``run``, awaited


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

    def __init__(self, host: Host, driver: AsyncDriver, session: Session, row: RunRow, *, over: bool) -> None:
        self._host, self._driver, self._session, self._over = host, driver, session, over
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
        declared, options = runs.declared_as(tool)
        return await self.direct(declared, options, args, kwargs)

    async def direct(
        self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a tool called inside this run's context does; use ``call``."""
        if options.connection is not None:
            return self._value(await self._ride(declared, options, args, kwargs))
        return self._value(await self._do(direct_ask(self._host, self._session, declared, options, args, kwargs)))

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
                self._host, self._session, tool, args, handler=handler, tool_call_id=tool_call_id, again=again
            )
            return answer_done(self._session, ask, await self._do(ask))
        except Exception as error:
            runs.log_for(self._session, error, tool)
            return answer_error(self._session, tool, error)

    async def approval_for(
        self, tool: str, args: Mapping[str, Any] | str, *, tool_call_id: str | None = None
    ) -> Approval | None:
        """The request that this call would wait for, made if it was not yet; None: nobody is asked. Starts nothing."""
        return await approval_for_async(self, tool, args, tool_call_id)

    @_noticed
    async def answer_all(self, calls: Iterable[ToolCall], /) -> list[Answer]:
        """Do what a model asked for in one turn, side by side and a pivot last, and phrase each outcome for it."""
        return await answer_all_async(self, tuple(calls))

    @_noticed
    async def execute(self, plan_: Sequence[object], /) -> list[Answer]:
        """A model's plan: a list of ``{"tool", "args"}``; inner lists run in parallel."""
        await self._check_here()
        flights: list[Flight] = []
        flow = plans.run_plan(self._session, plan_, parent=parent_call(), flights=flights)
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
        ask = runs.hand_ask(self._host, self._session, tool, args, key=key, kind=kind, cost=cost)
        done = await self._flow(ending.begin_by_hand(self._session, ask))
        return AsyncAttempt(self, ask, done)

    @asynccontextmanager
    async def child(self, id: str | None = None, *, input: object = None) -> AsyncIterator[AsyncRun]:
        """A run inside this one, taken back with it."""
        async with AsyncEntered(await self._open_child(id, input)) as inner:
            yield inner

    def submit(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Task[R]:
        """Start ``fn`` as a task that has this run; leaving the block waits for it."""
        live, lineage = self._host.live, self._session.lineage
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
        runs.refuse_in_body(self.id, "committed")
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
        runs.refuse_in_body(self.id, "rolled back")
        await self._check_here()
        await end_open_async(self)
        try:
            await shielded(self._ending(ending.take_back(self._session, why=why)))
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
        runs.refuse_in_body(self.id, "left")
        if not self._is_replay:
            refuse_reaching(f"the end of run {self.id}")
        await self._go(error, gives_up=True)

    async def report(self) -> Report:
        """What this run did so far."""
        return report_of(self._session, await self._tree(), ledger=self._host.store.url)

    # ---- inside ---------------------------------------------------------------------------

    async def _flow(self, flow: Flow[T]) -> T:
        return await self._driver.run(flow)

    async def _look(self) -> None:
        self._session.state = (await self._tree()).run.state

    async def _tree(self) -> Tree:
        return runs.found(await self._flow(runs.read(uid=self._session.uid)), self.id)

    async def _check_here(self) -> None:
        runs.refuse_forked(self._pid, self.id)
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
        runs.refuse_forked(self._pid, self.id)
        ask, joined = await asyncio.to_thread(  # the first time it looks where the ledger is
            joined_ask, self._host, self._session, declared, options, args, kwargs, is_async=True
        )
        await self._refuse_waiting(but=options.connection)
        ride = Ride(self._host, self._session, ask, joined)
        try:
            return await ride.run_async()
        except Exception:
            if ride.is_over and not joined.is_open_on(joined.raw):
                await self._flow(doubt_left(self._session, ask.flight))
            raise

    async def _watched(self, flow: Flow[T], flights: Sequence[Flight]) -> T:
        """Calls: live while they run, doubt if they are stopped."""
        live, lineage = self._host.live, self._session.lineage
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
                await self._shielded(self._flow(rollback.stop_here(self._session)))
            raise

    async def _stop(self, flight: Flight) -> None:
        await self._shielded(self._flow(ending.stop_call(self._session, flight)))

    async def _shielded(self, flow: Coroutine[Any, Any, T]) -> T:
        """Await it whatever happens to the caller; on a loop of its own where none runs any more."""
        return await shielded(flow) if is_on_loop() else on_own_loop(flow)

    def _value(self, done: Done) -> Any:
        return runs.value_of(self._host, self._session, done)

    async def _open_child(self, id: str | None, input: object) -> AsyncRun:
        await self._check_here()
        opened, session = await self._flow(runs.child_of(self._host, self._session, id, input))
        return AsyncRun(
            self._host, self._driver, session, opened.run, over=is_over(opened) or session.state == "committed"
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
        runs.refuse_forked(self._pid, self.id)
        await end_open_async(self, error)
        try:
            await self._leave_by(mistake or error)
            if mistake is not None:
                raise mistake
        finally:
            with contextlib.suppress(LedgerError):
                await self._look()

    async def _let_others_end(self) -> None:
        await self._flow(ending.let_others_end(self._session))

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
        note = await self._ending(ending.leave(self._session, error, output))
        if error is not None and note:
            note_on(error, printable(note))

    async def _given_up(self, *, is_quiet: bool | None = None) -> None:
        if is_quiet is None:
            is_quiet = sys.exc_info()[1] is not None
        self._over = True
        if self._session.above:
            return  # a child's lease is its root's, which goes on
        self._host.heartbeat.forget(self._session.lease)
        checkpointer = self._host.checkpointer
        if checkpointer.every_s == 0:  # the loop goes on while the run waits for it
            await asyncio.to_thread(checkpointer.left, self.id, quiet=is_quiet)
        else:
            checkpointer.wake()
