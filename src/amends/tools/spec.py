"""The options of a tool, its ``Declaration``, and the checked ``Spec`` that the engine sees.

A declaration may still grow after it was made (``@charge.compensate``); a spec never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Required, TypeAlias, TypedDict

from amends.budgets import Costs
from amends.encoding.annotations import ANY_ARGS, OPEN, Shape
from amends.encoding.dataclass import dataclass, field
from amends.encoding.secret import RedactionRules
from amends.errors import BadArguments, BadDeclaration, UsageError, name_for_models
from amends.model import LOST, Call, Kind, Order, Request, Retry, Scope, Staged
from amends.tools.signature import REPEAT, Signature, no_repeat, parsed, refuse, staged_problem

OnConflict: TypeAlias = Literal["raise", "hold", "next"]
OnFailure: TypeAlias = Literal["raise", "rollback", "continue"]
At: TypeAlias = Literal["call", "commit"]
KeyRule: TypeAlias = str | Sequence[str] | Callable[[Request], object]
ApprovalRule: TypeAlias = bool | Callable[[Request], bool]
CostRule: TypeAlias = Costs | Callable[[Request], Costs]
LockRule: TypeAlias = Callable[[Request], Iterable[str]]
OnLock: TypeAlias = Literal["wait", "raise"]
Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
FunctionLike: TypeAlias = Callable[..., object] | str | Mapping[str, Any]  # a function, a tool, its name, or a table
Style: TypeAlias = Literal["openai", "responses", "anthropic", "gemini", "ollama", "mcp"]

EVERYTHING: Final = "**"
"""In ``params``: the function has ``**kwargs`` and gets every argument."""
COMPENSATION_RETRY: Final = Retry(attempts=5, delay=0.5, factor=2.0, max_delay=30.0)
"""A compensation should succeed; after these attempts a person is asked."""


# ---- Options and declarations


class ToolOptions(TypedDict, total=False):
    """The options of every tool, besides its name, kind and ``at``."""

    version: str
    """Part of what an approval covers, and of the replay check. Default: "1"."""
    key: KeyRule
    """The identity: a name, names, or a function of the request. Default: all arguments."""
    ignore: Sequence[str]
    """Arguments that carry no intent, neither key nor conflict; "rest": all that are not in the key."""
    scope: Scope
    """Where a call is deduplicated: within the "run" (default) or the "ledger"."""
    on_conflict: OnConflict
    """Same key, other arguments: "raise" (default), "hold" for a person, or "next": of a setter, the next generation."""
    needs_approval: ApprovalRule
    """Whether a person must approve each call first."""
    retry: Retry | int
    """A number is the number of starts, not of repeats."""
    timeout: float
    """Seconds; past it the call is in doubt, never failed."""
    idempotent: bool | str
    """The destination deduplicates on ``current_call().key``; "24h": for that long; "put": it sets a value, so that a
    start that lands late overwrites what came after it."""
    doubt: Errors
    """More errors after which the call may have taken effect."""
    no_effect: Errors
    """Errors after which the call certainly had no effect, even where a probe would be asked."""
    settle: float
    """Seconds after the last possible send in which an effect may still arrive."""
    remote: float
    """The body and the compensation await another process, which holds a work lease of so many seconds: it may go on for
    that long after this process has ended."""
    cost: CostRule
    """What one call costs: a number (usd), a mapping of units, a ``Cost``, or a function of the call that returns one."""
    locks: LockRule
    """The names of what only one run may work on at a time; held until the run has ended."""
    on_lock: OnLock
    """If another run holds one: "wait" (default; as long as the run's ``wait``), or "raise" at once."""
    repeats: bool
    """False: no model may repeat it on purpose (``again_because``), whatever the runtime says. Default: True."""
    redact: Sequence[str]
    """Arguments that are never stored or shown, or paths into them: "card", "customer.iban"."""
    order: Order
    """"advise": this tool's violations of the ordering law are recorded, not refused."""
    probe: FunctionLike
    """Asks the world whether a call took effect."""
    before: FunctionLike
    """Reads what is there before the body; its value is recorded and given as ``before`` to compensate, probe, guard."""
    class_names: Mapping[type, str]
    """The names under which classes of arguments and results are stored. Default: ``__name__``."""


class DeclareOptions(ToolOptions, total=False):
    """The options of a tool whose kind the type checker does not know."""

    kind: Kind
    """Default: compensatable, which then needs a compensation."""
    at: At
    """Pivots only: "call" (default), or "commit": accepted for later, as the first call when the run commits."""
    after: Sequence[str]
    """Pivots only: tools that must have succeeded in this run before."""
    on_failure: OnFailure
    """"raise" (default), "rollback": the run rolls back even if the error is caught, "continue": a plan continues."""
    compensate: FunctionLike
    """Undoes a call; takes ``result``, ``before``, ``call`` or the tool's arguments by name."""
    guard: FunctionLike
    """Checked before the compensation: False leaves the effect as residue."""


class ClassOptions(DeclareOptions, total=False):
    """All options of a tool, with the name."""

    name: str
    """Default: the function's or class's name."""


class DirectOptions(ToolOptions, total=False):
    """The options of a tool that runs when it is called."""

    name: str
    kind: Literal["read", "compensatable", "pivot", "agent"]
    at: Literal["call"]
    after: Sequence[str]
    on_failure: OnFailure
    compensate: FunctionLike
    guard: FunctionLike


class StagedOptions(ToolOptions, total=False):
    """The options of a tool that is accepted for later: a retriable, or a pivot with ``at="commit"``."""

    name: str
    kind: Required[Literal["retriable", "pivot"]]
    at: Literal["commit"]
    after: Sequence[str]


@dataclass(frozen=True, slots=True)
class DeclaredCompensation:
    """A compensation as declared."""

    fn: FunctionLike
    idempotent: bool | Literal["put"] = False
    absent_ok: bool = False
    wins: bool = False
    retry: Retry | int | None = None
    timeout: float | None = None
    probe: FunctionLike | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Declaration:
    """A declared tool, unchecked. Two declarations are the same tool only if they are the same object."""

    name: str
    where: str
    fn: Callable[..., Any] | None = None
    """The body; None for a class (see ``cls``) and for a tool whose body is elsewhere."""
    cls: type[Any] | None = None
    like: Callable[..., Any] | None = None
    """Of a tool whose body is elsewhere: a function with its parameters and docstring."""
    local_names: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The local names that postponed annotations of a nested function may use."""
    kind: Kind | None = None
    version: str = "1"
    key: KeyRule | None = None
    ignore: Sequence[str] = ()
    scope: Scope = "run"
    on_conflict: OnConflict = "raise"
    on_failure: OnFailure = "raise"
    at: At = "call"
    after: Sequence[str] = ()
    needs_approval: ApprovalRule = False
    retry: Retry | int | None = None
    timeout: float | None = None
    idempotent: bool | str = False
    doubt: Errors = ()
    no_effect: Errors = ()
    settle: float = 0.0
    remote: float = 0.0
    cost: CostRule | None = None
    locks: LockRule | None = None
    on_lock: OnLock = "wait"
    repeats: bool = True
    redact: Sequence[str] = ()
    order: Order | None = None
    class_names: Mapping[type, str] = field(default_factory=dict[type, str])
    compensate: DeclaredCompensation | None = None
    probe: FunctionLike | None = None
    guard: FunctionLike | None = None
    before: FunctionLike | None = None
    list_effects: Callable[..., object] | None = None
    _signature: Signature | None = field(default=None, init=False, repr=False)
    grounded: Declaration | None = field(default=None, init=False, repr=False)
    """The declaration with the instance of its class, once a runtime has needed it."""

    @property
    def signature(self) -> Signature | None:
        """The parameters of ``like``, else of the body; None without both."""
        described = self.like or self.fn
        if self._signature is None and described is not None:
            self._signature = Signature(self.name, described, self.local_names, self.class_names)
        return self._signature


def declaration_of(thing: object) -> Declaration | None:
    """Return the declaration of this function, class or declaration, or None if it is not a tool."""
    if isinstance(thing, Declaration):
        return thing
    # A subclass of a tool is not a tool until it is declared itself.
    found = vars(thing).get("__amends__") if isinstance(thing, type) else getattr(thing, "__amends__", None)
    return found if isinstance(found, Declaration) else None


def is_elsewhere(declared: Declaration) -> bool:
    """Return whether a tool was declared without a body."""
    return declared.fn is None and declared.cls is None


def place(filename: str, line: int) -> str:
    """Return ``file.py:12``, relative to the working directory if possible."""
    try:
        here = f"{Path.cwd()}/"
    except OSError:
        here = ""  # the working directory was removed
    return f"{filename.removeprefix(here)}:{line}"


# ---- Checked specs


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """A probe, a guard or a ``before``: a function that is called about a call, with the names that it takes."""

    fn: Callable[..., Any]
    """Raises if the body of ``tool`` is elsewhere; a process that can reach it replaces this function."""
    params: tuple[str, ...]
    is_async: bool
    settle: float = 0.0
    tool: str | None = None  # its name, if it is a tool itself
    needs: tuple[str, ...] = ()
    """Those of ``params`` that have no default; it is not started without them."""
    takes_none: bool = False
    """Whether its ``result`` may be None although the tool's never is: None then means a call in doubt."""
    result_type: Any = Any
    """The annotation of its ``result``, if the tool itself does not annotate what it returns."""
    returns: Any = Any
    """Of a ``before``: the annotation of what it returns."""


@dataclass(frozen=True, slots=True)
class CompensationSpec:
    """The compensation of a tool. It inherits nothing of the tool's idempotence, retries or probe."""

    fn: Callable[..., Any]
    """As in ProbeSpec."""
    params: tuple[str, ...]
    is_async: bool
    idempotent: bool = False
    put: bool = False
    """It sets a value: a start that lands late overwrites what came after it."""
    absent_ok: bool = False
    wins: bool = False
    retry: Retry = COMPENSATION_RETRY
    timeout: float | None = None
    probe: ProbeSpec | None = None
    tool: str | None = None
    """Its name, if it is a tool itself."""
    needs: tuple[str, ...] = ()
    """As in ProbeSpec."""
    takes_none: bool = False
    """As in ProbeSpec."""
    result_type: Any = Any
    """As in ProbeSpec."""

    @property
    def needs_result(self) -> bool:
        """Whether it cannot be started for a call in doubt, which has no result."""
        return "result" in self.needs and not self.takes_none


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Spec:
    """A tool, resolved and checked: all that the engine sees of it."""

    name: str
    kind: Kind
    version: str
    key: tuple[str, ...] | Callable[[Request], object] | None
    ignore: tuple[str, ...] | Literal["rest"]
    scope: Scope
    on_conflict: OnConflict
    on_failure: OnFailure
    at: At
    after: tuple[str, ...]
    needs_approval: ApprovalRule
    retry: Retry
    """``on`` is always a tuple; if it is empty, any error that certainly had no effect is retried."""
    retry_declared: bool
    timeout: float | None
    idempotent: bool
    window: float | None
    """Seconds for which the destination deduplicates; None: for ever, if ``idempotent``."""
    put: bool
    """``idempotent="put"``: it sets a value, so that a start that lands late overwrites what came after it."""
    doubt: tuple[type[BaseException], ...]
    no_effect: tuple[type[BaseException], ...]
    cost: CostRule | None
    locks: LockRule | None
    on_lock: OnLock
    repeats: bool
    redact: RedactionRules | None
    order: Order | None
    compensate: CompensationSpec | None
    probe: ProbeSpec | None
    guard: ProbeSpec | None
    before: ProbeSpec | None
    list_effects: Callable[..., Any] | None
    fn: Callable[..., Any] | None
    """The body; None: it is elsewhere."""
    is_async: bool
    result_type: Any
    description: str
    where: str
    declared_key: bool
    declaration: Declaration
    """Its declaration: a direct call is of this tool only if it carries this object."""
    settle_declared: float
    signature: Signature | None
    remote: float = 0.0
    """The work lease, in seconds, of whoever performs it and its compensation outside this process; 0: this process does."""

    @property
    def is_staging(self) -> bool:
        """Whether a call is accepted for later instead of started."""
        return self.kind == "retriable" or self.at == "commit"

    @property
    def settle(self) -> float:
        """Seconds after the last possible send in which an effect may still arrive; at least the timeout."""
        return max(self.settle_declared, self.timeout or 0.0)

    @property
    def shape(self) -> Shape:
        """Which classes the arguments may have."""
        return ANY_ARGS if self.signature is None else self.signature.shape

    @property
    def anywhere(self) -> Shape:
        """Which classes a value made from the arguments may have."""
        return OPEN if self.signature is None else self.signature.anywhere

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, validated, with defaults; raise ``BadArguments``.

        ``again_because`` is refused: for a tool that takes any name it would change the identity of the call.
        """
        if REPEAT in kwargs:
            refuse(self.name, [no_repeat(self.name)])
        if self.signature is not None:
            return self.signature.bind(args, kwargs, redact=self.redact)
        if args:
            refuse(self.name, [f"{self.name} takes its arguments by name"])
        if staged := [name for name, value in kwargs.items() if isinstance(value, Staged)]:
            refuse(self.name, [staged_problem(self.name, name) for name in staged])
        return dict(kwargs)

    def bind_json(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Bind the arguments that a model sent; the caller has already removed ``again_because``."""
        return self.bind((), parsed(self.name, arguments))

    def identity(self, request: Request) -> object | None:
        """Return what identifies this request; None means all its arguments."""
        if callable(self.key):
            found = self.key(request)
            if found is None:
                # None means "all arguments"; a function that returns it by mistake would silently change the identity.
                raise BadDeclaration(
                    f"the key function of {self.name} returned None; return what identifies the call",
                    tool=self.name,
                    where=self.where,
                )
            return found
        if self.key is not None:
            if missing := [name for name in self.key if name not in request.args]:
                raise BadArguments(self.name, problems=[f"{self.name}.{name} is missing" for name in missing])
            return {name: request.args[name] for name in self.key}
        return self.intent(request.args) if self.ignore else None

    def intent(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that carry intent: a repeat that differs in one of them is a conflict."""
        if self.ignore == "rest":
            kept = self.key if isinstance(self.key, tuple) else ()
            return {name: args[name] for name in kept if name in args}
        return {name: value for name, value in args.items() if name not in self.ignore}

    @property
    def may_repeat(self) -> bool:
        """Whether a deliberate repeat is possible, and the tool allows it."""
        return self.repeats and self.kind != "read"

    def schema(self, *, repeats: bool = False) -> dict[str, Any]:
        """Return the JSON schema of the arguments, with ``again_because`` if a repeat may be asked for."""
        made: dict[str, Any] = self.signature.schema() if self.signature else {"type": "object", "properties": {}}
        if repeats and self.may_repeat:
            made["properties"][REPEAT] = {
                "type": "string",
                "description": "Only if this very call was made before and is meant a second time: why.",
            }
        return made


def named_arguments(
    params: Sequence[str], *, args: Mapping[str, Any], result: object, call: Call, before: object = LOST
) -> dict[str, Any]:
    """Return the arguments of a compensation, probe or guard: the names that it takes.

    ``result`` and ``call`` are those of the call, even if the tool has arguments of these names; a tool with a
    ``before`` has no argument of that name. A name that an older record does not have, and a value that is ``LOST``,
    are left out, so that the default of the function applies.
    """
    named: dict[str, Any] = dict(args) if EVERYTHING in params else {n: args[n] for n in params if n in args}
    ours = {"result": result, "call": call} | ({} if before is LOST else {"before": before})
    made = named | {name: value for name, value in ours.items() if name in params}
    return {name: value for name, value in made.items() if value is not LOST}


def schemas(
    specs: Iterable[Spec], style: Style, *, repeats: bool = False, strict: bool = False
) -> list[dict[str, Any]]:
    """Return the schemas of the tools for a model; without those that a framework describes."""
    if strict and style not in _STRICT_STYLES:
        raise UsageError(
            f'the style "{style}" has no strict schemas', hint=f"they exist for {', '.join(_STRICT_STYLES)}"
        )
    return [_told(spec, style, repeats=repeats, strict=strict) for spec in specs if spec.signature is not None]


_STRICT_STYLES: Final = ("openai", "responses", "anthropic")


def _told(spec: Spec, style: Style, *, repeats: bool, strict: bool) -> dict[str, Any]:
    named = {"name": spec.name if style == "mcp" else name_for_models(spec.name), "description": spec.description}
    schema = spec.schema(repeats=repeats)
    if strict:
        from amends.tools import json_schema  # only where it is asked for: it needs more than a first call does

        schema = json_schema.strict(spec.name, schema)
    said = {"strict": True} if strict else {}
    match style:
        case "openai" | "ollama":
            return {"type": "function", "function": {**named, "parameters": schema, **said}}
        case "responses":
            # Explicit, because that API defaults to "strict" and then refuses defaults.
            return {"type": "function", **named, "parameters": schema, "strict": strict}
        case "anthropic":
            return {**named, "input_schema": schema, **said}
        case "gemini":  # one of the declarations of ``types.Tool(function_declarations=[...])``
            return {**named, "parameters_json_schema": schema}
        case "mcp":
            hints = {"readOnlyHint": spec.kind == "read", "idempotentHint": spec.idempotent}
            return {**named, "inputSchema": schema, "annotations": hints}
    raise ValueError(f'there is no style "{style}": openai, responses, anthropic, gemini, ollama, mcp')


class LazySchema(Mapping[str, Any]):
    """The JSON schema of a tool's arguments, made on first use, so that declaring a tool imports no pydantic."""

    __slots__ = ("_declared",)

    def __init__(self, declared: Declaration) -> None:
        self._declared = declared

    def _made(self) -> dict[str, Any]:
        signature = self._declared.signature
        assert signature is not None, "only a tool with a body has a schema"
        return signature.schema()

    def __getitem__(self, key: str) -> Any:
        return self._made()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())

    def __repr__(self) -> str:
        return repr(self._made())
