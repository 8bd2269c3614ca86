"""The record can be checked: every way to write an event links it, and trees are read whole, from one snapshot."""

from __future__ import annotations

from amends.audit.verify import Audit, Found
from amends.encoding.chain import GENESIS, link
from amends.ledger.operations import Chains, Place, ReadChains
from amends.testing.conformance.ledger import Ledger
from tests.ledger.rules.registry import check


def pages(ledger: Ledger, place: Place, limit: int, *, alone: bool = False) -> list[Chains]:
    """All that comes after this place."""
    found: list[Chains] = []
    then: Place | None = place
    while then is not None:
        found.append(ledger(ReadChains(then, alone, limit)))
        then = found[-1].next
    return found


def some_trees(ledger: Ledger, count: int = 4, calls: int = 3) -> None:
    for number in range(count):
        run = ledger.run(f"run {number}")
        for call in range(calls):
            ledger.do(run, f"tool {call}", key=f"{number}/{call}")


@check
def each_event_names_its_number_and_the_hash_of_the_one_before_it(ledger: Ledger) -> None:
    some_trees(ledger, count=2)
    tails: dict[str, tuple[int, str]] = {}
    for event in ledger.events():
        last, prev = tails.get(event.root, (0, GENESIS))
        assert (event.n, event.hash) == (last + 1, link(prev, last + 1, event.at, event.body))
        tails[event.root] = (event.n, event.hash)
    assert len(tails) == 2


@check
def trees_are_read_in_the_order_of_their_roots_each_with_its_own_rows(ledger: Ledger) -> None:
    some_trees(ledger)
    everything = ledger.everything()
    for limit in (1, 2, 5, 9, 1000):
        found = pages(ledger, Place(), limit)
        events = [event for page in found for event in page.events]
        assert events == sorted(everything[2], key=lambda event: (event.root, event.n))
        assert sorted(run.uid for page in found for run in page.runs) == sorted(run.uid for run in everything[0])
        assert sorted(call.id for page in found for call in page.calls) == sorted(call.id for call in everything[1])
        seen: set[str] = set()
        for page in found:
            seen |= {event.root for event in page.events}
            roots = {run.root for run in page.runs} | {call.root for call in page.calls}
            assert roots <= seen, "no row comes before its events"


@check
def a_tree_that_is_longer_than_a_page_is_verified_as_one(ledger: Ledger) -> None:
    some_trees(ledger, count=2, calls=6)
    root = ledger.runs()[0].root
    found = Found(Audit())
    for page in pages(ledger, Place(within=root), 4, alone=True):
        assert {event.root for event in page.events} == {root}
        found.page(page)
    verified = found.verified()
    assert verified.ok, str(verified)
    assert (verified.runs, verified.events) == (1, sum(event.root == root for event in ledger.events()))
