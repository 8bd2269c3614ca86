"""AgentRelay: tools in a session with a name, with its own compensation where the world allows one."""

import json
import logging
from importlib.metadata import version
from pathlib import Path

from agent_relay.runtime import AgentRuntime
from agent_relay.tooling import tool as relay_tool

from proof.abilities import SNAPSHOT, UNDO, given
from proof.destination import Destination, die, reword
from proof.players import guarded

logging.disable(logging.CRITICAL)
VERSION = f"agentrelay {version('agentrelay')}"
_catalogue = {}


def prepare(catalogue):
    """Keep the names of the tools."""
    _catalogue.update(catalogue)


def _tools(rt, scenario, there):
    made = {}
    for name in _catalogue["suites"][scenario.suite]["tools"]:
        options = {"name": name}
        if name in UNDO:

            def undo(_name=name, **kwargs):
                result = kwargs.get("result") or kwargs
                told = json.loads(Path(scenario.folder, f"{_name}.json").read_text(encoding="utf-8"))
                return UNDO[_name](there.world, given(told["args"]), told["result"] or result, told["before"])

            relay_tool(rt, name=f"undo_{name}")(undo)
            options["compensation"] = f"undo_{name}"

        def body(_name=name, **kwargs):
            before = SNAPSHOT[_name](there.world, kwargs) if _name in SNAPSHOT else None
            result = there.perform(_name, dict(kwargs))
            if _name in UNDO:
                written = {"args": kwargs, "result": result, "before": before}
                Path(scenario.folder, f"{_name}.json").write_text(json.dumps(written), encoding="utf-8")
            return result

        made[name] = relay_tool(rt, **options)(body)
    return made


def play(scenario):
    rt = AgentRuntime.from_connection_string(f"sqlite+pysqlite:///{Path(scenario.folder, 'relay.db')}")
    there = Destination(scenario)
    tools = _tools(rt, scenario, there)
    resumed = scenario.has_struck
    try:
        with rt.agent_session(name="task"):
            for number, (name, args) in enumerate(scenario.calls):
                here = number == scenario.at
                if here and resumed and scenario.fault == "reworded":
                    args = reword(name, args) or args
                _tried(tools[name], args)
                if not here:
                    continue
                if scenario.fault == "new id":
                    _tried(tools[name], args)
                if scenario.fault in ("kill after", "reworded") and scenario.strike():
                    die()
                if scenario.fault == "failure" and scenario.strike():
                    raise guarded.TaskFailed
    except guarded.TaskFailed:
        Path(scenario.folder, "taken back").touch()
        return 0
    Path(scenario.folder, "done").touch()
    return 0


def _tried(call, args):
    for attempt in range(guarded.TRIES_MAX):
        try:
            return call(**args)
        except Exception as error:
            print(type(error).__name__, error)
            if attempt == guarded.TRIES_MAX - 1:
                raise guarded.TaskFailed from error
    return None


def finish(scenario):
    return guarded.finish(scenario)
