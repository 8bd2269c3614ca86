"""The peers, each in its own environment, which is created by this command and kept for the next run."""

from __future__ import annotations

import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from bench.measure import told
from bench.places import BUILD

INSTALL_S_MAX: Final = 300
AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """A package, the versions that its harness was written for, and the stores with the same durability."""

    name: str
    module: str
    requires: tuple[str, ...]
    stores: tuple[str, ...]


# SQLite: a peer that flushes every commit (FULL, whatever the journal) is compared with FULL only.
PEERS: Final = (
    Peer("agent-ledger", "agent_ledger", ("agent-ledger==0.2.1", "psycopg[binary,pool]"), ("postgres",)),
    Peer(
        "safeagent-exec-guard", "safeagent", ("safeagent-exec-guard==0.1.25", "psycopg[binary]", "psycopg2-binary"),
        ("sqlite-full", "postgres"),
    ),
    Peer(
        "agentrelay", "agentrelay", ("agentrelay==0.1.2", "pymysql", "psycopg[binary]"),
        ("sqlite-full", "postgres", "mariadb"),
    ),
    Peer("exactly-once", "exactly_once", ("exactly-once==0.2.1", "psycopg[binary]"), ("sqlite-normal", "postgres")),
    Peer("effect-ledger", "effect_ledger", ("effect-ledger==0.1.2", "psycopg[binary]"), ("sqlite-full", "postgres")),
    Peer("agent-saga", "agent_saga", ("agent-saga==2.3.11", "asyncpg"), ("sqlite-full", "postgres")),
    Peer("idemkit", "idemkit", ("idemkit==1.0.2", "asyncpg"), ("postgres",)),
    Peer("DBOS", "dbos", ("dbos==3.3.0",), ("sqlite-full", "postgres")),
    Peer(
        "LangGraph", "langgraph",
        ("langgraph==1.*", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "psycopg[binary,pool]"),
        ("sqlite-full", "postgres"),
    ),
)  # fmt: skip


def installed(peers: tuple[Peer, ...] = PEERS) -> dict[str, str]:
    """Return for each peer its interpreter, or the reason why it could not be installed."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip((peer.name for peer in peers), pool.map(_install, peers), strict=True))


def _install(peer: Peer) -> str:
    folder = BUILD / "venvs" / peer.module
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join((sys.version, *peer.requires))
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return str(python)
    told(f"installing {peer.name}")
    try:
        venv.create(folder, clear=True, with_pip=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.requires],
            capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return f"could not be installed: {error}"[:300]
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
        return f"could not be installed: {'; '.join(lines)}"[:300]
    stamp.write_text(wanted, encoding="utf-8")
    return str(python)


def is_interpreter(found: str) -> bool:
    """Return whether this is an interpreter, and not the reason why there is none."""
    return not found.startswith("could not be installed")
