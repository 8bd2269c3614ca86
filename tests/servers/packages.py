"""Programs from npm, installed once below build/ from a locked list of packages."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.servers.found import Unavailable

BUILD = Path(__file__).parents[2] / "build"
INSTALL_S = 300


def npm_folder(source: Path, *, name: str) -> Path:
    """Install the packages that ``source`` locks into ``build/NAME``, if they are not there, and return that folder.

    No script of a package is run. Several processes may ask at once: one installs, the others wait.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unavailable(f"{name} from npm: {program} is not installed; run `make servers` as root")
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (source / "package-lock.json").read_text(encoding="utf-8")
        done = folder / "installed.json"
        if not done.exists() or done.read_text(encoding="utf-8") != wanted:
            for one in ("package.json", "package-lock.json"):
                shutil.copy(source / one, folder / one)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            try:
                said = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
                )
            except subprocess.TimeoutExpired:
                raise Unavailable(f"{name} from npm: npm ci took more than {INSTALL_S} s") from None
            if said.returncode != 0:
                raise Unavailable(f"{name} from npm: npm ci failed: {said.stderr[-300:]}")
            done.write_text(wanted, encoding="utf-8")
    return folder
