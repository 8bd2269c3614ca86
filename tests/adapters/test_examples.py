"""The example of each framework commits, is taken back and survives a kill, and prints what happened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.adapters.conformance import CHILD_S_MAX, FRAMEWORKS, ROOT
from tests.forked import run_python

pytestmark = pytest.mark.rest  # each starts several processes; its adapter has tests of its own

AGENT = """\
1. It commits; the model repeats a call, and is answered from the record.
  airline: flight to lisbon booked
  hotel: 2 nights in lisbon booked
  agent: All booked.
  ledger: run commits is committed
2. The model is down in the middle: everything is rolled back.
  airline: flight to lisbon booked
  hotel: 2 nights in lisbon booked
  hotel: booking H-lisbon cancelled
  airline: ticket F-lisbon cancelled
  agent failed: the model is down
  ledger: run fails is rolled_back
3. Its process is killed between the booking and the record; another one continues.
  airline: flight to lisbon booked
  killed: True
  amends asks the airline: is there a flight to lisbon
  hotel: 2 nights in lisbon booked
  agent: All booked.
  ledger: run killed is committed
"""

SERVER = """\
1. It commits; a request that is repeated is answered from the record.
  book_flight: F-lisbon
  book_flight: Already done in this task; the same result: "F-lisbon"
  book_hotel: H-lisbon
  end_run: Committed: run commits.
    airline: flight to lisbon booked
    hotel: 2 nights in lisbon booked
2. The client gives up: everything is rolled back.
  book_flight: F-lisbon
  book_hotel: H-lisbon
  end_run: Everything was taken back: 2 of 2 calls undone. Tell the user; start again only if asked.
    airline: flight to lisbon booked
    hotel: 2 nights in lisbon booked
    hotel: booking H-lisbon cancelled
    airline: ticket F-lisbon cancelled
3. The server is killed between the booking and the record; the client tries again.
  the server is gone
    airline: flight to lisbon booked
  book_flight: Already done in this task; the same result: "F-lisbon"
  book_hotel: H-lisbon
  end_run: Committed: run killed.
    amends asks the airline: is there a flight to lisbon
    hotel: 2 nights in lisbon booked
"""


@pytest.mark.parametrize(
    "name, printed",
    [
        ("openai_agents_agent", AGENT),
        ("pydantic_ai_agent", AGENT),
        ("mcp_server", SERVER),
        ("fastmcp_server", SERVER),
    ],
)
def test_the_example_commits_is_taken_back_and_survives_a_kill(name: str, printed: str, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    # The processes that the example starts are new interpreters: they import everything themselves.
    done = run_python(
        [str(ROOT / "examples" / f"{name}.py")], cwd=tmp_path, env=environ, timeout=CHILD_S_MAX, loaded=FRAMEWORKS
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


@pytest.mark.parametrize(
    "name",
    [
        "agent_loop",
        "anthropic_agent",
        "fastmcp_server",
        "langchain_agent",
        "mcp_server",
        "openai_agent",
        "openai_agents_agent",
        "pydantic_ai_agent",
    ],
)
def test_an_example_that_is_run_again_ends_well_and_books_nothing_of_its_first_run(name: str, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    for time in range(3):
        done = run_python(
            [str(ROOT / "examples" / f"{name}.py")], cwd=tmp_path, env=environ, timeout=CHILD_S_MAX, loaded=FRAMEWORKS
        )
        assert done.returncode == 0, done.stderr
        if name == "langchain_agent":
            continue  # run again, it is the next message of the same conversation: a new run
        first = done.stdout.partition("\n2. ")[0]
        assert ("flight to lisbon booked" in first) == (time == 0), done.stdout
