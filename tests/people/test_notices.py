"""Whoever is asked is told: once, by who asked; again after a failure; by somebody else after a death."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime
from amends.errors import LedgerUnavailable, NoRun
from amends.host import notices
from amends.ledger.operations import NOTICES_MAX, ClaimNotice, DueNotices, RecordNotice
from amends.notify import payload, slack_payload
from amends.stores.sqlite.store import SqliteStore
from amends.worker import work
from tests.people.office import COLOURS, HOOKS, Desk, Office


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def office(colour: str, hook: str | None = "def", **options: Any) -> Iterator[Office]:
    made = Office(colour, hook, **options)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("hook", HOOKS)
def test_the_hook_is_called_once_before_who_asked_goes_on(colour: str, hook: str) -> None:
    with office(colour, hook) as here:
        approval = here.held(cents=7)
        (told,) = here.desk.told
        assert (told.id, told.state, told.call.tool, dict(told.call.args)) == (
            approval,
            "pending",
            "wire",
            {"cents": 7},
        )
        assert told.digest == here.do("approval", approval).digest
        assert told.expires_at > datetime.fromtimestamp(here.clock.now, UTC)
        assert here.held(cents=7) == approval, "asked for again it is the same request"
        here.clock.now += 10 * notices.CLAIM_S
        here.do("recover")
        assert here.desk.ids == [approval]
        assert [event.what for event in here.listed("events", "r")].count("told") == 1


def test_each_request_is_told(colour: str) -> None:
    with office(colour) as here:
        asked = [here.held(f"run {number}", number) for number in range(3)]
        assert here.desk.ids == asked
        assert len(set(asked)) == 3


def test_who_has_no_hook_leaves_it_to_who_has_one(colour: str) -> None:
    with office(colour, None) as here:
        asked = [here.held(f"run {number}", number) for number in range(3)]
        here.do("recover")
        other = here.beside()
        other.do("recover")
        assert other.desk.ids == asked
        other.do("recover")
        here.beside().do("recover")
        assert other.desk.ids == asked


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_fails_is_logged_and_called_again_later(
    colour: str, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    with office(colour, hook) as here:
        here.desk.script = [OSError("hush"), OSError("hush")]
        with caplog.at_level(logging.WARNING, "amends"):
            approval = here.held()
        (said,) = [record for record in caplog.records if "on_approval_needed" in record.message]
        assert approval in said.message
        assert said.exc_info is not None
        here.do("recover")
        assert here.desk.ids == [approval], "not yet"
        here.clock.now += notices.RETRY_S
        here.do("recover")
        assert here.desk.ids == [approval] * 2
        here.clock.now += notices.RETRY_S
        here.do("recover")
        assert here.desk.ids == [approval] * 2, "the pause grows"
        here.clock.now += notices.RETRY_S
        here.do("recover")
        assert here.desk.ids == [approval] * 3
        events = [event for event in here.listed("events", "r") if event.what in ("told", "not told")]
        assert [event.what for event in events] == ["not told", "not told", "told"]
        assert "hush" not in str([event.facts for event in events]), "what it says is for the log"


def test_a_hook_that_always_fails_is_given_up_and_the_request_stays(colour: str) -> None:
    with office(colour) as here:
        here.desk.script = [OSError()] * 1_000
        approval = here.held()
        for _ in range(2 * NOTICES_MAX):
            here.clock.now += notices.RETRY_S_MAX
            here.do("recover")
        # The request itself ran out before: nobody is told of that either.
        assert 1 < len(here.desk.told) <= NOTICES_MAX
        assert here.do("approval", approval).state in ("pending", "expired")


def test_a_hook_that_hangs_does_not_keep_recovery_waiting_for_each_request(
    colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker tells people before it looks for runs: a hundred requests would take it a hundred times the limit."""
    monkeypatch.setattr(notices, "HOOK_S_MAX", 0.2)
    monkeypatch.setattr(notices, "PASS_S_MAX", 0.2)
    with office(colour, None) as here:
        asked = [here.held(f"run {number}", number) for number in range(20)]
        other = here.beside("def" if colour == "blocking" else "async def")
        until = time.monotonic() + 5.0

        async def hang() -> None:
            await asyncio.sleep(5.0)

        def sleep() -> None:
            time.sleep(max(0.0, until - time.monotonic()))

        other.desk.before = lambda _: sleep() if colour == "blocking" else hang()
        begun = time.monotonic()
        other.do("recover")
        assert time.monotonic() - begun < 2.0
        first = other.desk.ids
        assert 0 < len(first) < 5
        other.do("recover")
        assert set(other.desk.ids) > set(first), "the others have their turn in the next pass"
        assert set(other.desk.ids) <= set(asked)


def test_what_was_decided_meanwhile_is_not_told(colour: str) -> None:
    with office(colour) as here:
        here.desk.script = [OSError()]
        approval = here.do("approval", here.held())
        here.do("approve", approval.id, digest=approval.digest, by="anna")
        here.clock.now += notices.CLAIM_S
        here.do("recover")
        assert len(here.desk.told) == 1


def test_a_hook_may_decide_at_once(colour: str) -> None:
    """A machine of yours that says yes: who asked learns it when it asks again."""
    with office(colour, "async def" if colour == "async" else "def") as here:
        here.desk.before = lambda one: here.rt.approve(one.id, digest=one.digest, by="anna")
        assert here.held() == here.desk.told[0].id
        assert here.wire() == "sent 1"


def test_a_hook_starts_no_tools(colour: str) -> None:
    with office(colour, "def" if colour == "blocking" else "async def") as here:
        refused: list[Exception] = []

        def call(approval: Any) -> None:
            try:
                here.tool(cents=3)
            except NoRun as no:
                refused.append(no)

        async def call_async(approval: Any) -> None:
            try:
                await here.tool(cents=3)
            except NoRun as no:
                refused.append(no)

        here.desk.before = call if colour == "blocking" else call_async
        here.held()
        assert "inside the notice of wire" in str(refused[0])


def test_a_hook_that_hangs_is_not_waited_for(colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(notices, "HOOK_S_MAX", 0.05)
    release = threading.Event()
    with office(colour) as here:
        here.desk.before = lambda approval: release.wait(30)
        approval = here.held()
        release.set()
        here.clock.now += notices.RETRY_S
        here.desk.before = lambda approval: None
        here.do("recover")
        assert here.desk.ids == [approval] * 2


def test_a_ledger_that_fails_while_telling_does_not_fail_the_call(colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with office(colour) as here:
        perform = here.store.perform

        def broken(op: Any) -> Any:
            if isinstance(op, DueNotices | ClaimNotice | RecordNotice):
                raise LedgerUnavailable("gone")
            return perform(op)

        monkeypatch.setattr(here.store, "perform", broken)
        approval = here.held()
        assert here.desk.told == []
        monkeypatch.setattr(here.store, "perform", perform)
        here.do("recover")
        assert here.desk.ids == [approval]


def test_a_view_of_one_tenant_tells_only_its_own(colour: str) -> None:
    with office(colour, None, tenant="acme") as here:
        approval = here.held()
        theirs = here.beside(tenant="other")
        theirs.do("recover")
        assert theirs.desk.told == []
        everybody = here.beside()
        everybody.do("recover")
        assert everybody.desk.ids == [approval]


def test_links_are_in_what_the_hook_gets_and_nowhere_else(colour: str) -> None:
    secret = "a-secret-of-some-length"
    with office(colour, link_secret=secret, link_url="https://ops.example/decide") as here:
        approval = here.held()
        links = here.desk.told[0].links
        assert set(links) == {"approve", "reject"}
        assert all(link.startswith("https://ops.example/decide?token=aml1.") for link in links.values())
        assert dict(here.do("approval", approval).links) == {}
        assert secret not in repr(here.rt.settings)
        assert secret not in str([event.facts for event in here.listed("events", "r")])
    with office(colour) as here:
        here.held()
        assert dict(here.desk.told[0].links) == {}


@pytest.mark.parametrize("encrypt", [False, True])
def test_what_is_hidden_is_told_to_nobody(colour: str, encrypt: bool) -> None:
    hidden: dict[str, Any] = {"redact": ["cents"], "secret_key": "k" * 40}
    keys = {"encrypt": base64.urlsafe_b64encode(bytes(range(32))).decode()} if encrypt else {}
    with office(colour, **hidden, **keys) as here:
        here.held(cents=918_273)
        (told,) = here.desk.told
        said = json.dumps([payload(told), slack_payload(told)], default=str, ensure_ascii=False)
        assert "918273" not in said
        assert "•••" in said


@pytest.mark.parametrize("hook", HOOKS)
def test_a_worker_tells(colour: str, hook: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    store = SqliteStore(tmp_path / "ledger.db", "NORMAL", time.time)
    with office(colour, None, store=store) as here:
        approval = here.held()
    desk = Desk()
    told = desk.hear if hook == "def" else desk.hear_async
    kind: Any = Runtime if colour == "blocking" else AsyncRuntime
    for _ in range(2):
        work(kind(url, on_approval_needed=told), once=True)
        assert desk.ids == [approval]
