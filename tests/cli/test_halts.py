"""The emergency stop at the command line."""

import json
from pathlib import Path

import pytest

from amends import Runtime, tool
from amends.cli.app import run
from amends.errors import Halted


@tool
def book(what: str) -> str:
    return what


@book.compensate
def cancel(what: str) -> None: ...


@tool(kind="pivot")
def pay(cents: int) -> None: ...


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(place, tools=[book, pay]) as rt, rt.run("order"):
        book("one")
        pay(5)
    return place


def test_a_halt_is_made_shown_in_listings_and_lifted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["halt", "--why", "fire", "--by", "ann", "--tool", "book", "--url", url, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["by"], made["why"], made["tool"], made["extent"]) == ("ann", "fire", "book", "tool book")
    with Runtime(url, tools=[book, pay]) as rt, pytest.raises(Halted), rt.run("other"):
        book("two")
    for verb in (["runs", "list"], ["locks"], ["approvals", "list"], ["doubts", "list"]):
        run([*verb, "--url", url])
        assert "HALTED: tool book, by ann" in capsys.readouterr().err
    assert run(["halts", "--url", url]) == 0
    assert "fire" in capsys.readouterr().out
    assert run(["unhalt", "--why", "out", "--url", url]) == 2
    assert "tool book" in capsys.readouterr().err
    assert run(["unhalt", "--why", "out", "--tool", "book", "--url", url]) == 0
    capsys.readouterr()
    run(["runs", "list", "--url", url])
    assert "HALTED" not in capsys.readouterr().err
    assert run(["halts", "--url", url]) == 0
    assert "no halt" in capsys.readouterr().err


def test_a_tool_that_was_never_called_is_asked_about(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["halt", "--why", "fire", "--by", "ann", "--tool", "bock", "--url", url]) == 0
    assert "is that its name?" in capsys.readouterr().err


def test_a_committed_run_is_taken_back_with_accept(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    app = tmp_path / "program.py"
    imports = "from tests.cli.test_halts import book, pay\nfrom amends import Runtime\n"
    app.write_text(f"{imports}rt = Runtime({url!r}, tools=[book, pay])\n")
    at = ["rollback", "order", "--app", f"{app}:rt"]
    run([*at, "--plan", "--json"])
    plan = json.loads(capsys.readouterr().out)
    [stays] = plan["must_accept"]
    assert stays["tool"] == "pay"
    apply = [*at, "--apply", plan["hash"], "--why", "cancelled", "--by", "ann", "--yes", "--json"]
    assert run(apply) == 2
    capsys.readouterr()
    run([*apply, "--accept", stays["call"]])
    assert json.loads(capsys.readouterr().out)["run"]["state"] == "abandoned"
