"""One person's data is erased: nothing about them is left in the database, and the record of the rest is still provable."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from amends import Absent, AsyncRuntime, Erasure, InDoubt, Retry, RunBlocked, Runtime, UsageError, tool
from amends.audit.bundles import unpack
from amends.encoding.chain import link
from amends.errors import (
    CannotErase,
    Held,
    KeyConflict,
    LedgerSealed,
    LedgerUnavailable,
    Rejected,
    ResultGone,
    SubjectNotFound,
)
from amends.ledger.erasure import left_line
from amends.ledger.operations import EndScrub, EraseTree, StoreOp
from amends.ledger.rows import EventRow
from amends.stores.memory import MemoryStore
from amends.stores.sqlite.store import SqliteStore
from tests.audit.trips import changed
from tests.scenarios.stores import fresh
from tests.servers.databases import execute, is_postgres
from tests.stores.emptied import TABLES_OF_MYSQL, TABLES_OF_POSTGRES

ALICE, BOB = "alice@example.org", "bob@example.org"
TAG = f"customer={ALICE}"
ONCE = Retry(attempts=1)


@tool(key="order", locks=lambda call: [f"mailbox {call.args['to']}"])
def charge(order: str, to: str) -> dict[str, str]:
    return {"id": f"ch-{order}", "told": f"charged {to}"}


@charge.before
def balance_of(to: str) -> str:
    return f"{to} has 7"


@charge.compensate
def refund(order: str, to: str) -> None:
    if order == "stuck":
        raise RuntimeError(f"{to} cannot be refunded")


@tool(retry=ONCE)
def book(to: str, what: str = "room") -> str:
    if what == "bad":
        raise ValueError(f"no room for {to}")
    if what == "lost":
        raise TimeoutError(f"no answer for {to}")
    return f"{what} for {to}"


@book.compensate
def cancel(to: str) -> None: ...


@tool(kind="pivot", needs_approval=True)
def wire(to: str, cents: int) -> str:
    return f"wired {cents} to {to}"


TOOLS = (charge, book, wire)


def runtime(url: str, **given: Any) -> Runtime:
    return Runtime(url, tools=TOOLS, wait=0, wait_approval=0, **given)


def live(rt: Runtime, who: str, prefix: str) -> None:
    """Let this person be in every kind of text: arguments, results, errors, reasons, snapshots, locks, approvals, children."""
    named: dict[str, Any] = {"tags": [f"customer={who}", "team=shop"], "principal": who, "input": {"mail": who}}
    with rt.run(f"{prefix}-done", **named) as run:
        charge(order=f"{prefix}1", to=who)
        charge.with_options(again=f"second box for {who}")(order=f"{prefix}1", to=who)
        with run.child("inside", input={"mail": who}):
            book(to=who)
        with suppress(ValueError):
            book(to=who, what="bad")
        run.output = {"sent": who}
    with suppress(ValueError), rt.run(f"{prefix}-back", **named):
        charge(order=f"{prefix}2", to=who)
        raise ValueError(f"{who} is unhappy")
    with suppress(InDoubt, RunBlocked), rt.run(f"{prefix}-doubt", **named):
        book(to=who, what="lost")
    for doubt in list(rt.doubts()):
        rt.resolve(doubt.id, Absent(), by="ann", why=f"{who} was asked")
    for decision in ("yes", "no"):
        with suppress(Held, Rejected), rt.run(f"{prefix}-{decision}", **named):
            wire(to=who, cents=5)
        (asked,) = [one for one in rt.approvals() if one.state == "pending"]
        if decision == "yes":
            rt.approve(asked.id, digest=asked.digest, by="ann", why=f"{who} may")
        else:
            rt.reject(asked.id, by="ann", reason=f"{who} may not")
        with suppress(Rejected), rt.run(f"{prefix}-{decision}", **named):
            wire(to=who, cents=5)
    for info in list(rt.runs()):
        if info.state not in ("committed", "rolled_back", "abandoned"):
            rt.abandon(info.id, by="ann", why=f"{who} gave up")


def raw(url: str) -> str:
    """Return everything that is in the database: of SQLite also the bytes of the file and of its log."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        files = [path, *(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))]
        found = "".join(one.read_bytes().decode("latin-1") for one in files if one.exists())
        with closing(sqlite3.connect(path)) as connection:
            tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
            return found + "".join(repr(connection.execute(f"select * from {one}").fetchall()) for one in tables)
    tables = [name for (name,) in execute(url, [TABLES_OF_POSTGRES if is_postgres(url) else TABLES_OF_MYSQL])]
    return "".join(repr(execute(url, [f"select * from {one}"])) for one in tables)


@pytest.fixture
def rt(tmp_path: Path) -> Iterator[Runtime]:
    with runtime(f"sqlite:///{tmp_path}/ledger.db") as made:
        yield made


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_nothing_about_the_person_is_left_and_the_rest_is_proved(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = fresh(kind, tmp_path, request)
    with runtime(url) as rt:
        live(rt, ALICE, "a")
        live(rt, BOB, "b")
        rt.checkpoint()
        assert rt.verify().ok
        assert ALICE in raw(url)
        before = raw(url).count(BOB)
        would = rt.erase(tags=TAG, by="dpo", why="request 4711", residue=True, dry_run=True)
        assert raw(url).count(ALICE) > 0
        done = rt.erase(tags=TAG, by="dpo", why="request 4711", residue=True)
        assert [one.run_id for one in done.runs] == [one.run_id for one in would.runs]
        assert {one.run_id for one in done.runs} == {f"a-{name}" for name in ("done", "back", "doubt", "yes", "no")}
        assert ALICE not in raw(url)
        assert "alice" not in raw(url)
        assert (raw(url).count(BOB) == before) or kind == "sqlite"
        assert BOB in raw(url)
        proved = rt.verify()
        assert proved.ok, str(proved)
        assert {one.run_id for one in proved.erased} == {one.run_id for one in done.runs}
        assert {(one.by, one.why, one.order) for one in proved.erased} == {("dpo", "request 4711", done.order)}
        rt.checkpoint()
        assert rt.verify().ok
        order = next(event for event in rt.events() if event.what == "work ordered")
        assert (order.by, json.loads(order.facts["words"])) == ("dpo", {"what": "erase", "by": ["tag"], "runs": 5})
        assert str(rt.report("b-done"))
        assert rt.report("a-done").run.principal in ("", None)
        assert list(rt.report("a-done").run.tags) == []
        with rt.run("a-done"), pytest.raises(ResultGone):
            charge(order="a1", to=ALICE)
    with runtime(url) as rt:
        with pytest.raises(SubjectNotFound):
            rt.erase(tags=TAG, principal=ALICE, fields={"to": ALICE}, by="dpo", why="request 4711")
        assert ALICE not in raw(url)
        assert rt.verify().ok


def test_each_way_to_choose_the_person_finds_the_same_runs(rt: Runtime) -> None:
    live(rt, ALICE, "a")
    live(rt, BOB, "b")

    def found(**given: Any) -> set[str]:
        return {one.run_id for one in rt.erase(**given, by="dpo", why="asked", dry_run=True, residue=True).runs}

    everything = found(tags=[TAG])
    assert everything == found(principal=ALICE) == found(fields={"to": ALICE}) == found(fields={"mail": ALICE})
    assert found(runs="a-done") == {"a-done"}
    assert found(runs=["a-done"], principal=BOB) == {"a-done", *(one.replace("a-", "b-") for one in everything)}


def test_an_async_runtime_erases_the_same(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with runtime(url) as rt:
        live(rt, ALICE, "a")

    async def erase() -> Erasure:
        async with AsyncRuntime(url, tools=TOOLS) as there:
            done = await there.erase(principal=ALICE, by="dpo", why="asked", residue=True)
            assert (await there.verify()).ok
            return done

    assert len(asyncio.run(erase()).runs) == 5
    assert ALICE not in raw(url)


# ---- What cannot go


def test_a_run_that_has_not_ended_refuses_all_of_it_and_partial_erases_the_others(rt: Runtime) -> None:
    live(rt, ALICE, "a")
    open_run = rt.open("open", principal=ALICE)
    with pytest.raises(CannotErase) as refused:
        rt.erase(principal=ALICE, by="dpo", why="asked", residue=True)
    assert [(one.run_id, one.why) for one in refused.value.kept] == [("open", "it has not ended")]
    assert refused.value.erased == []
    assert not rt.verify().erased
    done = rt.erase(principal=ALICE, by="dpo", why="asked", residue=True, partial=True)
    assert ([one.run_id for one in done.kept], len(done.runs)) == (["open"], 5)
    open_run.commit()
    assert [one.run_id for one in rt.erase(principal=ALICE, by="dpo", why="asked").runs] == ["open"]
    assert rt.verify().erasures == 6


def test_what_is_left_standing_must_be_accepted(rt: Runtime) -> None:
    with suppress(RunBlocked, ValueError), rt.run("stuck", principal=ALICE):
        charge(order="stuck", to=ALICE)
        raise ValueError("on purpose")
    rt.abandon("stuck", by="ann", why="enough")
    with pytest.raises(CannotErase) as refused:
        rt.erase(principal=ALICE, by="dpo", why="asked")
    assert refused.value.kept[0].why
    assert rt.erase(principal=ALICE, by="dpo", why="asked", residue=True).runs[0].run_id == "stuck"
    assert [one.call.tool for one in rt.report("stuck").residue] == ["charge"], "what stands is still named"
    assert rt.verify().ok


@pytest.mark.parametrize(
    "wrong",
    [
        {"why": "asked"},
        {"principal": ALICE, "why": ""},
        {"principal": ALICE, "why": "asked", "by": ""},
        {"principal": ALICE, "why": f"{ALICE} asked"},
        {"principal": 7, "why": "asked"},
        {"tags": [""], "why": "asked"},
        {"tags": 7, "why": "asked"},
        {"fields": {"to": ""}, "why": "asked"},
        {"fields": {"to": [ALICE]}, "why": "asked"},
        {"fields": {"": ALICE}, "why": "asked"},
        {"fields": f"to={ALICE}", "why": "asked"},
    ],
    ids=str,
)
def test_a_wrong_request_changes_nothing(rt: Runtime, wrong: dict[str, Any]) -> None:
    with rt.run("one", principal=ALICE):
        book(to=ALICE)
    events = list(rt.events())
    with pytest.raises(UsageError):
        rt.erase(**{"by": "dpo"} | wrong)
    assert list(rt.events()) == events


def test_nobody_by_that_name_is_an_error(rt: Runtime) -> None:
    with rt.run("one", principal=ALICE):
        book(to=ALICE)
    with pytest.raises(SubjectNotFound):
        rt.erase(principal="nobody", by="dpo", why="asked")


def test_runs_that_were_erased_before_are_not_found_again_by_their_ids(rt: Runtime) -> None:
    with rt.run("hers", principal=ALICE):
        book(to=ALICE)
    rt.erase(runs="hers", by="dpo", why="request 1")
    for dry_run in (True, False):
        with pytest.raises(SubjectNotFound):
            rt.erase(runs="hers", by="dpo", why="request 1", dry_run=dry_run)


def test_another_tenants_person_of_the_same_name_is_not_touched(rt: Runtime) -> None:
    for tenant in ("acme", "globex"):
        with rt.scoped(tenant=tenant).run("one", principal=ALICE):
            book(to=ALICE)
    assert len(rt.scoped(tenant="acme").erase(principal=ALICE, by="dpo", why="asked").runs) == 1
    with pytest.raises(SubjectNotFound):
        rt.erase(principal=ALICE, by="dpo", why="asked")
    assert rt.scoped(tenant="globex").report("one").calls[0].args == {"to": ALICE, "what": "room"}


def test_what_still_names_the_person_is_told(rt: Runtime) -> None:
    with rt.run(f"order of {ALICE}", principal=ALICE):
        book(to=ALICE)
    permit = rt.permit("wire", rule={"args": {"to": ALICE}}, by="ann", why="as agreed")
    stays = rt.erase(principal=ALICE, by="dpo", why="asked").stays
    assert stays == (f"the id of run order of {ALICE}", f"permit {permit.id}: revoke it")


def test_a_child_run_and_a_token_that_name_the_person_are_told(rt: Runtime) -> None:
    with rt.run("order", principal=ALICE) as run, run.child(f"mail {ALICE}"):
        book(to=ALICE)
    token = rt.create_token(name=ALICE, scopes=["viewer"], by="ann", why="as agreed")
    rt.create_token(name=ALICE, scopes=["viewer"], by="ann", why="as agreed", tenant="acme")  # no matter of this tenant
    [child] = [one.id for one in rt.runs() if ALICE in one.id]
    stays = rt.erase(principal=ALICE, by="dpo", why="asked").stays
    assert stays == (f"the id of run {child}", f"token {token.id}: revoke it")


def test_a_principal_who_edited_and_refused_is_forgotten_too(rt: Runtime) -> None:
    """Who decided stays, unless it is the principal: also as an editor, and in the error of the refused call."""
    for name, decision in (("edited", "edit"), ("refused", "reject")):
        with suppress(Held), rt.run(name, principal=ALICE):
            wire(to="x", cents=5)
        (asked,) = rt.approvals()
        if decision == "edit":
            instead = rt.edit(asked.id, {"to": "x", "cents": 4}, by=ALICE, why="less")
            second = rt.edit(instead.id, {"to": "x", "cents": 3}, by="ann", why="even less")
            assert second.editors == (ALICE, "ann")
            rt.reject(second.id, by="ben", reason="no")
        else:
            rt.reject(asked.id, by=ALICE, reason="no")
        rt.abandon(name, by="ann", why="enough")
    before = rt.verify()
    assert before.ok, str(before)
    rt.erase(principal=ALICE, by="dpo", why="asked")
    url = str(rt.settings["url"].value)
    assert ALICE not in raw(url)
    assert '["", "ann"]' in raw(url), "who else edited it stays"
    proved = rt.verify()
    assert proved.ok, str(proved)
    told = rt.export("edited", "refused")
    assert ALICE.encode() not in b"".join(repr(one).encode() for one in unpack(told))


@tool(retry=ONCE)
def invite(who: UUID, born: date, to: list[str], name: str) -> str:
    return "invited"


@invite.compensate
def disinvite() -> None: ...


@pytest.mark.parametrize(
    "field",
    [
        {"who": "00000000-0000-0000-0000-000000000007"},
        {"born": "2001-02-03"},
        {"to": BOB},
        {"to.1": BOB},
        {"name": "Jose\u0301"},
        {"name": "Jos\u00e9"},
    ],
    ids=str,
)
def test_a_field_finds_ids_dates_members_of_lists_and_both_spellings_of_a_letter(field: dict[str, str]) -> None:
    with Runtime("memory:", tools=[invite]) as rt:
        with rt.run("one"):
            invite(who=UUID(int=7), born=date(2001, 2, 3), to=[ALICE, BOB], name="Jose\u0301")
        assert [one.run_id for one in rt.erase(fields=field, by="dpo", why="asked").runs] == ["one"]
        with pytest.raises(SubjectNotFound):
            rt.erase(fields=field, by="dpo", why="asked")


def test_a_repeat_across_runs_of_an_erased_call_starts_nothing() -> None:
    done: list[str] = []

    @tool(key="order", scope="ledger", retry=ONCE)
    def charge_once(order: str, to: str) -> str:
        done.append(order)
        return f"charged {to}"

    @charge_once.compensate
    def refund_once(order: str) -> None: ...

    with Runtime("memory:", tools=[charge_once], wait=0) as rt:
        with rt.run("first", principal=ALICE):
            charge_once(order="1", to=ALICE)
        rt.erase(principal=ALICE, by="dpo", why="asked")
        with suppress(ResultGone), rt.run("second"):
            charge_once(order="1", to=ALICE)
        with suppress(KeyConflict), rt.run("third"):
            charge_once(order="1", to=BOB)
        assert done == ["1"]
        assert rt.verify().ok


def test_a_fork_is_erased_with_its_run_because_it_has_copies(rt: Runtime) -> None:
    with rt.run("first", principal=ALICE):
        book(to=ALICE)
    call = rt.report("first").calls[0]
    rt.fork("first", at=call.id, id="second")
    with pytest.raises(CannotErase) as refused:
        rt.erase(runs="first", by="dpo", why="asked")
    assert {one.run_id for one in refused.value.kept} == {"first", "second"}
    rt.abandon("second", by="ann", why="enough")
    done = rt.erase(runs="first", by="dpo", why="asked", residue=True)
    assert {one.run_id for one in done.runs} == {"first", "second"}
    assert ALICE not in raw(str(rt.settings["url"].value))
    assert rt.verify().ok, str(rt.verify())


# ---- Tampering


def test_tampering_with_a_neighbour_or_with_what_is_left_is_still_found(rt: Runtime) -> None:
    live(rt, ALICE, "a")
    live(rt, BOB, "b")
    rt.erase(principal=ALICE, by="dpo", why="asked", residue=True)
    path = Path(str(rt.settings["url"].value).removeprefix("sqlite:///"))
    is_erased = "facts like '{\"erased%'"
    fake = "'{\"erased\": \"' || lower(hex(randomblob(32))) || '\"}'"
    attacks = {
        "a neighbour's payload": "update amends_call set args = '{}' where args like '%bob%'",
        "its payload, as if erased": "update amends_call set args = 'gone:1.0:erased' where args like '%bob%'",
        "its event, as if erased": f"update amends_event set facts = {fake} where run_id = 'b-back' and n = 1",
        "what is left of an event": f"update amends_event set to_state = 'committed' where {is_erased} and what = 'goal'",
        "who erased it": "update amends_event set by_whom = 'eve' where what = 'erased'",
        "that it was erased": "delete from amends_event where what = 'erased'",
        "a tag that comes back": "update amends_run set tags = '[\"customer=eve\"]' where id = 'a-done'",
        "a principal that comes back": "update amends_run set principal = 'eve' where id = 'a-done'",
        "a reason that comes back": "update amends_run set goal_why = 'eve' where id = 'a-back'",
        "an approval": "update amends_approval set reason = 'eve' where run_id like 'a-%'",
    }
    for name, sql in attacks.items():
        copy = path.with_name("copy.db")
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
            assert target.execute(sql).rowcount > 0, name
            target.commit()
        with Runtime(f"sqlite:///{copy}", tools=TOOLS) as forged:
            assert not forged.verify().ok, name
    assert rt.verify().ok


def test_an_erased_event_that_is_copied_whole_from_the_past_is_found(rt: Runtime) -> None:
    """The original event fits the chain; but the record says that it was erased."""
    with suppress(ValueError), rt.run("one", principal=ALICE):
        book(to=ALICE)
        raise ValueError(f"{ALICE} is unhappy")
    path = Path(str(rt.settings["url"].value).removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as raw_one:
        [(n, facts)] = raw_one.execute(
            "select n, facts from amends_event where facts like '%unhappy%' limit 1"
        ).fetchall()
    rt.erase(principal=ALICE, by="dpo", why="asked")
    with closing(sqlite3.connect(path)) as raw_one, raw_one:
        raw_one.execute("update amends_event set facts = ? where n = ? and run_id = 'one'", (facts, n))
    assert rt.verify().problems[0].how == "edited"


@pytest.mark.parametrize("borrowed", [False, True])
def test_a_forged_erasure_is_named_and_found_because_nobody_ordered_it(rt: Runtime, borrowed: bool) -> None:
    """Whoever can write to the database can claim an erasure and so change an anchored event."""
    order = "wrk_1"
    if borrowed:
        with rt.run("hers", principal=ALICE):
            book(to=ALICE)
        order = rt.erase(principal=ALICE, by="dpo", why="request 1").order
    with suppress(ValueError), rt.run("one", principal=BOB):
        book(to=BOB)
        raise ValueError("on purpose")
    rt.checkpoint()
    path = Path(str(rt.settings["url"].value).removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as database, database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute("select * from amends_event where run_id = 'one' order by n")]
        events = [EventRow(**row | {"hash": row["hash"].hex()}) for row in rows]
        goal = next(one for one in events if one.what == "goal")
        forged = replace(goal, by_whom="eve", facts=json.dumps({"erased": goal.body, **json.loads(goal.facts)}))
        left = sha256(left_line(forged)).hexdigest()
        last = events[-1]
        facts = json.dumps({"why": "request 1", "order": order, "left": left})
        claim = replace(last, n=last.n + 1, call="", what="erased", frm="", to_state="", by_whom="dpo", facts=facts)
        claim = replace(claim, hash=link(last.hash, claim.n, claim.at, claim.body))
        database.execute(
            "update amends_event set by_whom = ?, facts = ? where root = ? and n = ?",
            (forged.by_whom, forged.facts, forged.root, forged.n),
        )
        row = {name: getattr(claim, name) for name in rows[0]} | {"hash": bytes.fromhex(claim.hash)}
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        database.execute(f"insert into amends_event ({names}) values ({marks})", tuple(row.values()))
        database.execute("update amends_run set n = ?, head = ?, unsealed = 1 where id = 'one'", (claim.n, row["hash"]))
    proved = rt.verify()
    assert ("one", "dpo", order) in [(one.run_id, one.by, one.order) for one in proved.erased]
    assert {one.how for one in proved.problems} == {"row_forged"}
    assert [one.run_id for one in proved.problems] == [*(["hers"] if borrowed else []), "one"]
    assert rt.verify("one").ok == borrowed, "a borrowed order shows only beside the run that it was given for"


# ---- Interruptions


class Stop(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("at", range(9))
def test_killed_at_any_operation_it_goes_on_when_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with runtime(url) as rt:
        for number in range(3):
            with rt.run(f"r{number}", principal=ALICE, tags=[TAG]):
                book(to=ALICE)
    count = 0
    perform: Any = SqliteStore.perform
    scrub = SqliteStore.scrub

    def counted() -> None:
        nonlocal count
        count += 1
        if count > at:
            raise Stop

    def dying(store: SqliteStore, op: StoreOp[Any]) -> Any:
        if isinstance(op, EraseTree | EndScrub) and not getattr(op, "dry_run", False):
            counted()
            answer = perform(store, op)
            counted()
            return answer
        return perform(store, op)

    def scrubbing(store: SqliteStore) -> None:
        counted()
        scrub(store)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "perform", dying)
        patch.setattr(SqliteStore, "scrub", scrubbing)
        with runtime(url) as rt, suppress(Stop):
            rt.erase(principal=ALICE, by="dpo", why="asked")
    with runtime(url) as rt:
        assert rt.verify().ok
        with suppress(SubjectNotFound):
            rt.erase(principal=ALICE, by="dpo", why="asked")
        assert rt.verify().erasures == 3
        assert rt.verify().ok
        assert ALICE not in raw(url)


def test_a_process_that_is_killed_while_it_erases_leaves_whole_trees(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with runtime(url) as rt:
        for number in range(40):
            with rt.run(f"r{number}", principal=ALICE):
                book(to=ALICE)
    program = (
        "import os, sys\n"
        "from amends.stores.sqlite.store import SqliteStore\n"
        "from amends.ledger.operations import EraseTree\n"
        "from amends import Runtime\n"
        "perform, count = SqliteStore.perform, 0\n"
        "def dying(store, op):\n"
        "    global count\n"
        "    count += isinstance(op, EraseTree) and not op.dry_run\n"
        "    if count == 17: os.kill(os.getpid(), 9)\n"
        "    return perform(store, op)\n"
        "SqliteStore.perform = dying\n"
        f"Runtime({url!r}).erase(principal={ALICE!r}, by='dpo', why='asked')\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == -9
    with runtime(url) as rt:
        assert rt.verify().erasures == 16
        assert len(rt.erase(principal=ALICE, by="dpo", why="asked").runs) == 24
        assert rt.verify().ok
    assert ALICE not in raw(url)


def test_a_reader_that_holds_the_log_is_an_error_and_the_next_erase_finishes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with runtime(url) as rt:
        with rt.run("one", principal=ALICE):
            book(to=ALICE)
        rt._host.store._lock_wait_s = 0.05  # type: ignore[attr-defined]
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as reader:
            reader.execute("begin")
            reader.execute("select * from amends_run").fetchall()
            with pytest.raises(LedgerUnavailable):
                rt.erase(principal=ALICE, by="dpo", why="asked")
            assert rt.verify().erasures == 1, "it is erased, and the file is not rewritten yet"
        with pytest.raises(SubjectNotFound):
            rt.erase(principal=ALICE, by="dpo", why="asked")
        assert ALICE not in raw(url)


# ---- Encryption, bundles, memory


def test_after_a_new_key_the_payloads_in_an_old_copy_of_an_encrypted_ledger_are_unreadable(tmp_path: Path) -> None:
    old, new = ("A" * 43, "B" * 43)
    url = f"sqlite:///{tmp_path}/ledger.db"
    with runtime(url, encrypt=old) as rt:
        live(rt, ALICE, "a")
        live(rt, BOB, "b")
    shutil.copy(tmp_path / "ledger.db", tmp_path / "backup.db")
    with runtime(url, encrypt=[new, old]) as rt:
        assert len(rt.erase(fields={"to": ALICE}, by="dpo", why="asked", residue=True).runs) == 5
        rt.reencrypt()
        assert rt.verify().ok
        assert ALICE not in raw(url)
    with runtime(f"sqlite:///{tmp_path}/backup.db", encrypt=new) as rt, pytest.raises(LedgerSealed):
        rt.report("a-done")
    with closing(sqlite3.connect(tmp_path / "backup.db")) as copy:
        assert ALICE not in repr(copy.execute("select args, result from amends_call").fetchall())
        never = "principals and tags are never encrypted, and the page says so"
        assert ALICE in repr(copy.execute("select principal, tags from amends_run").fetchall()), never
    with runtime(url, encrypt=new) as rt:  # the old key was destroyed
        assert rt.report("b-done").calls[0].args["to"] == BOB
        assert rt.verify().ok


def test_a_bundle_of_an_erased_run_is_whole_names_the_erasure_and_can_be_loaded(rt: Runtime, tmp_path: Path) -> None:
    live(rt, ALICE, "a")
    rt.erase(principal=ALICE, by="dpo", why="request 4711", residue=True)
    bundle = rt.export("a-done", "a-back", "a-yes", "a-no")
    file = tmp_path / "bundle.zip"
    file.write_bytes(bundle)
    told = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 0, told.stdout
    assert "run a-done was erased by dpo: request 4711" in told.stdout
    assert ALICE.encode() not in b"".join(repr(one).encode() for one in unpack(bundle))
    with runtime(f"sqlite:///{tmp_path}/other.db") as other:
        other.load(bundle)
        assert other.verify().ok, str(other.verify())
        with pytest.raises(CannotErase) as refused:
            other.erase(runs="a-done", by="dpo", why="asked")
        assert refused.value.kept[0].why == "it was loaded from another ledger"


def test_a_forged_erasure_in_a_bundle_is_found(rt: Runtime, tmp_path: Path) -> None:
    live(rt, ALICE, "a")
    rt.erase(principal=ALICE, by="dpo", why="request 4711", residue=True)

    def forge(rows: list[dict[str, Any]]) -> None:
        row = next(row for row in rows if row["facts"].startswith('{"erased"'))
        row["by_whom"] = "eve"

    file = tmp_path / "bundle.zip"
    file.write_bytes(changed(rt.export("a-back"), "events", forge))
    told = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 20, told.stdout


def test_memory_forgets_too() -> None:
    with runtime("memory:") as rt:
        store = rt._host.store
        assert isinstance(store, MemoryStore)
        live(rt, ALICE, "a")
        rt.erase(principal=ALICE, by="dpo", why="asked", residue=True)
        assert rt.verify().ok
    assert ALICE not in repr((store.runs, store.calls, store.events, store.approvals, store.slices, store.locks))
