"""exactly-once: ``@once`` with a key, on its SQLite store."""

import logging
from importlib.metadata import version
from pathlib import Path

from exactly_once import Store, once

from proof.players import guarded

logging.disable(logging.CRITICAL)
VERSION = f"exactly-once {version('exactly-once')}"


def prepare(catalogue):
    """Nothing to do."""


def play(scenario):
    store = Store.sqlite(str(Path(scenario.folder, "once.db")))

    def guard(key, tool, args, body):
        return once(store, key=lambda given: given)(lambda given: {"result": body()})(key)["result"]

    return guarded.play(scenario, guard)


def finish(scenario):
    return guarded.finish(scenario)
