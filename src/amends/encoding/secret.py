"""``Secret``, the placeholder of a redacted value, and the rules that say which values are redacted.

``redaction`` replaces the values, ``encoded_secrets`` finds them in encoded text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from amends.encoding.dataclass import dataclass
from amends.encoding.encoded_secrets import encoded_spans

MASK: Final = "•••"
"""What people and models see in place of a redacted value."""
MARK: Final = '{"$secret":'
"""How a redacted value begins in a stored text."""
SEALED: Final = "sealed:"
"""How an encrypted text begins; no JSON text does."""
VALUE: Final = "re:"
"""The prefix of patterns that are searched in texts; all others are matched with names."""
SHOWN_CHARS: Final = 6


class Secret:
    """A placeholder for a redacted value: equal for equal values, without revealing them."""

    __slots__ = ("commitment", "sealed")

    def __init__(self, commitment: str, sealed: str = "") -> None:
        self.commitment = commitment
        self.sealed = sealed
        """The value itself, encrypted, if the runtime has encryption keys."""

    @classmethod
    def read(cls, packed: Any) -> Secret:
        """Read a placeholder from its stored form."""
        return cls(packed) if isinstance(packed, str) else cls(*packed)

    @property
    def packed(self) -> str | list[str]:
        """The stored form."""
        return [self.commitment, self.sealed] if self.sealed else self.commitment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.commitment == self.commitment

    def __hash__(self) -> int:
        return hash(self.commitment)

    def __str__(self) -> str:
        return f"{MASK}{self.commitment[:SHOWN_CHARS]}"

    def __repr__(self) -> str:
        return f"Secret({self})"


class Hidden:
    """A secret among the settings: whatever prints it shows only that it is set; ``reveal`` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret itself."""
        return self._text

    def __str__(self) -> str:
        return "(set)"

    def __repr__(self) -> str:
        return "(set)"

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ("(set)",)  # a pickled setting has no secret either


UNREADABLE: Final = Secret("")
"""Stands for an encrypted text for which this process has no key."""


def is_unreadable(args: Mapping[Any, Any]) -> bool:
    """Return whether these arguments are encrypted and this process has no key for them."""
    return args.get(MASK) is UNREADABLE


@dataclass(frozen=True, slots=True)
class RedactionRules:
    """The redaction rules: which places and texts are redacted.

    ``places``: arguments of one tool, or paths into them ("card", "customer.iban"). ``names``: patterns for names at
    any depth. ``values``: patterns that are searched in every text.
    """

    places: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    values: tuple[re.Pattern[str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places or self.names or self.values)

    @property
    def is_wide(self) -> bool:
        """Whether the rules apply to every tool, not only to the places of one."""
        return bool(self.names or self.values)

    def at(self, places: Iterable[str]) -> RedactionRules:
        """Return the same rules with these places of one tool."""
        return RedactionRules(tuple(places), self.names, self.values)

    def covers(self, path: Sequence[object]) -> bool:
        """Return whether the value at this path is redacted: the place itself, or one that contains it."""
        names = [part for part in path if isinstance(part, str)]
        if self.names and any(self.covers_name(name) for name in names):
            return True
        if not self.places:
            return False
        dotted = ".".join(names)
        return any(dotted == place or dotted.startswith(f"{place}.") for place in self.places)

    def touches(self, path: Sequence[object], value: object) -> bool:
        """Return whether this value at this path is redacted, or may contain something that is."""
        dotted = ".".join(part for part in path if isinstance(part, str))
        inside = any(place.startswith(f"{dotted}.") for place in self.places)
        within = bool(self) and isinstance(value, Mapping | list | tuple | set | frozenset)
        return inside or within or self.covers(path) or (bool(self.values) and self.matches(str(value)))

    def covers_name(self, name: str) -> bool:
        """Return whether a pattern for names matches, ignoring case."""
        return any(fnmatchcase(name.lower(), pattern) for pattern in self.names)

    def matches(self, text: str) -> bool:
        """Return whether a pattern for values matches in the text, or in what the text encodes."""
        if not self.values:
            return False
        return any(value.search(text) for value in self.values) or bool(encoded_spans(text, (), self.values))

    def scrub(self, text: str) -> str:
        """Return the text with a mask over every match of the patterns for values, encoded ones too."""
        for value in self.values:
            text = value.sub(MASK, text)
        if self.values:
            for start, end, _ in reversed(encoded_spans(text, (), self.values)):
                text = f"{text[:start]}{MASK}{text[end:]}"
        return text


NOTHING: Final = RedactionRules()


def redaction_rules(patterns: Iterable[object]) -> RedactionRules:
    """Parse the ``redact=`` of a runtime; raise ``ValueError`` that says what is wrong with a pattern."""
    names: list[str] = []
    values: list[re.Pattern[str]] = []
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern or pattern == VALUE:
            raise ValueError(f"{pattern!r} is not a pattern; use a name, a name with *, or re: and an expression")
        if not pattern.startswith(VALUE):
            names.append(pattern.lower())
            continue
        try:
            value = re.compile(pattern.removeprefix(VALUE))
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
        if value.search(""):
            raise ValueError(f"{pattern!r} matches the empty text, and therefore everything")
        values.append(value)
    return RedactionRules((), tuple(names), tuple(values))
