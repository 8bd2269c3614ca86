"""A value's class is part of what it means: in keys, in approvals, in bodies, compensations and results."""

from __future__ import annotations

import asyncio
import enum
import typing
from collections import OrderedDict, namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar, Union

import pytest
from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, RootModel, field_validator
from typing_extensions import TypeAliasType, TypedDict

from amends import AsyncRuntime, Happened, Held, Runtime, declare, tool
from amends.errors import BadArguments, BadDeclaration, Diverged, Error, KeyConflict, NotStorable, shown
from amends.notify import payload, slack_payload
from tests.world import runtime

T = TypeVar("T")


@dataclass(frozen=True)
class Customer:
    id: int


@dataclass(frozen=True)
class Employee:
    id: int


@dataclass(frozen=True)
class Manager(Employee):
    level: int = 3


class Cash(BaseModel):
    cents: int


class Card(BaseModel):
    cents: int


class GoldCard(Card):
    number: str = "4"


class Colour(enum.Enum):
    RED = "red"


class Mood(enum.Enum):
    RED = "red"


class Code(enum.StrEnum):
    A = "a"


class Level(enum.IntEnum):
    ONE = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: int
    who: Customer | Employee


class Pair(NamedTuple):
    x: int
    who: Customer | Employee


Old = namedtuple("Old", ["a", "b"])


class Names(RootModel[list[str]]):
    pass


class Tags(RootModel[list[str]]):
    pass


@dataclass
class Box(Generic[T]):
    inside: T


@dataclass
class Team:
    lead: Customer | Employee
    rest: list[Customer | Employee] = field(default_factory=list)
    by_name: dict[str, Customer | Employee] = field(default_factory=dict)


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    name: str


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    pays: Cash | Card


class Row(TypedDict):
    who: Customer | Employee


class CustomerId(str):
    __slots__ = ()


class StaffId(str):
    __slots__ = ()


Who = TypeAliasType("Who", Customer | Employee)
Some = TypeAliasType("Some", list[T], type_params=(T,))
CustomerNo = NewType("CustomerNo", Customer)

# annotation, two values that differ in class only
TWINS: list[tuple[Any, Any, Any]] = [
    (Customer | Employee, Customer(7), Employee(7)),
    (Employee | Customer, Customer(7), Employee(7)),
    (Optional[Customer | Employee], Customer(7), Employee(7)),  # noqa: UP045
    (Annotated[Customer | Employee, Field(description="who")], Customer(7), Employee(7)),
    (Employee | Manager, Employee(7), Manager(7)),
    (Who, Customer(7), Employee(7)),
    (Some[Customer | Employee], [Customer(7)], [Employee(7)]),
    (CustomerNo | Employee, Customer(7), Employee(7)),
    (list[Customer | Employee], [Customer(1), Employee(2)], [Employee(1), Customer(2)]),
    (list[Customer] | list[Employee], [Customer(1)], [Employee(1)]),
    (Sequence[Customer | Employee], [Customer(1)], [Employee(1)]),
    (set[Customer | Employee], {Customer(1)}, {Employee(1)}),
    (frozenset[Customer | Employee], frozenset({Customer(1)}), frozenset({Employee(1)})),
    (tuple[int, Customer | Employee], (1, Customer(1)), (1, Employee(1))),
    (tuple[Customer | Employee, ...], (Customer(1),), (Employee(1),)),
    (dict[str, Customer | Employee], {"a": Customer(1)}, {"a": Employee(1)}),
    (dict[Customer | Employee, int], {Customer(1): 1}, {Employee(1): 1}),
    (Mapping[str, list[Customer | Employee]], {"a": [Customer(1)]}, {"a": [Employee(1)]}),
    (Cash | Card, Cash(cents=5), Card(cents=5)),
    (Card | GoldCard, Card(cents=5), GoldCard(cents=5)),
    (Cash | Customer, Cash(cents=5), Customer(5)),
    (Colour | Mood, Colour.RED, Mood.RED),
    (Colour | str, Colour.RED, "red"),
    (Code | str, Code.A, "a"),
    (str | Code, Code.A, "a"),
    (Literal["a"] | Code, Code.A, "a"),
    (Literal[Code.A, "a"], Code.A, "a"),
    (Level | int, Level.ONE, 1),
    (Level | Flags, Level.ONE, Flags.A),
    (dict[Colour | Mood, int], {Colour.RED: 1}, {Mood.RED: 1}),
    (Point | Pair, Point(1, Customer(2)), Pair(1, Customer(2))),
    (Point, Point(1, Customer(2)), Point(1, Employee(2))),
    (Names | Tags, Names(["a"]), Tags(["a"])),
    (Names | list[str], Names(["a"]), ["a"]),
    (Customer | dict[str, int], Customer(1), {"id": 1}),
    (Box[Customer | Employee], Box(Customer(1)), Box(Employee(1))),
    (Box[Customer] | Box[Employee], Box(Customer(1)), Box(Employee(1))),
    (Team, Team(Customer(1)), Team(Employee(1))),
    (Team, Team(Customer(1), [Customer(2)]), Team(Customer(1), [Employee(2)])),
    (Team, Team(Customer(1), [], {"a": Customer(2)}), Team(Customer(1), [], {"a": Employee(2)})),
    (Owner, Owner(pet=Cat(name="x"), pays=Cash(cents=1)), Owner(pet=Cat(name="x"), pays=Card(cents=1))),
    (Row, {"who": Customer(1)}, {"who": Employee(1)}),
    (list[Row], [{"who": Customer(1)}], [{"who": Employee(1)}]),
    (CustomerId | StaffId, CustomerId("a"), StaffId("a")),
]


def declared(annotation: Any, seen: list[Any], **options: Any) -> Any:
    def grant(to, note: str = "") -> Any:
        seen.append(to)
        return to

    grant.__annotations__ |= {"to": annotation, "return": annotation}
    return tool(**options)(grant) if "kind" in options else tool(grant, compensate=lambda to: None, **options)


@pytest.mark.parametrize("annotation, one, other", TWINS, ids=lambda value: str(value)[:60])
def test_two_classes_are_two_calls_and_each_comes_back_as_itself(annotation: Any, one: Any, other: Any) -> None:
    seen: list[Any] = []
    undone: list[Any] = []

    def grant(to) -> Any:
        seen.append(to)
        return to

    def undo(to: Any, result: Any, call: Any) -> None:
        undone.append((to, result, call.args["to"], call.result))

    grant.__annotations__ |= {"to": annotation, "return": annotation}
    made = tool(grant, compensate=undo)
    rt = runtime(made)
    with pytest.raises(KeyError), rt.run("r"):
        for value in (one, other, one, other):
            back = made(value)
            assert typed(back) == typed(value)
        raise KeyError
    assert [typed(value) for value in seen] == [typed(one), typed(other)]
    assert [[typed(part) for part in parts] for parts in undone] == [[typed(other)] * 4, [typed(one)] * 4]
    calls = list(rt.calls())
    assert len({call.digest for call in calls}) == 2
    assert [call.loss for call in calls] == [None, None]


def typed(value: Any) -> Any:
    """The value with every class in it named: equal enums and tuples of two classes differ."""
    if isinstance(value, dict):
        return (type(value), [(typed(key), typed(item)) for key, item in value.items()])
    if isinstance(value, list | tuple | set | frozenset):
        return (type(value), [typed(item) for item in value])
    if hasattr(type(value), "model_fields"):
        return (type(value), typed(vars(value)))
    if is_dataclass(value):
        return (type(value), [(one.name, typed(getattr(value, one.name))) for one in fields(value)])
    return (type(value), value)


@pytest.mark.parametrize("annotation, one, other", TWINS, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("kind", ["held", "staged"])
def test_what_is_shown_and_run_later_has_its_class(annotation: Any, one: Any, other: Any, kind: str) -> None:
    for value in (one, other):
        seen: list[Any] = []
        held = {"kind": "pivot", "needs_approval": True}
        made = declared(annotation, seen, **(held if kind == "held" else {"kind": "retriable", "idempotent": True}))
        rt = runtime(made)
        if kind == "staged":
            with rt.run("r"):
                made(value)
        else:
            with pytest.raises(Held) as waits, rt.run("r"):
                made(value)
            shown = waits.value.approval.call.args["to"]
            assert typed(shown) == typed(value)
            rt.approve(waits.value.approval.id, by="anna", digest=waits.value.approval.digest)
            with rt.run("r"):
                assert typed(made(value)) == typed(value)
        assert [typed(one) for one in seen] == [typed(value)]


@pytest.mark.parametrize("annotation, one, other", TWINS[:4] + TWINS[18:24], ids=lambda value: str(value)[:60])
def test_a_yes_to_one_class_starts_no_other(annotation: Any, one: Any, other: Any) -> None:
    seen: list[Any] = []
    made = declared(annotation, seen, kind="pivot", needs_approval=True, key="note")
    rt = runtime(made)
    with pytest.raises(Held) as waits, rt.run("r"):
        made(one, note="n")
    rt.approve(waits.value.approval.id, by="anna", digest=waits.value.approval.digest)
    with pytest.raises(Error), rt.run("r"):
        made(other, note="n")
    assert seen == []


def test_who_decides_is_told_the_class() -> None:
    made = declared(list[Cash | Card] | Cash | Card, [], kind="pivot", needs_approval=True)
    rt = runtime(made)
    with pytest.raises(Held) as waits, rt.run("r"):
        made([Card(cents=1), Cash(cents=1)])
    approval = waits.value.approval
    assert approval.call.classes == {"to[0]": "Card", "to[1]": "Cash"}
    assert payload(approval)["data"]["call"]["classes"] == {"to[0]": "Card", "to[1]": "Cash"}
    assert '"to[0]" is of class Card' in str(slack_payload(approval))
    assert "Card(cents=1)" in shown(approval.call.args)


def test_no_name_stands_for_another_place() -> None:
    def pay(to: list[Cash | Card], **more: Cash | Card | dict[str, Cash | Card]) -> None: ...

    made = tool(pay, kind="pivot", needs_approval=True)
    rt = runtime(made)
    more: dict[str, Any] = {"to[0]": Cash(cents=1), "a.b": Cash(cents=1), "a": {"b": Card(cents=1)}}
    with pytest.raises(Held) as waits, rt.run("r"):
        made(to=[Card(cents=1)], **more)
    assert waits.value.approval.call.classes == {
        "to[0]": "Card",
        '["to[0]"]': "Cash",
        '["a.b"]': "Cash",
        "a.b": "Card",
    }


def test_a_conflict_shows_the_two_classes() -> None:
    made = declared(Customer | Employee, [], key="note")
    rt = runtime(made)
    with rt.run("r"):
        made(Customer(1), note="n")
        with pytest.raises(KeyConflict) as conflict:
            made(Employee(1), note="n")
        assert conflict.value.diff == {"to": (Customer(1), Employee(1))}


def test_both_colours_agree() -> None:
    asyncio.run(both_colours())


async def both_colours() -> None:
    seen: list[Any] = []

    @tool
    async def grant(to: Customer | Employee) -> Cash | Card:
        seen.append(to)
        return Card(cents=to.id)

    @grant.compensate
    async def undo(to: Any, result: Any) -> None:
        seen.append((to, result))

    async with AsyncRuntime("memory:", tools=[grant]) as rt:
        with pytest.raises(KeyError):
            async with rt.run("r"):
                assert await grant(Employee(7)) == Card(cents=7)
                assert await grant(Customer(7)) == Card(cents=7)
                assert await grant(Employee(7)) == Card(cents=7)
                raise KeyError
    assert [typed(one) for one in seen] == [
        typed(one) for one in (Employee(7), Customer(7), (Customer(7), Card(cents=7)), (Employee(7), Card(cents=7)))
    ]


def test_another_process_gives_the_body_its_class(tmp_path: Any) -> None:
    seen: list[Any] = []

    @tool(kind="retriable", idempotent=True, retry=1)
    def pay(to: Customer | Employee, how: list[Cash | Card], note: Any = None) -> None:
        seen.append((to, how))
        if len(seen) == 1:
            raise RuntimeError

    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, tools=[pay]) as rt:
        try:
            with rt.run("r"):
                pay(Employee(7), [Card(cents=1), Cash(cents=1)])
        except Error:
            pass
    assert typed(seen[0]) == typed((Employee(7), [Card(cents=1), Cash(cents=1)]))
    with Runtime(url) as stranger:  # knows nothing of the classes, and names them
        (call,) = stranger.calls()
        assert call.args["to"] == {"$class": ["Employee", {"id": 7}]}


# ---- what is refused ------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Any, Any]] = [
    (Any, Customer(1)),
    (Any, [Customer(1)]),
    (Any, {"a": {"b": Customer(1)}}),
    (Any, Colour.RED),
    (Any, Code.A),
    (Any, Level.ONE),
    (Any, Point(1, Customer(1))),
    (Any, Cash(cents=1)),
    (Any, CustomerId("a")),
    (Any, Old(1, 2)),
    (object, Customer(1)),
    (dict[str, Any], {"a": Customer(1)}),
    (list, [Customer(1)]),
    (dict, {"a": Cash(cents=1)}),
    (Employee, Manager(1)),
    (list[Employee], [Manager(1)]),
    (Card, GoldCard(cents=1)),
    (Customer | Employee, Manager(1)),
    (Box[Any], Box(Customer(1))),
    (Box, Box(Customer(1))),
    (Team, Team(Manager(1))),
    (Team, Team({"id": 1})),  # type: ignore[arg-type]
    (Node, Node("a", [{"name": "b", "children": []}])),  # type: ignore[list-item]
]


@pytest.mark.parametrize("annotation, value", REFUSED, ids=lambda value: str(value)[:50])
def test_a_class_that_the_annotation_does_not_name_is_refused_before_anything_runs(annotation: Any, value: Any) -> None:
    seen: list[Any] = []
    made = declared(annotation, seen)
    rt = runtime(made)
    with rt.run("r"), pytest.raises(NotStorable) as refused:
        made(value)
    assert refused.value.path.startswith("args.to")
    assert refused.value.hint
    assert seen == []
    assert list(rt.calls()) == []


def test_without_annotation_plain_data_works_and_classes_are_refused() -> None:
    seen: list[Any] = []

    @tool
    def take(what, *, other=None, **rest):
        seen.append((what, other, rest))

    take.compensate(lambda: None)
    rt = runtime(take)
    plain = [
        1,
        1.5,
        True,
        None,
        "x",
        Decimal("2.5"),
        b"x",
        [1, {"a": (1, 2)}],
        {"k": {1, 2}},
        datetime(2026, 1, 1, tzinfo=UTC),
    ]
    with rt.run("r"):
        for one in plain:
            take(one, other=one, more=one)
        for bad in ({"what": Customer(1)}, {"what": 1, "other": Colour.RED}, {"what": 1, "more": [Cash(cents=1)]}):
            with pytest.raises(NotStorable):
                take(**bad)
    assert seen == [(one, one, {"more": one}) for one in plain]


def test_the_inputs_and_outputs_of_a_run_are_plain_data_for_everybody() -> None:
    rt = runtime()
    for _ in range(2):
        with rt.run("r", input=Customer(1)) as run:
            assert run.input == {"id": 1}
            if run.output is None:
                run.output = Employee(1)
        assert run.output == {"id": 1}


def test_children_named_by_their_input_are_named_by_its_class_too() -> None:
    with runtime().run("r") as run:
        ids = []
        for one in (Customer(1), Employee(1), {"id": 1}, Customer(1)):
            with run.child(input=one) as child:
                ids.append(child.id)
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]


def other_customer() -> type:
    @dataclass(frozen=True)
    class Customer:
        id: int

    return Customer


Twin: Any = other_customer()
UserNo = NewType("UserNo", int)
OrderNo = NewType("OrderNo", int)


class RowA(TypedDict):
    id: int


class RowB(TypedDict):
    id: int


class RowC(TypedDict):
    kind: Literal["c"]


class RowD(TypedDict):
    kind: Literal["d"]


@dataclass
class Holder:
    who: Any


Holder.__annotations__["who"] = Customer | Twin


@pytest.mark.parametrize(
    "annotation",
    [Customer | Twin, list[Customer | Twin], dict[str, Twin | Customer | None], UserNo | OrderNo, RowA | RowB, Holder],
    ids=str,
)
@pytest.mark.parametrize("where", ["to", "return"])
def test_members_that_cannot_be_told_apart_are_refused_where_they_are_declared(annotation: Any, where: str) -> None:
    def grant(to) -> None: ...

    grant.__annotations__[where] = annotation
    with pytest.raises(BadDeclaration):
        runtime(tool(grant, compensate=lambda: None))


@pytest.mark.parametrize("annotation", [RowC | RowD, UserNo | str, Customer | None, int | str], ids=str)
def test_members_that_can_be_told_apart_are_declared(annotation: Any) -> None:
    runtime(declared(annotation, []))


def test_a_class_that_was_renamed_keeps_its_keys(tmp_path: Any) -> None:
    @dataclass(frozen=True)
    class Client:
        id: int

    url = f"sqlite:///{tmp_path}/l.db"
    seen: list[Any] = []
    before = declared(Customer | Employee, seen)
    after = declared(Client | Employee, seen, class_names={Client: "Customer"})
    both = declared(Customer | Twin, seen, class_names={Twin: "Twin"})
    with Runtime(url, tools=[before]).run("r"):
        before(Customer(7))
    rt = Runtime(url, tools=[after])
    with rt.run("r"):
        assert after(Client(7)) == Client(7)
    assert seen == [Customer(7)]
    assert next(iter(rt.calls())).args["to"] == Client(7)
    with runtime(both).run("r"):
        assert typed(both(Twin(1))) == typed(Twin(1))
        assert typed(both(Customer(1))) == typed(Customer(1))


@pytest.mark.parametrize(
    "names", [{str: "x"}, {Manager: "Boss"}, {Customer: ""}, {"Customer": "C"}, 5, {Customer: "Employee"}]
)
def test_names_for_classes_are_checked(names: Any) -> None:
    with pytest.raises(BadDeclaration):
        runtime(declared(Customer | Employee, [], class_names=names))


# ---- values come back as they were ----------------------------------------------------------------------------------


class Grown(BaseModel):
    n: int
    _seen: int = PrivateAttr(default=5)
    grow = field_validator("n")(lambda n: n * 2)

    def model_post_init(self, context: Any) -> None:
        self.n += 1


@dataclass
class Made:
    n: int
    twice: int = field(init=False, default=0)
    items: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.twice = self.n * 2
        self.items.append(self.n)
        self.extra = "set by __post_init__"


@dataclass
class Needs:
    n: int
    factor: InitVar[int]

    def __post_init__(self, factor: int) -> None:
        self.n *= factor


@dataclass(frozen=True, slots=True)
class Slim:
    n: int


class Opened(BaseModel, extra="allow"):
    a: int


class Aliased(BaseModel):
    order_id: str = Field(alias="orderId")


class Odd(enum.Enum):
    A = (1, 2)
    B = {"x": 1}  # noqa: RUF012


@pytest.mark.parametrize(
    "annotation, value",
    [
        (Grown, Grown(n=2)),
        (Made, Made(3)),
        (Needs, Needs(3, 2)),
        (Slim, Slim(1)),
        (Opened, Opened.model_validate({"a": 1, "b": [2]})),
        (Aliased, Aliased(orderId="o")),
        (Odd, Odd.A),
        (Odd, Odd.B),
        (Flags, Flags.A | Flags.B),
        (Node, Node("a", [Node("b"), Node("c", [Node("d")])])),
        (Names, Names(["a"])),
        (OrderedDict[str, int], OrderedDict(b=1, a=2)),
        (CustomerId, CustomerId("x")),
        (Old, Old(1, [2])),
        (Annotated[int, AfterValidator(lambda n: n + 1)], 1),
        (bytearray, bytearray(b"x")),
        (Box[list[int]], Box([1])),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_body_gets_the_value_that_was_written_down(annotation: Any, value: Any) -> None:
    seen: list[Any] = []
    undone: list[Any] = []

    def grant(to) -> None:
        seen.append(to)

    grant.__annotations__["to"] = annotation
    direct = tool(grant, name="direct", compensate=lambda to: undone.append(to))
    staged = tool(grant, name="staged", kind="retriable", idempotent=True)
    with runtime(direct, staged).run("r"):
        direct(value)
        staged(value)
    with pytest.raises(KeyError), runtime(direct, staged).run("r"):
        direct(value)
        raise KeyError
    expected = value + 1 if type(value) is int else value
    assert [typed(one) for one in (*seen, *undone)] == [typed(expected)] * 4
    if isinstance(value, Made):
        assert {one.extra for one in seen} == {"set by __post_init__"}
    if isinstance(value, Grown):
        assert {one._seen for one in seen} == {5}


Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | float | bool | None")
Deep = TypeAliasType("Deep", "dict[str, Deep] | Customer | Employee")


@pytest.mark.parametrize("annotation, value", [(Json, {"a": [1, {"b": None}]}), (Deep, {"a": {"b": Employee(1)}})])
def test_an_alias_may_contain_itself(annotation: Any, value: Any) -> None:
    seen: list[Any] = []
    made = declared(annotation, seen)
    with runtime(made).run("r"):
        assert typed(made(value)) == typed(made(value)) == typed(value)
    assert [typed(one) for one in seen] == [typed(value)]


# ---- what a model says ------------------------------------------------------------------------------------------------


def test_a_model_that_could_mean_either_is_asked_which() -> None:
    seen: list[Any] = []
    made = declared(Customer | Employee, seen)
    rt = runtime(made)
    with rt.run("r") as run:
        answer = run.answer("grant", {"to": {"id": 7}})
        assert not seen
        assert "Customer" in answer.text
        assert "Employee" in answer.text
        told = run.answer("grant", {"to": {"$class": ["Employee", {"id": 7}]}}).text
        assert told == '{"$class":["Employee",{"id":7}]}', "the model can pass it on as it is"
        with pytest.raises(BadArguments):
            made({"$class": ["Nobody", {"id": 7}]})
    assert seen == [Employee(7)]


def test_a_model_that_can_be_understood_is() -> None:
    seen: list[Any] = []
    made = declared(Cat | Dog, seen, name="pet")
    loud = declared(Annotated[Cat | Dog, Field(discriminator="kind")], seen, name="loud")
    colour = declared(Colour | Level, seen, name="colour")
    word = declared(Code | str, seen, name="word")
    many = declared(Employee | Manager, seen, name="many")
    rt = runtime(made, loud, colour, word, many)
    with rt.run("r") as run:
        run.answer("pet", {"to": {"kind": "dog", "name": "x"}})
        run.answer("loud", {"to": {"kind": "cat", "name": "x"}})
        run.answer("colour", {"to": "red"})
        run.answer("colour", {"to": 1})
        run.answer("word", {"to": "a"})
        run.answer("many", {"to": {"id": 1, "level": 2}})
    assert [typed(one) for one in seen] == [
        typed(one) for one in (Dog(name="x"), Cat(name="x"), Colour.RED, Level.ONE, "a", Manager(1, 2))
    ]


def test_an_edited_request_keeps_its_class() -> None:
    seen: list[Any] = []
    made = declared(Customer | Employee, seen, kind="pivot", needs_approval=True)
    rt = runtime(made)
    with pytest.raises(Held) as waits, rt.run("r"):
        made(Employee(7))
    shown = waits.value.approval.call.args
    edited = rt.edit(waits.value.approval.id, {**shown, "note": "less"}, by="anna", why="w")
    assert edited.call.args == {"to": Employee(7), "note": "less"}


def test_once_gives_the_function_what_was_written_down() -> None:
    seen: list[Any] = []

    def send(
        to: Customer | Employee, *more: Customer | Employee, how: Cash | Card, **rest: Colour | Mood
    ) -> Cash | Card:
        seen.append((to, more, how, rest))
        return how

    rt = runtime()
    with rt.run("r") as run:
        for _ in range(2):
            back = run.once("k", send, Employee(1), Customer(2), how=Card(cents=1), a=Mood.RED)
            assert typed(back) == typed(Card(cents=1))
        with pytest.raises(NotStorable):
            run.once("k2", lambda who: None, Customer(1))
    assert [typed(one) for one in seen] == [typed((Employee(1), (Customer(2),), Card(cents=1), {"a": Mood.RED}))]
    with rt.run("r2") as run:
        assert run.once("a", int, "5") == 5
        assert run.once("b", lambda a, *b, c=3, **d: [a, *b, c, d], 1, 2, e=5) == [1, 2, 3, {"e": 5}]


def test_a_default_says_its_class() -> None:
    seen: list[Any] = []

    @tool(kind="pivot")
    def paint(what: str, colour=Colour.RED, how: Mood = Mood.RED, none: Customer = None, note=""):  # type: ignore[assignment]
        seen.append((what, colour, how, none, note))

    rt = runtime(paint)
    with rt.run("r"):
        paint("x")
    assert [typed(one) for one in seen] == [typed(("x", Colour.RED, Mood.RED, None, ""))]
    (call,) = rt.calls()
    assert typed(dict(call.args)) == typed(
        {"what": "x", "colour": Colour.RED, "how": Mood.RED, "none": None, "note": ""}
    )


def test_calls_are_found_by_the_fields_of_what_has_a_class(tmp_path: Any) -> None:
    made = declared(Customer | Employee, [])
    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, tools=[made]).run("r"):
        made(Employee(7))
        made(Employee(8))
    assert [call.args["to"] for call in Runtime(url, tools=[made]).calls("args.to.id:7")] == [Employee(7)]


def test_hidden_fields_of_a_result_with_a_class_stay_hidden(tmp_path: Any) -> None:
    @tool(redact=["number"])
    def pay(number: str) -> Card | GoldCard:
        return GoldCard(cents=1, number=number)

    pay.compensate(lambda: None)
    rt = Runtime(f"sqlite:///{tmp_path}/l.db", tools=[pay], secret_key="k" * 32)
    with rt.run("r"):
        assert pay("4242424242424242") == GoldCard(cents=1, number="4242424242424242")
    (call,) = rt.calls()
    assert "4242" not in repr(call)
    assert type(call.result) is GoldCard


def test_a_framework_s_own_objects_reach_its_handler_as_they_were() -> None:
    seen: list[Any] = []
    rt = runtime(declare("ext", kind="pivot", key="n"), declare("look", kind="read"))
    with rt.run("r") as run:
        for value in (Customer(7), Employee(7), Colour.RED, {"a": [Card(cents=1)]}, "red"):
            run.answer("look", {"what": value}, handler=lambda what: seen.append(what))
        run.answer("ext", {"n": 1, "what": [GoldCard(cents=1)]}, handler=lambda n, what: seen.extend(what))
    values = (Customer(7), Employee(7), Colour.RED, {"a": [Card(cents=1)]}, "red", GoldCard(cents=1))
    assert [typed(one) for one in seen] == [typed(one) for one in values]
    assert len({call.digest for call in rt.calls("tool:look")}) == 5


def test_a_replay_that_asks_with_another_class_is_told_so() -> None:
    made = declared(Customer | Employee, [])
    rt = runtime(made)

    def agent(first: Any, second: Any) -> None:
        made(first)
        made(second)

    with rt.run("r"):
        agent(Employee(1), Customer(1))
    rt.replay("r", lambda: agent(Employee(1), Customer(1)))
    with pytest.raises(Diverged) as other:
        rt.replay("r", lambda: agent(Customer(1), Employee(1)))
    assert "Employee" in str(other.value)


def test_a_person_names_the_class_of_what_happened() -> None:
    @tool(kind="pivot")
    def pay() -> Cash | Card:
        raise TimeoutError

    rt = runtime(pay)
    with pytest.raises(Error), rt.run("r"):
        pay()
    (call,) = rt.calls()
    rt.resolve(call.id, Happened({"$class": ["Card", {"cents": 5}]}), by="anna", why="seen at the bank")
    (call,) = rt.calls()
    assert typed(call.result) == typed(Card(cents=5))


# ---- aliases that name themselves, lazy annotations, results that only the compensation names ---------------------------

Tree = Union[Customer, Employee, list["Tree"]]  # noqa: UP007


def test_an_alias_that_names_itself_is_read_at_every_depth() -> None:
    seen: list[Any] = []

    @tool(kind="pivot")
    def plant(tree: Tree) -> None:
        seen.append(tree)

    values: list[Any] = [[[Customer(1)]], [[Employee(1)]], [[[Employee(1), [Customer(2)]]]]]
    for number, value in enumerate(values):
        with runtime(plant).run(str(number)):
            plant(value)
        assert typed(seen[-1]) == typed(value)


@pytest.mark.parametrize("value", [[1, 2], (1, 2), {1, 2}, frozenset({1, 2})], ids=repr)
def test_what_can_be_gone_through_reaches_the_body_as_it_was_given(value: Any) -> None:
    seen: list[Any] = []
    made = declared(Iterable[int], seen)
    with runtime(made).run("r") as run:
        made(value)
        assert isinstance(run.answer("grant", {"to": ["x"]}).error, BadArguments)
    assert [typed(one) for one in seen] == [typed(value)]


@pytest.mark.parametrize("hint, got", [(Customer, Customer(1)), (Customer | Employee, {"id": 1}), (Any, {"id": 1})])
def test_a_result_that_only_the_compensation_names_is_given_to_it_so(hint: Any, got: Any) -> None:
    seen: list[Any] = []

    @tool
    def find(id: int):
        return Customer(id)

    def undo(result: Any) -> None:
        seen.append(result)

    undo.__annotations__["result"] = hint
    find.compensate(undo)
    rt = runtime(find)
    with pytest.raises(KeyError), rt.run("r"):
        find(1)
        raise KeyError
    assert [typed(one) for one in seen] == [typed(got)], "no class was written down: one of several is a guess"
    assert [call.loss for call in rt.calls()] == ["result came back as dict, was Customer"]


def test_a_result_in_a_typed_dict_of_any_origin_has_its_classes() -> None:
    seen: list[Any] = []
    table: Any = typing.TypedDict("table", {"who": Customer, "pays": list[Card]})  # type: ignore[operator]
    value = {"who": Customer(1), "pays": [Card(cents=1)]}

    def find(id: int) -> Any:
        return value

    find.__annotations__["return"] = table
    made = tool(find, compensate=lambda result: seen.append(result))
    with pytest.raises(KeyError), runtime(made).run("r"):
        seen += [made(1), made(1)]
        raise KeyError
    assert [typed(one) for one in seen] == [typed(value)] * 3
