"""The public surface, compared with a recorded copy: a rename or a lost default breaks somebody's program."""
# ruff: noqa: E501 (signatures are quoted whole)

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
    "amends.AsyncRun.for_agent(self)": "two outcomes: complete, or taken back",
    "amends.AsyncRun.on_open_failure: property": "two outcomes: complete, or taken back",
    "amends.AsyncRun.warned(self, answer)": "two outcomes: complete, or taken back",
    "amends.AsyncRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, tenant=None, agent=None, principal=None)": "two outcomes: complete, or taken back",
    "amends.Missing()": "two outcomes: complete, or taken back",
    "amends.Missing.__init__(tool, why, call=None)": "two outcomes: complete, or taken back",
    "amends.Missing.call: attribute": "two outcomes: complete, or taken back",
    "amends.Missing.to_dict(self)": "two outcomes: complete, or taken back",
    "amends.Missing.tool: attribute": "two outcomes: complete, or taken back",
    "amends.Missing.why: attribute": "two outcomes: complete, or taken back",
    "amends.Report.__init__(run, calls, residue=(), doubts=(), children=(), ledger='', skipped=(), locks=(), forks=(), missing=(), unreached=())": "two outcomes: complete, or taken back",
    "amends.Report.missing: attribute": "two outcomes: complete, or taken back",
    "amends.Report.unreached: attribute": "two outcomes: complete, or taken back",
    "amends.Run.before_end(self)": "two outcomes: complete, or taken back",
    "amends.Run.for_agent(self)": "two outcomes: complete, or taken back",
    "amends.Run.on_open_failure: property": "two outcomes: complete, or taken back",
    "amends.Run.warned(self, answer)": "two outcomes: complete, or taken back",
    "amends.RunBlocked.__init__(message, *, run_id, residue=(), doubts=(), causes=(), missing=())": "two outcomes: complete, or taken back",
    "amends.Runtime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, tenant=None, agent=None, principal=None)": "two outcomes: complete, or taken back",
    "amends.Runtime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, tenant=None, agent=None, principal=None)": "two outcomes: complete, or taken back",
    "amends.Runtime.start(self, agent, *, id=None, input=None, requires=None, on_open_failure=None)": "two outcomes: complete, or taken back",
    "amends.errors.RunBlocked.__init__(message, *, run_id, residue=(), doubts=(), causes=(), missing=())": "two outcomes: complete, or taken back",
    "amends.llm.run_agent(rt, prompt, /, *, client, model, id=None, system='', tools=None, max_turns=20, api=None, options=None, on_text=None, repeats=None, may_roll_back=False, requires=None, on_open_failure='rollback', **run)": "two outcomes: complete, or taken back",
    "amends.llm.run_agent_async(rt, prompt, /, *, client, model, id=None, system='', tools=None, max_turns=20, api=None, options=None, on_text=None, repeats=None, may_roll_back=False, requires=None, on_open_failure='rollback', **run)": "two outcomes: complete, or taken back",
    "amends.testing.TestRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, tenant=None, agent=None, principal=None)": "two outcomes: complete, or taken back",
    "amends.testing.TestRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, tenant=None, agent=None, principal=None)": "two outcomes: complete, or taken back",
    "amends.testing.TestRuntime.start(self, agent, *, id=None, input=None, requires=None, on_open_failure=None)": "two outcomes: complete, or taken back",
    "async amends.AsyncRun.before_end(self)": "two outcomes: complete, or taken back",
    "async amends.AsyncRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, tenant=None, agent=None, principal=None)": "two outcomes: complete, or taken back",
    "async amends.AsyncRuntime.start(self, agent, *, id=None, input=None, requires=None, on_open_failure=None)": "two outcomes: complete, or taken back",
    "amends.Runtime.kind_of(self, tool)": "an MCP server executes reads again",
    "amends.AsyncRuntime.kind_of(self, tool)": "as above",
    "amends.testing.TestRuntime.kind_of(self, tool)": "as above",
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
    "amends.AsyncRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.Report.__init__(run, calls, residue=(), doubts=(), children=(), ledger='', skipped=(), locks=(), forks=())": "see ADDED",
    "amends.RunBlocked.__init__(message, *, run_id, residue=(), doubts=(), causes=())": "see ADDED",
    "amends.Runtime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.Runtime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.Runtime.start(self, agent, *, id=None, input=None)": "see ADDED",
    "amends.errors.RunBlocked.__init__(message, *, run_id, residue=(), doubts=(), causes=())": "see ADDED",
    "amends.llm.run_agent(rt, prompt, /, *, client, model, id=None, system='', tools=None, max_turns=20, api=None, options=None, on_text=None, repeats=None, may_roll_back=False, **run)": "see ADDED",
    "amends.llm.run_agent_async(rt, prompt, /, *, client, model, id=None, system='', tools=None, max_turns=20, api=None, options=None, on_text=None, repeats=None, may_roll_back=False, **run)": "see ADDED",
    "amends.testing.TestRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.testing.TestRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.testing.TestRuntime.start(self, agent, *, id=None, input=None)": "see ADDED",
    "async amends.AsyncRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",
    "async amends.AsyncRuntime.start(self, agent, *, id=None, input=None)": "see ADDED",
}


def test_names_and_signatures_are_as_recorded() -> None:
    recorded, found = RECORDED.read_text(encoding="utf-8").splitlines(), surface()
    assert sorted(set(recorded) - set(found) - set(REMOVED)) == [], "these lines are gone from the surface"
    assert sorted(set(found) - set(recorded) - set(ADDED)) == [], "these lines are new in the surface"


def test_the_exceptions_are_needed() -> None:
    recorded, found = set(RECORDED.read_text(encoding="utf-8").splitlines()), set(surface())
    assert set(ADDED) <= found - recorded
    assert set(REMOVED) <= recorded - found
