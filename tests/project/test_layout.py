"""The shape of src/amends, kept by reading the source: who may import whom, and which words.

Every import counts: at the top, inside a function, under TYPE_CHECKING. A type that points upward is a dependency too.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "amends"
PAGE = "docs/explanation/architecture.md"

# ---- the rule, as a picture ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the picture: its folders and root modules, the layers it may import, and why."""

    members: tuple[str, ...]
    may_import: tuple[str, ...]
    why: str


WORDS_LAYER = ("errors", "states", "model", "budgets", "report", "visible", "places", "encoding", "audit.standalone")
LAYERS: dict[str, Layer] = {
    "words": Layer(WORDS_LAYER, (), "what everything else is said in depends on nothing"),
    "tools": Layer(("tools",), ("words",), "a declaration is data: whoever performs it comes later"),
    "ledger": Layer(("ledger",), ("words", "tools"), "ledger/ decides what a transaction does and performs no IO"),
    "engine": Layer(
        ("engine",),
        ("words", "tools", "ledger"),
        "engine/ performs nothing: await an operation object instead, and let a driver perform it",
    ),
    "drivers": Layer(
        ("drivers", "idempotency"),
        ("words", "tools", "ledger", "engine"),
        "a driver performs operations for any engine and any store: it may not know which store",
    ),
    "stores": Layer(
        ("stores",),
        ("words", "tools", "ledger", "drivers"),
        "a store keeps the record and runs no tool: engine and store meet in host/ only",
    ),
    "host": Layer(
        ("host", "links", "signing", "notify"),
        ("words", "tools", "ledger", "engine", "drivers", "stores"),
        "host/ is what one process brings; it knows no verb of a person",
    ),
    "verbs": Layer(
        ("people", "audit", "replay", "run", "telemetry"),
        ("words", "tools", "ledger", "engine", "drivers", "stores", "host"),
        "the verbs stand on the host; the surface puts them together",
    ),
    "surface": Layer(
        ("", "runtime", "health", "worker", "secrets", "testing", "pytest_plugin"),
        ("words", "tools", "ledger", "engine", "drivers", "stores", "host", "verbs"),
        "the surface serves every edge, so it may know none of them",
    ),
}
EDGES = ("llm", "adapters", "cli", "serve", "client", "gateway")
PUBLIC = (
    "",
    "errors",
    "idempotency",
    "links",
    "notify",
    "places",
    "secrets",
    "signing",
    "telemetry",
    "testing",
    "visible",
    "worker",
)
SHARED = frozenset({"adapters.durable_runs", "adapters.mcp_runs"})
"""What adapters share: of several frameworks for one protocol, of several durable engines. It knows none of them."""
EDGE_WHY = "an edge stands on amends and its public modules alone, so that each can be removed"

# Third-party packages, by module; an edge brings its own as an extra, the CLI's are always there.
THIRD_PARTY: dict[str, frozenset[str]] = {
    "encoding": frozenset({"pydantic", "pydantic_core"}),
    "tools": frozenset({"pydantic", "pydantic_core"}),
    "stores.postgres": frozenset({"psycopg", "psycopg_pool"}),
    "stores.mysql": frozenset({"pymysql"}),
    "health": frozenset({"opentelemetry"}),
    "telemetry": frozenset({"opentelemetry"}),
    "cli": frozenset({"typer", "click", "rich"}),
    "pytest_plugin": frozenset({"pytest"}),  # which imports it
}

# What engine/ may not have: every clock, die, thread, file, process and database of the standard library.
PERFORMING = frozenset(
    """
    asyncio concurrent ctypes fcntl glob http io logging mmap multiprocessing os pathlib queue random sched secrets
    select selectors shelve shutil signal socket socketserver sqlite3 ssl subprocess tempfile threading time urllib
    """.split()  # noqa: SIM905 (a list of words reads better as words)
)
PERFORMING_CALLS = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "open", "print", "input", "sleep"})

# ---- the words ----------------------------------------------------------------------------

WORDS = frozenset({"step", "task", "job", "action", "workflow", "effect id"})
FOREIGN_WORDS = frozenset(
    {"create_task", "current_task", "execute_workflow", "workflow_interceptor_class"}
)  # names of asyncio and of Temporal
EMPTY_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "base", "manager", "core", "misc"})


# ---- reading the source -------------------------------------------------------------------


def modules() -> dict[str, ast.Module]:
    """Every module of src/amends by its name below ``amends``; "" is the package itself."""
    return {_name(path): parsed(path) for path in sorted(SRC.rglob("*.py"))}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    if parts == ("__main__",):
        return "cli.__main__"  # `python -m amends` is the CLI
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str | None:
    """The layer or edge that a module belongs to; None where the picture does not have it."""
    member, *below = module.split(".")
    if member in EDGES:
        return member
    # A folder inside a folder may be a member of its own.
    found = [(member, *below[:1]), (member,)]
    return next((name for parts in found for name, layer in LAYERS.items() if ".".join(parts) in layer.members), None)


def imports(tree: ast.Module, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of whatever a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{origin}.{alias.name}"
                is_module = full.startswith("amends.") and full.removeprefix("amends.") in known
                yield node.lineno, full if is_module else origin


def broken_imports(module: str, tree: ast.Module, known: frozenset[str] = frozenset()) -> list[str]:
    """Each import that the picture does not allow, with the reason."""
    layer = layer_of(module)
    shown = f"amends.{module}".rstrip(".")
    if layer is None:
        return [f"{shown}: in no layer of the picture; give it one in LAYERS ({PAGE})"]
    found = dict.fromkeys(imports(tree, known))
    return [
        f"{shown}:{line} imports {target}: {reason}; see {PAGE}"
        for line, target in found
        if (reason := _refusal(module, layer, target))
    ]


def _refusal(module: str, layer: str, target: str) -> str | None:
    top, _, below = target.partition(".")
    if top == "":
        return "a relative import hides where it points; say it in full"
    if top == "amends":
        return _refusal_edge(module, below) if layer in EDGES else _refusal_inside(layer, below)
    if layer == "engine" and top in PERFORMING:
        return LAYERS[layer].why
    if top in sys.stdlib_module_names or (layer in EDGES and layer != "cli" and module not in SHARED):
        return None
    parts = module.split(".")
    prefixes = [".".join(parts[: n + 1]) for n in range(len(parts))]
    allowed = frozenset[str]().union(*(THIRD_PARTY.get(prefix, frozenset()) for prefix in prefixes))
    return None if top in allowed else "this module uses the standard library only (THIRD_PARTY lists who may use more)"


def _refusal_inside(layer: str, below: str) -> str | None:
    target_layer = layer_of(below)
    if target_layer == layer or target_layer in LAYERS[layer].may_import:
        return None
    return LAYERS[layer].why


# The command that starts the service imports it: an edge that is served has to be started by somebody, and the program
# that people know is `amends`. Nothing else of the CLI may, so that the CLI works without the extra.
STARTS: dict[str, str] = {"cli.serve": "serve", "cli.live_shop": "serve", "cli.gateway": "gateway"}


def _refusal_edge(module: str, below: str) -> str | None:
    own = module.split(".")
    if below in PUBLIC or below.partition(".")[0] == STARTS.get(module):
        return None
    if own[0] == "adapters" and below in SHARED:
        return None
    # One framework's adapter is an edge of its own: adapters.a may not see adapters.b.
    mine = ".".join(own[:2]) if own[0] == "adapters" and len(own) > 1 else own[0]
    return None if below == mine or below.startswith(mine + ".") or own[0] == below else EDGE_WHY


# ---- the rule holds -----------------------------------------------------------------------


def test_every_import_points_up_the_picture() -> None:
    trees = modules()
    known = frozenset(trees)
    # `from amends import tool` in an edge means the name that the package exports, not the module behind it.
    exported = _bound_names(trees.get("", ast.Module([], [])))
    problems: list[str] = []
    for name, tree in trees.items():
        problems += broken_imports(name, tree, known - exported if layer_of(name) in EDGES else known)
    assert problems == [], "\n" + "\n".join(problems)


def _bound_names(tree: ast.Module) -> frozenset[str]:
    names = {alias.asname or alias.name for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    return frozenset(names)


@pytest.mark.parametrize(
    "module, source, is_lawful",
    [
        ("engine.call", "import asyncio", False),
        ("engine.call", "def f():\n    import time", False),
        ("engine.call", "from concurrent.futures import Future", False),
        ("engine.call", "from amends.stores.memory import Memory", False),
        ("engine.call", "if TYPE_CHECKING:\n    from amends.runtime import Run", False),
        ("engine.call", "from amends import Runtime", False),
        ("engine.call", "from ..runtime import Run", False),
        ("engine.call", "import pydantic", False),
        (
            "engine.call",
            "from amends.ledger.world import Invoke\nfrom amends.engine.law import Law\nimport hashlib",
            True,
        ),
        ("states", "from amends.tools.tool import Tool", False),
        ("model", "from amends.states import CallState", True),
        ("model", "import pydantic", False),
        ("encoding.canonical", "import pydantic", True),
        ("stores.memory", "from amends.engine.call import guarded", False),
        ("stores.sqlite.store", "import sqlite3\nfrom amends.stores.sql import Transaction", True),
        ("stores.sqlite.store", "import psycopg", False),
        ("drivers.blocking", "from amends.stores.memory import Memory", False),
        ("runtime", "from amends.cli import main", False),
        ("runtime", "import typer", False),
        ("runtime", "from amends.stores.sqlite.store import connect\nimport threading", True),
        ("cli.main", "from amends import Runtime\nfrom amends.errors import Busy\nimport typer", True),
        ("cli.main", "from amends.cli.demo import demo", True),
        ("cli.main", "from amends.engine.call import guarded", False),
        ("cli.main", "from amends.serve import app", False),
        ("cli.serve", "from amends.serve import app, server", True),
        ("cli.live_shop", "from amends.serve import app, server", True),
        ("cli.demo", "from amends.serve import app, server", False),
        ("cli.serve", "from amends.adapters.mcp import guarded", False),
        ("client.runs", "import httpx\nfrom amends import Report\nfrom amends.client.flows import Flow", True),
        ("client.runs", "from amends.serve.routes import ROUTES", False),
        ("serve.runs", "from amends.client import Client", False),
        ("cli.main", "import httpx", False),
        ("adapters.langgraph", "from amends.adapters.openai import guarded", False),
        ("adapters.langgraph", "from amends.adapters import openai", False),
        ("adapters.langgraph", "import langgraph\nfrom amends import Runtime", True),
        ("adapters.langgraph", "from amends.adapters import agents_run_by", True),
        ("adapters.fastmcp", "import fastmcp\nfrom amends.adapters import mcp_runs", True),
        ("adapters.mcp_runs", "import json\nimport amends", True),
        ("adapters.mcp_runs", "import mcp", False),
        ("adapters.temporal.plugin", "import temporalio\nfrom amends.adapters.durable_runs import DurableRuns", True),
        ("adapters.temporal.plugin", "from amends.adapters.restate import guarded", False),
        ("adapters.durable_runs", "import temporalio", False),
        ("cli.main", "from amends.adapters import mcp_runs", False),
        ("leftover", "import json", False),
    ],
)
def test_the_import_rule_sees_what_it_forbids(module: str, source: str, is_lawful: bool) -> None:
    known = frozenset({"runtime", "stores.memory", "engine.call", "adapters.openai", "adapters.mcp_runs"})
    assert is_lawful == (broken_imports(module, ast.parse(source), known) == [])


def test_importing_amends_leaves_the_cli_packages_alone() -> None:
    """A library user pays for neither typer nor rich."""
    code = "import sys, amends; print(*sorted({'typer', 'click', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


# ---- engine/ ------------------------------------------------------------------------------


def broken_engine_rules(tree: ast.Module) -> Iterator[str]:
    """Where a flow performs something itself, hides a type, or would act after a crash."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in PERFORMING_CALLS:
                yield f"{node.lineno}: {name}() asks the world; await an operation object instead"
            case ast.ImportFrom(module="typing", names=names) if any(alias.name == "cast" for alias in names):
                yield f"{node.lineno}: no cast in engine/: a wrong type there is a wrong effect"
            case ast.Attribute(value=ast.Name(id="typing"), attr="cast"):
                yield f"{node.lineno}: no cast in engine/: a wrong type there is a wrong effect"
            case ast.ExceptHandler(type=None) | ast.ExceptHandler(type=ast.Name(id="BaseException")):
                yield f"{node.lineno}: a crash and a cancellation must pass: except Exception only"
            case ast.Try(finalbody=final) if any(isinstance(n, ast.Await) for part in final for n in ast.walk(part)):
                yield f"{node.lineno}: a flow that was stopped must emit nothing more: no await in finally"


def test_engine_performs_nothing() -> None:
    problems = [
        f"amends.{name}:{problem}; see {PAGE}"
        for name, tree in modules().items()
        if layer_of(name) == "engine"
        for problem in broken_engine_rules(tree)
    ]
    assert problems == [], "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    "source",
    [
        "datetime.now(UTC)",
        "print('x')",
        "from typing import cast",
        "import typing\ntyping.cast(int, 1)",
        "try: ...\nexcept BaseException: ...",
        "try: ...\nexcept: ...",
        "async def f():\n try: ...\n finally:\n  await op",
    ],
)
def test_the_engine_rules_see_what_they_forbid(source: str) -> None:
    assert len(list(broken_engine_rules(ast.parse(source)))) == 1


# ---- words --------------------------------------------------------------------------------


def words_of(name: str) -> list[str]:
    """The words in an identifier of either spelling, singular."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", " ", name)
    words = [word.lower().removesuffix("s") for word in spaced.split()]
    return [*words, *(f"{a} {b}" for a, b in pairwise(words))]


def test_one_word_per_idea() -> None:
    problems = []
    for module, tree in modules().items():
        names = dict.fromkeys(module.split("."), 1)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.setdefault(node.name, node.lineno)
        problems += [
            f"amends.{module}:{line} {name}: {', '.join(sorted(bad))} means nothing here; say tool, run, call, attempt"
            for name, line in names.items()
            if name not in FOREIGN_WORDS and (bad := WORDS.intersection(words_of(name)))
        ]
    assert problems == [], "\n" + "\n".join(problems)


@pytest.mark.parametrize("name", ["Workflow", "run_job", "JobState", "next_steps", "_HTTPAction", "effect_id"])
def test_the_word_rule_sees_what_it_forbids(name: str) -> None:
    assert WORDS.intersection(words_of(name))


@pytest.mark.parametrize("name", ["transaction", "jobless", "stepwise", "multitasking", "reaction"])
def test_the_word_rule_forbids_words_not_letters(name: str) -> None:
    assert not WORDS.intersection(words_of(name))


def test_every_module_is_named_after_what_it_is() -> None:
    empty = [name for name in modules() if EMPTY_NAMES.intersection(name.split("."))]
    assert empty == [], "a name like utils says nothing: name the module after the thing in it"
