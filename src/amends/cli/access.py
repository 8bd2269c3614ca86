"""Access to the runtime, the ledger and the ids that a command line names."""

from __future__ import annotations

import asyncio
import getpass
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from amends import AsyncRuntime, Runtime
from amends.cli.output import RED, iso_time, put, say
from amends.errors import Error, LedgerMissing, NotFound, UsageError, some_in_words
from amends.places import HINT, load_module
from amends.visible import printable, visible

# ---- Your program: MODULE:NAME or FILE.py:NAME


def load_runtime(place: str, *, folder: Path | None = None, url: str | None = None) -> Runtime | AsyncRuntime:
    """Return the runtime that ``place`` names. Raise ``UsageError`` if that fails, never the module's own error.

    ``folder`` is where the module or the path is looked up, if not in the working directory. ``url`` is the ledger for a
    program that does not name one itself; one that names another is refused.
    """
    origin, colon, name = place.rpartition(":")
    if not colon or not origin or not name:
        raise UsageError(f"{place!r} does not name a runtime", hint=HINT)
    with _given_url(url):
        found: Any = load_module(origin, folder=folder)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{origin} has no {name!r}", hint=_runtimes_in(found) or HINT)
        found = getattr(found, part)
    if not isinstance(found, Runtime | AsyncRuntime):
        what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise UsageError(f"{place} is {what}, not a Runtime or AsyncRuntime", hint=HINT)
    if url is not None:
        _check_ledger(place, found, url)
    return found


@contextmanager
def _given_url(url: str | None) -> Iterator[None]:
    """Let a program that is loaded inside find this ledger in its settings."""
    known = os.environ.get("AMENDS_URL")
    if url is not None:
        os.environ["AMENDS_URL"] = url
    try:
        yield
    finally:
        if url is not None and known is None:
            os.environ.pop("AMENDS_URL", None)
        elif url is not None and known is not None:
            os.environ["AMENDS_URL"] = known


def _check_ledger(place: str, rt: Runtime | AsyncRuntime, url: str) -> None:
    theirs, wanted = rt.settings["url"].value, Runtime(url).settings["url"].value  # does no IO
    if theirs != wanted:
        raise UsageError(
            f"{place} uses its own ledger, {theirs}, and --url names another, {wanted}",
            hint="leave --url out, or let the program take its ledger from the settings: Runtime(tools=...)",
        )


def load_function(place: str) -> Callable[..., Any]:
    """Return the function that ``place`` names, for example ``app:agent``. Raise ``UsageError`` if that fails."""
    origin, colon, name = place.rpartition(":")
    hint = "write MODULE:NAME or FILE.py:NAME, for example app:agent for the function `def agent(...)` in app.py"
    if not colon or not origin or not name:
        raise UsageError(f"{place!r} does not name a function", hint=hint)
    found: Any = load_module(origin)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{origin} has no {name!r}", hint=hint)
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{place} is a {type(found).__name__}, which cannot be called", hint=hint)
    made: Callable[..., Any] = found
    return made


def _runtimes_in(module: Any) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Runtime | AsyncRuntime)]
    return f"it has these runtimes: {', '.join(names)}" if names else ""


# ---- The ledger, and the runtime with its tools


CANDIDATES_MAX: Final = 5
"""How many ids an error names when the first characters of an id fit several."""
BUNDLE_BYTES_MAX: Final = 1 << 29
"""A larger file is not a bundle of ours."""


@contextmanager
def open_ledger(
    url: str | None, tenant: str | None, *, app: str | None = None, tells_halts: bool = True
) -> Iterator[Runtime]:
    """Open a ledger that must exist: that of the program, if one is named, else without the tools of any program.

    Say which halts stand.
    """
    if app is not None:
        with open_app(app, folder=None, url=url) as program:
            if tells_halts:
                tell_halts(program)
            yield program.scoped(tenant=tenant) if tenant else program
        return
    rt = Runtime(url, create=False, tenant=tenant)
    try:
        with rt:
            if tells_halts:
                tell_halts(rt)
            yield rt
    except LedgerMissing as error:
        if str(rt.settings["url"].value).startswith("sqlite:"):  # the error of a server already says what is missing
            error.hint = "give its place: --url sqlite:///path/to/ledger.db, AMENDS_URL, or url in amends.toml"
        raise


@contextmanager
def open_runtime(app: str | None, *, url: str | None, tenant: str | None, needed: str = "") -> Iterator[Runtime]:
    """Open the runtime of a program, with its tools; the ledger alone if no program is named.

    ``needed`` names what cannot be done without tools; with it, a program must be named.
    """
    place, folder = (app, None) if app or url else app_setting()
    if place is None:
        if needed:
            raise UsageError(
                f"{needed} needs your tools", hint="name your runtime: --app app:rt, AMENDS_APP, or app in amends.toml"
            )
        with open_ledger(url, tenant) as rt:
            yield rt
        return
    with open_app(place, folder=folder, url=url) as rt:
        tell_halts(rt)
        yield rt.scoped(tenant=tenant) if tenant else rt


@dataclass(frozen=True, slots=True)
class Given:
    """The options by which a command found its ledger, for the commands that it prints as the next step.

    ``str(given)`` has a space before each option. A URL with a password is left out: what is printed ends up in logs.
    """

    app: str | None = None
    url: str | None = None
    tenant: str | None = None

    def __str__(self) -> str:
        return self._options(app=self.app, url=self.url, tenant=self.tenant)

    @property
    def worker(self) -> str:
        """The command that starts a worker for this ledger."""
        app = "APP:RT" if self.app is None else printable(shlex.quote(self.app))
        return f"amends worker {app}{self._options(url=self.url)}"

    def _options(self, **values: str | None) -> str:
        if values.get("url") and urlsplit(values["url"]).password is not None:
            del values["url"]
        return "".join(f" --{name} {printable(shlex.quote(value))}" for name, value in values.items() if value)


def say_unloaded(rt: Runtime, tools: Iterable[str], command: str) -> None:
    """Say which of these tools are not loaded, what that means, and the command that loads them; nothing if all are."""
    names = [name for name in dict.fromkeys(tools) if rt.kind_of(name) is None]
    if not names:
        return
    code = "its code" if len(names) == 1 else "their code"
    say(
        f"not loaded here: {some_in_words(map(visible, names))}. Without {code}, amends shows what is recorded, and not what "
        f"would be done next. To see that, name your program: {command} --app APP:RT"
    )


def tell_halts(rt: Runtime) -> None:
    """Say on stderr which halts stand: whoever reads a listing must know why nothing moves."""
    try:
        found = rt.halts()
    except Error:
        return  # what is wrong with the ledger is told by the verb itself
    for one in found:
        why = visible(one.why, prose=True)
        put(f"HALTED: {one.extent}, by {visible(one.by)} at {iso_time(one.at)}: {why}", style=RED, stream=sys.stderr)


@contextmanager
def open_unmigrated(url: str | None, app: str | None, *, create: bool, tenant: str | None = None) -> Iterator[Runtime]:
    """Open a runtime whose ledger may be missing or old: that of the program, if one is named."""
    if app is not None:
        with open_app(app, folder=None, needs_ledger=False, url=url) as rt:
            yield rt.scoped(tenant=tenant) if tenant else rt
        return
    with closing(Runtime(url, create=create, tenant=tenant)) as rt:
        yield rt


def app_setting() -> tuple[str | None, Path | None]:
    """Return the setting ``app``, and the folder of the settings file that has it."""
    setting = Runtime("memory:").settings["app"]  # does no IO
    from_file = setting.origin not in ("argument", "AMENDS_APP", "default")
    return setting.value, Path(setting.origin).parent if from_file else None


def required_app(place: str | None, app: str | None = None) -> tuple[str, Path | None]:
    """Return the program that the command line or the settings name, and its folder; raise ``UsageError`` if neither does.

    ``place`` is the argument and ``app`` the option of the same meaning.
    """
    if place and app and place != app:
        raise UsageError(f"{place} and --app {app} are two runtimes", hint="name one of them")
    found, folder = (place or app, None) if place or app else app_setting()
    if not found:
        raise UsageError(
            "no runtime is named",
            hint="write MODULE:NAME or FILE.py:NAME, for example app:rt; or set AMENDS_APP, or app in amends.toml",
        )
    return found, folder


@contextmanager
def open_app(
    place: str, *, folder: Path | None, needs_ledger: bool = True, url: str | None = None
) -> Iterator[Runtime]:
    """Open the runtime of a program; the caller can use an ``AsyncRuntime`` like a blocking one.

    Unless ``needs_ledger`` is false, its ledger must exist.
    """
    rt: Any = load_runtime(place, folder=folder, url=url)
    shown = Blocking(rt) if inspect.iscoroutinefunction(rt.close) else rt
    try:
        if needs_ledger and shown.schema().version == 0:
            raise LedgerMissing(
                f"no ledger at {rt.settings['url'].value}, which {place} uses",
                hint="run your program once, or: amends db migrate",
            )
        yield cast("Runtime", shown)
    finally:
        shown.close()


class Blocking:
    """An ``AsyncRuntime`` with blocking methods, which run on an event loop of their own."""

    def __init__(self, rt: Any) -> None:
        self._rt, self._runner = rt, asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._rt, name)
        return self._called(found) if callable(found) else found

    def scoped(self, **view: Any) -> Any:
        """Return a scoped view on the same event loop."""
        other = Blocking.__new__(Blocking)
        other._rt, other._runner = self._rt.scoped(**view), self._runner
        return other

    def close(self) -> None:
        """Close the runtime and the event loop."""
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


# ---- Ids and names


def who(by: str | None, rt: Runtime) -> str:
    """Return who decides: ``--by``, the setting ``by``, or the login name."""
    if by:
        return by
    setting = rt.settings["by"].value
    if setting:
        return str(setting)
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UsageError("your name is not known", hint="give it: --by NAME, or AMENDS_BY") from None


def find_run(rt: Runtime, text: str) -> str:
    """Return the id of the run with this id, or of the only run whose id begins with this text."""
    return _find(
        text,
        "run",
        "amends runs list",
        rt,
        exact=rt.report,
        found=lambda: (one.id for one in rt.runs(f"run:{filter_text(text)}*")),
    )


def find_call(rt: Runtime, text: str) -> str:
    """Return the id of the call with this id, or of the only call whose id begins with this text."""
    return _find(
        text,
        "call",
        "amends calls list",
        rt,
        exact=rt.call,
        found=lambda: (one.id for one in rt.calls(f"call:{filter_text(text)}*")),
    )


def find_approval(rt: Runtime, text: str) -> str:
    """Return the id of a request for approval, found like a run; or of the only pending request of the run with this id."""
    try:
        return str(rt.approval(text).id)  # first: the id of a run is free text, and could equal an approval's id
    except UsageError:
        found = rt.approvals(f"state:pending run:{filter_text(text)}") if text else ()
        of_run, _ = take((one for one in found if one.call.run_id == text), 2)
    if len(of_run) == 1:
        return str(of_run[0].id)
    return _find(
        text,
        "approval",
        "amends approvals list",
        rt,
        exact=rt.approval,
        found=lambda: (one.id for one in rt.approvals(f"approval:{filter_text(text)}*")),
    )


def find_permit(rt: Runtime, text: str) -> str:
    """Return the id of the only standing permit whose id begins with this text; without one, the text itself.

    That may be the id of a permit that has ended, which no listing has.
    """

    def exact(id: str) -> None:
        if begun != [] and id not in begun:
            raise UsageError("it is the beginning of an id")

    begun = [one.id for one in rt.permits() if one.id.startswith(text)] if text else []
    return _find(text, "permit", "amends permits list", rt, exact=exact, found=lambda: begun)


def find_token(rt: Runtime, text: str) -> str:
    """Return the id of the only valid token whose id begins with this text; without one, the text itself.

    That may be the id of a token that has ended, or the text of a token, which no message shows.
    """

    def exact(id: str) -> None:
        if begun != [] and id not in begun:
            raise UsageError("it is the beginning of an id")

    if text.startswith("amt_"):
        return text
    begun = [one.id for one in rt.tokens(kind="all") if one.id.startswith(text)] if text else []
    return _find(text, "token", "amends tokens list", rt, exact=exact, found=lambda: begun)


def _find(
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
            f"the id of more than one {what} begins with {text!r}: "
            f"{', '.join(map(visible, begun[:CANDIDATES_MAX]))}{more}",
            hint="write more characters of the id",
        )
    raise NotFound(
        f"there is no {what} {text!r} in {visible(str(rt.settings['url'].value), prose=True)}",
        hint=f"{listing} shows the ids",
    )


def _distinct(ids: Iterable[str]) -> list[str]:
    """Return the first few different ids: all generations of a run have the same one."""
    found: dict[str, None] = {}
    for one in ids:
        found[one] = None
        if len(found) > CANDIDATES_MAX:
            break
    return sorted(found)


def filter_text(text: str) -> str:
    """Return a filter for this text. It may match more, so the caller must compare again."""
    # A double quote cannot be written inside quotes, so a star stands for it.
    return "*".join(f'"{part}"' for part in text.split('"'))


def take(found: Iterable[Any], limit: int) -> tuple[list[Any], bool]:
    """Return up to ``limit`` of them, and whether there are more."""
    some = list(islice(found, limit + 1))
    return some[:limit], len(some) > limit


def read_bundle(file: Path) -> bytes:
    """Read a bundle; raise ``UsageError`` if that fails, or if it is too large to be one."""
    try:
        with file.open("rb") as packed:
            data = packed.read(BUNDLE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > BUNDLE_BYTES_MAX:
        raise UsageError(f"{file} has more than {BUNDLE_BYTES_MAX:,} bytes: it is not a bundle")
    return data


@contextmanager
def open_without_ledger(app: str | None, url: str | None) -> Iterator[tuple[Any, bool]]:
    """Open the program's runtime, or else one that has only the rules of the settings; neither needs a ledger."""
    place, folder = (app, None) if app or url else app_setting()
    if place is None:
        with closing(Runtime(url or "memory:", create=False)) as rt:
            yield rt, False
        return
    with open_app(place, folder=folder, needs_ledger=False, url=url) as rt:
        yield rt, True
