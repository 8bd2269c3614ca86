"""Declarations that come with amends for MCP servers that people use: one file a server.

An entry has ``title``, ``about``, ``package`` (whose tools these are), ``tested`` (see ``TESTED``), ``listed`` (when its
list of tools was taken from the server, if that needs an account), ``vars`` with defaults, ``server`` with other words
about the server, and ``tools``. What a configuration says of a tool takes the place of the entry's words about it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Final

from amends.errors import BadConfig

TESTED: Final[Mapping[str, str]] = {
    "server": "{package}",
    "api": "{package}, with a stand-in of its API",
    "list": "the list of tools of {package}, with a stand-in of the server",
}
"""What an entry was tested against, by its word ``tested``."""


@lru_cache
def names() -> tuple[str, ...]:
    """Return the names of all entries."""
    return tuple(
        sorted(one.name.removesuffix(".toml") for one in files(__package__).iterdir() if one.name.endswith(".toml"))
    )


@lru_cache
def _entry(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))


def entry(name: str) -> dict[str, Any]:
    """Return one entry; raise ``BadConfig`` if there is none of this name."""
    if name not in names():
        raise BadConfig(
            f"the catalogue has no {name!r}", setting="gateway", origin="catalogue", hint=f"it has {', '.join(names())}"
        )
    return deepcopy(_entry(name))


def package_of(said: Mapping[str, Any]) -> str:
    """Return the name of the package that an entry is for, without its index and version."""
    return str(said["package"].split()[1])


def of_command(table: Mapping[str, Any]) -> str:
    """Return the entry whose package the command of a server names; empty: none."""
    words = [str(one) for one in (table.get("command", ""), *table.get("args", []))]
    return next((name for name in names() if any(_is_of(package_of(_entry(name)), word) for word in words)), "")


def _is_of(package: str, word: str) -> bool:
    """Return whether a word of a command is this package, with or without a version, or a program of its name."""
    return word == package or word.startswith((f"{package}@", f"{package}==")) or PurePath(word).name == package


def tested_against(said: Mapping[str, Any]) -> str:
    """Return what an entry was tested against."""
    return TESTED[said["tested"]].format(package=said["package"])


def merged(table: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the table ``[gateway]`` with the entries that its servers use; their own words take precedence."""
    made = deepcopy(dict(table))
    servers = made.get("servers")
    if not isinstance(servers, dict):
        return made
    for name, server in servers.items():
        if not isinstance(server, dict) or not isinstance(server.get("catalogue"), str) or not server["catalogue"]:
            continue
        try:
            found = entry(server["catalogue"])
        except BadConfig as error:
            raise BadConfig(
                f"{origin}: gateway.servers.{name}: {error}", setting="gateway", origin=origin, hint=error.hint
            ) from None
        for word, value in found.get("server", {}).items():
            server.setdefault(word, value)
        server["tools"] = {**found["tools"], **_table(server, "tools")}
        server["vars"] = {**found.get("vars", {}), **_table(server, "vars")}
    return made


def _table(server: Mapping[str, Any], word: str) -> dict[str, Any]:
    found = server.get(word, {})
    return dict(found) if isinstance(found, dict) else {}
