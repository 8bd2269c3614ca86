"""Dice and new names that a run has of its own: made from the run and their number, so that nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amends.engine.recorded_values import Reader, seed_of
from amends.engine.session import Session

if TYPE_CHECKING:
    from random import Random
    from uuid import UUID


def dice(session: Session, reader: Reader) -> Random:
    """The next ones of this run, or of the body that asks."""
    from random import Random  # here: few runs throw dice

    return Random(seed_of(session, "random", reader))


def new_name(session: Session, reader: Reader) -> UUID:
    """The next one of this run, or of the body that asks."""
    from uuid import UUID

    return UUID(bytes=bytes.fromhex(seed_of(session, "uuid", reader))[:16], version=4)
