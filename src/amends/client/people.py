"""For people and machines: approvals, doubts, plans, budgets, locks, halts, permits, tokens and the record itself.

Each function is a verb of the client with the name of the runtime's verb. There is no ``by``: the service records who
decides by the token. A decision that is sent twice would be refused the second time, as if somebody else had been first:
it is not sent again if the first answer was lost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from amends import (
    Absent,
    Answer,
    Approval,
    BudgetState,
    Call,
    Checkpoint,
    Collected,
    CostLine,
    Doubt,
    Erasure,
    Event,
    Halt,
    Happened,
    InboxItem,
    Lock,
    Overview,
    Permit,
    Precedents,
    Preview,
    Probed,
    Recent,
    Replayed,
    Report,
    RollbackPlan,
    RunInfo,
    Schema,
    Shift,
    ShiftProblem,
    Spending,
    Token,
    ToolCall,
    ToolInfo,
    ToolUse,
    Unknown,
    Verified,
)
from amends.client import records
from amends.client.exchange import PAGE, AnyClient, ask, pages, part, post, read, said, whole
from amends.client.flows import Sleep
from amends.client.problems import answer_error, error_of
from amends.client.records import Facts
from amends.errors import CallNotFound, NotFound, UsageError

POLL_S, POLL_S_MAX = 0.05, 1.0
"""How often long work is asked for: less and less often."""
START_WAIT_S = 20.0
"""How long one request waits for the end of an agent's work."""
NOT_SAID: Any = object()
Until = datetime | timedelta | float


# ---- Tools and the service itself


async def schemas(
    client: AnyClient,
    style: Literal["openai", "responses", "anthropic", "gemini", "ollama", "mcp"] = "openai",
    *,
    strict: bool = False,
) -> list[dict[str, Any]]:
    """Return the tools of the service as a model gets them."""
    found = await read(client, "/v1/tools", style=style, strict=strict)
    tools: list[dict[str, Any]] = found["tools"]
    return tools


async def health(client: AnyClient) -> dict[str, Any]:
    """Return that the service runs, and its version."""
    found: dict[str, Any] = await read(client, "/health")
    return found


async def ready(client: AnyClient) -> dict[str, Any]:
    """Return that the service can work; raise ``ServiceError`` if its ledger does not answer."""
    found: dict[str, Any] = (await ask(client, "GET", "/ready", patience=0.0)).json()
    return found


async def openapi(client: AnyClient) -> dict[str, Any]:
    """Return the OpenAPI document of the service."""
    found: dict[str, Any] = await read(client, "/v1/openapi.json")
    return found


async def metrics(client: AnyClient) -> str:
    """Return the metrics of the service as Prometheus reads them."""
    return (await ask(client, "GET", "/metrics")).text


async def workers(client: AnyClient) -> list[Facts]:
    """Return the workers that are there: ``id``, ``name``, ``tools``, ``by`` and ``lease`` of each."""
    return await whole(client, "/v1/workers", records.facts_of)


async def check(client: AnyClient, plan: Sequence[Any], /) -> Facts:
    """Return every violation of the ordering law in a plan (``problems``), and an allowed order (``lawful_order``)."""
    found: Facts = records.facts_of(await post(client, "/v1/check", {"plan": plain_plan(plan)}))
    return found


def plain_plan(plan: Sequence[Any]) -> list[Any]:
    """Return a plan as plain data: each call as a mapping, calls that run in parallel as a list."""

    def plain(one: Any) -> Any:
        if isinstance(one, Mapping):
            return dict(one)
        if isinstance(one, ToolCall):
            return {"tool": one.tool, "args": dict(one.args) if isinstance(one.args, Mapping) else one.args}
        return [plain(inner) for inner in one]

    return [plain(one) for one in plan]


async def test_rules(  # the name is the runtime's
    client: AnyClient,
    tool: str,
    args: Mapping[str, Any] | None = None,  # noqa: PT028
    *,
    agent: str | None = None,  # noqa: PT028
) -> Facts:
    """Return what each rule says about a call and which one decides; start and record nothing."""
    body = {"tool": tool, "args": dict(args or {}), **said(agent=agent)}
    found: Facts = records.facts_of(await post(client, "/v1/rules/test", body))
    return found


# ---- Runs and calls


def runs(client: AnyClient, filter: str = "", *, after: str = "") -> AsyncGenerator[RunInfo, None]:
    """List runs, newest first."""
    return pages(client, "/v1/runs", records.run_of, after=after, filter=filter)


async def info(client: AnyClient, run_id: str) -> RunInfo:
    """Return one run, without its calls."""
    return records.run_of(await read(client, f"/v1/runs/{part(run_id)}"))


async def report(client: AnyClient, run_id: str) -> Report:
    """Return what a run did."""
    return records.report_of(await read(client, f"/v1/runs/{part(run_id)}/report"))


def calls(client: AnyClient, filter: str = "", *, after: str = "") -> AsyncGenerator[Call, None]:
    """List calls, newest first."""
    return pages(client, "/v1/calls", records.call_of, after=after, filter=filter)


async def call(client: AnyClient, call_id: str) -> Call:
    """Return one call."""
    return records.call_of(await read(client, f"/v1/calls/{part(call_id)}"))


async def told(client: AnyClient, call_id: str) -> Answer | None:
    """Return the text for a model about a call, as in its answer; None: the call has not ended."""
    data = (await read(client, f"/v1/calls/{part(call_id)}/told"))["answer"]
    return None if data is None else answer_of(data)


def answer_of(data: Mapping[str, Any]) -> Answer:
    """Return the answer for a model."""
    about = None if data["call"] is None else records.call_of(data["call"])
    return Answer(data["status"], data["text"], data["value"], about, answer_error(data["error"], about))


async def _calls_of(client: AnyClient, ids: set[str], known: dict[str, Call]) -> dict[str, Call]:
    for id in sorted(ids - set(known)):
        try:
            known[id] = await call(client, id)
        except CallNotFound:
            continue
    return known


async def plan_rollback(client: AnyClient, run_id: str) -> RollbackPlan:
    """Return what a rollback would do now, in order, and what it cannot undo; its hash binds the rollback."""
    data = await read(client, f"/v1/runs/{part(run_id)}/plan")
    found = await report(client, run_id)
    known = await _calls_of(client, records.ids_in(data), records.calls_of_report(found.calls, found.children))
    return records.plan_of(data, known)


async def rollback(
    client: AnyClient,
    run_id: str,
    *,
    why: str,
    plan: RollbackPlan | str | None = None,
    accept: Sequence[str] = (),
) -> Report:
    """Take a run back, as an operator; with ``plan`` only if it is still what was shown.

    ``accept``: ids of calls without a compensation that stay.
    """
    body = said(why=why, plan=plan.hash if isinstance(plan, RollbackPlan) else plan, accept=list(accept))
    return records.report_of(await post(client, f"/v1/runs/{part(run_id)}/rollback", body))


async def abandon(client: AnyClient, run_id: str, *, why: str) -> Report:
    """Close a run and leave its effects standing; the report names each of them."""
    return records.report_of(await post(client, f"/v1/runs/{part(run_id)}/abandon", {"why": why}, is_repeatable=False))


async def finish(client: AnyClient, run_id: str, *, why: str) -> Report:
    """Close a run that was interrupted after its pivot as committed."""
    return records.report_of(await post(client, f"/v1/runs/{part(run_id)}/finish", {"why": why}, is_repeatable=False))


async def fork(client: AnyClient, run_id: str, *, at: str, id: str) -> str:
    """Make a new run that shares the calls of this one up to and including call ``at``; return its id, to be opened.

    ``id``: of the new run; needed, because it is what makes a lost answer harmless.
    """
    made = await post(client, f"/v1/runs/{part(run_id)}/fork", {"at": at, "id": id}, is_repeatable=False)
    new: str = made["id"]
    return new


async def compare(client: AnyClient, left: str, right: str) -> Facts:
    """Compare two runs call by call: the first that differs, other arguments, other results, other costs."""
    found: Facts = records.facts_of(await read(client, "/v1/compare", left=left, right=right))
    return found


async def reconcile(client: AnyClient, tool: str, *, limit: int = 1_000) -> Facts:
    """Compare the ledger with the world for one tool: find what only one of them has. Change nothing."""
    found: Facts = records.facts_of(await post(client, "/v1/reconcile", {"tool": tool, "limit": limit}))
    return found


# ---- The inbox and approvals


async def inbox(client: AnyClient, filter: str = "") -> list[InboxItem]:
    """Return everything that waits for a person: soonest to expire first, then oldest."""
    return await whole(client, "/v1/inbox", records.inbox_of, filter=filter)


def approvals(client: AnyClient, filter: str = "state:pending", *, after: str = "") -> AsyncGenerator[Approval, None]:
    """List requests for approval, newest first."""
    return pages(client, "/v1/approvals", records.approval_of, after=after, filter=filter)


async def approval(client: AnyClient, approval_id: str) -> Approval:
    """Return one request for approval, with the digest of what is approved."""
    return records.approval_of(await read(client, f"/v1/approvals/{part(approval_id)}"))


async def oncall(client: AnyClient, role: str | None = None, *, at: datetime | None = None) -> list[Shift]:
    """List who is on call now, or at a time; ``role``: for one role."""
    when = None if at is None else at.isoformat()
    found = await read(client, "/v1/oncall", **said(role=role, at=when))
    return [records.record(Shift, one) for one in found["items"]]


async def check_oncall(client: AnyClient, *, days: float = 14.0) -> list[ShiftProblem]:
    """List what is wrong with the on-call table in the coming days: gaps, overlaps, people who may not decide."""
    found = await read(client, "/v1/oncall/problems", days=days)
    return [records.record(ShiftProblem, one) for one in found["items"]]


async def precedents(client: AnyClient, approval_id: str) -> Precedents:
    """Return what a request can be compared with: the last approved call of its tool, and what is usual for its numbers."""
    return records.record(Precedents, await read(client, f"/v1/approvals/{part(approval_id)}/precedents"))


async def _decided(
    client: AnyClient, approval_id: str, verb: str, body: Mapping[str, Any], *, is_repeatable: bool = False
) -> Approval:
    at = f"/v1/approvals/{part(approval_id)}/{verb}"
    return records.approval_of(await post(client, at, body, is_repeatable=is_repeatable))


async def approve(
    client: AnyClient, approval_id: str, *, digest: str, why: str = "", behalf: str | None = None
) -> Approval:
    """Approve exactly the request whose ``digest`` was shown. ``behalf``: who delegated it."""
    return await _decided(
        client, approval_id, "approve", said(digest=digest, why=why, behalf=behalf), is_repeatable=True
    )


async def reject(client: AnyClient, approval_id: str, *, reason: str) -> Approval:
    """Reject a request; the model is told the reason."""
    return await _decided(client, approval_id, "reject", {"reason": reason})


async def edit(client: AnyClient, approval_id: str, args: Mapping[str, Any], *, why: str) -> Approval:
    """Reject a request and make one for these arguments instead; whoever edits it cannot approve it."""
    return await _decided(client, approval_id, "edit", {"args": dict(args), "why": why})


async def withdraw(client: AnyClient, approval_id: str, *, why: str) -> Approval:
    """Withdraw a request that nobody needs to decide any more."""
    return await _decided(client, approval_id, "withdraw", {"why": why})


async def ask_again(client: AnyClient, approval_id: str, *, why: str) -> Approval:
    """Make a new request for a call whose request expired."""
    return await _decided(client, approval_id, "ask_again", {"why": why})


async def bypass(client: AnyClient, approval_id: str, *, digest: str, why: str) -> Approval:
    """Approve regardless of roles and numbers, on the record; never one's own request."""
    return await _decided(client, approval_id, "bypass", {"digest": digest, "why": why})


async def redeem(client: AnyClient, token: str, *, why: str = "", reason: str = "") -> Approval:
    """Use a signed link to approve or reject exactly what was shown with it. ``reason``: of a rejection."""
    body = {"token": token, "why": why, "reason": reason}
    return records.approval_of(await post(client, "/v1/links/redeem", body, is_repeatable=False))


async def delegate(client: AnyClient, *, to: str, until: Until, why: str) -> None:
    """Let somebody decide for oneself until a time, or for so many seconds."""
    await post(client, "/v1/delegations", {"to": to, "until": _seconds(until), "why": why}, is_repeatable=False)


def _seconds(until: Until) -> float:
    """Return how many seconds from now."""
    if isinstance(until, timedelta):
        return until.total_seconds()
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise UsageError("a time needs its zone", hint="datetime.now(UTC) + timedelta(hours=1)")
        return (until - datetime.now(UTC)).total_seconds()
    return float(until)


# ---- Doubts


def doubts(client: AnyClient, filter: str = "", *, after: str = "") -> AsyncGenerator[Doubt, None]:
    """List calls whose outcome is unknown, with what was sent and what was learned since."""
    return pages(client, "/v1/doubts", records.doubt_of, after=after, filter=filter)


async def probe(client: AnyClient, call_id: str) -> Probed[Any]:
    """Probe a call; decide nothing, and keep the answer as evidence."""
    return records.probed_of(await post(client, f"/v1/calls/{part(call_id)}/probe", {}))


async def preview(client: AnyClient, call_id: str) -> Preview:
    """Return what the run would do next for each of the three answers to a doubt; change nothing."""
    data = await read(client, f"/v1/calls/{part(call_id)}/preview")
    return records.preview_of(data, await _calls_of(client, records.ids_in(data), {}))


async def resolve(client: AnyClient, call_id: str, answer: Probed[Any], *, why: str) -> Report:
    """Settle a doubt: ``Happened(result)``, ``Absent()``, or ``Unknown()``: it stays as residue."""
    if not isinstance(answer, Happened | Absent | Unknown):
        raise UsageError(f"an answer is Happened(result), Absent() or Unknown(), not {answer!r}")
    told = answer.to_dict()
    told.pop("why", None)
    at = f"/v1/calls/{part(call_id)}/resolve"
    return records.report_of(await post(client, at, {**told, "why": why}, is_repeatable=False))


async def retry(client: AnyClient, call_id: str, *, why: str, result: object = NOT_SAID) -> Report:
    """Retry a compensation or a retriable that gave up.

    ``result``: what the call returned, if its compensation needs it and nobody has it.
    """
    body = {"why": why} if result is NOT_SAID else {"why": why, "result": result}
    return records.report_of(await post(client, f"/v1/calls/{part(call_id)}/retry", body, is_repeatable=False))


async def accept(client: AnyClient, call_id: str, *, why: str) -> Report:
    """Accept that an effect stays, or that nobody will know: it becomes residue."""
    at = f"/v1/calls/{part(call_id)}/accept"
    return records.report_of(await post(client, at, {"why": why}, is_repeatable=False))


async def decide(client: AnyClient, call_id: str, decision: Literal["run", "replay", "refuse"], *, why: str) -> Report:
    """Decide a held call: run it, answer it with the result of its twin, or refuse it."""
    body = {"decision": decision, "why": why}
    return records.report_of(await post(client, f"/v1/calls/{part(call_id)}/decide", body, is_repeatable=False))


# ---- Budgets, costs, locks


async def overview(client: AnyClient, filter: str = "", *, after: str = "", limit: int = 50) -> Overview:
    """Return one page of runs, newest first, with what they cost and how many runs are in each state."""
    return records.overview_of(await read(client, "/v1/overview", filter=filter, after=after, limit=limit))


async def budgets(client: AnyClient, filter: str = "") -> list[BudgetState]:
    """Return the state of every budget in its present period."""
    return await whole(client, "/v1/budgets", records.budget_of, filter=filter)


async def costs(
    client: AnyClient, by: Literal["run", "tool", "agent", "day"] = "run", filter: str = ""
) -> list[CostLine]:
    """Sum up what calls have cost, by run, tool, agent or day."""
    return await whole(client, "/v1/costs", records.cost_of, by=by, filter=filter)


async def spending(client: AnyClient, filter: str = "", *, newest: int = 1_000) -> list[Spending]:
    """Return the budgets that the newest calls were charged to, and the declared ones, with what each call took."""
    return await whole(client, "/v1/spending", records.spending_of, filter=filter, newest=newest)


async def tool_use(client: AnyClient, tool: str = "", *, newest: int = 1_000) -> list[ToolUse]:
    """Return how each tool did, or this one, among the newest calls: failures, doubts and durations."""
    return await whole(client, "/v1/tool_use", records.tool_use_of, tool=tool, newest=newest)


async def describe_tools(client: AnyClient) -> list[ToolInfo]:
    """Return the declared tools by name: kind, key, compensation, probe, approval, cost and schema of each."""
    return await whole(client, "/v1/declared_tools", records.tool_info_of)


async def unfinished(client: AnyClient, *, after: str = "", limit: int = 100) -> list[RunInfo]:
    """Return the root runs that have not ended, newest first, each with what happens to it at this moment (``now``)."""
    found: list[RunInfo] = []
    next_: str | None = after
    while next_ is not None and len(found) < limit:
        page = await read(client, "/v1/unfinished", after=next_, limit=min(PAGE, limit - len(found)))
        found += [records.run_of(one) for one in page["items"]]
        next_ = page["next"]
    return found


def locks(client: AnyClient, *, after: str = "") -> AsyncGenerator[Lock, None]:
    """List the locks that runs hold, with the runs that wait for each."""
    return pages(client, "/v1/locks", records.lock_of, after=after)


# ---- Halts and permits


async def halts(client: AnyClient) -> list[Halt]:
    """Return the halts in force."""
    return await whole(client, "/v1/halts", records.halt_of)


async def halt(client: AnyClient, *, why: str, agent: str | None = None, tool: str | None = None) -> Halt:
    """Halt: start nothing from now on, for the tenant, or for this agent or tool of it; what must be undone still is."""
    body = said(why=why, agent=agent, tool=tool)
    return records.halt_of(await post(client, "/v1/halts", body, is_repeatable=False))


async def unhalt(client: AnyClient, *, why: str, agent: str | None = None, tool: str | None = None) -> list[Halt]:
    """Lift every halt of exactly this extent."""
    extent = said(why=why, agent=agent, tool=tool)
    answer = await ask(client, "DELETE", "/v1/halts", query=extent, is_repeatable=False)
    return [records.halt_of(one) for one in answer.json()["items"]]


async def permits(client: AnyClient, tool: str = "") -> list[Permit]:
    """Return the permits that may still be used."""
    return await whole(client, "/v1/permits", records.permit_of, tool=tool)


async def permit(
    client: AnyClient,
    tool: str,
    args: Mapping[str, Any] | None = None,
    *,
    why: str = "",
    rule: Mapping[str, Any] | None = None,
    uses: int = 1,
    expires: Until = 86_400.0,
) -> Permit:
    """Approve calls of a tool before they are asked for: with exactly these arguments, or those that a rule matches."""
    given = said(args=None if args is None else dict(args), rule=None if rule is None else dict(rule))
    body = {"tool": tool, "why": why, "uses": uses, "expires": _seconds(expires), **given}
    return records.permit_of(await post(client, "/v1/permits", body, is_repeatable=False))


async def revoke(client: AnyClient, permit_id: str, *, why: str) -> Permit:
    """End a permit: it covers no further call."""
    answer = await ask(client, "DELETE", f"/v1/permits/{part(permit_id)}", query={"why": why})
    return records.permit_of(answer.json())


# ---- Tokens


async def tokens(client: AnyClient) -> list[Token]:
    """Return the tokens that are valid now, without their texts."""
    return await whole(client, "/v1/tokens", records.token_of)


async def create_token(
    client: AnyClient,
    name: str,
    *,
    scopes: Sequence[str] | str,
    why: str,
    principal: str = "",
    tenant: str | None = None,
    agent: str = "",
    expires: Until = 90 * 86_400.0,
) -> Token:
    """Create a token. Only this answer has its ``text``: the ledger keeps a digest."""
    listed = [scopes] if isinstance(scopes, str) else list(scopes)
    body: dict[str, Any] = {"name": name, "scopes": listed, "why": why, "acts_for": principal, "agent": agent}
    body |= {"expires": _seconds(expires), **said(of_tenant=tenant)}
    return records.token_of(await post(client, "/v1/tokens", body, is_repeatable=False))


async def revoke_token(client: AnyClient, token_id: str, *, why: str) -> Token:
    """End a token at once."""
    answer = await ask(client, "DELETE", f"/v1/tokens/{part(token_id)}", query={"why": why}, is_repeatable=False)
    return records.token_of(answer.json())


# ---- The record


def events(
    client: AnyClient, run_id: str | None = None, *, after: str = "", filter: str = ""
) -> AsyncGenerator[Event, None]:
    """List events, oldest first, of one run's tree or of the ledger; ``follow`` goes on as they happen."""
    return pages(client, "/v1/events", records.event_of, after=after, run=run_id, filter=filter)


async def newest_event(client: AnyClient, run_id: str | None = None) -> Event | None:
    """Return the last event, of one run's tree or of the ledger; None: there is none. Its ``place`` is where to follow from."""
    found = (await read(client, "/v1/events/newest", run=run_id))["event"]
    return None if found is None else records.event_of(found)


async def recent_events(
    client: AnyClient, filter: str = "", *, after: str = "", limit: int = 50, looks: int = 2_000
) -> Recent[Event]:
    """Return the newest events that pass the filter, newest first; ``next`` of the answer says where the search goes on."""
    found = await read(client, "/v1/events/recent", filter=filter, after=after, limit=limit, looks=looks)
    return Recent(tuple(records.event_of(one) for one in found["items"]), found["next"], found["looked"])


async def verify(
    client: AnyClient,
    *run_ids: str,
    filter: str = "",
    progress: Callable[[int, int], object] | None = None,
) -> Verified:
    """Verify the record, of these runs or of all, and return what was found; the service does it in the background.

    ``progress`` is called with how many runs and events were checked so far.
    """
    body = {"runs": list(run_ids), "filter": filter}
    return records.verified_of(await _done(client, "/v1/audit/verify", body, progress))


async def replay_each(
    client: AnyClient, runs: Iterable[str], agent: str, *, until: str | None = None, strict: bool = True
) -> list[Replayed]:
    """Replay runs against an agent of the server and return what each came to; no tool runs, and nothing is written."""
    body: dict[str, Any] = {"runs": list(runs), "strict": strict, **said(until=until)}
    found = await _done(client, f"/v1/agents/{part(agent)}/replay", body)
    return [records.replayed_of(one) for one in found["replayed"]]


async def _done(
    client: AnyClient, path: str, body: Mapping[str, Any], progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]:
    """Begin long work, wait for its end, and return what it came to."""
    begun = await post(client, path, body, is_repeatable=False)
    pause_s = POLL_S
    while begun["state"] == "running":
        await Sleep(pause_s)
        pause_s = min(pause_s * 1.5, POLL_S_MAX)
        begun = await read(client, f"/v1/jobs/{part(begun['id'])}")
        if progress is not None:
            progress(begun["runs"], begun["events"])
    if begun["state"] == "failed":
        raise error_of(begun["problem"])
    result: dict[str, Any] = begun["result"]
    return result


async def checkpoint(client: AnyClient, *, why: str = "") -> Checkpoint | None:
    """Write a checkpoint over the record; return the newest checkpoint. ``why``: for the event that says who ordered it."""
    made = (await post(client, "/v1/audit/checkpoint", {"why": why}))["checkpoint"]
    return None if made is None else records.checkpoint_of(made)


async def checkpoints(client: AnyClient, *, limit: int = 50) -> list[Checkpoint]:
    """Return the newest checkpoints of the ledger, the newest first."""
    return [records.checkpoint_of(one) for one in (await read(client, "/v1/audit/checkpoints", limit=limit))["items"]]


async def export(client: AnyClient, *run_ids: str) -> bytes:
    """Return everything that the ledger has of these runs as one file that anybody can verify: ``python FILE``."""
    return (await ask(client, "POST", "/v1/export", body={"runs": list(run_ids)})).content


async def load(client: AnyClient, bundle: bytes, *, why: str = "") -> list[str]:
    """Load the runs of a bundle as records that nothing changes; return their ids. ``why``: for the record of it."""
    loaded: list[str] = (await ask(client, "POST", "/v1/load", body=bundle, query=said(why=why or None))).json()["runs"]
    return loaded


# ---- For operators: the service and its ledger


async def settings(client: AnyClient) -> dict[str, Facts]:
    """Return every setting of the service: ``value`` and ``origin`` of each; a secret shows only that it is set."""
    found = (await read(client, "/v1/settings"))["settings"]
    return {name: Facts(one) for name, one in found.items()}


async def warnings(client: AnyClient) -> tuple[str, ...]:
    """Return what is valid but suspicious about the rules, budgets and tools of the service."""
    return tuple((await read(client, "/v1/settings"))["warnings"])


async def schema(client: AnyClient) -> Schema:
    """Return the schema version of the ledger and the one that the service knows."""
    return records.record(Schema, await read(client, "/v1/schema"))


async def gc(
    client: AnyClient,
    *,
    older_than: float | str | timedelta,
    dry_run: bool = False,
    tenant: str | None = None,
    limit: int | None = None,
    why: str = "",
) -> Collected:
    """Remove arguments, results and errors of trees that ended long enough ago; identities and events stay."""
    age = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
    body = {"older_than": age if isinstance(age, str) else float(age), "dry_run": dry_run, "why": why}
    return records.record(Collected, await _done(client, "/v1/gc", body | said(of_tenant=tenant, limit=limit)))


async def erase(
    client: AnyClient,
    *,
    why: str,
    tags: str | Sequence[str] = (),
    principal: str = "",
    fields: Mapping[str, object] | None = None,
    runs: str | Sequence[str] = (),
    dry_run: bool = False,
    partial: bool = False,
    residue: bool = False,
) -> Erasure:
    """Erase everything recorded about one person; ``verify`` still proves the rest, and names what was erased.

    ``tags``, ``principal``, ``fields`` (the path of an argument and its value) and ``runs`` are added up. ``dry_run``:
    tell what would be erased. ``partial``: erase what can be, although other runs cannot. ``residue``: also ended runs that
    left something standing or in doubt.
    """
    subject = {"tags": _many(tags), "of_principal": principal, "fields": dict(fields or {}), "runs": _many(runs)}
    options = {"why": why, "dry_run": dry_run, "partial": partial, "residue": residue}
    return records.record(Erasure, await _done(client, "/v1/erase", subject | options))


def _many(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


async def reencrypt(client: AnyClient, *, why: str = "") -> int:
    """Encrypt every payload of the ledger with the newest key of the service; return how many rows changed."""
    rows: int = (await _done(client, "/v1/reencrypt", {"why": why}))["rows"]
    return rows


async def recover(client: AnyClient, *, limit: int = 100, why: str = "") -> list[Facts]:
    """Take over abandoned runs, as a worker does; return ``id``, ``tenant`` and ``state`` of each."""
    return [Facts(one) for one in (await _done(client, "/v1/recover", {"limit": limit, "why": why}))["runs"]]


# ---- Tools and agents of the server


async def kind_of(client: AnyClient, tool: str) -> str | None:
    """Return the kind of a tool; None if nobody has declared it."""
    found = await _tool(client, tool)
    return None if found is None else str(found["kind"])


async def may_repeat(client: AnyClient, tool: str) -> bool:
    """Return whether a model may repeat a call of this tool on purpose."""
    found = await _tool(client, tool)
    return found is not None and bool(found["may_repeat"])


async def _tool(client: AnyClient, tool: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = await read(client, f"/v1/tools/{part(tool)}")
    except NotFound:
        return None
    return found


async def start(
    client: AnyClient, agent: str, *, id: str, input: object = None, requires: Sequence[str] | None = None
) -> Any:
    """Give a new run to an agent of the server, wait for its end, and return its output.

    ``id``: of the run; needed, because it is what makes a lost answer harmless. Raises what the run ended with.
    """
    at = f"/v1/agents/{part(agent)}/start"
    body = {"id": id, "wait": START_WAIT_S, **said(input=input, requires=None if requires is None else list(requires))}
    while (await ask(client, "POST", at, body=body)).status_code == 202:
        await Sleep(POLL_S_MAX)
    return (await report(client, id)).output
