"""Hiding what a request brings, before anything of it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amends.canonical import Shape
from amends.check import lock_names
from amends.errors import NotStorable
from amends.model import Request
from amends.ops import Flight
from amends.rows import CallRow
from amends.secret import Secret
from amends.tool import Spec
from amends.veil import NO_SECRETS, Known, Veil

KNOWN_MAX: Final = 10_000
"""Spellings of hidden values that one tree remembers."""


RESULTS_MAX: Final = 10_000
"""Results that the ledger could not keep and that one tree remembers."""


class Memory:
    """What one process knows of one tree and the ledger does not: shared by its sessions, and gone with the last."""

    def __init__(self) -> None:
        self.known: dict[str, Secret] = {}
        self.live: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        """By call: results that could not be kept, or not whole. The compensation in this process gets them."""
        self.flights: dict[str, Flight] = {}
        """By call: what flows that close or recover the run have under way, in case one is stopped."""

    def copy(self) -> Memory:
        """Return what is known now, for whoever only tries something out: what that learns is nobody else's."""
        made = Memory()
        made.known, made.live, made.results = dict(self.known), dict(self.live), dict(self.results)
        return made

    def flight(self, row: CallRow) -> Flight:
        """Return a new flight for a call or a compensation that is about to be sent."""
        made = self.flights[row.id] = Flight(row)
        return made

    def keep_result(self, call_id: str, value: object) -> None:
        """Remember a result that the ledger does not have."""
        self.results[call_id] = value
        while len(self.results) > RESULTS_MAX:
            del self.results[next(iter(self.results))]

    def keep(self, known: Known) -> None:
        """Remember how hidden values are spelled."""
        self.known.update(known)
        while len(self.known) > KNOWN_MAX:
            del self.known[next(iter(self.known))]


def hide_args(
    veil: Veil, memory: Memory, request: Request, spec: Spec, *, places: tuple[str, ...], shape: Shape
) -> tuple[Mapping[str, Any], Known]:
    """The arguments as they are written down, and what no text may spell; refuses what could not be started later."""
    given = dict(request.args)
    shown, known = veil.hide(given, (request.tenant or "", spec.name), places=places, path="args", shape=shape)
    if shown is given:
        return request.args, NO_SECRETS
    memory.keep(known)
    if spec.is_staging and veil.vault is None:
        name = next(name for name in given if shown.get(name) is not given[name])
        raise NotStorable(
            f"args.{name} of {spec.name} is redacted, and {spec.name} is accepted for later: a worker that starts it "
            "would not have the value",
            path=f"args.{name}",
            hint="keep it encrypted with Runtime(encrypt=...), or pass a reference and look the value up in the body",
        )
    return shown, known


def hidden_locks(veil: Veil, request: Request, spec: Spec, known: Known) -> tuple[str, ...]:
    """The names of what the request must have to itself, in which a hidden value is a commitment."""
    about = (request.tenant or "", "lock")  # not the tool's: two tools that lock the same thing must meet
    return lock_names(spec, request, lambda name: veil.name(name, known, about))


def hidden_effect(veil: Veil, tenant: str, spec: Spec, effect: Mapping[str, Any]) -> Mapping[str, Any]:
    """An effect of the world as the ledger would name it: its hidden arguments by what stands for them."""
    if spec.redact is None:
        return effect
    about, places = (tenant, spec.name), spec.redact.places
    shown: Mapping[str, Any] = veil.hide(dict(effect), about, places=places, path="effect", shape=spec.anywhere)[0]
    return shown
