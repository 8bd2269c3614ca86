"""Work on the ledger: that somebody ordered it is recorded once, with who, why and by which token."""

from __future__ import annotations

import json

from amends.ledger import operations as ops
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import check


@check
def an_order_is_recorded_with_who_why_and_by_which_token(ledger: Ledger) -> None:
    words = '{"what": "gc", "older_than": "90d"}'
    row = ledger(ops.OrderWork("wrk_1", None, words, "ann", "the disk is full", token="tok_1"))
    (event,) = ledger(ops.ReadEvents(None, "wrk_1"))
    assert (event.what, event.by_whom, event.tenant, event.root) == ("work ordered", "ann", "", "wrk_1")
    assert json.loads(event.facts) == {"wide": 1, "words": words, "why": "the disk is full", "token": "tok_1"}
    assert (row.kind, row.by_whom, row.made_at, row.seq) == ("work", "ann", event.at, 1)
    assert row.closed_at == row.made_at, "an order is over when it is given: there is nothing to end"


@check
def a_repeated_order_is_recorded_once(ledger: Ledger) -> None:
    beside = ledger.beside or ledger
    row = ledger(ops.OrderWork("wrk_1", "acme", "{}", "ann", ""))
    assert beside(ops.OrderWork("wrk_1", "acme", "{}", "ann", "", repeated=True)) == row
    assert len(ledger(ops.ReadEvents(None, "wrk_1"))) == 1


@check
def an_order_is_no_halt_no_permit_and_no_token(ledger: Ledger) -> None:
    row = ledger(ops.OrderWork("wrk_1", "acme", "{}", "ann", "why not"))
    assert ledger(ops.ListHalts()) == []
    assert ledger(ops.ListPermits("acme"))[0] == []
    assert ledger(ops.ListTokens(None))[0] == []
    assert ledger(ops.ReadToken(row.id))[0] is None
    assert ledger(ops.RevokePermit(row.id, "acme", "ben", "no")) is None
