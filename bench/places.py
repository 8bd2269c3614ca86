"""Where the databases of a run are: files in a separate folder, and servers that are started and thrown away."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.contest import ROOT

BUILD: Final = ROOT / "build" / "bench"
# The same durability as in production; the buffers hold what is measured, as they would there.
POSTGRES: Final = {"shared_buffers": "512MB", "max_wal_size": "4GB", "max_connections": "300"}
MARIADB: Final = {"innodb_buffer_pool_size": "1G", "innodb_log_file_size": "512M", "local_infile": "1"}
URLS: Final = {"postgres": "AMENDS_BENCH_POSTGRES_URL", "mariadb": "AMENDS_BENCH_MYSQL_URL"}
"""An existing server: measured with its own settings, and only its bench databases are touched."""


class Places:
    """Creates empty databases of one store."""

    def __init__(self, store: str, folder: Path, server_url: str = "") -> None:
        self.store, self._folder, self._server_url = store, folder, server_url
        self._numbers = itertools.count(1)
        self._made: list[str] = []

    def make(self, name: str) -> str:
        """Return the path of a new file, or the URL of a new database."""
        name = f"amends_bench_{os.getpid()}_{next(self._numbers)}_{''.join(c if c.isalnum() else '_' for c in name)}"
        if not self._server_url:
            return str(self._folder / f"{name}.db")
        from tests.servers import create_database

        url = create_database(self._server_url, name.lower())
        self._made.append(url)
        return url

    def drop(self, place: str) -> None:
        """Drop the database. May be called twice."""
        if not self._server_url:
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(place + suffix).unlink(missing_ok=True)
        elif place in self._made:
            from tests.servers import drop_database

            self._made.remove(place)
            drop_database(self._server_url, place)

    def close(self) -> None:
        """Drop every remaining database: the server may belong to somebody."""
        for place in list(self._made):
            self.drop(place)


@contextlib.contextmanager
def places(store: str) -> Iterator[Places]:
    """Provide databases of a store inside the block. Raise the reason if a server is not available."""
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="data-", dir=BUILD))  # on the disk: flushing a file in memory costs nothing
    try:
        with _server(store) as url:
            found = Places(store, folder, url)
            try:
                yield found
            finally:
                found.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _server(store: str) -> Iterator[str]:
    if store not in URLS:
        yield ""
        return
    if given := os.environ.get(URLS[store]):
        yield given
        return
    from tests.servers import MariadbServer, PostgresServer

    server = (
        PostgresServer(durable=True, settings=POSTGRES)
        if store == "postgres"
        else MariadbServer(durable=True, settings=MARIADB)
    )
    with server:
        yield server.url()
