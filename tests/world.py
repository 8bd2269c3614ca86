"""A small world for tests: tools of every kind, whose effects, failures and delays a test can script and see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from amends import Absent, Happened, Retry, Runtime, tool
from amends.drivers import process
from amends.encoding.dataclass import changed
from amends.ledger.operations import ReadRun, RenewLeases
from amends.stores.memory import MemoryStore

FAST = Retry(attempts=3, delay=0.001, max_delay=0.002)
ONCE = Retry(attempts=1)
BRIEF_S = 0.05
"""How long the lease of a dead run was, in the ledger; and how long whoever takes it over waits for late effects."""
OFTEN = 300
"""Beats per lease, with which nobody waits for the next beat of a long lease."""


class World:
    """Every effect in order; ``standing`` holds those that are there now."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.standing: list[str] = []
        self.script: dict[str, list[Any]] = {}
        self.lock = threading.Lock()

    def happen(self, what: str) -> str:
        """Have one effect, unless the script of the tool says otherwise for this start."""
        name = what.partition(":")[0]
        turns = self.script.get(name, [])
        turn = turns.pop(0) if turns else None
        if isinstance(turn, BaseException):
            raise turn
        if isinstance(turn, float):
            time.sleep(turn)
        if isinstance(turn, threading.Event):
            assert turn.wait(60)
        with self.lock:
            self.log.append(what)
            self.standing.append(what)
        if isinstance(turn, tuple):  # it happens, and the answer is lost
            raise turn[0]
        return what

    def undo(self, what: str) -> None:
        turns = self.script.get(f"undo {what.partition(':')[0]}", [])
        turn = turns.pop(0) if turns else None
        if isinstance(turn, BaseException):
            raise turn
        if isinstance(turn, float):
            time.sleep(turn)
        with self.lock:
            self.log.append(f"undo {what}")
            if what in self.standing:
                self.standing.remove(what)
        if isinstance(turn, tuple):
            raise turn[0]

    def compensatable(self, name: str = "reserve", *, twin: dict[str, Any] | None = None, **options: Any) -> Any:
        @tool(name=name, **options)
        def body(x: str = "1", n: int = 0) -> str:
            return self.happen(f"{name}:{x}")

        @body.compensate(**({"retry": FAST} | (twin or {})))
        def undo(x: str) -> None:
            self.undo(f"{name}:{x}")

        return body

    def pivot(self, name: str = "wire", **options: Any) -> Any:
        @tool(name=name, kind="pivot", **options)
        def body(x: str = "1") -> str:
            return self.happen(f"{name}:{x}")

        return body

    def retriable(self, name: str = "mail", **options: Any) -> Any:
        @tool(name=name, kind="retriable", **({"idempotent": True} | options))
        def body(x: str = "1") -> str:
            return self.happen(f"{name}:{x}")

        return body

    def read(self, name: str = "look", **options: Any) -> Any:
        @tool(name=name, kind="read", **options)
        def body(x: str = "1") -> int:
            turns = self.script.get(name, [])
            turn = turns.pop(0) if turns else None
            if isinstance(turn, BaseException):
                raise turn
            self.log.append(f"{name}:{x}")
            return len(self.log)

        return body

    def probed(self, one: Any, *, settle: float | None = None) -> Any:
        """Give a tool a probe that looks at what stands."""

        def look(x: str) -> Any:
            what = f"{one.name}:{x}"
            return Happened(what) if what in self.standing else Absent()

        one.probe(look, settle=settle)
        return one


def runtime(*tools: Any, **options: Any) -> Any:
    """Return a runtime, typed as Any: tests pass wrong arguments on purpose, and tests/typing checks the types."""
    given: dict[str, Any] = {"tools": tools, "wait": 30.0} | options
    return Runtime("memory:", **given)


def twin_of(store: MemoryStore, *tools: Any, **options: Any) -> Any:
    """Return another worker on the same ledger."""
    given: dict[str, Any] = {"tools": tools, "wait": 30.0} | options
    return Runtime(store=store, **given)


def states(rt: Runtime, run_id: str) -> dict[str, str]:
    return {call.tool: call.state for call in rt.report(run_id).calls}


def die(run: Any) -> None:
    """Leave the run as a killed process does: its lease is over, and nobody settles anything."""
    lease = run._session.lease
    run._host.heartbeat.forget(lease)
    lease.until = process.mono()
    expire(run._host.store, run.id, run._session.tenant)


def expire(store: Any, run_id: str, tenant: str = "") -> None:
    """Let the lease of a run end now in the ledger, however long it is, as if it had always been a short one.

    So no test needs a short lease, which would also end whenever the machine is slow for a moment.
    """
    tree = store.perform(ReadRun(tenant, id=run_id))
    root = tree.run if tree.run.uid == tree.run.root else store.perform(ReadRun(tenant, uid=tree.run.root)).run
    clock = process.clocks()
    store.perform(RenewLeases(root.owner, {root.uid: root.epoch}, BRIEF_S, boot=clock.boot, mono=clock.mono))
    time.sleep(BRIEF_S + 0.01)


def is_kept(store: Any, run_id: str) -> bool:
    """Return whether a beat has renewed a lease that ``expire`` ended."""
    tree = store.perform(ReadRun("", id=run_id))
    return bool(tree.run.lease_until > tree.now + 1)


def wake(store: MemoryStore) -> None:
    """Let the time come that released runs and their next attempts wait for."""
    for uid, row in list(store.runs.items()):
        if not row.owner and row.wake_at is not None:
            store.runs[uid] = changed(row, {"wake_at": 0.0})
    for id, call in list(store.calls.items()):
        if call.retry_at is not None:
            store.calls[id] = changed(call, {"retry_at": 0.0})


def until(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Wait for what must become true; the time is only for a test that fails."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.002)


def together(fns: Iterable[Callable[[], Any]]) -> list[Any]:
    """Run all in threads at once; return each result, or the exception it ended with."""
    found: dict[int, Any] = {}

    def run(number: int, fn: Callable[[], Any]) -> None:
        try:
            found[number] = fn()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(fns)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[number] for number in range(len(threads))]
