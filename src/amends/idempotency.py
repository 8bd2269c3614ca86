"""The ``Idempotency-Key`` header: which key it carries, and what a response to it says about the effect.

By draft-ietf-httpapi-idempotency-key-header: 400, the key is missing and nothing was done; 409, a request with this
key is still in progress; 422, this key was used with another payload before (Stripe and Square answer 400). Servers use
these statuses for other things too, so a response counts only if it mentions idempotency or, with 409 and 422, has no
text at all.

MCP has no headers: there the key is in ``_meta`` of a request (``call_meta``), and a server that is guarded by amends says
in ``_meta`` and in structured content what it did not execute (``outcome_for_client``, ``check_result``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, TypeVar

from amends.drivers.context import current_call, current_run
from amends.encoding.dataclass import dataclass
from amends.engine.outcomes import error_in
from amends.errors import (
    DOUBT_WORDS,
    FOR_A_PERSON,
    OUTCOME,
    BadArguments,
    Busy,
    Error,
    Held,
    InDoubt,
    LedgerError,
    NoRun,
    RolledBack,
    RunBlocked,
    is_a,
)
from amends.model import Answer, Call, NoEffect
from amends.tools.scope import outside

HEADER: Final = "Idempotency-Key"
STATUSES: Final = frozenset({400, 409, 422})
"""Only for these statuses the body of a response is read."""
WAIT_S: Final = 10.0
"""How long a request that is still in progress at the destination is sent again."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 2.0
TEXT_CHARS_MAX: Final = 65_536
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_SPEAKS_OF_IT: Final = re.compile(r"idempoten", re.IGNORECASE)
_CAME_BEFORE: Final = re.compile(r"reus|differ|another|\bsame\b|already|match|conflict", re.IGNORECASE)
"""Words about an earlier request: a 400 with one of them does not mean that nothing was done."""

KEY_META: Final = "amends/key"
"""The key in ``_meta`` of an MCP request for the idempotency key of the client's call."""
CALLER_META: Final = "amends/caller"
"""The key in ``_meta`` of an MCP request for the client's run."""

T = TypeVar("T")
Meaning = Literal["", "missing", "running", "reused"]


class StillRunning(TimeoutError):
    """The destination was still working on an earlier request with this key, so the call is in doubt."""


class KeyReused(Exception):
    """The destination has seen this key with another payload, whose effect may stand, so the call is in doubt."""


class Sending:
    """One request that carries the key of the call whose body sends it."""

    def __init__(self, call: Call, wait_s: float) -> None:
        self.call, self.key = call, call.key
        self._until = time.monotonic() + wait_s
        self._pause_s = PAUSE_S_MIN

    def read(self, status: int, text: str, *, retry_after: str | None = None, again: bool = True) -> float | None:
        """Return None if the response is for the caller, or the seconds after which to send the request again.

        Raise ``NoEffect``, ``StillRunning`` or ``KeyReused`` if the response says so. ``retry_after``: the header of
        that name. ``again``: whether the request can be sent a second time.
        """
        match meaning(status, text):
            case "missing":
                raise NoEffect(f"{self.call.tool}: the destination saw no {HEADER} and did nothing ({status})")
            case "reused":
                raise KeyReused(
                    f"{self.call.tool}: the destination has seen the key of this call with another payload ({status}). "
                    "Either an earlier attempt sent something else, or the body sends two requests: give each its own key"
                )
            case "running":
                return self._again_in(retry_after, again=again)
        return None

    def _again_in(self, retry_after: str | None, *, again: bool) -> float:
        pause = self._pause_s if not (retry_after or "").isdigit() else float(retry_after or 0)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
        if not again or time.monotonic() + pause > self._until:
            raise StillRunning(f"{self.call.tool}: the destination is still working on the first request with this key")
        return pause


def sending(method: str, *, wait_s: float = WAIT_S) -> Sending | None:
    """Return the request that is about to be sent, or None for a read or a request outside a body or compensation."""
    if method.upper() in _SAFE:
        return None
    try:
        call = current_call()
    except NoRun:
        return None
    return None if call.phase in ("probe", "before") else Sending(call, wait_s)


# ---- The same over MCP


def call_meta() -> dict[str, str]:
    """Return what an MCP request that this body sends says in ``_meta``: the key of the call, and its run.

    A guarded server executes requests with one key at most once. Empty outside a body or compensation.
    """
    found = sending("POST")
    return {} if found is None else {KEY_META: found.key, CALLER_META: found.call.run_id}


def by_schema(schema: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as their JSON schema means them, so that the same request in other words is the same call.

    Defaults are filled in and numbers are numbers; left out are arguments that the schema excludes, and a null for one that
    may be left out and has no default.
    """
    from amends.tools.json_schema import fill  # only where it is asked for: it needs more than a first call does

    return fill(schema, args)


def check_arguments(tool: str, schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """Raise ``BadArguments`` if arguments cannot fit their JSON schema: one is missing, unknown, or of another type."""
    from amends.tools.json_schema import problems_of  # only where it is asked for, as above

    if found := problems_of(tool, schema, args):
        raise BadArguments(tool, problems=found)


def serving() -> AbstractContextManager[None]:
    """Leave the run of a client that asks a server in its own process: the server's run is not part of it.

    Except in a replay, which opens the runs of both again.
    """
    try:
        is_inside = not current_run().awaits_opening
    except NoRun:
        is_inside = False
    return outside() if is_inside else nullcontext()


def check_result(result: T) -> T:
    """Return the result of an MCP server, or raise what it stands for.

    ``ToolFailed`` for one with ``isError``, ``NoEffect`` if a guarded server refused the call, ``InDoubt`` if it has not
    executed it yet or does not know. A result that a body returns is checked anyway: this is for clients that throw
    away half of it.
    """
    try:
        call = current_call()
    except NoRun:
        call = None
    error = error_in(result, call)
    if error is not None:
        raise error
    return result


@dataclass(frozen=True, slots=True)
class ForClient:
    """What a guarded MCP server answers instead of a tool's own value."""

    text: str
    is_error: bool
    outcome: dict[str, Any]
    """For ``_meta`` and structured content; ``executed``: None if nobody knows."""

    @property
    def said(self) -> dict[str, Any]:
        """The outcome under its key."""
        return {OUTCOME: self.outcome}

    @property
    def is_tools_own(self) -> bool:
        """Whether the tool itself has failed, so that its own error is the answer."""
        return self.outcome["status"] == "failed" and self.outcome["executed"] is False

    @property
    def is_executed(self) -> bool:
        """Whether the call was executed, so that its result is one."""
        return self.outcome["executed"] is True


def outcome_for_client(
    tool: str, answer: Answer | None, failed: Error | None, *, run_id: str | None, stays: bool
) -> ForClient:
    """Return what a guarded server says about a request.

    ``answer``: that of the call, if it came so far. ``failed``: why the run could not be opened or closed. ``stays``: the
    run goes on after this request, and with it what is staged.
    """
    error: Exception | None
    if answer is None or (failed is not None and answer.status in ("done", "replayed", "staged")):
        assert failed is not None, "a request has an answer or an error"
        status, executed = _of_failed(failed, started=answer is not None)
        text, is_error, error = _words(tool, failed), True, failed
    else:
        status, text, is_error, error = answer.status, answer.text, answer.is_error, answer.error
        executed = {"done": True, "replayed": True, "staged": not stays, "in_doubt": None}.get(status, False)
        if is_a(error, Busy, LedgerError, RunBlocked, RolledBack):
            status, executed = _of_failed(error, started=True)
            text = _words(tool, error)
    call = getattr(error, "call", None) if answer is None or answer.call is None else answer.call
    approval = getattr(getattr(error, "approval", None), "id", None)
    facts = {"run": run_id, "call": getattr(call, "id", None), "approval": approval}
    said = {"status": status, "executed": executed, "tool": tool, "text": text}
    return ForClient(text, is_error, said | {name: value for name, value in facts.items() if value})


def _of_failed(error: Error, *, started: bool) -> tuple[str, bool | None]:
    if is_a(error, RolledBack) and getattr(getattr(error, "report", None), "state", "") == "rolled_back":
        return "failed", False
    if is_a(error, InDoubt, RunBlocked):
        return "in_doubt", None
    if is_a(error, Held):
        return "held", False
    return ("refused", False) if not started and not is_a(error, Busy, LedgerError, RolledBack) else ("failed", None)


def _words(tool: str, error: Error) -> str:
    """Return the error for a model. Of a doubt it is told each time it asks, and not only the first time."""
    if is_a(error, RunBlocked) and error.doubts and not error.residue:
        return f"{tool} was sent but {DOUBT_WORDS}. Do not call it again. {FOR_A_PERSON}"
    return error.for_model()


# ---- What a response says


def meaning(status: int, text: str) -> Meaning:
    """Return what a response says about the idempotency key; empty if it is about something else."""
    if status not in STATUSES:
        return ""
    says_so = _SPEAKS_OF_IT.search(text[:TEXT_CHARS_MAX]) is not None
    if status == 400:
        if not says_so:
            return ""
        return "reused" if _CAME_BEFORE.search(text[:TEXT_CHARS_MAX]) else "missing"
    if not says_so and text.strip():
        return ""
    return "running" if status == 409 else "reused"
