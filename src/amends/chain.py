"""How the events of a run tree hang together: each names its number, its moment, what it says, and the one before it.

A tree has one owner and one lock, so its events have one order, and a chain of hashes over that order says that none
of them was changed, left out, put in or moved. What an event says is hashed where it is made; a database only puts
texts together and hashes them, so that nothing arbitrary is ever spelled by two programs in two ways.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Final

from amends.plain import digest

GENESIS: Final = "0" * 64
"""What the first event of a tree has in the place of the one before it."""
MICROS: Final = 1e6
TEXTS_MAX: Final = 1024
"""Beginnings of events that are kept: runs that a process is at work on, and ways to move."""


def micros(at: float) -> int:
    """A moment in whole microseconds, halves to the even one: as every database of ours rounds."""
    return round(at * MICROS)


def moment(at: float) -> float:
    """The time that an event has: whole microseconds, so that no bit of it can change without its hash."""
    return round(at * MICROS) / MICROS


def body_of(
    root: str,
    run: str,
    run_id: str,
    tenant: str,
    call: str,
    what: str,
    frm: str,
    to_state: str,
    by_whom: str,
    epoch: int,
    facts: str,
) -> str:
    """The digest of what an event says. Not of its place in the ledger: a run that is loaded elsewhere gets another."""
    # One text for all parts, as ``digest`` writes them; what many events of a run have in common is written once.
    whose, moved = _whose(root, run, run_id, tenant), _moved(what, frm, to_state, by_whom, epoch)
    text = f"{whose}str{len(call)}:{call}{moved}str{len(facts)}:{facts}"
    if text.isascii() and "\x00" not in text:
        return sha256(text.encode("ascii")).hexdigest()
    parts = (root, run, run_id, tenant, call, what, frm, to_state, by_whom, str(epoch), facts)
    return digest(*map(storable, parts))


@lru_cache(maxsize=TEXTS_MAX)
def _whose(root: str, run: str, run_id: str, tenant: str) -> str:
    return f"str{len(root)}:{root}str{len(run)}:{run}str{len(run_id)}:{run_id}str{len(tenant)}:{tenant}"


@lru_cache(maxsize=TEXTS_MAX)
def _moved(what: str, frm: str, to_state: str, by_whom: str, epoch: int) -> str:
    moved = f"str{len(what)}:{what}str{len(frm)}:{frm}str{len(to_state)}:{to_state}"
    return f"{moved}str{len(by_whom)}:{by_whom}str{len(str(epoch))}:{epoch}"


def link(prev: str, n: int, at: float, body: str) -> str:
    """The hash of the event number ``n`` of a tree, after the one whose hash is ``prev``."""
    return sha256(f"{prev}:{n}:{round(at * MICROS)}:{body}".encode("utf-8", "surrogatepass")).hexdigest()


def storable(text: str) -> str:
    """The text without what not every database can hold: NUL is shown as ␀, half a character as ?.

    Hashed like this, an event has the same hash in every ledger.
    """
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def proof(text: str) -> str:
    """What an event says of a payload that stands in a row: its digest, by which a change of it shows."""
    if "\x00" not in text:
        try:
            return sha256(text.encode("utf-8")).hexdigest()
        except UnicodeEncodeError:
            pass
    return sha256(storable(text).encode("utf-8")).hexdigest()


def bound(*parts: str | int | float | None) -> str:
    """What an event says of the columns of a row that never change again: one digest of all of them."""
    text = ascii(parts)
    if "\\" in text:
        text = ascii(tuple(storable(part) if isinstance(part, str) else part for part in parts))
    return sha256(text.encode("ascii")).hexdigest()
