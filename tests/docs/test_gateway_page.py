"""The commands of the page on the gateway print what the page says: in one shell, with a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS, FENCE, matches
from tests.gateway.desk import npm_server

MARK = "-- end of block --"


@pytest.mark.rest
def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    text = (DOCS / "how-to" / "gateway.md").read_text(encoding="utf-8")
    fences = [(fence["lang"], fence["body"]) for fence in FENCE.finditer(text)]
    told = [
        (body, after[1] if after[0] == "text" else None)
        for (lang, body), after in zip(fences, [*fences[1:], ("", "")], strict=False)
        if lang == "bash"
    ]
    [program] = [body for lang, body in fences if lang == "python"]
    (tmp_path / "try_it.py").write_text(program, encoding="utf-8")
    bin = tmp_path / "bin"
    bin.mkdir()
    server = npm_server("mcp-server-filesystem")
    for name, command in {
        "amends": f'"{sys.executable}" -m amends "$@"',
        "python": f'"{sys.executable}" "$@"',
        "npx": f'shift 2; exec {server[0]} "{server[1]}" "$@"',  # what npx -y PACKAGE starts
    }.items():
        (bin / name).write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
        (bin / name).chmod(0o755)
    env = {key: value for key, value in os.environ.items() if not key.startswith("AMENDS_")}
    env |= {"PATH": f"{bin}{os.pathsep}{env['PATH']}", "NO_COLOR": "1", "COLUMNS": "200"}
    env["XDG_STATE_HOME"] = str(tmp_path / "state")
    script = "".join(f"{body}echo '{MARK}'\n" for body, _ in told)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180, check=False
    )
    outputs = done.stdout.split(f"{MARK}\n")
    assert len(outputs) == len(told) + 1, done.stderr
    for (_, shown), printed in zip(told, outputs, strict=False):
        assert shown is None or matches(shown, printed), f"the page says\n{shown}\nand it is\n{printed}\n{done.stderr}"
