"""The commands of the pages on durable engines print what the pages say: in one shell, with real servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS, FENCE, matches
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.process import free_port
from tests.servers.restate import restate_program
from tests.servers.temporal import temporal_program

MARK = "-- end of block --"
PAGE_S = 180


def type_page(
    name: str,
    folder: Path,
    *,
    programs: dict[str, str] | None = None,
    ports: dict[str, int] | None = None,
    words: dict[str, str] | None = None,
) -> None:
    """Save the programs of a page, whose first line is their name, and type its commands into a shell.

    ``programs``: commands of the page that are something else here, by name. ``ports``: free ones for those of the page.
    ``words``: what else is said otherwise.
    """
    text = (DOCS / "how-to" / name).read_text(encoding="utf-8")
    for said, free in (ports or {}).items():
        text = text.replace(f":{said}", f":{free}")
    for said, instead in (words or {}).items():
        text = text.replace(said, instead)
    fences = [(fence["lang"], fence["body"]) for fence in FENCE.finditer(text)]
    for lang, body in fences:
        if lang == "python":
            (folder / body.splitlines()[0].removeprefix("# ")).write_text(body, encoding="utf-8")
    told = [
        (body, after[1] if after[0] == "text" else None)
        for (lang, body), after in zip(fences, [*fences[1:], ("", "")], strict=False)
        if lang == "bash"
    ]
    bin = folder / "bin"
    bin.mkdir()
    for command, does in {
        "amends": f'exec "{sys.executable}" -m amends "$@"',
        "python": f'exec "{sys.executable}" "$@"',
        **(programs or {}),
    }.items():
        (bin / command).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (bin / command).chmod(0o755)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("AMENDS_", "DBOS"))}
    env |= {"PATH": f"{bin}{os.pathsep}{env['PATH']}", "NO_COLOR": "1", "COLUMNS": "200"}
    env["XDG_STATE_HOME"] = str(folder / "state")
    script = "trap 'kill -KILL $(jobs -p) 2>/dev/null; wait' EXIT\n"
    script += "".join(f"{body}echo '{MARK}'\n" for body, _ in told)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=PAGE_S, check=False
    )
    outputs = done.stdout.split(f"{MARK}\n")
    assert len(outputs) == len(told) + 1, done.stderr
    for (_, shown), printed in zip(told, outputs, strict=False):
        assert shown is None or matches(shown, printed), f"the page says\n{shown}\nand it is\n{printed}\n{done.stderr}"


@pytest.mark.rest
def test_the_commands_of_the_page_on_dbos_print_what_it_says(tmp_path: Path) -> None:
    type_page("dbos.md", tmp_path)


@pytest.mark.rest
def test_the_commands_of_the_page_on_temporal_print_what_it_says(tmp_path: Path) -> None:
    try:
        server = temporal_program()
    except Unavailable as refusal:
        unavailable(refusal)
    port = free_port()
    programs = {"temporal": f'exec "{server}" "$@"'}
    # The commands say the port in two ways.
    type_page("temporal.md", tmp_path, programs=programs, ports={"7233": port}, words={"--port 7233": f"--port {port}"})


@pytest.mark.rest
@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="needs curl")
def test_the_commands_of_the_page_on_restate_print_what_it_says(tmp_path: Path) -> None:
    try:
        server = restate_program()
    except Unavailable as refusal:
        unavailable(refusal)
    ports = {"8080": free_port(), "9070": free_port(), "9080": free_port()}
    # What npx -y PACKAGE starts, on free ports.
    settings = {"BIND_PORT": free_port(), "ADMIN__BIND_PORT": ports["9070"], "INGRESS__BIND_PORT": ports["8080"]}
    env = " ".join(f"RESTATE_{name}={value}" for name, value in settings.items())
    programs = {
        "npx": f'shift 2; exec env DO_NOT_TRACK=1 RESTATE_DISABLE_TELEMETRY=true {env} "{server}" "$@"',
        "hypercorn": f'exec "{sys.executable}" -m hypercorn --workers 0 "$@"',
    }
    type_page("restate.md", tmp_path, programs=programs, ports=ports)
