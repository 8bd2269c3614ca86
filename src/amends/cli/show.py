"""What the command line prints: data to stdout, words to stderr, colour only where a person looks."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TextIO

from amends.errors import Error, UsageError

GREEN, RED, YELLOW, DIM, BOLD = "green", "red", "yellow", "dim", "bold"
STYLES: Final[Mapping[str, str]] = {
    "committed": GREEN,
    "succeeded": GREEN,
    "approved": GREEN,
    "used": GREEN,
    "ok": GREEN,
    "whole": GREEN,
    "rolled_back": YELLOW,
    "compensated": YELLOW,
    "rolling_back": YELLOW,
    "pending": YELLOW,
    "held": YELLOW,
    "warning": YELLOW,
    "blocked": RED,
    "broken": RED,
    "abandoned": RED,
    "failed": RED,
    "refused": RED,
    "rejected": RED,
    "in_doubt": YELLOW,
    "compensation_failed": RED,
    "compensation_in_doubt": YELLOW,
}
CUT_CHARS_MIN: Final = 12
"""The last column of a table is never cut shorter than this, however narrow the terminal is."""


def is_coloured(stream: TextIO) -> bool:
    """Whether a person looks at this stream and has not said NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(text: str = "", *, style: str = "", stream: TextIO | None = None) -> None:
    """One line."""
    out = sys.stdout if stream is None else stream
    if style and text and is_coloured(out):
        from rich.console import Console
        from rich.text import Text

        # Never wrapped or cut: a line is copied, and a width is only a guess.
        Console(file=out, highlight=False, soft_wrap=True).print(Text(text, style=style))
    else:
        out.write(f"{text}\n")


def put_plain(text: str) -> None:
    """Lines as they are."""
    for line in text.splitlines():
        put(line)


def put_json(value: Any) -> None:
    """One line of JSON: a listing is one object per line, and a reader of a stream has each at once."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=_plain) + "\n")
    sys.stdout.flush()


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def put_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, state: int | None = None) -> None:
    """Columns, aligned; ``state`` is the column that colours its line. Without rows there is no head either.

    On a terminal the last column is cut where the line would wrap: what is copied, ids and names, stands before it.
    """
    lines = [tuple(row) for row in rows]
    if not lines:
        return
    widths = [max(len(row[column]) for row in (tuple(head), *lines)) for column in range(len(head))]
    room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1) if sys.stdout.isatty() else 0
    put(_aligned(head, widths), style=DIM)
    for row in lines:
        cells = (*row[:-1], _cut(row[-1], max(room, CUT_CHARS_MIN))) if room else row
        put(_aligned(cells, widths), style="" if state is None else STYLES.get(row[state].replace(" ", "_"), ""))


def put_facts(facts: Mapping[str, object], *, stream: TextIO | None = None) -> None:
    """Names and values, one per line; what is empty is left out."""
    shown = {name: str(value) for name, value in facts.items() if value not in (None, "", ())}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        put(f"{name:<{width}}  {value}", style=STYLES.get(value, ""), stream=stream)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def say(text: str) -> None:
    """Words, which no program reads: to stderr."""
    put(text, stream=sys.stderr)


def put_error(
    error: Error | str, *, hint: str = "", code: str = "failed", docs: str = "", as_json: bool = False
) -> None:
    """What went wrong, what to do and where it is explained, without a traceback; with ``--json`` as one object."""
    facts = {"code": code, "message": str(error), "hint": hint}
    if isinstance(error, Error):
        from amends.cli.codes import docs_of  # the runtime's own names: nothing that --help needs

        # typer leaves a mark on what passes through it.
        own = {name: value for name, value in error.to_dict().items() if not name.startswith("_")}
        facts, docs = own | {"hint": error.hint or hint}, docs or docs_of(error)
    if as_json:
        said = {name: value for name, value in {**facts, "docs": docs}.items() if value}
        sys.stderr.write(json.dumps({"error": said}, ensure_ascii=False, default=str) + "\n")
        return
    put(f"error[{facts['code']}]: {error}", style=RED, stream=sys.stderr)
    if facts["hint"]:
        say(f"hint: {facts['hint']}")
    if docs:
        put(f"docs: {docs}", style=DIM, stream=sys.stderr)


# ---- at a terminal ------------------------------------------------------------------------


def has_person() -> bool:
    """Whether somebody is there to be asked: both what we say and what they type is at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def must_ask(yes: bool, what: str) -> bool:
    """Whether a person is to be asked; where nobody can be, ``--yes`` must have been said."""
    if not yes and not has_person():
        raise UsageError(f"{what} cannot be undone, and nobody is at a terminal to be asked", hint="say --yes")
    return not yes


def agrees(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    sys.stdout.flush()
    sys.stderr.write(f"{question} [y/N] ")  # the answer stands in the line of its question
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("nothing was done")
    return False


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Shows at a terminal, on stderr, that something is going on, and for how long; else says nothing."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    from rich.console import Console

    with Console(stderr=True, no_color=not is_coloured(sys.stderr), highlight=False).status(text):
        yield
