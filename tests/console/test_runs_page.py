"""The list of runs: what it shows, its filter, its counts, and that its data is the same as JSON."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from amends.host.filters import RUN_FIELDS, parse_filter
from amends.serve.console import html, runs
from amends.states import CALL_STATES, RUN_STATES
from tests.console.shop import BIDI, HOSTILE, Site, served, tags, words


def test_every_state_has_a_word_a_glyph_and_a_tone(browser: TestClient) -> None:
    text = browser.get("/runs").text
    shown = {attrs["data-state"] for tag, attrs in tags(text) if "data-state" in attrs}
    assert shown == set(RUN_STATES)
    for state in (*RUN_STATES, *CALL_STATES, "pending", "approved", "rejected", "expired", "used", "cancelled"):
        assert state in html.LOOKS
        assert html.look(state).word in words(html.environment().from_string(
            '{% import "macros.html" as m %}{{ m.status(state) }}').render(state=state))  # fmt: skip
    assert html.look("something_new").word == "something new"


def test_the_same_data_is_there_as_json(browser: TestClient) -> None:
    data = browser.get("/runs.json?filter=run:order-1001").json()
    [run] = data["runs"]
    assert (run["id"], run["state"], run["calls"], run["repeats"]) == ("order-1001", "committed", 5, 1)
    assert run["costs"] == {"usd": "42"}
    assert data["costs"] == {"usd": "42"}
    page = words(browser.get("/runs?filter=run:order-1001").text)
    for said in ("order-1001", "committed", "$42.00", "1 call not made twice"):
        assert said in page


def test_counts_are_shown_for_each_state(browser: TestClient) -> None:
    data = browser.get("/runs.json").json()
    counts = {one["state"]: one["count"] for one in data["states"]}
    assert counts[""] == len(data["runs"]) == sum(count for state, count in counts.items() if state)
    assert set(counts) == {"", *RUN_STATES}


@pytest.mark.parametrize(
    "count, is_all, text",
    [(0, True, "0"), (12, True, "12"), (999, True, "999"), (1_000, True, "1,000+"), (5_000, True, "1,000+"),
     (12, False, "12+"), (0, False, ""), (1_000, False, "1,000+")],
)  # fmt: skip
def test_a_count_is_bounded_and_says_so(count: int, is_all: bool, text: str) -> None:
    assert runs.count_text(count, is_all=is_all) == text


def test_a_choice_of_state_keeps_the_rest_of_the_filter(browser: TestClient) -> None:
    data = browser.get("/runs.json", params={"filter": 'agent:clerk state:open run:"order 7"'}).json()
    states = {one["state"]: one for one in data["states"]}
    assert states["blocked"]["filter"] == 'agent:clerk run:"order 7" state:blocked'
    assert states[""]["filter"] == 'agent:clerk run:"order 7"'
    assert [state for state, one in states.items() if one["is_on"]] == ["open"]


def test_a_filter_is_told_what_is_wrong_with_it_and_kept(browser: TestClient) -> None:
    answer = browser.get("/runs", params={"filter": 'colour:red "><script>'})
    assert answer.status_code == 200
    page = words(answer.text)
    assert "is invalid" in page or "unbalanced" in page
    [box] = [attrs for tag, attrs in tags(answer.text) if "data-filter" in attrs]
    assert box["value"] == 'colour:red "><script>'
    assert box["aria-invalid"] == "true"
    assert browser.get("/runs?after=nonsense").status_code == 200
    assert browser.get("/runs?limit=0").status_code == 422


def test_every_word_that_is_suggested_is_one_of_the_grammar() -> None:
    for word, _ in runs.WORDS:
        whole = word if not word.endswith((":", ".")) else f"{word}{'x:1' if word.endswith('.') else 'x'}"
        parse_filter(whole, RUN_FIELDS)
    fields = {word.partition(":")[0].partition(".")[0] for word, _ in runs.WORDS}
    assert fields == set(RUN_FIELDS)


def test_hostile_names_lead_to_their_own_pages(browser: TestClient) -> None:
    links = [attrs["href"] for tag, attrs in tags(browser.get("/runs").text) if "data-row" in attrs]
    assert html.path("/runs", f"a/{HOSTILE}") in links
    assert html.path("/runs", BIDI) in links
    assert "/runs/report%2Ejson" in links


def test_pages_follow_each_other(browser: TestClient) -> None:
    seen: list[str] = []
    place = "/runs.json?limit=4"
    for _ in range(20):
        data = browser.get(place).json()
        seen += [run["key"] for run in data["runs"]]
        if data["next"] is None:
            break
        place = f"/runs.json?limit=4&after={data['next']}"
    assert len(seen) == len(set(seen)) == len(browser.get("/runs.json?limit=200").json()["runs"])
    text = browser.get("/runs?limit=4").text
    assert [attrs["href"] for tag, attrs in tags(text) if attrs.get("rel") == "next"]


def test_an_empty_ledger_says_how_to_make_a_run_and_an_empty_search_how_to_end_it() -> None:
    with served(fill=False) as site:
        page = words(site.browse().get("/runs").text)
        assert "No runs yet" in page
        assert "with rt.run(" in page
        site.shop.rt.open("r").commit()
        assert "No run matches" in words(site.browse().get("/runs?filter=state:blocked").text)


def test_a_part_is_sent_without_the_frame(site: Site) -> None:
    browser = site.browse()
    part = browser.get("/runs", headers={"HX-Request": "true"}).text
    assert '<nav aria-label="Pages"' not in part
    assert 'id="runs" data-live' in part
    expired = site.visit().get("/runs", headers={"HX-Request": "true"})
    assert expired.status_code == 401


def test_another_tenant_sees_nothing_of_it(site: Site) -> None:
    assert "No runs yet" in words(site.browse("viewer", name="zoe", tenant="acme").get("/runs").text)
