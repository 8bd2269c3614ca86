"""Sanctioned ahead: each use of a permit writes and consumes an approval of the exact call, with its start."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from amends import AsyncRuntime, Held, Permit, Rule, Runtime, UsageError, tool
from amends.errors import NotFound
from amends.ledger import queries

DONE: list[str] = []


@tool(needs_approval=True)
def wire(to: str, cents: int = 5) -> str:
    DONE.append(f"{to} {cents}")
    return "wired"


@wire.compensate
def unwire(to: str) -> None:
    DONE.append(f"no {to}")


@tool(kind="retriable", idempotent=True, needs_approval=True)
def mail(to: str) -> None:
    DONE.append(f"mail {to}")


@tool(kind="read", needs_approval=True)
def look(what: str) -> str:
    DONE.append(f"look {what}")
    return what


@tool(locks=lambda call: ["desk"], needs_approval=True)
def desk(n: int) -> int:
    DONE.append(f"desk {n}")
    return n


@desk.compensate
def undesk() -> None: ...


@tool(cost=lambda call: call.args["usd"], needs_approval=True)
def paid(usd: int) -> int:
    return usd


@paid.compensate
def unpaid() -> None: ...


SHELF: dict[str, int] = {}


@tool(needs_approval=True, key="what", on_conflict="next", locks=lambda call: ["shelf"])
def put(what: str, value: int) -> None:
    SHELF[what] = value


@put.before
def shelved(what: str) -> int:
    return SHELF[what]


@put.compensate
def put_back(what: str, before: int) -> None:
    SHELF[what] = before


TOOLS = (wire, mail, look, desk, put)


@pytest.fixture(params=["memory:", "sqlite"])
def rt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    DONE.clear()
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url, tools=TOOLS, principal="bot", agent="clerk", wait=0, wait_approval=0) as made:
        yield made


def test_a_permitted_call_starts_at_once_and_only_so_often(rt: Runtime) -> None:
    given = rt.permit(wire, {"to": "bank"}, by="ann", why="rent", uses=1)
    assert isinstance(given, Permit)
    assert (given.tool, given.uses, given.by, given.rule) == ("wire", 1, "ann", None)
    with rt.run("rent"):
        assert wire("bank") == "wired"
    [used] = rt.approvals("state:used")
    assert [yes.by for yes in used.given] == ["ann"]
    assert rt.permits() == []
    with pytest.raises(Held), rt.run("again"):
        wire("bank")
    assert DONE == ["bank 5"]
    assert [event.what for event in rt.events() if event.run_id == given.id] == ["permitted", "permit used"]
    assert rt.verify().ok


@pytest.mark.parametrize("args", [{"to": "thief"}, {"to": "bank", "cents": 6}])
def test_other_arguments_are_not_covered(rt: Runtime, args: dict[str, Any]) -> None:
    rt.permit("wire", {"to": "bank"}, by="ann")
    with pytest.raises(Held), rt.run("order"):
        wire(**args)
    assert DONE == []
    assert [one.uses for one in rt.permits()] == [1]


def test_a_rule_covers_what_it_matches(rt: Runtime) -> None:
    rt.permit("wire", Rule(args={"cents": "<=100", "to": "b*"}), by="ann", uses=2)
    with rt.run("order"):
        wire("bank", 100)
        wire("baker", 1)
    for args in (("bank", 101), ("cook", 1), ("bank", 99)):
        with pytest.raises(Held), rt.run(f"order {args}"):
            wire(*args)
    assert DONE == ["bank 100", "baker 1"]
    assert rt.verify().ok


def test_a_repeat_and_a_later_attempt_use_it_once(rt: Runtime) -> None:
    rt.permit("wire", {"to": "bank"}, by="ann", uses=2)
    with rt.run("order"):
        wire("bank")
        wire("bank")
    assert [one.uses for one in rt.permits()] == [1]


@pytest.mark.parametrize("by", ["bot", "CLERK"])
def test_nobody_permits_what_they_ask_for_themselves(rt: Runtime, by: str) -> None:
    rt.permit("wire", {"to": "bank"}, by=by)
    with pytest.raises(Held), rt.run("order"):
        wire("bank")
    assert DONE == []


def test_an_ended_or_revoked_permit_covers_nothing(rt: Runtime) -> None:
    given = rt.permit("wire", {"to": "bank"}, by="ann", uses=9)
    ended = rt.revoke(given.id, by="ben", why="no")
    assert ended.ended_at is not None
    assert rt.revoke(given.id, by="ben", why="no") == ended
    with pytest.raises(Held), rt.run("order"):
        wire("bank")
    with pytest.raises(NotFound):
        rt.revoke("prm_nothing", by="ben", why="no")
    assert DONE == []


def test_permits_whose_time_is_over_do_not_hide_those_that_are_valid(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "DIRECTIVES_MAX", 3)  # it is 10,000
    for _ in range(3):
        rt.permit("wire", {"to": "bank"}, by="ann", expires=0.001)
    time.sleep(0.01)
    assert rt.permits() == []
    given = rt.permit("wire", {"to": "bank"}, by="ann")
    assert [one.id for one in rt.permits("wire")] == [given.id]
    with rt.run("order"):
        wire("bank")
    assert DONE == ["bank 5"]


def test_a_request_that_waits_is_covered_when_it_is_asked_again(rt: Runtime) -> None:
    with pytest.raises(Held), rt.run("order"):
        wire("bank")
    rt.permit("wire", {"to": "bank"}, by="ann")
    with rt.run("order"):
        wire("bank")
    assert DONE == ["bank 5"]
    assert list(rt.approvals()) == []


def test_reads_and_staged_calls_are_covered(rt: Runtime) -> None:
    rt.permit("look", {"what": "x"}, by="ann")
    rt.permit("mail", {"to": "ann"}, by="ben")
    with rt.run("order"):
        assert look("x") == "x"
        mail("ann")
        assert DONE == ["look x"]
    assert DONE == ["look x", "mail ann"]
    assert {one.state for one in rt.approvals("state:used,approved,pending")} == {"used"}
    assert rt.verify().ok


def test_roles_and_several_approvers_are_still_asked_for(tmp_path: Path) -> None:
    DONE.clear()
    rules = [Rule("wire", roles=["treasurer"])]
    with Runtime("memory:", tools=[wire], rules=rules, wait=0, wait_approval=0) as rt:
        rt.permit("wire", {"to": "a"}, by="ann")
        with pytest.raises(Held), rt.run("a"):
            wire("a")
        rt.permit("wire", {"to": "b"}, by="ann", roles=["treasurer"])
        with rt.run("b"):
            wire("b")
    with Runtime("memory:", tools=[wire], rules=[Rule("wire", approvers=2)], wait=0, wait_approval=0) as rt:
        rt.permit("wire", {"to": "a"}, by="ann", uses=5)
        with pytest.raises(Held), rt.run("a"):
            wire("a")
    assert DONE == ["b 5"]


def test_a_rule_that_refuses_still_refuses(tmp_path: Path) -> None:
    from amends.errors import RuleRefused

    DONE.clear()
    with Runtime("memory:", tools=[wire], rules=[Rule("wire", decision="refuse")]) as rt:
        rt.permit("wire", {"to": "a"}, by="ann")
        with pytest.raises(RuleRefused), rt.run("a"):
            wire("a")
    assert DONE == []


def test_a_halt_comes_first_and_uses_nothing(rt: Runtime) -> None:
    from amends.errors import Halted

    rt.permit("wire", {"to": "bank"}, by="ann")
    rt.halt(by="ann", why="stop")
    with pytest.raises(Halted), rt.run("order"):
        wire("bank")
    assert [one.uses for one in rt.permits()] == [1]


def test_a_permit_belongs_to_its_tenant(rt: Runtime) -> None:
    rt.scoped(tenant="acme").permit("wire", {"to": "bank"}, by="ann")
    with pytest.raises(Held), rt.run("order"):
        wire("bank")
    with rt.scoped(tenant="acme").run("order"):
        wire("bank")
    assert DONE == ["bank 5"]


def test_a_call_that_a_lock_keeps_from_starting_uses_nothing(rt: Runtime) -> None:
    from amends.errors import Locked

    rt.permit("desk", {"n": 1}, by="ann")
    rt.permit("desk", {"n": 2}, by="ann")

    def second() -> None:
        with pytest.raises(Locked), rt.run("second"):
            desk(2)
        DONE.append("locked")

    with rt.run("first"):
        desk(1)
        other = Thread(target=second)
        other.start()
        other.join()
    assert DONE == ["desk 1", "locked"]
    assert [one.uses for one in rt.permits()] == [1]
    with rt.run("third"):
        desk(2)
    assert rt.permits() == []
    assert {one.state for one in rt.approvals("state:used,approved,pending")} == {"used"}
    assert rt.verify().ok


def test_a_call_that_waits_for_a_lock_starts_by_its_permit_when_the_lock_is_free(rt: Runtime) -> None:
    rt.permit("desk", {"n": 1}, by="ann")
    rt.permit("desk", {"n": 2}, by="ann")

    def second() -> None:
        with rt.run("second", wait=20):
            desk(2)

    with rt.run("first"):
        desk(1)
        other = Thread(target=second)
        other.start()
        other.join(0.3)
        assert DONE == ["desk 1"]
        assert [one.uses for one in rt.permits()] == [1]
    other.join()
    assert DONE == ["desk 1", "desk 2"]
    assert rt.permits() == []
    assert rt.verify().ok


def test_a_call_that_a_budget_refuses_uses_nothing(tmp_path: Path) -> None:
    from amends import Budget
    from amends.errors import BudgetExceeded

    outcomes: list[tuple[Any, type[Exception]]] = [("refuse", BudgetExceeded), ("hold", Held)]
    for then, error in outcomes:
        with Runtime(
            f"sqlite:///{tmp_path / then}.db",
            tools=[paid],
            budgets=[Budget(10, per="call", then=then)],
            wait_approval=0,
        ) as rt:
            rt.permit("paid", {"usd": 11}, by="ann")
            rt.permit("paid", {"usd": 9}, by="ann")
            with pytest.raises(error), rt.run("a"):
                paid(11)
            assert [one.uses for one in rt.permits()] == [1, 1]
            with rt.run("b"):
                paid(9)
            assert [one.uses for one in rt.permits()] == [1]
            assert rt.verify().ok


def test_a_call_that_is_only_asked_about_uses_nothing_and_waits_for_nobody(rt: Runtime) -> None:
    """Frameworks pause instead of calling: with a permit there is nothing to pause for."""
    rt.permit("wire", {"to": "bank"}, by="ann")
    with rt.run("order") as run:
        assert run.approval_for("wire", {"to": "bank"}) is None
        assert [one.uses for one in rt.permits()] == [1]
        assert run.answer("wire", {"to": "bank"}).text == '"wired"'
        assert run.approval_for("wire", {"to": "bank"}) is None  # done
        asked = run.approval_for("wire", {"to": "baker"})
        assert asked is not None
        rt.permit("wire", {"to": "baker"}, by="ann")
        assert run.approval_for("wire", {"to": "baker"}) is None
        wire("baker")
    assert DONE == ["bank 5", "baker 5"]
    assert [call.state for call in rt.report("order").calls] == ["succeeded", "succeeded"]
    assert rt.verify().ok


@pytest.mark.parametrize("by, rules", [("bot", []), ("ann", [Rule("wire", roles=["treasurer"])])])
def test_a_permit_that_does_not_count_lets_a_framework_pause(by: str, rules: list[Rule]) -> None:
    options: dict[str, Any] = {"tools": [wire], "principal": "bot", "wait_approval": 0}
    with Runtime("memory:", rules=rules, **options) as rt:
        rt.permit("wire", {"to": "bank"}, by=by)
        with pytest.raises(Held), rt.run("order") as run:
            asked = run.approval_for("wire", {"to": "bank"})
            assert asked is not None
            assert asked.state == "pending"
        assert [one.uses for one in rt.permits()] == [1]


def test_a_permitted_call_still_reads_what_is_there_before(rt: Runtime) -> None:
    SHELF["x"] = 7
    rt.permit("put", {"what": "x", "value": 8}, by="ann")
    with pytest.raises(ZeroDivisionError), rt.run("set"):
        put("x", 8)
        assert SHELF["x"] == 8
        raise ZeroDivisionError
    assert SHELF["x"] == 7
    assert rt.permits() == []
    assert rt.verify().ok


@pytest.mark.parametrize(
    "given",
    [
        {"by": ""}, {"uses": 0}, {"uses": True}, {"uses": 1.5}, {"expires": 0}, {"expires": -1}, {"expires": "soon"},
        {"expires": datetime(2090, 1, 1)}, {"args": None}, {"args": {"nobody": 1}}, {"tool": "unknown"}, {"tool": 5},  # noqa: DTZ001
        {"rule": Rule()}, {"args": None, "rule": Rule(when=lambda _: True)}, {"args": None, "rule": Rule("mail")},
        {"args": None, "rule": Rule(decision="refuse")},
    ],
)  # fmt: skip
def test_a_wrong_permit_is_refused_before_anything_is_written(rt: Runtime, given: dict[str, Any]) -> None:
    whole = {"tool": "wire", "args": {"to": "bank"}, "by": "ann"} | given
    with pytest.raises(UsageError):
        rt.permit(**whole)
    assert rt.permits() == []


def test_a_rule_may_be_written_as_in_a_settings_file(rt: Runtime) -> None:
    given = rt.permit("wire", rule={"args": {"cents": "<=9"}, "days": ["mon"]}, by="ann")
    assert given.rule == {"args": {"cents": "<=9"}, "days": ["mon"]}
    wrong: list[Any] = [{"arg": {}}, {"args": {"cent": 1}}, {"hours": "late"}, {"approvers": 2}, {"expires": 5}, "any"]
    for rule in wrong:
        with pytest.raises(UsageError):
            rt.permit("wire", rule=rule, by="ann")
    assert rt.permits() == [given]


@pytest.mark.parametrize("expires", [5, 5.0, "5s", "2w", timedelta(hours=1), datetime.now(UTC) + timedelta(days=1)])
def test_a_permit_says_when_it_ends(rt: Runtime, expires: Any) -> None:
    given = rt.permit("wire", {"to": "bank"}, by="ann", expires=expires)
    assert given.expires_at > given.at
    assert rt.permits("wire") == [given]
    assert rt.permits("mail") == []
    assert given.to_dict()["id"] == given.id


def test_an_async_runtime_permits_in_the_same_way(tmp_path: Path) -> None:
    DONE.clear()

    async def main() -> None:
        async with AsyncRuntime(f"sqlite:///{tmp_path / 'a.db'}", tools=[wire], wait_approval=0) as rt:
            await rt.permit("wire", {"to": "bank"}, by="ann")
            async with rt.run("order") as run:
                await run.call(wire, to="bank")
            assert await rt.permits() == []

    asyncio.run(main())
    assert DONE == ["bank 5"]


def test_a_use_is_not_given_back_when_a_call_that_cannot_start_at_once_is_dropped() -> None:
    SHELF.clear()
    DONE.clear()
    with Runtime("memory:", tools=[wire, mail, put], principal="bot") as rt:
        rt.permit("mail", {"to": "ada"}, by="anna")
        rt.permit("put", {"what": "nothing there", "value": 1}, by="anna")
        with pytest.raises(KeyError), rt.run("r") as run:
            assert run.answer("mail", {"to": "ada"}).status == "staged"
            assert run.answer("put", {"what": "nothing there", "value": 1}).status == "failed"
            raise KeyError
        assert DONE == []
        assert rt.permits() == []
