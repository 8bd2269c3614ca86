"""Errors about bundles: records of runs, taken out of one ledger and loaded into another. Import them from ``errors``."""

from __future__ import annotations

from amends.error import UsageError


class BadBundle(UsageError):
    """It is no bundle, or one that this amends cannot read; nothing was loaded."""

    default_hint = "export it again, with amends audit export"

    def __init__(self, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"this is no bundle that can be read: {problem}", hint=hint)
        self.problem = problem


class RunTaken(UsageError):
    """A bundle has a run whose id is another run's here; nothing was loaded."""

    default_hint = "load it into a ledger of its own"

    def __init__(self, message: str, *, run_id: str) -> None:
        super().__init__(message, run_id=run_id)


class RunIsRecord(UsageError):
    """The run was loaded from another ledger: it can be read and replayed, and nothing else."""

    default_hint = "go on with it in the ledger that it came from"

    def __init__(self, run_id: str, *, origin: str) -> None:
        super().__init__(
            f"run {run_id} was loaded from the ledger {origin}: it is a record, and nothing of it was changed",
            run_id=run_id,
        )
        self.origin = origin
