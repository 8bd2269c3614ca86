"""``amends rollback``: what it would do, and then exactly that."""

from __future__ import annotations

import sys

from amends import Report, RollbackPlan, Runtime
from amends.cli.access import run_named, who, working
from amends.cli.codes import DONE, FAILED, IN_DOUBT, NEEDS_A_PERSON, NOT_ALL_TAKEN_BACK
from amends.cli.reading import put_report
from amends.cli.show import agrees, has_person, must_ask, progress, put_json, put_plain, say
from amends.errors import StalePlan, UsageError
from amends.visible import visible


def rollback(
    run_id: str,
    *,
    plan: bool,
    apply: str | None,
    by: str | None,
    why: str | None,
    yes: bool,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends rollback``."""
    if plan and apply is not None:
        raise UsageError("--plan only shows, and --apply does it: say one of them")
    if not plan and apply is None and not has_person():
        raise UsageError("say what is meant: --plan shows what would be done, --apply HASH does it")
    if not plan and not why:
        raise UsageError("a rollback needs a reason", hint="say it: --why 'the customer cancelled'")
    asks = not plan and must_ask(yes, "a rollback")
    with working(app, url=url, tenant=tenant) as rt:
        run = run_named(rt, run_id)
        planned = rt.plan_rollback(run)
        if plan:
            return _put_plan(planned, as_json)
        chosen = apply or planned.hash
        # A plan that is stale or refused is told below, by whoever refuses it.
        if asks and planned.hash == chosen and planned.refused is None:
            put_plain(str(planned), stream=sys.stderr)
            if not agrees(f"Take run {visible(run)} back?"):
                return FAILED
        with progress(f"taking run {visible(run)} back"):
            report = _rolled_back(rt, run, by=who(by, rt), why=why or "", plan=chosen)
    return _put_done(report, as_json)


def _rolled_back(rt: Runtime, run: str, *, by: str, why: str, plan: str) -> Report:
    try:
        return rt.rollback(run, by=by, why=why, plan=plan)
    except StalePlan as error:
        error.hint = f"look at it again: amends rollback {visible(run)} --plan"
        raise


def _put_plan(plan: RollbackPlan, as_json: bool) -> int:
    if as_json:
        put_json(plan.to_dict())
    else:
        put_plain(str(plan))
    if plan.refused is not None or plan.cannot:
        return NOT_ALL_TAKEN_BACK
    if plan.doubts:
        return IN_DOUBT
    say(f"to do exactly this: amends rollback {visible(plan.run_id)} --apply {plan.hash} --why ...")
    return DONE


def _put_done(report: Report, as_json: bool) -> int:
    if as_json:
        put_json(report.to_dict())
    else:
        put_report(report)
    if report.state == "rolled_back":
        return DONE
    if report.skipped:
        say("recorded; a worker that has the tools takes it back: amends worker APP:RT")
        return DONE
    if report.doubts:
        return IN_DOUBT
    if report.residue:
        return NOT_ALL_TAKEN_BACK
    if report.state == "blocked":
        return NEEDS_A_PERSON
    say("recorded; its owner takes it back when its calls have settled: amends runs watch shows it")
    return DONE
