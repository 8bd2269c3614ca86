"""Compiled tools: byte for byte the texts and digests of the general path, and None for everything that is not plain."""

from __future__ import annotations

import math
from hashlib import sha256
from types import NoneType
from typing import Any, Literal, Optional

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from amends import Runtime, tool
from amends.encoding.canonical import CHARS_MAX, PAYLOAD_BYTES_MAX, SAFE_INT, canonical, encode, plain_copy
from amends.encoding.payloads import load_result
from amends.engine.compiled import (
    IDENT,
    NOT_AGAIN,
    Compiled,
    compiled,
    digests,
    is_exact,
    key_head,
    part,
    result_kinds,
)  # fmt: skip
from amends.engine.keys import call_key, identity_digest, request_digest
from amends.engine.session import Ask, ask_for
from amends.errors import Error
from amends.host.requests import direct_ask
from amends.tools.compensation import Body
from amends.tools.declarations import declare, specs_of
from amends.tools.scope import Options
from amends.tools.spec import Spec

SCALARS = st.one_of(
    st.text(),
    st.text(st.characters()),  # with lone surrogates
    st.sampled_from(
        ["", '"', "\\", "\x00\x1f\x7f", "é", "e\u0301", "\ud800", "😀", "\u2028", "$number", "a" * CHARS_MAX]
    ),
    st.integers(),
    st.sampled_from([SAFE_INT, SAFE_INT + 1, -SAFE_INT, -SAFE_INT - 1, 10**40, True, False, None]),
    st.floats(),
    st.sampled_from([1.0, -0.0, 0.1, 1e-7, 1e16, 1e22, 1e32, 1e300, 2.5e-300, math.nan, math.inf, -math.inf, 1 / 3]),
    st.sampled_from(["x" * (CHARS_MAX + 1), "é" * (CHARS_MAX + 1)]),
)


def undo() -> None: ...


@tool(compensate=undo)
def anything(zeta, alpha=7, *, beta: Any = None) -> None: ...  # type: ignore[no-untyped-def]


@tool(compensate=undo, version="2")
def typed(order: str, cents: int, rate: float = 1.0, rush: bool = False, note: str | None = None) -> None: ...


@tool(compensate=undo, key="order")
def keyed(cents: int, order: str) -> None: ...


@tool(compensate=undo, key=["b", "a"], ignore="rest")
def rest(b: str, c: float, a: int) -> None: ...


@tool(compensate=undo, ignore=["trace"])
def ignoring(order: Optional[str], trace: str | int | None = None) -> None: ...  # noqa: UP045 (another spelling)


@tool(kind="read")
def nothing() -> None: ...


SPECS = specs_of([anything, typed, keyed, rest, ignoring, nothing], order="strict")


def made(spec: Spec) -> Compiled:
    found = compiled(spec, advise=False)
    assert found is not None, f"{spec.name} is plain"
    return found


def check(spec: Spec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Compare both ways; return whether the compiled one took the arguments."""
    tool = made(spec)
    try:
        bound = tool.bind(*args, **kwargs)
    except TypeError:
        bound = None
    if bound is None:
        return False
    given, text, named, meaning, whole = bound
    expected = spec.bind(args, kwargs)
    assert (list(given.items()), [type(v) for v in given.values()]) == (
        list(expected.items()),
        [type(v) for v in expected.values()],
    )
    assert text == encode(expected, path="args", shape=spec.shape)
    assert len(text.encode()) <= PAYLOAD_BYTES_MAX
    all_of_it = canonical(expected, shape=spec.shape)
    intent = canonical(spec.intent(expected), shape=spec.shape) if spec.ignore else all_of_it
    assert not callable(spec.key), "a key function is not compiled"
    ident = intent if spec.key is None else canonical({name: expected[name] for name in spec.key}, shape=spec.shape)
    assert (named, meaning, whole) == (part(ident), part(intent), part(all_of_it))
    key, same, digest = digests(key_head("t", "run_1", spec.name), tool.digest_head, named, meaning, whole)
    assert key.hex() == call_key("t", "run_1", spec.name, ident)
    assert same.hex() == identity_digest(intent)
    assert digest.hex() == request_digest(spec.name, spec.version, all_of_it)
    assert key == sha256(key_head("t", "run_1", spec.name) + named + NOT_AGAIN).digest()
    assert same == sha256(IDENT + meaning).digest()
    return True


@settings(max_examples=400, deadline=None)
@given(SCALARS, SCALARS, SCALARS)
@example("é", 1.0, -0.0)
@example("e\u0301", 0.1, True)
def test_any_scalar_is_written_as_the_general_path_writes_it(zeta: Any, alpha: Any, beta: Any) -> None:
    check(SPECS["anything"], (zeta,), {"alpha": alpha, "beta": beta})


@settings(max_examples=300, deadline=None)
@given(st.text(), st.integers(-SAFE_INT, SAFE_INT), st.floats(-1e15, 1e15), st.booleans(), st.none() | st.text())
def test_arguments_of_the_annotated_types_are_plain(
    order: str, cents: int, rate: float, rush: bool, note: str | None
) -> None:
    is_plain = check(SPECS["typed"], (order,), {"cents": cents, "rate": rate, "rush": rush, "note": note})
    assert is_plain or "e" in repr(rate)  # a very small number is left to the general path


@settings(max_examples=150, deadline=None)
@given(st.text(), st.integers(-SAFE_INT, SAFE_INT), st.floats(-1e6, 1e6))
def test_keys_and_ignored_arguments_are_those_of_the_general_path(text: str, number: int, other: float) -> None:
    assert check(SPECS["keyed"], (number, text), {})
    check(SPECS["rest"], (), {"a": number, "b": text, "c": other})
    assert check(SPECS["ignoring"], (text,), {"trace": number})
    assert check(SPECS["ignoring"], (), {"order": None, "trace": None})


def test_a_tool_without_arguments_and_defaults_are_plain() -> None:
    assert check(SPECS["nothing"], (), {})
    assert check(SPECS["typed"], ("o", 1), {})
    assert check(SPECS["anything"], (1,), {})


@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((), {}),
        (("o",), {}),
        (("o", 1, 2.0, False, None, 6), {}),
        (("o", 1), {"order": "o"}),
        (("o", 1), {"unknown": 1}),
        (("o", 1), {"again_because": "twice"}),
        (("o", True), {}),
        (("o", "1"), {}),
        ((b"o", 1), {}),
        (("\ud800", 1), {}),
        (("x" * (CHARS_MAX + 1), 1), {}),
        (("x" * CHARS_MAX, 1), {"note": "y" * CHARS_MAX}),
        (("o", SAFE_INT + 1), {}),
        (("o", 1), {"rate": 1}),
        (("o", 1), {"rate": math.nan}),
        (("o", 1), {"rate": 1e300}),
        (("o", 1), {"rush": 0}),
    ],
)
def test_what_is_not_plain_is_left_to_the_general_path(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert not check(SPECS["typed"], args, kwargs)


def test_a_subclass_of_a_plain_type_is_not_plain() -> None:
    class Text(str):
        __slots__ = ()

    class Number(int): ...

    assert not check(SPECS["typed"], (Text("o"), 1), {})
    assert not check(SPECS["typed"], ("o", Number(1)), {})


@tool(compensate=undo)
def lists(items: list[str]) -> None: ...


@tool(compensate=undo)
def named(**more: str) -> None: ...


@tool(compensate=undo, key=lambda request: request.args["n"])
def by_function(n: int) -> None: ...


@tool(compensate=undo, scope="ledger", key="n")
def everywhere(n: int) -> None: ...


@tool(kind="pivot")
def pivot(n: int) -> None: ...


@tool(compensate=undo, timeout=3.0)
def timed(n: int) -> None: ...


@tool(compensate=undo, needs_approval=True)
def asked(n: int) -> None: ...


@tool(compensate=undo, cost=1)
def costly(n: int) -> None: ...


@tool(compensate=undo, locks=lambda call: [str(call.args["n"])])
def locking(n: int) -> None: ...


@tool(compensate=undo, redact=["n"])
def hiding(n: int) -> None: ...


@pytest.mark.parametrize("one", [lists, named, by_function, everywhere, pivot, timed, asked, costly, locking, hiding])
def test_tools_that_need_the_general_path_are_not_compiled(one: Any) -> None:
    try:
        [spec] = specs_of([one], order="strict").values()
    except Error as error:
        pytest.fail(str(error))
    assert compiled(spec, advise=False) is None


@pytest.mark.parametrize(
    "annotation, kinds",
    [
        (Any, None),
        (dict, {dict: None}),
        (dict[str, Any], {dict: None}),
        (list[Any], {list: None}),
        (str, {str: None}),
        (None, {NoneType: None}),
        (NoneType, {NoneType: None}),
        (dict[str, int], {dict: {int: None}}),
        (dict[str, list[float] | None], {dict: {list: {float: None}, NoneType: None}}),
        (str | None, {str: None, NoneType: None}),
        (dict[int, str], {}),
        (dict[str, int] | dict[str, str], {}),
        (list[Spec], {}),
        (Literal["a"], {}),
        (str | Spec, {}),
        (Spec, {}),
    ],
)
def test_results_that_need_no_validation(annotation: Any, kinds: Any) -> None:
    assert result_kinds(annotation) == kinds


SCALAR = (
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | st.text(max_size=5)
)
ANNOTATIONS = (
    NoneType, bool, int, float, str, str | None, int | float, bool | int | None, dict[str, bool], dict[str, int | str],
    list[float], list[dict[str, str]] | None, dict[str, list[int] | None], list[str] | dict[str, str],
)  # fmt: skip


ANYTHING = st.recursive(
    SCALAR, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3), max_leaves=6
)


@given(st.sampled_from(ANNOTATIONS).flatmap(lambda one: st.tuples(st.just(one), st.from_type(one) | ANYTHING)))
def test_an_exact_result_is_what_pydantic_would_return(case: tuple[Any, Any]) -> None:
    annotation, value = case
    kinds = result_kinds(annotation)
    assert kinds, "each of these annotations names exact types only"
    if is_exact(value, kinds):
        assert repr(TypeAdapter(annotation).validate_python(value)) == repr(value)
        kept = plain_copy(value)
        if kept is not None:
            assert repr(load_result(kept[0], annotation)) == repr(kept[1]) == repr(value)
            assert kept[0] == encode(value, path="the result")


@pytest.mark.parametrize(
    "value, annotation",
    [({"ok": 1}, dict[str, bool]), (1, float), ([1, "2"], list[int]), ({"a": None}, dict[str, str]), (True, int)],
)
def test_another_type_anywhere_in_a_result_is_left_to_pydantic(value: Any, annotation: Any) -> None:
    kinds = result_kinds(annotation)
    assert kinds
    assert not is_exact(value, kinds)


def test_a_general_request_of_a_compiled_tool_is_the_one_that_the_general_path_makes() -> None:
    def fields_of(ask: Ask) -> tuple[Any, ...]:
        return ask.spec, dict(ask.args), ask.text, ask.key, ask.ident, ask.digest, ask.fn, ask.is_async, ask.timeout

    with Runtime("memory:", tools=[typed, keyed, rest, ignoring]) as rt, rt.run("run") as run:
        session, host = run._session, run._host
        for one, args in ((typed, ("é", 5)), (keyed, (1, "o")), (rest, ("b", 0.5, 2)), (ignoring, (None, "x"))):
            spec = host.spec_for(one.__amends__)
            assert host.compiled_for(one.__amends__) is not None
            for timeout in (None, 3.0):
                ask = direct_ask(host, session, one.__amends__, Options(timeout=timeout), args, {})
                general = ask_for(session, spec, spec.bind(args, {}), timeout=timeout)
                assert ask.recorded_digest, "it was made by the compiled tool"
                assert fields_of(ask) == fields_of(general)
        again = direct_ask(host, session, keyed.__amends__, Options(again="twice"), (1, "o"), {})
        assert again.again == "twice"
        assert again.key != direct_ask(host, session, keyed.__amends__, Options(), (1, "o"), {}).key


def elsewhere(**options: Any) -> Spec:
    async def body(**args: Any) -> Any: ...

    declared = declare("far", **{"compensate": undo_far, **options})
    [spec] = specs_of([declared], order="strict", bodies={"far": Body(body, False)}).values()
    return spec


def undo_far(call: Any) -> None: ...


FAR = {
    "all": elsewhere(),
    "keyed": elsewhere(key=["order"]),
    "ignoring": elsewhere(ignore=["trace"]),
    "rest": elsewhere(key=["order"], ignore="rest"),
}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FAR)), st.text(), st.text(max_size=5), SCALARS, SCALARS)
@example("all", "e\u0301 [{", "order", 0.1, "{}")
def test_a_tool_that_lives_elsewhere_is_written_as_the_general_path_writes_it(
    which: str, order: str, name: str, value: Any, trace: Any
) -> None:
    given = {"order": order, name: value, "trace": trace}
    check(FAR[which], (), given)


@pytest.mark.parametrize("which", sorted(FAR))
def test_ordinary_arguments_of_a_tool_elsewhere_are_plain(which: str) -> None:
    assert check(FAR[which], (), {"order": "[a] {b}", "cents": 5, "rate": 0.5, "rush": True, "trace": None})


@pytest.mark.parametrize(
    "given",
    [
        {"order": ["a"]},
        {"order": {"a": 1}},
        {"trace": "no order"},
        {"order": "a", "again_because": "twice"},
        {"order": "x" * (CHARS_MAX + 1)},
        {"order": "a", "\u00e9": 1},
    ],
)
def test_what_a_tool_elsewhere_leaves_to_the_general_path(given: dict[str, Any]) -> None:
    assert not check(FAR["keyed"], (), given)
