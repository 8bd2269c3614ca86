from collections import Counter
from pathlib import Path

from tests.scenarios.processes import Program
from tests.scenarios.refunds import PAIRS, other_intent


def test_a_reworded_refund_is_answered_from_the_record_and_another_one_is_never_merged(tmp_path: Path) -> None:
    refunds = Program("refunds", tmp_path, "declared")
    refunds.killed("first", at="all refunded")
    assert len(refunds.world.standing("refund")) == PAIRS
    told = refunds.play("again")

    expected = Counter(status for status, _ in (other_intent(i) for i in range(PAIRS)))
    assert told["same"] == {"replayed": PAIRS}
    assert (told["other"], told["wrong"]) == (dict(expected), 0)
    world = Counter((entry["order"], entry["amount"]) for entry in refunds.world.entries("refund"))
    assert len(refunds.world.standing("refund")) == PAIRS + expected["done"]
    assert set(world.values()) == {1}
    assert not any(amount == "6E+1" for _, amount in world)
    assert refunds.report("refunds").state == "committed"
    refunds.assert_agrees(["refund"])
    refunds.assert_quiet()


def test_without_a_declared_identity_a_reworded_refund_is_held_and_never_done_silently(tmp_path: Path) -> None:
    refunds = Program("refunds", tmp_path, "undeclared")
    refunds.killed("first", at="all refunded")
    assert refunds.play("only_again") == {"held duplicate": PAIRS, "waits": 1}

    assert len(refunds.world.entries("refund")) == PAIRS
    assert refunds.report("refunds").state == "open"
    refunds.assert_agrees(["refund"])
    refunds.assert_quiet()
