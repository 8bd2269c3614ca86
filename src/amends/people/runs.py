"""What a person decides about a run or one of its calls: decide a held call, retry, abandon, finish.

Functions with a host are verbs of the runtime; the others are checks that every decision of a person goes through.
"""

from __future__ import annotations

from inspect import Signature, formatannotation
from typing import Any, Literal, TypeVar

from amends.encoding.annotations import adapter
from amends.encoding.canonical import CLASS
from amends.encoding.payloads import no_longer_fits
from amends.encoding.redaction import REDACTED
from amends.engine.session import must_be_readable, recorded_result, reported_result, result_loss
from amends.errors import RunIsRecord, TransitionRefused, UsageError
from amends.host.host import Host, View
from amends.host.runs import call_row, found, report
from amends.ledger.operations import (
    AbandonRun,
    DecideCall,
    FinishRun,
    ReadRun,
    RetryCall,
    StoreOp,
    Tree,
)
from amends.ledger.rows import CallRow
from amends.model import LOST
from amends.report import Report
from amends.tools.spec import Spec

T = TypeVar("T")


async def decide(
    host: Host, view: View, call_id: str, decision: Literal["run", "replay", "refuse"], *, by: str, why: str
) -> Report:
    """Decide a held call: run it, answer it with the result of its twin, or refuse it."""
    check_reason(by, why)
    if decision not in ("run", "replay", "refuse"):
        raise UsageError(f"a decision is run, replay or refuse, not {decision!r}")
    row = await own_call(view, call_id)
    if decision == "run":
        must_be_readable(row)
    decided = await recorded(DecideCall(call_id, decision, by, why))
    return await report(host, view, uid=decided.root)


async def retry(host: Host, view: View, call_id: str, *, by: str, why: str, result: object = LOST) -> str:
    """Retry a compensation or a retriable that gave up.

    ``result``: what the call returned, for a compensation that was not started because nobody had the result.
    """
    check_reason(by, why)
    row = await own_call(view, call_id)
    text = None if result is LOST else _given_result(host, row, result)
    return (await recorded(RetryCall(call_id, by, why, result=text))).root


def _given_result(host: Host, row: CallRow, result: object) -> str:
    """Return a result that a person gives as the ledger stores it; refuse one that could not be used."""
    spec = host.specs.get(row.tool)
    if spec is None:
        raise UsageError(f"this process does not know {row.tool}", hint="give the result where its tool is declared")
    reader = host.reader(root=row.root)
    is_known = row.state == "compensation_failed" and not result_loss(reader, spec, row)
    if is_known and unfit_result(spec, recorded_result(reader, spec, row)) is None:
        raise UsageError(
            f"call {row.id} ({row.tool}) has its result in the ledger: it cannot be given another one",
            hint=f"rt.retry({row.id!r}, by=..., why=...) starts its compensation again with the recorded result",
        )
    check_result(spec, row, result)
    text, loss = reported_result(reader, spec, row, result)
    if text is None or loss.startswith(REDACTED) or no_longer_fits(text, spec.result_type):
        why = loss or f"it cannot be read as {spec.result_type}"
        raise UsageError(
            f"this result of {row.tool} cannot be kept for its compensation: {why}",
            hint="compensate the call by hand, then rt.resolve(call_id, Happened(None), by=..., why=...)",
        )
    return text


def check_result(spec: Spec, row: CallRow, result: object) -> None:
    """Refuse a result that a person gives, if it is not of the type that the tool or its compensation declares."""
    unfit = unfit_result(spec, result)
    if unfit is not None:
        # Without the value, of which a part may be redacted in the ledger.
        raise UsageError(
            f"this is not a result of {row.tool} ({row.id}): {unfit}",
            hint="nothing was recorded; give the result as the tool returned it",
        )


def unfit_result(spec: Spec, result: object) -> str | None:
    """Return why this is not what the tool returns, or what its compensation takes; None: as far as declared, it is."""
    if result is LOST or result is None or (isinstance(result, dict) and CLASS in result):
        return None  # unknown, or said with its class, which is checked where it is read
    declared = [(spec.result_type, "the tool returns")]
    if spec.compensate is not None:
        declared.append((spec.compensate.result_type, "its compensation takes"))
    for hint, whose in declared:
        if hint is Any or isinstance(hint, str) or hint is Signature.empty:
            continue
        try:
            adapter(hint).validate_python(result, strict=False, by_alias=True, by_name=True)
        except Exception:  # whatever a validator of the user raises, it refuses the value
            return f"it is of type {type(result).__name__}, and {whose} {formatannotation(hint)}"
    return None


async def abandon(host: Host, view: View, run_id: str, *, by: str, why: str) -> Report:
    """Close a run and leave its effects standing; the report names each of them."""
    check_reason(by, why)
    tree = own_run(found(await ReadRun(view.tenant or "", run_id), run_id))
    if tree.run.parent:
        raise UsageError(f"run {run_id} is a child: abandon its root")
    closed = await recorded(AbandonRun(tree.run.uid, by, why))
    return await report(host, view, uid=closed.uid)


async def finish(host: Host, view: View, run_id: str, *, by: str, why: str) -> Report:
    """Close a run that was interrupted after its pivot as committed."""
    check_reason(by, why)
    tree = own_run(found(await ReadRun(view.tenant or "", run_id), run_id))
    closed = await recorded(FinishRun(tree.run.uid, by, why))
    return await report(host, view, uid=closed.uid)


# ---- What every decision is checked for


def check_reason(by: Any, why: Any) -> None:
    """Refuse a decision without a person or without a reason."""
    if not (isinstance(by, str) and by and isinstance(why, str) and why):
        raise UsageError("a decision needs who made it (by=) and why (why=)")


async def own_call(view: View, call_id: str) -> CallRow:
    """Return the row of a call for a verb that changes it; raise ``RunIsRecord`` for one that was loaded."""
    row = await call_row(view, call_id)
    if row.is_loaded:
        tree = await ReadRun(row.tenant, uid=row.run)
        raise RunIsRecord(row.run_id, origin="" if tree is None else tree.run.origin)
    return row


def own_run(tree: Tree) -> Tree:
    """Return the tree for a verb that changes it; raise ``RunIsRecord`` for one that was loaded."""
    if tree.run.origin:
        raise RunIsRecord(tree.run.id, origin=tree.run.origin)
    return tree


async def recorded(decision: StoreOp[T]) -> T:
    """Record a decision; one that does not fit the state is the person's mistake, not a failure of the ledger."""
    try:
        return await decision
    except TransitionRefused as no:
        raise UsageError(str(no), hint="read it again with rt.report or rt.call: it may have changed") from no
