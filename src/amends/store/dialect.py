"""What differs between the databases. Everything else is said once, in ``sql.py``.

No row operation needs an upsert, a stored procedure or a type of its own: that is on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database spells things."""

    name: str
    """Also the folder of its migrations."""
    mark: str
    """Where a parameter goes."""
    quote: str
    """Around names: ``key`` and ``call`` are reserved words in some databases."""
    lock: str
    """Ends a select whose rows nobody else may change before the transaction ends."""
    skip: str
    """The same, but without the rows that somebody else has locked."""
    new_id: str
    """Ends the insert of an event, where only the statement itself tells the id it made."""
    clock: str
    """The server's own clock, in seconds; empty where there is no server and the process's clock is asked."""

    index: str
    """After a table's name: the index to use. A planner that guesses takes the wrong one when tenants are few."""

    is_open: str = ""
    """What the index ``calls_open`` answers to, where it cannot be an index of some states only."""

    if_absent: str = "insert into {} on conflict do nothing"
    """An insert that meets no row where the key is taken, and breaks nothing then; ``{}``: table and values."""

    ended: str = ""
    """The column of the index ``runs_closed``, where that cannot be an index of some rows only."""

    linked: str = ""
    """An event's hash, where the server makes it: of the one before, the number, the microseconds and the body."""

    as_float: str = "{}"
    as_int: str = "{}"
    as_text: str = "{}"
    """A parameter with its type, where nothing else says what it is."""

    def name_of(self, column: str) -> str:
        """A column or table, safe from the reserved words."""
        return f"{self.quote}{column}{self.quote}"


# One writer at a time (BEGIN IMMEDIATE): there is nobody to lock a row against.
SQLITE: Final = Dialect("sqlite", mark="?", quote='"', lock="", skip="", new_id="", clock="", index=" indexed by {}")

# sysdate and not now: the time of the statement, which may have waited. Sessions of ours are in UTC, where every hour
# is there once. MySQL has no RETURNING, neither has an index of some rows only.
MYSQL: Final = Dialect(
    "mysql",
    mark="%s",
    quote="`",
    lock=" for update",
    skip=" for update skip locked",
    new_id="",
    clock="unix_timestamp(sysdate(6)) + 0e0",
    index=" force index ({})",
    is_open="attention = 1",
    if_absent="insert ignore into {}",
    ended="ended_at",
    linked="sha2(concat({}, ':', {}, ':', {}, ':', {}), 256)",
)

POSTGRES: Final = Dialect(
    "postgresql",
    mark="%s",
    quote='"',
    lock=" for update",
    skip=" for update skip locked",
    new_id=" returning seq",
    clock="extract(epoch from clock_timestamp())::float8",
    index="",
    is_open="attention = 1",
    linked="encode(sha256(convert_to({} || ':' || ({}) || ':' || {} || ':' || {}, 'UTF8')), 'hex')",
    as_float="{}::float8",
    as_int="{}::bigint",
    as_text="{}::text",
)
