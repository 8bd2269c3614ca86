"""A fork under test: made as the engine makes it, and opened."""

from __future__ import annotations

from typing import Any

from amends.ledger import operations as ops
from amends.ledger.operations import Forked, ForkRun
from amends.ledger.rows import CallRow, RunRow, forked_key
from amends.replay.forks import Wish, made
from amends.testing.conformance.ledger import Ledger


def fork_op(ledger: Ledger, run: RunRow, *calls: CallRow, id: str = "fork") -> ForkRun:
    """A fork that shares these calls of the run, in the order of the ledger; the last one is its point."""
    tree: ops.Tree | None = ledger(ops.ReadRun("", uid=run.uid))
    assert tree is not None
    wish = Wish("acme", run.id, calls[-1].id, id, "", "ann", ledger.new)
    ids = {call.id for call in calls}
    return made(tree, wish, [call for call in tree.calls if call.id in ids])


def forked(ledger: Ledger, run: RunRow, *calls: CallRow, id: str = "fork") -> RunRow:
    """The same, made."""
    answer: Forked = ledger(fork_op(ledger, run, *calls, id=id))
    assert answer.how == "forked", answer.how
    return answer.run


def opened(ledger: Ledger, fork: RunRow, owner: str = "f") -> RunRow:
    """The fork, owned."""
    answer = ledger.open(fork.id, owner=owner)
    assert answer.how == "resumed", answer.how
    return answer.run


def asked(ledger: Ledger, fork: RunRow, call: CallRow, **given: Any) -> Any:
    """What the fork answers to the request that this call of the original was."""
    key = forked_key(call.key.partition(":")[0], fork.root)
    return ledger.admit(fork, call.tool, key=key, kind=call.kind, owner=fork.owner, **given)


def own(ledger: Ledger, fork: RunRow, tool: str = "book") -> CallRow:
    """A live call of the fork, done."""
    return ledger.do(fork, tool)


# ---- scenarios ----------------------------------------------------------------------------


def fork(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    child = ledger.child(run, "order/c")
    one, two = ledger.do(run, args='{"a": 1}'), ledger.do(child, "two")
    ledger.commit(child)
    return fork_op(ledger, run, one, two)


def roll_back_forked(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    forked(ledger, run, ledger.do(run))
    return ops.BeginRollback(run.uid, "a", "it failed", False, owner="a", epoch=run.epoch)


def close_fork(ledger: Ledger) -> ops.StoreOp[Any]:
    run = ledger.run()
    mine = opened(ledger, forked(ledger, run, ledger.do(run)))
    ledger.roll_back(run)
    ledger.close(run, "blocked", causes=("a fork",))
    ledger.roll_back(mine, owner="f")
    return ops.CloseRun(mine.uid, "f", mine.epoch, "rolled_back")


FORKING = (fork, roll_back_forked, close_fork)
