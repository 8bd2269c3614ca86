"""Child runs that clients drive: each is open inside the run of its root, under the client lease of the root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pydantic import Field

from amends import AsyncRun, RunInfo
from amends.errors import RunConflict, RunEnded, UsageError
from amends.serve.exchange import Body, Exchange
from amends.serve.sessions import Session, Sessions

DEPTH_MAX: Final = 50
"""How deep child runs may be nested here."""
ENDED: Final = ("rolled_back", "abandoned")


class OpenChild(Body):
    """A run inside another one."""

    id: str | None = Field(
        None,
        min_length=1,
        max_length=400,
        description="Its name in its parent; else the header Idempotency-Key names it",
    )
    input: Any = Field(None, description="Recorded; another input for the same id is a conflict")


class Child(Session):
    """One open child run of a client. It has the lease and the claims of its root."""

    def __init__(self, parent: Session, run: AsyncRun) -> None:
        root = parent.root
        super().__init__(run, agent=root.agent, principal=root.principal, lease_s=root.lease_s)
        self.parent, self.root, self.claims = parent, root, root.claims

    @contextmanager
    def request(self) -> Iterator[AsyncRun]:
        """Renew the client's lease on the root."""
        with self.root.request():
            yield self.run

    def hear(self) -> None:
        """Note that the client has asked for something."""
        self.root.hear()

    @property
    def root_id(self) -> str:
        """The id of its root, which is what this server has open."""
        return self.root.run.id

    @property
    def above(self) -> list[Session]:
        """Its parent, the parent of that, up to the root."""
        found: list[Session] = [self.parent]
        while isinstance(last := found[-1], Child):
            found.append(last.parent)
        return found


def found(sessions: Sessions, tenant: str, id: str) -> Child | None:
    """Return the open child run of this id, if this server has it."""
    return next((child for root in _roots(sessions, tenant, id) if (child := _open(root, id)) is not None), None)


def _open(root: Session, id: str) -> Child | None:
    child: Child | None = root.children.get(id)
    if child is not None and child.run.is_over:
        del root.children[id]
        return None
    return child


def _roots(sessions: Sessions, tenant: str, id: str) -> Iterator[Session]:
    for above in _above(id):
        session = sessions.found(tenant, above)
        if session is not None:
            yield session


def _above(id: str) -> list[str]:
    """Return the ids that a run around this one can have, the shortest first: its id begins with theirs."""
    parts = id.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))][:DEPTH_MAX]


async def path_of(x: Exchange, info: RunInfo) -> list[str]:
    """Return the ids of the runs from the root down to this child."""
    found = [info.id]
    while info.parent is not None:
        info = (await x.rt.report(info.parent)).run
        found.insert(0, info.id)
    return found


async def opened(parent: Session, name: str, input: Any = None) -> tuple[Child, bool]:
    """Open a child run, or return the one that is open here; the second value: whether it was known."""
    root = parent.root
    id = f"{parent.run.id}/{name}"
    if len(_above(id)) >= DEPTH_MAX:
        raise UsageError(f"run {parent.run.id} is nested too deep", run_id=parent.run.id)
    async with root.opening:
        known = _open(root, id)
        if known is not None:
            if input is not None and _text(input) != _text(known.run.input):
                raise RunConflict(
                    f"run {id} is open with another input; nothing was started",
                    recorded=known.run.input, given=input, run_id=id,
                )  # fmt: skip
            return known, True
        made = Child(parent, await parent.run.open_child(name, input=input))
        if not made.run.is_over:
            root.children[id] = made
        return made, made.run.resumed or made.run.is_over


async def taken_up(root: Session, path: list[str]) -> Child:
    """Open a child run that this server does not have, inside its root."""
    session: Session = root
    for id in path[1:]:
        session, _ = await opened(session, id.removeprefix(f"{session.run.id}/"))
    assert isinstance(session, Child), "the path of a child has at least two runs"
    return session


def forget_ended(root: Session) -> None:
    """Forget the child runs that are over: they answer from the record."""
    root.children = {id: child for id, child in root.children.items() if not child.run.is_over}


def refuse_ended(info: RunInfo) -> None:
    """Raise ``RunEnded`` for a child that is over: opened again it would begin anew."""
    if info.state in ENDED:
        raise RunEnded(f"run {info.id} is {info.state}: nothing more can run in it", state=info.state, run_id=info.id)


def refuse_open_children(session: Session) -> None:
    """Raise ``UsageError`` if a run inside this one is open here: it would be taken back without a word."""
    for child in session.root.children.values():
        if not child.run.is_over and session in child.above:
            raise UsageError(
                f"run {session.run.id} is not committed: its child {child.run.id} is open",
                hint=f"commit or roll back {child.run.id} first", run_id=session.run.id,
            )  # fmt: skip


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
