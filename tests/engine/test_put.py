"""``idempotent="put"``: repeatable, but a start that lands late overwrites what came after it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from amends import Held, InDoubt, Retry, tool
from amends.errors import BadDeclaration
from tests.world import runtime, states, until

SETTLE_S = 0.3


class Remote:
    """A value that is set over a slow connection: a lost request lands at most ``SETTLE_S`` later."""

    def __init__(self) -> None:
        self.value = "old"
        self.late: list[tuple[float, str]] = []
        self.log: list[str] = []
        self.lose = 0

    def put(self, value: str) -> None:
        self.land()
        if self.lose:
            self.lose -= 1
            self.late.append((time.monotonic() + SETTLE_S * 0.8, value))
            raise TimeoutError
        self.log.append(value)
        self.value = value

    def land(self) -> None:
        for at, value in list(self.late):
            if at <= time.monotonic():
                self.late.remove((at, value))
                self.log.append(f"late {value}")
                self.value = value

    def setter(self, idempotent: Any = "put", **options: Any) -> Any:
        @tool(
            key="name", on_conflict="next", idempotent=idempotent, settle=SETTLE_S, locks=lambda call: ["it"], **options
        )
        def put(name: str, value: str) -> str:
            self.put(value)
            return value

        put.before(lambda: self.value)
        return put


def test_the_repeat_waits_until_the_lost_start_has_landed() -> None:
    remote = Remote()
    put = remote.setter(compensate=lambda before: remote.put(before))
    remote.lose = 1
    with runtime(put).run("r"):
        assert put("a", "one") == "one"
        assert put("a", "two") == "two"
    time.sleep(SETTLE_S)
    remote.land()
    assert remote.value == "two"
    assert remote.log == ["late one", "one", "two"]


def test_a_lost_setter_keeps_others_from_what_its_lock_names() -> None:
    remote = Remote()
    put = remote.setter(compensate=lambda before: remote.put(before))
    other_log: list[str] = []

    @tool(locks=lambda call: ["it"])
    def touch() -> None:
        other_log.append(remote.value)

    touch.compensate(lambda: None)
    rt = runtime(put, touch)
    remote.lose = 99
    with pytest.raises(Exception, match=r"blocked|may have"), rt.run("r", wait=0.05):
        with pytest.raises(InDoubt):
            put("a", "one")
        with pytest.raises(InDoubt, match="put was sent"):
            touch()
    assert other_log == []
    assert "touch" not in states(rt, "r")


def test_the_compensation_of_a_setter_waits_too() -> None:
    remote = Remote()
    put = remote.setter()

    @put.compensate(idempotent="put", retry=Retry(attempts=3, delay=0.0))
    def put_back(before: str) -> None:
        remote.put(before)

    rt = runtime(put)
    with pytest.raises(KeyError), rt.run("r"):
        put("a", "one")
        put("a", "two")
        remote.lose = 1
        raise KeyError
    time.sleep(SETTLE_S)
    remote.land()
    assert remote.value == "old"
    assert remote.log == ["one", "two", "late one", "one", "old"]


def test_as_its_own_compensation_it_keeps_its_own_word() -> None:
    remote = Remote()
    put = remote.setter(compensate="put")
    rt = runtime(put)
    assert rt._host.specs["put"].compensate.put
    with pytest.raises(KeyError), rt.run("r"):
        put("a", "one")
        remote.lose = 1
        raise KeyError
    assert remote.log == ["one", "late old", "old"]


def test_it_says_what_it_sets() -> None:
    with pytest.raises(BadDeclaration, match="locks="):
        runtime(tool(lambda n: n, name="t", kind="pivot", idempotent="put"))
    with pytest.raises(BadDeclaration, match='True, False, "put" or a time'):
        runtime(tool(lambda n: n, name="t", kind="pivot", idempotent="PUT"))
    bare = tool(lambda n: n, name="t")
    bare.compensate(lambda: None, idempotent="put")
    with pytest.raises(BadDeclaration, match="locks="):
        runtime(bare)
    other = tool(lambda n: n, name="t")
    other.compensate(lambda: None, idempotent="24h")  # type: ignore[call-overload]
    with pytest.raises(BadDeclaration, match='True, False or "put"'):
        runtime(other)


def test_a_call_that_was_approved_meanwhile_waits_for_the_lost_setter_too() -> None:
    remote = Remote()
    put = remote.setter(compensate=lambda before: remote.put(before))

    @tool(needs_approval=True, locks=lambda call: ["it"])
    def touch() -> str:
        remote.log.append("touch")
        return remote.value

    touch.before(lambda: remote.value)
    touch.compensate(lambda before: None)
    rt = runtime(put, touch)
    with pytest.raises(Exception, match="blocked"), rt.run("r", wait=0.05):
        with pytest.raises(Held):
            touch()
        (asked,) = rt.approvals()
        rt.approve(asked.id, by="ann", digest=asked.digest)
        remote.lose = 99
        with pytest.raises(InDoubt):
            put("a", "one")
        with pytest.raises(InDoubt, match="put was sent"):
            touch()
    assert remote.log == []


def test_forward_work_waits_for_a_lost_setter_of_the_same_thing() -> None:
    remote = Remote()
    put = tool(
        lambda value: remote.put(value), name="put", kind="retriable", idempotent="put", settle=SETTLE_S,
        locks=lambda call: ["it"],
    )  # fmt: skip
    after = tool(
        lambda value: remote.put(value), name="after", kind="retriable", idempotent=True, locks=lambda call: ["it"]
    )
    rt = runtime(put, after)
    remote.lose = 1
    with rt.run("r", wait=0.05):
        put("one")
        after("two")
    assert (rt.report("r").state, remote.log) == ("pivoted", [])
    until(lambda: rt.recover() and rt.report("r").state == "committed")
    remote.land()
    assert remote.log == ["late one", "one", "two"]


def test_a_lost_compensation_of_a_child_keeps_its_parent_from_what_its_lock_names() -> None:
    remote = Remote()
    put = remote.setter(idempotent=False)
    put.compensate(lambda before: remote.put(before), idempotent="put", retry=Retry(attempts=2, delay=0.0))
    rt = runtime(put)
    with pytest.raises(Exception, match="blocked"), rt.run("r", wait=0.05) as run:
        with pytest.raises(KeyError), run.child("c"):
            put("a", "one")
            remote.lose = 99
            raise KeyError
        remote.lose = 0
        with pytest.raises(InDoubt, match="the compensation of put"):
            put("b", "two")
    time.sleep(SETTLE_S)
    remote.land()
    assert remote.log == ["one", "late old"]
