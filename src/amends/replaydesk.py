"""Replaying a record against the program that made it, in both colours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from amends.errors import Error, UsageError
from amends.hub import refuse_nested
from amends.tool import caller_here

if TYPE_CHECKING:
    from amends.aiorun import AsyncRun
    from amends.flow import Flow
    from amends.hub import Hub, View
    from amends.replayed import Replayed
    from amends.report import Report
    from amends.rerunning import Sources
    from amends.run import Run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# What replays is imported where it is asked for: few programs replay, and they are not the ones that must start fast.


def reopened(id: str | None, input: object, *, is_async: bool, block: bool = False) -> Any:
    """The run that is replayed here, opened by its program itself; None: this is no replay, or it was opened.

    ``block``: by a block, which is around what it asks for then.
    """
    caller: Any = caller_here()
    again = getattr(caller, "opened_again", None)
    found = None if again is None else again(id, input, block=block)
    if found is not None and caller.is_async != is_async:
        runtime, other = ("Runtime", "AsyncRuntime") if caller.is_async else ("AsyncRuntime", "Runtime")
        raise UsageError(
            f"run {found.id} is replayed by {other}.replay, and was opened with {runtime}.run",
            hint=f"replay it with the replay of the {runtime}",
        )
    return found


def reported(run_id: str) -> Report | None:
    """What is told of the run that is replayed here; None: this is no replay, or of another run."""
    tell = getattr(caller_here(), "report_named", None)
    found: Report | None = None if tell is None else tell(run_id)
    return found


class ReplayDesk:
    """What a blocking runtime does with a record besides showing it."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        def _drive(self, flow: Flow[T]) -> T: ...

    def replay(self, run: str | bytes, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``fn`` with every tool, model, clock and die answered from the record; raises ``Diverged``.

        ``run``: the id of a run of this ledger, or what ``export`` gave. No body of a tool starts, nothing is
        written, and nothing leaves the process. What ``fn`` raised then it raises now.
        """
        with self.replaying(run):
            answer = fn(*args, **kwargs)
        return answer  # noqa: RET504 (inside the block it would be given before the record was looked at to its end)

    @contextmanager
    def replaying(self, run: str | bytes, *, until: str | None = None, strict: bool = True) -> Iterator[Run]:
        """The same as a block that has the recorded run: ``with rt.replaying("order-7") as run:``.

        ``until``: the id of a call; the block ends where something is asked for after it. ``strict=False``: another
        version of a tool, and other arguments that carry no intent (``ignore=``), are no divergence.
        """
        from amends import replaying, replayrun

        refuse_nested("rt.replay")
        if isinstance(run, bytes):
            source = replaying.unpacked(self._hub, run)
        else:
            source = self._drive(replaying.read(self._hub, self._view, run))
        replay = replaying.begun(*source, until=until, strict=strict)
        with replayrun.opened(self._hub, replay) as opened:
            yield opened

    def replay_each(
        self, runs: Sources, fn: Callable[..., object], *, until: str | None = None, strict: bool = True
    ) -> list[Replayed]:
        """Replay many runs against one function and say of each how it went; nothing is raised for one that diverges.

        ``runs``: ids of runs of this ledger, or bundles by the names of their files. ``fn`` is given the recorded run
        where its parameter is named ``run``, else the run's input: by the names of its parameters, or whole.
        """
        from amends import replaying, replayrun, rerunning

        found: list[Replayed] = []
        for name, record, run_id in rerunning.each(runs):
            run: Any = None
            value, error = None, None
            try:
                if isinstance(record, bytes):
                    source = replaying.unpacked(self._hub, record, run_id)
                else:
                    source = self._drive(replaying.read(self._hub, self._view, record))
                replay = replaying.begun(*source, until=until, strict=strict)
            except Error as unread:
                found.append(rerunning.unreadable(name, run_id, unread))
                continue
            try:
                with replayrun.opened(self._hub, replay) as run:
                    args, kwargs = rerunning.arguments(fn, run, replay.record.run)
                    value = fn(*args, **kwargs)
            except (Exception, SystemExit) as raised:  # others are to be replayed yet
                error = raised
            found.append(rerunning.ended(name, replay, run, value, error))
        return found


class AsyncReplayDesk:
    """The same, awaited."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        async def _drive(self, flow: Flow[T]) -> T: ...

    async def replay(
        self, run: str | bytes, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run ``fn`` with every tool, model, clock and die answered from the record; raises ``Diverged``.

        ``run``: the id of a run of this ledger, or what ``export`` gave. No body of a tool starts, nothing is
        written, and nothing leaves the process. What ``fn`` raised then it raises now.
        """
        async with self.replaying(run):
            answer = await fn(*args, **kwargs)
        return answer  # noqa: RET504 (inside the block it would be given before the record was looked at to its end)

    @asynccontextmanager
    async def replaying(
        self, run: str | bytes, *, until: str | None = None, strict: bool = True
    ) -> AsyncIterator[AsyncRun]:
        """The same as a block that has the recorded run: ``async with rt.replaying("order-7") as run:``.

        ``until``: the id of a call; the block ends where something is asked for after it. ``strict=False``: another
        version of a tool, and other arguments that carry no intent (``ignore=``), are no divergence.
        """
        from amends import aioreplay, replaying

        refuse_nested("rt.replay")
        if isinstance(run, bytes):
            source = replaying.unpacked(self._hub, run)
        else:
            source = await self._drive(replaying.read(self._hub, self._view, run))
        replay = replaying.begun(*source, until=until, strict=strict)
        async with aioreplay.opened(self._hub, replay) as opened:
            yield opened

    async def replay_each(
        self,
        runs: Sources,
        fn: Callable[..., Coroutine[Any, Any, object]],
        *,
        until: str | None = None,
        strict: bool = True,
    ) -> list[Replayed]:
        """Replay many runs against one function and say of each how it went; nothing is raised for one that diverges.

        ``runs``: ids of runs of this ledger, or bundles by the names of their files. ``fn`` is given the recorded run
        where its parameter is named ``run``, else the run's input: by the names of its parameters, or whole.
        """
        from amends import aioreplay, replaying, rerunning

        found: list[Replayed] = []
        for name, record, run_id in rerunning.each(runs):
            run: Any = None
            value, error = None, None
            try:
                if isinstance(record, bytes):
                    source = replaying.unpacked(self._hub, record, run_id)
                else:
                    source = await self._drive(replaying.read(self._hub, self._view, record))
                replay = replaying.begun(*source, until=until, strict=strict)
            except Error as unread:
                found.append(rerunning.unreadable(name, run_id, unread))
                continue
            try:
                async with aioreplay.opened(self._hub, replay) as run:
                    args, kwargs = rerunning.arguments(fn, run, replay.record.run)
                    value = await fn(*args, **kwargs)
            except (Exception, SystemExit) as raised:  # others are to be replayed yet
                error = raised
            found.append(rerunning.ended(name, replay, run, value, error))
        return found
