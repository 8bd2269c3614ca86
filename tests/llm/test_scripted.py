"""A scripted model, and the server that puts it behind HTTP: what anybody's tests stand on."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from amends import UsageError
from amends.llm import Heard, ModelServer, Reply, ScriptedModel
from amends.llm.wire import heard_in

CALL = ("charge", {"cents": 5})


def chat(*roles: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)]}


# ---- the script ---------------------------------------------------------------------------


def test_which_turn_it_is_is_read_from_the_conversation() -> None:
    model = ScriptedModel("first", "second")
    assert model.reply("chat.completions", chat("user", "assistant", "user")).text == "second"
    assert model.reply("chat.completions", chat("user")).text == "first", "another conversation"
    assert [len(request["messages"]) for request in model.asked] == [3, 1]


def test_a_turn_is_a_text_a_call_a_list_or_a_reply() -> None:
    turns: list[tuple[Any, Reply]] = [
        ("hello", Reply("hello", ())),
        (CALL, Reply("", (CALL,))),
        (["Let me see.", CALL, CALL], Reply("Let me see.", (CALL, CALL))),
        (Reply("cut", stop="length"), Reply("cut", stop="length")),
        (lambda heard: f"turn {heard.turn}", Reply("turn 0", ())),
    ]
    for turn, expected in turns:
        assert ScriptedModel(turn).reply("chat.completions", chat("user")) == expected


def test_a_function_hears_what_came_of_the_calls() -> None:
    heard: list[Heard] = []

    def turn(one: Heard) -> str:
        heard.append(one)
        return "done"

    request = chat("user", "assistant", "tool", "tool")
    ScriptedModel(CALL, turn).reply("chat.completions", request)
    assert (heard[0].turn, heard[0].results, heard[0].request) == (1, ("tool 2", "tool 3"), request)


def test_the_end_of_a_script_is_said_unless_it_repeats() -> None:
    with pytest.raises(UsageError, match="the script has 1 turns"):
        ScriptedModel("only").reply("chat.completions", chat("user", "assistant"))
    assert ScriptedModel("only", repeat=True).reply("chat.completions", chat("assistant", "assistant")).text == "only"
    with pytest.raises(UsageError, match="needs a turn"):
        ScriptedModel()
    with pytest.raises(UsageError, match="a turn of a script"):
        ScriptedModel([("charge", "not a mapping")]).reply("chat.completions", chat("user"))


def test_turns_are_counted_in_every_wire_format() -> None:
    function = {"type": "function_call", "call_id": "c", "name": "charge", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "5"}
    said = {"role": "assistant", "content": "x"}
    assert heard_in("responses", {"input": "hello"}) == (0, ())
    assert heard_in("responses", {"input": [{"role": "user"}, function, function, output, output]}) == (1, ("5", "5"))
    assert heard_in("responses", {"input": [said, output, {"type": "reasoning"}, function]}) == (2, ("5",))
    assert heard_in("responses", {"previous_response_id": "resp_3", "input": [output]}) == (3, ("5",))
    blocks = [{"type": "tool_result", "content": [{"type": "text", "text": "5"}]}, {"type": "text", "text": "and"}]
    assert heard_in("messages", {"messages": [{"role": "assistant"}, {"role": "user", "content": blocks}]}) == (
        1,
        ("5",),
    )
    thread = {"type": "continue", "previous_message_id": "msg_2"}
    assert heard_in("messages", {"thread": thread, "messages": [{"role": "user", "content": blocks}]}) == (2, ("5",))


# ---- the server ---------------------------------------------------------------------------


def post(server: ModelServer, path: str, body: Any) -> tuple[int, Any]:
    asked = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_server_says_what_is_wrong() -> None:
    def down(_: Heard) -> str:
        raise RuntimeError("the model is down")

    with ModelServer(ScriptedModel(down)) as server:
        assert post(server, "/v1/chat/completions", chat("user"))[0] == 500
        assert post(server, "/v1/chat/completions", chat("user", "assistant"))[0] == 400
        assert post(server, "/v1/chat/completions", {"model": "fails-418"})[0] == 418
        assert post(server, "/v1/embeddings", {})[0] == 404
        assert [request["path"] for request in server.asked][-1] == "/v1/embeddings"
    with pytest.raises(UsageError, match="not running"):
        _ = server.url


def test_a_server_may_be_opened_again() -> None:
    server = ModelServer(ScriptedModel("hello"))
    for _ in range(2):
        with server:
            assert post(server, "/v1/messages", {"messages": []})[1]["content"][0]["text"] == "hello"


def test_the_same_script_says_the_same_in_every_format() -> None:
    with ModelServer(ScriptedModel(["Now.", CALL])) as server:
        said = post(server, "/v1/chat/completions", chat("user"))[1]["choices"][0]
        assert said["message"]["tool_calls"][0]["function"] == {"name": "charge", "arguments": '{"cents": 5}'}
        assert (said["message"]["content"], said["finish_reason"]) == ("Now.", "tool_calls")
        items = post(server, "/v1/responses", {"input": "x"})[1]["output"]
        assert [item["type"] for item in items] == ["message", "function_call"]
        blocks = post(server, "/v1/messages", {"messages": []})[1]
        assert (blocks["content"][1]["input"], blocks["stop_reason"]) == ({"cents": 5}, "tool_use")
