"""Run a call inside the caller's own database transaction, in both colours.

There are two savepoints: one around the body, so that a body that fails leaves nothing; one around the whole call, so
that a call that cannot be recorded completely never happened. So a joined call is never in flight, and a kill leaves no
doubt: the database undoes what was not committed.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from itertools import count
from typing import Any, Final, TypeVar

from amends.drivers import process
from amends.drivers.context import inside, parent_call
from amends.engine.call import Done
from amends.engine.joined import joined_call, joined_spec
from amends.engine.session import Ask, Session, ask_for
from amends.errors import CannotJoin, WrongColour, note_on, words_of
from amends.host.host import Host
from amends.ledger.flow import Flow, run_flow, run_flow_async
from amends.ledger.joined import Joined, JoinedTransactions, Joining
from amends.ledger.operations import StoreOp
from amends.ledger.world import Ended, Invoke, ReadClocks
from amends.stores.cancellation import uninterrupted
from amends.tools.scope import Options
from amends.tools.spec import Declaration, Spec

T = TypeVar("T")

KINDS: Final = ("compensatable", "read")
"""The kinds that may join: a caller who rolls back must not undo a pivot, or a call that was promised."""

_numbers: Final = count(1)


def joined_ask(
    host: Host, session: Session, declared: Declaration, options: Options, args: Any, kwargs: Any, *, is_async: bool
) -> tuple[Ask, Joined]:
    """Return the request, and the ledger through the caller's connection. Raise ``CannotJoin`` before anything is recorded."""
    spec = host.spec_for(declared)
    _check_tool(spec, options)
    if not isinstance(host.store, Joining):
        raise CannotJoin(
            f"{spec.name}: connection= needs a ledger in the caller's own database, which {host.store.url} is not",
            tool=spec.name,
            hint="keep the ledger in SQLite, PostgreSQL or MariaDB",
        )
    if spec.is_async != is_async:
        kind = "an async" if is_async else "a blocking"
        raise WrongColour(
            f"{spec.name} cannot join a transaction in {kind} run: tool, run and connection must have the same colour",
            tool=spec.name,
            hint=f"declare {kind} tool for it",
        )
    joined = host.store.joined(options.connection, tool=spec.name)
    if joined.is_async != is_async:
        raise CannotJoin(
            f"{spec.name}: the connection is {'async' if joined.is_async else 'blocking'}, and the run is not",
            tool=spec.name,
            hint="tool, run and connection must have the same colour",
        )
    ask = ask_for(session, spec, spec.bind(args, kwargs), again=options.again, parent=parent_call())
    return replace(ask, spec=joined_spec(spec)), joined


def _check_tool(spec: Spec, options: Options) -> None:
    if spec.kind not in KINDS or spec.at == "commit":
        what = "is done at commit" if spec.at == "commit" else f"is {spec.kind}"
        raise CannotJoin(
            f"{spec.name} {what}: only compensatable calls and reads may join a transaction of the caller",
            tool=spec.name,
            hint="call it without connection=, after the transaction",
        )
    if options.timeout is not None or spec.timeout is not None:
        raise CannotJoin(
            f"{spec.name} has a timeout: after it, the body would continue in the background on the caller's connection",
            tool=spec.name,
            hint="limit the statements in the database, and leave out timeout=",
        )


class JoinedCall:
    """One call in the caller's transaction. With a blocking connection its coroutines never suspend."""

    def __init__(self, host: Host, session: Session, ask: Ask, joined: Joined) -> None:
        self._ask, self._joined, self._live, self._lineage = ask, joined, host.live, session.lineage
        self._sealing = host.hiding.sealing
        self._savepoint = f"amends_call_{next(_numbers)}"
        self._body_savepoint = f"{self._savepoint}_body"
        self._is_written = False
        """Whether the last operation that the flow asked of the ledger is in the transaction."""
        self.is_over = False
        """Whether the body has ended the transaction: then the outcome of the call has to be looked up."""
        self._flow: Flow[Done] = joined_call(session, ask, is_undone=joined.is_own)
        lease = session.lease
        if lease.joined is None:
            lease.joined = JoinedTransactions()
        lease.joined.add(joined)

    async def run(self) -> Done:
        """Do the call. If it raises, either the failure is recorded in the transaction, or the call never happened.

        A cancellation is raised when the transaction is in order again.
        """
        joined = self._joined
        self._live.enter(self._lineage)
        try:
            await self._execute(joined.begin(self._savepoint, self._ask.spec.name))
            done = await run_flow_async(self._flow, self._perform)
        except BaseException as error:
            undone = self._is_to_be_undone(error)
            with contextlib.suppress(Exception):  # the transaction or its connection is gone, and everything with it
                await self._execute(joined.roll_back_to(self._savepoint) if undone else joined.release(self._savepoint))
            raise
        finally:
            self._flow.close()
            self._live.leave(self._lineage)
        await self._execute(joined.release(self._savepoint))
        return done

    async def _execute(self, flow: Flow[T]) -> T:
        """Run the statements of a flow on the caller's connection."""
        joined = self._joined
        if not joined.is_async:
            return run_flow(flow, joined.execute)
        return await uninterrupted(run_flow_async(flow, joined.execute))

    async def _perform(self, op: Any) -> Any:
        joined = self._joined
        if isinstance(op, StoreOp):
            self._is_written = False
            if self._sealing is not None:
                self._sealing.seal(op)
            answer = await self._execute(joined.perform(op))
            self._is_written = True
            return answer if self._sealing is None else self._sealing.opened(answer)
        if isinstance(op, ReadClocks):
            return process.clocks()
        assert isinstance(op, Invoke), f"a joined call asked for {op!r}"
        await self._execute(joined.savepoint(self._body_savepoint))
        ended = await self._invoke(op)
        try:
            is_kept = ended.error is None
            await self._execute(
                joined.release(self._body_savepoint) if is_kept else joined.roll_back_to(self._body_savepoint)
            )
        except Exception as error:
            raise self._lost(ended, error) from error
        return ended

    async def _invoke(self, op: Invoke) -> Ended:
        self._ask.flight.sent = True
        around = sys.exception()
        is_async = self._joined.is_async
        try:
            with inside(op.run, op.call, op.phase, is_async=is_async):
                value = op.fn(**op.kwargs)
                return Ended(await value if is_async else value)
        except Exception as error:
            return Ended(error=error, around=around)

    def _is_to_be_undone(self, error: BaseException) -> bool:
        """Return whether nothing of the call may stay: it was stopped, could not be recorded, or is not settled."""
        is_settled = self._is_written and self._ask.flight.call is None
        return not is_settled or not isinstance(error, Exception)

    def _lost(self, ended: Ended, error: Exception) -> Exception:
        """Return the error for a lost savepoint: the server has undone the transaction, or the body has ended it."""
        if ended.error is not None and self._joined.is_own(ended.error):
            note_on(ended.error, "amends: this ended the whole transaction, so the call never happened")
            return ended.error
        self.is_over = True
        tool = self._ask.spec.name
        return CannotJoin(
            f"the body of {tool} ended the caller's transaction, which holds the record of the call ({words_of(error)})",
            tool=tool,
            hint="leave commit and rollback to the caller; sqlite3's executescript commits too",
        )
