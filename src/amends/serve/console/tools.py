"""Tools: what each is declared as, how it did lately, who performs it, and stopping it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from amends import Call, Halt, ToolInfo, ToolUse
from amends.errors import NotFound
from amends.serve.console.acts import Acted, Asked, needed
from amends.serve.console.html import path
from amends.serve.console.pages import Said
from amends.serve.exchange import Exchange
from amends.visible import visible

NEWEST: Final = 1_000
"""How many calls are read unless the address says more: so many that a large ledger is no slower than a small one."""
NEWEST_MAX: Final = 10_000
CALLS_SHOWN: Final = 60
"""How many of its newest calls the page of a tool shows."""
EVERYTHING: Final = "everything"
CHART_WIDTH, CHART_HEIGHT, COLUMN = 600, 64, 10
"""Of the drawing of durations, in its own units."""


class ToolsQuery(Said):
    """Over how many calls."""

    newest: int = Field(NEWEST, ge=1, le=NEWEST_MAX)


async def tools(x: Exchange) -> dict[str, Any]:
    """Return every tool that is declared, and those that were met without being declared."""
    query: ToolsQuery = x.query
    mine = x.service.own_tenant(x)
    declared = {one.name: one for one in x.rt.describe_tools() if not x.service.desk.is_hidden(one.name, mine)}
    uses = {one.tool: one for one in await x.rt.tool_use(newest=query.newest)}
    served = x.service.desk.served(mine)
    halted = await _halts(x)
    names = sorted({*declared, *uses}, key=lambda name: (-_calls(uses.get(name)), name))
    return {
        "newest": query.newest,
        "more": None if query.newest >= NEWEST_MAX else NEWEST_MAX,
        "items": [_item(name, declared.get(name), uses.get(name), served.get(name), halted) for name in names],
        "undeclared": sum(name not in declared for name in names),
        "halts": [_halt(x, one) for one in halted],
    }


async def tool(x: Exchange) -> dict[str, Any]:
    """Return one tool: its declaration, how it did, and its newest calls."""
    query: ToolsQuery = x.query
    name, mine = x.path["name"], x.service.own_tenant(x)
    hidden = x.service.desk.is_hidden(name, mine)
    declared = next((one for one in x.rt.describe_tools() if one.name == name and not hidden), None)
    use = next(iter(await x.rt.tool_use(name, newest=query.newest)), None)
    if declared is None and use is None:
        raise NotFound(f"no tool {name!r} is declared here, and none of the newest calls is of it")
    found = await x.rt.recent_calls(_filter(name), limit=CALLS_SHOWN, looks=query.newest)
    calls = [call for call in found.items if call.tool == name]
    halted = await _halts(x)
    served = x.service.desk.served(mine).get(name)
    return {
        "newest": query.newest,
        "more": None if query.newest >= NEWEST_MAX else NEWEST_MAX,
        "item": _item(name, declared, use, served, halted),
        "filter": _filter(name),
        "declared": None if declared is None else declared.to_dict(),
        "served": served,
        "calls": [_call(one) for one in calls],
        "chart": chart(calls),
        "halts": [_halt(x, one) for one in halted if one.tool in (None, name)],
    }


def _calls(use: ToolUse | None) -> int:
    return 0 if use is None else use.calls


def _filter(name: str) -> str:
    """Return the filter of the calls of a tool; what cannot be quoted in a filter may be anything."""
    return "tool:" + "*".join(f'"{part}"' if part else "" for part in name.split('"'))


def _item(
    name: str, declared: ToolInfo | None, use: ToolUse | None, served: Mapping[str, Any] | None, halted: list[Halt]
) -> dict[str, Any]:
    return {
        "name": name,
        "declared": declared is not None,
        "kind": declared.kind if declared is not None else use.kinds[0] if use is not None and use.kinds else "",
        "version": "" if declared is None else declared.version,
        "compensation": None if declared is None else declared.compensation,
        "probe": None if declared is None else declared.probe,
        "approval": None if declared is None else declared.approval,
        "rules": [] if declared is None else list(declared.rules),
        "use": None if use is None else use.to_dict() | _rates(use),
        "performed": _performed(declared, served),
        "halted": any(one.tool in (None, name) and one.agent is None for one in halted),
        "halted_itself": any(one.tool == name and one.agent is None for one in halted),
    }


def _rates(use: ToolUse) -> dict[str, float]:
    return {"failure_rate": use.failed / use.calls, "doubt_rate": use.doubted / use.calls}


def _performed(declared: ToolInfo | None, served: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return who performs a tool, in words, and whether somebody does now."""
    if served is not None:
        there = len(served["workers"])
        word = f"{there} worker{'' if there == 1 else 's'}" if there else "no worker is there"
        return {"by": "workers", "word": word, "tone": "ok" if there else "fail"}
    if declared is None:
        return {"by": "", "word": "undeclared", "tone": "wait"}
    if not declared.has_body:
        return {"by": "elsewhere", "word": "elsewhere", "tone": "mute"}
    return {"by": "server", "word": "this server", "tone": "mute"}


def _call(one: Call) -> dict[str, Any]:
    undone = None if one.compensation is None else one.compensation.to_dict()
    return {
        "id": one.id,
        "run": one.run_id,
        "state": one.state,
        "version": one.version,
        "attempt": one.attempt,
        "seconds": one.seconds,
        "error": one.error,
        "why": one.why,
        "at": None if one.requested_at is None else one.requested_at.isoformat(),
        "agent": one.agent,
        "compensation": undone,
    }


def chart(calls: list[Call]) -> dict[str, Any]:
    """Return the durations of these calls, newest last, as columns of a drawing; the tallest is the slowest."""
    shown = calls[::-1]
    most = max((one.seconds or 0.0 for one in shown), default=0.0)
    columns = []
    for place, one in enumerate(shown):
        took = one.seconds
        height = max(2.0, round(CHART_HEIGHT * (took or 0.0) / most, 2)) if most else 2.0
        columns.append(
            {
                "x": CHART_WIDTH - (len(shown) - place) * COLUMN,
                "y": round(CHART_HEIGHT - height, 2),
                "width": COLUMN - 3,
                "height": height,
                "call": one.id,
                "state": one.state,
                "seconds": took,
            }
        )
    return {"width": CHART_WIDTH, "height": CHART_HEIGHT, "most": most, "columns": columns}


# ---- Halts


async def _halts(x: Exchange) -> list[Halt]:
    mine = x.service.own_tenant(x)
    return [one for one in await x.rt.halts() if mine is None or one.tenant in (None, mine)]


def _halt(x: Exchange, one: Halt) -> dict[str, Any]:
    """Return a halt, and whether whoever looks may lift it: one of every tenant takes an operator of every tenant."""
    mine = x.service.own_tenant(x)
    words = " of ".join([*([one.tool] if one.tool else []), *([f"agent {one.agent}"] if one.agent else [])])
    return one.to_dict() | {"words": words or "Everything", "liftable": mine is None or one.tenant == mine}


def _extent(form: Mapping[str, str]) -> tuple[str | None, str | None, str]:
    """Return the tool and the agent that a form names, and both in words."""
    tool, agent = form.get("tool") or None, form.get("agent") or None
    named = [f"the tool {visible(tool, prose=True)}"] if tool else []
    named += [f"the agent {visible(agent, prose=True)}"] if agent else []
    return tool, agent, " of ".join(named) or EVERYTHING


def _of(words: str) -> str:
    return "" if words == EVERYTHING else f" of {words}"


def _page_of(tool: str | None) -> str:
    return path("/tools", tool) if tool else "/tools"


async def ask_halt(_x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say what a halt does."""
    tool, _, words = _extent(form)
    needed(form, "why", label="The reason")
    return Asked(
        f"Stop {words}?",
        f"From now on no call{_of(words)} starts. Compensations still run. The halt stays until somebody lifts it.",
        f"Stop {words}",
        back=_page_of(tool),
    )


async def halt(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Stop a tool, an agent or everything of the tenant."""
    tool, agent, words = _extent(form)
    why = needed(form, "why", label="The reason")
    await x.rt.halt(by=x.who.name, why=why, tenant=x.service.own_tenant(x), agent=agent, tool=tool)
    return Acted(_page_of(tool), f"Stopped: no call{_of(words)} starts until the halt is lifted.", "wait")


async def ask_unhalt(_x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say what lifting a halt does."""
    tool, _, words = _extent(form)
    needed(form, "why", label="The reason")
    return Asked(
        f"Let {words} start again?", "Calls that were refused meanwhile are not made by themselves.", "Lift the halt",
        back=_page_of(tool), kind="primary",
    )  # fmt: skip


async def unhalt(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Lift every halt of exactly this extent."""
    tool, agent, words = _extent(form)
    why = needed(form, "why", label="The reason")
    mine = x.service.own_tenant(x)
    if mine is None and form.get("of") == "tenant":  # one that stands for a single tenant, lifted by who may for all
        mine = form.get("of_tenant", "")
    lifted = await x.rt.unhalt(by=x.who.name, why=why, tenant=mine, agent=agent, tool=tool)
    count = len(lifted)
    return Acted(_page_of(tool), f"Lifted {count} halt{'' if count == 1 else 's'}: calls{_of(words)} start again.")
