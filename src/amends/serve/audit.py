"""For auditors: verify the record in the background, export runs as a file that anybody can check, and load one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic import Field

from amends import Verified
from amends.errors import Error, Forbidden, NotFound
from amends.serve.exchange import Body, Exchange, Reply
from amends.serve.problems import Internal, TooMany, problem_of

VERIFICATIONS_MAX: Final = 20
"""How many verifications are remembered; the oldest that has ended is forgotten first."""
RUNNING_MAX: Final = 2
"""How many verifications run at once: each reads the whole ledger."""


class Verify(Body):
    """What to verify: all of the ledger, or these runs and those of the filter."""

    runs: list[str] = Field(default_factory=list, max_length=1_000)
    filter: str = Field("", max_length=2_000)


class Export(Body):
    """Which runs to export."""

    runs: list[str] = Field(min_length=1, max_length=1_000)


@dataclass(slots=True)
class Verification:
    """A verification under way, or its end."""

    id: str
    tenant: str | None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    state: Literal["running", "done", "failed"] = "running"
    runs: int = 0
    events: int = 0
    verified: Verified | None = None
    problem: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        ended = None if self.ended_at is None else self.ended_at.isoformat()
        verified = None if self.verified is None else self.verified.to_dict()
        facts = {"id": self.id, "state": self.state, "runs": self.runs, "events": self.events}
        times = {"started_at": self.started_at.isoformat(), "ended_at": ended}
        return facts | times | {"verified": verified, "problem": self.problem}


class Verifications:
    """The verifications of this process; they end with it."""

    def __init__(self) -> None:
        self._known: dict[str, Verification] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, x: Exchange, id: str, said: Verify) -> Verification:
        """Begin one; raise ``TooMany`` if enough are under way."""
        if len(self._under_way) >= RUNNING_MAX:
            raise TooMany(f"{RUNNING_MAX} verifications are under way, and no more are begun", retry_after=5.0)
        for old in [one.id for one in self._known.values() if one.state != "running"][: -VERIFICATIONS_MAX + 1 or None]:
            del self._known[old]
        made = self._known[id] = Verification(id, x.service.own_tenant(x))
        going = asyncio.get_running_loop().create_task(self._verify(x, made, said))
        self._under_way.add(going)
        going.add_done_callback(self._under_way.discard)
        return made

    async def _verify(self, x: Exchange, made: Verification, said: Verify) -> None:
        def progress(runs: int, events: int) -> None:
            made.runs, made.events = runs, events

        try:
            made.verified = await x.rt.verify(*said.runs, filter=said.filter, progress=progress)
            made.runs, made.events, made.state = made.verified.runs, made.verified.events, "done"
        except Error as error:
            made.problem, made.state = problem_of(error), "failed"
        except Exception as error:
            made.problem, made.state = problem_of(Internal(f"it failed with {type(error).__name__}")), "failed"
        finally:
            made.ended_at = datetime.now(UTC)

    def found(self, id: str, tenant: str | None) -> Verification:
        """Return one that was begun in this process, by somebody of the same tenant."""
        known = self._known.get(id)
        if known is None or (tenant is not None and known.tenant != tenant):
            raise NotFound(f"there is no verification {id!r} in this server", hint="begin one: POST /v1/audit/verify")
        return known

    async def close(self) -> None:
        """Stop what is under way."""
        for going in list(self._under_way):
            going.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)


async def verify(x: Exchange) -> Reply:
    """Begin to verify the record; the address in Location tells how far it is, and then what was found."""
    made = x.service.verifications.begin(x, x.service.new_id("vrf"), x.body)
    return Reply(
        made.to_dict(), 202, {"Location": f"{x.service.base(x.request)}/v1/jobs/{made.id}", "Retry-After": "1"}
    )


async def verification(x: Exchange) -> Reply:
    """Tell how far a verification is, or what it found."""
    return Reply(x.service.verifications.found(x.path["id"], x.service.own_tenant(x)).to_dict())


async def export(x: Exchange) -> Reply:
    """Return all that the ledger has of these runs as one file that anybody can check: ``python FILE``."""
    data = await x.rt.export(*x.body.runs)
    headers = {"Content-Disposition": 'attachment; filename="amends-bundle.zip"'}
    return Reply(data, 200, headers, "application/zip")


async def load(x: Exchange) -> Reply:
    """Load the runs of a bundle as records that nothing here changes."""
    return Reply({"runs": await x.rt.load(x.body)})


async def checkpoint(x: Exchange) -> Reply:
    """Write a signed checkpoint that covers every event so far, and write it to the anchor."""
    if x.service.own_tenant(x):
        raise Forbidden("a checkpoint covers all tenants: this needs an operator of every tenant", why="tenant")
    made = await x.rt.checkpoint()
    return Reply({"checkpoint": None if made is None else made.to_dict()}, 201)
