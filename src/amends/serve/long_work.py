"""Work that takes longer than a request: it goes on in this server, and an address tells how far it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from amends.errors import Error, NotFound, log_error
from amends.serve.exchange import Exchange, Reply
from amends.serve.problems import Internal, TooMany, problem_of
from amends.visible import visible_log

log = visible_log("amends")
KEPT_MAX: Final = 20
"""How many are remembered; the oldest that has ended is forgotten first."""
RUNNING_MAX: Final = 2
"""How many run at once: each may read the whole ledger."""
What: TypeAlias = Literal["verify", "gc", "erase", "reencrypt", "recover", "replay_each"]


@dataclass(slots=True)
class LongWork:
    """Work under way, or its end."""

    id: str
    what: What
    tenant: str | None
    by: str = ""
    about: str = ""
    """What it is limited to, in words; empty: all of the ledger."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    state: Literal["running", "done", "failed"] = "running"
    runs: int = 0
    events: int = 0
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None

    def progress(self, runs: int, events: int) -> None:
        """Note how far it is."""
        self.runs, self.events = runs, events

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        ended = None if self.ended_at is None else self.ended_at.isoformat()
        facts = {"id": self.id, "what": self.what, "state": self.state, "runs": self.runs, "events": self.events}
        times = {"started_at": self.started_at.isoformat(), "ended_at": ended}
        verified = self.result if self.what == "verify" else None
        return facts | times | {"verified": verified, "result": self.result, "problem": self.problem}


Work: TypeAlias = Callable[[LongWork], Awaitable[dict[str, Any]]]
"""Does the work, and returns its result as plain JSON data."""


class LongWorks:
    """The long work of this process; it ends with it."""

    def __init__(self) -> None:
        self._known: dict[str, LongWork] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, x: Exchange, what: What, work: Work, *, about: str = "") -> Reply:
        """Begin one, and answer where to look at it; raise ``TooMany`` if enough are under way."""
        made = self.started(x, what, work, about=about)
        place = f"{x.service.base(x.request)}/v1/jobs/{made.id}"
        return Reply(made.to_dict(), 202, {"Location": place, "Retry-After": "1"})

    def started(self, x: Exchange, what: What, work: Work, *, about: str = "") -> LongWork:
        """Begin one; raise ``TooMany`` if enough are under way."""
        if len(self._under_way) >= RUNNING_MAX:
            raise TooMany(f"{RUNNING_MAX} pieces of long work are under way, and no more are begun", retry_after=5.0)
        for old in [one.id for one in self._known.values() if one.state != "running"][: -KEPT_MAX + 1 or None]:
            del self._known[old]
        id = x.service.new_id("work")
        made = self._known[id] = LongWork(id, what, x.service.own_tenant(x), x.who.name, about)
        going = asyncio.get_running_loop().create_task(self._do(made, work))
        self._under_way.add(going)
        going.add_done_callback(self._under_way.discard)
        return made

    async def _do(self, made: LongWork, work: Work) -> None:
        try:
            made.result = await work(made)
            made.state = "done"
        except Error as error:
            made.problem, made.state = problem_of(error), "failed"
        except Exception as error:
            log_error(log, logging.ERROR, f"{made.what} failed", error)
            made.problem, made.state = problem_of(Internal(f"it failed with {type(error).__name__}")), "failed"
        finally:
            made.ended_at = datetime.now(UTC)

    def found(self, id: str, tenant: str | None) -> LongWork:
        """Return one that was begun in this process, by somebody of the same tenant."""
        known = self._known.get(id)
        if known is None or (tenant is not None and known.tenant != tenant):
            raise NotFound(
                f"there is no work {id!r} in this server",
                hint="begin it again: only the server that did it knows it, and forgets it when it ends",
            )
        return known

    def known(self, tenant: str | None, what: What) -> list[LongWork]:
        """Return those of this kind that were begun in this process, newest first; ``tenant`` None: by anybody."""
        mine = [one for one in reversed(self._known.values()) if tenant is None or one.tenant == tenant]
        return [one for one in mine if one.what == what]

    async def close(self) -> None:
        """Stop what is under way."""
        for going in list(self._under_way):
            going.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)


async def long_work(x: Exchange) -> Reply:
    """Tell how far it is, or what it came to."""
    return Reply(x.service.long_works.found(x.path["id"], x.service.own_tenant(x)).to_dict())
