"""Plain steps on MariaDB: done by their statements, or not at all."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from amends.encoding.ids import number_at
from amends.ledger import operations as ops
from amends.ledger.plain import AdmitPlain, PlainRun, PlainTool, SettledPlain, SettlePlain, Started
from amends.ledger.rows import RunRow
from amends.stores.mysql import quick
from amends.stores.mysql.store import MysqlStore
from amends.stores.sql import FOLD_WINDOW_S, SKEW_S
from amends.testing.conformance.ledger import LEASE_S, Clock, Ledger, audit
from tests.servers.databases import execute

TOOL = PlainTool("charge", "1", "compensatable", 0, 1)
NOW = 1_750_000_000.0


class Plainly(Ledger):
    """A ledger, with plain operations on one run."""

    def admission(self, run: RunRow, key: int, *, owner: str = "a", epoch: int = 1) -> AdmitPlain:
        self.made += 1
        plain = PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, owner, epoch)
        return AdmitPlain(
            plain,
            TOOL,
            number_at(self.clock.now, self.made),
            bytes([key] * 32),
            bytes([2] * 32),
            bytes([3] * 32),
            '{"é": "\'"}',
        )

    def quickly(self, op: Any) -> Any:
        """Return the answer of the step itself; None: it has changed nothing."""
        assert isinstance(self.store, MysqlStore)
        return self.store._alone(op)


@pytest.fixture
def ledger(mysql_url: str) -> Iterator[Plainly]:
    clock = Clock()
    clock.now = NOW
    with closing(MysqlStore(mysql_url, clock=clock)) as store:
        made = Plainly(store, clock=clock)
        made(made.admission(made.run("first"), 1))  # by the flow: the ledger knows the tool from now on
        yield made
        audit(made)


def test_an_ordinary_call_and_its_compensation_are_folded_into_one_row(ledger: Plainly, mysql_url: str) -> None:
    run = ledger.run()
    before = len(execute(mysql_url, ["select 1 from amends_event"]))
    for key in (1, 2):
        started = ledger.quickly(ledger.admission(run, key))
        assert isinstance(started, Started)
        ledger.clock.now += 0.25
        settled = ledger.quickly(SettlePlain(started, '"ok"'))
        assert isinstance(settled, SettledPlain)
        assert ledger.look(settled.row) == settled.row
    assert len(execute(mysql_url, ["select 1 from amends_event"])) == before
    ledger.roll_back(run)
    before = len(execute(mysql_url, ["select 1 from amends_event"]))
    for call in [one for one in ledger.calls() if one.root == run.uid]:  # newest first
        begun = ledger.quickly(ledger.compensate_op(call))
        assert ledger.look(call) == begun
        done = ledger.quickly(ops.SettleCompensation(call.id, "a", 1, 1, "compensated", seen=begun))
        assert ledger.look(call) == done.call
    assert len(execute(mysql_url, ["select 1 from amends_event"])) == before
    told = [event.to_state for event in ledger.events(run) if event.call]
    assert told == ["started", "succeeded"] * 2 + ["compensating", "compensated"] * 2


def taken_over(ledger: Plainly, run: RunRow, _url: str) -> None:
    ledger.clock.now += LEASE_S + 1
    ledger(ledger.claim_op(run, force=True))


def told_to_go_back(ledger: Plainly, run: RunRow, _url: str) -> None:
    ledger(ops.BeginRollback(run.uid, "ann", "no", True))


def halted(ledger: Plainly, _run: RunRow, _url: str) -> None:
    ledger(ops.Halt(ledger.new("hlt"), None, "", "", "ann", "stop"))


def key_was_used(ledger: Plainly, run: RunRow, _url: str) -> None:
    assert ledger.quickly(ledger.admission(run, 7)) is not None


@pytest.mark.parametrize("change", [taken_over, told_to_go_back, halted, key_was_used])
def test_an_admission_that_is_not_plain_changes_nothing(
    ledger: Plainly, mysql_url: str, change: Callable[[Plainly, RunRow, str], None]
) -> None:
    run = ledger.run()
    change(ledger, run, mysql_url)
    before = ledger.everything()
    assert ledger.quickly(ledger.admission(run, 7)) is None
    assert ledger.everything() == before


def test_a_call_whose_number_has_another_time_is_left_to_the_flow(ledger: Plainly) -> None:
    run = ledger.run()
    op = ledger.admission(run, 7)
    ledger.clock.now += SKEW_S + 1
    assert ledger.quickly(op) is None
    assert ledger(op).verdict == "start"


def test_a_settlement_that_is_not_plain_changes_nothing(ledger: Plainly, mysql_url: str) -> None:
    late, twice, fenced, learned = (ledger.run(name) for name in ("late", "twice", "fenced", "learned"))
    started = {run.uid: ledger.quickly(ledger.admission(run, 7)) for run in (late, twice, fenced, learned)}
    ledger(ops.NoteEvidence(started[learned.uid].row.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    assert isinstance(ledger.quickly(SettlePlain(started[twice.uid], "1")), SettledPlain)
    taken_over(ledger, fenced, mysql_url)
    before = ledger.everything()
    assert ledger.quickly(SettlePlain(started[twice.uid], "2")) is None
    assert ledger.quickly(SettlePlain(started[fenced.uid], "2")) is None
    assert ledger.quickly(SettlePlain(started[learned.uid], "2")) is None
    ledger.clock.now += FOLD_WINDOW_S
    assert ledger.quickly(SettlePlain(started[late.uid], "2")) is None
    assert ledger.everything() == before


def test_a_compensation_that_is_not_plain_changes_nothing(ledger: Plainly, mysql_url: str) -> None:
    run = ledger.run()
    for key in (1, 2):
        ledger.quickly(SettlePlain(ledger.quickly(ledger.admission(run, key)), "1"))
    ledger.roll_back(run)
    newest, oldest = [one for one in ledger.calls() if one.root == run.uid]
    before = ledger.everything()
    assert ledger.quickly(ledger.compensate_op(oldest)) is None  # the newest goes first
    execute(mysql_url, ["update amends_run set touch = touch + 1"])  # somebody has written an event
    assert ledger.quickly(ledger.compensate_op(newest)) is None
    assert ledger.everything() == before
    assert ledger(ledger.compensate_op(newest)).state == "compensating"


def test_a_batch_that_was_held_up_is_undone(ledger: Plainly, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events would be older than the moment in which they become visible."""
    runs = [ledger.run(f"run {number}") for number in range(3)]
    store: Any = ledger.store
    store._plain.tools[TOOL] = 1
    asked = [ledger.admission(run, 1) for run in runs]
    before = ledger.events()
    with monkeypatch.context() as patched:
        patched.setattr(quick, "WAIT_US", -1)  # so it was on its way for too long, however fast it was
        assert store._together(asked) == [None] * 3
    assert ledger.events() == before
    assert [type(one) for one in store._together(asked)] == [Started] * 3


def test_a_batch_leaves_what_is_halted_and_does_the_settlements(ledger: Plainly, mysql_url: str) -> None:
    runs = [ledger.run(f"run {number}") for number in range(3)]
    store: Any = ledger.store
    store._plain.tools[TOOL] = 1
    started = store._together([ledger.admission(run, 1) for run in runs])
    execute(mysql_url, ["update amends_ledger set halt = halt + 1"])
    asked = [
        SettlePlain(started[0], '"\\ \' \N{SNOWMAN}"'),
        ledger.admission(runs[1], 2),
        SettlePlain(started[2], "{}"),
    ]
    assert [type(one) for one in store._together(asked)] == [SettledPlain, type(None), SettledPlain]
    execute(mysql_url, ["update amends_ledger set halt = halt - 1"])
    assert ledger.look(started[0].row).result == '"\\ \' \N{SNOWMAN}"'
