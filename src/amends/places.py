"""Import what a text names: a module, or a file of Python.

The command line and the kit for tests take the parts of your program as ``MODULE:NAME`` or ``FILE.py:NAME``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from amends.errors import Error, UsageError

HINT: Final = "write MODULE:NAME or FILE.py:NAME, for example app:rt for the line `rt = Runtime(...)` in app.py"


def load_module(origin: str, *, folder: Path | None = None, reuse: bool = False) -> ModuleType:
    """Import a module by its name, looked up in the working directory first, or by the path of its file.

    ``reuse``: a file that the program has already imported as a module is not run again.
    """
    here = Path.cwd() if folder is None else folder
    is_file = origin.endswith(".py") or "/" in origin or "\\" in origin
    try:
        return _from_file(here / origin, reuse) if is_file else _from_name(origin, str(here))
    except Error:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (origin == error.name or origin.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {error.name!r} in {here} or among the installed ones", hint=HINT
            ) from error
        raise UsageError(f"{origin} needs the module {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{origin} cannot be imported: {type(error).__name__}: {error}{line_of(error)}") from error


def _from_name(name: str, here: str) -> ModuleType:
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (ValueError, TypeError) as error:  # "..", "a..b"
        raise UsageError(f"{name!r} is not the name of a module", hint=HINT) from error


def _from_file(path: Path, reuse: bool) -> ModuleType:
    path = path.absolute()
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint=HINT)
    loaded = sys.modules.get(path.stem)
    if reuse and loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded  # a second copy would have tools of its own
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", hint=HINT)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that its own imports work as if it had been started there
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def line_of(error: BaseException) -> str:
    """Return the innermost line, with which a traceback would have ended."""
    trace = error.__traceback__
    if isinstance(error, SyntaxError) or trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
