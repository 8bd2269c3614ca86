"""The commands of pages on the service print what the page says: in one shell, with a server that it starts."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS, FENCE, blocks_of, matches

SERVED = ("serve.md", "remote-tools.md")
MARK = "-- end of block --"
WAIT = f"for _ in $(seq 100); do curl -s -o /dev/null localhost:PORT/health && break; sleep 0.1; done\necho '{MARK}'\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.mark.rest
@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="needs curl")
@pytest.mark.parametrize("name", SERVED)
def test_the_commands_of_the_page_print_what_it_says(name: str, tmp_path: Path) -> None:
    page = DOCS / "how-to" / name
    text = page.read_text(encoding="utf-8")
    (tmp_path / "app.py").write_text(blocks_of(page)[0].code, encoding="utf-8")
    fences = [(fence["lang"], fence["body"]) for fence in FENCE.finditer(text)]
    told = [
        (body, after[1] if after[0] == "text" else None)
        for (lang, body), after in zip(fences, [*fences[1:], ("", "")], strict=False)
        if lang == "bash"
    ]
    port = str(free_port())
    program = tmp_path / "bin" / "amends"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m amends "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = "trap 'kill $(jobs -p); wait' EXIT\n"
    script += "".join(body + WAIT for body, _ in told)
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1", "COLUMNS": "200"}
    env = {key: value for key, value in env.items() if not key.startswith("AMENDS_")}
    env["PATH"] = f"{program.parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(
        ["bash", "-c", re.sub(r"8642|PORT", port, script)],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    outputs = done.stdout.replace(port, "8642").split(f"{MARK}\n")
    assert len(outputs) == len(told) + 1, done.stderr
    for (_, shown), printed in zip(told, outputs, strict=False):
        lines = "".join(re.sub(r"(?<=})(?=[{\"])", "\n", line) for line in printed.splitlines(keepends=True))
        assert shown is None or matches(shown, lines), f"the page says\n{shown}\nand it is\n{printed}\n{done.stderr}"
