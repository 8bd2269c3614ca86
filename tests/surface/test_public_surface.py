"""The public surface, compared with a recorded copy: a rename or a lost default breaks somebody's program."""
# ruff: noqa: E501 (signatures are quoted whole)

# ruff: noqa: E501
# ruff: noqa: E501 (a signature is one line of the surface)

from __future__ import annotations

from pathlib import Path

from tests.surface.public import surface

RECORDED = Path(__file__).with_name("public_surface.txt")

# Changes made on purpose since the copy was recorded, with the reason. Record the copy anew when a release is made:
# `python -m tests.surface.public > tests/surface/public_surface.txt`.
ADDED: dict[str, str] = {
    "amends.AsyncRuntime.worker(self, *, every=1.0, limit=100)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.RunInfo.interrupted: attribute": "`interrupted=`, as a run was told",
    "amends.Runtime.worker(self, *, every=1.0, limit=100)": "recovery in the application's own process: `with rt.worker():`",
    "amends.testing.TestRuntime.worker(self, *, every=1.0, limit=100)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.World.broken_probes: attribute": "the simulator has blocks that end early, and probes with a bug",
    "amends.testing.World.interrupted: attribute": "the simulator has blocks that end early, and probes with a bug",
    "amends.worker.AsyncWorkerBlock()": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.AsyncWorkerBlock.__init__(worker, _stop=<_HAS_DEFAULT_FACTORY_CLASS>, _task=None, _around=None, _term=None, _number=0)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.worker.AsyncWorkerBlock.worker: attribute": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.Worker.__init__(rt, every=1.0, limit=100, stop=<_HAS_DEFAULT_FACTORY_CLASS>, is_guest=False, blocked=<_HAS_DEFAULT_FACTORY_CLASS>, _told=<_HAS_DEFAULT_FACTORY_CLASS>, _has_greeted=False, _missing=False)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.worker.Worker.blocked: attribute": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.Worker.is_guest: attribute": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.WorkerBlock()": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.WorkerBlock.__init__(worker, _stop=<_HAS_DEFAULT_FACTORY_CLASS>, _thread=None, _term=None)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.worker.WorkerBlock.worker: attribute": "recovery in the application's own process: `with rt.worker():`",
    "amends.worker.work_once(rt, *, limit=100)": "recovery in the application's own process: `with rt.worker():`",
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
    "amends.Call.__init__(run_id, tool, version, args, tenant=None, agent=None, principal=None, id='', key='', kind='compensatable', state='started', generation=1, attempt=1, phase='execute', digest='', result=None, loss=None, error=None, why=None, reason=None, again=None, tool_call_id=None, parent=None, violation=None, compensation=None, requested_at=None, started_at=None, settled_at=None, replays=0, gone_at=None, costs=<_Unset>, shared=None, classes=<_Unset>, before=None)": "what was there before the call",  # noqa: E501
    "amends.Call.before: attribute": "what was there before the call",
    "amends.Declaration.before: attribute": "tools read what is there before the body",
    "amends.Declaration.no_effect: attribute": "tools read what is there before the body",
    "amends.Doubt.__init__(run_id, tool, version, args, tenant=None, agent=None, principal=None, id='', key='', kind='compensatable', state='started', generation=1, attempt=1, phase='execute', digest='', result=None, loss=None, error=None, why=None, reason=None, again=None, tool_call_id=None, parent=None, violation=None, compensation=None, requested_at=None, started_at=None, settled_at=None, replays=0, gone_at=None, costs=<_Unset>, shared=None, classes=<_Unset>, before=None, about='call', sent=<_Unset>, sent_at=None, lost_at=None, probe=None, next_probe_at=None, evidence=())": "tools read what is there before the body",  # noqa: E501
    "amends.Doubt.before: attribute": "tools read what is there before the body",
    "amends.Tool.before(self, fn, /)": "tools read what is there before the body",
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
    "async amends.AsyncRuntime.rollback(self, run_id, *, by, why, plan=None, accept=())": "a committed run is taken back by a plan",  # noqa: E501
    "async amends.AsyncRuntime.unhalt(self, *, by, why, tenant=None, agent=None, tool=None)": "the emergency stop",
    "amends.Runtime.inbox(self, filter='')": "everything that waits for a person, in one list",
    "async amends.AsyncRuntime.inbox(self, filter='')": "as above",
    "amends.testing.TestRuntime.inbox(self, filter='')": "as above",
    "amends.InboxItem()": "one item of it",
    "amends.InboxItem.__init__(what, id, run_id, since, expires_at=None, why='', verbs=(), roles=(), call=None, tenant=None, agent=None, principal=None)": "as above",  # noqa: E501
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
    "amends.visible.shortened(text, room)": "a cut in a report is after a whole word",
    "amends.visible.words_of_line(text)": "as above",
    "amends.AsyncRun.for_agent(self)": "two outcomes: complete, or taken back",
    "amends.AsyncRun.on_open_failure: property": "two outcomes: complete, or taken back",
    "amends.AsyncRun.warned(self, answer)": "two outcomes: complete, or taken back",
    "amends.Missing()": "two outcomes: complete, or taken back",
    "amends.Missing.__init__(tool, why, call=None)": "two outcomes: complete, or taken back",
    "amends.Missing.call: attribute": "two outcomes: complete, or taken back",
    "amends.Missing.to_dict(self)": "two outcomes: complete, or taken back",
    "amends.Missing.tool: attribute": "two outcomes: complete, or taken back",
    "amends.Missing.why: attribute": "two outcomes: complete, or taken back",
    "amends.Report.__init__(run, calls, residue=(), doubts=(), children=(), ledger='', skipped=(), locks=(), forks=(), missing=(), unreached=())": "two outcomes: complete, or taken back",  # noqa: E501
    "amends.Report.missing: attribute": "two outcomes: complete, or taken back",
    "amends.Report.unreached: attribute": "two outcomes: complete, or taken back",
    "amends.Run.before_end(self)": "two outcomes: complete, or taken back",
    "amends.Run.for_agent(self)": "two outcomes: complete, or taken back",
    "amends.Run.on_open_failure: property": "two outcomes: complete, or taken back",
    "amends.Run.warned(self, answer)": "two outcomes: complete, or taken back",
    "amends.RunBlocked.__init__(message, *, run_id, residue=(), doubts=(), causes=(), missing=())": "two outcomes: complete, or taken back",  # noqa: E501
    "amends.errors.RunBlocked.__init__(message, *, run_id, residue=(), doubts=(), causes=(), missing=())": "two outcomes: complete, or taken back",  # noqa: E501
    "amends.llm.run_agent(rt, prompt, /, *, client, model, id=None, system='', tools=None, max_turns=20, api=None, options=None, on_text=None, repeats=None, may_roll_back=False, requires=None, on_open_failure='rollback', **run)": "two outcomes: complete, or taken back",  # noqa: E501
    "amends.llm.run_agent_async(rt, prompt, /, *, client, model, id=None, system='', tools=None, max_turns=20, api=None, options=None, on_text=None, repeats=None, may_roll_back=False, requires=None, on_open_failure='rollback', **run)": "two outcomes: complete, or taken back",  # noqa: E501
    "async amends.AsyncRun.before_end(self)": "two outcomes: complete, or taken back",
    "amends.Runtime.kind_of(self, tool)": "an MCP server executes reads again",
    "amends.AsyncRuntime.kind_of(self, tool)": "as above",
    "amends.testing.TestRuntime.kind_of(self, tool)": "as above",
    "amends.Now.to_dict(self)": "as above",
    "amends.Runtime.start(self, agent, *, id=None, input=None, reads='record', requires=None, on_open_failure=None)": "reads of a resumed agent: `reads=`",  # noqa: E501
    "amends.testing.TestRuntime.start(self, agent, *, id=None, input=None, reads='record', requires=None, on_open_failure=None)": "reads of a resumed agent: `reads=`",  # noqa: E501
    "async amends.AsyncRuntime.start(self, agent, *, id=None, input=None, reads='record', requires=None, on_open_failure=None)": "reads of a resumed agent: `reads=`",  # noqa: E501
    "amends.RunInfo.to_dict(self)": "`interrupted=`, as a run was told",
    "amends.AsyncRuntime.reach(self, bodies, /, *, described=True)": "`interrupted=`, for all runs of a runtime",
    "amends.Declaration.like: attribute": "tools read what is there before the body",
    "amends.Runtime.reach(self, bodies, /, *, described=True)": "`interrupted=`, for all runs of a runtime",
    "amends.declare(name, /, *, like=None, **options)": "`interrupted=`, for all runs of a runtime",
    "amends.declare_all(toolkit, options, /, *, rest='raise')": "`interrupted=`, for all runs of a runtime",
    "amends.llm.ModelServer.gemini: property": "a scripted model for these clients too",
    "amends.llm.ModelServer.ollama: property": "a scripted model for these clients too",
    "amends.testing.TestRuntime.reach(self, bodies, /, *, described=True)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.worker.Pace.__init__(every, idle=5.0, _pause=0.0)": "the pause of an idle worker can be set",
    "amends.worker.Pace.idle: attribute": "the pause of an idle worker can be set",
    "amends.AsyncRuntime.schemas(self, style='openai', *, repeats=None, strict=False)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.Runtime.schemas(self, style='openai', *, repeats=None, strict=False)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.ToolCall.__init__(tool, args, tool_call_id=None, handler=None, schema=None)": "as above",
    "amends.ToolCall.schema: attribute": "as above",
    "amends.current_run(rt=None)": "recovery in the application's own process: `with rt.worker():`",
    "amends.errors.Suspended(Waiting, Error, Exception, BaseException)": "a ledger of 0.1.0.dev0 is refused",
    "amends.errors.Suspended.__init__(message, *, hint=None, run_id=None)": "an agent that was stopped: its run is suspended",
    "amends.errors.Suspended.code: property": "an agent that was stopped: its run is suspended",
    "amends.errors.Suspended.default_hint: attribute": "an agent that was stopped: its run is suspended",
    "amends.errors.Suspended.for_model(self)": "an agent that was stopped: its run is suspended",
    "amends.errors.Suspended.to_dict(self)": "an agent that was stopped: its run is suspended",
    "amends.idempotency.ForClient()": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.ForClient.__init__(text, is_error, outcome)": "a guarded MCP server and its guarded client make one effect",  # noqa: E501
    "amends.idempotency.ForClient.is_error: attribute": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.ForClient.is_executed: property": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.ForClient.is_tools_own: property": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.ForClient.outcome: attribute": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.ForClient.said: property": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.ForClient.text: attribute": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.T: TypeVar": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.call_meta()": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.check_result(result)": "a guarded MCP server and its guarded client make one effect",
    "amends.idempotency.outcome_for_client(tool, answer, failed, *, run_id, stays)": "a guarded MCP server and its guarded client make one effect",  # noqa: E501
    "amends.idempotency.serving()": "a guarded MCP server and its guarded client make one effect",
    "amends.testing.TestRuntime.schemas(self, style='openai', *, repeats=None, strict=False)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.World.__init__(sim, traits=<_HAS_DEFAULT_FACTORY_CLASS>, landings=<_HAS_DEFAULT_FACTORY_CLASS>, unwritten=<_HAS_DEFAULT_FACTORY_CLASS>, stale=<_HAS_DEFAULT_FACTORY_CLASS>, lies=<_HAS_DEFAULT_FACTORY_CLASS>, orphans=<_HAS_DEFAULT_FACTORY_CLASS>, alone=<_HAS_DEFAULT_FACTORY_CLASS>, merged=<_HAS_DEFAULT_FACTORY_CLASS>, unlocked=<_HAS_DEFAULT_FACTORY_CLASS>, deadlocks=<_HAS_DEFAULT_FACTORY_CLASS>, unapproved=<_HAS_DEFAULT_FACTORY_CLASS>, notices=<_HAS_DEFAULT_FACTORY_CLASS>, asks=<frozenset>, unrepeated=<frozenset>, overspent=<_HAS_DEFAULT_FACTORY_CLASS>, unpaid=<_HAS_DEFAULT_FACTORY_CLASS>, answers=<_HAS_DEFAULT_FACTORY_CLASS>, later=<_HAS_DEFAULT_FACTORY_CLASS>, unknown_probes=0, broken_probes=0, plans=<_HAS_DEFAULT_FACTORY_CLASS>, told_stale=<_HAS_DEFAULT_FACTORY_CLASS>, read=<_HAS_DEFAULT_FACTORY_CLASS>, replaying=<_HAS_DEFAULT_FACTORY_CLASS>, impatient=<_HAS_DEFAULT_FACTORY_CLASS>, replay_bodies=<_HAS_DEFAULT_FACTORY_CLASS>, stopped=<_HAS_DEFAULT_FACTORY_CLASS>, interrupted=<_HAS_DEFAULT_FACTORY_CLASS>, mistaken=<_HAS_DEFAULT_FACTORY_CLASS>, mixed=<_HAS_DEFAULT_FACTORY_CLASS>, sets=<frozenset>, value=0, stranger=None, puts=<_HAS_DEFAULT_FACTORY_CLASS>, set_by=<_HAS_DEFAULT_FACTORY_CLASS>, asked=<_HAS_DEFAULT_FACTORY_CLASS>, misread=<_HAS_DEFAULT_FACTORY_CLASS>)": "the simulator has blocks that end early, and probes with a bug",  # noqa: E501
    "amends.testing.World.stopped: attribute": "the simulator has blocks that end early, and probes with a bug",
    "amends.Run.answer(self, tool, args, *, handler=None, tool_call_id=None, again=None, key=None, schema=None, agent=False)": "as above",  # noqa: E501
    "amends.Run.approval_for(self, tool, args, *, tool_call_id=None, key=None, schema=None, agent=False)": "as above",
    "async amends.AsyncRun.answer(self, tool, args, *, handler=None, tool_call_id=None, again=None, key=None, schema=None, agent=False)": "as above",  # noqa: E501
    "async amends.AsyncRun.approval_for(self, tool, args, *, tool_call_id=None, key=None, schema=None, agent=False)": "as above",  # noqa: E501
    "amends.AsyncAttempt.epoch: property": "calls that another process performs: the lease of the work, and the ways to report",
    "amends.AsyncAttempt.lease: property": "calls that another process performs: the lease of the work, and the ways to report",
    "amends.AsyncAttempt.state: property": "calls that another process performs: the lease of the work, and the ways to report",
    "amends.AsyncRun.epoch: property": "two outcomes: complete, or taken back",
    "amends.AsyncRun.holds_secret(self, text, asked=())": "two outcomes: complete, or taken back",
    "amends.AsyncRun.is_over: property": "two outcomes: complete, or taken back",
    "amends.AsyncRuntime.__init__(url=None, *, tools=(), agents=None, order=None, interrupted=None, lease=None, wait=None, wait_approval=None, poll=None, poll_approval=None, poll_worker=None, payload_bytes_max=None, rules=None, approvers=None, on_approval_needed=None, link_secret=None, link_url=None, anchor=None, checkpoint=None, audit_key=None, on_checkpoint=None, create=None, repeats=None, tenant=None, agent=None, principal=None, budgets=None, redact=None, secret_key=None, encrypt=None, token_cache=None, secret=None, secret_file=None, login=None, login_secret=None, store=None)": "`interrupted=`, for all runs of a runtime",  # noqa: E501
    "amends.AsyncRuntime.add(self, *tools, replace=False)": "recovery in the application's own process: `with rt.worker():`",
    "amends.AsyncRuntime.approvals(self, filter='state:pending', *, after='')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.AsyncRuntime.as_async(self)": "recovery in the application's own process: `with rt.worker():`",
    "amends.AsyncRuntime.calls(self, filter='', *, after='')": "recovery in the application's own process: `with rt.worker():`",
    "amends.AsyncRuntime.doubts(self, filter='', *, after='')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.AsyncRuntime.locks(self, *, after='')": "recovery in the application's own process: `with rt.worker():`",
    "amends.AsyncRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, reads='record', client_lease=None, tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",  # noqa: E501
    "amends.AsyncRuntime.runs(self, filter='', *, now=False, after='')": "as above",
    "amends.AsyncRuntime.scoped(self, *, tenant=None, agent=None, principal=None, token=None)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.AsyncRuntime.set_unserved(self, tools)": "recovery in the application's own process: `with rt.worker():`",
    "amends.Attempt.doubt(self, why)": "calls that another process performs: the lease of the work, and the ways to report",
    "amends.Attempt.epoch: property": "calls that another process performs: the lease of the work, and the ways to report",
    "amends.Attempt.lease: property": "calls that another process performs: the lease of the work, and the ways to report",
    "amends.Attempt.raised(self, error)": "calls that another process performs: the lease of the work, and the ways to report",
    "amends.Attempt.renew(self)": "calls that another process performs: the lease of the work, and the ways to report",
    "amends.Attempt.state: property": "calls that another process performs: the lease of the work, and the ways to report",
    "amends.Declaration.__init__(*, name, where, fn=None, cls=None, like=None, local_names=<_Unset>, kind=None, version='1', key=None, ignore=(), scope='run', on_conflict='raise', on_failure='raise', at='call', after=(), needs_approval=False, retry=None, timeout=None, idempotent=False, doubt=(), no_effect=(), settle=0.0, remote=0.0, cost=None, locks=None, on_lock='wait', repeats=True, redact=(), order=None, class_names=<_Unset>, compensate=None, probe=None, guard=None, before=None, list_effects=None)": "tools read what is there before the body",  # noqa: E501
    "amends.Declaration.remote: attribute": "tools read what is there before the body",
    "amends.Run.begin(self, tool, args, *, key=None, kind=None, cost=None, lease=None)": "as above",
    "amends.Run.epoch: property": "as above",
    "amends.Run.holds_secret(self, text, asked=())": "as above",
    "amends.Run.is_over: property": "as above",
    "amends.Run.release(self, *, silent=0.0)": "as above",
    "amends.RunInfo.__init__(id, state, generation=1, tenant=None, agent=None, principal=None, parent=None, goal=None, recover='rollback', interrupted='block', client_lease=None, input=None, output=None, tags=(), causes=(), owner=None, epoch=0, opened_at=None, closed_at=None, deadline_at=None, gone_at=None, origin=None, forked_from=None, forked_at=None, now=None, place='')": "`interrupted=`, as a run was told",  # noqa: E501
    "amends.RunInfo.client_lease: attribute": "`interrupted=`, as a run was told",
    "amends.RunInfo.place: attribute": "`interrupted=`, as a run was told",
    "amends.Runtime.__init__(url=None, *, tools=(), agents=None, order=None, interrupted=None, lease=None, wait=None, wait_approval=None, poll=None, poll_approval=None, poll_worker=None, payload_bytes_max=None, rules=None, approvers=None, on_approval_needed=None, link_secret=None, link_url=None, anchor=None, checkpoint=None, audit_key=None, on_checkpoint=None, create=None, repeats=None, tenant=None, agent=None, principal=None, budgets=None, redact=None, secret_key=None, encrypt=None, token_cache=None, secret=None, secret_file=None, login=None, login_secret=None, store=None)": "`interrupted=`, for all runs of a runtime",  # noqa: E501
    "amends.Runtime.add(self, *tools, replace=False)": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.approvals(self, filter='state:pending', *, after='')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.Runtime.as_async(self)": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.calls(self, filter='', *, after='')": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.check_token(self, text)": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.create_token(self, name, *, scopes, by, why, principal='', tenant=None, agent='', expires=7776000.0, kind='token', once='')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.Runtime.doubts(self, filter='', *, after='')": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.locks(self, *, after='')": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.note_driver(self, run_id, *, by)": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, reads='record', client_lease=None, tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",  # noqa: E501
    "amends.Runtime.report_late(self, call_id, answer, *, attempt, epoch, by, phase='execute')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.Runtime.revoke_token(self, token_id, *, by, why)": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, reads='record', client_lease=None, tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",  # noqa: E501
    "amends.Runtime.runs(self, filter='', *, now=False, after='')": "as above",
    "amends.Runtime.scoped(self, *, tenant=None, agent=None, principal=None, token=None)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.Runtime.set_unserved(self, tools)": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.tokens(self, *, kind='token')": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.verify(self, *run_ids, filter='', anchor=None, keys=(), progress=None)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.Token()": "recovery in the application's own process: `with rt.worker():`",
    "amends.Token.__init__(id, name, principal, scopes, tenant, agent, kind, by, why, at, expires_at, ended_at=None, text=None)": "tokens of the service",  # noqa: E501
    "amends.Token.agent: attribute": "tokens of the service",
    "amends.Token.at: attribute": "tokens of the service",
    "amends.Token.by: attribute": "tokens of the service",
    "amends.Token.ended_at: attribute": "tokens of the service",
    "amends.Token.expires_at: attribute": "tokens of the service",
    "amends.Token.id: attribute": "tokens of the service",
    "amends.Token.kind: attribute": "tokens of the service",
    "amends.Token.name: attribute": "tokens of the service",
    "amends.Token.principal: attribute": "tokens of the service",
    "amends.Token.scopes: attribute": "tokens of the service",
    "amends.Token.tenant: attribute": "tokens of the service",
    "amends.Token.text: attribute": "tokens of the service",
    "amends.Token.to_dict(self)": "tokens of the service",
    "amends.Token.why: attribute": "tokens of the service",
    "amends.WorkLost(TimeoutError, OSError, Exception, BaseException)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.WorkLost.__init__(...)": "a body says that whoever performed the work was silent",
    "amends.WorkLost.characters_written: attribute": "a body says that whoever performed the work was silent",
    "amends.WorkLost.errno: attribute": "a body says that whoever performed the work was silent",
    "amends.WorkLost.filename2: attribute": "a body says that whoever performed the work was silent",
    "amends.WorkLost.filename: attribute": "a body says that whoever performed the work was silent",
    "amends.WorkLost.strerror: attribute": "a body says that whoever performed the work was silent",
    "amends.errors.Forbidden(Refused, Error, Exception, BaseException)": "a ledger of 0.1.0.dev0 is refused",
    "amends.errors.Forbidden.__init__(message, *, needs=(), why='scope', hint=None)": "the service refuses whoever lacks a scope",  # noqa: E501
    "amends.errors.Forbidden.code: property": "the service refuses whoever lacks a scope",
    "amends.errors.Forbidden.default_hint: attribute": "the service refuses whoever lacks a scope",
    "amends.errors.Forbidden.for_model(self)": "the service refuses whoever lacks a scope",
    "amends.errors.Forbidden.to_dict(self)": "the service refuses whoever lacks a scope",
    "amends.errors.ReportConflict(UsageError, Error, Exception, BaseException)": "a ledger of 0.1.0.dev0 is refused",
    "amends.errors.ReportConflict.__init__(message, *, call_id, attempt, run_id=None)": "two reports about one attempt differ",
    "amends.errors.ReportConflict.code: property": "two reports about one attempt differ",
    "amends.errors.ReportConflict.default_hint: attribute": "two reports about one attempt differ",
    "amends.errors.ReportConflict.for_model(self)": "two reports about one attempt differ",
    "amends.errors.ReportConflict.to_dict(self)": "two reports about one attempt differ",
    "amends.errors.Unauthorized(Refused, Error, Exception, BaseException)": "a ledger of 0.1.0.dev0 is refused",
    "amends.errors.Unauthorized.__init__(message, *, why, hint=None)": "the service does not know who asks",
    "amends.errors.Unauthorized.code: property": "the service does not know who asks",
    "amends.errors.Unauthorized.default_hint: attribute": "the service does not know who asks",
    "amends.errors.Unauthorized.for_model(self)": "the service does not know who asks",
    "amends.errors.Unauthorized.to_dict(self)": "the service does not know who asks",
    "amends.testing.TestRuntime.add(self, *tools, replace=False)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.approvals(self, filter='state:pending', *, after='')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.as_async(self)": "recovery in the application's own process: `with rt.worker():`",
    "amends.testing.TestRuntime.calls(self, filter='', *, after='')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.check_token(self, text)": "recovery in the application's own process: `with rt.worker():`",
    "amends.testing.TestRuntime.create_token(self, name, *, scopes, by, why, principal='', tenant=None, agent='', expires=7776000.0, kind='token', once='')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.doubts(self, filter='', *, after='')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.locks(self, *, after='')": "recovery in the application's own process: `with rt.worker():`",
    "amends.testing.TestRuntime.note_driver(self, run_id, *, by)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, reads='record', client_lease=None, tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",  # noqa: E501
    "amends.testing.TestRuntime.report_late(self, call_id, answer, *, attempt, epoch, by, phase='execute')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.revoke_token(self, token_id, *, by, why)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, reads='record', client_lease=None, tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",  # noqa: E501
    "amends.testing.TestRuntime.runs(self, filter='', *, now=False, after='')": "as above",
    "amends.testing.TestRuntime.scoped(self, *, tenant=None, agent=None, principal=None, token=None)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.set_unserved(self, tools)": "recovery in the application's own process: `with rt.worker():`",
    "amends.testing.TestRuntime.tokens(self, *, kind='token')": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.verify(self, *run_ids, filter='', anchor=None, keys=(), progress=None)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.World.hand_out(self, row, key, phase, *, until)": "the simulator has blocks that end early, and probes with a bug",  # noqa: E501
    "amends.testing.World.hand_out_here(self, until)": "the simulator has blocks that end early, and probes with a bug",
    "amends.testing.World.performed(self, call_id)": "the simulator has blocks that end early, and probes with a bug",
    "amends.testing.World.renewed(self, call_id, *, until)": "the simulator has blocks that end early, and probes with a bug",
    "async amends.AsyncAttempt.doubt(self, why)": "calls that another process performs: the lease of the work, and the ways to report",  # noqa: E501
    "async amends.AsyncAttempt.raised(self, error)": "calls that another process performs: the lease of the work, and the ways to report",  # noqa: E501
    "async amends.AsyncAttempt.renew(self)": "calls that another process performs: the lease of the work, and the ways to report",  # noqa: E501
    "async amends.AsyncRun.begin(self, tool, args, *, key=None, kind=None, cost=None, lease=None)": "as above",
    "async amends.AsyncRun.release(self, *, silent=0.0)": "as above",
    "async amends.AsyncRuntime.check_token(self, text)": "where a feed begins that shows only what comes next",
    "async amends.AsyncRuntime.create_token(self, name, *, scopes, by, why, principal='', tenant=None, agent='', expires=7776000.0, kind='token', once='')": "where a feed begins that shows only what comes next",  # noqa: E501
    "async amends.AsyncRuntime.note_driver(self, run_id, *, by)": "where a feed begins that shows only what comes next",
    "async amends.AsyncRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', interrupted=None, wait=None, wait_approval=None, deadline=None, if_rolled_back='again', requires=None, on_open_failure=None, history=False, reads='record', client_lease=None, tenant=None, agent=None, principal=None)": "`interrupted=` and `reads=` of a run",  # noqa: E501
    "async amends.AsyncRuntime.report_late(self, call_id, answer, *, attempt, epoch, by, phase='execute')": "where a feed begins that shows only what comes next",  # noqa: E501
    "async amends.AsyncRuntime.revoke_token(self, token_id, *, by, why)": "where a feed begins that shows only what comes next",
    "async amends.AsyncRuntime.tokens(self, *, kind='token')": "where a feed begins that shows only what comes next",
    "async amends.AsyncRuntime.verify(self, *run_ids, filter='', anchor=None, keys=(), progress=None)": "where a feed begins that shows only what comes next",  # noqa: E501
    "amends.AsyncRuntime.declarations(self, *tools, lease=30.0)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.NoEffect.is_try: attribute": "a final no",
    "amends.Runtime.declarations(self, *tools, lease=30.0)": "recovery in the application's own process: `with rt.worker():`",
    "amends.Runtime.perform(self, tool, args, *, key, phase='execute', attempt=1, call_id='', run_id='', result=<_Lost>)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.declarations(self, *tools, lease=30.0)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "amends.testing.TestRuntime.perform(self, tool, args, *, key, phase='execute', attempt=1, call_id='', run_id='', result=<_Lost>)": "recovery in the application's own process: `with rt.worker():`",  # noqa: E501
    "async amends.AsyncRuntime.perform(self, tool, args, *, key, phase='execute', attempt=1, call_id='', run_id='', result=<_Lost>)": "where a feed begins that shows only what comes next",  # noqa: E501
}
REMOVED: dict[str, str] = {
    "amends.AsyncRuntime.__init__(url=None, *, tools=(), agents=None, order=None, lease=None, wait=None, wait_approval=None, rules=None, approvers=None, on_approval_needed=None, link_secret=None, link_url=None, anchor=None, checkpoint=None, audit_key=None, on_checkpoint=None, create=None, repeats=None, tenant=None, agent=None, principal=None, budgets=None, redact=None, secret_key=None, encrypt=None, store=None)": "see ADDED",  # noqa: E501
    "amends.AsyncRuntime.add(self, *tools)": "see ADDED",
    "amends.AsyncRuntime.approvals(self, filter='state:pending')": "see ADDED",
    "amends.AsyncRuntime.calls(self, filter='')": "see ADDED",
    "amends.AsyncRuntime.doubts(self, filter='')": "see ADDED",
    "amends.AsyncRuntime.events(self, run_id=None, *, after=0, filter='')": "see ADDED",
    "amends.AsyncRuntime.locks(self)": "see ADDED",
    "amends.AsyncRuntime.reach(self, bodies, /)": "see ADDED",
    "amends.AsyncRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",  # noqa: E501
    "amends.AsyncRuntime.runs(self, filter='')": "see ADDED",
    "amends.AsyncRuntime.schemas(self, style='openai', *, repeats=None)": "see ADDED",
    "amends.AsyncRuntime.scoped(self, *, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.Call.__init__(run_id, tool, version, args, tenant=None, agent=None, principal=None, id='', key='', kind='compensatable', state='started', generation=1, attempt=1, phase='execute', digest='', result=None, loss=None, error=None, why=None, reason=None, again=None, tool_call_id=None, parent=None, violation=None, compensation=None, requested_at=None, started_at=None, settled_at=None, replays=0, gone_at=None, costs=<_Unset>, shared=None, classes=<_Unset>)": "see ADDED",  # noqa: E501
    "amends.Declaration.__init__(*, name, where, fn=None, cls=None, local_names=<_Unset>, kind=None, version='1', key=None, ignore=(), scope='run', on_conflict='raise', on_failure='raise', at='call', after=(), needs_approval=False, retry=None, timeout=None, idempotent=False, doubt=(), settle=0.0, cost=None, locks=None, on_lock='wait', repeats=True, redact=(), order=None, class_names=<_Unset>, compensate=None, probe=None, guard=None, list_effects=None)": "see ADDED",  # noqa: E501
    "amends.Doubt.__init__(run_id, tool, version, args, tenant=None, agent=None, principal=None, id='', key='', kind='compensatable', state='started', generation=1, attempt=1, phase='execute', digest='', result=None, loss=None, error=None, why=None, reason=None, again=None, tool_call_id=None, parent=None, violation=None, compensation=None, requested_at=None, started_at=None, settled_at=None, replays=0, gone_at=None, costs=<_Unset>, shared=None, classes=<_Unset>, about='call', sent=<_Unset>, sent_at=None, lost_at=None, probe=None, next_probe_at=None, evidence=())": "see ADDED",  # noqa: E501
    "amends.Event.__init__(seq, at, run_id, call_id, what, frm, to, by, facts=<_Unset>)": "see ADDED",
    "amends.NoEffect.__init__(...)": "see ADDED",
    "amends.Problem.__init__(run_id, root, n, seq, how, text)": "see ADDED",
    "amends.Problem.seq: attribute": "see ADDED",
    "amends.Report.__init__(run, calls, residue=(), doubts=(), children=(), ledger='', skipped=(), locks=(), forks=())": "see ADDED",  # noqa: E501
    "amends.RollbackPlan.__init__(run_id, hash, compensations=(), cannot=(), doubts=(), dropped=(), running=(), refused=None, state='open', forks=())": "see ADDED",  # noqa: E501
    "amends.Run.answer(self, tool, args, *, handler=None, tool_call_id=None, again=None)": "see ADDED",
    "amends.Run.approval_for(self, tool, args, *, tool_call_id=None)": "see ADDED",
    "amends.Run.begin(self, tool, args, *, key=None, kind=None, cost=None)": "see ADDED",
    "amends.RunBlocked.__init__(message, *, run_id, residue=(), doubts=(), causes=())": "see ADDED",
    "amends.RunInfo.__init__(id, state, generation=1, tenant=None, agent=None, principal=None, parent=None, goal=None, recover='rollback', input=None, output=None, tags=(), causes=(), owner=None, epoch=0, opened_at=None, closed_at=None, deadline_at=None, gone_at=None, origin=None, forked_from=None, forked_at=None)": "see ADDED",  # noqa: E501
    "amends.Runtime.__init__(url=None, *, tools=(), agents=None, order=None, lease=None, wait=None, wait_approval=None, rules=None, approvers=None, on_approval_needed=None, link_secret=None, link_url=None, anchor=None, checkpoint=None, audit_key=None, on_checkpoint=None, create=None, repeats=None, tenant=None, agent=None, principal=None, budgets=None, redact=None, secret_key=None, encrypt=None, store=None)": "see ADDED",  # noqa: E501
    "amends.Runtime.add(self, *tools)": "see ADDED",
    "amends.Runtime.approvals(self, filter='state:pending')": "see ADDED",
    "amends.Runtime.calls(self, filter='')": "see ADDED",
    "amends.Runtime.doubts(self, filter='')": "see ADDED",
    "amends.Runtime.events(self, run_id=None, *, after=0, filter='')": "see ADDED",
    "amends.Runtime.locks(self)": "see ADDED",
    "amends.Runtime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",  # noqa: E501
    "amends.Runtime.reach(self, bodies, /)": "see ADDED",
    "amends.Runtime.rollback(self, run_id, *, by, why, plan=None)": "see ADDED",
    "amends.Runtime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",  # noqa: E501
    "amends.Runtime.runs(self, filter='')": "see ADDED",
    "amends.Runtime.schemas(self, style='openai', *, repeats=None)": "see ADDED",
    "amends.Runtime.scoped(self, *, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.Runtime.start(self, agent, *, id=None, input=None)": "see ADDED",
    "amends.Runtime.verify(self, *run_ids, filter='', anchor=None, keys=())": "see ADDED",
    "amends.ToolCall.__init__(tool, args, tool_call_id=None, handler=None)": "see ADDED",
    "amends.current_run()": "see ADDED",
    "amends.declare(name, /, **options)": "see ADDED",
    "amends.errors.LedgerBehind.__init__(message, *, known, found, hint=None)": "see ADDED",
    "amends.errors.RunBlocked.__init__(message, *, run_id, residue=(), doubts=(), causes=())": "see ADDED",
    "amends.errors.ToolFailed.__init__(message, *, call, type_name, run_id=None)": "see ADDED",
    "amends.llm.run_agent(rt, prompt, /, *, client, model, id=None, system='', tools=None, max_turns=20, api=None, options=None, on_text=None, repeats=None, may_roll_back=False, **run)": "see ADDED",  # noqa: E501
    "amends.llm.run_agent_async(rt, prompt, /, *, client, model, id=None, system='', tools=None, max_turns=20, api=None, options=None, on_text=None, repeats=None, may_roll_back=False, **run)": "see ADDED",  # noqa: E501
    "amends.testing.STORE_CHECKS: dict": "see ADDED",
    "amends.testing.Simulation.__init__(*, seed=0, lease_s=30.0)": "see ADDED",
    "amends.testing.TestRuntime.add(self, *tools)": "see ADDED",
    "amends.testing.TestRuntime.approvals(self, filter='state:pending')": "see ADDED",
    "amends.testing.TestRuntime.calls(self, filter='')": "see ADDED",
    "amends.testing.TestRuntime.doubts(self, filter='')": "see ADDED",
    "amends.testing.TestRuntime.events(self, run_id=None, *, after=0, filter='')": "see ADDED",
    "amends.testing.TestRuntime.locks(self)": "see ADDED",
    "amends.testing.TestRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",  # noqa: E501
    "amends.testing.TestRuntime.reach(self, bodies, /)": "see ADDED",
    "amends.testing.TestRuntime.rollback(self, run_id, *, by, why, plan=None)": "see ADDED",
    "amends.testing.TestRuntime.run(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",  # noqa: E501
    "amends.testing.TestRuntime.runs(self, filter='')": "see ADDED",
    "amends.testing.TestRuntime.schemas(self, style='openai', *, repeats=None)": "see ADDED",
    "amends.testing.TestRuntime.scoped(self, *, tenant=None, agent=None, principal=None)": "see ADDED",
    "amends.testing.TestRuntime.start(self, agent, *, id=None, input=None)": "see ADDED",
    "amends.testing.TestRuntime.verify(self, *run_ids, filter='', anchor=None, keys=())": "see ADDED",
    "amends.testing.World.__init__(sim, traits=<_HAS_DEFAULT_FACTORY_CLASS>, landings=<_HAS_DEFAULT_FACTORY_CLASS>, unwritten=<_HAS_DEFAULT_FACTORY_CLASS>, stale=<_HAS_DEFAULT_FACTORY_CLASS>, lies=<_HAS_DEFAULT_FACTORY_CLASS>, orphans=<_HAS_DEFAULT_FACTORY_CLASS>, alone=<_HAS_DEFAULT_FACTORY_CLASS>, merged=<_HAS_DEFAULT_FACTORY_CLASS>, unlocked=<_HAS_DEFAULT_FACTORY_CLASS>, deadlocks=<_HAS_DEFAULT_FACTORY_CLASS>, unapproved=<_HAS_DEFAULT_FACTORY_CLASS>, notices=<_HAS_DEFAULT_FACTORY_CLASS>, asks=<frozenset>, unrepeated=<frozenset>, overspent=<_HAS_DEFAULT_FACTORY_CLASS>, unpaid=<_HAS_DEFAULT_FACTORY_CLASS>, answers=<_HAS_DEFAULT_FACTORY_CLASS>, later=<_HAS_DEFAULT_FACTORY_CLASS>, unknown_probes=0, plans=<_HAS_DEFAULT_FACTORY_CLASS>, told_stale=<_HAS_DEFAULT_FACTORY_CLASS>, read=<_HAS_DEFAULT_FACTORY_CLASS>, replaying=<_HAS_DEFAULT_FACTORY_CLASS>, impatient=<_HAS_DEFAULT_FACTORY_CLASS>, replay_bodies=<_HAS_DEFAULT_FACTORY_CLASS>, mistaken=<_HAS_DEFAULT_FACTORY_CLASS>, mixed=<_HAS_DEFAULT_FACTORY_CLASS>)": "see ADDED",  # noqa: E501
    "amends.worker.Pace.__init__(every, _pause=0.0)": "see ADDED",
    "amends.worker.Worker.__init__(rt, every=1.0, limit=100, stop=<_HAS_DEFAULT_FACTORY_CLASS>, _told=<_HAS_DEFAULT_FACTORY_CLASS>, _has_greeted=False)": "see ADDED",  # noqa: E501
    "async amends.AsyncRun.answer(self, tool, args, *, handler=None, tool_call_id=None, again=None)": "see ADDED",
    "async amends.AsyncRun.approval_for(self, tool, args, *, tool_call_id=None)": "see ADDED",
    "async amends.AsyncRun.begin(self, tool, args, *, key=None, kind=None, cost=None)": "see ADDED",
    "async amends.AsyncRuntime.open(self, id=None, *, input=None, tags=(), budgets=(), recover='rollback', wait=None, wait_approval=None, deadline=None, if_rolled_back='again', history=False, tenant=None, agent=None, principal=None)": "see ADDED",  # noqa: E501
    "async amends.AsyncRuntime.rollback(self, run_id, *, by, why, plan=None)": "see ADDED",
    "async amends.AsyncRuntime.start(self, agent, *, id=None, input=None)": "see ADDED",
    "async amends.AsyncRuntime.verify(self, *run_ids, filter='', anchor=None, keys=())": "see ADDED",
}


def test_names_and_signatures_are_as_recorded() -> None:
    recorded, found = RECORDED.read_text(encoding="utf-8").splitlines(), surface()
    assert sorted(set(recorded) - set(found) - set(REMOVED)) == [], "these lines are gone from the surface"
    assert sorted(set(found) - set(recorded) - set(ADDED)) == [], "these lines are new in the surface"


def test_the_exceptions_are_needed() -> None:
    recorded, found = set(RECORDED.read_text(encoding="utf-8").splitlines()), set(surface())
    assert set(ADDED) <= found - recorded
    assert set(REMOVED) <= recorded - found
