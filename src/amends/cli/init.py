"""``amends init``: write a first program and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from amends.cli.exit_codes import DONE
from amends.cli.options import Json, group
from amends.cli.output import put, put_json, say
from amends.errors import UsageError, docs_page

verbs = group()
PROGRAM: Final = "app.py"
SETTINGS: Final = "amends.toml"
SETTINGS_TEXT: Final = f"""\
# Settings of amends for this folder and those below it: {docs_page("reference/settings.md")}
url = "sqlite:///amends.db"   # the ledger; relative to this file
app = "app.py:rt"             # where the command line finds your tools
# create = false              # in production: a missing ledger is an error, not a new empty one
"""


@verbs.command()
def init(
    dir: Annotated[Path, typer.Option("--dir", help="The folder; created if it does not exist.")] = Path(),
    as_json: Json = False,
) -> int:
    """Write amends.toml and app.py, a small example program with three tools; never overwrite a file."""
    files = {dir / SETTINGS: SETTINGS_TEXT, dir / PROGRAM: (Path(__file__).parent / "starter.py").read_text("utf-8")}
    there = [str(path) for path in files if path.exists()]
    if there:
        verb = "exists" if len(there) == 1 else "exist"
        raise UsageError(
            f"{' and '.join(there)} already {verb}; nothing was written", hint="choose another folder: --dir"
        )
    try:
        dir.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{dir} cannot be written to: {error}", hint="choose another folder: --dir") from error
    if as_json:
        put_json({"files": [str(path) for path in files]}, id=str(dir))
        return DONE
    for path in files:
        put(str(path))
    inside = "" if dir == Path() else f"cd {dir}; "
    say(f"now: {inside}python {PROGRAM} 1042 4200")
    return DONE
