"""The schema, forward only: numbered SQL files per dialect, each applied once, in order.

For rolling deploys, a migration only adds (a table, an index, a column with a default), so that an older amends can
continue: it *expands*. The first program of the newer amends applies it. A migration that breaks older ones says so in its
first line, ``-- needs: N``: an amends that knows fewer than N migrations then refuses the ledger. If the newer amends works
without it too, its second line is ``-- contract``: no program applies it by itself. A person does, by ``amends db
migrate``, when the last process of the older version is gone. What comes after it waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from amends.encoding.dataclass import dataclass
from amends.encoding.patterns import pattern
from amends.errors import LedgerTooNew, LedgerTooOld
from amends.model import PlannedMigration, PlannedStatement, Schema

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
PROCEDURE: Final = pattern(r"^(create procedure [^$]*)\$\$\n(.*?)\$\$;", re.MULTILINE | re.DOTALL)
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
    is_contract: bool = False
    """Whether only a person applies it: this amends works before and after it, older ones only before."""


@runtime_checkable
class Migrating(Protocol):
    """A store whose ledger has a schema."""

    dialect: str
    """The folder of its migrations."""

    def schema(self) -> Schema:
        """Return the schema version that the ledger has and the one that this amends has; changes nothing."""
        ...

    def migrate(self) -> Schema:
        """Apply every migration, or create the ledger; return the schema version that it has now."""
        ...


@runtime_checkable
class Estimating(Protocol):
    """A store that can say how large its tables are; a store of somebody else need not."""

    def estimate_rows(self, tables: Collection[str]) -> dict[str, int]:
        """Return about how many rows these tables have, without counting them; one that does not exist is left out."""
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
        Migration(int(name[:4]), name.removesuffix(".sql"), _needs(text), _statements(text), text, _is_contract(text))
        for name, text in found
        if name.endswith(".sql")
    )
    assert [one.version for one in read] == list(range(1, len(read) + 1)), "migrations are numbered without a gap"
    return read


def schema_of(dialect: str, found: int, needs: int, ledger: str) -> Schema:
    """Return what was found (0: nothing) together with what this amends knows."""
    known = migrations(dialect)
    return Schema(found, known[-1].version, needs, tuple(one.name for one in known if one.version > found), ledger)


def applicable(known: tuple[Migration, ...], found: int, *, contract: bool) -> tuple[Migration, ...]:
    """Return those of the known migrations that are applied to a ledger with version ``found`` (0: a new one).

    ``contract``: a person asked for it; otherwise everything from the first contracting one on waits. In a new ledger no
    older amends can be at work.
    """
    left = known[found:]
    if contract or not found:
        return left
    waits = next((place for place, one in enumerate(left) if one.is_contract), len(left))
    return left[:waits]


def check_usable(schema: Schema, where: str) -> None:
    """Raise ``LedgerTooNew`` if a newer amends has changed the ledger so that this one cannot use it."""
    if schema.needs > schema.newest:
        raise LedgerTooNew(
            f"the ledger at {where} has version {schema.version} and needs an amends that knows version "
            f"{schema.needs}; this one knows versions up to {schema.newest}",
            hint="upgrade amends: a newer version has migrated this ledger",
        )


def refuse_old(where: str, missing: str = "") -> LedgerTooOld:
    """Return the error for a ledger of a development version, whose tables were others: it is not migrated."""
    what = f" (it has no {missing})" if missing else ""
    return LedgerTooOld(
        f"the ledger at {where} was written by a development version, amends 0.1.0.dev0 or earlier, whose tables this "
        f"amends does not read{what}; nothing was changed"
    )


def check_shape(schema: Schema, dialect: str, found: Mapping[str, Collection[str]], where: str) -> None:
    """Raise ``LedgerTooOld`` unless the tables have every column that the migrations up to the ledger's version made.

    ``found``: the columns of each table whose name begins with ``amends_``. While there was no release, the first migration
    was changed in place: such a ledger says version 1 and has other tables.
    """
    if not schema.version:
        return
    if "amends_run" not in found:
        raise refuse_old(where, "table amends_run")
    if schema.needs > schema.newest:
        return  # a newer amends may have removed columns; check_usable refuses the ledger
    for table, columns in columns_of(dialect, min(schema.version, schema.newest)).items():
        for column in columns:
            if column not in found.get(table, ()):
                raise refuse_old(where, f"column {column} in {table}" if table in found else f"table {table}")


def columns_of(dialect: str, version: int) -> Mapping[str, tuple[str, ...]]:
    """Return the columns of every table of ours after the first ``version`` migrations, as their files say."""
    return _columns_after(migrations(dialect)[:version])


@cache
def _columns_after(known: tuple[Migration, ...]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for migration in known:
        for statement in migration.statements:
            if made := CREATED.match(statement):
                found[made[1]] = [name for part in _parts(made[2]) if (name := _column(part))]
            elif gone := DROPPED.match(statement):
                found.pop(gone[1], None)
            elif changed := ALTERED.match(statement):
                table, verb, column = changed.groups()
                assert table in found, f"{migration.name} changes {table}, which no migration creates"
                found[table] = [one for one in found[table] if one != column] + ([column] if verb == "add" else [])
    return {table: tuple(columns) for table, columns in found.items() if table.startswith("amends_")}


CREATED: Final = pattern(r"create table (?:if not exists )?(\w+) \((.*)\)[^)]*\Z", re.DOTALL | re.IGNORECASE)
DROPPED: Final = pattern(r"drop table (?:if exists )?(\w+)", re.IGNORECASE)
ALTERED: Final = pattern(
    r"alter table (\w+) (add|drop) column (?:if (?:not )?exists )?[`\"]?(\w+)[`\"]?", re.IGNORECASE
)
SIGNS: Final = pattern(r"[(),]")
NO_COLUMNS: Final = frozenset({"unique", "primary", "check", "constraint", "index", "key", "foreign"})
"""The first words of the parts of a table that are not columns; a column of such a name is quoted."""


def _parts(text: str) -> Iterator[str]:
    """Split the inside of ``create table (...)`` at its outermost commas."""
    depth = begin = 0
    for sign in SIGNS.finditer(text):
        depth += (sign[0] == "(") - (sign[0] == ")")
        if sign[0] == "," and not depth:
            yield text[begin : sign.start()]
            begin = sign.end()
    yield text[begin:]


def _column(part: str) -> str:
    word = part.split(maxsplit=1)[0]
    return "" if word.lower() in NO_COLUMNS else word.strip('`"')


# ---- What a migration would do


def plan_of(dialect: str, schema: Schema, rows: Mapping[str, int]) -> tuple[PlannedMigration, ...]:
    """Return the migrations that are not applied: their SQL, the locks that each statement takes, and rows of its table."""
    return tuple(
        PlannedMigration(
            one.version,
            one.name,
            one.needs,
            one.is_contract,
            tuple(
                PlannedStatement(sql, table, lock_of(dialect, sql, is_new=not schema.version), rows.get(table))
                for sql, table in ((sql, table_of(sql)) for sql in one.statements)
            ),
        )
        for one in migrations(dialect)[schema.version :]
    )


def tables_of(dialect: str, version: int) -> frozenset[str]:
    """Return the tables that the migrations after this version change."""
    return frozenset(table_of(sql) for one in migrations(dialect)[version:] for sql in one.statements) - {""}


TABLE: Final = pattern(
    r"(?:create table|alter table|drop table|update|delete from|insert (?:ignore )?into)"
    r"(?: if (?:not )?exists)? [`\"]?(\w+)|"
    r"create (?:unique )?index [^(]*? on [`\"]?(\w+)",
    re.IGNORECASE,
)


def table_of(sql: str) -> str:
    """Return the table that a statement of a migration changes; empty if it changes none."""
    found = TABLE.match(sql)
    return "" if found is None else found[1] or found[2]


def lock_of(dialect: str, sql: str, *, is_new: bool) -> str:
    """Return in words what a statement of a migration locks, and who waits for it."""
    first = " ".join(sql.split(maxsplit=2)[:2]).lower()
    if is_new or first == "create table":
        return "nothing that others use"
    if dialect == "sqlite":
        return "the file, until the migration ends: writers wait, readers do not"
    if dialect == "postgresql":
        if first in ("create index", "create unique"):
            return "SHARE on the table, until the migration ends: writers wait, readers do not"
        if first in ("alter table", "drop table"):
            return "ACCESS EXCLUSIVE on the table, until the migration ends: all wait"
    elif first in ("alter table", "drop table", "create index", "create unique"):
        return "metadata of the table, at the beginning and the end: all wait then"
    if first.startswith(("update", "delete", "insert")):
        return "the rows that it changes"
    return "nothing that others use"


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


def _is_contract(text: str) -> bool:
    return re.match(r"(?:-- needs: \d+\n)?-- contract\n", text) is not None


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
