"""Arguments and options that several verbs share, and how a group of verbs is made."""

from __future__ import annotations

from typing import Annotated, Final

import typer

LIMIT: Final = 100

App = Annotated[
    str | None,
    typer.Option("--app", metavar="APP:RT", help="Your runtime, for its tools; else AMENDS_APP or the files."),
]
Place = Annotated[
    str | None,
    typer.Argument(metavar="[APP:RT]", help="The runtime: MODULE:NAME or FILE.py:NAME; else AMENDS_APP or the files."),
]
Url = Annotated[
    str | None, typer.Option("--url", help="The ledger; else AMENDS_URL, amends.toml, pyproject.toml, ./amends.db.")
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Whose runs; else AMENDS_TENANT or the files.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table; a listing is one object per line.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many.")]
Filter = Annotated[
    list[str] | None, typer.Argument(metavar="[FILTER]...", help="Like: status:blocked,open run:order-* age:<1d")
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or the beginning of it.")]
CallId = Annotated[str, typer.Argument(metavar="CALL", help="The call's id, or the beginning of it.")]
ApprovalId = Annotated[
    str, typer.Argument(metavar="APPROVAL", help="The request's id, the beginning of it, or the run that waits.")
]
By = Annotated[str | None, typer.Option("--by", help="Who says so; else AMENDS_BY, the files, or your login name.")]
Why = Annotated[str, typer.Option("--why", help="Why: it is kept with the decision.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; must be said where nobody is at a terminal.")]


def group(words: str) -> typer.Typer:
    """A noun with verbs below it."""
    # rich_markup_mode=None: help is plain text, and rich (80 ms) is not loaded for it.
    return typer.Typer(help=words, rich_markup_mode=None, no_args_is_help=False)


def said(words: list[str] | None) -> str:
    """A filter that came as one argument or as several."""
    return " ".join(words or ())
