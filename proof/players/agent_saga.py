"""agent-saga on its file log: calls in a saga, compensators where the world allows them; a restart recovers the log first."""

import asyncio
import logging
from importlib.metadata import version
from pathlib import Path

logging.disable(logging.CRITICAL)

from agent_saga import PreFlightGate, RecoveryDaemon, SagaAborted  # noqa: E402
from agent_saga.decorator import saga_scope, tool  # noqa: E402
from agent_saga.registry import compensator  # noqa: E402
from agent_saga.semantics import ActionSemantics, Compensation  # noqa: E402
from agent_saga.wal import FileWAL  # noqa: E402

from proof.abilities import SNAPSHOT, UNDO, choice, given  # noqa: E402
from proof.destination import Destination, die, reword  # noqa: E402
from proof.players import guarded  # noqa: E402

VERSION = f"agent-saga {version('agent-saga')}"
_catalogue = {}


def prepare(catalogue):
    """Keep the names of the tools."""
    _catalogue.update(catalogue)


def _tools(scenario, there):
    made = {}
    for name in _catalogue["suites"][scenario.suite]["tools"]:
        if name in UNDO:

            @compensator(f"undo.{name}")
            async def undo(args, result, before, _name=name):
                return UNDO[_name](there.world, given(args), result, before)

            def undone(told, _name=name, _undo=undo):
                return Compensation(fn=_undo, handler=f"undo.{_name}", kwargs=told)

            @tool(name, semantics=ActionSemantics.COMPENSABLE, compensate=undone)
            async def body(_name=name, **kwargs):
                before = SNAPSHOT[_name](there.world, kwargs) if _name in SNAPSHOT else None
                return {"args": kwargs, "before": before, "result": there.perform(_name, dict(kwargs))}
        elif choice(scenario.suite, name)[0] == "read":

            async def body(_name=name, **kwargs):
                return {"result": there.perform(_name, dict(kwargs))}

        else:

            @tool(name, semantics=ActionSemantics.IRREVERSIBLE)
            async def body(_name=name, **kwargs):
                return {"result": there.perform(_name, dict(kwargs))}

        made[name] = body
    return made


async def _play(scenario):
    there = Destination(scenario)
    tools = _tools(scenario, there)
    resumed = scenario.has_struck
    log = Path(scenario.folder, "saga.wal")
    if resumed and log.exists():
        await RecoveryDaemon(log).recover_all()
    wal = FileWAL(str(log))
    await wal.start()
    # What cannot be compensated needs a person's yes: here there is one who always gives it.
    gate = PreFlightGate(approval_provider=lambda _context, _rule: True)
    try:
        async with saga_scope(wal=wal, gate=gate):
            for number, (name, args) in enumerate(scenario.calls):
                here = number == scenario.at
                if here and resumed and scenario.fault == "reworded":
                    args = reword(name, args) or args
                await _tried(tools[name], args)
                if not here:
                    continue
                if scenario.fault == "new id":
                    await _tried(tools[name], args)
                if scenario.fault in ("kill after", "reworded") and scenario.strike():
                    die()
                if scenario.fault == "failure" and scenario.strike():
                    raise guarded.TaskFailed
    except (guarded.TaskFailed, SagaAborted):
        Path(scenario.folder, "taken back").touch()
        return 0
    Path(scenario.folder, "done").touch()
    return 0


async def _tried(call, args):
    for attempt in range(guarded.TRIES_MAX):
        try:
            return await call(**args)
        except Exception as error:
            print(type(error).__name__, error)
            if attempt == guarded.TRIES_MAX - 1:
                raise
    return None


def play(scenario):
    return asyncio.run(_play(scenario))


def finish(scenario):
    return guarded.finish(scenario)
