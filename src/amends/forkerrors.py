"""Errors about forks. Import them from ``errors``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amends.error import Refused


class CannotFork(Refused):
    """A run that cannot be forked where that was asked for; nothing was made."""

    default_hint = "choose another call to fork at: rt.report(run_id) lists them"

    def __init__(
        self, message: str, *, calls: Sequence[Any] = (), why: str, run_id: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.calls = list(calls)
        self.why = why
