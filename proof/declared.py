"""The tools of the worlds as amends knows them: a compensation uses only what the world itself offers.

Where it offers none, the call comes last: a pivot, or a retriable, which waits until nothing can fail any more. ``KINDS`` in
``abilities`` has the reason of each choice; the page of the proof prints it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from amends import Absent, Call, Happened, Unknown, tool
from proof.abilities import KINDS_OF, PROBE, SNAPSHOT, UNDO, UNDONE, choice, given
from proof.destination import Destination, DestinationError

_here: Destination | None = None


def be_at(destination: Destination) -> None:
    """Say which world the tools of this process act in."""
    global _here
    _here = destination


def here() -> Destination:
    """Return the way to the world of this process."""
    assert _here is not None, "be_at comes first"
    return _here


def tools_of(suite: str, catalogue: Mapping[str, Any], **options: Any) -> list[Any]:
    """Return the declared tools of a suite. ``options`` go to each one with an effect."""
    tools = catalogue["suites"][suite]["tools"]
    return [_declared(suite, name, said, options) for name, said in tools.items()]


def _declared(suite: str, name: str, said: list[Any], more: dict[str, Any]) -> Any:
    described, parameters = said
    body = _function(name, described, parameters)
    kind, _, options = choice(suite, name)
    if kind == "read":
        return tool(body, kind="read")
    declared: dict[str, Any] = {"kind": kind, "retry": 3 if kind != "pivot" else 1, **options, **more}
    if more.get("needs_approval"):
        # A person approves or rejects a text: two texts to one recipient are two requests, and a no to one is no answer to both.
        declared.pop("key", None)
        declared.pop("ignore", None)
    if name in SNAPSHOT:
        declared["before"] = lambda call: SNAPSHOT[name](here().world, given(call.args))
    if name in PROBE and (suite, name) not in KINDS_OF:
        declared["probe"] = lambda call: _probed(name, call)
    made = tool(body, **declared)
    if kind == "compensatable":

        def undo_created(call: Call, result: Any) -> None:
            UNDO[name](here().world, given(call.args), result, call.before)

        def undo(call: Call) -> None:
            UNDO[name](here().world, given(call.args), None, call.before)

        def created_is_undone(call: Call, result: Any) -> Any:
            return Happened(None) if UNDONE[name](here().world, given(call.args), result, call.before) else Absent()

        def undone(call: Call) -> Any:
            return Happened(None) if UNDONE[name](here().world, given(call.args), None, call.before) else Absent()

        # What was created has an id that only the result tells; the others are undone by their arguments.
        if name.startswith("create_"):
            made.compensate(probe=created_is_undone)(undo_created)
        else:
            made.compensate(probe=undone)(undo)
    return made


def _probed(name: str, call: Call) -> Any:
    try:
        found = PROBE[name](here().world, given(call.args), call.before)
    except DestinationError as error:
        return Unknown(str(error))
    if found is None or found is False:
        return Absent()
    return (
        Happened(None) if found is True else Happened(found)
    )  # True: its result is a confirmation, and nobody needs that


def _function(name: str, described: str, parameters: list[str]) -> Callable[..., Any]:
    """Return the body of a tool: it sends what it was given to the world."""

    def body(**args: Any) -> Any:
        return here().perform(name, given(args))

    body.__name__ = body.__qualname__ = name
    body.__doc__ = described
    kinds = [inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any) for one in parameters]
    body.__signature__ = inspect.Signature(kinds, return_annotation=Any)  # type: ignore[attr-defined]
    return body
