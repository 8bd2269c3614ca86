"""Encryption at rest: nothing readable without a key, everything as ever with it, and keys that change."""

from __future__ import annotations

import base64
import json
import secrets
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Held, Report, Runtime, Secret, Unknown, testing, tool
from amends.errors import (
    BadConfig,
    Error,
    InDoubt,
    KeyConflict,
    LedgerCorrupt,
    LedgerSealed,
    RolledBack,
    RunBlocked,
    UsageError,
)
from amends.host.encryption import Vault
from amends.host.notices import CLAIM_S
from amends.links import sign
from amends.notify import card, slack_payload
from amends.stores.memory import MemoryStore
from tests.cli.command import run as command
from tests.cli.terminal import at_terminal
from tests.people.office import Clock
from tests.world import die, runtime, twin_of, until

K1, K2, K3 = (secrets.token_urlsafe(32) for _ in range(3))
CARD = "4242-4242-4242-4242"
WORD = "plainly-readable"


@tool(key="order", redact="card")
def charge(order: str, card: str, note: str = WORD) -> dict[str, str]:
    return {"id": f"ch_{order}", "told": f"{WORD} {card}"}


undone: list[Any] = []


@charge.compensate
def refund(card: str, result: dict[str, str]) -> None:
    undone.append((card, result["told"]))


def texts(path: Path) -> str:
    """Everything that is in the file, and every table read through SQL."""
    raw = path.read_bytes() + (wal.read_bytes() if (wal := path.with_name(f"{path.name}-wal")).exists() else b"")
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        rows = [repr(connection.execute(f"select * from {name}").fetchall()) for name in tables]
    connection.close()
    return raw.decode("latin-1") + "".join(rows)


def test_nothing_is_readable_in_the_file_and_everything_through_the_runtime(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, tools=[charge], encrypt=K1) as rt:
        with pytest.raises(RuntimeError):
            with rt.run("back", input={"ask": WORD}):
                charge("1", CARD)
                raise RuntimeError(f"{WORD}, and so it fails")
        with rt.run("r", input={"ask": WORD}) as run:
            first = charge("1", CARD)
            run.output = {"say": WORD}
        with rt.run("r", input={"ask": WORD}) as run:
            again = charge("1", CARD)
            assert run.input == {"ask": WORD}
            assert run.output == {"say": WORD}
        report = rt.report("r")
        assert WORD in repr(list(rt.events("back")))
    assert first == again == {"id": "ch_1", "told": f"{WORD} {CARD}"}, "a replay is whole: nothing is lost"
    assert undone.pop() == (CARD, f"{WORD} {CARD}"), "a compensation may ask for what is hidden: it was kept"
    call = report.calls[0]
    assert (call.args["note"], call.loss) == (WORD, None)
    assert isinstance(call.args["card"], Secret), "people do not see it, whoever has the key"
    assert CARD not in report.to_json()
    found = texts(tmp_path / "l.db")
    assert WORD not in found
    assert CARD not in found
    assert "sealed:" in found


def test_a_ledger_is_shown_without_its_key_and_nothing_goes_on_without_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, tools=[charge], encrypt=K1) as rt, rt.run("r", input=WORD) as run:
        charge("1", CARD)
        run.output = WORD
    for keys in (None, K2):
        with Runtime(url, encrypt=keys) as other:
            if keys is None:
                report = other.report("r")
                assert isinstance(report, Report)
                assert report.state == "committed"
                assert WORD not in report.to_json() + str(report) + repr(list(other.calls())) + repr(
                    list(other.events())
                )
            else:
                with pytest.raises(LedgerSealed) as no:
                    other.report("r")
                assert Vault([K1]).ids[0] in str(no.value)
                assert "AMENDS_ENCRYPT" in no.value.hint
    pay = tool(charge.fn, name="charge", kind="pivot", key="order")
    with Runtime(url, tools=[pay], wait=0.1) as poor:
        with poor.run("r") as run:
            assert isinstance(run.input, Secret)
            with pytest.raises(KeyConflict, match="encrypted, and this process has no key"):
                pay("1", CARD)


def test_a_replay_without_the_key_says_which_is_missing() -> None:
    @tool(kind="pivot")
    def pay(order: str) -> str:
        return WORD

    store = MemoryStore()
    with twin_of(store, pay, encrypt=K1).run("r"):
        pay("1")
    with pytest.raises(LedgerSealed, match=Vault([K1]).ids[0]):
        with twin_of(store, pay).run("r"):
            pay("1")


def test_a_worker_with_the_key_takes_back_starts_and_probes_with_what_was_hidden() -> None:
    seen: list[str] = []

    @tool(redact="card")
    def reserve(card: str) -> str:
        return "res"

    @reserve.compensate
    def release(card: str) -> None:
        seen.append(f"released {card}")

    @tool(kind="pivot", redact="card")
    def wire(card: str) -> str:
        raise TimeoutError("lost")

    @wire.probe
    def find(card: str) -> Any:
        seen.append(f"asked for {card}")
        return Absent() if late else Unknown()

    @tool(kind="retriable", idempotent=True, redact="card")
    def mail(card: str) -> None:
        seen.append(f"mailed {card}")
        if len(seen) < 2:
            raise TimeoutError("lost")

    late: list[int] = []
    for tools, act, expected in (
        ((reserve,), lambda run: run.call(reserve, card=CARD), [f"released {CARD}"]),
        ((wire,), lambda run: run.call(wire, card=CARD), None),
    ):
        seen.clear()
        late.clear()
        store = MemoryStore()
        run = twin_of(store, *tools, encrypt=[K1], wait=0.2).open("r")  # a doubt lasts longer
        with suppress(InDoubt):
            act(run)
        late.append(1)
        die(run)
        [report] = twin_of(store, *tools, encrypt=[K2, K1]).recover()
        assert report.state == "rolled_back"
        assert expected is None or seen == expected
        assert CARD not in repr(store.__dict__)
    assert f"asked for {CARD}" in seen
    seen.clear()
    rt = testing.runtime(tools=[mail], encrypt=[K1], wait=0.1, lease=1.0)
    run = rt.open("s")
    run.call(mail, card=CARD)
    rt._test_driver.faults[rt._test_driver.points + 2] = "before"
    with pytest.raises(testing.Crash):
        run.commit()
    rt.crash()
    rt.clock.advance(5)
    until(lambda: bool(rt.recover()) or rt.report("s").state == "committed")
    rt.clock.advance(100)
    rt.recover()
    assert rt.report("s").state == "committed"
    assert set(seen) == {f"mailed {CARD}"}


def test_keys_rotate_while_runs_live(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    path = tmp_path / "l.db"
    with Runtime(url) as plain, plain.run("plain", input=WORD):
        pass
    old = Runtime(url, tools=[charge], encrypt=K1)
    with old.run("old", input=WORD):
        charge("1", CARD)
    alive = old.open("alive", input=WORD)
    alive.call(charge, "2", CARD)
    with Runtime(url, tools=[charge], encrypt=[K2, K1]) as rt:
        assert rt.reencrypt() == 5
        assert rt.reencrypt() == 0
        with pytest.raises(LedgerSealed):
            old.report("old")  # a process that does not have the new key yet is told so
    newest, oldest = Vault([K2]).ids[0], Vault([K1]).ids[0]
    with sqlite3.connect(path) as connection:
        rows = repr(
            [connection.execute(f"select * from {table}").fetchall() for table in ("amends_run", "amends_call")]
        )
    connection.close()
    assert f"sealed:{newest}" in rows
    assert f"sealed:{oldest}:" not in rows
    assert WORD not in rows  # of what was written without a key SQLite keeps pages until a vacuum
    with Runtime(url, tools=[charge], encrypt=[K2]) as rt:
        assert rt.report("plain").run.input == WORD
        assert rt.report("old").calls[0].args["note"] == WORD
        with rt.run("old", input=WORD):
            assert charge("1", CARD)["told"] == f"{WORD} {CARD}", "what is hidden inside is sealed anew as well"
    old.close()


def test_a_row_that_changes_while_it_is_written_anew_keeps_what_is_new() -> None:
    store = MemoryStore()
    rt = twin_of(store, charge, encrypt=K1, lease=5.0)
    with rt.run("r"):
        charge("1", CARD)
    new = twin_of(store, charge, encrypt=[K2, K1])
    perform, seen = store.perform, threading.Event()

    def racing(op: Any) -> Any:
        if type(op).__name__ == "RewriteTexts" and op.is_call and not seen.is_set():
            seen.set()
            [call] = store.calls.values()
            text = Vault([K1]).seal('["X", "meanwhile"]', call.id)
            store.calls[call.id] = type(call)(
                **{n: getattr(call, n) for n in type(call).__slots__}
                | {"args": call.args, "result": call.result, "error": text}
            )
        return perform(op)

    store.perform = racing  # type: ignore[method-assign]
    new.reencrypt()
    assert rt._host.hiding.sealing.vault.ids != new._host.hiding.sealing.vault.ids
    assert "meanwhile" in str(new.report("r").calls[0].error)


@tool(key="order")
def book(order: str, why: str = "") -> str:
    if why:
        raise TimeoutError
    return order


@book.compensate
def unbook(order: str) -> None: ...


@book.probe
def find_booking(order: str, why: str) -> Any:
    return Unknown(why)


@tool(kind="pivot", needs_approval=True)
def pay(order: str) -> None: ...


@pytest.mark.parametrize("word", ["known:A", f"known:{'A' * 54}", "00000000:A", f"00000000:{'A' * 54}", "gone:x"])
def test_words_that_look_encrypted_or_removed_are_words(word: str) -> None:
    """Else one client could write a reason after which nobody can list runs, and no worker recovers any."""
    word = word if word.startswith("gone:") else f"sealed:{word.replace('known', Vault([K1]).ids[0])}"
    store = MemoryStore()
    rt = Runtime("memory:", store=store, tools=[book, pay], encrypt=K1, wait=0, wait_approval=0)
    run = rt.open("back")
    run.call(book, order="1")
    with pytest.raises(RolledBack, match=word):
        run.rollback(word)
    with rt.run("planned"):
        book(order="2")
    rt.rollback("planned", plan=rt.plan_rollback("planned"), by="ann", why=word)
    with suppress(InDoubt, RunBlocked), rt.run("doubt"):
        book(order="3", why=word)
    for doubt in rt.doubts():
        rt.probe(doubt.id, by="ann")
    rt.abandon("doubt", by="ann", why=word)
    with pytest.raises(Held) as held, rt.run("no"):
        pay(order="4")
    rt.reject(held.value.approval.id, by="ann", reason=word)
    assert len(list(rt.runs())) == 4
    for one in ("back", "planned", "doubt", "no"):
        assert rt.report(one).run.id == one
        assert any(word in str(event.facts) or "encrypted" in str(event.facts) for event in rt.events(one))
    assert rt.recover() == []
    assert [one.reason for one in rt.approvals("state:rejected")] != [""]
    assert rt.verify().ok
    Runtime("memory:", store=store, tools=[book, pay], encrypt=[K2, K1]).reencrypt()
    assert len(list(Runtime("memory:", store=store, tools=[book, pay], encrypt=K2).runs())) == 4


def test_a_value_in_another_ones_place_does_not_open() -> None:
    store = MemoryStore()
    rt = twin_of(store, charge, encrypt=K1, lease=5.0)
    with rt.run("r"):
        charge("1", CARD)
        charge("2", CARD)
    one, two = store.calls.values()
    from amends.encoding.dataclass import changed

    store.calls[one.id] = changed(one, {"args": two.args})
    with pytest.raises(LedgerCorrupt, match="copied from another row"):
        rt.report("r")


@pytest.mark.parametrize("keys", ["short", "!!!", "", ["x" * 43, "y"], base64.b64encode(b"x" * 16).decode()])
def test_a_key_that_is_none_is_refused_and_not_shown(keys: Any) -> None:
    if not keys:
        assert runtime(encrypt=keys)._host.hiding.sealing is None
        return
    with pytest.raises(BadConfig) as bad:
        runtime(encrypt=keys)
    assert "token_urlsafe" in bad.value.hint
    assert not any(key in str(bad.value) for key in ([keys] if isinstance(keys, str) else keys) if len(key) > 5)


def test_settings_name_the_keys_and_do_not_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_ENCRYPT", f"{K2} {K1}")
    rt = Runtime("memory:")
    assert rt.settings["encrypt"].value == ", ".join(Vault([K2, K1]).ids)
    assert not {K1, K2} & set(repr(dict(rt.settings)).split("'"))


def test_without_keys_there_is_nothing_to_encrypt_with() -> None:
    with pytest.raises(UsageError, match="no keys"):
        runtime().reencrypt()


def test_the_command_line_reads_with_the_keys_and_changes_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, tools=[charge], encrypt=K1) as rt, rt.run("r", input=WORD):
        charge("1", CARD)
    libraries = {"PYTHONPATH": ":".join(p for p in __import__("sys").path if p)}
    blind = command("runs", "show", "r", "--url", url, "--json", cwd=tmp_path, **libraries)
    assert blind.returncode == 0
    assert WORD not in blind.stdout
    done = command("db", "reencrypt", "--url", url, "--json", cwd=tmp_path, AMENDS_ENCRYPT=f"{K3}  {K1}", **libraries)
    said = json.loads(done.stdout)
    assert (done.returncode, said["rows"], said["key"]) == (0, 2, Vault([K3]).ids[0]), done.stderr
    shown = command("runs", "show", "r", "--url", url, "--json", cwd=tmp_path, AMENDS_ENCRYPT=K3, **libraries)
    assert WORD in shown.stdout
    assert CARD not in shown.stdout
    config = command("config", "show", cwd=tmp_path, AMENDS_ENCRYPT=K3, AMENDS_SECRET_KEY="s" * 40, **libraries)
    assert config.returncode == 0
    assert K3 not in config.stdout
    assert "s" * 40 not in config.stdout


def test_the_async_runtime_encrypts_too(tmp_path: Path) -> None:
    import asyncio

    @tool(kind="pivot", redact="card")
    async def pay(card: str) -> str:
        return f"{WORD} {card}"

    async def main() -> None:
        async with AsyncRuntime(f"sqlite:///{tmp_path}/l.db", tools=[pay], encrypt=K1) as rt:
            async with rt.run("r", input=WORD) as run:
                assert await pay(CARD) == await pay(CARD) == f"{WORD} {CARD}"
                assert run.input == WORD
            assert await rt.reencrypt() == 0

    asyncio.run(main())
    assert WORD not in texts(tmp_path / "l.db")
    assert CARD not in texts(tmp_path / "l.db")


def test_a_blocked_run_names_its_causes_with_the_key_and_hides_them_without(tmp_path: Path) -> None:
    @tool
    def reserve(x: str) -> None: ...

    @reserve.compensate(retry=1)
    def release(x: str) -> None:
        raise ValueError(f"{WORD} cannot be released")

    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, tools=[reserve], encrypt=K1) as rt:
        with pytest.raises(RunBlocked) as blocked, rt.run("r"):
            reserve("a")
            raise RuntimeError("no")
        assert WORD in blocked.value.causes[0]
        assert WORD in rt.report("r").run.causes[0]
    assert WORD not in texts(tmp_path / "l.db")
    with Runtime(url) as blind:
        assert WORD not in str(blind.report("r"))


# ---- deciding -------------------------------------------------------------------------------


@tool(kind="pivot", needs_approval=True, redact="card")
def wire(to: str, card: str = CARD) -> str:
    return to


def asked_for(url: str) -> str:
    """A call that waits for a person, in an encrypted ledger; the id of its request."""
    with Runtime(url, tools=[wire], encrypt=K1, create=True) as rt, suppress(Held), rt.run("r"):
        wire(WORD)
    with Runtime(url, encrypt=K1) as rt:
        (approval,) = rt.approvals()
    return approval.id


def test_nobody_allows_what_they_cannot_be_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    id = asked_for(url)
    links: dict[str, Any] = {"link_secret": "x" * 32, "link_url": "https://a.example/"}
    with Runtime(url, tools=[wire], **links) as poor:
        approval = poor.approval(id)
        token = sign(approval, "approve", secret="x" * 32)
        allows: list[Callable[[], object]] = [
            lambda: poor.approve(id, digest=approval.digest, by="anna"),
            lambda: poor.bypass(id, digest=approval.digest, by="anna", why="late"),
            lambda: poor.edit(id, {"to": "b", "card": CARD}, by="anna", why="other"),
            lambda: poor.redeem(token, by="anna"),
        ]
        for allow in allows:
            with pytest.raises(LedgerSealed, match="nobody may allow what they cannot read") as no:
                allow()
            assert "AMENDS_ENCRYPT" in no.value.hint
        assert poor.approval(id).state == "pending"
        assert any("they are encrypted" in line for line in card(approval))
        assert "actions" not in [block["type"] for block in slack_payload(approval)["blocks"]]
    with Runtime(url, tools=[wire], encrypt=K1) as rich:
        shown = "\n".join(card(rich.approval(id)))
        assert f'to = "{WORD}"' in shown
        assert "card = redacted(•••" in shown, "hidden from everybody, and says so"
        assert rich.approve(id, digest=rich.approval(id).digest, by="anna").state == "approved"


def test_a_no_needs_no_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    id = asked_for(url)
    with Runtime(url) as poor:
        assert poor.reject(id, by="anna", reason="never").state == "rejected"


def test_the_async_runtime_refuses_it_too(tmp_path: Path) -> None:
    import asyncio

    url = f"sqlite:///{tmp_path}/l.db"
    id = asked_for(url)

    async def main() -> None:
        async with AsyncRuntime(url) as poor:
            approval = await poor.approval(id)
            with pytest.raises(LedgerSealed):
                await poor.approve(id, digest=approval.digest, by="anna")

    asyncio.run(main())


def test_a_held_repeat_is_not_let_run_without_the_key() -> None:
    @tool(key="order", on_conflict="hold")
    def pay(order: str, cents: int) -> str:
        return order

    @pay.compensate
    def back(result: str) -> None: ...

    store = MemoryStore()
    with suppress(Error), twin_of(store, pay, encrypt=K1, lease=5.0).run("r", recover="wait"):
        pay("1", 7)
        pay("1", 8)
    poor = twin_of(store)
    (call,) = poor.calls("state:held")
    with pytest.raises(LedgerSealed):
        poor.decide(call.id, "run", by="anna", why="two")
    poor.decide(call.id, "refuse", by="anna", why="one")
    assert poor.call(call.id).state == "refused"


def test_a_notice_from_a_process_without_the_key_has_no_links() -> None:
    told: list[Any] = []
    clock = Clock()
    store = MemoryStore(clock=clock)
    links: dict[str, Any] = {"link_secret": "x" * 32, "link_url": "https://a.example/"}
    with suppress(Held), twin_of(store, wire, encrypt=K1, lease=5.0).run("r"):
        wire(WORD)
    clock.now += 10 * CLAIM_S
    twin_of(store, on_approval_needed=told.append, **links).recover()
    ((approval,), rich) = told, twin_of(store, wire, encrypt=K1)
    assert approval.id == next(rich.approvals()).id
    assert not approval.links


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_the_command_line_asks_nobody_about_what_it_cannot_show(tmp_path: Path, verb: str) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    id = asked_for(url)
    reason = ["--reason", "never"] if verb == "reject" else []
    seen = at_terminal("approvals", verb, id, *reason, "--by", "anna", "--url", url, cwd=tmp_path)
    assert "Sure?" not in seen.text
    if verb == "approve":
        assert (seen.code != 0, "ledger_sealed" in seen.text) == (True, True)
    else:
        assert (seen.code, "rejected" in seen.text) == (0, True)
        assert "(they are encrypted, and this process has no key to show them)" in seen.text
