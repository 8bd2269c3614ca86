"""What a flow of the engine may ask of the world: time, sleep, luck, and user code. See ``ledger`` for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from amends.encoding.dataclass import dataclass, field
from amends.errors import LeaseLost
from amends.ledger.flow import Flow, Op
from amends.ledger.joined import Rides
from amends.ledger.rows import CallRow
from amends.model import Call, Phase

T = TypeVar("T")
Invoked: TypeAlias = Phase | Literal["notice"]
"""As what user code runs: as a call, or as the hook that tells of one."""


@dataclass(slots=True)
class Lease:
    """A run tree that this process owns: until when, on its own monotonic clock."""

    root: str
    owner: str
    epoch: int
    lease_s: float
    until: float
    lost: bool = False
    goal: str = ""
    """What a person asked for meanwhile, learned with the renewal."""
    rides: Rides | None = None
    """The caller's own transactions that calls of this tree ride in, once there was one."""

    def check(self, mono: float) -> None:
        """Raise ``LeaseLost`` unless the tree is certainly still ours.

        The margin covers what passes between this check and the first byte of a request.
        """
        if not self.is_ours(mono):
            raise LeaseLost(
                "this process no longer owns the run; nothing was started",
                hint="another worker goes on with it; open the run again to see its state",
            )

    def is_ours(self, mono: float) -> bool:
        """Whether the tree is certainly still ours at this moment."""
        return not self.lost and mono < self.until - self.margin

    @property
    def margin(self) -> float:
        """Safety between two clocks and between check and send: a tenth of the lease."""
        return self.lease_s / 10


@dataclass(slots=True)
class Flight:
    """What a flow has started and not settled: if the flow is stopped, its process still knows."""

    call: CallRow | None = None
    sent: bool = False
    doubted: bool = False
    """An earlier start of it may have had its effect, whatever became of this one."""
    goes_on: bool = False
    """The body runs by itself, in a thread of its own for one, and may go on although nobody waits for it."""


# ---- the world ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clocks:
    """Wall time for people, monotonic time (of one boot of one host) for waiting."""

    wall: float
    mono: float
    boot: str


@dataclass(frozen=True, slots=True)
class ReadClocks(Op[Clocks]):
    """What the clocks say."""


@dataclass(frozen=True, slots=True)
class Luck(Op[float]):
    """A number in [0, 1), for jitter."""


@dataclass(frozen=True, slots=True)
class Sleep(Op[None]):
    """Let time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Watch(Op[Any]):
    """Be told when this run tree changes: a watcher for ``Await``, which lasts as long as somebody has it."""

    root: str


@dataclass(frozen=True, slots=True)
class Await(Op[None]):
    """Let time pass until the tree changes, at most so long."""

    watcher: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class ReadAnchor(Op[Any]):
    """The mark that an anchor holds outside the ledger; None: there is none yet."""

    anchor: Any


@dataclass(frozen=True, slots=True)
class KeepAnchor(Op[None]):
    """Up to here approvals were used up: on the disk, outside the ledger."""

    anchor: Any
    seq: int
    approval: str


@dataclass(frozen=True, slots=True)
class KeepCheckpoint(Op[bool]):
    """The anchor knows at least this checkpoint, on the disk; false: it is another ledger's anchor."""

    anchor: Any
    newest: Any


@dataclass(frozen=True, slots=True)
class IsDead(Op[bool]):
    """Whether this owner is certainly dead: same host and boot, process gone."""

    owner: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How a body ended. ``in_flight``: it did not, and it is no longer waited for."""

    value: Any = None
    error: Exception | None = None
    in_flight: bool = False
    around: BaseException | None = None
    """What the caller was handling when the body began: Python chains it to the error, and it is no part of it."""


@dataclass(slots=True, eq=False)
class Later:
    """A started call as its body may ask for it: put together when it does, since few bodies do."""

    row: CallRow
    make: Callable[[], Call]
    made: Call | None = None
    spent: dict[str, int] | None = None
    """What the body said that it cost, by unit, in billionths; None: it said nothing."""
    until: float | None = None
    """When its timeout is over, on this process's monotonic clock; None: it has none."""
    touched: bool = False
    """A call inside the body had its effect, or may have."""
    passed: list[Exception] = field(default_factory=list)
    """What calls inside the body have raised: their word about themselves, not about it."""
    waits: int = 0
    """Calls inside the body that wait in place now: for a person, a lock or a twin."""
    is_stuck: bool = False
    """One of those had not ended when it was given up."""
    is_over: bool = False
    """The body has ended, or outlived its timeout: nothing has to wait in place for it any more."""

    def whole(self) -> Call:
        """The call itself; always the same one."""
        if self.made is None:
            self.made = self.make()
        return self.made

    @property
    def id(self) -> str:
        """As in the call."""
        return self.row.id

    @property
    def run_id(self) -> str:
        """As in the call."""
        return self.row.run_id

    @property
    def tool(self) -> str:
        """As in the call."""
        return self.row.tool

    @property
    def key(self) -> str:
        """As in the call."""
        return self.whole().key

    @property
    def attempt(self) -> int:
        """As in the call."""
        return self.row.attempt


@dataclass(frozen=True, slots=True)
class Invoke(Op[Ended]):
    """Run user code: the only operation with effects outside the ledger. Checks the lease last."""

    fn: Callable[..., Any]
    kwargs: Mapping[str, Any]
    is_async: bool
    timeout: float | None
    call: Call | Later
    lease: Lease | None
    phase: Invoked
    run: Any = None
    """The facade's run, for the context of the body."""
    late: Callable[[Ended], Flow[None]] | None = None
    """What to do when a body that outlived its timeout returns after all."""
    flight: Flight | None = None
    probes: bool = False
    """It asks whether a call took effect: any other answer than the three is a mistake of its author."""


@dataclass(frozen=True, slots=True)
class Together(Op[list[Any]]):
    """Drive these flows side by side; each result is a value or the exception it ended with."""

    flows: Sequence[Flow[Any]]


@dataclass(frozen=True, slots=True)
class LiveCalls(Op[int]):
    """How many flows of this run and of those inside it are under way here, other threads and tasks included.

    Not of the whole tree: a body that has a run of its own inside it would wait for itself.
    """

    run: str
