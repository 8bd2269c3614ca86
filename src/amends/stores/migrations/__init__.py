"""The schema, forward only: numbered SQL files per dialect, each applied once, in order.

For rolling deploys, a migration only adds (a table, an index, a column with a default), so that an older amends can
continue. A migration that breaks older ones says so in its first line, ``-- needs: N``: an amends that knows fewer
than N migrations then refuses the ledger.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from amends.encoding.dataclass import dataclass
from amends.errors import LedgerTooNew, LedgerTooOld
from amends.model import Schema

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


STAMPS: Final = {
    "sqlite": ("cast(strftime('%s', 'now') as real)", "lower(hex(randomblob(8)))"),
    "postgresql": (
        "extract(epoch from clock_timestamp())",
        "substr(replace(cast(gen_random_uuid() as text), '-', ''), 1, 16)",
    ),
    "mysql": ("unix_timestamp(now(6))", "lower(substr(replace(uuid(), '-', ''), 1, 16))"),
}
"""By dialect, in SQL: the time now, and a new name of a ledger."""
PROCEDURE: Final = re.compile(r"^(create procedure [^$]*)\$\$\n(.*?)\$\$;", re.MULTILINE | re.DOTALL)
"""A procedure in a file for MariaDB and MySQL: its head, and its body between two marks."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    needs: int
    """The newest migration that an amends must know to use the ledger after this one."""
    statements: tuple[str, ...]
    text: str = ""
    """The file as it was written, with its comments."""


@runtime_checkable
class Migrating(Protocol):
    """A store whose ledger has a schema."""

    dialect: str
    """The folder of its migrations."""

    def schema(self) -> Schema:
        """Return the schema version that the ledger has and the one that this amends has; changes nothing."""
        ...

    def migrate(self) -> Schema:
        """Migrate the ledger, or create it; return the schema version that it has now."""
        ...


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """Return every migration of this dialect, oldest first, numbered without a gap."""
    folder: Traversable = Path(__file__).with_name(dialect)
    if not folder.is_dir():  # installed as a zip file; the import takes as long as a tenth of amends
        from importlib.resources import files

        folder = files(__name__).joinpath(dialect)
    found = sorted((entry.name, entry.read_text(encoding="utf-8")) for entry in folder.iterdir())
    read = tuple(
        Migration(int(name[:4]), name.removesuffix(".sql"), _needs(text), _statements(text), text)
        for name, text in found
        if name.endswith(".sql")
    )
    assert [one.version for one in read] == list(range(1, len(read) + 1)), "migrations are numbered without a gap"
    return read


def schema_of(dialect: str, found: int, needs: int, ledger: str) -> Schema:
    """Return what was found (0: nothing) together with what this amends knows."""
    known = migrations(dialect)
    return Schema(found, known[-1].version, needs, tuple(one.name for one in known if one.version > found), ledger)


def check_usable(schema: Schema, where: str) -> None:
    """Raise ``LedgerTooNew`` if a newer amends has changed the ledger so that this one cannot use it."""
    if schema.needs > schema.newest:
        raise LedgerTooNew(
            f"the ledger at {where} has version {schema.version} and needs an amends that knows version "
            f"{schema.needs}; this one knows versions up to {schema.newest}",
            hint="upgrade amends: a newer version has migrated this ledger",
        )


def refuse_old(where: str) -> LedgerTooOld:
    """Return the error for a ledger of 0.1.0.dev0, whose tables had other names: it is not migrated."""
    return LedgerTooOld(
        f"the ledger at {where} was written by amends 0.1.0.dev0, whose tables this amends does not read; nothing was changed"
    )


def sql_of(dialect: str) -> str:
    """Return the SQL that creates a ledger, with its comments, for people who create tables by themselves.

    It also records each migration, as ``migrate`` does: amends finds the ledger up to date.
    """
    now, name = STAMPS[dialect]
    texts = []
    for one in migrations(dialect):
        known = name if one.version == 1 else "max(ledger)"
        source = "" if one.version == 1 else " from amends_schema"
        row = f"insert into amends_schema select {one.version}, {one.needs}, {now}, {known}{source};\n"
        # The clients of MariaDB and MySQL need to be told where a procedure ends; PostgreSQL's quotes its text by $$.
        text = PROCEDURE.sub(r"delimiter $$\n\1\2$$\ndelimiter ;", one.text) if dialect == "mysql" else one.text
        texts.append(f"-- {one.name}\n\n{text}\n-- This migration was applied.\n{row}")
    return "\n".join(texts)


def _needs(text: str) -> int:
    found = re.match(r"-- needs: (\d+)\n", text)
    return int(found[1]) if found else 1


def _statements(text: str) -> tuple[str, ...]:
    """Split a file into statements: each ends with a semicolon at the end of a line; comments are dropped.

    The body of a function is between two lines that have ``$$``; it is part of one statement, with its semicolons.
    """
    bare = re.sub(r"^\s*--.*$|\s+--.*$", "", text, flags=re.MULTILINE)
    found: list[str] = []
    for part, body in re.findall(r"((?:[^$]|\$(?!\$))+)(\$\$.*?\$\$)?", bare, flags=re.DOTALL):
        pieces = re.split(r";\s*$", part, flags=re.MULTILINE)
        if found and found[-1].endswith(
            "$$"
        ):  # what follows a body, up to its semicolon, belongs to the same statement
            found[-1] += pieces.pop(0).rstrip()
        found += [piece.strip() for piece in pieces]
        if body:
            found[-1] = f"{found[-1]} {body}" if found[-1] else body
    return tuple(one for one in found if one)
