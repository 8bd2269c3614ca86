"""What the command line prints: data to stdout, words to stderr, colour only where a person looks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from amends.errors import Error

GREEN, RED, YELLOW, DIM, BOLD = "green", "red", "yellow", "dim", "bold"
STYLES: Final[Mapping[str, str]] = {
    "committed": GREEN,
    "succeeded": GREEN,
    "rolled_back": YELLOW,
    "compensated": YELLOW,
    "rolling_back": YELLOW,
    "blocked": RED,
    "abandoned": RED,
    "failed": RED,
    "refused": RED,
    "in_doubt": YELLOW,
    "compensation_failed": RED,
    "compensation_in_doubt": YELLOW,
}


def is_coloured(stream: TextIO) -> bool:
    """Whether a person looks at this stream and has not said NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(text: str = "", *, style: str = "", stream: TextIO | None = None) -> None:
    """One line."""
    out = sys.stdout if stream is None else stream
    if style and text and is_coloured(out):
        from rich.console import Console
        from rich.text import Text

        # Never wrapped or cut: a table is copied, and a width is only a guess.
        Console(file=out, highlight=False, soft_wrap=True).print(Text(text, style=style))
    else:
        out.write(f"{text}\n")


def put_json(value: Any) -> None:
    """One line of JSON: a listing is one object per line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def put_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, state: int | None = None) -> None:
    """Columns, aligned; ``state`` is the column that colours its line. Without rows there is no head either."""
    lines = [tuple(row) for row in rows]
    if not lines:
        return
    widths = [max(len(row[column]) for row in (tuple(head), *lines)) for column in range(len(head))]
    put(_aligned(head, widths), style=DIM)
    for row in lines:
        put(_aligned(row, widths), style="" if state is None else STYLES.get(row[state].replace(" ", "_"), ""))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def say(text: str) -> None:
    """Words, which no program reads: to stderr."""
    put(text, stream=sys.stderr)


def put_error(error: Error | str, *, hint: str = "") -> None:
    """What went wrong and what to do, without a traceback."""
    put(f"error: {error}", style=RED, stream=sys.stderr)
    words = hint if isinstance(error, str) else error.hint or hint
    if words:
        say(f"hint: {words}")
