"""Two versions of amends side by side: this tree, and a copy with the next version and one migration more."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import amends
from amends.stores.migrations import migrations

SOURCE: Final = Path(amends.__file__).resolve().parent
GROWN: Final = ("amends_run", "amends_call", "amends_event")
NEXT: Final = {
    "sqlite": (
        "create table amends_upgraded (no integer primary key, note text not null) strict",
        *(f"alter table {table} add column upgraded text not null default ''" for table in GROWN),
        "create index amends_call_upgraded on amends_call (upgraded) where upgraded <> ''",
    ),
    "postgresql": (
        "create table amends_upgraded (no bigint primary key, note text not null)",
        *(f"alter table {table} add column upgraded text not null default ''" for table in GROWN),
        "create index amends_call_upgraded on amends_call (upgraded) where upgraded <> ''",
    ),
    "mysql": (
        "create table if not exists amends_upgraded (no bigint not null primary key, note longtext not null)",
        *(f"alter table {table} add column upgraded varchar(64) not null default ''" for table in GROWN),
        "create index amends_call_upgraded on amends_call (upgraded, no)",
    ),
}  # fmt: skip
"""What a next version would add: a table, a column in each of the large tables, an index."""
VERSION: Final = "0.2.0"


def next_version(folder: Path, *, contract: bool = False) -> Path:
    """Copy amends into this folder as its next version; return the folder, which goes onto PYTHONPATH.

    ``contract``: one more migration that this tree cannot live with.
    """
    copy = folder / "amends"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    init = copy / "__init__.py"
    text, count = re.subn(r'__version__ = "[^"]+"', f'__version__ = "{VERSION}"', init.read_text(encoding="utf-8"))
    assert count == 1, "there is one version number"
    init.write_text(text, encoding="utf-8")
    for dialect, statements in NEXT.items():
        number = migrations(dialect)[-1].version + 1
        where = copy / "stores" / "migrations" / dialect
        body = ";\n\n".join(statements)
        (where / f"{number:04d}_next.sql").write_text(f"-- The next version.\n\n{body};\n", encoding="utf-8")
        if contract:
            gone = f"-- needs: {number + 1}\n-- contract\n\ndrop table amends_upgraded;\n"
            (where / f"{number + 1:04d}_contract.sql").write_text(gone, encoding="utf-8")
    return folder


def environment(source: Path, **extra: str) -> dict[str, str]:
    """Return an environment without settings of amends, in which this copy is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AMENDS_", "PYTHONPATH"))}
    return {**kept, "PYTHONPATH": str(source), **extra}


def command(source: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the ``amends`` of this copy."""
    return subprocess.run(
        [sys.executable, "-m", "amends", *args],
        cwd=cwd, env=environment(source), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
