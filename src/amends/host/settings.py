"""Settings: argument > AMENDS_* > amends.toml > [tool.amends] in pyproject.toml > default, each with its origin."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from amends.budgets import checked_budgets
from amends.encoding.dataclass import dataclass
from amends.encoding.secret import MASK, Hidden
from amends.errors import BadConfig, close_to
from amends.ledger.paths import split_path, written_path
from amends.tools.rules import checked_approvers, checked_rules
from amends.tools.toml_tools import checked_tools


def _checked_oncall(given: object, origin: str) -> Any:
    from amends.host.oncall import checked_oncall  # here: few programs have such a table

    return checked_oncall(given, origin)


def _checked_login(value: Any, origin: str) -> Mapping[str, Any]:
    from amends.host.login_settings import checked_login  # here: few programs are services

    return checked_login(value, origin)


APPLICATION: Final = "DATABASE_URL"
"""The variable of the application's own database: read last, and no table is created there."""
NO_FILES: Final = ("", "/", ":memory:")
"""Paths in the URL of SQLite that name no file."""
LEDGERS: Final = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")
DEFAULTS: Final[dict[str, Any]] = {
    "url": None,
    "order": "strict",
    "interrupted": "block",
    "lease": 30.0,
    "wait": 30.0,
    "wait_approval": 0.0,
    "poll": 0.25,
    "poll_approval": 1.0,
    "poll_worker": 5.0,
    "payload_bytes_max": 1 << 20,
    "create": True,
    "repeats": False,
    "tenant": None,
    "agent": None,
    "principal": None,
    "app": None,
    "by": None,
    "anchor": None,
    "checkpoint": 5.0,
    "audit_key": None,
    "budgets": (),
    "rules": (),
    "approvers": {},
    "oncall": (),
    "tools": (),
    "link_secret": None,
    "link_url": None,
    "token_cache": 5.0,
    "secret": None,
    "secret_file": None,
    "login": {},
    "login_secret": None,
    "redact": None,
    "secret_key": None,
    "encrypt": None,
}
LISTS: Final = ("redact", "encrypt")
"""Settings that are lists of strings: a list, or one string separated by blanks."""
SECRETS: Final = ("secret_key", "encrypt", "audit_key", "secret", "login_secret")
"""Settings that are never shown."""
HIDDEN: Final = ("secret", "login_secret")
"""Those whose value is a ``Hidden``: who needs it asks for it."""
TABLES: Final[dict[str, Callable[[Any, str], Any]]] = {
    "budgets": checked_budgets,
    "rules": checked_rules,
    "approvers": checked_approvers,
    "oncall": _checked_oncall,
    "tools": checked_tools,
    "login": _checked_login,
}
"""Settings that are tables in a file, so they have no environment variable; each with its check."""
CONFIG: Final = "AMENDS_CONFIG"
"""The variable that names the only file to read. The user who sets it trusts that file, whoever owns it."""
LOWEST: Final = {"lease": 0.05, "poll": 0.001, "poll_approval": 0.001, "poll_worker": 0.01, "payload_bytes_max": 1_024}
"""The smallest value of a number; 0 for those that are not named."""
HIGHEST: Final = {
    "poll": 3_600.0,
    "poll_approval": 3_600.0,
    "poll_worker": 3_600.0,
    "payload_bytes_max": 1 << 26,
    "token_cache": 300.0,
}
"""The largest value of a number, where there is one: who looks never again waits for ever."""
SWITCHED: Final = ("checkpoint",)
"""Settings that are a number or ``off``."""
EDGES: Final = frozenset({"gateway"})
"""Tables that others read: ``amends gateway`` checks its own."""
CHOICES: Final = {"order": ("strict", "advise"), "interrupted": ("block", "commit")}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its origin."""

    value: Any
    origin: str


def settle_settings(
    given: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, alone: bool = False
) -> dict[str, Setting]:
    """Return every setting with its origin. Read at most one ``amends.toml`` and one ``pyproject.toml``.

    ``alone``: read no file and no variable; a test must never reach the real ledger.
    """
    env = {} if alone else os.environ if environ is None else environ
    unknown = sorted(set(given) - set(DEFAULTS))
    assert not unknown, f"settings that do not exist: {unknown}"
    files = [] if alone else _files(env.get(CONFIG, ""))
    for path, table in files:
        _refuse_strange(path, table)
    settled = {name: _one(name, given.get(name), env, files) for name in DEFAULTS}
    url = settled["url"] = _placed(settled["url"], files, env.get(APPLICATION, ""))
    if url.origin == APPLICATION:
        # The application's own database: amends creates no table in it unless a person says so, by amends db migrate.
        # Whoever set create did not mean this database.
        settled["create"] = Setting(False, APPLICATION)
    return settled


def _one(name: str, given: Any, env: Mapping[str, str], files: list[tuple[Path, Mapping[str, Any]]]) -> Setting:
    if given is not None:
        return Setting(_checked(name, given, "argument"), "argument")
    variable = f"AMENDS_{name.upper()}"
    if name not in TABLES and env.get(variable):
        return Setting(_checked(name, env[variable], variable), variable)
    for path, table in files:
        if name in table:
            return Setting(_checked(name, table[name], str(path)), str(path))
    return Setting(DEFAULTS[name], "default")


def _checked(name: str, value: Any, origin: str) -> Any:
    default = DEFAULTS[name]
    if name in LISTS:
        texts = value.split() if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise BadConfig(f"{name} ({origin}) is not a list of strings", setting=name, origin=origin)
        return tuple(texts)
    if name in TABLES:
        return TABLES[name](value, origin)
    if isinstance(default, bool):
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        known = words.get(str(value).lower())
        if known is None:
            raise BadConfig(
                f"{name} is {value!r} ({origin}), which is neither true nor false", setting=name, origin=origin
            )
        return known
    if isinstance(default, int):
        return _bytes(name, value, origin)
    if name in SWITCHED and (value is False or str(value).lower() == "off"):
        return "off"
    if isinstance(default, float):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        low, high = LOWEST.get(name, 0.0), HIGHEST.get(name)
        if not number >= low or (high is not None and number > high):
            raise BadConfig(
                f"{name} is {value!r} ({origin}); it is a number of seconds, at least {low:g}"
                f"{'' if high is None else f' and at most {high:g}'}{', or off' if name in SWITCHED else ''}",
                setting=name,
                origin=origin,
            )
        return number
    if not isinstance(value, str):
        shown = MASK if name in SECRETS else repr(value)
        raise BadConfig(f"{name} is {shown} ({origin}), which is not a string", setting=name, origin=origin)
    if name in CHOICES and value not in CHOICES[name]:
        raise BadConfig(
            f"{name} is {value!r} ({origin}); it is one of {', '.join(CHOICES[name])}", setting=name, origin=origin
        )
    return Hidden(value) if name in HIDDEN else value


def _bytes(name: str, value: Any, origin: str) -> int:
    low, high = int(LOWEST[name]), int(HIGHEST[name])
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else -1
    except ValueError:
        number = -1
    if not low <= number <= high:
        raise BadConfig(
            f"{name} is {value!r} ({origin}); it is a whole number of bytes, from {low} to {high}",
            setting=name,
            origin=origin,
        )
    return number


def _files(named: str) -> list[tuple[Path, Mapping[str, Any]]]:
    """Return the nearest ``amends.toml`` upwards, then the nearest ``pyproject.toml``, with their tables.

    ``named``: read only this file, which is trusted. A file that was found must belong to this user or to root: it
    sets approvers, and names code that is run.
    """
    here = Path.cwd()
    if named:
        path = here / named
        table = _table(path)
        return [(path, _own_table(table) or {} if path.name == "pyproject.toml" else table)]
    found: list[tuple[Path, Mapping[str, Any]]] = []
    for folder in (here, *here.parents):
        path = folder / "amends.toml"
        if path.is_file() or path.is_symlink():
            _check_trusted(path, above=folder != here)
            found.append((path, _table(path)))
            break
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            own = _own_table(_table(path))
            if own is not None:
                _check_trusted(path, above=folder != here)
            if own is not None or folder == here or _is_ours(path):
                found.append((path, own or {}))
            break
    return found


def _own_table(table: Mapping[str, Any]) -> Mapping[str, Any] | None:
    tools = table.get("tool", {})
    own = tools.get("amends") if isinstance(tools, dict) else None
    return own if isinstance(own, dict) else None


def _check_trusted(path: Path, *, above: bool) -> None:
    """Raise ``BadConfig`` for a file that another user owns, may write, or may replace.

    ``above``: it was found above the working directory; there the group must not have write access either.
    """
    if not hasattr(os, "geteuid"):
        return  # Windows: the status of a file does not tell its owner
    for place in dict.fromkeys((path, path.resolve())):
        try:
            link, file, folder = place.lstat(), place.stat(), place.parent.stat()
        except OSError as error:
            raise BadConfig(f"{path} cannot be read: {error}", setting="", origin=str(path)) from error
        others = stat.S_IWOTH | (stat.S_IWGRP if above else 0)
        for status in (link, file):
            if status.st_uid not in (os.geteuid(), 0):
                raise _untrusted(path, f"belongs to {_owner(status.st_uid)}, not to you or root")
        if file.st_mode & others:
            raise _untrusted(path, f"belongs to {_owner(file.st_uid)}, and others may write it", cure="chmod go-w")
        if folder.st_uid not in (os.geteuid(), 0) and above:
            raise _untrusted(path, f"is in a folder of {_owner(folder.st_uid)}, who may replace it")
        if folder.st_mode & others and not folder.st_mode & stat.S_ISVTX:
            raise _untrusted(path, f"is in {place.parent}, where others may replace it")


def _is_ours(path: Path) -> bool:
    """Return whether a file's folder may be the place of the ledger: another user's file would lead to their ledger."""
    return not hasattr(os, "geteuid") or path.stat().st_uid in (os.geteuid(), 0)


def _untrusted(path: Path, why: str, *, cure: str = "") -> BadConfig:
    mend = f"{cure} {path}, or name" if cure else "name"
    return BadConfig(
        f"{path} {why}: it could set approvers and run code as you, so it is not read",
        setting="",
        origin=str(path),
        hint=f"{mend} a file that you trust: --config FILE, or {CONFIG}",
    )


def _owner(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _refuse_strange(path: Path, table: Mapping[str, Any]) -> None:
    """Raise ``BadConfig`` for an unknown name: a rule under ``[[rule]]`` would silently ask nobody."""
    strange = sorted(set(table) - set(DEFAULTS) - EDGES)
    if strange:
        close = close_to(strange[0], DEFAULTS)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise BadConfig(f"{strange[0]!r} is not a setting ({path}){meant}", setting=strange[0], origin=str(path))


def _table(path: Path) -> Mapping[str, Any]:
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # invalid TOML and invalid UTF-8 are both a ValueError
        raise BadConfig(f"{path} cannot be read: {error}", setting="", origin=str(path)) from error


@lru_cache(maxsize=4)
def _parsed(text: str) -> Mapping[str, Any]:
    """Parse TOML, cached by its text: a program with many runtimes reads the file for each and parses it once."""
    import tomllib  # here: many programs have no such file

    return tomllib.loads(text)


def _of_application(url: str) -> str | None:
    """Return the URL of the application's database if a ledger can be there; None if not.

    In the URL of a file the driver and the options are those of another library.
    """
    scheme, _, rest = url.partition(":")
    scheme = scheme.partition("+")[0].lower()
    if scheme not in LEDGERS:
        return None
    if scheme != "sqlite":
        return url
    path = split_path(rest.removeprefix("///"))[0]
    return f"sqlite:///{written_path(path)}" if rest.startswith("///") and path not in NO_FILES else None


def _placed(url: Setting, files: list[tuple[Path, Mapping[str, Any]]], application: str = "") -> Setting:
    """Return the URL with an absolute path: relative to the file that sets it, else to the working directory.

    It is never a temporary or per-user folder: with a second, empty ledger an agent would pay twice.
    """
    if url.value is None and (found := _of_application(application)) is not None:
        url = Setting(found, APPLICATION)
    if url.value is None:
        folder = files[0][0].parent if files else Path.cwd()
        return Setting(f"sqlite:///{written_path(folder / 'amends.db')}", "default")
    text = str(url.value)
    if not text.startswith("sqlite:///"):
        return url
    path, query = split_path(text.removeprefix("sqlite:///"))
    if path in NO_FILES:
        return url  # refused by the store, which says what to use
    base = Path.cwd() if url.origin in ("argument", "AMENDS_URL", APPLICATION) else Path(url.origin).parent
    absolute = written_path(base / path)
    return Setting(f"sqlite:///{absolute}" + (f"?{query}" if query else ""), url.origin)
