"""A module that is imported on use is imported by its first use, and is an ordinary module from then on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from amends.encoding.lazy_import import import_on_use


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "imported_on_use_by_a_test"
    (tmp_path / f"{name}.py").write_text("answer = 42\nclass Broken(Exception): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_it_is_imported_by_the_first_use_of_an_attribute(module: str) -> None:
    names: dict[str, Any] = {}
    import_on_use(names, short=module)
    assert repr(names["short"]) == f"<module {module!r}, imported on first use>"
    assert module not in sys.modules
    assert names["short"].answer == 42
    assert names["short"] is sys.modules[module]


def test_who_kept_the_stand_in_still_reaches_the_module(module: str) -> None:
    names: dict[str, Any] = {}
    import_on_use(names, short=module)
    kept = names["short"]
    assert kept.answer == 42
    sys.modules[module].answer = 43  # type: ignore[attr-defined]
    assert kept.answer == 43
    names["short"] = "something else"
    assert kept.answer == 43
    assert names["short"] == "something else"


def test_a_missing_module_or_attribute_is_said_where_it_is_used(module: str) -> None:
    names: dict[str, Any] = {}
    import_on_use(names, short=module, none="no_such_module_anywhere")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        names["none"].anything  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'question'"):
        names["short"].question  # noqa: B018
