"""A real ``amends serve`` process on loopback, over a ledger of its own, and the people who visit it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from amends import Report, Runtime
from amends.errors import ToolError, Waiting
from amends.secrets import Secrets
from amends.serve.login import Logins
from tests.console.browser.app import PROGRAM, Bank, ledger_of, runtime
from tests.console.browser.chromium import PATIENCE_MS, Chromium
from tests.forked import ROOT
from tests.scratch import scratch_folder

T = TypeVar("T")
SECRET = "c" * 40
START_S = 30
SEEN = """
window.__shift = 0;
window.__rows = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    const inside = (one) => (one.node?.nodeType === 1 ? one.node : one.node?.parentElement)?.closest("[data-rows]");
    if (entry.sources.every(inside)) window.__rows += entry.value; else window.__shift += entry.value;
  }
}).observe({ type: "layout-shift", buffered: true });
document.addEventListener("securitypolicyviolation", (event) => console.error("policy:", event.violatedDirective));
"""
"""What is counted in every page: how much has moved by itself, and what the content security policy refused."""


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")}
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    own = {"PYTHONPATH": path, "AMENDS_SECRET": SECRET, "AMENDS_POLL_WORKER": "0.3", "BROWSER": "true"}
    return {**kept, **own, **more}


class Site:
    """One ledger and the process that serves it; ``kill`` and ``start`` again as often as a test likes."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self._options, self._port = folder, options, 0
        self.bank = Bank(folder)
        (folder / "app.py").write_text(PROGRAM, encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> Site:
        """Serve; after a kill on the same port."""
        command = [sys.executable, "-m", "amends", "serve", "app.py:rt", "--json", "--port", str(self._port)]
        with (self.folder / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._options],
                cwd=self.folder, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self.folder / "serve.log").read_text()
        self.url = json.loads(line)["url"]
        self._port = urlsplit(self.url).port or 0
        return self

    def kill(self) -> None:
        """End the process with SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def link(self, name: str, *scopes: str, next: str = "/") -> str:
        """Return a one-time link for somebody, as ``amends serve --open`` prints it."""
        logins = Logins(None, Secrets(SECRET))  # type: ignore[arg-type]
        return logins.new_link(self.url, name=name, scopes=scopes or ("operator",), next=next)

    # ---- What happens in the ledger meanwhile: from this process, through the same runtime

    def do(self, work: Callable[[Runtime], T]) -> T:
        """Do something with the runtime. In a thread of its own: that of the browser has an event loop."""

        def apart() -> T:
            with runtime(self.folder) as rt:
                return work(rt)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(apart).result(START_S * 2)

    def order(self, id: str, *, cents: int = 42_00, item: str = "kettle", town: str = "Leiden", **more: Any) -> None:
        """Let the agent fill an order; one that waits for a person, or for the bank, is left to the server's worker."""

        def fill(rt: Runtime) -> None:
            with suppress(Waiting, ToolError):
                rt.start("clerk", id=id, input={"item": item, "cents": cents, "town": town, **more})

        self.do(fill)

    def until(self, holds: Callable[[Runtime], T], *, seconds: float = START_S) -> T:
        """Wait until the ledger says so; return what it says."""

        def wait(rt: Runtime) -> T:
            until = time.monotonic() + seconds
            while not (found := holds(rt)):
                assert time.monotonic() < until, [f"{one.id} {one.state}" for one in rt.runs()]
                time.sleep(0.05)
            return found

        return self.do(wait)

    def state(self, id: str, state: str) -> Report:
        """Wait until a run is in this state; return its report."""
        return self.until(lambda rt: [found for found in [rt.report(id)] if found.state == state])[0]


@cache
def filled() -> Path:
    """Return a folder with a ledger that has a run in every state; made once for a test process."""
    folder = Path(mkdtemp(prefix="amends-console-", dir=scratch_folder()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = subprocess.run(
        [sys.executable, "-m", "tests.console.browser.app", str(folder)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return folder


def copy_of_filled(folder: Path) -> None:
    for file in filled().glob("ledger.db*"):
        shutil.copy(file, folder / file.name)


def fresh(folder: Path) -> None:
    """Make an empty ledger."""
    with Runtime(ledger_of(folder)) as rt:
        rt.migrate()


class Visitor:
    """Somebody with a browser, logged in; ``problems`` has whatever a healthy page never does."""

    def __init__(
        self,
        chromium: Chromium,
        site: Site,
        name: str = "olga",
        *scopes: str,
        dark: bool = False,
        width: int = 1280,
        height: int = 860,
        script: bool = True,
        expects: Sequence[str] = (),
    ) -> None:
        self.site, self._expects = site, expects
        self.problems: list[str] = []
        self.context = chromium.browser.new_context(
            base_url=site.url,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            java_script_enabled=script,
            is_mobile=width < 500,
            has_touch=width < 500,
        )
        self.context.set_default_timeout(PATIENCE_MS)
        if script:
            self.context.add_init_script(SEEN)
        self.context.on("request", self._requested)
        self.context.on("requestfailed", self._failed)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self._note(f"script error: {error.error}"))
        self.context.on("dialog", self._asked)
        self.page: Any = self.context.new_page()
        self.page.goto(site.link(name, *scopes, next="/runs"))

    def _note(self, problem: str) -> None:
        if not any(one in problem for one in self._expects):
            self.problems.append(problem)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((f"{self.site.url}/", "data:", "blob:")):
            self._note(f"request to elsewhere: {request.url}")

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # a stream or a load that the page itself ended
            self._note(f"request failed: {request.url} {request.failure}")

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self._note(f"console: {message.text}")

    def _asked(self, dialog: Any) -> None:
        self._note(f"a script opened a dialog: {dialog.message}")
        dialog.dismiss()

    # ---- Going somewhere, and looking

    def goto(self, *path: str, **query: str) -> Any:
        """Open a page of the console by its parts; return the answer."""
        first, *names = path
        address = "/".join((first, *(quote(one, safe="") for one in names)))
        said = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        return self.page.goto(f"{address}?{said}" if said else address)

    @property
    def text(self) -> str:
        return str(self.page.inner_text("body"))

    def sees(self, text: str) -> None:
        """Wait until this text is shown."""
        self.page.get_by_text(text).first.wait_for()

    def shift(self) -> float:
        """Return how much the page has moved by itself (cumulative layout shift), other than rows of a list."""
        return float(self.page.evaluate("window.__shift"))

    def row_shift(self) -> float:
        """Return how much the rows of a list have moved: the newest is the first, so the others make room."""
        return float(self.page.evaluate("window.__rows"))

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        found = "document.scrollingElement.scrollWidth - document.documentElement.clientWidth"
        return max(0, int(self.page.evaluate(found)))

    def close(self) -> None:
        self.context.close()
