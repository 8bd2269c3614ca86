"""The page of ``amends demo``: the bank's own book next to the ledger, and a button that kills the worker.

It is no page of the console: ``amends demo`` adds it (``demo_pages``), with the live shop that it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from amends import Call, Event
from amends.errors import Refused
from amends.serve.console.acts import Acted
from amends.serve.console.pages import OPERATE, READ, Page
from amends.serve.exchange import Exchange

ROWS_MAX: Final = 10
"""How many orders the page shows."""
EVENTS_MAX: Final = 200
"""How many events of one order are read."""


class NobodyToKill(Refused):
    """No worker could be killed in the middle of a charge; nothing was done."""

    default_hint = "try again in a few seconds"


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that fills the orders."""

    state: Literal["working", "starting", "gone"]
    pid: int = 0
    in_s: float = 0.0
    """In how many seconds the next one starts."""
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"state": self.state, "pid": self.pid or None, "in_s": round(self.in_s, 1), "why": self.why}


@dataclass(frozen=True, slots=True)
class Killed:
    """A worker that was killed while it charged an order."""

    pid: int
    order: str
    call_id: str
    at: datetime


class Shop(Protocol):
    """The live shop, as ``amends demo`` runs it."""

    killed: list[Killed]

    @property
    def worker(self) -> Worker:
        """Return the state of the worker process."""
        ...

    def book(self) -> Sequence[Mapping[str, Any]]:
        """Return the bank's own book, oldest entry first."""
        ...

    async def kill(self) -> Killed:
        """Kill the worker in the middle of a charge; raise ``NobodyToKill``."""
        ...


def demo_pages(shop: Shop) -> tuple[Page, ...]:
    """Return the page of this shop and its button."""

    async def load(x: Exchange) -> dict[str, Any]:
        return await shown(x.rt, shop)

    async def crash(_x: Exchange, _form: Mapping[str, str]) -> Acted:
        killed = await shop.kill()
        said = f"Process {killed.pid} was killed while it charged {killed.order}. The bank has the money."
        return Acted("/demo", said, tone="wait")

    return (
        Page("GET", "/demo", "demo", "The live shop", READ, "nothing", load, nav="demo", live="ledger"),
        Page("POST", "/demo/crash", "demo_crash", "Crash it now", OPERATE, "nothing", act=crash, back="demo"),
    )


# ---- What the page shows


async def shown(rt: Any, shop: Shop) -> dict[str, Any]:
    """Return the data of the page."""
    book = list(shop.book())
    calls: list[Call] = []
    async for call in rt.calls("tool:charge"):
        calls.append(call)
        if len(calls) == ROWS_MAX:
            break
    killed = shop.killed[-1] if shop.killed else None
    return {
        "worker": shop.worker.to_dict(),
        "rows": [_row(call, book, is_killed=any(call.id == one.call_id for one in shop.killed)) for call in calls],
        "totals": _totals(book),
        "story": None if killed is None else await _story(rt, killed, book),
        "kills": len(shop.killed),
    }


def _row(call: Call, book: list[Mapping[str, Any]], *, is_killed: bool) -> dict[str, Any]:
    receipts = [str(entry["charge"]) for entry in book if entry.get("order") == call.run_id]
    refunds = sum(entry.get("refund") in receipts for entry in book if "refund" in entry)
    tone, verdict = _verdict(call.state, len(receipts), refunds)
    if is_killed and call.state == "started":
        tone, verdict = "doubt", "the bank has the money, and nobody heard of it"
    return {
        "order": call.run_id,
        "call": call.id,
        "state": call.state,
        "cents": call.args.get("cents"),
        "receipts": receipts,
        "refunds": refunds,
        "tone": tone,
        "verdict": verdict,
        "is_killed": is_killed,
        "asked_at": None if call.requested_at is None else call.requested_at.isoformat(),
    }


def _verdict(state: str, charges: int, refunds: int) -> tuple[str, str]:
    """Return what the two books say together, and in which tone."""
    if charges > 1:
        return "fail", f"charged {charges} times"
    match state:
        case "succeeded" if charges == 1:
            return "ok", "charged once, and both know"
        case "compensated" if charges == refunds == 1:
            return "undo", "charged and given back"
        case "in_doubt":
            return "doubt", "the ledger does not know: the bank is asked"
        case "started" if charges == 1:
            return "wait", "the bank has the money, and the answer is under way"
        case "started" | "ready" | "compensating":
            return "run", "under way"
        case "held" if charges == 0:
            return "wait", "waits for a person, and nothing is charged"
        case "failed" | "dropped" | "refused" if charges == refunds:
            return "mute", "nothing is charged"
        case _:
            return "fail", f"the ledger says {state}, the bank has {charges} charges and {refunds} refunds"


def _totals(book: list[Mapping[str, Any]]) -> dict[str, int]:
    orders = [str(entry["order"]) for entry in book if "charge" in entry]
    return {
        "charges": len(orders),
        "refunds": sum("refund" in entry for entry in book),
        "double": len(orders) - len(set(orders)),
    }


async def _story(rt: Any, killed: Killed, book: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what happened to the order of a killed worker, from the ledger's own events, in order."""
    events: list[Event] = []
    async for event in rt.events(killed.order):
        events.append(event)
        if len(events) == EVENTS_MAX:
            break
    since = [event for event in events if event.at >= killed.at]
    mine = [event for event in since if event.call_id == killed.call_id]
    doubt = next((event for event in mine if event.to == "in_doubt"), None)
    settled = next((event for event in mine if event.frm == "in_doubt"), None)
    ended = next((event for event in since if event.call_id is None and event.to in ("committed", "rolled_back")), None)
    receipts = [str(entry["charge"]) for entry in book if entry.get("order") == killed.order]
    has = ", ".join(receipts) or "nothing"
    end = "committed" if ended is None else ended.to.replace("_", " ")
    went_on = "The agent went on from the record, and charged nothing."
    chapters = [
        _chapter(
            f"Process {killed.pid} was killed", "The bank had the money; the answer never came.", killed.at, "fail"
        ),
        _chapter("The charge is in doubt", "The next worker found it, and did not guess.", _at(doubt), "doubt"),
        _chapter("The probe asks the bank", f"Its book has {has} for {killed.order}.", _at(settled), "run"),
        _chapter(f"The run is {end}", went_on, _at(ended), "ok"),
    ]
    return {
        "order": killed.order,
        "call": killed.call_id,
        "pid": killed.pid,
        "chapters": chapters,
        "charges": len(receipts),
        "is_over": ended is not None,
    }


def _at(event: Event | None) -> datetime | None:
    return None if event is None else event.at


def _chapter(title: str, text: str, at: datetime | None, tone: str) -> dict[str, Any]:
    """Return one part of the story; what has not happened yet is not told."""
    if at is None:
        return {"title": title, "text": "Not yet.", "at": None, "is_done": False, "tone": "mute", "glyph": "ring"}
    return {
        "title": title,
        "text": text,
        "at": at.isoformat(),
        "is_done": True,
        "tone": tone,
        "glyph": {"fail": "cross", "doubt": "question", "run": "search", "ok": "check"}[tone],
    }
