"""A saga over HTTP whose client, server or worker is killed: a short play; `make chaos ARGS="--serve"` has every step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import amends
from tests.chaos.service.play import SHORT, chosen, with_second_kills
from tests.chaos.service.stage import Outcome, Scenario, _compare
from tests.servers.fixtures import unavailable

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 400  # a machine that does ten other things; alone it takes less than a minute
LINE = re.compile(r"(\w+): (\d+) sagas, (\d+) kills, 0 duplicated, 0 lost, 0 stuck, 0 unnamed")


@pytest.mark.rest
@pytest.mark.parametrize("store", ["sqlite", "postgresql", "mariadb"])
def test_a_short_play_over_http_ends_with_four_zeros(store: str) -> None:
    path = os.pathsep.join((str(Path(amends.__file__).resolve().parent.parent), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--serve", "--short", "--store", store],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0 and "skipped" in last:
        unavailable(last)
    line = LINE.fullmatch(last)
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
    assert line is not None, f"{done.stderr}\n{done.stdout}"
    assert line.groups() == (store, str(SHORT), str(SHORT))
    [twice] = re.findall(r"killed a second time while it recovered: (\d+)", done.stdout)
    assert int(twice) > 0


# ---- The checks can fail

WANTED = {"commit": "committed", "rollback": "rolled_back"}


def judged(
    state: str, calls: dict[str, str], books: list[tuple[str, str]], *, ending: str = "commit", returns: str = "again"
) -> set[str]:
    outcome = Outcome(Scenario("client", "before open", 1, ending, returns), "r", state)  # type: ignore[arg-type]
    report = {"run": {"state": state}, "calls": [{"tool": tool, "state": one} for tool, one in calls.items()]}
    _compare(outcome, report, [{"tool": tool, "op": op} for tool, op in books])
    return {count for count, _ in outcome.findings}


ALL = ("charge", "pay", "book", "wire")
DONE = [(tool, "do") for tool in ALL]
SUCCEEDED = dict.fromkeys(ALL, "succeeded")


def test_equal_books_are_in_order() -> None:
    assert judged("committed", SUCCEEDED, DONE) == set()
    undone = [("charge", "do"), ("charge", "undo")]
    assert judged("rolled_back", {"charge": "compensated"}, undone, ending="rollback") == set()
    assert judged("rolled_back", {"pay": "failed"}, [], returns="never") == set()


@pytest.mark.parametrize(
    "state, calls, books, found",
    [
        ("committed", SUCCEEDED, [*DONE, ("pay", "do")], {"duplicated"}),
        ("committed", SUCCEEDED, DONE[1:], {"lost"}),
        ("committed", SUCCEEDED | {"pay": "failed"}, DONE, {"lost"}),
        ("committed", SUCCEEDED | {"pay": "in_doubt"}, DONE, {"lost"}),
        ("committed", {}, DONE, {"lost"}),
        ("rolled_back", {"charge": "compensated"}, [("charge", "do"), ("charge", "undo")], {"lost"}),
        ("rolled_back", {"charge": "succeeded"}, [("charge", "do")], {"lost", "unnamed"}),
        (
            "rolled_back",
            {"charge": "compensated"},
            [("charge", "do"), *[("charge", "undo")] * 2],
            {"duplicated", "lost"},
        ),
    ],
)
def test_books_that_differ_are_found(
    state: str, calls: dict[str, str], books: list[tuple[str, str]], found: set[str]
) -> None:
    assert judged(state, calls, books) == found


def test_the_short_play_has_every_actor_and_both_endings() -> None:
    every = [
        Scenario(actor, f"{side} step {number}", 1, ending)  # type: ignore[arg-type]
        for ending in WANTED
        for actor in ("client", "server", "worker")
        for number in range(10)
        for side in ("before", "after")
    ]
    found = chosen(every, SHORT)
    assert len(found) == SHORT
    assert {(one.actor, one.ending) for one in found} == {(one.actor, one.ending) for one in every}
    twice = [one for one in with_second_kills(found) if one.again]
    assert {(one.actor, one.ending) for one in twice} == {(one.actor, one.ending) for one in every}
    assert len({one.again for one in twice}) > 5
