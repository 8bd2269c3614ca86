"""A whole toolkit is declared at once, and a body that is given later brings what ``tool(fn)`` brings."""

from __future__ import annotations

import asyncio
import functools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from amends import AsyncRuntime, Runtime, declare, declare_all, tool
from amends.errors import BadDeclaration, RolledBack
from amends.testing import runtime

SAID: list[str] = []


def search(word: str, limit: int = 3) -> list[str]:
    """Find products."""
    return [word] * limit


def charge(order: str, cents: int) -> str:
    SAID.append(f"charge {order}")
    return f"ch_{order}"


async def refund(order: str) -> None:
    SAID.append(f"refund {order}")


class Shop:
    """A toolkit with a state."""

    fee = 3

    def __init__(self, name: str = "shop") -> None:
        self.name = name

    def find(self, word: str) -> str:
        return f"{self.name} {word}"

    @staticmethod
    def add(a: int, b: int) -> int:
        return a + b

    @classmethod
    def make(cls, sku: str) -> str:
        return f"{cls.__name__} {sku}"

    @property
    def broken(self) -> str:
        raise AssertionError("a property is not a tool, and is not evaluated")

    def _own(self) -> None:
        raise AssertionError("not public")


class Strict(Shop):
    """A toolkit that cannot be created without arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(name)


def names_of(tools: list[Any]) -> list[str]:
    return [one.name for one in tools]


def kit_module(**functions: Any) -> ModuleType:
    module = ModuleType("kit_of_a_test")
    for name, fn in functions.items():
        if callable(fn):
            fn = functools.wraps(fn)(lambda *args, _fn=fn, **kwargs: _fn(*args, **kwargs))
            fn.__module__ = module.__name__
        setattr(module, name, fn)
    return module


READ: Any = {"kind": "read"}

# ---- What a toolkit may be


@pytest.mark.parametrize(
    "kit",
    [
        [search, charge],
        (search, charge),
        {"search": search, "charge": charge},
        {"search": search, "charge": charge}.values(),
        iter([search, charge]),
    ],
)
def test_functions_in_a_list_or_a_dict_are_tools_with_schema_and_validation(kit: Any) -> None:
    SAID.clear()
    tools = declare_all(
        kit, {"search": READ, "charge": {"key": "order", "compensate": lambda order: SAID.append("back")}}
    )
    assert names_of(tools) == ["search", "charge"]
    rt = Runtime("memory:", tools=tools)
    told = {one["function"]["name"]: one["function"] for one in rt.schemas()}
    assert told["search"]["description"] == "Find products."
    assert told["charge"]["parameters"]["required"] == ["order", "cents"]
    with pytest.raises(RolledBack), rt.run() as run:
        wrong = run.answer("charge", {"order": "7", "cents": "many"})
        assert wrong.is_error
        assert "charge.cents" in wrong.text
        assert SAID == []
        assert run.answer("charge", {"order": "7", "cents": 500}).value == "ch_7"
        assert run.answer("search", {"word": "a"}).value == ["a", "a", "a"]
        tools[0](word="b")  # type: ignore[operator]
        run.rollback("enough")
    assert SAID == ["charge 7", "back"]


def test_the_public_functions_of_a_module_are_its_tools() -> None:
    module = kit_module(search=search, charge=charge, _own=refund, LIMIT=3)
    module.helper = refund  # type: ignore[attr-defined]  # of another module
    with pytest.raises(BadDeclaration, match="charge") as caught:
        declare_all(module, {"search": READ})
    assert caught.value.tool == "charge"
    assert "test_toolkits.py" in caught.value.where
    tools = declare_all(module, {"search": READ, "charge": {"kind": "pivot"}})
    assert names_of(tools) == ["search", "charge"]
    assert not hasattr(module.search, "__amends__"), "the module is as it was"
    more = declare_all(module, {"helper": {"kind": "pivot"}}, rest="skip")  # who names it, means it
    assert names_of(more) == ["helper"]


def test_a_module_that_says_what_is_public_is_believed() -> None:
    module = kit_module(search=search, charge=charge)
    module.__all__ = ["search"]  # type: ignore[attr-defined]
    assert names_of(declare_all(module, {"search": READ})) == ["search"]


@pytest.mark.parametrize("kit, name", [(Shop("mine"), "mine"), (Shop, "shop")])
def test_methods_of_an_object_or_of_a_class_are_bound(kit: Any, name: str) -> None:
    tools = declare_all(kit, {}, rest=READ)
    assert names_of(tools) == ["find", "add", "make"]
    with runtime(tools=[tools]) as rt, rt.run() as run:
        assert run.answer("find", {"word": "a"}).value == f"{name} a"
        assert run.answer("add", {"a": 1, "b": "2"}).value == 3
        assert run.answer("make", {"sku": "s"}).value == "Shop s"
        assert "self" not in str(rt.schemas())


def test_a_class_that_needs_arguments_is_created_by_its_user() -> None:
    with pytest.raises(BadDeclaration, match=r"declare_all\(Strict\(…\)"):
        declare_all(Strict, {}, rest=READ)
    assert names_of(declare_all(Strict("mine"), {}, rest=READ)) == ["find", "add", "make"]


def test_an_object_that_can_be_iterated_is_not_taken_for_a_list() -> None:
    class Kit(BaseModel):
        name: str = "kit"

        def find(self, word: str) -> str:
            return f"{self.name} {word}"

    tools = declare_all(Kit(), {"find": READ}, rest="skip")
    with runtime(tools=tools) as rt, rt.run() as run:
        assert run.answer("find", {"word": "a"}).value == "kit a"


def test_names_and_tools_of_a_framework_are_declared_without_a_body() -> None:
    tools = declare_all(["balance", SimpleNamespace(name="transfer")], {"balance": READ, "transfer": {"kind": "pivot"}})
    rt = Runtime("memory:", tools=tools)
    assert rt.schemas() == []
    with rt.run() as run:
        assert run.answer("balance", {"iban": "X"}, handler=lambda iban: 3).value == 3


def test_both_colours_and_a_compensation_by_its_name() -> None:
    SAID.clear()
    tools = declare_all([charge, refund], {"charge": {"compensate": "refund"}, "refund": {"kind": "pivot"}})

    async def agent() -> None:
        async with AsyncRuntime("memory:", tools=tools) as rt:
            with pytest.raises(RolledBack):
                async with rt.run() as run:
                    await run.answer("charge", {"order": "7", "cents": 1})
                    await run.rollback("enough")

    asyncio.run(agent())
    assert SAID == ["charge 7", "refund 7"]


def test_what_is_a_tool_already_is_kept_as_it_is() -> None:
    ready = tool(search, kind="read", name="search")
    assert declare_all([ready, charge], {"charge": {"kind": "pivot"}})[0] is ready
    with pytest.raises(BadDeclaration, match="already a tool"):
        declare_all([ready], {"search": READ})


def test_a_tool_may_be_renamed_and_left_out() -> None:
    tools = declare_all([search, charge], {"search": {"kind": "read", "name": "shop.search"}, "charge": None})
    assert names_of(tools) == ["shop.search"]


# ---- What is refused, before anything runs


@pytest.mark.parametrize(
    "kit, options, rest, named, words",
    [
        ([search], {"serach": READ}, "skip", "serach", "did you mean 'search'"),
        ([search], {"search": READ, "pay": READ}, "raise", "pay", "no tool 'pay'"),
        ([search, charge], {"search": READ}, "raise", "charge", "not declared"),
        ([search], {"search": {"knd": "read"}}, "raise", "search", 'did you mean "kind"'),
        ([search], {"search": "read"}, "raise", "search", "not a mapping"),
        ([search], {"search": {"kind": "read", "name": ""}}, "raise", "search", "not a name"),
        ([search], ["search"], "raise", "", "mapping"),
        ([search, search], {"search": READ}, "raise", "search", "two tools"),
        ([lambda a: a], {}, READ, "", "as a dict"),
        ([3], {}, READ, "", "no name"),
        ([], {}, "raise", "", "no tool"),
        (None, {}, READ, "", "not a toolkit"),
        ("search", {}, READ, "", "not a toolkit"),
        (Shop, {"broken": READ}, "skip", "broken", "no tool 'broken'"),
        ([search], {"search": None}, "raise", "", "no tool to declare"),
        ({"rows": lambda: (yield 1)}, {"rows": READ}, "raise", "rows", "generator"),
        ({"x": 3}, {"x": READ}, "raise", "x", "neither a function"),
    ],
)
def test_what_cannot_be_declared_is_named(kit: Any, options: Any, rest: Any, named: str, words: str) -> None:
    with pytest.raises(BadDeclaration) as caught:
        declare_all(kit, options, rest=rest)
    assert (caught.value.tool, words in str(caught.value)) == (named, True), str(caught.value)
    assert caught.value.where


# ---- A body that is given later


def test_a_body_that_is_reached_brings_its_schema_and_validates() -> None:
    SAID.clear()
    rt = Runtime("memory:", tools=[declare("charge", kind="pivot", key="order"), declare("search", kind="read")])
    assert rt.schemas() == []
    rt.reach({"charge": charge, "search": search})
    told = {one["function"]["name"]: one["function"] for one in rt.schemas()}
    whole = Runtime("memory:", tools=[tool(charge, kind="pivot", key="order"), tool(search, kind="read")])
    assert told == {one["function"]["name"]: one["function"] for one in whole.schemas()}
    with rt.run() as run:
        missing = run.answer("charge", {"order": "7"})
        assert missing.is_error
        assert "charge.cents" in missing.text
        assert SAID == []
        assert "tip" in run.answer("charge", {"order": "7", "cents": 1, "tip": 2}).text
        assert run.answer("charge", {"order": "7", "cents": "500"}).value == "ch_7"
        assert next(iter(rt.calls("tool:charge"))).args == {"order": "7", "cents": 500}


def test_a_body_of_either_colour_validates_in_an_async_run() -> None:
    async def agent() -> None:
        async with AsyncRuntime(
            "memory:", tools=[declare("refund", kind="pivot"), declare("search", kind="read")]
        ) as rt:
            rt.reach({"refund": refund, "search": search})
            async with rt.run() as run:
                assert (await run.answer("refund", {"id": "7"})).is_error
                assert (await run.answer("search", {"word": "a", "limit": 1})).value == ["a"]
                assert not (await run.answer("refund", {"order": "7"})).is_error

    asyncio.run(agent())


def test_a_body_that_does_not_fit_its_declaration_changes_nothing() -> None:
    rt = Runtime("memory:", tools=[declare("charge", kind="pivot", key="invoice"), declare("search", kind="read")])
    with pytest.raises(BadDeclaration, match="invoice"):
        rt.reach({"search": search, "charge": charge})
    assert rt.schemas() == []
    with pytest.raises(BadDeclaration) as caught:
        rt.reach({"search": lambda *words: words})
    assert caught.value.tool == "search"
    with pytest.raises(BadDeclaration, match=r"search\.fn"):
        rt.reach({"search": tool(search, kind="read")})
    rt.reach({"search": search})
    assert len(rt.schemas()) == 1


def test_a_body_that_takes_anything_gets_what_is_given() -> None:
    rt = Runtime("memory:", tools=[declare("search", kind="read")])
    rt.reach({"search": lambda **given: given})
    assert rt.schemas() == []
    with rt.run() as run:
        assert run.answer("search", {"word": 1}).value == {"word": 1}
        rt.reach({"search": search})  # a better one, later
        assert run.answer("search", {"word": "a", "limit": 1}).value == ["a"]
    assert len(rt.schemas()) == 1


def test_a_framework_may_keep_the_description_to_itself() -> None:
    rt = Runtime("memory:", tools=[declare("search", kind="read")])
    rt.reach({"search": search}, described=False)
    assert rt.schemas() == []


def test_local_classes_in_postponed_annotations_are_found() -> None:
    class Item(BaseModel):
        sku: str

    def order(item: Item) -> str:
        return item.sku

    rt = Runtime("memory:", tools=[declare("order", kind="pivot")])
    rt.reach({"order": order})
    with rt.run() as run:
        assert run.answer("order", {"item": {}}).is_error
        assert run.answer("order", {"item": {"sku": "S"}}).value == "S"


def test_a_setter_that_is_reached_may_be_its_own_compensation() -> None:
    world = {"a": 1}

    def put(name: str, value: int) -> None:
        world[name] = value

    own = declare("put", key="name", compensate="put", before=lambda name: world[name])
    with pytest.raises(BadDeclaration):
        Runtime("memory:", tools=[own])
    own = declare("put", key="name", compensate="put", before=lambda name: world[name], like=put)
    rt = Runtime("memory:", tools=[own])
    rt.reach({"put": put})
    with pytest.raises(RolledBack), rt.run() as run:
        run.answer("put", {"name": "a", "value": 2})
        run.rollback("enough")
    assert world == {"a": 1}


def test_a_declaration_may_be_like_a_function() -> None:
    rt = Runtime("memory:", tools=[declare("find", kind="read", like=search)])
    told = rt.schemas()[0]["function"]
    assert (told["name"], told["description"]) == ("find", "Find products.")
    with rt.run() as run:
        assert run.answer("find", {"limit": 1}, handler=lambda **given: [given["word"]]).is_error
        assert (
            run.answer("find", {"word": "a"}, handler=lambda **given: str(given)).value == "{'word': 'a', 'limit': 3}"
        )
    rt.reach({"find": lambda **given: sorted(given)})
    with rt.run() as run:
        assert run.answer("find", {"word": "a"}).value == ["limit", "word"]


@pytest.mark.parametrize("like", [3, "search", Shop, tool(search, kind="read")])
def test_what_cannot_describe_a_tool_is_refused(like: Any) -> None:
    with pytest.raises(BadDeclaration) as caught:
        declare("find", kind="read", like=like)
    assert caught.value.tool == "find"


def test_declare_takes_a_name() -> None:
    with pytest.raises(BadDeclaration, match="the name of a tool") as caught:
        declare(search, kind="read")  # type: ignore[arg-type]
    assert caught.value.tool == "search"
    assert "tool(fn" in (caught.value.hint or "")


def test_a_file_may_say_what_a_tool_is_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kit_in_a_file", kit_module(search=search))
    (tmp_path / "amends.toml").write_text('[[tools]]\nname = "find"\nkind = "read"\nlike = "kit_in_a_file:search"\n')
    monkeypatch.chdir(tmp_path)
    assert Runtime("memory:").schemas()[0]["function"]["name"] == "find"
