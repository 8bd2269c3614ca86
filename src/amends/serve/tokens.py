"""For operators: the tokens of the service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from amends import Token
from amends.errors import Forbidden, NotFound
from amends.serve.exchange import Body, Exchange, Query, Reply, part_of

WHY = Field(min_length=1, max_length=2_000, description="The reason, for the record")


class MakeToken(Body):
    """A new token."""

    name: str = Field(min_length=1, max_length=200, description="What people call it")
    scopes: list[Literal["viewer", "agent", "worker", "approver", "operator"]] = Field(min_length=1, max_length=5)
    why: str = WHY
    acts_for: str = Field("", max_length=200, description="Under which name its decisions and runs are recorded")
    of_tenant: str | None = Field(None, max_length=200, description="Only by an operator of every tenant")
    agent: str = Field("", max_length=200, description="For the scope agent: the agent that it speaks for")
    expires: float = Field(90 * 86_400, gt=0, le=3_153_600_000, description="Seconds from now")


class RevokeTokenQuery(Query):
    """Why a token ends."""

    why: str = WHY


async def tokens(x: Exchange) -> Reply:
    """List the tokens that are valid now, without their texts."""
    return part_of(await _mine(x), x.query)


async def create_token(x: Exchange) -> Reply:
    """Create a token. Only this answer has its ``text``: the ledger keeps a digest."""
    said: MakeToken = x.body
    mine = x.service.own_tenant(x)
    if mine is not None and said.of_tenant not in (None, mine):
        raise Forbidden("this token belongs to one tenant, and cannot create tokens of another", why="tenant")
    if mine == "" and "operator" in said.scopes:
        raise Forbidden("an operator's token without a tenant is for every tenant, and yours is not", why="tenant")
    made = await x.rt.create_token(
        said.name, scopes=said.scopes, by=x.who.name, why=said.why, principal=said.acts_for,
        tenant=said.of_tenant if mine is None else mine, agent=said.agent, expires=said.expires,
    )  # fmt: skip
    return Reply(made.to_dict() | {"text": made.text}, 201)


async def revoke_token(x: Exchange) -> Reply:
    """End a token at once."""
    if x.path["id"] not in {one.id for one in await _mine(x, kind="all")}:
        raise NotFound("there is no such token in this ledger", hint="GET /v1/tokens lists them")
    return Reply((await x.rt.revoke_token(x.path["id"], by=x.who.name, why=x.query.why)).to_dict())


async def _mine(x: Exchange, kind: Literal["token", "all"] = "token") -> list[Token]:
    mine = x.service.own_tenant(x)
    return [one for one in await x.rt.tokens(kind=kind) if mine is None or one.tenant == mine]
