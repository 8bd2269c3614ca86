"""The folder of the demonstration: made, made again, and never at the cost of what somebody else put there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from amends.errors import UsageError

MARK: Final = ".amends-demo.json"
"""Says that we made this folder, and the digest of the program we put there."""
SHOP: Final = "shop.py"
MADE: Final = (
    *("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-journal"),
    *("ledger.db.anchor", "ledger.db.anchor.lock"),
    *("payments.jsonl", "stock.jsonl", "shipping.jsonl", "mail.jsonl"),
    SHOP,
)


def prepare(folder: Path, *, fresh: bool) -> Path:
    """A folder with the shop's program in it; with ``fresh`` nothing of an earlier time. Returns the program."""
    program = Path(__file__).with_name(SHOP).read_bytes()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark = _mark(folder)
        if fresh or mark is None:
            _clear(folder, mark)
            (folder / SHOP).write_bytes(program)
            (folder / MARK).write_text(json.dumps({"shop": _digest(program)}) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the demonstration cannot be made in {folder}: {error}", hint="choose another place with --dir"
        ) from error
    return folder / SHOP


def _mark(folder: Path) -> dict[str, Any] | None:
    """What we wrote there the last time; None where we never were."""
    path = folder / MARK
    if path.is_file():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        except ValueError:
            return {}
    if any(folder.iterdir()):
        raise UsageError(
            f"{folder} is not empty and was not made by amends demo; nothing in it was touched",
            hint="choose another place with --dir",
        )
    return None


def _clear(folder: Path, mark: dict[str, Any] | None) -> None:
    program = folder / SHOP
    if mark is not None and program.is_file() and _digest(program.read_bytes()) != mark.get("shop"):
        raise UsageError(
            f"{program} was changed since amends demo made it; nothing was touched",
            hint="play with it as it is: --keep; or leave it alone and choose another place: --dir",
        )
    for name in MADE:
        (folder / name).unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
