"""Two runs side by side, call by call, with the first difference marked."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Final

from pydantic import Field

from amends import Call, Comparison
from amends.serve.console.pages import Said
from amends.serve.console.run import calls_in, may_replay, note_of, plain_error, said_args
from amends.serve.exchange import Exchange
from amends.visible import shortened, visible_value

PAIRS_MAX: Final = 200
"""How many pairs one page shows; calls that are alike are folded and do not count."""
FOLD_MIN: Final = 4
"""So many pairs that are alike are folded into one line, unless they stand beside a difference."""
KNOWN_MAX: Final = 30
"""How many runs the form proposes."""
CALLS_MAX: Final = 2_000
"""A run with more calls is compared on the command line: it would keep this server busy."""
VALUE_CHARS_MAX: Final = 300


class CompareQuery(Said):
    """Which two runs."""

    a: str = Field("", max_length=512)
    b: str = Field("", max_length=512)


async def compare(x: Exchange) -> dict[str, Any]:
    """Return two runs call by call; without both of them, a form to choose them."""
    query: CompareQuery = x.query
    a, b = query.a.strip(), query.b.strip()
    found: dict[str, Any] = {
        "a": a,
        "b": b,
        "compared": None,
        "known": [],
        "related": [],
        "too_long": "",
        "replay": None,
    }
    if a and not b:
        found["related"] = await _related(x, a)
        found["replay"] = await _replay(x, a)
    if not (a and b):
        async for one in x.rt.runs():
            found["known"].append({"id": one.id, "state": one.state})
            if len(found["known"]) == KNOWN_MAX:
                break
        return found
    for id in (a, b):
        if calls_in(await x.rt.report(id, limit=CALLS_MAX + 1)) > CALLS_MAX:
            return found | {"too_long": id, "command": f"amends compare {shlex.quote(a)} {shlex.quote(b)}"}
    return found | {"compared": _compared(await x.rt.compare(a, b))}


async def _related(x: Exchange, id: str) -> list[dict[str, str]]:
    """Return the runs that this one is likely to be compared with: its forks, and what it was forked from."""
    report = await x.rt.report(id, limit=1)
    source = [report.run.forked_from] if report.run.forked_from else []
    return [{"id": one, "how": "the original"} for one in source] + [
        {"id": one, "how": "a fork"} for one in report.forks
    ]


async def _replay(x: Exchange, id: str) -> dict[str, Any]:
    """Return how this run is compared with what its program does today: here, or on the command line."""
    info = await x.rt.info(id)
    command = f"amends replay {shlex.quote(id)} --against APP:FN"
    return {"agent": info.agent if may_replay(x, info) else None, "command": command}


def _compared(both: Comparison) -> dict[str, Any]:
    pairs = list(enumerate(both.pairs, start=1))
    first = next((number for number, one in pairs if not one.alike), None)
    groups = list(_groups(pairs, first))
    differ = sum(not one.alike for one in both.pairs)
    return {
        "left": {"id": both.left.id, "state": both.left.state, "forked_from": both.left.forked_from},
        "right": {"id": both.right.id, "state": both.right.state, "forked_from": both.right.forked_from},
        "alike": both.alike,
        "total": len(pairs),
        "differ": differ,
        "shared": len(both.shared),
        "first": first,
        "groups": groups[:PAIRS_MAX],
        "left_out": max(0, len(groups) - PAIRS_MAX),
        "output": [_difference(one) for one in both.output],
        "costs": [{"unit": unit, "left": str(left), "right": str(right)} for unit, (left, right) in both.costs.items()],
    }


def _groups(pairs: list[tuple[int, Any]], first: int | None) -> Iterator[dict[str, Any]]:
    """Return the pairs, long stretches of those that are alike as one line."""
    alike: list[tuple[int, Any]] = []
    for number, pair in pairs:
        if pair.alike:
            alike.append((number, pair))
            continue
        yield from _folded(alike)
        alike = []
        yield {"folded": 0, "pair": _pair(number, pair, is_first=number == first)}
    yield from _folded(alike)


def _folded(alike: list[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
    if len(alike) < FOLD_MIN:
        yield from ({"folded": 0, "pair": _pair(number, one, is_first=False)} for number, one in alike)
        return
    tools = list(dict.fromkeys(one.tool for _, one in alike))
    yield {"folded": len(alike), "from": alike[0][0], "to": alike[-1][0], "tools": tools[:6], "pair": None}


def _pair(number: int, pair: Any, *, is_first: bool) -> dict[str, Any]:
    return {
        "number": number,
        "how": pair.how,
        "tool": pair.tool,
        "is_first": is_first,
        "left": side_of(pair.left),
        "right": side_of(pair.right),
        "args": [_difference(one) for one in pair.args],
        "result": [_difference(one) for one in pair.result],
        "costs": [{"unit": unit, "left": str(left), "right": str(right)} for unit, (left, right) in pair.costs.items()],
    }


def side_of(call: Call | None) -> dict[str, Any] | None:
    """Return one side of a comparison; None: there is no such call."""
    if call is None:
        return None
    return {"id": call.id, "tool": call.tool, "state": call.state, "args": said_args(call), "note": note_of(call)}


def _difference(one: Any) -> dict[str, str]:
    return {"path": one.path, "left": _value(one.left), "right": _value(one.right)}


def _value(value: Any) -> str:
    text = value if isinstance(value, str) and value == "(absent)" else visible_value(value)
    return shortened(plain_error(text) if isinstance(value, str) else text, VALUE_CHARS_MAX)
