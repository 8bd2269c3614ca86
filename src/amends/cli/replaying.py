"""``amends replay``: recorded runs against the code of today."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from amends import AsyncRuntime, Replayed, Runtime
from amends.cli.access import Blocking, app_named, loaded, run_named
from amends.cli.codes import DIVERGED, DONE, FAILED
from amends.cli.load import load_function, load_runtime
from amends.cli.show import progress, put_json, put_table, say
from amends.errors import UsageError
from amends.visible import visible, visible_value

FILE_BYTES_MAX: Final = 1 << 29
"""A file that is larger is no bundle of ours."""
FILES_MAX: Final = 100_000
BUNDLES: Final = (".zip", ".bundle", ".amends")
"""How the files of a folder are named that are taken for bundles."""


def replay(
    places: list[str],
    *,
    against: str,
    until: str | None,
    strict: bool,
    app: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends replay``."""
    fn = load_function(against)
    with _runtime(app, needs_ledger=any(not Path(place).exists() for place in places)) as rt:
        scoped = rt.scoped(tenant=tenant) if tenant else rt
        _check_colour(rt, fn, against)
        records = _records(scoped, places)
        with progress(f"replaying {len(records)} {'record' if len(records) == 1 else 'records'}"):
            found: list[Replayed] = scoped.replay_each(records, fn, until=until, strict=strict)
    for one in found:
        if as_json:
            put_json(one.to_dict())
    if not as_json:
        _show(found)
    if all(one.same for one in found):
        return DONE
    return FAILED if all(one.same or one.how == "unreadable" for one in found) else DIVERGED


@contextmanager
def _runtime(app: str | None, *, needs_ledger: bool) -> Iterator[Any]:
    """The runtime with the tools; bundles need no ledger, and none is made."""
    place, folder = app_named(app)
    if needs_ledger:
        with loaded(place, folder=folder) as rt:
            yield rt
        return
    made: Any = load_runtime(place, folder=folder)
    shown = Blocking(made) if inspect.iscoroutinefunction(made.close) else made
    try:
        yield cast("Runtime", shown)
    finally:
        shown.close()


def _check_colour(rt: Any, fn: Any, against: str) -> None:
    is_async = isinstance(getattr(rt, "_rt", rt), AsyncRuntime)
    if is_async != inspect.iscoroutinefunction(fn):
        runtime, function = ("an AsyncRuntime", "blocks") if is_async else ("a Runtime", "is async")
        raise UsageError(f"the tools are of {runtime}, and {against} {function}", hint="name a function of its colour")


def _records(rt: Any, places: list[str]) -> dict[str, str | bytes]:
    """What is to be replayed, by the names that it is told under: files, folders of files, runs of the ledger."""
    found: dict[str, str | bytes] = {}
    for place in places:
        path = Path(place)
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in BUNDLES)
            if not files:
                raise UsageError(
                    f"there is no bundle in {path}",
                    hint=f"bundles are named *{', *'.join(BUNDLES)}: amends audit export",
                )
            found |= {str(file): _read(file) for file in files[:FILES_MAX]}
        elif path.is_file():
            found[str(path)] = _read(path)
        else:
            id = run_named(rt, place)
            found[f"run {id}"] = id
    return found


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as packed:
            data = packed.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{file} is larger than {FILE_BYTES_MAX:,} bytes: it is no bundle")
    return data


def _show(found: list[Replayed]) -> None:
    put_table(
        ("run", "record", "replay", "calls"),
        [(visible(one.run_id), visible(one.source), one.how, f"{one.calls} of {one.of}") for one in found],
    )
    for one in found:
        if not one.same:
            say(f"{visible(one.run_id)} ({visible(one.source)}): {visible(one.why, prose=True)}")
            for name, (was, now) in one.diff.items():
                say(f"  {visible(name)}: {visible_value(was)} then, {visible_value(now)} now")
            if one.hint:
                say(f"  {visible(one.hint, prose=True)}")
    changed = sum(not one.same for one in found)
    say(f"{len(found)} replayed, {changed} not as recorded" if changed else f"{len(found)} replayed, all as recorded")
