"""A rule that cannot be read, compared or matched to a declared tool's arguments never lets a call pass."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import pytest
from pydantic import AnyUrl, BaseModel, Field, StringConstraints

from amends import AsyncRuntime, Held, Request, Rule, Runtime, declare, tool
from amends.errors import BadConfig, BadRule, RuleRefused, UsageError
from amends.tools.rules import checked_rules

Cents = NewType("Cents", int)
REF = UUID("12345678-1234-5678-1234-567812345678")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 9


@dataclass
class Payee:
    iban: str
    limit: int = 0


class Item(BaseModel):
    sku: str
    cents: int = 0
    colour: Colour = Colour.RED


class Extra(TypedDict, total=False):
    note: str
    cents: int


class Pair(NamedTuple):
    first: int
    second: str


@tool(kind="pivot")
def send_wire(order: str, cents: int = 0) -> str:
    return "sent"


@tool(kind="pivot")
def buy(
    items: list[Item],
    payee: Payee | None = None,
    extra: Extra | None = None,
    pair: Pair | None = None,
    colour: Colour = Colour.RED,
    level: Level = Level.LOW,
    size: Literal["s", "m", 3] = "s",
    rate: Decimal = Decimal(1),
    ratio: float = 1.0,
    dry: bool = False,
    day: date = date(2026, 1, 1),
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC),
    ref: UUID = REF,
    amounts: Mapping[str, int] = {},
    free: Any = None,
    bounded: Annotated[int, Field(ge=0, le=100)] = 0,
    cents: Cents = Cents(0),
    url: AnyUrl | None = None,
    lasts: timedelta = timedelta(0),
    maybe: int | str = 0,
) -> str:
    return "bought"


@tool(kind="pivot")
def loose(order: str, **more: int) -> str:
    return "done"


TOOLS = [send_wire, buy, loose]


def _request(name: str = "buy", **args: Any) -> Request:
    return Request("r", name, "1", args, agent="planner")


@pytest.mark.parametrize("runtime", [Runtime, AsyncRuntime])
@pytest.mark.parametrize(
    "rule, meant",
    [
        (Rule("send_wire", args={"cent": ">10000"}), "cents"),
        (Rule("send_wire", args={"Cents": ">10000"}), "cents"),
        (Rule("send_wire", args={"cents ": ">10000"}), ""),
        (Rule("sendwire", args={"cents": ">10000"}), "send_wire"),
        (Rule("send-wire"), "send_wire"),
        (Rule("Send_Wire"), "send_wire"),
        (Rule("ｓend_wire"), "send_wire"),
        (Rule("send_wier"), "send_wire"),
        (Rule("send_wires"), "send_wire"),
        (Rule("send.wire"), "send_wire"),
        (Rule("send-w*"), "send_wire"),
        (Rule("sned_*"), "send_wire"),
        (Rule("SENDWIRE", undeclared=True), "send_wire"),
        (Rule("[sb]*", args={"nothing_has_this": 1}), ""),
        (Rule("*", args={"centz": ">5"}), "cents"),
        (Rule("loose", args={"oder": "x"}), "order"),
        (Rule("loose", args={"more.cents": ">1"}), ""),
        (Rule("buy", args={"items.cent": ">1"}), "cents"),
        (Rule("buy", args={"payee.ibann": "DE*"}), "iban"),
        (Rule("buy", args={"extra.cnts": ">1"}), "cents"),
        (Rule("buy", args={"pair.thrid": 1}), ""),
        (Rule("buy", args={"cents.amount": 1}), ""),
        (Rule("buy", args={"payee": {"ibam": "DE*"}}), "iban"),
        (Rule("buy", args={"payee.IBAN": "DE*"}), "iban"),
        (Rule("buy", args={"items[0].cents": ">5"}), ""),
        (Rule("send_wire, buy"), ""),
        (Rule("send_wire|buy"), ""),
        (Rule("send_.*"), "send_wire"),
        (Rule(agent="planer"), ""),
    ],
    ids=str,
)
def test_what_no_declared_tool_has_is_refused_when_the_runtime_is_built(runtime: Any, rule: Rule, meant: str) -> None:
    with pytest.raises(BadRule) as bad:
        runtime("memory:", tools=TOOLS, rules=[rule], agents={"planner": print})
    assert isinstance(bad.value, UsageError)
    assert isinstance(bad.value, BadConfig)
    if meant:
        assert bad.value.meant == meant
        assert f"did you mean {meant!r}" in str(bad.value).replace('"', "'")


@pytest.mark.parametrize(
    "said",
    ["=>10000", "gt 10000", "=10000", "==5", "=<5", "<>5", ">", ">=", "> ten", ">10000 EUR", ">10,000", ">NaN", ">inf",
     "> =5", ">>5", "!>5", "≥5", "＞5", "over 5", "more than 5", "between 1 and 5", "5..9", "10000<", "\u200b>5",
     float("nan"), [], {}, lambda value: True, object(), [{"a": 1}], [">x"]],
)  # fmt: skip
@pytest.mark.parametrize("name", ["send_wire", "*", "nobody_has_declared_this"])
def test_a_condition_that_cannot_be_read_is_refused(said: Any, name: str) -> None:
    with pytest.raises(BadRule):
        Runtime("memory:", rules=[Rule(name, args={"order": said})])


@pytest.mark.parametrize(
    "args",
    [{"cents": "abc"}, {"cents": "1.5"}, {"cents": True}, {"cents": "x*"}, {"colour": "green"}, {"colour": "!gren"},
     {"level": ">9"}, {"level": "3"}, {"size": "l"}, {"size": ["s", "x"]}, {"dry": "maybe"}, {"dry": ">1"}, {"dry": 5},
     {"day": "tomorrow"}, {"day": ">5"}, {"at": "never"}, {"ref": "no-uuid"}, {"ref": ">5"}, {"bounded": 101},
     {"rate": "much"}, {"ratio": "abc"}, {"items": ">5"}, {"payee": "DE*"}, {"items.colour": "green"},
     {"amounts": "5"}, {"amounts.a": "five"}, {"pair.first": "x"}, {"colour": None}, {"dry": None}],
    ids=str,
)  # fmt: skip
def test_a_value_that_an_argument_can_never_have_is_refused(args: Any) -> None:
    with pytest.raises(BadRule, match="buy"):
        Runtime("memory:", tools=TOOLS, rules=[Rule("buy", args=args)])


@pytest.mark.parametrize(
    "args",
    [{"cents": "5*"}, {"cents": "500"}, {"cents": ["1", 2]}, {"colour": "RED"}, {"colour": "bl*"}, {"colour": Colour.RED},
     {"level": ">5"}, {"level": "HIGH"}, {"size": "3"}, {"size": 3}, {"dry": "true"}, {"dry": "TRUE"}, {"day": ">2026-01-01"},
     {"day": date(2026, 1, 1)}, {"at": ">2026-01-01"}, {"at": "<2026-01-01T00:00:00+00:00"}, {"payee": None},
     {"payee.iban": "DE*"}, {"items.0.cents": 5}, {"items.cents": ">5"}, {"items.*.cents": ">5"},
     {"extra.note": "!x"}, {"amounts.any": ">5"},
     {"free": "x"}, {"free.any.thing": ">5"}, {"bounded": "100"}, {"rate": ">0.5"}, {"ref": "12345678-*"},
     {"items": {"cents": ">5"}}, {"url": "https://x.example"}, {"lasts": ">60"}, {"maybe": "abc"}, {"maybe": 5}],
    ids=str,
)  # fmt: skip
def test_what_an_argument_can_have_is_taken(args: Any) -> None:
    rt = Runtime("memory:", tools=TOOLS, rules=[Rule("buy", args=args)])
    assert rt.warnings == ()


def test_an_argument_is_known_by_any_unicode_form_of_its_name() -> None:
    @tool(kind="pivot")
    def zahle(empfänger: str) -> None: ...

    rule = Rule("zahle", args={"empfa\u0308nger": "Mu\u0308ller"})
    rt = Runtime("memory:", tools=[zahle], rules=[rule])
    assert rt.test_rules("zahle", {"empfänger": "Müller"}).decision == "approve"
    assert rt.test_rules("zahle", {"empfänger": "Meier"}).decision == "run"


def test_a_tool_that_nobody_declared_here_is_only_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "amends"):
        rt = Runtime("memory:", tools=TOOLS, rules=[Rule("delete_database")])
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "delete_database" in caplog.text
    [warning] = rt.warnings
    assert "delete_database" in warning
    assert Runtime("memory:", rules=[Rule("delete_database")]).warnings == ()  # it only reads the ledger
    assert Runtime("memory:", tools=TOOLS, rules=[Rule("delete_database", undeclared=True)]).warnings == ()


def test_a_tool_added_later_is_held_to_the_same() -> None:
    rt = Runtime("memory:", tools=[loose], rules=[Rule("sendwire")])
    with pytest.raises(BadRule):
        rt.add(send_wire)


def test_a_role_that_nobody_has_is_warned_of() -> None:
    rt = Runtime("memory:", tools=TOOLS, rules=[Rule("buy", roles=("finanse",))], approvers={"finance": ["anna"]})
    [warning] = rt.warnings
    assert "finanse" in warning
    assert "finance" in warning


def test_more_people_than_have_the_role_are_warned_of() -> None:
    rule = Rule("buy", roles=("finance",), approvers=2)
    [warning] = Runtime("memory:", tools=TOOLS, rules=[rule], approvers={"finance": ["anna"]}).warnings
    assert "2 people" in warning
    assert Runtime("memory:", tools=TOOLS, rules=[rule], approvers={"finance": ["anna", "bob"]}).warnings == ()


@pytest.mark.parametrize(
    "said, value, verdict",
    [
        ("500", 500, "matches"), ("500", 500.0, "matches"), ("500", Decimal("500.00"), "matches"), ("500", "500", "matches"),
        (500, "500", "matches"), (500, "500.0", "matches"), (500, 500.0, "matches"), ("0.1", 0.1, "matches"),
        ("5*", 523, "matches"), ("500", 501, "no"), (500, True, "unclear"), (1, True, "unclear"), (True, 1, "unclear"),
        (True, "true", "matches"), ("true", True, "matches"), ("yes", True, "matches"), ("TRUE", False, "no"),
        ("null", None, "matches"), (None, None, "matches"), ("x", None, "no"), (None, 5, "no"),
        ("red", Colour.RED, "matches"), ("RED", Colour.RED, "matches"), ("9", Level.HIGH, "matches"), (9, Level.HIGH, "matches"),
        (">5", Level.HIGH, "matches"), (Colour.RED, "red", "matches"), (Colour.RED, Colour.BLUE, "no"),
        (">100", 101, "matches"), (">100", "101", "matches"), (">100", "9,000,000", "unclear"), (">100", None, "unclear"),
        (">100", True, "unclear"), (">100", {"a": 1}, "unclear"), (">100", [1, 101], "matches"), (">100", [1, "x"], "unclear"),
        (">100", [1, 2], "no"), (">100", [], "no"), (">100", float("nan"), "unclear"), (">100", float("inf"), "matches"),
        (">100", {1, 200}, "matches"), (">100", ((1,), (200,)), "matches"), (" > 100 ", 101, "matches"), (">1e2", 101, "matches"),
        (">9007199254740992", 9007199254740993, "matches"), ("!=5", 6, "matches"), ("!5", 5, "no"), ("!5", {"a": 5}, "unclear"),
        ("DE*", ["FR1", "DE2"], "matches"), ("DE*", "de1", "no"), ("Mu\u0308ller", "Müller", "matches"),
        ("Müller", "Mu\u0308ller", "matches"), ("*", {"a": 1}, "matches"),
        ("2026-01-01", date(2026, 1, 1), "matches"), ("2026-*", date(2026, 1, 1), "matches"),
        (">2026-01-01", datetime(2026, 1, 2, tzinfo=UTC), "matches"),
        (">2026-01-01T00:00", datetime(2026, 1, 2, tzinfo=UTC), "unclear"),
        ("2026-01-01T01:00+01:00", datetime(2026, 1, 1, tzinfo=UTC), "matches"), (">2026-01-01", "2026-02-01", "matches"),
        (">2026-01-01", "soon", "unclear"), (date(2026, 1, 1), "2026-01-01", "matches"),
        ("12345678-1234-5678-1234-56781234ABCD", UUID("12345678-1234-5678-1234-56781234abcd"), "matches"),
        ("https://x.example", AnyUrl("https://x.example"), "matches"), (">60", timedelta(minutes=2), "matches"),
        (["a", ">5"], 6, "matches"), ({"a", "b"}, "b", "matches"), ("x", object(), "unclear"), ("abc", b"abc", "matches"),
        ("[URGENT]", "[URGENT]", "matches"),
    ],
)  # fmt: skip
def test_values_are_compared_by_what_they_mean(said: Any, value: Any, verdict: str) -> None:
    [rule] = checked_rules([Rule(args={"v": said})])
    assert rule.judge(_request(v=value), None).verdict == verdict


@pytest.mark.parametrize(
    "path, args, verdict",
    [
        ("items.cents", {"items": [Item(sku="a"), Item(sku="b", cents=9)]}, "matches"),
        ("items.cents", {"items": [{"cents": 1}, {"cents": 9}]}, "matches"),
        ("items.cents", {"items": [{"cents": 1}]}, "no"),
        ("items.*.cents", {"items": [{"cents": 1}, {"cents": 9}]}, "matches"),
        ("a.*", {"a": {"b": 1, "c": 9}}, "matches"),
        ("items.1.cents", {"items": [{"cents": 9}, {"cents": 1}]}, "no"),
        ("items.cents", {"items": '[{"cents": 9}]'}, "unclear"),
        ("items.cents", {"items": [{"Cents": 9}]}, "unclear"),
        ("payee.limit", {"payee": Payee("DE", 9)}, "matches"),
        ("payee.limit", {"payee": None}, "no"),
        ("a.b", {"a.b": 9}, "matches"),
        ("a.b.c", {"a": {"b.c": 9}}, "matches"),
        ("pair.first", {"pair": Pair(9, "x")}, "matches"),
        ("absent", {"there": 9}, "no"),
        ("größe", {"gro\u0308ße": 9}, "matches"),
        ("a", {"a": {"b": 9}}, "unclear"),
        ("a.b", {"a": 9}, "unclear"),
    ],
)
def test_what_stands_at_a_path(path: str, args: dict[str, Any], verdict: str) -> None:
    assert Rule(args={path: ">5"}).judge(_request(**args), None).verdict == verdict


def test_a_condition_that_cannot_be_said_of_what_is_missing_is_unclear() -> None:
    assert Rule(args={"payee.iban": "!DE*"}).judge(_request(payee=None), None).verdict == "unclear"
    assert Rule(args={"a": "!x", "b": 1}).judge(_request(b=2), None).verdict == "no"


@pytest.mark.parametrize("answer", [None, "yes", "", 0, 1, [], object()])
def test_a_function_that_answers_neither_yes_nor_no_holds_the_call(answer: Any) -> None:
    @tool(kind="pivot", needs_approval=lambda call: answer)
    def pay() -> str:
        return "paid"

    assert Runtime("memory:", tools=[pay]).test_rules("pay").decision == "approve"
    for decision in ("allow", "approve"):
        rule = Rule("send_wire", decision=decision, when=lambda request: answer)  # type: ignore[arg-type]
        assert (
            Runtime("memory:", tools=TOOLS, rules=[rule]).test_rules("send_wire", {"order": "1"}).decision == "approve"
        )


async def _later() -> bool:
    return False


@pytest.mark.filterwarnings("error")
def test_a_coroutine_is_no_answer() -> None:
    @tool(kind="pivot", needs_approval=lambda call: _later())  # type: ignore[call-overload, untyped-decorator]
    def pay() -> str:
        return "paid"

    assert Runtime("memory:", tools=[pay]).test_rules("pay").decision == "approve"
    with pytest.raises(BadRule, match="async"):
        Runtime("memory:", rules=[Rule(when=lambda_async)])  # type: ignore[arg-type]


async def lambda_async(request: Request) -> bool:
    return False


class _Asks:
    async def __call__(self, request: Request) -> bool:
        return False

    async def asks(self, request: Request) -> bool:
        return False


async def _yields(request: Request) -> Any:
    yield False


class _Awaitable:
    def __await__(self) -> Any:
        yield
        return False


@pytest.mark.parametrize(
    "when",
    [lambda_async, partial(lambda_async), partial(partial(_Asks())), _Asks(), _Asks().asks, _yields],
    ids=["def", "partial", "partial of an object", "object", "method", "generator"],
)
def test_a_condition_that_is_async_is_refused_when_the_runtime_is_built(when: Any) -> None:
    for decision in ("allow", "approve", "refuse"):
        with pytest.raises(BadRule, match="async"):
            Runtime("memory:", rules=[Rule(when=when, decision=decision)])  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "when", [lambda request: _later(), lambda request: _Awaitable(), wraps(lambda_async)(lambda *a: lambda_async(*a))]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_condition_that_would_have_to_be_awaited_lets_no_call_pass(when: Any, is_async: bool) -> None:
    ran: list[str] = []

    @tool(kind="pivot")
    def pay() -> str:
        ran.append("pay")
        return "paid"

    rules = [Rule("pay", when=when, decision="allow"), Rule("pay", decision="refuse")]

    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[pay], rules=rules) as rt:
            async with rt.run() as run:
                with pytest.raises(RuleRefused):
                    await run.call(pay)

    if is_async:
        asyncio.run(main())
    else:
        with Runtime("memory:", tools=[pay], rules=rules).run(), pytest.raises(RuleRefused):
            pay()
    assert ran == []


def test_of_an_unclear_rule_and_those_after_it_the_stricter_counts() -> None:
    unclear = Rule("buy", args={"free": ">5"}, decision="allow", why="unclear")
    for after, decision, needed in (
        (Rule("buy", decision="refuse"), "refuse", 0),
        (Rule("buy", approvers=2, roles=("x",)), "approve", 2),
        (Rule("buy", decision="allow"), "approve", 1),
    ):
        rt = Runtime("memory:", tools=TOOLS, rules=[unclear, after])
        found = rt.test_rules("buy", {"items": [], "free": "many"})
        assert (found.decision, found.needed) == (decision, needed)
    rt = Runtime("memory:", tools=TOOLS, rules=[Rule("buy", args={"free": ">5"}, decision="refuse")])
    assert rt.test_rules("buy", {"items": [], "free": "many"}).decision == "refuse"


def test_a_call_that_cannot_be_compared_is_held_and_one_of_a_refusing_rule_refused() -> None:
    rt = Runtime("memory:", tools=TOOLS, rules=[Rule("loose", decision="refuse", args={"order": ">5"})])
    with rt.run(), pytest.raises(RuleRefused):
        loose(order="many")
    rt = Runtime("memory:", tools=TOOLS, rules=[Rule("loose", args={"order": ">5"})])
    with pytest.raises(Held), rt.run():
        loose(order="many")
    with rt.run():
        assert loose(order="4") == "done"


def test_an_undeclared_tool_under_another_spelling_is_not_let_pass() -> None:
    rules = [Rule("delete-file", decision="refuse"), Rule(undeclared=True, decision="allow")]
    rt = Runtime("memory:", tools=TOOLS, rules=rules)
    done: list[str] = []
    with rt.run() as run:
        assert run.answer("Delete_File", {}, handler=lambda: done.append("x")).status == "refused"
        assert run.answer("another", {}, handler=lambda: done.append("y")).status == "done"
    assert done == ["y"]


def test_a_tool_that_lives_elsewhere_is_taken_at_its_word() -> None:
    rt = Runtime("memory:", tools=[declare("ship", kind="pivot")], rules=[Rule("ship", args={"weight": ">5"})])
    assert rt.test_rules("ship", {"weight": "9"}).decision == "approve"
    assert rt.test_rules("ship", {"weight": "heavy"}).decision == "approve"
    assert rt.test_rules("ship", {"weight": 1}).decision == "run"


def test_rules_in_a_file_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "amends.toml"
    for args in (
        'args = { cent = ">10000" }',
        "args = { cents = '=>10000' }",
        'args.cents = "gt 5"',
        'first_use = "no"',
        "agent = 5",
    ):
        file.write_text(f'url = "memory:"\n[[rules]]\ntool = "send_wire"\n{args}\n')
        with pytest.raises(BadRule) as bad:
            Runtime(tools=TOOLS)
        assert bad.value.origin == str(file)
        assert bad.value.rule == 1
    file.write_text('url = "memory:"\n[[rules]]\ntool = "buy"\nargs.payee.iban = "DE*"\n')
    rt = Runtime(tools=TOOLS)
    assert rt.test_rules("buy", {"items": [], "payee": {"iban": "DE1"}}).decision == "approve"
    file.write_text('url = "memory:"\n[rules]\ntool = "buy"\n')
    with pytest.raises(BadConfig):
        Runtime(tools=TOOLS)


@pytest.mark.parametrize("rules", [Rule("buy"), "buy", 5, {"tool": "buy"}])
def test_rules_are_a_list(rules: Any) -> None:
    with pytest.raises(BadConfig):
        Runtime("memory:", rules=rules)


def test_hours_that_no_time_is_in_are_refused_and_a_whole_day_is_one() -> None:
    with pytest.raises(BadRule):
        Runtime("memory:", rules=[Rule(hours="18:00-18:00")])
    day = Rule(hours="00:00-24:00")
    for hour in (0, 12, 23):
        assert day.matches(_request(), datetime(2026, 3, 6, hour, tzinfo=UTC))
    assert Rule(hours="18:00-24:00").matches(_request(), datetime(2026, 3, 6, 23, tzinfo=UTC))


ITEMS = {"items": [{"sku": "a", "cents": 1}, {"sku": "b", "cents": 9_000_000}]}


@pytest.mark.parametrize(
    "condition, args, allowed",
    [
        ({"items.cents": "<=100"}, ITEMS, False),
        ({"items": {"cents": "<=100"}}, ITEMS, False),
        ({"items.sku": "!b"}, ITEMS, False),
        ({"items.0.cents": "<=100"}, ITEMS, True),
        ({"items.cents": "<=100"}, {"items": [{"sku": "a", "cents": 1}, {"sku": "b", "cents": 2}]}, True),
        ({"items.sku": ["a", "b"]}, ITEMS, True),
        ({"items.cents": "<=100"}, {"items": []}, False),
        ({"free": "<=100"}, {"items": [], "free": [1, 9_000_000]}, False),
        ({"free": "<=100"}, {"items": [], "free": [1, [2, 9_000_000]]}, False),
        ({"free.*": "<=100"}, {"items": [], "free": {"a": 1, "b": 9_000_000}}, False),
        ({"free.cents": "<=100"}, {"items": [], "free": {"cents": 1, "Cents": 9_000_000}}, False),
        ({"free.a.b": "<=100"}, {"items": [], "free": {"a": {"b": 1}, "a.b": 9_000_000}}, False),
        ({"free.cents": "<=100"}, {"items": [], "free": {"cents": 1}}, True),
    ],
    ids=repr,
)
def test_a_rule_that_allows_needs_all_of_several_values(condition: Any, args: Any, allowed: bool) -> None:
    rules = [Rule("buy", args=condition, decision="allow"), Rule("buy")]
    decided = Runtime("memory:", tools=TOOLS, rules=rules).test_rules("buy", args).decision
    assert decided == ("run" if allowed else "approve")


@dataclass
class Account:
    iban: str


@dataclass
class Card:
    number: str


Lower = Annotated[str, StringConstraints(to_lower=True)]


@tool(kind="pivot")
def pay_out(
    to: Account | Card,
    by_colour: Mapping[Colour, int] = {},
    by_year: Mapping[int, int] = {},
    both: tuple[Account, Card] = (Account(""), Card("")),
    code: Lower = "",
    day: date = date(2026, 1, 1),
    lasts: timedelta = timedelta(0),
) -> str:
    return "paid"


@pytest.mark.parametrize(
    "args, meant",
    [({"by_colour.gren": ">5"}, ""), ({"by_colour.blu": ">5"}, "blue"), ({"by_year.this": ">5"}, ""),
     ({"both.2.iban": "DE*"}, ""), ({"both.0.number": "4*"}, ""), ({"code": "DE"}, ""), ({"code": "DE*"}, ""),
     ({"day": "1767225600"}, "")],
    ids=repr,
)  # fmt: skip
def test_what_its_type_writes_otherwise_is_refused(args: Any, meant: str) -> None:
    with pytest.raises(BadRule, match="pay_out") as bad:
        Runtime("memory:", tools=[pay_out], rules=[Rule("pay_out", args=args)])
    assert bad.value.meant == meant


@pytest.mark.parametrize(
    "args, given, decided",
    [
        ({"by_colour.RED": ">5"}, {"by_colour": {"red": 9}}, "approve"),
        ({"by_colour.red": ">5"}, {"by_colour": {"red": 9}}, "approve"),
        ({"by_colour.blue": ">5"}, {"by_colour": {"red": 9}}, "run"),
        ({"by_year.2026": ">5"}, {"by_year": {2026: 9}}, "approve"),
        ({"both.0.iban": "DE*"}, {"both": (Account("DE1"), Card("4"))}, "approve"),
        ({"both.-1.number": "4*"}, {"both": (Account("DE1"), Card("4"))}, "approve"),
        ({"code": "de*"}, {"code": "DE1"}, "approve"),
        ({"lasts": "PT1H"}, {"lasts": timedelta(hours=1)}, "approve"),
        ({"lasts": "3600"}, {"lasts": timedelta(hours=1)}, "approve"),
        ({"lasts": "!PT1H"}, {"lasts": timedelta(hours=1)}, "run"),
        ({"to.iban": "DE*"}, {"to": Account("DE1")}, "approve"),
        ({"to.iban": "DE*"}, {"to": Card("4")}, "run"),
        ({"to.iban": "!DE*"}, {"to": Card("4")}, "approve"),
    ],
    ids=repr,
)
def test_values_inside_classes_dicts_and_tuples_are_found(args: Any, given: Any, decided: str) -> None:
    rt = Runtime("memory:", tools=[pay_out], rules=[Rule("pay_out", args=args)])
    assert _status(rt, "pay_out", {"to": Account("x"), **given}) == {"approve": "held", "run": "done"}[decided]


def _status(rt: Runtime, name: str, args: dict[str, Any], agent: str | None = None) -> str:
    status = ""
    with suppress(Held), rt.run(agent=agent) as run:
        status = run.answer(name, args).status
    return status


@pytest.mark.parametrize(
    "name", ["send_wire()", "^send_wire$", "'send_wire'", "(send_wire)", "{send_wire,buy}", "send_wire + buy", "re:buy"]
)
def test_a_name_in_another_notation_is_refused(name: str) -> None:
    with pytest.raises(BadRule):
        Runtime("memory:", tools=TOOLS, rules=[Rule(name)])


def test_an_agent_under_another_spelling_is_not_let_pass() -> None:
    rt = Runtime("memory:", tools=TOOLS, rules=[Rule("send_wire", agent="Shop-Bot")])
    for agent, status in (("shop_bot", "held"), ("Shop-Bot", "held"), ("another", "done")):
        assert _status(rt, "send_wire", {"order": agent}, agent) == status


def test_a_rule_that_takes_something_out_of_the_arguments_hides_it_from_nobody() -> None:
    def taking(request: Request) -> bool:
        request.args.pop("cents")  # type: ignore[attr-defined]
        return False

    done: list[int] = []

    @tool(kind="pivot")
    def pay(cents: int) -> None:
        done.append(cents)

    rt = Runtime("memory:", tools=[pay], rules=[Rule("pay", when=taking), Rule("pay", args={"cents": ">5"})])
    assert _status(rt, "pay", {"cents": 3}) == "done"
    assert _status(rt, "pay", {"cents": 9}) == "held"
    assert done == [3]


@pytest.mark.parametrize("expires", [float("inf"), 1e300, float("nan"), 0])
def test_a_request_ends_at_a_time_that_can_be_written_down(expires: float) -> None:
    with pytest.raises(BadRule, match="seconds"):
        Runtime("memory:", rules=[Rule(expires=expires)])
    rt = Runtime("memory:")
    with pytest.raises(UsageError, match="hundred years"):
        rt.delegate(by="anna", to="bob", until=expires, why="lunch")


def test_an_unknown_zone_is_refused_also_where_nothing_asks_for_the_time() -> None:
    with pytest.raises(BadRule):
        Runtime("memory:", rules=[Rule(tz="Europe/Berln")])


def test_a_mistyped_argument_of_an_undeclared_tool_is_not_let_pass() -> None:
    rules = [Rule("foreign", args={"cent": ">5"}, decision="refuse"), Rule(undeclared=True, decision="allow")]
    rt = Runtime("memory:", tools=TOOLS, rules=rules)
    done: list[str] = []
    with rt.run() as run:
        assert run.answer("foreign", {"cents": 9}, handler=lambda cents: done.append("x")).status == "refused"
        assert run.answer("foreign", {"other": 9}, handler=lambda other: done.append("y")).status == "done"
    assert done == ["y"]
