"""Pages about a large ledger take no longer than pages about a small one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from amends import Runtime
from amends.serve import Limits, app
from bench.fill import fill
from bench.sides.ours import pay
from tests.console.shop import SECRET

SMALL, LARGE = 1_000, 100_000
PAGES = (
    "/runs", "/runs?filter=state:blocked", "/runs?filter=state:open", "/approvals", "/doubts", "/compare", "/costs",
    "/costs?by=day", "/tools", "/tools/pay", "/workers", "/tokens", "/audit", "/audit?filter=what:refused",
    "/audit?filter=tool:pay", "/audit?tab=verify", "/audit?tab=checkpoints",
)  # fmt: skip
TURNS = 9
FACTOR, SLACK_S = 1.5, 0.004
"""How much longer a page of the large ledger may take; ``SLACK_S``: what a busy machine adds to a page of 2 ms."""


@pytest.mark.rest
def test_a_page_of_a_large_ledger_takes_no_longer(tmp_path: Path) -> None:
    with ExitStack() as stack:
        small, large = (stack.enter_context(filled(tmp_path / f"{calls}.db", calls)) for calls in (SMALL, LARGE))
        slow: list[str] = []
        for page in PAGES:
            least = [float("inf")] * 2
            for turn in range(TURNS):
                for place, browser in enumerate((small, large)):
                    begun = time.perf_counter()
                    assert browser.get(page).status_code == 200, page
                    if turn:  # the first one prepares statements and templates
                        least[place] = min(least[place], time.perf_counter() - begun)
            if least[1] > FACTOR * least[0] + SLACK_S:
                slow.append(f"{page}: {1_000 * least[0]:.1f} ms, then {1_000 * least[1]:.1f} ms")
        assert slow == []


@contextmanager
def filled(place: Path, calls: int) -> Iterator[TestClient]:
    """Serve a ledger with this many calls; return a browser that an operator has logged in with."""
    fill("sqlite-normal", str(place), calls)
    with Runtime(f"sqlite:///{place}", tools=[pay]) as rt:
        service = app(rt, secrets=SECRET, worker=False, limits=Limits(requests_per_s=10_000))
        with TestClient(service, follow_redirects=False, headers={"Accept": "text/html"}) as browser:
            assert service.logins is not None
            browser.get(service.logins.new_link("", name="olga", scopes=("operator",)))
            yield browser
