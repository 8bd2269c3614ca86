"""Apply the rules to a call, and combine them with the tool's own needs_approval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

from amends.budgets import Budget, text_of
from amends.encoding.canonical import digest
from amends.encoding.dataclass import dataclass
from amends.engine.costs import cost_of
from amends.engine.session import Ask, Session, describe_error, error_text, moment, request_of
from amends.ledger.rows import Entry, Need, write_timetable
from amends.ledger.world import ReadClocks
from amends.model import Request
from amends.tools.rules import EXPIRES_S, Escalation, Judged, Rule, RuleTest, RuleVerdict, yes_or_no
from amends.tools.spec import Spec


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the rules decided, before the request has an id."""

    decision: str
    why: str
    needed: int = 1
    roles: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    expires_s: float = EXPIRES_S
    first_use: bool = False
    residue: str = ""
    by: str = ""
    """Which rule decided: ``rule 2``, ``tool``, ``undeclared``."""
    timetable: tuple[Entry, ...] = ()
    """What happens while nobody answers."""


def apply_rules(
    rules: Sequence[Rule], spec: Spec, request: Request, at: datetime | None, *, undeclared: bool = False
) -> Ruling | None:
    """Return what the tool and the first matching rule say; None: it may simply start."""
    ruled = _first_match(rules, request, at, undeclared=undeclared)
    if ruled is not None and ruled.decision == "refuse":
        return ruled
    own = _tool_ruling(spec, request)
    if undeclared and (ruled is None or ruled.decision == "allow"):
        lifted = ruled is not None and ruled.decision == "allow"
        own = None if lifted else Ruling("approve", "nobody has declared this tool", by="undeclared")
    if ruled is None or ruled.decision == "allow":
        return own
    if own is None:
        return ruled
    # A tool does not say when a request expires. The rule does, and its deadline and escalations come before that.
    return Ruling(
        "approve", ruled.why, max(own.needed, ruled.needed), ruled.roles, ruled.reasons,
        ruled.expires_s, residue=ruled.residue, by=ruled.by, timetable=ruled.timetable,
    )  # fmt: skip


def _first_match(rules: Sequence[Rule], request: Request, at: datetime | None, *, undeclared: bool) -> Ruling | None:
    """Return the ruling of the first rule that matches.

    A rule about the first use only adds to what later rules say about every use. A rule that may or may not match holds
    the call, or refuses it; later rules are evaluated too, and the stricter of both counts.
    """
    first_use: Ruling | None = None
    unclear: Ruling | None = None
    for number, rule in enumerate(rules, 1):
        judged = rule.judge(request, at, undeclared=undeclared)
        if judged.verdict == "no":
            continue
        found = _ruling(rule, judged, number)
        if judged.verdict == "unclear" and found.decision != "refuse":
            unclear = found if unclear is None else _stricter(unclear, found)
        elif found.decision == "allow" and undeclared and not rule.undeclared:
            continue
        elif not found.first_use:
            every = found if first_use is None or found.decision == "refuse" else _with_first_use(first_use, found)
            return every if unclear is None else _stricter(unclear, every)
        else:
            first_use = first_use or found
    if unclear is not None:
        return unclear if first_use is None else _stricter(unclear, first_use)
    return first_use


def _ruling(rule: Rule, judged: Judged, number: int) -> Ruling:
    """Return what a rule decides; one that may not match allows nothing and accepts no residue."""
    sure = judged.verdict == "matches"
    decision = "approve" if rule.decision == "allow" and not sure else rule.decision
    return Ruling(
        decision, rule.name if sure else f"{rule.name}: {judged.why}", rule.approvers, tuple(rule.roles),
        tuple(rule.reasons), float(rule.expires), rule.first_use and sure, rule.residue if sure else "",
        f"rule {number}", timetable_of(rule),
    )  # fmt: skip


def timetable_of(rule: Rule) -> tuple[Entry, ...]:
    """Return what happens to a request by this rule while nobody answers it, in order of time.

    People are reminded up to ``reminders`` times; after an escalation the count and the interval begin again.
    """
    stages = [one for one in rule.escalate if isinstance(one, Escalation)]
    end = min(rule.deadline or rule.expires, rule.expires)
    starts = [0.0, *(one.after for one in stages)]
    found = [Entry(one.after, "escalate", tuple(one.roles)) for one in stages]
    if rule.remind:
        for start, until in zip(starts, [*starts[1:], end], strict=True):
            times = (start + rule.remind * n for n in range(1, rule.reminders + 1))
            found += [Entry(at, "remind") for at in times if at < until]
    if rule.deadline:
        found.append(Entry(float(rule.deadline), "refuse"))
    return tuple(sorted(found, key=lambda entry: entry.after_s))


def _stricter(held: Ruling, other: Ruling) -> Ruling:
    """Combine a ruling that holds a call with that of another rule."""
    if other.decision == "refuse":
        return other
    if other.decision == "allow":
        return held
    return Ruling(
        "approve", held.why, max(held.needed, other.needed), held.roles or other.roles, held.reasons or other.reasons,
        min(held.expires_s, other.expires_s), by=held.by,
        timetable=held.timetable if held.roles or not other.roles else other.timetable,
    )  # fmt: skip


def _with_first_use(first_use: Ruling, every_use: Ruling) -> Ruling:
    """Combine them: if every use needs approval, so does the first.

    If every use is allowed, the first use still needs its own approval.
    """
    return first_use if every_use.decision == "allow" else every_use


def _tool_ruling(spec: Spec, request: Request) -> Ruling | None:
    """Return what the tool itself requires."""
    needs_approval = spec.needs_approval
    if not callable(needs_approval):
        return Ruling("approve", f"{spec.name} always needs approval", by="tool") if needs_approval else None
    try:
        needs = yes_or_no(needs_approval(request))
    except Exception as error:
        return Ruling("approve", f"needs_approval of {spec.name} raised {error_text(describe_error(error))}", by="tool")
    if needs is None:
        return Ruling("approve", f"needs_approval of {spec.name} returned neither True nor False", by="tool")
    return Ruling("approve", f"{spec.name} says that this call needs approval", by="tool") if needs else None


async def tested(
    rules: Sequence[Rule], budgets: Sequence[Budget], spec: Spec, request: Request, *, at: datetime | None,
    undeclared: bool, meant: str,
) -> RuleTest:  # fmt: skip
    """Return what would happen to this request; the ledger is not read, so only budgets per call are checked.

    ``at``: the time for rules about times; None: now. ``meant``: what the user probably meant by an unknown tool name.
    """
    if at is None and any(rule.tells_time for rule in rules):
        at = moment((await ReadClocks()).wall)
    found = apply_rules(rules, spec, request, at, undeclared=undeclared)
    if found is None or found.decision != "refuse":
        found = _with_call_budgets(spec, request, budgets, found)
    judged = [(rule, rule.judge(request, at, undeclared=undeclared)) for rule in rules]
    verdicts = [
        RuleVerdict(
            number, rule.name, rule.decision, one.verdict, one.why, found is not None and found.by == f"rule {number}"
        )
        for number, (rule, one) in enumerate(judged, 1)
    ]
    allowed = next((one for one in verdicts if found is None and one.verdict == "matches"), None)
    if allowed is not None:
        verdicts[allowed.number - 1] = replace(allowed, decides=True)
    decision: Literal["run", "approve", "refuse"] = "run"
    if found is not None:
        decision = "refuse" if found.decision == "refuse" else "approve"
    return RuleTest(
        tool=spec.name,
        declared=not undeclared,
        decision=decision,
        by=found.by if found is not None else f"rule {allowed.number}" if allowed is not None else "",
        why=found.why if found is not None else allowed.name if allowed is not None else "",
        needed=found.needed if found is not None and decision == "approve" else 0,
        roles=() if found is None else found.roles,
        first_use=found is not None and found.first_use,
        rules=tuple(verdicts),
        meant=meant,
    )


def _with_call_budgets(spec: Spec, request: Request, budgets: Sequence[Budget], found: Ruling | None) -> Ruling | None:
    """Add what budgets per call require to what the rules say."""
    for want in cost_of(spec, request, budgets, "").wants:
        if want.per == "call" and want.amount > want.cap:
            words = f"it would pass {text_of(want.cap)} {want.unit} for one call"
            if want.then != "hold":
                return Ruling("refuse", words, by="budget")
            found = Ruling("approve", words, by="budget") if found is None else found
    return found


async def need_of(session: Session, spec: Spec, request: Request, *, undeclared: bool = False) -> Need | None:
    """Return what the ledger must ask a person for; None: nothing."""
    if not (session.rules or spec.needs_approval or undeclared):
        return None
    at = None
    if any(rule.tells_time for rule in session.rules):
        at = moment((await ReadClocks()).wall)
    found = apply_rules(session.rules, spec, request, at, undeclared=undeclared)
    if found is None:
        return None
    why = session.redactor.scrub(found.why, session.known)  # it may quote what a rule raised
    return Need(
        id=session.new_id("apr"),
        nonce=session.new_id("nonce"),
        decision="refuse" if found.decision == "refuse" else "approve",
        needed=found.needed,
        roles=found.roles,
        reasons=found.reasons,
        expires_s=found.expires_s,
        why=why,
        policy=digest("policy", found.needed, *sorted(found.roles), why, *_escalated(found.timetable)),
        first_use=found.first_use,
        residue=found.residue,
        timetable=write_timetable(found.timetable),
    )


def _escalated(timetable: Sequence[Entry]) -> tuple[str, ...]:
    """Return who may decide after escalations: a rule that names others is another policy."""
    return tuple(f"then {role}" for entry in timetable for role in entry.roles)


async def need_for(session: Session, ask: Ask) -> Need | None:
    """Return what the rules require of this request now."""
    return await need_of(session, ask.spec, request_of(session, ask.spec, ask.fresh()), undeclared=ask.undeclared)


async def residue_rule(session: Session, ask: Ask) -> str:
    """Return the rule whose author accepts the residue of an undeclared tool; empty: there is none."""
    if not ask.undeclared or not any(rule.residue for rule in session.rules):
        return ""
    at = moment((await ReadClocks()).wall)
    found = _first_match(session.rules, request_of(session, ask.spec, ask.fresh()), at, undeclared=True)
    return "" if found is None or found.residue != "accept" else found.why
