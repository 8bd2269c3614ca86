"""What people do about calls in doubt: list them with the evidence, probe, preview each answer, resolve, accept."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, Final

from amends.engine.doubts import NoAnswer, ask_probe, failed_word
from amends.engine.recovery import recover_tree
from amends.engine.session import call_of, hidden_values_of, moment, reported_result
from amends.errors import LedgerError, UsageError, shown
from amends.host.filters import CALL_FIELDS, parse_filter
from amends.host.host import Host, View
from amends.host.listing import PAGE, Pages, narrowing
from amends.host.requests import adhoc_spec
from amends.host.runs import claim, one, patience
from amends.ledger.leases import Lease
from amends.ledger.operations import (
    AcceptCall,
    HeldLock,
    ListBudgets,
    ListLocks,
    NoteProbe,
    ReadRun,
    ResolveCall,
    RetryCall,
    SearchCalls,
    StoreOp,
    Tree,
)
from amends.ledger.rows import CallRow, SliceRow
from amends.ledger.world import ReadClocks
from amends.model import LOST, Absent, Call, Happened, Probed, Unknown
from amends.people.rollback import WHO, Around, Rehearsal, named, relatives_of
from amends.people.runs import check_reason, own_call, recorded
from amends.report import Doubt, Evidence, Next, Preview
from amends.tools.spec import ProbeSpec, Spec, named_arguments

DOUBTFUL: Final = ("in_doubt", "compensation_in_doubt")
AROUND_PAGE: Final = 500
YOUR_WHY: Final = "..."
"""Stands in a preview where the person's reason will be."""


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


async def probe(host: Host, view: View, call_id: str) -> Probed[Any]:
    """Probe a call now; decide nothing, and keep the answer as evidence if the call is in doubt."""
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
        await NoteProbe(row.id, row.in_question, row.probes, word, why, None, by="person", paced=False)
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
            spec = host.specs.get(row.tool) or adhoc_spec(row.tool, host.redactor.hidden, kind="pivot")
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
    return Preview(call_of(row, host.specs.get(row.tool)), *ends)


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
        return _next(play, row, "here" if play.stage.runs[row.root].closed_at is not None else "owner")
    if found.missing:
        return _next(play, row, "worker")
    claimed = play.play(claim(host, found, force=True))
    assert claimed is not None, "a run that nobody owns can be claimed"
    root, lease = claimed
    session = play.played(root, lease, wait_s=patience(host))
    if isinstance(answer, Happened):
        session.memory.keep_result(row.id, answer.result)  # a person who says that it happened gives its result too
    who = "here"
    try:
        done = play.play(recover_tree(session, root, has_agent=root.agent in host.agents))
        who = "agent" if done.how == "resume" else "here"
    except LedgerError:
        pass  # as in ``rt.resolve``, which then reports what the ledger has
    return _next(play, row, who)


def _next(play: Rehearsal, row: CallRow, who: Any) -> Next:
    root = play.stage.runs[row.root]
    causes: tuple[str, ...] = tuple(json.loads(root.causes)) if root.state == "blocked" else ()
    state: Any = play.stage.calls[row.id].state
    run_state: Any = root.state
    return Next(state, run_state, tuple(play.does), who, causes)
