"""A run beside its replay: what its agent would do today, and the first difference."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.console.shop import HOSTILE, Shop, Site, served, tags, words


class Clerk:
    """An agent whose program can be changed."""

    def __init__(self) -> None:
        self.cents, self.mails, self.name = 4200, ["ben@example.com"], ""

    def __call__(self, run: Any) -> str:
        order = self.name or run.id
        for _ in range(4):
            run.answer("stock", {"item": f"{order} {_}"})
        run.answer("charge", {"order": order, "cents": self.cents})
        for one in self.mails:
            run.answer("mail", {"to": one})
        return "done"


@contextmanager
def replayable() -> Iterator[tuple[Site, Clerk, TestClient]]:
    clerk = Clerk()
    shop = Shop(fill=False, agents={"clerk": clerk})
    shop.rt.start("clerk", id="order-1")
    with served(shop) as site:
        yield site, clerk, site.browse()


def replayed(site: Site, browser: TestClient, run: str = "order-1") -> Any:
    """Replay a run as a person does, and return what the page of the replay has."""
    begun = site.send(browser, f"/runs/{run}/replay")
    assert begun.status_code == 303, begun.text
    for _ in range(500):
        data = browser.get(f"{begun.headers['location']}.json").json()
        if data["job"]["state"] != "running":
            return data | {"page": browser.get(begun.headers["location"]).text}
        time.sleep(0.01)
    raise AssertionError("it did not end")


def test_an_agent_that_does_the_same_is_told_so_and_nothing_was_done() -> None:
    with replayable() as (site, _, olga):
        before = (dict(site.shop.world.charges), list(site.shop.world.mails), len(list(site.shop.rt.events("order-1"))))
        found = replayed(site, olga)
        assert (found["replayed"]["same"], found["replayed"]["agent"]) == (True, "clerk")
        assert "The agent does the same today" in words(found["page"])
        assert [(one["folded"], one["said"], one["is_first"]) for one in found["rows"]] == [(6, "as recorded", False)]
        after = (dict(site.shop.world.charges), list(site.shop.world.mails), len(list(site.shop.rt.events("order-1"))))
        assert after == before


def test_the_first_difference_stands_beside_the_recorded_call() -> None:
    with replayable() as (site, clerk, olga):
        clerk.cents = 9900
        found = replayed(site, olga)
        folded, first, last = found["rows"]
        assert (folded["from"], folded["to"], folded["said"]) == (1, 4, "as recorded")
        assert (first["number"], first["call"]["tool"], first["is_first"]) == (5, "charge", True)
        assert first["diff"] == [{"path": "cents", "left": "4200", "right": "9900"}]
        assert (last["call"]["tool"], last["said"]) == ("mail", "not reached")
        assert found["page"].count('id="first"') == 1
        assert "Call 5 differs" in words(found["page"])


@pytest.mark.parametrize(
    "mails, title, number, is_recorded",
    [
        ([], "The agent ended before its record", 6, True),
        (["ben@example.com", "eve@example.com"], "The agent went on after the end of the record", 7, False),
    ],
)
def test_a_program_that_ends_sooner_or_later_than_its_record_is_marked_there(
    mails: list[str], title: str, number: int, is_recorded: bool
) -> None:
    with replayable() as (site, clerk, olga):
        clerk.mails = mails
        found = replayed(site, olga)
        [first] = [one for one in found["rows"] if one["is_first"]]
        assert (first["number"], first["call"] is not None) == (number, is_recorded)
        assert title in words(found["page"])


def test_what_a_replay_says_is_no_html() -> None:
    with replayable() as (site, clerk, olga):
        clerk.name = HOSTILE
        page = replayed(site, olga)["page"]
        assert HOSTILE in words(page)
        assert "img" not in [name for name, _ in tags(page)]


def test_a_replay_of_another_server_says_that_it_is_begun_again() -> None:
    with replayable() as (_, _clerk, olga):
        answer = olga.get("/replays/work_of_yesterday")
        assert answer.status_code == 404
        assert "Begin it again" in words(answer.text)
        assert "/v1/" not in words(answer.text)


def test_a_run_whose_agent_is_not_here_has_no_button_and_names_the_command() -> None:
    with replayable() as (site, _, olga):
        with site.shop.rt.run("other run"):
            pass
        assert "/runs/order-1/replay" in olga.get("/runs/order-1").text
        assert "/runs/order-1/replay" in olga.get("/compare?a=order-1").text
        assert "/replay" not in olga.get("/runs/other%20run").text
        assert "amends replay 'other run' --against APP:FN" in words(olga.get("/compare?a=other+run").text)
        answer = site.send(olga, "/runs/other%20run/replay")
        assert answer.status_code == 404
        viewer = site.browse("viewer")
        assert "/runs/order-1/replay" not in viewer.get("/runs/order-1").text
        assert "/runs/order-1/replay" not in viewer.get("/compare?a=order-1").text
