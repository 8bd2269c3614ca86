"""The tools of upstream servers as tools of amends: body, snapshot, compensation and probe are requests to a server."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

from mcp import MCPError
from mcp_types import LOG_LEVEL_META_KEY, CallToolResult, TextContent, Tool

import amends
from amends import Absent, Call, Happened, NoEffect, Request, Retry, Unknown
from amends.gateway import templates
from amends.gateway.config import CallTable, Compensation, Guard, Probe, Snapshot, ToolTable
from amends.gateway.questions import Asking
from amends.gateway.upstreams import Upstream
from amends.idempotency import call_meta, check_result
from amends.visible import visible, visible_log

log = visible_log("amends.gateway")

ASKING: ContextVar[tuple[Asking | None, Any]] = ContextVar("amends_gateway_asking", default=(None, None))
"""Who asks for the call that is being made, and where its progress is reported."""
CONTENT, STRUCTURED = "content", "structuredContent"
LEFT: Final = "left"
"""Where a recorded result has the digest of what the call left, for its guard."""
TEXT_CHARS_MAX: Final = 300
PROCESS_SETTLE_S: Final = 1.0
"""How long a server that has lost its gateway may go on with a request."""


def ledger_name(server: str, tool: str) -> str:
    """Return the name of a tool in the ledger: the same whatever other servers there are."""
    return f"{server}.{tool}"


# ---- Results


def recorded(result: CallToolResult) -> dict[str, Any]:
    """Return what is recorded of a result: all that a client gets of it."""
    said = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {name: said[name] for name in (CONTENT, STRUCTURED) if name in said}


def revived(value: Any) -> CallToolResult | None:
    """Return a recorded result as the protocol's own; None: it is something else."""
    if not isinstance(value, Mapping) or CONTENT not in value:
        return None
    try:
        return CallToolResult.model_validate({CONTENT: value[CONTENT], STRUCTURED: value.get(STRUCTURED)})
    except ValueError:
        return None


def seen(value: Any) -> Any:
    """Return a result as templates see it: the structured value, or what its text says as JSON, or the text."""
    if not isinstance(value, Mapping) or CONTENT not in value:
        return value
    structured = value.get(STRUCTURED)
    if structured is not None:
        return (
            structured["result"] if isinstance(structured, Mapping) and structured.keys() == {"result"} else structured
        )
    texts = [one.get("text", "") for one in value[CONTENT] if isinstance(one, Mapping) and one.get("type") == "text"]
    text = "\n".join(texts)
    try:
        return json.loads(text)
    except ValueError:
        return text


def words_of(result: CallToolResult) -> str:
    """Return the texts of a result."""
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


# ---- Declarations


class Declared:
    """One tool of one server, with what the configuration says of it."""

    def __init__(self, upstream: Upstream, tool: str, table: ToolTable) -> None:
        self.upstream, self.tool, self.table = upstream, tool, table
        self.name = ledger_name(upstream.name, tool)

    def mistakes(self) -> Iterator[str]:
        """Yield what the tables of this tool ask of tools that the server does not list like that."""
        said = self.table
        asked: list[tuple[str, str, Mapping[str, Any]]] = []
        if said.compensate is not None:
            asked += [("compensate", one.tool, one.args) for one in said.compensate.calls]
        for word in ("before", "probe", "guard"):
            one = getattr(said, word)
            if one is not None:
                asked.append((word, one.tool, one.args))
        for word, tool, args in asked:
            listed = self.upstream.tools.get(tool)
            if listed is None:
                yield f"{self.name}: {word} asks for {tool}, which the server does not have"
                continue
            schema = listed.input_schema
            known, needed = schema.get("properties", {}), schema.get("required", [])
            if not schema.get("additionalProperties", False):
                for name in args:
                    if name not in known:
                        yield f"{self.name}: {word} gives {tool} the argument {name}, which it does not have"
            for name in needed:
                if name not in args:
                    yield f"{self.name}: {word} does not give {tool} its argument {name}"

    def declaration(self) -> Any:
        """Return the declaration for the runtime; its body is given by ``body``."""
        said = self.table
        options: dict[str, Any] = {"kind": said.kind, "version": self._version(), "idempotent": said.idempotent}
        options |= {"key": said.key, "ignore": said.ignore, "scope": said.scope, "on_conflict": said.on_conflict}
        options |= {"cost": said.cost, "after": said.after}
        options |= {"retry": Retry(attempts=said.attempts) if said.attempts else None}
        options |= {"redact": said.redact or None, "needs_approval": self._needs_approval()}
        if said.locks:
            options["locks"] = lambda request: [str(one) for one in templates.fill(said.locks, self._asked(request))]
        if said.before is not None:
            options["before"] = self._before(said.before)
        if said.probe is not None:
            options |= {"probe": self._probe(said.probe), "settle": self._settle_s(said.probe)}
        if said.compensate is not None:
            options["compensate"] = self._compensation(said.compensate)
        if said.guard is not None:
            options["guard"] = self._guard(said.guard)
        return amends.declare(
            self.name, **{name: value for name, value in options.items() if value not in (None, False)}
        )

    def _settle_s(self, said: Probe) -> float:
        """Return for how long an effect may still arrive after the last possible send.

        A process that was started here has ended when its connection is lost, or shortly after. What an address leads to
        may go on for as long as it may take.
        """
        if said.settle is not None:
            return said.settle
        return self._timeout_s if self.upstream.table.url else PROCESS_SETTLE_S

    @property
    def _timeout_s(self) -> float:
        return self.table.timeout or self.upstream.table.timeout

    def _version(self) -> str:
        """Return a version that changes with what is declared: an approval is for one version."""
        said = self.table.model_dump(mode="json", exclude={"why"})
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]

    def _needs_approval(self) -> Any:
        condition = self.table.needs_approval
        if isinstance(condition, bool):
            return condition
        return lambda request: templates.holds(condition, self._asked(request))

    def _asked(self, request: Request) -> dict[str, Any]:
        return {"args": dict(request.args), "server": self._vars}

    @property
    def _vars(self) -> Mapping[str, str]:
        return self.upstream.table.vars

    # ---- What is asked of the server

    def body(self) -> Callable[..., Any]:
        """Return the function that asks the server to run the tool."""
        guard = self.table.guard
        left = (
            None
            if guard is None or guard.unchanged is not None
            else lambda args, result: self._left(guard, args, result)
        )
        return _body(self.upstream, self.tool, self.table.timeout, left=left)

    async def _read(self, tool: str, args: Any, roots: Mapping[str, Any], missing: str) -> tuple[Any, str]:
        """Ask a server to read something; return its answer, and its error as text."""
        filled = templates.fill(args, roots)
        result = judged(self.upstream, tool, filled, await self.upstream.call(tool, filled))
        if not result.is_error:
            return seen(recorded(result)), ""
        text = words_of(result)
        if missing and re.search(missing, text):
            return None, ""
        return None, text or "it failed"

    def _before(self, said: Snapshot) -> Callable[..., Any]:
        async def before(call: Call) -> Any:
            roots = {"args": dict(call.args), "server": self._vars}
            answer, error = await self._read(said.tool, said.args, roots, said.missing)
            if error:
                raise NoEffect(f"what was there before could not be read by {said.tool}: {error[:TEXT_CHARS_MAX]}")
            if answer is None:
                return None
            if said.absent is not None and templates.holds(said.absent, {"answer": answer, **roots}):
                return None
            if said.refuse is not None and templates.holds(said.refuse, {"answer": answer, **roots}):
                raise NoEffect(f"what {said.tool} says is there now could not be put back, so nothing was changed")
            value = templates.fill(said.value, {"answer": answer})
            found = re.search(said.pattern, value) if said.pattern and isinstance(value, str) else None
            return found[1] if found is not None else value

        return before

    def _probe(self, said: Probe) -> Callable[..., Any]:
        has_before = self.table.before is not None

        async def probe(call: Call, before: Any = None) -> Any:
            roots = self._roots(call, before=before)
            try:
                answer, error = await self._read(said.tool, said.args, roots, said.missing)
            except (MCPError, NoEffect, ConnectionError, TimeoutError, templates.NotThere) as problem:
                return Unknown(str(problem)[:TEXT_CHARS_MAX])
            if error:
                return Unknown(error[:TEXT_CHARS_MAX])
            roots["answer"] = answer
            if answer is not None and templates.holds(said.happened, roots):
                listed = self.upstream.tools.get(self.tool)
                return Happened(
                    _as_result(said.result, roots, is_shaped=listed is not None and bool(listed.output_schema))
                )
            if self.upstream.may_work_on(call.key):
                return Unknown(f"the server {self.upstream.name} did not answer in time, and may still be at work")
            if answer is None or said.absent is None or templates.holds(said.absent, roots):
                return Absent()
            return Unknown("the answer says neither that it happened nor that it did not")

        async def probe_alone(call: Call) -> Any:
            return await probe(call)

        chosen = probe if has_before else probe_alone
        chosen.__qualname__ = ledger_name(self.upstream.name, said.tool)
        return chosen

    def _compensation(self, said: Compensation) -> Any:
        needs_result = _names(said, "result")
        has_before = self.table.before is not None

        async def undo(call: Call, result: Any, before: Any) -> None:
            roots = self._roots(call, before=before, key=call.compensation.key if call.compensation else call.key)
            roots["result"] = seen(result)
            for one in said.calls:
                await self._do(one, roots)

        async def with_all(call: Call, result: Any, before: Any) -> None:
            await undo(call, result, before)

        async def with_result(call: Call, result: Any) -> None:
            await undo(call, result, None)

        async def with_before(call: Call, before: Any) -> None:
            await undo(call, None, before)

        async def alone(call: Call) -> None:
            await undo(call, None, None)

        chosen = {(True, True): with_all, (True, False): with_result, (False, True): with_before, (False, False): alone}
        # A plan names the function that would run: for a person that is what the server is asked for.
        chosen[needs_result, has_before].__qualname__ = "+".join(
            ledger_name(self.upstream.name, one.tool) for one in said.calls
        )
        options = {"idempotent": said.idempotent, "absent_ok": said.absent_ok, "wins": said.wins}
        return {
            "tool": chosen[needs_result, has_before],
            "retry": Retry(attempts=said.attempts, delay=0.2),
            **{name: value for name, value in options.items() if value},
        }

    async def _do(self, one: CallTable, roots: dict[str, Any]) -> None:
        items = templates.fill(one.each, roots) if one.each else [None]
        if not isinstance(items, list):
            raise NoEffect(f"each: {one.each} is no list, so {one.tool} was not asked to take anything back")
        for item in items:
            known = {**roots, "item": item}
            if one.when is not None and not templates.holds(one.when, known):
                continue
            args = templates.fill(one.args, known)
            check_result(
                judged(self.upstream, one.tool, args, await self.upstream.call(one.tool, args, meta=call_meta()))
            )

    def _guard(self, said: Guard) -> Callable[..., Any]:
        """Return the function that tells whether the thing is still as the call left it."""
        needs_result = said.unchanged is None or _names(said, "result")
        has_before = self.table.before is not None

        async def check(call: Call, result: Any, before: Any) -> bool:
            roots = {**self._roots(call, before=before), "result": seen(result)}
            answer, error = await self._read(said.tool, said.args, roots, said.missing)
            if error:
                raise NoEffect(f"what is there now could not be read by {said.tool}: {error[:TEXT_CHARS_MAX]}")
            roots["answer"] = answer
            if said.unchanged is not None:
                return templates.holds(said.unchanged, roots)
            known = result.get(LEFT) if isinstance(result, Mapping) else None
            return known is not None and known == digest(templates.fill(said.value, roots))

        async def with_all(call: Call, result: Any, before: Any) -> bool:
            return await check(call, result, before)

        async def with_result(call: Call, result: Any) -> bool:
            return await check(call, result, None)

        async def with_before(call: Call, before: Any) -> bool:
            return await check(call, None, before)

        async def alone(call: Call) -> bool:
            return await check(call, None, None)

        chosen: dict[tuple[bool, bool], Callable[..., Any]] = {
            (True, True): with_all,
            (True, False): with_result,
            (False, True): with_before,
            (False, False): alone,
        }
        return chosen[needs_result, has_before]

    async def _left(self, said: Guard, args: Mapping[str, Any], result: CallToolResult) -> str | None:
        """Return a digest of what the call has left; None: it could not be read, and its guard will not let it be undone."""
        roots = {"args": dict(args), "server": self._vars, "result": seen(recorded(result))}
        try:
            answer, error = await self._read(said.tool, said.args, roots, said.missing)
            return None if error else digest(templates.fill(said.value, {"answer": answer}))
        except (MCPError, NoEffect, ConnectionError, TimeoutError, templates.NotThere) as problem:
            log.warning("what %s left could not be read: %s", visible(self.name), self.upstream.masked(str(problem)))
            return None

    def _roots(self, call: Call, *, before: Any, key: str | None = None) -> dict[str, Any]:
        named = {"id": call.id, "key": call.key}
        return {
            "args": dict(call.args), "before": before, "key": key or call.key, "call": named, "server": self._vars,
        }  # fmt: skip


def _as_result(said: Any, roots: Mapping[str, Any], *, is_shaped: bool) -> Any:
    """Return what a call that a probe found is taken to have returned; ``is_shaped``: its server promises a shape."""
    value = roots["answer"] if said is None else templates.fill(said, roots)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    found: dict[str, Any] = {CONTENT: [{"type": "text", "text": text}]}
    if isinstance(value, dict) or is_shaped:
        found[STRUCTURED] = value if isinstance(value, dict) else {"result": value}
    return found


def judged(upstream: Upstream, tool: str, args: Mapping[str, Any], result: CallToolResult) -> CallToolResult:
    """Return a result, as an error if the server says in an ordinary answer that the call failed (``failed``).

    Raise ``Lost`` for an error that tells that the server does not know what the call did.
    """
    known = upstream.table.tools.get(tool)
    if known is not None and known.failed is not None and not result.is_error:
        roots = {"result": seen(recorded(result)), "args": dict(args)}
        if templates.holds(known.failed, roots):
            result = result.model_copy(update={"is_error": True})
    if result.is_error:
        upstream.check_doubt(tool, words_of(result))
    return result


def digest(value: Any) -> str:
    """Return what a value of JSON is recognised by."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _names(said: Compensation | Guard, root: str) -> bool:
    text = json.dumps(said.model_dump(mode="json"))
    return f"${root}" in text or f"${{{root}" in text


def _body(
    upstream: Upstream, tool: str, timeout: float | None, *,
    left: Callable[[Mapping[str, Any], CallToolResult], Awaitable[str | None]] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    async def body(**args: Any) -> dict[str, Any]:
        asking, progress = ASKING.get()
        meta = dict(call_meta() or {})
        if asking is not None and asking.log_level is not None and upstream.is_stateless:
            meta[LOG_LEVEL_META_KEY] = asking.log_level
        with upstream.asked_by(asking):
            result = await upstream.call(tool, args, meta=meta, progress=progress, timeout=timeout)
        result = judged(upstream, tool, args, result)
        if asking is not None:
            asking.result = result
        made = recorded(check_result(result))
        mark = None if left is None else await left(args, result)
        return made if mark is None else {**made, LEFT: mark}

    return body


class Undeclared:
    """A tool that nobody has declared: it only has a body."""

    def __init__(self, upstream: Upstream, tool: str) -> None:
        self._upstream, self._tool = upstream, tool

    def body(self) -> Callable[..., Any]:
        """Return the function that asks the server to run the tool."""
        return _body(self._upstream, self._tool, None)


# ---- What a server says of its tools


def fingerprint(tool: Tool) -> str:
    """Return a digest of all that a model is told of a tool."""
    said = tool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"icons", "meta"})
    return digest(said)
