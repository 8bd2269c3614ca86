"""Print the public surface: every public name with its signature."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

PUBLIC = (
    "amends",
    "amends.errors",
    "amends.idempotency",
    "amends.links",
    "amends.llm",
    "amends.notify",
    "amends.signing",
    "amends.testing",
    "amends.visible",
    "amends.worker",
)
# Users receive these from amends and never make one.
RECEIVED = ("Run", "AsyncRun", "Attempt", "AsyncAttempt")

_EXPORTED = {*importlib.import_module("amends").__all__, *vars(importlib.import_module("amends.errors"))}


def surface() -> list[str]:
    """Return one line for every public name, method, attribute and parameter list."""
    return [line for name in PUBLIC for line in _of_module(importlib.import_module(name))]


def _of_module(module: ModuleType) -> Iterator[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if not name.startswith("_") and _is_public(module, value)]
    for name in sorted(names):
        value = getattr(module, name)
        if inspect.isclass(value):
            yield from _of_class(f"{module.__name__}.{name}", value)
        elif callable(value):
            yield f"{module.__name__}.{name}{_signature(value)}"
        else:
            yield f"{module.__name__}.{name}: {type(value).__name__}"


def _is_public(module: ModuleType, value: object) -> bool:
    if module.__name__ == "amends.errors":
        return inspect.isclass(value) and issubclass(value, Exception)
    return getattr(value, "__module__", None) == module.__name__


def _of_class(path: str, cls: type) -> Iterator[str]:
    shown = [base for base in cls.__mro__[1:-1] if base.__name__ in _EXPORTED or "amends" not in base.__module__]
    bases = ", ".join(base.__name__ for base in shown if not base.__name__.startswith("_"))
    yield f"{path}({bases})"
    if cls.__name__ not in RECEIVED:
        yield f"{path}.__init__{_signature(cls)}"
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name in sorted({*dir(cls), *fields}):
        if name.startswith("_") or (issubclass(cls, BaseException) and name in dir(BaseException)):
            continue
        getattr(cls, name, None)  # a verb is made when it is first looked up
        value = inspect.getattr_static(cls, name, None)
        if inspect.isfunction(value):
            colour = "async " if inspect.iscoroutinefunction(value) else ""
            yield f"{colour}{path}.{name}{_signature(value)}"
        elif isinstance(value, staticmethod | classmethod):
            yield f"{path}.{name}{_signature(value.__func__)}"
        else:
            yield f"{path}.{name}: {'property' if isinstance(value, property) else 'attribute'}"


def _signature(value: object) -> str:
    try:
        found = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_default(parameter))
        for parameter in found.parameters.values()
    ]
    return str(found.replace(parameters=shown, return_annotation=inspect.Signature.empty))


def _default(parameter: inspect.Parameter) -> object:
    """Return the default as it is written, without the address of an object."""
    if parameter.default is inspect.Parameter.empty or isinstance(
        parameter.default, str | int | float | bool | tuple | None
    ):
        return parameter.default
    return _Shown(type(parameter.default).__name__)


class _Shown:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


if __name__ == "__main__":
    print("\n".join(surface()))
