"""Databases inside a server that is known by its URL: made, dropped, named."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

CONNECT_S = 10
NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# What somebody finds in a server of theirs after a killed test process.
PREFIX = "amends_test_"


def create_database(server_url: str, name: str | None = None, *, template: str = "template0") -> str:
    """A database of that name (else of a new one) is in the server; its URL.

    `template` is PostgreSQL's: a database made once, with everything in it, is copied in milliseconds.
    """
    name = name or f"{PREFIX}{uuid.uuid4().hex[:12]}"
    _check(name, template)
    if is_postgres(server_url):
        execute(server_url, [f"CREATE DATABASE {name} TEMPLATE {template}"])
    else:
        execute(server_url, [f"CREATE DATABASE {name} CHARACTER SET utf8mb4"])
    return with_database(server_url, name)


def drop_database(server_url: str, name_or_url: str) -> None:
    """The database is gone, and so are connections that somebody left open in it."""
    name = database_of(name_or_url) if "://" in name_or_url else name_or_url
    _check(name)
    if is_postgres(server_url):
        execute(server_url, [f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"])
        return
    import pymysql  # type: ignore[import-untyped]

    # An open transaction of a forgotten connection would make the drop wait for ever.
    for (connection_id,) in execute(server_url, [f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"]):
        try:
            execute(server_url, [f"KILL CONNECTION {int(connection_id)}"])
        except pymysql.err.MySQLError:
            continue  # gone meanwhile
    execute(server_url, [f"SET lock_wait_timeout = {CONNECT_S}", f"DROP DATABASE IF EXISTS {name}"])


def execute(url: str, statements: Sequence[str]) -> list[tuple[Any, ...]]:
    """Execute every statement in its own transaction; return the rows of the last one."""
    rows: list[tuple[Any, ...]] = []
    with contextlib.closing(connect(url)) as connection:
        for statement in statements:
            cursor = connection.cursor()
            cursor.execute(statement)
            rows = list(cursor.fetchall()) if cursor.description else []
    return rows


def connect(url: str, *, autocommit: bool = True) -> Any:
    """Return a plain connection of the driver for this URL."""
    if is_postgres(url):
        import psycopg

        return psycopg.connect(url, autocommit=autocommit, connect_timeout=CONNECT_S)
    import pymysql  # type: ignore[import-untyped]

    return pymysql.connect(**mysql_arguments(url), autocommit=autocommit)


def mysql_arguments(url: str) -> dict[str, Any]:
    """What PyMySQL's connect wants."""
    parts = urlsplit(url)
    arguments: dict[str, Any] = {
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "connect_timeout": CONNECT_S,
    }
    if database_of(url):
        arguments["database"] = database_of(url)
    sockets = parse_qs(parts.query).get("unix_socket")
    return arguments | ({"unix_socket": sockets[0]} if sockets else {})


def with_database(url: str, name: str) -> str:
    """The same server and user, another database."""
    found = re.fullmatch(r"([a-z0-9+]+://[^/?#]*)(?:/[^?#]*)?(\?.*)?", url, re.IGNORECASE)
    if found is None:
        raise ValueError(f"not the URL of a database: {url!r}")
    return f"{found[1]}/{name}{found[2] or ''}"


def database_of(url: str) -> str:
    return unquote(urlsplit(url).path.lstrip("/"))


def is_postgres(url: str) -> bool:
    return urlsplit(url).scheme.startswith("postgres")


def _check(*names: str) -> None:
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"not a plain database name: {name!r}")
