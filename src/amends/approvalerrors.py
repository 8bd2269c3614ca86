"""Errors about people's decisions. Import them from ``errors``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from amends.error import LedgerError, Refused, Waiting
from amends.phrases import is_a, shown
from amends.visible import visible


class RuleRefused(Refused):
    """A rule of the runtime says no."""

    default_hint = "change the rule, or ask whoever wrote it"

    def __init__(self, tool: str, *, why: str, run_id: str | None = None) -> None:
        super().__init__(
            f"a rule refuses {visible(tool)}: {visible(why or 'no reason given', prose=True)}", run_id=run_id
        )
        self.tool, self.why = tool, why

    def for_model(self) -> str:
        said = f": {shown(self.why)}" if self.why else ""
        return f"Not run: a rule forbids {self.tool} with these arguments{said}. Do not look for another way; tell the user."


class Rejected(Refused):
    """A person said no."""

    def __init__(
        self, tool: str, *, by: str, reason: str, approval: Any = None, call: Any = None, run_id: str | None = None
    ) -> None:
        hint = f"ask for something else, or settle it with {visible(by)}; the same request is answered with the same no"
        message = f"{visible(by)} rejected {visible(tool)}: {visible(reason, prose=True)}"
        super().__init__(message, run_id=run_id, hint=hint)
        self.tool, self.by, self.reason = tool, by, reason
        self.approval, self.call = approval, call

    def for_model(self) -> str:
        return f"A person rejected {self.tool}: {self.reason}. Do not ask again with these arguments."


WHY_VOID: Final[dict[str, str]] = {
    "changed": "what was asked for has changed since",
    "used": "it was used for its one call already",
    "expired": "it ran out before it was used",
    "other_run": "it is for a call of another run",
    "other_tenant": "it is another tenant's",
    "self": "whoever asked for it, or edited it, cannot say yes to it",
    "role": "whoever decides has none of the roles that it needs",
    "revived": "the ledger it stands in was put back to an earlier state",
}
"""Why an approval counts for nothing; the keys are stable."""


class ApprovalVoid(Refused):
    """An approval that counts for nothing: nothing was started by it. ``deciding``: it is told to who decides."""

    def __init__(
        self,
        tool: str,
        *,
        why: str,
        approval: Any = None,
        call: Any = None,
        diff: Mapping[str, tuple[Any, Any]] | None = None,
        expired_at: datetime | None = None,
        deciding: bool = False,
        run_id: str | None = None,
    ) -> None:
        asked = (
            not deciding and getattr(approval, "state", "") == "pending" and why in ("changed", "expired", "revived")
        )
        hint = "a new one was asked for" if asked else "ask for a new one, or look at it with rt.approval(id)"
        words = WHY_VOID[why]
        if deciding and why == "changed":
            words = "the digest is not that of what is asked for"
            hint = "look at it again with rt.approval(id), and decide about the digest that it shows"
            if getattr(approval, "state", "") == "cancelled":
                words = "the request was withdrawn or replaced, or its run has ended or gone back"
                hint = "rt.approvals() lists what waits, rt.report(run_id) says how the run ended"
        super().__init__(f"the approval of {visible(tool)} is void: {words}", hint=hint, run_id=run_id)
        self.tool, self.why, self.approval, self.call = tool, why, approval, call
        self.diff, self.expired_at, self.asked, self.deciding = dict(diff or {}), expired_at, asked, deciding

    def for_model(self) -> str:
        if self.why == "changed" and self.diff:
            was = ", ".join(f"{name}={shown(one)}" for name, (one, _) in self.diff.items())
            now = ", ".join(f"{name}={shown(one)}" for name, (_, one) in self.diff.items())
            what = f"the approval was for {was}, you asked for {now}"
        elif self.why == "expired" and self.expired_at is not None:
            what = f"the approval ran out at {self.expired_at:%Y-%m-%d %H:%M} UTC"
        else:
            what = f"the approval of {self.tool} does not count ({WHY_VOID[self.why]})"
        new = "for the new arguments " if self.why == "changed" and self.diff else ""
        then = f"Approval {new}was requested; do not call it again." if self.asked else "Stop and tell the user."
        return f"Not run: {what}. {then}"


class Held(Waiting):
    """The call waits for a decision; the run cannot commit over it."""

    def __init__(
        self,
        message: str,
        *,
        call: Any,
        reason: str,
        twin: Any = None,
        approval: Any = None,
        may_repeat: bool = False,
        run_id: str | None = None,
    ) -> None:
        verb = "rt.decide(call.id, ...)" if approval is None else f"rt.approve({approval.id!r}, digest=..., by=...)"
        super().__init__(message, run_id=run_id, hint=f"decide with {verb}, then open the run again")
        self.call, self.reason, self.twin, self.approval = call, reason, twin, approval
        self.may_repeat = may_repeat

    def for_model(self) -> str:
        tool = getattr(self.call, "tool", "the call")
        if self.reason == "duplicate" and self.twin is not None:
            is_lost = self.twin.result is None and bool(getattr(self.twin, "loss", None))
            use = "it was done, and its result is not kept" if is_lost else f"use its result: {shown(self.twin.result)}"
            other = 'call again with "again_because"' if self.may_repeat else "go on with other work: a person decides"
            return (
                f"Not run: this looks like the {tool} from before the restart, {shown(dict(self.twin.args))}. "
                f"If it is the same, {use}. "
                f"If it is another one, {other}."
            )
        if self.reason == "budget" and self.approval is not None:
            return f"Not run yet: {self.approval.rule}; a person was asked. Go on with other work, or stop."
        needs = "decision" if self.approval is None else f"approval ({self.approval.id})"
        return (
            f"Not run yet: {tool} needs a person's {needs}. "
            "Do not call it again or look for another way; go on with other work, or stop."
        )


def only_waits(error: BaseException) -> bool:
    """Whether a run that it comes out of waits: for what a ``Waiting`` says, or for a person who was asked anew."""
    return is_a(error, Waiting) or (is_a(error, ApprovalVoid) and error.asked)


class LedgerBehind(LedgerError):
    """The ledger is older than what was done with it: it was restored, and starts nothing until a person looked."""

    default_hint = "compare it with the world, then rt.reconcile_restore(by=..., why=...)"

    def __init__(self, message: str, *, known: int, found: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.known, self.found = known, found
