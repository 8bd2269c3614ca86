"""Run a plain call: admit it, run its body, settle it; three small operations.

A call is plain while nothing about it is unusual (``plain_request`` in ``host/requests.py`` says what is). As soon as
something is (the ledger answers otherwise, the body raises, its result needs the tool's annotation) the call goes on in
the general flow of ``engine/call.py``, from where it is: nothing is asked for or started twice.
"""

from __future__ import annotations

from typing import Any, Final

from amends.encoding.canonical import flat_copy, plain_copy
from amends.encoding.ids import call_id
from amends.encoding.payloads import load_result
from amends.encoding.redaction import NO_SECRETS
from amends.engine.call import Done, after_attempt, after_settlement, compare_again, guarded_call, run_attempts
from amends.engine.compiled import Compiled, is_exact
from amends.engine.doubts import note_late
from amends.engine.outcomes import SAYING, heard, judge
from amends.engine.session import Ask, Session, call_of, describe_error, secrets_of
from amends.errors import LeaseLost
from amends.ledger.flow import Flow
from amends.ledger.plain import AdmitPlain, FailedPlain, FailPlain, SettledPlain, SettlePlain, Started
from amends.ledger.rows import CallRow, IdTaken
from amends.ledger.world import Ended, Invoke, LazyCall, ReadClocks
from amends.model import Call

_UNSAID: Final = {
    "made": None, "until": None, "touched": False, "waits": 0, "is_stuck": False, "is_over": False, "doubted": False,
    "goes_on": False,
}  # fmt: skip


class PlainCall(LazyCall):
    """One plain call: its request, its flight, and the call as its body may ask for it, in one object.

    It has what ``Flight`` and ``LazyCall`` have. What few calls need is set when it is first asked for.
    """

    __slots__ = ("args", "compiled", "done", "doubted", "flying", "goes_on", "op", "sent", "session", "started")

    op: AdmitPlain
    sent: bool
    doubted: bool
    goes_on: bool
    started: Started
    done: Done | SettledPlain
    """How the request was answered, once it was."""

    def __init__(self, session: Session, compiled: Compiled, args: dict[str, Any], op: AdmitPlain) -> None:
        self.session, self.compiled, self.args, self.op = session, compiled, args, op
        self.flying: Started | CallRow | None = None
        self.sent = False
        self.spent = None

    def __getattr__(self, name: str) -> Any:
        if name == "row":
            self.row = row = self.started.row
            return row
        if name == "passed":
            self.passed = []
            return self.passed
        if name in _UNSAID:
            return _UNSAID[name]
        raise AttributeError(name)

    def whole(self) -> Call:
        """Return the call itself; always the same object."""
        if self.made is None:
            self.made = call_of(self.row, self.compiled.spec, args=dict(self.args))
        return self.made

    @property
    def call(self) -> CallRow | None:
        """The call that the flow has started and not settled."""
        flying = self.flying
        return flying.row if type(flying) is Started else flying  # type: ignore[return-value]

    @call.setter
    def call(self, row: CallRow | None) -> None:
        self.flying = row

    @property
    def id(self) -> str:
        """The id of the call."""
        return call_id(self.op.number)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.op.run.run_id

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return self.op.tool.name

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        return 1

    def outcome(self, value: Any) -> Done:
        """Return how the request was answered; ``value`` is what ``plain_call`` has returned."""
        done = self.done
        return Done(done.row, value) if type(done) is SettledPlain else done  # type: ignore[return-value]

    def ask(self) -> Ask:
        """Return the same request for the general flow."""
        op, spec, flight = self.op, self.compiled.spec, self
        return Ask(
            spec=spec, args=self.args, text=op.args, key=op.key.hex(), ident=op.ident.hex(), whole="", fn=self.compiled.fn,
            is_async=self.compiled.is_async, call_ref=op.call_ref, recorded_digest=op.digest.hex(),
            flight=flight,  # type: ignore[arg-type]  # it has all that a flight has
        )  # fmt: skip

    def late(self, ended: Ended) -> Flow[None]:
        """Record the return of a body that nobody waited for any more."""
        return note_late(self.session, NO_SECRETS, self.compiled.spec, self.row, ended, body=self)


async def plain_call(call: PlainCall) -> Any:
    """Run the call once in this run and return its result; raise what ``guarded_call`` raises."""
    op, session, compiled = call.op, call.session, call.compiled
    asked = session.asked
    if op.key in asked:
        known = session.recall.of_plain(op.key, op.ident)
        if known is not None and session.lease.is_ours((await ReadClocks()).mono):
            return _remembered(call, known)
        asked.add(op.key.hex())  # most likely answered by the record
        call.done = done = await guarded_call(session, call.ask())
        return done.value
    asked.add(op.key)
    try:
        started = await op
    except IdTaken:  # another process drew the same number; the general flow draws the next one
        return (await guarded_call(session, call.ask())).value
    if type(started) is not Started:
        call.done = done = await guarded_call(session, call.ask(), started)  # type: ignore[arg-type]
        return done.value
    call.started = call.flying = started
    if session.anchor is not None and not session.anchor.is_compared:
        await compare_again(session, call.ask(), started.row)
    id, bodies, flight = call_id(op.number), session.bodies, call
    bodies[id] = call
    try:
        ended = await Invoke(
            compiled.fn, call.args, compiled.is_async, None, call, session.lease, "execute", session.run, call.late,
            flight,  # type: ignore[arg-type]  # it has all that a flight has
        )  # fmt: skip
    finally:
        bodies.pop(id, None)
        call.is_over = True
    value = ended.value
    if type(value) is dict and SAYING.isdisjoint(value):  # nearly all are: ``heard`` finds nothing in it
        kept = flat_copy(value, compiled.flat_kinds)
    else:
        ended, kept = heard(ended, call), None
    if ended.error is None and not ended.in_flight and call.spent is None and not session.memory.known:
        if kept is None:
            kinds = compiled.result_kinds
            kept = plain_copy(ended.value) if kinds is None or is_exact(ended.value, kinds) else None
        if kept is not None:
            settled = await SettlePlain(started, kept[0])
            call.flying = None
            if type(settled) is SettledPlain:
                call.done = settled
                session.recall.keep_plain(settled)
                return kept[1]
            if settled.fenced:  # type: ignore[union-attr]
                raise LeaseLost(
                    f"{op.tool.name} ended after run {op.run.run_id} had another owner; its outcome is kept as evidence",
                    run_id=op.run.run_id,
                )
            session.recall.keep(settled.call)
            call.done = Done(settled.call, kept[1])
            return kept[1]
    if ended.error is not None and op.run.fails and _is_plain_failure(call, ended):
        clocks = await ReadClocks()
        said = describe_error(ended.error, session.redactor, secrets_of(session, NO_SECRETS))
        failed = await FailPlain(started, said, clocks.boot, clocks.mono)
        call.flying = None
        if type(failed) is FailedPlain:
            raise ended.error
        if failed.fenced:  # type: ignore[union-attr]
            raise LeaseLost(
                f"{op.tool.name} ended after run {op.run.run_id} had another owner; its outcome is kept as evidence",
                run_id=op.run.run_id,
            )
        ask = call.ask()
        after = await after_settlement(session, ask, failed.call, ended)
    else:
        ask = call.ask()
        after = await after_attempt(session, ask, started.row, ended, body=call)
    call.done = done = after if isinstance(after, Done) else await run_attempts(session, ask, after)
    return done.value


def _is_plain_failure(call: PlainCall, ended: Ended) -> bool:
    """Return whether an ordinary error is the end of the call: it has no probe, and is not started again."""
    spec, error = call.compiled.spec, ended.error
    if error is None or ended.in_flight or call.spent is not None or call.touched:
        return False
    if spec.retry.attempts > 1 or spec.on_failure == "rollback" or (spec.probe is not None and spec.kind != "read"):
        return False
    return judge(spec, error, around=ended.around).verdict == "ordinary"


def _remembered(call: PlainCall, known: SettledPlain) -> Any:
    """Return the result of a call that this process has seen succeed, read anew from its text."""
    replays, id = call.session.replays, call_id(known.started.op.number)
    value = load_result(known.result, call.compiled.spec.result_type)
    replays[id] = replays.get(id, 0) + 1
    call.done = Done(known.row, value, replayed=True)
    return value
