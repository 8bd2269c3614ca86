"""What tests do to a PostgreSQL server behind the store's back."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psycopg

from tests.servers.databases import execute

# Fails the first `times` inserts of an event with this code; a sequence counts, because it is never rolled back.
FAILING = """
create sequence failures;
create function fail() returns trigger language plpgsql as $$
begin
    if nextval('failures') <= {times} then
        raise exception using errcode = '{code}', message = 'a failure that a test asked for';
    end if;
    return new;
end
$$;
create trigger failing before insert on amends_event for each row execute function fail();
"""
ENDING = """
create sequence failures;
create function fail() returns trigger language plpgsql as $$
begin
    if nextval('failures') <= {times} then
        perform pg_terminate_backend(pg_backend_pid());
    end if;
    return new;
end
$$;
create trigger failing before insert on amends_event for each row execute function fail();
"""


def fails(url: str, code: str, *, times: int) -> None:
    """Make the next ``times`` inserts of an event fail with this code."""
    execute(url, [FAILING.format(code=code, times=times)])


def ends_sessions(url: str, *, times: int) -> None:
    """End the next ``times`` sessions that insert an event, in the middle of it, as an administrator does."""
    execute(url, [ENDING.format(times=times)])


def works_again(url: str) -> None:
    execute(url, ["drop trigger failing on amends_event", "drop function fail", "drop sequence failures"])


def count(url: str, table: str) -> int:
    found: int = execute(url, [f"select count(*) from {table}"])[0][0]
    return found


def sessions(url: str) -> int:
    """Return how many connections of stores the database has."""
    sql = (
        "select count(*) from pg_stat_activity "
        "where application_name = 'amends' and datname = current_database() and state is not null"
    )
    found: int = execute(url, [sql])[0][0]
    return found


@contextmanager
def locked(url: str, uid: str) -> Iterator[None]:
    """Lock this run from another session."""
    with psycopg.connect(url) as connection:
        connection.execute("select 1 from amends_run where uid = %s for update", (uid,))
        yield


@dataclass
class Wire:
    """A proxy to the server that can be cut at a commit: before it arrives, or before its answer comes back."""

    url: str
    cut: str = ""
    cuts: int = 0
    _listening: socket.socket = field(init=False)
    _open: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def through(self) -> str:
        """Return the URL through this proxy."""
        parts = urlsplit(self.url)
        port = self._listening.getsockname()[1]
        return f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"

    def close(self) -> None:
        self._listening.close()
        for end in self._open:
            end.close()

    def _accept(self) -> None:
        parts = urlsplit(self.url)
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection((parts.hostname or "", parts.port or 0))
            self._open += [client, server]
            answered, muted = threading.Event(), threading.Event()
            threading.Thread(target=self._ask, args=(client, server, answered, muted), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client, answered, muted), daemon=True).start()

    def _ask(
        self, client: socket.socket, server: socket.socket, answered: threading.Event, muted: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.cut and b"commit\x00" in data:
                    how, self.cut = self.cut, ""
                    self.cuts += 1
                    if how == "after":
                        muted.set()
                        server.sendall(data)
                        assert answered.wait(10), "the server answers a commit"
                    break
                server.sendall(data)
        _hang_up(client, server)

    def _answer(
        self, server: socket.socket, client: socket.socket, answered: threading.Event, muted: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if muted.is_set():
                    answered.set()
                    return
                client.sendall(data)
        _hang_up(client, server)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
