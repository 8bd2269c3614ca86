"""How often a waiter looks, how much one call may carry, and the key of one call: all can be set."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, UsageError, declare, tool
from amends.encoding.canonical import PAYLOAD_BYTES_MAX
from amends.engine.session import APPROVAL_POLL_S_MAX, POLL_S_MAX
from amends.errors import BadConfig, Busy, KeyConflict, TooLarge
from amends.host.settings import DEFAULTS, settle_settings
from amends.stores import store_for
from amends.stores.memory import MemoryStore
from amends.testing import runtime
from amends.worker import IDLE_S_MAX, Pace

SAID: list[Any] = []


@tool(kind="pivot")
def note(text: str, to: str = "ada") -> str:
    SAID.append(text)
    return text * 2


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    SAID.clear()


# ---- Settings


def test_the_defaults_are_what_the_engine_uses_without_them() -> None:
    assert DEFAULTS["poll"] == POLL_S_MAX
    assert DEFAULTS["poll_approval"] == APPROVAL_POLL_S_MAX
    assert DEFAULTS["poll_worker"] == IDLE_S_MAX
    assert DEFAULTS["payload_bytes_max"] == PAYLOAD_BYTES_MAX


def test_arguments_variables_and_files_set_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amends.toml").write_text("poll = 0.5\npoll_approval = 2\npoll_worker = 9\npayload_bytes_max = 4096\n")
    monkeypatch.chdir(tmp_path)
    found = settle_settings({"poll_worker": 1}, environ={"AMENDS_POLL": "0.1", "AMENDS_PAYLOAD_BYTES_MAX": "2_048"})
    values = {name: found[name].value for name in ("poll", "poll_approval", "poll_worker", "payload_bytes_max")}
    assert values == {"poll": 0.1, "poll_approval": 2.0, "poll_worker": 1.0, "payload_bytes_max": 2048}
    assert found["poll_approval"].origin == str(tmp_path / "amends.toml")
    assert Runtime("memory:", poll=3).settings["poll"].value == 3.0


@pytest.mark.parametrize("name", ["poll", "poll_approval", "poll_worker", "payload_bytes_max"])
@pytest.mark.parametrize("value", [0, -1, "soon", float("inf"), float("nan"), 1e9, [1], ""])
def test_what_cannot_be_used_is_refused_when_the_runtime_is_built(name: str, value: Any) -> None:
    with pytest.raises(BadConfig) as caught:
        settle_settings({name: value}, alone=True)
    assert (caught.value.setting, caught.value.origin) == (name, "argument")


@pytest.mark.parametrize("value", [True, 2048.5, "2 MB", 1023, (1 << 26) + 1])
def test_a_number_of_bytes_is_a_whole_number_within_bounds(value: Any) -> None:
    with pytest.raises(BadConfig):
        settle_settings({"payload_bytes_max": value}, alone=True)


# ---- Waiting


def test_a_waiting_run_looks_as_often_as_the_setting_says() -> None:
    with runtime(poll=0.05, wait=2.0) as rt:
        driver: Any = rt._driver
        naps: list[float] = []
        advance = driver.clock.advance

        def nap(seconds: float) -> None:
            naps.append(seconds)
            advance(seconds)

        driver.clock.advance = nap
        rt.open("r")
        rt._host.be("another process")
        with pytest.raises(Busy):
            rt.open("r")
    assert max(naps) == 0.05
    assert len(naps) >= 2.0 / 0.05


def test_an_idle_worker_sleeps_as_long_as_the_setting_says() -> None:
    pace = Pace(1.0, 3.0)
    assert [pace.after(busy=False) for _ in range(4)] == [1.0, 2.0, 3.0, 3.0]
    assert Pace(1.0, 0.1).after(busy=False) == 1.0


# ---- Size


def test_arguments_above_the_limit_are_refused_before_anything_starts() -> None:
    with Runtime("memory:", tools=[note], payload_bytes_max=2048) as rt, rt.run() as run:
        with pytest.raises(TooLarge) as caught:
            note("x" * 3000)
        assert (caught.value.limit, caught.value.size > 3000, SAID) == (2048, True, [])
        answer = run.answer("note", {"text": "ß" * 1100})
        assert answer.is_error
        assert SAID == []
        assert note("x" * 900) == "x" * 1800


@pytest.mark.parametrize("options", [{}, {"key": "text"}])
def test_a_compiled_tool_has_the_same_limit(options: dict[str, Any]) -> None:
    @tool(**options)
    def book(text: str) -> str:
        SAID.append(text)
        return "booked"

    @book.compensate
    def cancel() -> None: ...

    with Runtime("memory:", tools=[book], payload_bytes_max=2048) as rt, rt.run() as run:
        for ask in (lambda: book("x" * 3000), lambda: run.call(book, text="x" * 3000)):
            with pytest.raises(TooLarge):
                ask()
        assert SAID == []
        assert book("x" * 1900) == "booked"


def test_a_result_above_the_limit_is_returned_and_its_loss_is_stated() -> None:
    with Runtime("memory:", tools=[note], payload_bytes_max=1024) as rt:
        with rt.run("r"):
            assert len(note("x" * 900)) == 1800
        assert "1,024" in (next(iter(rt.calls("run:r"))).loss or "")


@pytest.mark.parametrize("kind", ["plain", "nested"])
def test_a_higher_limit_lets_more_through(tmp_path: Path, kind: str) -> None:
    big = "x" * (2 << 20)

    @tool(kind="read")
    def echo(value: Any) -> Any:
        return value

    value: Any = big if kind == "plain" else {"a": [big]}
    with Runtime(f"sqlite:///{tmp_path}/a.db", tools=[echo]) as rt, rt.run(), pytest.raises(TooLarge):
        echo(value)
    with Runtime(f"sqlite:///{tmp_path}/b.db", tools=[echo], payload_bytes_max=3 << 20) as rt, rt.run("r"):
        assert echo(value) == value
    with Runtime(f"sqlite:///{tmp_path}/b.db", tools=[echo]) as rt:  # who reads needs no such limit
        assert next(iter(rt.calls("run:r"))).result == value


def test_a_limit_above_what_the_server_takes_is_refused_before_anything_runs() -> None:
    class Small(MemoryStore):
        payload_bytes_most = 4096

    with pytest.raises(BadConfig) as caught, Runtime(store=Small(), payload_bytes_max=8192) as rt, rt.run():
        pass
    assert caught.value.setting == "payload_bytes_max"
    store: Any = store_for("mysql://bob@host/db")
    assert store.payload_bytes_most >= PAYLOAD_BYTES_MAX
    store.close()


# ---- The key of one call


def test_the_key_of_one_call_is_set_by_names_or_a_function() -> None:
    with Runtime("memory:", tools=[note]) as rt, rt.run() as run:
        first = run.answer("note", {"text": "a", "to": "ada"}, key="text")
        assert run.answer("note", {"text": "a", "to": "ada"}, key=("text",)).status == "replayed"
        with_other = run.answer("note", {"text": "a", "to": "bob"}, key="text")
        assert isinstance(with_other.error, KeyConflict)
        assert first.call is not None
        assert SAID == ["a"]
    with Runtime("memory:", tools=[note]) as rt, rt.run() as run:
        run.answer("note", {"text": "a"}, key=lambda call: "order-7")
        assert run.answer("note", {"text": "a"}, key=lambda call: "order-7").status == "replayed"
    assert SAID == ["a", "a"]


def test_the_key_of_one_call_in_an_async_run_and_without_a_declaration() -> None:
    async def agent() -> None:
        async with AsyncRuntime("memory:", tools=[declare("look", kind="read"), note]) as rt:
            async with rt.run() as run:
                await run.answer("note", {"text": "a"}, key="text")
                again = await run.answer("note", {"text": "a"}, key="text")
                assert again.status == "replayed"

    asyncio.run(agent())
    assert SAID == ["a"]


@pytest.mark.parametrize("key", ["txt", ("text", "txt"), (), 3, ("text", 3)])
def test_a_key_that_cannot_be_is_the_programs_mistake(key: Any) -> None:
    with Runtime("memory:", tools=[note]) as rt, rt.run() as run:
        assert isinstance(run.answer("note", {"text": "a"}, key=key).error, UsageError)
    assert SAID == []


def test_a_key_does_not_contradict_what_is_ignored() -> None:
    @tool(kind="pivot", key="order", ignore="rest")
    def pay(order: str, why: str = "") -> None:
        SAID.append(order)

    @tool(kind="pivot", ignore=("why",))
    def ship(order: str, why: str = "") -> None:
        SAID.append(order)

    with Runtime("memory:", tools=[pay, ship]) as rt, rt.run() as run:
        assert isinstance(run.answer("pay", {"order": "1"}, key=lambda call: "x").error, UsageError)
        assert isinstance(run.answer("ship", {"order": "1"}, key=("order", "why")).error, UsageError)
    assert SAID == []


def test_an_approval_that_is_asked_for_ahead_is_that_of_the_key() -> None:
    asking = tool(note.fn, name="note", kind="pivot", needs_approval=True)
    with Runtime("memory:", tools=[asking]) as rt:
        with rt.run("r") as run:
            asked = run.approval_for("note", {"text": "a"}, key="text")
            assert asked is not None
            rt.approve(asked.id, digest=asked.digest, by="ada")
            assert run.answer("note", {"text": "a"}, key="text").status == "done"
        assert len(list(rt.approvals())) == 0
    assert SAID == ["a"]


def test_a_replay_of_the_record_takes_the_same_key() -> None:
    def agent() -> list[str]:
        with rt.run("r") as run:
            return [run.answer("note", {"text": "a"}, key="text").text for _ in range(2)]

    with Runtime("memory:", tools=[note]) as rt:
        told = agent()
        assert rt.replay("r", agent) == told
    assert SAID == ["a"]
