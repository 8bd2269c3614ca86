"""Arguments that are exactly of plain types are bound without pydantic, and as pydantic binds them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, StrEnum
from itertools import product
from typing import Annotated, Any

import pytest
from pydantic import Field

from amends.errors import BadArguments
from amends.tools.signature import Signature


class Text(str):
    """A subclass of a plain type."""

    __slots__ = ()


class Colour(StrEnum):
    """Equal to a str."""

    RED = "red"


class Level(IntEnum):
    """Equal to an int."""

    LOW = 1


def plain(a: str, b: int, c: float, d: bool) -> None: ...
def defaults(a: str = "x", b: int = 1, c: float | None = None) -> None: ...
def none_for_int(a: int = None, *, b: None = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013
def only_named(*, a: str, b: int = 2) -> None: ...
def bounded(a: int = Field(gt=10), b: str = Field(default="y", max_length=2)) -> None: ...
def annotated(a: Annotated[int, Field(gt=10)], b: Annotated[str, ["no hash"]]) -> None: ...
def rest(a: int, **more: int) -> None: ...
def unsaid(a, b=1) -> None: ...  # type: ignore[no-untyped-def]
def strange_default(a: int = "text", b: str = Colour.RED) -> None: ...  # type: ignore[assignment]
def nothing() -> None: ...


FUNCTIONS: list[Callable[..., Any]] = [
    plain,
    defaults,
    none_for_int,
    only_named,
    bounded,
    annotated,
    rest,
    unsaid,
    strange_default,
    nothing,
]
EXACT = {"plain", "only_named", "nothing"}
VALUES: list[Any] = [
    *("", "x", "7", "\ud800", "\x00", "true", 0, 7, -(2**70), 10**5000, 1.0, 0.5, float("nan"), float("inf"), -0.0),
    *(True, False, None, Text("t"), Colour.RED, Level.LOW, b"x", [], {}, (1,), object()),
]
MISSING: Any = object()


def bound(signature: Signature, given: dict[str, Any]) -> Any:
    """Return the arguments with their types, or the problems."""
    try:
        found = signature.bind((), given)
    except BadArguments as error:
        return error.problems
    return [(name, type(value), repr(value) if value != value else value) for name, value in found.items()]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_they_are_bound_as_pydantic_binds_them(fn: Callable[..., Any]) -> None:
    ours, pydantics = Signature("t", fn), Signature("t", fn)
    vars(pydantics)["_exact"] = None  # as if some type were not plain
    assert (ours._exact is not None) == (fn.__name__ in EXACT)
    for first, second in product([*VALUES, MISSING], repeat=2):
        said = {"a": first, "b": second, "c": 1.5, "d": True}
        for names in ("ab", "abc", "abcd", "abce", "bad c"):
            given = {name: said.get(name, 1) for name in names if said.get(name) is not MISSING}
            assert bound(ours, given) == bound(pydantics, given), given


def test_pydantic_is_asked_only_if_a_value_is_of_another_type() -> None:
    signature = Signature("t", plain)
    assert signature.bind(("o", 1, 0.5), {"d": True}) == {"a": "o", "b": 1, "c": 0.5, "d": True}
    assert "_model" not in vars(signature)
    assert signature.bind(("o", "1", 1), {"d": True}) == {"a": "o", "b": 1, "c": 1.0, "d": True}
    assert "_model" in vars(signature)
