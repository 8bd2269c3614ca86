"""effect-ledger: ``EffectExecutor.execute`` on SQLite; a call that is not completed is indeterminate and not repeated."""

import logging
from importlib.metadata import version
from pathlib import Path

from effect_ledger import EffectExecutor

from proof.players import guarded

logging.disable(logging.CRITICAL)
VERSION = f"effect-ledger {version('effect-ledger')}"


def prepare(catalogue):
    """Nothing to do."""


def play(scenario):
    executor = EffectExecutor(str(Path(scenario.folder, "effects.db")), scope="task")

    def guard(key, tool, args, body):
        done = executor.execute(key, f"{tool}:v1", args, lambda _operation: {"result": body()})
        if done.state != "completed":
            raise RuntimeError(f"{tool}: {done.state}")
        return (done.result or {}).get("result")

    return guarded.play(scenario, guard)


def finish(scenario):
    return guarded.finish(scenario)
