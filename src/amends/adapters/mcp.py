"""MCP servers written with ``mcp``: a decorator that records the calls of a tool in the ledger.

The protocol has no notion of a longer task, so each request is a run of its own; an identical request within
``repeat_window`` is answered from its record. A client may name a run in
``_meta`` (``{"amends/run": "order-7"}``): then its calls are one run, which ``end_run`` commits or rolls back.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Audio, Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.context_injection import find_context_parameter
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata, func_metadata
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    ContentBlock,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    TextContent,
)
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

import amends
from amends.adapters import in_order, mcp_runs
from amends.errors import STILL_OPEN
from amends.idempotency import ForClient, call_meta, check_result, outcome_for_client, serving
from amends.visible import visible

_log = logging.getLogger("amends")

RUN_META: Final = mcp_runs.RUN_META
"""The key in ``_meta`` under which a client names the run that a request belongs to."""
THREAD_META: Final = mcp_runs.THREAD_META
"""The key in ``_meta`` for the conversation, which becomes a tag of the run."""
_GUARDED: Final = "__amends_guarded__"
"""An attribute of decorated tools."""
_REQUEST: Final = "amends_request"
RunId = str | Callable[[Mapping[str, Any]], str]


def guarded(
    rt: amends.Runtime | amends.AsyncRuntime,
    *,
    run_id: RunId | None = None,
    notice: bool = False,
    repeats: bool | None = None,
    repeat_window: float = mcp_runs.WINDOW_S,
    name: str = "",
    strict: bool = False,
    **options: Any,
) -> Guard:
    """Return a decorator for the tools of one server: each call is recorded first and runs at most once.

    - ``run_id``: the run of a request, or a function of the arguments that returns it.
    - ``notice``: tell a client that can ask its user when a call waits for approval. The user's answer decides nothing;
      the server then checks the ledger again.
    - ``repeats``: a model may repeat a call on purpose, with an extra argument. Default: the runtime's setting.
    - ``repeat_window``: for how many seconds an identical request of the same client, as after a lost answer, is answered
      from the record; a later one is a new run. 0: each request is a new run. Reads are always new.
    - ``name``: whose requests these are if clients do not log in; two servers with one ledger have two names.
    - ``strict``: refuse every call as long as the server has tools without the decorator. By default they are named in a
      warning; those with ``readOnlyHint`` are left alone.
    - ``options``: those of ``rt.run``; ``requires`` is about the runs that a client names and ends. A call with an effect
      that failed, and was not made good when the client ends the run, takes it back, unless ``on_open_failure="commit"``.

    With an ``AsyncRuntime`` every tool becomes async; with a ``Runtime`` only ``def`` tools can be decorated.
    """
    if notice and not isinstance(rt, amends.AsyncRuntime):
        raise amends.UsageError("notice=True needs an AsyncRuntime: a blocking tool cannot ask the client")
    _ = rt.schemas(repeats=repeats)  # raises if the runtime does not allow it
    window = mcp_runs.window_of(repeat_window, is_named=run_id is not None)
    return Guard(rt, run_id, notice, repeats, options, window=window, name=name, strict=strict)


async def call_tool(client: Any, name: str, arguments: Mapping[str, Any] | None = None, /, **options: Any) -> Any:
    """Call a tool of an MCP server in the body of a guarded call, and return what the tool returned.

    The request carries the call's key and run: a guarded server executes it once, even if this body is started again.
    Raises if the server says that it failed, refused it, has not executed it yet or does not know. ``client``: a
    ``Client`` or ``ClientSession`` of ``mcp``, or FastMCP's ``Client``; ``options``: those of its ``call_tool``.
    """
    meta = {**call_meta(), **(options.pop("meta", None) or {})} or None
    ask = getattr(client, "call_tool_mcp", None) or client.call_tool  # FastMCP's own call_tool loses half of the result
    result: CallToolResult = check_result(await ask(name, dict(arguments or {}), meta=meta, **options))
    return _value_of(result)


class Guard:
    """What ``guarded`` returns: the decorator, and the tool with which a client ends a run that it named."""

    def __init__(
        self,
        rt: Any,
        run_id: RunId | None,
        notice: bool,
        repeats: bool | None,
        options: dict[str, Any],
        *,
        window: int,
        name: str,
        strict: bool,
    ) -> None:
        self.window, self.name = window, name
        self._strict, self._named = strict, frozenset[str]()
        self._rt, self._run_id, self._notice, self._repeats = rt, run_id, notice, repeats
        self._options: dict[str, Any] = {"on_open_failure": "rollback", **options}
        self._made: dict[str, Callable[[dict[str, Any]], _Request]] = {}

    def __call__(self, fn: Callable[..., Any], /, *, name: str | None = None) -> Callable[..., Any]:
        """Return the tool with recorded calls; ``name`` is its name on the server, if not that of the function."""
        is_ours = hasattr(fn, "__amends__")
        name = name or str(getattr(fn, "name", "") if is_ours else fn.__name__)
        context, returns = find_context_parameter(fn), _returned_by(fn)
        if not is_ours and context is None:
            # So that a staged or approved call can run after its request has ended.
            self._rt.reach({name: _after_request(fn, lambda: shape, returns)}, described=False)

        def asked(kwargs: dict[str, Any]) -> _Request:
            request = _Request(self, name, fn, kwargs, context, shape, returns)
            if request.context is not None:
                try:
                    self.check(request.context.mcp_server)
                except amends.UsageError as error:
                    raise ToolError(str(error)) from error
            return request

        self._made[name] = asked
        if isinstance(self._rt, amends.AsyncRuntime):

            @functools.wraps(fn)
            async def call_async(**kwargs: Any) -> Any:
                with serving():
                    return await self._do_async(asked(kwargs))

            made = _with_context(call_async, fn, context, repeats=self.offers(name))
            setattr(made, _GUARDED, True)
            shape = func_metadata(made, skip_names=[context or _REQUEST])
            return made
        if inspect.iscoroutinefunction(fn):
            raise amends.UsageError(f"{name} is async def: guard it with an AsyncRuntime")

        @functools.wraps(fn)
        def call(**kwargs: Any) -> Any:
            with serving():
                return self._do(asked(kwargs))

        made = _with_context(call, fn, context, repeats=self.offers(name))
        setattr(made, _GUARDED, True)
        shape = func_metadata(made, skip_names=[context or _REQUEST])  # as the server sees it
        return made

    async def watch(self, ctx: ServerRequestContext[Any, Any], call_next: Any) -> Any:
        """Warn of calls of tools without the decorator, or refuse them with ``strict``: ``middleware=[guard.watch]``.

        Without it the server is looked at when a decorated tool is called.
        """
        name = (ctx.params or {}).get("name") if ctx.method == "tools/call" else None
        if name is None or name in self._made or name == mcp_runs.END:
            return await call_next(ctx)
        if self._strict:
            raise MCPError(INVALID_PARAMS, _unguarded([str(name)]))
        self._warn([str(name)])
        return await call_next(ctx)

    def check(self, server: MCPServer[Any]) -> None:
        """Look for tools of this server without the decorator: warn of each once, or raise with ``strict``."""
        found = [
            one.name
            for one in server._tool_manager.list_tools()
            if not hasattr(one.fn, _GUARDED) and not getattr(one.annotations, "read_only_hint", None)
        ]
        if found and self._strict:
            raise amends.UsageError(_unguarded(found), hint="server.tool()(guard(fn))")
        self._warn(found)

    def _warn(self, names: list[str]) -> None:
        new = [name for name in names if name not in self._named]
        if new:
            self._named |= frozenset(new)
            _log.warning(_unguarded(new))

    def offers(self, tool: str) -> bool:
        """Return whether a model may repeat a call of this tool on purpose."""
        return self._repeats is not False and bool(self._rt.may_repeat(tool))

    @property
    def end_run(self) -> Callable[..., Any]:
        """Return a tool for the server that commits or rolls back the run that the client named."""
        if isinstance(self._rt, amends.AsyncRuntime):

            async def end_run(ctx: Context[Any, Any], how: Literal["commit", "rollback"], why: str = "") -> str:
                """End the task that the earlier calls belong to: commit it, or take everything back."""
                run_id = _named(ctx)
                try:
                    async with self._rt.run(run_id, history=True, **self._options) as run:
                        if how == "rollback":
                            await run.rollback(why or "asked for by the client")
                        for left in self._left(await run.report(), ctx):
                            await run.answer(left.tool, left.args, handler=left.body())
                except amends.Error as error:
                    return _ended(error, how)
                return f"Committed: run {run_id}."

            setattr(end_run, _GUARDED, True)
            return end_run

        def end_run_blocking(ctx: Context[Any, Any], how: Literal["commit", "rollback"], why: str = "") -> str:
            """End the task that the earlier calls belong to: commit it, or take everything back."""
            run_id = _named(ctx)
            try:
                with self._rt.run(run_id, history=True, **self._options) as run:
                    if how == "rollback":
                        run.rollback(why or "asked for by the client")
                    for left in self._left(run.report(), ctx):
                        run.answer(left.tool, left.args, handler=left.body())
            except amends.Error as error:
                return _ended(error, how)
            return f"Committed: run {run_id}."

        end_run_blocking.__name__ = mcp_runs.END
        setattr(end_run_blocking, _GUARDED, True)
        return end_run_blocking

    def _left(self, report: amends.Report, ctx: Context[Any, Any]) -> list[_Request]:
        """Return the staged and held calls of earlier requests as new requests: only here are their bodies known."""
        waiting = [call for call in report.calls if call.state in ("held", "ready") and call.tool in self._made]
        found = [self._made[call.tool]({**call.args, _REQUEST: ctx}) for call in waiting]
        return found + [one for child in report.children for one in self._left(child, ctx)]

    def _do(self, request: _Request) -> Any:
        place = request.place
        run_id = mcp_runs.find_run(self._rt, place) if place.run_id is None else place.run_id
        try:
            with self._rt.run(run_id, **place.options) as run:
                request.answer = run.answer(request.tool, request.args, handler=request.body(), again=request.again)
                request.leave(run.id)
        except amends.Error as error:
            request.left(error)
        return request.result()

    async def _do_async(self, request: _Request) -> Any:
        place = request.place
        run_id = await mcp_runs.find_run_async(self._rt, place) if place.run_id is None else place.run_id
        await self._once(request, run_id)
        if self._notice and request.asked is not None and request.context is not None:
            if request.context.request_state is not None or not _can_ask(request.context):
                return request.result()
            if (request.context.protocol_version or "") >= mcp_runs.STATELESS:
                return _input_required(request)
            await request.context.request_context.session.elicit_form(
                mcp_runs.notice_text(request.tool, request.asked), mcp_runs.NOTHING
            )
            await self._once(request, request.opened)
        return request.result()

    async def _once(self, request: _Request, run_id: str | None) -> None:
        request.begin()
        try:
            async with self._rt.run(run_id, **request.place.options) as run:
                request.answer = await run.answer(
                    request.tool, request.args, handler=request.body(), again=request.again
                )
                request.leave(run.id)
        except amends.Error as error:
            request.left(error)


class _Request:
    """One ``tools/call``: the run it belongs to, and the result for the server."""

    def __init__(
        self,
        guard: Guard,
        tool: str,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        own_context: str | None,
        shape: FuncMetadata,
        returns: Any,
    ) -> None:
        self.tool, self._fn, self._shape, self._returns = tool, fn, shape, returns
        context = kwargs.pop(_REQUEST, None)
        self.context: Context[Any, Any] | None = kwargs.pop(own_context or _REQUEST, context)
        self._given = {} if own_context is None else {own_context: self.context}
        self.again: str | None = kwargs.pop(mcp_runs.REPEAT, None) if guard.offers(tool) else None
        self.args = kwargs
        state = None if self.context is None or not guard._notice else self.context.request_state
        self.place = mcp_runs.place_of(
            guard._rt,
            tool,
            [self.again, in_order(to_jsonable_python(kwargs, fallback=str), kwargs)],
            who=_principal() or guard.name,
            named=_run_named(self.context),
            chosen=(guard._run_id(kwargs) if callable(guard._run_id) else guard._run_id) or state,
            meta=functools.partial(_meta, self.context),
            window=guard.window,
            options=guard._options,
        )
        self.opened = self.place.run_id
        self.begin()

    def begin(self) -> None:
        """Clear the earlier answer, before the call is requested again."""
        self.answer: amends.Answer | None = None
        self._failed: amends.Error | None = None
        self._returned: list[Any] = []
        self._released: amends.Waiting | None = None

    @property
    def asked(self) -> amends.Approval | None:
        """Return the request for approval that the call waits for."""
        error = None if self.answer is None else self.answer.error
        return error.approval if isinstance(error, amends.Held) else None

    def body(self) -> Callable[..., Any] | None:
        """Return the function that runs the tool, or None if the runtime has it."""
        if hasattr(self._fn, "__amends__"):
            return None
        if inspect.iscoroutinefunction(self._fn):

            async def body_async(**args: Any) -> Any:
                return self._keep(await self._fn(**args, **self._given))

            return _returning(self._returns, body_async)

        def body(**args: Any) -> Any:
            return self._keep(self._fn(**args, **self._given))

        return _returning(self._returns, body)

    def _keep(self, value: Any) -> Any:
        self._returned.append(value)
        return _kept(value, self._shape)

    def leave(self, run_id: str) -> None:
        """Raise if the run continues with a later request: the client has named it, or it waits for a person."""
        self.opened = run_id
        if self.place.stays or (self.answer is not None and self.answer.status == "held"):
            self._released = amends.Waiting("the run continues with the next request", run_id=run_id)
            raise self._released

    def left(self, error: amends.Error) -> None:
        """Note the error with which the run could not be opened or closed."""
        if error is not self._released:
            self._failed = error

    def result(self) -> Any:
        """Return the tool's own value, or else a text for the model; raise the tool's own error."""
        answer = self.answer
        told = outcome_for_client(self.tool, answer, self._failed, run_id=self.opened, stays=self.place.stays)
        last = self._returned[-1] if self._returned else None
        is_own = told.is_tools_own or (answer is not None and answer.status == "done" and self._failed is None)
        if is_own and isinstance(last, InputRequiredResult | CallToolResult):
            return last
        if answer is not None and answer.error is not None and not isinstance(answer.error, amends.Error):
            if self.place.warns:
                raise ToolError(f"{answer.error}. {STILL_OPEN}") from answer.error
            raise answer.error
        if answer is not None and not told.is_error:
            if answer.status == "done":
                return self._returned[-1] if self._returned else _revived(answer.value, self._shape)
            if answer.status == "replayed":
                return _replayed(answer, self._shape, told)
        return _text_result(told, self._shape)


# ---- Texts and shapes


def _unguarded(names: list[str]) -> str:
    shown = ", ".join(visible(name) for name in sorted(names))
    return f"this server has tools without the decorator of amends: {shown}. Their calls are not recorded, and may happen twice"


def _with_context(
    wrapper: Callable[..., Any], fn: Callable[..., Any], own: str | None, *, repeats: bool
) -> Callable[..., Any]:
    """Add parameters to the wrapper: the request's context, which no schema shows, and ``again_because``."""
    more: dict[str, Any] = {} if own is not None else {_REQUEST: Context}
    if repeats:
        more[mcp_runs.REPEAT] = Annotated[str | None, Field(description=mcp_runs.WHY_AGAIN)]
    if not more:
        return wrapper
    shown, only = inspect.signature(fn), inspect.Parameter.KEYWORD_ONLY
    extra = [inspect.Parameter(name, only, default=None, annotation=kind) for name, kind in more.items()]
    hints = get_type_hints(fn, include_extras=True)
    wrapper.__annotations__ = {**hints, **more}
    # Annotations that are texts mean something only where the function was written.
    known = [one.replace(annotation=hints.get(name, one.annotation)) for name, one in shown.parameters.items()]
    returns = hints.get("return", shown.return_annotation)
    wrapper.__signature__ = shown.replace(parameters=[*known, *extra], return_annotation=returns)  # type: ignore[attr-defined]
    return wrapper


def _meta(context: Context[Any, Any] | None, key: str) -> str | None:
    if context is None:
        return None
    meta: Mapping[str, Any] = context.request_context.meta or {}
    value = meta.get(key)
    return None if value is None else str(value)


def _run_named(context: Context[Any, Any] | None) -> str | None:
    """Return the run that the client has named; if clients log in, each has its own names."""
    return mcp_runs.run_named(_meta(context, RUN_META), _principal())


def _principal() -> list[str | None] | None:
    """Return who the client is, if the server makes clients log in."""
    token = get_access_token()
    return None if token is None else [*principal_components(token)]


def _named(context: Context[Any, Any]) -> str:
    named = _run_named(context)
    if named is None:
        raise ToolError(f'There is nothing to end: this request names no run in _meta ("{RUN_META}").')
    return named


def _ended(error: amends.Error, how: str) -> str:
    if isinstance(error, amends.RolledBack) and how == "rollback":
        return error.for_model()
    raise ToolError(error.for_model()) from error


def _can_ask(context: Context[Any, Any]) -> bool:
    can = context.client_capabilities
    return can is not None and can.elicitation is not None


def _input_required(request: _Request) -> InputRequiredResult:
    assert request.asked is not None, "only a held call has a notice"
    ask = ElicitRequest(
        params=ElicitRequestFormParams(
            message=mcp_runs.notice_text(request.tool, request.asked), requested_schema=mcp_runs.NOTHING
        )
    )
    return InputRequiredResult(input_requests={"approval": ask}, request_state=request.opened)


def _replayed(answer: amends.Answer, shape: FuncMetadata, told: ForClient) -> CallToolResult:
    """Return the text for the model, and the value in the shape of the tool's output schema."""
    blocks = None if shape.output_schema is not None else _blocks(answer.value)
    if blocks is not None:  # pictures are shown again, and not spelled
        content = [TextContent(text=answer.text.partition(": ")[0] + ":"), *blocks]
        return CallToolResult(content=content, _meta=told.said)
    made = shape.convert_result(answer.value)
    structured = made.structured_content if isinstance(made, CallToolResult) else None
    if shape.output_schema is None and isinstance(answer.value, dict):
        structured = to_jsonable_python(answer.value, fallback=str)
    return CallToolResult(content=[TextContent(text=answer.text)], structured_content=structured, _meta=told.said)


def _text_result(told: ForClient, shape: FuncMetadata) -> CallToolResult:
    """Return a text instead of a value; if the output schema requires another shape, as an error.

    What was not executed is said in ``_meta``, in structured content and as a second text: each client keeps another one.
    """
    is_error, structured = told.is_error, dict[str, Any]()
    if shape.output_schema is not None and not is_error:
        try:
            made = shape.convert_result(told.text)
        except ValidationError:
            is_error = True
        else:
            structured = (made.structured_content if isinstance(made, CallToolResult) else None) or {}
    content = [TextContent(text=told.text)]
    if not told.is_executed:
        content.append(TextContent(text=json.dumps(told.said)))
        if is_error or (shape.output_schema or {}).get("additionalProperties") is not False:
            structured = {**structured, **told.said}
    return CallToolResult(content=[*content], structured_content=structured or None, is_error=is_error, _meta=told.said)


# ---- Content blocks

_BLOCK: Final[TypeAdapter[ContentBlock]] = TypeAdapter(ContentBlock)
_MEDIA: Final = (Audio, Image, *get_args(ContentBlock))


def _value_of(result: CallToolResult) -> Any:
    """Return what a tool returned as the protocol carries it: the structured value, one text, or blocks."""
    structured = result.structured_content
    if structured is not None:
        return structured["result"] if structured.keys() == {"result"} else structured
    if len(result.content) == 1 and isinstance(result.content[0], TextContent):
        return result.content[0].text
    return _plain_blocks(result.content)


def _returned_by(fn: Callable[..., Any]) -> Any:
    """Return what the function is annotated to return, as a compensation gets it; Any if it is recorded in another form."""
    try:
        hint = get_type_hints(fn, include_extras=True).get("return", Any)
    except Exception:  # an annotation may be anything
        return Any
    return Any if _has_blocks(hint) else hint


def _has_blocks(hint: Any) -> bool:
    return hint in (*_MEDIA, CallToolResult, InputRequiredResult) or any(_has_blocks(one) for one in get_args(hint))


def _returning(hint: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the body annotated with this, so that a compensation gets the classes that the tool returned."""
    body.__annotations__ = {"return": hint}
    return body


def _after_request(fn: Callable[..., Any], shape: Callable[[], Any], returns: Any) -> Callable[..., Any]:
    """Return the function of a tool as a body for calls without a request: it returns what a request records."""
    if inspect.iscoroutinefunction(fn):

        async def body_async(**args: Any) -> Any:
            return _kept(await fn(**args), shape())

        return _returning(returns, body_async)

    def body(**args: Any) -> Any:
        return _kept(fn(**args), shape())

    return _returning(returns, body)


def _kept(value: Any, shape: Any) -> Any:
    """Return what is recorded of a tool's value, and handed to its compensation; raise if it says that nothing happened."""
    if isinstance(value, InputRequiredResult):
        raise amends.NoEffect("the tool itself asked the client for an input first")
    if isinstance(value, CallToolResult):
        check_result(value)
        return value.structured_content if value.structured_content is not None else _value_of(value)
    return _recorded(value, shape)


def _recorded(value: object, shape: FuncMetadata) -> Any:
    """Return a tool's own value for the record: pictures and blocks, which are no data, as plain blocks."""
    parts = value if isinstance(value, list | tuple) else [value]
    if shape.output_schema is not None or not any(isinstance(one, _MEDIA) for one in parts):
        return value
    made = shape.convert_result(value)
    return _plain_blocks(made.content) if isinstance(made, CallToolResult) else value


def _plain_blocks(blocks: list[Any]) -> list[Any]:
    """Return content blocks as plain data, which the ledger keeps and a compensation gets."""
    return [_BLOCK.dump_python(block, mode="json", by_alias=True, exclude_none=True) for block in blocks]


def _blocks(value: object) -> list[Any] | None:
    """Return recorded content blocks as the protocol's own; None if it is another value."""
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(one, dict) and one.get("type") in mcp_runs.BLOCK_TYPES for one in value):
        return None
    try:
        return [_BLOCK.validate_python(one) for one in value]
    except ValidationError:
        return None


def _revived(value: object, shape: FuncMetadata) -> Any:
    """Return a recorded value as the tool would: content blocks are blocks again."""
    return (None if shape.output_schema is not None else _blocks(value)) or value
