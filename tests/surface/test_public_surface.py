"""The public surface, compared with a recorded copy: a rename or a lost default breaks somebody's program."""

from __future__ import annotations

from pathlib import Path

from tests.surface.public import surface

RECORDED = Path(__file__).with_name("public_surface.txt")

# Changes made on purpose since the copy was recorded, with the reason. Record the copy anew when a release is made:
# `python -m tests.surface.public > tests/surface/public_surface.txt`.
ADDED: dict[str, str] = {
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
    "amends.Halt()": "the emergency stop",
    "amends.Halt.__init__(id, tenant, agent, tool, by, why, at, lifted_at=None)": "the emergency stop",
    "amends.Halt.agent: attribute": "the emergency stop",
    "amends.Halt.at: attribute": "the emergency stop",
    "amends.Halt.by: attribute": "the emergency stop",
    "amends.Halt.extent: property": "the emergency stop",
    "amends.Halt.id: attribute": "the emergency stop",
    "amends.Halt.lifted_at: attribute": "the emergency stop",
    "amends.Halt.tenant: attribute": "the emergency stop",
    "amends.Halt.to_dict(self)": "the emergency stop",
    "amends.Halt.tool: attribute": "the emergency stop",
    "amends.Halt.why: attribute": "the emergency stop",
    "amends.NoEffect.__init__(*args, final=False)": "a final no",
    "amends.NoEffect.final: attribute": "a final no",
    "amends.Permit()": "approvals given ahead",
    "amends.Permit.__init__(id, tool, by, why, at, expires_at, uses, digest=None, rule=None, roles=(), ended_at=None)": "approvals given ahead",  # noqa: E501
    "amends.Permit.at: attribute": "approvals given ahead",
    "amends.Permit.by: attribute": "approvals given ahead",
    "amends.Permit.digest: attribute": "approvals given ahead",
    "amends.Permit.ended_at: attribute": "approvals given ahead",
    "amends.Permit.expires_at: attribute": "approvals given ahead",
    "amends.Permit.id: attribute": "approvals given ahead",
    "amends.Permit.roles: attribute": "approvals given ahead",
    "amends.Permit.rule: attribute": "approvals given ahead",
    "amends.Permit.to_dict(self)": "approvals given ahead",
    "amends.Permit.tool: attribute": "approvals given ahead",
    "amends.Permit.uses: attribute": "approvals given ahead",
    "amends.Permit.why: attribute": "approvals given ahead",
    "amends.RollbackPlan.__init__(run_id, hash, compensations=(), cannot=(), doubts=(), dropped=(), running=(), refused=None, state='open', forks=(), must_accept=(), answered=())": "a committed run is taken back by a plan",  # noqa: E501
    "amends.RollbackPlan.answered: attribute": "a committed run is taken back by a plan",
    "amends.RollbackPlan.must_accept: attribute": "a committed run is taken back by a plan",
    "amends.Runtime.halt(self, *, by, why, tenant=None, agent=None, tool=None)": "the emergency stop",
    "amends.Runtime.halts(self)": "the emergency stop",
    "amends.Runtime.permit(self, tool, args=None, *, by, why='', rule=None, uses=1, expires=86400.0, roles=())": "approvals given ahead",  # noqa: E501
    "amends.Runtime.permits(self, tool='')": "approvals given ahead",
    "amends.Runtime.revoke(self, permit_id, *, by, why)": "approvals given ahead",
    "amends.Runtime.rollback(self, run_id, *, by, why, plan=None, accept=())": "a committed run is taken back by a plan",
    "amends.Runtime.unhalt(self, *, by, why, tenant=None, agent=None, tool=None)": "the emergency stop",
    "amends.errors.Halted(Refused, Error, Exception, BaseException)": "the emergency stop",
    "amends.errors.Halted.__init__(tool, *, by, why, since, extent, halt_id, run_id=None)": "the emergency stop",
    "amends.errors.Halted.code: property": "the emergency stop",
    "amends.errors.Halted.default_hint: attribute": "the emergency stop",
    "amends.errors.Halted.for_model(self)": "the emergency stop",
    "amends.errors.Halted.to_dict(self)": "the emergency stop",
    "amends.errors.ToolFailed.__init__(message, *, call, type_name, run_id=None, final=False)": "a final no",
    "amends.testing.TestRuntime.halt(self, *, by, why, tenant=None, agent=None, tool=None)": "the emergency stop",
    "amends.testing.TestRuntime.halts(self)": "the emergency stop",
    "amends.testing.TestRuntime.permit(self, tool, args=None, *, by, why='', rule=None, uses=1, expires=86400.0, roles=())": "approvals given ahead",  # noqa: E501
    "amends.testing.TestRuntime.permits(self, tool='')": "approvals given ahead",
    "amends.testing.TestRuntime.revoke(self, permit_id, *, by, why)": "approvals given ahead",
    "amends.testing.TestRuntime.rollback(self, run_id, *, by, why, plan=None, accept=())": "a committed run is taken back by a plan",  # noqa: E501
    "amends.testing.TestRuntime.unhalt(self, *, by, why, tenant=None, agent=None, tool=None)": "the emergency stop",
    "async amends.AsyncRuntime.halt(self, *, by, why, tenant=None, agent=None, tool=None)": "the emergency stop",
    "async amends.AsyncRuntime.halts(self)": "the emergency stop",
    "async amends.AsyncRuntime.permit(self, tool, args=None, *, by, why='', rule=None, uses=1, expires=86400.0, roles=())": "approvals given ahead",  # noqa: E501
    "async amends.AsyncRuntime.permits(self, tool='')": "approvals given ahead",
    "async amends.AsyncRuntime.revoke(self, permit_id, *, by, why)": "approvals given ahead",
    "async amends.AsyncRuntime.rollback(self, run_id, *, by, why, plan=None, accept=())": "a committed run is taken back by a plan",
    "async amends.AsyncRuntime.unhalt(self, *, by, why, tenant=None, agent=None, tool=None)": "the emergency stop",
}
REMOVED: dict[str, str] = {
    "amends.NoEffect.__init__(...)": "see ADDED",
    "amends.RollbackPlan.__init__(run_id, hash, compensations=(), cannot=(), doubts=(), dropped=(), running=(), refused=None, state='open', forks=())": "see ADDED",  # noqa: E501
    "amends.Runtime.rollback(self, run_id, *, by, why, plan=None)": "see ADDED",
    "amends.errors.ToolFailed.__init__(message, *, call, type_name, run_id=None)": "see ADDED",
    "amends.testing.TestRuntime.rollback(self, run_id, *, by, why, plan=None)": "see ADDED",
    "async amends.AsyncRuntime.rollback(self, run_id, *, by, why, plan=None)": "see ADDED",
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
