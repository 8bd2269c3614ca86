"""One call: what was asked for, what became of it, what a model was told, and who decided what about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from amends import Approval, Call, Doubt, Event
from amends.errors import CallNotFound, Error
from amends.serve import people
from amends.serve.console.acts import Acted, Asked, body, check_seen, needed, seen_of
from amends.serve.console.html import path
from amends.serve.exchange import Exchange
from amends.serve.problems import Invalid
from amends.visible import visible

EVENTS_MAX: Final = 200
"""How many events of its run are looked at for those of a call, from its first one on."""
EVENTS_FAR: Final = 4_000
"""How many are looked at if its last move was not among those: a compensation can come long after its call."""
SHOWN_MAX: Final = 100
PARENTS_MAX: Final = 100
OWNER_PARTS_MIN: Final = 2
DOUBTFUL: Final = ("in_doubt", "compensation_in_doubt")
SETTLED: Final = ("succeeded", "failed", "refused")
"""The states of a call at which a run can be forked."""


async def call(x: Exchange) -> dict[str, Any]:
    """Return everything that the ledger has about one call."""
    return await call_data(x, x.path["id"])


async def call_data(x: Exchange, call_id: str) -> dict[str, Any]:
    """Return a call with its events, its approval, its doubt, and what a model was told."""
    found = await x.rt.call(call_id)
    if not x.owns(found):
        raise CallNotFound(call_id)
    info = await x.rt.info(found.run_id)
    events = await events_of(x, found)
    told = await x.rt.told(found.id)
    approvals = [one for one in dict.fromkeys(event.facts.get("approval") for event in events) if one]
    asked = [await x.rt.approval(str(one)) for one in approvals[-3:]]
    return {
        "call": found.to_dict(),
        "run": {"id": info.id, "state": info.state, "parent": info.parent},
        "attempts": _attempts(events),
        "told": None if told is None else {"status": told.status, "text": told.text},
        "approvals": [_approval(one) for one in asked],
        "doubt": await _doubt(x, found),
        "evidence": evidence_of(events),
        "events": [_event(one) for one in events[-SHOWN_MAX:]],
        "acts": _acts(found, info.state, is_own=info.origin is None),
        "seen": seen_of(found),
    }


async def events_of(x: Exchange, found: Call) -> list[Event]:
    """Return the events of a call: its first one is found by its number, then some of those that follow are looked at."""
    mine: list[Event] = []
    first = None
    async for event in x.rt.events(found.run_id, filter=f'call:"{found.id}"'):
        first = event
        break
    if first is None:
        return mine
    seen = 0
    state = ""
    async for event in x.rt.events(found.run_id, after=first.seq - 1):
        seen += 1
        if event.call_id == found.id:
            mine.append(event)
            state = event.to or state
        if seen >= EVENTS_FAR or (seen >= EVENTS_MAX and state == found.state):
            break
    return mine


def evidence_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return what was learned about a call while it was in doubt, and how that ended: it stays when nobody doubts any more."""
    found: list[dict[str, Any]] = []
    attempt = 1
    for event in events:
        attempt = int(event.facts.get("attempt") or attempt)
        if event.what == "probed":
            answer = str(event.facts.get("answer", ""))
        elif event.what == "call" and event.frm in DOUBTFUL and event.facts.get("resolved"):
            answer = event.to
        else:
            continue
        why = str(event.facts.get("why") or "")
        found.append(
            {"at": event.at.isoformat(), "by": who(event.by), "attempt": attempt, "answer": answer, "why": why}
        )
    return found


def _attempts(events: list[Event]) -> list[dict[str, Any]]:
    """Return each start of the body and of the compensation, with when it began and what it led to."""
    found: list[dict[str, Any]] = []
    for event in events:
        if event.what != "call":
            continue
        if event.to in ("started", "compensating"):
            what = "body" if event.to == "started" else "compensation"
            found.append(
                {"what": what, "began": event.at.isoformat(), "took_s": None, "then": None, "by": who(event.by)}
            )
        elif found and found[-1]["then"] is None and event.frm in ("started", "compensating"):
            began = found[-1]["began"]
            found[-1] |= {"then": event.to, "took_s": (event.at - type(event.at).fromisoformat(began)).total_seconds()}
    return found


def _approval(one: Approval) -> dict[str, Any]:
    return {
        "id": one.id,
        "state": one.state,
        "rule": one.rule,
        "needed": one.needed,
        "given": [{"by": yes.by, "at": yes.at.isoformat(), "why": yes.why} for yes in one.given],
        "by": one.by,
        "reason": one.reason,
        "requested_at": one.requested_at.isoformat(),
        "decided_at": None if one.decided_at is None else one.decided_at.isoformat(),
    }


async def _doubt(x: Exchange, found: Call) -> dict[str, Any] | None:
    """Return what is known about a call in doubt."""
    if found.state not in DOUBTFUL:
        return None
    async for one in x.rt.doubts(f'call:"{found.id}"'):
        return _told(one)
    return None


def _told(one: Doubt) -> dict[str, Any]:
    facts = one.to_dict()
    return {name: facts[name] for name in ("about", "sent", "sent_at", "lost_at", "probe", "next_probe_at", "evidence")}


def _event(event: Event) -> dict[str, Any]:
    facts = {
        name: value for name, value in event.facts.items() if name not in ("row", "args", "tool", "result", "terms")
    }
    return {
        "seq": event.seq,
        "at": event.at.isoformat(),
        "what": event.what,
        "frm": event.frm,
        "to": event.to,
        "by": who(event.by),
        "facts": facts,
    }


def who(by: str) -> str:
    """Return who wrote an event as people know them: a process by its host and its process id."""
    parts = by.split("|")
    return f"{parts[0]} ({parts[-2]})" if len(parts) > OWNER_PARTS_MIN else by


# ---- Acts


def _acts(found: Call, run_state: str, *, is_own: bool) -> dict[str, bool]:
    """Return what a person may do about the call as it is."""
    is_held = found.state == "held" and found.reason in ("duplicate", "conflict")
    gave_up = found.state == "compensation_failed" or (found.state == "backing_off" and run_state == "blocked")
    can_fork = found.state in SETTLED and run_state not in ("rolling_back", "rolled_back")
    return {
        "retry": is_own and gave_up,
        "accept": is_own and found.state in ("compensation_failed", "compensation_in_doubt", "in_doubt"),
        "decide": is_own and is_held,
        "fork": is_own and can_fork,
        "doubt": is_own and found.state in ("in_doubt", "compensation_in_doubt"),
    }


async def retry(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Retry a compensation or a retriable that gave up."""
    found = await x.rt.call(x.path["id"])
    check_seen(found, form)
    done = await people.retry(replace(x, body=body(people.RetryCall, why=needed(form, "why", label="the reason"))))
    state = done.data["run"]["state"].replace("_", " ")
    return Acted(path("/runs", found.run_id), f"{visible(found.tool)} is tried once more. The run is {state}.")


async def asks_accept(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say what stays."""
    needed(form, "why", label="the reason")
    found = await x.rt.call(x.path["id"])
    check_seen(found, form)
    text = f"The effect of {visible(found.tool)} stays, or may stay, and amends does nothing more about it."
    return Asked("Accept that 1 effect stays?", text, "Accept it", path("/calls", found.id))


async def accept(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Accept that an effect stays, or that nobody will know."""
    found = await x.rt.call(x.path["id"])
    check_seen(found, form)
    await people.accept(replace(x, body=body(people.Why, why=needed(form, "why", label="the reason"))))
    return Acted(path("/runs", found.run_id), f"Accepted: {visible(found.tool)} is residue.")


async def decide(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Decide a held call: run it, answer it with the result of its twin, or refuse it."""
    what = needed(form, "decision", label="the decision")
    if what not in ("run", "replay", "refuse"):
        raise Invalid("a decision is run, replay or refuse", problems=("form.decision: is unknown",))
    found = await x.rt.call(x.path["id"])
    check_seen(found, form)
    said = body(people.Decide, decision=what, why=needed(form, "why", label="the reason"))
    await people.decide(replace(x, body=said))
    return Acted(path("/runs", found.run_id), f"Decided: {what} {visible(found.tool)}.")


async def fork(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Make a new run that shares the calls of this one up to and including this call."""
    found = await x.rt.call(x.path["id"])
    root = await _root(x, found.run_id)
    wanted = form.get("id", "").strip() or None
    # In the name of the run's own principal: whoever opens the fork acts for them, as in the original.
    info = await x.rt.info(root)
    made = await x.rt.scoped(principal=info.principal).fork(root, at=found.id, id=wanted, by=x.who.name)
    return Acted(path("/runs", made), f"Forked at {visible(found.tool)}. Open {visible(made)} to go on differently.")


async def _root(x: Exchange, run_id: str) -> str:
    for _ in range(PARENTS_MAX):
        above = (await x.rt.info(run_id)).parent
        if above is None:
            return run_id
        run_id = above
    raise Error(f"run {run_id} has too many runs above it")
