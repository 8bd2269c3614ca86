"""A few scenarios of ``make proof``, and that its judge notices what is wrong."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proof.abilities import KINDS, SNAPSHOT, UNDO, UNDONE, choice
from proof.contest import Player, Verdict, injections, judged, played, played_injection, scenarios, worlds
from proof.destination import FAULTS, Scenario, World
from proof.environments import interpreter_of_worlds
from proof.oracle import expected
from proof.report import closing_line, failures, table

pytestmark = pytest.mark.slow  # installs AgentDojo, once for each interpreter
BUILD = Path(__file__).resolve().parents[2] / "build" / "proof"


@pytest.fixture(scope="module")
def path() -> Any:
    with worlds(interpreter_of_worlds(BUILD)) as found:
        yield found


@pytest.fixture(scope="module")
def catalogue(path: str) -> dict[str, Any]:
    world = World(path, "")
    found: dict[str, Any] = world.ask("catalogue")
    world.close()
    return found


@pytest.fixture(scope="module")
def written(catalogue: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("proof") / "catalogue.json"
    file.write_text(json.dumps(catalogue), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def amends(written: Path) -> Any:
    player = Player("amends", "amends_player", sys.executable, written)
    yield player
    player.close()


@pytest.fixture(scope="module")
def bare(written: Path) -> Any:
    player = Player("bare", "bare", sys.executable, written)
    yield player
    player.close()


def chosen(catalogue: dict[str, Any], suite: str, tool: str, **wanted: Any) -> Scenario:
    """Return the first scenario in which a fault strikes this tool."""
    for one in scenarios(catalogue):
        here = one.suite == suite and one.at >= 0 and one.calls[one.at][0] == tool
        if here and all(getattr(one, name) == value for name, value in wanted.items()):
            return one
    raise AssertionError(f"no scenario of {tool} with {wanted}")


PLAYED = (
    ("banking", "send_money", "kill between"),
    ("banking", "send_money", "two workers"),
    ("banking", "update_user_info", "failure"),
    ("slack", "invite_user_to_slack", "kill before"),
    ("slack", "send_direct_message", "kill between"),
    ("slack", "send_channel_message", "reworded"),
    ("workspace", "create_file", "timeout with"),
    ("workspace", "create_calendar_event", "timeout without"),
    ("workspace", "append_to_file", "error"),
    ("workspace", "send_email", "new id"),
    ("travel", "reserve_hotel", "kill after"),
    ("travel", "reserve_hotel", "timeout with"),
)
QUICK = PLAYED[:5]
"""What ``make test`` plays."""


@pytest.mark.parametrize(
    "suite, tool, fault", [*QUICK, *(pytest.param(*one, marks=pytest.mark.rest) for one in PLAYED if one not in QUICK)]
)
def test_amends_leaves_the_world_as_it_must_be(
    catalogue: dict[str, Any], amends: Player, path: str, tmp_path: Path, suite: str, tool: str, fault: str
) -> None:
    for then in ("resume", "rollback") if fault.startswith("kill") else ("resume",):
        found = played(chosen(catalogue, suite, tool, fault=fault, then=then), amends, path, tmp_path)
        assert found.is_right, found


def test_a_mail_that_nobody_can_look_up_waits_for_a_person(
    catalogue: dict[str, Any], amends: Player, path: str, tmp_path: Path
) -> None:
    found = played(chosen(catalogue, "travel", "send_email", fault="kill between"), amends, path, tmp_path)
    assert "send_email" in found.blocked
    assert not any((found.duplicated, found.lost, found.stuck, found.wrong, found.unnamed))


def test_an_injection_has_no_effect_that_nobody_approved(
    catalogue: dict[str, Any], amends: Player, path: str, tmp_path: Path
) -> None:
    for suite in catalogue["suites"]:
        some = next(one for one in injections(catalogue) if one.suite == suite and _has_effect(suite, one))
        found = played_injection(some, amends, path, tmp_path)
        assert found.is_right, found


def _has_effect(suite: str, scenario: Scenario) -> bool:
    return any(choice(suite, tool)[0] != "read" for tool, _ in scenario.injected or ())


@pytest.mark.parametrize(
    "tool, fault, wrong",
    [
        ("send_money", "kill between", "duplicated"),
        ("send_money", "timeout with", "duplicated"),
        ("send_money", "new id", "duplicated"),
        ("send_money", "two workers", "duplicated"),
        ("update_user_info", "failure", "unnamed"),
    ],
)
def test_the_judge_finds_what_a_bare_loop_does_wrong(
    catalogue: dict[str, Any], bare: Player, path: str, tmp_path: Path, tool: str, fault: str, wrong: str
) -> None:
    found = played(chosen(catalogue, "banking", tool, fault=fault), bare, path, tmp_path)
    assert getattr(found, wrong), found


def idle(scenario: Scenario, bare: Player, path: str, folder: Path) -> Verdict:
    """Judge a player that says that it is done, and did nothing."""
    scenario = replace(scenario, folder=str(folder), socket=path, world=folder.name)
    world, model = World(path, folder.name), World(path, f"{folder.name}-expected")
    world.ask("new", suite=scenario.suite, task=scenario.task)
    (folder / "done").touch()
    bare.act("finish", scenario)
    verdict = judged(scenario, bare, world.ask("state"), expected(scenario, model), folder)
    world.close()
    model.close()
    return verdict


def test_a_fault_that_does_not_strike_is_wrong(
    catalogue: dict[str, Any], bare: Player, path: str, tmp_path: Path
) -> None:
    scenario = chosen(catalogue, "banking", "send_money", fault="error")
    assert "did not strike" in idle(scenario, bare, path, tmp_path).wrong


def test_an_effect_that_is_missing_is_lost(catalogue: dict[str, Any], bare: Player, path: str, tmp_path: Path) -> None:
    scenario = replace(chosen(catalogue, "banking", "send_money", fault="error"), fault="", at=-1)
    assert idle(scenario, bare, path, tmp_path).lost


def test_every_tool_with_an_effect_is_declared_with_a_reason(catalogue: dict[str, Any]) -> None:
    reading = ("get_", "search_", "list_", "read_", "check_")
    for suite, known in catalogue["suites"].items():
        for tool in known["tools"]:
            kind, why, _ = choice(suite, tool)
            assert (kind == "read") == tool.startswith(reading), tool
            assert why
    assert {name for name in KINDS if KINDS[name][0] == "compensatable"} == set(UNDO) == set(UNDONE)
    assert set(SNAPSHOT) <= set(KINDS)


def test_every_fault_is_played_at_every_call(catalogue: dict[str, Any]) -> None:
    found = Counter(one.fault for one in scenarios(catalogue) if one.then == "resume")
    calls = sum(len(calls) for suite in catalogue["suites"].values() for calls in suite["tasks"].values())
    assert found[""] == sum(len(suite["tasks"]) for suite in catalogue["suites"].values())
    assert {fault: found[fault] for fault in FAULTS if fault != "reworded"} == dict.fromkeys(
        set(FAULTS) - {"reworded"}, calls
    )


def test_only_what_nobody_can_look_up_may_be_blocked_and_seldom() -> None:
    def verdict(at: int, suite: str = "travel", tool: str = "send_email", **found: Any) -> Verdict:
        return Verdict("amends", suite, "t", "kill between", "resume", at, tool, **found)

    right = [verdict(at) for at in range(100)]
    assert failures([*right, *(verdict(at, blocked="who knows") for at in range(3))]) == []
    assert failures([*right, *(verdict(at, blocked="who knows") for at in range(4))]) != []
    assert failures([*right, verdict(0, blocked="who knows", duplicated=["send_email"])]) != []
    for suite, tool in (
        ("workspace", "send_email"),
        ("travel", "reserve_hotel"),
        ("slack", "read_inbox"),
        ("slack", ""),
    ):
        assert failures([*right, verdict(0, suite, tool, blocked="who knows")]) != [], tool


def test_the_closing_line_counts_what_was_wrong() -> None:
    right = Verdict("amends", "s", "t", "error", "resume", 0, "x")
    lost = Verdict("amends", "s", "t", "error", "resume", 1, "x", lost=["x"])
    other = Verdict("bare", "s", "t", "error", "resume", 1, "x", duplicated=["x"])
    assert (
        closing_line([right, lost, other]) == "amends: 2 scenarios, 0 duplicated, 1 lost, 0 stuck, 0 wrong, 0 unnamed"
    )
    assert [row[0] for row in table([right, lost, other])] == ["amends", "bare"]
