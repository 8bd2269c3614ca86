"""What all engines share, without an engine: requests that are repeated, at the same time, or cancelled in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Happened, Runtime, tool
from amends.adapters import durable_runs
from amends.adapters.durable_runs import WATCH_S, Decision, DurableRuns, EngineCall, EngineRun
from amends.errors import LedgerUnavailable
from amends.stores.memory import MemoryStore

RUN = EngineRun("t")
SOON_S = 30
ROOT = Path(__file__).parents[2]


class Bank:
    """A destination whose refunds wait until they may go on, or kill their process."""

    def __init__(self, url: str, *, deadly: bool = False) -> None:
        self.log: list[str] = []
        self.refunding, self.may_refund = threading.Event(), threading.Event()

        @tool(key="order")
        def charge(order: str) -> str:
            self.log.append(f"charged {order}")
            return f"ch-{order}"

        @charge.compensate(idempotent=True)
        def refund(order: str) -> None:
            if deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            self.refunding.set()
            assert self.may_refund.wait(SOON_S)
            self.log.append(f"refunded {order}")

        self.tools = [charge]
        self.rt = AsyncRuntime(url, tools=self.tools)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


async def charged(runs: DurableRuns) -> None:
    outcome = await runs.perform(RUN, EngineCall("charge", {"order": "7"}, "1"))
    assert outcome.status == "done"


def test_an_end_that_is_asked_for_twice_at_once_is_made_once(url: str) -> None:
    """A cancelled or cut-off request goes on in this process while the engine makes it again."""
    bank = Bank(url)

    async def main() -> None:
        async with bank.rt, DurableRuns(bank.rt, engine="test") as runs:
            await charged(runs)
            first = asyncio.create_task(runs.roll_back(RUN, "cancelled"))
            assert await asyncio.to_thread(bank.refunding.wait, SOON_S)
            second = asyncio.create_task(runs.roll_back(RUN, "cancelled"))
            await asyncio.wait([second], timeout=0.5)
            bank.may_refund.set()
            assert [(await first).state, (await second).state] == ["rolled_back", "rolled_back"]

    asyncio.run(main())
    assert bank.log == ["charged 7", "refunded 7"]


def test_a_request_that_is_cancelled_while_it_opens_the_run_takes_nothing_from_the_next(url: str) -> None:
    """Opening a run that a dead process was rolling back goes on with the rollback."""
    died = subprocess.run(
        [sys.executable, "-m", __name__, url], cwd=ROOT, capture_output=True, text=True, timeout=SOON_S
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    bank = Bank(url)

    async def main() -> None:
        async with bank.rt, DurableRuns(bank.rt, engine="test") as runs:
            cut_off = asyncio.create_task(runs.roll_back(RUN, "cancelled"))
            assert await asyncio.to_thread(bank.refunding.wait, SOON_S)
            cut_off.cancel()
            await asyncio.wait([cut_off])
            assert cut_off.cancelled()
            again = asyncio.create_task(runs.roll_back(RUN, "cancelled"))
            await asyncio.wait([again], timeout=0.5)
            bank.may_refund.set()
            ending = await again
            assert (ending.state, ending.causes) == ("rolled_back", [])

    asyncio.run(main())
    assert bank.log == ["refunded 7"]


# ---- Requests


@asynccontextmanager
async def opened(rt: AsyncRuntime) -> AsyncIterator[DurableRuns]:
    """Own runs as a worker process does, and close its runtime at the end."""
    async with rt, DurableRuns(rt, engine="test") as runs:
        yield runs


def test_a_repeated_request_that_failed_is_answered_from_the_record_and_another_one_is_the_next_generation(
    url: str,
) -> None:
    started: list[str] = []

    @tool(key="order")
    def fail(order: str) -> str:
        started.append(order)
        raise ValueError("no")

    @fail.compensate
    def undo(order: str) -> None:
        raise AssertionError(order)

    async def main() -> None:
        for _ in range(2):  # the second time as another process, which finds the record only
            async with opened(AsyncRuntime(url, tools=[fail])) as runs:
                for _ in range(2):
                    outcome = await runs.perform(RUN, EngineCall("fail", {"order": "7"}, "1"))
                    assert outcome.status == "failed"
                    assert outcome.error is not None
                    assert outcome.error.type == "ValueError"
        assert started == ["7"]
        async with opened(AsyncRuntime(url, tools=[fail])) as runs:
            _ = await runs.perform(RUN, EngineCall("fail", {"order": "7"}, "2"))
        assert started == ["7", "7"]

    asyncio.run(main())


def test_the_same_request_at_the_same_time_has_one_effect_and_one_answer(url: str) -> None:
    bank = Bank(url)

    async def main() -> None:
        async with opened(bank.rt) as runs:
            call = EngineCall("charge", {"order": "7"}, "1")
            outcomes = await asyncio.gather(*(runs.perform(RUN, call) for _ in range(5)))
        assert [outcome.value for outcome in outcomes] == ["ch-7"] * 5
        assert bank.log == ["charged 7"]

    asyncio.run(main())


def test_a_second_process_gets_the_run_while_the_first_one_lives_also_with_a_tenant(url: str) -> None:
    bank = Bank(url)

    async def main() -> None:
        first = AsyncRuntime(url, tools=bank.tools, tenant="acme")
        second = AsyncRuntime(url, tools=bank.tools, tenant="acme")
        async with opened(first) as one, opened(second) as other:
            for number, runs in enumerate((one, other, one, other)):
                outcome = await runs.perform(RUN, EngineCall("charge", {"order": str(number)}, str(number)))
                assert outcome.status == "done", outcome

    asyncio.run(main())
    assert bank.log == ["charged 0", "charged 1", "charged 2", "charged 3"]


def test_a_decision_that_waits_for_a_person_is_no_refusal_and_one_about_another_digest_changes_nothing(
    url: str,
) -> None:
    @tool(key="order", needs_approval=True)
    def wire(order: str) -> str:
        return f"w-{order}"

    @wire.compensate
    def unwire(order: str) -> None: ...

    async def main() -> None:
        async with opened(AsyncRuntime(url, tools=[wire])) as runs:
            call = EngineCall("wire", {"order": "7"}, "1")
            held = await runs.perform(RUN, call)
            assert held.status == "held"
            assert held.approval is not None
            early = await runs.commit(RUN)
            assert not early.is_final
            for approve in (True, False):
                no = await runs.decide(Decision(held.approval.id, "0" * 64, "ann", approve=approve))
                assert no.error is not None
            assert (await runs.perform(RUN, call)).status == "held"
            assert (await runs.decide(Decision(held.approval.id, held.approval.digest, "ann"))).state == "approved"
            assert (await runs.perform(RUN, call)).value == "w-7"
            assert (await runs.commit(RUN)).state == "committed"
            assert (await runs.roll_back(RUN, "too late")).state == "committed"

    asyncio.run(main())


class Flaky(MemoryStore):
    """A ledger that does not answer for some time."""

    is_down = False

    def perform(self, op: Any) -> Any:
        if self.is_down:
            raise LedgerUnavailable("the server is restarted")
        return super().perform(op)


def test_decisions_are_told_although_the_ledger_did_not_answer_when_the_worker_began(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(durable_runs, "WATCH_S", 0.001)

    @tool(kind="pivot", key="order", needs_approval=True)
    def wire(order: str) -> str:
        return f"w-{order}"

    async def told(runs: DurableRuns) -> str:
        async for run in runs.decisions():
            return run.id
        raise AssertionError("they never end")

    async def main() -> None:
        store = Flaky()
        async with opened(AsyncRuntime("memory:", tools=[wire], store=store)) as runs:
            held = await runs.perform(RUN, EngineCall("wire", {"order": "7"}, "1"))
            assert held.approval is not None
            store.is_down = True
            telling = asyncio.create_task(told(runs))
            while "could not be read for decisions" not in caplog.text and not telling.done():
                await asyncio.sleep(0.001)
            store.is_down = False
            await runs.decide(Decision(held.approval.id, held.approval.digest, "ann"))
            assert await asyncio.wait_for(telling, SOON_S) == RUN.id

    asyncio.run(main())


def test_a_run_of_the_same_id_with_another_input_is_neither_used_nor_ended(url: str) -> None:
    bank = Bank(url)

    async def main() -> None:
        async with opened(bank.rt) as runs:
            await charged(runs)
            other = EngineRun("t", input={"other": True})
            async with opened(AsyncRuntime(url, tools=bank.tools)) as elsewhere:
                refused = await elsewhere.perform(other, EngineCall("charge", {"order": "8"}, "9"))
                assert refused.error is not None
                assert refused.error.type == "RunConflict"
                ending = await elsewhere.roll_back(other, "failed")
                assert ending.is_refused
            assert (await runs.commit(RUN)).state == "committed"

    asyncio.run(main())
    assert bank.log == ["charged 7"]


def test_a_late_report_settles_a_doubt_that_otherwise_only_a_person_could_settle(url: str) -> None:
    @tool(key="order")
    def slow(order: str) -> str:
        raise TimeoutError("no answer")

    @slow.compensate
    def undo(order: str) -> None: ...

    async def main() -> None:
        rt = AsyncRuntime(url, tools=[slow])
        async with opened(rt) as runs:
            call = EngineCall("slow", {"order": "7"}, "1")
            doubt = await runs.perform(RUN, call)
            assert (doubt.status, doubt.again_s) == ("in_doubt", None)
            assert (await runs.perform(RUN, call)).status == "in_doubt"
            await rt.report_late(doubt.call, Happened("s-7"), attempt=1, epoch=1, by="the body")
            assert (await runs.perform(RUN, call)).value == "s-7"

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["pivot", "compensatable"])
def test_a_request_that_a_person_has_judged_starts_nothing_again(url: str, kind: str) -> None:
    """However often it was asked meanwhile: the next generation of a call is another request."""
    sent: list[str] = []

    def wire(order: str) -> str:
        sent.append(order)
        raise TimeoutError("no answer")

    def take_back(order: str) -> None:
        raise AssertionError("nothing was sent")

    declared = (
        tool(key="order", kind="pivot")(wire) if kind == "pivot" else tool(key="order", compensate=take_back)(wire)
    )
    asked = EngineCall("wire", {"order": "7"}, "1")
    rt = AsyncRuntime(url, tools=[declared])

    async def main() -> None:
        async with rt, DurableRuns(rt, engine="test") as runs:
            first = await runs.perform(RUN, asked)
            assert (first.status, bool(first.call)) == ("in_doubt", True)
            for _ in range(3):
                assert (await runs.perform(RUN, asked)).status in ("in_doubt", "blocked")
            await rt.resolve(first.call, Absent(), by="ann", why="looked")
            assert (await runs.perform(RUN, asked)).status == "failed"
            assert (await runs.perform(RUN, EngineCall("wire", {"order": "7"}, "2"))).status == "in_doubt"

    asyncio.run(main())
    assert sent == ["7", "7"]


def test_a_request_starts_nothing_again_although_a_person_judges_it_while_it_is_asked(url: str) -> None:
    sent: list[str] = []
    judged: list[str] = []

    def rule(_: object) -> bool:
        """Decide in the moment between looking at the record and asking for the call."""
        if judged:
            with Runtime(url, tools=[]) as person:
                person.resolve(judged.pop(), Absent(), by="ann", why="looked")
        return False

    @tool(key="order", needs_approval=rule)
    def charge(order: str) -> str:
        sent.append(order)
        raise TimeoutError("no answer")

    @charge.compensate
    def refund(order: str) -> None:
        raise AssertionError("nothing was sent")

    asked = EngineCall("charge", {"order": "7"}, "1")
    rt = AsyncRuntime(url, tools=[charge])

    async def main() -> None:
        async with rt, DurableRuns(rt, engine="test") as runs:
            first = await runs.perform(RUN, asked)
            judged.append(first.call)
            assert (await runs.perform(RUN, asked)).status in ("in_doubt", "failed")

    asyncio.run(main())
    assert sent == ["7"]


def test_a_request_that_lost_the_run_late_leaves_it_to_those_that_have_opened_it_again() -> None:
    """Otherwise nobody would let the run go any more, and every request would be told to come later."""
    may_return = {order: threading.Event() for order in "12"}
    began: list[str] = []
    store = MemoryStore()

    @tool(key="order", idempotent=True)
    def charge(order: str) -> str:
        began.append(order)
        assert may_return[order].wait(SOON_S)
        return f"ch-{order}"

    @charge.compensate
    def refund(order: str) -> None: ...

    async def main() -> None:
        async with opened(AsyncRuntime(store=store, tools=[charge])) as runs:
            first, second = (
                asyncio.create_task(runs.perform(RUN, EngineCall("charge", {"order": order}, order))) for order in "12"
            )
            assert await asyncio.to_thread(holds, lambda: len(began) == 2)
            [row] = store.runs.values()  # another worker had it for a moment, while this process stood still
            store.runs[row.uid] = replace(row, owner="", lease_until=0.0, lease_mono=None, epoch=row.epoch + 1)
            may_return["1"].set()
            assert (await first).value == "ch-1"
            may_return["2"].set()
            assert (await second).value == "ch-2"
            assert (await runs.commit(RUN)).state == "committed"

    asyncio.run(main())


def holds(condition: Callable[[], bool]) -> bool:
    """Wait until it holds."""
    until = time.monotonic() + SOON_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this process", "another process"])
def test_a_request_that_is_repeated_with_other_arguments_or_another_tool_is_refused(
    url: str, *, elsewhere: bool
) -> None:
    """Code that is not deterministic would otherwise take the result of one call for that of another."""
    shipped: list[str] = []

    @tool(key="order", ignore="note")
    def ship(order: str, note: str = "") -> str:
        shipped.append(order)
        return f"s-{order}"

    @ship.compensate
    def fetch_back(order: str) -> None: ...

    bank = Bank(url)
    asked = EngineCall("ship", {"order": "7", "note": "soon"}, "1")

    async def main() -> None:
        async with opened(AsyncRuntime(url, tools=[ship, *bank.tools])) as runs:
            assert (await runs.perform(RUN, asked)).value == "s-7"
            if not elsewhere:
                await repeated(runs)
        if elsewhere:
            async with opened(AsyncRuntime(url, tools=[ship, *bank.tools])) as runs:
                await repeated(runs)

    async def repeated(runs: DurableRuns) -> None:
        for tool_name, args in (("ship", {"order": "8"}), ("charge", {"order": "7"})):
            other = await runs.perform(RUN, EngineCall(tool_name, args, "1"))
            assert other.status == "refused", other
            assert other.error is not None
            assert other.error.type == "UsageError"
        assert (await runs.perform(RUN, asked)).value == "s-7"
        reworded = await runs.perform(RUN, EngineCall("ship", {"order": "7", "note": "quickly"}, "1"))
        assert (reworded.value, reworded.replayed) == ("s-7", True)

    asyncio.run(main())
    assert (shipped, bank.log) == (["7"], [])


# ---- Decisions


@asynccontextmanager
async def listening(runs: DurableRuns) -> AsyncIterator[list[str]]:
    """Note the runs about which somebody has decided something."""
    told: list[str] = []

    async def listen() -> None:
        async for run in runs.decisions():
            told.append(run.id)  # noqa: PERF401, it never ends

    task = asyncio.create_task(listen())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.wait([task])


@tool(key="order", needs_approval=True)
def wire(order: str) -> str:
    return f"w-{order}"


@wire.compensate
def unwire(order: str) -> None: ...


def test_a_decision_about_a_run_of_another_tenant_is_told(url: str) -> None:
    async def main() -> None:
        run = EngineRun("t", tenant="acme")
        async with opened(AsyncRuntime(url, tools=[wire])) as runs, listening(runs) as told:
            held = await runs.perform(run, EngineCall("wire", {"order": "7"}, "1"))
            assert held.approval is not None
            await asyncio.sleep(2 * WATCH_S)  # it is being watched
            decision = Decision(held.approval.id, held.approval.digest, "ann")
            assert (await runs.decide(decision, tenant="acme")).state == "approved"
            assert await asyncio.to_thread(holds, lambda: told == ["t"])

    asyncio.run(main())


def test_that_a_person_has_finished_a_blocked_run_is_told(url: str) -> None:
    async def main() -> None:
        @tool(key="order", kind="pivot")
        def pay(order: str) -> str:
            return order

        rt = AsyncRuntime(url, tools=[pay, wire])
        async with opened(rt) as runs, listening(runs) as told:
            run = EngineRun("t", requires=["wire"])
            assert (await runs.perform(run, EngineCall("pay", {"order": "7"}, "1"))).status == "done"
            assert (await runs.commit(run)).state == "blocked"
            await asyncio.sleep(2 * WATCH_S)
            assert told == []
            await rt.finish("t", by="ann", why="it was wired by hand")
            assert await asyncio.to_thread(holds, lambda: told == ["t"])

    asyncio.run(main())


def test_decisions_are_told_although_the_ledger_was_away_when_the_worker_began(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "mounted later"
        url = f"sqlite:///{folder / 'ledger.db'}"
        rt = AsyncRuntime(url, tools=[wire])
        async with DurableRuns(rt, engine="test") as runs, listening(runs) as told:
            await asyncio.sleep(WATCH_S)
            folder.mkdir()
            held = await runs.perform(RUN, EngineCall("wire", {"order": "7"}, "1"))
            assert held.approval is not None
            await runs.decide(Decision(held.approval.id, held.approval.digest, "ann"))
            assert await asyncio.to_thread(holds, lambda: told == ["t"])
        await rt.close()

    asyncio.run(main())


async def die(url: str) -> None:
    bank = Bank(url, deadly=True)
    async with DurableRuns(bank.rt, engine="test") as runs:
        await charged(runs)
        await runs.roll_back(RUN, "dies of it")


if __name__ == "__main__":
    asyncio.run(die(sys.argv[1]))
