"""Tokens: who may ask the service, and by which scopes; the text of a new one is shown once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from amends.errors import Forbidden, NotFound
from amends.serve.access import SCOPES
from amends.serve.console import pages
from amends.serve.console.acts import Acted, Asked, needed
from amends.serve.exchange import Exchange
from amends.serve.problems import Invalid
from amends.visible import visible

EXPIRES: Final = {"1d": "1 day", "7d": "7 days", "30d": "30 days", "90d": "90 days", "365d": "1 year"}


async def tokens(x: Exchange) -> dict[str, Any]:
    """Return the tokens that are valid now, without their texts."""
    mine = x.service.own_tenant(x)
    found = [one for one in await x.rt.tokens(kind="all") if mine is None or one.tenant == mine]
    items = [one.to_dict() | {"is_own": one.id == x.who.token} for one in reversed(found)]
    made = x.body.get("made") if isinstance(x.body, dict) else None
    return {
        "items": [one for one in items if one["kind"] == "token"],
        "logins": [one for one in items if one["kind"] != "token"],
        "scopes": list(SCOPES),
        "expires": EXPIRES,
        "made": made,
    }


async def create(x: Exchange, form: Mapping[str, str]) -> Response:
    """Create a token, and show its text on the very page that answers: it is kept nowhere."""
    name, why = needed(form, "name", label="A name"), needed(form, "why", label="The reason")
    scope, agent = needed(form, "scope", label="A scope"), form.get("agent", "").strip()
    expires = form.get("expires", "90d")
    if expires not in EXPIRES:
        raise Invalid("how long it is valid is one of the list", problems=("form.expires: not one of the list",))
    mine = x.service.own_tenant(x)
    if mine == "" and scope == "operator":
        raise Forbidden("an operator's token without a tenant is for every tenant, and yours is not", why="tenant")
    made = await x.rt.create_token(
        name, scopes=[scope], by=x.who.name, why=why, principal=form.get("principal", "").strip(), tenant=mine,
        agent=agent, expires=expires,
    )  # fmt: skip
    x.body = {"made": made.to_dict() | {"text": made.text}}
    page = next(one for one in x.service.pages if one.name == "tokens" and one.method == "GET")
    return await pages.shown(x, page)


async def ask_revoke(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say what it means to end a token."""
    found = await _found(x, form)
    needed(form, "why", label="The reason")
    return Asked(
        f"Revoke {visible(found.name, prose=True)}?", "Whoever uses it is refused at once, and it cannot be made valid again.",
        "Revoke the token", back="/tokens",
    )  # fmt: skip


async def revoke(x: Exchange, form: Mapping[str, str]) -> Acted:
    """End a token at once."""
    found = await _found(x, form)
    await x.rt.revoke_token(found.id, by=x.who.name, why=needed(form, "why", label="The reason"))
    return Acted("/tokens", f"Revoked {visible(found.name, prose=True)}.")


async def _found(x: Exchange, form: Mapping[str, str]) -> Any:
    mine, id = x.service.own_tenant(x), needed(form, "id", label="The token")
    for one in await x.rt.tokens(kind="all"):
        if one.id == id and (mine is None or one.tenant == mine):
            return one
    raise NotFound("there is no such token in this ledger, or it has ended")
