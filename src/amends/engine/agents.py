"""An agent that is called as a tool: a child run, not a call, so that it can wait for a person and has its own pivot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from amends.engine import completion, turns
from amends.engine.approvals import held_for, request_of_call
from amends.engine.call import guarded_call
from amends.engine.rules import need_for
from amends.engine.session import Ask, Closing, Session, read_tree
from amends.errors import Held, Waiting
from amends.ledger.operations import ListHalts, ReadCall, Tree
from amends.ledger.rows import CallRow
from amends.ledger.world import Flight


def closing_of(session: Session) -> Closing:
    """Return what the end of an agent's child run is judged by: its own open failures, nothing that its parent requires.

    They count unless the program said ``on_open_failure="commit"``.
    """
    said = completion.read_completion(session.closing.text).on_open_failure or "rollback"
    return Closing(str(completion.Completion(on_open_failure=said)), run=session.uid)


def request_to(ask: Ask) -> Ask:
    """Return the request to the agent as a call that rules, halts and people can be asked about: a read without a body."""
    spec = replace(ask.spec, kind="read", fn=None)
    return replace(ask, spec=spec, fn=_accepted, is_async=False, undeclared=False, flight=Flight())


def _accepted(**_: Any) -> None:
    """Do nothing: the agent begins when its request was allowed."""


async def allow(session: Session, ask: Ask) -> None:
    """Raise unless the agent may begin: a rule, a halt or a person may have something against the request itself.

    ``session`` is that of the child run. A request that had to be allowed is recorded there, and not asked about again.
    """
    if await need_for(session, ask) is None and not await ListHalts():
        return
    if not is_allowed(await read_tree(session), session.uid, ask):
        await guarded_call(session, request_to(ask))


def is_allowed(tree: Tree, run: str, ask: Ask) -> bool:
    """Return whether this child run has recorded that the request to its agent was allowed."""
    return any(
        row.run == run and row.kind == "read" and row.state == "succeeded" and row.key.startswith(f"{ask.key}:")
        for row in tree.calls
    )


async def is_asked_about(session: Session, ask: Ask) -> bool:
    """Return whether a rule has something against the request itself."""
    return await need_for(session, ask) is not None


async def ask_first(session: Session, ask: Ask) -> NoReturn:
    """Raise ``Held`` if the request itself needs a person's approval, with the request made; otherwise ``Waiting``."""
    if is_allowed(await read_tree(session), session.uid, ask):
        raise Waiting(f"{ask.spec.name} waits for nobody", run_id=session.id)
    await turns.ask_first(session, request_to(ask))


async def wait_for_person(session: Session) -> None:
    """Raise ``Held`` if a call of the agent, or of one inside it, waits for a person: then the agent has not ended.

    What it returned says only that it waits. It is started again when the person has decided.
    """
    tree = await read_tree(session)
    row = next((row for row in tree.calls if row.state in ("held", "ready") and not row.is_staged), None)
    if row is not None:
        raise await _held(session, row)


async def _held(session: Session, row: CallRow) -> Held:
    twin = await ReadCall(row.twin) if row.twin else None
    return held_for(session, row, await request_of_call(row), twin)
