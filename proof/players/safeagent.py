"""SafeAgent: ``registry.execute`` with a request id; an outcome that is not known is told and not repeated."""

import logging
from importlib.metadata import version
from pathlib import Path

from safeagent_exec_guard import SettlementRequestRegistry

from proof.players import guarded

logging.disable(logging.CRITICAL)
VERSION = f"safeagent-exec-guard {version('safeagent-exec-guard')}"


def prepare(catalogue):
    """Nothing to do."""


def play(scenario):
    registry = SettlementRequestRegistry(sqlite_path=str(Path(scenario.folder, "safeagent.db")))

    def guard(key, tool, args, body):
        told = registry.execute(
            request_id=key, action=tool, payload=args, execute_fn=lambda _payload: {"result": body()}
        )
        if not told.get("ok"):
            raise RuntimeError(str(told))
        return (told.get("result") or {}).get("result") if isinstance(told.get("result"), dict) else None

    return guarded.play(scenario, guard)


def finish(scenario):
    return guarded.finish(scenario)
