"""``amends init``: a place to begin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from amends.cli.codes import DONE
from amends.cli.show import put, put_json, say
from amends.errors import UsageError

PROGRAM: Final = "app.py"
SETTINGS: Final = "amends.toml"
TEXT: Final = """\
# Settings of amends for this folder and those below it: docs/reference/settings.md
url = "sqlite:///amends.db"   # the ledger; relative to this file
app = "app.py:rt"             # where the command line finds your tools
# create = false              # in production: a missing ledger is an error, not a clean slate
"""


def begin(folder: Path, *, as_json: bool) -> int:
    """See ``amends init``. Writes both files or neither, and never over anything."""
    files = {folder / SETTINGS: TEXT, folder / PROGRAM: Path(__file__).with_name("starter.py").read_text("utf-8")}
    there = [str(path) for path in files if path.exists()]
    if there:
        raise UsageError(
            f"there is already {' and '.join(there)}; nothing was written", hint="choose another place: --dir"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error}", hint="choose another place: --dir") from error
    if as_json:
        put_json({"files": [str(path) for path in files]})
        return DONE
    for path in files:
        put(str(path))
    inside = "" if folder == Path() else f"cd {folder}; "
    say(f"now: {inside}python {PROGRAM} 1042 4200")
    return DONE
