"""The schema, forward only: numbered SQL per dialect, applied in order, each once.

Rolling deploys: a migration only ever adds (a table, an index, a column with a default), so an amends that does not
know it can go on. One that cannot be lived with says so in its first line, ``-- needs: N``: whoever knows fewer
than N migrations refuses the ledger from then on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

from amends.errors import LedgerTooNew
from amends.model import Schema


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    needs: int
    """The newest migration that an amends must know to use the ledger after this one."""
    statements: tuple[str, ...]


@runtime_checkable
class Migrating(Protocol):
    """A store whose ledger has a schema."""

    def schema(self) -> Schema:
        """What the ledger has and what this amends would have; makes and changes nothing."""
        ...

    def migrate(self) -> Schema:
        """Bring the ledger up to date, making it if there is none; what it has now."""
        ...


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """Every migration of this dialect, oldest first, numbered without a gap."""
    from importlib.resources import files  # 4 ms that who only imports amends need not pay

    folder = files(__name__).joinpath(dialect)
    found = sorted((entry.name, entry.read_text(encoding="utf-8")) for entry in folder.iterdir())
    read = tuple(
        Migration(int(name[:4]), name.removesuffix(".sql"), _needs(text), _statements(text))
        for name, text in found
        if name.endswith(".sql")
    )
    assert [one.version for one in read] == list(range(1, len(read) + 1)), "migrations are numbered without a gap"
    return read


def schema_of(dialect: str, found: int, needs: int, ledger: str) -> Schema:
    """What is there (0: nothing) beside what this amends knows."""
    known = migrations(dialect)
    return Schema(found, known[-1].version, needs, tuple(one.name for one in known if one.version > found), ledger)


def check_usable(schema: Schema, where: str) -> None:
    """Raise ``LedgerTooNew`` when a newer amends has changed the ledger beyond what this one can live with."""
    if schema.needs > schema.newest:
        raise LedgerTooNew(
            f"the ledger at {where} has version {schema.version} and needs an amends that knows version "
            f"{schema.needs}; this one knows versions up to {schema.newest}",
            hint="upgrade amends: a newer one has changed this ledger",
        )


def _needs(text: str) -> int:
    said = re.match(r"-- needs: (\d+)\n", text)
    return int(said[1]) if said else 1


def _statements(text: str) -> tuple[str, ...]:
    """The statements of a file: each ends with a semicolon at the end of a line; comments are dropped.

    The body of a function stands between two lines that hold ``$$`` and is one statement, semicolons and all.
    """
    bare = re.sub(r"^\s*--.*$|\s+--.*$", "", text, flags=re.MULTILINE)
    found: list[str] = []
    for part, body in re.findall(r"((?:[^$]|\$(?!\$))+)(\$\$.*?\$\$)?", bare, flags=re.DOTALL):
        pieces = re.split(r";\s*$", part, flags=re.MULTILINE)
        if found and found[-1].endswith("$$"):  # what follows a body up to its semicolon belongs to it
            found[-1] += pieces.pop(0).rstrip()
        found += [piece.strip() for piece in pieces]
        if body:
            found[-1] = f"{found[-1]} {body}" if found[-1] else body
    return tuple(one for one in found if one)
