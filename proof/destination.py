"""The way from an agent to its world, and the faults on it. Standard library only: peers import it in their own environments."""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULTS: dict[str, str] = {
    "kill before": "SIGKILL before the effect",
    "kill between": "SIGKILL between the effect and its record",
    "kill after": "SIGKILL after the record",
    "timeout with": "a timeout, and the effect happened",
    "timeout without": "a timeout, and nothing happened",
    "error": "an error of the destination, and nothing happened",
    "new id": "the same request again, with a new call id",
    "reworded": "killed after the record; the resumed model words its free text differently",
    "two workers": "two processes work on the same task at once",
    "failure": "the task fails after this call",
}
ROLLED_BACK = ("failure",)
"""The faults after which the task is taken back and not finished."""
FREE_TEXT = {
    "send_email": ("subject", "body"),
    "send_direct_message": ("body",),
    "send_channel_message": ("body",),
    "create_calendar_event": ("description",),
}
"""Arguments that a model words anew each time. A file's content, a page and the subject of a payment are what is asked for."""


class DestinationError(RuntimeError):
    """The destination said no. Nothing happened there."""


class World:
    """A connection to one world."""

    def __init__(self, path: str, world: str) -> None:
        self.path, self.world = path, world
        self._socket: socket.socket | None = None

    def ask(self, op: str, **more: Any) -> Any:
        """Send a request and return its answer."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(60)
            self._socket.connect(self.path)
            self._file = self._socket.makefile("rb")
        named = {} if op == "catalogue" else {"world": self.world}
        self._socket.sendall(json.dumps({"op": op, **named, **more}).encode() + b"\n")
        answer = json.loads(self._file.readline())
        if "broken" in answer:
            raise AssertionError(f"the world broke at {op} {more}: {answer['broken']}")
        return answer["ok"]

    def call(self, tool: str, args: dict[str, Any]) -> Any:
        """Carry a tool out in the world; raise ``DestinationError`` if it refuses."""
        answer = self.ask("call", tool=tool, args=args)
        if "error" in answer:
            raise DestinationError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Close the connection; the world stays."""
        if self._socket is not None:
            self._file.close()
            self._socket.close()
            self._socket = None


@dataclass(frozen=True)
class Scenario:
    """One task, one fault at one of its calls. ``folder`` belongs to this scenario alone."""

    suite: str
    task: str
    calls: list[tuple[str, dict[str, Any]]]
    fault: str = ""
    at: int = -1
    then: str = "resume"
    """After a kill: ``resume``, the agent is started again; ``rollback``, a worker takes the run back."""
    injected: list[tuple[str, dict[str, Any]]] | None = None
    """What an attacker makes the model ask for, after its first call."""
    folder: str = ""
    socket: str = ""
    world: str = ""

    def is_due(self, fault: str, tool: str, args: dict[str, Any]) -> bool:
        """Return whether this fault strikes here and now; it strikes once, whatever dies and comes back."""
        if fault != self.fault:
            return False
        wanted, its_args = self.calls[self.at]
        return tool == wanted and _same(args, its_args) and self.strike()

    def strike(self) -> bool:
        """Return True for the first who asks, in whatever process: the fault is theirs to make."""
        try:
            os.close(os.open(Path(self.folder, "struck"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    @property
    def has_struck(self) -> bool:
        """Whether the fault has happened."""
        return Path(self.folder, "struck").exists()


def _same(args: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether these are the arguments of the call; an argument that a tool adds by default does not count."""
    return all(
        name in args and (args[name] == value or str(args[name]) == str(value)) for name, value in wanted.items()
    )


class Destination:
    """What a tool's body calls: the world, with the fault of the scenario on the way."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(scenario.socket, scenario.world)

    def perform(self, tool: str, args: dict[str, Any]) -> Any:
        """Carry a tool out. A fault may strike before or after the effect."""
        due = self.scenario.is_due
        if due("kill before", tool, args):
            die()
        if due("timeout without", tool, args):
            raise TimeoutError(f"{tool}: no answer (and nothing happened)")
        if due("error", tool, args):
            raise DestinationError(f"{tool}: 503, try again")
        result = self.world.call(tool, args)
        if due("kill between", tool, args):
            die()
        if due("timeout with", tool, args):
            raise TimeoutError(f"{tool}: no answer (but it happened)")
        return result


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def reword(tool: str, args: dict[str, Any]) -> dict[str, Any] | None:
    """Return the same request in other words, or None where nothing in it is free text."""
    texts = [name for name in FREE_TEXT.get(tool, ()) if isinstance(args.get(name), str)]
    return args | {name: f"{args[name]} (in other words)" for name in texts} if texts else None
