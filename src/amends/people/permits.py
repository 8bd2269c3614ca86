"""What a person sanctions ahead: permits, each an approval that is given before its call is asked for.

Each public function is a verb of the runtime (see ``amends.host.verbs``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from amends.engine.permits import permit_of
from amends.engine.session import ask_for
from amends.errors import BadArguments, NotFound, UsageError
from amends.host.host import Host, View
from amends.ledger.operations import ListPermits, RevokePermit
from amends.ledger.operations import Permit as GivePermit
from amends.model import Permit
from amends.people.expiry import end_of
from amends.people.runs import check_reason
from amends.tools.rule_checks import check_rules_for
from amends.tools.rules import Rule, checked_rules

DAY_S: Final = 86_400.0
USES_MAX: Final = 1_000_000
KEPT: Final = ("args", "hours", "days", "tz", "agent")
"""What a permit keeps of a rule."""
LOST: Final = (
    "approvers", "roles", "expires", "reasons", "why", "remind", "reminders", "escalate", "deadline",
)  # fmt: skip
"""What a rule says about decisions, which a permit does not need: it is one."""


async def permit(
    host: Host,
    view: View,
    tool: Any,
    args: Mapping[str, Any] | Rule | None = None,
    *,
    by: str,
    why: str = "",
    rule: Rule | Mapping[str, Any] | None = None,
    uses: int = 1,
    expires: datetime | timedelta | float | str = DAY_S,
    roles: Sequence[str] = (),
) -> Permit:
    """Approve calls of a tool before they are asked for: with exactly these arguments, or those that a rule matches.

    ``rule``: a ``Rule``, or a mapping as in ``amends.toml``. ``uses``: how many calls. ``expires``: a time, or how long
    from now: a timedelta, seconds, or a string like "12h". ``roles``: those of ``by``, where the rules
    ask for one. Each use writes and consumes an approval of the exact call. Nobody can permit what they ask for
    themselves.
    """
    check_giver(by)
    if type(uses) is not int or not 1 <= uses <= USES_MAX:
        raise UsageError(f"uses= is a whole number from 1 to {USES_MAX:,}, not {uses!r}")
    if isinstance(args, Rule):
        rule, args = _only(args, rule), None
    if (args is None) == (rule is None):
        raise UsageError("a permit is for exactly these arguments (args={...}) or for a rule (rule=Rule(...)): say one")
    if rule is not None:
        [rule] = checked_rules([rule], "permit")
    name = getattr(tool, "name", tool) if not isinstance(tool, str) else tool
    if not isinstance(name, str) or not name:
        raise UsageError(f"a permit names a tool, not {tool!r}")
    said = {"rule": _kept(host, name, rule)} if rule is not None else {"digest": _digest(host, view, name, args or {})}
    theirs = tuple(dict.fromkeys((*host.roles_of(by), *roles)))
    words = json.dumps(said | ({"roles": list(theirs)} if theirs else {}), ensure_ascii=False)
    until = await end_of(expires, "a permit must end")
    return permit_of(await GivePermit(host.new_id("prm"), view.tenant or "", name, words, by, why, until, uses))


async def permits(_host: Host, view: View, tool: str = "") -> list[Permit]:
    """Return the permits that may still be used, oldest first; those of one tool, if one is named."""
    rows, _ = await ListPermits(view.tenant or "", tool)
    return [permit_of(row) for row in rows]


async def revoke(_host: Host, view: View, permit_id: str, *, by: str, why: str) -> Permit:
    """End a permit: it covers no further call. What it has approved stays approved."""
    check_reason(by, why)
    row = await RevokePermit(permit_id, view.tenant or "", by, why)
    if row is None:
        raise NotFound(f"there is no permit {permit_id!r} in this ledger", hint="rt.permits() lists them")
    return permit_of(row)


def check_giver(by: Any) -> None:
    """Refuse a permit that nobody gives."""
    if not (isinstance(by, str) and by.strip()):
        raise UsageError("a permit needs who gives it (by=)")


def _only(given: Rule, rule: Rule | Mapping[str, Any] | None) -> Rule:
    if rule is not None:
        raise UsageError("a permit has one rule: two were given")
    return given


def _kept(host: Host, tool: str, rule: Rule) -> dict[str, Any]:
    if rule.when is not None or rule.first_use or rule.undeclared or rule.residue or rule.decision == "refuse":
        raise UsageError(
            "a permit is kept in the ledger, so its rule has conditions on arguments, times and agents only",
            hint='Rule(args={"cents": "<=5000"}), and no when=, first_use=, undeclared=, residue= or decision="refuse"',
        )
    if rule.tool not in ("*", tool):
        raise UsageError(f"the rule is for {rule.tool!r}, and the permit for {tool!r}")
    plain = Rule()
    if lost := [name for name in LOST if getattr(rule, name) != getattr(plain, name)]:
        raise UsageError(
            f"the rule of a permit says which calls it covers, and this one has {', '.join(f'{name}=' for name in lost)}",
            hint="say uses=, expires=, roles= and why= of the permit itself",
        )
    if tool in host.specs:  # a condition on an argument that the tool does not have would never match
        check_rules_for([replace(rule, tool=tool)], {tool: host.specs[tool]}, origin="permit", approvers=host.approvers)
    kept = {name: getattr(rule, name) for name in KEPT}
    kept["args"], kept["days"] = dict(rule.args), list(rule.days)
    try:
        json.dumps(kept)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the conditions of the rule cannot be written down: {error}") from error
    return {
        name: value for name, value in kept.items() if value not in ("", "*", {}, []) and (name, value) != ("tz", "UTC")
    }


def _digest(host: Host, view: View, name: str, args: Mapping[str, Any]) -> str:
    spec = host.specs.get(name)
    if spec is None:
        raise UsageError(f"this process does not know {name}: its arguments cannot be checked here")
    try:
        bound = spec.bind((), dict(args))
    except BadArguments as bad:
        raise UsageError(f"{name} cannot be called with these arguments: {'; '.join(bad.problems)}") from bad
    session = replace(host.reader(), tenant=view.tenant or "")
    return ask_for(session, spec, bound, fn=spec.fn or _no_body).digest


def _no_body(**_: Any) -> None:
    raise AssertionError("a permit starts nothing")
