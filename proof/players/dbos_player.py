"""DBOS on SQLite: a call is a step of one durable function, which is recovered when its process starts again."""

import logging
from importlib.metadata import version
from pathlib import Path

from dbos import DBOS, SetWorkflowID

from proof.destination import Destination, die, reword
from proof.players import guarded

logging.disable(logging.CRITICAL)
VERSION = f"dbos {version('dbos')}"


def prepare(catalogue):
    """Nothing to do: the engine has threads, so it is started in each process."""


def play(scenario):
    there = Destination(scenario)
    resumed = scenario.has_struck
    url = f"sqlite:///{Path(scenario.folder, 'dbos.db')}"
    DBOS(config={"name": "proof", "system_database_url": url, "log_level": "CRITICAL", "application_version": "1"})

    @DBOS.step(retries_allowed=True, max_attempts=3, interval_seconds=0.01)
    def call(number: int, again: bool) -> None:
        name, args = scenario.calls[number]
        if number == scenario.at and resumed and scenario.fault == "reworded":
            args = reword(name, args) or args
        there.perform(name, dict(args))

    @DBOS.workflow()
    def task() -> None:
        for number in range(len(scenario.calls)):
            call(number, False)
            if number != scenario.at:
                continue
            if scenario.fault == "new id":
                call(number, True)
            if scenario.fault in ("kill after", "reworded") and scenario.strike():
                die()
            if scenario.fault == "failure" and scenario.strike():
                raise guarded.TaskFailed

    DBOS.launch()
    try:
        with SetWorkflowID("task"):
            task()
    except guarded.TaskFailed:
        return 0  # it compensates nothing
    Path(scenario.folder, "done").touch()
    return 0


def finish(scenario):
    return guarded.finish(scenario)
