"""From words on a command line to a ledger, and to the names in it."""

from __future__ import annotations

import asyncio
import getpass
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from amends import AsyncRuntime, Runtime
from amends.errors import Error, LedgerMissing, UsageError
from amends.visible import visible

# ---- ``app:rt``: from words on a command line to a runtime


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


# ---- From words on a command line to a ledger, and to the names in it


CANDIDATES_MAX: Final = 5
"""How many are named when the beginning of an id is not enough."""


@contextmanager
def reading(url: str | None, tenant: str | None) -> Iterator[Runtime]:
    """The ledger, which must exist, without the tools of any program."""
    rt = Runtime(url, create=False, tenant=tenant)
    try:
        with rt:
            yield rt
    except LedgerMissing as error:
        if str(rt.settings["url"].value).startswith("sqlite:"):  # of a server it is known what is missing, and said
            error.hint = "say where it is: --url sqlite:///path/to/ledger.db, AMENDS_URL, or url in amends.toml"
        raise


@contextmanager
def working(app: str | None, *, url: str | None, tenant: str | None, needed: str = "") -> Iterator[Runtime]:
    """The runtime of a program, with its tools; without one the ledger alone.

    ``needed`` says what cannot be done without the tools: then there must be one.
    """
    if app and url:
        raise UsageError("--app brings its own ledger, so --url cannot be said with it", hint="leave one of them out")
    place, folder = (app, None) if app or url else app_setting()
    if place is None:
        if needed:
            raise UsageError(
                f"{needed} needs your tools", hint="say where they are: --app app:rt, AMENDS_APP, or app in amends.toml"
            )
        with reading(url, tenant) as rt:
            yield rt
        return
    with loaded(place, folder=folder) as rt:
        yield rt.scoped(tenant=tenant) if tenant else rt


def app_setting() -> tuple[str | None, Path | None]:
    """Where the settings say that the program is, and from which folder that is seen."""
    setting = Runtime("memory:").settings["app"]  # does no IO
    from_file = setting.origin not in ("argument", "AMENDS_APP", "default")
    return setting.value, Path(setting.origin).parent if from_file else None


def app_named(place: str | None) -> tuple[str, Path | None]:
    """The program that is named, or that the settings name."""
    found, folder = (place, None) if place else app_setting()
    if not found:
        raise UsageError(
            "it is not said where your runtime is",
            hint="say MODULE:NAME or FILE.py:NAME, like app:rt; or set AMENDS_APP, or app in amends.toml",
        )
    return found, folder


@contextmanager
def loaded(place: str, *, folder: Path | None) -> Iterator[Runtime]:
    """A program's runtime, blocking whatever its colour; its ledger must exist."""
    rt: Any = load_runtime(place, folder=folder)
    shown = Blocking(rt) if inspect.iscoroutinefunction(rt.close) else rt
    try:
        if shown.schema().version == 0:
            raise LedgerMissing(
                f"no ledger at {rt.settings['url'].value}, which {place} uses",
                hint="run your program once, or: amends db migrate",
            )
        yield cast("Runtime", shown)
    finally:
        shown.close()


class Blocking:
    """An ``AsyncRuntime`` for a program that does one thing after the other, on one event loop of its own."""

    def __init__(self, rt: Any) -> None:
        self._rt, self._runner = rt, asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._rt, name)
        return self._called(found) if callable(found) else found

    def scoped(self, **view: Any) -> Any:
        """The same for one tenant, on the same loop."""
        other = Blocking.__new__(Blocking)
        other._rt, other._runner = self._rt.scoped(**view), self._runner
        return other

    def close(self) -> None:
        """Give back the ledger and the loop."""
        try:
            self._runner.run(self._rt.close())
        finally:
            self._runner.close()

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            if inspect.isasyncgen(answer):
                return self._all(answer)
            return self._runner.run(_awaited(answer)) if inspect.isawaitable(answer) else answer

        return called

    def _all(self, answers: Any) -> Iterator[Any]:
        while (one := self._runner.run(_awaited(anext(answers, None)))) is not None:
            yield one


async def _awaited(answer: Any) -> Any:
    return await answer


# ---- names --------------------------------------------------------------------------------


def who(by: str | None, rt: Runtime) -> str:
    """Who decides: as said, as set, else whoever is logged in."""
    if by:
        return by
    said = rt.settings["by"].value
    if said:
        return str(said)
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UsageError("it is not known who you are", hint="say it: --by NAME, or AMENDS_BY") from None


def run_named(rt: Runtime, text: str) -> str:
    """The id of the run that is named by its id, or by a beginning that no other run has."""
    return _named(
        text,
        "run",
        "amends runs list",
        rt,
        exact=rt.report,
        found=lambda: (one.id for one in rt.runs(f"run:{filter_text(text)}*")),
    )


def call_named(rt: Runtime, text: str) -> str:
    """The id of a call, the same way."""
    return _named(
        text,
        "call",
        "amends runs show RUN --json",
        rt,
        exact=rt.call,
        found=lambda: (one.id for one in rt.calls(f"call:{filter_text(text)}*")),
    )


def approval_named(rt: Runtime, text: str) -> str:
    """The id of a request for approval, the same way; or of the one request of the run with this id that waits."""
    try:
        return str(rt.approval(text).id)  # first: whoever opens a run chooses its id, also one that is like this
    except UsageError:
        found = rt.approvals(f"state:pending run:{filter_text(text)}") if text else ()
        of_run, _ = first((one for one in found if one.call.run_id == text), 2)
    if len(of_run) == 1:
        return str(of_run[0].id)
    return _named(
        text,
        "approval",
        "amends approvals list",
        rt,
        exact=rt.approval,
        found=lambda: (one.id for one in rt.approvals(f"approval:{filter_text(text)}*")),
    )


def _named(
    text: str,
    what: str,
    listing: str,
    rt: Runtime,
    *,
    exact: Callable[[str], object],
    found: Callable[[], Iterable[str]],
) -> str:
    try:
        exact(text)
    except UsageError:
        pass
    else:
        return text
    begun = _distinct(one for one in found() if one.startswith(text)) if text else []
    if len(begun) == 1:
        return begun[0]
    if begun:
        more = " and more" if len(begun) > CANDIDATES_MAX else ""
        raise UsageError(
            f"{text!r} is the beginning of more than one {what}: "
            f"{', '.join(map(visible, begun[:CANDIDATES_MAX]))}{more}",
            hint="write more of the id",
        )
    raise UsageError(
        f"there is no {what} {text!r} in {visible(str(rt.settings['url'].value), prose=True)}",
        hint=f"{listing} shows what is there",
    )


def _distinct(ids: Iterable[str]) -> list[str]:
    """The first few that differ: a run has one id in all its generations."""
    found: dict[str, None] = {}
    for one in ids:
        found[one] = None
        if len(found) > CANDIDATES_MAX:
            break
    return sorted(found)


def filter_text(text: str) -> str:
    """The text as a filter takes it; may find more, which the caller compares again."""
    # A double quote cannot be said inside quotes; a star stands for it, and what was found is compared again.
    return "*".join(f'"{part}"' for part in text.split('"'))


def first(found: Iterable[Any], limit: int) -> tuple[list[Any], bool]:
    """Up to ``limit`` of them, and whether there are more."""
    some = list(islice(found, limit + 1))
    return some[:limit], len(some) > limit
