"""Read what is there before a call: after its locks were taken, and before its first start is recorded."""

from __future__ import annotations

from typing import Final

from amends.encoding.dataclass import changed
from amends.encoding.payloads import round_trip
from amends.encoding.redaction import REDACTED
from amends.engine.retries import retry_delay, should_retry
from amends.engine.session import Session, body_args, call_of, hidden_values_of, recorded_error
from amends.errors import NotStorable, is_a
from amends.ledger.operations import DropCall
from amends.ledger.rows import CallRow
from amends.ledger.world import Ended, Invoke, Sleep
from amends.model import LOST
from amends.tools.checks import BEFORE
from amends.tools.spec import Spec, named_arguments

READ_TIMEOUT_S: Final = 30.0
"""How long a ``before`` may take if its tool has no timeout: nothing has started yet, but its locks are taken."""
UNREAD: Final = "before"
"""Why a call was dropped: what is there before it could not be read."""


def reads_first(spec: Spec | None, row: CallRow) -> bool:
    """Return whether what is there must be read before this call starts; later attempts keep what the first one read."""
    return spec is not None and spec.before is not None and not row.attempt


async def read_before(session: Session, spec: Spec, row: CallRow) -> str:
    """Return what is there before the call, as the ledger stores it. Raise the reader's own error if it cannot.

    A read that fails is repeated as the tool's ``retry`` says; then the call is given up.
    """
    asked = 0
    while True:
        asked += 1
        ended = await read_now(session, spec, row)
        error = ended.error or (TimeoutError(f"the before of {spec.name} did not answer") if ended.in_flight else None)
        if error is None:
            text, error = _stored(session, spec, row, ended.value)
            if error is None:
                return text
        tried = changed(row, {"attempt": row.attempt + asked})
        if is_a(error, NotStorable) or spec.kind == "retriable" or not should_retry(spec, tried, error):
            await give_up(session, spec, row, error)
            raise error
        await Sleep(await retry_delay(spec, tried))


async def give_up(session: Session, spec: Spec, row: CallRow, error: Exception | None = None) -> None:
    """Give up a call that was prepared and not started."""
    said = "" if error is None else recorded_error(session, row, error)
    lease, doom = session.lease, error is not None and spec.on_failure == "rollback"
    await DropCall(row.id, lease.owner, lease.epoch, UNREAD if error is not None else "not started", said, doom=doom)


async def read_now(session: Session, spec: Spec, row: CallRow) -> Ended:
    """Ask the tool's ``before`` about a call, once."""
    before = spec.before
    assert before is not None, "only a tool with a before is read"
    args = body_args(session, spec, row)
    call = call_of(row, spec, phase="before", args=args)
    return await Invoke(
        fn=before.fn,
        kwargs=named_arguments(before.params, args=args, result=LOST, call=call),
        is_async=before.is_async,
        timeout=READ_TIMEOUT_S if spec.timeout is None else spec.timeout,
        call=call,
        lease=session.lease,
        phase="before",
        run=session.run,
    )


def _stored(session: Session, spec: Spec, row: CallRow, value: object) -> tuple[str, Exception | None]:
    """Return what is stored of the value, or why nothing is: what a crash would lose cannot be put back."""
    assert spec.before is not None, "only a tool with a before is read"
    seen, stored = round_trip(value, spec.before.returns, limit=session.payload_bytes_max)
    if stored.text is None or stored.loss:
        why = stored.loss or "it cannot be written down"
        return "", NotStorable(
            f"the before of {spec.name} returned what the ledger cannot keep: {why}; nothing was started",
            path=BEFORE,
            hint="return plain data, or a class that its annotation names",
        )
    known = {**session.known, **hidden_values_of(session, row)}  # an earlier call may have set what is there
    if spec.redact is not None or known:
        stored = session.redactor.kept(stored, known, (row.tenant, row.tool))
        if (stored.loss or "").startswith(REDACTED):
            session.memory.keep_result(f"{BEFORE}:{row.id}", seen)
    assert stored.text is not None, "redaction replaces parts of a text"
    return stored.text, None
