"""The live shop of ``amends demo``, as a visitor sees it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.test_live_shop import Terminal
from tests.console.browser.chromium import Chromium
from tests.console.browser.site import Visitor
from tests.console.browser.test_every_page import violations

pytestmark = pytest.mark.rest


class LiveShop:
    """``amends demo`` at a terminal; its link lets one visitor in."""

    def __init__(self, folder: Path) -> None:
        self.terminal = Terminal("demo", "--port", "0", cwd=folder)
        self._link = self.terminal.until(r"open within five minutes: (http\S+)\s")
        self.url = self._link.partition("/login")[0]

    def link(self, *_name: str, **_options: str) -> str:
        return self._link


@pytest.fixture
def live(chromium: Chromium, tmp_path: Path) -> Iterator[LiveShop]:
    made = LiveShop(tmp_path)
    yield made
    made.terminal.close()


def test_a_visitor_crashes_the_worker_and_sees_one_charge(live: LiveShop, visit: Callable[..., Visitor]) -> None:
    visitor = visit(live)
    page = visitor.page
    assert page.url == f"{live.url}/demo"
    assert violations(page) == []
    visitor.sees("Nothing yet")
    page.get_by_role("button", name="Crash it now").click()
    visitor.sees("was killed while it charged")
    page.locator(".demo-books [data-state=in_doubt]").wait_for()
    page.locator(".demo-story .is-done").nth(1).wait_for()
    page.locator(".demo-story .is-done").nth(3).wait_for()
    page.get_by_text("charged once", exact=True).wait_for()
    assert "0 double" in page.locator("#demo-books").inner_text()
    assert visitor.shift() < 0.01, "the story is told in place"
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert visitor.overflow() == 0
    page.get_by_role("link", name="The run").click()
    page.locator("[data-state=committed], [data-state=rolled_back]").first.wait_for()
    assert live.terminal.press_ctrl_c() == 0
