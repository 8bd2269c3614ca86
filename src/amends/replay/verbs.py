"""Replaying a record against the program that made it: one run, or many for CI."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar, get_type_hints

from amends.encoding.canonical import canonical, encode
from amends.encoding.lazy_import import import_on_use
from amends.encoding.payloads import decode
from amends.encoding.secret import MARK, SEALED
from amends.errors import Diverged, Error, ReplayDenied, UsageError, Waiting, cut, described, is_a, type_name
from amends.ledger.rows import RunRow, lost_at
from amends.report import Replayed
from amends.tools.scope import caller_here

# The replay itself is imported where it is needed: few programs replay, and those need not start fast.
if TYPE_CHECKING:
    from amends.replay import driver
    from amends.replay.answers import Replay
    from amends.report import Report
else:
    import_on_use(globals(), driver="amends.replay.driver")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def reopened(id: str | None, input: object, *, is_async: bool, block: bool = False) -> Any:
    """Return the replayed run if its program opens it here; None outside a replay, or if it was opened before.

    ``block``: the program opens it with ``with rt.run(...)``.
    """
    caller: Any = caller_here()
    again = getattr(caller, "opened_again", None)
    found = None if again is None else again(id, input, block=block)
    if found is not None and caller.is_async != is_async:
        runtime, other = ("Runtime", "AsyncRuntime") if caller.is_async else ("AsyncRuntime", "Runtime")
        raise UsageError(
            f"run {found.id} is replayed by {other}.replay, but was opened with {runtime}.run",
            hint=f"use {runtime}.replay",
        )
    return found


def reported(run_id: str) -> Report | None:
    """Return the report of the replayed run; None outside a replay, or for another run."""
    tell = getattr(caller_here(), "report_named", None)
    found: Report | None = None if tell is None else tell(run_id)
    return found


# ---- Many runs against one function


Sources: TypeAlias = Mapping[str, str | bytes] | Iterable[str]
"""Run ids; or bundles and ids, by the names that reports use."""
LEDGER: Final = "ledger"
WHY_CHARS_MAX: Final = 2_000
_REST: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def each(runs: Sources) -> Iterator[tuple[str, str | bytes, str]]:
    """Return name, record and run id of everything to replay; a bundle may have several runs."""
    given = runs.items() if isinstance(runs, Mapping) else ((LEDGER, run) for run in runs)
    for name, record in given:
        if isinstance(record, bytes):
            try:
                ids = driver.runs_in(record)
            except Error:
                ids = [""]  # reading it later raises what is wrong
            yield from ((name, record, id) for id in ids)
        else:
            yield name, record, record


def arguments(fn: Callable[..., object], run: Any, row: RunRow) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for the function of a recorded run: the run, its input by name, or its input as a whole."""
    try:
        found = [one for one in inspect.signature(fn).parameters.values() if one.kind not in _REST]
    except (TypeError, ValueError) as error:
        raise UsageError(f"no run can be replayed against {fn!r}: {error}") from error
    needed = [one for one in found if one.default is one.empty]
    hints = _hints(fn)
    if len(needed) == 1 and _is_run(needed[0], hints):
        return _given(needed[0], run)
    text = run._session.redactor.revealed(row.input) if row.input and lost_at(row.input) is None else ""
    whole = decode(text) if text else None
    if isinstance(whole, Mapping) and needed and {one.name for one in needed} <= set(whole):
        named = [one for one in found if one.name in whole and one.kind is not one.POSITIONAL_ONLY]
        return (), {one.name: decode(encode(whole[one.name], path="input"), _hint(one, hints)) for one in named}
    if len(needed) > 1:
        names = ", ".join(one.name for one in needed)
        raise UsageError(
            f"{getattr(fn, '__name__', fn)} takes {names}, but the input of run {row.id} does not have them",
            hint="replay against a function that takes the run, its input, or nothing",
        )
    return _given(needed[0], decode(text, _hint(needed[0], hints)) if text else None) if needed else ((), {})


def _is_run(one: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    hint = _hint(one, hints)
    return one.name == "run" or getattr(hint, "__name__", str(hint)) in ("Run", "AsyncRun")


def _hint(one: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    return hints.get(one.name, one.annotation)


def _given(one: inspect.Parameter, value: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((), {one.name: value}) if one.kind is one.KEYWORD_ONLY else ((value,), {})


def _hints(fn: Callable[..., object]) -> dict[str, Any]:
    try:
        return get_type_hints(fn)
    except Exception:  # names that only a type checker knows
        return {}


def ended(name: str, replay: Replay, run: Any, value: object, error: BaseException | None) -> Replayed:
    """Return the result of one replay, after its program has ended."""
    row = replay.record.run
    calls = sum(bool(entry.asks) for entry in replay.record.entries if entry.needed)
    facts: dict[str, Any] = {"calls": calls, "of": sum(entry.needed for entry in replay.record.entries)}
    if is_a(error, Diverged):
        call_id = None if error.call is None else error.call.id
        facts |= {"why": str(error), "hint": error.hint, "call_id": call_id, "diff": error.diff}
        return Replayed(row.id, name, error.how, **facts)
    if error is not None:
        same = is_a(error, Waiting) or row.goal_why.startswith(f"{type_name(error)}: ")
        how = "same" if same else "denied" if is_a(error, ReplayDenied) else "raised"
        why = "" if same else cut(described(error), WHY_CHARS_MAX)
        return Replayed(row.id, name, how, why=why, hint=error.hint if why and is_a(error, Error) else "", **facts)
    given = value if run is None or run._output is run._output_was else run._output
    if given is not None and not replay.stopped and not _is_output(row, given):
        why = f"its output was {cut(row.output, WHY_CHARS_MAX)}, but is {cut(repr(given), WHY_CHARS_MAX)}"
        return Replayed(row.id, name, "output", why=why, **facts)
    return Replayed(row.id, name, "same", **facts)


def _is_output(row: RunRow, value: object) -> bool:
    """Return whether this is the recorded output; True if the record cannot tell."""
    text = row.output
    if not text or lost_at(text) is not None or text.startswith(SEALED) or MARK in text:
        return True
    try:
        return canonical(value, path="output") == canonical(decode(text), path="output")
    except Error:
        return False


def unreadable(name: str, run_id: str, error: Exception | str) -> Replayed:
    """Return the result for a record that could not be replayed at all."""
    return Replayed(run_id, name, "unreadable", why=cut(str(error), WHY_CHARS_MAX), hint=getattr(error, "hint", ""))
