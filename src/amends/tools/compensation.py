"""Resolve compensations, probes, guards and ``before``: functions, tools by name, and tools whose body is elsewhere."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

from amends.encoding.annotations import places_below, shape_of
from amends.encoding.dataclass import dataclass, field
from amends.errors import BadDeclaration
from amends.model import Absent, Happened, Probed, Retry, Unknown
from amends.tools.checks import BEFORE, PUT, bad, check_seconds, checked_retry, has_argument, meant
from amends.tools.signature import admits_none, hints_of, is_async_function
from amends.tools.spec import (
    COMPENSATION_RETRY,
    EVERYTHING,
    CompensationSpec,
    Declaration,
    DeclaredCompensation,
    FunctionLike,
    ProbeSpec,
    Spec,
    declaration_of,
    is_elsewhere,
)

COMPENSATION_WORDS: Final = ("tool", "args", "idempotent", "absent_ok", "wins", "retry", "timeout", "probe")
PROBE_WORDS: Final = ("tool", "args", "result")
PROBES: Final = ("probe", "compensation's probe")
EMPTY: Final[tuple[object, ...]] = (None, False, "", [], {})


@dataclass(frozen=True, slots=True)
class Body:
    """A function for a tool that was declared without one."""

    fn: Callable[..., Any]
    described: bool = True
    """Whether its parameters are those of the tool. If not, a framework describes the tool and validates arguments."""
    local_names: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """As in ``Declaration``."""

    @property
    def is_open(self) -> bool:
        """Whether its parameters say nothing about the arguments: it takes any, or cannot be inspected."""
        try:
            kinds = {one.kind for one in inspect.signature(self.fn).parameters.values()}
        except (ValueError, TypeError):
            return True
        return not self.described or (
            inspect.Parameter.VAR_KEYWORD in kinds
            and kinds <= {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
        )


Bodies: TypeAlias = Mapping[str, Body]
NO_BODIES: Final[Bodies] = {}


class Elsewhere:
    """Stands for a body that this process cannot call."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, **_: Any) -> Any:
        """Raise ``BadDeclaration``."""
        raise BadDeclaration(
            f"{self.name} is declared without a body, and this process has none to call",
            tool=self.name,
            hint=f"give the runtime a function for it: rt.reach({{{self.name!r}: function}})",
        )


def is_compensable_here(spec: Spec) -> bool:
    """Return whether this process can compensate calls of this tool, if they can be compensated at all."""
    return spec.compensate is None or not isinstance(spec.compensate.fn, Elsewhere)


def declared_compensation(name: str, where: str, given: object) -> DeclaredCompensation:
    """Return the compensation as declared: a function, a tool, a name, or a table with options."""
    if not isinstance(given, Mapping):
        return DeclaredCompensation(given)  # type: ignore[arg-type]  # checked when a runtime is built
    _check_table(name, where, "compensation", given, COMPENSATION_WORDS)
    said = {word: value for word, value in given.items() if word not in ("tool", "args")}
    return DeclaredCompensation({word: given[word] for word in ("tool", "args") if word in given}, **said)


def with_methods(declared: Declaration, instance: Any) -> Declaration:
    """Return the same tool with the methods of this instance: ``execute``, and the others if no option was given."""
    names = ("compensate", "probe", "before", "guard", "list_effects")
    own = {name: method for name in names if callable(method := getattr(instance, name, None))}
    compensate = DeclaredCompensation(own["compensate"]) if "compensate" in own else None
    return replace(
        declared,
        cls=type(instance),
        fn=instance.execute,
        compensate=declared.compensate or compensate,
        probe=declared.probe or own.get("probe"),
        before=declared.before or own.get("before"),
        guard=declared.guard or own.get("guard"),
        list_effects=declared.list_effects or own.get("list_effects"),
    )


@dataclass(frozen=True, slots=True)
class Resolver:
    """The tools of one runtime, and its functions for those whose body is elsewhere."""

    tools: Mapping[str, Declaration]
    bodies: Bodies

    def grounded(self, declared: Declaration) -> Declaration:
        """Return the declaration with its body; a declared class is instantiated once for all runtimes.

        A function that this runtime was given for a tool declared without one is its body here, as if by ``tool(fn)``.
        """
        if declared.fn is not None:
            return declared
        if declared.cls is None:
            body = self.bodies.get(declared.name)
            if body is None or (body.is_open and declared.like is None):
                return declared
            return replace(declared, fn=body.fn, local_names={**declared.local_names, **body.local_names})
        if declared.grounded is None:
            try:
                instance = declared.cls()
            except TypeError as error:
                own = declared.cls.__name__
                problem = (
                    f"{declared.name} cannot be created without arguments ({error}): create it yourself, tool({own}(…))"
                )
                raise BadDeclaration(problem, tool=declared.name, where=declared.where) from error
            declared.grounded = with_methods(declared, instance)
        return declared.grounded

    def body(self, declared: Declaration) -> Callable[..., Any] | None:
        """Return its own body, or the function that this runtime has for it; None if there is neither."""
        own = self.grounded(declared).fn
        given = self.bodies.get(declared.name)
        return own or (given.fn if given is not None else None)

    def compensation(self, declared: Declaration, given: DeclaredCompensation) -> CompensationSpec:
        """Return a compensation, resolved and checked."""
        asked = self.resolved(declared, given.fn, "compensation")
        probe = self.resolved(declared, given.probe, "compensation's probe") if given.probe is not None else None
        value: Any
        for word in ("idempotent", "absent_ok", "wins"):
            value = getattr(given, word)
            if not isinstance(value, bool) and (word, value) != ("idempotent", PUT):
                may = 'True, False or "put"' if word == "idempotent" else "True or False"
                bad(declared, f"{declared.name}: a compensation's {word} is {may}, not {value!r}")
        check_seconds(declared, "the compensation's timeout", given.timeout, positive=True)
        # A tool used as a compensation keeps its own promise that the destination deduplicates.
        own = self._tool_behind(given.fn)
        put = given.idempotent == PUT or (own is not None and own.idempotent == PUT and not given.idempotent)
        if put and declared.locks is None:
            bad(
                declared,
                f'{declared.name}: its compensation is idempotent="put", which keeps others away from what it sets until '
                "a late start has landed: name that in the tool's locks=lambda call: [...]",
            )
        idempotent = put or given.idempotent is True or (own is not None and own.idempotent is True)
        retry: Retry | int | None = given.retry
        return CompensationSpec(
            fn=asked.fn,
            params=asked.params,
            is_async=asked.is_async,
            idempotent=idempotent,
            put=put,
            absent_ok=given.absent_ok or given.wins,
            wins=given.wins,
            retry=checked_retry(
                declared, retry, default=COMPENSATION_RETRY, is_repeatable=idempotent or probe is not None
            ),
            timeout=given.timeout,
            probe=probe,
            tool=asked.tool,
            needs=asked.needs,
            takes_none=asked.takes_none,
            result_type=asked.result_type,
        )

    def resolved(self, declared: Declaration, given: FunctionLike, role: str, *, settle: float = 0.0) -> ProbeSpec:
        """Return a compensation, probe, guard or ``before`` with the names that it takes.

        ``role``: how messages name it. ``settle``: see ``ToolOptions.settle``.
        """
        if isinstance(given, Mapping) and role != "compensation":
            _check_table(declared.name, declared.where, role, given, PROBE_WORDS)
        own = self._tool_behind(given)
        table = given.get("args") if isinstance(given, Mapping) else None
        is_remote = own is not None and is_elsewhere(own)
        is_itself = own is not None and (declared in (own, own.grounded) or (is_remote and own.name == declared.name))
        if is_itself and role != "compensation":
            bad(declared, f"{declared.name} cannot be its own {role}")
        if own is not None and role == BEFORE and own.kind != "read":
            bad(
                declared,
                f'{declared.name}: its before {own.name} is not a read: say kind="read", or read by a function',
            )
        if is_itself and table is None:
            return self._setting_back(declared)
        fn = self.body(own) if own is not None else self._function(declared, given, role)
        params: tuple[str, ...]
        needs: tuple[str, ...] = ()
        takes_none = False
        result_type: Any = Any
        returns: Any = Any
        if table is not None:
            _check_args(declared, table, role)
            needs = _named_in(table)
        if fn is None:
            assert own is not None, "only a tool can lack a function"
            # The remote side gets everything, and picks what it needs.
            fn, params = Elsewhere(own.name), (EVERYTHING, *_ours(declared, role))
        elif table is not None:
            fn, params = _with_args(declared, fn, table, role), (EVERYTHING, "result", BEFORE, "call")
        else:
            takes_none = _takes_none(declared, fn)
            result_type = _result_type(declared, fn)
            params, needs = _params(declared, fn, role)
            returns = hints_of(fn, declared.local_names).get("return", Any) if role == BEFORE else Any
            returned = hints_of(fn, declared.local_names).get("return", Any) if role in PROBES and own is None else Any
            if _is_no_answer(returned):
                name = getattr(returned, "__name__", str(returned)) if isinstance(returned, type) else str(returned)
                bad(
                    declared,
                    f"{declared.name}: its {role} returns {name}; return Happened(result), Absent() or Unknown()",
                )
        if isinstance(fn, Elsewhere):
            return ProbeSpec(fn, params, False, settle=settle, tool=fn.name, needs=needs)
        if role in PROBES and (is_remote or isinstance(given, Mapping)):
            fn = _answering(fn, str(given.get("result", "$result")) if isinstance(given, Mapping) else "$result")
        if role == BEFORE and isinstance(given, Mapping) and "result" in given:
            fn, returns = _part_of(fn, str(given["result"])), Any
        return ProbeSpec(
            fn,
            params,
            is_async_function(fn),
            settle=settle,
            tool=own.name if own is not None else None,
            needs=needs,
            takes_none=takes_none,
            result_type=result_type,
            returns=returns,
        )

    def _setting_back(self, declared: Declaration) -> ProbeSpec:
        """Return the tool as its own compensation: called with the same key, and with what was there before."""
        signature, key = declared.signature, declared.key
        if declared.before is None:
            bad(
                declared,
                f"{declared.name} cannot be its own compensation without a before, which says what to set it back to",
            )
        if signature is None or signature.rest is not None or key is None or callable(key):
            bad(
                declared,
                f"{declared.name} is its own compensation: say with which arguments, "
                f'compensate={{"tool": "{declared.name}", "args": {{…: "$before"}}}}',
            )
        named = (key,) if isinstance(key, str) else tuple(key)
        rest = tuple(name for name in signature.names if name not in named)
        if not rest:
            bad(declared, f"{declared.name} is its own compensation and its key is all its arguments: nothing differs")
        fn = self.body(declared)
        if fn is None:  # declared with ``like=``
            return ProbeSpec(
                Elsewhere(declared.name), (*named, BEFORE), False, tool=declared.name, needs=(*named, BEFORE)
            )
        return ProbeSpec(
            _set_back(declared.name, fn, rest), (*named, BEFORE), is_async_function(fn), tool=declared.name,
            needs=(*named, BEFORE),
        )  # fmt: skip

    def _function(self, declared: Declaration, given: FunctionLike, role: str) -> Callable[..., Any]:
        named = given.get("tool") if isinstance(given, Mapping) else given
        if isinstance(named, str) and ":" in named:
            found: Callable[..., Any] = found_at(
                named, lambda problem: bad(declared, f"{declared.name}: its {role} {problem}")
            )
            return found
        if isinstance(named, str):
            bad(declared, f'{declared.name}: its {role} "{named}" is not a tool of this runtime; add it to tools=')
        if not callable(named):
            bad(declared, f"{declared.name}: its {role} must be a function or the name of a tool, not {named!r}")
        function: Callable[..., Any] = named
        return function

    def _tool_behind(self, given: FunctionLike) -> Declaration | None:
        named = given.get("tool") if isinstance(given, Mapping) else given
        return self.tools.get(named) if isinstance(named, str) else declaration_of(named)


def found_at(path: str, refuse: Callable[[str], object]) -> Any:
    """Return the object at ``package.module:name``; ``refuse`` is called with the problem, and must raise."""
    from importlib import import_module  # imported here: few tools are named by path

    module, _, name = path.partition(":")
    try:
        found: Any = functools.reduce(getattr, name.split("."), import_module(module))
    except Exception as error:  # also from the code of that module, which may run here for the first time
        refuse(f'"{path}" cannot be imported: {error}')
        raise AssertionError("refuse raises") from error
    return found


# ---- Parameters of compensations, probes and guards


def _params(declared: Declaration, fn: Callable[..., Any], role: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that it takes, and those of them without a default, which it cannot be started without."""
    name = getattr(fn, "__name__", None) or repr(fn)
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError):
        bad(declared, f"{declared.name}: the parameters of its {role} {name} cannot be read; wrap it in a def")
    asked: list[str] = []
    needs: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            asked.append(EVERYTHING)
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            bad(declared, f"{declared.name}: its {role} {name} is called by name; remove the / after {parameter.name}")
        elif parameter.kind is not parameter.VAR_POSITIONAL and _is_askable(declared, parameter, role, name):
            asked.append(parameter.name)
            if parameter.default is parameter.empty and parameter.name != "call":
                needs.append(parameter.name)
    return tuple(asked), tuple(needs)


def _is_no_answer(hint: Any) -> bool:
    """Return whether a probe with this annotation can never give one of the three answers."""
    if get_origin(hint) in (Union, UnionType):
        return all(map(_is_no_answer, get_args(hint)))
    return (get_origin(hint) or hint) in (bool, int, float, str, bytes, list, tuple, dict, set, type(None))


def _takes_none(declared: Declaration, fn: Callable[..., Any]) -> bool:
    """Return whether the annotation of ``result`` allows None, although the tool's own result is never None.

    Only then does None mean that the result is not available.
    """
    if declared.signature is None or admits_none(declared.signature.hints.get("return", Any)):
        return False
    hint = hints_of(fn, declared.local_names).get("result", Any)
    return hint is not Any and hint is not object and admits_none(hint)


def _result_type(declared: Declaration, fn: Callable[..., Any]) -> Any:
    """Return the one class that ``result`` is annotated with, if the tool does not annotate what it returns.

    Then no class was stored, and an annotation that allows several classes would be a guess. A tool whose body is
    elsewhere annotates nothing.
    """
    if declared.signature is not None and declared.signature.hints.get("return", Any) is not Any:
        return Any
    hint = hints_of(fn, declared.local_names).get("result", Any)
    return Any if any(place.tagged for place in places_below(shape_of(hint))) else hint


def _named_in(table: Any) -> tuple[str, ...]:
    """Return what a table of arguments needs: the result, what was there before, and arguments of the call."""
    paths = [value.split(".") for value in table.values() if isinstance(value, str)]
    ours = {"$result": "result", "$before": BEFORE}
    named = [ours.get(path[0]) or path[1] for path in paths if _is_needed(path)]
    return tuple(dict.fromkeys(named))


def _is_needed(path: list[str]) -> bool:
    return path[0] in ("$result", "$before") or (path[0] == "$args" and len(path) > 1)


def _ours(declared: Declaration, role: str) -> tuple[str, ...]:
    """Return what it can ask for besides the tool's arguments."""
    if role == BEFORE:
        return ("call",)
    was = (BEFORE,) if declared.before is not None else ()
    return (*was, "call") if role == "probe" else ("result", *was, "call")


def _is_askable(declared: Declaration, parameter: inspect.Parameter, role: str, name: str) -> bool:
    ours = _ours(declared, role)
    if parameter.name in ours:
        return True
    if parameter.name != "result" and has_argument(declared.signature, parameter.name):
        return True
    if parameter.default is not parameter.empty:
        return False
    can = ", ".join([*ours, *(declared.signature.names if declared.signature else ())])
    problem = f'{declared.name}: its {role} {name} takes "{parameter.name}"; it can take: {can}'
    raise BadDeclaration(problem, tool=declared.name, where=declared.where)


# ---- Tables of arguments


def _check_table(name: str, where: str, role: str, table: Mapping[str, Any], words: tuple[str, ...]) -> None:
    strange = sorted(set(table) - set(words))
    problem = ""
    if strange:
        problem = f"has {strange[0]!r}, which is unknown; its parts are {', '.join(words)}"
    elif not isinstance(table.get("tool"), str) and not callable(table.get("tool")):
        problem = 'names no tool: tool = "name", or "package.module:function"'
    elif not isinstance(table.get("args", {}), Mapping):
        problem = f"has args={table['args']!r}; args is a table of the arguments to call it with"
    elif str(table.get("result", "$result")).partition(".")[0] != "$result":
        problem = f"has result={table['result']!r}; result is a path in its answer, $result or $result.id"
    if problem:
        raise BadDeclaration(f"{name}: its {role} {problem}", tool=name, where=where)


def _check_args(declared: Declaration, table: Mapping[str, Any], role: str) -> None:
    """Check the paths in a table of arguments, also if the function that gets them is not known here."""
    for value in table.values():
        if isinstance(value, str) and value.startswith("$") and value.partition(".")[0] not in _ROOTS:
            bad(declared, f"{declared.name}: its {role} is given {value!r}; a path begins with {', '.join(_ROOTS)}")
        if role in PROBES and isinstance(value, str) and value.startswith("$result"):
            bad(declared, f"{declared.name}: its probe is given {value!r}, but a call in doubt has no result")
        if (
            isinstance(value, str)
            and value.partition(".")[0] == "$before"
            and (declared.before is None or role == BEFORE)
        ):
            bad(declared, f"{declared.name}: its {role} is given {value!r}, and nothing reads what is there before")
        if role == BEFORE and isinstance(value, str) and value.startswith("$result"):
            bad(declared, f"{declared.name}: its before is given {value!r}, but there is no result yet")
        if _names_within(value):
            bad(declared, f"{declared.name}: its {role} is given {value!r}; a path must be the whole argument")
        root, *names = value.split(".") if isinstance(value, str) else ("",)
        if root == "$args" and names and not has_argument(declared.signature, names[0]):
            known = declared.signature.names if declared.signature else ()
            end = meant(names[0], known, f"{declared.name} has: {', '.join(known) or 'none'}")
            bad(declared, f"{declared.name}: its {role} is given {value!r}, which is not an argument{end}")


def _check_takes(declared: Declaration, fn: Callable[..., Any], table: Mapping[str, Any], role: str) -> None:
    """Refuse a table that gives its function an argument which that does not take."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError):
        return
    known = [one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    name = getattr(fn, "__name__", None) or repr(fn)
    for given in table:
        if given not in known:
            end = meant(given, known, f"{name} takes: {', '.join(known) or 'nothing'}")
            bad(declared, f'{declared.name}: its {role} {name} is given "{given}", which it does not take{end}')


def _with_args(declared: Declaration, fn: Callable[..., Any], said: Any, role: str) -> Callable[..., Any]:
    """Return the function, called with the arguments from a table instead of by its own names."""
    table: Mapping[str, Any] = said
    _check_takes(declared, fn, table, role)

    def given(args: dict[str, Any]) -> dict[str, Any]:
        result, call = args.pop("result", None), args.pop("call")
        was = args.pop(BEFORE, None) if declared.before is not None else None
        # A provider that gets a refund with the key of the charge would answer with the stored charge.
        key = call.compensation.key if role in ("compensation", "compensation's probe") else call.key
        roots = {
            "$result": result, "$before": was, "$args": args, "$key": key,
            "$call": {"id": call.id, "key": call.key},
        }  # fmt: skip
        return {name: _at(roots, value, f"a call of {declared.name}") for name, value in table.items()}

    if is_async_function(fn):

        async def call_async(**args: Any) -> Any:
            return await fn(**given(args))

        return call_async
    return lambda **args: fn(**given(args))


_ROOTS: Final = ("$result", "$before", "$args", "$key", "$call")


def _set_back(tool: str, fn: Callable[..., Any], rest: tuple[str, ...]) -> Callable[..., Any]:
    """Return the body, called with the key of the call and what was there before.

    One other argument gets the value itself; several get theirs from a mapping, and those it leaves out their defaults.
    """

    def again(args: dict[str, Any]) -> dict[str, Any]:
        was = args.pop(BEFORE)
        if isinstance(was, Mapping) and was and set(was) <= set(rest):
            return {**args, **was}
        if len(rest) == 1:
            return {**args, rest[0]: was}
        raise TypeError(
            f"the before of {tool} returned a {type(was).__name__}; it returns a dict with {', '.join(rest)}"
        )

    if is_async_function(fn):

        @functools.wraps(fn)
        async def set_back_async(**args: Any) -> Any:
            return await fn(**again(args))

        return set_back_async

    @functools.wraps(fn)
    def set_back(**args: Any) -> Any:
        return fn(**again(args))

    return set_back


def _part_of(fn: Callable[..., Any], path: str) -> Callable[..., Any]:
    """Return a function that returns the part of its answer at this path."""

    def part(found: Any) -> Any:
        return _at({"$result": found}, path, "its answer")

    if is_async_function(fn):

        @functools.wraps(fn)
        async def read_async(**kwargs: Any) -> Any:
            return part(await fn(**kwargs))

        return read_async

    @functools.wraps(fn)
    def read(**kwargs: Any) -> Any:
        return part(fn(**kwargs))

    return read


def _names_within(value: Any) -> bool:
    """Return whether a table or a list contains what looks like a path, which would be passed on as plain text."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(_names_within(one) or (isinstance(one, str) and one.partition(".")[0] in _ROOTS) for one in inner)


class _NotThere(LookupError):
    """A path does not exist; ``within`` is the last value on it."""

    def __init__(self, problem: str, within: object) -> None:
        super().__init__(problem)
        self.within = within


def _at(roots: Mapping[str, Any], value: Any, whose: str) -> Any:
    """Return the value at a path such as ``$result.id``; anything else stands for itself."""
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    root, *path = value.split(".")
    found = roots[root]
    for part in path:
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            raise _NotThere(f"{value} of {whose}: there is no {part!r} in {type(found).__name__}", found)
    return found


def _answering(fn: Callable[..., Any], path: str) -> Callable[..., Any]:
    """Return a tool that looks something up as a probe: found means happened, empty means absent, else unknown."""

    def heard(found: Any) -> Probed[Any]:
        if isinstance(found, Happened | Absent | Unknown):
            return found
        if isinstance(found, str) and found:
            return Unknown(f"it answered with text: {found[:100]}")
        try:
            at = _at({"$result": found}, path, "its answer")
        except _NotThere as nothing:
            # An empty list has no first entry. A table without the field may be an error, or from another version.
            return Absent() if nothing.within in EMPTY else Unknown(str(nothing))
        return Absent() if at in EMPTY else Happened(at)

    if is_async_function(fn):

        @functools.wraps(fn)
        async def probe_async(**kwargs: Any) -> Probed[Any]:
            return heard(await fn(**kwargs))

        return probe_async

    @functools.wraps(fn)
    def probe(**kwargs: Any) -> Probed[Any]:
        return heard(fn(**kwargs))

    return probe
