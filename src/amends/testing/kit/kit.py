"""``Kit``: checks each tool in processes of its own, kills them at every operation, and judges what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import amends
from amends.errors import UsageError
from amends.states import RUN_FINAL
from amends.testing.kit.checks import FIXES, OF_VIOLATION, CheckedTool, CheckState, ToolCheck
from amends.testing.kit.child import KILLED
from amends.visible import shortened, visible

TOOL_S_MAX: Final = 120.0
"""How long all checks of one tool may take."""
LIST_S_MAX: Final = 60.0
"""How long the import of a program may take, when the kit asks it for its tools."""
KILLS_MAX: Final = 500
"""Operations of one run at which a process is killed; a run with more is killed at the first ones."""
SHOWN_CHARS_MAX: Final = 160
"""How much of a snapshot or of an error one row shows."""
OUTPUT_CHARS_MAX: Final = 2_000
"""How much of what a process printed is shown if it ended by itself."""

Told = Callable[[str], None]


class TimeIsUp(Exception):
    """The checks of a tool took too long."""


class Ended(Exception):
    """A process of the kit ended by itself, before it had carried out its orders."""


class Kit:
    """Checks the tools of a program against your own sandbox.

    ``app`` names the runtime and ``sandbox`` the module, file or object with ``snapshot``, ``reset`` and ``examples``
    (``MODULE``, ``FILE.py``, or either with ``:NAME``; default: the module of ``app``), both looked up in ``folder``.
    ``timeout_s`` is how long the checks of one tool may take. Every call of a tool is made in another process.
    """

    def __init__(
        self, app: str, *, sandbox: str | None = None, folder: Path | None = None, timeout_s: float = TOOL_S_MAX
    ) -> None:
        if not timeout_s > 0:
            raise UsageError(f"timeout_s is {timeout_s}: the checks of a tool take more than no time")
        self.app, self.sandbox, self.timeout_s = app, sandbox, timeout_s
        self.folder = Path.cwd() if folder is None else folder
        self._facts: dict[str, dict[str, Any]] = {}
        self._can_reset = False
        self._is_whole = False
        """Whether the examples of every tool were read."""

    def tools(self, *, only: str = "") -> tuple[str, ...]:
        """Return the names of the tools; raise ``UsageError`` if the program or the sandbox cannot be used.

        ``only``: the tool to be checked; then the others need no example.
        """
        if self._is_whole:
            self._check_name(only)
            return tuple(self._facts)
        with TemporaryDirectory(prefix="amends-kit-") as folder:
            process = _Processes(self, Path(folder), time.monotonic() + LIST_S_MAX)
            try:
                (listed,) = process.answers([{"do": "list", "only": only}])
            except TimeIsUp:
                raise UsageError(
                    f"{self.app} was not imported within {LIST_S_MAX:g} s", hint="do nothing slow at import"
                ) from None
            except Ended as error:
                raise UsageError(f"{self.app} ended the process that imported it: {error}") from None
        self._facts = {one["name"]: one for one in listed["tools"]}
        self._can_reset, self._is_whole = listed["reset"], not only
        self._check_name(only)
        return tuple(self._facts)

    def _check_name(self, tool: str) -> None:
        if tool and tool not in self._facts:
            raise UsageError(f"{self.app} has no tool {tool!r}", hint=f"its tools are {', '.join(sorted(self._facts))}")

    def check(self, tool: str, *, told: Told | None = None) -> CheckedTool:
        """Check one tool, by its name; ``told`` is called with what is being done."""
        self.tools(only=tool)
        facts = self._facts[tool]
        began = time.monotonic()
        with TemporaryDirectory(prefix="amends-kit-") as folder:
            processes = _Processes(self, Path(folder), began + self.timeout_s)
            checking = _Checking(facts, processes, self._can_reset, told or (lambda _: None))
            checks = checking.all()
        return CheckedTool(tool, facts["kind"], facts["where"], checks, time.monotonic() - began)


# ---- Processes


class _Processes:
    """Starts the processes that call tools, one after another, and reads what each has found."""

    def __init__(self, kit: Kit, folder: Path, until: float) -> None:
        self.kit, self.folder, self._until = kit, folder, until
        self._count = 0

    def answers(self, orders: Sequence[Mapping[str, Any]], *, is_killed: bool = False) -> list[dict[str, Any]]:
        """Return what a new process answers to each order; ``is_killed``: the last order kills it, perhaps.

        Raise ``UsageError`` if the program says so, ``TimeIsUp``, or ``Ended`` if it ended for no reason of ours.
        """
        self._count += 1
        said, found, printed = (self.folder / f"{self._count}.{name}" for name in ("orders", "answers", "printed"))
        kit = self.kit
        asked = {"app": kit.app, "sandbox": kit.sandbox, "folder": str(kit.folder), "answers": str(found)}
        said.write_text(json.dumps({**asked, "orders": orders}), "utf-8")
        with printed.open("wb") as output:
            code = self._run(said, output)
        lines = found.read_text("utf-8").splitlines() if found.exists() else []
        merged: list[dict[str, Any]] = [{} for _ in orders]
        for one in map(json.loads, lines):
            merged[one["order"]] |= one
        if usage := next((one for one in merged if "usage" in one), None):
            raise UsageError(usage["usage"], hint=usage["hint"])
        if code != 0 and not (is_killed and code in (-KILLED, KILLED)):
            shown = printed.read_text("utf-8", errors="replace").strip()[-OUTPUT_CHARS_MAX:]
            last = shown.rpartition("\n")[2]
            raise Ended(f"exit code {code}" + (f", and its last line is: {visible(last, prose=True)}" if last else ""))
        return merged

    def _run(self, said: Path, output: Any) -> int:
        """Run one process to its end and return its exit code; kill it, and what it has started, when time is up."""
        path = [str(Path(amends.__file__).resolve().parent.parent), *(one for one in sys.path if one)]
        seeds = {"PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": str(self._count)}
        child = subprocess.Popen(
            [sys.executable, "-m", "amends.testing.kit.child", str(said)],
            cwd=self.kit.folder, env={**os.environ, **seeds}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=os.name == "posix",
        )  # fmt: skip
        try:
            return child.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeIsUp from None
        finally:
            if child.poll() is None:
                _kill(child)
                child.wait()


def _kill(child: subprocess.Popen[bytes]) -> None:
    if os.name == "posix":
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


# ---- The checks of one tool


@dataclass(frozen=True, slots=True)
class _Killed:
    """A process that was killed: where, what the sandbox held before, and the ledger that it left."""

    where: str
    before: str
    ledger: str


@dataclass(slots=True)
class _Rows:
    """The table of one tool; a check that is broken for one example stays broken."""

    rows: dict[str, ToolCheck] = field(default_factory=dict)
    example: str = ""

    def put(self, name: str, state: CheckState, what: str = "") -> None:
        known = self.rows.get(name)
        order = ("not declared", "not checked", "ok", "warning", "broken")
        if known is not None and order.index(known.state) >= order.index(state):
            return
        shown = shortened(visible(what, prose=True), 3 * SHOWN_CHARS_MAX) if what else ""
        self.rows[name] = ToolCheck(
            name, state, f"{self.example}{shown}" if shown else "", FIXES[name] if state == "broken" else ""
        )

    def table(self) -> tuple[ToolCheck, ...]:
        """Return the checks in the order of the table."""
        return tuple(self.rows[name] for name in FIXES if name in self.rows)


class _Checking:
    """One tool on its way through all checks."""

    def __init__(self, facts: Mapping[str, Any], processes: _Processes, can_reset: bool, told: Told) -> None:
        self._facts, self._processes, self._can_reset, self._told = facts, processes, can_reset, told
        self._tool: str = facts["name"]
        self._rows = _Rows()
        self._doing = ""

    def all(self) -> tuple[ToolCheck, ...]:
        """Check everything, for each example."""
        if self._facts["why_not"]:
            return (ToolCheck("example", "not checked", self._facts["why_not"]),)
        count = self._facts["examples"]
        try:
            for example in range(count):
                self._rows.example = f"example {example + 1}: " if count > 1 else ""
                with self._sees_ends():
                    self._of_example(example)
        except TimeIsUp:
            limit = self._processes.kit.timeout_s
            self._rows.put("time", "broken", f"not done within {limit:g} s; stopped while {self._doing}")
        return self._rows.table()

    @contextmanager
    def _sees_ends(self) -> Iterator[None]:
        try:
            yield
        except Ended as error:
            self._rows.put("example", "broken", f"the process ended while {self._doing}: {error}")

    def _say(self, doing: str) -> None:
        self._doing = doing
        self._told(f"{self._tool}: {self._rows.example}{doing}")

    def _of_example(self, example: int) -> None:
        if self._claims(example) and (clean := self._rehearsed(example)) is not None:
            self._kills(example, clean)

    # ---- Claims, in one process

    def _claims(self, example: int) -> bool:
        """Check what one process can see; return whether the rest makes sense."""
        self._say("checking what it declares")
        (found,) = self._processes.answers([{"do": "claims", "tool": self._tool, "example": example}])
        if self._sandbox_failed(found):
            return False
        if not found["is_stable"]:
            differ = _difference(found["first"], found["second"])
            self._rows.put("snapshot", "broken", f"two snapshots without a call in between differ: {differ}")
            return False
        if "failed" in found:
            self._rows.put("example", "broken", f"the call raised {found['failed']}")
            return False
        self._rows.put("example", "ok")
        for name in self._declared():
            self._rows.put(name, "ok")
        for name, what in (
            ("probe", "" if self._can_be_settled() else "after a lost answer a person decides"),
            ("idempotent", "it is started once"),
        ):
            if what and self._facts["kind"] != "read":
                self._rows.put(name, "not declared", what)
        schedules = found["schedules"]
        for checker, what, schedule in found["violations"]:
            name = OF_VIOLATION.get(checker, "crashes")
            where = "" if name != "crashes" else f" ({checker}; {schedule}; one of {schedules} schedules)"
            self._rows.put(name, "broken", f"{what}{where}")
        return True

    def _declared(self) -> Iterator[str]:
        """Yield the checks that apply to this tool."""
        facts = self._facts
        is_read = facts["kind"] == "read"
        yield from ("read",) if is_read else ("snapshot",) if facts["hides"] else ("snapshot", "key")
        if not is_read and not facts["is_staging"]:
            yield "result"
        yield from ("before",) if facts["has_before"] else ()
        yield from ("idempotent",) if facts["is_idempotent"] else ()
        if facts["has_probe"]:
            yield from ("probe during",) if facts["is_staging"] else ("probe before", "probe during")
        if facts["is_compensated"]:
            yield "compensation"
            yield from ("compensation twice",) if facts["is_compensated_twice"] else ()
            yield from ("compensation of nothing",) if facts["is_compensated_of_nothing"] else ()
            yield from ("probe after",) if facts["has_probe"] else ()
        yield "crashes"

    def _can_be_settled(self) -> bool:
        """Return whether a lost answer is settled without a person."""
        return bool(self._facts["has_probe"] or self._facts["is_idempotent"])

    def _sandbox_failed(self, *found: Mapping[str, Any]) -> bool:
        said = next((one["sandbox"] for one in found if "sandbox" in one), "")
        if said:
            self._rows.put("snapshot", "broken", said)
        return bool(said)

    # ---- Real deaths

    def _rehearsed(self, example: int) -> Mapping[str, Any] | None:
        """Play the run once without a fault; return what it left, or None if nothing can be killed."""
        self._say("playing it in a process of its own")
        about = {"tool": self._tool, "example": example}
        (left,) = self._processes.answers([{"do": "effect", **about, "ledger": self._ledger("effect", example)}])
        if self._sandbox_failed(left):
            return None
        seen, clean = self._processes.answers(
            [
                {"do": "look", **about},
                {"do": "play", **about, "ledger": self._ledger("clean", example)},
            ]
        )
        if self._sandbox_failed(seen, clean):
            return None
        if left["key"] != seen["key"]:
            self._rows.put("key", "broken", "the same arguments gave another key in another process")
        if left["before"] != left["after"] and seen["seen"] != left["after"]:
            why = (
                "the effect ended with its process: the sandbox is in memory; keep it in a file, a database or a server"
            )
            self._rows.put("kills", "not checked", why)
            return None
        if clean["state"] not in RUN_FINAL:
            self._rows.put("kills", "broken", f"without a kill the run ends {clean['state']}: {clean['failed']}")
            return None
        return clean

    def _kills(self, example: int, clean: Mapping[str, Any]) -> None:
        """Kill the process before every operation and after the last one, and recover in the next process."""
        trace: list[str] = clean["trace"][:KILLS_MAX]
        places = [*((at, "before") for at in range(len(trace))), (len(trace) - 1, "after")]
        waits: list[str] = []
        killed: _Killed | None = None
        for number, (at, when) in enumerate(places, start=1):
            self._say(f"kill {number} of {len(places)}, {when} {trace[at]}")
            ledger = self._ledger(f"kill-{number}", example)
            order = {"do": "play", "tool": self._tool, "example": example, "ledger": ledger}
            found = self._recovered(killed, clean, waits, {**order, "kill_at": at, "when": when})
            if found is None:
                return
            killed = _Killed(f"{when} {trace[at]}", found["before"], ledger)
        if self._recovered(killed, clean, waits) is None:
            return
        if waits:
            what = f"{len(waits)} of {len(places)} kills leave a run that waits for a person ({waits[0]})"
            helps = "a compensation that is idempotent or has a probe" if self._can_be_settled() else "a probe"
            cure = f"; {helps} would make them fewer"
            self._rows.put("kills", "warning", f"{what}{cure}")
        self._rows.put("kills", "ok", f"{len(places)} kills")

    def _recovered(
        self, killed: _Killed | None, clean: Mapping[str, Any], waits: list[str], *then: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Recover in a new process, which then carries out the next order; return its last answer.

        None: the sandbox failed.
        """
        orders = [*([{"do": "recover", "ledger": killed.ledger}] if killed else []), *then]
        found = self._processes.answers(orders, is_killed=bool(then))
        if self._sandbox_failed(*found):
            return None
        if killed is not None:
            self._judge(killed.where, killed.before, found[0], clean, waits)
        return found[-1]

    def _judge(
        self, where: str, before: str, left: Mapping[str, Any], clean: Mapping[str, Any], waits: list[str]
    ) -> None:
        state, after = left["state"], left["after"]
        if state in ("rolled_back", "none"):
            if after != before:
                differ = _difference(before, after)
                self._rows.put(
                    "kills", "broken", f"killed {where}, the run ended {state}, and something is left: {differ}"
                )
        elif state == "committed":
            if self._can_reset and left["nameless"] != clean["nameless"]:
                differ = _difference(clean["nameless"], left["nameless"])
                what = f"killed {where}, the run is committed, and left something else than without the kill: {differ}"
                self._rows.put("kills", "broken", what)
        else:
            waits.append(f"{state}, killed {where}")

    def _ledger(self, name: str, example: int) -> str:
        return str(self._processes.folder / f"{name}-{example}.db")


def _difference(was: str, now: str) -> str:
    """Return where two snapshots begin to differ."""
    at = next(
        (at for at, (one, other) in enumerate(zip(was, now, strict=False)) if one != other), min(len(was), len(now))
    )
    begin = max(0, at - SHOWN_CHARS_MAX // 4)
    room = SHOWN_CHARS_MAX // 2
    shown = (one[begin : begin + room] + ("..." if len(one) > begin + room else "") or "nothing" for one in (was, now))
    return " became ".join(f"{'...' if begin else ''}{one}" for one in shown)
