"""``amends rules test``: which rule decides about a call, without making the call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from amends import RuleTest
from amends.cli.access import open_without_ledger
from amends.cli.exit_codes import APPROVAL_REFUSED, AWAITING_APPROVAL, DONE
from amends.cli.options import App, Json, Tenant, Url, group
from amends.cli.output import put, put_json, put_table, say
from amends.errors import BadArguments, UsageError

CODES: Final = {"run": DONE, "approve": AWAITING_APPROVAL, "refuse": APPROVAL_REFUSED}

verbs = group()
rules = group("Test the rules that decide which calls run, need approval, or are refused.")
verbs.add_typer(rules, name="rules")


@rules.command("test")
def try_rules(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The name of the tool.")],
    args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGS]...", help="The arguments as a model would send them: a JSON object, or words like cents=5."
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", help="The agent that calls. Default: AMENDS_AGENT or the settings file.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", help="The time, like 2026-03-06T19:30Z. Default: now.")] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit with code 12 if the call would need approval, 19 if it would be refused."),
    ] = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Show which rule decides about a call, and why; nothing is started or recorded."""
    words = args or ()
    given, when = arguments_in(words), _moment(at)
    with open_without_ledger(app, url) as (rt, is_app):
        view = rt.scoped(tenant=tenant) if tenant else rt
        try:
            found: RuleTest = view.test_rules(tool, given, agent=agent, at=when)
        except BadArguments:
            if given == (texts := _texts(words)):
                raise
            found = view.test_rules(tool, texts, agent=agent, at=when)  # order=7, where the parameter is a str
        warnings = rt.warnings
    if as_json:
        put_json({**found.to_dict(), "warnings": list(warnings)}, id=found.tool)
    else:
        _put(found)
        for warning in warnings:
            say(f"warning: {warning}")
    if not found.declared and not is_app:
        say("no program was named, so the declarations of its tools are not known: --app app:rt")
    return CODES[found.decision] if check else DONE


def arguments_in(words: Sequence[str]) -> dict[str, Any]:
    """Return arguments given as one JSON object, or as ``name=value`` words whose values are JSON or else texts."""
    if len(words) == 1 and words[0].lstrip().startswith(("{", "[", '"')):
        return _object(words[0])
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{word!r} is not an argument", hint="write a JSON object, '{\"cents\": 5}', or words like cents=5"
            )
        if name in found:
            raise UsageError(f"{name} is there twice", hint="give each argument once")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _texts(words: Sequence[str]) -> dict[str, Any]:
    """Return arguments with numbers as the texts that were typed; a JSON object stays as it is."""
    args = arguments_in(words)
    written = {name: value for name, _, value in (word.partition("=") for word in words)}
    return {name: written.get(name, value) if isinstance(value, int | float) else value for name, value in args.items()}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the arguments are not JSON: {error}", hint="write '{\"cents\": 5}', or cents=5") from error
    if not isinstance(found, dict):
        raise UsageError("the arguments are not a JSON object", hint="write '{\"cents\": 5}', or cents=5")
    return found


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--at {text!r} is not a time", hint="write 2026-03-06T19:30Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _put(found: RuleTest) -> None:
    by = f" ({found.by})" if found.by else ""
    why = f": {found.why}" if found.why else ""
    match found.decision:
        case "run":
            put(
                f"{found.tool} would run{why}{by}" if found.by else f"{found.tool} would run: no rule asks for approval"
            )
        case "approve":
            people = "approval by a person" if found.needed == 1 else f"approval by {found.needed} people"
            roles = f" of {' or '.join(found.roles)}" if found.roles else ""
            once = ", until this agent has used it once" if found.first_use else ""
            put(f"{found.tool} would need {people}{roles}{once}{why}{by}")
        case "refuse":
            put(f"{found.tool} would be refused{why}{by}")
    if not found.declared:
        put(f"no tool is declared as {found.tool}{f'; did you mean {found.meant}?' if found.meant else ''}")
    whys = [f"{'decides; ' if one.decides else ''}{one.why}".strip("; ") for one in found.rules]
    rows = [
        (str(one.number), one.name, one.decision, one.verdict, why) for one, why in zip(found.rules, whys, strict=True)
    ]
    put_table(("rule", "name", "decision", "verdict", "why"), rows)
