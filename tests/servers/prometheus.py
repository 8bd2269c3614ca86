"""Prometheus with given rules and targets, on a port of loopback."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.servers.found import system_program
from tests.servers.process import Process, Server, free_port

CONFIG = """
global: {{ scrape_interval: {every}, evaluation_interval: {every}, scrape_timeout: {every} }}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: {job}
    static_configs: [{{ targets: {targets} }}]
"""


class Prometheus(Server):
    """A server that scrapes these targets, ``HOST:PORT``, and evaluates these rules."""

    def __init__(self, rules: str, *, job: str, targets: list[str], every: str = "500ms") -> None:
        self._program = system_program("prometheus", "Prometheus")
        self._rules, self._port = rules, free_port()
        self._config = CONFIG.format(job=job, targets=json.dumps(targets), every=every)

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        return {one["labels"]["alertname"] for one in self._get("alerts")["alerts"] if one["state"] == "firing"}

    def metrics(self) -> set[str]:
        """Return the names of all metrics that it has seen."""
        return set(self._get("label/__name__/values"))

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def _prepare(self, process: Process) -> None:
        (process.folder / "rules.yaml").write_text(self._rules, encoding="utf-8")
        (process.folder / "prometheus.yaml").write_text(self._config, encoding="utf-8")

    def _command(self) -> list[str]:
        return [
            str(self._program), f"--config.file={self.folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self.folder / 'data'}", f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=warn",
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=2):
                return True
        except OSError:
            return False
