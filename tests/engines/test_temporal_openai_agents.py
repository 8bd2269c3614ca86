"""Temporal's OpenAI Agents SDK integration: an agent to whose worker only the plugin was added. See scripts/test-adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.scenario import Engine, played
from tests.servers.temporal import TemporalServer

pytest.importorskip("temporalio.openai_agents", reason="needs an older openai-agents: make test-adapters has it")

AGENT = Engine("agents", ("tests.engines.openai_agent", "work"), ("tests.engines.openai_agent", "start"))


@pytest.mark.parametrize("point", ["", "charge: effect", "charge: answered"])
def test_an_existing_agent_whose_worker_is_killed_does_nothing_twice(
    point: str, tmp_path: Path, temporal_server: TemporalServer
) -> None:
    ended = played(AGENT, "agent", tmp_path, server=temporal_server, point=point)
    assert ended.state == "committed"
    assert ended.effects == ("reserved 12", "charged 7")
    assert [(tool, state) for tool, state, _, _ in ended.calls] == [("reserve", "succeeded"), ("charge", "succeeded")]
