"""One opened run, blocking: what a program does inside ``with rt.run(...)``."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, overload

from amends import people, turns
from amends.attempts import Attempt, end_open
from amends.blocks import Entered
from amends.budget import Costs
from amends.context import body_here, parent_call, reader, refuse_nowhere, refuse_own, refuse_reaching, within
from amends.drawn import dice, new_name
from amends.drive import Driver
from amends.engine import ending, landing, leaving, plan
from amends.engine.call import Done, guarded_call
from amends.engine.joining import doubt_left
from amends.engine.session import Ask, Session
from amends.engine.telling import answer_done, answer_error, info_of, output_gone, report_of
from amends.engine.values import read_clock
from amends.errors import LedgerError, TransactionOpen, UsageError
from amends.flow import Flow
from amends.hiding import given_to, output_of, output_said, output_seen
from amends.hub import Hub, is_over
from amends.joining import LEAVE_POLL_S, note_left_open, refuse_waiting, still_open
from amends.ledger import Tree
from amends.model import Answer, Approval, ToolCall
from amends.ops import Flight
from amends.phrases import is_a, note_on
from amends.report import Report
from amends.requesting import direct_ask, model_ask, once_ask, stranger_name
from amends.rows import RunRow
from amends.states import RunState
from amends.tool import Declaration, Options, Tool
from amends.visible import printable

if TYPE_CHECKING:
    from datetime import datetime
    from random import Random
    from uuid import UUID

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Run:
    """One task of an agent: one saga. Received from ``rt.run``; threads inside one block share it."""

    is_async = False
    _is_nowhere = False
    _is_replay = False

    def __init__(self, hub: Hub, driver: Driver, session: Session, row: RunRow, *, over: bool) -> None:
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
        declared, options = people.declared_as(tool)
        return self.direct(declared, options, args, kwargs)

    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a tool called inside this run's context does; use ``call``."""
        if options.connection is not None:
            return self._value(self._ride(declared, options, args, kwargs))
        return self._value(self._do(direct_ask(self._hub, self._session, declared, options, args, kwargs)))

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
                self._hub, self._session, tool, args, handler=handler, tool_call_id=tool_call_id, again=again
            )
            return answer_done(self._session, ask, self._do(ask))
        except Exception as error:
            people.log_for(self._session, error, tool)
            return answer_error(self._session, tool, error)

    def approval_for(
        self, tool: str, args: Mapping[str, Any] | str, *, tool_call_id: str | None = None
    ) -> Approval | None:
        """The request that this call would wait for, made if it was not yet; None: nobody is asked. Starts nothing."""
        return turns.approval_for(self, tool, args, tool_call_id)

    def answer_all(self, calls: Iterable[ToolCall], /) -> list[Answer]:
        """Do what a model asked for in one turn, side by side and a pivot last, and phrase each outcome for it."""
        return turns.answer_all(self, tuple(calls))

    def execute(self, plan_: Sequence[object], /) -> list[Answer]:
        """A model's plan: a list of ``{"tool", "args"}``; inner lists run in parallel."""
        self._check_here()
        flights: list[Flight] = []
        flow = plan.run_plan(self._session, plan_, parent=parent_call(), flights=flights)
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
        ask = people.hand_ask(self._hub, self._session, tool, args, key=key, kind=kind, cost=cost)
        done = self._flow(leaving.begin_by_hand(self._session, ask))
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
        live, lineage = self._hub.live, self._session.lineage
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
        people.refuse_in_body(self.id, "committed")
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
        people.refuse_in_body(self.id, "rolled back")
        self._check_here()
        end_open(self)
        try:
            self._ending(leaving.take_back(self._session, why=why))
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
        people.refuse_in_body(self.id, "left")
        if not self._is_replay:
            refuse_reaching(f"the end of run {self.id}")
        try:
            self._leave(error)
        finally:
            self._release()

    def report(self) -> Report:
        """What this run did so far."""
        return report_of(self._session, self._tree(), ledger=self._hub.store.url)

    # ---- inside ---------------------------------------------------------------------------

    def _flow(self, flow: Flow[T]) -> T:
        return self._driver.run(flow)

    def _tree(self) -> Tree:
        return people.found(self._flow(people.read(uid=self._session.uid)), self.id)

    def _check_here(self) -> None:
        people.refuse_forked(self._pid, self.id)
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
        from amends.riding import Ride, joined_ask  # few ride, and it needs asyncio

        refuse_nowhere(declared.name)
        refuse_reaching(f"a call in run {self.id}")
        people.refuse_forked(self._pid, self.id)
        ask, joined = joined_ask(self._hub, self._session, declared, options, args, kwargs, is_async=False)
        self._refuse_waiting(but=options.connection)
        ride = Ride(self._hub, self._session, ask, joined)
        try:
            return ride.run()
        except Exception:
            if ride.is_over and not joined.is_open_on(joined.raw):
                self._flow(doubt_left(self._session, ask.flight))
            raise

    def _watched(self, flow: Flow[T], flights: Sequence[Flight]) -> T:
        """Calls: live while they run, doubt if they are stopped."""
        live, lineage = self._hub.live, self._session.lineage
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
                self._flow(landing.stop_here(self._session))
            raise

    def _value(self, done: Done) -> Any:
        return people.value_of(self._hub, self._session, done)

    def _open_child(self, id: str | None, input: object) -> Run:
        self._check_here()
        opened, session = self._flow(people.child_of(self._hub, self._session, id, input))
        return Run(self._hub, self._driver, session, opened.run, over=is_over(opened) or session.state == "committed")

    def _leave(self, error: BaseException | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=error is None or is_a(error, Exception))
        if self._over or (error is not None and self._pid != os.getpid()):
            return  # in a forked child it is not ours to leave
        people.refuse_forked(self._pid, self.id)
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
        note = self._ending(leaving.leave(self._session, error, output))
        if error is not None and note:
            note_on(error, printable(note))

    def _release(self) -> None:
        self._over = True
        if not self._session.above:  # a child's lease is its root's, which goes on
            self._hub.keeper.forget(self._session.lease)
            self._hub.checkpointer.left(self.id, quiet=sys.exc_info()[1] is not None)
