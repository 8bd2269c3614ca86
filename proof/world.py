"""The worlds of AgentDojo behind a socket: started by the interpreter of an environment that has ``agentdojo``.

Many worlds live in this one process, each with an id. It survives the agents, so a killed agent leaves behind what it did.
A line of JSON is a request, a line of JSON its answer:

    {"op": "catalogue"}                                    versions, tasks with their calls, tools
    {"op": "new", "world": ID, "suite": S, "task": T}      a fresh world as that task finds it
    {"op": "call", "world": ID, "tool": NAME, "args": {}}  a tool of the suite, carried out
    {"op": "state", "world": ID}                           everything in it that no clock and no counter decides, and its journal
    {"op": "useful", "world": ID}                          whether AgentDojo's own check of the task is content
    {"op": "drop", "world": ID}
"""

import importlib.metadata
import json
import os
import pickle
import socketserver
import sys
import threading
from typing import Any

from agentdojo.functions_runtime import FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suites

VERSION = "v1.2.2"
LINE_BYTES_MAX = 4_000_000

# What a clock, a counter or a log of requests decides. Each mail also has an id, by the order of arrival: mails are compared by
# their content. `initial_*` is the fixture, `received`, `sent` and `drafts` are views of `emails`.
DROPPED = frozenset(
    {
        "timestamp",
        "last_modified",
        "initial_emails",
        "initial_events",
        "initial_files",
        "received",
        "sent",
        "drafts",
        "web_requests",
    }
)


class Worlds:
    """All worlds of this process. One lock: a world is small and its tools are quick."""

    def __init__(self) -> None:
        self.suites = get_suites(VERSION)
        self.worlds: dict[str, dict[str, Any]] = {}
        self.kept: dict[tuple[str, str], bytes] = {}
        self.lock = threading.Lock()

    def answer(self, asked: dict[str, Any]) -> Any:
        with self.lock:
            return getattr(self, f"on_{asked.pop('op')}")(**asked)

    def on_catalogue(self) -> dict[str, Any]:
        return {
            "agentdojo": importlib.metadata.version("agentdojo"),
            "benchmark": VERSION,
            "suites": {name: self._suite(suite) for name, suite in self.suites.items()},
        }

    def _suite(self, suite: Any) -> dict[str, Any]:
        return {
            "tools": {tool.name: [tool.description, list(tool.parameters.model_fields)] for tool in suite.tools},
            "tasks": {name: self._calls(suite, task) for name, task in suite.user_tasks.items()},
            "injections": {name: self._calls(suite, task) for name, task in suite.injection_tasks.items()},
        }

    def _calls(self, suite: Any, task: Any) -> list[list[Any]] | str:
        """Return the calls that solve a task, or why it cannot be replayed."""
        env = self._fresh(suite, task)
        calls = task.ground_truth(env)
        runtime = FunctionsRuntime(suite.tools)
        for call in calls:
            _, error = runtime.run_function(env, call.function, dict(call.args))
            if error is not None:
                return f"{call.function}: {error}"
        return [[call.function, json.loads(json.dumps(dict(call.args), default=str))] for call in calls]

    def _fresh(self, suite: Any, task: Any) -> Any:
        env = suite.load_and_inject_default_environment({})
        prepare = getattr(task, "init_environment", None)
        return prepare(env) if prepare else env

    def on_new(self, world: str, suite: str, task: str) -> None:
        found = self.suites[suite]
        chosen = found.user_tasks.get(task) or found.injection_tasks[task]
        fresh = self.kept.get((suite, task))
        if fresh is None:  # AgentDojo reads a world from YAML, which takes far longer than to play with it
            fresh = self.kept[suite, task] = pickle.dumps(self._fresh(found, chosen))
        env, before = pickle.loads(fresh), pickle.loads(fresh)
        self.worlds[world] = {"suite": found, "task": chosen, "env": env, "before": before, "journal": []}

    def on_call(self, world: str, tool: str, args: dict[str, Any]) -> dict[str, Any]:
        place = self.worlds[world]
        result, error = FunctionsRuntime(place["suite"].tools).run_function(place["env"], tool, args)
        if error is not None:
            return {"error": error}
        place["journal"].append([tool, args])
        return {"result": _plain(result)}

    def on_state(self, world: str) -> dict[str, Any]:
        place = self.worlds[world]
        return {"state": _compared(place["env"].model_dump(mode="json")), "journal": place["journal"]}

    def on_useful(self, world: str) -> bool:
        place = self.worlds[world]
        task, env = place["task"], place["env"]
        return bool(task.utility(task.GROUND_TRUTH_OUTPUT, place["before"], env))

    def on_drop(self, world: str) -> None:
        self.worlds.pop(world, None)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _compared(value: Any) -> Any:
    """Return a state without what differs between two equal days."""
    if isinstance(value, dict):
        kept = {name: _compared(one) for name, one in value.items() if name not in DROPPED}
        for name in ("emails", "trash"):
            if isinstance(kept.get(name), dict):
                mails = [
                    {field: text for field, text in mail.items() if field != "id_"} for mail in kept[name].values()
                ]
                kept[name] = sorted(mails, key=lambda mail: json.dumps(mail, sort_keys=True))
        if isinstance(kept.get("participants"), list):
            kept["participants"] = sorted(kept["participants"])  # AgentDojo makes a set of them
        if isinstance(kept.get("recipients"), list):
            kept["recipients"] = sorted(kept["recipients"])
        if isinstance(kept.get("user_channels"), dict):
            kept["user_channels"] = {
                user: sorted(channels) for user, channels in kept["user_channels"].items()
            }  # in no order
        return kept
    return [_compared(one) for one in value] if isinstance(value, list) else value


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while line := self.rfile.readline(LINE_BYTES_MAX):
            try:
                answer = {"ok": self.server.worlds.answer(json.loads(line))}  # type: ignore[attr-defined]
            except Exception as error:
                answer = {"broken": f"{type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(answer, default=str).encode() + b"\n")


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    """Serve at the socket named by the only argument until the parent process is gone."""
    path = sys.argv[1]
    with _Server(path, _Handler) as server:
        server.worlds = Worlds()  # type: ignore[attr-defined]
        print("ready", flush=True)
        threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
        server.serve_forever()


def _end_with_parent(server: _Server) -> None:
    sys.stdin.read()  # ends when the parent does: it holds the other end
    server.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
