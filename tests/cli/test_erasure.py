"""``amends erase`` as a person uses it: a look first, a question, the erasure, and what the audit says of it."""

import json
from pathlib import Path

import pytest

from amends import Runtime, tool
from tests.cli.command import assert_refused, here
from tests.cli.terminal import at_terminal

ALICE = "alice@example.org"
URL = ("--url", "sqlite:///shop.db")
WHY = ("--why", "request 4711", "--by", "dpo")


@tool(key="order")
def ship(order: str, to: str) -> str:
    return f"parcel for {to}"


@ship.compensate
def recall(order: str) -> None: ...


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with Runtime(f"sqlite:///{tmp_path}/shop.db", tools=[ship]) as rt:
        for order, who in (("1", ALICE), ("2", "bob@example.org")):
            with rt.run(f"order-{order}", principal=who, tags=[f"customer={who}"]):
                ship(order=order, to=who)
    return tmp_path


def test_a_dry_run_an_erasure_and_the_audit(shop: Path) -> None:
    dry = here("erase", "--field", f"to={ALICE}", *WHY, "--dry-run", "--json", *URL, cwd=shop)
    assert dry.returncode == 0, dry.stderr
    said = json.loads(dry.stdout)
    assert ([one["run_id"] for one in said["runs"]], said["order"], said["dry_run"]) == (["order-1"], "", True)
    done = here("erase", "--tag", f"customer={ALICE}", "--principal", ALICE, *WHY, "-y", *URL, cwd=shop)
    assert done.returncode == 0, done.stderr
    assert "order-1" in done.stdout
    assert "order-2" not in done.stdout
    assert "recorded as order wrk_" in done.stderr
    proved = here("audit", "verify", *URL, cwd=shop)
    assert proved.returncode == 0, proved.stderr
    assert "request 4711" in proved.stdout
    facts = json.loads(here("audit", "verify", "--json", *URL, cwd=shop).stdout)
    assert [(one["run_id"], one["by"], one["why"]) for one in facts["erased"]] == [("order-1", "dpo", "request 4711")]
    assert ALICE.encode() not in (shop / "shop.db").read_bytes()


def test_at_a_terminal_it_shows_what_goes_and_asks(shop: Path) -> None:
    no = at_terminal("erase", "--run", "order-1", *WHY, *URL, cwd=shop, answers=[("cannot be restored", "n\n")])
    assert no.code == 1
    assert ALICE.encode() in b"".join(one.read_bytes() for one in shop.glob("shop.db*"))
    yes = at_terminal("erase", "--run", "order-1", *WHY, *URL, cwd=shop, answers=[("cannot be restored", "y\n")])
    assert yes.code == 0


def test_wrong_words_are_refused(shop: Path) -> None:
    for words, said in (
        (WHY, "--principal"),
        ((*WHY, "--field", "to"), "PATH=VALUE"),
        ((*WHY, "--field", "to=a", "--field", "to=b"), "one person at a time"),
        ((*WHY, "--principal", "nobody"), "subject_not_found"),
        (("--why", f"{ALICE} asked", "--principal", ALICE), "the reason names the person"),
        (("--why", "", "--principal", ALICE), "why"),
    ):
        assert_refused(here("erase", *words, "-y", *URL, cwd=shop), said)
    assert_refused(here("erase", *WHY, "--principal", ALICE, *URL, cwd=shop), "--yes")
    assert_refused(here("erase", "--principal", ALICE, "-y", *URL, cwd=shop), "--why")
    assert_refused(here("erase", *WHY, *URL, cwd=shop), "--principal")
    with Runtime(f"sqlite:///{shop}/shop.db", tools=[ship]) as rt:
        open_run = rt.open("open", principal=ALICE)
        refused = here("erase", *WHY, "--principal", ALICE, "-y", *URL, cwd=shop)
        open_run.commit()
    assert refused.returncode != 0
    assert "run open (open): it has not ended" in refused.stderr
