"""Which run a request of a client belongs to, and when that run ends.

A client may name its run in ``_meta`` (``{"amends/run": "order-7"}``), or begin one with the tool ``amends_begin``. Other
calls belong to one run for the connection (or for each request, or to one with a configured name). The run stays open in
the gateway between requests. A gateway that was killed leaves it in the ledger; the next one of the same name takes it up.
So does one whose client has left: nobody knows whether it ended or was killed, and a call that it repeats must not
happen twice. A run that a client asked to end is not taken up, unless it has a call in doubt.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from amends import AsyncRun, AsyncRuntime, RunInfo
from amends.errors import (
    Busy,
    Error,
    Forbidden,
    LeaseLost,
    Refused,
    RolledBack,
    RunBlocked,
    RunEnded,
    RunNotFound,
    Waiting,
    log_error,
    shown,
)
from amends.gateway.config import Ends, GatewayTable
from amends.gateway.listeners import PIPES
from amends.visible import visible, visible_log

log = visible_log("amends.gateway")
SWEEP_S: Final = 1.0
ENDED: Final = ("committed", "rolled_back", "abandoned")
LOOKED_AT_MAX: Final = 20
"""How many runs of an earlier gateway are looked at, to find the one to go on with."""
BEGUN: Final = "begun"
"""The tag of a run that a client has begun or named."""
SESSION: Final = "session"
"""The tag of a run of a connection over HTTP; one of a stateless client has the name of its place as a tag."""
TAKE_OVER_S: Final = 30.0
"""How often runs are looked for that a killed gateway has left."""
TAKEN_OVER_MAX: Final = 1_000
REQUEST: Final = "request"
CONNECTION: Final = "connection"
CLIENT: Final = "client:"
"""What the place of a stateless client begins with; its token follows."""


@dataclass(frozen=True, slots=True)
class Owner:
    """For whom a client acts, as its token says; all empty without one."""

    principal: str | None = None
    agent: str | None = None
    tenant: str | None = None
    token: str | None = None


NOBODY: Final = Owner()


@dataclass(slots=True)
class Work:
    """One open run of a client."""

    run: AsyncRun
    place: str
    """Whose it is: a connection, or a name with its owner."""
    is_begun: bool
    """Whether the client has begun or named it; else the gateway did."""
    seen: float = field(default_factory=time.monotonic)
    busy: int = 0
    failed: int = 0
    """How many of its calls have failed."""
    is_taken_up: bool = False
    """Whether an earlier gateway or connection had it."""

    @property
    def idle_s(self) -> float:
        """For how long nothing was asked of it."""
        return 0.0 if self.busy else time.monotonic() - self.seen


class Runs:
    """The open runs of all clients."""

    def __init__(self, rt: AsyncRuntime, table: GatewayTable) -> None:
        self._rt, self._table = rt, table
        self._open: dict[str, Work] = {}
        self._turns: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        """One lock for each place that is being looked at, with those who use it; it is forgotten after the last one."""
        self._sweeper: asyncio.Task[None] | None = None
        self._next_look: float | None = None
        """When to look again for runs to take over; None: never."""
        self._taken_over: dict[str, None] = {}

    # ---- Life

    def start(self) -> None:
        """Begin to end idle runs."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="amends-gateway-runs")

    async def close(self) -> None:
        """End what was not begun explicitly as ``on_idle`` says; let go of the rest, to be taken up again."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for work in list(self._open.values()):
            await self._end_quietly(work, "wait" if work.is_begun else self._table.on_idle)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_S, self._table.idle / 2))
            for work in list(self._open.values()):
                if work.idle_s > self._table.idle:
                    await self._end_quietly(work, self._table.on_silence if work.is_begun else self._table.on_idle)
            if self._next_look is not None and time.monotonic() >= self._next_look:
                await self.take_over()

    async def take_over(self) -> None:
        """Take over the runs of clients over HTTP that a killed gateway of this name has left, now and from time to time.

        The connection of a session is gone, so its run is ended: it may hold locks, and nobody else would. A stateless client is
        known again, and goes on with its run.
        """
        self._next_look = time.monotonic() + TAKE_OVER_S
        try:
            tenants = {None, *(one.tenant or None for one in await self._rt.tokens())}
            for tenant in tenants:
                async for info in self._rt.scoped(tenant=tenant).runs(f'tag:"{self._tag}" state:open'):
                    await self._take_over_one(info)
        except (Error, OSError) as error:
            log_error(log, 30, "runs of an earlier gateway could not be looked for", error)

    async def _take_over_one(self, info: RunInfo) -> None:
        places = [tag for tag in info.tags if tag == SESSION or tag.startswith(CLIENT)]
        is_ours = any(work.run.id == info.id for work in self._open.values())
        if not places or is_ours or info.goal is not None or info.parent is not None or info.id in self._taken_over:
            return
        place = places[0] if places[0] != SESSION and places[0] not in self._open else f"left:{info.id}"
        async with self._turn(place):
            if place in self._open:
                return
            owner = Owner(info.principal, info.agent, info.tenant)
            try:
                run = await self._open_run(info.id, owner, is_begun=False, history=True, place=places[0])
            except (Busy, LeaseLost, Waiting):
                return  # another gateway of this name has it, or a person has to decide first
            except Error as error:
                self._note_taken_over(info.id)
                log_error(log, 30, f"run {visible(info.id)} of an earlier gateway could not be taken over", error)
                return
            self._note_taken_over(info.id)
            if run.is_over:
                return
            log.warning("run %s of an earlier gateway is taken over", visible(info.id))
            work = self._open[place] = Work(run, place, False, is_taken_up=True)
        if place not in places:
            await self._end_quietly(work, self._table.on_idle, why="the gateway and the connection were lost")

    def _note_taken_over(self, run_id: str) -> None:
        """Remember a run that is left open on purpose, or was taken over once: it is not taken over again."""
        self._taken_over[run_id] = None
        if len(self._taken_over) > TAKEN_OVER_MAX:
            del self._taken_over[next(iter(self._taken_over))]

    async def _end_quietly(self, work: Work, how: Ends, *, why: str = "") -> None:
        """End a run that nobody ends. One with a call that waits for a person is kept: its client may come back."""
        try:
            if how == "commit" and await self._waits(work.run):
                how = "wait"
            await self.end(work, how, why=why or f"no call for {self._table.idle:g} s")
        except Waiting as error:
            log.warning("run %s is left open: %s", visible(work.run.id), error)
        except RunBlocked as error:
            log.warning("run %s waits for a person: %s", visible(work.run.id), error)
        except Exception as error:  # whatever it is, the ledger has it, and people find it there
            log_error(log, 30, f"run {visible(work.run.id)} could not be ended", error)

    @staticmethod
    async def _waits(run: AsyncRun) -> bool:
        report = await run.report()
        return any(call.state == "held" for part in (report, *report.children) for call in part.calls)

    # ---- Finding a run

    @asynccontextmanager
    async def _turn(self, place: str) -> AsyncIterator[None]:
        lock, users = self._turns.setdefault(place, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                self._turns.pop(place, None)

    @asynccontextmanager
    async def working(self, connection: str, *, named: str | None, owner: Owner = NOBODY) -> AsyncIterator[Work]:
        """Open the run of a request, and keep it open while the request lasts."""
        place = _place(connection, named, owner)
        found = None if place in self._turns else self._open.get(place)
        work = await self._entered(place, named=named, owner=owner) if found is None else found
        work.busy += 1
        try:
            yield work
        except (RunEnded, LeaseLost):
            self._forget(work)
            raise
        finally:
            work.busy -= 1
            work.seen = time.monotonic()
        if named is None and self._table.runs == REQUEST and not work.is_begun and not work.busy:
            await self._end_quietly(work, "commit")

    async def _entered(self, place: str, *, named: str | None, owner: Owner) -> Work:
        """Return the run of a place, opened if it is not; one request at a time."""
        async with self._turn(place):
            work = self._open.get(place)
            if work is None:
                work = self._open[place] = await self._opened(place, named=named, owner=owner)
            return work

    async def found(self, connection: str, *, named: str | None, owner: Owner = NOBODY) -> Work | None:
        """Return the run that is open for this client, if there is one: here, or left by a gateway that was killed."""
        place = _place(connection, named, owner)
        async with self._turn(place):
            work = self._open.get(place)
            if work is None and named is None and self._table.runs == CONNECTION:
                work = await self._left(place, owner)
            elif work is None and await self._is_known(named or self._table.runs, owner):
                work = await self._opened(place, named=named, owner=owner)
            if work is not None:
                self._open[place] = work
            return work

    async def _is_known(self, run_id: str, owner: Owner) -> bool:
        if run_id == REQUEST:
            return False
        try:
            return (await self._rt.scoped(tenant=owner.tenant).info(run_id)).state not in ENDED
        except RunNotFound:
            return False

    async def begin(self, connection: str, *, run_id: str | None, owner: Owner = NOBODY) -> Work:
        """Begin a run explicitly: what came before it is ended first."""
        async with self._turn(connection):
            before = self._open.get(connection)
            if before is not None and before.run.is_over:
                self._forget(before)
                before = None
            if before is not None and before.is_begun:
                raise Refused(f"run {visible(before.run.id)} is open. Call amends_commit or amends_rollback first.")
            if before is not None:
                await self.end(before, self._table.on_idle, why="the client begins another run")
            run = await self._open_run(run_id or self._new_id(), owner, is_begun=True, history=True)
            work = self._open[connection] = Work(run, connection, True)
            return work

    async def _opened(self, place: str, *, named: str | None, owner: Owner) -> Work:
        if named is not None:
            return Work(await self._open_run(named, owner, is_begun=True, history=True), place, True)
        if self._table.runs not in (CONNECTION, REQUEST):
            return Work(await self._open_run(self._table.runs, owner, is_begun=False, history=True), place, False)
        left = None if self._table.runs == REQUEST else await self._left(place, owner)
        return left or Work(await self._open_run(self._new_id(), owner, is_begun=False, place=place), place, False)

    async def _open_run(
        self, run_id: str, owner: Owner, *, is_begun: bool, history: bool = False, place: str = PIPES
    ) -> AsyncRun:
        """Open a run for a client; raise ``Forbidden`` if it exists and is not one that this client may go on with."""
        rt = self._rt.scoped(tenant=owner.tenant, agent=owner.agent, principal=owner.principal, token=owner.token)
        if history:
            await self._check_own(rt, run_id, owner)
        return await rt.open(run_id, history=history, **self._options(is_begun=is_begun, place=place))

    async def _check_own(self, rt: AsyncRuntime, run_id: str, owner: Owner) -> None:
        """Refuse a run that another program, gateway or agent has opened: a client could take back what it did not do."""
        try:
            found = await rt.info(run_id)
        except RunNotFound:
            return
        if self._tag not in found.tags or (owner.agent is not None and found.agent != owner.agent):
            raise Forbidden(
                f"run {visible(run_id)} is not one of this client's", why="agent", hint="choose another name"
            )

    async def _left(self, place: str, owner: Owner) -> Work | None:
        """Take up the run of a gateway of this name that was killed, if this connection is the one that was cut off."""
        if place != PIPES:
            return None
        looked_at = 0
        async for info in self._rt.runs(f'tag:"{self._tag}"'):
            looked_at += 1
            if looked_at > LOOKED_AT_MAX:
                break
            is_begun = BEGUN in info.tags
            if info.state in ENDED or info.parent is not None:
                continue
            if info.goal is not None and not await self._is_in_doubt(info.id):
                continue  # its client has asked for its end: this is another task
            try:
                run = await self._open_run(info.id, owner, is_begun=is_begun, history=True)
            except (Busy, LeaseLost, Waiting):
                continue  # another gateway of this name is alive and has it, or a person has to decide first
            if run.is_over:
                continue
            log.warning("run %s of an earlier gateway goes on", visible(info.id))
            return Work(run, place, is_begun, is_taken_up=True)
        return None

    async def _is_in_doubt(self, run_id: str) -> bool:
        """Return whether a call of the run, or of a child run, may have happened: nobody may make it again unasked."""
        reports = [await self._rt.report(run_id)]
        while reports:
            report = reports.pop()
            if any(call.state == "in_doubt" for call in report.calls):
                return True
            reports += report.children
        return False

    @property
    def _tag(self) -> str:
        return f"gateway:{self._table.name}"

    def _new_id(self) -> str:
        return f"{self._table.name}-{uuid.uuid4().hex[:16]}"

    def _options(self, *, is_begun: bool, place: str) -> dict[str, Any]:
        whose = [] if is_begun or place == PIPES else [place if place.startswith(CLIENT) else SESSION]
        tags = [self._tag, *([BEGUN] if is_begun else []), *whose]
        return {"tags": tags, "recover": "wait", "on_open_failure": "rollback" if is_begun else "commit"}

    # ---- Ending

    async def end(self, work: Work, how: Ends, *, why: str) -> str:
        """Commit a run, roll it back, or let go of it; return what to tell the client."""
        self._forget(work)
        run = work.run
        if run.is_over and not (how == "commit" and run.state == "committed"):
            raise Refused(f"{ended_words(run)} {late_words(run)}".strip())
        try:
            if how == "wait":
                self._note_taken_over(run.id)
                await run.release()
                return f"Run {run.id} is left open."
            if how == "commit":
                await run.commit()
                return f"Committed: run {run.id}."
            await run.rollback(why)
        except RolledBack as error:
            return f"{error.for_model()} The recorded reason: {shown(why)}."
        except (Error, OSError):
            if not run.is_over:
                await self._released(run)
            raise

    async def _released(self, run: AsyncRun) -> None:
        try:
            await run.release()
        except Error as error:
            log.warning("run %s could not be let go, and is recovered later: %s", visible(run.id), error)

    def _forget(self, work: Work) -> None:
        if self._open.get(work.place) is work:
            del self._open[work.place]


def ended_words(run: AsyncRun) -> str:
    """Return the sentence about a run that has ended."""
    return f"run {visible(run.id)} has ended ({run.state.replace('_', ' ')})."


def late_words(run: AsyncRun) -> str:
    """Return how a run that has ended can still be taken back; empty if it cannot."""
    if run.state != "committed":
        return ""
    return f"A person can still take it back: amends rollback {visible(run.id)} --plan shows what that would do."


def _place(connection: str, named: str | None, owner: Owner) -> str:
    """Return where a run is kept: one that is named is found only by the same agent of the same principal."""
    if named is None:
        return connection
    return json.dumps(["named", owner.tenant, owner.principal, owner.agent, named])
