"""Say in commands what errors and reports say in Python: ``amends runs finish r-7`` for ``rt.finish('r-7', ...)``."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

WHY: Final = " --why ..."
COMMANDS: Final = {
    "accept": "amends calls accept {CALL}" + WHY,
    "abandon": "amends runs abandon {RUN}" + WHY,
    "approval": "amends approvals show {APPROVAL}",
    "approvals": "amends approvals list",
    "approve": "amends approvals approve {APPROVAL}",
    "ask_again": "amends approvals again {APPROVAL}" + WHY,
    "budgets": "amends budgets",
    "call": "amends calls show {CALL}",
    "calls": "amends calls list",
    "checkpoint": "amends audit checkpoint",
    "decide": "amends calls decide {CALL} run|replay|refuse" + WHY,
    "doubts": "amends doubts list",
    "events": "amends audit events --run {RUN}",
    "finish": "amends runs finish {RUN}" + WHY,
    "halts": "amends halts",
    "inbox": "amends inbox",
    "locks": "amends locks",
    "migrate": "amends db migrate",
    "plan_migration": "amends db migrate --plan",
    "permits": "amends permits list",
    "plan_rollback": "amends rollback {RUN} --plan",
    "reconcile_restore": "amends db restored" + WHY,
    "recover": "amends recover APP:RT",
    "reject": "amends approvals reject {APPROVAL} --reason ...",
    "report": "amends runs show {RUN}",
    "resolve": "amends doubts resolve {CALL} {ANSWER}" + WHY,
    "retry": "amends calls retry {CALL}{RESULT}" + WHY,
    "rollback": "amends rollback {RUN}{PLAN}" + WHY,
    "runs": "amends runs list",
    "tokens": "amends tokens list",
    "unhalt": "amends unhalt" + WHY,
    "withdraw": "amends approvals withdraw {APPROVAL}" + WHY,
    "worker": "amends worker APP:RT",
}
"""The command for each verb of a runtime that a hint or a cause may name. Others are words for a program, and stay."""
ANSWERS: Final = ("Happened", "Absent", "Unknown")
_VERB: Final = re.compile(r"(?<![\w.])(?:await )?rt\.(\w+)(\()?")
_TWICE: Final = re.compile(r"(amends [a-z ]+) --why=?\.\.\., or \1 --why \.\.\.")
_ACCEPTED: Final = re.compile(r"\baccept=\[([^\]]*)\]")
_CODE: Final = "correct the code that made this call"
_TOLD_MAX: Final = 100
"""At most so many verbs of one text are replaced; none of ours names more than a few."""


def in_commands(text: str) -> str:
    """Return the text with commands in the place of the verbs of a runtime."""
    made, at = "", 0
    for _ in range(_TOLD_MAX):
        found = _VERB.search(text, at)
        if found is None:
            break
        given = _arguments(text, found.end()) if found[2] else (list[str](), found.end())
        if given is None or found[1] not in COMMANDS:
            made, at = made + text[at : found.end()], found.end()
            continue
        args, end = given
        made, at = made + text[at : found.start()] + _command(found[1], args), end
    # A text that names both the command and the verb says it once.
    said = _TWICE.sub(r"\1 --why ...", made + text[at:]).replace(_CODE, "correct the command")
    return _ACCEPTED.sub(lambda found: " ".join(f"--accept {one.strip(chr(39))}" for one in found[1].split(", ")), said)


def for_gateway(text: str, run_id: str) -> str:
    """Return a cause of a run of the gateway, which no program of the reader can open again: its client can."""
    begin = f"let the client of the gateway call amends_begin with the run {run_id} and then amends_commit"
    return text.replace(f"open run {run_id!r} again", begin)


def worded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a report or an error with commands in its causes, its notes and its hint."""
    return {name: _worded(name, value) for name, value in facts.items()}


def _worded(name: str, value: Any) -> Any:
    if name == "causes" and isinstance(value, list | tuple):
        return [in_commands(one) if isinstance(one, str) else one for one in value]
    if name in ("hint", "note") and isinstance(value, str):
        return in_commands(value)
    if name in ("run", "report", "answers", "happened", "absent", "unknown") and isinstance(value, Mapping):
        return worded(value)
    if name in ("children", "doubts") and isinstance(value, list | tuple):
        return [worded(one) if isinstance(one, Mapping) else one for one in value]
    return value


def _command(verb: str, args: list[str]) -> str:
    first = args[0] if args else ""
    named = _literal(first)
    answers = [one for one in ANSWERS if one in (args[1] if len(args) > 1 else "")] or ANSWERS
    words = {"CALL": "CALL", "RUN": "RUN", "APPROVAL": "APPROVAL"}
    if named is not None:
        words = dict.fromkeys(words, shlex.quote(named))
    return COMMANDS[verb].format(
        **words,
        ANSWER="|".join(map(str.lower, answers)),
        RESULT=" --result ..." if any(arg.startswith("result=") for arg in args) else "",
        PLAN=" --apply HASH" if any(arg.startswith("plan=") for arg in args) else "",
    )


def _literal(text: str) -> str | None:
    """Return the text that a string in quotes says; None for anything else."""
    if not text.startswith(("'", '"')):
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return found if isinstance(found, str) else None


def _arguments(text: str, start: int) -> tuple[list[str], int] | None:
    """Return the arguments from ``start`` on, and where their closing parenthesis ends; None if there is none."""
    depth, quote, begun = 0, "", start
    args: list[str] = []
    at = start
    while at < len(text):
        sign = text[at]
        if quote:
            if sign == "\\":
                at += 1
            elif sign == quote:
                quote = ""
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}" and depth:
            depth -= 1
        elif sign == ")" or (sign == "," and not depth):
            args.append(text[begun:at].strip())
            begun = at + 1
            if sign == ")":
                return [arg for arg in args if arg], at + 1
        at += 1
    return None
