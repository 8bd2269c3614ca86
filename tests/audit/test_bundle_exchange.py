"""Runs taken out of one ledger and loaded into another: the same record, and never anything alive."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Runtime, UsageError, tool
from amends.audit.bundles import unpack
from amends.errors import BadBundle, RunIsRecord, RunTaken, ToolFailed
from tests.audit.trips import RUNS, TOOLS, book, pay, runtime, travel, wire
from tests.cli.command import environment
from tests.scenarios.stores import STORES, fresh


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with runtime(f"sqlite:///{tmp_path_factory.mktemp('origin')}/l.db") as rt:
        return rt.export(*travel(rt))


@pytest.fixture
def audit(bundle: bytes, tmp_path: Path) -> Iterator[Runtime]:
    """Another ledger, of a program that has the same tools, with the bundle in it."""
    with runtime(f"sqlite:///{tmp_path}/audit.db") as rt:
        rt.load(bundle)
        yield rt


def told(rt: Runtime) -> list[Any]:
    """All that a ledger says of the runs of the bundle."""
    reports = [str(rt.report(run)).replace(str(rt.settings["url"].value), "URL") for run in RUNS]
    events = [[(e.at, e.run_id, e.call_id, e.what, e.frm, e.to, e.by, e.facts) for e in rt.events(run)] for run in RUNS]
    calls = [[(c.id, c.state, c.args, c.result, c.error) for c in rt.report(run).calls] for run in RUNS]
    return [reports, events, calls]


@pytest.mark.parametrize("kind", STORES)
def test_there_and_back_it_is_the_same_record(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, bundle: bytes
) -> None:
    heads = {tree.root.uid: tree.events[-1].hash for tree in unpack(bundle)}
    with Runtime("memory:", tools=TOOLS) as memory:
        memory.load(bundle)
        expected = told(memory)
    with runtime(fresh(kind, tmp_path, request)) as there:
        assert there.load(bundle) == [*RUNS]
        assert told(there) == expected
        assert there.verify().ok, str(there.verify())
        again = there.export(*RUNS)
        with there.run("mine"):
            book("own")
        mine = there.export("mine")
    assert {tree.root.uid: tree.events[-1].hash for tree in unpack(again)} == heads
    with runtime(f"sqlite:///{tmp_path}/back.db") as back:
        back.load(again)
        assert told(back) == expected
        assert back.load(mine) == ["mine"]
        assert back.report("mine").state == "committed"
        assert back.verify().ok, str(back.verify())


@pytest.mark.parametrize("kind", STORES)
def test_a_failure_that_is_folded_is_exported_loaded_and_replayed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bodies: list[str] = []

    @tool
    def reserve(what: str) -> str:
        bodies.append(what)
        if what == "gone":
            raise ValueError("no such thing")
        return f"reserved {what}"

    @reserve.compensate
    def release(what: str) -> None: ...

    def agent() -> str:
        reserve("one")
        with pytest.raises((ValueError, ToolFailed), match="no such thing"):
            reserve("gone")
        return reserve("two")

    with Runtime(fresh(kind, tmp_path, request), tools=[reserve], checkpoint="off") as rt:
        with rt.run("r") as run:
            run.output = agent()
        moves = [(event.frm, event.to, event.facts) for event in rt.events("r")]
        assert [to for _, to, _ in moves].count("failed") == 1
        made = rt.export("r")
        assert rt.replay("r", agent) == "reserved two"
        assert rt.verify().ok
    with Runtime(f"sqlite:///{tmp_path}/back.db", tools=[reserve], checkpoint="off") as back:
        assert back.replay(made, agent) == "reserved two"
        back.load(made)
        assert [(event.frm, event.to, event.facts) for event in back.events("r")] == moves
        assert back.verify().ok
        [there], [here] = unpack(made), unpack(back.export("r"))
        assert [event.hash for event in here.events] == [event.hash for event in there.events]
    assert bodies == ["one", "gone", "two"], "a replay starts nothing"


def test_loaded_twice_or_where_it_came_from_nothing_changes(bundle: bytes, audit: Runtime, tmp_path: Path) -> None:
    before = [event.seq for event in audit.events()]
    assert audit.load(bundle) == [*RUNS]
    assert [event.seq for event in audit.events()] == before
    with runtime(f"sqlite:///{tmp_path}/origin.db") as origin:
        made = origin.export(*travel(origin))
        before = [event.seq for event in origin.events()]
        assert origin.load(made) == [*RUNS]
        assert [event.seq for event in origin.events()] == before
        assert all(run.origin is None for run in origin.runs())


def test_an_id_that_is_taken_is_refused_and_nothing_is_loaded(bundle: bytes, tmp_path: Path) -> None:
    with runtime(f"sqlite:///{tmp_path}/l.db") as rt:
        with rt.run("held"):
            book("mine")
        with pytest.raises(RunTaken) as taken:
            rt.load(bundle)
        assert taken.value.run_id == "held"
        assert [run.id for run in rt.runs()] == ["held"]


def test_a_child_is_exported_with_the_tree_that_it_is_in(audit: Runtime) -> None:
    (tree,) = unpack(audit.export("committed/inside"))
    assert [run.id for run in tree.runs] == ["committed", "committed/inside"]


def test_every_generation_of_a_run_is_exported(tmp_path: Path) -> None:
    with runtime(f"sqlite:///{tmp_path}/l.db") as rt:
        for what in ("bad", "bad", "good"):
            try:
                with rt.run("r"):
                    book(what)
            except ValueError:
                pass
        made = rt.export("r")
    with runtime("memory:") as other:
        assert other.load(made) == ["r"]
        assert [(run.generation, run.state) for run in other.runs("run:r")] == [
            (3, "committed"),
            (2, "rolled_back"),
            (1, "rolled_back"),
        ]


def test_what_is_not_there_cannot_be_exported(audit: Runtime) -> None:
    with pytest.raises(UsageError, match="there is no run 'nobody'"):
        audit.export("committed", "nobody")
    with pytest.raises(UsageError, match="name the runs"):
        audit.export()


# ---- nothing works with it ----------------------------------------------------------------


def test_no_verb_of_a_person_or_a_program_changes_a_record(audit: Runtime) -> None:
    (doubt,) = audit.calls("status:in_doubt")
    (asked,) = (event.facts["approval"] for event in audit.events("held") if event.what == "approval")
    before = [event.seq for event in audit.events()], [str(call) for call in audit.calls()]
    verbs = [
        lambda: audit.open("committed"),
        lambda: audit.open("in doubt"),
        lambda: audit.open("rolled back"),
        lambda: audit.rollback("in doubt", by="ann", why="x"),
        lambda: audit.rollback("held", by="ann", why="x"),
        lambda: audit.abandon("in doubt", by="ann", why="x"),
        lambda: audit.resolve(doubt.id, Absent(), by="ann", why="x"),
        lambda: audit.accept(doubt.id, by="ann", why="x"),
        lambda: audit.reject(asked, by="bob", reason="x"),
        lambda: audit.approve(asked, by="bob", digest=audit.approval(asked).digest),
        lambda: audit.withdraw(asked, by="ann", why="x"),
        lambda: audit.bypass(asked, digest=audit.approval(asked).digest, by="ann", why="x"),
    ]
    for verb in verbs:
        with pytest.raises(RunIsRecord):
            verb()
    assert audit.recover() == []
    assert audit.reconcile_restore(by="ann", why="x") == 0
    assert ([event.seq for event in audit.events()], [str(call) for call in audit.calls()]) == before


def test_nobody_is_asked_about_a_record(audit: Runtime) -> None:
    assert list(audit.doubts()) == []
    assert list(audit.approvals("status:pending")) == []
    assert audit.costs() == []


def test_live_requests_are_not_answered_from_it(tmp_path: Path) -> None:
    with runtime(f"sqlite:///{tmp_path}/a.db") as rt, rt.run("theirs"):
        wire(to="bob", cents=1)
    with runtime(f"sqlite:///{tmp_path}/a.db") as rt:
        made = rt.export("theirs")
    with runtime(f"sqlite:///{tmp_path}/b.db") as rt:
        rt.load(made)
        with rt.run("mine") as run:
            wire(to="bob", cents=1)
            assert [call.replays for call in run.report().calls] == [0]
        assert len(list(rt.calls("tool:wire"))) == 2


def test_gc_removes_its_words_and_its_chain_stays(audit: Runtime) -> None:
    before = [event.seq for event in audit.events("committed")]
    gone = audit.gc(older_than=0)
    assert gone.runs >= 2
    assert [event.seq for event in audit.events("committed")] == before
    assert audit.report("committed").calls[0].args == {}
    again = audit.export("committed")
    with runtime("memory:") as other:
        assert other.load(again) == ["committed"]


def test_its_time_is_found_and_is_not_ours(audit: Runtime) -> None:
    with audit.run("mine"):
        book("own")
    theirs = next(iter(audit.events("committed"))).at
    since = f"at:>={theirs.isoformat()}"
    assert {event.run_id for event in audit.events(filter=since)} >= {*RUNS, "mine"}
    mine = next(iter(audit.events("mine"))).at
    assert {event.run_id for event in audit.events(filter=f"at:<{mine.isoformat()}")} >= set(RUNS)


# ---- tenants, colours, keys ---------------------------------------------------------------


def test_a_tenant_takes_and_gives_its_own_only(tmp_path: Path) -> None:
    with runtime(f"sqlite:///{tmp_path}/l.db") as rt:
        acme = rt.scoped(tenant="acme")
        with acme.run("r"):
            book("x")
        with pytest.raises(UsageError, match="no run 'r'"):
            rt.export("r")
        made = acme.export("r")
    with runtime("memory:") as other:
        with pytest.raises(UsageError, match="is of tenant 'acme'"):
            other.scoped(tenant="evil").load(made)
        assert other.load(made) == ["r"]
        assert other.scoped(tenant="acme").report("r").state == "committed"
        assert [run.id for run in other.runs()] == []


def test_the_other_colour_writes_and_reads_the_same(bundle: bytes, tmp_path: Path) -> None:
    async def main() -> bytes:
        async with AsyncRuntime(f"sqlite:///{tmp_path}/l.db", tools=TOOLS) as rt:
            assert await rt.load(bundle) == [*RUNS]
            with pytest.raises(RunIsRecord):
                await rt.open("committed")
            return await rt.export(*RUNS)

    again = asyncio.run(main())
    assert [tree.events[-1].hash for tree in unpack(again)] == [tree.events[-1].hash for tree in unpack(bundle)]


def test_what_was_encrypted_or_hidden_stays_so(tmp_path: Path) -> None:
    key, other_key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    with runtime(f"sqlite:///{tmp_path}/a.db", encrypt=key, redact=["note"]) as rt:
        with rt.run("r", input="c4n4ry-input"):
            book("c4n4ry-what", note="c4n4ry-note")
        made = rt.export("r")
    parts = b"".join(unpack(made).__repr__().encode().split(b"verify"))
    assert b"c4n4ry" not in parts
    with runtime(f"sqlite:///{tmp_path}/plain.db") as plain:
        plain.load(made)
        assert "c4n4ry" not in str(plain.report("r"))
    with runtime(f"sqlite:///{tmp_path}/other.db", encrypt=other_key) as other:
        other.load(made)
        with other.run("mine"):
            book("own")
        assert "c4n4ry" not in str([*other.calls()]) + str([*other.runs()])
        assert other.reencrypt() == 0
    with runtime(f"sqlite:///{tmp_path}/same.db", encrypt=key) as same:
        same.load(made)
        (call,) = same.report("r").calls
        assert call.args["what"] == "c4n4ry-what"


# ---- all or nothing -----------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from amends import Runtime
from amends.ledger import records as loading

async def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(loading, sys.argv[3], die)
rt = Runtime(sys.argv[1])
rt.load(Path(sys.argv[2]).read_bytes())
"""


@pytest.mark.parametrize("point", ["_add_events", "_record_load"])
@pytest.mark.parametrize("kind", STORES)
def test_killed_in_the_middle_nothing_of_it_is_there(
    kind: str, point: str, tmp_path: Path, request: pytest.FixtureRequest, bundle: bytes
) -> None:
    url = fresh(kind, tmp_path, request)
    with runtime(url) as rt, rt.run("mine"):
        pay(1)
    file = tmp_path / "b.zip"
    file.write_bytes(bundle)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, url, str(file), point],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    with runtime(url) as rt:
        assert [run.id for run in rt.runs()] == ["mine"]
        assert {event.run_id for event in rt.events()} == {"mine"}
        assert rt.load(bundle) == [*RUNS]
        assert [run.id for run in rt.runs("run:held")] == ["held"]


def test_a_bundle_of_nothing_is_none() -> None:
    with runtime("memory:") as rt, pytest.raises(BadBundle):
        rt.load(os.urandom(100))
