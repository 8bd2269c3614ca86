"""What @tool gives back: a real function that finds its run, or a class left alone."""

import asyncio
import functools
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from amends.errors import BadDeclaration, NoRun, WrongColour
from amends.tools.declarations import declare, specs_of
from amends.tools.scope import Options, enter_scope, leave_scope
from amends.tools.spec import Declaration
from amends.tools.tool import tool


@dataclass
class Notebook:
    """A caller that writes down what it was asked for."""

    is_async: bool = False
    _is_nowhere: bool = False
    _is_replay: bool = False
    asked: list[tuple[Declaration, Options, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.asked.append((declared, options, args, kwargs))
        return self._later() if self.is_async else "done"

    async def _later(self) -> str:
        return "done"


@contextmanager
def inside(caller: Notebook) -> Iterator[Notebook]:
    scope = enter_scope(caller)
    try:
        yield caller
    finally:
        leave_scope(scope)


def plain_charge(order_id: str, cents: int = 1) -> str:
    """Take the money."""
    return f"{order_id}:{cents}"


@tool(kind="pivot")
def charge(order_id: str, cents: int = 1) -> str:
    """Take the money."""
    return f"{order_id}:{cents}"


@tool(kind="pivot")
async def acharge(order_id: str) -> str:
    return order_id


class Gateway:
    """A payment provider."""

    def __init__(self, url: str) -> None:
        self.url = url

    def execute(self, order_id: str) -> str:
        return f"{self.url}/{order_id}"

    def compensate(self, result: str) -> None: ...

    def charge(self, order_id: str, cents: int) -> str:
        return f"{self.url}/{order_id}/{cents}"

    def refund(self, result: str) -> None: ...


@tool
class Payment:
    def execute(self, order_id: str) -> str:
        """Pay."""
        return order_id

    def compensate(self, result: str) -> None: ...

    def probe(self, order_id: str) -> object: ...

    def guard(self, result: str) -> bool:
        return True


# ---- a real function ----------------------------------------------------------------------


def test_a_tool_is_a_plain_function_with_the_name_the_doc_and_the_module_of_its_body() -> None:
    assert inspect.isfunction(charge)
    assert (charge.__name__, charge.__doc__, charge.__module__) == ("charge", "Take the money.", __name__)


def test_a_tool_has_the_signature_and_the_hints_of_its_body() -> None:
    assert inspect.signature(charge) == inspect.signature(plain_charge)
    assert get_type_hints(charge) == {"order_id": str, "cents": int, "return": str}


def test_an_async_tool_is_a_coroutine_function_and_a_blocking_one_is_not() -> None:
    assert inspect.iscoroutinefunction(acharge)
    assert not inspect.iscoroutinefunction(charge)


@pytest.mark.parametrize("declared", [charge, acharge])
def test_a_tool_is_pickled_by_its_name(declared: Any) -> None:
    assert pickle.loads(pickle.dumps(declared)) is declared


def test_the_body_alone_is_fn_and_wrapped() -> None:
    made = tool(plain_charge, kind="pivot")
    assert made.fn is plain_charge
    assert inspect.unwrap(made) is plain_charge
    assert charge.fn("1", cents=2) == "1:2"


def test_a_tool_says_its_name_kind_and_version() -> None:
    named = tool(plain_charge, kind="pivot", name="bank.charge", version="7")
    assert (named.name, named.kind, named.version) == ("bank.charge", "pivot", "7")
    assert tool(plain_charge).kind == "compensatable"


def test_compensate_probe_guard_and_list_effects_give_their_argument_back() -> None:
    made: Any = tool(plain_charge)

    def twin(result: str) -> None: ...

    assert made.compensate(twin) is twin
    assert made.compensate(idempotent=True)(twin) is twin
    assert made.compensate(twin, wins=True) is twin
    assert made.probe(twin) is twin
    assert made.probe(settle=3)(twin) is twin
    assert made.guard(twin) is twin
    assert made.list_effects(twin) is twin


def test_a_twin_attached_again_replaces_the_first() -> None:
    made = tool(plain_charge)

    @made.compensate(idempotent=True)
    def first(result: str) -> None: ...

    @made.compensate
    def second(result: str) -> None: ...

    twin = specs_of([made], order="strict")["plain_charge"].compensate
    assert twin is not None
    assert (twin.fn, twin.idempotent) == (second, False)


def test_two_tools_of_one_function_know_nothing_of_each_other() -> None:
    one, other = tool(plain_charge), tool(plain_charge)
    one.compensate(lambda result: None)
    assert other.__amends__.compensate is None


def test_a_partial_and_a_callable_object_become_tools() -> None:
    class Sender:
        async def __call__(self, to: str) -> str:
            return to

    part = tool(functools.partial(plain_charge, cents=5), kind="pivot")
    sender = tool(Sender(), kind="pivot")
    assert (part.name, part.fn("1")) == ("plain_charge", "1:5")
    assert (sender.name, inspect.iscoroutinefunction(sender)) == ("Sender", True)


# ---- finding the run ----------------------------------------------------------------------


def test_outside_a_run_a_tool_does_not_run() -> None:
    with pytest.raises(NoRun) as refused:
        charge("1")
    assert refused.value.tool == "charge"
    assert "rt.run()" in refused.value.hint


def test_outside_a_run_an_async_tool_raises_when_awaited() -> None:
    pending = acharge("1")
    with pytest.raises(NoRun):
        asyncio.run(pending)


def test_inside_a_run_the_caller_gets_what_was_said() -> None:
    with inside(Notebook()) as caller:
        assert charge("1", cents=2) == "done"
    assert caller.asked == [(charge.__amends__, Options(), ("1",), {"cents": 2})]


def test_inside_an_async_run_an_async_tool_is_awaited() -> None:
    async def main() -> None:
        with inside(Notebook(is_async=True)) as caller:
            assert await acharge(order_id="1") == "done"
        assert caller.asked == [(acharge.__amends__, Options(), (), {"order_id": "1"})]

    asyncio.run(main())


def test_a_blocking_tool_in_an_async_run_is_refused_with_the_cure() -> None:
    with inside(Notebook(is_async=True)) as caller, pytest.raises(WrongColour) as refused:
        charge("1")
    assert caller.asked == []
    assert refused.value.hint == "await run.call(charge, …)"
    assert "await run.call(charge, …)" in str(refused.value)


def test_an_async_tool_in_a_blocking_run_is_refused_before_anything() -> None:
    with inside(Notebook()) as caller, pytest.raises(WrongColour) as refused:
        asyncio.run(acharge("1"))
    assert caller.asked == []
    assert refused.value.hint == "run.call(acharge, …)"


def test_options_travel_with_one_call_and_add_up() -> None:
    again = charge.with_options(again="second box").with_options(timeout=3.0)
    with inside(Notebook()) as caller:
        again("1")
        charge("1")
    assert [options for _, options, _, _ in caller.asked] == [Options(again="second box", timeout=3.0), Options()]
    assert inspect.signature(again) == inspect.signature(charge)
    assert again.__amends__ is charge.__amends__


@pytest.mark.parametrize("options", [{"again": " "}, {"timeout": 0}, {"timeout": -1.0}, {"timeout": float("nan")}])
def test_options_without_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadDeclaration) as refused:
        charge.with_options(**options)
    assert refused.value.tool == "charge"


# ---- classes, instances, bound methods ----------------------------------------------------


def test_a_declared_class_stays_what_it_was() -> None:
    assert isinstance(Payment, type)
    assert Payment().execute("1") == "1"
    assert isinstance(Payment.__dict__["__amends__"], Declaration)


def test_a_class_brings_its_own_twins() -> None:
    spec = specs_of([Payment], order="strict")["Payment"]
    assert spec.kind == "compensatable"
    assert spec.compensate is not None
    assert spec.probe is not None
    assert spec.guard is not None
    assert (spec.compensate.params, spec.probe.params, spec.guard.params) == (("result",), ("order_id",), ("result",))
    assert spec.description == "Pay."
    assert spec.bind(("1",), {}) == {"order_id": "1"}
    assert spec.fn is not None
    assert spec.fn(order_id="1") == "1"


def test_a_class_is_made_once_however_many_runtimes_have_it() -> None:
    first, second = (specs_of([Payment], order="strict")["Payment"].fn for _ in range(2))
    assert first is second


def test_a_class_that_needs_arguments_says_how_to_make_it() -> None:
    with pytest.raises(BadDeclaration, match=r"tool\(Gateway2\(…\)\)"):
        specs_of([tool(type("Gateway2", (Gateway,), {}))], order="strict")


def test_a_subclass_of_a_tool_is_no_tool() -> None:
    class Special(Payment): ...

    with pytest.raises(BadDeclaration):
        specs_of([Special], order="strict")


def test_an_instance_is_a_function_named_after_its_class() -> None:
    made = tool(Gateway("https://pay"))
    assert inspect.isfunction(made)
    assert (made.name, made.__name__, made.__doc__) == ("Gateway", "Gateway", "A payment provider.")
    assert made.fn("1") == "https://pay/1"
    assert list(inspect.signature(made).parameters) == ["order_id"]
    spec = specs_of([made], order="strict")["Gateway"]
    assert (spec.kind, spec.description) == ("compensatable", "A payment provider.")


def test_an_instance_of_a_declared_class_keeps_the_options_of_its_class() -> None:
    @tool(key="order_id", version="3", name="pay")
    class Wire:
        def __init__(self, bank: str = "a") -> None: ...

        def execute(self, order_id: str) -> str:
            return order_id

        def compensate(self, result: str) -> None: ...

    spec = specs_of([tool(Wire("b"), version="4")], order="strict")["pay"]
    assert (spec.key, spec.version) == (("order_id",), "4")


def test_a_bound_method_is_a_tool_with_its_object() -> None:
    gateway = Gateway("https://pay")
    made = tool(gateway.charge, compensate=gateway.refund, key="order_id")
    assert made.fn("1", 2) == "https://pay/1/2"
    assert list(inspect.signature(made).parameters) == ["order_id", "cents"]
    assert specs_of([made], order="strict")["charge"].bind(("1", 2), {}) == {"order_id": "1", "cents": 2}


def test_a_method_in_a_class_body_is_told_to_bind_first() -> None:
    with pytest.raises(BadDeclaration, match=r"bind first: tool\(shop\.pay\)") as refused:

        class Shop:
            @tool
            def pay(self, order_id: str) -> int:
                return 1

    assert refused.value.tool == "pay"
    assert "test_tool.py:" in refused.value.where


def test_a_static_method_below_its_own_decorator_is_a_tool() -> None:
    class Shop:
        @staticmethod
        @tool(kind="read")
        def look(order_id: str) -> int:
            return 1

    assert Shop.look.name == "look"


@pytest.mark.parametrize(
    "target",
    [
        3,
        staticmethod(plain_charge),
        classmethod(plain_charge),  # type: ignore[arg-type]
        charge,
        Gateway.charge,
        type("Empty", (), {}),
        lambda: (yield),
    ],
)
def test_what_cannot_be_a_tool_is_refused_where_it_is_declared(target: Any) -> None:
    with pytest.raises(BadDeclaration):
        tool(target)


def test_an_unknown_option_is_refused_with_a_guess_and_its_place() -> None:
    with pytest.raises(BadDeclaration, match="needs_approval") as found:
        tool(plain_charge, approval=True)  # type: ignore[call-overload]
    assert found.value.tool == "plain_charge"
    with pytest.raises(BadDeclaration, match='no option "compensat"; did you mean "compensate"') as found:
        declare("charge", compensat=plain_charge)  # type: ignore[call-arg]
    assert (found.value.tool, Path(found.value.where.partition(":")[0]).name) == ("charge", "test_tool.py")


# ---- declared elsewhere -------------------------------------------------------------------


def test_a_tool_that_lives_elsewhere_takes_any_named_arguments() -> None:
    spec = specs_of([declare("search", kind="read")], order="strict")["search"]
    assert (spec.fn, spec.signature, spec.result_type) == (None, None, Any)
    assert spec.bind_json('{"q": 1, "deep": {"a": [1]}}') == {"q": 1, "deep": {"a": [1]}}
    assert spec.where.endswith(f"test_tool.py:{inspect.currentframe().f_lineno - 3}")  # type: ignore[union-attr]


def test_pydantic_is_imported_by_the_first_value_that_is_not_exactly_of_a_plain_type() -> None:
    code = """
import sys
from amends.tools.declarations import specs_of
from amends.tools.tool import tool
@tool(kind="read")
def look(order_id: str) -> int: return 1
spec = specs_of([look], order="strict")["look"]
print("pydantic" in sys.modules)
spec.bind((), {"order_id": "1"})
print("pydantic" in sys.modules)
from amends.errors import BadArguments
try:
    spec.bind((), {"order_id": 1})
except BadArguments:
    print("pydantic" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
