"""The public surface, compared with a recorded copy: a rename or a lost default breaks somebody's program."""

# ruff: noqa: E501

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
    "amends.Call.__init__(run_id, tool, version, args, tenant=None, agent=None, principal=None, id='', key='', kind='compensatable', state='started', generation=1, attempt=1, phase='execute', digest='', result=None, loss=None, error=None, why=None, reason=None, again=None, tool_call_id=None, parent=None, violation=None, compensation=None, requested_at=None, started_at=None, settled_at=None, replays=0, gone_at=None, costs=<_Unset>, shared=None, classes=<_Unset>, before=None)": "what was there before the call",  # noqa: E501
    "amends.Call.before: attribute": "what was there before the call",
    "amends.Declaration.__init__(*, name, where, fn=None, cls=None, local_names=<_Unset>, kind=None, version='1', key=None, ignore=(), scope='run', on_conflict='raise', on_failure='raise', at='call', after=(), needs_approval=False, retry=None, timeout=None, idempotent=False, doubt=(), no_effect=(), settle=0.0, cost=None, locks=None, on_lock='wait', repeats=True, redact=(), order=None, class_names=<_Unset>, compensate=None, probe=None, guard=None, before=None, list_effects=None)": "tools read what is there before the body",  # noqa: E501
    "amends.Declaration.before: attribute": "tools read what is there before the body",
    "amends.Declaration.no_effect: attribute": "tools read what is there before the body",
    "amends.Doubt.__init__(run_id, tool, version, args, tenant=None, agent=None, principal=None, id='', key='', kind='compensatable', state='started', generation=1, attempt=1, phase='execute', digest='', result=None, loss=None, error=None, why=None, reason=None, again=None, tool_call_id=None, parent=None, violation=None, compensation=None, requested_at=None, started_at=None, settled_at=None, replays=0, gone_at=None, costs=<_Unset>, shared=None, classes=<_Unset>, before=None, about='call', sent=<_Unset>, sent_at=None, lost_at=None, probe=None, next_probe_at=None, evidence=())": "tools read what is there before the body",  # noqa: E501
    "amends.Doubt.before: attribute": "tools read what is there before the body",
    "amends.Tool.before(self, fn, /)": "tools read what is there before the body",
    "amends.testing.World.__init__(sim, traits=<_HAS_DEFAULT_FACTORY_CLASS>, landings=<_HAS_DEFAULT_FACTORY_CLASS>, unwritten=<_HAS_DEFAULT_FACTORY_CLASS>, stale=<_HAS_DEFAULT_FACTORY_CLASS>, lies=<_HAS_DEFAULT_FACTORY_CLASS>, orphans=<_HAS_DEFAULT_FACTORY_CLASS>, alone=<_HAS_DEFAULT_FACTORY_CLASS>, merged=<_HAS_DEFAULT_FACTORY_CLASS>, unlocked=<_HAS_DEFAULT_FACTORY_CLASS>, deadlocks=<_HAS_DEFAULT_FACTORY_CLASS>, unapproved=<_HAS_DEFAULT_FACTORY_CLASS>, notices=<_HAS_DEFAULT_FACTORY_CLASS>, asks=<frozenset>, unrepeated=<frozenset>, overspent=<_HAS_DEFAULT_FACTORY_CLASS>, unpaid=<_HAS_DEFAULT_FACTORY_CLASS>, answers=<_HAS_DEFAULT_FACTORY_CLASS>, later=<_HAS_DEFAULT_FACTORY_CLASS>, unknown_probes=0, plans=<_HAS_DEFAULT_FACTORY_CLASS>, told_stale=<_HAS_DEFAULT_FACTORY_CLASS>, read=<_HAS_DEFAULT_FACTORY_CLASS>, replaying=<_HAS_DEFAULT_FACTORY_CLASS>, impatient=<_HAS_DEFAULT_FACTORY_CLASS>, replay_bodies=<_HAS_DEFAULT_FACTORY_CLASS>, mistaken=<_HAS_DEFAULT_FACTORY_CLASS>, mixed=<_HAS_DEFAULT_FACTORY_CLASS>, sets=<frozenset>, value=0, stranger=None, puts=<_HAS_DEFAULT_FACTORY_CLASS>, set_by=<_HAS_DEFAULT_FACTORY_CLASS>, asked=<_HAS_DEFAULT_FACTORY_CLASS>, misread=<_HAS_DEFAULT_FACTORY_CLASS>)": "setters in the simulator",  # noqa: E501
    "amends.testing.World.asked: attribute": "setters in the simulator",
    "amends.testing.World.land_puts(self, *, at_once=False)": "setters in the simulator",
    "amends.testing.World.misread: attribute": "setters in the simulator",
    "amends.testing.World.put(self, value)": "setters in the simulator",
    "amends.testing.World.puts: attribute": "setters in the simulator",
    "amends.testing.World.read_value(self)": "setters in the simulator",
    "amends.testing.World.set_by: attribute": "setters in the simulator",
    "amends.testing.World.sets: attribute": "setters in the simulator",
    "amends.testing.World.stranger: attribute": "setters in the simulator",
    "amends.testing.World.value: attribute": "setters in the simulator",
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
    "amends.Runtime.inbox(self, filter='')": "everything that waits for a person, in one list",
    "async amends.AsyncRuntime.inbox(self, filter='')": "as above",
    "amends.testing.TestRuntime.inbox(self, filter='')": "as above",
    "amends.InboxItem()": "one item of it",
    "amends.InboxItem.__init__(what, id, run_id, since, expires_at=None, why='', verbs=(), roles=(), call=None, tenant=None, agent=None, principal=None)": "as above",
    "amends.InboxItem.agent: attribute": "as above",
    "amends.InboxItem.call: attribute": "as above",
    "amends.InboxItem.expires_at: attribute": "as above",
    "amends.InboxItem.id: attribute": "as above",
    "amends.InboxItem.principal: attribute": "as above",
    "amends.InboxItem.roles: attribute": "as above",
    "amends.InboxItem.run_id: attribute": "as above",
    "amends.InboxItem.since: attribute": "as above",
    "amends.InboxItem.tenant: attribute": "as above",
    "amends.InboxItem.verbs: attribute": "as above",
    "amends.InboxItem.what: attribute": "as above",
    "amends.InboxItem.why: attribute": "as above",
    "amends.InboxItem.to_dict(self)": "as above",
    "amends.Now()": "where a run runs, whom it waits for, since when it is orphaned",
    "amends.Now.__init__(what, where=None, waits_for=None, since=None)": "as above",
    "amends.Now.since: attribute": "as above",
    "amends.Now.waits_for: attribute": "as above",
    "amends.Now.what: attribute": "as above",
    "amends.Now.where: attribute": "as above",
    "amends.RunInfo.now: attribute": "as above",
    "amends.RunInfo.__init__(id, state, generation=1, tenant=None, agent=None, principal=None, parent=None, goal=None, recover='rollback', input=None, output=None, tags=(), causes=(), owner=None, epoch=0, opened_at=None, closed_at=None, deadline_at=None, gone_at=None, origin=None, forked_from=None, forked_at=None, now=None)": "as above",
    "amends.Runtime.runs(self, filter='', *, now=False)": "as above",
    "amends.AsyncRuntime.runs(self, filter='', *, now=False)": "as above",
    "amends.testing.TestRuntime.runs(self, filter='', *, now=False)": "as above",
    "amends.visible.shortened(text, room)": "a cut in a report is after a whole word",
    "amends.visible.words_of_line(text)": "as above",
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
    "amends.Call.__init__(run_id, tool, version, args, tenant=None, agent=None, principal=None, id='', key='', kind='compensatable', state='started', generation=1, attempt=1, phase='execute', digest='', result=None, loss=None, error=None, why=None, reason=None, again=None, tool_call_id=None, parent=None, violation=None, compensation=None, requested_at=None, started_at=None, settled_at=None, replays=0, gone_at=None, costs=<_Unset>, shared=None, classes=<_Unset>)": "see ADDED",  # noqa: E501
    "amends.Declaration.__init__(*, name, where, fn=None, cls=None, local_names=<_Unset>, kind=None, version='1', key=None, ignore=(), scope='run', on_conflict='raise', on_failure='raise', at='call', after=(), needs_approval=False, retry=None, timeout=None, idempotent=False, doubt=(), settle=0.0, cost=None, locks=None, on_lock='wait', repeats=True, redact=(), order=None, class_names=<_Unset>, compensate=None, probe=None, guard=None, list_effects=None)": "see ADDED",  # noqa: E501
    "amends.Doubt.__init__(run_id, tool, version, args, tenant=None, agent=None, principal=None, id='', key='', kind='compensatable', state='started', generation=1, attempt=1, phase='execute', digest='', result=None, loss=None, error=None, why=None, reason=None, again=None, tool_call_id=None, parent=None, violation=None, compensation=None, requested_at=None, started_at=None, settled_at=None, replays=0, gone_at=None, costs=<_Unset>, shared=None, classes=<_Unset>, about='call', sent=<_Unset>, sent_at=None, lost_at=None, probe=None, next_probe_at=None, evidence=())": "see ADDED",  # noqa: E501
    "amends.testing.World.__init__(sim, traits=<_HAS_DEFAULT_FACTORY_CLASS>, landings=<_HAS_DEFAULT_FACTORY_CLASS>, unwritten=<_HAS_DEFAULT_FACTORY_CLASS>, stale=<_HAS_DEFAULT_FACTORY_CLASS>, lies=<_HAS_DEFAULT_FACTORY_CLASS>, orphans=<_HAS_DEFAULT_FACTORY_CLASS>, alone=<_HAS_DEFAULT_FACTORY_CLASS>, merged=<_HAS_DEFAULT_FACTORY_CLASS>, unlocked=<_HAS_DEFAULT_FACTORY_CLASS>, deadlocks=<_HAS_DEFAULT_FACTORY_CLASS>, unapproved=<_HAS_DEFAULT_FACTORY_CLASS>, notices=<_HAS_DEFAULT_FACTORY_CLASS>, asks=<frozenset>, unrepeated=<frozenset>, overspent=<_HAS_DEFAULT_FACTORY_CLASS>, unpaid=<_HAS_DEFAULT_FACTORY_CLASS>, answers=<_HAS_DEFAULT_FACTORY_CLASS>, later=<_HAS_DEFAULT_FACTORY_CLASS>, unknown_probes=0, plans=<_HAS_DEFAULT_FACTORY_CLASS>, told_stale=<_HAS_DEFAULT_FACTORY_CLASS>, read=<_HAS_DEFAULT_FACTORY_CLASS>, replaying=<_HAS_DEFAULT_FACTORY_CLASS>, impatient=<_HAS_DEFAULT_FACTORY_CLASS>, replay_bodies=<_HAS_DEFAULT_FACTORY_CLASS>, mistaken=<_HAS_DEFAULT_FACTORY_CLASS>, mixed=<_HAS_DEFAULT_FACTORY_CLASS>)": "see ADDED",  # noqa: E501
    "amends.Runtime.runs(self, filter='')": "see ADDED",
    "amends.AsyncRuntime.runs(self, filter='')": "see ADDED",
    "amends.testing.TestRuntime.runs(self, filter='')": "see ADDED",
    "amends.RunInfo.__init__(id, state, generation=1, tenant=None, agent=None, principal=None, parent=None, goal=None, recover='rollback', input=None, output=None, tags=(), causes=(), owner=None, epoch=0, opened_at=None, closed_at=None, deadline_at=None, gone_at=None, origin=None, forked_from=None, forked_at=None)": "see ADDED",
}


def test_names_and_signatures_are_as_recorded() -> None:
    recorded, found = RECORDED.read_text(encoding="utf-8").splitlines(), surface()
    assert sorted(set(recorded) - set(found) - set(REMOVED)) == [], "these lines are gone from the surface"
    assert sorted(set(found) - set(recorded) - set(ADDED)) == [], "these lines are new in the surface"


def test_the_exceptions_are_needed() -> None:
    recorded, found = set(RECORDED.read_text(encoding="utf-8").splitlines()), set(surface())
    assert set(ADDED) <= found - recorded
    assert set(REMOVED) <= recorded - found
