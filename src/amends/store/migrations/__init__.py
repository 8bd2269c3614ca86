"""The schema, forward only: numbered SQL per dialect, applied in order, each once, in one transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    statements: tuple[str, ...]


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """Every migration of this dialect, oldest first, numbered without a gap."""
    folder = files(__name__).joinpath(dialect)
    found = sorted((entry.name, entry.read_text(encoding="utf-8")) for entry in folder.iterdir())
    read = tuple(
        Migration(int(name[:4]), name.removesuffix(".sql"), _statements(text))
        for name, text in found
        if name.endswith(".sql")
    )
    assert [one.version for one in read] == list(range(1, len(read) + 1)), "migrations are numbered without a gap"
    return read


def _statements(text: str) -> tuple[str, ...]:
    """The statements of a file: each ends with a semicolon at the end of a line; comments are dropped."""
    bare = re.sub(r"--.*$", "", text, flags=re.MULTILINE)
    return tuple(one.strip() for one in re.split(r";\s*$", bare, flags=re.MULTILINE) if one.strip())
