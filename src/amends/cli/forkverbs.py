"""Verbs that try a run another way and look at both. Each is thin: it asks the runtime and shows the answer."""

from __future__ import annotations

from typing import Annotated

import typer

from amends.cli.options import App, Json, RunId, Tenant, Url


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    for verb in (fork, compare):
        app.command()(verb)


def fork(
    run_id: RunId,
    at: Annotated[
        str, typer.Option("--at", metavar="CALL", help="The last call that the fork shares; its id begins so.")
    ],
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="The fork's id; else one is made.")] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", help="For whom; must be whose run it is, if that is known.")
    ] = None,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Make a run that has what RUN did up to CALL as already done, and goes live after it."""
    from amends.cli.forking import fork

    return fork(run_id, at=at, id=id, principal=principal, app=app, url=url, tenant=tenant, as_json=as_json)


def compare(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A run's id, or the beginning of it.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Another run's id, or the beginning of it.")],
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Show two runs call by call: the first that differs, and in what; exit code 18 when they are not alike."""
    from amends.cli.forking import compare

    return compare(left, right, app=app, url=url, tenant=tenant, as_json=as_json)
