"""The outside world of the shared flows: files in a folder, which outlive every process that is killed.

A *point* is a place that every engine passes in every flow: before and after a request, in a body before and after its
effect. The first process that reaches the armed point is killed there, or waits there until the server has been killed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, Final, Literal

from amends import Absent, AsyncRuntime, Happened, NoEffect, Retry, Runtime, current_call, tool

FOLDER: Final = "AMENDS_TEST_WORLD"
"""The environment variable with the folder of the world."""
SETTLE_S: Final = 0.2
KILLED_S_MAX: Final = 30.0
FAST: Final = Retry(attempts=3, delay=0.05, max_delay=0.1)
Target = Literal["worker", "server", "node"]


class World:
    """What stands outside, and which points were reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def ledger(self) -> str:
        """The URL of the ledger."""
        return f"sqlite:///{self.folder / 'ledger.db'}"

    @property
    def run_id(self) -> str:
        """The id of the run: worlds share the servers of engines."""
        return f"trip-{self.folder.name}"

    # ---- Effects

    @property
    def log(self) -> list[str]:
        """Every effect, in order."""
        return [f"{one['what']} {one['value']}" for one in self._effects()]

    def happen(self, what: str, value: str, *, once: bool = False) -> str:
        """Have an effect; ``once``: the destination has each key of a call only once."""
        key = current_call().key
        with self._locked("effects") as path:
            if not (once and any(one["key"] == key for one in self._effects())):
                _append(path, {"what": what, "value": value, "key": key})
        return f"{what}-{value}"

    def note(self, what: str, value: str) -> str:
        """Have an effect whose destination knows no keys."""
        with self._locked("effects") as path:
            _append(path, {"what": what, "value": value, "key": ""})
        return f"{what}-{value}"

    def has(self, what: str, value: str) -> bool:
        """Return whether this effect is there."""
        return f"{what} {value}" in self.log

    def _effects(self) -> list[dict[str, str]]:
        path = self.folder / "effects"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    # ---- Points

    @property
    def points(self) -> list[str]:
        """The points that were reached, in order."""
        path = self.folder / "points"
        return path.read_text().splitlines() if path.exists() else []

    def arm(self, point: str, target: Target) -> None:
        """Kill ``target`` when this point is first reached."""
        (self.folder / "armed").write_text(f"{point}\n{target}")

    @property
    def is_fired(self) -> bool:
        """Whether the armed point was reached."""
        return (self.folder / "fired").exists()

    def server_was_killed(self) -> None:
        """Let the process go on that waits at the armed point."""
        (self.folder / "killed").touch()

    def reach(self, point: str) -> None:
        """Note that this point was reached; die here if it is the armed one."""
        with self._locked("points") as path, path.open("a") as points:
            points.write(f"{point}\n")
        armed = self.folder / "armed"
        if not armed.exists():
            return
        wanted, target = armed.read_text().splitlines()
        if wanted != point:
            return
        try:
            os.close(os.open(self.folder / "fired", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if target == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + KILLED_S_MAX
        while not (self.folder / "killed").exists():
            assert time.monotonic() < until, "nobody has killed the server"
            time.sleep(0.01)

    @contextmanager
    def _locked(self, name: str) -> Iterator[Path]:
        path = self.folder / name
        with (self.folder / f"{name}.lock").open("w") as lock:
            flock(lock, LOCK_EX)
            yield path


def _append(path: Path, value: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())


def world() -> World:
    """Return the world of this process."""
    return World(Path(os.environ[FOLDER]))


# ---- Tools of every kind


def _body(name: str, what: str, value: str, *, once: bool = False) -> str:
    here = world()
    here.reach(f"{name}: body")
    made = here.happen(what, value, once=once)
    here.reach(f"{name}: effect")
    return made


@tool(kind="read")
def look(room: str) -> list[str]:
    """Tell what is known of a room."""
    world().reach("look: body")
    return [line for line in world().log if line.endswith(f" {room}")]


@tool(key="room")
def reserve(room: str) -> str:
    """Reserve a room. Its destination can be asked whether it happened."""
    return _body("reserve", "reserved", room)


@reserve.compensate(idempotent=True)
def unreserve(room: str) -> None:
    _ = _body("unreserve", "unreserved", room, once=True)


@reserve.probe(settle=SETTLE_S)
def find_reservation(room: str) -> Happened[str] | Absent:
    return Happened(f"reserved-{room}") if world().has("reserved", room) else Absent()


@tool(key="order")
def charge(order: str) -> str:
    """Charge an order. Nobody can ask whether it happened, and it may not be repeated."""
    return _body("charge", "charged", order)


@charge.compensate
def refund(order: str) -> None:
    _ = _body("refund", "refunded", order)


@tool(kind="pivot", after=["charge"], needs_approval=True)
def wire(order: str) -> str:
    """Send the money: the point of no return."""
    return _body("wire", "wired", order)


@wire.probe(settle=SETTLE_S)
def find_wire(order: str) -> Happened[str] | Absent:
    return Happened(f"wired-{order}") if world().has("wired", order) else Absent()


@tool(kind="retriable", idempotent=True, retry=FAST)
def mail(to: str) -> str:
    """Send a mail, which the destination has once for each key."""
    return _body("mail", "mailed", to, once=True)


@tool(key="order")
def break_down(order: str) -> str:
    """Fail for certain."""
    world().reach("break_down: body")
    raise NoEffect(f"{order} cannot be done")


@break_down.compensate
def mend(order: str) -> None:
    raise AssertionError(f"nothing of {order} was done")


@tool(key="order")
def stumble(order: str) -> str:
    """Fail for certain the first time, and work the second time."""
    here = world()
    here.reach("stumble: body")
    if current_call().generation == 1:
        raise NoEffect("not yet")
    made = here.happen("stumbled", order)
    here.reach("stumble: effect")
    return made


@stumble.compensate
def get_up(order: str) -> None:
    _ = _body("get_up", "got up", order)


TOOLS: Final = (look, reserve, charge, wire, mail, break_down, stumble)
UNKNOWABLE: Final = {"charge": "charged", "stumble": "stumbled", "break_down": "broken down"}
"""The tools whose doubts only a person settles, and the word for their effect."""
UNDOING: Final = {"charge": "refunded", "stumble": "got up"}
"""The same for their compensations."""
RESULTS: Final = {"charge": "charged-{}", "stumble": "stumbled-{}"}
"""What a person says of the result, if it happened."""


def runtime(lease: float = 5.0) -> AsyncRuntime:
    """Return a runtime over the ledger of this world."""
    return AsyncRuntime(world().ledger, tools=TOOLS, lease=lease)


def blocking_runtime(here: World) -> Runtime:
    """Return a runtime for whoever looks at the world from outside."""
    return Runtime(here.ledger, tools=TOOLS)
