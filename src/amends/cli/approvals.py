"""``amends approvals``: calls that wait for a person, shown exactly, and decided on exactly what was shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from amends import Approval, Call, Runtime, Yes
from amends.cli.access import Given, filter_text, find_approval, open_ledger, open_runtime, take, who
from amends.cli.exit_codes import DONE, FAILED
from amends.cli.options import (
    LIMIT,
    App,
    ApprovalId,
    By,
    Filter,
    Json,
    LedgerOf,
    Limit,
    Tenant,
    Url,
    Why,
    YesOption,
    filter_of,
    group,
)
from amends.cli.output import (
    BOLD,
    STYLES,
    Shown,
    args_lines,
    args_short,
    check_readable,
    confirm,
    duration,
    has_person,
    iso_time,
    put,
    put_facts,
    put_json,
    put_table,
    say,
    say_how_many,
)
from amends.errors import UsageError
from amends.visible import visible, visible_value

DIGEST_CHARS_MIN: Final = 12
"""The shortest part of a digest that is accepted: nobody can find another call whose digest begins like this."""
LIVE: Final = ("pending", "approved")

verbs = group()
approvals = group("List and show the calls that wait for a person; approve exactly what is shown, or reject it.")
verbs.add_typer(approvals, name="approvals")


@approvals.command("list")
def list_approvals(
    filter: Filter = None,
    limit: Limit = LIMIT,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """List the pending requests, newest first; with state: in the filter, those in other states too."""
    wanted = filter_of(filter)
    if not any(word.startswith(("state:", "status:")) for word in wanted.split()):
        wanted = f"state:pending {wanted}"
    with open_ledger(url, tenant, app=app) as rt:
        found, more = take(rt.approvals(wanted.strip()), limit)
        ledger = rt.settings["url"].value
    if as_json:
        for approval in found:
            put_json(_facts(approval), id=approval.id)
    else:
        head = ("approval", "run", "tool", "state", "left", "yes", "arguments")
        put_table(head, [_row(approval) for approval in found], state=3)
    say_how_many(found, more, "approval", ledger, filter=wanted)


@approvals.command("show")
def show_approval(
    approval_id: ApprovalId, app: LedgerOf = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """Show exactly what would be approved, and what differs from the last approved call of this tool."""
    with open_ledger(url, tenant, app=app) as rt:
        approval = rt.approval(find_approval(rt, approval_id))
        before = _approved_before(rt, approval)
    if as_json:
        put_json(_facts(approval) | {"changed": _changes(before, approval.call)}, id=approval.id)
    else:
        _put_card(approval, before)


@approvals.command("approve")
def approve(
    approval_id: ApprovalId,
    digest: Annotated[
        str | None, typer.Option("--digest", help="The digest that was shown; required if there is no terminal.")
    ] = None,
    why: Annotated[str, typer.Option("--why", help="The reason; it is recorded with the decision.")] = "",
    by: By = None,
    behalf: Annotated[
        str | None, typer.Option("--behalf", help="The person who delegated this decision to you.")
    ] = None,
    bypass: Annotated[
        bool,
        typer.Option("--bypass", help="Ignore the required roles and number of people; recorded as such. Needs --why."),
    ] = False,
    yes: YesOption = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Approve exactly what is shown; it allows that one call to start once, before the approval expires."""
    asks = not yes
    if not has_person() and (asks or digest is None):
        raise UsageError(
            "an approval cannot be undone, and there is no terminal to ask at",
            hint=f"amends approvals show {visible(approval_id)}{Given(app, url, tenant)} prints what is approved and its "
            "digest; then add "
            "--digest DIGEST --yes",
        )
    if bypass and not why:
        raise UsageError("a bypass needs a reason", hint="give it: --why")
    with open_runtime(app, url=url, tenant=tenant) as rt:  # a program can define who has which role
        approval, person = rt.approval(find_approval(rt, approval_id)), who(by, rt)
        whole = _whole_digest(approval, digest)
        if asks:
            check_readable(approval.call)
            _put_card(approval, _approved_before(rt, approval), to_stderr=True)
            if approval.state in LIVE and not confirm(f"{visible(person)} approves exactly this. Sure?"):
                return FAILED
        if bypass:
            approval = rt.bypass(approval.id, digest=whole, by=person, why=why)
        else:
            approval = rt.approve(approval.id, digest=whole, by=person, why=why, behalf=behalf)
    return _put_decided(approval, as_json)


@approvals.command("reject")
def reject(
    approval_id: ApprovalId,
    reason: Annotated[str, typer.Option("--reason", "--why", help="Why not; the model is told.")],
    by: By = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not show the request first.")] = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Reject the call; the model is told the reason."""
    with open_runtime(app, url=url, tenant=tenant) as rt:
        approval, person = rt.approval(find_approval(rt, approval_id)), who(by, rt)
        if has_person() and not (
            as_json or yes
        ):  # a rejection starts nothing, so it is shown but needs no confirmation
            _put_card(approval, _approved_before(rt, approval), to_stderr=True)
        approval = rt.reject(approval.id, by=person, reason=reason)
    return _put_decided(approval, as_json)


@approvals.command("withdraw")
def withdraw(
    approval_id: ApprovalId,
    why: Why,
    by: By = None,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Withdraw a request: nobody needs to decide it, and the call may be requested again."""
    with open_ledger(url, tenant, app=app) as rt:
        approval = rt.withdraw(find_approval(rt, approval_id), by=who(by, rt), why=why)
    return _put_decided(approval, as_json)


@approvals.command("again")
def again(
    approval_id: ApprovalId,
    why: Why,
    by: By = None,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Request approval again for a call whose request has expired."""
    with open_ledger(url, tenant, app=app) as rt:
        approval = rt.ask_again(find_approval(rt, approval_id), by=who(by, rt), why=why)
    return _put_decided(approval, as_json)


def _whole_digest(approval: Approval, given: str | None) -> str:
    """Return the whole digest for one that was given in part; return another digest as it is, and the runtime refuses it."""
    if given is None or (len(given) >= DIGEST_CHARS_MIN and approval.digest.startswith(given)):
        return approval.digest
    return given


def _approved_before(rt: Runtime, approval: Approval) -> Call | None:
    """Return the newest approved call of this tool: a reviewer should look at what differs from it."""
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


# ---- Output


def _put_card(approval: Approval, before: Call | None, *, to_stderr: bool = False) -> None:
    """Show everything that is approved, in full; on stderr if a question follows.

    Every line begins with a label of ours or with spaces, so no value can imitate a label.
    """
    stream = sys.stderr if to_stderr else sys.stdout
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
            "asked at": iso_time(approval.requested_at),
            "expires": _expires(approval),
            "needs": Shown(_needs(approval)),
            "asked now": Shown(_asked(approval)),
            "next": Shown(_next(approval)),
            "approved by": Shown("; ".join(_yes(one) for one in approval.given)),
            "reject for": Shown(", ".join(visible(one, prose=True) for one in approval.reasons)),
            "decided by": approval.by,
            "reason": approval.reason,
            "used at": iso_time(approval.used_at),
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


def _put_decided(approval: Approval, as_json: bool) -> int:
    if as_json:
        put_json(_facts(approval), id=approval.id)
        return DONE
    more = approval.needed - len(approval.given)
    waits = f", {more} more needed" if approval.state == "pending" and approval.given else ""
    put(f"{visible(approval.id)}  {approval.state}{waits}", style=STYLES.get(approval.state, ""))
    if approval.state == "approved":
        run = visible(approval.call.run_id)
        say(f'run {run} can continue: open it again, or let a worker resume it if it has recover="resume"')
    return DONE


def _facts(approval: Approval) -> dict[str, Any]:
    from amends.notify import exact  # imports HTTP, which few verbs need

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
        "requested_at": iso_time(approval.requested_at),
        "expires_at": iso_time(approval.expires_at),
        "decided_at": iso_time(approval.decided_at),
        "used_at": iso_time(approval.used_at),
        "follows": approval.follows,
        "editors": list(approval.editors),
        "links": dict(approval.links),
        "asked": list(approval.asked),
        "asked_at": iso_time(approval.asked_at),
        "reached": approval.reached,
        "next": None if approval.next is None else approval.next.to_dict(),
    }


def _row(approval: Approval) -> tuple[str, ...]:
    call = approval.call
    left = duration(max(0.0, _left_s(approval))) if approval.state in LIVE else ""
    given = f"{len(approval.given)}/{approval.needed}"
    names = (visible(approval.id), visible(call.run_id), visible(call.tool))
    return (*names, approval.state, left, given, args_short(call.args))


def _left_s(approval: Approval) -> float:
    return (approval.expires_at - datetime.now(UTC)).total_seconds()


def _expires(approval: Approval) -> str:
    left = f", in {duration(_left_s(approval))}" if approval.state in LIVE and _left_s(approval) > 0 else ""
    return f"{iso_time(approval.expires_at)}{left}"


def _needs(approval: Approval) -> str:
    people = f"{approval.needed} {'person' if approval.needed == 1 else 'people'}"
    if approval.roles:
        return f"{people} of {', '.join(map(visible, approval.roles))}"
    return f"{people}, not the one who asked"


def _asked(approval: Approval) -> str:
    if not approval.asked:
        return ""
    since = f", since {iso_time(approval.asked_at)}" if approval.asked_at != approval.requested_at else ""
    return f"{', '.join(map(visible, approval.asked))}{since}"


def _next(approval: Approval) -> str:
    """Return what happens if nobody answers; empty if it only expires, which another line says."""
    entry = approval.next
    if entry is None or entry.what == "expire":
        return ""
    words = {"remind": "a reminder", "escalate": f"{', '.join(map(visible, entry.roles))} too", "refuse": "rejected"}
    left = (entry.at - datetime.now(UTC)).total_seconds()
    return f"{words[entry.what]} at {iso_time(entry.at)}{f', in {duration(left)}' if left > 0 else ', now due'}"


def _yes(one: Yes) -> str:
    behalf = f" for {visible(one.behalf)}" if one.behalf else ""
    why = f": {visible(one.why, prose=True)}" if one.why else ""
    return f"{visible(one.by)}{behalf} at {iso_time(one.at)}{' (bypass)' if one.bypass else ''}{why}"
