"""Compile the tools whose calls may be plain: code for the exact types of one signature.

A compiled tool binds its arguments, writes their stored and their canonical text, and computes key and digests, all in one
function made for it. A tool that lives elsewhere has no signature: its arguments are written by the names that come. All
texts are byte for byte those of ``amends.encoding.canonical``, the digests those of ``engine/keys.py``. Whatever cannot be done
so (another type, a long text, a number that JSON readers would round, a missing argument) is left to the general path, which is
the only one that refuses arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from inspect import Parameter
from inspect import Signature as Inspected
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

from amends.encoding.canonical import CHARS_MAX, PACKS, SAFE_INT, float_texts, head, plain_texts, quoted
from amends.encoding.chain import storable
from amends.ledger.plain import PlainTool
from amends.tools.signature import REPEAT
from amends.tools.spec import Spec

Bound: TypeAlias = tuple[dict[str, Any], str, bytes, bytes, bytes]
"""Arguments by name, their stored text, and canonical texts as parts of digests: what names the call, what it means, all
arguments."""
SCALARS: Final = (str, int, float, bool, NoneType)
EXACT: Final = frozenset(PACKS)
"""Types of results that are returned as they are, if the annotation names them."""
Kinds: TypeAlias = Mapping[type, "Kinds | None"]
"""Types of values, with the types of their items; None: any items."""


class Compiled:
    """One tool of one runtime, ready for plain calls."""

    __slots__ = ("bind", "digest_head", "flat_kinds", "fn", "is_async", "result_kinds", "spec", "tool")

    def __init__(self, spec: Spec, tool: PlainTool, bind: Callable[..., Bound | None]) -> None:
        assert spec.fn is not None, "a compiled tool has a body"
        self.spec, self.tool, self.bind = spec, tool, bind
        self.fn, self.is_async = spec.fn, spec.is_async
        self.digest_head = head("digest", spec.name, spec.version)
        self.result_kinds = tool.result_kinds = result_kinds(spec.result_type)
        """The types of plain results that need no validation; None: any."""
        self.flat_kinds = flat_kinds(self.result_kinds)
        """The same for the values of a dict."""


def compiled(spec: Spec, *, advise: bool) -> Compiled | None:
    """Return the tool, compiled; None if its calls are never plain."""
    bind = None if not _may_be_plain(spec) else _open_binder(spec) if spec.signature is None else _named_binder(spec)
    if bind is None:
        return None
    tool = PlainTool(
        spec.name, spec.version, spec.kind, int(spec.declared_key), int(spec.compensate is not None),
        on_conflict=spec.on_conflict, advise=advise,
    )  # fmt: skip
    return Compiled(spec, tool, bind)


def _may_be_plain(spec: Spec) -> bool:
    """Return whether nothing in the declaration needs the general path."""
    if spec.fn is None or spec.kind not in ("compensatable", "read"):
        return False
    return (
        spec.scope == "run"
        and spec.before is None
        and spec.on_conflict != "next"
        and not spec.put
        and spec.at == "call"
        and not spec.needs_approval
        and spec.cost is None
        and spec.locks is None
        and spec.redact is None
        and spec.timeout is None
        and not spec.remote
        and not callable(spec.key)
        and storable(spec.name) == spec.name  # its facts are made again from a column, which may hold another text
    )


def _scalars(hint: Any) -> tuple[type, ...]:
    """Return the exact types that an annotation names; none if it names others."""
    if hint is Any:
        return SCALARS
    hints = get_args(hint) if get_origin(hint) in (Union, UnionType) else (NoneType if hint is None else hint,)
    return tuple(hints) if all(one in SCALARS for one in hints) else ()


def _intent(spec: Spec, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments that carry intent, as ``Spec.intent`` does."""
    if spec.ignore == "rest":
        return tuple(name for name in spec.key if name in names) if isinstance(spec.key, tuple) else ()
    return tuple(name for name in names if name not in spec.ignore)


# ---- Tools that live elsewhere


def _open_binder(spec: Spec) -> Callable[..., Bound | None]:
    """Return the function that binds the arguments of a tool without a signature; None for what is not plain."""
    key = spec.key
    assert key is None or isinstance(key, tuple), "a key function is not compiled"

    def bind(**args: Any) -> Bound | None:
        # No list or object: a body could change it, and the general path makes a copy for each attempt.
        texts = plain_texts(args, 1)
        if texts is None or len(texts[0]) > CHARS_MAX or REPEAT in args:
            return None
        whole = meaning = part(texts[1])
        if spec.ignore:
            intent = plain_texts(spec.intent(args))
            if intent is None:
                return None
            meaning = part(intent[1])
        if key is None:
            return args, texts[0], meaning, meaning, whole
        if not args.keys() >= set(key):
            return None
        named = plain_texts({name: args[name] for name in key})
        return None if named is None else (args, texts[0], part(named[1]), meaning, whole)

    return bind


# ---- The code

# Names of the generated code begin with two underscores where an argument could have the same name.


def _named_binder(spec: Spec) -> Callable[..., Bound | None] | None:
    """Return the function that binds the arguments of a tool with a signature; None if its calls are never plain."""
    assert spec.signature is not None, "the others take what comes"
    parameters, hints = spec.signature.parameters, spec.signature.hints
    kinds = {one.name: _scalars(hints.get(one.name, Any)) for one in parameters}
    takes = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    if not all(kinds.values()) or not all(one.kind in takes and one.name.isascii() for one in parameters):
        return None
    kept = _intent(spec, tuple(kinds))
    named = kept if spec.key is None else spec.key
    assert not callable(named), "a key function is not compiled"
    if not set(named) <= kinds.keys():
        return None
    return _binder(parameters, kinds, named=frozenset(named), kept=frozenset(kept))


def _binder(
    parameters: tuple[Parameter, ...],
    kinds: Mapping[str, tuple[type, ...]],
    *,
    named: frozenset[str],
    kept: frozenset[str],
) -> Callable[..., Bound | None]:
    """Return the function that binds arguments; it returns None, or raises ``TypeError``, for what is not plain."""
    known: dict[str, Any] = {"__q": quoted, "__texts": plain_texts, "__float": float_texts, "__part": part}
    places = {name: number for number, name in enumerate(kinds)}
    given: list[str] = []
    for number, one in enumerate(parameters):
        if one.kind is one.KEYWORD_ONLY and "*" not in given:
            given.append("*")
        if one.default is one.empty:
            given.append(one.name)
        else:
            known[f"__d{number}"] = one.default
            given.append(f"{one.name}=__d{number}")
    lines = [f"def bind({', '.join(given)}):"]
    differs: set[str] = set()  # whose canonical text may differ from the stored one
    for name, place in places.items():
        lines += _writing(name, place, kinds[name])
        if str in kinds[name] or float in kinds[name]:
            differs.add(name)
    stored = _object(list(places), places, "s")
    lines.append(f"    __s = {stored}")
    lines.append(f"    if len(__s) > {CHARS_MAX}: return None")
    same = not differs and list(places) == sorted(places)
    lines += _parting("__m", "__s" if same else _object(sorted(places), places, "m", differs))
    for target, wanted in (("__k", named), ("__i", kept)):
        if wanted == frozenset(places):
            lines.append(f"    {target} = __m")
        else:
            lines += _parting(target, _object(sorted(wanted), places, "m", differs))
    arguments = ", ".join(f"{json.dumps(name)}: {name}" for name in places)
    lines.append(f"    return {{{arguments}}}, __s, __k, __i, __m")
    exec("\n".join(lines), known)
    made: Callable[..., Bound | None] = known["bind"]
    return made


def _parting(target: str, text: str) -> list[str]:
    """Return the lines that set ``target`` to ``part`` of a text; its usual case is written out, which saves the call."""
    return [
        f"    __t = {text}",
        f"    {target} = f'str{{len(__t)}}:{{__t}}'.encode('ascii') if __t.isascii() else __part(__t)",
    ]


def _object(names: list[str], places: Mapping[str, int], which: str, differs: set[str] | None = None) -> str:
    """Return the expression of a JSON object of these arguments, from their written values."""
    if not names:
        return "'{}'"
    parts = [
        f'"{name}":{{__{"s" if differs is not None and name not in differs else which}{places[name]}}}'
        for name in names
    ]
    return "f'{{" + ",".join(parts) + "}}'"


def _writing(name: str, place: int, kinds: tuple[type, ...]) -> list[str]:
    """Return the lines that write one argument as ``__s`` and, where it may differ, ``__m`` with its place."""
    s, m = f"__s{place}", f"__m{place}"
    if len(kinds) > 3:
        return [f"    __t = __texts({name}, 0)", "    if __t is None: return None", f"    {s}, {m} = __t"]
    lines: list[str] = []
    test = "if"
    for kind in sorted(kinds, key=lambda one: one is NoneType):
        if kind is NoneType:
            lines.append(f"    {test} {name} is None: {s} = {m} = 'null'")
        elif kind is str:
            lines.append(f"    {test} type({name}) is str:")
            lines.append(f"        if {name}.isascii(): {s} = {m} = __q({name})")
            lines += ["        else:", f"            __t = __texts({name})", "            if __t is None: return None"]
            lines.append(f"            {s}, {m} = __t")
        elif kind is float:
            lines += [f"    {test} type({name}) is float:", f"        __t = __float({name})"]
            lines += ["        if __t is None: return None", f"        {s}, {m} = __t"]
        elif kind is bool:
            lines.append(f"    {test} type({name}) is bool: {s} = {m} = 'true' if {name} else 'false'")
        else:
            lines.append(
                f"    {test} type({name}) is int and -{SAFE_INT} <= {name} <= {SAFE_INT}: {s} = {m} = str({name})"
            )
        test = "elif"
    return [*lines, "    else: return None"]


# ---- Digests


def part(text: str) -> bytes:
    """Return a text as a part of a digest, as ``amends.encoding.canonical.digest`` writes it."""
    if text.isascii():
        return f"str{len(text)}:{text}".encode("ascii")
    data = text.encode("utf-8", "surrogatepass")
    return b"str%d:%b" % (len(data), data)


IDENT: Final = head("ident")
NOT_AGAIN: Final = part("")


def key_head(tenant: str, root: str, tool: str) -> bytes:
    """Return the beginning of the text whose digest is the key of a call of this tool in this run."""
    return head("call", tenant, root, tool)


def digests(
    key_head: bytes, digest_head: bytes, named: bytes, meaning: bytes, whole: bytes
) -> tuple[bytes, bytes, bytes]:
    """Return key, identity and digest of a call, from the parts that ``Compiled.bind`` returned."""
    return (
        sha256(key_head + named + NOT_AGAIN).digest(),
        sha256(IDENT + meaning).digest(),
        sha256(digest_head + whole).digest(),
    )


# ---- Results


def result_kinds(annotation: Any) -> Kinds | None:
    """Return the types of plain results that a caller gets as they are under this annotation; None: any type.

    Data of exactly the annotated types is what pydantic would return for it; anything else is left to pydantic.
    """
    if annotation is Any or annotation is Inspected.empty or isinstance(annotation, str):
        return None
    hints = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds: dict[type, Kinds | None] = {}
    for hint in hints:
        kind, items = _container(hint)
        if kind not in EXACT or kind in kinds or items == {}:
            return {}
        kinds[kind] = items
    return kinds


def _container(hint: Any) -> tuple[Any, Kinds | None]:
    """Return the type that a hint names, and the types of its items if it says so."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is dict and args[0] is str:
        return dict, result_kinds(args[1])
    if origin is list:
        return list, result_kinds(args[0])
    return (NoneType if hint is None else hint), None


def flat_kinds(kinds: Kinds | None) -> frozenset[type] | None:
    """Return the types that the values of a dict may have that is such a result and has no further values inside; None: any."""
    items = None if kinds is None else kinds.get(dict, {})
    return None if items is None else frozenset(kind for kind, inner in items.items() if inner is None)


def is_exact(value: Any, kinds: Kinds) -> bool:
    """Return whether this result, and everything in it, is of exactly these types."""
    kind = type(value)
    if kind not in kinds:
        return False
    items = kinds[kind]
    if items is not None:
        for item in value.values() if kind is dict else value:
            inner = type(item)
            if inner not in items or (items[inner] is not None and not is_exact(item, items)):
                return False
    return True
