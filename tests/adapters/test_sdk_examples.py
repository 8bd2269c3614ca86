"""The examples of the loop and of the SDKs: each commits, is taken back, and survives a kill, without a key."""

import os
from pathlib import Path

import pytest

from tests.adapters.conformance import CHILD_S_MAX, FRAMEWORKS, ROOT
from tests.forked import run_python

pytestmark = pytest.mark.rest  # each starts several processes; its adapter has tests of its own

SDK = """\
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
  agent failed: Error code: 500
  ledger: run fails is rolled_back
3. Its process is killed between the booking and the record; another one continues.
  airline: flight to lisbon booked
  killed: True
  amends asks the airline: is there a flight to lisbon
  hotel: 2 nights in lisbon booked
  agent: All booked.
  ledger: run killed is committed
"""

LOOP = """\
1. It commits; the model asks too early and repeats a call, and is told.
  hotel: 2 nights in lisbon booked
  airline: flight to lisbon booked
  bank: 400 euros paid
  agent: done, 5 turns: All booked.
  ledger: run commits is committed
2. A payment waits for a person; the same id continues after the approval.
  airline: flight to lisbon booked
  hotel: 2 nights in lisbon booked
  agent: waiting, 2 turns: pay waits for a person's decision (approval)
  ledger: run waits is open
  bank: 4000 euros paid
  agent: done, 3 turns: All booked.
  ledger: run waits is committed
3. The model requests a rollback; amends does it.
  airline: flight to lisbon booked
  hotel: 2 nights in lisbon booked
  hotel: booking H-lisbon cancelled
  airline: ticket F-lisbon cancelled
  agent: rolled_back, 3 turns: run taken-back was rolled back (there is a storm): 2 calls compensated
  ledger: run taken-back is rolled_back
4. Its process is killed between the payment and the record; another one continues.
  airline: flight to lisbon booked
  hotel: 2 nights in lisbon booked
  bank: 400 euros paid
  killed: True
  amends asks the bank: was lisbon paid?
  agent: done, 3 turns: All booked.
  ledger: run killed is committed
"""


def lines_of(text: str) -> list[list[str]]:
    """Part by part; what is done side by side may be printed in any order."""
    parts: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith(" "):
            parts.append([])
        parts[-1].append(line.partition(" - ")[0])
    return [sorted(part) for part in parts]


@pytest.mark.parametrize("name, printed", [("agent_loop", LOOP), ("openai_agent", SDK), ("anthropic_agent", SDK)])
def test_the_example_commits_is_taken_back_and_survives_a_kill(tmp_path: Path, name: str, printed: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    # The processes that the example starts are new interpreters: they import everything themselves.
    done = run_python(
        [str(ROOT / "examples" / f"{name}.py")], cwd=tmp_path, env=environ, timeout=CHILD_S_MAX, loaded=FRAMEWORKS
    )
    assert done.returncode == 0, done.stderr
    assert lines_of(done.stdout) == lines_of(printed)
