"""Paying for calls: what starts is reserved with its start, what is staged with what lets it go.

Is there not enough, nothing starts: the call is refused, its run goes back, or a person is asked whether it may pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from amends.approvalrows import BUDGET, ApprovalRow, FindApproval, Need
from amends.budget import ONE, decimal_of, text_of
from amends.budgetrows import Overrun, Want
from amends.charges import PLANNED, RESERVED, Charge, planned, read_charge, written
from amends.ledger import Admission, AdmitCall, SettleCall
from amends.phrases import limit_words
from amends.plain import digest
from amends.rows import CallRow, ListCalls, RunRow, UpdateCall, UpdateRun
from amends.store.budgets import reserve
from amends.store.change import note
from amends.store.requests import ask_anew, replace_request

# ---- a new call ---------------------------------------------------------------------------


async def charge_for(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, *, pivots: bool = False
) -> dict[str, Any] | Admission | Overrun:
    """What a call that starts now costs is reserved, and with a pivot what its outbox will: its charge, or the answer.

    An ``Overrun`` is for a person to decide.
    """
    outbox = await outbox_of(run) if pivots and root.charged else []
    if not op.costs.costs and not outbox:
        return {}
    staged = await _unpaid(outbox)
    wants = [*op.costs.wants, *(want for _, charge in staged for want in charge.wants)]
    taken = await reserve(wants, root, now=now, wide=op.costs.wide or bool(staged))
    if taken.again:
        return Admission("again", run=run)
    if taken.over is not None:
        over = replace(taken.over, tool=_tools_of(taken.over, [(op.tool, op.costs.wants), *_named(staged)]))
        if over.want.holds and any(op.costs.ask):
            return over
        return Admission("refused", run=await refused(over, run, root, now, by=op.owner), law="budget", over=over)
    parts = list(taken.parts)
    mine = [parts.pop(0) for want in op.costs.wants if want.per != "call"]
    await _write_reserved(staged, parts)
    return {"cost": written(_reserved(planned(op.costs), mine))} if op.costs.costs else {}


async def refused(over: Overrun, run: RunRow, root: RunRow, now: float, *, by: str, at_end: bool = False) -> RunRow:
    """The refusal is in the record. The run goes back where the budget says so, or where this was its end (``at_end``),
    but never over a pivot.
    """
    words = {"unit": over.want.unit, "cap": text_of(over.want.cap), "per": over.want.per, "then": over.want.then}
    amounts = {"spent": text_of(over.spent), "reserved": text_of(over.reserved), "asked": text_of(over.asked)}
    await note(run, "refused", at=now, by=by, epoch=root.epoch, law="budget", tool=over.tool, **words, **amounts)
    if not (over.want.then == "rollback" or at_end) or run.phase != "open" or run.pivot or run.goal == "rollback":
        return run
    why = f"{over.tool} would have passed a budget{'' if at_end else ' that takes the run back'}"
    await note(run, "goal", at=now, by="budget", epoch=root.epoch, to="rollback", why=why)
    return await UpdateRun(run, {"goal": "rollback", "goal_by": "budget", "goal_why": why})


async def remember_cost(op: AdmitCall, root: RunRow, reserved: str) -> tuple[str, dict[str, str]]:
    """The charge of a new call, reserved or planned, and what it is by unit."""
    if not reserved and op.costs.wants and not root.charged:
        await UpdateRun(root, {"charged": 1})
    charge = planned(op.costs)
    return reserved or written(charge), charge.totals(RESERVED)


# ---- a call that is in the ledger ---------------------------------------------------------


async def pay_start(
    run: RunRow, root: RunRow, call: CallRow, approval: ApprovalRow | None, need: Need | None, *, now: float, by: str
) -> Overrun | tuple[CallRow, ApprovalRow] | None:
    """What a recorded call costs is reserved for its first start, and with a pivot what its outbox will.

    Otherwise which budget has not enough; or, where that asks a person, the call held and the request.
    """
    pivots = call.kind == "pivot" and not call.violation and root.charged
    calls = {one.id: one for one in (call, *(await outbox_of(run) if pivots else ()))}
    lets = approval is not None and approval.is_about_money
    over = await _reserve_recorded(
        calls.values(), root, now, passing=frozenset(calls) if lets else frozenset(), by=approval
    )
    if over is None:
        return None
    ask = read_charge(call.cost).ask if call.cost else ("", "")
    if not over.want.holds or not any(ask):
        await refused(over, run, root, now, by=by)
        return over
    asked = need_for(over, ask, need)
    if approval is not None:
        return await replace_request(run, call, approval, asked, "changed", at=now, by=by, epoch=root.epoch)
    return await ask_anew(run, call, asked, at=now, by=by, epoch=root.epoch)


async def pay_staged(
    run: RunRow, root: RunRow, calls: Iterable[CallRow], *, now: float, by: str
) -> Overrun | list[CallRow] | None:
    """What is staged is reserved by what lets it go. Otherwise which budget has not enough, or who waits for a person."""
    calls = list(calls)
    passing: set[str] = set()
    for call in calls:
        request = await FindApproval(call.approval) if call.cost and call.approval else None
        if request is not None and request.is_about_money and request.state in ("approved", "used"):
            passing.add(call.id)
    over = await _reserve_recorded(calls, root, now, passing=frozenset(passing))
    if over is None or not over.want.holds:
        return over
    asked: list[CallRow] = []
    for call, charge in await _unpaid(calls):
        if call.id not in passing and _is_of(over, charge.wants):
            held, _ = await ask_anew(run, call, need_for(over, charge.ask, None), at=now, by=by, epoch=root.epoch)
            asked.append(held)
    return asked


async def _reserve_recorded(
    calls: Iterable[CallRow], root: RunRow, now: float, *, passing: frozenset[str], by: ApprovalRow | None = None
) -> Overrun | None:
    charges = await _unpaid(calls)
    if not charges:
        return None
    charges = [(call, _passing(call, charge, by) if call.id in passing else charge) for call, charge in charges]
    wants = [want for _, charge in charges for want in charge.wants]
    taken = await reserve(wants, root, now=now, wide=True)
    if taken.over is not None:
        return replace(taken.over, tool=_tools_of(taken.over, _named(charges)))
    await _write_reserved(charges, list(taken.parts))
    return None


def _passing(call: CallRow, charge: Charge, by: ApprovalRow | None) -> Charge:
    wants = tuple(replace(want, passes=True) if want.holds else want for want in charge.wants)
    return replace(charge, wants=wants, passed=call.approval if by is None else by.id)


async def outbox_of(run: RunRow) -> list[CallRow]:
    """The staged calls of this run that cost something."""
    waiting = await ListCalls(run.root, ("held", "ready"))
    return [call for call in waiting if call.run == run.uid and call.is_staged and call.cost]


async def with_actuals(call: CallRow, op: SettleCall, root: RunRow, now: float) -> str:
    """The call's charge with what its body said that it spent; what nobody reserved is taken now, cap or not."""
    charge = read_charge(call.cost) if call.cost else Charge(RESERVED)
    said = {unit for unit, _ in op.spent}
    charge.silent = tuple(unit for unit in charge.said if unit not in said)
    for unit, amount in op.spent:
        charge.said[unit] = charge.said.get(unit, 0) + amount  # an earlier attempt may have spent as well
        charge.costs.setdefault(unit, (0, ONE))
    known = {unit for _, unit, _ in charge.taken}
    wants = [want for want in op.wants if want.unit not in known]  # an earlier attempt may have said it, too
    if wants:
        taken = await reserve(wants, root, now=now, wide=True, forced=True)
        charge.taken += taken.parts
    return written(charge)


# ---- asking a person ----------------------------------------------------------------------


def need_for(over: Overrun, ask: tuple[str, str], rule: Need | None) -> Need:
    """What a person is asked about a call that would pass a cap; what a rule asks for besides is part of it."""
    why = limit_words(decimal_of(over.want.cap), over.want.unit, over.want.per, over.want.every)
    policy = (
        f"{BUDGET}{digest('policy', over.want.unit, over.want.cap, over.want.per, over.want.every, over.want.tool)}"
    )
    need = Need(ask[0], ask[1], why=why, policy=policy)
    if rule is None:
        return need
    return replace(need, needed=rule.needed, roles=rule.roles, reasons=rule.reasons, expires_s=rule.expires_s)


def asked_again(op: AdmitCall, request: ApprovalRow) -> Need | None:
    """The same once more, for a request that ran out; None: it was not about a budget."""
    if not request.is_about_money or not any(op.costs.ask):
        return None
    return Need(*op.costs.ask, why=request.rule, policy=request.policy, needed=request.needed)


# ---- charges ------------------------------------------------------------------------------


async def _unpaid(calls: Iterable[CallRow]) -> list[tuple[CallRow, Charge]]:
    charges = [(call, read_charge(call.cost)) for call in calls if call.cost]
    return [(call, charge) for call, charge in charges if charge.phase == PLANNED]


def _reserved(charge: Charge, parts: Iterable[tuple[str, str, int]]) -> Charge:
    return replace(charge, phase=RESERVED, taken=list(parts), wants=())


async def _write_reserved(charges: Iterable[tuple[CallRow, Charge]], parts: list[tuple[str, str, int]]) -> None:
    for call, charge in charges:
        mine = [parts.pop(0) for want in charge.wants if want.per != "call"]
        await UpdateCall(call, {"cost": written(_reserved(charge, mine))})


def _named(charges: Iterable[tuple[CallRow, Charge]]) -> list[tuple[str, tuple[Want, ...]]]:
    return [(call.tool, charge.wants) for call, charge in charges]


def _tools_of(over: Overrun, asked: Iterable[tuple[str, tuple[Want, ...]]]) -> str:
    """Who asked for it: the tools whose wants are of this budget."""
    return ", ".join(dict.fromkeys(tool for tool, wants in asked if _is_of(over, wants)))


def _is_of(over: Overrun, wants: Iterable[Want]) -> bool:
    same = replace(over.want, amount=0, passes=False)
    return any(replace(want, amount=0, passes=False) == same for want in wants)
