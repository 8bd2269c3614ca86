"""What the harnesses of the SDKs share: a scripted model behind the public server, and runs by conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from amends import Held
from amends.errors import Suspended
from amends.llm import ScriptedModel
from amends.llm.wire import Api, heard_in
from amends.tools.signature import Signature
from tests.adapters.conformance import Fails, Outcome, Turn
from tests.adapters.shop import Shop

MODEL = "gpt-4o-mini"
SAID: list[Any] = [{"role": "user", "content": "Do it."}]


def script_of(turns: Sequence[Turn]) -> ScriptedModel:
    return ScriptedModel(*(_turn(turn) for turn in turns))


def _turn(turn: Turn) -> Any:
    if not isinstance(turn, Fails):
        return turn

    def fails(_: Any) -> Any:
        raise RuntimeError(turn.message)

    return fails


def down_once(shop: Shop, turns: Sequence[Turn]) -> ScriptedModel:
    """The same, but the model is down once, in whatever process that is, when it has first seen a result."""

    def said(turn: Any) -> Any:
        def say(heard: Any) -> Any:
            if not (shop.folder / "was-down").exists():
                (shop.folder / "was-down").touch()
                raise RuntimeError("the model is down")
            return turn

        return say

    return ScriptedModel(_turn(turns[0]), *(said(turn) for turn in turns[1:]))


def handed_on(turns: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
    """What the first of two agents says, and what the second."""
    return [turns[0], "handed on"], list(turns[1:])


def run_id(shop: Shop, thread: str, *, resume: bool) -> str:
    """A new run for every turn of a conversation; the last one, where it is resumed."""
    counter = shop.folder / f"turns-{thread}"
    number = int(counter.read_text()) if counter.exists() else 0
    number = number if resume else number + 1
    counter.write_text(str(number))
    return f"{thread}:{number}"


def schema_of(function: Any) -> dict[str, Any]:
    """A tool as a program would describe it by hand."""
    schema = Signature(function.__name__, getattr(function, "fn", function)).schema()
    return {"name": function.__name__, "description": function.__doc__, "parameters": schema}


class Played:
    """One turn of a conversation, and what came of it."""

    def __init__(self, api: Api, model: ScriptedModel) -> None:
        self._api, self._model = api, model
        self.how: Any = "finished"
        self.error = ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        try:
            yield
        except (Held, Suspended):
            self.how = "paused"
        except Exception as error:
            self.how, self.error = "failed", f"{error} {error.__context__ or ''}"

    @property
    def outcome(self) -> Outcome:
        told = heard_in(self._api, self._model.asked[-1])[1] if self._model.asked else ()
        return Outcome(self.how, list(told), self.error)
