"""The OpenAI SDK: tool calls of a response, and of the SDK's Responses tool runner, are calls of a run."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, get_type_hints

from openai.lib.responses_tool_runner import AsyncRegisteredFunction, RegisteredFunction, ResponsesRunnerTurn
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from amends import Answer, AsyncRun, AsyncRuntime, Held, Run, Runtime, ToolCall, UsageError
from amends.errors import KeyConflict

log = logging.getLogger("amends")

Handlers = Mapping[str, Callable[..., object] | None]
_CUTS: Final = frozenset({"length", "content_filter", "error", "abort", "None"})
"""Reasons for an end that is not the model's own, also those of other servers with this format."""
_ANSWER_ONLY: Final = frozenset({"created_by", "parsed_arguments"})
"""Fields that an item of a response has and an item of a request must not have."""
_REPEAT: Final = "again_because"


def answer_tool_calls(
    run: Run, response: ChatCompletion | Response, *, handlers: Handlers | None = None
) -> list[dict[str, Any]]:
    """Run the calls of a response in the run, in parallel; return the messages to append, beginning with the model's own.

    For chat completions and responses. The list is empty if there are no calls: the model is done; if something is
    missing then, the model is told once (``run.before_end``). ``handlers`` are the functions of tools that are declared
    without a body. Raise ``Held`` if a person must decide first, which releases the run: keep the response, and pass it
    again when the run is opened again. A stream is refused: pass what it has become.
    """
    run.for_agent()
    calls = _calls(response, handlers)
    if not calls:
        return _told(response, run.before_end())
    return _messages(response, calls, _as_shown(calls, _raise_held(run.answer_all(calls))))


async def answer_tool_calls_async(
    run: AsyncRun, response: ChatCompletion | Response, *, handlers: Handlers | None = None
) -> list[dict[str, Any]]:
    """Do the same as ``answer_tool_calls`` in an async run."""
    run.for_agent()
    calls = _calls(response, handlers)
    if not calls:
        return _told(response, await run.before_end())
    return _messages(response, calls, _as_shown(calls, _raise_held(await run.answer_all(calls))))


# ---- The SDK's own tool runner


def registered_functions(run: Run, functions: Runtime | Iterable[RegisteredFunction]) -> list[RegisteredFunction]:
    """Return functions for a ``ResponsesToolRunner`` whose calls are calls of the run.

    ``functions`` are those of a program, or a runtime with all its tools.
    """
    if isinstance(functions, Runtime):
        schemas: list[Any] = functions.schemas("responses")
        made = [_Guarded(run, one, None) for one in schemas]
        return [_registered(RegisteredFunction, one, to) for one, to in zip(schemas, made, strict=True)]
    return [replace(_plain(one), execute=_Guarded(run, one.tool, one.execute)) for one in functions]


def registered_functions_async(
    run: AsyncRun, functions: AsyncRuntime | Iterable[AsyncRegisteredFunction]
) -> list[AsyncRegisteredFunction]:
    """Do the same as ``registered_functions`` for an ``AsyncResponsesToolRunner``."""
    if isinstance(functions, AsyncRuntime):
        schemas: list[Any] = functions.schemas("responses")
        made = [_AsyncGuarded(run, one, None) for one in schemas]
        return [_registered(AsyncRegisteredFunction, one, to) for one, to in zip(schemas, made, strict=True)]
    return [replace(_plain(one), execute=_AsyncGuarded(run, one.tool, one.execute)) for one in functions]


def answer_turns(
    run: Run,
    turns: Generator[ResponsesRunnerTurn, None, None],
    functions: Iterable[RegisteredFunction],
    *,
    strict: bool = False,
) -> Response:
    """Run the turns of ``runner.iterate(...)``, and return the final response.

    The calls of each turn are one parallel group, with their ids. The runner itself would call each function on its
    own, and continue after one that waits for a person; this raises ``Held`` and closes the runner. A function that did
    not come from ``registered_functions`` is called by the runner, unrecorded: a warning names it, or ``UsageError`` with
    ``strict``.
    """
    known = _guarded(functions, strict=strict)
    try:
        for turn in turns:
            if turn.final:
                return turn.response
            calls = _calls_of_turn(turn.response, known)
            answers = _raise_held(run.answer_all(calls))
            turn.supply_outputs(_outputs(calls, [run.warned(one) for one in _as_shown(calls, answers)]))
    finally:
        turns.close()
    raise UsageError("the runner ended without a final response", hint="give it more turns with max_steps")


async def answer_turns_async(
    run: AsyncRun,
    turns: AsyncGenerator[ResponsesRunnerTurn, None],
    functions: Iterable[AsyncRegisteredFunction],
    *,
    strict: bool = False,
) -> Response:
    """Do the same as ``answer_turns`` for an ``AsyncResponsesToolRunner``."""
    known = _guarded(functions, strict=strict)
    try:
        async for turn in turns:
            if turn.final:
                return turn.response
            calls = _calls_of_turn(turn.response, known)
            answers = _raise_held(await run.answer_all(calls))
            turn.supply_outputs(_outputs(calls, [run.warned(one) for one in _as_shown(calls, answers)]))
    finally:
        await turns.aclose()
    raise UsageError("the runner ended without a final response", hint="give it more turns with max_steps")


class _Guarded:
    """The function as the runner calls it: a call of the run, without a call id. It returns the text for the model."""

    def __init__(self, run: Run, tool: Any, inner: Callable[[dict[str, object]], object] | None) -> None:
        self._run, self._name = run, tool["name"]
        self.handler = None if inner is None else _with_dict(inner)
        self.schema: dict[str, Any] = tool.get("parameters") or {}

    def __call__(self, arguments: dict[str, object]) -> str:
        answer = self._run.answer(self._name, arguments, handler=self.handler, schema=self.schema)
        return self._run.warned(_without_repeat(answer, self.schema)).text


class _AsyncGuarded:
    """The same for an async run."""

    def __init__(self, run: AsyncRun, tool: Any, inner: Callable[[dict[str, object]], Any] | None) -> None:
        self._run, self._name = run, tool["name"]
        self.handler = None if inner is None else _with_dict_async(inner)
        self.schema: dict[str, Any] = tool.get("parameters") or {}

    async def __call__(self, arguments: dict[str, object]) -> str:
        answer = await self._run.answer(self._name, arguments, handler=self.handler, schema=self.schema)
        return self._run.warned(_without_repeat(answer, self.schema)).text


def _with_dict(inner: Callable[[dict[str, object]], object]) -> Callable[..., object]:
    def handler(**arguments: object) -> object:
        return inner(arguments)

    handler.__annotations__["return"] = _returns(inner)
    return handler


def _with_dict_async(inner: Callable[[dict[str, object]], Any]) -> Callable[..., object]:
    async def handler(**arguments: object) -> object:
        return await inner(arguments)

    handler.__annotations__["return"] = _returns(inner)
    return handler


def _returns(fn: Callable[..., object]) -> object:
    """Return what a function is annotated to return: a compensation gets its classes, and no plain data."""
    try:
        return get_type_hints(fn).get("return", Any)
    except Exception:  # it is no function, or an annotation names something unknown here
        return Any


def _registered(make: Callable[..., Any], schema: dict[str, Any], to: object) -> Any:
    return make({"strict": False, **schema}, to, allow_output_override=True)


def _plain(function: Any) -> Any:
    if function._parsed_tool is not None:
        raise UsageError(
            f"{function.tool['name']} is registered with from_tool, whose function takes a model",
            hint="register it with RegisteredFunction(tool, execute) and read the model inside",
        )
    return replace(function, allow_output_override=True)


def _guarded(functions: Iterable[Any], *, strict: bool) -> dict[str, Any]:
    """Return the functions that this module has wrapped, by name; warn of the others, or raise with ``strict``."""
    known = {one.tool["name"]: one.execute for one in functions}
    for name in [name for name, execute in known.items() if not hasattr(execute, "handler")]:
        del known[name]
        text = (
            f"function {name} is called by the runner, and not recorded: it may be done twice and is never taken back"
        )
        hint = "give the runner what registered_functions(run, functions) returns"
        if strict:
            raise UsageError(text, hint=hint)
        log.warning("%s; %s", text, hint)
    return known


def _calls_of_turn(response: Response, known: Mapping[str, Any]) -> list[ToolCall]:
    calls = [call for call in _calls(response, None) if call.tool in known]
    return [replace(call, handler=known[call.tool].handler, schema=known[call.tool].schema) for call in calls]


# ---- Chat completions and responses


def _calls(response: ChatCompletion | Response, handlers: Handlers | None) -> list[ToolCall]:
    known = handlers or {}
    if not isinstance(response, Response) and not hasattr(response, "choices"):
        raise UsageError(
            f"{type(response).__name__} is no answer of the model yet; nothing was run",
            hint="read a stream to its end and pass what it has become: `with client.chat.completions.stream(...) as"
            " stream: ...`, then stream.get_final_completion(); for responses stream.get_final_response(). Its tools must"
            " be strict: rt.schemas(strict=True). An awaitable must be awaited",
        )
    if isinstance(response, Response):
        asked = [(one.name, one.arguments, one.call_id) for one in response.output if one.type == "function_call"]
        is_cut = response.status not in (None, "completed")
    else:
        if not response.choices:
            raise UsageError("the response has no choices", hint="ask the model again")
        choice = response.choices[0]
        functions = [one for one in choice.message.tool_calls or () if one.type == "function"]
        asked = [(one.function.name, one.function.arguments, one.id) for one in functions]
        is_cut = str(choice.finish_reason) in _CUTS
    if asked and is_cut:  # half an argument can look like a whole one
        raise UsageError("the response was cut; its calls were not run", hint="raise its token limit, or ask again")
    return [ToolCall(name, arguments or "{}", id, handler=known.get(name)) for name, arguments, id in asked]


def _raise_held(answers: Sequence[Answer]) -> Sequence[Answer]:
    for answer in answers:
        if answer.waits and answer.error is not None:
            raise answer.error
    return answers


def _as_shown(calls: Sequence[ToolCall], answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers without what the model's schemas do not have; a tool with a handler is described by the program."""
    pairs = zip(calls, answers, strict=True)
    return [a if c.handler is None and c.schema is None else _without_repeat(a, c.schema or {}) for c, a in pairs]


def _without_repeat(answer: Answer, schema: Mapping[str, Any]) -> Answer:
    error = answer.error
    if _REPEAT in schema.get("properties", ()) or not isinstance(error, Held | KeyConflict) or not error.may_repeat:
        return answer
    error.may_repeat = False
    return replace(answer, text=error.for_model())


def _outputs(calls: Sequence[ToolCall], answers: Sequence[Answer]) -> list[Any]:
    pairs = zip(calls, answers, strict=True)
    return [{"type": "function_call_output", "call_id": c.tool_call_id, "output": a.text} for c, a in pairs]


def _told(response: ChatCompletion | Response, text: str) -> list[dict[str, Any]]:
    """Return the model's last words, and what it is told before it may stop; empty: it may."""
    return [*_messages(response, (), ()), {"role": "user", "content": text}] if text else []


def _messages(
    response: ChatCompletion | Response, calls: Sequence[ToolCall], answers: Sequence[Answer]
) -> list[dict[str, Any]]:
    if isinstance(response, Response):
        items = [item.to_dict(mode="json", warnings=False) for item in response.output]
        own_items = [{k: v for k, v in item.items() if v is not None and k not in _ANSWER_ONLY} for item in items]
        return [*own_items, *_outputs(calls, answers)]
    message = response.choices[0].message
    asked: list[Any] = [one.to_dict(mode="json", warnings=False) for one in message.tool_calls or ()]
    for one in asked:
        for name in _ANSWER_ONLY & one.get("function", {}).keys():
            del one["function"][name]
    own = {"role": "assistant", "content": message.content, **({"tool_calls": asked} if asked else {})}
    pairs = zip(calls, answers, strict=True)
    return [own, *({"role": "tool", "tool_call_id": c.tool_call_id, "content": a.text} for c, a in pairs)]
