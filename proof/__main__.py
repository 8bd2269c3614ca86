"""``make proof``: play AgentDojo's tasks under faults, with amends, bare, and over other packages; print the table.

make proof                              everything; continues where it was stopped
make proof ARGS="--quick"               a small share of the scenarios of amends, no peers: a minute
make proof ARGS="--only 'slack.*kill'"  scenarios whose "suite task fault tool" matches
make proof ARGS="--fresh"               forget what was played before
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any, Final

from proof.contest import Player, Verdict, injections, played, played_injection, scenarios, told, worlds
from proof.destination import Scenario, World
from proof.environments import PLAYERS, Environment, installed, interpreter_of_worlds
from proof.report import closing_line, failures, print_table, write_page
from tests.servers import PostgresServer, Unavailable

ROOT: Final = Path(__file__).resolve().parents[1]
BUILD: Final = ROOT / "build" / "proof"
QUICK_EVERY: Final = 60
"""``--quick`` plays every so many scenarios of amends."""
SAMPLE_EVERY: Final = 29
"""Others than amends play every so many scenarios: the same for all, and the table says so."""


def main() -> int:
    """Play what was asked for; exit 1 if amends was wrong anywhere."""
    said = _arguments()
    BUILD.mkdir(parents=True, exist_ok=True)
    results = BUILD / ("quick.jsonl" if said.quick else "results.jsonl")  # the other can still be continued
    if said.fresh or said.quick:
        results.unlink(missing_ok=True)
    end = time.monotonic() + said.minutes * 60
    with ExitStack() as stack:
        path = stack.enter_context(worlds(interpreter_of_worlds(BUILD)))
        world = World(path, "")
        catalogue: dict[str, Any] = world.ask("catalogue")
        world.close()
        written = BUILD / "catalogue.json"
        written.write_text(json.dumps(catalogue), encoding="utf-8")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amends-proof-", dir=_memory())))
        chosen = (
            PLAYERS[:1] if said.quick else tuple(one for one in PLAYERS if not said.players or one.name in said.players)
        )
        versions: dict[str, str] = {}
        for player in chosen:
            if player.postgres and "AMENDS_PROOF_POSTGRES" not in os.environ:
                try:
                    os.environ["AMENDS_PROOF_POSTGRES"] = stack.enter_context(PostgresServer()).create_database()
                except Unavailable as error:
                    versions[player.name] = f"could not be played: {error}"
                    continue
                stack.callback(os.environ.pop, "AMENDS_PROOF_POSTGRES")
            python = sys.executable if player.requires == () else installed(player, BUILD)
            if not python:
                versions[player.name] = "could not be installed"
                continue
            todo = list(_todo(player, catalogue, said))
            known = _played(results, _state())
            todo = [one for one in todo if (player.name, *_key(one)) not in known]
            told(f"{player.name}: {len(todo)} scenarios to play")
            versions[player.name] = _play(player, python, todo, written, path, folder, results, end, said.jobs)
    verdicts = [Verdict(**one) for one in _lines(results)]
    print_table(verdicts, catalogue, versions)
    if not said.quick and not said.only:
        write_page(verdicts, catalogue, versions, ROOT)
    failed = failures(verdicts)
    for text in failed:
        print(f"failed: {text}")
    print(closing_line(verdicts))
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make proof", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small share of the scenarios of amends: a minute")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help='scenarios whose "suite task fault then tool" matches'
    )
    parser.add_argument(
        "--players", default="", type=lambda text: text.split(","), metavar="A,B", help="only these players"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what was played before")
    parser.add_argument("--minutes", type=float, default=55, help="stop after so long; the next time it continues (55)")
    parser.add_argument("--jobs", type=int, default=2, help="scenarios at once (2)")
    said = parser.parse_args()
    said.players = [name for name in said.players if name] if said.players else []
    return said


def _todo(player: Environment, catalogue: dict[str, Any], said: argparse.Namespace) -> Iterator[Scenario]:
    found = list(scenarios(catalogue))
    if player.name == "amends":
        found += injections(catalogue)
        Random(0).shuffle(found)  # whatever is played before the time is over has a share of everything
        found = list(islice(found, 0, None, QUICK_EVERY)) if said.quick else found
    else:
        # A package without a worker of its own is not asked to take a killed task back.
        found = [one for one in islice(found, 0, None, SAMPLE_EVERY) if one.then == "resume"]
    for one in found:
        tool = one.calls[one.at][0] if one.at >= 0 else ""
        if re.search(said.only, f"{one.suite} {one.task} {one.fault} {one.then} {tool}"):
            yield one


def _play(
    player: Environment, python: str, todo: list[Scenario], catalogue: Path, path: str, folder: Path, results: Path, end: float,
    jobs: int,
) -> str:  # fmt: skip
    """Play these scenarios, some at once; append each verdict. Return the version of the player."""
    free: Queue[Player] = Queue()
    version = ""
    with ExitStack() as stack:
        for _ in range(jobs):
            one = Player(player.name, player.module, python, catalogue)
            stack.callback(one.close)
            version = one.version
            free.put(one)
        state, began, count = _state(), time.monotonic(), 0

        def play(scenario: Scenario) -> Verdict | None:
            if time.monotonic() > end:
                return None
            mine = free.get()
            act: Callable[[Scenario, Player, str, Path], Verdict] = (
                played if scenario.injected is None else played_injection
            )
            try:
                return act(scenario, mine, path, folder)
            finally:
                free.put(mine)

        with ThreadPoolExecutor(jobs) as pool, results.open("a", encoding="utf-8") as out:
            for verdict in pool.map(play, todo):
                if verdict is None:
                    continue
                out.write(json.dumps({"state": state} | asdict(verdict)) + "\n")
                out.flush()
                count += 1
                if not verdict.is_right and player.name == "amends":
                    told(f"  {verdict}")
                if count % 200 == 0:
                    told(f"  {count} of {len(todo)}, {(time.monotonic() - began) / count * 1000:.0f} ms each")
        if count < len(todo):
            told(f"{player.name}: {len(todo) - count} scenarios not played, the time is over; say it again to continue")
        return version


def _key(scenario: Scenario) -> tuple[str, str, str, str, int]:
    return (scenario.suite, scenario.task, scenario.fault, scenario.then, scenario.at)


def _lines(results: Path) -> Iterator[dict[str, Any]]:
    if results.exists():
        for line in results.read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            del found["state"]
            yield found


def _played(results: Path, state: str) -> set[tuple[Any, ...]]:
    """Return what was played before; what was played with another state of the source is forgotten."""
    if not results.exists():
        return set()
    kept = [line for line in results.read_text(encoding="utf-8").splitlines() if json.loads(line)["state"] == state]
    results.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    found = [json.loads(line) for line in kept]
    return {tuple(one[name] for name in ("player", "suite", "task", "fault", "then", "at")) for one in found}


def _state() -> str:
    """Return what identifies the source that is tested: a change of it makes earlier results worthless."""
    done = subprocess.run(
        ["git", "log", "-1", "--format=%H", "--", "src", "proof"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "no repository"


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    sys.exit(main())
