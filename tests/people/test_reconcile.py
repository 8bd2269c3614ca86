"""The ledger beside the world: everything that was planted is found, and nothing else is."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Happened, InDoubt, RunBlocked, Runtime, Unknown, UsageError, current_call, tool
from amends.errors import BadDeclaration, NoRun, UnknownTool
from tests.world import ONCE

HOWS = ["keys", "args", "probe", "keys and probe", "args and probe"]


class Bank:
    """A destination: payments by the key that they came with."""

    def __init__(self, how: str, *, settle: float = 0.0) -> None:
        self.payments: dict[str, dict[str, Any]] = {}
        self.fails: dict[str, Any] = {}
        self.undo_fails: set[str] = set()
        self.asked = 0

        @tool(key="order")
        def pay(order: str, cents: int = 1) -> str:
            turn = self.fails.get(order)
            if isinstance(turn, Exception):
                raise turn
            self.payments[current_call().key] = {"order": order, "cents": cents, "id": f"p{len(self.payments)}"}
            if turn is not None:
                raise turn[0]
            return order

        @pay.compensate(retry=ONCE)
        def refund(order: str, call: Any) -> None:
            if order in self.undo_fails:
                raise ValueError("no")
            self.payments.pop(call.key, None)

        if "probe" in how:

            @pay.probe(settle=settle)
            def find(order: str) -> Any:
                self.asked += 1
                if any(payment["order"] == order for payment in self.payments.values()):
                    return Happened(order)
                return Absent()

        if "keys" in how:
            pay.list_effects(lambda: list(self.payments))
        elif "args" in how:
            pay.list_effects(lambda: [dict(payment) for payment in self.payments.values()])
        self.pay: Any = pay


def _run(rt: Any, bank: Bank, order: str, *, fails: Any = None, back: bool = False, times: int = 1) -> None:
    if fails is not None:
        bank.fails[order] = fails
    try:
        with rt.run(f"run-{order}") as run:
            for _ in range(times):
                try:
                    run.call(bank.pay, order=order)
                except ValueError:
                    bank.fails.pop(order, None) if times > 1 else None
                except InDoubt:
                    pass
            if back:
                raise KeyError
    except (KeyError, RunBlocked):
        pass


def _key_of(bank: Bank, order: str) -> str:
    return next(key for key, payment in bank.payments.items() if payment["order"] == order)


@pytest.mark.parametrize("how", HOWS)
def test_fifty_planted_mismatches_are_all_found_and_nothing_else_is(how: str) -> None:
    bank = Bank(how)
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    luck = random.Random(7)
    for n in range(60):
        _run(rt, bank, f"done-{n}")
        _run(rt, bank, f"back-{n}", back=True)
        _run(rt, bank, f"fail-{n}", fails=ValueError("declined"))
    for n in range(5):
        _run(rt, bank, f"again-{n}", fails=ValueError("once"), times=2)  # generation 1 failed, generation 2 stands
    clean = rt.reconcile("pay")
    assert clean.agrees
    assert (clean.missing, clean.unrecorded, clean.doubts, clean.unclear) == ((), (), (), ())
    gone = {f"done-{n}" for n in luck.sample(range(60), 20)} | {f"again-{n}" for n in range(5)}
    for order in gone:
        del bank.payments[_key_of(bank, order)]
    late = {f"fail-{n}" for n in luck.sample(range(60), 15)}
    keys = {call.args["order"]: call.key for call in rt.calls("status:failed")}
    for order in late:
        bank.payments[keys[order]] = {"order": order, "cents": 1, "id": "late"}
    foreign = {f"foreign-{n}" for n in range(10)} if how != "probe" else set()
    for order in foreign:
        bank.payments[f"key of {order}"] = {"order": order, "cents": 1, "id": "x"}
    found = rt.reconcile("pay")
    assert {one.call.args["order"] for one in found.missing if one.call is not None} == gone
    assert len(found.missing) == len(gone)
    known = {one.call.args["order"] for one in found.unrecorded if one.call is not None}
    assert known == late
    strange = [one.effect for one in found.unrecorded if one.call is None]
    if "keys" in how:
        assert set(strange) == {f"key of {order}" for order in foreign}
    else:
        assert {effect["order"] for effect in strange} == foreign
    assert len(found.orphans) == len(gone) + len(late) + len(foreign) == (50 if foreign else 40)
    assert (found.doubts, found.unclear) == ((), ())


@pytest.mark.parametrize("how", HOWS)
def test_looking_twice_says_the_same_and_changes_nothing(how: str) -> None:
    bank = Bank(how)
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    _run(rt, bank, "1")
    _run(rt, bank, "2")
    del bank.payments[_key_of(bank, "1")]
    events = list(rt.events())
    first, second = rt.reconcile("pay"), rt.reconcile(bank.pay)
    assert first.to_dict() == second.to_dict()
    assert list(rt.events()) == events
    assert str(first).splitlines()[1].strip().startswith("only in the ledger: call_")


@pytest.mark.parametrize("how", ["keys", "args", "probe"])
@pytest.mark.parametrize("there", [True, False])
def test_a_doubt_is_told_with_what_the_world_says_and_is_no_orphan(how: str, there: bool) -> None:
    bank = Bank(how.replace("probe", ""))  # without its probe nobody settles it meanwhile
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    _run(rt, bank, "1", fails=(TimeoutError(),) if there else TimeoutError())
    later = bank
    if how == "probe":
        later = Bank("probe")
        later.payments = bank.payments
    found = Runtime(store=rt._host.store, tools=[later.pay]).reconcile("pay")
    assert found.agrees
    ((doubt),) = found.doubts
    assert doubt.why == {
        ("probe", True): "the world has it",
        ("probe", False): "the world does not have it",
    }.get((how, there), "it is listed" if there else "it is not listed")


def test_calls_that_run_while_the_world_is_listed_are_no_orphans() -> None:
    """One is done, one is taken back and one is begun between the two looks at the ledger."""
    bank = Bank("keys")
    store_rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    _run(store_rt, bank, "kept")
    open_run = store_rt.open("run-back")
    open_run.call(bank.pay, order="back")
    begun = store_rt.open("run-begun")

    def listing() -> list[str]:
        keys = list(bank.payments)
        asyncio.run(asyncio.sleep(0))
        from threading import Thread

        def meanwhile() -> None:
            _run(store_rt, bank, "new")
            begun.call(bank.pay, order="begun")
            with pytest.raises(Exception, match="rolled back"):
                open_run.rollback("enough")

        thread = Thread(target=meanwhile)
        thread.start()
        thread.join()
        return keys

    bank.pay.list_effects(listing)
    rt = Runtime(store=store_rt._host.store, tools=[bank.pay], wait=0.0)
    found = rt.reconcile("pay")
    assert found.agrees
    assert found.compared == 4


def test_another_tenants_effects_are_neither_orphans_nor_told() -> None:
    bank = Bank("args")
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    one, two = rt.scoped(tenant="one"), rt.scoped(tenant="two")
    _run(one, bank, "1")
    _run(two, bank, "2")
    _run(rt, bank, "3")
    for view in (rt, one, two):
        assert view.reconcile("pay").agrees
        assert view.reconcile("pay").compared == 1
    del bank.payments[_key_of(bank, "1")]
    assert rt.reconcile("pay").agrees
    assert two.reconcile("pay").agrees
    assert [m.call.args["order"] for m in one.reconcile("pay").missing if m.call is not None] == ["1"]


def test_a_listing_may_ask_for_its_tenant() -> None:
    asked: list[Any] = []

    @tool
    def pay(order: str) -> str:
        return order

    pay.compensate(lambda order: None)

    @pay.list_effects
    def listing(tenant: str | None) -> list[str]:
        asked.append(tenant)
        return []

    rt = Runtime("memory:", tools=[pay])
    rt.reconcile("pay")
    rt.scoped(tenant="a").reconcile("pay")
    assert asked == [None, "a"]


@pytest.mark.parametrize("how", ["keys", "args"])
def test_what_gc_removed_is_still_known(how: str) -> None:
    bank = Bank(how)
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    _run(rt, bank, "1")
    _run(rt, bank, "2")
    rt.gc(older_than=0.0)
    assert {call.gone_at is None for call in rt.calls()} == {False}
    assert rt.reconcile("pay").agrees
    del bank.payments[_key_of(bank, "1")]
    bank.payments["foreign"] = {"order": "3"}
    found = rt.reconcile("pay")
    assert [one.call.run_id for one in found.missing if one.call is not None] == ["run-1"]
    assert [one.call for one in found.unrecorded] == [None]


@pytest.mark.parametrize("how", ["keys", "args"])
def test_one_effect_too_many_is_found(how: str) -> None:
    bank = Bank(how)
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    _run(rt, bank, "1")
    key = _key_of(bank, "1")
    effects: list[Any] = [key, key] if how == "keys" else [{"order": "1"}, {"order": "1"}]
    bank.pay.list_effects(lambda: effects)
    rt = Runtime(store=rt._host.store, tools=[bank.pay])
    found = rt.reconcile("pay")
    assert (len(found.missing), len(found.unrecorded)) == (0, 1)


def test_runs_with_the_same_identity_are_counted() -> None:
    bank = Bank("args")
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    for id in ("a", "b", "c"):
        with rt.run(id) as run:
            run.call(bank.pay, order="7")
    assert rt.reconcile("pay").agrees
    del bank.payments[_key_of(bank, "7")]
    found = rt.reconcile("pay")
    assert (len(found.missing), found.unrecorded) == (1, ())
    assert "one of this identity" in found.missing[0].why


def test_without_a_declared_identity_all_arguments_name_an_effect() -> None:
    there: list[Any] = []

    @tool
    def book(seat: str, row: int = 3) -> str:
        there.append({"seat": seat, "row": row})
        return seat

    book.compensate(lambda seat: None)
    book.list_effects(lambda: there)
    rt = Runtime("memory:", tools=[book])
    with rt.run("r"):
        book("A")
    assert rt.reconcile("book").agrees
    there[:] = [{"seat": "A"}]  # a default is filled in as a call's would be
    assert rt.reconcile("book").agrees
    there[:] = [{"row": 3}]
    with pytest.raises(UsageError, match="identifies no call"):
        rt.reconcile("book")


def test_a_probe_that_does_not_know_makes_nothing_an_orphan() -> None:
    bank = Bank("keys")
    bank.pay.probe(lambda order: Unknown("asleep"))
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    _run(rt, bank, "1")
    bank.payments.clear()
    found = rt.reconcile("pay")
    assert found.agrees
    assert [(one.why) for one in found.unclear] == ["asleep"]


def test_an_answer_inside_the_settle_delay_is_too_early() -> None:
    bank = Bank("probe", settle=60.0)
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    _run(rt, bank, "1")
    bank.payments.clear()
    found = rt.reconcile("pay")
    assert (found.agrees, [one.why for one in found.unclear]) == (True, ["too early: its settle delay is not over"])


def test_the_limit_bounds_what_is_asked_and_says_what_was_left_out() -> None:
    bank = Bank("probe")
    rt = Runtime("memory:", tools=[bank.pay], wait=0.0)
    for n in range(5):
        _run(rt, bank, str(n))
    asked = bank.asked
    found = rt.reconcile("pay", limit=2)
    assert (found.asked, found.unasked, bank.asked - asked) == (2, 3, 2)


def test_a_compensation_that_is_not_there_is_found_by_its_own_probe() -> None:
    refunds: set[str] = set()

    @tool
    def pay(order: str) -> str:
        return order

    pay.probe(lambda order: Happened(order))  # it did happen, once: no news after a refund

    @pay.compensate(retry=ONCE, probe=lambda order: Happened(None) if order in refunds else Absent())
    def refund(order: str) -> None:
        refunds.add(order)

    rt = Runtime("memory:", tools=[pay])
    for order in ("1", "2"):
        with pytest.raises(KeyError), rt.run(order):
            pay(order=order)
            raise KeyError
    assert rt.reconcile("pay").agrees
    refunds.remove("1")
    (one,) = rt.reconcile("pay").unrecorded
    assert (one.call is not None and one.call.args["order"], one.why) == ("1", "its compensation is not there")


# ---- bad input ----------------------------------------------------------------------------


def test_what_cannot_be_compared_is_refused_typed() -> None:
    @tool(kind="read")
    def look() -> int:
        return 1

    @tool(kind="pivot")
    def wire() -> int:
        return 1

    rt = Runtime("memory:", tools=[look, wire])
    for given in ("look", "wire", look, 5, None):
        with pytest.raises(UsageError):
            rt.reconcile(given)
    with pytest.raises(UnknownTool):
        rt.reconcile("wires")
    bank = Bank("keys")
    other = Runtime("memory:", tools=[bank.pay])
    for limit in (-1, "x", 1.5):
        with pytest.raises(UsageError):
            other.reconcile("pay", limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, "text", {"order": "1"}, [5], [{"nothing": 1}], [None], 7])
def test_a_listing_that_lists_nothing_understandable_is_refused_typed(given: Any) -> None:
    bank = Bank("")
    bank.pay.list_effects(lambda: given)
    rt = Runtime("memory:", tools=[bank.pay])
    _run(rt, bank, "1")
    with pytest.raises(UsageError, match="list_effects of pay"):
        rt.reconcile("pay")


def test_an_error_of_the_listing_comes_out_as_itself() -> None:
    bank = Bank("")

    @bank.pay.list_effects
    def listing() -> list[str]:
        raise ConnectionError("the bank is away")

    rt = Runtime("memory:", tools=[bank.pay])
    with pytest.raises(ConnectionError, match="away"):
        rt.reconcile("pay")


def test_a_listing_runs_no_tool() -> None:
    bank = Bank("")
    bank.pay.list_effects(lambda: [bank.pay(order="9")])
    rt = Runtime("memory:", tools=[bank.pay])
    with pytest.raises(NoRun):
        rt.reconcile("pay")


def test_a_listing_that_asks_for_what_there_is_not_is_refused_where_it_is_declared() -> None:
    bank = Bank("")
    bank.pay.list_effects(lambda order: [])
    with pytest.raises(BadDeclaration, match="it can take only: tenant"):
        Runtime("memory:", tools=[bank.pay])


# ---- colours ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "async generator", "generator", "list"])
def test_listings_of_every_colour_in_the_async_runtime(kind: str) -> None:
    there = ["a foreign key"]

    @tool
    async def pay(order: str) -> str:
        there.append(current_call().key)
        return order

    @pay.compensate
    async def refund(order: str) -> None: ...

    async def coroutine() -> list[str]:
        return there

    async def agen() -> Any:
        for one in there:
            yield one

    def gen() -> Any:
        yield from there

    pay.list_effects({"coroutine": coroutine, "async generator": agen, "generator": gen, "list": lambda: there}[kind])

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[pay])
        async with rt.run("r") as run:
            await run.call(pay, order="1")
        found = await rt.reconcile("pay")
        assert ([one.effect for one in found.unrecorded], found.missing) == (["a foreign key"], ())
        there.pop()
        assert [one.call.args["order"] for one in (await rt.reconcile(pay)).missing if one.call] == ["1"]
        await rt.close()

    asyncio.run(main())
    blocking = Runtime("memory:", tools=[pay])
    assert len(blocking.reconcile("pay").unrecorded) == 1
