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
    "amends.Runtime.check_anchor(self)": "doctor and workers look before anything starts",
    "async amends.AsyncRuntime.check_anchor(self)": "as above",
    "amends.testing.TestRuntime.check_anchor(self)": "as above",
    "amends.errors.LedgerBehind.__init__(message, *, known, found, hint=None, ledger='', anchor='')": "names both files",
    "amends.Absent.to_dict(self)": "what is not there has a type of its own; every record has to_dict",
    "amends.Answer.to_dict(self)": "as above",
    "amends.Approval.to_dict(self)": "as above",
    "amends.Call.to_dict(self)": "as above",
    "amends.Collected.to_dict(self)": "as above",
    "amends.Event.to_dict(self)": "as above",
    "amends.Evidence.to_dict(self)": "as above",
    "amends.Happened.to_dict(self)": "as above",
    "amends.Lock.to_dict(self)": "as above",
    "amends.Request.to_dict(self)": "as above",
    "amends.Residue.to_dict(self)": "as above",
    "amends.RunInfo.to_dict(self)": "as above",
    "amends.Schema.to_dict(self)": "as above",
    "amends.Staged.to_dict(self)": "as above",
    "amends.ToolCall.to_dict(self)": "as above",
    "amends.Unknown.to_dict(self)": "as above",
    "amends.Yes.to_dict(self)": "as above",
    "amends.errors.AgentNotFound(NotFound, UsageError, Error, Exception, BaseException)": "as above",
    "amends.errors.AgentNotFound.__init__(agent, *, known=())": "as above",
    "amends.errors.AgentNotFound.code: property": "as above",
    "amends.errors.AgentNotFound.default_hint: attribute": "as above",
    "amends.errors.AgentNotFound.for_model(self)": "as above",
    "amends.errors.AgentNotFound.to_dict(self)": "as above",
    "amends.errors.ApprovalNotFound(NotFound, UsageError, Error, Exception, BaseException)": "as above",
    "amends.errors.ApprovalNotFound.__init__(approval_id, *, hint=None)": "as above",
    "amends.errors.ApprovalNotFound.code: property": "as above",
    "amends.errors.ApprovalNotFound.default_hint: attribute": "as above",
    "amends.errors.ApprovalNotFound.for_model(self)": "as above",
    "amends.errors.ApprovalNotFound.to_dict(self)": "as above",
    "amends.errors.CallNotFound(NotFound, UsageError, Error, Exception, BaseException)": "as above",
    "amends.errors.CallNotFound.__init__(call_id, *, hint=None)": "as above",
    "amends.errors.CallNotFound.code: property": "as above",
    "amends.errors.CallNotFound.default_hint: attribute": "as above",
    "amends.errors.CallNotFound.for_model(self)": "as above",
    "amends.errors.CallNotFound.to_dict(self)": "as above",
    "amends.errors.NotFound(UsageError, Error, Exception, BaseException)": "as above",
    "amends.errors.NotFound.__init__(message, *, hint=None, run_id=None)": "as above",
    "amends.errors.NotFound.code: property": "as above",
    "amends.errors.NotFound.default_hint: attribute": "as above",
    "amends.errors.NotFound.for_model(self)": "as above",
    "amends.errors.NotFound.to_dict(self)": "as above",
    "amends.errors.RunNotFound(NotFound, UsageError, Error, Exception, BaseException)": "as above",
    "amends.errors.RunNotFound.__init__(run_id, *, hint=None)": "as above",
    "amends.errors.RunNotFound.code: property": "as above",
    "amends.errors.RunNotFound.default_hint: attribute": "as above",
    "amends.errors.RunNotFound.for_model(self)": "as above",
    "amends.errors.RunNotFound.to_dict(self)": "as above",
    "amends.llm.Finished.to_dict(self)": "as above",
    "amends.Once(Generic)": "tells whether it was executed or answered",
    "amends.Once.__init__(value, replayed, call)": "as above",
    "amends.Once.call: attribute": "as above",
    "amends.Once.executed: property": "as above",
    "amends.Once.replayed: attribute": "as above",
    "amends.Once.to_dict(self)": "as above",
    "amends.Once.value: attribute": "as above",
    "amends.Run.tell_once(self, key, fn, /, *args, **kwargs)": "as above",
    "amends.Runtime.tell_once(self, key, fn, /, *args, **kwargs)": "as above",
    "amends.testing.TestRuntime.tell_once(self, key, fn, /, *args, **kwargs)": "as above",
    "async amends.AsyncRun.tell_once(self, key, fn, /, *args, **kwargs)": "as above",
    "async amends.AsyncRuntime.tell_once(self, key, fn, /, *args, **kwargs)": "as above",
    "amends.Problem.__init__(run_id, root, n, how, text)": "there is no place in the ledger, only the number in a tree",
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
    "amends.errors.LedgerBehind.__init__(message, *, known, found, hint=None)": "see ADDED",
}


def test_names_and_signatures_are_as_recorded() -> None:
    recorded, found = RECORDED.read_text(encoding="utf-8").splitlines(), surface()
    assert sorted(set(recorded) - set(found) - set(REMOVED)) == [], "these lines are gone from the surface"
    assert sorted(set(found) - set(recorded) - set(ADDED)) == [], "these lines are new in the surface"


def test_the_exceptions_are_needed() -> None:
    recorded, found = set(RECORDED.read_text(encoding="utf-8").splitlines()), set(surface())
    assert set(ADDED) <= found - recorded
    assert set(REMOVED) <= recorded - found
