"""Live updates: rows that arrive, a server that dies, a pause."""

from collections.abc import Callable

import pytest

from tests.console.browser.site import Site, Visitor

pytestmark = pytest.mark.rest
AWAY = (
    *("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE", "ERR_CONNECTION_RESET", "ERR_EMPTY", "ERR_CONTENT_LENGTH_MISMATCH"),
    *("htmx:sse:error", "htmx:error: Failed to fetch"),
)
"""What a browser says about a server that is away."""
ROWS = "#main [data-rows] tbody tr"


def ids(visitor: Visitor) -> list[str]:
    found: list[str] = visitor.page.eval_on_selector_all(ROWS, "(rows) => rows.map((row) => row.id)")
    return found


def test_rows_arrive_by_themselves_and_nothing_moves(shop: Site, visit: Callable[..., Visitor]) -> None:
    for number in range(6):
        shop.order(f"order-{number}")
    olga = visit(shop)
    columns = "[...document.querySelectorAll('th')].map((one) => one.getBoundingClientRect().x)"
    before, top = olga.page.evaluate(columns), olga.page.locator("h1").bounding_box()
    for number in range(6, 9):
        shop.order(f"order-{number}")
        olga.page.get_by_role("link", name=f"order-{number}", exact=True).wait_for()
    assert len(set(ids(olga))) == len(ids(olga)) == 9
    assert olga.page.locator("h1").bounding_box() == top
    assert olga.page.evaluate(columns) == before
    assert olga.shift() < 0.001
    assert olga.row_shift() < 0.1, "what browsers count as good"


def test_a_server_that_dies_and_comes_back_leaves_no_row_twice(shop: Site, visit: Callable[..., Visitor]) -> None:
    for number in range(3):
        shop.order(f"order-{number}")
    olga = visit(shop, expects=AWAY)
    olga.sees("order-2")
    stale = olga.page.locator("#stale")
    assert not stale.is_visible()
    shop.kill()
    stale.wait_for(state="visible")
    assert "stale since" in stale.inner_text()
    shop.order("order-while-away")
    shop.start()
    stale.wait_for(state="hidden")
    olga.sees("order-while-away")
    shop.order("order-after")
    olga.sees("order-after")
    assert len(set(ids(olga))) == len(ids(olga)) == 5


def test_a_pause_holds_updates_back_until_it_ends(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1")
    olga = visit(shop)
    olga.sees("order-1")
    button = olga.page.get_by_role("button", name="Live")
    button.click()
    paused = olga.page.get_by_role("button", name="Paused")
    assert paused.get_attribute("aria-pressed") == "true"
    shop.order("order-2")
    bob = visit(shop, "bob")
    bob.sees("order-2")
    assert olga.page.get_by_text("order-2").count() == 0
    paused.click()
    olga.sees("order-2")
