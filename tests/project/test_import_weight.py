"""What a program loads: a first blocking call needs neither asyncio nor pydantic, nor what people do with a ledger.

No test here measures time. Each lists what must stay unloaded, so that the weight of an import does not come back
unnoticed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"

# Of the standard library and of others: each takes longer than what a first call does with it.
FOREIGN = (
    *(
        "argparse",
        "asyncio",
        "concurrent",
        "difflib",
        "email",
        "html",
        "http",
        "httpx",
        "multiprocessing",
        "shutil",
        "socket",
    ),
    *("ssl", "subprocess", "tempfile", "zipfile", "importlib.metadata", "importlib.resources", "typing_extensions"),
    *("annotated_types", "click", "opentelemetry", "pydantic", "pydantic_core", "psycopg", "pymysql", "rich", "typer"),
)
# Of amends: whole folders, and what is left of a folder that a first call needs.
OWN = (
    *("adapters", "audit", "cli", "client", "llm", "people", "testing", "notify", "signing", "telemetry", "worker"),
    *("drivers.event_loop", "host.encryption", "host.joined", "host.listing", "host.maintenance", "host.performing"),
    *("host.tools",),
    *("engine.joined", "engine.model_answers", "engine.model_plans", "engine.recovery", "engine.turns"),
    *("replay.answers", "replay.comparison", "replay.driver", "replay.forks", "replay.record", "replay.run"),
    *("stores.cancellation", "stores.memory", "stores.mysql", "stores.postgres", "tools.rule_checks"),
)
# What opening a ledger needs, and importing does not.
LEDGER = ("sqlite3", "tomllib", "amends.stores.sql", "amends.stores.sqlite", "amends.ledger.dispatch")
UNNEEDED = (*FOREIGN, *(f"amends.{name}" for name in OWN))

IMPORT = """
from amends import Runtime, tool
"""
CALL = f"""{IMPORT}
@tool(kind="pivot")
def charge(order: str, cents: int, paid: bool, rate: float = 1.0) -> str:
    return order

with Runtime("sqlite:///ledger.db", tools=[charge]) as rt:
    with rt.run("first"):
        assert charge("o-1", 500, paid=True) == "o-1"
    # MORE
"""


def loaded(code: str, folder: Path) -> set[str]:
    """Return the modules that a new interpreter has after this code; it finds no settings of ours."""
    code = f"import sys; sys.path[:0] = {[str(SRC), *sys.path]!r}\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def among(modules: set[str], unneeded: tuple[str, ...]) -> list[str]:
    """Return which of the modules are these, or below them."""
    return sorted(one for one in modules if any(one == name or one.startswith(f"{name}.") for name in unneeded))


def test_importing_what_a_first_call_needs_loads_nothing_else(tmp_path: Path) -> None:
    found = loaded(IMPORT, tmp_path)
    assert "amends.runtime" in found
    assert among(found, (*UNNEEDED, *LEDGER)) == []


def test_importing_compiles_no_pattern_of_ours(tmp_path: Path) -> None:
    code = f"""
import re
import sys
made, compile_ = [], re.compile
def noted(*given):
    made.append(sys._getframe(1).f_globals["__name__"])
    return compile_(*given)
re.compile = noted
{IMPORT}
assert "logging" in made, made
assert not [name for name in made if name.startswith("amends")], made
"""
    loaded(code, tmp_path)


def test_a_first_blocking_call_on_sqlite_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    found = loaded(CALL, tmp_path)
    assert {"sqlite3", "amends.engine.call", "amends.stores.sqlite.store"} <= found
    assert among(found, UNNEEDED) == []


@pytest.mark.parametrize(
    "more, module",
    [
        ("rt.verify()", "amends.audit.verify"),
        ("rt.export('first')", "amends.audit.bundles"),
        ("list(rt.runs())", "amends.host.listing"),
        ("list(rt.approvals())", "amends.people.approvals"),
        ("rt.budgets()", "amends.people.budgets"),
        ("list(rt.doubts())", "amends.people.doubts"),
        ("rt.plan_rollback('first')", "amends.people.rollback"),
        ("rt.recover()", "amends.people.approvals"),
        ("rt.replay('first', lambda: charge('o-1', 500, paid=True))", "amends.replay.driver"),
        ("rt.schemas()", "pydantic"),
        ("Runtime('memory:', rules=[__import__('amends').Rule(tool='charge')])", "amends.tools.rule_checks"),
    ],
)
def test_what_is_loaded_on_first_use_is_loaded_then(tmp_path: Path, more: str, module: str) -> None:
    """The lists above can fail, and the names behind each verb are right."""
    found = loaded(CALL.replace("# MORE", more), tmp_path)
    assert module in found
    assert among({module}, UNNEEDED) == [module]


# ---- What a type checker sees is what is imported


def test_a_module_imported_on_use_is_the_one_that_type_checkers_see() -> None:
    seen = 0
    for path in sorted((SRC / "amends").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        told = dict(told_to_type_checkers(tree))
        for name, module in imported_on_use(tree):
            seen += 1
            assert told.get(name) == module, f"{path}: {name} is {module}, but type checkers are told {told.get(name)}"
            assert module == "concurrent.futures" or module in sys.stdlib_module_names or is_source(module), module
    assert seen > 30


def told_to_type_checkers(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and module of each import under ``if TYPE_CHECKING``."""
    for block in tree.body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for node in block.body:
                for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                    yield alias.asname or alias.name, prefix + alias.name


def imported_on_use(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and module of each argument of ``import_on_use``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_on_use":
            for said in node.keywords:
                assert said.arg is not None
                yield said.arg, ast.literal_eval(said.value)


def is_source(module: str) -> bool:
    place = SRC.joinpath(*module.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()
