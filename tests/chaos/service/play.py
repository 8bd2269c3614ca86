"""``make chaos ARGS="--serve"``: kill the client, the server and the worker at every step of a saga over HTTP."""

from __future__ import annotations

import os
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.chaos.service import fate
from tests.chaos.service.stage import COUNTS, Actor, Bank, Ending, Lane, Outcome, Scenario, stage
from tests.servers import MariadbServer, PostgresServer, Unavailable

STORES: Final = ("sqlite", "postgresql", "mariadb")
Server: TypeAlias = PostgresServer | MariadbServer
SERVERS: Final[dict[str, Callable[[], Server]]] = {"postgresql": PostgresServer, "mariadb": MariadbServer}
ENDINGS: Final[tuple[Ending, ...]] = ("commit", "rollback")
LANES: Final = 4
SHORT: Final = 18
"""Sagas of the short play: some of each actor, side and ending."""
AGAIN_MAX: Final = 40
"""After so many steps of the server at most it is killed a second time; a recovery has more, its reads among them."""
NOT_STEPS: Final = ("read", "renewal", "claim", "let go")
"""Operations of the ledger that come when they like: other chaos kills there."""


def steps_of(lane: Lane, ending: Ending) -> list[Scenario]:
    """Play a saga that nobody disturbs, and return a kill at each point that it passed."""
    found: list[Scenario] = []
    outcome = lane.play(Scenario("client", "", 0, ending), trace=True)
    assert not outcome.findings, f"undisturbed, the saga is wrong: {outcome.findings}\n{lane.said('client')}"
    actors: tuple[Actor, ...] = ("client", "server", "worker")
    for actor in actors:
        passed = fate.traced(lane.fates, actor)
        fate.forget(lane.fates, actor)
        for point, number in dict.fromkeys(passed):
            name = point.partition(" ")[2]
            is_poll = name in ("take", "request take") and point.startswith("before") and number > 1
            if name in NOT_STEPS or is_poll:
                continue
            found.append(Scenario(actor, point, number, ending))
            if actor == "client":
                found.append(Scenario(actor, point, number, ending, "never"))
    return found


def with_second_kills(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Return them with a second kill in every other one: of the server, after more or fewer steps of its recovery."""
    return [
        replace(one, again=1 + (7 * place) % AGAIN_MAX) if place % 2 else one for place, one in enumerate(scenarios)
    ]


def chosen(scenarios: Sequence[Scenario], count: int) -> list[Scenario]:
    """Return so many of them, spread evenly over actors and steps."""
    if count >= len(scenarios):
        return list(scenarios)
    return [scenarios[number * len(scenarios) // count] for number in range(count)]


def play_all(lanes: Sequence[Lane], scenarios: Iterable[Scenario], *, told: Any = None) -> list[Outcome]:
    """Play every saga, on as many lanes as there are."""
    waiting: queue.SimpleQueue[Scenario] = queue.SimpleQueue()
    for one in scenarios:
        waiting.put(one)
    done: list[Outcome] = []
    failed: list[BaseException] = []

    def play(lane: Lane) -> None:
        try:
            while not failed:
                try:
                    scenario = waiting.get_nowait()
                except queue.Empty:
                    return
                outcome = lane.play(scenario)
                if outcome.findings or not outcome.killed:
                    outcome.story = "\n".join(f"[{name}] {lane.said(name)}" for name in ("client", "server", "worker"))
                done.append(outcome)
                if told is not None:
                    told(outcome)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=play, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return done


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the table of actor, step and outcome, in Markdown."""
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    for one in outcomes:
        said = one.state + (f" ({', '.join(dict.fromkeys(one.named))}, settled by a person)" if one.named else "")
        said += " (the bank refused the client's request as too late)" if one.refused else ""
        gone = " and stays dead" if one.scenario.returns == "never" else ""
        twice = ", then the server" if one.killed_again else ""
        place = (one.scenario.actor + gone + twice, one.scenario.step, one.scenario.ending)
        side = one.scenario.point.partition(" ")[0]
        rows.setdefault(place, Counter())[f"{side}: {said}"] += 1
    lines = ["| killed | at | saga to | outcome |", "| --- | --- | --- | --- |"]
    return lines + [f"| {a} | {s} | {e} | {'; '.join(sorted(found))} |" for (a, s, e), found in rows.items()]


def play_on(store: str, *, short: bool, verbose: bool = True, lanes: int = LANES) -> int:
    """Play on one kind of ledger; return 0 if all counts are 0 and every kill happened."""
    begun = time.monotonic()
    server: Server | None = None
    try:
        server = SERVERS[store]().start() if store in SERVERS else None
    except Unavailable as why:
        print(f"{store}: skipped, {why}", flush=True)
        return 1 if os.environ.get("CI") else 0
    folder = Path(tempfile.mkdtemp(prefix="amends-chaos-serve-"))
    with stage(folder) as bank:
        opened = [_lane(number, bank, folder, server) for number in range(lanes)]
        try:
            scenarios = [one for ending in ENDINGS for one in steps_of(opened[0], ending)]
            wanted = with_second_kills(chosen(scenarios, SHORT) if short else scenarios)
            print(f"{store}: {len(scenarios)} kills are possible, {len(wanted)} are made", file=sys.stderr, flush=True)
            outcomes = play_all(opened, wanted, told=_told if verbose else None)
        finally:
            for lane in opened:
                lane.close()
            if server is not None:
                server.close()
    order = {one: place for place, one in enumerate(wanted)}
    outcomes.sort(key=lambda one: order[one.scenario])
    print("\n".join(table(outcomes)))
    return _summed(store, outcomes, time.monotonic() - begun)


def _lane(number: int, bank: Bank, folder: Path, server: Server | None) -> Lane:
    name = f"lane{number}"
    url = f"sqlite:///{folder / name}.db" if server is None else server.create_database()
    return Lane(name, url, bank, folder)


def _told(one: Outcome) -> None:
    named = f", {', '.join(one.named)}" if one.named else ""
    print(f"{one.seconds:5.1f} s  {one.scenario}: {one.state}{named}", file=sys.stderr, flush=True)


def _summed(store: str, outcomes: Sequence[Outcome], seconds: float) -> int:
    counts: Counter[str] = Counter()
    for one in outcomes:
        for count, what in one.findings:
            counts[count] += 1
            print(f"{store}: {count}: {one.scenario}: {what}\n{one.story}")
    alive = [one for one in outcomes if not one.killed]
    for one in alive:
        print(f"{store}: nobody died: {one.scenario}\n{one.story}")
    words = ", ".join(f"{counts[count]} {count}" for count in COUNTS)
    named = sum(bool(one.named) for one in outcomes)
    twice = sum(one.killed_again for one in outcomes)
    print(f"{store}: leftovers named and settled by a person: {named}; {seconds:.0f} s")
    print(f"{store}: killed a second time while it recovered: {twice}")
    print(f"{store}: {len(outcomes)} sagas, {len(outcomes) - len(alive)} kills, {words}", flush=True)
    return int(bool(counts or alive or not twice))
