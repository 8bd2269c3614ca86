"""Import a module when it is first used: a program that never asks for an audit does not load one.

Type checkers and readers see an ordinary import::

    if TYPE_CHECKING:
        import asyncio

        from amends.audit import verify as audit_verbs
    else:
        import_on_use(globals(), asyncio="asyncio", audit_verbs="amends.audit.verify")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def import_on_use(names: dict[str, Any], /, **modules: str) -> None:
    """Give each of these names to the module of this path; import it when an attribute of the name is first read.

    ``names``: the ``globals()`` of the module that uses them. The first use puts the imported module there, so that
    every later use costs what it costs after an ordinary import.
    """
    for name, path in modules.items():
        names[name] = _OnUse(names, name, path)


class _OnUse:
    """Stands for a module until it is used."""

    __slots__ = ("_name", "_names", "_path")

    def __init__(self, names: dict[str, Any], name: str, path: str) -> None:
        self._names, self._name, self._path = names, name, path

    def __getattr__(self, attribute: str) -> Any:
        module = import_module(self._path)
        if self._names.get(self._name) is self:
            self._names[self._name] = module
        return getattr(module, attribute)

    def __repr__(self) -> str:
        return f"<module {self._path!r}, imported on first use>"
