"""Verbs that go on with what others left: they need the program's tools."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

from amends import Report
from amends.cli.access import app_named
from amends.cli.codes import DONE, NEEDS_A_PERSON
from amends.cli.load import load_runtime
from amends.cli.reading import put_report
from amends.cli.show import progress, put, put_json, say
from amends.visible import visible, visible_log
from amends.worker import work


class _Lines(logging.Handler):
    """What the worker says, as lines of JSON on stdout."""

    def emit(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        put_json({"at": at, "level": record.levelname.lower(), "message": record.getMessage()})


def run_worker(place: str | None, *, once: bool, every: float, as_json: bool) -> int:
    """See ``amends worker``."""
    named, folder = app_named(place)
    rt = load_runtime(named, folder=folder)
    if as_json:
        logging.basicConfig(level=logging.INFO, handlers=[_Lines()])
    else:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    reports = work(rt, once=once, every=every)
    if once:
        return _code(reports)
    say("worker stopped")
    return DONE


def run_recover(place: str | None, *, limit: int, as_json: bool) -> int:
    """See ``amends recover``."""
    named, folder = app_named(place)
    rt = load_runtime(named, folder=folder)
    log = visible_log("amends.worker")
    level = log.level
    log.setLevel(logging.ERROR)  # the reports tell it
    try:
        with progress("looking for what others left"):
            reports = work(rt, once=True, limit=limit)
    finally:
        log.setLevel(level)
    for number, report in enumerate(reports):
        if as_json:
            put_json(report.to_dict())
            continue
        if number:
            put()
        put_report(report)
    if not reports:
        say(f"nothing to recover in {visible(str(rt.settings['url'].value), prose=True)}")
    return _code(reports)


def _code(reports: list[Report]) -> int:
    return NEEDS_A_PERSON if any(report.state == "blocked" for report in reports) else DONE
