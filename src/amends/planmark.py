"""Where a tree stands, in one digest: what a rollback that was planned is held against, in the ledger's transaction."""

from __future__ import annotations

from collections.abc import Iterable

from amends.plain import digest
from amends.rows import CallRow, RunRow


def tree_mark(runs: Iterable[RunRow], calls: Iterable[CallRow], forks: Iterable[RunRow] = ()) -> str:
    """The same as long as a rollback of this tree would do the same, and the same forks stand on it.

    Reads, heartbeats, takeovers and probes that decided nothing leave it as it is: none of them changes what stands.
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
