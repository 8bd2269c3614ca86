"""``run_agent``: a model, its tools and one run. The model proposes; the run records, refuses, waits and takes back."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack, get_args

from amends import (
    Answer,
    AsyncRun,
    AsyncRuntime,
    Budget,
    Call,
    Held,
    Report,
    RolledBack,
    Run,
    Runtime,
    Secret,
    Tool,
    ToolCall,
    UsageError,
    current_run,
)
from amends.errors import ApprovalVoid, NoRun, RunEnded, UnknownTool
from amends.llm import requests
from amends.llm.prices import Prices
from amends.llm.recording import kind_of, record
from amends.llm.requests import Asked, asked_for
from amends.llm.scripted import ScriptedModel, response_of
from amends.llm.streams import assembler, events_of
from amends.llm.wire import Api, Message, Prompt, Said, Style, dialect, heard_in, written

# ---- The conversation of one run: what is asked next, and where it stood when the run was left or lost


ROLLBACK: Final = "request_rollback"
"""The tool by which a model asks for everything to be taken back."""
MASK: Final = "•••"


class Conversation:
    """What was said so far, in the words of one API. It asks nobody and runs nothing."""

    def __init__(
        self,
        api: Api,
        *,
        model: str,
        system: str,
        prompt: Prompt,
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> None:
        self.api: Api = api
        self._speaks = dialect(api)
        self._model, self._system, self._options = model, system, dict(options)
        self._tools = list(tools)
        self._offered = frozenset(_name(one) for one in tools)
        self._opening = self._speaks.opening(system, prompt)
        self.input: Any = prompt if isinstance(prompt, str) else written(list(prompt)).data
        self._begin()

    def _begin(self) -> None:
        self.messages: list[Message] = list(self._opening)
        self.turns = 0
        self.pending: Said | None = None
        """What the model said last, while its calls have no outcome."""
        self.knows_all = True
        """Whether everything that the run has done is in the conversation."""
        self.waiting: tuple[Held | ApprovalVoid, ...] = ()
        """What waits for a person."""

    # ---- asking ---------------------------------------------------------------------------

    def request(self) -> dict[str, Any]:
        """The body of the next request."""
        body = self._speaks.request(self._model, self.messages, system=self._system, tools=self._tools)
        return {**body, **self._options}

    def hear(self, response: Mapping[str, Any]) -> None:
        """Take in what the model said."""
        self.turns += 1
        self.pending = self._speaks.said(response)
        self.messages += self.pending.messages

    def delta(self, event: Mapping[str, Any]) -> str:
        """The text that an event of a stream adds."""
        return self._speaks.delta(event)

    def asked(self) -> tuple[ToolCall, ...]:
        """The calls to be done now: of tools that the model was told about."""
        assert self.pending is not None, "the model has said something"
        return tuple(call for call in self.pending.calls if call.tool in self._offered and call.tool != ROLLBACK)

    def tell(self, answers: Iterable[Answer], *, no_way_back: str = "") -> None:
        """Take in what became of the calls; ``no_way_back``: what is said to a model that asked for the way back."""
        assert self.pending is not None, "the model has said something"
        outcomes, done = [], iter(answers)
        for call in self.pending.calls:
            if call.tool not in self._offered:
                known = sorted(self._offered - {ROLLBACK})
                outcomes.append((call, _refusal(UnknownTool(call.tool, known=known))))
            elif call.tool == ROLLBACK:
                outcomes.append((call, Answer("refused", no_way_back)))
            else:
                outcomes.append((call, next(done)))
        self.messages += self._speaks.told(outcomes)
        self.pending = None

    @property
    def rollback_asked(self) -> ToolCall | None:
        """The model's request that everything be taken back, if it has just made one."""
        calls = () if self.pending is None or ROLLBACK not in self._offered else self.pending.calls
        return next((call for call in calls if call.tool == ROLLBACK), None)

    # ---- going on -------------------------------------------------------------------------

    def recall(self, report: Report | None) -> None:
        """Stand where the run stood: after the last answer of the model that the ledger has."""
        self._begin()
        if report is None or report.state == "rolled_back":  # its next generation begins anew
            return
        asked = [call for call in report.calls if _is_turn(call)]
        last = asked[-1] if asked else None
        if last is None:
            self.knows_all = not any(call.kind != "read" for call in report.calls)
            return
        if not _is_whole(last):  # too large to have been kept: from the beginning, and the keys see to the rest
            self.turns, self.knows_all = len(asked), False
            return
        if last.args["api"] != self.api:
            raise UsageError(
                f"run {report.run_id} speaks with its model by {last.args['api']}, not by {self.api}",
                hint=f"go on with api={last.args['api']!r} and a client of the same provider",
            )
        before = list(self._speaks.conversation(last.args["request"]))
        # The system's words may be others by now, or in an API that sends them as a message, none.
        opened = len(self._opening) + _systems(before) - _systems(self._opening)
        self.messages += [_readable(one) for one in before[opened:]]
        self.turns = len(asked) - 1
        response = last.result["response"]
        if _has_secret(response):  # its calls cannot be read any more: the model is asked for this turn again
            self.knows_all = False
            return
        if self._speaks.said(response).cut:  # none of it was done, and the model is asked again
            self.turns = len(asked)
            return
        self.hear(response)


def _refusal(error: UnknownTool) -> Answer:
    return Answer("refused", error.for_model(), error=error)


def _systems(messages: Sequence[Any]) -> int:
    """How many messages at the beginning are of the system."""
    return sum(1 for _ in takewhile(lambda one: isinstance(one, Mapping) and one.get("role") == "system", messages))


def _is_turn(call: Call) -> bool:
    """A request of the loop itself, answered to its end; tools that ask models on their own have a parent."""
    if not call.tool.startswith("model:") or call.parent or call.state != "succeeded":
        return False
    return not isinstance(call.result, Mapping) or bool(call.result.get("complete"))


def _is_whole(call: Call) -> bool:
    """Whether the ledger holds what was asked and what was answered."""
    request, result = call.args.get("request"), call.result
    response = result.get("response") if isinstance(result, Mapping) else None
    return all(isinstance(one, Mapping) and "left out" not in one for one in (request, response))


def _has_secret(value: object) -> bool:
    match value:
        case Secret():
            return True
        case str():
            return MASK in value
        case Mapping():
            return any(_has_secret(one) for one in value.values())
        case list() | tuple():
            return any(_has_secret(one) for one in value)
    return False


def _readable(value: Any) -> Any:
    """What was hidden from the ledger is hidden from the model too, once only the ledger knows what was said."""
    match value:
        case Secret():
            return MASK
        case Mapping():
            return {name: _readable(one) for name, one in value.items()}
        case list() | tuple():
            return [_readable(one) for one in value]
    return value


# ---- Whom the loop asks: a recorded client of an SDK, or a script; each request is a call of the current


OnText: TypeAlias = Callable[[str], object]
"""Gets what the model says, piece by piece."""
APIS: Final[dict[str, tuple[Api, ...]]] = {
    "openai": ("chat.completions", "responses"),
    "anthropic": ("messages",),
    "scripted": ("chat.completions", "responses", "messages"),
}
"""What each provider speaks, the default first."""
FREE: Final = Prices({"*": (0, 0)}, provider="scripted", url="")


@dataclass(frozen=True, slots=True)
class Client:
    """Whoever answers requests, and in which wire format."""

    api: Api
    given: Any
    """A recorded client, or a ``ScriptedModel``."""

    def ask(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        """What the model says; written down before it is sent, and after."""
        if isinstance(self.given, ScriptedModel):
            return self._scripted(request, on_text)
        if on_text is None:
            return _plain(self._create(**request))
        made, speaks = assembler(self.api), dialect(self.api)
        with self._create(**request, stream=True) as stream:
            for event in stream:
                made.see(plain := _plain(event))
                if piece := speaks.delta(plain):
                    on_text(piece)
        return made.response or {}

    async def ask_async(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        """The same, awaited; ``on_text`` may be either."""
        if isinstance(self.given, ScriptedModel):
            return await self._scripted_async(request, on_text)
        if on_text is None:
            return _plain(await self._create(**request))
        made, speaks = assembler(self.api), dialect(self.api)
        async with await self._create(**request, stream=True) as stream:
            async for event in stream:
                made.see(plain := _plain(event))
                if piece := speaks.delta(plain):
                    await _called(on_text, piece)
        return made.response or {}

    @property
    def _create(self) -> Callable[..., Any]:
        found: Any = self.given
        for name in self.api.split("."):
            found = getattr(found, name)
        create: Callable[..., Any] = found.create
        return create

    # ---- a script -------------------------------------------------------------------------

    def _scripted(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        entry = requests.begin(current_run(), self._asked(request))
        if entry.replayed:
            response = _recorded(entry.attempt.result)
        else:
            try:
                response = self._reply(request)
            except BaseException as error:
                requests.fail(entry, error)
                raise
            requests.succeed(entry, response)
        if on_text is not None:
            for piece in self._pieces(response):
                on_text(piece)
        return response

    async def _scripted_async(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        entry = await requests.begin_async(current_run(), self._asked(request))
        if entry.replayed:
            response = _recorded(entry.attempt.result)
        else:
            try:
                response = self._reply(request)
            except BaseException as error:
                await requests.fail_async(entry, error)
                raise
            await requests.succeed_async(entry, response)
        if on_text is not None:
            for piece in self._pieces(response):
                await _called(on_text, piece)
        return response

    def _asked(self, request: Mapping[str, Any]) -> Asked:
        return asked_for("model:scripted", self.api, request, FREE)

    def _reply(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        number, _ = heard_in(self.api, request)
        return response_of(self.api, self.given.reply(self.api, request), request, number=number + 1)

    def _pieces(self, response: Mapping[str, Any]) -> list[str]:
        found = [dialect(self.api).delta(event) for _, event in events_of(self.api, response)]
        return [piece for piece in found if piece]


def client_for(given: object, api: Api | None, *, is_async: bool) -> Client:
    """The client, recorded if it is not yet; raises where it does not speak ``api`` or has the wrong colour."""
    if isinstance(given, ScriptedModel):
        provider = "scripted"
    else:
        kind = kind_of(given)
        provider = kind.provider
        if kind.is_async != is_async:
            wanted = "run_agent_async" if kind.is_async else "run_agent"
            raise UsageError(f"{type(given).__name__} is for {wanted}", hint="take the client of the other colour")
        given = given if kind.is_recorded else record(given)
    if api is not None and api not in APIS[provider]:
        raise UsageError(f"{provider} does not speak {api!r}; it speaks {', '.join(APIS[provider])}")
    return Client(api or APIS[provider][0], given)


def _plain(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.to_dict(mode="json", warnings=False)
    return found


def _recorded(result: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = result["response"]
    return found


async def _called(on_text: OnText, piece: str) -> None:
    done = on_text(piece)
    if inspect.isawaitable(done):
        awaited: Awaitable[object] = done
        await awaited


# ---- ``run_agent``: a model, its tools and one run. The model proposes; the run records, refuses, waits a


Outcome: TypeAlias = Literal["done", "waiting", "rolled_back", "max_turns", "stopped"]
TURNS_MAX: Final = 20
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
"""What the names of tools may not have in the APIs of models."""
NO_WAY_BACK: Final = (
    "Not taken back: this task has made its irreversible call, and only goes forward. "
    "Finish what is left, or stop and tell the user."
)


class RunOptions(TypedDict, total=False):
    """What ``rt.run`` takes besides the id and the input."""

    tags: Sequence[str]
    budgets: Iterable[Budget]
    recover: Literal["rollback", "resume", "wait"]
    wait: float | None
    wait_approval: float | None
    deadline: float | None
    if_rolled_back: Literal["again", "raise"]
    tenant: str | None
    agent: str | None
    principal: str | None


@dataclass(frozen=True, slots=True)
class Finished:
    """How the agent's run ended, or where it stands."""

    outcome: Outcome
    """``done``: committed. ``waiting``: for a person; ask again with the same id. The others: taken back, or after the
    pivot blocked, because the model asked for it, ran out of turns, or was stopped.
    """
    text: str
    """What the model said last."""
    why: str
    """Why it is not ``done``, in words."""
    turns: int
    """How often the model was asked, before a resume too."""
    report: Report
    messages: tuple[Mapping[str, Any], ...]
    """The conversation in the words of the API."""
    waiting: tuple[Held | ApprovalVoid, ...] = ()
    """What waits for a person: each has ``.call`` and ``.approval``."""

    @property
    def run_id(self) -> str:
        """The run's id: with it the same agent goes on."""
        return self.report.run_id

    @property
    def state(self) -> str:
        """The run's state in the ledger."""
        return self.report.state


class _Unfinished(Exception):
    """Leaves the block as a failure: before the pivot everything is taken back."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


def run_agent(
    rt: Runtime,
    prompt: Prompt,
    /,
    *,
    client: object,
    model: str,
    id: str | None = None,
    system: str = "",
    tools: Iterable[str | Tool[..., Any]] | None = None,
    max_turns: int = TURNS_MAX,
    api: Api | None = None,
    options: Mapping[str, Any] | None = None,
    on_text: OnText | None = None,
    repeats: bool | None = None,
    may_roll_back: bool = False,
    **run: Unpack[RunOptions],
) -> Finished:
    """A model has worked on the prompt with the tools of ``rt``, in one run, until it was done or had to wait.

    ``client``: ``OpenAI``, ``Anthropic`` or a ``ScriptedModel``. ``id``: a run that is known goes on where it was, in
    another process too. ``tools``: which ones the model is told about; None: all. ``api``: ``"responses"`` instead of
    chat completions. ``options``: more of the request, in the API's words. ``on_text``: gets what the model says piece
    by piece, and the answers are streamed then. ``repeats``: the model may repeat a call on purpose
    (``again_because``). ``may_roll_back``: the model gets a tool to ask that everything be taken back.
    """
    talk, asks = _begun(rt, prompt, client, is_async=False, **_said(locals()))
    seen, end = rt.scoped(tenant=run.get("tenant")) if run.get("tenant") else rt, _End()
    replayed = _run_here()
    if id is not None and replayed is None:
        with suppress(UsageError):  # nobody has opened it yet
            end.report = seen.report(id)
        talk.recall(end.report)
    try:
        with rt.run(id, input=talk.input, history=talk.knows_all, **run) as opened:
            end.run_id = opened.id
            if opened is not replayed:
                talk.recall(opened.report())
            if opened.state == "committed":
                end.text = str(opened.output or "")
            else:
                end.text = opened.output = _converse(opened, talk, asks, max_turns, on_text)
    except (Held, ApprovalVoid, RolledBack, RunEnded, _Unfinished) as error:
        end.take(error, talk)
    end.report = replayed.report() if replayed is not None else seen.report(end.run_id)
    return end.finished(talk)


async def run_agent_async(
    rt: AsyncRuntime,
    prompt: Prompt,
    /,
    *,
    client: object,
    model: str,
    id: str | None = None,
    system: str = "",
    tools: Iterable[str | Tool[..., Any]] | None = None,
    max_turns: int = TURNS_MAX,
    api: Api | None = None,
    options: Mapping[str, Any] | None = None,
    on_text: OnText | None = None,
    repeats: bool | None = None,
    may_roll_back: bool = False,
    **run: Unpack[RunOptions],
) -> Finished:
    """The same with ``AsyncRuntime`` and ``AsyncOpenAI``, ``AsyncAnthropic`` or a ``ScriptedModel``, awaited."""
    talk, asks = _begun(rt, prompt, client, is_async=True, **_said(locals()))
    seen, end = rt.scoped(tenant=run.get("tenant")) if run.get("tenant") else rt, _End()
    replayed = _run_here()
    if id is not None and replayed is None:
        with suppress(UsageError):  # nobody has opened it yet
            end.report = await seen.report(id)
        talk.recall(end.report)
    try:
        async with rt.run(id, input=talk.input, history=talk.knows_all, **run) as opened:
            end.run_id = opened.id
            if opened is not replayed:
                talk.recall(await opened.report())
            if opened.state == "committed":
                end.text = str(opened.output or "")
            else:
                end.text = opened.output = await _converse_async(opened, talk, asks, max_turns, on_text)
    except (Held, ApprovalVoid, RolledBack, RunEnded, _Unfinished) as error:
        end.take(error, talk)
    end.report = await replayed.report() if replayed is not None else await seen.report(end.run_id)
    return end.finished(talk)


# ---- the loop -----------------------------------------------------------------------------


def _converse(run: Run, talk: Conversation, asks: Client, max_turns: int, on_text: OnText | None) -> str:
    """What the model says at its end; raises whatever ends the run in another way."""
    while True:  # every pass asks the model once at most, and it is asked max_turns times
        if talk.pending is None:
            _check_turns(talk, max_turns)
            talk.hear(asks.ask(talk.request(), on_text))
        if (text := _ended(talk)) is not None:
            return text
        if (wish := talk.rollback_asked) is not None and run.state == "open":
            run.rollback(_reason(wish.args))
        answers = run.answer_all(talk.asked())
        _let_go_if_held(answers, talk)
        talk.tell(answers, no_way_back=NO_WAY_BACK)


async def _converse_async(
    run: AsyncRun, talk: Conversation, asks: Client, max_turns: int, on_text: OnText | None
) -> str:
    while True:
        if talk.pending is None:
            _check_turns(talk, max_turns)
            talk.hear(await asks.ask_async(talk.request(), on_text))
        if (text := _ended(talk)) is not None:
            return text
        if (wish := talk.rollback_asked) is not None and run.state == "open":
            await run.rollback(_reason(wish.args))
        answers = await run.answer_all(talk.asked())
        _let_go_if_held(answers, talk)
        talk.tell(answers, no_way_back=NO_WAY_BACK)


def _check_turns(talk: Conversation, max_turns: int) -> None:
    if talk.turns >= max_turns:
        raise _Unfinished("max_turns", f"the model did not finish in {max_turns} turns")


def _ended(talk: Conversation) -> str | None:
    """The model's last words; None: it wants something, and goes on."""
    said = talk.pending
    assert said is not None, "the model has said something"
    if said.cut:
        raise _Unfinished("stopped", f"the model did not finish: {said.cut}")
    return None if said.calls or said.goes_on else said.text


def _let_go_if_held(answers: Sequence[Answer], talk: Conversation) -> None:
    """A person decides: the run is let go at once, and the same turn goes on when it is opened again."""
    errors = [answer.error for answer in answers if answer.waits]
    talk.waiting = waiting = tuple(error for error in errors if isinstance(error, Held | ApprovalVoid))
    if waiting:
        raise waiting[0]


def _reason(args: Any) -> str:
    try:
        plain = json.loads(args) if isinstance(args, str) else args
        return str(plain.get("why") or "the model asked for it")[:500]
    except (ValueError, AttributeError):
        return "the model asked for it"


# ---- its beginning and its end ------------------------------------------------------------


def _run_here() -> Any:
    """The run of a replay: any other that is there is refused as soon as ours is opened inside it."""
    try:
        return current_run()
    except NoRun:
        return None


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    names = ("model", "system", "tools", "max_turns", "api", "options", "repeats", "may_roll_back")
    return {name: given[name] for name in names}


def _begun(
    rt: Runtime | AsyncRuntime,
    prompt: Prompt,
    client: object,
    *,
    is_async: bool,
    model: str,
    system: str,
    tools: Iterable[str | Tool[..., Any]] | None,
    max_turns: int,
    api: Api | None,
    options: Mapping[str, Any] | None,
    repeats: bool | None,
    may_roll_back: bool,
) -> tuple[Conversation, Client]:
    """Everything that can be wrong is wrong here, before a run is opened."""
    if isinstance(rt, AsyncRuntime) != is_async:
        wanted = "run_agent_async" if not is_async else "run_agent"
        raise UsageError(f"{type(rt).__name__} is for {wanted}", hint="take the runtime of the other colour")
    if api is not None and api not in get_args(Api):
        raise UsageError(f"api is {api!r}; it is one of {', '.join(get_args(Api))}")
    if max_turns < 1:
        raise UsageError(f"max_turns is {max_turns}; the model must be asked once at least")
    asks = client_for(client, api, is_async=is_async)
    style = dialect(asks.api).style
    schemas = _offered(rt.schemas(style, repeats=repeats), tools)
    if may_roll_back:
        if any(_name(one) == ROLLBACK for one in schemas):
            raise UsageError(f"there is a tool {ROLLBACK!r} already", hint="rename it, or leave may_roll_back out")
        schemas = [*schemas, _rollback_schema(style)]
    talk = Conversation(asks.api, model=model, system=system, prompt=prompt, tools=schemas, options=options or {})
    return talk, asks


def _offered(schemas: Sequence[dict[str, Any]], tools: Iterable[str | Tool[..., Any]] | None) -> list[dict[str, Any]]:
    known = {_name(one): one for one in schemas}
    if len(known) < len(schemas):
        raise UsageError("two tools have the same name for a model, to whom a.b and a_b are both a_b")
    if tools is None:
        return list(schemas)
    names = [one if isinstance(one, str) else str(getattr(one, "name", one)) for one in tools]
    told = {name: name if name in known else _UNSAFE.sub("_", name) for name in names}
    missing = [name for name in names if told[name] not in known]
    if missing:
        raise UsageError(f"no tool {', '.join(missing)} is declared here", hint="pass it in Runtime(tools=[...])")
    return [known[told[name]] for name in dict.fromkeys(names)]


def _name(schema: Mapping[str, Any]) -> str:
    return str((schema.get("function") or schema).get("name", ""))


def _rollback_schema(style: Style) -> dict[str, Any]:
    text = "Ask that everything this task has done be undone, and end it. Use it when the task cannot be completed."
    why = {"type": "string", "description": "Why, in one sentence for the user."}
    shape = {"type": "object", "properties": {"why": why}, "required": ["why"], "additionalProperties": False}
    if style == "anthropic":
        return {"name": ROLLBACK, "description": text, "input_schema": shape}
    function = {"name": ROLLBACK, "description": text, "parameters": shape}
    return {"type": "function", **function} if style == "responses" else {"type": "function", "function": function}


class _End:
    """What is known of the end before the ledger is asked."""

    def __init__(self) -> None:
        self.run_id, self.text, self.why = "", "", ""
        self.outcome: Outcome = "done"
        self.report: Report | None = None
        self.waiting: tuple[Held | ApprovalVoid, ...] = ()

    def take(self, error: Exception, talk: Conversation) -> None:
        """The run was left with this; raises it again where it is none of the ends of an agent."""
        if not self.run_id or (isinstance(error, ApprovalVoid) and not error.asked):
            raise error
        if isinstance(error, RunEnded) and error.state not in ("rolling_back", "rolled_back"):
            raise error
        self.why = str(error)
        self.text = talk.pending.text if talk.pending is not None else ""
        match error:
            case _Unfinished():
                self.outcome = error.outcome
            case Held() | ApprovalVoid():
                self.outcome = "waiting"
                self.waiting = talk.waiting or (error,)
            case _:
                self.outcome = "rolled_back"

    def finished(self, talk: Conversation) -> Finished:
        assert self.report is not None, "it was read after the run was left"
        return Finished(self.outcome, self.text, self.why, talk.turns, self.report, tuple(talk.messages), self.waiting)
