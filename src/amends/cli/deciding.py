"""A person's word on what amends cannot decide: said, shown beforehand, confirmed where it cannot be undone."""

from __future__ import annotations

import json
from typing import Any, Final

from amends import Absent, Call, Happened, Report, Runtime, Unknown
from amends.cli.access import call_named, reading, run_named, who, working
from amends.cli.codes import DONE, FAILED, IN_DOUBT, NEEDS_A_PERSON
from amends.cli.reading import args_lines, must_be_shown, put_report
from amends.cli.show import agrees, has_person, must_ask, progress, put, put_json, say
from amends.errors import UsageError
from amends.visible import visible, visible_value

ANSWERS: Final = ("happened", "absent", "unknown")
DECISIONS: Final = ("run", "replay", "refuse")


def probe(call_id: str, *, app: str | None, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends doubts probe``."""
    with working(app, url=url, tenant=tenant, needed="a probe") as rt:
        call = rt.call(call_named(rt, call_id))
        with progress(f"asking about {visible(call.tool)}"):
            answer = rt.probe(call.id)
    facts: dict[str, Any] = {"call": call.id, "tool": call.tool, "answer": type(answer).__name__.lower()}
    facts |= {"result": answer.result} if isinstance(answer, Happened) else {}
    facts |= {"why": answer.why} if isinstance(answer, Unknown) else {}
    if as_json:
        put_json(facts)
    else:
        more = facts.get("result", facts.get("why"))
        said = f": {visible_value(more, bare=True)}" if more not in (None, "") else ""
        put(f"{visible(call.tool)} ({visible(call.id)}): {facts['answer']}{said}")
        if not isinstance(answer, Unknown):
            say(
                f"it is still as it was; to decide: amends doubts resolve {visible(call.id)} {facts['answer']} --why ..."
            )
    return IN_DOUBT if isinstance(answer, Unknown) else DONE


def resolve(
    call_id: str,
    answer: str,
    *,
    result: str | None,
    by: str | None,
    why: str,
    yes: bool,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends doubts resolve``."""
    said, asks = _answer(answer, result), must_ask(yes, "a person's word on a doubt")
    with working(app, url=url, tenant=tenant) as rt:
        call, person = rt.call(call_named(rt, call_id)), who(by, rt)
        if asks:
            _tell(call)
            if result is not None and isinstance(said, Happened):
                say(f"   its result is then {visible_value(said.result)}")
            say(f"   then: {getattr(rt.preview(call.id), answer)}")
            if not agrees(f"{visible(person)} says that it {_spoken(answer)}. Sure?"):
                return FAILED
        with progress(f"run {visible(call.run_id)} goes on"):
            report = rt.resolve(call.id, said, by=person, why=why)
    return _put(report, as_json)


def retry(
    call_id: str,
    *,
    result: str | None,
    by: str | None,
    why: str,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends call retry``."""
    with working(app, url=url, tenant=tenant) as rt:
        call = call_named(rt, call_id)
        given = {} if result is None else {"result": _value(result)}
        with progress("trying again"):
            report = rt.retry(call, by=who(by, rt), why=why, **given)
    return _put(report, as_json)


def accept(
    call_id: str,
    *,
    by: str | None,
    why: str,
    yes: bool,
    app: str | None,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends call accept``."""
    asks = must_ask(yes, "accepting what stands")
    with working(app, url=url, tenant=tenant) as rt:
        call, person = rt.call(call_named(rt, call_id)), who(by, rt)
        if asks:
            _tell(call)
            if not agrees(f"{visible(person)} says that it stays. Sure?"):
                return FAILED
        with progress(f"run {visible(call.run_id)} goes on"):
            report = rt.accept(call.id, by=person, why=why)
    return _put(report, as_json)


def decide(
    call_id: str,
    decision: str,
    *,
    by: str | None,
    why: str,
    yes: bool,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends call decide``."""
    if decision not in DECISIONS:
        raise UsageError(f"{visible(decision)} is no decision", hint=f"say one of {', '.join(DECISIONS)}")
    with reading(url, tenant) as rt:
        call, person = rt.call(call_named(rt, call_id)), who(by, rt)
        if not yes and has_person() and call.state == "held":
            _tell(call)
            # The other two start nothing: that they were typed is enough.
            if decision == "run" and not agrees(f"{visible(person)} lets exactly this run. Sure?"):
                return FAILED
        report = rt.decide(call.id, decision, by=person, why=why)  # type: ignore[arg-type]
    return _put(report, as_json)


def abandon(
    run_id: str, *, by: str | None, why: str, yes: bool, url: str | None, tenant: str | None, as_json: bool
) -> int:
    """See ``amends runs abandon``."""
    asks = must_ask(yes, "abandoning a run")
    with reading(url, tenant) as rt:
        run, person = run_named(rt, run_id), who(by, rt)
        if asks and not _agreed(rt, run, f"{visible(person)} leaves what stands and closes run {visible(run)}. Sure?"):
            return FAILED
        report = rt.abandon(run, by=person, why=why)
    _put(report, as_json)
    return DONE


def finish(
    run_id: str, *, by: str | None, why: str, yes: bool, url: str | None, tenant: str | None, as_json: bool
) -> int:
    """See ``amends runs finish``."""
    asks = must_ask(yes, "closing a run")
    with reading(url, tenant) as rt:
        run, person = run_named(rt, run_id), who(by, rt)
        if asks and not _agreed(rt, run, f"{visible(person)} says that run {visible(run)} is done. Sure?"):
            return FAILED
        report = rt.finish(run, by=person, why=why)
    return _put(report, as_json)


def _answer(answer: str, result: str | None) -> Happened[Any] | Absent | Unknown:
    if answer not in ANSWERS:
        raise UsageError(f"{visible(answer)} is no answer", hint=f"say one of {', '.join(ANSWERS)}")
    if result is not None and answer != "happened":
        raise UsageError(f"--result says what a call gave back, and {answer} says that nothing is known of it")
    match answer:
        case "happened":
            return Happened() if result is None else Happened(_value(result))
        case "absent":
            return Absent()
        case _:
            return Unknown("a person said so")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _spoken(answer: str) -> str:
    return {"happened": "happened", "absent": "did not happen"}.get(answer, "cannot be known, and stays as residue")


def _tell(call: Call) -> None:
    """Show the call whole: nobody decides over something that is cut, or that cannot be read here."""
    must_be_shown(call)
    say(f"{visible(call.tool)} ({visible(call.id)}) of run {visible(call.run_id)}, {call.state.replace('_', ' ')}")
    for line in args_lines(call.args, call.classes):
        say(line)
    if call.result is not None:
        say(f"   result: {visible_value(call.result)}")
    for name, text in (("why", call.why), ("error", call.error)):
        if text:
            say(f"   {name}: {visible(text, prose=True)}")


def _agreed(rt: Runtime, run: str, question: str) -> bool:
    report = rt.report(run)
    say(f"run {visible(run)} is {report.state.replace('_', ' ')}")
    for left in report.residue:
        must_be_shown(left.call)
        say(f"   left standing: {visible(left.call.tool)} ({visible(left.call.id)}): {visible(left.why, prose=True)}")
        for line in args_lines(left.call.args, left.call.classes):
            say(f"   {line}")
    for cause in report.run.causes:
        say(f"   cause: {visible(cause, prose=True)}")
    return agrees(question)


def _put(report: Report, as_json: bool) -> int:
    if as_json:
        put_json(report.to_dict())
    else:
        put_report(report)
    if report.skipped:
        say("recorded; a worker that has the tools goes on with the run: amends worker APP:RT")
    if report.doubts:
        return IN_DOUBT
    return NEEDS_A_PERSON if report.state == "blocked" else DONE
