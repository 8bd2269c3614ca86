"""Doubts, and whatever else only a person can settle: held calls, calls that gave up, runs that are stuck.

Everything that ``rt.inbox()`` lists has a page: requests in ``approvals.py``, calls and runs here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from pydantic import Field

from amends import Absent, Call, Doubt, Evidence, Happened, InboxItem, Next, RunInfo, Unknown
from amends.errors import Error, ResultLost, UsageError
from amends.serve.access import allows
from amends.serve.console.acts import Acted, Asked, check_seen, needed, seen_of
from amends.serve.console.calls import events_of
from amends.serve.console.html import path
from amends.serve.console.marked import Line, marked, marked_args, marked_value, plain, short_args
from amends.serve.console.pages import Said
from amends.serve.console.run import LONG, abandon_words, plain_error, without_ids
from amends.serve.exchange import Exchange
from amends.serve.problems import AlreadyDecided, Invalid
from amends.visible import visible

DOUBTFUL: Final = ("in_doubt", "compensation_in_doubt")
ROWS_MAX: Final = 100
"""How many rows of each kind are listed."""
NEWEST: Final = 2_000
"""Among how many of the newest runs blocked and suspended ones are looked for."""
SECTIONS: Final = (
    ("doubt", "In doubt", "Calls that may or may not have happened."),
    ("decision", "To decide", "Calls that are held until somebody says what to do with them."),
    ("blocked", "Blocked", "Runs that can neither commit nor be taken back by themselves."),
    ("suspended", "Suspended", "Runs that their program has released and can open again."),
    ("expired", "Expired", "Requests for approval that nobody decided in time."),
)
"""What the page lists, in this order."""
WORDS: Final[tuple[tuple[str, str], ...]] = (
    *((f"what:{what}", title.lower()) for what, title, _ in SECTIONS),
    ("tool:", "the tool; * is a wildcard"),
    ("run:", "the run's id"),
    ("call:", "the id of a call"),
    ("agent:", "the agent of its run"),
    ("principal:", "on whose behalf its run acts"),
    ("age:>1d", "older than a day; also age:<1h"),
)
"""What the filter box suggests."""
ANSWERS: Final[Mapping[str, tuple[str, str]]] = {
    "happened": ("It happened", "The effect is in the world."),
    "absent": ("It did not happen", "Nothing of it is in the world."),
    "unknown": ("Nobody can know", "It stays as it is, and every report names it."),
}
WHO: Final = {
    "here": "This server goes on at once.",
    "owner": "The process that has the run goes on.",
    "worker": "A worker that has the tools goes on.",
    "program": "Its program goes on when it opens the run again.",
    "agent": "Its agent goes on.",
}
THEN: Final = {
    "here": "nothing else is called",
    "owner": "the process that has the run goes on",
    "worker": "a worker that has its tools goes on; this server does not have them and cannot show what is called",
    "program": "its program goes on when it opens the run again",
    "agent": "its agent goes on with this answer, and decides itself what it calls next",
}
"""What follows from an answer whose next steps are none, or are not known to this server."""
DECISIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "run": ("Run it", "It is another one: it starts when its program asks again.", "primary"),
    "replay": ("Use the earlier result", "It is the same one: it is answered with the result of the earlier call.", ""),
    "refuse": ("Refuse it", "It must not run: the agent is told.", ""),
}


RUN_VERBS: Final = ("resolve", "retry", "accept", "finish", "rollback", "abandon", "withdraw", "ask_again")
_CALL: Final = re.compile(r"\bcall_[A-Za-z0-9_-]+")


class DoubtsQuery(Said):
    """Which of them."""

    filter: str = Field("", max_length=2_000)


# ---- The list


async def doubts(x: Exchange) -> dict[str, Any]:
    """Return what only a person can settle, by kind, and the doubts that amends is still settling by itself."""
    problem: dict[str, str] | None = None
    inbox: list[InboxItem] = []
    try:
        inbox = await x.rt.inbox(x.query.filter, newest=NEWEST)
    except UsageError as error:  # told beside the box, which keeps what was typed
        problem = {"detail": str(error), "hint": error.hint}
    listed: dict[str, list[dict[str, Any]]] = {what: [] for what, _, _ in SECTIONS}
    counts = dict.fromkeys(listed, 0)
    for item in inbox:
        if item.what in listed:
            counts[item.what] += 1
            if counts[item.what] <= ROWS_MAX:
                listed[item.what].append(_item(item))
    known = {item.id for item in inbox if item.what == "doubt"}
    settling: list[dict[str, Any]] = []
    if not x.query.filter:
        async for one in x.rt.doubts():
            if len(settling) == ROWS_MAX:
                break
            if one.id not in known:
                settling.append(_settling(one))
    sections = [
        {"what": what, "title": title, "text": text, "items": listed[what], "count": counts[what]}
        for what, title, text in SECTIONS
        if listed[what]
    ]
    return {
        "filter": x.query.filter,
        "sections": sections,
        "settling": settling,
        "newest": NEWEST,
        "is_empty": not sections and not settling,
        "problem": problem,
        "words": [list(one) for one in WORDS],
    }


def _item(item: InboxItem) -> dict[str, Any]:
    call = item.call
    return {
        "id": item.id,
        "what": item.what,
        "to": place_of(item),
        "tool": [] if call is None else marked(call.tool),
        "args": [] if call is None else short_args(call.args),
        "state": None if call is None else call.state,
        "run": item.run_id,
        "agent": item.agent,
        "why": marked(_first_cause(item.why), prose=True) if item.why else [],
        "since": item.since.isoformat(),
        "verbs": list(item.verbs),
    }


def place_of(item: InboxItem) -> str:
    """Return the address of the page on which this is decided."""
    if item.what in ("approval", "expired"):
        return path("/approvals", item.id)
    return path("/doubts", item.id) if item.call is not None else path("/doubts/runs", item.id)


def _first_cause(why: str) -> str:
    """Return the reason without the calls in Python that remove it: the page has buttons for them."""
    said, verb, _ = why.partition("rt.")
    return without_ids(plain_error((said.rpartition(": ")[0] or said) if verb else said))


def _settling(one: Doubt) -> dict[str, Any]:
    return {
        "id": one.id,
        "to": path("/doubts", one.id),
        "tool": marked(one.tool),
        "args": short_args(one.sent),
        "state": one.state,
        "run": one.run_id,
        "agent": one.agent,
        "since": _iso(one.lost_at or one.sent_at or one.requested_at),
        "next_probe_at": _iso(_ahead(one.next_probe_at)),
        "probe": one.probe,
    }


# ---- One call


async def doubt(x: Exchange) -> dict[str, Any]:
    """Return a call that needs a person: what was sent, what is known, and what each answer leads to."""
    call = await x.rt.call(x.path["id"])
    found = await _doubt_of(x, call)
    what = kind_of(call, found)
    operates = allows(x.who, "operator") and not x.service.is_read_only
    sent: Mapping[str, Any] = call.args if found is None else found.sent
    answers = await _answers(x, call) if what in ("doubt", "gave_up") else []
    learned, names = await _learned(x, call)
    evidence = [_evidence(one, names.get(one.at)) for one in (learned if found is None else found.evidence)]
    return {
        "id": call.id,
        "what": what,
        "tool": marked(call.tool),
        "run": call.run_id,
        "state": call.state,
        "call": _facts(call),
        "about": "call" if found is None else found.about,
        "sent": marked_args(sent, call.classes if found is None or found.about == "call" else None),
        "sent_at": _iso(call.started_at if found is None else found.sent_at),
        "lost_at": _iso(call.settled_at if found is None else found.lost_at),
        "probe": None if found is None else found.probe,
        "next_probe_at": None if found is None else _iso(_ahead(found.next_probe_at)),
        "evidence": evidence,
        "answers": answers,
        "decisions": await _decisions(x, call) if what == "decision" else None,
        "known_result": _known_result(found),
        "may": {"operate": operates, "why_not": _why_not(x, operates)},
        "settled": await _settled(x, call) if what == "settled" else None,
        "compensation": _compensation(call),
        "seen": seen_of(call),
    }


def kind_of(call: Call, found: Doubt | None) -> str:
    """Return what a person can do with this call: settle a doubt, try again, decide; or nothing any more."""
    if found is not None or call.state in DOUBTFUL:
        return "doubt"
    if call.state == "compensation_failed" or call.state == "backing_off":
        return "gave_up"
    if call.state == "held" and not call.staged and call.reason not in ("approval", "budget"):
        return "decision"
    return "waiting" if call.state in ("held", "ready", "started", "compensating") else "settled"


async def _doubt_of(x: Exchange, call: Call) -> Doubt | None:
    if call.state not in DOUBTFUL:
        return None
    quoted = call.id.replace('"', "")
    async for one in x.rt.doubts(f'call:"{quoted}" state:{call.state}'):
        return one
    return None


def _facts(call: Call) -> dict[str, Any]:
    return {
        "id": call.id,
        "run": call.run_id,
        "kind": call.kind,
        "agent": call.agent,
        "principal": call.principal,
        "version": call.version,
        "key": call.key,
        "digest": call.digest,
        "attempt": call.attempt,
        "requested_at": _iso(call.requested_at),
        "why": marked(call.why, prose=True) if call.why else [],
        "error": marked(call.error, prose=True) if call.error else [],
        "reason": call.reason,
        "result": _result(call),
    }


def _compensation(call: Call) -> dict[str, Any] | None:
    one = call.compensation
    if one is None:
        return None
    return {
        "attempts": one.attempts,
        "key": one.key,
        "error": marked(one.error, prose=True) if one.error else [],
        "started_at": _iso(one.started_at),
        "settled_at": _iso(one.settled_at),
        "next_at": _iso(one.next_at),
    }


def _evidence(one: Evidence, name: str | None) -> dict[str, Any]:
    """Return a piece of evidence, with a digest of exactly what was recorded, and the name of who asked."""
    said = [one.at.isoformat(), one.by, one.attempt, one.answer, one.why]
    by = {"probe": "Amends asked", "person": f"{name or 'Somebody'} asked", "late": "It answered late"}
    return {
        "at": one.at.isoformat(),
        "by": by.get(one.by, one.by),
        "attempt": one.attempt,
        "answer": one.answer,
        "why": marked(one.why, prose=True) if one.why else [],
        "digest": sha256(json.dumps(said, ensure_ascii=True).encode()).hexdigest(),
    }


async def _answers(x: Exchange, call: Call) -> list[dict[str, Any]]:
    """Return the three answers and what each leads to; none, if the call has changed meanwhile."""
    try:
        found = await x.rt.preview(call.id)
    except UsageError:
        return []
    undoing = call.state.startswith("compensation")
    nexts: Mapping[str, Next] = {"happened": found.happened, "absent": found.absent, "unknown": found.unknown}
    words = dict(ANSWERS)
    if undoing:
        words |= {
            "happened": ("The compensation happened", "The effect has been taken back."),
            "absent": ("It was not compensated", "The effect still stands."),
        }
    listed = [
        {
            "answer": answer,
            "title": words[answer][0],
            "text": words[answer][1],
            "takes_result": answer == "happened" and not undoing,
            "refused": None if one.refused is None else marked(one.refused, prose=True),
            "call_state": one.call_state,
            "run_state": one.run_state,
            "who": WHO[one.who],
            "then": THEN[one.who],
            "does": [_planned(step) for step in one.does],
            "causes": [marked(_first_cause(cause), prose=True) for cause in one.causes],
        }
        for answer, one in nexts.items()
    ]
    return [one | {"words": resolve_words(call, one)[1]} for one in listed]


def _planned(step: Any) -> dict[str, Any]:
    verbs = {
        "compensate": "Take back",
        "probe": "Ask about",
        "guard": "Check",
        "start": "Run",
        "ask": "Ask a person about",
    }
    return {
        "what": step.what,
        "verb": verbs[step.what],
        "tool": marked(step.call.tool),
        "call": step.call.id,
        "by": marked(step.by) if step.by else [],
        "args": short_args(step.args) if step.args else [],
        "note": marked(step.note, prose=True) if step.note else [],
    }


async def _decisions(x: Exchange, call: Call) -> dict[str, Any]:
    """Return what can be done with a held call, and the earlier call that it looks like."""
    twin = None
    if call.twin is not None:
        try:
            twin = await x.rt.call(call.twin)
        except Error:
            twin = None
    answers = [
        {"decision": decision, "title": title, "text": text, "kind": kind}
        for decision, (title, text, kind) in DECISIONS.items()
        if decision != "replay" or call.twin is not None
    ]
    return {
        "answers": answers,
        "twin": None
        if twin is None
        else {
            "id": twin.id,
            "run": twin.run_id,
            "state": twin.state,
            "at": _iso(twin.settled_at or twin.started_at or twin.requested_at),
            "args": marked_args(twin.args, twin.classes),
            "result": _result(twin),
        },
    }


def _result(call: Call) -> dict[str, Any] | None:
    try:
        result = call.result
    except ResultLost:
        return None
    return None if result is None else marked_value(result)


def _known_result(found: Doubt | None) -> str:
    """Return what the last probe said that the call returned, as a person would type it."""
    if found is None:
        return ""
    said = [one.why for one in found.evidence if one.answer == "happened" and one.why]
    return said[-1] if said else ""


async def _learned(x: Exchange, call: Call) -> tuple[list[Evidence], dict[datetime, str]]:
    """Return the answers of probes that the events have kept, also when nobody doubts any more, and who asked for each."""
    found: list[Evidence] = []
    names: dict[datetime, str] = {}
    attempt = 1
    for event in await events_of(x, call):
        attempt = int(event.facts.get("attempt") or attempt)
        if event.what == "probed":
            by = event.by if event.by in ("probe", "late") else "person"
            said, why = str(event.facts.get("answer", "")), str(event.facts.get("why") or "")
            found.append(Evidence(at=event.at, by=by, attempt=attempt, answer=said, why=why))
            if event.by not in ("probe", "late", "person"):
                names[event.at] = event.by
    return found, names


async def _settled(x: Exchange, call: Call) -> dict[str, Any] | None:
    """Return who settled it last, and why; None: no person did."""
    last = None
    for event in await events_of(x, call):
        if event.facts.get("why") and event.to == call.state:
            last = event
    if last is None:
        return None
    return {
        "by": last.by,
        "why": marked(str(last.facts["why"]), prose=True),
        "at": last.at.isoformat(),
        "what": last.to,
    }


def _why_not(x: Exchange, operates: bool) -> str:
    if operates:
        return ""
    if x.service.is_read_only:
        return "This console is read-only: decide with the command line or another console."
    return (
        f"You are logged in with the scope {', '.join(sorted(x.who.scopes))}. Settling this needs the scope operator."
    )


def _ahead(moment: datetime | None) -> datetime | None:
    """Return a moment that is still to come."""
    return moment if moment is not None and moment > datetime.now(UTC) else None


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


# ---- Acts on a call


async def probe(x: Exchange, _form: Mapping[str, str]) -> Acted:
    """Probe a call; decide nothing, and keep the answer as evidence."""
    id = x.path["id"]
    found = await x.rt.probe(id, by=x.who.name)
    if isinstance(found, Unknown):
        why = f": {visible(found.why, prose=True)}" if found.why else ""
        return Acted(path("/doubts", id), f"The probe does not know{why}", "wait")
    how = "it happened" if isinstance(found, Happened) else "it did not happen"
    return Acted(path("/doubts", id), f"The probe says that {how}. It is still for you to decide.")


async def resolve(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Settle a doubt: it happened, it did not, or nobody can know."""
    id, why = x.path["id"], needed(form, "why", label="the reason")
    answer = _answer(form)
    check_seen(await x.rt.call(id), form)
    try:
        done = await x.rt.resolve(id, answer, by=x.who.name, why=why)
    except Error as error:
        raise await _first(x, id, error) from error
    return Acted(path("/doubts", id), f"Settled. The run is {done.run.state.replace('_', ' ')}.")


def _answer(form: Mapping[str, str]) -> Any:
    said = needed(form, "answer", label="the answer")
    text = form.get("result", "").strip()
    if said not in ANSWERS:
        raise Invalid(f"{visible(said)} is not an answer", problems=("form.answer: is unknown",))
    if said == "happened":
        return Happened(json_or_text(text)) if text else Happened()
    return Absent() if said == "absent" else Unknown("a person said so")


def json_or_text(text: str) -> Any:
    """Return what a person typed as a result: JSON, if it is, and else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


async def asks_resolve(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say once more what the answer leads to."""
    call = await x.rt.call(x.path["id"])
    needed(form, "why", label="the reason")
    _answer(form)
    check_seen(call, form)
    found = {one["answer"]: one for one in await _answers(x, call)}
    if form["answer"] not in found:
        raise await _first(x, call.id, UsageError(f"{visible(call.tool)} is not in doubt any more"))
    return Asked(*resolve_words(call, found[form["answer"]]), back=path("/doubts", call.id), kind="primary")


def resolve_words(call: Call, answer: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the title, the text and the button of the question before an answer."""
    does = "; ".join(_said(step) for step in answer["does"]) or answer["then"]
    run = answer["run_state"].replace("_", " ")
    text = f"Your answer about {visible(call.tool, prose=True)}: {answer['title'].lower()}. Then {does}. The run is then {run}."
    return f"{answer['title']}?", f"{text} This cannot be changed afterwards.", "Record this answer"


def _said(step: Mapping[str, Any]) -> str:
    parts: tuple[Line, ...] = (plain(f"{step['verb'].lower()} "), step["tool"])
    return "".join(one["text"] for part in parts for one in part)


async def retry(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Retry a compensation or a retriable that gave up."""
    id, why = x.path["id"], needed(form, "why", label="the reason")
    text = form.get("result", "").strip()
    check_seen(await x.rt.call(id), form)
    try:
        given = {"result": json_or_text(text)} if text else {}
        done = await x.rt.retry(id, by=x.who.name, why=why, **given)
    except Error as error:
        raise await _first(x, id, error) from error
    return Acted(path("/doubts", id), f"Tried again. The run is {done.run.state.replace('_', ' ')}.")


async def accept(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Accept that an effect stays."""
    id, why = x.path["id"], needed(form, "why", label="the reason")
    check_seen(await x.rt.call(id), form)
    try:
        done = await x.rt.accept(id, by=x.who.name, why=why)
    except Error as error:
        raise await _first(x, id, error) from error
    return Acted(path("/doubts", id), f"Accepted: its effect stays. The run is {done.run.state.replace('_', ' ')}.")


async def asks_accept(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say once more what is accepted."""
    needed(form, "why", label="the reason")
    call = await x.rt.call(x.path["id"])
    check_seen(call, form)
    tool, run = visible(call.tool, prose=True), visible(call.run_id, prose=True)
    text = (
        f"The effect of 1 call, {tool} in run {run}, stays in the world and is never taken back. Every report names it."
    )
    return Asked("Accept that the effect stays?", text, "Accept it", back=path("/doubts", call.id))


async def decide(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Decide a held call."""
    id, why = x.path["id"], needed(form, "why", label="the reason")
    decision = needed(form, "decision", label="the decision")
    if decision not in DECISIONS:
        raise Invalid(f"{visible(decision)} is not a decision", problems=("form.decision: is unknown",))
    check_seen(await x.rt.call(id), form)
    try:
        await x.rt.decide(id, decision, by=x.who.name, why=why)  # type: ignore[arg-type]  # one of its words
    except Error as error:
        raise await _first(x, id, error) from error
    said = {
        "run": "It runs when its program asks again.",
        "replay": "It is answered with the earlier result.",
        "refuse": "Refused.",
    }
    return Acted(path("/doubts", id), f"Decided. {said[decision]}")


async def _first(x: Exchange, id: str, error: Error) -> Error:
    """Return the error to show: if somebody else was first, who it was and what they said."""
    if not isinstance(error, UsageError):
        return error
    try:
        call = await x.rt.call(id)
        found = await _settled(x, call)
    except Error:
        return error
    if found is None or kind_of(call, None) in ("doubt", "gave_up", "decision"):
        return error
    why = "".join(one["text"] for one in found["why"])
    tool, state = visible(call.tool, prose=True), call.state.replace("_", " ")
    said = f"you were not the first: {visible(found['by'], prose=True)} has decided, and {tool} is {state}: {why}"
    return AlreadyDecided(said, run_id=call.run_id)


# ---- One run that is stuck


async def stuck(x: Exchange) -> dict[str, Any]:
    """Return a run that waits for a person: why, and what can be done about it."""
    found = await x.rt.report(x.path["id"], limit=LONG)
    run = found.run
    items = await x.rt.inbox(f'run:"{run.id.replace(chr(34), "")}"', newest=NEWEST)
    mine = next((one for one in items if one.call is None and one.id == run.id), None)
    about = [_item(one) for one in items if one.call is not None]
    operates = allows(x.who, "operator") and not x.service.is_read_only
    is_blocked = run.state == "blocked"
    said = "; ".join(run.causes)
    verbs = (
        mine.verbs if mine is not None else tuple(verb for verb in RUN_VERBS if is_blocked and f"rt.{verb}(" in said)
    )
    return {
        "id": run.id,
        "what": mine.what if mine is not None else "blocked" if is_blocked else "settled",
        "state": run.state,
        "run": _run(run),
        "since": None if mine is None else mine.since.isoformat(),
        "until": None if mine is None else _iso(mine.expires_at),
        "causes": [_cause(one) for one in run.causes],
        "verbs": list(verbs),
        "items": about,
        "abandon_words": abandon_words(found),
        "may": {"operate": operates, "why_not": _why_not(x, operates)},
    }


def _run(run: RunInfo) -> dict[str, Any]:
    return {
        "id": run.id,
        "agent": run.agent,
        "principal": run.principal,
        "goal": run.goal,
        "recover": run.recover,
        "opened_at": _iso(run.opened_at),
    }


def _cause(text: str) -> dict[str, Any]:
    """Return one cause, with the call that it is about, if it names one."""
    call = _CALL.search(text)
    verbs = [verb for verb in RUN_VERBS if f"rt.{verb}(" in text]
    return {"text": marked(_first_cause(text), prose=True), "call": call[0] if call else None, "verbs": verbs}


async def finish(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Close a run that was interrupted after its pivot as committed."""
    id = x.path["id"]
    await x.rt.finish(id, by=x.who.name, why=needed(form, "why", label="the reason"))
    x.service.sessions.forget(x.tenant, id)
    return Acted(path("/doubts/runs", id), "Closed as committed.")


async def asks_finish(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say once more what finishing does."""
    needed(form, "why", label="the reason")
    text = f"Run {visible(x.path['id'], prose=True)} is closed as committed, as it is now. What it did stays."
    return Asked(
        "Close the run as committed?", text, "Close it", back=path("/doubts/runs", x.path["id"]), kind="primary"
    )


async def abandon(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Close a run and leave its effects standing."""
    id = x.path["id"]
    done = await x.rt.abandon(id, by=x.who.name, why=needed(form, "why", label="the reason"))
    x.service.sessions.forget(x.tenant, id)
    count = len(done.residue)
    return Acted(
        path("/doubts/runs", id),
        f"Abandoned. {count} effect{'' if count == 1 else 's'} left standing; the report names each.",
    )


async def asks_abandon(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say once more what abandoning does, and how many effects stay."""
    needed(form, "why", label="the reason")
    found = await x.rt.report(x.path["id"], limit=LONG)
    return Asked("Abandon the run?", abandon_words(found), "Abandon it", back=path("/doubts/runs", x.path["id"]))
