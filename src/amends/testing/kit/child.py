"""One process of the kit: it imports the user's program, carries out orders, and is killed if an order says so.

What it finds goes to a file line by line, so that everything up to its death can be read. It prints nothing itself:
standard output belongs to the user's tools.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from amends.drivers.blocking import Live
from amends.errors import RunNotFound, UsageError, type_name
from amends.ledger.operations import ReadCall
from amends.ledger.rows import CallRow
from amends.places import line_of
from amends.states import RUN_FINAL
from amends.stores.sqlite.store import SqliteStore
from amends.testing.check_tool import _Failed, check_tool, key_of
from amends.testing.kit.sandbox import Program, SandboxFailed, load_program, why_not
from amends.testing.runtime import TestClock, TestDriver, TestRuntime
from amends.testing.simulate import _quiet, nameless
from amends.tools.scope import Options
from amends.tools.spec import Spec

SEEDS: Final = 20
"""Random schedules of the simulation, with lost requests and lost answers: a sandbox may be slow."""
ROUNDS_MAX: Final = 20
"""Rounds of recovery, each after twice the time of the one before: the last begins after six days."""
RUN: Final = "kit"
KILLED: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
"""On Windows ``os.kill`` ends the process by any signal."""

Answer = Callable[..., None]


def main(path: str) -> None:
    """Carry out the orders of this file."""
    said = json.loads(Path(path).read_text("utf-8"))
    with Path(said["answers"]).open("a", buffering=1, encoding="utf-8") as answers, _quiet():

        def answer(number: int, /, **facts: object) -> None:
            answers.write(json.dumps({"order": number, **facts}) + "\n")

        try:
            program = load_program(said["app"], said["sandbox"], Path(said["folder"]))
        except UsageError as error:
            answer(0, usage=str(error), hint=error.hint)
            return
        for number, order in enumerate(said["orders"]):
            try:
                ORDERS[order["do"]](program, order, lambda number=number, **facts: answer(number, **facts))
            except UsageError as error:
                answer(number, usage=str(error), hint=error.hint)
                return
            except SandboxFailed as error:
                answer(number, sandbox=str(error))
                return


# ---- The orders


def _list(program: Program, order: Mapping[str, Any], answer: Answer) -> None:
    """Say what the tools declare, and whether the kit can check them."""
    tools = []
    for name, spec in program.specs.items():
        excuse = why_not(spec)
        examples = None if excuse or order["only"] not in ("", name) else program.examples(name)
        left_out = "the sandbox leaves it out" if examples is None else ""
        tools.append({**_facts(spec), "examples": len(examples or ()), "why_not": excuse or left_out})
    answer(tools=tools, reset=program.sandbox.reset is not None)


def _facts(spec: Spec) -> dict[str, object]:
    undo = spec.compensate
    return {
        "name": spec.name,
        "kind": spec.kind,
        "where": spec.where,
        "is_staging": spec.is_staging,
        "is_idempotent": spec.idempotent,
        "has_probe": spec.probe is not None,
        "has_before": spec.before is not None,
        "hides": spec.redact is not None,
        "is_compensated": undo is not None,
        "is_compensated_twice": undo is not None and (undo.idempotent or undo.absent_ok),
        "is_compensated_of_nothing": undo is not None and undo.absent_ok and not undo.needs_result,
    }


def _claims(program: Program, order: Mapping[str, Any], answer: Answer) -> None:
    """Check everything that one process can see, crashes simulated."""
    spec, args = _asked(program, order)
    sandbox = program.sandbox
    sandbox.fresh()
    first, second = sandbox.seen(), sandbox.seen()
    answer(is_stable=first == second, first=first, second=second)
    if first != second:
        return
    try:
        TestRuntime(tools=program.tools).open("example").direct(spec.declaration, Options(), (), args)
    except Exception as error:
        answer(failed=f"{type_name(error)}: {error}{line_of(error)}")
        return
    fresh = None if sandbox.reset is None else sandbox.fresh
    verdict = check_tool(spec.declaration, args=args, state=sandbox.look, fresh=fresh, seeds=SEEDS, tools=program.tools)
    found = [(one.checker, one.what, one.schedule) for one in verdict.violations]
    answer(violations=found, schedules=verdict.schedules)


def _effect(program: Program, order: Mapping[str, Any], answer: Answer) -> None:
    """Call the tool and let its effect stand."""
    program.sandbox.fresh()
    answer(before=program.sandbox.seen())
    _play(program, order, answer, goes_back=False)
    answer(key=key_of(*_call(program, order)))


def _look(program: Program, order: Mapping[str, Any], answer: Answer) -> None:
    """Look at the sandbox as another process left it."""
    answer(seen=program.sandbox.seen(), key=key_of(*_call(program, order)))


def _play_order(program: Program, order: Mapping[str, Any], answer: Answer) -> None:
    """Reset the sandbox and play the run, perhaps only up to the operation at which the process is killed."""
    program.sandbox.fresh()
    answer(before=program.sandbox.seen())
    _play(program, order, answer, goes_back=program.specs[order["tool"]].compensate is not None)


def _recover(program: Program, order: Mapping[str, Any], answer: Answer) -> None:
    """Recover a run whose process was killed."""
    rt = MortalRuntime(program.tools, Path(order["ledger"]), number=1)
    _answer_end(rt, program, answer)


ORDERS: Final[Mapping[str, Callable[[Program, Mapping[str, Any], Answer], None]]] = {
    "list": _list,
    "claims": _claims,
    "effect": _effect,
    "look": _look,
    "play": _play_order,
    "recover": _recover,
}


def _asked(program: Program, order: Mapping[str, Any]) -> tuple[Spec, dict[str, Any]]:
    examples = program.examples(order["tool"])
    assert examples is not None, "the parent orders nothing of a tool that is left out"
    return program.specs[order["tool"]], examples[order["example"]]


def _call(program: Program, order: Mapping[str, Any]) -> tuple[Any, dict[str, Any], Sequence[object]]:
    spec, args = _asked(program, order)
    return spec.declaration, args, program.tools


def _play(program: Program, order: Mapping[str, Any], answer: Answer, *, goes_back: bool) -> None:
    spec, args = _asked(program, order)
    rt = MortalRuntime(program.tools, Path(order["ledger"]), number=0)
    rt._test_driver.faults = {order["kill_at"]: order["when"]} if "kill_at" in order else {}
    failed = ""
    try:
        with rt.run(RUN, interrupted="block" if goes_back else "commit") as run:
            run.direct(spec.declaration, Options(), (), args)
            if goes_back:
                raise _Failed
    except Exception as error:
        failed = "" if isinstance(error, _Failed) else f"{type_name(error)}: {error}"
    answer(trace=list(rt._test_driver.trace), failed=failed)
    _answer_end(rt, program, answer)


def _answer_end(rt: TestRuntime, program: Program, answer: Answer) -> None:
    """Say how the run has ended and what is in the sandbox: as it is, and without the keys of this run."""
    state = _rest(rt)
    rows = [] if state == "none" else [rt._driver.run(_row(call.id)) for call in rt.report(RUN).calls]
    rt.close()
    after = program.sandbox.seen()
    answer(state=state, after=after, nameless=nameless(after, rows))


async def _row(call_id: str) -> CallRow:
    row = await ReadCall(call_id)
    assert row is not None, "the report has named it"
    return row


def _rest(rt: TestRuntime) -> str:
    """Recover until the run has ended, or waits for a person however much time passes; return its state."""
    seconds = 1.0
    for _ in range(ROUNDS_MAX):
        rt.recover()
        try:
            state = rt.report(RUN).state
        except RunNotFound:
            return "none"
        if state in RUN_FINAL:
            return state
        rt.clock.advance(seconds)
        seconds *= 2
    return rt.report(RUN).state


# ---- A runtime that dies by a real signal


class MortalClock(TestClock):
    """Virtual time that goes on in the next process: every change is written to a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._passed = file, float(file.read_text("ascii")) if file.exists() else 0.0
        self.wall, self.mono = self.wall + self._passed, self.mono + self._passed

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        super().advance(seconds)
        self._passed += seconds
        self._file.write_text(repr(self._passed), "ascii")


class MortalDriver(TestDriver):
    """Ends this process where a fault says so, by SIGKILL."""

    def die(self) -> NoReturn:
        """End the process here."""
        os.kill(os.getpid(), KILLED)
        os._exit(1)  # not reached: nothing survives that signal


class MortalRuntime(TestRuntime):
    """A runtime on a ledger in a file, in virtual time; ``number`` says the how many-th process of this ledger it is."""

    def __init__(self, tools: Sequence[object], ledger: Path, *, number: int) -> None:
        self._number = number
        clock = MortalClock(ledger.with_suffix(".clock"))
        store: Any = SqliteStore(ledger, "NORMAL", lambda: clock.wall)  # survives the death of a process
        super().__init__(tools=tools, store=store, clock=clock)

    def _be_born(self) -> None:
        self._deaths |= {_owner(one) for one in range(self._number)}
        self._host.be(_owner(self._number))
        self._host.live = Live()
        self._driver = self._test_driver = MortalDriver(
            self._host.hiding.kept, self._host.live, self._host.lease_s, self.clock, self._deaths
        )


def _owner(number: int) -> str:
    return f"test|boot|ns|{number}|0"


if __name__ == "__main__":
    main(sys.argv[1])
