"""``amends replay``, ``amends fork`` and ``amends compare``: check new code, and try other continuations."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from amends import AsyncRuntime, Replayed, Runtime
from amends.cli.access import find_run, load_function, open_app, open_runtime, read_bundle, required_app
from amends.cli.exit_codes import DIVERGED, DONE, FAILED
from amends.cli.options import App, Json, RunId, Tenant, Url, group
from amends.cli.output import progress, put_json, put_plain, put_report, put_table, say
from amends.cli.wording import worded
from amends.errors import UsageError
from amends.visible import visible, visible_value

FILES_MAX: Final = 100_000
BUNDLES: Final = (".zip", ".bundle", ".amends")
"""Files of a folder with these suffixes are taken for bundles."""

verbs = group()


@verbs.command()
def replay(
    records: Annotated[
        list[str],
        typer.Argument(metavar="RUN|FILE|FOLDER...", help="Runs of the ledger, bundles, or folders of bundles."),
    ],
    against: Annotated[
        str,
        typer.Option("--against", metavar="APP:FN", help="The function to replay: MODULE:NAME or FILE.py:NAME."),
    ],
    until: Annotated[
        str | None, typer.Option("--until", metavar="CALL", help="Stop after this call of the run.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--lenient",
            help="Whether a different tool version, or a different argument that carries no intent, counts.",
        ),
    ] = True,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Run a function with every call answered from the record. No tool runs; exit code 18 if it does something else."""
    fn = load_function(against)
    place, folder = required_app(app)
    needs_ledger = any(not Path(record).exists() for record in records)
    with open_app(place, folder=folder, needs_ledger=needs_ledger, url=url) as rt:
        scoped = rt.scoped(tenant=tenant) if tenant else rt
        _check_colour(rt, fn, against)
        chosen = _records(scoped, records)
        with progress(f"replaying {len(chosen)} {'record' if len(chosen) == 1 else 'records'}"):
            found: list[Replayed] = scoped.replay_each(chosen, fn, until=until, strict=strict)
    for one in found:
        if as_json:
            put_json(one.to_dict(), id=one.run_id)
    if not as_json:
        _put_replayed(found)
    if all(one.same for one in found):
        return DONE
    return FAILED if all(one.same or one.how == "unreadable" for one in found) else DIVERGED


@verbs.command()
def fork(
    run_id: RunId,
    at: Annotated[
        str,
        typer.Option(
            "--at", metavar="CALL", help="The last call that the fork shares: its id, or its first characters."
        ),
    ],
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="The id of the fork. Default: a new id.")] = None,
    principal: Annotated[
        str | None,
        typer.Option("--principal", help="Who the fork acts for; must be the principal of RUN, if it has one."),
    ] = None,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Make a new run that shares the calls of RUN up to CALL, and runs live after it."""
    with open_runtime(app, url=url, tenant=tenant) as rt:
        run = find_run(rt, run_id)
        acting = rt if principal is None else rt.scoped(principal=principal)
        made = acting.fork(run, at=_find_call_of(rt, run, at), id=id)
        report = rt.report(made)
    if as_json:
        put_json(worded(report.to_dict()), id=made)
    else:
        put_report(report)
        say(f"open it in your program: rt.run({made!r}); then: amends compare {visible(run)} {visible(made)}")
    return DONE


@verbs.command()
def compare(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="The id of a run, or its first characters.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="The id of another run, or its first characters.")],
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Compare two runs call by call, and show the first difference; exit code 18 if there is one."""
    with open_runtime(app, url=url, tenant=tenant) as rt:
        compared = rt.compare(find_run(rt, left), find_run(rt, right))
    if as_json:
        put_json(compared.to_dict(), id=f"{compared.left.id}..{compared.right.id}")
    else:
        put_plain(str(compared))
    return DONE if compared.alike else DIVERGED


def _check_colour(rt: Any, fn: Any, against: str) -> None:
    is_async = isinstance(getattr(rt, "_rt", rt), AsyncRuntime)
    if is_async != inspect.iscoroutinefunction(fn):
        runtime, function = ("an AsyncRuntime", "not async") if is_async else ("a Runtime", "async")
        wanted = "an async function" if is_async else "a function that is not async"
        raise UsageError(f"your runtime is {runtime}, and {against} is {function}", hint=f"name {wanted}")


def _records(rt: Any, places: list[str]) -> dict[str, str | bytes]:
    """Return what to replay, by the name that the output uses: bundles as bytes, runs of the ledger as ids."""
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
            found |= {str(file): read_bundle(file) for file in files[:FILES_MAX]}
        elif path.is_file():
            found[str(path)] = read_bundle(path)
        else:
            id = find_run(rt, place)
            found[f"run {id}"] = id
    return found


def _put_replayed(found: list[Replayed]) -> None:
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


def _find_call_of(rt: Runtime, run: str, text: str) -> str:
    """Return the id of the only call of the run or its children that begins with this text."""
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
            f"the ids of {len(calls)} calls of run {visible(run)} begin with {text!r}",
            hint="write more characters of the call's id",
        )
    raise UsageError(
        f"run {visible(run)} has no call {text!r}", hint=f"amends runs show {visible(run)} --json lists its calls"
    )
