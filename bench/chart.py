"""The result as an SVG chart: one panel per store, a bar per row, the limit as a line across it. Needs no library.

Lengths are on a logarithmic scale of value divided by limit: the line in the middle is the limit of every row, and a bar
that ends to the left of it holds. So rows of all units, and of both directions, can be drawn in one panel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from bench.bars import STORE_NAMES, Row

WIDTH: Final = 1130
LABEL: Final = 565
"""Where the scale begins; the names are to the left of it."""
SCALE: Final = 330
ROW: Final = 24
HEAD: Final = 86
GAP: Final = 40
SPAN: Final = 16.0
"""The scale reaches from a sixteenth of the limit to sixteen times it. Longer bars are cut, their numbers are not."""

STYLE: Final = """
    .card { fill: #ffffff; }
    .title { fill: #1f2328; font-size: 18px; font-weight: 600; }
    .store { fill: #1f2328; font-size: 14px; font-weight: 600; }
    .say, .tick { fill: #57606a; font-size: 12px; }
    .name { fill: #1f2328; font-size: 12.5px; }
    .number { fill: #1f2328; font-size: 12px; font-family: ui-monospace, 'DejaVu Sans Mono', monospace; }
    .track { fill: #f0f2f5; }
    .good { fill: #2f7d5b; }
    .bad { fill: #c2570c; }
    .limit { stroke: #1f2328; stroke-width: 1.5; }
    .peer { fill: #ffffff; stroke: #1f5fbf; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; }
      .title, .store, .name, .number { fill: #e6edf3; }
      .say, .tick { fill: #9aa4af; }
      .track { fill: #1c232c; }
      .good { fill: #4cc38a; }
      .bad { fill: #f0883e; }
      .limit { stroke: #e6edf3; }
      .peer { fill: #0d1117; stroke: #79b8ff; }
    }
"""

FONT: Final = "ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"
FRAME: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
role="img" aria-labelledby="title desc" font-family="{font}">
  <title id="title">amends against its limits</title>
  <desc id="desc">{said}</desc>
  <style>{style}  </style>
  <rect class="card" width="{width}" height="{height}" rx="8"/>
  <text class="title" x="20" y="30">amends against its limits: {said}</text>
  <text class="say" x="20" y="50">A bar that ends left of the line holds; the scale is logarithmic. \
The ring is the best peer with the same durability.</text>
{panels}
</svg>
"""


def write_svg(rows: Sequence[Row], path: Path) -> None:
    """Write the chart to this path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(chart(rows), encoding="utf-8")


def chart(rows: Sequence[Row]) -> str:
    """Return the SVG. Rows that compare with a peer are drawn as a mark into the row of the same work."""
    stores = [store for store in STORE_NAMES if any(row.store == store for row in rows)]
    parts: list[str] = []
    y = HEAD
    for store in stores:
        own = [row for row in rows if row.store == store and not row.work.startswith("never behind")]
        parts += _panel(STORE_NAMES[store], own, y)
        y += GAP + ROW * len(own)
    held = sum(row.holds for row in rows)
    said = f"{held} of {len(rows)} bars hold, those against peers included"
    return FRAME.format(width=WIDTH, height=y + 10, style=STYLE, said=escape(said), panels="\n".join(parts), font=FONT)


def _panel(name: str, rows: Sequence[Row], y: int) -> list[str]:
    parts = [f'  <text class="store" x="20" y="{y}">{escape(name)}</text>']
    parts += [
        f'  <text class="tick" x="{_x(times):.0f}" y="{y}" text-anchor="middle">{label}</text>'
        for times, label in ((0.25, "¼"), (1, "limit"), (4, "4×"))
    ]
    bottom = y + 8 + ROW * len(rows)
    for place, row in enumerate(rows):
        parts += _line(row, y + 8 + place * ROW)
    return [*parts, f'  <line class="limit" x1="{_x(1):.1f}" y1="{y + 4}" x2="{_x(1):.1f}" y2="{bottom}"/>']


def _line(row: Row, y: int) -> list[str]:
    text = y + 16
    parts = [
        f'  <text class="name" x="20" y="{text}">{escape(row.work)}</text>',
        f'  <rect class="track" x="{LABEL}" y="{y + 4}" width="{SCALE}" height="{ROW - 8}" rx="3"/>',
    ]
    sign = "≤" if row.sense == "at most" else "≥"
    unit = f" {row.unit}" if row.unit else ""
    if row.ratio is None:
        said = "not measured"
    else:
        said = f"{row.ratio:.2f}{unit} ({sign} {row.bar:g})"
        length = _x(_times(row, row.ratio)) - LABEL
        kind = "good" if row.holds else "bad"
        parts.append(f'  <rect class="{kind}" x="{LABEL}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" rx="3"/>')
    peer = row.more.get("peer_ratio")
    if peer:
        parts.append(
            f'  <circle class="peer" cx="{_x(_times(row, peer)):.1f}" cy="{y + ROW / 2}" r="5">'
            f"<title>{escape(str(row.more['peer']))}: {peer:g}</title></circle>"
        )
    return [*parts, f'  <text class="number" x="{LABEL + SCALE + 12}" y="{text}">{escape(said)}</text>']


def _times(row: Row, value: float) -> float:
    """Return the value divided by the limit: above one is a miss, whichever way the row counts."""
    value = max(value, 1e-9)
    return value / row.bar if row.sense == "at most" else row.bar / value


def _x(times: float) -> float:
    share = (math.log(min(max(times, 1 / SPAN), SPAN), SPAN) + 1) / 2
    return LABEL + SCALE * max(share, 0.01)
