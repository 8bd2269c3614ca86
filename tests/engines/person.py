"""The person of the shared flows: approves what waits, and looks at the world where amends cannot."""

from __future__ import annotations

from amends import Absent, Happened, Refused, Runtime, UsageError
from amends.errors import LedgerError
from tests.engines.world import RESULTS, UNDOING, UNKNOWABLE, World


def decide(here: World, rt: Runtime, *, after_told: bool = False) -> None:
    """Decide everything that waits for a person now. What was decided meanwhile by somebody else is left.

    ``after_told``: settle a doubt only after the program was told of it. A restarted program that asks after the answer
    "it did not happen" makes a new attempt, and one that asks before waits for that answer: both are right, and a flow is
    to end in one way.
    """
    if not (here.folder / "ledger.db").exists():
        return
    try:
        for asked in list(rt.approvals("state:pending")):
            rt.approve(asked.id, digest=asked.digest, by="ann")
        for doubt in list(rt.doubts()):
            _settle(here, rt, doubt.id, after_told)
    except (Refused, UsageError, LedgerError):
        pass  # it has moved on, or the ledger is being made


def _settle(here: World, rt: Runtime, call_id: str, after_told: bool) -> None:
    call = rt.call(call_id)
    value = next(iter(call.args.values()))
    why = "looked"
    match call.state:
        case "in_doubt" if call.tool in UNKNOWABLE:
            if after_told and not _is_told(here.points, call.tool):
                return
            happened = here.has(UNKNOWABLE[call.tool], value)
            rt.resolve(call.id, Happened(RESULTS[call.tool].format(value)) if happened else Absent(), by="ann", why=why)
        case "compensation_in_doubt" | "compensation_failed" if call.tool in UNDOING:
            if rt.report(call.run_id).state != "blocked":
                return  # first amends does what it can do alone: so the order of effects does not depend on this person
            happened = here.has(UNDOING[call.tool], value)
            rt.resolve(call.id, Happened(None) if happened else Absent(), by="ann", why=why)
        case _:
            return  # a probe settles it


def _is_told(points: list[str], tool: str) -> bool:
    """Return whether the program had an answer since the body last began."""
    ends = (f"{tool}: body", f"{tool}: answered")
    return next((point for point in reversed(points) if point in ends), "") == ends[1]
