"""A recorded run beside its replay: what its agent would do today, with the first difference marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from amends import Call
from amends.errors import NotFound, RunNotFound
from amends.serve.console.acts import Acted, body
from amends.serve.console.compare import CALLS_MAX, FOLD_MIN, VALUE_CHARS_MAX, side_of
from amends.serve.console.html import path
from amends.serve.console.timeline import lines_of
from amends.serve.exchange import Exchange
from amends.serve.replays import ReplayEach, replaying
from amends.visible import shortened

AFTER_END: Final = ("past_end", "extra")
"""How a replay differs that has asked for more than the record has."""
TITLES: Final[Mapping[str, str]] = {
    "same": "The agent does the same today",
    "output": "Every call is as recorded, and the output differs",
    "end": "Every call is as recorded, and the run ends in another way",
    "raised": "The agent ended with an error",
    "denied": "The agent tried something that a replay refuses",
    "unreadable": "The record cannot be replayed",
    "missing": "The agent ended before its record",
    "past_end": "The agent went on after the end of the record",
}
"""What the page says of a replay, by how it differs; of another difference it says where it is."""


async def begin(x: Exchange, form: Mapping[str, str]) -> Acted:  # noqa: ARG001 (an act gets its form)
    """Begin to replay a run against its agent."""
    info = await x.rt.info(x.path["id"])
    if not x.owns(info):
        raise RunNotFound(x.path["id"])
    work = replaying(x, info.agent or "", body(ReplayEach, runs=[info.id]))
    made = x.service.long_works.started(x, "replay_each", work, about=info.id)
    return Acted(path("/replays", made.id), "The replay has begun.")


async def replay(x: Exchange) -> dict[str, Any]:
    """Return how far a replay is, or the run beside what its agent did in the replay."""
    found = x.service.long_works.found(x.path["job"], x.service.own_tenant(x))
    if found.what != "replay_each" or not found.about:  # another page, or none, is about it
        raise NotFound(f"there is no replay {found.id!r} in this server")
    info = await x.rt.info(found.about)
    data: dict[str, Any] = {
        "job": found.to_dict() | {"by": found.by},
        "run": info.to_dict(),
        "replayed": None,
        "rows": [],
    }
    if found.result is None:
        return data
    [one] = found.result["replayed"]
    report = await x.rt.report(info.id, limit=CALLS_MAX)
    calls = [line.call for line in lines_of(report) if line.call is not None]
    first = next((at for at, call in enumerate(calls) if call.id == one["call_id"]), None)
    if first is None and one["how"] in AFTER_END:
        first = len(calls)
    title = TITLES.get(one["how"]) or (
        "The agent does something else" if first is None else f"Call {first + 1} differs"
    )
    return data | {
        "replayed": one | {"title": title, "agent": found.result["agent"]},
        "rows": list(_rows(one, calls, first)),
    }


def _rows(one: Mapping[str, Any], calls: Sequence[Call], first: int | None) -> list[dict[str, Any]]:
    """Return the recorded calls with what the replay did in their places; stretches that are alike are folded."""
    if first is None:
        return _stretch(calls, 0, "as recorded" if one["same"] or one["how"] in ("output", "end") else "")
    # A replay that skipped something has asked for fewer calls than stand before the difference.
    before = _stretch(calls[:first], 0, "as recorded" if one["calls"] >= first else "")
    call = calls[first] if first < len(calls) else None
    diff = [
        {"path": name, "left": shortened(was, VALUE_CHARS_MAX), "right": shortened(now, VALUE_CHARS_MAX)}
        for name, (was, now) in one["diff"].items()
    ]
    here = {"folded": 0, "number": first + 1, "call": side_of(call), "said": one["why"], "is_first": True, "diff": diff}
    return [*before, here, *_stretch(calls[first + 1 :], first + 1, "not reached")]


def _stretch(calls: Sequence[Call], begin: int, said: str) -> list[dict[str, Any]]:
    if len(calls) >= FOLD_MIN:
        return [{"folded": len(calls), "from": begin + 1, "to": begin + len(calls), "said": said, "is_first": False}]
    return [
        {"folded": 0, "number": at, "call": side_of(call), "said": said, "is_first": False, "diff": []}
        for at, call in enumerate(calls, start=begin + 1)
    ]
