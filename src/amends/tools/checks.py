"""Checks of declarations; each refusal names the tool, the place and the cure.

Every function takes a declaration and returns the checked value, or raises ``BadDeclaration``.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NoReturn, get_args

from amends.budgets import costs_in
from amends.encoding.annotations import classes_below, problem_of, shape_of_args
from amends.encoding.secret import MASK, RedactionRules
from amends.errors import BadDeclaration, close_to
from amends.errors import Error as AmendsError
from amends.model import Kind, Order, Request, Retry, Scope
from amends.tools.signature import REPEAT, Signature, is_async_function, plain_function
from amends.tools.spec import At, Declaration, OnConflict, OnFailure, OnLock, Spec

_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LITERALS: Final[dict[str, Any]] = {
    "kind": Kind,
    "scope": Scope,
    "on_conflict": OnConflict,
    "on_failure": OnFailure,
    "on_lock": OnLock,
    "at": At,
    "order": Order,
}


def bad(declared: Declaration, problem: str) -> NoReturn:
    """Raise ``BadDeclaration`` for this declaration."""
    raise BadDeclaration(problem, tool=declared.name, where=declared.where)


# ---- Single options


def check_words(declared: Declaration) -> None:
    """Check names, literals, numbers and error types, each by itself."""
    name: Any = declared.name
    version: Any = declared.version
    if not isinstance(name, str) or not name or name == "<lambda>":
        bad(declared, f"a tool called {name!r} cannot be called by name: give it a name=")
    if not isinstance(version, str) or not version:
        bad(declared, f'{name}: version must be a string such as "1", not {version!r}')
    for option, literal in _LITERALS.items():
        value, allowed = getattr(declared, option), get_args(literal)
        if value is not None and value not in allowed:
            bad(declared, f"{name}: {option} must be {_either(allowed)}, not {value!r}")
    check_seconds(declared, "timeout", declared.timeout, positive=True)
    check_seconds(declared, "settle", declared.settle)
    check_seconds(declared, "remote", declared.remote)
    for error in listed(declared.doubt):
        if not is_error(error, BaseException):
            bad(declared, f"{name}: doubt takes exception classes, not {error!r}")
    for error in listed(declared.no_effect):
        if not is_error(error, Exception):
            bad(declared, f"{name}: no_effect takes exception classes, not {error!r}")
        lost = next((one for one in (TimeoutError, ConnectionError, AmendsError) if issubclass(one, error)), None)
        if lost is not None or issubclass(error, AmendsError):
            # A timeout is doubt, never failure: a class that includes one would hide a call that may have happened.
            what = "amends raises it" if issubclass(error, AmendsError) else f"it includes {lost.__name__}"  # type: ignore[union-attr]
            bad(
                declared,
                f"{name}: no_effect={error.__name__} is not certain: {what}; name narrower errors, or raise NoEffect",
            )
        for doubted in listed(declared.doubt):
            if issubclass(error, doubted) or issubclass(doubted, error):
                both = (
                    error.__name__ if error is doubted else f"{error.__name__} and {doubted.__name__}, which overlap,"
                )
                bad(declared, f"{name}: {both} cannot be in doubt= and in no_effect=; name narrower errors")


def check_seconds(declared: Declaration, option: str, value: Any, *, positive: bool = False) -> None:
    """Check that a time is a finite number of seconds; ``positive``: and not zero."""
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (positive and value == 0):
        sign = "positive" if positive else "zero or positive"
        bad(declared, f"{declared.name}: {option} must be a {sign} number of seconds, not {value!r}")


def check_rules(declared: Declaration) -> None:
    """Check the options that may be functions of the call: plain ones, since a decision cannot await anything."""
    for option in ("key", "needs_approval", "cost", "locks"):
        rule = getattr(declared, option)
        if callable(rule):
            _check_rule(declared, option, rule)
    approval: Any = declared.needs_approval
    if not callable(approval) and not isinstance(approval, bool):
        bad(declared, f"{declared.name}: needs_approval must be True, False or a function of the call")
    if not isinstance(declared.repeats, bool):
        bad(declared, f"{declared.name}: repeats must be True or False, not {declared.repeats!r}")
    if declared.locks is not None and not callable(declared.locks):
        bad(declared, f"{declared.name}: locks must be a function of the call that returns names")
    if declared.locks is None and declared.on_lock != "wait":
        bad(declared, f"{declared.name} has on_lock= but no locks: add locks=lambda call: [...]")
    if declared.cost is not None and not callable(declared.cost):
        try:
            costs_in(declared.cost)
        except ValueError as error:
            bad(declared, f"{declared.name}: cost must be a number, a Cost, or a function of the call: {error}")


def _check_rule(declared: Declaration, option: str, rule: Callable[..., Any]) -> None:
    if is_async_function(rule) or inspect.isasyncgenfunction(plain_function(rule)):
        bad(declared, f"{declared.name}: the {option} function is async; make it a plain def, nothing is awaited there")
    try:
        inspect.signature(rule).bind(object())
    except TypeError:
        bad(
            declared,
            f"{declared.name}: the {option} function gets one argument, the call; the tool's own are in call.args",
        )
    except ValueError:  # a builtin without a signature
        return


def check_listing(declared: Declaration) -> None:
    """Check ``list_effects``: it lists all effects of a tool, so there is no call whose arguments it could take."""
    listing: Any = declared.list_effects
    if listing is None:
        return
    if not callable(listing):
        bad(declared, f"{declared.name}: list_effects must be a function, not {listing!r}")
    for parameter in inspect.signature(listing).parameters.values():
        given = parameter.name == "tenant" and parameter.kind is not parameter.POSITIONAL_ONLY
        optional = parameter.default is not parameter.empty
        if not (given or optional or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)):
            bad(declared, f'{declared.name}: its list_effects takes "{parameter.name}"; it can take only: tenant')


LOCKS_MAX: Final = 32
LOCK_CHARS_MAX: Final = 200


def lock_names(spec: Spec, request: Request, hide: Callable[[str], str] | None = None) -> tuple[str, ...]:
    """Return the locks that this request needs: each name once, sorted. Raise before anything is recorded.

    ``hide``: redacts a name before it is used or shown.
    """
    if spec.locks is None:
        return ()
    given: Any = spec.locks(request)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        _bad_locks(spec, f"returned {type(given).__name__}; it must return a list of names, which may be empty")
    names = set()
    for name in given:
        name = hide(name) if hide is not None and isinstance(name, str) else name
        if not isinstance(name, str) or not 0 < len(name) <= LOCK_CHARS_MAX or not name.isprintable():
            shown = MASK if hide is not None and not isinstance(name, str) else str(name)[:40]
            _bad_locks(spec, f"returned {shown!r}; a name is a text of 1 to {LOCK_CHARS_MAX} printable characters")
        names.add(name)
        if len(names) > LOCKS_MAX:
            _bad_locks(spec, f"returned more than {LOCKS_MAX} names; lock what they have in common instead")
    return tuple(sorted(names))


def _bad_locks(spec: Spec, problem: str) -> NoReturn:
    raise BadDeclaration(f"the locks function of {spec.name} {problem}", tool=spec.name, where=spec.where)


def check_before(declared: Declaration, signature: Signature | None, kind: Kind) -> None:
    """Check that a ``before`` can be asked for by its name, and that there is something before which it is read."""
    if declared.before is None:
        return
    name = declared.name
    if kind == "read":
        bad(declared, f"{name} is a read, which changes nothing, and has a before: drop one of them")
    if declared.at == "commit":
        bad(
            declared,
            f"{name} starts in the transaction of the commit, so nothing can be read before it: drop at= or before=",
        )
    if signature is not None and BEFORE in signature.names:
        bad(declared, f'{name} has an argument "{BEFORE}" and a before: give the argument another name')


def check_setter(declared: Declaration, kind: Kind) -> None:
    """Check ``on_conflict="next"``: of a tool whose declared key is not all that it is called with."""
    if declared.on_conflict != "next":
        return
    name = declared.name
    if declared.key is None:
        bad(declared, f'{name}: on_conflict="next" needs a declared key: say what it sets, key="…"')
    if declared.scope == "ledger":
        bad(
            declared,
            f'{name}: on_conflict="next" and scope="ledger" exclude each other: what another run has set is no '
            'generation of this one; drop scope="ledger", and name what it sets in locks=',
        )
    if kind == "read":
        bad(declared, f'{name}: a read is never deduplicated, so on_conflict="next" has no meaning; leave it out')
    if declared.ignore == "rest":
        bad(declared, f'{name}: ignore="rest" ignores what on_conflict="next" tells apart; drop one of them')


BEFORE: Final = "before"
PUT: Final = "put"


def idempotence(declared: Declaration) -> tuple[bool, float | None, bool]:
    """Return whether the tool is idempotent, for how many seconds (None: for ever), and whether it sets a value."""
    value: Any = declared.idempotent
    if isinstance(value, bool):
        return value, None, False
    if value == PUT:
        if declared.locks is None:
            bad(
                declared,
                f'{declared.name}: idempotent="put" keeps others away from what it sets until a late start has landed: '
                "name that in locks=lambda call: [...]",
            )
        return True, None, True
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value) if isinstance(value, str) else None
    if found is None or float(found[1]) == 0:
        bad(
            declared,
            f'{declared.name}: idempotent must be True, False, "put" or a time ("90s", "30m", "24h", "7d"), '
            f"not {value!r}",
        )
    return True, float(found[1]) * _SECONDS[found[2]], False


def checked_retry(
    declared: Declaration,
    given: Retry | int | None,
    *,
    default: Retry,
    doubt: Sequence[type[BaseException]] = (),
    no_effect: Sequence[type[BaseException]] = (),
    is_repeatable: bool = False,
) -> Retry:
    """Return the retry with ``on`` as a tuple.

    ``default``: used if none was given. ``doubt``: errors of the tool that mean doubt; ``no_effect``: those that
    certainly do not. ``is_repeatable``: the tool is idempotent or probed, so that a timeout may be retried.
    """
    if given is None:
        return default
    retry: Any = Retry(attempts=given) if isinstance(given, int) and not isinstance(given, bool) else given
    if not isinstance(retry, Retry):
        bad(declared, f"{declared.name}: retry must be a number of starts or a Retry, not {given!r}")
    if retry.attempts < 1:
        bad(declared, f"{declared.name}: attempts counts starts, so it is at least 1, not {retry.attempts!r}")
    check_seconds(declared, "retry delay", retry.delay)
    check_seconds(declared, "retry max_delay", retry.max_delay)
    if not retry.factor > 0 or not 0 <= retry.jitter <= 1:
        bad(declared, f"{declared.name}: a retry's factor is above 0 and its jitter from 0 to 1")
    errors = listed(retry.on)
    for error in errors:
        if not (is_error(error, Exception) and issubclass(error, tuple(no_effect))):
            _check_certain(declared, error, doubt, is_repeatable=is_repeatable)
    return replace(retry, on=errors)


def _check_certain(
    declared: Declaration, error: Any, doubt: Sequence[type[BaseException]], *, is_repeatable: bool
) -> None:
    if not is_error(error, Exception):
        bad(declared, f"{declared.name}: Retry.on takes exception classes, not {error!r}")
    # Base classes such as Exception and OSError include the timeouts, and would retry a payment that may have happened.
    lossy: tuple[type[BaseException], ...] = (TimeoutError, ConnectionError, *doubt)
    lost = next((e for e in lossy if issubclass(error, e) or issubclass(e, error)), None)
    if lost is not None and not is_repeatable:
        includes = "" if error is lost else f" ({error.__name__} and {lost.__name__} overlap)"
        bad(
            declared,
            f"{declared.name}: Retry.on names errors that certainly had no effect, which is unknown after "
            f"{lost.__name__}{includes}: say idempotent=True, give it a probe, or name narrower errors",
        )


# ---- Kinds


def checked_kind(declared: Declaration, order: Order) -> Kind:
    """Return the kind, which may follow from the compensation; ``order`` is the mode that applies to this tool."""
    name, has_compensation = declared.name, declared.compensate is not None
    add = (
        f"add one with @{name}.compensate" if declared.fn is not None and declared.cls is None else "add its compensate"
    )
    if declared.kind is None and not has_compensation:
        bad(
            declared,
            f"{name} has neither a kind nor a compensation; say what it is: {add}, "
            'kind="read" if it changes nothing, kind="pivot" if it cannot be undone, or kind="retriable" if it may wait until '
            "nothing else can fail and must then succeed",
        )
    kind = declared.kind or "compensatable"
    if kind == "agent":
        _check_agent(declared)
        return kind
    if kind == "pivot" and has_compensation:
        bad(
            declared,
            f'{name} is a pivot and has a compensation: drop kind="pivot" if it can be undone, else the compensation',
        )
    if kind in ("read", "retriable") and has_compensation:
        bad(
            declared,
            f'{name} is {kind}, which is never undone, and has a compensation: drop kind="{kind}" or the compensation',
        )
    if kind == "compensatable" and not has_compensation and order == "strict":
        bad(declared, f'{name} says kind="compensatable" and has no compensation: {add}, or start with order="advise"')
    if kind != "pivot" and declared.at != "call":
        bad(declared, f'{name}: at="{declared.at}" is for pivots only; say kind="pivot", or leave at= out')
    if kind != "pivot" and declared.after:
        bad(declared, f'{name}: after= is for pivots only; say kind="pivot", or leave after= out')
    if kind == "read" and declared.scope == "ledger":
        bad(declared, f'{name}: a read is never deduplicated, so scope="ledger" has no meaning; leave it out')
    return kind


_OF_CALLS: Final = (
    "scope", "on_conflict", "on_failure", "at", "after", "retry", "timeout", "idempotent", "doubt", "no_effect",
    "settle", "remote", "cost", "locks", "on_lock", "redact", "compensate", "probe", "guard", "before", "list_effects",
)  # fmt: skip
"""The options that an agent cannot have: it is a child run, and these are about one call."""


def _check_agent(declared: Declaration) -> None:
    plain = Declaration(name="", where="")
    said = [name for name in _OF_CALLS if getattr(declared, name) != getattr(plain, name)]
    if said:
        bad(
            declared,
            f"{declared.name} is an agent, which is a child run and not a call: {said[0]}= belongs to the tools that it "
            'calls; leave it out, or leave out kind="agent"',
        )


def check_repeatable(declared: Declaration, kind: Kind, *, is_repeatable: bool) -> None:
    """Check that a retriable tool is idempotent or probed."""
    if kind == "retriable" and not is_repeatable:
        bad(
            declared,
            f"{declared.name} is retriable, so it is started again until it succeeds: say idempotent=True if the "
            f"destination deduplicates on current_call().key, or give it a probe",
        )


def check_after(spec: Spec, specs: Mapping[str, Spec]) -> None:
    """Check that ``after`` names only tools that can have succeeded before a pivot."""
    for name in spec.after:
        if name not in specs:
            bad(
                spec.declaration,
                f'{spec.name}: after= names "{name}", which is not a tool of this runtime{_guess(name, specs)}',
            )
        if name == spec.name or specs[name].kind in ("pivot", "retriable"):
            bad(
                spec.declaration,
                f"{spec.name}: after= names {name}, which is {specs[name].kind} and cannot come before a pivot",
            )


# ---- Arguments


def checked_signature(declared: Declaration) -> Signature | None:
    """Return the parameters of the body, all of which can be given by name."""
    signature = declared.signature
    if signature is None:
        return None
    try:
        parameters = signature.parameters
    except (ValueError, TypeError):
        bad(declared, f"the parameters of {declared.name} cannot be read; wrap it in a def with named arguments")
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            bad(
                declared,
                f"{declared.name} takes *{parameter.name}, which a model cannot give by name: take a list instead",
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            bad(
                declared,
                f"{declared.name}.{parameter.name} is positional-only, so a model cannot give it: remove the /",
            )
    if REPEAT in signature.names:
        bad(
            declared,
            f'{declared.name}: "{REPEAT}" is how a model asks amends for a repeat; give the argument another name',
        )
    return signature


def check_classes(declared: Declaration, signature: Signature | None) -> None:
    """Refuse unions whose members cannot be told apart, and class names for classes that no annotation has."""
    names: Any = declared.class_names
    if not isinstance(names, Mapping) or not all(
        isinstance(cls, type) and isinstance(name, str) and name for cls, name in names.items()
    ):
        bad(declared, f'{declared.name}: class_names maps classes to names, as in {{Client: "Customer"}}')
    if signature is None:
        return
    shape = signature.shape
    result = shape_of_args(
        {"return": signature.hints.get("return", Any)}, words=signature.local_names, names=declared.class_names
    )
    rest = [(f"**{signature.rest.name}", shape.value(None))] if signature.rest else []
    for where, place in (*((name, shape.value(name)) for name in signature.names), *rest, ("its result", result)):
        if problem := problem_of(place):
            said = where if place is result else f"{declared.name}.{where}"
            bad(declared, f"{declared.name}: {said}: {problem}")
    known = {member.cls for place in (shape, result) for _, member in classes_below(place)}
    if unknown := [cls for cls in names if cls not in known]:
        close = close_to(unknown[0].__name__, [cls.__name__ for cls in known])
        guess = f"; did you mean {close[0]}?" if close else ""
        bad(declared, f"{declared.name}: class_names has {unknown[0].__name__}, which no annotation names{guess}")


def has_argument(signature: Signature | None, name: str) -> bool:
    """Return whether a call of this tool can have an argument of this name."""
    return signature is None or signature.rest is not None or name in signature.names


def checked_fields(declared: Declaration, option: str, value: Any, signature: Signature | None) -> tuple[str, ...]:
    """Return names of arguments, checked; a single one may be given without a tuple."""
    names = listed(value)
    for name in names:
        if not isinstance(name, str):
            bad(declared, f"{declared.name}: {option} takes names of arguments, not {name!r}")
        if not has_argument(signature, name):
            known = signature.names if signature else ()
            has = f"{declared.name} has: {', '.join(known) or 'none'}"
            bad(
                declared, f'{declared.name}: {option} names "{name}", which is not an argument{meant(name, known, has)}'
            )
    return names


def checked_redact(
    declared: Declaration, signature: Signature | None, everywhere: RedactionRules
) -> RedactionRules | None:
    """Return what is redacted in calls of this tool: what it names itself, and what the runtime's patterns match."""
    places = listed(declared.redact)
    tops = [place.partition(".")[0] if isinstance(place, str) else place for place in places]
    checked_fields(declared, "redact", tops, signature)
    matched = [name for name in (signature.names if signature else ()) if everywhere.covers_name(name)]
    return everywhere.at(dict.fromkeys([*places, *matched])) or None


def check_recoverable(spec: Spec) -> None:
    """Refuse a tool whose recovery needs redacted values: the process that recovers a call does not have them."""
    hidden = {place.partition(".")[0] for place in (spec.redact.places if spec.redact else ())}
    cure = "keep it encrypted with Runtime(encrypt=...), or pass a reference and look the value up in the body"
    if hidden and spec.is_staging:
        bad(
            spec.declaration,
            f"{spec.name} is accepted for later and redacts {min(hidden)}: a worker that starts it after a crash "
            f"does not have the value; {cure}",
        )
    undo, probe = spec.compensate, spec.probe
    asked = {"probe": probe, "guard": spec.guard, "compensation": undo}
    if spec.is_staging:
        asked["before"] = spec.before
    asked["compensation's probe"] = None if undo is None else undo.probe
    for role, one in asked.items():
        for name in () if one is None else one.params:
            if name in hidden:
                bad(
                    spec.declaration,
                    f"{spec.name}: its {role} takes {name}, which is redacted and lost after a crash; take result or "
                    f"another argument, or {cure}",
                )


def checked_key(
    declared: Declaration, signature: Signature | None
) -> tuple[str, ...] | Callable[[Request], object] | None:
    """Return the key: names of arguments, a function, or None for all arguments."""
    if declared.key is None or callable(declared.key):
        return declared.key
    names = checked_fields(declared, "key", declared.key, signature)
    if not names:
        bad(declared, f"{declared.name}: an empty key makes all its calls one; leave key= out, or name arguments")
    return names


def checked_ignore(
    declared: Declaration, signature: Signature | None, key: tuple[str, ...] | Callable[[Request], object] | None
) -> tuple[str, ...] | Literal["rest"]:
    """Return the arguments that carry no intent."""
    if declared.ignore == "rest":
        if key is None:
            bad(
                declared,
                f'{declared.name}: ignore="rest" ignores what is not in the key; name the arguments of the key: key=…',
            )
        return "rest"
    names = checked_fields(declared, "ignore", declared.ignore, signature)
    if isinstance(key, tuple) and (both := sorted({*names} & {*key})):
        bad(
            declared, f"{declared.name}: {both[0]} is in key and in ignore; it either carries the intent or it does not"
        )
    return names


def listed(value: Any) -> tuple[Any, ...]:
    """Return one or many values as a tuple; a string is one value."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | type) else (value,)


def is_error(value: Any, base: type[BaseException]) -> bool:
    """Return whether this is an exception class derived from ``base``."""
    return isinstance(value, type) and issubclass(value, base)


def meant(name: str, known: Sequence[str], has: str) -> str:
    """Return the end of a message about an unknown name: which one was probably meant, and ``has``, which ones there are."""
    guess = _guess(name, known)
    return f"{guess} {has}" if guess else f"; {has}"


def _guess(name: str, known: Iterable[str]) -> str:
    close = close_to(name, known)
    return f'; did you mean "{close[0]}"?' if close else ""


def _either(words: Sequence[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)
