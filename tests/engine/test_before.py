"""What is there before a call: read after its locks, recorded with its first start, given by name."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Happened, Retry, RolledBack, Rule, RunBlocked, Runtime, current_call, tool
from amends.encoding.dataclass import changed
from amends.errors import BadDeclaration, Held, InDoubt, NoRun, NotStorable
from tests.world import die, runtime, until


class Shop:
    """Prices, and a log of who touched them."""

    def __init__(self, **prices: int) -> None:
        self.prices: dict[str, int] = dict(prices)
        self.log: list[str] = []

    def setter(self, **options: Any) -> Any:
        @tool(key="sku", on_conflict="next", **options)
        def set_price(sku: str, cents: int) -> int:
            self.log.append(f"set {sku} {cents}")
            self.prices[sku] = cents
            return cents

        @set_price.before
        def price(sku: str) -> int | None:
            self.log.append(f"read {sku}")
            return self.prices.get(sku)

        @set_price.compensate
        def put_back(sku: str, before: int | None) -> None:
            self.log.append(f"back {sku} {before}")
            if before is None:
                self.prices.pop(sku, None)
            else:
                self.prices[sku] = before

        return set_price


def _failing(rt: Runtime, *calls: Any, run_id: str = "r") -> None:
    with pytest.raises(KeyError), rt.run(run_id):
        for call in calls:
            call()
        raise KeyError


def test_an_update_is_undone_with_what_was_there_before() -> None:
    shop = Shop(tea=300)
    set_price = shop.setter()
    _failing(runtime(set_price), lambda: set_price(sku="tea", cents=350))
    assert shop.prices == {"tea": 300}
    assert shop.log == ["read tea", "set tea 350", "back tea 300"]


def test_nothing_there_before_is_a_value_too() -> None:
    shop = Shop()
    set_price = shop.setter()
    _failing(runtime(set_price), lambda: set_price(sku="tea", cents=350))
    assert shop.prices == {}


def test_it_is_recorded_with_the_start_and_shown() -> None:
    shop = Shop(tea=300)
    set_price = shop.setter()
    rt = runtime(set_price)
    with rt.run("r"):
        set_price(sku="tea", cents=350)
    (call,) = rt.report("r").calls
    assert (call.state, call.before, call.reason) == ("succeeded", 300, None)
    assert rt.verify().ok


def test_a_b_a_in_one_run_sets_three_times_and_goes_back_in_order() -> None:
    shop = Shop(tea=1)
    set_price = shop.setter()
    rt = runtime(set_price)
    _failing(rt, *(lambda cents=cents: set_price(sku="tea", cents=cents) for cents in (2, 3, 2)))
    assert shop.prices == {"tea": 1}
    sets = [line for line in shop.log if not line.startswith("read")]
    assert sets == ["set tea 2", "set tea 3", "set tea 2", "back tea 3", "back tea 2", "back tea 1"]


def test_the_newest_generation_answers_a_repeat() -> None:
    shop = Shop(tea=1)
    set_price = shop.setter()
    rt = runtime(set_price)
    with rt.run("r"):
        assert [set_price(sku="tea", cents=cents) for cents in (2, 3, 3, 2, 2)] == [2, 3, 3, 2, 2]
    assert [line for line in shop.log if line.startswith("set")] == ["set tea 2", "set tea 3", "set tea 2"]
    assert [(call.generation, call.before) for call in rt.report("r").calls] == [(1, 1), (2, 2), (3, 3)]


def test_later_attempts_keep_what_the_first_one_read() -> None:
    shop, fails = Shop(tea=300), [True, False]

    @tool(retry=Retry(attempts=2, delay=0.0))
    def set_price(sku: str, cents: int) -> None:
        shop.prices[sku] = cents
        if fails.pop(0):
            raise ValueError

    set_price.before(lambda sku: shop.prices[sku])
    set_price.compensate(lambda sku, before: shop.prices.update({sku: before}))
    _failing(runtime(set_price), lambda: set_price(sku="tea", cents=350))
    assert shop.prices == {"tea": 300}


def test_a_failed_read_starts_nothing_and_comes_out_as_itself() -> None:
    done: list[str] = []

    @tool(locks=lambda call: ["stock"])
    def take(item: str) -> None:
        done.append(item)

    @take.before
    def stock(item: str) -> int:
        raise LookupError(item)

    take.compensate(lambda before: None)
    rt = runtime(take)
    with rt.run("r"):
        with pytest.raises(LookupError):
            take("tea")
        assert list(rt.locks()) == []
    assert done == []
    (call,) = rt.report("r").calls
    assert (call.state, call.why) == ("dropped", "before")
    assert call.error == "LookupError: tea"
    assert rt.report("r").state == "committed"
    assert rt.verify().ok


def test_a_failed_read_is_repeated_as_the_retry_says() -> None:
    asked: list[int] = []

    @tool(retry=Retry(attempts=3, delay=0.0))
    def put(n: int) -> int:
        return n

    @put.before
    def look() -> int:
        asked.append(1)
        if len(asked) < 3:
            raise OSError
        return 7

    put.compensate(lambda before: None)
    rt = runtime(put)
    with rt.run("r"):
        assert put(1) == 1
    assert (len(asked), rt.report("r").calls[0].before) == (3, 7)


def test_a_tool_that_dooms_its_run_dooms_it_when_the_read_fails() -> None:
    @tool(on_failure="rollback")
    def put(n: int) -> int:
        return n

    @put.before
    def look() -> int:
        raise LookupError

    put.compensate(lambda before: None)
    rt = runtime(put)
    with pytest.raises(RolledBack), rt.run("r"), pytest.raises(LookupError):
        put(1)
    assert rt.report("r").state == "rolled_back"


def test_what_cannot_be_kept_starts_nothing() -> None:
    done: list[int] = []

    @tool
    def put(n: int) -> None:
        done.append(n)

    put.before(lambda: object())
    put.compensate(lambda before: None)
    with runtime(put).run("r"), pytest.raises(NotStorable, match="before of put"):
        put(1)
    assert done == []


@dataclass
class Price:
    cents: int
    currency: str


def test_it_comes_back_as_the_annotated_class_after_a_crash(tmp_path: Any) -> None:
    prices = {"tea": Price(300, "EUR")}
    seen: list[Any] = []

    @tool
    def set_price(sku: str, cents: int) -> None:
        prices[sku] = Price(cents, "EUR")

    @set_price.before
    def price(sku: str) -> Price:
        return prices[sku]

    @set_price.compensate
    def put_back(sku: str, before: Price) -> None:
        seen.append(before)
        prices[sku] = before

    url = f"sqlite:///{tmp_path}/a.db"
    rt = Runtime(url, tools=[set_price])
    run = rt.open("r")
    run.call(set_price, "tea", 350)
    die(run)
    with Runtime(url, tools=[set_price]) as other:
        until(lambda: bool(other.recover()))
        assert other.report("r").state == "rolled_back"
        assert other.verify().ok
    assert (seen, prices) == ([Price(300, "EUR")], {"tea": Price(300, "EUR")})


def test_probe_and_guard_get_it_by_name() -> None:
    shop = Shop(tea=300)
    got: list[tuple[str, Any]] = []
    set_price = shop.setter()

    @set_price.probe
    def probe(sku: str, cents: int, before: int) -> Any:
        got.append(("probe", before))
        return Happened(cents) if shop.prices[sku] == cents else Absent()

    @set_price.guard
    def guard(sku: str, before: int, result: int, call: Any) -> bool:
        got.append(("guard", call.before))
        return shop.prices[sku] == result

    inner = set_price.__amends__.fn

    def lost(sku: str, cents: int) -> int:
        inner(sku, cents)
        raise TimeoutError

    set_price.__amends__.fn = lost
    _failing(runtime(set_price), lambda: set_price(sku="tea", cents=350))
    assert got == [("probe", 300), ("guard", 300)]
    assert shop.prices == {"tea": 300}


def test_a_call_in_doubt_is_compensated_with_what_was_there_before() -> None:
    shop = Shop(tea=300)

    @tool
    def set_price(sku: str, cents: int) -> None:
        shop.prices[sku] = cents
        raise TimeoutError

    set_price.before(lambda sku: shop.prices[sku])
    set_price.compensate(lambda sku, before: shop.prices.update({sku: before}), absent_ok=True)
    with pytest.raises(InDoubt), runtime(set_price).run("r"):
        set_price("tea", 1)
    assert shop.prices == {"tea": 300}


def test_async_tools_read_first_too() -> None:
    shop = Shop(tea=300)

    @tool
    async def set_price(sku: str, cents: int) -> None:
        shop.prices[sku] = cents

    @set_price.before
    async def price(sku: str) -> int:
        await asyncio.sleep(0)
        return shop.prices[sku]

    @set_price.compensate
    async def put_back(sku: str, before: int) -> None:
        shop.prices[sku] = before

    async def main() -> None:
        async with AsyncRuntime("memory://", tools=[set_price]) as rt:
            with pytest.raises(KeyError):
                async with rt.run("r") as run:
                    await set_price(sku="tea", cents=1)
                    async with run.child("inner"):
                        await set_price(sku="tea", cents=2)
                    raise KeyError

    asyncio.run(main())
    assert shop.prices == {"tea": 300}


def test_the_options_say_the_same_and_a_class_has_a_method() -> None:
    prices = {"tea": 300}

    class SetPrice:
        def execute(self, sku: str, cents: int) -> None:
            prices[sku] = cents

        def before(self, sku: str) -> int:
            return prices[sku]

        def guard(self, sku: str, cents: int) -> bool:
            return prices[sku] == cents

        def compensate(self, sku: str, before: int) -> None:
            prices[sku] = before

    by_class = tool(SetPrice())
    one = SetPrice()
    by_option = tool(one.execute, name="other", before=one.before, guard=one.guard, compensate=one.compensate)
    rt = runtime(by_class, by_option)
    _failing(rt, lambda: by_class("tea", 1), lambda: by_option("tea", 2))
    assert prices == {"tea": 300}
    with pytest.raises(RunBlocked), rt.run("s") as run:
        by_option("tea", 2)
        prices["tea"] = 9
        run.rollback("no")
    assert prices == {"tea": 9}


def test_a_setter_is_its_own_compensation() -> None:
    prices: dict[str, Any] = {"tea": 300, "name:tea": "Tea"}
    keys: list[str] = []

    @tool(key="sku", on_conflict="next", compensate="set_price", before=lambda sku: prices[sku])
    def set_price(sku: str, cents: int) -> None:
        keys.append(current_call().key)
        prices[sku] = cents

    @tool(
        key="sku", on_conflict="next", before=lambda sku: prices[f"name:{sku}"],
        compensate={"tool": "rename", "args": {"sku": "$args.sku", "name": "$before"}},
    )  # fmt: skip
    def rename(sku: str, name: str) -> None:
        prices[f"name:{sku}"] = name

    @tool(key="sku", before=lambda sku: {"cents": prices[sku], "name": prices[f"name:{sku}"]})
    def set_both(sku: str, cents: int, name: str = "?") -> None:
        prices[sku], prices[f"name:{sku}"] = cents, name

    set_both.compensate(set_both)
    _failing(
        runtime(set_price, rename, set_both),
        lambda: set_price("tea", 1), lambda: set_price("tea", 2), lambda: set_price("tea", 1),
        lambda: rename("tea", "Chai"), lambda: set_both("tea", 7, "Mate"),
    )  # fmt: skip
    assert prices == {"tea": 300, "name:tea": "Tea"}
    assert len(set(keys)) == 6, "each start and each compensation has a key of its own"


def test_no_tool_is_called_inside_it() -> None:
    @tool(kind="read")
    def look() -> int:
        return 1

    @tool
    def put(n: int) -> None: ...

    put.before(lambda: look())
    put.compensate(lambda before: None)
    with runtime(look, put).run("r"), pytest.raises(NoRun, match="inside the before of put"):
        put(1)


def test_a_read_tool_by_name_reads_it() -> None:
    prices = {"tea": {"cents": 300}}

    @tool(kind="read")
    def get_price(sku: str) -> dict[str, int]:
        return prices[sku]

    @tool(
        key="sku", before={"tool": "get_price", "args": {"sku": "$args.sku"}, "result": "$result.cents"},
        compensate="set_price",
    )  # fmt: skip
    def set_price(sku: str, cents: int) -> None:
        prices[sku] = {"cents": cents}

    _failing(runtime(get_price, set_price), lambda: set_price("tea", 1))
    assert prices == {"tea": {"cents": 300}}


def test_an_argument_called_before_stays_an_argument() -> None:
    seen: list[Any] = []

    @tool
    def archive(before: str) -> None: ...

    archive.compensate(lambda before: seen.append(before))
    _failing(runtime(archive), lambda: archive("2020"))
    assert seen == ["2020"]


@pytest.mark.parametrize(
    "declared, words",
    [
        (lambda: tool(lambda n: n, name="t", kind="read", before=lambda: 1), "is a read"),
        (lambda: tool(lambda before: before, name="t", compensate=lambda: 0, before=lambda: 1), 'argument "before"'),
        (lambda: tool(lambda n: n, name="t", kind="pivot", at="commit", before=lambda: 1), "commit"),
        (lambda: tool(lambda n: n, name="t", compensate=lambda: 0, before=lambda m: 1), 'takes "m"'),
        (lambda: tool(lambda n: n, name="t", compensate=lambda: 0, before=lambda result: 1), 'takes "result"'),
        (lambda: tool(lambda n: n, name="t", compensate=lambda before: 0), 'takes "before"'),
        (lambda: tool(lambda n: n, name="t", compensate=lambda: 0, before=3), "must be a function"),  # type: ignore[call-overload]
        (lambda: tool(lambda n: n, name="t", compensate="t"), "without a before"),
        (lambda: tool(lambda n: n, name="t", compensate="t", before=lambda: 1), "with which arguments"),
        (lambda: tool(lambda n: n, name="t", key="n", compensate="t", before=lambda: 1), "nothing differs"),
        (lambda: tool(lambda n: n, name="t", compensate=lambda: 0, before="t"), "its own before"),
        (lambda: tool(lambda n: n, name="t", compensate=lambda: 0, on_conflict="next"), "declared key"),
        (lambda: tool(lambda n, m: n, name="t", key="n", compensate=lambda: 0, on_conflict="next", scope="ledger"),
         'scope="ledger"'),
        (lambda: tool(lambda n, m: n, name="t", key="n", compensate=lambda: 0, on_conflict="next", ignore="rest"),
         'ignore="rest"'),
        (lambda: tool(lambda n: n, name="t", kind="read", key="n", on_conflict="next"), "never deduplicated"),
        (lambda: tool(lambda n: n, name="t", compensate={"tool": lambda n: 0, "args": {"n": "$before"}}), "before"),
    ],
)  # fmt: skip
def test_declarations_that_cannot_work_are_refused(declared: Any, words: str) -> None:
    with pytest.raises(BadDeclaration, match=words):
        runtime(declared())


def test_a_value_that_failed_leaves_the_one_before_it_to_answer() -> None:
    shop, broken = Shop(tea=1), {3}
    set_price = shop.setter()
    body = set_price.__amends__.fn

    def fails(sku: str, cents: int) -> int:
        if cents in broken:
            raise ValueError(cents)
        return int(body(sku, cents))

    set_price.__amends__.fn = fails
    rt = runtime(set_price)
    with rt.run("r"):
        set_price(sku="tea", cents=2)
        with pytest.raises(ValueError):
            set_price(sku="tea", cents=3)
        set_price(sku="tea", cents=2)
    assert [line for line in shop.log if line.startswith("set")] == ["set tea 2"]


def test_a_resumed_setter_gets_its_generations_in_order_and_sets_what_is_new(tmp_path: Any) -> None:
    shop = Shop(tea=1)
    set_price = shop.setter()
    url = f"sqlite:///{tmp_path}/a.db"
    first = Runtime(url, tools=[set_price])
    run = first.open("r", recover="wait")
    for cents in (2, 3, 2):
        run.call(set_price, "tea", cents)
    die(run)
    shop.log.clear()
    with Runtime(url, tools=[set_price]) as rt, rt.run("r", recover="wait"):
        for cents in (2, 3, 2):
            set_price("tea", cents)
        assert shop.log == []
        set_price("tea", 3)
    assert shop.prices == {"tea": 3}
    assert [line for line in shop.log if line.startswith("set")] == ["set tea 3"]


def test_it_is_encrypted_removed_by_gc_and_proved(tmp_path: Any) -> None:
    shop = Shop(tea=300)
    set_price = shop.setter()
    url = f"sqlite:///{tmp_path}/a.db"
    with Runtime(url, tools=[set_price], encrypt="k" * 43) as rt:
        with rt.run("r"):
            set_price("tea", 350)
        assert rt.report("r").calls[0].before == 300
        assert rt.verify().ok
    raw = (tmp_path / "a.db").read_bytes() + b"".join(one.read_bytes() for one in tmp_path.glob("a.db-wal"))
    assert b'"before":"300"' not in raw


def test_a_changed_value_is_found_by_the_audit() -> None:
    shop = Shop(tea=300)
    set_price = shop.setter()
    rt = runtime(set_price)
    with rt.run("r"):
        set_price("tea", 350)
    store = rt._host.store
    (row,) = store.calls.values()
    store.calls[row.id] = changed(row, {"before": "1"})
    assert [problem.how for problem in rt.verify().problems] == ["payload_changed"]
    store.calls[row.id] = changed(row, {"before": None})
    assert [problem.how for problem in rt.verify().problems] == ["payload_changed"]


def test_an_approved_call_is_read_when_it_starts() -> None:
    shop = Shop(tea=300)
    set_price = shop.setter(needs_approval=True, locks=lambda call: ["tea"])
    rt = runtime(set_price)
    with pytest.raises(Held), rt.run("r"):
        set_price("tea", 350)
    assert shop.log == []
    (asked,) = rt.approvals()
    rt.approve(asked.id, digest=asked.digest, by="ann")
    shop.prices["tea"] = 310
    with rt.run("r"):
        set_price("tea", 350)
    assert rt.report("r").calls[0].before == 310
    assert rt.verify().ok


def test_a_retriable_and_a_pivot_read_first_too() -> None:
    values = {"mail": 1, "wire": 2}
    seen: list[Any] = []

    @tool(kind="retriable", idempotent=True, before=lambda: values["mail"])
    def mail() -> None:
        seen.append(current_call().before)

    @tool(kind="pivot", before=lambda: values["wire"])
    def wire() -> None:
        seen.append(current_call().before)

    rt = runtime(mail, wire)
    with rt.run("r"):
        mail()
        wire()
        mail()
    assert seen == [2, 1]
    assert {call.tool: call.before for call in rt.report("r").calls} == {"mail": 1, "wire": 2}


def test_a_bundle_with_it_is_verified_without_amends(tmp_path: Any) -> None:
    shop = Shop(tea=300)
    set_price = shop.setter()
    rt = runtime(set_price)
    with rt.run("r"):
        set_price("tea", 350)
    packed = tmp_path / "r.zip"
    packed.write_bytes(rt.export("r"))
    done = subprocess.run([sys.executable, str(packed)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_replay_answers_settings_and_failed_reads_from_the_record() -> None:
    shop = Shop(tea=1)
    set_price = shop.setter()
    rt = runtime(set_price)
    set_price.before(lambda sku: shop.prices[sku])
    rt = runtime(set_price)

    def agent() -> list[Any]:
        done: list[Any] = [set_price("tea", 2), set_price("tea", 3), set_price("tea", 2)]
        try:
            set_price("mate", 1)
        except Exception as error:
            done.append(getattr(error, "type_name", type(error).__name__))
        return done

    with rt.run("r"):
        live = agent()
    shop.prices["tea"] = 77
    assert rt.replay("r", agent) == live == [2, 3, 2, "KeyError"]
    assert shop.prices == {"tea": 77}


def test_values_that_are_set_at_the_same_time_wait_for_each_other() -> None:
    """None is given up while what is there is read for it: that would read, and use generations, over and over."""
    shop, reads = Shop(tea=1), 0

    @tool(key="sku", on_conflict="next")
    def set_price(sku: str, cents: int) -> int:
        shop.log.append(f"set {cents}")
        shop.prices[sku] = cents
        return cents

    @set_price.before
    def price(sku: str) -> int:
        nonlocal reads
        reads += 1
        time.sleep(0.05)
        return shop.prices[sku]

    set_price.compensate(lambda sku, before: shop.prices.update({sku: before}))
    rt = runtime(set_price)
    with pytest.raises(KeyError), rt.run("r") as run:
        asked = [run.submit(set_price, "tea", cents) for cents in (5, 6, 7)]
        assert [one.result() for one in asked] == [5, 6, 7]
        raise KeyError
    assert reads == 3
    assert sorted(shop.log) == ["set 5", "set 6", "set 7"]
    assert shop.prices == {"tea": 1}
    assert [call.state for call in rt.report("r").calls] == ["compensated"] * 3


@pytest.mark.parametrize("by", ["approval", "permit"])
def test_an_approved_call_whose_read_failed_is_not_run_by_the_commit(by: str) -> None:
    """Its caller was told that it failed and changed nothing."""
    shop, reads = Shop(tea=1), [False, True, True]

    @tool(key="sku", on_conflict="next", needs_approval=True)
    def set_price(sku: str, cents: int) -> None:
        shop.prices[sku] = cents

    @set_price.before
    def price(sku: str) -> int:
        if not reads.pop(0):
            raise LookupError(sku)
        return shop.prices[sku]

    set_price.compensate(lambda sku, before: None)
    rt = runtime(set_price, wait_approval=0)
    if by == "permit":
        rt.permit("set_price", Rule(), by="ann", uses=1, expires=60.0)
    with rt.run("r") as run:
        if by == "approval":
            assert run.answer("set_price", {"sku": "tea", "cents": 2}).status == "held"
            (asked,) = rt.approvals()
            rt.approve(asked.id, digest=asked.digest, by="ann")
        assert run.answer("set_price", {"sku": "tea", "cents": 2}).status == "failed"
    assert shop.prices == {"tea": 1}
    (call,) = rt.report("r").calls
    assert (call.state, call.why, rt.report("r").state) == ("dropped", "before", "committed")
    assert rt.verify().ok


def test_an_approved_call_that_cannot_be_read_at_the_commit_is_no_failure_of_its_run() -> None:
    @tool(needs_approval=True)
    def put(n: int) -> None: ...

    @put.before
    def look() -> int:
        raise LookupError

    put.compensate(lambda before: None)
    rt = runtime(put, wait_approval=0)
    with rt.run("r") as run:
        assert run.answer("put", {"n": 1}).status == "held"
        (asked,) = rt.approvals()
        rt.approve(asked.id, digest=asked.digest, by="ann")
    (call,) = rt.report("r").calls
    assert (call.state, call.error, rt.report("r").state) == ("dropped", "LookupError", "committed")


def test_a_call_whose_read_failed_is_an_open_failure() -> None:
    done: list[str] = []

    @tool
    def book(what: str) -> None:
        done.append(what)

    book.compensate(lambda what: done.remove(what))
    shop, fails = Shop(tea=1), [True, False]

    @tool(key="sku", on_conflict="next")
    def set_price(sku: str, cents: int) -> None:
        shop.prices[sku] = cents

    @set_price.before
    def price(sku: str) -> int:
        if fails and fails.pop(0):
            raise LookupError(sku)
        return shop.prices[sku]

    set_price.compensate(lambda sku, before: None)
    rt = runtime(book, set_price)
    with pytest.raises(RolledBack, match="set_price failed"), rt.run("r", on_open_failure="rollback") as run:
        book("flight")
        assert run.answer("set_price", {"sku": "tea", "cents": 2}).status == "failed"
    assert done == []
    assert [one.tool for one in rt.report("r").missing] == ["set_price"]
    fails[:] = [True, False]
    with rt.run("made good", on_open_failure="rollback") as run:
        assert run.answer("set_price", {"sku": "tea", "cents": 2}).status == "failed"
        assert run.answer("set_price", {"sku": "tea", "cents": 2}).status == "done"
    assert rt.report("made good").state == "committed"


def test_a_redacted_value_that_an_earlier_call_has_set_is_not_recorded_as_what_was_there() -> None:
    tokens = {"app": "first-of-all"}

    @tool(key="name", on_conflict="next", redact="value")
    def set_token(name: str, value: str) -> None:
        tokens[name] = value

    @tool(key="name")
    def clear(name: str) -> None:
        tokens[name] = ""

    for one in (set_token, clear):
        one.before(lambda name: tokens[name])
        one.compensate(lambda name, before: tokens.update({name: before}))
    rt = runtime(set_token, clear)
    with pytest.raises(KeyError), rt.run("r"):
        set_token("app", "hush-hush-1")
        set_token("app", "hush-hush-2")
        clear("app")
        raise KeyError
    assert tokens == {"app": "first-of-all"}, "this process has them, and sets them back"
    assert not any("hush" in str(row.before) for row in rt._host.store.calls.values())  # type: ignore[attr-defined]
