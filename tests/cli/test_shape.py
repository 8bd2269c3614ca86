"""What every verb has in common: both ways to name a ledger, an ``id`` in its JSON, lines that fit, help that is whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from amends import Held, Rule, RunBlocked, Runtime, tool
from tests.cli.command import assert_refused, here, run
from tests.cli.conftest import Play
from tests.cli.terminal import at_terminal
from tests.cli.test_help import GROUPS, all_verbs, verbs

WITHOUT_LEDGER = {"demo", "init", "completion", "audit keygen", "test"} | {
    # its tools are those of its configuration, not of a program
    "gateway", "gateway add", "gateway init", "gateway catalogue", "gateway install",
}  # fmt: skip
URL = ("--url", "sqlite:///shop.db")
WIDE = "a long sentence of ordinary words that does not fit into eighty columns of a terminal at all"


def test_every_verb_takes_url_and_app(tmp_path: Path) -> None:
    for verb in all_verbs(tmp_path) - WITHOUT_LEDGER:
        shown = here(*verb.split(), "--help", cwd=tmp_path).stdout
        assert {"--url", "--app"} <= set(re.findall(r"--[a-z]+", shown)), verb


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_of_a_help_is_cut(tmp_path: Path, columns: int) -> None:
    for words in ([], *([group] for group in GROUPS), *(verb.split() for verb in all_verbs(tmp_path))):
        shown = here(*words, "--help", cwd=tmp_path, columns=columns).stdout
        listed = shown.partition("\n\n")[2]  # after the usage, where ... means "and more of these"
        assert "…" not in listed, words
        cut = [line for line in listed.splitlines() if re.search(r"[a-z,]\.\.\.$", line)]
        assert cut == [], words


def test_groups_are_plural_and_the_earlier_names_still_work(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    top = verbs(here("--help", cwd=shop).stdout)
    assert {"calls", "budgets", "costs", "inbox"} <= set(top)
    assert {"call", "budget", "cost"}.isdisjoint(top)
    [line] = here("calls", "list", *URL, "--json", cwd=shop).stdout.splitlines()
    id = json.loads(line)["id"]
    for old, new in (("call", "calls"), ("cost", "costs"), ("budget", "budgets")):
        words = ("show", id) if old == "call" else ()
        assert here(old, *words, *URL, cwd=shop).stdout == here(new, *words, *URL, cwd=shop).stdout


def test_state_is_the_word_for_state(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    for word in ("state", "status"):
        assert "order-1" in here("runs", "list", f"{word}:committed", *URL, cwd=shop).stdout
    wrong = here("runs", "list", "colour:red", *URL, cwd=shop).stderr
    assert "state" in wrong
    assert "status" not in wrong
    for verb in all_verbs(shop):
        shown = here(*verb.split(), "--help", cwd=shop).stdout.replace("db status", "")
        assert "status" not in shown, verb


# ---- --url and --app ------------------------------------------------------------------------


def test_a_listing_reads_the_ledger_of_the_program_that_is_named(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    for verb in (("runs", "list"), ("calls", "list"), ("audit", "events"), ("db", "status"), ("config", "show")):
        for app in ("app:rt", "app:art"):
            done = run(*verb, "--app", app, cwd=shop)
            assert done.returncode == 0, (verb, done.stderr)
            assert "order-1" in done.stdout or "shop.db" in done.stdout, (verb, done.stdout)


def test_a_program_without_a_ledger_of_its_own_gets_the_one_that_is_named(shop: Path, play: Play) -> None:
    play("pay", "order-1", dies="order-1")
    text = (shop / "app.py").read_text(encoding="utf-8").replace('rt = Runtime("sqlite:///shop.db", ', "rt = Runtime(")
    (shop / "open.py").write_text(text, encoding="utf-8")
    done = run("recover", "--app", "open:rt", *URL, cwd=shop)
    assert (done.returncode, "= rolled back" in done.stdout) == (0, True), done
    assert not (shop / "amends.db").exists()


def test_two_ledgers_or_two_programs_are_refused(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    same = run("runs", "list", "--app", "app:rt", *URL, cwd=shop)
    assert (same.returncode, "order-1" in same.stdout) == (0, True), same.stderr
    for verb in (("runs", "list"), ("recover",), ("reconcile", "pay")):
        done = run(*verb, "--app", "app:rt", "--url", "sqlite:///other.db", cwd=shop)
        assert_refused(done, "shop.db", "other.db")
    assert_refused(run("recover", "app:rt", "--app", "app:poor", cwd=shop), "app:rt", "app:poor")


# ---- JSON -----------------------------------------------------------------------------------


def full(folder: Path) -> dict[str, str]:
    """Fill a ledger with a run of each kind, and return some ids."""

    @tool(key="order", cost=lambda call: 3)
    def pay(order: str, note: str = "") -> str:
        return order

    @pay.compensate
    def refund(order: str) -> None:
        pass

    @tool(kind="pivot")
    def wire(to: str) -> str:
        return to

    @tool(kind="pivot")
    def lost(to: str) -> str:
        raise TimeoutError(WIDE)

    rules = [Rule("wire", roles=("treasurer",), why=WIDE)]
    options: dict[str, Any] = {"tools": [pay, wire, lost], "rules": rules, "approvers": {"treasurer": ["ada"]}}
    with Runtime(f"sqlite:///{folder / 'shop.db'}", **options) as rt:
        with rt.run("order-1", tags=["one", "two"], agent="clerk"):
            pay(order="1", note=WIDE)
        with pytest.raises(Held), rt.run("order-2", agent="clerk"):
            pay(order="2")
            wire(to=WIDE)
        with pytest.raises(RunBlocked), rt.run("order-3"):
            lost(to="nowhere")
        rt.permit("pay", {"order": "9"}, by="ada", why=WIDE)
        rt.permit("wire", Rule(args={"to": "b*"}), by="ada", uses=3)
        calls = {call.tool: call.id for call in rt.calls()}
        return calls | {"approval": next(iter(rt.approvals())).id, "hash": rt.plan_rollback("order-2").hash}


def every_listing(ids: dict[str, str]) -> list[tuple[str, ...]]:
    return [
        ("inbox",),
        ("runs", "list"),
        ("runs", "show", "order-1"),
        ("runs", "show", "order-3"),
        ("runs", "watch", "order-1"),
        ("calls", "list"),
        ("calls", "show", ids["pay"]),
        ("calls", "show", ids["lost"]),
        ("approvals", "list"),
        ("approvals", "show", ids["approval"]),
        ("permits", "list"),
        ("tokens", "list"),
        ("halts",),
        ("doubts", "list"),
        ("doubts", "show", ids["lost"]),
        ("rollback", "order-2", "--plan"),
        ("compare", "order-1", "order-2"),
        ("budgets",),
        ("costs",),
        ("locks",),
        ("db", "status"),
        ("db", "migrate"),
        ("config", "show", "--origin"),
        ("gc", "--older-than", "30d", "--dry-run"),
        ("doctor",),
        ("audit", "verify"),
        ("audit", "checkpoint"),
        ("audit", "export", "order-1", "-o", "one.bundle", "--force"),
        ("rules", "test", "wire", "to=x"),
    ]


def test_every_json_object_has_an_id(tmp_path: Path) -> None:
    ids = full(tmp_path)
    for verb in (*every_listing(ids), ("audit", "events", "--limit", "3"), ("db", "sql")):
        words = (*verb, *URL) if verb[0] == "audit" and verb[1] == "events" else (*verb, *URL, "--json")
        done = here(*words, cwd=tmp_path)
        for line in done.stdout.splitlines():
            assert json.loads(line)["id"], (verb, line)
    assert json.loads(here("init", "--dir", "new", "--json", cwd=tmp_path).stdout)["id"] == "new"
    assert json.loads(here("audit", "keygen", "--hmac", "--json", cwd=tmp_path).stdout)["id"]
    [approval] = map(json.loads, here("approvals", "list", *URL, "--json", cwd=tmp_path).stdout.splitlines())
    assert (approval["id"], approval["run"]) == (ids["approval"], "order-2")


# ---- Tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_what_is_printed_fits_and_no_word_is_cut(tmp_path: Path, columns: int) -> None:
    ids = full(tmp_path)
    for verb in every_listing(ids):
        whole = here(*verb, *URL, cwd=tmp_path).stdout.replace(f"{tmp_path}/shop.db", "")
        shown = here(*verb, *URL, cwd=tmp_path, columns=columns).stdout
        for line in shown.splitlines():
            assert len(line) <= columns, (verb, line)
        words = {word for word in re.findall(r"(?<![0-9a-z])[a-z]{2,}(?![0-9a-z])", whole) if len(word) < columns // 4}
        words -= {"ms"}  # an age that was below a second may be above one by now
        missing = {word for word in words if not re.search(rf"(?<![a-z]){word}(?![a-z])", shown)}
        assert missing == set(), (verb, shown)


def test_at_a_terminal_a_table_fits_too(tmp_path: Path) -> None:
    full(tmp_path)
    for verb in (("approvals", "list"), ("inbox",), ("runs", "list")):
        seen = at_terminal(*verb, *URL, cwd=tmp_path)
        assert max(map(len, seen.lines)) <= 80, seen.text
        assert "…" not in seen.text


def test_in_a_pipe_a_row_is_one_line(tmp_path: Path) -> None:
    full(tmp_path)
    done = run("calls", "list", *URL, cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 1 + 4


def test_an_empty_column_is_left_out(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    head = run("runs", "list", *URL, cwd=shop).stdout.splitlines()[0].split()
    assert head == ["run", "state", "age", "took"]


# ---- inbox and now --------------------------------------------------------------------------


def test_the_inbox_says_what_waits_and_which_command_decides_it(tmp_path: Path) -> None:
    ids = full(tmp_path)
    done = run("inbox", *URL, cwd=tmp_path)
    rows = [line.split()[:3] for line in done.stdout.splitlines()]
    assert rows == [["what", "id", "run"], ["approval", ids["approval"], "order-2"], ["doubt", ids["lost"], "order-3"]]
    assert "amends approvals show" in done.stderr
    assert "amends doubts show" in done.stderr
    assert here("inbox", "--check", *URL, cwd=tmp_path).returncode == 3
    none = here("inbox", "run:order-1", "--check", *URL, cwd=tmp_path)
    assert (none.returncode, none.stdout, "no item" in none.stderr) == (0, "", True)
    assert_refused(here("inbox", "what:nothing", *URL, cwd=tmp_path), "approval, expired")
    [first, _] = map(json.loads, here("inbox", "--json", *URL, cwd=tmp_path).stdout.splitlines())
    assert (first["what"], first["tool"], first["roles"]) == ("approval", "wire", ["treasurer"])


def test_runs_are_listed_with_what_happens_now(shop: Path, play: Play) -> None:
    full(shop)
    play("pay", "order-9", dies="order-9")
    found = {
        one["id"]: one for one in map(json.loads, run("runs", "list", *URL, "--json", cwd=shop).stdout.splitlines())
    }
    assert found["order-1"]["now"] is None
    assert (found["order-2"]["now"]["what"], found["order-2"]["now"]["waits_for"]) == ("waiting", "treasurer")
    assert (found["order-3"]["now"]["what"], found["order-3"]["now"]["waits_for"]) == ("waiting", "a person")
    assert (found["order-9"]["now"]["what"], bool(found["order-9"]["now"]["since"])) == ("orphaned", True)
    table = run("runs", "list", *URL, cwd=shop).stdout
    assert re.search(r"order-9 +open +orphaned for ", table), table
    assert re.search(r"order-2 +open +waits for treasurer ", table), table
    with Runtime(f"sqlite:///{shop / 'shop.db'}") as rt:
        open_run = rt.open("here")
        assert re.search(r"here +open +runs on \S+ \(\d+\)", run("runs", "list", *URL, cwd=shop).stdout)
        open_run.commit()
