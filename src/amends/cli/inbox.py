"""``amends inbox``: everything that waits for a person, in one list."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from amends import InboxItem, Runtime
from amends.cli.access import open_runtime, take
from amends.cli.exit_codes import DONE, NEEDS_A_PERSON
from amends.cli.options import LIMIT, App, Json, Limit, Tenant, Url, filter_of, group
from amends.cli.output import age, args_short, duration, put_json, put_table, say, say_none
from amends.cli.wording import in_commands
from amends.visible import visible

NEXT: Final = {
    "approval": "amends approvals show ID, then approve or reject",
    "expired": "amends approvals again ID, or withdraw",
    "doubt": "amends doubts show ID, then resolve",
    "decision": "amends calls show ID, then decide",
    "blocked": "amends runs show ID names what to do",
    "suspended": "open the run in its program, or: amends rollback ID",
}
"""What to do about each kind of item."""

PROGRAMS_READ_MAX: Final = 100
"""Among so many of the newest open runs those are looked for that wait for their programs."""
PROGRAMS_SHOWN_MAX: Final = 10

verbs = group()


@verbs.command()
def inbox(
    filter: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILTER]...", help="For example: what:approval role:treasurer age:>1h"),
    ] = None,
    limit: Limit = LIMIT,
    check: Annotated[bool, typer.Option("--check", help="Exit with code 3 if anything waits.")] = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """List everything that waits for a person: soonest to expire first, then oldest."""
    wanted = filter_of(filter, lists="inbox")
    with open_runtime(app, url=url, tenant=tenant) as rt:
        items = rt.inbox(wanted)
        ledger = rt.settings["url"].value
        left = [] if wanted or as_json else _left_to_programs(rt, {item.run_id for item in items})
    found = items[:limit]
    if as_json:
        for item in found:
            put_json(item.to_dict() | {"why": _why(item)}, id=item.id)
    else:
        put_table(("what", "id", "run", "waits", "left", "about"), [_row(item) for item in found])
    if not items:
        say_none("item that waits for a person", ledger, filter=wanted)
    elif len(items) > limit:
        say(f"the first {limit} of {len(items)}; --limit shows more")
    for what in dict.fromkeys(item.what for item in found if not as_json):
        say(f"{what}: {NEXT[what]}")
    if left:
        more = ", …" if len(left) > PROGRAMS_SHOWN_MAX else ""
        named = ", ".join(map(visible, left[:PROGRAMS_SHOWN_MAX]))
        say(f"no person is needed, waits for its program: {named}{more}; open the run again, or: amends rollback RUN")
    return NEEDS_A_PERSON if check and items else DONE


def _left_to_programs(rt: Runtime, named: Collection[str]) -> list[str]:
    """Return the open runs that only their programs continue: nobody is asked about them, so they are easily forgotten."""
    found, _ = take(rt.runs("state:open", now=True), PROGRAMS_READ_MAX)
    waits = [run.id for run in found if run.now is not None and run.now.waits_for == "its program"]
    return [id for id in dict.fromkeys(waits) if id not in named]


def _row(item: InboxItem) -> tuple[str, ...]:
    left = "" if item.expires_at is None else duration(max(0.0, (item.expires_at - datetime.now(UTC)).total_seconds()))
    return (item.what, visible(item.id), visible(item.run_id), age(item.since), left, _about(item))


def _why(item: InboxItem) -> str | None:
    """Return why it waits; what blocks a run names the verbs that help, here as commands."""
    return in_commands(item.why) if item.what == "blocked" and item.why else item.why


def _about(item: InboxItem) -> str:
    call = item.call
    why = visible(_why(item) or "", prose=True)
    if call is None:
        return why
    people = f" ({', '.join(map(visible, item.asked))})" if item.asked else ""
    roles = f" for {' or '.join(map(visible, item.roles))}{people}" if item.roles else ""
    return f"{visible(call.tool)} {args_short(call.args)}{roles}{f': {why}' if why else ''}"
