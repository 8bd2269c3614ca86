"""Workers: which processes have which runs, remote workers and what they hold, and what is stuck and why."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from amends import InboxItem, RunInfo
from amends.errors import some
from amends.serve.console.doubts import place_of
from amends.serve.console.html import path
from amends.serve.console.run import plain_error, without_ids
from amends.serve.exchange import Exchange

RUNS_MAX: Final = 100
"""How many runs that have not ended are looked at, the newest."""
LOCKS_MAX: Final = 50
RUNS_SHOWN: Final = 5
"""How many runs of one process are named."""
OWNER_PARTS_MIN: Final = 2


async def workers(x: Exchange) -> dict[str, Any]:
    """Return who has which runs, the workers of this server, and what does not go on by itself."""
    mine = x.service.own_tenant(x)
    found = await x.rt.unfinished(limit=RUNS_MAX)
    locks = []
    async for one in x.rt.locks():
        locks.append(one)
        if len(locks) == LOCKS_MAX:
            break
    work = x.service.desk.work(mine)
    remote = [_worker(x, one, work) for one in x.service.desk.workers(mine)]
    stuck = [_stuck(one) for one in found if _is_stuck(one)]
    if any(one["who"] == "a person" for one in stuck):
        asked = {one.run_id: one for one in reversed(await x.rt.inbox(newest=RUNS_MAX)) if one.call is not None}
        stuck = [one | _asked(asked.get(one["id"])) if one["state"] != "blocked" else one for one in stuck]
    return {
        "looked": len(found),
        "is_all": len(found) < RUNS_MAX,
        "processes": _processes(found),
        "workers": remote,
        "unserved": [
            {"tool": name, "waiting": one["waiting"]}
            for name, one in sorted(x.service.desk.served(mine).items())
            if not one["workers"]
        ],
        "waiting": [one for one in work if one["worker"] is None],
        "stuck": sorted(stuck, key=lambda one: (one["order"], one["since"] or "")),
        "locks": [one.to_dict() for one in locks],
        "server": {"runs": x.service.sessions.count(mine), "streams": x.service.streams},
    }


# ---- Processes


def _processes(found: list[RunInfo]) -> list[dict[str, Any]]:
    """Return the processes that hold a lease, with their runs; those that gave no sign in time last."""
    by_owner: dict[str, list[RunInfo]] = {}
    for run in found:
        if run.owner:
            by_owner.setdefault(run.owner, []).append(run)
    return sorted(
        (_process(*one) for one in by_owner.items()), key=lambda one: (one["lost"], -one["runs"], one["name"])
    )


def _process(owner: str, runs: list[RunInfo]) -> dict[str, Any]:
    lost = [run for run in runs if run.now is not None and run.now.what == "orphaned"]
    where = next((run.now.where for run in runs if run.now is not None and run.now.where), None)
    parts = owner.split("|")
    seen = [run.now.since for run in lost if run.now is not None and run.now.since is not None]
    return {
        "owner": owner,
        "name": where or (f"{parts[0]} ({parts[-2]})" if len(parts) > OWNER_PARTS_MIN else owner),
        "runs": len(runs),
        "lost": bool(lost),
        "seen": _iso(max(seen, default=None)),
        "since": _iso(min((run.opened_at for run in runs if run.opened_at is not None), default=None)),
        "items": [{"id": run.id, "state": run.state} for run in runs[:RUNS_SHOWN]],
    }


def _worker(x: Exchange, one: Any, work: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "by": one.by,
        "tools": sorted(one.tools),
        "asks": one.asks > 0,
        "lease": x.service.limits.worker_lease_s,
        "holds": [piece for piece in work if piece["worker"] == one.name and piece["tool"] in one.tools],
    }


# ---- What is stuck


def _is_stuck(run: RunInfo) -> bool:
    return run.state == "blocked" or (
        run.now is not None and (run.now.what == "orphaned" or run.now.waits_for is not None)
    )


def _stuck(run: RunInfo) -> dict[str, Any]:
    """Return why a run does not go on by itself, who can change that, and the page where."""
    now = run.now
    waits = None if now is None else now.waits_for
    why, who, order = "; ".join(some(run.causes)) or "it waits", waits or "", 2
    if run.state == "blocked":
        why, who, order = "; ".join(some([_cause(one) for one in run.causes])) or "a person must decide", "a person", 0
    elif now is not None and now.what == "orphaned":
        why, who, order = "its process gave no sign of life in time", "a worker takes it over", 1
    elif waits in ("a lock", "a retry", "a probe", "a worker", "its program"):
        says = {
            "a lock": "another run holds a lock that it needs",
            "a retry": "a call is tried again later",
            "a probe": "a call is in doubt, and its probe is asked again",
            "a worker": "no process has it, and a worker continues it",
            "its program": "its program let it go, and opens it again",
        }
        why, order = says[str(waits)], 3
    elif waits is not None:
        why, who, order = "a request waits for approval, or a person must decide", waits, 1
    since = None if now is None or now.since is None else now.since
    return {
        "id": run.id,
        "state": run.state,
        "now": None if now is None else now.what,
        "agent": run.agent,
        "why": why,
        "who": who,
        "waits_for": waits,
        "since": _iso(since or run.opened_at),
        "to": path("/doubts/runs", run.id) if run.state == "blocked" else path("/runs", run.id),
        "is_asked": run.state == "blocked",
        "order": order,
    }


def _asked(item: InboxItem | None) -> dict[str, Any]:
    """Return what a person is asked about a call, and the page where they answer; nothing, if it is not known."""
    if item is None or item.call is None:
        return {}
    whys = {
        "approval": "waits for approval",
        "expired": "asked for approval, and nobody decided in time",
        "doubt": "may have happened, and nobody knows",
        "decision": "is held until somebody decides",
    }
    return {"why": f"{item.call.tool} {whys.get(item.what, item.why)}", "to": place_of(item), "is_asked": True}


def _cause(text: str) -> str:
    """Return why a run is blocked without the methods that settle it: a page has buttons for them."""
    before, is_there, _ = text.partition("rt.")
    return without_ids(plain_error(before.rpartition(": ")[0] or text if is_there else text))


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
