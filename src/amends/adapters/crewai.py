"""CrewAI: a crew's tools go through the run that is open around ``kickoff``, whatever the crew retries."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from crewai.tools import BaseTool

from amends import Answer, AsyncRun, Run, UsageError, current_run

__all__ = ["amends_tools"]


def amends_tools(tools: Iterable[BaseTool], *, run: Run | AsyncRun | None = None) -> list[BaseTool]:
    """The same tools, each call of which is done at most once in ``run``, or in the run that is open when it is made.

    CrewAI has no pause: a call that waits for a person is told to the model, and the end of the run's block raises
    ``Held``. Its own cache is off for these tools: it would outlive a rollback.
    """
    return [_guarded(tool, run) for tool in tools]


def _guarded(tool: BaseTool, run: Run | AsyncRun | None) -> BaseTool:
    body: Callable[..., Any] = getattr(tool, "func", None) or tool._run  # what the decorator made, or a class

    def call(*args: Any, **kwargs: Any) -> Any:
        asked, said = _named(tool, args, kwargs), _Said()
        within = run or current_run()
        if not isinstance(within, Run):
            raise UsageError(f"{tool.name} is called blocking, and the run is async", hint="use Runtime, or akickoff")
        return said.told(within.answer(tool.name, asked, handler=lambda **given: said.result(_driven(body(**given)))))

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        asked, said = _named(tool, args, kwargs), _Said()
        within = run or current_run()
        if not isinstance(within, AsyncRun):
            return await asyncio.to_thread(call, *args, **kwargs)

        async def handler(**given: Any) -> Any:
            if inspect.iscoroutinefunction(body) or not hasattr(tool, "func"):
                return said.result(await tool._arun(**given))
            return said.result(await asyncio.to_thread(body, **given))

        return said.told(await within.answer(tool.name, asked, handler=handler))

    copy: BaseTool = tool.model_copy(update={"cache_function": _never})
    if hasattr(tool, "func"):
        copy.func = call
    # A tool is a pydantic model, and these two are no fields of it.
    object.__setattr__(copy, "_run", call)
    object.__setattr__(copy, "_arun", call_async)
    return copy


class _Said:
    """What the tool itself returned: the crew gets that very object, and not what was written down of it."""

    def __init__(self) -> None:
        self._value: Any = None

    def result(self, value: Any) -> Any:
        self._value = value
        return value

    def told(self, answer: Answer) -> Any:
        return (self._value if self._value is not None else answer.value) if answer.status == "done" else answer.text


def _named(tool: BaseTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; those that were not given are not the call's."""
    return {**dict(zip(tool.args_schema.model_fields, args, strict=False)), **kwargs}


def _driven(value: Any) -> Any:
    """The result of a body that may be async: CrewAI drives those itself when it calls tools blocking."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _never(*_: Any) -> bool:
    return False
