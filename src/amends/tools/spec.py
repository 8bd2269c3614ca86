"""What is said of a tool (``Declaration``) and what that means once it is checked (``Spec``).

A declaration may grow after it was made (``@charge.compensate``); a spec is all that the engine ever sees of a tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Required, TypeAlias, TypedDict

from amends.encoding.annotations import ANY_ARGS, OPEN, Shape
from amends.encoding.dataclass import dataclass, field
from amends.encoding.secret import Hidden
from amends.errors import BadArguments, BadDeclaration, name_for_models
from amends.model import LOST, Call, Costs, Kind, Order, Request, Retry, Scope, Staged
from amends.tools.signature import REPEAT, Signature, no_repeat, parsed, refuse, staged_problem

OnConflict: TypeAlias = Literal["raise", "hold"]
OnFailure: TypeAlias = Literal["raise", "rollback", "continue"]
At: TypeAlias = Literal["call", "commit"]
KeyRule: TypeAlias = str | Sequence[str] | Callable[[Request], object]
ApprovalRule: TypeAlias = bool | Callable[[Request], bool]
CostRule: TypeAlias = Costs | Callable[[Request], Costs]
LockRule: TypeAlias = Callable[[Request], Iterable[str]]
OnLock: TypeAlias = Literal["wait", "raise"]
Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
FunctionLike: TypeAlias = Callable[..., object] | str | Mapping[str, Any]  # a function, a tool, its name, or a table
Style: TypeAlias = Literal["openai", "responses", "anthropic", "mcp"]

EVERYTHING: Final = "**"
"""In ``params``: the twin has a ``**kwargs`` and gets every argument."""
COMPENSATION_RETRY: Final = Retry(attempts=5, delay=0.5, factor=2.0, max_delay=30.0)
"""A compensation must come through; after these a person is asked."""


# ---- what is said -------------------------------------------------------------------------


class ToolOptions(TypedDict, total=False):
    """What every tool may say of itself, besides its name, kind and place."""

    version: str
    """Part of what an approval binds and of the replay check. Default: "1"."""
    key: KeyRule
    """The identity: a name, names, or a function of the request. Default: all arguments."""
    ignore: Sequence[str]
    """Arguments that carry no intent, neither key nor conflict; "rest": all that are not in the key."""
    scope: Scope
    """Where it happens once: "run" (default) or "ledger"."""
    on_conflict: OnConflict
    """Same key, other arguments: "raise" (default), or "hold" for a person."""
    needs_approval: ApprovalRule
    """Whether a person must say yes first."""
    retry: Retry | int
    """A number is the number of starts, not of repeats."""
    timeout: float
    """Seconds; past it the call is in doubt, never failed."""
    idempotent: bool | str
    """The destination deduplicates on ``current_call().key``; "24h": for that long."""
    doubt: Errors
    """More errors that mean: perhaps it happened."""
    settle: float
    """Seconds after the last possible send in which an effect may still land."""
    cost: CostRule
    """What one call costs: a number (usd), units and numbers, a ``Cost``, or a function of the call that gives one."""
    locks: LockRule
    """The names of what only one run may work on at a time; held until the run has ended."""
    on_lock: OnLock
    """Another run has one: "wait" (default; as long as the run's ``wait``), or "raise" at once."""
    repeats: bool
    """False: no model may repeat it on purpose (``again_because``), whatever the runtime says. Default: True."""
    redact: Sequence[str]
    """Arguments never written down nor shown, or paths into them: "card", "customer.iban"."""
    order: Order
    """"advise": this tool's violations of the ordering law are recorded, not refused."""
    probe: FunctionLike
    """Asks the world whether a call took effect."""
    class_names: Mapping[type, str]
    """The names under which classes of arguments and results are written down. Default: ``__name__``."""


class DeclareOptions(ToolOptions, total=False):
    """What may be said of a tool whose kind is not known to the type checker."""

    kind: Kind
    """Default: compensatable, which then needs a compensation."""
    at: At
    """Pivots only: "call" (default), or "commit": accepted for later, as the first thing when the run commits."""
    after: Sequence[str]
    """Pivots only: tools that must have succeeded in this run before."""
    on_failure: OnFailure
    """"raise" (default), "rollback": dooms the run even if caught, "continue": a plan goes on."""
    compensate: FunctionLike
    """Takes a call back; asks by name for ``result``, ``call`` or the tool's arguments."""


class ClassOptions(DeclareOptions, total=False):
    """The same, with the name."""

    name: str
    """Default: the function's or class's name."""


class DirectOptions(ToolOptions, total=False):
    """A tool that is done when it is called."""

    name: str
    kind: Literal["read", "compensatable", "pivot"]
    at: Literal["call"]
    after: Sequence[str]
    on_failure: OnFailure
    compensate: FunctionLike


class RetriableOptions(ToolOptions, total=False):
    """A tool that is accepted for later."""

    name: str
    kind: Required[Literal["retriable"]]


class CommitOptions(ToolOptions, total=False):
    """A pivot that is accepted for later."""

    name: str
    kind: Required[Literal["pivot"]]
    at: Required[Literal["commit"]]
    after: Sequence[str]


@dataclass(frozen=True, slots=True)
class DeclaredCompensation:
    """A compensation as declared."""

    fn: FunctionLike
    idempotent: bool = False
    absent_ok: bool = False
    wins: bool = False
    retry: Retry | int | None = None
    timeout: float | None = None
    probe: FunctionLike | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Declaration:
    """What was said of one tool, unchecked. Two are the same tool only if they are the same object."""

    name: str
    where: str
    fn: Callable[..., Any] | None = None
    """The body; None for a class (see ``cls``) and for a tool that lives elsewhere."""
    cls: type[Any] | None = None
    local_names: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What postponed annotations of a nested function may mean."""
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
    settle: float = 0.0
    cost: CostRule | None = None
    locks: LockRule | None = None
    on_lock: OnLock = "wait"
    repeats: bool = True
    redact: Sequence[str] = ()
    order: Order | None = None
    class_names: Mapping[type, str] = field(default_factory=dict[type, str])
    compensate: DeclaredCompensation | None = None
    probe: FunctionLike | None = None
    guard: Callable[..., object] | None = None
    list_effects: Callable[..., object] | None = None
    _signature: Signature | None = field(default=None, init=False, repr=False)
    grounded: Declaration | None = field(default=None, init=False, repr=False)
    """A declared class with its instance, once a runtime needed it."""

    @property
    def signature(self) -> Signature | None:
        """The body's parameters; None where there is no body."""
        if self._signature is None and self.fn is not None:
            self._signature = Signature(self.name, self.fn, self.local_names, self.class_names)
        return self._signature


def declaration_of(thing: object) -> Declaration | None:
    """What was said of this function, class or declaration, if it is a tool."""
    if isinstance(thing, Declaration):
        return thing
    # A subclass of a tool is no tool until somebody says so.
    found = vars(thing).get("__amends__") if isinstance(thing, type) else getattr(thing, "__amends__", None)
    return found if isinstance(found, Declaration) else None


def place(filename: str, line: int) -> str:
    """``file.py:12``, as short as it stays findable."""
    try:
        here = f"{Path.cwd()}/"
    except OSError:
        here = ""  # the working directory was removed
    return f"{filename.removeprefix(here)}:{line}"


# ---- what it means ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """A function that is asked about a call, by the names it wants: a probe or a guard."""

    fn: Callable[..., Any]
    """Raises where the body of ``tool`` lives elsewhere: whoever can reach it puts its own function here."""
    params: tuple[str, ...]
    is_async: bool
    settle: float = 0.0
    tool: str | None = None  # the tool that it is, where it is one
    needs: tuple[str, ...] = ()
    """Those of ``params`` without which it is not started: they have no default."""
    takes_none: bool = False
    """Its ``result`` may be None where the tool's own result never is: None then stands for a call in doubt."""
    result_type: Any = Any
    """What its ``result`` is annotated with, where the tool itself does not say what it returns."""


@dataclass(frozen=True, slots=True)
class Twin:
    """The compensation of a tool. Nothing of the tool's own idempotence, retries or probe is implied."""

    fn: Callable[..., Any]
    """As in ProbeSpec."""
    params: tuple[str, ...]
    is_async: bool
    idempotent: bool = False
    absent_ok: bool = False
    wins: bool = False
    retry: Retry = COMPENSATION_RETRY
    timeout: float | None = None
    probe: ProbeSpec | None = None
    tool: str | None = None
    """The tool that it is, where it is one."""
    needs: tuple[str, ...] = ()
    """As in ProbeSpec."""
    takes_none: bool = False
    """As in ProbeSpec."""
    result_type: Any = Any
    """As in ProbeSpec."""

    @property
    def needs_result(self) -> bool:
        """Whether it cannot be started in doubt, since nobody has the result then."""
        return "result" in self.needs and not self.takes_none


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Spec:
    """A tool, resolved and checked."""

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
    """``on`` is always a tuple; empty it means any error that certainly had no effect."""
    retry_declared: bool
    timeout: float | None
    idempotent: bool
    window: float | None
    """Seconds for which the destination deduplicates; None: for ever, if ``idempotent``."""
    doubt: tuple[type[BaseException], ...]
    cost: CostRule | None
    locks: LockRule | None
    on_lock: OnLock
    repeats: bool
    redact: Hidden | None
    order: Order | None
    compensate: Twin | None
    probe: ProbeSpec | None
    guard: ProbeSpec | None
    list_effects: Callable[..., Any] | None
    fn: Callable[..., Any] | None
    """The body; None: it lives elsewhere."""
    is_async: bool
    result_type: Any
    description: str
    where: str
    declared_key: bool
    declaration: Declaration
    """What was said: a direct call is this tool only if it carries this object."""
    settle_declared: float
    signature: Signature | None

    @property
    def is_staging(self) -> bool:
        """Whether a call is accepted for later instead of started."""
        return self.kind == "retriable" or self.at == "commit"

    @property
    def settle(self) -> float:
        """Seconds after the last possible send in which an effect may still land; at least the timeout."""
        return max(self.settle_declared, self.timeout or 0.0)

    @property
    def shape(self) -> Shape:
        """Which classes the arguments may have."""
        return ANY_ARGS if self.signature is None else self.signature.shape

    @property
    def anywhere(self) -> Shape:
        """Which classes a value may have that is made from the arguments."""
        return OPEN if self.signature is None else self.signature.anywhere

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, validated, defaults filled in; raises BadArguments.

        ``again_because`` is never one: a tool that takes any name would be asked for under another identity by it.
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
        """The same for what a model sent; the caller has taken ``again_because`` out."""
        return self.bind((), parsed(self.name, arguments))

    def identity(self, request: Request) -> object | None:
        """What makes this request the same as another one; None: all its arguments."""
        if callable(self.key):
            found = self.key(request)
            if found is None:
                # None stands for "all arguments": taken literally, the rule would silently identify nothing.
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
        """The arguments that carry intent: a repeat that differs in one of these is a conflict."""
        if self.ignore == "rest":
            kept = self.key if isinstance(self.key, tuple) else ()
            return {name: args[name] for name in kept if name in args}
        return {name: value for name, value in args.items() if name not in self.ignore}

    @property
    def may_repeat(self) -> bool:
        """Whether a deliberate repeat means anything here, and the tool allows one."""
        return self.repeats and self.kind != "read"

    def schema(self, *, repeats: bool = False) -> dict[str, Any]:
        """The JSON schema of the arguments, with ``again_because`` where a repeat may be asked for."""
        made: dict[str, Any] = self.signature.schema() if self.signature else {"type": "object", "properties": {}}
        if repeats and self.may_repeat:
            made["properties"][REPEAT] = {
                "type": "string",
                "description": "Only if this very call was made before and is meant a second time: why.",
            }
        return made


def twin_kwargs(params: Sequence[str], *, args: Mapping[str, Any], result: object, call: Call) -> dict[str, Any]:
    """Return what a twin is called with: the names it asks for.

    ``result`` and ``call`` are those of the call, whatever the tool's own arguments are called. A name that an
    older record does not have, and a result that is ``LOST``, are left out: the twin's default decides.
    """
    named: dict[str, Any] = dict(args) if EVERYTHING in params else {n: args[n] for n in params if n in args}
    ours = {"result": result, "call": call}
    made = named | {name: value for name, value in ours.items() if name in params}
    return {name: value for name, value in made.items() if value is not LOST}


def schemas(specs: Iterable[Spec], style: Style, *, repeats: bool = False) -> list[dict[str, Any]]:
    """The tools as a model is told about them; those that live elsewhere are described there."""
    return [_told(spec, style, repeats=repeats) for spec in specs if spec.signature is not None]


def _told(spec: Spec, style: Style, *, repeats: bool) -> dict[str, Any]:
    named = {"name": spec.name if style == "mcp" else name_for_models(spec.name), "description": spec.description}
    schema = spec.schema(repeats=repeats)
    match style:
        case "openai":
            return {"type": "function", "function": {**named, "parameters": schema}}
        case "responses":
            # Said, since that API takes "strict" for granted and then refuses defaults.
            return {"type": "function", **named, "parameters": schema, "strict": False}
        case "anthropic":
            return {**named, "input_schema": schema}
        case "mcp":
            hints = {"readOnlyHint": spec.kind == "read", "idempotentHint": spec.idempotent}
            return {**named, "inputSchema": schema, "annotations": hints}
    raise ValueError(f'there is no style "{style}": openai, responses, anthropic, mcp')


class LazySchema(Mapping[str, Any]):
    """The JSON schema of a tool's arguments, made when somebody looks: declaring a tool imports no pydantic."""

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
