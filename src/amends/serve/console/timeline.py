"""The timeline of a run: when each call waited, worked, was in doubt and was taken back, to scale.

Everything here is arithmetic over records: no request, no clock, no template. Times are seconds since the run was opened.
Places are per cent of the width, so that a drawing without a viewBox shows them at any width and no text is stretched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

from amends import Call, Event, Report, RunInfo

What: TypeAlias = Literal["work", "retry", "person", "queue", "doubt", "undo", "stuck"]
"""What a stretch of a call's time was: its body ran; it waited before another attempt; for a person; for its turn; its
outcome was unknown; its compensation ran; its compensation had given up."""
ROW: Final = 30
"""The height of one row, in pixels; ``console.css`` has the same number for the names beside the drawing."""
BAR: Final = 14
THIN: Final = 6
HEAD: Final = 44
"""The height of what stands above the rows: the marks and the scale."""
BAR_MIN: Final = 0.4
"""The least width of a bar, in per cent: what happened must be seen, however short it was."""
GAP: Final = 5.0
"""The width of a stretch of waiting that is not to scale, in per cent."""
WORK_MIN: Final = 0.15
"""The least part of the scale that work should have; below it long waits are cut short."""
LONG: Final = 0.25
"""The part of the scale from which on a wait is long."""
LONG_S: Final = 1.0
"""A wait that is shorter is never cut short."""
GAPS_MAX: Final = 8
LEAD: Final = 0.1
"""How long, as a part of the whole, the time before the first call may be to be shown."""
TICKS: Final = 7
"""About how many marks the scale has."""
CHAR: Final = 0.9
"""About how wide a letter of a label is, in per cent; on a phone it is wider, and fewer are shown."""
MARK_RIGHT: Final = 60.0
"""Right of it the label of a mark stands on its left side: on a phone there is no room on the other."""
BUCKETS: Final = 120
"""How many columns the overview of a long run has."""
NICE: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800)
PERSONS: Final = frozenset({"approval", "budget", "duplicate", "conflict"})
"""The reasons for which a call is held until a person decides."""
SEGMENTS: Final[Mapping[str, What]] = {
    "ready": "queue",
    "started": "work",
    "backing_off": "retry",
    "in_doubt": "doubt",
    "compensating": "undo",
    "compensation_in_doubt": "doubt",
    "compensation_failed": "stuck",
}
"""What a call does in each state that lasts; ``held`` depends on its reason."""
BUSY: Final = frozenset({"work", "undo"})
WAITS: Final = frozenset({"retry", "queue", "person"})
"""What is not drawn if it took no time."""
WORDS: Final[Mapping[str, str]] = {
    "work": "Working",
    "failed": "Failed attempt",
    "retry": "Before another attempt",
    "person": "Waiting for a person",
    "queue": "Waiting for its turn",
    "doubt": "Outcome unknown",
    "undo": "Compensation",
    "stuck": "Compensation gave up",
}


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a call's time. ``end`` is None while it lasts; ``then``: the state that followed."""

    what: What
    begin: float
    end: float | None
    attempt: int = 0
    then: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a run before it is drawn: a call, or the head of a child run."""

    run: RunInfo
    depth: int
    call: Call | None

    def within(self, begin: float, end: float, *, origin: datetime, now: datetime) -> bool:
        """Return whether any part of it lies in this window of time, as far as its record tells."""
        first = self.run.opened_at if self.call is None else self.call.requested_at
        last = self.run.closed_at or now if self.call is None else _last(self.call, now)
        return seconds(first, origin) <= end and seconds(last, origin) >= begin


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the timeline, with how it spent its time."""

    line: Line
    spans: tuple[Span, ...]

    @property
    def run(self) -> RunInfo:
        """The run that it belongs to, or that it is."""
        return self.line.run

    @property
    def call(self) -> Call | None:
        """The call; None: it is the head of a child run."""
        return self.line.call

    @property
    def depth(self) -> int:
        """How many runs are above its run."""
        return self.line.depth


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the scale: from one time to another, and from one place to another."""

    t0: float
    t1: float
    x0: float
    x1: float
    is_gap: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Where each moment of a window of time is drawn."""

    pieces: tuple[Piece, ...]

    def x(self, t: float) -> float:
        """Return the place of a moment; what lies outside of the window is at its edge."""
        for one in self.pieces:
            if t <= one.t1:
                inside = 0.0 if one.t1 <= one.t0 else max(0.0, (t - one.t0) / (one.t1 - one.t0))
                return round(one.x0 + inside * (one.x1 - one.x0), 3)
        return round(self.pieces[-1].x1, 3)

    @property
    def gaps(self) -> tuple[Piece, ...]:
        """The stretches that are not to scale."""
        return tuple(one for one in self.pieces if one.is_gap)


@dataclass(frozen=True, slots=True)
class Window:
    """What a reader asked to see."""

    begin: float | None = None
    end: float | None = None
    whole: bool = False
    """Whether long waits are to scale, too."""


# ---- Rows


def lines_of(report: Report, depth: int = 0) -> Iterator[Line]:
    """Return every call of a run in the order of the requests, those of its children as groups between them."""
    origin = report.run.opened_at
    parts: list[tuple[float, int, Call | Report]] = []
    all_parts: list[Call | Report] = [*report.calls, *report.children]
    for number, part in enumerate(all_parts):
        at = part.requested_at if isinstance(part, Call) else part.run.opened_at
        parts.append((0.0 if origin is None else seconds(at, origin), number, part))
    if report.children:
        parts.sort(key=lambda one: one[:2])
    for _, _, part in parts:
        if isinstance(part, Call):
            yield Line(report.run, depth, part)
        else:
            yield Line(part.run, depth, None)
            yield from lines_of(part, depth + 1)


def rows_of(lines: Iterable[Line], events: Iterable[Event], *, origin: datetime) -> list[Row]:
    """Return these lines with how each spent its time."""
    by_call: dict[str, list[Event]] = {}
    for event in events:
        if event.call_id is not None and event.what == "call":
            by_call.setdefault(event.call_id, []).append(event)
    return [_row(line, by_call, origin) for line in lines]


def _row(line: Line, by_call: Mapping[str, list[Event]], origin: datetime) -> Row:
    if line.call is not None:
        return Row(line, spans_of(line.call, by_call.get(line.call.id, ()), origin))
    closed = line.run.closed_at
    life = Span("queue", seconds(line.run.opened_at, origin), None if closed is None else seconds(closed, origin))
    return Row(line, (life,))


def _last(call: Call, now: datetime) -> datetime:
    """Return when a call was last touched; now, while it is not settled."""
    undone = call.compensation
    if call.state in ("held", "ready", "started", "backing_off", "in_doubt", "compensating", "compensation_in_doubt"):
        return now
    times = [call.requested_at, call.settled_at, None if undone is None else undone.settled_at]
    return max((one for one in times if one is not None), default=now)


def seconds(at: datetime | None, origin: datetime) -> float:
    """Return the seconds from the beginning of the run; 0 if the time is not known."""
    return 0.0 if at is None else (at - origin).total_seconds()


def spans_of(call: Call, events: Sequence[Event], origin: datetime) -> tuple[Span, ...]:
    """Return how a call spent its time: by its events or, if they were not read, by its record."""
    moves = [event for event in events if event.to]
    # Of a long run only a part of the events is read: a call whose last move is not among them is drawn by its record.
    if call.shared or not moves or moves[0].frm != "(new)" or moves[-1].to != call.state:
        return tuple(_recorded(call, origin))
    return tuple(_moved(moves, origin))


def _moved(moves: Sequence[Event], origin: datetime) -> Iterator[Span]:
    attempt = undone = 0
    for event, after in zip(moves, [*moves[1:], None], strict=True):
        what = SEGMENTS.get(event.to)
        if event.to == "held":
            what = "person" if event.facts.get("reason") in PERSONS else "queue"
        if what == "work":
            attempt += 1
        elif what == "undo":
            undone += 1
        if what is None:
            continue
        begin, end = seconds(event.at, origin), None if after is None else seconds(after.at, origin)
        number = {"work": attempt, "undo": undone}.get(what, 0)
        yield Span(what, begin, end, number, "" if after is None else after.to)


def _recorded(call: Call, origin: datetime) -> Iterator[Span]:
    """Return the spans that a record alone tells: attempts before the last one are not in it."""
    asked = seconds(call.requested_at, origin)
    if call.started_at is None:
        if call.state in ("held", "ready"):
            yield Span("person" if call.reason in PERSONS else "queue", asked, None)
        return
    begin = seconds(call.started_at, origin)
    if begin > asked and call.attempt <= 1 and call.reason is not None:
        yield Span("person" if call.reason in PERSONS else "queue", asked, begin, 0, "started")
    settled = None if call.settled_at is None else seconds(call.settled_at, origin)
    is_lost = call.state == "in_doubt"
    yield Span("work", begin, settled, call.attempt, "in_doubt" if is_lost else "succeeded")
    if is_lost and settled is not None:
        yield Span("doubt", settled, None)
    undone = call.compensation
    if undone is not None and undone.started_at is not None:
        end = None if undone.settled_at is None else seconds(undone.settled_at, origin)
        yield Span("undo", seconds(undone.started_at, origin), end, undone.attempts, call.state)


# ---- The scale


def scale_of(spans: Iterable[Span], begin: float, end: float, *, whole: bool = False) -> Scale:
    """Return the scale of a window of time. A long wait that would make work invisible is cut short."""
    end = max(end, begin + 1e-6)
    busy = _merged(
        (max(one.begin, begin), min(end if one.end is None else one.end, end)) for one in spans if one.what in BUSY
    )
    idle = [] if whole or not busy else _between(busy, begin, end)
    cut = _cut(idle, sum(high - low for low, high in busy), end - begin)
    free = 100.0 - GAP * len(cut)
    scaled = end - begin - sum(high - low for low, high in cut)
    pieces: list[Piece] = []
    at, x = begin, 0.0
    for low, high in cut:
        interval = (low - at) / scaled * free
        pieces += [Piece(at, low, x, x + interval), Piece(low, high, x + interval, x + interval + GAP, is_gap=True)]
        at, x = high, x + interval + GAP
    pieces.append(Piece(at, end, x, 100.0))
    return Scale(tuple(pieces))


def _merged(stretches: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for low, high in sorted(one for one in stretches if one[0] <= one[1]):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def _between(busy: Sequence[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    edges = [begin, *(edge for stretch in busy for edge in stretch), end]
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if high > low]


def _cut(idle: Sequence[tuple[float, float]], work: float, total: float) -> list[tuple[float, float]]:
    """Return the waits that are cut short, earliest first: the longest ones, until work can be seen."""
    cut: list[tuple[float, float]] = []
    for low, high in sorted(idle, key=lambda one: one[0] - one[1])[:GAPS_MAX]:
        if high - low < max(LONG_S, LONG * total) or work >= WORK_MIN * total:
            break
        margin = (
            min((high - low) * 0.02, work) or (high - low) * 0.001
        )  # so that what stands at its edges is not inside
        cut.append((low + margin, high - margin))
        total -= high - low - 2 * margin
    return sorted(cut)


def ticks_of(scale: Scale) -> list[dict[str, Any]]:
    """Return the marks of the scale, at round times."""
    plain = [one for one in scale.pieces if not one.is_gap]
    shown = sum(one.t1 - one.t0 for one in plain)
    interval = interval_of(shown / TICKS)
    told = [((one.x0 + one.x1) / 2, len(lasted(one.t1 - one.t0))) for one in scale.gaps]
    found: list[dict[str, Any]] = []
    for one in plain:
        first = math.ceil(one.t0 / interval - 1e-9)
        for number in range(first, first + 4 * TICKS):
            at = number * interval
            if at > one.t1 + 1e-9:
                break
            x, label = scale.x(at), lasted(at, interval=interval)
            is_free = all(abs(x - mid) >= CHAR * (len(label) + chars) / 2 + 1 for mid, chars in told)
            if is_free and (not found or x - found[-1]["x"] >= max(100 / TICKS / 2, CHAR * len(label) + 1)):
                found.append({"x": x, "at": at, "label": label})
    return found


def interval_of(least: float) -> float:
    """Return a round number of seconds that is not below this one."""
    if least >= NICE[-1]:
        return math.ceil(least / NICE[-1]) * float(NICE[-1])
    if least >= 1:
        return float(next(one for one in NICE if one >= least))
    power = 10.0 ** math.floor(math.log10(max(least, 1e-6)))
    return next(one * power for one in (1, 2, 5, 10) if one * power >= least * (1 - 1e-9))


def lasted(s: float, *, interval: float | None = None) -> str:
    """Return a number of seconds as people say it; ``interval``: as exact as the marks of a scale need it."""
    if s < 0:
        return f"-{lasted(-s, interval=interval)}"
    if interval is not None and s == 0:
        return "0"
    if (s if interval is None else interval) < 1 and s < 60:
        if s < 0.9995 and (interval is None or interval < 0.1):
            return f"{s * 1000:.0f} ms" if s >= 0.0095 or interval is not None else f"{s * 1000:.1f} ms"
        return f"{s:.2f} s" if interval is not None and interval < 0.1 else f"{s:.1f} s"
    if s < 60:
        return f"{s:.0f} s" if interval is not None or s >= 9.95 else f"{s:.1f} s"
    whole = round(s)
    for size, name, below, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


# ---- The drawing


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the run that every row shares: its pivot, the beginning of its rollback, its end."""

    kind: str
    at: float
    label: str
    title: str = ""


MOMENTS: Final[Mapping[str, tuple[str, str]]] = {
    "pivoted": ("pivot", "Pivot: no way back"),
    "rolling_back": ("rollback", "Rollback began"),
    "blocked": ("blocked", "Blocked"),
    "committed": ("end", "Committed"),
    "rolled_back": ("end", "Rolled back"),
    "abandoned": ("end", "Abandoned"),
}


def marks_of(run_id: str, events: Iterable[Event], origin: datetime) -> list[Mark]:
    """Return the moments of a run that are drawn through every row."""
    found: list[Mark] = []
    for event in events:
        if event.run_id != run_id or event.what != "run" or event.to not in MOMENTS:
            continue
        kind, label = MOMENTS[event.to]
        found.append(Mark(kind, seconds(event.at, origin), label, str(event.facts.get("goal_why") or "")))
    return found


def recorded_marks(run: RunInfo, lines: Iterable[Line], origin: datetime) -> list[Mark]:
    """Return the moments that the records alone tell, of a run whose events are too many to be read."""
    found: list[Mark] = []
    undone: list[float] = []
    for line in lines:
        call = line.call
        if call is None or line.run.id != run.id:
            continue
        if call.kind == "pivot" and call.state == "succeeded" and call.settled_at is not None:
            found.append(Mark("pivot", seconds(call.settled_at, origin), MOMENTS["pivoted"][1]))
        if call.compensation is not None and call.compensation.started_at is not None:
            undone.append(seconds(call.compensation.started_at, origin))
    if undone:
        found.append(Mark("rollback", min(undone), MOMENTS["rolling_back"][1]))
    if run.closed_at is not None and run.state in MOMENTS:
        kind, label = MOMENTS[run.state]
        found.append(Mark(kind, seconds(run.closed_at, origin), label))
    return found


def drawing(rows: Sequence[Row], marks: Sequence[Mark], *, now: float, window: Window, is_over: bool) -> dict[str, Any]:
    """Return the timeline of these rows as plain data: every place is a number that a template only writes down."""
    spans = [span for row in rows for span in row.spans]
    begin, end = _window(spans, marks, now, window, is_over=is_over)
    scale = scale_of(spans, begin, end, whole=window.whole)
    shown = [_drawn(row, number, scale, begin, end, now) for number, row in enumerate(rows)]
    height = HEAD + ROW * max(1, len(rows))
    used = {"failed" if bar["is_failed"] else bar["what"] for row in shown for bar in row["bars"]}
    return {
        "height": height,
        "head": HEAD,
        "row": ROW,
        "begin": round(begin, 6),
        "end": round(end, 6),
        "rows": shown,
        "ticks": ticks_of(scale),
        "gaps": [_gap(one) for one in scale.gaps],
        "marks": _placed([one for one in marks if begin <= one.at <= end], scale),
        "now": None if is_over or not begin <= now <= end else scale.x(now),
        "legend": [{"what": what, "word": WORDS[what]} for what in WORDS if what in used],
        "is_cut": bool(scale.gaps),
    }


def _window(
    spans: Sequence[Span], marks: Sequence[Mark], now: float, window: Window, *, is_over: bool
) -> tuple[float, float]:
    times = [one.begin for one in spans] + [one.end for one in spans if one.end is not None]
    times += [one.at for one in marks] if window.begin is None else []
    if not is_over:
        times.append(now)
    low, high = min(times, default=0.0), max(times, default=1.0)
    low = 0.0 if 0 <= low <= LEAD * high else low  # the first call came at once: begin with the run
    begin = low if window.begin is None else window.begin
    end = high if window.end is None else window.end
    return begin, max(end, begin + 1e-3)


def _drawn(row: Row, number: int, scale: Scale, begin: float, end: float, now: float) -> dict[str, Any]:
    y = HEAD + ROW * number
    bars = [
        _bar(row, one, y, scale, now)
        for one in row.spans
        if one.begin <= end
        and (one.end is None or one.end >= begin)
        and (one.what not in WAITS or one.end != one.begin)
    ]
    call = row.call
    return {
        "id": row.run.id if call is None else call.id,
        "is_run": call is None,
        "depth": row.depth,
        "name": row.run.id if call is None else call.tool,
        "state": row.run.state if call is None else ("staged" if call.staged else call.state),
        "kind": "run" if call is None else call.kind,
        "is_shared": call is not None and call.shared is not None,
        "y": y,
        "mid": y + ROW // 2,
        "bars": bars,
        "joins": _joins(bars, y),
    }


def _bar(row: Row, span: Span, y: int, scale: Scale, now: float) -> dict[str, Any]:
    end = now if span.end is None else span.end
    x0, x1 = scale.x(span.begin), scale.x(end)
    width = max(x1 - x0, BAR_MIN)
    x0 = min(x0, 100.0 - width)
    what = "life" if row.call is None else span.what
    is_thick = what in ("work", "undo", "person", "doubt")
    size = BAR if is_thick else THIN
    return {
        "what": what,
        "x": round(x0, 3),
        "width": round(width, 3),
        "y": y + (ROW - size) // 2,
        "height": size,
        "attempt": span.attempt,
        "is_open": span.end is None,
        "is_failed": span.what == "work" and span.then in ("backing_off", "failed"),
        "title": _title(row, span, end),
    }


def _title(row: Row, span: Span, end: float) -> str:
    """Return what a pointer over a bar says."""
    length = lasted(end - span.begin)
    if row.call is None:
        return f"child run, {length}"
    words = {"work": f"attempt {span.attempt}", "undo": f"compensation, attempt {span.attempt}"}
    what = words.get(span.what) or WORDS[span.what].lower()
    then = f", then {span.then.replace('_', ' ')}" if span.then else ", still going on"
    return f"{what}: {length}{then}"


def _joins(bars: Sequence[Mapping[str, Any]], y: int) -> list[dict[str, Any]]:
    """Return the thin lines that join a call with what happened to it later: above all its compensation."""
    found: list[dict[str, Any]] = []
    for one, other in pairwise(bars):
        x1, x2 = round(one["x"] + one["width"], 3), other["x"]
        if x2 - x1 > 0.1:
            found.append({"x1": x1, "x2": x2, "y": y + ROW // 2, "to": other["what"]})
    return found


def _gap(piece: Piece) -> dict[str, Any]:
    length = lasted(piece.t1 - piece.t0)
    return {"x": round(piece.x0, 3), "width": round(piece.x1 - piece.x0, 3), "mid": round((piece.x0 + piece.x1) / 2, 3),
            "label": length, "title": f"{length}, not to scale"}  # fmt: skip


def _placed(marks: Sequence[Mark], scale: Scale) -> list[dict[str, Any]]:
    """Return the marks with their places; a label that would lie over another one is left to its title."""
    found: list[dict[str, Any]] = []
    right = -100.0
    for one in sorted(marks, key=lambda one: one.at):
        x = scale.x(one.at)
        width = CHAR * len(one.label)
        at_end = x > MARK_RIGHT
        left = x - width if at_end else x
        is_told = left >= right
        if is_told:
            right = left + width + 1
        found.append({"kind": one.kind, "x": x, "label": one.label if is_told else "", "title": one.title or one.label,
                      "anchor": "end" if at_end else "start", "dx": -6 if at_end else 6})  # fmt: skip
    return found


# ---- A long run


@dataclass(frozen=True, slots=True)
class Overview:
    """All calls of a run as columns: how many began in each part of its time."""

    columns: tuple[Mapping[str, Any], ...] = field(default=())

    def to_dict(self) -> list[dict[str, Any]]:
        """Return plain JSON data."""
        return [dict(one) for one in self.columns]


def overview_of(calls: Sequence[tuple[float, str]], *, end: float, height: int = 40) -> Overview:
    """Return the overview of a run: ``calls`` has when each call was asked for, and its state."""
    if not calls:
        return Overview()
    begin = min(at for at, _ in calls)
    end = max(end, begin + 1e-6)
    counts = [0] * BUCKETS
    bad = [0] * BUCKETS
    first: list[int | None] = [None] * BUCKETS
    last = [0] * BUCKETS
    for number, (at, state) in enumerate(calls):
        place = min(BUCKETS - 1, max(0, int((at - begin) / (end - begin) * BUCKETS)))
        counts[place] += 1
        bad[place] += state in ("failed", "in_doubt", "compensation_failed", "compensation_in_doubt", "residue")
        first[place] = number if first[place] is None else first[place]
        last[place] = number
    most = max(counts)
    width = 100 / BUCKETS
    return Overview(
        tuple(
            {
                "x": round(place * width, 3),
                "width": round(width * 0.8, 3),
                "height": max(2, round(count / most * height)),
                "y": height - max(2, round(count / most * height)),
                "count": count,
                "is_bad": bool(bad[place]),
                "first": first[place],
                "last": last[place],
            }
            for place, count in enumerate(counts)
            if count
        )
    )
