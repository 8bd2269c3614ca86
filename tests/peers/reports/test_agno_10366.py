"""agno #10366: ``Agent(retries=N)`` executes tool calls again that had already succeeded.

Seen on agno 3.1.10: the model fails after the tool, the whole run is begun again, the model gives the same charge another
call id, and the card is charged once for each attempt. With amends the later attempts are answered from the record.
"""

from __future__ import annotations

import functools
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.run.base import RunStatus

import amends

RETRIES = 2


class Flaky(Model):
    """Asks for the charge, fails when it is told the result; the last attempt goes through."""

    def __init__(self) -> None:
        super().__init__(id="flaky")
        self.asked = 0
        self.told: list[str] = []

    def invoke(self, messages: list[Any], **_: Any) -> ModelResponse:
        results = [one.content for one in messages if one.role == "tool"]
        if not results:
            self.asked += 1
            function = {"name": "charge_card", "arguments": '{"order": "7"}'}
            call = {"id": f"call_{self.asked}", "type": "function", "function": function}
            return ModelResponse(role="assistant", tool_calls=[call])
        self.told += results
        if self.asked <= RETRIES:
            raise ConnectionError("HTTP 500")
        return ModelResponse(role="assistant", content="charged")

    ainvoke = invoke_stream = ainvoke_stream = _parse_provider_response = _parse_provider_response_delta = invoke  # type: ignore[assignment]


def charged_by(guard: Any) -> tuple[list[str], Flaky]:
    charged: list[str] = []

    def charge_card(order: str) -> str:
        """Charge the card of an order."""
        charged.append(order)
        return f"ch_{order}"

    model = Flaky()
    agent = Agent(
        model=model, tools=[guard(charge_card)], retries=RETRIES, delay_between_retries=0, telemetry=False
    )  # fmt: skip
    done = agent.run("charge the card")
    assert (done.status, model.asked) == (RunStatus.completed, RETRIES + 1), "all attempts were to be used"
    return charged, model


def test_bare_every_attempt_charges_the_card() -> None:
    charged, _ = charged_by(lambda tool: tool)
    assert charged == ["7", "7", "7"]


def test_with_amends_the_card_is_charged_once() -> None:
    def answered(tool: Any) -> Any:
        @functools.wraps(tool)
        def call(**given: Any) -> str:
            return amends.current_run().answer(tool.__name__, given, handler=tool).text  # type: ignore[union-attr]

        return call

    card = amends.declare("charge_card", kind="pivot", key="order")
    with amends.Runtime("memory:", tools=[card]) as rt:
        with rt.run("order-7"):
            charged, model = charged_by(answered)
        (call,) = rt.report("order-7").calls
    assert (charged, call.replays) == (["7"], RETRIES)
    assert all("ch_7" in told for told in model.told), "each attempt was told the charge"
