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
    "amends.testing.STORE_CHECKS: dict": "see ADDED",
    "amends.testing.Simulation.__init__(*, seed=0, lease_s=30.0)": "see ADDED",
    "amends.AsyncRuntime.events(self, run_id=None, *, after=0, filter='')": "see ADDED",
    "amends.Runtime.events(self, run_id=None, *, after=0, filter='')": "see ADDED",
    "amends.testing.TestRuntime.events(self, run_id=None, *, after=0, filter='')": "see ADDED",
    "amends.Event.__init__(seq, at, run_id, call_id, what, frm, to, by, facts=<_Unset>)": "see ADDED",
    "amends.Problem.__init__(run_id, root, n, seq, how, text)": "see ADDED",
    "amends.Problem.seq: attribute": "see ADDED",
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
