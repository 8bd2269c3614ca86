"""The agent loop: a model, its tools and one run, over every wire format."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai as openai_sdk
import pytest
from openai import AsyncOpenAI, OpenAI

from amends import AsyncRuntime, Budget, Runtime, UsageError, tool
from amends.errors import BudgetExceeded, RunBlocked, RunConflict, RunEnded
from amends.llm import Finished, ModelServer, Reply, ScriptedModel, record, run_agent
from tests.llm.shop import World, client_of, tools_of

KINDS = ["script", "chat.completions", "responses", "messages", "generate_content", "chat"]
CHARGE = ("charge", {"order": "7", "cents": 4200})
SHIP = ("ship", {"order": "7"})

Agent = Callable[..., Finished]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def rt(world: World) -> Iterator[Runtime]:
    with Runtime("memory:", tools=tools_of(world)) as rt:
        yield rt


@pytest.fixture(params=KINDS, ids=lambda kind: kind.replace(".", "-"))
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def agent(rt: Runtime, kind: str) -> Agent:
    """Runs an agent with a script, over one of the wire formats."""
    return agent_of(rt, kind)


def agent_of(rt: Runtime, kind: str = "script") -> Agent:
    def run(*turns: Any, prompt: Any = "Ship order 7.", **more: Any) -> Finished:
        model = turns[0] if isinstance(turns[0], ScriptedModel) else ScriptedModel(*turns)
        with client_of(kind, model) as (client, api):
            return run_agent(rt, prompt, client=client, model="gpt-4o-mini", api=api, **more)

    return run


def told(done: Finished) -> list[str]:
    """What the model was told of its calls, in order, whatever the wire format."""
    texts = []
    for message in done.messages:
        if message.get("role") == "tool":
            texts.append(message["content"])
        elif message.get("type") == "function_call_output":
            texts.append(message["output"])
        elif message.get("role") == "user" and "parts" in message:
            found = [part["functionResponse"]["response"] for part in message["parts"] if "functionResponse" in part]
            texts += [one.get("output", one.get("error")) for one in found]
        elif message.get("role") == "user" and isinstance(message.get("content"), list):
            texts += [block["content"] for block in message["content"] if block.get("type") == "tool_result"]
    return texts


def limit_of(kind: str, tokens: int) -> dict[str, Any]:
    """The options that limit an answer, as each API names them."""
    if kind == "chat":
        return {"options": {"num_predict": tokens}}
    return {"max_output_tokens" if kind in ("responses", "generate_content") else "max_tokens": tokens}


def effects(world: World) -> list[str]:
    """What was done, without keys."""
    return [" ".join(line.split()[:2]) for line in world.done]


# ---- done ---------------------------------------------------------------------------------


def test_a_model_gets_real_results_and_its_run_commits(agent: Agent, world: World) -> None:
    done = agent([("balance", {"account": "a"}), CHARGE], SHIP, ("mail", {"to": "ada"}), "On its way.", id="o-7")
    assert (done.outcome, done.text, done.turns, done.state, done.run_id) == (
        "done", "On its way.", 4, "committed", "o-7",
    )  # fmt: skip
    assert told(done)[:3] == ["9000", '{"id":"ch_7"}', '"parcel_7"']
    assert effects(world) == ["charge 7", "ship 7", "mail ada"]
    assert done.report.output == "On its way."


def test_every_request_is_a_call_of_the_run_with_its_tokens(agent: Agent, kind: str) -> None:
    done = agent(CHARGE, "Charged.")
    asked = [call for call in done.report.calls if call.tool.startswith("model:")]
    assert [call.state for call in asked] == ["succeeded", "succeeded"]
    assert all(call.result["tokens"]["total"] > 0 for call in asked)
    assert asked[0].args["api"] == ("chat.completions" if kind == "script" else kind)


def test_system_and_options_go_to_the_model(rt: Runtime, kind: str) -> None:
    model = ScriptedModel("Hello.")
    agent_of(rt, kind)(model, system="Be kind.", options=limit_of(kind, 77))
    [request] = model.asked
    names = {"responses": "max_output_tokens", "generate_content": "maxOutputTokens", "chat": "num_predict"}
    found = request.get("generationConfig") or request.get("options") or request
    assert found[names.get(kind, "max_tokens")] == 77
    assert "Be kind." in json.dumps(request)
    assert "charge" in json.dumps(request), "the tools are still there"


def test_what_the_model_says_is_streamed_piece_by_piece(agent: Agent, world: World, kind: str) -> None:
    pieces: list[str] = []
    done = agent(["Let me see. ", CHARGE], "All is well.", on_text=pieces.append)
    assert "".join(pieces) == "Let me see. All is well."
    assert len(pieces) > 2 or kind == "script"
    assert (done.text, effects(world)) == ("All is well.", ["charge 7"])


def test_a_prompt_may_be_a_conversation(agent: Agent, kind: str) -> None:
    is_gemini = kind == "generate_content"
    prompt = [{"role": "user", "parts": [{"text": "Hi."}]} if is_gemini else {"role": "user", "content": "Hi."}]
    assert agent("Hello.", prompt=prompt).text == "Hello."


def test_the_id_is_made_where_none_is_given(agent: Agent) -> None:
    assert agent("Hello.").run_id != agent("Hello.").run_id


def test_what_rt_run_takes_reaches_the_run(rt: Runtime) -> None:
    done = agent_of(rt)("Hello.", tags=["demo"], agent="billing", principal="ada")
    assert (done.report.run.tags, done.report.run.agent, done.report.run.principal) == (("demo",), "billing", "ada")


# ---- refusals go back to the model --------------------------------------------------------


def test_refusals_are_told_to_the_model_which_goes_on(agent: Agent, world: World) -> None:
    done = agent(
        SHIP,
        ("charge_card", {}),
        ("charge", {"order": "7"}),
        CHARGE,
        ("charge", {"order": "7", "cents": 4900}),
        CHARGE,
        ("charge", {"order": "8", "cents": 200_000}),
        SHIP,
        "Done.",
        on_open_failure="commit",  # the card of order 8 was declined, and that is all right here
    )
    words = [text.split(".")[0] for text in told(done)]
    assert words == [
        "Not run: ship cannot be undone, so it comes last, and charge has not been done",
        'There is no tool "charge_card"',
        "Not run: charge",
        '{"id":"ch_7"}',
        "Not run: charge was already done with cents=4200; you asked for cents=4900",
        'Already done in this task; the same result: {"id":"ch_7"}',
        "charge failed and changed nothing: the card was declined",
        '"parcel_7"',
    ]
    assert (done.state, effects(world)) == ("committed", ["charge 7", "ship 7"])


def test_what_is_an_error_is_marked_where_the_format_has_a_mark(rt: Runtime) -> None:
    done = agent_of(rt, "messages")([SHIP, ("balance", {"account": "a"})], "Done.")
    blocks = [block for message in done.messages if message["role"] == "user" for block in message["content"]]
    marks = [block.get("is_error") for block in blocks if isinstance(block, dict)]
    assert marks == [True, None]


def test_a_tool_that_was_not_offered_is_not_run(rt: Runtime, world: World, kind: str) -> None:
    model = ScriptedModel(CHARGE, ("reserve", {"sku": "box"}), "Done.")
    done = agent_of(rt, kind)(model, tools=["charge"])
    assert told(done)[1] == 'There is no tool "reserve". There are: charge.'
    assert effects(world) == ["charge 7"]
    assert "reserve" not in json.dumps(model.asked[0])


def test_tools_may_be_named_by_themselves(world: World) -> None:
    tools = tools_of(world)
    with Runtime("memory:", tools=tools) as rt:
        model = ScriptedModel("Hello.")
        agent_of(rt)(model, tools=[tools[1]])
        assert [one["function"]["name"] for one in model.asked[0]["tools"]] == ["charge"]
        with pytest.raises(UsageError, match="no tool nothing"):
            agent_of(rt)("Hello.", tools=["nothing"])


def test_a_name_that_no_api_takes_is_told_as_one_that_they_take(kind: str) -> None:
    @tool(name="k8s.deploy", kind="pivot")
    def deploy(image: str) -> str:
        return f"deployed {image}"

    with Runtime("memory:", tools=[deploy]) as rt:
        for tools in (None, [deploy], ["k8s.deploy"]):
            model = ScriptedModel(("k8s_deploy", {"image": "a"}), "Done.")
            done = agent_of(rt, kind)(model, tools=tools)
            assert (told(done), done.state) == (['"deployed a"'], "committed")
            assert "k8s_deploy" in json.dumps(model.asked[0]["tools"])
            assert done.report.calls[1].tool == "k8s.deploy"


def test_two_names_that_are_one_for_a_model_are_a_mistake() -> None:
    one = tool(lambda: 1, name="a.b", kind="read")
    two = tool(lambda: 2, name="a_b", kind="read")
    with Runtime("memory:", tools=[one, two]) as rt, pytest.raises(UsageError, match="same name"):
        agent_of(rt)("Hello.")


def test_a_model_may_repeat_a_call_on_purpose_where_it_is_let(agent: Agent, world: World, kind: str) -> None:
    again = ("charge", {"order": "7", "cents": 4200, "again_because": "a second box"})
    assert agent(CHARGE, again, "Done.").report.calls
    assert effects(world) == ["charge 7"], "it was not offered"
    with pytest.raises(UsageError, match="honour"):
        agent(CHARGE, again, "Done.", repeats=True)
    world = World(world.folder / "other")
    world.folder.mkdir()
    with Runtime("memory:", tools=tools_of(world), repeats=True) as rt:
        done = agent_of(rt, kind)(CHARGE, again, "Done.")
    assert effects(world) == ["charge 7", "charge 7"]
    assert [call.again for call in done.report.calls if call.tool == "charge"] == [None, "a second box"]


# ---- calls of one turn --------------------------------------------------------------------


def test_the_calls_of_one_turn_run_side_by_side(kind: str) -> None:
    both = threading.Barrier(2, timeout=20)

    @tool(kind="read")
    def look(n: int) -> int:
        both.wait()
        return n

    with Runtime("memory:", tools=[look]) as rt:
        done = agent_of(rt, kind)([("look", {"n": 1}), ("look", {"n": 2})], "Done.")
    assert told(done) == ["1", "2"]


def test_a_point_of_no_return_comes_last_in_its_turn(agent: Agent, world: World) -> None:
    done = agent([SHIP, ("mail", {"to": "ada"}), CHARGE], "Done.")
    assert effects(world) == ["charge 7", "ship 7", "mail ada"]
    assert [text.split()[0] for text in told(done)] == ['"parcel_7"', "Accepted:", '{"id":"ch_7"}']


def test_a_point_of_no_return_is_refused_when_something_beside_it_failed(agent: Agent, world: World) -> None:
    turns = CHARGE, [SHIP, ("charge", {"order": "8", "cents": 200_000})], "Done."
    done = agent(*turns, on_open_failure="commit")
    assert told(done)[1].startswith("Not run: ship cannot be undone, so it comes last, and charge has not been done")
    assert effects(world) == ["charge 7"]


def test_the_calls_of_one_turn_are_taken_back_side_by_side() -> None:
    both = threading.Barrier(2, timeout=20)

    @tool(key="n")
    def book(n: int) -> int:
        return n

    @book.compensate
    def cancel(n: int) -> None:
        both.wait()

    with Runtime("memory:", tools=[book]) as rt:
        done = agent_of(rt)([("book", {"n": 1}), ("book", {"n": 2})], ("book", {"n": "x"}), max_turns=1)
    assert (done.outcome, done.state) == ("max_turns", "rolled_back")


# ---- a person decides ---------------------------------------------------------------------

BIG = (("charge", {"order": "big", "cents": 1}), [("ship", {"order": "big"}), ("reserve", {"sku": "box"})])


def test_a_held_call_lets_the_run_go_and_the_same_id_goes_on(rt: Runtime, world: World, kind: str) -> None:
    agent = agent_of(rt, kind)
    done = agent(*BIG, "Shipped.", id="o-7")
    assert (done.outcome, done.state, done.turns) == ("waiting", "open", 2)
    assert "waits for a person" in done.why
    [held] = done.waiting
    assert held.approval is not None
    assert effects(world) == ["charge big", "reserve box"]
    assert agent(*BIG, "Shipped.", id="o-7").outcome == "waiting", "nobody has decided"
    rt.approve(held.approval.id, digest=held.approval.digest, by="ada")
    model = ScriptedModel(*BIG, "Shipped.")
    again = agent(model, id="o-7")
    assert (again.outcome, again.text, again.turns, again.state) == ("done", "Shipped.", 3, "committed")
    assert len(model.asked) == 1, "what the model had said is not asked for again"
    assert told(again) == ['{"id":"ch_big"}', '"parcel_big"', '"r_box"'], "it never hears that it had to wait"
    assert effects(world) == ["charge big", "reserve box", "ship big"]


def test_a_persons_no_is_told_to_the_model(rt: Runtime, world: World, kind: str) -> None:
    agent = agent_of(rt, kind)
    [held] = agent(*BIG, "Then not.", id="o-7").waiting
    rt.reject(held.approval.id, by="ada", reason="wrong address")
    done = agent(*BIG, "Then not.", id="o-7")
    assert (done.outcome, done.text) == ("done", "Then not.")
    assert told(done)[1] == "A person rejected ship: wrong address. Do not ask again with these arguments."
    assert effects(world) == ["charge big", "reserve box"]


def test_a_request_to_the_model_that_a_budget_holds_waits_too(rt: Runtime) -> None:
    agent = agent_of(rt)
    budgets = [Budget(1, unit="tokens", tool="model:*", then="hold")]
    done = agent("Hello.", id="o-7", budgets=budgets)
    assert (done.outcome, done.waiting[0].call.tool) == ("waiting", "model:scripted")
    approval = done.waiting[0].approval
    rt.approve(approval.id, digest=approval.digest, by="ada")
    assert agent("Hello.", id="o-7", budgets=budgets).text == "Hello."


# ---- it does not finish -------------------------------------------------------------------


def test_a_model_that_runs_out_of_turns_is_taken_back(agent: Agent, world: World) -> None:
    done = agent(CHARGE, ("reserve", {"sku": "box"}), "Done.", max_turns=2)
    assert (done.outcome, done.state, done.turns) == ("max_turns", "rolled_back", 2)
    assert done.why == "the model did not finish in 2 turns"
    assert effects(world) == ["charge 7", "reserve box", "release r_box", "refund ch_7"]


def test_after_the_point_of_no_return_it_goes_on_with_more_turns(agent: Agent, world: World) -> None:
    turns = (CHARGE, SHIP, ("mail", {"to": "ada"}), "Done.")
    done = agent(*turns, max_turns=2, id="o-7")
    assert (done.outcome, done.state) == ("max_turns", "blocked")
    done = agent(*turns, id="o-7")
    assert (done.outcome, done.state, done.turns) == ("done", "committed", 4)
    assert effects(world) == ["charge 7", "ship 7", "mail ada"]


@pytest.mark.parametrize("stop", ["length", "refusal"])
def test_an_answer_that_is_cut_or_refused_ends_the_run_and_runs_nothing(agent: Agent, world: World, stop: Any) -> None:
    done = agent(CHARGE, Reply("I am", [("reserve", {"sku": "box"})], stop=stop), "Done.")
    assert (done.outcome, done.state) == ("stopped", "rolled_back")
    assert "did not finish" in done.why
    assert effects(world) == ["charge 7", "refund ch_7"]


def test_after_the_point_of_no_return_a_cut_answer_is_asked_for_again(agent: Agent, world: World) -> None:
    cut = Reply("I am", stop="length")
    done = agent(CHARGE, SHIP, cut, id="o-7")
    assert (done.outcome, done.state) == ("stopped", "blocked")
    done = agent(CHARGE, SHIP, ("mail", {"to": "ada"}), "Done.", id="o-7")
    assert (done.outcome, done.state, done.turns) == ("done", "committed", 5)
    assert effects(world) == ["charge 7", "ship 7", "mail ada"]


def test_a_run_that_somebody_else_takes_back_ends_there(rt: Runtime, world: World) -> None:
    def a_person_stops_it(_: Any) -> Any:
        rt.rollback("o-7", plan=rt.plan_rollback("o-7").hash, by="ada", why="the customer has called")
        return ("reserve", {"sku": "box"})

    done = agent_of(rt)(CHARGE, a_person_stops_it, "Done.", id="o-7")
    assert (done.outcome, done.state, done.turns) == ("rolled_back", "rolled_back", 2)
    assert effects(world) == ["charge 7", "refund ch_7"]
    with pytest.raises(RunEnded):
        agent_of(rt)(CHARGE, "Done.", id="o-7")


def test_a_tool_that_dooms_the_run_ends_it(world: World) -> None:
    @tool(key="n", on_failure="rollback")
    def pack(n: int) -> str:
        raise ValueError("no box")

    pack.compensate(lambda: None)
    with Runtime("memory:", tools=[*tools_of(world), pack]) as rt:
        done = agent_of(rt)(CHARGE, ("pack", {"n": 1}), "Done.")
    assert (done.outcome, done.state) == ("rolled_back", "rolled_back")
    assert effects(world) == ["charge 7", "refund ch_7"]


def test_what_was_taken_back_begins_anew_with_the_same_id(agent: Agent, world: World) -> None:
    agent(CHARGE, "Done.", max_turns=1, id="o-7")
    done = agent(CHARGE, "Done.", id="o-7")
    assert (done.outcome, done.turns, done.report.run.generation) == ("done", 2, 2)
    assert effects(world) == ["charge 7", "refund ch_7", "charge 7"]


def test_an_error_of_the_provider_comes_out_as_itself_and_takes_back(rt: Runtime, world: World) -> None:
    with ModelServer(ScriptedModel(CHARGE, "Done.")) as server, OpenAI(**server.openai) as client:

        def fails(heard: Any) -> Any:
            raise RuntimeError("the model is down")

        server.model = ScriptedModel(CHARGE, fails)
        with pytest.raises(openai_sdk.InternalServerError, match="down"):
            run_agent(rt, "Ship order 7.", client=client, model="gpt-4o-mini", id="o-7")
    assert rt.report("o-7").state == "rolled_back"
    assert effects(world) == ["charge 7", "refund ch_7"]


def test_a_script_that_is_too_short_says_so(rt: Runtime) -> None:
    with pytest.raises(UsageError, match="the script has 1 turns"):
        agent_of(rt)(CHARGE)


def test_a_doubt_that_nobody_can_settle_comes_out(world: World) -> None:
    @tool
    def wire(n: int) -> str:
        raise TimeoutError("no answer")

    @wire.compensate
    def unwire(n: int) -> None: ...

    with Runtime("memory:", tools=[wire], wait=0.1) as rt:
        with pytest.raises(RunBlocked):
            agent_of(rt)(("wire", {"n": 1}), "Done.", id="o-7")
        assert rt.report("o-7").calls[1].state == "in_doubt"


# ---- budgets ------------------------------------------------------------------------------


def test_a_budget_of_tokens_stops_the_model_and_takes_back(rt: Runtime, world: World, kind: str) -> None:
    limit = limit_of(kind, 400)
    with pytest.raises(BudgetExceeded) as refused:
        agent_of(rt, kind)(
            CHARGE, *[("balance", {"account": "a"})] * 15, "Done.", id="o-7", options=limit,
            budgets=[Budget(1_500, unit="tokens", tool="model:*")],
        )  # fmt: skip
    assert refused.value.spent <= 1_500
    assert rt.report("o-7").state == "rolled_back"
    assert effects(world) == ["charge 7", "refund ch_7"]


def test_a_budget_of_a_tool_is_told_to_the_model(agent: Agent, world: World) -> None:
    more = ("charge", {"order": "8", "cents": 1})
    done = agent(CHARGE, more, "Only one then.", budgets=[Budget(1, unit="calls", tool="charge")])
    assert told(done)[1].startswith("Not run: charge may not be called")
    assert effects(world) == ["charge 7"]


def test_prices_are_those_of_the_recorded_client(rt: Runtime) -> None:
    with ModelServer(ScriptedModel("Hello.")) as server, OpenAI(**server.openai) as client:
        priced = record(client, prices={"*": (1_000_000, 0)})
        done = run_agent(rt, "Hi.", client=priced, model="m")
    [call] = done.report.calls
    assert call.result["cost_usd"] == call.result["tokens"]["input"]


# ---- the way back -------------------------------------------------------------------------

BACK = ("request_rollback", {"why": "the customer has cancelled"})


def test_a_model_may_ask_that_everything_be_taken_back(agent: Agent, world: World) -> None:
    done = agent(CHARGE, ["Sorry.", BACK, ("reserve", {"sku": "box"})], id="o-7", may_roll_back=True)
    assert (done.outcome, done.state, done.text) == ("rolled_back", "rolled_back", "Sorry.")
    assert "the customer has cancelled" in done.why
    assert effects(world) == ["charge 7", "refund ch_7"]


def test_it_may_not_unless_it_is_let(agent: Agent, world: World) -> None:
    done = agent(CHARGE, BACK, "Done.")
    assert told(done)[1].startswith('There is no tool "request_rollback"')
    assert (done.state, effects(world)) == ("committed", ["charge 7"])


def test_after_the_point_of_no_return_it_is_told_that_there_is_no_way_back(agent: Agent, world: World) -> None:
    done = agent(CHARGE, SHIP, BACK, "Sorry, it is gone.", may_roll_back=True)
    assert told(done)[2].startswith("Not taken back: ")
    assert (done.outcome, done.state, effects(world)) == ("done", "committed", ["charge 7", "ship 7"])


def test_a_tool_of_that_name_is_a_mistake(world: World) -> None:
    @tool(kind="read")
    def request_rollback(why: str) -> None: ...

    with Runtime("memory:", tools=[request_rollback]) as rt, pytest.raises(UsageError, match="already"):
        agent_of(rt)("Hello.", may_roll_back=True)


# ---- the same id --------------------------------------------------------------------------


def test_an_ended_run_is_answered_from_its_record(rt: Runtime, world: World, kind: str) -> None:
    first = agent_of(rt, kind)(CHARGE, "Charged.", id="o-7")
    model = ScriptedModel("Something else.")
    again = agent_of(rt, kind)(model, id="o-7")
    assert (again.outcome, again.text, again.turns) == (first.outcome, first.text, first.turns)
    assert model.asked == []
    assert effects(world) == ["charge 7"]


def test_another_prompt_for_the_same_id_is_a_conflict(rt: Runtime) -> None:
    agent = agent_of(rt)
    agent("Hello.", id="o-7")
    with pytest.raises(RunConflict):
        agent("Hello.", id="o-7", prompt="Something else.")


@pytest.mark.parametrize("systems", [("", "Be brief."), ("Be brief.", ""), ("Be brief.", "Be kind.")])
def test_going_on_with_other_words_of_the_system_loses_nothing(agent: Agent, world: World, systems: Any) -> None:
    turns = [("balance", {"account": "a"}), CHARGE, SHIP, ("mail", {"to": "ada"}), "Done."]
    assert agent(*turns, id="o-7", system=systems[0], max_turns=3).state == "blocked"
    done = agent(*turns, id="o-7", system=systems[1])
    assert (done.outcome, done.turns, len(told(done))) == ("done", 5, 4)
    assert effects(world) == ["charge 7", "ship 7", "mail ada"]


def test_going_on_in_another_wire_format_is_refused_and_leaves_the_run_alone(rt: Runtime, world: World) -> None:
    agent_of(rt, "messages")(*BIG, "Done.", id="o-7")
    with pytest.raises(UsageError, match="API messages, not chat"):
        agent_of(rt, "chat.completions")(*BIG, "Done.", id="o-7")
    assert rt.report("o-7").state == "open"
    assert effects(world) == ["charge big", "reserve box"]


def test_a_turn_whose_calls_were_hidden_from_the_ledger_is_asked_for_again(world: World) -> None:
    for kind in ("messages", "chat.completions"):
        with Runtime("memory:", tools=tools_of(world), redact=["re:big"], secret_key="0" * 32) as rt:
            agent = agent_of(rt, kind)
            [held] = agent(*BIG, "Shipped.", id="o-7").waiting
            rt.approve(held.approval.id, digest=held.approval.digest, by="ada")
            model = ScriptedModel(*BIG, "Shipped.")
            assert agent(model, id="o-7").outcome == "done", kind
            assert len(model.asked) == 2
    assert effects(world) == ["charge big", "reserve box", "ship big"] * 2


# ---- mistakes ------------------------------------------------------------------------------


def test_what_is_wrong_is_said_before_a_run_is_opened(rt: Runtime) -> None:
    with ModelServer(ScriptedModel("Hello.")) as server, OpenAI(**server.openai) as client:
        wrong: list[dict[str, Any]] = [
            {"client": AsyncOpenAI(**server.openai)},
            {"client": object()},
            {"client": client, "api": "messages"},
            {"client": client, "api": "graphql"},
            {"client": client, "max_turns": 0},
        ]
        for more in wrong:
            with pytest.raises(UsageError):
                run_agent(rt, "Hi.", model="m", id="o-7", **more)
        with pytest.raises(UsageError, match="run_agent_async"):
            run_agent(AsyncRuntime("memory:"), "Hi.", client=client, model="m")  # type: ignore[arg-type]
    assert list(rt.runs()) == []
    assert server.asked == []
