"""F20: hold, suspend, decide, go on; approve, reject, expire, edit; in a group, before a pivot, in the outbox.

X15 is the person's process, raced with the agent's: what it says falls between any two operations of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from amends.errors import Error, Held, Refused, UsageError
from amends.host.host import Host
from amends.ledger.operations import ReadRun, SearchApprovals
from amends.ledger.rows import RequestWithCall
from amends.ledger.world import Sleep
from amends.people import approvals
from amends.states import RUN_FINAL
from amends.testing.simulation import NOBODY, Inside
from amends.tools.rules import Rule
from tests.sim.scenarios import MAIL, Scenario, Variant, do, make, traits

Program = Callable[[Inside], Coroutine[Any, Any, Any]]
VARIANTS = (
    Variant(),
    Variant(probe=True),
    Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True),
)
"""People do not care how a destination behaves: a few are enough."""
EXPIRES_S = 60.0
LOOKS_MAX = 14
ONE = (Rule("w", expires=EXPIRES_S, why="one"),)
TWO = (Rule("w", expires=EXPIRES_S, approvers=2, why="two"),)


async def told(wanted: Coroutine[Any, Any, Any]) -> None:
    """A model hears a no and goes on."""
    with suppress(Refused):
        await wanted


async def decide(host: Host, found: RequestWithCall, how: str) -> None:
    """One person's word; what comes too late, or counts for nothing, is their mistake."""
    row = found.approval
    with suppress(UsageError, Refused):
        match how:
            case "approves" | "changes its mind" | "stricter":
                for by in ("anna", "bob")[: row.needed]:
                    await approvals.approve(host, NOBODY, row.id, by=by, digest=row.digest)
            case "rejects":
                await approvals.reject(host, NOBODY, row.id, by="anna", reason="no")
            case "withdraws":
                await approvals.withdraw(host, NOBODY, row.id, by="anna", why="never mind")
            case "edits":
                if row.follows == "" and '"word":"edited"' not in found.call.args.replace(" ", ""):
                    await approvals.edit(host, NOBODY, row.id, {"n": 1, "word": "edited"}, by="anna", why="so")
                else:
                    for by in ("anna", "bob"):  # who wrote it tries first
                        with suppress(UsageError, Refused):
                            await approvals.approve(host, NOBODY, row.id, by=by, digest=row.digest)


def person(program: Program, how: str) -> Program:
    """Somebody who looks now and then and decides; then the caller comes back to see."""

    async def second(inside: Inside) -> None:
        inside.host.rules = ONE
        for _ in range(LOOKS_MAX):
            await Sleep(7.0)
            if how != "expires":
                for found in await SearchApprovals(None, ("pending",), None, 10):
                    await decide(inside.host, found, how)
            if how == "stricter":
                inside.host.rules = TWO
            tree = await ReadRun("", "r")
            if tree is not None and tree.run.state in RUN_FINAL:
                return
            if tree is not None and not tree.run.owner and tree.run.policy == "rollback":
                with suppress(Error):
                    await program(inside)

    return second


def f20(v: Variant, how: str, where: str, policy: str = "rollback") -> Scenario:
    kind = {"pivot": "pivot", "at commit": "pivot", "outbox": "retriable", "after": "retriable", "read": "read"}.get(
        where, "compensatable"
    )
    options: dict[str, Any] = {"at": "commit"} if where == "at commit" else {}
    if where == "alone":
        options["key"] = "n"
    w = make("w", kind, MAIL if kind == "retriable" else Variant() if kind == "read" else v, **options)
    a, b = make("a", variant=v), make("b", variant=v)
    p, m = make("p", "pivot", variant=v), make("m", "retriable", variant=MAIL)
    asked = 0

    async def program(inside: Inside) -> None:
        nonlocal asked
        async with inside.run("r", recover=policy, agent="agent") as run:
            asked += 1
            await do(run, a, n=1)
            word = "other" if how == "changes its mind" and asked > 1 else ""
            match where:
                case "group":
                    plan = [
                        {"tool": "a", "args": {"n": 2}},
                        {"tool": "w", "args": {"n": 1}},
                        {"tool": "w", "args": {"n": 2}},
                        {"tool": "b", "args": {"n": 2}},
                    ]
                    await told(run.execute([plan]))
                case "pivot" | "read" | "at commit":
                    await told(run.call(w, n=1))
                case "outbox":
                    await run.call(w, n=1)
                    await run.call(m, n=1)
                    await told(run.call(p, n=1))
                case "after":
                    await do(run, p, n=1)
                    await told(run.call(w, n=1))
                    await run.call(m, n=1)
                case _:
                    await told(do(run, w, n=1, word=word))
                    if how == "edits":
                        await told(do(run, w, n=1, word="edited"))
            if where not in ("pivot", "outbox", "after"):
                await do(run, b, n=1)

    async def start(inside: Inside) -> None:
        nonlocal asked
        asked = 0
        inside.host.rules = ONE
        await program(inside)

    tools = [w, a, b, p, m]
    rest = {name: traits(v) for name in ("a", "b", "p", "w")} | {"m": traits(MAIL)}
    if kind == "retriable":
        rest["w"] = traits(MAIL)
    scenario = Scenario(
        f"F20 {where}, {how}, {policy}", start, tools, rest, policy=policy, second=person(program, how),
        asks=("w",),
    )  # fmt: skip
    scenario.host = Host({"url": "memory:", "wait": 30.0, "lease": 30.0, "rules": ONE}, tools, alone=True)
    return scenario


def f20_too_late(v: Variant) -> Scenario:
    """Somebody says yes while the block goes on with other work, which takes longer than the yes lasts."""
    w, b = make("w", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        inside.host.rules = ONE
        async with inside.run("r") as run:
            with suppress(Held, Refused):
                await do(run, w, n=1)
            await Sleep(EXPIRES_S + 10.0)
            for n in range(2):
                await do(run, b, n=n)
            await told(do(run, w, n=1))

    async def second(inside: Inside) -> None:
        for _ in range(3):
            await Sleep(7.0)
            for found in await SearchApprovals(None, ("pending",), None, 10):
                await decide(inside.host, found, "approves")

    rest = {name: traits(v) for name in ("b", "w")}
    scenario = Scenario("F20 too late", program, [w, b], rest, second=second, asks=("w",))
    scenario.host = Host({"url": "memory:", "wait": 30.0, "lease": 30.0, "rules": ONE}, [w, b], alone=True)
    return scenario


HOWS = ("approves", "rejects", "expires", "edits", "withdraws", "stricter", "changes its mind")


def approving_scenarios(v: Variant) -> list[Scenario]:
    """Every way to decide, at every place a call can stand."""
    if v not in VARIANTS:
        return []
    return [
        *(f20(v, how, "alone") for how in HOWS),
        *(f20(v, how, "alone", "resume") for how in ("approves", "rejects", "expires")),
        *(f20(v, how, "group") for how in ("approves", "rejects", "expires")),
        *(f20(v, how, "pivot") for how in ("approves", "rejects", "expires", "stricter")),
        *(f20(v, how, "outbox") for how in ("approves", "rejects", "expires", "stricter")),
        *(f20(v, how, "after") for how in ("approves", "rejects", "expires", "withdraws")),
        *(f20(v, how, "at commit") for how in ("approves", "rejects", "expires")),
        *(f20(v, how, "read") for how in ("approves", "rejects")),
        f20_too_late(v),
    ]
