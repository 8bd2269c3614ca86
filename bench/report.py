"""The result: a table for people, JSON for programs that compare runs."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.bars import STORE_NAMES, STORES, Row


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Write a list of rows, each with work, store, ratio, bar and holds first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([row.as_json() for row in rows], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_markdown(rows: Sequence[Row], path: Path) -> None:
    """Return the same as two tables, for the page on speed: a column per store, missed bars in bold."""
    works = list(dict.fromkeys(row.work for row in rows if row.store in STORES))
    works.sort(key=lambda work: work.startswith("never behind"))
    found = {(row.work, row.store): row for row in rows}
    lines = [f"{datetime.now(UTC):%Y-%m-%d}, {machine()}. A bar that is missed is in bold.", ""]
    lines += [
        "| work | " + " | ".join(STORE_NAMES[store] for store in STORES) + " |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {work} | " + " | ".join(_cell(found.get((work, store))) for store in STORES) + " |" for work in works]
    lines += ["", "| alone | |", "| --- | --- |"]
    lines += [f"| {row.work} | {_cell(row)} |" for row in rows if row.store not in STORES]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(row: Row | None) -> str:
    if row is None or row.ratio is None:
        return "" if row is None else "not measured"
    text = f"{row.ratio:.2f}{' ' + row.unit if row.unit else ''}"
    return text if row.holds else f"**{text}**"


def machine() -> str:
    """Describe the size of this machine, without its name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cores} cores, {memory_gb:.0f} GB, {platform.system()}, Python {platform.python_version()}"


def print_table(rows: Sequence[Row], missing: dict[str, str]) -> None:
    """Print the table, in colour at a terminal."""
    if sys.stdout.isatty():
        _print_rich(rows)
    else:
        _print_plain(rows)
    for name, why in missing.items():
        print(f"{name}: {why}")
    for line in dict.fromkeys(_notes(rows)):
        print(line)
    held = sum(row.holds for row in rows)
    print(f"{held} of {len(rows)} bars hold ({machine()})")
    for row in rows:
        if row.error:
            print(f"  {STORE_NAMES.get(row.store, row.store)}: {row.work}: {row.error}")


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for name, note in row.more.get("notes", {}).items():
            text = " ".join(note.split())
            yield f"{name}, {STORE_NAMES.get(row.store, row.store)}: {text[:NOTE_CHARS_MAX]}"


NOTE_CHARS_MAX = 120
HEAD = ("work", "store", "ratio", "bar", "", "p50", "µs", "floor µs", "peers")


def cells(row: Row) -> tuple[str, ...]:
    """Format one row as text."""
    sign = "≤" if row.sense == "at most" else "≥"
    unit = f" {row.unit}" if row.unit else ""
    peers = ", ".join(f"{name} {value:g}" for name, value in row.more.get("peers", {}).items())
    return (
        row.work,
        STORE_NAMES.get(row.store, row.store),
        "failed" if row.ratio is None else f"{row.ratio:.2f}{unit}",
        f"{sign} {row.bar:g}{unit}",
        "holds" if row.holds else "MISSED",
        _number(row.more.get("p50_ratio")),
        _number(row.more.get("us")),
        _number(row.more.get("floor_us", row.more.get("peer_us"))),
        peers or str(row.more.get("peer", "")),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _print_plain(rows: Sequence[Row]) -> None:
    lines = [HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="amends against the floor, and against its peers")
    for name in HEAD:
        table.add_column(name, justify="right" if "µs" in name or name in ("ratio", "bar") else "left")
    for row in rows:
        table.add_row(*cells(row), style="" if row.holds else "red")
    Console().print(table)
