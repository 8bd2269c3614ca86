"""FastMCP servers: a middleware that puts every tool call of the server into the ledger.

The protocol knows no task, so a request is a run of its own, unless the client names one in ``_meta``
(``{"amends/run": "order-7"}``): then its calls are one run, which the tool ``end_run`` commits or takes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
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
from amends.errors import NoRun
from amends.visible import visible, visible_value

RUN_META: Final = "amends/run"
"""The key in ``_meta`` under which a client names the run that a request belongs to."""
THREAD_META: Final = "amends/thread"
"""The same for the conversation, which becomes a tag of the run."""
REPEAT: Final = "again_because"
WHY_AGAIN: Final = "Only if this very call was made before and is meant a second time: why."
END: Final = "end_run"
CAUSES_MAX: Final = 20
"""So far back is looked for what really happened in a tool."""

RunId = str | Callable[[str, Mapping[str, Any]], str]
Next = CallNext[CallToolRequestParams, ToolResult]


class AmendsMiddleware(Middleware):
    """Each call is written down first and done at most once; ``server.add_middleware(AmendsMiddleware(rt))``.

    ``run_id``: the run of a request, or what makes it of the tool's name and the arguments. ``notice``: a client that
    can ask its user is told that a call waits for approval; its answer decides nothing, the ledger is looked at again.
    ``repeats``: a model may say that it means a call once more, in an argument of its own; default: as the runtime says.
    ``options``: those of ``rt.run``. A tool that says ``readOnlyHint`` and is not declared is a read.
    """

    def __init__(
        self,
        rt: amends.AsyncRuntime,
        *,
        run_id: RunId | None = None,
        notice: bool = False,
        repeats: bool | None = None,
        **options: Any,
    ) -> None:
        self._rt, self._run_id, self._notice, self._repeats, self._options = rt, run_id, notice, repeats, options
        self._hinted: set[str] = set()
        _ = rt.schemas(repeats=repeats)  # raises where the runtime would not honour it

    async def on_call_tool(self, context: MiddlewareContext[CallToolRequestParams], call_next: Next) -> ToolResult:
        """The call, done at most once."""
        name = context.message.name
        asking = context.fastmcp_context
        tool = None if asking is None else await asking.fastmcp.get_tool(name)
        if name == END:
            return await call_next(context)
        if asking is not None and tool is None and parse_hashed_backend_name(name) is None:
            # A name that the model made up is nobody's to approve.
            raise NotFoundError(f"Unknown tool: {name!r}")
        self._take_hint(tool)
        request = _Request(self, context, call_next, tool)
        await self._once(request)
        if request.asked is None or not self._notice or asking is None or not _can_ask(asking):
            return request.result()
        if context.message.request_state is None and asking.request_context is not None:
            if asking.request_context.protocol_version >= _STATELESS:
                return _input_required(request)
            await asking.session.elicit_form(_words(request), _NOTHING)
            await self._once(request)
        return request.result()

    async def on_list_tools(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[Tool]]
    ) -> Sequence[Tool]:
        """The tools as a model sees them: with a word for a repeat, where it may ask for one."""
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
                await self._ask_left(run, await run.report(), ctx)
        except amends.RolledBack as back:
            return back.for_model()
        except amends.Error as error:
            raise ToolError(error.for_model()) from error
        return f"Committed: run {run_id}."

    async def _ask_left(self, run: amends.AsyncRun, report: amends.Report, ctx: Context) -> None:
        """What was accepted or held in earlier requests, asked for again: its body is the server's, and known here."""
        for call in report.calls:
            if call.state in ("held", "ready"):
                await run.answer(call.tool, call.args, handler=_served(ctx, call.tool))
        for child in report.children:
            await self._ask_left(run, child, ctx)

    def _take_hint(self, tool: Tool | None) -> None:
        """A tool of the server's own that says that it only reads is declared so, unless it is declared already."""
        if tool is None or tool.name in self._hinted or tool.annotations is None or not tool.annotations.read_only_hint:
            return
        self._hinted.add(tool.name)
        with suppress(amends.UsageError):
            self._rt.add(amends.declare(tool.name, kind="read"))

    async def _once(self, request: _Request) -> None:
        request.begin()
        if request.run_id is None and not _is_replay():
            async for info in self._rt.runs(request.waiting):
                request.run_id = info.id
                break
        try:
            async with self._rt.run(request.run_id, **request.options) as run:
                request.answer = await run.answer(request.tool, request.args, handler=request.body)
                request.leave(run.id)
        except amends.Error as error:
            request.left(error)


class _Request:
    """One ``tools/call``: the run it belongs to, and what the client is told in the end."""

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
        said = guard._run_id(self.tool, self.args) if callable(guard._run_id) else guard._run_id
        self.run_id = named or said or (context.message.request_state if guard._notice else None)
        tag = f"request:{_digest([self.tool, self.args, _principal()])[:32]}"
        self.waiting = f'tag:"{tag}" status:open'
        """Finds the run of the same request, which was made before and waits for a person since."""
        tags = [*guard._options.get("tags", ()), *([f"thread:{thread}"] if thread else []), *([] if named else [tag])]
        recover = {"recover": "wait"} if self._stays else {}
        self.options = {**recover, **guard._options, "tags": tags, "history": True}
        self.begin()

    def begin(self) -> None:
        """Forget what was answered before: it is asked again."""
        self.answer: amends.Answer | None = None
        self._failed: amends.Error | None = None
        self._came: ToolResult | Exception | None = None
        self._let_go: amends.Waiting | None = None

    @property
    def asked(self) -> amends.Approval | None:
        """The request for a person's yes that the call waits for."""
        error = None if self.answer is None else self.answer.error
        return error.approval if isinstance(error, amends.Held) else None

    async def body(self, /, **args: Any) -> Any:
        """The server's own execution; its error as the tool raised it, which the server has wrapped."""
        message = self._context.message.model_copy(update={"arguments": args})
        try:
            self._came = await self._call_next(self._context.copy(message=message))
        except Exception as error:
            self._came = error
            raise _behind(error) from error
        return _value_of(self._came)

    def leave(self, run_id: str) -> None:
        """Raise where the run goes on: the client has named it, or it waits for a person."""
        self.run_id = run_id
        if self._stays or (self.answer is not None and self.answer.status == "held"):
            self._let_go = amends.Waiting("the run goes on with the next request", run_id=run_id)
            raise self._let_go

    def left(self, error: amends.Error) -> None:
        """The run could not be opened, or not be left as it was meant to."""
        if error is not self._let_go:
            self._failed = error

    def result(self) -> ToolResult:
        """What the client is told: the tool's own result or error where there is one, else words for the model."""
        answer, came = self.answer, self._came
        if answer is None or (self._failed is not None and answer.status in ("done", "replayed", "staged")):
            assert self._failed is not None, "a request has an answer or a reason why not"
            return _said(self._failed.for_model(), is_error=True)
        if isinstance(came, Exception) and answer.status == "failed":
            raise came
        if isinstance(came, ToolResult) and answer.status in ("done", "failed"):
            return came
        if answer.status == "done" and self._declared is not None:  # its body did not run here: it is replayed
            return self._declared.convert_result(answer.value)
        if answer.status in ("done", "replayed"):
            return self._shaped(answer.text, answer.value)
        return self._shaped(answer.text, answer.text, is_error=answer.is_error)

    def _shaped(self, text: str, value: Any, *, is_error: bool = False) -> ToolResult:
        """Words, and the value in the shape that the tool's schema promises; where it has another, an error."""
        schema = None if self._declared is None else self._declared.output_schema
        if schema is None or is_error:
            return _said(text, is_error=is_error)
        if schema.get("x-fastmcp-wrap-result"):
            fits = value is not text or schema.get("properties", {}).get("result", {}).get("type") == "string"
            made = {"result": value}
        else:
            fits, made = isinstance(value, dict), value
        if not fits:
            return _said(text, is_error=True)
        meta = {"fastmcp": {"wrap_result": True}} if schema.get("x-fastmcp-wrap-result") else None
        return ToolResult(content=text, structured_content=made, meta=meta)


# ---- words and shapes ---------------------------------------------------------------------

_NOTHING: Final = {"type": "object", "properties": {}}
_STATELESS: Final = "2026-07-28"
"""From this version on a server cannot ask in the middle of a request: it answers that it needs an input."""


def _served(ctx: Context, name: str) -> Callable[..., Any]:
    """The server's own execution of one tool; what it is called with can be called anything."""

    async def body(**args: Any) -> Any:
        return _value_of(await ctx.fastmcp.call_tool(name, args, run_middleware=False))

    return body


def _repeatable(tool: Tool) -> Tool:
    shown = {**tool.parameters.get("properties", {}), REPEAT: {"type": "string", "description": WHY_AGAIN}}
    return tool.model_copy(update={"parameters": {**tool.parameters, "properties": shown}})


def _value_of(result: ToolResult) -> Any:
    """What is recorded: the tool's own value. Raises where the result is an error, or none yet."""
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
    """The error that the tool raised: an answer that was lost must not look like a failure."""
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
    said = None if asked is None else (asked.meta or {}).get(key)
    return None if said is None else str(said)


def _run_named(context: Context | None) -> str | None:
    """The run that the client has named; where clients log in, a name is its client's own."""
    named, principal = _meta(context, RUN_META), _principal()
    return named if named is None or principal is None else f"{named}@{_digest(principal)[:12]}"


def _principal() -> list[str | None] | None:
    """Who asks, where the server makes clients log in."""
    token = get_access_token()
    return None if token is None else [*principal_components(token)]


def _digest(said: Any) -> str:
    return sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def _is_replay() -> bool:
    """Whether the run is handed over by a replay: nobody looks for it in the ledger."""
    try:
        return bool(amends.current_run().awaits_opening)
    except NoRun:
        return False


def _can_ask(context: Context) -> bool:
    can = context.session.client_capabilities
    return can is not None and can.elicitation is not None


def _words(request: _Request) -> str:
    assert request.asked is not None, "a notice is about a request"
    args = ", ".join(f"{visible(name)}={visible_value(value)}" for name, value in request.asked.call.args.items())
    return (
        f"{visible(request.tool)}({args}) waits for a person's approval ({request.asked.id}). Approve or reject it there; "
        "what you answer here decides nothing, it only looks again."
    )


def _input_required(request: _Request) -> ToolResult:
    ask = ElicitRequest(params=ElicitRequestFormParams(message=_words(request), requested_schema=_NOTHING))
    return InputRequiredToolResult(InputRequiredResult(input_requests={"approval": ask}, request_state=request.run_id))


def _said(text: str, *, is_error: bool) -> ToolResult:
    return ToolResult(content=text, is_error=is_error)
