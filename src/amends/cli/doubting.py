"""``amends doubts list`` and ``show``: what is known of a call that nobody can speak for."""

from __future__ import annotations

from amends import Doubt
from amends.cli.access import call_named, first, reading, working
from amends.cli.reading import age_of, args_lines, say_how_many, shown_args, time_of
from amends.cli.show import BOLD, put, put_facts, put_json, put_table, say
from amends.errors import UsageError
from amends.visible import visible

HOW = "amends doubts show CALL tells more; amends doubts resolve CALL happened|absent|unknown --why ... decides"


def list_doubts(filter: str, *, limit: int, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends doubts list``."""
    with reading(url, tenant) as rt:
        found, more = first(rt.doubts(filter), limit)
        ledger = rt.settings["url"].value
    if as_json:
        for doubt in found:
            put_json(doubt.to_dict())
    else:
        put_table(("call", "run", "tool", "sent", "what"), [_row(doubt) for doubt in found])
    say_how_many(found, more, "doubt", ledger, filter=filter)
    if found and not as_json:
        say(HOW)


def show_doubt(call_id: str, *, app: str | None, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends doubts show``."""
    with working(app, url=url, tenant=tenant) as rt:
        call = rt.call(call_named(rt, call_id))
        doubt: Doubt | None = next(iter(rt.doubts(f'call:"{call.id}"')), None)
        if doubt is None:
            raise UsageError(
                f"{visible(call.tool)} ({visible(call.id)}) is {call.state}: there is no doubt about it",
                hint="amends call show",
            )
        preview = rt.preview(call.id)
    if as_json:
        put_json(doubt.to_dict() | {"answers": preview.to_dict()})
        return
    put(f"{visible(doubt.tool)}  {visible(doubt.id)}", style=BOLD)
    put_facts(
        {
            "state": doubt.state,
            "run": doubt.run_id,
            "sent at": time_of(doubt.sent_at),
            "lost at": time_of(doubt.lost_at),
            "key": doubt.key,
            "attempt": doubt.attempt,
            "why": doubt.why,
            "error": doubt.error,
            "probe": doubt.probe or "none: a person must look",
            "asked again at": time_of(doubt.next_probe_at),
        }
    )
    put("sent")
    for line in args_lines(doubt.sent, doubt.classes if doubt.about == "call" else None):
        put(line)
    for one in doubt.evidence:
        why = f" ({visible(one.why, prose=True)})" if one.why else ""
        put(f"{time_of(one.at)}  {visible(one.by)}: {visible(one.answer)}{why}")
    put()
    for answer in ("happened", "absent", "unknown"):
        put(f"{answer:<8}  {getattr(preview, answer)}")


def _row(doubt: Doubt) -> tuple[str, ...]:
    names = (visible(doubt.id), visible(doubt.run_id), visible(doubt.tool))
    return (*names, f"{age_of(doubt.sent_at)} ago", shown_args(doubt.sent))
