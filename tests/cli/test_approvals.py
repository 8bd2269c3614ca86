"""Approvals, budgets, costs and reconciliation, at a terminal and with ``--json``."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from amends import Held, Runtime, tool
from tests.cli.command import PATIENCE_S, assert_refused, environment, here, run
from tests.cli.terminal import at_terminal
from tests.forked import run_python

PROGRAM = Path(__file__).with_name("payments.py")
Pays = Callable[..., bool]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    shutil.copy(PROGRAM, tmp_path / "app.py")
    (tmp_path / "amends.toml").write_text(
        'url = "sqlite:///shop.db"\napp = "app.py:rt"\nby = "ada"\n', encoding="utf-8"
    )
    return tmp_path


@pytest.fixture
def pays(shop: Path) -> Pays:
    """Run the program once; return whether it came to its end."""

    def pays(order: str, cents: int, **extra: str) -> bool:
        done = run_python(["app.py", order, str(cents)], cwd=shop, env=environment(**extra), timeout=PATIENCE_S)
        assert done.returncode == 0 or any(
            name in done.stderr for name in ("Held", "BudgetExceeded", "Rejected", "LedgerBehind")
        ), done.stderr
        return done.returncode == 0

    return pays


def lines(*args: str, cwd: Path, code: int = 0) -> list[Any]:
    done = here(*args, "--json", cwd=cwd)
    assert done.returncode == code, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def waiting(shop: Path, order: str = "1") -> dict[str, Any]:
    (found,) = lines("approvals", "list", f"run:order-{order}", cwd=shop)
    return dict(found)


def test_a_payment_is_shown_approved_at_a_terminal_and_then_made(shop: Path, pays: Pays) -> None:
    assert not pays("1", 50_000)
    asked = waiting(shop)["approval"]
    listed = at_terminal("approvals", "list", cwd=shop)
    assert (listed.code, asked in listed.text, "0/1" in listed.text) == (0, True, True)
    shown = at_terminal("approvals", "show", asked[:-3], cwd=shop)
    assert "cents = 50000" in shown.text
    assert "asked because  it is much" in shown.text
    no = at_terminal("approvals", "approve", asked, cwd=shop, answers=[("Sure? [y/N]", "\n")])
    assert (no.code, "nothing was done" in no.text) == (1, True)
    assert waiting(shop)["state"] == "pending"
    yes = at_terminal("approvals", "approve", asked, cwd=shop, answers=[("ada approves exactly this. Sure?", "y\n")])
    assert (yes.code, f"{asked}  approved" in yes.text) == (0, True), yes.text
    assert pays("1", 50_000)
    (used,) = lines("approvals", "list", "status:used", cwd=shop)
    assert (used["approval"], used["given"][0]["by"]) == (asked, "ada")
    late = run("approvals", "approve", asked, "--digest", used["digest"], "--yes", cwd=shop)
    assert_refused(late, "used", code=19)


def test_a_program_approves_by_the_digest_of_what_it_was_shown(shop: Path, pays: Pays) -> None:
    pays("1", 50_000)
    asked = waiting(shop)
    name, digest = asked["approval"], asked["digest"]
    for args, words, code in (
        (("--yes",), ("--digest",), 2),
        (("--digest", digest), ("--yes",), 2),
        (("--digest", "0" * 64, "--yes"), ("digest",), 16),
        (("--digest", digest[:11], "--yes"), ("digest",), 16),
        (("--digest", digest, "--yes", "--by", "clerk"), ("asked for it",), 19),
        (("--digest", digest, "--yes", "--bypass"), ("--why",), 2),
    ):
        assert_refused(here("approvals", "approve", name, *args, cwd=shop), *words, code=code)
    (done,) = lines("approvals", "approve", name, "--digest", digest[:12], "--yes", "--why", "known", cwd=shop)
    assert (done["state"], done["by"], done["given"][0]["why"]) == ("approved", "ada", "known")
    assert pays("1", 50_000)


def test_what_is_new_since_the_last_time_is_shown(shop: Path, pays: Pays) -> None:
    pays("1", 50_000)
    asked = waiting(shop)
    here("approvals", "approve", asked["approval"], "--digest", asked["digest"], "--yes", cwd=shop)
    assert pays("1", 50_000)
    pays("2", 60_000)
    shown = here("approvals", "show", waiting(shop, "2")["approval"], cwd=shop).stdout
    assert "not as the last time: cents was 50000, is 60000" in shown


def test_two_of_a_role_are_needed_and_a_bypass_is_on_the_record(shop: Path, pays: Pays) -> None:
    pays("1", 200_000)
    name, digest = waiting(shop)["approval"], waiting(shop)["digest"]
    yes = ("approvals", "approve", name, "--digest", digest, "--yes")
    assert_refused(here(*yes, cwd=shop), "role", code=19)
    assert_refused(here(*yes, "--by", "anna", "--url", "sqlite:///shop.db", cwd=shop), "role", code=19)
    assert "pending, 1 more needed" in here(*yes, "--by", "anna", cwd=shop).stdout
    here(*yes, "--by", "anna", cwd=shop)
    assert waiting(shop)["state"] == "pending", "one person is one, however often they say it"
    (done,) = lines(*yes, "--by", "bob", cwd=shop)
    assert (done["state"], [one["by"] for one in done["given"]]) == ("approved", ["anna", "bob"])
    pays("2", 300_000)
    name, digest = waiting(shop, "2")["approval"], waiting(shop, "2")["digest"]
    (done,) = lines("approvals", "approve", name, "--digest", digest, "--yes", "--bypass", "--why", "all ill", cwd=shop)
    assert (done["state"], done["given"][0]["bypass"]) == ("approved", True)


def test_a_no_has_one_of_its_reasons_and_reaches_the_caller(shop: Path, pays: Pays) -> None:
    pays("1", 50_000)
    name = waiting(shop)["approval"]
    assert_refused(here("approvals", "reject", name, "--reason", "mood", cwd=shop), "too much, wrong account")
    seen = at_terminal("approvals", "reject", name, "--reason", "too much", cwd=shop)
    assert (seen.code, "rejected" in seen.text) == (0, True)
    assert "   cents = 50000" in seen.lines, "what is refused was shown"
    done = run_python(["app.py", "1", "50000"], cwd=shop, env=environment(), timeout=PATIENCE_S)
    assert "Rejected: ada rejected pay: too much" in done.stderr


def test_what_expired_is_refused_and_asked_for_again(shop: Path, pays: Pays) -> None:
    pays("1", 50_000, EXPIRES="0.2")
    while not lines("approvals", "list", "status:expired", cwd=shop):
        pass
    (old,) = lines("approvals", "list", "status:expired", cwd=shop)
    late = here("approvals", "approve", old["approval"], "--digest", old["digest"], "--yes", cwd=shop)
    assert_refused(late, "expired", code=17)
    (new,) = lines("approvals", "again", old["approval"], "--why", "still wanted", cwd=shop)
    assert (new["state"], new["follows"]) == ("pending", old["approval"])
    while not lines("approvals", "list", "status:expired run:order-1", cwd=shop)[0]["follows"]:
        pass
    seen = at_terminal("approvals", "again", new["approval"], "--why", "still wanted", cwd=shop)
    assert (seen.code, "pending" in seen.text) == (0, True)


def test_a_request_is_withdrawn(shop: Path, pays: Pays) -> None:
    pays("1", 50_000)
    (done,) = lines("approvals", "withdraw", waiting(shop)["approval"], "--why", "paid by card", cwd=shop)
    assert done["state"] == "cancelled"
    assert lines("approvals", "list", cwd=shop) == []
    seen = at_terminal("approvals", "list", cwd=shop)
    assert "no approval with state:pending in" in seen.text
    pays("2", 50_000)
    seen = at_terminal("approvals", "withdraw", waiting(shop, "2")["approval"], "--why", "by card", cwd=shop)
    assert (seen.code, "cancelled" in seen.text) == (0, True)


def test_a_run_that_waits_for_a_person_is_watched_until_there(shop: Path, pays: Pays) -> None:
    pays("1", 50_000)
    watched = run("runs", "watch", "order-1", "--json", cwd=shop)
    assert watched.returncode == 12
    seen = at_terminal("runs", "watch", "order-1", cwd=shop)
    assert (seen.code, seen.lines[-1]) == (12, "= open, waits for a person")


def test_a_ledger_that_was_put_back_starts_nothing_until_a_person_has_looked(shop: Path, pays: Pays) -> None:
    pays("1", 50_000)
    with sqlite3.connect(shop / "shop.db") as old, sqlite3.connect(shop / "copy.db") as copy:
        old.backup(copy)
    old.close()
    copy.close()
    asked = waiting(shop)
    here("approvals", "approve", asked["approval"], "--digest", asked["digest"], "--yes", cwd=shop)
    assert pays("1", 50_000)
    for name in ("shop.db-wal", "shop.db-shm"):
        (shop / name).unlink(missing_ok=True)
    (shop / "copy.db").replace(shop / "shop.db")
    assert not pays("2", 100)
    assert_refused(here("db", "restored", "--why", "looked", cwd=shop), "--yes")
    assert_refused(here("db", "restored", "--yes", cwd=shop), "--why")
    assert_refused(here("db", "restored", "--why", "x", "--yes", "--url", "sqlite:///none.db", cwd=shop), "no ledger")
    no = at_terminal("db", "restored", "--why", "looked", cwd=shop, answers=[("[y/N]", "n\n")])
    assert (no.code, "nothing was done" in no.text) == (1, True)
    (done,) = lines("db", "restored", "--why", "looked", "--yes", cwd=shop)
    assert done == {"id": f"sqlite:///{shop / 'shop.db'}", "voided": 1}
    assert pays("2", 100)


def test_reencrypting_needs_a_key_and_says_so(shop: Path, pays: Pays) -> None:
    pays("1", 100)
    assert_refused(here("db", "reencrypt", cwd=shop), "encrypt")
    assert_refused(here("db", "reencrypt", "--url", "sqlite:///none.db", cwd=shop), "no ledger")
    assert_refused(here("db", "reencrypt", "now", cwd=shop), "now")


WRONG: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("approvals", "list", "status:happy"), ("happy", "pending")),
    (("approvals", "list", "colour:red"), ("colour",)),
    (("approvals", "list", "--limit", "0"), ("limit",)),
    (("approvals", "show", "apr_nope"), ("apr_nope", "approvals list")),
    (("approvals", "show"), ("APPROVAL",)),
    (("approvals", "show", "apr_"), ("more than one", "write more")),
    (("approvals", "approve", "apr_nope", "--digest", "x", "--yes"), ("apr_nope",)),
    (("approvals", "approve"), ("APPROVAL",)),
    (("approvals", "approve", "apr_", "--digest", "x", "--yes"), ("more than one",)),
    (("approvals", "reject", "apr_nope", "--reason", "x"), ("apr_nope",)),
    (("approvals", "reject", "APR"), ("--reason",)),
    (("approvals", "reject", "APR", "--reason", ""), ("why",)),
    (("approvals", "withdraw", "apr_nope", "--why", "x"), ("apr_nope",)),
    (("approvals", "withdraw", "APR"), ("--why",)),
    (("approvals", "withdraw", "APR", "--why", ""), ("why",)),
    (("approvals", "again", "APR", "--why", "x"), ("pending",)),
    (("approvals", "again", "APR"), ("--why",)),
    (("approvals", "again", "apr_nope", "--why", "x"), ("apr_nope",)),
    (("budgets", "colour:red"), ("colour", "unit")),
    (("budgets", "list"), ("'list' is no filter", "amends budgets")),
    (("budgets", "list", "per:run"), ("leave it out", "amends budgets per:run")),
    (("budgets", "per:planet"), ("planet", "agent")),
    (("costs", "list"), ("'list' is no filter", "amends costs")),
    (("inbox", "list"), ("'list' is no filter", "amends inbox")),
    (("budgets", "--app", "nosuch:rt"), ("nosuch",)),
    (("budgets", "--url", "sqlite:///none.db"), ("no ledger",)),
    (("costs", "--by", "moon"), ("moon", "run, tool, agent, day")),
    (("costs", "status:happy"), ("happy",)),
    (("costs", "--limit", "none"), ("limit",)),
    (("reconcile",), ("TOOL",)),
    (("reconcile", "nosuch"), ("nosuch",)),
    (("reconcile", "pay", "--url", "sqlite:///shop.db"), ("needs your tools",)),
]


def test_what_makes_no_sense_is_said_and_changes_nothing(shop: Path, pays: Pays) -> None:
    pays("1", 50_000)
    pays("2", 60_000)
    before = lines("approvals", "list", cwd=shop)
    for args, words in WRONG:
        said = tuple(before[0]["approval"] if arg == "APR" else arg for arg in args)
        assert_refused(here(*said, cwd=shop), *words)
    assert lines("approvals", "list", cwd=shop) == before


# ---- budgets, costs, reconciliation


def test_what_is_spent_and_left_is_told(shop: Path, pays: Pays) -> None:
    assert pays("1", 9_000)
    assert pays("2", 8_000)
    (state,) = lines("budgets", cwd=shop)
    assert (state["who"], state["spent"], state["left"]) == ("till", "170", "4830")
    assert run("budgets", "--check", cwd=shop).returncode == 0
    seen = at_terminal("budgets", cwd=shop, width=120)
    assert (seen.code, "per agent and day" in seen.text) == (0, True)
    by_run = lines("costs", cwd=shop)
    assert [(line["what"], line["spent"]) for line in by_run] == [("order-1", "90"), ("order-2", "80")]
    (by_tool,) = lines("costs", "--by", "tool", "age:<1h", cwd=shop)
    assert (by_tool["what"], by_tool["calls"], by_tool["spent"]) == ("pay", 2, "170")
    assert "order-1" in at_terminal("costs", "cost:>85", cwd=shop).text
    assert [one["id"] for one in lines("runs", "list", "cost:>85", cwd=shop)] == ["order-1"]


def test_an_empty_budget_has_an_exit_code(shop: Path, pays: Pays) -> None:
    text = (shop / "app.py").read_text(encoding="utf-8").replace("Budget(5000", "Budget(90")
    (shop / "app.py").write_text(text, encoding="utf-8")
    assert pays("1", 9_000)
    assert not pays("2", 100)
    assert run("budgets", "--check", cwd=shop).returncode == 13


def test_the_ledger_is_compared_with_the_world(shop: Path, pays: Pays) -> None:
    assert pays("1", 900)
    (agreed,) = lines("reconcile", "pay", cwd=shop)
    assert (agreed["agrees"], agreed["listed"]) == (True, 1)
    (shop / "bank.json").write_text(json.dumps([{"order": "7", "cents": 5}]), encoding="utf-8")
    seen = at_terminal("reconcile", "pay", cwd=shop, width=120)
    assert seen.code == 3
    assert "only in the ledger" in seen.text
    assert "only in the world" in seen.text


def test_an_id_means_the_approval_of_this_id_and_not_a_run_that_is_called_so(shop: Path, pays: Pays) -> None:
    pays("1", 50_000)
    real = waiting(shop)["approval"]
    asks = tool(lambda cents: None, name="gift", kind="pivot", needs_approval=True)
    with Runtime(f"sqlite:///{shop / 'shop.db'}", tools=[asks]) as rt:
        with suppress(Held), rt.run(real):
            asks(cents=1)
        assert [one.call.run_id for one in rt.approvals()] == [real, "order-1"]
    (shown,) = lines("approvals", "show", real, cwd=shop)
    assert (shown["approval"], shown["run"]) == (real, "order-1")
