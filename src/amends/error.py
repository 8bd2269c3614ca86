"""The branches of the tree of errors; its leaves, and the tree itself, are in ``errors``."""

from __future__ import annotations

import re
from typing import Any

from amends.phrases import plain
from amends.visible import printable


class Error(Exception):
    """Base of all errors of amends: facts as attributes, ``hint`` says what to do."""

    default_hint = "look at the run with rt.report(run_id), and at its record with rt.events(run_id)"
    """What to do, where whoever raises it knows nothing better; never empty."""

    def __init__(self, message: str, *, hint: str | None = None, run_id: str | None = None) -> None:
        # Names and reasons in a message come from models and the world; what a person reads of them is one line.
        super().__init__(printable(message))
        self.hint = printable(hint or self.default_hint)
        self.run_id = run_id

    @property
    def code(self) -> str:
        """The class name in snake_case: stable, for programs."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def for_model(self) -> str:
        """What a model is told: what was not done, why, what to do."""
        return f"Not run: {self}"

    def to_dict(self) -> dict[str, Any]:
        """The error as plain JSON data."""
        facts = {name: plain(value) for name, value in vars(self).items() if value is not None}
        return {"code": self.code, "message": str(self), **facts}


class UsageError(Error):
    """Your code is wrong; nothing was started."""

    default_hint = "correct the code that made this call, as the message says; nothing was started"

    def for_model(self) -> str:
        return f"Not run: the program around you has a fault ({type(self).__name__}). Stop and tell the user."


class Refused(Error):
    """amends said no, nothing was started, and a model can act on it."""

    default_hint = "nothing was started; do what the message says, or something else"


class ToolError(Error):
    """A tool failed."""

    default_hint = "look at the call with rt.report(run_id): it has the tool's own error"


class Waiting(Error):
    """Not an error, not yet; never rolls back."""

    default_hint = "nothing is wrong; ask again later, or open the run again once it was decided"


class LedgerError(Error):
    """The record could not be kept."""

    default_hint = (
        "check that the ledger can be reached and written with amends doctor; nothing more is started until it can"
    )

    def for_model(self) -> str:
        return "Not run: the record cannot be written now. Stop and tell the user."
