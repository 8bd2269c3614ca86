"""What a runtime does with its declared tools besides calling them: declare more, check turns, describe them to models.

Each function is a verb of the runtime. None of them uses the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from amends.budgets import costs_in, decimal_of
from amends.engine import model_plans
from amends.host.host import Host, View
from amends.model import Kind
from amends.report import ToolInfo
from amends.tools import spec
from amends.tools.compensation import Body
from amends.tools.declarations import caller_frame, local_names

Style = Literal["openai", "responses", "anthropic", "gemini", "ollama", "mcp"]


def add(host: Host, _view: View, *tools: object, replace: bool = False) -> None:
    """Declare more tools to this runtime, also for runs that are open.

    ``replace``: a tool that has the name of one from before takes its place, for the calls to come.
    """
    host.add(tools, replace=replace)


def set_unserved(host: Host, _view: View, tools: Collection[str]) -> None:
    """Say which tools nobody performs at the moment: recovery leaves runs that need one of them alone until it is back."""
    host.unserved = frozenset(tools)


def reach(host: Host, _view: View, bodies: Mapping[str, Callable[..., object]], /, *, described: bool = True) -> None:
    """Give bodies to tools that were declared but run elsewhere; ignore names that were not declared.

    A body gives what ``tool(fn)`` gives: its schema for models, and validated arguments; one with ``**kwargs`` alone
    takes what it is given. ``described=False``: leave both to the framework that the functions call.
    """
    frame = caller_frame()
    host.reach({name: Body(fn, described, local_names(fn, frame)) for name, fn in bodies.items()})


def check(host: Host, _view: View, plan_: Sequence[object], /) -> model_plans.Check:
    """Return every violation of the ordering law in a plan, and an allowed order if there is one."""
    return model_plans.check_plan(plan_, host.specs)


def schemas(
    host: Host, _view: View, style: Style = "openai", *, repeats: bool | None = None, strict: bool = False
) -> list[dict[str, Any]]:
    """Return the tools as a model gets them; with the argument ``again_because`` where the runtime honours it.

    ``repeats=False`` leaves it out. ``repeats=True`` raises if the runtime does not honour it. ``strict``: schemas that
    the model is made to keep to, as ``client.chat.completions.parse`` and ``.stream`` need them.
    """
    return spec.schemas(host.specs.values(), style, repeats=host.offers(repeats), strict=strict)


def may_repeat(host: Host, _view: View, tool: str) -> bool:
    """Return whether a model may ask for a deliberate repeat of this tool (``again_because``)."""
    return host.may_repeat(host.find(tool))


def kind_of(host: Host, _view: View, tool: str) -> Kind | None:
    """Return the kind of this tool, as declared or as models are told it; None if nobody has declared it."""
    found = host.find(tool)
    return None if found is None else found.kind


def describe_tools(host: Host, _view: View) -> list[ToolInfo]:
    """Return the declared tools by name: kind, key, compensation, probe, approval, cost and schema of each."""
    return [_info(host, one) for _, one in sorted(host.specs.items())]


def _info(host: Host, one: spec.Spec) -> ToolInfo:
    compensation, costs = one.compensate, one.cost
    asks = "depends" if callable(one.needs_approval) else "always" if one.needs_approval else "never"
    return ToolInfo(
        name=one.name,
        kind=one.kind,
        version=one.version,
        description=one.description,
        key=one.key if isinstance(one.key, tuple) else None,
        key_by_function=callable(one.key),
        ignored=one.ignore if isinstance(one.ignore, tuple) else ("every other argument",),
        scope=one.scope,
        idempotent=one.idempotent,
        window=one.window,
        compensation=None if compensation is None else compensation.tool or _named(compensation.fn),
        compensation_idempotent=compensation is not None and compensation.idempotent,
        probe=None if one.probe is None else one.probe.tool or _named(one.probe.fn),
        guarded=one.guard is not None,
        approval=asks,
        rules=tuple(rule.name for rule in host.rules if fnmatchcase(one.name, rule.tool) and not rule.undeclared),
        costs=None
        if costs is None or callable(costs)
        else {unit: decimal_of(amount) for unit, amount, _ in costs_in(costs)},
        cost_by_function=callable(costs),
        attempts=one.retry.attempts if one.retry_declared or one.kind == "retriable" else 1,
        timeout=one.timeout,
        settle=one.settle,
        remote=one.remote,
        has_body=one.fn is not None,
        parameters=one.schema(),
        where=one.where,
    )


def _named(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", "") or type(fn).__name__)
