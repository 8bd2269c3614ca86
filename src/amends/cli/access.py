"""From words on a command line to a ledger, and to the names in it."""

from __future__ import annotations

import asyncio
import getpass
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from amends import Runtime
from amends.cli.load import load_runtime
from amends.errors import LedgerMissing, UsageError
from amends.visible import visible

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
