"""Two PostgreSQL servers, the first is killed: what a failover keeps, and what it does not."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime
from amends.errors import LedgerBehind
from tests.failover.bank import Bank
from tests.failover.shop import LEASE_S, Pair, Shop, compare, load, pair, recover, saga

THREADS = 6
SAGAS = 18
POINTS = int(os.environ.get("AMENDS_FAILOVER_POINTS", "10"))


def failed_over(two: Pair, shop: Shop, *, at: int, after: bool, mark: str, outage_s: float) -> int:
    """Kill the primary at the bank's nth request under load, promote later; return how many sagas were cut off."""
    rt = shop.runtime(two.url)
    list(rt.runs())  # the ledger is there
    dead, names = threading.Event(), [f"{mark}-{number}" for number in range(SAGAS)]

    def kill() -> None:
        two.primary.kill()
        dead.set()

    wrong = list[BaseException]()
    shop.at(at, kill, after=after)
    working = threading.Thread(target=lambda: wrong.extend(load(shop, rt, names, threads=THREADS)), daemon=True)
    working.start()
    assert dead.wait(60), "the load never reached the point"
    working.join(outage_s)  # somebody has to notice it first
    two.fail_over()
    working.join(120)
    assert not working.is_alive()
    rt.close()
    return len(wrong)


def counted(two: Pair, shop: Shop, bank: Bank) -> dict[str, int]:
    """What the ledger says, recovered by a worker that only now starts, against the bank."""
    rt = shop.runtime(two.url)
    recover(rt)
    told = compare(rt, bank)
    assert rt.verify().ok
    rt.close()
    return told


def survives(two: Pair, points: list[tuple[int, bool, float]]) -> int:
    """Fail over at each of these points, and compare after each; return how many sagas were cut off."""
    cut = 0
    with Bank() as bank:
        shop = Shop(bank)
        for number, (at, after, outage_s) in enumerate(points):
            if number:
                two.replace()
            lost = failed_over(two, shop, at=at, after=after, mark=f"r{number}", outage_s=outage_s)
            cut += lost
            told = counted(two, shop, bank)
            when = f"{'after' if after else 'before'} request {at}, for {outage_s:g} s"
            print(f"no primary from {when}: {lost} sagas cut off, {told}")
            assert (told["duplicated"], told["lost"], told["unknown"]) == (0, 0, 0)
    return cut


def test_a_synchronous_failover_under_load_loses_and_duplicates_nothing() -> None:
    with pair("on") as two:
        survives(two, [(17, True, 0.0)])


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["on", "remote_apply"])
def test_at_many_points_a_synchronous_failover_loses_and_duplicates_nothing(mode: str) -> None:
    chance = random.Random(f"failover {mode}")
    with pair(mode) as two:
        outages = (0.0, LEASE_S * 2)
        points = [(chance.randrange(1, SAGAS * 3), bool(n % 2), outages[n // 2 % 2]) for n in range(POINTS)]
        assert survives(two, points) > 0, "no saga was ever cut off, so no worker had anything to do"


def behind(two: Pair, shop: Shop, anchor: Path) -> tuple[Runtime, Any]:
    """A runtime that went on over an asynchronous failover, and the run that it has open; one run is forgotten."""
    rt = shop.runtime(two.url, anchor=str(anchor), checkpoint=0)
    saga(shop, rt, "kept")
    run = rt.open("held")
    run.call(shop.tools["reserve"], order="held")
    two.cut_off()
    saga(shop, rt, "forgotten")
    two.fail_over()
    return rt, run


def test_an_asynchronous_failover_forgets_the_newest_seconds_and_the_anchor_tells(tmp_path: Path) -> None:
    with pair("") as two, Bank() as bank:
        shop = Shop(bank)
        rt, run = behind(two, shop, tmp_path / "anchor")
        before = bank.book()
        with pytest.raises(LedgerBehind):  # the process that was there before
            run.call(shop.tools["charge"], order="held")
        with pytest.raises(LedgerBehind):
            saga(shop, rt, "next")
        rt.close()
        fresh = shop.runtime(two.url, anchor=str(tmp_path / "anchor"))
        with pytest.raises(LedgerBehind):  # and a new one
            saga(shop, fresh, "forgotten")
        with pytest.raises(LedgerBehind):
            fresh.check_anchor()
        assert bank.book() == before, "a ledger behind its anchor started something"
        assert {one.id for one in fresh.runs()} >= {"kept"}
        assert "forgotten" not in {one.id for one in fresh.runs()}
        # What the world has and the ledger has not: a person looks at it, and says so.
        found = {name: fresh.reconcile(name) for name in shop.tools}
        lost = {name: [one.effect for one in each.unrecorded] for name, each in found.items()}
        assert [len(each) for each in lost.values()] == [1, 1, 1, 1]
        for name, keys in lost.items():
            bank.void(name, keys[0])
        assert all(fresh.reconcile(name).agrees for name in shop.tools)
        fresh.reconcile_restore(by="ana", why="failed over to the asynchronous standby; the bank was compared")
        saga(shop, fresh, "forgotten")
        told = compare(fresh, bank)
        assert (told["duplicated"], told["lost"], told["unknown"]) == (0, 0, 0)
        fresh.close()


@pytest.mark.rest
def test_without_an_anchor_nobody_notices_an_asynchronous_failover() -> None:
    """What the documentation warns of, shown: it is why a ledger with a standby has an anchor."""
    with pair("") as two, Bank() as bank:
        shop = Shop(bank)
        rt = shop.runtime(two.url)
        saga(shop, rt, "kept")
        two.cut_off()
        saga(shop, rt, "forgotten")
        two.fail_over()
        rt.close()
        fresh = shop.runtime(two.url)
        saga(shop, fresh, "forgotten")  # its calls are made again, under other keys
        assert sum(count for (what, _), count in bank.book().items() if what == "charge") == 3
        assert compare(fresh, bank)["unknown"] == 4
        fresh.close()


def test_both_colours_find_the_primary_among_two_hosts_before_and_after_a_failover() -> None:
    with pair("on") as two, Bank() as bank:
        shop, names = Shop(bank), iter("abcd")
        url = two.url

        async def twice() -> None:
            rt = AsyncRuntime(url, tools=list(shop.tools.values()))
            for _ in range(2):
                name = next(names)
                async with rt.run(name) as run:
                    await run.call(shop.tools["charge"], order=name)
                if two.primary.port == before:
                    two.fail_over()
            await rt.close()

        before = two.primary.port
        blocking = shop.runtime(url)
        saga(shop, blocking, "first")
        asyncio.run(twice())
        assert two.primary.port != before
        saga(shop, blocking, "second")
        told = compare(blocking, bank)
        assert (told["runs"], told["duplicated"], told["lost"], told["unknown"]) == (4, 0, 0, 0)
        blocking.close()
