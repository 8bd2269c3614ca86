"""A desk to decide at: a ledger, a payment that needs a yes, and what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from amends import Approval, Runtime, tool
from amends.stores.memory import MemoryStore
from amends.testing.runtime import TestClock, TestRuntime
from tests.people.receiver import Receiver, receiving


@dataclass
class Shop:
    """Tools of every kind, each of which needs a yes where ``asks`` says so."""

    clock: TestClock = field(default_factory=TestClock)
    sent: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryStore(lambda: self.clock.wall)

    def tools(self, **asks: Any) -> list[Any]:
        sent, undone = self.sent, self.undone

        @tool(key="order", needs_approval=asks.get("charge", False))
        def charge(order: str, cents: int = 100) -> str:
            sent.append(f"charge {order} {cents}")
            return f"ch-{order}"

        @charge.compensate
        def refund(order: str) -> None:
            undone.append(f"charge {order}")

        @tool(needs_approval=asks.get("reserve", False))
        def reserve(item: str) -> str:
            sent.append(f"reserve {item}")
            return f"rs-{item}"

        @reserve.compensate
        def release(item: str) -> None:
            undone.append(f"reserve {item}")

        @tool(kind="pivot", needs_approval=asks.get("wire", False))
        def wire(to: str, cents: int = 100) -> str:
            sent.append(f"wire {to} {cents}")
            return f"wr-{to}"

        @tool(kind="pivot", at="commit", needs_approval=asks.get("pay", False))
        def pay(to: str) -> str:
            sent.append(f"pay {to}")
            return f"py-{to}"

        @tool(kind="retriable", idempotent=True, needs_approval=asks.get("mail", False))
        def mail(to: str) -> None:
            sent.append(f"mail {to}")

        @tool(kind="read", needs_approval=asks.get("look", False))
        def look(what: str) -> str:
            sent.append(f"look {what}")
            return what.upper()

        return [charge, reserve, wire, pay, mail, look]

    def runtime(self, *, asks: dict[str, Any] | None = None, **options: Any) -> TestRuntime:
        given = {"principal": "bot", **options}
        return TestRuntime(store=self.store, clock=self.clock, tools=self.tools(**(asks or {})), **given)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as here:
        yield here


def yes(rt: Runtime, approval: Approval | None = None, by: str = "anna", **more: Any) -> Approval:
    """Say yes to it, or to the one that waits."""
    if approval is None:
        [approval] = rt.approvals()
    return rt.approve(approval.id, digest=approval.digest, by=by, **more)


Decide = Callable[[Runtime], Any]
