"""Records as the service sends them, read into the runtime's own types."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from amends import (
    Absent,
    Approval,
    BudgetState,
    Call,
    Charged,
    Checkpoint,
    CostLine,
    Doubt,
    Event,
    Halt,
    Happened,
    InboxItem,
    Lock,
    Missing,
    Next,
    Overview,
    Permit,
    Planned,
    Preview,
    Probed,
    Replayed,
    Report,
    Residue,
    RollbackPlan,
    RunInfo,
    Spending,
    Token,
    ToolInfo,
    ToolUse,
    Unknown,
    Verified,
)

T = TypeVar("T")
Calls = Mapping[str, Call]

# ---- Any dataclass


def record(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return the record that this JSON data was made from; a field that the service does not tell has its default."""
    readers = _readers(kind)  # type: ignore[arg-type]  # a class has a hash
    return kind(**{name: reader(data[name]) for name, reader in readers.items() if name in data})


@functools.cache
def _readers(kind: type[Any]) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {one.name: _reader(hints[one.name]) for one in dataclasses.fields(kind) if one.init}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads JSON data of this type."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [_reader(one) for one in get_args(hint) if one is not type(None)]
        return functools.partial(_optional, inner[0] if len(inner) == 1 else _same)
    if get_origin(hint) is tuple:
        return functools.partial(_tuple, _reader(get_args(hint)[0]))
    if get_origin(hint) is not None and get_args(hint)[1:] == (Decimal,):
        return lambda value: {name: Decimal(one) for name, one in value.items()}
    if hint is datetime:
        return datetime.fromisoformat
    if hint is Decimal:
        return Decimal
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return functools.partial(record, hint)
    return _same


def _optional(reader: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else reader(value)


def _tuple(reader: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    return tuple(reader(one) for one in value)


def _same(value: Any) -> Any:
    return value


class Facts(dict[str, Any]):
    """A record that the runtime makes of its own objects: what the service tells of it, also as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the service tells no {name!r}; it tells {', '.join(self)}") from None


def facts_of(data: Any) -> Any:
    """Return JSON data with its objects as ``Facts``."""
    if isinstance(data, Mapping):
        return Facts({name: facts_of(value) for name, value in data.items()})
    return tuple(facts_of(one) for one in data) if isinstance(data, list) else data


# ---- Records that are more than their fields


def call_of(data: Mapping[str, Any]) -> Call:
    """Return a call."""
    return record(Call, data)


def approval_of(data: Mapping[str, Any]) -> Approval:
    """Return a request for approval."""
    return record(Approval, data)


def run_of(data: Mapping[str, Any]) -> RunInfo:
    """Return a run."""
    return record(RunInfo, data)


def event_of(data: Mapping[str, Any]) -> Event:
    """Return an event."""
    return record(Event, data)


def lock_of(data: Mapping[str, Any]) -> Lock:
    """Return a lock."""
    return record(Lock, data)


def halt_of(data: Mapping[str, Any]) -> Halt:
    """Return a halt."""
    return record(Halt, data)


def permit_of(data: Mapping[str, Any]) -> Permit:
    """Return a permit."""
    return record(Permit, data)


def token_of(data: Mapping[str, Any]) -> Token:
    """Return a token; only the answer that created it has its ``text``."""
    return record(Token, data)


def checkpoint_of(data: Mapping[str, Any]) -> Checkpoint:
    """Return a checkpoint."""
    return record(Checkpoint, data)


def budget_of(data: Mapping[str, Any]) -> BudgetState:
    """Return the state of a budget."""
    return record(BudgetState, data)


def overview_of(data: Mapping[str, Any]) -> Overview:
    """Return an overview of runs."""
    return record(Overview, data)


def spending_of(data: Mapping[str, Any]) -> Spending:
    """Return a budget with the calls that were charged to it."""
    return Spending(budget_of(data), tuple(record(Charged, one) for one in data["charged"]))


def tool_use_of(data: Mapping[str, Any]) -> ToolUse:
    """Return how a tool did."""
    return record(ToolUse, data)


def tool_info_of(data: Mapping[str, Any]) -> ToolInfo:
    """Return what is known of a tool."""
    return record(ToolInfo, data)


def cost_of(data: Mapping[str, Any]) -> CostLine:
    """Return what calls have cost."""
    return record(CostLine, data)


def verified_of(data: Mapping[str, Any]) -> Verified:
    """Return what an audit found."""
    problems = [{**one, "run_id": one["run"], "root": "", "n": one["event"]} for one in data["problems"]]
    return record(Verified, {**data, "problems": problems})


def replayed_of(data: Mapping[str, Any]) -> Replayed:
    """Return what a replay came to; the two sides of a difference are texts."""
    words = {name: data[name] or "" for name in ("why", "hint")}
    diff = {name: (was, now) for name, (was, now) in data["diff"].items()}
    return record(Replayed, {**data, **words, "diff": diff})


def doubt_of(data: Mapping[str, Any]) -> Doubt:
    """Return a call that is in doubt; its arguments are ``sent``."""
    named = {"id": data["call"], "run_id": data["run"], "version": "", "args": data["sent"]}
    return record(Doubt, {**data, **named})


def inbox_of(data: Mapping[str, Any]) -> InboxItem:
    """Return one thing that waits for a person; its call has what the inbox shows of it."""
    call = None
    if data["call"] is not None:
        call = Call(data["run"], data["tool"], "", data["args"] or {}, id=data["call"], state=data["state"])
    made: InboxItem = record(InboxItem, {**data, "run_id": data["run"], "call": None})
    return dataclasses.replace(made, call=call)


def probed_of(data: Mapping[str, Any]) -> Probed[Any]:
    """Return what the outside world says about a call."""
    if data["answer"] == "happened":
        return Happened(data["result"]) if "result" in data else Happened()
    return Absent() if data["answer"] == "absent" else Unknown(data.get("why") or "")


def report_of(data: Mapping[str, Any]) -> Report:
    """Return what a run did."""
    calls = tuple(call_of(one) for one in data["calls"])
    children = tuple(report_of(one) for one in data["children"])
    known = calls_of_report(calls, children)
    return Report(
        run=run_of(data["run"]),
        calls=calls,
        residue=tuple(_residue(one, known) for one in data["residue"]),
        doubts=tuple(known[id] for id in data["doubts"] if id in known),
        children=children,
        ledger=data["ledger"],
        skipped=tuple(data["skipped"]),
        locks=tuple(lock_of(one) for one in data["locks"]),
        forks=tuple(data["forks"]),
        missing=tuple(Missing(one["tool"], one["why"], known.get(one["call"] or "")) for one in data["missing"]),
        unreached=tuple(data["unreached"]),
    )


def calls_of_report(calls: tuple[Call, ...], children: tuple[Report, ...]) -> dict[str, Call]:
    """Return the calls of a run and of its children, by id."""
    known = {call.id: call for call in calls}
    for child in children:
        known |= calls_of_report(child.calls, child.children)
    return known


def _residue(data: Mapping[str, Any], known: Calls) -> Residue:
    return Residue(_named(data, known), data["why"])


def _named(data: Mapping[str, Any], known: Calls) -> Call:
    """Return the call that JSON data names; one that the service did not show has its id and its tool only."""
    return known.get(data["call"]) or Call("", data["tool"], "", {}, id=data["call"])


def _planned(data: Mapping[str, Any], known: Calls) -> Planned:
    return Planned(data["what"], _named(data, known), data["by"], data["args"], data["note"])


def ids_in(plan: Any) -> set[str]:
    """Return the ids of all calls that a plan or a preview names."""
    if isinstance(plan, list):
        return set().union(*(ids_in(one) for one in plan))
    if not isinstance(plan, Mapping):
        return set()
    own = {plan["call"]} if isinstance(plan.get("call"), str) and "tool" in plan else set()
    return own.union(*(ids_in(one) for name, one in plan.items() if name != "args"))


def plan_of(data: Mapping[str, Any], known: Calls) -> RollbackPlan:
    """Return what a rollback would do."""
    return RollbackPlan(
        run_id=data["run"],
        hash=data["hash"],
        compensations=tuple(_planned(one, known) for one in data["compensations"]),
        cannot=tuple(_residue(one, known) for one in data["cannot"]),
        doubts=tuple(_planned(one, known) for one in data["doubts"]),
        dropped=tuple(_named(one, known) for one in data["dropped"]),
        running=tuple(_named(one, known) for one in data["running"]),
        refused=data["refused"],
        state=data["state"],
        forks=tuple(data["forks"]),
        must_accept=tuple(_named(one, known) for one in data["must_accept"]),
        answered=tuple(data["answered"]),
    )


def preview_of(data: Mapping[str, Any], known: Calls) -> Preview:
    """Return what each answer to a doubt would lead to."""

    def next_of(said: Mapping[str, Any]) -> Next:
        does = tuple(_planned(one, known) for one in said["does"])
        causes, refused = tuple(said["causes"]), said["refused"]
        return Next(said["call_state"], said["run_state"], does, said["who"], causes, refused)

    answers = [next_of(data[name]) for name in ("happened", "absent", "unknown")]
    return Preview(_named(data, known), *answers)
