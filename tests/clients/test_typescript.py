"""The client in TypeScript: what is generated is fresh, and its own tests pass against a real service."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import amends
from tests.servers.fixtures import unavailable

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "clients" / "typescript"
FOLDER = ROOT / "build" / "typescript"
INSTALL_S = 300
TEST_S = 600
NODE_MIN = 20


def run(*command: str, cwd: Path, timeout: float = TEST_S) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"AMENDS_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="session")
def built() -> Path:
    """Compile a copy of the client once; skip if node or npm is missing, or nothing can be installed. In CI that fails."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            unavailable(f"the client in TypeScript is not tested: {program} is not installed")
    version = run("node", "--version", cwd=ROOT).stdout
    if int(version.strip().lstrip("v").partition(".")[0]) < NODE_MIN:
        unavailable(f"the client in TypeScript is not tested: node {version.strip()} is older than {NODE_MIN}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / "typescript.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, done = (SOURCE / "package-lock.json").read_text(encoding="utf-8"), FOLDER / "installed.json"
        sources, stamp = _digest(), FOLDER / "built"
        if stamp.exists() and stamp.read_text(encoding="utf-8") == sources:
            return FOLDER  # another test process has built the same, and may be using it
        stamp.unlink(missing_ok=True)
        for part in ("src", "test", "examples", "build", "dist"):
            shutil.rmtree(FOLDER / part, ignore_errors=True)
        for part in ("src", "test", "examples"):
            shutil.copytree(SOURCE / part, FOLDER / part)
        for path in (*SOURCE.glob("*.json"), SOURCE / "README.md", SOURCE / "LICENSE"):
            shutil.copy(path, FOLDER / path.name)
        if not done.exists() or done.read_text(encoding="utf-8") != wanted:
            try:
                said = run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=FOLDER, timeout=INSTALL_S)
                problem = "" if said.returncode == 0 else said.stderr[-300:]
            except subprocess.TimeoutExpired:
                problem = "npm takes too long"
            if problem:
                unavailable(f"the client in TypeScript is not tested: npm ci failed: {problem}")
            done.write_text(wanted, encoding="utf-8")
        compiled = run("node", "node_modules/typescript/bin/tsc", "-p", "tsconfig.json", cwd=FOLDER)
        assert compiled.returncode == 0, compiled.stdout
        stamp.write_text(sources, encoding="utf-8")
    return FOLDER


def _digest() -> str:
    paths = [path for part in ("src", "test", "examples") for path in sorted((SOURCE / part).rglob("*.ts"))]
    paths += [*sorted(SOURCE.glob("*.json")), SOURCE / "README.md"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def test_what_is_generated_is_fresh() -> None:
    done = run(sys.executable, "scripts/typescript.py", "--check", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_client_has_no_dependency_and_the_version_of_amends() -> None:
    package = json.loads((SOURCE / "package.json").read_text(encoding="utf-8"))
    assert not {"dependencies", "peerDependencies", "optionalDependencies"} & set(package)
    assert package["version"] == re.sub(r"\.dev(\d+)$", r"-dev.\1", amends.__version__)
    for path in (SOURCE / "src").glob("*.ts"):
        for module in re.findall(r'from "([^"]+)"', path.read_text(encoding="utf-8")):
            assert module.startswith("./"), f"{path.name} imports {module}"


def test_the_pages_show_the_example_as_it_is() -> None:
    """Each block of TypeScript of the pages that names a file is a part of that file."""
    pages = [SOURCE / "README.md", ROOT / "docs" / "how-to" / "typescript.md"]
    shown = [
        (page, name, block)
        for page in pages
        for name, block in re.findall(
            r"<!-- from: (\S+) -->\n+```ts\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
        )
    ]
    assert shown
    for page, name, block in shown:
        source = (SOURCE / name).read_text(encoding="utf-8")
        assert block in source, f"{page.name}: this is not in {name}:\n{block}"


@pytest.mark.rest
@pytest.mark.parametrize("name", ["units", "saga", "kills", "example"])
def test_the_tests_of_the_client_pass(built: Path, name: str) -> None:
    done = run("node", "--test", "--test-reporter=tap", f"build/test/{name}.test.js", cwd=built)
    counts = {
        what: int(number) for what, number in re.findall(r"^# (pass|fail|skipped) (\d+)$", done.stdout, re.MULTILINE)
    }
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert counts["pass"] > 0
    assert counts["fail"] == counts["skipped"] == 0


@pytest.mark.rest
def test_the_tarball_has_the_client_and_nothing_else(built: Path, tmp_path: Path) -> None:
    done = run("npm", "pack", "--pack-destination", str(tmp_path), "--silent", cwd=built)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("amends-client-*.tgz")
    with tarfile.open(path) as packed:
        names = {name.removeprefix("package/") for name in packed.getnames()}
    modules = {path.stem for path in (SOURCE / "src").glob("*.ts")}
    made = {f"dist/{name}.{kind}" for name in modules for kind in ("js", "d.ts")}
    assert names == {"package.json", "README.md", "LICENSE", *made}
    user = tmp_path / "user"
    user.mkdir()
    (user / "package.json").write_text('{"type": "module"}')
    (user / "use.mjs").write_text(
        'import { Client, tool, serve, Held } from "amends-client";\n'
        'console.log(typeof Client, typeof tool, typeof serve, new Held("x").code);\n'
    )
    installed = run("npm", "install", "--offline", "--no-audit", "--no-fund", "--ignore-scripts", str(path), cwd=user)
    assert installed.returncode == 0, installed.stderr
    assert run("node", "use.mjs", cwd=user).stdout == "function function function Held\n"
