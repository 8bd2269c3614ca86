"""What a tool may say of itself: every rule, refused with the tool, the place and a cure."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from amends.encoding.secret import RedactionRules, redaction_rules
from amends.errors import BadArguments, BadDeclaration
from amends.model import Call, Order, Request, Retry
from amends.tools.declarations import declare, specs_of
from amends.tools.spec import Declaration, Spec, named_arguments
from amends.tools.tool import tool


def charge(order_id: str, cents: int, note: str = "") -> str:
    return order_id


def refund(result: str) -> None: ...


def find(order_id: str) -> object: ...


def one(thing: object, order: Order = "strict") -> Spec:
    (spec,) = specs_of([thing], order=order).values()
    return spec


def said(fn: Callable[..., Any] = charge, /, **options: Any) -> Any:
    """A tool of these options, as a person might write them: unchecked."""
    return tool(fn, **options)


def refusal(*things: object, order: Order = "strict") -> BadDeclaration:
    with pytest.raises(BadDeclaration) as refused:
        specs_of(things, order=order)
    return refused.value


# ---- kinds --------------------------------------------------------------------------------


def test_a_compensation_makes_a_tool_compensatable() -> None:
    spec = one(said(compensate=refund))
    assert spec.kind == "compensatable"
    assert spec.compensate is not None
    assert spec.compensate.params == ("result",)


def test_neither_kind_nor_compensation_offers_exactly_three_ways() -> None:
    no = refusal(said())
    assert all(way in str(no) for way in ("@charge.compensate", 'kind="pivot"', 'kind="read"'))
    assert no.tool == "charge"
    assert no.where.endswith(f"test_declarations.py:{charge.__code__.co_firstlineno}")


def test_advise_does_not_excuse_saying_nothing() -> None:
    refusal(said(), order="advise")


def test_compensatable_without_compensation_is_for_advise_only() -> None:
    assert 'order="advise"' in str(refusal(said(kind="compensatable")))
    assert one(said(kind="compensatable"), order="advise").compensate is None
    assert one(said(kind="compensatable", order="advise")).order == "advise"
    refusal(said(kind="compensatable", order="strict"), order="advise")


@pytest.mark.parametrize("kind", ["pivot", "read", "retriable"])
def test_only_a_compensatable_tool_has_a_compensation(kind: str) -> None:
    assert f'kind="{kind}"' in str(refusal(said(kind=kind, compensate=refund, idempotent=True)))


def test_a_retriable_is_idempotent_or_probed() -> None:
    assert "idempotent=True" in str(refusal(said(kind="retriable")))
    assert one(said(kind="retriable", idempotent=True)).is_staging
    assert one(said(kind="retriable", idempotent="24h")).is_staging
    assert one(said(kind="retriable", probe=find)).is_staging


def test_a_pivot_stages_only_at_commit() -> None:
    assert one(said(kind="pivot", at="commit")).is_staging
    assert not one(said(kind="pivot")).is_staging


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "nonsense"},
        {"kind": "read", "scope": "everywhere"},
        {"kind": "read", "on_conflict": "ignore"},
        {"kind": "read", "on_failure": "panic"},
        {"kind": "pivot", "at": "once"},
        {"kind": "read", "order": "loose"},
        {"kind": "read", "version": 2},
        {"kind": "read", "at": "commit"},
        {"kind": "read", "after": ["find"]},
        {"kind": "read", "scope": "ledger"},
        {"kind": "read", "name": 7},
    ],
)
def test_words_that_amends_does_not_know_are_refused(options: dict[str, Any]) -> None:
    refusal(said(**options), tool(find, kind="read"))


def test_a_lambda_needs_a_name() -> None:
    refusal(said(lambda x: x, kind="read"))
    assert one(said(lambda x: x, kind="read", name="same")).name == "same"


# ---- after --------------------------------------------------------------------------------


def test_after_names_tools_that_can_come_before_a_pivot() -> None:
    pivot = said(kind="pivot", after="find")
    specs = specs_of([pivot, tool(find, kind="read")], order="strict")
    assert specs["charge"].after == ("find",)
    assert 'did you mean "find"' in str(refusal(said(kind="pivot", after=["fnd"]), tool(find, kind="read")))
    refusal(pivot, tool(find, kind="retriable", idempotent=True))
    refusal(pivot, tool(find, kind="pivot"))
    refusal(said(kind="pivot", after=["charge"]))


# ---- names --------------------------------------------------------------------------------


def test_two_tools_of_one_name_are_refused_with_both_places() -> None:
    def again(order_id: str) -> str:
        return order_id

    no = refusal(said(kind="read"), tool(again, kind="read", name="charge"))
    lines = [fn.__code__.co_firstlineno for fn in (charge, again)]
    assert all(f"test_declarations.py:{line}" in str(no) for line in lines)


def test_the_same_tool_twice_is_one() -> None:
    made = said(kind="read")
    assert list(specs_of([made, made.with_options(again="x"), made], order="strict")) == ["charge"]


def test_a_cell_run_again_makes_another_tool() -> None:
    def cell() -> Any:
        @tool(kind="read")
        def look() -> None: ...

        return look

    refusal(cell(), cell())
    assert specs_of([cell()], order="strict")


def test_a_module_brings_every_tool_it_holds() -> None:
    module = ModuleType("shop_tools")

    class Proxy:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("touched outside a request")

    @tool(kind="read")
    class Look:
        def execute(self, sku: str) -> int:
            return 1

    vars(module).update(
        charge=said(kind="pivot"), Look=Look, search=declare("search", kind="read"), plain=find, proxy=Proxy()
    )
    assert sorted(specs_of([module], order="strict")) == ["Look", "charge", "search"]


@pytest.mark.parametrize("thing", [charge, 3, ModuleType("empty"), object()])
def test_what_is_no_tool_is_refused(thing: object) -> None:
    refusal(thing)


# ---- twins --------------------------------------------------------------------------------


def test_a_twin_asks_by_name_for_the_result_the_call_and_the_arguments() -> None:
    def twin(call: Call, cents: int, result: str, order_id: str = "") -> None: ...

    made = one(said(compensate=twin)).compensate
    assert made is not None
    assert made.params == ("call", "cents", "result", "order_id")
    call = Call("r", "charge", "1", {})
    asked = named_arguments(made.params, args={"order_id": "1", "cents": 2, "note": ""}, result="ch", call=call)
    assert asked == {"call": call, "cents": 2, "result": "ch", "order_id": "1"}


def test_a_twin_with_kwargs_gets_every_argument() -> None:
    def twin(result: str, **rest: Any) -> None: ...

    made = one(said(compensate=twin)).compensate
    assert made is not None
    asked = named_arguments(made.params, args={"order_id": "1", "cents": 2}, result="ch", call=Call("r", "c", "1", {}))
    assert asked == {"order_id": "1", "cents": 2, "result": "ch"}


def test_an_older_record_leaves_out_what_it_does_not_have() -> None:
    assert named_arguments(("order_id", "note"), args={"order_id": "1"}, result=None, call=Call("r", "c", "1", {})) == {
        "order_id": "1"
    }


def test_a_result_is_the_calls_even_if_an_argument_has_that_name() -> None:
    call = Call("r", "c", "1", {})
    assert named_arguments(("result",), args={"result": "mine"}, result="theirs", call=call) == {"result": "theirs"}


def test_a_twin_that_asks_for_what_is_not_there_is_refused_with_what_is() -> None:
    def twin(order: str) -> None: ...

    def relaxed(result: str, order: str = "") -> None: ...

    for option in ("compensate", "probe"):
        kind = {} if option == "compensate" else {"kind": "read"}
        no = refusal(said(**kind, **{option: twin}))
        assert '"order"' in str(no)
        assert "order_id, cents, note" in str(no)
    made = said(compensate=refund)
    made.guard(twin)
    refusal(made)
    assert one(said(compensate=relaxed)).compensate.params == ("result",)  # type: ignore[union-attr]


def test_a_probe_cannot_ask_for_the_result_but_that_of_a_compensation_can() -> None:
    def ask(result: str) -> object: ...

    refusal(said(kind="read", probe=ask))
    made = said()
    made.compensate(refund, probe=ask)
    assert one(made).compensate.probe.params == ("result",)  # type: ignore[union-attr]


def test_a_twin_that_cannot_be_called_by_name_is_refused() -> None:
    def twin(result: str, /) -> None: ...

    refusal(said(compensate=twin))
    refusal(said(compensate=7))
    refusal(said(compensate=dict.update))


def test_any_names_will_do_where_the_signature_is_not_known() -> None:
    def twin(result: str, whatever: int) -> None: ...

    assert one(declare("book", compensate=twin)).compensate.params == ("result", "whatever")  # type: ignore[union-attr]
    assert one(tool(lambda **rest: None, name="book", compensate=twin)).kind == "compensatable"


def test_a_tool_can_be_the_twin_by_its_name_or_itself() -> None:
    @tool(kind="retriable", idempotent=True)
    async def cancel(result: str) -> None: ...

    for twin in ("cancel", cancel):
        made = specs_of([said(compensate=twin), cancel], order="strict")["charge"].compensate
        assert made is not None
        assert (made.fn, made.tool, made.is_async, made.idempotent) == (cancel.fn, "cancel", True, True)


def test_a_twin_that_lives_elsewhere_is_known_by_its_name_alone() -> None:
    tools = [declare("book", compensate="cancel"), declare("cancel", kind="retriable", idempotent=True)]
    made = specs_of(tools, order="strict")["book"].compensate
    assert made is not None
    assert made.tool == "cancel"
    asked = named_arguments(made.params, args={"room": 7}, result="b1", call=Call("r", "book", "1", {}))
    assert {"room", "result", "call"} == asked.keys()
    with pytest.raises(BadDeclaration):
        made.fn(**asked)


def test_a_twin_by_name_must_be_there_and_not_be_the_tool_itself() -> None:
    refusal(said(compensate="cancel"))
    refusal(said(compensate="charge"))


def test_a_compensation_implies_nothing_but_what_wins() -> None:
    made = said(idempotent=True, retry=3, timeout=9)
    made.compensate(refund)
    twin = one(made).compensate
    assert twin is not None
    assert (twin.idempotent, twin.absent_ok, twin.wins, twin.timeout, twin.probe) == (False, False, False, None, None)
    assert twin.retry == Retry(attempts=5, delay=0.5, factor=2, max_delay=30)
    made.compensate(refund, wins=True, retry=2, timeout=4)
    twin = one(made).compensate
    assert twin is not None
    assert (twin.absent_ok, twin.wins, twin.retry.attempts, twin.timeout) == (True, True, 2, 4)


@pytest.mark.parametrize(
    "options", [{"retry": 0}, {"timeout": -1}, {"idempotent": "24h"}, {"retry": Retry(on=TimeoutError)}]
)
def test_a_compensation_is_checked_like_a_tool(options: dict[str, Any]) -> None:
    made = said()
    made.compensate(refund, **options)
    refusal(made)


# ---- retries, times, windows --------------------------------------------------------------


def test_a_number_is_the_number_of_starts() -> None:
    spec = one(said(kind="read", retry=3))
    assert (spec.retry.attempts, spec.retry.on, spec.retry_declared) == (3, (), True)
    spec = one(said(kind="read"))
    assert (spec.retry.attempts, spec.retry_declared) == (1, False)
    assert one(said(kind="read", retry=Retry(on=ValueError))).retry.on == (ValueError,)


@pytest.mark.parametrize(
    "retry",
    [
        0,
        -1,
        True,
        "3",
        Retry(attempts=0),
        Retry(delay=-1),
        Retry(max_delay=-1),
        Retry(factor=0),
        Retry(jitter=2),
        Retry(on=KeyboardInterrupt),  # type: ignore[arg-type]
        Retry(on="ValueError"),  # type: ignore[arg-type]
    ],
)
def test_a_retry_that_makes_no_sense_is_refused(retry: Any) -> None:
    refusal(said(kind="read", retry=retry))


@pytest.mark.parametrize("error", [TimeoutError, ConnectionError, ConnectionResetError, OSError, Exception, EOFError])
def test_an_error_that_may_have_had_an_effect_is_retried_only_if_that_is_safe(error: type[Exception]) -> None:
    retry = Retry(on=(ValueError, error))
    assert "certainly had no effect" in str(refusal(said(kind="pivot", retry=retry, doubt=EOFError)))
    assert one(said(kind="pivot", retry=retry, idempotent=True)).retry.on == (ValueError, error)
    assert one(said(kind="pivot", retry=retry, probe=find)).retry.on == (ValueError, error)


@pytest.mark.parametrize(
    "text, seconds", [("90s", 90), ("30m", 1800), ("24h", 86400), ("7d", 604800), ("1.5h", 5400), (True, None)]
)
def test_a_window_is_read_as_seconds(text: Any, seconds: float | None) -> None:
    spec = one(said(kind="pivot", idempotent=text))
    assert (spec.idempotent, spec.window) == (True, seconds)


@pytest.mark.parametrize("text", ["24", "h", "1 day", "-1h", "0s", "", 24])
def test_a_window_that_cannot_be_read_is_refused(text: Any) -> None:
    refusal(said(kind="pivot", idempotent=text))


@pytest.mark.parametrize(
    "options",
    [{"timeout": -1}, {"timeout": 0}, {"timeout": "5"}, {"timeout": True}, {"settle": -0.1}, {"timeout": float("inf")}],
)
def test_times_are_finite_and_not_negative(options: dict[str, Any]) -> None:
    refusal(said(kind="pivot", **options))


def test_the_settle_delay_is_at_least_the_timeout() -> None:
    made = said(kind="pivot", timeout=30)
    assert one(made).settle == 30
    made.probe(find, settle=5)
    assert one(made).settle == 30
    made.probe(settle=45)(find)
    assert one(made).settle == 45
    assert one(made).probe.settle == 45  # type: ignore[union-attr]
    assert one(said(kind="pivot", probe=find, settle=3)).settle == 3


# ---- keys and rules -----------------------------------------------------------------------


def request(**args: Any) -> Request:
    return Request("run", "charge", "1", args)


@pytest.mark.parametrize("key", ["order_id", ("order_id",), ["order_id"]])
def test_one_name_is_one_name_however_it_is_written(key: Any) -> None:
    spec = one(said(kind="pivot", key=key))
    assert (spec.key, spec.declared_key) == (("order_id",), True)
    assert spec.identity(request(order_id="1", cents=2)) == {"order_id": "1"}


def test_without_a_key_all_arguments_are_the_identity() -> None:
    spec = one(said(kind="pivot"))
    assert (spec.key, spec.declared_key, spec.identity(request(order_id="1"))) == (None, False, None)


def test_a_key_function_decides_and_may_not_say_nothing() -> None:
    spec = one(said(kind="pivot", key=lambda call: call.args["order_id"] or None))
    assert spec.identity(request(order_id="1")) == "1"
    with pytest.raises(BadDeclaration):
        spec.identity(request(order_id=""))


def test_a_key_that_a_call_does_not_have_is_its_callers_fault() -> None:
    with pytest.raises(BadArguments):
        one(declare("book", kind="pivot", key="ref")).identity(request())


def test_what_is_ignored_is_neither_key_nor_conflict() -> None:
    args = {"order_id": "1", "cents": 2, "note": "please"}
    spec = one(said(kind="pivot", ignore="note"))
    assert spec.identity(request(**args)) == spec.intent(args) == {"order_id": "1", "cents": 2}
    assert not spec.declared_key
    rest = one(said(kind="pivot", key="order_id", ignore="rest"))
    assert rest.intent(args) == {"order_id": "1"}
    assert one(said(kind="pivot")).intent(args) == args


@pytest.mark.parametrize(
    "options",
    [
        {"key": "order"},
        {"key": ("order_id", "order")},
        {"key": ()},
        {"key": (1,)},
        {"ignore": "rest"},
        {"ignore": ("notes",)},
        {"key": "note", "ignore": "note"},
        {"redact": "card"},
    ],
)
def test_fields_that_are_no_arguments_are_refused(options: dict[str, Any]) -> None:
    refusal(said(kind="pivot", **options))


def test_what_the_runtime_hides_is_hidden_where_it_is() -> None:
    specs = specs_of(
        [said(kind="read", redact="note"), tool(find, kind="read")], order="strict", redact=redaction_rules(["CENT*"])
    )
    assert specs["charge"].redact == RedactionRules(("note", "cents"), ("cent*",))
    assert specs["find"].redact == RedactionRules((), ("cent*",))


async def waits(call: Request) -> Any: ...


def two(call: Request, more: int) -> Any: ...


@pytest.mark.parametrize("rule", [waits, two])
@pytest.mark.parametrize("option", ["key", "needs_approval", "cost", "locks"])
def test_a_rule_is_a_plain_function_of_one_request(option: str, rule: Any) -> None:
    refusal(said(kind="pivot", **{option: rule}))


@pytest.mark.parametrize(
    "options", [{"needs_approval": "yes"}, {"cost": -1}, {"cost": "2"}, {"locks": "a"}, {"doubt": 3}, {"doubt": (str,)}]
)
def test_rules_of_another_shape_are_refused(options: dict[str, Any]) -> None:
    refusal(said(kind="pivot", **options))


# ---- signatures ---------------------------------------------------------------------------


def test_a_model_can_give_every_argument_by_name() -> None:
    def many(*items: str) -> None: ...

    def first(item: str, /) -> None: ...

    def repeats(again_because: str) -> None: ...

    for fn in (many, first, repeats, dict.update):
        refusal(tool(fn, kind="read"))


def test_a_result_type_is_the_annotation_and_never_a_failure() -> None:
    def untyped(order_id):
        return order_id

    def unknown(order_id: str) -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
        ...

    assert one(said(kind="read")).result_type is str
    assert one(tool(untyped, kind="read")).result_type is Any
    assert one(tool(unknown, kind="read")).result_type is Any


def test_a_postponed_annotation_may_name_a_local_class() -> None:
    class Receipt: ...

    def pay(order_id: str) -> "Receipt":
        return Receipt()

    assert one(tool(pay, kind="read")).result_type is Receipt


def test_a_place_is_found_even_where_there_is_no_code() -> None:
    made = tool(sys.intern, kind="read", name="intern")
    assert isinstance(made.__amends__, Declaration)
    assert "test_declarations.py:" in made.__amends__.where
