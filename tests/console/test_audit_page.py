"""The audit: events with who and why, verifying with progress, the first bad event, checkpoints and bundles."""

from __future__ import annotations

import io
import sqlite3
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.console.shop import Shop, Site, served, tags, words


@pytest.fixture(scope="module")
def own() -> Iterator[Site]:
    """A shop that these tests change."""
    with served() as made:
        yield made


def verified(site: Site, browser: TestClient, **fields: str) -> Any:
    """Verify the record as a person does, and return what the page of the verification has."""
    begun = site.send(browser, "/audit/verify", **fields)
    assert begun.status_code == 303, begun.text
    for _ in range(200):
        data = browser.get(f"{begun.headers['location']}.json").json()
        if data["job"]["state"] != "running":
            return data | {"page": browser.get(begun.headers["location"])}
        time.sleep(0.01)
    raise AssertionError("it did not end")


# ---- Events


def test_events_are_listed_newest_first_with_who_and_why(browser: TestClient, site: Site) -> None:
    data = browser.get("/audit.json").json()
    whole = list(site.shop.rt.events())
    assert [one["place"] for one in data["events"]] == [event.place for event in whole[::-1][:50]]
    [left] = browser.get("/audit.json?filter=state:abandoned").json()["events"]
    assert (left["by"], left["why"], left["run_id"]) == ("olga", "settled by hand", "order-1011")
    page = browser.get("/audit?filter=state:abandoned")
    assert "settled by hand" in words(page.text)


def test_pages_of_events_go_on_where_the_one_before_ended(browser: TestClient, site: Site) -> None:
    found: list[str] = []
    after = ""
    for _ in range(20):
        data = browser.get("/audit.json", params={"after": after}).json()
        found += [one["place"] for one in data["events"]]
        after = data["next"]
        if after is None:
            break
    assert found == [event.place for event in site.shop.rt.events()][::-1]


def test_the_events_of_a_run_come_in_the_order_of_its_chain(browser: TestClient) -> None:
    data = browser.get("/audit.json?run=order-1001").json()
    assert [one["seq"] for one in data["events"]] == list(range(1, len(data["events"]) + 1))
    assert {one["run_id"] for one in data["events"]} == {"order-1001"}
    assert browser.get("/audit?run=nobody").status_code == 404


def test_what_is_ordered_for_no_run_has_no_link_to_one(own: Site) -> None:
    browser = own.browse()
    own.shop.rt.halt(by="olga", why="a test", tenant="", tool="ship")
    own.shop.rt.unhalt(by="olga", why="it is over", tenant="", tool="ship")
    [halted] = browser.get("/audit.json?filter=what:halted").json()["events"]
    assert not halted["is_run"]
    page = browser.get("/audit?filter=what:halted").text
    assert not [attrs for tag, attrs in tags(page) if tag == "a" and attrs["href"].startswith("/runs/hlt_")]


@pytest.mark.parametrize("query", ["filter=nonsense", "filter=state:nowhere", "after=nowhere", "filter=at:>=monday"])
def test_a_filter_that_cannot_be_understood_is_told_beside_the_box(browser: TestClient, query: str) -> None:
    page = browser.get(f"/audit?{query}")
    assert page.status_code == 200
    assert "filter-problem" in page.text


def test_an_act_shows_the_token_by_which_it_was_done(own: Site) -> None:
    browser = own.browse()
    own.send(browser, "/halts", tool="mail", why="too many", confirmed="yes")
    [event] = (
        browser.get("/audit.json?filter=what:halted by:olga tool:*").json()["events"]
        or browser.get("/audit.json?filter=what:halted by:olga age:<1m").json()["events"][:1]
    )
    assert event["token"], "the login is named"
    assert event["why"] == "too many"


# ---- Verifying


def test_a_record_that_nobody_changed_is_unchanged(own: Site) -> None:
    browser = own.browse()
    data = verified(own, browser)
    assert data["job"]["result"] == "unchanged"
    assert data["first"] is None
    assert "Every event is as it was written" in words(data["page"].text)
    history = browser.get("/audit.json?tab=verify").json()["jobs"]
    assert history[0]["id"] == data["job"]["id"]
    assert (history[0]["by"], history[0]["what"]) == ("olga", "")
    some = verified(own, browser, runs="order-1001\r\norder-1002\r\n")
    assert some["job"]["runs"] == 2
    assert "order-1001 order-1002" in words(browser.get("/audit?tab=verify").text)


def test_a_verification_of_a_run_that_is_not_there_says_so(own: Site) -> None:
    data = verified(own, own.browse(), runs="nobody")
    assert data["job"]["result"] == "failed"
    assert "nobody" in words(data["page"].text)


def test_the_first_bad_event_is_shown_with_what_was_expected(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    shop = Shop(f"sqlite:///{file}", fill=False)
    for number in range(3):
        with shop.rt.run(f"run-{number}") as run:
            run.answer("charge", {"order": f"o-{number}", "cents": 100})
    with sqlite3.connect(file) as database:
        database.execute("update amends_event set by_whom = 'somebody else' where run_id = 'run-1' and what = 'goal'")
        assert database.total_changes == 1
    with served(shop) as site:
        data = verified(site, site.browse())
    assert data["job"]["result"] == "changed"
    first = data["first"]
    assert (first["run"], first["how"]) == ("run-1", "edited")
    assert first["expected"]
    assert [one["seq"] for one in first["around"] if one["is_bad"]] == [first["event"]]
    text = words(data["page"].text)
    assert "The first bad event" in text
    assert first["expected"] in text
    assert "is-bad" in data["page"].text


def test_only_operators_verify_and_see_verifications(own: Site) -> None:
    viewer = own.browse("viewer", name="vera")
    assert own.send(viewer, "/audit/verify").status_code == 403
    assert viewer.get("/audit?tab=verify").status_code == 200
    assert viewer.get("/audit.json?tab=verify").json()["jobs"] == []
    job = verified(own, own.browse())["job"]["id"]
    assert viewer.get(f"/audit/{job}").status_code == 403
    assert own.browse().get("/audit/vrf_nobody").status_code == 404


def test_a_verification_of_another_tenant_is_not_found(own: Site) -> None:
    job = verified(own, own.browse())["job"]["id"]
    other = own.browse("operator", name="otto", tenant="other")
    assert other.get(f"/audit/{job}").status_code == 404
    assert other.get("/audit.json?tab=verify").json()["jobs"] == []


# ---- Checkpoints


def test_checkpoints_are_listed_and_written_by_who_may_for_every_tenant(own: Site) -> None:
    wide = own.browse("operator", name="eve", tenant=None)  # type: ignore[arg-type]
    done = own.send(wide, "/audit/checkpoint", why="before the move")
    assert done.status_code == 303, done.text
    [ordered] = wide.get('/audit.json?filter=what:"work ordered"').json()["events"]
    assert (ordered["who"], ordered["why"], ordered["is_run"]) == ("eve", "checkpoint: before the move", False)
    assert ordered["token"].startswith("tok_")
    data = wide.get("/audit.json?tab=checkpoints").json()
    assert data["may_sign"]
    assert data["checkpoints"][0]["n"] == len(own.shop.rt.checkpoints())
    assert "not signed" in words(wide.get("/audit?tab=checkpoints").text)
    narrow = own.browse("operator", name="otto", tenant="other")
    assert not narrow.get("/audit.json?tab=checkpoints").json()["may_sign"]
    assert own.send(narrow, "/audit/checkpoint").status_code == 403


# ---- Bundles


def test_a_bundle_is_downloaded_and_loaded_again(own: Site) -> None:
    browser = own.browse()
    got = own.send(browser, "/audit/export", runs="order-1001\norder-1002")
    assert got.status_code == 200
    assert got.headers["content-disposition"] == 'attachment; filename="amends-bundle.zip"'
    assert zipfile.ZipFile(io.BytesIO(got.content)).namelist()
    with served(fill=False) as empty:
        other = empty.browse()
        form = {"csrf": empty.csrf(other), "why": "an audit"}
        loaded = other.post("/audit/load", data=form, files={"bundle": ("b.zip", got.content)})
        assert loaded.status_code == 303, loaded.text
        assert "Loaded 2 runs." in words(other.get(loaded.headers["location"]).text)
        assert {run.id for run in empty.shop.rt.runs() if run.origin} == {"order-1001", "order-1002"}
        [event] = other.get('/audit.json?filter=what:"runs loaded"').json()["events"]
        assert (event["who"], event["why"], len(event["facts"]["heads"])) == ("olga", "an audit", 2)
        assert event["token"].startswith("tok_")
        again = other.post("/audit/load", data={"csrf": empty.csrf(other)}, files={"bundle": ("b.zip", got.content)})
        assert again.status_code == 303, "what is here already stays as it is"


@pytest.mark.parametrize("runs", ["", "   ", "nobody"])
def test_an_export_of_nothing_is_refused_and_keeps_what_was_typed(own: Site, runs: str) -> None:
    answer = own.send(own.browse(), "/audit/export?tab=bundles", runs=runs)
    assert answer.status_code in (404, 422)
    assert "application/zip" not in answer.headers["content-type"]
    assert f">{runs}</textarea>" in answer.text, "the form is shown again as it was"


def test_a_bundle_is_loaded_only_with_the_text_of_ones_own_login(own: Site) -> None:
    browser = own.browse()
    file = {"bundle": ("b.zip", b"PK")}
    assert browser.post("/audit/load", files=file).status_code == 403
    assert browser.post("/audit/load", data={"csrf": "forged"}, files=file).status_code == 403
    viewer = own.browse("viewer", name="vera")
    assert viewer.post("/audit/load", data={"csrf": own.csrf(viewer)}, files=file).status_code == 403


@pytest.mark.parametrize(
    "body, kind",
    [
        (b"", "multipart/form-data"),
        (b"x", "multipart/form-data; boundary="),
        (b"--b\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b"),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--", "multipart/form-data; boundary=b"),
        (b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx", "multipart/form-data; boundary=b"),
        (
            b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n" * 300 + b"--b--",
            "multipart/form-data; boundary=b",
        ),
        (b"{}", "application/json"),
    ],
)
def test_a_form_that_no_browser_sends_is_refused(own: Site, body: bytes, kind: str) -> None:
    browser = own.browse()
    answer = browser.post(
        "/audit/load", content=body, headers={"content-type": kind, "x-csrf-token": own.csrf(browser)}
    )
    assert answer.status_code in (400, 415), answer.text


def test_a_file_that_is_no_bundle_is_told(own: Site) -> None:
    browser = own.browse()
    for content in (b"", b"PK", b"\x00" * 1_000):
        answer = browser.post("/audit/load", data={"csrf": own.csrf(browser)}, files={"bundle": ("b.zip", content)})
        assert 400 <= answer.status_code < 500, answer.status_code
        assert "alert" in answer.text


def test_a_form_of_another_act_may_have_no_file(own: Site) -> None:
    browser = own.browse()
    answer = browser.post("/audit/verify", data={"csrf": own.csrf(browser)}, files={"bundle": ("b.zip", b"PK")})
    assert answer.status_code == 415
