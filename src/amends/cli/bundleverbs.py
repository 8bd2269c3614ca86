"""Verbs for handing the record to somebody else; they stand below ``amends audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amends.cli.options import Filter, Json, Tenant, Url, said


def add_to(audit: typer.Typer) -> None:
    """Put these verbs into the group."""
    audit.command("export")(audit_export)
    audit.command("import")(audit_import)
    audit.command("events")(audit_events)


def audit_export(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="The runs' ids, or the beginnings of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The bundle to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Write all that the ledger says of these runs into one file that anybody can check: python FILE."""
    from amends.cli.bundling import export

    return export(runs, out=out, force=force, url=url, tenant=tenant, as_json=as_json)


def audit_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle: amends audit export wrote it.")],
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Load the runs of a bundle into a ledger, as records that nothing works with; exit code 20 if it was changed."""
    from amends.cli.bundling import load

    return load(file, url=url, tenant=tenant, as_json=as_json)


def audit_events(
    filter: Filter = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only the tree of this run.")] = None,
    after: Annotated[int, typer.Option("--after", min=0, metavar="SEQ", help="Only what comes after this place.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    url: Url = None,
    tenant: Tenant = None,
) -> int:
    """Print events as lines of JSON, oldest first; by time, tool, agent, principal, state: at:>=2026-03-01 tool:pay."""
    from amends.cli.bundling import events

    return events(said(filter), run=run, after=after, limit=limit, url=url, tenant=tenant)
