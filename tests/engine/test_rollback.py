"""Going back: order, keys, retries, doubt and guards of compensations."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from amends import (
    Absent,
    Happened,
    Retry,
    RolledBack,
    RunBlocked,
    Runtime,
    Unknown,
    current_call,
    tool,
)
from amends.errors import InDoubt
from tests.world import FAST, ONCE, World, runtime, states, until


def _fail(rt, *calls, run_id: str = "r") -> None:
    with pytest.raises(KeyError), rt.run(run_id):
        for call in calls:
            call()
        raise KeyError


def test_compensations_run_in_reverse_order_of_settling() -> None:
    world = World()
    a, b, c = (world.compensatable(name) for name in "abc")
    _fail(runtime(a, b, c), a, b, c)
    assert world.log == ["a:1", "b:1", "c:1", "undo c:1", "undo b:1", "undo a:1"]


def test_parallel_calls_are_taken_back_in_reverse_order_of_settling_not_of_starting() -> None:
    world = World()
    slow, quick = world.compensatable("slow"), world.compensatable("quick")
    gate = threading.Event()
    world.script["slow"] = [gate]
    rt = runtime(slow, quick)
    with pytest.raises(KeyError), rt.run("r") as run:
        first = run.submit(slow)
        until(lambda: bool(list(rt.calls("status:started"))))
        quick()
        gate.set()
        first.result(30)
        raise KeyError
    assert world.log == ["quick:1", "slow:1", "undo slow:1", "undo quick:1"]


def test_failed_calls_and_reads_are_not_taken_back() -> None:
    world = World()
    a, b, look = world.compensatable("a"), world.compensatable("b"), world.read()
    world.script["b"] = [ValueError()]
    with pytest.raises(ValueError), runtime(a, b, look).run("r"):
        look()
        a()
        b()
    assert world.log == ["look:1", "a:1", "undo a:1"]


def test_a_compensation_asks_by_name_for_result_call_and_arguments() -> None:
    seen: list[object] = []

    @tool
    def pay(order: str, cents: int = 5) -> dict[str, str]:
        return {"id": "ch_1"}

    @pay.compensate
    def refund(result: dict[str, str], call, cents: int, note: str = "default") -> None:
        seen.append((result, call.tool, call.args, cents, note))

    rt = runtime(pay)
    _fail(rt, lambda: pay(order="7"))
    assert seen == [({"id": "ch_1"}, "pay", {"order": "7", "cents": 5}, 5, "default")]


def test_a_compensation_has_a_key_of_its_own_and_call_is_the_call_it_takes_back() -> None:
    keys: dict[str, str] = {}
    phases: list[str] = []

    @tool
    def pay() -> None:
        keys["pay"] = current_call().key

    @pay.compensate
    def refund(call) -> None:
        keys["refund"] = current_call().key
        keys["taken back"] = call.key
        phases.append(current_call().phase)

    rt = runtime(pay)
    _fail(rt, pay)
    assert keys["pay"] == keys["taken back"] != keys["refund"]
    assert phases == ["compensate"]
    (call,) = rt.calls()
    assert call.compensation is not None
    assert call.compensation.key == keys["refund"]


def test_a_compensation_is_retried_with_the_same_key() -> None:
    keys: list[str] = []

    @tool
    def pay() -> None: ...

    @pay.compensate(retry=Retry(attempts=3, delay=0.01, factor=2.0, jitter=0.0))
    def refund() -> None:
        keys.append(current_call().key)
        if len(keys) < 3:
            raise ValueError("not now")

    rt = runtime(pay)
    began = time.monotonic()
    _fail(rt, pay)
    assert time.monotonic() - began >= 0.03
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert rt.report("r").state == "rolled_back"


def test_a_compensation_that_gives_up_blocks_the_run_and_retry_finishes_it() -> None:
    world = World()
    a, b, c = world.compensatable("a"), world.compensatable("b", twin={"retry": ONCE}), world.compensatable("c")
    world.script["undo b"] = [ValueError("no way")]
    rt = runtime(a, b, c)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        a(), b(), c()
        raise KeyError
    assert world.log[3:] == ["undo c:1", "undo a:1"]
    assert states(rt, "r") == {"a": "compensated", "b": "compensation_failed", "c": "compensated"}
    (stuck,) = [call for call in rt.calls() if call.tool == "b"]
    assert f"rt.retry('{stuck.id}'" in blocked.value.causes[0]
    assert [left.call.tool for left in rt.report("r").residue] == ["b"]
    report = rt.retry(stuck.id, by="anna", why="fixed")
    assert report.state == "rolled_back"
    assert report.residue == ()
    assert world.standing == []


def test_a_compensation_in_doubt_is_not_repeated_and_a_person_resolves_it() -> None:
    world = World()
    pay = world.compensatable("pay", twin={"retry": FAST})
    world.script["undo pay"] = [(TimeoutError("lost"),)]
    rt = runtime(pay)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        pay()
        raise KeyError
    assert [call.state for call in blocked.value.doubts] == ["compensation_in_doubt"]
    assert world.log == ["pay:1", "undo pay:1"]
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Happened(None), by="anna", why="seen").state == "rolled_back"
    assert world.log == ["pay:1", "undo pay:1"]


def test_a_compensation_in_doubt_that_did_not_happen_is_started_again() -> None:
    world = World()
    pay = world.compensatable("pay")
    world.script["undo pay"] = [TimeoutError("lost")]
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay()
        raise KeyError
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Absent(), by="anna", why="seen").state == "rolled_back"
    assert world.standing == []


def test_an_idempotent_compensation_in_doubt_is_started_again_by_itself() -> None:
    world = World()
    pay = world.compensatable("pay", twin={"retry": FAST, "idempotent": True})
    world.script["undo pay"] = [(TimeoutError("lost"),)]
    rt = runtime(pay)
    _fail(rt, pay)
    assert world.log == ["pay:1", "undo pay:1", "undo pay:1"]
    assert rt.report("r").state == "rolled_back"


@pytest.mark.parametrize("undone", [True, False])
def test_a_compensations_own_probe_settles_its_doubt(undone: bool) -> None:
    world = World()

    def gone():
        return Happened(None) if "pay:1" not in world.standing else Absent()

    pay = world.compensatable("pay", twin={"retry": FAST, "probe": gone})
    world.script["undo pay"] = [(TimeoutError(),) if undone else TimeoutError()]
    rt = runtime(pay)
    _fail(rt, pay)
    assert world.log == ["pay:1", "undo pay:1"]
    assert rt.report("r").state == "rolled_back"


def test_a_compensation_past_its_timeout_is_in_doubt() -> None:
    world = World()
    pay = world.compensatable("pay", twin={"timeout": 0.02})
    world.script["undo pay"] = [0.1]
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay()
        raise KeyError
    assert states(rt, "r") == {"pay": "compensation_in_doubt"}


def test_a_guard_that_says_no_leaves_the_effect_and_names_it() -> None:
    world = World()
    a, pay = world.compensatable("a"), world.compensatable("pay")
    asked: list[str] = []

    @pay.guard
    def unchanged(x: str, result: str) -> bool:
        asked.append(result)
        return False

    rt = runtime(a, pay)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        a()
        pay()
        raise KeyError
    assert asked == ["pay:1"]
    assert world.standing == ["pay:1"]
    assert [left.call.tool for left in blocked.value.residue] == ["pay"]
    assert "somebody else changed it" in blocked.value.residue[0].why


def test_a_guard_that_says_yes_lets_the_compensation_run() -> None:
    world = World()
    pay = world.compensatable("pay")
    pay.guard(lambda result: True)
    rt = runtime(pay)
    _fail(rt, pay)
    assert world.standing == []


def test_a_guard_that_raises_overwrites_nothing() -> None:
    world = World()
    pay = world.compensatable("pay", twin={"retry": ONCE})

    @pay.guard
    def broken() -> bool:
        raise ValueError("cannot see")

    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay()
        raise KeyError
    assert world.standing == ["pay:1"]


@pytest.mark.parametrize("options", [{"absent_ok": True}, {"wins": True}])
def test_a_call_in_doubt_is_compensated_where_the_compensation_tolerates_absence(options) -> None:
    world = World()
    pay = world.compensatable("pay", twin=options)
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay)
    with pytest.raises(InDoubt), rt.run("r"):
        pay()
    assert world.log == ["pay:1", "undo pay:1"]
    assert rt.report("r").state == "rolled_back"


def test_absent_ok_waits_for_the_settle_delay_and_wins_does_not() -> None:
    for options, settle, least in (({"absent_ok": True}, 0.06, 0.06), ({"wins": True}, 3600, 0.0)):
        world = World()
        pay = world.compensatable("pay", twin=options, settle=settle)
        world.script["pay"] = [TimeoutError()]
        rt = runtime(pay)
        began = time.monotonic()
        with pytest.raises(InDoubt), rt.run("r"):
            pay()
        assert time.monotonic() - began >= least
        assert rt.report("r").state == "rolled_back"


def test_a_doubt_that_waits_for_a_person_is_passed_over_and_taken_back_later() -> None:
    world = World()
    a, pay = world.compensatable("a"), world.compensatable("pay")
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(a, pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        a()
        pay()
    assert world.log == ["a:1", "pay:1", "undo a:1"]
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Happened("pay:1"), by="anna", why="seen").state == "rolled_back"
    assert world.standing == []


def test_a_doubt_that_a_person_cannot_resolve_is_residue_and_never_rolled_back() -> None:
    world = World()
    pay = world.compensatable("pay")
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay()
    (doubt,) = rt.doubts()
    report = rt.resolve(doubt.id, Unknown(), by="anna", why="nobody knows")
    assert [left.call.tool for left in report.residue] == ["pay"]
    assert report.state == "blocked"
    assert "rt.abandon(" in report.run.causes[0]
    report = rt.abandon("r", by="anna", why="so be it")
    assert (report.state, [left.call.tool for left in report.residue]) == ("abandoned", ["pay"])


def test_a_rollback_asked_for_in_the_block_raises_with_the_report() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    with pytest.raises(RolledBack) as back, rt.run("r") as run:
        a()
        run.rollback("risk too high")
    assert back.value.report.state == "rolled_back"
    assert [call.state for call in back.value.report.calls] == ["compensated"]
    assert world.standing == []


def test_no_compensation_starts_while_a_call_of_the_run_is_started() -> None:
    world = World()
    a, slow = world.compensatable("a"), world.compensatable("slow")
    gate = threading.Event()
    world.script["slow"] = [gate]
    rt = runtime(a, slow)
    with pytest.raises(KeyError), rt.run("r") as run:
        a()
        thread = threading.Thread(target=run.bind(slow))
        thread.start()
        until(lambda: bool(list(rt.calls("status:started"))))
        threading.Timer(0.05, gate.set).start()
        raise KeyError
    thread.join()
    assert world.log == ["a:1", "slow:1", "undo slow:1", "undo a:1"]


def test_a_guard_that_times_out_has_started_no_compensation() -> None:
    tries: list[str] = []

    @tool
    def write(n: int) -> int:
        return n

    @write.compensate
    def unwrite(n: int) -> None:
        tries.append("undone")

    @write.guard
    def unchanged(n: int) -> bool:
        tries.append("looked")
        if len(tries) == 1:
            raise TimeoutError("no answer")
        return True

    rt = Runtime("memory:", tools=[write])
    with pytest.raises(KeyError), rt.run("r"):
        write(n=1)
        raise KeyError
    assert rt.report("r").state == "rolled_back"
    assert tries == ["looked", "looked", "undone"]


def _priced(prices: dict[str, int], **options: Any) -> Any:
    @tool(key="sku", on_conflict="next", **options)
    def set_price(sku: str, cents: int) -> int:
        prices[sku] = cents
        return cents

    set_price.before(lambda sku: prices[sku])
    set_price.guard(lambda sku, cents: prices[sku] == cents)
    set_price.compensate(set_price)
    return set_price


def test_a_compensation_passed_over_by_its_guard_holds_back_older_ones_of_the_same_lock() -> None:
    prices = {"tea": 1, "mate": 1}
    set_price = _priced(prices, locks=lambda call: [f"price:{call.args['sku']}"])

    @tool(locks=lambda call: ["price:tea"])
    def discount(cents: int) -> None:
        prices["tea"] -= cents

    discount.compensate(lambda cents: prices.update(tea=prices["tea"] + cents))
    rt = runtime(set_price, discount)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        set_price("mate", 5)
        discount(1)
        set_price("tea", 7)
        prices["tea"] = 99  # somebody else
        raise KeyError
    assert prices == {"tea": 99, "mate": 1}, "another lock is not held back"
    calls = {call.tool + str(call.args.get("sku", "")): call for call in rt.report("r").calls}
    assert {name: call.state for name, call in calls.items()} == {
        "set_pricemate": "compensated", "discount": "succeeded", "set_pricetea": "compensation_failed",
    }  # fmt: skip
    assert any("further back would overwrite" in cause for cause in blocked.value.causes)
    prices["tea"] = 7  # the stranger took it back
    rt.retry(calls["set_pricetea"].id, by="ann", why="it is ours again")
    until(lambda: bool(rt.recover()) or rt.report("r").state == "rolled_back")
    assert (prices, rt.report("r").state) == ({"tea": 1, "mate": 1}, "rolled_back")
    assert rt.verify().ok


def test_what_a_guard_held_back_stays_held_back_when_a_person_accepts_the_newer_one() -> None:
    prices = {"tea": 1}
    set_price = _priced(prices, locks=lambda call: ["tea"])
    rt = runtime(set_price)
    with pytest.raises(RunBlocked), rt.run("r"):
        set_price("tea", 5)
        set_price("tea", 7)
        prices["tea"] = 99
        raise KeyError
    older, newer = rt.report("r").calls
    rt.accept(newer.id, by="ann", why="theirs now")
    rt.recover()
    assert prices == {"tea": 99}
    assert [call.state for call in rt.report("r").calls] == ["succeeded", "residue"]
    rt.accept(older.id, by="ann", why="and so is that")
    assert prices == {"tea": 99}


def test_without_a_common_lock_nothing_is_held_back() -> None:
    prices = {"tea": 1, "mate": 1}
    set_price = _priced(prices, locks=lambda call: [call.args["sku"]])
    with pytest.raises(RunBlocked), runtime(set_price).run("r"):
        set_price("mate", 5)
        set_price("tea", 7)
        prices["tea"] = 99
        raise KeyError
    assert prices == {"tea": 99, "mate": 1}


def test_call_key_means_the_call_in_a_compensation_and_in_its_probe() -> None:
    seen: dict[str, tuple[str, str, str]] = {}
    sent: list[str] = []

    @tool
    def charge() -> None:
        sent.append(current_call().key)

    def look(call: Any) -> Any:
        seen["probe"] = (call.key, call.compensation.key, current_call().key)
        return Happened(None)

    @charge.compensate(probe=look)
    def refund(call: Any) -> None:
        seen["compensation"] = (call.key, call.compensation.key, current_call().key)
        raise TimeoutError

    _fail(runtime(charge), charge)
    assert seen["probe"] == seen["compensation"]
    key, own, current = seen["compensation"]
    assert (key, own) == (sent[0], current)
    assert key != own


def _overwritten(prices: dict[str, int]) -> Any:
    """Return a runtime and the calls of a run that is blocked: its second value was overwritten by somebody else."""
    set_price = _priced(prices, locks=lambda call: ["tea"])
    rt = runtime(set_price)
    with pytest.raises(RunBlocked), rt.run("r"):
        set_price("tea", 2)
        set_price("tea", 3)
        prices["tea"] = 99
        raise KeyError
    return rt, rt.report("r").calls


def test_older_ones_go_on_once_a_person_has_compensated_by_hand_what_the_guard_passed_over() -> None:
    prices = {"tea": 1}
    rt, (_, newest) = _overwritten(prices)
    prices["tea"] = 2
    rt.resolve(newest.id, Happened(None), by="ann", why="set back by hand")
    assert (rt.report("r").state, prices) == ("rolled_back", {"tea": 1})
    assert rt.verify().ok


def test_what_a_person_accepted_is_not_to_be_retried() -> None:
    rt, (older, newest) = _overwritten({"tea": 1})
    rt.accept(newest.id, by="ann", why="theirs")
    (item,) = rt.inbox()
    assert f"rt.accept('{older.id}'" in item.why
    assert "rt.retry" not in item.why
