"""One turn of a model in an opened run, in both colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from amends import people
from amends.context import refuse_nowhere
from amends.engine.call import Done
from amends.engine.foreseeing import ask_first
from amends.engine.session import Ask
from amends.engine.turn import End, do_turn
from amends.errors import Held, Waiting
from amends.model import Answer, Approval, ToolCall
from amends.requesting import foreseen_ask, stranger_name, turn_asks

if TYPE_CHECKING:
    from amends.aiorun import AsyncRun
    from amends.run import Run


def answer_all(run: Run, calls: Sequence[ToolCall]) -> list[Answer]:
    """Each was done, refused or held; a tool that nobody declared, in a run of its own, comes after the others."""
    asks = turn_asks(run._hub, run._session, calls)
    known = _known(asks)
    try:
        _refuse_nowhere(calls)
        run._check_here()
        ends = run._watched(do_turn(run._session, known), [ask.flight for ask in known if isinstance(ask, Ask)])
    except Exception as error:  # of this place, and so of all of them
        return people.told_turn(run._session, calls, asks, _all_with(asks, error))
    rest = iter(ends)
    whole = [_stranger(run, ask) if _is_stranger(ask) else next(rest) for ask in asks]
    return people.told_turn(run._session, calls, asks, whole)


async def answer_all_async(run: AsyncRun, calls: Sequence[ToolCall]) -> list[Answer]:
    """The same, awaited."""
    asks = turn_asks(run._hub, run._session, calls)
    known = _known(asks)
    try:
        _refuse_nowhere(calls)
        await run._check_here()
        ends = await run._watched(do_turn(run._session, known), [ask.flight for ask in known if isinstance(ask, Ask)])
    except Exception as error:
        return people.told_turn(run._session, calls, asks, _all_with(asks, error))
    if any(isinstance(end, Done) and (end.row.kind, end.row.state) == ("pivot", "succeeded") for end in ends):
        run._session.state = "pivoted"
    rest = iter(ends)
    whole = [await _stranger_async(run, ask) if _is_stranger(ask) else next(rest) for ask in asks]
    return people.told_turn(run._session, calls, asks, whole)


def approval_for(run: Run, tool: str, args: Mapping[str, Any] | str, call_id: str | None) -> Approval | None:
    """The request for a yes that such a call waits for, made if there was none."""
    ask = foreseen_ask(run._hub, run._session, tool, args, tool_call_id=call_id)
    refuse_nowhere(ask.spec.name)
    run._check_here()
    try:
        if not ask.undeclared:
            run._watched(ask_first(run._session, ask), [ask.flight])
        with run.child(stranger_name(ask)) as inner:
            inner._watched(ask_first(inner._session, ask), [ask.flight])
    except Waiting as waits:
        return _asked_for(waits)


async def approval_for_async(
    run: AsyncRun, tool: str, args: Mapping[str, Any] | str, call_id: str | None
) -> Approval | None:
    """The same, awaited."""
    ask = foreseen_ask(run._hub, run._session, tool, args, tool_call_id=call_id)
    refuse_nowhere(ask.spec.name)
    await run._check_here()
    try:
        if not ask.undeclared:
            await run._watched(ask_first(run._session, ask), [ask.flight])
        async with run.child(stranger_name(ask)) as inner:
            await inner._watched(ask_first(inner._session, ask), [ask.flight])
    except Waiting as waits:
        return _asked_for(waits)


def _asked_for(waits: Waiting) -> Approval | None:
    found: Approval | None = waits.approval if isinstance(waits, Held) else None
    return found


def _refuse_nowhere(calls: Sequence[ToolCall]) -> None:
    if calls:
        refuse_nowhere(calls[0].tool)


def _is_stranger(ask: Ask | Exception) -> bool:
    return isinstance(ask, Ask) and ask.undeclared


def _known(asks: Sequence[Ask | Exception]) -> list[Ask | Exception]:
    return [ask for ask in asks if not _is_stranger(ask)]


def _all_with(asks: Sequence[Ask | Exception], error: Exception) -> list[End]:
    return [ask if isinstance(ask, Exception) else error for ask in asks]


def _stranger(run: Run, ask: Ask | Exception) -> End:
    assert isinstance(ask, Ask), "a stranger was asked for"
    try:
        return run._do(ask)
    except Exception as error:
        return error


async def _stranger_async(run: AsyncRun, ask: Ask | Exception) -> End:
    assert isinstance(ask, Ask), "a stranger was asked for"
    try:
        return await run._do(ask)
    except Exception as error:
        return error
