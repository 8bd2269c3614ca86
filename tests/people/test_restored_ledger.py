"""A ledger that was put back from a copy revives nothing: it starts nothing until a person has looked."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from amends import AsyncRuntime, Held, Runtime, tool
from amends.errors import ApprovalVoid, LedgerBehind, LedgerUnavailable
from amends.host import runs
from amends.host.anchor import Anchor, Mark
from amends.worker import Worker


class Bank:
    def __init__(self, folder: Path) -> None:
        self.folder, self.sent = folder, list[int]()
        self.checkpoint: float | str = 5.0
        self.folder.mkdir(exist_ok=True)

    def runtime(self) -> Runtime:
        @tool(kind="pivot", needs_approval=True)
        def wire(cents: int) -> str:
            self.sent.append(cents)
            return f"w{cents}"

        self.wire = wire
        return Runtime(
            f"sqlite:///{self.folder / 'ledger.db'}", tools=[wire], principal="bot", checkpoint=self.checkpoint
        )

    def copy(self, to: Path) -> None:
        to.mkdir(exist_ok=True)
        for path in self.folder.glob("ledger.db*"):
            if "anchor" not in path.name:
                shutil.copy(path, to / path.name)

    def restore(self, frm: Path) -> None:
        for path in self.folder.glob("ledger.db*"):
            if "anchor" not in path.name:
                path.unlink()
        for path in frm.iterdir():
            shutil.copy(path, self.folder / path.name)


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path / "bank")


def _approved_and_copied(bank: Bank, copy: Path) -> str:
    rt = bank.runtime()
    with pytest.raises(Held), rt.run("r") as run:
        assert run.answer("wire", {"cents": 5}).status == "held"
        raise run.answer("wire", {"cents": 5}).error  # type: ignore[misc]
    [waits] = rt.approvals()
    rt.approve(waits.id, digest=waits.digest, by="anna")
    rt.close()
    bank.copy(copy)
    rt = bank.runtime()
    with rt.run("r") as run:
        assert run.answer("wire", {"cents": 5}).status == "done"
    rt.close()
    assert bank.sent == [5]
    return waits.id


def test_a_ledger_that_was_put_back_starts_nothing(bank: Bank, tmp_path: Path) -> None:
    id = _approved_and_copied(bank, tmp_path / "copy")
    bank.restore(tmp_path / "copy")
    rt = bank.runtime()
    for wanted in ("r", "another"):
        with pytest.raises(LedgerBehind), rt.run(wanted):
            pass
    assert rt.approval(id).state == "approved", "the copy still says so"
    assert rt.reconcile_restore(by="anna", why="the disk broke; I looked at the bank") == 1
    with pytest.raises(ApprovalVoid) as void:
        rt.approve(id, digest=rt.approval(id).digest, by="anna")
    assert void.value.why == "revived"
    with pytest.raises(Held), rt.run("r") as run:
        answer = run.answer("wire", {"cents": 5})
        assert isinstance(answer.error, ApprovalVoid)
        assert answer.error.why == "revived"
        raise Held("a person decides", call=answer.call, reason="approval")
    assert bank.sent == [5], "nothing was sent twice"
    [new] = rt.approvals()
    assert new.follows == id
    rt.close()


def test_a_ledger_that_goes_on_is_not_behind(bank: Bank, tmp_path: Path) -> None:
    _approved_and_copied(bank, tmp_path / "copy")
    rt = bank.runtime()
    with rt.run("next"):
        pass
    rt.close()


def test_a_worker_starts_nothing_in_it_either(bank: Bank, tmp_path: Path) -> None:
    _approved_and_copied(bank, tmp_path / "copy")
    bank.restore(tmp_path / "copy")
    rt = bank.runtime()
    found = rt._drive(runs.one(rt._host, _root(rt)))
    assert found is not None
    with pytest.raises(LedgerBehind):
        rt._recover_one(found, force=True)
    rt.close()


def _root(rt: Runtime) -> str:
    from amends.ledger.operations import ReadRun

    tree = rt._host.store.perform(ReadRun("", "r"))
    assert tree is not None
    return tree.run.root


def test_the_mark_never_goes_back_and_a_broken_one_is_said(tmp_path: Path) -> None:
    anchor = Anchor(tmp_path / "a")
    assert anchor.read() is None
    anchor.keep(5, "apr_5")
    anchor.keep(3, "apr_3")
    assert anchor.read() == Mark(5, "apr_5")
    anchor.reset()
    assert anchor.read() == Mark()
    anchor.path.write_text("nonsense", encoding="utf-8")
    with pytest.raises(LedgerUnavailable, match="cannot be read"):
        anchor.read()
    missing = Anchor(tmp_path / "no folder" / "a")
    with pytest.raises(LedgerUnavailable, match="no approved call is started"):
        missing.keep(1, "x")


# ---- dying, and an anchor that cannot be written -------------------------------------------


def _decided(bank: Bank) -> None:
    rt = bank.runtime()
    with pytest.raises(Held), rt.run("r") as run:
        raise run.answer("wire", {"cents": 5}).error  # type: ignore[misc]
    [waits] = rt.approvals()
    rt.approve(waits.id, digest=waits.digest, by="anna")
    rt.close()


@pytest.mark.parametrize("dies", ["before", "after"])
def test_killed_around_the_mark_nothing_is_sent_twice_whatever_is_put_back(
    bank: Bank, tmp_path: Path, dies: str
) -> None:
    bank.checkpoint = "off"  # the approval's mark alone: with a checkpoint no ledger that was put back starts anything
    _decided(bank)
    bank.copy(tmp_path / "copy")
    pid = os.fork()
    if pid == 0:
        keep = Anchor.keep

        def dying(self: Anchor, at: float, approval: str) -> None:
            if dies == "after":
                keep(self, at, approval)
            os.kill(os.getpid(), signal.SIGKILL)

        Anchor.keep = dying  # type: ignore[method-assign]
        with bank.runtime().run("r") as run:
            run.answer("wire", {"cents": 5})
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    rt = bank.runtime()
    [report] = rt.recover()
    assert ([call.state for call in report.calls], bank.sent) == (["in_doubt"], []), "used up, and perhaps sent"
    rt.close()
    bank.restore(tmp_path / "copy")
    rt = bank.runtime()
    if dies == "after":
        with pytest.raises(LedgerBehind), rt.run("r"):
            pass
        assert bank.sent == []
    else:  # the body never ran: what the copy still offers is used for the first time
        with rt.run("r") as run:
            assert run.answer("wire", {"cents": 5}).status == "done"
        assert bank.sent == [5]
    rt.close()


def test_where_the_mark_cannot_be_written_nothing_was_sent_and_nobody_is_in_doubt(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    _decided(bank)
    rt = bank.runtime()

    def full(self: Anchor, mark: Mark) -> None:
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Anchor, "_write", full)
        with pytest.raises(LedgerUnavailable, match="the disk is full"), rt.run("r", recover="wait") as run:
            run.call(bank.wire, cents=5)
    assert [call.state for call in rt.report("r").calls] == ["failed"]
    assert bank.sent == []
    rt.close()


# ---- a ledger that was deleted, and its anchor was not


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_deleted_ledger_names_both_files_and_both_ways_out(tmp_path: Path, elsewhere: bool) -> None:
    ledger, anchor = tmp_path / "shop.db", tmp_path / ("kept {0}.json" if elsewhere else "shop.db.anchor")
    options = {"anchor": str(anchor)} if elsewhere else {}

    def work() -> None:
        rt = Runtime(f"sqlite:///{ledger}", checkpoint=0, **options)  # type: ignore[arg-type]
        try:
            with rt.run():
                pass
        finally:
            rt.close()

    work()
    for path in tmp_path.glob("shop.db*"):
        if "anchor" not in path.name:
            path.unlink()
    for _ in range(2):
        with pytest.raises(LedgerBehind) as behind:
            work()
    error = behind.value
    assert (error.ledger, error.anchor) == (str(ledger), str(anchor))
    for words in (str(error), error.hint):
        assert str(ledger) in words
        assert str(anchor) in words
    assert "amends db restored" in error.hint
    assert f"delete {anchor}" in error.hint
    anchor.unlink()
    work()


def test_check_anchor_only_looks(bank: Bank, tmp_path: Path) -> None:
    _approved_and_copied(bank, tmp_path / "copy")
    rt = bank.runtime()
    rt.check_anchor()
    rt.close()
    bank.restore(tmp_path / "copy")
    rt = bank.runtime()
    for _ in range(2):
        with pytest.raises(LedgerBehind) as behind:
            rt.check_anchor()
        assert behind.value.anchor == str(bank.folder / "ledger.db.anchor")
    rt.reconcile_restore(by="anna", why="looked")
    rt.check_anchor()
    rt.close()

    async def looks() -> None:
        async with AsyncRuntime(f"sqlite:///{bank.folder / 'ledger.db'}") as other:
            await other.check_anchor()

    asyncio.run(looks())
    with Runtime("memory:") as memory:
        memory.check_anchor()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_says_so_when_it_starts(tmp_path: Path, is_async: bool) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with Runtime(url, checkpoint=0) as rt, rt.run():
        pass
    (tmp_path / "shop.db").unlink()
    Runtime(url).migrate()
    for once in (True, False):
        with pytest.raises(LedgerBehind):
            Worker(AsyncRuntime(url) if is_async else Runtime(url)).run(once=once)


def test_a_permit_that_was_used_up_is_not_there_again(bank: Bank, tmp_path: Path) -> None:
    rt = bank.runtime()
    rt.permit("wire", {"cents": 5}, by="anna", why="agreed by phone")
    rt.scoped(tenant="acme").permit("wire", {"cents": 5}, by="anna", why="agreed by phone")
    rt.close()
    bank.copy(tmp_path / "copy")
    rt = bank.runtime()
    for seen in (rt, rt.scoped(tenant="acme")):
        with seen.run("r") as run:
            assert run.answer("wire", {"cents": 5}).status == "done"
        assert seen.permits() == []
    rt.close()
    bank.restore(tmp_path / "copy")
    rt = bank.runtime()
    assert rt.reconcile_restore(by="anna", why="the disk broke") == 2
    for seen in (rt, rt.scoped(tenant="acme")):
        assert seen.permits() == []
        with pytest.raises(Held), seen.run("r") as run:
            raise run.answer("wire", {"cents": 5}).error  # type: ignore[misc]
    assert bank.sent == [5, 5], "nothing was sent twice"
    rt.close()
