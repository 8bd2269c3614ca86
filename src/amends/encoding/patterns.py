"""Regular expressions that are compiled on first use: a program that imports amends needs few of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

__all__ = ["pattern"]

if TYPE_CHECKING:
    from re import compile as pattern
else:

    class pattern:  # noqa: N801 (type checkers see the function ``re.compile``)
        """Stands for ``re.compile(text, flags)``."""

        def __init__(self, text: str, flags: int = 0) -> None:
            self.pattern, self._flags = text, flags

        def __getattr__(self, name: str) -> Any:
            made = re.compile(self.pattern, self._flags)
            for verb in _VERBS:  # from now on they are read without this method
                setattr(self, verb, getattr(made, verb))
            return getattr(made, name)

        def __repr__(self) -> str:
            return f"pattern({self.pattern!r})"


_VERBS: Final = ("findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn")
