import signal
from itertools import pairwise
from pathlib import Path

from tests.scenarios.merging import RETRY, TOOLS
from tests.scenarios.processes import PATIENCE_S, Program, wait_until

RESTARTS = 4


def test_a_retriable_that_fails_for_long_is_tried_across_restarts_and_nothing_is_taken_back(tmp_path: Path) -> None:
    merge = Program("merging", tmp_path)
    outage = tmp_path / "outage"
    outage.touch()
    assert merge.play("play") == "pivoted"
    for _ in range(RESTARTS):
        _until_killed(merge)
        assert merge.report("merge-9").state == "pivoted"  # visible all the time

    said = _until_done(merge, outage)
    assert "merge-9 is past its deadline" in said
    assert {tool: len(merge.world.standing(tool)) for tool in TOOLS} == dict.fromkeys(TOOLS, 1)
    assert all(merge.world.undone(tool) == [] for tool in TOOLS)
    tried = merge.world.entries("tried")
    (ticket,) = [call for call in merge.report("merge-9").calls if call.tool == "close_ticket"]
    assert len(tried) < ticket.attempt <= RETRY.attempts
    gaps = [b["at"] - a["at"] for a, b in pairwise(tried) if a["pid"] == b["pid"]]
    assert min(gaps) >= RETRY.delay * (1 - RETRY.jitter)
    assert len({round(gap, 3) for gap in gaps}) > 1
    merge.assert_agrees(TOOLS)
    merge.assert_quiet()


def _until_killed(merge: Program) -> None:
    """A worker that tries at least twice and then dies."""
    with merge.start("worker") as child:
        try:
            wait_until(lambda: sum(one["pid"] == child.pid for one in merge.world.entries("tried")) >= 2)
        finally:
            child.kill()  # also when it does not try: a test that fails must not wait for it
    assert child.returncode == -signal.SIGKILL


def _until_done(merge: Program, outage: Path) -> str:
    """A last worker: the outage ends under its hands, and it leaves when it is asked to."""
    with merge.start("worker") as child:
        try:
            wait_until(lambda: sum(one["pid"] == child.pid for one in merge.world.entries("tried")) >= 1)
            outage.unlink()
            wait_until(lambda: merge.report("merge-9").state == "committed")
        finally:
            child.terminate()
        out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out.strip()) == (0, '"stopped"'), err
    return err
