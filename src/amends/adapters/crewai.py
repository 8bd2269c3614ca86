"""CrewAI: the tools of a crew run in the run that is open around ``kickoff``, each call at most once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from crewai.tools import BaseTool

from amends import Answer, AsyncRun, Run, UsageError, current_run

__all__ = ["amends_tools"]


def amends_tools(tools: Iterable[BaseTool], *, run: Run | AsyncRun | None = None) -> list[BaseTool]:
    """Return the same tools, each call of which runs at most once, in ``run`` or else in the current run.

    CrewAI cannot pause: the model is told that a call waits for a person, and the end of the run's block raises
    ``Held``. CrewAI's own cache is off for these tools, because it would survive a rollback. A call that fails, and is
    not made good, takes the run back when its block is left, unless ``rt.run(on_open_failure="commit")``.
    """
    return [_guarded(tool, run) for tool in tools]


def _guarded(tool: BaseTool, run: Run | AsyncRun | None) -> BaseTool:
    body: Callable[..., Any] = getattr(tool, "func", None) or tool._run  # made by the decorator, or a class
    schema = _schema_of(tool)

    def call(*args: Any, **kwargs: Any) -> Any:
        asked, returned = _named(tool, args, kwargs), _Returned()
        within = run or current_run()
        if not isinstance(within, Run):
            raise UsageError(
                f"the crew calls {tool.name} without await, and the run is async", hint="use Runtime, or akickoff"
            )
        answer = within.answer(
            tool.name, asked, handler=lambda **given: returned.keep(_driven(body(**given))), schema=schema
        )
        return returned.result_for(within.warned(answer))

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        asked, returned = _named(tool, args, kwargs), _Returned()
        within = run or current_run()
        if not isinstance(within, AsyncRun):
            return await asyncio.to_thread(call, *args, **kwargs)

        async def handler(**given: Any) -> Any:
            if inspect.iscoroutinefunction(body) or not hasattr(tool, "func"):
                return returned.keep(await tool._arun(**given))
            return returned.keep(await asyncio.to_thread(body, **given))

        return returned.result_for(within.warned(await within.answer(tool.name, asked, handler=handler, schema=schema)))

    copy: BaseTool = tool.model_copy(update={"cache_function": _never})
    if hasattr(tool, "func"):
        copy.func = call
    # A tool is a pydantic model, and these two are not fields of it.
    object.__setattr__(copy, "_run", call)
    object.__setattr__(copy, "_arun", call_async)
    return copy


class _Returned:
    """Keeps what the tool itself returned: the crew gets that object, not the recorded copy."""

    def __init__(self) -> None:
        self._value: Any = None

    def keep(self, value: Any) -> Any:
        self._value = value
        return value

    def result_for(self, answer: Answer) -> Any:
        return (self._value if self._value is not None else answer.value) if answer.status == "done" else answer.text


def _schema_of(tool: BaseTool) -> dict[str, Any] | None:
    """Return the schema by which a request in other words is the same request; None: an argument has no such schema."""
    try:
        made: dict[str, Any] = tool.args_schema.model_json_schema()
    except Exception:
        return None
    return made


def _named(tool: BaseTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the given arguments by name."""
    return {**dict(zip(tool.args_schema.model_fields, args, strict=False)), **kwargs}


def _driven(value: Any) -> Any:
    """Return the result of a body that may be async: CrewAI runs those itself when it calls a tool without await."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _never(*_: Any) -> bool:
    return False
