"""``run_agent``: a loop of a model and its tools in one run, which can wait for people, resume and roll back."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import dataclass, replace
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
    RunBlocked,
    Runtime,
    Secret,
    Tool,
    ToolCall,
    UsageError,
    current_run,
)
from amends.errors import NOT_FINISHED, ApprovalVoid, NoRun, RunEnded, Suspended, UnknownTool, plain, trimming
from amends.llm import requests
from amends.llm.prices import Prices
from amends.llm.recording import kind_of, record, with_tools
from amends.llm.requests import ModelRequest, model_request
from amends.llm.scripted import ScriptedModel, response_of
from amends.llm.streams import assembler, events_of
from amends.llm.wire import Api, Message, ModelTurn, Prompt, Style, dialect, heard_in, written

Outcome: TypeAlias = Literal["done", "waiting", "rolled_back", "incomplete", "max_turns", "stopped"]
OnOpenFailure: TypeAlias = Literal["rollback", "commit"]
Requires: TypeAlias = str | Tool[..., Any] | Mapping[str, Any] | Callable[[Report], bool] | Iterable[Any]
TURNS_MAX: Final = 20
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that the APIs of models do not allow in the name of a tool."""
NO_WAY_BACK: Final = (
    "Not taken back: this task has made its irreversible call, and only goes forward. "
    "Finish what is left, or stop and tell the user."
)


class RunOptions(TypedDict, total=False):
    """The options of ``rt.run``, except the id and the input."""

    tags: Sequence[str]
    budgets: Iterable[Budget]
    recover: Literal["rollback", "resume", "wait"]
    interrupted: Literal["block", "commit"] | None
    reads: Literal["record", "again"]
    wait: float | None
    wait_approval: float | None
    deadline: float | None
    if_rolled_back: Literal["again", "raise"]
    tenant: str | None
    agent: str | None
    principal: str | None


@dataclass(frozen=True, slots=True)
class Finished:
    """How the agent's run ended, or what it waits for."""

    outcome: Outcome
    """``done``: committed. ``waiting``: for a person; call again with the same id. ``incomplete``: blocked, because the
    model stopped after the pivot with something missing; call again with the same id, or finish it. The others: rolled
    back, or blocked if the pivot had happened, because the model asked for it or left something missing
    (``report.missing``), ran out of turns, or was stopped.
    """
    text: str
    """The last text of the model."""
    why: str
    """Why it is not ``done``."""
    turns: int
    """How many turns the model had, including those before a resume."""
    report: Report
    messages: tuple[Mapping[str, Any], ...]
    """The conversation in the format of the API."""
    waiting: tuple[Held | ApprovalVoid, ...] = ()
    """What waits for a person: each has ``.call`` and ``.approval``."""

    @property
    def run_id(self) -> str:
        """Return the id of the run; call again with it to resume."""
        return self.report.run_id

    @property
    def state(self) -> str:
        """Return the state of the run in the ledger."""
        return self.report.state

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "run_id": self.run_id,
            "outcome": self.outcome,
            "state": self.state,
            "text": self.text,
            "why": self.why,
            "turns": self.turns,
            "report": self.report.to_dict(),
            "messages": plain(self.messages),
            "waiting": [one.to_dict() for one in self.waiting],
        }


class _Unfinished(Exception):
    """Ends the run's block as a failure: before the pivot, everything is rolled back."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


@trimming
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
    requires: Requires | None = None,
    on_open_failure: OnOpenFailure = "rollback",
    **run: Unpack[RunOptions],
) -> Finished:
    """Let a model work on the prompt with the tools of ``rt``, in one run, until it is done or must wait for a person.

    - ``client``: ``OpenAI``, ``Anthropic``, ``google.genai.Client``, ``ollama.Client`` or a ``ScriptedModel``.
    - ``id``: the run; a run that exists is resumed, also in another process.
    - ``tools``: those that the model may use. Default: all.
    - ``api``: ``"responses"`` instead of chat completions.
    - ``options``: more fields for every request, in the format of the API; for Gemini, of its ``config``.
    - ``on_text``: gets the model's text piece by piece; responses are then streamed.
    - ``repeats``: the model may repeat a call on purpose (``again_because``).
    - ``may_roll_back``: the model gets a tool to ask for a rollback.
    - ``requires``: what must have succeeded when the model stops; see ``rt.run``.
    - ``on_open_failure``: what a call with an effect means that failed and was not made good when the model stops.
      Default: the run is rolled back, after its pivot it is blocked. ``"commit"``: it is committed as it is.

    A model that is about to stop with something missing is told once what that is, and what stopping does. Ctrl-C, or a
    ``Suspended`` that ``on_text`` raises, stops the agent: its run is suspended, and the same ``id`` goes on with it.

    In a tool with ``kind="agent"`` it works in the child run of that tool, without an ``id``, and raises where it would
    return something else than ``done``.
    """
    conversation, endpoint = _prepare(rt, prompt, client, is_async=False, **_settings(locals()))
    if (child := _child_run(rt, id, requires, run)) is not None:
        if not child._is_replay:
            conversation.recall(child.report())
        text = _converse(child, conversation, endpoint, max_turns, on_text)
        return _done(text, child.report(), conversation)
    seen, end = rt.scoped(tenant=run.get("tenant")) if run.get("tenant") else rt, _Ending()
    replayed = _replayed_run(rt)
    if id is not None and replayed is None:
        with suppress(UsageError):  # it does not exist yet
            end.report = seen.report(id)
        conversation.recall(end.report)
        conversation.is_reopened = end.report is not None and end.report.state == "blocked"
    try:
        with rt.run(
            id,
            input=conversation.input,
            history=conversation.knows_all,
            requires=requires,
            on_open_failure=on_open_failure,
            **run,
        ) as opened:
            end.run_id = opened.id
            opened.for_agent()
            if opened is not replayed:
                conversation.recall(opened.report())
            if opened.state == "committed":
                end.text = str(opened.output or "")
            else:
                with end.stopping(opened.id, KeyboardInterrupt):
                    end.text = opened.output = _converse(opened, conversation, endpoint, max_turns, on_text)
    except Suspended:
        if end.stop is None:
            raise
        raise end.stop from None  # whoever stopped it gets the exception that they stopped it with
    except (Held, ApprovalVoid, RolledBack, RunBlocked, RunEnded, _Unfinished) as error:
        end.take(error, conversation)
    end.report = replayed.report() if replayed is not None else seen.report(end.run_id)
    return end.finished(conversation)


@trimming
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
    requires: Requires | None = None,
    on_open_failure: OnOpenFailure = "rollback",
    **run: Unpack[RunOptions],
) -> Finished:
    """Do the same as ``run_agent`` with an ``AsyncRuntime`` and an async client of the same SDKs, or a ``ScriptedModel``.

    A ``google.genai.Client`` has both colours. A cancellation stops the agent, too.
    """
    import asyncio  # here: who awaits this has imported it, and a blocking program need not

    conversation, endpoint = _prepare(rt, prompt, client, is_async=True, **_settings(locals()))
    if (child := _child_run(rt, id, requires, run)) is not None:
        if not child._is_replay:
            conversation.recall(await child.report())
        text = await _converse_async(child, conversation, endpoint, max_turns, on_text)
        return _done(text, await child.report(), conversation)
    seen, end = rt.scoped(tenant=run.get("tenant")) if run.get("tenant") else rt, _Ending()
    replayed = _replayed_run(rt)
    if id is not None and replayed is None:
        with suppress(UsageError):  # it does not exist yet
            end.report = await seen.report(id)
        conversation.recall(end.report)
        conversation.is_reopened = end.report is not None and end.report.state == "blocked"
    try:
        async with rt.run(
            id,
            input=conversation.input,
            history=conversation.knows_all,
            requires=requires,
            on_open_failure=on_open_failure,
            **run,
        ) as opened:
            end.run_id = opened.id
            opened.for_agent()
            if opened is not replayed:
                conversation.recall(await opened.report())
            if opened.state == "committed":
                end.text = str(opened.output or "")
            else:
                with end.stopping(opened.id, KeyboardInterrupt, asyncio.CancelledError):
                    end.text = opened.output = await _converse_async(opened, conversation, endpoint, max_turns, on_text)
    except Suspended:
        if end.stop is None:
            raise
        raise end.stop from None
    except (Held, ApprovalVoid, RolledBack, RunBlocked, RunEnded, _Unfinished) as error:
        end.take(error, conversation)
    end.report = await replayed.report() if replayed is not None else await seen.report(end.run_id)
    return end.finished(conversation)


# ---- The loop


def _converse(run: Run, conversation: Conversation, endpoint: Client, max_turns: int, on_text: OnText | None) -> str:
    """Return the model's last text; raise whatever ends the run in another way."""
    while True:  # each pass asks the model at most once, and it is asked at most max_turns times
        if conversation.pending is None:
            _check_turns(conversation, max_turns)
            conversation.hear(endpoint.ask(conversation.request(), on_text))
        if (text := _ended(conversation)) is not None:
            if not (conversation.may_be_told(max_turns) and conversation.is_told(run.before_end())):
                return text
            continue
        if (wish := conversation.rollback_asked) is not None and run.state == "open":
            run.rollback(_reason(wish.args))
        answers = run.answer_all(conversation.asked())
        _raise_if_held(answers, conversation)
        conversation.tell(answers, no_way_back=NO_WAY_BACK)


async def _converse_async(
    run: AsyncRun, conversation: Conversation, endpoint: Client, max_turns: int, on_text: OnText | None
) -> str:
    while True:
        if conversation.pending is None:
            _check_turns(conversation, max_turns)
            conversation.hear(await endpoint.ask_async(conversation.request(), on_text))
        if (text := _ended(conversation)) is not None:
            if not (conversation.may_be_told(max_turns) and conversation.is_told(await run.before_end())):
                return text
            continue
        if (wish := conversation.rollback_asked) is not None and run.state == "open":
            await run.rollback(_reason(wish.args))
        answers = await run.answer_all(conversation.asked())
        _raise_if_held(answers, conversation)
        conversation.tell(answers, no_way_back=NO_WAY_BACK)


def _check_turns(conversation: Conversation, max_turns: int) -> None:
    if conversation.turns >= max_turns:
        raise _Unfinished("max_turns", f"the model did not finish in {max_turns} turns")


def _ended(conversation: Conversation) -> str | None:
    """Return the model's last text, or None if it has calls or only paused."""
    turn = conversation.pending
    assert turn is not None, "a turn was received"
    if turn.cut:
        raise _Unfinished("stopped", f"the model did not finish: {turn.cut}")
    return None if turn.calls or turn.goes_on else turn.text


def _raise_if_held(answers: Sequence[Answer], conversation: Conversation) -> None:
    """Raise if a call waits for a person: the run is released, and the same turn continues when it is opened again."""
    errors = [answer.error for answer in answers if answer.waits]
    conversation.waiting = waiting = tuple(error for error in errors if isinstance(error, Held | ApprovalVoid))
    if waiting:
        raise waiting[0]


def _reason(args: Any) -> str:
    try:
        plain = json.loads(args) if isinstance(args, str) else args
        return str(plain.get("why") or "the model asked for it")[:500]
    except (ValueError, AttributeError):
        return "the model asked for it"


# ---- Preparation and ending


def _replayed_run(rt: Runtime | AsyncRuntime) -> Any:
    """Return the run of a replay, if this is one. Another run of this runtime is refused when ours is opened inside it."""
    try:
        return current_run(rt)
    except NoRun:
        return None


def _child_run(rt: Runtime | AsyncRuntime, id: str | None, requires: object, options: Mapping[str, Any]) -> Any:
    """Return the child run of the tool with ``kind="agent"`` that this agent is, if it is one; its parent ends it.

    What such a run is called and how it ends is said where the tool is declared; said here, a run of one's own is meant.
    """
    try:
        found = current_run(rt)
    except NoRun:
        return None
    return found if found._is_agents and id is None and requires is None and not options else None


def _done(text: str, report: Report, conversation: Conversation) -> Finished:
    return Finished("done", text, "", conversation.turns, report, tuple(conversation.messages), ())


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    names = ("model", "system", "tools", "max_turns", "api", "options", "repeats", "may_roll_back", "requires")
    return {name: given[name] for name in names}


def _prepare(
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
    requires: Requires | None,
) -> tuple[Conversation, Client]:
    """Check every argument, before a run is opened; return the conversation and the client."""
    if isinstance(rt, AsyncRuntime) != is_async:
        wanted = "run_agent_async" if not is_async else "run_agent"
        raise UsageError(f"{type(rt).__name__} is for {wanted}", hint="use the other runtime: Runtime or AsyncRuntime")
    if api is not None and api not in get_args(Api):
        raise UsageError(f"api is {api!r}; it must be one of {', '.join(get_args(Api))}")
    if max_turns < 1:
        raise UsageError(f"max_turns is {max_turns}; it must be at least 1")
    endpoint = client_for(client, api, is_async=is_async)
    style = dialect(endpoint.api).style
    schemas = _offered(rt.schemas(style, repeats=repeats), tools)
    _check_required(requires, {_name(one) for one in schemas})
    if may_roll_back:
        if any(_name(one) == ROLLBACK for one in schemas):
            raise UsageError(f"there is already a tool {ROLLBACK!r}", hint="rename it, or leave may_roll_back out")
        schemas = [*schemas, _rollback_schema(style)]
    conversation = Conversation(
        endpoint.api, model=model, system=system, prompt=prompt, tools=schemas, options=options or {}
    )
    return conversation, endpoint


def _offered(schemas: Sequence[dict[str, Any]], tools: Iterable[str | Tool[..., Any]] | None) -> list[dict[str, Any]]:
    known = {_name(one): one for one in schemas}
    if len(known) < len(schemas):
        raise UsageError("two tools have the same name for a model: a.b and a_b are both sent as a_b")
    if tools is None:
        return list(schemas)
    names = [one if isinstance(one, str) else str(getattr(one, "name", one)) for one in tools]
    sent_as = {name: name if name in known else _UNSAFE.sub("_", name) for name in names}
    missing = [name for name in names if sent_as[name] not in known]
    if missing:
        raise UsageError(f"no tool {', '.join(missing)} is declared here", hint="pass it in Runtime(tools=[...])")
    return [known[sent_as[name]] for name in dict.fromkeys(names)]


def _check_required(requires: object, offered: set[str]) -> None:
    """Raise if the run could never be complete, because the model does not have a tool that is required."""
    if isinstance(requires, Iterator):
        return  # the run refuses it, and reading it here would leave nothing to refuse
    single = isinstance(requires, str | Mapping) or not isinstance(requires, Iterable)
    for one in [requires] if single else [*requires]:  # type: ignore[misc]
        named = one.get("tool") if isinstance(one, Mapping) else one[0] if isinstance(one, tuple) and one else one
        name = (
            named if isinstance(named, str) else getattr(named, "name", None) if hasattr(named, "__amends__") else None
        )
        if name is not None and str(name) not in offered and _UNSAFE.sub("_", str(name)) not in offered:
            raise UsageError(
                f"requires has {name!r}, which the model does not have", hint="name it in tools=, or leave it out here"
            )


def _name(schema: Mapping[str, Any]) -> str:
    return str((schema.get("function") or schema).get("name", ""))


def _rollback_schema(style: Style) -> dict[str, Any]:
    text = "Ask that everything this task has done be undone, and end it. Use it when the task cannot be completed."
    why = {"type": "string", "description": "Why, in one sentence for the user."}
    shape = {"type": "object", "properties": {"why": why}, "required": ["why"], "additionalProperties": False}
    if style in ("anthropic", "gemini"):
        field = "input_schema" if style == "anthropic" else "parameters_json_schema"
        return {"name": ROLLBACK, "description": text, field: shape}
    function = {"name": ROLLBACK, "description": text, "parameters": shape}
    return {"type": "function", **function} if style == "responses" else {"type": "function", "function": function}


class _Ending:
    """Collects how the run ended, until its report is read."""

    def __init__(self) -> None:
        self.run_id, self.text, self.why = "", "", ""
        self.outcome: Outcome = "done"
        self.report: Report | None = None
        self.waiting: tuple[Held | ApprovalVoid, ...] = ()
        self.stop: BaseException | None = None
        """What the agent was stopped with, if that is not ``Suspended``."""

    @contextmanager
    def stopping(self, run_id: str, *stops: type[BaseException]) -> Iterator[None]:
        """Suspend the run if one of these comes out: the agent was stopped, and nobody asked to take its work back."""
        try:
            yield
        except stops as error:
            self.stop = error
            raise Suspended("the agent was stopped", run_id=run_id) from error

    def take(self, error: Exception, conversation: Conversation) -> None:
        """Note the error that ended the run's block; raise it again if it is not one of an agent's outcomes."""
        if not self.run_id or (isinstance(error, ApprovalVoid) and not error.asked):
            raise error
        if isinstance(error, RunEnded) and error.state not in ("rolling_back", "rolled_back"):
            raise error
        if isinstance(error, RunBlocked) and not error.missing:
            raise error
        self.why = str(error)
        self.text = conversation.pending.text if conversation.pending is not None else ""
        match error:
            case _Unfinished():
                self.outcome = error.outcome
            case Held() | ApprovalVoid():
                self.outcome = "waiting"
                self.waiting = conversation.waiting or (error,)
            case RunBlocked():
                self.outcome = "incomplete"
            case _:
                self.outcome = "rolled_back"

    def finished(self, conversation: Conversation) -> Finished:
        assert self.report is not None, "it is read after the run's block"
        return Finished(
            self.outcome,
            self.text,
            self.why,
            conversation.turns,
            self.report,
            tuple(conversation.messages),
            self.waiting,
        )


# ---- The conversation


ROLLBACK: Final = "request_rollback"
"""The tool with which a model asks for a rollback."""
MASK: Final = "•••"


class Conversation:
    """The conversation so far, in the format of one API. It sends nothing and runs nothing."""

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
        self._dialect = dialect(api)
        self._model, self._system, self._options = model, system, dict(options)
        self._tools = list(tools)
        self._offered = frozenset(_name(one) for one in tools)
        self._opening = self._dialect.opening(system, prompt)
        self.input: Any = prompt if isinstance(prompt, str) else written(list(prompt)).data
        self.is_reopened = False
        """Whether the run was blocked and is opened again: the model gets another chance to finish it."""
        self._begin()

    def _begin(self) -> None:
        self.messages: list[Message] = list(self._opening)
        self.turns = 0
        self.pending: ModelTurn | None = None
        """The last turn of the model, until its calls have outcomes."""
        self.knows_all = True
        """Whether the conversation has everything that the run has done."""
        self.waiting: tuple[Held | ApprovalVoid, ...] = ()
        """Calls that wait for a person."""

    def request(self) -> dict[str, Any]:
        """Return the body of the next request."""
        body = self._dialect.request(self._model, self.messages, system=self._system, tools=self._tools)
        return self._dialect.with_options(body, self._options)

    def hear(self, response: Mapping[str, Any]) -> None:
        """Add the model's response."""
        self.turns += 1
        self.pending = self._dialect.turn(response)
        self.messages += self.pending.messages

    def delta(self, event: Mapping[str, Any]) -> str:
        """Return the text that an event of a stream adds."""
        return self._dialect.delta(event)

    def asked(self) -> tuple[ToolCall, ...]:
        """Return the calls to run now: those of tools that the model was offered.

        A call to which the model gave no id gets one by its place, so that it is known again when the turn is resumed.
        """
        assert self.pending is not None, "a turn was received"
        return tuple(
            call if call.tool_call_id else replace(call, tool_call_id=f"call_{self.turns}_{place}")
            for place, call in enumerate(self.pending.calls, start=1)
            if call.tool in self._offered and call.tool != ROLLBACK
        )

    def tell(self, answers: Iterable[Answer], *, no_way_back: str = "") -> None:
        """Add the outcomes of the calls; ``no_way_back`` answers a request for a rollback that is no longer possible."""
        assert self.pending is not None, "a turn was received"
        outcomes, done = [], iter(answers)
        for call in self.pending.calls:
            if call.tool not in self._offered:
                known = sorted(self._offered - {ROLLBACK})
                outcomes.append((call, _refusal(UnknownTool(call.tool, known=known))))
            elif call.tool == ROLLBACK:
                outcomes.append((call, Answer("refused", no_way_back)))
            else:
                outcomes.append((call, next(done)))
        self.messages += self._dialect.results(outcomes)
        self.pending = None

    def may_be_told(self, max_turns: int) -> bool:
        """Return whether the model was not told yet what is missing, and has a turn left to do something about it."""
        said = [self._dialect.said(one) for one in self.messages[len(self._opening) :]]
        was_told = any(one.startswith(NOT_FINISHED) for one in said)
        return self.turns < max_turns and (self.is_reopened or not was_told)

    def is_told(self, text: str) -> bool:
        """Add what is missing, if there is something, for the model that is about to stop; return whether there is."""
        if text:
            self.messages += self._dialect.opening("", text)
            self.pending, self.is_reopened = None, False
        return bool(text)

    @property
    def rollback_asked(self) -> ToolCall | None:
        """Return the model's request for a rollback, if its last turn has one."""
        calls = () if self.pending is None or ROLLBACK not in self._offered else self.pending.calls
        return next((call for call in calls if call.tool == ROLLBACK), None)

    def recall(self, report: Report | None) -> None:
        """Restore the conversation up to the last response of the model that the ledger has."""
        self._begin()
        if report is None or report.state == "rolled_back":  # its next generation starts from the beginning
            return
        asked = _turns(call for call in report.calls if _is_turn(call))
        last = asked[-1][0] if asked else None
        if last is None:
            self.knows_all = not any(call.kind != "read" for call in report.calls)
            return
        if _continues(last) or not all(
            map(_is_whole, asked[-1])
        ):  # too large to be recorded: start again, and idempotency keys prevent repeated effects
            self.turns, self.knows_all = len(asked), False
            return
        if last.args["api"] != self.api:
            raise UsageError(
                f"run {report.run_id} was started with the API {last.args['api']}, not {self.api}",
                hint=f"continue with api={last.args['api']!r} and a client of the same provider",
            )
        before = list(self._dialect.conversation(last.args["request"]))
        # The system prompt may have changed since, or be absent, and one API sends it as a message.
        opened = len(self._opening) + _systems(before) - _systems(self._opening)
        self.messages += [_readable(one) for one in before[opened:]]
        self.turns = len(asked) - 1
        response = _response_of(self.api, asked[-1])
        if _has_secret(response):  # its calls cannot be read from the record: ask the model for this turn again
            self.knows_all = False
            return
        if self._dialect.turn(response).cut:  # nothing of it was run: ask the model again
            self.turns = len(asked)
            return
        self.hear(response)


def _refusal(error: UnknownTool) -> Answer:
    return Answer("refused", error.for_model(), error=error)


def _systems(messages: Sequence[Any]) -> int:
    """Count the system messages at the beginning."""
    return sum(1 for _ in takewhile(lambda one: isinstance(one, Mapping) and one.get("role") == "system", messages))


def _is_turn(call: Call) -> bool:
    """Return whether this is a completed request of the loop itself; a request made inside a tool has a parent."""
    if not call.tool.startswith("model:") or call.parent or call.state != "succeeded":
        return False
    return not isinstance(call.result, Mapping) or bool(call.result.get("complete"))


def _continues(call: Call) -> bool:
    """Return whether this request continues the response to the one before it; the SDK of Gemini sends such requests."""
    request = call.args.get("request")
    return isinstance(request, Mapping) and bool(request.get("continuationToken"))


def _turns(calls: Iterable[Call]) -> list[list[Call]]:
    """Group the requests by the turns of the model."""
    turns: list[list[Call]] = []
    for call in calls:
        if turns and _continues(call):
            turns[-1].append(call)
        else:
            turns.append([call])
    return turns


def _response_of(api: Api, turn: Sequence[Call]) -> Mapping[str, Any]:
    if len(turn) == 1:
        return _recorded(turn[0].result)
    made = assembler(api)
    for call in turn:
        made.see(_recorded(call.result))
    return made.response or {}


def _is_whole(call: Call) -> bool:
    """Return whether the ledger has the whole request and response."""
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
    """Replace secrets, which the ledger does not have, by a mask."""
    match value:
        case Secret():
            return MASK
        case Mapping():
            return {name: _readable(one) for name, one in value.items()}
        case list() | tuple():
            return [_readable(one) for one in value]
    return value


# ---- The client: a recorded client of an SDK, or a scripted model


OnText: TypeAlias = Callable[[str], object]
"""Gets the model's text, piece by piece."""
APIS: Final[dict[str, tuple[Api, ...]]] = {
    "openai": ("chat.completions", "responses"),
    "anthropic": ("messages",),
    "google": ("generate_content",),
    "ollama": ("chat",),
    "scripted": ("chat.completions", "responses", "messages", "generate_content", "chat"),
}
"""The APIs of each provider that have tools, the default first."""
NO_TOOLS: Final = "the API 'generate' has no tools; use 'chat'"
FREE: Final = Prices({"*": (0, 0)}, provider="scripted", url="")


@dataclass(frozen=True, slots=True)
class Client:
    """A client and its wire format; each request is a call of the current run."""

    api: Api
    given: Any
    """A recorded client, or a ``ScriptedModel``."""

    def ask(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        """Send a request and return the response; both are recorded."""
        if isinstance(self.given, ScriptedModel):
            return self._scripted(request, on_text)
        if on_text is None:
            return self._plain(self._sent(request))
        made, wire = assembler(self.api), dialect(self.api)
        with closing(self._sent(request, stream=True)) as stream:
            for event in stream:
                made.see(plain := self._plain(event))
                if piece := wire.delta(plain):
                    on_text(piece)
        return made.response or {}

    async def ask_async(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        """Do the same on an event loop; ``on_text`` may be async."""
        if isinstance(self.given, ScriptedModel):
            return await self._scripted_async(request, on_text)
        if on_text is None:
            return self._plain(await self._sent(request))
        made, wire = assembler(self.api), dialect(self.api)
        async with _closing(await self._sent(request, stream=True)) as stream:
            async for event in stream:
                made.see(plain := self._plain(event))
                if piece := wire.delta(plain):
                    await _called(on_text, piece)
        return made.response or {}

    def _sent(self, request: Mapping[str, Any], *, stream: bool = False) -> Any:
        """Send a request with the SDK; with an async client, await the result."""
        if self.api == "generate_content":
            models = self.given.models
            return (models.generate_content_stream if stream else models.generate_content)(**request)
        if self.api == "chat":
            client = with_tools(self.given, request["tools"]) if request.get("tools") else self.given
            return client.chat(**{**request, "tools": None, "stream": stream})
        found: Any = self.given
        for name in self.api.split("."):
            found = getattr(found, name)
        return found.create(**request, **({"stream": True} if stream else {}))

    def _plain(self, answer: Any) -> dict[str, Any]:
        """Return a response or an event as it is on the wire."""
        found: dict[str, Any]
        if self.api == "generate_content":
            ours = {"sdk_http_response", "automatic_function_calling_history", "parsed"}
            found = answer.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=ours)
        elif self.api == "chat":
            found = answer.model_dump(mode="json", exclude_none=True)
        else:
            found = answer.to_dict(mode="json", warnings=False)
        return found

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

    def _asked(self, request: Mapping[str, Any]) -> ModelRequest:
        return model_request("model:scripted", self.api, request, FREE)

    def _reply(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        number, _ = heard_in(self.api, request)
        return response_of(self.api, self.given.reply(self.api, request), request, number=number + 1)

    def _pieces(self, response: Mapping[str, Any]) -> list[str]:
        found = [dialect(self.api).delta(event) for _, event in events_of(self.api, response)]
        return [piece for piece in found if piece]


def client_for(given: object, api: Api | None, *, is_async: bool) -> Client:
    """Return the client, recorded if it is not yet; raise ``UsageError`` if it lacks ``api`` or has the wrong colour."""
    if isinstance(given, ScriptedModel):
        provider = "scripted"
    else:
        kind = kind_of(given)
        provider = kind.provider
        if kind.is_async is None and is_async:
            given, kind = given.aio, kind_of(given.aio)  # type: ignore[attr-defined]
        if bool(kind.is_async) != is_async:
            wanted = "run_agent_async" if kind.is_async else "run_agent"
            raise UsageError(
                f"{type(given).__name__} is for {wanted}",
                hint="use the async client with run_agent_async, and the blocking one with run_agent",
            )
        given = given if kind.is_recorded else record(given)
    if api is not None and api not in APIS[provider]:
        has = ", ".join(APIS[provider])
        raise UsageError(f"{provider} does not have the API {api!r}; it has {has}" if api != "generate" else NO_TOOLS)
    return Client(api or APIS[provider][0], given)


def _closing(stream: Any) -> Any:
    """Return a context manager that closes an async stream: that of an SDK, or that of an iterator."""
    return stream if hasattr(stream, "__aexit__") else aclosing(stream)


def _recorded(result: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = result["response"]
    return found


async def _called(on_text: OnText, piece: str) -> None:
    done = on_text(piece)
    if inspect.isawaitable(done):
        awaited: Awaitable[object] = done
        await awaited
