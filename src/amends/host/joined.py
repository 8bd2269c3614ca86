"""Drives a call that rides in the caller's own transaction, in both colours.

Two savepoints: one around the body, so that a body that fails leaves nothing; one around the whole call, so that a
call that cannot be written down to its end never was. So a rider is never in flight, and a kill leaves no doubt:
the database undoes what was not committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import replace
from itertools import count
from typing import Any, Final, TypeVar

from amends.drivers import process
from amends.drivers.context import inside, parent_call
from amends.engine.call import Done
from amends.engine.joined import joined_call, riding_spec
from amends.engine.session import Ask, Session, ask_for
from amends.errors import CannotJoin, WrongColour, note_on, words_of
from amends.host.host import Host
from amends.ledger.flow import Flow, run_flow
from amends.ledger.joined import Joined, Joining, Rides
from amends.ledger.operations import StoreOp
from amends.ledger.world import Ended, Invoke, ReadClocks
from amends.tools.spec import Declaration, Spec
from amends.tools.tool import Options

T = TypeVar("T")

KINDS: Final = ("compensatable", "read")
"""What may ride: a caller who rolls back would take back what cannot be taken back, or has been promised."""

_numbers: Final = count(1)


def joined_ask(
    host: Host, session: Session, declared: Declaration, options: Options, args: Any, kwargs: Any, *, is_async: bool
) -> tuple[Ask, Joined]:
    """The request, and the ledger through its connection; raises ``CannotJoin`` before anything is recorded."""
    spec = host.spec_for(declared)
    _check_tool(spec, options)
    if not isinstance(host.store, Joining):
        raise CannotJoin(
            f"{spec.name}: connection= needs a ledger in the caller's own database, and {host.store.url} is none",
            tool=spec.name,
            hint="keep the ledger in SQLite, PostgreSQL or MariaDB",
        )
    if spec.is_async != is_async:
        kind = "an async" if is_async else "a blocking"
        raise WrongColour(
            f"{spec.name} cannot ride in {kind} run: tool, run and connection must have one colour",
            tool=spec.name,
            hint=f"declare {kind} tool for it",
        )
    joined = host.store.joined(options.connection, tool=spec.name)
    if joined.is_async != is_async:
        raise CannotJoin(
            f"{spec.name}: the connection is {'async' if joined.is_async else 'blocking'}, and the run is not",
            tool=spec.name,
            hint="tool, run and connection must have one colour",
        )
    ask = ask_for(session, spec, spec.bind(args, kwargs), again=options.again, parent=parent_call())
    return replace(ask, spec=riding_spec(spec)), joined


def _check_tool(spec: Spec, options: Options) -> None:
    if spec.kind not in KINDS or spec.at == "commit":
        what = "is done at commit" if spec.at == "commit" else f"is {spec.kind}"
        raise CannotJoin(
            f"{spec.name} {what}: only compensatable calls and reads may ride in a transaction of the caller's",
            tool=spec.name,
            hint="call it without connection=, after the transaction",
        )
    if options.timeout is not None or spec.timeout is not None:
        raise CannotJoin(
            f"{spec.name} has a timeout: past it a body would go on in the background, on the caller's connection",
            tool=spec.name,
            hint="let the database limit its statements, and leave out timeout=",
        )


class Ride:
    """One call in the caller's transaction."""

    def __init__(self, host: Host, session: Session, ask: Ask, joined: Joined) -> None:
        self._ask, self._joined, self._live, self._lineage = ask, joined, host.live, session.lineage
        self._sealing = host.hiding.sealing
        self._name = f"amends_call_{next(_numbers)}"
        self._body = f"{self._name}_body"
        self._is_written = False
        """What the flow last asked of the ledger is in the transaction."""
        self.is_over = False
        """The body has ended the transaction: what became of the call has to be looked up."""
        self._flow: Flow[Done] = joined_call(session, ask, is_undone=joined.is_own)
        lease = session.lease
        if lease.rides is None:
            lease.rides = Rides()
        lease.rides.add(joined)

    # ---- blocking -------------------------------------------------------------------------

    def run(self) -> Done:
        """Do the call. What it raises is either recorded in the transaction, or the call never was."""
        joined = self._joined
        self._live.enter(self._lineage)
        try:
            joined.run(joined.board(self._name, self._ask.spec.name))
            done = run_flow(self._flow, self._perform)
        except BaseException as error:
            undone = self._is_to_be_undone(error)
            with contextlib.suppress(Exception):  # the transaction, or its connection, is gone: and all with it
                joined.run(joined.back(self._name) if undone else joined.forget(self._name))
            raise
        finally:
            self._flow.close()
            self._live.leave(self._lineage)
        joined.run(joined.forget(self._name))
        return done

    def _perform(self, op: Any) -> Any:
        joined = self._joined
        if isinstance(op, StoreOp):
            self._is_written = False
            self._seal(op)
            answer = joined.run(joined.answer(op))
            self._is_written = True
            return answer if self._sealing is None else self._sealing.opened(answer)
        if isinstance(op, ReadClocks):
            return process.clocks()
        assert isinstance(op, Invoke), f"a rider asked for {op!r}"
        joined.run(joined.mark(self._body))
        ended = self._invoked(op)
        try:
            joined.run(joined.forget(self._body) if ended.error is None else joined.back(self._body))
        except Exception as error:
            raise self._lost(ended, error) from error
        return ended

    def _seal(self, op: StoreOp[Any]) -> None:
        if self._sealing is not None:
            self._sealing.seal(op)

    def _invoked(self, op: Invoke) -> Ended:
        self._ask.flight.sent = True
        around = sys.exception()
        try:
            with inside(op.run, op.call, op.phase, is_async=False):
                return Ended(op.fn(**op.kwargs))
        except Exception as error:
            return Ended(error=error, around=around)

    # ---- awaited --------------------------------------------------------------------------

    async def run_async(self) -> Done:
        """The same, awaited. A cancellation comes out when the transaction is in order again."""
        joined = self._joined
        self._live.enter(self._lineage)
        try:
            await _whole(joined.run_async(joined.board(self._name, self._ask.spec.name)))
            done = await self._driven()
        except BaseException as error:
            undone = self._is_to_be_undone(error)
            with contextlib.suppress(Exception):
                await _whole(joined.run_async(joined.back(self._name) if undone else joined.forget(self._name)))
            raise
        finally:
            self._flow.close()
            self._live.leave(self._lineage)
        await _whole(joined.run_async(joined.forget(self._name)))
        return done

    async def _driven(self) -> Done:
        flow = self._flow
        try:
            op = flow.send(None)
            while True:
                try:
                    answer = await self._perform_async(op)
                except Exception as error:
                    op = flow.throw(error)
                else:
                    op = flow.send(answer)
        except StopIteration as stop:
            done: Done = stop.value
            return done

    async def _perform_async(self, op: Any) -> Any:
        joined = self._joined
        if isinstance(op, StoreOp):
            self._is_written = False
            self._seal(op)
            answer = await _whole(joined.run_async(joined.answer(op)))
            self._is_written = True
            return answer if self._sealing is None else self._sealing.opened(answer)
        if isinstance(op, ReadClocks):
            return process.clocks()
        assert isinstance(op, Invoke), f"a rider asked for {op!r}"
        await _whole(joined.run_async(joined.mark(self._body)))
        self._ask.flight.sent = True
        around = sys.exception()
        try:
            with inside(op.run, op.call, op.phase, is_async=True):
                ended = Ended(await op.fn(**op.kwargs))
        except Exception as error:
            ended = Ended(error=error, around=around)
        try:
            ending = joined.forget(self._body) if ended.error is None else joined.back(self._body)
            await _whole(joined.run_async(ending))
        except Exception as error:
            raise self._lost(ended, error) from error
        return ended

    # ---- when it goes wrong ---------------------------------------------------------------

    def _is_to_be_undone(self, error: BaseException) -> bool:
        """Whether nothing of the call may stay: it was stopped, could not be written down, or is not settled."""
        is_settled = self._is_written and self._ask.flight.call is None
        return not is_settled or not isinstance(error, Exception)

    def _lost(self, ended: Ended, error: Exception) -> Exception:
        """The savepoint is gone: the server has undone the transaction, or the body has ended it."""
        if ended.error is not None and self._joined.is_own(ended.error):
            note_on(ended.error, "amends: the whole transaction is gone with this; the call never was")
            return ended.error
        self.is_over = True
        tool = self._ask.spec.name
        return CannotJoin(
            f"the body of {tool} ended the caller's transaction, in which its own record is kept ({words_of(error)})",
            tool=tool,
            hint="leave commit and rollback to the caller; sqlite3's executescript commits too",
        )


async def _whole(work: Any) -> Any:
    """Its outcome, however often this task is cancelled meanwhile; then the cancellation is raised."""
    running = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as stop:
            cancelled = stop
    if cancelled is not None:
        if not running.cancelled():
            running.exception()  # looked at: nobody else will
        raise cancelled
    return running.result()
