"""The whole console by keyboard, and no single key that decides."""

from collections.abc import Callable

import pytest

from tests.console.browser.site import Site, Visitor

pytestmark = pytest.mark.rest


def test_rows_are_walked_and_opened_by_keys(shop: Site, visit: Callable[..., Visitor]) -> None:
    for number in range(3):
        shop.order(f"order-{number}")
    olga = visit(shop)
    keys = olga.page.keyboard
    current = olga.page.locator("tr.is-current")
    keys.press("j")
    assert "order-2" in current.inner_text()
    keys.press("j")
    keys.press("j")
    keys.press("j")
    assert "order-0" in current.inner_text(), "the last row is the last"
    keys.press("k")
    assert "order-1" in current.inner_text()
    keys.press("Enter")
    olga.page.wait_for_url("**/runs/order-1")
    keys.press("g")
    keys.press("r")
    olga.page.wait_for_url("**/runs")


def test_the_keys_are_listed_and_the_list_closes(shop: Site, visit: Callable[..., Visitor]) -> None:
    olga = visit(shop)
    olga.page.keyboard.press("?")
    keys = olga.page.locator("dialog#keys")
    keys.wait_for(state="visible")
    olga.page.keyboard.press("Escape")
    keys.wait_for(state="hidden")


def test_the_first_tab_leads_to_the_content(shop: Site, visit: Callable[..., Visitor]) -> None:
    olga = visit(shop)
    olga.page.keyboard.press("Tab")
    assert olga.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    olga.page.keyboard.press("Enter")
    assert olga.page.evaluate("document.activeElement.id") == "main"
