"""Redaction: commitments in place of values, masks in texts, and the values again where they were kept encrypted.

A commitment is an HMAC over the canonical text of a value. It is equal for equal values, so that keys, conflicts,
replays and approvals still bind, and it is useless to anyone who has the ledger but not the key.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, Protocol, TypeAlias
from unicodedata import normalize

from amends.encoding.annotations import Shape
from amends.encoding.canonical import CLASS, DEPTH_MAX, UNSET, Fields, canonical, digest_of, encode, head
from amends.encoding.encoded_secrets import BOUNDED_CHARS_MAX, encoded_spans
from amends.encoding.payloads import Stored, decode
from amends.encoding.secret import MARK, MASK, NOTHING, RedactionRules, Secret

COMMITMENT_CHARS: Final = 32
SPELLED_CHARS_MIN: Final = 3
"""Shorter spellings are not searched for in texts: they would be found everywhere."""
LINE_CHARS_MIN: Final = 16
"""Each line this long of a redacted multi-line text (a private key) is also searched for by itself."""
LEAVES_MAX: Final = 1_000
"""How many parts of one redacted value are searched for in texts."""
REDACTED: Final = "a part of it is redacted"
"""How the stated loss begins of a result whose values were masked for good."""
CONTAINERS: Final = ("$tuple", "$set", "$frozenset")

About: TypeAlias = tuple[str, ...]
"""Whose secret it is: equal values of two tenants, or of two tools, get different commitments."""
Known: TypeAlias = Mapping[str, Secret]
"""The spellings of redacted values that must not appear in a text, each with its placeholder."""


class _Nothing(dict[str, Secret]):
    """An empty mapping that can be the default of a dataclass field, which must be hashable."""

    __hash__ = object.__hash__  # type: ignore[assignment]


NO_SECRETS: Final[Known] = _Nothing()


class Cipher(Protocol):
    """Encrypts texts, each bound to one place: a text that is moved to another place cannot be decrypted."""

    def seal(self, text: str, about: str) -> str:
        """Encrypt the text with the newest key."""
        ...

    def open(self, text: str, about: str) -> str:
        """Decrypt the text; raise ``LedgerSealed`` without its key."""
        ...


class Redactor:
    """Redacts values and texts by the rules of a runtime. Without a key it fails as soon as it must redact."""

    __slots__ = ("hidden", "is_wide", "key", "vault")

    def __init__(self, hidden: RedactionRules = NOTHING, key: bytes = b"", vault: Cipher | None = None) -> None:
        self.hidden, self.key, self.vault = hidden, key, vault
        self.is_wide = hidden.is_wide

    def commit(self, about: About, meaning: str) -> str:
        """Return the commitment of a value with this canonical text."""
        assert self.key, "nothing is redacted before the key is loaded"
        text = digest_of(head("secret", *about), meaning)
        return hmac.digest(self.key, text.encode(), "sha256").hex()[:COMMITMENT_CHARS]

    # ---- Values

    def hide(
        self, value: Any, about: About, *, places: tuple[str, ...] = (), path: str, shape: Shape | None = None
    ) -> tuple[Any, Known]:
        """Return the value with a ``Secret`` in each redacted place, and the spellings of what was there.

        ``about``: whose secrets these are. ``places``: redacted places of this tool. ``path``: how errors name the
        value. ``shape``: the classes it may have; a commitment includes the class if the annotation leaves it open.
        """
        walk = _ValueWalk(self, self.hidden.at(places) if places else self.hidden, about, path, shape)
        return walk.redacted(value, ()), walk.known

    def secret(self, value: Any, about: About, *, path: str, shape: Shape | None = None) -> Secret:
        """Return the placeholder of this value."""
        value = _unwrapped(value)
        commitment = self.commit(about, canonical(value, path=path, shape=shape))
        sealed = "" if self.vault is None else self.vault.seal(encode(value, path=path, shape=shape), commitment)
        return Secret(commitment, sealed)

    def revealed(self, text: str) -> str:
        """Return a stored text with its encrypted values decrypted, if there is a key for them."""
        if MARK not in text or self.vault is None:
            return text
        return with_secrets(text, self._opened)

    def _opened(self, packed: Any) -> Any:
        if isinstance(packed, str) or self.vault is None:
            return {"$secret": packed}
        commitment, sealed = packed
        return json.loads(self.vault.open(sealed, commitment))

    def lacking(self, text: str, names: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the names of the arguments of a stored call whose values are redacted and not recoverable.

        ``names``: the arguments to look at; None means all.
        """
        if MARK not in text:
            return ()
        args: dict[str, Any] = json.loads(text)
        wanted = args if names is None else [name for name in names if name in args]
        return tuple(name for name in wanted if any(self._is_gone(one) for one in _secrets(args[name])))

    def _is_gone(self, packed: Any) -> bool:
        return isinstance(packed, str) or self.vault is None

    def known(self, text: str) -> Known:
        """Return the spellings of the redacted values of a stored text that can be decrypted."""
        found: dict[str, Secret] = {}
        for packed in _secrets(json.loads(text)) if MARK in text and self.vault is not None else ():
            if not self._is_gone(packed):
                for spelled in spellings(decode(_dump(self._opened(packed)))):
                    found.setdefault(spelled, Secret(packed[0]))
        return found

    # ---- Texts

    def scrub(self, text: str, known: Known = NO_SECRETS) -> str:
        """Return the text with a mask over every redacted value that is spelled in it."""
        return self.hidden.scrub(_masked(text, known, str))

    def holds(self, text: str, known: Known) -> bool:
        """Return whether a redacted value is spelled in the text."""
        if any(spelled in text for spelled in known) or self.hidden.matches(text):
            return True
        return bool(known) and bool(encoded_spans(text, known, ()))

    def name(self, text: str, known: Known, about: About) -> str:
        """Return a name in which a readable commitment replaces each redacted value; equal for equal values."""
        for spelled in sorted(known, key=len, reverse=True):
            if spelled in text:
                text = text.replace(spelled, f"secret-{self.commit(about, spelled)}")
        for value in self.hidden.values:
            text = value.sub(lambda found: f"secret-{self.commit(about, found[0])}", text)
        for start, end, spelled in reversed(encoded_spans(text, known, self.hidden.values)):
            text = f"{text[:start]}secret-{self.commit(about, spelled or text[start:end])}{text[end:]}"
        return text

    # ---- Results

    def kept(self, stored: Stored, known: Known, about: About) -> Stored:
        """Return what the ledger keeps of a result: redacted values masked, or encrypted if there is a key."""
        if stored.text is None or not (self.is_wide or self.holds(stored.text, known)):
            return Stored(stored.text, stored.loss and self.scrub(stored.loss, known))
        data = json.loads(stored.text)
        masked = _Masking(self, known, about).masked(data)
        if masked == data:
            return stored
        lost = "" if self.vault is not None else f"{REDACTED}: a replay gets {MASK} there"
        said = stored.loss and self.scrub(stored.loss, known)
        return Stored(_dump(masked), "; ".join(word for word in (lost, said) if word) or None)


# ---- Redaction of values


class _ValueWalk:
    """One walk through a value that replaces redacted parts."""

    def __init__(
        self, redactor: Redactor, hidden: RedactionRules, about: About, path: str, shape: Shape | None
    ) -> None:
        self._redactor, self._hidden, self._about, self._path, self._shape = redactor, hidden, about, path, shape
        self.known: dict[str, Secret] = {}

    def redacted(self, value: Any, path: tuple[object, ...]) -> Any:
        if path and self._hidden.covers(path):
            return self._secret(value, path)
        if isinstance(value, str):
            return self._secret(value, path) if self._hidden.matches(value) else value
        if getattr(type(value), "__pydantic_root_model__", False):
            root = self.redacted(value.root, path)
            return value if root is value.root else root
        if len(path) > DEPTH_MAX:
            return value  # a value this deep is refused when it is written
        named = fields_of(value)
        if named is not None:
            return self._redacted_fields(value, named, path)
        if isinstance(value, list | tuple | set | frozenset):
            items = [self.redacted(item, (*path, index)) for index, item in enumerate(value)]
            same = all(new is old for new, old in zip(items, value, strict=True))
            kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
            return value if same else kind(items)
        return value

    def _redacted_fields(self, value: Any, named: Mapping[Any, Any], path: tuple[object, ...]) -> Any:
        made: dict[Any, Any] = {}
        same = True
        for name, item in named.items():
            key = self._secret(name, path) if isinstance(name, str) and self._hidden.matches(name) else name
            made[key] = self.redacted(item, (*path, name))
            same = same and key is name and made[key] is item
        return value if same else made if isinstance(value, Mapping) else Fields(value, made)

    def _secret(self, value: Any, path: tuple[object, ...]) -> Secret:
        where = ".".join([self._path, *map(str, path)])
        secret = self._redactor.secret(value, self._about, path=where, shape=self._shape)
        for spelled in spellings(value):
            self.known.setdefault(spelled, secret)
        return secret


def _unwrapped(value: Any) -> Any:
    """Return what a SecretStr of pydantic holds: it refuses to be written, but its commitment is harmless."""
    inner = getattr(type(value), "get_secret_value", None)
    return value if inner is None else inner(value)


def fields_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the named parts of a value as they are written; None if it has none."""
    kind = type(value)
    if isinstance(value, Mapping):
        return value
    if hasattr(kind, "__pydantic_root_model__") and not kind.__pydantic_root_model__:
        known = {name: item for name, item in vars(value).items() if name in kind.model_fields}
        return known | (value.model_extra or {})
    if is_dataclass(kind):
        return {one.name: getattr(value, one.name) for one in fields(kind)}
    return None


def spellings(value: Any) -> Iterator[str]:
    """Yield the ways in which a redacted value, or a part of it, may be spelled in a text."""
    seen: set[str] = set()
    for count, leaf in enumerate(_leaves(value, 0)):
        if count >= LEAVES_MAX:
            return
        lines = [line.strip() for line in leaf.splitlines()] if "\n" in leaf else []
        forms = () if leaf.isascii() else (normalize("NFC", leaf), normalize("NFD", leaf))
        for text in (leaf, leaf.strip(), *forms, *(line for line in lines if len(line) >= LINE_CHARS_MIN)):
            for spelled in (text, repr(text)[1:-1], json.dumps(text)[1:-1], _plain_dump(text)[1:-1], _in_url(text)):
                if len(spelled) >= SPELLED_CHARS_MIN and spelled not in seen:
                    seen.add(spelled)
                    yield spelled


def _in_url(text: str) -> str:
    from urllib.parse import quote  # imported here: only redaction needs it

    return quote(text, safe="", errors="replace")


def _leaves(value: Any, depth: int) -> Iterator[str]:
    value = _unwrapped(value)
    if value is None or isinstance(value, bool) or depth > DEPTH_MAX:
        return
    if isinstance(value, str):
        yield value
        return
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        yield from (b64encode(raw).decode("ascii"), raw.hex(), repr(raw)[2:-1])
        return
    named = fields_of(value)
    if named is None and isinstance(value, list | tuple | set | frozenset):
        named = dict(enumerate(value))
    if named is None:
        try:
            yield str(value)
        except Exception:  # a user's type
            return
        return
    for item in named.values():
        yield from _leaves(item, depth + 1)


def _masked(text: str, known: Known, mask: Callable[[Secret], str]) -> str:
    for spelled in sorted(known, key=len, reverse=True) if known else ():
        if spelled not in text:
            continue
        said = mask(known[spelled])
        if len(spelled) > BOUNDED_CHARS_MAX:
            text = text.replace(spelled, said)
        else:
            text = re.sub(rf"(?<!\w){re.escape(spelled)}(?!\w)", said, text)
    for start, end, spelled in reversed(encoded_spans(text, known, ())) if known else ():
        text = f"{text[:start]}{mask(known[spelled])}{text[end:]}"
    return text


# ---- Redaction of stored texts


class _Masking:
    """One walk through the JSON of a stored result that masks or encrypts redacted parts."""

    def __init__(self, redactor: Redactor, known: Known, about: About) -> None:
        self._redactor, self._known, self._about = redactor, known, about

    def masked(self, data: Any) -> Any:
        if isinstance(data, dict):
            tag = next(iter(data), "") if len(data) == 1 else ""
            if tag == "$map":
                return {tag: [[self.masked(key), self._field(key, item)] for key, item in data[tag]]}
            if tag in CONTAINERS:
                return {tag: [self.masked(item) for item in data[tag]]}
            if tag in (CLASS, UNSET):
                name, inner = data[tag]
                return {tag: [name, self.masked(inner)]}
            if tag.startswith("$"):
                return data if tag == "$secret" or not self._holds(str(data[tag])) else self._hidden(data)
            return {self._redactor.scrub(key, self._known): self._field(key, item) for key, item in data.items()}
        if isinstance(data, list):
            return [self.masked(item) for item in data]
        if isinstance(data, str):
            return self._hidden(data) if self._holds(data) else data
        is_known = isinstance(data, int | float) and not isinstance(data, bool) and str(data) in self._known
        return self._hidden(data) if is_known else data

    def _field(self, key: Any, item: Any) -> Any:
        is_hidden = isinstance(key, str) and self._redactor.hidden.covers_name(key) and item is not None
        return self._hidden(item, whole=True) if is_hidden else self.masked(item)

    def _holds(self, text: str) -> bool:
        return _masked(text, self._known, str) != text or self._redactor.hidden.matches(text)

    def _hidden(self, data: Any, *, whole: bool = False) -> Any:
        text = _dump(data)
        commitment = self._redactor.commit(self._about, text)
        if self._redactor.vault is not None:
            return {"$secret": [commitment, self._redactor.vault.seal(text, commitment)]}
        return (
            self._redactor.scrub(data, self._known) if isinstance(data, str) and not whole else str(Secret(commitment))
        )


def with_secrets(text: str, change: Callable[[Any], Any]) -> str:
    """Return a stored text in which ``change`` has replaced each redacted value."""
    return _dump(_replaced(json.loads(text), change))


def _replaced(data: Any, reveal: Callable[[Any], Any]) -> Any:
    if isinstance(data, dict):
        if len(data) == 1 and "$secret" in data:
            return reveal(data["$secret"])
        return {key: _replaced(item, reveal) for key, item in data.items()}
    return [_replaced(item, reveal) for item in data] if isinstance(data, list) else data


def _secrets(data: Any) -> Iterator[Any]:
    if isinstance(data, dict):
        if len(data) == 1 and "$secret" in data:
            yield data["$secret"]
            return
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from _secrets(item)


_dump: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_plain_dump: Final = json.JSONEncoder(ensure_ascii=False).encode
