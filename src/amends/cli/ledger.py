"""Verbs for whoever runs a ledger: its schema, its care, its settings, and the shell."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from amends import Runtime, Schema
from amends.cli.access import reading, who
from amends.cli.options import DONE, FAILED, App, By, Json, Tenant, Url, Why, YesOption, group
from amends.cli.show import agrees, must_ask, progress, put_json, put_table, say
from amends.visible import visible

config = group("Look at the settings.")
db = group("Look at the ledger's schema, or bring it up to date.")


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    app.add_typer(db, name="db")
    app.command()(gc)
    app.command()(doctor)
    app.add_typer(config, name="config")
    app.command()(completion)
    app.command(hidden=True)(complete)


@config.command("show")
def config_show(
    origin: Annotated[bool, typer.Option("--origin", help="Also where each value comes from.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show every setting as a program started here would get it."""
    from amends.cli.runs import show_config

    show_config(origin=origin, url=url, as_json=as_json)


@db.command("status")
def db_status(url: Url = None, as_json: Json = False) -> int:
    """Show the ledger's version and what this amends would change; exit code 1 when that is something."""
    return show_schema(url=url, as_json=as_json)


@db.command("migrate")
def db_migrate(url: Url = None, as_json: Json = False) -> int:
    """Bring the ledger up to date, making it if there is none."""
    return migrate(url=url, as_json=as_json)


@db.command("restored")
def db_restored(why: Why, by: By = None, yes: YesOption = False, url: Url = None, as_json: Json = False) -> int:
    """Let a ledger that was put back from a copy start things again; its unused approvals are void."""
    return restored(by=by, why=why, yes=yes, url=url, as_json=as_json)


@db.command("reencrypt")
def db_reencrypt(url: Url = None, as_json: Json = False) -> int:
    """Encrypt every argument, result, input, output and error with the newest key of AMENDS_ENCRYPT."""
    return reencrypt(url=url, as_json=as_json)


def gc(
    older_than: Annotated[str, typer.Option("--older-than", help="How long ago a run ended: 30d, 12h, 2w.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many runs.")] = None,
    yes: YesOption = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Remove arguments, results and errors of runs that ended long ago; what was done stays known for ever."""
    return collect(older_than, dry_run=dry_run, limit=limit, yes=yes, url=url, tenant=tenant, as_json=as_json)


def doctor(app: App = None, url: Url = None, as_json: Json = False) -> int:
    """Check Python, settings, ledger, disk, clock and your tools; exit code 3 when a check failed."""
    from amends.cli.doctor import examine

    return examine(app=app, url=url, as_json=as_json)


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="For which shell.")],
) -> int:
    """Print what makes a shell complete verbs, options and ids: eval "$(amends completion bash)"."""
    from amends.cli.completion import put_script

    return put_script(shell)


def complete(words: Annotated[list[str] | None, typer.Argument(metavar="WORD...")] = None) -> int:
    """What the last of these words could become, one per line: for the scripts of ``completion``."""
    from amends.cli.completion import put_words

    return put_words(words or [])


# ---- Verbs for whoever runs a ledger: its schema, and what may go from it


UP_TO_DATE, PENDING = 0, 1


def show_schema(*, url: str | None, as_json: bool) -> int:
    """See ``amends db status``. Nothing is made: not even an empty file."""
    rt = Runtime(url, create=False)
    try:
        schema = rt.schema()
    finally:
        rt.close()
    _put(rt, schema, as_json)
    if schema.version == 0:
        say("there is no ledger yet; amends db migrate makes it")
    elif schema.needs > schema.newest:
        say("a newer amends has changed this ledger: upgrade amends to use it")
        return PENDING
    elif schema.pending:
        say("amends db migrate brings it up to date; so does the first program that uses it")
    return PENDING if schema.pending else UP_TO_DATE


def migrate(*, url: str | None, as_json: bool) -> int:
    """See ``amends db migrate``."""
    rt = Runtime(url)
    try:
        before = rt.schema()
        schema = rt.migrate()
    finally:
        rt.close()
    _put(rt, schema, as_json)
    done = len(before.pending)
    say("nothing to do" if not done else f"{done} migration{'s' if done > 1 else ''} applied")
    return UP_TO_DATE


def _put(rt: Runtime, schema: Schema, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "url": rt.settings["url"].value,
        "ledger": schema.ledger or None,
        "version": schema.version,
        "newest": schema.newest,
        "needs": schema.needs,
        "pending": list(schema.pending),
    }
    if as_json:
        put_json(facts)
        return
    shown = facts | {"ledger": schema.ledger or "(none)", "pending": ", ".join(schema.pending) or "(none)"}
    put_table(("ledger's", "value"), [(name, visible(str(value), prose=True)) for name, value in shown.items()])


def restored(*, by: str | None, why: str, yes: bool, url: str | None, as_json: bool) -> int:
    """See ``amends db restored``."""
    asks = must_ask(yes, "letting a restored ledger start things")
    with reading(url, None) as rt:
        person = who(by, rt)
        if asks:
            say(
                "What was done since the copy was made is not in this ledger: compare it with the world first, for each"
            )
            say("tool with amends reconcile TOOL. Its approvals that were not used by then become void.")
            if not agrees(f"{visible(person)} has looked. Start things again?"):
                return FAILED
        voided = rt.reconcile_restore(by=person, why=why)
        ledger = rt.settings["url"].value
    if as_json:
        put_json({"voided": voided})
    else:
        put_table(("ledger", "approvals void now"), [(visible(str(ledger)), str(voided))])
    return DONE


def reencrypt(*, url: str | None, as_json: bool) -> int:
    """See ``amends db reencrypt``."""
    with reading(url, None) as rt:
        rows, keys = rt.reencrypt(), str(rt.settings["encrypt"].value)
    newest = keys.partition(",")[0]
    if as_json:
        put_json({"rows": rows, "key": newest})
    else:
        put_table(("key", "rows written"), [(visible(newest), str(rows))])
    say("everything but events is encrypted with this key; an older one is needed only to read what events quote")
    return 0


def collect(
    older_than: str,
    *,
    dry_run: bool,
    limit: int | None,
    yes: bool,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends gc``."""
    with reading(url, tenant) as rt:
        ledger = rt.settings["url"].value
        if not dry_run and not _agreed(rt, older_than, limit=limit, yes=yes):
            return FAILED
        with progress(f"looking at runs that ended longer than {visible(older_than)} ago"):
            gone = rt.gc(older_than=older_than, dry_run=dry_run, limit=limit)
    if as_json:
        facts = {"runs": gone.runs, "calls": gone.calls, "bytes": gone.bytes, "kept": dict(gone.kept)}
        put_json(facts | {"dry_run": gone.dry_run})
        return DONE
    rows = [("would be removed" if dry_run else "removed", str(gone.runs), str(gone.calls), f"{gone.bytes:,}")]
    rows += [(f"kept: {visible(why, prose=True)}", str(count), "", "") for why, count in sorted(gone.kept.items())]
    put_table(("", "runs", "calls", "bytes"), rows)
    if not gone.runs:
        say(
            f"no run of {visible(str(ledger))} ended longer than {visible(older_than)} ago and still has something to remove"
        )
    return DONE


def _agreed(rt: Runtime, older_than: str, *, limit: int | None, yes: bool) -> bool:
    """Whether whoever is asked lets it go; where nothing would go, nobody is asked."""
    would = rt.gc(older_than=older_than, dry_run=True, limit=1)  # tells of an age that makes no sense before all else
    if not must_ask(yes, "removing what runs said") or not would.runs:
        return True
    would = rt.gc(older_than=older_than, dry_run=True, limit=limit)
    return agrees(f"Remove what {would.runs} runs said ({would.calls} calls, {would.bytes:,} bytes)?")
