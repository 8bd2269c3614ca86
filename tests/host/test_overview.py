"""The overview: one page of runs with their sums, and counts by state, with a cost that does not grow with the ledger."""

import asyncio
from contextlib import suppress
from decimal import Decimal
from functools import partial

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.errors import Error, UsageError
from amends.host import listing
from amends.ledger.operations import ListRuns, ReadOutlines


@tool(key="order", cost=2)
def charge(order: str) -> str:
    if order.startswith("lost"):
        raise TimeoutError("no answer")
    return f"ch_{order}"


@charge.compensate
def refund(order: str) -> None: ...


@tool(kind="read")
def stock(item: str) -> int:
    return len(item)


def filled(rt: Runtime, count: int = 5) -> None:
    for number in range(count):
        with rt.run(f"r{number}", tags=["even" if number % 2 == 0 else "odd"]):
            charge(order=f"o{number}")
            charge(order=f"o{number}")  # answered from the record


@pytest.fixture
def rt(tmp_path):
    with Runtime(f"sqlite:///{tmp_path}/l.db", tools=[charge, stock]) as made:
        yield made


def test_a_line_has_the_sums_over_its_calls(rt: Runtime) -> None:
    filled(rt, 1)
    found = rt.overview()
    [line] = found.runs
    assert (line.run.id, line.run.state, line.run.now) == ("r0", "committed", None)
    assert (line.calls, line.doubts, line.repeats, line.costs) == (1, 0, 1, {"usd": Decimal(2)})
    assert (found.next, found.is_cut, found.counts, found.counted_all) == (None, False, {"committed": 1}, True)
    assert found.to_dict()["runs"][0]["costs"] == {"usd": "2"}


def test_a_parent_has_the_sums_of_its_children_and_a_child_its_own(rt: Runtime) -> None:
    with rt.run("parent") as run:
        charge(order="a")
        with run.child("one"):
            charge(order="b")
        with run.child("two"):
            charge(order="c")
    parents = {line.run.id: line.run.parent for line in rt.overview().runs}
    assert parents == {"parent": None, "parent/one": "parent", "parent/two": "parent"}
    sums = {line.run.id: (line.calls, int(line.costs["usd"])) for line in rt.overview().runs}
    assert sums == {"parent": (3, 6), "parent/one": (1, 2), "parent/two": (1, 2)}


def test_what_is_open_or_in_doubt_says_so(rt: Runtime) -> None:
    run = rt.open("r")
    run.answer("charge", {"order": "lost"})
    [line] = rt.overview().runs
    assert line.doubts == 1
    assert line.run.now is not None
    assert line.run.now.waits_for == "a person"
    run.release()


def test_pages_follow_each_other_without_gaps_or_repeats(rt: Runtime) -> None:
    filled(rt, 7)
    seen: list[str] = []
    after: str | None = ""
    for _ in range(10):
        page = rt.overview(after=after or "", limit=3)
        seen += [line.run.id for line in page.runs]
        after = page.next
        if after is None:
            break
    assert seen == [f"r{number}" for number in reversed(range(7))]


def test_a_filter_limits_the_lines_and_not_the_counts(rt: Runtime) -> None:
    filled(rt, 5)
    found = rt.overview("tag:odd")
    assert [line.run.id for line in found.runs] == ["r3", "r1"]
    assert found.counts == {"committed": 5}
    assert [line.run.id for line in rt.overview("tool:stock").runs] == []
    with pytest.raises(UsageError):
        rt.overview("nonsense")
    with pytest.raises(UsageError):
        rt.overview(after="nonsense")
    for limit in (0, 201):
        with pytest.raises(UsageError):
            rt.overview(limit=limit)


def test_a_search_ends_after_so_many_runs_and_says_where_to_go_on(rt: Runtime, monkeypatch) -> None:
    filled(rt, 9)
    monkeypatch.setattr(listing, "PAGE", 2)
    monkeypatch.setattr(listing, "LOOKED_MAX", 4)
    monkeypatch.setattr(listing, "COUNTED_MAX", 3)
    first = rt.overview("run:r1*", limit=1)
    assert (first.runs, first.is_cut, first.looked_at) == ((), True, 4)
    assert (first.counts, first.counted, first.counted_all) == ({"committed": 3}, 3, False)
    second = rt.overview("run:r1*", after=first.next or "", limit=1)
    assert (second.runs, second.is_cut) == ((), False) or [line.run.id for line in second.runs] == ["r1"]


def test_a_run_that_is_named_is_found_however_old_it_is(rt: Runtime, monkeypatch) -> None:
    filled(rt, 9)
    monkeypatch.setattr(listing, "PAGE", 2)
    monkeypatch.setattr(listing, "LOOKED_MAX", 4)
    found = rt.overview("run:r1", limit=1)
    assert ([line.run.id for line in found.runs], found.is_cut, found.next) == (["r1"], False, None)
    assert rt.overview("run:r1 state:open", limit=1).runs == ()
    assert rt.overview("run:r1 tool:stock", limit=1).runs == ()
    assert [line.run.id for line in rt.overview("run:r1 tool:charge", limit=1).runs] == ["r1"]
    assert rt.overview("run:nobody", limit=1).is_cut, "it is searched for"


def test_a_search_for_a_state_that_few_runs_have_ends_too(rt: Runtime, monkeypatch) -> None:
    filled(rt, 9)
    monkeypatch.setattr(listing, "PAGE", 2)
    monkeypatch.setattr(listing, "LOOKED_MAX", 4)
    first = rt.overview("state:abandoned", limit=1)
    assert (first.runs, first.is_cut, first.looked_at) == ((), True, 4)
    assert [line.run.id for line in rt.overview("state:committed", limit=2).runs] == ["r8", "r7"]


def test_what_is_unfinished_is_found_without_looking_at_what_has_ended(rt: Runtime, monkeypatch) -> None:
    opened = [rt.open(f"open-{number}", recover="wait") for number in range(3)]
    with suppress(Error), opened[0].child("below") as child:
        child.answer("charge", {"order": "lost"})
    filled(rt, 6)

    def fails(*_: object, **__: object) -> None:
        raise AssertionError("runs that have ended are not looked at")

    every = [line.run.id for line in rt.overview(limit=200).runs if line.run.state == "open"]
    assert len(every) >= 3
    monkeypatch.setattr(listing, "ListRuns", fails)
    seen: list[str] = []
    after = ""
    for _ in range(10):
        page = rt.overview("state:open", after=after, limit=1)
        assert len(page.runs) <= 1
        seen += [line.run.id for line in page.runs]
        if page.next is None:
            break
        after = page.next
    assert seen == every
    assert [line.run.id for line in rt.overview("state:open run:open-1").runs] == ["open-1"]
    assert [line.run.id for line in rt.overview("state:open tool:stock").runs] == []
    assert [line.run.id for line in rt.overview("state:blocked").runs] == ["open-0/below"]
    assert rt.overview("state:rolling_back").runs == ()
    monkeypatch.setattr(listing, "UNFINISHED_MAX", 2)
    with pytest.raises(AssertionError):
        rt.overview("state:open")  # too many: they are searched for
    for run in opened:
        run.release()


def test_a_run_of_very_many_calls_is_counted_and_its_sums_are_bounded(rt: Runtime, monkeypatch) -> None:
    monkeypatch.setattr(listing, "ReadOutlines", partial(ReadOutlines, limit=10))
    with rt.run("large"):
        for number in range(30):
            charge(order=f"o{number}")
    with rt.run("plain"):
        for number in range(20):
            stock(item=f"i{number}")
    found = rt.overview()
    assert {line.run.id: line.calls for line in found.runs} == {"large": 30, "plain": 20}
    assert not found.summed_all
    [large] = [line for line in found.runs if line.run.id == "large"]
    assert large.costs["usd"] == 20


def test_another_tenant_sees_its_own_runs_and_counts(rt: Runtime) -> None:
    filled(rt, 2)
    with rt.scoped(tenant="acme").run("theirs"):
        charge(order="x")
    found = rt.scoped(tenant="acme").overview()
    assert [line.run.id for line in found.runs] == ["theirs"]
    assert found.counts == {"committed": 1}


def test_both_colours_say_the_same(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, tools=[charge]) as rt:
        filled(rt, 3)
        here = rt.overview()

    async def there():
        async with AsyncRuntime(url, tools=[charge]) as other:
            return await other.overview()

    assert asyncio.run(there()) == here


def test_a_page_without_a_filter_reads_one_page_of_runs(rt: Runtime, monkeypatch) -> None:
    filled(rt, 5)
    asked: list[ListRuns] = []
    perform = type(rt._host.store).perform

    def seen(store, op):
        asked.extend([op] if isinstance(op, ListRuns) else [])
        return perform(store, op)

    monkeypatch.setattr(type(rt._host.store), "perform", seen)
    rt.overview(limit=3)
    assert [op.limit for op in asked] == [4]


@pytest.mark.parametrize("server", ["postgres_url", "mysql_url"])
def test_a_database_server_finds_what_is_named_or_unfinished_too(request: pytest.FixtureRequest, server: str) -> None:
    with Runtime(request.getfixturevalue(server), tools=[charge, stock]) as rt:
        filled(rt, 3)
        opened = rt.open("open-1", recover="wait")
        with opened.child("below") as child:
            child.answer("stock", {"item": "lamp"})
        assert [line.run.id for line in rt.overview("state:open").runs] == ["open-1"]
        assert [line.run.id for line in rt.overview("run:r1").runs] == ["r1"]
        assert [line.run.id for line in rt.overview("run:open-1/below").runs] == ["open-1/below"]
        assert {line.run.id for line in rt.overview("state:committed").runs} == {"r0", "r1", "r2", "open-1/below"}
        assert rt.overview("state:blocked").runs == ()
        opened.release()
