"""Runs that a durable engine drives: what the adapters of all engines share. It knows none of the engines.

A durable engine (Temporal, Restate) places work on worker processes, keeps timers and waits, and repeats whatever it does
not know the end of. The ledger stays the authority on effects, keys, approvals, compensation and audit. So everything here
may be repeated blindly: the same request about the same run gives the same answer, and never a second effect.

- The engine's own code is the *client* of the run: it goes on by itself after every crash, so recovery leaves the run to it.
- The worker process that performs something for it is the *owner*: it opens the run under a new epoch, keeps it open while
  requests come, and lets it go when another worker wants it, or when it is idle.
- A request has an id that the engine's code makes, the same in every repeat. A repeated request finds the call that it has
  admitted: a doubt is settled by a probe, an idempotent repeat or a person, and anything else is answered from the record.

Nothing here waits for long. What cannot be done yet is answered with when to ask again, and the engine waits durably.
See ``docs/explanation/ownership.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeVar

from amends import (
    Answer,
    Approval,
    AsyncRun,
    AsyncRuntime,
    Call,
    Error,
    Event,
    Feed,
    Held,
    InDoubt,
    LedgerError,
    Report,
    RolledBack,
    RunBlocked,
    RunInfo,
    Runtime,
    UsageError,
)
from amends.errors import Busy, LeaseLost, Refused, RunEnded, RunNotFound, ToolFailed, log_error
from amends.visible import visible, visible_log

log = visible_log("amends")
T = TypeVar("T")

CLIENT_LEASE_S: Final = 366 * 86_400.0
"""How long recovery leaves a run to the engine's code, which may wait for a year, and does not go silent by dying."""
WAIT_S: Final = 5.0
"""How long one request waits for another owner, a lock or a settle delay; then the engine waits, durably."""
IDLE_S: Final = 10.0
"""After so many seconds without a request a run is let go: the next request opens it again, here or elsewhere."""
SWEEP_S: Final = 0.1
"""How often it is looked for runs that are idle, or that another worker wants."""
GIVE_WAY_S: Final = 2.0
"""For how long new requests wait if another worker wants the run, so that those under way can end."""
WATCH_S: Final = 1.0
"""How often the ledger is read for what people have decided."""
AGAIN_S: Final = 1.0
"""How soon to ask again if nothing says more."""
REQUESTS_MAX: Final = 100_000
"""How many requests of one run are remembered by the process that owns it; older ones are found in the ledger."""

# ---- What the engine's code says, and what it is told: plain data, which every engine can write into its history


@dataclass(frozen=True, slots=True)
class EngineRun:
    """A run as the engine's code names it. Everything but the id counts when the run is first opened only."""

    id: str
    input: Any = None
    tags: list[str] = field(default_factory=list)
    tenant: str | None = None
    agent: str | None = None
    principal: str | None = None
    deadline: float | None = None
    """Seconds after which the run is rolled back, unless its pivot has started."""
    requires: list[str] | None = None
    """Tools that must have succeeded at the commit."""
    on_open_failure: Literal["rollback", "commit"] | None = None


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A call that the engine's code asks for."""

    tool: str
    args: dict[str, Any]
    request: str
    """Names this request in its run: the same in each repeat of it, another one in each other request."""
    again: str | None = None
    """Why it is a deliberate repeat of an earlier call."""


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """What a person is asked to approve. ``digest`` is what the decision binds to."""

    id: str
    digest: str
    tool: str
    args: dict[str, Any]
    rule: str = ""
    expires_at: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person says about an approval. A yes names the digest that the person was shown."""

    approval: str
    digest: str
    by: str
    approve: bool = True
    why: str = ""
    roles: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as plain data: the class of the tool's own error, or that of amends with its ``code``."""

    type: str
    message: str
    code: str = ""
    hint: str = ""


Status = Literal["done", "staged", "failed", "refused", "held", "in_doubt", "later", "blocked", "ended"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call stands.

    ``done``, ``staged``, ``failed``, ``refused`` and ``ended`` (the run has ended, see ``run_state``) are final. ``held``
    waits for a person, ``in_doubt`` and ``blocked`` for a probe or a person, ``later`` for a time: ask again, with the same
    request.
    """

    status: Status
    text: str
    """In words for a model."""
    value: Any = None
    """The result, as JSON data."""
    call: str = ""
    """The id of the call, if there is one."""
    replayed: bool = False
    error: Failure | None = None
    approval: PendingApproval | None = None
    again_s: float | None = None
    """After how many seconds to ask again; None: only once somebody has decided something."""
    run_state: str = ""

    @property
    def is_final(self) -> bool:
        """Whether asking again would change nothing."""
        return self.status in ("done", "staged", "failed", "refused", "ended")


@dataclass(frozen=True, slots=True)
class Ending:
    """How the end of a run stands. It is final if the run has ended; else ask for the same end again."""

    state: str
    """Of the run: ``committed``, ``rolled_back``, ``abandoned`` are final."""
    text: str = ""
    residue: list[str] = field(default_factory=list)
    """The tools whose effects are left standing."""
    causes: list[str] = field(default_factory=list)
    """What blocks the run; each names the verb that removes it."""
    error: Failure | None = None
    """What prevented the end that was asked for."""
    approval: PendingApproval | None = None
    again_s: float | None = None
    """After how many seconds to ask again; None: only once somebody has decided something."""

    @property
    def is_final(self) -> bool:
        """Whether the run has ended, or refuses this end for good."""
        return self.state in ("committed", "rolled_back", "abandoned") or self.is_refused

    @property
    def is_refused(self) -> bool:
        """Whether the end that was asked for is not possible, and nothing was changed."""
        waits = self.error is None or self.error.code == "held" or self.again_s is not None
        return self.state == "open" and not waits


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a decision; ``error``: it was not accepted, and nothing was changed."""

    approval: str
    state: str = ""
    error: Failure | None = None


# ---- The runs of this process


Body = Callable[..., Any]
"""The body of a call that is not the declared one, with the call's arguments by name."""


class DurableRuns:
    """The runs of one engine that this worker process owns at the moment, and what the engine may ask about each run.

    Use it as an async context manager, on one event loop, for as long as the worker runs. Every method may be repeated,
    by this process or by another one, at any time.
    """

    def __init__(self, rt: Runtime | AsyncRuntime, *, engine: str, idle_s: float = IDLE_S) -> None:
        """Keep runs of ``rt`` for the engine of this name, which becomes a tag of each run.

        ``idle_s``: after so many seconds without a request a run is let go.
        """
        self._rt = rt.as_async()
        self._engine, self._idle_s = engine, idle_s
        self._open: dict[tuple[str | None, str], _Session] = {}
        self._opening: dict[tuple[str | None, str], asyncio.Lock] = {}
        self._going_on: set[asyncio.Future[Any]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._tenants: dict[str, None] = {}
        self._tools = {one.name: one for one in self._rt.describe_tools()}

    async def __aenter__(self) -> Self:
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        if self._going_on:
            await asyncio.wait(set(self._going_on), timeout=WAIT_S)
        for place in list(self._open):
            await self._let_go(place)

    @property
    def tag(self) -> str:
        """The tag of each run that the engine drives."""
        return f"engine:{self._engine}"

    @property
    def tools(self) -> frozenset[str]:
        """The declared tools."""
        return frozenset(self._tools)

    def may_repeat(self, tool: str) -> bool:
        """Return whether the engine's own retry may start this tool's body again: a read, or an idempotent tool.

        A repeat of any other call starts nothing until its doubt is settled, so give it one attempt and then settle it.
        """
        info = self._tools.get(tool)
        return info is not None and (info.kind == "read" or (info.idempotent and info.window is None))

    # ---- What the engine may ask

    async def begin(self, run: EngineRun) -> Ending:
        """Open the run, or take it up; return its state. Every other request does so as well."""
        try:
            async with self._request(run) as session:
                return Ending(session.run.state)
        except Exception as error:
            return await self._not_ended(run, error)

    async def perform(self, run: EngineRun, call: EngineCall, body: Body | None = None) -> Outcome:
        """Do one call: admit it, run its body, settle it. A repeat of the request never repeats the effect.

        ``body``: runs the call instead of the tool's declared body. Raises ``LedgerError`` if the ledger cannot be reached:
        then nobody knows, and the same request is to be made again.
        """
        for _ in range(2):
            try:
                async with self._request(run) as session:
                    return await session.once(call, lambda: self._keep(self._answered(session, call, body)))
            except LeaseLost:  # another worker has the run: whatever was started is in doubt, and is settled there
                pass
            except Exception as error:
                return self._not_done(error)
        raise LeaseLost("the run changed its owner twice during one request", hint="make the same request again")

    async def commit(self, run: EngineRun, output: Any = None) -> Ending:
        """Commit the run: its effects stay, what is staged is started. Ask again until the answer is final."""

        async def end(open_run: AsyncRun) -> None:
            if output is not None:
                open_run.output = output
            await open_run.commit()

        return await self._ended(run, end)

    async def roll_back(self, run: EngineRun, why: str) -> Ending:
        """Compensate what the run has done, row by row of its ledger. Ask again until the answer is final.

        After the pivot the run goes forward instead.
        """
        return await self._ended(run, lambda open_run: open_run.rollback(why or "the engine's code failed"))

    async def decide(self, decision: Decision, *, tenant: str | None = None) -> Decided:
        """Record a person's decision. The ledger checks the digest, who may decide, and that it is decided once."""
        rt = self._rt.scoped(tenant=tenant) if tenant else self._rt
        given: dict[str, Any] = {"by": decision.by, "roles": tuple(decision.roles)}
        try:
            if decision.approve:
                approval = await rt.approve(decision.approval, digest=decision.digest, why=decision.why, **given)
            else:
                asked = await rt.approval(decision.approval)
                if asked.digest != decision.digest:
                    raise UsageError(
                        f"approval {decision.approval} is about another request than the one that was shown"
                    )
                approval = await rt.reject(decision.approval, reason=decision.why or "no reason was given", **given)
        except (Refused, UsageError) as error:
            return Decided(decision.approval, error=failure_of(error))
        return Decided(approval.id, approval.state)

    async def release(self, run: EngineRun) -> None:
        """Let the run go, if this process has it: the next request opens it, here or elsewhere."""
        await self._let_go((run.tenant, run.id))

    async def decisions(self) -> AsyncIterator[RunInfo]:
        """Yield the runs of this engine about which a person has decided something: their waits may be over.

        First those that were decided while no worker ran. Of other tenants than the runtime's own: those for which this
        process has opened a run. Never ends; one that reads is enough, several do no harm.
        """
        watched: dict[str | None, _Watch] = {}
        while True:
            for tenant in (None, *self._tenants):
                rt = self._rt.scoped(tenant=tenant) if tenant else self._rt
                try:
                    if tenant not in watched:
                        watched[tenant] = await self._watch(rt)
                    decided = await self._decided(rt, watched[tenant])
                except LedgerError as error:
                    log.warning("the ledger could not be read for decisions, and is read again: %s", error)
                    continue
                for root in decided:
                    yield root
            await asyncio.sleep(WATCH_S)

    async def _watch(self, rt: AsyncRuntime) -> _Watch:
        """Begin to watch the events of one tenant, with the runs that were decided about while nobody watched."""
        newest = await rt.newest_event()
        watch = _Watch(Feed(newest.place if newest is not None else ""))
        async for known in rt.runs(f'tag:"{self.tag}"'):
            last = None if known.closed_at is not None else await rt.newest_event(known.id)
            if last is not None and _is_decision(last):
                watch.found[known.id] = None
        return watch

    async def _decided(self, rt: AsyncRuntime, watch: _Watch) -> list[RunInfo]:
        async for event in rt.events(after=watch.feed.after):
            if watch.feed.is_new(event) and _is_decision(event):
                watch.found[event.run_id] = None
        roots = [await self._root_of(rt, id) for id in watch.found]
        watch.found.clear()  # only now: an event is new once, and the ledger may fail before its run is read
        return [root for root in roots if root is not None and self.tag in root.tags]

    async def _root_of(self, rt: AsyncRuntime, id: str) -> RunInfo | None:
        try:
            found = await rt.info(id)
            while found.parent is not None:
                found = await rt.info(found.parent)
        except RunNotFound:
            return None
        return found

    # ---- Sessions

    @asynccontextmanager
    async def _request(self, run: EngineRun) -> AsyncIterator[_Session]:
        """Give the open run to one request; while it lasts, nobody lets the run go."""
        session = self._open.get((run.tenant, run.id))
        if session is not None and not session.gives_way:
            session.enter()
        else:
            session = await self._entered_whole(run)
        try:
            yield session
        except LeaseLost:
            self._forget(run, session)
            raise
        finally:
            session.leave()
            if session.run.is_over:
                self._forget(run, session)

    async def _entered_whole(self, run: EngineRun) -> _Session:
        """Open the run, whether or not the request is cancelled meanwhile.

        Opening may compensate, if a dead process was rolling the run back, and nothing may interrupt that.
        """
        entering = self._keep(self._entered(run))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(_leave)
            raise

    async def _entered(self, run: EngineRun) -> _Session:
        place = (run.tenant, run.id)
        async with self._opening.setdefault(place, asyncio.Lock()):
            session = await self._present(place)
            if session is None:
                session = await self._opened(run)
            session.enter()
            return session

    async def _present(self, place: tuple[str | None, str]) -> _Session | None:
        # What is waited for is the end of other requests, or that time has passed.
        while (found := self._open.get(place)) is not None and found.gives_way:  # noqa: ASYNC110
            await asyncio.sleep(SWEEP_S / 4)
        return found

    async def _opened(self, run: EngineRun) -> _Session:
        rt = self._rt.scoped(tenant=run.tenant, agent=run.agent, principal=run.principal)
        opened = await rt.open(
            run.id, input=run.input, tags=[*run.tags, self.tag], recover="wait", interrupted="block",
            deadline=run.deadline, if_rolled_back="raise", requires=run.requires, on_open_failure=run.on_open_failure,
            history=True, client_lease=CLIENT_LEASE_S, wait=WAIT_S, wait_approval=0.0,
        )  # fmt: skip
        session = _Session(rt, opened)
        if run.tenant:
            self._tenants[run.tenant] = None
        if opened.resumed:
            await session.remember()
        if not opened.is_over:
            self._open[run.tenant, run.id] = session
        return session

    def _forget(self, run: EngineRun, session: _Session) -> None:
        """Forget a session that is over, unless another request has opened the run again since: that one is kept."""
        if self._open.get((run.tenant, run.id)) is session:
            self._taken((run.tenant, run.id))

    def _taken(self, place: tuple[str | None, str]) -> _Session | None:
        """Return the open run and forget it, with its lock, which nobody waits for if it is free."""
        if (lock := self._opening.get(place)) is not None and not lock.locked():
            del self._opening[place]
        return self._open.pop(place, None)

    async def _let_go(self, place: tuple[str | None, str]) -> None:
        session = self._taken(place)
        if session is None or session.run.is_over:
            return
        try:
            await session.run.release()
        except Error as error:
            log.warning("run %s could not be let go; its next request opens it: %s", visible(place[1]), error)

    async def _sweep(self) -> None:
        """Let go of runs that are idle, and of those that another worker wants, as soon as no request is under way."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if not self._open:
                continue
            try:
                wanted = {(one.tenant, one.id) for one in await self._rt.wanted()}
                for session in self._open.values():
                    if (session.run.tenant, session.run.id) in wanted:
                        session.want()
                for place, session in list(self._open.items()):
                    if self._open.get(place) is not session:
                        continue  # it was opened again while others were let go
                    if not session.is_used and (session.is_wanted or session.idle_s > self._idle_s):
                        await self._let_go(place)
            except LedgerError as error:
                log.warning("the ledger could not be asked which runs are wanted elsewhere: %s", error)
            except Exception as error:  # the next sweep tries again
                log_error(log, logging.ERROR, "idle runs could not be let go", error)

    async def _going(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish ``work`` even if the engine cancels the request: whatever has begun is recorded."""
        going = self._keep(work)
        try:
            return await asyncio.shield(going)
        except asyncio.CancelledError:
            going.add_done_callback(_retrieve)
            raise

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Start ``work``, which is waited for when these runs are closed."""
        going = asyncio.ensure_future(work)
        self._going_on.add(going)
        going.add_done_callback(self._going_on.discard)
        return going

    # ---- Calls

    async def _answered(self, session: _Session, call: EngineCall, body: Body | None) -> Outcome:
        known = session.requests.get(call.request)
        if isinstance(known, Outcome):
            return known
        if known is not None:
            recorded = await session.rt.call(known)
            if not await session.run.is_repeat(known, call.tool, call.args):
                raise UsageError(
                    f"request {call.request} was {recorded.tool} (call {known}), and is now {call.tool}, or has other arguments",
                    hint="the engine's code must ask for the same calls each time that it is repeated; results of a model, the"
                    " time and chance belong into steps of the engine",
                    run_id=session.run.id,
                )
            # A read that was lost, or a call that its process stopped before its body: nothing happened, so it is done now.
            is_lost = recorded.state == "failed" and recorded.why in ("lost", "cancelled")
            if recorded.state in ("succeeded", "failed", "refused", "compensated") and not is_lost:
                told = await session.rt.told(known)
                assert told is not None, "a call that has ended has an answer"
                return self._outcome(call, told, replayed=True)
            needs_person = recorded.state == "in_doubt" and self._probed_in(call.tool) is None
            if needs_person and not await session.has_evidence(known):
                # Only a person settles it. Asked for again, it would be the next generation if one does so meanwhile.
                doubt = InDoubt(
                    f"{call.tool} may have happened", call=recorded, why=recorded.why or "", run_id=session.run.id
                )
                return Outcome("in_doubt", doubt.for_model(), call=known, error=failure_of(doubt))
        given: dict[str, Any] = {"tool_call_id": call.request, "again": call.again}
        if body is not None:
            given["handler"] = body
        answer = await session.run.answer(call.tool, call.args, **given)
        if isinstance(answer.error, LedgerError):
            raise answer.error
        outcome = self._outcome(call, answer)
        session.note(call.request, outcome.call, failed=outcome if outcome.status == "failed" else None)
        return outcome

    def _outcome(self, call: EngineCall, answer: Answer, *, replayed: bool = False) -> Outcome:
        error, id = answer.error, "" if answer.call is None else answer.call.id
        match answer.status:
            case "done" | "replayed":
                # As the answer's own JSON has it; to write its whole call down as well would cost as much as the call.
                value = Answer(answer.status, answer.text, answer.value).to_dict()["value"]
                return Outcome("done", answer.text, value, id, replayed=replayed or answer.status == "replayed")
            case "staged":
                return Outcome("staged", answer.text, call=id)
            case "in_doubt":
                return Outcome(
                    "in_doubt", answer.text, call=id, error=_told(answer), again_s=self._probed_in(call.tool)
                )
        if isinstance(error, RunEnded):
            return Outcome("ended", answer.text, error=_told(answer), run_state=error.state)
        if isinstance(error, Busy):
            return Outcome("later", answer.text, call=id, error=_told(answer), again_s=min(error.retry_after, WAIT_S))
        if isinstance(error, RunBlocked):
            return Outcome("blocked", answer.text, error=_told(answer))
        if answer.waits:
            approval = pending(getattr(error, "approval", None))
            return Outcome("held", answer.text, call=id, error=_told(answer), approval=approval)
        status: Status = "failed" if answer.status == "failed" else "refused"
        return Outcome(status, answer.text, call=id, error=_told(answer))

    def _probed_in(self, tool: str) -> float | None:
        """Return when to ask again about a doubt; None: only a person can settle it."""
        info = self._tools.get(tool)
        return AGAIN_S if info is not None and (info.probe is not None or info.idempotent) else None

    def _not_done(self, error: Exception) -> Outcome:
        """Return how a call stands whose run could not be opened; raise what is no answer."""
        match error:
            case LedgerError():
                raise error
            case RunEnded():
                return Outcome("ended", error.for_model(), error=failure_of(error), run_state=error.state)
            case Busy():
                soon = min(error.retry_after, WAIT_S)
                return Outcome("later", error.for_model(), error=failure_of(error), again_s=soon)
            case RunBlocked():
                return Outcome("blocked", error.for_model(), error=failure_of(error))
            case Held():
                return Outcome("held", error.for_model(), error=failure_of(error), approval=pending(error.approval))
            case UsageError() | Refused():
                return Outcome("refused", error.for_model(), error=failure_of(error))
            case _:
                raise error

    # ---- Endings

    async def _ended(self, run: EngineRun, end: Callable[[AsyncRun], Coroutine[Any, Any, object]]) -> Ending:
        for _ in range(2):
            try:
                async with self._request(run) as session:
                    if not session.run.is_over:
                        await self._going(session.last(lambda: end(session.run)))
                    return await self._ending_of(session.rt, run)
            except LeaseLost:
                pass
            except Exception as error:
                return await self._not_ended(run, error)
        raise LeaseLost("the run changed its owner twice while it was ended", hint="ask for its end again")

    async def _ending_of(self, rt: AsyncRuntime, run: EngineRun, error: Exception | None = None) -> Ending:
        report = await rt.report(run.id)
        again_s = None if report.run.closed_at is not None or report.state == "blocked" else AGAIN_S
        return Ending(
            report.state, "" if error is None else str(error), residue=_residue(report), causes=list(report.run.causes),
            error=None if error is None else failure_of(error), again_s=again_s,
        )  # fmt: skip

    async def _not_ended(self, run: EngineRun, error: Exception) -> Ending:
        rt = self._rt.scoped(tenant=run.tenant) if run.tenant else self._rt
        match error:
            case LedgerError():
                raise error
            case RolledBack() | RunBlocked():
                return await self._ending_of(rt, run, None if isinstance(error, RolledBack) else error)
            case RunEnded():
                return Ending(error.state, str(error), error=failure_of(error))
            case Busy():
                return Ending("open", str(error), error=failure_of(error), again_s=min(error.retry_after, WAIT_S))
            case Held():
                asked = pending(error.approval)
                return Ending("open", str(error), error=failure_of(error), approval=asked, again_s=None)
            case UsageError():  # another run has this id, or its output cannot be recorded
                return Ending("open", str(error), error=failure_of(error))
            case _:  # among others a tool's own error: a pivot at the commit has failed, and the run was rolled back
                return await self._ending_of(rt, run, error)


@dataclass(slots=True)
class _Watch:
    """How far the events of one tenant were read."""

    feed: Feed
    found: dict[str, None] = field(default_factory=dict)
    """The runs with a decision that nobody was told of yet."""


# ---- One open run


class _Session:
    """One run that this process owns, and the requests about it."""

    def __init__(self, rt: AsyncRuntime, run: AsyncRun) -> None:
        self.rt, self.run = rt, run
        self.requests: dict[str, str | Outcome] = {}
        """The call of each request that has one, by its id; how it failed, if only its error is known."""
        self._going: dict[str, asyncio.Future[Outcome]] = {}
        self._ending = asyncio.Lock()
        self._used, self._seen = 0, time.monotonic()
        self._wanted: float | None = None

    async def remember(self) -> None:
        """Find out which calls earlier requests have admitted, under earlier owners."""
        for call in _all_calls(await self.rt.report(self.run.id)):
            if call.tool_call_id:
                self.note(call.tool_call_id, call.id)

    async def has_evidence(self, call: str) -> bool:
        """Return whether something was learned about a call in doubt: its body may have returned after all."""
        async for doubt in self.rt.doubts(f"call:{call}"):
            if doubt.id == call:
                return bool(doubt.evidence)
        return False

    def note(self, request: str, call: str, *, failed: Outcome | None = None) -> None:
        """Remember what became of a request: a repeat of it must find that, and not ask for the next generation."""
        if not call and failed is None:
            return
        self.requests.pop(request, None)
        self.requests[request] = call or failed or ""
        if len(self.requests) > REQUESTS_MAX:
            del self.requests[next(iter(self.requests))]

    async def once(self, call: EngineCall, start: Callable[[], asyncio.Future[Outcome]]) -> Outcome:
        """Start the work of a request, unless the same request is being worked on: then share its outcome.

        It is finished even if the engine cancels the request: whatever has begun is recorded.
        """
        going = self._going.get(call.request)
        if going is None:
            going = self._going[call.request] = start()
            self.enter()
            going.add_done_callback(lambda done: self._done(call.request, done))
        return await asyncio.shield(going)

    def _done(self, request: str, done: asyncio.Future[Outcome]) -> None:
        self._going.pop(request, None)
        self.leave()
        _retrieve(done)

    async def last(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """End the run after the requests that are under way, another one for its end included."""
        with self._use():
            async with self._ending:
                if self._going:
                    await asyncio.wait(set(self._going.values()))
                if not self.run.is_over:
                    await work()

    @contextmanager
    def _use(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Count a request that is under way."""
        self._used += 1

    def leave(self) -> None:
        """Count a request that has ended."""
        self._used -= 1
        self._seen = time.monotonic()

    def want(self) -> None:
        """Note that another worker wants the run."""
        now = time.monotonic()
        if self._wanted is None or now > self._wanted + 2 * GIVE_WAY_S:
            self._wanted = now

    @property
    def is_used(self) -> bool:
        """Whether a request is under way."""
        return self._used > 0

    @property
    def is_wanted(self) -> bool:
        """Whether another worker wants the run."""
        return self._wanted is not None

    @property
    def gives_way(self) -> bool:
        """Whether new requests wait until those under way have ended and another worker has the run."""
        return self._wanted is not None and time.monotonic() < self._wanted + GIVE_WAY_S

    @property
    def idle_s(self) -> float:
        """For how long there was no request."""
        return time.monotonic() - self._seen


# ---- Facts as plain data


def failure_of(error: Exception) -> Failure:
    """Return an error as plain data."""
    if isinstance(error, Error):
        return Failure(type(error).__name__, str(error), error.code, error.hint)
    return Failure(type(error).__name__, str(error))


def pending(approval: Approval | None) -> PendingApproval | None:
    """Return what a person is asked, as plain data."""
    if approval is None:
        return None
    facts = approval.to_dict()
    return PendingApproval(
        approval.id, approval.digest, approval.call.tool, facts["call"]["args"], approval.rule, facts["expires_at"]
    )


def _told(answer: Answer) -> Failure | None:
    """Return the error of an answer. A tool's own message may hold what is redacted: the text for the model does not."""
    match answer.error:
        case None:
            return None
        case ToolFailed() as error:
            return Failure(error.type_name, answer.text)
        case Error() as error:
            return failure_of(error)
        case error:
            return Failure(type(error).__name__, answer.text)


def _residue(report: Report) -> list[str]:
    return [left.call.tool for left in report.residue]


def _all_calls(report: Report) -> Iterator[Call]:
    yield from report.calls
    for child in report.children:
        yield from _all_calls(child)


def _is_decision(event: Event) -> bool:
    """Return whether a wait may be over because of this event; one too many is a look at the run too many."""
    match event.what:
        case "approval":
            return event.to in ("approved", "rejected", "expired", "cancelled")
        case "call":
            return event.frm in ("held", "in_doubt", "compensation_failed", "compensation_in_doubt")
        case "goal" | "run":
            is_finished = event.to == "committed" and "why" in event.facts  # by a person, who says why
            return is_finished or event.to in ("rollback", "abandoned")
        case other:
            return other in ("evidence", "retry asked", "rollback planned")


def _leave(entered: asyncio.Future[_Session]) -> None:
    """Count a request as ended that was cancelled before it had its run."""
    if not entered.cancelled() and entered.exception() is None:
        entered.result().leave()
    else:
        _retrieve(entered)


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Take the error of work that nobody waits for any more; the record has it."""
    if not done.cancelled() and (error := done.exception()) is not None:
        log.debug("a request that nobody waits for ended with %s", type(error).__name__)
