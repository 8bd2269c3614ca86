"""deploy/: the Dockerfile is linted and its steps are run, compose.yaml is valid and what it starts is started.

There is no docker in the tests. The steps run in a folder that stands for the image, with its own environment. What only
root can do (`useradd`, `chown`) is recorded instead.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from tests.servers.fixtures import unavailable
from tests.servers.process import free_port

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
IMAGE_PATHS = re.compile(r"(?<![\w.])/(?=(?:opt/amends|src|app|var/lib/amends)\b)")
"""Paths of the image, which are below the folder that stands for it."""
RECORDED = ("useradd", "chown")
STEP_S_MAX, READY_S_MAX = 400, 60
NO_NETWORK = re.compile(
    r"No matching distribution|Could not fetch|ConnectionError|Temporary failure|NewConnectionError"
)


def program(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, f"{name} is in the extra test"
    return found


def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, in order."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(one, rest) for one, _, rest in (line.partition(" ") for line in lines if line.strip())]


def said(name: str) -> list[str]:
    return [rest for one, rest in steps() if one == name]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return found


# ---- what is written ------------------------------------------------------------------------


def test_the_dockerfile_passes_its_linter() -> None:
    done = subprocess.run(
        [program("hadolint"), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["deploy/compose.yaml", "docker-compose.yml"])
def test_a_compose_file_follows_the_specification(name: str) -> None:
    command = [program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(ROOT / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_images_are_pinned_and_the_user_is_not_root(compose: dict[str, Any]) -> None:
    images = [one.split()[0] for one in said("FROM")] + [compose["services"]["postgres"]["image"]]
    assert all(re.fullmatch(r"[\w/]+:\d+\.\d+(\.\d+)?-[\w-]+", one) for one in images), images
    last_from = max(place for place, (one, _) in enumerate(steps()) if one == "FROM")
    [user] = [rest for one, rest in steps()[last_from:] if one == "USER"]
    assert user.isdigit()
    assert int(user) > 0
    assert f"--uid {user} " in " ".join(said("RUN"))


def test_nothing_secret_is_in_the_image_or_in_the_repository(compose: dict[str, Any]) -> None:
    assert not re.search(r"(?i)secret|password|token", " ".join(rest for _, rest in steps()))
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*"  # and then only what is copied
    copied = {one for rest in said("COPY") if "--from" not in rest for one in rest.split()[:-1]}
    assert {one[1:] for one in ignored if one.startswith("!")} == copied
    assert ".env" in (DEPLOY / ".gitignore").read_text(encoding="utf-8").split()
    for name, one in compose["services"].items():
        for key, value in one["environment"].items():
            if re.search(r"(?i)secret|password", key) or "://" in value:
                assert re.search(r"\$\{\w+:\?", value), f"{name}: {key} is written down, or may be empty"


def test_every_service_that_stays_has_a_health_check_and_waits_for_what_it_needs(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"postgres", "setup", "service", "worker"}
    for name, one in services.items():
        if name != "setup":
            assert one["restart"] == "unless-stopped"
            assert one["healthcheck"]["test"][0] == "CMD"
        if name != "postgres":
            assert one["read_only"]
            assert one["cap_drop"] == ["ALL"]
    assert services["setup"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("service", "worker"):
        assert services[name]["depends_on"] == {"setup": {"condition": "service_completed_successfully"}}
    assert all(port.startswith("127.0.0.1:") for port in services["service"]["ports"])
    assert not any("ports" in services[name] for name in ("postgres", "setup", "worker"))


# ---- what it does ---------------------------------------------------------------------------


@dataclass
class Image:
    """A folder that stands for the image: a stage is built in `root`, and put aside when the next one begins.

    So a path is the same in each stage, as in docker: the programs of a virtual environment hold theirs.
    """

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    at: str = "/"
    stage: str = ""

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def build(self) -> None:
        for name, rest in steps():
            handler = getattr(self, f"_{name.lower()}", None)
            assert handler is not None or name in ("USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"), name
            if handler is not None:
                handler(rest)

    def inside(self, text: str) -> str:
        return IMAGE_PATHS.sub(f"{self.root}/", text)

    def run(self, command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        env = self.env | more
        return subprocess.run(
            [self.inside(one) for one in command], cwd=self.folder / "root" / self.at.lstrip("/"), env=env,
            capture_output=True, text=True, timeout=STEP_S_MAX, check=False,
        )  # fmt: skip

    def _from(self, rest: str) -> None:
        if self.root.exists():
            self.root.rename(self.folder / f"stage-{self.stage}")
        self.stage = rest.partition(" AS ")[2]
        self.root.mkdir()
        tools = self.folder / "tools"
        tools.mkdir(exist_ok=True)
        for name in RECORDED:
            (tools / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {self.folder}/recorded\n', encoding="utf-8")
            (tools / name).chmod(0o755)
        python = tools / "python"
        if not python.exists():
            python.symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        kept = {
            key: value
            for key, value in os.environ.items()
            if re.match(r"(?i)pip_|https?_proxy|no_proxy|ssl_|home", key)
        }
        self.env, self.at = {**kept, "PATH": f"{tools}:/usr/bin:/bin"}, "/"

    def _workdir(self, rest: str) -> None:
        self.at = rest
        (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _run(self, rest: str) -> None:
        done = self.run(["sh", "-c", rest])
        if done.returncode and "pip install" in rest and NO_NETWORK.search(done.stderr):
            unavailable("packages cannot be downloaded here")
        assert done.returncode == 0, f"RUN {rest}\n{done.stdout}{done.stderr}"

    def _copy(self, rest: str) -> None:
        *sources, target = shlex.split(rest)
        base = ROOT
        if sources[0].startswith("--from="):
            base = self.folder / f"stage-{sources.pop(0).partition('=')[2]}"
        to = Path(self.inside(target)) if target.startswith("/") else self.root / self.at.lstrip("/") / target
        for source in sources:
            found = base / source.lstrip("/")
            if found.is_dir():
                shutil.copytree(
                    found, to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
                )
            else:
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, to)

    def _env(self, rest: str) -> None:
        for one in shlex.split(self.inside(rest)):
            key, _, value = one.partition("=")
            self.env[key] = value.replace("$PATH", self.env["PATH"])

    @contextmanager
    def started(self, command: list[str], **more: str) -> Iterator[subprocess.Popen[bytes]]:
        """A container: it is asked to stop as docker does it, and has stopped."""
        [entrypoint] = map(json.loads, said("ENTRYPOINT"))
        [number] = said("STOPSIGNAL")
        going = subprocess.Popen(
            [shutil.which(entrypoint[0], path=self.env["PATH"]) or entrypoint[0], *command],
            cwd=self.root / self.at.lstrip("/"), env=self.env | more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield going
            going.send_signal(signal.Signals[number])
            assert going.wait(30) == 0
        finally:
            going.kill()
            going.wait()

    def healthy(self, test: list[str], **more: str) -> None:
        end = time.monotonic() + READY_S_MAX
        while (
            done := self.run([shutil.which(test[1], path=self.env["PATH"]) or test[1], *test[2:]], **more)
        ).returncode:
            assert time.monotonic() < end, done.stdout + done.stderr
            time.sleep(0.2)


@pytest.mark.rest
@pytest.mark.slow
def test_the_steps_build_what_compose_starts_and_a_run_is_recovered(
    postgres_url: str, compose: dict[str, Any], tmp_path: Path
) -> None:
    image = Image(tmp_path)
    image.build()
    [user] = said("USER")
    recorded = (tmp_path / "recorded").read_text(encoding="utf-8")
    assert f"--uid {user} " in recorded
    assert f"chown {user} {image.root}/var/lib/amends" in recorded
    where = image.run(["python", "-c", "import amends; print(amends.__file__)"]).stdout
    assert where.startswith(str(image.root)), f"not what was installed: {where}"

    services = compose["services"]
    assert set(services["service"]["environment"]) == {"AMENDS_URL", "AMENDS_SECRET"}
    env = {"AMENDS_URL": postgres_url, "AMENDS_SECRET": "s" * 40}
    for _ in "12":  # a second `docker compose up` makes no second token
        done = image.run(services["setup"]["entrypoint"], **env)
        assert done.returncode == 0, done.stderr
    file = image.root / "var/lib/amends/operator"
    assert file.stat().st_mode & 0o077 == 0
    token = file.read_text(encoding="utf-8").strip()
    assert token not in done.stdout + done.stderr

    port = str(free_port())
    [started] = map(json.loads, said("CMD"))
    assert services["service"]["command"] == [*started, "--no-worker"]
    with ExitStack() as containers:
        for name in ("service", "worker"):
            command = [one.replace("8642", port) for one in services[name]["command"]]
            containers.enter_context(image.started(command, **env))
        for name in ("service", "worker"):
            image.healthy([one.replace("8642", port) for one in services[name]["healthcheck"]["test"]], **env)
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as client:
            assert client.post("/v1/runs", json={"id": "order-1", "client_lease": 1.0}).status_code == 201
            call = {"tool": "charge", "args": {"order": "1", "cents": 5}}
            assert client.post("/v1/runs/order-1/calls", json=call).json()["status"] == "done"
            end = time.monotonic() + READY_S_MAX  # silent from here on: the worker takes the run back
            while (state := client.get("/v1/runs/order-1").json()["state"]) != "rolled_back":
                assert time.monotonic() < end, state
                time.sleep(0.2)
