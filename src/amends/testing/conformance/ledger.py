"""``Ledger``: a store under test, with its own clock, used in one colour; ``audit`` checks it at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar

from amends.audit.verify import Audit, verify_chains
from amends.encoding.chain import read_place
from amends.encoding.ids import call_id, number_at
from amends.ledger import operations as ops
from amends.ledger.flow import run_flow
from amends.ledger.operations import ListBudgets, SearchApprovals
from amends.ledger.plain import AdmitPlain, FailedPlain, PlainRun, PlainTool, SettledPlain, Started
from amends.ledger.rows import ApprovalRow, CallRow, EventRow, RunRow, SliceRow
from amends.ledger.store import Store
from amends.states import NEW, call_may, run_may
from amends.testing.world import imbalances, unpaid

E = TypeVar("E", bound=BaseException)

LEASE_S: Final = 30.0
PAGE: Final = 100


@dataclass
class Clock:
    """A clock that stands still until a check moves it."""

    now: float = 1_750_000_000.0
    """A time that the numbers of calls can have (``amends.encoding.ids``): otherwise no call would be plain."""

    def __call__(self) -> float:
        """Return the time of the ledger."""
        return self.now


@dataclass
class Raised(Generic[E]):
    """The expected error, once it was raised."""

    value: E = field(init=False)


@contextmanager
def raises(expected: type[E]) -> Iterator[Raised[E]]:
    """Expect this error from the block; raise an ``AssertionError`` if it does not come."""
    raised = Raised[E]()
    try:
        yield raised
    except expected as error:
        raised.value = error
    else:
        raise AssertionError(f"{expected.__name__} was not raised")


@dataclass
class Ledger:
    """Short methods for what an engine asks of a store."""

    store: Store
    colour: str = "blocking"
    clock: Clock = field(default_factory=Clock)
    made: int = 0
    number: int = 0
    """The number of the newest call that this handle has asked for."""
    is_new: bool = True
    """What ``open`` returned."""
    runner: asyncio.Runner | None = None
    """The event loop of the async colour; without one, each operation gets its own."""
    second: Callable[[], Ledger] | None = None
    """Makes the second handle."""

    def __call__(self, op: ops.StoreOp[Any]) -> Any:
        """Perform the operation in this colour; a plain answer is given as the equal general one."""
        match self.raw(op):
            case Started() as started:
                return ops.Admission("start", started.row)
            case SettledPlain() | FailedPlain() as settled:
                return ops.Settled(settled.call)
            case answer:
                return answer

    def raw(self, op: ops.StoreOp[Any]) -> Any:
        """Perform the operation in this colour."""
        if self.colour == "blocking":
            return self.store.perform(op)
        if self.runner is None:
            return asyncio.run(self.store.perform_async(op))
        return self.runner.run(self.store.perform_async(op))

    @cached_property
    def beside(self) -> Ledger | None:
        """A second handle on the same ledger, if the store can have one; made on first use."""
        return None if self.second is None else self.second()

    def new(self, what: str) -> str:
        self.made += 1
        return f"{what}-{self.made}"

    def new_number(self) -> int:
        """Return the number of a new call: as an engine makes it, but in the order of asking also if the clock goes back."""
        self.made += 1
        self.number = max(self.number + 1, number_at(self.clock.now, self.made))
        return self.number

    def mono(self, then: float) -> float:
        """Return the monotonic clock now, if it read ``then`` when the ledger was made."""
        return then + self.clock.now - Clock.now

    # ---- Owning

    def open(self, id: str = "order", **given: Any) -> ops.Opened:
        answer: ops.Opened = self(self.open_op(id, **given))
        return answer

    def open_op(self, id: str = "order", *, owner: str = "a", input: str = "", **given: Any) -> ops.OpenRun:
        return ops.OpenRun(
            uid=self.new("run"), id=id, tenant=given.pop("tenant", "acme"), owner=owner, opener=self.new("opener"),
            lease_s=LEASE_S, input=input, input_digest=f"digest of {input}", boot="boot", mono=given.pop("mono", self.mono(500.0)),
            **given,
        )  # fmt: skip

    def run(self, id: str = "order", **given: Any) -> RunRow:
        opened = self.open(id, **given)
        assert opened.how in ("fresh", "resumed"), opened.how
        return opened.run

    def child(self, parent: RunRow, id: str = "child", **given: Any) -> RunRow:
        opened: ops.Opened = self(self.child_op(parent, id, **given))
        assert opened.how in ("fresh", "resumed"), opened.how
        return opened.run

    def child_op(self, parent: RunRow, id: str = "child", *, owner: str = "a", input: str = "") -> ops.OpenChild:
        return ops.OpenChild(
            uid=self.new("run"), id=id, parent=parent.uid, epoch=parent.epoch, owner=owner, input=input,
            input_digest=f"digest of {input}",
        )  # fmt: skip

    def claim(self, root: RunRow, *, owner: str = "b", **given: Any) -> RunRow | None:
        answer: RunRow | None = self(self.claim_op(root, owner=owner, **given))
        return answer

    def claim_op(self, root: RunRow, *, owner: str = "b", **given: Any) -> ops.ClaimRun:
        return ops.ClaimRun(
            root=root.uid, owner=owner, opener=self.new("opener"), lease_s=LEASE_S, boot=given.pop("boot", "boot"),
            mono=given.pop("mono", self.mono(900.0)), **given,
        )  # fmt: skip

    def take_over(self, root: RunRow, *, owner: str = "b") -> RunRow:
        """Let the lease run out and claim the tree."""
        self.clock.now += LEASE_S + 1
        claimed = self.claim(root, owner=owner)
        assert claimed is not None
        return claimed

    # ---- Calling

    def admit(self, run: RunRow, tool: str = "charge", **given: Any) -> Any:
        """Return an ``Admission``; typed as Any, because its verdict implies which fields are set."""
        return self(self.admit_op(run, tool, **given))

    def admit_op(
        self, run: RunRow, tool: str = "charge", *, owner: str = "", args: str = "{}", **given: Any
    ) -> ops.AdmitCall:
        kind = given.pop("kind", "compensatable")
        return ops.AdmitCall(
            call_id=given.pop("call_id", "") or call_id(self.new_number()), run=run.uid, root=run.root,
            run_id=run.id, tenant=run.tenant, owner=owner or run.owner or "a", epoch=run.epoch, tool=tool, version="1", kind=kind,
            key=given.pop("key", f"key of {tool} in {run.root}"), ident=f"ident of {args}", digest=f"digest of {args}",
            args=args, undoable=given.pop("undoable", kind == "compensatable"),
            expected=given.pop("expected", True), **given,
        )  # fmt: skip

    def start(self, run: RunRow, tool: str = "charge", **given: Any) -> CallRow:
        admission = self.admit(run, tool, **given)
        assert admission.verdict == "start", admission
        call: CallRow = admission.call
        return call

    def settle(self, call: CallRow, to: str = "succeeded", **given: Any) -> ops.Settled:
        answer: ops.Settled = self(self.settle_op(call, to, **given))
        return answer

    def settle_op(
        self, call: CallRow, to: str = "succeeded", *, owner: str = "a", epoch: int = 0, **given: Any
    ) -> ops.SettleCall:
        result = given.pop("result", '"ok"' if to == "succeeded" else None)
        return ops.SettleCall(
            call_id=call.id, owner=owner, epoch=epoch or call.created_epoch, attempt=call.attempt, to=to,
            result=result, boot="boot", mono=given.pop("mono", 500.0),
            seen=given.pop("seen", call), **given,
        )  # fmt: skip

    def do(self, run: RunRow, tool: str = "charge", **given: Any) -> CallRow:
        """Start a call and let it succeed."""
        call = self.start(run, tool, **given)
        settled = self.settle(call, owner=run.owner or "a", epoch=run.epoch)
        assert not settled.fenced
        return settled.call

    # ---- Plain calls

    def plain_op(self, run: RunRow, tool: str = "charge", *, args: str = "{}", **given: Any) -> AdmitPlain:
        """Return the plain request for a call."""
        kind = given.pop("kind", "compensatable")
        owner, epoch = given.pop("owner", run.owner or "a"), given.pop("epoch", run.epoch)
        declared, on_conflict = given.pop("declared", 0), given.pop("on_conflict", "raise")
        key, ident, digest = (
            sha256(f"{what} of {tool} {args} {run.root}".encode()).digest() for what in ("key", "ident", "digest")
        )
        return AdmitPlain(
            PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, owner, epoch),
            PlainTool(tool, "1", kind, declared, int(kind == "compensatable"), on_conflict=on_conflict),
            self.new_number(), key, ident, digest, args, **given,
        )  # fmt: skip

    def start_plain(self, run: RunRow, tool: str = "charge", **given: Any) -> Started:
        """Start a plain call, whether or not the store has a plain path for it."""
        op = self.plain_op(run, tool, **given)
        answer = self.raw(op)
        if isinstance(answer, ops.Admission):
            assert answer.verdict == "start", answer
            assert answer.call is not None
            return Started(op, answer.call.seq, answer.call.created_at)
        assert isinstance(answer, Started), answer
        return answer

    # ---- Ending

    def roll_back(self, run: RunRow, *, owner: str = "a", person: bool = False, epoch: int = 0) -> ops.Rollback:
        answer: ops.Rollback = self(
            ops.BeginRollback(run.uid, owner, "it failed", person, owner=owner, epoch=epoch or run.epoch)
        )
        return answer

    def compensate_op(self, call: CallRow, *, owner: str = "a", epoch: int = 0, **given: Any) -> ops.BeginCompensation:
        return ops.BeginCompensation(
            call.id, owner, epoch or call.created_epoch, call.comp_attempt + 1, seen=call, **given
        )

    def compensate(self, call: CallRow, to: str = "compensated", **given: Any) -> CallRow:
        """Begin a compensation and let it end in this state."""
        begun = self(self.compensate_op(call, **given))
        assert begun is not None, "the compensation was not begun"
        return self.settle_compensation(begun, to).call

    def settle_compensation(
        self, call: CallRow, to: str, *, owner: str = "a", epoch: int = 0, **given: Any
    ) -> ops.Settled:
        answer: ops.Settled = self(
            ops.SettleCompensation(
                call.id,
                owner,
                epoch or call.created_epoch,
                call.comp_attempt,
                to,
                boot="boot",
                mono=500.0,
                seen=call,
                **given,
            )
        )
        return answer

    def commit(self, run: RunRow, *, owner: str = "a") -> ops.Decision:
        answer: ops.Decision = self(ops.DecideCommit(run.uid, owner, run.epoch))
        return answer

    def close(self, run: RunRow, to: str, *, owner: str = "a", **given: Any) -> RunRow:
        answer: RunRow = self(ops.CloseRun(run.uid, owner, run.epoch, to, **given))
        return answer

    # ---- Reading

    def read(self, run: RunRow) -> RunRow:
        tree: ops.Tree | None = self(ops.ReadRun("", uid=run.uid))
        assert tree is not None
        return tree.run

    def look(self, call: CallRow) -> CallRow:
        found: CallRow | None = self(ops.ReadCall(call.id))
        assert found is not None
        return found

    def events(self, run: RunRow | None = None) -> list[EventRow]:
        found: list[EventRow] = []
        while True:
            after = (found[-1].place if run is None else found[-1].n) if found else ""
            page = self(ops.ReadEvents(None, None if run is None else run.root, after, PAGE))
            found += page
            if len(page) < PAGE:
                return found

    def runs(self) -> list[RunRow]:
        found: list[RunRow] = []
        while True:
            before = (found[-1].created_at, found[-1].uid) if found else None
            page = self(ops.ListRuns(None, (), before, PAGE))
            found += page
            if len(page) < PAGE:
                return found

    def calls(self) -> list[CallRow]:
        found: list[CallRow] = []
        while True:
            page = self(ops.SearchCalls(None, (), found[-1].id if found else None, PAGE))
            found += page
            if len(page) < PAGE:
                return found

    def slices(self) -> list[SliceRow]:
        """Return the slices of every budget of all tenants that checks use."""
        found: list[SliceRow] = []
        for tenant in ("", "acme", "other"):
            after = ""
            while page := self(ListBudgets(tenant, after, PAGE))[0]:
                found += page
                after = page[-1].name
        return found

    def approvals(self) -> list[ApprovalRow]:
        found: list[ApprovalRow] = []
        while True:
            page = self(SearchApprovals(None, (), found[-1].id if found else None, PAGE))
            found += [one.approval for one in page]
            if len(page) < PAGE:
                return found

    def everything(self) -> tuple[list[RunRow], list[CallRow], list[EventRow]]:
        return self.runs(), self.calls(), self.events()


def audit(ledger: Ledger) -> None:
    """Replay the events: every move is in the tables of states, and the last ones agree with the rows."""
    runs, calls, events = ledger.everything()
    state: dict[str, str] = {}
    assert [event.place for event in events] == sorted({event.place for event in events}, key=read_place)
    newest: dict[str, EventRow] = {}
    for event in events:
        before = newest.get(event.root)
        assert event.n == (1 if before is None else before.n + 1), "in a tree, the order of time is that of the numbers"
        newest[event.root] = event
        if event.what == "shared":  # a fork has the call as it was: it never moved here
            assert event.call not in state, f"{event.call} is shared and was there before"
            state[event.call] = event.to_state
        if event.what not in ("run", "call"):
            continue
        subject, may = (event.run, run_may) if event.what == "run" else (event.call, call_may)
        assert event.frm == state.get(subject, NEW), f"{event} does not follow from {state.get(subject)}"
        assert may(event.frm, event.to_state), f"the move of {event} is in no table of states"
        state[subject] = event.to_state
    verified = run_flow(verify_chains(Audit()), ledger).verified()
    assert verified.ok, str(verified)
    assert verified.events == len(events), "every event is in the chain of its tree"
    _audit_approvals(ledger.approvals(), {call.id: call for call in calls}, events)
    assert state == {run.uid: run.state for run in runs} | {call.id: call.state for call in calls}
    firsts = {(event.root, event.n): event.call for event in events}
    for call in calls:
        assert firsts.get((call.root, call.seq)) == call.id, "a call's seq is the number of its first event"
    calls = [call for call in calls if not call.is_loaded]
    if any(call.cost for call in calls):
        assert [*imbalances(ledger.slices(), calls), *unpaid(calls)] == []


def _audit_approvals(approvals: list[ApprovalRow], calls: dict[str, CallRow], events: list[EventRow]) -> None:
    """Check that every request moved as its events say, and that a used one names its use."""
    state: dict[str, str] = {}
    for event in events:
        if event.what == "approval":
            id = json.loads(event.facts)["approval"]
            assert event.frm == state.get(id, NEW), f"{event} does not follow from {state.get(id)}"
            state[id] = event.to_state
    assert state == {row.id: row.state for row in approvals}
    for row in approvals:
        assert calls[row.call].root == row.root, "a request is about a call of its tree"
        assert row.state != "used" or row.used_at is not None
