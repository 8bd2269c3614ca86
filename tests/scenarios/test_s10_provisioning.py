import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import Budget, Runtime, tool
from amends.errors import BudgetExceeded, InDoubt
from tests.scenarios.processes import Program
from tests.scenarios.provisioning import CAP, TOOLS, tools_of
from tests.world import together

RACERS = 32


class Cloud:
    """What was bought, and what of it stands."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.standing: list[str] = []
        self.lost: set[str] = set()
        self._lock = threading.Lock()

    def do(self, kind: str, name: str) -> str:
        with self._lock:
            self.log.append(kind)
            self.standing.append(f"{kind} {name}")
        if kind in self.lost:
            raise TimeoutError("no answer")
        return name

    def undo(self, kind: str, name: str) -> None:
        with self._lock:
            self.standing.remove(f"{kind} {name}")


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "memory":
            yield "memory:"
        case "sqlite":
            yield f"sqlite:///{tmp_path / 'ledger.db'}"
        case "postgresql":
            yield request.getfixturevalue("postgres_url")
        case _:
            yield request.getfixturevalue("mysql_url")


def books(rt: Runtime) -> tuple[Any, Any]:
    [state] = rt.budgets()
    return state.reserved, state.spent


def provision(rt: Runtime, id: str) -> None:
    with rt.run(id) as run:
        for one in tools_in(rt):
            run.call(one, name=id)


def tools_in(rt: Runtime) -> list[Any]:
    return rt._host.tools


def test_the_third_is_refused_before_it_is_bought_and_the_others_are_given_back(url: str) -> None:
    cloud = Cloud()
    with Runtime(url, tools=tools_of(cloud), budgets=[CAP]) as rt:
        with pytest.raises(BudgetExceeded) as refused:
            provision(rt, "site-1")
        no: Any = refused.value
        assert (no.tool, no.budget.per, no.spent, no.reserved, no.asked, no.left) == (
            "create_lb",
            "tenant",
            90,
            0,
            30,
            10,
        )
        assert cloud.log == ["create_vm", "create_db"]
        assert cloud.standing == []
        assert books(rt) == (0, 5), "what a compensation does not bring back stays spent"
        assert rt.report("site-1").state == "rolled_back"
        assert {line.what: line.spent for line in rt.costs("tool")} == {"create_vm": 0, "create_db": 5}


def test_two_who_race_for_the_last_of_it_get_it_once(url: str) -> None:
    cloud = Cloud()
    with Runtime(url, tools=tools_of(cloud), budgets=[CAP]) as rt:
        vm = tools_in(rt)[0]
        with rt.run("before") as run:
            run.call(vm, name="before")

        def buy(id: str) -> None:
            with rt.run(id) as run:
                run.call(vm, name=id)

        ends = together([lambda: buy("left"), lambda: buy("right")])
        assert sorted(type(end).__name__ for end in ends) == ["BudgetExceeded", "NoneType"]
        assert (len(cloud.standing), books(rt)) == (2, (0, 80))


def test_of_32_who_buy_at_once_no_more_is_bought_than_the_cap_allows(url: str) -> None:
    bought: list[str] = []
    refused: list[BudgetExceeded] = []

    @tool(cost=7)
    def buy(name: str) -> str:
        bought.append(name)
        return name

    @buy.compensate
    def give_back(name: str) -> None:
        bought.remove(name)

    with Runtime(url, tools=[buy], budgets=[Budget(100, per="ledger"), Budget(500, per="tenant", every="day")]) as rt:

        def one(number: int) -> None:
            try:
                with rt.run(f"run-{number}"):
                    buy(f"n{number}")
            except BudgetExceeded as no:
                refused.append(no)

        ends = together([lambda number=number: one(number) for number in range(RACERS)])  # type: ignore[misc]
        assert [end for end in ends if isinstance(end, BaseException)] == []
        assert (len(bought), len(refused)) == (14, RACERS - 14)
        assert {(no.left < 7, no.spent + no.reserved <= 100) for no in refused} == {(True, True)}
        spent = {state.budget.per: state.spent for state in rt.budgets()}
        assert spent == {"ledger": 98, "tenant": 98}


def test_what_is_in_doubt_keeps_its_money_and_a_compensation_needs_none(url: str) -> None:
    cloud = Cloud()
    cloud.lost = {"create_db"}
    with Runtime(url, tools=tools_of(cloud), budgets=[CAP], wait=0.1) as rt:
        vm, db, lb = tools_in(rt)
        run: Any = rt.open("site-1")
        run.call(vm, name="1")
        with pytest.raises(InDoubt):
            run.call(db, name="1")
        assert books(rt) == (50, 40)
        with pytest.raises(BudgetExceeded):
            run.call(lb, name="1")
        [doubt] = rt.doubts()
        with pytest.raises(Exception, match="blocked"):
            run.rollback("enough")
        assert cloud.standing == ["create_db 1"], "the machine went back although the cap is reached"
        assert books(rt) == (50, 0)
        rt.accept(doubt.id, by="anna", why="nobody knows")
        assert books(rt) == (50, 0), "what may stand may have been paid for"


@pytest.mark.parametrize("point", ["after create_vm", "after create_db"])
def test_a_kill_in_the_middle_costs_nothing_that_does_not_stand(tmp_path: Path, point: str) -> None:
    site = Program("provisioning", tmp_path)
    site.killed("play", at=point)
    lost = point.removeprefix("after ")
    with Runtime(site.world.url, create=False) as rt:
        assert books(rt) == {"create_vm": (40, 0), "create_db": (50, 40)}[lost]
    site.recover()
    with Runtime(site.world.url, create=False) as rt:
        assert books(rt) == ({"create_vm": 40, "create_db": 50}[lost], 0), "a doubt keeps what it has reserved"
        assert rt.report("site-1").state == "blocked"
    assert {name: len(site.world.standing(name)) for name in TOOLS} == {**dict.fromkeys(TOOLS, 0), lost: 1}
