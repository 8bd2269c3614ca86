"""Approval through the gateway: by people outside, or by the client's user where the configuration says so; in both eras."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult, InputRequiredResult

import amends
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import Desk, entity, text

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])


def guarded(tmp_path: Path, approvals: str, **gateway: Any) -> Desk:
    desk = Desk(tmp_path)
    table = {
        "kind": "compensatable", "needs_approval": True,
        "compensate": {"tool": "delete_entities", "args": {"entityNames": "$result.entities.*.name"}},
    }  # fmt: skip
    desk.memory(tools={"create_entities": table})
    desk.gateway |= {"approvals": approvals, **gateway}
    return desk


def user(action: str, **content: Any) -> tuple[Callable[..., Any], list[str]]:
    asked: list[str] = []

    async def elicited(_context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action=action, content=content or None)  # type: ignore[arg-type]

    return elicited, asked


@ERAS
@on_a_loop
async def test_the_clients_user_approves_under_the_configured_name(tmp_path: Path, mode: Any) -> None:
    desk = guarded(tmp_path, "client", approver="ann")
    elicited, asked = user("accept", decision="approve", reason="fine")
    async with desk.client(elicitation_callback=elicited, mode=mode) as client:
        said = await client.call_tool("create_entities", entity("a"))
        assert not said.is_error, text(said)
        again = await client.call_tool("create_entities", entity("a"))
        assert not again.is_error
    assert len(asked) == 1
    assert '"a"' in asked[0]
    assert desk.entities() == ["a"]
    with amends.Runtime(desk.url) as rt:
        decided = {one.facts.get("approval") for one in rt.events() if one.by == "ann"}
        assert len(decided - {None}) == 1


@ERAS
@on_a_loop
async def test_a_no_of_the_clients_user_reaches_the_model(tmp_path: Path, mode: Any) -> None:
    desk = guarded(tmp_path, "client", approver="ann")
    elicited, asked = user("accept", decision="reject", reason="not that one")
    async with desk.client(elicitation_callback=elicited, mode=mode) as client:
        said = await client.call_tool("create_entities", entity("a"))
    assert said.is_error
    assert "not that one" in text(said)
    assert len(asked) == 1
    assert desk.entities() == []


@ERAS
@on_a_loop
async def test_a_notice_decides_nothing(tmp_path: Path, mode: Any) -> None:
    desk = guarded(tmp_path, "notice")
    elicited, asked = user("accept")
    async with desk.client(elicitation_callback=elicited, mode=mode) as client:
        said = await client.call_tool("create_entities", entity("a"))
        assert "approval" in text(said)
        assert desk.entities() == []
        assert len(asked) == 1
        assert "only makes the gateway look again" in asked[0]


@ERAS
@on_a_loop
async def test_a_client_that_cannot_ask_gets_a_text(tmp_path: Path, mode: Any) -> None:
    desk = guarded(tmp_path, "client", approver="ann")
    async with desk.client(mode=mode) as client:
        said = await client.call_tool("create_entities", entity("a"))
        assert "needs a person's approval" in text(said)
        assert desk.entities() == []
        with amends.Runtime(desk.url) as rt:
            for asked in rt.approvals():
                rt.approve(asked.id, digest=asked.digest, by="ben")
        assert not (await client.call_tool("create_entities", entity("a"))).is_error
    assert desk.entities() == ["a"]


@on_a_loop
async def test_the_pause_token_survives_a_restart_and_cannot_be_forged(tmp_path: Path) -> None:
    desk = guarded(tmp_path, "client", approver="ann")
    elicited, _ = user("accept", decision="approve")
    async with desk.client(elicitation_callback=elicited) as client:
        asked = await client.session.call_tool("create_entities", entity("a"), allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        assert desk.entities() == []
    state = str(asked.request_state)
    answer: dict[str, Any] = {"approval": ElicitResult(action="accept", content={"decision": "approve"})}
    async with desk.client(elicitation_callback=elicited) as client:
        with pytest.raises(Exception, match="requestState"):
            await client.session.call_tool(
                "create_entities", entity("a"), input_responses=answer, request_state=state[:-2] + "xx"
            )
        assert desk.entities() == []
        said = await client.session.call_tool(
            "create_entities", entity("a"), input_responses=answer, request_state=state
        )
        assert not said.is_error, json.dumps(said.model_dump(mode="json"))
    assert desk.entities() == ["a"]
