"""Rules: which calls they match, what they decide, and that none of them ever lets a call pass by failing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from amends import Held, Request, Rule, Runtime
from amends.errors import BadConfig, RuleRefused
from amends.tools.rules import checked_rules
from tests.people.conftest import Shop, yes

AT = datetime(2026, 3, 6, 19, 30, tzinfo=UTC)  # a Friday


def _request(tool: str = "pay", agent: str | None = "planner", **args: Any) -> Request:
    return Request("r", tool, "1", args, agent=agent)


@pytest.mark.parametrize(
    "rule, request_, matches",
    [
        (Rule("pay*"), _request("pay_bob"), True),
        (Rule("pay*"), _request("charge"), False),
        (Rule(args={"cents": ">100"}), _request(cents=101), True),
        (Rule(args={"cents": ">100"}), _request(cents=100), False),
        (Rule(args={"cents": ">=100.5"}), _request(cents=100.5), True),
        (Rule(args={"cents": "<100"}), _request(cents=3), True),
        (Rule(args={"iban": "DE*"}), _request(iban="DE12"), True),
        (Rule(args={"iban": "!DE*"}), _request(iban="DE12"), False),
        (Rule(args={"payee.iban": "DE*"}), _request(payee={"iban": "DE1"}), True),
        (Rule(args={"to": ["ann", "bob"]}), _request(to="bob"), True),
        (Rule(args={"dry": False}), _request(dry=False), True),
        (Rule(args={"missing": "*"}), _request(), False),
        (Rule(agent="plan*"), _request(), True),
        (Rule(agent="other"), _request(), False),
        (Rule(hours="18:00-08:00"), _request(), True),
        (Rule(hours="08:00-18:00"), _request(), False),
        (Rule(hours="08:00-18:00", tz="America/New_York"), _request(), True),
        (Rule(days=("fri",)), _request(), True),
        (Rule(days=("sat", "sun")), _request(), False),
        (Rule(when=lambda call: call.args["n"] == 1), _request(n=1), True),
        (Rule(undeclared=True), _request(), False),
    ],
)
def test_what_a_rule_matches(rule: Rule, request_: Request, matches: bool) -> None:
    assert rule.matches(request_, AT) is matches


def test_the_first_rule_that_matches_decides(shop: Shop) -> None:
    rules = [
        Rule("charge", args={"cents": "<=100"}, decision="allow"),
        Rule("charge", args={"cents": ">9000"}, decision="refuse", why="never so much"),
        Rule("charge", why="not small"),
    ]
    rt = shop.runtime(rules=rules)
    with pytest.raises(Held), rt.run("r") as run:
        assert run.answer("charge", {"order": "1", "cents": 100}).status == "done"
        no = run.answer("charge", {"order": "2", "cents": 9001})
        assert isinstance(no.error, RuleRefused)
        assert no.text == (
            "Not run: a rule forbids charge with these arguments: never so much. "
            "Do not look for another way; tell the user."
        )
        assert run.answer("charge", {"order": "3", "cents": 500}).status == "held"
    assert shop.sent == ["charge 1 100"]


def test_no_rule_lifts_what_a_tool_says_of_itself(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True}, rules=[Rule(decision="allow")])
    with pytest.raises(Held), rt.run("r") as run:
        assert run.answer("charge", {"order": "1"}).status == "held"


def test_of_a_rule_and_a_tool_the_stricter_counts(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True}, rules=[Rule("charge", approvers=2, expires=60)])
    with pytest.raises(Held) as held, rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    approval = held.value.approval
    assert (approval.needed, (approval.expires_at - approval.requested_at).total_seconds()) == (2, 60)


@pytest.mark.parametrize("decision", ["allow", "approve"])
def test_a_rule_that_raises_holds_the_call(shop: Shop, decision: Any) -> None:
    rt = shop.runtime(rules=[Rule("charge", decision=decision, when=lambda call: call.args["nothing"])])
    with pytest.raises(Held) as held, rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    assert "KeyError" in held.value.approval.rule


def test_a_function_of_the_tool_that_raises_holds_the_call(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": lambda call: call.args["nothing"]})
    with pytest.raises(Held) as held, rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    assert "KeyError" in held.value.approval.rule


def test_a_comparison_with_what_is_no_number_holds_the_call(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("charge", decision="allow", args={"order": ">5"})])
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("charge", {"order": "x"})


def test_the_first_use_by_an_agent(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("charge", first_use=True)], agent="planner")
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    yes(rt)
    with rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    with rt.run("s") as run:
        assert run.answer("charge", {"order": "2"}).status == "done"
    with pytest.raises(Held), rt.run("t", agent="another") as run:
        assert run.answer("charge", {"order": "3"}).status == "held"


def test_a_rule_about_the_first_use_hides_no_rule_after_it(shop: Shop) -> None:
    large = Rule("charge", args={"order": "big*"}, approvers=2, why="large")
    rt = shop.runtime(rules=[Rule(first_use=True), large], agent="planner")
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    yes(rt)
    with rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    with pytest.raises(Held) as held, rt.run("s") as run:
        assert run.answer("charge", {"order": "big"}).status == "held"
    assert (held.value.approval.rule, held.value.approval.needed) == ("large", 2)
    rt = shop.runtime(rules=[Rule(first_use=True), Rule("charge", decision="allow")], agent="other")
    with pytest.raises(Held), rt.run("t") as run:
        assert run.answer("charge", {"order": "2"}).status == "held"
    rt = shop.runtime(rules=[Rule(first_use=True), Rule("charge", decision="refuse")], agent="planner")
    with rt.run("u") as run:
        assert run.answer("charge", {"order": "3"}).status == "refused"
    with pytest.raises(BadConfig, match="first use"):
        shop.runtime(rules=[Rule(first_use=True, decision="refuse")])


def test_rules_and_approvers_as_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shop: Shop) -> None:
    (tmp_path / "amends.toml").write_text(
        """
url = "memory:"
wait_approval = 0.5

[approvers]
finance = ["Anna", "bob"]

[[rules]]
tool = "charge"
args = { cents = ">1000" }
approvers = 2
roles = ["finance"]
reasons = ["too much"]
expires = 3600
why = "large"

[[rules]]
tool = "mail"
decision = "refuse"
hours = "18:00-08:00"
tz = "Europe/Berlin"
""",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    rt = Runtime(tools=shop.tools())
    assert [rule.name for rule in rt._host.rules] == ["large", "refuse mail"]
    assert rt._host.roles_of(" ANNA") == ("finance",)
    assert rt.settings["wait_approval"].value == 0.5


@pytest.mark.parametrize(
    "table, says",
    [
        ({"tool": "x", "when": "y"}, "is unknown"),
        ({"decision": "maybe"}, "decides 'maybe'"),
        ({"approvers": 0}, "approvers"),
        ({"approvers": True}, "approvers"),
        ({"expires": -1}, "seconds"),
        ({"roles": "finance"}, "list of names"),
        ({"days": ["friday"]}, "friday"),
        ({"hours": "6-8"}, "18:00-08:00"),
        ({"hours": "06:00-08:00", "tz": "Mars/Base"}, "cannot be read"),
        ({"args": {"cents": ">many"}}, "cannot be read"),
        ({"residue": "keep"}, "accept"),
        ("pay", "not a Rule"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused_where_it_stands(table: Any, says: str) -> None:
    with pytest.raises(BadConfig, match=says):
        checked_rules([table], "amends.toml")
