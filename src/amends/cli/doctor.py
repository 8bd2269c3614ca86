"""``amends doctor``: checks whether a program started here would work, and what waits for a person."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from amends import AsyncRuntime, Runtime, __version__
from amends.cli.access import app_setting, load_runtime, open_app
from amends.cli.exit_codes import DONE, NEEDS_A_PERSON
from amends.cli.options import App, Json, Url, group
from amends.cli.output import RED, iso_time, put, put_json, put_table, say
from amends.errors import Error, LedgerBehind, LedgerMissing, LedgerTooNew, LedgerUnavailable, docs_page
from amends.visible import visible

FREE_BYTES_MIN: Final = 100 << 20
WRITES: Final = 5
WRITE_S_MAX: Final = 0.05
"""A slower durable write takes most of the time of a call."""
AHEAD_S_MAX: Final = 5.0
COUNT_MAX: Final = 100
RETURNED: Final = "the probe returned"
"""How the recorded evidence begins if a probe returned none of the three answers."""

verbs = group()


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its result, a description, and what to do about it."""

    check: str
    state: Literal["ok", "warning", "failed"]
    words: str
    hint: str = ""


@verbs.command()
def doctor(app: App = None, url: Url = None, as_json: Json = False) -> int:
    """Check Python, settings, ledger, disk, clock and your tools; exit code 3 if a check failed."""
    findings = list(_findings(app, url))
    if as_json:
        for finding in findings:
            put_json(asdict(finding), id=finding.check)
    else:
        put_table(("check", "state", "found"), [(one.check, one.state, one.words) for one in findings], state=1)
        for finding in findings:
            if finding.hint:
                say(f"{finding.check}: {finding.hint}")
    failed = [one.check for one in findings if one.state == "failed"]
    if failed and not as_json:
        put(f"failed: {', '.join(failed)}", style=RED, stream=sys.stderr)
    return NEEDS_A_PERSON if failed else DONE


def _findings(app: str | None, url: str | None) -> Iterator[Finding]:
    yield Finding("amends", "ok", f"{__version__}, Python {platform.python_version()}, {platform.system()}")
    try:
        rt = Runtime(url, create=False)
        first = _first(Runtime(url))
    except Error as error:
        yield Finding("settings", "failed", str(error), error.hint)
        return
    yield from _file_rules(rt)
    yield from _oncall(rt)
    changed = [name for name, one in rt.settings.items() if one.origin not in ("default", "argument")]
    yield Finding("settings", "ok", f"set: {', '.join(changed) or 'none'}; amends config show --origin says where")
    with closing(rt), _program(app, url) as (program, named):
        used = program or rt
        place, origin = str(used.settings["url"].value), named or rt.settings["url"].origin
        if place.startswith("sqlite:///"):
            yield from _file(_file_of(place))
        try:
            yield from _ledger(used, f"{place} ({origin})", first=_first(program) if program else first)
        except Error as error:
            yield Finding("ledger", "failed", str(error), error.hint)
    yield from _tools(app, url)


@contextmanager
def _program(app: str | None, url: str | None) -> Iterator[tuple[Runtime | None, str]]:
    """Open the runtime of the program and return its name, if one is named and no URL is: its ledger is meant.

    A program that cannot be loaded is reported with its tools.
    """
    place, folder = (app, None) if app else app_setting()
    with ExitStack() as stack:
        found = None
        if place is not None and url is None:
            with suppress(Error):
                found = stack.enter_context(open_app(place, folder=folder, needs_ledger=False))
        yield found, place or "" if found else ""


def _file(path: Path) -> Iterator[Finding]:
    import sqlite3

    yield Finding("sqlite", "ok", sqlite3.sqlite_version)
    folder = path.parent
    if not folder.is_dir():
        yield Finding("disk", "failed", f"there is no folder {folder}", "create it, or choose another ledger: --url")
        return
    try:
        took = _write_s(folder)
    except OSError as error:
        yield Finding(
            "disk", "failed", f"{folder} cannot be written to: {error.strerror}", "amends must be able to write there"
        )
        return
    free = shutil.disk_usage(folder).free
    words = f"{took * 1000:.1f} ms for a durable write, {free >> 20:,} MB free"
    if free < FREE_BYTES_MIN:
        yield Finding(
            "disk", "warning", words, "a full disk stops every run: no call starts unless it is recorded first"
        )
    elif took > WRITE_S_MAX:
        yield Finding(
            "disk", "warning", words, f"each call waits for two of these: {docs_page('explanation/speed.md')}"
        )
    else:
        yield Finding("disk", "ok", words)


def _write_s(folder: Path) -> float:
    """Return the seconds of the fastest of a few durable writes in this folder; remove the file afterwards."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".amends-doctor-") as file:
        took = []
        for _ in range(WRITES):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return min(took)


def _first(rt: Runtime) -> str:
    """Return what creates a ledger that is not there."""
    create = rt.settings["create"]
    if create.value:
        return "the first program that uses it creates it; so does: amends db migrate"
    return f"amends db migrate creates it; no program does (create is false: {create.origin})"


def _ledger(rt: Runtime, place: str, *, first: str) -> Iterator[Finding]:
    try:
        schema = rt.schema()
    except LedgerMissing as error:
        yield Finding("ledger", "warning", str(error), first)
        yield from _anchor_alone(rt)
        return
    if schema.version == 0:
        yield from _anchor_alone(rt)
        yield Finding(
            "ledger",
            "warning",
            f"none yet at {place}",
            first,
        )
        return
    if schema.needs > schema.newest:
        yield Finding("ledger", "failed", f"{place} needs a newer amends", "upgrade amends")
        return
    if schema.pending:
        yield Finding(
            "ledger", "warning", f"{place} is at version {schema.version}", "amends db migrate brings it up to date"
        )
    else:
        yield Finding("ledger", "ok", f"{place}, version {schema.version}")
    try:
        yield from _anchor(rt)
        yield _clock(rt)
        yield from _halts(rt)
        yield _waiting(rt)
        yield from _probes(rt)
    except LedgerTooNew as error:
        yield Finding("ledger", "failed", str(error), error.hint)


def _anchor(rt: Runtime) -> Iterator[Finding]:
    path = _anchor_path(rt)
    if path is None:
        return
    try:
        rt.check_anchor()
    except (LedgerBehind, LedgerUnavailable) as error:
        yield Finding("anchor", "failed", str(error), error.hint)
        return
    yield Finding("anchor", "ok", f"the ledger has what {path} knows" if path.exists() else f"none yet at {path}")


def _anchor_alone(rt: Runtime) -> Iterator[Finding]:
    """Find an anchor that was left when its ledger was deleted: a new ledger in its place would start nothing."""
    path = _anchor_path(rt)
    if path is not None and _knows_something(path):
        yield Finding(
            "anchor",
            "failed",
            f"there is no ledger at {rt.settings['url'].value}, but {path} knows one that was there",
            f"if it was deleted on purpose, and nothing that it did matters, delete {path} too; otherwise put the newest"
            " copy of the ledger back",
        )


def _knows_something(path: Path) -> bool:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return bool(said.get("checkpoint") or said.get("approval"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError):
        return True  # a program could not read it either


def _anchor_path(rt: Runtime) -> Path | None:
    said, url = rt.settings["anchor"].value, str(rt.settings["url"].value)
    if said:
        return Path(said).absolute()
    return Path(f"{_file_of(url)}.anchor") if url.startswith("sqlite:///") else None


def _file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///").partition("?")[0].replace("%3F", "?"))


def _clock(rt: Runtime) -> Finding:
    event = rt.newest_event()
    if event is None:
        return Finding("clock", "ok", "nothing in the ledger to compare with")
    ahead = (event.at - datetime.now(UTC)).total_seconds()
    if ahead > AHEAD_S_MAX:
        return Finding(
            "clock",
            "warning",
            f"the newest event is {ahead:.0f} s in the future",
            "this clock is behind, or was set back: ledger time stands still until the clock has caught up",
        )
    return Finding("clock", "ok", f"the newest event is {max(-ahead, 0):.0f} s old")


def _waiting(rt: Runtime) -> Finding:
    """Count what waits for a person."""
    blocked, doubts, asked = (
        sum(1 for _ in islice(found, COUNT_MAX)) for found in (rt.runs("state:blocked"), rt.doubts(), rt.approvals())
    )
    if not blocked and not doubts and not asked:
        return Finding("waiting", "ok", "nothing waits for a person")
    words = f"{_counted(asked, 'approval')}, {_counted(blocked, 'blocked run')}, {_counted(doubts, 'doubt')}"
    return Finding("waiting", "warning" if blocked or doubts else "ok", words, "amends inbox lists them")


def _halts(rt: Runtime) -> Iterator[Finding]:
    """Find the halts that stand: a program started here would be refused."""
    found = rt.halts()
    if not found:
        yield Finding("halts", "ok", "nothing is halted")
    for one in islice(found, COUNT_MAX):
        words = f"{one.extent}, by {visible(one.by)} at {iso_time(one.at)}: {visible(one.why, prose=True)}"
        named = (("tenant", one.tenant), ("agent", one.agent), ("tool", one.tool))
        extent = "".join(f" --{name} {visible(value)}" for name, value in named if value is not None)
        yield Finding("halts", "warning", words, f"when that is over: amends unhalt{extent} --why ...")


def _probes(rt: Runtime) -> Iterator[Finding]:
    """Find probes that returned none of the three answers: their calls stay in doubt."""
    reported: set[str] = set()
    for doubt in islice(rt.doubts(), COUNT_MAX):
        returned = [one.why for one in doubt.evidence if one.why.startswith(RETURNED)]
        if returned and doubt.tool not in reported:
            reported.add(doubt.tool)
            yield Finding(
                "probes", "warning", f"{doubt.tool}: {returned[-1]}", "fix the probe; it will run again for this call"
            )


def _oncall(rt: Runtime) -> Iterator[Finding]:
    """Find gaps and overlaps in the on-call table, and people on call who may not decide."""
    if not rt.settings["oncall"].value:
        return
    # Which roles are asked, only the program knows.
    found = [one for one in rt.check_oncall() if one.kind != "unused"]
    for one in islice(found, COUNT_MAX):
        during = f"{iso_time(one.start)} to {iso_time(one.until)}"
        yield Finding("oncall", "warning", f"{one.text} ({during})", "amends oncall check lists all of them")
    if not found:
        yield Finding("oncall", "ok", "no gap and no overlap in the next 14 days")


def _counted(count: int, what: str) -> str:
    return f"{count}{' or more' if count == COUNT_MAX else ''} {what}{'' if count == 1 else 's'}"


def _tools(app: str | None, url: str | None) -> Iterator[Finding]:
    place, folder = (app, None) if app else app_setting()
    if place is None:
        return
    try:
        program = load_runtime(
            place, folder=folder, url=url if app else None
        )  # checks rules and budgets against its tools; opens no ledger
    except Error as error:
        yield Finding("rules" if error.code == "bad_rule" else "app", "failed", f"{place}: {error}", error.hint)
        return
    rules, budgets, warnings = len(_entries(program, "rules")), len(_entries(program, "budgets")), program.warnings
    yield _app(place, folder)
    for warning in warnings:
        check = "budgets" if warning.startswith("budgets:") else "rules"
        yield Finding(check, "warning", warning, "correct the name, or leave it if another program has this tool")
    if not warnings:
        words = f"{_counted(rules, 'rule')} and {_counted(budgets, 'budget')} fit the tools of {place}"
        yield Finding("rules", "ok", words)


def _app(place: str, folder: Path | None) -> Finding:
    try:
        with open_app(place, folder=folder) as rt:
            tools = len(rt.describe_tools())
    except LedgerMissing:
        return Finding("app", "ok", f"{place} can be loaded; its ledger does not exist yet")
    except Error as error:
        return Finding("app", "failed", f"{place}: {error}", error.hint)
    return Finding("app", "ok", f"{place} has {tools} tool{'' if tools == 1 else 's'}")


def _entries(rt: Runtime | AsyncRuntime, name: str) -> Sequence[object]:
    found: Sequence[object] = rt.settings[name].value
    return found


def _file_rules(rt: Runtime) -> Iterator[Finding]:
    """Check the rules of the settings file, without the tools of a program."""
    if rules := len(_entries(rt, "rules")):
        words = f"{_counted(rules, 'rule')} of {rt.settings['rules'].origin} can be read"
        yield Finding("rules", "ok", f"{words}; amends rules test TOOL ARGS tries them on a call")
