"""Verbs for the people who operate a ledger: ``db``, ``gc``, ``locks`` and ``config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Annotated, Any, Final

import typer

from amends import Lock, PlannedMigration, Runtime, Schema
from amends.cli.access import load_runtime, open_ledger, open_unmigrated, take, who
from amends.cli.exit_codes import DONE, FAILED
from amends.cli.options import LIMIT, By, Json, LedgerOf, Limit, Tenant, Url, Why, YesOption, group
from amends.cli.output import (
    confirm,
    duration,
    must_ask,
    progress,
    put,
    put_json,
    put_table,
    say,
    say_how_many,
)
from amends.errors import some_in_words
from amends.visible import shortened, visible

SETTING_CHARS_MAX: Final = 200
"""A value in the table of settings; ``--json`` has all of it."""
UP_TO_DATE, PENDING = 0, 1

verbs = group()
db = group("Show or migrate the ledger's schema; reopen a restored ledger; rotate encryption keys.")
config = group("Show the settings.")
verbs.add_typer(db, name="db")
verbs.add_typer(config, name="config")

# ---- db


@db.command("status")
def status(app: LedgerOf = None, url: Url = None, as_json: Json = False) -> int:
    """Show the schema version and the pending migrations; exit code 1 if there are any. Creates nothing."""
    with open_unmigrated(url, app, create=False) as rt:
        schema = rt.schema()
    _put_schema(rt, schema, as_json)
    if schema.version == 0:
        say("there is no ledger yet; amends db migrate creates it")
    elif schema.needs > schema.newest:
        say("a newer amends has changed this ledger: upgrade amends to use it")
        return PENDING
    elif schema.pending:
        say("amends db migrate brings it up to date; so does the first program that uses it")
    return PENDING if schema.pending else UP_TO_DATE


@db.command("sql")
def sql(app: LedgerOf = None, url: Url = None, as_json: Json = False) -> int:
    """Print the SQL that creates the ledger's tables. Connects to nothing, creates nothing."""
    with open_unmigrated(url, app, create=False) as rt:
        text = rt.schema_sql()
    place = rt.settings["url"].value
    if as_json:
        put_json({"url": place, "sql": text}, id=place)
    else:
        for line in text.splitlines():
            put(line, fold=False)
    return DONE


@db.command("migrate")
def migrate(
    plan: Annotated[
        bool, typer.Option("--plan", help="Show SQL, locks and rows of what would be done, and change nothing.")
    ] = False,
    app: LedgerOf = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Bring the schema up to date; create the ledger if there is none."""
    if plan:
        return _plan(app, url, as_json)
    with open_unmigrated(url, app, create=True) as rt:
        before = rt.schema()
        schema = rt.migrate()
    _put_schema(rt, schema, as_json)
    done = len(before.pending)
    say("nothing to do" if not done else f"{done} migration{'s' if done > 1 else ''} applied")
    return UP_TO_DATE


@db.command("restored")
def restored(
    why: Why,
    by: By = None,
    yes: YesOption = False,
    app: LedgerOf = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Allow a ledger that was restored from a copy to start calls again. Its unused approvals and permits become void."""
    asks = must_ask(yes, "letting a restored ledger start calls")
    with open_ledger(url, None, app=app) as rt:
        person = who(by, rt)
        if asks:
            say(
                "This ledger does not have what was done since the copy was made. First compare it with the outside world,"
            )
            say("for each tool: amends reconcile TOOL. Approvals and permits that were unused in the copy become void.")
            if not confirm(f"{visible(person)} has compared it. Let it start calls again?"):
                return FAILED
        voided = rt.reconcile_restore(by=person, why=why)
        ledger = rt.settings["url"].value
    if as_json:
        put_json({"voided": voided}, id=ledger)
    else:
        put_table(("ledger", "approvals void now"), [(visible(str(ledger)), str(voided))])
    return DONE


@db.command("reencrypt")
def reencrypt(app: LedgerOf = None, url: Url = None, as_json: Json = False) -> int:
    """Re-encrypt arguments, results, inputs, outputs and errors with the newest key of AMENDS_ENCRYPT."""
    with open_ledger(url, None, app=app) as rt:
        rows, keys = rt.reencrypt(), str(rt.settings["encrypt"].value)
        ledger = rt.settings["url"].value
    newest = keys.partition(",")[0]
    if as_json:
        put_json({"rows": rows, "key": newest}, id=ledger)
    else:
        put_table(("key", "rows written"), [(visible(newest), str(rows))])
    say("everything except events is encrypted with this key; older keys are needed only to read what events quote")
    return DONE


def _plan(app: str | None, url: str | None, as_json: bool) -> int:
    """Show what ``migrate`` would do; exit code 1 if that is anything."""
    with open_unmigrated(url, app, create=False) as rt:
        schema, planned = rt.schema(), rt.plan_migration()
    for one in planned:
        if as_json:
            put_json(one.to_dict(), id=one.name)
            continue
        put(f"{one.name}: {_compatibility(one, schema)}")
        rows = [
            (
                visible(said.table),
                "" if said.rows is None else f"{said.rows:,}",
                said.locks,
                visible(" ".join(said.sql.split()), prose=True),
            )
            for said in one.statements
        ]
        put_table(("table", "rows", "locks", "SQL"), rows)
    if not as_json:
        say(f"{len(planned)} would be applied; nothing was changed" if planned else "nothing to do")
    return PENDING if planned else UP_TO_DATE


def _compatibility(one: PlannedMigration, schema: Schema) -> str:
    if not schema.version:
        return "makes a new ledger"
    if one.is_contract:
        return f"stop every amends that knows fewer than {one.needs} migrations first; no program applies it by itself"
    if one.needs == one.version:
        return "stop every program first: no older amends can use the ledger afterwards"
    return f"programs may go on: every amends that knows {one.needs} or more migrations can use the ledger afterwards"


def _put_schema(rt: Runtime, schema: Schema, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "url": rt.settings["url"].value,
        "ledger": schema.ledger or None,
        "version": schema.version,
        "newest": schema.newest,
        "needs": schema.needs,
        "pending": list(schema.pending),
    }
    if as_json:
        put_json(facts, id=schema.ledger or None)
        return
    shown = facts | {"ledger": schema.ledger or "(none)", "pending": ", ".join(schema.pending) or "(none)"}
    put_table(("ledger's", "value"), [(name, visible(str(value), prose=True)) for name, value in shown.items()])


# ---- gc


@verbs.command()
def gc(
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only runs that ended longer ago than this: 30d, 12h, 2w.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many runs.")] = None,
    yes: YesOption = False,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Remove arguments, results and errors of runs that ended long ago; what was done stays on record."""
    with open_ledger(url, tenant, app=app) as rt:
        ledger = rt.settings["url"].value
        if not dry_run and not _confirm_gc(rt, older_than, limit=limit, yes=yes):
            return FAILED
        with progress(f"looking at runs that ended more than {visible(older_than)} ago"):
            gone = rt.gc(older_than=older_than, dry_run=dry_run, limit=limit)
    if as_json:
        facts = {"runs": gone.runs, "calls": gone.calls, "bytes": gone.bytes, "kept": dict(gone.kept)}
        put_json(facts | {"dry_run": gone.dry_run}, id=ledger)
        return DONE
    rows = [("would be removed" if dry_run else "removed", str(gone.runs), str(gone.calls), f"{gone.bytes:,}")]
    rows += [(f"kept: {visible(why, prose=True)}", str(count), "", "") for why, count in sorted(gone.kept.items())]
    put_table(("", "runs", "calls", "bytes"), rows)
    if not gone.runs:
        ended = f"ended more than {visible(older_than)} ago"
        say(f"no run of {visible(str(ledger))} {ended} and still has something to remove")
    return DONE


def _confirm_gc(rt: Runtime, older_than: str, *, limit: int | None, yes: bool) -> bool:
    """Ask before anything is removed; return true without asking if nothing would be."""
    would = rt.gc(older_than=older_than, dry_run=True, limit=1)  # first, because it refuses an invalid age
    if not must_ask(yes, "removing the data of runs") or not would.runs:
        return True
    would = rt.gc(older_than=older_than, dry_run=True, limit=limit)
    return confirm(f"Remove the data of {would.runs} runs ({would.calls} calls, {would.bytes:,} bytes)?")


# ---- locks


@verbs.command()
def locks(
    limit: Limit = LIMIT, app: LedgerOf = None, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """List the locks that runs hold until they end, and the runs that wait for them."""
    with open_ledger(url, tenant, app=app) as rt:
        found, more = take(rt.locks(), limit)
        ledger = rt.settings["url"].value
    if as_json:
        for lock in found:
            put_json(asdict(lock), id=lock.name)
    else:
        put_table(("lock", "run", "state", "held", "tool", "waiting"), [_lock_row(lock) for lock in found], state=2)
    say_how_many(found, more, "lock", ledger)


def _lock_row(lock: Lock) -> tuple[str, ...]:
    waiting = some_in_words(map(visible, lock.waiting))
    held = duration(lock.held_s)
    return (visible(lock.name), visible(lock.run_id), lock.run_state, held, visible(lock.tool), waiting)


# ---- config


@config.command("show")
def show_config(
    origin: Annotated[bool, typer.Option("--origin", help="Also show where each value comes from.")] = False,
    app: LedgerOf = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show every setting with the value that a program started here would get."""
    rt = Runtime(url) if app is None else load_runtime(app, url=url)
    settings = rt.settings  # does no IO
    if as_json:
        for name, setting in settings.items():
            facts = {"name": name, "value": _plain(setting.value)}
            put_json(facts | ({"origin": setting.origin} if origin else {}), id=name)
        return
    rows = [(name, _short(setting.value), visible(setting.origin, prose=True)) for name, setting in settings.items()]
    if origin:
        put_table(("setting", "value", "origin"), rows)
    else:
        put_table(("setting", "value"), [row[:2] for row in rows])


def _short(value: Any) -> str:
    """Return a setting in one line; of a table in a settings file, only what differs from the defaults."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == () or value == {}:
        return ""
    if isinstance(value, tuple | list):
        return shortened("; ".join(_short(one) for one in value), SETTING_CHARS_MAX)
    if isinstance(value, Mapping):
        return shortened(
            "; ".join(f"{visible(str(name))}: {_short(one)}" for name, one in value.items()), SETTING_CHARS_MAX
        )
    if is_dataclass(value) and not isinstance(value, type):
        own = [(one.name, getattr(value, one.name), one.default) for one in fields(value)]
        differing = [(name, one) for name, one, default in own if one not in (default, (), {})]
        return ", ".join(f"{name} {visible(str(one), prose=True)}" for name, one in differing)
    return visible(str(value), prose=True)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if value is not None and not isinstance(value, str | int | float | Mapping) and not is_dataclass(value):
        return str(value)  # a secret: it shows that it is set
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
