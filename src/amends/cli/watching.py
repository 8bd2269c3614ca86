"""``amends runs watch``: what happens, as it happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from amends import Event, Report, Runtime
from amends.cli.access import reading, run_named
from amends.cli.codes import AWAITING_APPROVAL, DONE, code_of_run
from amends.cli.show import BOLD, STYLES, put, put_json, say
from amends.errors import UsageError
from amends.visible import visible

ENDED: Final = ("committed", "rolled_back", "abandoned", "blocked")
SEQ_MAX: Final = 1 << 62
KNOWN_TOOLS_MAX: Final = 10_000
OWNER_PARTS: Final = 5


def watch(run_id: str | None, *, every: float, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends runs watch``."""
    with reading(url, tenant) as rt:
        if run_id is not None:
            return _watch_run(rt, run_named(rt, run_id), every, as_json)
        say(f"watching {visible(str(rt.settings['url'].value), prose=True)}; Ctrl-C ends it")
        shown = _Shown(rt, as_json, with_run=True)
        try:
            after = newest(rt)
            while True:
                after = shown.all(rt.events(after=after), after)
                time.sleep(every)
        except KeyboardInterrupt:
            return DONE


def newest(rt: Runtime) -> int:
    """The place of the newest event; 0 in an empty ledger. Asks a few dozen times, however large the ledger is."""
    low, high = 0, 1
    while next(iter(rt.events(after=high)), None) is not None:
        low, high = high, high * 2
        assert high < SEQ_MAX, "no ledger is that long"
    while low < high:
        middle = (low + high) // 2
        if next(iter(rt.events(after=middle)), None) is None:
            high = middle
        else:
            low = middle + 1
    return low


def _watch_run(rt: Runtime, run: str, every: float, as_json: bool) -> int:
    shown, after = _Shown(rt, as_json, with_run=False), 0
    if not as_json:
        put(f"run {visible(run)}", style=BOLD)
    while True:
        report = rt.report(run)  # before its events: what ended it is then among them
        after = shown.all(rt.events(run, after=after), after)
        code = code_of_run(report)
        if report.state in ENDED or (code == AWAITING_APPROVAL and report.run.owner is None):
            return _told(report, code, as_json)
        time.sleep(every)


def _told(report: Report, code: int, as_json: bool) -> int:
    if not as_json:
        waits = ", waits for a person" if code == AWAITING_APPROVAL else ""
        put(f"= {report.state.replace('_', ' ')}{waits}", style=STYLES.get(report.state, ""))
    for cause in report.run.causes:
        say(f"→ {visible(cause, prose=True)}")
    return code


class _Shown:
    """Events as lines; a call's event is told with the name of its tool."""

    def __init__(self, rt: Runtime, as_json: bool, *, with_run: bool) -> None:
        self._rt, self._as_json, self._with_run = rt, as_json, with_run
        self._tools: dict[str, str] = {}

    def all(self, events: Iterator[Event], after: int) -> int:
        """Show these; returns the place of the last one."""
        for event in events:
            after = event.seq
            tool = self._tool(event.call_id) if event.call_id else None
            if self._as_json:
                put_json(event_facts(event) | {"tool": tool})
            else:
                put(event_line(event, tool, with_run=self._with_run), style=STYLES.get(event.to, ""))
        return after

    def _tool(self, call_id: str) -> str:
        if call_id not in self._tools:
            if len(self._tools) >= KNOWN_TOOLS_MAX:
                self._tools.clear()
            try:
                self._tools[call_id] = self._rt.call(call_id).tool
            except UsageError:
                self._tools[call_id] = call_id
        return self._tools[call_id]


def event_facts(event: Event) -> dict[str, Any]:
    """An event as JSON has it."""
    return {
        "seq": event.seq,
        "at": event.at.isoformat(),
        "run": event.run_id,
        "call": event.call_id,
        "what": event.what,
        "from": event.frm,
        "to": event.to,
        "by": event.by,
        "facts": dict(event.facts),
    }


def event_line(event: Event, tool: str | None, *, with_run: bool = False) -> str:
    """An event as a person reads it, in the time of this place."""
    moved = f"{event.frm} → {event.to}" if event.frm and event.frm != "(new)" else event.to
    about = visible(tool) if tool else "run"
    what = about if event.what in ("call", "run") else f"{about}: {visible(event.what)}"
    by = f"   by {_spoken(event.by)}" if event.by else ""
    why = event.facts.get("why") or event.facts.get("error") or ""
    run = f"{visible(event.run_id)}  " if with_run else ""
    line = f"{event.at.astimezone():%H:%M:%S}  {run}{what}  {moved.replace('_', ' ')}"
    return f"{line}{by}{f'   {visible(str(why), prose=True)}' if why else ''}".rstrip()


def _spoken(by: str) -> str:
    """Who did it: a person as they said, a process by its number and host instead of all that tells it from others."""
    parts = by.split("|")
    return visible(by) if len(parts) < OWNER_PARTS else f"process {visible(parts[3])} on {visible(parts[0])}"
