"""``app:rt``: from words on a command line to a runtime."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from amends import AsyncRuntime, Runtime
from amends.errors import Error, UsageError

HINT = "say MODULE:NAME or FILE.py:NAME, like app:rt for the line `rt = Runtime(...)` in app.py"


def load_runtime(place: str, *, folder: Path | None = None) -> Runtime | AsyncRuntime:
    """The runtime that ``place`` names. Raises ``UsageError`` with what is wrong, never the module's own error.

    ``folder``: from where the name or the path is seen, where that is not the working directory.
    """
    origin, colon, name = place.rpartition(":")
    if not colon or not origin or not name:
        raise UsageError(f"{place!r} does not name a runtime", hint=HINT)
    found: Any = load_module(origin, folder=folder)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{origin} has no {name!r}", hint=_runtimes_in(found) or HINT)
        found = getattr(found, part)
    if not isinstance(found, Runtime | AsyncRuntime):
        what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise UsageError(f"{place} is {what}, not a Runtime or AsyncRuntime", hint=HINT)
    return found


def load_function(place: str) -> Callable[..., Any]:
    """The function that ``place`` names, like ``app:agent``. Raises ``UsageError`` with what is wrong."""
    origin, colon, name = place.rpartition(":")
    hint = "say MODULE:NAME or FILE.py:NAME, like app:agent for the function `def agent(...)` in app.py"
    if not colon or not origin or not name:
        raise UsageError(f"{place!r} does not name a function", hint=hint)
    found: Any = load_module(origin)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{origin} has no {name!r}", hint=hint)
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{place} is a {type(found).__name__}, and cannot be called", hint=hint)
    made: Callable[..., Any] = found
    return made


def load_module(origin: str, *, folder: Path | None = None) -> ModuleType:
    """A module by name, seen from the working directory, or by the path of its file."""
    here = Path.cwd() if folder is None else folder
    is_file = origin.endswith(".py") or "/" in origin or "\\" in origin
    try:
        return _from_file(here / origin) if is_file else _from_name(origin, str(here))
    except Error:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (origin == error.name or origin.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {error.name!r} in {here} or among what is installed", hint=HINT
            ) from error
        raise UsageError(f"{origin} needs the module {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{origin} cannot be imported: {type(error).__name__}: {error}{_line(error)}") from error


def _from_name(name: str, here: str) -> ModuleType:
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (ValueError, TypeError) as error:  # "..", "a..b": no name at all
        raise UsageError(f"{name!r} is no module's name", hint=HINT) from error


def _from_file(path: Path) -> ModuleType:
    path = path.absolute()
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint=HINT)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file", hint=HINT)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # its own imports work as if it had been started there
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _runtimes_in(module: Any) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Runtime | AsyncRuntime)]
    return f"it has: {', '.join(names)}" if names else ""


def _line(error: BaseException) -> str:
    """Where it happened: the innermost line, which a traceback would have ended with."""
    trace = error.__traceback__
    if isinstance(error, SyntaxError) or trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
