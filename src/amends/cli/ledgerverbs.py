"""Verbs for whoever runs a ledger: its schema, its care, its settings, and the shell."""

from __future__ import annotations

from typing import Annotated

import typer

from amends.cli.options import App, By, Json, Tenant, Url, Why, Yes, group

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
    from amends.cli.reading import show_config

    show_config(origin=origin, url=url, as_json=as_json)


@db.command("status")
def db_status(url: Url = None, as_json: Json = False) -> int:
    """Show the ledger's version and what this amends would change; exit code 1 when that is something."""
    from amends.cli.upkeep import show_schema

    return show_schema(url=url, as_json=as_json)


@db.command("migrate")
def db_migrate(url: Url = None, as_json: Json = False) -> int:
    """Bring the ledger up to date, making it if there is none."""
    from amends.cli.upkeep import migrate

    return migrate(url=url, as_json=as_json)


@db.command("restored")
def db_restored(why: Why, by: By = None, yes: Yes = False, url: Url = None, as_json: Json = False) -> int:
    """Let a ledger that was put back from a copy start things again; its unused approvals are void."""
    from amends.cli.upkeep import restored

    return restored(by=by, why=why, yes=yes, url=url, as_json=as_json)


@db.command("reencrypt")
def db_reencrypt(url: Url = None, as_json: Json = False) -> int:
    """Encrypt every argument, result, input, output and error with the newest key of AMENDS_ENCRYPT."""
    from amends.cli.upkeep import reencrypt

    return reencrypt(url=url, as_json=as_json)


def gc(
    older_than: Annotated[str, typer.Option("--older-than", help="How long ago a run ended: 30d, 12h, 2w.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many runs.")] = None,
    yes: Yes = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Remove arguments, results and errors of runs that ended long ago; what was done stays known for ever."""
    from amends.cli.upkeep import collect

    return collect(older_than, dry_run=dry_run, limit=limit, yes=yes, url=url, tenant=tenant, as_json=as_json)


def doctor(app: App = None, url: Url = None, as_json: Json = False) -> int:
    """Check Python, settings, ledger, disk, clock and your tools; exit code 3 when a check failed."""
    from amends.cli.checkup import examine

    return examine(app=app, url=url, as_json=as_json)


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="For which shell.")],
) -> int:
    """Print what makes a shell complete verbs, options and ids: eval "$(amends completion bash)"."""
    from amends.cli.completing import put_script

    return put_script(shell)


def complete(words: Annotated[list[str] | None, typer.Argument(metavar="WORD...")] = None) -> int:
    """What the last of these words could become, one per line: for the scripts of ``completion``."""
    from amends.cli.completing import put_words

    return put_words(words or [])
