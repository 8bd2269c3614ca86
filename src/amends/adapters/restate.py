"""Run agents on Restate: an invocation is a run, and a step that Restate repeats is never performed twice.

::

    from amends.adapters.restate import RestateRuns

    trip = restate.Workflow("trip")
    runs = RestateRuns(rt, trip)

    @trip.main()
    async def book_trip(ctx: restate.WorkflowContext, order: dict) -> str:
        async with runs.open(ctx, input=order) as run:               # the id of the run is the key of the workflow
            room = await run.call(book_room, {"city": order["city"]})
            await run.call(pay, {"cents": order["cents"]})           # may wait for a person, over every restart
        return room

    app = runs.app([trip])                                           # hypercorn module:app

Restate executes a step (``ctx.run``) again if it has not recorded its end, also with ``max_attempts=1``. The ledger has it:
the repeated step finds the call that it has admitted, and settles its doubt by a probe, an idempotent repeat or a person.
See ``docs/how-to/restate.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeVar

import restate
from pydantic import TypeAdapter, ValidationError
from restate.exceptions import TerminalError
from restate.serde import Serde

from amends import AsyncRuntime, Runtime, Tool
from amends.adapters.durable_runs import (
    Decided,
    Decision,
    DurableRuns,
    Ending,
    EngineCall,
    EngineRun,
    Outcome,
    PendingApproval,
)
from amends.errors import UsageError, described, some_in_words
from amends.visible import visible, visible_log

__all__ = [
    "APPROVALS_HANDLER",
    "DECISION_HANDLER",
    "LOOK_HANDLER",
    "CallFailed",
    "CallRefused",
    "Decided",
    "Decision",
    "DurableRun",
    "Ending",
    "Outcome",
    "PendingApproval",
    "RestateRuns",
    "RunNotCommitted",
]

DECISION_HANDLER: Final = "amends_decide"
"""The handler by which a person approves or rejects a call: its argument is a ``Decision``."""
LOOK_HANDLER: Final = "amends_look"
"""The handler by which a process says that somebody has decided something in the ledger."""
APPROVALS_HANDLER: Final = "amends_approvals"
"""The handler that lists what waits for a person."""

KEY_TAG: Final = "restate-key:"
"""Before the key of a virtual object, in a tag of its runs: they have ids of their own."""

LOOK_S: Final = 10.0
"""A wait that nothing has ended is looked at after so many seconds, then after twice as many, and so on: the message that
somebody has decided may be lost, or nobody may send any."""
LOOK_S_MAX: Final = 3600.0
QUICK_ROUNDS: Final = 5
"""What is over soon (a lock, a settle delay, a probe) is asked so many times before anybody is told of the wait."""
ROUNDS_MAX: Final = 16
AFTER_EXPIRY_S: Final = 1.0
NOTIFY_S: Final = 10.0
"""How long a message to a waiting run may take to be accepted."""
FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 10.0
RETRY_FACTOR: Final = 2.0
HOLD_S: Final = 0.02
"""For how long the server is not told that a step has begun, if the step may end until then: it then hears of both at once."""
CANCELLED: Final = 409
"""The status of the error by which Restate cancels an invocation."""

log = visible_log("amends")
A = TypeVar("A", Outcome, Ending)
T = TypeVar("T")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class CallFailed(TerminalError):
    """The tool failed and had no effect. If the handler catches it, the run goes on; else it is rolled back."""

    def __init__(self, outcome: Outcome) -> None:
        """For ``DurableRun.call``. ``outcome`` has the tool's error."""
        super().__init__(outcome.error.message if outcome.error is not None else outcome.text, 500)
        self.outcome = outcome


class CallRefused(TerminalError):
    """amends or a person refused the call, or the run has ended; nothing was started."""

    def __init__(self, outcome: Outcome) -> None:
        """For ``DurableRun.call``. ``outcome`` says why."""
        super().__init__(outcome.error.message if outcome.error is not None else outcome.text, 403)
        self.outcome = outcome


class RunNotCommitted(TerminalError):
    """The run was rolled back or abandoned instead; ``ending`` says why, and what is left."""

    def __init__(self, run_id: str, ending: Ending) -> None:
        """For ``DurableRun.commit``."""
        left = f"; left standing: {some_in_words(ending.residue)}" if ending.residue else ""
        why = f": {ending.text}" if ending.text else ""
        super().__init__(f"run {run_id} is {ending.state}{left}{why}", 500)
        self.ending = ending


class RestateRuns:
    """The runs of one workflow or virtual object, in one process that serves it.

    It gives the service three handlers more: to decide (``amends_decide``), to list what waits for a person
    (``amends_approvals``), and to look whether a wait is over (``amends_look``).
    """

    def __init__(
        self,
        rt: Runtime | AsyncRuntime,
        service: restate.Workflow | restate.VirtualObject,
        *,
        ingress: str | None = None,
        decisions: Literal["private", "ingress"] = "private",
    ) -> None:
        """Keep runs of ``rt`` for the handlers of ``service``.

        ``ingress``: the server's address for requests, such as ``http://127.0.0.1:8080``. With it, a decision that is made
        in the console, on the command line or over HTTP ends the wait within a second or two; without it, at the next look.

        ``decisions``: who may call ``amends_decide`` and ``amends_approvals``: other services of the same Restate server
        only, or whoever reaches its ingress. amends believes them who decides, and with which roles.
        """
        if not isinstance(service, restate.Workflow | restate.VirtualObject):
            raise UsageError(
                f"RestateRuns is for a Workflow or a VirtualObject, not for {type(service).__name__}",
                hint="a plain Service has no key by which a person could reach a waiting run",
            )
        if decisions not in ("private", "ingress"):
            raise UsageError(f"decisions of RestateRuns is {decisions!r}; it is 'private' or 'ingress'")
        self._service, self._ingress = service, ingress.rstrip("/") if ingress else None
        self._runs = DurableRuns(rt, engine=f"restate:{service.name}")
        self._opened: contextlib.AsyncExitStack | None = None
        self._opening = asyncio.Lock()
        _add_handlers(service, self._present, private=decisions == "private")

    @asynccontextmanager
    async def open(
        self,
        ctx: restate.ObjectContext,
        *,
        id: str | None = None,
        input: Any = None,
        tags: Iterable[str] = (),
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
        deadline: float | None = None,
        requires: Iterable[str] | None = None,
        on_open_failure: Literal["rollback", "commit"] | None = None,
    ) -> AsyncIterator[DurableRun]:
        """Open a run for this invocation. Leaving the block commits it; a ``TerminalError`` rolls it back.

        In a workflow, the id of the run is the key of the workflow; in a virtual object, it is that of the invocation,
        unless ``id`` is given. The other parameters are those of ``rt.run``.

        Restate retries every other exception, as in any handler: nothing is rolled back, and the handler goes on from its
        journal. A cancellation rolls back, and does not interrupt the rollback.
        """
        await self._present()
        is_workflow = isinstance(self._service, restate.Workflow)
        said = list(tags) if is_workflow else [*tags, f"{KEY_TAG}{ctx.key()}"]
        place = EngineRun(
            id or (ctx.key() if is_workflow else ctx.request().id), input, said, tenant, agent, principal, deadline,
            None if requires is None else list(requires), on_open_failure,
        )  # fmt: skip
        run = DurableRun(ctx, self._runs, place, has_promises=is_workflow)
        try:
            yield run
        except TerminalError as error:
            if not run.is_over:
                await run.rollback(error.message)
            raise
        if not run.is_over:
            await run.commit()

    def app(
        self,
        services: Iterable[restate.Service | restate.VirtualObject | restate.Workflow],
        *,
        also: Iterable[RestateRuns] = (),
        **options: Any,
    ) -> Application:
        """Return ``restate.app(services, **options)`` that starts and ends these runs with the process that serves it.

        ``also``: the runs of other services that are served with it.
        """
        inner: Any = restate.app(services, **options)
        served = [self, *also]

        async def application(scope: Message, receive: Receive, send: Send) -> None:
            if scope["type"] != "lifespan":
                output = _Output(send)
                _OUTPUT.set(output)
                await inner(scope, receive, output.send)
                return
            await receive()
            for runs in served:
                await runs._present()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            for runs in served:
                await runs.close()
            await send({"type": "lifespan.shutdown.complete"})

        return application

    async def close(self) -> None:
        """Let go of the runs of this process, so that another one can go on with them at once."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()

    async def _present(self) -> DurableRuns:
        """Return the runs of this process, started on the event loop that serves."""
        async with self._opening:
            if self._opened is None:
                opened = contextlib.AsyncExitStack()
                await opened.enter_async_context(self._runs)
                if self._ingress is not None:
                    opened.push_async_callback(_cancelled, asyncio.create_task(self._watch(self._ingress)))
                self._opened = opened
        return self._runs

    async def _watch(self, ingress: str) -> None:
        """Tell runs that a person has decided something about them in the ledger."""
        service = urllib.parse.quote(self._service.name, safe="")
        async for run in self._runs.decisions():
            keys = (tag.removeprefix(KEY_TAG) for tag in run.tags if tag.startswith(KEY_TAG))
            key = urllib.parse.quote(next(keys, run.id), safe="")
            try:
                await asyncio.to_thread(_post, f"{ingress}/{service}/{key}/{LOOK_HANDLER}/send")
            except Exception as error:  # also an answer that is no HTTP: otherwise nobody would be told any more
                log.warning(
                    "run %s could not be told of a decision; it looks by itself later: %s",
                    visible(run.id),
                    described(error),
                )


class DurableRun:
    """A run, in the handler that drives it. ``RestateRuns.open`` gives it."""

    def __init__(self, ctx: restate.ObjectContext, runs: DurableRuns, place: EngineRun, *, has_promises: bool) -> None:
        """For ``RestateRuns.open``: one for each attempt of an invocation."""
        self._ctx, self._runs, self._place, self._has_promises = ctx, runs, place, has_promises
        self._requests = self._numbers = 0
        self._waits: dict[str, _Wait] = {}
        self._kept: set[str] = set()
        self._ended: Ending | None = None
        self.output: Any = None
        """What the run records as its output when it is committed."""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._place.id

    @property
    def is_over(self) -> bool:
        """Whether it was committed or rolled back."""
        return self._ended is not None

    # ---- Calls

    async def call(
        self,
        tool: str | Tool[..., Any],
        args: Mapping[str, Any] | None = None,
        /,
        *,
        again: str | None = None,
        result_type: type[T] | None = None,
    ) -> Any:
        """Do one call and return its result as JSON data, or as ``result_type``.

        It waits, durably, while the call waits for a person or its doubt is not settled. Raises ``CallFailed`` or
        ``CallRefused``; a staged call returns None.
        """
        outcome = await self.answer(tool, args, again=again)
        if outcome.status == "failed":
            raise CallFailed(outcome)
        if outcome.status not in ("done", "staged"):
            raise CallRefused(outcome)
        value = outcome.value
        return value if result_type is None or value is None else TypeAdapter(result_type).validate_python(value)

    async def answer(
        self,
        tool: str | Tool[..., Any],
        args: Mapping[str, Any] | None = None,
        /,
        *,
        request: str | None = None,
        again: str | None = None,
    ) -> Outcome:
        """Do one call and return its outcome, with a text for a model. A call that failed raises nothing.

        ``request``: names this request, if the code has a name for it, such as a model's id of its tool call: unique in
        the run. ``again``: why it is a deliberate repeat of an earlier call.
        """
        name = tool if isinstance(tool, str) else tool.name
        if self._ended is not None:
            raise TerminalError(f"run {self.id} is {self._ended.state}: it takes no new call", 409)
        self._requests += 1
        asked = EngineCall(name, dict(args or {}), request or f"{self._ctx.request().id}/{self._requests}", again)
        return await self._final(name, lambda: self._runs.perform(self._place, asked), OUTCOME)

    # ---- The end

    async def commit(self) -> Ending:
        """Commit the run now: its effects stay. Wait, durably, for what is staged, and for people.

        Raises ``RunNotCommitted`` if the run was rolled back instead.
        """
        self._ended = await self._to_its_end("commit", lambda: self._runs.commit(self._place, self.output))
        if self._ended.state != "committed":
            raise RunNotCommitted(self.id, self._ended)
        return self._ended

    async def rollback(self, why: str) -> Ending:
        """Compensate what the run has done, from the rows of the ledger. A cancellation does not interrupt it."""
        self._ended = await self._to_its_end("roll back", lambda: self._runs.roll_back(self._place, why))
        return self._ended

    async def _to_its_end(self, name: str, ask: Callable[[], Coroutine[Any, Any, Ending]]) -> Ending:
        """Ask for the end until it is final, whatever is cancelled meanwhile; then raise the cancellation."""
        cancelled: TerminalError | None = None
        while True:
            try:
                ending = await self._final(name, ask, ENDING)
            except TerminalError as error:
                if error.status_code != CANCELLED:
                    raise
                cancelled = error  # delivered: it does not cancel the next step as well
                continue
            if cancelled is not None:
                self._ended = ending
                raise cancelled
            return ending

    # ---- Waiting

    async def _final(self, name: str, ask: Callable[[], Coroutine[Any, Any, A]], kind: TypeAdapter[A]) -> A:
        """Ask until the answer is final, and wait in between."""
        rounds = 0
        while not (answer := await _recorded(self._ctx, name, lambda: _timed(ask), kind)).is_final:
            rounds += 1
            if answer.approval is None and answer.again_s is not None and rounds <= QUICK_ROUNDS:
                await self._ctx.sleep(timedelta(seconds=answer.again_s))
                continue
            place, decided = self._waiting(answer)
            # Other handlers see the state that the server has recorded: this one, at the latest when a later step has ended.
            await _recorded(self._ctx, "wait", _nothing, NOTHING)
            # It may have been decided before anybody could see that we wait.
            answer = await _recorded(self._ctx, name, lambda: _timed(ask), kind)
            if not answer.is_final:
                later = self._ctx.sleep(timedelta(seconds=_pause_s(answer, rounds)))
                ended_by, _ = await restate.select(decided=decided, later=later)
                if ended_by == "decided":
                    self._kept.add(place)
            del self._waits[place]
            self._note_waits()
            if answer.is_final:
                break
        return answer

    def _waiting(self, answer: Outcome | Ending) -> tuple[str, restate.RestateDurableFuture[Any]]:
        """Note that this run waits; return the name of the wait, and what is completed once somebody has decided.

        In a workflow it is a promise. Its name is the digest of what a person is asked to approve, or a number if the wait
        is for something else. A promise is kept once: a second wait for the same digest gets a number too.
        """
        self._numbers += 1
        place = "" if answer.approval is None else answer.approval.digest
        if not place or place in self._kept or place in self._waits:
            place = f"{place}#{self._numbers}"
        ctx: Any = self._ctx  # a workflow's, if it has promises
        awakeable, decided = "", None
        if self._has_promises:
            decided = ctx.promise(place, type_hint=bool).value()
        else:
            awakeable, decided = ctx.awakeable(type_hint=bool)
        self._waits[place] = _Wait(awakeable, answer.approval)
        self._note_waits()
        return place, decided

    def _note_waits(self) -> None:
        self._ctx.set(f"{STATE}{self.id}", _Waits(self._place.tenant, self._waits), _Json(WAITS))


# ---- What waits, as state that other handlers see


STATE: Final = "amends-waits:"
"""The name of the state with the waits of a run, before its id."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Wait:
    awakeable: str
    """What to resolve; empty: a promise, which has the name of the wait."""
    approval: PendingApproval | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Waits:
    tenant: str | None = None
    waits: dict[str, _Wait] = dataclasses.field(default_factory=dict)


def _add_handlers(
    service: restate.Workflow | restate.VirtualObject,
    runs: Callable[[], Coroutine[Any, Any, DurableRuns]],
    *,
    private: bool,
) -> None:
    """Let people and processes reach the waits of the runs of this service."""

    async def amends_decide(ctx: Any, decision: dict[str, Any]) -> dict[str, Any]:
        try:
            said = DECISION.validate_python(decision)
        except ValidationError as error:
            raise TerminalError(f"this is no decision: {error}", 400) from None
        tenant = _tenant_of(await _waits_in(ctx), said)
        present = await runs()
        decided = await _recorded(ctx, said.by, lambda: present.decide(said, tenant=tenant), DECIDED)
        if decided.error is not None:
            raise TerminalError(f"{decided.error.type}: {decided.error.message}", 409)
        await _end_waits(ctx)
        return dict(DECIDED.dump_python(decided, mode="json"))

    async def amends_look(ctx: Any) -> None:
        await _end_waits(ctx)

    async def amends_approvals(ctx: Any) -> list[dict[str, Any]]:
        asked = [wait.approval for run in await _waits_in(ctx) for wait in run.waits.values()]
        return [dataclasses.asdict(approval) for approval in asked if approval is not None]

    for name, handler, is_private in (
        (DECISION_HANDLER, amends_decide, private),
        (APPROVALS_HANDLER, amends_approvals, private),
        (LOOK_HANDLER, amends_look, False),
    ):
        if name in service.handlers:
            raise UsageError(f"service {service.name} already has a handler {name}; give it one RestateRuns only")
        if isinstance(service, restate.Workflow):
            service.handler(name, ingress_private=is_private)(handler)
        else:
            service.handler(name, kind="shared", ingress_private=is_private)(handler)


def _tenant_of(runs: list[_Waits], decision: Decision) -> str | None:
    """Return the tenant of the run in which exactly this waits; raise if nothing such waits here."""
    for run in runs:
        for wait in run.waits.values():
            if wait.approval is None or wait.approval.id != decision.approval:
                continue
            if wait.approval.digest != decision.digest:
                raise TerminalError(
                    f"ApprovalVoid: approval {decision.approval} is about another request: its digest is not the given one",
                    409,
                )
            return run.tenant
    raise TerminalError(f"NotFound: nothing waits here for approval {decision.approval!r}", 404)


async def _waits_in(ctx: Any) -> list[_Waits]:
    names = [name for name in sorted(await ctx.state_keys()) if name.startswith(STATE)]
    return [await ctx.get(name, _Json(WAITS)) or _Waits() for name in names]


async def _end_waits(ctx: Any) -> None:
    """End each wait of the runs of this key: they look whether they still have to wait."""
    for run in await _waits_in(ctx):
        for place, wait in sorted(run.waits.items()):
            if wait.awakeable:
                ctx.resolve_awakeable(wait.awakeable, True)
            elif await ctx.promise(place, type_hint=bool).peek() is None:
                try:
                    await ctx.promise(place, type_hint=bool).resolve(True)
                except TerminalError as error:
                    if error.status_code != CANCELLED:  # also the status of a promise that somebody else has kept
                        raise


# ---- Steps


class _Json(Serde[T]):
    """How a value is written into the journal and the state."""

    def __init__(self, kind: TypeAdapter[T]) -> None:
        self._kind = kind

    def serialize(self, obj: T | None) -> bytes:
        return self._kind.dump_json(obj)  # type: ignore[arg-type]

    def deserialize(self, buf: bytes) -> T | None:
        return self._kind.validate_json(buf)


OUTCOME: Final = TypeAdapter(Outcome)
ENDING: Final = TypeAdapter(Ending)
DECIDED: Final = TypeAdapter(Decided)
DECISION: Final = TypeAdapter(Decision)
WAITS: Final = TypeAdapter(_Waits)
NOTHING: Final[TypeAdapter[None]] = TypeAdapter(None)


async def _recorded(
    ctx: restate.Context, name: str, ask: Callable[[], Coroutine[Any, Any, T]], kind: TypeAdapter[T]
) -> T:
    """Ask once, as far as Restate knows. It asks again if it has not recorded the answer.

    A step fails only if the ledger does not answer. Then it is repeated for ever, whatever the server's own policy says.
    """

    async def asked() -> T:
        output = _OUTPUT.get()
        if output is None:
            return await ask()
        try:
            return await ask()
        finally:
            output.go_on()

    options: restate.RunOptions[T] = restate.RunOptions(
        serde=_Json(kind), initial_retry_interval=timedelta(seconds=FIRST_RETRY_S), retry_interval_factor=RETRY_FACTOR,
        max_retry_interval=timedelta(seconds=LAST_RETRY_S),
    )  # fmt: skip
    step = ctx.run_typed(name, asked, options)
    output = _OUTPUT.get()
    if output is not None:
        output.hold()
    return await step


class _Output:
    """What is said to the server about one invocation, in order.

    Restate flushes its journal when it hears that a step has begun, and again when it hears of its end. Both in one message
    are one flush. Nothing depends on the first one: a step whose end is not recorded is executed again in any case.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._until = 0.0
        """Until when messages are held, by the clock of the event loop."""
        self._kept, self._is_over = bytearray(), False
        self._turn = asyncio.Lock()
        self._late: asyncio.Task[None] | None = None

    def hold(self) -> None:
        """Hold messages for a moment: a step begins, and may end soon."""
        self._until = asyncio.get_running_loop().time() + HOLD_S

    def go_on(self) -> None:
        """Hold no more: the step has ended. The message that says so takes along what is held."""
        self._until = 0.0

    async def send(self, message: Message) -> None:
        """Say something, or keep it for a moment."""
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        self._kept += message.get("body", b"")
        self._is_over = self._is_over or not message.get("more_body", False)
        left_s = self._until - asyncio.get_running_loop().time()
        if left_s <= 0 or self._is_over:
            await self._flush()
        elif self._late is None:
            self._late = asyncio.create_task(self._flush_after(left_s))

    async def _flush_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._late = None
        await self._flush()

    async def _flush(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        async with self._turn:
            body, self._kept = bytes(self._kept), bytearray()
            if body or self._is_over:
                await self._send({"type": "http.response.body", "body": body, "more_body": not self._is_over})


_OUTPUT: ContextVar[_Output | None] = ContextVar("amends_restate_output", default=None)
"""Where the invocation that is served here speaks to the server; None: somebody else serves it."""


async def _timed(ask: Callable[[], Coroutine[Any, Any, A]]) -> A:
    """Add to an answer when its approval expires. In a step, because the code of a handler may not read a clock."""
    answer = await ask()
    if answer.approval is None or not answer.approval.expires_at:
        return answer
    left = datetime.fromisoformat(answer.approval.expires_at) - datetime.now(UTC)
    return dataclasses.replace(answer, again_s=max(0.0, left.total_seconds()) + AFTER_EXPIRY_S)


async def _nothing() -> None:
    """Do nothing."""


def _pause_s(answer: Outcome | Ending, rounds: int) -> float:
    """Return for how long nobody looks at a wait, unless somebody decides."""
    seldom: float = min(LOOK_S * 2 ** min(rounds - 1, ROUNDS_MAX), LOOK_S_MAX)
    return seldom if answer.again_s is None or answer.approval is None else min(seldom, answer.again_s)


def _post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=NOTIFY_S):
        pass


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
