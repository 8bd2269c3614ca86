"""The verbs of the command line. Each is thin: it asks the runtime and shows the answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from amends import __version__
from amends.cli.show import put, put_error
from amends.errors import Error

DONE, FAILED, WRONG, BLOCKED = 0, 1, 2, 3
LIMIT: Final = 100

# rich_markup_mode=None: help is plain text, and rich (80 ms) is not loaded for it.
app = typer.Typer(
    name="amends",
    help="Guarded tool calls for AI agents: written down first, run at most once, taken back when the run fails.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong use or no ledger, 3 a run is blocked. Docs: docs/reference/cli.md",
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
runs = typer.Typer(help="Look at runs.", rich_markup_mode=None)
doubts = typer.Typer(help="Look at calls of which nobody can say whether they happened.", rich_markup_mode=None)
config = typer.Typer(help="Look at the settings.", rich_markup_mode=None)
db = typer.Typer(help="Look at the ledger's schema, or bring it up to date.", rich_markup_mode=None)
app.add_typer(runs, name="runs")
app.add_typer(doubts, name="doubts")
app.add_typer(config, name="config")
app.add_typer(db, name="db")

AppRt = Annotated[str, typer.Argument(metavar="APP:RT", help="The runtime: MODULE:NAME or FILE.py:NAME, like app:rt.")]
Url = Annotated[
    str | None, typer.Option("--url", help="The ledger; else AMENDS_URL, amends.toml, pyproject.toml, ./amends.db.")
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Whose runs; else AMENDS_TENANT or the files.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table; a listing is one object per line.")]


def run(args: Sequence[str] | None) -> int:
    """Do what the command line says, in exit codes instead of exceptions."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ✓ gets ?, not an error
    try:
        code = app(args=args, prog_name="amends", standalone_mode=False)
        sys.stdout.flush()
    except Error as error:
        put_error(error)
        return WRONG
    except BrokenPipeError:
        # Whoever read us has left (`| head`): nothing more to say, also not by Python at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except _wrong_usage() as error:
        put_error(error.format_message(), hint=_help_for(error))
        return WRONG
    return code if isinstance(code, int) else DONE


def _wrong_usage() -> Any:
    # typer brings a copy of click since 0.26 and used the real one before: its own base is found through its child.
    return next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


def _help_for(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'amends'} --help"


def _version(asked: bool) -> None:
    if asked:
        put(f"amends {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Say the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Show the help where no verb was said."""
    if context.invoked_subcommand is None:
        put(context.get_help())


@app.command()
def demo(
    dir: Annotated[Path, typer.Option("--dir", help="Where the shop and its ledger are made.")] = Path("amends-demo"),
    fresh: Annotated[
        bool, typer.Option("--fresh/--keep", help="Begin anew, or keep the shop of the last time and add four orders.")
    ] = True,
) -> int:
    """Play four orders in a little shop: one commits, one is taken back, one is killed, one is refused."""
    from amends.cli.demo import play

    return play(dir, fresh=fresh)


@app.command()
def worker(
    place: AppRt,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks; up to 5 when idle.")] = 1.0,
) -> int:
    """Finish or take back what other processes left, until SIGTERM or Ctrl-C."""
    from amends.cli.recovering import run_worker

    return run_worker(place, once=once, every=every)


@app.command()
def recover(
    place: AppRt,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many runs.")] = LIMIT,
    as_json: Json = False,
) -> int:
    """Finish or take back once what other processes left, and show each run. For cron."""
    from amends.cli.recovering import run_recover

    return run_recover(place, limit=limit, as_json=as_json)


@runs.command("list")
def runs_list(
    filter: Annotated[str, typer.Argument(metavar="[FILTER]", help="Like: status:blocked,open run:order-*")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = LIMIT,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    from amends.cli.reading import list_runs

    list_runs(filter, limit=limit, url=url, tenant=tenant, as_json=as_json)


@runs.command("show")
def runs_show(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or the beginning of it.")],
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """Show one run: its calls, errors, compensations, and what is left standing."""
    from amends.cli.reading import show_run

    show_run(run_id, url=url, tenant=tenant, as_json=as_json)


@doubts.command("list")
def doubts_list(
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = LIMIT,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """List every call that may or may not have happened."""
    from amends.cli.reading import list_doubts

    list_doubts(limit=limit, url=url, tenant=tenant, as_json=as_json)


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


@db.command("reencrypt")
def db_reencrypt(url: Url = None, as_json: Json = False) -> int:
    """Encrypt every argument, result, input, output and error with the newest key of AMENDS_ENCRYPT."""
    from amends.cli.upkeep import reencrypt

    return reencrypt(url=url, as_json=as_json)


@app.command()
def gc(
    older_than: Annotated[str, typer.Option("--older-than", help="How long ago a run ended: 30d, 12h, 2w.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many runs.")] = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Remove arguments, results and errors of runs that ended long ago; what was done stays known for ever."""
    from amends.cli.upkeep import collect

    return collect(older_than, dry_run=dry_run, limit=limit, url=url, tenant=tenant, as_json=as_json)
