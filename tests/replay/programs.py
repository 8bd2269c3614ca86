"""Programs made by chance, over tools of every kind, that write down everything they are told.

A program runs live, is perhaps killed, held and run again, and is then replayed: what it was told in its last
execution it must be told again, word for word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from amends import Happened, NoEffect, Retry, Staged, ToolCall, tool
from amends.errors import Diverged, Error, Held, ReplayDenied, RolledBack, ToolFailed
from amends.ledger.flow import Flow, Op
from amends.ledger.world import RunTogether
from amends.testing.runtime import TestDriver, TestRuntime
from amends.tools.rules import Rule

Act = tuple[str, Any]
"""One thing that a program does."""
DEPTH_MAX = 2
INNER = ("child", "failing child", "nameless child", "given child", "undone child")
"""Acts that have acts inside."""
ACTS = (
    *("pay", "pay", "look", "look", "wire", "mail", "ask", "ask", "plan", "child", "failing child", "once", "begin"),
    *("lost", "now", "uuid", "die", "conflict", "forbidden", "stranger", "outer", "probed", "approved", "hand read"),
)


WILD = (
    *ACTS,
    *("keep mail", "see", "deep", "deep", "nameless child", "given child", "undone child", "turn"),
    *("group", "bag", "card", "cash", "state"),
)
"""What the wild programs do besides."""


@dataclass(frozen=True)
class Card:
    """One way to be paid."""

    number: str


@dataclass(frozen=True)
class Cash:
    """Another one."""

    coins: int


class Declined(Exception):
    """A tool's own error."""


class Odd(Exception):
    """One that cannot be made of a message alone."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        return f"{self.args[1]} ({self.args[0]})"


@dataclass
class World:
    """Outside, with a die of its own: nothing in it comes out the same twice."""

    chance: Random
    started: list[str] = field(default_factory=list)
    count: int = 0
    crash: Callable[[], None] | None = None
    """Kills the process, once."""
    dies_refunding: bool = False

    def act(self, what: str, *, fails: float = 0.2) -> str:
        self.started.append(what)
        self.count += 1
        luck = self.chance.random()
        if luck < fails:
            errors = (Declined(f"no {what}"), KeyError(what), ValueError("bad"), Odd(7, what), NoEffect("nothing"))
            raise self.chance.choice(errors)
        return f"{what}#{self.count}"


def tools_of(world: World) -> list[Any]:
    """One of every kind."""

    @tool
    def pay(n: int) -> str:
        return world.act(f"pay {n}")

    @pay.compensate
    def refund() -> None:
        world.started.append("refund")

    @tool(key="order", ignore=("note",))
    def charge(order: int, cents: int = 1, note: str = "") -> str:
        return world.act(f"charge {order}", fails=0.1)

    @charge.compensate
    def uncharge() -> None:
        world.started.append("uncharge")
        if world.crash is not None and world.dies_refunding:
            crash, world.crash = world.crash, None
            crash()

    @tool(kind="read")
    def look(n: int) -> str:
        return world.act(f"look {n}")

    @tool(kind="pivot")
    def wire(n: int) -> str:
        return world.act(f"wire {n}")

    @tool(kind="retriable", idempotent=True, retry=Retry(attempts=50, delay=0.01))
    def mail(n: int) -> str:
        return world.act(f"mail {n}", fails=0.0)

    @tool
    def lose(n: int) -> str:
        world.act(f"lose {n}", fails=0.0)
        raise TimeoutError("no answer")

    @lose.compensate(absent_ok=True)
    def find_it() -> None:
        world.started.append("find it")

    @tool
    def probed(n: int) -> str:
        world.act(f"probed {n}", fails=0.0)
        raise TimeoutError("no answer")

    @probed.compensate
    def unprobed() -> None:
        world.started.append("unprobed")

    @probed.probe(settle=1)
    def find_probed(n: int) -> Happened[str]:
        return Happened(f"found {n}")

    @tool(needs_approval=True)
    def approved(n: int) -> str:
        return world.act(f"approved {n}", fails=0.0)

    @approved.compensate
    def unapproved() -> None:
        world.started.append("unapproved")

    @tool
    def forbidden(n: int) -> str:
        return world.act(f"forbidden {n}")

    @forbidden.compensate
    def unforbidden() -> None:
        world.started.append("unforbidden")

    @tool
    def outer(n: int) -> str:
        return f"outer {look(n=n)} {charge(order=n)}"

    @outer.compensate
    def unouter() -> None:
        world.started.append("unouter")

    return [
        pay,
        charge,
        look,
        wire,
        mail,
        lose,
        probed,
        approved,
        forbidden,
        outer,
        *_wild_tools(world, outer, pay, forbidden),
    ]


def _wild_tools(world: World, outer: Any, pay: Any, forbidden: Any) -> list[Any]:
    @tool
    def deep(n: int) -> str:
        try:
            first = outer(n=n)
        except (Declined, KeyError, ValueError, Odd) as error:
            first = type(error).__name__
        return f"deep {first} {pay(n=n)}"

    @deep.compensate
    def undeep() -> None:
        world.started.append("undeep")

    @tool
    def group(n: int) -> str:
        world.act(f"group {n}", fails=0.0)
        raise ExceptionGroup("several", [ValueError("bad"), KeyError(n)])

    @group.compensate
    def ungroup() -> None:
        world.started.append("ungroup")

    @tool
    def bag(items: list[int]) -> list[int]:
        items.append(world.count)
        world.act(f"bag {len(items)}")
        return items

    @bag.compensate
    def unbag() -> None:
        world.started.append("unbag")

    @tool
    def paid(by: str, n: int) -> Card | Cash:
        number = world.act(f"paid {by}")
        return Card(number) if by == "card" else Cash(n)

    @paid.compensate
    def unpaid() -> None:
        world.started.append("unpaid")

    @tool
    def meek(n: int) -> str:
        return f"meek {forbidden(n=n)}"

    @meek.compensate
    def unmeek() -> None:
        world.started.append("unmeek")

    return [deep, group, bag, paid, meek]


RULES = (Rule("forbidden", decision="refuse", why="never"), Rule("*stranger*", decision="allow"))


def program(chance: Random, depth: int = 0, *, of: tuple[str, ...] = ACTS) -> list[Act]:
    """What it does, in order. Small numbers, so that it often asks for the same thing twice."""
    acts: list[Act] = []
    for _ in range(chance.randrange(1, 9 if depth == 0 else 4)):
        what = chance.choice(of)
        inner = what in INNER
        if inner and depth == DEPTH_MAX:
            continue
        number = chance.randrange(3)
        acts.append((what, (number, program(chance, depth + 1, of=of)) if inner else number))
    return acts


class Player:
    """Runs a program in a run, and writes down what it is told."""

    def __init__(self, world: World, tools: list[Any]) -> None:
        self.world, self.tools = world, {one.name: one for one in tools}
        self.told: list[Any] = []
        self.kept: list[Staged] = []

    def play(self, run: Any, acts: list[Act]) -> list[Any]:
        """The whole program; a call that waits for a person ends it."""
        for what, more in acts:
            self._hear(lambda what=what, more=more: self._do(run, what, more))  # type: ignore[misc]
        return self.told

    def _hear(self, act: Callable[[], Any]) -> None:
        try:
            value = act()
        except (Held, Diverged, ReplayDenied):
            raise
        except Exception as error:
            if isinstance(error, Odd) or (isinstance(error, ToolFailed) and error.type_name.endswith("Odd")):
                self.told.append(("odd", error.message if isinstance(error, ToolFailed) else str(error)))
                return
            words = error.for_model() if isinstance(error, Error) and not isinstance(error, ToolFailed) else ""
            self.told.append(("error", type(error).__name__, str(error), words))
        else:
            self.told.append(_plain(value))

    def _do(self, run: Any, what: str, n: Any) -> Any:
        world, tools = self.world, self.tools
        match what:
            case "pay" | "look" | "wire" | "forbidden" | "outer" | "probed" | "approved" | "mail":
                return tools[what](n=n)
            case "deep" | "group" | "meek":
                return tools[what](n=n)
            case "lost":
                return tools["lose"](n=n)
            case "conflict":
                return [tools["charge"](order=n, note="x"), self._caught(lambda: tools["charge"](order=n, cents=2))]
            case "ask":
                told = run.answer(("pay", "look", "charge")[n % 3], {"order": n} if n % 3 == 2 else {"n": n})
                return (told.status, told.text)
            case "stranger":
                told = run.answer("a_stranger", {"n": n}, handler=lambda n: world.act(f"stranger {n}", fails=0.1))
                return (told.status, told.text)
            case "plan":
                group = [{"tool": "pay", "args": {"n": n + 10}}, {"tool": "look", "args": {"n": n}}]
                answers = run.execute([group, {"tool": "look", "args": {"n": n}}])
                return [(one.status, one.text) for one in answers]
            case "child" | "failing child" | "nameless child" | "given child" | "undone child":
                return self._child(run, n[0], n[1], what)
            case "turn":
                calls = [ToolCall("look", {"n": n}), ToolCall("pay", {"n": n + 10}), ToolCall("look", {"n": n + 1})]
                return [(one.status, one.text) for one in run.answer_all(calls)]
            case "bag":
                items = [n]
                return tools["bag"](items=items), items
            case "card" | "cash":
                return tools["paid"](by=what, n=n)
            case "state":
                return run.state
            case "once":
                return run.once(f"k{n}", lambda: world.act(f"once {n}", fails=0.1))
            case "begin" | "hand read":
                return self._by_hand(run, n, kind="read" if what == "hand read" else None)
            case "keep mail":
                self.kept.append(tools["mail"](n=n))
                return None
            case "see":
                return [_plain(one) for one in self.kept]
            case "crash while refunding":
                world.dies_refunding = True
                return None
            case "crash":
                crash, world.crash = world.crash, None
                return None if crash is None else crash()
            case "now":
                return run.now()
            case "uuid":
                return run.uuid()
            case _:
                return run.random().random()

    def _by_hand(self, run: Any, n: int, *, kind: str | None) -> Any:
        attempt = run.begin("looked" if kind else "pay", {"n": n + 20}, kind=kind)
        if attempt.replayed:
            return attempt.result
        value = self.world.act(f"by hand {n}", fails=0.0)
        attempt.succeed(value)
        return value

    def _child(self, run: Any, n: int, acts: list[Act], what: str) -> None:
        name = None if what in ("nameless child", "given child") else f"c{n}"
        given = {"n": n} if what == "given child" else None
        with contextlib.suppress(Declined, RolledBack), run.child(name, input=given) as inner:
            self.play(inner, acts)
            if what == "failing child":
                raise Declined("the child fails")
            if what == "undone child":
                inner.rollback("not wanted")

    def _caught(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Declined as error:
            return str(error)


def _plain(value: Any) -> Any:
    if isinstance(value, Staged):
        return ("staged", value.done, value.result if value.done else None)
    return repr(value)


class SeededDriver(TestDriver):
    """Runs the calls of a group one operation at a time, in an order that the seed decides, and without threads."""

    chance: Random

    def perform(self, op: Op[Any]) -> Any:
        """Perform one operation."""
        if isinstance(op, RunTogether) and not self.dead:
            return self._side_by_side(op.flows)
        return super().perform(op)

    def _side_by_side(self, flows: Any) -> list[Any]:
        ends: list[Any] = [None] * len(flows)
        steps = {place: _Step(flow, copy_context()) for place, flow in enumerate(flows)}
        try:
            while steps:
                place = self.chance.choice(list(steps))
                try:
                    steps[place].go_on(super().perform)
                except StopIteration as stop:
                    ends[place] = stop.value
                    del steps[place]
                except Exception as error:
                    ends[place] = error
                    del steps[place]
        finally:
            for flow in flows:
                flow.close()
        return ends


class _Step:
    """One flow of a group, and the answer that it goes on with."""

    def __init__(self, flow: Flow[Any], context: Context) -> None:
        self._flow, self._context = flow, context
        self._answer: Any = None
        self._error: Exception | None = None

    def go_on(self, perform: Callable[[Op[Any]], Any]) -> None:
        """Resume the flow, and perform the next operation that it asks for."""
        if self._error is not None:
            op = self._context.run(self._flow.throw, self._error)
        else:
            op = self._context.run(self._flow.send, self._answer)
        self._answer = self._error = None
        try:
            self._answer = self._context.run(perform, op)
        except Exception as error:
            self._error = error


class SeededRuntime(TestRuntime):
    """A runtime for which one seed decides everything: ids, and the order of what runs side by side."""

    def __init__(self, seed: int, **options: Any) -> None:
        self._chance = Random(f"order {seed}")
        super().__init__(**options)
        numbers = count(1)
        self._host.new_id = lambda prefix: f"{prefix}_{next(numbers):020x}"
        self._host.new_number = lambda: next(numbers)

    def _be_born(self) -> None:
        super()._be_born()
        driver = SeededDriver(self._host.hiding.kept, self._host.live, self._host.lease_s, self.clock, self._deaths)
        driver.chance = self._chance
        self._driver = self._test_driver = driver


def rt_for(world: World, seed: int) -> tuple[TestRuntime, list[Any]]:
    """Return a runtime over these tools, and the tools."""
    tools = tools_of(world)
    return SeededRuntime(seed, tools=tools, rules=RULES), tools
