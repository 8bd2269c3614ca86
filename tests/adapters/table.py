"""The table of shapes and adapters for the docs, made from what the test modules contain; see ``cells.py``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.adapters.cells import COLUMNS, ROWS, Absent, Cell, Cells, Column, Impossible, Row, Tested

HERE: Final = Path(__file__).resolve().parent
NAMED: Final = re.compile(r"(?:(?P<file>[\w/]+\.py)::)?(?P<test>test_\w+)(?:\[(?P<case>[^\]]+)\])?")
TESTED, IMPOSSIBLE, ABSENT = "✓", "△", "–"
LEGEND: Final = (
    f"{TESTED} tested; {IMPOSSIBLE} the framework makes it impossible, and a test shows that amends warns or refuses; "
    f"{ABSENT} does not apply."
)


@dataclass(frozen=True)
class Module:
    """What a test module contains, without importing it."""

    classes: dict[str, ast.ClassDef]
    functions: frozenset[str]
    texts: frozenset[str]
    """Every text in it: the names of cases are among them."""
    cells: Cells
    unreadable: tuple[int, ...]
    """Lines of ``CELLS`` that are no literal."""


@dataclass(frozen=True)
class Table:
    """The cells that were found, and what is wrong with them."""

    rows: Sequence[Row] = ROWS
    columns: Sequence[Column] = COLUMNS
    folder: Path = HERE

    def problems(self) -> Iterator[str]:
        """Yield what keeps the table from being true."""
        known = {row.name for row in self.rows}
        shapes = self._module("conformance").classes
        for row in self.rows:
            for shape, _, case in (one.partition(".") for one in row.shown_by):
                if shape not in shapes or (case and case not in _methods(shapes[shape])):
                    yield f"cells.py: {row.name!r} is shown by {shape}.{case}, which conformance.py does not have"
        for column in self.columns:
            module = self._module(column.modules[0])
            for line in module.unreadable:
                yield f"{column.modules[0]}.py:{line}: a cell is Tested, Impossible or Absent with texts, and nothing else"
            for name in module.cells.keys() - known:
                yield f"{column.title} has a cell {name!r}, and there is no such row"
            for row in self.rows:
                yield from self._wrong(column, row)

    def _wrong(self, column: Column, row: Row) -> Iterator[str]:
        where, inherited, said = f"{column.title}, {row.name!r}", self._inherits(column, row), self._said(column, row)
        if said is None and not inherited:
            yield f"{where}: no test class inherits it, and CELLS of {column.modules[0]}.py does not say why"
        if isinstance(said, Impossible | Absent):
            if inherited:
                yield f"{where}: {inherited} inherits it, and CELLS says that it cannot be"
            if not said.why:
                yield f"{where}: the reason is missing"
        if isinstance(said, Impossible) and not re.search(r"\d", said.framework):
            yield f"{where}: {said.framework!r} is no name and version of a framework"
        if isinstance(said, Tested | Impossible):
            if not said.tests:
                yield f"{where}: no test is named"
            for test in said.tests:
                if not self._exists(column, test):
                    yield f"{where}: {test} does not exist"

    def _inherits(self, column: Column, row: Row) -> str:
        """Return the first test class of the adapter that has every case of the shape; empty: none has."""
        for name in column.modules:
            module = self._module(name)
            for cls in module.classes.values():
                if row.shown_by and cls.name.startswith("Test") and self._has(cls, module, row):
                    return cls.name
        return ""

    def _has(self, cls: ast.ClassDef, module: Module, row: Row) -> bool:
        around = list(self._with_bases(cls, module))
        names, own = {one.name for one in around}, {name for one in around for name in _replaced(one)}
        parts = [one.partition(".") for one in row.shown_by]
        return all(shape in names and case not in own for shape, _, case in parts)

    def _with_bases(self, cls: ast.ClassDef, module: Module) -> Iterator[ast.ClassDef]:
        yield cls
        for base in (one.id for one in cls.bases if isinstance(one, ast.Name)):
            found = module.classes.get(base) or self._module("conformance").classes.get(base)
            if found is not None:
                yield from self._with_bases(found, module)

    def _exists(self, column: Column, test: str) -> bool:
        named = NAMED.fullmatch(test)
        if named is None:
            return False
        places = [named["file"].removesuffix(".py")] if named["file"] else column.modules
        modules = [self._module(place) for place in places]
        return any(named["test"] in one.functions and (named["case"] or "") in {*one.texts, ""} for one in modules)

    def _said(self, column: Column, row: Row) -> Cell | None:
        return self._module(column.modules[0]).cells.get(row.name)

    def _module(self, name: str) -> Module:
        return _read(self.folder / f"{name}.py")

    # ---- as text ------------------------------------------------------------------------------

    def marks(self) -> Iterator[tuple[str, ...]]:
        """Yield the rows of the table: the shape with what must hold, and a mark for each adapter."""
        for row in self.rows:
            yield f"**{row.name}**: {row.says}", *(self._mark(column, row) for column in self.columns)

    def _mark(self, column: Column, row: Row) -> str:
        said = self._said(column, row)
        return IMPOSSIBLE if isinstance(said, Impossible) else ABSENT if isinstance(said, Absent) else TESTED

    def reasons(self) -> Iterator[tuple[str, str, str]]:
        """Yield for each cell that is not tested: the shape, the adapters, and why."""
        for row in self.rows:
            why: dict[str, list[str]] = {}
            for column in self.columns:
                said = self._said(column, row)
                if isinstance(said, Impossible):
                    shown = ", ".join(f"`{test}`" for test in said.tests)
                    why.setdefault(f"{said.framework}: {said.why} Shown by {shown}.", []).append(column.title)
                if isinstance(said, Absent):
                    why.setdefault(said.why, []).append(column.title)
            for text, titles in why.items():
                yield row.name, "; ".join(titles), text


@cache
def _read(path: Path) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    cells, unreadable = _cells_in(tree)
    return Module(classes, frozenset(functions), frozenset(texts), cells, unreadable)


def _cells_in(tree: ast.Module) -> tuple[Cells, tuple[int, ...]]:
    """Return what ``CELLS`` says, and the lines of what is no literal in it."""
    cells: Cells = {}
    unreadable: list[int] = []
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if not any(isinstance(one, ast.Name) and one.id == "CELLS" for one in targets):
            continue
        given = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if not isinstance(given, ast.Dict):
            unreadable.append(node.lineno)
            continue
        for key, value in zip(given.keys, given.values, strict=True):
            cell = _cell(value)
            if cell is None or not isinstance(key, ast.Constant):
                unreadable.append(value.lineno)
            else:
                cells[str(key.value)] = cell
    return cells, tuple(unreadable)


def _cell(node: ast.expr) -> Cell | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        return None
    texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    kind = {"Tested": Tested, "Impossible": Impossible, "Absent": Absent}.get(node.func.id)
    if kind is None or len(texts) != len(node.args):
        return None
    try:
        made: Cell = kind(*texts)
    except TypeError:
        return None
    return made


def _methods(cls: ast.ClassDef) -> set[str]:
    return {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}


def _replaced(cls: ast.ClassDef) -> Iterable[str]:
    """Return the cases that a class takes out: ``test_... = None``."""
    for node in cls.body:
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
