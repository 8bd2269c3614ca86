"""The doubts page: what was sent, what is known, what each answer leads to; and everything else that waits for a person."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, get_args, get_type_hints

import pytest

from amends import Happened, InboxItem, NoEffect, Retry, Rule, Unknown, tool
from amends.errors import Error, Suspended
from amends.serve.console.doubts import SECTIONS, place_of
from amends.stores.memory import MemoryStore
from tests.console.desk import at_desk, fields, flashed
from tests.console.shop import Site, tags, words

WORLD: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _world() -> None:
    WORLD.clear()
    WORLD.update(charges={}, probes=[], says=Unknown("the list is an hour old"), is_down=True)


@tool(key="order")
def charge(order: str, cents: int = 5) -> str:
    WORLD["charges"][order] = cents
    raise TimeoutError("the bank did not answer in time")


@charge.compensate
def refund(order: str) -> None:
    WORLD["charges"].pop(order, None)


@charge.probe(settle=3_600)
def find_charge(order: str) -> Any:
    WORLD["probes"].append(order)
    return WORLD["says"]


@tool(key="order")
def book(order: str, **more: Any) -> str:
    if order.startswith("lost"):
        raise TimeoutError(f"connection reset <b>{order}</b>\u202e")
    return f"b_{order}"


@book.compensate(retry=Retry(attempts=1))
def unbook(order: str) -> None:
    WORLD["unbooked"] = order
    if order.startswith("stuck") and WORLD["is_down"]:
        raise NoEffect("no such booking <i>here</i>")


@tool
def memo(text: str) -> str:
    return f"m_{text}"


@memo.compensate
def forget(text: str) -> None: ...


@tool(kind="pivot")
def ship(order: str) -> str:
    return f"s_{order}"


@tool(kind="pivot", needs_approval=True)
def wire(order: str) -> str:
    return f"w_{order}"


TOOLS = (charge, book, memo, ship, wire)


def failed(desk: Any, run: str, *orders: str) -> None:
    """Book, and then fail: the run is rolled back as far as that goes."""
    with suppress(Error, ValueError), desk.rt.scoped(agent="shopper").run(run) as made:
        for order in orders:
            made.answer("book", {"order": order})
        raise ValueError("the customer has changed their mind")


def doubtful(desk: Any, run: str = "r", order: str = "lost-1") -> str:
    """Leave a call in doubt; return its id."""
    desk.open(run).answer("book", {"order": order})
    return next(one.id for one in desk.rt.doubts() if one.args["order"] == order)


# ---- The list


def test_everything_that_the_inbox_lists_has_a_page_with_what_decides_it() -> None:
    late = [61.0]
    store = MemoryStore(clock=lambda: time.time() - late[0])
    with at_desk(*TOOLS, store=store, rules=[Rule(tool="wire", expires=60)]) as (desk, site):
        desk.ask("wire", {"order": "1"}, run="expired")
        late[0] = 0.0
        desk.ask("wire", {"order": "2"}, run="approval")
        doubtful(desk, "doubt")
        failed(desk, "blocked", "stuck-1")
        with suppress(Suspended), desk.rt.run("suspended", recover="wait"):
            raise Suspended("the user pressed Stop")
        _held_as_duplicate(desk)
        items = desk.rt.inbox()
        kinds = {item.what for item in items}
        assert kinds == set(get_args(get_type_hints(InboxItem)["what"])), "one of each kind"
        assert {what for what, _, _ in SECTIONS} == kinds - {"approval"}
        browser = site.browse()
        listed = words(browser.get("/doubts").text)
        for item in items:
            answer = browser.get(place_of(item))
            assert answer.status_code == 200, item
            if item.what != "approval":
                assert place_of(item) in browser.get("/doubts").text, item
            acts = {attrs.get("action", "").rpartition("/")[2] for tag, attrs in tags(answer.text) if tag == "form"}
            links = {attrs.get("href", "").rpartition("/")[2] for tag, attrs in tags(answer.text) if tag == "a"}
            offered = acts | links
            for verb in set(item.verbs) - {"open"}:
                if item.what == "doubt" and verb == "probe":
                    continue  # its tool has none
                if item.what == "blocked" and verb in ("retry", "accept"):
                    continue  # on the page of the call that is in the way, which this one links
                assert verb in offered, (item.what, verb, offered)
        for _, title, _ in SECTIONS:
            assert title in listed
        assert browser.get("/doubts.json").json()["sections"][0]["what"] == "doubt"


def _held_as_duplicate(desk: Any) -> str:
    """Have a call held as a suspected duplicate; return its id."""
    with suppress(Suspended), desk.rt.run("twice", recover="wait") as run:
        run.answer("memo", {"text": "t1"})
        raise Suspended("the user pressed Stop")
    desk.runs["twice"] = desk.rt.open("twice", recover="wait")
    desk.runs["twice"].answer("memo", {"text": "t2"})
    return next(item.id for item in desk.rt.inbox("what:decision"))


def test_an_empty_list_says_what_would_be_there_and_a_filter_narrows() -> None:
    with at_desk(*TOOLS) as (desk, site):
        browser = site.browse("viewer", name="vera")
        assert "Nothing is in doubt" in browser.get("/doubts").text
        doubtful(desk)
        assert "Nothing matches" in browser.get("/doubts", params={"filter": "tool:other"}).text
        assert "lost-1" in browser.get("/doubts", params={"filter": "tool:book"}).text
        assert 'id="filter-problem"' in browser.get("/doubts", params={"filter": "nonsense"}).text


def test_what_amends_is_still_settling_by_itself_is_listed_apart() -> None:
    with at_desk(*TOOLS) as (desk, site):
        desk.open("r").answer("charge", {"order": "1"})
        data = site.browse().get("/doubts.json").json()
        assert data["sections"] == []
        assert [one["state"] for one in data["settling"]] == ["in_doubt"]
        assert "Being settled" in site.browse().get("/doubts").text


# ---- One doubt


def test_a_doubt_shows_what_was_sent_when_it_was_lost_and_what_each_answer_does() -> None:
    with at_desk(*TOOLS) as (desk, site):
        failed(desk, "r", "1", "lost-2")
        [item] = desk.rt.inbox("what:doubt")
        text = site.browse().get(f"/doubts/{item.id}").text
        said = words(text)
        assert 'order text "lost-2"' in said
        assert "It was sent" in said
        assert "The answer was lost" in said
        assert "Take back book with unbook" in said
        data = site.browse("viewer").get(f"/doubts/{item.id}.json").json()
        preview = desk.rt.preview(item.id)
        for one in data["answers"]:
            found = getattr(preview, one["answer"])
            assert (one["call_state"], one["run_state"]) == (found.call_state, found.run_state)
            assert [step["what"] for step in one["does"]] == [step.what for step in found.does]


def test_the_probe_decides_nothing_and_its_answer_is_kept_and_shown() -> None:
    with at_desk(*TOOLS) as (desk, site):
        desk.open("r").answer("charge", {"order": "1"})
        [doubt] = desk.rt.doubts()
        olga = site.browse()
        WORLD["says"] = Happened("ch_1")
        done = site.send(olga, f"/doubts/{doubt.id}/probe")
        said = words(flashed(olga, done))
        assert "The probe says that it happened. It is still for you to decide." in said
        assert "it happened" in said
        assert desk.rt.call(doubt.id).state == "in_doubt"
        evidence = olga.get(f"/doubts/{doubt.id}.json").json()["evidence"]
        assert evidence[-1]["answer"] == "happened"
        assert evidence[-1]["digest"][:12] in said
        form = fields(olga.get(f"/doubts/{doubt.id}").text, "/resolve")
        assert form["result"].strip('"') == "ch_1"
        asked = [one for one in desk.rt.events("r") if one.what == "probed"][-1]
        assert asked.by == "olga", "every act is an event with the name of whoever did it"
        assert evidence[-1]["by"] == "olga asked"
        assert desk.rt.doubts().__next__().evidence[-1].by == "person"
        form |= {"why": "it is in their list", "confirmed": "yes"}
        site.send(olga, f"/doubts/{doubt.id}/resolve", **form)
        settled = olga.get(f"/doubts/{doubt.id}.json").json()
        assert (settled["what"], [one["answer"] for one in settled["evidence"]][-1]) == ("settled", "happened")
        assert evidence[-1]["digest"][:12] in words(olga.get(f"/doubts/{doubt.id}").text), "evidence is kept"


@pytest.mark.parametrize("answer, state", [("happened", "compensated"), ("absent", "failed"), ("unknown", "residue")])
def test_each_answer_is_asked_once_more_recorded_and_acted_on(answer: str, state: str) -> None:
    with at_desk(*TOOLS) as (desk, site):
        failed(desk, "r", "lost-2")
        [item] = desk.rt.inbox("what:doubt")
        olga, at = site.browse(), f"/doubts/{item.id}/resolve"
        assert site.send(olga, at, answer=answer, why=" ", confirmed="yes").status_code == 422
        sure = site.send(
            olga, at, answer=answer, why="I called <b>them</b>", result='{"id": 7}' if state == "x" else ""
        )
        assert sure.status_code == 200
        assert "This cannot be changed afterwards" in words(sure.text)
        assert desk.rt.call(item.id).state == "in_doubt"
        done = site.send(olga, at, **fields(sure.text, "/resolve"))
        said = words(flashed(olga, done))
        assert "Settled." in said
        assert desk.rt.call(item.id).state == state
        if answer != "happened":
            assert "olga : I called &lt;b&gt;" not in said
            assert "I called <b>them</b>" in said
        assert ("unbooked" in WORLD) == (answer == "happened")


def test_of_two_who_settle_at_once_the_second_sees_who_was_first_and_loses_nothing() -> None:
    with at_desk(*TOOLS) as (desk, site):
        call = doubtful(desk)
        olga, ora = site.browse(), site.browse("operator", name="ora")
        said = {"answer": "absent", "why": "not in their list", "confirmed": "yes"}
        assert site.send(ora, f"/doubts/{call}/resolve", **said).status_code == 303
        late = site.send(olga, f"/doubts/{call}/resolve", **said | {"why": "I called them too"})
        assert late.status_code == 409
        assert "not the first: ora has decided, and book is failed: not in their list" in words(late.text)
        assert "I called them too" in words(late.text)


def test_whoever_is_no_operator_sees_it_and_is_told_that_they_may_not_settle_it() -> None:
    with at_desk(*TOOLS) as (desk, site):
        call = doubtful(desk)
        for scope, name in (("viewer", "vera"), ("approver", "ana")):
            browser = site.browse(scope, name=name)
            text = browser.get(f"/doubts/{call}").text
            assert "needs the scope operator" in text
            assert "<form" not in text.partition("<main")[2].partition("</main")[0]
            for verb in ("probe", "resolve", "retry", "accept", "decide"):
                tried = site.send(browser, f"/doubts/{call}/{verb}", answer="absent", why="x", confirmed="yes")
                assert tried.status_code == 403
                assert "scope operator" in words(tried.text)
        assert desk.rt.call(call).state == "in_doubt"


def test_hostile_texts_in_a_doubt_are_inert() -> None:
    with at_desk(*TOOLS) as (desk, site):
        order = "lost <img src=x onerror=alert(1)> p\u0430ypal \u202e"
        desk.open("<script>alert(1)</script>").answer("book", {"order": order, "<svg onload=x>": "{{ 7*7 }}"})
        [doubt] = desk.rt.doubts()
        browser = site.browse()
        for place in ("/doubts", f"/doubts/{doubt.id}", "/doubts/runs/%3Cscript%3Ealert(1)%3C%2Fscript%3E"):
            answer = browser.get(place)
            assert answer.status_code == 200, place
            names = [tag for tag, _ in tags(answer.text)]
            assert not {"script", "img", "b", "i"} & set(names[names.index("main") :]), place
            assert not [name for _, attrs in tags(answer.text) for name in attrs if name.startswith("on")]
            assert not set(answer.text) & {"\u202e", "\u0430"}


# ---- What gave up, what is held, what is stuck


def test_a_compensation_that_gave_up_is_tried_again_or_accepted() -> None:
    with at_desk(*TOOLS) as (desk, site):
        failed(desk, "one", "stuck-1")
        failed(desk, "two", "stuck-2")
        olga = site.browse()
        calls = {call.run_id: call.id for call in desk.rt.calls("state:compensation_failed")}
        stuck = olga.get("/doubts/runs/one").text
        assert f"/doubts/{calls['one']}" in stuck
        text = words(olga.get(f"/doubts/{calls['one']}").text)
        assert "Its compensation failed, and was given up." in text
        assert "no such booking <i>here</i>" in text
        assert site.send(olga, f"/doubts/{calls['one']}/retry", why="").status_code == 422
        WORLD["is_down"] = False
        done = site.send(olga, f"/doubts/{calls['one']}/retry", why="their system is back")
        assert "Tried again. The run is rolled back." in words(flashed(olga, done))
        sure = site.send(olga, f"/doubts/{calls['two']}/accept", why="paid by hand")
        assert "The effect of 1 call, book in run two, stays in the world" in words(sure.text)
        assert desk.rt.call(calls["two"]).state == "compensation_failed"
        done = site.send(olga, f"/doubts/{calls['two']}/accept", **fields(sure.text, "/accept"))
        assert "Accepted: its effect stays." in words(flashed(olga, done))
        assert desk.rt.call(calls["two"]).state == "residue"


def test_a_suspected_duplicate_is_shown_beside_the_earlier_call_and_decided() -> None:
    with at_desk(*TOOLS) as (desk, site):
        call = _held_as_duplicate(desk)
        olga = site.browse()
        text = words(olga.get(f"/doubts/{call}").text)
        assert "The earlier call" in text
        assert '"t1"' in text
        assert '"t2"' in text
        assert '"m_t1"' in text
        assert site.send(olga, f"/doubts/{call}/decide", decision="other", why="x").status_code == 422
        done = site.send(olga, f"/doubts/{call}/decide", decision="replay", why="it is the same order")
        assert "Decided. It is answered with the earlier result." in words(flashed(olga, done))
        late = site.send(olga, f"/doubts/{call}/decide", decision="run", why="no, run it")
        assert late.status_code in (400, 409)


def test_a_run_that_ended_after_its_pivot_is_closed_or_abandoned() -> None:
    with at_desk(*TOOLS) as (desk, site):
        for name in ("one", "two"):
            with suppress(Error, ValueError), desk.rt.run(name) as run:
                run.answer("ship", {"order": name})
                raise ValueError("the agent gave up")
        olga = site.browse()
        text = words(olga.get("/doubts/runs/one").text)
        assert "What is in the way" in text
        assert "rt.finish" not in text
        sure = site.send(olga, "/doubts/runs/one/finish", why="nothing is missing")
        assert "closed as committed" in words(sure.text)
        done = site.send(olga, "/doubts/runs/one/finish", **fields(sure.text, "/finish"))
        assert "Closed as committed." in words(flashed(olga, done))
        assert desk.rt.report("one").run.state == "committed"
        sure = site.send(olga, "/doubts/runs/two/abandon", why="settled by hand")
        assert "1 effect of two will stay" in words(sure.text)
        done = site.send(olga, "/doubts/runs/two/abandon", **fields(sure.text, "/abandon"))
        assert "left standing" in words(flashed(olga, done))
        assert desk.rt.report("two").run.state == "abandoned"
        assert site.send(olga, "/doubts/runs/two/abandon", why="again", confirmed="yes").status_code in (400, 409)


def test_what_is_settled_says_so_and_who_did_it(site: Site) -> None:
    browser = site.browse()
    call = next(iter(site.shop.rt.calls("state:succeeded")))
    text = words(browser.get(f"/doubts/{call.id}").text)
    assert "There is no doubt about it any more." in text
    assert browser.get("/doubts/call_none").status_code == 404
    assert browser.get("/doubts/runs/none").status_code == 404


def test_every_kind_of_page_is_well_formed_without_ids_twice(site: Site) -> None:
    browser = site.browse()
    places = ["/approvals", "/doubts"]
    places += [f"/approvals/{one.id}" for one in site.shop.rt.approvals()]
    places += [f"/approvals/{one.id}/edit" for one in site.shop.rt.approvals()]
    places += [place_of(item) for item in site.shop.rt.inbox()]
    for place in dict.fromkeys(places):
        text = browser.get(place).text
        ids = [attrs["id"] for _, attrs in tags(text) if "id" in attrs]
        assert len(ids) == len(set(ids)), (place, sorted({one for one in ids if ids.count(one) > 1}))
        named = {attrs["for"] for tag, attrs in tags(text) if tag == "label" and "for" in attrs}
        assert named <= set(ids), place
