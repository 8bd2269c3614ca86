"""Find the permits that cover a request, and show permits to people."""

from __future__ import annotations

import json
from typing import Any

from amends.engine.session import Ask, Session, moment, request_of
from amends.ledger.operations import ListPermits
from amends.ledger.permits import counts
from amends.ledger.rows import DirectiveRow, Need, person
from amends.model import Permit
from amends.tools.rules import Rule


async def covering_permits(session: Session, ask: Ask) -> tuple[str, ...]:
    """Return the permits that cover this request: those for exactly its arguments first, then those by a rule."""
    rows, _ = await _covering(session, ask)
    return tuple(row.id for row in rows)


async def is_permitted(session: Session, ask: Ask, need: Need) -> bool:
    """Return whether a permit would let this request start now; nothing is used. Only the start itself decides."""
    rows, now = await _covering(session, ask)
    askers = {person(who) for who in (session.principal, session.agent, *need.editors) if who}
    return any(person(row.by_whom) not in askers and counts(row, need.needed, need.roles, now) for row in rows)


async def _covering(session: Session, ask: Ask) -> tuple[list[DirectiveRow], float]:
    rows, now = await ListPermits(session.tenant, ask.spec.name)
    exact = [row for row in rows if json.loads(row.words).get("digest") == ask.digest]
    ruled = [(row, rule) for row in rows if (rule := rule_of(row)) is not None]
    if not ruled:
        return exact, now
    request = request_of(session, ask.spec, ask.fresh())
    matches = [row for row, rule in ruled if rule.matches(request, moment(now), undeclared=ask.undeclared)]
    return [*exact, *matches], now


def rule_of(row: DirectiveRow) -> Rule | None:
    """Return the rule of a permit; None: it is for exact arguments."""
    words: dict[str, Any] = json.loads(row.words)
    return Rule(tool=row.tool, **words["rule"]) if "rule" in words else None


def permit_of(row: DirectiveRow) -> Permit:
    """Return a permit as users see it."""
    at, expires_at = moment(row.made_at), moment(row.until_at)
    assert at is not None, "a permit was given at some time"
    assert expires_at is not None, "a permit has an end"
    words = json.loads(row.words)
    return Permit(
        id=row.id, tool=row.tool, by=row.by_whom, why=row.why, at=at, expires_at=expires_at, uses=row.uses,
        digest=words.get("digest"), rule=words.get("rule"), roles=tuple(words.get("roles", ())),
        ended_at=moment(row.closed_at),
    )  # fmt: skip
