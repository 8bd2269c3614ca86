"""Options and arguments that several verbs share, and groups whose help is whole."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from amends.errors import UsageError
from amends.visible import visible

# ---- Options and arguments

LIMIT: Final = 100
HELP_CHARS_MAX: Final = 1_000
"""The line of a verb in the help of its group; none is longer."""

App = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="APP:RT", help="Your runtime, with its tools. Default: AMENDS_APP or the settings file."
    ),
]
LedgerOf = Annotated[
    str | None,
    typer.Option("--app", metavar="APP:RT", help="Use the ledger and the settings of this runtime of yours."),
]
Place = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP:RT]",
        help="Your runtime, as with --app: MODULE:NAME or FILE.py:NAME. Default: AMENDS_APP or the settings file.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The ledger. Default: AMENDS_URL, then amends.toml, then pyproject.toml, then ./amends.db.",
    ),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Only this tenant. Default: AMENDS_TENANT or the settings file.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of a table; a listing prints one object per line.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most this many.")]
Filter = Annotated[
    list[str] | None, typer.Argument(metavar="[FILTER]...", help="For example: state:blocked,open run:order-* age:<1d")
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run, or its first characters.")]
CallId = Annotated[str, typer.Argument(metavar="CALL", help="The id of the call, or its first characters.")]
ApprovalId = Annotated[
    str,
    typer.Argument(
        metavar="APPROVAL", help="The id of the request, its first characters, or the id of the run that waits."
    ),
]
By = Annotated[
    str | None, typer.Option("--by", help="Who decides. Default: AMENDS_BY, the settings file, or your login name.")
]
Why = Annotated[str, typer.Option("--why", help="The reason; it is recorded with the decision.")]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required if there is no terminal.")
]


class Verbs(TyperGroup):
    """A group of verbs whose help has the whole line of each verb, however narrow the terminal is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, which an error about them may quote."""
        ctx.meta["amends.words"] = tuple(args)  # shared with the contexts below
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that was named, and its arguments; an error keeps the word that names none."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if hasattr(error, "format_message"):  # of click, or of typer's own copy of it
                error.unknown_command = args[0]  # type: ignore[attr-defined]
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs with their lines, which are wrapped and never cut."""
        listed = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, verb.get_short_help_str(HELP_CHARS_MAX)) for name, verb in listed if verb and not verb.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def group(help: str | None = None) -> typer.Typer:
    """Return an empty group of verbs."""
    # rich_markup_mode=None: help is plain text, and rich (80 ms) is not loaded for it.
    return typer.Typer(cls=Verbs, help=help, rich_markup_mode=None, no_args_is_help=False)


def filter_of(words: list[str] | None, *, lists: str = "") -> str:
    """Return the filter that was given as one argument or as several.

    ``lists``: the command, if it lists without a word of its own for that: others are typed with ``list``.
    """
    if lists and words and words[0] == "list":
        rest = " ".join(("amends", lists, *words[1:]))
        raise UsageError(
            f"'list' is no filter: amends {lists} lists by itself", hint=f"leave it out: {visible(rest, prose=True)}"
        )
    return " ".join(words or ())
