"""FastMCP servers: a middleware that records every tool call of the server in the ledger.

The protocol has no notion of a longer task, so each request is a run of its own, unless the client names a run in
``_meta`` (``{"amends/run": "order-7"}``): then its calls are one run, which the tool ``end_run`` commits or rolls back.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from inspect import signature
from re import fullmatch
from typing import Any, Final, Literal, get_args

from fastmcp import Context, FastMCP
from fastmcp.exceptions import NotFoundError, ToolError
from fastmcp.server.dependencies import get_access_token, without_injected_parameters
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.middleware.error_handling import RetryMiddleware
from fastmcp.server.providers.addressing import parse_hashed_backend_name
from fastmcp.server.providers.fastmcp_provider import FastMCPProviderTool
from fastmcp.tools import Tool, ToolResult
from fastmcp.tools.base import InputRequiredToolResult
from fastmcp.tools.function_tool import FunctionTool
from fastmcp.utilities.types import Audio, File, Image
from mcp.server.auth.provider import principal_components
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, func_metadata
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    TextContent,
)
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

import amends
from amends.adapters import in_order, mcp_runs
from amends.errors import STILL_OPEN
from amends.idempotency import ForClient, check_result, outcome_for_client, serving

RUN_META: Final = mcp_runs.RUN_META
"""The key in ``_meta`` under which a client names the run that a request belongs to."""
THREAD_META: Final = mcp_runs.THREAD_META
"""The key in ``_meta`` for the conversation, which becomes a tag of the run."""
CAUSES_MAX: Final = 20
"""How many causes of an error are searched for a timeout."""

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
        repeat_window: float = mcp_runs.WINDOW_S,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self.window, self.name = mcp_runs.window_of(repeat_window, is_named=run_id is not None), name
        self._rt, self._run_id, self._notice, self._repeats = rt, run_id, notice, repeats
        self._options: dict[str, Any] = {"on_open_failure": "rollback", **options}
        self._known: set[str] = set()
        self._shapes: dict[str, tuple[Any, type[ArgModelBase] | None]] = {}
        _ = rt.schemas(repeats=repeats)  # raises if the runtime does not allow it

    async def on_call_tool(self, context: MiddlewareContext[CallToolRequestParams], call_next: Next) -> ToolResult:
        """Run the call at most once."""
        with serving():
            return await self._answer(context, call_next)

    async def _answer(self, context: MiddlewareContext[CallToolRequestParams], call_next: Next) -> ToolResult:
        name = context.message.name
        asking = context.fastmcp_context
        tool = None if asking is None else await asking.fastmcp.get_tool(name)
        if name == mcp_runs.END:
            return await call_next(context)
        if asking is not None and tool is None and parse_hashed_backend_name(name) is None:
            # Nobody should be asked to approve a name that the model made up.
            raise NotFoundError(f"Unknown tool: {name!r}")
        self._learn(tool, None if asking is None else asking.fastmcp)
        if asking is not None and self._rt.kind_of(name) != "read":
            await self._refuse_retries(asking.fastmcp, tool)
        request = _Request(self, context, call_next, tool)
        await self._once(request)
        if request.asked is None or not self._notice or asking is None or not _can_ask(asking):
            return request.result()
        if context.message.request_state is None and asking.request_context is not None:
            if asking.request_context.protocol_version >= mcp_runs.STATELESS:
                return _input_required(request)
            await asking.session.elicit_form(mcp_runs.notice_text(request.tool, request.asked), mcp_runs.NOTHING)
            await self._once(request)
        return request.result()

    async def on_list_tools(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[Tool]]
    ) -> Sequence[Tool]:
        """Return the tools as a model sees them: with ``again_because`` where a call may be repeated."""
        tools = await call_next(context)
        return [_repeatable(one) if one.name != mcp_runs.END and self._offers(one.name) else one for one in tools]

    def _offers(self, tool: str) -> bool:
        return self._repeats is not False and self._rt.may_repeat(tool)

    async def end_run(self, ctx: Context, how: Literal["commit", "rollback"], why: str = "") -> str:
        """End the task that the earlier calls belong to: commit it, or take everything back."""
        run_id = _run_named(ctx)
        if run_id is None:
            raise ToolError(f'There is nothing to end: this request names no run in _meta ("{RUN_META}").')
        try:
            async with self._rt.run(run_id, history=True, **self._options) as run:
                report = await run.report()
                await self._learn_all(report, ctx.fastmcp)  # they may be of a process that is gone
                if how == "rollback":
                    await run.rollback(why or "asked for by the client")
                await self._request_again(run, report, ctx)
        except amends.Error as error:
            if isinstance(error, amends.RolledBack) and how == "rollback":
                return error.for_model()
            raise ToolError(error.for_model()) from error
        return f"Committed: run {run_id}."

    async def _request_again(self, run: amends.AsyncRun, report: amends.Report, ctx: Context) -> None:
        """Request the staged and held calls of earlier requests again: only the server has their bodies."""
        for call in report.calls:
            if call.state in ("held", "ready"):
                await run.answer(call.tool, call.args, handler=_served(ctx.fastmcp, call.tool))
        for child in report.children:
            await self._request_again(run, child, ctx)

    def bound(self, tool: Tool | None, args: dict[str, Any], *, strict: bool) -> dict[str, Any]:
        """Return the arguments in the one form in which they are recorded, whatever the client left out or spelled.

        ``strict``: the server takes no text for a number.
        """
        if tool is None:
            return args
        own = tool.parameters.get("properties", {})
        again = (
            {mcp_runs.REPEAT: args.pop(mcp_runs.REPEAT)}
            if mcp_runs.REPEAT in args and mcp_runs.REPEAT not in own
            else {}
        )
        made = None
        if type(tool) is FunctionTool and not strict:
            fn, shape = self._shapes.get(tool.name, (None, None))
            if fn is not tool.fn:
                _, shape = self._shapes[tool.name] = tool.fn, _shape_of(tool)
            made = None if shape is None else _bound_by(shape, args)
        if made is None:
            made = _filled(tool.parameters, args, tool.parameters, strict=strict)
        return {**made, **again}

    async def _refuse_retries(self, server: FastMCP, tool: Tool | None) -> None:
        """Raise if a middleware behind this one would call the tool again inside one recorded call."""
        behind = server.middleware[server.middleware.index(self) + 1 :] if self in server.middleware else []
        for _ in range(DEPTH_MAX):
            if not isinstance(tool, FastMCPProviderTool):
                break
            inner: FastMCP = tool._server
            behind = [*behind, *inner.middleware]
            tool = await inner.get_tool(tool._original_name or tool.name)
        found = [type(one).__name__ for one in behind if isinstance(one, RetryMiddleware)]
        if found:
            raise ToolError(
                f"{found[0]} is behind AmendsMiddleware, where it repeats the effects of one call: nothing was done. The "
                "server must add it before AmendsMiddleware, or declare the tool with idempotent=True and retry=..."
            )

    def _learn(self, tool: Tool | None, server: FastMCP | None) -> None:
        """Tell the runtime what the server says of a tool, when it is first seen.

        One with ``readOnlyHint`` is a read, unless it is already declared. One that needs no request gets a body, so that
        a staged or approved call can run after its request has ended, and its compensation gets what it returned.
        """
        if tool is None or tool.name in self._known:
            return
        self._known.add(tool.name)
        if tool.annotations is not None and tool.annotations.read_only_hint:
            with suppress(amends.UsageError):
                self._rt.add(amends.declare(tool.name, kind="read"))
        if server is not None and type(tool) is FunctionTool and not _needs_request(tool):
            self._rt.reach({tool.name: _served(server, tool)}, described=False)

    async def _learn_all(self, report: amends.Report, server: FastMCP) -> None:
        for call in report.calls:
            self._learn(await server.get_tool(call.tool), server)
        for child in report.children:
            await self._learn_all(child, server)

    async def _once(self, request: _Request) -> None:
        request.begin()
        if request.run_id is None:
            request.run_id = await mcp_runs.find_run_async(self._rt, request.place)
        try:
            async with self._rt.run(request.run_id, **request.place.options) as run:
                request.answer = await run.answer(request.tool, request.args, handler=request.body())
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
        self.tool = context.message.name
        strict = context.fastmcp_context is not None and context.fastmcp_context.fastmcp.strict_input_validation
        self.args = guard.bound(declared, dict(context.message.arguments or {}), strict=strict)
        asking = context.fastmcp_context
        named_as = guard.name if guard.name is not None else "" if asking is None else asking.fastmcp.name
        chosen = guard._run_id(self.tool, self.args) if callable(guard._run_id) else guard._run_id
        self.place = mcp_runs.place_of(
            guard._rt,
            self.tool,
            [self.args],
            who=_principal() or named_as,
            named=_run_named(asking),
            chosen=chosen or (context.message.request_state if guard._notice else None),
            meta=partial(_meta, asking),
            window=guard.window,
            options=guard._options,
        )
        self.run_id = self.place.run_id
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

    def body(self) -> Callable[..., Any]:
        """Return a function that runs the tool on the server, and raises its own error, which the server has wrapped."""
        tool = self._declared

        async def body(**args: Any) -> Any:
            message = self._context.message.model_copy(update={"arguments": args})
            try:
                self._outcome = outcome = await self._call_next(self._context.copy(message=message))
            except Exception as error:
                self._outcome = error
                raise _behind(error) from error
            return _as_returned(outcome, tool)

        return _returning(tool, body)

    def leave(self, run_id: str) -> None:
        """Raise if the run continues with a later request: the client has named it, or it waits for a person."""
        self.run_id = run_id
        if self.place.stays or (self.answer is not None and self.answer.status == "held"):
            self._released = amends.Waiting("the run continues with the next request", run_id=run_id)
            raise self._released

    def left(self, error: amends.Error) -> None:
        """Note the error with which the run could not be opened or closed."""
        if error is not self._released:
            self._failed = error

    def result(self) -> ToolResult:
        """Return the tool's own result, or else a text for the model; raise the tool's own error."""
        answer, outcome = self.answer, self._outcome
        told = outcome_for_client(self.tool, answer, self._failed, run_id=self.run_id, stays=self.place.stays)
        if answer is None or (self._failed is not None and answer.status in ("done", "replayed", "staged")):
            return _text_result(told)
        if isinstance(outcome, Exception) and told.is_tools_own:
            if self.place.warns:
                raise ToolError(f"{outcome}. {STILL_OPEN}") from outcome
            raise outcome
        if isinstance(outcome, ToolResult) and (answer.status == "done" or told.is_tools_own):
            return outcome
        if answer.status == "done" and self._declared is not None:  # a replay: its body did not run here
            return self._declared.convert_result(self._revived(answer.value))
        if answer.status in ("done", "replayed"):
            blocks = self._revived(answer.value)
            if blocks is not answer.value:  # pictures are shown again, and not spelled
                words = TextContent(text=answer.text.partition(": ")[0] + ":")
                return ToolResult(content=[words, *blocks], meta=told.said)
            return self._shaped(told, to_jsonable_python(answer.value, fallback=str, bytes_mode="base64"))
        return self._shaped(told, answer.text)

    def _revived(self, value: Any) -> Any:
        """Return a recorded value as the tool would: content blocks are blocks again."""
        is_plain = self._declared is None or self._declared.output_schema is not None
        return value if is_plain else _blocks(value) or value

    def _shaped(self, told: ForClient, value: Any) -> ToolResult:
        """Return a text, and the value in the shape of the tool's output schema; an error if it does not fit."""
        schema = None if self._declared is None else self._declared.output_schema
        if schema is None and told.is_executed and isinstance(value, dict):
            return ToolResult(content=told.text, structured_content=value, meta=told.said)
        if schema is None or told.is_error:
            return _text_result(told)
        is_wrapped = bool(schema.get("x-fastmcp-wrap-result"))
        if is_wrapped:
            fits = told.is_executed or schema.get("properties", {}).get("result", {}).get("type") == "string"
            made = {"result": value}
        else:
            fits, made = isinstance(value, dict), value
        if not fits:
            return _text_result(told, is_error=True)
        if not told.is_executed and schema.get("additionalProperties") is not False:
            made = {**made, **told.said}
        meta = {**({"fastmcp": {"wrap_result": True}} if is_wrapped else {}), **told.said}
        return ToolResult(content=_texts(told), structured_content=made, meta=meta)


# ---- Texts and shapes


def _served(server: FastMCP, tool: Tool | str) -> Callable[..., Any]:
    """Return a body that runs one tool on the server. It is a closure, so that a tool's argument can have any name."""
    name, known = (tool, None) if isinstance(tool, str) else (tool.name, tool)

    async def body(**args: Any) -> Any:
        return _as_returned(await server.call_tool(name, args, run_middleware=False), known)

    return _returning(known, body)


def _needs_request(tool: FunctionTool) -> bool:
    return signature(without_injected_parameters(tool.fn)).parameters.keys() != signature(tool.fn).parameters.keys()


def _repeatable(tool: Tool) -> Tool:
    shown = {
        **tool.parameters.get("properties", {}),
        mcp_runs.REPEAT: {"type": "string", "description": mcp_runs.WHY_AGAIN},
    }
    return tool.model_copy(update={"parameters": {**tool.parameters, "properties": shown}})


def _returning(tool: Tool | None, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the body annotated as the tool's function, so that a compensation gets the classes that it returned."""
    body.__annotations__ = {"return": _returned_by(tool)}
    return body


def _returned_by(tool: Tool | None) -> Any:
    """Return what the tool's function is annotated to return; Any if that is not known, or is recorded in another form."""
    hint = tool.return_type if type(tool) is FunctionTool else None
    return Any if hint is None or _has_blocks(hint) else hint


def _has_blocks(hint: Any) -> bool:
    return hint in (*_MEDIA, *get_args(ContentBlock)) or any(_has_blocks(one) for one in get_args(hint))


def _as_returned(result: ToolResult, tool: Tool | None) -> Any:
    """Return the tool's own value, which is recorded; raise if the result is an error, or asks for an input."""
    value = _value_of(result)
    if isinstance(value, str) and _returned_by(tool) is bytes:
        return b64decode(value)  # the server writes bytes so
    return value


def _value_of(result: ToolResult) -> Any:
    """Return the tool's value as JSON; raise if the result is an error, or asks for an input."""
    if not isinstance(result, ToolResult):  # whatever the annotations of the framework say
        raise TimeoutError(f"an extension of the server answered with {type(result).__name__}: the tool may run later")
    if isinstance(result, InputRequiredToolResult):
        raise amends.NoEffect("the tool itself asked the client for an input first")
    check_result(result)
    if result.structured_content is None:
        if not result.content:
            return None
        if len(result.content) == 1 and isinstance(result.content[0], TextContent):
            return result.content[0].text
        return [_BLOCK.dump_python(one, mode="json", by_alias=True, exclude_none=True) for one in result.content]
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
    return mcp_runs.run_named(_meta(context, RUN_META), _principal())


def _principal() -> list[str | None] | None:
    """Return who the client is, if the server makes clients log in."""
    token = get_access_token()
    return None if token is None else [*principal_components(token)]


def _can_ask(context: Context) -> bool:
    can = context.session.client_capabilities
    return can is not None and can.elicitation is not None


def _input_required(request: _Request) -> ToolResult:
    assert request.asked is not None, "only a held call has a notice"
    ask = ElicitRequest(
        params=ElicitRequestFormParams(
            message=mcp_runs.notice_text(request.tool, request.asked), requested_schema=mcp_runs.NOTHING
        )
    )
    return InputRequiredToolResult(InputRequiredResult(input_requests={"approval": ask}, request_state=request.run_id))


def _text_result(told: ForClient, *, is_error: bool = False) -> ToolResult:
    """Return a text instead of a value.

    What was not executed is said in ``_meta``, in structured content and as a second text: each client keeps another one.
    """
    structured = None if told.is_executed else told.said
    return ToolResult(
        content=_texts(told), structured_content=structured, is_error=is_error or told.is_error, meta=told.said
    )


def _texts(told: ForClient) -> list[ContentBlock]:
    texts = [told.text, *([] if told.is_executed else [json.dumps(told.said)])]
    return [TextContent(text=text) for text in texts]


# ---- Content blocks

_BLOCK: Final[TypeAdapter[ContentBlock]] = TypeAdapter(ContentBlock)
_MEDIA: Final = (Audio, File, Image, ToolResult, CallToolResult, InputRequiredResult)


def _blocks(value: object) -> list[ContentBlock] | None:
    """Return recorded content blocks as the protocol's own; None if it is another value."""
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(one, dict) and one.get("type") in mcp_runs.BLOCK_TYPES for one in value):
        return None
    try:
        return [_BLOCK.validate_python(one) for one in value]
    except ValidationError:
        return None


# ---- Arguments: the same request in other words is the same request

_TRUTH: Final = {"true": True, "false": False}
DEPTH_MAX: Final = 20
"""How deep defaults of a schema are filled in."""


def _shape_of(tool: FunctionTool) -> type[ArgModelBase] | None:
    """Return the arguments of a tool's own function as a model; None if there is none for them."""
    fn = without_injected_parameters(tool.fn)
    if any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in signature(fn).parameters.values()):
        return None
    try:
        return func_metadata(fn).arg_model
    except Exception:  # an annotation may be anything
        return None


def _bound_by(model: type[ArgModelBase], args: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments as the tool's function gets them, with defaults, as JSON; None if they do not fit.

    A value that does not survive the way through JSON, such as a ``SecretStr``, stays as the client sent it.
    """
    names = {field.alias or name for name, field in model.model_fields.items()}
    if args.keys() - names:
        return None  # the server refuses it
    try:
        bound = model.model_validate(args)
        plain = in_order(bound.model_dump(mode="json", by_alias=True), bound)
        again = model.model_validate(plain)
    except Exception:  # arguments that are refused, or a value without a form in JSON
        return None
    made: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        shown = field.alias or name
        if getattr(bound, name) == getattr(again, name):
            made[shown] = plain[shown]
        elif shown in args:
            made[shown] = args[shown]
    return made


def _filled(schema: Any, value: Any, root: Mapping[str, Any], depth: int = DEPTH_MAX, *, strict: bool) -> Any:
    """Return a value with the defaults of its schema, and numbers that were sent as texts as numbers."""
    schema = _resolved(schema, root)
    if not isinstance(schema, dict) or depth == 0:
        return value
    if isinstance(value, dict):
        shown = schema.get("properties")
        known = shown if isinstance(shown, dict) else {}
        given = {name: _filled(known.get(name), one, root, depth - 1, strict=strict) for name, one in value.items()}
        missing = {
            name: _filled(one, deepcopy(one["default"]), root, depth - 1, strict=strict)
            for name, one in known.items()
            if name not in value and isinstance(one, dict) and "default" in one
        }
        return given | missing
    if isinstance(value, list):
        return [_filled(schema.get("items"), one, root, depth - 1, strict=strict) for one in value]
    return value if strict or not isinstance(value, str) else _number(schema.get("type"), value)


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the schema behind references and behind ``X or null``."""
    for _ in range(DEPTH_MAX):
        if not isinstance(schema, dict):
            return None
        if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/"):
            found: Any = root
            for part in ref[2:].split("/"):
                found = found.get(part) if isinstance(found, dict) else None
            schema = found
            continue
        choices = [one for one in schema.get("anyOf") or () if one != {"type": "null"}]
        if len(choices) != 1:
            return schema
        schema = choices[0]
    return schema


def _number(kind: Any, text: str) -> Any:
    if kind == "boolean":
        return _TRUTH.get(text.lower(), text)
    if kind not in ("integer", "number") or not fullmatch(r"[+-]?\d{1,300}(\.\d+)?([eE][+-]?\d+)?", text.strip()):
        return text
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return number if kind == "number" else int(number) if number.is_integer() else text
