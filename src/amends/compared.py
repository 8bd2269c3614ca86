"""Two runs side by side: which call is the first that differs, and in what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias

from amends.canonical import canonical
from amends.errors import NotStorable
from amends.model import Call, RunInfo
from amends.record import dataclass, field
from amends.report import plain
from amends.visible import visible, visible_value

DIFFERENCES_MAX: Final = 50
"""Differences of one call that are named; the rest are more of the same."""
LINE_CHARS_MAX: Final = 100
ABSENT: Final = "(absent)"
How: TypeAlias = Literal["same", "shared", "changed", "left", "right"]
_MARKS: Final[Mapping[str, str]] = {"same": "=", "shared": "=", "changed": "≠", "left": "-", "right": "+"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One place of an argument, a result or an output where two runs do not say the same."""

    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{visible(self.path)}: {_told(self.left)} | {_told(self.right)}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A call of the left run beside the one of the right run that answers to it."""

    how: How
    """``shared``: one call for both, of which a fork only has the record; ``left``, ``right``: only there."""
    left: Call | None = None
    right: Call | None = None
    args: tuple[Difference, ...] = ()
    result: tuple[Difference, ...] = ()
    """Where its result, its error or its state differs."""
    costs: Mapping[str, tuple[Decimal, Decimal]] = field(default_factory=dict)

    @property
    def alike(self) -> bool:
        """Whether the same was asked for, and the same came of it."""
        return self.how in ("same", "shared")

    @property
    def tool(self) -> str:
        """The tool of both, or of the one that is there."""
        call = self.left or self.right
        assert call is not None, "a pair has a call at least"
        return call.tool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "how": self.how,
            "tool": self.tool,
            "left": None if self.left is None else self.left.id,
            "right": None if self.right is None else self.right.id,
            "args": [_plain_difference(one) for one in self.args],
            "result": [_plain_difference(one) for one in self.result],
            "costs": {unit: [str(left), str(right)] for unit, (left, right) in self.costs.items()},
        }

    def __str__(self) -> str:
        costs = [f"{visible(unit)}: {left} | {right}" for unit, (left, right) in self.costs.items()]
        words = [*map(str, self.args), *map(str, self.result), *costs]
        if self.how == "shared":
            words = ["shared"]
        elif self.how in ("left", "right"):
            words = [f"only {self.how}"]
        return f"{visible(self.tool)}   {'; '.join(words)}".rstrip()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, call by call, in the order in which they were asked for."""

    left: RunInfo
    right: RunInfo
    pairs: tuple[Pair, ...]
    output: tuple[Difference, ...] = ()
    costs: Mapping[str, tuple[Decimal, Decimal]] = field(default_factory=dict)
    """What each run cost itself, by unit; what a fork shares cost only the original."""

    @property
    def first(self) -> Pair | None:
        """The first call that differs; None: they did the same."""
        return next((pair for pair in self.pairs if not pair.alike), None)

    @property
    def alike(self) -> bool:
        """Whether both asked for the same calls, got the same answers and gave the same output."""
        return self.first is None and not self.output

    @property
    def shared(self) -> tuple[Pair, ...]:
        """The calls that the runs have in common because one of them is a fork."""
        return tuple(pair for pair in self.pairs if pair.how == "shared")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data: the same facts as the text, and all of them."""
        first = self.first
        return {
            "left": {"run": self.left.id, "state": self.left.state},
            "right": {"run": self.right.id, "state": self.right.state},
            "alike": self.alike,
            "first": None if first is None else first.to_dict(),
            "pairs": [pair.to_dict() for pair in self.pairs],
            "output": [_plain_difference(one) for one in self.output],
            "costs": {unit: [str(left), str(right)] for unit, (left, right) in self.costs.items()},
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return "\n".join(_cut(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        left, right = (f"{visible(run.id)} ({run.state.replace('_', ' ')})" for run in (self.left, self.right))
        yield f"left   {left}"
        yield f"right  {right}"
        width = max((len(visible(pair.tool)) for pair in self.pairs), default=0)
        for pair in self.pairs:
            tool, _, words = str(pair).partition("   ")
            yield f"   {_MARKS[pair.how]} {tool:<{width}}  {words}".rstrip()
        first = self.first
        if first is None:
            yield "   every call alike"
        else:
            ids = " | ".join("-" if call is None else visible(call.id) for call in (first.left, first.right))
            yield f"   first different call: {visible(first.tool)} ({ids})"
        yield from (f"   output {one}" for one in self.output)
        yield from (f"   cost {visible(unit)}: {left} | {right}" for unit, (left, right) in self.costs.items())


def differences(left: Any, right: Any, path: str = "") -> tuple[Difference, ...]:
    """Every place where two values do not mean the same, down to what cannot be taken apart."""
    found: list[Difference] = []
    for one in _differences(left, right, path):
        found.append(one)
        if len(found) == DIFFERENCES_MAX:
            break
    return tuple(found)


def _differences(left: Any, right: Any, path: str) -> Iterator[Difference]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in dict.fromkeys([*left, *right]):
            below = f"{path}.{name}" if path else str(name)
            yield from _differences(left.get(name, ABSENT), right.get(name, ABSENT), below)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _differences(one, other, f"{path}[{place}]")
    elif not _same(left, right):
        yield Difference(path or "it", left, right)


def _same(left: Any, right: Any) -> bool:
    try:
        return canonical(left) == canonical(right)
    except NotStorable:
        return bool(left == right)


def _plain_difference(one: Difference) -> dict[str, Any]:
    return {"path": one.path, "left": plain(one.left), "right": plain(one.right)}


def _told(value: Any) -> str:
    return str(value) if value is ABSENT else visible_value(value, bare=True)


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else line[: LINE_CHARS_MAX - 1] + "…"
