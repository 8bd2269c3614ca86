"""The tasks through amends: each call by ``run.answer``, the door for models; recovery by a restarted agent or by a worker."""

from __future__ import annotations

import importlib.metadata
import json
import time
from pathlib import Path
from typing import Any, Final

import amends.cli  # noqa: F401  # loaded before the forks
from amends import Runtime
from amends.errors import ApprovalVoid, Waiting
from proof.abilities import given
from proof.declared import be_at, tools_of
from proof.destination import Destination, Scenario, die, reword

VERSION = f"amends {importlib.metadata.version('amends')}"
RUN: Final = "task"
TRIES_MAX: Final = 3
"""How often a model asks again for a call that failed."""
FINISH_S_MAX: Final = 20.0

_catalogue: dict[str, Any] = {}
_tools: dict[str, list[Any]] = {}
_bound: dict[str, list[Any]] = {}
"""The same tools, each effect after a person's approval of exactly that call."""


class TaskFailed(Exception):
    """The agent gave up, as the scenario wants."""


def prepare(catalogue: dict[str, Any]) -> None:
    """Declare the tools of every suite once, before the forks."""
    _catalogue.update(catalogue)
    for suite in catalogue["suites"]:
        _tools[suite] = tools_of(suite, catalogue)
        _bound[suite] = tools_of(suite, catalogue, needs_approval=True)


def _runtime(scenario: Scenario) -> Runtime:
    be_at(Destination(scenario))
    url = f"sqlite:///{Path(scenario.folder, 'ledger.db')}"
    tools = _tools if scenario.injected is None else _bound
    return Runtime(url, tools=tools[scenario.suite], interrupted="commit", lease=5, wait=15, wait_approval=0, poll=0.05)


def play(scenario: Scenario) -> int:
    """Work on the task as an agent does; a restarted agent begins at the beginning."""
    rt = _runtime(scenario)
    resumed = scenario.has_struck
    policy: Any = "rollback" if scenario.then == "rollback" else "resume"
    try:
        with rt.run(RUN, recover=policy) as run:
            if run.state == "committed":
                return 0
            for number, (tool, args) in enumerate(scenario.calls):
                _call(run, scenario, number, tool, args, resumed)
    except TaskFailed:
        return 0
    return 0


def _call(run: Any, scenario: Scenario, number: int, tool: str, args: dict[str, Any], resumed: bool) -> None:
    here = number == scenario.at
    if here and resumed and scenario.fault == "reworded":
        args = reword(tool, args) or args
    answer = run.answer(tool, args, tool_call_id=f"{number}-0-{resumed}")
    for attempt in range(1, TRIES_MAX):
        if not answer.is_error:
            break
        print(answer.status, answer.text)
        answer = run.answer(tool, args, tool_call_id=f"{number}-{attempt}-{resumed}")
    if answer.is_error:
        raise TaskFailed(f"{tool} did not succeed: {answer.text}")
    if not here:
        return
    if scenario.fault == "new id":
        run.answer(tool, args, tool_call_id=f"{number}-again")
    if scenario.fault in ("kill after", "reworded") and scenario.strike():
        die()
    if scenario.fault == "failure" and scenario.strike():
        raise TaskFailed


def play_injected(scenario: Scenario) -> int:
    """Work on the task with a model that obeys an attacker; return 3 while a person is asked."""
    assert scenario.injected is not None
    rt = _runtime(scenario)
    try:
        with rt.run(RUN, recover="wait") as run:
            if run.state == "committed":
                return 0
            for tool, args in (*scenario.calls[:1], *scenario.injected, *scenario.calls[1:]):
                answer = run.answer(tool, args)
                if answer.waits and answer.error is not None:
                    raise answer.error
    except (Waiting, ApprovalVoid):  # void: a request in other words has replaced it, and is asked about instead
        return 3
    return 0


def decide(scenario: Scenario) -> int:
    """Approve what the user asked for, exactly, and reject everything else."""
    rt = _runtime(scenario)
    for asked in list(rt.approvals()):
        call = asked.call
        wanted = any(call.tool == tool and given(call.args) == args for tool, args in scenario.calls)
        if wanted:
            rt.approve(asked.id, digest=asked.digest, by="the user")
        else:
            rt.reject(asked.id, by="the user", reason="nobody asked for this")
    return 0


def finish(scenario: Scenario) -> int:
    """Do what a worker does until the run has ended or waits for a person; write down how it stands."""
    rt = _runtime(scenario)
    end = time.monotonic() + FINISH_S_MAX
    report = rt.report(RUN)
    while report.run.state not in ("committed", "rolled_back", "abandoned") and time.monotonic() < end:
        rt.recover()
        report = rt.report(RUN)
        if report.run.state == "blocked":
            break
        time.sleep(0.01)
    verified = rt.verify()
    outcome = {
        "state": report.run.state,
        "residue": [[left.call.tool, left.why] for left in report.residue],
        "causes": [str(cause) for cause in getattr(report.run, "causes", ())],
        "doubts": [call.tool for call in report.doubts],
        "verified": not verified.problems,
        "report": str(report),
    }
    Path(scenario.folder, "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    return 0
