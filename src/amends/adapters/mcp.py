"""MCP servers written with ``mcp``: a decorator that records the calls of a tool in the ledger.

The protocol has no notion of a longer task, so each request is a run of its own; an identical request within
``repeat_window`` is answered from its record. A client may name a run in
``_meta`` (``{"amends/run": "order-7"}``): then its calls are one run, which ``end_run`` commits or rolls back.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from math import ceil
from typing import Annotated, Any, Final, Literal, get_type_hints

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.context_injection import find_context_parameter
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata, func_metadata
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    TextContent,
)
from pydantic import Field, ValidationError
from pydantic_core import to_jsonable_python

import amends
from amends.errors import STILL_OPEN, NoRun
from amends.visible import visible, visible_value

RUN_META: Final = "amends/run"
"""The key in ``_meta`` under which a client names the run that a request belongs to."""
REPEAT: Final = "again_because"
WHY_AGAIN: Final = "Only if this very call was made before and is meant a second time: why."
THREAD_META: Final = "amends/thread"
"""The key in ``_meta`` for the conversation, which becomes a tag of the run."""
_REQUEST: Final = "amends_request"
_NOTHING: Final = {"type": "object", "properties": {}}
_STATELESS: Final = "2026-07-28"
"""From this protocol version on, a server cannot ask during a request: its response says that it needs an input."""

WINDOW_S: Final = 3_600.0
"""For how long an identical request is answered from the record, unless the program says otherwise."""
WINDOW_S_MAX: Final = 10 * 366 * 86_400.0
ENDED: Final = ("committed", "rolled_back", "abandoned")

RunId = str | Callable[[Mapping[str, Any]], str]


def guarded(
    rt: amends.Runtime | amends.AsyncRuntime,
    *,
    run_id: RunId | None = None,
    notice: bool = False,
    repeats: bool | None = None,
    repeat_window: float = WINDOW_S,
    name: str = "",
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
    - ``options``: those of ``rt.run``; ``requires`` is about the runs that a client names and ends. A call with an effect
      that failed, and was not made good when the client ends the run, takes it back, unless ``on_open_failure="commit"``.

    With an ``AsyncRuntime`` every tool becomes async; with a ``Runtime`` only ``def`` tools can be decorated.
    """
    if notice and not isinstance(rt, amends.AsyncRuntime):
        raise amends.UsageError("notice=True needs an AsyncRuntime: a blocking tool cannot ask the client")
    _ = rt.schemas(repeats=repeats)  # raises if the runtime does not allow it
    return Guard(rt, run_id, notice, repeats, options, window=_window(repeat_window), name=name)


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
    ) -> None:
        self.window, self.name = window, name
        self._rt, self._run_id, self._notice, self._repeats = rt, run_id, notice, repeats
        self._options: dict[str, Any] = {"on_open_failure": "rollback", **options}
        self._made: dict[str, Callable[[dict[str, Any]], _Request]] = {}

    def __call__(self, fn: Callable[..., Any], /, *, name: str | None = None) -> Callable[..., Any]:
        """Return the tool with recorded calls; ``name`` is its name on the server, if not that of the function."""
        is_ours = hasattr(fn, "__amends__")
        name = name or str(getattr(fn, "name", "") if is_ours else fn.__name__)
        context = find_context_parameter(fn)
        if not is_ours and context is None:
            self._rt.reach(
                {name: fn}, described=False
            )  # so that a staged or approved call can run after its request has ended

        def asked(kwargs: dict[str, Any]) -> _Request:
            return _Request(self, name, fn, kwargs, context, shape)

        self._made[name] = asked
        if isinstance(self._rt, amends.AsyncRuntime):

            @functools.wraps(fn)
            async def call_async(**kwargs: Any) -> Any:
                return await self._do_async(asked(kwargs))

            made = _with_context(call_async, fn, context, repeats=self.offers(name))
            shape = func_metadata(made, skip_names=[context or _REQUEST])
            return made
        if inspect.iscoroutinefunction(fn):
            raise amends.UsageError(f"{name} is async def: guard it with an AsyncRuntime")

        @functools.wraps(fn)
        def call(**kwargs: Any) -> Any:
            return self._do(asked(kwargs))

        made = _with_context(call, fn, context, repeats=self.offers(name))
        shape = func_metadata(made, skip_names=[context or _REQUEST])  # as the server sees it
        return made

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

        end_run_blocking.__name__ = "end_run"
        return end_run_blocking

    def _left(self, report: amends.Report, ctx: Context[Any, Any]) -> list[_Request]:
        """Return the staged and held calls of earlier requests as new requests: only here are their bodies known."""
        waiting = [call for call in report.calls if call.state in ("held", "ready") and call.tool in self._made]
        found = [self._made[call.tool]({**call.args, _REQUEST: ctx}) for call in waiting]
        return found + [one for child in report.children for one in self._left(child, ctx)]

    def _do(self, request: _Request) -> Any:
        run_id = request.run_id
        if run_id is None and not _is_replay():
            newest = next(iter(self._rt.runs(request.same)), None)
            is_kept = newest is not None and _is_recent(newest, request.window)
            if newest is not None and not is_kept and request.window:
                is_kept = next(iter(self._rt.runs(f"{request.same} age:<{request.window}s")), None) is not None
            run_id = request.next_id(newest, is_kept=is_kept)
        try:
            with self._rt.run(run_id, **request.options) as run:
                request.answer = run.answer(request.tool, request.args, handler=request.body(), again=request.again)
                request.leave(run.id)
        except amends.Error as error:
            request.left(error)
        return request.result()

    async def _do_async(self, request: _Request) -> Any:
        run_id = request.run_id
        if run_id is None and not _is_replay():
            newest = await _first(self._rt.runs(request.same))
            is_kept = newest is not None and _is_recent(newest, request.window)
            if newest is not None and not is_kept and request.window:
                is_kept = await _first(self._rt.runs(f"{request.same} age:<{request.window}s")) is not None
            run_id = request.next_id(newest, is_kept=is_kept)
        await self._once(request, run_id)
        if self._notice and request.asked is not None and request.context is not None:
            if request.context.request_state is not None or not _can_ask(request.context):
                return request.result()
            if (request.context.protocol_version or "") >= _STATELESS:
                return _input_required(request)
            await request.context.request_context.session.elicit_form(_notice_text(request), _NOTHING)
            await self._once(request, request.opened)
        return request.result()

    async def _once(self, request: _Request, run_id: str | None) -> None:
        request.begin()
        try:
            async with self._rt.run(run_id, **request.options) as run:
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
    ) -> None:
        self.tool, self._fn, self._shape = tool, fn, shape
        context = kwargs.pop(_REQUEST, None)
        self.context: Context[Any, Any] | None = kwargs.pop(own_context or _REQUEST, context)
        self._given = {} if own_context is None else {own_context: self.context}
        self.again: str | None = kwargs.pop(REPEAT, None) if guard.offers(tool) else None
        self.args = kwargs
        named, thread = _run_named(self.context), _meta(self.context, THREAD_META)
        self._stays = named is not None
        state = None if self.context is None or not guard._notice else self.context.request_state
        chosen = guard._run_id(kwargs) if callable(guard._run_id) else guard._run_id
        self.run_id = self.opened = named or chosen or state
        who = _principal() or guard.name
        is_new = self.run_id is not None or guard._rt.kind_of(tool) == "read"
        self.window = 0 if is_new else guard.window
        asked = _digest([tool, self.again, to_jsonable_python(kwargs, fallback=str), who])[:32]
        tag = f"{'request' if self.window else 'asked'}:{asked}"
        self._tag, self.same = tag, f'tag:"{tag}"'
        """A filter that finds the runs of the same earlier request."""
        tags = [*guard._options.get("tags", ()), *([f"thread:{thread}"] if thread else []), *([] if named else [tag])]
        recover = {"recover": "wait"} if self._stays else {}
        # In a run of one request nothing stands beside a failure; rolled back, the run is open for the next try.
        ends = {} if self._stays else {"requires": None, "on_open_failure": "rollback"}
        self.options = {**recover, **guard._options, **ends, "tags": tags, "history": True}
        self._warns = self._stays and guard._options["on_open_failure"] == "rollback"
        self.begin()

    def next_id(self, newest: amends.RunInfo | None, *, is_kept: bool) -> str | None:
        """Return the run of this request; ``newest``: that of the newest identical one, which counts if ``is_kept``."""
        if not (self.window or is_kept):
            return None  # each is a run of its own
        return _next_id(None if newest is None else newest.id, self._tag, is_kept=is_kept)

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

            return body_async

        def body(**args: Any) -> Any:
            return self._keep(self._fn(**args, **self._given))

        return body

    def _keep(self, value: Any) -> Any:
        self._returned.append(value)
        if isinstance(value, InputRequiredResult):
            raise amends.NoEffect("the tool itself asked the client for an input first")
        if isinstance(value, CallToolResult):
            if value.is_error:
                raise ToolError(_text_of(value))
            return value.structured_content if value.structured_content is not None else _text_of(value)
        return value

    def leave(self, run_id: str) -> None:
        """Raise if the run continues with a later request: the client has named it, or it waits for a person."""
        self.opened = run_id
        if self._stays or (self.answer is not None and self.answer.status == "held"):
            self._released = amends.Waiting("the run continues with the next request", run_id=run_id)
            raise self._released

    def left(self, error: amends.Error) -> None:
        """Note the error with which the run could not be opened or closed."""
        if error is not self._released:
            self._failed = error

    def result(self) -> Any:
        """Return the tool's own value, or else a text for the model; raise the tool's own error."""
        answer = self.answer
        if answer is None:
            assert self._failed is not None, "a request has an answer or an error"
            return _text_result(self._failed.for_model(), self._shape, is_error=True)
        if self._returned and isinstance(self._returned[-1], InputRequiredResult | CallToolResult):
            return self._returned[-1]
        if answer.error is not None and not isinstance(answer.error, amends.Error):
            if self._warns:
                raise ToolError(f"{answer.error}. {STILL_OPEN}") from answer.error
            raise answer.error
        if self._failed is not None and answer.status in ("done", "replayed", "staged"):
            return _text_result(self._failed.for_model(), self._shape, is_error=True)
        if answer.status == "done":
            return self._returned[-1] if self._returned else answer.value
        if answer.status == "replayed":
            return _replayed(answer, self._shape)
        return _text_result(answer.text, self._shape, is_error=answer.is_error)


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


def _with_context(
    wrapper: Callable[..., Any], fn: Callable[..., Any], own: str | None, *, repeats: bool
) -> Callable[..., Any]:
    """Add parameters to the wrapper: the request's context, which no schema shows, and ``again_because``."""
    more: dict[str, Any] = {} if own is not None else {_REQUEST: Context}
    if repeats:
        more[REPEAT] = Annotated[str | None, Field(description=WHY_AGAIN)]
    if not more:
        return wrapper
    shown, only = inspect.signature(fn), inspect.Parameter.KEYWORD_ONLY
    extra = [inspect.Parameter(name, only, default=None, annotation=kind) for name, kind in more.items()]
    wrapper.__annotations__ = {**get_type_hints(fn, include_extras=True), **more}
    wrapper.__signature__ = shown.replace(parameters=[*shown.parameters.values(), *extra])  # type: ignore[attr-defined]
    return wrapper


def _meta(context: Context[Any, Any] | None, key: str) -> str | None:
    if context is None:
        return None
    meta: Mapping[str, Any] = context.request_context.meta or {}
    value = meta.get(key)
    return None if value is None else str(value)


def _run_named(context: Context[Any, Any] | None) -> str | None:
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


def _notice_text(request: _Request) -> str:
    assert request.asked is not None, "only a held call has a notice"
    args = ", ".join(f"{visible(name)}={visible_value(value)}" for name, value in request.asked.call.args.items())
    return (
        f"{visible(request.tool)}({args}) waits for a person's approval ({request.asked.id}). Approve or reject it there; "
        "your answer here decides nothing, it only makes the server check again."
    )


def _input_required(request: _Request) -> InputRequiredResult:
    assert request.asked is not None, "only a held call has a notice"
    ask = ElicitRequest(params=ElicitRequestFormParams(message=_notice_text(request), requested_schema=_NOTHING))
    return InputRequiredResult(input_requests={"approval": ask}, request_state=request.opened)


def _replayed(answer: amends.Answer, shape: FuncMetadata) -> CallToolResult:
    """Return the text for the model, and the value in the shape of the tool's output schema."""
    made = shape.convert_result(answer.value)
    structured = made.structured_content if isinstance(made, CallToolResult) else None
    return CallToolResult(content=[TextContent(text=answer.text)], structured_content=structured)


def _text_result(text: str, shape: FuncMetadata, *, is_error: bool) -> CallToolResult:
    """Return a text instead of a value; if the output schema requires another shape, as an error."""
    content, structured = [TextContent(text=text)], None
    if shape.output_schema is not None and not is_error:
        try:
            made = shape.convert_result(text)
        except ValidationError:
            is_error = True
        else:
            structured = made.structured_content if isinstance(made, CallToolResult) else None
    return CallToolResult(content=[*content], structured_content=structured, is_error=is_error)


def _text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))
