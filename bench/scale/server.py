"""The server that is measured, and what it says about itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.contest import ROOT
from tests.servers import PostgresServer
from tests.servers.databases import execute

SETTINGS: Final = {"shared_buffers": "256MB", "max_wal_size": "2GB", "max_connections": "300"}
LOAD_S_MAX: Final = 300
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Result:
    """What a load came to."""

    calls: int
    per_s: float
    p50_ms: float
    p99_ms: float
    client_ms: float
    """CPU time of all client processes per call."""
    server_ms: float
    """CPU time of the server's processes per call."""
    wal_bytes: float
    """Per call."""


class Server:
    """A server that flushes every commit, thrown away after."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._server = PostgresServer(durable=True, tcp=True, settings=SETTINGS | (settings or {}))
        self.url = ""

    def __enter__(self) -> Server:
        self._server.start()
        self.url = self._server.create_database()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of one statement."""
        return execute(self.url, [sql])

    def load(self, *, processes: int = 1, pool_max: int = 10, **options: float | str) -> Result:
        """Run a load of so many processes, begun together; return what it came to."""
        url = f"{self.url}?pool_max={pool_max}"
        given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        argv = [sys.executable, "-m", "bench.scale.load", url, *given]
        with ExitStack() as stack:
            sides = [
                stack.enter_context(
                    subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
                )
                for _ in range(processes)
            ]
            for side in sides:
                assert side.stdout is not None
                assert side.stdout.readline() == "ready\n", "a process of the load did not start"
            [(before,)] = self.ask("select pg_current_wal_lsn()")
            cpu = self._cpu_s()
            for side in sides:
                assert side.stdin is not None
                side.stdin.write("go\n")
                side.stdin.flush()
            told = [json.loads(side.communicate(timeout=LOAD_S_MAX)[0].splitlines()[-1]) for side in sides]
            cpu = self._cpu_s() - cpu
            [(wal,)] = self.ask(f"select pg_wal_lsn_diff(pg_current_wal_lsn(), '{before}')::float8")
        calls = sum(one["calls"] for one in told)
        return Result(
            calls, calls / max(one["seconds"] for one in told), max(one["p50_ms"] for one in told),
            max(one["p99_ms"] for one in told), 1000 * sum(one["cpu_s"] for one in told) / calls, 1000 * cpu / calls,
            wal / calls,
        )  # fmt: skip

    def _cpu_s(self) -> float:
        """Return the CPU time of the server, with that of its children that have ended."""
        postmaster = int((self._server.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        used = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile, and counts with its parent
            if int(stat.parent.name) == postmaster:
                used += sum(map(int, fields[11:15]))
            elif int(fields[1]) == postmaster:
                used += sum(map(int, fields[11:13]))
        return used / TICKS
