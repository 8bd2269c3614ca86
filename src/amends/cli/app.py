"""The command ``amends``: its verbs put together, and its mistakes told without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from amends import __version__
from amends.cli import audit, ledger, people, replay, runs
from amends.cli.show import put, put_error, put_plain
from amends.errors import Error

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
EPILOG: Final = (
    "Exit codes: 0 done, 1 failed, 2 wrong use or no ledger, 3 a person is needed; 10 and up say what became of a run, "
    "a plan or an approval. All of them, and every option: docs/reference/cli.md"
)

app = typer.Typer(
    name="amends",
    help="Guarded tool calls for AI agents: written down first, run at most once, taken back when the run fails.",
    epilog=EPILOG,
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for verbs in (runs, replay, people, audit, ledger):
    verbs.add_to(app)


def run(args: Sequence[str] | None) -> int:
    """Do what the command line says, in exit codes instead of exceptions."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal without ✓ gets \u2713: no error, and no ? that could stand for anything.
            stream.reconfigure(errors="backslashreplace")
    words, config = _without_config(sys.argv[1:] if args is None else list(args))
    as_json = "--json" in words
    known = os.environ.get("AMENDS_CONFIG")
    try:
        if config:
            os.environ["AMENDS_CONFIG"] = config
        code = app(args=words, prog_name="amends", standalone_mode=False)
        sys.stdout.flush()
    except Error as error:
        from amends.cli.options import code_of

        put_error(error, as_json=as_json)
        return code_of(error)
    except BrokenPipeError:
        # Whoever read us has left (`| head`): nothing more to say, also not by Python at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _wrong_usage() as error:
        put_error(
            error.format_message(), hint=_help_for(error), code="wrong_use", docs=_docs_for(error), as_json=as_json
        )
        return WRONG
    finally:
        if config and known is None:
            os.environ.pop("AMENDS_CONFIG", None)
        elif config and known is not None:
            os.environ["AMENDS_CONFIG"] = known
    return code if isinstance(code, int) else DONE


def _without_config(words: list[str]) -> tuple[list[str], str]:
    """The words without ``--config FILE``, and the file. It may stand anywhere: every verb reads the settings."""
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
            left.append(word)  # without its file: typer says what is missing
        else:
            config = file
    return left, config


def _wrong_usage() -> Any:
    # typer brings a copy of click since 0.26 and used the real one before: its own base is found through its child.
    return next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


def _path(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "amends"


def _help_for(error: Any) -> str:
    return f"{_path(error)} --help"


def _docs_for(error: Any) -> str:
    return f"docs/reference/cli.md#{_path(error).replace(' ', '-')}"


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
    _config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="The settings file, which is trusted; else AMENDS_CONFIG, or what is found.",
        ),
    ] = None,
) -> None:
    """Show the help where no verb was said."""
    if context.invoked_subcommand is None:
        put_plain(context.get_help())
