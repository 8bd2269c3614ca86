"""Verbs by which people decide: approvals, doubts, budgets, and what runs have to themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from amends.cli.options import (
    LIMIT,
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
    Yes,
    group,
    said,
)

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
    from amends.cli.approving import list_approvals

    list_approvals(said(filter), limit=limit, url=url, tenant=tenant, as_json=as_json)


@approvals.command("show")
def approvals_show(approval_id: ApprovalId, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """Show exactly what would be approved, and what is new since the last time."""
    from amends.cli.approving import show_approval

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
    yes: Yes = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say yes to exactly what is shown; it starts that one call, once, before it expires."""
    from amends.cli.approving import approve

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
    from amends.cli.approving import reject

    return reject(approval_id, by=by, reason=reason, app=app, url=url, tenant=tenant, as_json=as_json)


@approvals.command("withdraw")
def approvals_withdraw(
    approval_id: ApprovalId, why: Why, by: By = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> int:
    """Take a request back: nobody need decide it, and the call may be asked for anew."""
    from amends.cli.approving import withdraw

    return withdraw(approval_id, by=by, why=why, url=url, tenant=tenant, as_json=as_json)


@approvals.command("again")
def approvals_again(
    approval_id: ApprovalId, why: Why, by: By = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> int:
    """Ask anew for a call whose request has expired."""
    from amends.cli.approving import again

    return again(approval_id, by=by, why=why, url=url, tenant=tenant, as_json=as_json)


@doubts.command("list")
def doubts_list(
    filter: Filter = None, limit: Limit = LIMIT, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """List every call that may or may not have happened."""
    from amends.cli.doubting import list_doubts

    list_doubts(said(filter), limit=limit, url=url, tenant=tenant, as_json=as_json)


@doubts.command("show")
def doubts_show(
    call_id: CallId, app: App = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """Show one doubt: what was sent, when it was lost, what was learned since, and what each answer would bring."""
    from amends.cli.doubting import show_doubt

    show_doubt(call_id, app=app, url=url, tenant=tenant, as_json=as_json)


@doubts.command("probe")
def doubts_probe(
    call_id: CallId, app: App = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> int:
    """Ask the world about a call now, through its tool's probe; decides nothing."""
    from amends.cli.deciding import probe

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
    yes: Yes = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say what became of a call, and let its run go on accordingly."""
    from amends.cli.deciding import resolve

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
    from amends.cli.spending import show_budgets

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
    from amends.cli.spending import show_costs

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
    from amends.cli.comparing import reconcile

    return reconcile(tool, limit=limit, app=app, url=url, tenant=tenant, as_json=as_json)


def locks(limit: Limit = LIMIT, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """List what runs have to themselves until they have ended, and who waits for it."""
    from amends.cli.reading import list_locks

    list_locks(limit=limit, url=url, tenant=tenant, as_json=as_json)
