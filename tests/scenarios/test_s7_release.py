from pathlib import Path

from tests.scenarios.processes import Program
from tests.scenarios.release import TOOLS


def test_a_group_that_fails_lets_its_late_member_land_and_takes_all_of_it_back_once(tmp_path: Path) -> None:
    release = Program("release", tmp_path)
    assert release.play("play") == "rolled_back"

    (failed,) = release.world.entries("dry_run")
    assert release.world.entries("warm_cache")[0]["at"] > failed["at"]
    _assert_initial(release)


def test_a_group_whose_process_dies_with_the_late_effect_is_taken_back_by_another(tmp_path: Path) -> None:
    release = Program("release", tmp_path)
    release.killed("play", at="after warm_cache")
    release.recover()
    _assert_initial(release)


def _assert_initial(release: Program) -> None:
    report = release.report("release-7")
    assert (report.state, report.residue) == ("rolled_back", ())
    assert {tool: len(release.world.undone(tool)) for tool in TOOLS} == {
        "apply_config": 1,
        "scale_canary": 1,
        "warm_cache": 1,
        "shift_traffic": 0,
    }
    assert all(release.world.standing(tool) == [] for tool in TOOLS)
    assert "shift_traffic" not in {call.tool for call in report.calls}
    release.assert_agrees(TOOLS)
    release.assert_quiet()
