"""A request that nobody answers: the console shows who is asked, since when, and what comes next."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from amends import Escalation, Held, Rule, Runtime, Shift, tool
from amends.serve import app

RULE = Rule("pay", roles=("clerk",), remind=600, reminders=1, escalate=[Escalation(1_800, ("lead",))], deadline=7_200)


@tool(kind="pivot")
def pay(cents: int) -> str:
    return "paid"


def words(text: str, id: str) -> str:
    found = re.search(rf'<p[^>]*id="{id}".*?</p>', text, re.DOTALL)
    assert found is not None, f"the page does not have {id}"
    return " ".join(re.sub(r"<[^>]+>", " ", found[0]).split())


def test_who_is_asked_and_what_comes_next_is_shown() -> None:
    now = datetime.now(UTC)
    shift = Shift("clerk", "cora", now - timedelta(days=1), now + timedelta(days=1))
    given: dict[str, Any] = {"rules": [RULE], "approvers": {"clerk": ["carl", "cora"], "lead": ["lea"]}}
    rt = Runtime("memory:", tools=[pay], oncall=[shift], agent="bot", **given)
    with pytest.raises(Held) as held, rt.run("r", recover="wait"):
        pay(cents=1)
    service = app(rt, secrets="s" * 40, worker=False)
    with TestClient(service) as browser:
        assert service.logins is not None
        browser.get(service.logins.new_link("", name="carl", scopes=("operator",)))
        page = browser.get(f"/approvals/{held.value.approval.id}").text
        assert words(page, "asked-now").startswith("Asked now: cora , since")
        assert words(page, "asked-next").startswith("If nobody answers, a reminder is sent")
        listed = " ".join(re.sub(r"<[^>]+>", " ", browser.get("/approvals").text).split())
        assert "asks cora" in listed
        assert browser.get("/v1/oncall").json() == {"items": [shift.to_dict()]}
        assert [one["kind"] for one in browser.get("/v1/oncall/problems").json()["items"]] == ["gap"]
        for wrong in ("/v1/oncall?at=2026-01-01T00:00", "/v1/oncall?at=soon", "/v1/oncall/problems?days=0"):
            assert browser.get(wrong).status_code == 422
    rt.close()


def test_what_no_worker_has_done_in_time_is_named_as_due() -> None:
    rule = Rule("pay", roles=("clerk",), remind=1, escalate=[Escalation(1_800, ("lead",))])
    approvers = {"clerk": ["carl"], "lead": ["lea"]}
    rt = Runtime("memory:", tools=[pay], rules=[rule], approvers=approvers, agent="bot")
    with pytest.raises(Held) as held, rt.run("r", recover="wait"):
        pay(cents=1)
    time.sleep(1.05)
    service = app(rt, secrets="s" * 40, worker=False)
    with TestClient(service) as browser:
        assert service.logins is not None
        browser.get(service.logins.new_link("", name="carl", scopes=("operator",)))
        page = browser.get(f"/approvals/{held.value.approval.id}").text
        assert words(page, "asked-next").startswith("A reminder was due")
        assert "A worker does this: is one running?" in words(page, "asked-next")
    rt.close()
