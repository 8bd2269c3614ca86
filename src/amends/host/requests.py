"""Requests for calls, from each source: a tool called as a function, a model, ``run.once``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final

from amends.drivers.context import guards, parent_call, refuse_ledger_use
from amends.encoding.annotations import shape_of_args, shape_of_given
from amends.encoding.canonical import canonical, check_size
from amends.encoding.lazy_import import import_on_use
from amends.encoding.secret import NOTHING, RedactionRules
from amends.engine import rules
from amends.engine.compiled import IDENT, NOT_AGAIN, Compiled, key_head
from amends.engine.plain import PlainCall
from amends.engine.session import Ask, Session, ask_for
from amends.errors import BadArguments, Error, UsageError, close_to
from amends.host.host import Host, View
from amends.ledger.plain import AdmitPlain
from amends.model import Request, ToolCall
from amends.tools.checks import has_argument, listed
from amends.tools.declarations import declare, specs_of
from amends.tools.rules import RuleTest
from amends.tools.scope import BareUse, Options, scope_here
from amends.tools.signature import REPEAT, correctable, hints_of, no_repeat
from amends.tools.spec import Declaration, KeyRule, Spec

if TYPE_CHECKING:  # most programs have no tool that lives elsewhere
    from amends.tools import json_schema
else:
    import_on_use(globals(), json_schema="amends.tools.json_schema")

ONCE: Final = "once:"
"""Begins the name under which rules and reports know the code of ``once``."""


def direct_ask(host: Host, session: Session, declared: Declaration, options: Options, args: Any, kwargs: Any) -> Ask:
    """Return the request for a tool that is called as a function."""
    ask = _exact_ask(host, session, declared, options, args, kwargs)
    if ask is not None:
        return ask
    spec = host.spec_for(declared)
    bound = spec.bind(args, kwargs)
    return ask_for(session, spec, bound, again=options.again, timeout=options.timeout, parent=parent_call())


def _exact_ask(
    host: Host, session: Session, declared: Declaration, options: Options, args: Any, kwargs: Any
) -> Ask | None:
    """Return the same request if the compiled tool can make it: the same texts and digests, without the general path."""
    compiled = host.compiled_for(declared)
    if compiled is None or options.again is not None or session.kin or session.budgets:
        return None
    try:
        bound = compiled.bind(*args, **kwargs)
    except Exception:  # the general path raises what is wrong
        return None
    if bound is None:
        return None
    given, text, named, meaning, whole = bound
    check_size(text, path="args", limit=session.payload_bytes_max)
    spec, first = compiled.spec, key_head(session.tenant, session.root, compiled.spec.name)
    return Ask(
        spec, given, text, sha256(first + named + NOT_AGAIN).hexdigest(), sha256(IDENT + meaning).hexdigest(), "",
        compiled.fn, compiled.is_async, parent=parent_call(), timeout=options.timeout,
        recorded_digest=sha256(compiled.digest_head + whole).hexdigest(),
    )  # fmt: skip


def plain_request(
    host: Host, session: Session, declared: Declaration, options: Options, args: Any, kwargs: Any
) -> PlainCall | None:
    """Return the request for a tool that is called as a function, if it is plain; None: ``direct_ask`` makes it.

    Not plain are the calls of a session without a ``PlainRun``, of a tool that is not compiled, with options, inside a
    body, in a replay, beside an open transaction of the caller, or under telemetry, and arguments that are not exactly
    of the annotated types.
    """
    if session.plain is None or options.again is not None or options.timeout is not None:
        return None
    compiled = host.compiled_for(declared)
    return None if compiled is None else _plain_call(host, session, compiled, args, kwargs)


def plain_model_request(
    host: Host, session: Session, tool: str, args: Mapping[str, Any] | str, *, tool_call_id: str | None
) -> PlainCall | None:
    """Return the request for a tool that a model asks for, if it is plain; None: ``model_ask`` makes it."""
    spec = host.specs.get(tool) if session.plain is not None else None
    compiled = None if spec is None else host.compiled_for(spec.declaration)
    if compiled is None:
        return None
    try:
        given = json.loads(args or "{}") if isinstance(args, str) else args
    except (ValueError, RecursionError):  # the general path raises it
        return None
    if type(given) is not dict or REPEAT in given or not _is_ref(tool_call_id):
        return None
    return _plain_call(host, session, compiled, (), given, tool_call_id or "")


def _plain_call(
    host: Host, session: Session, compiled: Compiled, args: Any, kwargs: Any, call_ref: str = ""
) -> PlainCall | None:
    run, scope = session.plain, scope_here()
    assert run is not None, "only a session with a plain run has plain calls"
    if (
        (scope is not None and scope.call is not None)
        or session.lease.joined is not None
        or session.recall.record is not None
        or host.live.around is not None
    ):
        return None
    try:
        if guards:
            refuse_ledger_use(f"a call in run {session.id}")
        bound = compiled.bind(*args, **kwargs)
    except Exception:  # the general path raises what is wrong
        return None
    if bound is None:
        return None
    given, text, named, meaning, whole = bound
    tool = compiled.tool
    first = run.head + tool.part
    return PlainCall(
        session, compiled, given,
        AdmitPlain(
            run, tool, host.new_number(), sha256(first + named + NOT_AGAIN).digest(), sha256(IDENT + meaning).digest(),
            sha256(compiled.digest_head + whole).digest(), text, call_ref,
        ),
    )  # fmt: skip


def _is_ref(tool_call_id: object) -> bool:
    """Return whether a framework's id of a call is written down as it is; the general path refuses or cleans any other."""
    return tool_call_id is None or (type(tool_call_id) is str and tool_call_id.isascii() and "\0" not in tool_call_id)


def model_ask(
    host: Host,
    session: Session,
    tool: str,
    args: Mapping[str, Any] | str,
    *,
    handler: Callable[..., Any] | None,
    tool_call_id: str | None,
    again: str | None,
    grp: str = "",
    key: KeyRule | None = None,
    schema: Mapping[str, Any] | None = None,
    agent: bool = False,
) -> Ask:
    """Return the request for a tool that a model asks for by name and JSON.

    ``handler``: the body, if it is not the declared one. ``tool_call_id``: the model's id of the request. ``again``: why
    it is a deliberate repeat; a model says it as the argument ``again_because``. ``grp``: the group of parallel calls.
    ``key``: the key of this call, instead of the declared one. ``schema``: by which a tool that lives elsewhere takes its
    arguments; without one, the signature of the handler says it.
    ``agent``: a tool that nobody declared is an agent.
    """
    if handler is not None and host.find(tool) is None:
        return _undeclared_ask(
            host, session, tool, args, handler=handler, tool_call_id=tool_call_id, again=again, key=key, schema=schema,
            agent=agent,
        )  # fmt: skip
    spec = keyed(host.named(tool) if handler is None else host.with_result_of(tool, handler), key)
    if handler is None and spec.fn is None:
        raise UsageError(f"{tool} is declared and has no body here", hint="pass handler= with the function to call")
    plain = dict(_json_object(tool, args))
    because = _because(host, spec, plain)
    with correctable(tool, plain):
        bound = spec.bind_json(plain if spec.signature is not None else _taken(tool, plain, handler, schema))
        is_async = None if handler is None else _is_async(handler)
        fn = handler
        if handler is not None and spec.signature is not None:
            fn = _with_bare_use(spec, handler, is_async=is_async)
        return ask_for(
            session, spec, bound, fn=fn, is_async=is_async, again=because if _is_blank(again) else again,
            call_ref=tool_call_id, parent=parent_call(), grp=grp,
            shape=shape_of_given(bound) if spec.signature is None else None,
        )  # fmt: skip


def _taken(
    tool: str, args: Mapping[str, Any], handler: Callable[..., Any] | None, schema: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return the arguments as a tool that lives elsewhere takes them, so that other words make no other call."""
    if schema is not None:
        return json_schema.fill(schema, args)
    return args if handler is None else json_schema.take(tool, handler, args)


def foreseen_ask(
    host: Host,
    session: Session,
    tool: str,
    args: Mapping[str, Any] | str,
    *,
    tool_call_id: str | None,
    key: KeyRule | None = None,
    schema: Mapping[str, Any] | None = None,
    agent: bool = False,
) -> Ask:
    """Return the same request without a body, to ask for its approval ahead of time."""

    def no_body(**_: Any) -> None:
        raise AssertionError("a request for an approval only has no body")

    return model_ask(
        host, session, tool, args, handler=no_body, tool_call_id=tool_call_id, again=None, key=key, schema=schema,
        agent=agent,
    )  # fmt: skip


async def test_rules(
    host: Host, view: View, tool: str, args: Mapping[str, Any] | str = "",  # noqa: PT028
    *, agent: str | None = None, at: datetime | None = None,  # noqa: PT028 (it is no test of ours)
) -> RuleTest:  # fmt: skip
    """Show what each rule says about this call and which one decides; start and record nothing.

    ``args``: as a model sends them. ``at``: the time of the call; now by default.
    """
    spec = host.find(tool)
    undeclared = spec is None and not tool.startswith(ONCE)  # what a program does once, it has declared by writing it
    if spec is None:
        spec = adhoc_spec(tool, host.redactor.hidden, kind="pivot")
    plain = dict(_json_object(tool, args))
    _because(host, spec, plain)
    request = Request(
        "", spec.name, spec.version, spec.bind_json(plain), tenant=view.tenant, agent=agent or view.agent,
        principal=view.principal,
    )  # fmt: skip
    if at is not None and at.tzinfo is None:
        raise UsageError(f"at={at} has no time zone", hint="say datetime(..., tzinfo=UTC)")
    meant = "".join(close_to(tool, host.specs)) if undeclared else ""
    return await rules.tested(host.rules, host.budgets, spec, request, at=at, undeclared=undeclared, meant=meant)


def turn_asks(host: Host, session: Session, calls: Sequence[ToolCall]) -> list[Ask | Exception]:
    """Return the requests of one turn of a model, as one group; an exception in the place of an invalid request."""
    grp = session.new_id("grp") if len(calls) > 1 else ""
    asks: list[Ask | Exception] = []
    for call in calls:
        try:
            ask = model_ask(
                host, session, call.tool, call.args, handler=call.handler, tool_call_id=call.tool_call_id, again=None,
                grp=grp, schema=call.schema,
            )  # fmt: skip
        except Exception as error:
            asks.append(error)
        else:
            asks.append(ask)
    return asks


def _with_bare_use(spec: Spec, handler: Callable[..., Any], *, is_async: bool | None) -> Callable[..., Any]:
    """Return the handler with the right to call the tool's own function once, because a framework calls that function."""
    assert spec.signature is not None, "a tool whose own function may be called has a signature"
    shape = spec.signature.shape

    def begin(given: Mapping[str, Any]) -> BareUse:
        # What is recorded may differ from the request in what the tool ignores. Written before the handler can change it.
        asked = canonical(dict(given), path="args", shape=shape)

        def is_same(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
            try:
                return canonical(dict(spec.bind(args, kwargs)), path="args", shape=shape) == asked
            except Error:
                return False  # then it is a guarded call, which says what is wrong with the arguments

        scope = scope_here()
        assert scope is not None, "a handler runs as a body, which has a scope"
        scope.use = BareUse(spec.declaration, is_same)
        return scope.use

    def do(**args: Any) -> Any:
        use, goes_on = begin(args), False
        try:
            value = handler(**args)
            goes_on = inspect.isawaitable(value)
            return _until_end(use, value) if goes_on else value
        finally:
            if not goes_on:
                use.end()

    async def do_async(**args: Any) -> Any:
        use = begin(args)
        try:
            return await handler(**args)
        finally:
            use.end()

    return do_async if is_async else do


async def _until_end(use: BareUse, value: Any) -> Any:
    try:
        return await value
    finally:
        use.end()


def _because(host: Host, spec: Spec, plain: dict[str, Any]) -> str | None:
    """Remove ``again_because`` from a model's arguments and return it; raise ``BadArguments`` if it is not offered.

    It is refused and not ignored: the model would take the recorded result for the result of a second call.
    """
    because = plain.pop(REPEAT, None)
    if _is_blank(because):
        return None  # with a strict schema a model must send the argument, even if it is empty
    if host.repeats and spec.kind == "read":
        return None  # a read is repeated anyway
    if not host.may_repeat(spec):
        raise BadArguments(spec.name, problems=[no_repeat(spec.name)])
    if not isinstance(because, str):
        raise BadArguments(spec.name, problems=[f"{spec.name}.{REPEAT} must be a string"])
    return because


def _is_blank(because: object) -> bool:
    """Return whether a reason is empty: blanks are no reason to charge again, and two blanks are no other reason."""
    return because is None or (isinstance(because, str) and not because.strip())


def _undeclared_ask(
    host: Host, session: Session, tool: str, args: Mapping[str, Any] | str, *, handler: Callable[..., Any],
    tool_call_id: str | None, again: str | None, key: KeyRule | None, schema: Mapping[str, Any] | None, agent: bool,
) -> Ask:  # fmt: skip
    """Return the request for an undeclared tool: a pivot in its own child run, which a person or a rule must allow.

    An agent has its own child run, too; what it does there is asked about call by call.
    """
    plain = dict(_json_object(tool, args))
    made = adhoc_spec(tool, session.redactor.hidden if agent else NOTHING, kind="agent" if agent else "pivot")
    spec = keyed(made, key)
    because = _because(host, spec, plain)
    with correctable(tool, plain):
        bound = spec.bind_json(_taken(tool, plain, handler, schema))
        ask = ask_for(
            session, spec, bound, fn=handler, is_async=_is_async(handler), again=because if _is_blank(again) else again,
            call_ref=tool_call_id, parent=parent_call(), shape=shape_of_given(bound),
        )  # fmt: skip
    return replace(ask, undeclared=not agent)


def own_child_name(ask: Ask) -> str:
    """Return the name of the child run of an undeclared call, or of an agent; the same request has the same name."""
    return f"{ask.spec.name}:{ask.key[:16]}"


def agent_input(ask: Ask) -> Mapping[str, Any] | None:
    """Return what is recorded as the input of an agent's child run: the arguments, without those that carry no intent.

    None if one is redacted: an input is not.
    """
    if ask.known or ask.spec.redact is not None:
        return None
    return ask.spec.intent(ask.fresh()) if ask.spec.ignore else ask.fresh()


def _json_object(tool: str, args: Mapping[str, Any] | str) -> Mapping[str, Any]:
    try:
        found = json.loads(args or "{}") if isinstance(args, str) else args
    except json.JSONDecodeError as error:
        raise BadArguments(tool, problems=[f"{tool}: the arguments are not JSON ({error})"]) from error
    except ValueError as error:
        raise BadArguments(tool, problems=[f"{tool}: a number in the arguments has too many digits"]) from error
    except RecursionError as error:
        raise BadArguments(tool, problems=[f"{tool}: the arguments are nested too deeply"]) from error
    if not isinstance(found, Mapping):
        raise BadArguments(tool, problems=[f"{tool}: the arguments must be a JSON object"])
    return found


def once_ask(
    session: Session, key: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Ask:
    """Return the request for undeclared code, which the caller declares to be a pivot with the key ``key``."""
    name = getattr(fn, "__qualname__", type(fn).__name__)
    try:
        signature = inspect.signature(fn)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
    except TypeError as error:
        raise BadArguments(name, problems=[f"{name}: {error}"]) from error
    except ValueError:  # a built-in without a signature
        flat: dict[str, Any] = {**{f"arg{i}": one for i, one in enumerate(args)}, **kwargs}
        count = len(args)
        hints: dict[str, Any] = {}

        def body(**given: Any) -> Any:
            placed = [given.pop(f"arg{i}") for i in range(count)]
            return fn(*placed, **given)

    else:
        flat = dict(bound.arguments)
        hints = hints_of(fn.__init__ if inspect.isclass(fn) else fn, {})

        def body(**given: Any) -> Any:
            placed = inspect.BoundArguments(signature, given)
            return fn(*placed.args, **placed.kwargs)

        for one in signature.parameters.values():
            if one.kind is one.VAR_POSITIONAL and one.name in hints:
                hints[one.name] = GenericAlias(tuple, (hints[one.name], ...))
            if one.kind is one.VAR_KEYWORD and one.name in hints:
                hints[one.name] = GenericAlias(dict, (str, hints[one.name]))
    spec = adhoc_spec(f"{ONCE}{name}", session.redactor.hidden, kind="pivot", key=lambda _: key)
    result_type = fn if inspect.isclass(fn) else hints.pop("return", Any)
    spec = replace(spec, result_type=result_type)
    shape = shape_of_args(hints, Any, words={})
    return ask_for(session, spec, flat, fn=body, is_async=_is_async(fn), parent=parent_call(), shape=shape)


def keyed(spec: Spec, key: KeyRule | None) -> Spec:
    """Return the tool with another key for one call; raise ``UsageError`` for one that it cannot have."""
    if key is None:
        return spec
    names = () if callable(key) else listed(key)
    strange = [name for name in names if not isinstance(name, str) or not has_argument(spec.signature, name)]
    problem = ""
    if strange:
        takes = ", ".join(spec.signature.names) if spec.signature else ""
        problem = f"key has {strange[0]!r}, which is not an argument of {spec.name}" + (takes and f" ({takes})")
    elif not callable(key) and not names:
        problem = f"the key of {spec.name} is empty, which would make all its calls one"
    elif spec.ignore == "rest" and callable(key):
        problem = f'{spec.name} has ignore="rest", so its key names arguments and is no function'
    elif both := [name for name in names if spec.ignore != "rest" and name in spec.ignore]:
        problem = f"{both[0]} is in the key, and {spec.name} ignores it"
    if problem:
        raise UsageError(problem, hint='name arguments, key=("order", "line"), or give a function of the request')
    return replace(spec, key=key if callable(key) else names, declared_key=True)


def adhoc_spec(name: str, hidden: RedactionRules = NOTHING, **options: Any) -> Spec:
    """Return a spec declared on the spot; ``hidden``: what its runtime redacts."""
    return specs_of([declare(name, **options)], order="advise", redact=hidden)[name]


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
