"""Turn declarations into specs: collect them, instantiate classes, resolve compensations and probes."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import FrameType, FunctionType, ModuleType
from typing import Annotated, Any, Final, Unpack

from amends.encoding.annotations import ClassNames
from amends.encoding.secret import NOTHING, RedactionRules
from amends.errors import BadDeclaration, close_to, docs_page
from amends.model import Order, Retry
from amends.tools.checks import (
    bad,
    check_after,
    check_before,
    check_classes,
    check_listing,
    check_repeatable,
    check_rules,
    check_setter,
    check_words,
    checked_ignore,
    checked_key,
    checked_kind,
    checked_redact,
    checked_retry,
    checked_signature,
    idempotence,
    listed,
)
from amends.tools.compensation import NO_BODIES, Bodies, Resolver, declared_compensation, with_methods
from amends.tools.signature import Signature, hints_of, is_async_function, plain_function
from amends.tools.spec import Declaration, DeclareOptions, Spec, declaration_of, place

_ONCE: Final = Retry(attempts=1)


def declare(
    name: str, /, *, like: Callable[..., object] | None = None, **options: Unpack[DeclareOptions]
) -> Declaration:
    """Declare a tool whose body is elsewhere (in a framework, on an MCP server), by its name.

    ``like``: a function with the parameters and the docstring of the tool, which is never called. Models get its
    schema, and arguments are validated, as for ``tool(fn)``. ``rt.reach`` gives the same with the body.
    """
    frame = sys._getframe(1)
    where = _line_of(frame)
    if not isinstance(name, str):
        raise _of_framework(name, where) or BadDeclaration(
            f"declare takes the name of a tool, not {name!r}",
            tool=_name_of(name),
            where=where,
            hint="say tool(fn, ...) for a function, declare_all(toolkit, {...}) for many",
        )
    made = declaration(name, where, options=options)
    if like is not None:
        check_described(like, name, where)
        made.like, made.local_names = like, local_names(like, frame)
    return made


def specs_of(
    tools: Iterable[object], *, order: Order, redact: RedactionRules = NOTHING, bodies: Bodies = NO_BODIES
) -> dict[str, Spec]:
    """Return the specs of these tools by name; raise ``BadDeclaration``, which names the tool and its place.

    ``order``: the mode of the ordering law. ``redact``: the runtime's redaction rules. ``bodies``: functions for tools
    whose body is elsewhere.
    """
    found = Resolver(_collected(tools), bodies)
    specs = {name: _spec(declared, found, order=order, redact=redact) for name, declared in found.tools.items()}
    for spec in specs.values():
        check_after(spec, specs)
    return specs


# ---- Collecting declarations

_OPTIONS: Final = frozenset(DeclareOptions.__annotations__)


def declaration(name: str, where: str, *, options: Mapping[str, Any], like: Declaration | None = None) -> Declaration:
    """Return a declaration with these options, over those of ``like``; an option that is None was not given."""
    given = {option: value for option, value in options.items() if value is not None}
    if unknown := sorted(given.keys() - _OPTIONS):
        close = close_to(unknown[0], _OPTIONS, cutoff=0.4)
        guess = f'; did you mean "{close[0]}"?' if close else ""
        raise BadDeclaration(f'{name}: tools have no option "{unknown[0]}"{guess}', tool=name, where=where)
    if "compensate" in given:
        given["compensate"] = declared_compensation(name, where, given["compensate"])
    return replace(like, name=name, where=where, **given) if like else Declaration(name=name, where=where, **given)


def _collected(tools: Iterable[object]) -> dict[str, Declaration]:
    found: dict[str, Declaration] = {}
    for thing in tools:
        for declared in _declarations_in(thing):
            known = found.setdefault(declared.name, declared)
            if known is not declared and _is_again(known, declared):
                raise BadDeclaration(
                    f"{declared.name} was declared again, and the runtime has the one from before, at {known.where}",
                    tool=declared.name,
                    where=declared.where,
                    hint="build the runtime again, after the last declaration: in a notebook, run the cell with"
                    " Runtime(...) again; do not add the tool to the old one",
                )
            if known is not declared:
                problem = f"two tools are called {declared.name}, one here and one at {known.where}"
                bad(declared, f"{problem}: pass only one of them, or give one another name=")
    return found


def _is_again(known: Declaration, declared: Declaration) -> bool:
    """Return whether the second is the first declared again: a notebook's cell, or a module, that was run again."""
    first, second = (
        (getattr(one, "__module__", None), getattr(one, "__qualname__", None))
        for one in (known.cls or known.fn, declared.cls or declared.fn)
    )
    return first == second and None not in first


def _declarations_in(thing: object) -> Iterator[Declaration]:
    if isinstance(thing, ModuleType):
        # Only these types can carry a declaration; a lazy proxy in a module may raise when it is touched.
        held = [value for value in vars(thing).values() if isinstance(value, FunctionType | type | Declaration)]
        found = [declared for value in held if (declared := declaration_of(value))]
        if not found:
            raise BadDeclaration(f"the module {thing.__name__} declares no tool", tool=thing.__name__)
        yield from found
    elif (declared := declaration_of(thing)) is not None:
        yield declared
    elif isinstance(thing, list | tuple):  # what ``declare_all`` returns
        for one in thing:
            yield from _declarations_in(one)
    else:
        name = getattr(thing, "__name__", None) or repr(thing)
        raise _of_framework(thing) or BadDeclaration(
            f"{name} is not a tool: decorate it with @tool, or pass tool({name}, …)", tool=name
        )


# ---- Tool objects of frameworks

_FRAMEWORKS: Final = {
    "langchain_core": ("LangChain", "langchain.md"),
    "langchain": ("LangChain", "langchain.md"),
    "agents": ("the OpenAI Agents SDK", "openai-agents.md"),
    "pydantic_ai": ("Pydantic AI", "pydantic-ai.md"),
    "crewai": ("CrewAI", "crewai.md"),
    "fastmcp": ("FastMCP", "fastmcp.md"),
    "mcp": ("MCP", "mcp.md"),
    **{
        package: (name, "other-frameworks.md")
        for package, name in {
            "agno": "Agno",
            "autogen_core": "AutoGen",
            "google": "Google ADK",
            "llama_index": "LlamaIndex",
            "smolagents": "smolagents",
            "strands": "Strands",
        }.items()
    },
}
"""The package of a tool object's class, the framework, and the page that says how its agents are guarded."""


def _of_framework(thing: object, where: str = "") -> BadDeclaration | None:
    """Return the error for a tool object of a framework: it is declared by its name, and an adapter guards its agent."""
    packages = [str(getattr(cls, "__module__", "")).partition(".")[0] for cls in type(thing).__mro__]
    known = next((_FRAMEWORKS[one] for one in packages if one in _FRAMEWORKS), None)
    name = getattr(thing, "name", None)
    if known is None or not isinstance(name, str):
        return None
    framework, page = known
    return BadDeclaration(
        f"{name} is a tool of {framework}, not of amends",
        tool=name,
        where=where,
        hint=f'leave it as it is and declare it by its name: declare("{name}", ...); then guard the agent, '
        f"see {docs_page('how-to/' + page)}",
    )


# ---- Declaring a function, class or instance


def declared_target(target: Any, options: Mapping[str, Any], frame: FrameType) -> Declaration:
    """Return the declaration of a function, a class with ``execute``, an instance or a bound method.

    ``frame`` is the caller's. What cannot be a tool at all is refused here, because it would not be checked later.
    """
    if (foreign := _of_framework(target, _line_of(frame))) is not None:
        raise foreign
    if isinstance(target, type):
        made = _made(getattr(target, "execute", None), options, frame, name=target.__name__)
        made.cls = target
        return made
    if not inspect.isroutine(target) and callable(getattr(target, "execute", None)):
        like = declaration_of(type(target))  # the options of its class, if that is a tool itself
        name = like.name if like else type(target).__name__
        return with_methods(_made(target.execute, options, frame, name=name, like=like), target)
    name = _name_of(target)
    _check_target(target, name, _line_of(frame))
    made = _made(target, options, frame, name=name)
    made.fn = target
    return made


def _name_of(target: Any) -> str:
    while isinstance(target, functools.partial):
        target = target.func
    return getattr(target, "__name__", None) or type(target).__name__


def _made(
    body: Any, options: Mapping[str, Any], frame: FrameType, *, name: str, like: Declaration | None = None
) -> Declaration:
    if not callable(body):
        raise BadDeclaration(f"{name} has no method execute", tool=name, where=_line_of(frame))
    plain = inspect.unwrap(plain_function(body))
    code = getattr(plain, "__code__", None)
    where = place(code.co_filename, code.co_firstlineno) if code else _line_of(frame)
    given = dict(options)
    made = declaration(given.pop("name", None) or name, where, options=given, like=like)
    made.local_names = local_names(plain, frame)
    return made


def _line_of(frame: FrameType) -> str:
    return place(frame.f_code.co_filename, frame.f_lineno)


def caller_frame() -> FrameType:
    """Return the innermost frame that is not one of amends."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "amends":
        frame = frame.f_back
    return frame


def local_names(fn: Any, frame: FrameType) -> dict[str, Any]:
    """Return the local names that the postponed annotations of a nested function may use."""
    plain = inspect.unwrap(plain_function(fn))
    if "<locals>" not in getattr(plain, "__qualname__", ""):
        return {}
    written = [note for note in getattr(plain, "__annotations__", {}).values() if isinstance(note, str)]
    words = set(re.findall(r"\w+", " ".join(written)))
    return {name: value for name, value in frame.f_locals.items() if name in words}


def _check_target(target: Any, name: str, where: str) -> None:
    problem = ""
    plain = plain_function(target)
    owner = getattr(target, "__qualname__", "").rpartition(".")[0]
    own = owner.rpartition(".")[2].lower()
    if declaration_of(target) is not None:
        problem = f"{name} is already a tool: declare its body again, tool({name}.fn, …)"
    elif isinstance(target, staticmethod | classmethod):
        problem = f"{name}: put @tool below @{type(target).__name__}, or declare it bound: tool({owner}.{name})"
    elif not callable(target):
        problem = f"{name} is neither a function nor an object with a method execute"
    elif inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        problem = f"{name} is a generator: a tool returns one result, which is recorded"
    elif owner and not owner.endswith("<locals>") and not inspect.ismethod(target) and _takes_self(plain):
        problem = f"{name} is a method of {owner} and has no object yet; bind first: tool({own}.{name})"
    if problem:
        raise BadDeclaration(problem, tool=name, where=where)


def check_described(fn: Any, name: str, where: str) -> None:
    """Raise ``BadDeclaration`` for what cannot describe or be the body of a tool."""
    if isinstance(fn, type) or not callable(fn):
        raise BadDeclaration(f"{name}: {fn!r} is not a function", tool=name, where=where)
    if declaration_of(fn) is not None:
        raise BadDeclaration(
            f"{name}: {_name_of(fn)} is a tool itself: give its bare function, {_name_of(fn)}.fn",
            tool=name,
            where=where,
        )
    plain = plain_function(fn)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise BadDeclaration(
            f"{name}: {_name_of(fn)} is a generator: a tool returns one result, which is recorded",
            tool=name,
            where=where,
        )


def _takes_self(plain: Any) -> bool:
    code = getattr(plain, "__code__", None)
    return code is not None and code.co_argcount > 0 and code.co_varnames[0] in ("self", "cls")


# ---- Making a spec

_COPIED: Final = (
    "name", "version", "scope", "on_conflict", "on_failure", "at", "needs_approval", "timeout", "cost", "locks",
    "on_lock", "order", "repeats", "list_effects", "where",
)  # fmt: skip


def _spec(original: Declaration, found: Resolver, *, order: Order, redact: RedactionRules) -> Spec:
    declared = found.grounded(original)
    fn = found.body(original)
    check_words(declared)
    check_rules(declared)
    check_listing(declared)
    signature = checked_signature(declared)
    check_classes(declared, signature)
    kind = checked_kind(declared, declared.order or order)
    key = checked_key(declared, signature)
    idempotent, window, put = idempotence(declared)
    check_before(declared, signature, kind)
    check_setter(declared, kind)
    probe = (
        found.resolved(declared, declared.probe, "probe", settle=declared.settle)
        if declared.probe is not None
        else None
    )
    is_repeatable = idempotent or probe is not None
    check_repeatable(declared, kind, is_repeatable=is_repeatable)
    doubt = listed(declared.doubt)
    return Spec(
        kind=kind,
        key=key,
        declared_key=key is not None,
        ignore=checked_ignore(declared, signature, key),
        after=listed(declared.after),
        redact=checked_redact(declared, signature, redact),
        retry=checked_retry(
            declared,
            declared.retry,
            default=_ONCE,
            doubt=doubt,
            no_effect=listed(declared.no_effect),
            is_repeatable=is_repeatable,
        ),
        retry_declared=declared.retry is not None,
        idempotent=idempotent,
        window=window,
        put=put,
        doubt=doubt,
        no_effect=listed(declared.no_effect),
        compensate=found.compensation(declared, declared.compensate) if declared.compensate else None,
        probe=probe,
        guard=found.resolved(declared, declared.guard, "guard") if declared.guard is not None else None,
        before=found.resolved(declared, declared.before, "before") if declared.before is not None else None,
        fn=fn,
        is_async=fn is not None and is_async_function(fn),
        result_type=_result_type(declared, signature, fn),
        description=_description(declared),
        declaration=original,
        settle_declared=declared.settle,
        remote=float(declared.remote),
        signature=signature,
        **{name: getattr(declared, name) for name in _COPIED},
    )


def _result_type(declared: Declaration, signature: Signature | None, fn: Callable[..., Any] | None) -> Any:
    """Return what the body is annotated to return; a body that lives elsewhere may say it, too, once it is known.

    Whatever the function returns that describes the arguments of a body elsewhere (``like``) says nothing about it.
    """
    described = signature is not None and declared.like is None
    hints = signature.hints if signature is not None and described else {} if fn is None else hints_of(fn, {})
    hint = hints.get("return", Any)
    return Annotated[hint, ClassNames(declared.class_names)] if declared.class_names else hint


def _description(declared: Declaration) -> str:
    """Return the docstring for a model: that of the body, or of its class."""
    described = declared.like or declared.fn
    if described is None:
        return ""
    found = inspect.getdoc(plain_function(described))
    return found or (declared.cls and inspect.getdoc(declared.cls)) or ""
