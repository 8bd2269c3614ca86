"""The tools that the gateway adds, with which a client begins, ends and looks at its run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from mcp_types import CallToolRequestParams, CallToolResult, TextContent, Tool, ToolAnnotations

from amends import Call, Report
from amends.errors import Error, Forbidden, Refused, UsageError, listed_in, some, some_in_words
from amends.gateway.runs import Work, ended_words
from amends.idempotency import check_arguments
from amends.visible import visible, visible_call

if TYPE_CHECKING:
    from amends.gateway.gateway import Gateway

WHY: Final = {"type": "string", "description": "Why, for the record."}
CALLS_SHOWN_MAX: Final = 50
REQUESTS_READ_MAX: Final = 2_000
"""How many open requests of the ledger are read to find those of one run."""
OWN: Final = (
    Tool(
        name="amends_begin",
        description="Begin a task: the calls that follow belong together until amends_commit or amends_rollback.",
        input_schema={
            "type": "object",
            "properties": {
                "run": {"type": "string", "description": "A name for the task; leave it out for a new one."}
            },
            "additionalProperties": False,
        },
    ),
    Tool(
        name="amends_commit",
        description="End the task and keep everything that was done in it.",
        input_schema={"type": "object", "properties": {}, "additionalProperties": False},
    ),
    Tool(
        name="amends_rollback",
        description="End the task and take back everything that was done in it, newest first.",
        input_schema={"type": "object", "properties": {"why": WHY}, "additionalProperties": False},
    ),
    Tool(
        name="amends_status",
        description="Show what was done in the task so far, what waits for a person, and what is in doubt.",
        input_schema={"type": "object", "properties": {}, "additionalProperties": False},
        annotations=ToolAnnotations(read_only_hint=True),
    ),
)


class OwnTools:
    """Carries out the gateway's own tools."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._schemas = {one.name: one.input_schema for one in OWN}

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    async def call(self, ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        """Do what a client asks of its run."""
        args = dict(params.arguments or {})
        try:
            check_arguments(params.name, self._schemas[params.name], args)
            match params.name:
                case "amends_begin":
                    text = await self._begin(ctx, args)
                case "amends_commit":
                    text = await self._end(ctx, "commit", "")
                case "amends_rollback":
                    text = await self._end(ctx, "rollback", str(args.get("why") or "asked for by the client"))
                case _:
                    return await self._status(ctx)
        except Error as error:
            return CallToolResult(content=[TextContent(text=_refusal(error))], is_error=True)
        return CallToolResult(content=[TextContent(text=text)])

    async def _begin(self, ctx: Any, args: dict[str, Any]) -> str:
        gateway = self._gateway
        run_id = args.get("run") or gateway.named(ctx)
        work = await gateway.runs.begin(
            gateway.connection(ctx), run_id=str(run_id) if run_id else None, owner=gateway.owner(ctx)
        )
        if work.run.is_over:
            record = "The calls that it made are answered from its record, and nothing new can run in it."
            return f"R{ended_words(work.run)[1:]} {record} Give a new task another name."
        return f"Begun: run {visible(work.run.id)}."

    async def _end(self, ctx: Any, how: Any, why: str) -> str:
        gateway = self._gateway
        named, owner = gateway.named(ctx), gateway.owner(ctx)
        work = await gateway.runs.found(gateway.connection(ctx), named=named, owner=owner)
        if work is None:
            return "There is nothing to end: no call was made since the last task ended."
        if how != "rollback" or work.run.is_over:
            return await gateway.runs.end(work, how, why=why)
        report = await work.run.report()
        _check_undoable(report)
        asked = [(call, request) for call, request in await self._with_requests(ctx, report) if request]
        told = await gateway.runs.end(work, how, why=why)
        return f"{told} {_withdrawn_words(asked)}" if asked else told

    async def _status(self, ctx: Any) -> CallToolResult:
        gateway = self._gateway
        work = await gateway.runs.found(gateway.connection(ctx), named=gateway.named(ctx), owner=gateway.owner(ctx))
        if work is None:
            return CallToolResult(content=[TextContent(text="No call was made since the last task ended.")])
        report = await work.run.report()
        found = await self._with_requests(ctx, report)
        waiting = sum(call.state == "held" and not call.staged for call, _ in found)
        doubts = sum(call.state == "in_doubt" for call, _ in found)
        of_which = [
            f"{waiting} of which wait{'s' if waiting == 1 else ''} for a person" if waiting else "",
            f"{doubts} of which {'is' if doubts == 1 else 'are'} in doubt" if doubts else "",
        ]
        count = f"{len(found)} call{'' if len(found) == 1 else 's'}"
        head = f"Run {visible(report.run_id)}: {', '.join([report.state, count, *filter(None, of_which)])}."
        shown = found[-CALLS_SHOWN_MAX:]
        lines = [f"{visible_call(call.tool, call.args)}: {_state_words(call, request)}" for call, request in shown]
        left = some(report.run.causes, where=listed_in(report.run_id))
        causes = [f"It is blocked: {visible(one, prose=True)}" for one in left]
        calls = [
            {"tool": call.tool, "state": call.state, "id": call.id} | ({"approval": request} if request else {})
            for call, request in shown
        ]
        said = {"run": report.run_id, "state": report.state, "calls": calls}
        text = "\n".join([head, *([_earlier_words(work)] if work.is_taken_up else []), *causes, *lines])
        return CallToolResult(content=[TextContent(text=text)], structured_content=said)

    async def _with_requests(self, ctx: Any, report: Report) -> list[tuple[Call, str]]:
        """Return the calls of a run and of its child runs, oldest first, each with its open request for approval."""
        calls = sorted(_calls_of(report), key=lambda call: call.requested_at.timestamp() if call.requested_at else 0.0)
        wanted = {call.id for call in calls if call.state in ("held", "ready") and not call.staged}
        requests: dict[str, str] = {}
        if wanted:
            rt = self._gateway.rt.scoped(tenant=self._gateway.owner(ctx).tenant)
            looked_at = 0
            async for one in rt.approvals("state:pending,approved"):
                looked_at += 1
                if looked_at > REQUESTS_READ_MAX or wanted <= requests.keys():
                    break
                if one.call.id in wanted:
                    requests[one.call.id] = one.id
        return [(call, requests.get(call.id, "")) for call in calls]


def _calls_of(report: Report) -> Iterator[Call]:
    yield from report.calls
    for child in report.children:
        yield from _calls_of(child)


def _state_words(call: Call, request: str) -> str:
    if call.state == "held" and not call.staged:
        needs = f"approval ({request})" if request else "decision"
        return f"waits for a person's {needs}; call it again with the same arguments after that"
    if call.state == "ready" and request:
        return f"approved ({request}); call it again with the same arguments, and it runs"
    if call.state == "in_doubt":
        return "in doubt: it was sent, and nobody knows yet whether it happened; do not call it again"
    return str(call.state)


def _earlier_words(work: Work) -> str:
    """Return the sentence about a run that an earlier connection had; only one that a client has begun waits for its end."""
    if work.is_begun:
        return "It was begun before this connection, and goes on until amends_commit or amends_rollback."
    return "Its first calls were made before this connection; amends_rollback takes them back, too."


def _check_undoable(report: Report) -> None:
    """Refuse a rollback of a run whose pivot has succeeded: the engine could only block the run."""
    done = [call for call in report.calls if call.kind == "pivot" and call.state == "succeeded"]
    if done and report.state in ("pivoted", "blocked"):
        raise Refused(
            f"{visible_call(done[-1].tool, done[-1].args)} cannot be undone, so nothing was taken back. "
            "amends_commit ends the task and keeps everything that was done in it. Tell the user."
        )


def _withdrawn_words(asked: Sequence[tuple[Call, str]]) -> str:
    one = len(asked) == 1
    words = some_in_words(f"{visible_call(call.tool, call.args)} ({request})" for call, request in asked)
    return f"{len(asked)} request{'' if one else 's'} for approval {'was' if one else 'were'} withdrawn: {words}."


def _refusal(error: Error) -> str:
    """Return why something was not done. What the client said is wrong here, and not the program around the model."""
    if isinstance(error, Forbidden):
        return f"Not run: {error}; {error.hint}."
    return f"Not run: {error}." if isinstance(error, UsageError) else error.for_model()
