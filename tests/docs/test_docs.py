"""The docs are true: every example runs and prints what the page says, every name is documented, nothing is stale."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import amends
from amends import errors, llm, states, testing
from amends.cli.app import VERBS, load
from amends.engine import outcomes
from amends.host import filters, settings
from amends.llm.prices import Prices
from amends.llm.requests import model_request, outcome
from amends.stores.sqlite import connection as file
from amends.testing.checkers import CHECKERS
from amends.tools.spec import ClassOptions, DeclaredCompensation
from scripts.addresses import page_of
from tests.adapters.conformance import FRAMEWORKS
from tests.cli.command import here
from tests.forked import run_python

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(r"^```(?P<lang>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
REASON = re.compile(r"<!-- not executed: (?P<why>.+?) -->\s*\Z")
NEEDS = re.compile(
    r"<!-- needs: ([\w.]+) -->"
)  # a framework, whose own warnings are its own matter; of a page, or of a part
PART = re.compile(r"^(?=## )", re.MULTILINE)
RAISES = re.compile(r"<!-- raises: (?P<name>\w+) -->\s*\Z")
FRAMEWORK = re.compile(
    r"^\s*(?:from|import) (?:agents|amends\.adapters|anthropic|fastmcp|lang\w+|mcp|openai|pydantic_ai)\b", re.MULTILINE
)
PAGE_S_MAX = 60
MARK = "\x1e"
"""Printed after every block, so that the output can be told apart."""

# Runs in the page's own process. Each block keeps its line numbers, so that a traceback points into the page.
RUNNER = """
import json, sys, traceback
with open(sys.argv[1], encoding="utf-8") as said:
    blocks = json.load(said)
page = sys.argv[2]
names = {"__name__": "__main__", "__file__": page}
for line, code, raises in blocks:
    try:
        exec(compile("\\n" * line + code, page, "exec"), names)
    except Exception as error:
        if type(error).__name__ != raises:
            raise
        print("Traceback (most recent call last):\\n  ...")
        print("".join(traceback.format_exception_only(error)), end="")
    else:
        assert not raises, f"the block at line {line} was to raise {raises}"
    print(MARK, flush=True)
""".replace("MARK", repr(MARK))


@dataclass(frozen=True, slots=True)
class Block:
    """One example of a page, with what the page says that it prints."""

    line: int
    code: str
    raises: str
    shown: str | None


def told_with(page: Path, need: str | None) -> str:
    """The page without its parts on other frameworks, which leave their lines behind."""
    head, *parts = PART.split(page.read_text(encoding="utf-8"))
    kept = [part if needs_of(part) in (None, need) else "\n" * part.count("\n") for part in parts]
    return "".join((head, *kept))


def needs_of(text: str) -> str | None:
    found = NEEDS.search(text)
    return found[1] if found else None


def blocks_of(page: Path, need: str | None = None) -> list[Block]:
    """The executed examples, in their order."""
    text = told_with(page, need)
    fences = list(FENCE.finditer(text))
    found = []
    for place, fence in enumerate(fences):
        before = text[: fence.start()]
        if fence["lang"] != "python" or REASON.search(before):
            continue
        after = fences[place + 1] if place + 1 < len(fences) else None
        told = (
            after is not None
            and after["lang"] == "text"
            and text[fence.end() : after.start()].strip() in ("", "<!-- end -->")
        )
        raises = RAISES.search(before)
        found.append(
            Block(
                line=before.count("\n") + 1,
                code=fence["body"],
                raises=raises["name"] if raises else "",
                shown=after["body"] if told and after is not None else None,
            )
        )
    return found


def outputs_of(page: Path, blocks: list[Block], folder: Path, need: str | None) -> list[str]:
    """What each block really prints: all of them in one process, in an empty folder.

    The process has imported what amends imports, or, for a page on a framework, the frameworks and amends.
    """
    (folder / "in").mkdir()
    script, said = folder / "in" / "page.py", folder / "page.json"
    script.write_text(RUNNER, encoding="utf-8")
    said.write_text(json.dumps([(b.line, b.code, b.raises) for b in blocks]), encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AMENDS_")}
    environ |= {
        "PYTHONPATH": f"{ROOT / 'src'}",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "PYTHONUTF8": "1",
        "COLUMNS": "200",
    }
    warnings = "ignore" if need else "error"
    has_framework = need or any(FRAMEWORK.search(block.code) for block in blocks)
    loaded = FRAMEWORKS if has_framework else "tests.docs.loaded"
    done = run_python(
        ["-W", warnings, str(script), str(said), str(page)],
        cwd=folder / "in", env=environ, timeout=PAGE_S_MAX, loaded=loaded,
    )  # fmt: skip
    outputs = done.stdout.split(f"{MARK}\n")
    where = f"{page.relative_to(ROOT)}, block {len(outputs)} of {len(blocks)}"
    assert done.returncode == 0, f"{where}: {done.stderr[-3000:]}\n{outputs[-1]}"
    return outputs[:-1]


def matches(shown: str, printed: str) -> bool:
    """Whether this was printed. ``…`` and ``...`` stand for anything in a line, alone for lines; a time for any time."""
    parts = []
    for line in shown.strip("\n").split("\n"):
        if line.strip() in ("…", "..."):
            parts.append(r"(?:.*\n)*?")
            continue
        escaped = re.escape(re.sub(r"\s+", " ", line.strip()))
        escaped = re.sub(r"(?:…|\\\.\\\.\\\.)", ".*", escaped)
        escaped = re.sub(r"\d+(?:\\\.\d+)?\\ m?s\b", r"[0-9.]+\\ m?s", escaped)
        parts.append(rf"{escaped}\n")
    plain = "".join(re.sub(r"\s+", " ", line.strip()) + "\n" for line in printed.strip("\n").split("\n"))
    return re.fullmatch("".join(parts), plain) is not None


def programs() -> list[tuple[Path, str | None]]:
    """Every page with code, and every part of one that needs a framework, where that is installed.

    The heavy ones are where `make test-adapters` runs.
    """
    found = []
    for page in PAGES:
        head, *parts = PART.split(page.read_text(encoding="utf-8"))
        needs = [needs_of(head), *(need for need in map(needs_of, parts) if need)]
        found += [(page, need) for need in needs if need is None or is_here(need)]
    return [(page, need) for page, need in found if blocks_of(page, need)]


def is_here(need: str) -> bool:
    return find_spec(need.partition(".")[0]) is not None and find_spec(need) is not None


def name_of(program: tuple[Path, str | None]) -> str:
    page, need = program
    name = page.relative_to(ROOT).as_posix()
    return f"{name}:{need}" if need and needs_of(PART.split(page.read_text(encoding="utf-8"))[0]) is None else name


@pytest.mark.parametrize("program", programs(), ids=name_of)
def test_the_examples_of_a_page_run_and_print_what_it_says(program: tuple[Path, str | None], tmp_path: Path) -> None:
    page, need = program
    blocks = blocks_of(page, need)
    for block, printed in zip(blocks, outputs_of(page, blocks, tmp_path, need), strict=True):
        if block.shown is not None:
            assert matches(block.shown, printed), f"{page.relative_to(ROOT)}:{block.line} prints\n{printed}"


def test_every_part_on_a_framework_is_run_where_that_is_installed() -> None:
    script = (ROOT / "scripts" / "test-adapters").read_text(encoding="utf-8")
    for page in PAGES:
        for part in PART.split(page.read_text(encoding="utf-8"))[1:]:
            need = needs_of(part)
            assert need is None or f"$part:{need}]" in script, (
                f"{page.relative_to(ROOT)}: nobody runs the part on {need}"
            )


# ---- generated parts and links -----------------------------------------------------------------


def test_generated_parts_and_links_are_right() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        if page.suffix == ".md":
            text = page.read_text(encoding="utf-8")
            waiting += [page.parent / link for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)", text)]
            waiting += [found for link in re.findall(r"\]\((https:[^)\s]+)\)", text) if (found := page_of(link))]
    lost = [str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md") if page.resolve() not in seen]
    assert not lost, f"no page points to {lost}"


def test_a_picture_in_a_page_is_there() -> None:
    for page in PAGES:
        for picture in re.findall(r"<img[^>]* src=\"([^\"]+)\"", page.read_text(encoding="utf-8")):
            assert (page_of(picture) or page.parent / picture).exists(), f"{page}: {picture}"


# ---- the address of the documentation ----------------------------------------------------------


def named_pages() -> list[tuple[str, str]]:
    """Every page that the source names by ``docs_page``, and every address of one in its texts, with its file."""
    found = []
    for path in sorted((ROOT / "src" / "amends").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="docs_page"), args=[ast.Constant(value=str(page)), *_]):
                    found.append((path.name, page))
                case ast.Constant(value=str(text)) if errors.DOCS in text and text != errors.DOCS:
                    found += [
                        (path.name, f"{page.strip('/')}.md") for page in re.findall(rf"{errors.DOCS}([\w/-]+)", text)
                    ]
    return found


def test_every_page_that_amends_names_is_there() -> None:
    pages = named_pages()
    assert len(pages) > 6
    assert [(file, page) for file, page in pages if not (DOCS / page).is_file()] == []


def docstring_node(node: ast.AST) -> ast.expr | None:
    """The docstring of a module, a class or a function: contributors read it, in a clone."""
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    return first.value if isinstance(first, ast.Expr) else None


def test_a_message_names_an_address_and_not_a_path_of_a_clone() -> None:
    paths = []
    for path in sorted((ROOT / "src" / "amends").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        notes = {id(note) for note in map(docstring_node, ast.walk(tree)) if note is not None}
        paths += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value[:80]}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and id(node) not in notes
            and isinstance(node.value, str) and re.search(r"\bdocs/[\w/-]+\.md", node.value)
        ]  # fmt: skip
    assert paths == [], "say docs_page(...): nobody who installed amends has a clone"


def test_metadata_readme_and_errors_name_one_address() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert metadata["Documentation"] == errors.DOCS
    assert f"({errors.DOCS}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert errors.docs_page("reference/errors.md", "busy") == f"{errors.DOCS}reference/errors/#busy"


# ---- nothing undocumented ------------------------------------------------------------------------


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows_of(name: str) -> set[str]:
    """What stands, as code, in the first cell of a row, or in a heading."""
    text = text_of(name)
    cells = re.findall(r"^\|\s*(.+?)\s*\|", text, re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {code.partition("(")[0] for found in (*cells, *heads) for code in re.findall(r"`([^`]+)`", found)}


def error_classes() -> list[type[errors.Error]]:
    return [
        value for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.Error) and not value.__name__.startswith("_")
    ]  # fmt: skip


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_every_error_says_when_it_comes_what_it_carries_and_what_to_do(error: type[errors.Error]) -> None:
    part = re.search(
        rf"^### `{error.__name__}`\n(.*?)(?=^##|\Z)", text_of("reference/errors.md"), re.DOTALL | re.MULTILINE
    )
    assert part is not None, f"docs/reference/errors.md has no part on {error.__name__}"
    own = set(inspect.signature(error.__init__).parameters) - {"self", "message", "hint", "run_id", "args", "kwargs"}
    missing = [name for name in own if f".{name}`" not in part[1]]
    assert not missing or error is errors.Error, f"{error.__name__} does not document {missing}"
    assert len(part[1].split()) > 12, f"{error.__name__}: when does it come, and what is to be done?"


@pytest.mark.parametrize("page", ["reference/states.md"])
def test_every_state_and_reason_is_documented(page: str) -> None:
    rows = rows_of(page)
    wanted = {*states.CALL_STATES, *states.RUN_STATES, *states.HoldReason.__args__, *states.Goal.__args__}  # type: ignore[attr-defined]
    assert wanted <= rows, f"{page} does not have {sorted(wanted - rows)}"


def verbs() -> set[str]:
    found: set[str] = set()
    for name in VERBS:
        command = load(name)
        below = getattr(command, "commands", None)
        if not command.hidden:
            found |= {f"amends {name}"} if below is None else {f"amends {name} {verb}" for verb in below}
    return found


def test_every_verb_of_the_command_line_is_documented(tmp_path: Path) -> None:
    heads = rows_of("reference/cli.md")
    assert verbs() <= heads, f"docs/reference/cli.md does not have {sorted(verbs() - heads)}"
    text = text_of("reference/cli.md")
    for verb in verbs():
        shown = here(*verb.split()[1:], "--help", cwd=tmp_path).stdout
        assert shown, verb
        part = text.partition(f"## `{verb}`\n")[2].partition("\n## ")[0]
        missing = [option for option in re.findall(r"(--[a-z]+)", shown) if option != "--help" and option not in part]
        assert not missing, f"{verb} does not document {missing}"


@cache
def options() -> dict[str, set[str]]:
    """Return the options of each verb; of a group also those that come before its verb."""
    found: dict[str, set[str]] = {}
    for name in VERBS:
        command = load(name)
        below = {f"{name} {verb}": one for verb, one in getattr(command, "commands", {}).items()}
        for verb, one in {name: command, **below}.items():
            found[verb] = {
                "--help",
                *(option for param in one.params for option in (*param.opts, *param.secondary_opts)),
            }
    return found


def commands_of(page: Path) -> list[tuple[str, str]]:
    """Return the verb, and what follows it, of each command of amends that a page shows in a block or names in its text."""
    text = page.read_text(encoding="utf-8")
    lines = [line for fence in FENCE.finditer(text) for line in fence["body"].replace("\\\n", " ").splitlines()]
    lines += [span.replace("\n", " ") for span in re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", FENCE.sub("", text))]
    told = (
        re.match(r"(?:\$ |until |(?:export )?\w+=(?:\$\(|\"[^\"]*\" |\S+ ))*amends ([a-z]+\b.*)", line)
        for line in lines
    )
    commands = [re.split(r" \| | && |#", found[1])[0].split() for found in told if found]
    groups = {verb.split()[0] for verb in options() if " " in verb}
    return [
        (" ".join(words[: 2 if words[0] in groups and words[1:2] and words[1][0] != "-" else 1]), " ".join(words[1:]))
        for words in commands
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.stem)
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    known = options()
    for verb, rest in commands_of(page):
        assert verb in known, f"{page.name} has amends {verb}"
        wrong = set(re.findall(r"(?<![\w-])--[a-z-]+", rest)) - known[verb]
        assert not wrong, f"{page.name}: amends {verb} has no {sorted(wrong)}"


def test_every_setting_is_documented_with_its_variable_and_default() -> None:
    text = text_of("reference/settings.md")
    for name, default in settings.DEFAULTS.items():
        variable = "none" if name in settings.TABLES else f"`AMENDS_{name.upper()}`"
        row = re.search(rf"^\| `{name}` \| {variable} \| (.+?) \|", text, re.MULTILINE)
        assert row is not None, f"{name} is undocumented"
        if name != "url":
            shown = "none" if default is None else f"`{str(default).lower()}`"
            assert row[1] == shown, f"the default of {name} is {shown}"


def test_every_option_of_a_tool_is_documented() -> None:
    rows = rows_of("reference/tool-options.md")
    wanted = set(ClassOptions.__annotations__)
    twin = {f"compensate.{name}" for name in DeclaredCompensation.__dataclass_fields__ if name != "fn"}
    for more in (wanted, twin, {"probe.settle", "guard", "list_effects", "with_options"}):
        assert more <= rows, f"docs/reference/tool-options.md does not have {sorted(more - rows)}"
    retry = set(amends.Retry.__dataclass_fields__)
    assert {f"Retry.{name}" for name in retry} <= rows


SURFACES = ("Runtime", "AsyncRuntime", "Run", "AsyncRun", "Attempt", "AsyncAttempt")


def public(cls: type[Any]) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")} - {"is_async", "direct"}


def test_every_public_name_is_documented() -> None:
    text = text_of("reference/api.md")
    rows = rows_of("reference/api.md")
    assert set(amends.__all__) <= rows, sorted(set(amends.__all__) - rows)
    for name in SURFACES:
        part = text.partition(f"### `{name.removeprefix('Async')}`\n")[2].partition("\n##")[0]
        missing = [one for one in public(getattr(amends, name)) if f"`{one}" not in part]
        assert not missing, f"{name} does not document {missing}"


def test_every_name_for_tests_is_documented() -> None:
    rows = rows_of("reference/api.md")
    wanted = {name for name in getattr(testing, "__all__", ()) if not name.startswith("_")}
    assert wanted <= rows, f"docs/reference/api.md does not have {sorted(wanted - rows)}"


def test_every_name_for_models_and_part_of_their_record_is_documented() -> None:
    asked = model_request("model:openai", "responses", {"model": "m"}, Prices(None, provider="openai", url=""))
    written = {*asked.args, *outcome(asked, None, complete=False).result}
    rows = rows_of("reference/api.md")
    assert {*llm.__all__, *written} <= rows, f"docs/reference/api.md does not have {sorted(written - rows)}"


def test_every_name_of_an_adapter_is_documented() -> None:
    """Those that say what is public. Read, not imported: each needs its framework."""
    text = text_of("reference/api.md")
    folder = ROOT / "src" / "amends" / "adapters"
    for path in [*folder.glob("[!_]*.py"), *folder.glob("*/__init__.py")]:
        name = path.parent.name if path.name == "__init__.py" else path.stem
        part = text.partition(f"### `amends.adapters.{name}`\n")[2].partition("\n##")[0]
        said = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
        names = [ast.literal_eval(node.value) for node in said if ast.unparse(node.targets[0]) == "__all__"]
        missing = [one for one in [*names, ()][0] if f"| `{one}` |" not in part]
        assert not missing, f"docs/reference/api.md does not have {missing} of amends.adapters.{name}"


def test_every_field_of_a_filter_is_documented() -> None:
    rows = rows_of("reference/filters.md")
    assert {*filters.RUN_FIELDS, *filters.CALL_FIELDS, *filters.EVENT_FIELDS} <= rows


def test_every_checker_is_named_where_the_promises_are() -> None:
    text = text_of("explanation/promises.md") + text_of("explanation/simulator.md")
    missing = [name for name in CHECKERS if f"`{name}`" not in text]
    assert not missing


def test_what_an_exception_says_is_listed_in_full() -> None:
    text = text_of("reference/errors-of-tools.md")
    missing = [
        name
        for name in (*outcomes.NEVER_SENT, *outcomes.MAYBE_SENT)
        if f"`{name.removeprefix('builtins.')}`" not in text
    ]
    assert not missing


def test_the_columns_of_the_ledger_and_its_events_are_documented() -> None:
    schema = (ROOT / "src/amends/stores/migrations/sqlite/0001_ledger.sql").read_text(encoding="utf-8")
    text = text_of("reference/ledger.md")
    for table in re.findall(r"create table (\w+)", schema):
        assert f"`{table}`" in text, f"the table {table} is undocumented"
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/amends/ledger").glob("*.py"))
    written = set(re.findall(r"write_event\(\s*\w+,\s*\"([a-z ]+)\"", sources))
    missing = [what for what in written if f"`{what}`" not in text]
    assert written, "the store writes events"
    assert not missing, f"docs/reference/ledger.md does not have the events {missing}"


def test_every_module_has_its_place_in_the_architecture() -> None:
    text = text_of("explanation/architecture.md")
    found = {path.stem for path in (ROOT / "src/amends").glob("[!_]*.py")}
    found |= {f"{path.parent.name}/" for path in (ROOT / "src/amends").glob("*/__init__.py")}
    missing = sorted(name for name in found if f"`{name}`" not in text)
    assert not missing, f"docs/explanation/architecture.md does not name {missing}"


def test_the_limits_of_sqlite_are_documented_as_they_are() -> None:
    text = text_of("reference/sqlite.md")
    assert ".".join(map(str, file.SQLITE_MIN[:2])) in text
    missing = [kind for kind in file.NETWORK if kind not in text]
    assert not missing


# ---- house words -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "AGENTS.md"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_one_word_per_idea(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    found = re.findall(r"\b(?:steps?|jobs?|workflows?|effect ids?)\b", prose, re.IGNORECASE)
    assert not found, f"{page.name} says {sorted(set(found))}; the words are in docs/reference/glossary.md"
