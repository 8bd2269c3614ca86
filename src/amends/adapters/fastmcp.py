"""FastMCP servers: a middleware that records every tool call of the server in the ledger.

The protocol has no notion of a longer task, so each request is a run of its own, unless the client names a run in
``_meta`` (``{"amends/run": "order-7"}``): then its calls are one run, which the tool ``end_run`` commits or rolls back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from math import ceil
from typing import Any, Final, Literal

from fastmcp import Context
from fastmcp.exceptions import NotFoundError, ToolError
from fastmcp.server.dependencies import get_access_token
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.providers.addressing import parse_hashed_backend_name
from fastmcp.tools import Tool, ToolResult
from fastmcp.tools.base import InputRequiredToolResult
from mcp.server.auth.provider import principal_components
from mcp_types import CallToolRequestParams, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, TextContent

import amends
from amends.errors import STILL_OPEN, NoRun
from amends.visible import visible, visible_value

RUN_META: Final = "amends/run"
"""The key in ``_meta`` under which a client names the run that a request belongs to."""
THREAD_META: Final = "amends/thread"
"""The key in ``_meta`` for the conversation, which becomes a tag of the run."""
REPEAT: Final = "again_because"
WHY_AGAIN: Final = "Only if this very call was made before and is meant a second time: why."
END: Final = "end_run"
CAUSES_MAX: Final = 20
"""How many causes of an error are searched for a timeout."""

WINDOW_S: Final = 3_600.0
"""For how long an identical request is answered from the record, unless the program says otherwise."""
WINDOW_S_MAX: Final = 10 * 366 * 86_400.0
ENDED: Final = ("committed", "rolled_back", "abandoned")

RunId = str | Callable[[str, Mapping[str, Any]], str]
Next = CallNext[CallToolRequestParams, ToolResult]


class AmendsMiddleware(Middleware):
    """Records each call first and runs it at most once: ``server.add_middleware(AmendsMiddleware(rt))``.

    - ``run_id``: the run of a request, or a function of the tool's name and the arguments that returns it.
    - ``notice``: tell a client that can ask its user when a call waits for approval. The user's answer decides nothing;
      the server then checks the ledger again.
    - ``repeats``: a model may repeat a call on purpose, with an extra argument. Default: the runtime's setting.
    - ``repeat_window``: for how many seconds an identical request of the same client, as after a lost answer, is answered
      from the record; a later one is a new run. 0: each request is a new run. Reads are always new.
    - ``name``: whose requests these are if clients do not log in. Default: the name of the server.
    - ``options``: those of ``rt.run``; ``requires`` is about the runs that a client names and ends. A call with an effect
      that failed, and was not made good when the client ends the run, takes it back, unless ``on_open_failure="commit"``.

    A tool with ``readOnlyHint`` that is not declared is a read.
    """

    def __init__(
        self,
        rt: amends.AsyncRuntime,
        *,
        run_id: RunId | None = None,
        notice: bool = False,
        repeats: bool | None = None,
        repeat_window: float = WINDOW_S,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self.window, self.name = _window(repeat_window), name
        self._rt, self._run_id, self._notice, self._repeats = rt, run_id, notice, repeats
        self._options: dict[str, Any] = {"on_open_failure": "rollback", **options}
        self._hinted: set[str] = set()
        _ = rt.schemas(repeats=repeats)  # raises if the runtime does not allow it

    async def on_call_tool(self, context: MiddlewareContext[CallToolRequestParams], call_next: Next) -> ToolResult:
        """Run the call at most once."""
        name = context.message.name
        asking = context.fastmcp_context
        tool = None if asking is None else await asking.fastmcp.get_tool(name)
        if name == END:
            return await call_next(context)
        if asking is not None and tool is None and parse_hashed_backend_name(name) is None:
            # Nobody should be asked to approve a name that the model made up.
            raise NotFoundError(f"Unknown tool: {name!r}")
        self._take_hint(tool)
        request = _Request(self, context, call_next, tool)
        await self._once(request)
        if request.asked is None or not self._notice or asking is None or not _can_ask(asking):
            return request.result()
        if context.message.request_state is None and asking.request_context is not None:
            if asking.request_context.protocol_version >= _STATELESS:
                return _input_required(request)
            await asking.session.elicit_form(_notice_text(request), _NOTHING)
            await self._once(request)
        return request.result()

    async def on_list_tools(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[Tool]]
    ) -> Sequence[Tool]:
        """Return the tools as a model sees them: with ``again_because`` where a call may be repeated."""
        tools = await call_next(context)
        return [_repeatable(one) if one.name != END and self._offers(one.name) else one for one in tools]

    def _offers(self, tool: str) -> bool:
        return self._repeats is not False and self._rt.may_repeat(tool)

    async def end_run(self, ctx: Context, how: Literal["commit", "rollback"], why: str = "") -> str:
        """End the task that the earlier calls belong to: commit it, or take everything back."""
        run_id = _run_named(ctx)
        if run_id is None:
            raise ToolError(f'There is nothing to end: this request names no run in _meta ("{RUN_META}").')
        try:
            async with self._rt.run(run_id, history=True, **self._options) as run:
                if how == "rollback":
                    await run.rollback(why or "asked for by the client")
                await self._request_again(run, await run.report(), ctx)
        except amends.Error as error:
            if isinstance(error, amends.RolledBack) and how == "rollback":
                return error.for_model()
            raise ToolError(error.for_model()) from error
        return f"Committed: run {run_id}."

    async def _request_again(self, run: amends.AsyncRun, report: amends.Report, ctx: Context) -> None:
        """Request the staged and held calls of earlier requests again: only the server has their bodies."""
        for call in report.calls:
            if call.state in ("held", "ready"):
                await run.answer(call.tool, call.args, handler=_served(ctx, call.tool))
        for child in report.children:
            await self._request_again(run, child, ctx)

    def _take_hint(self, tool: Tool | None) -> None:
        """Declare a tool of the server with ``readOnlyHint`` as a read, unless it is already declared."""
        if tool is None or tool.name in self._hinted or tool.annotations is None or not tool.annotations.read_only_hint:
            return
        self._hinted.add(tool.name)
        with suppress(amends.UsageError):
            self._rt.add(amends.declare(tool.name, kind="read"))

    async def _once(self, request: _Request) -> None:
        request.begin()
        if request.run_id is None and not _is_replay():
            newest = await _first(self._rt.runs(request.same))
            is_kept = newest is not None and _is_recent(newest, request.window)
            if newest is not None and not is_kept and request.window:
                is_kept = await _first(self._rt.runs(f"{request.same} age:<{request.window}s")) is not None
            if request.window or is_kept:
                request.run_id = _next_id(None if newest is None else newest.id, request.tag, is_kept=is_kept)
        try:
            async with self._rt.run(request.run_id, **request.options) as run:
                request.answer = await run.answer(request.tool, request.args, handler=request.body)
                request.leave(run.id)
        except amends.Error as error:
            request.left(error)


class _Request:
    """One ``tools/call``: the run it belongs to, and the result for the client."""

    def __init__(
        self,
        guard: AmendsMiddleware,
        context: MiddlewareContext[CallToolRequestParams],
        call_next: Next,
        declared: Tool | None,
    ) -> None:
        self._context, self._call_next, self._declared = context, call_next, declared
        self.tool, self.args = context.message.name, dict(context.message.arguments or {})
        asking = context.fastmcp_context
        named, thread = _run_named(asking), _meta(asking, THREAD_META)
        self._stays = named is not None
        chosen = guard._run_id(self.tool, self.args) if callable(guard._run_id) else guard._run_id
        self.run_id = named or chosen or (context.message.request_state if guard._notice else None)
        named_as = guard.name if guard.name is not None else "" if asking is None else asking.fastmcp.name
        is_new = self.run_id is not None or guard._rt.kind_of(self.tool) == "read"
        self.window = 0 if is_new else guard.window
        tag = (
            f"{'request' if self.window else 'asked'}:{_digest([self.tool, self.args, _principal() or named_as])[:32]}"
        )
        self.tag, self.same = tag, f'tag:"{tag}"'
        """A filter that finds the runs of the same earlier request."""
        tags = [*guard._options.get("tags", ()), *([f"thread:{thread}"] if thread else []), *([] if named else [tag])]
        recover = {"recover": "wait"} if self._stays else {}
        # In a run of one request nothing stands beside a failure; rolled back, the run is open for the next try.
        ends = {} if self._stays else {"requires": None, "on_open_failure": "rollback"}
        self.options = {**recover, **guard._options, **ends, "tags": tags, "history": True}
        self._warns = self._stays and guard._options["on_open_failure"] == "rollback"
        self.begin()

    def begin(self) -> None:
        """Clear the earlier answer, before the call is requested again."""
        self.answer: amends.Answer | None = None
        self._failed: amends.Error | None = None
        self._outcome: ToolResult | Exception | None = None
        self._released: amends.Waiting | None = None

    @property
    def asked(self) -> amends.Approval | None:
        """Return the request for approval that the call waits for."""
        error = None if self.answer is None else self.answer.error
        return error.approval if isinstance(error, amends.Held) else None

    async def body(self, /, **args: Any) -> Any:
        """Run the tool on the server; raise its own error, which the server has wrapped."""
        message = self._context.message.model_copy(update={"arguments": args})
        try:
            self._outcome = await self._call_next(self._context.copy(message=message))
        except Exception as error:
            self._outcome = error
            raise _behind(error) from error
        return _value_of(self._outcome)

    def leave(self, run_id: str) -> None:
        """Raise if the run continues with a later request: the client has named it, or it waits for a person."""
        self.run_id = run_id
        if self._stays or (self.answer is not None and self.answer.status == "held"):
            self._released = amends.Waiting("the run continues with the next request", run_id=run_id)
            raise self._released

    def left(self, error: amends.Error) -> None:
        """Note the error with which the run could not be opened or closed."""
        if error is not self._released:
            self._failed = error

    def result(self) -> ToolResult:
        """Return the tool's own result, or else a text for the model; raise the tool's own error."""
        answer, outcome = self.answer, self._outcome
        if answer is None or (self._failed is not None and answer.status in ("done", "replayed", "staged")):
            assert self._failed is not None, "a request has an answer or an error"
            return _text_result(self._failed.for_model(), is_error=True)
        if isinstance(outcome, Exception) and answer.status == "failed":
            if self._warns:
                raise ToolError(f"{outcome}. {STILL_OPEN}") from outcome
            raise outcome
        if isinstance(outcome, ToolResult) and answer.status in ("done", "failed"):
            return outcome
        if answer.status == "done" and self._declared is not None:  # a replay: its body did not run here
            return self._declared.convert_result(answer.value)
        if answer.status in ("done", "replayed"):
            return self._shaped(answer.text, answer.value)
        return self._shaped(answer.text, answer.text, is_error=answer.is_error)

    def _shaped(self, text: str, value: Any, *, is_error: bool = False) -> ToolResult:
        """Return a text, and the value in the shape of the tool's output schema; an error if it does not fit."""
        schema = None if self._declared is None else self._declared.output_schema
        if schema is None or is_error:
            return _text_result(text, is_error=is_error)
        if schema.get("x-fastmcp-wrap-result"):
            fits = value is not text or schema.get("properties", {}).get("result", {}).get("type") == "string"
            made = {"result": value}
        else:
            fits, made = isinstance(value, dict), value
        if not fits:
            return _text_result(text, is_error=True)
        meta = {"fastmcp": {"wrap_result": True}} if schema.get("x-fastmcp-wrap-result") else None
        return ToolResult(content=text, structured_content=made, meta=meta)


# ---- Texts and shapes


def _window(seconds: object) -> int:
    """Return for how many seconds a run's record answers an identical request; 0: it does not."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < WINDOW_S_MAX:
        raise amends.UsageError(
            f"repeat_window is {seconds!r}; it is a number of seconds",
            hint="3600 is the default; 0: each request is new",
        )
    return ceil(seconds)


def _is_recent(run: amends.RunInfo, window: int) -> bool:
    """Return whether the run has not ended, or within the window: its client may have waited as long for the answer."""
    if run.state not in ENDED or run.closed_at is None:
        return run.state not in ENDED
    return abs((datetime.now(UTC) - run.closed_at).total_seconds()) < window


def _next_id(newest: str | None, tag: str, *, is_kept: bool) -> str:
    """Return the run of a request: that of the newest identical one, if it counts, else the one after it.

    The id is computed and not made up: of two identical requests at once, the second finds the run of the first.
    """
    if newest is not None and is_kept:
        return newest
    stem = f"{tag.replace(':', '-')}-"
    number = 0 if newest is None else int(newest.removeprefix(stem))
    return f"{stem}{number + 1}"


async def _first(found: Any) -> Any:
    async for one in found:
        return one
    return None


_NOTHING: Final = {"type": "object", "properties": {}}
_STATELESS: Final = "2026-07-28"
"""From this protocol version on, a server cannot ask during a request: its response says that it needs an input."""


def _served(ctx: Context, name: str) -> Callable[..., Any]:
    """Return a body that runs one tool on the server. It is a closure, so that a tool's argument can have any name."""

    async def body(**args: Any) -> Any:
        return _value_of(await ctx.fastmcp.call_tool(name, args, run_middleware=False))

    return body


def _repeatable(tool: Tool) -> Tool:
    shown = {**tool.parameters.get("properties", {}), REPEAT: {"type": "string", "description": WHY_AGAIN}}
    return tool.model_copy(update={"parameters": {**tool.parameters, "properties": shown}})


def _value_of(result: ToolResult) -> Any:
    """Return the tool's own value, which is recorded; raise if the result is an error, or asks for an input."""
    if isinstance(result, InputRequiredToolResult):
        raise amends.NoEffect("the tool itself asked the client for an input first")
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error:
        raise ToolError(text)
    if result.structured_content is None:
        return text
    is_wrapped = ((result.meta or {}).get("fastmcp") or {}).get("wrap_result")
    return result.structured_content["result"] if is_wrapped else result.structured_content


def _behind(error: Exception) -> Exception:
    """Return the error that the tool raised. A timeout, after which the outcome is unknown, must not look like a failure."""
    found: BaseException = error
    for _ in range(CAUSES_MAX):
        below = found.__cause__ or found.__context__
        if below is None or not isinstance(below, Exception):
            break
        found = below
        if isinstance(found, TimeoutError):
            return found
    cause = error.__cause__
    return cause if isinstance(cause, Exception) else error


def _meta(context: Context | None, key: str) -> str | None:
    asked = None if context is None else context.request_context
    value = None if asked is None else (asked.meta or {}).get(key)
    return None if value is None else str(value)


def _run_named(context: Context | None) -> str | None:
    """Return the run that the client has named; if clients log in, each has its own names."""
    named, principal = _meta(context, RUN_META), _principal()
    return named if named is None or principal is None else f"{named}@{_digest(principal)[:12]}"


def _principal() -> list[str | None] | None:
    """Return who the client is, if the server makes clients log in."""
    token = get_access_token()
    return None if token is None else [*principal_components(token)]


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _is_replay() -> bool:
    """Return whether this is a replay, which supplies the run, so that the ledger is not searched."""
    try:
        return bool(amends.current_run().awaits_opening)
    except NoRun:
        return False


def _can_ask(context: Context) -> bool:
    can = context.session.client_capabilities
    return can is not None and can.elicitation is not None


def _notice_text(request: _Request) -> str:
    assert request.asked is not None, "only a held call has a notice"
    args = ", ".join(f"{visible(name)}={visible_value(value)}" for name, value in request.asked.call.args.items())
    return (
        f"{visible(request.tool)}({args}) waits for a person's approval ({request.asked.id}). Approve or reject it there; "
        "your answer here decides nothing, it only makes the server check again."
    )


def _input_required(request: _Request) -> ToolResult:
    ask = ElicitRequest(params=ElicitRequestFormParams(message=_notice_text(request), requested_schema=_NOTHING))
    return InputRequiredToolResult(InputRequiredResult(input_requests={"approval": ask}, request_state=request.run_id))


def _text_result(text: str, *, is_error: bool) -> ToolResult:
    return ToolResult(content=text, is_error=is_error)
