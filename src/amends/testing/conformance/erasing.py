"""Erasure: the texts of an ended tree go in one transaction, once; the chain and everything else stay as they were."""

from __future__ import annotations

import json
from typing import Any

from amends.encoding.chain import GENESIS, link
from amends.ledger import operations as ops
from amends.ledger.plain import SettlePlain
from amends.ledger.rows import CallRow, RunRow
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import check

ALICE = "alice@example.org"
NAMED: dict[str, Any] = {
    "principal": ALICE,
    "tags": json.dumps([f"customer={ALICE}"]),
    "input": f'{{"mail": "{ALICE}"}}',
}


@check
def no_text_about_the_person_is_left(ledger: Ledger) -> None:
    run, other = _ended(ledger), _ended(ledger, "other")
    done = _erase(ledger, run)
    assert (done.runs, done.calls, done.kept, done.done_before) == (2, 4, "", False)
    assert done.events > 0
    mine = [row for rows in ledger.everything() for row in rows if row.root == run.uid]
    assert ALICE not in repr(mine)
    theirs = [row for rows in ledger.everything() for row in rows if row.root == other.uid]
    assert ALICE in repr(theirs), "the neighbour is as it was"


@check
def the_chain_of_an_erased_tree_is_still_linked(ledger: Ledger) -> None:
    run = _ended(ledger)
    before = {event.n: (event.hash, event.at, event.to_state, event.call) for event in ledger.events(run)}
    _erase(ledger, run)
    prev = GENESIS
    events = ledger.events(run)
    for n, event in enumerate(events, 1):
        assert event.hash == link(prev, n, event.at, event.body)
        prev = event.hash
    after = {event.n: (event.hash, event.at, event.to_state, event.call) for event in events}
    assert before.items() <= after.items(), "no hash, time or state of an event changes"
    assert any(event.body != event.left_body for event in events)


@check
def an_erasure_names_who_why_order_and_token(ledger: Ledger) -> None:
    run = _ended(ledger)
    done = _erase(ledger, run, token="tok_1")
    last = ledger.events(run)[-1]
    facts = json.loads(last.facts)
    assert (last.what, last.by_whom, last.root) == ("erased", "ann", run.uid)
    assert (facts["why"], facts["order"], facts["token"]) == ("request 1", "wrk_1", "tok_1")
    assert (facts["runs"], facts["calls"], facts["events"], facts["bytes"]) == (2, 4, done.events, done.freed)


@check
def a_repeated_erasure_gives_the_first_answer_and_another_one_changes_nothing(ledger: Ledger) -> None:
    beside = ledger.beside or ledger
    run = _ended(ledger)
    done = _erase(ledger, run)
    before = ledger.everything()
    assert _erase(beside, run, repeated=True) == done
    again = ledger(ops.EraseTree(run.uid, "ben", "request 2", "wrk_2"))
    assert (again.done_before, again.events, again.freed) == (True, 0, 0)
    assert ledger.everything() == before


@check
def a_dry_run_of_an_erasure_says_the_same_and_changes_nothing(ledger: Ledger) -> None:
    run = _ended(ledger)
    before = ledger.everything()
    would = ledger(ops.EraseTree(run.uid, "ann", "request 1", "", dry_run=True))
    assert ledger.everything() == before
    assert _erase(ledger, run) == would
    assert ledger(ops.EraseTree("run_none", "ann", "request 1", "wrk_1")) is None


@check
def a_tree_that_is_needed_is_not_erased(ledger: Ledger) -> None:
    run = _opened(ledger, ledger.open_op(**NAMED))
    call = ledger.settle(ledger.start(run), "in_doubt").call
    before = ledger.everything()
    assert _erase(ledger, run).kept == "it has not ended"
    assert ledger.everything() == before
    ledger.close(run, "blocked", causes=("nobody knows",))
    ledger(ops.AbandonRun(run.uid, "ben", "enough"))
    state = ledger.look(call).state
    assert _erase(ledger, run).kept != "", f"its call is {state}"
    assert _erase(ledger, run, residue=True).kept == ""
    assert ALICE not in repr(ledger.everything())


@check
def what_arrives_late_brings_nothing_back(ledger: Ledger) -> None:
    run = _opened(ledger, ledger.open_op(**NAMED))
    call = ledger.settle(ledger.start(run), "failed", error='["E", "no"]').call
    ledger.commit(run)
    _erase(ledger, run)
    ledger(ops.NoteEvidence(call.id, 1, True, f'"for {ALICE}"', f'["E", "{ALICE}"]', "boot", 1.0, "late"))
    assert ledger.look(call).state == "succeeded"
    assert ALICE not in repr(ledger.everything())


@check
def the_file_is_to_be_rewritten_until_somebody_did_it_after_the_newest_order(ledger: Ledger) -> None:
    one, other = _ended(ledger), _ended(ledger, "other")
    assert ledger(ops.ReadScrub()) == ""
    _erase(ledger, one, scrubs=True)
    assert ledger(ops.ReadScrub()) == "wrk_1"
    ledger(ops.EraseTree(other.uid, "ann", "request 2", "wrk_2", scrubs=True))
    assert not ledger(ops.EndScrub("wrk_1")), "something was erased since"
    assert ledger(ops.ReadScrub()) == "wrk_2"
    assert ledger(ops.EndScrub("wrk_2"))
    assert ledger(ops.ReadScrub()) == ""


def _erase(ledger: Ledger, run: RunRow, **given: Any) -> ops.ErasedTree:
    answer: ops.ErasedTree = ledger(ops.EraseTree(run.uid, "ann", "request 1", "wrk_1", **given))
    return answer


def _opened(ledger: Ledger, op: ops.OpenRun | ops.OpenChild) -> RunRow:
    op.input_digest = "digest"  # the helpers of this suite make no digests: they quote
    run: RunRow = ledger(op).run
    return run


def _started(ledger: Ledger, run: RunRow, key: str) -> CallRow:
    op = ledger.admit_op(run, args=f'{{"to": "{ALICE}"}}', key=f"{key} in {run.root}")
    op.ident, op.digest = f"ident of {key}", f"digest of {key}"
    call: CallRow = ledger(op).call
    return call


def _ended(ledger: Ledger, id: str = "order") -> RunRow:
    """Return a run about a person, with a child, that was rolled back; rows and events say who it is in many ways."""
    run = _opened(ledger, ledger.open_op(id, **NAMED))
    child = _opened(ledger, ledger.child_op(run, f"{id} child", input=f'"{ALICE}"'))
    ledger.settle(_started(ledger, run, "one"), result=f'"sent to {ALICE}"')
    ledger.settle(_started(ledger, child, "two"), result=f'"{ALICE}"')
    ledger.settle(_started(ledger, run, "three"), "failed", error=f'["E", "{ALICE} is away"]')
    started = ledger.start_plain(run, args=f'{{"to": "{ALICE}"}}')
    ledger.raw(SettlePlain(started, f'"plain for {ALICE}"'))
    ledger.commit(child)
    ledger(ops.BeginRollback(run.uid, "ben", f"{ALICE} asked for it", True, owner="a", epoch=run.epoch))
    for call in sorted(ledger.calls(), key=lambda one: -one.settled_seq):
        if call.root == run.uid and call.state == "succeeded":
            ledger.compensate(call)
    for one in (child, run):
        if ledger.read(one).state == "committed":
            ledger(ops.BeginRollback(one.uid, "a", "with its parent", False, owner="a", epoch=run.epoch))
        ledger.close(one, "rolled_back")
    return ledger.read(run)
