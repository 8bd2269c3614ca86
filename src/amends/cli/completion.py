"""Completion: shells ask ``amends complete`` what the word at the cursor could become."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Any, Final

from amends.cli.options import DONE
from amends.cli.show import put, put_plain
from amends.errors import UsageError
from amends.visible import visible

IDS_MAX: Final = 50
"""So many of the newest ids are offered."""
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
ASKED: Final = {"RUN": "run", "[RUN]": "run", "[RUN]...": "run", "CALL": "call", "APPROVAL": "approval"}
"""What an argument's place is for, where it is an id."""


def put_script(shell: str) -> int:
    """See ``amends completion``."""
    if shell not in SCRIPTS:
        raise UsageError(f"there is no completion for {visible(shell)}", hint=f"say one of {', '.join(SCRIPTS)}")
    put_plain(SCRIPTS[shell].rstrip())
    return DONE


def put_words(words: list[str]) -> int:
    """What the last word could become; nothing where that is not known."""
    *before, last = words or [""]
    for found in candidates(before, last):
        put(found)
    return DONE


def candidates(before: list[str], last: str) -> list[str]:
    """Verbs, options, choices and ids that begin with ``last``, after the words ``before`` it."""
    from typer.main import get_command

    from amends.cli.app import app

    here: Any = get_command(app)
    given: list[str] = []
    is_value = False
    for word in before:
        below = getattr(here, "commands", {})
        if is_value:
            is_value = False
        elif word.startswith("-"):
            is_value = any(word in one.opts and not one.is_flag for one in here.params if hasattr(one, "is_flag"))
        elif word in below and not given:
            here = below[word]
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
    return _ids(ASKED[metavar], last) if metavar in ASKED else []


def _ids(what: str, last: str) -> list[str]:
    """The newest ids of the ledger that is set here; a shell is told of no error."""
    from amends import Runtime

    with suppress(Exception), Runtime(create=False) as rt:
        found: Any = {"run": rt.runs, "call": rt.calls}.get(what) or getattr(rt, f"{what}s")
        ids = dict.fromkeys(one.id for one in islice(found(), IDS_MAX))
        # A shell shows what it is given, and may run it: only ids that are plain words are offered.
        return [one for one in ids if one.startswith(last) and visible(one) == one]
    return []
