"""Arguments and conditions in the gateway's configuration: texts that refer to a call.

A text that is nothing but a path is replaced by the value there: ``"$args.path"``, ``"$result.entities.*.name"``. ``*``
stands for every item of a list. Inside a longer text a path is written in braces: ``"${server.trash}/${call.id}"``; a
name after ``|`` changes it: ``${args.path|name}`` is the last part of a path. ``$$`` is a dollar sign.

The roots are ``args``, ``result``, ``before``, ``answer`` (what a probe was told), ``item`` (of a call with ``each``),
``key``, ``call`` (``id``, ``key``) and ``server`` (the table ``vars`` of the server). A condition is a table with one of
the words in ``CONDITIONS``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from amends.errors import BadConfig

ROOTS: Final = ("args", "result", "before", "answer", "item", "key", "call", "server")
DEPTH_MAX: Final = 32
_PATH: Final = re.compile(r"\$([a-z]+)((?:\.[^.${}|]+)*)\Z")
_INSIDE: Final = re.compile(r"\$\$|\$\{([a-z]+)((?:\.[^.${}|]+)*)(?:\|([a-z]+))?\}")


class NotThere(LookupError):
    """A path leads to nothing."""


def _dots(path: str) -> list[str]:
    return [part for part in path.split(".") if part]


FILTERS: Final[Mapping[str, Callable[[str], str]]] = {
    "name": posixpath.basename,
    "parent": lambda path: posixpath.dirname(path) or ".",
    "table": lambda sql: (re.search(r"(?i)create\s+table\s+(?:if\s+not\s+exists\s+)?([a-z_]\w*)", sql) or ["", ""])[1],
    "flat": lambda path: path.strip("/").replace("/", "__"),
    "id": lambda text: (re.search(r"\bID: (\S+)", text) or ["", ""])[1],
}


def fill(value: Any, roots: Mapping[str, Any]) -> Any:
    """Return the value with every path in it replaced; raise ``NotThere``."""
    if isinstance(value, str):
        return _filled(value, roots)
    if isinstance(value, Mapping):
        return {name: fill(one, roots) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [fill(one, roots) for one in value]
    return value


def _filled(text: str, roots: Mapping[str, Any]) -> Any:
    whole = _PATH.match(text)
    if whole is not None:
        return at(roots, whole[1], _dots(whole[2]), text)

    def put(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        said = at(roots, found[1], _dots(found[2]), found[0])
        if isinstance(said, Mapping | list):
            raise NotThere(f"{found[0]} is not one word, and cannot stand inside a text")
        text = "" if said is None else str(said)
        return FILTERS[found[3]](text) if found[3] else text

    return _INSIDE.sub(put, text)


def at(roots: Mapping[str, Any], root: str, path: list[str], said: str) -> Any:
    """Return the value at a path; ``*`` collects from every item of a list. Raise ``NotThere``."""
    if root not in roots:
        raise NotThere(f"{said}: there is no {root} here")
    return _below(roots[root], path, said)


def _below(value: Any, path: list[str], said: str) -> Any:
    for place, part in enumerate(path):
        if part == "*":
            items = list(value.values()) if isinstance(value, Mapping) else value
            if not isinstance(items, list):
                raise NotThere(f"{said}: * stands for the items of a list, and there is none")
            return [_below(item, path[place + 1 :], said) for item in items]
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise NotThere(f"{said}: there is no {part!r}")
    return value


# ---- Conditions

EMPTY: Final = (None, "", False)


def _exists(value: Any, roots: Mapping[str, Any]) -> bool:
    try:
        return fill(value, roots) is not None
    except NotThere:
        return False


def _is_empty(value: Any, roots: Mapping[str, Any]) -> bool:
    try:
        found = fill(value, roots)
    except NotThere:
        return True
    return found in EMPTY or (isinstance(found, list | Mapping) and not found)


def _pair(value: Any, roots: Mapping[str, Any]) -> tuple[Any, Any]:
    left, right = value
    return fill(left, roots), fill(right, roots)


def _contains(value: Any, roots: Mapping[str, Any]) -> bool:
    where, what = _pair(value, roots)
    if isinstance(where, str):
        return all(str(one) in where for one in (what if isinstance(what, list) else [what]))
    if isinstance(what, list):
        return isinstance(where, list | Mapping) and all(one in where for one in what)
    return isinstance(where, list | Mapping) and what in where


def _matches(value: Any, roots: Mapping[str, Any]) -> bool:
    text, pattern = _pair(value, roots)
    return isinstance(text, str) and re.search(str(pattern), text) is not None


def _above(value: Any, roots: Mapping[str, Any]) -> bool:
    left, right = _pair(value, roots)
    return isinstance(left, int | float) and not isinstance(left, bool) and left > right


CONDITIONS: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], bool]]] = {
    "exists": _exists,
    "empty": _is_empty,
    "equals": lambda value, roots: bool(_pair(value, roots)[0] == _pair(value, roots)[1]),
    "contains": _contains,
    "matches": _matches,
    "above": _above,
    "not": lambda value, roots: not holds(value, roots),
    "all": lambda value, roots: all(holds(one, roots) for one in value),
    "any": lambda value, roots: any(holds(one, roots) for one in value),
}
PAIRS: Final = ("equals", "contains", "matches", "above")


def holds(condition: Mapping[str, Any], roots: Mapping[str, Any]) -> bool:
    """Return whether a condition holds; one about something that is not there does not (``NotThere`` is not raised)."""
    ((word, value),) = condition.items()
    try:
        return CONDITIONS[word](value, roots)
    except NotThere:
        return False


# ---- Checking what somebody wrote


def check(value: Any, where: str, roots: tuple[str, ...], *, depth: int = 0) -> None:
    """Raise ``BadConfig`` for a text with a path that can lead nowhere."""
    if depth > DEPTH_MAX:
        _refuse(where, "it is nested too deep")
    if isinstance(value, Mapping):
        for one in value.values():
            check(one, where, roots, depth=depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            check(one, where, roots, depth=depth + 1)
    elif isinstance(value, str):
        _check_text(value, where, roots)


def _check_text(text: str, where: str, roots: tuple[str, ...]) -> None:
    whole = _PATH.match(text)
    named = [(whole[1], "")] if whole else [(m[1], m[3] or "") for m in _INSIDE.finditer(text) if m[0] != "$$"]
    rest = "" if whole else _INSIDE.sub("", text)
    if "$" in rest:
        _refuse(where, f"{text!r} is no path: say $args.name, ${{args.name}} inside a text, or $$ for a dollar sign")
    for root, changed in named:
        if root not in roots:
            _refuse(where, f"{text!r}: there is no {root} here; a path begins with {', '.join('$' + r for r in roots)}")
        if changed and changed not in FILTERS:
            _refuse(where, f"{text!r}: |{changed} is unknown; there are {', '.join('|' + f for f in FILTERS)}")


def check_condition(condition: Any, where: str, roots: tuple[str, ...], *, depth: int = 0) -> None:
    """Raise ``BadConfig`` for a condition that means nothing."""
    if depth > DEPTH_MAX or not isinstance(condition, Mapping) or len(condition) != 1:
        _refuse(where, f"a condition is a table with one of {', '.join(CONDITIONS)}")
    ((word, value),) = condition.items()
    if word not in CONDITIONS:
        _refuse(where, f"{word!r} is no condition; there are {', '.join(CONDITIONS)}")
    if word == "not":
        check_condition(value, where, roots, depth=depth + 1)
    elif word in ("all", "any"):
        if not isinstance(value, list) or not value:
            _refuse(where, f"{word} takes a list of conditions")
        for one in value:
            check_condition(one, where, roots, depth=depth + 1)
    else:
        if word in PAIRS and (not isinstance(value, list) or len(value) != 2):
            _refuse(where, f"{word} takes a list of two: the value, and what to compare it with")
        if word == "matches" and isinstance(value[1], str):
            try:
                re.compile(value[1])
            except re.error as error:
                _refuse(where, f"{value[1]!r} is no regular expression: {error}")
            value = value[:1]
        check(value, where, roots, depth=depth + 1)


def _refuse(where: str, problem: str) -> None:
    raise BadConfig(f"{where}: {problem}", setting="gateway", origin=where)
