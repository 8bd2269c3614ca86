"""Fixtures of the console's tests: a served shop, and browsers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.console.shop import Site, served


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A shop with runs in every state, for tests that only look; those that change it serve one of their own."""
    with served() as made:
        yield made


@pytest.fixture
def browser(site: Site) -> TestClient:
    """A browser that an operator has logged in with."""
    return site.browse()
