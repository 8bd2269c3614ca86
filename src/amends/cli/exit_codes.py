"""Exit codes: which outcome and which error becomes which code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from amends.errors import Error, docs_page

if TYPE_CHECKING:  # `amends --help` needs no runtime
    from amends import Report


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
    "ledger_too_old": SCHEMA,
}
OF_VOID: Final = {"changed": DIGEST_MISMATCH, "expired": EXPIRED}
"""Exit code of a void approval, by the reason why it is void."""


def code_of(error: Error) -> int:
    """Return the exit code of a command that ended with this error."""
    if error.code == "approval_void":
        return OF_VOID.get(str(getattr(error, "why", "")), APPROVAL_REFUSED)
    return OF_ERROR.get(error.code, WRONG)


def docs_of(error: Error) -> str:
    """Return the address of the page and heading that explain this error."""
    return docs_page("reference/errors.md", type(error).__name__.lower())


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
