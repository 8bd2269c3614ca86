"""Verbs that read a ledger: they need its place and no tools, and never make one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any, Final

from amends import Report, RunInfo, Runtime
from amends.cli.show import STYLES, put, put_json, put_table, say
from amends.errors import LedgerMissing, UsageError, shown

PREFIX_RUNS_MAX: Final = 100_000
"""How many runs are looked at for the beginning of an id."""
ARGS_CHARS_MAX: Final = 60


@contextmanager
def reading(url: str | None, tenant: str | None) -> Iterator[Runtime]:
    """The ledger, which must exist."""
    rt = Runtime(url, create=False, tenant=tenant)
    try:
        with rt:
            yield rt
    except LedgerMissing as error:
        if str(rt.settings["url"].value).startswith("sqlite:"):  # of a server it is known what is missing, and said
            error.hint = "say where it is: --url sqlite:///path/to/ledger.db, AMENDS_URL, or url in amends.toml"
        raise


def list_runs(filter: str, *, limit: int, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends runs list``."""
    with reading(url, tenant) as rt:
        found = list(islice(rt.runs(filter), limit + 1))
        ledger = rt.settings["url"].value
    if as_json:
        for run in found[:limit]:
            put_json(_run_facts(run))
    else:
        head = ("run", "state", "generation", "agent", "opened", "closed")
        put_table(head, [_run_row(run) for run in found[:limit]], state=1)
    _say_how_many(len(found), limit, "run", ledger)


def show_run(run_id: str, *, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends runs show``."""
    with reading(url, tenant) as rt:
        report = _by_prefix(rt, run_id)
    if as_json:
        put_json(report.to_dict())
    else:
        put_report(report)


def put_report(report: Report) -> None:
    """A report as its table; the line with the end in colour."""
    for line in str(report).splitlines():
        end = line.strip().startswith("= ")
        put(line, style=STYLES.get(report.state, "") if end else "")


def list_doubts(*, limit: int, url: str | None, tenant: str | None, as_json: bool) -> None:
    """See ``amends doubts list``."""
    with reading(url, tenant) as rt:
        found = list(islice(rt.doubts(), limit + 1))
        ledger = rt.settings["url"].value
    if as_json:
        for call in found[:limit]:
            put_json(
                {
                    "call": call.id,
                    "run": call.run_id,
                    "tool": call.tool,
                    "state": call.state,
                    "args": dict(call.args),
                    "attempt": call.attempt,
                    "why": call.why,
                    "error": call.error,
                    "started_at": _time(call.started_at) or None,
                }
            )
    else:
        head = ("call", "run", "tool", "state", "started", "arguments")
        rows = [(c.id, c.run_id, c.tool, c.state, _time(c.started_at), _args(c.args)) for c in found[:limit]]
        put_table(head, rows, state=3)
    _say_how_many(len(found), limit, "doubt", ledger)


def show_config(*, origin: bool, url: str | None, as_json: bool) -> None:
    """See ``amends config show``."""
    settings = Runtime(url).settings  # does no IO
    if as_json:
        for name, setting in settings.items():
            put_json({"name": name, "value": setting.value} | ({"origin": setting.origin} if origin else {}))
        return
    rows = [(name, _shown(setting.value), setting.origin) for name, setting in settings.items()]
    if origin:
        put_table(("setting", "value", "origin"), rows)
    else:
        put_table(("setting", "value"), [row[:2] for row in rows])


def _by_prefix(rt: Runtime, run_id: str) -> Report:
    try:
        return rt.report(run_id)
    except UsageError:
        found = {run.id for run in islice(rt.runs(), PREFIX_RUNS_MAX) if run_id and run.id.startswith(run_id)}
        if len(found) == 1:
            return rt.report(found.pop())
        if found:
            some = ", ".join(sorted(found)[:5])
            raise UsageError(
                f"{run_id!r} is the beginning of {len(found)} runs: {some}", hint="write more of the id"
            ) from None
        raise UsageError(
            f"there is no run {run_id!r} in {rt.settings['url'].value}", hint="amends runs list shows what is there"
        ) from None


def _run_row(run: RunInfo) -> tuple[str, ...]:
    return (run.id, run.state, str(run.generation), run.agent or "", _time(run.opened_at), _time(run.closed_at))


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
        "opened_at": _time(run.opened_at) or None,
        "closed_at": _time(run.closed_at) or None,
        "deadline_at": _time(run.deadline_at) or None,
    }


def _time(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="seconds")


def _args(args: Any) -> str:
    text = shown(dict(args))
    return text if len(text) <= ARGS_CHARS_MAX else text[: ARGS_CHARS_MAX - 1] + "…"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _say_how_many(count: int, limit: int, what: str, ledger: str) -> None:
    if count > limit:
        say(f"the first {limit} {what}s of {ledger}; --limit shows more")
    elif count == 0:
        say(f"no {what} in {ledger}")
