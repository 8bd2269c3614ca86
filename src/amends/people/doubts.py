"""What people do about calls in doubt: list them with the evidence, probe, preview each answer, resolve, accept."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, Final, Literal

from amends.engine.doubts import NoAnswer, ask_probe, failed_word
from amends.engine.outcomes import judge
from amends.engine.recovery import recover_tree
from amends.engine.session import call_of, describe_error, hidden_values_of, moment, reported_result
from amends.errors import LedgerError, UsageError, shown
from amends.host.encryption import without_keys
from amends.host.filters import CALL_FIELDS, parse_filter
from amends.host.host import Host, View
from amends.host.listing import PAGE, Pages, narrowing
from amends.host.requests import adhoc_spec
from amends.host.runs import claim, one, patience
from amends.ledger.late_reports import conflict, known_report
from amends.ledger.leases import Lease
from amends.ledger.operations import (
    AcceptCall,
    HeldLock,
    ListBudgets,
    ListLocks,
    NoteProbe,
    NoteReport,
    ReadRun,
    ResolveCall,
    RetryCall,
    SearchCalls,
    StoreOp,
    Tree,
)
from amends.ledger.rows import CallRow, SliceRow, is_left_to_program
from amends.ledger.world import ReadClocks
from amends.model import LOST, Absent, Call, Happened, NoEffect, Probed, Unknown
from amends.people.rollback import WHO, Around, Rehearsal, named, relatives_of
from amends.people.runs import check_reason, check_result, own_call, recorded
from amends.report import Doubt, Evidence, Next, Preview
from amends.tools.spec import ProbeSpec, Spec, named_arguments

DOUBTFUL: Final = ("in_doubt", "compensation_in_doubt")
AROUND_PAGE: Final = 500
YOUR_WHY: Final = "your reason"
"""Stands in a preview where the person's reason will be."""
NEEDS_RESULT: Final = "its compensation needs the result: give it, or the run cannot be rolled back by itself"


# ---- Listing doubts


def doubts(host: Host, view: View, filter: str = "", *, after: str = "") -> Pages[Doubt]:
    """List calls whose outcome is unknown, newest first: what was sent, when it was lost, and what is known.

    ``after``: the id of the last call that was listed.
    """
    wanted = parse_filter(filter, CALL_FIELDS)
    states = tuple(state for state in DOUBTFUL if not wanted.states or state in wanted.states)
    tenant = view.tenant or ""
    if not states:
        raise UsageError(f"a doubt is {' or '.join(DOUBTFUL)}, not {', '.join(wanted.states)}")

    def then(row: CallRow) -> StoreOp[Any]:
        return SearchCalls(tenant, states, row.id, PAGE)

    def make(row: CallRow) -> Doubt:
        return doubt_of(row, host.specs.get(row.tool))

    def takes(row: CallRow) -> bool:
        return not row.is_loaded and wanted.takes_call(row)  # a doubt of another ledger is settled there

    first = SearchCalls(tenant, states, after or None, PAGE)
    return Pages(first, then, takes, make, narrow=narrowing(wanted, "tag"))


def doubt_of(row: CallRow, spec: Spec | None) -> Doubt:
    """Return a call in doubt as a person sees it."""
    undoing = row.state == "compensation_in_doubt"
    call = call_of(row, spec, phase="compensate" if undoing else "execute")
    probe = _probe_of(spec, row)
    compensation = None if spec is None else spec.compensate
    sent = call.args
    if undoing and compensation is not None:
        result = LOST if row.result is None else call.result
        given = named_arguments(compensation.params, args=call.args, result=result, call=call)
        sent = {name: value for name, value in given.items() if name != "call"}
    mine = {one.name: getattr(call, one.name) for one in fields(Call)}
    return Doubt(
        **mine,
        about="compensation" if undoing else "call",
        sent=sent,
        sent_at=moment(row.comp_at if undoing else row.started_at),
        lost_at=moment(row.comp_settled_at if undoing else row.settled_at),
        probe=None if probe is None else named(spec, "probe", probe.fn),
        next_probe_at=moment(row.probe_at),
        evidence=_evidence(row),
    )


def _evidence(row: CallRow) -> tuple[Evidence, ...]:
    kept: list[Any] = json.loads(row.learned) if row.learned else []
    found: list[Evidence] = []
    for at, by, attempt, answer, why in kept:
        when = moment(at)
        assert when is not None, "every piece of evidence has a time"
        found.append(Evidence(when, by, attempt, answer, why))
    return tuple(found)


# ---- Probing


def _probe_of(spec: Spec | None, row: CallRow) -> ProbeSpec | None:
    """Return the probe for what is in doubt; a compensation has a probe of its own, which knows its key."""
    if spec is None:
        return None
    if row.state in ("compensation_in_doubt", "compensation_failed"):
        return None if spec.compensate is None else spec.compensate.probe
    return spec.probe


async def probe(host: Host, view: View, call_id: str, *, by: str = "") -> Probed[Any]:
    """Probe a call now; decide nothing, and keep the answer as evidence if the call is in doubt.

    ``by``: who asks; the event names them.
    """
    row = await own_call(view, call_id)
    spec = host.specs.get(row.tool)
    asked = _probe_of(spec, row)
    if spec is None or asked is None:
        undoing = row.state.startswith("compensation")
        return Unknown(f"{'the compensation of ' if undoing else ''}{row.tool} has no probe here")
    reader = replace(host.reader(root=row.root), lease=Lease(row.root, "", -1, host.lease_s, float("inf")))
    answer = await ask_probe(reader, spec, asked, row)
    if row.in_question:
        why = shown(answer.result) if isinstance(answer, Happened) else getattr(answer, "why", "")
        word = failed_word(row) if isinstance(answer, NoAnswer) else type(answer).__name__.lower()
        why = host.redactor.scrub(why, hidden_values_of(reader, row))
        await NoteProbe(row.id, row.in_question, row.probes, word, why, None, by="person", paced=False, who=by)
    return Unknown(answer.why) if isinstance(answer, NoAnswer) else answer


# ---- Deciding


async def resolve(host: Host, view: View, call_id: str, answer: Probed[Any], *, by: str, why: str) -> str:
    """Settle a doubt: it happened, it did not, or it cannot be known and stays as residue."""
    check_reason(by, why)
    row = await own_call(view, call_id)
    undoing = row.state in ("compensation_in_doubt", "compensation_failed")
    text, loss = None, ""
    match answer:
        case Happened():
            to = "compensated" if undoing else "succeeded"
            if (known := host.specs.get(row.tool)) is not None and not undoing:
                check_result(known, row, answer.result)
            spec = known or adhoc_spec(row.tool, host.redactor.hidden, kind="pivot")
            text, loss = reported_result(host.reader(root=row.root), spec, row, answer.result)
        case Absent():
            to = "compensation_failed" if undoing else "failed"
            if row.kind == "retriable" and not undoing:
                to = "backing_off"  # a retriable never fails: it is started again
        case Unknown():
            to = "residue"
        case _:
            raise UsageError(f"an answer is Happened(result), Absent() or Unknown(), not {answer!r}")
    if undoing and to == "compensation_failed" and row.state == "compensation_failed":
        return (await recorded(RetryCall(call_id, by, why))).root
    retry_s = 0.0 if to == "backing_off" else None
    resolved = await recorded(ResolveCall(call_id, to, by, why, result=text, loss=loss, retry_s=retry_s))
    return resolved.root


async def accept(_host: Host, view: View, call_id: str, *, by: str, why: str) -> str:
    """Accept that an effect stays, or that nobody will know: it becomes residue, and every report names it."""
    check_reason(by, why)
    await own_call(view, call_id)
    return (await recorded(AcceptCall(call_id, by, why))).root


# ---- Reports that come late


async def report_late(
    host: Host,
    view: View,
    call_id: str,
    answer: Probed[Any] | Exception,
    *,
    attempt: int,
    epoch: int,
    by: str,
    phase: Literal["execute", "compensate", "probe"] = "execute",
) -> Call:
    """Record a report about an attempt that comes after its work lease, or after a change of owner; return the call.

    ``answer``: ``Happened(result)``; ``Absent()`` or an error, as the body would have raised it; ``Unknown()`` changes
    nothing. It is evidence, and that the effect happened settles the doubt, whoever owns the run. A live attempt is never
    settled by it. ``attempt``, ``epoch``, ``phase``: of the piece of work (``Attempt.call.attempt``, ``Attempt.epoch``).
    ``by``: who reports. The same report again changes nothing, another one raises ``ReportConflict``.
    """
    _check_report(answer, attempt, epoch, by, phase)
    row = await own_call(view, call_id)
    spec = host.specs.get(row.tool) or adhoc_spec(row.tool, host.redactor.hidden, kind="pivot")
    tried = row.comp_attempt if phase == "compensate" else row.attempt
    tree = await ReadRun(row.tenant, uid=row.root)
    assert tree is not None, "a call's run is in the ledger"
    if attempt > tried or epoch > tree.run.epoch:
        raise UsageError(
            f"call {row.id} ({row.tool}) has no attempt {attempt} of epoch {epoch}: nothing can be reported about it",
            hint="report with the attempt and the epoch that the work was handed out with",
        )
    if phase == "probe" or isinstance(answer, Unknown):
        return call_of(row, spec)
    report = await _report_of(host, spec, row, answer, phase, attempt, epoch, by)
    if phase == "execute" and _is_known(row, report):
        return call_of(row, spec)
    return call_of(await report, spec)


def _check_report(answer: Any, attempt: Any, epoch: Any, by: Any, phase: Any) -> None:
    if not (isinstance(by, str) and by):
        raise UsageError("a report needs who makes it (by=)")
    if phase not in ("execute", "compensate", "probe"):
        raise UsageError(f"phase is {phase!r}; it is one of execute, compensate, probe")
    for name, value in (("attempt", attempt), ("epoch", epoch)):
        if type(value) is not int or value < 1:
            raise UsageError(f"{name} is {value!r}; it is a number from 1")
    if not isinstance(answer, Happened | Absent | Unknown | Exception):
        raise UsageError(f"a report is Happened(result), Absent(), Unknown() or an error, not {shown(answer)}")


async def _report_of(
    host: Host, spec: Spec, row: CallRow, answer: Any, phase: Any, attempt: int, epoch: int, by: str
) -> NoteReport:
    reader, clocks = host.reader(root=row.root), await ReadClocks()
    report = NoteReport(row.id, phase, attempt, epoch, by, True, None, "", clocks.boot, clocks.mono)
    if isinstance(answer, Happened):
        if phase == "execute":
            report.result, report.loss = reported_result(reader, spec, row, answer.result)
        return report
    report.happened = False
    error = NoEffect("its performer says so") if isinstance(answer, Absent) else answer
    report.error = describe_error(error, host.redactor, hidden_values_of(reader, row))
    # Believed as far as the late error of a body is: where there is a probe, that is asked.
    probe = spec.probe if phase == "execute" else None if spec.compensate is None else spec.compensate.probe
    verdict = judge(spec, error, is_body=phase == "execute").verdict
    report.certain = probe is None and verdict != "doubt"
    return report


def _is_known(row: CallRow, report: NoteReport) -> bool:
    """Return whether the record has this very answer already; raise ``ReportConflict`` if it has another one."""
    known = known_report(row, report.attempt)
    if known is not None:
        same = known["happened"] == report.happened and _are_alike(known["result"], report.result)
    elif row.attempt == report.attempt and row.state in _HAPPENED and not row.comp_blind:
        same = report.happened and (None in (report.result, row.result) or _are_alike(row.result, report.result))
        same = same or (report.happened and row.lost_at is not None)
    else:
        return row.state == "failed" and row.attempt == report.attempt and not report.happened
    if not same:
        raise conflict(row, report.attempt)
    return row.state != "in_doubt" or not report.happened  # else the doubt is still to be settled by it


def _are_alike(recorded: str | None, reported: str | None) -> bool:
    """Return whether two results are the same; a redacted value in them is encrypted anew each time."""
    if recorded is None or reported is None:
        return recorded is reported
    return without_keys(recorded) == without_keys(reported)


_HAPPENED: Final = ("succeeded", "compensating", "compensated", "compensation_failed", "compensation_in_doubt")
"""The states of a call whose attempt is known to have had its effect, unless it was compensated blindly."""


# ---- Previewing each answer


async def preview(host: Host, view: View, call_id: str) -> Preview:
    """Return what the run would do next for each of the three answers to a doubt; change nothing."""
    row = await own_call(view, call_id)
    if row.state not in (*DOUBTFUL, "compensation_failed"):
        raise UsageError(
            f"call {row.id} ({row.tool}) is {row.state}: there is no doubt to resolve",
            hint="rt.doubts() lists what is in doubt",
        )
    tree = await ReadRun(row.tenant, uid=row.root)
    assert tree is not None, "a call's run is in the ledger"
    clocks = await ReadClocks()
    around = await _around(tree)
    answers: tuple[Probed[Any], ...] = (Happened(None), Absent(), Unknown())
    plays = [Rehearsal(host, tree, clocks, probes_say=Unknown("assumed"), around=around) for _ in answers]
    ends = [_rehearsed(host, view, tree, row, answer, play) for answer, play in zip(answers, plays, strict=True)]
    spec = host.specs.get(row.tool)
    if row.state == "in_doubt" and spec is not None and spec.compensate is not None and spec.compensate.needs_result:
        ends[0] = replace(ends[0], note=NEEDS_RESULT)
    return Preview(call_of(row, spec), *ends)


async def _around(tree: Tree) -> Around:
    """Return the locks and budgets that the staged calls of a tree need when they start; read only if there are any."""
    staged = [row for row in tree.calls if row.state in ("held", "ready")]
    tenant = tree.run.tenant
    locks: list[HeldLock] = []
    slices: list[SliceRow] = []
    if any(row.locks for row in staged):
        page = await ListLocks(tenant, "", AROUND_PAGE)
        while page:
            locks += [held for held in page if held.root.uid != tree.run.root]
            page = await ListLocks(tenant, page[-1].lock.name, AROUND_PAGE) if len(page) == AROUND_PAGE else []
    for whose in {tenant, ""} if any(row.cost for row in staged) else ():
        found, _ = await ListBudgets(whose, "", AROUND_PAGE)
        while found:
            slices += found
            found = (await ListBudgets(whose, found[-1].name, AROUND_PAGE))[0] if len(found) == AROUND_PAGE else []
    return replace(await relatives_of(tree.run), locks=tuple(locks), slices=tuple(slices))


def _rehearsed(host: Host, view: View, tree: Tree, row: CallRow, answer: Probed[Any], play: Rehearsal) -> Next:
    """Rehearse what ``rt.resolve`` does: record the answer, then recover the run if this process may."""
    try:
        play.play(resolve(host, view, row.id, answer, by=WHO, why=YOUR_WHY))
    except UsageError as no:
        return Next(row.state, tree.run.state, refused=str(no))  # type: ignore[arg-type]  # the ledger's own words
    found = play.play(one(host, row.root))
    if found is None:
        root = play.stage.runs[row.root]
        is_left = root.suspended and not root.owner
        return _next(play, row, "here" if root.closed_at is not None else "program" if is_left else "owner")
    if found.missing:
        return _next(play, row, "program" if is_left_to_program(found.root) else "worker")
    claimed = play.play(claim(host, found, force=True))
    if claimed is None:
        # This process's clock is ahead of the ledger's: the lease is over by the one, and not by the other.
        return _next(play, row, "owner")
    root, lease = claimed
    session = play.played(root, lease, wait_s=patience(host))
    if isinstance(answer, Happened):
        session.memory.keep_result(row.id, answer.result)  # a person who says that it happened gives its result too
    who = "here"
    try:
        done = play.play(recover_tree(session, root, has_agent=root.agent in host.agents))
        is_left = done.run.state == "open" and not done.run.owner and is_left_to_program(done.run)
        who = "agent" if done.how == "resume" else "program" if is_left else "here"
    except LedgerError:
        pass  # as in ``rt.resolve``, which then reports what the ledger has
    return _next(play, row, who)


def _next(play: Rehearsal, row: CallRow, who: Any) -> Next:
    root = play.stage.runs[row.root]
    causes: tuple[str, ...] = tuple(json.loads(root.causes)) if root.state == "blocked" else ()
    state: Any = play.stage.calls[row.id].state
    run_state: Any = root.state
    return Next(state, run_state, tuple(play.does), who, causes)
