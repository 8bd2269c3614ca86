"""Verbs by which people decide: approvals, doubts, budgets, and what runs have to themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from amends import Absent, Approval, BudgetState, Call, CostLine, Doubt, Happened, Report, Runtime, Unknown, Yes
from amends.cli.access import approval_named, call_named, filter_text, first, reading, run_named, who, working
from amends.cli.options import (
    BUDGET_REFUSED,
    DONE,
    FAILED,
    IN_DOUBT,
    LIMIT,
    NEEDS_A_PERSON,
    App,
    ApprovalId,
    By,
    CallId,
    Filter,
    Json,
    Limit,
    Tenant,
    Url,
    Why,
    YesOption,
    group,
    said,
)
from amends.cli.runs import (
    age_of,
    args_lines,
    lasted,
    must_be_shown,
    nothing,
    put_report,
    say_how_many,
    shown_args,
    time_of,
)
from amends.cli.show import (
    BOLD,
    STYLES,
    Shown,
    agrees,
    has_person,
    must_ask,
    progress,
    put,
    put_facts,
    put_json,
    put_plain,
    put_table,
    say,
)
from amends.errors import UsageError
from amends.visible import visible, visible_value

approvals = group("Calls that wait for a person's yes: look, approve exactly what is shown, or say no.")
rules = group("Which calls a person must allow: try the rules on a call.")
doubts = group("Calls of which nobody can say whether they happened: look, ask the world, decide.")


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    app.add_typer(approvals, name="approvals")
    app.add_typer(doubts, name="doubts")
    app.add_typer(rules, name="rules")
    for verb in (budget, cost, reconcile, locks):
        app.command()(verb)


@rules.command("test")
def rules_test(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="A JSON object, or words like cents=5; as a model would send them."),
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Who asks; else AMENDS_AGENT or the files.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="When, like 2026-03-06T19:30Z; else now.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 12 where it would wait for a person, 19 where it is refused.")
    ] = False,
    app: App = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say which rule decides about a call, and why; nothing is started or recorded."""
    from amends.cli.ruling import test_rules

    return test_rules(tool, args or (), agent=agent, at=at, check=check, app=app, tenant=tenant, as_json=as_json)


@approvals.command("list")
def approvals_list(
    filter: Filter = None, limit: Limit = LIMIT, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """List what waits for a person's yes, newest first; with status: in the filter, others too."""
    list_approvals(said(filter), limit=limit, url=url, tenant=tenant, as_json=as_json)


@approvals.command("show")
def approvals_show(approval_id: ApprovalId, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """Show exactly what would be approved, and what is new since the last time."""
    show_approval(approval_id, url=url, tenant=tenant, as_json=as_json)


@approvals.command("approve")
def approvals_approve(
    approval_id: ApprovalId,
    digest: Annotated[
        str | None, typer.Option("--digest", help="Of what was shown; must be said where nobody is at a terminal.")
    ] = None,
    why: Annotated[str, typer.Option("--why", help="Why: it is kept with the decision.")] = "",
    by: By = None,
    behalf: Annotated[str | None, typer.Option("--behalf", help="For whom, who delegated it to you.")] = None,
    bypass: Annotated[
        bool, typer.Option("--bypass", help="Over roles and numbers, on the record; needs --why.")
    ] = False,
    yes: YesOption = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say yes to exactly what is shown; it starts that one call, once, before it expires."""
    return approve(
        approval_id, digest=digest, by=by, why=why, behalf=behalf, bypass=bypass, yes=yes, app=app, url=url,
        tenant=tenant, as_json=as_json,
    )  # fmt: skip


@approvals.command("reject")
def approvals_reject(
    approval_id: ApprovalId,
    reason: Annotated[str, typer.Option("--reason", help="Why not: it reaches the model.")],
    by: By = None,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say no; the reason reaches the model."""
    return reject(approval_id, by=by, reason=reason, app=app, url=url, tenant=tenant, as_json=as_json)


@approvals.command("withdraw")
def approvals_withdraw(
    approval_id: ApprovalId, why: Why, by: By = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> int:
    """Take a request back: nobody need decide it, and the call may be asked for anew."""
    return withdraw(approval_id, by=by, why=why, url=url, tenant=tenant, as_json=as_json)


@approvals.command("again")
def approvals_again(
    approval_id: ApprovalId, why: Why, by: By = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> int:
    """Ask anew for a call whose request has expired."""
    return again(approval_id, by=by, why=why, url=url, tenant=tenant, as_json=as_json)


@doubts.command("list")
def doubts_list(
    filter: Filter = None, limit: Limit = LIMIT, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """List every call that may or may not have happened."""
    list_doubts(said(filter), limit=limit, url=url, tenant=tenant, as_json=as_json)


@doubts.command("show")
def doubts_show(
    call_id: CallId, app: App = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """Show one doubt: what was sent, when it was lost, what was learned since, and what each answer would bring."""
    show_doubt(call_id, app=app, url=url, tenant=tenant, as_json=as_json)


@doubts.command("probe")
def doubts_probe(
    call_id: CallId, app: App = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> int:
    """Ask the world about a call now, through its tool's probe; decides nothing."""
    return probe(call_id, app=app, url=url, tenant=tenant, as_json=as_json)


@doubts.command("resolve")
def doubts_resolve(
    call_id: CallId,
    answer: Annotated[str, typer.Argument(metavar="happened|absent|unknown", help="What you know of it.")],
    why: Why,
    result: Annotated[
        str | None, typer.Option("--result", help="What it gave back, as JSON or plain text; with happened only.")
    ] = None,
    by: By = None,
    yes: YesOption = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say what became of a call, and let its run go on accordingly."""
    return resolve(
        call_id, answer, result=result, by=by, why=why, yes=yes, app=app, url=url, tenant=tenant, as_json=as_json
    )


def budget(
    filter: Annotated[
        list[str] | None, typer.Argument(metavar="[FILTER]...", help="Like: unit:usd per:agent who:clerk")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit code 13 when nothing is left of one of them.")] = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Show what of each budget is spent, reserved and left."""
    return show_budgets(said(filter), check=check, app=app, url=url, tenant=tenant, as_json=as_json)


def cost(
    filter: Filter = None,
    by: Annotated[str, typer.Option("--by", metavar="run|tool|agent|day", help="What to add up by.")] = "run",
    limit: Limit = LIMIT,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Add up what calls have cost, by run, tool, agent or day."""
    return show_costs(said(filter), by=by, limit=limit, url=url, tenant=tenant, as_json=as_json)


def reconcile(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Ask a probe about so many calls at most.")] = 10_000,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Compare the ledger with the world, for one tool: what only one of them has. Changes nothing."""
    return show_reconciliation(tool, limit=limit, app=app, url=url, tenant=tenant, as_json=as_json)


def locks(limit: Limit = LIMIT, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """List what runs have to themselves until they have ended, and who waits for it."""
    from amends.cli.runs import list_locks

    list_locks(limit=limit, url=url, tenant=tenant, as_json=as_json)


# ---- ``amends approvals``: what waits for a person's yes, shown exactly, and decided on exactly that


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
        put_table(head, [_approval_row(approval) for approval in found], state=3)
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
    return _put_approval(approval, as_json)


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
    return _put_approval(approval, as_json)


def withdraw(approval_id: str, *, by: str | None, why: str, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends approvals withdraw``."""
    with reading(url, tenant) as rt:
        approval = rt.withdraw(approval_named(rt, approval_id), by=who(by, rt), why=why)
    return _put_approval(approval, as_json)


def again(approval_id: str, *, by: str | None, why: str, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends approvals again``."""
    with reading(url, tenant) as rt:
        approval = rt.ask_again(approval_named(rt, approval_id), by=who(by, rt), why=why)
    return _put_approval(approval, as_json)


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


def _approval_row(approval: Approval) -> tuple[str, ...]:
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


def _put_approval(approval: Approval, as_json: bool) -> int:
    if as_json:
        put_json(approval_facts(approval))
        return DONE
    more = approval.needed - len(approval.given)
    waits = f", {more} more needed" if approval.state == "pending" and approval.given else ""
    put(f"{visible(approval.id)}  {approval.state}{waits}", style=STYLES.get(approval.state, ""))
    if approval.state == "approved":
        say(f"run {visible(approval.call.run_id)} can go on: open it again, or a worker does where it may")
    return DONE


# ---- A person's word on what amends cannot decide: said, shown beforehand, confirmed where it cannot be u


ANSWERS: Final = ("happened", "absent", "unknown")
DECISIONS: Final = ("run", "replay", "refuse")


def probe(call_id: str, *, app: str | None, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends doubts probe``."""
    with working(app, url=url, tenant=tenant, needed="a probe") as rt:
        call = rt.call(call_named(rt, call_id))
        with progress(f"asking about {visible(call.tool)}"):
            answer = rt.probe(call.id)
    facts: dict[str, Any] = {"call": call.id, "tool": call.tool, "answer": type(answer).__name__.lower()}
    facts |= {"result": answer.result} if isinstance(answer, Happened) else {}
    facts |= {"why": answer.why} if isinstance(answer, Unknown) else {}
    if as_json:
        put_json(facts)
    else:
        more = facts.get("result", facts.get("why"))
        said = f": {visible_value(more, bare=True)}" if more not in (None, "") else ""
        put(f"{visible(call.tool)} ({visible(call.id)}): {facts['answer']}{said}")
        if not isinstance(answer, Unknown):
            say(
                f"it is still as it was; to decide: amends doubts resolve {visible(call.id)} {facts['answer']} --why ..."
            )
    return IN_DOUBT if isinstance(answer, Unknown) else DONE


def resolve(
    call_id: str,
    answer: str,
    *,
    result: str | None,
    by: str | None,
    why: str,
    yes: bool,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends doubts resolve``."""
    said, asks = _answer(answer, result), must_ask(yes, "a person's word on a doubt")
    with working(app, url=url, tenant=tenant) as rt:
        call, person = rt.call(call_named(rt, call_id)), who(by, rt)
        if asks:
            _tell(call)
            if result is not None and isinstance(said, Happened):
                say(f"   its result is then {visible_value(said.result)}")
            say(f"   then: {getattr(rt.preview(call.id), answer)}")
            if not agrees(f"{visible(person)} says that it {_spoken(answer)}. Sure?"):
                return FAILED
        with progress(f"run {visible(call.run_id)} goes on"):
            report = rt.resolve(call.id, said, by=person, why=why)
    return _put_decision(report, as_json)


def retry(
    call_id: str,
    *,
    result: str | None,
    by: str | None,
    why: str,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends call retry``."""
    with working(app, url=url, tenant=tenant) as rt:
        call = call_named(rt, call_id)
        given = {} if result is None else {"result": _value(result)}
        with progress("trying again"):
            report = rt.retry(call, by=who(by, rt), why=why, **given)
    return _put_decision(report, as_json)


def accept(
    call_id: str,
    *,
    by: str | None,
    why: str,
    yes: bool,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends call accept``."""
    asks = must_ask(yes, "accepting what stands")
    with working(app, url=url, tenant=tenant) as rt:
        call, person = rt.call(call_named(rt, call_id)), who(by, rt)
        if asks:
            _tell(call)
            if not agrees(f"{visible(person)} says that it stays. Sure?"):
                return FAILED
        with progress(f"run {visible(call.run_id)} goes on"):
            report = rt.accept(call.id, by=person, why=why)
    return _put_decision(report, as_json)


def decide(
    call_id: str,
    decision: str,
    *,
    by: str | None,
    why: str,
    yes: bool,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends call decide``."""
    if decision not in DECISIONS:
        raise UsageError(f"{visible(decision)} is no decision", hint=f"say one of {', '.join(DECISIONS)}")
    with reading(url, tenant) as rt:
        call, person = rt.call(call_named(rt, call_id)), who(by, rt)
        if not yes and has_person() and call.state == "held":
            _tell(call)
            # The other two start nothing: that they were typed is enough.
            if decision == "run" and not agrees(f"{visible(person)} lets exactly this run. Sure?"):
                return FAILED
        report = rt.decide(call.id, decision, by=person, why=why)  # type: ignore[arg-type]
    return _put_decision(report, as_json)


def abandon(
    run_id: str, *, by: str | None, why: str, yes: bool, url: str | None, tenant: str | None, as_json: bool
) -> int:
    """See ``amends runs abandon``."""
    asks = must_ask(yes, "abandoning a run")
    with reading(url, tenant) as rt:
        run, person = run_named(rt, run_id), who(by, rt)
        if asks and not _agreed(rt, run, f"{visible(person)} leaves what stands and closes run {visible(run)}. Sure?"):
            return FAILED
        report = rt.abandon(run, by=person, why=why)
    _put_decision(report, as_json)
    return DONE


def finish(
    run_id: str, *, by: str | None, why: str, yes: bool, url: str | None, tenant: str | None, as_json: bool
) -> int:
    """See ``amends runs finish``."""
    asks = must_ask(yes, "closing a run")
    with reading(url, tenant) as rt:
        run, person = run_named(rt, run_id), who(by, rt)
        if asks and not _agreed(rt, run, f"{visible(person)} says that run {visible(run)} is done. Sure?"):
            return FAILED
        report = rt.finish(run, by=person, why=why)
    return _put_decision(report, as_json)


def _answer(answer: str, result: str | None) -> Happened[Any] | Absent | Unknown:
    if answer not in ANSWERS:
        raise UsageError(f"{visible(answer)} is no answer", hint=f"say one of {', '.join(ANSWERS)}")
    if result is not None and answer != "happened":
        raise UsageError(f"--result says what a call gave back, and {answer} says that nothing is known of it")
    match answer:
        case "happened":
            return Happened() if result is None else Happened(_value(result))
        case "absent":
            return Absent()
        case _:
            return Unknown("a person said so")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _spoken(answer: str) -> str:
    return {"happened": "happened", "absent": "did not happen"}.get(answer, "cannot be known, and stays as residue")


def _tell(call: Call) -> None:
    """Show the call whole: nobody decides over something that is cut, or that cannot be read here."""
    must_be_shown(call)
    say(f"{visible(call.tool)} ({visible(call.id)}) of run {visible(call.run_id)}, {call.state.replace('_', ' ')}")
    for line in args_lines(call.args, call.classes):
        say(line)
    if call.result is not None:
        say(f"   result: {visible_value(call.result)}")
    for name, text in (("why", call.why), ("error", call.error)):
        if text:
            say(f"   {name}: {visible(text, prose=True)}")


def _agreed(rt: Runtime, run: str, question: str) -> bool:
    report = rt.report(run)
    say(f"run {visible(run)} is {report.state.replace('_', ' ')}")
    for left in report.residue:
        must_be_shown(left.call)
        say(f"   left standing: {visible(left.call.tool)} ({visible(left.call.id)}): {visible(left.why, prose=True)}")
        for line in args_lines(left.call.args, left.call.classes):
            say(f"   {line}")
    for cause in report.run.causes:
        say(f"   cause: {visible(cause, prose=True)}")
    return agrees(question)


def _put_decision(report: Report, as_json: bool) -> int:
    if as_json:
        put_json(report.to_dict())
    else:
        put_report(report)
    if report.skipped:
        say("recorded; a worker that has the tools goes on with the run: amends worker APP:RT")
    if report.doubts:
        return IN_DOUBT
    return NEEDS_A_PERSON if report.state == "blocked" else DONE


# ---- ``amends doubts list`` and ``show``: what is known of a call that nobody can speak for


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
        put_table(("call", "run", "tool", "sent", "what"), [_doubt_row(doubt) for doubt in found])
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


def _doubt_row(doubt: Doubt) -> tuple[str, ...]:
    names = (visible(doubt.id), visible(doubt.run_id), visible(doubt.tool))
    return (*names, f"{age_of(doubt.sent_at)} ago", shown_args(doubt.sent))


# ---- ``amends budget`` and ``amends cost``: what may still be spent, and what was


BY = ("run", "tool", "agent", "day")


def show_budgets(
    filter: str, *, check: bool, app: str | None, url: str | None, tenant: str | None, as_json: bool
) -> int:
    """See ``amends budget``."""
    with working(app, url=url, tenant=tenant) as rt:
        found = rt.budgets(filter)
        ledger = rt.settings["url"].value
    if as_json:
        for state in found:
            put_json(state.to_dict())
    else:
        head = ("budget", "of", "period", "spent", "reserved", "left", "then")
        put_table(head, [_budget_row(state) for state in found])
    if not found:
        say(nothing("budget", filter, ledger))
    return BUDGET_REFUSED if check and any(state.left <= 0 for state in found) else DONE


def show_costs(filter: str, *, by: str, limit: int, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends cost``."""
    if by not in BY:
        raise UsageError(f"costs are not told by {visible(by)}", hint=f"say one of {', '.join(BY)}")
    with reading(url, tenant) as rt:
        lines = rt.costs(by, filter)  # type: ignore[arg-type]
        ledger = rt.settings["url"].value
    found = lines[:limit]
    if as_json:
        for line in found:
            put_json(line.to_dict())
    else:
        put_table((by, "calls", "spent", "reserved", "unit"), [_cost_row(line) for line in found])
    if not found:
        say(nothing("call that cost anything", filter, ledger))
    elif len(lines) > limit:
        say(f"the first {limit} of {len(lines)}; --limit shows more")
    return DONE


def _budget_row(state: BudgetState) -> tuple[str, ...]:
    budget = state.budget
    amounts = (f"{amount:f}" for amount in (state.spent, state.reserved, state.left))
    who = visible(state.who) if state.who else ""
    return (visible(str(budget), prose=True), who, state.period or "", *amounts, budget.then)


def _cost_row(line: CostLine) -> tuple[str, ...]:
    return (
        visible(line.what) if line.what else "(none)",
        str(line.calls),
        f"{line.spent:f}",
        f"{line.reserved:f}",
        visible(line.unit),
    )


# ---- ``amends reconcile``: the ledger beside the world


def show_reconciliation(
    tool: str, *, limit: int, app: str | None, url: str | None, tenant: str | None, as_json: bool
) -> int:
    """See ``amends reconcile``."""
    with (
        working(app, url=url, tenant=tenant, needed="comparing the ledger with the world") as rt,
        progress(f"asking the world about {visible(tool)}"),
    ):
        found = rt.reconcile(tool, limit=limit)
    if as_json:
        put_json(found.to_dict())
    else:
        put_plain(str(found))
    if not found.agrees:
        return NEEDS_A_PERSON
    return IN_DOUBT if found.doubts else DONE
