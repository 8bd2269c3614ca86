"""A call inside the caller's own transaction: one flow, driven blocking or on an event loop.

There are two savepoints: one around the body, so that a body that fails leaves nothing; one around the whole call, so
that a call whose record cannot be completed leaves nothing at all. So such a call is never in flight, and a kill
leaves no doubt: the database rolls back what was not committed.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from itertools import count
from typing import Any, Final

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
from amends.stores.aio import run_flow_async, uninterrupted
from amends.tools.spec import Declaration, Spec
from amends.tools.tool import Options

KINDS: Final = ("compensatable", "read")
"""The kinds that may join: if the caller rolled back any other, it would undo what was promised to stay."""

_numbers: Final = count(1)


def joined_ask(
    host: Host, session: Session, declared: Declaration, options: Options, args: Any, kwargs: Any, *, is_async: bool
) -> tuple[Ask, Joined]:
    """Return the request, and the ledger through ``options.connection``.

    Raises ``CannotJoin`` or ``WrongColour`` before anything is recorded. ``args`` and ``kwargs`` are the tool's
    arguments; ``is_async`` says whether the run is.
    """
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
            f"{spec.name} cannot join a transaction in {kind} run: tool, run and connection must all be blocking, "
            "or all be async",
            tool=spec.name,
            hint=f"declare {kind} tool for it",
        )
    joined = host.store.joined(options.connection, tool=spec.name)
    if joined.is_async != is_async:
        raise CannotJoin(
            f"{spec.name}: the connection is {'async' if joined.is_async else 'blocking'}, and the run is not",
            tool=spec.name,
            hint="tool, run and connection must all be blocking, or all be async",
        )
    ask = ask_for(session, spec, spec.bind(args, kwargs), again=options.again, parent=parent_call())
    return replace(ask, spec=riding_spec(spec)), joined


def _check_tool(spec: Spec, options: Options) -> None:
    if spec.kind not in KINDS or spec.at == "commit":
        what = "runs at commit" if spec.at == "commit" else f"is {spec.kind}"
        raise CannotJoin(
            f"{spec.name} {what}: only compensatable calls and reads may join the caller's transaction",
            tool=spec.name,
            hint="call it without connection=, after the transaction",
        )
    if options.timeout is not None or spec.timeout is not None:
        raise CannotJoin(
            f"{spec.name} has a timeout: after it, the body would go on in the background, on the caller's connection",
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
        """Whether the last operation on the ledger is in the transaction."""
        self.is_over = False
        """Whether the body has ended the transaction: then the ledger must be asked what became of the call."""
        self._flow: Flow[Done] = joined_call(session, ask, is_undone=joined.is_own)
        lease = session.lease
        if lease.rides is None:
            lease.rides = Rides()
        lease.rides.add(joined)

    def run(self) -> Done:
        """Carry out the call. If it raises, the failure is recorded in the transaction, or nothing of the call is."""
        joined = self._joined
        self._live.enter(self._lineage)
        try:
            done = run_flow(self._through_joined(), self._perform)
        except BaseException as error:
            with contextlib.suppress(Exception):  # the transaction or its connection is gone, and the call with it
                run_flow(self._ended_by(error), joined.execute)
            raise
        finally:
            self._flow.close()
            self._live.leave(self._lineage)
        run_flow(joined.release(self._name), joined.execute)
        return done

    async def run_async(self) -> Done:
        """Do the same on an event loop. A cancellation is raised when the transaction is in order again."""
        joined = self._joined
        self._live.enter(self._lineage)
        try:
            done = await run_flow_async(self._through_joined(), self._perform_async)
        except BaseException as error:
            with contextlib.suppress(Exception):
                await uninterrupted(run_flow_async(self._ended_by(error), joined.execute))
            raise
        finally:
            self._flow.close()
            self._live.leave(self._lineage)
        await uninterrupted(run_flow_async(joined.release(self._name), joined.execute))
        return done

    # ---- The flow: it asks for statements, and for the body

    async def _through_joined(self) -> Done:
        """Run the flow of the call with its operations carried out in the caller's transaction."""
        await self._joined.begin(self._name, self._ask.spec.name)
        flow = self._flow
        try:
            op = flow.send(None)
            while True:
                try:
                    answer = await self._answered(op)
                except Exception as error:
                    op = flow.throw(error)
                else:
                    op = flow.send(answer)
        except StopIteration as stop:
            done: Done = stop.value
            return done

    async def _answered(self, op: Any) -> Any:
        joined = self._joined
        if isinstance(op, StoreOp):
            self._is_written = False
            if self._sealing is not None:
                self._sealing.seal(op)
            answer = await joined.perform(op)
            self._is_written = True
            return answer if self._sealing is None else self._sealing.opened(answer)
        if isinstance(op, ReadClocks):
            return process.clocks()
        assert isinstance(op, Invoke), f"a call in a joined transaction asked for {op!r}"
        await joined.savepoint(self._body)
        ended: Ended = await op
        try:
            await (joined.release(self._body) if ended.error is None else joined.roll_back_to(self._body))
        except Exception as error:
            raise self._lost(ended, error) from error
        return ended

    async def _ended_by(self, error: BaseException) -> None:
        """Undo the call if it was stopped, could not be recorded or is not settled; else keep its record."""
        is_settled = self._is_written and self._ask.flight.call is None
        if is_settled and isinstance(error, Exception):
            await self._joined.release(self._name)
        else:
            await self._joined.roll_back_to(self._name)

    def _lost(self, ended: Ended, error: Exception) -> Exception:
        """Return the error for a lost savepoint: the server rolled back the transaction, or the body ended it."""
        if ended.error is not None and self._joined.is_own(ended.error):
            note_on(ended.error, "amends: this rolled back the whole transaction, with the record of the call")
            return ended.error
        self.is_over = True
        tool = self._ask.spec.name
        return CannotJoin(
            f"the body of {tool} ended the caller's transaction, which holds its own record ({words_of(error)})",
            tool=tool,
            hint="leave commit and rollback to the caller; sqlite3's executescript commits too",
        )

    # ---- Performing what the flow asks for

    def _perform(self, op: Any) -> Any:
        if not isinstance(op, Invoke):
            return self._joined.execute(op)
        self._ask.flight.sent = True
        around = sys.exception()
        try:
            with inside(op.run, op.call, op.phase, is_async=False):
                return Ended(op.fn(**op.kwargs))
        except Exception as error:
            return Ended(error=error, around=around)

    async def _perform_async(self, op: Any) -> Any:
        if not isinstance(op, Invoke):
            return await uninterrupted(self._joined.execute(op))
        self._ask.flight.sent = True
        around = sys.exception()
        try:
            with inside(op.run, op.call, op.phase, is_async=True):
                return Ended(await op.fn(**op.kwargs))
        except Exception as error:
            return Ended(error=error, around=around)
