"""The conversation of one run: what is asked next, and where it stood when the run was left or lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from amends import Answer, Call, Held, Report, Secret, ToolCall, UsageError
from amends.errors import ApprovalVoid, UnknownTool
from amends.llm.dialects import Message, Prompt, Said, dialect
from amends.llm.wire import Api, written

ROLLBACK: Final = "request_rollback"
"""The tool by which a model asks for everything to be taken back."""
MASK: Final = "•••"


class Conversation:
    """What was said so far, in the words of one API. It asks nobody and runs nothing."""

    def __init__(
        self,
        api: Api,
        *,
        model: str,
        system: str,
        prompt: Prompt,
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> None:
        self.api: Api = api
        self._speaks = dialect(api)
        self._model, self._system, self._options = model, system, dict(options)
        self._tools = list(tools)
        self._offered = frozenset(_name(one) for one in tools)
        self._opening = self._speaks.opening(system, prompt)
        self.input: Any = prompt if isinstance(prompt, str) else written(list(prompt)).data
        self._begin()

    def _begin(self) -> None:
        self.messages: list[Message] = list(self._opening)
        self.turns = 0
        self.pending: Said | None = None
        """What the model said last, while its calls have no outcome."""
        self.knows_all = True
        """Whether everything that the run has done is in the conversation."""
        self.waiting: tuple[Held | ApprovalVoid, ...] = ()
        """What waits for a person."""

    # ---- asking ---------------------------------------------------------------------------

    def request(self) -> dict[str, Any]:
        """The body of the next request."""
        body = self._speaks.request(self._model, self.messages, system=self._system, tools=self._tools)
        return {**body, **self._options}

    def hear(self, response: Mapping[str, Any]) -> None:
        """Take in what the model said."""
        self.turns += 1
        self.pending = self._speaks.said(response)
        self.messages += self.pending.messages

    def delta(self, event: Mapping[str, Any]) -> str:
        """The text that an event of a stream adds."""
        return self._speaks.delta(event)

    def asked(self) -> tuple[ToolCall, ...]:
        """The calls to be done now: of tools that the model was told about."""
        assert self.pending is not None, "the model has said something"
        return tuple(call for call in self.pending.calls if call.tool in self._offered and call.tool != ROLLBACK)

    def tell(self, answers: Iterable[Answer], *, no_way_back: str = "") -> None:
        """Take in what became of the calls; ``no_way_back``: what is said to a model that asked for the way back."""
        assert self.pending is not None, "the model has said something"
        outcomes, done = [], iter(answers)
        for call in self.pending.calls:
            if call.tool not in self._offered:
                known = sorted(self._offered - {ROLLBACK})
                outcomes.append((call, _refusal(UnknownTool(call.tool, known=known))))
            elif call.tool == ROLLBACK:
                outcomes.append((call, Answer("refused", no_way_back)))
            else:
                outcomes.append((call, next(done)))
        self.messages += self._speaks.told(outcomes)
        self.pending = None

    @property
    def rollback_asked(self) -> ToolCall | None:
        """The model's request that everything be taken back, if it has just made one."""
        calls = () if self.pending is None or ROLLBACK not in self._offered else self.pending.calls
        return next((call for call in calls if call.tool == ROLLBACK), None)

    # ---- going on -------------------------------------------------------------------------

    def recall(self, report: Report | None) -> None:
        """Stand where the run stood: after the last answer of the model that the ledger has."""
        self._begin()
        if report is None or report.state == "rolled_back":  # its next generation begins anew
            return
        asked = [call for call in report.calls if _is_turn(call)]
        last = asked[-1] if asked else None
        if last is None:
            self.knows_all = not any(call.kind != "read" for call in report.calls)
            return
        if not _is_whole(last):  # too large to have been kept: from the beginning, and the keys see to the rest
            self.turns, self.knows_all = len(asked), False
            return
        if last.args["api"] != self.api:
            raise UsageError(
                f"run {report.run_id} speaks with its model by {last.args['api']}, not by {self.api}",
                hint=f"go on with api={last.args['api']!r} and a client of the same provider",
            )
        before = list(self._speaks.conversation(last.args["request"]))
        # The system's words may be others by now, or in an API that sends them as a message, none.
        opened = len(self._opening) + _systems(before) - _systems(self._opening)
        self.messages += [_readable(one) for one in before[opened:]]
        self.turns = len(asked) - 1
        response = last.result["response"]
        if _has_secret(response):  # its calls cannot be read any more: the model is asked for this turn again
            self.knows_all = False
            return
        if self._speaks.said(response).cut:  # none of it was done, and the model is asked again
            self.turns = len(asked)
            return
        self.hear(response)


def _name(schema: Mapping[str, Any]) -> str:
    return str((schema.get("function") or schema).get("name", ""))


def _refusal(error: UnknownTool) -> Answer:
    return Answer("refused", error.for_model(), error=error)


def _systems(messages: Sequence[Any]) -> int:
    """How many messages at the beginning are of the system."""
    return sum(1 for _ in takewhile(lambda one: isinstance(one, Mapping) and one.get("role") == "system", messages))


def _is_turn(call: Call) -> bool:
    """A request of the loop itself, answered to its end; tools that ask models on their own have a parent."""
    if not call.tool.startswith("model:") or call.parent or call.state != "succeeded":
        return False
    return not isinstance(call.result, Mapping) or bool(call.result.get("complete"))


def _is_whole(call: Call) -> bool:
    """Whether the ledger holds what was asked and what was answered."""
    request, result = call.args.get("request"), call.result
    response = result.get("response") if isinstance(result, Mapping) else None
    return all(isinstance(one, Mapping) and "left out" not in one for one in (request, response))


def _has_secret(value: object) -> bool:
    match value:
        case Secret():
            return True
        case str():
            return MASK in value
        case Mapping():
            return any(_has_secret(one) for one in value.values())
        case list() | tuple():
            return any(_has_secret(one) for one in value)
    return False


def _readable(value: Any) -> Any:
    """What was hidden from the ledger is hidden from the model too, once only the ledger knows what was said."""
    match value:
        case Secret():
            return MASK
        case Mapping():
            return {name: _readable(one) for name, one in value.items()}
        case list() | tuple():
            return [_readable(one) for one in value]
    return value
