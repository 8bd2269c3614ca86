"""A run as a person reads it: a table in a terminal, HTML in a notebook, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from amends.model import Call, Lock, Residue, RunInfo
from amends.phrases import plain_mapping
from amends.record import dataclass, field
from amends.states import RunState
from amends.visible import visible, visible_value

GLYPHS: Final = {
    "held": "…",
    "ready": "…",
    "started": "▸",
    "succeeded": "✓",
    "failed": "✗",
    "backing_off": "↻",
    "in_doubt": "?",
    "compensating": "↩",
    "compensated": "↩",
    "compensation_failed": "!",
    "compensation_in_doubt": "?",
    "refused": "⊘",
    "dropped": "–",
    "residue": "!",
}
NOTE_CHARS_MAX: Final = 76


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did: calls, attempts, times, errors, compensations, and what is left standing."""

    run: RunInfo
    calls: tuple[Call, ...]
    residue: tuple[Residue, ...] = ()
    doubts: tuple[Call, ...] = ()
    children: tuple[Report, ...] = ()
    ledger: str = ""
    skipped: tuple[str, ...] = field(default=())
    """Tools that this process would have needed to go on with the run."""
    locks: tuple[Lock, ...] = ()
    """What the run has to itself until it has ended."""
    forks: tuple[str, ...] = ()
    """The forks, open or committed, that stand on what it did."""

    @property
    def run_id(self) -> str:
        """The run's id, as its caller chose it."""
        return self.run.id

    @property
    def state(self) -> RunState:
        """The run's state when this was read."""
        return self.run.state

    @property
    def output(self) -> Any:
        """What the run gave back, if it said so."""
        return self.run.output

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data: the same facts as the table, and all of them."""
        return {
            "run": plain(asdict(self.run)),
            "calls": [plain(asdict(call)) for call in self.calls],
            "residue": [{"call": left.call.id, "tool": left.call.tool, "why": left.why} for left in self.residue],
            "doubts": [call.id for call in self.doubts],
            "children": [child.to_dict() for child in self.children],
            "ledger": self.ledger,
            "skipped": list(self.skipped),
            "locks": [plain(asdict(lock)) for lock in self.locks],
            "forks": list(self.forks),
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return "\n".join([*_head(self), *_table(self), *_foot(self)])

    def _repr_html_(self) -> str:
        import html  # here: its table of entities is for notebooks only

        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>" for cells in _rows(self)
        )
        foot = "<br>".join(html.escape(line.strip()) for line in _foot(self))
        return (
            f"<table><caption>run {html.escape(visible(self.run.id))}</caption>"
            "<thead><tr><th>tool</th><th>kind</th><th>state</th><th>time</th><th></th></tr></thead>"
            f"<tbody>{rows}</tbody></table><p>{foot}</p>"
        )


def plain(value: Any) -> Any:
    """Any value as JSON data; what JSON does not have, as text."""
    if isinstance(value, dict):
        return plain_mapping(value, plain)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def _head(report: Report) -> Iterator[str]:
    run = report.run
    generation = f" (generation {run.generation})" if run.generation > 1 else ""
    ledger = f"   ledger {visible(report.ledger, prose=True)}" if report.ledger else ""
    yield f"run {visible(run.id)}{generation}{ledger}"
    if run.origin is not None:
        yield f"   (loaded from ledger {visible(run.origin)}: a record, that nothing here works with)"
    if run.forked_from is not None:
        count = sum(call.shared is not None for one in _all(report) for call in one.calls)
        origin = f"{visible(run.forked_from)} at {visible(run.forked_at or '')}"
        yield f"   (a fork of {origin}: {count} call{'' if count == 1 else 's'} shared)"
    if run.gone_at is not None:
        yield f"   (arguments and results removed by gc on {run.gone_at:%Y-%m-%d})"


def _all(report: Report) -> Iterator[Report]:
    yield report
    for child in report.children:
        yield from _all(child)


def _table(report: Report) -> Iterator[str]:
    rows = list(_rows(report))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    for tool, kind, state, took, note in rows:
        cells = f"{tool:<{widths[0]}}  {kind:<{widths[1]}}  {state:<{widths[2]}}  {took:>{widths[3]}}  {note}"
        yield "   " + cells.rstrip()


def _rows(report: Report) -> Iterator[tuple[str, str, str, str, str]]:
    for call in report.calls:
        took = "" if call.seconds is None else _took(call.seconds)
        state = f"{GLYPHS[call.state]} {'staged' if call.staged else call.state.replace('_', ' ')}"
        yield visible(call.tool), call.kind, state, took, _note(call)
    for child in report.children:
        yield f"└ {visible(child.run.id)}", "run", child.state.replace("_", " "), "", f"{len(child.calls)} calls"


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _note(call: Call) -> str:
    parts: list[str] = []
    if call.shared:
        parts.append("shared")
    elif call.attempt > 1:
        parts.append(f"{call.attempt} attempts")
    if call.generation > 1:
        parts.append(f"generation {call.generation}")
    if call.replays:
        parts.append(f"answered {call.replays}x from the record")
    if call.staged:
        parts.append("waits for a lock" if call.reason == "lock" else "starts after the pivot, or at commit")
    if call.compensation is not None and call.compensation.attempts > 1:
        parts.append(f"{call.compensation.attempts} compensation attempts")
    if call.state == "succeeded" and call.result is not None:
        parts.append(visible_value(call.result, bare=True))
    if call.loss:
        parts.append(visible(call.loss, prose=True))
    if call.compensation is not None and call.compensation.error and call.state.startswith("compensation"):
        parts.append(visible(call.compensation.error, prose=True))
    elif call.state in ("failed", "in_doubt", "backing_off") and (call.error or call.why):
        parts.append(visible(call.error or str(call.why), prose=True))
    elif call.state in ("held", "residue", "refused") and call.why:
        parts.append(visible(call.why, prose=True))
    elif call.state == "held" and call.reason in ("approval", "budget"):
        parts.append("waits for a person's yes")
    if call.violation:
        parts.append(f"against the law: {visible(call.violation, prose=True)}")
    text = "; ".join(parts)  # in one line; "…" is escaped in what comes from outside, so it always says that it is cut
    return text if len(text) <= NOTE_CHARS_MAX else text[: NOTE_CHARS_MAX - 1] + "…"


def _foot(report: Report) -> Iterator[str]:
    end = report.state.replace("_", " ")
    if report.state == "rolled_back":
        end += ", nothing left standing"
    elif report.state in ("open", "pivoted") and report.run.goal:
        end += f", on its way to {report.run.goal}"
    yield f"   = {end}"
    for left in report.residue:
        yield f"   ! left standing: {visible(left.call.tool)} ({visible(left.call.id)}): {visible(left.why, prose=True)}"
    for lock in report.locks:
        yield f"   · holds {visible(lock.name)} for {_took(lock.held_s)} ({visible(lock.tool)})"
    for fork in report.forks:
        yield f"   · fork {visible(fork)} stands on it"
    for cause in report.run.causes:
        yield f"   → {visible(cause, prose=True)}"
    if report.skipped:
        yield f"   → not taken over here: this process does not have {', '.join(map(visible, report.skipped))}"
