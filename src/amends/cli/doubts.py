"""``amends doubts`` and ``amends reconcile``: calls whose outcome is unknown, and the ledger compared with the world."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from amends import Absent, Doubt, Happened, Next, Unknown
from amends.cli.access import Given, find_call, open_ledger, open_runtime, say_unloaded, take, who
from amends.cli.exit_codes import DONE, FAILED, IN_DOUBT, NEEDS_A_PERSON
from amends.cli.options import (
    LIMIT,
    App,
    By,
    CallId,
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
    age,
    args_lines,
    args_short,
    confirm,
    iso_time,
    must_ask,
    progress,
    put,
    put_facts,
    put_json,
    put_plain,
    put_table,
    say,
    say_how_many,
)
from amends.cli.runs import json_or_text, put_decided, say_call
from amends.cli.wording import in_commands, worded
from amends.errors import UsageError
from amends.visible import visible, visible_value

ANSWERS: Final = {
    "happened": "happened",
    "absent": "did not happen",
    "unknown": "cannot be known, and stays as residue",
}
"""What a person can answer, and how the question repeats it."""
LATER: Final = "--result JSON; later: amends calls retry CALL --result JSON"
ANSWER_OF: Final = "CALL happened|absent|unknown [--result JSON] --why ..."

verbs = group()
doubts = group("List the calls that may or may not have happened, ask the outside world, and decide.")
verbs.add_typer(doubts, name="doubts")


@doubts.command("list")
def list_doubts(
    filter: Filter = None,
    limit: Limit = LIMIT,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """List every call that may or may not have happened."""
    wanted = filter_of(filter)
    with open_ledger(url, tenant, app=app) as rt:
        found, more = take(rt.doubts(wanted), limit)
        ledger = rt.settings["url"].value
    if as_json:
        for doubt in found:
            put_json(doubt.to_dict(), id=doubt.id)
    else:
        put_table(("call", "run", "tool", "sent", "what"), [_row(doubt) for doubt in found])
    say_how_many(found, more, "doubt", ledger, filter=wanted)
    if found and not as_json:
        given = Given(app, url, tenant)
        say(f"for more: amends doubts show CALL{given}; to decide: amends doubts resolve {ANSWER_OF}{given}")


@doubts.command("show")
def show_doubt(call_id: CallId, app: App = None, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """Show one doubt: what was sent, the evidence, and what each answer would cause."""
    with open_runtime(app, url=url, tenant=tenant) as rt:
        call = rt.call(find_call(rt, call_id))
        doubt: Doubt | None = next(iter(rt.doubts(f'call:"{call.id}"')), None)
        if doubt is None:
            raise UsageError(
                f"{visible(call.tool)} ({visible(call.id)}) is {call.state}: there is no doubt about it",
                hint="amends calls show",
            )
        preview = rt.preview(call.id)
        if "worker" in (preview.happened.who, preview.absent.who, preview.unknown.who):
            tools = [one.tool for one in rt.report(call.run_id).calls]
            say_unloaded(rt, tools, f"amends doubts show {visible(call.id)}")
    if as_json:
        put_json(doubt.to_dict() | worded({"answers": preview.to_dict()}), id=doubt.id)
        return
    put(f"{visible(doubt.tool)}  {visible(doubt.id)}", style=BOLD)
    put_facts(
        {
            "state": doubt.state,
            "run": doubt.run_id,
            "sent at": iso_time(doubt.sent_at),
            "lost at": iso_time(doubt.lost_at),
            "key": doubt.key,
            "attempt": doubt.attempt,
            "why": doubt.why,
            "error": doubt.error,
            "probe": doubt.probe or "none: a person must look",
            "next probe at": iso_time(doubt.next_probe_at),
        }
    )
    put("sent")
    for line in args_lines(doubt.sent, doubt.classes if doubt.about == "call" else None):
        put(line)
    for one in doubt.evidence:
        why = f" ({visible(one.why, prose=True)})" if one.why else ""
        put(f"{iso_time(one.at)}  {visible(one.by)}: {visible(one.answer)}{why}")
    put()
    for answer in ANSWERS:
        then: Next = getattr(preview, answer)
        put(f"{answer:<8}  {_then(then)}")
    say(f"to decide: amends doubts resolve {ANSWER_OF.replace('CALL', visible(call.id))}{Given(app, url, tenant)}")


@doubts.command("probe")
def probe(call_id: CallId, app: App = None, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> int:
    """Run the probe of a call's tool now, and show its answer; this decides nothing."""
    with open_runtime(app, url=url, tenant=tenant, needed="a probe") as rt:
        call = rt.call(find_call(rt, call_id))
        with progress(f"asking about {visible(call.tool)}"):
            answer = rt.probe(call.id)
    facts: dict[str, Any] = {"call": call.id, "tool": call.tool, "answer": type(answer).__name__.lower()}
    facts |= {"result": answer.result} if isinstance(answer, Happened) else {}
    facts |= {"why": answer.why} if isinstance(answer, Unknown) else {}
    if as_json:
        put_json(facts, id=call.id)
    else:
        more = facts.get("result", facts.get("why"))
        words = f": {visible_value(more, bare=True)}" if more not in (None, "") else ""
        put(f"{visible(call.tool)} ({visible(call.id)}): {facts['answer']}{words}")
        if not isinstance(answer, Unknown):
            has = " --result JSON" if "result" in answer.to_dict() else ""
            decide = f"amends doubts resolve {visible(call.id)} {facts['answer']}{has} --why ..."
            decide += str(Given(app, url, tenant))
            say(f"the call is still in doubt; to decide: {decide}")
    return IN_DOUBT if isinstance(answer, Unknown) else DONE


@doubts.command("resolve")
def resolve(
    call_id: CallId,
    answer: Annotated[str, typer.Argument(metavar="happened|absent|unknown", help="What you know about it.")],
    why: Why,
    result: Annotated[
        str | None, typer.Option("--result", help="The result of the call, as JSON or plain text; only with happened.")
    ] = None,
    by: By = None,
    yes: YesOption = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Decide whether a call happened; its run then continues accordingly."""
    decision, asks = _decision(answer, result), must_ask(yes, "resolving a doubt")
    with open_runtime(app, url=url, tenant=tenant) as rt:
        call, person = rt.call(find_call(rt, call_id)), who(by, rt)
        is_undoing = call.state in ("compensation_in_doubt", "compensation_failed")
        if result is not None and is_undoing:
            raise UsageError(
                f"the doubt is about the compensation of {visible(call.tool)} ({visible(call.id)}), which has no result",
                hint="leave out --result",
            )
        if result is not None and rt.kind_of(call.tool) is None:
            say(f"{visible(call.tool)} is not loaded here: this result is recorded, and not checked against its type")
        if answer == "happened" and result is None and not asks and call.state == "in_doubt":
            note = rt.preview(call.id).happened.note
            if note:
                say(f"note: {note} ({LATER})")
        if asks:
            say_call(call)
            if result is not None and isinstance(decision, Happened):
                say(f"   its result is then {visible_value(decision.result)}")
            then: Next = getattr(rt.preview(call.id), answer)
            say(f"   then: {_then(then if result is None else replace(then, note=''))}")
            if not confirm(f"{visible(person)} says that it {ANSWERS[answer]}. Sure?"):
                return FAILED
        with progress("recording the answer"):
            report = rt.resolve(call.id, decision, by=person, why=why)
        return put_decided(rt, report, as_json, Given(app, url, tenant))


@verbs.command()
def reconcile(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The name of the tool.")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Probe at most this many calls.")] = 10_000,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Compare the ledger with the outside world for one tool, and show what only one of them has. Changes nothing."""
    with (
        open_runtime(app, url=url, tenant=tenant, needed="comparing the ledger with the world") as rt,
        progress(f"asking the outside world about {visible(tool)}"),
    ):
        found = rt.reconcile(tool, limit=limit)
    if as_json:
        put_json(found.to_dict(), id=found.tool)
    else:
        put_plain(str(found))
    if not found.agrees:
        return NEEDS_A_PERSON
    return IN_DOUBT if found.doubts else DONE


def _then(then: Next) -> str:
    """Return what follows from an answer, and what should be given with it."""
    note = f". Note: {then.note} (--result JSON)" if then.note else ""
    return f"{in_commands(str(then))}{note}"


def _decision(answer: str, result: str | None) -> Happened[Any] | Absent | Unknown:
    if answer not in ANSWERS:
        raise UsageError(f"{visible(answer)} is not an answer", hint=f"use one of {', '.join(ANSWERS)}")
    if result is not None and answer != "happened":
        raise UsageError(f"--result is the result of a call that happened, and cannot be used with {answer}")
    match answer:
        case "happened":
            return Happened() if result is None else Happened(json_or_text(result))
        case "absent":
            return Absent()
        case _:
            return Unknown("a person said so")


def _row(doubt: Doubt) -> tuple[str, ...]:
    names = (visible(doubt.id), visible(doubt.run_id), visible(doubt.tool))
    return (*names, f"{age(doubt.sent_at)} ago", args_short(doubt.sent))
