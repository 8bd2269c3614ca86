"""A little shop behind HTTP: its tools, its tokens, and a client for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from amends import Absent, AsyncRuntime, Happened, NoEffect, Runtime, tool
from amends.errors import Unauthorized
from amends.serve import Limits, Service, Who, app

SECRET = "s" * 40
TOKENS = {
    "viewer": Who("vera", frozenset({"viewer"}), token="tok-viewer"),
    "agent": Who("bot", frozenset({"agent"}), agent="shopper", token="tok-agent"),
    "agent2": Who("bot2", frozenset({"agent"}), agent="packer", token="tok-agent2"),
    "agent-plain": Who("plain", frozenset({"agent"}), token="tok-plain"),
    "worker": Who("wim", frozenset({"worker"}), token="tok-worker"),
    "approver": Who("ana", frozenset({"approver"}), token="tok-approver"),
    "operator": Who("olga", frozenset({"operator"}), token="tok-operator"),
    "everywhere": Who("eve", frozenset({"operator"}), tenant=None, token="tok-everywhere"),
    **{
        f"other-{scope}": Who(f"other-{scope}", frozenset({scope}), tenant="other", token=f"tok-other-{scope}")
        for scope in ("viewer", "agent", "worker", "approver", "operator")
    },
}


def access(request: Any) -> Who:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind != "Bearer" or token not in TOKENS:
        raise Unauthorized("the request has no valid token", why="missing")
    return TOKENS[token]


class World:
    """What the tools did."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}
        self.mails: list[str] = []
        self.wires: list[str] = []


def tools_of(world: World) -> list[Any]:
    @tool(key="order")
    def charge(order: str, cents: int) -> str:
        if cents < 0:
            raise NoEffect("no negative amounts")
        world.charges[order] = world.charges.get(order, 0) + cents
        return f"ch_{order}"

    @charge.compensate
    def refund(order: str) -> None:
        world.charges.pop(order, None)

    @charge.probe(settle=0.1)
    def find_charge(order: str) -> Any:
        return Happened(f"ch_{order}") if order in world.charges else Absent()

    @tool(kind="pivot", needs_approval=True)
    def wire(order: str, cents: int) -> str:
        world.wires.append(order)
        return f"w_{order}"

    @tool(kind="retriable", idempotent=True)
    def mail(to: str) -> None:
        world.mails.append(to)

    @tool(kind="read")
    def stock(item: str) -> int:
        return len(item)

    return [charge, wire, mail, stock]


def shopper(run: Any) -> Any:
    """An agent that lives in the server."""
    if run.input == "fails":
        raise KeyError("no such order")
    return run.answer("charge", {"order": run.id, "cents": 5}).value


async def shopper_async(run: Any) -> Any:
    return (await run.answer("charge", {"order": run.id, "cents": 5})).value


def as_(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def served(
    url: str = "memory:",
    *,
    colour: type = Runtime,
    world: World | None = None,
    limits: Limits | None = None,
    **given: Any,
) -> Iterator[tuple[TestClient, Service, World]]:
    world = world or World()
    settings = {name: given.pop(name) for name in ("lease", "wait", "budgets", "rules") if name in given}
    agents = {"shopper": shopper} if colour is Runtime else {"shopper": shopper_async}
    rt: Runtime | AsyncRuntime = colour(
        url, tools=tools_of(world), agents=agents, **{"lease": 5.0, "wait": 2.0} | settings
    )
    service = app(rt, access=access, limits=limits, **{"secrets": SECRET} | given)
    try:
        with TestClient(service) as client:
            yield client, service, world
    finally:
        closed = rt.close()
        if closed is not None:
            asyncio.run(closed)
