"""Fixtures of the browser's tests. Each test runs in the thread of the browser (``chromium.py`` says why)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.browser.chromium import Chromium
from tests.console.browser.site import Site, Visitor, copy_of_filled, fresh
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable

CHROMIUM = pytest.StashKey[Chromium]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Run the test where its browser is."""
    chromium = pyfuncitem.config.stash.get(CHROMIUM, None)
    if chromium is None or "chromium" not in pyfuncitem.fixturenames:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    chromium.run(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.fixture(scope="session")
def chromium(pytestconfig: pytest.Config) -> Iterator[Chromium]:
    """One browser for all tests of this process; without one they are skipped, and fail in CI."""
    try:
        made = pytestconfig.stash[CHROMIUM] = Chromium()
    except Unavailable as refusal:
        unavailable(refusal)
    yield made
    del pytestconfig.stash[CHROMIUM]
    made.close()


@pytest.fixture(scope="module")
def every(chromium: Chromium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A served ledger with a run in every state; nobody works on it, so that it stays as it is."""
    folder = tmp_path_factory.mktemp("every")
    copy_of_filled(folder)
    site = Site(folder, "--no-worker").start()
    yield site
    site.close()


@pytest.fixture
def shop(chromium: Chromium, tmp_path: Path) -> Iterator[Site]:
    """A served ledger of this test's own, with a worker that goes on with what people decided."""
    fresh(tmp_path)
    site = Site(tmp_path).start()
    yield site
    site.close()


@pytest.fixture
def idle(chromium: Chromium, tmp_path: Path) -> Iterator[Site]:
    """The same without a worker: nothing happens by itself."""
    fresh(tmp_path)
    site = Site(tmp_path, "--no-worker").start()
    yield site
    site.close()


@pytest.fixture
def visit(chromium: Chromium) -> Iterator[Callable[..., Visitor]]:
    """Let somebody visit a site; at the end nothing may have happened in their browsers that never should."""
    made: list[Visitor] = []

    def visit(site: Site, name: str = "olga", *scopes: str, **options: Any) -> Visitor:
        made.append(Visitor(chromium, site, name, *scopes, **options))
        return made[-1]

    yield visit
    problems = [f"{number}: {problem}" for number, one in enumerate(made) for problem in one.problems]
    for one in made:
        chromium.run(one.close)
    assert problems == []
