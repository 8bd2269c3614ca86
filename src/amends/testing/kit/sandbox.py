"""The program and the sandbox that the kit is given: tools, ``snapshot``, ``reset`` and ``examples``."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from amends.errors import BadArguments, UsageError, docs_page, type_name
from amends.places import HINT, line_of, load_module
from amends.runtime import AsyncRuntime, Runtime
from amends.testing.simulate import _frozen
from amends.tools.spec import Declaration, Spec, is_elsewhere
from amends.visible import visible

EXAMPLES_MAX: Final = 20
"""Examples of one tool; each is checked whole."""
SNAPSHOT_HINT: Final = (
    "write `def snapshot(): ...`, which returns everything that your tools can change, as plain data; "
    f"an example is in {docs_page('how-to/test-your-tools.md')}"
)


class SandboxFailed(Exception):
    """``snapshot`` or ``reset`` raised an error."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What the user gives besides the tools."""

    place: str
    snapshot: Callable[[], object]
    reset: Callable[[], object] | None
    examples: Mapping[str, Any]

    def look(self) -> object:
        """Return what ``snapshot`` returns."""
        return _called("snapshot", self.snapshot)

    def seen(self) -> str:
        """Return what ``snapshot`` returns, as text that can be compared."""
        return str(_frozen(self.look()))

    def fresh(self) -> None:
        """Reset the sandbox, if it can be."""
        if self.reset is not None:
            _called("reset", self.reset)


@dataclass(frozen=True, slots=True)
class Program:
    """The tools of a runtime, ready to be called in runs of the kit, and the sandbox that they work on."""

    specs: Mapping[str, Spec]
    sandbox: Sandbox

    @property
    def tools(self) -> list[Declaration]:
        """The tools as declared."""
        return [spec.declaration for spec in self.specs.values()]

    def examples(self, tool: str) -> list[dict[str, Any]] | None:
        """Return the arguments of each example; None if the sandbox leaves the tool out.

        Raise ``UsageError`` if there is none, or if one does not fit the tool.
        """
        spec, place = self.specs[tool], self.sandbox.place
        if tool not in self.sandbox.examples:
            if not _required(spec):
                return [{}]
            raise UsageError(
                f"{place} has no example of {tool}",
                hint=f"add arguments that work in your sandbox: examples = {{{tool!r}: {_template(spec)}}}; "
                f"or leave the tool out: {{{tool!r}: None}}",
            )
        given = self.sandbox.examples[tool]
        if given is None:
            return None
        listed = [given] if isinstance(given, Mapping) else list(given) if isinstance(given, list | tuple) else []
        if not listed or len(listed) > EXAMPLES_MAX or not all(isinstance(one, Mapping) for one in listed):
            raise UsageError(
                f"examples[{tool!r}] of {place} is {type(given).__name__}, and not arguments by name",
                hint=f"write a dict, or a list of 1 to {EXAMPLES_MAX} dicts: examples = {{{tool!r}: {_template(spec)}}}",
            )
        for one in listed:
            try:
                spec.bind((), dict(one))
            except BadArguments as error:
                raise UsageError(
                    f"an example of {tool} in {place} does not fit: {error}",
                    hint=f"it takes {', '.join(_names(spec))}",
                ) from error
        return [dict(one) for one in listed]


def load_program(app: str, sandbox: str | None, folder: Path) -> Program:
    """Import the sandbox, then the runtime; raise ``UsageError`` for whatever is missing or wrong.

    The sandbox comes first, so that it can point the tools at itself before the program reads its environment.
    """
    origin, colon, name = app.rpartition(":")
    if not colon or not origin or not name:
        raise UsageError(f"{app!r} does not name a runtime", hint=HINT)
    found_sandbox = _sandbox(sandbox or origin, folder, given=sandbox is not None)
    rt = _named(load_module(origin, folder=folder, reuse=True), name, origin)
    if not isinstance(rt, Runtime | AsyncRuntime):
        raise UsageError(f"{app} is a {type(rt).__name__}, not a Runtime or AsyncRuntime", hint=HINT)
    specs = rt._host.specs
    if not specs:
        raise UsageError(f"{app} has no tools", hint="give them to the runtime: Runtime(tools=[...])")
    unknown = sorted(set(found_sandbox.examples) - set(specs))
    if unknown:
        raise UsageError(
            f"examples of {found_sandbox.place} has {', '.join(map(visible, map(str, unknown)))}, and {app} no such tool",
            hint=f"its tools are {', '.join(sorted(specs))}",
        )
    for spec in specs.values():
        _make_callable_alone(spec)
    return Program(specs, found_sandbox)


def why_not(spec: Spec) -> str:
    """Return why the kit cannot check this tool; empty if it can."""
    if spec.kind == "agent":
        return "it is an agent: check the tools that it calls"
    if is_elsewhere(spec.declaration):
        return "its body is in another program"
    return ""


def _make_callable_alone(spec: Spec) -> None:
    """Let the tool be called without people and without other calls: this process only checks tools, and then ends."""
    for declared in (spec.declaration, spec.declaration.grounded):
        if declared is not None:
            declared.needs_approval, declared.after, declared.cost = False, (), None


def _sandbox(place: str, folder: Path, *, given: bool) -> Sandbox:
    origin, colon, name = place.rpartition(":")
    is_drive = len(origin) == 1  # C:\sandbox.py
    if colon and not is_drive:
        found: Any = _named(load_module(origin, folder=folder, reuse=True), name, origin)
    else:
        found = load_module(place, folder=folder, reuse=True)
    snapshot, reset = getattr(found, "snapshot", None), getattr(found, "reset", None)
    examples = getattr(found, "examples", {})
    if snapshot is None:
        raise UsageError(
            f"{place} has no function snapshot: the kit cannot see what your tools change",
            hint=SNAPSHOT_HINT + ("" if given else "; it may be in a file of its own: --sandbox sandbox.py"),
        )
    for what, fn in (("snapshot", snapshot), ("reset", reset)):
        if fn is not None and not callable(fn):
            raise UsageError(
                f"{what} of {place} is a {type(fn).__name__}, not a function without arguments", hint=SNAPSHOT_HINT
            )
    if not isinstance(examples, Mapping):
        raise UsageError(
            f"examples of {place} is a {type(examples).__name__}, not a dict",
            hint="write the arguments by the name of the tool: examples = {'charge': {'order': '1', 'cents': 5}}",
        )
    return Sandbox(place, snapshot, reset, examples)


def _named(found: Any, name: str, origin: str) -> Any:
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{origin} has no {name!r}", hint=HINT)
        found = getattr(found, part)
    return found


def _called(what: str, fn: Callable[[], object]) -> object:
    try:
        value = fn()
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
    except Exception as error:
        raise SandboxFailed(f"{what}() raised {type_name(error)}: {error}{line_of(error)}") from error


async def _awaited(value: Any) -> object:
    return await value


def _parameters(spec: Spec) -> list[inspect.Parameter]:
    if spec.fn is None:
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one for one in inspect.signature(spec.fn).parameters.values() if one.kind not in variable]


def _names(spec: Spec) -> list[str]:
    return [one.name for one in _parameters(spec)] or ["no arguments"]


def _required(spec: Spec) -> list[str]:
    return [one.name for one in _parameters(spec) if one.default is inspect.Parameter.empty]


def _template(spec: Spec) -> str:
    return "{" + ", ".join(f"{name!r}: ..." for name in _required(spec)) + "}"
