"""Where the worlds and the players are installed: each package into an environment of its own, kept for the next time."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

AGENTDOJO: Final = "agentdojo==0.1.35"
INSTALL_S_MAX: Final = 600


@dataclass(frozen=True)
class Environment:
    """A player: its name in the table, its module in ``proof.players``, and what it needs beside the standard library."""

    name: str
    module: str
    requires: tuple[str, ...] = ()
    note: str = ""
    postgres: bool = False
    """It keeps its record in PostgreSQL; ``AMENDS_PROOF_POSTGRES`` is the address of a server for it."""


PLAYERS: Final = (
    Environment("amends", "amends_player"),
    Environment("bare", "bare", note="a framework's three tries for each call, and a restart after a crash"),
    Environment("safeagent-exec-guard", "safeagent", ("safeagent-exec-guard==0.1.25",)),
    Environment("agentrelay", "agentrelay", ("agentrelay==0.1.2",)),
    Environment("exactly-once", "exactly_once", ("exactly-once==0.2.1",)),
    Environment("effect-ledger", "effect_ledger", ("effect-ledger==0.1.2",)),
    Environment("agent-saga", "agent_saga", ("agent-saga==2.3.11",)),
    Environment(
        "agent-ledger", "agent_ledger", ("agent-ledger[postgres]==0.2.1", "psycopg[binary,pool]>=3.2"), postgres=True
    ),
    Environment("DBOS", "dbos_player", ("dbos==3.3.0",)),
    Environment("LangGraph", "langgraph_player", ("langgraph==1.*", "langgraph-checkpoint-sqlite")),
)


def interpreter_of_worlds(build: Path) -> str:
    """Return the interpreter that has AgentDojo; install it if need be."""
    found = installed(Environment("AgentDojo", "worlds", (AGENTDOJO,)), build)
    if not found:
        raise SystemExit(f"proof: {AGENTDOJO} could not be installed")
    return found


def installed(wanted: Environment, build: Path) -> str:
    """Return the interpreter of an environment with these packages, or nothing if they cannot be installed."""
    folder = build / "venvs" / wanted.module
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{wanted.module}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may ask at once
        return _installed(wanted, folder)


def _installed(wanted: Environment, folder: Path) -> str:
    python, stamp = folder / "bin" / "python", folder / "installed"
    said = "\n".join((sys.version, *wanted.requires))
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == said:
        return str(python)
    print(f"proof: installing {wanted.name}", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted.requires],
        capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False,
    )  # fmt: skip
    if done.returncode:
        print(f"proof: {wanted.name}: {done.stderr.strip()[-300:]}", file=sys.stderr, flush=True)
        return ""
    stamp.write_text(said, encoding="utf-8")
    return str(python)
