"""Killed at every point of the shared flows, every engine ends with the same ledger and the same world."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.engines.flows import FLOWS, POINTS, Final_, server_points
from tests.engines.scenario import EMBEDDED, ENGINES, Engine, played
from tests.engines.world import Target, World

Ended = Callable[[str, str], Final_]

IN_MAKE_TEST = {
    ("temporal", "rolls back", "charge: effect", "worker"),
    ("temporal", "pivots", "wire: answered", "server"),
    ("restate", "rolls back", "charge: effect", "worker"),
}
"""What `make test` plays: a doubt that only a person can settle, and an approval that waits over a server's death."""

KILLS: list[tuple[Target, str, str]] = [
    *(("worker", flow, point) for flow in FLOWS for point in POINTS[flow]),
    *(("server", flow, point) for flow in FLOWS for point in server_points(flow)),
    *(("node", flow, point) for flow in FLOWS for point in server_points(flow)),
]


def _marks(engine: Engine, target: str, flow: str, point: str) -> list[pytest.MarkDecorator]:
    is_short = (engine.name, flow, point, target) in IN_MAKE_TEST
    return [] if is_short else [pytest.mark.rest]


@pytest.fixture
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Return how a flow ends as an ordinary program, killed at a point or at none. Each is played once in a session."""
    kept = tmp_path_factory.getbasetemp().parent / "embedded-ends"
    kept.mkdir(exist_ok=True)

    def ended(flow: str, point: str) -> Final_:
        place = kept / f"{flow} {point}.json".replace(": ", "-")
        if not place.exists():
            made = played(EMBEDDED, flow, tmp_path_factory.mktemp("world"), point=point)
            part = place.with_name(f"{place.name}.{tmp_path_factory.getbasetemp().name}")
            part.write_text(json.dumps(asdict(made)))
            part.rename(place)
        return read(place)

    return ended


def read(place: Path) -> Final_:
    found: dict[str, Any] = json.loads(place.read_text())
    return Final_(found["state"], tuple(tuple(call) for call in found["calls"]), tuple(found["effects"]))


def tell(request: pytest.FixtureRequest, engine: str, target: str, flow: str, point: str, ended: Final_) -> None:
    """Note a cell of the table that the end of the session prints."""
    request.node.user_properties.append(("conformance", [engine, target, flow, point, ended.state]))


@pytest.mark.rest
@pytest.mark.parametrize("flow, point", [(flow, point) for flow in FLOWS for point in POINTS[flow]])
def test_an_ordinary_program_that_is_killed_and_started_again_keeps_its_promises(
    flow: str, point: str, embedded: Ended, request: pytest.FixtureRequest
) -> None:
    tell(request, "embedded", "worker", flow, point, embedded(flow, point))


@pytest.mark.parametrize(
    "engine, target, flow, point",
    [
        pytest.param(
            engine,
            target,
            flow,
            point,
            marks=_marks(engine, target, flow, point),
            id=f"{engine.name}-{target}-{flow}-{point}",
        )
        for engine in ENGINES
        for target, flow, point in KILLS
        if target in engine.targets
    ],
)
def test_a_kill_ends_with_the_same_ledger_and_the_same_world(
    engine: Engine,
    target: Target,
    flow: str,
    point: str,
    embedded: Ended,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    server = request.getfixturevalue(engine.server)
    ended = played(engine, flow, tmp_path, server=server, point=point, target=target)
    # The death of a server takes nothing from the worker: it ends as if nothing had been killed.
    assert ended == embedded(flow, point if target == "worker" else "")
    tell(request, engine.name, target, flow, point, ended)


@pytest.mark.rest
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("engine", [EMBEDDED, *ENGINES], ids=lambda engine: engine.name)
def test_the_points_of_a_flow_are_those_that_are_killed_at(
    engine: Engine, flow: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(engine.server) if engine.server else None
    _ = played(engine, flow, tmp_path, server=server)
    assert tuple(dict.fromkeys(World(tmp_path).points)) == POINTS[flow]
