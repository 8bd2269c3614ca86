"""The errors of replays; ``errors`` has them with all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amends.error import UsageError


class Diverged(UsageError):
    """A replay asked for something else than the record has there; nothing was started."""

    default_hint = "make the code ask as it did then, or record a new run; rt.fork goes on live from before it"

    def __init__(
        self,
        message: str,
        *,
        how: str,
        tool: str,
        call: Any = None,
        given: Mapping[str, Any] | None = None,
        diff: Mapping[str, tuple[Any, Any]] | None = None,
        run_id: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.how, self.tool, self.call = how, tool, call
        self.given, self.diff = dict(given or {}), dict(diff or {})


class ReplayDenied(UsageError):
    """Code inside a replay reached around its run: for the network, another process, or the ledger. It was refused."""

    default_hint = "do it in the body of a tool, which no replay starts, and use what the tool gives back"

    def __init__(self, message: str, *, what: str, run_id: str | None = None) -> None:
        super().__init__(message, run_id=run_id)
        self.what = what
