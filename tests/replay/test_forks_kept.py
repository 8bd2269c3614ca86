"""Forks of what is hidden, encrypted, exported, replayed, collected and listed: each as any other run."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime, current_run, tool
from amends.errors import CannotFork
from tests.audit.forger import Forger
from tests.world import World, runtime


def _tools(seen: list[object]) -> list[object]:
    @tool(key="order", redact=["card"])
    def charge(order: str, card: str) -> str:
        seen.append(card)
        return f"ch-{order}"

    @charge.compensate
    def refund(order: str) -> None:
        seen.append(f"refund {order}")

    @tool
    def pay(card: str, cents: int) -> int:
        seen.append(cents)
        return cents

    @pay.compensate
    def unpay(cents: int) -> None:
        seen.append(-cents)

    return [charge, pay]


def _played(rt: Runtime, charge, pay, id: str, cents: int) -> None:
    with rt.run(id, input={"card": "4111-1111"}):
        charge(order="1", card="4111-1111")
        pay(card="4111-1111", cents=5)
        pay(card="4111-1111", cents=cents)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_what_is_hidden_and_what_is_encrypted_is_shared_and_stays_so(tmp_path: Path, encrypted: bool) -> None:
    seen: list[object] = []
    charge, pay = _tools(seen)
    options: dict[str, Any] = {"encrypt": secrets.token_urlsafe(32)} if encrypted else {}
    rt = Runtime(
        f"sqlite:///{tmp_path / 'ledger.db'}", tools=[charge, pay], redact=["card"], secret_key="k" * 40, **options
    )
    _played(rt, charge, pay, "r", 7)
    calls = rt.report("r").calls
    fork = rt.fork("r", at=calls[1].id, id="f")
    done = list(seen)
    _played(rt, charge, pay, fork, 9)
    assert seen == [*done, 9]
    report = rt.report(fork)
    assert [call.result for call in report.calls] == ["ch-1", 5, 9]
    assert "4111-1111" not in report.to_json()
    assert rt.verify().ok
    rt.close()
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"4111-1111" not in written
    if encrypted:
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
        with Runtime(url, tools=[charge, pay], secret_key="k" * 40) as blind:
            with pytest.raises(CannotFork, match="encrypted with a key") as no:
                blind.fork("r", at=calls[1].id)
        assert no.value.why == "sealed"


def test_a_fork_is_exported_checked_and_loaded_and_a_record_is_not_forked() -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    rt = runtime(a, b)
    with rt.run("r") as run:
        with run.child("c") as child:
            a("1")
            child.output = {"done": True}
        b("1")
    call = rt.report("r").calls[-1].id
    fork = rt.fork("r", at=call, id="f")
    with rt.run(fork) as run:
        with run.child("c"):
            a("1")
        b("1")
        b("2")
    assert rt.verify().ok
    bundle = rt.export("r", "f")
    there = runtime(a, b)
    assert there.load(bundle) == ["r", "f"]
    assert [one.shared is not None for one in there.report("f").calls] == [True, False]
    assert there.report("f").children[0].calls[0].shared == rt.report("r").children[0].calls[0].id
    assert there.report("r").forks == ()
    with pytest.raises(Exception, match="is a read-only record"):
        there.fork("r", at=call)
    assert there.verify().ok
    assert there.compare("r", "f").to_dict() == rt.compare("r", "f").to_dict()


def test_a_fork_is_replayed_as_it_went() -> None:
    world = World()
    a, b, look = world.compensatable("a"), world.compensatable("b"), world.read("look")
    rt = runtime(a, b, look)

    def program(x: str) -> list[object]:
        run = current_run()
        drawn: list[object] = [run.now(), run.uuid()]
        told = [look(), a(str(run.uuid())), look()]
        return [*drawn, *told, run.uuid(), run.now(), b(x)]

    with rt.run("r"):
        program("1")
    fork = rt.fork("r", at=rt.report("r").calls[2].id)
    with rt.run(fork):
        told = program("2")
    assert len(world.log) == 5
    done = list(world.log)
    assert rt.replay(fork, program, "2") == told
    assert world.log == done


def test_a_fork_that_was_made_to_share_something_else_is_found_out(tmp_path: Path) -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    for column, value in (
        ("shared", "call_x"),
        ("result", '"other"'),
        ("args", "{}"),
        ("undoable", 1),
        ("error", "x"),
    ):
        path = tmp_path / f"{column}.db"
        with Runtime(f"sqlite:///{path}", tools=[a, b]) as rt:
            world.script["b"] = [ValueError("no")]
            with rt.run("r"):
                a("1")
                with pytest.raises(ValueError, match="no"):
                    b("1")
            rt.fork("r", at=rt.report("r").calls[1].id, id="f")
            assert rt.verify().ok
            with closing(Forger(f"sqlite:///{path}")) as forger:
                state = "failed" if column == "error" else "succeeded"
                [row] = [one for one in forger.rows("calls") if one["shared"] and one["state"] == state]
                forger.change("calls", row, **{column: value})
            problems = rt.verify().problems
            assert problems, f"{column} was changed"
            assert problems[0].run_id == "f"


def test_gc_says_that_open_forks_keep_a_run_and_a_run_that_it_emptied_is_not_forked() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    with rt.run("r"):
        a("1")
    (call,) = rt.report("r").calls
    fork = rt.fork("r", at=call.id)
    assert rt.gc(older_than=0).kept == {"open forks": 1}
    with rt.run(fork):
        a("1")
    assert rt.gc(older_than=0).runs == 2
    with pytest.raises(CannotFork, match="lost its arguments or its result to gc") as no:
        rt.fork("r", at=call.id, id="late")
    assert no.value.why == "gone"


def test_the_world_is_compared_with_what_was_done_and_not_with_what_is_shared() -> None:
    charged: list[str] = []

    @tool(key="order")
    def charge(order: str) -> str:
        charged.append(order)
        return order

    @charge.compensate
    def refund(order: str) -> None:
        charged.remove(order)

    @charge.list_effects
    def listed() -> list[dict[str, str]]:
        return [{"order": order} for order in charged]

    rt = runtime(charge)
    with rt.run("r"):
        charge("1")
    with rt.run(rt.fork("r", at=rt.report("r").calls[0].id)):
        charge("1")
        charge("2")
    assert rt.reconcile("charge").agrees
