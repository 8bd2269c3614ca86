"""Corners of the console: odd names, stale forms, other tenants, other kinds of work, and filters that nobody understands."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest

from amends import NoEffect, Retry, tool
from amends.errors import Error
from amends.serve import Who
from amends.serve.console import html
from tests.console.desk import at_desk, fields, flashed
from tests.console.shop import Shop, served, tags, words

# ---- Names


@pytest.mark.parametrize("name", ["/x", "/", "//evil.example", "/rollback", "a//b", "/runs/y", "/x.json"])
def test_a_name_that_begins_with_a_slash_is_one_part_of_an_address(name: str) -> None:
    assert html.path("/runs", name) == f"/runs/{html.segment(name)}"
    assert html.path("/runs", name, "/rollback") == f"/runs/{html.segment(name)}/rollback"


def test_a_run_whose_id_begins_with_a_slash_is_linked_and_found() -> None:
    with at_desk(*TOOLS) as (desk, site):
        desk.open("/x").answer("book", {"order": "1"})
        browser = site.browse()
        [to] = {attrs["href"] for tag, attrs in tags(browser.get("/runs").text) if "data-row" in attrs}
        assert to == "/runs/%2Fx"
        page = browser.get(to)
        assert page.status_code == 200
        [plan] = {attrs["href"] for tag, attrs in tags(page.text) if attrs.get("href", "").endswith("/rollback")}
        assert plan == "/runs/%2Fx/rollback"
        assert browser.get(f"{plan}.json").json()["run"]["id"] == "/x"


# ---- Stale forms

WORLD: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _world() -> None:
    WORLD.clear()
    WORLD.update(undoing="lost", is_down=True)


@tool(key="order")
def book(order: str) -> str:
    if order.startswith("lost"):
        raise TimeoutError("connection reset")
    return f"b_{order}"


@book.compensate(retry=Retry(attempts=1))
def unbook(order: str) -> None:
    WORLD["unbooked"] = order
    if WORLD["undoing"] == "lost":
        raise TimeoutError("connection reset again")
    if WORLD["undoing"] == "fails":
        raise NoEffect("no such booking")


TOOLS = (book,)


def doubtful(desk: Any) -> str:
    with suppress(Error, ValueError), desk.rt.scoped(agent="shopper").run("r") as made:
        made.answer("book", {"order": "lost-1"})
        raise ValueError("enough")
    return next(one.id for one in desk.rt.doubts())


def test_an_answer_about_the_call_is_not_taken_as_one_about_its_compensation() -> None:
    with at_desk(*TOOLS) as (desk, site):
        id = doubtful(desk)
        browser = site.browse()
        old = fields(browser.get(f"/doubts/{id}").text, f"/doubts/{id}/resolve") | {"confirmed": "yes", "why": "seen"}
        assert old["answer"] == "happened"
        first = site.browse(name="ben")
        done = site.send(first, f"/doubts/{id}/resolve", answer="happened", why="in their list", confirmed="yes")
        assert done.status_code == 303, done.text
        assert desk.rt.call(id).state == "compensation_in_doubt", "it was taken back, and that answer was lost, too"
        answer = browser.post(f"/doubts/{id}/resolve", data=old)
        assert answer.status_code == 409, words(answer.text)
        assert desk.rt.call(id).state == "compensation_in_doubt", "nobody has said that it was taken back"
        assert "changed" in words(answer.text)
        unconfirmed = browser.post(f"/doubts/{id}/resolve", data={**old, "confirmed": ""})
        assert unconfirmed.status_code == 409, "it is not asked about either"
        again = fields(browser.get(f"/doubts/{id}").text, f"/doubts/{id}/resolve") | {"confirmed": "yes", "why": "seen"}
        assert "Settled" in flashed(browser, browser.post(f"/doubts/{id}/resolve", data=again))


def test_a_retry_and_an_acceptance_are_of_the_state_that_was_shown() -> None:
    WORLD["undoing"] = "fails"
    with at_desk(*TOOLS) as (desk, site):
        with suppress(Error, ValueError), desk.rt.run("r") as made:
            made.answer("book", {"order": "1"})
            raise ValueError("enough")
        [call] = desk.rt.report("r").calls
        assert call.state == "compensation_failed"
        browser = site.browse()
        page = browser.get(f"/doubts/{call.id}").text
        old = fields(page, f"/doubts/{call.id}/accept") | {"confirmed": "yes", "why": "paid back"}
        retry = fields(page, f"/doubts/{call.id}/retry") | {"why": "the courier is back"}
        WORLD["undoing"] = "lost"
        done = browser.post(f"/doubts/{call.id}/retry", data=retry)
        assert done.status_code == 303, done.text
        assert desk.rt.call(call.id).state == "compensation_in_doubt"
        for act, data in (("accept", old), ("retry", retry)):
            answer = browser.post(f"/doubts/{call.id}/{act}", data=data)
            assert answer.status_code == 409, act
        assert desk.rt.call(call.id).state == "compensation_in_doubt"


def test_who_was_first_is_told_of_a_call_late_in_a_long_run() -> None:
    WORLD["undoing"] = ""
    with at_desk(*TOOLS) as (desk, site):
        run = desk.open("r")
        for number in range(120):
            run.answer("book", {"order": f"o{number}"})
        run.answer("book", {"order": "lost-1"})
        [id] = [one.id for one in desk.rt.doubts()]
        run.release()
        said = {"answer": "absent", "confirmed": "yes"}
        assert site.send(site.browse(name="ben"), f"/doubts/{id}/resolve", why="not in it", **said).status_code == 303
        browser = site.browse()
        assert "ben : not in it" in words(browser.get(f"/doubts/{id}").text)
        late = site.send(browser, f"/doubts/{id}/resolve", why="I looked", **said)
        assert late.status_code == 409
        assert "You were not the first: ben has decided" in words(late.text)


# ---- Tenants


def test_who_acts_for_the_tenant_without_a_name_loads_no_run_of_another() -> None:
    with Shop(fill=False).rt as rt:
        with rt.scoped(tenant="acme").run("theirs") as run:
            run.answer("stock", {"item": "kettle"})
        bundle = rt.scoped(tenant="acme").export("theirs")
    shop = Shop(fill=False)
    with served(shop, access=lambda _: Who("olga", frozenset({"operator"}))) as site:
        browser = site.visit()
        csrf = fields(browser.get("/audit?tab=bundles").text, "/audit/load?tab=bundles")["csrf"]
        answer = browser.post("/audit/load", data={"csrf": csrf}, files={"bundle": ("b.zip", bundle)})
        assert answer.status_code in (400, 403, 409, 422), answer.status_code
        assert list(shop.rt.scoped(tenant="acme").runs()) == []


@pytest.mark.parametrize("place", ["/runs", "/approvals", "/doubts", "/costs", "/audit", "/approvals?tab=decided"])
def test_a_filter_keeps_the_tenant_that_the_address_names(place: str) -> None:
    with served(fill=False) as site:
        browser = site.browse("operator", tenant="")
        text = browser.get(f"{place}{'&' if '?' in place else '?'}tenant=acme").text
        form = re.search(r'<form[^>]*method="get".*?</form>', text, re.DOTALL)
        assert form is not None
        sent = {attrs.get("name"): attrs.get("value") for tag, attrs in tags(form[0]) if tag == "input"}
        assert sent["tenant"] == "acme"


def test_a_tenant_is_not_told_how_many_runs_of_others_this_server_drives() -> None:
    with served(fill=False) as site:
        site.service.sessions._open["acme", "theirs"] = object()  # type: ignore[assignment]
        try:
            other = site.browse("viewer", name="vera", tenant="other")
            assert other.get("/workers.json").json()["server"]["runs"] == 0
            assert site.browse("viewer", name="ada", tenant="acme").get("/workers.json").json()["server"]["runs"] == 1
            assert site.browse().get("/workers.json").json()["server"]["runs"] == 1
        finally:
            site.service.sessions._open.clear()


# ---- Other work, other filters, many fields


def test_the_page_of_a_verification_shows_no_other_work() -> None:
    with served(fill=False) as site:
        begun = site.service.rt
        assert begun is not None
        browser = site.browse()
        made = browser.post(
            "/v1/gc", json={"older_than": 0.0}, headers={"X-CSRF-Token": site.csrf(browser), "Accept": "*/*"}
        )
        assert made.status_code == 202, made.text
        id = made.json()["id"]
        for _ in range(200):
            if browser.get(f"/v1/jobs/{id}").json()["state"] != "running":
                break
        assert browser.get(f"/audit/{id}").status_code == 404
        assert browser.get(f"/audit/{id}.json").status_code == 404


@pytest.mark.parametrize("place", ["/approvals", "/approvals?tab=decided", "/approvals?tab=expired", "/doubts"])
def test_a_filter_that_is_not_understood_is_told_beside_the_box(place: str) -> None:
    with served(fill=False) as site:
        answer = site.browse().get(f"{place}{'&' if '?' in place else '?'}filter=nonsense:1")
        assert answer.status_code == 200
        assert 'value="nonsense:1"' in answer.text, "what was typed is still there"
        assert 'id="filter-problem"' in answer.text


def test_a_plan_with_many_effects_that_stay_can_be_accepted() -> None:
    @tool(kind="retriable", idempotent=True)
    def mail(to: str) -> None: ...

    with at_desk(mail, *TOOLS) as (desk, site):
        WORLD["undoing"] = ""
        with desk.rt.run("r") as run:
            run.answer("book", {"order": "1"})
            for number in range(120):
                run.answer("mail", {"to": f"m{number}"})
        browser = site.browse()
        plan = browser.get("/runs/r/rollback.json").json()["plan"]
        assert len(plan["must_accept"]) == 120
        accepted = {f"accept.{one['call']}": "yes" for one in plan["must_accept"]}
        done = site.send(browser, "/runs/r/rollback", plan=plan["hash"], why="x", confirmed="yes", **accepted)
        assert done.status_code == 303, words(done.text)
        assert desk.rt.report("r").run.state == "abandoned"


# ---- The company's login: a browser follows no redirect of a form to another site (form-action of the policy)


class Company:
    """A provider of logins, as far as leaving it goes."""

    is_secure, session_s = False, 60.0

    async def end_address(self) -> str:
        return "https://login.example/end?client_id=amends&x=<y>"


def test_logging_out_at_the_provider_is_a_page_that_leads_there() -> None:
    with served(fill=False) as site:
        assert site.service.logins is not None
        site.service.logins._provider = Company()  # type: ignore[assignment]
        made = site.shop.rt.create_token("eve", scopes=["viewer"], by="eve", why="test", kind="login", expires=60)
        browser = site.visit()
        browser.cookies.set("amends_session", site.service.secrets.sign("session", {"token": made.text}, lives_s=60))
        out = site.send(browser, "/logout")
        assert out.status_code == 200, "a redirect of a form to another site is blocked by the policy"
        there = "https://login.example/end?client_id=amends&x=<y>"
        assert out.headers["refresh"] == f"0; url={there}"
        assert there in [attrs.get("href") for tag, attrs in tags(out.text) if tag == "a"]
        assert 'amends_session=""' in out.headers["set-cookie"]
        assert browser.get("/runs").status_code == 303


def test_a_form_that_is_sent_after_the_login_has_ended_leads_to_it_by_a_page() -> None:
    with served(fill=False) as site:
        assert site.service.logins is not None
        site.service.logins._provider = Company()  # type: ignore[assignment]
        answer = site.visit().post("/runs/a%2Fb/abandon", data={"why": "x"})
        assert answer.status_code == 401
        assert answer.headers["refresh"] == "0; url=/login?next=%2Fruns%2Fa%252Fb"
        assert "Nothing was done" in words(answer.text)
        assert site.visit().get("/runs").status_code == 303


# ---- What was typed


@tool(kind="pivot", needs_approval=True)
def wire(order: str) -> str:
    return f"w_{order}"


@pytest.mark.parametrize("act", ["approve", "withdraw", "bypass"])
def test_a_refused_form_about_a_request_keeps_what_was_typed_in_its_own_field(act: str) -> None:
    with at_desk(wire) as (desk, site):
        one = desk.ask("wire", {"order": "1"})
        browser = site.browse()
        answer = browser.post(f"/approvals/{one.id}/{act}", data={"csrf": "of an older login", "why": "as agreed"})
        assert answer.status_code == 403
        kept = {
            name: value for name, value in re.findall(r'<textarea id="([^"]+)"[^>]*>([^<]*)<', answer.text) if value
        }
        assert kept == {f"{act}-why": "as agreed"}


def test_a_refused_form_about_a_doubt_or_a_stuck_run_keeps_what_was_typed_in_its_own_field() -> None:
    WORLD["undoing"] = "fails"
    with at_desk(*TOOLS) as (desk, site):
        with suppress(Error, ValueError), desk.rt.run("r") as made:
            made.answer("book", {"order": "1"})
            raise ValueError("enough")
        [call] = desk.rt.report("r").calls
        browser = site.browse()
        for place in (f"/doubts/{call.id}/accept", f"/doubts/{call.id}/retry", "/doubts/runs/r/abandon"):
            answer = browser.post(place, data={"csrf": "of an older login", "why": "as agreed"})
            assert answer.status_code == 403
            found = re.findall(r'<textarea id="([^"]+)"[^>]*>([^<]*)<', answer.text)
            assert {name: value for name, value in found if value} == {f"{place.rpartition('/')[2]}-why": "as agreed"}


def test_a_file_can_be_downloaded_more_than_once() -> None:
    with served(fill=False) as site:
        forms = [attrs for tag, attrs in tags(site.browse().get("/audit?tab=bundles").text) if tag == "form"]
        [export] = [one for one in forms if "/audit/export" in one.get("action", "")]
        assert "data-download" in export, "the script disables the buttons of any other form that was sent"
    script = html.files()["console.js"].data.decode()
    assert "form.dataset.download !== undefined" in script


# ---- Less than everything


def test_a_read_only_console_still_lets_people_log_out() -> None:
    with served(fill=False, read_only=True) as site:
        for place, headers in (("/logout", {}), ("/login/logout", {"Accept": "*/*"})):
            browser = site.browse()
            csrf = site.csrf(browser)
            out = browser.post(place, headers={"X-CSRF-Token": csrf, **headers})
            assert out.status_code in (200, 303), out.text
            assert browser.get("/runs").status_code == 303, "the login has ended"
        assert site.send(site.browse(), "/audit/verify").status_code == 403


def test_a_tenant_sees_checkpoints_without_what_they_tell_about_others(tmp_path: Any) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/ledger.db", fill=False, anchor=str(tmp_path / "anchor.jsonl"))
    with served(shop) as site:
        with shop.rt.run("ours") as run:
            run.answer("stock", {"item": "kettle"})
        shop.rt.checkpoint()
        wide = site.browse().get("/audit.json?tab=checkpoints").json()
        assert "anchor.jsonl" in str(wide["anchor"])
        assert wide["checkpoints"][0]["heads"] >= 1
        narrow = site.browse("viewer", name="vera", tenant="other")
        said = narrow.get("/audit.json?tab=checkpoints").json()
        assert said["anchor"] == "set"
        assert {one["heads"] for one in said["checkpoints"]} == {None}
        assert said["checkpoints"][0]["hash"] == wide["checkpoints"][0]["hash"], "which anybody may compare"
        assert narrow.get("/audit?tab=checkpoints").status_code == 200


# ---- What is said before an act is what is then done


def test_abandoning_counts_the_effects_of_child_runs_and_compensations_in_doubt() -> None:
    with at_desk(*TOOLS) as (desk, site):
        with suppress(Error, ValueError), desk.rt.run("r") as run:
            with run.child("c") as child:
                child.answer("book", {"order": "1"})
            run.answer("book", {"order": "2"})
            raise ValueError("enough")
        assert desk.rt.report("r").run.state == "blocked"
        browser = site.browse()
        for place in ("/runs/r", "/doubts/runs/r"):
            asked = words(site.send(browser, f"{place}/abandon", why="x").text)
            assert "2 effects" in asked, asked
            assert "2 effects" in words(browser.get(place).text), "the dialog says the same"
        done = site.send(browser, "/runs/r/abandon", why="x", confirmed="yes")
        assert "Abandoned. 2 effects left standing." in words(flashed(browser, done))
