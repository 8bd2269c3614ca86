"""A link decides one approval, as it was shown, for a while, and cannot be made by anybody else."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest

from amends import links
from amends.errors import BadConfig, LinkVoid, UsageError
from tests.people.shown import AT, UNTIL, approval

SECRET = "a secret of some length".replace(" ", "-")
OTHER = "another-secret-of-some-length"


def test_a_token_says_what_was_signed() -> None:
    token = links.sign(approval(), "approve", secret=SECRET, by="anna")
    assert links.verify(token, secret=SECRET, now=AT) == links.Link("apr_7K2", "d" * 64, "approve", "anna", UNTIL)


def test_a_token_fits_into_a_url_as_it_is() -> None:
    token = links.sign(approval(), "reject", secret=SECRET, by="Ännå ?&#")
    assert set(token) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
    assert len(token) < 400
    assert links.verify(token, secret=SECRET, now=AT).by == "Ännå ?&#"


def test_every_changed_character_makes_it_forged() -> None:
    token = links.sign(approval(), "reject", secret=SECRET)
    for place, was in enumerate(token):
        for other in ("A" if was != "A" else "B", "", was + was, "é", "."):
            changed = token[:place] + other + token[place + 1 :]
            if changed == token:
                continue
            with pytest.raises(LinkVoid) as no:
                links.verify(changed, secret=SECRET, now=AT)
            assert no.value.why == "forged"


@pytest.mark.parametrize(
    "text", ["", ".", "aml1.", "aml1..", "aml1.e30.", "\udcff", "x" * 100_000, "aml1." + "x" * 9_000]
)
def test_what_is_no_token_is_forged(text: str) -> None:
    with pytest.raises(LinkVoid) as no:
        links.verify(text, secret=SECRET, now=AT)
    assert no.value.why == "forged"


def test_another_secret_and_no_signature_are_forged() -> None:
    token = links.sign(approval(), "approve", secret=OTHER)
    unsigned = token.rpartition(".")[0] + "."
    for text in (token, unsigned):
        with pytest.raises(LinkVoid) as no:
            links.verify(text, secret=SECRET, now=AT)
        assert no.value.why == "forged"


def test_a_signature_of_the_same_secret_over_something_else_is_none() -> None:
    """The form of the token is part of what is signed: no webhook's signature can be made into a link."""
    token = links.sign(approval(), "approve", secret=SECRET)
    said = token.removeprefix(links.PREFIX).rpartition(".")[0]
    mark = base64.urlsafe_b64encode(links._mark(said, SECRET)).decode().rstrip("=")
    with pytest.raises(LinkVoid):
        links.verify(f"{links.PREFIX}{said}.{mark}", secret=SECRET, now=AT)


def test_a_token_runs_out() -> None:
    until = AT + timedelta(hours=1)
    token = links.sign(approval(), "approve", secret=SECRET, expires_at=until)
    assert links.verify(token, secret=SECRET, now=until - timedelta(seconds=1)).expires_at == until
    with pytest.raises(LinkVoid) as no:
        links.verify(token, secret=SECRET, now=until)
    assert no.value.why == "expired"


def test_a_token_never_outlives_its_approval() -> None:
    token = links.sign(approval(), "approve", secret=SECRET, expires_at=UNTIL + timedelta(days=9))
    with pytest.raises(LinkVoid) as no:
        links.verify(token, secret=SECRET, now=UNTIL)
    assert no.value.why == "expired"


def test_without_a_time_the_clock_is_asked() -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    assert links.verify(links.sign(approval(expires_at=soon), "approve", secret=SECRET), secret=SECRET)
    gone = datetime.now(UTC) - timedelta(seconds=2)
    with pytest.raises(LinkVoid):
        links.verify(links.sign(approval(expires_at=gone), "approve", secret=SECRET), secret=SECRET)


def test_a_secret_is_rotated_without_losing_the_links_that_are_out() -> None:
    old = links.sign(approval(), "approve", secret=OTHER)
    new = links.sign(approval(), "approve", secret=f"{SECRET} {OTHER}")
    for token in (old, new):
        assert links.verify(token, secret=[SECRET, OTHER], now=AT).verb == "approve"
    with pytest.raises(LinkVoid):
        links.verify(new, secret=OTHER, now=AT)


@pytest.mark.parametrize("secret", ["", "  ", "short", f"{SECRET} short", []])
def test_a_secret_that_could_be_guessed_is_refused(secret: str | list[str]) -> None:
    with pytest.raises(BadConfig) as no:
        links.sign(approval(), "approve", secret=secret)
    assert no.value.setting == "link_secret"
    assert "short" not in str(no.value)


def test_a_link_is_to_approve_or_to_reject() -> None:
    with pytest.raises(UsageError):
        links.sign(approval(), "bypass", secret=SECRET)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url, wanted",
    [
        ("", "{}"),
        ("https://ops.example/decide", "https://ops.example/decide?token={}"),
        ("https://ops.example/decide?a=1", "https://ops.example/decide?a=1&token={}"),
        ("https://ops.example/{token}/decide", "https://ops.example/{}/decide"),
    ],
)
def test_a_token_is_placed_in_the_url_of_the_page_that_takes_it(url: str, wanted: str) -> None:
    made = links.links_for(approval(), secret=SECRET, url=url)
    assert list(made) == ["approve", "reject"]
    for verb, link in made.items():
        before, after = wanted.split("{}")
        token = link.removeprefix(before).removesuffix(after)
        assert links.verify(token, secret=SECRET, now=AT).verb == verb
