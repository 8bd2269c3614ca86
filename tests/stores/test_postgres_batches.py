"""Steps of many runs in one statement of PostgreSQL: done as if each were alone, or not at all."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from amends.ledger import operations as ops
from amends.ledger.plain import SettledPlain, SettlePlain, Started
from amends.ledger.rows import IdTaken, RunRow
from amends.stores.postgres.store import PostgresStore
from amends.testing.conformance.ledger import Clock, Ledger, audit
from tests.servers.databases import execute

RUNS = 6


@pytest.fixture
def ledger(postgres_url: str) -> Iterator[Ledger]:
    clock = Clock()
    with closing(PostgresStore(postgres_url, clock=clock)) as store:
        store.open(create=True)
        made = Ledger(store, clock=clock)
        yield made
        audit(made)


@pytest.fixture
def runs(ledger: Ledger) -> list[RunRow]:
    """Open runs; the tool is known."""
    opened = [ledger.run(f"run {number}") for number in range(RUNS)]
    ledger.start_plain(opened[0], args="[0]")
    ledger.start_plain(opened[0], args="[00]")
    return opened


def together(ledger: Ledger, asked: list[Any]) -> list[Any]:
    store: Any = ledger.store
    for op in asked:  # a batch knows only tools that were seen
        store._plain.tools.update({op.tool: 1} if not isinstance(op, SettlePlain) else {})
    return list(store._together(asked))


def test_a_batch_does_the_steps_of_many_runs(ledger: Ledger, runs: list[RunRow]) -> None:
    started = together(ledger, [ledger.plain_op(run, args="[1]", call_ref="r\N{SNOWMAN}") for run in runs])
    assert [type(one) for one in started] == [Started] * RUNS
    assert [ledger.look(one.row) for one in started] == [one.row for one in started]
    mixed: list[Any] = [SettlePlain(one, '"\N{SNOWMAN} \\u0000"') for one in started[:3]]
    mixed += [ledger.plain_op(run, args="[2]") for run in runs[3:]]
    answers = together(ledger, mixed)
    assert [type(one) for one in answers] == [SettledPlain] * 3 + [Started] * 3
    assert [ledger.look(one.row) for one in answers] == [one.row for one in answers]


def test_steps_that_are_not_plain_are_left_and_the_others_are_done(ledger: Ledger, runs: list[RunRow]) -> None:
    started = together(ledger, [ledger.plain_op(run, args="[1]") for run in runs])
    ledger(ops.NoteEvidence(started[0].row.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    ledger(ops.BeginRollback(runs[2].uid, "ann", "no", True))
    asked: list[Any] = [
        SettlePlain(started[0], '"ok"'),  # something was learned
        ledger.plain_op(runs[1], args="[1]"),  # the key exists
        ledger.plain_op(runs[2], args="[2]"),  # the run goes back
        ledger.plain_op(runs[3], args="[2]", epoch=7),  # another epoch
        SettlePlain(started[4], '"ok"'),
        ledger.plain_op(runs[5], args="[2]"),
    ]
    before = ledger.events()
    answers = together(ledger, asked)
    assert [type(one) for one in answers] == [type(None)] * 4 + [SettledPlain, Started]
    assert len(ledger.events()) == len(before) + 2


@pytest.mark.parametrize("args", ['"\ud800"', '"\x00"'])
def test_a_text_that_cannot_be_sent_is_the_trouble_of_its_own_caller(
    ledger: Ledger, runs: list[RunRow], args: str
) -> None:
    asked = [ledger.plain_op(run, args="[1]") for run in runs]
    asked[2].args = args

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*map(ledger.store.perform_async, asked), return_exceptions=True)

    together(ledger, asked[:1])
    answers = asyncio.run(all_at_once())
    assert not any(isinstance(one, BaseException) for place, one in enumerate(answers) if place != 2), answers
    assert len(ledger.calls()) in (RUNS + 1, RUNS + 2)


@pytest.mark.parametrize("colour", ["threads", "loop"])
def test_an_id_that_is_taken_fails_no_other_step_of_its_batch(ledger: Ledger, runs: list[RunRow], colour: str) -> None:
    [taken] = together(ledger, [ledger.plain_op(runs[0], args="[9]")])
    asked = [ledger.plain_op(run, args="[1]") for run in runs]
    together(ledger, [ledger.plain_op(run, args="[8]") for run in runs])
    for op in asked:
        ledger.store._plain.tools[op.tool] = 1  # type: ignore[attr-defined]
    asked[2].number = taken.op.number
    assert together(ledger, asked) == [None] * RUNS, "one statement does all of them or none"

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*map(ledger.store.perform_async, asked), return_exceptions=True)

    def alone(op: Any) -> Any:
        try:
            return ledger.store.perform(op)
        except AssertionError as error:
            return error

    if colour == "loop":
        answers = asyncio.run(all_at_once())
    else:
        with ThreadPoolExecutor(RUNS) as threads:
            answers = list(threads.map(alone, asked))
    assert [type(one) for one in answers] == [IdTaken if place == 2 else Started for place in range(RUNS)]
    assert not asked[2].repeated, "it is known that nothing was written"
    asked[2].number = ledger.new_number()
    assert isinstance(ledger.store.perform(asked[2]), Started)


@pytest.mark.parametrize("colour", ["threads", "loop"])
def test_many_callers_come_together(ledger: Ledger, runs: list[RunRow], postgres_url: str, colour: str) -> None:
    store: Any = ledger.store
    sizes: list[int] = []
    batched = store._plain.together

    def counted(asked: Any) -> Any:
        sizes.append(len(asked))
        return batched(asked)

    store._plain.together = counted
    asked = [[ledger.plain_op(run, args=f"[{number}]") for number in range(10, 20)] for run in runs]

    def live(mine: list[Any]) -> None:
        for op in mine:
            store.perform(SettlePlain(store.perform(op), '"ok"'))

    async def live_async(mine: list[Any]) -> None:
        for op in mine:
            await store.perform_async(SettlePlain(await store.perform_async(op), '"ok"'))

    async def all_at_once() -> None:
        await asyncio.gather(*map(live_async, asked))

    if colour == "loop":
        asyncio.run(all_at_once())
    else:
        with ThreadPoolExecutor(RUNS) as pool:
            assert list(pool.map(live, asked)) == [None] * RUNS
    assert max(sizes) > 1
    assert execute(postgres_url, ["select count(*) from amends_call where state = 'succeeded'"]) == [(10 * RUNS,)]
