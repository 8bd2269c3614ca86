"""``make scale``: measure, and write the tables of docs/explanation/scale.md again (``ARGS=--quick``: print them only)."""

from __future__ import annotations

import argparse
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.contest import ROOT
from bench.report import machine
from bench.scale import parts, shards
from bench.scale.server import Server
from tests.servers import Unavailable

PAGE: Final = ROOT / "docs" / "explanation" / "scale.md"


def main() -> int:
    read = argparse.ArgumentParser(prog="make scale", description=__doc__)
    read.add_argument("--quick", action="store_true", help="a minute: less of each, and nothing is written")
    read.add_argument("--only", help="one part by its name; the others in the page stay")
    said = read.parse_args()
    if said.only is not None and said.only not in NAMES:
        read.error(f"no part is called {said.only}; there are {', '.join(NAMES)}")
    try:
        tables = measured(quick=said.quick, only=said.only)
    except Unavailable as refusal:
        print(f"nothing was measured: {refusal}", file=sys.stderr)
        return 1
    for name, lines in tables.items():
        print(f"\n{name}\n")
        print("\n".join(lines))
    if not said.quick:
        print(f"\nwritten: {PAGE.relative_to(ROOT)}")
    return 0


NAMES: Final = ("machine", "rates", "bytes", "vacuum", "global", "checkpoints", "partitions", "shards")


def measured(*, quick: bool, only: str | None) -> dict[str, list[str]]:
    """Return every table by its name."""
    tables: dict[str, list[str]] = {}

    def part(name: str, make: object) -> None:
        if only in (None, name):
            begun = time.monotonic()
            tables[name] = make()  # type: ignore[operator]
            if not quick:
                write(PAGE, {name: tables[name]})  # at once: the whole takes minutes, and may be interrupted
            print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)

    def on_server(name: str, make: object, **settings: str) -> None:
        def with_server() -> list[str]:
            with Server(settings) as server:
                return make(server, quick=quick)  # type: ignore[operator, no-any-return]

        part(name, with_server)

    part("machine", _machine)
    on_server("rates", parts.rates)
    on_server("bytes", parts.bytes_of, autovacuum="off")
    part("vacuum", lambda: parts.vacuumed(quick=quick))
    on_server("global", parts.wide)
    on_server("checkpoints", parts.checkpoints)
    on_server("partitions", parts.partitions)
    part("shards", shards.table)
    return tables


def write(page: Path, tables: dict[str, list[str]]) -> None:
    """Replace each table in the page, between its two comments; raise if the page has no place for one."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        place = re.compile(rf"(<!-- measured: {name} -->\n).*?(<!-- end measured -->)", re.DOTALL)
        if not place.search(text):
            raise LookupError(f"{page} has no place for the table {name}")
        body = "\n".join(lines)
        text = place.sub(lambda found, body=body: f"{found[1]}{body}\n{found[2]}", text)  # type: ignore[misc]
    page.write_text(text, encoding="utf-8")


def _machine() -> list[str]:
    with Server() as server:
        [(version,)] = server.ask("show server_version")
        floor_ms = parts.flush_ms(server)
    server_said = f"PostgreSQL {version.partition(' ')[0]} on the same machine, every commit flushed"
    floor_said = f"a bare committed insert took {floor_ms:.1f} ms (median)"
    return [f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, {server_said}: {floor_said}."]


if __name__ == "__main__":
    sys.exit(main())
