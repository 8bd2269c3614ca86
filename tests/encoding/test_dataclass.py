"""amends' dataclasses are dataclasses: what the standard library's do, these do, told apart by time alone."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from types import FunctionType
from typing import Any, Generic, TypeVar

import pydantic
import pytest

import amends
from amends import Call, Request
from amends.encoding.dataclass import changed, dataclass
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


# ---- Made on first use


def fresh() -> tuple[Any, Any]:
    """Return a frozen class and one derived from it that nobody has used yet."""

    @dataclass(frozen=True, slots=True)
    class Parent:
        """Never used before."""

        name: str
        sizes: list[int] = field(default_factory=list)
        note: str = field(default="", kw_only=True)

    @dataclass(frozen=True, slots=True)
    class Child(Parent):
        """Neither was this."""

        extra: float = 0.5

    return Parent, Child


MADE = ("__init__", "__dataclass_fields__", "__dataclass_params__", "__match_args__")


def test_nothing_is_made_before_it_is_used_and_then_it_is_ordinary() -> None:
    for cls in fresh():
        before = {name: vars(cls)[name] for name in MADE}
        assert {type(one).__name__ for one in before.values()} == {"_OnFirstUse"}
        cls("a")
        assert isinstance(vars(cls)["__init__"], FunctionType)
        assert vars(cls)["__init__"] is cls.__init__
        for name in MADE:
            made = getattr(cls, name)
            assert getattr(cls, name) is made is vars(cls)[name]
            # A descriptor that somebody kept gives the same.
            assert before[name].__get__(None, cls) is made


FIRST_USES: dict[str, tuple[Any, Any]] = {
    "is_dataclass": (dataclasses.is_dataclass, True),
    "fields": (lambda cls: [one.name for one in dataclasses.fields(cls)], ["name", "sizes", "note", "extra"]),
    "kw_only": (lambda cls: [one.kw_only for one in dataclasses.fields(cls)], [False, False, True, False]),
    "types": (lambda cls: [one.type for one in dataclasses.fields(cls)], ["str", "list[int]", "str", "float"]),
    "replace": (lambda cls: dataclasses.replace(cls("a", note="n"), name="b").note, "n"),
    "asdict": (lambda cls: dataclasses.asdict(cls("a", [1])), {"name": "a", "sizes": [1], "note": "", "extra": 0.5}),
    "astuple": (lambda cls: dataclasses.astuple(cls("a")), ("a", [], "", 0.5)),
    "match_args": (lambda cls: cls.__match_args__, ("name", "sizes", "extra")),
    "params": (lambda cls: cls.__dataclass_params__.frozen, True),
    "signature": (
        lambda cls: str(inspect.signature(cls)),
        "(name: 'str', sizes: 'list[int]' = <factory>, extra: 'float' = 0.5, *, note: 'str' = '') -> None",
    ),
    "repr": (lambda cls: repr(cls("a")).rpartition("<locals>.")[2], "Child(name='a', sizes=[], note='', extra=0.5)"),
    "eq": (lambda cls: cls("a") == cls("a") != cls("b"), True),
    "hash": (lambda cls: hash(cls("a", (1,))), hash(("a", (1,), "", 0.5))),  # type: ignore[arg-type]
    "copy": (lambda cls: copy.deepcopy(cls("a", [1])).sizes, [1]),
    "new": (lambda cls: getattr(cls.__new__(cls), "name", None), None),
    "state": (lambda cls: copyreg_made(cls, ["a", [1], "n", 2.0]).extra, 2.0),
    "by hand": (lambda cls: type("Own", (cls,), {})("a").extra, 0.5),
    "super": (lambda cls: type("Own", (cls,), {"__init__": lambda self: cls.__init__(self, "b")})().name, "b"),
    "derived": (
        lambda cls: [
            one.name
            for one in dataclasses.fields(
                dataclasses.make_dataclass("D", ["z"], bases=(cls,), frozen=True, kw_only=True)
            )
        ],
        ["name", "sizes", "note", "extra", "z"],
    ),
    "changed": (lambda cls: changed(cls("a"), {"extra": 1.5}), None),
    "missing": (lambda cls: raised(cls), "missing 1 required positional argument: 'name'"),
}


def copyreg_made(cls: Any, state: list[Any]) -> Any:
    """Return what unpickling returns: an object whose ``__init__`` was never called."""
    one = cls.__new__(cls)
    one.__setstate__(state)
    return one


def raised(cls: Any) -> str:
    with pytest.raises(TypeError) as error:
        cls()
    return str(error.value).partition("() ")[2]


@pytest.mark.parametrize("use", FIRST_USES)
def test_whatever_its_first_use_is_it_works(use: str) -> None:
    _, child = fresh()
    do, expected = FIRST_USES[use]
    found = do(child)
    assert found == expected or (use == "changed" and found == child("a", extra=1.5))


def test_it_is_unpickled_by_a_process_that_never_made_one() -> None:
    one = Call("r", "t", "1", {"a": 1}, id="c")
    code = "import pickle, sys; one = pickle.load(sys.stdin.buffer); print(repr(one))"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(one), capture_output=True, check=True)
    assert done.stdout.decode().strip() == repr(one)


def test_its_first_use_may_happen_in_many_threads_at_once() -> None:
    for _ in range(20):
        _, child = fresh()
        start = threading.Barrier(8)

        def use(number: int, child: Any = child, start: threading.Barrier = start) -> Any:
            start.wait()
            return child(str(number), [number])

        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(use, range(8)))
        assert [(type(one), one.name, one.sizes) for one in made] == [(child, str(n), [n]) for n in range(8)]


def test_pydantic_takes_it_for_a_dataclass() -> None:
    _, child = fresh()
    checked: Any = pydantic.TypeAdapter(child)
    assert checked.validate_python({"name": "a", "sizes": ["1"], "extra": "2"}) == child("a", [1], 2.0)
    assert checked.json_schema()["required"] == ["name"]
    with pytest.raises(pydantic.ValidationError):
        checked.validate_python({"name": "a", "extra": "x"})
    _, other = fresh()
    model: Any = pydantic.create_model("Model", one=(other, ...))
    made = model(one={"name": "a"}).one
    assert made == other("a")
    assert model(one=other("a")).model_dump() == {"one": dataclasses.asdict(made)}


def test_a_class_that_is_not_supported_is_refused_when_it_is_used() -> None:
    @dataclass(slots=True)
    class Shared:
        """A default that all instances would share."""

        items: list[int] = []  # type: ignore[misc]  # noqa: RUF012

    with pytest.raises(AssertionError, match="items: a default that can be changed needs a factory"):
        Shared()


def test_every_record_of_amends_can_be_used() -> None:
    """What the standard decorator refuses when a class is defined would otherwise be noticed by its first user."""
    seen = 0
    for path in sorted(Path(amends.__file__).parent.rglob("*.py")):
        if "encoding.dataclass import" not in path.read_text(encoding="utf-8") or "adapters" in path.parts:
            continue
        parts = path.relative_to(Path(amends.__file__).parents[1]).with_suffix("").parts
        module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        for cls in [
            one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__
        ]:
            if "__dataclass_fields__" in vars(cls):
                names = [one.name for one in dataclasses.fields(cls) if one.init]
                assert sorted(inspect.signature(cls).parameters) == sorted(names), cls
                seen += 1
    assert seen > 200


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
