"""The measurements, each of which returns a table in Markdown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from amends import Runtime
from bench.scale.load import CALLS, TOOLS
from bench.scale.server import Server

TABLES: Final = ("amends_run", "amends_call", "amends_event")
MONTHS: Final = 12


def flush_ms(server: Server) -> float:
    """Return what one bare committed insert takes, in the middle: no ledger on this machine is faster with one thread."""
    server.ask("create table floor (n bigint)")
    with psycopg.connect(server.url, autocommit=True) as connection:
        took = []
        for number in range(100):
            begun = time.monotonic()
            connection.execute("insert into floor values (%s)", (number,))
            took.append(time.monotonic() - begun)
    return sorted(took)[len(took) // 2] * 1000


def rates(server: Server, *, quick: bool) -> list[str]:
    """Return calls per second by processes, threads and connections."""
    seconds = 1.0 if quick else 4.0
    cases: Sequence[tuple[int, int, int]] = (
        ((1, 1, 10), (1, 8, 10), (2, 8, 10))
        if quick
        else (
            (1, 1, 10),
            (1, 4, 10),
            (1, 16, 10),
            (1, 16, 2),
            (2, 8, 10),
            (4, 4, 10),
            (4, 16, 10),
            (8, 8, 10),
            (8, 8, 2),
        )
    )
    lines = _head(
        "processes",
        "threads each",
        "connections each",
        "calls/s",
        "p50 ms",
        "p99 ms",
        "client CPU ms a call",
        "server CPU ms a call",
    )
    for processes, threads, pool in cases:
        one = server.load(processes=processes, pool_max=pool, threads=threads, seconds=seconds)
        lines.append(
            f"| {processes} | {threads} | up to {pool} | {one.per_s:,.0f} | {one.p50_ms:.1f} | {one.p99_ms:.1f} |"
            f" {one.client_ms:.2f} | {one.server_ms:.2f} |"
        )
    return lines


def bytes_of(server: Server, *, quick: bool) -> list[str]:
    """Return the bytes of a call: in the tables, in their indexes, in the log; and what dead rows and vacuum do."""
    calls = 4_000 if quick else 20_000
    done = server.load(threads=8, calls=calls)
    server.ask("checkpoint")
    server.ask("select pg_stat_force_next_flush()")
    before = _sizes(server)
    stats = {name: tuple(rest) for name, *rest in server.ask(
        "select relname, n_tup_upd, n_tup_hot_upd, n_dead_tup from pg_stat_user_tables where relname like 'amends_%'"
    )}  # fmt: skip
    server.ask("vacuum")
    server.ask("select pg_stat_force_next_flush()")
    after = _sizes(server)
    left = dict(server.ask("select relname, n_dead_tup from pg_stat_user_tables where relname like 'amends_%'"))
    lines = _head(
        "table",
        "bytes a call",
        "of it indexes",
        "updates a call",
        "updated in place",
        "dead rows before vacuum",
        "after",
        "bytes a call after vacuum",
    )
    total = [0.0, 0.0, 0.0]
    for name in TABLES:
        updates, hot, dead = stats[name]
        sizes = before[name][0] / done.calls, before[name][1] / done.calls, after[name][0] / done.calls
        total = [one + more for one, more in zip(total, sizes, strict=True)]
        in_place = f"{hot / updates:.0%}" if updates else "none"
        lines.append(
            f"| `{name}` | {sizes[0]:,.0f} | {sizes[1]:,.0f} | {updates / done.calls:.2f} | {in_place} | {dead:,} |"
            f" {left[name]:,} | {sizes[2]:,.0f} |"
        )
    lines.append(f"| all | {total[0]:,.0f} | {total[1]:,.0f} | | | | | {total[2]:,.0f} |")
    return [
        *lines,
        "",
        f"{done.calls:,} calls in runs of four; write-ahead log: {done.wal_bytes:,.0f} bytes a call, without autovacuum.",
    ]


def _sizes(server: Server) -> dict[str, tuple[int, int]]:
    found = server.ask(
        "select relname, pg_total_relation_size(oid), pg_indexes_size(oid) from pg_class where relkind = 'r'"
        " and relname like 'amends_%'"
    )
    return {name: (size, indexes) for name, size, indexes in found}


def vacuumed(*, quick: bool) -> list[str]:
    """Return what the same load comes to with autovacuum, and without it."""
    seconds = 1.0 if quick else 15.0
    lines = _head(
        "autovacuum", "calls/s", "server CPU ms a call", "log bytes a call", "dead rows at the end", "autovacuums"
    )
    for name, settings in (
        ("off", {"autovacuum": "off"}),
        ("default", {"autovacuum": "on", "autovacuum_naptime": "1s"}),
        (
            "eager: scale factor 0.01",
            {"autovacuum": "on", "autovacuum_naptime": "1s", "autovacuum_vacuum_scale_factor": "0.01"},
        ),
    ):
        with Server(settings) as server:
            one = server.load(processes=2, threads=8, seconds=seconds)
            server.ask("select pg_stat_force_next_flush()")
            [(dead, runs)] = server.ask(
                "select sum(n_dead_tup)::bigint, sum(autovacuum_count)::bigint from pg_stat_user_tables"
            )
        lines.append(f"| {name} | {one.per_s:,.0f} | {one.server_ms:.2f} | {one.wal_bytes:,.0f} | {dead:,} | {runs} |")
    return lines


WORDS: Final = {
    "plain": "a plain call: one statement to start, one to settle",
    "general": "a call on the general path (a rule looked at it): a transaction of several statements",
    "ledger": '`scope="ledger"`, every call another key',
    "budget": "one budget for the whole tenant, which every call charges",
    "lock": "a lock, every call another name",
    "one lock": "a lock, every call the same name: one run after another",
}


def wide(server: Server, *, quick: bool) -> list[str]:
    """Measure calls that are about the whole ledger, with one thread and with many."""
    seconds = 0.5 if quick else 3.0
    lines = _head("call", "calls/s, 1 thread", "calls/s, 8 threads", "server CPU ms a call", "log bytes a call")
    for work in TOOLS:
        one = server.load(threads=1, seconds=seconds, work=work)
        many = server.load(threads=8, seconds=seconds, work=work)
        lines.append(
            f"| {WORDS[work]} | {one.per_s:,.0f} | {many.per_s:,.0f} | {many.server_ms:.2f} | {many.wal_bytes:,.0f} |"
        )
    return lines


def checkpoints(server: Server, *, quick: bool) -> list[str]:
    """Return how long a checkpoint takes over so many changed runs, and what the log gets."""
    lines = _head("changed runs", "until a checkpoint covers them, ms", "log bytes a run")
    with Runtime(server.url, tools=list(TOOLS.values()), checkpoint="off") as rt:
        rt.checkpoint()
        for runs in (100,) if quick else (100, 1_000, 2_500):
            server.load(threads=8, calls=runs * CALLS)
            [(before,)] = server.ask("select pg_current_wal_lsn()")
            begun = time.monotonic()
            rt.checkpoint()
            took_ms = (time.monotonic() - begun) * 1000
            [(wal,)] = server.ask(f"select pg_wal_lsn_diff(pg_current_wal_lsn(), '{before}')::float8")
            lines.append(f"| {runs:,} | {took_ms:,.0f} | {wal / runs:,.0f} |")
    return lines


def partitions(server: Server, *, quick: bool) -> list[str]:
    """Return what the table of calls by month costs, as an experiment, and what is not unique any more."""
    rows = 12_000 if quick else 120_000
    server.ask(
        'create table flat (no bigint primary key, root bigint not null, "key" bytea not null, gen bigint not null,'
        " args text not null)"
    )
    server.ask('create unique index flat_key on flat (root, "key", gen)')
    server.ask(
        'create table monthly (no bigint primary key, root bigint not null, "key" bytea not null, gen bigint not null,'
        " args text not null) partition by range (no)"
    )
    for month in range(MONTHS):
        server.ask(
            f"create table monthly_{month} partition of monthly for values from ({month * rows // MONTHS}) to"
            f" ({(month + 1) * rows // MONTHS})"
        )
    unique = "refused"
    try:
        server.ask('create unique index monthly_key on monthly (root, "key", gen)')
        unique = "possible"
    except psycopg.errors.FeatureNotSupported:
        server.ask('create index monthly_key on monthly (root, "key", gen)')
    lines = _head("", "one table", f"{MONTHS} partitions by the number of the call")
    figures: dict[str, list[str]] = {"a unique index over run, key and generation": ["possible", unique]}
    for name in ("flat", "monthly"):
        begun = time.monotonic()
        server.ask(
            f"insert into {name} select n, n / 4, sha256(int8send(n)), 1, repeat('x', 80) from generate_series(0, {rows - 1}) n"
        )
        figures.setdefault("insert, µs a row", []).append(f"{(time.monotonic() - begun) / rows * 1e6:.1f}")
        server.ask(f"analyze {name}")
        by_key = _timed(
            server,
            f'select 1 from {name} where root = %s and "key" = sha256(int8send(%s)) and gen = 1',
            rows,
            both=True,
        )
        by_no = _timed(server, f"select 1 from {name} where no = %s", rows, both=False)
        figures.setdefault("find a call by run and key (does it exist?), µs", []).append(f"{by_key:.0f}")
        figures.setdefault("find a call by its number, µs", []).append(f"{by_no:.0f}")
    lines += [f"| {what} | {' | '.join(values)} |" for what, values in figures.items()]
    return lines


def _timed(server: Server, sql: str, rows: int, *, both: bool) -> float:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor: Any = connection.cursor()
        places = [(place * 7_919) % rows for place in range(600)]
        took = 0.0
        for warm in (True, False):
            begun = time.monotonic()
            for place in places:
                cursor.execute(sql, (place // 4, place) if both else (place,), prepare=True)
            took = time.monotonic() - begun
            assert cursor.fetchall() or warm, "the row is there"
    return took / len(places) * 1e6


def _head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]
