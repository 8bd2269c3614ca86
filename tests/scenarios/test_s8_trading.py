from pathlib import Path

import pytest

from amends import Runtime
from tests.scenarios.processes import Program, wait_until
from tests.scenarios.trading import SETTLE_S


def test_a_model_is_told_of_a_doubt_and_the_probe_settles_it_in_other_processes(tmp_path: Path) -> None:
    trade = Program("trading", tmp_path, "eventual")
    told = trade.play("play")
    assert (told["status"], told["is_error"]) == ("in_doubt", True)
    assert "Do not call it again" in told["text"]
    assert _state(trade) == "in_doubt"
    wait_until(lambda: _recovered(trade) == "succeeded")

    assert len(trade.world.entries("asked")) >= 3
    assert trade.play("patient") == {"status": "replayed", "value": "O-8"}
    _assert_one_order(trade, sent=1)


def test_an_absence_inside_the_settle_delay_is_not_believed(tmp_path: Path) -> None:
    trade = Program("trading", tmp_path, "late")
    assert trade.play("patient") == {"status": "done", "value": "O-8"}
    assert trade.world.entries("asked")[0]["found"] == []
    _assert_one_order(trade, sent=1)


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_absence_after_the_settle_delay_is_retried_with_the_same_client_id(tmp_path: Path, is_killed: bool) -> None:
    trade = Program("trading", tmp_path, "lost")
    if is_killed:
        trade.killed("play", at="told")
        assert _state(trade) == "in_doubt"
    assert trade.play("patient") == {"status": "done", "value": "O-8"}
    first, second = trade.world.entries("sent")
    assert first["client"] == second["client"]
    assert second["at"] - first["at"] >= SETTLE_S
    _assert_one_order(trade, sent=2)


def test_a_late_second_word_about_a_settled_order_changes_nothing(tmp_path: Path) -> None:
    trade = Program("trading", tmp_path, "callback")
    assert trade.play("patient") == {"status": "done", "value": "O-8"}
    with Runtime(trade.world.url, create=False) as rt:
        assert [event.by for event in rt.events("trade-8") if event.what == "evidence"] == ["late"]
    _assert_one_order(trade, sent=1)


def _state(trade: Program) -> str:
    return next(call.state for call in trade.report("trade-8").calls)


def _recovered(trade: Program) -> str:
    trade.recover()
    return _state(trade)


def _assert_one_order(trade: Program, *, sent: int) -> None:
    assert trade.report("trade-8").state == "committed"
    assert trade.world.standing("place_order") == ["O-8"]
    assert len(trade.world.entries("place_order")) == 1
    assert len(trade.world.entries("sent")) == sent
    with Runtime(trade.world.url, create=False) as rt:
        assert "failed" not in {event.to for event in rt.events("trade-8")}
    trade.assert_agrees(["place_order"])
    trade.assert_quiet()
