"""For people: the inbox, approvals, doubts, rollback plans, budgets, locks, halts and permits.

Each handler is one verb of the runtime. Who decides is whoever the token or the login names, never a field of the request.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, Field

from amends import Absent, Happened, Unknown
from amends.errors import CallNotFound, Forbidden, RunNotFound
from amends.serve.exchange import Body, Exchange, FilterQuery, PageQuery, Query, Reply, page_of, part_of
from amends.serve.problems import Invalid

WHY = Field(min_length=1, max_length=2_000, description="The reason, for the record")

# ---- What a client sends


class ApprovalsQuery(FilterQuery):
    """One page of requests for approval."""

    filter: str = Field("state:pending", max_length=2_000, description="As of every listing; default: those that wait")


class Approve(Body):
    """Approve exactly what was shown."""

    digest: str = Field(min_length=1, max_length=200, description="Approval.digest, as it was shown")
    why: str = Field("", max_length=2_000)
    behalf: str | None = Field(None, min_length=1, max_length=200, description="Who delegated it")


class Bypass(Body):
    """Approve regardless of roles and of how many approvers are needed, on the record."""

    digest: str = Field(min_length=1, max_length=200)
    why: str = WHY


class Reject(Body):
    """Reject a request; the model is told the reason."""

    reason: str = WHY


class Edit(Body):
    """Other arguments, which are then decided like any other request."""

    args: dict[str, Any]
    why: str = WHY


class Why(Body):
    """The reason, which is recorded."""

    why: str = WHY


class OnCallQuery(Query):
    """Which role, and when."""

    role: str | None = Field(None, min_length=1, max_length=200, description="Only of this role")
    at: AwareDatetime | None = Field(None, description="Default: now")


class CheckOnCallQuery(Query):
    """How far to look ahead."""

    days: float = Field(14.0, gt=0, le=3_650, description="How far to look ahead")


class Delegate(Body):
    """Delegate decisions to somebody, for a time."""

    to: str = Field(min_length=1, max_length=200)
    until: float = Field(gt=0, le=3_153_600_000, description="Seconds from now")
    why: str = WHY


class Resolve(Body):
    """What happened to a call in doubt."""

    answer: Literal["happened", "absent", "unknown"]
    result: Any = Field(None, description="Of a call that happened")
    why: str = WHY


class RetryCall(Body):
    """Retry a compensation or a retriable that gave up."""

    why: str = WHY
    result: Any = Field(None, description="What the call returned, if a compensation needs it and nobody has it")


class Decide(Body):
    """What to do with a held call."""

    decision: Literal["run", "replay", "refuse"]
    why: str = WHY


class CostsQuery(FilterQuery):
    """What to sum up by."""

    by: Literal["run", "tool", "agent", "day"] = Field("run", description="What a sum is about")


class OverviewQuery(FilterQuery):
    """One page of the overview of runs."""


class MakeHalt(Body):
    """What to stop: without a name, everything of the tenant."""

    why: str = WHY
    agent: str | None = Field(None, min_length=1, max_length=200, description="Only of this agent")
    tool: str | None = Field(None, min_length=1, max_length=200, description="Only of this tool")


class UnhaltQuery(Query):
    """Which halts to lift: those of exactly this extent."""

    why: str = WHY
    agent: str | None = Field(None, min_length=1, max_length=200, description="Only of this agent")
    tool: str | None = Field(None, min_length=1, max_length=200, description="Only of this tool")


class PermitsQuery(PageQuery):
    """One page of permits."""

    tool: str = Field("", max_length=200, description="Only of this tool")


class MakePermit(Body):
    """Approve calls before they are asked for: with exactly these arguments, or those that a rule matches."""

    tool: str = Field(min_length=1, max_length=200)
    args: dict[str, Any] | None = None
    rule: dict[str, Any] | None = Field(None, description="As in amends.toml")
    why: str = Field("", max_length=2_000)
    uses: int = Field(1, ge=1, le=1_000_000)
    expires: float = Field(86_400, gt=0, le=3_153_600_000, description="Seconds from now")


class RevokeQuery(Query):
    """Why a permit ends."""

    why: str = WHY


class TestRules(Body):
    """A call that nobody makes."""

    tool: str = Field(min_length=1, max_length=200)
    args: dict[str, Any] = Field(default_factory=dict)
    agent: str | None = Field(None, max_length=200)


class CompareQuery(Query):
    """Two runs."""

    left: str = Field(min_length=1, max_length=512, description="The id of a run")
    right: str = Field(min_length=1, max_length=512, description="The id of the run that it is compared with")


class Fork(Body):
    """Where the new run begins to differ."""

    at: str = Field(min_length=1, max_length=200, description="The last call that both share")
    id: str | None = Field(None, min_length=1, max_length=512, description="Of the new run")


class Reconcile(Body):
    """Which tool to compare with the outside world."""

    tool: str = Field(min_length=1, max_length=200)
    limit: int = Field(1_000, ge=0, le=10_000, description="How many calls to probe, newest first")


class Redeem(Body):
    """A signed link, as a person was sent it."""

    token: str = Field(min_length=1, max_length=4_000)
    why: str = Field("", max_length=2_000)
    reason: str = Field("", max_length=2_000, description="Of a rejection")


# ---- The overview


async def overview(x: Exchange) -> Reply:
    """Return one page of runs, newest first, with what they cost and how many runs are in each state."""
    query: OverviewQuery = x.query
    return Reply((await x.rt.overview(query.filter, after=query.after, limit=query.limit)).to_dict())


# ---- The inbox and approvals


async def inbox(x: Exchange) -> Reply:
    """List everything that waits for a person: soonest to expire first, then oldest."""
    return part_of(await x.rt.inbox(x.query.filter), x.query)


async def approvals(x: Exchange) -> Reply:
    """List requests for approval, newest first; the pending ones, unless the filter says otherwise."""
    found = x.rt.approvals(x.query.filter, after=x.query.after)
    return await page_of(found, x.query, lambda one: one.id)


async def approval(x: Exchange) -> Reply:
    """Return one request for approval, with the digest of what is approved."""
    found = await x.rt.approval(x.path["id"])
    await check_run(x, found.call.run_id)
    return Reply(found.to_dict())


async def precedents(x: Exchange) -> Reply:
    """Return what a request can be compared with: the last approved call of its tool, and what is usual for its numbers."""
    return Reply((await x.rt.precedents(x.path["id"])).to_dict())


async def approve(x: Exchange) -> Reply:
    """Approve exactly the request whose digest was shown."""
    said: Approve = x.body
    given = {"digest": said.digest, "why": said.why, "behalf": said.behalf}
    return Reply((await x.rt.approve(x.path["id"], by=x.who.name, **given)).to_dict())  # type: ignore[arg-type]


async def reject(x: Exchange) -> Reply:
    """Reject a request; the model is told the reason."""
    return Reply((await x.rt.reject(x.path["id"], by=x.who.name, reason=x.body.reason)).to_dict())


async def edit(x: Exchange) -> Reply:
    """Reject a request and make one for these arguments instead; whoever edits it cannot approve it."""
    return Reply((await x.rt.edit(x.path["id"], x.body.args, by=x.who.name, why=x.body.why)).to_dict())


async def withdraw(x: Exchange) -> Reply:
    """Withdraw a request that nobody needs to decide any more."""
    return Reply((await x.rt.withdraw(x.path["id"], by=x.who.name, why=x.body.why)).to_dict())


async def ask_again(x: Exchange) -> Reply:
    """Make a new request for a call whose request expired."""
    return Reply((await x.rt.ask_again(x.path["id"], by=x.who.name, why=x.body.why)).to_dict())


async def bypass(x: Exchange) -> Reply:
    """Approve regardless of roles and numbers, on the record; never one's own request."""
    said: Bypass = x.body
    return Reply((await x.rt.bypass(x.path["id"], digest=said.digest, by=x.who.name, why=said.why)).to_dict())


async def redeem(x: Exchange) -> Reply:
    """Use a signed link to approve or reject exactly what was shown with it."""
    said: Redeem = x.body
    return Reply((await x.rt.redeem(said.token, by=x.who.name, why=said.why, reason=said.reason)).to_dict())


async def delegate(x: Exchange) -> Reply:
    """Let somebody decide for oneself until a time."""
    said: Delegate = x.body
    await x.rt.delegate(by=x.who.name, to=said.to, until=said.until, why=said.why)
    return Reply({"by": x.who.name, "to": said.to, "until": said.until, "why": said.why}, 201)


async def oncall(x: Exchange) -> Reply:
    """List who is on call now, or at a time."""
    said: OnCallQuery = x.query
    return Reply({"items": [one.to_dict() for one in await x.rt.oncall(said.role, at=said.at)]})


async def check_oncall(x: Exchange) -> Reply:
    """List gaps, overlaps and people who may not decide."""
    return Reply({"items": [one.to_dict() for one in await x.rt.check_oncall(days=x.query.days)]})


# ---- Calls and doubts


async def check_run(x: Exchange, run_id: str, *, call_id: str = "") -> None:
    """Raise unless whoever asks may know of this run; a child belongs to whom its root belongs."""
    if x.is_wide:
        return
    found = await x.rt.report(run_id)
    if not x.owns(found.run):
        raise CallNotFound(call_id) if call_id else RunNotFound(run_id)


async def calls(x: Exchange) -> Reply:
    """List calls, newest first."""
    found = x.rt.calls(x.query.filter, after=x.query.after)
    return await page_of(found, x.query, lambda one: one.id, keep=x.owns)


async def call(x: Exchange) -> Reply:
    """Return one call."""
    found = await x.rt.call(x.path["id"])
    if not x.owns(found):
        raise CallNotFound(x.path["id"])
    return Reply(found.to_dict())


async def told(x: Exchange) -> Reply:
    """Return the text for a model about a call, in the words of its answer; null: it has not ended."""
    if not x.owns(await x.rt.call(x.path["id"])):
        raise CallNotFound(x.path["id"])
    found = await x.rt.told(x.path["id"])
    return Reply({"answer": None if found is None else found.to_dict()})


async def doubts(x: Exchange) -> Reply:
    """List calls whose outcome is unknown, with what was sent and what was learned since."""
    return await page_of(x.rt.doubts(x.query.filter, after=x.query.after), x.query, lambda one: one.id)


async def probe(x: Exchange) -> Reply:
    """Probe a call; decide nothing, and keep the answer as evidence."""
    return Reply((await x.rt.probe(x.path["id"], by=x.who.name)).to_dict())


async def preview(x: Exchange) -> Reply:
    """Show what the run would do next for each of the three answers to a doubt; change nothing."""
    return Reply((await x.rt.preview(x.path["id"])).to_dict())


async def resolve(x: Exchange) -> Reply:
    """Settle a doubt: it happened, it did not, or it cannot be known and stays as residue."""
    said: Resolve = x.body
    has_result = "result" in said.model_fields_set
    if has_result and said.answer != "happened":
        raise Invalid(f"a call that is {said.answer} has no result", problems=("body.result",))
    answer: Any = Absent() if said.answer == "absent" else Unknown()
    if said.answer == "happened":
        answer = Happened(said.result) if has_result else Happened()
    return Reply((await x.rt.resolve(x.path["id"], answer, by=x.who.name, why=said.why)).to_dict())


async def retry(x: Exchange) -> Reply:
    """Retry a compensation or a retriable that gave up."""
    said: RetryCall = x.body
    given = {"result": said.result} if "result" in said.model_fields_set else {}
    return Reply((await x.rt.retry(x.path["id"], by=x.who.name, why=said.why, **given)).to_dict())


async def accept(x: Exchange) -> Reply:
    """Accept that an effect stays, or that nobody will know: it becomes residue."""
    return Reply((await x.rt.accept(x.path["id"], by=x.who.name, why=x.body.why)).to_dict())


async def decide(x: Exchange) -> Reply:
    """Decide a held call: run it, answer it with the result of its twin, or refuse it."""
    return Reply((await x.rt.decide(x.path["id"], x.body.decision, by=x.who.name, why=x.body.why)).to_dict())


# ---- Runs


async def plan_rollback(x: Exchange) -> Reply:
    """Show what a rollback would do now, in order, and what it cannot undo; its hash binds the rollback."""
    return Reply((await x.rt.plan_rollback(x.path["id"])).to_dict())


async def abandon(x: Exchange) -> Reply:
    """Close a run and leave its effects standing; the report names each of them."""
    done = await x.rt.abandon(x.path["id"], by=x.who.name, why=x.body.why)
    x.service.sessions.forget(x.tenant, x.path["id"])
    return Reply(done.to_dict())


async def finish(x: Exchange) -> Reply:
    """Close a run that was interrupted after its pivot as committed."""
    done = await x.rt.finish(x.path["id"], by=x.who.name, why=x.body.why)
    x.service.sessions.forget(x.tenant, x.path["id"])
    return Reply(done.to_dict())


async def fork(x: Exchange) -> Reply:
    """Make a new run that shares the calls of this one up to and including one call; open it to continue."""
    said: Fork = x.body
    found = (await x.rt.report(x.path["id"])).run
    if not x.owns(found):
        raise RunNotFound(x.path["id"])
    rt = x.rt if x.is_wide else x.rt.scoped(principal=found.principal)
    return Reply({"id": await rt.fork(found.id, at=said.at, id=said.id, by=x.who.name)}, 201)


async def compare(x: Exchange) -> Reply:
    """Compare two runs call by call: the first that differs, other arguments, other results, other costs."""
    return Reply((await x.rt.compare(x.query.left, x.query.right)).to_dict())


async def reconcile(x: Exchange) -> Reply:
    """Compare the ledger with the world for one tool, for all tenants: find what only one of them has. Change nothing."""
    return Reply((await x.rt.reconcile(x.body.tool, limit=x.body.limit)).to_dict())


async def test_rules(x: Exchange) -> Reply:
    """Show what each rule says about a call and which one decides; start and record nothing."""
    said: TestRules = x.body
    return Reply((await x.rt.test_rules(said.tool, said.args, agent=said.agent)).to_dict())


# ---- Budgets, costs, locks


async def budgets(x: Exchange) -> Reply:
    """List the state of every budget in its present period."""
    return part_of(await x.rt.budgets(x.query.filter), x.query)


async def costs(x: Exchange) -> Reply:
    """Sum up what calls have cost, by run, tool, agent or day."""
    return part_of(await x.rt.costs(x.query.by, x.query.filter), x.query)


async def locks(x: Exchange) -> Reply:
    """List the locks that runs hold, with the runs that wait for each."""
    return await page_of(x.rt.locks(after=x.query.after), x.query, lambda one: one.name)


# ---- Halts and permits


async def halts(x: Exchange) -> Reply:
    """List the halts in force."""
    mine = x.service.own_tenant(x)
    found = [one for one in await x.rt.halts() if mine is None or one.tenant in (None, mine)]
    return part_of(found, x.query)


async def halt(x: Exchange) -> Reply:
    """Halt: start nothing from now on, for this tenant, or for this agent or tool of it; what must be taken back still is."""
    said: MakeHalt = x.body
    tenant = x.service.own_tenant(x)
    made = await x.rt.halt(by=x.who.name, why=said.why, tenant=tenant, agent=said.agent, tool=said.tool)
    return Reply(made.to_dict(), 201)


async def unhalt(x: Exchange) -> Reply:
    """Lift every halt of exactly this extent."""
    said: UnhaltQuery = x.query
    tenant = x.service.own_tenant(x)
    lifted = await x.rt.unhalt(by=x.who.name, why=said.why, tenant=tenant, agent=said.agent, tool=said.tool)
    return Reply({"items": [one.to_dict() for one in lifted], "next": None})


async def permits(x: Exchange) -> Reply:
    """List the permits that may still be used."""
    return part_of(await x.rt.permits(x.query.tool), x.query)


async def permit(x: Exchange) -> Reply:
    """Approve calls of a tool before they are asked for."""
    said: MakePermit = x.body
    if said.rule is not None and "when" in said.rule:
        raise Forbidden("a rule that comes over HTTP has no function (when)", why="rule")
    made = await x.rt.permit(
        said.tool, said.args, rule=said.rule, by=x.who.name, why=said.why, uses=said.uses, expires=said.expires
    )
    return Reply(made.to_dict(), 201)


async def revoke(x: Exchange) -> Reply:
    """End a permit: it covers no further call."""
    return Reply((await x.rt.revoke(x.path["id"], by=x.who.name, why=x.query.why)).to_dict())
