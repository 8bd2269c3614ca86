"""A hidden value that comes back encoded is hidden too: in the ledger, reports, logs and what a model is told."""

from __future__ import annotations

import html
import json
import logging
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unicodedata import normalize
from urllib.parse import quote, quote_plus

import pytest

from amends import Absent, Runtime, Unknown, tool
from amends.encoding.encoded_secrets import encoded_spans
from amends.encoding.redaction import Redactor, spellings
from amends.encoding.secret import MASK, redaction_rules

CARD = "sk-live/Grüße+4242 4242"
KEY = "k" * 32
ENCODINGS: dict[str, Callable[[str], str]] = {
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: b64encode(text.encode()).decode().rstrip("="),
    "base64 for urls": lambda text: urlsafe_b64encode(text.encode()).decode(),
    "basic auth": lambda text: "Basic " + b64encode(f"user:{text}".encode()).decode(),
    "second alignment": lambda text: b64encode(f"u:{text}!".encode()).decode(),
    "third alignment": lambda text: b64encode(f"me:{text}!!".encode()).decode(),
    "in a path": lambda text: "https://x.example/v1/" + urlsafe_b64encode(text.encode()).decode(),
    "wrapped": lambda text: encodebytes(b"-" * 70 + text.encode() + b"-" * 70).decode(),
    "utf-16": lambda text: b64encode(text.encode("utf-16-le")).decode(),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "hex with colons": lambda text: text.encode().hex(":"),
    "hex with spaces": lambda text: text.encode().hex(" ").upper(),
    "hex in hex": lambda text: f"0x{('id' + text + 'z').encode().hex()}",
    "url": lambda text: quote(text, safe=""),
    "url, some letters": quote,
    "form": quote_plus,
    "url, every letter": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "url twice": lambda text: quote(quote(text, safe=""), safe=""),
    "json": json.dumps,
    "json, every letter": lambda text: "".join(f"\\u{ord(letter):04x}" for letter in text),
    "python bytes": lambda text: repr(text.encode()),
    "html": html.escape,
    "html numbers": lambda text: "".join(f"&#{ord(letter)};" for letter in text),
    "html hex numbers": lambda text: "".join(f"&#x{ord(letter):X};" for letter in text),
    "base64 twice": lambda text: b64encode(b64encode(f"a{text}".encode())).decode(),
    "base64 of a form": lambda text: b64encode(f"card={quote_plus(text)}".encode()).decode(),
    "decomposed": lambda text: normalize("NFD", text),
}
named = pytest.mark.parametrize("name", ENCODINGS)


@named
@pytest.mark.parametrize("secret", [CARD, "hunter2-secret", "4242424242424242", "p1n9"])
def test_no_text_keeps_an_encoded_secret(name: str, secret: str) -> None:
    redactor = Redactor(key=KEY.encode())
    _, known = redactor.hide({"card": secret}, ("", "t"), places=("card",), path="args")
    encoded = ENCODINGS[name](secret)
    shown = redactor.scrub(f'it said "{encoded}" and went on', known)
    assert encoded not in shown
    assert MASK in shown
    assert shown.endswith("and went on")
    assert redactor.holds(encoded, known)


@named
def test_a_pattern_finds_what_is_encoded(name: str) -> None:
    redactor = Redactor(redaction_rules([r"re:\d{16}"]))
    encoded = ENCODINGS[name]("card: 4242424242424242!")
    assert "4242424242424242" not in redactor.scrub(encoded)
    assert MASK in redactor.scrub(encoded)


@named
def test_nothing_that_is_kept_or_said_has_it(name: str, caplog: pytest.LogCaptureFixture) -> None:
    encoded = ENCODINGS[name](CARD)
    mode = ["result"]

    @tool(redact="card", key="order")
    def charge(order: str, card: str) -> dict[str, Any]:
        if mode[0] == "error":
            raise ValueError(f"the bank said {encoded}")
        if mode[0] == "doubt":
            raise TimeoutError(f"no answer to {encoded}")
        return {"order": order, "echo": encoded, "list": [encoded], encoded: 1, "raw": CARD.encode()}

    @charge.compensate(retry=1)
    def refund(order: str) -> None:
        raise ValueError(f"cannot refund {encoded}")

    @charge.probe
    def find(order: str) -> Any:
        return Unknown(f"the bank said {encoded}") if mode[0] == "doubt" else Absent()

    rt = Runtime("memory:", tools=[charge], secret_key=KEY, wait=0.05)
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for number, way in enumerate(("result", "error", "doubt")):
            mode[0] = way
            try:
                with rt.run(f"r{number}") as run:
                    said.append(run.answer("charge", {"order": str(number), "card": CARD}).text)
                    said.append(run.answer("charge", {"order": str(number), "card": CARD}).text)
                    raise RuntimeError(f"the program knows {encoded}")
            except Exception:
                pass
            report = rt.report(f"r{number}")
            said += [str(report), json.dumps(report.to_dict(), default=str), *map(str, report.run.causes)]
            said += [str(event) for event in rt.events(f"r{number}")]
    said.append(caplog.text)
    store = rt._host.store
    said += [str(row) for table in ("runs", "calls") for row in getattr(store, table).values()]
    for text in said:
        assert encoded not in text
        assert json.dumps(encoded)[1:-1] not in text


def test_what_is_not_hidden_stays_as_it_is() -> None:
    redactor = Redactor(key=KEY.encode())
    _, known = redactor.hide({"pin": "1234", "word": "information"}, ("", "t"), places=("pin", "word"), path="args")
    for text in (
        "order 8412345 of 2026-11-15 at 12:34",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
        "https://example.org/a%20b?x=1&amp;y=2",
        "the transformation of the organisation",
        "%zz &nosuch; \\q \\u12 &#9999999;",
    ):
        assert redactor.scrub(text, known) == text


def test_only_the_escaped_part_of_a_text_is_masked() -> None:
    redactor = Redactor(key=KEY.encode())
    _, known = redactor.hide({"card": "a secret/word"}, ("", "t"), places=("card",), path="args")
    shown = redactor.scrub("https://x.example/?n=%41&card=a%20secret/word&m=%42", known)
    assert shown.startswith("https://x.example/?n=%41&card=")
    assert shown.endswith("&m=%42")
    assert "secret" not in shown


def test_where_nothing_is_hidden_nothing_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    import amends.encoding.redaction
    import amends.encoding.secret

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is hidden")

    monkeypatch.setattr(amends.encoding.secret, "encoded_spans", never)
    monkeypatch.setattr(amends.encoding.redaction, "encoded_spans", never)

    @tool
    def charge(order: str) -> str:
        return b64encode(order.encode()).decode()

    charge.compensate(lambda: None)
    rt = Runtime("memory:", tools=[charge])
    with pytest.raises(KeyError), rt.run("r"):
        charge(order="1" * 100)
        raise KeyError("x" * 100)


def test_spans_are_apart_and_inside_the_text() -> None:
    known = list(spellings("hunter2-secret"))
    text = "".join(ENCODINGS[name]("hunter2-secret") + " " for name in ENCODINGS if name != "decomposed")
    spans = encoded_spans(text, known, ())
    assert spans
    assert all(0 <= start < end <= len(text) for start, end, _ in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
