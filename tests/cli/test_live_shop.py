"""The live shop of ``amends demo``: a real terminal, a real worker process, and a visitor who kills it."""

import json
import os
import re
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from amends import Runtime
from tests.cli.command import PATIENCE_S, environment, here
from tests.cli.terminal import ESCAPES, _opened

# A terminal that a process controls: Ctrl-C typed there is SIGINT for it, and for nobody who left its group.
AS_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'amends', *sys.argv[1:]])"
)


class Terminal:
    """A program at a terminal: what is on its screen, and what is typed."""

    def __init__(self, *args: str, cwd: Path) -> None:
        self._ours, theirs = _opened(100)
        env = {name: value for name, value in environment(TERM="xterm").items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", AS_ITS_TERMINAL, *args],
            cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.screen = ""

    def until(self, pattern: str) -> str:
        """Read the screen until the pattern is there; return its first group."""
        until = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.screen)) is None:
            assert time.monotonic() < until, self.screen
            assert self._read(), self.screen
        return found[1] if found.groups() else found[0]

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], 1.0)
        if not ready:
            return True
        try:
            part = os.read(self._ours, 65_536)
        except OSError:  # Linux says so when the other end is closed
            return False
        self.screen += ESCAPES.sub("", part.decode("utf-8", "replace"))
        return bool(part)

    def press_ctrl_c(self) -> int:
        """Return the exit code."""
        os.write(self._ours, b"\x03")
        until = time.monotonic() + PATIENCE_S
        while self._read() and time.monotonic() < until:
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        os.close(self._ours)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def visited(folder: Path) -> Iterator[tuple[Terminal, httpx.Client]]:
    terminal = Terminal("demo", "--port", "0", cwd=folder)
    try:
        link = terminal.until(r"open within five minutes: (http\S+)\s")
        with httpx.Client(base_url=link.partition("/login")[0], follow_redirects=True, timeout=30) as client:
            page = client.get(link, headers={"Accept": "text/html"})
            assert (page.status_code, page.url.path) == (200, "/demo")
            yield terminal, client
    finally:
        terminal.close()


def shown(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/demo.json").raise_for_status().json()
    return found


def eventually(client: httpx.Client, holds: Any) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE_S
    while not holds(found := shown(client)):
        assert time.monotonic() < until, found
        time.sleep(0.1)
    return found


def crash(client: httpx.Client, **headers: str) -> httpx.Response:
    page = client.get("/demo", headers={"Accept": "text/html"}).text
    csrf = re.search(r'name="csrf" value="([^"]+)"', page)
    assert csrf is not None
    return client.post("/demo/crash", data={"csrf": csrf[1]}, headers={"Accept": "text/html", **headers})


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.rest
def test_a_worker_that_is_killed_in_a_charge_is_followed_by_one_that_does_not_charge_again(tmp_path: Path) -> None:
    with visited(tmp_path) as (terminal, client):
        first = eventually(client, lambda page: page["worker"]["state"] == "working")["worker"]["pid"]
        answered = crash(client)
        assert answered.status_code == 200, answered.text
        assert not is_alive(first)
        seen = shown(client)["story"]
        assert (seen["pid"], seen["is_over"]) == (first, False)

        doubtful = eventually(
            client, lambda page: page["rows"] and any(row["state"] == "in_doubt" for row in page["rows"])
        )
        [row] = [row for row in doubtful["rows"] if row["state"] == "in_doubt"]
        assert (row["order"], row["is_killed"], len(row["receipts"])) == (seen["order"], True, 1)
        assert doubtful["worker"]["pid"] != first

        over = eventually(client, lambda page: page["story"]["is_over"])
        assert [part["is_done"] for part in over["story"]["chapters"]] == [True] * 4
        assert over["story"]["charges"] == 1
        assert over["totals"]["double"] == 0
        second = over["worker"]["pid"]

        assert terminal.press_ctrl_c() == 0, terminal.screen
        assert "the shop is closed" in terminal.screen
        assert "Traceback" not in terminal.screen
    assert not is_alive(second)
    folder = tmp_path / "amends-demo"
    book = [json.loads(line) for line in (folder / "payments.jsonl").read_text(encoding="utf-8").splitlines()]
    assert max(Counter(entry["order"] for entry in book if "charge" in entry).values()) == 1
    with Runtime(f"sqlite:///{folder / 'ledger.db'}", create=False) as rt:
        assert rt.report(seen["order"]).state in ("committed", "rolled_back")
        assert rt.report(seen["order"]).calls[1].result == row["receipts"][0]
        assert rt.verify().ok


@pytest.mark.rest
def test_the_worker_ends_with_the_demo_even_if_that_is_killed(tmp_path: Path) -> None:
    with visited(tmp_path) as (terminal, client):
        worker = eventually(client, lambda page: page["worker"]["state"] == "working")["worker"]["pid"]
        terminal.process.kill()
        terminal.process.wait()
        until = time.monotonic() + PATIENCE_S
        while is_alive(worker):
            assert time.monotonic() < until, "an order takes seconds, and then its input has ended"
            time.sleep(0.1)


@pytest.mark.rest
def test_an_order_that_a_visitor_approves_is_finished_by_the_worker(tmp_path: Path) -> None:
    with visited(tmp_path) as (_, client):
        until = time.monotonic() + PATIENCE_S
        while not (asked := client.get("/v1/approvals").json()["items"]):
            assert time.monotonic() < until, "order-6 is large"
            time.sleep(0.1)
        csrf = client.get("/login/session").json()["csrf"]
        said = client.post(
            f"/v1/approvals/{asked[0]['id']}/approve",
            json={"digest": asked[0]["digest"], "why": "a good customer"},
            headers={"X-CSRF-Token": csrf},
        )
        assert said.status_code == 200, said.text
        order = asked[0]["call"]["run_id"]
        ended = eventually(
            client, lambda page: any(row["order"] == order and row["state"] == "succeeded" for row in page["rows"])
        )
        [row] = [row for row in ended["rows"] if row["order"] == order]
        assert (len(row["receipts"]), row["verdict"]) == (1, "charged once, and both know")


@pytest.mark.rest
def test_it_says_what_to_install_for_the_console(tmp_path: Path) -> None:
    code = "import sys; sys.modules['starlette'] = None; from amends.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "demo", "--serve"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install 'amends[serve]'" in done.stdout


def test_reports_as_data_and_a_console_exclude_each_other(tmp_path: Path) -> None:
    done = here("demo", "--json", "--serve", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (2, "usage_error")
    assert list(tmp_path.iterdir()) == []
