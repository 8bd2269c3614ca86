"""What every page has: its headers, its data as JSON, its errors, the login before it, and forms that nobody else can send."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.testclient import TestClient

from amends.serve import Limits
from amends.serve.console import PAGES, acts, html
from amends.serve.console.acts import Acted
from amends.serve.console.pages import NAV, READ, Page
from tests.console.shop import BIDI, HOSTILE, Shop, Site, served, tags

CONSOLE = Path(html.__file__).parent
TEMPLATES = sorted((CONSOLE / "templates").glob("*.html"))


def test_the_first_address_leads_to_the_runs(browser: TestClient) -> None:
    answer = browser.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")


def test_every_page_has_a_strict_policy_and_no_inline_script_or_style(browser: TestClient) -> None:
    for place in ("/runs", "/login", "/nowhere"):
        answer = browser.get(place)
        assert answer.headers["content-security-policy"] == html.POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        for tag, attrs in tags(answer.text):
            assert tag not in ("style", "iframe", "object", "base"), place
            assert tag != "script" or attrs["src"].startswith("/static/"), place
            assert not [name for name in attrs if name == "style" or name.startswith("on")], (place, tag)


def test_a_template_prints_nothing_unescaped() -> None:
    for one in TEMPLATES:
        text = one.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape|Markup|<script(?! src)|<style| style=| on\w+=", text), one.name
    code = "".join(one.read_text(encoding="utf-8") for one in CONSOLE.glob("*.py"))
    assert "Markup(" not in code


def test_names_of_the_ledger_are_inert(site: Site) -> None:
    text = site.browse().get("/runs").text
    assert HOSTILE not in text
    assert "&lt;img" in text
    assert BIDI not in text
    assert "\u202e" not in text


def test_whoever_is_not_logged_in_is_led_to_the_login_and_back(site: Site) -> None:
    answer = site.visit().get("/runs?filter=state:open")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fruns%3Ffilter%3Dstate%3Aopen"
    page = site.visit().get("/login")
    assert page.status_code == 200
    assert "amends serve APP:RT --open" in page.text
    assert 'href="/static/console.css' in page.text


def test_a_program_without_a_token_gets_a_problem_and_no_page(site: Site) -> None:
    answer = site.visit().get("/runs", headers={"Accept": "*/*"})
    assert (answer.status_code, answer.json()["code"]) == (401, "Unauthorized")
    answer = site.visit().get("/runs.json")
    assert (answer.status_code, answer.json()["code"]) == (401, "Unauthorized")


def test_an_error_is_a_page_for_browsers_and_a_problem_for_programs(browser: TestClient) -> None:
    page = browser.get("/nowhere")
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is nothing here" in page.text
    assert browser.get("/v1/nowhere").json()["code"] == "NoSuchRoute"
    assert browser.get("/nowhere", headers={"Accept": "application/json"}).json()["code"] == "NoSuchRoute"
    wrong = browser.get("/runs?filter=nonsense")
    assert wrong.status_code in (200, 400)
    assert "nonsense" in wrong.text
    assert browser.put("/runs").status_code == 405


@pytest.mark.parametrize("accept", ["text/html", "*/*"])
def test_a_run_that_is_not_there_is_a_page_with_a_way_back(browser: TestClient, accept: str) -> None:
    page = browser.get("/runs/nope", headers={"Accept": accept})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is nothing here" in page.text
    assert "nope" in page.text
    assert 'href="/runs"' in page.text
    assert "rt." not in page.text, "a reader of a page has no Python at hand"


def test_what_a_script_of_a_page_asks_for_fails_as_data(browser: TestClient) -> None:
    for given in ({"HX-Request": "true"}, {"Sec-Fetch-Mode": "cors"}, {"Accept": "application/json, */*"}):
        answer = browser.get("/runs/nope", headers={"Accept": "*/*", **given})
        assert (answer.status_code, answer.json()["code"]) == (404, "RunNotFound")


def test_a_static_file_is_kept_when_its_mark_is_right(browser: TestClient) -> None:
    place = html.static("console.css")
    answer = browser.get(place)
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert re.search(r'url\("inter-latin\.woff2\?v=[0-9a-f]{12}"\)', answer.text)
    assert browser.get("/static/console.css").headers["cache-control"] == "no-cache"
    for name in ("nothing.css", "..%2Fhtml.py", "%2e%2e%2fpages.py"):
        assert browser.get(f"/static/{name}").status_code == 404


def test_the_files_of_others_are_those_that_the_page_about_them_says() -> None:
    said = (CONSOLE / "static" / "VENDORED.md").read_text(encoding="utf-8")
    files = {name: mark for mark, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", said, re.MULTILINE)}
    assert {"htmx.min.js", "hx-sse.js"} <= set(files)
    for name, mark in files.items():
        assert hashlib.sha256((CONSOLE / "static" / name).read_bytes()).hexdigest() == mark, name


# ---- Forms


def test_a_form_needs_the_text_of_its_own_login(site: Site) -> None:
    ana, ben = site.browse("viewer", name="ana"), site.browse("viewer", name="ben")
    for sent in ({}, {"csrf": ""}, {"csrf": "forged"}, {"csrf": site.csrf(ben)}):
        answer = ana.post("/logout", data=sent)
        assert answer.status_code == 403, sent
    crossed = ana.post("/logout", data={"csrf": site.csrf(ana)}, headers={"Sec-Fetch-Site": "cross-site"})
    assert crossed.status_code == 403
    assert ana.get("/runs").status_code == 200
    assert ana.post("/logout", json={"csrf": site.csrf(ana)}).status_code == 415
    out = site.send(ana, "/logout")
    assert (out.status_code, out.headers["location"]) == (303, "/login?out=1")
    assert ana.get("/runs").status_code == 303
    assert ben.get("/runs").status_code == 200


def test_a_refused_form_shows_the_page_again_with_the_error(site: Site) -> None:
    answer = site.browse().post("/logout", data={"csrf": "forged"})
    assert answer.status_code == 403
    assert 'role="alert"' in answer.text
    assert "<h1>Runs</h1>" in answer.text


def test_a_read_only_service_refuses_every_form_and_says_that_it_is() -> None:
    with served(fill=False, read_only=True) as site:
        browser = site.browse()
        assert "read-only" in browser.get("/runs").text
        for page in PAGES:
            if page.method == "POST" and page.name != "logout":  # logging in and out is nobody's business but one's own
                answer = site.send(browser, page.path.replace("{id}", "x"))
                assert answer.status_code == 403, page.name
                assert "read-only" in answer.text


def test_a_sentence_about_an_act_is_shown_once(site: Site) -> None:
    browser = site.browse()
    answer = Response()

    asked = Request({"type": "http", "scheme": "http", "path": "/", "headers": [], "server": ("a", 80)})
    acts.set_flash(site.service, asked, answer, Acted("/runs", "Done: <b>it</b>"))
    browser.cookies.set("amends_flash", answer.headers["set-cookie"].partition("=")[2].partition(";")[0])
    first = browser.get("/runs")
    assert "Done: &lt;b&gt;it&lt;/b&gt;" in first.text
    browser.cookies.delete("amends_flash")
    browser.cookies.set("amends_flash", "forged")
    assert browser.get("/runs").status_code == 200


def test_the_header_of_a_script_counts_as_the_field_of_a_form(site: Site) -> None:
    browser = site.browse("viewer", name="ada")
    out = browser.post("/logout", headers={"X-CSRF-Token": site.csrf(browser)})
    assert out.status_code == 303


def test_the_navigation_says_how_much_waits_for_a_person() -> None:
    async def nothing(_: object) -> dict[str, object]:
        return {}

    with served() as site:
        known = {page.path for page in site.service.pages}
        added = [
            Page("GET", f"/{name}", f"a {name}", name, READ, "tenant", nothing)
            for name in ("approvals", "doubts")
            if f"/{name}" not in known
        ]
        site.service.pages = (*site.service.pages, *added)
        for headers in ({}, {"HX-Request": "true"}):
            text = site.browse().get("/runs", headers=headers).text
            waits = dict(re.findall(r'id="waits-(\w+)"[^>]*>([^<]*)<', text))
            assert waits == {"approvals": "2", "doubts": "2"}


# ---- Where it is served


def test_below_a_path_every_address_has_that_path() -> None:
    shop = Shop(fill=False)
    with served(shop) as site:
        outer = TestClient(
            Starlette(routes=[Mount("/a b/agents", site.service)]), follow_redirects=False,
            headers={"Accept": "text/html"},
        )  # fmt: skip
        outer.portal = site.client.portal
        assert site.service.logins is not None
        base = "/a%20b/agents"
        answer = outer.get(f"{base}/runs")
        assert answer.headers["location"].startswith(f"{base}/login?next=%2Fa%2520b%2Fagents%2Fruns")
        link = site.service.logins.new_link("", name="olga")
        assert outer.get(f"{base}{link}").headers["location"] == f"{base}/"
        assert outer.get(f"{base}/").headers["location"] == f"{base}/runs"
        text = outer.get(f"{base}/runs").text
        found = re.findall(r'(?:href|src|action|connect)="(/[^"]*)"', text)
        assert found
        assert [one for one in found if not one.startswith(base)] == []
        assert outer.get(re.findall(r'href="([^"]*console.css[^"]*)"', text)[0]).status_code == 200


def test_without_the_console_its_addresses_do_not_exist() -> None:
    with served(fill=False, console=False) as site:
        assert site.visit().get("/runs").status_code == 404
        assert site.visit().get("/health").status_code == 200


def test_links_keep_the_tenant_that_the_address_names(site: Site) -> None:
    other = Shop(fill=False)
    with served(other) as its:
        made = other.rt.create_token("eve", scopes=["operator"], by="eve", why="test", kind="link", expires=60)
        browser = its.visit()
        browser.cookies.set("amends_session", its.service.secrets.sign("session", {"token": made.text}, lives_s=60))
        answer = browser.get("/runs?tenant=acme")
        assert answer.status_code == 200
        text = answer.text
        assert ("a", "/runs?tenant=acme") in [(tag, attrs.get("href", "")) for tag, attrs in tags(text)]


# ---- Names in addresses


@pytest.mark.parametrize("name", ["a/b", "report.json", "x.json.json", HOSTILE, BIDI, "a b", "100%", "ä", "q?x=1#y"])
def test_a_name_is_one_part_of_an_address_and_comes_back(name: str) -> None:
    part = html.segment(name)
    assert "/" not in part
    assert not part.endswith(".json")
    assert unquote(part) == name


def test_every_page_is_found_by_its_name_once_and_the_navigation_is_in_order() -> None:
    names = [page.name for page in PAGES]
    assert len(set(names)) == len(names)
    assert len({(page.method, page.path) for page in PAGES}) == len(PAGES)
    known = {page.name for page in PAGES if page.method == "GET"}
    assert {page.back for page in PAGES if page.back} <= known
    assert {page.nav for page in PAGES} <= {"", *(key for key, _, _ in NAV)}


def test_a_page_that_asks_too_often_is_told_so() -> None:
    with served(fill=False, limits=Limits(requests_per_s=1)) as site:
        browser = site.browse()
        found = {browser.get("/runs").status_code for _ in range(20)}
        assert 429 in found
