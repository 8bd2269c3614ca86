"""What is said to Restate about an invocation: all of it, in order, and the beginning of a step with its end."""

from __future__ import annotations

import asyncio
from typing import Any

from amends.adapters.restate import HOLD_S, Ending, RunNotCommitted, _Output
from tests.adapters.loops import on_a_loop


class Wire:
    """The other side: what has arrived, message by message. ``slow``: it takes a turn of the event loop for each."""

    def __init__(self, *, slow: bool = False) -> None:
        self.said: list[tuple[bytes, bool]] = []
        self.arrived, self._slow = asyncio.Event(), slow

    async def send(self, message: Any) -> None:
        if self._slow:
            await asyncio.sleep(0)
        if message["type"] == "http.response.body":
            self.said.append((message["body"], message["more_body"]))
            self.arrived.set()


def body(text: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


@on_a_loop
async def test_the_beginning_of_a_step_is_said_together_with_its_end() -> None:
    wire = Wire()
    output = _Output(wire.send)
    await output.send({"type": "http.response.start", "status": 200})
    await output.send(body(b"hello "))
    output.hold()
    await output.send(body(b"begun "))
    output.go_on()
    await output.send(body(b"ended "))
    await output.send(body(b"", more=False))
    assert wire.said == [(b"hello ", True), (b"begun ended ", True), (b"", False)]


@on_a_loop
async def test_the_beginning_of_a_long_step_is_said_before_its_end() -> None:
    wire = Wire()
    output = _Output(wire.send)
    output.hold()
    await output.send(body(b"begun"))
    assert wire.said == []
    begin = asyncio.get_running_loop().time()
    await asyncio.wait_for(wire.arrived.wait(), 20)
    assert asyncio.get_running_loop().time() - begin >= HOLD_S / 2
    await output.send(body(b"more"))  # the step goes on, and what else is said is not held any longer
    assert wire.said == [(b"begun", True), (b"more", True)]


@on_a_loop
async def test_the_end_of_the_invocation_is_never_held() -> None:
    wire = Wire()
    output = _Output(wire.send)
    output.hold()
    await output.send(body(b"begun "))
    await output.send(body(b"over", more=False))
    assert wire.said == [(b"begun over", False)]


@on_a_loop
async def test_the_order_stays_if_the_other_side_is_slow() -> None:
    wire = Wire(slow=True)
    output = _Output(wire.send)
    sent = []
    for number in range(30):
        if number % 3 == 0:
            output.hold()
        if number % 3 == 2:
            output.go_on()
        sent.append(asyncio.ensure_future(output.send(body(b"%d," % number))))
        if number % 4 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*sent)
    await output.send(body(b"", more=False))
    assert b"".join(text for text, _ in wire.said) == b"".join(b"%d," % number for number in range(30))
    assert [more for _, more in wire.said].count(False) == 1


def test_what_stands_of_a_run_that_was_not_committed_is_named_in_part() -> None:
    error = RunNotCommitted("r", Ending("abandoned", residue=["book"] * 300))
    assert "left standing: book and 299 more" in str(error)
    assert len(error.ending.residue) == 300
    assert "left standing: book, pay" in str(RunNotCommitted("r", Ending("abandoned", residue=["book", "pay"])))
