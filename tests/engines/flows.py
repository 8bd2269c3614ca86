"""The shared flows: what an agent does, said once for all engines; and what of the end is compared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from amends import Report, Runtime
from tests.engines.world import World


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a flow; ``tries``: how often it is made if it fails for certain."""

    tool: str
    args: dict[str, str]
    tries: int = 1


FLOWS: Final[dict[str, tuple[Ask, ...]]] = {
    "commits": (
        Ask("look", {"room": "12"}),
        Ask("reserve", {"room": "12"}),
        Ask("charge", {"order": "7"}),
        Ask("mail", {"to": "ann"}),  # staged: it starts at the commit
    ),
    "rolls back": (Ask("reserve", {"room": "12"}), Ask("charge", {"order": "7"}), Ask("break_down", {"order": "7"})),
    "pivots": (
        Ask("charge", {"order": "7"}),
        Ask("wire", {"order": "7"}),  # waits for a person
        Ask("mail", {"to": "ann"}),
    ),
    "repeats": (Ask("stumble", {"order": "7"}, tries=2), Ask("reserve", {"room": "12"})),
}

POINTS: Final[dict[str, tuple[str, ...]]] = {
    "commits": (
        "look: asked", "look: body", "look: answered",
        "reserve: asked", "reserve: body", "reserve: effect", "reserve: answered",
        "charge: asked", "charge: body", "charge: effect", "charge: answered",
        "mail: asked", "mail: answered", "commit: asked", "mail: body", "mail: effect", "commit: answered",
    ),
    "rolls back": (
        "reserve: asked", "reserve: body", "reserve: effect", "reserve: answered",
        "charge: asked", "charge: body", "charge: effect", "charge: answered",
        "break_down: asked", "break_down: body", "break_down: answered", "rollback: asked",
        "refund: body", "refund: effect", "unreserve: body", "unreserve: effect", "rollback: answered",
    ),
    "pivots": (
        "charge: asked", "charge: body", "charge: effect", "charge: answered",
        "wire: asked", "wire: answered", "wire: body", "wire: effect",
        "mail: asked", "mail: body", "mail: effect", "mail: answered", "commit: asked", "commit: answered",
    ),
    "repeats": (
        "stumble: asked", "stumble: body", "stumble: answered", "stumble: effect",
        "reserve: asked", "reserve: body", "reserve: effect", "reserve: answered", "commit: asked", "commit: answered",
    ),
}  # fmt: skip
"""Every point of each flow, in the order in which it is first reached."""


def server_points(flow: str) -> list[str]:
    """Return the points at which a server is killed: while something is under way, and before it is told the end.

    For a server, a body that has not begun and one that has are the same.
    """
    return [point for point in POINTS[flow] if point.endswith((": effect", ": answered"))]


Asked = Callable[[str, dict[str, Any]], Awaitable[str]]
"""Makes one request and returns its status, when it is final: done, staged, failed, refused or ended."""


async def play(flow: str, ask: Asked) -> bool:
    """Make the requests of a flow; return whether it may be committed."""
    for one in FLOWS[flow]:
        for _ in range(one.tries):
            status = await ask(one.tool, one.args)
            if status in ("done", "staged"):
                break
        else:
            return False
    return True


# ---- What is compared


@dataclass(frozen=True, slots=True)
class Final_:
    """How it ended: the run and its calls in the ledger, and the effects in the world."""

    state: str
    calls: tuple[tuple[str, str, int, Any], ...]
    """Tool, state, generation and result of each call, in the order of the requests. Reads are left out: they may be
    repeated, and only the last one counts."""
    effects: tuple[str, ...]


def final(here: World, rt: Runtime) -> Final_:
    """Return how the run of this world has ended."""
    report = rt.report(here.run_id)
    calls = [
        (call.tool, str(call.state), call.generation, call.result if call.state == "succeeded" else None)
        for call in report.calls
        if call.kind != "read"
    ]
    return Final_(report.state, tuple(calls), tuple(here.log))


def check_promises(ended: Final_, report: Report) -> None:
    """Raise unless the ledger tells the truth about the world, and nothing happened twice."""
    assert len(set(ended.effects)) == len(ended.effects), f"an effect happened twice: {ended.effects}"
    words = {"reserve": "reserved 12", "charge": "charged 7", "wire": "wired 7", "mail": "mailed ann"}
    undone = {"reserve": "unreserved 12", "charge": "refunded 7", "stumble": "got up 7"}
    words["stumble"] = "stumbled 7"
    for tool, state, _, _ in ended.calls:
        if state in ("succeeded", "compensated"):
            assert words[tool] in ended.effects, f"{tool} is {state}, and nothing happened: {ended}"
        if state == "compensated":
            assert undone[tool] in ended.effects, f"{tool} is compensated, and its effect stands: {ended}"
    standing = {"committed": ("succeeded", "failed"), "rolled_back": ("compensated", "failed", "dropped")}[ended.state]
    assert all(state in standing for _, state, _, _ in ended.calls), ended
    assert not report.residue
    assert not report.doubts
