"""The approvals page: exactly what is approved, nothing that deceives, and one decision, by somebody who may."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import Any

import pytest

from amends import Rule, tool
from amends.serve.console.approvals import REASONS
from amends.stores.memory import MemoryStore
from tests.console.desk import Desk, at_desk, fields, flashed
from tests.console.shop import tags, words

SENT: list[Any] = []


@tool(kind="pivot", needs_approval=True)
def wire(to: str, cents: int, note: str = "") -> str:
    SENT.append((to, cents))
    return f"w_{to}"


@tool(kind="read", needs_approval=True)
def anything(**args: Any) -> str:
    return "done"


@tool(kind="pivot", needs_approval=True)
def pay(amount: Decimal, lines: list[dict[str, Any]], urgent: bool = False, memo: str = "", count: int = 1) -> str:
    SENT.append((amount, lines, urgent, memo, count))
    return "paid"


def page(site: Any, id: str, **who: Any) -> str:
    answer = site.browse(*who.pop("scopes", ("approver",)), name=who.pop("name", "ana")).get(f"/approvals/{id}", **who)
    assert answer.status_code == 200, answer.text
    return str(answer.text)


# ---- The inbox


def test_what_expires_first_is_first_and_then_what_waits_longest() -> None:
    rules = [
        Rule(tool="wire", args={"cents": "<10"}, expires=60, why="small"),
        Rule(tool="wire", args={"cents": ">=10"}, expires=3_600, why="large"),
    ]
    with at_desk(wire, rules=rules) as (desk, site):
        for number, cents in enumerate((50, 5, 60)):
            desk.ask("wire", {"to": f"n{number}", "cents": cents}, run=f"r{number}")
        browser = site.browse("viewer", name="vera")
        data = browser.get("/approvals.json").json()
        assert [one["run"] for one in data["items"]] == ["r1", "r0", "r2"]
        text = words(browser.get("/approvals").text)
        assert text.index("r1") < text.index("r0") < text.index("r2")
        assert "expires in 59 s" in text or "expires in 60 s" in text or "expires in 1 min" in text
        found = browser.get("/approvals.json", params={"filter": "args.cents:>55"}).json()
        assert [one["run"] for one in found["items"]] == ["r2"]
        assert "Nothing matches" in browser.get("/approvals", params={"filter": "tool:none"}).text
        assert 'id="filter-problem"' in browser.get("/approvals", params={"filter": "nonsense"}).text


def test_each_tab_lists_its_own_and_an_empty_one_says_what_would_be_there() -> None:
    with at_desk(wire) as (desk, site):
        browser = site.browse("approver", name="ana")
        for tab, empty in (
            ("waiting", "Nothing waits"),
            ("decided", "Nothing was decided"),
            ("expired", "Nothing has"),
        ):
            assert empty in browser.get("/approvals", params={"tab": tab}).text
        one, two = (desk.ask("wire", {"to": name, "cents": 1}, run=name) for name in ("a", "b"))
        desk.rt.reject(one.id, by="ben", reason="not this one")
        listed = {
            tab: [item["id"] for item in browser.get("/approvals.json", params={"tab": tab}).json()["items"]]
            for tab in ("waiting", "decided", "expired")
        }
        assert listed == {"waiting": [two.id], "decided": [one.id], "expired": []}
        assert "not this one" in words(browser.get("/approvals", params={"tab": "decided"}).text)


def test_permits_are_listed_and_revoked() -> None:
    with at_desk(wire) as (desk, site):
        made = desk.rt.permit("wire", {"to": "ada", "cents": 5}, by="anna", why="agreed by phone")
        browser = site.browse("approver", name="ana")
        text = words(browser.get("/approvals", params={"tab": "permits"}).text)
        assert "agreed by phone" in text
        done = site.send(browser, f"/permits/{made.id}/revoke", why="not needed any more")
        assert "covers no further call" in flashed(browser, done)
        assert desk.rt.permits() == []


# ---- One request


def test_the_page_shows_exactly_what_is_approved_and_why_a_person_is_asked() -> None:
    with at_desk(wire, rules=[Rule(tool="wire", why="all wires are looked at")]) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 4_200, "note": "a\nb"})
        text = page(site, asked.id)
        said = words(text)
        assert 'to text "ada" cents number 4200 note text "a \\n b"' in said
        assert "Approval is needed: all wires are looked at" in said
        assert asked.digest[:12] in said
        assert fields(text, "/approve")["digest"] == asked.digest
        data = site.browse("viewer").get(f"/approvals/{asked.id}.json").json()
        assert data["approval"]["digest"] == asked.digest
        assert data["args"]["items"][1]["lines"] == [[{"text": "4200", "kind": "plain"}]]


def test_approve_and_see_the_agent_go_on() -> None:
    SENT.clear()
    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        browser = site.browse("approver", name="ana")
        text = browser.get(f"/approvals/{asked.id}").text
        done = site.send(browser, f"/approvals/{asked.id}/approve", **fields(text, "/approve") | {"why": "it is right"})
        said = words(flashed(browser, done))
        assert "Approved. This page follows the call until it ran." in said
        assert "ana approved : it is right" in said.replace("approved: ", "approved : ")
        assert "waits for its program to go on" in said
        assert desk.open("r").answer("wire", {"to": "ada", "cents": 5}).value == "w_ada"
        said = words(browser.get(f"/approvals/{asked.id}", headers={"HX-Request": "true"}).text)
        assert "the call started" in said
        assert 'it succeeded "w_ada"' in said
        assert SENT == [("ada", 5)]
        [yes] = desk.rt.approval(asked.id).given
        assert (yes.by, yes.why) == ("ana", "it is right")


def test_another_digest_than_the_one_shown_is_refused_and_nothing_is_lost() -> None:
    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        browser = site.browse("approver", name="ana")
        for digest, status in (("0" * 64, 409), ("", 422)):
            done = site.send(browser, f"/approvals/{asked.id}/approve", digest=digest, why="looks <b>right</b>")
            assert done.status_code == status
            assert "looks &lt;b&gt;right&lt;/b&gt;" in done.text
        assert desk.rt.approval(asked.id).state == "pending"


def test_a_rejection_needs_a_reason_which_the_model_is_told() -> None:
    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        browser = site.browse("approver", name="ana")
        assert all(reason in words(browser.get(f"/approvals/{asked.id}").text) for reason in REASONS)
        empty = site.send(browser, f"/approvals/{asked.id}/reject", words="  ")
        assert (empty.status_code, "needs a reason" in words(empty.text)) == (422, True)
        done = site.send(browser, f"/approvals/{asked.id}/reject", reason=REASONS[0], words="it is 4 EUR")
        assert "ana rejected it" in words(flashed(browser, done))
        told = desk.open("r").answer("wire", {"to": "ada", "cents": 5})
        assert "Wrong amount: it is 4 EUR" in told.text


def test_where_reasons_are_declared_only_they_can_be_chosen() -> None:
    with at_desk(wire, rules=[Rule(tool="wire", reasons=("too much", "not now"))]) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        browser = site.browse("approver", name="ana")
        text = browser.get(f"/approvals/{asked.id}").text
        assert "too much" in words(text)
        assert REASONS[0] not in words(text)
        assert 'id="reject-words"' not in text
        wrong = site.send(browser, f"/approvals/{asked.id}/reject", reason="something else", words="")
        assert wrong.status_code == 400
        assert desk.rt.approval(asked.id).state == "pending"
        assert site.send(browser, f"/approvals/{asked.id}/reject", reason="not now", words="").status_code == 303


# ---- Editing


def test_an_edit_keeps_the_types_and_makes_a_request_with_another_digest() -> None:
    SENT.clear()
    with at_desk(pay) as (desk, site):
        args = {"amount": "4.20", "lines": [{"n": 1}], "urgent": True, "memo": "a\nb", "count": 7}
        asked = desk.ask("pay", args)
        browser = site.browse("approver", name="ana")
        form = fields(browser.get(f"/approvals/{asked.id}/edit").text, "/edit")
        values = {name: value for name, value in form.items() if name.startswith("arg-")}
        assert list(values.values()).count("true") == 1
        typed = {
            name: {"4.20": "4.00", "7": "8"}.get(value, value).replace("\n", "\r\n") for name, value in values.items()
        }
        done = site.send(browser, f"/approvals/{asked.id}/edit", **form | typed | {"why": "the discount was missing"})
        text = flashed(browser, done)
        [made] = desk.rt.approvals()
        assert dict(made.call.args) == {
            "amount": Decimal("4.00"), "lines": [{"n": 1}], "urgent": True, "memo": "a\nb", "count": 8,
        }  # fmt: skip
        assert asked.digest[:12] in words(text)
        assert made.digest[:12] in words(text)
        assert "What was edited" in text
        assert "You edited it, so somebody else must approve it." in words(text)
        assert 'action="/approvals/' + made.id + '/approve"' not in text
        own = site.send(browser, f"/approvals/{made.id}/approve", digest=made.digest)
        assert own.status_code == 409
        assert desk.rt.approval(made.id).state == "pending"
        assert desk.rt.approval(asked.id).state == "rejected"


def test_what_cannot_be_read_as_its_type_is_told_and_everything_typed_is_still_there() -> None:
    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5, "note": "keep"})
        browser = site.browse("approver", name="ana")
        form = fields(browser.get(f"/approvals/{asked.id}/edit").text, "/edit")
        [cents] = [name for name, value in form.items() if value == "5"]
        for wrong in ("4 EUR", "NaN", "[", '"four"'):
            done = site.send(browser, f"/approvals/{asked.id}/edit", **form | {cents: wrong, "why": "cheaper"})
            assert done.status_code in (400, 422), wrong
            again = fields(done.text, "/edit")
            assert (again[cents], again["why"]) == (wrong, "cheaper")
        assert desk.rt.approval(asked.id).state == "pending"


def test_a_form_of_another_request_edits_nothing() -> None:
    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        done = site.send(site.browse("approver", name="ana"), f"/approvals/{asked.id}/edit", digest="x", why="y")
        assert (done.status_code, desk.rt.approval(asked.id).state) == (422, "pending")


# ---- Time


class Clock:
    """A clock that stands still until a test moves it."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def test_what_expired_is_asked_again_or_withdrawn() -> None:
    clock = Clock()
    with at_desk(wire, store=MemoryStore(clock=clock), rules=[Rule(tool="wire", expires=60)]) as (desk, site):
        one, two = (desk.ask("wire", {"to": name, "cents": 1}, run=name) for name in ("a", "b"))
        clock.now += 61
        browser = site.browse("approver", name="ana")
        listed = browser.get("/approvals.json", params={"tab": "expired"}).json()["items"]
        assert {item["id"] for item in listed} == {one.id, two.id}
        text = browser.get(f"/approvals/{one.id}").text
        assert "nobody decided in time: nothing ran" in words(text)
        assert "/approve" not in text
        late = site.send(browser, f"/approvals/{one.id}/approve", digest=one.digest)
        assert (late.status_code, "expired" in words(late.text)) == (409, True)
        done = site.send(browser, f"/approvals/{one.id}/ask_again", why="nobody was there")
        assert "Asked again" in flashed(browser, done)
        [made] = desk.rt.approvals()
        assert (made.follows, made.digest != one.digest) == (one.id, True)
        done = site.send(browser, f"/approvals/{two.id}/withdraw", why="not needed any more")
        assert "Withdrawn" in flashed(browser, done)
        assert desk.rt.call(two.call.id).state == "dropped"


# ---- Who


def test_n_of_m_shows_who_has_said_what_and_runs_after_the_last() -> None:
    rules = [Rule(tool="wire", approvers=2, roles=("finance",))]
    with at_desk(wire, rules=rules, approvers={"finance": ["ana", "ben"]}) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        assert "0 of 2 approvals" in words(page(site, asked.id))
        ana, ben = (site.browse("approver", name=name) for name in ("ana", "ben"))
        done = site.send(ana, f"/approvals/{asked.id}/approve", digest=asked.digest, why="seen it")
        said = words(flashed(ana, done))
        assert "1 more person must approve before it runs" in said
        assert "1 of 2 approvals" in said
        assert "You have approved it" in said
        said = words(ben.get(f"/approvals/{asked.id}").text)
        assert "ana seen it" in said
        assert "Needs finance : ana, ben" in said.replace("finance: ", "finance : ")
        done = site.send(ben, f"/approvals/{asked.id}/approve", digest=asked.digest)
        assert "2 of 2 approvals" in words(flashed(ben, done))
        assert desk.rt.approval(asked.id).state == "approved"


def test_whoever_may_not_decide_is_told_why_before_and_after() -> None:
    rules = [Rule(tool="wire", roles=("finance",))]
    with at_desk(wire, rules=rules, approvers={"finance": ["ana"]}) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        vera, cem = site.browse("viewer", name="vera"), site.browse("approver", name="cem")
        text = vera.get(f"/approvals/{asked.id}").text
        assert "Deciding needs the scope approver" in text
        assert "<form" not in text.partition("<main")[2].partition("</main")[0]
        tried = site.send(vera, f"/approvals/{asked.id}/approve", digest=asked.digest)
        assert tried.status_code == 403
        assert "scope approver" in words(tried.text)
        assert "<html" in tried.text
        assert "Only somebody with the role finance can approve" in words(cem.get(f"/approvals/{asked.id}").text)
        assert site.send(cem, f"/approvals/{asked.id}/approve", digest=asked.digest).status_code == 409
        assert site.send(cem, f"/approvals/{asked.id}/reject", words="no").status_code == 409
        assert desk.rt.approval(asked.id).state == "pending"


def test_nobody_approves_what_they_asked_for_and_the_page_says_so() -> None:
    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        bot = site.browse("approver", name="BOT")
        text = bot.get(f"/approvals/{asked.id}").text
        assert "You asked for it, so somebody else must approve it." in words(text)
        assert site.send(bot, f"/approvals/{asked.id}/approve", digest=asked.digest).status_code == 409
        assert site.send(bot, f"/approvals/{asked.id}/reject", words="on second thoughts").status_code == 303


def test_a_bypass_is_the_operators_and_says_first_what_it_does() -> None:
    rules = [Rule(tool="wire", approvers=2, roles=("finance",))]
    with at_desk(wire, rules=rules) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        at, said = f"/approvals/{asked.id}/bypass", {"digest": asked.digest, "why": "incident 7"}
        assert site.send(site.browse("approver", name="ana"), at, **said, confirmed="yes").status_code == 403
        olga = site.browse("operator")
        assert "<dialog" in olga.get(f"/approvals/{asked.id}").text
        sure = site.send(olga, at, **said)
        assert sure.status_code == 200
        assert "without the 2 approvals by finance" in words(sure.text)
        assert desk.rt.approval(asked.id).state == "pending"
        assert site.send(olga, at, digest=asked.digest, why="").status_code == 422
        done = site.send(olga, at, **fields(sure.text, "/bypass"))
        assert "olga bypassed the rule" in words(flashed(olga, done))
        assert desk.rt.approval(asked.id).given[0].bypass


def test_a_read_only_console_decides_nothing() -> None:
    with at_desk(wire, serve={"read_only": True}) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        olga = site.browse("operator")
        assert "read-only" in words(olga.get(f"/approvals/{asked.id}").text)
        assert site.send(olga, f"/approvals/{asked.id}/approve", digest=asked.digest).status_code == 403
        assert desk.rt.approval(asked.id).state == "pending"


# ---- Two people at once


def test_of_two_who_decide_at_once_the_second_sees_who_was_first_and_loses_nothing() -> None:
    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        ana, ben = (site.browse("approver", name=name) for name in ("ana", "ben"))
        seen = fields(ben.get(f"/approvals/{asked.id}").text, "/approve")
        site.send(ana, f"/approvals/{asked.id}/reject", words="already paid")
        late = site.send(ben, f"/approvals/{asked.id}/approve", **seen | {"why": "I called the customer"})
        assert late.status_code == 409
        assert "not the first: ana has rejected wire: already paid" in words(late.text)
        assert "I called the customer" in words(late.text)
        again = site.send(ben, f"/approvals/{asked.id}/reject", reason="", words="no way")
        assert (again.status_code, "no way" in words(again.text)) == (409, True)
        other = desk.ask("wire", {"to": "ben", "cents": 6}, run="r2")
        desk.rt.approve(other.id, digest=other.digest, by="ana", why="fine")
        late = site.send(ben, f"/approvals/{other.id}/approve", digest=other.digest)
        assert late.status_code == 409
        assert "not the first: ana has approved wire: fine" in words(late.text)
        assert [yes.by for yes in desk.rt.approval(other.id).given] == ["ana"]


def test_a_button_pressed_twice_decides_once() -> None:
    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        ana = site.browse("approver", name="ana")
        for _ in range(2):
            assert site.send(ana, f"/approvals/{asked.id}/approve", digest=asked.digest).status_code == 303
        assert len(desk.rt.approval(asked.id).given) == 1


# ---- What is unusual


def test_what_is_new_or_far_above_the_usual_is_flagged() -> None:
    @tool(kind="pivot", needs_approval=lambda call: call.args["cents"] > 1_000)
    def wire(to: str, cents: int) -> None: ...

    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 4_000}, run="r0")
        assert "first use of this tool by shopper" in words(page(site, asked.id))
        for number in range(6):
            with desk.rt.scoped(agent="shopper").run(f"p{number}") as run:
                assert run.answer("wire", {"to": "ada", "cents": 100}).status == "done"
        asked = desk.ask("wire", {"to": "ada", "cents": 4_000}, run="r1")
        said = words(page(site, asked.id))
        assert "cents is 40 × the usual" in said
        assert "first use" not in said
        low = desk.ask("wire", {"to": "ada", "cents": 1_001}, run="r2")
        assert "10 × the usual" in words(page(site, low.id))


def test_a_request_is_compared_with_the_last_approved_call_of_its_tool() -> None:
    with at_desk(wire) as (desk, site):
        first = desk.ask("wire", {"to": "ada", "cents": 5, "note": "x" * 500})
        desk.rt.approve(first.id, digest=first.digest, by="anna")
        desk.open("r").answer("wire", {"to": "ada", "cents": 5, "note": "x" * 500})
        text = page(site, desk.ask("wire", {"to": "ada", "cents": 7, "note": "x" * 499 + "y"}, run="r2").id)
        data = site.browse().get(f"/approvals/{next(iter(desk.rt.approvals())).id}.json").json()
        assert [("".join(part["text"] for part in one["path"]), one["how"]) for one in data["diff"]["changes"]] == [
            ("cents", "changed"),
            ("note", "changed"),
        ]
        assert "Compared with the last approved call" in text
        assert "475 characters that are the same" in words(text)


# ---- Hostile values


HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "<b>name</b>": '"><svg onload=alert(1)>',
    "bidi": "pay \u202eada",
    "zero": "ad\u200ba",
    "like": "p\u0430ypal",
    "control": "\x1b[2J\x00",
    "jinja": "{{ 7 * 7 }}{% raw %}",
    "none": None,
}


def test_hostile_arguments_are_shown_and_inert_everywhere() -> None:
    with at_desk(anything) as (desk, site):
        asked = desk.ask("anything", HOSTILE, run="<i>run</i>", agent="<b>agent</b>")
        browser = site.browse("approver", name="ana")
        for place in ("/approvals", f"/approvals/{asked.id}", f"/approvals/{asked.id}/edit"):
            text = browser.get(place).text
            names = [tag for tag, _ in tags(text)]
            assert not {"script", "img", "svg", "b", "i"} & set(names[names.index("main") :]) - {"svg"}, place
            assert not [name for _, attrs in tags(text) for name in attrs if name.startswith("on") or name == "style"]
            assert not set(text) & {"\u202e", "\u200b", "\x1b", "\x00"}, place
            assert "p\u0430ypal" not in text
            assert ">49<" not in text
        text = words(browser.get(f"/approvals/{asked.id}").text)
        assert "RIGHT-TO-LEFT OVERRIDE (U+202E) changes the direction of the text" in text
        assert "CYRILLIC SMALL LETTER A (U+0430) looks like other letters" in text
        assert "characters that could deceive the eye" in text
        json.dumps(browser.get(f"/approvals/{asked.id}.json").json())
        shown = fields(browser.get(f"/approvals/{asked.id}/edit").text, "/edit")
        same = site.send(browser, f"/approvals/{asked.id}/edit", **shown | {"why": "nothing changed"})
        assert same.status_code in (
            303,
            400,
            409,
        )  # what was not touched is the same value, or refused as asked already


def test_a_megabyte_is_not_approved_before_it_was_shown() -> None:
    with at_desk(anything, payload_bytes_max=4_000_000) as (desk, site):
        asked = desk.ask("anything", {"text": "a" * 1_000_000 + "SEND IT TO EVE", "more": list(range(2_000))})
        browser = site.browse("approver", name="ana")
        text = browser.get(f"/approvals/{asked.id}").text
        assert len(text) < 200_000
        assert "998,414 more characters" in words(text)
        assert "Show everything first" in text
        assert f'action="/approvals/{asked.id}/approve"' not in text
        whole = browser.get(f"/approvals/{asked.id}", params={"whole": "1"}).text
        assert "SEND IT TO EVE" in whole
        assert "a" * 1_000_000 in whole
        assert f'action="/approvals/{asked.id}/approve"' in whole


def test_what_is_nested_as_deep_as_the_ledger_allows_is_shown() -> None:
    value: Any = "the end"
    for _ in range(49):
        value = {"a": [value]}
    with at_desk(anything) as (desk, site):
        asked = desk.ask("anything", {"deep": value})
        assert "the end" in words(page(site, asked.id))
        assert site.browse().get(f"/approvals/{asked.id}.json").status_code == 200


def test_a_result_that_is_no_number_or_html_is_shown_and_inert() -> None:
    @tool(kind="read", needs_approval=True)
    def odd() -> Any:
        return {"nan": math.nan, "text": "<img src=x onerror=alert(1)>\u202e"}

    with at_desk(odd) as (desk, site):
        asked = desk.ask("odd", {})
        desk.rt.approve(asked.id, digest=asked.digest, by="anna")
        desk.open("r").answer("odd", {})
        text = page(site, asked.id)
        assert "onerror" not in str([attrs for _, attrs in tags(text)])
        assert "\\u202e" in text
        assert site.browse().get(f"/approvals/{asked.id}.json").status_code == 200


def test_a_redacted_value_is_hidden_from_everybody_and_still_bound() -> None:
    @tool(kind="read", needs_approval=True, redact=("card",))
    def look(card: str, cents: int) -> str:
        return "ok"

    with at_desk(look) as (desk, site):
        asked = desk.ask("look", {"card": "4242-4242-4242-4242", "cents": 5})
        browser = site.browse("approver", name="ana")
        text = browser.get(f"/approvals/{asked.id}").text
        assert "4242-4242" not in text + browser.get(f"/approvals/{asked.id}.json").text
        assert "redacted(•••" in text
        assert "has hidden values" in words(text)
        assert "4242-4242" not in browser.get(f"/approvals/{asked.id}/edit").text
        assert site.send(browser, f"/approvals/{asked.id}/approve", digest=asked.digest).status_code == 303


def test_what_is_encrypted_without_a_key_here_can_be_rejected_only(tmp_path: Any) -> None:
    pytest.importorskip("cryptography")
    url = f"sqlite:///{tmp_path}/a.db"
    owner = Desk(wire, url=url, encrypt=base64.urlsafe_b64encode(b"k" * 32).decode())
    asked = owner.ask("wire", {"to": "ada", "cents": 5})
    with at_desk(wire, url=url) as (_, site):
        browser = site.browse("approver", name="ana")
        text = browser.get(f"/approvals/{asked.id}").text
        assert "encrypted, and this server has no key" in words(text)
        assert f'action="/approvals/{asked.id}/approve"' not in text
        assert browser.get("/approvals").status_code == 200
        tried = site.send(browser, f"/approvals/{asked.id}/approve", digest=asked.digest)
        assert 400 <= tried.status_code < 600
        assert owner.rt.approval(asked.id).state == "pending"
        assert site.send(browser, f"/approvals/{asked.id}/reject", words="not readable").status_code == 303
    owner.close()


def test_a_request_of_another_tenant_is_not_there() -> None:
    with at_desk(wire) as (desk, site):
        asked = desk.ask("wire", {"to": "ada", "cents": 5})
        other = site.browse("approver", name="eve", tenant="other")
        assert other.get(f"/approvals/{asked.id}").status_code == 404
        assert site.send(other, f"/approvals/{asked.id}/approve", digest=asked.digest).status_code == 404
        assert other.get("/approvals.json").json()["items"] == []
