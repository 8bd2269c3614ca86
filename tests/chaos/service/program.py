"""The program that ``amends serve`` serves: its tools act at the bank, and its process dies where it is told to."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from amends import Absent, Happened, NoEffect, Runtime, current_call, tool
from amends.serve.service import Service
from amends.stores import store_for
from tests.chaos.points import MortalStore
from tests.chaos.service.bank import SETTLE_S
from tests.chaos.service.fate import Fate
from tests.chaos.service.speech import Speaker

LEASE_S = 2.0
FATE = Fate.of("server")
BANK = Speaker(os.environ["AMENDS_CHAOS_BANK"], Fate(None, "server"))


def _at_bank(what: str, tool: str, order: str) -> Any:
    said = {"order": order, "tool": tool, "key": current_call().key, "sent": time.time()}
    step = f"{'refund' if what == 'undo' else tool} effect" if what != "find" else ""
    if step:
        FATE.passing(f"before {step}")
    status, row = BANK.once("", f"/{what}", said)
    if step:
        FATE.passing(f"after {step}")
    if status != 200:
        raise NoEffect("the bank refused it as too late")
    return row


@tool(key="order")
async def charge(order: str, cents: int) -> str:
    """Charge an order."""
    row = await asyncio.to_thread(_at_bank, "do", "charge", order)
    return str(row["id"])


@charge.compensate(idempotent=True)
def refund(order: str) -> None:
    """Refund it."""
    _at_bank("undo", "charge", order)


@charge.probe(settle=SETTLE_S)
def find_charge(order: str) -> Any:
    """Look into the books."""
    row = _at_bank("find", "charge", order)
    return Happened(row["id"]) if row["found"] else Absent()


@tool(key="order")
def pay(order: str, cents: int) -> str:
    """Pay for an order; the client does it itself."""
    raise NoEffect("only clients pay")


@pay.compensate(idempotent=True)
def pay_back(order: str) -> None:
    """Pay it back."""
    _at_bank("undo", "pay", order)


@pay.probe(settle=SETTLE_S)
def find_payment(order: str) -> Any:
    """Look into the books."""
    row = _at_bank("find", "pay", order)
    return Happened(row["id"]) if row["found"] else Absent()


def _mortal(handle: Any) -> Any:
    """Return the application's entrance with two more points: before a request, and before its answer is sent."""

    async def __call__(self: Service, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        step = headers.get(b"x-step", b"").decode()
        if not step:
            await handle(self, scope, receive, send)
            return
        FATE.passing(f"before request {step}")
        started: list[Any] = []

        async def dying(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
                return
            # An empty answer to a long poll is not a step.
            if started and not (step == "take" and b'"work":null' in message.get("body", b"")):
                FATE.passing(f"after request {step}")
            for one in started:
                await send(one)
            started.clear()
            await send(message)

        await handle(self, scope, receive, dying)

    return __call__


Service.__call__ = _mortal(Service.__call__)  # type: ignore[method-assign]


class Ledger(MortalStore):
    """A mortal store whose schema ``amends serve`` can look at."""

    @property
    def dialect(self) -> Any:
        """As the store has it."""
        return self.inner.dialect  # type: ignore[attr-defined]

    def schema(self) -> Any:
        """As the store has it."""
        return self.inner.schema()  # type: ignore[attr-defined]

    def migrate(self) -> Any:
        """As the store does."""
        return self.inner.migrate()  # type: ignore[attr-defined]


URL = os.environ["AMENDS_CHAOS_URL"]
STORE = Ledger(URL, lambda _: store_for(URL), FATE)  # type: ignore[arg-type]
rt = Runtime(store=STORE, tools=[charge, pay], lease=LEASE_S, wait=5.0)
