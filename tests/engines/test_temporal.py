"""What the Temporal adapter promises beyond the shared flows, each on a real server, with something killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from amends import Runtime, UsageError
from amends.adapters.temporal import AmendsPlugin, durable_run
from amends.adapters.temporal.runs import Pauses
from tests.engines.scenario import ROOT
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.temporal import temporal_program

CASE_S_MAX = 180


def test_a_plugin_with_a_bad_time_is_refused_before_anything_runs() -> None:
    for given in ({"heartbeat_s": 0}, {"call_s": -1.0}, {"idle_s": True}, {"on_open_failure": "ignore"}):
        with pytest.raises(UsageError):
            AmendsPlugin(Runtime("memory:"), **given)


def test_a_run_outside_of_a_workflow_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError) as error:
        durable_run()
    assert "AmendsPlugin" in error.value.hint


def test_a_wait_for_a_person_is_looked_at_by_itself_less_and_less_often_and_not_after_its_end() -> None:
    pauses = Pauses()
    assert [pauses.look(None), pauses.look(None), pauses.look(30.0)] == [60.0, 120.0, 30.0]
    assert max(pauses.look(None) for _ in range(20)) == 86_400.0


@pytest.mark.rest
@pytest.mark.parametrize(
    "case",
    [
        "approval_over_a_server_restart",
        "continue_as_new_in_the_middle",
        "two_versions_side_by_side",
        "cancellation_during_compensation",
        "cancellation_rolls_back",
        "two_workers_and_one_is_killed",
        "a_person_takes_the_run_back_while_it_waits",
        "open_failure_takes_back_what_a_careless_agent_leaves",
        "existing_agent_with_only_the_plugin",
        "existing_agent_that_fails_is_taken_back",
        "existing_activity_cancelled_in_its_thread_is_in_doubt",
        "existing_agent_without_the_plugin_repeats_its_effect",
    ],
)
def test_on_temporal(case: str, tmp_path: Path) -> None:
    try:
        temporal_program()
    except Unavailable as refusal:
        unavailable(refusal)
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.temporal_cases", case, str(tmp_path)], cwd=ROOT, timeout=CASE_S_MAX,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8_000:]
