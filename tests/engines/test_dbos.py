"""The recipe for DBOS, with real DBOS on SQLite and PostgreSQL: killed in a step, in a compensation, while it waits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS, FENCE

ROOT = Path(__file__).parents[2]
PROGRAM_S = 90

# What DBOS does without amends: the page says so, and this would fail if a later version did not.
BARE = """
import os, signal, sys
from dbos import DBOS, SetWorkflowID

@DBOS.step()
def charge():
    with open("bank.txt", "a") as bank:
        print("charge", file=bank)
    if os.environ.get("DIE"):
        bank.close()
        os.kill(os.getpid(), signal.SIGKILL)

@DBOS.workflow()
def fulfil():
    charge()

url = os.environ["DBOS_SYSTEM_DATABASE_URL"]
DBOS(config={"name": "bare", "system_database_url": url, "application_version": "1", "log_level": "CRITICAL"})
DBOS.launch()
if os.environ.get("DIE"):
    with SetWorkflowID("w"):
        DBOS.start_workflow(fulfil).get_result()
elif sys.argv[1:] == ["fork"]:
    DBOS.fork_workflow("w", 1).get_result()
else:
    DBOS.retrieve_workflow("w").get_result()
DBOS.destroy()
"""


@dataclass(frozen=True, slots=True)
class Shop:
    """The program of the page, in a folder of its own, over one ledger and one system database of DBOS."""

    folder: Path
    ledger: str
    dbos: str

    def run(self, *words: str, die: str = "") -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("AMENDS_")}
        env |= {
            "PYTHONPATH": str(ROOT / "src"),
            "LEDGER": self.ledger,
            "DBOS_SYSTEM_DATABASE_URL": self.dbos,
            "DIE": die,
        }
        return subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=env, capture_output=True, text=True, timeout=PROGRAM_S
        )

    def killed(self, *words: str, at: str) -> None:
        done = self.run("shop.py", *words, die=at)
        assert done.returncode == -signal.SIGKILL, done.stderr

    def said(self, *words: str) -> str:
        done = self.run("shop.py", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def bank(self) -> list[str]:
        return (self.folder / "bank.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    page = (DOCS / "how-to" / "dbos.md").read_text(encoding="utf-8")
    [program] = [fence["body"] for fence in FENCE.finditer(page) if fence["lang"] == "python"]
    (tmp_path / "shop.py").write_text(program, encoding="utf-8")
    (tmp_path / "bare.py").write_text(BARE, encoding="utf-8")
    if request.param == "sqlite":
        yield Shop(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", f"sqlite:///{tmp_path / 'dbos.sqlite'}")
    else:
        # One database for both: amends and DBOS keep to tables and schemas of their own.
        server = request.getfixturevalue("postgres_server")
        url = server.create_database()
        yield Shop(tmp_path, url, re.sub("^postgresql:", "postgresql+psycopg:", url))


def test_a_kill_in_a_step_repeats_no_effect(shop: Shop) -> None:
    shop.killed("start", "7", "500", at="charge")
    assert "DBOS: w_7\nledger: committed\n" in shop.said("result", "7")
    assert shop.bank == ["charge 7", "wire 7"]


@pytest.mark.rest
def test_a_kill_in_a_step_that_only_a_person_can_judge_repeats_nothing(shop: Shop) -> None:
    shop.killed("start", "7", "500", at="wire")
    assert "DBOS: RunBlocked\nledger: blocked\n" in shop.said("result", "7")
    shop.said("resolve", "7")
    assert "DBOS: w_7\nledger: committed\n" in shop.said("fork", "7")
    assert shop.bank == ["charge 7", "wire 7"]


@pytest.mark.rest
def test_a_kill_in_a_compensation_repeats_no_compensation(shop: Shop) -> None:
    shop.killed("start", "8", "500", "0", at="refund")
    assert "ledger: rolled_back" in shop.said("result", "8")
    assert shop.bank == ["charge 8", "refund 8"]
    assert "ledger: rolled_back" in shop.said("result", "8")
    assert shop.bank == ["charge 8", "refund 8"]


@pytest.mark.rest
def test_a_fork_repeats_no_effect(shop: Shop) -> None:
    assert "ledger: committed" in shop.said("start", "7", "500")
    assert "DBOS: w_7" in shop.said("fork", "7")
    assert shop.bank == ["charge 7", "wire 7"]


@pytest.mark.rest
def test_without_amends_a_killed_step_and_a_fork_repeat_the_effect(shop: Shop) -> None:
    assert shop.run("bare.py", die="charge").returncode == -signal.SIGKILL
    assert shop.run("bare.py").returncode == 0
    assert shop.bank == ["charge", "charge"]
    assert shop.run("bare.py", "fork").returncode == 0
    assert shop.bank == ["charge", "charge", "charge"]
