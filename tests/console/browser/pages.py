"""An address for every page of the console, in a ledger that has a run in every state."""

from __future__ import annotations

from amends import Runtime
from amends.serve.console import PAGES
from tests.console.browser.site import Site
from tests.console.shop import BIDI, HOSTILE

Address = tuple[str, ...]
NOT_PAGES = {"home", "static", "live", "verification", "replay"}
"""What a browser gets besides pages, and the pages of a verification and a replay, which exist after one was begun."""


def addresses(site: Site) -> dict[str, list[Address]]:
    """Return addresses of each page by the page's name: those that look different."""
    return site.do(_addresses)


def _addresses(rt: Runtime) -> dict[str, list[Address]]:
    runs = [one.id for one in rt.runs()]
    asked = [one.id for one in rt.approvals("state:pending")]
    doubts = [one.id for one in rt.doubts()]
    some = ["order-1001", "order-1002", "order-1003", "order-1006", "trip-7", "order-1011", BIDI, f"a/{HOSTILE}"]
    assert set(some) <= set(runs)
    calls = [rt.report(id).calls[0].id for id in ("order-1001", "order-1002", "order-1006", f"a/{HOSTILE}")]
    return {
        "runs": [("/runs",)],
        "run": [("/runs", id) for id in some],
        "rollback": [("/runs", id, "rollback") for id in ("order-1009", "order-1001", "order-1003")],
        "call": [("/calls", id) for id in calls],
        "approvals": [("/approvals",)],
        "approval": [("/approvals", id) for id in asked],
        "approval_edit": [("/approvals", asked[0], "edit")],
        "doubts": [("/doubts",)],
        "doubt": [("/doubts", id) for id in doubts],
        "stuck": [("/doubts/runs", id) for id in ("order-1006", "order-1012", "order-1014")],
        "costs": [("/costs",)],
        "audit": [("/audit",)],
        "compare": [("/compare",), ("/compare?a=order-1001&b=order-1002",)],
        "tools": [("/tools",)],
        "tool": [("/tools", name) for name in ("charge", "book")],
        "workers": [("/workers",)],
        "tokens": [("/tokens",)],
    }


def served_pages() -> list[str]:
    """Return the names of the pages that a person can look at."""
    return [page.name for page in PAGES if page.method == "GET" and page.name not in NOT_PAGES]
