"""For whoever operates the service: its settings, the schema of its ledger, and work on the whole ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from amends.serve.audit import Order
from amends.serve.exchange import Body, Exchange, Reply
from amends.serve.long_work import LongWork, What

Seconds: TypeAlias = Annotated[float, Field(ge=0, le=3_153_600_000)]
Age: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,3})?[smhdw]$")]


class Collect(Order):
    """Whose payloads to remove."""

    older_than: Seconds | Age = Field(description='Since they have ended: seconds, or "30d", "12h", "2w"')
    dry_run: bool = Field(False, description="Remove nothing, and tell what would be removed")
    of_tenant: str | None = Field(None, min_length=1, max_length=200, description="Only of this tenant")
    limit: int | None = Field(None, ge=1, le=1_000_000_000, description="The largest number of runs")


class Erase(Body):
    """Whose data to erase: at least one of ``tags``, ``of_principal``, ``fields`` and ``runs``; several are added up."""

    why: str = Field(
        min_length=1, max_length=2_000, description="The reason, for the record; it must not name the person"
    )
    tags: list[Annotated[str, Field(min_length=1, max_length=2_000)]] = Field(
        default_factory=list, max_length=100, description="Runs with one of these tags"
    )
    of_principal: str = Field("", max_length=2_000, description="Runs for this principal")
    fields: dict[str, str | int | float | bool] = Field(
        default_factory=dict, max_length=100, description="Runs with a call that has this argument: its path and value"
    )
    runs: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(
        default_factory=list, max_length=1_000, description="The runs with these ids"
    )
    dry_run: bool = Field(False, description="Erase nothing, and tell what would be erased")
    partial: bool = Field(False, description="Erase what can be erased, although other runs cannot be")
    residue: bool = Field(False, description="Also erase ended runs that left something standing or in doubt")


class Recover(Order):
    """How many runs to look at."""

    limit: int = Field(100, ge=1, le=10_000)


async def settings(x: Exchange) -> Reply:
    """Return every setting with its origin, and what is suspicious about them; a secret shows only that it is set."""
    shown = {name: {"value": _plain(one.value), "origin": one.origin} for name, one in x.rt.settings.items()}
    return Reply({"settings": shown, "warnings": list(x.rt.warnings)})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    return value if value is None or isinstance(value, str | int | float) else str(value)


async def schema(x: Exchange) -> Reply:
    """Return the schema version of the ledger, and the one that this amends knows."""
    return Reply((await x.rt.schema()).to_dict())


async def gc(x: Exchange) -> Reply:
    """Begin to remove the payloads of runs that ended long ago; identities and events stay."""
    said: Collect = x.body

    async def work(going: LongWork) -> dict[str, Any]:
        await _note(x, "gc", said)
        done = await x.rt.gc(older_than=said.older_than, dry_run=said.dry_run, tenant=said.of_tenant, limit=said.limit)
        going.runs = done.runs
        return done.to_dict()

    return x.service.long_works.begin(x, "gc", work)


async def erase(x: Exchange) -> Reply:
    """Begin to erase everything recorded about one person; the record of the rest stays provable."""
    said: Erase = x.body

    async def work(going: LongWork) -> dict[str, Any]:
        about = said.model_dump(exclude={"of_principal"})
        done = await x.rt.erase(**about, principal=said.of_principal, by=x.who.name)
        going.runs = len(done.runs)
        return done.to_dict()

    return x.service.long_works.begin(x, "erase", work)


async def reencrypt(x: Exchange) -> Reply:
    """Begin to encrypt every payload with the newest key."""

    async def work(_: LongWork) -> dict[str, Any]:
        await _note(x, "reencrypt", x.body)
        return {"rows": await x.rt.reencrypt()}

    return x.service.long_works.begin(x, "reencrypt", work)


async def recover(x: Exchange) -> Reply:
    """Begin to take over abandoned runs, as a worker does; a service that was started without one needs this."""
    said: Recover = x.body

    async def work(going: LongWork) -> dict[str, Any]:
        await _note(x, "recover", said)
        found = await x.rt.recover(limit=said.limit)
        going.runs = len(found)
        return {"runs": [{"id": one.run.id, "tenant": one.run.tenant, "state": one.run.state} for one in found]}

    return x.service.long_works.begin(x, "recover", work)


async def _note(x: Exchange, what: What, said: Order) -> None:
    """Record who ordered the work, before it begins."""
    about = said.model_dump(mode="json", exclude={"why"}, exclude_unset=True)
    await x.rt.note_work(what, by=x.who.name, why=said.why, about=about)
