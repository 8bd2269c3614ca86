"""The recorded runs of the examples replay to the same output, whatever became of them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime
from amends.errors import Diverged

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The agent loop, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("agent_loop", EXAMPLES / "agent_loop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DATA.mkdir()
    return module


@pytest.fixture
def rt(example: Any, tmp_path: Path) -> Iterator[Runtime]:
    tools = [example.book_hotel, example.book_flight, example.pay]
    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=tools) as made:
        yield made


def same(rt: Runtime, example: Any, capsys: pytest.CaptureFixture[str], id: str, script: list[Any], **more: Any) -> Any:
    """Run it, and replay what it did: the same is finished, and no tool has said a word."""
    live = example.agent(rt, id, script, **more)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("  agent", "  ledger"))]
    again = rt.replay(id, example.agent, rt, id, script, **more)
    assert (again.outcome, again.text, again.report) == (live.outcome, live.text, live.report)
    assert capsys.readouterr().out.splitlines() == said
    return live


def test_a_trip_that_commits(rt: Runtime, example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    same(rt, example, capsys, "commits", [example.TRIP[1], example.TRIP[0][1], example.TRIP[0], *example.TRIP[1:]])


def test_a_trip_that_waits_for_a_person_and_goes_on(
    rt: Runtime, example: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    dear = [example.TRIP[0], ("pay", {"trip": "lisbon", "euros": 4000}), "All booked."]
    waiting = same(rt, example, capsys, "waits", dear).waiting[0].approval
    rt.approve(waiting.id, digest=waiting.digest, by="ada")
    assert example.agent(rt, "waits", dear).outcome == "done"
    capsys.readouterr()
    again = rt.replay("waits", example.agent, rt, "waits", dear)
    assert (again.outcome, again.text) == ("done", "All booked.")
    assert "paid" not in capsys.readouterr().out


def test_a_trip_that_is_taken_back(rt: Runtime, example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wish = ("request_rollback", {"why": "there is a storm"})
    script = [example.TRIP[0][0], example.TRIP[0][1], wish]
    same(rt, example, capsys, "back", script, may_roll_back=True)


def test_another_prompt_diverges_at_the_first_word_to_the_model(
    rt: Runtime, example: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example.agent(rt, "trip", example.TRIP)
    monkeypatch.setattr(example, "PROMPT", "Book me a weekend in Rome.")
    with pytest.raises(Diverged) as found:
        rt.replay("trip", example.agent, rt, "trip", example.TRIP)
    assert "Rome" in json.dumps(found.value.diff)
    assert "booked" not in capsys.readouterr().out.split("committed")[-1]
