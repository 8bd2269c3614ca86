"""What happened in the world of the shop, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Fact(NamedTuple):
    """One effect: what, of which order, under which key, by which version of the tools."""

    verb: str
    order: str
    key: str
    version: str


def read_world(path: Path) -> list[Fact]:
    """Return every effect, oldest first."""
    return [Fact(*line.split()) for line in path.read_text(encoding="utf-8").splitlines()]
