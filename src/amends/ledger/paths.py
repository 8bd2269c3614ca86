"""The path in the URL of a file: ``sqlite:///what?/ledger.db?synchronous=normal``."""

from __future__ import annotations

import os
from typing import Final

from amends.encoding.patterns import pattern

_QUERY: Final = pattern(r"[A-Za-z_]+=[^/?]*|(?i:synchronous)")
"""Options, or the name of one without its value: a mistake that must not become another, empty ledger."""


def split_path(text: str) -> tuple[str, str]:
    """Return the path and the options; a ``?`` that no option follows, or that is written ``%3F``, is in the path."""
    path, mark, query = text.rpartition("?")
    if not mark or not _QUERY.fullmatch(query):
        path, query = text, ""
    return path.replace("%3F", "?").replace("%3f", "?"), query


def written_path(path: str | os.PathLike[str]) -> str:
    """Return a path as it stands in a URL."""
    return os.fspath(path).replace("?", "%3F")
