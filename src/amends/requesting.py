"""Requests in the forms in which they come: a tool called as a function, by a model, by its programmer once."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from amends.canonical import canonical
from amends.context import parent_call
from amends.engine.session import Ask, Session, ask_for
from amends.errors import BadArguments, Error, UsageError
from amends.hub import Hub
from amends.model import ToolCall
from amends.secret import NOTHING, Hidden
from amends.tool import BareUse, Declaration, Options, Spec, declare, scope_here, specs_of


def direct_ask(hub: Hub, session: Session, declared: Declaration, options: Options, args: Any, kwargs: Any) -> Ask:
    """A tool called as a function."""
    spec = hub.spec_for(declared)
    bound = spec.bind(args, kwargs)
    return ask_for(session, spec, bound, again=options.again, timeout=options.timeout, parent=parent_call())


def model_ask(
    hub: Hub,
    session: Session,
    tool: str,
    args: Mapping[str, Any] | str,
    *,
    handler: Callable[..., Any] | None,
    tool_call_id: str | None,
    again: str | None,
    grp: str = "",
) -> Ask:
    """A tool asked for by a model: a name and JSON. ``again_because`` is the model's word for a deliberate repeat."""
    if handler is not None and hub.find(tool) is None:
        return _undeclared_ask(session, tool, args, handler=handler, tool_call_id=tool_call_id, again=again)
    spec = hub.named(tool)
    if handler is None and spec.fn is None:
        raise UsageError(f"{tool} is declared and has no body here", hint="pass handler= with the function to call")
    plain = dict(_json_object(tool, args))
    because = plain.pop("again_because", None)
    bound = spec.bind_json(plain)
    is_async = None if handler is None else _is_async(handler)
    fn = handler
    if handler is not None and spec.signature is not None:
        fn = _with_bare_use(spec, bound, handler, is_async=is_async)
    return ask_for(
        session, spec, bound, fn=fn, is_async=is_async, again=again or because, call_ref=tool_call_id,
        parent=parent_call(), grp=grp,
    )  # fmt: skip


def foreseen_ask(
    hub: Hub, session: Session, tool: str, args: Mapping[str, Any] | str, *, tool_call_id: str | None
) -> Ask:
    """The same request before it is made: its body is not at hand, and not needed."""

    def nobody(**_: Any) -> None:
        raise AssertionError("what is only asked about has no body")

    return model_ask(hub, session, tool, args, handler=nobody, tool_call_id=tool_call_id, again=None)


def turn_asks(hub: Hub, session: Session, calls: Sequence[ToolCall]) -> list[Ask | Exception]:
    """What a model asks for in one turn, as one group; where it cannot be asked for, why."""
    grp = session.new_id("grp") if len(calls) > 1 else ""
    asks: list[Ask | Exception] = []
    for call in calls:
        try:
            ask = model_ask(
                hub, session, call.tool, call.args, handler=call.handler, tool_call_id=call.tool_call_id, again=None,
                grp=grp,
            )  # fmt: skip
        except Exception as error:
            asks.append(error)
        else:
            asks.append(ask)
    return asks


def _with_bare_use(
    spec: Spec, bound: Mapping[str, Any], handler: Callable[..., Any], *, is_async: bool | None
) -> Callable[..., Any]:
    """Return the handler with the right to call the tool's own function once: a framework was given it as it is."""
    asked = canonical(dict(bound), path="args")  # before the handler can change a value

    def is_same(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        try:
            return canonical(dict(spec.bind(args, kwargs)), path="args") == asked
        except Error:
            return False  # a guarded call says what is wrong with its arguments

    def begin() -> BareUse:
        scope = scope_here()
        assert scope is not None, "a handler is a body, and a body has a scope"
        scope.use = BareUse(spec.declaration, is_same)
        return scope.use

    def do(**args: Any) -> Any:
        use, goes_on = begin(), False
        try:
            value = handler(**args)
            goes_on = inspect.isawaitable(value)
            return _until_end(use, value) if goes_on else value
        finally:
            if not goes_on:
                use.end()

    async def do_async(**args: Any) -> Any:
        use = begin()
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


def _undeclared_ask(
    session: Session, tool: str, args: Mapping[str, Any] | str, *, handler: Callable[..., Any],
    tool_call_id: str | None, again: str | None,
) -> Ask:  # fmt: skip
    """A tool that nobody declared: a pivot in a run of its own, which a person must allow unless a rule does."""
    plain = dict(_json_object(tool, args))
    because = plain.pop("again_because", None)
    spec = adhoc_spec(tool, kind="pivot")
    ask = ask_for(
        session, spec, spec.bind_json(plain), fn=handler, is_async=_is_async(handler), again=again or because,
        call_ref=tool_call_id, parent=parent_call(),
    )  # fmt: skip
    return replace(ask, undeclared=True)


def stranger_name(ask: Ask) -> str:
    """The child run of an undeclared call: the same request finds the same one."""
    return f"{ask.spec.name}:{ask.key[:16]}"


def _json_object(tool: str, args: Mapping[str, Any] | str) -> Mapping[str, Any]:
    try:
        found = json.loads(args or "{}") if isinstance(args, str) else args
    except ValueError as error:
        raise BadArguments(tool, problems=[f"{tool}: the arguments are no JSON ({error})"]) from error
    if not isinstance(found, Mapping):
        raise BadArguments(tool, problems=[f"{tool}: the arguments must be a JSON object"])
    return found


def once_ask(
    session: Session, key: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Ask:
    """Undeclared code: the programmer's own word that it is a pivot, identified by ``key``."""
    from typing import get_type_hints

    name = getattr(fn, "__qualname__", type(fn).__name__)
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
        bound.apply_defaults()
    except TypeError as error:
        raise BadArguments(name, problems=[f"{name}: {error}"]) from error
    except ValueError:  # a built-in without a signature
        flat: dict[str, Any] = {**{f"arg{i}": one for i, one in enumerate(args)}, **kwargs}
    else:
        flat = dict(bound.arguments)
    spec = adhoc_spec(f"once:{name}", session.veil.hidden, kind="pivot", key=lambda _: key)
    try:
        result_type = get_type_hints(fn).get("return", Any)
    except Exception:
        result_type = Any
    if inspect.isclass(fn):
        result_type = fn
    spec = replace(spec, result_type=result_type)
    return ask_for(
        session, spec, flat, fn=lambda **_: fn(*args, **kwargs), is_async=_is_async(fn), parent=parent_call()
    )


def adhoc_spec(name: str, hidden: Hidden = NOTHING, **options: Any) -> Spec:
    """A declaration made on the spot; ``hidden``: what its runtime hides."""
    return specs_of([declare(name, **options)], order="advise", redact=hidden)[name]


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
