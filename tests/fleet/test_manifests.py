"""deploy/kubernetes and deploy/systemd: valid, hardened, and in step with what a worker and a service do."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from amends.cli import main
from amends.health import parse_address
from amends.worker import HANDOVER_S

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.29", "1.31", "1.33")
"""Of Kubernetes: the manifests use nothing newer than the first."""


def documents() -> list[tuple[str, dict[str, Any]]]:
    return [(file.name, one) for file in FILES for one in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def found(kind: str, name: str) -> dict[str, Any]:
    [one] = [one for _, one in documents() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return one


def pods() -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for _, one in documents() if one["kind"] in ("Deployment", "Job")]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_follows_the_schema_of_kubernetes(version: str) -> None:
    said = [one["kind"] for _, one in documents()]
    assert sorted(set(said)) == ["ConfigMap", "Deployment", "Job", "PodDisruptionBudget", "Secret", "Service"]
    for name, one in documents():
        assert kubernetes_validate.validate(one, version, strict=True) == version, name


def test_a_manifest_with_a_mistake_is_found() -> None:
    """Otherwise the test above would show nothing."""
    wrong = found("Deployment", "amends-worker")
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_a_rolling_update_keeps_what_is_there_until_the_new_is_ready() -> None:
    for name in ("amends-worker", "amends-service"):
        deployment, budget = found("Deployment", name), found("PodDisruptionBudget", name)
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        assert deployment["spec"]["replicas"] > budget["spec"]["minAvailable"] >= 1
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        for selector in (deployment["spec"]["selector"], budget["spec"]["selector"]):
            assert selector["matchLabels"].items() <= labels.items()
    service = found("Service", "amends")["spec"]
    assert (
        service["selector"].items()
        <= found("Deployment", "amends-service")["spec"]["template"]["metadata"]["labels"].items()
    )


def test_the_grace_period_is_longer_than_the_drain() -> None:
    pod = found("Deployment", "amends-worker")["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]
    drain_s = float(args[args.index("--drain") + 1])
    assert pod["terminationGracePeriodSeconds"] >= drain_s + HANDOVER_S + 5
    unit = (DEPLOY / "systemd" / "amends-worker.service").read_text(encoding="utf-8")
    [stop_s], [unit_drain_s] = re.findall(r"TimeoutStopSec=(\d+)", unit), re.findall(r"--drain (\d+)", unit)
    assert float(stop_s) >= float(unit_drain_s) + HANDOVER_S + 5
    assert "SuccessExitStatus=143" in unit


def test_probes_ask_the_port_and_the_paths_that_are_there() -> None:
    pod = found("Deployment", "amends-worker")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [port] = container["ports"]
    listen = container["args"][container["args"].index("--listen") + 1]
    assert parse_address(listen) == ("0.0.0.0", port["containerPort"])
    for name in ("amends-worker", "amends-service"):
        [container] = found("Deployment", name)["spec"]["template"]["spec"]["containers"]
        asked = {probe: container[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")}
        named = {one["name"] for one in container["ports"]}
        assert {one["port"] for one in asked.values()} <= named
        assert {probe: one["path"] for probe, one in asked.items()} == {
            "startup": "/health", "liveness": "/health", "readiness": "/ready"
        }  # fmt: skip


def test_pods_have_no_rights_and_write_nowhere() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
            }  # fmt: skip
            assert "memory" in container["resources"]["limits"]
            assert [{*one} for one in container["envFrom"]] == [{"configMapRef"}, {"secretRef"}]
    assert "secret.yaml" in (DEPLOY / ".gitignore").read_text(encoding="utf-8").split()


@pytest.mark.parametrize(
    "kind, name", [("Deployment", "amends-worker"), ("Deployment", "amends-service"), ("Job", "amends-migrate")]
)
def test_the_command_line_knows_the_options_of_a_container(
    kind: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [container] = found(kind, name)["spec"]["template"]["spec"]["containers"]
    assert main([*container["args"], "--help"]) == 0
    said = capsys.readouterr().out
    for option in [one for one in container["args"] if one.startswith("--")]:
        assert option in said


def test_the_unit_has_a_folder_for_a_ledger_on_sqlite_and_the_page_names_it() -> None:
    unit = (DEPLOY / "systemd" / "amends-worker.service").read_text(encoding="utf-8")
    [name] = re.findall(r"^StateDirectory=(\w+)$", unit, re.MULTILINE)
    page = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    assert "ProtectSystem=strict" in unit
    assert f"AMENDS_URL=sqlite:////var/lib/{name}/" in page


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """The program is not there on this machine, so another one stands for it; the rest is as it is."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    unit = (DEPLOY / "systemd" / "amends-worker.service").read_text(encoding="utf-8")
    [command] = re.findall(r"^ExecStart=(\S+ .*)$", unit, re.MULTILINE)
    program, *args = shlex.split(command)
    assert Path(program).name == "amends"
    assert main([*args, "--help"]) == 0
    copy = tmp_path / "amends-worker.service"
    copy.write_text(unit.replace(program, "/bin/true"), encoding="utf-8")
    done = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
