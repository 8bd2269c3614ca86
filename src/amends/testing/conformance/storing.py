"""Storing: what is written is read back exactly; nothing is folded, rounded or cut."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from amends.errors import Error
from amends.ledger import operations as ops
from amends.ledger.rows import CallRow, IdTaken, RunRow
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import check, check_each

TEXTS: Final[dict[str, str]] = {
    "empty": "",
    "quotes": """'"`\\ %s %(a)s :a ? $1 {x} -- /* */""",
    "lines": " \tone\r\ntwo\n ",
    "accents": "é e\u0301 ß İı ﬀ",
    "beyond the first plane": "😀 𝒜 \U0010ffff",
    "long": "0123456789abcdef" * 8_192,
}
"""Text that some database somewhere folds, cuts, quotes wrongly or refuses."""

ALIKE: Final[dict[str, tuple[str, str]]] = {
    "case": ("order", "ORDER"),
    "accent": ("cafe", "café"),
    "form": ("caf\u00e9", "cafe\u0301"),
    "space at the end": ("order", "order "),
    "sharp s": ("strasse", "straße"),
    "wildcard": ("order_1", "orderx1"),
}
"""Two names each, which some collation takes for one."""

TIMES: Final = (1_700_000_000.123456, 1_763_187_012.000001, 0.1, 2_147_483_648.5)
UNSTORABLE: Final[dict[str, str]] = {"nul": "a\0b", "surrogate": "a\ud800b"}
CALLERS: Final = 8
EACH: Final = 5


@check_each(TEXTS)
def text_comes_back_as_it_was_written(ledger: Ledger, text: str) -> None:
    run = ledger.run("order", input=text, agent=text, tags=text)
    call = ledger.start(run, args=text)
    settled = ledger.settle(call, result=text, error=text, why=text, loss=text).call
    found = ledger.look(call)
    assert found == settled
    assert (found.args, found.result, found.error, found.why, found.loss) == (text,) * 5
    decision = ledger(ops.DecideCommit(run.uid, "a", 1, text))
    kept = ledger.read(run)
    assert kept == decision.run
    assert (kept.input, kept.agent, kept.tags, kept.output) == (text,) * 4


@check_each(TEXTS)
def a_persons_word_comes_back_as_it_was_said(ledger: Ledger, text: str) -> None:
    run = ledger.run()
    doubt = ledger.settle(ledger.start(run), "in_doubt").call
    ledger.close(run, "blocked", causes=(text, "other"))
    assert json.loads(ledger.read(run).causes) == [text, "other"]
    ledger(ops.ResolveCall(doubt.id, "failed", "ann", text))
    assert ledger.look(doubt).why == text
    ledger(ops.AbandonRun(run.uid, "ann", text))
    assert ledger.read(run).goal_why == text


@check_each({"plain": True, "general": False})
def an_id_is_of_one_call(ledger: Ledger, is_plain: bool) -> None:
    """Two processes may draw the same id: the second is told so, also when it repeats its request, and writes nothing."""
    mine, other = ledger.run("mine"), ledger.run("other")
    first = ledger.start_plain(mine, args='"mine"')
    row = ledger.look(first.row)
    before = ledger.events(other)
    for repeated in (False, True):
        if is_plain:
            op: ops.StoreOp[Any] = ledger.plain_op(other, args='"other"')
            op.number = first.op.number  # type: ignore[attr-defined]
        else:
            op = ledger.admit_op(other, args='"other"', call_id=row.id)
        op.repeated = repeated
        try:
            answer = ledger.raw(op)
        except IdTaken:
            pass
        else:
            raise AssertionError(f"the call of another run was answered with {answer!r}")
    assert ledger.look(row) == row
    assert ledger.events(other) == before
    assert ledger.start(other, args='"other"').root == other.uid
    again = ledger.plain_op(mine, args='"mine"')
    again.number, again.repeated = first.op.number, True
    assert ledger.raw(again).call == row, "whoever repeats its own request gets its own call"


@check_each(ALIKE)
def names_that_look_alike_are_two_runs(ledger: Ledger, names: tuple[str, str]) -> None:
    one, other = names
    assert [ledger.open(one).how, ledger.open(other).how] == ["fresh", "fresh"]
    assert ledger(ops.ReadRun("acme", one)).run.id == one
    assert ledger(ops.ReadRun("acme", other)).run.id == other


@check_each(ALIKE)
def tenants_that_look_alike_are_two_tenants(ledger: Ledger, names: tuple[str, str]) -> None:
    runs: list[RunRow] = [ledger.run("order", tenant=name) for name in names]
    for name, run in zip(names, runs, strict=True):
        assert ledger(ops.ListRuns(name)) == [run]
        assert [event.tenant for event in ledger(ops.ReadEvents(name))] == [name]
        assert ledger(ops.ReadRun(name, "order")).run == run


@check_each(ALIKE)
def keys_that_look_alike_are_two_calls(ledger: Ledger, names: tuple[str, str]) -> None:
    run = ledger.run()
    calls: list[CallRow] = [ledger.do(run, key=name, args=name) for name in names]
    assert [call.generation for call in calls] == [1, 1]
    for name, call in zip(names, calls, strict=True):
        again = ledger.admit(run, key=name, args=name)
        assert (again.verdict, again.call) == ("replay", call)


@check
def owners_that_look_alike_are_two_owners(ledger: Ledger) -> None:
    run = ledger.run("order", owner="host-A")
    renewed = ledger(ops.RenewLeases("host-a", {run.uid: 1}, 30.0))
    assert dict(renewed.goals) == {}
    assert ledger.claim(run, dead_owner="host-a") is None
    assert ledger.claim(run, dead_owner="host-A") is not None


@check
def time_is_kept_to_the_microsecond(ledger: Ledger) -> None:
    for place, now in enumerate(sorted(TIMES)):
        ledger.clock.now = now
        run = ledger.run(f"run {place}", deadline_s=0.000001)
        assert (run.created_at, run.lease_until, run.deadline_at) == (now, now + 30.0, now + 0.000001)
        assert ledger.read(run) == run
        assert ledger.events()[-1].at == now


@check
def a_monotonic_clock_is_kept_exactly(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "in_doubt").call
    for mono in (0.0, 1e-9, 123_456.789_012_345, 9_007_199_254.740_993):
        watched = ledger(ops.WatchDoubt(call.id, 1, "boot", mono))
        assert watched.quiet_mono == mono
        assert ledger.look(call) == watched


@check_each(UNSTORABLE)
def text_that_cannot_be_written_is_refused_wholly_or_kept(ledger: Ledger, text: str) -> None:
    run = ledger.run()
    started = ledger.start(run, "ship")
    doubt = ledger.settle(ledger.start(run, "mail"), "in_doubt").call
    asked: list[ops.StoreOp[Any]] = [
        ledger.open_op("other", input=text),
        ledger.admit_op(run, args=text),
        ledger.settle_op(started, result=text),
        ops.ResolveCall(doubt.id, "failed", "ann", text),
        ops.AbandonRun(run.uid, "ann", text),
    ]
    for op in asked:
        before = ledger.everything()
        try:
            ledger(op)
        except (Error, ValueError):
            assert ledger.everything() == before, f"{type(op).__name__} was refused and left something behind"
    assert ledger.admit(ledger.run("next"), key="next").verdict == "start", "the store goes on after a refusal"


# ---- who asks -----------------------------------------------------------------------------


@check
def threads_that_ask_at_once_are_all_answered(ledger: Ledger) -> None:
    """In both colours: a store belongs to the process, not to one thread or one event loop."""
    runs = [ledger.run(f"run {number}") for number in range(CALLERS)]

    def hammer(run: RunRow) -> list[str]:
        mine = Ledger(ledger.store, ledger.colour, ledger.clock, made=1000 * (1 + runs.index(run)))
        for number in range(EACH):
            mine.do(run, f"tool {number}")
        return [mine.admit(run, f"tool {number}").verdict for number in range(EACH)]

    with ThreadPoolExecutor(CALLERS) as pool:
        assert list(pool.map(hammer, runs)) == [["replay"] * EACH] * CALLERS


@check
def one_event_loop_asks_many_things_at_once(ledger: Ledger) -> None:
    run = ledger.run()
    asked = [ledger.admit_op(run, f"tool {number}") for number in range(CALLERS)]

    async def together() -> list[ops.Admission]:
        return await asyncio.gather(*(ledger.store.perform_async(op) for op in asked))

    admitted = asyncio.run(together()) if ledger.runner is None else ledger.runner.run(together())
    assert [one.verdict for one in admitted] == ["start"] * CALLERS
    assert [one.call.id for one in admitted if one.call] == [op.call_id for op in asked]
    assert len(ledger.calls()) == CALLERS


@check
def both_colours_of_one_store_see_one_ledger(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.do(run)
    assert ledger.store.perform(ledger.admit_op(run)).verdict == "replay"
    answer = asyncio.run(ledger.store.perform_async(ledger.admit_op(run)))
    assert (answer.verdict, answer.call) == ("replay", call)
