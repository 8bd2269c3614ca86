"""The stage: the processes of one lane, started, killed and started again, and the two books compared."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import amends
from amends import Runtime
from tests.chaos.service import client, fate
from tests.chaos.service.fate import Fate
from tests.chaos.service.speech import Speaker
from tests.servers.process import free_port

ROOT: Final = Path(__file__).resolve().parent.parent.parent.parent
Actor = Literal["client", "server", "worker"]
Ending = Literal["commit", "rollback"]
COUNTS: Final = ("duplicated", "lost", "stuck", "unnamed")
SETTLE_S_MAX: Final = 120.0
"""How long a saga may take to settle after the kill; a loaded machine needs some of it."""
START_S_MAX: Final = 30.0
LEASES: Final = {"claim_lease": 2.0, "work_lease": 3.0}
CLIENT_LEASE_S: Final = {"again": 60.0, "never": 1.0}
"""A client that comes back has time for it, also if a slow machine needs long to start the server again: else its run is
rolled back, as its policy says. One that stays dead is not waited for."""
BLIND: Final = "wire"
"""The call that nobody but a person can settle: its tool has no probe."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who is killed, where, and what becomes of it."""

    actor: Actor
    point: str
    number: int
    ending: Ending
    returns: Literal["again", "never"] = "again"
    again: int = 0
    """After how many more steps the server is killed as well, while it recovers from the first kill; 0: it is not."""

    @property
    def step(self) -> str:
        """The step, without the side of it on which the process dies."""
        return self.point.partition(" ")[2] + (f" {self.number}" if self.number > 1 else "")

    def __str__(self) -> str:
        gone = ", and stays dead" if self.returns == "never" else ""
        more = f"; then the server after {self.again} steps" if self.again else ""
        return f"{self.actor} {self.point} ({self.number}) of a saga to {self.ending}{gone}{more}"


@dataclass(slots=True)
class Outcome:
    """How one saga ended."""

    scenario: Scenario
    run: str
    state: str = ""
    named: list[str] = field(default_factory=list)
    """Leftovers that a person was told of, and settled."""
    findings: list[tuple[str, str]] = field(default_factory=list)
    killed: bool = False
    killed_again: bool = False
    refused: bool = False
    """The client gave up: the bank had refused its own effect as too late. It then asks for nothing."""
    seconds: float = 0.0
    story: str = ""


class Bank:
    """The process that survives everybody."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.chaos.service.bank", str(folder / "books")]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self._speaker = Speaker(self.url, Fate(None, ""))

    def rows(self, order: str) -> list[dict[str, Any]]:
        """Return the books of one order."""
        return list(self._speaker.once("", "/rows", {"order": order})[1]["rows"])

    def close(self) -> None:
        """End it, last of all."""
        self._process.kill()
        self._process.communicate()


def environ(**more: str) -> dict[str, str]:
    """Return the environment of a process of the play: this tree's sources, and nothing that the user has set."""
    path = os.pathsep.join((str(Path(amends.__file__).resolve().parent.parent), str(ROOT)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")}
    return {**kept, "PYTHONPATH": path, **more}


class Lane:
    """One server with its ledger and its worker; sagas are played on it one after another."""

    def __init__(self, name: str, url: str, bank: Bank, folder: Path) -> None:
        self.name, self.url, self.bank, self.folder = name, url, bank, folder / name
        self.fates = self.folder / "fates"
        self.fates.mkdir(parents=True)
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.tokens = self._tokens()
        self.operator = Speaker(self.address, Fate(None, ""), token=self.tokens["operator"])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: Counter[str] = Counter()
        self._made = 0

    def _tokens(self) -> dict[str, str]:
        with Runtime(self.url) as rt:
            made = {
                scope: rt.create_token(
                    scope, scopes=scope, agent="saga" if scope == "agent" else "", by="me", why="chaos"
                )
                for scope in ("agent", "worker", "operator")
            }
        return {scope: str(one.text) for scope, one in made.items()}

    # ---- Processes

    def start(self, actor: Actor, *command: str) -> None:
        """Start a process; what it says is kept."""
        log = (self.folder / f"{actor}.log").open("ab")
        env = environ(
            AMENDS_CHAOS_URL=self.url, AMENDS_CHAOS_BANK=self.bank.url, XDG_STATE_HOME=str(self.folder / "state"),
            **{fate.ENVIRON: str(self.fates)},
        )  # fmt: skip
        with log:
            self.processes[actor] = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def start_server(self) -> None:
        """Start the server; others wait for it by themselves."""
        self.start(
            "server", "-m", "amends", "serve", "tests/chaos/service/program.py:rt", "--port", str(self.port), "--json"
        )

    def start_worker(self) -> None:
        """Start the worker."""
        said = {"server": self.address, "bank": self.bank.url, "token": self.tokens["worker"], "book": "book", **LEASES}
        self.start("worker", "-m", "tests.chaos.service.worker", json.dumps(said))

    def start_client(self, run: str, scenario: Scenario) -> None:
        """Start the client of one saga."""
        said = {
            "server": self.address, "bank": self.bank.url, "token": self.tokens["agent"], "book": "book", "run": run,
            "ending": scenario.ending, "client_lease": CLIENT_LEASE_S[scenario.returns], **LEASES,
        }  # fmt: skip
        self.start("client", "-m", "tests.chaos.service.client", json.dumps(said))

    def keep_alive(self) -> None:
        """Start the server and the worker again, if they are dead."""
        for actor, start in (("server", self.start_server), ("worker", self.start_worker)):
            process = self.processes.get(actor)
            if process is None or process.poll() is not None:
                start()

    def end(self, actor: Actor) -> None:
        """Kill a process that has not ended."""
        process = self.processes.pop(actor, None)
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End all of them."""
        for actor in ("client", "worker", "server"):
            self.end(actor)  # type: ignore[arg-type]

    def ready(self) -> None:
        """Wait until the server answers and a worker is there."""
        self.keep_alive()
        until = time.monotonic() + START_S_MAX
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                status, found = self.operator.once("", "/v1/workers", method="GET")
                if status == 200 and found["items"]:
                    return
            self.keep_alive()
            time.sleep(0.1)
        raise TimeoutError(f"{self.name}: the server does not answer\n{self.said('server')}")

    def said(self, actor: str, lines: int = 12) -> str:
        """Return the end of a process's log."""
        path = self.folder / f"{actor}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    # ---- One saga

    def play(self, scenario: Scenario, *, trace: bool = False) -> Outcome:
        """Play a saga, kill one process on the way, start it again, and compare the books."""
        self._made += 1
        outcome = Outcome(scenario, f"{self.name}-{os.getpid()}-{self._made}")
        begun = time.monotonic()
        self.ready()
        if trace or scenario.actor == "worker" or "register" in scenario.point:
            self.end("worker")  # so that its first steps are among those that are passed
        if trace:
            for actor in ("client", "server", "worker"):
                fate.order(self.fates, actor, trace=True)
        else:
            fate.order(self.fates, scenario.actor, point=scenario.point, number=scenario.number)
        self.keep_alive()
        self.start_client(outcome.run, scenario)
        self._until_settled(outcome)
        self.end("client")
        if not trace and not outcome.killed:
            outcome.killed = not fate.forget(self.fates, scenario.actor)
        elif outcome.killed and scenario.again:
            outcome.killed_again = not fate.forget(self.fates, "server")
        outcome.seconds = time.monotonic() - begun
        return outcome

    def _until_settled(self, outcome: Outcome) -> None:
        until = time.monotonic() + SETTLE_S_MAX
        is_gone = False
        report: Any = None
        while time.monotonic() < until:
            self._kill_again(outcome)
            self.keep_alive()
            code = self.processes["client"].poll()
            if code == -signal.SIGKILL:
                if outcome.scenario.returns == "again":
                    self.start_client(outcome.run, outcome.scenario)
                else:
                    is_gone = True
            elif code is not None:
                if code == client.DOUBT:
                    self.start_client(outcome.run, outcome.scenario)  # after a person has been told, below
                is_gone = code != client.DOUBT
                outcome.refused = outcome.refused or code == client.REFUSED
            report = self._report(outcome.run)
            if report is not None:
                if is_gone and _is_settled(report):
                    break
                self._help(outcome, report)
            elif is_gone and code == -signal.SIGKILL and self._knows_no(outcome.run):
                outcome.state = "never opened"
                break
            time.sleep(0.1)
        else:
            outcome.findings.append(("stuck", f"not settled after {SETTLE_S_MAX:g} s: {_shown(report)}"))
        outcome.state = outcome.state or (report["run"]["state"] if report else "unknown")
        _compare(outcome, report, self.bank.rows(outcome.run))

    def _kill_again(self, outcome: Outcome) -> None:
        """As soon as the first process is dead, tell the server to die on the way that it goes then."""
        scenario = outcome.scenario
        if scenario.again and not outcome.killed and fate.is_done(self.fates, scenario.actor):
            outcome.killed = True
            fate.order(self.fates, "server", point=fate.ANYWHERE, number=scenario.again)

    def _report(self, run: str) -> Any:
        with contextlib.suppress(Exception):
            status, found = self.operator.once("", f"/v1/runs/{run}/report", method="GET")
            return found if status == 200 else None
        return None

    def _knows_no(self, run: str) -> bool:
        with contextlib.suppress(Exception):
            return self.operator.once("", f"/v1/runs/{run}/report", method="GET")[0] == 404
        return False

    def _help(self, outcome: Outcome, report: Any) -> None:
        """Do what the inbox asks a person for: look into the bank's books, and say what happened."""
        for call in report["calls"]:
            if call["state"] != "in_doubt" or call["tool"] != BLIND:
                continue
            with contextlib.suppress(Exception):
                _, listed = self.operator.once("", "/v1/doubts?limit=200", method="GET")
                if call["id"] not in [one["call"] for one in listed["items"]]:
                    continue  # not yet named: it is stuck if that stays so
                rows = [row for row in self.bank.rows(outcome.run) if row["tool"] == BLIND]
                said = {"answer": "happened", "result": rows[0]["id"]} if rows else {"answer": "absent"}
                path = f"/v1/calls/{call['id']}/resolve"
                status, _ = self.operator.once("", path, {**said, "why": "the bank's books"})
                if status == 200:
                    outcome.named.append(f"{call['tool']} in doubt")
        if report["run"]["state"] == "blocked" and not [one for one in report["calls"] if one["state"] == "in_doubt"]:
            with contextlib.suppress(Exception):
                _, listed = self.operator.once("", "/v1/inbox", method="GET")
                if report["run"]["id"] not in json.dumps(listed):
                    return
                path = f"/v1/runs/{report['run']['id']}/finish"
                status, _ = self.operator.once("", path, {"why": "the client is gone"})
                if status == 200:
                    outcome.named.append("interrupted after its pivot")


def _is_settled(report: Any) -> bool:
    under_way = [one for one in report["calls"] if one["state"] in ("started", "in_doubt", "compensating", "held")]
    return report["run"]["state"] in ("committed", "rolled_back") and not under_way


def _shown(report: Any) -> str:
    if report is None:
        return "no report"
    calls = ", ".join(f"{one['tool']} {one['state']}" for one in report["calls"])
    return f"{report['run']['state']}: {calls}; {report['run'].get('causes') or ''}"


def _compare(outcome: Outcome, report: Any, rows: list[dict[str, Any]]) -> None:
    """Compare the books of the bank with the ledger, and the end with what the client asked for."""
    add = outcome.findings.append
    books = Counter((row["tool"], row["op"]) for row in rows)
    calls = {one["tool"]: one for one in (report or {"calls": []})["calls"]}
    for (tool, op), count in books.items():
        if count > 1:
            add(("duplicated", f"{tool}: {count} times {op}"))
    for tool in {tool for tool, _ in books} | set(calls):
        done, undone = books[tool, "do"] > 0, books[tool, "undo"] > 0
        state = calls[tool]["state"] if tool in calls else "not recorded"
        match state:
            case "succeeded":
                right = done and not undone
            case "compensated":
                right = done and undone
            case "not recorded" | "failed" | "cancelled" | "refused" | "withdrawn" | "planned" | "skipped":
                right = not done and not undone
            case _:
                right = False
        if not right:
            add(("lost", f"{tool} is {state}, and the bank has {dict(books)}"))
        if outcome.state == "rolled_back" and done and not undone:
            add(("unnamed", f"{tool} remains of a run that was rolled back"))
    if outcome.state == "committed":
        wanted = {"charge", "pay", "book", "wire"}
        if {tool for tool, op in books if op == "do"} != wanted and outcome.scenario.ending == "commit":
            add(("lost", f"committed, and the bank has only {sorted(tool for tool, op in books if op == 'do')}"))
    asked = {"commit": "committed", "rollback": "rolled_back"}[outcome.scenario.ending]
    if outcome.scenario.returns == "again" and outcome.state != asked and not outcome.refused:
        add(("lost", f"the client asked for {outcome.scenario.ending} and the run is {outcome.state}"))


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[Bank]:
    """Provide the bank inside the block."""
    bank = Bank(folder)
    try:
        yield bank
    finally:
        bank.close()
        shutil.rmtree(folder, ignore_errors=True)
