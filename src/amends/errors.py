"""Every error amends raises; blame is in the branch.

Error                            .code .hint .run_id .for_model() .to_dict()
  UsageError                     fix your code; nothing was started
    BadDeclaration               .tool .where
    NoRun                        .tool
    WrongColour                  .tool
    NotAwaited                   .tool .tools
    NotStorable                  .path
    TooLarge                     .path .size .limit
    RunEnded                     .state
    RunConflict                  .recorded .given
    BadConfig                    .setting .origin
      BadRule                    .rule .tool .argument .meant
    CannotJoin                   .tool
    BadCost                      .tool .why
    TransactionOpen
    BadBundle                    .problem
    RunTaken
    RunIsRecord                  .origin
    Diverged                     .how .tool .call .given .diff
    ReplayDenied                 .what
  Refused                        amends said no; nothing was started; a model can act on it
    UnknownTool                  .tool .known
    BadArguments                 .tool .problems
    OutOfOrder                   .tool .law .missing .unsettled .allowed .pivot
    KeyConflict                  .tool .call .given .diff .may_repeat
    GenerationsSpent             .tool .limit
    Locked                       .tool .lock .holder .since .held_s .waited
    Deadlocked                   .tool .why
    BudgetExceeded               .tool .budget .period .spent .reserved .asked .left
    RuleRefused                  .tool .why
    Rejected                     .tool .by .reason .approval .call
    ApprovalVoid                 .tool .why .approval .call .diff .expired_at .asked .deciding
    ResultLost                   .what .why .call
      ResultGone                 .gone_at
    StalePlan                    .plan .now
    LinkVoid                     .why
  ToolError                      a tool failed
    ToolFailed                   .call .type_name .message
    InDoubt                      .call .why
    RunBlocked                   .residue .doubts .causes
    NotDelivered                 .status .passing
  RolledBack                     .report
  Waiting                        not an error, not yet; never rolls back
    Held                         .call .reason .twin .approval .may_repeat
    Busy                         .owner .retry_after
  LedgerError                    the record could not be kept
    LedgerUnavailable
    LedgerMissing
    LedgerTooNew
    LedgerCorrupt
    LedgerSealed
    LedgerBehind                 .known .found
    LeaseLost
    TransitionRefused            .frm .to
    LedgerTampered               .event .how

A tool's own exception comes out of a direct call as itself. Data lives in attributes; never match prose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from amends.approvalerrors import ApprovalVoid as ApprovalVoid
from amends.approvalerrors import Held as Held
from amends.approvalerrors import LedgerBehind as LedgerBehind
from amends.approvalerrors import Rejected as Rejected
from amends.approvalerrors import RuleRefused as RuleRefused
from amends.bundleerrors import BadBundle as BadBundle
from amends.bundleerrors import RunIsRecord as RunIsRecord
from amends.bundleerrors import RunTaken as RunTaken
from amends.error import Error as Error
from amends.error import LedgerError as LedgerError
from amends.error import Refused as Refused
from amends.error import ToolError as ToolError
from amends.error import UsageError as UsageError
from amends.error import Waiting as Waiting
from amends.forkerrors import CannotFork as CannotFork
from amends.noticeerrors import LinkVoid as LinkVoid
from amends.noticeerrors import NotDelivered as NotDelivered
from amends.overspent import BadCost as BadCost
from amends.overspent import BudgetExceeded as BudgetExceeded
from amends.phrases import close_to, listed, out_of_order, what_to_call
from amends.phrases import shown as shown
from amends.replayerrors import Diverged as Diverged
from amends.replayerrors import ReplayDenied as ReplayDenied

# ---- UsageError ---------------------------------------------------------------------------


class BadDeclaration(UsageError):
    """A tool was declared in a way that makes no sense."""

    default_hint = "correct the declaration of this tool; its place is in the message"

    def __init__(self, message: str, *, tool: str, where: str = "", hint: str | None = None) -> None:
        super().__init__(f"{message} ({where})" if where else message, hint=hint)
        self.tool = tool
        self.where = where


class _OfTool(UsageError):
    def __init__(self, message: str, *, tool: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.tool = tool


class NoRun(_OfTool):
    """A tool was called outside a run, on a thread that lost it, or inside a probe or compensation."""

    default_hint = "open one with `with rt.run():`; carry it into a thread with run.submit or run.bind"


class WrongColour(_OfTool):
    """A blocking tool called directly in an async run, or the reverse."""

    default_hint = "await the tool in an async run, call it plainly in a blocking one, or use run.call, which does both"


class NotAwaited(_OfTool):
    """A guarded call of an async run was made and never awaited: nothing of it was done."""

    default_hint = "put `await` before the call, or give it to run.submit"

    def __init__(self, message: str, *, tool: str, tools: Sequence[str] = (), run_id: str | None = None) -> None:
        super().__init__(message, tool=tool)
        self.tools = tuple(tools) or (tool,)
        self.run_id = run_id


class NotStorable(UsageError):
    """A value that cannot be written down."""

    default_hint = "pass an id or plain data instead"

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class TooLarge(UsageError):
    """A value larger than the ledger takes."""

    def __init__(self, message: str, *, path: str, size: int, limit: int) -> None:
        super().__init__(message, hint="pass an id or a file name instead of the content")
        self.path, self.size, self.limit = path, size, limit


class RunEnded(UsageError):
    """The run is closed: committed, taken back, or being taken back."""

    default_hint = "open a new run for more work; rt.report(run_id) shows how this one ended"

    def __init__(self, message: str, *, state: str, run_id: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.state = state

    def for_model(self) -> str:
        return f"This task is closed ({self.state.replace('_', ' ')}): nothing more can run in it. Tell the user."


class RunConflict(UsageError):
    """This run id was opened before with another input, or for another principal."""

    default_hint = "give this work its own run id, or open it with the recorded input"

    def __init__(
        self, message: str, *, recorded: object, given: object, run_id: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.recorded, self.given = recorded, given


class BadConfig(UsageError):
    """A setting that cannot be used."""

    default_hint = "correct the setting where the message says it comes from; amends doctor shows all of them"

    def __init__(self, message: str, *, setting: str, origin: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.setting, self.origin = setting, origin


class BadRule(BadConfig):
    """A rule that cannot be read, or that could never match the tool it names as it is meant."""

    default_hint = "mend the rule; then amends rules test TOOL ARGS says what each rule makes of a call"

    def __init__(
        self,
        message: str,
        *,
        rule: int,
        tool: str = "",
        argument: str = "",
        meant: str = "",
        origin: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message, setting="rules", origin=origin, hint=hint)
        self.rule, self.tool, self.argument, self.meant = rule, tool, argument, meant


class CannotJoin(_OfTool):
    """The record of this call cannot be part of the transaction that ``connection=`` brings."""

    default_hint = "call the tool without connection=, or give the runtime the database that the connection belongs to"


class TransactionOpen(UsageError):
    """A call rides in the caller's transaction, which is still open: what was asked for would wait for its caller."""

    default_hint = "commit or roll back the transaction first; a call that belongs to it gets connection= as well"


# ---- Refused ------------------------------------------------------------------------------


class UnknownTool(Refused):
    """No tool of that name is declared to this runtime."""

    def __init__(self, tool: str, *, known: Sequence[str] = ()) -> None:
        close = close_to(tool, known)
        hint = f'did you mean "{close[0]}"?' if close else "pass it in Runtime(tools=[...])"
        super().__init__(f'there is no tool "{tool}"', hint=hint)
        self.tool, self.known = tool, tuple(known)
        self._close = close

    def for_model(self) -> str:
        guess = f' Did you mean "{self._close[0]}"?' if self._close else ""
        return f'There is no tool "{self.tool}".{guess} There are: {", ".join(self.known) or "none"}.'


class BadArguments(Refused):
    """The arguments do not fit the tool's signature."""

    def __init__(self, tool: str, *, problems: Sequence[str]) -> None:
        super().__init__(f"{'; '.join(problems)}", hint="correct the arguments")
        self.tool, self.problems = tool, tuple(problems)

    def for_model(self) -> str:
        return f"Not run: {'; '.join(self.problems)}. Call it again with corrected arguments."


class OutOfOrder(Refused):
    """The call would break the ordering law."""

    def __init__(
        self,
        tool: str,
        *,
        law: str,
        missing: Sequence[str] = (),
        unsettled: Sequence[str] = (),
        allowed: Sequence[str] = (),
        pivot: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self.tool, self.law, self.pivot = tool, law, pivot
        self.missing, self.unsettled, self.allowed = tuple(missing), tuple(unsettled), tuple(allowed)
        super().__init__(out_of_order(self), run_id=run_id, hint=what_to_call(self))


class KeyConflict(Refused):
    """The same identity was asked for with other arguments."""

    def __init__(
        self,
        message: str,
        *,
        tool: str,
        call: Any = None,
        given: Mapping[str, Any] | None = None,
        diff: Mapping[str, tuple[Any, Any]] | None = None,
        may_repeat: bool = False,
        run_id: str | None = None,
    ) -> None:
        hint = 'repeat on purpose with tool.with_options(again="why"), or use the recorded result'
        super().__init__(message, run_id=run_id, hint=hint)
        self.tool, self.call = tool, call
        self.given, self.diff = dict(given or {}), dict(diff or {})
        self.may_repeat = may_repeat

    def for_model(self) -> str:
        was = ", ".join(f"{k}={shown(a)}" for k, (a, _) in self.diff.items())
        now = ", ".join(f"{k}={shown(b)}" for k, (_, b) in self.diff.items())
        result = getattr(self.call, "result", None)
        use = f" Use that result: {shown(result)}." if result is not None else ""
        second = 'call again with "again_because"' if self.may_repeat else "stop and tell the user"
        return (
            f"Not run: {self.tool} was already done with {was or 'other arguments'}; you asked for {now or 'these'}.{use} "
            f"Only if a second one is meant, {second}."
        )


class GenerationsSpent(Refused):
    """The same request failed, or was taken back, too often in this run."""

    def __init__(self, tool: str, *, limit: int, run_id: str | None = None) -> None:
        super().__init__(
            f"{tool} was tried {limit} times with these arguments and nothing stands; it is not tried again in this run",
            hint="look at the recorded errors; open a new run once the cause is gone",
            run_id=run_id,
        )
        self.tool, self.limit = tool, limit

    def for_model(self) -> str:
        return f"Not run: {self.tool} was tried {self.limit} times and never worked. Stop and tell the user."


class Locked(Refused):
    """Another run has what the call names in ``locks=``, and did not end in time."""

    default_hint = "rt.locks() shows who has it; give the run more time with wait=, or end the run that holds it"

    def __init__(
        self, tool: str, *, lock: str, holder: str, since: datetime, waited: float, held_s: float, run_id: str | None
    ) -> None:
        whose = f"run {holder} has held for {held_s:.0f} s" if holder else "another run has just taken"
        super().__init__(f"{tool} needs {lock!r}, which {whose}; waited {waited:.1f} s", run_id=run_id)
        self.tool, self.lock, self.holder = tool, lock, holder
        self.since, self.held_s, self.waited = since, held_s, waited

    def for_model(self) -> str:
        return (
            f"Not run: another task is working on {shown(self.lock)}. "
            f"Go on with other work and call {self.tool} again later with the same arguments, or tell the user."
        )


class Deadlocked(Refused):
    """Runs waited for each other's locks, and this one was chosen to be taken back."""

    default_hint = "it is taken back; open it again once that is done, and name its locks in one order everywhere"

    def __init__(self, tool: str, *, why: str, run_id: str) -> None:
        super().__init__(f"{tool} was not started: run {run_id} goes back to end a {why}", run_id=run_id)
        self.tool, self.why = tool, why

    def for_model(self) -> str:
        return (
            "Not run: this task and another one waited for each other, and this one is being taken back. "
            "Stop; tell the user that it can be started again."
        )


class ResultLost(Refused):
    """It was done, and nobody has what it gave back: that could not be kept, or was never told. It is not done again."""

    default_hint = (
        "do not do it again; let the tool return an id or plain data that the ledger can keep, "
        "and look the rest up where it is"
    )

    def __init__(
        self, what: str, *, why: str, call: Any = None, run_id: str | None = None, message: str | None = None
    ) -> None:
        super().__init__(message or f"{what} was done, and nobody has its result: {why}", run_id=run_id)
        self.what, self.why, self.call = what, why, call

    def for_model(self) -> str:
        return f"Already done: {self.what}. Its result is not kept. Do not do it again."


class ResultGone(ResultLost):
    """It was done, and gc has removed what it gave back; it is not done again."""

    default_hint = (
        "do not do it again; run gc with a longer older_than= to keep results for as long as they are asked for"
    )

    def __init__(self, what: str, *, gone_at: datetime, call: Any = None, run_id: str | None = None) -> None:
        when = f"{gone_at:%Y-%m-%d %H:%M} UTC"
        message = f"{what} was done; gc removed its result on {when}"
        super().__init__(what, why=f"gc removed it on {when}", call=call, run_id=run_id, message=message)
        self.gone_at = gone_at

    def for_model(self) -> str:
        return f"Already done: {self.what}. Its result is no longer kept. Do not do it again."


class StalePlan(Refused):
    """The run has moved since its rollback was planned: nothing was taken back."""

    def __init__(self, plan: str, *, now: str, run_id: str) -> None:
        hint = f"look at rt.plan_rollback({run_id!r}) again, and hand in its hash"
        super().__init__(f"run {run_id} has moved since plan {plan} was made", hint=hint, run_id=run_id)
        self.plan, self.now = plan, now


# ---- ToolError ----------------------------------------------------------------------------


class ToolFailed(ToolError):
    """A recorded failure whose original exception is not at hand."""

    default_hint = "nothing was changed; correct the cause and call it again"

    def __init__(self, message: str, *, call: Any, type_name: str, run_id: str | None = None) -> None:
        super().__init__(f"{type_name}: {message}" if type_name else message, run_id=run_id)
        self.call, self.type_name, self.message = call, type_name, message

    def for_model(self) -> str:
        tool = getattr(self.call, "tool", "the tool")
        return f"{tool} failed and changed nothing: {shown(self.message)}. You may correct the arguments and call it again."


class InDoubt(ToolError):
    """The call was sent and its answer was lost: it may have happened."""

    default_hint = "do not call it again; give the tool a probe, or decide with rt.resolve(call.id, ...)"

    def __init__(
        self, message: str, *, call: Any, why: str, run_id: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.call, self.why = call, why

    def for_model(self) -> str:
        tool = getattr(self.call, "tool", "the call")
        return (
            f"{tool} was sent but the answer was lost: it may have happened. Do not call it again; it is being checked."
        )


class RunBlocked(ToolError):
    """amends can do nothing more alone; each cause names the verb that removes it."""

    default_hint = "look at rt.report(run_id): each of its causes names the verb that removes it"

    def __init__(
        self,
        message: str,
        *,
        run_id: str,
        residue: Sequence[Any] = (),
        doubts: Sequence[Any] = (),
        causes: Sequence[str] = (),
    ) -> None:
        super().__init__(message, run_id=run_id, hint="; ".join(causes))
        self.residue, self.doubts, self.causes = tuple(residue), tuple(doubts), tuple(causes)

    def for_model(self) -> str:
        left = [getattr(r.call, "tool", "?") for r in self.residue]
        if left:
            stands = f"{listed(left)} {'stands' if len(left) == 1 else 'stand'}"
            return f"The task could not be taken back completely; {stands}. A person was told. Stop and tell the user."
        return "The task cannot go on by itself. A person was told. Stop and tell the user."


class RolledBack(Error):
    """The run was taken back on request."""

    default_hint = "look at error.report; open a new run to try again"

    def __init__(self, message: str, *, report: Any, run_id: str) -> None:
        super().__init__(message, run_id=run_id)
        self.report = report

    def for_model(self) -> str:
        undone = sum(call.state == "compensated" for call in self.report.calls)
        what = f"{undone} of {undone} calls undone"
        return f"Everything was taken back: {what}. Tell the user; start again only if asked."


# ---- Waiting ------------------------------------------------------------------------------


class Busy(Waiting):
    """Somebody else is at it right now."""

    def __init__(self, message: str, *, owner: str, retry_after: float, run_id: str | None = None) -> None:
        super().__init__(message, run_id=run_id, hint=f"try again in {retry_after:.0f} s")
        self.owner, self.retry_after = owner, retry_after

    def for_model(self) -> str:
        return f"The same call is running. Its result is not there yet; ask again in {max(1, round(self.retry_after))} seconds."


# ---- LedgerError --------------------------------------------------------------------------


class LedgerUnavailable(LedgerError):
    """The ledger does not answer, is read-only, full, or locked for too long."""

    default_hint = (
        "check that the database runs, can be reached and has room, then try again; what was recorded is kept"
    )


class LedgerMissing(LedgerError):
    """There is no ledger there, and none may be created."""

    default_hint = "make it with amends migrate, or correct the url of the ledger"


class LedgerTooNew(LedgerError):
    """The ledger was written by a newer amends."""

    default_hint = "install the amends that wrote this ledger, or a newer one"


class LedgerCorrupt(LedgerError):
    """The file is no ledger, or it is damaged."""

    default_hint = "restore the ledger from a backup, or correct its url; amends doctor says what is wrong"


class LedgerSealed(LedgerError):
    """A value is encrypted with a key that this process does not have."""

    default_hint = (
        "give Runtime(encrypt=...) or AMENDS_ENCRYPT the keys that the ledger was written with, old ones last"
    )


class LeaseLost(LedgerError):
    """This process no longer owns the run; what it did after is kept as evidence."""

    default_hint = "another process goes on with the run; open it again to see its state"


class TransitionRefused(LedgerError):
    """A move that the table of states does not have: a bug of ours, or a race that was lost."""

    default_hint = "look at it again with rt.report or rt.call: somebody else was faster"

    def __init__(self, message: str, *, frm: str, to: str) -> None:
        super().__init__(message)
        self.frm, self.to = frm, to


class LedgerTampered(LedgerError):
    """The record was changed by somebody: ``.event`` is the first bad event's number in its run's tree."""

    default_hint = "amends audit verify shows all of it; restore the ledger from a copy that you trust"

    def __init__(self, message: str, *, run_id: str | None = None, event: int = 0, how: str = "") -> None:
        super().__init__(message, run_id=run_id)
        self.event, self.how = event, how
