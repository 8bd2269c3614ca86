import signal
from pathlib import Path

from tests.scenarios.order import TOOLS
from tests.scenarios.processes import Program, wait_until


def test_a_compensation_that_fails_twice_is_done_once_across_a_kill_and_in_its_place(tmp_path: Path) -> None:
    order = Program("order", tmp_path, "flaky")
    with order.start("play") as child:
        # Between the first 503, recorded, and the next attempt: the process sleeps until then.
        wait_until(lambda: len(order.world.entries("void")) == 1)
        wait_until(lambda: _state(order, "authorise_card") == "compensation_failed")
        child.kill()
    assert child.returncode == -signal.SIGKILL
    order.recover()

    report = order.report("order-2")
    assert (report.state, report.residue) == ("rolled_back", ())
    assert len(order.world.entries("void")) == 2
    assert {tool: len(order.world.undone(tool)) for tool in TOOLS} == {
        "reserve_stock": 1,
        "authorise_card": 1,
        "create_label": 1,
        "capture": 0,
    }
    assert _undo_order(order) == ["create_label", "authorise_card", "reserve_stock"]
    order.assert_agrees(TOOLS)
    order.assert_quiet()


def test_a_compensation_that_never_works_is_residue_and_the_others_are_still_done(tmp_path: Path) -> None:
    order = Program("order", tmp_path, "closed")
    assert order.play("play") == "blocked"

    report = order.report("order-2")
    assert report.state == "blocked"
    assert [(left.call.tool, left.call.result) for left in report.residue] == [("authorise_card", "A-2")]
    assert _state(order, "authorise_card") == "compensation_failed"
    assert len(order.world.entries("void")) == 2
    assert _undo_order(order) == ["create_label", "reserve_stock"]
    assert order.world.standing("authorise_card") == ["A-2"]
    order.assert_quiet()


def _state(order: Program, tool: str) -> str:
    return next(call.state for call in order.report("order-2").calls if call.tool == tool)


def _undo_order(order: Program) -> list[str]:
    undone = [(entry["at"], tool) for tool in TOOLS for entry in order.world.entries(tool) if "undo" in entry]
    return [tool for _, tool in sorted(undone)]
