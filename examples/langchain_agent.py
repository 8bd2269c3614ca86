"""A LangChain agent that books a trip: it commits, it is rolled back, and it survives a kill. Needs no API key.

    pip install "amends[langchain]" langgraph-checkpoint-sqlite
    python examples/langchain_agent.py

A script plays the model; put `"openai:gpt-4o"` in its place. Everything is kept in the folder `langchain-data`.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite import SqliteSaver

import amends
from amends.adapters.langchain import AmendsMiddleware

DATA = Path("langchain-data")
TRIP = [("book_flight", {"trip": "lisbon"}), ("book_hotel", {"trip": "lisbon", "nights": 2}), "All booked."]


# ---- the agent's tools, as LangChain knows them: no amends here ----------------------------------------------


@tool
def book_flight(trip: str) -> dict[str, str]:
    """Book a flight."""
    # Write a whole line at once: calls of one turn run in parallel.
    print(f"  airline: flight to {trip} booked\n", end="")
    if (DATA / "die").exists():
        (DATA / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)  # after the effect, before the result is recorded
    return {"ticket": f"F-{trip}"}


@tool
def cancel_flight(ticket: str) -> None:
    """Cancel a flight."""
    print("  airline: ticket", ticket, "cancelled")


@tool
def book_hotel(trip: str, nights: int) -> str:
    """Book a hotel."""
    print(f"  hotel: {nights} nights in {trip} booked\n", end="")
    return f"H-{trip}"


# ---- their declarations: compensations and probes, by name ---------------------------------------------------


def find_flight(trip: str) -> amends.Probed[dict[str, str]]:
    print("  amends asks the airline: is there a flight to", trip)
    return amends.Happened({"ticket": f"F-{trip}"})


def cancel_hotel(result: str) -> None:
    print("  hotel: booking", result, "cancelled")


def agent(script: list[Any], saver: SqliteSaver) -> tuple[Any, AmendsMiddleware, amends.Runtime]:
    """The agent as usual, and one middleware."""
    rt = amends.Runtime(f"sqlite:///{DATA}/ledger.db", tools=[
        amends.declare("book_flight", key="trip", probe=find_flight,
                       compensate={"tool": "cancel_flight", "args": {"ticket": "$result.ticket"}}),
        amends.declare("cancel_flight", kind="pivot"),
        amends.declare("book_hotel", key="trip", compensate=cancel_hotel),
    ])  # fmt: skip
    tools = [book_flight, cancel_flight, book_hotel]
    guard = AmendsMiddleware(rt, tools=tools)
    return create_agent(Script(turns=script), tools=tools, middleware=[guard], checkpointer=saver), guard, rt


class Script(BaseChatModel):
    """Play a model: say the next line of the script."""

    turns: list[Any]
    _llm_type = "script"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        asked = max(place for place, one in enumerate(messages) if isinstance(one, HumanMessage))
        line = self.turns[sum(isinstance(one, AIMessage) for one in messages[asked:])]
        if isinstance(line, Exception):
            raise line
        calls = [] if isinstance(line, str) else [{"name": line[0], "args": line[1], "id": os.urandom(4).hex()}]
        said = AIMessage(line if isinstance(line, str) else "", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])


# ---- three conversations -------------------------------------------------------------------------------------


def talk(thread: str, script: list[Any], *, resume: bool = False) -> None:
    config: Any = {"configurable": {"thread_id": thread}}
    given: Any = None if resume else {"messages": [("user", "Book me a weekend in Lisbon.")]}
    with SqliteSaver.from_conn_string(f"{DATA}/graph.db") as saver:
        made, guard, rt = agent(script, saver)
        with rt:
            try:
                with guard.turn(config):  # an exception that leaves this block rolls the turn back
                    print("  agent:", made.invoke(given, config)["messages"][-1].content)
            except ConnectionError as error:
                print("  agent failed:", error)
            print("  ledger: run", f"{thread}/1", "is", rt.report(f"{thread}/1").state)


def main() -> None:
    DATA.mkdir(exist_ok=True)
    if sys.argv[1:] == ["killed"]:
        talk("killed", TRIP)
        return
    print("1. It commits; the model repeats a call, and is answered from the record.", flush=True)
    talk("commits", [TRIP[0], *TRIP])
    print("2. The model is down in the middle: everything is rolled back.", flush=True)
    talk("fails", [*TRIP[:2], ConnectionError("the model is down")])
    print("3. Its process is killed between the booking and the record; another one continues.", flush=True)
    (DATA / "die").touch()
    died = subprocess.run([sys.executable, __file__, "killed"], check=False)
    (DATA / "die").unlink(missing_ok=True)  # nothing dies if all was done before
    print("  killed:", died.returncode == -signal.SIGKILL)
    talk("killed", TRIP, resume=True)


if __name__ == "__main__":
    main()
