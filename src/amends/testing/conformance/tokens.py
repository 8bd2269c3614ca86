"""Tokens: one id is given once, an end is for good, and events name the token by which they were asked for."""

from __future__ import annotations

import json

from amends.ledger import operations as ops
from amends.ledger.rows import DirectiveRow
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import check

LIVES_S = 50.0


def make(ledger: Ledger, id: str, *, tenant: str | None = "acme", words: str = "{}") -> DirectiveRow | None:
    """Make a token that ends after ``LIVES_S``."""
    row: DirectiveRow | None = ledger(
        ops.MakeToken(id, tenant, "", words, "ann", "the build", ledger.clock.now + LIVES_S)
    )
    return row


@check
def of_two_handles_that_make_one_token_one_does(ledger: Ledger) -> None:
    beside = ledger.beside or ledger
    answers = [make(one, "tok_1", words=f'{{"n": {n}}}') for n, one in enumerate((ledger, beside))]
    assert [answer is None for answer in answers] == [False, True]
    found, _ = beside(ops.ReadToken("tok_1"))
    assert found == answers[0]
    assert [event.what for event in ledger(ops.ReadEvents(None, "tok_1"))] == ["token made"]


@check
def a_token_that_has_ended_stays_as_it_is(ledger: Ledger) -> None:
    beside = ledger.beside or ledger
    make(ledger, "tok_1")
    ended = beside(ops.EndToken("tok_1", "acme", "ben", "it leaked"))
    assert ended.closed_at is not None
    assert ledger(ops.EndToken("tok_1", None, "cleo", "again")) == ended
    assert ledger(ops.ReadToken("tok_1"))[0] == ended
    assert ledger(ops.ListTokens(None))[0] == []
    assert make(ledger, "tok_1") is None
    assert [event.what for event in ledger(ops.ReadEvents(None, "tok_1"))] == ["token made", "token revoked"]


@check
def a_token_expires_by_the_ledgers_time_and_only_then(ledger: Ledger) -> None:
    made = make(ledger, "tok_1")
    assert ledger(ops.EndToken("tok_1", None, "clock", "", expired=True)) == made
    ledger.clock.now += LIVES_S + 1
    ended = ledger(ops.EndToken("tok_1", None, "clock", "", expired=True))
    ledger.clock.now -= LIVES_S
    assert ledger(ops.ReadToken("tok_1"))[0] == ended
    assert ended.closed_at > made.until_at if made else False
    assert [event.what for event in ledger(ops.ReadEvents(None, "tok_1"))][1:] == ["token expired"]


@check
def a_tenant_sees_and_ends_its_own_tokens_only(ledger: Ledger) -> None:
    own, other, wide = (
        make(ledger, "tok_1"),
        make(ledger, "tok_2", tenant="umbrella"),
        make(ledger, "tok_3", tenant=None),
    )
    assert ledger(ops.ListTokens("acme"))[0] == [own]
    assert ledger(ops.ListTokens(None))[0] == [own, other, wide]
    unnamed = make(ledger, "tok_4", tenant="")
    assert ledger(ops.ListTokens(""))[0] == [unnamed]
    for id in ("tok_2", "tok_3"):
        assert ledger(ops.EndToken(id, "acme", "eve", "mine")) is None
    assert len(ledger(ops.ListTokens(None))[0]) == 4


@check
def what_is_not_a_token_is_none(ledger: Ledger) -> None:
    halted = ledger(ops.Halt(ledger.new("hlt"), "acme", "", "", "ann", "fire"))
    assert ledger(ops.ReadToken(halted.id))[0] is None
    assert ledger(ops.EndToken(halted.id, None, "eve", "it is no token")) is None
    assert ledger(ops.ListTokens(None))[0] == []


@check
def every_event_of_an_operation_names_its_token(ledger: Ledger) -> None:
    run = ledger.run()
    opening = ledger.open_op("by a token")
    opening.token = "tok_1"
    opened = ledger(opening).run
    said = [json.loads(event.facts).get("token") for event in ledger(ops.ReadEvents(None, opened.uid))]
    assert said == ["tok_1"]
    assert "token" not in json.loads(ledger(ops.ReadEvents(None, run.uid))[0].facts)
    end = ops.BeginRollback(run.uid, "ann", "no", True)
    end.token = 'tok_"2"'
    before = len(ledger(ops.ReadEvents(None, run.uid)))
    ledger(end)
    more = [json.loads(event.facts).get("token") for event in ledger(ops.ReadEvents(None, run.uid))[before:]]
    assert more
    assert set(more) == {'tok_"2"'}


@check
def names_of_workers_tools_are_reserved_for_their_tenant(ledger: Ledger) -> None:
    beside = ledger.beside or ledger
    assert ledger(ops.ReadReserved("acme", ("ship", "pay"))) == frozenset()
    for one in (ledger, beside, ledger):
        one(ops.ReserveTools("acme", ("ship", "mail")))
    assert beside(ops.ReadReserved("acme", ("ship", "pay", "mail"))) == {"ship", "mail"}
    assert beside(ops.ReadReserved("other", ("ship",))) == beside(ops.ReadReserved("", ("ship",))) == frozenset()
