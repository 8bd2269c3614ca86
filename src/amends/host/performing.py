"""Describe tools to a service, and perform the work that it hands out: for workers in other processes.

The ledger is the service's: nothing is recorded here. A body finds its call as always (``current_call``).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from amends.encoding.annotations import adapter
from amends.encoding.dataclass import dataclass
from amends.encoding.payloads import decode
from amends.engine.outcomes import judge
from amends.errors import BadArguments, BadDeclaration, UsageError, words_of
from amends.host.host import Host, View
from amends.ledger.world import Ended, Invoke
from amends.model import LOST, Absent, Call, Happened, NoEffect, Unknown
from amends.tools.signature import admits_none
from amends.tools.spec import CompensationSpec, ProbeSpec, Spec, named_arguments

log = logging.getLogger("amends")
WorkPhase = Literal["execute", "compensate", "probe"]
PROBE_TIMEOUT_S = 30.0
"""How long a probe may take, as in the engine."""


# ---- Describing


def declarations(host: Host, _view: View, *tools: str, lease: float = 30.0) -> list[dict[str, Any]]:
    """Return what a service has to know of these tools, or of all, so that this process can perform them as a worker.

    ``lease``: seconds without a sign of the worker after which a piece of work is in doubt. Raises ``BadDeclaration``
    for an option that would not hold there, because it is a function of this process.
    """
    return [_declared(_spec(host, name), lease) for name in tools or tuple(host.specs)]


def _declared(spec: Spec, lease_s: float) -> dict[str, Any]:
    if found := list(_not_served(spec)):
        raise BadDeclaration(
            f"{spec.name} cannot be performed by a worker with {', '.join(found)}: the service decides before it hands work"
            " out, and does not have this process's functions",
            tool=spec.name,
            where=spec.where,
            hint="leave the option out, or declare the tool in the service's own process",
        )
    declared, compensation = spec.declaration, spec.compensate
    said: dict[str, Any] = {
        "name": spec.name,
        "kind": spec.kind,
        "description": spec.description,
        "parameters": spec.schema(),
        "version": spec.version,
        "idempotent": declared.idempotent,
        "needs_approval": spec.needs_approval is True,
        "settle": float(spec.settle),
        "lease": lease_s,
        "probe": spec.probe is not None,
    }
    if spec.key is not None:
        said["key"] = list(spec.key)  # type: ignore[arg-type]  # a function was refused above
    if spec.ignore:
        said["ignore"] = list(spec.ignore)
    if spec.retry_declared:
        said["attempts"] = spec.retry.attempts
    if compensation is not None:
        # A result that the function can do without is asked for all the same, unless it may run although there is none.
        takes_result = compensation.needs_result if compensation.absent_ok else "result" in compensation.params
        said["compensate"] = {
            "needs_result": takes_result,
            "idempotent": compensation.idempotent,
            "absent_ok": compensation.absent_ok,
            "wins": compensation.wins,
            "attempts": compensation.retry.attempts,
        }
    return said


def _not_served(spec: Spec) -> Iterator[str]:
    """Yield the options of a tool that would have no effect in the service."""
    declared, compensation = spec.declaration, spec.compensate
    refused = {
        "kind=agent": spec.kind == "agent",
        "a key function": callable(spec.key),
        'ignore="rest"': spec.ignore == "rest",
        "needs_approval as a function": callable(spec.needs_approval),
        "scope": spec.scope != "run",
        "on_conflict": spec.on_conflict != "raise",
        "on_failure": spec.on_failure != "raise",
        "at": spec.at != "call",
        "after": bool(spec.after),
        "cost": spec.cost is not None,
        "locks": spec.locks is not None,
        "redact": bool(declared.redact),
        "order": spec.order is not None,
        "repeats=False": not spec.repeats,
        "guard": spec.guard is not None,
        "before": spec.before is not None,
        "retry(on=...)": bool(spec.retry.on),
        'compensate(idempotent="put")': compensation is not None and compensation.put,
        "compensate(probe=...)": compensation is not None and compensation.probe is not None,
        "no body": spec.fn is None,
    }
    return (name for name, is_refused in refused.items() if is_refused)


# ---- Performing


@dataclass(frozen=True, slots=True)
class Performed:
    """What became of a piece of work, as a worker reports it."""

    how: Literal["succeed", "no_effect", "doubt", "raised"]
    result: Any = None
    """Plain JSON data; of a probe, its answer."""
    error: str = ""


async def perform(
    host: Host,
    _view: View,
    tool: str,
    args: Mapping[str, Any],
    *,
    key: str,
    phase: WorkPhase = "execute",
    attempt: int = 1,
    call_id: str = "",
    run_id: str = "",
    result: object = LOST,
) -> Performed:
    """Perform one phase of a call that another process's ledger records, and return what to report. Record nothing.

    ``args``: plain JSON data, bound as a model's are. ``key``, ``attempt``, ``call_id``, ``run_id``: of the piece of
    work; ``current_call`` has them. ``result``: of a compensation, what the call returned. Raises nothing that the
    tool's own code raises.
    """
    spec = _spec(host, tool)
    try:
        bound = spec.bind_json(args)
    except BadArguments as error:
        return Performed("no_effect", error=words_of(error))
    call = Call(
        run_id=run_id, tool=tool, version=spec.version, args=bound, id=call_id, key=key, kind=spec.kind,
        attempt=attempt, phase=phase,
    )  # fmt: skip
    if phase == "execute":
        assert spec.fn is not None, "a tool without a body was refused"
        ended = await Invoke(spec.fn, bound, spec.is_async, spec.timeout, call, None, phase)
        return _told(spec, ended, is_body=True)
    asked = spec.compensate if phase == "compensate" else spec.probe
    if asked is None:
        return Performed("no_effect", error=f"{tool} has no {phase} here")
    if why := _lacks(spec, asked, result):
        return Performed("no_effect", error=why)
    kwargs = named_arguments(asked.params, args=bound, result=_read(spec, asked, result), call=call)
    timeout = asked.timeout if isinstance(asked, CompensationSpec) else PROBE_TIMEOUT_S
    ended = await Invoke(asked.fn, kwargs, asked.is_async, timeout, call, None, phase, probes=phase == "probe")
    return _told(spec, ended, is_body=False) if phase == "compensate" else _probed(ended)


def _lacks(spec: Spec, asked: CompensationSpec | ProbeSpec, result: object) -> str:
    """Return why a compensation cannot be started: the result that it needs was lost on the way."""
    if not isinstance(asked, CompensationSpec) or not asked.needs_result:
        return ""
    if result is LOST or (result is None and not admits_none(spec.result_type)):
        return f"the compensation of {spec.name} needs the result of the call, which could not be kept"
    return ""


def _read(spec: Spec, asked: CompensationSpec | ProbeSpec, result: object) -> object:
    if result is LOST:
        return LOST
    known = spec.result_type if asked.result_type is Any else asked.result_type
    return decode(json.dumps(result), known)


def _told(spec: Spec, ended: Ended, *, is_body: bool) -> Performed:
    if ended.in_flight:
        return Performed("doubt", error="its timeout has passed, and it may still take effect")
    if ended.error is None:
        return Performed("succeed", _written(spec, ended.value) if is_body else None)
    verdict = judge(spec, ended.error, around=ended.around, is_body=is_body).verdict
    how: Mapping[str, Any] = {"certain": "no_effect", "ordinary": "raised", "doubt": "doubt"}
    return Performed(how[verdict], error=_described(ended.error))


def _probed(ended: Ended) -> Performed:
    value = ended.value() if ended.value is Absent or ended.value is Unknown else ended.value
    if ended.in_flight or ended.error is not None or not isinstance(value, Happened | Absent | Unknown):
        why = "it took too long" if ended.in_flight else "" if ended.error is None else _described(ended.error)
        return Performed("succeed", Unknown(why or "the probe gave no answer").to_dict())
    if isinstance(value, Happened) and value.result is not LOST:
        return Performed("succeed", {"answer": "happened", "result": _plain(value.result, Any)})
    return Performed("succeed", value.to_dict())


def _described(error: BaseException) -> str:
    words = words_of(error)
    return words if isinstance(error, NoEffect) else f"{type(error).__name__}: {words}"


def _written(spec: Spec, value: object) -> Any:
    """Return a result as plain JSON data; None if it cannot be said so: that the call happened is reported all the same."""
    try:
        return _plain(value, spec.result_type)
    except Exception as error:
        log.warning(
            "the result of %s cannot be sent to the service (%s): it is reported as done without a result",
            spec.name,
            type(error).__name__,  # not the value: it may be a secret
        )
        return None


def _plain(value: object, annotation: Any) -> Any:
    try:
        made = adapter(annotation).dump_python(value, mode="json", by_alias=False, warnings="error")
    except Exception:  # it is not what the annotation says
        made = adapter(Any).dump_python(value, mode="json")
    json.dumps(made, allow_nan=False)
    return made


def _spec(host: Host, name: str) -> Spec:
    found = host.find(name)
    if found is None:
        raise UsageError(f"this process has no tool {name!r}", hint="give it to the worker: client.worker([...])")
    return found
