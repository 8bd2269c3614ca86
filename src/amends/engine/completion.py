"""When a run is complete: what it requires, which failures are still open, and what is said about both."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from amends.encoding.canonical import canonical, encode
from amends.encoding.dataclass import dataclass, field
from amends.encoding.payloads import decode
from amends.engine.before import UNREAD
from amends.engine.session import Session, call_of, error_parts, error_text, scrubbed
from amends.errors import (
    INCOMPLETE,
    NOT_FINISHED,
    NotStorable,
    UnknownTool,
    UsageError,
    cut,
    described,
    listed,
    listed_in,
    shown,
    some,
)
from amends.ledger.operations import Tree
from amends.ledger.rows import CallRow, RunRow
from amends.model import Missing, ToolCall
from amends.report import Report
from amends.tools.spec import Declaration, Spec, declaration_of

Check = Callable[[Report], object]
CHOICES: Final = ("rollback", "commit")
REQUIRED_MAX: Final = 100
WHY_CHARS_MAX: Final = 300
_UNDONE: Final = ("compensating", "compensated", "compensation_failed", "compensation_in_doubt", "residue")
"""The states of a call that had succeeded before its run was rolled back."""


@dataclass(frozen=True, slots=True)
class Required:
    """A tool that must have succeeded; ``args``: with at least these arguments, each as its stored text."""

    tool: str
    args: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        said = ", ".join(f"{name}={shown(decode(text))}" for name, text in self.args.items())
        return f"{self.tool}({said})" if said else self.tool


@dataclass(frozen=True, slots=True)
class Completion:
    """When a run is complete. ``checks``: names of functions that only the program has."""

    requires: tuple[Required, ...] = ()
    checks: tuple[str, ...] = ()
    on_open_failure: str = ""
    """What an open failure means at the end: ``rollback``, ``commit``; empty: nobody said, so it means nothing."""

    def __str__(self) -> str:
        """Return the text that is recorded; empty if nothing was said."""
        facts: dict[str, Any] = {
            "requires": [[one.tool, dict(one.args)] for one in self.requires],
            "checks": list(self.checks),
            "on_open_failure": self.on_open_failure,
        }
        said = {name: value for name, value in facts.items() if value}
        return json.dumps(said, ensure_ascii=False) if said else ""


def read_completion(text: str) -> Completion:
    """Return what a run's row says."""
    facts = json.loads(text) if text else {}
    requires = tuple(Required(tool, args) for tool, args in facts.get("requires", ()))
    return Completion(requires, tuple(facts.get("checks", ())), facts.get("on_open_failure", ""))


# ---- What a program says


def completion_of(
    requires: object, on_open_failure: object, *, specs: Mapping[str, Spec], readable: bool = True
) -> tuple[Completion, tuple[Check, ...]]:
    """Return what ``requires=`` and ``on_open_failure=`` say; raise ``UsageError`` before anything runs.

    ``readable``: the ledger may have values of arguments in plain text.
    """
    if on_open_failure is not None and on_open_failure not in CHOICES:
        raise UsageError(f"on_open_failure is {on_open_failure!r}; it is one of {', '.join(CHOICES)}")
    found: list[Required] = []
    checks: list[Check] = []
    for one in _each(requires):
        if _is_check(one):
            checks.append(_checked(one))
        else:
            found.append(_required(one, specs, readable=readable))
    if len(found) + len(checks) > REQUIRED_MAX:
        raise UsageError(f"requires has {len(found) + len(checks)} entries; at most {REQUIRED_MAX} are allowed")
    names = tuple(_name_of(one) for one in checks)
    return Completion(tuple(found), names, str(on_open_failure or "")), tuple(checks)


def _each(requires: object) -> Sequence[object]:
    if requires is None:
        return ()
    if isinstance(requires, str | Mapping | ToolCall | Declaration) or callable(requires):
        return (requires,)
    if isinstance(requires, tuple) and len(requires) == 2 and isinstance(requires[1], Mapping):
        return (requires,)  # one call: a tool and its arguments
    if not isinstance(requires, Iterable):
        raise _bad(requires)
    if isinstance(requires, Iterator):
        # An adapter opens many runs with the same requires=: all but the first would require nothing.
        raise UsageError(
            f"requires is a {type(requires).__name__}, which can be read only once", hint="give a list: requires=[...]"
        )
    return list(requires)


def _is_check(one: object) -> bool:
    return callable(one) and declaration_of(one) is None


def _checked(one: Any) -> Check:
    target = one if inspect.isroutine(one) else getattr(one, "__call__", one)  # noqa: B004 (the method, not the question)
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target) or inspect.isgeneratorfunction(target):
        raise UsageError(
            f"requires has {_name_of(one)}, which is async or a generator: nobody would wait for its answer",
            hint="use a plain function of the report that returns True or False",
        )
    check: Check = one
    return check


def _required(one: object, specs: Mapping[str, Spec], *, readable: bool) -> Required:
    tool, args = _split(one)
    declared = None if isinstance(tool, str) else declaration_of(tool)
    name = tool if isinstance(tool, str) else None if declared is None else declared.name
    if name is None or not isinstance(args, Mapping):
        raise _bad(one)
    spec = specs.get(name)
    if spec is None:
        raise UsageError(
            f"requires has {name!r}: {UnknownTool(name, known=sorted(specs)).for_model()}",
            hint="name a tool of this runtime; nothing was opened",
        )
    known = set(spec.schema().get("properties", {}))
    unknown = [arg for arg in args if arg not in known] if spec.fn is not None and known else []
    if unknown:
        raise UsageError(f"requires has {name}({', '.join(unknown)}=…), and {name} takes {', '.join(sorted(known))}")
    if args and (spec.redact or not readable):
        raise UsageError(
            f"requires has arguments of {name}, which this ledger may not have in plain text",
            hint="require the tool by its name, or give a function of the report",
        )
    try:
        return Required(name, {arg: encode(value, path=f"requires.{name}.{arg}") for arg, value in args.items()})
    except NotStorable as error:
        raise UsageError(str(error)) from error


def _split(one: object) -> tuple[object, object]:
    """Return the tool of an entry and the arguments that it must have been called with."""
    if isinstance(one, ToolCall):
        return one.tool, json.loads(one.args) if isinstance(one.args, str) else one.args
    if isinstance(one, Mapping):
        return (one["tool"], one.get("args", {})) if set(one) <= {"tool", "args"} and "tool" in one else (None, {})
    if isinstance(one, tuple):
        return one if len(one) == 2 else (None, {})
    return one, {}


def _bad(one: object) -> UsageError:
    return UsageError(
        f"requires has {one!r}",
        hint='name tools ("book_hotel"), calls ({"tool": "book_hotel", "args": {"city": "Rome"}}), '
        "or give a function of the report that returns True or False",
    )


def _name_of(check: object) -> str:
    return cut(str(getattr(check, "__qualname__", None) or type(check).__name__), 100)


# ---- What is missing


def missing_in(session: Session, tree: Tree, *, all_failures: bool = False) -> list[Missing]:
    """Return what the tree lacks: open failures, then required tools, by what its root says.

    ``all_failures``: open failures too that do not matter at the end (``on_open_failure="commit"``).
    """
    said = read_completion(session.closing.text or tree.run.completion)
    # In a replay the calls of the record are as they were at its end.
    undone = tree.run.phase in ("rolling_back", "rolled_back", "abandoned") or session.recall.record is not None
    found: list[Missing] = []
    if said.on_open_failure == "rollback" or (all_failures and said.on_open_failure):
        for row in open_failures(session, tree.calls, undone=undone):
            why = cut(f"{row.tool} failed: {_failure(row) or 'no reason kept'}", WHY_CHARS_MAX)
            found.append(Missing(row.tool, scrubbed(session, why), call_of(row, session.spec(row.tool))))
    named = {one.tool for one in found}
    for one in said.requires:
        if one.tool in named and not one.args:
            continue  # its failure says more
        if not any(_is_done(row, undone=undone) and _fits(session, row, one) for row in tree.calls):
            found.append(Missing(one.tool, _has_not(one)))
    return found


def _failure(row: CallRow) -> str:
    """Return why a call failed. The classes of amends itself only carry the words of the tool, and mean nothing to a model."""
    name, message = error_parts(row.error)
    words = message if name.startswith("amends.") and message else error_text(row.error)
    return words or row.why


def _has_not(wanted: Required) -> str:
    return f"{wanted} has not succeeded"


def open_failures(session: Session, calls: Sequence[CallRow], *, undone: bool = False) -> list[CallRow]:
    """Return the calls with an effect that failed and that no later success of the same tool made good.

    A call that was made inside the body of another one is that body's business: if it could not help itself, it failed.
    """
    ids = {row.id for row in calls}
    return [
        row
        for row in calls
        if (row.state == "failed" or (row.state == "dropped" and row.why == UNREAD))
        and row.kind != "read"
        and row.parent not in ids
        and not _may_fail(session, row)
        and not any(_makes_good(other, row, undone=undone) for other in calls)
    ]


def _may_fail(session: Session, row: CallRow) -> bool:
    """Return whether the tool was declared with ``on_failure="continue"``: its failure is nobody's."""
    spec = session.spec(row.tool)
    return spec is not None and spec.on_failure == "continue"


def _makes_good(other: CallRow, failed: CallRow, *, undone: bool) -> bool:
    """Return whether this call succeeded, was asked for after the failure, and is the same work.

    Of parallel calls none makes good another one: they were asked for before anything had failed.
    """
    if other.tool != failed.tool or not _is_done(other, undone=undone):
        return False
    if failed.declared and other.key != failed.key:
        return False
    ended_at = failed.settled_at or failed.started_at or failed.created_at
    is_beside = bool(other.grp) and other.grp == failed.grp
    return other.seq > failed.seq and other.created_at >= ended_at and not is_beside


def _is_done(row: CallRow, *, undone: bool) -> bool:
    """Return whether the call succeeded, or will: a staged call runs when the run commits.

    ``undone``: the run was rolled back since; what matters is that it had succeeded.
    """
    was_staged = row.state == "dropped" and row.reason in ("order", "lock")
    return row.state == "succeeded" or row.is_staged or (undone and (row.state in _UNDONE or was_staged))


def _fits(session: Session, row: CallRow, wanted: Required) -> bool:
    if row.tool != wanted.tool:
        return False
    args = call_of(row, session.spec(row.tool)).args if wanted.args else {}
    return all(name in args and canonical(args[name]) == canonical(decode(text)) for name, text in wanted.args.items())


def failed_checks(session: Session, report: Report) -> list[Missing]:
    """Return the program's own checks that did not say yes; one that raises, or says anything else, has not."""
    found: list[Missing] = []
    for check in session.closing.checks:
        name = _name_of(check)
        try:
            said = check(report)
        except Exception as error:
            found.append(Missing(name, scrubbed(session, cut(f"{name} raised {described(error)}", WHY_CHARS_MAX))))
            continue
        if inspect.iscoroutine(said):
            said.close()
        if said is not True:
            what = "is not met" if said is False else f"returned {type(said).__name__}, not True or False"
            found.append(Missing(name, f"{name} {what}"))
    return found


def recorded_reason(run: RunRow) -> list[Missing]:
    """Return what was missing when the run was left, if only the record knows it now.

    That is what a check of the program had said, and what a child had done and taken back before.
    """
    said = [run.goal_why] if run.goal == "rollback" else json.loads(run.causes)
    why = next((one for one in said if one.startswith(INCOMPLETE)), "").removeprefix(INCOMPLETE)
    wanted = read_completion(run.completion)
    lacked = [Missing(one.tool, text) for one in wanted.requires if (text := _has_not(one)) in why] if why else []
    return lacked or ([Missing(", ".join(wanted.checks), why)] if why and wanted.checks else [])


def unchecked(session: Session, text: str) -> tuple[str, ...]:
    """Return the names of the checks that the run needs and this process does not have."""
    return () if session.closing.checks else read_completion(text).checks


# ---- What is said about it


def why_incomplete(run_id: str, missing: Sequence[Missing]) -> tuple[str, str]:
    """Return why the run is rolled back, and what blocks it after its pivot, with the verbs that help; empty: complete."""
    if not missing:
        return "", ""
    why = INCOMPLETE + "; ".join(_whys(missing, lambda text: text, where=listed_in(run_id)))
    verbs = f"open run {run_id!r} again and finish it, or close it with rt.finish({run_id!r}, by=..., why=...)"
    return why, f"{why}: {verbs}"


def _whys(missing: Sequence[Missing], worded: Callable[[str], str], *, where: str = "") -> list[str]:
    """Return a few of the failures, and all that is required: that has a limit of its own, and the record is read for it."""
    failed = dict.fromkeys(worded(one.why) for one in missing if one.call is not None)
    required = dict.fromkeys(worded(one.why) for one in missing if one.call is None)
    return list(dict.fromkeys([*some(list(failed), where=where), *required]))


def cause_unchecked(run_id: str, names: Sequence[str], *, pivoted: bool) -> str:
    """Return the cause that blocks a run whose own check is in another program; after the pivot there is no way back."""
    verb = "close it with rt.finish" if pivoted else "rt.rollback"
    return (
        f"{INCOMPLETE}only the program that opened it can say whether {listed(list(names))} is met: open run {run_id!r} "
        f"again with the same requires=, or {verb}({run_id!r}, by=..., why=...)"
    )


def told_before_end(missing: Sequence[Missing], *, pivoted: bool) -> str:
    """Return what a model is told that is about to stop; empty if nothing is missing."""
    if not missing:
        return ""
    what = "; ".join(_whys(missing, shown))
    end = (
        "This task has made its irreversible call, so nothing is taken back: if you stop now, a person is asked to finish it."
        if pivoted
        else "If you stop now, everything that was done in this task is taken back."
    )
    return f"{NOT_FINISHED} {what}. {end} Finish it, by another way if need be, or stop and tell the user."
