"""Verbs for whoever has to prove what happened: the record held against itself, its checkpoints, its keys."""

from __future__ import annotations

import typer

from amends.cli import bundleverbs
from amends.cli.options import group

audit = group("Prove what happened, or that somebody has changed the record of it.")


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    bundleverbs.add_to(audit)
    app.add_typer(audit, name="audit")
