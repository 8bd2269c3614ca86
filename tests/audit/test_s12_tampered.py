"""S12: a migration's record of a thousand events, tampered with in seven ways, on every store; each is found and named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from amends import Held, Runtime, Verified, tool
from amends.host.anchor import Anchor
from amends.signing import NewKey, new_key
from tests.audit.forger import Copy, Forger, Row
from tests.scenarios.stores import STORES, fresh

ROWS = 500
"""Two events for each of them."""


@tool
def migrate(row: int) -> int:
    return row * 2


@migrate.compensate
def put_row_back(result: int) -> None:
    """Nothing is left of it."""


@tool(kind="pivot", needs_approval=True)
def switch(to: str) -> str:
    return to


@dataclass
class Audited:
    """A ledger of two days, and what its owners keep elsewhere."""

    url: str
    anchor: Path
    key: NewKey
    forger: Forger
    yesterday: Copy
    today: Copy

    def runtime(self, **options: Any) -> Runtime:
        return Runtime(
            self.url, tools=[migrate, switch], anchor=str(self.anchor), audit_key=self.key.secret, checkpoint="off",
            principal="bot", **options,
        )  # fmt: skip

    def verify(self, **given: Any) -> Verified:
        rt = self.runtime()
        try:
            return rt.verify(**given)
        finally:
            rt.close()

    @contextmanager
    def tampered(self) -> Iterator[list[Row]]:
        """The events of the migration; what is done to them is undone after."""
        try:
            yield [row for row in self.today["events"] if row["run_id"] == "migration"]
        finally:
            self.forger.put_back(self.today)


@pytest.fixture(params=STORES)
def audited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Audited]:
    url = fresh(request.param, tmp_path, request)
    if url.startswith("sqlite"):
        url += "?synchronous=normal"
    anchor, key = tmp_path / "elsewhere.anchor", new_key("ed25519")
    made = Audited(url, anchor, key, None, {}, {})  # type: ignore[arg-type]
    rt = made.runtime()
    made.forger = Forger(url)
    with rt.run("migration") as run:
        for row in range(ROWS):
            migrate(row=row)
            if row == ROWS - 6:
                assert rt.checkpoint() is not None
                made.yesterday = made.forger.copy()
        run.output = "all rows"
    with pytest.raises(Held), rt.run("switch"):
        switch(to="new")
    newest = rt.checkpoint()
    assert newest is not None
    assert newest.n == 2
    rt.close()
    made.today = made.forger.copy()
    yield made
    made.forger.close()


def first(found: Verified) -> tuple[str, int, str]:
    assert not found.ok
    return found.problems[0].run_id, found.problems[0].n, found.problems[0].how


def test_s12_whatever_is_tampered_with_is_found_and_named(audited: Audited, tmp_path: Path) -> None:
    clean = audited.verify()
    assert clean.ok, str(clean)
    assert (clean.checkpoints, clean.unanchored) == (2, 0)
    assert clean.events > 1_000
    _found_in_the_chain(audited)
    _found_by_what_others_know(audited, tmp_path)
    assert audited.verify().ok


def _found_in_the_chain(audited: Audited) -> None:
    forger = audited.forger

    # (a) one byte of one event
    with audited.tampered() as events:
        facts: str = events[499]["facts"]
        forger.change("events", events[499], facts=facts.replace("1", "2", 1) if "1" in facts else facts + " ")
        assert first(audited.verify()) == ("migration", 500, "edited")

    # (b) one event is gone
    with audited.tampered() as events:
        forger.delete("events", [events[699]])
        assert first(audited.verify()) == ("migration", 700, "deleted")

    # (d) two are swapped
    with audited.tampered() as events:
        one, other = events[399], events[405]
        for row, said in ((one, other), (other, one)):
            forger.change("events", row, **{name: said[name] for name in said if name not in ("place", "n")})
        name, n, how = first(audited.verify())
        assert (name, n) == ("migration", 400)
        assert how in ("swapped", "edited")

    # (g) somebody says yes to what nobody was asked
    with audited.tampered():
        [asked] = audited.today["approvals"]
        forger.change("approvals", asked, state="approved", given='[["anna", 1.0]]')
        name, n, how = first(audited.verify())
        assert (name, how) == ("switch", "row_changed")
        assert n > 0
    with audited.tampered() as events:
        forged = {**events[-1], "place": events[-1]["place"] + 10_000, "n": events[-1]["n"] + 1, "what": "approval"}
        forger.insert("events", forged)
        name, n, how = first(audited.verify())
        assert (name, n) == ("migration", forged["n"])
        assert how in ("edited", "inserted")


def _found_by_what_others_know(audited: Audited, tmp_path: Path) -> None:
    """What is whole in itself."""
    forger = audited.forger

    # (c) the end is cut off, and every row is as it was then
    with audited.tampered() as events:
        forger.put_back(audited.yesterday, "runs", "calls", "events", "approvals")
        kept = len(audited.yesterday["events"])
        assert len(events) - kept >= 10
        found = audited.verify()
        assert first(found) == ("migration", kept + 1, "cut")
        assert {one.how for one in found.problems} == {"cut"}

    # (e) everything from 300 on is written anew, with right hashes
    with audited.tampered() as events:
        forger.change("events", events[299], by_whom="somebody else")
        forger.hash_anew(events[0]["root"], 300)
        found = audited.verify()
        name, n, how = first(found)
        assert (name, how) == ("migration", "rewritten")
        assert 300 <= n <= len(events)

    # (e) and the checkpoints as well, by who has no key
    with audited.tampered() as events:
        forger.change("events", events[299], by_whom="somebody else")
        forger.hash_anew(events[0]["root"], 300)
        forger.execute("delete from amends_checkpoint")
        forger.execute("update amends_run set sealed = 0")
        forger.mark()
        away = tmp_path / "away"
        forging = Runtime(audited.url, tools=[migrate, switch], anchor=str(away), checkpoint="off")
        forging.checkpoint()
        forging.close()
        assert {one.how for one in audited.verify().problems} >= {"bad_signature", "put_back"}
        without = Runtime(audited.url, anchor=str(away), checkpoint="off")
        assert without.verify().ok, (
            "who knows no key and trusts the forger's anchor sees nothing: that is why there are keys"
        )
        without.close()

    # (f) the whole ledger is yesterday's
    with audited.tampered():
        forger.put_back(audited.yesterday)
        assert first(audited.verify()) == ("", 2, "put_back")
        copy = tmp_path / "copy.anchor"
        shutil.copy(audited.anchor, copy)
        Anchor(audited.anchor).reset()
        assert audited.verify().ok, "put back together with its anchor nobody can tell"
        assert first(audited.verify(anchor=str(copy))) == ("", 2, "put_back")
        shutil.copy(copy, audited.anchor)
