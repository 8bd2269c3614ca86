"""What hiding and encryption ask of a ledger: one key for ever, and payloads written anew."""

from __future__ import annotations

from amends.ledger import operations as ops
from amends.ledger.operations import PinKey, RewriteTexts
from amends.testing.conformance.ledger import Ledger
from tests.ledger.rules.registry import check


@check
def the_first_fingerprint_is_the_ledgers_for_ever(ledger: Ledger) -> None:
    assert ledger(PinKey("")) == "", "who only looks pins nothing"
    assert ledger(PinKey("one")) == "one"
    assert ledger(PinKey("two")) == "one"
    assert ledger(PinKey("one", repeated=True)) == "one"
    assert ledger(PinKey("")) == "one"


@check
def payloads_are_written_anew_only_where_they_are_as_they_were_read(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run, "charge")
    was = {"args": call.args, "result": str(call.result)}
    count = ledger(
        RewriteTexts(call.id, True, {**was, "result": "another"}, {"args": "sealed:a", "result": "sealed:b"})
    )
    assert count == 1
    now = ledger.look(call)
    assert (now.args, now.result, now.state) == ("sealed:a", call.result, call.state)
    ledger(ops.BeginRollback(run.uid, "ann", "stop", True))
    run = ledger.read(run)
    before = len(ledger.events(run))
    assert ledger(RewriteTexts(run.uid, False, {"goal_why": run.goal_why}, {"goal_why": "sealed:c"})) == 1
    assert ledger.read(run).goal_why == "sealed:c"
    assert len(ledger.events(run)) == before, "nothing happened"
