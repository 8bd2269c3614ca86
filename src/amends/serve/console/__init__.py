"""The console: pages for people, rendered by the service and made of its verbs.

``PAGES`` is the table of its pages and acts, one line each; the service matches requests with it, and the test of
authorisation visits each of them.
"""

from __future__ import annotations

from typing import Final

from amends.serve.console import (
    approvals,
    audit,
    calls,
    compare,
    costs,
    doubts,
    frame,
    live,
    replays,
    rollback,
    run,
    runs,
    tokens,
    tools,
    workers,
)
from amends.serve.console.pages import DECIDE, OPERATE, READ, Page

__all__ = ["PAGES", "Page"]

PAGES: Final[tuple[Page, ...]] = (
    Page("GET", "/", "home", "amends", READ, "nothing", frame.home),
    Page("GET", "/static/{name}", "static", "Static files", None, "nothing", frame.static),
    Page("GET", "/live", "live", "Changes", READ, "tenant", live.changes, query=live.LiveQuery),
    Page("POST", "/logout", "logout", "Log out", READ, "nothing", act=frame.log_out, back="runs"),
    # ---- Runs
    Page("GET", "/runs", "runs", "Runs", READ, "tenant", runs.runs, query=runs.RunsQuery, nav="runs", live="ledger"),
    # ---- A run, its calls and its rollback
    Page("GET", "/runs/{id}", "run", "Run", READ, "run", run.run, query=run.RunQuery, nav="runs", live="run"),
    Page("GET", "/runs/{id}/rollback", "rollback", "Roll back", READ, "run", rollback.rollback, nav="runs", live="run"),
    Page("POST", "/runs/{id}/rollback", "apply_rollback", "Roll back", OPERATE, "run", act=rollback.apply, nav="runs",
         back="rollback", asks=rollback.asks),
    Page("POST", "/runs/{id}/abandon", "abandon_run", "Abandon", OPERATE, "run", act=run.abandon, nav="runs", back="run",
         asks=run.asks_abandon),
    Page("POST", "/runs/{id}/finish", "finish_run", "Finish", OPERATE, "run", act=run.finish, nav="runs", back="run",
         asks=run.asks_finish),
    Page("GET", "/calls/{id}", "call", "Call", READ, "call", calls.call, nav="runs"),
    Page("POST", "/calls/{id}/retry", "retry_call", "Retry", OPERATE, "call", act=calls.retry, nav="runs", back="call"),
    Page("POST", "/calls/{id}/accept", "accept_call", "Accept", OPERATE, "call", act=calls.accept, nav="runs", back="call",
         asks=calls.asks_accept),
    Page("POST", "/calls/{id}/decide", "decide_call", "Decide", OPERATE, "call", act=calls.decide, nav="runs", back="call"),
    Page("POST", "/calls/{id}/fork", "fork_run", "Fork", OPERATE, "call", act=calls.fork, nav="runs", back="call"),
    Page("GET", "/compare", "compare", "Compare", READ, "tenant", compare.compare, query=compare.CompareQuery,
         nav="compare"),
    Page("POST", "/runs/{id}/replay", "replay_run", "Replay", OPERATE, "run", act=replays.begin, nav="runs", back="run"),
    Page("GET", "/replays/{job}", "replay", "Replay", OPERATE, "tenant", replays.replay, nav="compare"),
    # ---- Approvals
    Page("GET", "/approvals", "approvals", "Approvals", READ, "tenant", approvals.approvals,
         query=approvals.ApprovalsQuery, nav="approvals", live="ledger"),
    Page("GET", "/approvals/{id}", "approval", "Approval", READ, "approval", approvals.approval,
         query=approvals.ApprovalQuery, nav="approvals", live="ledger"),
    Page("GET", "/approvals/{id}/edit", "approval_edit", "Other arguments", READ, "approval", approvals.approval_edit,
         nav="approvals"),
    Page("POST", "/approvals/{id}/approve", "act_approve", "Approve", DECIDE, "approval", act=approvals.approve,
         back="approval"),
    Page("POST", "/approvals/{id}/reject", "act_reject", "Reject", DECIDE, "approval", act=approvals.reject,
         back="approval"),
    Page("POST", "/approvals/{id}/edit", "act_edit", "Ask for other arguments", DECIDE, "approval", act=approvals.edit,
         back="approval_edit"),
    Page("POST", "/approvals/{id}/withdraw", "act_withdraw", "Withdraw", DECIDE, "approval", act=approvals.withdraw,
         back="approval"),
    Page("POST", "/approvals/{id}/ask_again", "act_ask_again", "Ask again", DECIDE, "approval",
         act=approvals.ask_again, back="approval"),
    Page("POST", "/approvals/{id}/bypass", "act_bypass", "Bypass", OPERATE, "approval", act=approvals.bypass,
         back="approval", asks=approvals.asks_bypass),
    Page("POST", "/permits/{id}/revoke", "act_revoke", "Revoke a permit", DECIDE, "tenant", act=approvals.revoke,
         back="approvals"),
    # ---- Doubts
    Page("GET", "/doubts", "doubts", "Doubts", READ, "tenant", doubts.doubts, query=doubts.DoubtsQuery, nav="doubts",
         live="ledger"),
    Page("GET", "/doubts/{id}", "doubt", "Doubt", READ, "call", doubts.doubt, nav="doubts", live="ledger"),
    Page("POST", "/doubts/{id}/probe", "act_probe", "Run the probe", OPERATE, "call", act=doubts.probe, back="doubt"),
    Page("POST", "/doubts/{id}/resolve", "act_resolve", "Settle the doubt", OPERATE, "call", act=doubts.resolve,
         back="doubt", asks=doubts.asks_resolve),
    Page("POST", "/doubts/{id}/retry", "act_retry", "Try again", OPERATE, "call", act=doubts.retry, back="doubt"),
    Page("POST", "/doubts/{id}/accept", "act_accept", "Accept", OPERATE, "call", act=doubts.accept, back="doubt",
         asks=doubts.asks_accept),
    Page("POST", "/doubts/{id}/decide", "act_decide", "Decide", OPERATE, "call", act=doubts.decide, back="doubt"),
    Page("GET", "/doubts/runs/{id}", "stuck", "Stuck run", READ, "run", doubts.stuck, nav="doubts", live="run"),
    Page("POST", "/doubts/runs/{id}/finish", "act_finish", "Close as committed", OPERATE, "run", act=doubts.finish,
         back="stuck", asks=doubts.asks_finish),
    Page("POST", "/doubts/runs/{id}/abandon", "act_abandon", "Abandon", OPERATE, "run", act=doubts.abandon,
         back="stuck", asks=doubts.asks_abandon),
    # ---- Costs, tools, workers and tokens
    Page("GET", "/costs", "costs", "Budgets and cost", READ, "tenant", costs.costs, query=costs.CostsQuery, nav="costs",
         live="ledger"),
    Page("GET", "/tools", "tools", "Tools", READ, "tenant", tools.tools, query=tools.ToolsQuery, nav="tools",
         live="ledger"),
    Page("GET", "/tools/{name}", "tool", "Tool", READ, "tenant", tools.tool, query=tools.ToolsQuery, nav="tools",
         live="ledger"),
    Page("POST", "/halts", "halt", "Stop", OPERATE, "tenant", act=tools.halt, asks=tools.ask_halt, back="tools"),
    Page("POST", "/halts/lift", "unhalt", "Lift a halt", OPERATE, "tenant", act=tools.unhalt, asks=tools.ask_unhalt,
         back="tools"),
    Page("GET", "/workers", "workers", "Workers", READ, "tenant", workers.workers, nav="workers", live="ledger"),
    Page("GET", "/tokens", "tokens", "Tokens", OPERATE, "tenant", tokens.tokens, nav="workers"),
    Page("POST", "/tokens", "create_token", "Create a token", OPERATE, "tenant", act=tokens.create, back="tokens"),
    Page("POST", "/tokens/revoke", "revoke_token", "Revoke a token", OPERATE, "tenant", act=tokens.revoke,
         asks=tokens.ask_revoke, back="tokens"),
    # ---- Audit
    Page("GET", "/audit", "audit", "Audit", READ, "tenant", audit.audit, query=audit.AuditQuery, nav="audit",
         live="ledger"),
    Page("GET", "/audit/{job}", "verification", "Verification", OPERATE, "tenant", audit.verification, nav="audit"),
    Page("POST", "/audit/verify", "verify", "Verify", OPERATE, "tenant", act=audit.verify, back="audit"),
    Page("POST", "/audit/checkpoint", "checkpoint", "Write a checkpoint", OPERATE, "ledger", act=audit.checkpoint,
         back="audit"),
    Page("POST", "/audit/export", "export", "Export a bundle", OPERATE, "tenant", act=audit.export, back="audit"),
    Page("POST", "/audit/load", "load", "Load a bundle", OPERATE, "tenant", act=audit.load, back="audit",
         takes_file=True),
)  # fmt: skip
"""Every page and act of the console."""
