"""Verbs about runs and their calls. Each is thin: it asks the runtime and shows the answer."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from amends import Call, Event, Lock, Report, RollbackPlan, RunInfo, Runtime
from amends.cli.access import app_named, call_named, first, load_runtime, reading, run_named, who, working
from amends.cli.options import (
    AWAITING_APPROVAL,
    DONE,
    FAILED,
    IN_DOUBT,
    LIMIT,
    NEEDS_A_PERSON,
    NOT_ALL_TAKEN_BACK,
    App,
    By,
    CallId,
    Filter,
    Json,
    Limit,
    Place,
    RunId,
    Tenant,
    Url,
    Why,
    YesOption,
    code_of_run,
    group,
    said,
)
from amends.cli.show import (
    BOLD,
    STYLES,
    Shown,
    agrees,
    has_person,
    must_ask,
    progress,
    put,
    put_facts,
    put_json,
    put_plain,
    put_table,
    say,
)
from amends.errors import LedgerSealed, StalePlan, UsageError
from amends.visible import is_unreadable, visible, visible_args, visible_log, visible_value
from amends.worker import work

runs = group("Look at runs, follow them, and close what cannot go on.")
call = group("Look at one call, and say what becomes of it.")


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    for verb in (demo, init, worker, recover, rollback, replay):
        app.command()(verb)
    app.add_typer(runs, name="runs")
    app.add_typer(call, name="call")


def demo(
    dir: Annotated[Path, typer.Option("--dir", help="Where the shop and its ledger are made.")] = Path("amends-demo"),
    fresh: Annotated[
        bool, typer.Option("--fresh/--keep", help="Begin anew, or keep the shop of the last time and add five orders.")
    ] = True,
    as_json: Json = False,
) -> int:
    """Play five orders: one commits, one is taken back, one is killed, one refused, one asks a person."""
    from amends.cli.demo import play, play_json

    return play_json(dir, fresh=fresh) if as_json else play(dir, fresh=fresh)


def init(
    dir: Annotated[Path, typer.Option("--dir", help="Where; made if it is not there.")] = Path(),
    as_json: Json = False,
) -> int:
    """Write amends.toml and app.py, a small program with three tools to begin with."""
    return begin(dir, as_json=as_json)


def worker(
    place: Place = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks; up to 5 when idle.")] = 1.0,
    as_json: Json = False,
) -> int:
    """Finish or take back what other processes left, until SIGTERM or Ctrl-C."""
    return run_worker(place, once=once, every=every, as_json=as_json)


def recover(
    place: Place = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many runs.")] = LIMIT,
    as_json: Json = False,
) -> int:
    """Finish or take back once what other processes left, and show each run. For cron."""
    return run_recover(place, limit=limit, as_json=as_json)


def rollback(
    run_id: RunId,
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would be done, in which order.")] = False,
    apply: Annotated[
        str | None, typer.Option("--apply", metavar="HASH", help="Do exactly this plan; refused if the run has moved.")
    ] = None,
    why: Annotated[str | None, typer.Option("--why", help="Why: it is kept with the run; not for --plan.")] = None,
    by: By = None,
    yes: YesOption = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Take a run back: shown first, then done exactly so."""
    return roll_back(
        run_id, plan=plan, apply=apply, by=by, why=why, yes=yes, app=app, url=url, tenant=tenant, as_json=as_json
    )


def replay(
    records: Annotated[
        list[str], typer.Argument(metavar="RUN|FILE|FOLDER...", help="Runs of the ledger, bundles, or folders of them.")
    ],
    against: Annotated[
        str,
        typer.Option("--against", metavar="APP:FN", help="The function that ran then: MODULE:NAME or FILE.py:NAME."),
    ],
    until: Annotated[str | None, typer.Option("--until", metavar="CALL", help="End with this call of the run.")] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--lenient", help="Whether other versions, and other words for what means nothing, count."
        ),
    ] = True,
    app: App = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Run a function with every call answered from the record; nothing is done. Exit code 18: it does something else."""
    from amends.cli.replay import replay

    return replay(records, against=against, until=until, strict=strict, app=app, tenant=tenant, as_json=as_json)


@runs.command("list")
def runs_list(
    filter: Filter = None, limit: Limit = LIMIT, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """List runs, newest first."""
    list_runs(said(filter), limit=limit, url=url, tenant=tenant, as_json=as_json)


@runs.command("show")
def runs_show(run_id: RunId, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """Show one run: its calls, errors, compensations, and what is left standing."""
    show_run(run_id, url=url, tenant=tenant, as_json=as_json)


@runs.command("watch")
def runs_watch(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The run's id, or the beginning of it; else the whole ledger.")
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.05, help="Seconds between two looks.")] = 0.5,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Follow a run until it can go no further without a person; its exit code says how it stands."""
    return watch(run_id, every=every, url=url, tenant=tenant, as_json=as_json)


@runs.command("abandon")
def runs_abandon(
    run_id: RunId,
    why: Why,
    by: By = None,
    yes: YesOption = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Close a run over what stands; each effect that is left is named."""
    from amends.cli.people import abandon

    return abandon(run_id, by=by, why=why, yes=yes, url=url, tenant=tenant, as_json=as_json)


@runs.command("finish")
def runs_finish(
    run_id: RunId,
    why: Why,
    by: By = None,
    yes: YesOption = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Close a run that was interrupted after its pivot as committed."""
    from amends.cli.people import finish

    return finish(run_id, by=by, why=why, yes=yes, url=url, tenant=tenant, as_json=as_json)


@call.command("show")
def call_show(call_id: CallId, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """Show one call: what was asked for, what became of it, and every event of it."""
    show_call(call_id, url=url, tenant=tenant, as_json=as_json)


@call.command("decide")
def call_decide(
    call_id: CallId,
    decision: Annotated[
        str, typer.Argument(metavar="run|replay|refuse", help="Do it, answer it from its twin, or no.")
    ],
    why: Why,
    by: By = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at a terminal.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say what becomes of a call that is held as a suspected duplicate or for a conflict."""
    from amends.cli.people import decide

    return decide(call_id, decision, by=by, why=why, yes=yes, url=url, tenant=tenant, as_json=as_json)


@call.command("retry")
def call_retry(
    call_id: CallId,
    why: Why,
    result: Annotated[
        str | None,
        typer.Option(
            "--result", help="What the call gave back, as JSON or plain text; for a compensation that lacks it."
        ),
    ] = None,
    by: By = None,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Try a compensation, or a retriable, that gave up once more."""
    from amends.cli.people import retry

    return retry(call_id, result=result, by=by, why=why, app=app, url=url, tenant=tenant, as_json=as_json)


@call.command("accept")
def call_accept(
    call_id: CallId,
    why: Why,
    by: By = None,
    yes: YesOption = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say that an effect stays, or that nobody will ever know: it is residue, and named for good."""
    from amends.cli.people import accept

    return accept(call_id, by=by, why=why, yes=yes, app=app, url=url, tenant=tenant, as_json=as_json)


# ---- ``amends runs watch``: what happens, as it happens


ENDED: Final = ("committed", "rolled_back", "abandoned", "blocked")
SEQ_MAX: Final = 1 << 62
KNOWN_TOOLS_MAX: Final = 10_000
OWNER_PARTS: Final = 5


def watch(run_id: str | None, *, every: float, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends runs watch``."""
    with reading(url, tenant) as rt:
        if run_id is not None:
            return _watch_run(rt, run_named(rt, run_id), every, as_json)
        say(f"watching {visible(str(rt.settings['url'].value), prose=True)}; Ctrl-C ends it")
        shown = _Shown(rt, as_json, with_run=True)
        try:
            after = newest(rt)
            while True:
                after = shown.all(rt.events(after=after), after)
                time.sleep(every)
        except KeyboardInterrupt:
            return DONE


def newest(rt: Runtime) -> int:
    """The place of the newest event; 0 in an empty ledger. Asks a few dozen times, however large the ledger is."""
    low, high = 0, 1
    while next(iter(rt.events(after=high)), None) is not None:
        low, high = high, high * 2
        assert high < SEQ_MAX, "no ledger is that long"
    while low < high:
        middle = (low + high) // 2
        if next(iter(rt.events(after=middle)), None) is None:
            high = middle
        else:
            low = middle + 1
    return low


def _watch_run(rt: Runtime, run: str, every: float, as_json: bool) -> int:
    shown, after = _Shown(rt, as_json, with_run=False), 0
    if not as_json:
        put(f"run {visible(run)}", style=BOLD)
    while True:
        report = rt.report(run)  # before its events: what ended it is then among them
        after = shown.all(rt.events(run, after=after), after)
        code = code_of_run(report)
        if report.state in ENDED or (code == AWAITING_APPROVAL and report.run.owner is None):
            return _told(report, code, as_json)
        time.sleep(every)


def _told(report: Report, code: int, as_json: bool) -> int:
    if not as_json:
        waits = ", waits for a person" if code == AWAITING_APPROVAL else ""
        put(f"= {report.state.replace('_', ' ')}{waits}", style=STYLES.get(report.state, ""))
    for cause in report.run.causes:
        say(f"→ {visible(cause, prose=True)}")
    return code


class _Shown:
    """Events as lines; a call's event is told with the name of its tool."""

    def __init__(self, rt: Runtime, as_json: bool, *, with_run: bool) -> None:
        self._rt, self._as_json, self._with_run = rt, as_json, with_run
        self._tools: dict[str, str] = {}

    def all(self, events: Iterator[Event], after: int) -> int:
        """Show these; returns the place of the last one."""
        for event in events:
            after = event.seq
            tool = self._tool(event.call_id) if event.call_id else None
            if self._as_json:
                put_json(event_facts(event) | {"tool": tool})
            else:
                put(event_line(event, tool, with_run=self._with_run), style=STYLES.get(event.to, ""))
        return after

    def _tool(self, call_id: str) -> str:
        if call_id not in self._tools:
            if len(self._tools) >= KNOWN_TOOLS_MAX:
                self._tools.clear()
            try:
                self._tools[call_id] = self._rt.call(call_id).tool
            except UsageError:
                self._tools[call_id] = call_id
        return self._tools[call_id]


def event_facts(event: Event) -> dict[str, Any]:
    """An event as JSON has it."""
    return {
        "seq": event.seq,
        "at": event.at.isoformat(),
        "run": event.run_id,
        "call": event.call_id,
        "what": event.what,
        "from": event.frm,
        "to": event.to,
        "by": event.by,
        "facts": dict(event.facts),
    }


def event_line(event: Event, tool: str | None, *, with_run: bool = False) -> str:
    """An event as a person reads it, in the time of this place."""
    moved = f"{event.frm} → {event.to}" if event.frm and event.frm != "(new)" else event.to
    about = visible(tool) if tool else "run"
    what = about if event.what in ("call", "run") else f"{about}: {visible(event.what)}"
    by = f"   by {_spoken(event.by)}" if event.by else ""
    why = event.facts.get("why") or event.facts.get("error") or ""
    run = f"{visible(event.run_id)}  " if with_run else ""
    line = f"{event.at.astimezone():%H:%M:%S}  {run}{what}  {moved.replace('_', ' ')}"
    return f"{line}{by}{f'   {visible(str(why), prose=True)}' if why else ''}".rstrip()


def _spoken(by: str) -> str:
    """Who did it: a person as they said, a process by its number and host instead of all that tells it from others."""
    parts = by.split("|")
    return visible(by) if len(parts) < OWNER_PARTS else f"process {visible(parts[3])} on {visible(parts[0])}"


# ---- Verbs that read a ledger: they need its place and no tools, and never make one


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


# ---- Verbs that go on with what others left: they need the program's tools


class _Lines(logging.Handler):
    """What the worker says, as lines of JSON on stdout."""

    def emit(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        put_json({"at": at, "level": record.levelname.lower(), "message": record.getMessage()})


def run_worker(place: str | None, *, once: bool, every: float, as_json: bool) -> int:
    """See ``amends worker``."""
    named, folder = app_named(place)
    rt = load_runtime(named, folder=folder)
    if as_json:
        logging.basicConfig(level=logging.INFO, handlers=[_Lines()])
    else:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    reports = work(rt, once=once, every=every)
    if once:
        return _code(reports)
    say("worker stopped")
    return DONE


def run_recover(place: str | None, *, limit: int, as_json: bool) -> int:
    """See ``amends recover``."""
    named, folder = app_named(place)
    rt = load_runtime(named, folder=folder)
    log = visible_log("amends.worker")
    level = log.level
    log.setLevel(logging.ERROR)  # the reports tell it
    try:
        with progress("looking for what others left"):
            reports = work(rt, once=True, limit=limit)
    finally:
        log.setLevel(level)
    for number, report in enumerate(reports):
        if as_json:
            put_json(report.to_dict())
            continue
        if number:
            put()
        put_report(report)
    if not reports:
        say(f"nothing to recover in {visible(str(rt.settings['url'].value), prose=True)}")
    return _code(reports)


def _code(reports: list[Report]) -> int:
    return NEEDS_A_PERSON if any(report.state == "blocked" for report in reports) else DONE


# ---- ``amends rollback``: what it would do, and then exactly that


def roll_back(
    run_id: str,
    *,
    plan: bool,
    apply: str | None,
    by: str | None,
    why: str | None,
    yes: bool,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends rollback``."""
    if plan and apply is not None:
        raise UsageError("--plan only shows, and --apply does it: say one of them")
    if not plan and apply is None and not has_person():
        raise UsageError("say what is meant: --plan shows what would be done, --apply HASH does it")
    if not plan and not why:
        raise UsageError("a rollback needs a reason", hint="say it: --why 'the customer cancelled'")
    asks = not plan and must_ask(yes, "a rollback")
    with working(app, url=url, tenant=tenant) as rt:
        run = run_named(rt, run_id)
        planned = rt.plan_rollback(run)
        if plan:
            return _put_plan(planned, as_json)
        chosen = apply or planned.hash
        # A plan that is stale or refused is told below, by whoever refuses it.
        if asks and planned.hash == chosen and planned.refused is None:
            put_plain(str(planned), stream=sys.stderr)
            if not agrees(f"Take run {visible(run)} back?"):
                return FAILED
        with progress(f"taking run {visible(run)} back"):
            report = _rolled_back(rt, run, by=who(by, rt), why=why or "", plan=chosen)
    return _put_done(report, as_json)


def _rolled_back(rt: Runtime, run: str, *, by: str, why: str, plan: str) -> Report:
    try:
        return rt.rollback(run, by=by, why=why, plan=plan)
    except StalePlan as error:
        error.hint = f"look at it again: amends rollback {visible(run)} --plan"
        raise


def _put_plan(plan: RollbackPlan, as_json: bool) -> int:
    if as_json:
        put_json(plan.to_dict())
    else:
        put_plain(str(plan))
    if plan.refused is not None or plan.cannot:
        return NOT_ALL_TAKEN_BACK
    if plan.doubts:
        return IN_DOUBT
    say(f"to do exactly this: amends rollback {visible(plan.run_id)} --apply {plan.hash} --why ...")
    return DONE


def _put_done(report: Report, as_json: bool) -> int:
    if as_json:
        put_json(report.to_dict())
    else:
        put_report(report)
    if report.state == "rolled_back":
        return DONE
    if report.skipped:
        say("recorded; a worker that has the tools takes it back: amends worker APP:RT")
        return DONE
    if report.doubts:
        return IN_DOUBT
    if report.residue:
        return NOT_ALL_TAKEN_BACK
    if report.state == "blocked":
        return NEEDS_A_PERSON
    say("recorded; its owner takes it back when its calls have settled: amends runs watch shows it")
    return DONE


# ---- ``amends init``: a place to begin


PROGRAM: Final = "app.py"
SETTINGS: Final = "amends.toml"
TEXT: Final = """\
# Settings of amends for this folder and those below it: docs/reference/settings.md
url = "sqlite:///amends.db"   # the ledger; relative to this file
app = "app.py:rt"             # where the command line finds your tools
# create = false              # in production: a missing ledger is an error, not a clean slate
"""


def begin(folder: Path, *, as_json: bool) -> int:
    """See ``amends init``. Writes both files or neither, and never over anything."""
    files = {folder / SETTINGS: TEXT, folder / PROGRAM: Path(__file__).with_name("starter.py").read_text("utf-8")}
    there = [str(path) for path in files if path.exists()]
    if there:
        raise UsageError(
            f"there is already {' and '.join(there)}; nothing was written", hint="choose another place: --dir"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error}", hint="choose another place: --dir") from error
    if as_json:
        put_json({"files": [str(path) for path in files]})
        return DONE
    for path in files:
        put(str(path))
    inside = "" if folder == Path() else f"cd {folder}; "
    say(f"now: {inside}python {PROGRAM} 1042 4200")
    return DONE
