"""Every route of the service has a verb of the client, in both colours; each answers with the runtime's own records."""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from amends import (
    Absent,
    Approval,
    Budget,
    BudgetState,
    Call,
    Checkpoint,
    CostLine,
    Doubt,
    Error,
    Event,
    Halt,
    Happened,
    InboxItem,
    Overview,
    Permit,
    Precedents,
    Preview,
    Recent,
    Report,
    RollbackPlan,
    RolledBack,
    RunInfo,
    RunLine,
    Spending,
    Token,
    ToolCall,
    ToolInfo,
    ToolUse,
    Verified,
    tool,
)
from amends.client import AsyncAttempt, AsyncClient, AsyncRun, AsyncWorker, Attempt, Client, Run, Worker
from amends.errors import AgentNotFound, CallNotFound, StalePlan, SubjectNotFound, UsageError
from amends.serve.routes import ROUTES
from tests.client.shop import Both, served

SERVED = {(one.method, one.path) for one in ROUTES if one.tags != ("browsers",)}
"""Every route but those of the login, which are for browsers: cookies and redirects."""


class Seen:
    """The routes that were asked for."""

    def __init__(self) -> None:
        self.routes: set[tuple[str, str]] = set()

    def note(self, request: httpx.Request) -> None:
        path = request.url.raw_path.decode().partition("?")[0]
        for method, known in SERVED:
            if method == request.method and re.fullmatch(
                re.sub(r"\{\w+\}", "[^/]+", re.escape(known).replace("\\", "")), path
            ):
                self.routes.add((method, known))

    async def note_async(self, request: httpx.Request) -> None:
        self.note(request)

    def http(self, *, is_async: bool) -> Any:
        if is_async:
            return httpx.AsyncClient(verify=False, event_hooks={"request": [self.note_async]})
        return httpx.Client(verify=False, event_hooks={"request": [self.note]})


@contextmanager
def everything(both: Both) -> Iterator[tuple[Seen, Any]]:
    """A shop where every record can be found, and what makes a client that is watched."""
    seen = Seen()
    with served(budgets=[Budget(10, per="run")]) as (url, _):
        yield seen, lambda token: both.client(url, token, http=seen.http(is_async=both.is_async))


@pytest.mark.parametrize(
    "both", [False, pytest.param(True, marks=pytest.mark.rest)], ids=["blocking", "async"], indirect=True
)
def test_every_route_has_a_verb(both: Both) -> None:
    with everything(both) as (seen, made):
        _drive_everything(both, made)
        _work(both, made)
    assert seen.routes == SERVED, f"no verb of the client uses {sorted(SERVED - seen.routes)}"


def _drive_everything(both: Both, made: Any) -> None:
    do, bot, olga, ana = both.do, made("agent"), made("operator"), made("approver")
    # ---- the service
    assert do(olga.health())["status"] == "ok"
    assert do(olga.ready())["ledger"] == "ok"
    assert "/v1/runs" in do(olga.openapi())["paths"]
    assert isinstance(do(olga.metrics()), str)
    assert {one["name"] for one in do(bot.schemas("mcp"))} == {"charge", "wire", "mail", "stock"}
    assert do(bot.schemas("openai", strict=False))[0]["type"] == "function"
    # ---- runs
    run = do(bot.open("r1", client_lease=60, recover="wait", wait_approval=0))
    assert do(run.renew()) == 60
    assert do(run.call("charge", order="1", cents=5)) == "ch_1"
    assert do(run.report()).run_id == "r1"
    do(do(run.open_child("c", input={"leg": 1})).commit())
    assert isinstance(do(olga.info("r1")), RunInfo)
    assert [one.id for one in both.list(olga.runs("state:open"))] == ["r1"]
    [charged] = both.list(olga.calls("tool:charge"))
    assert isinstance(charged, Call)
    assert do(olga.call(charged.id)) == charged
    told = do(olga.told(charged.id))
    assert (told.status, told.text, told.call) == ("done", '"ch_1"', charged)
    # ---- approvals
    assert do(run.approval_for("stock", {"item": "a"})) is None
    foreseen = do(run.approval_for("wire", {"order": "1", "cents": 5}))
    assert isinstance(foreseen, Approval)
    assert do(run.answer("wire", {"order": "1", "cents": 5})).waits
    [asked] = both.list(ana.approvals())
    assert isinstance(do(ana.approval(asked.id)), Approval)
    edited = do(ana.edit(asked.id, {"order": "1", "cents": 4}, why="discount"))
    assert edited.call.args["cents"] == 4
    assert {one.what for one in do(olga.inbox())} == {"approval"}
    assert isinstance(do(olga.inbox())[0], InboxItem)
    assert do(olga.bypass(edited.id, digest=edited.digest, why="incident 7")).state == "approved"
    do(ana.delegate(to="ben", until=timedelta(hours=1), why="holiday"))
    do(ana.delegate(to="bea", until=datetime.now(UTC) + timedelta(hours=1), why="holiday"))
    for order, verb, given, state in (
        ("2", "reject", {"reason": "no"}, "rejected"),
        ("3", "withdraw", {"why": "no need"}, "cancelled"),
    ):
        other = do(bot.open(f"r1-{verb}", recover="wait", wait_approval=0))
        assert do(other.answer("wire", {"order": order, "cents": 5})).waits
        [asked] = both.list(ana.approvals())
        assert do(getattr(ana, verb)(asked.id, **given)).state == state
    with pytest.raises(Error, match="asked"):  # it has not expired
        do(ana.ask_again(asked.id, why="nobody was there"))
    other = do(bot.open("r1-approve", recover="wait", wait_approval=0))
    assert do(other.answer("wire", {"order": "4", "cents": 5})).waits
    [asked] = both.list(ana.approvals())
    found = do(ana.precedents(asked.id))
    assert isinstance(found, Precedents)
    assert (found.approval_id, found.first_use, found.before, found.times) == (asked.id, True, None, 0)
    assert do(ana.approve(asked.id, digest=asked.digest, why="fine")).given[0].by == "ana"
    assert do(run.suspend()).state == "open"
    # ---- claims
    run = do(bot.open("r2", recover="wait", wait=0.2))
    attempt = do(run.begin("charge", {"order": "9", "cents": 1}, lease=30))
    assert do(attempt.renew()) == 30
    do(attempt.succeed("ch_9"))
    attempt = do(run.begin("ship", {"n": 1}, kind="read"))
    do(attempt.fail("no stock"))
    # ---- doubts
    attempt = do(run.begin("charge", {"order": "10", "cents": 1}, lease=30))
    do(attempt.doubt("the line was cut"))
    [doubt] = both.list(olga.doubts())
    assert isinstance(doubt, Doubt)
    assert (doubt.id, doubt.sent["order"], doubt.probe) == (attempt.call.id, "10", "find_charge")
    preview = do(olga.preview(doubt.id))
    assert isinstance(preview, Preview)
    assert preview.call.state == "in_doubt"
    assert str(preview)
    assert do(olga.probe(doubt.id)) == Absent()
    assert isinstance(do(olga.resolve(doubt.id, Happened("ch_10"), why="in the list")), Report)
    assert do(olga.call(doubt.id)).result == "ch_10"
    for verb, given in (("retry", {}), ("accept", {}), ("decide", {"decision": "run"})):
        with pytest.raises(CallNotFound):
            do(getattr(olga, verb)("call_none", **given, why="try"))
    # ---- plans
    plan = do(olga.plan_rollback("r2"))
    assert isinstance(plan, RollbackPlan)
    assert [one.call.args["order"] for one in plan.compensations] == ["10", "9"]
    assert "refund" in str(plan)
    with pytest.raises(StalePlan):
        do(olga.rollback("r2", why="w", plan="0" * 16))
    do(run.suspend())
    assert do(olga.rollback("r2", why="changed", plan=do(olga.plan_rollback("r2")))).state == "rolled_back"
    _plans_of_models(both, bot, olga, made("everywhere"))
    _operate(both, bot, made("everywhere"))
    with pytest.raises(RolledBack) as back:
        do(do(bot.open("r4")).rollback("no"))
    assert back.value.report.state == "rolled_back"
    # ---- ends by people
    for id, verb in (("r5", "abandon"), ("r6", "finish")):
        open_run = do(bot.open(id, recover="wait"))
        do(open_run.call("charge", order=id, cents=1))
        do(open_run.suspend())
        if verb == "finish":
            with pytest.raises(Error, match=r"pivot|interrupted|blocked|open"):
                do(olga.finish(id, why="by hand"))
        else:
            assert do(olga.abandon(id, why="by hand")).state == "abandoned"
    # ---- budgets, costs, locks, halts, permits, tokens
    seen = do(olga.overview("state:committed,abandoned", limit=2))
    assert isinstance(seen, Overview)
    assert [isinstance(line, RunLine) and isinstance(line.run, RunInfo) for line in seen.runs] == [True, True]
    assert all(isinstance(amount, Decimal) for line in seen.runs for amount in line.costs.values())
    assert seen.counts["abandoned"] == 1
    assert all(isinstance(one, BudgetState) for one in do(olga.budgets()))
    assert all(isinstance(one, CostLine) for one in do(olga.costs("tool")))
    assert all(isinstance(one, Spending) for one in do(olga.spending(newest=10)))
    [used] = do(olga.tool_use("charge"))
    assert (isinstance(used, ToolUse), used.tool, used.declared) == (True, "charge", True)
    assert {one.name: one.kind for one in do(olga.describe_tools()) if isinstance(one, ToolInfo)}["wire"] == "pivot"
    waiting = do(olga.unfinished())
    assert [one.id for one in do(olga.unfinished(limit=1))] == [one.id for one in waiting[:1]]
    assert [one.id for one in do(olga.unfinished(after=waiting[0].place))] == [one.id for one in waiting[1:]]
    assert both.list(olga.locks()) == []
    assert do(olga.oncall("clerk", at=datetime.now(UTC))) == do(olga.oncall()) == do(olga.check_oncall(days=7)) == []
    halted = do(olga.halt(why="doubles", tool="wire"))
    assert isinstance(halted, Halt)
    assert do(olga.halts()) == [halted]
    assert [one.id for one in do(olga.unhalt(why="over", tool="wire"))] == [halted.id]
    permit = do(ana.permit("wire", {"order": "7", "cents": 1}, why="by phone", expires=3600))
    assert isinstance(permit, Permit)
    assert do(ana.permits("wire")) == [permit]
    assert do(ana.revoke(permit.id, why="no")).ended_at is not None
    token = do(olga.create_token("bot", scopes="agent", agent="x", why="new", principal="bot", expires=3600))
    assert isinstance(token, Token)
    assert (token.scopes, bool(token.text)) == (("agent",), True)
    assert [one.id for one in do(olga.tokens())] == [token.id]
    assert do(olga.revoke_token(token.id, why="over")).ended_at is not None
    # ---- the record
    events = both.list(olga.events("r1"))
    assert all(isinstance(one, Event) for one in events)
    assert events[0].at.tzinfo is not None
    assert both.list(olga.events("r1", after=events[-2].place)) == events[-1:]
    newest = do(olga.recent_events("run:r1", limit=2))
    assert newest == Recent(tuple(reversed(events[-2:])), newest.next, newest.looked)
    progress: list[tuple[int, int]] = []
    verified = do(olga.verify(progress=lambda *seen: progress.append(seen)))
    assert isinstance(verified, Verified)
    assert (verified.ok, verified.runs, progress[-1][0]) == (True, 11, 11)
    bundle = do(olga.export("r3"))
    assert bundle[:2] != b"{"
    with served() as (other, _):
        assert do(both.client(other).load(bundle)) == ["r3"]
    assert do(olga.load(bundle)) in ([], ["r3"])  # it is a run of this ledger already


def _plans_of_models(both: Both, bot: Any, olga: Any, eve: Any) -> None:
    do, run = both.do, both.do(bot.open("r3"))
    plan = [{"tool": "charge", "args": {"order": "30", "cents": 1}}, [ToolCall("stock", {"item": "a"})]]
    assert (do(bot.check(plan)).problems, do(bot.check([{"tool": "none", "args": {}}])).problems == ()) == ((), False)
    assert [one.value for one in do(run.execute(plan))] == ["ch_30", 1]
    turn = [ToolCall("stock", {"item": "abc"}, "t1"), ToolCall("charge", '{"order": "31", "cents": 1}')]
    assert [one.value for one in do(run.answer_all(turn))] == [3, "ch_31"]
    assert do(run.before_end()) == ""
    run.output = {"done": True}
    assert do(run.commit()) is None
    assert do(olga.report("r3")).output == {"done": True}
    shared = do(olga.report("r3")).calls[0]
    assert do(bot.fork("r3", at=shared.id, id="r3-b")) == "r3-b"
    assert do(olga.compare("r3", "r3-b")).left.run == "r3"
    assert do(olga.test_rules("wire", {"order": "1", "cents": 1})).tool == "wire"
    assert do(eve.reconcile("charge", limit=0)).tool == "charge"
    made = do(eve.checkpoint())
    assert isinstance(made, Checkpoint)
    assert do(eve.checkpoints(limit=1)) == [made]
    with pytest.raises(Error):
        do(olga.redeem("no-link"))


def _operate(both: Both, bot: Any, eve: Any) -> None:
    do = both.do
    assert do(eve.settings())["lease"] == {"value": 5.0, "origin": "argument"}
    assert any("10.00 usd" in one for one in do(eve.warnings()))
    with pytest.raises(UsageError, match="no schema"):  # it is in memory
        do(eve.schema())
    assert do(eve.gc(older_than="1d", dry_run=True)).dry_run
    assert do(eve.gc(older_than=timedelta(days=1), limit=5, tenant="acme")).runs == 0
    with pytest.raises(SubjectNotFound):
        do(eve.erase(principal="nobody", fields={"to": "a@b.example"}, why="request 4711"))
    with pytest.raises(UsageError, match="say whose"):
        do(eve.erase(why="request 4711", dry_run=True))
    with pytest.raises(UsageError, match="no keys to encrypt with"):
        do(eve.reencrypt())
    assert do(eve.recover()) == []
    newest = do(eve.newest_event("r3"))
    assert isinstance(newest, Event)
    assert (newest.run_id, do(eve.newest_event()) is None) == ("r3", False)
    assert [do(bot.kind_of(one)) for one in ("charge", "none")] == ["compensatable", None]
    assert do(bot.may_repeat("charge")) is False
    with pytest.raises(AgentNotFound):
        do(bot.start("shopper", id="started"))
    with pytest.raises(AgentNotFound):
        do(eve.replay_each(["r3"], "shopper", until="call_x"))


def _work(both: Both, made: Any) -> None:
    @tool(kind="read")
    def weigh(item: str) -> int:
        return len(item)

    with both.block(made("worker").worker([weigh], wait=0.05)):
        [found] = both.do(made("viewer").workers())
        assert found.tools == ("weigh",)
        assert both.do(both.do(made("agent").open("w")).call("weigh", item="abc")) == 3


# ---- One declaration, two colours


@pytest.mark.parametrize(
    "blocking, on_loop", [(Client, AsyncClient), (Run, AsyncRun), (Attempt, AsyncAttempt), (Worker, AsyncWorker)]
)
def test_both_colours_have_the_same_verbs_with_the_same_parameters(blocking: type, on_loop: type) -> None:
    def verbs(colour: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [(one.name, one.kind, one.default) for one in inspect.signature(made).parameters.values()]
            for name, made in inspect.getmembers(colour, inspect.isfunction)
            if not name.startswith("_")
        }

    assert verbs(blocking) == verbs(on_loop)
    for name, made in inspect.getmembers(blocking, inspect.isfunction):
        if not name.startswith("_"):
            assert made.__doc__ == getattr(on_loop, name).__doc__
            assert made.__doc__
            assert not inspect.iscoroutinefunction(made)


def test_the_client_has_the_names_of_the_runtime() -> None:
    from amends import Runtime

    own = {"health", "ready", "openapi", "metrics", "info", "follow", "workers"}
    verbs = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert {name for name in verbs - own if not hasattr(Runtime, name)} == set()
