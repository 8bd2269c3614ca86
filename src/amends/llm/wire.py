"""What is read from the three wire formats: the model, sizes, usage; and what of a request is written down."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Api: TypeAlias = Literal["chat.completions", "responses", "messages"]

PATHS: Final[dict[tuple[str, str], Api]] = {
    ("openai", "/chat/completions"): "chat.completions",
    ("openai", "/responses"): "responses",
    ("anthropic", "/v1/messages"): "messages",
}
"""The requests that are recorded, by SDK and path. Others (files, batches, counting tokens) pass by."""

BYTES_PER_TOKEN: Final = 3
"""For reservations: English has four, JSON and code three, other scripts fewer bytes to a token."""
ATTACHMENT_TOKENS: Final = 2_000
"""What is reserved for an image or a file in the request."""
OUTPUT_TOKENS: Final = 4_096
"""What is reserved for an answer whose request names no limit."""
ATTACHMENT_CHARS_MIN: Final = 4_096
RECORD_BYTES_MAX: Final = 900_000
"""Below the ledger's own limit of one mebibyte, which would refuse the request, or lose the answer."""
DEPTH_MAX: Final = 80
"""Below the ledger's own limit of a hundred levels."""
TEXT_CHARS_MAX: Final = 2_000
"""What stays of each text in a request or answer that is too large to keep whole."""
COUNT_MAX: Final = 10**12
"""A server that reports more tokens has a fault; the answer is paid for all the same, and is recorded."""
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/=_-]{1024}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a request used. ``input`` includes what was read from and written to the provider's cache."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    """Part of ``output``."""
    estimated: bool = False

    @property
    def total(self) -> int:
        """What counts against a budget in tokens."""
        return self.input + self.output

    def to_dict(self) -> dict[str, int]:
        """As the ledger keeps it; what is zero besides input and output is left out."""
        more = {"cache_read": self.cache_read, "cache_write": self.cache_write, "reasoning": self.reasoning}
        told = {"input": self.input, "output": self.output, "total": self.total}
        return told | {name: count for name, count in more.items() if count}


def api_of(provider: str, method: str, url: str) -> Api | None:
    """The wire format of this request, if it is one that is recorded."""
    return PATHS.get((provider, url.partition("?")[0])) if method.lower() == "post" else None


# ---- usage --------------------------------------------------------------------------------


def tokens_of(api: Api, response: Mapping[str, Any] | None) -> Tokens | None:
    """The usage that an answer reports; None where it reports none."""
    usage = None if response is None else response.get("usage")
    if not isinstance(usage, Mapping):
        return None
    if api == "chat.completions":
        counted = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        details = _part(usage, "prompt_tokens_details"), _part(usage, "completion_tokens_details")
        read = _count(details[0], "cached_tokens")
    elif api == "responses":
        counted = _count(usage, "input_tokens"), _count(usage, "output_tokens")
        details = _part(usage, "input_tokens_details"), _part(usage, "output_tokens_details")
        read = _count(details[0], "cached_tokens")
    else:
        counted = _count(usage, "input_tokens"), _count(usage, "output_tokens")
        details = usage, _part(usage, "output_tokens_details")
        read = _count(usage, "cache_read_input_tokens")
    if counted == (None, None):
        return None
    written = _count(details[0], "cache_creation_input_tokens" if api == "messages" else "cache_write_tokens")
    beside = (read or 0) + (written or 0) if api == "messages" else 0  # there they are not in input_tokens
    return Tokens(
        input=(counted[0] or 0) + beside,
        output=counted[1] or 0,
        cache_read=read or 0,
        cache_write=written or 0,
        reasoning=_count(details[1], "reasoning_tokens") or _count(details[1], "thinking_tokens") or 0,
    )


def _part(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = usage.get(name)
    return found if isinstance(found, Mapping) else {}


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    found = usage.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool) or not found >= 0:
        return None
    return int(min(found, COUNT_MAX))


# ---- before it is sent --------------------------------------------------------------------


def reserved_tokens(request: Mapping[str, Any], *, size: int, attachments: int) -> Tokens:
    """What a request may use at most, as far as it can be seen from here."""
    limits = (request.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
    limit = next((found for found in limits if isinstance(found, int)), OUTPUT_TOKENS)
    answers = request.get("n")
    return Tokens(
        input=-(-size // BYTES_PER_TOKEN) + attachments * ATTACHMENT_TOKENS,
        output=limit * (answers if isinstance(answers, int) else 1),
        estimated=True,
    )


def received_tokens(reserved: Tokens, known: Tokens | None, characters: int) -> Tokens:
    """What a broken off answer has used: what was reported, and for the rest what was received."""
    output = -(-characters // BYTES_PER_TOKEN)
    if known is None:
        return Tokens(input=reserved.input, output=output, estimated=True)
    return Tokens(known.input, max(known.output, output), known.cache_read, known.cache_write, estimated=True)


# ---- what is written down -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """A request or an answer as the ledger keeps it."""

    data: Any
    size: int
    """Bytes of the whole, attachments left out."""
    attachments: int


def written(data: object) -> Written:
    """Plain data that the ledger takes: attachments are left out by their digest, and long texts of what is too large."""
    cut = _Cut(ATTACHMENT_CHARS_MIN, only_encoded=True)
    kept = cut.plain(data)
    size = _size(kept)
    if size > RECORD_BYTES_MAX:
        kept = _Cut(TEXT_CHARS_MAX, only_encoded=False).plain(kept)
        if _size(kept) > RECORD_BYTES_MAX:
            kept = {"left out": f"{size} bytes", "sha256": hashlib.sha256(_json(data).encode()).hexdigest()}
    return Written(kept, size, cut.count)


def _size(data: object) -> int:
    return len(_json(data).encode("utf-8", "replace"))


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)


class _Cut:
    """One walk through data of an SDK: into plain data, without what is too long."""

    def __init__(self, chars_max: int, *, only_encoded: bool) -> None:
        self._chars_max, self._only_encoded = chars_max, only_encoded
        self.count = 0

    def plain(self, value: Any, depth: int = 0) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._text(value)
        if depth > DEPTH_MAX:
            return f"[left out: nested deeper than {DEPTH_MAX} levels]"
        if isinstance(value, Mapping):
            return {str(name): self.plain(one, depth + 1) for name, one in value.items() if not _is_left_open(one)}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.plain(one, depth + 1) for one in value]
        if hasattr(value, "to_dict"):
            return self.plain(value.to_dict(mode="json", warnings=False), depth + 1)
        if hasattr(value, "model_dump"):
            return self.plain(value.model_dump(mode="json", exclude_unset=True, warnings=False), depth + 1)
        return self._text(str(value))

    def _text(self, text: str) -> str:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()  # half a character, as models and users send them
        if len(text) < self._chars_max or (self._only_encoded and not _is_encoded(text)):
            return text
        self.count += 1
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        head = "" if self._only_encoded else text[: self._chars_max // 2]
        return f"{head}[left out: {len(text)} characters, sha256 {digest}]"


def _is_left_open(value: object) -> bool:
    """The SDKs' marks for an argument that nobody gave."""
    return type(value).__name__ in ("NotGiven", "Omit")


def _is_encoded(text: str) -> bool:
    return text.startswith("data:") or _ENCODED.match(text) is not None
