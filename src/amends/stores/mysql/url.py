"""The URL of a MariaDB or MySQL ledger. The password is in no text that is ever shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from amends.errors import BadConfig

FORM: Final = "mysql://user:password@host:3306/database"
PORT: Final = 3306
POOL_MAX: Final = 10
"""Connections of one process. A server accepts 151 by default, of all processes together."""
POOL_MOST: Final = 1000
LOCK_WAIT_S: Final = 20.0
"""How long an operation waits for a locked row or for a free connection before it gives up."""
CONNECT_S: Final = 10.0
FILES: Final = ("ssl_ca", "ssl_cert", "ssl_key")
OPTIONS: Final = ("unix_socket", *FILES, "ssl_verify_identity", "pool_max", "lock_wait_s", "connect_s")


@dataclass(frozen=True, slots=True)
class Address:
    """The server and its database, and our options."""

    shown: str
    """The URL without its password and options."""
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    unix_socket: str = ""
    tls: Mapping[str, str] = field(default_factory=dict)
    verify_identity: bool = True
    pool_max: int = POOL_MAX
    lock_wait_s: float = LOCK_WAIT_S
    connect_s: float = CONNECT_S

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the driver's connection."""
        given: dict[str, Any] = {
            "user": self.user or None,
            "password": self.password.encode(),  # a str would be encoded as latin-1 by the driver
            "database": self.database,
            "connect_timeout": self.connect_s,
        }
        if self.unix_socket:
            return given | {"unix_socket": self.unix_socket, "ssl_disabled": True}
        given |= {"host": self.host, "port": self.port, **self.tls}
        if "ssl_ca" in self.tls:  # an unchecked certificate proves nothing
            given |= {"ssl_verify_cert": True, "ssl_verify_identity": self.verify_identity}
        return given


def read_address(url: str) -> Address:
    """Parse the URL. Raises ``BadConfig``, which never quotes it: a password may be anywhere in it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or PORT
    except ValueError:
        raise _bad(
            "the ledger's URL cannot be read", hint=f"use {FORM}; percent-encode the password (@ is %40)"
        ) from None
    scheme = parts.scheme.partition("+")[0]
    database = unquote(parts.path.removeprefix("/"))
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise _bad(f"{scheme}: has no option {', '.join(unknown)}", hint=f"it has: {', '.join(OPTIONS)}")
    socket = options.get("unix_socket", "")
    if not database or "/" in database or not re.fullmatch(r"[^\x00`]{1,64}", database):
        raise _bad(f"the {scheme}: URL names no database", hint=f"use {FORM}")
    if not host and not socket:
        raise _bad(f"the {scheme}: URL names no server", hint=f"use {FORM}, or ?unix_socket=/run/mysqld/mysqld.sock")
    user = unquote(parts.username or "")
    place = f"{host or 'localhost'}{f':{parts.port}' if parts.port else ''}"
    who = f"{quote(user)}@" if user else ""
    tail = f"?unix_socket={quote(socket)}" if socket else ""
    return Address(
        shown=f"{scheme}://{who}{place}/{quote(database)}{tail}",
        host=host,
        port=port,
        user=user,
        password=unquote(parts.password or ""),
        database=database,
        unix_socket=socket,
        tls={name: options[name] for name in FILES if options.get(name)},
        verify_identity=_truth(options, "ssl_verify_identity"),
        pool_max=int(_number(options, "pool_max", POOL_MAX, low=1, high=POOL_MOST)),
        lock_wait_s=_number(options, "lock_wait_s", LOCK_WAIT_S, low=1, high=3600),
        connect_s=_number(options, "connect_s", CONNECT_S, low=1, high=3600),
    )


def _number(options: Mapping[str, str], name: str, default: float, *, low: float, high: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not low <= float(text) <= high:
        raise _bad(f"{name}={text} cannot be used", hint=f"it is a number from {low:g} to {high:g}")
    return float(text)


def _truth(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "true").lower()
    if text not in ("true", "false"):
        raise _bad(f"{name}={text} cannot be used", hint="it is true or false")
    return text == "true"


def _bad(message: str, *, hint: str) -> BadConfig:
    return BadConfig(message, setting="url", hint=hint)
