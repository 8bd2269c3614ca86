"""A redacted value of a run stays out of what its other tools return, raise and are asked about."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, Unknown, tool
from amends.errors import Error

CARD = "4242-4242-4242-4242"
SEEN: list[Any] = []


@tool(key="order", redact=("card", "pin"))
def charge(order: str, card: str, pin: str = "") -> str:
    return "ok"


@charge.compensate
def refund(order: str) -> None: ...


@tool(key="order")
def receipt(order: str) -> dict[str, Any]:
    return {"text": f"paid with {CARD}", "order": order, "pin": "1234"}


@receipt.compensate
def unreceipt(order: str, result: Any) -> None:
    SEEN.append(result)


@tool(kind="read")
def look(order: str) -> str:
    return f"card {CARD}"


@tool(key="order")
def decline(order: str) -> str:
    raise ValueError(f"card {CARD} declined")


@decline.compensate
def undecline(order: str) -> None: ...


@tool(key="order")
def lose(order: str) -> str:
    raise TimeoutError(f"no answer about {CARD}")


@lose.compensate
def unlose(order: str) -> None: ...


@lose.probe(settle=3_600)
def find(order: str) -> Any:
    return Unknown(f"the list does not have {CARD}")


@tool(kind="retriable", idempotent=True)
def mail(order: str) -> str:
    return f"mailed about {CARD}"


TOOLS = [charge, receipt, look, decline, lose, mail]


def everything(rt: Runtime, run: str = "r") -> str:
    """Return all that the ledger tells about a run, as one text."""
    found = rt.report(run)
    children = [one for child in found.children for one in child.calls]
    told = [one.to_dict() for one in (*found.calls, *children)] + [one.to_dict() for one in rt.doubts()]
    return str(told) + str([one.to_dict() for one in rt.events(run)])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_direct_calls_of_other_tools_keep_it_out_of_the_ledger(kind: str, tmp_path: Path) -> None:
    rt = Runtime("memory:" if kind == "memory" else f"sqlite:///{tmp_path}/a.db", tools=TOOLS, wait=0.0)
    with suppress(Error), rt.run("r", on_open_failure="commit") as run:
        charge(order="1", card=CARD)
        first = receipt(order="1")
        assert CARD in first["text"]  # the program itself gets what its tool returned
        assert CARD not in receipt(order="1")["text"]
        assert CARD in look(order="1")
        for one in (decline, lose):
            with pytest.raises((ValueError, Error)):
                one(order="1")
        with run.child("c"):
            look(order="2")
        mail(order="1")
    assert CARD not in everything(rt)
    assert CARD not in str([one.to_dict() for one in rt.calls()])
    rt.close()
    assert all(CARD.encode() not in one.read_bytes() for one in tmp_path.glob("a.db*"))


def test_a_model_is_not_told_it_by_another_tool() -> None:
    rt = Runtime("memory:", tools=TOOLS, wait=0.0)
    run = rt.open("r")
    told = [run.answer("charge", {"order": "1", "card": CARD}).text]
    told += [run.answer(name, {"order": "1"}).text for name in ("receipt", "receipt", "look", "decline", "lose")]
    assert CARD not in str(told)
    assert "paid with •••" in told[1]
    [doubt] = rt.doubts()
    rt.probe(doubt.id)
    assert CARD not in everything(rt)
    run.release()
    rt.close()


def test_an_event_loop_keeps_it_out_too() -> None:
    @tool(kind="read")
    async def peek(order: str) -> str:
        return f"card {CARD}"

    @tool(kind="read", redact=("card",))
    async def given(card: str) -> str:
        return "ok"

    async def main() -> str:
        async with AsyncRuntime("memory:", tools=[peek, given]) as rt:
            async with rt.run("r"):
                await given(card=CARD)
                assert CARD in await peek(order="1")
            return str([one.to_dict() async for one in rt.calls()])

    assert CARD not in asyncio.run(main())


def test_a_compensation_in_this_process_gets_the_result_itself() -> None:
    SEEN.clear()
    rt = Runtime("memory:", tools=TOOLS)
    with pytest.raises(KeyError), rt.run("r"):
        charge(order="1", card=CARD)
        receipt(order="1")
        raise KeyError
    assert [{"text": f"paid with {CARD}", "order": "1", "pin": "1234"}] == SEEN
    assert rt.report("r").run.state == "rolled_back"


def test_a_short_value_does_not_change_what_another_tool_returned() -> None:
    rt = Runtime("memory:", tools=TOOLS)
    with rt.run("r"):
        charge(order="1", card="", pin="1234")
        receipt(order="1")
        assert receipt(order="1")["pin"] == "1234"  # a replay must not get a mask for what is most likely a coincidence


def test_a_run_that_redacts_nothing_is_as_it_was() -> None:
    rt = Runtime("memory:", tools=TOOLS)
    with rt.run("r"):
        receipt(order="1")
        assert receipt(order="1")["text"] == f"paid with {CARD}"
