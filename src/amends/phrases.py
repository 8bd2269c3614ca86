"""Words that errors are made of: values, lists and the ordering law as a person or a model reads them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol, TypeGuard, TypeVar
from unicodedata import normalize

_log = logging.getLogger("amends")
T = TypeVar("T")

SHOWN_CHARS_MAX: Final = 200
"""No value is shown to a model longer than this."""


ERROR_CHARS_MAX: Final = 100_000
"""No more of an error's own text is ever looked at."""
NO_WORDS: Final = "(its message could not be read)"
CUT: Final = " [... the rest is not kept]"
"""Ends a text that was cut for the ledger: nobody takes a part for the whole."""


def clean(text: object) -> str:
    """Return a text that every ledger, log and terminal can take: no lone surrogate, no NUL."""
    if not issubclass(type(text), str):
        return _read(text)
    exact = str.__str__(text)  # a subclass may do anything with its own text
    if exact.isascii() and "\0" not in exact:
        return exact
    return exact.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def words_of(error: BaseException) -> str:
    """Return what an exception says, whatever its class does when it is asked: never raises, and has a limit."""
    return _read(error)


def _read(value: object) -> str:
    try:
        text = str.__getitem__(str(value), slice(0, ERROR_CHARS_MAX))
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:
        return NO_WORDS
    return clean(text)


def cut(text: str, chars_max: int) -> str:
    """Return the text, or as much of it as fits with a mark that there was more."""
    return text if len(text) <= chars_max else text[: chars_max - len(CUT)] + CUT


def class_name(cls: type) -> str:
    """Return ``module.Class``, past any metaclass that says something else or raises."""
    try:
        module = type.__dict__["__module__"].__get__(cls)
    except Exception:
        module = ""
    name = type.__dict__["__qualname__"].__get__(cls)
    return clean(f"{module}.{name}") if module and isinstance(module, str) else clean(name)


def type_name(error: BaseException) -> str:
    """Return the short name of an exception's class, past its metaclass."""
    return clean(type.__dict__["__name__"].__get__(type(error)))


def described(error: BaseException) -> str:
    """Return the class and the words of an exception in one line."""
    return f"{type_name(error)}: {words_of(error)}"


def note_on(error: BaseException, note: str) -> None:
    """Add a note to an exception; one that takes none (a frozen dataclass, a strange ``__notes__``) goes without."""
    try:
        error.add_note(note)
    except Exception:
        _log.info("%s", note)


def log_error(log: logging.Logger, level: int, words: str, error: BaseException) -> None:
    """Log an exception with its traceback, or with less where it cannot be shown."""
    try:
        log.log(level, "%s", words, exc_info=error)
    except Exception:
        log.log(level, "%s (%s)", words, described(error))


def is_a(error: object, *kinds: type[T]) -> TypeGuard[T]:
    """Return whether this is an instance of one of these classes by its real class, whatever it says of itself."""
    return issubclass(type(error), kinds)


def shown(value: object) -> str:
    """A value as a model sees it: JSON where possible, cut at a limit."""
    try:
        text = (
            value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, default=_named, separators=(",", ":"))
        )
    except (TypeError, ValueError):
        text = _read(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"


def _named(value: object) -> str:
    """An object with the name of its class: what pydantic writes for a model has none."""
    try:
        return repr(value) if hasattr(type(value), "model_fields") else _read(value)
    except Exception:  # a user's repr()
        return NO_WORDS


def plain(value: object) -> Any:
    """A fact as plain JSON data."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return plain_mapping(value, plain)
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    to_dict = getattr(value, "to_dict", None)
    return to_dict() if callable(to_dict) else str(value)


def plain_mapping(value: Mapping[Any, Any], plain: Callable[[Any], Any]) -> dict[str, Any]:
    """A mapping as a JSON object; where a key is no text, as ``{"$map": [[key, value], ..]}``: 1 and "1" stay apart."""
    if all(isinstance(key, str) for key in value):
        return {str(key): plain(one) for key, one in value.items()}
    return {"$map": [[plain(key), plain(one)] for key, one in value.items()]}


def listed(names: Sequence[str]) -> str:
    """One name, or several with "and"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


class OutOfOrder(Protocol):
    """The facts of a refusal by the ordering law."""

    tool: str
    law: str
    pivot: str | None
    missing: tuple[str, ...]
    unsettled: tuple[str, ...]
    allowed: tuple[str, ...]


def out_of_order(no: OutOfOrder) -> str:
    """Why the ordering law refuses a call, and what to call instead."""
    match no.law:
        case "pivot_early" if no.missing:
            first = no.missing[0]
            return (
                f"{no.tool} cannot be undone, so it comes last, and {listed(no.missing)} "
                f"{'has' if len(no.missing) == 1 else 'have'} not been done. "
                f"Call {first if len(no.missing) == 1 else 'them'} first, then {no.tool} again with the same arguments."
            )
        case "pivot_early":
            return (
                f"{no.tool} cannot be undone, so it comes last, and {listed(no.unsettled)} "
                f"{'has' if len(no.unsettled) == 1 else 'have'} no result yet. "
                f"Wait for {'it' if len(no.unsettled) == 1 else 'them'}, then call {no.tool} again with the same arguments."
            )
        case "pivot_twice":
            return (
                f"this task has already made its one irreversible call ({no.pivot}). "
                "Do not call it again; if a second one is needed, tell the user that it is a new task."
            )
        case "pivot_in_flight":
            return (
                f"{no.pivot} cannot be undone and has no result yet, so only reads may start. "
                f"Wait for it, then call {no.tool} again with the same arguments."
            )
        case _:
            return (
                f"{no.pivot} has happened and cannot be undone, so nothing that might have to be undone may start. "
                f"You may still call: {', '.join(no.allowed) or 'nothing'}."
            )


def what_to_call(no: OutOfOrder) -> str:
    """What a program does about a call that the ordering law refused."""
    match no.law:
        case "pivot_early" if no.missing:
            return f"call {listed(no.missing)} first, then {no.tool} again"
        case "pivot_early":
            return f"wait until {listed(no.unsettled)} is settled (rt.report shows why it is not), then call {no.tool} again"
        case "pivot_in_flight":
            return (
                f"wait until {no.pivot or 'the pivot'} is settled, then call {no.tool} again; reads may start meanwhile"
            )
        case _:
            return f"do {no.tool} in a run of its own, or in a child: with run.child(): ..."


NAME_CHARS_MAX: Final = 64
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


def name_for_models(name: str) -> str:
    """A tool's name as the APIs of models take it: letters, digits, ``_`` and ``-``, and not too many."""
    return _UNSAFE.sub("_", name)[:NAME_CHARS_MAX]


# ---- budgets ------------------------------------------------------------------------------

MONEY: Final = frozenset({"usd", "eur", "gbp", "chf", "jpy", "cny", "inr", "cad", "aud", "sek", "nok", "dkk", "pln"})
_WHOSE: Final = {
    "run": "for this task",
    "agent": "for this agent",
    "tenant": "for this customer",
    "tool": "for this tool",
    "ledger": "for everybody together",
}
_WHEN: Final = {"hour": " this hour", "day": " today", "month": " this month"}


class OverBudget(Protocol):
    """The facts of a refusal by a budget."""

    tool: str
    budget: Any
    asked: Decimal
    left: Decimal


def amount_words(amount: Decimal, unit: str) -> str:
    """An amount as a person or a model reads it: money has two places at least."""
    whole, _, rest = f"{amount:f}".partition(".")
    rest = rest.rstrip("0")
    if unit.lower() in MONEY:
        rest = rest.ljust(2, "0")
    return f"{whole}.{rest}" if rest else whole


def limit_words(limits: Iterable[tuple[Decimal, str, str, str | None]]) -> str:
    """What a person is asked about a call that budgets hold; of each its cap, unit, ``per`` and ``every``."""
    said = []
    for cap, unit, per, every in limits:
        of = "one call" if per == "call" else _WHOSE[per].removeprefix("for ") + _WHEN.get(every or "", "")
        said.append(f"{amount_words(cap, unit)} {unit} for {of}")
    return f"it would pass the limit of {' and of '.join(said)}"


def over_budget(no: OverBudget) -> str:
    """Why a budget refuses a call: what it needs, what is left of what, for whom."""
    budget = no.budget
    asked, left, cap = (amount_words(one, budget.unit) for one in (no.asked, no.left, Decimal(str(budget.cap))))
    if budget.per == "call":
        return f"{no.tool} needs {asked} {budget.unit} and one call may cost {cap}"
    whose = _WHOSE[budget.per] + _WHEN.get(budget.every or "", "")
    if budget.unit == "calls":
        of = "" if budget.tool == "*" else f" of {budget.tool}"
        return f"{no.tool} may not be called: {left} of {cap} calls{of} {'is' if left == '1' else 'are'} left {whose}"
    return f"{no.tool} needs {asked} {budget.unit} and {left} of {cap} is left {whose}"


def close_to(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The known name that was probably meant, if any."""
    from difflib import get_close_matches  # only who has mistyped needs it

    names = list(known)
    same = [one for one in names if folded(one) == folded(name)]  # but for case, Unicode form or separators
    return same[:1] or get_close_matches(name, names, n=1, cutoff=cutoff)


_SEPARATORS: Final = re.compile(r"[\s._:/\-\u2010-\u2015]+")
SLIP_CHARS_MIN: Final = 4
"""Shorter names differ by a letter because they are different names."""
TWO_SLIPS_CHARS_MIN: Final = 12
NAME_COMPARED_MAX: Final = 128


def folded(name: str) -> str:
    """A name without what people get wrong about names: case, Unicode form, separators."""
    return _SEPARATORS.sub("", normalize("NFKC", normalize("NFKC", name).casefold()))


def is_slip(name: str, known: str) -> bool:
    """Return whether a name is most likely a known one, mistyped: the same when folded, or a letter or two away.

    Names that differ in a number only (``tool1``, ``tool2``) are different names.
    """
    a, b = folded(name), folded(known)
    if a == b:
        return True
    if min(len(a), len(b)) < SLIP_CHARS_MIN or max(len(a), len(b)) > NAME_COMPARED_MAX:
        return False
    if re.sub(r"\d+", "", a) == re.sub(r"\d+", "", b):
        return False
    return _edits(a, b) <= (2 if min(len(a), len(b)) >= TWO_SLIPS_CHARS_MIN else 1)


def _edits(a: str, b: str) -> int:
    """How many letters must be added, removed, changed or swapped with their neighbour."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        row = [i]
        for j, right in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]
