"""Tell callers and people of a halt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amends.engine.session import Session, moment
from amends.errors import Halted
from amends.ledger.rows import DirectiveRow
from amends.model import Halt


def halt_of(row: DirectiveRow) -> Halt:
    """Return a halt as users see it."""
    at = moment(row.made_at)
    assert at is not None, "a halt was made at some time"
    return Halt(
        id=row.id, tenant=None if row.wide else row.tenant, agent=row.agent or None, tool=row.tool or None,
        by=row.by_whom, why=row.why, at=at, lifted_at=moment(row.closed_at),
    )  # fmt: skip


def halted_in(session: Session, tool: str, facts: Mapping[str, Any]) -> Halted:
    """Return the same error from the facts of the recorded refusal."""
    said = facts["said"]
    row = DirectiveRow(
        id=str(facts["halt"]), kind="halt", tenant=said["tenant"] or "", wide=int(said["tenant"] is None),
        agent=said["agent"], tool=said["tool"], words="", by_whom=said["by"], why=said["why"], made_at=said["at"],
        until_at=None, uses=0, closed_at=None, seq=1,
    )  # fmt: skip
    return halted(session, tool, row)


def halted(session: Session, tool: str, row: DirectiveRow) -> Halted:
    """Return the error for a call that a halt does not let start."""
    halt = halt_of(row)
    return Halted(tool, by=halt.by, why=halt.why, since=halt.at, extent=halt.extent, halt_id=halt.id, run_id=session.id)
