"""Names that a program gives to its runs: what no ledger can store is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amends import Runtime, UsageError
from amends.errors import NotStorable

PARTS = ["a\ud800", "\ud83d\ude00"]
"""A lone surrogate, and two that together would be read back as one character."""


@pytest.fixture(params=["memory:", "sqlite:///{}"])
def rt(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with Runtime(request.param.format(tmp_path / "ledger.db")) as made:
        yield made
        assert made.verify().ok


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("what", ["id", "tenant", "agent", "principal", "tags"])
def test_a_name_with_a_lone_surrogate_is_refused(rt: Runtime, what: str, name: str) -> None:
    given: dict[str, Any] = {"id": "run", what: [name] if what == "tags" else name}
    with pytest.raises(NotStorable, match="has a lone surrogate"), rt.run(**given):
        raise AssertionError("nothing was opened")
    assert not list(rt.runs())


@pytest.mark.parametrize("name", PARTS)
def test_so_are_a_child_and_the_key_of_once(rt: Runtime, name: str) -> None:
    ran: list[str] = []
    with rt.run("run") as run:
        with pytest.raises(NotStorable, match="the name of a child"), run.child(name):
            raise AssertionError("nothing was opened")
        with pytest.raises(NotStorable, match="the name of a child"):
            run.once(name, lambda: ran.append("once"))
    assert not ran
    assert [run.id for run in rt.runs()] == ["run"]


def test_a_name_that_is_no_text_is_refused(rt: Runtime) -> None:
    with pytest.raises(UsageError, match="the agent is a text, not '5'"), rt.run("run", agent=5):  # type: ignore[arg-type]
        raise AssertionError("nothing was opened")


def test_any_other_character_is_a_name(rt: Runtime) -> None:
    for name in ("é", "\U0001f600", "名", "a\u2028b"):
        with rt.run(name, agent=name, principal=name, tags=[name]) as run, run.child(name):
            pass
    assert len(list(rt.runs())) == 8
