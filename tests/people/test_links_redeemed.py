"""A link does what its verb says to the very thing that was shown, by whom it was made for, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from amends import Approval, links
from amends.errors import ApprovalVoid, BadConfig, LinkVoid, Rejected, UsageError
from tests.people.office import COLOURS, Office

SECRET = "a-secret-of-some-length"


@pytest.fixture(params=COLOURS)
def here(request: pytest.FixtureRequest) -> Iterator[Office]:
    # The ledger's time is the real one: whether a link has run out is asked of the clock.
    made = Office(request.param, link_secret=SECRET)
    made.clock.now = datetime.now(UTC).timestamp()
    yield made
    made.close()


def asked(here: Office, run_id: str = "r", cents: int = 1) -> Approval:
    here.held(run_id, cents)
    return here.desk.told[-1]


def test_a_link_approves(here: Office) -> None:
    token = asked(here).links["approve"]
    decided = here.do("redeem", token, by="anna", why="looks right")
    assert decided.state == "approved"
    assert [(one.by, one.why) for one in decided.given] == [("anna", "looks right")]
    assert here.wire() == "sent 1"


def test_a_link_rejects(here: Office) -> None:
    token = asked(here).links["reject"]
    assert here.do("redeem", token, by="anna", reason="too much").state == "rejected"
    with pytest.raises(Rejected) as no:
        here.wire()
    assert (no.value.by, no.value.reason) == ("anna", "too much")


def test_a_link_is_for_whom_it_was_made(here: Office) -> None:
    approval = asked(here)
    token = links.sign(approval, "approve", secret=SECRET, by="anna")
    with pytest.raises(LinkVoid) as no:
        here.do("redeem", token, by="bob")
    assert no.value.why == "other_person"
    assert here.do("redeem", token).given[0].by == "anna"


def test_whoever_uses_a_link_for_anybody_says_who_it_is(here: Office) -> None:
    with pytest.raises(UsageError):
        here.do("redeem", asked(here).links["approve"])
    with pytest.raises(UsageError):
        here.do("redeem", asked(here).links["reject"], by="anna")


def test_nobody_approves_himself_by_a_link(here: Office) -> None:
    other = here.beside(principal="Paula", link_secret=SECRET)
    token = asked(other).links["approve"]
    with pytest.raises(ApprovalVoid) as no:
        here.do("redeem", token, by="paula")
    assert no.value.why == "self"


@pytest.mark.parametrize("verb", links.VERBS)
def test_a_link_to_what_has_changed_since_decides_nothing(here: Office, verb: links.Verb) -> None:
    from dataclasses import replace

    approval = asked(here)
    token = links.sign(replace(approval, digest="0" * 64), verb, secret=SECRET)
    given: dict[str, Any] = {"reason": "no"} if verb == "reject" else {}
    with pytest.raises(ApprovalVoid) as no:
        here.do("redeem", token, by="anna", **given)
    assert no.value.why == "changed"
    assert here.do("approval", approval.id).state == "pending"


def test_forged_and_expired_links_decide_nothing(here: Office) -> None:
    approval = asked(here)
    past = datetime.now(UTC) - timedelta(seconds=5)
    for token, why in (
        (links.sign(approval, "approve", secret="another-secret-of-length"), "forged"),
        (links.sign(approval, "approve", secret=SECRET, expires_at=past), "expired"),
        (approval.links["approve"] + "x", "forged"),
    ):
        with pytest.raises(LinkVoid) as no:
            here.do("redeem", token, by="anna")
        assert no.value.why == why
    assert here.do("approval", approval.id).state == "pending"


def test_a_used_link_is_worth_nothing(here: Office) -> None:
    token = asked(here).links["approve"]
    here.do("redeem", token, by="anna")
    assert here.wire() == "sent 1"
    with pytest.raises(ApprovalVoid) as no:
        here.do("redeem", token, by="bob")
    assert no.value.why == "used"
    assert len([call for call in here.listed("calls") if call.state == "succeeded"]) == 1


def test_without_a_secret_there_are_no_links(here: Office) -> None:
    token = asked(here).links["approve"]
    with pytest.raises(BadConfig) as no:
        here.beside().do("redeem", token, by="anna")
    assert no.value.setting == "link_secret"


def test_a_secret_that_could_be_guessed_is_refused_at_once(here: Office) -> None:
    with pytest.raises(BadConfig):
        Office(here.colour, link_secret="short")
    with pytest.raises(BadConfig):
        Office(here.colour, link_secret=SECRET, link_url="ops.example/decide")
