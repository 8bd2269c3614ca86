"""The checks by name: each is a function of a new, empty ledger, and its name is the property."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from amends.testing.conformance.ledger import Ledger

Check: TypeAlias = Callable[[Ledger], None]

CHECKS: Final[dict[str, Check]] = {}
"""In the order in which a new store best proves itself: what it stores first, races last."""


class Skipped(Exception):
    """What this check looks at does not exist in this store, or was not given."""


def check(prove: Callable[..., None]) -> Callable[..., None]:
    """Add a check, under the name of its module and its own."""
    return _add(prove, "", prove)


def check_each(each: Mapping[str, Any] | Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a check once for each of these, which it gets as its second argument."""
    given = dict(each) if isinstance(each, Mapping) else {name: name for name in each}

    def add(prove: Callable[..., None]) -> Callable[..., None]:
        for name, value in given.items():
            _add(prove, f"[{name}]", partial(_with_value, prove, value))
        return prove

    return add


def _with_value(prove: Callable[..., None], value: object, ledger: Ledger) -> None:
    prove(ledger, value)


def _add(prove: Callable[..., None], which: str, bound: Check) -> Callable[..., None]:
    name = f"{prove.__module__.rpartition('.')[2]}.{prove.__name__}{which}"
    assert name not in CHECKS, f"two checks are named {name}"
    CHECKS[name] = bound
    return prove
