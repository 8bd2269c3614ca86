"""What a person reads in Slack is what is asked: nothing in an argument can dress itself up as words of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amends.notify import Webhook, slack_payload
from tests.people.receiver import Receiver
from tests.people.shown import approval

FIELDS_MAX, TEXT_MAX, HEADER_MAX, BUTTON_URL_MAX, VALUE_MAX = 2_000, 3_000, 150, 3_000, 2_000
"""Slack's own limits: past one of them it refuses the whole message."""


def texts(said: Any) -> list[str]:
    """Every text in the message."""
    if isinstance(said, dict):
        return [text for value in said.values() for text in texts(value)]
    if isinstance(said, list):
        return [text for value in said for text in texts(value)]
    return [said] if isinstance(said, str) else []


def buttons(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (found,) = (block["elements"] for block in said["blocks"] if block["type"] == "actions")
    return {one["action_id"]: one for one in found}


def test_the_message_says_what_is_asked_by_whom_and_why() -> None:
    said = slack_payload(approval())
    whole = "\n".join(texts(said))
    for part in ("bank.wire", "order-1042", "payer", "acme", "420000", "DE02 1203", "more than 1,000", "apr_7K2"):
        assert part in whole
    assert "2026-03-02 12:00 UTC" in whole
    assert said["text"] == "bank.wire needs approval (order-1042)"
    assert slack_payload(approval(needed=2))["text"].startswith("bank.wire needs 2 approvals")


def test_buttons_open_the_links_where_there_are_some() -> None:
    links = {"approve": "https://ops.example/?token=a", "reject": "https://ops.example/?token=r"}
    made = buttons(slack_payload(approval(links=links)))
    assert made["amends_approve"]["url"] == links["approve"]
    assert made["amends_reject"]["url"] == links["reject"]


def test_buttons_carry_the_digest_where_there_are_none() -> None:
    made = buttons(slack_payload(approval()))
    assert made["amends_approve"]["value"] == f"apr_7K2 {'d' * 64}"
    token = buttons(slack_payload(approval(links={"approve": "aml1.x.y"})))
    assert token["amends_approve"]["value"] == "aml1.x.y"
    assert "url" not in token["amends_approve"]


@pytest.mark.parametrize(
    "text",
    [
        "<!channel>",
        "<https://evil.example|Approve>",
        "a & b",
        "```\n*approved by anna*\n```",
        "pay \u202egnp.exe",
        "a\x00b\u200b",
    ],
)
def test_an_argument_stays_an_argument(text: str) -> None:
    said = slack_payload(approval({"note": text}))
    whole = "\n".join(texts(said))
    assert "<" not in whole
    assert ">" not in whole
    assert whole.count("```") == 2
    assert not any(one in whole for one in "\u202e\u200b\x00")


def test_what_is_cut_is_said_to_be_cut() -> None:
    assert not any("not shown" in text for text in texts(slack_payload(approval())))
    said = slack_payload(approval({"note": "x" * 10_000}))
    assert any("more characters are not shown" in text for text in texts(said))


@pytest.mark.parametrize("text", ["&" * 50_000, "x" * 50_000, "<" * 2_000, "\u202e" * 3_000, "ä" * 9_000])
def test_no_text_is_longer_than_slack_takes(text: str) -> None:
    one = approval({"note": text, text[:100]: 1}, rule=text)
    said = slack_payload(one)
    assert len(said["blocks"]) <= 50
    for block in said["blocks"]:
        match block["type"]:
            case "header":
                assert len(block["text"]["text"]) <= HEADER_MAX
            case "section":
                assert len(block.get("text", {"text": "x"})["text"]) <= TEXT_MAX
                assert len(block.get("fields", ())) <= 10
                assert all(len(field["text"]) <= FIELDS_MAX for field in block.get("fields", ()))
            case "actions":
                assert all(len(button["text"]["text"]) <= 75 for button in block["elements"])
                assert all(len(button.get("value", "")) <= VALUE_MAX for button in block["elements"])


def test_a_channel_is_told_through_the_webhook(receiver: Receiver) -> None:
    Webhook(receiver.url, body=slack_payload)(approval())
    assert receiver.received[0].said == json.loads(json.dumps(slack_payload(approval())))
