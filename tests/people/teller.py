"""``python -m tests.people.teller LEDGER TOLD COLOUR VERB``: asks, or recovers; dies where DIE_AT says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from amends import Approval, AsyncRuntime, Held, Runtime, tool
from amends.host import notices
from amends.ledger.operations import StoreOp

LEDGER, TOLD, COLOUR, VERB = sys.argv[1:5]
DIE_AT = os.environ.get("DIE_AT", "")
notices.CLAIM_S = 0.25  # type: ignore[misc]


def die(point: str) -> None:
    if point == DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def tell(approval: Approval) -> None:
    die("before hook")
    with Path(TOLD).open("a", encoding="utf-8") as told:
        told.write(f"{approval.id}\n")
    die("after hook")


async def tell_async(approval: Approval) -> None:
    tell(approval)


@tool(name="wire", kind="pivot", needs_approval=True)
def wire(cents: int) -> str:
    return f"sent {cents}"


@tool(name="wire", kind="pivot", needs_approval=True)
async def awire(cents: int) -> str:
    return f"sent {cents}"


def deadly(store: Any) -> None:
    """Die before or after an operation of the ledger."""
    perform, perform_async = store.perform, store.perform_async

    def performed(op: StoreOp[Any]) -> Any:
        die(f"before {type(op).__name__}")
        answer = perform(op)
        die(f"after {type(op).__name__}")
        return answer

    async def performed_async(op: StoreOp[Any]) -> Any:
        die(f"before {type(op).__name__}")
        answer = await perform_async(op)
        die(f"after {type(op).__name__}")
        return answer

    store.perform, store.perform_async = performed, performed_async


def blocking() -> None:
    with Runtime(LEDGER, tools=[wire], on_approval_needed=tell) as rt:
        deadly(rt._host.store)
        if VERB != "ask":
            while rt.recover() or (VERB != "recover" and not any(one.what == "told" for one in rt.events("r"))):
                time.sleep(0.05)
            return
        with contextlib.suppress(Held), rt.run("r", recover="wait"):
            wire(cents=1)


async def on_a_loop() -> None:
    rt = AsyncRuntime(LEDGER, tools=[awire], on_approval_needed=tell_async)
    deadly(rt._host.store)
    if VERB != "ask":
        while await rt.recover() or (
            VERB != "recover" and not [1 async for one in rt.events("r") if one.what == "told"]
        ):
            await asyncio.sleep(0.05)
    else:
        with contextlib.suppress(Held):
            async with rt.run("r", recover="wait"):
                await awire(cents=1)
    await rt.close()


if __name__ == "__main__":
    blocking() if COLOUR == "blocking" else asyncio.run(on_a_loop())
