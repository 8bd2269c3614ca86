"""``amends fork`` and ``amends compare``."""

from __future__ import annotations

from amends import Runtime
from amends.cli.access import run_named, working
from amends.cli.codes import DIVERGED, DONE
from amends.cli.reading import put_report
from amends.cli.show import put_json, put_plain, say
from amends.errors import UsageError
from amends.visible import visible


def fork(
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


def compare(left: str, right: str, *, app: str | None, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends compare``."""
    with working(app, url=url, tenant=tenant) as rt:
        compared = rt.compare(run_named(rt, left), run_named(rt, right))
    if as_json:
        put_json(compared.to_dict())
    else:
        put_plain(str(compared))
    return DONE if compared.alike else DIVERGED
