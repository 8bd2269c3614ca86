"""The command line: ``amends``. Loaded when it is called, so that a library user pays for nothing of it."""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code. 0 done, 1 failed, 2 wrong use or ledger, 3 blocked."""
    from amends.cli.app import run

    return run(args)
