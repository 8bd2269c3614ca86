"""The audit: the events of the record, verifying it, checkpoints, and bundles that anybody can check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic import Field
from starlette.responses import Response

from amends import Event
from amends.errors import Error, Forbidden, NotFound, UsageError
from amends.serve.access import allows
from amends.serve.audit import Order, Verify, verifying
from amends.serve.console.acts import FILE, Acted, body, needed
from amends.serve.console.html import path
from amends.serve.console.pages import Said
from amends.serve.exchange import Exchange
from amends.serve.long_work import LongWork
from amends.serve.problems import Invalid

EVENTS_SHOWN: Final = 50
LOOKS: Final = 2_000
"""How many events one page of a filtered list reads at most: so many that a large ledger is no slower than a small one."""
CHECKPOINTS_SHOWN: Final = 10
AROUND: Final = 3
"""How many events before and after the first bad one are shown."""
RUNS_MAX: Final = 100
"""How many runs one bundle may have that is exported from a page."""
SAYS: Final = ("why", "reason", "goal_why", "error", "how")
"""The facts of an event that tell its reason, in the order in which they are looked at."""
OF_NO_RUN: Final = frozenset(
    {
        "halted", "unhalted", "permitted", "permit used", "permit revoked", "token made", "token revoked", "token expired",
        "delegated", "work ordered",
    }
)  # fmt: skip
"""Events about something that people ordered: what they name is no run."""
OWNER_PARTS_MIN: Final = 2
EXPECTED: Final[Mapping[str, str]] = {
    "edited": "An event whose content has the hash that was computed when it was written.",
    "deleted": "The event of this number: numbers of a run have no gaps.",
    "inserted": "The event that the one after it is linked to.",
    "swapped": "The events in the order in which they are linked.",
    "rewritten": "The hash that a checkpoint has of this event.",
    "cut": "At least the events that a checkpoint names.",
    "put_back": "A ledger that has at least what the anchor outside knows of it.",
    "row_changed": "A row that says what its events say.",
    "row_forged": "An event that says how this row came about.",
    "row_missing": "The row that its events tell of.",
    "payload_changed": "The arguments, result or error whose digest the event has.",
    "bad_signature": "A checkpoint that was signed with the key of this ledger.",
}
"""What an unchanged record would have, by how it was changed."""


WORDS: Final[tuple[tuple[str, str], ...]] = (
    ("what:refused", "what amends or a person said no to"),
    ("what:goal", "what somebody wants of a run"),
    ("what:halted", "what was stopped; unhalted: what was let go"),
    ("state:in_doubt", "what came into this state; any state of a run, a call or a request"),
    ("state:rejected", "requests that somebody rejected"),
    ("by:", "the person or process that did it"),
    ("run:", "the run's id; * is a wildcard"),
    ("call:", "the id of a call"),
    ("tool:", "the tool of its call"),
    ("agent:", "the agent of its run"),
    ("at:>=2026-03-01", "not before a day or a moment; also at:<"),
    ("age:<1h", "not older than an hour; also 30m, 7d"),
)
"""What the filter box suggests."""


class AuditQuery(Said):
    """Which part of the audit, and which events."""

    tab: Literal["events", "verify", "checkpoints", "bundles"] = "events"
    filter: str = Field("", max_length=2_000)
    run: str = Field("", max_length=512)
    after: str = Field("", max_length=1_000)
    runs: str = Field("", max_length=10_000, description="Runs to export, one on each line")


async def audit(x: Exchange) -> dict[str, Any]:
    """Return one tab of the audit."""
    query: AuditQuery = x.query
    data: dict[str, Any] = {
        "tab": query.tab, "filter": query.filter, "run": query.run, "after": query.after, "runs": query.runs or query.run,
        "may_verify": allows(x.who, "operator"),
    }  # fmt: skip
    if query.tab == "events":
        data |= {"problem": None, "words": [list(one) for one in WORDS]}
        try:
            return data | await _events(x, query)
        except NotFound:  # the run, and not the filter
            raise
        except UsageError as error:
            problem = {"detail": str(error), "hint": error.hint}
            return data | {"problem": problem, "events": [], "next": None, "looked": 0, "is_partial": False}
    if query.tab == "verify":
        return data | {"jobs": _verifications(x)}
    if query.tab == "checkpoints":
        return data | await _checkpoints(x)
    return data


# ---- Events


async def _events(x: Exchange, query: AuditQuery) -> dict[str, Any]:
    if query.run:
        return await _events_of(x, query)
    found = await x.rt.recent_events(query.filter, after=query.after, limit=EVENTS_SHOWN, looks=LOOKS)
    return {
        "events": [shown_event(one) for one in found.items],
        "next": found.next,
        "looked": found.looked,
        "is_partial": found.next is not None and len(found.items) < EVENTS_SHOWN,
    }


async def _events_of(x: Exchange, query: AuditQuery) -> dict[str, Any]:
    """Return the events of one run, in the order of their numbers: as its chain links them."""
    after: int | str = int(query.after) if query.after.isdecimal() and len(query.after) < 12 else query.after
    items: list[Event] = []
    next_: str | None = None
    async for one in x.rt.events(query.run, after=after, filter=query.filter):
        if len(items) == EVENTS_SHOWN:
            next_ = str(items[-1].seq)
            break
        items.append(one)
    return {"events": [shown_event(one) for one in items], "next": next_, "looked": len(items), "is_partial": False}


def shown_event(one: Event) -> dict[str, Any]:
    """Return an event with what a person asks first: who, why, and by which token."""
    why = next((str(one.facts[name]) for name in SAYS if one.facts.get(name)), "")
    if one.what == "work ordered":
        why = f"{json.loads(one.facts['words'])['what']}{': ' if why else ''}{why}"
    parts = one.by.split("|")  # a process names itself so: its host, ..., its process id, its start
    who = f"{parts[0]} ({parts[-2]})" if len(parts) > OWNER_PARTS_MIN else one.by
    is_run = one.what not in OF_NO_RUN
    return one.to_dict() | {"why": why, "who": who, "token": one.facts.get("token"), "is_run": is_run}


# ---- Verifying


def _verifications(x: Exchange) -> list[dict[str, Any]]:
    if not allows(x.who, "operator"):
        return []
    return [_told(one) for one in x.service.long_works.known(x.service.own_tenant(x), "verify")]


def _told(one: LongWork) -> dict[str, Any]:
    ended = one.ended_at or datetime.now(UTC)
    s = (ended - one.started_at).total_seconds()
    return one.to_dict() | {
        "by": one.by,
        "what": one.about,
        "seconds": round(s, 3),
        "per_s": round(one.events / s) if s > 0.05 else None,
        "result": _result(one),
    }


def _result(one: LongWork) -> str:
    if one.state != "done" or one.result is None:
        return one.state
    return "unchanged" if one.result["ok"] else "changed"


async def verification(x: Exchange) -> dict[str, Any]:
    """Return how far a verification is, or what it found: the first bad event with its neighbours."""
    found = x.service.long_works.found(x.path["job"], x.service.own_tenant(x))
    if found.what != "verify":  # another page, or none, is about it
        raise NotFound(f"there is no verification {found.id!r} in this server")
    return {"job": _told(found), "first": None if found.result is None else await _first(x, found.result)}


async def _first(x: Exchange, verified: Mapping[str, Any]) -> dict[str, Any] | None:
    if verified["ok"]:
        return None
    bad = verified["problems"][0]
    around: list[dict[str, Any]] = []
    try:
        async for event in x.rt.events(bad["run"], after=max(0, bad["event"] - AROUND - 1)):
            around.append(shown_event(event) | {"is_bad": event.seq == bad["event"]})
            if event.seq >= bad["event"] + AROUND:
                break
    except Error:  # a changed record may not be readable: what is wrong with it is told all the same
        around = []
    return {**bad, "expected": EXPECTED.get(bad["how"], "What its events say."), "around": around}


async def verify(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Begin to verify the record, all of it or some runs."""
    said = Verify(runs=_ids(form.get("runs", "")), filter=form.get("filter", "").strip())
    made = x.service.long_works.started(x, "verify", verifying(x, said), about=_about(said))
    return Acted(path("/audit", made.id), "The verification has begun.")


def _about(said: Verify) -> str:
    return " ".join((*said.runs[:3], *(["..."] if len(said.runs) > 3 else []), *([said.filter] if said.filter else [])))


# ---- Checkpoints


async def _checkpoints(x: Exchange) -> dict[str, Any]:
    found = await x.rt.checkpoints(limit=CHECKPOINTS_SHOWN)
    settings = x.rt.settings
    is_wide = x.service.own_tenant(x) is None
    anchor = settings["anchor"].value
    return {
        # How much other tenants do, and where the anchor is, is not for one tenant to know.
        "checkpoints": [one.to_dict() | ({} if is_wide else {"heads": None}) for one in found],
        "anchor": anchor if is_wide or not anchor else "set",
        "every": settings["checkpoint"].value,
        "may_sign": allows(x.who, "operator") and is_wide,
    }


async def checkpoint(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Write a checkpoint over every event so far."""
    if x.service.own_tenant(x) is not None:
        raise Forbidden("a checkpoint covers all tenants: this needs an operator of every tenant", why="tenant")
    await x.rt.note_work("checkpoint", by=x.who.name, why=body(Order, why=form.get("why", "").strip()).why)
    made = await x.rt.checkpoint()
    assert made is not None, "that it was ordered is an event to cover"
    said = f"Checkpoint {made.n:,} covers every event so far."
    return Acted("/audit?tab=checkpoints", said)


# ---- Bundles


async def export(x: Exchange, form: Mapping[str, str]) -> Response:
    """Answer with a bundle of these runs, which anybody can check: ``python FILE``."""
    ids = _ids(needed(form, "runs", label="At least one run"))
    data = await x.rt.export(*ids)
    headers = {
        "Content-Disposition": 'attachment; filename="amends-bundle.zip"',
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(data, 200, headers, "application/zip")


async def load(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Load the runs of a bundle as records that nothing here changes."""
    data = x.request.scope.get(FILE, b"")
    if not data:
        raise Invalid("the bundle is missing", problems=("form.bundle: is missing",))
    why = body(Order, why=form.get("why", "").strip()).why
    found = await x.rt.load(data, tenant=x.service.own_tenant(x), by=x.who.name, why=why)
    count = len(found)
    said = f"Loaded {count} run{'' if count == 1 else 's'}." if count else "Every run of the bundle was here already."
    return Acted(path("/runs", found[0]) if count == 1 else "/runs", said)


def _ids(text: str) -> list[str]:
    found = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if len(found) > RUNS_MAX:
        raise Invalid(f"at most {RUNS_MAX} runs at once", problems=("form.runs: too many",))
    return found
