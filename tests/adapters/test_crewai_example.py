import os
import subprocess
import sys
from pathlib import Path

from tests.adapters.conformance import CHILD_S_MAX, ROOT

PRINTED = """\
1. It commits; the model repeats a call, and is answered from the record.
  airline: flight to lisbon booked
  hotel: 2 nights in lisbon booked
  crew: All booked.
  ledger: run commits is committed
2. The model is down in the middle, the crew retries in vain: everything is rolled back.
  airline: flight to lisbon booked
  hotel: 2 nights in lisbon booked
  hotel: booking H-lisbon cancelled
  airline: ticket F-lisbon cancelled
  crew failed: the model is down
  ledger: run fails is rolled_back
3. Its process is killed between the booking and the record; another one continues.
  airline: flight to lisbon booked
  killed: True
  amends asks the airline: is there a flight to lisbon
  hotel: 2 nights in lisbon booked
  crew: All booked.
  ledger: run killed is committed
"""


def test_the_example_commits_is_taken_back_and_survives_a_kill(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "crewai_crew.py")],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=CHILD_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED
