"""The program ``amends``: the list of its verbs, and errors without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.main import get_group

from amends import __version__
from amends.cli.exit_codes import DONE, FAILED, INTERRUPTED, WRONG, code_of
from amends.cli.options import Verbs
from amends.cli.output import put, put_error, put_plain
from amends.cli.suggestions import after_the_command, explained, path_of
from amends.errors import Error, docs_page

EPILOG: Final = (
    "Options follow the command; --url, --app, --tenant, --by and --json may also come before it. "
    "Exit codes: 0 done, 1 failed, 2 wrong use or no ledger, 3 a person is needed; codes from 10 tell the state of a "
    f"run, a plan or an approval. All of them, and every option: {docs_page('reference/cli.md')}"
)
VERBS: Final = {
    # verb or group of verbs: its module in this package, and its line in `amends --help`
    "demo": ("demo", "Run five example orders, with a rollback and a crash."),
    "init": ("init", "Write amends.toml and app.py, a small example program."),
    "inbox": ("inbox", "List everything that waits for a person."),
    "worker": ("runs", "Recover unfinished runs, until SIGTERM or Ctrl-C."),
    "recover": ("runs", "Recover unfinished runs once, and show each. For cron."),
    "serve": ("serve", "Serve a runtime over HTTP, until SIGTERM or Ctrl-C."),
    "gateway": ("gateway", "Serve MCP servers whose calls happen once and can be undone."),
    "rollback": ("runs", "Roll a run back: show the plan, then do exactly that."),
    "test": ("kit", "Check your tools against your sandbox; kill them everywhere."),
    "replay": ("replay", "Check new code against recorded runs; run no tool."),
    "fork": ("replay", "Copy a run up to one call, and continue differently."),
    "compare": ("replay", "Show the first call in which two runs differ."),
    "budgets": ("budgets", "Show what is spent, reserved and left of each budget."),
    "costs": ("budgets", "Add up what calls cost, by run, tool, agent or day."),
    "reconcile": ("doubts", "Compare the ledger with the outside world, for a tool."),
    "halt": ("halts", "Stop: let nothing start until it is lifted."),
    "unhalt": ("halts", "Lift a halt."),
    "halts": ("halts", "List the halts in force."),
    "locks": ("ledger", "List the locks that runs hold, and who waits for them."),
    "gc": ("ledger", "Remove arguments, results and errors of old runs."),
    "erase": ("erasure", "Erase everything recorded about one person."),
    "doctor": ("doctor", "Check Python, settings, ledger, disk, clock and tools."),
    "completion": ("completion", "Print the completion script for your shell."),
    "runs": ("runs", "List, show, watch, finish or abandon runs."),
    "calls": ("runs", "List and show calls, and decide what happens to one."),
    "approvals": ("approvals", "List, show, approve or reject calls that wait."),
    "oncall": ("oncall", "Show who is asked now; check the on-call table."),
    "permits": ("permits", "Approve calls before they are asked for."),
    "tokens": ("tokens", "Create, list and revoke tokens of the service."),
    "doubts": ("doubts", "List and resolve calls that may or may not have happened."),
    "rules": ("rules", "Test which rule decides about a call."),
    "audit": ("audit", "Verify, sign, export and import the record."),
    "db": ("ledger", "Show or migrate the ledger's schema; key rotation."),
    "config": ("ledger", "Show the settings."),
    "complete": ("completion", ""),  # for the completion scripts
}
OTHER_NAMES: Final = {"call": "calls", "budget": "budgets", "cost": "costs"}
"""Earlier names, which still work and which the help does not list."""


class LazyGroup(Verbs):
    """The verbs of ``VERBS``. Help and suggestions need only this list; a verb's module is imported when the verb runs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that was named, and its arguments; fail like any group if there is none."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, load(name) if name and known else known, rest


def load(verb: str) -> Any:
    """Import the module of a verb, and return its command."""
    name = OTHER_NAMES.get(verb, verb)
    module = import_module(f"amends.cli.{VERBS[name][0]}")
    return get_group(module.verbs).commands[name]


app = typer.Typer(
    name="amends",
    cls=LazyGroup,
    help="Transactional tool calls for AI agents: recorded first, run at most once, compensated if the run fails.",
    epilog=EPILOG,
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for name, (_, summary) in {**VERBS, **dict.fromkeys(OTHER_NAMES, ("", ""))}.items():
    app.command(name, help=summary, hidden=not summary)(lambda: None)  # LazyGroup puts the real command in its place


def run(args: Sequence[str] | None) -> int:
    """Run a command; return its exit code instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that has no ✓ gets \u2713: neither an error, nor a ? that could stand for anything.
            stream.reconfigure(errors="backslashreplace")
    words, config = _without_config(sys.argv[1:] if args is None else list(args))
    words = after_the_command(words)
    as_json = "--json" in words
    known = os.environ.get("AMENDS_CONFIG")
    try:
        if config:
            os.environ["AMENDS_CONFIG"] = config
        code = app(args=words, prog_name="amends", standalone_mode=False)
        sys.stdout.flush()
    except Error as error:
        put_error(error, as_json=as_json)
        return code_of(error)
    except BrokenPipeError:
        # The reader has gone (`| head`). Without this, Python would print an error when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _click_exception() as error:
        path = _command_path(error, words)
        page = docs_page("reference/cli.md", path.replace(" ", "-"))
        put_error(explained(error), hint=f"{path} --help", code="wrong_use", docs=page, as_json=as_json)
        return WRONG
    finally:
        if config and known is None:
            os.environ.pop("AMENDS_CONFIG", None)
        elif config and known is not None:
            os.environ["AMENDS_CONFIG"] = known
    return code if isinstance(code, int) else DONE


def _without_config(words: list[str]) -> tuple[list[str], str]:
    """Return the words without ``--config FILE``, and the file.

    The option may appear anywhere, because every verb reads the settings.
    """
    left: list[str] = []
    config = ""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != "--config" or "--" in left:
            left.append(word)
            continue
        file = value if equals else next(rest, "")
        if not file:
            left.append(word)  # typer reports that the file is missing
        else:
            config = file
    return left, config


def _click_exception() -> Any:
    # typer has its own copy of click since 0.26, and used the real click before: a subclass leads to the right one.
    return next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


def _command_path(error: Any, words: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else path_of(words)


def _put_version(asked: bool) -> None:
    if asked:
        put(f"amends {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_put_version, is_eager=True)
    ] = False,
    _config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Read this settings file, and trust it. Default: AMENDS_CONFIG, or the nearest settings file.",
        ),
    ] = None,
) -> None:
    """Show the help if no verb was given."""
    if context.invoked_subcommand is None:
        put_plain(context.get_help())
