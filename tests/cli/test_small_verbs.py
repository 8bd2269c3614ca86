"""``init``, ``doctor``, ``completion``, ``config`` and ``locks``, at a terminal and with ``--json``."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from amends import Runtime, tool
from amends.cli.completion import SCRIPTS, candidates
from amends.errors import DOCS
from tests.cli.command import assert_refused, environment, here, run
from tests.cli.conftest import Play
from tests.cli.terminal import at_terminal

# ---- init -----------------------------------------------------------------------------------


def test_a_place_to_begin_is_written_and_works_at_once(tmp_path: Path) -> None:
    seen = at_terminal("init", cwd=tmp_path)
    assert (seen.code, seen.lines[:2]) == (0, ["amends.toml", "app.py"])
    done = subprocess.run(
        [sys.executable, "app.py", "1042", "4200"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "= committed" in done.stdout
    listed = run("runs", "list", "--json", cwd=tmp_path)
    assert json.loads(listed.stdout)["id"] == "order-1042"
    assert run("recover", cwd=tmp_path).returncode == 0
    checks = [json.loads(line) for line in run("doctor", "--json", cwd=tmp_path).stdout.splitlines()]
    assert {one["check"]: one["state"] for one in checks}["app"] == "ok"


def test_init_says_what_it_wrote_as_json(tmp_path: Path) -> None:
    done = run("init", "--dir", "new/place", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"id": "new/place", "files": ["new/place/amends.toml", "new/place/app.py"]}
    assert run("config", "show", "--origin", cwd=tmp_path / "new" / "place").stdout.count("amends.toml") == 2


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("mine", encoding="utf-8")
    assert_refused(run("init", cwd=tmp_path), "app.py", "nothing was written")
    assert_refused(here("init", "--dir", "app.py", cwd=tmp_path), "app.py")
    assert_refused(here("init", "here", cwd=tmp_path), "here")
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
    assert (tmp_path / "app.py").read_text(encoding="utf-8") == "mine"


# ---- doctor ---------------------------------------------------------------------------------


def findings(cwd: Path, *args: str, code: int = 0) -> dict[str, tuple[str, str]]:
    done = here("doctor", "--json", *args, cwd=cwd)
    assert done.returncode == code, done
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["check"]: (one["state"], one["words"]) for one in found}


def test_a_doctor_finds_a_healthy_place_healthy(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    (shop / "amends.toml").write_text('url = "sqlite:///shop.db"\napp = "app:rt"\n', encoding="utf-8")
    found = findings(shop)
    assert {status for status, _ in found.values()} == {"ok"}, found
    assert found["app"][1] == "app:rt has 2 tools"
    seen = at_terminal("doctor", cwd=shop)
    assert (seen.code, "nothing waits for a person" in seen.text) == (0, True)
    assert not list(shop.glob(".amends-doctor*"))


def test_a_doctor_counts_tools_that_are_declared_by_name(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    named = "amends.declare('mail', kind='pivot', key='order')"
    code = f"import amends\nrt = amends.Runtime('sqlite:///shop.db', tools=[{named}])\n"
    (shop / "named.py").write_text(code, encoding="utf-8")
    assert findings(shop, "--app", "named:rt")["app"][1] == "named:rt has 1 tool"


def test_a_doctor_looks_at_the_ledger_that_the_program_names_itself(shop: Path) -> None:
    (shop / "other.py").write_text(
        "from amends import AsyncRuntime, Runtime\n"
        'rt, tasks = Runtime("sqlite:///other.db"), AsyncRuntime("sqlite:///other.db")\n',
        encoding="utf-8",
    )
    for place in ("other:rt", "other:tasks"):
        state, words = findings(shop, "--app", place)["ledger"]
        assert (state, "other.db" in words, place in words) == ("warning", True, True)
    here("db", "migrate", "--url", "sqlite:///other.db", cwd=shop)
    for place in ("other:rt", "other:tasks"):
        state, words = findings(shop, "--app", place)["ledger"]
        assert (state, "other.db" in words) == ("ok", True)


def test_a_doctor_makes_no_ledger_and_says_who_does(tmp_path: Path) -> None:
    assert findings(tmp_path)["ledger"][0] == "warning"
    assert list(tmp_path.iterdir()) == []
    assert "first program" in here("doctor", cwd=tmp_path).stderr
    (tmp_path / "amends.toml").write_text("create = false\n", encoding="utf-8")
    assert "create is false" in here("doctor", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    "args, check, word",
    [
        (("--url", "nonsense"), "settings", "nonsense"),
        (("--url", "sqlite:///no/such/folder.db"), "disk", "no folder"),
        (("--url", "sqlite:///notes.db"), "ledger", "notes.db"),
        (("--url", "sqlite:///new.db"), "ledger", "newer amends"),
        (("--app", "nosuch:rt"), "app", "nosuch"),
        (("--url", "postgresql://me:secret@localhost:1/x"), "ledger", "localhost"),
    ],
)
def test_a_doctor_names_what_is_wrong(tmp_path: Path, args: tuple[str, ...], check: str, word: str) -> None:
    (tmp_path / "notes.db").write_text("dear diary, " * 1000, encoding="utf-8")
    here("db", "migrate", "--url", "sqlite:///new.db", cwd=tmp_path)
    with sqlite3.connect(tmp_path / "new.db") as raw:
        raw.execute("insert into amends_schema values (99, 99, 0.0, 'x')")
    raw.close()
    found = findings(tmp_path, *args, code=3)
    assert found[check][0] == "failed"
    assert word in found[check][1]
    assert "secret" not in str(found)


def test_a_doctor_tells_of_a_clock_that_was_set_back_and_of_who_waits(shop: Path, play: Play) -> None:
    play("blind", "order-1", dies="order-1")
    assert run("recover", "app:rt", cwd=shop).returncode == 3
    with sqlite3.connect(shop / "shop.db") as raw:
        changed = raw.execute("update amends_event set at = at + 3600 where at = (select max(at) from amends_event)")
        assert changed.rowcount >= 1
    raw.close()
    found = findings(shop, "--url", "sqlite:///shop.db")
    assert found["waiting"] == ("warning", "0 approvals, 1 blocked run, 1 doubt")
    assert (found["clock"][0], "in the future" in found["clock"][1]) == ("warning", True)


def test_a_doctor_that_is_asked_wrongly_says_so(tmp_path: Path) -> None:
    assert_refused(here("doctor", "now", cwd=tmp_path), "now")
    assert_refused(here("doctor", "--tenant", "x", cwd=tmp_path), "--tenant")
    (tmp_path / "amends.toml").write_text("url = ", encoding="utf-8")
    assert here("doctor", cwd=tmp_path).returncode == 3


# ---- completion -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before, last, wanted",
    [
        ([], "dou", ["doubts"]),
        (["doubts"], "", ["list", "probe", "resolve", "show"]),
        (["runs", "show"], "--t", ["--tenant"]),
        (["doubts", "resolve", "call_1"], "", ["absent", "happened", "unknown"]),
        (["doubts", "resolve", "--why", "x", "call_1"], "h", ["happened"]),
        (["completion"], "", ["bash", "fish", "zsh"]),
        (["nonsense"], "x", []),
        (["locks"], "", []),
    ],
)
def test_what_a_word_could_become(before: list[str], last: str, wanted: list[str]) -> None:
    assert candidates(before, last) == wanted


def test_ids_are_completed_from_the_ledger_and_its_absence_is_no_error(shop: Path, play: Play) -> None:
    play("pay", "order-1", "order-2", "other")
    (shop / "amends.toml").write_text('url = "sqlite:///shop.db"\n', encoding="utf-8")
    assert here("complete", "--", "runs", "show", "order", cwd=shop).stdout.split() == ["order-1", "order-2"]
    (shop / "amends.toml").write_text('url = "sqlite:///nowhere.db"\n', encoding="utf-8")
    done = here("complete", "--", "runs", "show", "order", cwd=shop)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    (tmp_path / "amends").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m amends "$@"\n', encoding="utf-8")
    (tmp_path / "amends").chmod(0o755)
    script = run("completion", "bash", cwd=tmp_path).stdout
    ask = 'COMP_WORDS=(amends config sh); COMP_CWORD=2; _amends; echo "${COMPREPLY[@]}"'
    env = environment()
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    done = subprocess.run([bash, "-c", script + ask], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["show"]


def test_a_shell_that_is_not_known_is_refused(tmp_path: Path) -> None:
    assert_refused(here("completion", "tcsh", cwd=tmp_path), "bash, zsh, fish")
    assert_refused(here("completion", cwd=tmp_path), "bash|zsh|fish")
    assert_refused(here("completion", "bash", "zsh", cwd=tmp_path), "zsh")
    for shell in SCRIPTS:
        seen = at_terminal("completion", shell, cwd=tmp_path)
        assert (seen.code, "amends complete" in seen.text) == (0, True)


# ---- locks ----------------------------------------------------------------------------------


@tool(key="order", locks=lambda call: [f"stock:{call.args['item']}"])
def reserve(order: str, item: str) -> str:
    return order


@reserve.compensate
def release(result: str) -> None: ...


def test_locks_are_listed_with_who_has_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with Runtime(url, tools=[reserve]) as rt:
        run_ = rt.open("order-1")
        run_.call(reserve, order="1", item="kettle")
        (line,) = run("locks", "--json", "--url", url, cwd=tmp_path).stdout.splitlines()
        lock = json.loads(line)
        assert (lock["name"], lock["run_id"], lock["waiting"]) == ("stock:kettle", "order-1", [])
        seen = at_terminal("locks", "--url", url, cwd=tmp_path)
        assert "stock:kettle  order-1  open" in seen.text
        run_.commit()
    none = here("locks", "--url", url, cwd=tmp_path)
    assert (none.returncode, none.stdout, "no lock" in none.stderr) == (0, "", True)
    assert_refused(here("locks", "--limit", "0", "--url", url, cwd=tmp_path), "limit")
    assert_refused(here("locks", "kettle", "--url", url, cwd=tmp_path), "kettle")
    assert_refused(here("locks", "--url", "sqlite:///none.db", cwd=tmp_path), "no ledger")


# ---- at a terminal --------------------------------------------------------------------------


def test_every_listing_fits_a_narrow_terminal_and_says_the_same_without_colour(shop: Path, play: Play) -> None:
    play("pay", "order-1", "order-2")
    url = ("--url", "sqlite:///shop.db")
    for args in (
        ("runs", "list", *url),
        ("runs", "show", "order-1", *url),
        ("config", "show", *url),
        ("db", "status", *url),
    ):
        narrow = at_terminal(*args, cwd=shop)
        assert narrow.code == 0
        plain = at_terminal(*args, cwd=shop, NO_COLOR="1")
        assert "\x1b[" not in plain.raw
        assert [len(line) > 80 for line in narrow.lines if "sqlite:" not in line].count(True) == 0, narrow.text
    assert "\x1b[" in at_terminal("runs", "list", *url, cwd=shop).raw


def test_what_cannot_be_undone_is_asked_at_a_terminal(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    url = ("--url", "sqlite:///shop.db")
    no = at_terminal("gc", "--older-than", "0s", *url, cwd=shop, answers=[("Remove the data of 1 runs", "n\n")])
    assert (no.code, "nothing was done" in no.text) == (1, True)
    yes = at_terminal("gc", "--older-than", "0s", *url, cwd=shop, answers=[("[y/N]", "y\n")])
    assert (yes.code, "removed" in yes.text) == (0, True)
    again = at_terminal("gc", "--older-than", "0s", *url, cwd=shop)
    assert (again.code, "no run" in again.text) == (0, True)


def test_recover_and_worker_work_at_a_terminal(shop: Path, play: Play) -> None:
    play("pay", "order-1", dies="order-1")
    seen = at_terminal("recover", "app:rt", cwd=shop)
    assert (seen.code, "= rolled back" in seen.text) == (0, True)
    once = at_terminal("worker", "app:rt", "--once", cwd=shop)
    assert once.code == 0
    play("pay", "order-2", dies="order-2")
    told = [json.loads(line) for line in run("worker", "app:rt", "--once", "--json", cwd=shop).stdout.splitlines()]
    assert [(line["level"], line["message"]) for line in told] == [("info", "run order-2 is rolled_back")]
    made = at_terminal("db", "migrate", "--url", "sqlite:///other.db", cwd=shop)
    assert (made.code, "applied" in made.text) == (0, True)


def test_an_error_with_json_is_one_object_with_code_hint_and_docs(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    for args, code in (
        (("runs", "list", "colour:red"), "usage_error"),
        (("runs", "show", "nope"), "not_found"),
        (("runs", "list", "--nope"), "wrong_use"),
    ):
        done = here(*args, "--json", "--url", "sqlite:///shop.db", cwd=shop)
        assert (done.returncode, done.stdout) == (2, "")
        error = json.loads(done.stderr)["error"]
        assert (error["code"], bool(error["message"]), bool(error["hint"])) == (code, True, True)
        assert error["docs"].startswith(f"{DOCS}reference/")


def test_doctor_finds_an_anchor_without_its_ledger(tmp_path: Path) -> None:
    def checked() -> dict[str, str]:
        done = here("doctor", "--json", "--url", f"sqlite:///{tmp_path / 'shop.db'}", cwd=tmp_path)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == (3 if any(one["state"] == "failed" for one in found) else 0)
        for one in found:
            if one["state"] == "failed":
                assert "shop.db.anchor" in one["words"] + one["hint"]
        return {one["check"]: one["state"] for one in found}

    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with Runtime(url, checkpoint=0) as rt, rt.run():
        pass
    assert checked()["anchor"] == "ok"
    (tmp_path / "shop.db").unlink()
    assert checked()["anchor"] == "failed"
    with Runtime(url) as rt:
        rt.migrate()
    assert checked()["anchor"] == "failed"
    with Runtime(url) as rt:
        rt.reconcile_restore(by="anna", why="looked")
    assert checked()["anchor"] == "ok"
    (tmp_path / "shop.db").unlink()
    assert "anchor" not in checked()
