"""Make a release of this tree: check it, build it, try what was built, then commit and tag. Publish nothing.

    make release VERSION=0.1.0                    # everything
    make release VERSION=0.1.0 ARGS=--plan        # say what would be done
    make release VERSION=0.1.0 ARGS=--no-tests    # build and try only: for a rehearsal

The version is written in ``pyproject.toml`` and ``src/amends/__init__.py``, and the *Unreleased* part of the changelog gets the
version and the date. If anything fails, both are put back and nothing is committed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
COMMAND_S_MAX: Final = 5_400
FILES: Final = ("pyproject.toml", "src/amends/__init__.py", "CHANGELOG.md")
"""The files that a release changes."""
NO_RELEASE: Final = "There is no release yet"
"""What pages say until the first release. The README is also the page of the package index."""
ENVIRON: Final = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
"""Without what would make the wheel import this tree instead of itself."""


class NotReleased(Exception):
    """The release cannot be made; the message says why and what to do."""


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make release", description="Check, build, try, commit and tag a release.")
    parser.add_argument("version", help="such as 0.1.0, or 0.2.0rc1")
    parser.add_argument("--plan", action="store_true", help="say what would be done, and change nothing")
    parser.add_argument("--no-tests", action="store_true", help="leave out make check and make test")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder for wheel and sdist")
    asked = parser.parse_args(given)
    try:
        release(asked.version, dist=asked.dist, is_plan=asked.plan, tests=not asked.no_tests)
    except NotReleased as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def release(version: str, *, dist: Path, is_plan: bool, tests: bool) -> None:
    before = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES}
    after = changed(before, version)
    refuse_unless_ready(version)
    denying = pages_that_deny_it()
    if is_plan:
        print(f"release {version}: would change {', '.join(FILES)}, build into {dist}, commit, and tag v{version}")
        for name in denying:
            print(f"correct {name} first: it says {NO_RELEASE!r}")
        return
    if denying:
        raise NotReleased(f"{', '.join(denying)} would be published with {NO_RELEASE!r}: correct that first")
    done = False
    try:
        for name, text in after.items():
            (ROOT / name).write_text(text, encoding="utf-8")
        if tests:
            run("make", "check")
            run("make", "test")
        wheel, sdist = build(version, dist)
        look_into(wheel, sdist)
        try_wheel(wheel, version)
        run("git", "add", *FILES)
        run("git", "commit", "--quiet", "-m", f"Release {version}")
        run("git", "tag", "--annotate", f"v{version}", "-m", f"amends {version}")
        done = True
    finally:
        if not done:
            for name, text in before.items():
                (ROOT / name).write_text(text, encoding="utf-8")
    print(f"release: {version} is committed and tagged. Nothing is published. Next:")
    print(f"  git push --follow-tags\n  {sys.executable} -m twine upload {wheel} {sdist}")


# ---- what a release changes -------------------------------------------------------------------------------------


def changed(before: dict[str, str], version: str) -> dict[str, str]:
    """Return the files with the new version; raise ``NotReleased`` if the version or the changelog is not fit for it."""
    if not VERSION.fullmatch(version):
        raise NotReleased(f"{version!r} is no version: write 0.1.0, or 0.2.0rc1 for a candidate")
    found = re.search(r'^version = "([^"]+)"', before["pyproject.toml"], re.MULTILINE)
    assert found is not None, "pyproject.toml has no version"
    if order(version) <= order(found[1]):
        raise NotReleased(f"{version} is not newer than {found[1]}, which pyproject.toml has: choose a higher one")
    log = before["CHANGELOG.md"]
    part = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", log, re.MULTILINE | re.DOTALL)
    if part is None or not part[1].strip():
        raise NotReleased("CHANGELOG.md says nothing under Unreleased: say what changed, for the person who upgrades")
    today = datetime.now(UTC).date().isoformat()
    return {
        "pyproject.toml": before["pyproject.toml"].replace(found[0], f'version = "{version}"', 1),
        "src/amends/__init__.py": before["src/amends/__init__.py"].replace(
            f'__version__ = "{found[1]}"', f'__version__ = "{version}"', 1
        ),
        "CHANGELOG.md": log.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{version}] - {today}\n", 1),
    }


def order(version: str) -> tuple[int, ...]:
    """Return what compares versions: a development version, then candidates, then the release itself."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\.?(dev|a|b|rc)(\d+))?", version)
    assert found is not None, version
    stage = ("dev", "a", "b", "rc", None).index(found[4])
    return (*(int(found[place]) for place in (1, 2, 3)), stage, int(found[5] or 0))


def refuse_unless_ready(version: str) -> None:
    if output("git", "status", "--porcelain"):
        raise NotReleased("the tree has changes that are not committed: commit or remove them first")
    branch = output("git", "rev-parse", "--abbrev-ref", "HEAD")
    if branch != "main":
        raise NotReleased(f"releases are made from main, and this is {branch}")
    if output("git", "tag", "--list", f"v{version}"):
        raise NotReleased(f"the tag v{version} exists: a version is released once")
    for needed in ("build", "twine"):
        if subprocess.run([sys.executable, "-c", f"import {needed}"], check=False, capture_output=True).returncode:
            raise NotReleased(f"the package {needed} is missing: make check installs it")


def pages_that_deny_it() -> list[str]:
    """Return the pages that still say that there is no release."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(str(page.relative_to(ROOT)) for page in pages if NO_RELEASE in page.read_text(encoding="utf-8"))


# ---- what is built ----------------------------------------------------------------------------------------------


def build(version: str, dist: Path) -> tuple[Path, Path]:
    """Build wheel and sdist and check their metadata."""
    dist.mkdir(parents=True, exist_ok=True)
    for old in dist.glob("amends-*"):
        old.unlink()
    # The build backend is installed already (extra `test`): no network is needed.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT))
    wheel, sdist = dist / f"amends-{version}-py3-none-any.whl", dist / f"amends-{version}.tar.gz"
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    return wheel, sdist


def look_into(wheel: Path, sdist: Path) -> None:
    """Raise ``NotReleased`` if a package lacks what it must have, or has what it must not have."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    with tarfile.open(sdist) as packed_source:
        source = packed_source.getnames()
    if "amends/py.typed" not in names:
        raise NotReleased(f"{wheel.name} has no amends/py.typed: type checkers would see nothing")
    strange = [name for name in (*names, *source) if re.search(r"\.db$|\.venv|node_modules|__pycache__|\.key$", name)]
    if strange:
        raise NotReleased(f"what is built has files that belong to a machine: {', '.join(strange[:5])}")


def try_wheel(wheel: Path, version: str) -> None:
    """Install the wheel elsewhere and run its demo there."""
    with tempfile.TemporaryDirectory(prefix="amends-release-") as folder:
        place = Path(folder) / "venv"
        venv.create(place, with_pip=True)
        python = place / "bin" / "python"
        run(str(python), "-m", "pip", "install", "--quiet", str(wheel), cwd=Path(folder))
        said = output(str(place / "bin" / "amends"), "--version", cwd=Path(folder))
        if said != f"amends {version}":
            raise NotReleased(f"the wheel says {said!r}, not amends {version}")
        run(str(place / "bin" / "amends"), "demo", "--no-serve", cwd=Path(folder))


# ---- commands ---------------------------------------------------------------------------------------------------


def run(*command: str, cwd: Path = ROOT) -> None:
    print("+", *command, flush=True)
    program = shutil.which(command[0])
    if program is None:
        raise NotReleased(f"{command[0]} is not on this machine")
    done = subprocess.run(
        [program, *command[1:]], cwd=cwd, env=ENVIRON, check=False, stdin=subprocess.DEVNULL, timeout=COMMAND_S_MAX
    )
    if done.returncode:
        raise NotReleased(f"{' '.join(command)} ended with {done.returncode}; nothing was committed")


def output(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=ENVIRON, check=False, capture_output=True, text=True, timeout=COMMAND_S_MAX
    )
    if done.returncode:
        raise NotReleased(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
