"""Options that several verbs share, and exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from amends.errors import Error

if TYPE_CHECKING:  # `amends --help` needs no runtime
    from amends import Report

# ---- Options and arguments

LIMIT: Final = 100

App = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="APP:RT", help="Your runtime, with its tools. Default: AMENDS_APP or the settings file."
    ),
]
Place = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP:RT]",
        help="Your runtime: MODULE:NAME or FILE.py:NAME. Default: AMENDS_APP or the settings file.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", help="The ledger. Default: AMENDS_URL, then amends.toml, then pyproject.toml, then ./amends.db."
    ),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Only this tenant. Default: AMENDS_TENANT or the settings file.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of a table; a listing prints one object per line.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most this many.")]
Filter = Annotated[
    list[str] | None, typer.Argument(metavar="[FILTER]...", help="For example: status:blocked,open run:order-* age:<1d")
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run, or its first characters.")]
CallId = Annotated[str, typer.Argument(metavar="CALL", help="The id of the call, or its first characters.")]
ApprovalId = Annotated[
    str,
    typer.Argument(
        metavar="APPROVAL", help="The id of the request, its first characters, or the id of the run that waits."
    ),
]
By = Annotated[
    str | None, typer.Option("--by", help="Who decides. Default: AMENDS_BY, the settings file, or your login name.")
]
Why = Annotated[str, typer.Option("--why", help="The reason; it is recorded with the decision.")]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required if there is no terminal.")
]


def group(help: str | None = None) -> typer.Typer:
    """Return an empty group of verbs."""
    # rich_markup_mode=None: help is plain text, and rich (80 ms) is not loaded for it.
    return typer.Typer(help=help, rich_markup_mode=None, no_args_is_help=False)


def filter_of(words: list[str] | None) -> str:
    """Return the filter that was given as one argument or as several."""
    return " ".join(words or ())


# ---- Exit codes


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
"""Exit code of a void approval, by the reason why it is void."""
PAGE: Final = "docs/reference/errors.md"


def code_of(error: Error) -> int:
    """Return the exit code of a command that ended with this error."""
    if error.code == "approval_void":
        return OF_VOID.get(str(getattr(error, "why", "")), APPROVAL_REFUSED)
    return OF_ERROR.get(error.code, WRONG)


def docs_of(error: Error) -> str:
    """Return the page and heading that explain this error."""
    return f"{PAGE}#{type(error).__name__.lower()}"


def code_of_run(report: Report) -> int:
    """Return the exit code that tells a program the state of the run it waited for."""
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
