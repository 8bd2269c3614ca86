"""A model that says exactly what it was told to say: for tests and examples, without a key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from amends import UsageError
from amends.llm.hearing import heard_in
from amends.llm.wire import Api

Wanted: TypeAlias = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""
Stop: TypeAlias = Literal["", "length", "refusal"]
Plain: TypeAlias = "str | Sequence[object] | Reply"
"""One turn: a text, `(tool, arguments)`, a list of both, side by side, or a `Reply`; checked when it is said."""
Turn: TypeAlias = "Plain | Callable[[Heard], Plain]"
ASKED_MAX: Final = 10_000
"""Requests that a script remembers; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a scripted model has in front of it when it is asked."""

    turn: int
    """How often it has spoken in this conversation before."""
    results: tuple[str, ...]
    """What it was told of its calls so far, in order."""
    request: Mapping[str, Any]
    """The body of the request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn in full: what is said, what is asked for, and what made the model stop."""

    text: str = ""
    calls: Sequence[Wanted] = ()
    stop: Stop = ""
    """Empty: it was done. Cut off at the limit of its answer, or refused by the provider."""


class ScriptedModel:
    """A model that asks for exactly these calls, as ``client=`` of ``run_agent`` or behind a ``ModelServer``.

    Each turn is a text, ``(tool, arguments)``, a list of these, or a function that gets what was ``Heard`` and gives
    one. Which turn it is, is read from the conversation: a program that was killed and resumes goes on where it was.
    ``repeat``: the last turn is said again for ever, instead of failing at the end of the script.
    """

    def __init__(self, *turns: Turn, repeat: bool = False) -> None:
        if not turns:
            raise UsageError("a scripted model needs a turn", hint='ScriptedModel(("charge", {"cents": 5}), "done")')
        self.turns = turns
        self.asked: list[Mapping[str, Any]] = []
        """The bodies of the requests, in order."""
        self._repeat = repeat
        self._lock = threading.Lock()

    def reply(self, api: Api, request: Mapping[str, Any]) -> Reply:
        """What it says to this request, in whatever wire format that is."""
        with self._lock:
            self.asked.append(request)
            del self.asked[:-ASKED_MAX]
        number, results = heard_in(api, request)
        if number >= len(self.turns) and not self._repeat:
            raise UsageError(
                f"the script has {len(self.turns)} turns, and one more was asked for",
                hint="let its last turn be a text, which ends the conversation, or say repeat=True",
            )
        turn = self.turns[min(number, len(self.turns) - 1)]
        return _read(turn(Heard(number, results, request)) if callable(turn) else turn)


def _read(turn: Plain) -> Reply:
    if isinstance(turn, Reply):
        return turn
    parts: Sequence[Any] = [turn] if isinstance(turn, str) or _is_call(turn) else turn
    texts, calls = [], []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif _is_call(part):
            calls.append((part[0], part[1]))
        else:
            raise UsageError(f"a turn of a script is a text, (tool, arguments) or a list of these, not {part!r}")
    return Reply("".join(texts), tuple(calls))


def _is_call(part: object) -> bool:
    match part:
        case (str(), Mapping()) if isinstance(part, tuple):
            return True
    return False
