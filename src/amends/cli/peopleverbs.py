"""Verbs by which people decide: doubts, and what runs have to themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from amends.cli.options import LIMIT, App, By, CallId, Filter, Json, Limit, Tenant, Url, Why, Yes, group, said

doubts = group("Calls of which nobody can say whether they happened: look, ask the world, decide.")


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    app.add_typer(doubts, name="doubts")
    app.command()(locks)


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


def locks(limit: Limit = LIMIT, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """List what runs have to themselves until they have ended, and who waits for it."""
    from amends.cli.reading import list_locks

    list_locks(limit=limit, url=url, tenant=tenant, as_json=as_json)
