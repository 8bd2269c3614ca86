"""The framework's own execution of one tool call as a body, and an answer as the framework's own result."""

from __future__ import annotations

import functools
import inspect
import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from amends import Answer, NoEffect
from amends.errors import UnknownTool

Handled: TypeAlias = ToolMessage | Command[Any]

PAUSED: Final = "the tool has paused by itself; when the graph goes on it runs from its beginning"
_NOTHING: Final = object()
_PACKED: Final = "langgraph"
"""Marks a result that is no message: a ``Command``, as the graph's own checkpoints keep it."""
_SERDE: Final = JsonPlusSerializer()


class Body:
    """One call, done by the framework when amends lets it start."""

    def __init__(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> None:
        self._request, self._handler = request, handler
        self._seen = _Seen()
        self._said: Handled | None = None
        self.bubble: GraphBubbleUp | None = None
        """The pause, or the way out of its graph, that the tool itself took."""

    def run(self, /, **args: Any) -> Any:
        """The result as it is written down; raises what the tool raised, whatever the framework made of it."""
        try:
            return self._result(self._handler(self._watched(args)))
        except GraphBubbleUp as bubble:
            self.bubble = bubble
            raise NoEffect(PAUSED) from bubble

    async def arun(self, /, **args: Any) -> Any:
        """The same, awaited."""
        try:
            return self._result(await self._handler(self._watched(args)))
        except GraphBubbleUp as bubble:
            self.bubble = bubble
            raise NoEffect(PAUSED) from bubble

    def told(self, answer: Answer) -> Handled:
        """The answer as the framework's own result."""
        failed = isinstance(self._said, ToolMessage) and self._said.status == "error"
        if self._said is not None and answer.status == ("failed" if failed else "done"):
            return self._said
        if answer.status not in ("done", "replayed"):
            return self.message(answer.text, is_error=answer.is_error)
        if answer.status == "replayed" and getattr(answer.call, "tool_call_id", "") != self._request.tool_call["id"]:
            return self.message(answer.text)
        # The very same call again: the graph lost its result, or never had it. It looks as it would have then.
        if isinstance(answer.value, dict) and _PACKED in answer.value:
            unpacked: Handled = _SERDE.loads_typed((answer.value[_PACKED], b64decode(answer.value["data"])))
            return unpacked
        value = answer.value
        return self.message(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))

    def message(self, text: str, *, is_error: bool = False) -> ToolMessage:
        """What the model is told of this call."""
        call = self._request.tool_call
        return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error" if is_error else "success")

    def _watched(self, args: dict[str, Any]) -> ToolCallRequest:
        self._said, self._seen = None, _Seen()
        asked = self._request.override(tool_call={**self._request.tool_call, "args": args})
        return asked if asked.tool is None else asked.override(tool=self._seen.through(asked.tool))

    def _result(self, said: Any) -> Any:
        self._said = said
        if self._seen.error is not None:  # swallowed on its way up: what it means is not the framework's to say
            raise self._seen.error
        if not isinstance(said, ToolMessage):
            kind, data = _SERDE.dumps_typed(said)
            return {_PACKED: kind, "data": b64encode(data).decode()}
        if said.status == "error":
            raise (ToolException if self._seen.has_run else NoEffect)(str(said.content))
        return self._seen.value if _is_plain(self._seen.value) else said.content


class _Seen:
    """What a tool itself returned or raised, below all that the framework makes of it."""

    def __init__(self) -> None:
        self.has_run = False
        self.value: Any = _NOTHING
        self.error: Exception | None = None

    def through(self, tool: BaseTool) -> BaseTool:
        """The same tool, seen."""

        @functools.wraps(tool._run)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.has_run = True
            try:
                return self._took(tool, tool._run(*args, **kwargs))
            except Exception as error:
                self.error = error
                raise

        @functools.wraps(tool._arun)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            self.has_run = True
            try:
                return self._took(tool, await tool._arun(*args, **kwargs))
            except Exception as error:
                self.error = error
                raise

        copy = tool.model_copy()
        # A tool is a pydantic model, and these two are no fields of it.
        object.__setattr__(copy, "_run", run)
        object.__setattr__(copy, "_arun", arun)
        return copy

    def _took(self, tool: BaseTool, value: Any) -> Any:
        is_pair = tool.response_format == "content_and_artifact" and isinstance(value, tuple) and len(value) == 2
        self.value = value[0] if is_pair else value
        return value


def _is_plain(value: Any) -> bool:
    """Whether it can be written down as it is: what a compensation is handed."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def no_such_tool(request: ToolCallRequest) -> UnknownTool:
    """A name that the model made up is nobody's to approve; a tool that only the runtime has is not this agent's."""
    return UnknownTool(request.tool_call["name"], known=sorted(tool.name for tool in request.runtime.tools))


def reached(tool: BaseTool, *, is_async: bool) -> Callable[..., Any]:
    """A tool outside any graph, as a function of its arguments: to take back by, or to finish what was staged."""

    def call(**args: Any) -> Any:
        return tool.invoke(args)

    async def call_async(**args: Any) -> Any:
        return await tool.ainvoke(args)

    made: Callable[..., Any] | Callable[..., Awaitable[Any]] = call_async if is_async else call
    names = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in tool.args if name.isidentifier()]
    made.__name__ = tool.name
    made.__signature__ = inspect.Signature(names)  # type: ignore[union-attr]
    return made
