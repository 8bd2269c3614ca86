import os
from pathlib import Path

from tests.adapters.conformance import CHILD_S_MAX, FRAMEWORKS, ROOT
from tests.forked import run_python

PRINTED = """\
1. It commits; the model repeats a call, and is answered from the record.
  airline: flight to lisbon booked
  hotel: 2 nights in lisbon booked
  agent: All booked.
  ledger: run commits/1 is committed
2. The model is down in the middle: everything is rolled back.
  airline: flight to lisbon booked
  hotel: 2 nights in lisbon booked
  hotel: booking H-lisbon cancelled
  airline: ticket F-lisbon cancelled
  agent failed: the model is down
  ledger: run fails/1 is rolled_back
3. Its process is killed between the booking and the record; another one continues.
  airline: flight to lisbon booked
  killed: True
  amends asks the airline: is there a flight to lisbon
  hotel: 2 nights in lisbon booked
  agent: All booked.
  ledger: run killed/1 is committed
"""


def test_the_example_commits_is_taken_back_and_survives_a_kill(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    # The processes that the example starts are new interpreters: they import everything themselves.
    done = run_python(
        [str(ROOT / "examples" / "langchain_agent.py")],
        cwd=tmp_path,
        env=environ,
        timeout=CHILD_S_MAX,
        loaded=FRAMEWORKS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED
