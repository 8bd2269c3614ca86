"""The public surface, compared with a recorded copy: a rename or a lost default breaks somebody's program."""

# ruff: noqa: E501 (a signature is one line of the surface)

from __future__ import annotations

from pathlib import Path

from tests.surface.public import surface

RECORDED = Path(__file__).with_name("public_surface.txt")

# Changes made on purpose since the copy was recorded, with the reason. Record the copy anew when a release is made:
# `python -m tests.surface.public > tests/surface/public_surface.txt`.
ADDED: dict[str, str] = {
    "amends.AsyncRuntime.__init__(url=None, *, tools=(), agents=None, order=None, interrupted=None, lease=None, wait=None, wait_approval=None, rules=None, approvers=None, on_approval_needed=None, link_secret=None, link_url=None, anchor=None, checkpoint=None, audit_key=None, on_checkpoint=None, create=None, repeats=None, tenant=None, agent=None, principal=None, budgets=None, redact=None, secret_key=None, encrypt=None, store=None)": "`interrupted=`, for all runs of a runtime",
    "amends.AsyncRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, reads='record', tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",
    "amends.AsyncRuntime.worker(self, *, every=1.0, limit=100)": "recovery in the application's own process: `with rt.worker():`",
    "amends.RunInfo.__init__(id, state, generation=1, tenant=None, agent=None, principal=None, parent=None, goal=None, recover='rollback', interrupted='block', input=None, output=None, tags=(), causes=(), owner=None, epoch=0, opened_at=None, closed_at=None, deadline_at=None, gone_at=None, origin=None, forked_from=None, forked_at=None)": "`interrupted=`, as a run was told",
    "amends.RunInfo.interrupted: attribute": "`interrupted=`, as a run was told",
    "amends.Runtime.__init__(url=None, *, tools=(), agents=None, order=None, interrupted=None, lease=None, wait=None, wait_approval=None, rules=None, approvers=None, on_approval_needed=None, link_secret=None, link_url=None, anchor=None, checkpoint=None, audit_key=None, on_checkpoint=None, create=None, repeats=None, tenant=None, agent=None, principal=None, budgets=None, redact=None, secret_key=None, encrypt=None, store=None)": "`interrupted=`, for all runs of a runtime",
    "amends.Runtime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, reads='record', tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",
    "amends.Runtime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, reads='record', tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",
    "amends.Runtime.start(self, agent, *, id=None, input=None, reads='record')": "reads of a resumed agent: `reads=`",
    "amends.Runtime.worker(self, *, every=1.0, limit=100)": "recovery in the application's own process: `with rt.worker():`",
    "amends.testing.TestRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, reads='record', tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",
    "amends.testing.TestRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, reads='record', tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",
    "amends.testing.TestRuntime.start(self, agent, *, id=None, input=None, reads='record')": "reads of a resumed agent: `reads=`",
    "amends.testing.TestRuntime.worker(self, *, every=1.0, limit=100)": "recovery in the application's own process: `with rt.worker():`",
    "amends.testing.World.__init__(sim, traits=<_HAS_DEFAULT_FACTORY_CLASS>, landings=<_HAS_DEFAULT_FACTORY_CLASS>, unwritten=<_HAS_DEFAULT_FACTORY_CLASS>, stale=<_HAS_DEFAULT_FACTORY_CLASS>, lies=<_HAS_DEFAULT_FACTORY_CLASS>, orphans=<_HAS_DEFAULT_FACTORY_CLASS>, alone=<_HAS_DEFAULT_FACTORY_CLASS>, merged=<_HAS_DEFAULT_FACTORY_CLASS>, unlocked=<_HAS_DEFAULT_FACTORY_CLASS>, deadlocks=<_HAS_DEFAULT_FACTORY_CLASS>, unapproved=<_HAS_DEFAULT_FACTORY_CLASS>, notices=<_HAS_DEFAULT_FACTORY_CLASS>, asks=<frozenset>, unrepeated=<frozenset>, overspent=<_HAS_DEFAULT_FACTORY_CLASS>, unpaid=<_HAS_DEFAULT_FACTORY_CLASS>, answers=<_HAS_DEFAULT_FACTORY_CLASS>, later=<_HAS_DEFAULT_FACTORY_CLASS>, unknown_probes=0, broken_probes=0, plans=<_HAS_DEFAULT_FACTORY_CLASS>, told_stale=<_HAS_DEFAULT_FACTORY_CLASS>, read=<_HAS_DEFAULT_FACTORY_CLASS>, replaying=<_HAS_DEFAULT_FACTORY_CLASS>, impatient=<_HAS_DEFAULT_FACTORY_CLASS>, replay_bodies=<_HAS_DEFAULT_FACTORY_CLASS>, interrupted=<_HAS_DEFAULT_FACTORY_CLASS>, mistaken=<_HAS_DEFAULT_FACTORY_CLASS>, mixed=<_HAS_DEFAULT_FACTORY_CLASS>)": "the simulator has blocks that end early, and probes with a bug",
    "amends.testing.World.broken_probes: attribute": "the simulator has blocks that end early, and probes with a bug",
    "amends.testing.World.interrupted: attribute": "the simulator has blocks that end early, and probes with a bug",
    "amends.worker.AsyncWorkerBlock()": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.AsyncWorkerBlock.__init__(worker, _stop=<_HAS_DEFAULT_FACTORY_CLASS>, _task=None, _around=None, _term=None, _number=0)": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.AsyncWorkerBlock.worker: attribute": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.Worker.__init__(rt, every=1.0, limit=100, stop=<_HAS_DEFAULT_FACTORY_CLASS>, is_guest=False, blocked=<_HAS_DEFAULT_FACTORY_CLASS>, _told=<_HAS_DEFAULT_FACTORY_CLASS>, _has_greeted=False, _missing=False)": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.Worker.blocked: attribute": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.Worker.is_guest: attribute": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.WorkerBlock()": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.WorkerBlock.__init__(worker, _stop=<_HAS_DEFAULT_FACTORY_CLASS>, _thread=None, _term=None)": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.WorkerBlock.worker: attribute": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.work_once(rt, *, limit=100)": "recovery in the application's own process: `with rt.worker():`",
    "async amends.AsyncRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, reads='record', tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",
    "async amends.AsyncRuntime.start(self, agent, *, id=None, input=None, reads='record')": "reads of a resumed agent: `reads=`",
    "amends.testing.STORE_CHECKS: Suite": "a dict still, with the decorators that register a check",
    "amends.testing.Simulation.__init__(*, seed=0, lease_s=30.0, make_store=<type>)": "schedules are played on SQLite too",
    "amends.AsyncRuntime.events(self, run_id=None, *, after='', filter='')": "feeds go by moment, tree and number",
    "amends.Runtime.events(self, run_id=None, *, after='', filter='')": "as above",
    "amends.testing.TestRuntime.events(self, run_id=None, *, after='', filter='')": "as above",
    "amends.Event.__init__(seq, at, run_id, call_id, what, frm, to, by, facts=<_Unset>, place='')": "as above",
    "amends.Event.place: attribute": "as above",
    "amends.Feed()": "follows a ledger without losing an event that is committed late",
    "amends.Feed.__init__(after='', *, margin_s=5.0)": "as above",
    "amends.Feed.MARGIN_S: attribute": "as above",
    "amends.Feed.after: property": "as above",
    "amends.Feed.is_new(self, event)": "as above",
    "async amends.AsyncRuntime.newest_event(self, run_id=None)": "where a feed begins that shows only what comes next",
    "amends.Runtime.newest_event(self, run_id=None)": "as above",
    "amends.testing.TestRuntime.newest_event(self, run_id=None)": "as above",
    "amends.Runtime.schema_sql(self)": "the SQL of the tables, for people who create them by themselves",
    "async amends.AsyncRuntime.schema_sql(self)": "as above",
    "amends.testing.TestRuntime.schema_sql(self)": "as above",
    "amends.errors.LedgerTooOld(LedgerError, Error, Exception, BaseException)": "a ledger of 0.1.0.dev0 is refused",
    "amends.errors.LedgerTooOld.__init__(message, *, hint=None, run_id=None)": "as above",
    "amends.errors.LedgerTooOld.code: property": "as above",
    "amends.errors.LedgerTooOld.default_hint: attribute": "as above",
    "amends.errors.LedgerTooOld.for_model(self)": "as above",
    "amends.errors.LedgerTooOld.to_dict(self)": "as above",
    "amends.Problem.__init__(run_id, root, n, how, text)": "there is no place in the ledger, only the number in a tree",
}
REMOVED: dict[str, str] = {
    "amends.AsyncRuntime.__init__(url=None, *, tools=(), agents=None, order=None, lease=None, wait=None, wait_approval=None, rules=None, approvers=None, on_approval_needed=None, link_secret=None, link_url=None, anchor=None, checkpoint=None, audit_key=None, on_checkpoint=None, create=None, repeats=None, tenant=None, agent=None, principal=None, budgets=None, redact=None, secret_key=None, encrypt=None, store=None)": "see ADDED",
    "amends.AsyncRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.RunInfo.__init__(id, state, generation=1, tenant=None, agent=None, principal=None, parent=None, goal=None, recover='rollback', input=None, output=None, tags=(), causes=(), owner=None, epoch=0, opened_at=None, closed_at=None, deadline_at=None, gone_at=None, origin=None, forked_from=None, forked_at=None)": "see ADDED",
    "amends.Runtime.__init__(url=None, *, tools=(), agents=None, order=None, lease=None, wait=None, wait_approval=None, rules=None, approvers=None, on_approval_needed=None, link_secret=None, link_url=None, anchor=None, checkpoint=None, audit_key=None, on_checkpoint=None, create=None, repeats=None, tenant=None, agent=None, principal=None, budgets=None, redact=None, secret_key=None, encrypt=None, store=None)": "see ADDED",
    "amends.Runtime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.Runtime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.Runtime.start(self, agent, *, id=None, input=None)": "see ADDED",
    "amends.testing.TestRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.testing.TestRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.testing.TestRuntime.start(self, agent, *, id=None, input=None)": "see ADDED",
    "amends.testing.World.__init__(sim, traits=<_HAS_DEFAULT_FACTORY_CLASS>, landings=<_HAS_DEFAULT_FACTORY_CLASS>, unwritten=<_HAS_DEFAULT_FACTORY_CLASS>, stale=<_HAS_DEFAULT_FACTORY_CLASS>, lies=<_HAS_DEFAULT_FACTORY_CLASS>, orphans=<_HAS_DEFAULT_FACTORY_CLASS>, alone=<_HAS_DEFAULT_FACTORY_CLASS>, merged=<_HAS_DEFAULT_FACTORY_CLASS>, unlocked=<_HAS_DEFAULT_FACTORY_CLASS>, deadlocks=<_HAS_DEFAULT_FACTORY_CLASS>, unapproved=<_HAS_DEFAULT_FACTORY_CLASS>, notices=<_HAS_DEFAULT_FACTORY_CLASS>, asks=<frozenset>, unrepeated=<frozenset>, overspent=<_HAS_DEFAULT_FACTORY_CLASS>, unpaid=<_HAS_DEFAULT_FACTORY_CLASS>, answers=<_HAS_DEFAULT_FACTORY_CLASS>, later=<_HAS_DEFAULT_FACTORY_CLASS>, unknown_probes=0, plans=<_HAS_DEFAULT_FACTORY_CLASS>, told_stale=<_HAS_DEFAULT_FACTORY_CLASS>, read=<_HAS_DEFAULT_FACTORY_CLASS>, replaying=<_HAS_DEFAULT_FACTORY_CLASS>, impatient=<_HAS_DEFAULT_FACTORY_CLASS>, replay_bodies=<_HAS_DEFAULT_FACTORY_CLASS>, mistaken=<_HAS_DEFAULT_FACTORY_CLASS>, mixed=<_HAS_DEFAULT_FACTORY_CLASS>)": "see ADDED",
    "amends.worker.Worker.__init__(rt, every=1.0, limit=100, stop=<_HAS_DEFAULT_FACTORY_CLASS>, _told=<_HAS_DEFAULT_FACTORY_CLASS>, _has_greeted=False)": "see ADDED",
    "async amends.AsyncRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "async amends.AsyncRuntime.start(self, agent, *, id=None, input=None)": "see ADDED",
    "amends.testing.STORE_CHECKS: dict": "see ADDED",
    "amends.testing.Simulation.__init__(*, seed=0, lease_s=30.0)": "see ADDED",
    "amends.AsyncRuntime.events(self, run_id=None, *, after=0, filter='')": "see ADDED",
    "amends.Runtime.events(self, run_id=None, *, after=0, filter='')": "see ADDED",
    "amends.testing.TestRuntime.events(self, run_id=None, *, after=0, filter='')": "see ADDED",
    "amends.Event.__init__(seq, at, run_id, call_id, what, frm, to, by, facts=<_Unset>)": "see ADDED",
    "amends.Problem.__init__(run_id, root, n, seq, how, text)": "see ADDED",
    "amends.Problem.seq: attribute": "see ADDED",
}


def test_names_and_signatures_are_as_recorded() -> None:
    recorded, found = RECORDED.read_text(encoding="utf-8").splitlines(), surface()
    assert sorted(set(recorded) - set(found) - set(REMOVED)) == [], "these lines are gone from the surface"
    assert sorted(set(found) - set(recorded) - set(ADDED)) == [], "these lines are new in the surface"


def test_the_exceptions_are_needed() -> None:
    recorded, found = set(RECORDED.read_text(encoding="utf-8").splitlines()), set(surface())
    assert set(ADDED) <= found - recorded
    assert set(REMOVED) <= recorded - found
