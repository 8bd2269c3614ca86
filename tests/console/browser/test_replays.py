"""A run is replayed against its agent, and stands beside the record."""

from collections.abc import Callable

import pytest

from tests.console.browser.site import Site, Visitor
from tests.console.browser.test_every_page import PHONE, violations

pytestmark = pytest.mark.rest


@pytest.mark.parametrize("dark, width", [(False, 1280), (True, 1280), (False, PHONE)], ids=["light", "dark", "phone"])
def test_a_person_replays_a_run_and_nothing_is_paid_again(
    shop: Site, visit: Callable[..., Visitor], dark: bool, width: int
) -> None:
    shop.order("order-1")
    before = shop.bank.entries()
    olga = visit(shop, dark=dark, width=width)
    olga.goto("/runs", "order-1")
    olga.page.get_by_role("button", name="Replay").click()
    olga.page.get_by_text("The agent does the same today").wait_for()
    olga.sees("3 of 3 recorded calls were asked for")
    assert (olga.overflow(), violations(olga.page)) == (0, [])
    assert shop.bank.entries() == before


def test_a_run_is_replayed_without_scripts_too(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1")
    olga = visit(shop, script=False)
    olga.goto("/compare?a=order-1")
    olga.page.get_by_role("button", name="Replay order-1").click()
    for _ in range(20):
        if "The agent does the same today" in olga.text:
            return
        olga.page.get_by_role("link", name="Look again").click()
    raise AssertionError(olga.text)
