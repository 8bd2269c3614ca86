"""``amends permits``: approvals that a person gives before the call is asked for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from amends import Permit, Runtime
from amends.cli.access import filter_text, find_permit, open_ledger, open_runtime, take, who
from amends.cli.exit_codes import DONE
from amends.cli.options import LIMIT, App, By, Json, LedgerOf, Limit, Tenant, Url, Why, group
from amends.cli.output import args_short, duration, put_json, put_table, say, say_how_many
from amends.errors import UsageError
from amends.visible import visible

verbs = group()
permits = group("Approve calls before they are asked for: list, give and revoke permits.")
verbs.add_typer(permits, name="permits")


@permits.command("list")
def list_permits(
    tool: Annotated[str, typer.Option("--tool", help="Only permits for this tool.")] = "",
    limit: Limit = LIMIT,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """List the permits that may still be used, oldest first."""
    with open_ledger(url, tenant, app=app) as rt:
        found, more = take(rt.permits(tool), limit)
        ledger = rt.settings["url"].value
    _put(found, as_json)
    say_how_many(found, more, "permit", ledger, filter=tool)
    return DONE


@permits.command("give")
def give_permit(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The name of the tool.")],
    args: Annotated[
        str | None,
        typer.Option(
            "--args", metavar="JSON", help="Exactly these arguments: a JSON object. Needs your tools (--app)."
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            metavar="JSON",
            help='Whatever a rule matches, as in amends.toml: \'{"args": {"cents": "<=5000"}}\'.',
        ),
    ] = None,
    uses: Annotated[int, typer.Option("--uses", help="How many calls it covers.")] = 1,
    expires: Annotated[
        str, typer.Option("--expires", help="When it ends: 90s, 12h, 2d, or a time like 2026-03-06T19:30Z.")
    ] = "1d",
    role: Annotated[
        list[str] | None, typer.Option("--role", help="A role of yours that the rules ask for. Repeat it.")
    ] = None,
    why: Annotated[str, typer.Option("--why", help="The reason; it is recorded with the permit.")] = "",
    by: By = None,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Approve calls of a tool ahead: those with exactly these arguments, or those that a rule matches."""
    if (args is None) == (rule is None):
        raise UsageError(
            "a permit is for exact arguments (--args) or for what a rule matches (--rule): give one of them",
            hint=f'for example: amends permits give {visible(tool)} --rule \'{{"args": {{"cents": "<=5000"}}}}\'',
        )
    exact = None if args is None else _object(args, "--args")
    ruled = None if rule is None else _object(rule, "--rule")
    ends = _end(expires)
    needed = "" if args is None else "a permit for exact arguments"
    with open_runtime(app, url=url, tenant=tenant, needed=needed) as rt:
        given = rt.permit(tool, exact, rule=ruled, by=who(by, rt), why=why, uses=uses, expires=ends, roles=role or ())
        known = _knows(rt, tool)
    _put([given], as_json)
    if not known:
        say(f"no call of {visible(tool)} is recorded, and no tool here has this name: is it right?")
    return DONE


@permits.command("revoke")
def revoke_permit(
    permit_id: Annotated[str, typer.Argument(metavar="PERMIT", help="The id of the permit, or its first characters.")],
    why: Why,
    by: By = None,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """End a permit: it covers no further call. What it has approved stays approved."""
    with open_ledger(url, tenant, app=app) as rt:
        ended = rt.revoke(find_permit(rt, permit_id), by=who(by, rt), why=why)
    _put([ended], as_json)
    return DONE


# ---- What was written at the command line


def _object(text: str, option: str) -> dict[str, Any]:
    """Return a JSON object; raise ``UsageError`` for anything else."""
    hint = 'write --rule \'{"args": {"cents": "<=5"}}\'' if option == "--rule" else f"write {option} '{{\"cents\": 5}}'"
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{option} is not JSON: {error}", hint=hint) from error
    if not isinstance(found, dict):
        raise UsageError(f"{option} is not a JSON object", hint=hint)
    return found


def _end(text: str) -> datetime | str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text  # 12h
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _knows(rt: Runtime, tool: str) -> bool:
    if rt.kind_of(tool) is not None:
        return True
    return any(one.tool == tool for one in rt.calls(f"tool:{filter_text(tool)}"))


# ---- Output


def _put(found: list[Permit], as_json: bool) -> None:
    if as_json:
        for one in found:
            put_json({**one.to_dict(), "state": _state(one)}, id=one.id)
        return
    put_table(("permit", "tool", "state", "uses", "left", "by", "covers", "why"), [_row(one) for one in found], state=2)


def _row(one: Permit) -> tuple[str, ...]:
    left = duration(_left_s(one)) if _state(one) == "standing" else ""
    why = visible(one.why, prose=True) if one.why else ""
    return (visible(one.id), visible(one.tool), _state(one), str(one.uses), left, visible(one.by), _covers(one), why)


def _state(one: Permit) -> str:
    if one.ended_at is None:
        return "standing" if _left_s(one) > 0 else "expired"
    return "revoked" if one.uses else "used"


def _left_s(one: Permit) -> float:
    return (one.expires_at - datetime.now(UTC)).total_seconds()


def _covers(one: Permit) -> str:
    if one.rule is None:
        return f"arguments with digest {(one.digest or '')[:12]}"
    return f"rule {args_short(one.rule)}" if one.rule else "any arguments"
