"""Change the state of runs, calls and approvals.

Every change is guarded by the table of transitions and written with its event in one transaction. In all of these
functions ``at`` is ledger time, ``by`` is who caused the change, ``epoch`` is the epoch of the root's lease, ``facts``
are what the event says, and further keyword arguments are the columns that change with the state.

Also here, because a change of state needs them: what events say about rows, the budget charge of a call, and forks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from amends.encoding.canonical import digest, quoted
from amends.encoding.chain import GENESIS, TEXTS_MAX, bound, link, proof, storable
from amends.encoding.dataclass import changed, dataclass, field
from amends.errors import LeaseLost, RunIsRecord, TransitionRefused
from amends.ledger.operations import AdmitCall, ForkRun, SettleCall, StoreOp
from amends.ledger.rows import (
    FORKS_MAX,
    OPEN,
    AddEvent,
    ApprovalRow,
    BudgetDemand,
    CallCost,
    CallRow,
    DelegationRow,
    DropWaits,
    EventRow,
    FindApproval,
    FindCall,
    FindRun,
    FindSlice,
    FreeLocks,
    ListCalls,
    ListForks,
    ListTree,
    MoveTime,
    Overrun,
    RunRow,
    SliceRow,
    UpdateApproval,
    UpdateCall,
    UpdateRun,
    UpdateSlice,
)
from amends.model import ONE, amount_in, text_of
from amends.states import call_may, run_may

# ---- State changes


async def find_owned(root_uid: str, owner: str, epoch: int) -> RunRow:
    """Return the root if this owner and epoch still hold it; raise ``LeaseLost`` otherwise."""
    return check_owner(await find_run(root_uid), owner, epoch)


def check_owner(root: RunRow, owner: str, epoch: int) -> RunRow:
    """Return the root itself if this owner and epoch hold it; raise ``LeaseLost`` otherwise."""
    if not is_owner(root, owner, epoch):
        raise LeaseLost(
            f"run {root.id} has another owner now (epoch {root.epoch}, not {epoch}); nothing was started",
            hint="another worker continues it",
            run_id=root.id,
        )
    return root


def is_owner(root: RunRow, owner: str, epoch: int) -> bool:
    """Return whether this owner and epoch hold the lease."""
    return root.epoch == epoch and root.owner == owner


async def find_run(uid: str, *, peek: bool = False) -> RunRow:
    """Return the run with this uid, which must exist."""
    row = await FindRun(uid, peek=peek)
    assert row is not None, f"the ledger names a run that it does not have: {uid}"
    return row


def refuse_loaded(run: RunRow) -> None:
    """Raise ``RunIsRecord`` if the run was loaded from another ledger."""
    if run.origin:
        raise RunIsRecord(run.id, origin=run.origin)


async def write_event(
    run: RunRow, what: str, *, at: float, by: str, epoch: int, call: str = "", frm: str = "", to: str = "", **facts: Any
) -> int:
    """Write an event; return its number in its tree. A run loaded from another ledger is refused."""
    refuse_loaded(run)
    kept = {name: value for name, value in facts.items() if value not in (None, "", ())}
    return await AddEvent(
        at=at,
        root=run.root,
        run=run.uid,
        run_id=run.id,
        tenant=run.tenant,
        call=call,
        what=what,
        frm=frm,
        to_state=to,
        by_whom=by,
        epoch=epoch,
        facts=_written(kept) if kept else "{}",
    )


def _written(facts: Mapping[str, Any]) -> str:
    """Return the facts as JSON; most are a string or a number, and are written without an encoder."""
    texts = []
    for name, value in facts.items():
        if type(value) is not str and type(value) is not int:
            return json.dumps(facts, ensure_ascii=False, default=str)
        texts.append(f'"{name}": {quoted(value) if type(value) is str else value}')
    return f"{{{', '.join(texts)}}}"


async def move_call(
    run: RunRow,
    call: CallRow,
    to: str,
    *,
    at: float,
    by: str,
    epoch: int,
    facts: Mapping[str, Any] | None = None,
    **changes: Any,
) -> CallRow:
    """Change the state of a call, write the event, and set its place in the order of settling."""
    if not call_may(call.state, to):
        raise TransitionRefused(
            f"call {call.id} ({call.tool}) is {call.state} and cannot become {to}", frm=call.state, to=to
        )
    cost = changes.get("cost", call.cost)
    if cost:
        changes["cost"], costs = await move_charge(cost, to, kind=call.kind, why=changes.get("why", ""))
        facts = {**(facts or {}), "costs": costs or None}
    said = {**call_facts(to, changes), **(facts or {})}
    seq = await write_event(run, "call", at=at, by=by, epoch=epoch, call=call.id, frm=call.state, to=to, **said)
    if to in ("succeeded", "in_doubt") and call.state not in ("failed", "compensated"):
        changes["settled_seq"] = seq
    elif to == "succeeded":
        changes["settled_seq"] = seq
        changes["late"] = 1
    if to == "dropped" and call.approval:
        await _cancel(run, call, at=at, by=by, epoch=epoch)
    return await UpdateCall(call, {"state": to, **changes})


async def move_approval(
    run: RunRow, row: ApprovalRow, to: str, *, at: float, by: str, epoch: int, why: str = "",
    facts: Mapping[str, Any] | None = None, **changes: Any,
) -> ApprovalRow:  # fmt: skip
    """Change the state of an approval request and write the event; a decided request stays decided."""
    if row.state not in OPEN or (row.state, to) == ("pending", "used"):
        raise TransitionRefused(
            f"approval {row.id} ({row.tool}) is {row.state} and cannot become {to}", frm=row.state, to=to
        )
    given = proof(changes["given"]) if "given" in changes else None
    await MoveTime(at)
    seq = await write_event(
        run, "approval", at=at, by=by, epoch=epoch, call=row.call, frm=row.state, to=to, approval=row.id, why=why,
        given=given, said=decision_digest(row, changes), **(facts or {}),
    )  # fmt: skip
    if to == "used":
        changes["used_seq"] = seq
    # A decided, used or ended request needs no notice any more.
    return await UpdateApproval(row, {"state": to, "tell_at": None, **changes})


async def _cancel(run: RunRow, call: CallRow, *, at: float, by: str, epoch: int) -> None:
    """Cancel the open request of a call that will not be made."""
    row = await FindApproval(call.approval)
    if row is not None and row.state in OPEN:
        await move_approval(run, row, "cancelled", at=at, by=by, epoch=epoch)


async def move_run(
    run: RunRow, to: str, *, at: float, by: str, epoch: int, facts: Mapping[str, Any] | None = None, **changes: Any
) -> RunRow:
    """Change the state of a run and write the event; a final root has no owner and no wake-up time."""
    if not run_may(run.state, to):
        raise TransitionRefused(f"run {run.id} is {run.state} and cannot become {to}", frm=run.state, to=to)
    said = {**(facts or {}), **goal_facts(run, changes)}
    await write_event(run, "run", at=at, by=by, epoch=epoch, frm=run.state, to=to, **said)
    if to in ("committed", "rolled_back", "abandoned"):
        changes |= {"closed_at": at, "owner": "", "lease_until": 0.0, "wake_at": None, "suspended": 0, "causes": "[]"}
        if run.forked_from and run.uid == run.root and to in ENDED_UNCOMMITTED:
            await _wake_sources(run, at=at, by=by)
        if run.locked and run.uid == run.root:
            await _free_locks(run, at=at, by=by, epoch=epoch)
            changes["locked"] = 0
    return await UpdateRun(run, {"state": to, **changes})


async def _free_locks(root: RunRow, *, at: float, by: str, epoch: int) -> None:
    """Free the locks of a tree that has ended, and forget what it waited for."""
    count = await FreeLocks(root.uid)
    await DropWaits(root.uid)
    if count:
        await write_event(root, "locks freed", at=at, by=by, epoch=epoch, count=count)


async def _wake_sources(fork: RunRow, *, at: float, by: str) -> None:
    """Unblock the runs that were not rolled back because of this fork, unless another fork depends on them."""
    for source in await sources(fork, peek=False):
        waits = source.state == "blocked" and source.came_from == "open"
        if waits and all(other.uid == fork.uid for other in await forks_on(source.uid)):
            await unblock(source, at=at, by=by, epoch=source.epoch)


async def count_replays(replays: Mapping[str, int]) -> None:
    """Add up how often calls were answered from the record; counted in memory until the run is closed."""
    for call_id, count in replays.items():
        call = await FindCall(call_id)
        if call is not None and call.replays < count:
            await UpdateCall(call, {"replays": count})


async def unblock(run: RunRow, *, at: float, by: str, epoch: int) -> RunRow:
    """Return a blocked run to its former state after a cause was removed, and let a worker look at it now."""
    if run.state == "blocked":
        run = await move_run(run, run.came_from, at=at, by=by, epoch=epoch, came_from="", causes="[]")
    root = run if run.uid == run.root else await find_run(run.root)
    if root.uid != run.uid and root.state == "blocked":
        root = await move_run(root, root.came_from, at=at, by=by, epoch=epoch, came_from="", causes="[]")
    if not root.owner and root.closed_at is None and not await _waits_for_a_person(root, run):
        root = await UpdateRun(root, {"wake_at": at, "suspended": 0})
    return root if root.uid == run.uid else run


async def _waits_for_a_person(root: RunRow, run: RunRow) -> bool:
    """Return whether it is suspended and another call is still held: one decision does not wake it then."""
    if not root.suspended or "rollback" in (root.goal, run.goal):
        return False
    return any(not call.is_staged for call in await ListCalls(root.uid, ("held",)))


# ---- What events say about rows: digests of payloads, and of columns that are written once
#
# A row is not in the chain, and some of its columns change without an event. What was decided once is proved by the
# event that decided it.


LEARNED: Final = ("learned", "evidence")
GOAL: Final = ("goal", "goal_by", "goal_why")
NONE: Final = "none"
"""How an event says that a run has no goal any more: empty facts are left out."""
WORDS: Final = ("by_whom", "reason", "decided_at")
"""Columns of a request: who decided it, why, and when."""


def proof_of(op: StoreOp[Any], text: str | None) -> str | None:
    """Return the digest of the operation's payload; if the payload is encrypted by now, the digest was made before."""
    return None if text is None else op.proof or proof(text)


def payload_proof(op: ForkRun, row: RunRow | CallRow, name: str) -> str | None:
    """Return the digest of a payload of a whole row; None: there is no payload.

    If the payload is encrypted by now, the digest was made before.
    """
    text: str | None = getattr(row, name)
    if not text:
        return None
    return op.proofs.get(f"{row.uid if isinstance(row, RunRow) else row.id}.{name}") or proof(text)


def settlement_facts(op: SettleCall) -> dict[str, Any]:
    """Return what the event of a settlement says; the fast paths write the same."""
    failure = proof_of(op, op.error) if op.result is None and op.error else None
    return {"attempt": op.attempt, "why": op.why, "result": proof_of(op, op.result), "failure": failure}


def call_columns_digest(one: AdmitCall | CallRow, key: str, generation: int) -> str:
    """Return the digest of the columns of a call that never change after its first event."""
    ident, digest, shared = one.ident, one.digest, one.shared if isinstance(one, CallRow) else ""
    if key.isalnum() and ident.isalnum() and digest.isalnum() and (key + ident + digest).isascii():
        # Written as ``bound`` does it; what the calls of a tool have in common is written once.
        first = spelled(one.tool, one.version, one.kind)
        rest = spelled(
            one.scope, one.declared, one.again, one.call_ref, one.parent, one.grp, one.at_commit, one.undoable,
            one.accepts, shared,
        )  # fmt: skip
        text = f"({first}, '{key}', {generation}, '{ident}', '{digest}', {rest})"
        return sha256(text.encode("ascii")).hexdigest()
    return bound(
        one.tool, one.version, one.kind, key, generation, one.ident, one.digest, one.scope, int(one.declared), one.again,
        one.call_ref, one.parent, one.grp, int(one.at_commit), int(one.undoable), one.accepts, shared,
    )  # fmt: skip


@lru_cache(maxsize=TEXTS_MAX)
def spelled(*parts: str | int) -> str:
    """Return parts of a row as ``bound`` writes them, without the brackets; cached."""
    return ascii(tuple(storable(part) if isinstance(part, str) else int(part) for part in parts))[1:-1]


def run_columns_digest(row: RunRow) -> str:
    """Return the digest of the columns of a run that never change after its first event."""
    return bound(
        row.uid, row.id, row.tenant, row.generation, row.root, row.parent, row.policy, row.order_mode, row.agent,
        row.principal, row.input_digest, row.tags, row.deadline_at, row.forked_from, row.forked_at,
    )  # fmt: skip


def call_facts(to: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the event of a move says about the new texts of the call: reason, alias, a person's refusal."""
    facts = {name: changes[name] for name in ("why", "alias") if name in changes}
    if to == "refused" and "error" in changes:
        facts["failure"] = proof(changes["error"])
    return facts


def learned_facts(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of the call's kept answers and of its evidence."""
    return {name: proof(changes[name]) for name in LEARNED if name in changes}


def goal_facts(run: RunRow, changes: Mapping[str, Any]) -> dict[str, str]:
    """Return what an event says about a changed goal: the goal, who set it and why, all of it each time."""
    if not any(name in changes for name in GOAL):
        return {}
    goal, by, why = (changes.get(name, getattr(run, name)) for name in GOAL)
    return {"goal": goal or NONE, "goal_by": by, "goal_why": why}


def decision_digest(row: ApprovalRow, changes: Mapping[str, Any] | None = None) -> str | None:
    """Return the digest of who decided a request, why and when, after these changes; None: nobody did."""
    new = row if not changes else changed(row, {name: changes[name] for name in WORDS if name in changes})
    words = tuple(getattr(new, name) for name in WORDS)
    return None if words == ("", "", None) else bound(*words)


def delegation_facts(row: DelegationRow) -> str:
    """Return the facts of the event of a delegation: all of it, so that no column can be changed unnoticed."""
    facts = {"by": row.by_whom, "to": row.to_whom, "until": row.until_at, "why": row.why}
    return json.dumps(facts, ensure_ascii=False)


def is_delegated(row: DelegationRow, event: EventRow | None) -> bool:
    """Return whether this event, the first of its chain, made the delegation exactly as the row has it."""
    if event is None or event.what != "delegated":
        return False
    mine = (row.id, row.tenant, row.made_at, row.seq, storable(delegation_facts(row)))
    theirs = (event.root, event.tenant, event.at, event.n, storable(event.facts))
    return mine == theirs and event.hash == link(GENESIS, 1, event.at, event.body)


def request_columns_digest(row: ApprovalRow) -> str:
    """Return the digest of what was asked for, by whom, of whom and until when."""
    return bound(
        row.call, row.run, row.version, row.principal, row.agent, row.nonce, row.needed, row.roles, row.reasons, row.rule,
        row.policy, row.requested_at, row.expires_at, row.use_key, row.residue, row.follows,
        row.editors,
    )  # fmt: skip


# ---- The charge of a call, as its row stores it


PLANNED: Final = "planned"
"""Nothing is taken yet: the call is held, or staged."""
RESERVED: Final = "reserved"
SPENT: Final = "spent"
FAILED: Final = "failed"
"""Returned, except for what the body reported as spent before it failed."""
REFUNDED: Final = "refunded"


@dataclass(slots=True)
class Charge:
    """The budget charge of one call, in billionths."""

    phase: str = PLANNED
    costs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By unit: the declared cost, and the share of it that a compensation refunds."""
    taken: list[tuple[str, str, int]] = field(default_factory=list)
    """Slice, unit and amount of every reservation."""
    wants: tuple[BudgetDemand, ...] = ()
    reported: dict[str, int] = field(default_factory=dict)
    """The cost that the bodies of all attempts reported, by unit."""
    silent: tuple[str, ...] = ()
    """Units that an earlier attempt reported and the last one did not: the last one costs the declared amount."""
    ask: tuple[str, str] = ("", "")
    """See ``CallCost.ask``."""
    passed: str = ""
    """The request by which a person allowed it to exceed a budget."""

    def actual(self, unit: str) -> int:
        """Return the final cost: what the body reported, else the declared amount."""
        asked = 0 if unit in self.reported and unit not in self.silent else self.costs.get(unit, (0, 0))[0]
        return self.reported.get(unit, 0) + asked

    def standing(self, unit: str, asked: int, phase: str) -> tuple[int, int]:
        """Return what a reservation of this amount holds in this phase: reserved, spent."""
        match phase:
            case "reserved":
                return asked, 0
            case "spent":
                return 0, self.actual(unit)
            case "failed":
                return 0, self.reported.get(unit, 0)
            case "refunded":
                actual = self.actual(unit)
                return 0, actual - actual * self.costs.get(unit, (0, ONE))[1] // ONE
        return 0, 0

    def totals(self, phase: str = "") -> dict[str, str]:
        """Return the cost by unit in the current phase, or in the given one: for people and for events."""
        by_unit = {
            unit: sum(self.standing(unit, asked, phase or self.phase)) for unit, (asked, _) in self.costs.items()
        }
        return {unit: text_of(amount) for unit, amount in by_unit.items()}


def read_charge(text: str) -> Charge:
    """Parse what ``dump_charge`` returned."""
    found: dict[str, Any] = json.loads(text)
    return Charge(
        phase=found["is"],
        costs={unit: (amount_in(amount), amount_in(back)) for unit, amount, back in found["costs"]},
        taken=[(name, unit, amount_in(amount)) for name, unit, amount in found.get("taken", ())],
        wants=tuple(BudgetDemand(**one) for one in found.get("wants", ())),
        reported={unit: amount_in(amount) for unit, amount in found.get("said", {}).items()},
        silent=tuple(found.get("silent", ())),
        ask=(found["ask"][0], found["ask"][1]) if "ask" in found else ("", ""),
        passed=found.get("passed", ""),
    )


def dump_charge(charge: Charge) -> str:
    """Return a charge as the call's row stores it."""
    kept: dict[str, Any] = {
        "is": charge.phase,
        "costs": [[unit, text_of(amount), text_of(back)] for unit, (amount, back) in charge.costs.items()],
    }
    if charge.taken:
        kept["taken"] = [[name, unit, text_of(amount)] for name, unit, amount in charge.taken]
    if charge.wants:
        kept["wants"] = [
            {name: getattr(want, name) for name in BudgetDemand.__dataclass_fields__} for want in charge.wants
        ]
    if any(charge.ask) and charge.wants:
        kept["ask"] = charge.ask
    if charge.passed:
        kept["passed"] = charge.passed
    if charge.reported:
        kept["said"] = {unit: text_of(amount) for unit, amount in charge.reported.items()}
    if charge.silent:
        kept["silent"] = charge.silent
    return json.dumps(kept, ensure_ascii=False)


def charge_of_retry(text: str) -> str:
    """Return the charge of a call that is started once more: this attempt has reported nothing yet."""
    charge = read_charge(text)
    charge.silent = tuple(charge.reported)
    return dump_charge(charge)


def planned_charge(bill: CallCost) -> Charge:
    """Return the charge of a call that is not started yet."""
    return Charge(PLANNED, {unit: (amount, back) for unit, amount, back in bill.costs}, wants=bill.wants, ask=bill.ask)


def overrun_in(facts: Mapping[str, Any]) -> Overrun:
    """Return what a budget refused, from the event of the refusal."""
    every, who, period = (facts.get(name, "") for name in ("every", "who", "period"))
    cap, amount, spent, reserved, asked = (
        amount_in(facts[name]) for name in ("cap", "amount", "spent", "reserved", "asked")
    )
    want = BudgetDemand(facts["unit"], cap, facts["per"], every, facts["pattern"], facts["then"], who, amount)
    return Overrun(want, spent, reserved, asked, period, facts["tool"])


# ---- Charges follow the state of the call, in the same transaction


SLICES: Final = 8
"""The slices of a shared budget: so many runs can start calls without waiting for each other."""
LOST_READS: Final = frozenset({"lost", "cancelled"})
"""Reasons of a failed read that may have been sent: its cost may be spent."""


def _next_phase(charge: Charge, to: str) -> str:
    match to:
        case "succeeded":
            return SPENT
        case "failed" | "dropped" | "refused" if charge.phase in (RESERVED, PLANNED):
            return FAILED
        case "compensated":
            return REFUNDED
    return charge.phase  # a doubt keeps its reservation, and so does residue


async def move_charge(text: str, to: str, *, kind: str, why: str = "") -> tuple[str, dict[str, str]]:
    """Return the charge of a call that changes to this state, and what it holds by unit then.

    Its slices are updated.
    """
    charge = read_charge(text)
    if kind == "read" and to == "failed" and why in LOST_READS and charge.phase == RESERVED:
        charge.reported = {unit: amount for unit, (amount, _) in charge.costs.items()} | charge.reported
    phase = _next_phase(charge, to)
    if phase == charge.phase:
        return text, {}
    shifts: dict[str, tuple[int, int]] = {}
    for name, unit, asked in charge.taken:
        before, after = charge.standing(unit, asked, charge.phase), charge.standing(unit, asked, phase)
        reserved, spent = shifts.get(name, (0, 0))
        shifts[name] = reserved + after[0] - before[0], spent + after[1] - before[1]
    await _shift({name: shift for name, shift in shifts.items() if any(shift)})
    charge.phase = phase
    return dump_charge(charge), charge.totals()


async def _shift(shifts: dict[str, tuple[int, int]]) -> None:
    """Update these slices. One that holds more than its allotment gets what its siblings have left."""
    grown = [name for name, shift in shifts.items() if sum(shift) > 0]
    names = {*shifts, *(sibling for name in grown for sibling in slice_names(name))}
    rows: dict[str, SliceRow] = {}
    for name in sorted(names):  # everybody takes them in this order
        row = await FindSlice(name)
        if row is not None:  # gc removes the slices of a run that ended long ago
            rows[name] = row
    for name, (reserved, spent) in shifts.items():
        if name in rows:
            texts = {
                "reserved": amount_in(rows[name].reserved) + reserved,
                "spent": amount_in(rows[name].spent) + spent,
            }
            rows[name] = await UpdateSlice(rows[name], {column: text_of(amount) for column, amount in texts.items()})
    for name in grown:
        await _cover_overrun(name, rows)


async def _cover_overrun(name: str, rows: dict[str, SliceRow]) -> None:
    siblings = [sibling for sibling in slice_names(name) if sibling in rows]
    for sibling in siblings:
        lack = -available(rows[name]) if name in rows else 0
        given = min(lack, available(rows[sibling])) if sibling != name else 0
        if given > 0:
            for one, more in ((sibling, -given), (name, given)):
                rows[one] = await UpdateSlice(rows[one], {"allot": text_of(amount_in(rows[one].allot) + more)})
    if name in rows and available(rows[name]) < 0:
        # The cap is exceeded. What a sibling returns is not available before the excess is covered, so all of them lack
        # it.
        left = amount_in(rows[name].cap) - sum(_used(rows[sibling]) for sibling in siblings)
        for sibling in siblings:
            if available(rows[sibling]) > left:
                rows[sibling] = await UpdateSlice(rows[sibling], {"allot": text_of(_used(rows[sibling]) + left)})


def slice_names(name: str) -> list[str]:
    """Return all slices of the budget that this one belongs to."""
    ident, is_one_of_many, _ = name.partition("/")
    return [f"{ident}/{number}" for number in range(SLICES)] if is_one_of_many else [ident]


def available(row: SliceRow) -> int:
    """Return what this slice still has; negative if something cost more than was declared."""
    return amount_in(row.allot) - _used(row)


def _used(row: SliceRow) -> int:
    return amount_in(row.reserved) + amount_in(row.spent)


# ---- Forks that depend on a run


ENDED_UNCOMMITTED: Final = ("rolled_back", "abandoned")


async def forks_on(root: str) -> list[RunRow]:
    """Return the open or committed forks that depend on this tree; forks of its forks too, whatever their state."""
    found: list[RunRow] = []
    todo = [root]
    seen = 0
    while todo and seen < FORKS_MAX:
        for fork in await ListForks(todo.pop(0)):
            seen += 1
            todo.append(fork.uid)
            if fork.state not in ENDED_UNCOMMITTED and not fork.origin:
                found.append(fork)
    return found


async def forks_sharing(root: str, calls: Collection[str]) -> list[RunRow]:
    """Return the forks on this tree that share one of these calls."""
    forks = await forks_on(root)
    return [fork for fork in forks if any(call.shared in calls for call in await ListCalls(fork.uid))]


async def sources(fork: RunRow, *, peek: bool = True) -> list[RunRow]:
    """Return the run that this one was forked from, the one that that was forked from, and so on.

    If they are locked, then from the youngest to the oldest; everybody who locks more than one does it in this order.
    """
    found: list[RunRow] = []
    uid = fork.forked_from
    while uid and len(found) < FORKS_MAX:
        row = await FindRun(uid, peek=peek)
        assert row is not None, "a fork names a run of this ledger"
        found.append(row)
        uid = row.forked_from
    return found


def is_rolling_back(run: RunRow) -> bool:
    """Return whether the effects of this run are being compensated, were, or will be."""
    return run.phase in ("rolling_back", "rolled_back") or (run.goal == "rollback" and run.phase == "open")


async def rolled_back_source(fork: RunRow) -> RunRow | None:
    """Return the run under this fork that is rolling back or was rolled back.

    None: what the fork shares is still valid.
    """
    if not fork.forked_from:
        return None
    return next((run for run in await sources(fork) if run.phase in ("rolling_back", "rolled_back")), None)


# ---- A run with its descendants, and the forks that depend on it


async def subtree(run: RunRow) -> list[RunRow]:
    """Return the run and its descendants, parents first."""
    inside = {run.uid}
    rows = [run]
    for row in await ListTree(run.root):
        if row.parent in inside and row.uid not in inside:
            inside.add(row.uid)
            rows.append(row)
    return rows


async def mark_of(run: RunRow) -> str:
    """Return the digest of the state of the run: see ``tree_mark``."""
    runs = await subtree(run)
    inside = {row.uid for row in runs}
    calls = [call for call in await ListCalls(run.root) if call.run in inside]
    return tree_mark(runs, calls, await forks_on(run.root))


async def forks_of(run: RunRow) -> list[RunRow]:
    """Return the forks that share a call of this run or of its descendants, while it could still be rolled back."""
    if run.phase not in ("open", "committed") or not await forks_on(run.root):
        return []
    inside = {row.uid for row in await subtree(run)}
    return await forks_sharing(run.root, {call.id for call in await ListCalls(run.root) if call.run in inside})


async def forks_are_gone(run: RunRow) -> bool:
    """Return whether the run, or one inside it, waited for forks to end before rolling back, and all of them have.

    Checked in the transaction that blocks it: a fork that ended just before found nobody to wake.
    """
    if run.uid != run.root:
        return False
    waiting = [one for one in await subtree(run) if one.goal == "rollback" and one.phase == "open" and not one.pivot]
    return any([not await forks_of(one) for one in waiting])


# ---- The state of a tree in one digest, with which a planned rollback is compared in the ledger's transaction


def tree_mark(runs: Iterable[RunRow], calls: Iterable[CallRow], forks: Iterable[RunRow] = ()) -> str:
    """Return a digest of all that a rollback of this tree depends on, forks included.

    Reads, heartbeats, takeovers and probes that decided nothing do not change it: none of them changes an effect.
    """
    parts: list[str | int | None] = ["tree"]
    for run in sorted(runs, key=lambda run: run.uid):
        parts += [run.uid, run.parent, run.state, run.came_from, run.goal, run.pivot, run.staged_pivot]
    for call in sorted(calls, key=lambda call: call.id):
        if call.kind != "read":
            parts += [call.id, call.run, call.kind, call.state, call.attempt, call.settled_seq, call.tries_from]
            parts += [call.comp_attempt, call.comp_from, call.comp_gave_up, call.undoable, call.violation, call.grp]
            parts += [call.args, call.result, call.evidence]
    return digest(*parts, *sorted(fork.uid for fork in forks))
