"""``amends rules test`` shows which rule decides and why; ``amends doctor`` checks the rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amends import InDoubt, Runtime, tool
from tests.cli.command import assert_refused, here

APP = """
from amends import AsyncRuntime, Budget, Rule, Runtime, tool

@tool(kind="pivot", cost=lambda call: call.args["cents"] / 100)
def send_wire(order: str, cents: int) -> str:
    return "sent"

@tool(kind="pivot", needs_approval=True)
def close(order: str) -> str:
    return "closed"

RULES = [
    Rule("send_wire", args={"cents": "<=100"}, decision="allow", why="small"),
    Rule("send_wire", args={"cents": ">100000"}, decision="refuse", why="too much"),
    Rule("send_wire", approvers=2, roles=("finance",), hours="08:00-18:00", why="by day"),
]
OPTIONS = {"tools": [send_wire, close], "rules": RULES, "budgets": [Budget(500, per="call", then="hold")]}
rt = Runtime("sqlite:///shop.db", **OPTIONS)
art = AsyncRuntime("sqlite:///shop.db", **OPTIONS)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "wires.py").write_text(APP)
    return tmp_path


@pytest.mark.parametrize("app", ["wires:rt", "wires:art"])
@pytest.mark.parametrize(
    "words, decision, by, needed",
    [
        (['{"order": "1", "cents": 50}'], "run", "rule 1", 0),
        (["order=1", "cents=200000"], "refuse", "rule 2", 0),
        (["order=1", "cents=5000", "--at", "2026-03-06T12:00Z"], "approve", "rule 3", 2),
        (["order=1", "cents=5000", "--at", "2026-03-06T22:00Z"], "run", "", 0),
        (["order=1", "cents=60000", "--at", "2026-03-06T22:00Z"], "approve", "budget", 1),
    ],
)
def test_which_rule_decides(shop: Path, app: str, words: list[str], decision: str, by: str, needed: int) -> None:
    done = here("rules", "test", "send_wire", *words, "--app", app, "--json", cwd=shop)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["decision"], told["by"], told["needed"], told["declared"]) == (decision, by, needed, True)
    assert [one["number"] for one in told["rules"]] == [1, 2, 3]
    assert {one["verdict"] for one in told["rules"]} <= {"matches", "no", "unclear"}
    deciding = [f"rule {one['number']}" for one in told["rules"] if one["decides"]]
    assert deciding == ([by] if by.startswith("rule") else [])
    codes = {"run": 0, "approve": 12, "refuse": 19}
    assert here("rules", "test", "send_wire", *words, "--app", app, "--check", cwd=shop).returncode == codes[decision]
    assert not (shop / "shop.db").exists(), "no ledger is made for it"


def test_in_words(shop: Path) -> None:
    done = here("rules", "test", "send_wire", '{"order": "1", "cents": 200000}', "--app", "wires:rt", cwd=shop)
    assert done.stdout.startswith("send_wire would be refused: too much (rule 2)\n")
    assert "cents is not <=100" in done.stdout
    done = here("rules", "test", "close", '{"order": "1"}', "--app", "wires:rt", cwd=shop)
    assert done.stdout.startswith("close would need approval by a person: close always needs approval (tool)\n")
    done = here("rules", "test", "rm_rf", "--app", "wires:rt", cwd=shop)
    assert "no tool is declared as rm_rf" in done.stdout


def test_what_cannot_be_asked_is_refused(shop: Path) -> None:
    for words in (["cents"], ["{"], ["[1]"], ["cents=many", "order=1"], ["order=1"], ["--at", "soon"], ["=5"]):
        assert_refused(here("rules", "test", "send_wire", *words, "--app", "wires:rt", cwd=shop))
    assert_refused(here("rules", "test", "close", "order=x", "--app", "nothing:rt", cwd=shop), "nothing")


def test_rules_of_the_settings_alone(tmp_path: Path) -> None:
    (tmp_path / "amends.toml").write_text('[[rules]]\ntool = "pay"\nargs.cents = ">10"\nwhy = "large"\n')
    done = here("rules", "test", "pay", "cents=11", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (told["decision"], told["by"], told["declared"]) == ("approve", "rule 1", False)
    assert "--app" in done.stderr


def test_doctor_looks_at_the_rules(shop: Path) -> None:
    done = here("doctor", "--app", "wires:rt", "--json", cwd=shop)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["state"] for one in found if one["check"] == "rules"] == ["ok"]
    (shop / "wires.py").write_text(APP.replace('Rule("send_wire", approvers', 'Rule("delete_all", approvers'))
    done = here("doctor", "--app", "wires:rt", "--json", cwd=shop)
    [one] = [one for one in map(json.loads, done.stdout.splitlines()) if one["check"] == "rules"]
    assert (one["state"], "delete_all" in one["words"]) == ("warning", True)
    (shop / "wires.py").write_text(APP.replace("Budget(500,", 'Budget(500, tool="else",'))
    done = here("doctor", "--app", "wires:rt", "--json", cwd=shop)
    [one] = [one for one in map(json.loads, done.stdout.splitlines()) if one["check"] == "budgets"]
    assert (one["state"], "else" in one["words"]) == ("warning", True)
    (shop / "wires.py").write_text(APP.replace('{"cents": "<=100"}', '{"cent": "<=100"}'))
    done = here("doctor", "--app", "wires:rt", "--json", cwd=shop)
    assert done.returncode == 3
    [one] = [one for one in map(json.loads, done.stdout.splitlines()) if one["state"] == "failed"]
    assert (one["check"], "cents" in one["words"]) == ("rules", True)
    (shop / "amends.toml").write_text('[[rules]]\nargs.cents = "=>10"\n')
    done = here("doctor", "--json", cwd=shop)
    assert done.returncode == 3
    assert "=>10" in done.stdout


def test_doctor_knows_of_a_probe_that_says_nothing(tmp_path: Path) -> None:
    @tool
    def pay(n: int) -> int:
        raise TimeoutError

    pay.compensate(lambda: None)
    pay.probe(lambda: True)  # type: ignore[type-var]
    with Runtime(f"sqlite:///{tmp_path / 'amends.db'}", tools=[pay], wait=0.1) as rt:
        with pytest.raises(ValueError), rt.run():
            with pytest.raises(InDoubt):
                pay(n=1)
            raise ValueError
    done = here("doctor", "--json", cwd=tmp_path)
    [one] = [one for one in map(json.loads, done.stdout.splitlines()) if one["check"] == "probes"]
    assert (one["state"], "pay: the probe returned True" in one["words"]) == ("warning", True)


def test_a_mistyped_tool_is_told_which_one_may_be_meant(shop: Path) -> None:
    done = here("rules", "test", "sendwire", "order=1", "cents=5", "--app", "wires:rt", cwd=shop)
    assert "no tool is declared as sendwire; did you mean send_wire?" in done.stdout
    told = here("rules", "test", "sendwire", "order=1", "cents=5", "--app", "wires:rt", "--json", cwd=shop)
    assert json.loads(told.stdout)["meant"] == "send_wire"


def test_an_argument_said_twice_is_refused(shop: Path) -> None:
    done = here("rules", "test", "send_wire", "order=1", "cents=5", "cents=9000000", "--app", "wires:rt", cwd=shop)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cents is there twice" in done.stderr
