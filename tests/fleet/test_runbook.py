"""Each alert is raised once by a real Prometheus, and cured by the commands of docs/how-to/runbook.md as they are written.

Minutes are seconds here: the windows of the rules and their thresholds are shortened, and an alert fires at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from amends import Runtime
from amends.errors import docs_page
from tests.cli.command import SOURCE, environment
from tests.fleet.copies import next_version
from tests.forked import Child, run_python
from tests.scenarios.processes import wait_until
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.servers.prometheus import Prometheus

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
RUNBOOK = (ROOT / "docs" / "how-to" / "runbook.md").read_text(encoding="utf-8")
ALERTS: dict[str, Any] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
PATIENCE_S = 60
APP = """
import os, signal, time
from pathlib import Path
from amends import Retry, Runtime, current_call, tool

@tool(key="order")
def pay(order: str) -> str:
    if os.environ.get("DIE") == "in pay":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"ch_{order}"

@pay.compensate(retry=Retry(attempts=2, delay=0.05))
def refund(result: str) -> None:
    while Path("hangs").exists():
        time.sleep(0.05)
    if Path("refuses").exists():
        raise ValueError("the account is closed")

@tool(kind="pivot", key="order")
def wire(order: str) -> str:
    return f"w_{order}"

@tool(kind="pivot", key="order", needs_approval=True, name="big_wire")
def big_wire(order: str) -> str:
    return f"w_{order}"

rt = Runtime(tools=[pay, wire, big_wire], lease=1.0)
none = Runtime(lease=1.0)
"""
PAYS = "import app\nwith app.rt.run('order-1'):\n    app.pay(order='1')\n"
DIES = PAYS + "    import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
DIES_LATE = DIES.replace("app.pay(order='1')", "app.wire(order='1')")
ASKS = "import app\nwith app.rt.run('order-1') as run:\n    run.call(app.big_wire, order='1')\n"


def faster(text: str) -> str:
    """Return the rules with seconds for minutes, and alerts that fire at once."""
    text = re.sub(r"\[\d+m\]", "[4s]", re.sub(r"offset \d+m", "offset 4s", text))
    text = re.sub(r"> \d{3,}", "> 0.5", text)
    return re.sub(r"^ +for: .*\n", "", text, flags=re.MULTILINE)


def section(alert: str) -> str:
    found = re.search(rf"^## {alert}\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    assert found, f"the runbook has no section {alert}"
    return found[1]


def blocks(alert: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(alert), re.DOTALL)


@dataclass
class Stage:
    """A folder with a program, its ledger, its workers, and a Prometheus that watches them."""

    folder: Path
    url: str
    prometheus: Prometheus | None = None
    source: Path = SOURCE
    server: PostgresServer | None = None
    ports: dict[str, int] = field(
        default_factory=lambda: {"amends-worker": free_port(), "amends-worker@2": free_port()}
    )
    workers: dict[str, Child | subprocess.Popen[bytes]] = field(default_factory=dict)

    def env(self, **extra: str) -> dict[str, str]:
        more = {"AMENDS_URL": self.url, "AMENDS_APP": "app:rt", "AMENDS_BY": "ada", "PYTHONPATH": str(self.source)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return environment(**more, PATH=path, **extra)

    def play(self, text: str, *, dies: bool = False, **extra: str) -> None:
        done = run_python(["-c", text], cwd=self.folder, env=self.env(**extra), timeout=PATIENCE_S)
        assert (done.returncode == -signal.SIGKILL) or not dies, done.stderr

    def start(self, name: str = "amends-worker", *, app: str = "app:rt") -> None:
        self.stop(name)
        args = ["-m", "amends", "worker", app, "--every", "0.1", "--listen", str(self.ports[name]), "--drain", "0"]
        if self.source == SOURCE:
            self.workers[name] = Child(args, cwd=self.folder, env=self.env())
        else:  # another copy of amends: a new interpreter
            self.workers[name] = subprocess.Popen([sys.executable, *args], cwd=self.folder, env=self.env())

    def stop(self, name: str) -> None:
        worker = self.workers.pop(name, None)
        if worker is not None:
            worker.kill()
            worker.communicate()
            worker.__exit__(None, None, None)

    def execute(self, command: str) -> str:
        """Execute one line of the page."""
        if command.startswith("systemctl "):
            _, _, unit = command.split()
            if unit == "postgresql":
                assert self.server is not None
                self.server.start()
            else:
                self.start(unit)
            return ""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.env(), capture_output=True, text=True, timeout=PATIENCE_S,
            check=False,
        )  # fmt: skip
        assert done.returncode in CODES.get(command.split(" --")[0], (0,)), f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def wait_for(self, alert: str, *, fires: bool) -> None:
        assert self.prometheus is not None
        wait_until(lambda: (alert in self.prometheus.firing()) is fires, timeout_s=PATIENCE_S)  # type: ignore[union-attr]


CODES = {"amends db migrate": (0, 1), "amends doctor": (0, 3), "amends runs show RUN": (0, 3)}
"""Exit codes other than 0 that the page's commands may have: a plan says 1, something that waits for a person 3."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    made = Stage(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}")
    targets = [f"127.0.0.1:{port}" for port in made.ports.values()]
    try:
        made.prometheus = Prometheus(faster(RULES.read_text(encoding="utf-8")), job="amends-worker", targets=targets)
        made.prometheus.start()
    except Unavailable as refusal:
        unavailable(refusal)
    try:
        with Runtime(made.url) as rt:
            rt.migrate()
        yield made
    finally:
        for name in list(made.workers):
            made.stop(name)
        made.prometheus.close()


# ---- How each alert comes about


def no_worker(stage: Stage) -> None:
    stage.start()
    stage.wait_for("AmendsNoWorker", fires=False)
    stage.stop("amends-worker")


def ledger_unavailable(stage: Stage) -> None:
    stage.server = PostgresServer(tcp=True).start()
    stage.url = stage.server.create_database()
    with Runtime(stage.url) as rt:
        rt.migrate()
    stage.start()
    stage.wait_for("AmendsNoWorker", fires=False)
    stage.server.kill()


def not_taken_over(stage: Stage) -> None:
    stage.start(app="app:none")
    stage.play(DIES, dies=True)


def workers_busy(stage: Stage) -> None:
    (stage.folder / "hangs").touch()
    stage.start()
    stage.play(DIES, dies=True)


def runs_blocked(stage: Stage) -> None:
    stage.start()
    stage.play(DIES_LATE, dies=True)


def doubt_old(stage: Stage) -> None:
    stage.start()
    stage.play(PAYS, dies=True, DIE="in pay")


def compensation_failing(stage: Stage) -> None:
    (stage.folder / "refuses").touch()
    stage.start()
    stage.play(DIES, dies=True)


def approval_old(stage: Stage) -> None:
    stage.start()
    stage.play(ASKS)


def halted(stage: Stage) -> None:
    stage.start()
    stage.execute("amends halt --why 'an attack'")


def migration_pending(stage: Stage) -> None:
    stage.source = next_version(stage.folder / "next", contract=True)
    stage.start()


SITUATIONS: dict[str, Callable[[Stage], None]] = {
    "AmendsNoWorker": no_worker,
    "AmendsLedgerUnavailable": ledger_unavailable,
    "AmendsRunsNotTakenOver": not_taken_over,
    "AmendsWorkersBusy": workers_busy,
    "AmendsRunsBlocked": runs_blocked,
    "AmendsDoubtOld": doubt_old,
    "AmendsCompensationFailing": compensation_failing,
    "AmendsApprovalOld": approval_old,
    "AmendsHalted": halted,
    "AmendsMigrationPending": migration_pending,
}
IN_MAKE_TEST = "AmendsDoubtOld"


@pytest.mark.parametrize(
    "alert", [pytest.param(alert, marks=[] if alert == IN_MAKE_TEST else pytest.mark.rest) for alert in ALERTS]
)
def test_an_alert_is_raised_and_cured_by_the_text_of_the_runbook(stage: Stage, alert: str) -> None:
    assert stage.prometheus is not None
    try:
        SITUATIONS[alert](stage)
        stage.wait_for(alert, fires=True)
        *look, cure = blocks(alert, "sh")
        found: dict[str, Any] = {}
        for line in "".join(look).splitlines():
            said = stage.execute(f"{line} --json").splitlines()
            assert said, f"{line} shows nothing while {alert} fires"
            found = json.loads(said[0])
        rows = _selected(stage, alert)
        assert all(rows), f"the SQL of {alert} finds nothing while it fires"
        (stage.folder / "refuses").unlink(missing_ok=True)  # what "repair" means here
        for line in cure.splitlines():
            stage.execute(_filled(line, found))
        stage.wait_for(alert, fires=False)
        if alert not in ("AmendsMigrationPending", "AmendsRunsNotTakenOver", "AmendsWorkersBusy"):
            assert not any(_selected(stage, alert))
        named = set(re.findall(r"amends_\w+(?=[{\[ )]|$)", ALERTS[alert]["expr"])) - {
            "amends_tool",
            "amends_state",
            "amends_outcome",
        }
        assert named <= stage.prometheus.metrics()
    finally:
        (stage.folder / "hangs").unlink(missing_ok=True)
        if stage.server is not None:
            stage.stop("amends-worker")
            stage.server.close()


def _filled(line: str, found: dict[str, Any]) -> str:
    for word in ("CALL", "RUN", "APPROVAL"):
        line = re.sub(rf"\b{word}\b", str(found.get("id")), line)
    return re.sub(r"\bDIGEST\b", str(found.get("digest")), line)


def _selected(stage: Stage, alert: str) -> list[list[Any]]:
    if not stage.url.startswith("sqlite:///"):
        return []
    with closing(sqlite3.connect(stage.url.removeprefix("sqlite:///"))) as ledger:
        return [ledger.execute(sql).fetchall() for sql in blocks(alert, "sql")]


# ---- What is written


def test_every_alert_has_its_section_its_query_and_a_situation() -> None:
    assert list(SITUATIONS) == list(ALERTS)
    assert re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE) == list(ALERTS)
    for alert, rule in ALERTS.items():
        [query] = blocks(alert, "promql")
        assert query.split() == rule["expr"].split()
        assert rule["annotations"]["runbook_url"] == docs_page("how-to/runbook.md", alert.lower())
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_prometheus_accepts_the_rules_and_the_example() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        unavailable(Unavailable("promtool is not installed: make servers"))
    for args in (["rules", RULES], ["config", RULES.with_name("prometheus.yaml")]):
        done = subprocess.run([promtool, "check", *map(str, args)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
