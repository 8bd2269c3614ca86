"""What a command line probably meant: shared options before the command, other names of commands and of options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final

from amends.visible import visible

VALUED: Final = ("--url", "--app", "--tenant", "--by")
FLAGS: Final = ("--json",)
"""Options of nearly every command: where they are written does not matter."""
NOT_A_NUMBER: Final = "Input should be a valid integer, unable to parse string as an integer"
MEANT_MAX: Final = 4
CLOSE: Final = 0.7
"""How alike two words must be for one to be a misspelling of the other; of 1."""
COMMANDS: Final = {
    "abort": ("rollback", "runs abandon", "halt"),
    "cancel": ("rollback", "runs abandon", "halt"),
    "check": ("doctor", "test"),
    "compensate": ("rollback",),
    "console": ("serve",),
    "dashboard": ("serve",),
    "delete": ("gc", "erase"),
    "diff": ("compare",),
    "events": ("audit events",),
    "find": ("runs list", "calls list"),
    "follow": ("runs watch",),
    "history": ("runs show", "audit events"),
    "log": ("runs show", "audit events"),
    "logs": ("runs show", "audit events"),
    "ls": ("runs list",),
    "mcp": ("gateway",),
    "pause": ("halt",),
    "pending": ("inbox",),
    "ps": ("runs list",),
    "revert": ("rollback",),
    "search": ("runs list", "calls list"),
    "settings": ("config show",),
    "start": ("serve", "worker"),
    "status": ("runs list", "inbox", "doctor"),
    "stop": ("halt", "rollback", "runs abandon"),
    "tail": ("runs watch",),
    "todo": ("inbox",),
    "ui": ("serve",),
    "undo": ("rollback",),
    "upgrade": ("db migrate",),
    "version": ("--version",),
    "web": ("serve",),
}
"""Commands by the names that other programs have for them."""
OPTIONS: Final = {
    "--actor": "--by",
    "--because": "--why",
    "--comment": "--why",
    "--count": "--limit",
    "--database": "--url",
    "--db": "--url",
    "--dry": "--plan",
    "--dry-run": "--plan",
    "--force": "--yes",
    "--ledger": "--url",
    "--max": "--limit",
    "--message": "--why",
    "--module": "--app",
    "--output": "--json",
    "--plan": "--dry-run",
    "--preview": "--plan",
    "--program": "--app",
    "--reason": "--why",
    "--runtime": "--app",
    "--store": "--url",
    "--user": "--by",
    "--why": "--reason",
    "-V": "--version",
    "-f": "--yes",
    "-m": "--why",
    "-n": "--limit",
    "-o": "--json",
    "-v": "--version",
}
"""Options by the names that other programs have for them."""
FILTERS: Final = ("--agent", "--age", "--run", "--state", "--status", "--tag", "--tool")
"""What a listing takes as a filter, and other programs take as an option."""


def after_the_command(words: Sequence[str]) -> list[str]:
    """Return the words with the shared options that are written before a command, or between two words of it, after it."""
    moved: list[str] = []
    path: list[str] = []
    rest = list(words)
    while rest:
        word, name = rest[0], rest[0].partition("=")[0]
        if name in VALUED and (word != name or len(rest) > 1):
            count = 1 if word != name else 2
            moved, rest = moved + rest[:count], rest[count:]
        elif word in FLAGS:
            moved, rest = [*moved, word], rest[1:]
        elif word.startswith("-"):
            break
        else:
            path.append(rest.pop(0))
            is_settled = not moved and not (rest and rest[0].startswith("-"))
            if is_settled or len(path) > 1 or not _commands_of(path[0]):
                break
    return [*path, *moved, *rest] if path else list(words)


def explained(error: Any) -> str:
    """Return what is wrong with a command line, with the command or the option that was probably meant."""
    context = getattr(error, "ctx", None)
    if context is None:
        return str(error.format_message())
    own = getattr(context.command, "commands", None) or {}
    if (word := getattr(error, "unknown_command", None)) is not None:
        return _with_meant(f"there is no command {word!r} in {context.command_path}", _commands_meant(word, context))
    if type(error).__name__ == "NoSuchOption":
        return _option_explained(str(error.option_name), context)
    if str(error.message).startswith("Missing command") and own:
        return _needs_command(context)
    if type(error).__name__ == "MissingParameter" and getattr(error, "param", None) is not None:
        return f"{_written(error.param)} is missing: {_usage(context)}"
    said = str(error.format_message())
    return said.replace(NOT_A_NUMBER, "it must be a whole number").replace("Input should be", "it must be")


def _usage(context: Any) -> str:
    """Return the command with everything that it needs."""
    needed = [one for one in context.command.params if one.required]
    words = [_written(one) + (" ..." if one.param_type_name == "option" else "") for one in needed]
    return " ".join((context.command_path, *words))


def _written(param: Any) -> str:
    """Return a parameter as it is written: an argument by its name in the help, an option by its own."""
    return str(param.opts[0] if param.param_type_name == "option" else param.metavar or param.human_readable_name)


def _needs_command(context: Any) -> str:
    if context.parent is None:
        return f"{context.command_path} needs a command"  # its help lists them
    names = [name for name, command in context.command.commands.items() if not command.hidden]
    return f"{context.command_path} needs a command: {', '.join(names)}"


def path_of(words: Sequence[str]) -> str:
    """Return the command that these words begin with."""
    path: list[str] = []
    within: dict[str, Any] = {}
    for word in words[:2]:
        if word not in within and (path or not _is_verb(word)):
            break
        within = _commands_of(word) if not path else {}
        path.append(word)
    return " ".join(("amends", *path))


def _with_meant(what: str, meant: Sequence[str]) -> str:
    return f"{what}; did you mean {', '.join(meant)}?" if meant else what


# ---- Commands


def _commands_meant(word: str, context: Any) -> list[str]:
    """Return the commands that a wrong word may stand for: spelled like it here, named so elsewhere, or meaning the same."""
    path, own = context.command_path, context.command.commands
    if word in ("help", "?"):
        return [f"{path} --help"]
    names = [name for name, command in own.items() if not command.hidden]
    if len(names) == 1:
        return [f"{path} {names[0]}"]
    here = [f"{path} {name}" for name in get_close_matches(word, names, cutoff=CLOSE)]
    known = list(_all_commands())
    same = [one for one in known if one.split()[-1] == word]
    found = [*(f"amends {one}" for one in (*COMMANDS.get(word, ()), *same)), *here]
    if not found:
        last = {one.split()[-1]: one for one in reversed(known)}
        found = [f"amends {last[name]}" for name in get_close_matches(word, list(last), cutoff=CLOSE)]
    return list(dict.fromkeys(found))[:MEANT_MAX]


def _all_commands() -> Iterator[str]:
    """Yield every command, those of groups with the name of the group."""
    from amends.cli.app import VERBS

    for verb, (_, summary) in VERBS.items():
        if summary:
            within = _commands_of(verb)
            yield from (f"{verb} {name}" for name, one in within.items() if not one.hidden) if within else (verb,)


def _commands_of(verb: str) -> dict[str, Any]:
    """Return the commands of a group; none if it is no group, or not known."""
    from amends.cli.app import load

    if _is_verb(verb):
        with suppress(ImportError):  # an extra that is not installed
            return dict(getattr(load(verb), "commands", None) or {})
    return {}


def _is_verb(word: str) -> bool:
    from amends.cli.app import OTHER_NAMES, VERBS

    return word in VERBS or word in OTHER_NAMES


# ---- Options


def _option_explained(name: str, context: Any) -> str:
    what = f"{context.command_path} has no option {visible(name, prose=True)}"
    known = _options_of(context.command)
    is_group = bool(getattr(context.command, "commands", None))
    if is_group and name in (*VALUED, *FLAGS):
        return _needs_command(context)  # which takes the option: with a command, it would have been moved there
    taken = {*known, *VALUED, *FLAGS} if is_group else known
    if OPTIONS.get(name) in taken:
        return _with_meant(what, [OPTIONS[name]])
    if is_group and name.startswith("--") and _belongs_to_a_command(name, context):
        return f"{what}: options of a command are written after the command"
    if name in FILTERS and any(getattr(one, "metavar", "") == "[FILTER]..." for one in context.command.params):
        return _with_meant(what, [f"{'state' if name == '--status' else name[2:]}:{_value_after(name, context)}"])
    return _with_meant(what, get_close_matches(name, sorted(known), cutoff=CLOSE))


def _options_of(command: Any) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("-")}


def _belongs_to_a_command(name: str, context: Any) -> bool:
    from amends.cli.app import VERBS, load

    own = context.command.commands
    if context.parent is not None:
        return any(name in _options_of(one) for one in own.values())
    for verb in VERBS:
        with suppress(ImportError):
            found = load(verb)
            if any(name in _options_of(one) for one in (found, *(getattr(found, "commands", None) or {}).values())):
                return True
    return False


def _value_after(name: str, context: Any) -> str:
    words = [*context.meta.get("amends.words", ())]
    after = words[words.index(name) + 1 :] if name in words else []
    return visible(after[0]) if after and not after[0].startswith("-") else "..."
