"""The statements that amends sends to PostgreSQL, as the server's own log has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.postgres import PostgresServer

PREFIX: Final = "%%"
LOGGED: Final = re.compile(r"LOG:  (?:statement|execute [^:]*): (.*)", re.DOTALL)


class Recorder:
    """A server that logs every statement."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.url = server.create_database()

    def statements(self) -> list[str]:
        """Every different statement in the order of its first use, on one line, with its parameters as ``$1``."""
        text = (self._server.folder / "log").read_text(encoding="utf-8")
        found = [LOGGED.match(entry) for entry in text.split(f"\n{PREFIX}")]
        return list(dict.fromkeys(" ".join(one[1].split()) for one in found if one is not None))


@contextmanager
def recording() -> Iterator[Recorder]:
    settings = {"log_statement": "all", "log_line_prefix": PREFIX.replace("%", "%%"), "log_error_verbosity": "terse"}
    try:
        server = PostgresServer(tcp=True, settings=settings).start()
    except Unavailable as refusal:
        unavailable(refusal)
    try:
        yield Recorder(server)
    finally:
        server.close()
