"""The command line ``amends``; imported only when it is called, so that a program which uses the library pays nothing."""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code: 0 done, 1 failed, 2 wrong use or no ledger, 3 a person is needed."""
    from amends.cli.app import run

    return run(args)
