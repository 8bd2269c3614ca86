"""Printing: data to stdout, messages to stderr, colour only at a terminal.

Callers pass text of the ledger through ``visible`` first. ``put`` escapes again whatever could still act on a terminal,
and folds long lines itself, so that no row of a terminal begins with text of the ledger.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from amends.cli.wording import for_gateway, in_commands, worded
from amends.errors import Error, LedgerSealed, UsageError
from amends.visible import (
    FOLD_MARK,
    ascii_json,
    columns,
    folded,
    is_unreadable,
    printable,
    shortened,
    visible,
    visible_args,
    visible_value,
    words_of_line,
)

if TYPE_CHECKING:  # every command loads this module, also `amends --help`, which needs no runtime
    from amends import Call, Now, Report

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
HANGING: Final = "    "
"""Indents the last column of a table where it gets rows of its own."""
BROKEN_CHARS_MIN: Final = 12
"""A cell of this length or less is never broken."""
COLUMN_MIN: Final = 20
"""A last column that would be narrower gets rows of its own."""
WIDTH_DEFAULT: Final = 80
FOLD_MARK_ASCII: Final = "     | "
WORD_CHARS_MAX: Final = 64
"""No word of our own messages is longer. A longer one comes from the ledger, and its end must not begin a row."""
ARGS_CHARS_MAX: Final = 200
"""Arguments in one row of a listing; ``--json`` has all of them."""


class Shown(str):
    """Our own text for a card or a table; the parts that come from the ledger are already made visible."""

    __slots__ = ()


# ---- Lines, tables and JSON


def is_coloured(stream: TextIO) -> bool:
    """Return whether this stream is a terminal that shows colours, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(text: str = "", *, style: str = "", stream: TextIO | None = None, fold: bool = True) -> None:
    """Print one line.

    With ``fold``, a line that is wider than the terminal (or than COLUMNS, if that is set) takes several rows, and each
    further row begins with a mark.
    """
    out = sys.stdout if stream is None else stream
    line = _encodable(printable(text), out)
    for part in _rows(line, out) if fold and _width(out) else (line,):
        _put_row(part, style, out)


def put_plain(text: str, *, stream: TextIO | None = None) -> None:
    """Print several lines as they are."""
    for line in text.split("\n"):
        put(line, stream=stream)


def put_json(value: Mapping[str, Any], *, id: object) -> None:
    """Print one line of JSON and flush it: a listing is one object per line, and a reader of a stream gets each at once.

    ``id`` names what the object is about, under the same word in every output. The data is exact and in ASCII: a program
    gets every character, and a terminal gets none that it would obey.
    """
    sys.stdout.write(ascii_json(json.dumps(_jsonable({"id": id, **value}), ensure_ascii=True)) + "\n")
    sys.stdout.flush()


def put_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, state: int | None = None) -> None:
    """Print aligned columns; without rows, print nothing. A column that is empty in every row is left out.

    ``state`` is the column that colours its row. Where the rows are too wide for the terminal (or for COLUMNS), columns
    are wrapped between words; the first one never is, so that no row begins in the middle of a value. If words are too
    long for that, the last column gets rows of its own, and at last every value does.
    """
    lines = [tuple(printable(cell) for cell in row) for row in rows]
    if not lines:
        return
    styles = ["" if state is None else STYLES.get(row[state].replace(" ", "_"), "") for row in lines]
    kept = [one for one in range(len(head)) if one in (0, state) or any(row[one] for row in lines)]
    heads, cells = [head[one] for one in kept], [[row[one] for one in kept] for row in lines]
    room = _width(sys.stdout)
    widths = _fitted([heads, *cells], room)
    if widths is not None:
        _put_columns([heads, *cells], widths, styles)
        return
    widths = _fitted([row[:-1] for row in [heads, *cells]], room)
    if widths is not None and len(heads) > 1:
        _put_columns([heads[:-1]], widths, [])
        put(f"{HANGING}{heads[-1]}", style=DIM)
        for row, style in zip(cells, styles, strict=True):
            _put_columns([row[:-1]], widths, [], style=style)
            for part in _wrapped(row[-1], (room or 0) - len(HANGING)):
                put(f"{HANGING}{part}", style=style)
        return
    for number, row in enumerate(cells):
        if number:
            put()
        for name, cell in zip(heads, row, strict=True):
            put(f"{name:<{max(map(len, heads))}}  {cell}".rstrip(), style=styles[number])


def _fitted(rows: Sequence[Sequence[str]], room: int | None) -> list[int] | None:
    """Return widths for the columns with which the rows fit and no word is cut; None: there are none."""
    cells = list(zip(*rows, strict=True))
    wanted = [max(map(_size, column)) for column in cells]
    gaps = 2 * (len(wanted) - 1)
    if room is None or sum(wanted) + gaps <= room:
        return wanted
    widths = [
        wanted[0],
        *(max(_size(word.rstrip()) for cell in column for word in words_of_line(cell)) for column in cells[1:]),
    ]
    if len(widths) > 1:
        widths[-1] = max(widths[-1], min(wanted[-1], COLUMN_MIN))
    left = room - gaps - sum(widths)
    if left < 0:
        return None
    for _ in range(left):
        short = max(range(len(widths)), key=lambda one: wanted[one] - widths[one])
        widths[short] += 1
    return widths


def _put_columns(
    rows: Sequence[Sequence[str]], widths: Sequence[int], styles: Sequence[str], *, style: str = DIM
) -> None:
    """Print the rows in these widths, each in as many lines as its longest cell; the first row has ``style``."""
    for row, look in zip(rows, (style, *styles), strict=True):
        parts = [list(_wrapped(cell, width)) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(map(len, parts))):
            cells = [part[number] if number < len(part) else "" for part in parts]
            put(_aligned(cells, widths), style=look, fold=False)


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Yield the text in parts of this width, broken between words; a longer word gets a part of its own."""
    part = ""
    for word in words_of_line(text):
        if part and _size(part) + _size(word.rstrip()) > width:
            yield part.rstrip()
            part = ""
        part += word
    yield part.rstrip()


def _narrowest(cell: str) -> int:
    """Return how narrow a column may be for this cell: a short cell is not broken, another one only between words."""
    return max(_size(word.rstrip()) for word in words_of_line(cell)) if len(cell) > BROKEN_CHARS_MIN else _size(cell)


def _size(text: str) -> int:
    return len(text) if text.isascii() else sum(map(columns, text))


def put_facts(facts: Mapping[str, object], *, stream: TextIO | None = None) -> None:
    """Print names and whole values, one pair per line; leave empty values out.

    A value that is not ``Shown`` is made visible here.
    """
    shown = {
        name: value if isinstance(value, Shown) else visible(str(value), prose=True)
        for name, value in facts.items()
        if value not in (None, "", ())
    }
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        # Colour only our own words: a reason that reads "approved" is not a state.
        style = STYLES.get(value, "") if name in ("state", "verdict") else ""
        put(f"{name:<{width}}  {value}", style=style, stream=stream)


def put_report(report: Report) -> None:
    """Print a report as its table, with the final state in colour, and what happens to the run now if that is known."""
    of_gateway = any(tag.startswith("gateway:") for tag in report.run.tags)
    for line in str(report).split("\n"):
        end = line.strip().startswith("= ")
        if end and report.run.now is not None:
            line += f", {now_words(report.run.now)}"
        if line.strip().startswith("→ "):
            line = in_commands(for_gateway(line, report.run_id) if of_gateway else line)
        put(
            line,
            style=STYLES.get(report.state, "") if end else "",
        )


def now_words(now: Now | None) -> str:
    """Return what happens to a run now, in few words; how long ago instead of a time, as in every table."""
    if now is None:
        return ""
    match now.what:
        case "running":
            return f"runs on {visible(now.where or '', prose=True)}"
        case "waiting":
            return f"waits for {visible(now.waits_for or '', prose=True)}"
        case "orphaned":
            return f"orphaned for {age(now.since)}"


def _encodable(text: str, out: TextIO) -> str:
    """Escape the characters that the terminal cannot show; never replace them, so that different texts look different."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _rows(line: str, out: TextIO) -> Iterator[str]:
    is_plain = _encodable(FOLD_MARK, out) != FOLD_MARK
    return folded(line, _width(out) or WIDTH_DEFAULT, mark=FOLD_MARK_ASCII if is_plain else FOLD_MARK)


def _put_row(text: str, style: str, out: TextIO) -> None:
    if style and text and is_coloured(out):
        from rich.console import Console
        from rich.text import Text

        # Text, not str: rich would obey markup such as [link=…] in a str.
        Console(file=out, highlight=False, soft_wrap=True).print(Text(text, style=style))
    else:
        out.write(f"{text}\n")


def _width(stream: TextIO) -> int | None:
    """Return how wide a line may be: as the terminal, else as COLUMNS says; None: as wide as it is."""
    if not stream.isatty():
        said = os.environ.get("COLUMNS", "")
        return int(said) if said.isdecimal() and int(said) else None
    try:
        return os.get_terminal_size(stream.fileno()).columns or WIDTH_DEFAULT
    except (OSError, ValueError):
        return shutil.get_terminal_size((WIDTH_DEFAULT, 24)).columns


def _jsonable(value: object) -> Any:
    """Return what JSON can hold: other values as text, and a mapping whose keys are not all texts as pairs.

    As pairs, the keys 1 and "1" stay different.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {str(key): _jsonable(one) for key, one in value.items()}
        return {"$map": [[_jsonable(key), _jsonable(one)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return [_jsonable(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((_jsonable(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _jsonable(getattr(value, one.name)) for one in fields(value)}
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell + " " * (width - _size(cell)) for cell, width in zip(cells, widths, strict=True)).rstrip()


# ---- Messages on stderr


def say(text: str) -> None:
    """Print a message to stderr, which no program reads.

    Our own words may be copied, so the terminal wraps them. A message that quotes the ledger is folded.
    """
    is_quoting = '"' in text or text.startswith(" ") or any(len(word) > WORD_CHARS_MAX for word in text.split(" "))
    put(text, stream=sys.stderr, fold=is_quoting)


def say_how_many(found: Sequence[Any], more: bool, what: str, ledger: Any, *, filter: str = "") -> None:
    """Say that a listing was cut at its limit, or that nothing was found."""
    if more:
        say(f"the first {len(found)} {what}s of {visible(str(ledger), prose=True)}; --limit shows more")
    elif not found:
        say_none(what, ledger, filter=filter)


def say_none(what: str, ledger: Any, *, filter: str) -> None:
    """Say that nothing was found; name the filter, because there may be others that it leaves out."""
    wanted = f"with {visible(filter.strip(), prose=True)} " if filter.strip() else ""
    say(f"no {what} {wanted}in {visible(str(ledger), prose=True)}")


def put_error(
    error: Error | str, *, hint: str = "", code: str = "failed", docs: str = "", as_json: bool = False
) -> None:
    """Print what went wrong, what to do and where it is explained, without a traceback; as one object if ``as_json``.

    An ``Error`` brings its own code, hint and page; ``code``, ``hint`` and ``docs`` are for an error that is a text.
    """
    facts = {"code": code, "message": str(error), "hint": hint}
    if isinstance(error, Error):
        from amends.cli.exit_codes import docs_of

        # typer adds an attribute with a leading underscore to every exception that passes through it.
        own = {name: value for name, value in error.to_dict().items() if not name.startswith("_")}
        facts, docs = worded(own | {"hint": error.hint or hint}), docs or docs_of(error)
        facts["message"] = in_commands(str(facts["message"]))
    if as_json:
        given = {name: value for name, value in {**facts, "docs": docs}.items() if value}
        sys.stderr.write(ascii_json(json.dumps({"error": _jsonable(given)}, ensure_ascii=True)) + "\n")
        return
    put(f"error[{facts['code']}]: {printable(str(facts['message']))}", style=RED, stream=sys.stderr)
    if facts["hint"]:
        say(f"hint: {facts['hint']}")
    if docs:
        put(f"docs: {docs}", style=DIM, stream=sys.stderr)


# ---- Questions and progress at a terminal


def has_person() -> bool:
    """Return whether a person can be asked: both stdin and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def must_ask(yes: bool, what: str) -> bool:
    """Return whether to ask a person; raise ``UsageError`` if nobody can be asked and ``--yes`` was not given."""
    if not yes and not has_person():
        raise UsageError(f"{what} cannot be undone, and there is no terminal to ask at", hint="add --yes")
    return not yes


def confirm(question: str) -> bool:
    """Ask at the terminal, and return whether the answer was yes."""
    sys.stdout.flush()
    # A no-break space, which the question itself never has: the end of the question stays beside what can be answered.
    asked = f"{_encodable(printable(question), sys.stderr)}\N{NO-BREAK SPACE}[y/N]\N{NO-BREAK SPACE}"
    *rows, last = (row.replace("\N{NO-BREAK SPACE}", " ") for row in _rows(asked, sys.stderr))
    sys.stderr.write("".join(f"{row}\n" for row in rows) + last)  # the answer is typed on the line of its question
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("nothing was done")
    return False


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner with this text on stderr while the block runs, if stderr is a terminal.

    The block gets a function that changes the text.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    # Text, not str: rich would obey markup such as [link=…] in a str.
    console = Console(stderr=True, no_color=not is_coloured(sys.stderr), highlight=False)
    with console.status(Text(printable(text))) as status:
        yield lambda new: status.update(Text(printable(new)))


# ---- Times and arguments as text


def iso_time(at: datetime | None) -> str | None:
    """Return a time as ISO 8601, to the second."""
    return None if at is None else at.isoformat(timespec="seconds")


def duration(seconds: float) -> str:
    """Return a short text for a duration: 12 ms, 4.0 s, 3 m, 2 h, 5 d."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    for size, unit in ((60, "m"), (3_600, "h"), (86_400, "d")):
        if seconds < size * 100 or unit == "d":
            return f"{seconds / size:.0f} {unit}"
    raise AssertionError("a day is the largest unit")


def age(at: datetime | None) -> str:
    """Return how long ago this was; empty if the time is not known."""
    return "" if at is None else duration((datetime.now(UTC) - at).total_seconds())


def args_short(args: Mapping[str, Any]) -> str:
    """Return arguments in one line of a listing, cut at a limit; a person who decides is shown ``args_lines``."""
    # Text of the ledger never shows as "…", so a cut can be recognized.
    return shortened(visible_value(dict(args)), ARGS_CHARS_MAX)


def args_lines(args: Mapping[str, Any], classes: Mapping[str, str] | None = None) -> list[str]:
    """Return whole arguments, one line for each, and one for each class that an annotation leaves open."""
    return [f"   {line}" for line in visible_args(args, classes)]


def check_readable(call: Call) -> None:
    """Raise ``LedgerSealed`` if the arguments are encrypted and no key is here: nobody may decide what they cannot read."""
    if is_unreadable(call.args):
        raise LedgerSealed(
            f"the arguments of call {visible(call.id)} ({visible(call.tool)}) are encrypted, and there is no key here "
            "to show them: a person cannot decide about arguments they cannot read",
            run_id=call.run_id,
        )
