"""The kit for users' tools: lies are found, honest tools pass, and whatever is missing or hangs is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from amends.errors import UsageError
from amends.testing import CheckedTool, Kit, ToolCheck
from amends.testing.kit.checks import FIXES, OF_VIOLATION
from amends.testing.kit.kit import _Rows
from amends.testing.kit.sandbox import load_program
from tests.cli.command import assert_refused, environment, here
from tests.docs.test_docs import DOCS, FENCE, matches

ROOT = Path(__file__).resolve().parents[2]
PAGE = DOCS / "how-to" / "test-your-tools.md"

# A world in memory, with which nothing is killed, or in a file. It stands for whatever a user's tools change.
WORLD = """
import json
from pathlib import Path
from amends import *
FILE = Path("world.json")
def load():
    return json.loads(FILE.read_text()) if FILE.exists() else {}
def put(name, value=1):
    FILE.write_text(json.dumps({**load(), name: value}))
def drop(name):
    FILE.write_text(json.dumps({one: value for one, value in load().items() if one != name}))
def snapshot():
    return load()
def reset():
    FILE.unlink(missing_ok=True)
"""
IN_MEMORY = WORLD.replace("FILE = Path", "WORLD = {}\nFILE = Path") + (
    """
def load():
    return dict(WORLD)
def put(name, value=1):
    WORLD[name] = value
def drop(name):
    WORLD.pop(name, None)
def reset():
    WORLD.clear()
"""
)
HONEST = """
@tool
def book(order: str) -> str:
    put("book" + current_call().key)
    return order
@book.compensate
def unbook(call: Call) -> None:
    drop("book" + call.key)
rt = Runtime("sqlite:///never.db", tools=[book])
examples = {"book": {"order": "1"}}
"""


def program(folder: Path, text: str, *, world: str = WORLD) -> Path:
    (folder / "app.py").write_text(world + text, encoding="utf-8")
    return folder


def checked(folder: Path, tool: str, **options: Any) -> CheckedTool:
    return Kit("app:rt", folder=folder, **options).check(tool)


def states(found: CheckedTool) -> dict[str, str]:
    return {one.name: one.state for one in found.checks}


# ---- The page: three lies, and the same tool without them


def page_programs() -> tuple[str, str]:
    fences = [fence["body"] for fence in FENCE.finditer(PAGE.read_text(encoding="utf-8")) if fence["lang"] == "python"]
    return fences[0], fences[0] + fences[1]


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.rest)], ids=["three lies", "honest"])
def test_the_page_shows_what_the_kit_prints(which: int, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(page_programs()[which], encoding="utf-8")
    done = here("test", "app:rt", "--junit", "report.xml", cwd=tmp_path, columns=110)
    outputs = [fence["body"] for fence in FENCE.finditer(PAGE.read_text(encoding="utf-8")) if fence["lang"] == "text"]
    assert matches(outputs[which], done.stdout), done.stdout + done.stderr
    assert done.returncode == (0 if which else 1)
    failed = {
        case.get("name")
        for case in ET.parse(tmp_path / "report.xml").iter("testcase")
        if case.find("failure") is not None
    }
    lies = {"compensation", "probe during", "idempotent"}
    assert failed == (set() if which else {*lies, "crashes", "kills"})
    assert not (tmp_path / "amends.db").exists(), "the ledger of the program is left alone"


def test_the_page_names_every_check() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [name for name in FIXES if f"| `{name}` |" not in text and name != "probe"]
    assert missing == []
    assert set(OF_VIOLATION.values()) <= set(FIXES)


# ---- Tools of every form


@pytest.mark.rest
@pytest.mark.slow
def test_tools_of_every_form_are_killed_and_pass(tmp_path: Path) -> None:
    program(
        tmp_path,
        """
@tool
async def book(order: str) -> str:
    put("book" + current_call().key)
    return order
@book.compensate
async def unbook(call: Call) -> None:
    drop("book" + call.key)
@tool
class Hold:
    def execute(self, order: str) -> str:
        put("hold" + current_call().key)
        return order
    def compensate(self, call: Call) -> None:
        drop("hold" + call.key)
@tool(needs_approval=True, cost=5.0, kind="pivot", after=["book"])
def ship(order: str) -> str:
    put("ship" + current_call().key)
    return order
@ship.probe
def find(call: Call) -> Probed[str]:
    return Happened(call.args["order"]) if "ship" + call.key in load() else Absent()
@tool(kind="retriable", idempotent=True)
def mail(order: str) -> str:
    put("mail" + current_call().key)
    return order
@tool(kind="read")
def look(order: str) -> dict:
    return load()
rt = AsyncRuntime("sqlite:///never.db", tools=[book, Hold, ship, mail, look])
examples = {name: {"order": "1"} for name in ("book", "Hold", "ship", "mail", "look")}
""",
    )
    kit = Kit("app:rt", folder=tmp_path)
    found = {name: kit.check(name) for name in kit.tools()}
    assert {name: one.broken for name, one in found.items()} == dict.fromkeys(found, ())
    assert {name: states(one)["kills"] for name, one in found.items()} == {
        "book": "warning", "Hold": "warning", "ship": "ok", "mail": "ok", "look": "ok",
    }  # fmt: skip
    assert states(found["ship"]).keys().isdisjoint({"compensation", "compensation twice"})
    assert not (tmp_path / "never.db").exists()


def test_a_row_names_the_example_that_broke_it(tmp_path: Path) -> None:
    found = _Rows()
    found.put("key", "ok")
    found.example = "example 2: "
    found.put("key", "broken", "two keys")
    found.put("key", "ok")
    assert found.table() == (ToolCheck("key", "broken", "example 2: two keys", FIXES["key"]),)


# ---- What goes wrong


def test_a_tool_that_hangs_is_stopped_and_named(tmp_path: Path) -> None:
    text = HONEST.replace('    put("book"', '    import time; time.sleep(600)\n    put("book"')
    found = checked(program(tmp_path, text), "book", timeout_s=2.5)
    (time,) = found.broken
    assert time.name == "time"
    assert "not done within 2.5 s; stopped while checking what it declares" in time.what
    assert found.seconds < 30


@pytest.mark.parametrize(
    "more, name, words",
    [
        ('def snapshot(): raise OSError("no bank")', "snapshot", "snapshot() raised OSError: no bank (app.py:"),
        ("import random\ndef snapshot(): return random.random()", "snapshot", "two snapshots without a call"),
        pytest.param(
            "def reset(): return 1 / 0", "snapshot", "reset() raised ZeroDivisionError", marks=pytest.mark.rest
        ),
        pytest.param(
            'examples = {"book": {"order": "x" * 2_000_000}}', "example", "the call raised", marks=pytest.mark.rest
        ),
        pytest.param("import os\ndef snapshot(): os._exit(7)", "example", "exit code 7", marks=pytest.mark.rest),
    ],
)
def test_a_sandbox_that_fails_is_a_row_of_the_table(more: str, name: str, words: str, tmp_path: Path) -> None:
    program(tmp_path, HONEST + more + "\n")
    (broken,) = checked(tmp_path, "book").broken
    assert broken.name == name
    assert words.replace("(app.py:", "") in broken.what.replace(f"{tmp_path}{os.sep}", "").replace("(app.py:", "")


@pytest.mark.parametrize(
    "text, words, hint",
    [
        ("del snapshot\n" + HONEST, "no function snapshot", "--sandbox sandbox.py"),
        ("snapshot = 1\n" + HONEST, "snapshot of app is a int", "def snapshot()"),
        (HONEST + "examples = {}", "no example of book", "examples = {'book': {'order': ...}}"),
        (HONEST + "examples = []", "examples of app is a list", "by the name of the tool"),
        (HONEST + "examples = {'boook': None}", "has boook, and app:rt no such tool", "book"),
        (HONEST + "examples = {'book': 3}", "not arguments by name", "a list of 1 to 20 dicts"),
        (HONEST + "examples = {'book': {'odrer': '1'}}", "does not fit", "it takes order"),
        (HONEST + "examples = {'book': {'order': print}}", "does not fit", "it takes order"),
        (HONEST + "rt = 1", "app:rt is a int", "MODULE:NAME"),
        (HONEST + "rt = Runtime()", "app:rt has no tools", "Runtime(tools=[...])"),
        (HONEST + "del rt", "app has no 'rt'", "MODULE:NAME"),
    ],
)
def test_what_is_missing_is_said_before_a_tool_is_called(text: str, words: str, hint: str, tmp_path: Path) -> None:
    program(tmp_path, text)
    known, path = set(sys.modules), list(sys.path)
    try:
        with pytest.raises(UsageError) as refused:
            loaded = load_program("app:rt", None, tmp_path)
            for name in loaded.specs:
                loaded.examples(name)
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - known:
            del sys.modules[name]
    assert words in str(refused.value)
    assert hint in (refused.value.hint or "")


def test_wrong_words_on_the_command_line_call_no_tool(tmp_path: Path) -> None:
    program(tmp_path, HONEST)
    assert_refused(here("test", "app:rt", "--tool", "boook", cwd=tmp_path), "no tool 'boook'", "book")
    assert_refused(here("test", "app:rt", "--sandbox", "nowhere.py", cwd=tmp_path), "there is no file")
    assert_refused(here("test", "app:rt", "--junit", "nowhere/report.xml", cwd=tmp_path), "there is no folder")
    assert_refused(here("test", "app:rt", "--timeout", "0", cwd=tmp_path), "timeout_s is 0")
    assert_refused(here("test", cwd=tmp_path), "no runtime is named")
    assert not (tmp_path / "world.json").exists()


def test_json_has_one_object_for_a_tool_and_a_sandbox_in_memory_is_not_killed(tmp_path: Path) -> None:
    program(tmp_path, HONEST + "del snapshot, reset, examples\n", world=IN_MEMORY)
    (tmp_path / "sandbox.py").write_text(
        "class Bank:\n"
        "    examples = {'book': {'order': '1'}}\n"
        "    @staticmethod\n"
        "    async def snapshot():\n"
        "        import app\n"
        "        return app.load()\n",
        encoding="utf-8",
    )
    done = here("test", "app:rt", "--sandbox", "sandbox.py:Bank", "--tool", "book", "--json", cwd=tmp_path)
    (one,) = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, one["id"], one["state"]) == (0, "book", "ok"), done.stderr
    checks = {check["name"]: check for check in one["checks"]}
    assert checks["compensation"] == {"name": "compensation", "state": "ok", "what": "", "fix": ""}
    assert checks["kills"]["state"] == "not checked"
    assert "in memory" in checks["kills"]["what"]
    assert "checking book (1 of 1)" in done.stderr


# ---- The plugin


def run_pytest(folder: Path, *args: str, plugin: str = "amends.pytest_plugin") -> subprocess.CompletedProcess[str]:
    env = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(("-p", plugin) if plugin else ()), *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_test_with_the_fixture_runs_once_for_each_tool(tmp_path: Path) -> None:
    text = (
        HONEST.replace("tools=[book]", "tools=[book, cancel, forget]")
        + 'examples = {"book": {"order": "1"}, "cancel": {"order": "1"}, "forget": None}\n'
    )
    lying = """
@tool(kind="read")
def cancel(order: str) -> None:
    put(order)
@tool(kind="read")
def forget(order: str) -> None: ...
"""
    program(tmp_path, lying + text, world=IN_MEMORY)
    (tmp_path / "pytest.ini").write_text("[pytest]\namends_app = app:rt\namends_timeout = 60\n", encoding="utf-8")
    (tmp_path / "test_tools.py").write_text(
        "def test_tool(amends_tool):\n    amends_tool.raise_if_broken()\n"
        "def test_kit(amends_kit):\n    assert amends_kit.tools() == ('book', 'cancel', 'forget')\n",
        encoding="utf-8",
    )
    done = run_pytest(tmp_path, "-v", "-rs")
    for line in ("test_tool[book] PASSED", "test_tool[cancel] FAILED", "test_tool[forget] SKIPPED", "test_kit PASSED"):
        assert line in done.stdout, done.stdout + done.stderr
    assert "cancel is a read and changed the state" in done.stdout
    assert "to fix: declare another kind" in done.stdout


def test_the_plugin_says_what_is_missing(tmp_path: Path) -> None:
    program(tmp_path, HONEST + "del snapshot\n")
    (tmp_path / "test_tools.py").write_text("def test_tool(amends_tool): ...\n", encoding="utf-8")
    assert "no runtime is named; set amends_app = app:rt" in run_pytest(tmp_path).stdout
    assert "app has no function snapshot" in run_pytest(tmp_path, "-o", "amends_app=app:rt").stdout


def test_the_plugin_imports_nothing_in_a_suite_that_does_not_use_it(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_other():\n"
        "    assert [name for name in sys.modules if name.startswith('amends')] == ['amends', 'amends.pytest_plugin']\n"
        "    assert not {'pydantic', 'asyncio', 'sqlite3'} & set(sys.modules)\n",
        encoding="utf-8",
    )
    done = run_pytest(
        tmp_path,
        "-W",
        "error",
        "--strict-config",
        "--strict-markers",
        "-p",
        "no:logging",
        "-p",
        "no:unraisableexception",
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_finds_the_plugin_by_its_entry_point(tmp_path: Path) -> None:
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"][
        "pytest11"
    ]
    info = tmp_path / "site" / "amends_kit-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: amends-kit\nVersion: 1\n", encoding="utf-8")
    points = "".join(f"{name} = {place}\n" for name, place in declared.items())
    (info / "entry_points.txt").write_text(f"[pytest11]\n{points}", encoding="utf-8")
    found: Distribution = PathDistribution(info)
    assert [(one.group, one.name) for one in found.entry_points] == [("pytest11", "amends")]
    env = environment()
    env["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'site'}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--fixtures", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "amends_tool" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    "how, words", [("load", "--dist loadgroup"), pytest.param("loadgroup", "1 passed", marks=pytest.mark.rest)]
)
def test_two_workers_never_use_one_sandbox(how: str, words: str, tmp_path: Path) -> None:
    text = "@tool(kind='read')\ndef look() -> dict:\n    return load()\nrt = Runtime(tools=[look])\n"
    program(tmp_path, text, world=IN_MEMORY)
    (tmp_path / "test_tools.py").write_text("def test_tool(amends_tool): ...\n", encoding="utf-8")
    done = run_pytest(tmp_path, "-p", "xdist", "-n", "2", "--dist", how, "-o", "amends_app=app:rt")
    assert words in done.stdout, done.stdout + done.stderr
