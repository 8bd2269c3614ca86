"""What is asked for, and who asks, may be hostile: notices stay exact for programs, and honest for people."""

from __future__ import annotations

import json
import re
import unicodedata
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amends.errors import BadConfig, LinkVoid
from amends.links import verify
from amends.model import Approval
from amends.notify import TOLERANCE_S, Webhook, card, is_genuine, payload, signature, slack_payload
from tests.people.receiver import Receiver
from tests.people.shown import approval
from tests.surface.test_visible import HOSTILE, PAIRS

SECRET = "a secret of the receiver"
AT = 1_700_000_000
BODY = b'{"a": 1}'


def genuine(**changes: Any) -> dict[str, Any]:
    headers = {"webhook-id": "apr_1", "webhook-timestamp": str(AT)}
    headers["webhook-signature"] = signature("apr_1", AT, BODY, SECRET)
    return {**headers, **changes}


# ---- for programs -------------------------------------------------------------------------


def args_of(value: Any) -> Any:
    return payload(approval({"x": value}))["data"]["call"]["args"]


@pytest.mark.parametrize("one, other", PAIRS, ids=range(len(PAIRS)))
def test_two_different_arguments_are_never_the_same_payload(one: Any, other: Any) -> None:
    if isinstance(one, dict) and isinstance(other, dict) and one == other:
        return  # the order of keys is no difference
    whole = [json.dumps(payload(approval({"x": value}))) for value in (one, other)]
    assert whole[0] != whole[1]


def test_keys_that_are_no_texts_stay_apart_and_stay_keys(receiver: Receiver) -> None:
    value = {1: "a", "1": "b", (1, 2): "c", None: "d", "null": "e", b"1": "f", Decimal(2): "g", "2": "h"}
    Webhook(receiver.url)(approval({"x": value}))
    said = receiver.received[0].said["data"]["call"]["args"]["x"]["$map"]
    assert len(said) == len(value)
    assert [1, "a"] in said
    assert ["1", "b"] in said
    assert [{"$tuple": [1, 2]}, "c"] in said
    assert args_of({"$map": [[1, "a"]]}) != args_of({1: "a"}), "what only looks like a tag is written as what it is"


def test_arguments_whose_own_names_are_no_texts_stay_apart() -> None:
    said = payload(approval({1: "a", "1": "b"}))["data"]["call"]["args"]  # type: ignore[dict-item]
    assert said == {"$map": [[1, "a"], ["1", "b"]]}


def test_what_cannot_be_written_down_is_told_all_the_same(receiver: Receiver) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no")

    Webhook(receiver.url)(approval({"x": Odd()}))
    assert "$shown" in receiver.received[0].said["data"]["call"]["args"]


def test_the_bytes_of_a_webhook_are_ascii_and_its_data_exact(receiver: Receiver) -> None:
    Webhook(receiver.url)(approval(dict.fromkeys(HOSTILE, "".join(HOSTILE).replace("\ud800", ""))))
    (got,) = receiver.received
    assert got.body.isascii()
    assert not any(one < 0x20 or one == 0x7F for one in got.body)


# ---- for people ---------------------------------------------------------------------------


def everywhere(text: str) -> Approval:
    """An approval with this text in every field of it."""
    from dataclasses import replace

    one = approval({text: text, "note": text, "deep": [{text: [text]}]}, rule=text)
    call = replace(one.call, run_id=text, tool=text, tenant=text, agent=text, principal=text)
    return replace(one, call=call)


def strings(said: Any) -> list[str]:
    if isinstance(said, dict):
        return [text for value in said.values() for text in strings(value)]
    if isinstance(said, list):
        return [text for value in said for text in strings(value)]
    return [said] if isinstance(said, str) else []


def assert_honest(text: str) -> None:
    assert not [one for one in text if one != "\n" and (unicodedata.category(one)[0] in "CZ" and one != " ")]


@given(st.text() | st.sampled_from(HOSTILE))
@example(":À")
@example("-À")
@example("a:")
def test_a_card_has_one_line_for_each_thing_and_begins_each_itself(text: str) -> None:
    lines = card(everywhere(text))
    for line in lines:
        assert "\n" not in line
        assert_honest(line)
    labels = [re.match(r"argument(?= )|[a-z ]+(?=:)", line) for line in lines[1:]]
    names = [found[0] for found in labels if found is not None]
    assert len(names) == len(lines) - 1
    assert names.count("argument") == len(everywhere(text).call.args)
    assert [name for name in names if name != "argument" and names.count(name) > 1] == []


@given(st.text() | st.sampled_from([*HOSTILE, "<!channel>", "`*x*`", "```", ":boom:", "<https://e.example|x>", "&lt;"]))
def test_no_field_of_slack_is_markup_or_hides_something(text: str) -> None:
    said = slack_payload(everywhere(text))
    for found in strings(said):
        assert_honest(found)
        assert "<" not in found
        assert ">" not in found
    for block in said["blocks"]:
        for one in [block.get("text"), *block.get("fields", ()), *block.get("elements", ())]:
            if one and one["type"] == "mrkdwn":
                outside = re.sub(r"```\n.*?\n```|`[^`]*`", "", one["text"], flags=re.DOTALL)
                outside = outside.removeprefix("*").partition("*")[0] + outside.removeprefix("*").partition("*")[2]
                assert re.fullmatch(r"[A-Za-z ,.:·\n\d]*", outside), one["text"]


@pytest.mark.parametrize("where", ["args", "run", "tool", "why"])
def test_slack_offers_no_decision_over_what_is_cut(where: str) -> None:
    from dataclasses import replace

    long = "y" * 4_000
    one = approval({"note": long if where == "args" else "x"}, rule=long if where == "why" else "x")
    one = replace(
        one,
        call=replace(one.call, run_id=long if where == "run" else "r", tool=long if where == "tool" else "t"),
        links={"approve": "https://ops.example/?token=a", "reject": "https://ops.example/?token=r"},
    )
    said = slack_payload(one)
    assert not [block for block in said["blocks"] if block["type"] == "actions"]
    whole = "\n".join(strings(said))
    assert "token=" not in whole
    assert "not shown" in whole
    assert one.digest in whole
    assert one.id in whole


# ---- who sent it --------------------------------------------------------------------------


def check(headers: Any, body: Any = BODY, *, now: Any = AT) -> bool:
    return is_genuine(headers, body, secret=SECRET, now=now)


def test_what_is_genuine_is_so_however_a_framework_hands_it_over() -> None:
    assert check(genuine())
    assert check({name.title(): value for name, value in genuine().items()})
    assert check([(name.encode(), value.encode()) for name, value in genuine().items()]), "as ASGI has it"
    assert check(genuine(**{"webhook-signature": f"v1,x v2,y {genuine()['webhook-signature']}"}))
    assert check(genuine(), BODY.decode())
    assert check(genuine(), bytearray(BODY))
    assert is_genuine(genuine(), BODY, secret=["another", SECRET], now=AT)


@pytest.mark.parametrize(
    "changes",
    [
        {"webhook-signature": "v1,ä"},
        {"webhook-signature": "\ud800"},
        {"webhook-signature": "v1," + "x" * 10_000_000},
        {"webhook-signature": "v1,x " * 100_000},
        {"webhook-signature": None},
        {"webhook-signature": ["v1,x"]},
        {"webhook-signature": 7},
        {"webhook-signature": b"\xff\xfe"},
        {"webhook-id": "\ud800"},
        {"webhook-id": "ä"},
        {"webhook-id": None},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "nan"},
        {"webhook-timestamp": "inf"},
        {"webhook-timestamp": "1e400"},
        {"webhook-timestamp": "9" * 5_000},
        {"webhook-timestamp": f" {AT}"},
        {"webhook-timestamp": f"0{AT}"},
        {"webhook-timestamp": f"+{AT}"},
        {"webhook-timestamp": f"{AT}.5"},
        {"webhook-timestamp": "١٧٠٠٠٠٠٠٠٠"},
        {"webhook-timestamp": "²"},
        {"webhook-timestamp": AT},
        {"webhook-timestamp": None},
        {"Webhook-Id": "apr_2"},
        {"WEBHOOK-TIMESTAMP": "1"},
        {"Webhook-Signature": "v1,x"},
    ],
    ids=lambda changes: ascii(changes)[:50],
)
def test_hostile_headers_are_a_no_and_no_error(changes: dict[str, Any]) -> None:
    assert check(genuine(**changes)) is False


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_that_is_missing_is_a_no(name: str) -> None:
    assert check({one: value for one, value in genuine().items() if one != name}) is False


@pytest.mark.parametrize(
    "headers", [None, 7, "x", b"x", [], [1], [(1, 2, 3)], [("a",)], {1: 2}, {None: None}, object()]
)
def test_headers_that_are_none_are_a_no(headers: Any) -> None:
    assert check(headers) is False


@pytest.mark.parametrize("body", [None, 7, "\ud800", [1], {}, b"", BODY + b" "])
def test_another_body_is_a_no(body: Any) -> None:
    assert check(genuine(), body) is False


@pytest.mark.parametrize("now", [float("nan"), float("inf"), -1.0, AT + TOLERANCE_S + 1, AT - TOLERANCE_S - 1])
def test_another_time_is_a_no(now: float) -> None:
    assert check(genuine(), now=now) is False


@given(st.dictionaries(st.text() | st.sampled_from(list(genuine())), st.text() | st.binary() | st.none()), st.binary())
def test_no_headers_at_all_raise(headers: Any, body: bytes) -> None:
    assert check(headers, body) is False


@pytest.mark.parametrize(
    "secret", ["", "whsec_", [""], [SECRET, ""], [None], b"bytes", "whsec_no base64", None, 7, "\ud800"]
)
def test_a_secret_that_is_none_is_a_mistake_of_the_receiver(secret: Any) -> None:
    with pytest.raises(BadConfig):
        is_genuine(genuine(), BODY, secret=secret, now=AT)


def test_no_secrets_let_nothing_through() -> None:
    assert is_genuine(genuine(), BODY, secret=[], now=AT) is False


@pytest.mark.parametrize("token", [None, 7, b"aml1.x.y", "", ".", "aml1.", "aml1..", "aml1.ä.ä", "\ud800", "x" * 10**6])
def test_a_token_that_is_none_is_void(token: Any) -> None:
    with pytest.raises(LinkVoid):
        verify(token, secret="a-long-secret-of-links")
