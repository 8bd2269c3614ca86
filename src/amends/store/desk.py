"""A person's words over what is left standing."""

from __future__ import annotations

from typing import Final

from amends.deskops import AcceptCall
from amends.errors import TransitionRefused
from amends.ledger import ResolveCall
from amends.rows import CallRow, FindCall, Now
from amends.store.change import find_run, move_call, unblock
from amends.store.settlement import resolve_call

DOUBTFUL: Final = ("in_doubt", "compensation_in_doubt", "compensation_failed")


async def accept_call(op: AcceptCall) -> CallRow:
    """See ``AcceptCall``. What is certain and stands is accepted only in a run that goes back."""
    call = await FindCall(op.call_id)
    if call is None:
        raise LookupError(f"there is no call {op.call_id!r} in this ledger")
    if op.repeated and call.state == "residue":
        return call
    if call.state in DOUBTFUL:
        return await resolve_call(ResolveCall(op.call_id, "residue", op.by, op.why))
    run = await find_run(call.run)
    if call.state != "succeeded" or call.kind == "read" or call.shared or run.phase != "rolling_back":
        raise TransitionRefused(
            f"call {call.id} ({call.tool}) is {call.state} in run {run.id}, which is {run.state}: "
            "nothing is left standing that could be accepted",
            frm=call.state,
            to="residue",
        )
    now = await Now()
    root = await find_run(call.root)
    call = await move_call(
        run, call, "residue", at=now, by=op.by, epoch=root.epoch, facts={"why": op.why, "accepted": True}, why=op.why
    )
    await unblock(run, at=now, by=op.by, epoch=root.epoch)
    return call
