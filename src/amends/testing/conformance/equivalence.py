"""Equivalence: for random operations in any order, a store answers and records what the memory store does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from amends.encoding.ids import number_of
from amends.errors import Error
from amends.ledger import operations as ops
from amends.ledger.plain import AdmitPlain, FailPlain, PlainRun, PlainTool, SettlePlain, Started
from amends.ledger.rows import CallRow, RunRow
from amends.stores.memory import MemoryStore
from amends.testing.conformance.ledger import LEASE_S, Ledger
from amends.testing.conformance.prove import check_each

SEEDS: Final = 5
ASKED: Final = 200
LOOKED_EVERY: Final = 50
KINDS: Final = {"look": "read", "charge": "compensatable", "wire": "pivot", "mail": "retriable"}

Deed: TypeAlias = Callable[[Ledger, random.Random], "ops.StoreOp[Any] | None"]


@check_each({f"seed {seed}": seed for seed in range(SEEDS)})
def it_answers_as_the_memory_does(ledger: Ledger, seed: int) -> None:
    compare_with_memory(ledger, seed)


def compare_with_memory(ledger: Ledger, seed: int, asked: int = ASKED) -> Ledger:
    """Send both stores the same random operations; return the memory store's ledger if all answers were equal."""
    luck = random.Random(seed)
    memory = Ledger(MemoryStore(ledger.clock), clock=ledger.clock)
    for number in range(asked):
        ledger.clock.now += LEASE_S + 5 if luck.random() < 0.03 else luck.random()
        [deed] = luck.choices(list(DEEDS), list(DEEDS.values()))
        op = deed(memory, luck)
        if op is not None:
            answer = answered(ledger, replace(op))
            assert answer == answered(memory, op), f"operation number {number}: {op}"
        if number % LOOKED_EVERY == 0:
            assert ledger.everything() == memory.everything(), f"after number {number}"
    assert ledger.everything() == memory.everything()
    return memory


# ---- Ordinary lives


LIVES: Final = 4


@check_each({f"seed {seed}": seed for seed in range(SEEDS)})
def ordinary_lives_are_recorded_as_in_the_memory(ledger: Ledger, seed: int) -> None:
    compare_lives(ledger, seed)


def compare_lives(ledger: Ledger, seed: int, lives: int = LIVES) -> None:
    """Lead runs as an engine does: plain calls, some at once, then a commit or a rollback; compare after each.

    Random operations seldom come in the order in which a store may take its short ways; these nearly always do.
    """
    luck = random.Random(seed)
    memory = Ledger(MemoryStore(ledger.clock), clock=ledger.clock)
    for number in range(lives):
        _Life(ledger, memory, luck).lead(f"life {number}")
        assert ledger.everything() == memory.everything(), f"after life {number}"


class _Life:
    def __init__(self, ledger: Ledger, memory: Ledger, luck: random.Random) -> None:
        self.ledger, self.memory, self.luck = ledger, memory, luck
        self.made = 0

    def both(self, op: ops.StoreOp[Any]) -> Any:
        """Ask both; the answers are equal."""
        self.ledger.clock.now += 70.0 if self.luck.random() < 0.01 else self.luck.random() / 10
        answer = answered(self.ledger, replace(op))
        assert answer == answered(self.memory, op), op
        return answer

    def lead(self, id: str) -> None:
        luck = self.luck
        run = self.both(self.memory.open_op(id)).run
        plain = PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, "a", run.epoch)
        started: list[Started] = []
        for _ in range(luck.randint(2, 14)):
            if luck.random() < 0.55 or not started:
                self.admit(run, plain, started)
            else:
                self.settle(started.pop(luck.randrange(len(started))))
            if seldom(luck):
                self.interrupt(run, started)
        for one in started:
            self.settle(one)
        if luck.random() < 0.3:
            output, replays = luck.choice([None, '"out"']), {} if luck.random() < 0.8 else {"unknown": 1}
            self.both(ops.DecideCommit(run.uid, "a", run.epoch, output, replays, plain=plain))
        else:
            self.take_back(run, plain)

    def admit(self, run: RunRow, plain: PlainRun, started: list[Started]) -> None:
        self.made += 1
        tool = self.luck.choice(["charge", "charge", "charge", "look"])
        args = f'{{"n":{self.luck.randint(1, self.made) if seldom(self.luck) else 100 + self.made}}}'
        op = self.memory.plain_op(run, tool, kind=KINDS[tool], args=args, call_ref=self.luck.choice(["", "ref"]))
        op.run = plain
        answer = self.both(op)
        if isinstance(answer, ops.Admission) and answer.verdict == "start" and answer.call is not None:
            started.append(Started(op, answer.call.seq, answer.call.created_at))

    def settle(self, started: Started) -> None:
        if self.luck.random() < 0.1:
            self.both(
                FailPlain(started, self.luck.choice(['["ValueError", "no"]', "broken"]), "boot", self.luck.random())
            )
        elif self.luck.random() < 0.85:
            self.both(SettlePlain(started, self.luck.choice(['"ok"', "null", "[1]"])))
        else:
            to = self.luck.choice(["failed", "in_doubt"])
            self.both(self.memory.settle_op(self.memory.look(started.row), to, error="broken"))

    def interrupt(self, run: RunRow, started: list[Started]) -> None:
        """Let something happen that is not plain, and moves the chain or nothing."""
        choices: list[ops.StoreOp[Any]] = [
            ops.RenewLeases("a", {run.uid: run.epoch}, LEASE_S, boot="boot", mono=1e6),
            self.memory.child_op(run, f"child {self.made}"),
            self.memory.admit_op(run, "mail", kind="retriable", key=f"mail {self.made} of {run.uid}"),
        ]
        choices += [
            ops.NoteEvidence(one.row.id, 1, True, '"late"', "", "boot", 9.0, "late") for one in started[:1]
        ]  # fmt: skip
        self.both(self.luck.choice(choices))

    def take_back(self, run: RunRow, plain: PlainRun) -> None:
        person = seldom(self.luck)
        self.both(ops.BeginRollback(run.uid, "a", "it failed", person, owner="a", epoch=run.epoch, plain=plain))
        calls = [call for call in self.memory.calls() if call.root == run.uid and call.state == "succeeded"]
        for call in sorted(calls, key=lambda call: -call.settled_seq):
            if call.kind == "read":
                continue
            begun = self.both(ops.BeginCompensation(call.id, "a", run.epoch, 1, seen=call))
            if isinstance(begun, CallRow):
                to = "compensation_failed" if seldom(self.luck) else "compensated"
                self.both(ops.SettleCompensation(call.id, "a", run.epoch, 1, to, mono=9.0, seen=begun))
        self.both(ops.CloseRun(run.uid, "a", run.epoch, "rolled_back", plain=plain))


# ---- Answers


def answered(ledger: Ledger, op: ops.StoreOp[Any]) -> Any:
    """Return the answer, or the error with its facts."""
    try:
        return ledger(op)
    except (Error, AssertionError, LookupError) as error:
        return type(error).__name__, vars(error) if isinstance(error, Error) else {}


# ---- Random operations


def seldom(luck: random.Random) -> bool:
    return luck.random() < 0.15


def held_by(ledger: Ledger, row: RunRow | CallRow, luck: random.Random) -> tuple[str, int]:
    """Return the owner and epoch in force; seldom those of a dead worker."""
    tree = ledger(ops.ReadRun("", uid=row.root))
    return ("a", 1) if seldom(luck) else (tree.run.owner or "a", tree.run.epoch)


def on_call(*states: str) -> Callable[[Callable[..., ops.StoreOp[Any]]], Deed]:
    """Make a random operation on a call, mostly on one in these states (a decorator)."""

    def of(make: Callable[[CallRow, str, int, random.Random], ops.StoreOp[Any]]) -> Deed:
        def deed(ledger: Ledger, luck: random.Random) -> ops.StoreOp[Any] | None:
            calls = ledger.calls()
            fitting = [] if seldom(luck) else [call for call in calls if call.state in states]
            if not calls:
                return None
            call = luck.choice(fitting or calls)
            return make(call, *held_by(ledger, call, luck), luck)

        return deed

    return of


def on_run(*states: str) -> Callable[[Callable[..., ops.StoreOp[Any]]], Deed]:
    """Make a random operation on a run, mostly on one in these states (a decorator)."""

    def of(make: Callable[[RunRow, str, int, random.Random], ops.StoreOp[Any]]) -> Deed:
        def deed(ledger: Ledger, luck: random.Random) -> ops.StoreOp[Any] | None:
            runs = ledger.runs()
            fitting = [] if seldom(luck) else [run for run in runs if run.state in states]
            if not runs:
                return None
            run = luck.choice(fitting or runs)
            return make(run, *held_by(ledger, run, luck), luck)

        return deed

    return of


def opening(ledger: Ledger, luck: random.Random) -> ops.StoreOp[Any]:
    return ledger.open_op(
        luck.choice(["one", "two", "three"]), owner=luck.choice("ab"), input=luck.choice(["", "", "x"]),
        history=seldom(luck), dead_owner=luck.choice(["", "", "a"]), deadline_s=40.0 if seldom(luck) else None,
        wants=luck.random() < 0.5, policy=luck.choice(["rollback", "rollback+client20.0"]),
    )  # fmt: skip


def opening_child(ledger: Ledger, luck: random.Random) -> ops.StoreOp[Any] | None:
    runs = ledger.runs()
    if not runs:
        return None
    op = ledger.child_op(parent := luck.choice(runs), luck.choice(["left", "right", "one"]))
    op.owner, op.epoch = held_by(ledger, parent, luck)
    return op


def admitting(ledger: Ledger, luck: random.Random) -> ops.StoreOp[Any] | None:
    runs = [run for run in ledger.runs() if run.state == "open" or seldom(luck)]
    if not runs:
        return None
    run = luck.choice(runs)
    tool = luck.choice(["charge", "charge", "charge", "mail", "look", "wire"])
    scope = luck.choice(["run", "run", "run", "ledger"])
    op = ledger.admit_op(
        run, tool, kind=KINDS[tool], key=f"{tool} {luck.choice('123')} of {run.root if scope == 'run' else ''}",
        args="[]" if seldom(luck) else "{}", scope=scope, at_commit=tool == "wire" and seldom(luck),
        after=luck.choice([(), ("charge",)]), on_conflict=luck.choice(["raise", "hold"]), advise=seldom(luck),
        grp=luck.choice(["", "g"]), declared=seldom(luck), again="on purpose" if seldom(luck) else "",
    )  # fmt: skip
    op.owner, op.epoch = held_by(ledger, run, luck)
    return op


def admitting_plainly(ledger: Ledger, luck: random.Random) -> ops.StoreOp[Any] | None:
    """Ask for a plain call, by the plain operation or by the equal general one."""
    runs = [run for run in ledger.runs() if run.uid == run.root and (run.state == "open" or seldom(luck))]
    if not runs:
        return None
    run = luck.choice(runs)
    owner, epoch = held_by(ledger, run, luck)
    tool = luck.choice(["charge", "charge", "look"])
    op = ledger.plain_op(
        run, tool, kind=KINDS[tool], args=luck.choice(['{"n":1}', '{"n":2}', '{"n":3}']), owner=owner, epoch=epoch,
        declared=int(seldom(luck)), on_conflict=luck.choice(["raise", "hold"]), call_ref=luck.choice(["", "ref"]),
    )  # fmt: skip
    if seldom(luck):
        op.ident = bytes(32)
    return op.general() if seldom(luck) else op


def settling_plainly(ledger: Ledger, luck: random.Random) -> ops.StoreOp[Any] | None:
    """Settle a call that was or could have been admitted plainly, by either operation."""
    calls = [call for call in ledger.calls() if len(call.ident) == 64]  # a plain request has real digests
    fitting = [call for call in calls if call.state == "started" or seldom(luck)]
    if not fitting:
        return None
    call = luck.choice(fitting)
    owner, epoch = held_by(ledger, call, luck)
    admitted = AdmitPlain(
        PlainRun(call.root, call.run_id, call.tenant, call.agent, call.principal, owner, epoch),
        PlainTool(call.tool, call.version, call.kind, call.declared, call.undoable),
        number_of(call.id) or 0, bytes.fromhex(call.key[:64]), bytes.fromhex(call.ident), bytes.fromhex(call.digest),
        call.args, call.call_ref,
    )  # fmt: skip
    started = Started(admitted, call.seq, call.created_at)
    op: SettlePlain | FailPlain = SettlePlain(started, luck.choice(['"ok"', "null", "[1]"]))
    if luck.random() < 0.2:
        op = FailPlain(started, '["ValueError", "no"]', "boot", 5.0)
    return op.general() if seldom(luck) else op


def plainly(run: RunRow, owner: str, epoch: int) -> PlainRun | None:
    """Return a root as its owner's session names it."""
    plain = PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, owner, epoch)
    return plain if run.uid == run.root else None


SETTLED = ["succeeded"] * 4 + ["failed", "backing_off", "in_doubt"]
DOUBT = ("in_doubt", "compensation_in_doubt", "compensation_failed")

DEEDS: dict[Deed, int] = {
    opening: 6,
    opening_child: 4,
    admitting: 30,
    admitting_plainly: 20,
    settling_plainly: 14,
    on_run("open", "pivoted", "rolling_back")(
        lambda run, _owner, _epoch, luck: ops.ClaimRun(
            run.root, luck.choice("bc"), f"opener {luck.random()}", LEASE_S, "boot", 1e6, force=seldom(luck)
        )
    ): 4,
    on_call("started")(
        lambda call, owner, epoch, luck: ops.SettleCall(
            call.id, owner, epoch, call.attempt, luck.choice(SETTLED), result='"ok"', retry_s=luck.choice([None, 5.0]),
            boot="boot", mono=luck.choice([None, 5.0]), doom=seldom(luck),
            seen=luck.choice([None, call, call]),
        )
    ): 24,
    on_call("backing_off", "in_doubt", "held", "ready")(
        lambda call, owner, epoch, _: ops.StartCall(call.id, owner, epoch, call.attempt + 1)
    ): 8,
    on_call("failed", "in_doubt", "compensated")(
        lambda call, *_: ops.NoteEvidence(call.id, call.attempt, True, '"late"', "", "boot", 9.0, "late")
    ): 3,
    on_call("in_doubt")(lambda call, *_: ops.NoteProbe(call.id, call.in_question, call.probes + 1, "unknown", "", 3.0)): 2,
    on_call("in_doubt", "compensation_in_doubt")(lambda call, *_: ops.WatchDoubt(call.id, call.in_question, "boot", 8.0)): 2,
    on_call(*DOUBT)(
        lambda call, owner, epoch, luck: ops.ResolveCall(
            call.id, luck.choice(["succeeded", "failed", "residue", "compensated"]), "ann", "seen", owner=owner,
            epoch=luck.choice([None, epoch]),
        )
    ): 5,
    on_call("held")(
        lambda call, _owner, _epoch, luck: ops.DecideCall(call.id, luck.choice(["run", "replay", "refuse"]), "ann", "why")
    ): 4,
    on_call("backing_off", "compensation_failed")(lambda call, *_: ops.RetryCall(call.id, "ann", "again")): 2,
    on_call("succeeded", "in_doubt", "compensation_failed")(
        lambda call, owner, epoch, luck: ops.BeginCompensation(
            call.id, owner, epoch, call.comp_attempt + 1, from_doubt=luck.random() < 0.5,
            seen=luck.choice([None, call, call]),
        )
    ): 14,
    on_call("compensating")(
        lambda call, owner, epoch, luck: ops.SettleCompensation(
            call.id, owner, epoch, call.comp_attempt,
            luck.choice(["compensated", "compensated", "compensation_failed", "compensation_in_doubt"]), mono=9.0,
            seen=luck.choice([None, call, call]),
        )
    ): 10,
    on_run("open")(lambda run, owner, epoch, _: ops.RenewLeases(owner, {run.root: epoch}, LEASE_S)): 6,
    on_run("open")(
        lambda run, owner, epoch, luck: ops.ReleaseLease(
            run.root, owner, epoch, luck.choice([None, 2.0]), suspended=seldom(luck)
        )
    ): 3,
    on_run("open", "committed")(
        lambda run, owner, epoch, luck: ops.BeginRollback(
            run.uid, owner, "no", False, owner=owner, epoch=None if seldom(luck) else epoch, plain=plainly(run, owner, epoch)
        )
    ): 4,
    on_run("open", "pivoted")(
        lambda run, owner, epoch, luck: ops.DecideCommit(
            run.uid, owner, epoch, luck.choice([None, '"out"']), plain=plainly(run, owner, epoch)
        )
    ): 6,
    on_run("rolling_back")(
        lambda run, owner, epoch, _: ops.CloseRun(
            run.uid, owner, epoch, "rolled_back", plain=plainly(run, owner, epoch)
        )
    ): 6,
    on_run("open", "pivoted", "rolling_back")(
        lambda run, owner, epoch, luck: ops.CloseRun(
            run.uid, owner, epoch, luck.choice(["committed", "blocked"]), causes=("one",),
            wake_s=luck.choice([None, 1.0]), interrupted=luck.random() < 0.5,
        )
    ): 3,
    on_run("blocked")(lambda run, *_: ops.AbandonRun(run.root, "ann", "enough")): 1,
    on_run("blocked")(lambda run, *_: ops.FinishRun(run.uid, "ann", "done")): 1,
    lambda _, luck: ops.CollectGarbage(luck.choice([0.0, 5.0, 20.0]), limit=luck.choice([1, 50]), dry_run=seldom(luck)): 2,
    on_run("committed", "rolled_back", "abandoned")(
        lambda run, _, __, luck: ops.EraseTree(run.root, "ann", "asked", "wrk_1", residue=seldom(luck), dry_run=seldom(luck))
    ): 2,
    on_run("open")(lambda run, *_: ops.ReadRun("", uid=run.uid)): 2,
    lambda _, luck: ops.DueRuns(luck.choice([None, "acme"]), 10): 2,
    lambda _, luck: ops.ListWanted(luck.choice(["a", "b"]), 10): 1,
    lambda _, luck: ops.ListRuns(None, luck.choice([(), ("open",), ("open", "blocked")]), None, 3): 1,
    lambda _, luck: ops.SearchCalls(None, luck.choice([(), ("held",), ("in_doubt", "failed")]), None, 3): 1,
}  # fmt: skip
