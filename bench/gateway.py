"""A call through the MCP gateway, against the same call on the bare server: in turn, over standard input and output.

``python -m bench.gateway`` prints more: a relay that only copies bytes (the least that a process in between costs), and a
relay that also writes and flushes 4 KiB before each message goes on (``recorder``: the least that a record which survives the
machine costs), a proxy of 20 lines with the same SDK, the gateway over a ledger that does not wait for the disk (``normal``), and
how long the disk takes for the two flushes of a call. The client is the same on all sides, and its work is part of every figure.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.bars import GATEWAY, Row
from bench.growth import said as in_words

ROUNDS_MIN: Final = 9
CALLS: Final = 30
"""Of one turn."""
SLOW_CALLS: Final = 6
FLUSHES: Final = 50
WARM_CALLS: Final = 10
LIMIT_S: Final = 90.0
WORK_S: Final = 0.05
UNDONE: Final = {"kind": "compensatable", "compensate": {"tool": "echo", "args": {"message": "undo"}}}
PIECE_BYTES: Final = 65_536
PAGE_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Asked:
    """One tool of one server, with arguments that no earlier call had."""

    server: str
    tool: str
    args: Callable[[int, Path], dict[str, Any]]
    declared: dict[str, Any]
    """The table of the server in the configuration."""
    about: str
    calls: int = CALLS


WORKS: Final = {
    "echo": Asked(
        "mcp-server-everything", "echo", lambda number, _: {"message": f"m{number}"}, {"tools": {"echo": UNDONE}},
        "a tool that does nothing, recorded in two commits",
    ),
    "read": Asked(
        "mcp-server-everything", "get-sum", lambda number, _: {"a": number, "b": 1}, {"tools": {"get-sum": {"kind": "read"}}},
        "a read",
    ),
    "works": Asked(
        "mcp-server-everything", "trigger-long-running-operation", lambda _, __: {"duration": WORK_S, "steps": 1},
        {"tools": {"trigger-long-running-operation": {**UNDONE, "always_new": True}, "echo": UNDONE}},
        f"a tool that works for {WORK_S * 1e3:g} ms, as a request to a service does", SLOW_CALLS,
    ),
    "create_entities": Asked(
        "mcp-server-memory", "create_entities",
        lambda number, _: {"entities": [{"name": f"e{number}", "entityType": "thing", "observations": ["seen"]}]},
        {"catalogue": "memory"}, "the memory server, which writes its file anew",
    ),
    "write_file": Asked(
        "mcp-server-filesystem", "write_file",
        lambda number, folder: {"path": str(folder / f"f{number}.txt"), "content": f"text {number}\n"},
        {"catalogue": "filesystem"}, "the filesystem server; the gateway also reads the file before it, and takes a lock",
    ),
}  # fmt: skip


@dataclass(slots=True)
class Figures:
    """Milliseconds of a call in each turn, and of CPU of the process that the client talks to."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, side: str) -> list[float]:
        """Return the ratio to the bare server in each turn."""
        return [a / b for a, b in zip(self.wall[side], self.wall["bare"], strict=True)]


def through_gateway(work: str, repeats: int) -> Iterator[Row]:
    """Measure a tool; the ratio is the median of the turns' ratios."""
    bar = GATEWAY.bars[work]
    try:
        found = asyncio.run(measure(work, ("bare", "gateway"), max(ROUNDS_MIN, repeats)))
        wall, cpu = ({side: statistics.median(ms) for side, ms in one.items()} for one in (found.wall, found.cpu))
        ratios = sorted(found.ratios("gateway"))
        note = f"bare {wall['bare']:.2f} ms, through the gateway {wall['gateway']:.2f} ms"
        if cpu:
            note += f"; CPU of the server {cpu['bare']:.2f} ms, of the gateway {cpu['gateway']:.2f} ms"
        more = {
            "us": round(1e3 * wall["gateway"], 1), "floor_us": round(1e3 * wall["bare"], 1),
            "cpu_us": {side: round(1e3 * ms, 1) for side, ms in cpu.items()},
            "ratios": [round(one, 3) for one in ratios], "notes": {work: f"{WORKS[work].about}: {note}"},
        }  # fmt: skip
        yield Row(GATEWAY.title, work, statistics.median(ratios), bar, GATEWAY.sense, more=more)
    except Exception as error:
        yield Row(GATEWAY.title, work, None, bar, GATEWAY.sense, error=in_words(error))


async def measure(work: str, sides: tuple[str, ...], turns: int) -> Figures:
    """Ask all sides in turn; the first one of a turn is another one each time."""
    asked, figures, number = WORKS[work], Figures(), 0
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients = {}
        for side in sides:
            (folder / side).mkdir()
            clients[side] = await stack.enter_async_context(_client(side, asked, (folder / side).resolve()))
        begun = time.monotonic()
        for turn in range(turns + 1):
            if time.monotonic() - begun > LIMIT_S:
                break
            shift = turn % len(sides)
            for side in (*sides[shift:], *sides[:shift]):
                calls = WARM_CALLS if turn == 0 else asked.calls
                ms, cpu = await _turn(*clients[side], asked, range(number, number + calls))
                number += calls
                if turn:  # the first one is slower
                    figures.wall.setdefault(side, []).append(ms)
                    if cpu is not None:
                        figures.cpu.setdefault(side, []).append(cpu)
    return figures


async def _turn(
    client: Any, process: int | None, data: Path, asked: Asked, numbers: range
) -> tuple[float, float | None]:
    cpu, begun = _cpu_ms(process), time.perf_counter()
    for number in numbers:
        result = await client.call_tool(asked.tool, asked.args(number, data))
        if result.is_error:
            raise RuntimeError(f"{asked.tool} failed: {result.content}")
    took, after = time.perf_counter() - begun, _cpu_ms(process)
    return took / len(numbers) * 1e3, None if cpu is None or after is None else (after - cpu) / len(numbers)


@asynccontextmanager
async def _client(side: str, asked: Asked, folder: Path) -> AsyncIterator[tuple[Any, int | None, Path]]:
    """Connect to a side; return the client, the id of the process that it talks to, and the folder for data."""
    from mcp import Client, StdioServerParameters

    from tests.gateway.desk import SOURCE, Desk
    from tests.servers.packages import npm_folder

    desk = Desk(folder)
    packages = npm_folder(SOURCE, name="mcp-servers")
    command = ["node", str(packages / "node_modules" / ".bin" / asked.server)]
    if asked.server == "mcp-server-filesystem":
        command.append(str(desk.data))
    env = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}
    desk.add("server", command, env=env, **asked.declared)
    started = desk.parameters()
    started.env = {**(started.env or {}), **env}
    started.env.pop("AMENDS_LEASE", None)
    if side == "normal":
        text = desk.config.read_text(encoding="utf-8")
        desk.config.write_text(text.replace(desk.url, f"{desk.url}?synchronous=normal"), encoding="utf-8")
    elif side != "gateway":
        own = [] if side == "bare" else [sys.executable, "-m", "bench.gateway", f"--{side}"]
        first, *rest = [*own, *command]
        started = StdioServerParameters(command=first, args=rest, env=started.env)
    before = _children()
    async with Client(started) as client:
        made = _children() - before
        yield client, made.pop() if len(made) == 1 else None, desk.data


def _children() -> set[int]:
    try:
        text = "".join(one.read_text() for one in Path("/proc/self/task").glob("*/children"))
    except OSError:
        return set()
    return {int(one) for one in text.split()}


def _cpu_ms(process: int | None) -> float | None:
    """Return how long a process has used a processor; None where the system does not tell."""
    if process is None:
        return None
    try:
        return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{process}/task").glob("*/schedstat")) / 1e6
    except OSError:
        return None


# ---- The sides that are there for comparison


def relay(command: list[str], *, is_recorder: bool = False) -> None:
    """Copy bytes between the client and the server, and look at none of them; ``is_recorder``: flush a page before each."""
    import subprocess

    record = tempfile.TemporaryFile() if is_recorder else None  # noqa: SIM115 (until the process ends)

    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None, "it has a pipe"
    assert server.stdout is not None, "it has a pipe"
    back = threading.Thread(target=_copy, args=(server.stdout.fileno(), 1, record), daemon=True)
    back.start()
    _copy(0, server.stdin.fileno(), record)
    server.stdin.close()
    server.wait(10)


def _copy(source: int, target: int, record: Any) -> None:
    while piece := os.read(source, PIECE_BYTES):
        if record is not None:
            os.write(record.fileno(), bytes(PAGE_BYTES))
            os.fdatasync(record.fileno())
        os.write(target, piece)


async def proxy(command: list[str]) -> None:
    """Serve another server's tools with the SDK, and do nothing else."""
    from mcp import Client, StdioServerParameters
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    started = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with Client(started) as client:

        async def listed(_ctx: Any, _params: Any) -> Any:
            return await client.list_tools()

        async def called(_ctx: Any, params: Any) -> Any:
            return await client.call_tool(params.name, params.arguments)

        server: Server[Any] = Server("proxy", on_list_tools=listed, on_call_tool=called)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


def _two_flushes_ms() -> float:
    """Return how long the disk takes for what a call of the gateway waits for: two short writes, each of them kept."""
    took = []
    with tempfile.TemporaryFile() as file:
        for _ in range(FLUSHES):
            begun = time.perf_counter()
            for _ in range(2):
                os.write(file.fileno(), bytes(PAGE_BYTES))
                os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1e3


def _print_all() -> None:
    sides = ("bare", "relay", "recorder", "proxy", "normal", "gateway")
    sys.stdout.write(f"two flushes of the disk: {_two_flushes_ms():.2f} ms\n")
    for work, asked in WORKS.items():
        found = asyncio.run(measure(work, sides, ROUNDS_MIN))
        parts = []
        for side in sides:
            cpu = f", CPU {statistics.median(found.cpu[side]):.2f}" if found.cpu else ""
            parts.append(
                f"{side} {statistics.median(found.wall[side]):.2f} ms{cpu} ({statistics.median(found.ratios(side)):.2f})"
            )
        sys.stdout.write(f"{asked.tool} ({asked.about}):\n  " + "; ".join(parts) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    match sys.argv[1:2]:
        case ["--relay"]:
            relay(sys.argv[2:])
        case ["--recorder"]:
            relay(sys.argv[2:], is_recorder=True)
        case ["--proxy"]:
            asyncio.run(proxy(sys.argv[2:]))
        case _:
            _print_all()
