"""Verbs about runs and their calls: ``runs``, ``calls``, ``rollback``, ``worker`` and ``recover``."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from amends import Call, Event, Feed, Report, Residue, RollbackPlan, RunInfo, Runtime
from amends.cli.access import (
    Given,
    find_call,
    find_run,
    load_runtime,
    open_ledger,
    open_runtime,
    required_app,
    say_unloaded,
    take,
    who,
)
from amends.cli.exit_codes import (
    AWAITING_APPROVAL,
    DONE,
    FAILED,
    IN_DOUBT,
    NEEDS_A_PERSON,
    NOT_ALL_TAKEN_BACK,
    code_of_run,
)
from amends.cli.gateway import gateway_names, undoing
from amends.cli.options import (
    LIMIT,
    App,
    By,
    CallId,
    Filter,
    Json,
    LedgerOf,
    Limit,
    Place,
    RunId,
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
    age,
    args_lines,
    args_short,
    check_readable,
    confirm,
    duration,
    has_person,
    iso_time,
    must_ask,
    now_words,
    progress,
    put,
    put_facts,
    put_json,
    put_plain,
    put_report,
    put_table,
    say,
    say_how_many,
)
from amends.cli.wording import in_commands, worded
from amends.errors import NAMED_MAX, StalePlan, UsageError
from amends.visible import visible, visible_call, visible_log, visible_value
from amends.worker import CONCURRENCY_MAX, DRAIN_S, work, work_once

DECISIONS: Final = ("run", "replay", "refuse")
ENDED: Final = ("committed", "rolled_back", "abandoned", "blocked")
EVENTS_MAX: Final = 1_000
"""Events of one call that are shown; a call that is retried for weeks has more."""
HASH_CHARS_MIN: Final = 12
"""The least that names a plan by the beginning of its hash."""
KNOWN_TOOLS_MAX: Final = 10_000
OWNER_PARTS: Final = 5
PLAIN_RECORD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""What every log record has; the rest are the fields that amends gave it."""

verbs = group()
runs = group("List and show runs, follow them, and close a run that cannot continue.")
calls = group("List and show calls, and decide what happens to one.")
verbs.add_typer(runs, name="runs")
verbs.add_typer(calls, name="calls")

# ---- runs


@runs.command("list")
def list_runs(
    filter: Filter = None,
    limit: Limit = LIMIT,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """List runs, newest first, with what happens to each now."""
    wanted = filter_of(filter)
    with open_ledger(url, tenant, app=app) as rt:
        found, more = take(rt.runs(wanted, now=True), limit)
        ledger = rt.settings["url"].value
    if as_json:
        for run in found:
            put_json(_run_facts(run), id=run.id)
    else:
        head = ("run", "state", "now", "gen", "agent", "age", "took", "tags")
        put_table(head, [_run_row(run) for run in found], state=1)
    say_how_many(found, more, "run", ledger, filter=wanted)


@runs.command("show")
def show_run(
    run_id: RunId, app: LedgerOf = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """Show one run: its calls, errors, compensations and residue."""
    with open_ledger(url, tenant, app=app) as rt:
        report = with_now(rt, rt.report(find_run(rt, run_id)))
        if as_json:
            put_json(worded(report.to_dict()), id=report.run_id)
            return
        put_report(report)
        if report.state not in ENDED or report.state == "blocked":
            say_unloaded(rt, _to_compensate(report.residue), f"amends runs show {visible(report.run_id)}")


@runs.command("watch")
def watch(
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="The id of the run, or its first characters. Default: the whole ledger."),
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.05, help="Seconds between two checks for news.")] = 0.5,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Follow a run until it has ended or waits for a person; the exit code tells its state."""
    with open_ledger(url, tenant, app=app) as rt:
        if run_id is not None:
            return _watch_run(rt, find_run(rt, run_id), every, as_json)
        say(f"watching {visible(str(rt.settings['url'].value), prose=True)}; Ctrl-C ends it")
        lines = _EventLines(rt, as_json, with_run=True)
        try:
            newest = rt.newest_event()
            feed = Feed("" if newest is None else newest.place)
            for event in rt.events(after=feed.after):
                feed.is_new(event)  # the last seconds before the beginning are known
            while True:
                lines.put(event for event in rt.events(after=feed.after) if feed.is_new(event))
                time.sleep(every)
        except KeyboardInterrupt:
            return DONE


@runs.command("abandon")
def abandon(
    run_id: RunId,
    why: Why,
    by: By = None,
    yes: YesOption = False,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Close a run without compensating the rest; each effect that is left is listed."""
    asks = must_ask(yes, "abandoning a run")
    with open_ledger(url, tenant, app=app) as rt:
        run, person = find_run(rt, run_id), who(by, rt)
        question = f"{visible(person)} leaves these effects as they are and closes run {visible(run)}. Sure?"
        if asks and not _confirm_run(rt, run, question):
            return FAILED
        report = rt.abandon(run, by=person, why=why)
        put_decided(rt, report, as_json, Given(app, url, tenant))
    return DONE


@runs.command("finish")
def finish(
    run_id: RunId,
    why: Why,
    by: By = None,
    yes: YesOption = False,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Commit a run that was interrupted after its pivot."""
    asks = must_ask(yes, "closing a run")
    with open_ledger(url, tenant, app=app) as rt:
        run, person = find_run(rt, run_id), who(by, rt)
        if asks and not _confirm_run(rt, run, f"{visible(person)} says that run {visible(run)} is done. Sure?"):
            return FAILED
        report = rt.finish(run, by=person, why=why)
        return put_decided(rt, report, as_json, Given(app, url, tenant))


def _run_row(run: RunInfo) -> tuple[str, ...]:
    is_timed = run.closed_at is not None and run.opened_at is not None
    took = duration((run.closed_at - run.opened_at).total_seconds()) if is_timed else ""  # type: ignore[operator]
    agent = visible(run.agent) if run.agent else ""
    tags = ",".join(visible(tag) for tag in run.tags)
    generation = str(run.generation) if run.generation > 1 else ""
    return (visible(run.id), run.state, now_words(run.now), generation, agent, age(run.opened_at), took, tags)


def _run_facts(run: RunInfo) -> dict[str, Any]:
    return {
        "id": run.id,
        "state": run.state,
        "generation": run.generation,
        "tenant": run.tenant,
        "agent": run.agent,
        "principal": run.principal,
        "parent": run.parent,
        "goal": run.goal,
        "recover": run.recover,
        "interrupted": run.interrupted,
        "client_lease": run.client_lease,
        "tags": list(run.tags),
        "causes": [in_commands(cause) for cause in run.causes],
        "owner": run.owner,
        "opened_at": iso_time(run.opened_at),
        "closed_at": iso_time(run.closed_at),
        "deadline_at": iso_time(run.deadline_at),
        "now": run.now,
    }


def _to_compensate(left: Iterable[Residue]) -> Iterator[str]:
    """Yield the tools of the effects that a process with their code could still compensate."""
    return (one.call.tool for one in left if one.call.state == "succeeded")


def _confirm_run(rt: Runtime, run: str, question: str) -> bool:
    report = rt.report(run)
    say(f"run {visible(run)} is {report.state.replace('_', ' ')}")
    for left in report.residue:
        check_readable(left.call)
        say(f"   left standing: {visible(left.call.tool)} ({visible(left.call.id)}): {visible(left.why, prose=True)}")
        for line in args_lines(left.call.args, left.call.classes):
            say(f"   {line}")
    for cause in report.run.causes:
        say(f"   cause: {visible(in_commands(cause), prose=True)}")
    return confirm(question)


def with_now(rt: Runtime, report: Report) -> Report:
    """Return the report with what happens to its run at this moment, in the words of ``runs list``."""
    return replace(report, run=replace(report.run, now=rt.info(report.run_id).now))


def _who_goes_on(tags: Iterable[str], does: str, given: Given) -> str:
    names = gateway_names(tags)
    if names:
        return f"the gateway {visible(names[0])} has the tools, and {does} while it is running"
    return f"a worker that has the tools {does}: {given.worker}"


def put_decided(rt: Runtime, report: Report, as_json: bool, given: Given) -> int:
    """Print a run after a person's decision about it, and return the exit code.

    ``given``: the options of this command, which the next one needs too.
    """
    report = with_now(rt, report)
    if as_json:
        put_json(worded(report.to_dict()), id=report.run_id)
    else:
        put_report(report)
    now, is_gateway = report.run.now, bool(gateway_names(report.run.tags))
    if now is not None and now.what == "waiting" and now.waits_for == "its program" and not is_gateway:
        again = f"open run {visible(report.run_id)} again (LangChain: invoke(None, config))"
        say(f"recorded; its program continues it: {again}")
    elif report.skipped:
        say(f"recorded; {_who_goes_on(report.run.tags, 'continues the run', given)}")
    elif report.state == "blocked" and report.residue and all(left.call.state == "residue" for left in report.residue):
        # That an effect stays and that the run is closed are two decisions of a person.
        close = f"amends runs abandon {visible(report.run_id)} --why ...{given}"
        say(f"recorded; nothing else blocks the run. To close it: {close}")
    if report.doubts:
        return IN_DOUBT
    return NEEDS_A_PERSON if report.state == "blocked" else DONE


# ---- calls


@calls.command("list")
def list_calls(
    filter: Filter = None,
    limit: Limit = LIMIT,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """List calls, newest first."""
    wanted = filter_of(filter)
    with open_ledger(url, tenant, app=app) as rt:
        found, more = take(rt.calls(wanted), limit)
        ledger = rt.settings["url"].value
    if as_json:
        for call in found:
            put_json(_call_facts(call), id=call.id)
    else:
        head = ("call", "run", "tool", "state", "age", "arguments")
        put_table(head, [_call_row(call) for call in found], state=3)
    say_how_many(found, more, "call", ledger, filter=wanted)


@calls.command("show")
def show_call(
    call_id: CallId, app: LedgerOf = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """Show one call: its arguments, its outcome, and its events."""
    with open_ledger(url, tenant, app=app) as rt:
        call = rt.call(find_call(rt, call_id))
        # rt.events covers the newest generation of the run; a call of an older one is shown without events.
        of_call = (event for event in rt.events(call.run_id) if event.call_id == call.id)
        events, more = take(of_call, EVENTS_MAX)
    if as_json:
        put_json(_call_facts(call) | {"events": [event_facts(event) for event in events]}, id=call.id)
        return
    put(f"{visible(call.tool)}  {visible(call.id)}", style=BOLD)
    put_facts(_call_card(call))
    put("arguments")
    for line in args_lines(call.args, call.classes):
        put(line)
    put()
    for event in events:
        put(event_line(event, call.tool), style=STYLES.get(event.to, ""))
    if more:
        say(
            f"these are the first {EVENTS_MAX} events; for all of them: amends audit events --run {visible(call.run_id)}"
        )


@calls.command("decide")
def decide(
    call_id: CallId,
    decision: Annotated[
        str,
        typer.Argument(
            metavar="run|replay|refuse", help="Run it, answer it with the result of the earlier call, or refuse it."
        ),
    ],
    why: Why,
    by: By = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Decide about a call that is held as a suspected duplicate or because of a conflict."""
    if decision not in DECISIONS:
        raise UsageError(f"{visible(decision)} is not a decision", hint=f"use one of {', '.join(DECISIONS)}")
    with open_ledger(url, tenant, app=app) as rt:
        call, person = rt.call(find_call(rt, call_id)), who(by, rt)
        if not yes and has_person() and call.state == "held":
            say_call(call)
            # The other two start nothing, so they need no confirmation.
            if decision == "run" and not confirm(f"{visible(person)} lets exactly this run. Sure?"):
                return FAILED
        report = rt.decide(call.id, decision, by=person, why=why)  # type: ignore[arg-type]
        return put_decided(rt, report, as_json, Given(app, url, tenant))


@calls.command("retry")
def retry(
    call_id: CallId,
    why: Why,
    result: Annotated[
        str | None,
        typer.Option(
            "--result", help="The result of the call, as JSON or plain text, for a compensation that does not have it."
        ),
    ] = None,
    by: By = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Retry a compensation or a retriable call that has used up its retries."""
    with open_runtime(app, url=url, tenant=tenant) as rt:
        call, person = rt.call(find_call(rt, call_id)), who(by, rt)
        given = {} if result is None else {"result": json_or_text(result)}
        if not yes and has_person() and call.state in ("compensation_failed", "backing_off"):
            say_call(call)
            if not confirm(f"{visible(person)} starts it again. Sure?"):
                return FAILED
        with progress("retrying"):
            report = rt.retry(call.id, by=person, why=why, **given)
        return put_decided(rt, report, as_json, Given(app, url, tenant))


@calls.command("accept")
def accept(
    call_id: CallId,
    why: Why,
    by: By = None,
    yes: YesOption = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Accept that an effect stays, or that its outcome stays unknown. The report lists it as residue."""
    asks = must_ask(yes, "accepting an effect")
    with open_runtime(app, url=url, tenant=tenant) as rt:
        call, person = rt.call(find_call(rt, call_id)), who(by, rt)
        if asks:
            say_call(call)
            if not confirm(f"{visible(person)} accepts that it stays. Sure?"):
                return FAILED
        with progress("recording the decision"):
            report = rt.accept(call.id, by=person, why=why)
        return put_decided(rt, report, as_json, Given(app, url, tenant))


def _call_row(call: Call) -> tuple[str, ...]:
    names = (visible(call.id), visible(call.run_id), visible(call.tool))
    return (*names, call.state, age(call.requested_at), args_short(call.args))


def _call_facts(call: Call) -> dict[str, Any]:
    from amends.notify import exact  # imports HTTP, which few verbs need

    facts = {name: value for name, value in asdict(call).items() if name not in ("id", "run_id")}
    return (
        {"call": call.id, "run": call.run_id} | facts | {"args": exact(dict(call.args)), "result": exact(call.result)}
    )


def _call_card(call: Call) -> dict[str, object]:
    facts: dict[str, object] = {
        "state": call.state,
        "reason": call.reason,
        "run": call.run_id,
        "kind": call.kind,
        "version": call.version,
        "digest": call.digest,
        "key": call.key,
        "generation": call.generation if call.generation > 1 else None,
        "attempts": call.attempt,
        "result": None if call.result is None else Shown(visible_value(call.result)),
        "lost": call.loss,
        "error": call.error,
        "why": call.why,
        "again": call.again,
        "violation": call.violation,
        "requested": iso_time(call.requested_at),
        "started": iso_time(call.started_at),
        "settled": iso_time(call.settled_at),
        "took": None if call.seconds is None else duration(call.seconds),
        "replayed": f"{call.replays} times" if call.replays else None,
        "agent": call.agent,
        "principal": call.principal,
        "tool call id": call.tool_call_id,
    }
    if call.compensation is not None:
        error = call.compensation.error
        words = f", {visible(error, prose=True)}" if error else ""
        facts["compensation"] = Shown(f"{call.compensation.attempts} attempts{words}")
    return facts


def say_call(call: Call) -> None:
    """Show a whole call on stderr, before a question about it; raise ``LedgerSealed`` if it cannot be read here."""
    check_readable(call)
    say(f"{visible(call.tool)} ({visible(call.id)}) of run {visible(call.run_id)}, {call.state.replace('_', ' ')}")
    for line in args_lines(call.args, call.classes):
        say(line)
    if call.result is not None:
        say(f"   result: {visible_value(call.result)}")
    undone = call.compensation.error if call.compensation is not None else None
    for name, text in (("why", call.why), ("error", call.error), ("compensation", undone)):
        if text:
            say(f"   {name}: {visible(text, prose=True)}")


def json_or_text(text: str) -> Any:
    """Return the value that an option gives as JSON, or else as plain text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# ---- rollback


@verbs.command()
def rollback(
    run_id: RunId,
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would be done, and in which order.")] = False,
    apply: Annotated[
        str | None,
        typer.Option("--apply", metavar="HASH", help="Do exactly this plan; refused if the run has changed since."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept", metavar="CALL", help="Of a committed run: a call that has no compensation and stays. Repeat it."
        ),
    ] = None,
    why: Annotated[
        str | None, typer.Option("--why", help="The reason; it is recorded with the run. Not needed with --plan.")
    ] = None,
    by: By = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Do not ask: do the plan as it is now. Without a terminal, this or --apply is required."
        ),
    ] = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Roll a run back: show the plan, ask, then do exactly that."""
    if plan and apply is not None:
        raise UsageError("--plan only shows the plan, and --apply does it: use one of them")
    # The hash protects who looked at a plan before: it is their confirmation. Who says --yes has looked at none, so the
    # plan of this moment is theirs. Either way the run may not change between the plan and its beginning.
    if not (plan or apply or yes or has_person()):
        raise UsageError(
            "a rollback cannot be undone, and there is no terminal to ask at",
            hint="--plan shows what would be done; then --apply HASH does exactly that plan, or --yes does what is "
            "planned at that moment",
        )
    if not plan and not why:
        raise UsageError("a rollback needs a reason", hint="for example: --why 'the customer cancelled'")
    with open_runtime(app, url=url, tenant=tenant) as rt:
        run = find_run(rt, run_id)
        tags = rt.info(run).tags
        does = (None if app else undoing(tags, url=url, tenant=tenant)) or rt
        planned = does.plan_rollback(run)
        if plan:
            is_gateway = bool(gateway_names(tags))
            code = _put_plan(planned, as_json, Given(app, url, tenant), with_calls=is_gateway)
            if does is rt:
                _tell_who_has_the_tools(rt, planned, tags)
            return code
        chosen = planned.hash if apply is None else _whole_hash(apply, planned)
        # A plan that is stale or refused is not shown, and there is no question: rt.rollback raises the error.
        is_possible = planned.hash == chosen and planned.refused is None
        if is_possible and (apply is None or (not yes and has_person())):
            put_plain(_plan_text(planned, with_calls=bool(gateway_names(tags))), stream=sys.stderr)
        if is_possible and not yes and has_person():
            stays = len(planned.must_accept)
            words = (
                f", and accept that {stays} call{'s stay' if stays > 1 else ' stays'}" if stays and not accept else ""
            )
            if not confirm(f"Roll run {visible(run)} back{words}?"):
                return FAILED
            accept = accept or [call.id for call in planned.must_accept]
        # Without the tools there is no plan to bind to: the rollback is recorded, and a process that has them does it.
        is_left = does is rt and apply is None and planned.state != "committed" and bool(planned.unloaded)
        bound: dict[str, Any] = {} if is_left else {"plan": chosen, "accept": accept or ()}
        try:
            with progress(f"rolling run {visible(run)} back"):
                report = does.rollback(run, by=who(by, rt), why=why or "", **bound)
        except StalePlan as error:
            error.hint = f"look at the new plan: amends rollback {visible(run)} --plan{Given(app, url, tenant)}"
            raise
    return _put_rolled_back(report, as_json, Given(app, url, tenant))


def _plan_text(plan: RollbackPlan, *, with_calls: bool = False) -> str:
    """Return the plan with commands in its questions about doubts.

    ``with_calls``: a compensation is shown with the call that it undoes. What the gateway asks of a server is made of the
    arguments of that call, which the compensation itself does not show.
    """
    lines = str(plan).split("\n")
    for number, one in enumerate(plan.compensations, 1) if with_calls else ():
        at = next(i for i, line in enumerate(lines) if line.startswith(f"   {number}. "))
        lines.insert(at + 1, f"      undoes {visible_call(one.call.tool, one.call.args)}")
    return "\n".join(in_commands(line) if line.strip().startswith("? ask ") else line for line in lines)


def _tell_who_has_the_tools(rt: Runtime, plan: RollbackPlan, tags: Sequence[str]) -> None:
    """Say where the tools of a run are, if this process does not have them: here every call seems to stay."""
    names = gateway_names(tags)
    if names and any(rt.kind_of(tool) is None for tool in _to_compensate(plan.cannot)):
        say(
            f"the gateway {visible(names[0])} made this run, and its tools are not loaded here; plan it with the settings of "
            "that gateway: amends --config FILE rollback ..."
        )
    elif not names:
        say_unloaded(rt, _to_compensate(plan.cannot), f"amends rollback {visible(plan.run_id)} --plan")


def _whole_hash(begins: str, plan: RollbackPlan) -> str:
    """Return the hash of the plan that was named by its first characters, or what was said, which is another one."""
    if len(begins) < HASH_CHARS_MIN or set(begins) - set("0123456789abcdef"):
        raise UsageError(
            f"--apply takes the hash that --plan printed, or at least its first {HASH_CHARS_MIN} characters, not {visible(begins)}",
            hint=f"amends rollback {visible(plan.run_id)} --plan",
        )
    return plan.hash if plan.hash.startswith(begins) else begins


def _put_plan(plan: RollbackPlan, as_json: bool, given: Given, *, with_calls: bool) -> int:
    """Show the plan, and the command that does exactly this, with the options that were given."""
    if plan.state == "committed" and plan.refused is None:
        say(f"run {visible(plan.run_id)} has committed; a person can still take it back, by exactly this plan")
    if as_json:
        put_json(worded(plan.to_dict()), id=plan.hash)
    else:
        put_plain(_plan_text(plan, with_calls=with_calls))
    accepted = [f"--accept {visible(call.id)}" for call in plan.must_accept]
    words = [f"amends rollback {visible(plan.run_id)} --apply {plan.hash}", *accepted, "--why ..."]
    does = " ".join(words) + str(given)
    if plan.must_accept and not plan.unloaded:
        say(f"to do exactly this: {does}")
    if plan.refused is not None or plan.cannot:
        return NOT_ALL_TAKEN_BACK
    if plan.doubts:
        return IN_DOUBT
    say(f"to do exactly this: {does}")
    return DONE


def _put_rolled_back(report: Report, as_json: bool, given: Given) -> int:
    if as_json:
        put_json(worded(report.to_dict()), id=report.run_id)
    else:
        put_report(report)
    if report.state == "rolled_back":
        return DONE
    if report.skipped:
        say(f"recorded; {_who_goes_on(report.run.tags, 'rolls it back', given)}")
        for call in report.doubts[:NAMED_MAX]:
            answer = f"amends doubts resolve {visible(call.id)} happened|absent|unknown --why ...{given}"
            say(f"{visible(call.tool)} may have happened; unless its probe settles that, answer it first: {answer}")
        if len(report.doubts) > NAMED_MAX:
            say(f"and {len(report.doubts) - NAMED_MAX:,} more: amends doubts list{given} lists them all")
        return DONE
    if report.doubts:
        return IN_DOUBT
    if report.residue:
        return NOT_ALL_TAKEN_BACK
    if report.state == "blocked":
        return NEEDS_A_PERSON
    say("recorded; its owner rolls it back when its calls have settled: amends runs watch shows it")
    return DONE


# ---- worker and recover


@verbs.command()
def worker(
    place: Place = None,
    once: Annotated[bool, typer.Option("--once", help="Check once, then exit.")] = False,
    every: Annotated[
        float,
        typer.Option("--every", help="Seconds between two checks; they grow up to 5 while there is nothing to do."),
    ] = 1.0,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=CONCURRENCY_MAX, help="How many runs to recover at once.")
    ] = 1,
    drain: Annotated[
        float,
        typer.Option(
            "--drain", min=0.0, help="Seconds that runs have to end after SIGTERM; then others take them over."
        ),
    ] = DRAIN_S,
    listen: Annotated[
        str,
        typer.Option("--listen", help="Answer /health, /ready and /metrics at this PORT (of 127.0.0.1) or HOST:PORT."),
    ] = "",
    app: App = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Recover the runs that other processes left unfinished, until SIGTERM or Ctrl-C."""
    named, folder = required_app(place, app)
    rt = load_runtime(named, folder=folder, url=url)
    if as_json:
        logging.basicConfig(handlers=[_JsonLines()])
    else:
        lines = logging.StreamHandler(sys.stderr)
        lines.setFormatter(_InCommands("%(asctime)s %(levelname)s %(message)s"))
        logging.basicConfig(handlers=[lines])
    log = visible_log("amends.worker")
    if log.level == logging.NOTSET:  # its own level only: at INFO the libraries of the program would log each request
        log.setLevel(logging.INFO)
    if once:
        if listen:
            raise UsageError("--listen is for a worker that goes on: with --once there is nothing to ask it")
        return _code_of_all(*work_once(rt, concurrency=concurrency))
    work(rt, every=every, concurrency=concurrency, drain=drain, listen=listen)
    say("worker stopped")
    return DONE


@verbs.command()
def recover(
    place: Place = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Recover at most this many runs.")] = LIMIT,
    app: App = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Recover the runs that other processes left unfinished, once, and show each. For cron."""
    named, folder = required_app(place, app)
    rt = load_runtime(named, folder=folder, url=url)
    log = visible_log("amends.worker")
    level = log.level
    log.setLevel(logging.ERROR)  # the reports say the same
    try:
        with progress("looking for runs to recover"):
            reports, blocked = work_once(rt, limit=limit)
    finally:
        log.setLevel(level)
    for number, report in enumerate(reports):
        if as_json:
            put_json(worded(report.to_dict()), id=report.run_id)
            continue
        if number:
            put()
        put_report(report)
    if not reports:
        say(f"nothing to recover in {visible(str(rt.settings['url'].value), prose=True)}")
    return _code_of_all(reports, blocked)


BLOCKED_SHOWN_MAX: Final = 5


class _InCommands(logging.Formatter):
    """Says in commands what the records of a worker say in Python."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name of logging)
        return in_commands(super().formatMessage(record))


class _JsonLines(logging.Handler):
    """Print log records as lines of JSON on stdout."""

    def emit(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {name: value for name, value in vars(record).items() if name not in PLAIN_RECORD}
        said = {"at": at, "level": record.levelname.lower(), "message": in_commands(record.getMessage())}
        put_json(facts | said, id=facts.get("run"))


def _code_of_all(reports: list[Report], blocked: list[str]) -> int:
    """Return the exit code: 3 while any run needs a person, also one that was blocked before and is not looked at again."""
    told = {report.run_id for report in reports if report.state == "blocked"}
    others = [id for id in blocked if id not in told]
    if others:
        what = "a run is blocked and needs" if len(others) == 1 else f"{len(others)} runs are blocked and need"
        more = ", …" if len(others) > BLOCKED_SHOWN_MAX else ""
        say(f"{what} a person: {', '.join(map(visible, others[:BLOCKED_SHOWN_MAX]))}{more}")
    return NEEDS_A_PERSON if told or others else DONE


# ---- Events


def event_facts(event: Event) -> dict[str, Any]:
    """Return an event for JSON."""
    return {
        "id": event.place,
        "seq": event.seq,
        "place": event.place,
        "at": event.at.isoformat(),
        "run": event.run_id,
        "call": event.call_id,
        "what": event.what,
        "from": event.frm,
        "to": event.to,
        "by": event.by,
        "facts": dict(event.facts),
    }


def event_line(event: Event, tool: str | None, *, with_run: bool = False) -> str:
    """Return an event as one line for a person, in local time; ``tool`` is the tool of its call, if it has one."""
    moved = f"{event.frm} → {event.to}" if event.frm and event.frm != "(new)" else event.to
    about = visible(tool) if tool else "run"
    what = about if event.what in ("call", "run") else f"{about}: {visible(event.what)}"
    by = f"   by {_actor(event.by)}" if event.by else ""
    why = event.facts.get("why") or event.facts.get("error") or ""
    run = f"{visible(event.run_id)}  " if with_run else ""
    line = f"{event.at.astimezone():%H:%M:%S}  {run}{what}  {moved.replace('_', ' ')}"
    return f"{line}{by}{f'   {visible(str(why), prose=True)}' if why else ''}".rstrip()


def _actor(by: str) -> str:
    """Return who did it: a person by name, a process by its number and host instead of its whole identity."""
    parts = by.split("|")
    return visible(by) if len(parts) < OWNER_PARTS else f"process {visible(parts[3])} on {visible(parts[0])}"


def _watch_run(rt: Runtime, run: str, every: float, as_json: bool) -> int:
    lines = _EventLines(rt, as_json, with_run=False)
    if not as_json:
        put(f"run {visible(run)}", style=BOLD)
    while True:
        report = rt.report(run)  # before the events, so that they include the one that ended the run
        lines.put(rt.events(run, after=lines.last))  # in one run, numbers are in the order of commits
        code = code_of_run(report)
        if report.state in ENDED or (code == AWAITING_APPROVAL and report.run.owner is None):
            break
        time.sleep(every)
    if not as_json:
        waits = ", waits for a person" if code == AWAITING_APPROVAL else ""
        put(f"= {report.state.replace('_', ' ')}{waits}", style=STYLES.get(report.state, ""))
    for cause in report.run.causes:
        say(f"→ {visible(in_commands(cause), prose=True)}")
    return code


class _EventLines:
    """Prints events as lines; the event of a call is printed with the name of its tool."""

    def __init__(self, rt: Runtime, as_json: bool, *, with_run: bool) -> None:
        self._rt, self._as_json, self._with_run = rt, as_json, with_run
        self._tools: dict[str, str] = {}
        self.last = 0
        """The number of the event that was printed last, in its run."""

    def put(self, events: Iterator[Event]) -> None:
        """Print these events."""
        for event in events:
            self.last = event.seq
            tool = self._tool(event.call_id) if event.call_id else None
            if self._as_json:
                put_json(event_facts(event) | {"tool": tool}, id=event.place)
            else:
                put(event_line(event, tool, with_run=self._with_run), style=STYLES.get(event.to, ""))

    def _tool(self, call_id: str) -> str:
        if call_id not in self._tools:
            if len(self._tools) >= KNOWN_TOOLS_MAX:
                self._tools.clear()
            try:
                self._tools[call_id] = self._rt.call(call_id).tool
            except UsageError:
                self._tools[call_id] = call_id
        return self._tools[call_id]
