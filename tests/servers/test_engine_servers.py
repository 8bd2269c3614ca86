"""The servers of durable engines: what they were told outlives SIGKILL, of one node too, and nothing is left of them."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from tests.servers import RestateServer, TemporalServer, Unavailable
from tests.servers.asgi import AsgiServer
from tests.servers.fixtures import unavailable
from tests.servers.process import _processes_in
from tests.servers.temporal import temporal_program

REQUEST_S = 30


def add(server: RestateServer, by: int, *, node: int = 0) -> int:
    request = urllib.request.Request(
        f"{server.ingress(node)}/counter/c/add",
        data=json.dumps(by).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
        return int(json.load(answer))


def operator(server: TemporalServer, *words: str) -> str:
    command = [str(temporal_program()), "operator", "namespace", *words, "--address", server.address]
    return subprocess.run(command, capture_output=True, text=True, timeout=REQUEST_S, check=True).stdout


def test_a_temporal_server_keeps_its_data_over_a_kill(temporal_server: TemporalServer) -> None:
    operator(temporal_server, "create", "-n", "shop")
    temporal_server.kill()
    with pytest.raises(subprocess.CalledProcessError):
        operator(temporal_server, "describe", "-n", "shop")
    temporal_server.start()
    assert "shop" in operator(temporal_server, "describe", "-n", "shop")


def test_a_restate_server_keeps_its_data_over_a_kill(restate_server: RestateServer) -> None:
    with AsgiServer("tests.servers.counting:app") as service:
        assert restate_server.register(service.url) == ["counter"]
        assert add(restate_server, 2) == 2
        restate_server.kill()
        with pytest.raises(urllib.error.URLError):
            add(restate_server, 3)
        restate_server.start()
        service.kill()
        service.start()
        assert add(restate_server, 3) == 5


@pytest.mark.rest
def test_a_restate_server_of_three_nodes_answers_without_one(restate_cluster: RestateServer) -> None:
    with AsgiServer("tests.servers.counting:app") as service:
        restate_cluster.register(service.url)
        assert add(restate_cluster, 2) == 2
        restate_cluster.kill(0)
        assert add(restate_cluster, 3, node=1) == 5
        restate_cluster.start(0)
        restate_cluster.kill(1)
        assert add(restate_cluster, 4, node=2) == 9


@pytest.mark.parametrize("make", [TemporalServer, RestateServer])
def test_nothing_is_left_of_a_closed_engine(make: Callable[[], TemporalServer | RestateServer]) -> None:
    try:
        server = make().start()
    except Unavailable as refusal:
        unavailable(refusal)
    folders = server.folders
    assert all(_processes_in(folder) for folder in folders)
    server.close()
    assert not any(_processes_in(folder) or folder.exists() for folder in folders)
