"""Reading: consistent snapshots, limited in size, in a fixed order."""

from __future__ import annotations

from typing import Any

from amends.ledger import operations as ops
from amends.ledger.rows import CallRow, RunRow
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import check


def runs(ledger: Ledger, count: int) -> list[RunRow]:
    made = []
    for number in range(count):
        ledger.clock.now += number % 2  # pairs of runs share their second
        made.append(ledger.run(f"run {number}"))
    return made


@check
def a_run_is_read_with_its_descendants_and_their_calls(ledger: Ledger) -> None:
    root = ledger.run()
    child = ledger.child(root, "child")
    grandchild, sibling = ledger.child(child, "grandchild"), ledger.child(root, "sibling")
    calls = {run.uid: ledger.do(run, "charge", key=run.uid) for run in (root, child, grandchild, sibling)}
    whole = ledger(ops.ReadRun("acme", "order"))
    assert (whole.run, whole.runs, whole.calls) == (root, (root, child, grandchild, sibling), tuple(calls.values()))
    part = ledger(ops.ReadRun("", uid=child.uid))
    assert (part.run, part.runs) == (child, (child, grandchild))
    assert part.calls == (calls[child.uid], calls[grandchild.uid])


@check
def parents_come_before_their_children_within_one_second(ledger: Ledger) -> None:
    root = ledger.run()
    inner, chain = root, [root]
    for depth in range(6):
        inner = ledger.child(inner, f"child {6 - depth}")
        chain.append(inner)
    assert ledger(ops.ReadRun("", uid=root.uid)).runs == tuple(chain)


@check
def what_is_not_there_is_none(ledger: Ledger) -> None:
    assert ledger(ops.ReadRun("acme", "nobody")) is None
    assert ledger(ops.ReadRun("", uid="nobody")) is None
    assert ledger(ops.ReadCall("nobody")) is None


@check
def runs_are_listed_newest_first_in_pages(ledger: Ledger) -> None:
    made = sorted(runs(ledger, 7), key=lambda run: (run.created_at, run.uid), reverse=True)
    found: list[RunRow] = []
    while page := ledger(ops.ListRuns("acme", (), (found[-1].created_at, found[-1].uid) if found else None, 3)):
        assert len(page) <= 3
        found += page
    assert found == made


@check
def runs_are_found_by_state_and_tenant(ledger: Ledger) -> None:
    one, two, other = ledger.run("one"), ledger.run("two"), ledger.run("other", tenant="umbrella")
    ledger.commit(one)
    assert [run.uid for run in ledger(ops.ListRuns("acme", ("open",)))] == [two.uid]
    assert [run.uid for run in ledger(ops.ListRuns(None, ("committed", "blocked")))] == [one.uid]
    assert [run.uid for run in ledger(ops.ListRuns("umbrella"))] == [other.uid]
    assert ledger(ops.ListRuns(None, ("nonsense",))) == []


@check
def calls_are_listed_newest_first_in_pages(ledger: Ledger) -> None:
    run = ledger.run()
    made = [ledger.do(run, f"tool {number}") for number in range(7)]
    found: list[CallRow] = []
    while page := ledger(ops.SearchCalls("acme", (), found[-1].seq if found else None, 3)):
        assert len(page) <= 3
        found += page
    assert found == made[::-1]


@check
def calls_are_found_by_state_and_tenant(ledger: Ledger) -> None:
    mine, other = ledger.run(), ledger.run(tenant="umbrella")
    done, doubt = ledger.do(mine, "done"), ledger.settle(ledger.start(mine, "doubt"), "in_doubt").call
    staged = ledger.admit(mine, "mail", kind="retriable").call
    theirs = ledger.settle(ledger.start(other), "in_doubt").call
    assert ledger(ops.SearchCalls(None, ("in_doubt",))) == [theirs, doubt]
    assert ledger(ops.SearchCalls("acme", ("in_doubt", "held"))) == [staged, doubt]
    assert ledger(ops.SearchCalls("acme", ("in_doubt", "held"), staged.seq)) == [doubt]
    assert ledger(ops.SearchCalls("acme", ("succeeded", "in_doubt"))) == [doubt, done]
    assert ledger(ops.SearchCalls(None, ("nonsense",))) == []


@check
def events_are_read_in_ledger_order_in_pages(ledger: Ledger) -> None:
    mine, other = ledger.run(), ledger.run(tenant="umbrella")
    for number in range(3):
        ledger.do(mine, f"tool {number}")
        ledger.do(other, f"tool {number}")
    everything = ledger.events()
    places = [event.seq for event in everything]
    assert places == sorted(set(places))
    third = places[2]
    later = [event for event in everything if event.root == mine.root and event.seq > third]
    assert ledger(ops.ReadEvents(None, mine.root, third, 2)) == later[:2]
    assert ledger(ops.ReadEvents("umbrella")) == [event for event in everything if event.tenant == "umbrella"]


@check
def ledger_time_never_goes_back(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.clock.now -= 1000
    late = ledger.run("late")
    assert late.created_at == run.created_at
    assert ledger(ops.ReadRun("", uid=run.uid)).now == run.created_at


@check
def a_second_look_sees_what_was_written_since_the_first(ledger: Ledger) -> None:
    """Read over the second handle, too, if there is one: no snapshot is kept from one read to the next."""
    for number, reader in enumerate((ledger, ledger.beside or ledger)):
        run = ledger.run(f"run {number}")
        call = ledger.start(run)
        before = looks(reader, run, call)
        ledger.settle(call)
        ledger.commit(run)
        after = looks(reader, run, call)
        stale = [name for name in before if before[name] == after[name]]
        assert not stale, f"these reads returned old rows: {stale}"
        assert reader.everything() == ledger.everything()
        assert reader.look(call).state == "succeeded"


def looks(reader: Ledger, run: RunRow, call: CallRow) -> dict[str, object]:
    """Return the answer of every operation that only reads."""
    asked: tuple[ops.StoreOp[Any], ...] = (
        ops.ReadCall(call.id), ops.ReadRun("", uid=run.uid), ops.ListRuns(None), ops.SearchCalls(None),
        ops.ReadEvents(None), ops.DueRuns(None, 10),
    )  # fmt: skip
    return {type(op).__name__: reader(op) for op in asked}
