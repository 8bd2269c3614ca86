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

    The tool is called once and its task fails, so its effect must be gone from ``state``. Then its probe, its
    idempotence and its compensation are each tested against ``state``. ``crashes`` and ``fresh`` as for ``simulate``.
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
            yield "changes_something", f"{spec.name} left no mark on the state: the checks below prove nothing"
        if spec.kind == "read" and changed != before:
            yield "read_changes_nothing", f"{spec.name} is a read and changed the state"
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


async def _body_again(spec: Spec, run: Run, row: Any) -> object:
    from amends.engine.session import call_of
    from amends.ledger.world import Invoke

    assert spec.fn is not None, "only a tool with a body is repeated"
    call = call_of(row, spec)
    return await Invoke(spec.fn, call.args, spec.is_async, None, call, None, "execute", run)
