"""What holds for every page: accessible in both colours, nothing wider than a phone, nothing hostile alive."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.console.browser.pages import Address, addresses, served_pages
from tests.console.browser.site import Site, Visitor
from tests.console.shop import HOSTILE

pytestmark = pytest.mark.rest
PHONE = 390


def places(site: Site) -> list[Address]:
    known = addresses(site)
    missing = [name for name in served_pages() if name not in known]
    assert missing == [], "each page has an address in pages.py"
    return [address for name in served_pages() for address in known[name]]


def violations(page: Any) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("dark, width", [(False, 1280), (True, 1280), (False, PHONE)], ids=["light", "dark", "phone"])
def test_no_page_has_a_violation_of_accessibility(
    every: Site, visit: Callable[..., Visitor], dark: bool, width: int
) -> None:
    olga = visit(every, dark=dark, width=width)
    found: dict[str, str] = {}
    """Each violation once, with the page where it is."""
    for address in places(every):
        assert olga.goto(*address).status == 200, address
        for wrong in violations(olga.page):
            found.setdefault(wrong, "/".join(address))
    assert found == {}


def test_the_pages_of_nobody_have_no_violation_either(every: Site, visit: Callable[..., Visitor]) -> None:
    olga = visit(every, expects=["404"])
    assert olga.goto("/runs", "no such run").status == 404
    assert violations(olga.page) == []
    olga.context.clear_cookies()
    olga.goto("/runs")
    assert "/login" in olga.page.url
    assert violations(olga.page) == []


def test_no_page_is_wider_than_a_phone(every: Site, visit: Callable[..., Visitor]) -> None:
    olga = visit(every, width=PHONE, height=844)
    too_wide: dict[str, int] = {}
    for address in places(every):
        olga.goto(*address)
        if more := olga.overflow():
            too_wide["/".join(address)] = more
    assert too_wide == {}


def test_nothing_in_the_ledger_becomes_a_part_of_a_page(every: Site, visit: Callable[..., Visitor]) -> None:
    """Names, arguments and results that are HTML are shown as text: no element, no script, no request."""
    olga = visit(every)
    seen = False
    for address in places(every):
        olga.goto(*address)
        assert olga.page.locator("main img, main iframe, main object, main embed").count() == 0, address
        strange = olga.page.evaluate(
            "[...document.querySelectorAll('main *')].flatMap((one) => one.getAttributeNames())"
            ".filter((name) => name.startsWith('on') || name === 'style')"
        )
        assert strange == [], address
        seen = seen or HOSTILE in olga.text
    assert seen, "some page shows the hostile name as it is"
    assert olga.problems == []


def test_every_page_can_be_read_without_scripts(every: Site, visit: Callable[..., Visitor]) -> None:
    olga, plain = visit(every), visit(every, script=False)
    for address in places(every):
        olga.goto(*address)
        plain.goto(*address)
        assert plain.page.locator("h1").inner_text() == olga.page.locator("h1").inner_text(), address
        assert plain.overflow() == 0


def test_nothing_moves_while_a_page_loads(every: Site, visit: Callable[..., Visitor]) -> None:
    olga = visit(every)
    moved: dict[str, float] = {}
    for address in places(every):
        olga.goto(*address)
        olga.page.wait_for_timeout(50)
        if (shift := olga.shift()) > 0.01:
            moved["/".join(address)] = shift
    assert moved == {}
