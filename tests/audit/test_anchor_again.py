"""After a new session with a server the ledger is compared with its anchor again, before a body starts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.errors import LedgerBehind, RolledBack
from amends.host.anchor import Anchor


def shop(done: list[str], **options: Any) -> Any:
    @tool(key="order", **options)
    def charge(order: str) -> str:
        done.append(order)
        return order

    @charge.compensate
    def refund(order: str) -> None:
        done.remove(order)

    return charge


def advance(anchor: Anchor) -> None:
    """The anchor knows a checkpoint that the ledger, seen through the next session, does not have."""
    mark = anchor.read()
    assert mark is not None
    assert mark.checkpoint is not None
    anchor.keep_checkpoint(replace(mark.checkpoint, n=mark.checkpoint.n + 1, hash="0" * 64))


@pytest.mark.parametrize("options", [{}, {"needs_approval": lambda call: False}], ids=["plain", "general"])
def test_a_call_of_an_open_run_starts_nothing_in_a_ledger_that_is_behind_now(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    done: list[str] = []
    charge = shop(done, **options)
    with Runtime(f"sqlite:///{tmp_path}/a.db", tools=[charge], checkpoint=0) as rt:
        with rt.run("first"):
            charge(order="1")
        run, anchor = rt.open("second"), rt._host.anchor
        assert anchor is not None
        run.call(charge, order="2")
        advance(anchor)
        run.call(charge, order="3")  # nothing says yet that another server may answer
        anchor.doubt()
        with pytest.raises(LedgerBehind):
            run.call(charge, order="4")
        with pytest.raises(LedgerBehind):
            rt.open("third")
        assert done == ["1", "2", "3"]
        assert [(call.args["order"], call.state) for call in rt.report("second").calls] == [
            ("2", "succeeded"), ("3", "succeeded"), ("4", "failed"),
        ]  # fmt: skip
        rt.reconcile_restore(by="ana", why="compared")
        run.call(charge, order="4")
        run.commit()
        assert done == ["1", "2", "3", "4"]


@pytest.mark.parametrize("options", [{}, {"needs_approval": lambda call: False}], ids=["plain", "general"])
def test_a_compensation_does_not_start_in_a_ledger_that_is_behind_now(tmp_path: Path, options: dict[str, Any]) -> None:
    done: list[str] = []
    charge = shop(done, **options)
    with Runtime(f"sqlite:///{tmp_path}/a.db", tools=[charge], checkpoint=0) as rt:
        with rt.run("first"):
            charge(order="1")
        run, anchor = rt.open("second"), rt._host.anchor
        assert anchor is not None
        run.call(charge, order="2")
        run.call(charge, order="3")
        advance(anchor)
        anchor.doubt()
        with pytest.raises(LedgerBehind):
            run.rollback(why="a test")
        assert done == ["1", "2", "3"]  # one that is behind may have forgotten that they were taken back
        assert [call.state for call in rt.report("second").calls] == ["succeeded", "compensation_failed"]
        rt.reconcile_restore(by="ana", why="compared")
        with pytest.raises(RolledBack):
            run.rollback(why="a test")
        assert done == ["1"]


def test_the_same_on_an_event_loop(tmp_path: Path) -> None:
    done: list[str] = []
    charge = shop(done)

    async def main() -> None:
        async with AsyncRuntime(f"sqlite:///{tmp_path}/a.db", tools=[charge], checkpoint=0) as rt:
            async with rt.run("first") as run:
                await run.call(charge, order="1")
            second, anchor = await rt.open("second"), rt._host.anchor
            assert anchor is not None
            advance(anchor)
            anchor.doubt()
            with pytest.raises(LedgerBehind):
                await second.call(charge, order="2")
            assert done == ["1"]
            await rt.reconcile_restore(by="ana", why="compared")
            await second.call(charge, order="2")
            await second.commit()

    asyncio.run(main())
    assert done == ["1", "2"]


def test_an_anchor_is_read_once_for_a_session_and_not_for_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = shop([])
    with Runtime(f"sqlite:///{tmp_path}/a.db", tools=[charge], checkpoint="off") as rt, rt.run("first"):
        reads = list[int]()
        read = Anchor.read

        def counted(anchor: Anchor) -> Any:
            reads.append(1)
            return read(anchor)

        monkeypatch.setattr(Anchor, "read", counted)
        for order in "123":
            charge(order=order)
        assert reads == []
        anchor = rt._host.anchor
        assert anchor is not None
        anchor.doubt()
        for order in "456":
            charge(order=order)
        assert len(reads) == 1


@pytest.mark.parametrize("place", ["postgres_url", "mysql_url"])
def test_a_ledger_in_a_server_is_compared_again_for_every_session(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    done: list[str] = []
    charge = shop(done)
    url = request.getfixturevalue(place)
    with Runtime(url, tools=[charge], checkpoint=0, anchor=str(tmp_path / "anchor")) as rt:
        with rt.run("first"):
            charge(order="1")
        run, anchor = rt.open("second"), rt._host.anchor
        assert anchor is not None
        run.call(charge, order="2")
        advance(anchor)
        sessions: int = anchor.sessions
        rt._host.store._pool.drop_idle()  # type: ignore[attr-defined]
        with pytest.raises(LedgerBehind):
            run.call(charge, order="3")
        assert anchor.sessions > sessions
        assert done == ["1", "2"]
