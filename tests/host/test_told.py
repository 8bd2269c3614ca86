"""What a model was told of a call is made from the record, in the words of its answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amends import AsyncRuntime, Held, NoEffect, Runtime, tool
from amends.errors import CallNotFound, RunNotFound


def _tools() -> list[Any]:
    @tool(key="n")
    def put(n: int) -> dict[str, int]:
        if n == 7:
            raise NoEffect("seven is taken", final=True)
        if n == 8:
            raise ValueError("eight is odd")
        if n == 9:
            raise TimeoutError("lost")
        return {"n": n}

    @put.compensate
    def drop(n: int) -> None: ...

    @tool(kind="retriable", idempotent=True)
    def mail(to: str) -> None: ...

    @tool(kind="pivot", needs_approval=True)
    def wire(n: int) -> str:
        return "w"

    return [put, mail, wire]


@pytest.mark.parametrize(
    "name, args",
    [
        ("put", {"n": 1}),
        ("put", {"n": 7}),
        ("put", {"n": 8}),
        ("put", {"n": 9}),
        ("mail", {"to": "ann"}),
        ("wire", {"n": 1}),
    ],
)
def test_the_record_says_what_the_answer_said(name: str, args: dict[str, Any]) -> None:
    with Runtime("memory:", tools=_tools(), wait=0.0) as rt:
        run = rt.open("r", recover="wait", wait_approval=0)
        answer = run.answer(name, args)
        [call] = rt.calls()
        told = rt.told(call.id)
        assert told is not None
        assert (told.status, told.text) == (answer.status, answer.text)


def test_what_was_taken_back_is_told_as_it_was_and_a_refusal_with_its_reason() -> None:
    with Runtime("memory:", tools=_tools(), wait=0.0) as rt:
        run = rt.open("r", recover="wait", wait_approval=0)
        done, held = run.answer("put", {"n": 1}), run.answer("wire", {"n": 1})
        [asked] = rt.approvals()
        rt.reject(asked.id, by="ann", reason="too much")
        assert held.call is not None
        assert done.call is not None
        told = rt.told(held.call.id)
        assert told is not None
        assert (told.status, "too much" in told.text) == ("refused", True)
        with pytest.raises(Exception, match="rolled back"):
            run.rollback("enough")
        assert rt.call(done.call.id).state == "compensated"
        told = rt.told(done.call.id)
        assert told is not None
        assert told.text == done.text


def test_nothing_is_told_of_what_has_not_ended_and_nothing_of_others() -> None:
    with Runtime("memory:", tools=_tools()) as rt:
        run = rt.open("r", recover="wait")
        attempt = run.begin("put", {"n": 1})
        assert rt.told(attempt.call.id) is None
        with pytest.raises(CallNotFound):
            rt.scoped(tenant="other").told(attempt.call.id)


def test_one_run_is_told_without_its_calls_and_with_what_happens_now() -> None:
    with Runtime("memory:", tools=_tools(), wait=0.0) as rt:
        run = rt.open("r", recover="wait", wait_approval=0, principal="ann")
        assert rt.info("r").now is not None
        assert (rt.info("r").now.what, rt.info("r").principal) == ("running", "ann")  # type: ignore[union-attr]
        with pytest.raises(Held), run.child("c") as child:
            child.answer("wire", {"n": 1})
            assert (rt.info("r/c").parent, str(rt.info("r/c").now)) == ("r", "waits for a person")
        with pytest.raises(RunNotFound):
            rt.info("nobody")
        with rt.run("done"):
            pass
        assert (rt.info("done").state, rt.info("done").now) == ("committed", None)


def test_both_are_there_on_an_event_loop() -> None:
    async def main() -> None:
        async with AsyncRuntime("memory:", tools=_tools()) as rt:
            async with rt.run("r") as run:
                answer = await run.answer("put", {"n": 1})
            assert answer.call is not None
            told = await rt.told(answer.call.id)
            assert told is not None
            assert told.text == answer.text
            assert (await rt.info("r")).state == "committed"

    asyncio.run(main())
