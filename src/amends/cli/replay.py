"""``amends replay``: recorded runs against the code of today."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from amends import AsyncRuntime, Replayed, Runtime
from amends.cli.access import Blocking, app_named, load_function, load_runtime, loaded, run_named, working
from amends.cli.options import DIVERGED, DONE, FAILED, App, Json, RunId, Tenant, Url
from amends.cli.runs import put_report
from amends.cli.show import progress, put_json, put_plain, put_table, say
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


# ---- ``amends fork`` and ``amends compare``


def fork_run(
    run_id: str,
    *,
    at: str,
    id: str | None,
    principal: str | None,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends fork``."""
    with working(app, url=url, tenant=tenant) as rt:
        run = run_named(rt, run_id)
        acting = rt if principal is None else rt.scoped(principal=principal)
        made = acting.fork(run, at=_call_of(rt, run, at), id=id)
        report = rt.report(made)
    if as_json:
        put_json(report.to_dict())
    else:
        put_report(report)
        say(f"open it in your program: rt.run({made!r}); then: amends compare {visible(run)} {visible(made)}")
    return DONE


def _call_of(rt: Runtime, run: str, text: str) -> str:
    """The id of the one call of the run, or of a child of it, that begins so."""
    reports, calls = [rt.report(run)], []
    while reports:
        report = reports.pop()
        calls += [call for call in report.calls if text and call.id.startswith(text)]
        reports += report.children
    if len(calls) == 1:
        return calls[0].id
    exact = [call.id for call in calls if call.id == text]
    if exact:
        return exact[0]
    if calls:
        raise UsageError(
            f"{text!r} is the beginning of {len(calls)} calls of run {visible(run)}",
            hint="write more of the call's id",
        )
    raise UsageError(
        f"run {visible(run)} has no call {text!r}", hint=f"amends runs show {visible(run)} --json lists its calls"
    )


def compare_runs(left: str, right: str, *, app: str | None, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends compare``."""
    with working(app, url=url, tenant=tenant) as rt:
        compared = rt.compare(run_named(rt, left), run_named(rt, right))
    if as_json:
        put_json(compared.to_dict())
    else:
        put_plain(str(compared))
    return DONE if compared.alike else DIVERGED


# ---- Verbs that try a run another way and look at both. Each is thin: it asks the runtime and shows the a


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    for verb in (fork, compare):
        app.command()(verb)


def fork(
    run_id: RunId,
    at: Annotated[
        str, typer.Option("--at", metavar="CALL", help="The last call that the fork shares; its id begins so.")
    ],
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="The fork's id; else one is made.")] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", help="For whom; must be whose run it is, if that is known.")
    ] = None,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Make a run that has what RUN did up to CALL as already done, and goes live after it."""
    return fork_run(run_id, at=at, id=id, principal=principal, app=app, url=url, tenant=tenant, as_json=as_json)


def compare(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A run's id, or the beginning of it.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Another run's id, or the beginning of it.")],
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Show two runs call by call: the first that differs, and in what; exit code 18 when they are not alike."""
    return compare_runs(left, right, app=app, url=url, tenant=tenant, as_json=as_json)
