"""What is hidden: the places and spellings that nobody may read in the ledger, and what stands there instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from amends.record import dataclass

MASK: Final = "•••"
"""What people and models see where a value is hidden."""
MARK: Final = '{"$secret":'
"""How a hidden value begins in a stored text."""
SEALED: Final = "sealed:"
"""How an encrypted text begins: no JSON begins so."""
VALUE: Final = "re:"
"""A pattern that begins so is searched in texts; any other is matched with names."""
SHOWN_CHARS: Final = 6


class Secret:
    """Stands where a value was hidden: equal where the values were, and silent about what they were."""

    __slots__ = ("commitment", "sealed")

    def __init__(self, commitment: str, sealed: str = "") -> None:
        self.commitment = commitment
        self.sealed = sealed
        """The value itself, encrypted, where the runtime has keys for that."""

    @classmethod
    def read(cls, packed: Any) -> Secret:
        """From a stored text."""
        return cls(packed) if isinstance(packed, str) else cls(*packed)

    @property
    def packed(self) -> str | list[str]:
        """For a stored text."""
        return [self.commitment, self.sealed] if self.sealed else self.commitment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.commitment == self.commitment

    def __hash__(self) -> int:
        return hash(self.commitment)

    def __str__(self) -> str:
        return f"{MASK}{self.commitment[:SHOWN_CHARS]}"

    def __repr__(self) -> str:
        return f"Secret({self})"


UNREADABLE: Final = Secret("")
"""Stands where a text is encrypted and this process has no key for it."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """Which places and texts are hidden.

    ``places``: of one tool, an argument or a path into one ("card", "customer.iban"). ``names``: patterns for a name
    at any depth. ``values``: searched in every text.
    """

    places: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    values: tuple[re.Pattern[str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places or self.names or self.values)

    @property
    def is_wide(self) -> bool:
        """Whether it hides something whatever the tool says."""
        return bool(self.names or self.values)

    def at(self, places: Iterable[str]) -> Hidden:
        """The same, and these places of one tool."""
        return Hidden(tuple(places), self.names, self.values)

    def covers(self, path: Sequence[object]) -> bool:
        """Whether what is at this path is hidden: the place itself, or one that it is inside of."""
        names = [part for part in path if isinstance(part, str)]
        if self.names and any(self.covers_name(name) for name in names):
            return True
        if not self.places:
            return False
        dotted = ".".join(names)
        return any(dotted == place or dotted.startswith(f"{place}.") for place in self.places)

    def touches(self, path: Sequence[object], value: object) -> bool:
        """Whether this value at this path is hidden, or may have something hidden inside it."""
        dotted = ".".join(part for part in path if isinstance(part, str))
        inside = any(place.startswith(f"{dotted}.") for place in self.places)
        within = bool(self) and isinstance(value, Mapping | list | tuple | set | frozenset)
        return inside or within or self.covers(path) or (bool(self.values) and self.matches(str(value)))

    def covers_name(self, name: str) -> bool:
        """Whether a pattern for names matches; capitals make no difference."""
        return any(fnmatchcase(name.lower(), pattern) for pattern in self.names)

    def matches(self, text: str) -> bool:
        """Whether a pattern for values is found in the text."""
        return any(value.search(text) for value in self.values)

    def scrub(self, text: str) -> str:
        """The text without what the patterns for values find."""
        for value in self.values:
            text = value.sub(MASK, text)
        return text


NOTHING: Final = Hidden()


def hidden_by(patterns: Iterable[object]) -> Hidden:
    """What a runtime's ``redact=`` means; raises ``ValueError`` that says what is wrong with a pattern."""
    names: list[str] = []
    values: list[re.Pattern[str]] = []
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern or pattern == VALUE:
            raise ValueError(f"{pattern!r} is no pattern; it is a name, a name with *, or re: and an expression")
        if not pattern.startswith(VALUE):
            names.append(pattern.lower())
            continue
        try:
            value = re.compile(pattern.removeprefix(VALUE))
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        if value.search(""):
            raise ValueError(f"{pattern!r} matches an empty text, and so everything")
        values.append(value)
    return Hidden((), tuple(names), tuple(values))
