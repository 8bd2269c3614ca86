"""Verbs that read a ledger: they need its place and no tools, and never make one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Final

from amends import Call, Lock, Report, RunInfo, Runtime
from amends.cli.access import call_named, first, reading, run_named
from amends.cli.show import BOLD, STYLES, Shown, put, put_facts, put_json, put_table, say
from amends.cli.watching import event_facts, event_line
from amends.errors import LedgerSealed
from amends.visible import is_unreadable, visible, visible_args, visible_value

ARGS_CHARS_MAX: Final = 200
SETTING_CHARS_MAX: Final = 60
"""Of a value in a table; --json has all of it."""
EVENTS_MAX: Final = 1_000
"""Of one call; a call that is retried for weeks has more, and the record has them."""


def list_runs(filter: str, *, limit: int, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends runs list``."""
    with reading(url, tenant) as rt:
        found, more = first(rt.runs(filter), limit)
        ledger = rt.settings["url"].value
    if as_json:
        for run in found:
            put_json(_run_facts(run))
    else:
        put_table(("run", "state", "gen", "agent", "age", "took", "tags"), [_run_row(run) for run in found], state=1)
    say_how_many(found, more, "run", ledger, filter=filter)


def show_run(run_id: str, *, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends runs show``."""
    with reading(url, tenant) as rt:
        report = rt.report(run_named(rt, run_id))
    if as_json:
        put_json(report.to_dict())
    else:
        put_report(report)


def put_report(report: Report) -> None:
    """A report as its table; the line with the end in colour."""
    for line in str(report).split("\n"):
        end = line.strip().startswith("= ")
        put(line, style=STYLES.get(report.state, "") if end else "")


def show_call(call_id: str, *, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends call show``."""
    with reading(url, tenant) as rt:
        call = rt.call(call_named(rt, call_id))
        # Of the run's newest generation only: what belongs to an older one is found by the call alone.
        of_call = (event for event in rt.events(call.run_id) if event.call_id == call.id)
        events, more = first(of_call, EVENTS_MAX)
    if as_json:
        put_json(call_facts(call) | {"events": [event_facts(event) for event in events]})
        return
    put(f"{visible(call.tool)}  {visible(call.id)}", style=BOLD)
    put_facts(_call_shown(call))
    put("arguments")
    for line in args_lines(call.args, call.classes):
        put(line)
    put()
    for event in events:
        put(event_line(event, call.tool), style=STYLES.get(event.to, ""))
    if more:
        say(f"the first {EVENTS_MAX} events; --json or rt.events has no more either: ask for the run's")


def list_locks(*, limit: int, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends locks``."""
    with reading(url, tenant) as rt:
        found, more = first(rt.locks(), limit)
        ledger = rt.settings["url"].value
    if as_json:
        for lock in found:
            put_json(asdict(lock))
    else:
        put_table(("lock", "run", "state", "held", "tool", "waiting"), [_lock_row(lock) for lock in found], state=2)
    say_how_many(found, more, "lock", ledger)


def show_config(*, origin: bool, url: str | None, as_json: bool) -> None:
    """See ``amends config show``."""
    settings = Runtime(url).settings  # does no IO
    if as_json:
        for name, setting in settings.items():
            put_json({"name": name, "value": _plain(setting.value)} | ({"origin": setting.origin} if origin else {}))
        return
    rows = [(name, _shown(setting.value), visible(setting.origin, prose=True)) for name, setting in settings.items()]
    if origin:
        put_table(("setting", "value", "origin"), rows)
    else:
        put_table(("setting", "value"), [row[:2] for row in rows])


# ---- rows and facts -----------------------------------------------------------------------


def _run_row(run: RunInfo) -> tuple[str, ...]:
    took = (
        ""
        if run.closed_at is None or run.opened_at is None
        else lasted((run.closed_at - run.opened_at).total_seconds())
    )
    tags = ",".join(visible(tag) for tag in run.tags)
    return (visible(run.id), run.state, str(run.generation), _named(run.agent), age_of(run.opened_at), took, tags)


def _named(text: str | None) -> str:
    return visible(text) if text else ""


def _run_facts(run: RunInfo) -> dict[str, Any]:
    return {
        "id": run.id,
        "state": run.state,
        "generation": run.generation,
        "tenant": run.tenant,
        "agent": run.agent,
        "principal": run.principal,
        "parent": run.parent,
        "goal": run.goal,
        "recover": run.recover,
        "tags": list(run.tags),
        "causes": list(run.causes),
        "owner": run.owner,
        "opened_at": time_of(run.opened_at),
        "closed_at": time_of(run.closed_at),
        "deadline_at": time_of(run.deadline_at),
    }


def call_facts(call: Call) -> dict[str, Any]:
    """A call as JSON has it: every fact of it."""
    from amends.notify import exact  # brings HTTP along, which few verbs need

    facts = {name: value for name, value in asdict(call).items() if name not in ("id", "run_id")}
    return (
        {"call": call.id, "run": call.run_id} | facts | {"args": exact(dict(call.args)), "result": exact(call.result)}
    )


def _call_shown(call: Call) -> dict[str, object]:
    facts: dict[str, object] = {
        "state": call.state,
        "reason": call.reason,
        "run": call.run_id,
        "kind": call.kind,
        "version": call.version,
        "digest": call.digest,
        "key": call.key,
        "generation": call.generation if call.generation > 1 else None,
        "attempts": call.attempt,
        "result": None if call.result is None else Shown(visible_value(call.result)),
        "lost": call.loss,
        "error": call.error,
        "why": call.why,
        "again": call.again,
        "violation": call.violation,
        "asked for": time_of(call.requested_at),
        "started": time_of(call.started_at),
        "settled": time_of(call.settled_at),
        "took": None if call.seconds is None else lasted(call.seconds),
        "answered from the record": f"{call.replays} times" if call.replays else None,
        "agent": call.agent,
        "principal": call.principal,
        "tool call id": call.tool_call_id,
    }
    if call.compensation is not None:
        error = call.compensation.error
        words = f", {visible(error, prose=True)}" if error else ""
        facts["compensation"] = Shown(f"{call.compensation.attempts} attempts{words}")
    return facts


def _lock_row(lock: Lock) -> tuple[str, ...]:
    waiting = ", ".join(map(visible, lock.waiting))
    return (visible(lock.name), visible(lock.run_id), lock.run_state, lasted(lock.held_s), visible(lock.tool), waiting)


# ---- words --------------------------------------------------------------------------------


def time_of(at: datetime | None) -> str | None:
    """A time as JSON has it."""
    return None if at is None else at.isoformat(timespec="seconds")


def lasted(seconds: float) -> str:
    """How long something took, short: 12 ms, 4.0 s, 3 m, 2 h, 5 d."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    for size, unit in ((60, "m"), (3_600, "h"), (86_400, "d")):
        if seconds < size * 100 or unit == "d":
            return f"{seconds / size:.0f} {unit}"
    raise AssertionError("a day is the largest unit")


def age_of(at: datetime | None) -> str:
    return "" if at is None else lasted((datetime.now(UTC) - at).total_seconds())


def shown_args(args: Mapping[str, Any]) -> str:
    """Arguments in one line of a listing, cut at a limit; whoever decides is shown ``args_lines``."""
    text = visible_value(dict(args))
    # No text of the ledger shows as "…": it always says that something is left out.
    return text if len(text) <= ARGS_CHARS_MAX else text[: ARGS_CHARS_MAX - 1] + "…"


def args_lines(args: Mapping[str, Any], classes: Mapping[str, str] | None = None) -> list[str]:
    """Return arguments whole, one line for each, and one for each class that an annotation leaves open."""
    return [f"   {line}" for line in visible_args(args, classes)]


def must_be_shown(call: Call) -> None:
    """Raise ``LedgerSealed`` where the arguments cannot be read here: nobody is asked about what they cannot see."""
    if is_unreadable(call.args):
        raise LedgerSealed(
            f"the arguments of call {visible(call.id)} ({visible(call.tool)}) are encrypted, and there is no key here "
            "to show them: nobody is asked about what they cannot read",
            run_id=call.run_id,
        )


def _shown(value: Any) -> str:
    """A setting in one line; a table of a file as what it says besides the defaults."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == () or value == {}:
        return ""
    if isinstance(value, tuple | list):
        return _cut("; ".join(_shown(one) for one in value))
    if isinstance(value, Mapping):
        return _cut("; ".join(f"{visible(str(name))}: {_shown(one)}" for name, one in value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        said = {one.name: getattr(value, one.name) for one in fields(value)}
        mine = {one.name: said[one.name] for one in fields(value) if said[one.name] not in (one.default, (), {})}
        return ", ".join(f"{name} {visible(str(one), prose=True)}" for name, one in mine.items())
    return visible(str(value), prose=True)


def _cut(text: str) -> str:
    return text if len(text) <= SETTING_CHARS_MAX else text[: SETTING_CHARS_MAX - 1] + "…"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def say_how_many(found: list[Any], more: bool, what: str, ledger: Any, *, filter: str = "") -> None:
    """Whether there is more, or nothing: in words, beside the data."""
    if more:
        say(f"the first {len(found)} {what}s of {visible(str(ledger), prose=True)}; --limit shows more")
    elif not found:
        say(nothing(what, filter, ledger))


def nothing(what: str, filter: str, ledger: Any) -> str:
    """That there is none; where a filter was said, none of that kind: there may be others."""
    wanted = f"with {visible(filter.strip(), prose=True)} " if filter.strip() else ""
    return f"no {what} {wanted}in {visible(str(ledger), prose=True)}"
