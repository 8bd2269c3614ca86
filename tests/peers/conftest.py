"""Ledgers in files, closed when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime

Ledger = Callable[..., Any]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A runtime on this test's own file; each call is another worker on the same ledger."""
    made: list[Runtime] = []

    def make(*tools: Any, **options: Any) -> Any:
        given: dict[str, Any] = {"tools": tools, "wait": 0.2} | options
        made.append(Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", **given))
        return made[-1]

    yield make
    for rt in made:
        rt.close()
