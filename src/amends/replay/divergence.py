"""Find and say how a replay diverged: what the record has, what the program asked for instead, and the usual cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

from amends.encoding.canonical import canonical, diff
from amends.encoding.payloads import decode
from amends.encoding.secret import SEALED
from amends.engine.session import Ask, Session, call_of, decode_args
from amends.errors import Diverged, NotStorable
from amends.ledger.rows import CallRow, lost_at
from amends.replay.record import Entry, Record

TEXT_CHARS_MAX: Final = 1_000
"""How much of the arguments a message shows on each side; ``.diff`` has them whole."""
NAMED_MAX: Final = 5
EPOCH_S: Final = (1e9, 4e9)
"""A number between these is probably a timestamp: the years 2001 to 2096."""
_ID: Final = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
_SPELLED: Final = {
    "time": "datetime.now() and time.time() are not recorded: use run.now()",
    "id": "uuid4() is not recorded: use run.uuid()",
    "chance": "random is not recorded: use run.random()",
}


def is_same(ask: Ask, row: CallRow) -> bool:
    """Return whether version and all arguments are the recorded ones; the same text needs no digest."""
    return (row.args == ask.text and row.version == ask.spec.version) or row.digest == ask.digest


def unlike(session: Session, ask: Ask, entry: Entry) -> Diverged:
    """Return the divergence of a request with another version, or with other arguments that are not part of its key."""
    row = entry.row
    assert row is not None, "a refusal has no version"
    if row.version != ask.spec.version:
        words = f"{row.tool} was recorded in version {row.version}, but is version {ask.spec.version} here"
        hint = "record a new run with this version, or replay with strict=False"
        return _diverged(session, ask, row, "version", words, hint=hint)
    return _other_arguments(session, ask, row)


def out_of_turn(session: Session, ask: Ask, entry: Entry, due: Entry | None) -> Diverged:
    """Return the divergence of a request that is recorded after others that were not made yet."""
    row = None if due is None else due.row
    first = "" if due is None else f" {_said(due.tool, _written(row))} comes before it in the record"
    words = f"{_said(ask.spec.name, decode(ask.text))} was requested too early:{first}"
    return _diverged(session, ask, row or entry.row, "order", words, differs=False)


def unrecorded(record: Record, session: Session, ask: Ask, left: Sequence[Entry], due: Entry | None) -> Diverged:
    """Return the divergence of a request that is not recorded, or elsewhere, or with other arguments, or less often."""
    tool, name = ask.spec.name, (ask.spec.name, ask.ident, ask.again)
    here = _said(tool, decode(ask.text))
    same = record.by_name.get(name, [])
    elsewhere = next((entry for entry in same if not entry.asks and entry.run != session.uid), None)
    if elsewhere is not None and elsewhere.needed:
        where = record.runs[elsewhere.run].id
        words = f"{here} was requested in run {session.id}, but is recorded in run {where}"
        return _diverged(session, ask, elsewhere.row, "order", words, differs=False)
    alike = [entry for entry in left if entry.tool == tool and entry.run == session.uid and entry.row is not None]
    if alike and not same:
        row = alike[0].row
        assert row is not None, "only calls are alike"
        return _other_arguments(session, ask, row)
    if not left:
        words = f"{here} was requested after the end of the record of run {record.run.id} ({record.run.state})"
        return _diverged(session, ask, None, "past_end", words)
    following = due or left[0]
    instead = _said(following.tool, _written(following.row))
    if same:
        words = f"{here} was requested once more than it is recorded; the record continues with {instead}"
        return _diverged(session, ask, following.row, "extra", words, differs=False)
    words = f"{here} was requested, but the record has {instead} there"
    return _diverged(session, ask, following.row, "tool", words, differs=False)


def missing_at_end(record: Record, missing: Sequence[Entry], until: str) -> Diverged:
    """Return the divergence of a program that ended before its record."""
    if until and not missing:
        words = f"the program ended before it requested call {until}"
        return Diverged(words, how="missing", tool="", run_id=record.run.id)
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    first = missing[0]
    args = "" if first.row is None or lost_at(first.row.args) is not None else _shown(first.row.args)
    words = f"the program ended, but the record continues with {first.tool}({args}){more}"
    call = None if first.row is None else call_of(first.row, None)
    return Diverged(words, how="missing", tool=first.tool, call=call, run_id=record.run.id)


def other_end(record: Record, id: str, then: str, now: str) -> Diverged:
    """Return the divergence of a run, or of a child run, that ends in another way than recorded."""
    words = f"run {id} is recorded as {then}, but {now}"
    return Diverged(words, how="end", tool="", run_id=record.run.id)


def other_input(record: Record, id: str, recorded: Any, given: Any) -> Diverged:
    """Return the divergence of a run that was opened with another input."""
    words = f"run {id} is recorded with input {_text(recorded)}, but was opened with {_text(given)}"
    return Diverged(
        words, how="input", tool="", given={"input": given}, diff={"input": (recorded, given)}, run_id=record.run.id
    )


def no_such_child(record: Record, session: Session, id: str) -> Diverged:
    """Return the divergence of a child run that the record does not have."""
    inside = [run.id for run in record.runs.values() if run.parent == session.uid]
    has = f"; it has {', '.join(inside[:NAMED_MAX])}" if inside else ""
    words = f"run {id} was opened inside {session.id}, but the record has no such run{has}"
    return Diverged(words, how="child", tool="", run_id=session.id)


def clock_past_end(record: Record, run: str) -> Diverged:
    """Return the divergence of a clock that was read more often than recorded."""
    words = f"run.now() was called once more in run {record.runs[run].id} than it is recorded"
    return Diverged(words, how="past_end", tool="", run_id=record.run.id)


def _other_arguments(session: Session, ask: Ask, row: CallRow) -> Diverged:
    words = f"{row.tool} was recorded with {_text(_written(row))}, but was requested with {_text(decode(ask.text))}"
    return _diverged(session, ask, row, "arguments", words)


def _diverged(
    session: Session,
    ask: Ask,
    row: CallRow | None,
    how: str,
    words: str,
    *,
    hint: str | None = None,
    differs: bool = True,
) -> Diverged:
    given = dict(_given(ask))
    recorded = _recorded(session, row)
    changes = diff(recorded, given) if differs and recorded is not None else {}
    call = None if row is None else call_of(row, session.spec(row.tool))
    hint = hint or hint_for(changes)
    return Diverged(
        words, how=how, tool=ask.spec.name, call=call, given=given, diff=changes, run_id=session.id, hint=hint
    )


def hint_for(changes: Mapping[str, tuple[Any, Any]]) -> str | None:
    """Return a hint if the differences look like a time, a random number or an id; else None."""
    kinds = dict.fromkeys(kind for was, now in changes.values() for kind in _kinds(was, now))
    return "; ".join(_SPELLED[kind] for kind in kinds) or None


def _kinds(was: Any, now: Any) -> Iterable[str]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in was:
            if name in now and was[name] != now[name]:
                yield from _kinds(was[name], now[name])
    elif isinstance(was, datetime | date | time | timedelta) or (_is_time(was) and _is_time(now)):
        yield "time"
    elif isinstance(was, UUID) or (isinstance(was, str) and isinstance(now, str) and _ids_differ(was, now)):
        yield "id"
    elif isinstance(was, float) and isinstance(now, float) and 0 < was < 1 and 0 < now < 1:
        yield "chance"


def _is_time(value: Any) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return EPOCH_S[0] < (value / 1000 if value > EPOCH_S[1] else value) < EPOCH_S[1]
    return isinstance(value, str) and _TIME.search(value) is not None


def _ids_differ(was: str, now: str) -> bool:
    return _ID.search(was) is not None and _ID.search(now) is not None


def _given(ask: Ask) -> Mapping[str, Any]:
    return ask.args if ask.shown is None else ask.shown


def _recorded(session: Session, row: CallRow | None) -> Mapping[str, Any] | None:
    if row is None or lost_at(row.args) is not None or row.args.startswith(SEALED):
        return None
    return decode_args(row, session.spec(row.tool))


def _written(row: CallRow | None) -> Mapping[str, Any] | None:
    """Return the recorded arguments as plain data, with the classes that are recorded in it."""
    if row is None or lost_at(row.args) is not None or row.args.startswith(SEALED):
        return None
    found: Mapping[str, Any] = decode(row.args)
    return found


def _said(tool: str, args: Mapping[str, Any] | None) -> str:
    return f"{tool}({'' if args is None else _text(args)})"


def _text(value: Any) -> str:
    """Return the canonical text of a value, so that two values differ only where their meaning differs."""
    try:
        return _shown(canonical(dict(value) if isinstance(value, Mapping) else value, path="args"))
    except NotStorable:
        return _shown(repr(value))


def _shown(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}…"
