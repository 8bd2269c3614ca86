"""Every error that amends raises. The branch says who has to act.

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
    ReportConflict               .call_id .attempt
    NotFound                     the ledger, or this runtime, has none of that name
      RunNotFound                .run_id
      CallNotFound               .call_id
      ApprovalNotFound           .approval_id
      AgentNotFound              .agent .known
      SubjectNotFound
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
    Halted                       .tool .by .why .since .extent .halt_id
    Rejected                     .tool .by .reason .approval .call
    ApprovalVoid                 .tool .why .approval .call .diff .expired_at .asked .deciding
    ResultLost                   .what .why .call
      ResultGone                 .gone_at
    StalePlan                    .plan .now
    CannotFork                   .calls .why
    CannotErase                  .kept .erased
    LinkVoid                     .why
    Unauthorized                 .why
    Forbidden                    .needs .why
  ToolError                      a tool failed
    ToolFailed                   .call .type_name .message .final
    InDoubt                      .call .why .checked
    RunBlocked                   .residue .doubts .causes
    NotDelivered                 .status .passing
  RolledBack                     .report
  Waiting                        not an error, not yet; never rolls back
    Held                         .call .reason .twin .approval .may_repeat
    Busy                         .owner .retry_after
    Suspended                    whoever reads the agent's stream has stopped
  LedgerError                    the record could not be kept
    LedgerUnavailable
    LedgerMissing
    LedgerTooNew
    LedgerTooOld
    LedgerCorrupt
    LedgerSealed
    LedgerBehind                 .known .found .ledger .anchor
    LeaseLost
    TransitionRefused            .frm .to
    LedgerTampered               .event .how

A direct call of a tool raises the tool's own exception unchanged. Facts are in attributes; never match the prose.
The phrases of the messages, and the helpers that read foreign exceptions safely, are at the end of the file.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import FunctionType, TracebackType
from typing import Any, Final, Protocol, TypeGuard, TypeVar
from unicodedata import normalize

from amends.encoding.patterns import pattern
from amends.visible import printable, visible

DOCS: Final = "https://amends.readthedocs.io/en/latest/"
"""Where the pages of ``docs/`` are read. The metadata of the package and the README name the same address."""
OUTCOME: Final = "amends/outcome"
"""The key under which a guarded server says, in ``_meta`` and in structured content, what it did not execute."""
DOUBT_WORDS: Final = "the answer was lost: it may have happened"
NOT_YET_WORDS: Final = "Not run yet: "
REMOTE: Final = "remote"
"""The reason of a doubt if the server that was asked said that it has not executed the call yet, or does not know."""

_log = logging.getLogger("amends")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


# ---- The root and its six branches


def docs_page(page: str, heading: str = "") -> str:
    """Return the address of a page of the documentation, named by its file below ``docs/``."""
    return f"{DOCS}{page.removesuffix('.md')}/{f'#{heading}' if heading else ''}"


class Error(Exception):
    """Base of all errors of amends: attributes hold the facts, ``hint`` says what to do."""

    default_hint = "look at the run with rt.report(run_id), and at its record with rt.events(run_id)"
    """What to do, unless the code that raises the error knows better; never empty."""
    _model_text = "Not run: {0}"
    """What a model is told; ``{0}`` is the message, ``{0.tool}`` an attribute."""

    def __init__(self, message: str, *, hint: str | None = None, run_id: str | None = None) -> None:
        # Names and reasons in a message come from models and from the world: show each of them on one line.
        super().__init__(printable(message))
        self.hint = hint or self.default_hint
        self.run_id = run_id

    def __setattr__(self, name: str, value: Any) -> None:
        # A traceback shows notes, and so the hint is the first of them.
        if name == "hint":
            value = printable(value)
            both = f"hint: {value}", f"hint: {getattr(self, 'hint', '')}"
            others = [note for note in getattr(self, "__notes__", ()) if note not in both]
            super().__setattr__("__notes__", [both[0], *others])
        super().__setattr__(name, value)

    @property
    def code(self) -> str:
        """The class name in snake_case: stable, for programs."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def for_model(self) -> str:
        """Return what a model is told: what was not done, why, and what to do."""
        return self._model_text.format(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as plain JSON data."""
        facts = {name: plain(value) for name, value in vars(self).items() if value is not None and name != "__notes__"}
        return {"code": self.code, "message": str(self), **facts}

    def __reduce__(self) -> tuple[Any, ...]:
        # Not the default, which calls the class with the message alone: most classes need their facts as well.
        return _restored, (type(self), self.args), dict(vars(self))


def _restored(cls: type[Error], args: tuple[Any, ...]) -> Error:
    """Make an unpickled or copied error, whose attributes are set afterwards."""
    return cls.__new__(cls, *args)


class UsageError(Error):
    """Your code is wrong; nothing was started."""

    default_hint = "correct the code that made this call, as the message says; nothing was started"
    _model_text = "Not run: the program around you has a fault ({0.__class__.__name__}). Stop and tell the user."


class Refused(Error):
    """The call was refused, nothing was started, and a model can act on it."""

    default_hint = "nothing was started; do what the message says, or something else"


class ToolError(Error):
    """A tool failed, or may have failed."""

    default_hint = "look at the call with rt.report(run_id): it has the tool's own error"


class RolledBack(Error):
    """The run was rolled back on request."""

    default_hint = "look at error.report; open a new run to try again"

    def __init__(self, message: str, *, report: Any, run_id: str) -> None:
        super().__init__(message, run_id=run_id)
        self.report = report

    def _render_traceback_(self) -> list[str]:
        # What a notebook shows instead of a traceback: it is what was asked for.
        return [str(self), str(self.report)]

    def for_model(self) -> str:
        undone = sum(call.state == "compensated" for call in self.report.calls)
        state = getattr(self.report, "state", "rolled_back")
        if state != "rolled_back":
            left = [getattr(one.call, "tool", "?") for one in getattr(self.report, "residue", ())]
            stands = f"; {_standing(left)}" if left else ""
            how = "was taken back in part" if state == "abandoned" else "is being taken back; that has not ended yet"
            return f"The task {how}: {undone} calls are undone{stands}. Stop and tell the user."
        # A failed call is the reason only if nobody has given another one.
        given = getattr(getattr(self.report, "run", None), "goal_why", None) or INCOMPLETE
        missing = (
            [shown(one.why) for one in getattr(self.report, "missing", ())] if given.startswith(INCOMPLETE) else []
        )
        why = f", because it was not finished: {'; '.join(some(missing))}" if missing else ""
        what = f"{undone} of {undone} calls undone"
        return f"Everything was taken back: {what}{why}. Tell the user; start again only if asked."


class Waiting(Error):
    """Not an error, or not yet; never rolls back."""

    default_hint = "nothing is wrong; ask again later, or open the run again once it is decided"

    def _render_traceback_(self) -> list[str]:
        # What a notebook shows instead of a traceback.
        return [str(self), f"hint: {self.hint}"]


class LedgerError(Error):
    """The record could not be kept."""

    default_hint = (
        "check with amends doctor that the ledger can be reached and written; nothing more is started until it can"
    )
    _model_text = "Not run: the record cannot be written now. Stop and tell the user."


# ---- UsageError: the program is wrong, and nothing was started


class BadDeclaration(UsageError):
    """The declaration of a tool is wrong."""

    default_hint = "correct the declaration of this tool; the message says where it is"

    def __init__(self, message: str, *, tool: str, where: str = "", hint: str | None = None) -> None:
        super().__init__(f"{message} ({where})" if where else message, hint=hint)
        self.tool, self.where = tool, where


class _OfTool(UsageError):
    def __init__(self, message: str, *, tool: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.tool = tool


class NoRun(_OfTool):
    """A tool was called outside a run, on a thread without the run, or inside a probe or compensation."""

    default_hint = "open one with `with rt.run():`; carry it into a thread with run.submit or run.bind"


class WrongColour(_OfTool):
    """A blocking tool was called directly in an async run, or the reverse."""

    default_hint = "await the tool in an async run, call it plainly in a blocking one, or use run.call, which does both"


class NotAwaited(_OfTool):
    """A guarded call of an async run was never awaited, so nothing was done."""

    default_hint = "put `await` before the call, or give it to run.submit"

    def __init__(self, message: str, *, tool: str, tools: Sequence[str] = (), run_id: str | None = None) -> None:
        super().__init__(message, tool=tool)
        self.tools, self.run_id = tuple(tools) or (tool,), run_id


class NotStorable(UsageError):
    """A value cannot be stored."""

    default_hint = "pass an id or plain data instead"

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class TooLarge(UsageError):
    """A value is larger than the ledger accepts."""

    def __init__(self, message: str, *, path: str, size: int, limit: int) -> None:
        super().__init__(message, hint="pass an id or a file name instead of the content")
        self.path, self.size, self.limit = path, size, limit


class RunEnded(UsageError):
    """The run is closed: committed, rolled back, or being rolled back."""

    default_hint = "open a new run for more work; rt.report(run_id) shows how this one ended"

    def __init__(self, message: str, *, state: str, run_id: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.state = state

    def for_model(self) -> str:
        return f"This task is closed ({self.state.replace('_', ' ')}): nothing more can run in it. Tell the user."


class RunConflict(UsageError):
    """This run id was already opened with another input, or for another principal."""

    default_hint = "give this work its own run id, or open it with the recorded input"

    def __init__(
        self, message: str, *, recorded: object, given: object, run_id: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.recorded, self.given = recorded, given


class ReportConflict(UsageError):
    """Whoever performed an attempt reported something else about it before."""

    default_hint = "the first report counts: see rt.call(...), and what happened with rt.events(...)"

    def __init__(self, message: str, *, call_id: str, attempt: int, run_id: str | None = None) -> None:
        super().__init__(message, run_id=run_id)
        self.call_id, self.attempt = call_id, attempt


class NotFound(UsageError):
    """There is nothing of that id or name here, or it is another tenant's."""

    default_hint = "look for it with the listings of the runtime: rt.runs(), rt.calls(), rt.approvals()"


class RunNotFound(NotFound):
    """There is no run with this id in the ledger, for this tenant."""

    default_hint = "rt.runs() lists them; is it the right ledger and the right tenant?"

    def __init__(self, run_id: str, *, hint: str | None = None) -> None:
        super().__init__(f"there is no run {run_id!r} in this ledger", run_id=run_id, hint=hint)


class SubjectNotFound(NotFound):
    """No run is about this person, or everything about them was erased before; nothing was changed."""

    default_hint = "look for the runs: rt.runs(filter='tag:customer=7'), rt.calls(filter='args.to:a@b.example')"


class CallNotFound(NotFound):
    """There is no call with this id in the ledger, for this tenant."""

    default_hint = "rt.calls() lists them; is it the right ledger and the right tenant?"

    def __init__(self, call_id: str, *, hint: str | None = None) -> None:
        super().__init__(f"there is no call {call_id!r} in this ledger", hint=hint)
        self.call_id = call_id


class ApprovalNotFound(NotFound):
    """There is no request for approval with this id in the ledger, for this tenant."""

    default_hint = "rt.approvals() lists the pending ones"

    def __init__(self, approval_id: str, *, hint: str | None = None) -> None:
        super().__init__(f"there is no approval {approval_id!r} in this ledger", hint=hint)
        self.approval_id = approval_id


class AgentNotFound(NotFound):
    """This runtime has no agent of that name."""

    default_hint = "register it with Runtime(agents={name: function})"

    def __init__(self, agent: str, *, known: Sequence[str] = ()) -> None:
        close = close_to(agent, known)
        hint = f'did you mean "{close[0]}"?' if close else None
        super().__init__(f"there is no agent {agent!r}; there are: {', '.join(known) or 'none'}", hint=hint)
        self.agent, self.known = agent, tuple(known)


class BadConfig(UsageError):
    """A setting is not usable."""

    default_hint = "correct the setting where the message says it comes from; amends doctor shows all of them"

    def __init__(self, message: str, *, setting: str, origin: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.setting, self.origin = setting, origin


class BadRule(BadConfig):
    """A rule cannot be read, or could never match the tool that it names as intended."""

    default_hint = "correct the rule; then amends rules test TOOL ARGS shows what each rule decides about a call"

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
    """The record of this call cannot join the transaction of ``connection=``."""

    default_hint = "call the tool without connection=, or give the runtime the database that the connection belongs to"


class BadCost(UsageError):
    """``cost=`` gave no valid cost for this call, or its function raised; the call was not started."""

    default_hint = "let cost= give a number, a Cost, or a mapping of units to numbers for every call"

    def __init__(self, tool: str, *, why: str, run_id: str | None = None) -> None:
        super().__init__(f"{tool} was not started: its cost= gives nothing that can be reserved ({why})", run_id=run_id)
        self.tool, self.why = tool, why


class TransactionOpen(UsageError):
    """A call joined the caller's transaction, which is still open: this request would wait for its own caller."""

    default_hint = "commit or roll back the transaction first; a call that belongs to it needs connection= as well"


class BadBundle(UsageError):
    """The data is not a bundle, or this version of amends cannot read it; nothing was loaded."""

    default_hint = "export it again, with amends audit export"

    def __init__(self, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"this is not a readable bundle: {problem}", hint=hint)
        self.problem = problem


class RunTaken(UsageError):
    """A bundle holds a run whose id belongs to another run in this ledger; nothing was loaded."""

    default_hint = "load it into a ledger of its own"

    def __init__(self, message: str, *, run_id: str) -> None:
        super().__init__(message, run_id=run_id)


class RunIsRecord(UsageError):
    """The run was loaded from another ledger: it can only be read and replayed."""

    default_hint = "continue it in the ledger that it came from"

    def __init__(self, run_id: str, *, origin: str) -> None:
        super().__init__(
            f"run {run_id} was loaded from the ledger {origin}: it is a read-only record, and nothing was changed",
            run_id=run_id,
        )
        self.origin = origin


class Diverged(UsageError):
    """A replay asked for something other than the record has at this place; nothing was started."""

    default_hint = "make the code ask as it did then, or record a new run; rt.fork continues live from before it"

    def __init__(
        self,
        message: str,
        *,
        how: str,
        tool: str,
        call: Any = None,
        given: Mapping[str, Any] | None = None,
        diff: Mapping[str, tuple[Any, Any]] | None = None,
        run_id: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.how, self.tool, self.call = how, tool, call
        self.given, self.diff = dict(given or {}), dict(diff or {})


class ReplayDenied(UsageError):
    """Code inside a replay tried to bypass its run: to use the network, another process or the ledger."""

    default_hint = "do it in the body of a tool, which no replay starts, and use what the tool returns"

    def __init__(self, message: str, *, what: str, run_id: str | None = None) -> None:
        super().__init__(message, run_id=run_id)
        self.what = what


# ---- Refused: amends said no, nothing was started, and a model can act on it


class UnknownTool(Refused):
    """No tool of that name is declared to this runtime."""

    def __init__(self, tool: str, *, known: Sequence[str] = ()) -> None:
        close = close_to(tool, known)
        hint = f'did you mean "{close[0]}"?' if close else "pass it in Runtime(tools=[...])"
        super().__init__(f'there is no tool "{tool}"', hint=hint)
        self.tool, self.known = tool, tuple(known)

    def for_model(self) -> str:
        close = close_to(self.tool, self.known)
        guess = f' Did you mean "{close[0]}"?' if close else ""
        return f'There is no tool "{self.tool}".{guess} There are: {", ".join(self.known) or "none"}.'


class BadArguments(Refused):
    """The arguments do not fit the tool's signature."""

    def __init__(self, tool: str, *, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems), hint="correct the arguments")
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
    """A call with the same identity was made with other arguments."""

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
    """The same request failed, or was compensated, too often in this run."""

    default_hint = "look at the recorded errors; open a new run once the cause is gone"
    _model_text = "Not run: {0.tool} was tried {0.limit} times and never worked. Stop and tell the user."

    def __init__(self, tool: str, *, limit: int, run_id: str | None = None) -> None:
        what = f"{tool} was tried {limit} times with these arguments, without lasting effect"
        super().__init__(f"{what}; it is not tried again in this run", run_id=run_id)
        self.tool, self.limit = tool, limit


class Locked(Refused):
    """Another run holds a lock that the call names in ``locks=``, and did not end in time."""

    default_hint = "rt.locks() shows who holds it; give the run more time with wait=, or end the run that holds it"

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
    """Runs waited for each other's locks, and this one was chosen to be rolled back."""

    default_hint = "the run is rolled back; open it again after that, and name locks in the same order everywhere"
    _model_text = (
        "Not run: this task and another one waited for each other, and this one is being taken back. "
        "Stop; tell the user that it can be started again."
    )

    def __init__(self, tool: str, *, why: str, run_id: str) -> None:
        super().__init__(f"{tool} was not started: run {run_id} is rolled back to end a {why}", run_id=run_id)
        self.tool, self.why = tool, why


class BudgetExceeded(Refused):
    """The call would have exceeded a budget; nothing was started and nothing was spent."""

    def __init__(
        self,
        tool: str,
        *,
        budget: Any,
        spent: Decimal,
        reserved: Decimal,
        asked: Decimal,
        left: Decimal,
        period: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self.tool, self.budget, self.period = tool, budget, period
        self.spent, self.reserved, self.asked, self.left = spent, reserved, asked, left
        super().__init__(over_budget(self), run_id=run_id, hint="rt.budgets() shows what is spent and reserved of each")

    def for_model(self) -> str:
        return (
            f"Not run: {self}. {'Stop' if self.budget.unit == 'calls' else 'Ask for less, or stop'} and tell the user."
        )


class RuleRefused(Refused):
    """A rule of the runtime refuses the call."""

    default_hint = "change the rule, or ask its author"

    def __init__(self, tool: str, *, why: str, run_id: str | None = None) -> None:
        reason = visible(why or "no reason given", prose=True)
        super().__init__(f"a rule refuses {visible(tool)}: {reason}", run_id=run_id)
        self.tool, self.why = tool, why

    def for_model(self) -> str:
        said = f": {shown(self.why)}" if self.why else ""
        return f"Not run: a rule forbids {self.tool} with these arguments{said}. Do not look for another way; tell the user."


class Halted(Refused):
    """A person has halted the ledger, or the tenant, agent or tool of this call; nothing starts until it is lifted.

    ``.extent`` says what is halted; ``.by``, ``.why`` and ``.since`` say who did it, why and when.
    """

    default_hint = "rt.halts() lists them; rt.unhalt(by=..., why=...) lifts one, with the same tenant, agent and tool"

    def __init__(
        self, tool: str, *, by: str, why: str, since: datetime, extent: str, halt_id: str, run_id: str | None = None
    ) -> None:
        reason = visible(why, prose=True)
        super().__init__(
            f"{visible(tool)} was not started: {visible(by)} has halted {extent} ({reason})", run_id=run_id
        )
        self.tool, self.by, self.why, self.since, self.extent, self.halt_id = tool, by, why, since, extent, halt_id

    def for_model(self) -> str:
        return (
            f"Not run: a person has stopped {'this tool' if 'tool' in self.extent else 'all work here'} for now"
            f" ({shown(self.why)}). Do not look for another way; stop and tell the user."
        )


UNANSWERED: Final = "(amends)"
"""Who rejected a call whose approval nobody answered in time: no person."""


class Rejected(Refused):
    """A person rejected the call, or nobody answered before the deadline of its approval."""

    _model_text = "{0._who} {0.tool}: {0.reason}. Do not ask again with these arguments."

    def __init__(
        self, tool: str, *, by: str, reason: str, approval: Any = None, call: Any = None, run_id: str | None = None
    ) -> None:
        talk = "talk to those who may approve it" if by == UNANSWERED else f"talk to {visible(by)}"
        hint = f"ask for something else, or {talk}; the same request gets the same answer"
        who = "no approval for" if by == UNANSWERED else f"{visible(by)} rejected"
        super().__init__(f"{who} {visible(tool)}: {visible(reason, prose=True)}", run_id=run_id, hint=hint)
        self.tool, self.by, self.reason = tool, by, reason
        self._who = "No approval for" if by == UNANSWERED else "A person rejected"
        self.approval, self.call = approval, call


WHY_VOID: Final[dict[str, str]] = {
    "changed": "what was asked for has changed since",
    "used": "it was already used for its one call",
    "expired": "it expired before it was used",
    "other_run": "it is for a call of another run",
    "other_tenant": "it belongs to another tenant",
    "self": "the person who asked for it, or edited it, cannot approve it",
    "role": "the person who decides has none of the required roles",
    "revived": "its ledger was restored to an earlier state",
    "unanswered": "nobody answered it before its deadline, so it is rejected",
}
"""Why an approval is void; the keys are stable."""


class ApprovalVoid(Refused):
    """An approval is void, so nothing was started. ``deciding``: the error is for the person who decides."""

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
        hint = "a new one was requested" if asked else "request a new one, or look at it with rt.approval(id)"
        words = WHY_VOID[why]
        if deciding and why == "changed":
            words = "the digest does not match the request"
            hint = "look at it again with rt.approval(id), and decide about the digest that it shows"
            if getattr(approval, "state", "") == "cancelled":
                words = "the request was withdrawn or replaced, or its run has ended or was rolled back"
                hint = "rt.approvals() lists what waits, rt.report(run_id) shows how the run ended"
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


class ResultLost(Refused):
    """The call was done, but its result was not stored or never reported. It is not done again."""

    default_hint = (
        "do not do it again; let the tool return an id or plain data that the ledger can keep, "
        "and look up the rest at its source"
    )
    _model_text = "Already done: {0.what}. Its result is not kept. Do not do it again."

    def __init__(
        self, what: str, *, why: str, call: Any = None, run_id: str | None = None, message: str | None = None
    ) -> None:
        super().__init__(message or f"{what} was done, but its result is not available: {why}", run_id=run_id)
        self.what, self.why, self.call = what, why, call


class ResultGone(ResultLost):
    """The call was done, and gc or an erasure has removed its result. It is not done again."""

    default_hint = "do not do it again; run gc with a longer older_than= to keep results for as long as they are needed"
    _model_text = "Already done: {0.what}. Its result is no longer kept. Do not do it again."

    def __init__(self, what: str, *, gone_at: datetime, call: Any = None, run_id: str | None = None) -> None:
        when = f"{gone_at:%Y-%m-%d %H:%M} UTC"
        message = f"{what} was done; its result was removed on {when}"
        super().__init__(what, why=f"it was removed on {when}", call=call, run_id=run_id, message=message)
        self.gone_at = gone_at


class StalePlan(Refused):
    """The run has changed since its rollback was planned; nothing was rolled back."""

    def __init__(self, plan: str, *, now: str, run_id: str) -> None:
        hint = f"look at rt.plan_rollback({run_id!r}) again, and pass its new hash"
        super().__init__(f"run {run_id} has changed since plan {plan} was made", hint=hint, run_id=run_id)
        self.plan, self.now = plan, now


class CannotFork(Refused):
    """The run cannot be forked at this place; nothing was created."""

    default_hint = "choose another call to fork at: rt.report(run_id) lists them"

    def __init__(
        self, message: str, *, calls: Sequence[Any] = (), why: str, run_id: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.calls, self.why = list(calls), why


class CannotErase(Refused):
    """A run about the person cannot be erased: it has not ended, left something standing, or is another ledger's.

    ``kept``: those runs, each with the reason. ``erased``: those that were erased before this was found; mostly none.
    """

    default_hint = (
        "end those runs and repeat it; partial=True erases the others, "
        "residue=True also ended runs that left something standing"
    )

    def __init__(
        self, message: str, *, kept: Sequence[Any] = (), erased: Sequence[Any] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.kept, self.erased = list(kept), list(erased)


class LinkVoid(Refused):
    """A link is not valid: it is forged, expired, or made for somebody else; ``.why`` says which."""

    default_hint = "decide with rt.approve or rt.reject, or request a new link"

    def __init__(self, message: str, *, why: str) -> None:
        super().__init__(message)
        self.why = why


class Unauthorized(Refused):
    """Nobody knows who asks: no token or login was given, or it is not valid; nothing was done.

    ``why``: missing, malformed, unknown, expired or revoked.
    """

    default_hint = "send Authorization: Bearer TOKEN, with a token from amends tokens create, or log in"
    _model_text = "Not run: the program around you may not do this (no valid token). Stop and tell the user."

    def __init__(self, message: str, *, why: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.why = why


class Forbidden(Refused):
    """Whoever asks is known, and may not do this; nothing was done.

    ``needs``: the scopes of which one would allow it. ``why``: scope, tenant, csrf or origin.
    """

    default_hint = "use a token that has one of the scopes that the message names: amends tokens create --scope"
    _model_text = "Not run: the program around you may not do this. Stop and tell the user."

    def __init__(self, message: str, *, needs: Sequence[str] = (), why: str = "scope", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.needs, self.why = tuple(needs), why


# ---- ToolError: a tool failed, or may have failed


class ToolFailed(ToolError):
    """A recorded failure whose original exception is not available.

    ``.final``: the tool said that it will never work in this run (``NoEffect(final=True)``).
    """

    default_hint = "nothing was changed; correct the cause and call it again"

    def __init__(
        self, message: str, *, call: Any, type_name: str, run_id: str | None = None, final: bool = False
    ) -> None:
        hint = "the tool said that this is final: do something else" if final else None
        super().__init__(f"{type_name}: {message}" if type_name else message, run_id=run_id, hint=hint)
        self.call, self.type_name, self.message, self.final = call, type_name, message, final

    def for_model(self) -> str:
        tool = getattr(self.call, "tool", "the tool")
        if self.final:
            again = "That is final: do not call it so again."
        else:
            name = self.type_name.rpartition(".")[2]
            known = vars(builtins).get(name)
            broken = _BROKEN.search(name) is not None
            again = what_helps(known if isinstance(known, type) else Exception, has_file=False, broken=broken)
        return f"{tool} failed and changed nothing: {shown(self.message)}. {again}"


class InDoubt(ToolError):
    """The call was sent and its answer was lost: it may have taken effect."""

    default_hint = "do not call it again; give the tool a probe, or decide with rt.resolve(call.id, ...)"

    def __init__(
        self,
        message: str,
        *,
        call: Any,
        why: str,
        run_id: str | None = None,
        hint: str | None = None,
        checked: bool = False,
    ) -> None:
        super().__init__(message, run_id=run_id, hint=hint)
        self.call, self.why = call, why
        self.checked = checked
        """Whether amends itself finds out, by a probe or a safe repeat; else a person has to."""

    def for_model(self) -> str:
        if self.why == REMOTE:
            return str(self.args[0])  # the words of the server, which are for a model
        tool, state = getattr(self.call, "tool", "the call"), getattr(self.call, "state", "")
        lost = f"{tool} was sent but {DOUBT_WORDS}."
        if state == "residue":
            return f"{lost} A person could not find out either. Do not call it again; tell the user that it is unknown."
        if state in ("compensation_in_doubt", "compensation_failed"):
            return (
                f"{tool} was done and is being taken back, which is not finished. Do not call it again; tell the user."
            )
        return f"{lost} Do not call it again; {'it is being checked' if self.checked else 'a person has to check it'}."


class RunBlocked(ToolError):
    """The run cannot continue without a person; each cause names the verb that removes it."""

    default_hint = "look at rt.report(run_id): each of its causes names the verb that removes it"

    def __init__(
        self,
        message: str,
        *,
        run_id: str,
        residue: Sequence[Any] = (),
        doubts: Sequence[Any] = (),
        causes: Sequence[str] = (),
        missing: Sequence[Any] = (),
    ) -> None:
        super().__init__(message, run_id=run_id, hint="; ".join(some(causes, where=listed_in(run_id))))
        self.residue, self.doubts, self.causes = tuple(residue), tuple(doubts), tuple(causes)
        self.missing = tuple(missing)

    def for_model(self) -> str:
        left = [getattr(r.call, "tool", "?") for r in self.residue]
        if left:
            return f"The task could not be taken back completely; {_standing(left)}. {FOR_A_PERSON}"
        if self.missing:
            what = "; ".join(some([shown(one.why) for one in self.missing]))
            return f"The task is not finished: {what}. It cannot be undone. {FOR_A_PERSON}"
        return f"The task cannot go on by itself. {FOR_A_PERSON}"


class NotDelivered(ToolError):
    """A notice could not be sent; ``passing``: another attempt may succeed."""

    default_hint = "it is sent again from the ledger; check the receiver"

    def __init__(self, message: str, *, status: int = 0, passing: bool = True) -> None:
        super().__init__(message)
        self.status, self.passing = status, passing


# ---- Waiting: not an error, not yet


class Held(Waiting):
    """The call waits for a decision; the run cannot commit before that."""

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
            return f"{NOT_YET_WORDS}{self.approval.rule}; a person must approve it. Go on with other work, or stop."
        needs = "decision" if self.approval is None else f"approval ({self.approval.id})"
        return f"{NOT_YET_WORDS}{tool} needs a person's {needs}. {NOT_AGAIN}"


class Busy(Waiting):
    """Another process is working on the same call or run."""

    def __init__(self, message: str, *, owner: str, retry_after: float, run_id: str | None = None) -> None:
        super().__init__(message, run_id=run_id, hint=f"try again in {retry_after:.0f} s")
        self.owner, self.retry_after = owner, retry_after

    def for_model(self) -> str:
        return f"The same call is running. Its result is not there yet; ask again in {max(1, round(self.retry_after))} seconds."


class Suspended(Waiting):
    """Somebody stopped the agent: nothing staged starts, nothing is rolled back, and the run can be opened again.

    Raise it inside a run's block to stop there. Workers leave the run alone until its deadline, for a day if it has none.
    """

    default_hint = "open the run again under the same id to go on, or take it back with rt.rollback(run_id, ...)"


def only_waits(error: BaseException) -> bool:
    """Return whether a run that ends with this error only waits, for a ``Waiting`` or for a new approval."""
    return is_a(error, Waiting) or (is_a(error, ApprovalVoid) and error.asked)


# ---- LedgerError: the record could not be kept


class LedgerUnavailable(LedgerError):
    """The ledger does not answer, is read-only, full, or locked for too long."""

    default_hint = (
        "check that the database runs, can be reached and has room, then try again; what was recorded is kept"
    )


class LedgerMissing(LedgerError):
    """There is no ledger at this url, and none may be created."""

    default_hint = "create it with amends db migrate, or correct the url of the ledger"


class LedgerTooNew(LedgerError):
    """The ledger was written by a newer version of amends."""

    default_hint = "install the version of amends that wrote this ledger, or a newer one"


class LedgerTooOld(LedgerError):
    """The ledger was written by a version of amends whose tables this one cannot read or migrate."""

    default_hint = "finish its runs with the amends that wrote it, and give this one a new ledger"


class LedgerCorrupt(LedgerError):
    """The file is not a ledger, or it is damaged."""

    default_hint = "restore the ledger from a backup, or correct its url; amends doctor shows what is wrong"


class LedgerSealed(LedgerError):
    """A value is encrypted with a key that this process does not have."""

    default_hint = (
        "give Runtime(encrypt=...) or AMENDS_ENCRYPT the keys that the ledger was written with, old ones last"
    )


class LedgerBehind(LedgerError):
    """The ledger was restored to an older state; nothing starts until a person has reconciled it.

    ``.known`` is the used approval or the checkpoint that the anchor knows, ``.found`` what the ledger has instead;
    ``.ledger`` and ``.anchor`` are the two files.
    """

    default_hint = "compare it with the outside world, then call rt.reconcile_restore(by=..., why=...)"

    def __init__(
        self, message: str, *, known: str, found: str, hint: str | None = None, ledger: str = "", anchor: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.known, self.found, self.ledger, self.anchor = known, found, ledger, anchor


class LeaseLost(LedgerError):
    """This process no longer owns the run; what it did afterwards is kept as evidence."""

    default_hint = "another process continues the run; open it again to see its state"


class TransitionRefused(LedgerError):
    """The table of states does not allow this move: a bug in amends, or a lost race."""

    default_hint = "look at it again with rt.report or rt.call: somebody else was faster"

    def __init__(self, message: str, *, frm: str, to: str) -> None:
        super().__init__(message)
        self.frm, self.to = frm, to


class LedgerTampered(LedgerError):
    """The record was changed; ``.event`` is the number of the first bad event in its run tree."""

    default_hint = "amends audit verify shows all problems; restore the ledger from a copy that you trust"

    def __init__(self, message: str, *, run_id: str | None = None, event: int = 0, how: str = "") -> None:
        super().__init__(message, run_id=run_id)
        self.event, self.how = event, how


# ---- Reading exceptions that are not ours

ERROR_CHARS_MAX: Final = 100_000
"""The longest text of a foreign error that is ever read."""


NO_WORDS: Final = "(its message could not be read)"
CUT: Final = " [... the rest is not kept]"
"""Ends a text that was cut for the ledger, so that nobody takes a part for the whole."""


def clean(text: object) -> str:
    """Return a text that every ledger, log and terminal accepts: no lone surrogate, no NUL."""
    if not issubclass(type(text), str):
        return _read(text)
    return _accepted(str.__str__(text))  # a subclass may do anything with its own text


def _accepted(exact: str) -> str:
    if exact.isascii() and "\0" not in exact:
        return exact
    return exact.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def words_of(error: BaseException) -> str:
    """Return the message of an exception, of limited length. Never raises, whatever its class does."""
    return _read(error)


def _read(value: object) -> str:
    try:
        text = str(value)
        if type(text) is not str or len(text) > ERROR_CHARS_MAX:
            text = str.__getitem__(text, slice(0, ERROR_CHARS_MAX))
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:
        return NO_WORDS
    return _accepted(text)


def cut(text: str, chars_max: int) -> str:
    """Return the text, cut to ``chars_max`` with a mark that the rest is missing."""
    return text if len(text) <= chars_max else text[: chars_max - len(CUT)] + CUT


def class_name(cls: type) -> str:
    """Return ``module.Class``, even if a metaclass says something else or raises."""
    try:
        module = _MODULE(cls)
    except Exception:
        module = ""
    name = _QUALNAME(cls)
    return clean(f"{module}.{name}") if module and isinstance(module, str) else clean(name)


def type_name(error: BaseException) -> str:
    """Return the short name of an exception's class, bypassing its metaclass."""
    return clean(_NAME(type(error)))


# What Python itself keeps of a class, whatever its metaclass says.
_MODULE: Final[Callable[[type], Any]] = type.__dict__["__module__"].__get__
_QUALNAME: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__
_NAME: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


def described(error: BaseException) -> str:
    """Return the class and the message of an exception on one line."""
    return f"{type_name(error)}: {words_of(error)}"


def note_on(error: BaseException, note: str) -> None:
    """Add a note to an exception; log it if the exception accepts none (a frozen dataclass, a strange ``__notes__``)."""
    try:
        error.add_note(note)
    except Exception:
        _log.info("%s", note)


def log_error(log: logging.Logger, level: int, words: str, error: BaseException) -> None:
    """Log an exception with its traceback, or without it if that cannot be shown."""
    try:
        log.log(level, "%s", words, exc_info=error)
    except Exception:
        log.log(level, "%s (%s)", words, described(error))


def is_a(error: object, *kinds: type[T]) -> TypeGuard[T]:
    """Return whether the real class of this object is one of these; ``__class__`` may lie."""
    return issubclass(type(error), kinds)


# ---- Tracebacks

OWN_FRAMES_MAX: Final = 4
"""How many frames of amends itself a traceback has."""
CHAINED_MAX: Final = 8
_OWN: Final = __file__.removesuffix("errors.py")
_ENTERED_BY: Final = ("__init__", "__enter__", "__exit__", "__aenter__", "__aexit__")
C = TypeVar("C", bound=type)


def trim(error: BaseException) -> None:
    """Leave at most four frames of amends in the traceback of an exception that leaves amends, and in what caused it.

    Those next to the caller's code and the last ones stay. With the logger ``amends`` at DEBUG, and for a failed
    assertion of amends, nothing is removed.
    """
    if _log.isEnabledFor(logging.DEBUG):
        return
    one: BaseException | None = error
    for _ in range(CHAINED_MAX):
        if one is None:
            return
        _trim_one(one)
        one = _CAUSE(one) or _CONTEXT(one)


def _trim_one(error: BaseException) -> None:
    frames: list[TracebackType] = []
    own: list[int] = []  # the places of the frames of amends
    hidden: set[int] = set()  # of those whose name tells nothing
    trace: TracebackType | None = _TRACEBACK(error)
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(_OWN):
            own.append(len(frames))
            if code.co_name == "_trimmed":
                hidden.add(len(frames))
        frames.append(trace)
        trace = trace.tb_next
    if len(own) <= OWN_FRAMES_MAX or (own[-1] == len(frames) - 1 and is_a(error, AssertionError)):
        return
    first, last = own[0], own[-1]
    if not hidden and last - first < len(own):  # one stretch: the rest would keep its first frame and the last ones
        rest = last - OWN_FRAMES_MAX + 2
        _replace_trace(error, frames[: first + 1], frames[rest])
        return
    said, inside = [at for at in own if at not in hidden], set(own)
    edges = [at for at in said if at - 1 not in inside or at + 1 not in inside or at == said[0]]
    half = OWN_FRAMES_MAX // 2
    kept = {*edges[:half], *edges[-half:]}
    for at in reversed(said):
        if len(kept) >= OWN_FRAMES_MAX:
            break
        kept.add(at)
    _replace_trace(error, [one for at, one in enumerate(frames) if at in kept or at not in inside], None)


def _replace_trace(error: BaseException, frames: list[TracebackType], rest: TracebackType | None) -> None:
    """Make these frames, and the rest as it is, the traceback of an error; the objects that it had stay as they are."""
    for one in reversed(frames):
        rest = TracebackType(rest, one.tb_frame, one.tb_lasti, one.tb_lineno)
    BaseException.with_traceback(error, rest)


# What Python itself keeps of an exception, whatever its class says.
_TRACEBACK: Final[Callable[[BaseException], Any]] = BaseException.__dict__["__traceback__"].__get__
_CAUSE: Final[Callable[[BaseException], Any]] = BaseException.__dict__["__cause__"].__get__
_CONTEXT: Final[Callable[[BaseException], Any]] = BaseException.__dict__["__context__"].__get__


def trims(cls: C) -> C:
    """Trim the tracebacks of what the public methods of a class raise."""
    for name, method in list(vars(cls).items()):
        is_public = not name.startswith("_") or name in _ENTERED_BY
        if is_public and isinstance(method, FunctionType) and not hasattr(method, "__amends_trims__"):
            setattr(cls, name, trimming(method))
    return cls


def trimming(method: F) -> F:
    """Return a function or coroutine function that trims the tracebacks of what it raises."""
    if inspect.isgeneratorfunction(inspect.unwrap(method)) or inspect.isasyncgenfunction(inspect.unwrap(method)):
        return method

    made: Any = functools.wraps(method)(_awaited(method) if inspect.iscoroutinefunction(method) else _called(method))
    return made  # type: ignore[no-any-return]


def _called(method: Callable[..., Any]) -> Any:
    def _trimmed(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            trim(error)
            raise

    return _trimmed


def _awaited(method: Callable[..., Any]) -> Any:
    async def _trimmed(*args: Any, **kwargs: Any) -> Any:
        try:
            return await method(*args, **kwargs)
        except BaseException as error:
            trim(error)
            raise

    return _trimmed


def trims_itself(method: F) -> F:
    """Mark a function that trims what it raises by itself."""
    method.__amends_trims__ = True  # type: ignore[attr-defined]
    return method


# ---- Values as a person or a model reads them

SHOWN_CHARS_MAX: Final = 200
"""The longest text of a value that a model is shown."""


def shown(value: object) -> str:
    """Return a value as a model sees it: JSON where possible, cut at a limit."""
    try:
        text = (
            value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, default=_named, separators=(",", ":"))
        )
    except (TypeError, ValueError):
        text = _read(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"


def _named(value: object) -> str:
    """Return an object with the name of its class: ``str()`` of a pydantic model leaves it out."""
    try:
        return repr(value) if hasattr(type(value), "model_fields") else _read(value)
    except Exception:  # a user's repr()
        return NO_WORDS


def plain(value: object) -> Any:
    """Return a fact as plain JSON data."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return plain_mapping(value, plain)
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    to_dict = getattr(value, "to_dict", None)
    return to_dict() if callable(to_dict) else str(value)


def plain_mapping(value: Mapping[Any, Any], plain: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a mapping as a JSON object, or as ``{"$map": [[key, value], ..]}`` if a key is not a text.

    So the keys 1 and "1" stay different.
    """
    if all(isinstance(key, str) for key in value):
        return {str(key): plain(one) for key, one in value.items()}
    return {"$map": [[plain(key), plain(one)] for key, one in value.items()]}


def listed(names: Sequence[str]) -> str:
    """Join the names with commas and "and"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


NAMED_MAX: Final = 5
"""How many calls, causes or runs a text names; it says how many more there are. Attributes have all of them."""
CAUSES_MAX: Final = 20
"""How many causes of a blocked run are recorded; one more says how many others there are."""
_MORE: Final = pattern(r"and ([0-9][0-9,]{0,14}) more(?:: .*)?")


def some(texts: Sequence[str], *, where: str = "", most: int = NAMED_MAX) -> list[str]:
    """Return these texts; if they are more than ``most``, the first different ones and how many more there are.

    What ``some`` itself has shortened before is counted, too. ``where``: what lists all of them.
    """
    count = how_many(texts)
    if count <= most:
        return list(texts)
    rest = len(texts) - 1 if texts and more_in(texts[-1]) else len(texts)
    first = list(dict.fromkeys(texts[:rest]))[:most]
    return [*first, f"and {count - len(first):,} more{where and f': {where}'}"]


def some_in_words(names: Iterable[str]) -> str:
    """Return the names with commas; if they are more than ``NAMED_MAX``, the first of them and how many more there are."""
    texts = some(list(names))
    return f"{', '.join(texts[:-1])} {texts[-1]}" if texts and more_in(texts[-1]) else ", ".join(texts)


def how_many(texts: Sequence[str]) -> int:
    """Return how many there are, with those that ``some`` has only counted."""
    more = more_in(texts[-1]) if texts else 0
    return len(texts) - 1 + more if more else len(texts)


def more_in(text: str) -> int:
    """Return how many others this text of ``some`` counts; 0: it names one."""
    found = _MORE.fullmatch(text)
    return int(found[1].replace(",", "")) if found else 0


def listed_in(run_id: str) -> str:
    """Return where all calls of a run are listed, for a text that names a few of them."""
    return f"rt.report({run_id!r}) lists them all"


def _listed_some(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= NAMED_MAX else some_in_words(names)


def _standing(tools: Sequence[str]) -> str:
    """Say of which tools effects are left."""
    return f"{_listed_some(tools)} {'stands' if len(tools) == 1 else 'stand'}"


NOT_AGAIN: Final = "Do not call it again or look for another way; go on with other work, or stop."
"""What a model does about a call that waits for a person, if its program continues the run after the decision."""

INCOMPLETE: Final = "incomplete: "
"""How the reason of a rollback, and the cause of a block, begins if the run was left without what it needs."""

FOR_A_PERSON: Final = (
    "It waits for a person. Nobody is notified automatically: amends inbox lists it. Stop and tell the user."
)
"""What a model is told of a run that waits for a person. Hooks notify people of approvals only."""

NOT_FINISHED: Final = "This task is not finished:"
"""How the text begins that a model is told before the end: if its conversation has it, the model was told."""


STILL_OPEN: Final = "If it is still open when you stop, everything that was done in this task is taken back."
"""What a model is told with a failure if nothing can tell it before the end."""

NAME_CHARS_MAX: Final = 64
_UNSAFE: Final = pattern(r"[^A-Za-z0-9_-]")


def name_for_models(name: str) -> str:
    """Return a tool's name as the APIs of models accept it: at most 64 letters, digits, ``_`` and ``-``."""
    return _UNSAFE.sub("_", name)[:NAME_CHARS_MAX]


# ---- Phrases about failures

_ABOUT_ARGUMENTS: Final = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
_INFRASTRUCTURE: Final = (
    OSError,
    MemoryError,
    RecursionError,
    ImportError,
    AssertionError,
    NotImplementedError,
    SystemError,
)


_BROKEN: Final = pattern(r"Connect|Timeout|TimedOut|TIMEOUT|Unavailable|Network|RateLimit|TooManyRequests")
"""What the names of errors say after which other arguments do not help, where the name is all that was recorded."""


def what_helps(kind: type, *, has_file: bool, broken: bool = False) -> str:
    """Tell a model what it can do after an error of this class.

    ``has_file``: the error names a file. ``broken``: it says that a connection or a service broke.

    A connection that is refused or a full disk is not cured by other arguments: a model that is told so tries them all.
    """
    is_ours = issubclass(kind, _INFRASTRUCTURE) and not issubclass(kind, _ABOUT_ARGUMENTS) and not has_file
    if broken or is_ours:
        return "The arguments are not the cause: call it again later with the same ones, or stop and tell the user."
    return "You may correct the arguments and call it again."


# ---- Phrases about the ordering law


class OrderViolation(Protocol):
    """The facts of a refusal by the ordering law: an ``OutOfOrder``."""

    tool: str
    law: str
    pivot: str | None
    missing: tuple[str, ...]
    unsettled: tuple[str, ...]
    allowed: tuple[str, ...]


def out_of_order(no: OrderViolation) -> str:
    """Say why the ordering law refuses a call, and what to call instead."""
    match no.law:
        case "pivot_early" if no.missing:
            first = no.missing[0]
            return (
                f"{no.tool} cannot be undone, so it comes last, and {listed(no.missing)} "
                f"{'has' if len(no.missing) == 1 else 'have'} not been done. "
                f"Call {first if len(no.missing) == 1 else 'them'} first, then {no.tool} again with the same arguments."
            )
        case "pivot_early":
            return (
                f"{no.tool} cannot be undone, so it comes last, and {_listed_some(no.unsettled)} "
                f"{'has' if len(no.unsettled) == 1 else 'have'} no result yet. "
                f"Wait for {'it' if len(no.unsettled) == 1 else 'them'}, then call {no.tool} again with the same arguments."
            )
        case "pivot_twice":
            return (
                f"this task has already made its one irreversible call ({no.pivot}). "
                "Do not call it again; if a second one is needed, tell the user that it is a new task."
            )
        case "pivot_in_flight":
            return (
                f"{no.pivot} cannot be undone and has no result yet, so only reads may start. "
                f"Wait for it, then call {no.tool} again with the same arguments."
            )
        case _:
            return (
                f"{no.pivot} has happened and cannot be undone, so nothing that might have to be undone may start. "
                f"You may still call: {', '.join(no.allowed) or 'nothing'}."
            )


def what_to_call(no: OrderViolation) -> str:
    """Say what a program can do about a call that the ordering law refused."""
    match no.law:
        case "pivot_early" if no.missing:
            return f"call {listed(no.missing)} first, then {no.tool} again"
        case "pivot_early":
            return f"wait until {_listed_some(no.unsettled)} is settled (rt.report shows why it is not), then call {no.tool} again"
        case "pivot_in_flight":
            return (
                f"wait until {no.pivot or 'the pivot'} is settled, then call {no.tool} again; reads may start meanwhile"
            )
        case _:
            return f"call {no.tool} in a run of its own, or in a child: with run.child(): ..."


# ---- Phrases about budgets

MONEY: Final = frozenset({"usd", "eur", "gbp", "chf", "jpy", "cny", "inr", "cad", "aud", "sek", "nok", "dkk", "pln"})
_WHOSE: Final = {
    "run": "for this task",
    "agent": "for this agent",
    "tenant": "for this customer",
    "tool": "for this tool",
    "ledger": "for everybody together",
}
_WHEN: Final = {"hour": " this hour", "day": " today", "month": " this month"}


class OverBudget(Protocol):
    """The facts of a refusal by a budget: a ``BudgetExceeded``."""

    tool: str
    budget: Any
    asked: Decimal
    left: Decimal


def amount_words(amount: Decimal, unit: str) -> str:
    """Return an amount as a person or a model reads it: money has at least two decimal places."""
    whole, _, rest = f"{amount:f}".partition(".")
    rest = rest.rstrip("0")
    if unit.lower() in MONEY:
        rest = rest.ljust(2, "0")
    return f"{whole}.{rest}" if rest else whole


def limit_words(limits: Iterable[tuple[Decimal, str, str, str | None]]) -> str:
    """Say which limits a call would exceed; each limit is a cap, a unit, ``per`` and ``every``."""
    said = []
    for cap, unit, per, every in limits:
        of = "one call" if per == "call" else _WHOSE[per].removeprefix("for ") + _WHEN.get(every or "", "")
        said.append(f"{amount_words(cap, unit)} {unit} for {of}")
    return f"it would pass the limit of {' and of '.join(said)}"


def over_budget(no: OverBudget) -> str:
    """Say why a budget refuses a call: what it needs, what is left of the cap, and for whom."""
    budget = no.budget
    asked, left, cap = (amount_words(one, budget.unit) for one in (no.asked, no.left, Decimal(str(budget.cap))))
    if budget.per == "call":
        return f"{no.tool} needs {asked} {budget.unit} and one call may cost {cap}"
    whose = _WHOSE[budget.per] + _WHEN.get(budget.every or "", "")
    if budget.unit == "calls":
        of = "" if budget.tool == "*" else f" of {budget.tool}"
        return f"{no.tool} may not be called: {left} of {cap} calls{of} {'is' if left == '1' else 'are'} left {whose}"
    return f"{no.tool} needs {asked} {budget.unit} and {left} of {cap} is left {whose}"


# ---- Names that were mistyped

_SEPARATORS: Final = pattern(r"[\s._:/\-\u2010-\u2015]+")
SLIP_CHARS_MIN: Final = 4
"""Shorter names that differ by one letter are different names, not typing errors."""
TWO_SLIPS_CHARS_MIN: Final = 12
NAME_COMPARED_MAX: Final = 128


def close_to(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the known name that was probably meant, or nothing."""
    from difflib import get_close_matches  # imported here: only a mistyped name needs it

    names = list(known)
    same = [one for one in names if folded(one) == folded(name)]  # except for case, Unicode form or separators
    return same[:1] or get_close_matches(name, names, n=1, cutoff=cutoff)


def folded(name: str) -> str:
    """Return a name without what people get wrong about names: case, Unicode form, separators."""
    return _SEPARATORS.sub("", normalize("NFKC", normalize("NFKC", name).casefold()))


def is_slip(name: str, known: str) -> bool:
    """Return whether a name is most likely a mistyped known one: equal when folded, or one or two letters away.

    Names that differ only in a number (``tool1``, ``tool2``) are different names.
    """
    a, b = folded(name), folded(known)
    if a == b:
        return True
    if min(len(a), len(b)) < SLIP_CHARS_MIN or max(len(a), len(b)) > NAME_COMPARED_MAX:
        return False
    if re.sub(r"\d+", "", a) == re.sub(r"\d+", "", b):
        return False
    return _edits(a, b) <= (2 if min(len(a), len(b)) >= TWO_SLIPS_CHARS_MIN else 1)


def is_swapped(name: str, known: str) -> bool:
    """Return whether a name has the letters of a known one, and only neighbours are swapped."""
    return sorted(folded(name)) == sorted(folded(known)) and is_slip(name, known)


def _edits(a: str, b: str) -> int:
    """Count the letters that must be added, removed, changed or swapped with their neighbour."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        row = [i]
        for j, right in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]
