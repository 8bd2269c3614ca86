"""Check one tool: kill it at every point, and compare the world with its declaration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from amends.host.runs import declared_as
from amends.model import Absent, Happened
from amends.run import Run
from amends.testing.checkers import Violation
from amends.testing.runtime import TestRuntime
from amends.testing.simulate import State, Verdict, _frozen, simulate
from amends.tools.spec import Spec


class _Failed(Exception):
    """Ends a task that must roll back."""


def check_tool(
    tool: Any, /, *, args: dict[str, Any], state: State, crashes: int = 1, fresh: Callable[[], object] | None = None
) -> Verdict:
    """Check that the compensation undoes the body, whatever crashes, and that the tool's other claims are true.

    The tool is called once and its task fails, so its effect must be gone from ``state``. Then its probe, its ``before``,
    its idempotence and its compensation are each tested against ``state``; ``idempotent=True`` also with a start that
    lands late, after the compensation. ``crashes`` and ``fresh`` as for ``simulate``.
    """
    spec = TestRuntime(tools=[tool])._host.spec_for(declared_as(tool)[0])
    if spec.kind == "compensatable":
        verdict = simulate(
            lambda run: _then_fail(run, tool, args), tools=[tool], state=state, fresh=fresh, crashes=crashes
        )
    else:
        verdict = simulate(lambda run: run.call(tool, **args), tools=[tool], state=state, fresh=fresh, crashes=crashes)
    claims = _Claims(tool, spec, args, state, fresh)
    verdict.violations += [Violation(name, what, "claims") for name, what in claims.broken()]
    return verdict


def _then_fail(run: Run, tool: Any, args: dict[str, Any]) -> None:
    run.call(tool, **args)
    raise _Failed


class _Claims:
    """Tests of what a declaration claims about its destination."""

    def __init__(
        self, tool: Any, spec: Spec, args: dict[str, Any], state: State, fresh: Callable[[], object] | None
    ) -> None:
        self._tool, self._spec, self._args, self._state, self._fresh = tool, spec, args, state, fresh

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield every claim that does not hold."""
        if self._fresh is not None:
            self._fresh()
        rt = TestRuntime(tools=[self._tool])
        before = _frozen(self._state())
        yield from self._forward(rt, rt.open("claims"), before)

    def _forward(self, rt: TestRuntime, run: Run, before: object) -> Iterator[tuple[str, str]]:
        spec, fn = self._spec, self._spec.fn
        run.call(self._tool, **self._args)
        changed = _frozen(self._state())
        row = next(iter(rt._memory.calls.values()))
        if spec.kind != "read" and spec.kind != "retriable" and changed == before:
            left = (
                "" if self._fresh is not None else "; if an interrupted task has left its value there, reset it: fresh="
            )
            yield "changes_something", f"{spec.name} left no mark on the state: the checks below prove nothing{left}"
        if spec.kind == "read" and changed != before:
            yield "read_changes_nothing", f"{spec.name} is a read and changed the state"
        if spec.before is not None:
            rt._driver.run(_before_again(spec, run, row))
            if _frozen(self._state()) != changed:
                yield "before_changes_nothing", f"the before of {spec.name} changed the state"
        if spec.probe is not None and row.state == "succeeded":
            answer = rt.probe(row.id)
            if not isinstance(answer, Happened):
                yield "probe_finds_it", f"right after the effect the probe of {spec.name} says {answer}"
        if spec.idempotent and fn is not None and row.state == "succeeded":
            rt._driver.run(_body_again(spec, run, row))
            if _frozen(self._state()) != changed:
                yield (
                    "idempotent",
                    f"{spec.name} says idempotent, and a second start with the same key changed the state",
                )
        if spec.compensate is not None:
            yield from self._way_back(rt, run, before, row.id)
        else:
            run.commit()

    def _way_back(self, rt: TestRuntime, run: Run, before: object, call_id: str) -> Iterator[tuple[str, str]]:
        from amends.errors import RolledBack, RunBlocked

        with contextlib.suppress(RolledBack, RunBlocked):
            run.rollback("checking the compensation")
        if _frozen(self._state()) != before:
            yield "compensation_restores", f"after {self._spec.name} and its compensation the state is not what it was"
        if self._spec.probe is not None:
            answer = rt.probe(call_id)
            if not isinstance(answer, Absent):
                yield "probe_sees_it_gone", f"after the compensation the probe of {self._spec.name} says {answer}"
        yield from self._late(rt, run, rt._memory.calls[call_id])

    def _late(self, rt: TestRuntime, run: Run, row: Any) -> Iterator[tuple[str, str]]:
        """Let a start, and then a compensation, land late: once more, after something else has changed the state."""
        spec, undo = self._spec, self._spec.compensate
        if row.state != "compensated" or spec.fn is None or undo is None:
            return
        if spec.idempotent and not spec.put:
            back = _frozen(self._state())
            rt._driver.run(_body_again(spec, run, row))
            if _frozen(self._state()) != back:
                cure = 'say idempotent="put", or let the destination keep the key'
                late = "a start that landed after its compensation changed the state"
                yield "late_landing", f"{spec.name} says idempotent=True, and {late}: {cure}"
                return
        if undo.idempotent and not undo.put:
            again = rt.open("claims again")
            again.call(self._tool, **self._args)
            changed = _frozen(self._state())
            rt._driver.run(_compensation_again(spec, run, row))
            if _frozen(self._state()) != changed:
                cure = 'say idempotent="put", or let the destination keep the key'
                late = "one that landed after a later call changed the state"
                yield "late_compensation", f"the compensation of {spec.name} says idempotent=True, and {late}: {cure}"


async def _body_again(spec: Spec, run: Run, row: Any) -> object:
    from amends.engine.session import call_of
    from amends.ledger.world import Invoke

    assert spec.fn is not None, "only a tool with a body is repeated"
    call = call_of(row, spec)
    return await Invoke(spec.fn, call.args, spec.is_async, None, call, None, "execute", run)


async def _before_again(spec: Spec, run: Run, row: Any) -> object:
    from amends.engine.before import read_now

    return await read_now(run._session, spec, row)


async def _compensation_again(spec: Spec, run: Run, row: Any) -> object:
    from amends.engine.session import compensation_args
    from amends.ledger.world import Invoke

    assert spec.compensate is not None, "only a tool with a compensation is compensated"
    kwargs, call = compensation_args(run._session, spec, spec.compensate, row)
    return await Invoke(spec.compensate.fn, kwargs, spec.compensate.is_async, None, call, None, "compensate", run)
