#!/usr/bin/env python
"""Make the pictures of the console in docs/assets/console: every page, light and dark, and some on a phone.

usage: screenshots.py [--only NAME ...] [--into FOLDER]

It serves a travel desk with a week of history (tests/console/showcase.py) and looks at it with the system's Chromium. With
pngquant on PATH the pictures are drawn with 256 colours, at twice the size; without it, at their size.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import uvicorn  # noqa: E402

from amends.secrets import Secrets  # noqa: E402
from amends.serve import Service  # noqa: E402
from amends.serve.console import PAGES  # noqa: E402
from amends.serve.server import address, bind  # noqa: E402
from tests.cli.test_live_shop import Terminal  # noqa: E402
from tests.console.browser.chromium import browser_program  # noqa: E402
from tests.console.showcase import Desk, desk  # noqa: E402
from tests.servers.found import Unavailable  # noqa: E402

INTO = ROOT / "docs" / "assets" / "console"
BYTES_MAX = 200_000
WIDE, PHONE = (1280, 800), (390, 844)
SECRET = "p" * 40


@dataclass(frozen=True)
class Shot:
    """One picture: the page that must be served, its address, and what to do there before it is taken."""

    name: str
    page: str
    path: str
    size: tuple[int, int] = WIDE
    click: str = ""
    then: str = ""
    """What must be there after the click."""
    waits: str = "h1"


def shots(made: Desk) -> list[Shot]:
    """Return the pictures of everything that is served."""
    rt = made.rt
    asked = {one.call.args["reference"]: quote(one.id, safe="") for one in rt.approvals("state:pending")}
    [doubt, *_] = [one.id for one in rt.doubts() if one.run_id == "trip-2190-lost"]
    call = next(one.id for one in rt.report("trip-2194").calls if one.tool == "book_hotel")
    wanted = [
        Shot("runs", "runs", "/runs"),
        Shot("run", "run", "/runs/trip-2194", size=(1280, 920)),
        Shot("run-phone", "run", "/runs/trip-2194", size=PHONE),
        Shot("call", "call", f"/calls/{call}", size=(1280, 920)),
        Shot("rollback", "rollback", "/runs/trip-2196/rollback", size=(1280, 920)),
        Shot("approvals", "approvals", "/approvals"),
        Shot("approvals-phone", "approvals", "/approvals", size=PHONE),
        Shot("approval", "approval", f"/approvals/{asked['inv-403']}", size=(1280, 920)),
        Shot("approval-phone", "approval", f"/approvals/{asked['inv-403']}", size=PHONE),
        Shot("approval-edit", "approval_edit", f"/approvals/{asked['inv-402']}/edit"),
        Shot("doubts", "doubts", "/doubts"),
        Shot("stuck", "stuck", "/doubts/runs/trip-2188-stuck"),
        Shot("doubt", "doubt", f"/doubts/{doubt}", size=(1280, 920)),
        Shot("costs", "costs", "/costs"),
        Shot("audit", "audit", "/audit"),
        Shot(
            "verification",
            "verification",
            "/audit?tab=verify",
            click="form[action*='/verify'] button",
            then=".verdict.tone-ok",
        ),
        Shot("compare", "compare", "/compare?a=quote-77-1&b=quote-77-2"),
        Shot(
            "replay",
            "replay",
            "/runs/quote-77-1",
            click="form[action$='/replay'] button",
            then="#first",
        ),
        Shot("tools", "tools", "/tools"),
        Shot("tool", "tool", "/tools/book_hotel"),
        Shot("workers", "workers", "/workers"),
        Shot("tokens", "tokens", "/tokens"),
    ]
    served = {page.name for page in PAGES}
    missing = sorted({one.page for one in wanted} - served)
    if missing:
        print(f"not served, and not pictured: {', '.join(missing)}", file=sys.stderr)
    return [one for one in wanted if one.page in served]


@contextmanager
def served(made: Desk) -> Iterator[str]:
    """Serve the desk in this process, whose open runs are alive; yield a link for a browser."""
    service = Service(made.rt, worker=False, secrets=Secrets(SECRET))
    with bind("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(service, log_config=None, lifespan="on", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert service.logins is not None
        yield service.logins.new_link(address(listening), name="ana", scopes=("operator",))
        service.is_closing = server.should_exit = True
        thread.join(10)


class Camera:
    """A browser that takes each picture twice: light and dark."""

    def __init__(self, browser: Any, into: Path) -> None:
        self._browser, self._into = browser, into
        self._scale = 2 if shutil.which("pngquant") else 1

    def context(self, size: tuple[int, int], *, dark: bool) -> Any:
        """Return a window of this size."""
        return self._browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            device_scale_factor=self._scale,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            is_mobile=size[0] < 500,
        )

    def take(self, page: Any, name: str, *, dark: bool) -> None:
        """Write what the window shows."""
        page.evaluate("document.fonts.ready")
        file = self._into / f"{name}-{'dark' if dark else 'light'}.png"
        page.screenshot(path=file, animations="disabled")
        if self._scale == 2:
            command = [
                "pngquant",
                "--force",
                "--skip-if-larger",
                "--speed",
                "1",
                "--output",
                str(file),
                "256",
                str(file),
            ]
            subprocess.run(command, check=False)
        size = file.stat().st_size
        print(f"{_shown(file)}  {size / 1000:.0f} kB")
        if size > BYTES_MAX:
            raise SystemExit(f"{_shown(file)} has more than {BYTES_MAX / 1000:.0f} kB: install pngquant")


def _shown(file: Path) -> Path:
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else file


def take_all(camera: Camera, link: str, wanted: list[Shot]) -> None:
    """Take the pictures of the desk."""
    cookies: list[Any] = []
    for shot in wanted:
        for dark in (False, True):
            context = camera.context(shot.size, dark=dark)
            page = context.new_page()
            if cookies:
                context.add_cookies(cookies)
            else:
                page.goto(link)
                cookies = context.cookies()
            answer = page.goto(link.partition("/login")[0] + shot.path)
            if answer.status != 200:
                raise SystemExit(f"{shot.path} answered with status {answer.status}")
            page.wait_for_selector(shot.waits)
            if shot.click:
                page.click(shot.click)
                page.wait_for_selector(shot.then)
            camera.take(page, shot.name, dark=dark)
            context.close()


def take_demo(camera: Camera) -> None:
    """Take the picture of the live shop, a few seconds after its worker was killed."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal("demo", "--port", "0", cwd=Path(folder))
        try:
            link = terminal.until(r"open within five minutes: (http\S+)\s")
            context = camera.context(WIDE, dark=False)
            page = context.new_page()
            page.goto(link)
            page.get_by_role("button", name="Crash it now").click()
            page.get_by_text("charged once", exact=True).wait_for(timeout=40_000)
            page.reload()
            for dark in (False, True):
                page.emulate_media(color_scheme="dark" if dark else "light")
                camera.take(page, "demo", dark=dark)
            context.close()
            terminal.press_ctrl_c()
        finally:
            terminal.close()


def main() -> int:
    """Take the pictures; return 0, or 2 if there is no browser."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="only these pictures")
    parser.add_argument("--into", type=Path, default=INTO, metavar="FOLDER", help="where to write them")
    said = parser.parse_args()
    try:
        program = browser_program()
    except Unavailable as refusal:
        print(refusal, file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    said.into.mkdir(parents=True, exist_ok=True)
    only = set(said.only)
    with tempfile.TemporaryDirectory() as folder, desk(Path(folder)) as made, served(made) as link:
        wanted = [one for one in shots(made) if not only or one.name in only]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=["--disable-dev-shm-usage"])
            camera = Camera(browser, said.into)
            take_all(camera, link, wanted)
            if not only or "demo" in only:
                take_demo(camera)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
