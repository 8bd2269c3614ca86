"""Remember tokens that were found in the ledger, so that a request costs no read of it.

Revoking a token forgets it at once in this process, in every runtime of it. Another process may accept it for as long as
its setting ``token_cache`` says.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final, NamedTuple

from amends.model import Token

TOKENS_MAX: Final = 10_000
"""The most tokens that are remembered; then all are forgotten."""


class Seen(NamedTuple):
    """A token as the ledger had it, and until when (monotonic time) that is good enough.

    ``digest``: of its secret; ``whole``: of its text.
    """

    token: Token
    digest: str
    whole: str
    until: float


class TokenCache:
    """The tokens that one runtime has seen lately; ``seconds``: how long each is remembered."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._seen: dict[str, Seen] = {}
        self._ended = 0
        """How many tokens were ended: what was read before one ended is not remembered."""
        self._lock = threading.Lock()
        _CACHES.add(self)

    def get(self, id: str, mono: float) -> Seen | None:
        """Return the token if it was read lately and has not expired since."""
        seen = self._seen.get(id)
        return seen if seen is not None and mono < seen.until else None

    def begin(self) -> int:
        """Return what ``keep`` must be given, before the ledger is read."""
        return self._ended

    def keep(self, token: Token, digest: str, whole: str, *, begun: int, mono: float, left: float) -> None:
        """Remember a token that stands, read since ``begun``; ``left``: how many seconds until it expires."""
        with self._lock:
            if self._ended != begun or self.seconds <= 0:
                return
            if len(self._seen) >= TOKENS_MAX:
                self._seen.clear()
            self._seen[token.id] = Seen(token, digest, whole, mono + min(self.seconds, left))

    def forget(self, id: str) -> None:
        """Forget a token that has ended, also where it is being read just now."""
        with self._lock:
            self._ended += 1
            self._seen.pop(id, None)


_CACHES: Final[weakref.WeakSet[TokenCache]] = weakref.WeakSet()


def forget_token(id: str) -> None:
    """Forget a token in every runtime of this process."""
    for cache in list(_CACHES):
        cache.forget(id)
