"""The conformance suite itself: it is whole, it finds stores that are wrong, and it says what it found."""

import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from amends.ledger import dispatch, plain
from amends.ledger.flow import run_flow
from amends.ledger.rows import APPROVALS, CALLS, RUNS
from amends.ledger.tables import Add, List
from amends.stores.memory import MemoryStore
from amends.testing import STORE_CHECKS, Proof, Skipped, check_store, prove_store
from amends.testing.conformance.ledger import Clock, Ledger, raises
from amends.testing.conformance.scenarios import SCENARIOS


def test_every_operation_that_changes_something_has_a_scenario() -> None:
    tried = set()
    for scenario in SCENARIOS.values():
        clock = Clock()
        tried.add(type(scenario(Ledger(MemoryStore(clock), clock=clock))))
    # Only a store that says so is asked to take a run back as a whole: tests/stores/test_taken_back.py.
    whole = {plain.TurnPlain, plain.UndonePlain}
    assert tried == set(dispatch.INTENTS) - dispatch.READS - whole


def test_a_good_store_is_proved() -> None:
    proof = prove_store(MemoryStore, second=lambda store, _: store)
    proof.raise_for_failures()
    assert proof.ok
    noted = [
        f"atomic.an_operation_that_fails_in_the_middle_leaves_nothing_behind[{name}]-{colour}"
        for name in ("admit_plain", "admit_plain_read", "settle_plain")
        for colour in ("blocking", "async")
    ]
    assert sorted(proof.skipped) == sorted(noted)  # it only notes a plain step: there is no row in whose middle to fail
    assert len(proof.passed) == 2 * len(STORE_CHECKS) - len(noted)


# ---- stores that are wrong ----------------------------------------------------------------


class LeavesHalves(MemoryStore):
    """Has no undo."""

    def perform(self, op: Any) -> Any:
        with self._lock:
            return run_flow(dispatch.intent(op), self._row)


class ForgetsRepetitions(MemoryStore):
    """Takes every request for a new one."""

    def perform(self, op: Any) -> Any:
        return super().perform(replace(op, repeated=False))


class FoldsNames(MemoryStore):
    """Compares ids as a collation without case does."""

    def _row(self, op: Any) -> Any:
        match op:
            case List(table=table) if table is RUNS:
                lowered = [(name, how, value.lower() if name == "id" else value) for name, how, value in op.where]
                op = replace(op, where=tuple(lowered))
            case Add(table=table) if table is RUNS:
                op = replace(op, row=replace(op.row, id=op.row.id.lower()))
        return super()._row(op)


class CutsText(MemoryStore):
    """Keeps what fits into 64 kB."""

    def _row(self, op: Any) -> Any:
        if isinstance(op, Add) and op.table is CALLS:
            op = replace(op, row=replace(op.row, args=op.row.args[:65_535]))
        return super()._row(op)


class ForgetsConditions(MemoryStore):
    """Looks at the first condition of a list only."""

    def _row(self, op: Any) -> Any:
        return super()._row(replace(op, where=op.where[:1]) if isinstance(op, List) else op)


class CountsRowsOfPages(MemoryStore):
    """Begins a page behind the last row that still fits."""

    def _row(self, op: Any) -> Any:
        if isinstance(op, List) and op.table is APPROVALS and op.after is not None:
            fits = [row.id for row in super()._row(replace(op, after=None, limit=None))]
            return super()._row(op) if op.after[0] in fits else []
        return super()._row(op)


class Overwrites(MemoryStore):
    """Adds a row over the one that is there."""

    def _row(self, op: Any) -> Any:
        if isinstance(op, Add) and op.if_absent:
            self._keep(op.table, op.row)
            return True
        return super()._row(op)


class RoundsTime(MemoryStore):
    """Keeps milliseconds."""

    def _row(self, op: Any) -> Any:
        if isinstance(op, Add) and op.table is RUNS:
            op = replace(op, row=replace(op.row, created_at=round(op.row.created_at, 3)))
        return super()._row(op)


class HasItsOwnTime(MemoryStore):
    """Ignores the clock that it is given."""

    def __init__(self, clock: object) -> None:
        super().__init__(time.time)


class AnswersLoopsWrongly(MemoryStore):
    """Is right for threads and wrong for event loops."""

    async def perform_async(self, op: Any) -> Any:
        answer = self.perform(op)
        return None if type(answer).__name__ == "Settled" else answer


class Unlocked(MemoryStore):
    """Lets two transactions read before either writes."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self._meeting = threading.Barrier(2, timeout=5.0)

    def perform(self, op: Any) -> Any:
        return run_flow(dispatch.intent(op), self._row)

    def _row(self, op: Any) -> Any:
        answer = super()._row(op)
        asked = isinstance(op, List) and op.table is CALLS and op.where[0][0] == "key"
        if asked and threading.current_thread() is not threading.main_thread():
            self._meeting.wait()
        return answer


@pytest.mark.parametrize(
    "wrong, found",
    [
        (LeavesHalves, "atomic.an_operation_that_fails_in_the_middle_leaves_nothing_behind[settle_pivot]"),
        (ForgetsRepetitions, "atomic.a_repeated_operation_gives_the_first_answer[start]"),
        (FoldsNames, "storing.names_that_look_alike_are_two_runs[case]"),
        (CutsText, "storing.text_comes_back_as_it_was_written[long]"),
        (ForgetsConditions, "tables.every_comparison_holds_for_the_right_rows"),
        (CountsRowsOfPages, "tables.a_page_begins_behind_a_row_that_no_longer_fits"),
        (Overwrites, "tables.the_first_row_of_a_key_stays"),
        (RoundsTime, "storing.time_is_kept_to_the_microsecond"),
        (HasItsOwnTime, "opening.a_new_run_is_open_and_owned"),
        (Unlocked, "racing.of_two_same_requests_one_starts_and_one_waits"),
    ],
)
def test_a_store_that_is_wrong_is_found(wrong: type[MemoryStore], found: str) -> None:
    proof = prove_store(wrong, only=[found])
    assert not proof.ok
    assert set(proof.failed) == {f"{found}-blocking", f"{found}-async"}


def test_each_colour_is_proved_by_itself() -> None:
    name = "stale.a_settlement_answers_with_its_own_attempt"
    proof = prove_store(AnswersLoopsWrongly, only=[name])
    assert (proof.passed, list(proof.failed)) == ((f"{name}-blocking",), [f"{name}-async"])


# ---- what it says -------------------------------------------------------------------------


def test_a_proof_tells_where_a_store_is_wrong() -> None:
    name = "storing.time_is_kept_to_the_microsecond"
    proof = prove_store(RoundsTime, only=[name], colours=["blocking"])
    assert str(proof).startswith(f"0 passed, 1 failed, 0 skipped\nFAILED {name}-blocking\nTraceback")
    assert "AssertionError" in str(proof)
    with pytest.raises(AssertionError, match="1 failed"):
        proof.raise_for_failures()


def test_nothing_checked_proves_nothing() -> None:
    proof = prove_store(MemoryStore, only=[])
    assert not proof.ok
    with pytest.raises(AssertionError, match="0 passed"):
        proof.raise_for_failures()


def test_what_cannot_be_checked_is_said() -> None:
    name = "racing.two_handles_see_one_ledger"
    proof = prove_store(MemoryStore, only=[name], colours=["blocking"])
    assert proof == Proof((), {}, {f"{name}-blocking": "no second handle was given: races are over one"})
    assert str(proof).endswith(f"skipped {name}-blocking: no second handle was given: races are over one")
    with pytest.raises(Skipped):
        check_store(name, MemoryStore)


def test_a_store_without_the_shared_flows_has_nothing_to_break() -> None:
    class OwnFlows(MemoryStore):
        def perform(self, op: Any) -> Any:
            with self._lock:
                return run_flow(flows[type(op)](op), self._row)

    flows = dict(dispatch.INTENTS)
    name = "atomic.an_operation_that_fails_in_the_middle_leaves_nothing_behind[settle]"
    proof = prove_store(OwnFlows, only=[name], colours=["blocking"])
    assert "SettleCall" in proof.skipped[f"{name}-blocking"]


def test_an_unknown_check_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no check opening\.nonsense"):
        prove_store(MemoryStore, only=["opening.nonsense"])


def test_an_error_that_did_not_come_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="LookupError was not raised"), raises(LookupError):
        pass


# ---- what it costs and needs --------------------------------------------------------------


def python(*given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *given], capture_output=True, text=True, check=False, timeout=60)


def test_who_does_not_ask_for_it_does_not_load_it() -> None:
    code = "import sys, amends.testing; print('amends.testing.conformance' in sys.modules)"
    done = python("-c", code)
    assert done.stdout.strip() == "False", done.stderr


def test_without_assertions_it_refuses_to_prove_anything() -> None:
    code = (
        "from amends.stores.memory import MemoryStore; from amends.testing import prove_store; prove_store(MemoryStore)"
    )
    done = python("-O", "-c", code)
    assert done.returncode == 1
    assert "RuntimeError: the checks are assertions" in done.stderr
