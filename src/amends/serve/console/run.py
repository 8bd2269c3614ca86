"""One run: what it did and when, why it does not go on, and what a person may do about it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeVar

from pydantic import Field

from amends import Call, Event, Report, RunInfo
from amends.errors import RunNotFound
from amends.serve import people
from amends.serve.console import calls, timeline
from amends.serve.console.acts import Acted, Asked, body, needed
from amends.serve.console.html import path
from amends.serve.console.pages import Said
from amends.serve.console.timeline import Line, Row, Span, Window
from amends.serve.exchange import Exchange
from amends.visible import shortened, visible, visible_value

T = TypeVar("T")
ROWS: Final = 50
"""How many calls one page shows."""
LONG: Final = 500
"""A run with more calls is long: it is read one page at a time, so that its page costs no more than that of any other."""
EVENTS_MAX: Final = 1_000
"""How many events of a run are read; a call whose events are not among them is drawn by its record."""
ARGS_CHARS_MAX: Final = 90
UNDER_WAY_S: Final = 2.0
"""After how long an act is answered although it goes on."""
FINAL: Final = ("committed", "rolled_back", "abandoned")
STANDING: Final = (
    "succeeded", "in_doubt", "compensating", "compensation_failed", "compensation_in_doubt", "residue",
)  # fmt: skip
"""States of calls whose effect is, or may be, in the world."""
_VERB: Final = re.compile(r"rt\.(\w+)\(")
_CALL: Final = re.compile(r" ?\((call_[^)]+)\)")
_CLASS: Final = re.compile(r"\b(?:[A-Za-z_]\w*\.)+[A-Z]\w*: ")
"""The class of an error, before what it said."""
POLICIES: Final[Mapping[str, str]] = {
    "rollback": "rolled back if its process dies",
    "resume": "resumed if its process dies",
    "wait": "left to its program if its process dies",
}


class RunQuery(Said):
    """Which part of a run: a window of time, a page of its calls, and a call that is opened."""

    begin: float | None = Field(None, alias="from", ge=-1e9, le=1e12, allow_inf_nan=False)
    end: float | None = Field(None, alias="to", ge=-1e9, le=1e12, allow_inf_nan=False)
    gaps: str = Field("", max_length=10)
    page: int = Field(1, ge=1, le=1_000_000)
    after: str = Field("", max_length=200)
    call: str = Field("", max_length=200)


# ---- The page


async def run(x: Exchange) -> dict[str, Any]:
    """Return a run: its head, its timeline, and the calls of one page."""
    query: RunQuery = x.query
    report = await _report(x, after=query.after, limit=ROWS + 1 if query.after else LONG + 1)
    is_long = bool(query.after) or calls_in(report) > LONG
    info = await x.rt.info(report.run.id)
    now = datetime.now(UTC)
    origin = info.opened_at or now
    lines = list(timeline.lines_of(report))
    window = Window() if is_long else Window(query.begin, query.end, query.gaps == "whole")
    page, part = _part(lines, query) if is_long else _page(_chosen(lines, window, origin, now), query)
    events, is_whole = ([], False) if is_long else await _events(x, info.id)
    rows = timeline.rows_of(part, events, origin=origin)
    marks = timeline.marks_of(info.id, events, origin) if is_whole else timeline.recorded_marks(info, lines, origin)
    if page["of"] != 1 and window.begin is None:  # to the scale of what is shown, not of the whole run
        marks = [one for one in marks if _touches(rows, one.at)]
    is_over = info.state in FINAL or page["next"] is not None
    drawn = timeline.drawing(rows, marks, now=timeline.seconds(now, origin), window=window, is_over=is_over)
    return {
        "run": info.to_dict(),
        "facts": _facts(info),
        "summary": _summary(info, lines, now, is_long=is_long),
        "stuck": stuck_of(info, report, _asked(events)),
        "timeline": drawn,
        "zoom": _zoom(drawn, window, is_long=is_long),
        "overview": [] if is_long else _overview(lines, page, origin),
        "calls": [_line(row, number, origin) for number, row in enumerate(rows, start=page["first"])],
        "page": page,
        "children": [{"id": one.run.id, "state": one.run.state, "calls": len(one.calls)} for one in report.children],
        "forks": list(report.forks),
        "residue": [one.to_dict() | {"why": plain_error(one.why)} for one in report.residue],
        "missing": [one.to_dict() for one in report.missing],
        "locks": [one.to_dict() for one in report.locks],
        "acts": _acts(info) | {"replay": may_replay(x, info)},
        "abandon_words": abandon_words(report),
        "drawer": await calls.call_data(x, query.call) if query.call else None,
    }


async def _report(x: Exchange, *, after: str = "", limit: int | None = None) -> Report:
    found = await x.rt.report(x.path["id"], after=after, limit=limit)
    if not x.owns(found.run):
        raise RunNotFound(x.path["id"])
    return found


def calls_in(report: Report) -> int:
    """Return how many calls a report has, with those of its children."""
    return len(report.calls) + sum(calls_in(one) for one in report.children)


async def _events(x: Exchange, run_id: str) -> tuple[list[Event], bool]:
    """Return the first events of a run, and whether these are all."""
    found: list[Event] = []
    async for event in x.rt.events(run_id):
        if len(found) == EVENTS_MAX:
            return found, False
        found.append(event)
    return found, True


def _chosen(lines: Sequence[Line], window: Window, origin: datetime, now: datetime) -> Sequence[Line]:
    if window.begin is None and window.end is None:
        return lines
    begin = float("-inf") if window.begin is None else window.begin
    end = float("inf") if window.end is None else window.end
    return [line for line in lines if line.within(begin, end, origin=origin, now=now)]


def _page(lines: Sequence[Line], query: RunQuery) -> tuple[dict[str, Any], Sequence[Line]]:
    """Return one page of the lines; the page of the opened call, if no page is named."""
    of = max(1, -(-len(lines) // ROWS))
    number = min(query.page, of)
    if query.call and "page" not in query.model_fields_set:
        place = next((at for at, one in enumerate(lines) if one.call is not None and one.call.id == query.call), 0)
        number = place // ROWS + 1
    first = (number - 1) * ROWS
    part = lines[first : first + ROWS]
    shown = {"number": number, "of": of, "first": first + 1, "last": first + len(part), "total": len(lines)}
    return shown | {"previous": number - 1 or None, "next": number + 1 if number < of else None, "is_long": False}, part


def _part(lines: Sequence[Line], query: RunQuery) -> tuple[dict[str, Any], Sequence[Line]]:
    """Return one page of a long run, whose calls nobody has counted; ``next`` is the call after which the next one begins."""
    found = [line for line in lines if line.call is not None]
    kept = {line.call.id for line in found[:ROWS] if line.call is not None}
    shown = [line for line in lines if line.call is not None and line.call.id in kept]
    last = shown[-1].call if shown else None
    next_ = None if last is None or len(found) <= ROWS else last.id
    facts = {"number": None, "of": None, "first": 1, "last": len(shown), "total": None, "is_long": True}
    return facts | {"previous": "first" if query.after else None, "next": next_}, shown


def _touches(rows: Sequence[Row], at: float) -> bool:
    times = [time for row in rows for span in row.spans for time in (span.begin, span.end) if time is not None]
    return bool(times) and min(times) <= at <= max(times)


def _facts(info: RunInfo) -> dict[str, Any]:
    """Return what the head says in words of its own."""
    owner = info.now.where if info.now is not None and info.now.where else None
    return {
        "policy": POLICIES.get(info.recover, info.recover),
        "owner": owner,
        "now": None if info.now is None else str(info.now),
        "root": info.parent,
    }


def _summary(info: RunInfo, lines: Sequence[Line], now: datetime, *, is_long: bool) -> dict[str, Any]:
    """Return what the head says in numbers; of a long run nobody has added them up."""
    found = [line.call for line in lines if line.call is not None]
    costs: dict[str, Decimal] = {}
    for call in found:
        if call.shared is None:
            for unit, amount in call.costs.items():
                costs[unit] = costs.get(unit, Decimal(0)) + amount
    states = Counter("staged" if call.staged else call.state for call in found)
    opened, closed = info.opened_at, info.closed_at
    return {
        "calls": LONG if is_long else len(found),
        "is_long": is_long,
        "replays": 0 if is_long else sum(call.replays for call in found),
        "costs": {} if is_long else {unit: str(amount) for unit, amount in sorted(costs.items())},
        "states": [{"state": state, "count": count} for state, count in states.most_common()],
        "duration_s": None if opened is None else ((closed or now) - opened).total_seconds(),
        "is_over": info.state in FINAL,
    }


def _zoom(drawn: Mapping[str, Any], window: Window, *, is_long: bool) -> dict[str, Any]:
    """Return the windows that the buttons beside the timeline lead to."""
    begin, end = drawn["begin"], drawn["end"]
    length = end - begin
    middle = begin + length / 2

    def at(low: float, high: float) -> dict[str, Any]:
        return {"from": f"{max(0.0, low):.3f}", "to": f"{high:.3f}"}

    is_zoomed = window.begin is not None or window.end is not None
    return {
        "is_zoomed": is_zoomed,
        "is_whole": window.whole,
        "from": None if window.begin is None else f"{window.begin:.3f}",
        "to": None if window.end is None else f"{window.end:.3f}",
        "in": at(middle - length / 4, middle + length / 4) if length > 0.004 and not is_long else None,
        "out": at(begin - length / 2, end + length / 2) if is_zoomed else None,
        "earlier": at(begin - length / 2, end - length / 2) if is_zoomed and begin > 0 else None,
        "later": at(begin + length / 2, end + length / 2) if is_zoomed else None,
    }


def _overview(lines: Sequence[Line], page: Mapping[str, Any], origin: datetime) -> list[dict[str, Any]]:
    """Return all calls of a run that has several pages, as columns that lead to them."""
    if page["of"] < 2:
        return []
    asked = [
        (timeline.seconds(line.run.opened_at if line.call is None else line.call.requested_at, origin),
         "" if line.call is None else line.call.state)
        for line in lines
    ]  # fmt: skip
    columns = timeline.overview_of(asked, end=max(at for at, _ in asked)).to_dict()
    for one in columns:
        one["page"] = one["first"] // ROWS + 1
        one["is_here"] = one["page"] <= page["number"] <= one["last"] // ROWS + 1
    return columns


def _line(row: Row, number: int, origin: datetime) -> dict[str, Any]:
    """Return one row of the list beneath the timeline."""
    call = row.call
    if call is None:
        return {"id": row.run.id, "number": number, "is_run": True, "depth": row.depth, "state": row.run.state}
    work = [span for span in row.spans if span.what == "work"]
    waited = sum(
        span.end - span.begin for span in row.spans if span.what in ("person", "queue") and span.end is not None
    )
    undone = call.compensation
    return {
        "id": call.id,
        "number": number,
        "is_run": False,
        "depth": row.depth,
        "tool": call.tool,
        "kind": call.kind,
        "state": "staged" if call.staged else call.state,
        "args": said_args(call),
        "at_s": timeline.seconds(call.requested_at, origin),
        "took_s": _worked(work) if work else call.seconds,
        "waited_s": waited or None,
        "attempts": max(call.attempt, len(work)),
        "replays": call.replays,
        "costs": {unit: str(amount) for unit, amount in call.costs.items()},
        "note": note_of(call),
        "shared": call.shared,
        "compensation": None if undone is None or not undone.attempts else {
            "attempts": undone.attempts,
            "took_s": _between(undone.started_at, undone.settled_at),
            "error": plain_error(undone.error),
        },
    }  # fmt: skip


def _worked(spans: Sequence[Span]) -> float | None:
    """Return how long all attempts took; None while one of them goes on."""
    ends = [span.end for span in spans]
    return None if None in ends else sum(span.end - span.begin for span in spans if span.end is not None)


def _between(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else (end - begin).total_seconds()


def said_args(call: Call) -> str:
    """Return the arguments of a call on one short line."""
    words = [f"{visible(name)}={visible_value(value)}" for name, value in call.args.items()]
    return shortened(", ".join(words), ARGS_CHARS_MAX)


def note_of(call: Call) -> str:
    """Return the one thing about a call that its state does not say."""
    undone = call.compensation
    if call.state.startswith("compensation") and undone is not None and undone.error:
        return plain_error(undone.error)
    if call.state in ("failed", "backing_off", "in_doubt"):
        return plain_error(call.error or call.why)
    if call.state in ("held", "residue", "refused"):
        return call.why or ("waits for approval" if call.reason in ("approval", "budget") else plain_error(call.error))
    if call.staged:
        return "waits for a lock" if call.reason == "lock" else "starts after the pivot, or at commit"
    return plain_error(call.loss) if call.loss else ""


def plain_error(text: str | None) -> str:
    """Return an error without the name of its class."""
    return _CLASS.sub("", text or "", count=1)


def without_ids(text: str) -> str:
    """Return a cause without the ids of its calls: a page has links for them."""
    return _CALL.sub("", text)


# ---- Why it does not go on


def stuck_of(info: RunInfo, report: Report, asked: Mapping[str, str]) -> dict[str, Any] | None:
    """Return why a run does not go on, in one sentence, and what to do about it; None: it does, or has ended.

    ``asked``: the newest request for approval of each call.
    """
    if info.state in FINAL:
        return None
    if info.state == "blocked":
        causes = [_cause(one, info) for one in info.causes] or [_said("A person is needed.", [])]
        return {"tone": "fail", "title": "This run is blocked", "causes": causes}
    now = info.now
    if now is None or now.what == "running":
        return None
    if now.what == "orphaned":
        text = f"Its process ({now.where}) gave no sign of life. A worker takes the run over when its lease ends."
        return {"tone": "doubt", "title": "Its process is gone", "causes": [_said(text, [])]}
    tone, title, text, does = _waiting(now.waits_for or "", report, asked)
    return {"tone": tone, "title": title, "causes": [_said(text, does)]}


def _asked(events: Iterable[Event]) -> dict[str, str]:
    return {one.call_id: str(one.facts["approval"]) for one in events if one.call_id and one.what == "approval"}


def _waiting(what: str, report: Report, requests: Mapping[str, str]) -> tuple[str, str, str, list[dict[str, str]]]:
    held = _with_state(report, "held", "ready")
    doubtful = _with_state(report, "in_doubt", "compensation_in_doubt")
    asked = [call for call in held if call.reason in timeline.PERSONS]
    if asked:
        first = asked[0]
        who = "a person" if what in ("", "a person") else what
        request = requests.get(first.id)
        does = [{"label": "Decide about it", "to": path("/approvals", request)}] if request else []
        if first.reason in ("duplicate", "conflict"):
            return (
                "wait",
                "It waits for a decision",
                f"{first.tool} is held: {first.why or first.reason}.",
                [_open(first)],
            )
        return "wait", "It waits for approval", f"{first.tool} needs the approval of {who}.", [*does, _open(first)]
    if doubtful:
        first = doubtful[0]
        if what == "a probe":
            return (
                "doubt",
                "An outcome is unknown",
                f"{first.tool} may have happened; its probe is asked again.",
                [_open(first)],
            )
        text = f"{first.tool} may have happened, and nobody knows: check it, then record what you found."
        return "doubt", "An outcome is unknown", text, [{"label": "Settle the doubt", "to": path("/doubts", first.id)}]
    words = {
        "a worker": "A worker that has its tools continues it. Start one: amends worker.",
        "its program": "Its program has released it and can open it again. Nothing happens until then.",
        "a lock": "Another run holds what it needs; it goes on when that run ends.",
        "a retry": "The last attempt failed; it is tried again by itself.",
    }
    return "wait", f"It waits for {what or 'its program'}", words.get(what, words["its program"]), []


def _with_state(report: Report, *states: str) -> list[Call]:
    found = [call for call in report.calls if call.state in states]
    for child in report.children:
        found += _with_state(child, *states)
    return found


def _cause(text: str, info: RunInfo) -> dict[str, Any]:
    """Return one cause of a blocked run without the Python in it, and what leads on from it."""
    verbs = list(dict.fromkeys(_VERB.findall(text)))
    before = text.partition("rt.")[0] if verbs else text
    told = before.rpartition(": ")[0] or before
    named = _CALL.search(told)
    first = "" if named is None else told[: named.start()]
    told = plain_error(without_ids(told)).strip(" :,")
    is_name = bool(first) and " " not in first and told.startswith(first)  # the name of a tool is spelled as it is
    does: list[dict[str, str]] = []
    if named is not None:
        is_doubt = "resolve" in verbs and "retry" not in verbs
        does = [{"label": "Settle the doubt", "to": path("/doubts", named[1])}] if is_doubt else []
        does += [] if is_doubt else [{"label": "Decide about it", "to": path("/calls", named[1])}]
    if "rollback" in verbs and info.parent is None:
        does.append({"label": "Plan a rollback", "to": path("/runs", info.id, "/rollback")})
    return _said(f"{told}." if is_name else f"{told[:1].upper()}{told[1:]}.", does)


def _said(text: str, does: list[dict[str, str]]) -> dict[str, Any]:
    return {"text": text, "does": does}


def _open(call: Call) -> dict[str, str]:
    return {"label": "Show the call", "to": path("/calls", call.id)}


# ---- Acts


def may_replay(x: Exchange, info: RunInfo) -> bool:
    """Return whether the agent of this run is one of the server, so that the run can be replayed here."""
    return info.parent is None and bool(info.agent) and info.agent in x.rt.agents


def _acts(info: RunInfo) -> dict[str, bool]:
    """Return what a person may do with the run as it is."""
    is_root, is_own = info.parent is None, info.origin is None
    can_finish = info.state == "blocked" and any("rt.finish(" in one for one in info.causes)
    return {
        "rollback": is_root
        and is_own
        and info.state in ("open", "blocked", "committed", "rolling_back")
        and not can_finish,
        "finish": is_own and can_finish,
        "abandon": is_root and is_own and info.state not in FINAL,
    }


async def asks_abandon(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say how many effects stay."""
    needed(form, "why", label="the reason")
    report = await _report(x, limit=LONG)
    return Asked("Abandon this run?", abandon_words(report), "Abandon the run", path("/runs", report.run.id))


def abandon_words(report: Report) -> str:
    """Return what abandoning a run does, with how many effects stay: its own, and those of its child runs."""
    left = [call for call in _with_state(report, *STANDING) if call.kind != "read" and not call.shared]
    many = "At least " if calls_in(report) >= LONG else ""
    what = f"{many}{count(len(left), 'effect')} of {visible(report.run.id, prose=True)} will stay"
    return f"{what}, and nothing will take {'it' if len(left) == 1 else 'them'} back."


async def abandon(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Close a run and leave its effects standing."""
    done = await people.abandon(replace(x, body=body(people.Why, why=needed(form, "why", label="the reason"))))
    left = len(done.data["residue"])
    return Acted(path("/runs", x.path["id"]), f"Abandoned. {count(left, 'effect')} left standing.", "ok")


async def asks_finish(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say what closing as committed means."""
    needed(form, "why", label="the reason")
    id = x.path["id"]
    text = (
        f"{visible(id)} has passed its pivot. It will be closed as committed, without whatever its program did not do."
    )
    return Asked("Finish this run?", text, "Finish the run", path("/runs", id), kind="primary")


async def finish(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Close a run that was interrupted after its pivot as committed."""
    await people.finish(replace(x, body=body(people.Why, why=needed(form, "why", label="the reason"))))
    return Acted(path("/runs", x.path["id"]), "Finished: the run is committed.")


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_going_on: Final[set[asyncio.Task[Any]]] = set()
"""Acts that go on after they were answered."""


async def under_way(work: Coroutine[Any, Any, T]) -> T | None:
    """Return what the work returns; None if it takes longer than somebody should wait, and goes on."""
    task = asyncio.get_running_loop().create_task(work)
    _going_on.add(task)
    task.add_done_callback(_going_on.discard)
    await asyncio.wait({task}, timeout=UNDER_WAY_S)
    return task.result() if task.done() else None
