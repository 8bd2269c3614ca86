"""``amends completion`` and ``amends complete``: shells ask what the word at the cursor could become."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Final

import typer

from amends.cli.exit_codes import DONE
from amends.cli.options import group
from amends.cli.output import put, put_plain
from amends.errors import UsageError
from amends.visible import visible

IDS_MAX: Final = 50
"""How many of the newest ids are offered."""
SCRIPTS: Final = {
    "bash": """\
_amends() {
    local IFS=$'\\n'
    COMPREPLY=($(amends complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    if declare -F __ltrim_colon_completions >/dev/null; then __ltrim_colon_completions "${COMP_WORDS[COMP_CWORD]}"; fi
}
complete -o default -F _amends amends
""",
    "zsh": """\
#compdef amends
_amends() {
    local -a found
    found=("${(@f)$(amends complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "$found" ]] && compadd -- "${found[@]}" || _files
}
compdef _amends amends
""",
    "fish": """\
complete -c amends -f -a '(amends complete -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}
IDS_OF: Final = {
    "RUN": "run",
    "[RUN]": "run",
    "[RUN]...": "run",
    "CALL": "call",
    "APPROVAL": "approval",
    "PERMIT": "permit",
    "TOKEN": "token",
}
"""Which ids an argument with this metavar takes."""

verbs = group()


@verbs.command()
def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")]) -> int:
    """Print the script that completes verbs, options and ids in your shell: eval "$(amends completion bash)"."""
    if shell not in SCRIPTS:
        raise UsageError(f"there is no completion for {visible(shell)}", hint=f"use one of {', '.join(SCRIPTS)}")
    put_plain(SCRIPTS[shell].rstrip())
    return DONE


@verbs.command(hidden=True)
def complete(words: Annotated[list[str] | None, typer.Argument(metavar="WORD...")] = None) -> int:
    """Print what the last word could become, one candidate per line; for the completion scripts."""
    *before, last = words or [""]
    for found in candidates(before, last):
        put(found)
    return DONE


def candidates(before: list[str], last: str) -> list[str]:
    """Return the verbs, options, choices and ids that begin with ``last``, after the words ``before`` it."""
    from typer.main import get_command

    from amends.cli.app import app, load

    top: Any = get_command(app)
    here, given, is_value = top, list[str](), False
    for word in before:
        below = getattr(here, "commands", {})
        if is_value:
            is_value = False
        elif word.startswith("-"):
            is_value = any(word in one.opts and not one.is_flag for one in here.params if hasattr(one, "is_flag"))
        elif word in below and not given:
            here = load(word) if here is top else below[word]
        else:
            given.append(word)
    if last.startswith("-"):
        found = [name for one in here.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]
    elif getattr(here, "commands", {}):
        found = [name for name, one in here.commands.items() if not one.hidden]
    else:
        found = _values(here, given, last)
    return sorted(one for one in found if one.startswith(last))


def _values(verb: Any, given: list[str], last: str) -> list[str]:
    places = [one for one in verb.params if one.param_type_name == "argument"]
    if len(given) >= len(places):
        return []
    metavar = str(places[len(given)].metavar or "")
    if "|" in metavar:
        return metavar.split("|")
    return _ids(IDS_OF[metavar], last) if metavar in IDS_OF else []


def _ids(what: str, last: str) -> list[str]:
    """Return the newest ids of the ledger in the settings; none if there is any error, which a shell could not show."""
    from amends import Runtime

    with suppress(Exception), Runtime(create=False) as rt:
        found: Any = {"run": rt.runs, "call": rt.calls}.get(what) or getattr(rt, f"{what}s")
        ids = dict.fromkeys(one.id for one in islice(found(), IDS_MAX))
        # A shell shows what it is given, and may run it: offer only ids that are plain words.
        return [one for one in ids if one.startswith(last) and visible(one) == one]
    return []
