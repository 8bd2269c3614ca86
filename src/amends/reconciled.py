"""What the ledger and the world disagree about, tool by tool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from amends.model import Call
from amends.record import dataclass
from amends.report import plain
from amends.visible import visible, visible_value


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing that the ledger and the world do not agree about."""

    call: Call | None
    """The call that it is about; None: the ledger has none for it."""
    effect: Any
    """As the listing gave it; None where a probe was asked."""
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        call = self.call
        about = {} if call is None else {"call": call.id, "run": call.run_id, "state": call.state}
        return {**about, "effect": plain(self.effect), "why": self.why}

    def __str__(self) -> str:
        what = (
            "nothing in the ledger"
            if self.call is None
            else f"{visible(self.call.id)} in run {visible(self.call.run_id)}"
        )
        seen = "" if self.effect is None else f" ({visible_value(self.effect)})"
        return f"{what}{seen}: {visible(self.why, prose=True)}"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The ledger beside the world, for one tool. Nothing was changed by looking."""

    tool: str
    compared: int
    """Calls of the ledger that were looked at."""
    listed: int | None
    """Effects that ``list_effects`` gave; None: the tool has no listing."""
    asked: int
    """How often a probe was asked."""
    missing: tuple[Mismatch, ...] = ()
    """The ledger says that it stands; the world does not have it."""
    unrecorded: tuple[Mismatch, ...] = ()
    """The world has it; the ledger does not know it, or says that it does not stand."""
    doubts: tuple[Mismatch, ...] = ()
    """Calls in doubt, with what the world says of them now: ``rt.resolve`` settles them."""
    unclear: tuple[Mismatch, ...] = ()
    """Asked, and not answered one way or the other: in flight, too early, or the probe does not know."""
    unasked: int = 0
    """Calls that ``limit`` left out."""

    @property
    def orphans(self) -> tuple[Mismatch, ...]:
        """Both sides: what only the ledger has, then what only the world has."""
        return self.missing + self.unrecorded

    @property
    def agrees(self) -> bool:
        """Whether there is no orphan on either side."""
        return not self.orphans

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        parts = {
            "missing": self.missing,
            "unrecorded": self.unrecorded,
            "doubts": self.doubts,
            "unclear": self.unclear,
        }
        told = {name: [one.to_dict() for one in found] for name, found in parts.items()}
        head = {"tool": self.tool, "agrees": self.agrees, "compared": self.compared, "listed": self.listed}
        return {**head, "asked": self.asked, "unasked": self.unasked, **told}

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(found: Reconciliation) -> Iterator[str]:
    listed = "" if found.listed is None else f", {found.listed} effects listed"
    yield f"{visible(found.tool)}: {found.compared} calls compared{listed}, {found.asked} probes asked"
    for title, part in (
        ("only in the ledger", found.missing),
        ("only in the world", found.unrecorded),
        ("in doubt", found.doubts),
        ("unclear", found.unclear),
    ):
        yield from (f"   {title}: {one}" for one in part)
    if found.unasked:
        yield f"   not asked about: {found.unasked} older calls"
    if found.agrees:
        yield "   = the ledger and the world agree"
