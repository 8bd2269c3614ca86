"""The page of a run and of a call: what they say, what they refuse, and how much they read."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from amends import Happened
from amends.errors import Error
from amends.serve.console import run as run_page
from amends.serve.console.run import ROWS
from amends.states import CALL_STATES
from tests.console.shop import BIDI, HOSTILE, Shop, Site, served, tags, words


def data(browser: TestClient, place: str) -> Any:
    answer = browser.get(place)
    assert answer.status_code == 200, answer.text
    return answer.json()


def call_of(site: Site, run: str, tool: str) -> str:
    return next(one.id for one in site.shop.rt.report(run).calls if one.tool == tool)


# ---- What it says


def test_the_head_says_who_when_and_what_it_cost(browser: TestClient) -> None:
    found = data(browser, "/runs/order-1001.json")
    assert (found["run"]["state"], found["run"]["agent"], found["run"]["principal"]) == ("committed", "clerk", "ana")
    assert (found["run"]["tags"], found["summary"]["calls"], found["summary"]["replays"]) == (["eu"], 5, 1)
    assert found["summary"]["costs"] == {"usd": "42"}
    assert found["summary"]["duration_s"] > 0
    assert found["stuck"] is None
    text = browser.get("/runs/order-1001").text
    assert all(word in text for word in ("order-1001", "clerk", "ana", "$42.00", "answered from the ledger"))


def test_the_timeline_and_the_list_have_the_same_calls_in_the_same_order(browser: TestClient) -> None:
    found = data(browser, "/runs/order-1001.json")
    assert [one["id"] for one in found["timeline"]["rows"]] == [one["id"] for one in found["calls"]]
    assert [one["tool"] for one in found["calls"]] == ["stock", "charge", "reserve", "ship", "mail"]
    page = browser.get("/runs/order-1001").text
    drawn = [attrs for tag, attrs in tags(page) if tag == "rect" and "bar bar-" in attrs.get("class", "")]
    assert len([one for one in drawn if "%" in one["x"]]) == sum(len(one["bars"]) for one in found["timeline"]["rows"])
    assert all(re.fullmatch(r"[\d.]+%?", one[name]) for one in drawn for name in ("x", "y", "width", "height"))


def test_attempts_are_bars_of_their_own_and_a_failed_one_says_so(browser: TestClient) -> None:
    found = data(browser, "/runs/order-1001.json")
    bars = next(one for one in found["timeline"]["rows"] if one["name"] == "reserve")["bars"]
    work = [one for one in bars if one["what"] == "work"]
    assert [(one["attempt"], one["is_failed"]) for one in work] == [(1, True), (2, True), (3, False)]
    assert next(one for one in found["calls"] if one["tool"] == "reserve")["attempts"] == 3


def test_the_pivot_is_a_line_and_what_waits_for_it_waits_its_turn(browser: TestClient) -> None:
    found = data(browser, "/runs/order-1001.json")
    assert "pivot" in [one["kind"] for one in found["timeline"]["marks"]]
    mail = next(one for one in found["timeline"]["rows"] if one["name"] == "mail")
    assert mail["bars"][-1]["what"] == "work"


def test_what_was_taken_back_is_hatched_and_joined_with_its_call(browser: TestClient) -> None:
    found = data(browser, "/runs/order-1002.json")
    rows = found["timeline"]["rows"]
    assert [[bar["what"] for bar in one["bars"]] for one in rows] == [["work", "undo"], ["work", "undo"]]
    assert "rollback" in [one["kind"] for one in found["timeline"]["marks"]]
    page = browser.get("/runs/order-1002").text
    hatched = [attrs for tag, attrs in tags(page) if tag == "rect" and "bar-undo" in attrs.get("class", "")]
    assert hatched
    assert all(one["fill"] == "url(#tl-hatch)" for one in hatched)


def test_who_waits_for_a_person_is_told_with_what_to_do(browser: TestClient, site: Site) -> None:
    found = data(browser, "/runs/order-1003.json")
    wire = next(one for one in found["timeline"]["rows"] if one["name"] == "wire")
    assert [bar["what"] for bar in wire["bars"]] == ["person"]
    assert wire["bars"][0]["is_open"]
    [cause] = found["stuck"]["causes"]
    assert (found["stuck"]["title"], "approval of a person" in cause["text"]) == ("It waits for approval", True)
    [asked] = [one.id for one in site.shop.rt.approvals() if one.call.run_id == "order-1003"]
    assert [one["to"] for one in cause["does"]] == [
        f"/approvals/{asked}",
        f"/calls/{call_of(site, 'order-1003', 'wire')}",
    ]


@pytest.mark.parametrize(
    "run, title, words, to",
    [
        ("order-1005", "An outcome is unknown", "book may have happened", "/doubts/"),
        ("order-1006", "This run is blocked", "its compensation failed: the bank has no such charge", "/calls/"),
        ("order-1012", "This run is blocked", "The block ended after the pivot", ""),
        ("order-1014", "This run is blocked", "book may have happened", "/doubts/"),
        ("order-1015", "It waits for a worker", "amends worker", ""),
        ("order-1016", "It waits for a retry", "tried again by itself", ""),
        ("order-1010", "It waits for its program", "can open it again", ""),
    ],
)
def test_a_run_that_does_not_go_on_says_why_in_one_sentence(
    browser: TestClient, run: str, title: str, words: str, to: str
) -> None:
    stuck = data(browser, f"/runs/{run}.json")["stuck"]
    assert stuck["title"] == title
    text = " ".join(one["text"] for one in stuck["causes"])
    assert words in text
    assert "rt." not in text, "a person at a page does not write Python"
    assert "call_" not in text
    links = [do["to"] for one in stuck["causes"] for do in one["does"]]
    assert [one for one in links if one.startswith(to)] if to else not links


def test_a_run_that_goes_on_and_one_that_has_ended_are_not_stuck(browser: TestClient) -> None:
    for run in ("order-1001", "order-1002", "order-1009", "order-1011", "order-1013"):
        assert data(browser, f"/runs/{run}.json")["stuck"] is None


def test_children_are_groups_with_links_and_know_their_parent(browser: TestClient) -> None:
    found = data(browser, "/runs/trip-7.json")
    assert [(one["name"], one["depth"]) for one in found["timeline"]["rows"]] == [
        ("trip-7/out", 0), ("reserve", 1), ("trip-7/back", 0), ("reserve", 1),
    ]  # fmt: skip
    page = browser.get("/runs/trip-7").text
    assert 'href="/runs/trip-7%2Fout"' in page
    child = data(browser, "/runs/trip-7%2Fout.json")
    assert (child["run"]["parent"], child["acts"]["rollback"]) == ("trip-7", False)
    assert 'href="/runs/trip-7"' in browser.get("/runs/trip-7%2Fout").text


def test_names_and_arguments_of_the_ledger_are_inert(browser: TestClient, site: Site) -> None:
    for run in (f"a/{HOSTILE}", BIDI, "report.json"):
        segment = quote(run, safe="").replace(".json", "%2Ejson")
        for place in (f"/runs/{segment}", f"/runs/{segment}/rollback"):
            text = browser.get(place).text
            assert "<img src=x" not in text
            assert "\u202e" not in words(text)
        for one in site.shop.rt.report(run).calls:
            text = browser.get(f"/calls/{one.id}").text
            assert "<img src=x" not in text
            assert "\u202e" not in words(text)


def test_no_page_has_inline_style_or_script(browser: TestClient, site: Site) -> None:
    call = call_of(site, "order-1006", "charge")
    for place in (
        "/runs/order-1006",
        f"/runs/order-1006?call={call}",
        f"/calls/{call}",
        "/runs/order-1009/rollback",
        "/compare",
    ):
        for tag, attrs in tags(browser.get(place).text):
            assert tag not in ("style", "iframe"), place
            assert not [name for name in attrs if name == "style" or name.startswith("on")], (place, tag)


# ---- Zoom and pages


def test_the_window_is_in_the_address_and_shows_only_what_lies_in_it(browser: TestClient) -> None:
    whole = data(browser, "/runs/order-1001.json")
    end = whole["timeline"]["end"]
    found = data(browser, f"/runs/order-1001.json?from={end * 0.99:.6f}&to={end + 1:.6f}")
    assert len(found["calls"]) < len(whole["calls"])
    assert found["zoom"]["is_zoomed"]
    assert data(browser, "/runs/order-1001.json?from=5000&to=6000")["calls"] == []
    assert "Nothing in this window" in browser.get("/runs/order-1001?from=5000&to=6000").text


@pytest.mark.parametrize("said", ["from=nan", "from=inf", "to=x", "page=0", "page=x", f"call={'x' * 300}"])
def test_an_address_that_makes_no_sense_is_refused(browser: TestClient, said: str) -> None:
    assert browser.get(f"/runs/order-1001?{said}").status_code == 422


@pytest.mark.parametrize("said", ["page=99999", "from=9&to=1", "gaps=whole", "gaps=x", "other=1"])
def test_an_odd_address_is_answered(browser: TestClient, said: str) -> None:
    assert browser.get(f"/runs/order-1001?{said}").status_code == 200


def test_a_long_run_is_paged_and_its_overview_leads_to_every_page() -> None:
    shop = Shop(fill=False, budgets=[])
    with shop.rt.run("long") as run:
        for number in range(2 * ROWS + 3):
            run.answer("reserve", {"order": str(number), "item": "x"})
    with served(shop) as site:
        browser = site.browse()
        found = data(browser, "/runs/long.json?page=3")
        assert (found["page"]["number"], found["page"]["of"], found["page"]["total"]) == (3, 3, 2 * ROWS + 3)
        assert len(found["calls"]) == len(found["timeline"]["rows"]) == 3
        for number in (1, 2, 3):
            columns = data(browser, f"/runs/long.json?page={number}")["overview"]
            assert any(one["is_here"] for one in columns), "every page has its place in the overview"
        assert columns[0]["page"] == 1
        call = shop.rt.report("long").calls[ROWS + 1].id
        assert data(browser, f"/runs/long.json?call={call}")["page"]["number"] == 2
        assert 'rel="prev"' in browser.get("/runs/long?page=3").text


def test_a_run_with_too_many_events_is_drawn_by_its_records(
    monkeypatch: pytest.MonkeyPatch, browser: TestClient
) -> None:
    monkeypatch.setattr(run_page, "EVENTS_MAX", 1)
    for run in ("order-1001", "order-1002", "order-1003", "order-1005", "trip-7"):
        found = data(browser, f"/runs/{run}.json")
        assert any(one["bars"] for one in found["timeline"]["rows"])
    kinds = [one["kind"] for one in data(browser, "/runs/order-1001.json")["timeline"]["marks"]]
    assert kinds == ["pivot", "end"]
    assert [one["kind"] for one in data(browser, "/runs/order-1002.json")["timeline"]["marks"]] == ["rollback", "end"]


def test_a_long_run_is_read_one_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_page, "LONG", 60)
    shop = Shop(fill=False, budgets=[])
    with shop.rt.run("long") as run:
        for number in range(ROWS + 20):
            run.answer("stock", {"item": str(number)})
        with run.child("c") as child:
            child.answer("stock", {"item": "x"})
    calls = [one.id for one in shop.rt.report("long").calls]
    with served(shop) as site:
        browser, seen = site.browse(), []
        read: list[Any] = []
        report = type(site.service.rt).report

        async def noted(rt: Any, run_id: str, **given: Any) -> Any:
            found = await report(rt, run_id, **given)
            read.append(run_page.calls_in(found))
            return found

        monkeypatch.setattr(type(site.service.rt), "report", noted)
        found = data(browser, "/runs/long.json")
        assert (found["summary"]["calls"], found["summary"]["is_long"], found["page"]["total"]) == (60, True, None)
        assert "60+" in words(browser.get("/runs/long").text)
        for _ in range(5):
            seen += [one["id"] for one in found["calls"]]
            if found["page"]["next"] is None:
                break
            found = data(browser, f"/runs/long.json?after={found['page']['next']}")
        assert seen[:-1] == calls
        assert len(seen) == len(calls) + 1, "the call of the child is there, too"
        assert max(read) <= 61, "no request reads the whole run"
        assert data(browser, "/runs/long.json?after=call_nobody")["calls"] == []
        assert data(browser, f"/runs/long%2Fc.json?after={calls[0]}")["calls"][0]["args"] == 'item="x"'


# ---- A call


def test_a_call_has_everything_that_the_ledger_has(browser: TestClient, site: Site) -> None:
    id = call_of(site, "order-1001", "charge")
    found = data(browser, f"/calls/{id}.json")
    assert found["call"]["args"] == {"order": "1001", "cents": 4200}
    assert found["call"]["digest"]
    assert found["call"]["key"]
    assert found["told"] == {"status": "done", "text": '"ch_1001"'}
    assert [one["then"] for one in found["attempts"]] == ["succeeded"]
    assert [one["to"] for one in found["events"]] == ["started", "succeeded"]
    text = browser.get(f"/calls/{id}").text
    for word in (id, found["call"]["digest"], found["call"]["key"]):
        assert f'data-copy="{word}"' in text


def test_a_call_that_waits_leads_to_its_approval_and_one_in_doubt_to_its_doubt(browser: TestClient, site: Site) -> None:
    held = data(browser, f"/calls/{call_of(site, 'order-1003', 'wire')}.json")
    [asked] = held["approvals"]
    assert (asked["state"], "needs a person's approval" in held["told"]["text"]) == ("pending", True)
    assert f"/approvals/{asked['id']}" in browser.get(f"/calls/{held['call']['id']}").text
    lost = data(browser, f"/calls/{call_of(site, 'order-1005', 'book')}.json")
    assert (lost["doubt"]["about"], lost["acts"]["doubt"], lost["told"]["status"]) == ("call", True, "in_doubt")


def test_a_call_is_a_part_for_a_drawer_and_opened_by_the_address_of_its_run(browser: TestClient, site: Site) -> None:
    id = call_of(site, "order-1001", "charge")
    part = browser.get(f"/calls/{id}", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert "What the model was told" in part
    page = browser.get(f"/runs/order-1001?call={id}").text
    assert 'id="open-drawer"' in page
    assert "What the model was told" in page
    assert browser.get("/runs/order-1001?call=call_nobody").status_code == 404


def test_a_call_in_a_long_run_reads_only_what_follows_it() -> None:
    shop = Shop(fill=False, budgets=[])
    with shop.rt.run("long") as run:
        for number in range(300):
            run.answer("stock", {"item": str(number)})
    last = shop.rt.report("long").calls[-1].id
    assert [one.call_id for one in shop.rt.events("long", filter=f"call:{last}")] == [last, last]
    with served(shop) as site:
        found = data(site.browse(), f"/calls/{last}.json")
        assert [one["to"] for one in found["events"]] == ["started", "succeeded"]


def test_a_call_shows_a_compensation_that_came_long_after_it() -> None:
    shop = Shop(fill=False, budgets=[])
    with suppress(ValueError), shop.rt.run("long") as run:
        run.answer("charge", {"order": "1", "cents": 1})
        for number in range(150):
            run.answer("stock", {"item": str(number)})
        raise ValueError("the customer has changed their mind")
    first = shop.rt.report("long").calls[0]
    assert first.state == "compensated"
    with served(shop) as site:
        found = data(site.browse(), f"/calls/{first.id}.json")
        assert [(one["what"], one["then"]) for one in found["attempts"]] == [
            ("body", "succeeded"),
            ("compensation", "compensated"),
        ]


def test_what_was_learned_about_a_doubt_stays_with_its_call() -> None:
    with served() as site:
        olga = site.browse()
        lost = call_of(site, "order-1005", "book")
        with suppress(Error):
            site.shop.rt.probe(lost)
        before = data(olga, f"/calls/{lost}.json")["evidence"]
        site.shop.rt.resolve(lost, Happened("b_5"), by="olga", why="it is in their list")
        found = data(olga, f"/calls/{lost}.json")
        assert found["doubt"] is None
        assert found["evidence"][:-1] == before
        last = found["evidence"][-1]
        assert (last["by"], last["answer"], last["why"]) == ("olga", "succeeded", "it is in their list")
        text = words(olga.get(f"/calls/{lost}").text)
        assert "Evidence" in text
        assert "it is in their list" in text


def test_a_call_took_as_long_as_all_its_attempts(browser: TestClient, site: Site) -> None:
    line = next(one for one in data(browser, "/runs/order-1001.json")["calls"] if one["tool"] == "reserve")
    attempts = data(browser, f"/calls/{line['id']}.json")["attempts"]
    assert len(attempts) == 3
    assert line["took_s"] == pytest.approx(sum(one["took_s"] for one in attempts))


def test_every_state_of_a_call_can_be_shown(browser: TestClient, site: Site) -> None:
    seen = set()
    for call in site.shop.rt.calls():
        answer = browser.get(f"/calls/{call.id}")
        assert answer.status_code == 200, (call.state, answer.text)
        seen.add(call.state)
    assert seen >= {"succeeded", "compensated", "held", "in_doubt", "compensation_failed"}
    assert seen <= set(CALL_STATES)


# ---- Acts


def test_only_an_operator_ends_a_run_and_the_forms_say_so() -> None:
    with served() as site:
        viewer = site.browse("viewer", name="vera")
        assert "Abandon" not in viewer.get("/runs/order-1006").text
        assert site.send(viewer, "/runs/order-1006/abandon", why="x", confirmed="yes").status_code == 403
        assert site.shop.rt.info("order-1006").state == "blocked"


def test_abandoning_is_asked_about_first_with_its_count() -> None:
    with served() as site:
        olga = site.browse()
        assert site.send(olga, "/runs/order-1006/abandon", why="").status_code == 422
        asked = site.send(olga, "/runs/order-1006/abandon", why="by hand")
        assert (asked.status_code, "1 effect of order-1006 will stay" in asked.text) == (200, True)
        assert site.shop.rt.info("order-1006").state == "blocked"
        done = site.send(olga, "/runs/order-1006/abandon", why="by hand", confirmed="yes")
        assert (done.status_code, done.headers["location"]) == (303, "/runs/order-1006")
        assert site.shop.rt.info("order-1006").state == "abandoned"
        assert "1 effect left standing" in olga.get("/runs/order-1006").text
        again = site.send(olga, "/runs/order-1006/abandon", why="by hand", confirmed="yes")
        assert again.status_code == 400, "what went wrong is told above the page that it came from"
        assert "by hand" in again.text or "abandoned" in again.text


def test_a_run_that_ended_early_after_its_pivot_is_finished() -> None:
    with served() as site:
        olga = site.browse()
        assert "Finish the run" in olga.get("/runs/order-1012").text
        done = site.send(olga, "/runs/order-1012/finish", why="it arrived", confirmed="yes")
        assert done.status_code == 303
        assert site.shop.rt.info("order-1012").state == "committed"


def test_a_compensation_that_gave_up_is_tried_once_more_or_accepted() -> None:
    with served() as site:
        olga, call = site.browse(), call_of(site, "order-1006", "charge")
        page = olga.get(f"/calls/{call}").text
        assert f"/calls/{call}/retry" in page
        assert f"/calls/{call}/accept" in page
        site.shop.world.is_refund_down = False
        done = site.send(olga, f"/calls/{call}/retry", why="the bank is back")
        assert (done.status_code, done.headers["location"]) == (303, "/runs/order-1006")
        assert site.shop.rt.info("order-1006").state == "rolled_back"
    with served() as site:
        olga, call = site.browse(), call_of(site, "order-1006", "charge")
        assert "1 effect stays" in site.send(olga, f"/calls/{call}/accept", why="paid by hand").text
        assert site.send(olga, f"/calls/{call}/accept", why="paid by hand", confirmed="yes").status_code == 303
        assert site.shop.rt.call(call).state == "residue"


def test_a_run_is_forked_at_a_call_and_both_know_of_it() -> None:
    with served() as site:
        olga, call = site.browse(), call_of(site, "order-1001", "charge")
        done = site.send(olga, f"/calls/{call}/fork", id="order-1001-b")
        assert (done.status_code, done.headers["location"]) == (303, "/runs/order-1001-b")
        fork = data(olga, "/runs/order-1001-b.json")
        assert (fork["run"]["forked_from"], [one["shared"] is None for one in fork["calls"]]) == (
            "order-1001",
            [False, False],
        )
        assert data(olga, "/runs/order-1001.json")["forks"] == ["order-1001-b"]
        [forked] = [one for one in site.shop.rt.events("order-1001") if one.what == "forked"]
        assert forked.by == "olga", "not the principal of the run, for whom she made it"
        taken = site.send(olga, f"/calls/{call_of(site, 'order-1001', 'reserve')}/fork", id="order-1001-b")
        assert (taken.status_code, "exists already" in taken.text) == (422, True)
