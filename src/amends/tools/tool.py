"""The ``tool`` decorator, and ``Tool``, the static type of what it returns.

At run time a tool is a real function, since frameworks refuse or misread callable objects; ``Tool`` is its static type
and provides the methods of the function. ``scope`` says how a direct call finds its run.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import FrameType, MethodType, ModuleType
from typing import Any, Generic, Literal, ParamSpec, Protocol, Self, TypeAlias, TypeVar, Unpack, overload

from amends.errors import NoRun, WrongColour, trim
from amends.model import Kind, Probed, Retry, Staged
from amends.tools.checks import bad, check_seconds
from amends.tools.declarations import declare, declared_target, specs_of
from amends.tools.scope import (
    BareUse,
    Begun,
    Caller,
    Options,
    Pending,
    caller_here,
    scope_here,
)
from amends.tools.signature import is_async_function
from amends.tools.spec import (
    ClassOptions,
    Declaration,
    DeclaredCompensation,
    DirectOptions,
    FunctionLike,
    LazySchema,
    StagedOptions,
    schemas,
)

__all__ = ["Declared", "Tool", "as_coroutine_function", "declare", "schemas", "specs_of", "tool"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
PF = TypeVar("PF", bound=Callable[..., Probed[Any] | Coroutine[Any, Any, Probed[Any]]])
CC = TypeVar("CC", bound=type[Any])


# ---- The static type


class _BindFirst:
    """Not callable: a tool is declared on a bound method, ``tool(shop.pay)``, never inside the class body."""


class Tool(Generic[P, R_co]):
    """A declared tool. A static type only: at run time a tool is a function, so ``isinstance`` is False."""

    name: str
    kind: Kind
    version: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments, for a model."""
    fn: Callable[..., object]
    """The body alone, unguarded: for unit tests."""
    __amends__: Declaration
    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the tool once in the current run and return its result."""
        raise NotImplementedError("tools are functions at run time")

    @overload
    def compensate(
        self,
        fn: F,
        /,
        *,
        idempotent: bool | Literal["put"] = ...,
        absent_ok: bool = ...,
        wins: bool = ...,
        retry: Retry | int = ...,
        timeout: float = ...,
        probe: FunctionLike = ...,
    ) -> F: ...
    @overload
    def compensate(
        self,
        fn: None = None,
        /,
        *,
        idempotent: bool | Literal["put"] = ...,
        absent_ok: bool = ...,
        wins: bool = ...,
        retry: Retry | int = ...,
        timeout: float = ...,
        probe: FunctionLike = ...,
    ) -> Callable[[F], F]: ...
    def compensate(self, fn: Any = None, /, **options: Any) -> Any:
        """Declare the compensation; it takes ``result``, ``before``, ``call`` or the tool's arguments by name.

        Nothing is implied. ``idempotent``: its destination deduplicates on ``current_call().key``; "put": it sets a
        value, and one that lands late overwrites what came after it. ``absent_ok``: it may be started although it is
        unknown whether there is an effect to undo. ``wins``: after it the destination refuses a late effect.
        ``retry``, ``timeout``: as for a tool. ``probe``: asks whether the compensation itself took effect.
        """

        def attach(fn: Any) -> Any:
            self.__amends__.compensate = DeclaredCompensation(fn, **options)
            return fn

        return attach if fn is None else attach(fn)

    @overload
    def probe(self, fn: PF, /, *, settle: float = ...) -> PF: ...
    @overload
    def probe(self, fn: None = None, /, *, settle: float = ...) -> Callable[[PF], PF]: ...
    def probe(self, fn: Any = None, /, *, settle: float | None = None) -> Any:
        """Declare the function that asks the world whether a call took effect.

        ``settle``: seconds after the last possible send in which an effect may still arrive; at least the timeout.
        """

        def attach(fn: Any) -> Any:
            self.__amends__.probe = fn
            if settle is not None:
                self.__amends__.settle = settle
            return fn

        return attach if fn is None else attach(fn)

    def before(self, fn: F, /) -> F:
        """Declare the function that reads what is there before the body.

        It takes ``call`` or the tool's arguments by name. Its value is recorded in the transaction that first starts
        the call, after its locks were taken, and is ``before`` for the compensation, the probe and the guard.
        """
        self.__amends__.before = fn
        return fn

    def guard(self, fn: F, /) -> F:
        """Declare the check that runs before a compensation: False leaves the effect as residue."""
        self.__amends__.guard = fn
        return fn

    def list_effects(self, fn: F, /) -> F:
        """Declare the listing with which ``rt.reconcile`` compares the ledger."""
        self.__amends__.list_effects = fn
        return fn

    def with_options(
        self, *, again: str | None = None, connection: object | None = None, timeout: float | None = None
    ) -> Self:
        """Return the tool with options for one call: a deliberate repeat, the caller's connection, another timeout."""
        declared = self.__amends__
        if again is not None and not again.strip():
            bad(declared, f"{declared.name}: again= is empty; it must say why the call is repeated")
        check_seconds(declared, "timeout", timeout, positive=True)
        given: dict[str, Any] = {"again": again, "connection": connection, "timeout": timeout}
        options: Options = getattr(self, "__amends_options__", Options())
        made: Self = function_of(declared, replace(options, **{k: v for k, v in given.items() if v is not None}))
        return made

    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None, /) -> _BindFirst: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any:
        """Return the tool; for type checkers, a tool in a class body cannot be called on an instance."""
        return self


Declared: TypeAlias = Tool[..., Any] | type[Any] | Declaration | ModuleType
"""What ``Runtime(tools=[...])`` accepts."""


class _Executes(Protocol[P, R_co]):
    def execute(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class _Declares(Protocol):
    @overload
    def __call__(self, target: CC, /) -> CC: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, R], /) -> Tool[P, R]: ...


class _Stages(Protocol):
    @overload
    def __call__(self, target: CC, /) -> CC: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
        self, target: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Tool[P, Coroutine[Any, Any, Staged[T]]]: ...
    @overload
    def __call__(self, target: Callable[P, R], /) -> Tool[P, Staged[R]]: ...


# ---- The decorator


# As few overloads as possible: a type checker prints all of them, with every option, for one misspelt option.
# The first that fits counts, so a pivot with ``at="commit"`` and a retriable are what the direct ones leave.
@overload
def tool(target: CC, /, **options: Unpack[ClassOptions]) -> CC: ...  # type: ignore[overload-overlap]
@overload
def tool(  # type: ignore[overload-overlap]
    target: _Executes[P, R] | Callable[P, R], /, **options: Unpack[DirectOptions]
) -> Tool[P, R]: ...
@overload
def tool(  # type: ignore[overload-overlap]
    target: _Executes[P, Coroutine[Any, Any, T]] | Callable[P, Coroutine[Any, Any, T]],
    /,
    **options: Unpack[StagedOptions],
) -> Tool[P, Coroutine[Any, Any, Staged[T]]]: ...
@overload
def tool(target: _Executes[P, R] | Callable[P, R], /, **options: Unpack[StagedOptions]) -> Tool[P, Staged[R]]: ...
@overload
def tool(**options: Unpack[DirectOptions]) -> _Declares: ...  # type: ignore[overload-overlap]
@overload
def tool(**options: Unpack[StagedOptions]) -> _Stages: ...
def tool(target: Any = None, /, **options: Any) -> Any:
    """Declare a function, a class with ``execute``, an instance, or a bound method to amends.

    Use it as ``@tool``, ``@tool(kind="pivot")`` or ``tool(shop.pay, kind="pivot")``. Declarations are checked when a
    runtime is built. Details: https://amends.readthedocs.io/en/latest/reference/tool-options/

    ``name``: what models, rules and the ledger call it. Default: the function's or class's name.
    ``kind``: "read" changes nothing; "compensatable" (default) has a compensation; "pivot" is the point of no
        return; "retriable" is done after it, until it succeeds; "agent" is an agent called as a tool.
    ``version``: part of what an approval covers, and of the replay check. Default: "1".
    ``key``: the identity of a call: a name, names, or a function of the request. Default: all arguments.
    ``ignore``: arguments that carry no intent, neither key nor conflict; "rest": all that are not in the key.
    ``scope``: where a call is deduplicated: within the "run" (default) or the "ledger".
    ``on_conflict``: same key, other arguments: "raise" (default), "hold" for a person, or "next" of a setter.
    ``on_failure``: "raise" (default), "rollback": the run rolls back even if the error is caught, or "continue" in
        a plan.
    ``at``: of a pivot: "call" (default), or "commit": accepted for later, as the first call when the run commits.
    ``after``: of a pivot: tools that must have succeeded in this run before.
    ``needs_approval``: whether a person must approve each call first: a bool, or a function of the request.
    ``compensate``: undoes a call; takes ``result``, ``before``, ``call`` or the tool's arguments by name.
    ``probe``: asks the world whether a call took effect: ``Happened(result)``, ``Absent()``, ``Unknown()``.
    ``before``: reads what is there before the body; given as ``before`` to compensate, probe and guard.
    ``guard``: checked before the compensation: False leaves the effect as residue.
    ``retry``: how often a body is started: a ``Retry``, or the number of starts.
    ``timeout``: seconds; past it the call is in doubt, never failed.
    ``idempotent``: the destination deduplicates on ``current_call().key``: True, for so long ("24h"), or "put": it
        sets a value.
    ``doubt``: more errors after which the call may have taken effect.
    ``no_effect``: errors after which the call certainly had no effect.
    ``settle``: seconds after the last possible send in which an effect may still arrive.
    ``remote``: seconds of the work lease, if another process performs the body and the compensation.
    ``cost``: what one call costs: a number (usd), a mapping of units, a ``Cost``, or a function of the request.
    ``locks``: a function of the request: the names of what only one run may work on at a time.
    ``on_lock``: if another run holds one: "wait" (default) or "raise".
    ``repeats``: False: no model may repeat it on purpose (``again_because``). Default: True.
    ``redact``: arguments that are never stored or shown, or paths into them: "card", "customer.iban".
    ``order``: "advise": this tool's violations of the ordering law are recorded, not refused.
    ``class_names``: the names under which classes of arguments and results are stored. Default: ``__name__``.
    """
    if target is not None:
        return _declared(target, options, sys._getframe(1))

    def decorate(target: Any) -> Any:
        return _declared(target, options, sys._getframe(1))

    return decorate


class _NotGiven:
    """Stands in a signature for an option that was not given."""

    def __repr__(self) -> str:
        return "..."


def _signature_of_tool() -> inspect.Signature:
    """Return the signature that ``help`` shows: every option by its name, in place of ``**options``."""
    target = inspect.Parameter("target", inspect.Parameter.POSITIONAL_ONLY, default=None)
    notes: dict[str, Any] = ClassOptions.__annotations__
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_NotGiven(), annotation=notes[name].__forward_arg__
        )
        for name in dict.fromkeys(("name", "kind", *notes))
    ]
    return inspect.Signature([target, *options])


tool.__signature__ = _signature_of_tool()  # type: ignore[attr-defined]


def _declared(target: Any, options: dict[str, Any], frame: FrameType) -> Any:
    declared = declared_target(target, options, frame)
    if isinstance(target, type):
        target.__amends__ = declared  # type: ignore[attr-defined]
        return target
    return function_of(declared, Options())


# ---- The function of a tool


def function_of(declared: Declaration, options: Options) -> Any:
    """Return the function of a tool with a body: guarded, with the methods of ``Tool``."""
    fn = declared.fn
    assert fn is not None, "only a tool with a body is a function"
    call: Any = _async_call(declared, options, fn) if is_async_function(fn) else _blocking_call(declared, options, fn)
    functools.update_wrapper(call, fn)
    if declared.cls is not None:  # frameworks read these names: the class, not one of many methods called execute
        call.__name__, call.__qualname__ = declared.cls.__name__, declared.cls.__qualname__
        call.__doc__ = fn.__doc__ or declared.cls.__doc__
    elif not hasattr(fn, "__name__"):
        call.__name__ = call.__qualname__ = declared.name
    call.__amends__, call.__amends_options__ = declared, options
    call.name, call.kind, call.version = declared.name, declared.kind or "compensatable", declared.version
    call.fn, call.schema = fn, LazySchema(declared)
    for method in ("compensate", "probe", "before", "guard", "list_effects", "with_options"):
        setattr(call, method, MethodType(getattr(Tool, method), call))
    return call


def _blocking_call(declared: Declaration, options: Options, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        scope = scope_here()
        use = None if scope is None or options.again else scope.use  # a deliberate repeat is a call of its own
        if use is not None and use.take(declared, args, kwargs):
            return fn(*args, **kwargs)
        caller = None if scope is None else scope.caller
        if caller is None or caller.is_async:
            raise _misplaced(declared, fn, caller)
        try:
            return caller.direct(declared, options, args, kwargs)
        except BaseException as error:
            trim(error)
            raise

    return call


def _async_call(declared: Declaration, options: Options, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def guarded(
        begun: Begun | None,
        use: BareUse | None,
        replayed: Caller | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if begun is not None:
            begun()
        if use is not None and use.take(declared, args, kwargs):
            return await fn(*args, **kwargs)
        caller = caller_here() if replayed is None else replayed
        if caller is None or not caller.is_async:
            raise _misplaced(declared, fn, caller)
        try:
            return await caller.direct(declared, options, args, kwargs)
        except BaseException as error:
            trim(error)
            raise

    def call(*args: Any, **kwargs: Any) -> Any:
        scope = scope_here()
        caller = None if scope is None else scope.caller
        use = None if scope is None or options.again else scope.use  # a deliberate repeat is a call of its own
        if use is not None and not use.may_be_of(declared):
            use = None
        if caller is not None and not caller.is_async and use is None:
            raise _misplaced(declared, fn, caller)  # at once: in a blocking run it would never be awaited
        # A call made in a replay belongs to the replay, whichever task awaits it.
        replayed = caller if caller is not None and caller._is_replay else None
        pending: Pending | None = getattr(caller, "_pending", None)
        if pending is None:
            return guarded(None, use, replayed, args, kwargs)
        return pending.add(declared.name, guarded, use, replayed, args, kwargs)

    return as_coroutine_function(call)


def as_coroutine_function(call: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a plain function as a coroutine function, so that frameworks await its result."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(call)
    # Python 3.11 has no such mark and inspects this flag, which does not change what the bytecode does.
    code: Any = call.__code__
    call.__code__ = code.replace(co_flags=code.co_flags | inspect.CO_COROUTINE)
    return call


def _misplaced(declared: Declaration, fn: Callable[..., Any], caller: Caller | None) -> NoRun | WrongColour:
    if caller is None:
        return NoRun(f"{declared.name} was called outside a run", tool=declared.name)
    spelled = f"run.call({declared.name if declared.cls else getattr(fn, '__name__', declared.name)}, …)"
    if caller.is_async:
        message, cure = f"{declared.name} blocks, and this run is async", f"await {spelled}"
    else:
        message, cure = f"{declared.name} is async, and this run is blocking", spelled
    return WrongColour(f"{message}: say `{cure}`", tool=declared.name, hint=cure)
