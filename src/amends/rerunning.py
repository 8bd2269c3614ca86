"""Replaying many recorded runs against one function, and saying of each how it went: for CI."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, get_type_hints

from amends import replaying
from amends.canonical import canonical, decode, encode
from amends.engine.replay import Replay
from amends.errors import Diverged, Error, ReplayDenied, UsageError, Waiting
from amends.replayed import Replayed
from amends.rows import RunRow, lost_at
from amends.secret import MARK, SEALED

Sources: TypeAlias = Mapping[str, str | bytes] | Iterable[str]
"""Run ids; or bundles, and ids, by the names that reports know them by."""
LEDGER: Final = "ledger"
WHY_CHARS_MAX: Final = 2_000


def each(runs: Sources) -> Iterator[tuple[str, str | bytes, str]]:
    """Name, record and run id of everything that is to be replayed: a bundle may have several runs."""
    given = runs.items() if isinstance(runs, Mapping) else ((LEDGER, run) for run in runs)
    for name, record in given:
        if isinstance(record, bytes):
            try:
                ids = replaying.runs_in(record)
            except Error:
                ids = [""]  # reading it says what is wrong
            yield from ((name, record, id) for id in ids)
        else:
            yield name, record, record


def arguments(fn: Callable[..., object], run: Any, row: RunRow) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a recorded run gives to the function that made it: itself, its input, or its input by name."""
    try:
        found = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{fn!r} cannot be replayed against: {error}") from error
    needed = [
        one for one in found if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    hints = _hints(fn)
    if not needed:
        return (), {}
    text = run._session.veil.revealed(row.input) if row.input and lost_at(row.input) is None else ""
    if len(needed) == 1:
        (one,) = needed
        hint = hints.get(one.name, one.annotation)
        is_run = one.name == "run" or getattr(hint, "__name__", str(hint)) in ("Run", "AsyncRun")
        given = run if is_run else decode(text, hint) if text else None
        return ((), {one.name: given}) if one.kind is one.KEYWORD_ONLY else ((given,), {})
    whole = decode(text) if text else None
    names = [one.name for one in needed]
    if not isinstance(whole, Mapping) or not set(names) <= set(whole):
        raise UsageError(
            f"{getattr(fn, '__name__', fn)} takes {', '.join(names)}, and the input of run {row.id} does not have them",
            hint="replay against a function of the run, of its input, or of nothing",
        )
    return (), {name: decode(encode(whole[name], path="input"), hints.get(name, Any)) for name in names}


def _hints(fn: Callable[..., object]) -> dict[str, Any]:
    try:
        return get_type_hints(fn)
    except Exception:  # names that only a type checker knows
        return {}


def ended(name: str, replay: Replay, run: Any, value: object, error: Exception | None) -> Replayed:
    """How one replay went, after its program has ended."""
    row = replay.record.run
    calls = sum(bool(entry.asks) for entry in replay.record.entries if entry.needed)
    facts: dict[str, Any] = {"calls": calls, "of": sum(entry.needed for entry in replay.record.entries)}
    if isinstance(error, Diverged):
        call_id = None if error.call is None else error.call.id
        facts |= {"why": str(error), "hint": error.hint, "call_id": call_id, "diff": error.diff}
        return Replayed(row.id, name, error.how, **facts)
    if error is not None:
        same = isinstance(error, Waiting) or row.goal_why.startswith(f"{type(error).__name__}: ")
        how = "same" if same else "denied" if isinstance(error, ReplayDenied) else "raised"
        why = "" if same else f"{type(error).__name__}: {error}"[:WHY_CHARS_MAX]
        return Replayed(row.id, name, how, why=why, hint=getattr(error, "hint", "") if why else "", **facts)
    given = value if run is None or run._output is run._output_was else run._output
    if given is not None and not replay.stopped and not _is_output(row, given):
        why = f"its output was {row.output[:WHY_CHARS_MAX]}, and is {given!r}"[: 2 * WHY_CHARS_MAX]
        return Replayed(row.id, name, "output", why=why, **facts)
    return Replayed(row.id, name, "same", **facts)


def _is_output(row: RunRow, value: object) -> bool:
    """Whether this is what the run gave back, as far as the record says that."""
    text = row.output
    if not text or lost_at(text) is not None or text.startswith(SEALED) or MARK in text:
        return True
    try:
        return canonical(value, path="output") == canonical(decode(text), path="output")
    except Error:
        return False


def unreadable(name: str, run_id: str, error: Exception | str) -> Replayed:
    """A record that could not be replayed at all."""
    return Replayed(run_id, name, "unreadable", why=str(error)[:WHY_CHARS_MAX], hint=getattr(error, "hint", ""))
