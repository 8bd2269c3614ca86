"""amends' dataclasses are dataclasses: what the standard library's do, these do, told apart by time alone."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

import amends
from amends import Call, Request
from amends.encoding.dataclass import dataclass
from amends.ledger.rows import CallRow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Small:
    """Two fields."""

    name: str
    size: int = 1


@dataclass(frozen=True, slots=True)
class Large(Generic[T]):
    """More than are set one by one."""

    name: str
    value: T
    more: dict[str, int] = field(default_factory=dict)
    note: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Larger(Large[int]):
    """With a parent that is frozen."""

    extra: float = 0.0


@dataclass(slots=True)
class Open:
    """Not frozen."""

    name: str
    seen: list[str] = field(default_factory=list)
    hidden: str = field(default="h", init=False, repr=False, compare=False)


class ByHand(Larger):
    """A class that a user derives has room for more."""


@dataclasses.dataclass(frozen=True)
class Plain(Small):
    """A user's own dataclass, of the standard library."""

    colour: str = "red"


FROZEN: list[Any] = [
    Small("a"),
    Large("a", 1, note="n"),
    Larger("a", 1, {"b": 2}, 0.5, note="n"),
    ByHand("a", 1),
    Plain("a", 2, "blue"),
    Call("r", "t", "1", {"a": 1}, id="c"),
]


@pytest.mark.parametrize("one", FROZEN, ids=lambda one: type(one).__name__)
def test_a_frozen_one_is_equal_to_its_copies_and_cannot_be_changed(one: Any) -> None:
    for twin in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one)), dataclasses.replace(one)):
        assert twin == one
        assert twin is not one
        assert type(twin) is type(one)
    for name in [one.name for one in dataclasses.fields(one)]:
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(one, name, 1)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(one, name)


def test_it_is_made_as_its_signature_says() -> None:
    assert Large("a", 1).more == {}
    assert Large("a", 1).more is not Large("a", 1).more
    assert Larger("a", 1, note="n").note == "n"
    with pytest.raises(TypeError, match=r"Large\.__init__\(\) missing 1 required positional argument: 'value'"):
        Large("a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        Small("a", colour="red")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Large("a", 1, {}, "n")  # type: ignore[misc]
    said = "(name: 'str', value: 'T', more: 'dict[str, int]' = <factory>, *, note: 'str' = '') -> None"
    assert str(inspect.signature(Large)) == said


def test_it_compares_and_hashes_by_its_fields_and_its_class() -> None:
    assert Small("a") == Small("a", 1) != Small("a", 2)
    assert hash(Small("a")) == hash(("a", 1))
    assert len({Small("a"), Small("a")}) == 1
    assert Small("a") != ("a", 1)  # type: ignore[comparison-overlap]
    assert Request("r", "t", "1", {}) != Call("r", "t", "1", {})
    nan = float("nan")
    assert Large("a", nan) == Large("a", nan)
    first, second = Open("a"), Open("a")
    second.hidden = "other"
    assert first == second
    assert first.hidden == "h"
    assert Open.__hash__ is None


def test_it_shows_its_fields() -> None:
    assert repr(Small("a")) == "Small(name='a', size=1)"
    assert repr(Open("a", ["b"])) == "Open(name='a', seen=['b'])"
    loop = Open("a", [])
    loop.seen.append(loop)  # type: ignore[arg-type]
    assert repr(loop) == "Open(name='a', seen=[...])"


def test_what_is_known_of_it_is_what_the_standard_library_knows() -> None:
    assert [one.name for one in dataclasses.fields(Larger)] == ["name", "value", "more", "note", "extra"]
    assert Larger.__match_args__ == ("name", "value", "more", "extra")
    assert not hasattr(Small("a"), "__dict__")
    assert hasattr(ByHand("a", 1), "__dict__")
    known: Any = CallRow
    params = known.__dataclass_params__
    assert (params.frozen, params.init, params.repr, params.eq) == (True, True, True, True)
    match Small("a", 3):
        case Small(name, size):
            assert (name, size) == ("a", 3)


def test_a_class_derived_by_hand_keeps_what_else_it_is_given() -> None:
    mine: Any = ByHand("a", 1)
    mine.own = 2
    assert (mine.name, mine.own) == ("a", 2)


def test_importing_amends_imports_nothing_that_a_blocking_program_may_never_need() -> None:
    dear = ("asyncio", "pydantic", "sqlite3", "socket", "ssl", "tomllib", "html", "subprocess")
    code = f"import sys, amends; print([name for name in {dear} if name in sys.modules])"
    source = str(Path(amends.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
