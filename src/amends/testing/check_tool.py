"""Check one tool: kill it at every point, and compare the world with its declaration."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from amends.engine.before import read_now
from amends.engine.session import call_of, compensation_args
from amends.errors import RolledBack, RunBlocked, type_name
from amends.host.runs import declared_as
from amends.ledger.world import Ended, Invoke
from amends.model import Absent, Happened
from amends.run import Run
from amends.testing.checkers import Violation
from amends.testing.runtime import TestRuntime
from amends.testing.simulate import State, Verdict, _frozen, simulate
from amends.tools.spec import Spec


class _Failed(Exception):
    """Ends a task that must roll back."""


def check_tool(
    tool: Any,
    /,
    *,
    args: dict[str, Any],
    state: State,
    crashes: int = 1,
    fresh: Callable[[], object] | None = None,
    seeds: int = 100,
    tools: Sequence[object] = (),
) -> Verdict:
    """Check that the compensation undoes the body, whatever crashes, and that the tool's other claims are true.

    The tool is called once and its task fails, so its effect must be gone from ``state``. Then its probe, its ``before``,
    its idempotence, its compensation, its result and its key are each tested against ``state``; ``idempotent=True`` also
    with a start that lands late, after the compensation. ``crashes``, ``fresh`` and ``seeds`` as for ``simulate``.
    ``tools`` are other tools that this one names or calls.
    """
    together = [tool, *(one for one in tools if declared_as(one)[0] is not declared_as(tool)[0])]
    spec = TestRuntime(tools=together)._host.spec_for(declared_as(tool)[0])
    if spec.kind == "compensatable":
        verdict = simulate(
            lambda run: _then_fail(run, tool, args),
            tools=together, state=state, fresh=fresh, crashes=crashes, seeds=seeds,
        )  # fmt: skip
    else:
        verdict = simulate(
            lambda run: run.call(tool, **args),
            tools=together, state=state, fresh=fresh, crashes=crashes, seeds=seeds,
        )  # fmt: skip
    claims = _Claims(tool, spec, args, state, fresh, together)
    verdict.violations += [Violation(name, what, "claims") for name, what in claims.broken()]
    return verdict


def _then_fail(run: Run, tool: Any, args: dict[str, Any]) -> None:
    run.call(tool, **args)
    raise _Failed


class _Claims:
    """Tests of what a declaration claims about its destination."""

    def __init__(
        self,
        tool: Any,
        spec: Spec,
        args: dict[str, Any],
        state: State,
        fresh: Callable[[], object] | None,
        tools: Sequence[object],
    ) -> None:
        self._tool, self._spec, self._args, self._state, self._fresh = tool, spec, args, state, fresh
        self._tools = tools

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield every claim that does not hold."""
        yield from self._again()
        rt = self._anew()
        before = _frozen(self._state())
        yield from self._forward(rt, rt.open("claims"), before)
        yield from self._without_effect()
        yield from self._recorded()
        keys = [key_of(self._tool, self._args, self._tools) for _ in range(2)]
        if keys[0] != keys[1]:
            yield "key_stable", f"{self._spec.name}: the same arguments gave two keys"

    def _anew(self) -> TestRuntime:
        if self._fresh is not None:
            self._fresh()
        return TestRuntime(tools=self._tools)

    def _forward(self, rt: TestRuntime, run: Run, before: object) -> Iterator[tuple[str, str]]:
        spec = self._spec
        result = run.call(self._tool, **self._args)
        if spec.is_staging:
            run.commit()  # only now it runs
        changed = _frozen(self._state())
        row = next(iter(rt._memory.calls.values()))
        if spec.kind != "read" and changed == before:
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
            elif not spec.is_staging and _frozen(answer.result) != _frozen(result):
                got = f"{spec.name} returned {result!r}, and its probe says Happened({answer.result!r})"
                yield "probe_result", got
        asked = _frozen(self._state())
        if spec.probe is not None and asked != changed:
            yield "probe_changes_nothing", f"the probe of {spec.name} changed the state from {changed} to {asked}"
            if (
                spec.compensate is not None
            ):  # once more without the probe: the compensation need not undo what that wrote
                with contextlib.suppress(RolledBack, RunBlocked):
                    run.rollback("checked")
                rt = self._anew()
                run, before = rt.open("claims"), _frozen(self._state())
                run.call(self._tool, **self._args)
                row = next(iter(rt._memory.calls.values()))
        if spec.compensate is not None:
            yield from self._way_back(rt, run, before, row.id)
        elif not spec.is_staging:
            run.commit()

    def _way_back(self, rt: TestRuntime, run: Run, before: object, call_id: str) -> Iterator[tuple[str, str]]:
        with contextlib.suppress(RolledBack, RunBlocked):
            run.rollback("checking the compensation")
        if (after := _frozen(self._state())) != before:
            what = f"after {self._spec.name} and its compensation the state is {after}, and it was {before}"
            yield "compensation_restores", what
        if self._spec.probe is not None:
            answer = rt.probe(call_id)
            if not isinstance(answer, Absent):
                yield "probe_sees_it_gone", f"after the compensation the probe of {self._spec.name} says {answer}"
        yield from self._twice(rt, run, rt._memory.calls[call_id])
        yield from self._late(rt, run, rt._memory.calls[call_id])

    def _twice(self, rt: TestRuntime, run: Run, row: Any) -> Iterator[tuple[str, str]]:
        """Start the compensation a second time, if its declaration allows that."""
        undo = self._spec.compensate
        if row.state != "compensated" or undo is None or not (undo.idempotent or undo.absent_ok):
            return
        back = _frozen(self._state())
        ended = rt._driver.run(_compensation_again(self._spec, run, row))
        said = "idempotent" if undo.idempotent else "absent_ok"
        name = f"the compensation of {self._spec.name} says {said}, and a second start"
        if ended.error is not None:
            yield "compensates_twice", f"{name} raised {_told(ended.error)}"
        elif _frozen(self._state()) != back:
            yield "compensates_twice", f"{name} changed the state again"

    def _again(self) -> Iterator[tuple[str, str]]:
        """Start the body a second time with the same key, if its declaration allows that."""
        spec = self._spec
        if not spec.idempotent or spec.fn is None:
            return
        rt = self._anew()
        run = rt.open("again")
        run.call(self._tool, **self._args)
        if spec.is_staging:
            run.commit()  # only now it runs
        row, changed = next(iter(rt._memory.calls.values())), _frozen(self._state())
        if row.state == "succeeded":
            rt._driver.run(_body_again(spec, run, row))
            if _frozen(self._state()) != changed:
                what = f"{spec.name} says idempotent, and a second start with the same key changed the state"
                yield "idempotent", what
        if spec.compensate is not None:
            with contextlib.suppress(RolledBack, RunBlocked):
                run.rollback("checked")

    def _without_effect(self) -> Iterator[tuple[str, str]]:
        """Lose every request of the body: there is nothing for the probe to find, and nothing to compensate."""
        spec, undo = self._spec, self._spec.compensate
        if spec.is_staging or (spec.probe is None and (undo is None or not undo.absent_ok)):
            return
        rt = self._anew()
        rt._test_driver.loses = frozenset({"execute"})
        run = rt.open("without effect")
        before = _frozen(self._state())
        with contextlib.suppress(Exception):  # in doubt, or failed if the probe said so
            run.call(self._tool, **self._args)
        row = next(iter(rt._memory.calls.values()))
        if spec.probe is not None and isinstance(answer := rt.probe(row.id), Happened):
            yield "probe_before", f"before there is an effect the probe of {spec.name} says {answer}"
        if undo is None or not undo.absent_ok or undo.needs_result:
            return
        ended = rt._driver.run(_compensation_again(spec, run, row))
        name = f"the compensation of {spec.name} says absent_ok, and without an effect"
        if ended.error is not None:
            yield "compensates_nothing", f"{name} it raised {_told(ended.error)}"
        elif _frozen(self._state()) != before:
            yield "compensates_nothing", f"{name} it changed the state"

    def _recorded(self) -> Iterator[tuple[str, str]]:
        """Let the process die after the call, and ask again: the answer is the record's."""
        spec = self._spec
        if spec.is_staging or spec.kind in ("read", "agent"):
            return
        rt = self._anew()
        rt.open("recorded").call(self._tool, **self._args)
        result = rt._test_driver.returned
        rt.crash()
        again = rt.open("recorded")
        recorded = again.call(self._tool, **self._args)
        if type(recorded) is not type(result):
            was, now = type(result).__qualname__, type(recorded).__qualname__
            yield "result_type", f"{spec.name} returned {was}, which comes back from the record as {now}"
        elif _frozen(recorded) != _frozen(result):
            yield "result_type", f"{spec.name} returned {result!r}, which comes back from the record as {recorded!r}"
        if spec.compensate is not None:
            with contextlib.suppress(RolledBack, RunBlocked):
                again.rollback("checked")

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


def key_of(tool: Any, args: dict[str, Any], tools: Sequence[object]) -> str:
    """Return the key of this call in a run whose ids are always the same. The body is not started.

    It is empty for a read, which has none of its own, and if arguments are hidden: their key is a secret of the ledger.
    """
    rt = TestRuntime(tools=tools)
    spec = rt._host.spec_for(declared_as(tool)[0])
    if spec.kind == "read" or spec.redact is not None:
        return ""
    numbers = itertools.count()
    rt._host.new_id = lambda prefix: f"{prefix}{next(numbers)}"
    rt._test_driver.loses = frozenset({"execute", "probe", "before"})
    run = rt.open("key")
    with contextlib.suppress(Exception):  # its request is lost
        run.call(tool, **args)
    return next((row.key for row in rt._memory.calls.values()), "")


def _told(error: Exception) -> str:
    return f"{type_name(error)}: {error}"


async def _body_again(spec: Spec, run: Run, row: Any) -> Ended:
    assert spec.fn is not None, "only a tool with a body is repeated"
    call = call_of(row, spec)
    return await Invoke(spec.fn, call.args, spec.is_async, None, call, None, "execute", run)


async def _before_again(spec: Spec, run: Run, row: Any) -> object:
    return await read_now(run._session, spec, row)


async def _compensation_again(spec: Spec, run: Run, row: Any) -> Ended:
    assert spec.compensate is not None, "only a tool with a compensation is compensated"
    kwargs, call = compensation_args(run._session, spec, spec.compensate, row)
    return await Invoke(spec.compensate.fn, kwargs, spec.compensate.is_async, None, call, None, "compensate", run)
