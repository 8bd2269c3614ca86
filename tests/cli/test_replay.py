import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from amends import Runtime
from tests.cli.command import assert_refused, environment, here

APP = """
import asyncio
from amends import AsyncRuntime, Runtime, tool

@tool(key="order")
def charge(order: str, cents: int) -> str:
    return f"ch_{order}"

@charge.compensate
def refund() -> None: ...

rt = Runtime("sqlite:///shop.db", tools=[charge])
art = AsyncRuntime("sqlite:///shop.db", tools=[charge])

def agent(order: dict) -> str:
    return charge(order=order["id"], cents=order["cents"])

def dearer(order: dict) -> str:
    return charge(order=order["id"], cents=order["cents"] + 1)

def by_run(run) -> str:
    return agent(run.input)

def by_name(id: str, cents: int) -> str:
    return charge(order=id, cents=cents)

def other_answer(order: dict) -> str:
    return agent(order).upper()

async def awaited(run) -> str:
    return await run.call(charge, order=run.input["id"], cents=run.input["cents"])

if __name__ == "__main__":
    for n in range(3):
        with rt.run(f"order-{n}", input={"id": str(n), "cents": 100 + n}) as run:
            run.output = agent(run.input)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record three orders, and export a bundle of each."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "app.py").write_text(APP, encoding="utf-8")
    subprocess.run([sys.executable, "app.py"], cwd=folder, env=environment(), check=True, capture_output=True)
    (folder / "recorded").mkdir()
    with Runtime(f"sqlite:///{folder / 'shop.db'}", create=False) as rt:
        for n in range(3):
            (folder / "recorded" / f"order-{n}.bundle").write_bytes(rt.export(f"order-{n}"))
    return folder


@pytest.fixture
def shop(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may change."""
    return Path(shutil.copytree(recorded, tmp_path / "shop"))


def replay(shop: Path, *args: str, fn: str = "agent", app: str = "rt") -> subprocess.CompletedProcess[str]:
    return here("replay", *args, "--against", f"app:{fn}", "--app", f"app:{app}", cwd=shop)


def test_runs_files_and_folders_replay_as_they_were_recorded(shop: Path) -> None:
    for fn, app in (("agent", "rt"), ("by_run", "rt"), ("by_name", "rt"), ("awaited", "art")):
        done = replay(shop, "order-0", "recorded", "recorded/order-1.bundle", fn=fn, app=app)
        assert done.returncode == 0, (fn, done.stdout, done.stderr)
        assert done.stdout.count("same") == 4


def test_a_folder_of_bundles_needs_no_ledger_and_makes_none(shop: Path) -> None:
    for file in shop.glob("shop.db*"):
        file.unlink()
    done = replay(shop, "recorded", "--json")
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["run_id"], one["same"], one["calls"], one["of"]) for one in told] == [
        (f"order-{n}", True, 1, 1) for n in range(3)
    ]
    assert not list(shop.glob("shop.db*"))


def test_what_differs_is_told_of_each_run_with_exit_code_18(shop: Path) -> None:
    done = replay(shop, "recorded", "--json", fn="dearer")
    assert done.returncode == 18
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["how"], one["diff"]) for one in told] == [
        ("arguments", {"cents": [str(100 + n), str(101 + n)]}) for n in range(3)
    ]
    shown = replay(shop, "order-0", fn="dearer")
    assert shown.returncode == 18
    assert "cents: 100 then, 101 now" in shown.stderr


def test_another_output_is_another_outcome(shop: Path) -> None:
    done = replay(shop, "order-0", fn="other_answer", app="rt")
    assert done.returncode == 18
    assert "its output was" in done.stderr


def test_a_file_that_is_no_bundle_is_said_and_the_others_are_replayed(shop: Path) -> None:
    (shop / "recorded" / "x.bundle").write_text("nothing", encoding="utf-8")
    done = replay(shop, "recorded")
    assert done.returncode == 1
    assert done.stdout.count("same") == 3
    assert "x.bundle" in done.stderr


def test_until_a_call(shop: Path) -> None:
    with Runtime(f"sqlite:///{shop / 'shop.db'}") as rt:
        call = rt.report("order-0").calls[0].id
    assert replay(shop, "order-0", "--until", call).returncode == 0


def test_what_cannot_be_replayed_is_said_in_words(shop: Path) -> None:
    assert_refused(replay(shop, "order-0", fn="nobody"), "nobody")
    assert_refused(replay(shop, "order-0", fn="awaited"), "is async")
    assert_refused(replay(shop, "no-such-run"), "no-such-run")
    (shop / "empty").mkdir()
    assert_refused(replay(shop, "empty"), "no bundle")
