"""Reading: consistent snapshots, limited in size, in a fixed order."""

from __future__ import annotations

from typing import Any

from amends.budgets import ONE
from amends.encoding.chain import feed_place, read_heads
from amends.ledger import operations as ops
from amends.ledger.plain import SettlePlain
from amends.ledger.rows import BudgetDemand, CallCost, CallRow, EventRow, RunRow
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import check, check_each


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
def runs_are_counted_by_state_and_no_more_than_the_newest(ledger: Ledger) -> None:
    assert ledger(ops.CountRuns(None)) == {}
    made = []
    for name in ("one", "two", "three"):
        made.append(ledger.run(name))
        ledger.clock.now += 1
    ledger.run("other", tenant="umbrella")
    ledger.commit(made[0])
    ledger.commit(made[1])
    assert ledger(ops.CountRuns(None)) == {"committed": 2, "open": 2}
    assert ledger(ops.CountRuns("acme")) == {"committed": 2, "open": 1}
    assert ledger(ops.CountRuns("acme", 2)) == {"committed": 1, "open": 1}
    assert ledger(ops.CountRuns("acme", 1)) == {"open": 1}
    assert ledger(ops.CountRuns("nobody")) == {}


@check
def the_newest_runs_that_wait_are_found_and_no_others_looked_at(ledger: Ledger) -> None:
    made = []
    for name in ("blocked", "open", "newest"):
        made.append(ledger.run(name))
        ledger.clock.now += 1
    ledger.run("other", tenant="umbrella")
    ledger(ops.CloseRun(made[0].uid, made[0].owner, made[0].epoch, "blocked", causes=("why",)))
    assert [run.id for run in ledger(ops.WaitingRuns("acme", 3))] == ["blocked"]
    assert ledger(ops.WaitingRuns("acme", 2)) == []
    assert ledger(ops.WaitingRuns("umbrella", 9)) == []


@check
def outlines_have_what_there_is_to_tell_and_how_many_calls_there_are(ledger: Ledger) -> None:
    one, two = ledger.run("one"), ledger.run("two", tenant="umbrella")
    ledger.do(one, "first")
    doubt = ledger.settle(ledger.start(two, "second"), "in_doubt").call
    started = ledger.start(one, "third")
    found, is_cut = ledger(ops.ReadOutlines((two.root, "nobody", one.root)))
    assert ([outline.tree.run.uid for outline in found], is_cut) == ([two.root, one.root], False)
    assert [outline.calls for outline in found] == [1, 2]
    assert [call.id for call in found[0].tree.calls] == [doubt.id]
    assert started.id in [call.id for call in found[1].tree.calls]
    for outline in found:
        alone = ledger(ops.ReadRun("", uid=outline.tree.run.uid))
        assert outline.tree.runs == alone.runs
        assert set(outline.tree.calls) <= set(alone.calls)
    assert ledger(ops.ReadOutlines(())) == ([], False)
    few, is_cut = ledger(ops.ReadOutlines((one.root, two.root), 0))
    assert is_cut
    assert [call.id for call in few[1].tree.calls] == [doubt.id], "what waits is not cut"
    assert [outline.calls for outline in few] == [2, 1]


@check
def calls_are_listed_newest_first_in_pages(ledger: Ledger) -> None:
    run = ledger.run()
    made = [ledger.do(run, f"tool {number}") for number in range(7)]
    found: list[CallRow] = []
    while page := ledger(ops.SearchCalls("acme", (), found[-1].id if found else None, 3)):
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
    assert ledger(ops.SearchCalls("acme", ("in_doubt", "held"), staged.id)) == [doubt]
    assert ledger(ops.SearchCalls("acme", ("succeeded", "in_doubt"))) == [doubt, done]
    assert ledger(ops.SearchCalls(None, ("nonsense",))) == []


@check
def events_of_a_tree_are_read_by_number_in_pages(ledger: Ledger) -> None:
    mine, other = ledger.run(), ledger.run(tenant="umbrella")
    assert ledger(ops.ReadNewestEvent(None, mine.root)).n == 1
    for number in range(3):
        ledger.do(mine, f"tool {number}")
        ledger.do(other, f"tool {number}")
    found: list[EventRow] = []
    while page := ledger(ops.ReadEvents(None, mine.root, found[-1].n if found else 0, 2)):
        assert len(page) <= 2
        found += page
    assert [event.n for event in found] == list(range(1, 8))
    assert {event.root for event in found} == {mine.root}
    assert ledger(ops.ReadEvents("umbrella", mine.root)) == []
    assert ledger(ops.ReadNewestEvent(None, mine.root)) == found[-1]
    assert ledger(ops.ReadNewestEvent("umbrella", mine.root)) is None


@check
def feeds_go_by_moment_tree_and_number(ledger: Ledger) -> None:
    """Two trees write at the same moments, and one of them earlier again after the clock was set back."""
    assert ledger(ops.ReadNewestEvent(None)) is None
    assert ledger(ops.ReadEvents(None)) == []
    mine, other = ledger.run(), ledger.run(tenant="umbrella")
    for number in range(3):
        ledger.do(mine, f"tool {number}")
        ledger.do(other, f"tool {number}")
        ledger.clock.now += 1
    ledger.clock.now -= 100
    early = ledger.run("early")
    trees = [event for run in (mine, other, early) for event in ledger.events(run)]
    ordered = sorted(trees, key=lambda event: (event.at, event.root, event.n))
    assert ordered[0].root == early.root
    found: list[EventRow] = []
    while page := ledger(ops.ReadEvents(None, None, found[-1].place if found else "", 2)):
        assert len(page) <= 2
        found += page
    assert found == ordered
    for place, event in enumerate(ordered):
        assert ledger(ops.ReadEvents(None, None, event.place, 100)) == ordered[place + 1 :]
    assert ledger(ops.ReadEvents("umbrella")) == [event for event in ordered if event.tenant == "umbrella"]
    assert ledger(ops.ReadEvents(None, None, feed_place(ordered[1].at))) == ordered[1:], "from a moment on"
    assert ledger(ops.ReadNewestEvent(None)) == ordered[-1]
    newest = [event for event in ordered if event.tenant == "umbrella"][-1]
    assert ledger(ops.ReadNewestEvent("umbrella")) == newest
    assert ledger(ops.ReadEventsBack(None)) == ordered[::-1]
    for place, event in enumerate(ordered):
        assert ledger(ops.ReadEventsBack(None, event.place, 100)) == ordered[:place][::-1]


@check_each({"1": 1, "3": 3, "10": 10, "50": 50})
def a_page_of_events_is_short_only_at_the_end(ledger: Ledger, size: int) -> None:
    """Plain and other calls of two tenants take turns, many of them at one moment; the second is seldom."""
    runs = [ledger.run(f"order {number}", tenant="umbrella" if number in (0, 9) else "acme") for number in range(10)]
    for number, run in enumerate(runs):
        for tool in ("book", "pay"):
            ledger.raw(SettlePlain(ledger.start_plain(run, tool), '"ok"'))
            ledger.do(run, f"general {tool}")
        ledger.clock.now += number % 3
    everything = sorted(
        (event for run in runs for event in ledger.events(run)), key=lambda event: (event.at, event.root, event.n)
    )
    for tenant in (None, "umbrella", "acme"):
        whole = [event for event in everything if tenant in (None, event.tenant)]
        found: list[EventRow] = []
        while True:
            page = ledger(ops.ReadEvents(tenant, None, found[-1].place if found else "", size))
            found += page
            if len(page) < size:
                break
        assert found == whole
        assert ledger(ops.ReadNewestEvent(tenant)) == whole[-1]
        found = []
        while True:
            page = ledger(ops.ReadEventsBack(tenant, found[-1].place if found else "", size))
            found += page
            if len(page) < size:
                break
        assert found == whole[::-1], "the same, from the newest on"


@check
def roots_that_have_not_ended_are_listed_newest_first(ledger: Ledger) -> None:
    """Go by uid, which grows with time; leave children out; a checkpoint over everything changes nothing."""
    runs = []
    for number in range(6):
        runs.append(ledger.run(f"order {number}", tenant="umbrella" if number == 5 else "acme"))
        ledger.clock.now += 1
    ledger.child(runs[0])
    ledger.commit(runs[1])
    ledger.commit(runs[3])
    open_ = sorted((runs[number].uid for number in (0, 2, 4)), reverse=True)
    every = sorted((*open_, runs[5].uid), reverse=True)
    for _ in range(2):
        assert [row.uid for row in ledger(ops.ListUnfinished("acme"))] == open_
        assert [row.uid for row in ledger(ops.ListUnfinished(None))] == every
        found: list[str] = []
        while page := ledger(ops.ListUnfinished("acme", found[-1] if found else "", 2)):
            assert len(page) <= 2
            found += [row.uid for row in page]
        assert found == open_
        draft = ledger(ops.DraftCheckpoint("ledger", ""))
        if draft is not None:
            assert ledger(ops.WriteCheckpoint(draft)) is True


@check
def budget_slices_are_read_by_name(ledger: Ledger) -> None:
    demand = BudgetDemand("usd", 100 * ONE, "tenant", "", "*", "refuse", "", 5 * ONE)
    run = ledger.run()
    ledger.start(run, "pay", costs=CallCost((("usd", 5 * ONE, ONE),), (demand,), wide=True))
    known, _ = ledger(ops.ListBudgets(run.tenant))
    assert len(known) > 1
    names = tuple(row.name for row in known)
    found, now = ledger(ops.ReadSlices(run.tenant, (*names, "of nobody")))
    assert found == known
    assert now == ledger.clock.now
    assert ledger(ops.ReadSlices(run.tenant, names[1:2]))[0] == known[1:2]
    assert ledger(ops.ReadSlices("umbrella", names))[0] == []
    assert ledger(ops.ReadSlices(run.tenant, ()))[0] == []


@check
def ledger_time_never_goes_back(ledger: Ledger) -> None:
    """Take the latest of the clock, the newest event of the run, and the mark that a heartbeat moves on."""
    run = ledger.run()
    began = ledger.clock.now
    ledger.clock.now -= 1000
    assert ledger(ops.ReadRun("", uid=run.uid)).now == run.created_at == began
    call = ledger.do(run)
    assert (call.created_at, call.settled_at) == (began, began)
    assert ledger.run("before").created_at == began - 1000, "no other run has seen a later time"
    ledger(ops.RenewLeases(run.owner, {run.uid: 1}, 30.0))
    assert ledger.run("late").created_at == began
    other = ledger.run("other")
    assert ledger.do(other).settled_at == began, "plain calls, too, take no time before the mark"


@check
def a_checkpoint_moves_ledger_time_on(ledger: Ledger) -> None:
    ledger.run()
    began = ledger.clock.now
    row = ledger(ops.DraftCheckpoint("ledger", ""))
    assert ledger(ops.WriteCheckpoint(row)) is True
    ledger.clock.now -= 1000
    assert ledger.run("late").created_at == began


@check
def a_checkpoint_names_each_chain_that_none_covers(ledger: Ledger) -> None:
    one, two = ledger.run("one"), ledger.run("two")
    delegation = ledger(ops.Delegate("delegation-1", "acme", "ann", "ben", ledger.clock.now + 60, "holiday"))
    first = ledger(ops.DraftCheckpoint("ledger", "", limit=2))
    assert len(read_heads(first.heads)) == 2
    ledger.do(one)  # what is written after the draft stays for a later checkpoint
    assert ledger(ops.WriteCheckpoint(first)) is True
    assert ledger(ops.WriteCheckpoint(first)) is False, "its number is taken"
    second = ledger(ops.DraftCheckpoint("ledger", ""))
    assert ledger(ops.WriteCheckpoint(second)) is True
    ends = {root: (n, hash) for row in (first, second) for root, n, hash in read_heads(row.heads)}
    assert ends.keys() == {one.root, two.root, delegation.id}
    for root in ends:
        newest = ledger(ops.ReadNewestEvent(None, root))
        assert ends[root] == (newest.n, newest.hash)
    assert ledger(ops.DraftCheckpoint("ledger", "")) is None, "everything is covered"
    ledger.commit(two)
    [(root, n, _)] = read_heads(ledger(ops.DraftCheckpoint("ledger", "")).heads)
    assert (root, n) == (two.root, ledger(ops.ReadNewestEvent(None, two.root)).n)


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
        ops.ReadEvents(None), ops.ReadEventsBack(None), ops.ReadNewestEvent(None), ops.DueRuns(None, 10),
        ops.ListUnfinished(None),
    )  # fmt: skip
    return {type(op).__name__: reader(op) for op in asked}
