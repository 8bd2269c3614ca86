"""What a runtime does with its declared tools besides calling them: declare more, check turns, describe them to models.

Each function is a verb of the runtime. None of them uses the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from amends.engine import model_plans
from amends.host.host import Host, View
from amends.model import Kind
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
