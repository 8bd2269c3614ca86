"""``amends approvals``: what waits for a person's yes, shown exactly, and decided on exactly that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from amends import Approval, Call, Runtime, Yes
from amends.cli.access import approval_named, filter_text, first, reading, who, working
from amends.cli.codes import DONE, FAILED
from amends.cli.reading import args_lines, lasted, must_be_shown, say_how_many, shown_args, time_of
from amends.cli.show import BOLD, STYLES, Shown, agrees, has_person, must_ask, put, put_facts, put_json, put_table, say
from amends.errors import UsageError
from amends.visible import visible, visible_value

DIGEST_CHARS_MIN: Final = 12
"""So much of a digest must be said: nobody finds another call that begins so."""
LIVE: Final = ("pending", "approved")


def list_approvals(filter: str, *, limit: int, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends approvals list``."""
    wanted = (
        filter if any(word.startswith(("status:", "state:")) for word in filter.split()) else f"state:pending {filter}"
    )
    with reading(url, tenant) as rt:
        found, more = first(rt.approvals(wanted.strip()), limit)
        ledger = rt.settings["url"].value
    if as_json:
        for approval in found:
            put_json(approval_facts(approval))
    else:
        head = ("approval", "run", "tool", "state", "left", "yes", "arguments")
        put_table(head, [_row(approval) for approval in found], state=3)
    say_how_many(found, more, "approval", ledger, filter=wanted)


def show_approval(approval_id: str, *, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends approvals show``."""
    with reading(url, tenant) as rt:
        approval = rt.approval(approval_named(rt, approval_id))
        before = _before(rt, approval)
    if as_json:
        put_json(approval_facts(approval) | {"changed": _changes(before, approval.call)})
        return
    put_card(approval, before)


def approve(
    approval_id: str,
    *,
    digest: str | None,
    by: str | None,
    why: str,
    behalf: str | None,
    bypass: bool,
    yes: bool,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends approvals approve``."""
    asks = must_ask(yes, "an approval")
    if digest is None and not has_person():
        raise UsageError("it is not said what is approved", hint="say --digest, as amends approvals show prints it")
    if bypass and not why:
        raise UsageError("a bypass needs a reason", hint="say it: --why")
    with working(app, url=url, tenant=tenant) as rt:  # who has which role, the program may say
        approval, person = rt.approval(approval_named(rt, approval_id)), who(by, rt)
        said = _digest(approval, digest)
        if asks:
            must_be_shown(approval.call)
            put_card(approval, _before(rt, approval), words=True)
            if approval.state in LIVE and not agrees(f"{visible(person)} approves exactly this. Sure?"):
                return FAILED
        if bypass:
            approval = rt.bypass(approval.id, digest=said, by=person, why=why)
        else:
            approval = rt.approve(approval.id, digest=said, by=person, why=why, behalf=behalf)
    return _put(approval, as_json)


def reject(
    approval_id: str,
    *,
    by: str | None,
    reason: str,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends approvals reject``."""
    with working(app, url=url, tenant=tenant) as rt:
        approval, person = rt.approval(approval_named(rt, approval_id)), who(by, rt)
        if has_person() and not as_json:  # a no starts nothing, so it needs no question; what it is about is seen
            put_card(approval, _before(rt, approval), words=True)
        approval = rt.reject(approval.id, by=person, reason=reason)
    return _put(approval, as_json)


def withdraw(approval_id: str, *, by: str | None, why: str, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends approvals withdraw``."""
    with reading(url, tenant) as rt:
        approval = rt.withdraw(approval_named(rt, approval_id), by=who(by, rt), why=why)
    return _put(approval, as_json)


def again(approval_id: str, *, by: str | None, why: str, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends approvals again``."""
    with reading(url, tenant) as rt:
        approval = rt.ask_again(approval_named(rt, approval_id), by=who(by, rt), why=why)
    return _put(approval, as_json)


# ---- shown --------------------------------------------------------------------------------


def put_card(approval: Approval, before: Call | None, *, words: bool = False) -> None:
    """Show all that is said yes to, whole; ``words``: to stderr, beside a question.

    Every line begins with a label of ours, or with spaces: nothing in a value can begin one.
    """
    import sys

    stream = sys.stderr if words else sys.stdout
    call = approval.call
    put(f"{visible(call.tool)}  {visible(approval.id)}", style=BOLD, stream=stream)
    put_facts(
        {
            "state": approval.state,
            "run": call.run_id,
            "agent": call.agent,
            "on behalf of": call.principal,
            "edited by": Shown(", ".join(map(visible, approval.editors))),
            "tenant": call.tenant,
            "version": call.version,
            "asked because": approval.rule,
            "asked at": time_of(approval.requested_at),
            "expires": _expires(approval),
            "needs": Shown(_needs(approval)),
            "said yes": Shown("; ".join(_yes(one) for one in approval.given)),
            "a no may be": Shown(", ".join(visible(one, prose=True) for one in approval.reasons)),
            "decided by": approval.by,
            "reason": approval.reason,
            "used at": time_of(approval.used_at),
            "digest": approval.digest,
        },
        stream=stream,
    )
    put("arguments", stream=stream)
    for line in args_lines(call.args, call.classes):
        put(line, stream=stream)
    for name, (was, now) in _changes(before, call).items():
        changed = f"{visible(name)} was {visible_value(was)}, is {visible_value(now)}"
        put(f"   not as the last time: {changed}", style=STYLES["pending"], stream=stream)


def approval_facts(approval: Approval) -> dict[str, Any]:
    """An approval as JSON has it."""
    from amends.notify import exact  # brings HTTP along, which few verbs need

    call = approval.call
    return {
        "approval": approval.id,
        "state": approval.state,
        "digest": approval.digest,
        "call": call.id,
        "run": call.run_id,
        "tool": call.tool,
        "version": call.version,
        "args": exact(dict(call.args)),
        "classes": dict(call.classes),
        "agent": call.agent,
        "principal": call.principal,
        "rule": approval.rule,
        "needed": approval.needed,
        "roles": list(approval.roles),
        "reasons": list(approval.reasons),
        "given": [asdict(one) for one in approval.given],
        "by": approval.by,
        "reason": approval.reason,
        "requested_at": time_of(approval.requested_at),
        "expires_at": time_of(approval.expires_at),
        "decided_at": time_of(approval.decided_at),
        "used_at": time_of(approval.used_at),
        "follows": approval.follows,
        "editors": list(approval.editors),
        "links": dict(approval.links),
    }


def _row(approval: Approval) -> tuple[str, ...]:
    call = approval.call
    left = lasted(max(0.0, _left_s(approval))) if approval.state in LIVE else ""
    given = f"{len(approval.given)}/{approval.needed}"
    names = (visible(approval.id), visible(call.run_id), visible(call.tool))
    return (*names, approval.state, left, given, shown_args(call.args))


def _left_s(approval: Approval) -> float:
    return (approval.expires_at - datetime.now(UTC)).total_seconds()


def _expires(approval: Approval) -> str:
    left = f", in {lasted(_left_s(approval))}" if approval.state in LIVE and _left_s(approval) > 0 else ""
    return f"{time_of(approval.expires_at)}{left}"


def _needs(approval: Approval) -> str:
    people = f"{approval.needed} {'person' if approval.needed == 1 else 'people'}"
    return (
        f"{people} of {', '.join(map(visible, approval.roles))}"
        if approval.roles
        else f"{people}, not the one who asked"
    )


def _yes(one: Yes) -> str:
    behalf = f" for {visible(one.behalf)}" if one.behalf else ""
    why = f": {visible(one.why, prose=True)}" if one.why else ""
    return f"{visible(one.by)}{behalf} at {time_of(one.at)}{' (bypass)' if one.bypass else ''}{why}"


def _before(rt: Runtime, approval: Approval) -> Call | None:
    """The newest call of this tool that a person allowed: what is new about this one is what to look at."""
    tool = approval.call.tool
    found = rt.approvals(f"state:used tool:{filter_text(tool)}")
    used = next((one for one in found if one.call.tool == tool), None)
    return None if used is None or used.id == approval.id else used.call


def _changes(before: Call | None, call: Call) -> Mapping[str, tuple[Any, Any]]:
    if before is None:
        return {}
    names = dict.fromkeys((*before.args, *call.args))
    pairs = {name: (before.args.get(name), call.args.get(name)) for name in names}
    return {name: (was, now) for name, (was, now) in pairs.items() if visible_value(was) != visible_value(now)}


def _digest(approval: Approval, said: str | None) -> str:
    """The whole digest, for one that was said in part; another one is handed on, and refused."""
    if said is None or (len(said) >= DIGEST_CHARS_MIN and approval.digest.startswith(said)):
        return approval.digest
    return said


def _put(approval: Approval, as_json: bool) -> int:
    if as_json:
        put_json(approval_facts(approval))
        return DONE
    more = approval.needed - len(approval.given)
    waits = f", {more} more needed" if approval.state == "pending" and approval.given else ""
    put(f"{visible(approval.id)}  {approval.state}{waits}", style=STYLES.get(approval.state, ""))
    if approval.state == "approved":
        say(f"run {visible(approval.call.run_id)} can go on: open it again, or a worker does where it may")
    return DONE
