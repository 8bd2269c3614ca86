"""The Anthropic SDK: tool calls of a message, and of the SDK's tool runner, are calls of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, get_type_hints

from anthropic.lib.tools import (
    BetaAsyncBuiltinFunctionTool,
    BetaAsyncToolRunner,
    BetaBuiltinFunctionTool,
    BetaToolRunner,
    ToolError,
)
from anthropic.types import Message
from anthropic.types.beta import BetaMessage

from amends import Answer, AsyncRun, AsyncRuntime, Held, Run, Runtime, ToolCall, UsageError
from amends.errors import KeyConflict

log = logging.getLogger("amends")

Handlers = Mapping[str, Callable[..., object]]
_CUTS: Final = (None, "max_tokens", "model_context_window_exceeded", "refusal")
_REPEAT: Final = "again_because"
_held: ContextVar[list[Exception] | None] = ContextVar("amends.adapters.anthropic.held", default=None)
"""Errors of calls that wait for a person in this turn of the runner; None outside ``until_done``."""


def answer_tool_calls(
    run: Run, message: Message | BetaMessage, *, handlers: Handlers | None = None
) -> list[dict[str, Any]]:
    """Run the calls of a message in the run, in parallel; return the messages to append, beginning with the model's own.

    The list is empty if the message has no calls: the model is done; if something is missing then, the model is told
    once (``run.before_end``). ``handlers`` are the functions of tools that are declared without a body. Raise ``Held``
    if a person must decide first, which releases the run: keep the message, and pass it again when the run is opened
    again. A stream is refused: pass what it has become.
    """
    run.for_agent()
    calls = _calls(message, handlers)
    if not calls:
        return _told(message, run.before_end())
    return _messages(message, calls, _as_shown(calls, _raise_held(run.answer_all(calls))))


async def answer_tool_calls_async(
    run: AsyncRun, message: Message | BetaMessage, *, handlers: Handlers | None = None
) -> list[dict[str, Any]]:
    """Do the same as ``answer_tool_calls`` in an async run."""
    run.for_agent()
    calls = _calls(message, handlers)
    if not calls:
        return _told(message, await run.before_end())
    return _messages(message, calls, _as_shown(calls, _raise_held(await run.answer_all(calls))))


# ---- The SDK's own tool runner


class _Tool(BetaBuiltinFunctionTool):
    def __init__(
        self, run: Run, schema: Any, inner: Callable[[object], object] | None = None, returns: object = Any
    ) -> None:
        self._run, self._schema = run, schema
        self._handler = None if inner is None else _with_dict(inner, returns)

    def to_dict(self) -> Any:
        return self._schema

    def call(self, input: object) -> str:
        schema = self._schema.get("input_schema") or {}
        answer = self._run.answer(self.name, _arguments(input), handler=self._handler, schema=schema)
        return _result(self._run.warned(_without_repeat(answer, schema)))


class _AsyncTool(BetaAsyncBuiltinFunctionTool):
    def __init__(
        self, run: AsyncRun, schema: Any, inner: Callable[[object], Any] | None = None, returns: object = Any
    ) -> None:
        self._run, self._schema = run, schema
        self._handler = None if inner is None else _with_dict_async(inner, returns)

    def to_dict(self) -> Any:
        return self._schema

    async def call(self, input: object) -> str:
        schema = self._schema.get("input_schema") or {}
        answer = await self._run.answer(self.name, _arguments(input), handler=self._handler, schema=schema)
        return _result(self._run.warned(_without_repeat(answer, schema)))


def _with_dict(inner: Callable[[object], object], returns: object) -> Callable[..., object]:
    def handler(**arguments: object) -> object:
        return inner(arguments)

    handler.__annotations__["return"] = returns
    return handler


def _with_dict_async(inner: Callable[[object], Any], returns: object) -> Callable[..., object]:
    async def handler(**arguments: object) -> object:
        return await inner(arguments)

    handler.__annotations__["return"] = returns
    return handler


def _returns(tool: Any) -> object:
    """Return the annotation of the function behind ``@beta_tool``: a compensation gets its classes, and no plain data."""
    try:
        return get_type_hints(tool.func).get("return", Any)
    except Exception:  # it has no function, or an annotation names something unknown here
        return Any


def runner_tools(run: Run, tools: Runtime | Iterable[Any]) -> list[BetaBuiltinFunctionTool]:
    """Return tools for ``client.beta.messages.tool_runner(tools=…)`` whose calls are calls of the run.

    ``tools`` are those of a program (``@beta_tool`` and similar), declared to the runtime by name, or a runtime with all
    its tools.
    """
    if isinstance(tools, Runtime):
        return [_Tool(run, schema) for schema in tools.schemas("anthropic")]
    return [_Tool(run, one.to_dict(), one.call, _returns(one)) for one in tools]


def runner_tools_async(run: AsyncRun, tools: AsyncRuntime | Iterable[Any]) -> list[BetaAsyncBuiltinFunctionTool]:
    """Do the same as ``runner_tools`` for the runner of an ``AsyncAnthropic`` client."""
    if isinstance(tools, AsyncRuntime):
        return [_AsyncTool(run, schema) for schema in tools.schemas("anthropic")]
    return [_AsyncTool(run, one.to_dict(), one.call, _returns(one)) for one in tools]


def until_done(runner: BetaToolRunner[Any], *, strict: bool = False) -> BetaMessage:
    """Return the runner's last message; raise ``Held`` as soon as a call waits for a person.

    The SDK's own ``runner.until_done()`` continues after such a call: the model is told, and the end of the run's block
    raises ``Held``. A tool of the runner that did not come from ``runner_tools`` is called unrecorded: a warning names
    it, or ``UsageError`` with ``strict``.
    """
    _look_at(runner, strict=strict)
    last: BetaMessage | None = None
    for message in runner:
        last = message
        held: list[Exception] = []
        before = _held.get()
        _held.set(held)
        try:
            runner.generate_tool_call_response()  # the runner caches it, so that no call runs twice
        finally:
            if _held.get() is held:
                _held.set(before)
        if held:
            raise held[0]
    assert last is not None, "a runner yields at least one message"
    return last


async def until_done_async(runner: BetaAsyncToolRunner[Any], *, strict: bool = False) -> BetaMessage:
    """Do the same as ``until_done`` for the runner of an ``AsyncAnthropic`` client."""
    _look_at(runner, strict=strict)
    last: BetaMessage | None = None
    async for message in runner:
        last = message
        held: list[Exception] = []
        before = _held.get()
        _held.set(held)
        try:
            await runner.generate_tool_call_response()
        finally:
            if _held.get() is held:
                _held.set(before)
        if held:
            raise held[0]
    assert last is not None, "a runner yields at least one message"
    return last


def _look_at(runner: Any, *, strict: bool) -> None:
    """Warn of the runner's tools that are not calls of a run, or raise with ``strict``."""
    held = {
        **runner._runnable_tools(),
        **getattr(runner, "_toolsets_by_family", {}),
    }  # there is no public way to see them
    for name in [name for name, one in held.items() if not isinstance(one, _Tool | _AsyncTool)]:
        text = f"tool {name} is called by the runner, and not recorded: it may be done twice and is never taken back"
        hint = "give the runner what runner_tools(run, tools) returns"
        if strict:
            raise UsageError(text, hint=hint)
        log.warning("%s; %s", text, hint)


def _arguments(input: Any) -> Mapping[str, Any] | str:
    """Return the input as it is: the run refuses what is not an object, which must not become a call without arguments."""
    arguments: Mapping[str, Any] | str = {} if input is None else input
    return arguments


def _result(answer: Answer) -> str:
    held = _held.get()
    if held is not None and answer.waits and answer.error is not None:
        held.append(answer.error)
    if answer.is_error:
        raise ToolError(answer.text)
    return answer.text


# ---- Messages


def _calls(message: Message | BetaMessage, handlers: Handlers | None) -> list[ToolCall]:
    known = handlers or {}
    if not hasattr(message, "content"):
        raise UsageError(
            f"{type(message).__name__} is no message of the model yet; nothing was run",
            hint="read a stream to its end and pass what it has become: `with client.messages.stream(...) as stream: ...`,"
            " then stream.get_final_message(). An awaitable must be awaited",
        )
    asked = [block for block in message.content if block.type == "tool_use"]
    if asked and message.stop_reason in _CUTS:  # half an argument can look like a whole one
        why = message.stop_reason or "it broke off"
        raise UsageError(f"the message was cut ({why}); its calls were not run", hint="raise max_tokens, or ask again")
    return [ToolCall(block.name, _arguments(block.input), block.id, handler=known.get(block.name)) for block in asked]


def _raise_held(answers: Sequence[Answer]) -> Sequence[Answer]:
    for answer in answers:
        if answer.waits and answer.error is not None:
            raise answer.error
    return answers


def _as_shown(calls: Sequence[ToolCall], answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers without what the model's schemas do not have; a tool with a handler is described by the program."""
    pairs = zip(calls, answers, strict=True)
    return [answer if call.handler is None else _without_repeat(answer, {}) for call, answer in pairs]


def _without_repeat(answer: Answer, schema: Mapping[str, Any]) -> Answer:
    error = answer.error
    if _REPEAT in schema.get("properties", ()) or not isinstance(error, Held | KeyConflict) or not error.may_repeat:
        return answer
    error.may_repeat = False
    return replace(answer, text=error.for_model())


def _told(message: Message | BetaMessage, text: str) -> list[dict[str, Any]]:
    """Return the model's last words, and what it is told before it may stop; empty: it may."""
    if not text:
        return []
    own, _ = _messages(message, (), ())
    return [*([own] if own["content"] else []), {"role": "user", "content": text}]


def _messages(
    message: Message | BetaMessage, calls: Sequence[ToolCall], answers: Sequence[Answer]
) -> list[dict[str, Any]]:
    blocks = [block.to_dict(mode="json", warnings=False) for block in message.content]
    content = [{name: value for name, value in block.items() if value is not None} for block in blocks]
    results = [
        {"type": "tool_result", "tool_use_id": call.tool_call_id, "content": answer.text}
        | ({"is_error": True} if answer.is_error else {})
        for call, answer in zip(calls, answers, strict=True)
    ]
    return [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
