"""Stand between the gateway and a real MCP server over standard input and output, and kill one of them at one moment.

``python -m tests.gateway.tap PLAN.json COMMAND...``: the plan has ``tool``, ``who`` (gateway or server), ``when`` (before:
the request is not passed on; after: the server has answered, and the answer is not passed on) and ``mark``, a file that is
made when it has happened: it happens once, and a tap that is started later only passes on. ``seen``, if it is there, is a file
to which the method of each message to the server is written.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

GRACE_S = 2.0
"""How long a server may go on after its client has gone."""


class Tap:
    """One server, and the lines that go to it and come from it."""

    def __init__(self, plan: dict[str, Any], command: list[str]) -> None:
        self._plan, self._mark = plan, Path(plan["mark"])
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._asked: set[Any] = set()

    def run(self) -> int:
        """Pass lines on until one side ends."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        signal.signal(signal.SIGTERM, self._end)
        threading.Thread(target=self._in, args=(sys.stdin.buffer, self._server.stdin), daemon=True).start()
        for line in self._server.stdout:
            said = _parsed(line)
            if said.get("id") in self._asked and self._plan["when"] == "after":
                self._kill()
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        return self._server.wait()

    def _in(self, source: BinaryIO, target: Any) -> None:
        for line in source:
            said = _parsed(line)
            if "seen" in self._plan and "method" in said:
                with Path(self._plan["seen"]).open("a") as file:
                    file.write(f"{said['method']}\n")
            if said.get("method") == "tools/call" and said["params"]["name"] == self._plan["tool"]:
                self._asked.add(said["id"])
                if self._plan["when"] == "before":
                    self._kill()
            target.write(line)
            target.flush()
        target.close()
        try:
            self._server.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._end()

    def _end(self, *_signal: Any) -> None:
        """End with the server: one that has something to do at intervals does not end by itself."""
        self._server.kill()
        os._exit(1)

    def _kill(self) -> None:
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            self._asked.clear()
            return
        if self._plan["who"] == "gateway":
            os.kill(os.getppid(), signal.SIGKILL)
            self._server.terminate()
        else:
            self._server.kill()
        self._server.wait(timeout=10)
        os._exit(1)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


if __name__ == "__main__":
    sys.exit(Tap(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]).run())
