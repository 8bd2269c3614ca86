"""One open run in both colours: what a program does inside ``with rt.run(...)`` or ``async with rt.run(...)``.

Each verb is written once, as a coroutine over ``OpenRun``. ``AsyncRun`` awaits it. In ``Run`` every step blocks instead
of suspending, so one ``send`` runs the coroutine to its end (``finish``). What differs is written in the two classes:
blocks, direct calls, ``submit``, ``bind`` and the shield against cancellation.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, NoReturn, ParamSpec, Self, TypeVar, overload

from amends.budgets import Costs, Number, billionths, unit_of
from amends.drivers import process
from amends.drivers.blocking import Driver
from amends.drivers.context import (
    body_here,
    parent_call,
    reader,
    refuse_ledger_use,
    refuse_own,
    refuse_without_run,
    within,
)
from amends.drivers.log import tell_pivoted
from amends.encoding.lazy_import import import_on_use
from amends.encoding.patterns import pattern
from amends.engine import ending
from amends.engine import rollback as rolling_back
from amends.engine.call import Done, guarded_call
from amends.engine.keys import provider_key
from amends.engine.plain import PlainCall, plain_call
from amends.engine.recorded_values import read_clock
from amends.engine.reports import output_gone_error, report_of
from amends.engine.session import Ask, Session, call_of, count_replays, scrubbed
from amends.errors import (
    STILL_OPEN,
    Busy,
    CallNotFound,
    Held,
    LeaseLost,
    LedgerError,
    NotAwaited,
    Suspended,
    TransactionOpen,
    UsageError,
    Waiting,
    WrongColour,
    clean,
    is_a,
    log_error,
    note_on,
    some_in_words,
    trim,
    trims,
    trims_itself,
)
from amends.host import runs
from amends.host.host import Host, is_over
from amends.host.redaction import input_for_program, output_of, readable_output, recorded_output
from amends.host.requests import (
    adhoc_spec,
    agent_input,
    direct_ask,
    foreseen_ask,
    model_ask,
    once_ask,
    own_child_name,
    plain_model_request,
    plain_request,
    turn_asks,
)
from amends.ledger.flow import Flow, finish
from amends.ledger.joined import LEAVE_POLL_S, note_left_open, still_open, waits_for_itself
from amends.ledger.leases import WorkLease
from amends.ledger.operations import ReadCall, Tree
from amends.ledger.rows import CallRow, RunRow
from amends.ledger.world import Ended, Flight
from amends.model import Answer, Approval, Call, Once, OnOpenFailure, ToolCall
from amends.report import Report
from amends.states import CallState, RunState
from amends.tools.scope import Begun, Options, Pending, Scope, enter_block, leave_scope
from amends.tools.signature import is_async_function
from amends.tools.spec import Declaration, KeyRule
from amends.tools.tool import Tool, as_coroutine_function
from amends.visible import printable, visible, visible_log

if TYPE_CHECKING:  # what the first call of a blocking program does not need
    import asyncio
    from concurrent import futures
    from random import Random
    from uuid import UUID

    from amends.drivers import event_loop
    from amends.engine import agents, completion, model_answers, model_plans, turns, work
    from amends.engine import joined as joined_flows
    from amends.host import joined as joined_calls
    from amends.host import random as recorded_random
else:
    import_on_use(
        globals(),
        asyncio="asyncio",
        futures="concurrent.futures",
        event_loop="amends.drivers.event_loop",
        agents="amends.engine.agents",
        completion="amends.engine.completion",
        joined_flows="amends.engine.joined",
        model_answers="amends.engine.model_answers",
        model_plans="amends.engine.model_plans",
        turns="amends.engine.turns",
        work="amends.engine.work",
        joined_calls="amends.host.joined",
        recorded_random="amends.host.random",
    )

log = visible_log("amends")

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
RunT = TypeVar("RunT", bound="OpenRun")

MADE_ID: Final = pattern(r"run_[0-9a-f]{23,}")
"""What ``rt.run()`` names a run by, if its caller does not."""
TICKS_MAX: Final = 3
"""How many iterations of the event loop a call has to start when the block that made it ends."""


_NO_LOCK: Final = threading.Lock()
"""Of attempts without a work lease: nothing is decided there."""


# ---- One verb, two colours


class blocking(Generic[P, T]):  # noqa: N801 (reads like a decorator)
    """A verb of ``Run`` or ``Attempt``: run the coroutine to its end."""

    def __init__(self, verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return finish(verb(self, *args, **kwargs))
            except BaseException as error:
                trim(error)
                raise

        self._method = _dressed(method, verb)

    def __set_name__(self, owner: type, name: str) -> None:
        _install(owner, name, self._method)

    @overload
    def __get__(self, run: None, owner: type) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(self, run: object, owner: type) -> Callable[P, T]: ...
    def __get__(self, run: object, owner: type) -> Any:
        raise AssertionError("__set_name__ replaced this descriptor by a method")


class awaited(Generic[P, T]):  # noqa: N801
    """A verb of ``AsyncRun`` or ``AsyncAttempt``: await the coroutine.

    ``tracked``: leaving the run raises ``NotAwaited`` if this was called and never awaited.
    """

    def __init__(self, verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *, tracked: bool = False) -> None:
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return await verb(self, *args, **kwargs)
            except BaseException as error:
                trim(error)
                raise

        self._method = _dressed(_tracked(verb) if tracked else method, verb)

    def __set_name__(self, owner: type, name: str) -> None:
        _install(owner, name, self._method)

    @overload
    def __get__(self, run: None, owner: type) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, run: object, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, run: object, owner: type) -> Any:
        raise AssertionError("__set_name__ replaced this descriptor by a method")


def _tracked(fn: F) -> F:
    """Record each call of this method in the run until it is awaited."""
    own, is_named = f"run.{fn.__name__}", fn.__name__ != "rollback"  # whose argument is the reason

    async def begin(begun: Begun, run: AsyncRun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun()
        try:
            return await fn(run, *args, **kwargs)
        except BaseException as error:
            trim(error)
            raise

    @trims_itself
    @functools.wraps(fn)
    def call(self: AsyncRun, *args: Any, **kwargs: Any) -> Any:
        name = own
        if is_named:
            what = args[0] if args else kwargs.get("tool")
            name = what if isinstance(what, str) else getattr(what, "name", own)
        return self._pending.add(name, begin, self, args, kwargs)

    return as_coroutine_function(call)  # type: ignore[return-value]


def _dressed(method: Callable[..., Any], verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``method`` the docstring and the signature of ``verb``, with ``self`` as the first parameter."""
    functools.update_wrapper(trims_itself(method), verb)
    del method.__wrapped__  # type: ignore[attr-defined]
    signature = inspect.signature(verb)
    first, *rest = signature.parameters.values()
    itself = first.replace(name="self", annotation=inspect.Parameter.empty)
    method.__signature__ = signature.replace(parameters=[itself, *rest])  # type: ignore[attr-defined]
    method.__annotations__ = {name: said for name, said in verb.__annotations__.items() if name != first.name}
    return method


def _install(owner: type, name: str, method: Callable[..., Any]) -> None:
    method.__name__, method.__qualname__ = name, f"{owner.__qualname__}.{name}"
    setattr(owner, name, method)


# ---- What both colours share


class OpenRun:
    """An open run of either colour: its state, and the steps that the verbs are made of.

    The steps are coroutines in both colours. Only the first four differ: a colour says how it blocks.
    """

    is_async = False
    _is_nowhere = False
    _is_replay = False
    _is_agents = False
    """Whether it is the child run of an agent that was asked as a tool."""

    def __init__(self, host: Host, driver: Any, session: Session, row: RunRow, *, over: bool) -> None:
        self._host, self._driver, self._session, self._over = host, driver, session, over
        session.run = self
        self.id: str = row.id
        self.tenant: str | None = row.tenant or None
        self.input: Any = input_for_program(session, row) if row.input else None
        self._output: Any = output_of(session, row) if row.output else None
        self._output_gone = output_gone_error(row) if row.output else None
        self.note: str = ""
        """What the end of the block had to say about the run, as on its exception: what was rolled back, or what is still to
        be done and who does it; empty: nothing, as for a run that was simply committed."""
        self.resumed: bool = session.resumed
        self.generation: int = row.generation
        self._output_was = self._output
        self._pid = os.getpid()
        self._attempts: set[Any] = set()

    def __repr__(self) -> str:
        # Nothing is read from the ledger: a debugger shows this at any moment.
        generation = f", generation {self.generation}" if self.generation > 1 else ""
        return f"<{type(self).__name__} {self.id!r}{generation}{', ended or left' if self._over else ''}>"

    @property
    def awaits_opening(self) -> bool:
        """Whether this is a replay that its program has not opened yet: ``rt.run`` with its id returns this run."""
        return False

    @property
    def epoch(self) -> int:
        """How often the run has changed its owner: what is done under an old epoch is evidence only."""
        return self._session.lease.epoch

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or was left: it only answers from its record, and accepts no call."""
        return self._over

    @property
    def output(self) -> Any:
        """The output of the run. Raises ``ResultGone`` if the run ended long ago and gc removed it."""
        if self._output_gone is not None:
            raise self._output_gone
        return self._output

    @output.setter
    def output(self, value: object) -> None:
        self._output, self._output_gone = value, None

    def for_agent(self) -> None:
        """Note that an agent works in this run: an open failure rolls it back, unless ``on_open_failure`` was set.

        Warn, once for each runtime, if nobody has given the run a name.
        """
        if self.on_open_failure is None:
            self.on_open_failure = "rollback"
        if not self.resumed and not self._is_replay and MADE_ID.fullmatch(self.id) and not self._host.told_of_names:
            self._host.told_of_names = True
            log.warning(
                "the run of an agent has no name of yours (%s): if its process is killed and the agent is started again,"
                " everything in it is done a second time. Give each piece of work an id of its own:"
                " rt.run('order-7'), or run_id= of the adapter",
                self.id,
            )

    def holds_secret(self, text: str, asked: Iterable[ToolCall] = ()) -> bool:
        """Return whether a text contains a redacted value of this run or of these requests: do not record such a text.

        For adapters that record what a framework or a model said.
        """
        for one in asked:
            with contextlib.suppress(Exception):  # a request that no tool takes has no redacted value
                foreseen_ask(self._host, self._session, one.tool, one.args, tool_call_id=one.tool_call_id)
        return scrubbed(self._session, text) != text

    def warned(self, answer: Answer) -> Answer:
        """Return the answer with a warning about an open failure, for a model that gets no other message before the end.

        The run is an agent's from now on (``for_agent``).
        """
        self.for_agent()
        if answer.status != "failed" or self.on_open_failure != "rollback":
            return answer
        return replace(answer, text=f"{answer.text} {STILL_OPEN}")

    @property
    def on_open_failure(self) -> OnOpenFailure | None:
        """What an open failure does when the run is left; None: nothing.

        It can be set until then.
        """
        said = self._session.closing.text
        return completion.read_completion(said).on_open_failure or None if said else None  # type: ignore[return-value]

    @on_open_failure.setter
    def on_open_failure(self, value: OnOpenFailure) -> None:
        closing = self._session.closing
        _, _ = completion.completion_of(None, value, specs={})  # raises if it is not one of the two
        closing.text = str(replace(completion.read_completion(closing.text), on_open_failure=value))

    def random(self) -> Random:
        """Return a seeded random generator; the nth of a run is the same after a resume and in a replay."""
        return recorded_random.random_generator(self._session, reader())

    def uuid(self) -> UUID:
        """Return a new UUID; the nth of a run is the same after a resume and in a replay."""
        return recorded_random.new_uuid(self._session, reader())

    # ---- steps that differ

    async def _drive(self, flow: Flow[T]) -> T:
        """Run a flow with the driver of this colour."""
        raise NotImplementedError

    async def _shield(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish ``work`` even if the caller is cancelled meanwhile."""
        raise NotImplementedError

    async def _aside(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that blocks, without blocking an event loop."""
        raise NotImplementedError

    async def _pause(self, seconds: float) -> None:
        raise NotImplementedError

    async def _leave(self, error: BaseException | None) -> None:
        """Commit, roll back or suspend the run, depending on ``error``; keep the lease."""
        raise NotImplementedError

    async def _close(self, error: BaseException | None, *, releases: bool) -> None:
        """Leave the run as the end of a block does; then release the lease if ``releases``."""
        raise NotImplementedError

    def _end_threads(self, *, wait: bool = True) -> None:
        """Wait for the threads that the run has started; a run on an event loop has none."""

    # ---- shared steps

    async def _tree(self) -> Tree:
        return runs.found(await self._drive(runs.read(uid=self._session.uid)), self.id)

    async def _end_text(self) -> str:
        return await self._drive(ending.before_end(self._session))

    async def _leave_in_doubt(self) -> bool:
        """Leave the run of an agent that stopped while a call was in doubt; return False if none is.

        Raises ``RunBlocked`` if a person must settle it; whoever opens the run again then goes on with it. True: it was
        settled without a person, and the run can be opened again at once.
        """
        if self._is_replay or self._over or self._session.above:
            return False
        calls = (await self._tree()).calls
        waits = any(row.state == "held" and not row.is_staged for row in calls)
        if waits or not any(row.state == "in_doubt" for row in calls):
            return False
        await self._close(ending.StoppedInDoubt("the agent stopped while a call was in doubt"), releases=True)
        return True

    async def _refresh_state(self) -> None:
        """Read the state again, where the run keeps a copy of it."""

    async def _check_usable(self) -> None:
        """Raise unless a call may start here: in this process, outside of rules and keys, outside an open transaction."""
        runs.refuse_forked(self._pid, self.id)
        refuse_ledger_use(f"a call in run {self.id}")
        if self._session.lease.joined is not None:
            await self._refuse_own_transaction()

    async def _refuse_own_transaction(self, *, but: object = None) -> None:
        """Raise ``TransactionOpen`` if this thread or task would wait for its own open transaction.

        ``but``: the connection that the caller uses now, which does not count.
        """
        holds = waits_for_itself(self._session.lease.joined, but=but)
        if holds is not None and await self._aside(holds, self._session.root):
            raise still_open(self.id)

    async def _wait_for_transactions(self) -> TransactionOpen | None:
        """Wait up to the run's ``wait`` for joined transactions of other threads and tasks; return an error if one stays open."""
        rides = self._session.lease.joined
        until = time.monotonic() + self._session.wait_s
        while rides is not None and rides.are_open() and await self._aside(rides.hold, self._session.root):
            if time.monotonic() >= until:
                return still_open(self.id)
            await self._pause(LEAVE_POLL_S)
        return None

    async def _perform(self, ask: Ask, *, apart: bool = False) -> Done:
        """Do one guarded call; an undeclared tool runs in a child run, with its own pivot, and ``apart`` so does a pivot."""
        refuse_without_run(ask.spec.name)
        assert ask.spec.kind != "agent", "an agent is no call: _delegate lets it work"
        refuse_own(ask.key, ask.ident, ask.spec.name)
        await self._check_usable()
        if ask.undeclared or (apart and ask.spec.kind == "pivot" and ask.spec.at == "call"):
            async with _Block(await self._open_child(own_child_name(ask), None)) as inner:
                return await inner._watched(guarded_call(inner._session, ask), [ask.flight])
        done = await self._watched(guarded_call(self._session, ask), [ask.flight])
        if self.is_async and done.row.kind == "pivot" and done.row.state == "succeeded" and not done.replayed:
            self._session.state = "pivoted"
        return done

    async def _result(self, ask: Ask) -> Any:
        """Do what a program asked for, and return what it gets: a result, a ``Staged``, or an agent's output."""
        if ask.spec.kind == "agent":
            return (await self._delegate(ask))[0]
        return self._value(await self._perform(ask))

    async def _delegate(self, ask: Ask) -> tuple[Any, bool]:
        """Let an agent do what was asked of it, in a child run; return its output, and whether the record answered.

        The child is no call, so a call inside it that waits for a person suspends it together with its parent. The same
        request finds the same child: it goes on, or answers from the record.
        """
        refuse_without_run(ask.spec.name)
        await self._check_usable()
        name = own_child_name(ask)
        live, lineage = self._host.live, self._session.lineage
        live.enter(lineage)  # the parent does not end, and does not release the tree, while the agent works
        try:
            await self._take_turn(name, ask)
            try:
                inner = await self._open_child(name, agent_input(ask))
                if inner._over:
                    return inner.output, True
                inner._session.closing = agents.closing_of(inner._session)
                inner._is_agents = True
                return await inner._work(ask), False
            finally:
                self._session.memory.agents.discard(f"{self.id}/{name}")
        finally:
            live.leave(lineage)

    async def _work(self, ask: Ask) -> Any:
        """Let the agent of this child run work, and end the run.

        An agent that is stopped (cancelled, interrupted) leaves it open: the one who asked is stopped, too, and takes all
        of it back or goes on with it later.
        """
        stopped: BaseException | None = None
        value: Any = None
        try:
            async with _Block(self):
                await self._allow(ask)
                try:
                    self.output = value = await self._agent_body(ask)
                except Exception:
                    raise
                except BaseException as error:
                    stopped = error
                    raise Suspended(f"{ask.spec.name} was stopped", run_id=self.id) from None
                await self._wait_for_person()
        except Suspended:
            if stopped is None:
                raise
        if stopped is not None:
            raise stopped
        return value

    async def _take_turn(self, name: str, ask: Ask) -> None:
        """Wait up to the run's ``wait`` while another thread or task has asked the agent for the very same."""
        working, until, full = self._session.memory.agents, time.monotonic() + self._session.wait_s, f"{self.id}/{name}"
        while not working.add(full):
            if time.monotonic() >= until:
                raise Busy(
                    f"{ask.spec.name} is working on the same request in run {visible(full)}",
                    owner=self._session.lease.owner, retry_after=self._session.wait_s, run_id=self.id,
                )  # fmt: skip
            await self._pause(LEAVE_POLL_S)

    async def _allow(self, ask: Ask) -> None:
        """Raise unless the agent of this child run may begin."""
        await self._watched(agents.allow(self._session, ask), [])

    async def _approval_of_agent(self, ask: Ask) -> Approval | None:
        """Return the approval that the request to an agent itself would wait for, requesting it if needed."""
        if not await self._drive(agents.is_asked_about(self._session, ask)):
            return None
        inner = await self._open_child(own_child_name(ask), agent_input(ask))
        if inner._over:
            return None
        try:
            async with _Block(inner):
                await inner._watched(agents.ask_first(inner._session, ask), [])
        except Waiting as waits:
            return waits.approval if isinstance(waits, Held) else None
        raise AssertionError("ask_first always raises")

    async def _wait_for_person(self) -> None:
        """Raise ``Held`` if the agent of this child run returned while a call of it waits for a person."""
        await self._drive(agents.wait_for_person(self._session))

    async def _agent_body(self, ask: Ask) -> Any:
        """Run the agent itself: the program's own code, inside the block of its child run."""
        if ask.is_async and not self.is_async:
            raise WrongColour(
                f"{ask.spec.name} is async, and a blocking run awaits nothing: it would never begin",
                tool=ask.spec.name,
                hint="use AsyncRuntime, or declare a plain function that calls asyncio.run",
            )
        if self.is_async and not ask.is_async:
            made = await self._aside(functools.partial(ask.fn, **ask.fresh()))
        else:
            made = ask.fn(**ask.fresh())
        return await made if self.is_async and inspect.isawaitable(made) else made

    async def _perform_joined(self, declared: Declaration, options: Options, args: Any, kwargs: Any) -> Done:
        """Do one call in the caller's own transaction. If it is stopped, the database undoes it, so there is no doubt."""
        refuse_without_run(declared.name)
        refuse_ledger_use(f"a call in run {self.id}")
        runs.refuse_forked(self._pid, self.id)
        ask, joined = await self._aside(  # the first time it asks the database where the ledger is
            joined_calls.joined_ask, self._host, self._session, declared, options, args, kwargs, is_async=self.is_async
        )
        await self._refuse_own_transaction(but=options.connection)
        call = joined_calls.JoinedCall(self._host, self._session, ask, joined)
        try:
            return await call.run()
        except Exception:
            if call.is_over and not joined.is_open_on(joined.raw):
                await self._drive(joined_flows.doubt_after_lost_transaction(self._session, ask.flight))
            raise

    async def _watched(self, flow: Flow[T], flights: Sequence[Flight]) -> T:
        """Drive calls and count them as live meanwhile; if they are stopped, record them as in doubt."""
        live, lineage = self._host.live, self._session.lineage
        live.enter(lineage)
        try:
            return await self._drive(flow)
        except Exception:
            raise
        except BaseException:
            await self._stop(*flights)
            raise
        finally:
            live.leave(lineage)

    async def _stop(self, *flights: Any) -> None:
        """Record what these flights have started and not settled, because their flow was stopped."""
        with contextlib.suppress(LedgerError):  # recovery finds the call when the lease expires
            for flight in flights:
                await self._shield(self._drive(ending.stop_call(self._session, flight)))

    async def _conclude(self, flow: Flow[T]) -> T:
        """Drive a flow that ends the run; if it is stopped, record doubt, so that recovery can take the run at once."""
        try:
            return await self._drive(flow)
        except Exception:
            raise
        except BaseException:
            with contextlib.suppress(LedgerError):  # recovery finds the run when the lease expires
                await self._shield(self._drive(rolling_back.clean_up_stopped_flow(self._session)))
            raise

    def _value(self, done: Done) -> Any:
        return runs.value_of(self._host, self._session, done)

    async def _once(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Once[Any]:
        async with _Block(await self._open_child(f"once:{key}", None)) as inner:
            return await inner._told(once_ask(inner._session, key, fn, args, kwargs))

    async def _told(self, ask: Ask) -> Once[Any]:
        """Do undeclared code once, and tell whether it was executed or answered from the record."""
        done = await self._perform(ask)
        return Once(self._value(done), done.replayed, call_of(done.row, ask.spec))

    async def _begin(
        self, tool: str, args: Mapping[str, Any], key: Any, kind: str | None, cost: Costs | None, lease: float | None
    ) -> tuple[Ask, Done, WorkLease | None]:
        await self._check_usable()
        ask = runs.hand_ask(self._host, self._session, tool, args, key=key, kind=kind, cost=cost, lease=lease)
        done = await self._drive(ending.begin_by_hand(self._session, ask))
        if not ask.spec.remote or done.replayed:
            return ask, done, None
        return ask, done, await self._drive(work.grant(ask.spec.remote))

    async def _open_child(self, id: str | None, input: object) -> Self:
        await self._check_usable()
        opened, session = await self._drive(runs.child_of(self._host, self._session, id, input))
        over = is_over(opened) or session.state == "committed"
        return type(self)(self._host, self._driver, session, opened.run, over=over)

    async def _end_attempts(self, error: BaseException | None = None) -> None:
        """Before the run is left, end the open attempts that have ``at_leave``. The others become doubt or failed reads."""
        attempts = list(self._attempts)  # a copy: other threads may begin and end attempts meanwhile
        if is_a(error, LedgerError) or all(attempt.at_leave is None for attempt in attempts):
            return  # a ledger that fails would be retried for as long as the lease lasts
        if error is None or is_a(error, Exception):
            await self._drive(ending.wait_for_others(self._session))
        for attempt in list(self._attempts):
            try:
                if attempt.at_leave is not None:
                    ended = attempt.at_leave()
                    if self.is_async:
                        await ended
            except Exception as broken:
                words = f"{visible(attempt.call.tool)} was not ended before its run was left"
                log_error(log, logging.ERROR, words, broken)

    async def _leave_by(self, error: BaseException | None) -> None:
        output = None
        if error is None and self._output is not self._output_was:
            try:
                output = recorded_output(self._session, self._output)
            except UsageError as unstorable:  # the caller's mistake, so the run fails
                await self._leave_by(unstorable)
                raise
            self._output = readable_output(self._session, output, self._output)
        note = printable(await self._conclude(ending.leave(self._session, error, output)))
        if not note:
            return
        if error is not None:
            note_on(error, note)
        else:  # left pivoted: nobody is told by an error that something is still to be done
            who = "the worker in this process" if self._host.workers else "a worker (amends worker, or rt.worker())"
            note = f"{note}; {who} continues it"
            words = printable(await self._drive(ending.forward_log(self._session)))
            tell_pivoted(self._session, f"{words}; {who} continues it")
        self.note = note

    async def _count(self) -> None:
        """Write how often this run was answered from the record; if the ledger does not take it, it is not counted."""
        if self._is_replay or not self._session.replays or self._pid != os.getpid():
            return
        try:
            await self._drive(count_replays(self._session))
        except Exception as error:
            log.debug("the answers from the record of run %s were not counted: %s", visible(self.id), error)

    async def _release(self, *, is_quiet: bool | None = None) -> None:
        """Give up the run's lease and write a checkpoint.

        ``is_quiet``: log a failed checkpoint instead of raising; by default if an exception is being handled.
        """
        if is_quiet is None:
            is_quiet = sys.exc_info()[1] is not None
        self._over = True
        if self._session.replays:
            await self._count()
        if self._session.above:
            return  # a child has the lease of its root, which continues
        self._host.heartbeat.forget(self._session.lease)
        self._host.released += 1
        checkpointer = self._host.checkpointer
        if checkpointer.every_s == 0:  # the run waits for it; an event loop must not
            await self._aside(checkpointer.left, self.id, quiet=is_quiet)
        else:
            checkpointer.wake()


# ---- The verbs of a run, for both colours


async def answer(
    run: OpenRun,
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
    """Make the call that a model asked for and phrase the outcome for the model.

    ``handler``: the body of the tool, if it is not the declared one. ``tool_call_id``: the model's id of this request.
    ``again``: why this is a deliberate repeat of an earlier call. ``key``: the key of this call instead of the declared
    one: names of arguments, or a function of the request. ``schema``: the JSON schema of the arguments, of a tool whose
    handler does not name them: a request in other words is then the same request. ``agent``: if nobody declared the
    tool, it is an agent whose own calls are guarded: it works in a child run (as with ``kind="agent"``). ``apart``: a pivot
    is made in a child run of its own, so that the run goes on as before: for a run that is one long conversation.
    """
    try:
        if handler is None and again is None and key is None and not apart and run._pid == os.getpid():
            call = plain_model_request(run._host, run._session, tool, args, tool_call_id=tool_call_id)
            if call is not None:
                flight: Any = call  # it has all that a flight has
                value = await run._watched(plain_call(call), [flight])
                return model_answers.answer_done(run._session, call.ask(), call.outcome(value))
        ask = model_ask(
            run._host,
            run._session,
            tool,
            args,
            handler=handler,
            tool_call_id=tool_call_id,
            again=again,
            key=key,
            schema=schema,
            agent=agent,
        )
        if ask.spec.kind == "agent":
            return model_answers.answer_of_agent(*await run._delegate(ask))
        return model_answers.answer_done(run._session, ask, await run._perform(ask, apart=apart))
    except Exception as error:
        runs.log_for(run._session, error, tool)
        return model_answers.answer_error(run._session, tool, error)


async def is_repeat(run: OpenRun, call_id: str, tool: str, args: Mapping[str, Any] | str) -> bool:
    """Return whether this request means the recorded call: the same tool, and the same arguments in the eyes of the tool.

    For adapters that know a request by a name of their own, which other requests may have by mistake. Starts nothing.
    """
    ask = foreseen_ask(run._host, run._session, tool, args, tool_call_id=None)
    row = await run._drive(_call_row(call_id))
    return (row.tool, row.ident) == (ask.spec.name, ask.ident)


async def _call_row(call_id: str) -> CallRow:
    row = await ReadCall(call_id)
    if row is None:
        raise CallNotFound(call_id)
    return row


async def approval_for(
    run: OpenRun,
    tool: str,
    args: Mapping[str, Any] | str,
    *,
    tool_call_id: str | None = None,
    key: KeyRule | None = None,
    schema: Mapping[str, Any] | None = None,
    agent: bool = False,
) -> Approval | None:
    """Return the approval that this call would wait for, requesting it if needed; None if it needs none. Starts nothing.

    ``key``, ``schema``, ``agent``: as for ``answer``, which must be given the same.
    """
    ask = foreseen_ask(
        run._host, run._session, tool, args, tool_call_id=tool_call_id, key=key, schema=schema, agent=agent
    )
    refuse_without_run(ask.spec.name)
    await run._check_usable()
    if ask.spec.kind == "agent":
        return await run._approval_of_agent(ask)
    try:
        if not ask.undeclared:
            await run._watched(turns.ask_first(run._session, ask), [ask.flight])
        async with _Block(await run._open_child(own_child_name(ask), None)) as inner:
            await inner._watched(turns.ask_first(inner._session, ask), [ask.flight])
    except Waiting as waits:
        found: Approval | None = waits.approval if isinstance(waits, Held) else None
        return found


async def answer_all(run: OpenRun, calls: Iterable[ToolCall], /) -> list[Answer]:
    """Make the calls of one turn of a model in parallel, a pivot last, and phrase each outcome for the model.

    Each undeclared tool runs after the others, in a child run of its own. Agents work before the others, one by one.
    """
    calls = tuple(calls)
    asks = turn_asks(run._host, run._session, calls)
    told = await _agents_first(run, asks)
    known = [ask for place, ask in enumerate(asks) if place not in told and not _is_undeclared(ask)]
    try:
        if calls:
            refuse_without_run(calls[0].tool)
        await run._check_usable()
        ends = await run._watched(
            turns.run_turn(run._session, known), [ask.flight for ask in known if isinstance(ask, Ask)]
        )
    except Exception as error:  # no call can start here, so each of them has this error
        return runs.answers_of_turn(
            run._session, calls, asks, [ask if isinstance(ask, Exception) else error for ask in asks]
        )
    is_pivoted = any(isinstance(end, Done) and (end.row.kind, end.row.state) == ("pivot", "succeeded") for end in ends)
    if run.is_async and is_pivoted:
        run._session.state = "pivoted"
    rest = iter(ends)
    whole = [
        told[place] if place in told else await _end_of(run, ask) if _is_undeclared(ask) else next(rest)
        for place, ask in enumerate(asks)
    ]
    return runs.answers_of_turn(run._session, calls, asks, whole)


async def _agents_first(run: OpenRun, asks: list[Ask | Exception]) -> dict[int, Answer]:
    """Let the agents of a turn work; return what the model is told, by place. An error takes the place of its request."""
    told: dict[int, Answer] = {}
    for place, ask in enumerate(asks):
        if not isinstance(ask, Ask) or ask.spec.kind != "agent":
            continue
        try:
            told[place] = model_answers.answer_of_agent(*await run._delegate(ask))
        except Exception as error:
            asks[place] = error
    return told


def _is_undeclared(ask: Ask | Exception) -> bool:
    return isinstance(ask, Ask) and ask.undeclared


async def _end_of(run: OpenRun, ask: Ask | Exception) -> turns.End:
    assert isinstance(ask, Ask), "an undeclared tool has a request"
    try:
        return await run._perform(ask)
    except Exception as error:
        return error


async def execute(run: OpenRun, plan_: Sequence[object], /) -> list[Answer]:
    """Execute a model's plan: a list of ``{"tool", "args"}``; the calls of an inner list run in parallel."""
    await run._check_usable()
    flights: list[Flight] = []
    flow = model_plans.run_plan(run._session, plan_, parent=parent_call(), flights=flights)
    return await run._watched(flow, flights)


async def commit(run: OpenRun) -> None:
    """Commit the run: its effects stay."""
    runs.refuse_in_body(run.id, "committed")
    refuse_ledger_use(f"the commit of run {run.id}")
    await run._refuse_own_transaction()  # before the lease is released: the run may be committed after the transaction
    try:
        await run._shield(run._leave(None))
    except LedgerError:
        raise  # this process still owns the run, and may commit it again
    except BaseException:
        await run._release()
        raise
    await run._release()


async def rollback(run: OpenRun, why: str) -> NoReturn:
    """Compensate everything, then raise ``RolledBack``."""
    runs.refuse_in_body(run.id, "rolled back")
    await run._check_usable()
    await run._end_attempts()
    try:
        await run._shield(run._conclude(ending.roll_back_and_raise(run._session, why=why)))
    finally:
        await run._release()
        with contextlib.suppress(LedgerError):
            await run._refresh_state()
    raise AssertionError("take_back always raises")


async def leave(run: OpenRun, error: BaseException | None = None) -> None:
    """Leave the run as the end of a block does: commit it, roll it back over an error, suspend it over ``Waiting``.

    For runs from ``rt.open`` that end elsewhere than they began. ``error`` itself is not raised.
    """
    runs.refuse_in_body(run.id, "left")
    if not run._is_replay:
        refuse_ledger_use(f"the end of run {run.id}")
    await run._close(error, releases=True)


async def release(run: OpenRun, *, silent: float = 0.0) -> None:
    """Release the run without ending it: whoever opens it by its id continues it.

    Recovery leaves it alone until its ``client_lease`` has passed since its client was last heard of, ``silent`` seconds
    ago; then, or at once if it has no client lease, it follows the policy. What was started and has not ended is in doubt.
    """
    runs.refuse_in_body(run.id, "released")
    refuse_ledger_use(f"the release of run {run.id}")
    if run._session.above:
        raise UsageError(f"run {run.id} is a child: it is released with its root", run_id=run.id)
    runs.check_seconds("silent", silent)
    if run._over:
        return
    runs.refuse_forked(run._pid, run.id)
    await run._refuse_own_transaction()
    run._end_threads()
    await run._end_attempts()
    try:
        await run._shield(run._conclude(ending.let_go(run._session, silent_s=float(silent))))
    except LedgerError:
        raise  # this process still owns the run, and may release it again
    except BaseException:
        await run._release()
        raise
    await run._release()


async def renew_late(run: OpenRun, call_id: str, *, attempt: int) -> float:
    """Extend the work lease of an attempt that an earlier owner of this run handed out; return the seconds.

    For whoever has taken a run over while a performer was at work. The attempt stays in doubt, and its report is given to
    ``rt.report_late``. Raises ``LeaseLost`` if the lease is over, or the doubt is settled.
    """
    await run._check_usable()
    row = await run._drive(work.found(run._session, call_id))
    spec = run._host.specs.get(row.tool) or adhoc_spec(row.tool, run._host.redactor.hidden, kind="pivot")
    return await run._drive(work.late_renewal(run._session, spec, row.id, attempt))


async def before_end(run: OpenRun) -> str:
    """Return what to tell a model that is about to stop: what is missing or has failed, and what stopping now does.

    Empty if the run is complete, or if it was said before: a model is told once. The run is an agent's from now on
    (``run.for_agent``).
    """
    closing = run._session.closing
    run.for_agent()
    if closing.told or run._over:
        return ""
    text = await run._end_text()
    closing.told = bool(text)
    return text


async def now(run: OpenRun) -> datetime:
    """Return the current time and record it: it is the same after a resume and in a replay."""
    await run._check_usable()
    return await run._drive(read_clock(run._session, reader()))


async def report(run: OpenRun) -> Report:
    """Return what this run did so far."""
    return report_of(run._session, await run._tree(), ledger=run._host.store.url)


# ---- A blocking run


def refuse_async(fn: Callable[..., object], verb: str) -> None:
    """Raise ``WrongColour`` for an async function where nothing would await it."""
    if is_async_function(fn):
        name = getattr(fn, "__name__", type(fn).__name__)
        raise WrongColour(
            f"{name} is async, and {verb} of a blocking runtime awaits nothing: it would never begin",
            tool=name,
            hint="use AsyncRuntime, or give it a plain function that calls asyncio.run",
        )


@trims
class Run(OpenRun):
    """One task of an agent, as one saga. ``rt.run`` returns it; threads inside one block share it."""

    _driver: Driver

    @trims_itself  # or rather whoever makes it
    def __init__(self, host: Host, driver: Driver, session: Session, row: RunRow, *, over: bool) -> None:
        super().__init__(host, driver, session, row, over=over)
        self._pool: futures.ThreadPoolExecutor | None = None

    @property
    def state(self) -> RunState:
        """The run's state in the ledger now."""
        return finish(self._tree()).run.state  # type: ignore[return-value]  # the ledger's own words

    @overload
    def call(self, tool: Tool[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def call(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def call(self, tool: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a tool in this run, whether it is blocking or async."""
        declared, options = runs.declared_as(tool)
        return self.direct(declared, options, args, kwargs)

    @trims_itself  # or rather whoever calls it
    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what a tool does that is called inside this run's context; programs use ``call``."""
        if options.connection is not None:
            return self._value(finish(self._perform_joined(declared, options, args, kwargs)))
        call = plain_request(self._host, self._session, declared, options, args, kwargs)
        if call is not None and self._pid == process.pid:
            return self._plainly(call)
        ask = direct_ask(self._host, self._session, declared, options, args, kwargs)
        return finish(self._result(ask))

    def _plainly(self, call: PlainCall) -> Any:
        """Do one plain call, as ``_watched`` does any."""
        plain, number = self._host.live.plain, id(call)
        plain[number] = self._session.uid
        try:
            return self._driver.run(plain_call(call))
        except Exception:
            raise
        except BaseException:
            finish(self._stop(call))
            raise
        finally:
            del plain[number]

    answer = blocking(answer)
    approval_for = blocking(approval_for)
    is_repeat = blocking(is_repeat)
    answer_all = blocking(answer_all)
    execute = blocking(execute)

    @overload
    def once(self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run undeclared code once in this run, as a child run with its own pivot."""
        return finish(self._once(key, fn, args, kwargs)).value

    @overload
    def tell_once(
        self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Once[T]: ...
    @overload
    def tell_once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Once[R]: ...
    def tell_once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Once[Any]:
        """Do what ``once`` does, and return whether the code was executed or answered from the record."""
        return finish(self._once(key, fn, args, kwargs))

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
        """Start a call by hand. End it with ``attempt.succeed(result)`` or ``.fail(error)``; without either it is in doubt.

        ``key`` and ``cost`` are those of this call. ``kind``: "pivot" or "read", for a tool that is not declared.
        ``lease``: another process performs it, and may do so for so many seconds, unless ``attempt.renew()`` extends that;
        without a report by then it is in doubt.
        """
        return Attempt(self, *finish(self._begin(tool, args, key, kind, cost, lease)))

    @contextmanager
    def child(self, id: str | None = None, *, input: object = None) -> Iterator[Run]:
        """Open a run inside this one; it is rolled back with it."""
        try:
            with Entered(finish(self._open_child(id, input))) as inner:
                yield inner
        except BaseException as error:
            trim(error)
            raise

    def open_child(self, id: str | None = None, *, input: object = None) -> Run:
        """Open a run inside this one without a block: end it with ``commit`` or ``rollback`` before this one ends."""
        return finish(self._open_child(id, input))

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[R]:
        """Run ``fn`` in a thread that has this run; the end of the block waits for it."""
        refuse_async(fn, "run.submit")
        if self._pool is None:
            self._pool = futures.ThreadPoolExecutor(max_workers=32, thread_name_prefix=f"amends-run-{self.id}")
        live, lineage = self._host.live, self._session.lineage
        live.enter(lineage)
        try:
            future = self._pool.submit(self.bind(fn), *args, **kwargs)
        except BaseException:
            live.leave(lineage)  # it never started: nothing has to wait for it
            raise
        future.add_done_callback(lambda _: live.leave(lineage))
        return future

    def bind(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """Return the same function with this run as its context, in whichever thread calls it."""
        body = body_here()

        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            with within(self, body):
                try:
                    return fn(*args, **kwargs)
                except BaseException as error:
                    trim(error)
                    raise

        return bound

    commit = blocking(commit)
    rollback = blocking(rollback)
    before_end = blocking(before_end)
    now = blocking(now)
    leave = blocking(leave)
    release = blocking(release)
    renew_late = blocking(renew_late)
    report = blocking(report)

    # ---- for Runtime

    _tell = blocking(OpenRun._told)
    _stop_in_doubt = blocking(OpenRun._leave_in_doubt)

    def _ending(self, flow: Flow[T]) -> T:
        return finish(self._conclude(flow))

    # ---- steps

    async def _drive(self, flow: Flow[T]) -> T:
        return self._driver.run(flow)

    async def _shield(self, work: Coroutine[Any, Any, T]) -> T:
        return await work  # nothing cancels a thread

    async def _aside(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return fn(*args, **kwargs)

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (no event loop runs a blocking run)

    async def _close(self, error: BaseException | None, *, releases: bool) -> None:
        try:
            await self._leave(error)
        finally:
            if releases:
                await self._release()
            else:
                await self._count()

    async def _leave(self, error: BaseException | None) -> None:
        self._end_threads(wait=error is None or is_a(error, Exception))
        if self._over or (error is not None and self._pid != os.getpid()):
            return  # a forked child does not own the run, and does not end it
        runs.refuse_forked(self._pid, self.id)
        try:
            if self._session.lease.joined is not None:
                await self._refuse_own_transaction()
                if (open_elsewhere := await self._wait_for_transactions()) is not None:
                    raise open_elsewhere
        except TransactionOpen:
            if error is None:
                raise
            note_left_open(error, self.id)
        else:
            if self._attempts:
                await self._end_attempts(error)
            await self._leave_by(error)

    def _end_threads(self, *, wait: bool = True) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=wait)


# ---- A run on an event loop


@trims
class AsyncRun(OpenRun):
    """One task of an agent, as one saga. ``rt.run`` returns it; tasks inside one block share it."""

    is_async = True
    _driver: event_loop.AsyncDriver

    @trims_itself
    def __init__(
        self, host: Host, driver: event_loop.AsyncDriver, session: Session, row: RunRow, *, over: bool
    ) -> None:
        super().__init__(host, driver, session, row, over=over)
        self._pending = Pending()

    @property
    def state(self) -> RunState:
        """The run's state when it was last read: at opening, at its pivot, at the end. ``report`` reads the ledger."""
        return self._session.state  # type: ignore[return-value]  # the ledger's own words

    @overload
    async def call(self, tool: Tool[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def call(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @_tracked
    def call(self, tool: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a tool in this run, whether it is blocking or async."""
        declared, options = runs.declared_as(tool)
        return self.direct(declared, options, args, kwargs)

    @trims_itself
    async def direct(
        self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do what a tool does that is called inside this run's context; programs use ``call``."""
        if options.connection is not None:
            return self._value(await self._perform_joined(declared, options, args, kwargs))
        call = plain_request(self._host, self._session, declared, options, args, kwargs)
        if call is None or self._pid != process.pid:
            ask = direct_ask(self._host, self._session, declared, options, args, kwargs)
            return await self._result(ask)
        plain, number = self._host.live.plain, id(call)
        plain[number] = self._session.uid
        try:  # as ``_watched`` does it for any call
            return await self._driver.run(plain_call(call))
        except Exception:
            raise
        except BaseException:
            await self._stop(call)
            raise
        finally:
            del plain[number]

    answer = awaited(answer, tracked=True)
    approval_for = awaited(approval_for)
    is_repeat = awaited(is_repeat)
    answer_all = awaited(answer_all, tracked=True)
    execute = awaited(execute, tracked=True)

    @overload
    async def once(
        self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @_tracked
    async def once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run undeclared code once in this run, as a child run with its own pivot."""
        return (await self._once(key, fn, args, kwargs)).value

    @overload
    async def tell_once(
        self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Once[T]: ...
    @overload
    async def tell_once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Once[R]: ...
    @_tracked
    async def tell_once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Once[Any]:
        """Do what ``once`` does, and return whether the code was executed or answered from the record."""
        return await self._once(key, fn, args, kwargs)

    @_tracked
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
        """Start a call by hand. End it with ``attempt.succeed(result)`` or ``.fail(error)``; without either it is in doubt.

        ``key`` and ``cost`` are those of this call. ``kind``: "pivot" or "read", for a tool that is not declared.
        ``lease``: another process performs it, and may do so for so many seconds, unless ``attempt.renew()`` extends that;
        without a report by then it is in doubt.
        """
        return AsyncAttempt(self, *await self._begin(tool, args, key, kind, cost, lease))

    @asynccontextmanager
    async def child(self, id: str | None = None, *, input: object = None) -> AsyncIterator[AsyncRun]:
        """Open a run inside this one; it is rolled back with it."""
        try:
            async with AsyncEntered(await self._open_child(id, input)) as inner:
                yield inner
        except BaseException as error:
            trim(error)
            raise

    async def open_child(self, id: str | None = None, *, input: object = None) -> AsyncRun:
        """Open a run inside this one without a block: end it with ``commit`` or ``rollback`` before this one ends."""
        return await self._open_child(id, input)

    def submit(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Task[R]:
        """Start ``fn`` as a task that has this run; the end of the block waits for it."""
        live, lineage = self._host.live, self._session.lineage
        task = asyncio.ensure_future(self.bind(fn)(*args, **kwargs))
        live.enter(lineage)  # now: the task itself starts only when this one next suspends
        task.add_done_callback(lambda _: live.leave(lineage))
        return task

    def bind(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """Return the same function with this run as its context, in whichever task or thread calls it."""
        body = body_here()
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def bound_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with within(self, body):
                    try:
                        return await fn(*args, **kwargs)
                    except BaseException as error:
                        trim(error)
                        raise

            return bound_async  # type: ignore[return-value]

        @functools.wraps(fn)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            with within(self, body):
                made = fn(*args, **kwargs)
            return carried(made) if inspect.iscoroutine(made) else made  # type: ignore[return-value]

        async def carried(made: Coroutine[Any, Any, Any]) -> Any:
            with within(self, body):
                return await made  # a plain function returned it: nothing of it has run yet

        return bound

    commit = awaited(commit)
    rollback = awaited(rollback, tracked=True)
    before_end = awaited(before_end)
    now = awaited(now)
    leave = awaited(leave)
    release = awaited(release)
    renew_late = awaited(renew_late)
    report = awaited(report)

    # ---- for AsyncRuntime

    _tell = awaited(OpenRun._told)
    _stop_in_doubt = awaited(OpenRun._leave_in_doubt)

    async def _ending(self, flow: Flow[T]) -> T:
        return await self._conclude(flow)

    # ---- steps

    async def _drive(self, flow: Flow[T]) -> T:
        return await self._driver.run(flow)

    async def _shield(self, work: Coroutine[Any, Any, T]) -> T:
        return await event_loop.shielded(work) if event_loop.is_on_loop() else event_loop.on_own_loop(work)

    async def _aside(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(fn, *args, **kwargs)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _refresh_state(self) -> None:
        self._session.state = (await self._tree()).run.state

    async def _close(self, error: BaseException | None, *, releases: bool) -> None:
        """Leave the run, unless that would wait for a transaction of this very task; then release the lease if asked to.

        All of it is one shielded task: a coroutine that is closed while it waits here cannot cut it short.
        """
        if (
            not event_loop.is_on_loop()
        ):  # a coroutine or generator that outlived its loop, or is closed by a thread without one
            event_loop.on_own_loop(self._close(error, releases=releases))
            return
        kept: TransactionOpen | None = None
        cancelled: asyncio.CancelledError | None = None
        try:
            await self._refuse_own_transaction()
        except TransactionOpen as found:
            kept = found
        except asyncio.CancelledError as stop:
            cancelled = stop  # raised after the run has been left
        await event_loop.shielded(self._close_kept(error, kept, releases=releases))
        if cancelled is not None:
            raise cancelled

    async def _close_kept(self, error: BaseException | None, kept: TransactionOpen | None, *, releases: bool) -> None:
        """Leave the run; ``kept``: it cannot be left, because this transaction is open."""
        is_quiet = True
        try:
            kept = kept or await self._wait_for_transactions()
            if kept is None:
                await self._leave(error)
            elif error is None:
                raise kept
            else:
                note_left_open(error, self.id)
            is_quiet = error is not None
        finally:
            self._pending.clear()
            if releases:
                await self._release(is_quiet=is_quiet)
            else:
                await self._count()

    async def _leave(self, error: BaseException | None) -> None:
        mistake = await self._not_awaited() if error is None and self._pending else None
        if self._over and mistake is not None:
            raise mistake
        if self._over or (error is not None and self._pid != os.getpid()):
            return  # a forked child does not own the run, and does not end it
        runs.refuse_forked(self._pid, self.id)
        if self._attempts:
            await self._end_attempts(error)
        try:
            await self._leave_by(mistake or error)
            if mistake is not None:
                raise mistake
        finally:
            with contextlib.suppress(LedgerError):
                await self._refresh_state()

    async def _not_awaited(self) -> NotAwaited | None:
        """Return the error for calls that were made and never awaited, after every task had a chance to await its own."""
        for _ in range(TICKS_MAX):  # a task that was only just started awaits its call now
            await asyncio.sleep(0)
        if self._pending.names() and not self._over:
            await self._let_others_end()
        names = self._pending.names()
        self._pending.clear()
        if not names:
            return None
        shown = some_in_words(dict.fromkeys(names))
        return NotAwaited(
            f"run {self.id} was left, and a call in it was never awaited: {shown}. Nothing of it was done; say `await`.",
            tool=names[0],
            tools=names,
            run_id=self.id,
        )

    async def _let_others_end(self) -> None:
        await self._drive(ending.wait_for_others(self._session))


# ---- Calls that are started by hand


class OpenAttempt:
    """A call started by hand, of either colour."""

    def __init__(self, run: OpenRun, ask: Ask, done: Done, lease: WorkLease | None = None) -> None:
        self._run, self._ask, self._row = run, ask, done.row
        self.replayed = done.replayed
        self._value = done.value
        self._open = not done.replayed
        self._spent: dict[str, int] = {}
        self._around = sys.exception()
        """The exception that the caller was handling at the beginning. It is no part of a later failure."""
        self._work = lease
        self._lock = _NO_LOCK if lease is None else threading.Lock()
        """Held while it is decided whether the work lease is renewed or over."""
        self._lapsed = False
        if self._open:
            run._attempts.add(self)
        if lease is not None:
            run._host.work_leases.watch(lease, self._lapse)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._row.tool!r}, {'open' if self._open else 'ended'}>"

    @property
    def call(self) -> Call:
        """The call in the ledger; its key is the idempotency key for the provider."""
        return call_of(self._row, self._ask.spec)

    @property
    def call_id(self) -> str:
        """The id of the call; ``call`` is all of it, and costs more."""
        return self._row.id

    @property
    def key(self) -> str:
        """The idempotency key for the provider."""
        return provider_key(self._row)

    @property
    def number(self) -> int:
        """Which attempt of the call it is."""
        return self._row.attempt

    @property
    def state(self) -> CallState:
        """The state of the call as this process last wrote it."""
        return self._row.state  # type: ignore[return-value]  # the ledger's own words

    @property
    def result(self) -> Any:
        """The recorded result, if the call was answered from the record."""
        return self._value

    @property
    def lease(self) -> float:
        """The work lease in seconds, if another process performs the call; 0.0: this process does."""
        return 0.0 if self._work is None else self._work.lease_s

    @property
    def epoch(self) -> int:
        """The epoch of the run's owner that has started the attempt: a report under another epoch is evidence only."""
        return self._run._session.lease.epoch

    def spent(self, amount: Number, unit: str = "usd") -> None:
        """Record what this attempt really cost; several amounts add up. Call it before the attempt ends."""
        try:
            unit = unit_of(unit)
            self._spent[unit] = self._spent.get(unit, 0) + billionths(amount)
        except ValueError as error:
            raise UsageError(f"spent() of {self._row.tool}: {error}") from error

    async def _end(self, ended: Ended) -> None:
        if not self._open and not self._lapsed:
            raise UsageError(f"the attempt of {self._row.tool} has already ended")
        run = self._run
        await run._refuse_own_transaction()
        if self._work is None:
            flow = ending.end_by_hand(run._session, self._ask, self._row, ended, said=self._spent)
        else:
            flow = work.end(run._session, self._ask, self._row, ended, said=self._spent, is_late=self._lapsed)
        self._row = await run._drive(flow)
        self._value, self._lapsed = ended.value, False
        self._is_over()

    async def _leave(self, error: BaseException | None) -> None:
        if not self._open:
            return
        self._is_over()
        run = self._run
        if is_a(error, Exception):
            ended = Ended(error=error, around=self._around)
            flow = ending.end_by_hand(run._session, self._ask, self._row, ended, said=self._spent)
        else:
            flow = ending.doubt_by_hand(run._session, self._ask, self._row, said=self._spent)
        self._row = await run._drive(flow)

    def _is_over(self) -> None:
        """Note that the attempt has ended."""
        self._open = False
        self._run._attempts.discard(self)
        if self._work is not None:
            self._run._host.work_leases.forget(self._work)

    def _lapse(self) -> None:
        """Record the attempt as in doubt if its work lease is over and it has not ended."""
        run, lease = self._run, self._work
        assert lease is not None, "only an attempt with a work lease is watched"
        driver = run._driver.blocking if run.is_async else run._driver
        with self._lock:
            if not self._open or driver.mono() < lease.over_at:
                return  # it has ended, or was renewed
            self._open, self._lapsed = False, True
        try:
            self._row = driver.run(work.lapse(run._session, self._ask, self._row, lease, said=self._spent))
        except LeaseLost:
            pass  # its outcome came in the same moment, or the next owner has made it doubt
        except BaseException:
            self._open, self._lapsed = self._lapsed, False  # unless its outcome came meanwhile
            raise
        self._is_over()


async def succeed(attempt: OpenAttempt, result: object = None) -> None:
    """Record that the call happened, with this result."""
    await attempt._end(Ended(result))


async def fail(attempt: OpenAttempt, error: BaseException | str) -> None:
    """Record that the call certainly had no effect."""
    await attempt._end(Ended(error=runs.certain(error)))


async def raised(attempt: OpenAttempt, error: Exception) -> None:
    """Record that whoever performed the call ended with this error: it is judged as if the tool's body had raised it."""
    if not is_a(error, Exception):
        raise UsageError(f"raised() of {attempt._row.tool} takes an exception, not {type(error).__name__}")
    await attempt._end(Ended(error=error, around=attempt._around))


async def doubt(attempt: OpenAttempt, why: str) -> None:
    """Record that nobody knows whether the call happened, and why."""
    await attempt._end(Ended(error=TimeoutError(clean(why))))


async def renew(attempt: OpenAttempt) -> float:
    """Extend the work lease by its length from now; return the seconds.

    Raises ``LeaseLost`` if it is over, the attempt has ended, or the run has another owner: then the performer stops, if
    it can, and its report is evidence.
    """
    lease, run = attempt._work, attempt._run
    if lease is None:
        raise UsageError(
            f"the attempt of {attempt._row.tool} has no work lease to renew", hint="run.begin(..., lease=seconds)"
        )
    until = await run._drive(work.renewal(run._session, attempt._row, lease))
    with attempt._lock:
        if not attempt._open:
            raise work.over(attempt._row, lease.lease_s)
        lease.until = max(lease.until, until)
    return lease.lease_s


@trims
class Attempt(OpenAttempt):
    """A call started by hand. As a context manager it is safe: a block that records no end leaves it in doubt."""

    at_leave: Callable[[], object] | None = None
    """Called if the run is left while the attempt is open, to record what is known by then. Its errors are logged."""

    succeed = blocking(succeed)
    fail = blocking(fail)
    raised = blocking(raised)
    doubt = blocking(doubt)
    renew = blocking(renew)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        finish(self._leave(error))


@trims
class AsyncAttempt(OpenAttempt):
    """A call started by hand. As a context manager it is safe: a block that records no end leaves it in doubt."""

    at_leave: Callable[[], Coroutine[Any, Any, object]] | None = None
    """Called if the run is left while the attempt is open, to record what is known by then. Its errors are logged."""

    succeed = awaited(succeed)
    fail = awaited(fail)
    raised = awaited(raised)
    doubt = awaited(doubt)
    renew = awaited(renew)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave(error)


# ---- The block of a run


class _Block(Generic[RunT]):
    """The scope of a run, and the span around it. It may end in another context, thread or task than it began."""

    def __init__(self, run: RunT) -> None:
        self.run = run
        self._scope: Scope | None = None
        live = run._host.live
        self._around = None if live.entered is None else live.block(run._session.uid)
        self._is_root = not run._session.above
        """A child has the lease of its root, which continues."""
        self._is_dropped = False

    async def __aenter__(self) -> RunT:
        return self._enter()

    def _enter(self) -> RunT:
        assert self._scope is None, "a block is entered once"
        self._scope = enter_block(self.run)
        if self._around is not None:
            self._around.__enter__()
        return self.run

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._end_scope() and not self._is_dropped:
            return
        self._is_dropped = False
        try:
            await self.run._close(error, releases=self._is_root)
        finally:
            self._end()

    def hand_over(self) -> None:
        """End the scope and leave the run as it is: a block of the other colour continues it."""
        if self._end_scope():
            self._end()

    def _end(self) -> None:
        assert self._scope is not None, "a block is left after it was entered"
        self._scope.is_over = True
        if self._around is not None:
            self._around.__exit__(None, None, None)

    def _end_scope(self) -> bool:
        """End the scope, in any context; return False if it was left before."""
        scope = self._scope
        if scope is None or scope.is_left:
            return False
        leave_scope(scope, is_over=False)
        return True

    def __del__(self) -> None:
        # A generator whose loop is closed may be dropped without being closed. Its run must not be kept alive for ever.
        # If both are in one cycle, the collector may call this first and close the generator then: ``__aexit__`` follows.
        scope = self._scope
        if scope is not None and not scope.is_left and self._end_scope() and self._is_root:
            scope.is_over = self._is_dropped = True
            self.run._host.heartbeat.forget(self.run._session.lease)
            log.warning(
                "the block of run %s was dropped without being left; it is recovered by its policy when its lease ends",
                self.run.id,
            )


class Entered(_Block[Run]):
    """``with`` for a run: sets the context; the end commits, rolls back or suspends, by the table of nine ways out."""

    def __enter__(self) -> Run:
        return self._enter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        finish(self.__aexit__(kind, error, trace))


class AsyncEntered(_Block[AsyncRun]):
    """``async with`` for a run: sets the context; the end is that of ``Entered``."""
