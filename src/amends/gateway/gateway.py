"""The gateway itself: an MCP server whose tools are those of the servers behind it, each call guarded by the ledger."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from mcp import MCPError
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmptyResult,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    LoggingLevel,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    Tool,
    UnsubscribeRequestParams,
)

import amends
from amends import Answer, Approval, AsyncRuntime, Held
from amends.errors import NOT_AGAIN, BadArguments, Error, Forbidden, Locked, RunBlocked
from amends.gateway import tools as upstream_tools
from amends.gateway.config import Config
from amends.gateway.listeners import PIPES, Listeners
from amends.gateway.own_tools import OWN, OwnTools
from amends.gateway.questions import PAUSE_S, PREFIX, STATELESS, Asking, Talks
from amends.gateway.runs import CLIENT, NOBODY, Owner, Runs
from amends.gateway.tools import ASKING, Declared, fingerprint, ledger_name, revived
from amends.gateway.trust import Trust
from amends.gateway.upstreams import Upstream, listed
from amends.idempotency import ForClient, by_schema, check_arguments, outcome_for_client, serving
from amends.secrets import BadSignature, Secrets
from amends.visible import visible, visible_args, visible_log

log = visible_log("amends.gateway")
RUN_META: Final = "amends/run"
REPEAT: Final = "again_because"
WHO: Final = "amends.gateway.who"
"""Where the scope of a request over HTTP has the token of whoever asks."""
UNDECLARED: Final = (
    "[Nobody has declared what this tool does, so a person must approve each call.]"  # models read this, too
)
INSTRUCTIONS: Final = (
    "Every call that changes something is recorded and happens at most once. amends_begin begins a task that amends_commit"
    " keeps and amends_rollback takes back as a whole; amends_status shows what was done."
)
DECIDES: Final = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": ["approve", "reject"], "title": "Decision"},
        "reason": {"type": "string", "title": "Reason, for the model and the record"},
    },
    "required": ["decision"],
}
NOTHING: Final = {"type": "object", "properties": {}}
Context = ServerRequestContext[Any, Any]


class Connected:
    """A client that asks nothing at the moment, but has a connection."""

    def __init__(self, session: Any) -> None:
        self.session, self.request_id, self.meta = session, None, None


class Gateway:
    """All servers, all runs, and the MCP server that clients see.

    ``rt``: an ``AsyncRuntime``, to which the tools of the configuration are added. ``secrets``: sign what a client carries
    while its user is asked. ``notifies``: the runtime has a hook that tells people of approvals (``on_approval_needed``).
    """

    def __init__(self, config: Config, rt: AsyncRuntime, *, secrets: Secrets, notifies: bool = False) -> None:
        self.config, self.rt, self.table = config, rt, config.gateway
        self._secrets, self._notifies = secrets, notifies
        self.upstreams = {
            name: Upstream(name, table, config, changed=self._upstream_changed, only=self._only, look=self._look)
            for name, table in self.table.servers.items()
        }
        self.declared = {
            ledger_name(server, tool): Declared(self.upstreams[server], tool, said)
            for server, table in self.table.servers.items()
            for tool, said in table.tools.items()
        }
        rt.add(*(one.declaration() for one in self.declared.values()))
        rt.reach({name: one.body() for name, one in self.declared.items()}, described=False)
        self.runs = Runs(rt, self.table)
        self.own = OwnTools(self)
        self.trust = Trust(config.folder / f"{_stem(config.origin)}.tools.json", rt)
        self.halted: set[str] = set()
        """Tools that their server describes otherwise than before."""
        self._names: tuple[list[dict[str, Tool]], dict[str, tuple[Upstream, Tool]]] | None = None
        """The lists of tools of all servers, and the names that were made of them."""
        self.listeners = Listeners(self._owner)
        self._talks = Talks(secrets)
        self._log_level: LoggingLevel = "info"
        """What servers log for clients that say it once for all requests."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    # ---- Life

    async def __aenter__(self) -> Gateway:
        """Start the servers, and begin to recover what an earlier gateway left."""
        await self._start_servers()
        self.runs.start()
        self._worker = asyncio.get_running_loop().create_task(self._recover(), name="amends-gateway-worker")
        return self

    @asynccontextmanager
    async def servers(self) -> AsyncIterator[None]:
        """Start the servers, and nothing else: no client is served, and nothing is recovered."""
        try:
            await self._start_servers()
            yield
        finally:
            await self._close_servers()

    async def _start_servers(self) -> None:
        for upstream in self.upstreams.values():
            upstream.start()
        there = await asyncio.gather(*(one.wait(self.table.start) for one in self.upstreams.values()))
        for upstream, is_there in zip(self.upstreams.values(), there, strict=True):
            if not is_there:
                log.warning("server %s does not start: %s", upstream.name, upstream.problem or "it does not answer")

    async def _close_servers(self) -> None:
        await asyncio.gather(*(one.close() for one in self.upstreams.values()))

    async def __aexit__(self, *exc: object) -> None:
        """End the runs of the clients, and the servers."""
        self._stopping.set()
        self.listeners.close()
        self._talks.close()
        await self.runs.close()
        if self._worker is not None:
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._close_servers()

    async def _recover(self) -> None:
        async with self.rt.worker():
            await self._stopping.wait()

    async def _look(self, server: str, tools: Mapping[str, Tool]) -> None:
        """Halt the tools that their server describes otherwise than before."""
        changed = await self.trust.look({ledger_name(server, name): fingerprint(tool) for name, tool in tools.items()})
        self.halted = {name for name in self.halted if not name.startswith(f"{server}.")} | set(changed)

    async def _upstream_changed(self, server: str, what: str) -> None:
        if what == "tools":
            upstream = self.upstreams[server]
            gone = {one.tool for one in self.declared.values() if one.upstream is upstream} - set(upstream.tools)
            for name in sorted(gone):
                log.warning("server %s has no tool %s, which the configuration declares", server, visible(name))
            for one in self.declared.values():
                for mistake in one.mistakes() if one.upstream is upstream and one.tool not in gone else ():
                    log.warning(
                        "server %s: %s; the call could not be undone or checked", server, visible(mistake, prose=True)
                    )
        await self.listeners.tell(what)

    def _seen(self, ctx: Context) -> None:
        self.listeners.seen(self.connection(ctx), ctx.session)
        if self.listeners.only is not None and any(one.lacks_roots for one in self.upstreams.values()):
            can = ctx.session.client_capabilities
            if can is not None and can.roots is not None:
                self._later(self._tell_of_roots())

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_of_roots(self) -> None:
        """Tell the servers that asked for roots too early that there are some now."""
        for upstream in self.upstreams.values():
            if upstream.lacks_roots:
                try:
                    await upstream.roots_changed()
                except Exception as error:  # it is gone, and asks again when it is back
                    log.debug("server %s was not told of roots: %s", upstream.name, type(error).__name__)

    def _asking(self, ctx: Context, *, by_answer: bool = False) -> Asking:
        """Return who asks. Stateless clients without a token cannot be told from each other: each request is one."""
        connection = self.connection(ctx)
        has_name = connection == PIPES or connection.startswith("session:")
        made = Asking(ctx, client=connection if has_name else uuid.uuid4().hex, by_answer=by_answer)
        if ctx.protocol_version < STATELESS:
            made.log_level = self._log_level
        return made

    def _only(self) -> Asking | None:
        """Return the one client that there is, if it has a connection of its own and nobody else has."""
        found = self.listeners.only
        return None if found is None else Asking(Connected(found[1]), client=found[0])

    # ---- The server that clients see

    def server(self) -> Server[Any]:
        """Return the MCP server. Build it when the upstream servers are there: it can what they can."""
        have = [one.capabilities for one in self.upstreams.values() if one.capabilities is not None]
        handlers: dict[str, Any] = {"on_list_tools": self.list_tools, "on_call_tool": self.call_tool}
        handlers |= {"on_roots_list_changed": self._roots_changed, "on_subscriptions_listen": self.listeners.listen}
        if any(one.resources for one in have):
            handlers |= {"on_list_resources": self._list_resources, "on_read_resource": self._read_resource}
            handlers |= {"on_list_resource_templates": self._list_templates}
        if any(one.resources and one.resources.subscribe for one in have):
            handlers |= {"on_subscribe_resource": self._subscribe, "on_unsubscribe_resource": self._unsubscribe}
        if any(one.prompts for one in have):
            handlers |= {"on_list_prompts": self._list_prompts, "on_get_prompt": self._get_prompt}
        if any(one.completions for one in have):
            handlers["on_completion"] = self._complete
        if any(one.logging for one in have) or any(one.is_stateless for one in self.upstreams.values()):
            handlers["on_set_logging_level"] = self._set_level
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)  # what newer clients do without, older ones need
            return Server(
                f"amends-{self.table.name}", version=amends.__version__, instructions=self._instructions(), **handlers
            )

    @property
    def notifications(self) -> NotificationOptions:
        """What clients may be told of."""
        return NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)

    def _instructions(self) -> str:
        theirs = [f"{one.name}: {one.masked(one.instructions)}" for one in self.upstreams.values() if one.instructions]
        return "\n\n".join([INSTRUCTIONS, *theirs])

    async def list_tools(self, ctx: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        """Return the tools of all servers, and those of the gateway."""
        self._seen(ctx)
        if self.halted:  # a person may have lifted a halt since
            await asyncio.gather(*(self._look(name, one.tools) for name, one in self.upstreams.items()))
        found = [self._shown(name, *owner) for name, owner in self._named().items()]
        return ListToolsResult(tools=[*found, *OWN])

    def _named(self) -> dict[str, tuple[Upstream, Tool]]:
        """Return the tools by the names that clients see; made again when a server has listed its tools anew."""
        lists = [one.tools for one in self.upstreams.values()]
        if self._names is None or any(a is not b for a, b in zip(self._names[0], lists, strict=True)):
            self._names = lists, self._names_of()
        return self._names[1]

    def _names_of(self) -> dict[str, tuple[Upstream, Tool]]:
        named = listed(self.upstreams.values())
        hidden = {name for name, one in self.declared.items() if one.table.hidden}
        own = {one.name for one in OWN}
        return {
            name: (upstream, tool)
            for name, (upstream, tool) in named.items()
            if ledger_name(upstream.name, tool.name) not in hidden and name not in own
        }

    def _shown(self, name: str, upstream: Upstream, tool: Tool) -> Tool:
        known = ledger_name(upstream.name, tool.name)
        changed: dict[str, Any] = {"name": name}
        if known not in self.declared:
            changed["description"] = f"{UNDECLARED} {tool.description or ''}".strip()
        if known in self.halted:
            changed["description"] = "[Halted: its description has changed, and a person must look at it first.]"
        if known in self.declared and self.rt.may_repeat(known) and self.declared[known].table.kind != "read":
            changed["input_schema"] = _repeatable(tool.input_schema)
        return tool.model_copy(update=changed)

    # ---- Calls

    async def call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Note who asks, and make the call."""
        self._seen(ctx)
        return await self.make_call(ctx, params)

    async def make_call(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Make a call at most once, or tell what is in its way."""
        with serving():
            if params.name in self.own:
                return await self.own.call(ctx, params)
            found = self._named().get(params.name)
            if found is None:
                raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
            return await self._called(ctx, params, *found)

    async def _called(
        self, ctx: Context, params: CallToolRequestParams, upstream: Upstream, tool: Tool
    ) -> CallToolResult | InputRequiredResult:
        """Make a call; one of a stateless client is answered early if its server asks something."""
        who = self.principal(ctx) or ""
        if params.request_state is not None and params.request_state.startswith(PREFIX):
            said = await self._talks.go_on(ctx, params, who=who)
            if said is not None:
                return said
            # The gateway was started again since: the ledger knows what became of the call.
            params = params.model_copy(update={"request_state": None, "input_responses": None})
        is_stateless = ctx.protocol_version >= STATELESS
        asking = self._asking(ctx, by_answer=is_stateless)
        made = self._made(ctx, params, upstream, tool, asking)
        return await (self._talks.call(asking, params, made, who=who) if is_stateless else made)

    async def _made(
        self, ctx: Context, params: CallToolRequestParams, upstream: Upstream, tool: Tool, asking: Asking
    ) -> CallToolResult | InputRequiredResult:
        name = ledger_name(upstream.name, tool.name)
        declared = self.declared.get(name)
        if declared is None and self.table.undeclared == "refuse":
            return _error(f"Not run: nobody has declared {visible(params.name)}, and this gateway refuses such tools.")
        args = dict(params.arguments or {})
        again = args.pop(REPEAT, None) if REPEAT not in tool.input_schema.get("properties", {}) else None
        args = by_schema(tool.input_schema, args)
        try:
            check_arguments(params.name, tool.input_schema, args)  # before anything is recorded or sent
        except BadArguments as bad:
            refused = outcome_for_client(name, None, bad, run_id=None, stays=True)
            return CallToolResult(content=[TextContent(text=refused.text)], is_error=True, _meta=refused.said)
        decided = await self._decided(ctx, params)
        token = ASKING.set((asking, None if asking.progress_token is None else asking.progress))
        try:
            said = await self._answered(ctx, name, args, again=again, declared=declared, upstream=upstream, tool=tool)
        finally:
            ASKING.reset(token)
        answer, told = said
        approval = answer.error.approval if answer is not None and isinstance(answer.error, Held) else None
        if approval is not None and not decided and self._may_ask(ctx):
            if ctx.protocol_version >= STATELESS:
                return self._input_required(ctx, approval)
            heard = await ctx.session.elicit_form(self._question(approval), self._form, ctx.request_id)
            if await self._decide(ctx, approval.id, approval.digest, heard):
                again = _decided_already(params, self._pause(ctx, approval))
                return await self._made(ctx, again, upstream, tool, asking)
        if approval is not None and not self._may_ask(ctx):
            words = told.text.replace(NOT_AGAIN, "Do not look for another way; go on with other work, or stop.")
            words = f"{words} {self._who_is_told} Call it again with the same arguments after it was approved."
            told = replace(told, text=words, outcome={**told.outcome, "text": words})
        return self._result(answer, told, asking, tool)

    @property
    def _who_is_told(self) -> str:
        """Whether a person hears of a call that waits."""
        if self._notifies:
            return "A person is notified."
        return "This gateway notifies nobody: tell the user that amends approvals lists it."

    async def _answered(
        self, ctx: Context, name: str, args: dict[str, Any], *, again: Any, declared: Declared | None,
        upstream: Upstream, tool: Tool,
    ) -> tuple[Answer | None, ForClient]:  # fmt: skip
        named, answer, failed, run_id = self.named(ctx), None, None, None
        options: dict[str, Any] = {"again": again} if isinstance(again, str) and again.strip() else {}
        if declared is not None and declared.table.always_new:
            moment = uuid.uuid4().hex
            options["key"] = lambda _request: moment
        if declared is None:
            undeclared = upstream_tools.Undeclared(upstream, tool.name)
            options |= {"handler": undeclared.body(), "schema": tool.input_schema}
        try:
            async with self.runs.working(self.connection(ctx), named=named, owner=self.owner(ctx)) as work:
                run_id = work.run.id
                if declared is not None and declared.table.kind == "pivot" and not work.is_begun:
                    options["apart"] = True  # a conversation goes on after what cannot be taken back
                answer = await work.run.answer(name, args, **options)
                if answer.status == "failed":
                    work.failed += 1
        except Error as error:
            failed = error
        told = outcome_for_client(name, answer, failed, run_id=run_id, stays=True)
        problem = failed if failed is not None or answer is None else answer.error
        if isinstance(problem, RunBlocked):
            told = replace(told, text=f"{told.text} amends_begin begins another task, which this one does not stop.")
        if isinstance(problem, Locked) and problem.holder:
            told = replace(told, text=f"{told.text} {await self._holder_words(ctx, problem.holder)}")
        return answer, told

    async def _holder_words(self, ctx: Context, run_id: str) -> str:
        """Return who holds a lock, and whether waiting helps."""
        try:
            state = (await self.rt.scoped(tenant=self.owner(ctx).tenant).info(run_id)).state
        except Error:
            state = "open"
        if state == "blocked":
            return f"Run {visible(run_id)} holds it, and waits for a person: tell the user that amends inbox lists it."
        return f"Run {visible(run_id)} holds it."

    def _result(self, answer: Answer | None, told: ForClient, asking: Asking, tool: Tool) -> CallToolResult:
        if answer is not None and told.is_executed:
            result = revived(answer.value)
            if result is not None:
                if answer.status == "replayed":
                    return result.model_copy(update={"meta": told.said})
                return result
        if told.is_tools_own and isinstance(asking.result, CallToolResult):
            return asking.result  # the server's own words about its failure
        # A text where the tool promises another shape can only be an error.
        is_error = told.is_error or tool.output_schema is not None
        return CallToolResult(content=[TextContent(text=told.text)], is_error=is_error, _meta=told.said)

    # ---- Who asks

    def named(self, ctx: Context) -> str | None:
        """Return the run that the client names in ``_meta``."""
        said = (ctx.meta or {}).get(RUN_META)
        return None if said is None else str(said)

    def principal(self, ctx: Context) -> str | None:
        """Return under which name the client acts: that of its token."""
        who = self._token(ctx)
        return None if who is None else str(who.principal or who.name)

    def owner(self, ctx: Context) -> Owner:
        """Return for whom the client acts, as its token says."""
        who = self._token(ctx)
        if who is None:
            return NOBODY
        return Owner(str(who.principal or who.name), who.agent or None, who.tenant or None, who.id)

    def connection(self, ctx: Context) -> str:
        """Return what tells this client from the others: its connection, or who it is where there are none."""
        request = ctx.request
        if request is None:
            return PIPES
        session = request.headers.get("mcp-session-id")
        who = self._token(ctx)
        owner = who.id if who is not None else ""
        return f"session:{owner}:{session}" if session else f"{CLIENT}{owner}"

    def _token(self, ctx: Context) -> Any:
        return None if ctx.request is None else ctx.request.scope.get(WHO)

    # ---- Approval by the client's user

    def _may_ask(self, ctx: Context) -> bool:
        can = ctx.session.client_capabilities
        return self.table.approvals != "outside" and can is not None and can.elicitation is not None

    @property
    def _form(self) -> dict[str, Any]:
        return DECIDES if self.table.approvals == "client" else NOTHING

    def _question(self, approval: Approval) -> str:
        call = approval.call
        said = f"{visible(call.tool)} wants to run with\n" + "\n".join(visible_args(call.args))
        if self.table.approvals == "client":
            return f"{said}\nMay it? ({approval.id}, digest {approval.digest[:12]})"
        return (
            f"{said}\nIt waits for a person's approval ({approval.id}). Decide it there (amends approvals approve "
            f"{approval.id}, or the console); your answer here only makes the gateway look again."
        )

    def _pause(self, ctx: Context, approval: Approval) -> str:
        said = {"approval": approval.id, "digest": approval.digest, "who": self.principal(ctx) or ""}
        return self._secrets.sign("gateway-pause", said, lives_s=PAUSE_S)

    def _input_required(self, ctx: Context, approval: Approval) -> InputRequiredResult:
        asked = ElicitRequest(
            params=ElicitRequestFormParams(message=self._question(approval), requested_schema=self._form)
        )
        return InputRequiredResult(input_requests={"approval": asked}, request_state=self._pause(ctx, approval))

    async def _decided(self, ctx: Context, params: CallToolRequestParams) -> bool:
        """Take the answer of the client's user, if this request brings one back; return whether it does."""
        if params.request_state is None:
            return False
        try:
            said = self._secrets.read("gateway-pause", params.request_state)
        except BadSignature as bad:
            raise MCPError(INVALID_PARAMS, f"requestState: {bad}") from None
        if said["who"] != (self.principal(ctx) or ""):
            raise MCPError(INVALID_PARAMS, "requestState: it was made for somebody else")
        heard = (params.input_responses or {}).get("approval")
        if isinstance(heard, ElicitResult):
            await self._decide(ctx, said["approval"], said["digest"], heard)
        return True

    async def _decide(self, ctx: Context, approval_id: str, digest: str, heard: ElicitResult) -> bool:
        """Record the decision of the client's user where it counts; return whether to look again."""
        if self.table.approvals != "client":
            return heard.action == "accept"
        rt, by = self.rt.scoped(tenant=self.owner(ctx).tenant), self.table.approver
        content = heard.content or {}
        reason = str(content.get("reason") or "")
        try:
            if heard.action == "accept" and content.get("decision") == "approve":
                await rt.approve(approval_id, digest=digest, by=by, why=reason or "approved in the client")
            elif heard.action == "decline" or content.get("decision") == "reject":
                await rt.reject(approval_id, by=by, reason=reason or "rejected in the client")
            else:
                return False
        except Forbidden as error:
            log.warning("%s may not decide %s: %s", visible(by), approval_id, error)
            return False
        except Error as error:
            log.warning("%s was not decided: %s", approval_id, error)
        return True

    # ---- Passed through

    async def _list_resources(self, ctx: Context, _params: PaginatedRequestParams | None) -> ListResourcesResult:
        self._seen(ctx)
        found = await self._all(lambda one: one.list_resources, "resources", can=lambda can: can.resources)
        return ListResourcesResult(resources=[item for _, item in found])

    async def _list_templates(self, ctx: Context, _p: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        self._seen(ctx)
        found = await self._all(
            lambda one: one.list_resource_templates, "resource_templates", can=lambda can: can.resources
        )
        return ListResourceTemplatesResult(resource_templates=[item for _, item in found])

    async def _list_prompts(self, ctx: Context, _params: PaginatedRequestParams | None) -> ListPromptsResult:
        self._seen(ctx)
        named = await self._prompts()
        return ListPromptsResult(prompts=[item.model_copy(update={"name": name}) for name, (_, item) in named.items()])

    async def _prompts(self) -> dict[str, tuple[Upstream, Any]]:
        found = await self._all(lambda one: one.list_prompts, "prompts", can=lambda can: can.prompts)
        names = [item.name for _, item in found]
        return {
            item.name if names.count(item.name) == 1 else f"{upstream.name}__{item.name}": (upstream, item)
            for upstream, item in found
        }

    async def _all(
        self, ask: Callable[[Any], Callable[..., Awaitable[Any]]], what: str, *, can: Callable[[Any], Any]
    ) -> list[tuple[Upstream, Any]]:
        """Read a listing of every server that is there and has one; one that does not answer hides no other."""
        found: list[tuple[Upstream, Any]] = []
        for upstream in self._capable(can):
            try:
                found += [(upstream, item) for item in await upstream.listing(ask, what)]
            except MCPError as error:
                log.warning("server %s does not list its %s: %s", upstream.name, what, error.message)
        return found

    def _capable(self, can: Callable[[Any], Any]) -> Iterable[Upstream]:
        return [
            one
            for one in self.upstreams.values()
            if one.is_there and one.capabilities is not None and can(one.capabilities)
        ]

    async def _owner(self, uri: str) -> Upstream:
        """Return the server that has a resource."""
        capable = list(self._capable(lambda can: can.resources))
        if len(capable) == 1:
            return capable[0]
        for upstream, item in await self._all(
            lambda one: one.list_resources, "resources", can=lambda can: can.resources
        ):
            if str(item.uri) == uri:
                return upstream
        templates = await self._all(
            lambda one: one.list_resource_templates, "resource_templates", can=lambda can: can.resources
        )
        for upstream, item in templates:
            if uri.startswith(str(item.uri_template).partition("{")[0]):
                return upstream
        raise MCPError(INVALID_PARAMS, f"Resource not found: {uri}")

    async def _read_resource(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        self._seen(ctx)
        upstream = await self._owner(str(params.uri))
        with upstream.asked_by(self._asking(ctx)):
            return await upstream.ask(lambda client: client.read_resource(str(params.uri)))

    async def _subscribe(self, ctx: Context, params: SubscribeRequestParams) -> EmptyResult:
        self._seen(ctx)
        await self.listeners.subscribe(self.connection(ctx), str(params.uri))
        return EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        await self.listeners.unsubscribe(self.connection(ctx), str(params.uri))
        return EmptyResult()

    async def _roots_changed(self, ctx: Context, _params: Any) -> None:
        self._seen(ctx)
        for upstream in self.upstreams.values():
            await upstream.roots_changed()

    async def _get_prompt(self, ctx: Context, params: GetPromptRequestParams) -> GetPromptResult:
        self._seen(ctx)
        found = (await self._prompts()).get(params.name)
        if found is None:
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {params.name}")
        upstream, prompt = found
        with upstream.asked_by(self._asking(ctx)):
            return await upstream.ask(lambda client: client.get_prompt(prompt.name, params.arguments))

    async def _complete(self, ctx: Context, params: CompleteRequestParams) -> CompleteResult:
        ref: Any = params.ref
        if ref.type == "ref/prompt":
            found = (await self._prompts()).get(ref.name)
            if found is None:
                raise MCPError(INVALID_PARAMS, f"Unknown prompt: {ref.name}")
            upstream, ref = found[0], ref.model_copy(update={"name": found[1].name})
        else:
            upstream = await self._owner(str(ref.uri))
        if upstream.capabilities is None or upstream.capabilities.completions is None:
            raise MCPError(METHOD_NOT_FOUND, f"the server {upstream.name} completes nothing")
        argument = {"name": params.argument.name, "value": params.argument.value}
        context = params.context.arguments if params.context else None
        return await upstream.ask(lambda client: client.complete(ref, argument, context))

    async def _set_level(self, ctx: Context, params: SetLevelRequestParams) -> EmptyResult:
        self._seen(ctx)
        self._log_level = params.level
        for upstream in self._capable(lambda can: can.logging):
            if upstream.is_stateless:
                continue  # it is told with each request
            await upstream.ask(lambda client: client.set_logging_level(params.level))
        return EmptyResult()


def _stem(origin: str) -> str:
    return origin.replace("\\", "/").rpartition("/")[2].removesuffix(".toml") or "amends"


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def _repeatable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool with the argument that says why a call is repeated."""
    own = schema.get("properties", {})
    if REPEAT in own:
        return dict(schema)
    why = {"type": "string", "description": "Only if this very call was made before and is meant a second time: why."}
    return {**schema, "properties": {**own, REPEAT: why}}


def _decided_already(params: CallToolRequestParams, state: str) -> CallToolRequestParams:
    """Return the request as it comes back after the user was asked."""
    return params.model_copy(update={"request_state": state, "input_responses": None})
