"""``amends rules test``: what the rules would make of a call, rule by rule, without making it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from amends import RuleTest, Runtime
from amends.cli.access import Blocking, app_setting, load_runtime
from amends.cli.options import APPROVAL_REFUSED, AWAITING_APPROVAL, DONE
from amends.cli.show import put, put_json, put_table, say
from amends.errors import BadArguments, UsageError

CODES: Final = {"run": DONE, "approve": AWAITING_APPROVAL, "refuse": APPROVAL_REFUSED}


def test_rules(
    tool: str,
    words: Sequence[str],
    *,
    agent: str | None,
    at: str | None,
    check: bool,
    app: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends rules test``."""
    args = arguments_in(words)
    when = _moment(at)
    with _runtime(app) as (rt, is_app):
        view = rt.scoped(tenant=tenant) if tenant else rt
        try:
            found: RuleTest = view.test_rules(tool, args, agent=agent, at=when)
        except BadArguments:
            if args == (texts := _texts(words)):
                raise
            found = view.test_rules(tool, texts, agent=agent, at=when)  # order=7, where an order is a text
        warnings = rt.warnings
    if as_json:
        put_json({**found.to_dict(), "warnings": list(warnings)})
    else:
        _put(found)
        for warning in warnings:
            say(f"warning: {warning}")
    if not found.declared and not is_app:
        say("no program was named, so what its tools say of themselves is not known: --app app:rt")
    return CODES[found.decision] if check else DONE


def arguments_in(words: Sequence[str]) -> dict[str, Any]:
    """Arguments as one JSON object, or as ``name=value`` words whose values are JSON, or else texts."""
    if len(words) == 1 and words[0].lstrip().startswith(("{", "[", '"')):
        return _object(words[0])
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{word!r} is no argument", hint="write a JSON object, '{\"cents\": 5}', or words like cents=5"
            )
        if name in found:
            raise UsageError(f"{name} is there twice", hint="say each argument once")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _texts(words: Sequence[str]) -> dict[str, Any]:
    """``name=value`` words as they were written; of a JSON object, what it says."""
    args = arguments_in(words)
    written = {name: value for name, _, value in (word.partition("=") for word in words)}
    return {name: written.get(name, value) if isinstance(value, int | float) else value for name, value in args.items()}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the arguments are no JSON: {error}", hint="write '{\"cents\": 5}', or cents=5") from error
    if not isinstance(found, dict):
        raise UsageError("the arguments are no JSON object", hint="write '{\"cents\": 5}', or cents=5")
    return found


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--at {text!r} is no time", hint="write 2026-03-06T19:30Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@contextmanager
def _runtime(app: str | None) -> Iterator[tuple[Any, bool]]:
    """The program's runtime, or one with the rules of the settings alone. Its ledger is not opened."""
    place, folder = (app, None) if app else app_setting()
    rt: Any = Runtime("memory:") if place is None else load_runtime(place, folder=folder)
    shown = Blocking(rt) if inspect.iscoroutinefunction(rt.close) else rt
    try:
        yield shown, place is not None
    finally:
        shown.close()


def _put(found: RuleTest) -> None:
    by = f" ({found.by})" if found.by else ""
    why = f": {found.why}" if found.why else ""
    match found.decision:
        case "run":
            put(
                f"{found.tool} would run{why}{by}" if found.by else f"{found.tool} would run: nothing asks for a person"
            )
        case "approve":
            people = "a person's yes" if found.needed == 1 else f"a yes of {found.needed} people"
            roles = f" of {' or '.join(found.roles)}" if found.roles else ""
            once = ", until this agent has used it once" if found.first_use else ""
            put(f"{found.tool} would wait for {people}{roles}{once}{why}{by}")
        case "refuse":
            put(f"{found.tool} would be refused{why}{by}")
    if not found.declared:
        put(f"nobody has declared {found.tool}{f'; did you mean {found.meant}?' if found.meant else ''}")
    rows = [
        (
            str(one.number),
            one.name,
            one.decision,
            one.verdict,
            f"{'decides; ' if one.decides else ''}{one.why}".strip("; "),
        )
        for one in found.rules
    ]
    put_table(("rule", "name", "decision", "verdict", "why"), rows)
