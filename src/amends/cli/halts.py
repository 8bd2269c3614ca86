"""``amends halt``, ``amends unhalt`` and ``amends halts``: the emergency stop."""

from __future__ import annotations

from typing import Annotated

import typer

from amends import Halt
from amends.cli.access import filter_text, open_ledger, who
from amends.cli.exit_codes import DONE
from amends.cli.options import By, Json, LedgerOf, Tenant, Url, Why, group
from amends.cli.output import age, put_json, put_table, say, say_none
from amends.visible import visible

AgentOption = Annotated[str | None, typer.Option("--agent", help="Only calls of this agent. Default: of every agent.")]
ToolOption = Annotated[str | None, typer.Option("--tool", help="Only calls of this tool. Default: of every tool.")]
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", help="Only this tenant. Default: AMENDS_TENANT or the settings file, else every tenant."),
]

verbs = group()


@verbs.command()
def halt(
    why: Why,
    by: By = None,
    tenant: TenantOption = None,
    agent: AgentOption = None,
    tool: ToolOption = None,
    app: LedgerOf = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Stop: nothing starts any more, in the ledger or for one tenant, agent or tool. Compensations go on."""
    with open_ledger(url, tenant, app=app, tells_halts=False) as rt:
        _put([rt.halt(by=who(by, rt), why=why, tenant=tenant, agent=agent, tool=tool)], as_json)
        # After the halt is made and told: in a large ledger it may take a while to look.
        known = () if tool is None else (one for one in rt.calls(f"tool:{filter_text(tool)}") if one.tool == tool)
        if tool is not None and next(iter(known), None) is None:
            say(f"no call of {visible(tool)} is recorded yet: is that its name?")
    say("what had started before may still be running: amends runs list")
    return DONE


@verbs.command()
def unhalt(
    why: Why,
    by: By = None,
    tenant: TenantOption = None,
    agent: AgentOption = None,
    tool: ToolOption = None,
    app: LedgerOf = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Lift the halts of exactly this tenant, agent and tool; without any of them, those of the whole ledger."""
    with open_ledger(url, tenant, app=app, tells_halts=False) as rt:
        lifted = rt.unhalt(by=who(by, rt), why=why, tenant=tenant, agent=agent, tool=tool)
        left = rt.halts()
    _put(lifted, as_json)
    for one in left:
        say(f"still halted: {one.extent}")
    return DONE


@verbs.command()
def halts(app: LedgerOf = None, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> int:
    """List the halts in force."""
    with open_ledger(url, tenant, app=app, tells_halts=False) as rt:
        found, ledger = rt.halts(), rt.settings["url"].value
    _put(found, as_json)
    if not found:
        say_none("halt", ledger, filter="")
    return DONE


def _put(found: list[Halt], as_json: bool) -> None:
    if as_json:
        for one in found:
            put_json(one.to_dict(), id=one.id)
        return
    rows = [
        (one.extent, "halted" if one.lifted_at is None else "lifted", visible(one.by), age(one.at), _why(one))
        for one in found
    ]
    put_table(("halt of", "state", "by", "since", "why"), rows)


def _why(one: Halt) -> str:
    return visible(one.why, prose=True)
