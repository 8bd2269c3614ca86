"""``amends tokens``: who may ask the service, and for what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from amends import Token
from amends.cli.access import find_token, open_ledger, take, who
from amends.cli.exit_codes import DONE
from amends.cli.options import LIMIT, By, Json, LedgerOf, Limit, Tenant, Url, Why, group
from amends.cli.output import duration, put_json, put_plain, put_table, say, say_how_many
from amends.visible import visible

verbs = group()
tokens = group("Say who may ask the service, and for what: create, list and revoke tokens.")
verbs.add_typer(tokens, name="tokens")


@tokens.command("create")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call it, such as the program that uses it.")],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            help="What it may do: viewer, approver or operator; agent or worker alone. Repeat it for several.",
        ),
    ],
    why: Why,
    principal: Annotated[
        str, typer.Option("--for", metavar="PERSON", help="Under whose name it acts. Default: its own name.")
    ] = "",
    agent: Annotated[str, typer.Option("--agent", help="The agent that it speaks for; with --scope agent.")] = "",
    expires: Annotated[
        str, typer.Option("--expires", help="When it ends: 12h, 90d, or a time like 2026-03-06T19:30Z.")
    ] = "90d",
    by: By = None,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant",
            help="The only tenant it is for. Default: AMENDS_TENANT or the settings file; an operator's: every one.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Create a token and print it, alone on its line. It is shown only now: the ledger keeps a digest of it."""
    with open_ledger(url, tenant, app=app) as rt:
        made = rt.create_token(
            name, scopes=scope, by=who(by, rt), why=why, principal=principal, tenant=tenant, agent=agent,
            expires=_end(expires),
        )  # fmt: skip
    if as_json:
        put_json({**made.to_dict(), "state": _state(made), "token": made.text}, id=made.id)
        return DONE
    put_plain(str(made.text))
    say(
        f"token {made.id} acts for {visible(made.principal)} ({_extent(made)}) until {made.expires_at:%Y-%m-%d %H:%M} UTC"
    )
    say("keep it now: it is not shown again")
    return DONE


@tokens.command("list")
def list_tokens(
    logins: Annotated[bool, typer.Option("--logins", help="Also the logins of people's browsers.")] = False,
    limit: Limit = LIMIT,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """List the tokens that are valid, oldest first, without their secrets."""
    with open_ledger(url, tenant, app=app) as rt:
        found, more = take(rt.tokens(kind="all" if logins else "token"), limit)
        ledger = rt.settings["url"].value
    _put(found, as_json)
    say_how_many(found, more, "token", ledger)
    return DONE


@tokens.command("revoke")
def revoke_token(
    token_id: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN", help="The id of the token, or its first characters; or a token that was found."
        ),
    ],
    why: Why,
    by: By = None,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """End a token, or the login of a browser. Services notice it within their setting token_cache."""
    with open_ledger(url, tenant, app=app) as rt:
        ended = rt.revoke_token(find_token(rt, token_id), by=who(by, rt), why=why)
        cached = rt.settings["token_cache"].value
    _put([ended], as_json)
    say(f"a service that has just seen it may accept it for {duration(cached)} more (token_cache)")
    return DONE


# ---- What was written at the command line


def _end(text: str) -> datetime | str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text  # 90d
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# ---- Output


def _put(found: list[Token], as_json: bool) -> None:
    if as_json:
        for one in found:
            put_json({**one.to_dict(), "state": _state(one)}, id=one.id)
        return
    put_table(("token", "name", "state", "left", "for", "may", "by", "why"), [_row(one) for one in found], state=2)


def _row(one: Token) -> tuple[str, ...]:
    state = _state(one)
    left = duration((one.expires_at - datetime.now(UTC)).total_seconds()) if state == "valid" else ""
    why = visible(one.why, prose=True)
    return (one.id, visible(one.name), state, left, visible(one.principal), _extent(one), visible(one.by), why)


def _state(one: Token) -> str:
    if one.ended_at is not None and one.ended_at < one.expires_at:
        return "revoked"
    return "valid" if one.ended_at is None and one.expires_at > datetime.now(UTC) else "expired"


def _extent(one: Token) -> str:
    """Return what it may do, and for whom, in words."""
    place = "every tenant" if one.tenant is None else f"tenant {visible(one.tenant)}" if one.tenant else ""
    spoken = f"agent {visible(one.agent)}" if one.agent else ", ".join(one.scopes)
    kind = "" if one.kind == "token" else f"by {one.kind}"
    return ", ".join(part for part in (spoken, place, kind) if part)
