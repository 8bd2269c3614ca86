"""The tools of the runs: with a probe, with an idempotent destination, with neither, of every kind."""

from __future__ import annotations

import random
import time
from typing import Any, Final

from amends import Absent, Call, Happened, NoEffect, Probed, Retry, current_call, tool
from tests.chaos.points import Fate
from tests.chaos.world import Traits, World

LEASE_S: Final = 1.5
SETTLE_S: Final = 0.8
"""What the probed destinations promise: nothing lands later than this after its sender's lease has ended."""
FROZEN_S_MAX: Final = LEASE_S + SETTLE_S - 0.1
"""A process that stands still for longer could send later than that promise: whoever takes over, be it at once, waits
for one more lease and the settle delay before believing an ``Absent``. Such a process is not woken.
"""
BODY_S_MAX: Final = 0.002
SOON: Final = Retry(attempts=12, on=NoEffect, delay=0.03, factor=1.5, max_delay=0.3)
SOON_BACK: Final = Retry(attempts=12, delay=0.03, factor=1.5, max_delay=0.3)
"""A compensation is tried again after every error; a call only where it certainly had no effect."""

TRAITS: Final = {
    "charge": Traits(safe=True, undo_dedups=True),
    "decline": Traits(safe=True, undo_dedups=True),
    "book": Traits(safe=True, dedups=True),
    "note": Traits(safe=False),
    "reserve": Traits(safe=False, undo_dedups=True, undo_tolerates=True),
    "ship": Traits(safe=True),
    "wire": Traits(safe=False),
    "publish": Traits(safe=True, dedups=True),
    "mail": Traits(safe=True, dedups=True),
    "inform": Traits(safe=True),
    "look": Traits(safe=True),
}
KEY: Final = ("n", "item")


class Broke(Exception):
    """An ordinary error of a tool: nothing happened."""


class Kit:
    """Every tool, over one world, in a process with one fate."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fate = Fate()
        self.tools: dict[str, Any] = {}
        self._compensatable()
        self._others()

    # ---- what happens in a body -----------------------------------------------------------

    def do(self, n: int, mood: str, *, point: str = "effect") -> str:
        """The effect; ``mood`` says what goes wrong at the first start."""
        call = current_call()
        time.sleep(random.uniform(0, BODY_S_MAX))
        if mood == "raise":
            raise Broke("it broke before anything happened")
        if call.attempt == 1 and mood == "no effect":
            raise NoEffect("certainly nothing")
        if call.attempt == 1 and mood == "request lost":
            raise TimeoutError("the request was lost")
        self._note(n, "do", call, point)
        if call.attempt == 1 and mood == "answer lost":
            raise ConnectionResetError("the answer was lost")
        return f"{call.tool}-{call.key[:8]}"

    def undo(self, n: int, mood: str) -> None:
        """The twin's effect."""
        call = current_call()
        time.sleep(random.uniform(0, BODY_S_MAX))
        if call.attempt == 1 and mood == "undo breaks":
            raise Broke("not now")
        self._note(n, "undo", call, "compensation effect")
        if call.attempt == 1 and mood == "undo answer lost":
            raise ConnectionResetError("the answer was lost")

    def _note(self, n: int, what: str, call: Call, point: str) -> None:
        self.fate.passing(f"before {point}")
        self.world.note(n, what, call.tool, key=call.key, call=call.id, run=call.run_id, attempt=call.attempt)
        self.fate.passing(f"after {point}")
        time.sleep(random.uniform(0, BODY_S_MAX))

    def found(self, n: int, what: str, call: Call) -> Probed[Any]:
        """What a probe says."""
        if not self.world.has(n, what, call.key):
            return Absent()
        return Happened(f"{call.tool}-{call.key[:8]}" if what == "do" else None)

    # ---- declarations ---------------------------------------------------------------------

    def _compensatable(self) -> None:
        def undo(n: int, mood: str) -> None:
            self.undo(n, mood)

        def undone(n: int) -> Probed[None]:
            return self.found(n, "undo", current_call())

        def happened(n: int, call: Call) -> Probed[str]:
            return self.found(n, "do", call)

        @tool(key=KEY, retry=SOON)
        def charge(n: int, item: str, mood: str) -> str:
            return self.do(n, mood)

        charge.compensate(idempotent=True, retry=SOON_BACK)(undo)
        charge.probe(settle=SETTLE_S)(happened)

        @tool(key=KEY)  # an error is final here: amends believes it once the probe has said so too
        def decline(n: int, item: str, mood: str) -> str:
            return self.do(n, mood)

        decline.compensate(idempotent=True, retry=SOON_BACK)(undo)
        decline.probe(settle=SETTLE_S)(happened)

        @tool(key=KEY, retry=SOON, idempotent=True, settle=SETTLE_S)
        def book(n: int, item: str, mood: str) -> str:
            return self.do(n, mood)

        book.compensate(probe=undone, retry=SOON_BACK)(undo)

        @tool(key=KEY)
        def note(n: int, item: str, mood: str) -> str:
            return self.do(n, mood)

        note.compensate(retry=SOON_BACK)(undo)

        @tool(key=KEY, settle=SETTLE_S)
        def reserve(n: int, item: str, mood: str) -> str:
            return self.do(n, mood)

        reserve.compensate(absent_ok=True, idempotent=True, retry=SOON_BACK)(undo)
        self.tools |= {"charge": charge, "decline": decline, "book": book, "note": note, "reserve": reserve}

    def _others(self) -> None:
        def happened(n: int, call: Call) -> Probed[str]:
            return self.found(n, "do", call)

        @tool(key=KEY, kind="pivot", retry=SOON)
        def ship(n: int, item: str, mood: str) -> str:
            return self.do(n, mood, point="pivot effect")

        ship.probe(settle=SETTLE_S)(happened)

        @tool(key=KEY, kind="pivot")
        def wire(n: int, item: str, mood: str) -> str:
            return self.do(n, mood, point="pivot effect")

        @tool(key=KEY, kind="pivot", at="commit", idempotent=True, retry=SOON)
        def publish(n: int, item: str, mood: str) -> str:
            return self.do(n, mood, point="pivot effect")

        @tool(key=KEY, kind="retriable", idempotent=True)
        def mail(n: int, item: str, mood: str) -> str:
            return self.do(n, mood)

        @tool(key=KEY, kind="retriable")
        def inform(n: int, item: str, mood: str) -> str:
            return self.do(n, mood)

        inform.probe(settle=SETTLE_S)(happened)

        @tool(key=KEY, kind="read")
        def look(n: int, item: str, mood: str) -> int:
            return len(self.world.lines(n))

        self.tools |= {
            "ship": ship, "wire": wire, "publish": publish, "mail": mail, "inform": inform, "look": look,
        }  # fmt: skip
