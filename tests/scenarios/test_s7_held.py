"""S7 with people: whatever is approved, rejected or killed, what has finished is never done again."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.forked import run_python
from tests.scenarios.canary import ASKS, TOOLS, build, play
from tests.scenarios.stores import STORES, fresh
from tests.scenarios.world import World

ROOT = Path(__file__).resolve().parents[2]
MIXES = [
    (dict(zip(ASKS, said, strict=True)), killed)
    for said in itertools.product((True, False), repeat=len(ASKS))
    for killed in (False, True)
]


def _life(url: str, folder: Path, *rest: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    ended = run_python(["-m", "tests.scenarios.canary", url, str(folder), *rest], cwd=ROOT, env=env, timeout=120)
    if rest:
        assert ended.returncode == -9, ended.stderr
        return "killed"
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("said, killed", MIXES, ids=lambda one: str(one).replace(" ", ""))
@pytest.mark.parametrize("kind", STORES)
def test_siblings_that_finished_are_never_run_again(
    kind: str, said: dict[str, bool], killed: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, world = fresh(kind, tmp_path, request), World(tmp_path)
    rt = build(url, world)
    if killed:
        assert _life(url, tmp_path, "killed") == "killed"
    else:
        assert play(rt) == "held"
    asked = {approval.call.tool: approval for approval in rt.approvals()}
    assert set(asked) == set(ASKS)
    for name, yes in said.items():
        if yes:
            rt.approve(asked[name].id, digest=asked[name].digest, by="anna")
        else:
            rt.reject(asked[name].id, by="anna", reason="not now")
    outcome = _life(url, tmp_path) if killed else play(rt)
    report = rt.report("release-7")
    for name in TOOLS:
        done = [entry for entry in world.entries(name) if "do" in entry]
        assert len(done) == (1 if said.get(name, True) else 0), f"{name} ran {len(done)} times"
    assert outcome == (
        "committed" if all(said.values()) else f"rejected {next(n for n, yes in said.items() if not yes)}"
    )
    assert (report.state, report.residue) == ("committed", ())
    rt.close()


@pytest.mark.parametrize("kind", STORES)
def test_what_nobody_decides_is_taken_back_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One is approved, the other expires: the group as a whole is taken back, and nothing of it is done again."""
    from amends import Rule

    url, world = fresh(kind, tmp_path, request), World(tmp_path)
    rt = build(url, world)
    rt._host.rules = (Rule("open_gate", expires=0.2), Rule("scale_canary", expires=2.0))
    assert play(rt) == "held"
    asked = {approval.call.tool: approval for approval in rt.approvals()}
    rt.approve(asked["scale_canary"].id, digest=asked["scale_canary"].digest, by="anna")
    while not (reports := rt.recover()):
        pass
    assert reports[0].state == "rolled_back"
    assert {name: len(world.undone(name)) for name in TOOLS} == {
        "apply_config": 1, "scale_canary": 0, "open_gate": 0, "warm_cache": 1,
    }  # fmt: skip
    rt.close()
