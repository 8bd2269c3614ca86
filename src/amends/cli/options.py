"""Arguments and options that several verbs share, and how a group of verbs is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import typer

from amends import Report
from amends.errors import Error

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
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; must be said where nobody is at a terminal.")]


def group(words: str) -> typer.Typer:
    """A noun with verbs below it."""
    # rich_markup_mode=None: help is plain text, and rich (80 ms) is not loaded for it.
    return typer.Typer(help=words, rich_markup_mode=None, no_args_is_help=False)


def said(words: list[str] | None) -> str:
    """A filter that came as one argument or as several."""
    return " ".join(words or ())


# ---- What the exit code of a command says, and where each error is explained


DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2
NEEDS_A_PERSON: Final = 3
ROLLED_BACK: Final = 10
IN_DOUBT: Final = 11
AWAITING_APPROVAL: Final = 12
BUDGET_REFUSED: Final = 13
PLAN_STALE: Final = 14
NOT_ALL_TAKEN_BACK: Final = 15
DIGEST_MISMATCH: Final = 16
EXPIRED: Final = 17
DIVERGED: Final = 18
APPROVAL_REFUSED: Final = 19
CHAIN_BROKEN: Final = 20
SCHEMA: Final = 21
INTERRUPTED: Final = 130

OF_ERROR: Final = {
    "rolled_back": ROLLED_BACK,
    "in_doubt": IN_DOUBT,
    "run_blocked": NEEDS_A_PERSON,
    "held": AWAITING_APPROVAL,
    "budget_exceeded": BUDGET_REFUSED,
    "stale_plan": PLAN_STALE,
    "diverged": DIVERGED,
    "ledger_tampered": CHAIN_BROKEN,
    "ledger_too_new": SCHEMA,
}
OF_VOID: Final = {"changed": DIGEST_MISMATCH, "expired": EXPIRED}
"""Of an approval that starts nothing, by its reason."""
PAGE: Final = "docs/reference/errors.md"


def code_of(error: Error) -> int:
    """The exit code of a command that ended with this error."""
    if error.code == "approval_void":
        return OF_VOID.get(str(getattr(error, "why", "")), APPROVAL_REFUSED)
    return OF_ERROR.get(error.code, WRONG)


def docs_of(error: Error) -> str:
    """Where this error is explained."""
    return f"{PAGE}#{type(error).__name__.lower()}"


def code_of_run(report: Report) -> int:
    """How a run stands, for a program that waited for it."""
    match report.state:
        case "rolled_back":
            return ROLLED_BACK
        case "blocked" | "abandoned":
            return IN_DOUBT if any(_doubts(report)) else NEEDS_A_PERSON
        case _:
            return AWAITING_APPROVAL if any(_waiting(report)) else DONE


def _doubts(report: Report) -> Iterable[str]:
    yield from (call.id for call in report.doubts)
    for child in report.children:
        yield from _doubts(child)


def _waiting(report: Report) -> Iterable[str]:
    yield from (call.id for call in report.calls if call.state == "held" and call.reason not in ("order", "lock"))
    for child in report.children:
        yield from _waiting(child)
