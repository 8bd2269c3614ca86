"""Check a model's plan as a whole before anything runs, and run it group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from amends.encoding.canonical import canonical
from amends.encoding.dataclass import dataclass
from amends.engine.model_answers import answer_done, answer_error
from amends.engine.session import Ask, Session, ask_for
from amends.engine.turns import run_side_by_side
from amends.errors import (
    BadArguments,
    LedgerError,
    OutOfOrder,
    Refused,
    UnknownTool,
    UsageError,
    is_a,
    only_waits,
)
from amends.ledger.world import Flight
from amends.model import Answer, plain
from amends.tools.signature import correctable
from amends.tools.spec import Spec

REF: Final = "$result"
CALLS_MAX: Final = 1_000


def read_plan(plan: Sequence[object], specs: Mapping[str, Spec]) -> tuple[list[Group], list[Refused]]:
    """Return the plan's groups, and everything that is wrong with its names and arguments."""
    problems: list[Refused] = []
    groups: list[Group] = []
    place = 0
    if isinstance(plan, str | bytes) or not isinstance(plan, Sequence):
        return [], [BadArguments("plan", problems=["a plan is a list of {'tool': ..., 'args': {...}}"])]
    for item in plan:
        members = item if isinstance(item, list | tuple) else [item]
        group: list[Planned] = []
        for member in members:
            planned = _read_call(member, place, specs, problems)
            place += 1
            if planned is not None:
                group.append(planned)
        if group:
            groups.append(tuple(group))
    if place > CALLS_MAX:
        problems.append(BadArguments("plan", problems=[f"a plan has at most {CALLS_MAX} calls, this one {place}"]))
    problems += _bad_references(groups)
    return groups, problems


def _read_call(member: object, place: int, specs: Mapping[str, Spec], problems: list[Refused]) -> Planned | None:
    if not isinstance(member, Mapping) or not isinstance(member.get("tool"), str):
        problems.append(
            BadArguments("plan", problems=[f"call {place} of the plan is no {{'tool': ..., 'args': {{...}}}}"])
        )
        return None
    strange = sorted(set(map(str, member)) - {"tool", "args", "id"})
    if strange:
        problems.append(
            BadArguments(
                "plan", problems=[f"call {place} of the plan has {', '.join(strange)}, which is no part of a call"]
            )
        )
        return None
    name = str(member["tool"])
    spec = specs.get(name)
    if spec is None:
        problems.append(UnknownTool(name, known=sorted(specs)))
        return None
    if spec.kind == "agent":
        problems.append(BadArguments(name, problems=[f"{name} is an agent: call it by itself, not in a plan"]))
        return None
    args = member.get("args", {})
    if not isinstance(args, Mapping):
        problems.append(BadArguments(name, problems=[f"{name}: args must be an object"]))
        return None
    try:
        refs = tuple(key for key, value in args.items() if _refers(value))
    except RecursionError:
        problems.append(BadArguments(name, problems=[f"{name}: its arguments are nested too deeply"]))
        return None
    try:
        with correctable(name, dict(args)):
            bound = spec.bind_json(dict(args)) if not refs else dict(args)
            if not refs:
                canonical(dict(bound), path="args", shape=None if spec.signature is None else spec.signature.shape)
    except BadArguments as bad:
        problems.append(bad)
        return None
    return Planned(place, str(member.get("id", place)), spec, bound, refs, args)


def _refers(value: object) -> bool:
    if isinstance(value, Mapping):
        return REF in value or any(_refers(one) for one in value.values())
    return isinstance(value, list) and any(_refers(one) for one in value)


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if REF in value:
            yield str(value[REF])
        else:
            for one in value.values():
                yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


def _bad_references(groups: Iterable[Group]) -> list[Refused]:
    problems: list[Refused] = []
    known: dict[str, Planned] = {}
    for group in groups:
        for call in group:
            for name in call.refs:
                for target in _references(call.args[name]):
                    source = known.get(target)
                    if source is None:
                        why = f"{call.spec.name}.{name} refers to call {target!r}, which does not come before it"
                        problems.append(BadArguments(call.spec.name, problems=[why]))
                    elif source.spec.is_staging:
                        why = f"{call.spec.name}.{name} refers to {source.spec.name}, which has no result before the commit"
                        problems.append(BadArguments(call.spec.name, problems=[why]))
        for call in group:
            known[call.id] = call
            known[str(call.place)] = call
    return problems


def check_plan(plan: Sequence[object], specs: Mapping[str, Spec]) -> Check:
    """Find every violation without running anything, and propose an order that has none."""
    groups, problems = read_plan(plan, specs)
    unlawful = _violations(groups, specs)
    if not problems and not unlawful:
        return Check((), list(plan))
    order = None if problems else _lawful(groups, specs)
    return Check([*problems, *unlawful], order)


def _violations(groups: Sequence[Group], specs: Mapping[str, Spec]) -> list[Refused]:
    found: list[Refused] = []
    done: set[str] = set()
    pivot = staged = ""
    allowed = [spec.name for spec in specs.values() if spec.kind in ("retriable", "read")]
    for group in groups:
        others = [one.spec.name for one in group]
        for call in group:
            spec = call.spec
            if spec.kind == "pivot" and (pivot or staged):
                found.append(OutOfOrder(spec.name, law="pivot_twice", pivot=pivot or staged))
            elif spec.kind == "pivot":
                missing = [tool for tool in spec.after if tool not in done]
                beside = [name for name in others if name != spec.name and specs[name].kind == "compensatable"]
                if missing:
                    found.append(OutOfOrder(spec.name, law="pivot_early", missing=missing))
                elif beside and spec.at == "call":
                    found.append(OutOfOrder(spec.name, law="pivot_early", unsettled=beside))
                pivot, staged = (pivot, spec.name) if spec.at == "commit" else (spec.name, staged)
            elif spec.kind == "compensatable" and pivot and pivot not in others:
                found.append(OutOfOrder(spec.name, law="after_pivot", pivot=pivot, allowed=allowed))
        done |= set(others)
    return found


def _lawful(groups: Sequence[Group], specs: Mapping[str, Spec]) -> list[object] | None:
    """Return reads and compensatables in their order, then the pivot, then the retriables.

    None: that is not lawful either.
    """
    first: list[Group] = []
    pivots: list[Group] = []
    last: list[Group] = []
    for group in groups:
        early = tuple(call for call in group if call.spec.kind in ("read", "compensatable"))
        first += [early] if early else []
        pivots += [(call,) for call in group if call.spec.kind == "pivot"]
        late = tuple(call for call in group if call.spec.kind == "retriable")
        last += [late] if late else []
    ordered = [*first, *pivots, *last]
    if _violations(ordered, specs) or _bad_references(ordered):
        return None
    return _written(ordered)


def _written(groups: Sequence[Group]) -> list[object]:
    """Return the plan in this order. A call that is referred to gets an id, since its number has changed."""
    calls = [call for group in groups for call in group]
    names = {id: call.id if call.id != str(call.place) else f"call-{call.place}" for call in calls for id in _ids(call)}
    wanted = {names[target] for call in calls for name in call.refs for target in _references(call.args[name])}
    written: list[object] = []
    for group in groups:
        members = [
            ({"id": names[call.id]} if names[call.id] in wanted else {})
            | {"tool": call.spec.name, "args": _renamed(call.given, names)}
            for call in group
        ]
        written.append(members[0] if len(members) == 1 else members)
    return written


def _ids(call: Planned) -> tuple[str, str]:
    return call.id, str(call.place)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        renamed = {key: _renamed(one, names) for key, one in value.items()}
        return renamed | {REF: names[str(value[REF])]} if REF in value else renamed
    return [_renamed(one, names) for one in value] if isinstance(value, list) else value


async def run_plan(
    session: Session, plan: Sequence[object], *, parent: str = "", flights: list[Flight] | None = None
) -> list[Answer]:
    """Run a plan; if a call fails, finish its group, raise its error and start nothing more.

    ``parent``: the call in whose body the plan is run. ``flights``: filled with what is in flight, for a caller that must
    settle it when this flow is stopped.
    """
    groups, problems = read_plan(plan, session.specs)
    if problems:
        raise problems[0] if len(problems) == 1 else _combined(problems)
    results: dict[str, Any] = {}
    answers: list[Answer] = []
    for group in groups:
        # An id of its own: calls of two plans in one run are not parallel to each other.
        grp = session.new_id("grp") if len(group) > 1 else ""
        asks = [_ask(session, call, results, parent, grp) for call in group]
        if flights is not None:
            flights[:] = [ask.flight for ask in asks]
        ends = await run_side_by_side(session, asks)
        failed: Exception | None = None
        for call, ask, end in zip(group, asks, ends, strict=True):
            if isinstance(end, Exception):
                answers.append(answer_error(session, call.spec.name, end))
                if not _continues_after(call.spec, end):
                    failed = failed or end
                continue
            answers.append(answer_done(session, ask, end))
            results[call.id] = results[str(call.place)] = end.value
        if failed is not None:
            raise failed
    return answers


def _continues_after(spec: Spec, error: Exception) -> bool:
    return spec.on_failure == "continue" and not (only_waits(error) or is_a(error, LedgerError, UsageError))


def _combined(problems: Sequence[Refused]) -> Refused:
    names = [problem.tool for problem in problems if isinstance(problem, BadArguments)]
    said = [text for problem in problems for text in getattr(problem, "problems", [str(problem)])]
    return BadArguments(names[0] if names else "plan", problems=said)


def _ask(session: Session, call: Planned, results: Mapping[str, Any], parent: str, grp: str) -> Ask:
    args = call.args
    if call.refs:
        args = call.spec.bind_json({name: _filled(call, name, results) for name in call.args})
    with correctable(call.spec.name, session if call.refs else dict(call.given)):  # a result is no model's argument
        return ask_for(session, call.spec, args, parent=parent, grp=grp)


def _filled(call: Planned, name: str, results: Mapping[str, Any]) -> Any:
    try:
        return _resolved(call.args[name], results)
    except (LookupError, ValueError, AttributeError) as error:
        why = f"{call.spec.name}.{name} refers to a result, or a part of one, that is not there ({error})"
        raise BadArguments(call.spec.name, problems=[why]) from error


def _resolved(value: Any, results: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        if REF not in value:
            return {name: _resolved(one, results) for name, one in value.items()}
        found = results[str(value[REF])]
        for part in str(value.get("path", "")).split(".") if value.get("path") else ():
            found = _part(found, part)
        return found
    return [_resolved(one, results) for one in value] if isinstance(value, list) else value


def _part(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value[name]
    return value[int(name)] if isinstance(value, list | tuple) else getattr(value, name)


@dataclass(frozen=True, slots=True)
class Planned:
    """One call of a plan. ``place`` is its number in the whole plan, from 0."""

    place: int
    id: str
    spec: Spec
    args: Mapping[str, Any]
    refs: tuple[str, ...]
    """Arguments that contain results of earlier calls."""
    given: Mapping[str, Any]
    """The arguments as they were written."""


Group = tuple[Planned, ...]


class Check:
    """Every violation in a plan, and a lawful order if there is one. Iterates over the violations; empty is falsy."""

    def __init__(self, problems: Sequence[Refused], lawful_order: Sequence[object] | None) -> None:
        self.problems = tuple(problems)
        self.lawful_order = lawful_order

    def __iter__(self) -> Iterator[Refused]:
        return iter(self.problems)

    def __len__(self) -> int:
        return len(self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        order = None if self.lawful_order is None else plain(list(self.lawful_order))
        return {"problems": [one.to_dict() for one in self.problems], "lawful_order": order}

    def __repr__(self) -> str:
        return f"<Check: {len(self.problems)} violations>"
