"""Every state and every move, in two tables. Nothing else in amends may decide a move.

The SQL guards (``stores/``), the diagrams in ``docs/explanation/states.md`` and the checkers of the simulator are
generated from these tables. A move that is not in a table raises ``TransitionRefused``.

A *staged* call has no state of its own: it is ``held`` with the reason ``order``.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

CallState: TypeAlias = Literal[
    "held",
    "ready",
    "started",
    "succeeded",
    "failed",
    "backing_off",
    "in_doubt",
    "compensating",
    "compensated",
    "compensation_failed",
    "compensation_in_doubt",
    "refused",
    "dropped",
    "residue",
]
RunState: TypeAlias = Literal["open", "pivoted", "committed", "rolling_back", "rolled_back", "blocked", "abandoned"]
HoldReason: TypeAlias = Literal["approval", "order", "duplicate", "conflict", "budget", "lock", "before"]
Goal: TypeAlias = Literal["commit", "rollback"]

NEW: Final = "(new)"

CALL_MOVES: Final[dict[str, tuple[CallState, ...]]] = {
    NEW: ("held", "started"),
    "held": ("ready", "refused", "dropped"),
    "ready": ("started", "held", "refused", "dropped"),
    "started": ("succeeded", "failed", "backing_off", "in_doubt"),
    "backing_off": ("started", "failed"),
    "in_doubt": ("started", "backing_off", "succeeded", "failed", "compensating", "residue"),
    "succeeded": ("compensating", "residue"),
    "compensating": ("compensated", "compensation_failed", "compensation_in_doubt"),
    "compensation_in_doubt": ("compensating", "compensated", "compensation_failed"),
    "compensation_failed": ("compensating", "compensated", "residue"),
    "failed": ("succeeded",),  # late evidence only
    "compensated": ("succeeded",),  # late evidence only
    "refused": (),
    "dropped": (),
    "residue": (),
}

RUN_MOVES: Final[dict[str, tuple[RunState, ...]]] = {
    NEW: ("open",),
    "open": ("pivoted", "committed", "rolling_back", "blocked", "abandoned"),
    "pivoted": ("committed", "blocked", "abandoned"),
    "rolling_back": ("rolled_back", "blocked", "abandoned"),
    "blocked": ("open", "pivoted", "rolling_back", "abandoned"),  # back to where it came from
    "committed": ("rolling_back",),  # a child that did not pivot, with its parent; a root run, by a person's plan
    "rolled_back": ("rolling_back",),  # late evidence only
    "abandoned": (),
}

CALL_STATES: Final[tuple[CallState, ...]] = get_args(CallState)
RUN_STATES: Final[tuple[RunState, ...]] = get_args(RunState)
RUN_FINAL: Final[frozenset[str]] = frozenset({"committed", "rolled_back", "abandoned"})
UNSETTLED: Final[frozenset[str]] = frozenset({"held", "ready", "started", "backing_off", "in_doubt"})
"""States that a pivot and a commit wait for, except for staged calls (``held`` for ``order``)."""
FREES_KEY: Final[frozenset[str]] = frozenset({"failed", "compensated", "refused", "dropped"})
LIVE: Final[frozenset[str]] = frozenset({"started", "compensating"})
"""States in which a live process is working on the call; a takeover turns them into doubt."""
STANDING: Final[frozenset[str]] = frozenset(
    {"succeeded", "in_doubt", "compensation_failed", "compensation_in_doubt", "compensating"}
)
"""States whose effect is, or may be, in the world."""


def call_sources(to: CallState) -> tuple[str, ...]:
    """Return the states from which a call may move to ``to``: the guard of that move in SQL."""
    return tuple(state for state, targets in CALL_MOVES.items() if to in targets)


def run_sources(to: RunState) -> tuple[str, ...]:
    """Return the states from which a run may move to ``to``."""
    return tuple(state for state, targets in RUN_MOVES.items() if to in targets)


def call_may(frm: str, to: str) -> bool:
    """Return whether the table of calls allows this move."""
    return to in CALL_MOVES[frm]


def run_may(frm: str, to: str) -> bool:
    """Return whether the table of runs allows this move."""
    return to in RUN_MOVES[frm]


def diagram(moves: dict[str, tuple[CallState, ...]] | dict[str, tuple[RunState, ...]]) -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2"]
    for frm, targets in moves.items():
        source = "[*]" if frm == NEW else frm
        lines += [f"    {source} --> {to}" for to in targets]
        if not targets:
            lines.append(f"    {source} --> [*]")
    return "\n".join(lines)
