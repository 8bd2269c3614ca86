"""Templates and static files are in the wheel and in the source distribution."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from amends.serve.console import html

CONSOLE = Path(html.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    one.relative_to(ROOT).as_posix() for kind in ("static", "templates") for one in (CONSOLE / kind).iterdir()
)


def test_no_file_of_the_console_is_ignored_by_what_builds_the_wheel() -> None:
    """Hatch packs whatever is below src/amends and git does not ignore."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    found = subprocess.run(["git", "check-ignore", *FILES], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout == ""
    assert len(FILES) > 15
    assert set(html.files()) >= {
        "console.css",
        "console.js",
        "htmx.min.js",
        "hx-sse.js",
        "favicon.svg",
        "inter-latin.woff2",
    }


@pytest.mark.rest
def test_the_wheel_and_the_source_distribution_have_every_file(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="what builds amends is not installed here")
    for kind in ("wheel", "sdist"):
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    [wheel], [source] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {one.removeprefix("src/") for one in FILES} <= packed
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(FILES) <= names
