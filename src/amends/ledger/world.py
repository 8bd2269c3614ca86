"""Define the operations by which a flow asks the world: clocks, waiting, random numbers and user code.

The operations that ask the ledger are in ``operations``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from amends.encoding.dataclass import dataclass, field
from amends.ledger.flow import Flow, Op
from amends.ledger.leases import Lease
from amends.ledger.rows import CallRow
from amends.model import Call, Phase

T = TypeVar("T")
Invoked: TypeAlias = Phase | Literal["notice"]
"""The role in which user code runs: a phase of a call, or the hook that sends a notice."""


@dataclass(slots=True)
class Flight:
    """The call that a flow has started and not settled: if the flow is stopped, its process still knows."""

    call: CallRow | None = None
    sent: bool = False
    doubted: bool = False
    """An earlier attempt may have had its effect, whatever the outcome of this one."""
    goes_on: bool = False
    """The body runs on its own, for example in its own thread, and may go on although nobody waits for it."""


# ---- Clocks and waiting


@dataclass(frozen=True, slots=True)
class Clocks:
    """Wall time for people, monotonic time (of one boot of one host) for waiting."""

    wall: float
    mono: float
    boot: str


@dataclass(frozen=True, slots=True)
class ReadClocks(Op[Clocks]):
    """Read the clocks."""


@dataclass(frozen=True, slots=True)
class DrawRandom(Op[float]):
    """Draw a number in [0, 1), for jitter."""


@dataclass(frozen=True, slots=True)
class Sleep(Op[None]):
    """Wait for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Watch(Op[Any]):
    """Watch this run tree: return a watcher for ``Await``, valid as long as somebody holds it."""

    root: str


@dataclass(frozen=True, slots=True)
class Await(Op[None]):
    """Wait until the tree changes, at most so many seconds."""

    watcher: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class ReadAnchor(Op[Any]):
    """Read the mark that an anchor holds outside the ledger; None: there is none yet."""

    anchor: Any


@dataclass(frozen=True, slots=True)
class KeepAnchor(Op[None]):
    """Write to the anchor, on disk and outside the ledger, that this approval was used up at this time."""

    anchor: Any
    at: float
    approval: str


@dataclass(frozen=True, slots=True)
class KeepCheckpoint(Op[bool]):
    """Make the anchor know at least this checkpoint, on disk; false: it is the anchor of another ledger."""

    anchor: Any
    newest: Any


@dataclass(frozen=True, slots=True)
class Scrub(Op[None]):
    """Rewrite the file of the ledger, so that nothing that was removed from it is left in it."""

    store: Any
    """A ``Scrubbing`` store."""


@dataclass(frozen=True, slots=True)
class IsDead(Op[bool]):
    """Return whether this owner is certainly dead: same host and boot, process gone."""

    owner: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How a body ended. ``in_flight``: it did not, and nobody waits for it any more."""

    value: Any = None
    error: Exception | None = None
    in_flight: bool = False
    around: BaseException | None = None
    """The exception that the caller was handling when the body began: Python chains it to the error, but it is no part
    of it."""


@dataclass(slots=True, eq=False)
class LazyCall:
    """A started call as its body may ask for it: built on demand, since few bodies ask."""

    row: CallRow
    make: Callable[[], Call]
    made: Call | None = None
    spent: dict[str, int] | None = None
    """The cost that the body reported, by unit, in billionths; None: it reported none."""
    until: float | None = None
    """When its timeout ends, on this process's monotonic clock; None: it has no timeout."""
    touched: bool = False
    """A call inside the body had its effect, or may have had it."""
    passed: list[Exception] = field(default_factory=list)
    """The exceptions that calls inside the body raised: they are about those calls, not about this one."""
    waits: int = 0
    """How many calls inside the body wait in place now: for a person, a lock, or an equal call that is running."""
    is_stuck: bool = False
    """One of those had not ended when it was given up."""
    is_over: bool = False
    """The body has ended or outlived its timeout: nothing has to wait in place for it any more."""

    def whole(self) -> Call:
        """Return the call itself; always the same object."""
        if self.made is None:
            self.made = self.make()
        return self.made

    @property
    def id(self) -> str:
        """The id of the call."""
        return self.row.id

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.row.run_id

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return self.row.tool

    @property
    def key(self) -> str:
        """The idempotency key for the destination."""
        return self.whole().key

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        return self.row.attempt


class LazyCompensation(LazyCall):
    """A started compensation as its function may ask for it."""

    __slots__ = ()

    @property
    def attempt(self) -> int:
        """The number of the attempt of the compensation."""
        return self.row.comp_attempt


@dataclass(frozen=True, slots=True)
class Invoke(Op[Ended]):
    """Run user code: the only operation with effects outside the ledger. Checks the lease last."""

    fn: Callable[..., Any]
    kwargs: Mapping[str, Any]
    is_async: bool
    timeout: float | None
    call: Call | LazyCall
    lease: Lease | None
    phase: Invoked
    run: Any = None
    """The public run object, for the context of the body."""
    late: Callable[[Ended], Flow[None]] | None = None
    """What to do when a body that outlived its timeout returns after all."""
    flight: Flight | None = None
    probes: bool = False
    """It is a probe: any answer other than the three probe answers is an error of its author."""


@dataclass(frozen=True, slots=True)
class RunTogether(Op[list[Any]]):
    """Drive these flows concurrently; each result is a value or the exception that the flow ended with."""

    flows: Sequence[Flow[Any]]


@dataclass(frozen=True, slots=True)
class LiveCalls(Op[int]):
    """Count the flows of this run and of its descendants that are running here, in other threads and tasks too.

    It does not count the whole tree: a body that has a run of its own inside it would wait for itself.
    """

    run: str
