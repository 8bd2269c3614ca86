"""The short path through the console that ``make test`` walks; ``make test-console`` walks the others."""

from collections.abc import Callable

from tests.console.browser.site import Site, Visitor


def test_a_request_is_found_read_and_approved_and_the_agent_goes_on(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=250_00)
    ana = visit(shop, "ana", "approver")
    ana.sees("order-1")
    ana.page.keyboard.press("g")
    ana.page.keyboard.press("a")
    ana.page.get_by_role("link", name="pay").click()
    ana.page.get_by_role("button", name="Approve exactly this").click()
    ana.page.locator(".flash").wait_for()
    shop.state("order-1", "committed")
    ana.goto("/runs", "order-1")
    ana.page.locator("[data-state=committed]").first.wait_for()
    assert [entry["paid"] for entry in shop.bank.entries() if "paid" in entry] == ["order-1"]
    assert ana.overflow() == 0
