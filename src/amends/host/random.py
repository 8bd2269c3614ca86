"""Random generators and UUIDs of a run, derived from the run and a counter, so that nothing has to be recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amends.engine.recorded_values import Reader, seed_of
from amends.engine.session import Session

if TYPE_CHECKING:
    from random import Random
    from uuid import UUID


def random_generator(session: Session, reader: Reader) -> Random:
    """Return the next random generator of this run, or of the body that asks."""
    from random import Random  # here: few runs need it

    return Random(seed_of(session, "random", reader))


def new_uuid(session: Session, reader: Reader) -> UUID:
    """Return the next UUID of this run, or of the body that asks."""
    from uuid import UUID

    return UUID(bytes=bytes.fromhex(seed_of(session, "uuid", reader))[:16], version=4)
