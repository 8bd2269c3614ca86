"""Text that wants to be more than text: in names, arguments, results and reasons, and in what is typed."""

from collections.abc import Callable

import pytest

from tests.console.browser.site import Site, Visitor
from tests.console.browser.test_decisions import LARGE, asked, begin, lose, paid

pytestmark = pytest.mark.rest
RUN = '"><img src=//evil.example/x onerror=alert(1)>'
NOTE = "</textarea></pre><script>document.title='owned'</script><svg onload=alert(2)>"


def assert_inert(visitor: Visitor) -> None:
    assert "owned" not in visitor.page.title()
    assert visitor.page.locator("main script, main img, main iframe, svg[onload]").count() == 0
    assert visitor.problems == []


def test_a_hostile_request_is_shown_and_decided_as_text(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order(RUN, cents=LARGE, note=NOTE, item=NOTE)
    [request] = shop.do(lambda rt: list(rt.approvals("state:pending")))
    ana = visit(shop, "ana", "approver")
    for address in (("/runs",), ("/approvals",), ("/approvals", request.id), ("/approvals", request.id, "edit")):
        ana.goto(*address)
        assert_inert(ana)
    ana.goto("/approvals", request.id)
    assert "onload=alert(2)" in ana.text, "it is read as it is"
    ana.page.get_by_text("Add a note").click()
    ana.page.locator("#approve-why").fill(NOTE)
    ana.page.get_by_role("button", name="Approve exactly this").click()
    ana.page.locator(".flash").wait_for()
    shop.state(RUN, "committed")
    call = shop.do(lambda rt: rt.report(RUN).calls[1].id)
    for address in (
        ("/runs", RUN),
        ("/calls", call),
        ("/approvals", request.id),
        ("/audit",),
        ("/runs", RUN, "rollback"),
    ):
        ana.goto(*address)
        assert_inert(ana)


def test_what_is_typed_comes_back_as_text(shop: Site, visit: Callable[..., Visitor]) -> None:
    shop.order("order-1", cents=LARGE)
    request = asked(shop, "order-1")
    ana = visit(shop, "ana", "approver", expects=["409", "400"])
    ana.goto("/approvals", request.id)
    shop.do(lambda rt: rt.approve(request.id, digest=request.digest, by="bob", why="x"))
    shop.state("order-1", "committed")
    form = {"csrf": ana.page.locator("body").get_attribute("data-csrf"), "words": NOTE, "reason": ""}
    answer = ana.context.request.post(
        f"{shop.url}/approvals/{request.id}/reject", form=form, headers={"Accept": "text/html"}
    )
    assert answer.status == 409
    assert "<script>document" not in answer.text()
    for query in ({"filter": NOTE}, {"after": NOTE}):
        ana.goto("/approvals", **query)
        assert_inert(ana)
    assert paid(shop) == ["order-1"]


def test_hostile_doubts_and_plans_are_text(idle: Site, visit: Callable[..., Visitor]) -> None:
    begin(idle, RUN)
    call = lose(idle, f"2{RUN}")
    olga = visit(idle)
    for address in (
        ("/doubts",),
        ("/doubts", call.id),
        ("/runs", RUN, "rollback"),
        ("/runs", f"2{RUN}"),
        ("/workers",),
    ):
        olga.goto(*address)
        assert_inert(olga)


def test_a_script_in_a_page_would_not_run_and_would_be_seen(idle: Site, visit: Callable[..., Visitor]) -> None:
    """The policy of the pages is the second wall; these tests see when somebody runs into it."""
    olga = visit(idle)
    olga.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}));"
        "document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.2:1/x.png'}))"
    )
    olga.page.wait_for_timeout(200)
    assert olga.page.evaluate("window.ran") is None
    assert any("script-src" in problem for problem in olga.problems)
    assert any("img-src" in problem for problem in olga.problems)
    olga.problems.clear()
