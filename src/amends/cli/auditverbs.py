"""Verbs for whoever has to prove what happened: the record held against itself, its checkpoints, its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amends.cli import bundleverbs
from amends.cli.options import App, Json, Url, group

audit = group("Prove what happened, or that somebody has changed the record of it.")


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    bundleverbs.add_to(audit)
    app.add_typer(audit, name="audit")


@audit.command("verify")
def audit_verify(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Only these runs; else the whole ledger.")
    ] = None,
    anchor: Annotated[
        Path | None, typer.Option("--anchor", metavar="FILE", help="A copy of the anchor that was kept elsewhere.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Who must have signed: ed25519-pub:…, or a file; else AMENDS_AUDIT_KEY."),
    ] = None,
    app: App = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Hold the record against its hashes, its checkpoints and its anchor; exit code 20 where somebody changed it."""
    from amends.cli.auditing import verify

    return verify(runs or [], anchor=anchor, keys=key or [], app=app, url=url, as_json=as_json)


@audit.command("checkpoint")
def audit_checkpoint(app: App = None, url: Url = None, as_json: Json = False) -> int:
    """Put everything that has happened behind a checkpoint, sign it, and write it to the anchor."""
    from amends.cli.auditing import write_checkpoint

    return write_checkpoint(app=app, url=url, as_json=as_json)


@audit.command("keygen")
def audit_keygen(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it there, for its owner's eyes only.")
    ] = None,
    hmac: Annotated[
        bool, typer.Option("--hmac", help="A key of the standard library: who can check with it can sign, too.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Make a key that checkpoints are signed with (AMENDS_AUDIT_KEY), and say what others check them with."""
    from amends.cli.auditing import make_key

    return make_key(out=out, hmac=hmac, as_json=as_json)
