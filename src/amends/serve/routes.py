"""The table of routes: every route is one object that says what it is, who may use it, and what it answers.

The service, the OpenAPI document, the reference page and the tests of authorisation are all made from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel
from starlette.responses import Response

from amends import Approval, Call, Checkpoint, Event, Lock, RunInfo, ToolUse
from amends.serve import (
    audit,
    children,
    claims,
    events,
    long_work,
    metrics,
    operators,
    people,
    recent,
    records,
    replays,
    runs,
    started,
    tokens,
    workers,
)
from amends.serve.exchange import AnyQuery, Exchange, FilterQuery, NoBody, PageQuery, Query, Reply
from amends.serve.login import Logins
from amends.serve.problems import NoSuchRoute

Handler: TypeAlias = Callable[[Exchange], Awaitable[Reply | Response]]
Thing: TypeAlias = Literal["nothing", "tenant", "run", "call", "approval", "claim", "worker", "ledger"]
READ: Final = ("viewer",)
READ_OWN: Final = ("viewer", "agent")
DRIVE: Final = ("agent",)
REPORT: Final = ("agent", "worker")
WORK: Final = ("worker",)
DECIDE: Final = ("approver",)
OPERATE: Final = ("operator",)
COMMON: Final = (400, 401, 403, 404, 405, 409, 422, 429, 503)
"""What every route that needs a token may answer besides its own answers."""
WITH_BODY: Final = (408, 413, 415)


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    ``name`` is the verb of the runtime or of the run. ``scopes``: one of them is needed; None: public. ``of``: what the
    address names, and so what is looked up in the tenant of whoever asks: something of another tenant is not found, and
    an agent finds only what belongs to its own runs. ``of="ledger"``: it concerns every tenant, and needs an operator of
    every tenant. ``answers``: the shape of each answer that is no problem.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    name: str
    summary: str
    scopes: tuple[str, ...] | None
    of: Thing
    handler: Handler
    answers: Mapping[int, Any]
    body: type[BaseModel] | None = None
    query: type[BaseModel] = Query
    problems: tuple[int, ...] = ()
    example: Mapping[str, Any] | None = None
    """A body that the document shows."""
    takes_key: bool = False
    """Whether the header Idempotency-Key is read."""
    media_type: str = "application/json"
    """Of the answer."""
    body_type: str = "application/json"
    streams: bool = False
    """Whether ``Accept: text/event-stream`` gets a stream instead."""
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The routes that follow, by name: which of their parameters this route's answer has, and where."""
    tags: tuple[str, ...] = field(default=())

    @property
    def statuses(self) -> tuple[int, ...]:
        """Every status of a problem that the document names."""
        common = COMMON if self.scopes is not None else (400, 405, 422, 503)
        with_body = WITH_BODY if self.method == "POST" else ()
        return tuple(sorted({*common, *with_body, *self.problems} - set(self.answers)))


def _login(name: str) -> Handler:
    """Return the handler of one address of the login (``amends.serve.login``)."""

    async def handler(x: Exchange) -> Response:
        if x.service.logins is None:
            raise NoSuchRoute("the program that serves this has its own way to log in")
        found: Response = await getattr(x.service.logins, name)(x.request)
        return found

    handler.__doc__ = getattr(Logins, name).__doc__
    return handler


OF_RUN: Final = {
    name: {"id": "$response.body#/id"}
    for name in ("answer", "begin", "commit", "rollback", "renew", "suspend", "report", "run", "plan_rollback")
}
OF_CLAIM: Final = {
    name: {"call": "$response.body#/call", "body.token": "$response.body#/token"}
    for name in ("succeed", "fail", "renew_claim")
}
OF_CALL: Final = {
    "call": {"id": "$response.body#/call/id"},
    "probe": {"id": "$response.body#/call/id"},
    "approval": {"id": "$response.body#/error/approval/id"},
    "approve": {"id": "$response.body#/error/approval/id", "body.digest": "$response.body#/error/approval/digest"},
    "reject": {"id": "$response.body#/error/approval/id"},
}
AGENTS, PEOPLE, AUDITORS, OPERATORS = ("agents",), ("people",), ("auditors",), ("operators",)
MACHINES, BROWSERS = ("machines",), ("browsers",)
LOGIN: Final = (401, 403, 404)
ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/tools", "schemas", "Describe the tools as a model gets them", READ_OWN, "nothing", runs.schemas,
          {200: records.Tools}, query=runs.ToolsQuery, tags=AGENTS),
    Route("GET", "/v1/tools/{id}", "kind_of", "Return the kind of a tool", READ_OWN, "nothing", runs.kind_of,
          {200: records.KindRecord}, tags=AGENTS),
    Route("POST", "/v1/runs", "open", "Open a run, or resume the run with this id", DRIVE, "tenant", runs.open,
          {201: records.OpenedRun, 200: records.OpenedRun}, body=runs.OpenRun, problems=(409,), takes_key=True,
          example={"id": "order-1042", "input": {"order": "1042"}, "recover": "rollback"}, links=OF_RUN, tags=AGENTS),
    Route("GET", "/v1/runs", "runs", "List runs, newest first", READ_OWN, "tenant", runs.runs,
          {200: records.Page[RunInfo]}, query=FilterQuery, tags=AGENTS),
    Route("GET", "/v1/overview", "overview", "Return a page of runs with their sums, and counts by state", READ, "tenant",
          people.overview, {200: records.OverviewRecord}, query=people.OverviewQuery, tags=PEOPLE),
    Route("GET", "/v1/runs/{id}", "run", "Return one run", READ_OWN, "run", runs.run, {200: RunInfo}, tags=AGENTS),
    Route("GET", "/v1/runs/{id}/report", "report", "Return what a run did", READ_OWN, "run", runs.report,
          {200: records.ReportRecord}, tags=AGENTS),
    Route("POST", "/v1/runs/{id}/calls", "answer", "Make the call that a model asked for", DRIVE, "run", runs.answer,
          {200: records.AnswerRecord, 202: records.AnswerRecord}, body=runs.MakeCall, problems=(409,), takes_key=True,
          example={"tool": "charge", "args": {"order": "1042", "cents": 4200}}, links=OF_CALL, tags=AGENTS),
    Route("POST", "/v1/runs/{id}/approval_for", "approval_for", "Ask for the approval of a call before it is made", DRIVE,
          "run", runs.approval_for, {200: records.ApprovalForRecord}, body=runs.Foreseen, tags=AGENTS,
          example={"tool": "wire", "args": {"order": "1042", "cents": 4200}}),
    Route("POST", "/v1/runs/{id}/turns", "answer_all", "Make the calls of one turn of a model", DRIVE, "run",
          runs.answer_all, {200: records.AnswersRecord}, body=runs.Turn, problems=(409,), tags=AGENTS,
          example={"calls": [{"tool": "stock", "args": {"item": "kettle"}}]}),
    Route("POST", "/v1/runs/{id}/execute", "execute", "Execute a model's plan", DRIVE, "run", runs.execute,
          {200: records.AnswersRecord}, body=runs.Plan, problems=(409,), tags=AGENTS,
          example={"plan": [{"tool": "charge", "args": {"order": "1042", "cents": 4200}}]}),
    Route("POST", "/v1/check", "check", "Check a model's plan; start nothing", READ_OWN, "nothing", runs.check,
          {200: records.CheckRecord}, body=runs.Plan, problems=(409,), tags=AGENTS,
          example={"plan": [{"tool": "charge", "args": {"order": "1042", "cents": 4200}}]}),
    Route("POST", "/v1/agents/{id}/start", "start", "Give a new run to an agent of the server", DRIVE, "nothing",
          started.start, {202: records.ForkedRecord, 200: records.ForkedRecord}, body=started.Start, takes_key=True,
          tags=AGENTS, example={"id": "order-1043", "input": {"order": "1043"}}),
    Route("POST", "/v1/agents/{id}/replay", "replay_each", "Begin to replay runs against an agent of the server", OPERATE,
          "nothing", replays.replay_each, {202: records.LongWorkRecord}, body=replays.ReplayEach, tags=AGENTS,
          example={"runs": ["order-1043"]}),
    Route("POST", "/v1/runs/{id}/children", "open_child", "Open a run inside this one", DRIVE, "run", runs.open_child,
          {201: records.OpenedRun, 200: records.OpenedRun}, body=children.OpenChild, takes_key=True, tags=AGENTS,
          example={"id": "leg-1", "input": {"leg": "1"}}, links=OF_RUN),
    Route("POST", "/v1/runs/{id}/before_end", "before_end", "Return what is missing or has failed, before a model stops", DRIVE,
          "run", runs.before_end, {200: records.TextRecord}, body=NoBody, problems=(409,), tags=AGENTS),
    Route("POST", "/v1/runs/{id}/commit", "commit", "Commit the run: its effects stay", DRIVE, "run", runs.commit,
          {200: records.ReportRecord, 202: records.ReportRecord}, body=runs.Commit, problems=(409,), tags=AGENTS,
          example={"output": {"paid": True}}),
    Route("POST", "/v1/runs/{id}/rollback", "rollback", "Roll the run back", DRIVE, "run", runs.rollback,
          {200: records.ReportRecord, 202: records.ReportRecord}, body=runs.RollBack, problems=(409,),
          example={"why": "the customer has changed their mind"}, tags=AGENTS),
    Route("POST", "/v1/runs/{id}/renew", "renew", "Renew the lease of the client", DRIVE, "run", runs.renew,
          {200: records.RenewedRun}, body=NoBody, problems=(409,), tags=AGENTS),
    Route("POST", "/v1/runs/{id}/suspend", "suspend", "Suspend the run, so that it can be opened again", DRIVE, "run",
          runs.suspend, {200: records.ReportRecord, 202: records.ReportRecord}, body=NoBody, problems=(409,),
          tags=AGENTS),
    Route("POST", "/v1/runs/{id}/claims", "begin", "Claim a call, to execute it in the client", DRIVE, "run", claims.begin,
          {201: records.ClaimRecord, 200: records.ClaimRecord, 202: records.AnswerRecord}, body=claims.MakeClaim,
          problems=(409,), takes_key=True, links=OF_CLAIM, tags=AGENTS,
          example={"tool": "charge", "args": {"order": "1042", "cents": 4200}, "lease": 30}),
    Route("POST", "/v1/claims/{call}/succeed", "succeed", "Report that a claimed call happened", REPORT, "claim",
          claims.succeed, {200: records.ReportedRecord}, body=claims.Succeed, problems=(409,), tags=AGENTS,
          example={"token": "WyIiLC…", "result": "ch_1042"}),
    Route("POST", "/v1/claims/{call}/fail", "fail", "Report that a claimed call ended with an error", REPORT, "claim",
          claims.fail, {200: records.ReportedRecord}, body=claims.Fail, problems=(409,), tags=AGENTS,
          example={"token": "WyIiLC…", "error": "card declined", "no_effect": True}),
    Route("POST", "/v1/claims/{call}/renew", "renew_claim", "Renew the work lease of a claimed call", REPORT, "claim",
          claims.renew, {200: records.ReportedRecord}, body=claims.RenewClaim, problems=(409,), tags=AGENTS,
          example={"token": "WyIiLC…"}),
    Route("POST", "/v1/workers", "register", "Add a worker and declare the tools that it performs", WORK, "tenant",
          workers.register, {201: records.WorkerRecord}, body=workers.Register, problems=(409,), tags=AGENTS,
          links={"take": {"id": "$response.body#/id"}, "leave": {"id": "$response.body#/id"}},
          example={"name": "bank", "tools": [{"name": "wire", "kind": "pivot", "lease": 20, "probe": True,
                   "parameters": {"type": "object", "properties": {"order": {"type": "string"}},
                                  "required": ["order"]}}]}),
    Route("GET", "/v1/workers", "workers", "List the registered workers", READ, "tenant", workers.workers,
          {200: records.Page[records.WorkerRecord]}, query=PageQuery, tags=AGENTS),
    Route("POST", "/v1/workers/{id}/take", "take", "Wait for one piece of work", WORK, "worker", workers.take,
          {200: records.WorkRecord}, body=workers.TakeWork, tags=AGENTS, example={"wait": 0}),
    Route("DELETE", "/v1/workers/{id}", "leave", "Remove a worker that ends", WORK, "worker", workers.leave,
          {200: records.WorkerRecord}, tags=AGENTS),
    # ---- For people
    Route("GET", "/v1/inbox", "inbox", "List everything that waits for a person", READ, "tenant", people.inbox,
          {200: records.Page[records.InboxRecord]}, query=FilterQuery, tags=PEOPLE),
    Route("GET", "/v1/approvals", "approvals", "List requests for approval", READ, "tenant", people.approvals,
          {200: records.Page[Approval]}, query=people.ApprovalsQuery, tags=PEOPLE),
    Route("GET", "/v1/approvals/{id}", "approval", "Return one request for approval", READ_OWN, "approval",
          people.approval, {200: Approval}, tags=PEOPLE),
    Route("GET", "/v1/approvals/{id}/precedents", "precedents", "Return what a request can be compared with", READ,
          "approval", people.precedents, {200: records.PrecedentsRecord}, tags=PEOPLE),
    Route("POST", "/v1/approvals/{id}/approve", "approve", "Approve exactly what was shown", DECIDE, "approval",
          people.approve, {200: Approval}, body=people.Approve, problems=(409,), tags=PEOPLE,
          example={"digest": "5c1f…", "why": "checked with the customer"}),
    Route("POST", "/v1/approvals/{id}/reject", "reject", "Reject a request", DECIDE, "approval", people.reject,
          {200: Approval}, body=people.Reject, problems=(409,), tags=PEOPLE, example={"reason": "too expensive"}),
    Route("POST", "/v1/approvals/{id}/edit", "edit", "Ask for other arguments instead", DECIDE, "approval",
          people.edit, {200: Approval}, body=people.Edit, problems=(409,), tags=PEOPLE,
          example={"args": {"order": "1042", "cents": 4000}, "why": "the discount was missing"}),
    Route("POST", "/v1/approvals/{id}/withdraw", "withdraw", "Withdraw a request", DECIDE, "approval", people.withdraw,
          {200: Approval}, body=people.Why, problems=(409,), tags=PEOPLE, example={"why": "not needed any more"}),
    Route("POST", "/v1/approvals/{id}/ask_again", "ask_again", "Ask again for a request that expired", DECIDE,
          "approval", people.ask_again, {200: Approval}, body=people.Why, problems=(409,), tags=PEOPLE,
          example={"why": "nobody was there"}),
    Route("POST", "/v1/approvals/{id}/bypass", "bypass", "Approve regardless of roles, on the record", OPERATE,
          "approval", people.bypass, {200: Approval}, body=people.Bypass, problems=(409,), tags=PEOPLE,
          example={"digest": "5c1f…", "why": "incident 7"}),
    Route("POST", "/v1/links/redeem", "redeem", "Decide by a signed link", DECIDE, "tenant", people.redeem,
          {200: Approval}, body=people.Redeem, problems=(409,), tags=PEOPLE, example={"token": "eyJ…"}),
    Route("GET", "/v1/oncall", "oncall", "List who is on call", READ, "nothing", people.oncall,
          {200: records.OnCallRecord}, query=people.OnCallQuery, tags=PEOPLE),
    Route("GET", "/v1/oncall/problems", "check_oncall", "Find gaps and overlaps in the on-call table", READ, "nothing",
          people.check_oncall, {200: records.OnCallProblems}, query=people.CheckOnCallQuery, tags=PEOPLE),
    Route("POST", "/v1/delegations", "delegate", "Delegate decisions to somebody, for a time", DECIDE, "tenant",
          people.delegate, {201: records.DelegationRecord}, body=people.Delegate, problems=(409,), tags=PEOPLE,
          example={"to": "ben", "until": 86400, "why": "holiday"}),
    Route("GET", "/v1/calls", "calls", "List calls, newest first", READ_OWN, "tenant", people.calls,
          {200: records.Page[Call]}, query=FilterQuery, tags=PEOPLE),
    Route("GET", "/v1/calls/{id}", "call", "Return one call", READ_OWN, "call", people.call, {200: Call}, tags=PEOPLE),
    Route("GET", "/v1/calls/{id}/told", "told", "Return the text for a model about a call", READ_OWN, "call", people.told,
          {200: records.ToldRecord}, tags=PEOPLE),
    Route("GET", "/v1/calls/{id}/preview", "preview", "Show what the run would do after each answer to a doubt", READ, "call",
          people.preview, {200: records.PreviewRecord}, tags=PEOPLE),
    Route("POST", "/v1/calls/{id}/probe", "probe", "Probe a call", OPERATE, "call", people.probe,
          {200: records.ProbedRecord}, body=NoBody, problems=(409,), tags=PEOPLE),
    Route("POST", "/v1/calls/{id}/resolve", "resolve", "Settle a doubt", OPERATE, "call", people.resolve,
          {200: records.ReportRecord}, body=people.Resolve, problems=(409,), tags=PEOPLE,
          example={"answer": "happened", "result": "ch_1042", "why": "it is in the bank's list"}),
    Route("POST", "/v1/calls/{id}/retry", "retry", "Retry a compensation or a retriable that gave up", OPERATE, "call",
          people.retry, {200: records.ReportRecord}, body=people.RetryCall, problems=(409,), tags=PEOPLE,
          example={"why": "the bank is back"}),
    Route("POST", "/v1/calls/{id}/accept", "accept", "Accept that an effect stays", OPERATE, "call", people.accept,
          {200: records.ReportRecord}, body=people.Why, problems=(409,), tags=PEOPLE, example={"why": "paid by hand"}),
    Route("POST", "/v1/calls/{id}/decide", "decide", "Decide a held call", OPERATE, "call", people.decide,
          {200: records.ReportRecord}, body=people.Decide, problems=(409,), tags=PEOPLE,
          example={"decision": "replay", "why": "it is the same order"}),
    Route("GET", "/v1/doubts", "doubts", "List calls whose outcome is unknown", READ, "tenant", people.doubts,
          {200: records.Page[records.DoubtRecord]}, query=FilterQuery, tags=PEOPLE),
    Route("GET", "/v1/runs/{id}/plan", "plan_rollback", "Show what a rollback would do", READ, "run",
          people.plan_rollback, {200: records.PlanRecord}, tags=PEOPLE),
    Route("POST", "/v1/runs/{id}/abandon", "abandon", "Close a run and leave its effects standing", OPERATE, "run",
          people.abandon, {200: records.ReportRecord}, body=people.Why, problems=(409,), tags=PEOPLE,
          example={"why": "settled by hand"}),
    Route("POST", "/v1/runs/{id}/finish", "finish", "Close an interrupted run as committed", OPERATE, "run",
          people.finish, {200: records.ReportRecord}, body=people.Why, problems=(409,), tags=PEOPLE,
          example={"why": "nothing is missing"}),
    Route("POST", "/v1/runs/{id}/fork", "fork", "Copy a run up to one call, to continue differently", DRIVE, "run",
          people.fork, {201: records.ForkedRecord}, body=people.Fork, problems=(409,), tags=PEOPLE,
          example={"at": "call_…", "id": "order-1042-b"}),
    Route("GET", "/v1/compare", "compare", "Compare two runs call by call", READ, "tenant", people.compare,
          {200: dict}, query=people.CompareQuery, tags=PEOPLE),
    Route("POST", "/v1/reconcile", "reconcile", "Compare the ledger with the world, for a tool", OPERATE, "ledger",
          people.reconcile, {200: dict}, body=people.Reconcile, problems=(409,), tags=PEOPLE,
          example={"tool": "charge"}),
    Route("POST", "/v1/rules/test", "test_rules", "Show which rule decides about a call", READ, "nothing",
          people.test_rules, {200: dict}, body=people.TestRules, problems=(409,), tags=PEOPLE,
          example={"tool": "wire", "args": {"order": "1042", "cents": 4200}}),
    Route("GET", "/v1/budgets", "budgets", "List the state of every budget", READ, "tenant", people.budgets,
          {200: records.Page[records.BudgetStateRecord]}, query=FilterQuery, tags=PEOPLE),
    Route("GET", "/v1/costs", "costs", "Sum up what calls have cost", READ, "tenant", people.costs,
          {200: records.Page[records.CostRecord]}, query=people.CostsQuery, tags=PEOPLE),
    Route("GET", "/v1/spending", "spending", "List budgets with the newest calls that were charged to them", READ,
          "tenant", recent.spending, {200: records.Page[records.SpendingRecord]}, query=recent.SpendingQuery, tags=PEOPLE),
    Route("GET", "/v1/tool_use", "tool_use", "Return how each tool performed in the newest calls", READ, "tenant",
          recent.tool_use, {200: records.Page[ToolUse]}, query=recent.ToolUseQuery, tags=PEOPLE),
    Route("GET", "/v1/declared_tools", "describe_tools", "Describe each declared tool", READ, "nothing",
          recent.describe_tools, {200: records.Page[records.ToolInfoRecord]}, query=PageQuery, tags=PEOPLE),
    Route("GET", "/v1/unfinished", "unfinished", "List the runs that have not ended, newest first", READ, "tenant",
          recent.unfinished, {200: records.Page[RunInfo]}, query=PageQuery, tags=PEOPLE),
    Route("GET", "/v1/locks", "locks", "List the locks that runs hold", READ, "tenant", people.locks,
          {200: records.Page[Lock]}, query=PageQuery, tags=PEOPLE),
    Route("GET", "/v1/halts", "halts", "List the halts in force", READ, "tenant", people.halts,
          {200: records.Page[records.HaltRecord]}, query=PageQuery, tags=PEOPLE),
    Route("POST", "/v1/halts", "halt", "Halt: start nothing from now on", OPERATE, "tenant", people.halt,
          {201: records.HaltRecord}, body=people.MakeHalt, problems=(409,), tags=PEOPLE,
          example={"tool": "wire", "why": "the bank reports doubles"}),
    Route("DELETE", "/v1/halts", "unhalt", "Lift every halt of exactly this extent", OPERATE, "tenant", people.unhalt,
          {200: records.Page[records.HaltRecord]}, query=people.UnhaltQuery, tags=PEOPLE),
    Route("GET", "/v1/permits", "permits", "List the permits that may still be used", READ, "tenant", people.permits,
          {200: records.Page[records.PermitRecord]}, query=people.PermitsQuery, tags=PEOPLE),
    Route("POST", "/v1/permits", "permit", "Approve calls before they are asked for", DECIDE, "tenant", people.permit,
          {201: records.PermitRecord}, body=people.MakePermit, problems=(409,), tags=PEOPLE,
          links={"revoke": {"id": "$response.body#/id"}},
          example={"tool": "wire", "args": {"order": "1042", "cents": 4200}, "why": "agreed by phone"}),
    Route("DELETE", "/v1/permits/{id}", "revoke", "End a permit", DECIDE, "tenant", people.revoke,
          {200: records.PermitRecord}, query=people.RevokeQuery, tags=PEOPLE),
    Route("GET", "/v1/tokens", "tokens", "List the tokens that are valid now", OPERATE, "tenant", tokens.tokens,
          {200: records.Page[records.TokenRecord]}, query=PageQuery, tags=PEOPLE),
    Route("POST", "/v1/tokens", "create_token", "Create a token, whose text is shown once", OPERATE, "tenant",
          tokens.create_token, {201: records.TokenRecord}, body=tokens.MakeToken, problems=(409,), tags=PEOPLE,
          links={"revoke_token": {"id": "$response.body#/id"}},
          example={"name": "shop bot", "scopes": ["agent"], "agent": "shopper", "why": "the new shop"}),
    Route("DELETE", "/v1/tokens/{id}", "revoke_token", "End a token at once", OPERATE, "tenant", tokens.revoke_token,
          {200: records.TokenRecord}, query=tokens.RevokeTokenQuery, tags=PEOPLE),
    # ---- For auditors
    Route("GET", "/v1/events", "events", "List events, or follow them as a stream", READ_OWN, "tenant", events.events,
          {200: records.Page[Event]}, query=events.EventsQuery, streams=True, tags=AUDITORS),
    Route("GET", "/v1/events/newest", "newest_event", "Return the last event", READ_OWN, "tenant", events.newest_event,
          {200: records.NewestEventRecord}, query=events.NewestQuery, tags=AUDITORS),
    Route("GET", "/v1/events/recent", "recent_events", "List the newest events, newest first", READ, "tenant",
          recent.recent_events, {200: records.RecentEventsRecord}, query=recent.RecentQuery, tags=AUDITORS),
    Route("POST", "/v1/audit/verify", "verify", "Begin to verify the record", OPERATE, "tenant", audit.verify,
          {202: records.LongWorkRecord}, body=audit.Verify, tags=AUDITORS, example={},
          links={"long_work": {"id": "$response.body#/id"}}),
    Route("GET", "/v1/jobs/{id}", "long_work", "Return the progress of long work", OPERATE, "tenant", long_work.long_work,
          {200: records.LongWorkRecord}, tags=AUDITORS),
    Route("POST", "/v1/audit/checkpoint", "checkpoint", "Write a checkpoint over the record", OPERATE, "ledger", audit.checkpoint,
          {201: records.CheckpointRecord}, body=audit.Order, problems=(409,), tags=AUDITORS, example={}),
    Route("GET", "/v1/audit/checkpoints", "checkpoints", "List the newest checkpoints, newest first", OPERATE, "ledger",
          recent.checkpoints, {200: records.Page[Checkpoint]}, query=recent.CheckpointsQuery, tags=AUDITORS),
    Route("POST", "/v1/export", "export", "Export runs as a file that anybody can check", OPERATE, "tenant",
          audit.export, {200: None}, body=audit.Export, problems=(409,), media_type="application/zip", tags=AUDITORS,
          example={"runs": ["order-1042"]}),
    Route("POST", "/v1/load", "load", "Load the runs of a bundle as records", OPERATE, "tenant", audit.load,
          {200: records.LoadedRecord}, query=audit.LoadQuery, problems=(409,), body_type="application/zip",
          tags=AUDITORS),
    # ---- For operators
    Route("GET", "/v1/settings", "settings", "Return every setting, and what is suspicious", OPERATE, "ledger",
          operators.settings, {200: records.SettingsRecord}, tags=OPERATORS),
    Route("GET", "/v1/schema", "schema", "Return the schema version of the ledger", OPERATE, "ledger",
          operators.schema, {200: records.SchemaRecord}, tags=OPERATORS),
    Route("POST", "/v1/gc", "gc", "Begin to remove payloads of runs that ended long ago", OPERATE, "ledger",
          operators.gc, {202: records.LongWorkRecord}, body=operators.Collect, tags=OPERATORS,
          links={"long_work": {"id": "$response.body#/id"}}, example={"older_than": "90d", "dry_run": True}),
    Route("POST", "/v1/erase", "erase", "Begin to erase everything recorded about one person", OPERATE, "tenant",
          operators.erase, {202: records.LongWorkRecord}, body=operators.Erase, tags=OPERATORS,
          links={"long_work": {"id": "$response.body#/id"}},
          example={"of_principal": "user-7", "why": "request 4711", "dry_run": True}),
    Route("POST", "/v1/reencrypt", "reencrypt", "Begin to encrypt everything with the newest key", OPERATE, "ledger",
          operators.reencrypt, {202: records.LongWorkRecord}, body=audit.Order, tags=OPERATORS, example={}),
    Route("POST", "/v1/recover", "recover", "Begin to take over abandoned runs", OPERATE, "ledger", operators.recover,
          {202: records.LongWorkRecord}, body=operators.Recover, tags=OPERATORS, example={"limit": 100}),
    # ---- For browsers
    Route("GET", "/login", "login", "Say how to log in", None, "nothing", _login("page"), {200: None, 303: None},
          query=AnyQuery, problems=LOGIN, media_type="text/html", tags=BROWSERS),
    Route("GET", "/login/start", "login_start", "Begin the company's login", None, "nothing", _login("start"),
          {303: None}, query=AnyQuery, problems=LOGIN, tags=BROWSERS),
    Route("GET", "/login/callback", "login_callback", "End the company's login", None, "nothing", _login("callback"),
          {303: None}, query=AnyQuery, problems=LOGIN, tags=BROWSERS),
    Route("GET", "/login/link", "login_link", "Exchange a one-time link for a cookie", None, "nothing", _login("link"),
          {303: None}, query=AnyQuery, problems=LOGIN, tags=BROWSERS),
    Route("GET", "/login/session", "login_session", "Tell who is logged in", None, "nothing", _login("session"),
          {200: records.LoginRecord}, query=AnyQuery, problems=LOGIN, tags=BROWSERS),
    Route("POST", "/login/logout", "logout", "End the login", None, "nothing", _login("logout"),
          {200: records.LogoutRecord}, query=AnyQuery, problems=LOGIN, tags=BROWSERS),
    # ---- For machines
    Route("GET", "/v1/openapi.json", "openapi", "Describe every route", None, "nothing", metrics.openapi, {200: dict},
          tags=MACHINES),
    Route("GET", "/health", "health", "Say that the process runs", None, "nothing", metrics.health,
          {200: records.HealthRecord}, tags=MACHINES),
    Route("GET", "/ready", "ready", "Say whether the ledger answers", None, "nothing", metrics.ready,
          {200: records.HealthRecord, 503: records.HealthRecord}, tags=MACHINES),
    Route("GET", "/metrics", "metrics", "Return metrics for Prometheus", READ, "nothing", metrics.metrics, {200: None},
          media_type="text/plain", tags=MACHINES),
)  # fmt: skip
"""Every route of the service."""
