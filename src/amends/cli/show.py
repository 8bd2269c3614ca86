"""What the command line prints: data to stdout, words to stderr, colour only where a person looks.

What comes from the ledger goes through ``visible`` before it gets here; ``put`` escapes once more whatever could still
act on a terminal, and folds long lines itself, so that no row of a terminal begins with text of the ledger.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Final, TextIO

from amends.errors import Error, UsageError
from amends.visible import FOLD_MARK, ascii_json, folded, printable, visible

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
WIDTH_DEFAULT: Final = 80
FOLD_MARK_ASCII: Final = "     | "


WORD_CHARS_MAX: Final = 64
"""No word of ours is longer: it is a name of the ledger, whose end must not begin a row."""


class Shown(str):
    """Text of ours for a card or a table, whose parts from the ledger are visible already."""

    __slots__ = ()


def is_coloured(stream: TextIO) -> bool:
    """Whether a person looks at this stream and has not said NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(text: str = "", *, style: str = "", stream: TextIO | None = None, fold: bool = True) -> None:
    """Print one line; with ``fold``, at a terminal, in as many rows as it needs, each of which shows that it goes on."""
    out = sys.stdout if stream is None else stream
    line = _encodable(printable(text), out)
    for part in _rows(line, out) if fold and out.isatty() else (line,):
        _put_row(part, style, out)


def _encodable(text: str, out: TextIO) -> str:
    """What the terminal has no character for is escaped, never replaced: two texts that differ must look different."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _rows(line: str, out: TextIO) -> Iterator[str]:
    is_plain = _encodable(FOLD_MARK, out) != FOLD_MARK
    return folded(line, _width(out), mark=FOLD_MARK_ASCII if is_plain else FOLD_MARK)


def _put_row(text: str, style: str, out: TextIO) -> None:
    if style and text and is_coloured(out):
        from rich.console import Console
        from rich.text import Text

        # Text, not str: markup such as [link=…] in it means nothing.
        Console(file=out, highlight=False, soft_wrap=True).print(Text(text, style=style))
    else:
        out.write(f"{text}\n")


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or WIDTH_DEFAULT
    except (OSError, ValueError):
        return shutil.get_terminal_size((WIDTH_DEFAULT, 24)).columns


def put_plain(text: str, *, stream: TextIO | None = None) -> None:
    """Print lines as they are."""
    for line in text.split("\n"):
        put(line, stream=stream)


def put_json(value: Any) -> None:
    """One line of JSON: a listing is one object per line, and a reader of a stream has each at once.

    Exact data, in ASCII: a reader gets every character, and a terminal sees none that it would obey.
    """
    sys.stdout.write(ascii_json(json.dumps(_plain(value), ensure_ascii=True)) + "\n")
    sys.stdout.flush()


def _plain(value: object) -> Any:
    """What JSON has no word for, as text; keys that are no texts, as pairs: 1 and "1" stay apart."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {str(key): _plain(one) for key, one in value.items()}
        return {"$map": [[_plain(key), _plain(one)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value.isoformat() if isinstance(value, datetime) else str(value)


def put_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, state: int | None = None) -> None:
    """Columns, aligned; ``state`` is the column that colours its line. Without rows there is no head either.

    On a terminal the last column is cut where the line would wrap: what is copied, ids and names, stands before it.
    """
    lines = [tuple(printable(cell) for cell in row) for row in rows]
    if not lines:
        return
    widths = [max(len(row[column]) for row in (tuple(head), *lines)) for column in range(len(head))]
    room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1) if sys.stdout.isatty() else 0
    put(_aligned(head, widths), style=DIM)
    for row in lines:
        cells = (*row[:-1], _cut(row[-1], max(room, CUT_CHARS_MIN))) if room else row
        put(_aligned(cells, widths), style="" if state is None else STYLES.get(row[state].replace(" ", "_"), ""))


def put_facts(facts: Mapping[str, object], *, stream: TextIO | None = None) -> None:
    """Names and values, one per line and whole; what is empty is left out. A value that is no ``Shown`` is made visible."""
    shown = {
        name: value if isinstance(value, Shown) else visible(str(value), prose=True)
        for name, value in facts.items()
        if value not in (None, "", ())
    }
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        # Only what we say of it is coloured: a reason that reads "approved" is no state.
        style = STYLES.get(value, "") if name in ("state", "verdict") else ""
        put(f"{name:<{width}}  {value}", style=style, stream=stream)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def say(text: str) -> None:
    """Words, which no program reads: to stderr.

    Words of ours may be copied, so the terminal wraps them; where something of the ledger is quoted, they are folded.
    """
    is_quoting = '"' in text or text.startswith(" ") or any(len(word) > WORD_CHARS_MAX for word in text.split(" "))
    put(text, stream=sys.stderr, fold=is_quoting)


def put_error(
    error: Error | str, *, hint: str = "", code: str = "failed", docs: str = "", as_json: bool = False
) -> None:
    """What went wrong, what to do and where it is explained, without a traceback; with ``--json`` as one object."""
    facts = {"code": code, "message": str(error), "hint": hint}
    if isinstance(error, Error):
        from amends.cli.options import docs_of  # the runtime's own names: nothing that --help needs

        # typer leaves a mark on what passes through it.
        own = {name: value for name, value in error.to_dict().items() if not name.startswith("_")}
        facts, docs = own | {"hint": error.hint or hint}, docs or docs_of(error)
    if as_json:
        said = {name: value for name, value in {**facts, "docs": docs}.items() if value}
        sys.stderr.write(ascii_json(json.dumps({"error": _plain(said)}, ensure_ascii=True)) + "\n")
        return
    put(f"error[{facts['code']}]: {printable(str(error))}", style=RED, stream=sys.stderr)
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
    *rows, last = _rows(f"{_encodable(printable(question), sys.stderr)} [y/N] ", sys.stderr)
    sys.stderr.write("".join(f"{row}\n" for row in rows) + last)  # the answer stands in the line of its question
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
    from rich.text import Text

    # Text, not str: markup such as [link=…] in it means nothing.
    with Console(stderr=True, no_color=not is_coloured(sys.stderr), highlight=False).status(Text(printable(text))):
        yield
