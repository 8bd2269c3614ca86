"""The flows of the simulation, each a small program against tools whose destinations behave in a declared way."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from amends.budgets import Budget
from amends.engine.keys import provider_key
from amends.errors import Busy, InDoubt, Refused, RunBlocked, UsageError
from amends.host.host import Host
from amends.ledger.operations import ReadRun, Tree
from amends.ledger.world import RunTogether, Sleep
from amends.model import Absent, Happened, Probed, Retry
from amends.people import doubts, runs
from amends.people import rollback as rollback_plans
from amends.testing.simulation import NOBODY, Inside, SimulatedRun
from amends.testing.world import Traits, World, result_of
from amends.tools.tool import tool

SETTLE_S = 20.0


class Here:
    """The world of the schedule that runs now: tools are declared once, worlds come and go."""

    world: World


@dataclass(frozen=True, slots=True)
class Variant:
    """How a tool and its destination behave."""

    probe: bool = False
    repeat: str = ""  # "", "idempotent", "window"
    twin: str = ""  # "", "absent_ok", "wins"
    comp_idempotent: bool = False

    def __str__(self) -> str:
        parts = ["probe" * self.probe, self.repeat, self.twin, "comp_idem" * self.comp_idempotent]
        return "+".join(part for part in parts if part) or "plain"


VARIANTS = tuple(
    Variant(probe, repeat, twin, comp)
    for probe in (False, True)
    for repeat in ("", "idempotent", "window")
    for twin in ("", "absent_ok", "wins")
    for comp in (False, True)
)
MAIN_VARIANTS = (Variant(), Variant(probe=True), Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True))
"""Those whose single faults ``make test`` plays a share of: the plainest, one that can be asked, one that forgives."""


PLAIN = Variant()
EMPTY: Mapping[str, Any] = MappingProxyType({})


def make(
    name: str,
    kind: str = "compensatable",
    variant: Variant = PLAIN,
    *,
    twin: Mapping[str, Any] = EMPTY,
    flow: Callable[[], Coroutine[Any, Any, str]] | None = None,
    **options: Any,
) -> Any:
    """A tool of the simulation; ``twin``: other options of its compensation, ``flow``: a body that asks for calls."""

    def body(n: int = 0, word: str = "") -> Any:
        if flow is not None:
            return flow()
        return "seen" if kind == "read" else Here.world.act()

    def undo() -> None:
        Here.world.undo()

    def ask() -> Probed[str]:
        return Here.world.probe()

    body.is_flow = flow is not None  # type: ignore[attr-defined]
    body.__name__, undo.__name__, ask.__name__ = name, f"undo_{name}", f"probe_{name}"
    repeats: dict[str, bool | str] = {"": False, "idempotent": True, "window": "24h"}
    idempotent = repeats[variant.repeat]
    made = tool(name=name, kind=kind, idempotent=idempotent, **options)(body)  # type: ignore[call-overload]
    if kind == "compensatable":
        made.compensate(
            idempotent=variant.comp_idempotent,
            absent_ok=variant.twin == "absent_ok",
            wins=variant.twin == "wins",
            **{"retry": Retry(attempts=3, delay=0.1, jitter=0.0), **twin},
        )(undo)
    if variant.probe:
        made.probe(settle=SETTLE_S)(ask)
    return made


def traits(variant: Variant) -> Traits:
    return Traits(
        dedups=bool(variant.repeat),
        comp_dedups=variant.comp_idempotent,
        wins=variant.twin == "wins",
        tolerant=variant.twin != "",
        settle=SETTLE_S,
    )


@dataclass(slots=True)
class Scenario:
    """A program, its tools, and what is scripted to go wrong in it besides the schedule's faults."""

    name: str
    program: Callable[[Inside], Coroutine[Any, Any, Any]]
    tools: list[Any]
    traits: dict[str, Traits]
    script: dict[str, list[str]] = field(default_factory=dict)
    unknown_probes: int = 0
    broken_probes: int = 0
    policy: str = "rollback"
    second: Callable[[Inside], Coroutine[Any, Any, Any]] | None = None
    """Another process at the same ledger, raced with the first."""
    third: Callable[[Inside], Coroutine[Any, Any, Any]] | None = None
    """One more; where there is one, all of them are always raced."""
    sweeper: Callable[[Inside], Coroutine[Any, Any, Any]] | None = None
    """Comes by whenever the ledger is at rest: before a zombie wakes, before a person speaks."""
    asks: tuple[str, ...] = ()
    unrepeated: tuple[str, ...] = ()
    """Tools that never start without somebody's yes."""
    budgets: tuple[Budget, ...] = ()
    sets: tuple[str, ...] = ()
    """Tools that set the value of the world."""
    host: Host | None = None

    def prepared(self) -> Host:
        if self.host is None:
            self.host = Host(
                {"url": "memory:", "wait": 30.0, "lease": 30.0, "budgets": self.budgets}, self.tools, alone=True
            )
        self.host.notices.hook = (lambda approval: Here.world.hear(approval)) if self.asks else None
        return self.host


async def do(run: SimulatedRun, a_tool: Any, **args: Any) -> Any:
    """Call, and hold what was answered against the world."""
    value = await run.call(a_tool, **args)
    if value is not None and not isinstance(value, dict):
        Here.world.told(run.session.uid, a_tool.name, value)
    return value


class Fails(Exception):
    """The agent's own failure."""


class Stopped(BaseException):
    """The agent's process is asked to end, as by Ctrl-C."""


def _rest(*names: str, variant: Variant) -> dict[str, Traits]:
    return {name: traits(variant) for name in names}


MAIL = Variant(repeat="idempotent")


def f1_call(v: Variant, policy: str = "rollback") -> Scenario:
    a = make("a", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover=policy, agent="agent") as run:
            await do(run, a, n=1)
            await do(run, a, n=1)

    return Scenario("F1 call", program, [a], _rest("a", variant=v), policy=policy)


def f2_retry(v: Variant) -> Scenario:
    a = make("a", variant=v, retry=Retry(attempts=3, delay=0.1, jitter=0.0))

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)

    return Scenario("F2 retry", program, [a], _rest("a", variant=v), script={"a": ["raise", "no effect"]})


def f3_probe_unknown(v: Variant) -> Scenario:
    a = make("a", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)

    lost = {"a": ["answer lost"]}
    return Scenario("F3 lost answer", program, [a], _rest("a", variant=v), script=lost, unknown_probes=2)


def f3b_broken_probe(v: Variant, policy: str) -> Scenario:
    """The probe has a bug for a long time: a person is asked, and it goes on when the bug is mended."""
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover=policy, agent="agent") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)

    return Scenario(
        f"F3b broken probe, {policy}", program, [a, b], _rest("a", "b", variant=v), script={"b": ["answer lost"]},
        broken_probes=40, policy=policy,
    )  # fmt: skip


def f4_request_lost(v: Variant) -> Scenario:
    a = make("a", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)

    return Scenario("F4 lost request", program, [a], _rest("a", variant=v), script={"a": ["request lost"]})


def f5_read(v: Variant) -> Scenario:
    look, a = make("look", "read"), make("a", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await run.call(look, n=1)
            await do(run, a, n=1)
            await run.call(look, n=1)

    return Scenario("F5 read", program, [look, a], _rest("a", variant=v))


def f5b_resumed_reads(v: Variant) -> Scenario:
    """An agent decides by what it reads, and its own effect changes that: started again, it must decide the same."""

    def seen() -> int:
        return sum(Here.world.stands(one.call_id) for one in Here.world.landings)

    look, a, b = tool(name="look", kind="read")(seen), make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover="resume", agent="agent") as run:
            read = await run.call(look)
            Here.world.read.append((run.session.uid, 0, read))
            await do(run, a if read == 0 else b, n=1)
            if not run.session.resumed:
                raise Stopped

    return Scenario("F5b resumed reads", program, [look, a, b], _rest("a", "b", variant=v), policy="resume")


def f6_rollback(v: Variant) -> Scenario:
    tools = [make(name, variant=v) for name in "abc"]

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            for one in tools:
                await do(run, one, n=1)
            raise Fails("on purpose")

    return Scenario("F6 rollback", program, tools, _rest("a", "b", "c", variant=v))


def f7_compensation(v: Variant, how: str) -> Scenario:
    tools = [make(name, variant=v) for name in "abc"]
    modes = {"once": ["raise"], "always": ["raise"] * 9, "lost": ["answer lost"], "unsent": ["request lost"]}

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            for one in tools:
                await do(run, one, n=1)
            raise Fails("on purpose")

    return Scenario(
        f"F7 compensation {how}", program, tools, _rest("a", "b", "c", variant=v), script={"undo_b": modes[how]}
    )


def f7p_probed_compensation(v: Variant, how: str) -> Scenario:
    def ask() -> Probed[None]:
        return Here.world.probe_undo()

    tools = [make(name, variant=v, twin={"probe": ask}) for name in "abc"]

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            for one in tools:
                await do(run, one, n=1)
            raise Fails("on purpose")

    return Scenario(f"F7p probed, {how}", program, tools, _rest(*"abc", variant=v), script={"undo_b": [how]})


def f8_group(v: Variant) -> Scenario:
    tools = [make(name, variant=v) for name in "abcd"]

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await run.execute(
                [
                    {"tool": "a", "args": {"n": 1}},
                    [{"tool": "b", "args": {}}, {"tool": "c", "args": {}}, {"tool": "d", "args": {"n": 2}}],
                ]
            )

    script = {"c": ["raise"], "d": ["late" if v.probe else "ok"]}
    return Scenario("F8 group", program, tools, _rest(*"abcd", variant=v), script=script)


def f8b_side_by_side(v: Variant) -> Scenario:
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            ends = await RunTogether([do(run, a, n=1), do(run, b, n=1)])
            for end in ends:
                if isinstance(end, Exception):
                    raise end
            raise Fails("after both")

    return Scenario("F8b side by side", program, [a, b], _rest("a", "b", variant=v))


def f8c_leaves_early(v: Variant) -> Scenario:
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        run = await inside.open("r")

        async def block() -> None:
            try:
                await do(run, a, n=1)
                raise Fails("while the other is still at it")
            except Exception as error:
                await run.leave(error)
                raise

        ends = await RunTogether([do(run, b, n=1), block()])
        inside.process.leases.pop(run.session.root, None)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    return Scenario("F8c leaves early", program, [a, b], _rest("a", "b", variant=v))


def f8d_waits_early(v: Variant) -> Scenario:
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        run = await inside.open("r")

        async def block() -> None:
            await do(run, a, n=1)
            waits = Busy("not yet", owner="somebody", retry_after=1.0)
            await run.leave(waits)
            raise waits

        await RunTogether([do(run, b, n=1), block()])
        inside.process.leases.pop(run.session.root, None)

    return Scenario("F8d waits early", program, [a, b], _rest("a", "b", variant=v))


def f9b_beside_the_pivot(v: Variant) -> Scenario:
    a, p = make("a", variant=v), make("p", "pivot", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            ends = await RunTogether([do(run, p, n=1), do(run, a, n=1)])
            for end in ends:
                if isinstance(end, Exception) and not isinstance(end, Refused):
                    raise end

    return Scenario("F9b beside the pivot", program, [a, p], _rest("a", "p", variant=v))


def f9_pivot(v: Variant, policy: str = "rollback") -> Scenario:
    a, p = make("a", variant=v), make("p", "pivot", variant=v, after=["a"])
    m = make("m", "retriable", variant=MAIL)

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover=policy, agent="agent") as run:
            await do(run, a, n=1)
            await run.call(m, n=1)
            await do(run, p, n=1)
            await run.call(m, n=2)

    rest = {**_rest("a", "p", variant=v), "m": traits(MAIL)}
    return Scenario("F9 staged, pivot", program, [a, p, m], rest, policy=policy)


def f10_outbox(v: Variant) -> Scenario:
    a, m = make("a", variant=v), make("m", "retriable", variant=MAIL)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await run.call(m, n=1)
            await do(run, a, n=1)
            await run.call(m, n=2)

    return Scenario("F10 outbox", program, [a, m], {**_rest("a", variant=v), "m": traits(MAIL)})


def f11_at_commit(v: Variant, how: str) -> Scenario:
    a, p = make("a", variant=v), make("p", "pivot", variant=v, at="commit", after=["a"])
    m = make("m", "retriable", variant=MAIL)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await run.call(p, n=1)
            await run.call(m, n=1)

    rest = {**_rest("a", "p", variant=v), "m": traits(MAIL)}
    return Scenario(f"F11 at commit, {how}", program, [a, p, m], rest, script={"p": [how]})


def f12_outage(v: Variant) -> Scenario:
    a, p = make("a", variant=v), make("p", "pivot", variant=v)
    m = make("m", "retriable", variant=MAIL, retry=Retry(attempts=50, delay=60.0, jitter=0.0))

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, p, n=1)
            await run.call(m, n=1)
            await run.call(m, n=2)

    rest = {**_rest("a", "p", variant=v), "m": traits(MAIL)}
    return Scenario("F12 outage", program, [a, p, m], rest, script={"m": ["raise", "request lost", "raise"]})


def f13_raises_after_pivot(v: Variant, interrupted: str = "block") -> Scenario:
    a, p, m = make("a", variant=v), make("p", "pivot", variant=v), make("m", "retriable", variant=MAIL)

    async def program(inside: Inside) -> None:
        async with inside.run("r", interrupted=interrupted) as run:
            await do(run, a, n=1)
            await run.call(m, n=1)
            await do(run, p, n=1)
            Here.world.interrupted.add(run.session.uid)
            raise Fails("after the pivot")

    name = "F13b commits after pivot" if interrupted == "commit" else "F13 raises after pivot"
    return Scenario(name, program, [a, p, m], {**_rest("a", "p", variant=v), "m": traits(MAIL)})


def f14_child(v: Variant, pivot: bool) -> Scenario:
    a, b, p = make("a", variant=v), make("b", variant=v), make("p", "pivot", variant=v)
    m = make("m", "retriable", variant=MAIL)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            child = await run.child("inner")
            if not child.over:
                await do(child, b, n=1)
                await child.call(m, n=1)
                if pivot:
                    await do(child, p, n=1)
                await child.leave()
            raise Fails("the parent")

    rest = {**_rest("a", "b", "p", variant=v), "m": traits(MAIL)}
    return Scenario(f"F14 child{' with pivot' * pivot}", program, [a, b, p, m], rest)


def f14d_passed_over(v: Variant) -> Scenario:
    """A child that cannot be taken back, for what stands in it is a pivot inside of it; the program goes on over it."""
    a, p = make("a", variant=v), make("p", "pivot", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            child = await run.child("inner")
            if child.over:
                return
            deep = await child.child("deep")
            if not deep.over:
                await do(deep, p, n=1)
                await deep.leave()
            with suppress(RunBlocked):
                await child.leave(Fails("the child"))

    return Scenario("F14d child passed over", program, [a, p], _rest("a", "p", variant=v))


def f14e_only_a_lost_pivot(v: Variant) -> Scenario:
    """A run whose only call is a child's pivot, which is found out not to have happened while the run is taken back."""
    p = make("p", "pivot", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            child = await run.child("inner")
            if not child.over:
                with suppress(InDoubt):
                    await do(child, p, n=1)
            raise Fails("the parent")

    lost = {"p": ["request lost"]}
    return Scenario("F14e only a lost pivot", program, [p], _rest("p", variant=v), script=lost, unknown_probes=2)


def f15_child_left_open(v: Variant) -> Scenario:
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            child = await run.child("inner")
            if not child.over:
                await do(child, b, n=1)

    return Scenario("F15 child left open", program, [a, b], _rest("a", "b", variant=v))


def f16_child_again(v: Variant) -> Scenario:
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            for attempt in range(2):
                child = await run.child("inner")
                if child.over:
                    continue
                try:
                    await do(child, b, n=1)
                    if attempt == 0:
                        raise Fails("the child")
                except Fails as error:
                    await child.leave(error)
                else:
                    await child.leave()

    return Scenario("F16 child again", program, [a, b], _rest("a", "b", variant=v))


def f16c_asked_again(v: Variant) -> Scenario:
    """Everything is asked for twice; what a child took back is asked for once more by its parent."""
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            for _ in range(2):
                await do(run, a, n=1)
            child = await run.child("inner")
            if not child.over:
                for _ in range(2):
                    await do(child, b, n=1)
                await child.leave(Fails("the child"))
            for _ in range(2):
                await do(run, b, n=1)
            await do(run, a, n=1)

    return Scenario("F16c asked again", program, [a, b], _rest("a", "b", variant=v))


def f16b_child_slowly_back(v: Variant) -> Scenario:
    slow = Retry(attempts=3, delay=100.0, jitter=0.0)
    a, b = make("a", variant=v), make("b", variant=v, twin={"retry": slow})

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            child = await run.child("inner")
            if child.over:
                return
            await do(child, b, n=1)
            await child.leave(Fails("the child"))

    return Scenario("F16b child slowly back", program, [a, b], _rest("a", "b", variant=v), script={"undo_b": ["raise"]})


def f17_resume(v: Variant) -> Scenario:
    a, b, p = make("a", variant=v), make("b", variant=v), make("p", "pivot", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover="resume", agent="agent") as run:
            await do(run, a, n=1)
            try:
                await do(run, b, n=1)
            except Exception:
                await do(run, b, n=1)
            await do(run, p, n=1)

    rest = _rest("a", "b", "p", variant=v)
    return Scenario("F17 resume", program, [a, b, p], rest, script={"b": ["no effect"]}, policy="resume")


def f17c_doubt_after_resume(v: Variant, inside_child: bool) -> Scenario:
    """Recovery starts the agent again, and that agent loses an answer for longer than recovery waits."""
    a, b, c = make("a", variant=v), make("b", variant=v), make("c", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover="resume", agent="agent") as run:
            await do(run, a, n=1)
            if not run.session.resumed:
                raise Stopped
            await (_in_child(run, b) if inside_child else do(run, b, n=1))
            await do(run, c, n=1)

    async def _in_child(run: SimulatedRun, one: Any) -> None:
        inner = await run.child("c")
        try:
            await do(inner, one, n=1)
        except Exception as error:
            await inner.leave(error)
            raise
        await inner.leave()

    rest = _rest("a", "b", "c", variant=v)
    name = f"F17c doubt after a resume{', in a child' if inside_child else ''}"
    return Scenario(name, program, [a, b, c], rest, script={"b": ["answer lost"]}, unknown_probes=9, policy="resume")


def f18_reworded(v: Variant) -> Scenario:
    a = make("a", variant=v)
    said = iter(())

    async def program(inside: Inside) -> None:
        async with inside.run("r", recover="resume", agent="agent") as run:
            word = "first" if not run.session.resumed else "reworded"
            await do(run, a, n=1, word=word)

    del said
    return Scenario("F18 reworded", program, [a], _rest("a", variant=v), policy="resume")


def f21_twins(v: Variant) -> Scenario:
    a, b = make("a", variant=v), make("b", variant=v, key="n")

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await run.execute([[{"tool": "a", "args": {"n": 1}}, {"tool": "a", "args": {"n": 1}}]])
            await do(run, b, n=1, word="x")
            try:
                await do(run, b, n=1, word="y")
                Here.world.merged.append("b(1, y) was answered with the result of b(1, x)")
            except Refused:  # told to the model
                await do(run, b, n=1, word="x")

    return Scenario("F21 twins", program, [a, b], _rest("a", "b", variant=v))


def f22_ledger_scope(v: Variant, first: str) -> Scenario:
    a = make("a", variant=v, scope="ledger", key="n")

    async def program(inside: Inside) -> None:
        async with inside.run("r1") as run:
            await do(run, a, n=1)
            if first == "rolls back":
                raise Fails("r1")

    async def second(inside: Inside) -> None:
        async with inside.run("r2") as run:
            await do(run, a, n=1)

    return Scenario(f"F22 ledger scope, {first}", program, [a], _rest("a", variant=v), second=second)


def f23_person(v: Variant) -> Scenario:
    a, b = make("a", variant=v), make("b", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)

    async def second(inside: Inside) -> None:
        try:
            await rollback_plans.rollback(inside.host, NOBODY, "r", by="anna", why="stop")
        except Exception:
            return

    return Scenario("F23 person rolls back", program, [a, b], _rest("a", "b", variant=v), second=second)


def f23b_person_beside(v: Variant, verb: str) -> Scenario:
    a, b, p = make("a", variant=v), make("b", variant=v), make("p", "pivot", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)
            await do(run, p, n=1)

    async def second(inside: Inside) -> None:
        for _ in range(12):
            await Sleep(7.0)
            tree = await ReadRun("", "r")
            if tree is not None:
                await _say(inside.host, tree, verb)

    lost = {"b": ["answer lost"], "p": ["request lost"], "undo_a": ["answer lost"]}
    return Scenario(f"F23b person {verb}", program, [a, b, p], _rest(*"abp", variant=v), script=lost, second=second)


async def _say(host: Host, tree: Tree, verb: str) -> None:
    """A person who does not know what the owner is at says the truth, or that it is enough."""
    world = Here.world
    for row in tree.calls:
        with suppress(UsageError):
            if verb == "abandons":
                await runs.abandon(host, NOBODY, tree.run.id, by="anna", why="enough")
            elif row.state == "in_doubt" and not any(one.call_id == row.id for _, one in world.later):
                there = Happened(result_of(provider_key(row))) if world.stands(row.id) else Absent()
                await doubts.resolve(host, NOBODY, row.id, there, by="anna", why="looked")
            elif row.state == "compensation_in_doubt":
                undone = Absent() if world.stands(row.id) else Happened(None)
                await doubts.resolve(host, NOBODY, row.id, undone, by="anna", why="looked")


def f17b_opened_again(v: Variant, ends: str) -> Scenario:
    a, b, m = make("a", variant=v), make("b", variant=v), make("m", "retriable", variant=MAIL)

    async def program(inside: Inside) -> None:
        async with inside.run("r", wait=100.0) as run:
            await do(run, a, n=1)
            await run.call(m, n=1)
            await do(run, b, n=1)
            if ends == "raises" and not run.session.resumed and run.session.generation == 1:
                raise Fails("once")

    rest = {**_rest("a", "b", variant=v), "m": traits(MAIL)}
    lost = {"b": ["answer lost"], "undo_a": ["raise"] * 4}
    return Scenario(f"F17b opened again, {ends}", program, [a, b, m], rest, script=lost, second=program)


def f10b_two_openers(v: Variant) -> Scenario:
    a = make("a", variant=v)

    async def program(inside: Inside) -> None:
        async with inside.run("r", wait=5.0) as run:
            await do(run, a, n=1)

    return Scenario("X10 two openers", program, [a], _rest("a", variant=v), second=program)


def all_scenarios(v: Variant) -> list[Scenario]:
    """Every flow of the core with this variant of its tools."""
    from tests.sim.approving import approving_scenarios
    from tests.sim.checkpointing import checkpoint_scenarios
    from tests.sim.clocks import clock_scenarios
    from tests.sim.completing import completing_scenarios
    from tests.sim.contexts import context_scenarios
    from tests.sim.delegating import delegating_scenarios
    from tests.sim.desk import desk_scenarios
    from tests.sim.erasing import erasing_scenarios
    from tests.sim.escalating import escalating_scenarios
    from tests.sim.forking import fork_scenarios
    from tests.sim.halting import halt_scenarios
    from tests.sim.handled import handled_scenarios
    from tests.sim.locking import lock_scenarios
    from tests.sim.losses import loss_scenarios
    from tests.sim.nested import nested_scenarios
    from tests.sim.permitting import permit_scenarios
    from tests.sim.remote import remote_scenarios
    from tests.sim.replaying import replay_scenarios
    from tests.sim.rules import rule_scenarios
    from tests.sim.setting import setting_scenarios
    from tests.sim.spending import spending_scenarios
    from tests.sim.stopping import stopping_scenarios
    from tests.sim.sweeping import sweeping_scenarios
    from tests.sim.telling import telling_scenarios
    from tests.sim.tokens import token_scenarios
    from tests.sim.undoing import undo_scenarios
    from tests.sim.values import value_scenarios

    return [
        *(f1_call(v, policy) for policy in ("rollback", "resume", "wait")),
        f2_retry(v),
        f3_probe_unknown(v),
        *(f3b_broken_probe(v, policy) for policy in ("rollback", "resume")),
        f4_request_lost(v),
        f5_read(v),
        f5b_resumed_reads(v),
        f6_rollback(v),
        *(f7_compensation(v, how) for how in ("once", "always", "lost", "unsent")),
        *(f7p_probed_compensation(v, how) for how in ("answer lost", "request lost")),
        f8_group(v),
        f8d_waits_early(v),
        f8b_side_by_side(v),
        f8c_leaves_early(v),
        f9b_beside_the_pivot(v),
        *(f9_pivot(v, policy) for policy in ("rollback", "resume")),
        f10_outbox(v),
        *(f11_at_commit(v, how) for how in ("ok", "no effect", "answer lost", "request lost")),
        f12_outage(v),
        *(f13_raises_after_pivot(v, interrupted) for interrupted in ("block", "commit")),
        *(f14_child(v, pivot) for pivot in (False, True)),
        f14e_only_a_lost_pivot(v),
        f14d_passed_over(v),
        f15_child_left_open(v),
        f16_child_again(v),
        f16b_child_slowly_back(v),
        f16c_asked_again(v),
        f17_resume(v),
        *(f17c_doubt_after_resume(v, inside_child) for inside_child in (False, True)),
        *(f17b_opened_again(v, ends) for ends in ("raises", "commits")),
        f18_reworded(v),
        f21_twins(v),
        *(f22_ledger_scope(v, first) for first in ("commits", "rolls back")),
        f23_person(v),
        *(f23b_person_beside(v, verb) for verb in ("resolves", "abandons")),
        f10b_two_openers(v),
        *lock_scenarios(v),
        *spending_scenarios(v),
        *sweeping_scenarios(v),
        *desk_scenarios(v),
        *approving_scenarios(v),
        *fork_scenarios(v),
        *telling_scenarios(v),
        *escalating_scenarios(v),
        *checkpoint_scenarios(v),
        *replay_scenarios(v),
        *nested_scenarios(v),
        *loss_scenarios(v),
        *rule_scenarios(v),
        *clock_scenarios(v),
        *value_scenarios(v),
        *context_scenarios(v),
        *setting_scenarios(v),
        *halt_scenarios(v),
        *undo_scenarios(v),
        *delegating_scenarios(v),
        *permit_scenarios(v),
        *completing_scenarios(v),
        *stopping_scenarios(v),
        *handled_scenarios(v),
        *token_scenarios(v),
        *remote_scenarios(v),
        *erasing_scenarios(v),
    ]
