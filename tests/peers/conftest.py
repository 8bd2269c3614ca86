"""Ledgers in files, closed when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime
from tests.adapters.conftest import is_here

Ledger = Callable[..., Any]

HEAVY = {
    "agno": "reports/test_agno_10366.py",
    "autogen_agentchat": "reports/test_autogen_5891.py",
    "crewai": "reports/test_crewai_5802.py",
    "google.adk": "reports/test_adk_7148.py",
}
"""`make test-adapters` makes an environment for each, and runs these."""

collect_ignore = [name for framework, name in HEAVY.items() if not is_here(framework)]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A runtime on this test's own file; each call is another worker on the same ledger."""
    made: list[Runtime] = []

    def make(*tools: Any, **options: Any) -> Any:
        given: dict[str, Any] = {"tools": tools, "wait": 30.0} | options
        made.append(Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", **given))
        return made[-1]

    yield make
    for rt in made:
        rt.close()
