"""The programs in ``examples/`` print what they say, keep a ledger of their own, and change nothing when run again."""

from __future__ import annotations

import ast
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from amends import Runtime
from tests.cli.command import environment
from tests.forked import run_python

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CHILD_S_MAX = 120.0
PRINTED = {
    "order": """\
1. It commits.
  stock: kettle reserved
  bank: 4200 cents charged
  courier: a parcel goes to Leiden
  mail: sent
  ledger: run order-1 is committed
2. The courier fails: what was done is taken back, in reverse.
  stock: kettle reserved
  bank: 4200 cents charged
  bank: ch-order-2 refunded
  stock: kettle released
  failed: no courier goes to Atlantis
  ledger: run order-2 is rolled_back
3. Its process is killed between the charge and the record; another one continues.
  stock: kettle reserved
  bank: 4200 cents charged
  amends asks the bank: charged
  courier: a parcel goes to Leiden
  mail: sent
  ledger: run order-3 is committed
""",
    "parallel_group": """\
1. Three bookings at once.
  booked flight-lisbon hotel-lisbon car-lisbon
  ledger: run lisbon is committed
2. One of them fails: the others are taken back, in parallel too.
  cancelled flight-venice
  cancelled hotel-venice
  failed: there are no cars in venice
  ledger: run venice is rolled_back
""",
    "retry": """\
1. An error without effect is tried again.
  courier: full
  courier: full
  courier: booked
  result: parcel-1
2. A lost answer is asked about, and not sent twice.
  courier: announced, but the answer is lost
  amends asks the courier: announced
  result: note-1
  ledger: committed {'book': 3, 'announce': 1}
""",
    "approval": """\
1. A small payment needs nobody.
  bank: 200 euros paid
  result: paid-invoice-1
2. A large one waits; nothing is paid, and no process has to stay alive.
  waits for approval: more than 1000 euros
  ada looks at: pay {'invoice': 'invoice-2', 'euros': 4000}
3. The same id continues.
  bank: 4000 euros paid
  result: paid-invoice-2
4. A person says no.
  waits for approval: more than 1000 euros
  rejected: nobody ordered this
""",
    "budget": """\
1. A site that fits.
  created vm site-1
  created disk site-1
  spent 50 of 100 usd; run site-1 is committed
2. One that does not: its cost is refused before anything is spent, and the run is taken back.
  created vm site-2
  deleted vm site-2
  refused: create_disk needs 30.00 usd and 10.00 of 100.00 is left for everybody together
  spent 50 of 100 usd; run site-2 is rolled_back
""",
}
PAGES = EXAMPLES.parent / "docs" / "how-to"
WITH_A_PAGE = {
    path.stem.removeprefix("example-").replace("-", "_"): path.read_text(encoding="utf-8")
    for path in sorted(PAGES.glob("example-*.md"))
}
"""The programs that have a page of their own, which says what they print."""
ONCE = {"order": "bank: 4200", "parallel_group": "never", "retry": "courier:", "approval": "bank:", "budget": "never"}
"""What a second run must not print of the runs that committed."""


def play(name: str, folder: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return run_python([str(EXAMPLES / f"{name}.py")], cwd=folder, env=environment(**extra), timeout=CHILD_S_MAX)


def in_order(text: str) -> str:
    """Return the text with what happened in parallel in one order."""
    cancelled = sorted(re.findall(r"  cancelled .*\n", text))
    return re.sub(r"(?:  cancelled .*\n)+", "".join(cancelled), text)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_says_and_has_a_ledger_of_its_own(name: str, tmp_path: Path) -> None:
    first = play(name, tmp_path)
    assert first.returncode == 0, first.stderr
    assert in_order(first.stdout) == PRINTED[name]
    [folder] = tmp_path.iterdir()
    with Runtime(f"sqlite:///{folder / 'ledger.db'}", create=False) as rt:
        before = {run.id: run.state for run in rt.runs()}
        assert rt.verify().ok
        assert rt.inbox() == []
    again = play(name, tmp_path)
    assert again.returncode == 0, again.stderr
    committed = [part for part in re.split(r"^(?=\d\.)", again.stdout, flags=re.MULTILINE) if "rolled_back" not in part]
    assert not any(ONCE[name] in part for part in committed), again.stdout
    with Runtime(f"sqlite:///{folder / 'ledger.db'}", create=False) as rt:
        assert {run.id: run.state for run in rt.runs()} == before


def test_the_example_on_postgresql_pays_once(postgres_url: str, tmp_path: Path) -> None:
    for paid in (1, 0):
        done = play("postgresql", tmp_path, AMENDS_URL=postgres_url)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("bank: 4200 cents paid") == paid, done.stdout
        assert "workers ended with [0, 0]" in done.stdout
        assert "calls in the ledger: [('pay', 'succeeded')]" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_example_on_postgresql_says_what_it_needs(tmp_path: Path) -> None:
    done = play("postgresql", tmp_path)
    assert (done.returncode, "AMENDS_URL" in done.stderr) == (1, True)


def test_every_example_is_listed_and_no_two_share_a_ledger() -> None:
    listed = re.findall(r"\[\w+\.py\]\((\w+)\.py\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    found = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    assert sorted(listed) == sorted(found)
    folders = []
    for text in found.values():
        data = [
            one.value.args[0].value
            for one in ast.parse(text).body
            if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call) and ast.unparse(one.targets[0]) == "DATA"
            and isinstance(one.value.args[0], ast.Constant)
        ]  # fmt: skip
        folders += data
    assert len(folders) == len(set(folders)), folders


@pytest.mark.parametrize("name", WITH_A_PAGE)
def test_an_example_with_a_page_prints_what_its_page_says_and_repeats_nothing(name: str, tmp_path: Path) -> None:
    printed = WITH_A_PAGE[name].split("<!-- end -->\n\n```text\n")[1].split("```")[0]
    first = play(name, tmp_path)
    assert (first.returncode, first.stdout) == (0, printed), first.stderr
    [folder] = tmp_path.iterdir()
    world = world_in(folder)
    with Runtime(f"sqlite:///{folder / 'ledger.db'}", create=False) as rt:
        states = {run.id: run.state for run in rt.runs()}
        assert states
        assert rt.verify().ok
        assert rt.inbox() == []
    again = play(name, tmp_path)
    assert again.returncode == 0, again.stderr
    assert world_in(folder) == world
    with Runtime(f"sqlite:///{folder / 'ledger.db'}", create=False) as rt:
        assert {run.id: run.state for run in rt.runs()} == states
        assert rt.verify().ok


def world_in(folder: Path) -> dict[str, object]:
    """Return what the program's services know: every file beside the ledger."""
    found: dict[str, object] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("ledger.db"):
            continue
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as db:
                found[path.name] = sorted(db.iterdump())
        else:
            found[path.name] = path.read_bytes()
    return found
