"""Tools that live in another process, in any language: a worker declares them, takes work by long poll, and reports.

To the engine such a tool is a body that awaits an answer. A piece of work is one phase (execute, compensate or probe) of
one attempt. It is handed out at most once: a worker that vanishes leaves a doubt, and what no worker has taken has
certainly had no effect. See ``docs/explanation/ownership.md``.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic import Field

from amends import (
    Absent,
    Call,
    Happened,
    NoEffect,
    Retry,
    Unknown,
    WorkLost,
    current_call,
    current_run,
    spent,
    tool,
)
from amends.errors import BadDeclaration, Busy, LeaseLost, NotFound, ReportConflict, ToolFailed, UsageError
from amends.serve.claims import Work, digest_of, sign
from amends.serve.exchange import Body, Exchange, Reply, encoded
from amends.serve.parameters import Parameters
from amends.serve.problems import Taken, TooMany

if TYPE_CHECKING:
    from amends.serve.service import Service

MARGIN: Final = 1.1
"""How much longer than a lease the server waits: the worker counts from before it asked, the server from after."""
TURN_BITS: Final = 52
WORKERS_BACK_POLL_S: Final = 0.05
RETRY_S: Final = 5.0
"""How soon a client asks again for a tool whose worker is not there."""
OPEN_STATES: Final = ("open", "pivoted", "rolling_back", "blocked")
ENDED_MAX: Final = 10_000
"""How many pieces that have ended are remembered, so that a repeated report gets the same answer."""
Phase = Literal["execute", "compensate", "probe"]
Name: TypeAlias = tuple[str, int, str, int, int]

# ---- What a worker sends


class CompensationDeclared(Body):
    """What may be relied on when a call is compensated; nothing is implied."""

    needs_result: bool = Field(True, description="It needs the result of the call")
    idempotent: bool = Field(False, description="Its destination deduplicates on the key")
    absent_ok: bool = Field(False, description="It may run although there may be nothing to undo")
    wins: bool = Field(False, description="After it the destination refuses a late effect")
    attempts: int = Field(3, ge=1, le=100, description="How often it is tried, if it certainly had no effect")


class ToolDeclared(Body):
    """A tool that a worker performs."""

    name: str = Field(min_length=1, max_length=64, pattern="^[A-Za-z_][A-Za-z0-9_.-]*$")
    kind: Literal["compensatable", "pivot", "retriable", "read"] = "compensatable"
    description: str = Field("", max_length=10_000, description="What models are told")
    parameters: dict[str, Any] = Field(default_factory=dict, description="The JSON schema of its arguments")
    key: list[str] | None = Field(None, description="The arguments that identify a call; none: all of them")
    ignore: list[str] | None = Field(None, description="Arguments that carry no intent")
    version: str | None = Field(None, max_length=100)
    idempotent: bool | str = Field(False, description="The destination deduplicates on the key; or for how long: 24h")
    needs_approval: bool = False
    settle: float = Field(0.0, ge=0, le=86_400, description="Seconds in which a late effect may still arrive")
    attempts: int | None = Field(None, ge=1, le=100, description="How often it is tried, if it certainly had no effect")
    lease: float = Field(30.0, gt=0, le=3_600, description="Seconds without a report until a piece of work is in doubt")
    compensate: CompensationDeclared | None = Field(None, description="It has a compensation")
    probe: bool = Field(False, description="It can tell whether a call took effect")


class Register(Body):
    """The tools that a worker performs from now on."""

    name: str = Field("", max_length=200, description="What people call this worker")
    tools: list[ToolDeclared] = Field(min_length=1, max_length=200)


class TakeWork(Body):
    """Ask for one piece of work."""

    wait: float = Field(20.0, ge=0, le=60, description="Seconds to wait for one")


# ---- What is known of workers


@dataclass(slots=True)
class Served:
    """A tool that workers perform, as it was declared."""

    declared: ToolDeclared
    digest: str
    parameters: Parameters
    tenant: str
    is_free: bool = False
    """Whether workers of another tenant may have its name: its own have left, and no open run needs it."""


@dataclass(slots=True)
class Worker:
    """One process that takes work. It is alive while it asks for some."""

    id: str
    name: str
    tenant: str
    by: str
    tools: frozenset[str]
    seen: float = field(default_factory=time.monotonic)
    asks: int = 0
    has_left: bool = False

    def is_alive(self, lease_s: float) -> bool:
        """Return whether it asks for work, or did so a short time ago."""
        return self.asks > 0 or time.monotonic() - self.seen < lease_s


@dataclass(slots=True)
class Piece:
    """One phase of one attempt: it waits for a worker, a worker has it, or it has ended."""

    work: Work
    tool: str
    key: str
    sent: dict[str, Any]
    lease_s: float
    done: asyncio.Future[list[Any]]
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    worker: str = ""
    since: float = field(default_factory=time.monotonic)
    until: float = 0.0
    report: str = ""

    @property
    def name(self) -> Name:
        """What a token names."""
        return name_of(self.work)


def name_of(work: Work) -> Name:
    """Return what tells a piece of work from every other."""
    return work.call, work.attempt, work.phase, work.epoch, work.turn


class Desk:
    """The tools that workers perform, the work that waits, and the work that workers have."""

    def __init__(self, service: Service) -> None:
        self._service, self._limits = service, service.limits
        self._served: dict[str, Served] = {}
        self._workers: dict[str, Worker] = {}
        self._waiting: dict[str, deque[Piece]] = {}
        self._news = asyncio.Condition()
        self._pieces: dict[Name, Piece] = {}
        self._ended: OrderedDict[Name, Piece] = OrderedDict()
        self._unserved: frozenset[str] = frozenset()
        self._since = time.monotonic()
        self._has_tokens: bool | None = None

    # ---- Workers and their tools

    async def register(self, tenant: str, by: str, name: str, tools: list[ToolDeclared]) -> Worker:
        """Add a worker with its tools, all of them or none; declare those that nobody has declared.

        Their names are reserved in the ledger first: whoever asks for one before a worker is back does not find it undeclared.
        """
        self.look_at_workers()
        await self._free([one.name for one in tools], tenant)
        self._checked_all(tenant, tools)
        await self._service.runtime(tenant).reserve_tools([one.name for one in tools])
        served, new = self._checked_all(tenant, tools)
        if new:
            self._service.rt.add(*(self._tool(one) for one in new), replace=True)
        self._served |= {one.declared.name: one for one in served}
        made = Worker(self._service.new_id("wrk"), name or by, tenant, by, frozenset(one.name for one in tools))
        self._workers[made.id] = made
        self.look_at_workers()
        return made

    def _checked_all(self, tenant: str, tools: list[ToolDeclared]) -> tuple[list[Served], list[Served]]:
        """Return the tools, and those that have to be declared; raise if one of them cannot be."""
        if len(self._workers) >= self._limits.workers_max:
            raise TooMany(f"{len(self._workers):,} workers are known here, and no more are accepted (workers_max)")
        names = [one.name for one in tools]
        if twice := next((one for one in names if names.count(one) > 1), None):
            raise BadDeclaration(f"two tools are called {twice}", tool=twice)
        served = [self._checked(tenant, declared) for declared in tools]
        new = [one for one in served if self._is_new(one)]
        known = len(self._served.keys() | set(names))
        if known > max(len(self._served), self._limits.worker_tools_max):
            raise TooMany(
                f"workers have declared {len(self._served):,} tools here, of at most"
                f" {self._limits.worker_tools_max:,} (worker_tools_max)"
            )
        return served, new

    async def _free(self, names: Iterable[str], tenant: str) -> None:
        """Let go of names that workers of another tenant had, if those have left and no open run needs their tools."""
        there = {name for one in self._alive() for name in one.tools}
        for name in set(names) - there:
            known = self._served.get(name)
            if known is None or known.tenant == tenant or await self._is_needed(known):
                continue
            if self._served.get(name) is known and not any(name in one.tools for one in self._alive()):
                known.is_free = True  # its declaration stays until another one replaces it

    async def _is_needed(self, known: Served) -> bool:
        """Return whether a run that has not ended has a call of this tool."""
        filter = f'tool:"{known.declared.name}" state:{",".join(OPEN_STATES)}'
        async for _ in self._service.runtime(known.tenant).runs(filter):
            return True
        return False

    def _checked(self, tenant: str, declared: ToolDeclared) -> Served:
        if (declared.kind == "compensatable") != (declared.compensate is not None):
            raise BadDeclaration(
                f"{declared.name} is {declared.kind} and has {'no' if declared.compensate is None else 'a'} compensation",
                tool=declared.name,
                hint='a tool with a compensation is "compensatable"; one without is "read", "pivot" or "retriable"',
            )
        digest = hashlib.sha256(encoded(declared.model_dump(mode="json"))).hexdigest()
        return Served(declared, digest, Parameters(declared.name, declared.parameters), tenant)

    def _is_new(self, one: Served) -> bool:
        """Return whether it has to be declared; raise ``Taken`` if somebody else has the name."""
        name, known = one.declared.name, self._served.get(one.declared.name)
        if known is None:
            if self._service.rt.kind_of(name) is not None:
                raise Taken(f"{name} is a tool of the server itself: give the worker's another name", tool=name)
            return True
        others = [worker.name for worker in self._alive() if name in worker.tools]
        if known.tenant != one.tenant:
            if known.is_free and not others:  # one may have asked for work again since
                return True
            raise Taken(f"{name} is a tool of other workers: give it another name", tool=name)
        if known.digest == one.digest:
            return False
        if others:
            raise Taken(
                f"{name} is declared otherwise by a worker that is still there ({others[0]}): stop that one first, or"
                " give the new tool another name",
                tool=name,
            )
        return True

    def _tool(self, one: Served) -> Any:
        """Return the tool whose body, compensation and probe await a worker."""
        said = one.declared

        async def execute(**args: Any) -> Any:
            return await self._performed(one, "execute", one.parameters.sent(args))

        execute.__signature__ = one.parameters.signature  # type: ignore[attr-defined]
        execute.__annotations__ = {name: made.annotation for name, made in one.parameters.signature.parameters.items()}
        execute.__doc__ = said.description
        options: dict[str, Any] = {"name": said.name, "kind": said.kind, "remote": said.lease, "settle": said.settle}
        options |= {"idempotent": said.idempotent, "needs_approval": said.needs_approval, "version": said.version}
        options |= {"key": tuple(said.key) if said.key else None, "ignore": tuple(said.ignore) if said.ignore else None}
        if said.attempts is not None:
            options["retry"] = Retry(attempts=said.attempts)
        made: Any = tool(execute, **{name: value for name, value in options.items() if value not in (None, "")})
        if said.compensate is not None:
            self._compensate(one, made, said.compensate)
        if said.probe:

            async def probe(call: Call) -> Any:
                return await self._probed(one, call)

            made.probe(probe)

        return made

    def _compensate(self, one: Served, made: Any, said: CompensationDeclared) -> None:
        async def undo(call: Call, **more: Any) -> None:
            await self._performed(one, "compensate", one.parameters.sent(call.args), **more)

        async def with_result(call: Call, result: Any) -> None:
            await undo(call, result=result)

        async def without_result(call: Call) -> None:
            await undo(call)

        options = {"idempotent": said.idempotent, "absent_ok": said.absent_ok, "wins": said.wins}
        given = {name: True for name, is_true in options.items() if is_true}
        made.compensate(retry=Retry(attempts=said.attempts), **given)(
            with_result if said.needs_result else without_result
        )

    # ---- Who is there

    def _alive(self) -> list[Worker]:
        return [one for one in self._workers.values() if one.is_alive(self._limits.worker_lease_s)]

    def look_at_workers(self) -> None:
        """Forget workers that are gone; runs that need tools which nobody performs now are left to later."""
        alive = self._alive()
        self._workers = {one.id: one for one in alive}
        there = frozenset(name for one in alive for name in one.tools)
        unserved = frozenset(self._served) - there
        if unserved != self._unserved:
            self._unserved = unserved
            self._service.rt.set_unserved(unserved)

    def leave(self, worker: Worker) -> None:
        """Forget a worker that has said that it ends."""
        worker.has_left = True
        self._workers.pop(worker.id, None)
        self.look_at_workers()

    async def await_tools(self, tools: Iterable[str]) -> None:
        """Wait until these tools are known, or the workers that a server before this one had are not coming back.

        Which tools workers perform is known only from the workers: a run that goes on here would find none of them.
        """
        wanted = frozenset(tools)
        # A tool may become known in other ways than by a worker that registers.
        while self.expects_workers and any(self._service.rt.kind_of(name) is None for name in wanted):  # noqa: ASYNC110
            await asyncio.sleep(WORKERS_BACK_POLL_S)

    async def check_declared(self, tenant: str, tools: Iterable[str]) -> None:
        """Raise ``Busy`` if a tool is a worker's and no worker has declared it here since the start.

        What it is, only its declaration says: that it needs approval, for example. Until a worker is back nobody may claim
        it as an undeclared tool, and no plan with it is judged.
        """
        unknown = [name for name in dict.fromkeys(tools) if self._service.rt.kind_of(name) is None]
        if not unknown:
            return
        reserved = await self._service.runtime(tenant).reserved_tools(unknown)
        await self.await_tools(reserved)
        missing = [name for name in unknown if name in reserved and self._service.rt.kind_of(name) is None]
        if missing:
            raise Busy(
                f"{missing[0]} is a worker's tool, and no worker that declares it is here; nothing was started",
                owner="a worker", retry_after=RETRY_S,
            )  # fmt: skip

    async def may_come(self) -> bool:
        """Return whether a tool that nobody knows yet may be that of a worker which has not come back yet.

        That is so for a while after the start, if somebody has a token for workers.
        """
        if not self.expects_workers:
            return False
        if self._has_tokens is None:
            self._has_tokens = any("worker" in one.scopes for one in await self._service.rt.tokens())
        return self._has_tokens

    @property
    def expects_workers(self) -> bool:
        """Whether this server has started so recently that workers may still come back."""
        return time.monotonic() < self._since + self._limits.workers_back_s_max

    async def wake(self) -> None:
        """Let everybody who waits for work look again."""
        async with self._news:
            self._news.notify_all()

    def workers(self, tenant: str | None) -> list[Worker]:
        """Return the workers that are there; None: of every tenant."""
        return [one for one in self._alive() if tenant is None or one.tenant == tenant]

    def served(self, tenant: str | None) -> dict[str, dict[str, Any]]:
        """Return the tools that workers perform, by name: who is there for each, and how much work waits; None: all tenants."""
        alive = self._alive()
        return {
            name: {
                "lease": one.declared.lease,
                "workers": sorted(worker.name for worker in alive if name in worker.tools),
                "waiting": len(self._waiting.get(name, ())),
                "held": sum(piece.tool == name and piece.taken.is_set() for piece in self._pieces.values()),
            }
            for name, one in self._served.items()
            if tenant is None or one.tenant == tenant
        }

    def work(self, tenant: str | None) -> list[dict[str, Any]]:
        """Return the work that waits for a worker, and that workers have, the oldest first; None: of every tenant."""
        now = time.monotonic()
        return [
            {
                "run": piece.work.run,
                "call": piece.work.call,
                "tool": piece.tool,
                "phase": piece.work.phase,
                "attempt": piece.work.attempt,
                "worker": piece.worker or None,
                "waits_s": round(now - piece.since, 3),
                "lease_left_s": round(piece.until - now, 3) if piece.taken.is_set() else None,
            }
            for piece in sorted(self._pieces.values(), key=lambda one: one.since)
            if tenant is None or piece.work.tenant == tenant
        ]

    def worker(self, tenant: str, id: str) -> Worker:
        """Return one worker; raise ``WorkerNotFound``."""
        found = self._workers.get(id)
        if found is None or found.tenant != tenant:
            raise WorkerNotFound(id)
        return found

    # ---- Performing: what the engine awaits

    async def _performed(self, one: Served, phase: Phase, args: dict[str, Any], **more: Any) -> Any:
        how, what, cost = await self._answer(one, phase, args, **more)
        if phase == "execute":
            for unit, amount in cost.items():
                spent(amount, unit)
        match how:
            case "succeed":
                return what
            case "no_effect":
                raise NoEffect(what)
            case "doubt":
                raise WorkLost(what)
            case _:
                # The error of a process that has ended its work: unlike an error of this one, it leaves nothing under way.
                raise ToolFailed(what, call=current_call(), type_name="")

    async def _probed(self, one: Served, call: Call) -> Any:
        try:
            how, what, _ = await self._answer(one, "probe", one.parameters.sent(call.args))
        except (NoEffect, WorkLost) as error:
            return Unknown(str(error))
        if how != "succeed":
            return Unknown(str(what))
        answer = what.get("answer")
        if answer == "happened":
            return Happened(what.get("result"))
        return Absent() if answer == "absent" else Unknown(str(what.get("why", "")))

    async def _answer(self, one: Served, phase: Phase, args: dict[str, Any], **more: Any) -> list[Any]:
        """Hand a piece of work out, once, and wait for the report as long as its lease lasts."""
        call = current_call()
        if (call.tenant or "") != one.tenant:
            raise NoEffect(f"no worker of this tenant performs {one.declared.name}")
        # An attempt may be probed several times, also at once: each is a piece of work of its own.
        turn = secrets.randbits(TURN_BITS) if phase == "probe" else 0
        epoch = await self._epoch(call, phase)
        work = Work(call.tenant or "", call.run_id, epoch, call.id, call.attempt, phase, turn)
        sent = {
            "run": call.run_id, "call": call.id, "tool": one.declared.name, "phase": phase, "attempt": call.attempt,
            "key": call.key, "args": args, **more,
        }  # fmt: skip
        loop = asyncio.get_running_loop()
        piece = Piece(work, one.declared.name, call.key, sent, one.declared.lease, loop.create_future())
        self._pieces[piece.name] = piece
        try:
            await self._handed_out(piece)
            while not piece.done.done():
                left = piece.until - time.monotonic()
                if left <= 0:
                    raise WorkLost(f"worker {piece.worker} was silent past the work lease of {piece.lease_s:g} s")
                await asyncio.wait({piece.done}, timeout=left)
            return piece.done.result()
        finally:
            del self._pieces[piece.name]
            # What it was about and what was reported may be large, and the record has both.
            self._ended[piece.name] = replace(piece, sent={}, done=loop.create_future())
            while len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)

    async def _epoch(self, call: Call, phase: Phase) -> int:
        if phase == "execute":
            return int(current_run().epoch)
        found = await self._service.runtime(call.tenant or "").report(call.run_id)
        return found.run.epoch  # this process owns the run, or it would not compensate or probe

    async def _handed_out(self, piece: Piece) -> None:
        queue = self._waiting.setdefault(piece.tool, deque())
        queue.append(piece)
        async with self._news:
            self._news.notify_all()
        try:
            await asyncio.wait_for(piece.taken.wait(), self._limits.pickup_s_max)
        except TimeoutError:
            if piece.taken.is_set():
                return  # in the same moment
            raise NotTaken(
                f"no worker took {piece.tool} within {self._limits.pickup_s_max:g} s: start one that has this tool"
            ) from None
        finally:
            if not piece.taken.is_set():
                queue.remove(piece)

    # ---- Taking and reporting: what workers do

    async def take(self, worker: Worker, wait_s: float, *, is_gone: Callable[[], Awaitable[bool]]) -> Piece | None:
        """Return one piece of work for a worker, or None if there is none in time, or it has left.

        ``is_gone``: whether the worker has hung up. What it is given then would be in doubt for as long as its lease.
        """
        until = time.monotonic() + wait_s
        worker.asks += 1
        try:
            while not (self._service.is_closing or worker.has_left or await is_gone()):
                if (found := self._next(worker)) is not None:
                    return found
                left = until - time.monotonic()
                if left <= 0:
                    return None
                async with self._news:
                    if self._next_queue(worker) is None and worker.id in self._workers:
                        try:
                            await asyncio.wait_for(self._news.wait(), min(left, 1.0))
                        except TimeoutError:
                            continue
            return None
        finally:
            worker.asks -= 1
            worker.seen = time.monotonic()

    def _next_queue(self, worker: Worker) -> deque[Piece] | None:
        queues = [queue for name in worker.tools if (queue := self._waiting.get(name))]
        return min(queues, key=lambda one: one[0].since, default=None)

    def _next(self, worker: Worker) -> Piece | None:
        queue = self._next_queue(worker)
        if queue is None:
            return None
        piece = queue.popleft()
        piece.worker, piece.until = worker.name, time.monotonic() + piece.lease_s * MARGIN
        piece.taken.set()  # from here on nobody else can have it
        return piece

    def is_hidden(self, tool: str, tenant: str | None) -> bool:
        """Return whether a tool is performed by workers of another tenant; None: whoever asks sees every tenant."""
        known = self._served.get(tool)
        return known is not None and tenant is not None and known.tenant != tenant

    def found(self, work: Work) -> Piece | None:
        """Return the piece that a token names, if this server has handed it out."""
        name = name_of(work)
        return self._pieces.get(name) or self._ended.get(name)

    async def report(self, x: Exchange, piece: Piece, report: list[Any], cost: Mapping[str, float]) -> Reply | None:
        """Take a report; None: its lease is over, so it is evidence."""
        if piece.work.phase == "probe" and report[0] == "succeed":
            report = ["succeed", _probe_answer(report[1])]
        digest = digest_of(report, cost)
        if piece.report and piece.report != digest:
            raise ReportConflict(
                f"attempt {piece.work.attempt} of call {piece.work.call} was reported otherwise before",
                call_id=piece.work.call, attempt=piece.work.attempt, run_id=piece.work.run,
            )  # fmt: skip
        if not piece.report:
            if piece.done.done() or piece.name not in self._pieces or time.monotonic() > piece.until:
                return None
            piece.report = digest
            piece.done.set_result([*report, cost])
        return Reply(await self._recorded(x, piece))

    async def _recorded(self, x: Exchange, piece: Piece) -> dict[str, Any]:
        """Wait until the report is durable, and return what it led to."""
        until, pause = time.monotonic() + self._limits.answer_s_max, 0.002
        while True:
            call = await self._service.runtime(piece.work.tenant).call(piece.work.call)
            facts = {"call": call.id, "attempt": piece.work.attempt, "state": call.state}
            if piece.work.phase == "probe" or not _is_under_way(call, piece.work):
                return facts
            if time.monotonic() > until:
                raise Busy("the report is being recorded", owner="this server", retry_after=1.0)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.25)

    def renew(self, piece: Piece) -> float:
        """Renew the work lease; raise ``LeaseLost`` if it is over."""
        now = time.monotonic()
        if piece.name not in self._pieces or piece.done.done() or now > piece.until:
            raise LeaseLost("the work lease is over: stop, if you can", hint="report what happened all the same")
        piece.until = now + piece.lease_s * MARGIN
        return piece.lease_s


class NotTaken(NoEffect):
    """No worker took a piece of work in time. A compensation is tried again until one is there."""

    is_try = False


class WorkerNotFound(NotFound):
    """There is no such worker: it was silent too long, or the server was started again."""

    def __init__(self, id: str) -> None:
        super().__init__(f"worker {id} is not known here", hint="register again: POST /v1/workers")


def _is_under_way(call: Call, work: Work) -> bool:
    if work.phase == "compensate":
        undone = call.compensation
        return call.state == "compensating" and undone is not None and undone.attempts == work.attempt
    return call.state == "started" and call.attempt == work.attempt


def _probe_answer(said: Any) -> dict[str, Any]:
    if not isinstance(said, Mapping) or said.get("answer") not in ("happened", "absent", "unknown"):
        raise UsageError(
            "the result of a probe is an object with an answer",
            hint='{"answer": "happened", "result": ...}, {"answer": "absent"} or {"answer": "unknown", "why": "..."}',
        )
    return dict(said)


# ---- Routes


async def register(x: Exchange) -> Reply:
    """Add a worker and declare its tools."""
    said: Register = x.body
    made = await x.service.desk.register(x.tenant, x.who.name, said.name, said.tools)
    return Reply(_shown(x, made), 201)


async def take(x: Exchange) -> Reply:
    """Give a worker one piece of work, or none."""
    said: TakeWork = x.body
    worker = x.service.desk.worker(x.tenant, x.path["id"])
    piece = await x.service.desk.take(
        worker, min(said.wait, x.service.limits.take_s_max), is_gone=x.request.is_disconnected
    )
    if piece is None:
        return Reply({"work": None})
    token = sign(piece.work, x.service.secrets)
    return Reply({"work": {**piece.sent, "token": token, "lease": piece.lease_s}})


async def workers(x: Exchange) -> Reply:
    """List the registered workers."""
    found = x.service.desk.workers(x.service.own_tenant(x))
    return Reply({"items": [_shown(x, one) for one in found], "next": None})


async def leave(x: Exchange) -> Reply:
    """Remove a worker that ends; what it has taken stays its own until its lease ends."""
    worker = x.service.desk.worker(x.tenant, x.path["id"])
    x.service.desk.leave(worker)
    await x.service.desk.wake()  # it may still ask for work, and is told at once that there is none
    return Reply(_shown(x, worker))


def _shown(x: Exchange, one: Worker) -> dict[str, Any]:
    return {
        "id": one.id, "name": one.name, "tools": sorted(one.tools), "by": one.by,
        "lease": x.service.limits.worker_lease_s,
    }  # fmt: skip
