"""A Restate server of one's own, of one node or several: the official program, from npm (`tests/servers/npm`)."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.found import Unavailable, User, refuse_if_switched_off
from tests.servers.packages import npm_folder
from tests.servers.process import START_S, Process, free_port

SOURCE = Path(__file__).with_name("npm")
FOLDER = "engine-servers"
HEALTH_S = 1
ADMIN_S = 20
READY_POLL_S = 0.1
ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}

# Small and quick: a node of a test keeps little, and tries a service that was killed again soon, for ever.
CONFIG = """
cluster-name = "amends"
node-name = "{name}"
base-dir = "{folder}/data"
listen-mode = "tcp"
bind-address = "127.0.0.1:{fabric}"
advertised-address = "http://127.0.0.1:{fabric}"
auto-provision = {provision}
default-num-partitions = 2
default-replication = {replication}
disable-telemetry = true
log-filter = "warn"
log-disable-ansi-codes = true
rocksdb-total-memory-size = "256.0 MiB"

[worker]
cleanup-interval = "1s"

# Tells a service which node asks.
[worker.invoker.additional-request-headers]
x-node = "{place}"

[metadata-client]
addresses = {addresses}

[default-retry-policy]
initial-interval = "100ms"
exponentiation-factor = 2.0
max-interval = "1s"
max-attempts = "unlimited"

[admin]
bind-address = "127.0.0.1:{admin}"
advertised-address = "http://127.0.0.1:{admin}"
disable-web-ui = true

[ingress]
bind-address = "127.0.0.1:{ingress}"
advertised-address = "http://127.0.0.1:{ingress}"
"""


@dataclass(slots=True)
class _Node:
    process: Process
    fabric: int
    ingress: int
    admin: int


class RestateServer:
    """`nodes` processes on loopback that form one server; their data outlives them.

    With more than one node, each piece of data is on `replication` of them, so that many nodes less one may be lost.
    Addresses stay the same over `stop()` or `kill()` and `start()`. `folder` is where the folders of the nodes are made
    (default: in memory, if there is enough): on a disk, for measuring.
    """

    def __init__(self, *, nodes: int = 1, replication: int | None = None, folder: Path | None = None) -> None:
        self._program = restate_program()
        self._count, self._folder = nodes, folder
        self._replication = replication or min(nodes, 2)
        assert 1 <= self._replication <= nodes, "a piece of data cannot be on more nodes than there are"
        self._nodes: list[_Node] = []

    def start(self, node: int | None = None) -> Self:
        """Every node (else only that one) answers."""
        try:
            if not self._nodes:
                self._nodes = [self._make() for _ in range(self._count)]
            started = self._chosen(node)
            for one in started:
                one.process.start(self._command(one), answers=lambda one=one: self._listens(one))  # type: ignore[misc]
            for one in started:
                self._await(one)
        except BaseException:
            self.close()
            raise
        return self

    def stop(self, node: int | None = None) -> None:
        """Every node (else only that one) has ended in order; its data stays."""
        for one in self._chosen(node):
            one.process.stop(signal.SIGTERM)

    def kill(self, node: int | None = None) -> None:
        """Every node (else only that one) has had SIGKILL and is gone; its data stays as it was."""
        for one in self._chosen(node):
            one.process.kill()

    def close(self) -> None:
        """Nothing is left of it."""
        for one in self._nodes:
            one.process.close()
        self._nodes = []

    def ingress(self, node: int = 0) -> str:
        """Return where a node takes requests."""
        return f"http://127.0.0.1:{self._nodes[node].ingress}"

    def admin(self, node: int = 0) -> str:
        """Return where a node is administered."""
        return f"http://127.0.0.1:{self._nodes[node].admin}"

    def register(self, uri: str, *, node: int = 0) -> list[str]:
        """Tell the server where services are served, again if it knew; return their names."""
        answer = self._ask(f"{self.admin(node)}/deployments", {"uri": uri, "force": True})
        names = sorted(str(one["name"]) for one in answer["services"])
        for one in self._nodes:
            if one.process.pid is not None:
                _until(lambda one=one: all(_is_known(one, name) for name in names), one)  # type: ignore[misc]
        return names

    def query(self, sql: str, *, node: int = 0) -> list[dict[str, Any]]:
        """Ask the server's own tables (`sys_invocation`, `sys_journal`, …)."""
        return list(self._ask(f"{self.admin(node)}/query", {"query": sql})["rows"])

    @property
    def address(self) -> str:
        """Where each node takes requests and is administered, as one word; `nodes_of` takes it apart."""
        return ";".join(f"{self.ingress(place)},{self.admin(place)}" for place in range(self._count))

    @property
    def folders(self) -> list[Path]:
        """Return the folders that the nodes run in."""
        return [one.process.folder for one in self._nodes]

    @property
    def log(self) -> str:
        return "\n".join(one.process.log for one in self._nodes)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> _Node:
        # Ourselves: the program is below build/, where another user may not get.
        process = Process(discard_signal="KILL", user=User(os.geteuid(), os.getegid()), folder=self._folder)
        return _Node(process, free_port(), free_port(), free_port())

    def _command(self, node: _Node) -> list[str]:
        place = self._nodes.index(node)
        addresses = [f"http://127.0.0.1:{one.fabric}" for one in self._nodes]
        text = CONFIG.format(
            name=f"n{place + 1}",
            place=place,
            folder=node.process.folder,
            fabric=node.fabric,
            ingress=node.ingress,
            admin=node.admin,
            provision="true" if place == 0 else "false",
            replication=self._replication,
            addresses=json.dumps(addresses),
        )
        path = node.process.folder / "restate.toml"
        path.write_text(text, encoding="utf-8")
        return ["env", "DO_NOT_TRACK=1", str(self._program), "--no-logo", "--config-file", str(path)]

    def _chosen(self, node: int | None) -> Iterable[_Node]:
        return self._nodes if node is None else [self._nodes[node]]

    def _listens(self, node: _Node) -> bool:
        # The first node answers when it provisioned the cluster, the others when they joined it: only after all were
        # started. So each start waits for the admin port, which is open early, and `_await` for the rest.
        return _answers(f"http://127.0.0.1:{node.admin}/health") or self._count > 1

    def _await(self, node: _Node) -> None:
        places = (f"http://127.0.0.1:{node.admin}/health", f"http://127.0.0.1:{node.ingress}/restate/health")
        _until(lambda: all(_answers(place) for place in places), node)

    def _ask(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"content-type": "application/json", "accept": "application/json"}
        request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=ADMIN_S) as answer:
            said: dict[str, Any] = json.load(answer)
        return said


def nodes_of(address: str) -> list[tuple[str, str]]:
    """Return the two addresses of each node: for requests, and for administration."""
    return [(ingress, admin) for ingress, _, admin in (one.partition(",") for one in address.split(";"))]


def restate_program() -> Path:
    """Return the server's program for this machine, installed from npm if it is not there."""
    refuse_if_switched_off("Restate")
    architecture = ARCHITECTURES.get(platform.machine().lower())
    if sys.platform not in ("linux", "darwin") or architecture is None:
        raise Unavailable(f"no Restate server: npm has none for {sys.platform} on {platform.machine()}")
    folder = npm_folder(SOURCE, name=FOLDER)
    package = f"restate-server-{sys.platform}-{architecture}"
    return folder / "node_modules" / "@restatedev" / package / "bin" / "restate-server"


def _until(holds: Callable[[], bool], node: _Node) -> None:
    deadline = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > deadline:
            raise Unavailable(f"a Restate node did not answer within {START_S} s: {node.process.log}")
        time.sleep(READY_POLL_S)


def _is_known(node: _Node, service: str) -> bool:
    """Return whether a node takes requests for a service: it learns of new ones a moment later than the one that was told."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{node.ingress}/{service}/no-key/no-handler", timeout=HEALTH_S).close()
    except urllib.error.HTTPError as error:
        return b"handler" in error.read()  # only that is unknown
    except (urllib.error.URLError, OSError):
        return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
