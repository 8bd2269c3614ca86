"""The runs that clients drive and this server owns: each with a client lease, renewed by every request about it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

from amends import AsyncRun, AsyncRuntime
from amends.errors import Busy, Error, LeaseLost, RunConflict, RunEnded
from amends.serve.limits import Limits
from amends.serve.problems import TooMany
from amends.visible import visible, visible_log

log = visible_log("amends")
T = TypeVar("T")
SWEEP_S: Final = 0.25
"""How often leases of clients are looked at."""


class Session:
    """One open run of a client."""

    def __init__(self, run: AsyncRun, *, agent: str, principal: str, lease_s: float) -> None:
        self.run, self.agent, self.principal, self.lease_s = run, agent, principal, lease_s
        self.claims: dict[str, Any] = {}
        """The attempts that performers outside have, by the id of their call."""
        self.token = ""
        """By which token it was last driven."""
        self.has_asked = False
        """Whether a call was asked for since it was opened here."""
        self._requests = 0
        self._seen = time.monotonic()

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
    def is_idle(self) -> bool:
        """Whether nothing is under way: no request, and no claim without a report."""
        return not self._requests and all(claim.answer is not None for claim in self.claims.values())

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
        self._opening: dict[tuple[str, str], _Turn] = {}
        self._going_on: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def found(self, tenant: str, id: str) -> Session | None:
        """Return the open run of this id, if this server has it."""
        return self._open.get((tenant, id))

    async def open(
        self, rt: AsyncRuntime, tenant: str, id: str, *, options: Mapping[str, Any], lease_s: float | None,
        agent: str, principal: str, begins: bool = False,
    ) -> tuple[Session, bool]:  # fmt: skip
        """Open a run for a client, or return the one that is open here; the second value: whether it was known.

        ``begins``: the client begins its work, perhaps not for the first time. Then a run that is open here is opened
        again, as it would be in a program that was started again: its model may reword what it has asked for before.
        """
        async with self._turn((tenant, id)):
            known = self._open.get((tenant, id))
            if known is not None:
                self._check_same(known, options)
            if known is not None and begins and known.has_asked and known.is_idle and not options.get("history"):
                del self._open[tenant, id]
                await known.run.release()
                known = None
            if known is not None:
                known.lease_s = lease_s or known.lease_s
                return known, True
            if len(self._open) >= self._limits.runs_max:
                raise TooMany(f"{len(self._open):,} runs are open here, and no more are accepted (runs_max)")
            lease_s = lease_s or self._limits.client_lease_s
            run = await rt.open(id, client_lease=lease_s, **options)
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

    def forget(self, tenant: str, id: str) -> None:
        """Let go of a run that has ended, or that another process has taken over."""
        session = self._open.pop((tenant, id), None)
        if session is not None and not session.run.is_over:
            _ = self._go_on(self._released(session))  # if it is still ours after all, nobody else could have it

    async def within(self, tenant: str, session: Session, work: Coroutine[Any, Any, T], *, s_max: float) -> T:
        """Finish ``work`` even if the client goes away; raise ``Busy`` if it takes longer than a client should wait.

        It then goes on, and the same request is answered with its result.
        """
        going = self._go_on(self._watched(tenant, session, work))
        done, _ = await asyncio.wait({going}, timeout=s_max)
        if not done:
            going.add_done_callback(_retrieve)
            raise Busy(
                f"the request is still being worked on after {s_max:g} s", owner="this server", retry_after=1.0,
                run_id=session.run.id,
            )  # fmt: skip
        return going.result()

    async def _watched(self, tenant: str, session: Session, work: Coroutine[Any, Any, T]) -> T:
        try:
            with session.request():
                done = await work
            if isinstance(getattr(done, "error", None), RunEnded):
                self.forget(tenant, session.run.id)
            return done
        except (RunEnded, LeaseLost):
            self.forget(tenant, session.run.id)
            raise

    async def let_go_of_silent(self) -> None:
        """Let go of every run whose client was silent past its lease: recovery then follows the run's policy."""
        for (tenant, id), session in list(self._open.items()):
            if session.is_silent:
                log.warning("run %s is let go: its client was silent for %g s", visible(id), session.lease_s)
                self.forget(tenant, id)

    async def _released(self, session: Session) -> None:
        try:
            await session.run.release(silent=session.silent_s)
        except Error as error:
            log.warning("run %s could not be let go, and is recovered later: %s", visible(session.run.id), error)

    def _go_on(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        going = asyncio.ensure_future(work)
        self._going_on.add(going)
        going.add_done_callback(self._going_on.discard)
        return going

    async def close(self) -> None:
        """Wait for what is under way, and let all runs go: their clients continue them through another server."""
        if self._going_on:
            await asyncio.wait(set(self._going_on), timeout=self._limits.answer_s_max)
        left, self._open = list(self._open.values()), {}
        if left:
            released = {asyncio.ensure_future(self._released(session)) for session in left}
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
