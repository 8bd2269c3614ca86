"""Recorded failures as the errors that they were, where their types are at hand and can be made of a message."""

from __future__ import annotations

import re
import sys
from ast import literal_eval
from collections.abc import Callable
from typing import Any, Final

from amends.engine.session import error_parts
from amends.error import Error
from amends.errors import ToolFailed
from amends.phrases import note_on, words_of
from amends.rows import CallRow

GROUP_MAX: Final = 10_000
"""How many errors a group is made again with."""
_GROUP: Final = re.compile(r"(.*) \((\d+) sub-exceptions?\)", re.DOTALL)
NOTE = "amends: made from its record by a replay; only its type and its message are recorded"


def error_of(row: CallRow, known: ToolFailed) -> Exception:
    """The error that a call ended with; ``known``: what to say where it cannot be made again."""
    name, message = error_parts(row.error)
    if name == "amends.errors.ToolFailed":  # of a call that its body had asked for
        inner, _, said = message.partition(": ")
        return ToolFailed(said or message, call=known.call, type_name=inner if said else "", run_id=known.run_id)
    found = _class_named(name)
    made = None if found is None else _made(found, message, known)
    if made is None:
        return known
    note_on(made, NOTE)
    return made


def _class_named(name: str) -> type[Exception] | None:
    """The class, if its module is loaded: a record never makes this process import something."""
    module, _, qualname = name.rpartition(".") if "." in name else ("builtins", "", name)
    parts = [qualname]
    while module and module not in sys.modules:  # an inner class: part of the path is a class and no module
        module, _, outer = module.rpartition(".")
        parts.insert(0, outer)
    found: Any = sys.modules.get(module)
    for part in parts:
        found = getattr(found, part, None)
    is_error = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, Error)
    return found if is_error else None


def _made(cls: type[Exception], message: str, known: ToolFailed) -> Exception | None:
    makes: tuple[Callable[[], Exception], ...] = (
        lambda: cls(message) if message else cls(),
        lambda: cls(literal_eval(message)),  # KeyError says what it was given as Python would write it
        lambda: _bare(cls, message),
        lambda: _group(cls, message, known),
    )
    for make in makes:
        try:
            made = make()
            if words_of(made) == message:
                return made
        except Exception:
            continue
    return None


def _bare(cls: type[Exception], message: str) -> Exception:
    """Without its own constructor, which wants more than a message: it is caught as what it is, and says what it said."""
    made = cls.__new__(cls)
    made.args = (message,)
    return made


def _group(cls: type[Exception], message: str, known: ToolFailed) -> Exception:
    """A group of as many errors as it had. Which they were is not recorded: each is the failure of the call."""
    found = _GROUP.fullmatch(message)
    if found is None or not issubclass(cls, ExceptionGroup):
        raise TypeError("no group of errors")
    count = int(found.group(2))
    if count > GROUP_MAX:
        raise ValueError("too many errors in one group")
    return cls(found.group(1), [known] * count)
