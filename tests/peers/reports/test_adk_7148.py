"""adk-python #7148: a declined tool is executed all the same.

Seen on google-adk 2.13.0: what was reported is mended; a tool that says beforehand that it requires confirmation is not called
after a no. A tool that asks for itself, once it has seen its arguments, still is, no differently than after a yes: whether it
stops is left to each tool. With amends the wire waits for a yes in the ledger. A "declined" that nobody reads sends nothing,
and neither does a "confirmed" that anybody can hand in.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import BaseTool
from google.genai import types

import amends
from tests.adapters.loops import on_a_loop

ASKS = "adk_request_confirmation"
WIRE = {"iban": "DE1", "cents": 50000}


class Script(BaseLlm):
    """Asks for the wire, and is content with whatever it is told."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        told = any(part.function_response for content in llm_request.contents for part in content.parts or ())
        wire = types.Part(function_call=types.FunctionCall(id="call_1", name="wire", args=WIRE))
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="so be it") if told else wire]))


class Wire(BaseTool):
    """Asks when it has seen its arguments; when it is called again, it sends."""

    def __init__(self, sent: list[str]) -> None:
        super().__init__(name="wire", description="Send a wire.")
        self.sent = sent

    def _get_declaration(self) -> types.FunctionDeclaration:
        schema = {"type": "object", "properties": {"iban": {"type": "string"}, "cents": {"type": "integer"}}}
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    def send(self, iban: str, cents: int) -> str:
        self.sent.append(iban)
        return f"wire_{iban}"

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        if not tool_context.tool_confirmation:
            tool_context.request_confirmation(hint="Send it?")
            return {"status": "waits"}
        return {"result": self.send(**args)}


class SaidWire(Wire):
    """The tool of the report: says beforehand that it requires confirmation."""

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: Any) -> bool:
        return True


class GuardedWire(Wire):
    """The same, where the ledger decides; ADK's confirmation only lets somebody know."""

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        run = amends.current_run()
        answer = await run.answer(self.name, args, handler=self.send, tool_call_id=tool_context.function_call_id)  # type: ignore[misc]
        if answer.waits and not tool_context.tool_confirmation:
            tool_context.request_confirmation(hint=answer.text)
        return {"result": answer.text}


class Talk:
    """One session with an agent."""

    def __init__(self, tool: Wire) -> None:
        self.runner = InMemoryRunner(
            LlmAgent(name="clerk", model=Script(model="script"), tools=[tool]), app_name="bank"
        )
        self.session: Any = None

    async def asked(self) -> str:
        """The id of the confirmation that the person is asked for."""
        (asks,) = [one for one in await self.say_it() if isinstance(one, types.FunctionCall) and one.name == ASKS]
        return asks.id or ""

    async def say_it(self) -> list[Any]:
        """What was called and told after the person asked for the wire."""
        self.session = await self.runner.session_service.create_session(app_name="bank", user_id="ann")
        return await self._say(types.Part(text="wire it"))

    async def decide(self, asked: str, *, confirmed: bool) -> list[Any]:
        """What the tool then told the model."""
        decided = types.FunctionResponse(id=asked, name=ASKS, response={"confirmed": confirmed})
        said = await self._say(types.Part(function_response=decided))
        return [one.response for one in said if isinstance(one, types.FunctionResponse) and one.name == "wire"]

    async def _say(self, part: types.Part) -> list[Any]:
        said = types.Content(role="user", parts=[part])
        events = self.runner.run_async(user_id="ann", session_id=self.session.id, new_message=said)
        return [one async for event in events for one in (*event.get_function_calls(), *event.get_function_responses())]


async def declined(tool: Wire) -> list[str]:
    """What was sent although the person declined."""
    talk = Talk(tool)
    asked = await talk.asked()
    assert tool.sent == []
    await talk.decide(asked, confirmed=False)
    return tool.sent


@on_a_loop
async def test_bare_the_tool_of_the_report_is_no_longer_executed() -> None:
    assert await declined(SaidWire([])) == []


@on_a_loop
async def test_bare_a_tool_that_asks_for_itself_is_executed_after_a_no() -> None:
    assert await declined(Wire([])) == ["DE1"]


@pytest.mark.parametrize("confirmed", [False, True])
def test_with_amends_the_ledger_decides_and_not_what_is_handed_in(confirmed: bool) -> None:
    @on_a_loop
    async def check() -> None:
        sent: list[str] = []
        declared = amends.declare("wire", kind="pivot", key=("iban", "cents"), needs_approval=True)
        async with amends.AsyncRuntime("memory:", tools=[declared]) as rt:
            talk = Talk(GuardedWire(sent))
            with pytest.raises(amends.Held):
                async with rt.run("wire-1"):
                    asked = await talk.asked()
                    await talk.decide(asked, confirmed=confirmed)
            assert sent == []

            (waits,) = [one async for one in rt.approvals()]
            await rt.approve(waits.id, digest=waits.digest, by="ann")
            async with rt.run("wire-1"):
                await Talk(GuardedWire(sent)).say_it()
                await Talk(GuardedWire(sent)).say_it()
            assert sent == ["DE1"], "with the yes of the ledger, and once"

    check()


@on_a_loop
async def test_with_amends_a_no_reaches_the_model_with_its_reason() -> None:
    sent: list[str] = []
    declared = amends.declare("wire", kind="pivot", needs_approval=True)
    async with amends.AsyncRuntime("memory:", tools=[declared]) as rt:
        talk = Talk(GuardedWire(sent))
        with pytest.raises(amends.Held):
            async with rt.run("wire-1"):
                asked = await talk.asked()
        (waits,) = [one async for one in rt.approvals()]
        await rt.reject(waits.id, by="ann", reason="wrong account")
        async with rt.run("wire-1"):
            (told,) = await talk.decide(asked, confirmed=False)
    assert sent == []
    assert "wrong account" in told["result"]
