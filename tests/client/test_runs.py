"""Runs over HTTP by the names of the runtime, in both colours."""

import time
from decimal import Decimal
from typing import Any

import pytest

from amends import Answer, Call, Held, NoEffect, Report, Retry, RolledBack, tool
from amends.client import ServiceError, Unreachable
from amends.errors import (
    BadArguments,
    Forbidden,
    LeaseLost,
    RunEnded,
    RunNotFound,
    ToolFailed,
    Unauthorized,
    UsageError,
)
from tests.client.shop import Both, served
from tests.serve.shop import World

Shop = tuple[str, World]


def test_a_block_commits_at_its_end(shop: Shop, both: Both, name: str) -> None:
    url, world = shop
    client = both.client(url, "agent")
    with both.block(client.run(name, input={"order": name}, tags=["t"])) as run:
        answer = both.do(run.answer("charge", {"order": name, "cents": 5}))
        assert isinstance(answer, Answer)
        assert isinstance(answer.call, Call)
        assert (answer.status, answer.value, answer.call.state) == ("done", f"ch_{name}", "succeeded")
        assert both.do(run.call("stock", item="abc")) == 3
        assert run.resumed is False
    assert run.state == "committed"
    report = both.do(client.report(name))
    assert isinstance(report, Report)
    assert (report.state, [one.tool for one in report.calls]) == ("committed", ["charge", "stock"])
    assert report.run.opened_at is not None
    assert report.run.tags == ("t",)
    assert "committed" in str(report)
    assert world.charges[name] == 5


def test_an_exception_rolls_the_run_back_and_is_raised_with_a_note(shop: Shop, both: Both, name: str) -> None:
    url, world = shop
    client = both.client(url, "agent")
    with pytest.raises(ValueError, match="no") as caught:
        with both.block(client.run(name)) as run:
            both.do(run.answer("charge", {"order": name, "cents": 5}))
            raise ValueError("no")
    assert caught.value.__notes__ == [f"amends: run {name} rolled back, 1 call compensated"]
    assert (run.note, run.state, name in world.charges) == (caught.value.__notes__[0], "rolled_back", False)


def test_the_same_id_resumes_its_run_and_is_answered_from_the_record(shop: Shop, both: Both, name: str) -> None:
    url, world = shop
    client = both.client(url, "agent")
    run = both.do(client.open(name, recover="wait"))
    assert both.do(run.call("charge", order=name, cents=5)) == f"ch_{name}"
    with both.block(both.client(url, "agent").run(name)) as again:
        assert (again.resumed, again.id) == (True, name)
        assert both.do(again.answer("charge", {"order": name, "cents": 5})).status == "replayed"
    assert world.charges[name] == 5
    with both.block(client.run(name)) as over:
        assert (over.is_over, over.state) == (True, "committed")


def test_a_call_that_a_person_must_approve_suspends_the_block(shop: Shop, both: Both, name: str) -> None:
    url, world = shop
    client, ana = both.client(url, "agent"), both.client(url, "approver")
    with pytest.raises(Held) as held:
        with both.block(client.run(name, wait_approval=0)) as run:
            answer = both.do(run.answer("wire", {"order": name, "cents": 5}))
            assert (answer.status, answer.waits, answer.is_error) == ("held", True, False)
            raise answer.error
    asked = held.value.approval
    assert asked is not None
    assert (asked.state, asked.call.tool, asked.call.args["order"]) == ("pending", "wire", name)
    assert asked.id in held.value.for_model()
    [found] = [one for one in both.list(ana.approvals()) if one.call.run_id == name]
    assert found == both.do(ana.approval(found.id))
    assert both.do(ana.approve(found.id, digest=found.digest, why="ok")).state == "approved"
    with both.block(client.run(name)) as run:
        assert both.do(run.call("wire", order=name, cents=5)) == f"w_{name}"
    assert (run.state, name in world.wires) == ("committed", True)


def test_a_commit_over_a_held_call_raises_held(shop: Shop, both: Both, name: str) -> None:
    client = both.client(shop[0], "agent")
    with pytest.raises(Held) as held:
        with both.block(client.run(name, wait_approval=0)) as run:
            both.do(run.answer("wire", {"order": name, "cents": 5}))
    assert held.value.approval is not None
    assert (held.value.call.tool, held.value.reason) == ("wire", "approval")


def test_run_rollback_raises_rolled_back_with_the_report(shop: Shop, both: Both, name: str) -> None:
    client = both.client(shop[0], "agent")
    with pytest.raises(RolledBack) as back:
        with both.block(client.run(name)) as run:
            both.do(run.call("charge", order=name, cents=1))
            both.do(run.rollback("not wanted"))
    assert back.value.report.state == "rolled_back"
    assert [one.state for one in back.value.report.calls] == ["compensated"]
    assert "1 of 1 calls undone" in back.value.for_model()


def test_an_interrupt_rolls_back_or_suspends_by_the_policy(shop: Shop, both: Both, name: str) -> None:
    client = both.client(shop[0], "agent")
    for recover, state in (("rollback", "rolled_back"), ("wait", "open")):
        id = f"{name}-{recover}"
        with pytest.raises(KeyboardInterrupt):
            with both.block(client.run(id, recover=recover)) as run:
                both.do(run.call("charge", order=id, cents=1))
                raise KeyboardInterrupt
        assert both.do(client.info(id)).state == state


@pytest.mark.rest
def test_the_block_renews_its_client_lease_by_itself(shop: Shop, both: Both, name: str) -> None:
    import asyncio

    client = both.client(shop[0], "agent")
    with both.block(client.run(name, client_lease=0.3)) as run:
        both.do(run.call("charge", order=name, cents=1))
        both.do(asyncio.sleep(0.9)) if both.is_async else time.sleep(0.9)
    assert run.state == "committed"


# ---- Calls that the client makes itself


def test_a_claim_has_a_key_and_a_lease_on_its_own_clock(shop: Shop, both: Both, name: str) -> None:
    url, world = shop
    client = both.client(url, "agent")
    with both.block(client.run(name)) as run:
        before = time.monotonic()
        with both.block(both.do(run.begin("charge", {"order": name, "cents": 5}, lease=30))) as attempt:
            assert attempt.call.key
            assert (attempt.replayed, attempt.call.attempt, attempt.lease) == (False, 1, 30.0)
            assert attempt._until <= before + 30 + (time.monotonic() - before)
            assert 0 < attempt.left_s <= 30
            assert both.do(attempt.renew()) == 30.0
            both.do(attempt.succeed("ch_mine"))
            assert attempt.state == "succeeded"
        with pytest.raises(UsageError):
            both.do(attempt.succeed("ch_mine"))
        again = both.do(run.begin("charge", {"order": name, "cents": 5}))
        assert (again.replayed, again.result) == (True, "ch_mine")
    assert (run.state, name in world.charges) == ("committed", False)


@pytest.mark.parametrize("how, state", [("fail", "failed"), ("doubt", "in_doubt"), ("raised", "failed")])
def test_a_claim_ends_as_it_is_reported(shop: Shop, both: Both, name: str, how: str, state: str) -> None:
    client = both.client(shop[0], "agent")
    run = both.do(client.open(name, recover="wait", wait=0.2))
    attempt = both.do(run.begin("ship", {"x": 1}, kind="pivot"))
    attempt.spent(0.01)
    attempt.spent(Decimal("0.02"))
    attempt.spent(1_300, "tokens")
    both.do(getattr(attempt, how)("it broke"))
    assert attempt.state == state
    [call] = both.do(client.report(name)).calls
    spent = {"usd": Decimal("0.03"), "tokens": Decimal(1_300)}
    assert call.costs == (dict.fromkeys(spent, 0) if state == "in_doubt" else spent)  # reserved until somebody knows
    with pytest.raises(UsageError):
        attempt.spent(1)


def test_a_block_without_a_report_leaves_a_doubt(shop: Shop, both: Both, name: str) -> None:
    client = both.client(shop[0], "agent")
    run = both.do(client.open(name, recover="wait", wait=0.2))
    with both.block(both.do(run.begin("ship", {"x": 1}, kind="pivot"))) as attempt:
        pass
    assert attempt.state == "in_doubt"
    with pytest.raises(ValueError, match="broke"):
        with both.block(both.do(run.begin("pack", {"x": 1}, kind="read"))) as attempt:
            raise ValueError("broke")
    assert attempt.state == "failed"
    with pytest.raises(LeaseLost):
        both.do(attempt.renew())


def test_a_claim_that_needs_a_person_is_held(shop: Shop, both: Both, name: str) -> None:
    client = both.client(shop[0], "agent")
    run = both.do(client.open(name, recover="wait", wait_approval=0))
    with pytest.raises(Held) as held:
        both.do(run.begin("wire", {"order": name, "cents": 1}))
    assert held.value.approval is not None


# ---- Errors


def test_errors_are_the_runtimes_own(shop: Shop, both: Both, name: str) -> None:
    url, _ = shop
    client = both.client(url, "agent")
    with pytest.raises(RunNotFound) as missing:
        both.do(client.report("nothing-of-that-name"))
    assert (missing.value.run_id, bool(missing.value.hint)) == ("nothing-of-that-name", True)
    with pytest.raises(Unauthorized):
        both.do(both.client(url, "nobody").schemas())
    with pytest.raises(Forbidden):
        both.do(client.inbox())
    with pytest.raises(ServiceError) as invalid:
        both.do(client.open(name, recover="whatever"))
    assert (invalid.value.status, invalid.value.name, invalid.value.code) == (422, "Invalid", "invalid")
    with pytest.raises(UsageError, match="cannot be sent as JSON"):
        both.do(client.open(name, input=object()))
    run = both.do(client.open(name))
    with pytest.raises(BadArguments) as bad:
        both.do(run.call("charge", order=name))
    assert bad.value.tool == "charge"
    with pytest.raises(ToolFailed, match="no negative") as failed:
        both.do(run.call("charge", order=name, cents=-1))
    assert failed.value.type_name.endswith("NoEffect")
    both.do(run.commit())
    with pytest.raises(RunEnded) as ended:
        both.do(run.call("charge", order=name, cents=1))
    assert ended.value.state == "committed"


def test_a_service_that_does_not_answer_is_named(both: Both) -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        both.do(both.client("http://127.0.0.1:9", patience=0.3).health())


@pytest.mark.parametrize("id", ["a/b", "..", "ü ?#%2F&", "x" * 512, "a\\b\"'"])
def test_any_id_can_be_asked_for(shop: Shop, both: Both, id: str) -> None:
    client = both.client(shop[0], "agent")
    own = f"{both.is_async}{id}"[:512] if id != ".." else id
    with both.block(client.run(own)) as run:
        both.do(run.call("stock", item="abc"))
    assert both.do(client.report(own)).run_id == own


@pytest.mark.parametrize("url, token", [("ftp://x", "t"), ("x", "t"), ("http://x", ""), ("http://x", "a b")])
def test_a_client_is_checked_when_it_is_made(both: Both, url: str, token: str) -> None:
    with pytest.raises(UsageError):
        both.client(url, token)
    shown: Any = repr(both.client("http://x/", "secret-token"))
    assert (shown.endswith("of http://x>"), "secret" in shown) == (True, False)


def test_a_child_commits_or_is_rolled_back_inside_its_parent(shop: Shop, both: Both, name: str) -> None:
    url, world = shop
    client = both.client(url, "agent")
    with both.block(client.run(name)) as run:
        with both.block(run.child("a", input={"leg": 1})) as leg:
            assert (leg.id, leg.input, leg.resumed) == (f"{name}/a", {"leg": 1}, False)
            assert both.do(leg.call("charge", order=f"{name}a", cents=5)) == f"ch_{name}a"
            leg.output = "booked"
        with pytest.raises(ValueError, match="full") as caught, both.block(run.child("b")) as leg:
            both.do(leg.call("charge", order=f"{name}b", cents=5))
            raise ValueError("full")
        assert caught.value.__notes__ == [f"amends: run {name}/b rolled back, 1 call compensated"]
        with both.block(run.child("a")) as again:
            assert (again.is_over, again.resumed) == (True, True)
        seat = both.do(run.open_child("c"))
        with pytest.raises(UsageError, match="is open"):
            both.do(run.commit())
        with pytest.raises(RolledBack):
            both.do(seat.rollback("not needed"))
    report = both.do(client.report(name))
    assert [(one.state, one.run.output) for one in report.children] == [
        ("committed", "booked"), ("rolled_back", None), ("rolled_back", None),
    ]  # fmt: skip
    assert {one for one in world.charges if one.startswith(name)} == {f"{name}a"}


def test_a_child_that_waits_suspends_the_block_around_it(shop: Shop, both: Both, name: str) -> None:
    url, world = shop
    client, ana = both.client(url, "agent"), both.client(url, "approver")

    def work() -> None:
        with both.block(client.run(name, wait_approval=0)) as run, both.block(run.child("leg")) as leg:
            assert both.do(leg.call("wire", order=name, cents=5)) == f"w_{name}"

    with pytest.raises(Held) as held:
        work()
    assert held.value.approval is not None
    both.do(ana.approve(held.value.approval.id, digest=held.value.approval.digest))
    work()
    assert both.do(client.report(name)).state == "committed"
    assert world.wires.count(name) == 1


def test_a_rollback_that_is_not_finished_ends_the_block_all_the_same(both: Both, name: str) -> None:
    @tool(key="n")
    def lend(n: int) -> None: ...

    @lend.compensate(retry=Retry(attempts=5, delay=60, jitter=0))
    def take_back(n: int) -> None:
        raise NoEffect("it is not here yet")

    with served(tools=[lend], wait=0.05) as (url, _):
        client = both.client(url, "agent")
        with pytest.raises(RolledBack, match="is rolling_back") as back:
            with both.block(client.run(name)) as run:
                both.do(run.call("lend", n=1))
                both.do(run.rollback("no"))
        assert (run.is_over, run.state, back.value.report.state) == (True, "rolling_back", "rolling_back")
        assert both.do(both.client(url, "operator").rollback(name, why="again")).state == "rolling_back"
