"""How the demonstration tells a run: a head, its calls from the ledger, and its end."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Final

from amends import Call, Report
from amends.cli.show import BOLD, STYLES, put
from amends.visible import visible

WIDTH: Final = 90
GLYPHS: Final = {
    "succeeded": "✓",
    "failed": "✗",
    "in_doubt": "?",
    "compensated": "↩",
    "dropped": "–",
    "held": "…",
}


def put_head(number: int, title: str, run_id: str) -> None:
    """What is going to happen."""
    put(f"{number}  {title:<{WIDTH - 20}}run {visible(run_id)}", style=BOLD)


def put_rows(report: Report, notes: Mapping[str, str], *, untimed: str = "") -> None:
    """The calls of a run as the ledger has them, in the order in which they started."""
    for call in sorted(report.calls, key=lambda call: (call.started_at is None, str(call.started_at))):
        took = call.tool != untimed and call.state == "succeeded" and call.seconds is not None
        _put_row(call, notes.get(call.tool, ""), call.state, f"{(call.seconds or 0) * 1000:.0f} ms" if took else "")


def put_doubt(report: Report, tool: str, note: str) -> None:
    """One call as it stood when its process was dead and nobody had asked yet."""
    _put_row(next(call for call in report.calls if call.tool == tool), note, "in_doubt", "")


def _put_row(call: Call, note: str, state: str, took: str) -> None:
    words = f"{GLYPHS.get(state, '·')} {state.replace('_', ' ')}"
    told = note or (visible(call.error, prose=True) if state == "failed" and call.error else "")
    put(
        f"   {visible(call.tool):<14}  {call.kind:<14}  {words:<14} {took:>7}   {told}".rstrip(),
        style=STYLES.get(state, ""),
    )


def put_told(text: str, *, indent: int = 3) -> None:
    """What was said, in whole lines."""
    for line in textwrap.wrap(text, WIDTH - indent):
        put(" " * indent + line)


def put_end(report: Report) -> None:
    """How it ended, and that nothing is left where nothing is left."""
    standing = ", nothing left standing" if report.state == "rolled_back" and not report.residue else ""
    put(f"   = {report.state.replace('_', ' ')}{standing}", style=STYLES.get(report.state, ""))
