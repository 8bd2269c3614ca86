from pathlib import Path

from tests.scenarios.payout import TOOLS
from tests.scenarios.processes import Program


def test_a_wire_before_the_checks_is_refused_with_what_is_missing_until_nothing_is(tmp_path: Path) -> None:
    payout = Program("payout", tmp_path)
    told = payout.play("play")

    assert [(one["tool"], one["status"], one["law"]) for one in told] == [
        ("create_payee", "done", None),
        ("send_wire", "refused", "pivot_early"),
        ("sanctions_check", "done", None),
        ("send_wire", "refused", "pivot_early"),
        ("reserve_funds", "done", None),
        ("send_wire", "done", None),
        ("create_payee", "refused", "after_pivot"),
        ("send_wire", "refused", "pivot_twice"),
    ]
    assert [one["missing"] for one in told if one["law"] == "pivot_early"] == [
        ["sanctions_check", "reserve_funds"],
        ["reserve_funds"],
    ]
    assert [one["wires"] for one in told] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert "Call reserve_funds first, then send_wire again with the same arguments." in told[3]["text"]
    assert payout.report("payout-3").state == "committed"
    assert {tool: len(payout.world.standing(tool)) for tool in TOOLS} == dict.fromkeys(TOOLS, 1)
    assert [entry["cents"] for entry in payout.world.entries("reserve_funds")] == [90_000]
    payout.assert_agrees(TOOLS)
    payout.assert_quiet()


def test_a_wire_lost_between_effect_and_record_is_neither_repeated_nor_taken_back(tmp_path: Path) -> None:
    payout = Program("payout", tmp_path)
    payout.killed("play", at="after send_wire")
    payout.recover()

    report = payout.report("payout-3")
    assert report.run.recover == "rollback"  # and still: the pivot has happened, so it only goes forward
    assert report.state == "blocked"
    assert next(call.state for call in report.calls if call.tool == "send_wire") == "succeeded"
    assert {tool: len(payout.world.standing(tool)) for tool in TOOLS} == dict.fromkeys(TOOLS, 1)
    payout.assert_agrees(TOOLS)
    payout.assert_quiet()
