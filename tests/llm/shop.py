"""A small shop whose world is a folder, for agents: as a library, and as a program that is killed.

``python -m tests.llm.shop FOLDER [CLIENT]`` runs the agent on order 7 and prints what ``run_agent`` gave. DIE_AT names
the point where the process kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amends import Absent, Happened, Runtime, Unknown, current_call, tool
from amends.llm import Heard, ModelServer, ScriptedModel, run_agent

PROMPT = "Ship order 7."


def die_at(point: str) -> None:
    if os.environ.get("DIE_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


class World:
    """Every effect is a line in a file; what is undone is a line too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def does(self, what: str) -> None:
        with (self.folder / "world.txt").open("a", encoding="utf-8") as file:
            file.write(what + "\n")

    @property
    def done(self) -> list[str]:
        path = self.folder / "world.txt"
        return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'ledger.db'}"


def tools_of(world: World) -> list[Any]:
    @tool(kind="read")
    def balance(account: str) -> int:
        """Balance of an account, in cents."""
        return 9000

    @tool(key="order")
    def charge(order: str, cents: int) -> dict[str, str]:
        """Charge an order."""
        if cents > 100_000:
            raise ValueError("the card was declined")
        die_at("before charge")
        world.does(f"charge {order} {current_call().key[:8]}")
        die_at("after charge")
        return {"id": f"ch_{order}"}

    @charge.compensate
    def refund(result: dict[str, str]) -> None:
        world.does(f"refund {result['id']}")

    @charge.probe(settle=0.0)
    def find_charge(order: str) -> Any:
        found = any(line.startswith(f"charge {order} ") for line in world.done)
        return Happened({"id": f"ch_{order}"}) if found else Absent()

    @tool
    def reserve(sku: str) -> str:
        """Reserve something; which one is not declared, so its arguments are its identity."""
        world.does(f"reserve {sku}")
        die_at(f"after reserve {sku}")
        return f"r_{sku}"

    @reserve.compensate
    def release(result: str) -> None:
        world.does(f"release {result}")

    @reserve.probe(settle=0.0)
    def find_reservation(sku: str) -> Any:
        if os.environ.get("BLIND"):
            return Unknown("nobody answers")
        return Happened(f"r_{sku}") if f"reserve {sku}" in world.done else Absent()

    @tool(kind="pivot", after=["charge"], needs_approval=lambda call: call.args["order"].startswith("big"))
    def ship(order: str) -> str:
        """Hand the parcel to the courier."""
        world.does(f"ship {order}")
        return f"parcel_{order}"

    @tool(kind="retriable", idempotent=True)
    def mail(to: str) -> None:
        """Tell the customer."""
        world.does(f"mail {to}")

    return [balance, charge, reserve, ship, mail]


# ---- the program --------------------------------------------------------------------------


def last_words(heard: Heard) -> str:
    die_at("last words")
    return "Order 7 is on its way."


def second_turn(heard: Heard) -> Any:
    die_at("second turn")
    return [("reserve", {"sku": "ribbon"}), ("mail", {"to": "ada"})]


def script() -> ScriptedModel:
    return ScriptedModel(
        [("charge", {"order": "7", "cents": 4200}), ("reserve", {"sku": "box"})],
        second_turn,
        ("ship", {"order": "7"}),
        last_words,
    )


@contextmanager
def client_of(kind: str, model: ScriptedModel) -> Iterator[tuple[Any, Any]]:
    """A client with its wire format: the script itself, or an SDK that talks to a server with it."""
    if kind == "script":
        yield model, None
        return
    import httpx2  # a process of its own for a script alone pays for no SDK

    http = httpx2.Client(verify=False)  # reading all certificates takes longer than most tests
    if kind == "generate_content":
        from google import genai

        with ModelServer(model) as server, http:
            given = server.gemini
            with genai.Client(**{**given, "http_options": {**given["http_options"], "httpx_client": http}}) as gemini:
                yield gemini, kind
        return
    if kind == "chat":
        import ollama

        with ModelServer(model) as server, ollama.Client(**server.ollama, verify=False) as local:
            yield local, kind
        return
    from anthropic import Anthropic
    from openai import OpenAI

    with ModelServer(model) as server:
        made: Any = Anthropic if kind == "messages" else OpenAI
        given = server.anthropic if kind == "messages" else server.openai
        with made(**given, http_client=http) as client:
            yield client, kind


def main() -> None:
    world = World(Path(sys.argv[1]))
    model = script()
    kind = sys.argv[2] if len(sys.argv) > 2 else "script"
    with Runtime(world.url, tools=tools_of(world)) as rt, client_of(kind, model) as (client, api):
        done = run_agent(rt, PROMPT, client=client, model="gpt-4o-mini", api=api, id="order-7")
    told = {"outcome": done.outcome, "text": done.text, "turns": done.turns, "state": done.state}
    print(json.dumps({**told, "asked": len(model.asked)}))


if __name__ == "__main__":
    main()
