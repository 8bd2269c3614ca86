"""The emergency stop: a person halts the ledger, or a tenant, an agent or a tool, and lifts that again.

Each public function is a verb of the runtime (see ``amends.host.verbs``).
"""

from __future__ import annotations

from amends.engine.halts import halt_of
from amends.errors import UsageError, some
from amends.host.host import Host, View
from amends.ledger.operations import Halt as HaltLedger
from amends.ledger.operations import ListHalts, Unhalt
from amends.ledger.rows import DirectiveRow
from amends.model import Halt
from amends.people.runs import check_reason


async def halt(
    host: Host,
    view: View,
    *,
    by: str,
    why: str,
    tenant: str | None = None,
    agent: str | None = None,
    tool: str | None = None,
) -> Halt:
    """Halt: from this transaction on nothing starts, in the whole ledger or for this tenant, agent and tool.

    Whoever asks for a call gets ``Halted``. What must be taken back still is. It stands until ``unhalt``.
    """
    check_reason(by, why)
    place = _extent(view, tenant, agent, tool)
    return halt_of(await HaltLedger(host.new_id("hlt"), *place, by, why))


async def unhalt(
    host: Host,
    view: View,
    *,
    by: str,
    why: str,
    tenant: str | None = None,
    agent: str | None = None,
    tool: str | None = None,
) -> list[Halt]:
    """Lift every halt of exactly this extent, and return them; other halts stay in force."""
    check_reason(by, why)
    place = _extent(view, tenant, agent, tool)
    lifted = await Unhalt(*place, by, why, host.new_id("nonce"))
    if lifted:
        return [halt_of(row) for row in lifted]
    whose = view.only(tenant)
    standing = [halt_of(row).extent for row in await ListHalts() if _is_seen(whose, row)]
    raise UsageError(
        "there is no such halt" + (f"; halted now: {'; '.join(some(standing))}" if standing else "; nothing is halted"),
        hint="name the same tenant, agent and tool as the halt did; rt.halts() lists those that stand",
    )


async def halts(_host: Host, view: View) -> list[Halt]:
    """Return the halts in force, oldest first."""
    return [halt_of(row) for row in await ListHalts() if _is_seen(view.only(None), row)]


def _is_seen(tenant: str | None, row: DirectiveRow) -> bool:
    return bool(row.wide) or tenant is None or row.tenant == tenant


def _extent(view: View, tenant: str | None, agent: str | None, tool: str | None) -> tuple[str | None, str, str]:
    for name, value in (("tenant", tenant), ("agent", agent), ("tool", tool)):
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name}= is a name, not {type(value).__name__}")
    for name, value in (("agent", agent), ("tool", tool)):
        if value is not None and not value.strip():
            raise UsageError(f"{name}= is a name; leave it out to halt every {name}")
    whose = view.within(tenant)
    return whose if tenant is None or whose else tenant, agent or "", tool or ""
