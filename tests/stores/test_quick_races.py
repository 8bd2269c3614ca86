"""A plain statement that waited for its run does what the flow would have done after whoever kept it waiting."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from amends.ledger import operations as ops
from amends.ledger.dispatch import intent
from amends.ledger.flow import run_flow
from amends.ledger.plain import AdmitPlain, SettlePlain
from amends.stores.memory import MemoryStore
from amends.stores.sql import Transaction, as_sql
from amends.testing.conformance.equivalence import answered
from amends.testing.conformance.ledger import LEASE_S, Clock, Ledger, audit
from tests.servers.databases import execute
from tests.stores.harness import Harness
from tests.stores.many import wait_for

Asked = tuple[ops.StoreOp[Any], ops.StoreOp[Any]]
"""Who has the run first, and the quick one that waits for it."""
Case = Callable[[Ledger], Asked]

EVIDENCE: dict[str, Any] = {
    "happened": True,
    "result": '"late"',
    "error": "",
    "boot": "boot",
    "mono": 9.0,
    "source": "late",
}
WAITING = {
    "postgres": "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()",
    "mysql": "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'",
}


# ---- an admission -------------------------------------------------------------------------


def taken_over(ledger: Ledger) -> Asked:
    run = ledger.run()
    ledger.clock.now += LEASE_S + 1
    return ledger.claim_op(run), ledger.plain_op(run)


def told_to_go_back(ledger: Ledger) -> Asked:
    run = ledger.run()
    return ops.BeginRollback(run.uid, "ann", "no", True), ledger.plain_op(run)


def turned_back(ledger: Ledger) -> Asked:
    run = ledger.run()
    return ops.BeginRollback(run.uid, "a", "no", False, owner="a", epoch=1), ledger.plain_op(run)


def pivot_started(ledger: Ledger) -> Asked:
    run = ledger.run()
    return ledger.admit_op(run, "wire", kind="pivot"), ledger.plain_op(run)


def committed(ledger: Ledger) -> Asked:
    run = ledger.run()
    ledger.do(run)
    return ops.DecideCommit(run.uid, "a", 1), ledger.plain_op(run)


def committed_read(ledger: Ledger) -> Asked:
    run = ledger.run()
    ledger.do(run)
    return ops.DecideCommit(run.uid, "a", 1), ledger.plain_op(run, "look", kind="read")


def same_key(ledger: Ledger) -> Asked:
    run = ledger.run()
    return ledger.plain_op(run).general(), ledger.plain_op(run)


def same_key_other_words(ledger: Ledger) -> Asked:
    run = ledger.run()
    return ledger.plain_op(run).general(), replace(ledger.plain_op(run), ident=bytes(32))


def let_go(ledger: Ledger) -> Asked:
    run = ledger.run()
    return ops.ReleaseLease(run.uid, "a", 1, None), ledger.plain_op(run)


def abandoned(ledger: Ledger) -> Asked:
    run = ledger.run()
    return ops.AbandonRun(run.uid, "ann", "enough"), ledger.plain_op(run)


def blocked(ledger: Ledger) -> Asked:
    run = ledger.run()
    return ops.CloseRun(run.uid, "a", 1, "blocked", causes=("one",)), ledger.plain_op(run)


def failed_meanwhile(ledger: Ledger) -> Asked:
    run = ledger.run()
    call = ledger.start(run)
    return ledger.settle_op(call, "failed", seen=None), ledger.admit_op(run, expected=True)


def doomed(ledger: Ledger) -> Asked:
    run = ledger.run()
    call = ledger.start(run)
    return ledger.settle_op(call, "failed", doom=True), ledger.plain_op(run)


# ---- a settlement -------------------------------------------------------------------------


def settled_by_a_takeover(ledger: Ledger) -> Asked:
    run = ledger.run()
    started = ledger.start_plain(run)
    ledger.clock.now += LEASE_S + 1
    return ledger.claim_op(run), SettlePlain(started, '"ok"')


def evidence_came(ledger: Ledger) -> Asked:
    started = ledger.start_plain(ledger.run())
    return ops.NoteEvidence(started.row.id, 1, **EVIDENCE), SettlePlain(started, '"ok"')


def settled_twice(ledger: Ledger) -> Asked:
    started = ledger.start_plain(ledger.run())
    return ledger.settle_op(started.row, "failed", seen=None), SettlePlain(started, '"ok"')


def restarted(ledger: Ledger) -> Asked:
    started = ledger.start_plain(ledger.run())
    ledger.settle(started.row, "backing_off", retry_s=0.0)
    return ops.StartCall(started.row.id, "a", 1, 2), SettlePlain(started, '"ok"')


def goal_while_settling(ledger: Ledger) -> Asked:
    run = ledger.run()
    started = ledger.start_plain(run)
    return ops.BeginRollback(run.uid, "ann", "no", True), SettlePlain(started, '"ok"')


# ---- a compensation -----------------------------------------------------------------------


def late_one_comes_first(ledger: Ledger) -> Asked:
    run = ledger.run()
    first, second = ledger.do(run, "one"), ledger.settle(ledger.start(run, "two"), "failed").call
    ledger.roll_back(run)
    return ops.NoteEvidence(second.id, 1, **EVIDENCE), ledger.compensate_op(first)


def doubt_resolved_comes_first(ledger: Ledger) -> Asked:
    run = ledger.run()
    first, second = ledger.do(run, "one"), ledger.settle(ledger.start(run, "two"), "in_doubt").call
    ledger.roll_back(run)
    return ops.ResolveCall(second.id, "succeeded", "ann", "I looked", result='"ok"'), ledger.compensate_op(first)


def doubt_started_again(ledger: Ledger) -> Asked:
    run = ledger.run()
    first, second = ledger.do(run, "one"), ledger.settle(ledger.start(run, "two"), "in_doubt").call
    ledger.roll_back(run)
    return ops.StartCall(second.id, "a", 1, 2), ledger.compensate_op(first)


def begun_by_another(ledger: Ledger) -> Asked:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    return replace(ledger.compensate_op(call), seen=None), ledger.compensate_op(call)


def later_one_fails_to_go(ledger: Ledger) -> Asked:
    """What is tried again is in the way again."""
    run = ledger.run()
    first, second = ledger.do(run, "one"), ledger.do(run, "two")
    ledger.roll_back(run)
    failed = ledger.compensate(second, "compensation_failed")
    return replace(ledger.compensate_op(failed), seen=None), ledger.compensate_op(first)


def rollback_taken_over(ledger: Ledger) -> Asked:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    ledger.clock.now += LEASE_S + 1
    return ledger.claim_op(run), ledger.compensate_op(call)


def end_taken_over(ledger: Ledger) -> Asked:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(call))
    ledger.clock.now += LEASE_S + 1
    return ledger.claim_op(run), ops.SettleCompensation(call.id, "a", 1, 1, "compensated", seen=begun)


def end_with_evidence(ledger: Ledger) -> Asked:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    begun = ledger(ledger.compensate_op(call))
    return ops.NoteEvidence(call.id, 1, **EVIDENCE), ops.SettleCompensation(
        call.id, "a", 1, 1, "compensated", seen=begun
    )


CASES: tuple[Case, ...] = (
    taken_over, told_to_go_back, turned_back, pivot_started, committed, committed_read, same_key, same_key_other_words,
    let_go, abandoned, blocked, failed_meanwhile, doomed, settled_by_a_takeover, evidence_came, settled_twice,
    restarted, goal_while_settling, late_one_comes_first, doubt_resolved_comes_first, doubt_started_again,
    begun_by_another, later_one_fails_to_go, rollback_taken_over, end_taken_over, end_with_evidence,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_who_waited_does_what_the_flow_would_do(request: pytest.FixtureRequest, kind: str, case: Case) -> None:
    harness: Harness = request.getfixturevalue(f"{'postgresql' if kind == 'postgres' else kind}_harness")
    url, clock = harness.url, Clock()
    memory = Ledger(MemoryStore(clock), clock=clock)
    first, second = warmed(memory, case)
    root = root_of(memory, second)
    expected = [answered(memory, replace(first)), answered(memory, replace(second))]
    clock.now = Clock().now
    with closing(harness.make(clock)) as store:
        store.open(create=True)
        ledger = Ledger(store, clock=clock)
        asked = warmed(ledger, case)
        with ThreadPoolExecutor(1) as pool, held(kind, url, root, clock) as perform:
            waiting = pool.submit(answered, ledger, asked[1])
            wait_for(lambda: _somebody_waits(kind, url))
            said = perform(asked[0])
        assert [said, waiting.result(30)] == expected
        assert ledger.everything() == memory.everything()
        audit(ledger)


def root_of(ledger: Ledger, op: Any) -> str:
    match op:
        case AdmitPlain() | ops.AdmitCall():
            found = op.run.root if isinstance(op, AdmitPlain) else op.root
        case SettlePlain():
            found = op.started.op.run.root
        case _:
            found = ledger(ops.ReadCall(op.call_id)).root
    assert isinstance(found, str)
    return found


def warmed(ledger: Ledger, case: Case) -> Asked:
    """Let the store know the tools first: a call of an unknown one goes through the flow."""
    run = ledger.run("before")
    ledger.start_plain(run)
    ledger.start_plain(run, "look", kind="read")
    return case(ledger)


def store_of(kind: str, url: str, clock: Clock) -> Any:
    if kind == "postgres":
        from amends.stores.postgres.store import PostgresStore

        return PostgresStore(url, clock=clock)
    from amends.stores.mysql.store import MysqlStore

    return MysqlStore(url, clock=clock)


@contextmanager
def held(kind: str, url: str, root: str, clock: Clock) -> Iterator[Callable[[ops.StoreOp[Any]], Any]]:
    """Somebody else's transaction that has the run locked, carries one operation out and commits."""
    store = store_of(kind, url, clock)
    link = store._connect()
    statements = __import__(
        f"amends.stores.{'postgres.transaction' if kind == 'postgres' else 'mysql.transaction'}", fromlist=["WRITING"]
    ).WRITING
    say = link.command if kind == "postgres" else link.ask
    say("begin")
    say(f"select 1 from amends_run where uid = '{root}' for update")

    def perform(op: ops.StoreOp[Any]) -> Any:
        answer = run_flow(as_sql(intent(op), Transaction(statements, clock)), link.execute)
        say("commit")
        return answer

    try:
        yield perform
    finally:
        link.close()
        store.close()


def _somebody_waits(kind: str, url: str) -> bool:
    if kind == "mysql":
        time.sleep(0.12)  # MariaDB renews this table only when nobody has looked for a tenth of a second
    return bool(execute(url, [WAITING[kind]])[0][0])
