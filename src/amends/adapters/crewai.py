"""CrewAI: the tools of a crew run in the run that is open around ``kickoff``, each call at most once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, get_type_hints

import crewai.hooks
from crewai import Agent, Crew
from crewai.hooks import get_before_tool_call_hooks, register_before_tool_call_hook
from crewai.tools import BaseTool

from amends import Answer, AsyncRun, Run, UsageError, current_call, current_run
from amends.adapters import agents_run_by
from amends.errors import OUTCOME, NoRun, ToolFailed
from amends.idempotency import check_result
from amends.visible import visible_log

__all__ = ["amends_tools"]

log = visible_log("amends")

GUARDED: Final = "_amends_guarded"
"""Marks a tool as guarded; its value says whether others beside it are refused."""


def amends_tools(
    tools: Iterable[BaseTool], *, run: Run | AsyncRun | None = None, strict: bool = False
) -> list[BaseTool]:
    """Return the same tools, each call of which runs at most once, in ``run`` or else in the current run.

    CrewAI cannot pause: the model is told that a call waits for a person, and the end of the run's block raises
    ``Held``. CrewAI's own cache is off for these tools, because it would survive a rollback. A call that fails, and is
    not made good, takes the run back when its block is left, unless ``rt.run(on_open_failure="commit")``.

    A tool whose function only runs agents or crews with such tools is an agent: it works in a child run. Other tools of
    the crew are named in a warning; with ``strict`` the kickoff raises ``UsageError``, before anything runs.
    """
    _watch()
    return [_guarded(tool, run, strict=strict) for tool in tools]


def _guarded(tool: BaseTool, run: Run | AsyncRun | None, *, strict: bool) -> BaseTool:
    if _is_guarded(tool):
        return tool
    tool = _asked_once(tool)
    body: Callable[..., Any] = getattr(tool, "func", None) or tool._run  # made by the decorator, or a class
    schema, returns, loop = _schema_of(tool), _hint_of(body), _loop_here()
    is_agent = bool(agents_run_by(getattr(tool, "func", None), _has_guarded_tools))

    def call(*args: Any, **kwargs: Any) -> Any:
        asked, returned = _named(tool, args, kwargs), _Returned(tool)
        within = run or current_run()
        if not isinstance(within, Run):  # an async crew calls its tools in threads, too
            return _on(loop, tool.name, lambda: call_async(*args, **kwargs))

        def handler(**given: Any) -> Any:
            return returned.keep(_driven(body(**given)))

        handler.__annotations__["return"] = returns
        answer = within.answer(tool.name, asked, handler=handler, schema=schema, agent=is_agent)
        return returned.result_for(within.warned(answer))

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        asked, returned = _named(tool, args, kwargs), _Returned(tool)
        within = run or current_run()
        if not isinstance(within, AsyncRun):
            return await asyncio.to_thread(call, *args, **kwargs)

        async def handler(**given: Any) -> Any:
            if inspect.iscoroutinefunction(body) or not hasattr(tool, "func"):
                return returned.keep(await tool._arun(**given))
            return returned.keep(await asyncio.to_thread(body, **given))

        handler.__annotations__["return"] = returns
        answer = await within.answer(tool.name, asked, handler=handler, schema=schema, agent=is_agent)
        return returned.result_for(within.warned(answer))

    copy: BaseTool = tool.model_copy(update={"cache_function": _never})
    if hasattr(tool, "func"):
        copy.func = call
    # A tool is a pydantic model, and these are not fields of it.
    object.__setattr__(copy, "_run", call)
    object.__setattr__(copy, "_arun", call_async)
    object.__setattr__(copy, GUARDED, strict)
    return copy


class _Returned:
    """Keeps what the tool itself returned: the crew gets that object, not the recorded copy."""

    def __init__(self, tool: BaseTool) -> None:
        self._is_remote = hasattr(tool, "_client_factory")
        self._value: Any = None
        self._failure: Any = None

    def keep(self, value: Any) -> Any:
        """Return a result; raise for a ``ToolFailure``, and for what a guarded MCP server has not executed."""
        if type(value).__name__ == "ToolFailure" and hasattr(value, "as_agent_message"):
            self._failure = value
            try:
                failed: Any = current_call()
            except NoRun:  # an agent is no call
                failed = None
            raise ToolFailed(value.as_agent_message(), call=failed, type_name="ToolFailure")
        if self._is_remote and isinstance(value, str):  # the client has joined the texts of the server
            check_result([line for line in value.splitlines() if OUTCOME in line])
        self._value = value
        return value

    def result_for(self, answer: Answer) -> Any:
        """Return the answer as the crew gets it."""
        if self._failure is not None and answer.status == "failed":
            return self._failure.model_copy(update={"message": answer.text, "code": None})
        return (self._value if self._value is not None else answer.value) if answer.status == "done" else answer.text


def _asked_once(tool: BaseTool) -> BaseTool:
    """Return a tool of an MCP server without the repetitions of its client; raise ``UsageError`` if it cannot be.

    After a time-out the client would call the server again, inside one call of amends.
    """
    if type(tool).__name__ == "MCPToolWrapper":
        raise UsageError(
            f"{tool.name} repeats its calls by itself, and returns errors as if they were results",
            hint="give the agent the MCP server as a configuration (MCPServerHTTP, MCPServerStdio), not as a URL",
        )
    factory = getattr(tool, "_client_factory", None)
    if factory is None:
        return tool

    def once() -> Any:
        client = factory()
        client.max_retries = 1
        return client

    copy: BaseTool = tool.model_copy()
    copy._client_factory = once
    return copy


# ---- What else the crew holds


def _is_guarded(tool: object) -> bool:
    return hasattr(tool, GUARDED)


def _has_guarded_tools(value: object) -> bool:
    """Return whether this is an agent or a crew all of whose tools are guarded."""
    return isinstance(value, Agent | Crew) and not list(_unguarded_of(value))


def _unguarded_of(value: Agent | Crew) -> Iterator[str]:
    """Yield the names of the tools by which an agent or a crew can go past amends."""
    for agent in _agents_of(value):
        yield from (tool.name for tool in agent.tools or () if not _is_guarded(tool) and not _is_own(tool))
        yield from (f"the MCP server {getattr(one, 'url', None) or one}" for one in getattr(agent, "mcps", None) or ())
        yield from (f"the app {one}" for one in getattr(agent, "apps", None) or ())
    for task in getattr(value, "tasks", ()):
        yield from (tool.name for tool in task.tools or () if not _is_guarded(tool) and not _is_own(tool))


def _agents_of(value: Agent | Crew) -> list[Any]:
    if not isinstance(value, Crew):
        return [value]
    return [*value.agents, *([] if value.manager_agent is None else [value.manager_agent])]


def _is_own(tool: object) -> bool:
    """Return whether this is a tool by which CrewAI itself works: delegation, questions to a coworker, memory."""
    module = type(tool).__module__
    return module.startswith("crewai.tools.") and "mcp" not in module and type(tool).__name__ != "Tool"


def _is_strict(value: Agent | Crew) -> bool:
    held = [tool for agent in _agents_of(value) for tool in agent.tools or ()]
    held += [tool for task in getattr(value, "tasks", ()) for tool in task.tools or ()]
    return any(getattr(tool, GUARDED, False) for tool in held)


def _watch() -> None:
    """Look at every crew that starts, and at every call of a tool; a program may have cleared the hooks meanwhile."""
    if _before_call not in get_before_tool_call_hooks():
        register_before_tool_call_hook(_before_call)
    try:
        from crewai.hooks.dispatch import InterceptionPoint, get_global_hook_list
    except ImportError:  # the first versions have no such hook: there the calls are all that is seen
        return
    hooks = get_global_hook_list(InterceptionPoint.EXECUTION_START)
    if _at_start not in hooks:
        hooks.append(_at_start)


def _at_start(context: Any) -> None:
    """Warn of the tools of a crew that are not guarded, or refuse the kickoff."""
    crew = context.crew
    if not isinstance(crew, Crew) or not (_is_in_run() or _is_strict(crew)):
        return
    for name in _unguarded_of(crew):
        if _is_strict(crew):
            raise _refusal(f"amends cannot record {name}: it is not from amends_tools")
        _warn(name)


def _before_call(context: Any) -> bool | None:
    """Warn of a call that is not guarded, or block it: some tools are made only when an agent begins."""
    tool = getattr(context.tool, "_original_tool", None) or context.tool
    if tool is None or _is_guarded(tool) or _is_own(tool) or not _is_in_run():
        return None
    holder = context.crew if isinstance(context.crew, Crew) else context.agent
    if isinstance(holder, Agent | Crew) and _is_strict(holder):
        log.error("%s was not called: it is not from amends_tools, and strict=True refuses it", tool.name)
        return False
    _warn(tool.name)
    return None


def _is_in_run() -> bool:
    with suppress(NoRun):
        return current_run() is not None
    return False


def _refusal(text: str) -> UsageError:
    """Return an error that the framework lets out of a hook: every other one it swallows."""
    refused: type[UsageError] = type("UsageError", (UsageError, crewai.hooks.HookAborted), {})
    return refused(text, hint="pass it to amends_tools, or leave strict=True away")


_warned: set[str] = set()


def _warn(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        log.warning(
            "amends cannot record %s: it is not from amends_tools. What it does is not in the ledger, may be done twice and "
            "is never taken back",
            name,
        )


# ---- One call


def _hint_of(body: Callable[..., Any]) -> Any:
    """Return what a tool's function is annotated to return: a compensation gets its result in that class."""
    try:
        return get_type_hints(body).get("return", Any)
    except Exception:  # an annotation that names something unknown here
        return Any


def _schema_of(tool: BaseTool) -> dict[str, Any] | None:
    """Return the schema by which a request in other words is the same request; None: an argument has no such schema."""
    try:
        made: dict[str, Any] = tool.args_schema.model_json_schema()
    except Exception:
        return None
    return made


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _on(loop: asyncio.AbstractEventLoop | None, tool: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a call of an async run on the loop of that run, from a thread of the framework."""
    if loop is None or not loop.is_running() or _loop_here() is not None:
        raise UsageError(
            f"the crew calls {tool} without await, and the run is async",
            hint="use Runtime; or call amends_tools inside the coroutine that awaits akickoff or kickoff_async",
        )
    return asyncio.run_coroutine_threadsafe(work(), loop).result()


def _named(tool: BaseTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the given arguments by name."""
    return {**dict(zip(tool.args_schema.model_fields, args, strict=False)), **kwargs}


def _driven(value: Any) -> Any:
    """Return the result of a body that may be async: CrewAI runs those itself when it calls a tool without await."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _never(*_: Any) -> bool:
    return False
