"""Verbs about runs and their calls. Each is thin: it asks the runtime and shows the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amends.cli.options import (
    LIMIT,
    App,
    By,
    CallId,
    Filter,
    Json,
    Limit,
    Place,
    RunId,
    Tenant,
    Url,
    Why,
    Yes,
    group,
    said,
)

runs = group("Look at runs, follow them, and close what cannot go on.")
call = group("Look at one call, and say what becomes of it.")


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    for verb in (demo, init, worker, recover, rollback, replay):
        app.command()(verb)
    app.add_typer(runs, name="runs")
    app.add_typer(call, name="call")


def demo(
    dir: Annotated[Path, typer.Option("--dir", help="Where the shop and its ledger are made.")] = Path("amends-demo"),
    fresh: Annotated[
        bool, typer.Option("--fresh/--keep", help="Begin anew, or keep the shop of the last time and add five orders.")
    ] = True,
    as_json: Json = False,
) -> int:
    """Play five orders: one commits, one is taken back, one is killed, one refused, one asks a person."""
    from amends.cli.demo import play, play_json

    return play_json(dir, fresh=fresh) if as_json else play(dir, fresh=fresh)


def init(
    dir: Annotated[Path, typer.Option("--dir", help="Where; made if it is not there.")] = Path(),
    as_json: Json = False,
) -> int:
    """Write amends.toml and app.py, a small program with three tools to begin with."""
    from amends.cli.starting import begin

    return begin(dir, as_json=as_json)


def worker(
    place: Place = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks; up to 5 when idle.")] = 1.0,
    as_json: Json = False,
) -> int:
    """Finish or take back what other processes left, until SIGTERM or Ctrl-C."""
    from amends.cli.recovering import run_worker

    return run_worker(place, once=once, every=every, as_json=as_json)


def recover(
    place: Place = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many runs.")] = LIMIT,
    as_json: Json = False,
) -> int:
    """Finish or take back once what other processes left, and show each run. For cron."""
    from amends.cli.recovering import run_recover

    return run_recover(place, limit=limit, as_json=as_json)


def rollback(
    run_id: RunId,
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would be done, in which order.")] = False,
    apply: Annotated[
        str | None, typer.Option("--apply", metavar="HASH", help="Do exactly this plan; refused if the run has moved.")
    ] = None,
    why: Annotated[str | None, typer.Option("--why", help="Why: it is kept with the run; not for --plan.")] = None,
    by: By = None,
    yes: Yes = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Take a run back: shown first, then done exactly so."""
    from amends.cli.undoing import rollback

    return rollback(
        run_id, plan=plan, apply=apply, by=by, why=why, yes=yes, app=app, url=url, tenant=tenant, as_json=as_json
    )


def replay(
    records: Annotated[
        list[str], typer.Argument(metavar="RUN|FILE|FOLDER...", help="Runs of the ledger, bundles, or folders of them.")
    ],
    against: Annotated[
        str,
        typer.Option("--against", metavar="APP:FN", help="The function that ran then: MODULE:NAME or FILE.py:NAME."),
    ],
    until: Annotated[str | None, typer.Option("--until", metavar="CALL", help="End with this call of the run.")] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--lenient", help="Whether other versions, and other words for what means nothing, count."
        ),
    ] = True,
    app: App = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Run a function with every call answered from the record; nothing is done. Exit code 18: it does something else."""
    from amends.cli.replaying import replay

    return replay(records, against=against, until=until, strict=strict, app=app, tenant=tenant, as_json=as_json)


@runs.command("list")
def runs_list(
    filter: Filter = None, limit: Limit = LIMIT, url: Url = None, tenant: Tenant = None, as_json: Json = False
) -> None:
    """List runs, newest first."""
    from amends.cli.reading import list_runs

    list_runs(said(filter), limit=limit, url=url, tenant=tenant, as_json=as_json)


@runs.command("show")
def runs_show(run_id: RunId, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """Show one run: its calls, errors, compensations, and what is left standing."""
    from amends.cli.reading import show_run

    show_run(run_id, url=url, tenant=tenant, as_json=as_json)


@runs.command("watch")
def runs_watch(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The run's id, or the beginning of it; else the whole ledger.")
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.05, help="Seconds between two looks.")] = 0.5,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Follow a run until it can go no further without a person; its exit code says how it stands."""
    from amends.cli.watching import watch

    return watch(run_id, every=every, url=url, tenant=tenant, as_json=as_json)


@runs.command("abandon")
def runs_abandon(
    run_id: RunId,
    why: Why,
    by: By = None,
    yes: Yes = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Close a run over what stands; each effect that is left is named."""
    from amends.cli.deciding import abandon

    return abandon(run_id, by=by, why=why, yes=yes, url=url, tenant=tenant, as_json=as_json)


@runs.command("finish")
def runs_finish(
    run_id: RunId,
    why: Why,
    by: By = None,
    yes: Yes = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Close a run that was interrupted after its pivot as committed."""
    from amends.cli.deciding import finish

    return finish(run_id, by=by, why=why, yes=yes, url=url, tenant=tenant, as_json=as_json)


@call.command("show")
def call_show(call_id: CallId, url: Url = None, tenant: Tenant = None, as_json: Json = False) -> None:
    """Show one call: what was asked for, what became of it, and every event of it."""
    from amends.cli.reading import show_call

    show_call(call_id, url=url, tenant=tenant, as_json=as_json)


@call.command("decide")
def call_decide(
    call_id: CallId,
    decision: Annotated[
        str, typer.Argument(metavar="run|replay|refuse", help="Do it, answer it from its twin, or no.")
    ],
    why: Why,
    by: By = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at a terminal.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say what becomes of a call that is held as a suspected duplicate or for a conflict."""
    from amends.cli.deciding import decide

    return decide(call_id, decision, by=by, why=why, yes=yes, url=url, tenant=tenant, as_json=as_json)


@call.command("retry")
def call_retry(
    call_id: CallId,
    why: Why,
    result: Annotated[
        str | None,
        typer.Option(
            "--result", help="What the call gave back, as JSON or plain text; for a compensation that lacks it."
        ),
    ] = None,
    by: By = None,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Try a compensation, or a retriable, that gave up once more."""
    from amends.cli.deciding import retry

    return retry(call_id, result=result, by=by, why=why, app=app, url=url, tenant=tenant, as_json=as_json)


@call.command("accept")
def call_accept(
    call_id: CallId,
    why: Why,
    by: By = None,
    yes: Yes = False,
    app: App = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Say that an effect stays, or that nobody will ever know: it is residue, and named for good."""
    from amends.cli.deciding import accept

    return accept(call_id, by=by, why=why, yes=yes, app=app, url=url, tenant=tenant, as_json=as_json)
