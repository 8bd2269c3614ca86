"""A webhook arrives signed, is sent again while that can help, and shows nobody its URL or its secret."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from amends import notify
from amends.errors import BadConfig, NotDelivered, UsageError
from amends.notify import Webhook, is_genuine, signature
from tests.people.receiver import Receiver
from tests.people.shown import approval

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "PAUSE_S", 0.001)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example that its libraries are tested with."""
    mark = signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', SECRET)
    assert mark == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_notice_arrives_once_with_what_is_asked(receiver: Receiver) -> None:
    one = approval(links={"approve": "https://ops.example/?token=x"})
    Webhook(receiver.url + "hook?a=1", headers={"authorization": "Bearer x"})(one)
    (got,) = receiver.received
    assert (got.method, got.path) == ("POST", "/hook?a=1")
    assert got.headers["authorization"] == "Bearer x"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["webhook-id"] == "apr_7K2"
    assert "webhook-signature" not in got.headers
    assert got.said["type"] == "approval.needed"
    data = got.said["data"]
    assert data["approval"] == "apr_7K2"
    assert data["digest"] == one.digest
    assert data["links"] == {"approve": "https://ops.example/?token=x"}
    assert data["why"] == "more than 1,000"
    assert data["call"]["args"] == {"iban": "DE02 1203", "cents": 420_000}
    assert (data["call"]["run"], data["call"]["tool"], data["call"]["tenant"]) == ("order-1042", "bank.wire", "acme")


@pytest.mark.parametrize("secret", [SECRET, "plain words as they are written"])
def test_whoever_receives_it_can_prove_who_sent_it(receiver: Receiver, secret: str) -> None:
    Webhook(receiver.url, secret=secret)(approval())
    (got,) = receiver.received
    assert is_genuine(got.headers, got.body, secret=secret)
    assert is_genuine({name.title(): value for name, value in got.headers.items()}, got.body, secret=["x", secret])
    assert not is_genuine(got.headers, got.body + b" ", secret=secret)
    assert not is_genuine(got.headers, got.body, secret="another")
    assert not is_genuine(got.headers | {"webhook-id": "apr_other"}, got.body, secret=secret)
    assert not is_genuine(got.headers | {"webhook-signature": ""}, got.body, secret=secret)
    assert not is_genuine(got.headers, got.body, secret=secret, now=time.time() + notify.TOLERANCE_S + 2)
    assert not is_genuine(got.headers, got.body, secret=secret, now=time.time() - notify.TOLERANCE_S - 2)
    for wrong in ("", "soon", "-5", "٣", str(int(got.headers["webhook-timestamp"]) + 1)):
        assert not is_genuine(got.headers | {"webhook-timestamp": wrong}, got.body, secret=secret)


@pytest.mark.parametrize("answer", [500, 503, 429, 408, "hang up"])
def test_what_passes_is_waited_out(receiver: Receiver, answer: int | str) -> None:
    receiver.answers = [answer, answer]
    Webhook(receiver.url, secret=SECRET)(approval())
    assert receiver.ids == ["apr_7K2"] * 3
    assert len({one.body for one in receiver.received}) == 1


def test_what_lasts_is_told_after_so_many_attempts(receiver: Receiver) -> None:
    receiver.answers = [503] * 9
    with pytest.raises(NotDelivered) as no:
        Webhook(receiver.url, attempts=4)(approval())
    assert (len(receiver.received), no.value.status, no.value.passing) == (4, 503, True)


@pytest.mark.parametrize("answer", [400, 401, 403, 404, 410, 301, 302, 307, 308])
def test_a_no_is_told_at_once_and_nothing_is_sent_elsewhere(receiver: Receiver, answer: int) -> None:
    receiver.answers = [answer]
    with pytest.raises(NotDelivered) as no:
        Webhook(receiver.url)(approval())
    assert (len(receiver.received), no.value.status, no.value.passing) == (1, answer, False)


def test_a_receiver_that_does_not_answer_is_waited_for_so_long(receiver: Receiver) -> None:
    receiver.answers = ["wait"]
    with pytest.raises(NotDelivered) as no:
        Webhook(receiver.url, timeout=0.2, attempts=1)(approval())
    assert (no.value.status, no.value.passing) == (0, True)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody accepts
        port = taken.getsockname()[1]
        with pytest.raises(NotDelivered) as no:
            Webhook(f"http://127.0.0.1:{port}/secret-path", attempts=2)(approval())
    assert "secret-path" not in str(no.value)
    assert "127.0.0.1" in str(no.value)


def test_neither_the_url_nor_the_secret_is_shown(receiver: Receiver) -> None:
    hook = Webhook(receiver.url + "services/T0/B0/hush", secret="hush-hush-hush")
    receiver.answers = [404]
    with pytest.raises(NotDelivered) as no:
        hook(approval())
    shown = f"{hook!r} {no.value} {no.value.to_dict()}"
    assert "hush" not in shown
    assert "apr_7K2" in shown


@pytest.mark.parametrize("url", ["", "ops.example/hook", "file:///etc/passwd", "https://", "ftp://ops.example"])
def test_a_url_that_is_none_is_refused_where_it_is_written(url: str) -> None:
    with pytest.raises(UsageError):
        Webhook(url)


def test_settings_that_make_no_sense_are_refused_where_they_are_written() -> None:
    for wrong in ({"attempts": 0}, {"attempts": 99}, {"timeout": 0}):
        with pytest.raises(UsageError):
            Webhook("https://ops.example", **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadConfig):
        Webhook("https://ops.example", secret="whsec_no base64 at all!")


def test_every_kind_of_argument_can_be_told(receiver: Receiver) -> None:
    class Line(pydantic.BaseModel):
        at: datetime

    @dataclass
    class Money:
        cents: Decimal

    at = datetime(2026, 3, 1, tzinfo=UTC)
    args: dict[str, Any] = {"a": Line(at=at), "b": Money(Decimal("4.20")), "c": {3, 1, 2}, "d": b"\x00x", "e": at}
    Webhook(receiver.url)(approval(args))
    said = receiver.received[0].said["data"]["call"]["args"]
    assert said["a"] == {"at": {"$datetime": "2026-03-01T00:00:00+00:00"}}
    assert said["b"] == {"cents": {"$decimal": "4.20"}}
    assert (said["c"], said["d"]) == ({"$set": [1, 2, 3]}, {"$bytes": "AHg="})
    assert said["e"] == {"$datetime": at.isoformat()}


def test_the_body_may_be_anybodys(receiver: Receiver) -> None:
    Webhook(receiver.url, body=lambda one: {"text": f"{one.call.tool}?"}, secret=SECRET)(approval())
    (got,) = receiver.received
    assert json.loads(got.body) == {"text": "bank.wire?"}
    assert is_genuine(got.headers, got.body, secret=SECRET)
