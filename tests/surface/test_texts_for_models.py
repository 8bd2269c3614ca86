"""What a model is told: the table of the surface, word for word."""

from __future__ import annotations

import pytest

from amends import RunBlocked, Runtime, Unknown, declare, tool
from amends.errors import Busy, LedgerUnavailable, NotStorable, RolledBack
from amends.testing import runtime as virtual_runtime
from tests.world import World, runtime


def _shop(**options):
    @tool(key="order", **options)
    def charge(order: str, cents: int) -> dict[str, str]:
        return {"id": "ch_1"}

    charge.compensate(lambda: None)
    return charge


def _told(answer) -> tuple[str, bool, str]:
    return answer.status, answer.is_error, answer.text


def test_done_and_replayed() -> None:
    charge = _shop()
    with runtime(charge).run("r") as run:
        first = run.answer("charge", {"order": "1042", "cents": 4200}, tool_call_id="tc_1")
        second = run.answer("charge", {"order": "1042", "cents": 4200}, tool_call_id="tc_2")
    assert _told(first) == ("done", False, '{"id":"ch_1"}')
    assert _told(second) == ("replayed", False, 'Already done in this task; the same result: {"id":"ch_1"}')
    assert first.value == second.value == {"id": "ch_1"}
    assert first.call.tool_call_id == "tc_1"


def test_staged() -> None:
    mail = World().retriable("send_mail")
    with runtime(mail).run("r") as run:
        answer = run.answer("send_mail", {})
    text = "Accepted: send_mail will run once the task is committed. Do not call it again."
    assert _told(answer) == ("staged", False, text)


def test_held_as_a_suspected_duplicate() -> None:
    @tool
    def charge(order: str, cents: int) -> dict[str, str]:
        return {"id": "ch_1"}

    charge.compensate(lambda: None)
    rt = runtime(charge, repeats=True)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
        charge(order="1042", cents=4200)
        raise KeyboardInterrupt
    run = rt.open("r")
    answer = run.answer("charge", {"order": "1042 ", "cents": 4200})
    assert _told(answer) == (
        "held",
        True,
        (
            'Not run: this looks like the charge from before the restart, {"order":"1042","cents":4200}. '
            'If it is the same, use its result: {"id":"ch_1"}. If it is another one, call again with "again_because".'
        ),
    )
    again = run.answer("charge", {"order": "1042 ", "cents": 4200, "again_because": "a second box"})
    assert again.status == "done"


def test_unknown_tool() -> None:
    world = World()
    rt = runtime(world.compensatable("charge"), world.compensatable("ship"), world.retriable("send_mail"))
    with rt.run("r") as run:
        answer = run.answer("charge_card", {})
    text = 'There is no tool "charge_card". Did you mean "charge"? There are: charge, send_mail, ship.'
    assert _told(answer) == ("refused", True, text)


def test_bad_arguments() -> None:
    charge = _shop()
    with runtime(charge).run("r") as run:
        answer = run.answer("charge", {"order": "1042", "cents": "42 EUR"})
    text = 'Not run: charge.cents must be an integer, not "42 EUR". Call it again with corrected arguments.'
    assert _told(answer) == ("refused", True, text)


def test_out_of_order_early_with_something_missing() -> None:
    world = World()
    rt = runtime(world.compensatable("reserve_funds"), world.pivot("send_wire", after=["reserve_funds"]))
    with rt.run("r") as run:
        answer = run.answer("send_wire", {})
    assert _told(answer) == (
        "refused",
        True,
        (
            "Not run: send_wire cannot be undone, so it comes last, and reserve_funds has not been done. "
            "Call reserve_funds first, then send_wire again with the same arguments."
        ),
    )


def test_out_of_order_early_with_something_unsettled() -> None:
    world = World()
    world.script["reserve_funds"] = [TimeoutError()]
    rt = runtime(world.compensatable("reserve_funds"), world.pivot("send_wire"))
    with pytest.raises(RunBlocked), rt.run("r") as run:
        run.answer("reserve_funds", {})
        answer = run.answer("send_wire", {})
    assert _told(answer) == (
        "refused",
        True,
        (
            "Not run: send_wire cannot be undone, so it comes last, and reserve_funds has no result yet. "
            "Wait for it, then call send_wire again with the same arguments."
        ),
    )


def test_out_of_order_twice_and_after_the_pivot() -> None:
    world = World()
    rt = runtime(
        world.pivot("send_wire"),
        world.retriable("send_mail"),
        world.retriable("mark_paid"),
        world.compensatable("hold"),
    )
    with rt.run("r") as run:
        run.answer("send_wire", {})
        twice = run.answer("send_wire", {"x": "2"})
        after = run.answer("hold", {})
    assert _told(twice) == (
        "refused",
        True,
        (
            "Not run: this task has already made its one irreversible call (send_wire). "
            "Do not call it again; if a second one is needed, tell the user that it is a new task."
        ),
    )
    assert _told(after) == (
        "refused",
        True,
        (
            "Not run: send_wire has happened and cannot be undone, so nothing that might have to be undone may start. "
            "You may still call: send_mail, mark_paid."
        ),
    )


def test_key_conflict_shows_both_and_the_result() -> None:
    charge = _shop()
    with runtime(charge, repeats=True).run("r") as run:
        run.answer("charge", {"order": "1042", "cents": 4200})
        answer = run.answer("charge", {"order": "1042", "cents": 4900})
        again = run.answer("charge", {"order": "1042", "cents": 4900, "again_because": "a second box"})
        said = run.answer("charge", {"order": "1042", "cents": 4900}, again="a second box")
    assert _told(answer) == (
        "refused",
        True,
        (
            'Not run: charge was already done with cents=4200; you asked for cents=4900. Use that result: {"id":"ch_1"}. '
            'Only if a second one is meant, call again with "again_because".'
        ),
    )
    assert (again.status, said.status) == ("done", "replayed")


def test_tool_failed() -> None:
    world = World()
    world.script["ship"] = [ValueError("address unknown")]
    with runtime(world.compensatable("ship")).run("r") as run:
        answer = run.answer("ship", {})
    text = "ship failed and changed nothing: address unknown. You may correct the arguments and call it again."
    assert _told(answer) == ("failed", True, text)


LOST = "charge was sent but the answer was lost: it may have happened."


def test_in_doubt_without_a_probe_needs_a_person() -> None:
    world = World()
    world.script["charge"] = [TimeoutError()]
    with pytest.raises(RunBlocked), runtime(world.compensatable("charge")).run("r") as run:
        answer = run.answer("charge", {})
    assert _told(answer) == ("in_doubt", True, f"{LOST} Do not call it again; a person has to check it.")


def test_in_doubt_with_a_probe_is_being_checked() -> None:
    world = World()
    world.script["charge"] = [TimeoutError()]
    charge = world.compensatable("charge")
    charge.probe(lambda: Unknown())
    with pytest.raises(RunBlocked), virtual_runtime(tools=[charge]).run("r") as run:
        answer = run.answer("charge", {})
    assert _told(answer) == ("in_doubt", True, f"{LOST} Do not call it again; it is being checked.")


def test_in_doubt_with_a_probe_that_keeps_failing_needs_a_person() -> None:
    world = World()
    world.script["charge"] = [TimeoutError()]
    charge = world.compensatable("charge")

    @charge.probe
    def find() -> Unknown:
        raise RuntimeError("no such address")

    rt = virtual_runtime(tools=[charge])
    run = rt.open("r", recover="wait")
    for _ in range(20):
        answer = run.answer("charge", {})
        rt.clock.advance(3600)
    assert answer.text == f"{LOST} Do not call it again; a person has to check it."


def test_a_doubt_that_a_person_could_not_settle_is_not_being_checked_any_more() -> None:
    world = World()
    world.script["charge"] = [TimeoutError()]
    rt = runtime(world.compensatable("charge"))
    run = rt.open("r", recover="wait")
    call = run.answer("charge", {}).call
    assert call is not None
    rt.resolve(call.id, Unknown(), by="anna", why="the bank does not say")
    again = run.answer("charge", {})
    text = f"{LOST} A person could not find out either. Do not call it again; tell the user that it is unknown."
    assert _told(again) == ("in_doubt", True, text)
    recorded = rt.told(call.id)
    assert recorded is not None
    assert _told(recorded) == ("in_doubt", True, text)


def test_rejected_by_a_person() -> None:
    @tool
    def send_wire(x: str) -> None: ...

    send_wire.compensate(lambda: None)
    rt = runtime(send_wire)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
        send_wire(x="1")
        raise KeyboardInterrupt
    run = rt.open("r", recover="wait")
    held = run.answer("send_wire", {"x": "2"})
    rt.decide(held.call.id, "refuse", by="anna", why="wrong payee")
    answer = run.answer("send_wire", {"x": "2"})
    text = "A person rejected send_wire: wrong payee. Do not ask again with these arguments."
    assert _told(answer) == ("refused", True, text)


def test_busy() -> None:
    text = "The same call is running. Its result is not there yet; ask again in 5 seconds."
    assert Busy("x", owner="r", retry_after=5.0).for_model() == text


def test_run_ended() -> None:
    world = World()
    rt = runtime(world.compensatable("charge"))
    with pytest.raises(RolledBack), rt.run("r") as run:
        rt.rollback("r", by="anna", why="no")
        answer = run.answer("charge", {})
    assert answer.is_error
    assert answer.text == "This task is closed (rolling back): nothing more can run in it. Tell the user."
    run = rt.open("s")
    run.commit()
    answer = run.answer("charge", {})
    assert answer.text == "This task is closed (committed): nothing more can run in it. Tell the user."


def test_rolled_back_and_blocked() -> None:
    world = World()
    rt = runtime(world.compensatable("charge"), world.compensatable("send_mail", twin={"retry": 1}))
    with pytest.raises(RolledBack) as back, rt.run("r") as run:
        for x in "123":
            run.answer("charge", {"x": x})
        run.rollback("no")
    assert back.value.for_model() == (
        "Everything was taken back: 3 of 3 calls undone. Tell the user; start again only if asked."
    )
    world.script["undo send_mail"] = [ValueError()]
    with pytest.raises(RunBlocked) as blocked, rt.run("s") as run:
        run.answer("send_mail", {})
        run.rollback("no")
    assert blocked.value.for_model() == (
        "The task could not be taken back completely; send_mail stands. It waits for a person. "
        "Nobody is notified automatically: amends inbox lists it. Stop and tell the user."
    )


def test_ledger_and_usage_errors_tell_a_model_nothing_of_the_program() -> None:
    text = "Not run: the record cannot be written now. Stop and tell the user."
    assert LedgerUnavailable("disk /secret full").for_model() == text
    text = "Not run: the program around you has a fault (NotStorable). Stop and tell the user."
    assert NotStorable("x", path="args.x").for_model() == text

    @tool(key=lambda call: object())
    def charge() -> None: ...

    charge.compensate(lambda: None)
    with runtime(charge).run("r") as run:
        answer = run.answer("charge", {})
    assert _told(answer) == ("refused", True, text)


def test_arguments_may_be_a_json_string() -> None:
    charge = _shop()
    with runtime(charge).run("r") as run:
        assert run.answer("charge", '{"order": "1", "cents": 5}').status == "done"
        for bad in ('{"order": ', "[1]", "null", '{"order": NaN}'):
            answer = run.answer("charge", bad)
            assert (answer.status, answer.is_error, answer.error.code) == ("refused", True, "bad_arguments")
            assert answer.text.startswith("Not run: ")
            assert answer.text.endswith("Call it again with corrected arguments.")


def test_a_tool_without_arguments_takes_an_empty_string() -> None:
    world = World()
    with runtime(world.compensatable("ping")).run("r") as run:
        assert run.answer("ping", "").status == "done"


def test_values_are_cut_for_a_model() -> None:
    world = World()
    world.script["ship"] = [ValueError("x" * 5_000)]
    with runtime(world.compensatable("ship")).run("r") as run:
        assert len(run.answer("ship", {}).text) < 400


def test_a_declared_tool_is_done_by_its_handler() -> None:
    log: list[object] = []

    def handler(order: int) -> str:
        log.append(order)
        return "paid"

    rt = runtime(declare("search", kind="read"), declare("pay", kind="pivot", key="order"))
    with rt.run("r") as run:
        assert run.answer("search", {"q": "a"}, handler=lambda q: q.upper()).value == "A"
        for _ in range(2):
            assert run.answer("pay", {"order": 1}, handler=handler).value == "paid"
        assert run.answer("pay", {"order": 2}).is_error
    assert log == [1]


def test_schemas_come_in_four_styles() -> None:
    charge = _shop()
    rt = runtime(charge)
    (openai,) = rt.schemas()
    (responses,) = rt.schemas("responses")
    (anthropic,) = rt.schemas("anthropic")
    (mcp,) = rt.schemas("mcp")
    schema = openai["function"]["parameters"]
    assert openai["type"] == "function"
    assert schema["required"] == ["order", "cents"]
    assert responses["parameters"] == anthropic["input_schema"] == mcp["inputSchema"] == schema
    assert {openai["function"]["name"], responses["name"], anthropic["name"], mcp["name"]} == {"charge"}
    assert mcp["annotations"] == {"readOnlyHint": False, "idempotentHint": False}
    (repeats,) = runtime(charge, repeats=True).schemas("anthropic")
    assert "again_because" in repeats["input_schema"]["properties"]


def test_a_name_is_understood_as_models_are_told_it() -> None:
    @tool(name="k8s.deploy", kind="pivot")
    def deploy(image: str) -> str:
        return image

    with runtime(deploy) as rt, rt.run() as run:
        [schema] = rt.schemas("anthropic")
        assert schema["name"] == "k8s_deploy"
        assert rt.schemas("mcp")[0]["name"] == "k8s.deploy"
        answer = run.answer(schema["name"], {"image": "a"})
        assert (answer.status, answer.call.tool if answer.call else "") == ("done", "k8s.deploy")


def test_schemas_for_gemini_and_ollama_are_what_their_clients_take() -> None:
    @tool(name="shop.charge", key="order")
    def charge(order: str, cents: int = 5) -> str:
        """Charge an order."""
        return order

    @charge.compensate
    def refund(order: str) -> None: ...

    with Runtime("memory:", tools=[charge]) as rt:
        [gemini], [ollama] = rt.schemas("gemini"), rt.schemas("ollama")
        assert rt.schemas("openai") == [ollama]
    assert (gemini["name"], gemini["description"]) == ("shop_charge", "Charge an order.")
    assert gemini["parameters_json_schema"] == ollama["function"]["parameters"]
    types = pytest.importorskip("google.genai.types")
    given = types.GenerateContentConfig(tools=[{"function_declarations": [gemini]}])
    assert given.tools[0].function_declarations[0].parameters_json_schema["required"] == ["order"]
    assert pytest.importorskip("ollama").Tool.model_validate(ollama).function.name == "shop_charge"
