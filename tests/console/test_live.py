"""Changes reach a page as messages that name runs and nothing else of the ledger; whoever was away gets one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from amends.serve import Limits
from amends.serve.console import live
from amends.serve.events import POLL_S
from tests.console.shop import Site, served, tags


def followed(
    site: Site, monkeypatch: pytest.MonkeyPatch, browser: Any, place: str, *polls: Callable[[], object], after: str = ""
) -> list[tuple[str, str, Any]]:
    """Follow a stream, do one thing between two of its looks each, and return its messages: event, id, data."""
    left, sleep = [*polls], asyncio.sleep

    async def pause(seconds: float) -> None:
        if seconds != POLL_S:  # the service itself, which would otherwise never let anybody else go on
            await sleep(seconds)
        elif left:
            left.pop(0)()
        else:
            site.service.is_closing = True

    monkeypatch.setattr(asyncio, "sleep", pause)
    try:
        answer = browser.get(place, headers={"Last-Event-ID": after} if after else {})
    finally:
        monkeypatch.undo()
        site.service.is_closing = False
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return found


def test_a_change_is_told_once_with_the_place_to_go_on_after(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(fill=False) as site:
        browser, rt = site.browse(), site.shop.rt
        [attrs] = [attrs for _, attrs in tags(browser.get("/runs").text) if attrs.get("id") == "live"]
        place = attrs["hx-sse:connect"]
        said = followed(site, monkeypatch, browser, place, lambda: rt.open("r1").commit(), lambda: None)
        assert said[0][0] == "hello"  # then the login itself, a moment ago, may be told once more
        assert [data for event, _, data in said if event == "change" and "r1" in data["runs"]] == [
            {"runs": ["r1"], "many": False}
        ]
        last = said[-1][1]
        again = followed(site, monkeypatch, browser, place, lambda: rt.open("r2").commit(), after=last)
        assert [data["runs"] for event, _, data in again if event == "change"][-1] == ["r2"]
        assert all(id for event, id, _ in again if event == "change")


def test_whoever_was_away_for_long_gets_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(fill=False) as site:
        browser = site.browse()
        for number in range(40):
            site.shop.rt.open(f"r{number}").commit()
        monkeypatch.setattr(live, "EVENTS_MAX", 30)
        said = followed(site, monkeypatch, browser, "/live", lambda: None, lambda: None)
        assert [event for event, _, _ in said] == ["hello", "change"]
        assert said[1][2]["many"]


def test_a_page_of_one_run_follows_that_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(fill=False) as site:
        browser, rt = site.browse(), site.shop.rt
        run = rt.open("mine")
        said = followed(
            site, monkeypatch, browser, "/live?run=mine", lambda: rt.open("other").commit(), lambda: run.commit()
        )
        assert {name for event, _, data in said if event == "change" for name in data["runs"]} == {"mine"}
        assert browser.get("/live?run=nobody").status_code == 404
        assert site.browse("viewer", name="zoe", tenant="acme").get("/live?run=mine").status_code == 404


def test_a_wrong_place_is_an_error_and_streams_are_limited() -> None:
    with served(fill=False, limits=Limits(requests_per_s=1_000, streams_max=0)) as site:
        browser = site.browse()
        assert browser.get("/live?after=nonsense").status_code == 400
        assert browser.get("/live").status_code == 429


def test_nobody_follows_without_a_login(site: Site) -> None:
    assert site.visit().get("/live").status_code == 303
    assert site.visit().get("/live", headers={"Accept": "text/event-stream"}).status_code == 401
