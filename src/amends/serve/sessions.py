"""The runs that clients drive and this server owns: each with a client lease, renewed by every request about it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar

from amends import AsyncRun, AsyncRuntime
from amends.errors import Busy, Error, LeaseLost, LedgerError, RunConflict, RunEnded
from amends.serve.limits import Limits
from amends.serve.problems import TooMany
from amends.visible import visible, visible_log

log = visible_log("amends")
T = TypeVar("T")
SWEEP_S: Final = 0.25
"""How often leases of clients are looked at, and what other servers want."""
GIVE_WAY_S: Final = 2.0
"""For how long new requests about a run wait if another server wants it, so that those under way can end."""
GIVE_WAY_POLL_S: Final = 0.02
BUSY_S_MAX: Final = 1.0
"""How soon a client may ask again for a run that another server has and was asked to let go."""


class Session:
    """One open run of a client."""

    def __init__(self, run: AsyncRun, *, agent: str, principal: str, lease_s: float) -> None:
        self.run, self.agent, self.principal, self.lease_s = run, agent, principal, lease_s
        self.root: Session = self
        """What this server has open: the run itself, or the root of a child."""
        self.claims: dict[str, Any] = {}
        """The attempts that performers outside have, by the id of their call."""
        self.children: dict[str, Any] = {}
        """The child runs that are open in it, by their ids."""
        self.opening = asyncio.Lock()
        """Held while a child run is opened."""
        self.leaving = asyncio.Lock()
        """Held while it is let go."""
        self.token = ""
        """By which token it was last driven."""
        self.has_asked = False
        """Whether a call was asked for since it was opened here."""
        self._requests = 0
        self._seen = time.monotonic()
        self._wanted: float | None = None

    @contextmanager
    def request(self) -> Iterator[AsyncRun]:
        """Renew the client's lease for as long as a request lasts, and from its end."""
        self._requests += 1
        try:
            yield self.run
        finally:
            self._requests -= 1
            self._seen = time.monotonic()

    def hear(self) -> None:
        """Note that the client has asked for something: its lease begins anew."""
        self._seen = time.monotonic()

    @property
    def root_id(self) -> str:
        """The id under which this server has it."""
        return self.run.id

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: no request, and no claim without a report."""
        return not self._requests and all(claim.is_over for claim in self.claims.values())

    @property
    def is_used(self) -> bool:
        """Whether a request about it is being worked on."""
        return self._requests > 0

    def want(self) -> None:
        """Note that another server wants it: its client lives, and has moved there."""
        now = time.monotonic()
        self._seen = now
        if self._wanted is None or now > self._wanted + 2 * GIVE_WAY_S:
            self._wanted = now

    @property
    def gives_way(self) -> bool:
        """Whether new requests wait until those under way have ended and another server has it."""
        return self._wanted is not None and time.monotonic() < self._wanted + GIVE_WAY_S

    @property
    def silent_s(self) -> float:
        """For how long the client has not asked for anything."""
        return 0.0 if self._requests else time.monotonic() - self._seen

    @property
    def is_silent(self) -> bool:
        """Whether the client has not asked for anything within its lease."""
        return self.silent_s > self.lease_s


class Sessions:
    """The open runs by tenant and id."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[tuple[str, str], Session] = {}
        self._leaving: dict[tuple[str, str], Session] = {}
        """Runs that are no longer open for their clients, and that the ledger has not been told of yet."""
        self._opening: dict[tuple[str, str], _Turn] = {}
        self._going_on: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def count(self, tenant: str | None) -> int:
        """Return how many runs of this tenant are open here; None: of every tenant."""
        return len(self._open) if tenant is None else sum(whose == tenant for whose, _ in self._open)

    def found(self, tenant: str, id: str) -> Session | None:
        """Return the open run of this id, if this server has it."""
        return self._open.get((tenant, id))

    async def present(self, tenant: str, id: str) -> Session | None:
        """Return the open run of this id, if this server has it and no other one has asked for it."""
        # What is waited for is the end of other requests, or that time has passed.
        while (found := self.found(tenant, id)) is not None and found.gives_way:  # noqa: ASYNC110
            await asyncio.sleep(GIVE_WAY_POLL_S)
        return found

    async def open(
        self, rt: AsyncRuntime, tenant: str, id: str, *, options: Mapping[str, Any], lease_s: float | None,
        agent: str, principal: str, begins: bool = False,
    ) -> tuple[Session, bool]:  # fmt: skip
        """Open a run for a client, or return the one that is open here; the second value: whether it was known.

        ``begins``: the client begins its work, perhaps not for the first time. Then a run that is open here is opened
        again, as it would be in a program that was started again: its model may reword what it has asked for before.
        Raises ``Busy`` after as long as a client should wait; it then goes on, and a repeated request finds it open.
        """
        opening = self._opened(
            rt, tenant, id, options=options, lease_s=lease_s, agent=agent, principal=principal, begins=begins
        )
        return await self._in_time(opening, id, s_max=self._limits.answer_s_max)

    async def _opened(
        self, rt: AsyncRuntime, tenant: str, id: str, *, options: Mapping[str, Any], lease_s: float | None,
        agent: str, principal: str, begins: bool,
    ) -> tuple[Session, bool]:  # fmt: skip
        async with self._turn((tenant, id)):
            known = await self.present(tenant, id)
            if known is not None:
                self._check_same(known, options)
            if known is not None and begins and known.has_asked and known.is_idle and not options.get("history"):
                del self._open[tenant, id]
                self._leaving[tenant, id] = known
                known = None
            if known is not None:
                known.lease_s = lease_s or known.lease_s
                return known, True
            if len(self._open) >= self._limits.runs_max:
                raise TooMany(f"{len(self._open):,} runs are open here, and no more are accepted (runs_max)")
            lease_s = lease_s or self._limits.client_lease_s
            if (leaving := self._leaving.get((tenant, id))) is not None:
                await self._let_go((tenant, id), leaving)
            try:
                run = await rt.open(id, client_lease=lease_s, **options)
            except Busy as busy:  # whoever has it was asked to let it go, and does so before its lease ends
                soon = min(busy.retry_after, BUSY_S_MAX)
                raise Busy(str(busy), owner=busy.owner, retry_after=soon, run_id=busy.run_id) from busy
            made = Session(run, agent=agent, principal=principal, lease_s=lease_s)
            if not run.is_over:
                self._open[tenant, id] = made
            return made, run.resumed

    @asynccontextmanager
    async def _turn(self, place: tuple[str, str]) -> AsyncIterator[None]:
        """Let one request at a time open this run: the others find it open."""
        turn = self._opening.setdefault(place, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._opening.pop(place, None)

    def _check_same(self, known: Session, options: Mapping[str, Any]) -> None:
        if "input" not in options or _text(options["input"]) == _text(known.run.input):
            return
        raise RunConflict(
            f"run {known.run.id} is open with another input; nothing was started",
            recorded=known.run.input, given=options["input"], run_id=known.run.id,
        )  # fmt: skip

    def forget(self, tenant: str, id: str, session: Session | None = None) -> None:
        """Let go of a run that has ended, or that another process has taken over.

        ``session``: only if this is still what is open under the id; its client may have opened it again meanwhile.
        """
        place = (tenant, id)
        found = self._open.get(place)
        if found is None or (session is not None and found is not session):
            return
        del self._open[place]
        if not found.run.is_over:  # if it is still ours after all, nobody else could have it
            self._leaving[place] = found
            _ = self._go_on(self._released(place, found))

    async def within(self, tenant: str, session: Session, work: Coroutine[Any, Any, T], *, s_max: float) -> T:
        """Finish ``work`` even if the client goes away; raise ``Busy`` if it takes longer than a client should wait.

        It then goes on, and the same request is answered with its result.
        """
        return await self._in_time(self._watched(tenant, session, work), session.run.id, s_max=s_max)

    async def _in_time(self, work: Coroutine[Any, Any, T], run_id: str, *, s_max: float) -> T:
        going = self._go_on(work)
        going.add_done_callback(_retrieve)
        done, _ = await asyncio.wait({going}, timeout=s_max)
        if not done:
            raise Busy(
                f"the request is still being worked on after {s_max:g} s", owner="this server", retry_after=1.0,
                run_id=run_id,
            )  # fmt: skip
        return going.result()

    async def _watched(self, tenant: str, session: Session, work: Coroutine[Any, Any, T]) -> T:
        try:
            with session.request():
                done = await work
            if isinstance(getattr(done, "error", None), RunEnded):
                self.forget(tenant, session.run.id, session)
            return done
        except (RunEnded, LeaseLost):
            self.forget(tenant, session.run.id, session)
            raise

    def hand_over(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Let go of the runs that another server wants for their clients, as soon as no request about them is under way.

        What a performer outside has stays its own: the attempt is in doubt, and it reports to the other server.
        """
        for tenant, id in wanted:
            session = self._open.get((tenant, id))
            if session is None:
                continue
            session.want()
            if not session.is_used:
                log.info("run %s is handed over: its client has moved to another server", visible(id))
                self.forget(tenant, id)

    async def let_go_of_silent(self) -> None:
        """Let go of every run whose client was silent past its lease: recovery then follows the run's policy."""
        for place, session in self._leaving.items():
            if not session.leaving.locked():  # the ledger did not answer before
                _ = self._go_on(self._released(place, session))
        for (tenant, id), session in list(self._open.items()):
            for call in [call for call, claim in session.claims.items() if claim.is_lapsed]:
                del session.claims[call]
            if session.is_silent:
                log.warning("run %s is let go: its client was silent for %g s", visible(id), session.lease_s)
                self.forget(tenant, id)

    async def _released(self, place: tuple[str, str], session: Session) -> None:
        with suppress(LedgerError):  # the next sweep tries again
            await self._let_go(place, session)

    async def _let_go(self, place: tuple[str, str], session: Session) -> None:
        """Let a run go; raise ``LedgerError`` if this server still has it, since the ledger does not answer."""
        async with session.leaving:
            if self._leaving.get(place) is not session:
                return  # somebody else has let it go
            try:
                await session.run.release(silent=session.silent_s)
            except LeaseLost:
                log.info("run %s has another owner already", visible(session.run.id))
            except LedgerError as error:
                log.warning("run %s could not be let go, and is tried again: %s", visible(session.run.id), error)
                raise
            except Error as error:
                log.warning("run %s could not be let go, and is recovered later: %s", visible(session.run.id), error)
            del self._leaving[place]

    def _go_on(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        going = asyncio.ensure_future(work)
        self._going_on.add(going)
        going.add_done_callback(self._going_on.discard)
        return going

    async def close(self) -> None:
        """Wait for what is under way, and let all runs go: their clients continue them through another server."""
        if self._going_on:
            await asyncio.wait(set(self._going_on), timeout=self._limits.answer_s_max)
        self._leaving |= self._open
        self._open = {}
        if self._leaving:
            released = {asyncio.ensure_future(self._released(place, one)) for place, one in self._leaving.items()}
            await asyncio.wait(released, timeout=self._limits.answer_s_max)  # what takes longer, recovery finds


class _Turn:
    """Who may open a run now, and how many wait for it."""

    def __init__(self) -> None:
        self.lock, self.waiting = asyncio.Lock(), 0


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Take the error of work that nobody waits for any more; the record has it."""
    if not done.cancelled() and (error := done.exception()) is not None:
        log.debug("a request that nobody waits for ended with %s", type(error).__name__)
