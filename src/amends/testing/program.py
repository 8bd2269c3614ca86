"""Programs of the simulation: what an agent, a recovering worker or a person does, as flows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from amends import people
from amends.engine import ending, landing, leaving, opening, plan, recovery
from amends.engine.call import Done, guarded_call
from amends.engine.giving import give_back
from amends.engine.session import Ask, Session
from amends.errors import LedgerError
from amends.hub import Hub, View
from amends.model import Answer
from amends.noticedesk import tell_all
from amends.ops import Flight
from amends.requesting import direct_ask, model_ask
from amends.rows import RunRow
from amends.testing.simulation import Process, Simulation
from amends.tool import Options

NOBODY: Final = View(None, None, None)
Agent = Callable[["Inside"], Coroutine[Any, Any, Any]]


class Inside:
    """What a simulated program has: a process, the tools, the ledger."""

    def __init__(self, sim: Simulation, hub: Hub, process: Process) -> None:
        self.sim, self.hub, self.process = sim, hub, process
        hub.forget()  # another process: it knows only what the ledger says

    def run(self, id: str, *, agent: str = "", **options: Any) -> SimulatedBlock:
        """``async with inside.run("r"):`` as ``with rt.run("r"):``."""
        return SimulatedBlock(self, id, agent=agent, **options)

    async def open(self, id: str, **options: Any) -> SimulatedRun:
        """Open a run, or go on with it."""
        wanted = self.hub.opening(NOBODY, id, options.pop("input", None), options)
        wanted = _owned_by(wanted, self.process.owner)
        while True:
            opened, lease = await opening.take(wanted)
            resumed = opened.how == "resumed"
            session = self.hub.session(opened.run, lease, resumed=resumed, wait_s=wanted.wait_s)
            if opened.how == "ended":
                return SimulatedRun(self, session, over=True)
            self.process.leases[lease.root] = lease
            recovered = SimulatedRun(self, session, over=False)  # what is done on the way knows its run
            row = opened.run
            if resumed:
                row = await recovered._ending(opening.go_on(session, opened.run))
            if row.state != "rolled_back":
                return SimulatedRun(self, session, over=row.state == "committed")

    async def recover(self, agents: dict[str, Agent] | None = None, *, limit: int = 100) -> int:
        """One pass of a worker; how many trees it took."""
        await tell_all(self.hub, NOBODY, limit)
        found = await recovery.find_abandoned(frozenset(self.hub.specs), tenant=None, limit=limit)
        taken = 0
        for one in found:
            if one.missing:
                continue
            claimed = await recovery.claim(
                one, owner=self.process.owner, lease_s=self.sim.lease_s, new_id=self.sim.new_id
            )
            if claimed is not None:
                taken += 1
                await self._recover(*claimed, agents or {})
        return taken

    async def _recover(self, row: RunRow, lease: Any, agents: dict[str, Agent]) -> None:
        self.process.leases[lease.root] = lease
        patience = people.PATIENCE_S_MAX
        session = self.hub.session(row, lease, resumed=True, wait_s=patience, said=(patience, patience))
        recovered = SimulatedRun(self, session, over=False)
        try:
            done = await recovered._ending(recovery.recover_tree(session, row, has_agent=row.agent in agents))
        except LedgerError:
            return  # taken over meanwhile
        if done.how == "resume":
            await _to_its_end(lambda: agents[row.agent](_With(self, recovered)))
        self.process.leases.pop(lease.root, None)


class _With(Inside):
    """The program of a run that a worker has claimed: its block is already open."""

    def __init__(self, inside: Inside, run: SimulatedRun) -> None:
        super().__init__(inside.sim, inside.hub, inside.process)
        self._run = run

    def run(self, id: str, *, agent: str = "", **options: Any) -> SimulatedBlock:
        return SimulatedBlock(self, id, agent=agent, claimed=self._run, **options)


async def _to_its_end(program: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    try:
        await program()
    except Exception:
        return


def _owned_by(wanted: opening.Opening, owner: str) -> opening.Opening:
    from dataclasses import replace

    return replace(wanted, owner=owner)


class NoNestedCalls(Exception):
    """A body of the simulation asked for a guarded call, which its world does not have."""


class SimulatedRun:
    """One opened run: the same flows as ``Run`` and ``AsyncRun``."""

    is_async = _is_nowhere = _is_replay = False

    def __init__(self, inside: Inside, session: Session, *, over: bool) -> None:
        self.inside, self.session, self.over = inside, session, over
        session.run = self
        self.id = session.id

    async def call(self, tool: Any, *, again: str | None = None, **args: Any) -> Any:
        """Do a tool in this run; a cancellation turns what was started into doubt."""
        declared, _ = people.declared_as(tool)
        done = await self.do(direct_ask(self.inside.hub, self.session, declared, Options(again=again), (), args))
        return done.value

    async def ask(self, tool: str, args: Mapping[str, Any]) -> Any:
        """The same, as a model asks for it: a name and plain data."""
        hub = self.inside.hub
        asked = model_ask(hub, self.session, tool, args, handler=None, tool_call_id=None, again=None)
        return (await self.do(asked)).value

    async def do(self, ask: Ask) -> Done:
        """Do what was asked for in this run."""
        live, lineage = self.inside.process.live, self.session.lineage
        live.update(lineage)
        try:
            return await guarded_call(self.session, ask)
        except Exception:
            raise
        except GeneratorExit:  # the process died
            raise
        except BaseException:
            await ending.stop_call(self.session, ask.flight)
            raise
        finally:
            live.subtract(lineage)

    async def execute(self, calls: Sequence[object]) -> list[Answer]:
        """A plan; a cancellation turns what its members had started into doubt."""
        flights: list[Flight] = []
        live, lineage = self.inside.process.live, self.session.lineage
        live.update(lineage)
        try:
            return await plan.run_plan(self.session, calls, flights=flights)
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            for flight in flights:
                await ending.stop_call(self.session, flight)
            raise
        finally:
            live.subtract(lineage)

    async def child(self, name: str) -> SimulatedRun:
        """A run inside this one."""
        opened, session = await opening.open_child(
            self.session, id=f"{self.id}/{name}", input="", input_digest="", given=None, shown=None
        )
        return SimulatedRun(self.inside, session, over=opened.how == "ended" or session.state == "committed")

    async def leave(self, error: BaseException | None = None) -> None:
        """The nine ways out."""
        if not self.over:
            await self._ending(leaving.leave(self.session, error, None))
        self.over = True

    async def _ending(self, flow: Any) -> Any:
        """A flow that ends the run; a cancellation leaves doubt behind, and a run that others can take at once."""
        try:
            return await flow
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            await landing.stop_here(self.session)
            raise

    async def let_go(self) -> None:
        """Give the run back."""
        await give_back(self.session, None)

    def direct(self, declared: Any, options: Any, args: Any, kwargs: Any) -> Any:
        """Bodies of the simulation call no tools by themselves."""
        raise NoNestedCalls("a simulated body called a tool")


class SimulatedBlock:
    """``async with``: leaving follows the table of nine; a dead process leaves nothing."""

    def __init__(self, inside: Inside, id: str, *, claimed: SimulatedRun | None = None, **options: Any) -> None:
        self._inside, self._id, self._claimed, self._options = inside, id, claimed, options
        self._run: SimulatedRun | None = None

    async def __aenter__(self) -> SimulatedRun:
        self._run = self._claimed or await self._inside.open(self._id, **self._options)
        return self._run

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._run is not None, "a block is left after it was entered"
        if isinstance(error, GeneratorExit):
            return
        await self._run.leave(error)
        self._inside.process.leases.pop(self._run.session.root, None)
