"""Flows and helpers about runs that both colours of the runtime share: checks, reading, recovery."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amends.drivers.context import calling_run, parent_call
from amends.encoding.lazy_import import import_on_use
from amends.engine import opening
from amends.engine.call import Done
from amends.engine.reports import info_of, report_of
from amends.engine.session import Ask, Session, ask_for, call_of, scrubbed
from amends.errors import (
    CallNotFound,
    LedgerError,
    NoRun,
    RunEnded,
    RunNotFound,
    UsageError,
    clean,
    described,
    is_a,
    log_error,
)
from amends.host.host import Host, View, name_of
from amends.host.redaction import named_by, recorded_input
from amends.host.requests import adhoc_spec, keyed
from amends.ledger.flow import Flow
from amends.ledger.leases import Lease, client_left_s
from amends.ledger.operations import (
    ListWanted,
    Opened,
    ReadApproval,
    ReadCall,
    ReadForks,
    ReadRun,
    Tree,
)
from amends.ledger.rows import CallRow, RunRow, needs_tool
from amends.ledger.world import IsDead, ReadClocks
from amends.model import AHEAD_MAX_S, Answer, Call, NoEffect, RunInfo, Staged, ToolCall
from amends.report import Report
from amends.tools.scope import Options
from amends.tools.spec import Declaration, declaration_of
from amends.visible import story, visible, visible_log

if TYPE_CHECKING:  # what the first call does not need
    from amends.engine import model_answers, recovery
    from amends.engine.recovery import Found
    from amends.engine.turns import End
else:
    import_on_use(globals(), model_answers="amends.engine.model_answers", recovery="amends.engine.recovery")

log = visible_log("amends")
T = TypeVar("T")
PATIENCE_S_MAX: Final = 5.0


# ---- Checks and requests


_NO_OPTIONS: Final = Options()


def declared_as(tool: object) -> tuple[Declaration, Options]:
    """Return the declaration behind a tool function, with the options it carries."""
    declared = declaration_of(tool)
    if declared is None:
        name = getattr(tool, "__name__", type(tool).__name__)
        raise UsageError(f"{name} is not a tool", hint="declare it with @tool, or use run.once for undeclared code")
    return declared, getattr(tool, "__amends_options__", _NO_OPTIONS)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for an invalid run option, before anything is opened."""
    choices = {"recover": ("rollback", "resume", "wait"), "if_rolled_back": ("again", "raise")}
    for name, allowed in choices.items():
        if options[name] not in allowed:
            raise UsageError(f"{name} is {options[name]!r}; it is one of {', '.join(allowed)}")
    if options.get("interrupted") not in (None, "block", "commit"):
        raise UsageError(f"interrupted is {options['interrupted']!r}; it is one of block, commit")
    if options.get("reads", "record") not in ("record", "again"):
        raise UsageError(f"reads is {options['reads']!r}; it is one of record, again")
    if options.get("client_lease") is not None:
        seconds_of("client_lease", options["client_lease"], least="a client lease")
    for name in ("wait", "wait_approval", "deadline"):
        value = options[name]
        if value is not None and not (isinstance(value, int | float) and value >= 0):
            raise UsageError(f"{name} is {value!r}; it is a number of seconds")
    if (options["deadline"] or 0) > AHEAD_MAX_S:
        raise UsageError(f"deadline is {options['deadline']!r}; it is at most {AHEAD_MAX_S:.0f} seconds, or left out")


def seconds_of(name: str, value: Any, *, least: str) -> float:
    """Return a number of seconds above 0; raise ``UsageError`` for anything else. ``least``: what it is."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= AHEAD_MAX_S
    if not known:
        raise UsageError(f"{name} is {value!r}; {least} is a number of seconds above 0, at most {AHEAD_MAX_S:.0f}")
    return float(value)


def check_seconds(name: str, value: Any) -> None:
    """Raise ``UsageError`` unless this is a number of seconds."""
    if not (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0):
        raise UsageError(f"{name} is {value!r}; it is a number of seconds")


def refuse_in_body(run_id: str, what: str) -> None:
    """Raise ``UsageError`` inside a body of this run: a body that ends its own run would wait for itself."""
    if calling_run() == run_id:
        raise UsageError(
            f"run {run_id} cannot be {what} inside the body of a tool: that call has no result yet",
            hint="return or raise, and end the run where it was opened",
        )


def refuse_forked(pid: int, run_id: str) -> None:
    """Raise ``NoRun`` in a forked child: it has a copy of the run, but neither its lease nor its heartbeat."""
    if pid != os.getpid():
        raise NoRun(
            f"run {run_id} belongs to process {pid}, which forked this one; nothing was started",
            hint="make the call in the parent, or open another run in this process",
        )


def log_for(session: Session, error: Exception, tool: str) -> None:
    """Log a mistake of the program, which is not told to a model."""
    if is_a(error, UsageError, LedgerError) and not is_a(error, RunEnded):
        words = f"{tool}: {described(error)} ({error.hint})"
        log.error("%s", scrubbed(session, words))


def answers_of_turn(
    session: Session, calls: Sequence[ToolCall], asks: Sequence[Ask | Exception], ends: Sequence[End | Answer]
) -> list[Answer]:
    """Return what a model is told of each call of its turn."""
    answers = []
    for call, ask, end in zip(calls, asks, ends, strict=True):
        if isinstance(end, Answer):
            answers.append(end)
        elif isinstance(end, Exception):
            log_for(session, end, call.tool)
            answers.append(model_answers.answer_error(session, call.tool, end))
        else:
            assert isinstance(ask, Ask), "only a valid request is performed"
            answers.append(model_answers.answer_done(session, ask, end))
    return answers


def log_lost(host: Host, found: Found, error: Exception) -> None:
    """Log why a run could not be recovered, without redacted values."""
    if not host.redactor.key:
        log_error(log, logging.ERROR, f"run {visible(found.root.id)} could not be recovered here", error)
        return
    import traceback

    # No exc_info: a log handler would get the exception itself, with unredacted text.
    told = scrubbed(host.reader(root=found.root.uid), "".join(traceback.format_exception(error)))
    log.error("run %s could not be recovered here\n%s", visible(found.root.id), story(told))


def agent_ended(session: Session, error: Exception) -> str:
    """Return the log message for a resumed agent that ended with an error: with what became of its run."""
    notes = [note for note in getattr(error, "__notes__", None) or () if isinstance(note, str)]
    left = next((note.removeprefix("amends: ") for note in reversed(notes) if note.startswith("amends: ")), "")
    words = f"agent {visible(session.agent)} of run {visible(session.id)} ended with {described(error)}"
    return scrubbed(session, f"{words}; {left}" if left else words)


def hand_ask(
    host: Host,
    session: Session,
    tool: str,
    args: Mapping[str, Any],
    *,
    key: Any,
    kind: str | None,
    cost: Any,
    lease: float | None = None,
) -> Ask:
    """Return the request for a call that is started by hand; an undeclared tool is declared by ``kind`` and ``key``."""
    spec = host.specs.get(tool)
    if spec is not None and spec.kind == "agent":
        raise UsageError(f"{tool} is an agent, which is no call", hint=f"open its child run: run.child({tool!r})")
    if spec is None:
        if kind not in ("pivot", "read"):
            raise UsageError(
                f"{tool} is not declared, so begin() must say what it is",
                hint='kind="pivot" (cannot be compensated) or kind="read"; otherwise declare it with a compensation',
            )
        options = {} if key is None else {"key": key}
        spec = adhoc_spec(tool, session.redactor.hidden, kind=kind, **options)
    elif kind is not None and kind != spec.kind:
        raise UsageError(f"{tool} is declared as {spec.kind}, begin() says {kind}")
    elif key is not None:
        spec = keyed(spec, key)
    if cost is not None:
        spec = replace(spec, cost=lambda _: cost)
    if lease is not None:
        spec = replace(spec, remote=seconds_of("lease", lease, least="a work lease"))
    bound = spec.bind((), dict(args))
    return ask_for(session, spec, bound, fn=_by_hand, is_async=False, parent=parent_call())


def _by_hand(**_: Any) -> None:
    raise AssertionError("a call that is started by hand has no body")


def certain(error: BaseException | str) -> Exception:
    """Return the error of ``attempt.fail(...)``, by which the caller states that there was no effect."""
    why = NoEffect(clean(error))
    if is_a(error, BaseException):
        why.__cause__ = error
    return why


def child_of(host: Host, session: Session, id: str | None, input: object) -> Flow[tuple[Opened, Session]]:
    """Open a child run. Without a name it is named by its input, so that the same request finds it again."""
    said = recorded_input(session.redactor, session.tenant, input)
    session.known.update(said.known)
    name = (
        name_of("name of a child", id)
        if id
        else f"child-{named_by(said)[:12]}"
        if said.digest
        else host.new_id("child")
    )
    return opening.open_child(
        session, id=f"{session.id}/{name}", input=said.text, input_digest=said.digest, given=input, shown=said.shown
    )


# ---- Reading


async def report(
    host: Host,
    view: View,
    run_id: str = "",
    *,
    uid: str = "",
    skipped: tuple[str, ...] = (),
    after: str = "",
    limit: int | None = None,
) -> Report:
    """Return the newest generation of a run as the ledger has it; ``skipped``: tools without which it stays as it is.

    ``limit``: only so many of its calls, those that were requested after the call ``after``.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UsageError(f"limit is {limit!r}; it is a number of calls, at least 1")
    if after and limit is None:
        raise UsageError("after= needs limit=: it is about a part of the calls")
    tree = found(await ReadRun(view.tenant or "", run_id, uid, after=after, limit=limit), run_id or uid)
    forks = [] if tree.run.parent else await ReadForks(tree.run.uid)
    made = report_of(host.reader(), tree, ledger=host.store.url, skipped=skipped, forks=forks, is_whole=limit is None)
    if not tree.run.parent:
        return made
    above = found(await ReadRun(view.tenant or "", "", tree.run.parent), tree.run.parent)
    return replace(made, run=replace(made.run, parent=above.run.id))


async def call(host: Host, view: View, call_id: str) -> Call:
    """Return one call, by its id."""
    row = await call_row(view, call_id)
    return call_of(row, host.specs.get(row.tool))


async def told(host: Host, view: View, call_id: str) -> Answer | None:
    """Return the text for a model about a call, as ``run.answer`` gives it; None: the call has not ended.

    The text is made from the record. A call that was answered a second time from the record was told so, too.
    """
    row = await call_row(view, call_id)
    asked = await ReadApproval(row.approval) if row.approval else None
    twin = await ReadCall(row.twin) if row.twin else None
    session = host.reader(root=row.root)
    approval = None if asked is None else asked.approval
    return model_answers.answer_recorded(session, row, approval=approval, twin=twin)


async def call_row(view: View, call_id: str) -> CallRow:
    """Return the row of a call; raise ``CallNotFound`` if there is none, or if it is another tenant's."""
    row = await ReadCall(call_id)
    if row is None or row.tenant != (view.tenant or ""):
        raise CallNotFound(call_id)
    return row


async def read(*, tenant: str = "", id: str = "", uid: str = "") -> Tree | None:
    """Read one run tree."""
    return await ReadRun(tenant, id, uid)


def found(tree: Tree | None, id: str) -> Tree:
    """Return the tree; raise ``RunNotFound`` if there is none."""
    if tree is None:
        raise RunNotFound(id)
    return tree


def value_of(host: Host, session: Session, done: Done) -> Any:
    """Return what a program gets for a call: its result, or a ``Staged`` if it happens at commit."""
    spec = session.spec(done.row.tool)
    if spec is None or not spec.is_staging:
        return done.value
    call_id = done.row.id
    return Staged(call_of(done.row, spec), lambda: staged_now(host, call_id))


def staged_now(host: Host, call_id: str) -> Call:
    """Return a staged call as it is now, for ``Staged.done``; a property cannot be awaited, so this blocks."""
    row = host.hiding.kept.perform(ReadCall(call_id))
    assert row is not None, "a staged call is in the ledger"
    return call_of(row, host.specs.get(row.tool))


# ---- Runs of clients


async def wanted(host: Host, view: View) -> list[RunInfo]:
    """Return the runs of this process that another server wants for their clients, who have moved there.

    Let each of them go (``run.release()``) as soon as nothing is under way in it. Only runs with a ``client_lease``.
    """
    rows = {row.uid: row for row in await ListWanted(host.owner)}
    for lease in host.heartbeat.kept():
        if lease.is_wanted and lease.root not in rows:  # noted before its last heartbeat
            tree = await ReadRun("", uid=lease.root)
            if tree is not None and tree.run.owner == host.owner and tree.run.epoch == lease.epoch:
                rows[lease.root] = tree.run
    return [info_of(row) for row in rows.values() if view.tenant in (None, "", row.tenant)]


# ---- Recovery


def abandoned(host: Host, view: View, limit: int) -> Flow[list[Found]]:
    """Find up to ``limit`` runs that this process could recover now."""
    agents = frozenset(host.agents)
    return recovery.find_abandoned(host.doable, tenant=view.tenant or None, limit=limit, agents=agents)


def claim(host: Host, found: Found, *, force: bool = False) -> Flow[tuple[RunRow, Lease] | None]:
    """Take over one abandoned run; None if another process was faster."""
    return recovery.claim(
        found, owner=host.owner, lease_s=host.lease_s, new_id=host.new_id, force=force, anchor=host.anchor
    )


def patience(host: Host) -> float:
    """Return how long recovery waits for one run before it goes on to the next."""
    return min(host.wait_s, PATIENCE_S_MAX)


async def one(host: Host, root: str) -> Found | None:
    """Return one tree as recovery sees it; None if it is closed, its owner or client may live, or it waits for a person."""
    tree = await ReadRun("", uid=root)
    if tree is None or tree.run.closed_at is not None or tree.run.suspended:
        return None
    dead = ""
    if tree.run.owner and tree.run.lease_until > tree.now:
        if not await IsDead(tree.run.owner):
            return None
        dead = tree.run.owner
    if tree.run.client_lease_s:
        clocks = await ReadClocks()
        if client_left_s(tree.run, clocks.boot, clocks.mono, tree.now) > 0:
            return None
    needed = {row.tool for row in tree.calls if needs_tool(tree.run, row)}
    return recovery.Found(tree.run, tuple(sorted(set(needed) - host.doable)), dead)
