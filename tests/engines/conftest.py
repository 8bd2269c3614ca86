"""Fixtures of the engines, and the conformance table at the end of a session that has played it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.servers import RestateServer


class RestateNode:
    """The node of a server that asks the service of one world: it alone is killed, and started again."""

    def __init__(self, server: RestateServer, folder: Path) -> None:
        self._server, self._folder, self._killed = server, folder, 0

    @property
    def address(self) -> str:
        return self._server.address

    def kill(self) -> None:
        self._killed = int((self._folder / "node").read_text())
        self._server.kill(self._killed)

    def start(self) -> None:
        self._server.start(self._killed)


@pytest.fixture
def restate_node(restate_cluster: RestateServer, tmp_path: Path) -> RestateNode:
    """One of three nodes, each piece of data on two of them."""
    return RestateNode(restate_cluster, tmp_path)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print one row for each kill: how it ended on each engine. Every engine's end was compared with the embedded one."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for report in (one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, [])):
        if not isinstance(report, pytest.TestReport) or report.when != "call":
            continue
        told: list[list[str]] = [value for name, value in report.user_properties if name == "conformance"]  # type: ignore[misc]
        for engine, target, flow, point, state in told:
            column = engine if engine == "embedded" else f"{engine}, {target} killed"
            cells.setdefault((flow, point), {})[column] = state if report.passed else "FAILED"
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    if len(cells) < 2 or not columns:
        return
    terminalreporter.section("conformance: the final ledger and the final world are those of the embedded program")
    width = max(len(f"{flow}, {point}") for flow, point in cells) + 2
    terminalreporter.write_line(" " * width + "".join(f"{column:26}" for column in columns))
    for (flow, point), row in sorted(cells.items()):
        shown = "".join(f"{row.get(column, '-'):26}" for column in columns)
        terminalreporter.write_line(f"{f'{flow}, {point}':{width}}{shown}")
    terminalreporter.write_line(f"{sum(len(row) for row in cells.values())} ends compared")
