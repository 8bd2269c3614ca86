"""A real browser: the system's Chromium, driven by Playwright from a thread of its own.

Playwright leaves an event loop running in its thread, so no test may share that thread with code that starts one. ``Chromium``
therefore keeps the browser in one thread, and the tests of this folder run there (``conftest.py``).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from tests.servers.found import SWITCH, Unavailable

P = ParamSpec("P")
T = TypeVar("T")
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
TEST_S_MAX = 120
PATIENCE_MS = 20_000


def browser_program() -> str:
    """Return the path of a Chromium; raise ``Unavailable`` if there is none, or nothing that drives it."""
    if os.environ.get(SWITCH) == "off":
        raise Unavailable(f"no browser: {SWITCH}=off")
    if importlib.util.find_spec("playwright") is None:
        raise Unavailable("no browser: the package playwright is not installed; pip install -e '.[e2e]'")
    said = os.environ.get("AMENDS_TEST_BROWSER", "")
    found = shutil.which(said) if said else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        named = f"{said!r}, which AMENDS_TEST_BROWSER names" if said else ", ".join(NAMES)
        raise Unavailable(f"no browser: no {named} on PATH; run `make servers` as root, or set AMENDS_TEST_BROWSER")
    return found


class Chromium:
    """One browser for many tests; each test gets contexts (people) of its own."""

    def __init__(self) -> None:
        program = browser_program()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chromium")
        self._playwright: Any = None
        self.browser: Any = None
        try:
            self.run(self._start, program)
        except BaseException:
            self.close()
            raise

    def _start(self, program: str) -> None:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        # Small containers have little shared memory.
        self.browser = self._playwright.chromium.launch(
            executable_path=program, headless=True, args=["--disable-dev-shm-usage"]
        )

    def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the thread of the browser."""
        return self._thread.submit(fn, *args, **kwargs).result(TEST_S_MAX)

    def close(self) -> None:
        """Nothing is left of it."""
        if self.browser is not None:
            self.run(self.browser.close)
        if self._playwright is not None:
            self.run(self._playwright.stop)
        self._thread.shutdown()
