"""A pivot of which a person says that nobody can know: nothing that was staged behind it may follow."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from amends import Happened, Runtime, Unknown, tool
from amends.errors import InDoubt, OutOfOrder, RunBlocked


class Office:
    """A permit that cannot be undone, a mail about it, and a stand that can be given back."""

    def __init__(self) -> None:
        self.done: list[str] = []

        @tool(key="hive")
        def reserve(hive: str) -> str:
            self.done.append("reserved")
            return hive

        @reserve.compensate
        def give_back(result: str) -> None:
            self.done.append("given back")

        @tool(kind="pivot", key="hive")
        def stamp(hive: str) -> str:
            raise TimeoutError("the answer was lost")

        @tool(kind="retriable", key="hive", idempotent=True)
        def mail(hive: str) -> None:
            self.done.append("mailed")

        self.rt = Runtime("memory:", tools=[reserve, stamp, mail])
        with pytest.raises(RunBlocked), self.rt.run("move") as run:
            for name in ("reserve", "mail", "stamp"):
                run.answer(name, {"hive": "7"})
        [self.doubt] = self.rt.doubts()

    def resolve(self, answer: Any) -> Any:
        return self.rt.resolve(self.doubt.id, answer, by="ada", why="I asked the office")


def test_a_run_whose_pivot_nobody_can_know_is_blocked_and_mails_nobody() -> None:
    office = Office()
    assert office.rt.preview(office.doubt.id).unknown.run_state == "blocked"
    assert office.resolve(Unknown()).state == "blocked"
    assert office.done == ["reserved"]
    [item] = office.rt.inbox()
    assert (item.what, item.verbs) == ("blocked", ("rollback", "abandon"))
    assert [left.call.tool for left in office.rt.report("move").residue] == ["stamp"]


def test_a_person_takes_the_rest_back_or_closes_the_run() -> None:
    office = Office()
    office.resolve(Unknown())
    office.rt.rollback("move", by="ada", why="we ask again")
    assert office.done == ["reserved", "given back"]
    report = office.rt.abandon("move", by="ada", why="the permit is in the mail, or not")
    assert (report.state, [left.call.tool for left in report.residue]) == ("abandoned", ["stamp"])
    assert office.done == ["reserved", "given back"]


def test_an_answer_that_is_certain_goes_on() -> None:
    office = Office()
    assert office.resolve(Happened("permit 12")).state == "committed"
    assert office.done == ["reserved", "mailed"]


def test_rolled_back_is_never_said_of_it() -> None:
    office = Office()
    office.resolve(Unknown())
    assert office.rt.rollback("move", by="ada", why="back").state == "blocked"


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_a_person_answers_while_it_is_open_is_not_committed(url: str, again: bool, tmp_path: Path) -> None:
    """The process that asks to commit is the one that resolved the pivot: no short way past the rules."""

    @tool(kind="pivot", key="hive")
    def stamp(hive: str) -> str:
        if hive == "7":
            raise TimeoutError("the answer was lost")
        return hive

    rt = Runtime(url if url == "memory:" else f"sqlite:///{tmp_path / 'ledger.db'}", tools=[stamp])
    refused: list[OutOfOrder | InDoubt] = []
    with rt, pytest.raises(RunBlocked), rt.run("move"):
        with suppress(InDoubt):
            stamp("7")
        [doubt] = rt.doubts()
        rt.resolve(doubt.id, Unknown(), by="ada", why="I asked the office")
        try:
            stamp("8" if again else "7")
        except (OutOfOrder, InDoubt) as no:
            refused.append(no)
    [told] = refused
    assert isinstance(told, OutOfOrder if again else InDoubt)
    assert not isinstance(told, OutOfOrder) or (told.law, told.pivot) == ("pivot_twice", "stamp")


def test_a_child_that_waits_for_a_person_blocks_its_parent_and_the_parent_says_why() -> None:
    @tool(kind="pivot", key="hive")
    def stamp(hive: str) -> str:
        raise TimeoutError("the answer was lost")

    @tool(kind="retriable", key="hive", idempotent=True)
    def mail(hive: str) -> None: ...

    rt = Runtime("memory:", tools=[stamp, mail])
    with pytest.raises(RunBlocked), rt.run("move") as run, suppress(RunBlocked), run.child("permit"):
        mail("7")
        with suppress(InDoubt):
            stamp("7")
    [doubt] = rt.doubts()
    report = rt.resolve(doubt.id, Unknown(), by="ada", why="I asked the office")
    assert report.state == "blocked"
    items = {item.run_id: (item.what, item.verbs) for item in rt.inbox()}
    assert items["move"] == ("blocked", ("rollback", "abandon"))
    assert rt.abandon("move", by="ada", why="we ask again").state == "abandoned"
