"""Acts: a form is carried out once it is certain who sent it, and asked about first if it cannot be taken back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from amends.serve import service as services
from amends.serve.console.acts import Acted, Asked, needed
from amends.serve.console.pages import OPERATE, Page
from amends.serve.exchange import Exchange
from amends.serve.problems import Taken
from tests.console.shop import HOSTILE, Site, served, tags, words

DONE: list[dict[str, str]] = []


async def abandon(x: Exchange, form: Mapping[str, str]) -> Acted:
    why = needed(form, "why", label="the reason")
    if why == "late":
        raise Taken("somebody was faster", tool="x")
    DONE.append({"why": why, "by": x.who.name, "run": x.path["id"]})
    return Acted("/runs", f"{x.path['id']} was abandoned.")


async def asks(x: Exchange, form: Mapping[str, str]) -> Asked:
    return Asked(f"Abandon {x.path['id']}?", "Its 3 effects stay.", "Abandon it", back="/runs")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    DONE.clear()
    with served() as made:
        page = Page(
            "POST", "/runs/{id}/abandon", "abandon", "Abandon", OPERATE, "run", act=abandon, back="runs", asks=asks
        )
        made.service.pages = (*made.service.pages, page)
        made.service._page_tree = services._tree_of(made.service.pages)
        made.service._plain[("POST", page.path)] = page.query()
        yield made


def fields(text: str) -> dict[str, str]:
    return {
        attrs["name"]: attrs["value"] for tag, attrs in tags(text) if tag == "input" and attrs.get("type") == "hidden"
    }


def test_what_cannot_be_taken_back_is_said_again_and_then_done_with_the_same_words(site: Site) -> None:
    browser = site.browse()
    asked = site.send(browser, "/runs/a%2Fb/abandon", why=f"{HOSTILE}\nline")
    assert asked.status_code == 200
    assert "Abandon a/b? Its 3 effects stay." in words(asked.text)
    assert DONE == []
    [form] = [attrs for tag, attrs in tags(asked.text) if tag == "form" and "abandon" in attrs.get("action", "")]
    done = browser.post(form["action"], data=fields(asked.text))
    assert (done.status_code, done.headers["location"]) == (303, "/runs")
    [act] = DONE
    assert act == {"why": f"{HOSTILE}\nline", "by": "olga", "run": "a/b"}
    assert "a/b was abandoned." in words(browser.get("/runs").text)
    assert "a/b was abandoned." not in words(browser.get("/runs").text), "it is said once"


@pytest.mark.parametrize(
    "why, status, said", [("", 422, "The reason is missing."), ("late", 409, "Somebody was faster.")]
)
def test_a_refused_act_shows_its_page_again_with_the_error_on_top(site: Site, why: str, status: int, said: str) -> None:
    answer = site.send(site.browse(), "/runs/x/abandon", why=why, confirmed="yes")
    assert answer.status_code == status
    assert said in words(answer.text)
    assert "<h1>Runs</h1>" in answer.text
    assert DONE == []


def test_a_viewer_who_sends_it_is_refused_and_nothing_happens(site: Site) -> None:
    answer = site.send(site.browse("viewer", name="vera"), "/runs/x/abandon", why="x", confirmed="yes")
    assert answer.status_code == 403
    assert "this needs the scope operator" in words(answer.text).lower()
    assert DONE == []


def test_whoever_was_logged_out_meanwhile_is_led_back_to_the_page_and_not_to_the_form(site: Site) -> None:
    answer = site.visit().post("/runs/x/abandon", data={"why": "x"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fruns")


def test_a_form_that_is_no_form_is_refused(site: Site) -> None:
    browser = site.browse()
    csrf = site.csrf(browser)
    wrong: list[Any] = [
        {"content": b"csrf=%ff", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        {"content": f"csrf={csrf}&csrf={csrf}", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        {
            "content": "&".join(f"f{n}=1" for n in range(200)),
            "headers": {"Content-Type": "application/x-www-form-urlencoded"},
        },
    ]
    for sent in wrong:
        answer = browser.post("/runs/x/abandon", **sent)
        assert 400 <= answer.status_code < 500, sent
    assert DONE == []


def test_a_program_with_a_token_needs_no_text_of_a_login(site: Site) -> None:
    token = site.shop.rt.create_token("ops", scopes=["operator"], by="olga", why="test")
    answer = site.visit().post(
        "/runs/x/abandon", data={"why": "x", "confirmed": "yes"},
        headers={"Authorization": f"Bearer {token.text}", "Accept": "application/json"},
    )  # fmt: skip
    assert answer.status_code == 303
    assert DONE == [{"why": "x", "by": "ops", "run": "x"}]
