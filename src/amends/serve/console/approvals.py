"""Approvals: what waits for a person, one request with everything that is approved, and the acts that decide it.

A request is shown exactly as it is bound by its digest. The form that approves it carries the digest that was shown, and the
runtime refuses any other. Whether somebody may decide is the runtime's to say; the page only explains it beforehand.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Literal

from pydantic import Field

from amends import Approval, Call, Precedents
from amends.errors import Error, NotFound, ResultLost, UsageError
from amends.serve.access import allows
from amends.serve.console.acts import Acted, Asked, needed
from amends.serve.console.html import path
from amends.serve.console.marked import (
    field_of,
    marked,
    marked_args,
    marked_pair,
    marked_value,
    plain,
    short_args,
    value_of,
)
from amends.serve.console.pages import Said
from amends.serve.exchange import Exchange
from amends.serve.problems import AlreadyDecided, Invalid
from amends.visible import is_unreadable, visible, visible_value

Tab = Literal["waiting", "decided", "expired", "permits"]
FILTERS: Final[Mapping[str, str]] = {
    "waiting": "state:pending",
    "decided": "state:approved,used,rejected,cancelled",
    "expired": "state:expired",
}
"""What each tab lists."""
ROWS_MAX: Final = 50
WAITING_MAX: Final = 500
"""How many pending requests are read and sorted by when they expire."""
USUAL_FACTOR: Final = 5.0
"""A number that is this many times the usual one is flagged, if it is also larger than any before."""
REASONS: Final = (
    "Wrong amount",
    "Wrong recipient",
    "Looks like a duplicate",
    "Not needed",
    "More information is needed first",
)
"""Usual reasons for a rejection, where the request declares none."""
BIG: Final = 20_000
"""A value of more characters is written in another thread, so that other requests are answered meanwhile."""
DIFFERENCES_MAX: Final = 20
DIFFERENCES_READ: Final = 1_000
"""More differences are not counted."""
ABSENT: Final = object()
WORDS: Final[tuple[tuple[str, str], ...]] = (
    ("tool:", "the tool; * is a wildcard"),
    ("agent:", "the agent that asks"),
    ("principal:", "on whose behalf it asks"),
    ("run:", "the run's id"),
    ("role:", "the role that must approve it"),
    ("by:", "who has decided it"),
    ("args.", "an argument: args.order:1042, args.cents:>1000"),
    ("age:<1h", "not older than an hour; also 30m, 7d"),
)
"""What the filter box suggests."""
OPEN: Final = ("pending", "approved")


class ApprovalsQuery(Said):
    """Which requests."""

    tab: Tab = "waiting"
    filter: str = Field("", max_length=2_000)
    after: str = Field("", max_length=1_000)


class ApprovalQuery(Said):
    """How much of a request."""

    whole: bool = False


# ---- The inbox


async def approvals(x: Exchange) -> dict[str, Any]:
    """Return the requests that wait, soonest to expire first, or one page of those that were decided, newest first."""
    query: ApprovalsQuery = x.query
    found: dict[str, Any] = {
        "tab": query.tab, "filter": query.filter, "after": query.after, "items": [], "permits": [], "next": None,
        "more": False, "problem": None, "words": [list(one) for one in WORDS],
    }  # fmt: skip
    if query.tab == "permits":
        return found | {"permits": [_permit(one) for one in await x.rt.permits()]}
    wanted = f"{FILTERS[query.tab]} {query.filter}".strip()
    items: list[Approval] = []
    most = WAITING_MAX if query.tab == "waiting" else ROWS_MAX
    try:
        async for one in x.rt.approvals(wanted, after=query.after if query.tab != "waiting" else ""):
            if len(items) == most:
                found |= {"more": True} if query.tab == "waiting" else {"next": items[-1].id}
                break
            items.append(one)
    except UsageError as error:  # told beside the box, which keeps what was typed
        return found | {"problem": {"detail": str(error), "hint": error.hint}}
    if query.tab == "waiting":
        items.sort(key=lambda one: (one.expires_at, one.requested_at, one.id))
    return found | {"items": [_row(one) for one in items]}


def _row(one: Approval) -> dict[str, Any]:
    call = one.call
    args = short_args(call.args)
    return {
        "id": one.id,
        "tool": marked(call.tool),
        "args": args,
        "state": one.state,
        "run": call.run_id,
        "agent": call.agent,
        "principal": call.principal,
        "rule": marked(one.rule, prose=True) if one.rule else [],
        "roles": list(one.roles),
        "needed": one.needed,
        "given": len(one.given),
        "by": one.by,
        "reason": one.reason,
        "requested_at": one.requested_at.isoformat(),
        "expires_at": one.expires_at.isoformat(),
        "decided_at": None if one.decided_at is None else one.decided_at.isoformat(),
        "edited_by": list(one.editors),
        "asked": list(one.asked),
        "next": _next(one),
        "is_odd": any(part["kind"] in ("bidi", "zero_width", "lookalike", "control") for part in args),
        "call_state": call.state,
    }


def _permit(one: Any) -> dict[str, Any]:
    covers = plain("exactly one set of arguments") if one.rule is None else marked(visible_value(one.rule), prose=True)
    return {**one.to_dict(), "covers": covers, "name": marked(one.tool)}


# ---- One request


async def approval(x: Exchange) -> dict[str, Any]:
    """Return one request: exactly what is approved, what is unusual about it, who has decided what, and what happened since."""
    one = await x.rt.approval(x.path["id"])
    found = await x.rt.precedents(one.id)
    call = one.call
    is_big = sum(len(value) for value in call.args.values() if isinstance(value, str | list | dict)) > BIG
    args = await _shown(call, whole=x.query.whole, is_big=is_big)
    old = found.edited
    diff = _diff(call, old or found.before, is_edit=old is not None)
    return {
        "id": one.id,
        "approval": one.to_dict() | {"call": call.id},
        "call": _call(call),
        "tool": marked(call.tool),
        "rule": marked(one.rule, prose=True) if one.rule else [],
        "args": args,
        "is_whole": x.query.whole,
        "is_gone": not call.args and call.gone_at is not None,
        "diff": diff,
        "flags": flags(one, found, args),
        "people": _people(x, one),
        "may": _may(x, one, args),
        "reasons": list(one.reasons) or list(REASONS),
        "own_words": not one.reasons,
        "history": history(one),
        "is_live": one.state in OPEN or (one.state == "used" and call.settled_at is None),
        "replaces": None if old is None else {"id": old.id, "digest": old.digest, "state": old.state},
        "bypass_words": bypass_words(one),
    }


async def _shown(call: Call, *, whole: bool, is_big: bool) -> dict[str, Any]:
    if is_big:
        return await asyncio.to_thread(marked_args, call.args, call.classes, whole=whole)
    return marked_args(call.args, call.classes, whole=whole)


def _call(call: Call) -> dict[str, Any]:
    return {
        "id": call.id,
        "run": call.run_id,
        "agent": call.agent,
        "principal": call.principal,
        "version": call.version,
        "kind": call.kind,
        "state": call.state,
        "key": call.key,
        "reason": call.reason,
        "is_staged": call.staged,
        "again": None if call.again is None else marked(call.again, prose=True),
        "costs": {unit: str(value) for unit, value in call.costs.items() if value},
    }


def flags(one: Approval, found: Precedents, args: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what a reviewer should look at first: short texts with a tone."""
    said: list[dict[str, str]] = []
    agent = visible(one.call.agent or "", prose=True) if one.call.agent else "this program"
    odd = sum(note["times"] for note in args["notes"] if note["is_warning"])
    if odd:
        said.append(_flag(f"{odd} character{'s' if odd > 1 else ''} that could deceive the eye", "fail"))
    for usual in found.usual:
        if usual.factor is not None and usual.factor >= USUAL_FACTOR and usual.value > usual.most:
            times = f"{usual.factor:,.0f}" if usual.factor >= 10 else f"{usual.factor:.1f}"
            said.append(_flag(f"{visible(usual.path)} is {times} × the usual", "fail"))
    if found.first_use:
        among = "" if found.is_all else f" among the last {found.seen:,} calls"
        said.append(_flag(f"first use of this tool by {agent}{among}", "wait"))
    if found.before is not None and found.before.call.version != one.call.version:
        said.append(_flag("the tool has changed since it was last approved", "wait"))
    if one.editors:
        said.append(_flag(f"edited by {', '.join(visible(name, prose=True) for name in one.editors)}", "run"))
    if one.call.staged:
        said.append(_flag("staged: it starts after the pivot, or when the run commits", "mute"))
    if one.call.again:
        said.append(_flag("asked for again on purpose", "mute"))
    if any(item["type"] == "hidden" for item in args["items"]):
        said.append(_flag("has hidden values", "mute"))
    return said


def _flag(text: str, tone: str) -> dict[str, str]:
    return {"text": text, "tone": tone}


def _diff(call: Call, before: Approval | None, *, is_edit: bool) -> dict[str, Any] | None:
    """Return what differs from an earlier request; None: there is nothing to compare with."""
    if before is None or is_unreadable(call.args) or is_unreadable(before.call.args):
        return None
    old = before.call
    found = list(islice(differences(dict(old.args), dict(call.args)), DIFFERENCES_READ))
    changes: list[dict[str, Any]] = []
    for place, left, right in found[:DIFFERENCES_MAX]:
        how = "added" if left is ABSENT else "removed" if right is ABSENT else "changed"
        was, now = marked_pair(None if left is ABSENT else left, None if right is ABSENT else right)
        changes.append({"path": marked(place), "how": how, "was": was, "now": now})
    return {
        "of": before.id,
        "run": old.run_id,
        "at": (before.used_at or before.decided_at or before.requested_at).isoformat(),
        "by": before.by,
        "is_edit": is_edit,
        "digest": before.digest,
        "changes": changes,
        "more": max(0, len(found) - DIFFERENCES_MAX),
        "same": not found,
    }


def differences(left: Any, right: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each place at which two values differ, down to single leaves, with both; ``ABSENT``: one has nothing there."""
    if type(left) is dict and type(right) is dict:
        for name in dict.fromkeys([*left, *right]):
            below = f"{place}.{name}" if place else str(name)
            yield from differences(left.get(name, ABSENT), right.get(name, ABSENT), below)
    elif type(left) is list and type(right) is list and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif left is ABSENT or right is ABSENT or visible_value(left) != visible_value(right):
        yield place or "it", left, right


# ---- Who


def _people(x: Exchange, one: Approval) -> dict[str, Any]:
    known: Mapping[str, Any] = x.rt.settings["approvers"].value or {}
    roles = [{"role": role, "people": sorted(map(str, known.get(role, ())))} for role in one.roles]
    given = [
        yes.to_dict() | {"words": marked(yes.why, prose=True) if yes.why else [], "is_me": _same(yes.by, x.who.name)}
        for yes in one.given
    ]
    left = (
        max(0, one.needed - len({_person(yes.behalf or yes.by) for yes in one.given})) if one.state == "pending" else 0
    )
    askers = [name for name in (one.call.principal, one.call.agent, *one.editors) if name]
    return {
        "needed": one.needed, "given": given, "left": left, "roles": roles, "askers": list(dict.fromkeys(askers)),
        "asked": list(one.asked), "asked_at": None if one.asked_at is None else one.asked_at.isoformat(),
        "next": _next(one),
    }  # fmt: skip


def _next(one: Approval) -> dict[str, Any] | None:
    """Return what happens if nobody answers; None if the request only expires, which the page says anyway."""
    entry = one.next
    if entry is None or entry.what == "expire":
        return None
    roles = ", ".join(visible(role, prose=True) for role in entry.roles)
    is_due = entry.at <= datetime.now(UTC)  # no worker has done it yet
    words = {
        "remind": ("a reminder is sent", "a reminder was due"),
        "escalate": (f"the role {roles} is asked too", f"asking the role {roles} was due"),
        "refuse": ("it is rejected", "its rejection was due"),
    }
    return {"text": words[entry.what][is_due], "at": entry.at.isoformat(), "is_due": is_due}


def _may(x: Exchange, one: Approval, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return what whoever looks can do with this request, and why not the rest; the runtime decides in the end."""
    who = x.who
    is_open = one.state in OPEN
    waits = one.call.state in ("held", "ready")
    decides = allows(who, "approver") and not x.service.is_read_only
    operates = allows(who, "operator") and not x.service.is_read_only
    is_asker = any(_same(name, who.name) for name in (one.call.principal, one.call.agent, *one.editors) if name)
    known: Mapping[str, Any] = x.rt.settings["approvers"].value or {}
    has_role = not one.roles or any(
        _person(who.name) in {_person(str(name)) for name in known.get(role, ())} for role in one.roles
    )
    has_said = any(_same(yes.by, who.name) for yes in one.given)
    whys: list[str] = []
    if x.service.is_read_only:
        whys.append("This console is read-only: decide with the command line or another console.")
    elif not decides:
        scopes = ", ".join(sorted(who.scopes))
        whys.append(f"You are logged in with the scope {scopes}. Deciding needs the scope approver.")
    elif is_open:
        if is_asker:
            how = "edited it" if any(_same(name, who.name) for name in one.editors) else "asked for it"
            whys.append(f"You {how}, so somebody else must approve it. You can still reject it.")
        if not has_role:
            roles = " or ".join(visible(role, prose=True) for role in one.roles)
            whys.append(f"Only somebody with the role {roles} can approve or reject it, and you do not have it.")
        if args["is_unreadable"]:
            whys.append(
                "Its arguments are encrypted, and this server has no key: nobody can approve what is not shown."
            )
    can = decides and is_open and has_role
    approves = can and one.state == "pending" and not is_asker and not args["is_unreadable"] and not has_said
    return {
        "approve": approves and not args["is_cut"],
        "read_first": approves and bool(args["is_cut"]),
        "reject": can and waits,
        "edit": decides and waits and has_role and not args["is_unreadable"] and one.state in (*OPEN, "expired"),
        "withdraw": decides and waits,
        "ask_again": decides and waits and one.state == "expired",
        "bypass": operates
        and one.state == "pending"
        and not is_asker
        and not args["is_unreadable"]
        and not args["is_cut"],
        "has_said": has_said,
        "why_not": whys,
    }


def _person(name: str) -> str:
    plain_name = "".join(one for one in unicodedata.normalize("NFKC", name) if unicodedata.category(one) != "Cf")
    return plain_name.strip().casefold()


def _same(one: str, other: str) -> bool:
    return _person(one) == _person(other)


# ---- What happened since


def history(one: Approval) -> list[dict[str, Any]]:
    """Return what happened to the request and its call, in order, and what is still to come."""
    call = one.call
    asker = call.agent or call.principal or "the program"
    found = [_past("asked", f"{visible(asker, prose=True)} asked", one.requested_at)]
    for yes in one.given:
        by = visible(yes.by, prose=True) + (f" for {visible(yes.behalf, prose=True)}" if yes.behalf else "")
        word = "bypassed the rule" if yes.bypass else "approved"
        found.append(_past("ok", f"{by} {word}", yes.at, words=yes.why))
    if one.state == "rejected":
        by = visible(one.by or "somebody", prose=True)
        found.append(_past("fail", f"{by} rejected it", one.decided_at, words=one.reason or ""))
        found.append(_past("done", "the agent is told the reason when it asks again", None))
    elif one.state == "expired":
        found.append(_past("mute", "nobody decided in time: nothing ran", one.expires_at))
    elif one.state == "cancelled":
        found.append(
            _past("mute", "the request was withdrawn or replaced, or its run ended", None, words=call.why or "")
        )
    elif one.state == "pending":
        left = max(1, one.needed - len(one.given))
        found.append(_past("next", f"{left} more {'person' if left == 1 else 'people'} must approve", None))
    elif one.state == "approved":
        waits = (
            "the pivot or the commit of its run" if call.staged else "its program to go on, or a worker to resume it"
        )
        found.append(_past("next", f"it waits for {waits}", None))
    return [*found, *_ran(call)]


def _ran(call: Call) -> list[dict[str, Any]]:
    if call.started_at is None or not call.attempt:
        return []
    again = f" (attempt {call.attempt})" if call.attempt > 1 else ""
    found = [_past("run", f"the call started{again}", call.started_at)]
    match call.state:
        case "started" | "compensating":
            found.append(_past("next", "it is running", None))
        case "succeeded":
            found.append(_past("ok", "it succeeded", call.settled_at, value=_result(call)))
        case "in_doubt" | "compensation_in_doubt":
            found.append(
                _past("doubt", "nobody knows whether it happened", call.settled_at, to=path("/doubts", call.id))
            )
        case "failed" | "backing_off":
            words = "it failed" if call.state == "failed" else "it failed and is tried again"
            found.append(_past("fail", words, call.settled_at, words=call.error or ""))
        case state:
            found.append(_past("mute", f"it is {state.replace('_', ' ')}", call.settled_at, words=call.error or ""))
    return found


def _past(
    tone: str, text: str, at: datetime | None, *, words: str = "", value: Any = None, to: str = ""
) -> dict[str, Any]:
    return {
        "tone": tone, "text": text, "at": None if at is None else at.isoformat(),
        "words": marked(words, prose=True) if words else [], "value": value, "to": to,
    }  # fmt: skip


def _result(call: Call) -> dict[str, Any] | None:
    try:
        result = call.result
    except ResultLost:
        return None
    return None if result is None else marked_value(result)


# ---- Deciding


async def approve(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Approve exactly what was shown."""
    id, digest = x.path["id"], needed(form, "digest")
    behalf = form.get("behalf", "").strip() or None
    try:
        done = await x.rt.approve(id, digest=digest, by=x.who.name, why=form.get("why", "").strip(), behalf=behalf)
    except Error as error:
        raise await _first(x, id, error) from error
    left = _left(done)
    if done.state == "pending" and left:
        more = f"{left} more {'person' if left == 1 else 'people'} must approve before it runs."
        return Acted(path("/approvals", id), f"Your approval is recorded. {more}", "wait")
    return Acted(path("/approvals", id), "Approved. This page follows the call until it ran.")


async def reject(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Reject a request; the model is told the reason."""
    id = x.path["id"]
    chosen, words = form.get("reason", "").strip(), form.get("words", "").strip()
    reason = f"{chosen}: {words}" if chosen and words else chosen or words
    if not reason:
        raise Invalid("a rejection needs a reason: the agent is told it", problems=("form.reason: is missing",))
    try:
        await x.rt.reject(id, by=x.who.name, reason=reason)
    except Error as error:
        raise await _first(x, id, error) from error
    return Acted(path("/approvals", id), "Rejected. The agent is told the reason.")


async def withdraw(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Withdraw a request that nobody needs to decide any more."""
    id = x.path["id"]
    try:
        await x.rt.withdraw(id, by=x.who.name, why=needed(form, "why", label="the reason"))
    except Error as error:
        raise await _first(x, id, error) from error
    return Acted(path("/approvals", id), "Withdrawn. The call is dropped, and may be asked for again.")


async def ask_again(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Make a new request for a call whose request expired."""
    id = x.path["id"]
    try:
        made = await x.rt.ask_again(id, by=x.who.name, why=needed(form, "why", label="the reason"))
    except Error as error:
        raise await _first(x, id, error) from error
    return Acted(path("/approvals", made.id), "Asked again. This is the new request, with a digest of its own.")


async def bypass(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Approve regardless of roles and numbers, on the record."""
    id = x.path["id"]
    why = needed(form, "why", label="the reason")
    try:
        await x.rt.bypass(id, digest=needed(form, "digest"), by=x.who.name, why=why)
    except Error as error:
        raise await _first(x, id, error) from error
    return Acted(path("/approvals", id), "Bypassed, on the record. This page follows the call until it ran.")


async def asks_bypass(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say once more what a bypass does."""
    needed(form, "why", label="the reason")
    one = await x.rt.approval(x.path["id"])
    return Asked("Bypass the rule?", bypass_words(one), "Bypass the rule", back=path("/approvals", one.id))


def bypass_words(one: Approval) -> str:
    """Return what a bypass does, in words."""
    people = "1 approval" if one.needed == 1 else f"{one.needed} approvals"
    roles = f" by {' or '.join(visible(role, prose=True) for role in one.roles)}" if one.roles else ""
    return (
        f"{visible(one.call.tool, prose=True)} in run {visible(one.call.run_id, prose=True)} starts once on your word alone, "
        f"without the {people}{roles} that the rule asks for. It is recorded as a bypass, under your name and with your reason."
    )


async def revoke(x: Exchange, form: Mapping[str, str]) -> Acted:
    """End a permit: it covers no further call."""
    ended = await x.rt.revoke(x.path["id"], by=x.who.name, why=needed(form, "why", label="the reason"))
    return Acted(
        path("/approvals", tab="permits"), f"Revoked. It covers no further call of {visible(ended.tool, prose=True)}."
    )


async def _first(x: Exchange, id: str, error: Error) -> Error:
    """Return the error to show: if somebody else was first, who it was and what they said."""
    if isinstance(error, NotFound) or (
        not isinstance(error, UsageError) and getattr(error, "why", "") not in ("used", "changed")
    ):
        return error
    try:
        one = await x.rt.approval(id)
    except Error:
        return error
    words = _decided_words(one)
    return AlreadyDecided(words, run_id=one.call.run_id) if words and one.state != "pending" else error


def _decided_words(one: Approval) -> str:
    by = visible(one.by, prose=True) if one.by else ""
    tool = visible(one.call.tool, prose=True)
    match one.state:
        case "approved" | "used":
            said = next((yes.why for yes in reversed(one.given) if yes.why), "")
            why = f": {visible(said, prose=True)}" if said else ""
            return f"you were not the first: {by or 'somebody'} has approved {tool}{why}"
        case "rejected":
            return f"you were not the first: {by or 'somebody'} has rejected {tool}: {visible(one.reason or '', prose=True)}"
        case "expired":
            return f"nobody decided about {tool} in time: the request has expired"
        case "cancelled":
            return f"the request about {tool} was withdrawn or replaced, or its run has ended"
    return ""


def _left(one: Approval) -> int:
    return max(0, one.needed - len({_person(yes.behalf or yes.by) for yes in one.given}))


# ---- Editing


async def approval_edit(x: Exchange) -> dict[str, Any]:
    """Return the form that asks for other arguments instead: each argument in a field that keeps its type."""
    one = await x.rt.approval(x.path["id"])
    args = marked_args(one.call.args, one.call.classes)
    return {
        "id": one.id,
        "tool": marked(one.call.tool),
        "run": one.call.run_id,
        "digest": one.digest,
        "state": one.state,
        "fields": fields(one.call),
        "may": _may(x, one, args),
    }


def fields(call: Call) -> list[dict[str, Any]]:
    """Return a field for each argument; its name in the form is its number, whatever the argument is called."""
    if is_unreadable(call.args):
        return []
    return [
        field_of(str(name), value) | {"field": f"arg-{number}"}
        for number, (name, value) in enumerate(call.args.items())
    ]


async def edit(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Reject a request and make one for other arguments instead, which somebody else approves."""
    id = x.path["id"]
    one = await x.rt.approval(id)
    if form.get("digest", "") != one.digest:
        raise Invalid("the form is not of this request", problems=("form.digest: is that of another request",))
    args, wrong = typed(one.call, form)
    if wrong:
        raise Invalid("; ".join(wrong), problems=tuple(wrong))
    why = needed(form, "why", label="the reason")
    try:
        made = await x.rt.edit(id, args, by=x.who.name, why=why)
    except Error as error:
        raise await _first(x, id, error) from error
    said = f"Asked for other arguments instead. The digest was {one.digest[:12]}, and is {made.digest[:12]}."
    return Acted(path("/approvals", made.id), f"{said} You edited it, so somebody else approves it.", "wait")


def typed(call: Call, form: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments that were typed, and what is wrong with them."""
    args: dict[str, Any] = {}
    wrong: list[str] = []
    for field, (name, old) in zip(fields(call), call.args.items(), strict=True):
        try:
            args[name] = value_of(field, form.get(field["field"], field["text"]), old)
        except ValueError as error:
            wrong.append(f"{visible(str(name))}: this is not {_an(field['type'])} ({error})")
    return args, wrong


def _an(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
