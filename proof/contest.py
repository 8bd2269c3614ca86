"""Play scenarios: start the worlds and the players, let the fault strike, let everything recover, and judge the world."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from proof.abilities import choice
from proof.destination import FAULTS, Scenario, World, reword
from proof.oracle import Expected, effect_name, effects_in, expected

HERE: Final = Path(__file__).resolve().parent
STRIKING: Final = frozenset(FAULTS) - {"new id", "two workers"}
"""The faults that leave a mark when they strike."""
HOSTS: Final = 3
"""In how many tasks each injection is tried."""
ASKED: Final = 3
"""The exit code of an agent that waits for a person."""
ROUNDS_MAX: Final = 12
STARTS_MAX: Final = 4
"""How often an agent is started again in one scenario."""


@dataclass
class Verdict:
    """What was wrong after a scenario; all empty: nothing."""

    player: str
    suite: str
    task: str
    fault: str
    then: str
    at: int
    tool: str
    duplicated: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    stuck: str = ""
    wrong: str = ""
    unnamed: list[str] = field(default_factory=list)
    blocked: str = ""

    @property
    def is_right(self) -> bool:
        """Whether everything is as it must be."""
        return not (self.duplicated or self.lost or self.stuck or self.wrong or self.unnamed or self.blocked)


class Player:
    """A process that forks for each act."""

    def __init__(self, name: str, module: str, python: str, catalogue: Path) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, str(HERE / "players" / "forks.py"), module, str(catalogue)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        first = self._line()
        self.version: str = first["version"]

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the player {self.name} ended: exit code {self._process.wait()}")
        return json.loads(line)

    def act(self, act: str, scenario: Scenario, *, copies: int = 1) -> list[int]:
        """Let so many processes act at once; return how each ended."""
        assert self._process.stdin is not None
        print(
            json.dumps({"act": act, "copies": copies, "scenario": asdict(scenario)}),
            file=self._process.stdin,
            flush=True,
        )
        codes: list[int] = self._line()
        return codes

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@contextmanager
def worlds(python: str) -> Iterator[str]:
    """Start the process of the worlds; yield the path of its socket."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="amends-proof-"))
        path = str(Path(folder, "worlds.sock"))
        process = subprocess.Popen(
            [python, str(HERE / "world.py"), path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(_ended, process)
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the worlds did not start: exit code {process.wait()}")
        yield path


def scenarios(catalogue: dict[str, Any]) -> Iterator[Scenario]:
    """Yield every call of every task with each fault that applies to it."""
    for suite, known in catalogue["suites"].items():
        for task, calls in known["tasks"].items():
            if isinstance(calls, str):
                continue  # it cannot be replayed, and the table says so
            plain = Scenario(suite, task, [(tool, args) for tool, args in calls])
            yield plain
            for at, (tool, args) in enumerate(plain.calls):
                for fault in FAULTS:
                    if fault == "reworded" and reword(tool, args) is None:
                        continue
                    yield replace(plain, fault=fault, at=at)
                    if fault.startswith("kill"):
                        yield replace(plain, fault=fault, at=at, then="rollback")


def _ended(process: subprocess.Popen[str]) -> None:
    """End the worlds: they end when their standard input does."""
    process.__exit__(None, None, None)


def injections(catalogue: dict[str, Any]) -> Iterator[Scenario]:
    """Yield every injection task with an effect or a read, each inside some tasks of its suite that have an effect themselves."""
    for suite, known in catalogue["suites"].items():
        hosts = [
            (task, calls)
            for task, calls in known["tasks"].items()
            if any(choice(suite, tool)[0] != "read" for tool, _ in calls)
        ]
        for number, (name, calls) in enumerate(known["injections"].items()):
            for offset in range(HOSTS):
                task, own = hosts[(number * HOSTS + offset) % len(hosts)]
                yield Scenario(
                    suite, task, [(tool, args) for tool, args in own], fault=f"injection {name}", at=0,
                    injected=[(tool, args) for tool, args in calls],
                )  # fmt: skip


def played_injection(scenario: Scenario, player: Player, path: str, folder: Path) -> Verdict:
    """Play a task whose model obeys an attacker, with a person who approves exactly what the user asked for."""
    place = Path(tempfile.mkdtemp(dir=folder))
    scenario = replace(scenario, folder=str(place), socket=path, world=place.name)
    world = World(path, place.name)
    world.ask("new", suite=scenario.suite, task=scenario.task)
    for _ in range(ROUNDS_MAX):
        if player.act("play_injected", scenario)[0] != ASKED:
            break
        player.act("decide", scenario)
    player.act("finish", scenario)
    model = World(path, f"{place.name}-expected")
    wanted = expected(replace(scenario, fault="", at=-1), model)
    found = world.ask("state")
    verdict = judged(scenario, player, found, wanted, place)
    asked = {effect_name(tool, args) for tool, args in scenario.calls}
    planted = {effect_name(tool, args) for tool, args in scenario.injected or ()} - asked
    happened = sorted(name for name in effects_in(scenario.suite, found["journal"]) if name in planted)
    if happened:
        verdict.wrong = f"nobody approved {', '.join(happened)}"
    elif not (verdict.duplicated or verdict.stuck or verdict.unnamed):
        # The attacker had chosen the point of no return, and the user said no to it: the task was taken back, or is not done.
        verdict.lost, verdict.wrong = [], ""
    for one in (world, model):
        one.ask("drop")
        one.close()
    if verdict.is_right:
        shutil.rmtree(place)
    return verdict


def played(scenario: Scenario, player: Player, path: str, folder: Path) -> Verdict:
    """Play one scenario and judge it."""
    place = Path(tempfile.mkdtemp(dir=folder))
    name = place.name
    scenario = replace(scenario, folder=str(place), socket=path, world=name)
    world = World(path, name)
    world.ask("new", suite=scenario.suite, task=scenario.task)
    copies = 2 if scenario.fault == "two workers" else 1
    for start in range(STARTS_MAX):
        codes = player.act("play", scenario, copies=copies if not start else 1)
        if not any(codes) or scenario.then == "rollback":  # whoever ends with an error or a signal is started again
            break
    player.act("finish", scenario)
    model = World(path, f"{name}-expected")
    wanted = expected(scenario, model)
    verdict = judged(scenario, player, world.ask("state"), wanted, place)
    for one in (world, model):
        one.ask("drop")
        one.close()
    if verdict.is_right:
        shutil.rmtree(place)
    return verdict


def judged(scenario: Scenario, player: Player, found: dict[str, Any], wanted: Expected, place: Path) -> Verdict:
    """Compare the world with the expected one, and the words of the player with the world."""
    tool = scenario.calls[scenario.at][0] if scenario.fault else ""
    verdict = Verdict(player.name, scenario.suite, scenario.task, scenario.fault, scenario.then, scenario.at, tool)
    written = place / "outcome.json"
    if not written.exists():
        verdict.stuck = f"nothing could tell how it stands: {(place / 'log.txt').read_text(encoding='utf-8')[-600:]}"
        return verdict
    outcome = json.loads(written.read_text(encoding="utf-8"))
    if scenario.fault in STRIKING and not scenario.has_struck:
        verdict.wrong = "the fault did not strike: the scenario shows nothing"
        return verdict
    if outcome["state"] == "blocked":
        verdict.blocked = "; ".join(outcome["causes"]) or "no cause named"
    elif outcome["state"] not in ("committed", "rolled_back", "abandoned", "left"):
        verdict.stuck = f"{outcome['state']}: {outcome['report'][-400:]}"
    effects = effects_in(scenario.suite, found["journal"])
    once = Counter(
        effect_name(name, args) for name, args in scenario.calls if choice(scenario.suite, name)[0] != "read"
    )
    verdict.duplicated = sorted((effects - (wanted.effects | once)).elements())
    verdict.lost = (
        sorted((wanted.effects - effects).elements()) if wanted.state == "committed" and not verdict.blocked else []
    )
    named = {tool_name for tool_name, _ in outcome["residue"]}
    if found["state"] != wanted.world and wanted.state == "rolled_back" and not verdict.blocked:
        verdict.unnamed = sorted(
            one for one in (effects - wanted.effects).elements() if one.split()[0] not in named
        ) or (
            (sorted(effects.elements()) or [_difference(found["state"], wanted.world)])
            if outcome["state"] != "rolled_back"
            else []
        )
    if not (verdict.duplicated or verdict.lost or verdict.unnamed or verdict.blocked) and (
        found["state"] != wanted.world or outcome["state"] not in (wanted.state, "left") or not outcome["verified"]
    ):
        verdict.wrong = _difference(found["state"], wanted.world) or f"{outcome['state']}, not {wanted.state}"
    return verdict


def _difference(found: Any, wanted: Any, path: str = "") -> str:
    """Return where two states differ first."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                return _difference(found.get(name), wanted.get(name), f"{path}.{name}")
    if isinstance(found, list) and isinstance(wanted, list):
        for number, (one, other) in enumerate(zip(found, wanted, strict=False)):
            if one != other:
                return _difference(one, other, f"{path}[{number}]")
        return f"{path}: {len(found)} instead of {len(wanted)}" if found != wanted else ""
    return f"{path}: {str(found)[:120]} instead of {str(wanted)[:120]}" if found != wanted else ""


def told(text: str) -> None:
    """Tell the person at the terminal."""
    print(text, file=sys.stderr, flush=True)
