"""The digests of yesterday: a ledger outlives the code that wrote it, so a key must never come out otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from amends import Request, tool
from amends.encoding.canonical import canonical, digest, encode
from amends.engine.keys import compensation_key, provider_key
from amends.engine.session import Ask, Session, ask_for
from amends.ledger.leases import Lease
from amends.ledger.rows import CallRow
from amends.tools.declarations import specs_of


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Place:
    street: str
    number: int


def undo() -> None: ...


@tool(compensate=undo)
def pay(to: str, amount: float, currency: str = "usd", order_id: str = "") -> dict[str, bool]:
    return {"ok": True}


@tool(compensate=undo, key="order_id", version="2")
def ship(order_id: str, weight: Decimal, place: Place, note: str | None = None) -> None: ...


@tool(compensate=undo, ignore=["note"], scope="ledger")
def mail(to: list[str], text: str, note: str = "") -> None: ...


def of_week(request: Request) -> object:
    return (request.tool, request.args["day"].isocalendar()[:2])


@tool(kind="pivot", key=of_week)
def close(day: date, flags: dict[str, Any]) -> None: ...


@tool(compensate=undo, key=["id"], ignore="rest")
def touch(id: UUID, at: datetime, colour: Colour) -> None: ...


SPECS = specs_of([pay, ship, mail, close, touch], order="strict")


def asked(name: str, again: str | None = None, tenant: str = "", **args: Any) -> Ask:
    session = Session(
        uid="run_2", id="r", root="run_1", tenant=tenant, agent="", principal="", generation=1,
        lease=Lease("run_1", "me", 1, 30.0, 0.0), specs=SPECS, order="strict", wait_s=1.0, new_id=lambda prefix: prefix,
    )  # fmt: skip
    return ask_for(session, SPECS[name], SPECS[name].bind((), args), again=again)


ASKS: dict[str, Ask] = {
    "plain": asked("pay", to="a@example.com", amount=12.5, currency="usd", order_id="ord-17"),
    "whole": asked("pay", to="a@example.com", amount=3),
    "again": asked("pay", again="he asked twice", to="a@example.com", amount=0.1, tenant="acme"),
    "letters": asked("pay", to='Jose\u0301 \u2028 \U0001f600 \x7f " \\ \n', amount=-1e300),
    "key": asked("ship", order_id="$o", weight=Decimal("1.50"), place=Place("a/b", 2**70)),
    "ignored": asked("mail", to=["b", "a"], text="", note="n"),
    "rule": asked("close", day=date(2026, 1, 1), flags={"$x": 1}),
    "nested": asked(
        "close", day=date(2026, 1, 1), flags={"b": [1, 2.0, None, True, (1, {3})], "a": {1: b"x", "y": -0.0}}
    ),
    "rest": asked("touch", id=UUID(int=7), at=datetime(2026, 1, 1, 2, tzinfo=UTC), colour="red"),
}


def written(name: str) -> list[str]:
    ask = ASKS[name]
    row = CallRow(
        id="c", seq=1, run="run_2", root="run_1", run_id="r", tenant="", tool="t", version="1", kind="pivot",
        key=ask.key, generation=2, ident=ask.ident, digest=ask.digest, args=ask.text, state="started",
        created_at=0.0, created_epoch=1, asked_epoch=1,
    )  # fmt: skip
    return [ask.key, ask.ident, ask.digest, digest(ask.text), provider_key(row), compensation_key(row)]


PINNED: dict[str, list[str]] = {
    "plain": [
        "3667a76a6bc83e13dc38",
        "6308caeebc302ecbe70f",
        "ecea5edc13d4384bc3f8",
        "2481d7ef29a1911c0104",
        "01962cae2b77074d87db",
        "7092f39a8fffdccb7cf6",
    ],
    "whole": [
        "699a0bee6cb116cfc2bb",
        "473a6335bd0bd3ba323f",
        "bd79738650187e3acda9",
        "39adbb0af79f3c189ee3",
        "2137e34fa01365409c3b",
        "67469d8929b2f750660a",
    ],
    "again": [
        "e505c27732db3ab55109",
        "146d4035368c22c22ac8",
        "41df964e2cb5bb999a03",
        "e68b9ee2500038a950e9",
        "60cb913226bab52c695e",
        "2ea3807133bb8a3d42d4",
    ],
    "letters": [
        "133c5c59ae1bd0cab1f2",
        "d898b69e20c55895eee1",
        "f3be56410522c19806a4",
        "8a2bc7e005d4af23aabd",
        "a3f7b96e8711fdba0a49",
        "fff4b6e45c9cd7bd7c46",
    ],
    "key": [
        "26ca86d3a1a0f59ae3b5",
        "70fc1a79d9b77b2333b1",
        "2c85d3db8c1f9a4bf066",
        "a3bdf71a9f8b0fe5ff2e",
        "1d01807889952e0b8101",
        "ae022947c30cb13efab0",
    ],
    "ignored": [
        "0daaa7cad179566588a7",
        "dee6743ea7d9c40bb88e",
        "728e2c807d5af26062ca",
        "90e64b6501aeea525a49",
        "8fb4b0bf282015162841",
        "c814a34ae2a7aee6d755",
    ],
    "rule": [
        "7798a64603caecc6a8b9",
        "ef36638a21f956271fc9",
        "7b3feed53a52df078d59",
        "e2cf1a5115d39a39f60d",
        "c705be40a79520b52387",
        "d05b5ce693d3d441ff47",
    ],
    "nested": [
        "7798a64603caecc6a8b9",
        "c7306dfffb7e9ff28170",
        "cac116c3ab75c575673c",
        "d1afa4af08ba113c2bac",
        "c705be40a79520b52387",
        "d05b5ce693d3d441ff47",
    ],
    "rest": [
        "8c79105f4e0274de997c",
        "b881f9081c8f5416648f",
        "4b7df573afffe5e10de8",
        "96867b654fa0022cf5b8",
        "5796655afe0963f29992",
        "992d20ae41732f320849",
    ],
}


@pytest.mark.parametrize("name", list(ASKS))
def test_a_request_has_the_digests_that_it_always_had(name: str) -> None:
    assert [one[:20] for one in written(name)] == PINNED[name]


def test_a_digest_is_what_it_always_was() -> None:
    assert digest("call", "", "run_1", "pay", '{"a":1}', "") == (
        "2d2b058be78a24a9ded8c540ae73a33b8b0935beba42420611d1adf6b987f45e"
    )
    assert digest("x", b"x", 1, None, True, "é\ud800") == (
        "7697d357f357c3190d92968e10a4e715f26e74343f98d2d759ff51c497dc29f6"
    )
    assert digest() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_text_is_what_it_always_was() -> None:
    value = {"b": "é", "a": 12.5, "c": [1, 2.0, 10**18, None, False], "d": {"$x": 1}, "e": {}, "f": "e\u0301"}
    assert canonical(value) == CANONICAL
    assert encode(value, path="args") == ENCODED


CANONICAL = (
    '{"a":{"$number":"125e-1"},"b":"é","c":[1,2,1000000000000000000,null,false],"d":{"$map":[["$x",1]]},"e":{},"f":"é"}'
)
ENCODED = '{"b":"\xe9","a":12.5,"c":[1,2.0,{"$int":"1000000000000000000"},null,false],"d":{"$map":[["$x",1]]},"e":{},"f":"e\u0301"}'
