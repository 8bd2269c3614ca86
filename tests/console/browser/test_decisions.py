"""People decide: approvals, doubts and rollbacks, with scripts and without, alone and at once."""

from collections.abc import Callable
from typing import Any

import pytest

from amends import Runtime
from tests.console.browser.site import Site, Visitor

pytestmark = pytest.mark.rest
LARGE = 250_00
"""So many cents need a person."""


def asked(site: Site, run: str) -> Any:
    [found] = site.do(lambda rt: list(rt.approvals(f"state:pending run:{run}")))
    return found


def paid(site: Site) -> list[str]:
    return [entry["paid"] for entry in site.bank.entries() if "paid" in entry]


def confirmed(visitor: Visitor, opener: str, label: str) -> None:
    """Press a button that asks in a dialog, and confirm there."""
    visitor.page.get_by_role("button", name=opener).click()
    dialog = visitor.page.locator("dialog[open]")
    dialog.wait_for()
    dialog.get_by_role("button", name=label, exact=True).click()


# ---- Approvals


def test_the_agent_goes_on_when_its_request_is_approved(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    watcher = visit(shop, "vera", "viewer")
    watcher.goto("/runs", "order-1")
    ana = visit(shop, "ana", "approver")
    ana.goto("/approvals")
    ana.page.get_by_role("link", name="pay").click()
    ana.sees("25000")
    assert paid(shop) == []
    ana.page.get_by_role("button", name="Approve exactly this").click()
    ana.page.locator(".flash").wait_for()
    report = shop.state("order-1", "committed")
    assert paid(shop) == ["order-1"]
    watcher.page.locator("[data-state=committed]").first.wait_for()
    decided = shop.do(lambda rt: [event for event in rt.events("order-1") if event.what == "approval"])
    assert [(event.to, event.by) for event in decided][-2:-1] == [("approved", "ana")]
    assert len(report.calls) == 3


def test_a_rejection_reaches_the_agent_with_its_reason(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    ana = visit(shop, "ana", "approver")
    ana.goto("/approvals", asked(shop, "order-1").id)
    ana.page.get_by_text("Reject…").first.click()
    ana.page.get_by_label("In your own words").fill("the invoice is a forgery")
    ana.page.get_by_role("button", name="Reject", exact=True).click()
    ana.page.locator(".flash").wait_for()
    report = shop.state("order-1", "rolled_back")
    assert paid(shop) == []
    [call] = [call for call in report.calls if call.tool == "pay"]
    assert call.state == "refused"
    assert "the invoice is a forgery" in ana.text


def test_it_is_decided_on_a_phone_with_a_thumb(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    ana = visit(shop, "ana", "approver", width=390, height=844)
    ana.goto("/approvals")
    ana.page.locator("[data-rows] a").first.tap()
    button = ana.page.get_by_role("button", name="Approve", exact=True)
    box = button.bounding_box()
    assert box is not None
    assert box["height"] >= 44, "a thumb needs 44 pixels"
    assert box["y"] + box["height"] <= 844, "it is on the screen without scrolling"
    button.tap()
    ana.page.locator(".flash").wait_for()
    shop.state("order-1", "committed")


def test_it_is_decided_by_keyboard_alone(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    ana = visit(shop, "ana", "approver")
    keys = ana.page.keyboard
    keys.press("g")
    keys.press("a")
    ana.page.wait_for_url("**/approvals")
    ana.sees("25000")
    keys.press("j")
    keys.press("Enter")
    ana.page.wait_for_url("**/approvals/apr_*")
    for key in "aAyYrRdDxX":  # no single key decides
        keys.press(key)
    assert asked(shop, "order-1").state == "pending"
    for _ in range(60):
        if ana.page.evaluate("document.activeElement.textContent.trim()") == "Approve exactly this":
            break
        keys.press("Tab")
    keys.press("Enter")
    ana.page.locator(".flash").wait_for()
    shop.state("order-1", "committed")


def test_a_viewer_who_tries_to_approve_is_refused(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    request = asked(shop, "order-1")
    vera = visit(shop, "vera", "viewer", expects=["403"])
    vera.goto("/approvals", request.id)
    assert vera.page.get_by_role("button", name="Approve exactly this").count() == 0
    form = {"csrf": vera.page.locator("body").get_attribute("data-csrf"), "digest": request.digest}
    for act in ("approve", "reject", "bypass"):
        answer = vera.context.request.post(
            f"{shop.url}/approvals/{request.id}/{act}",
            form={**form, "why": "x", "words": "x", "confirmed": "yes"},
            headers={"Accept": "text/html"},
        )
        assert answer.status == 403, act
    assert (asked(shop, "order-1").state, paid(shop)) == ("pending", [])


def test_a_form_of_another_site_is_refused(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    request = asked(shop, "order-1")
    ana = visit(shop, "ana", "approver", expects=["403"])
    for csrf in ("", "forged"):
        answer = ana.context.request.post(
            f"{shop.url}/approvals/{request.id}/approve", form={"csrf": csrf, "digest": request.digest}
        )
        assert answer.status == 403
    assert asked(shop, "order-1").state == "pending"


def test_of_two_people_who_decide_at_once_the_first_decides(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    request = asked(shop, "order-1")
    ana, bob = visit(shop, "ana", "approver"), visit(shop, "bob", "approver", script=False, expects=["409"])
    for one in (ana, bob):
        one.goto("/approvals", request.id)
    ana.page.get_by_role("button", name="Approve exactly this").click()
    ana.page.locator(".flash").wait_for()
    shop.state("order-1", "committed")
    bob.page.get_by_text("Reject…").first.click()
    bob.page.get_by_label("In your own words").fill("not on my watch")
    with bob.page.expect_navigation() as answered:
        bob.page.get_by_role("button", name="Reject", exact=True).click()
    assert answered.value.status == 409
    assert bob.page.get_by_role("alert").count() == 1
    assert "not on my watch" in bob.page.content(), "what was typed is not lost"
    assert paid(shop) == ["order-1"]


def test_a_decision_shows_in_the_other_persons_window(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    request = asked(shop, "order-1")
    ana, bob = visit(shop, "ana", "approver"), visit(shop, "bob", "approver")
    for one in (ana, bob):
        one.goto("/approvals", request.id)
    bob.page.get_by_role("button", name="Approve exactly this").wait_for()
    ana.page.get_by_role("button", name="Approve exactly this").click()
    bob.page.get_by_role("button", name="Approve exactly this").wait_for(state="hidden")
    shop.state("order-1", "committed")
    for one in (ana, bob):  # it has run: nothing is left to decide
        one.page.locator("#reject > summary").wait_for(state="hidden")
        one.page.get_by_role("link", name="Edit…").wait_for(state="hidden")


def test_two_clicks_are_one_approval(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    ana = visit(shop, "ana", "approver", expects=["409"])
    ana.goto("/approvals", asked(shop, "order-1").id)
    ana.page.get_by_role("button", name="Approve exactly this").dblclick()
    shop.state("order-1", "committed")
    assert paid(shop) == ["order-1"]


# ---- Doubts


def lose(site: Site, id: str = "order-1") -> Any:
    """Lose the bank's answer to a payment; return the call."""
    site.bank.close()

    def play(rt: Runtime) -> Any:
        run = rt.open(id, recover="wait")
        run.answer("pack", {"order": id, "item": "kettle"})
        run.answer("pay", {"order": id, "cents": 42_00})
        run.release()
        [call] = rt.doubts()
        return call

    return site.do(play)


def test_a_doubt_is_settled_after_its_probe(idle: Site, visit: Callable[..., Visitor]) -> None:
    call = lose(idle)
    olga = visit(idle)
    olga.goto("/doubts")
    olga.page.get_by_role("link", name="pay").first.click()
    olga.page.wait_for_url(f"**/doubts/{call.id}")
    idle.bank.open()
    olga.page.get_by_role("button", name="Run the probe").click()
    olga.page.locator(".flash").wait_for()
    assert idle.do(lambda rt: rt.call(call.id)).state == "in_doubt", "a probe decides nothing"
    olga.page.get_by_text("It happened…").click()
    olga.page.locator("#why-happened").fill("the bank's own list has it")
    confirmed(olga, "Record this answer", "Record this answer")
    olga.page.locator(".flash").wait_for()
    settled = idle.do(lambda rt: rt.call(call.id))
    assert (settled.state, settled.result) == ("succeeded", "pay_order-1")
    assert paid(idle) == ["order-1"]


def test_a_doubt_is_settled_without_scripts_on_a_page_that_asks_again(
    idle: Site, visit: Callable[..., Visitor]
) -> None:
    call = lose(idle)
    olga = visit(idle, script=False)
    olga.goto("/doubts", call.id)
    olga.page.get_by_text("It did not happen…").click()
    olga.page.locator("#why-absent").fill("the bank has nothing")
    olga.page.locator("#say-absent").get_by_role("button", name="Record this answer").first.click()
    assert idle.do(lambda rt: rt.call(call.id)).state == "in_doubt", "it asks first"
    olga.page.get_by_role("button", name="Record this answer").click()
    olga.page.locator(".flash").wait_for()
    assert idle.do(lambda rt: rt.call(call.id)).state == "failed"


# ---- Rollbacks


def begin(site: Site, id: str = "order-1") -> None:
    def play(rt: Runtime) -> None:
        run = rt.open(id, recover="wait")
        run.answer("pack", {"order": id, "item": "kettle"})
        run.answer("pay", {"order": id, "cents": 42_00})
        run.release()

    site.do(play)


def go_on(site: Site, id: str = "order-1") -> None:
    def play(rt: Runtime) -> None:
        run = rt.open(id, recover="wait")
        run.answer("pack", {"order": f"{id}-more", "item": "lamp"})
        run.release()

    site.do(play)


@pytest.mark.parametrize("script", [True, False], ids=["scripts", "no-scripts"])
def test_a_rollback_does_what_its_plan_said(idle: Site, visit: Callable[..., Visitor], script: bool) -> None:
    begin(idle)
    olga = visit(idle, script=script)
    olga.goto("/runs", "order-1")
    olga.page.get_by_role("link", name="Roll back").click()
    plan = olga.page.locator("#plan").inner_text()
    assert plan.index("claim_back") < plan.index("unpack"), "the last effect is taken back first"
    olga.page.get_by_label("Why").fill("the customer has changed their mind")
    if script:
        confirmed(olga, "Roll back…", "Roll back")
    else:
        olga.page.get_by_role("button", name="Roll back…").click()
        assert idle.do(lambda rt: rt.report("order-1")).state == "open", "it asks first"
        olga.page.get_by_role("button", name="Roll back", exact=True).click()
    olga.page.locator(".flash").wait_for()
    assert idle.do(lambda rt: rt.report("order-1")).state == "rolled_back"
    assert [next(iter(entry)) for entry in idle.bank.entries()] == ["packed", "paid", "claimed", "unpacked"]


def test_a_plan_that_is_not_true_any_more_is_refused_and_the_new_one_shown(
    idle: Site, visit: Callable[..., Visitor]
) -> None:
    begin(idle)
    olga = visit(idle, expects=["409"])
    olga.goto("/runs", "order-1", "rollback")
    olga.page.get_by_label("Why").fill("the customer has changed their mind")
    olga.page.get_by_role("button", name="Roll back…").click()
    dialog = olga.page.locator("dialog[open]")
    dialog.wait_for()
    go_on(idle)
    with olga.page.expect_navigation() as answered:
        dialog.get_by_role("button", name="Roll back", exact=True).click()
    assert answered.value.status == 409
    assert idle.do(lambda rt: rt.report("order-1")).state == "open"
    assert not any("claimed" in entry or "unpacked" in entry for entry in idle.bank.entries())
    assert "order-1-more" in olga.page.locator("#plan").inner_text(), "the new plan is shown"
    assert olga.page.get_by_label("Why").input_value() == "the customer has changed their mind"
    confirmed(olga, "Roll back…", "Roll back")
    olga.page.locator(".flash").wait_for()
    assert idle.do(lambda rt: rt.report("order-1")).state == "rolled_back"
