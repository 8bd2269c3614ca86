"""The on-call table: who is asked now. A list of shifts in the settings, or a CSV file that is read again when it changes.

The table says whom to ask. Who may decide is what ``approvers`` and the roles of a request say: being on call gives nobody
a role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import Final

from amends.errors import BadConfig
from amends.ledger.rows import person
from amends.model import Shift, ShiftProblem
from amends.visible import visible, visible_log

log = visible_log("amends")

COLUMNS: Final = ("role", "person", "from", "until")
SHIFTS_MAX: Final = 10_000
FILE_BYTES_MAX: Final = 4 << 20
PROBLEMS_MAX: Final = 100


class OnCall:
    """The shifts of a runtime: given as a list, or in a file, which is read again when it has changed."""

    def __init__(self, shifts: Sequence[Shift] = (), *, path: Path | None = None, origin: str = "default") -> None:
        self.path, self.origin = path, origin
        self._shifts = tuple(shifts)
        self._seen: tuple[int, int] | None = None
        self.error = ""
        """Why the file could not be read the last time; the shifts read before it still count."""
        if path is not None:
            self._seen = _version(path)
            self._shifts = _read(path, origin)

    def __repr__(self) -> str:
        return str(self.path) if self.path is not None else f"{len(self._shifts)} shifts"

    def __bool__(self) -> bool:
        return self.path is not None or bool(self._shifts)

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """The shifts as the table has them now."""
        if self.path is None:
            return self._shifts
        try:
            version = _version(self.path)
            if version != self._seen:
                self._shifts = _read(self.path, self.origin)
                self._seen = version
            self.error = ""  # also if the file that was read before is back
        except BadConfig as error:
            if str(error) != self.error:  # once: requests are shown often
                log.warning("%s; the shifts that were read before still count", error)
            self.error = str(error)
        return self._shifts

    def on_call(self, role: str | None, at: datetime) -> list[Shift]:
        """Return the shifts at this time, of one role or of all."""
        return [one for one in self.shifts if one.covers(at) and role in (None, one.role)]

    def asked(
        self, roles: Iterable[str], approvers: Mapping[str, Sequence[str]], at: datetime, *, requesters: Iterable[str]
    ) -> tuple[str, ...]:
        """Return who is asked for these roles: the people on call; where a role has nobody on call now, all who have it.

        ``requesters``: who made the request or edited it. They may not approve it, so they are never asked: where only they
        are on call, the others who have the role are.
        """
        left_out = {person(one) for one in requesters}
        found: list[str] = []
        for role in roles:
            on_call = [one.person for one in self.on_call(role, at) if person(one.person) not in left_out]
            found += on_call or (one for one in approvers.get(role, ()) if person(one) not in left_out)
        return tuple(dict.fromkeys(found))


def checked_oncall(given: object, origin: str = "argument") -> OnCall:
    """Return the on-call table, checked: a list of shifts, or the path of a CSV file; raise ``BadConfig`` if it is wrong.

    A relative path is relative to the settings file that names it, else to the working directory.
    """
    if isinstance(given, OnCall):
        return given
    if isinstance(given, str | Path):
        if not str(given).strip():
            raise _bad("is an empty path", origin)
        base = Path(origin).parent if Path(origin).is_absolute() else Path.cwd()
        return OnCall(path=base / given, origin=origin)
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise _bad("is a list of shifts, or the path of a CSV file", origin)
    return OnCall(_shifts(given, origin), origin=origin)


def _shifts(given: Iterable[object], origin: str) -> tuple[Shift, ...]:
    found: list[Shift] = []
    for number, one in enumerate(given, 1):
        if number > SHIFTS_MAX:
            raise _bad(f"has more than {SHIFTS_MAX:,} shifts", origin)
        if isinstance(one, Shift):
            one = {"role": one.role, "person": one.person, "from": one.start, "until": one.until}
        found.append(_shift(one, f"shift {number}", origin))
    return tuple(found)


def _shift(given: object, where: str, origin: str) -> Shift:
    if not isinstance(given, Mapping):
        raise _bad(f"{where} is {given!r}; it has {', '.join(COLUMNS)}, and tz where a time has no offset", origin)
    strange, missing = sorted(set(given) - {*COLUMNS, "tz"}), [one for one in COLUMNS if one not in given]
    if strange or missing:
        what = f"has {strange[0]!r}, which is unknown" if strange else f"has no {missing[0]!r}"
        raise _bad(f"{where} {what}; a shift has {', '.join(COLUMNS)}, and tz", origin)
    names = []
    for name in ("role", "person"):
        text = given[name]
        if not isinstance(text, str) or not text.strip() or not text.strip().isprintable():
            raise _bad(f"{where} has {name}={text!r}; it is a name", origin)
        names.append(text.strip())
    zone = _zone(given.get("tz") or "", where, origin)
    start, until = (_moment(given[name], zone, f"{where}: {name}", origin) for name in ("from", "until"))
    if start >= until:
        raise _bad(f"{where} of {visible(names[1])} ends before it begins", origin)
    return Shift(names[0], names[1], start, until)


def _zone(name: object, where: str, origin: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    if not name:
        return None
    try:
        return ZoneInfo(str(name))
    except (ValueError, LookupError, OSError) as error:
        raise _bad(f"{where} has tz={name!r}, which is no time zone; write it like Europe/Berlin", origin) from error


def _moment(value: object, zone: tzinfo | None, where: str, origin: str) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError as error:
            raise _bad(f"{where} is {value!r}; write it like 2026-03-02T09:00+01:00", origin) from error
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise _bad(f"{where} is {value!r}; write it like 2026-03-02T09:00+01:00", origin)
    if value.tzinfo is None and zone is None:
        raise _bad(f"{where} is {value.isoformat()}, without an offset; add one, or tz", origin)
    found = value.replace(tzinfo=zone) if value.tzinfo is None else value
    try:
        return found.astimezone(UTC)
    except OverflowError as error:
        raise _bad(f"{where} is {value.isoformat()}, which is out of range", origin) from error


def _version(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise _bad(f"cannot be read: {error}", str(path)) from error
    return status.st_mtime_ns, status.st_size


def _read(path: Path, origin: str) -> tuple[Shift, ...]:
    import csv
    import io

    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise _bad(f"{path} has more than {FILE_BYTES_MAX:,} bytes", origin)
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise _bad(f"{path} cannot be read: {error}", origin) from error
    found: list[Shift] = []
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise _bad(f"{path}, line {number}: it has more or fewer cells than the first line", origin)
        if len(found) == SHIFTS_MAX:
            raise _bad(f"{path} has more than {SHIFTS_MAX:,} shifts", origin)
        found.append(_shift({str(name).strip(): cell for name, cell in row.items()}, f"{path}, line {number}", origin))
    if not found:
        raise _bad(
            f"{path} has no shift; its first line is {','.join(COLUMNS)}, with tz where times have no offset", origin
        )
    return tuple(found)


def _bad(what: str, origin: str) -> BadConfig:
    return BadConfig(f"oncall ({origin}) {what}", setting="oncall", origin=origin)


# ---- Gaps and overlaps


def problems_of(
    table: OnCall, *, asked: Iterable[str], approvers: Mapping[str, Sequence[str]], now: datetime, ahead: timedelta
) -> list[ShiftProblem]:
    """Return what is wrong with the table from now on, for so long: gaps, overlaps, people who may not decide.

    ``asked``: the roles that rules ask. At most ``PROBLEMS_MAX`` problems are returned.
    """
    shifts, end = table.shifts, now + ahead
    found: list[ShiftProblem] = []
    if table.error:
        found.append(ShiftProblem("unreadable", "", (), now, end, table.error))
    known = set(asked)
    for role in dict.fromkeys(one.role for one in shifts):
        mine = sorted((one for one in shifts if one.role == role), key=lambda one: (one.start, one.until))
        if known and role not in known:
            found.append(ShiftProblem("unused", role, (), now, end, f"no rule asks the role {visible(role)}"))
        found += _gaps(role, mine, now, end)
        found += _overlaps(role, mine, now, end)
        found += _strangers(role, mine, approvers, now, end)
    return found[:PROBLEMS_MAX]


def _gaps(role: str, shifts: Sequence[Shift], now: datetime, end: datetime) -> list[ShiftProblem]:
    found, covered = [], now
    for start, until in [*((one.start, one.until) for one in shifts), (end, end)]:
        if start > covered and covered < end:
            text = f"nobody is on call for {visible(role)}: everybody who has the role is asked"
            found.append(ShiftProblem("gap", role, (), covered, min(start, end), text))
        covered = max(covered, until)
    return found


def _overlaps(role: str, shifts: Sequence[Shift], now: datetime, end: datetime) -> list[ShiftProblem]:
    found: list[ShiftProblem] = []
    for number, one in enumerate(shifts):
        for other in shifts[number + 1 :]:
            if other.start >= one.until or len(found) >= PROBLEMS_MAX:
                break  # they are sorted by their start
            start, until = max(now, other.start), min(end, one.until, other.until)
            if start < until and other.person != one.person:
                people = (one.person, other.person)
                text = f"{' and '.join(map(visible, people))} are both on call for {visible(role)}: both are asked"
                found.append(ShiftProblem("overlap", role, people, start, until, text))
    return found


def _strangers(
    role: str, shifts: Sequence[Shift], approvers: Mapping[str, Sequence[str]], now: datetime, end: datetime
) -> list[ShiftProblem]:
    if not approvers:
        return []  # roles come from tokens or from the program
    having = set(approvers.get(role, ()))
    found: dict[str, ShiftProblem] = {}
    for one in shifts:
        if one.until > now and one.start < end and one.person.casefold() not in having:
            text = (
                f"{visible(one.person)} is on call for {visible(role)} and does not have that role: they may not decide"
            )
            found.setdefault(one.person, ShiftProblem("no_role", role, (one.person,), one.start, one.until, text))
    return list(found.values())
