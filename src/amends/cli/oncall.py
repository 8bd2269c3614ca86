"""``amends oncall``: who is asked now, and gaps and overlaps in the on-call table."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from amends import Runtime, Shift, ShiftProblem
from amends.cli.access import open_without_ledger
from amends.cli.exit_codes import DONE, FAILED
from amends.cli.options import App, Json, Url, group
from amends.cli.output import iso_time, put, put_json, put_table, say
from amends.errors import UsageError
from amends.visible import visible

verbs = group()
oncall = group("Show who is asked now, and check the on-call table for gaps and overlaps.")
verbs.add_typer(oncall, name="oncall")


@oncall.command("show")
def show(
    role: Annotated[str | None, typer.Argument(metavar="[ROLE]", help="Only this role.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="The time, like 2026-03-06T19:30+01:00. Default: now.")] = None,
    app: App = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Show who is on call now, or at a time."""
    with open_without_ledger(app, url) as (rt, _):
        found: list[Shift] = rt.oncall(role, at=_moment(at))
        origin = _origin(rt)
    if as_json:
        for shift in found:
            put_json(shift.to_dict(), id=shift.role)
    else:
        put_table(("role", "person", "from", "until"), [_row(shift) for shift in found])
    if not found:
        words = "nobody is on call" if role is None else f"nobody is on call for {visible(role)}"
        say(f"{words}: everybody who has the role is asked" if origin else "there is no on-call table: set oncall")
    return DONE


@oncall.command("check")
def check(
    days: Annotated[float, typer.Option("--days", help="How many days from now on to check.")] = 14.0,
    app: App = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """List gaps, overlaps and people who may not decide; exit with code 1 if there are any."""
    with open_without_ledger(app, url) as (rt, _):
        found: list[ShiftProblem] = rt.check_oncall(days=days)
        origin = _origin(rt)
    if as_json:
        for problem in found:
            put_json(problem.to_dict(), id=problem.role)
    elif found:
        head = ("problem", "role", "from", "until", "what")
        times = [(iso_time(one.start) or "", iso_time(one.until) or "") for one in found]
        put_table(
            head, [(one.kind, visible(one.role), *when, one.text) for one, when in zip(found, times, strict=True)]
        )
    else:
        put(f"no gap and no overlap in the next {days:g} days" if origin else "there is no on-call table: set oncall")
    return FAILED if found else DONE


def _origin(rt: Runtime) -> str:
    setting = rt.settings["oncall"]
    return setting.origin if setting.value else ""


def _row(shift: Shift) -> tuple[str, ...]:
    return visible(shift.role), visible(shift.person), iso_time(shift.start) or "", iso_time(shift.until) or ""


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{visible(text)} is no time", hint="write it like 2026-03-06T19:30+01:00") from error
    if found.tzinfo is None:
        raise UsageError(f"{visible(text)} has no offset", hint="write it like 2026-03-06T19:30+01:00, or with Z")
    return found
