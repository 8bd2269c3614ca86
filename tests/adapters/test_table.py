"""The table of shapes in the docs cannot say what no test shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.cells import Column, Row
from tests.adapters.table import ABSENT, IMPOSSIBLE, TESTED, Table

ROWS = (Row("once", "Once.", ("Conformance.test_once",)), Row("stop", "Stop.", ("Stopped",)), Row("own", "Own."))
CONFORMANCE = """
class Shape: ...
class Conformance(Shape):
    def test_once(self): ...
class Stopped(Shape):
    def test_stop(self): ...
"""
MODULE = """
class Base(Conformance): ...
class TestIt(Base): ...
def test_own(): ...
async def test_other(case="one"): ...
"""
OWN = '"own": Tested("test_own")'
STOP = '"stop": Impossible("it 1.2", "It has none.", "test_other[one]")'


def table(folder: Path, *cells: str, module: str = MODULE, rows: tuple[Row, ...] = ROWS) -> Table:
    (folder / "conformance.py").write_text(CONFORMANCE, encoding="utf-8")
    (folder / "test_it.py").write_text(f"CELLS: Cells = {{{', '.join(cells)}}}\n{module}", encoding="utf-8")
    return Table(rows, (Column("It", "it.md", ("test_it",)),), folder)


def test_the_real_table_is_whole() -> None:
    assert list(Table().problems()) == []


def test_cells_come_from_inherited_shapes_and_from_what_is_said(tmp_path: Path) -> None:
    made = table(tmp_path, OWN, STOP)
    assert list(made.problems()) == []
    assert list(made.marks()) == [
        ("**once**: Once.", TESTED),
        ("**stop**: Stop.", IMPOSSIBLE),
        ("**own**: Own.", TESTED),
    ]
    assert list(made.reasons()) == [("stop", "It", "it 1.2: It has none. Shown by `test_other[one]`.")]


def test_a_shape_may_not_apply(tmp_path: Path) -> None:
    made = table(tmp_path, OWN, '"stop": Absent("It cannot " "be stopped.")')
    assert list(made.problems()) == []
    assert [marks[1] for marks in made.marks()] == [TESTED, ABSENT, TESTED]
    assert list(made.reasons()) == [("stop", "It", "It cannot be stopped.")]


@pytest.mark.parametrize(
    "cells, problem",
    [
        ([OWN], "'stop': no test class inherits it"),
        ([STOP, '"own": Tested("test_gone")'], "test_gone does not exist"),
        ([STOP, '"own": Tested("TestIt::test_own")'], "does not exist"),
        ([STOP, '"own": Tested("test_other[two]")'], "test_other[two] does not exist"),
        ([STOP, '"own": Tested()'], "no test is named"),
        ([OWN, '"stop": Impossible("it 1.2", "It has none.")'], "no test is named"),
        ([OWN, '"stop": Impossible("it", "It has none.", "test_own")'], "no name and version"),
        ([OWN, '"stop": Absent("")'], "the reason is missing"),
        (
            [OWN, STOP, '"once": Absent("It does not do anything.")'],
            "TestIt inherits it, and CELLS says that it cannot",
        ),
        ([OWN, STOP, '"twice": Absent("There is no such shape.")'], "there is no such row"),
        ([OWN, STOP, '"once": Tested(*others)'], "test_it.py:1: a cell is Tested, Impossible or Absent with texts"),
        ([OWN, STOP, "**more"], "test_it.py:1: a cell is Tested, Impossible or Absent with texts"),
        ([OWN, STOP, '"once": True'], "test_it.py:1: a cell is Tested, Impossible or Absent with texts"),
    ],
)
def test_a_cell_that_nothing_shows_is_reported(tmp_path: Path, cells: list[str], problem: str) -> None:
    [found] = table(tmp_path, *cells).problems()
    assert problem in found


@pytest.mark.parametrize("kept", ["class TestIt(Base):\n    test_once = None", ""], ids=["taken out", "no test class"])
def test_a_case_that_is_not_run_shows_nothing(tmp_path: Path, kept: str) -> None:
    [found] = table(tmp_path, OWN, STOP, module=MODULE.replace("class TestIt(Base): ...", kept)).problems()
    assert "'once': no test class inherits it" in found


def test_a_row_that_names_no_case_is_reported(tmp_path: Path) -> None:
    rows = (*ROWS, Row("more", "More.", ("Conformance.test_more",)))
    found = list(table(tmp_path, OWN, STOP, rows=rows).problems())
    assert found == ["cells.py: 'more' is shown by Conformance.test_more, which conformance.py does not have"]
