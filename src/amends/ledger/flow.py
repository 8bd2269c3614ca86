"""Define flows and operations: how amends decides without performing anything.

A *flow* is an ``async def`` that awaits *operations*. ``await op`` yields the operation itself to the driver of the
flow and evaluates to the answer that the driver sends back, so ``await AdmitCall(...)`` has type ``Admission``. No flow
in ``ledger/`` or ``engine/`` touches a clock, a socket or a thread: a blocking driver, an asyncio driver and the
simulator run the very same flows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")


class Op(Generic[T]):
    """One request of a flow to its driver. ``await op`` evaluates to the answer."""

    __slots__ = ()

    if not TYPE_CHECKING:
        # Nobody asks an operation for the type of its answer at run time: ``Op[T]`` is ``Op`` there, which saves half
        # of the time to define 150 operations.

        def __class_getitem__(cls, _answer: Any) -> Any:
            return cls

        def __init_subclass__(cls) -> None:
            pass

    def __await__(self) -> Generator[Op[Any], Any, T]:
        answer: T = yield self
        return answer


Flow: TypeAlias = Coroutine[Op[Any], Any, T]


def run_flow(flow: Flow[T], perform: Callable[[Any], Any]) -> T:
    """Run the flow to its end; raise the failure of an operation at the line that awaited it.

    Only an ``Exception`` is thrown into the flow. A crash, a cancellation or an interrupt ends the flow at its current
    operation, and the flow does not see it: recovery is a single path, and the simulator tests it.
    """
    answer: Any = None
    try:
        op = flow.send(None)
        while True:
            try:
                answer = perform(op)
            except Exception as error:
                op = flow.throw(error)
            else:
                op = flow.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        flow.close()


async def run_flow_async(flow: Flow[T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """Run the flow to its end, awaiting each operation; see ``run_flow``."""
    answer: Any = None
    try:
        op = flow.send(None)
        while True:
            try:
                answer = await perform(op)
            except Exception as error:
                op = flow.throw(error)
            else:
                op = flow.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        flow.close()


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end that never suspends, because every step of it blocks instead."""
    try:
        work.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    work.close()
    raise AssertionError("a blocking step suspended")
