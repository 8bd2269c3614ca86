"""Attempts that another process performs: their lease, its renewal, silence past it, and takeovers meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import b64encode
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Happened, InDoubt, Retry, Runtime, Unknown, UsageError, WorkLost, tool
from amends.errors import CallNotFound, LeaseLost, LedgerUnavailable, ReportConflict, ToolFailed
from amends.ledger.operations import ReadCall
from amends.stores.memory import MemoryStore
from amends.testing import Crash
from amends.testing import runtime as virtual
from tests.world import World, die, runtime, states, twin_of, until

LEASE_S = 20.0


def row_of(rt: Any, call_id: str) -> Any:
    return rt._host.store.perform(ReadCall(call_id))


def booking(*, probe: bool = False, **options: Any) -> tuple[Any, list[str]]:
    """Return a tool that a worker performs elsewhere, and what a probe of it says."""
    says = ["absent"]

    @tool(name="book", key="n", **options)
    def book(n: int = 0) -> str:
        raise AssertionError("another process performs it")

    @book.compensate
    def cancel(result: str) -> None:
        says.append(f"cancelled {result}")

    if probe:

        @book.probe(settle=5.0)
        def find() -> Any:
            return Absent() if says[0] == "absent" else Happened(says[0])

    return book, says


def test_an_attempt_with_a_lease_ends_as_its_performer_reports() -> None:
    rt = virtual(tools=[booking()[0]])
    with rt.run("r") as run:
        attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
        assert (attempt.lease, attempt.epoch) == (LEASE_S, 1)
        assert row_of(rt, attempt.call.id).remote_s == LEASE_S
        rt.clock.advance(LEASE_S - 1)
        attempt.succeed("b-1")
        rt.clock.advance(10 * LEASE_S)
    assert rt.report("r").state == "committed"
    assert rt.call(attempt.call.id).result == "b-1"


def test_silence_past_the_lease_and_its_margin_is_doubt_never_failure() -> None:
    rt = virtual(tools=[booking()[0]], lease=30.0)
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
    rt.clock.advance(LEASE_S * 1.09)
    assert rt.call(attempt.call.id).state == "started"
    rt.clock.advance(LEASE_S * 0.02)
    call = rt.call(attempt.call.id)
    assert call.state == "in_doubt"
    assert call.error is not None
    assert "work lease of 20 s" in call.error


def test_a_renewed_lease_counts_from_the_renewal() -> None:
    rt = virtual(tools=[booking()[0]])
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
    for _ in range(5):
        rt.clock.advance(LEASE_S * 0.9)
        assert attempt.renew() == LEASE_S
    assert rt.call(attempt.call.id).state == "started"
    rt.clock.advance(LEASE_S)
    with pytest.raises(LeaseLost, match="is over"):
        attempt.renew()  # within the margin: the performer has promised to stop
    rt.clock.advance(LEASE_S)
    assert rt.call(attempt.call.id).state == "in_doubt"
    with pytest.raises(LeaseLost):
        attempt.renew()


def test_an_owner_that_lost_its_run_renews_nothing() -> None:
    store, book = MemoryStore(), booking()[0]
    run = runtime(book, store=store, lease=60).open("r")
    attempt = run.begin("book", {"n": 1}, lease=60.0)
    die(run)
    twin_of(store, book).recover()
    with pytest.raises(LeaseLost):
        attempt.renew()


def test_what_is_reported_after_the_lease_settles_the_doubt_if_it_happened() -> None:
    rt = virtual(tools=[booking()[0]])
    with rt.run("r") as run:
        attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
        rt.clock.advance(LEASE_S * 2)
        attempt.succeed("b-1")
        with pytest.raises(UsageError, match="already ended"):
            attempt.succeed("b-1")
    assert rt.report("r").state == "committed"
    assert [event.what for event in rt.events("r") if event.what == "evidence"] == ["evidence"]


def test_a_late_failure_is_believed_as_far_as_the_late_error_of_a_body() -> None:
    for probe, state in ((False, "backing_off"), (True, "in_doubt")):
        rt = virtual(tools=[booking(probe=probe)[0]])
        run = rt.open("r")
        attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
        rt.clock.advance(LEASE_S * 2)
        attempt.fail("sold out")
        assert rt.call(attempt.call.id).state == state


def test_an_ordinary_error_is_judged_as_if_the_body_had_raised_it() -> None:
    rt = virtual(tools=[booking()[0]])
    with rt.run("r") as run:
        attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
        attempt.raised(ValueError("sold out"))
        assert rt.call(attempt.call.id).state == "failed"
        lost = run.begin("book", {"n": 2}, lease=LEASE_S)
        lost.raised(ConnectionError("gone"))
        assert rt.call(lost.call.id).state == "in_doubt"
        assert rt.resolve(lost.call.id, Absent(), by="anna", why="looked").run_id == "r"
        unsure = run.begin("book", {"n": 3}, lease=LEASE_S)
        unsure.doubt("the worker does not know")
        assert rt.call(unsure.call.id).state == "in_doubt"
        rt.resolve(unsure.call.id, Happened("b-3"), by="anna", why="looked")
    assert rt.report("r").state == "committed"


def test_a_probes_absent_is_believed_only_when_the_performer_has_certainly_ended() -> None:
    book, _ = booking(probe=True)
    rt = virtual(tools=[book], wait=1.0)
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
    with attempt:
        pass  # nobody reports: doubt at once, and the performer may go on for its whole lease
    began = rt.clock.mono
    row = row_of(rt, attempt.call.id)
    assert row.state == "in_doubt"
    assert row.quiet_mono == pytest.approx(began + LEASE_S * 1.1)
    rt.clock.advance(LEASE_S)
    with pytest.raises(InDoubt):
        run.begin("book", {"n": 1}, lease=LEASE_S)
    assert rt.call(attempt.call.id).state == "in_doubt"
    rt.clock.advance(LEASE_S * 0.1 + 5.0)
    again = run.begin("book", {"n": 1}, lease=LEASE_S)
    assert again.call.attempt == 2  # certainly nothing had happened
    again.succeed("b-2")
    run.commit()


def test_a_reported_error_and_silence_past_the_lease_end_the_performer() -> None:
    book, _ = booking(probe=True)
    rt = virtual(tools=[book], wait=1.0)
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
    attempt.raised(ValueError("sold out"))
    assert row_of(rt, attempt.call.id).quiet_mono == pytest.approx(rt.clock.mono)
    silent = run.begin("book", {"n": 2}, lease=LEASE_S)
    rt.clock.advance(LEASE_S * 1.2)
    assert row_of(rt, silent.call.id).quiet_mono == pytest.approx(rt.clock.mono)


def test_a_takeover_waits_for_the_performer_although_the_owner_is_certainly_dead() -> None:
    book, _ = booking(probe=True)
    rt = virtual(tools=[book], wait=1.0, lease=10.0)
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=100.0)
    rt.crash()
    died = rt.clock.mono
    (report,) = rt.recover()
    assert report.state == "rolling_back"  # Absent is too early to believe
    row = row_of(rt, attempt.call.id)
    assert row.state == "in_doubt"
    assert row.quiet_mono == pytest.approx(died + 110.0, abs=2.0)
    rt.clock.advance(100.0)
    assert [one.state for one in rt.recover()] == ["rolling_back"]
    rt.clock.advance(30.0)
    assert [one.state for one in rt.recover()] == ["rolled_back"]


def test_a_report_after_a_takeover_is_evidence_and_its_effect_is_taken_back() -> None:
    book, says = booking(probe=True)
    rt = virtual(tools=[book], wait=1.0, lease=10.0)
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=100.0)
    call_id = attempt.call.id
    rt.crash()
    rt.recover()
    told = rt.report_late(call_id, Happened("b-1"), attempt=1, epoch=1, by="worker-1")
    assert told.state == "succeeded"
    assert told.result == "b-1"
    assert [one.state for one in rt.recover()] == ["rolled_back"]
    assert says[1:] == ["cancelled b-1"]
    assert rt.verify().ok


def test_the_same_report_again_changes_nothing_and_another_one_is_a_conflict() -> None:
    rt = virtual(tools=[booking()[0]])
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
    rt.clock.advance(LEASE_S * 2)
    call_id = attempt.call.id

    def tell(answer: Any) -> Any:
        return rt.report_late(call_id, answer, attempt=1, epoch=1, by="worker-1")

    assert tell(Unknown("no idea")).state == "in_doubt"
    assert tell(Happened("b-1")).state == "succeeded"
    events = len(list(rt.events("r")))
    assert tell(Happened("b-1")).state == "succeeded"
    for other in (Happened("b-2"), Absent(), ValueError("sold out")):
        with pytest.raises(ReportConflict) as caught:
            tell(other)
        assert (caught.value.call_id, caught.value.attempt) == (call_id, 1)
    assert len(list(rt.events("r"))) == events
    run.commit()


def test_a_certain_late_failure_waits_for_the_run_to_go_on_and_cannot_be_taken_back() -> None:
    rt = virtual(tools=[booking()[0]])
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
    rt.clock.advance(LEASE_S * 2)
    for answer in (ValueError("sold out"), Absent(), ValueError("sold out")):
        assert rt.report_late(attempt.call.id, answer, attempt=1, epoch=1, by="w").state == "in_doubt"
    with pytest.raises(ReportConflict):
        rt.report_late(attempt.call.id, Happened("b-1"), attempt=1, epoch=1, by="w")
    run.commit()
    assert states(rt, "r") == {"book": "failed"}


def test_a_report_never_settles_a_live_attempt() -> None:
    rt = virtual(tools=[booking()[0]])
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
    told = rt.report_late(attempt.call.id, Happened("b-1"), attempt=1, epoch=1, by="w")
    assert told.state == "started"  # its owner settles it, or makes it doubt
    rt.clock.advance(LEASE_S * 2)
    assert rt.call(attempt.call.id).state == "in_doubt"
    run.commit()
    assert rt.call(attempt.call.id).state == "succeeded"


def test_an_effect_that_was_believed_absent_reopens_the_call() -> None:
    book, says = booking(probe=True)
    rt = virtual(tools=[book], wait=200.0)
    with pytest.raises(ValueError, match="stop"), rt.run("r") as run:
        attempt = run.begin("book", {"n": 1}, lease=LEASE_S)
        rt.clock.advance(LEASE_S * 2)
        raise ValueError("stop")
    assert states(rt, "r") == {"book": "failed"}  # the probe said Absent after all delays
    assert rt.report_late(attempt.call.id, Happened("b-1"), attempt=1, epoch=1, by="w").state == "succeeded"
    assert [one.state for one in rt.recover()] == ["rolled_back"]
    assert says[1:] == ["cancelled b-1"]


def test_reports_about_nothing_are_refused_before_anything_is_written() -> None:
    rt = virtual(tools=[booking()[0]])
    run = rt.open("r")
    call_id = run.begin("book", {"n": 1}, lease=LEASE_S).call.id
    good: dict[str, Any] = {"attempt": 1, "epoch": 1, "by": "w"}
    for wrong in ({"attempt": 2}, {"epoch": 2}, {"attempt": 0}, {"epoch": True}, {"by": ""}, {"phase": "before"}):
        with pytest.raises(UsageError):
            rt.report_late(call_id, Happened("b"), **(good | wrong))
    with pytest.raises(UsageError):
        rt.report_late(call_id, "b", **good)  # type: ignore[arg-type]
    with pytest.raises(CallNotFound):
        rt.report_late("call_nothing", Happened("b"), **good)
    with pytest.raises(CallNotFound):
        rt.scoped(tenant="other").report_late(call_id, Happened("b"), **good)
    assert not [event for event in rt.events("r") if event.what == "evidence"]


def test_a_report_with_a_redacted_value_is_the_same_again_although_it_is_encrypted_anew() -> None:
    @tool(name="book", kind="pivot", redact=["card"])
    def book(card: str) -> str:
        raise AssertionError("another process performs it")

    key = b64encode(bytes(range(32))).decode()
    rt = virtual(tools=[book], encrypt=key, secret_key=key)
    run = rt.open("r")
    attempt = run.begin("book", {"card": "4111-1111"}, lease=LEASE_S)
    rt.clock.advance(LEASE_S * 2)

    def tell(answer: str) -> Any:
        return rt.report_late(attempt.call.id, Happened(answer), attempt=1, epoch=1, by="w")

    assert tell("charged 4111-1111").state == "succeeded"
    assert tell("charged 4111-1111").state == "succeeded"
    with pytest.raises(ReportConflict):
        tell("charged 4222-2222")
    assert "4111" not in json.dumps([event.to_dict() for event in rt.events("r")])
    assert rt.verify().ok


@pytest.mark.parametrize("lease", [0, -1, True, "60", float("nan"), float("inf")])
def test_a_lease_is_a_number_of_seconds(lease: Any) -> None:
    rt = virtual(tools=[booking()[0]])
    with rt.run("r") as run, pytest.raises(UsageError, match="lease is"):
        run.begin("book", {"n": 1}, lease=lease)
    assert not list(rt.calls())


def test_only_an_attempt_with_a_lease_is_renewed() -> None:
    rt = virtual(tools=[booking()[0]])
    with rt.run("r") as run:
        attempt = run.begin("book", {"n": 1})
        assert attempt.lease == 0.0
        with pytest.raises(UsageError, match="no work lease"):
            attempt.renew()
        attempt.succeed("b")


# ---- Tools that another process performs whenever they are called


def test_a_remote_tool_records_its_lease_with_each_start_of_body_and_compensation() -> None:
    seen: list[float] = []

    @tool(name="book", remote=30.0)
    def book(n: int = 0) -> str:
        seen.append(rows()[0].remote_s)
        return "b"

    @book.compensate
    def cancel() -> None:
        seen.append(rows()[0].remote_s)

    rt = virtual(tools=[book])

    def rows() -> list[Any]:
        return list(rt._host.store.calls.values())  # type: ignore[attr-defined]

    with pytest.raises(ValueError, match="stop"), rt.run("r"):
        book(n=1)
        raise ValueError("stop")
    assert seen == [30.0, 30.0]
    assert rt.report("r").state == "rolled_back"
    assert rt.verify().ok


@pytest.mark.parametrize("undoing", [False, True])
def test_a_lost_answer_of_a_remote_tool_is_quiet_only_after_its_lease(undoing: bool) -> None:
    ends: list[Exception] = [
        ConnectionError("lost"),
        WorkLost("nobody reported"),
        ToolFailed("no", call=None, type_name="Sold"),
    ]

    @tool(name="book", remote=30.0, key="n")
    def book(n: int = 0) -> str:
        if undoing:
            return "b"
        raise ends[n]

    @book.compensate
    def cancel(n: int) -> None:
        raise ends[n]

    rt = virtual(tools=[book])
    for n, quiet in enumerate((33.0, 0.0, 0.0)):
        with pytest.raises((Exception,)), rt.run(f"r{n}"):
            book(n=n)
            raise ValueError("stop")
        (call,) = [one for one in rt.calls() if one.run_id == f"r{n}"]
        row = row_of(rt, call.id)
        doubt, failed = ("compensation_in_doubt", "compensation_failed") if undoing else ("in_doubt", "failed")
        assert row.state == (doubt if n < 2 else failed)
        mono = row.comp_mono if undoing else row.quiet_mono
        assert mono - rt.clock.mono == pytest.approx(quiet, abs=1.5)


def _undoing(*, recover: bool = True, deaths: int = 1, **options: Any) -> tuple[Any, Any, list[str]]:
    """Return a virtual runtime whose owner died in a remote compensation, the call, and what happened.

    ``deaths``: how many owners die in it; ``options``: of the compensation.
    """
    log: list[str] = []

    @tool(name="book", remote=LEASE_S, key="n")
    def book(n: int = 0) -> str:
        return "b"

    @book.compensate(**options)
    def cancel() -> None:
        log.append("cancel")
        if len(log) <= deaths:
            rt._test_driver.die()

    rt = virtual(tools=[book], lease=10.0, wait=1.0)
    with pytest.raises(Crash), rt.run("r"):
        book(n=1)
        raise ValueError("stop")
    rt.crash()
    if not recover:
        return rt, rt.report("r").calls[0], log
    (report,) = rt.recover()
    assert report.state == "blocked"
    return rt, report.calls[0], log


def test_a_late_report_about_a_compensation_settles_it() -> None:
    rt, call, log = _undoing()
    assert rt.call(call.id).state == "compensation_in_doubt"

    def tell(answer: Any) -> str:
        told = rt.report_late(call.id, answer, phase="compensate", attempt=1, epoch=1, by="w")
        return str(told.state)

    assert tell(Unknown()) == "compensation_in_doubt"
    assert tell(Happened(None)) == "compensated"
    assert tell(Happened(None)) == "compensated"
    with pytest.raises(ReportConflict):
        tell(Absent())
    assert [one.state for one in rt.recover()] == ["rolled_back"]
    assert log == ["cancel"]
    assert rt.verify().ok


@pytest.mark.parametrize("answer, cancelled", [(Happened(None), 1), (ValueError("no"), 2)])
def test_a_report_about_a_compensation_before_anybody_took_the_run_over_is_not_forgotten(
    answer: Any, cancelled: int
) -> None:
    """The server died, and the worker reports to the next one before that has noticed."""
    rt, call, log = _undoing(recover=False)
    told = rt.report_late(call.id, answer, phase="compensate", attempt=1, epoch=1, by="w")
    assert told.state == "compensating"  # its owner may be alive
    assert [one.state for one in rt.recover()] == ["rolled_back"]
    assert log == ["cancel"] * cancelled
    assert rt.verify().ok


@pytest.mark.parametrize("early", [True, False], ids=["before the takeover", "after it"])
def test_every_attempt_of_a_compensation_is_believed_to_have_done_nothing(early: bool) -> None:
    rt, call, log = _undoing(recover=False, deaths=2)
    rt.report_late(call.id, Absent(), phase="compensate", attempt=1, epoch=1, by="w")
    with pytest.raises(Crash):
        rt.recover()
    rt.crash()
    if not early:
        assert [one.state for one in rt.recover()] == ["blocked"]  # a person may be asked: nobody has said anything yet
    told = rt.report_late(call.id, Absent(), phase="compensate", attempt=2, epoch=2, by="w")
    assert told.state == ("compensating" if early else "compensation_failed")
    assert [one.state for one in rt.recover()] == ["rolled_back"]
    assert log == ["cancel"] * 3
    assert rt.verify().ok


def test_an_attempt_of_a_compensation_that_nobody_has_reported_about_may_have_had_its_effect() -> None:
    rt, call, _ = _undoing(recover=False, deaths=2, idempotent=True, retry=Retry(attempts=2))
    with pytest.raises(Crash):
        rt.recover()
    rt.crash()
    assert [one.state for one in rt.recover()] == ["blocked"]

    def tell(attempt: int) -> str:
        told = rt.report_late(call.id, Absent(), phase="compensate", attempt=attempt, epoch=1, by="w")
        return str(told.state)

    assert tell(2) == "compensation_in_doubt"
    assert tell(1) == "compensation_failed"
    assert rt.verify().ok


def test_a_late_report_that_a_compensation_had_no_effect_lets_it_be_tried_again() -> None:
    rt, call, log = _undoing()
    told = rt.report_late(call.id, ValueError("no"), phase="compensate", attempt=1, epoch=1, by="w")
    assert told.state == "compensation_failed"
    assert [one.state for one in rt.recover()] == ["rolled_back"]
    assert log == ["cancel", "cancel"]
    with pytest.raises(UsageError, match="no attempt 3"):
        rt.report_late(call.id, Happened(None), phase="compensate", attempt=3, epoch=1, by="w")
    assert rt.verify().ok


def test_a_late_answer_of_a_probe_changes_nothing() -> None:
    rt, call, _ = _undoing()
    told = rt.report_late(call.id, Happened("b"), phase="probe", attempt=1, epoch=1, by="w")
    assert told.state == "compensation_in_doubt"


def test_a_remote_tool_is_checked_where_it_is_declared() -> None:
    from amends.errors import BadDeclaration

    with pytest.raises(BadDeclaration, match="remote"):
        Runtime("memory:", tools=[booking(remote=-1.0)[0]])


# ---- With real threads and an event loop


def test_the_thread_ends_a_silent_attempt_and_retries_a_ledger_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("amends.host.work_leases.AGAIN_S", 0.02)

    class Flaky(MemoryStore):
        down = 2

        def perform(self, op: Any) -> Any:
            if self.down and threading.current_thread().name == "amends-work-leases":
                self.down -= 1
                raise LedgerUnavailable("unplugged")
            return super().perform(op)

    store = Flaky()
    rt = runtime(booking()[0], store=store, lease=60)
    rt._driver.lease_s = 0.01
    run = rt.open("r")
    attempt = run.begin("book", {"n": 1}, lease=0.05)
    until(lambda: rt.call(attempt.call.id).state == "in_doubt")
    assert store.down == 0
    attempt.succeed("b-1")
    run.commit()
    until(lambda: rt._host.work_leases._thread is None)
    rt.close()


def test_on_an_event_loop_it_is_the_same() -> None:
    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[booking()[0]]) as rt:
            async with rt.run("r") as run:
                attempt = await run.begin("book", {"n": 1}, lease=0.1)
                for _ in range(4):
                    await asyncio.sleep(0.05)
                    assert await attempt.renew() == 0.1
                assert (await rt.call(attempt.call.id)).state == "started"
                while (await rt.call(attempt.call.id)).state == "started":
                    await asyncio.sleep(0.01)
                assert (await rt.call(attempt.call.id)).state == "in_doubt"
                told = await rt.report_late(attempt.call.id, Happened("b"), attempt=1, epoch=attempt.epoch, by="w")
                assert told.state == "succeeded"
                other = await run.begin("book", {"n": 2}, lease=30)
                await other.raised(ValueError("sold out"))
                third = await run.begin("book", {"n": 3}, lease=30)
                await third.doubt("who knows")
                await rt.resolve(third.call.id, Absent(), by="anna", why="looked")
            assert (await rt.report("r")).state == "committed"

    asyncio.run(main())


def test_a_report_and_the_end_of_its_lease_in_the_same_moment_lose_nothing() -> None:
    store, world = MemoryStore(), World()
    rt = runtime(booking()[0], store=store, lease=60)
    with rt.run("r") as run:
        for n in range(20):
            attempt = run.begin("book", {"n": n}, lease=0.02)
            time.sleep(0.02 + n * 0.0003)
            attempt.succeed(f"b-{n}")
            assert rt.call(attempt.call.id).state == "succeeded"
    assert rt.report("r").state == "committed"
    assert world.log == []
