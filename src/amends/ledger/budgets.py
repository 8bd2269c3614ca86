"""Reserve the cost of calls in every budget that it counts against, and settle it to what was spent or refunded.

A shared budget has slices. A run reserves in its own slice. Only if that has not enough left, all slices are locked, in
the order of their names, and what is left is distributed anew. So the sum never exceeds the cap, and runs seldom wait
for each other.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from amends.budgets import ONE, amount_in, decimal_of, text_of
from amends.encoding.canonical import digest
from amends.encoding.dataclass import dataclass, field
from amends.errors import limit_words, some_in_words
from amends.ledger.events import goal_facts, write_event
from amends.ledger.operations import Admission, AdmitCall, ListBudgets, ReadSlices, SettleCall
from amends.ledger.queries import list_calls, page_events, page_slices, slices_named
from amends.ledger.rows import (
    APPROVALS,
    BUDGET,
    BUDGETS,
    CALLS,
    RUNS,
    ApprovalRow,
    BudgetDemand,
    CallCost,
    CallRow,
    Need,
    Now,
    Overrun,
    RunRow,
    SliceRow,
)
from amends.ledger.tables import Add, Change, Find

_PERIODS: Final = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}
_SEVERITY: Final = ("rollback", "refuse", "hold")


@dataclass(slots=True)
class _Counter:
    """One budget in this period: what is needed of it, and its slices as they were found."""

    want: BudgetDemand
    period: str
    names: list[str]
    home: str
    need: int = 0
    bound: int = 0
    """How much of it must fit under the cap: a person may have allowed a call to exceed it."""
    rows: dict[str, SliceRow] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        return sum(amount_in(row.reserved) for row in self.rows.values())

    @property
    def spent(self) -> int:
        return sum(amount_in(row.spent) for row in self.rows.values())

    @property
    def is_narrow(self) -> bool:
        """Whether only the run's own slice is looked at."""
        return len(self.rows) < len(self.names)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What was reserved, (slice, unit, amount) for every want; or why nothing was."""

    parts: tuple[tuple[str, str, int], ...] = ()
    over: Overrun | None = None
    again: bool = False
    """The run's own slice does not have enough left: repeat the request with ``wide``."""


async def reserve(
    wants: Sequence[BudgetDemand], root: RunRow, *, now: float, wide: bool, forced: bool = False
) -> Reservation:
    """Reserve everything; or reserve nothing, and say which budget does not have enough left.

    ``wide``: look at all slices of a shared budget, not only at the run's own. ``forced``: exceed the caps if
    necessary, since the cost is spent already.
    """
    homes: list[str] = []
    counters: dict[str, _Counter] = {}
    overs: list[Overrun] = []
    for want in wants:
        is_bound = not want.passes and not forced
        if want.per == "call":
            overs += [Overrun(want, 0, 0, want.amount)] if is_bound and want.amount > want.cap else []
            homes.append("")
            continue
        counter = _counter(want, root, now)
        counter = counters.setdefault(counter.home, counter)
        if want.cap < counter.want.cap:
            counter.want = want  # a call staged under another cap: the lower cap holds for both
        counter.need += want.amount
        counter.bound += want.amount if is_bound else 0
        homes.append(counter.home)
    looked_at = {name: one for one in counters.values() for name in (one.names if wide else [one.home])}
    for name in sorted(looked_at):  # in one order: others lock them as well
        counter = looked_at[name]
        row = await _slice(name, counter, root, wide=wide)
        if row is None:
            return Reservation(again=True)
        counter.rows[name] = row
    lacking = [one for one in counters.values() if _exceeds(one)]
    if any(one.is_narrow for one in lacking):
        return Reservation(again=True)
    overs += [Overrun(one.want, one.spent, one.reserved, one.bound, one.period) for one in lacking]
    if overs:
        gravest, *others = sorted(overs, key=lambda over: _SEVERITY.index(over.want.then))
        return Reservation(over=replace(gravest, also=tuple(others)))
    for counter in counters.values():
        await _take(counter)
    return Reservation(tuple((name, want.unit, want.amount) for name, want in zip(homes, wants, strict=True) if name))


def period_of(every: str, now: float) -> str:
    """Return the hour, day or month of this moment; empty: no period."""
    return time.strftime(_PERIODS[every], time.gmtime(now)) if every else ""


def _counter(want: BudgetDemand, root: RunRow, now: float) -> _Counter:
    tenant = "" if want.per == "ledger" else root.tenant
    period = period_of(want.every, now)
    names = names_of(want, tenant, period)
    return _Counter(want, period, names, names[zlib.crc32(root.uid.encode()) % len(names)])


def names_of(want: BudgetDemand, tenant: str, period: str) -> list[str]:
    """Return the names of the slices of a budget in this period."""
    # Without the cap: a budget whose cap is raised keeps what was spent under the old one.
    ident = digest("budget", tenant, want.unit, want.per, want.every, want.tool, want.then, want.who, period)
    return [ident] if want.per == "run" else slice_names(f"{ident}/")


async def _slice(name: str, counter: _Counter, root: RunRow, *, wide: bool) -> SliceRow | None:
    """Return the slice, locked; a missing slice of a shared budget is created only if ``wide``."""
    row = await Find(BUDGETS, name)
    if row is not None or (not wide and len(counter.names) > 1):
        return row
    first = name == counter.names[0]
    want = counter.want
    who = root.id if want.per == "run" else want.who
    words = {"per": want.per, "every": want.every, "tool": want.tool, "then": want.then, "who": who}
    new = SliceRow(
        name=name,
        tenant="" if want.per == "ledger" else root.tenant,
        root=root.uid if want.per == "run" else "",
        words=json.dumps(words, ensure_ascii=False),
        unit=want.unit,
        cap=text_of(want.cap),
        allot=text_of(want.cap if first else 0),
        reserved="0",
        spent="0",
        period=counter.period,
    )
    return new if await Add(BUDGETS, new, if_absent=True) else await Find(BUDGETS, name)


def _exceeds(counter: _Counter) -> bool:
    """Return whether the slices that were read have less than is needed; one with an outdated cap does not count."""
    if counter.is_narrow:
        home = counter.rows[counter.home]
        return available(home) < counter.need or amount_in(home.cap) != counter.want.cap
    return counter.bound > 0 and counter.spent + counter.reserved + counter.bound > counter.want.cap


async def _take(counter: _Counter) -> None:
    if not counter.need:
        return
    if not counter.is_narrow:
        await _redistribute(counter)
    home = counter.rows[counter.home]
    reserved = amount_in(home.reserved) + counter.need
    counter.rows[counter.home] = await Change(BUDGETS, home, {"reserved": text_of(reserved)})


async def _redistribute(counter: _Counter) -> None:
    """Distribute the cap anew: each slice gets what it has used and an equal part of the rest, in whole requests.

    If the cap is exceeded already, every slice lacks all of the excess: what one of them returns must not be reserved.
    """
    cap, need = counter.want.cap, counter.need
    left = cap - counter.spent - counter.reserved - need
    part = left // need // len(counter.rows) * need if left > 0 else left
    rest = left - part * (len(counter.rows) - 1) if left > 0 else left
    for name, row in counter.rows.items():
        used = amount_in(row.reserved) + amount_in(row.spent)
        allot = used + (rest + need if name == counter.home else part)
        changes = {"cap": text_of(cap), "allot": text_of(allot)}
        if any(getattr(row, column) != text for column, text in changes.items()):
            counter.rows[name] = await Change(BUDGETS, row, changes)


# ---- Costs of calls: a call's cost is reserved with its start, a staged call's with the decision to run it
#
# If there is not enough, nothing starts: the call is refused, its run is rolled back, or a person is asked to allow it.


EVENTS_PAGE: Final = 500
_NO_FACTS: Final[Mapping[str, str]] = {}
PAGES_MAX: Final = 10_000
"""The most pages of one run's events that are searched for the answer to a request."""

# ---- New calls


async def reserve_new_call(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, *, pivots: bool = False
) -> dict[str, Any] | Admission | Overrun:
    """Reserve the cost of a call that starts now, and with a pivot that of its outbox.

    Returns the columns of its charge, or the answer if nothing was reserved; an ``Overrun`` is for a person to decide.
    """
    outbox = await staged_with_cost(run) if pivots and root.charged else []
    if not op.costs.costs and not outbox:
        return {}
    staged = await planned_charges(outbox)
    wants = [*op.costs.wants, *(want for _, charge in staged for want in charge.wants)]
    taken = await reserve(wants, root, now=now, wide=op.costs.wide or bool(staged))
    if taken.again:
        return Admission("again", run=run)
    if taken.over is not None:
        over = replace(taken.over, tool=_tools_of(taken.over, [(op.tool, op.costs.wants), *_named(staged)]))
        if over.want.holds and any(op.costs.ask):
            return over
        asked = {"asks": op.tool, "ident": op.ident, "again": op.again, "parent": op.parent}
        run = await refuse_by_budget(over, run, root, now, by=op.owner, request=op.call_id, asked=asked)
        return Admission("refused", run=run, law="budget", over=replace(over, also=()))
    parts = list(taken.parts)
    mine = [parts.pop(0) for want in op.costs.wants if want.per != "call"]
    await _write_reserved(staged, parts)
    return {"cost": dump_charge(_reserved(planned_charge(op.costs), mine))} if op.costs.costs else {}


async def refuse_by_budget(
    over: Overrun, run: RunRow, root: RunRow, now: float, *, by: str, request: str, asked: Mapping[str, str] = _NO_FACTS
) -> RunRow:
    """Record that a budget refused a call, or the end of a run; set the goal ``rollback`` if that follows.

    It follows if the budget says so, or if this was the run's end, but never after a pivot. ``request``: the id of the call,
    or the uid of the run at its end. ``asked``: the identity of the refused request, for a replay.
    """
    at_end = request == run.uid
    words = {name: getattr(over.want, name) for name in ("unit", "per", "every", "then", "who")}
    amounts = {"spent": text_of(over.spent), "reserved": text_of(over.reserved), "asked": text_of(over.asked)}
    await write_event(
        run, "refused", at=now, by=by, epoch=root.epoch, law="budget", tool=over.tool, cap=text_of(over.want.cap),
        amount=text_of(over.want.amount), pattern=over.want.tool, period=over.period, request=request, **words, **amounts,
        **asked,
    )  # fmt: skip
    if not (over.want.then == "rollback" or at_end) or run.phase != "open" or run.pivot or run.goal == "rollback":
        return run
    why = f"{over.tool} would have exceeded a budget{'' if at_end else ' that rolls the run back'}"
    aim = {"goal": "rollback", "goal_by": "budget", "goal_why": why}
    await write_event(
        run, "goal", at=now, by="budget", epoch=root.epoch, to="rollback", why=why, **goal_facts(run, aim)
    )
    return await Change(RUNS, run, aim)


async def earlier_refusal(run: RunRow, request: str) -> Overrun | None:
    """Return the answer that this request got, if a budget refused it and rolled the run back; None otherwise."""
    if run.goal_by != "budget":
        return None
    after, found = 0, None
    for _ in range(PAGES_MAX):
        page = await page_events(run.root, None, after, EVENTS_PAGE)
        for event in page:
            facts = json.loads(event.facts) if event.what == "refused" and event.run == run.uid else {}
            found = facts if facts.get("request") == request else found
        if len(page) < EVENTS_PAGE:
            break
        after = page[-1].n
    return None if found is None else overrun_in(found)


async def initial_charge(op: AdmitCall, root: RunRow, reserved: str) -> tuple[str, dict[str, str]]:
    """Return the charge of a new call, reserved or planned, and its cost by unit."""
    if not reserved and op.costs.wants and not root.charged:
        await Change(RUNS, root, {"charged": 1})
    charge = planned_charge(op.costs)
    return reserved or dump_charge(charge), charge.totals(RESERVED)


# ---- Recorded calls


async def reserve_recorded(
    calls: Iterable[CallRow],
    root: RunRow,
    now: float,
    *,
    allowed_limits: Mapping[str, Mapping[str, int]] | None = None,
    by: ApprovalRow | None = None,
) -> Overrun | None:
    """Reserve the cost of recorded calls; ``allowed_limits``: by call, which limits a person allowed it to exceed."""
    allowed = allowed_limits or {}
    charges = await planned_charges(calls)
    if not charges:
        return None
    charges = [
        (call, _with_allowed(call, charge, allowed[call.id], by) if call.id in allowed else charge)
        for call, charge in charges
    ]
    wants = [want for _, charge in charges for want in charge.wants]
    taken = await reserve(wants, root, now=now, wide=True)
    if taken.over is not None:
        return replace(taken.over, tool=_tools_of(taken.over, _named(charges)))
    await _write_reserved(charges, list(taken.parts))
    return None


def _with_allowed(call: CallRow, charge: Charge, allowed: Mapping[str, int], by: ApprovalRow | None) -> Charge:
    wants = tuple(replace(want, passes=True) if limit_of(want) in allowed else want for want in charge.wants)
    if wants == charge.wants:
        return charge
    return replace(charge, wants=wants, passed=call.approval if by is None else by.id)


async def with_current_caps(call: CallRow, op: AdmitCall) -> CallRow:
    """Return the call with today's caps if it is not charged yet and its cost is the same: the requester knows them."""
    if not call.cost or call.state not in ("held", "ready") or call.digest != op.digest:
        return call
    charge = read_charge(call.cost)
    if charge.phase != PLANNED or charge.wants == op.costs.wants:
        return call
    if charge.costs != planned_charge(op.costs).costs:
        return call  # a person may have been shown its cost
    return await Change(CALLS, call, {"cost": dump_charge(replace(charge, wants=op.costs.wants))})


async def staged_with_cost(run: RunRow) -> list[CallRow]:
    """Return the staged calls of this run that have a cost."""
    waiting = await list_calls(run.root, ("held", "ready"))
    return [call for call in waiting if call.run == run.uid and call.is_staged and call.cost]


async def with_reported_cost(call: CallRow, op: SettleCall, root: RunRow, now: float) -> str:
    """Return the call's charge with the cost that its body reported.

    Units of which nothing was reserved are charged now, even over the cap.
    """
    charge = read_charge(call.cost) if call.cost else Charge(RESERVED)
    reported = {unit for unit, _ in op.spent}
    charge.silent = tuple(unit for unit in charge.reported if unit not in reported)
    for unit, amount in op.spent:
        charge.reported[unit] = charge.reported.get(unit, 0) + amount  # an earlier attempt may have spent as well
        charge.costs.setdefault(unit, (0, ONE))
    known = {unit for _, unit, _ in charge.taken}
    wants = [want for want in op.wants if want.unit not in known]  # an earlier attempt may have reported it, too
    if wants:
        taken = await reserve(wants, root, now=now, wide=True, forced=True)
        charge.taken += taken.parts
    return dump_charge(charge)


# ---- Asking a person


def overrun_need(
    over: Overrun, ask: tuple[str, str], rule: Need | ApprovalRow | None, *, before: Mapping[str, int] | None = None
) -> Need:
    """Return what a person is asked about a call that would exceed budgets; what a rule requires besides is part of it.

    ``before``: the limits that a person allowed this call to exceed already.
    """
    overs = (over, *over.also)
    why = limit_words((decimal_of(one.want.cap), one.want.unit, one.want.per, one.want.every) for one in overs)
    limits = {**(before or {}), **{limit_of(one.want): one.asked for one in overs}}
    policy = BUDGET + ",".join(f"{name}={text_of(amount)}" for name, amount in sorted(limits.items()))
    need = Need(ask[0], ask[1], why=why, policy=policy)
    if rule is None:
        return need
    if isinstance(rule, ApprovalRow):
        return replace(need, needed=rule.needed, roles=_listed(rule.roles), reasons=_listed(rule.reasons))
    return replace(need, needed=rule.needed, roles=rule.roles, reasons=rule.reasons, expires_s=rule.expires_s)


def limit_of(want: BudgetDemand) -> str:
    """Return the name of a limit in a request: with another cap it is another limit."""
    return digest("limit", want.unit, want.cap, want.per, want.every, want.tool)[:16] if want.holds else ""


def limits_in(request: ApprovalRow) -> dict[str, int]:
    """Return which limits a request asks to exceed, and with how much; empty if it is not about a budget."""
    if not request.is_about_money:
        return {}
    parts = [part.partition("=") for part in request.policy.removeprefix(BUDGET).split(",")]
    return {name: amount_in(amount) for name, _, amount in parts if name and amount}


def is_allowed(over: Overrun, allowed: Mapping[str, int]) -> bool:
    """Return whether a person allowed all of it: an approval holds for the limits and the amounts that were shown."""
    return all(one.asked <= allowed.get(limit_of(one.want), -1) for one in (over, *over.also))


async def fresh_ids(ask: tuple[str, str], call: CallRow) -> tuple[str, str]:
    """Return id and nonce for another request: those of the call, or derived from its last request if they are used."""
    if any(ask) and await Find(APPROVALS, ask[0]) is None:
        return ask
    last = await Find(APPROVALS, call.approval)
    assert last is not None, "a call names a request of this ledger"
    return f"apr_{digest('asked again', last.id)[:24]}", digest("asked again", last.nonce)


def repeat_need(op: AdmitCall, request: ApprovalRow) -> Need | None:
    """Return the same need once more, for a request that expired; None: it was not about a budget."""
    if not request.is_about_money or not any(op.costs.ask):
        return None
    return Need(
        *op.costs.ask, why=request.rule, policy=request.policy, needed=request.needed,
        roles=_listed(request.roles), reasons=_listed(request.reasons), timetable=request.timetable,
    )  # fmt: skip


def _listed(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


# ---- Charges


async def planned_charges(calls: Iterable[CallRow]) -> list[tuple[CallRow, Charge]]:
    charges = [(call, read_charge(call.cost)) for call in calls if call.cost]
    return [(call, charge) for call, charge in charges if charge.phase == PLANNED]


def _reserved(charge: Charge, parts: Iterable[tuple[str, str, int]]) -> Charge:
    return replace(charge, phase=RESERVED, taken=list(parts), wants=())


async def _write_reserved(charges: Iterable[tuple[CallRow, Charge]], parts: list[tuple[str, str, int]]) -> None:
    for call, charge in charges:
        mine = [parts.pop(0) for want in charge.wants if want.per != "call"]
        await Change(CALLS, call, {"cost": dump_charge(_reserved(charge, mine))})


def _named(charges: Iterable[tuple[CallRow, Charge]]) -> list[tuple[str, tuple[BudgetDemand, ...]]]:
    return [(call.tool, charge.wants) for call, charge in charges]


def _tools_of(over: Overrun, asked: Iterable[tuple[str, tuple[BudgetDemand, ...]]]) -> str:
    """Return the tools that need something of this budget."""
    return some_in_words(dict.fromkeys(tool for tool, wants in asked if is_of(over, wants)))


def is_of(over: Overrun, wants: Iterable[BudgetDemand]) -> bool:
    same = replace(over.want, amount=0, passes=False)
    return any(replace(want, amount=0, passes=False) == same for want in wants)


# ---- Reading


async def list_budgets(op: ListBudgets) -> tuple[list[SliceRow], float]:
    """Read a page of budget slices, and the ledger's time (``ListBudgets``)."""
    return await page_slices(op.tenant, op.after, op.limit), await Now("")


async def read_slices(op: ReadSlices) -> tuple[list[SliceRow], float]:
    """Read the budget slices of these names, and the ledger's time (``ReadSlices``)."""
    return await slices_named(op.tenant, op.names), await Now("")


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
        row = await Find(BUDGETS, name)
        if row is not None:  # gc removes the slices of a run that ended long ago
            rows[name] = row
    for name, (reserved, spent) in shifts.items():
        if name in rows:
            texts = {
                "reserved": amount_in(rows[name].reserved) + reserved,
                "spent": amount_in(rows[name].spent) + spent,
            }
            rows[name] = await Change(
                BUDGETS, rows[name], {column: text_of(amount) for column, amount in texts.items()}
            )
    for name in grown:
        await _cover_overrun(name, rows)


async def _cover_overrun(name: str, rows: dict[str, SliceRow]) -> None:
    siblings = [sibling for sibling in slice_names(name) if sibling in rows]
    for sibling in siblings:
        lack = -available(rows[name]) if name in rows else 0
        given = min(lack, available(rows[sibling])) if sibling != name else 0
        if given > 0:
            for one, more in ((sibling, -given), (name, given)):
                rows[one] = await Change(BUDGETS, rows[one], {"allot": text_of(amount_in(rows[one].allot) + more)})
    if name in rows and available(rows[name]) < 0:
        # The cap is exceeded. What a sibling returns is not available before the excess is covered, so all of them lack
        # it.
        left = amount_in(rows[name].cap) - sum(_used(rows[sibling]) for sibling in siblings)
        for sibling in siblings:
            if available(rows[sibling]) > left:
                rows[sibling] = await Change(BUDGETS, rows[sibling], {"allot": text_of(_used(rows[sibling]) + left)})


def slice_names(name: str) -> list[str]:
    """Return all slices of the budget that this one belongs to."""
    ident, is_one_of_many, _ = name.partition("/")
    return [f"{ident}/{number}" for number in range(SLICES)] if is_one_of_many else [ident]


def available(row: SliceRow) -> int:
    """Return what this slice still has; negative if something cost more than was declared."""
    return amount_in(row.allot) - _used(row)


def _used(row: SliceRow) -> int:
    return amount_in(row.reserved) + amount_in(row.spent)
