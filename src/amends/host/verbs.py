"""Turn a flow into a method of ``Runtime`` and of ``AsyncRuntime``, so that each verb is written once.

A verb is a function whose first two parameters are the host and the view::

    async def approve(host: Host, view: View, approval_id: str, *, digest: str, by: str) -> Approval:
        \"\"\"Approve exactly the request whose ``digest`` was shown.\"\"\"

    class Runtime:
        approve = blocking(lambda: approvals.approve)  # (approval_id: str, *, digest: str, by: str) -> Approval

    class AsyncRuntime:
        approve = awaited(lambda: approvals.approve)  # the same parameters -> Coroutine[Any, Any, Approval]

There is a pair of functions for each kind of verb: a flow, a listing, a decision after which the run is recovered, and
a function that blocks; and ``direct`` for a function that is the same in both classes. Each takes a function that returns
the verb, so that the module of the verb is imported when the method is first looked up (``_OnFirstUse``). From then on
the class has an ordinary function with the name, the signature and the docstring of the verb. Type checkers see a
``Method``, which keeps the signature.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from amends.drivers.context import refuse_ledger_use
from amends.encoding.lazy_import import import_on_use
from amends.errors import trim
from amends.report import Report

if TYPE_CHECKING:
    import asyncio

    from amends.host.host import Host, View
    from amends.host.listing import Pages
    from amends.ledger.flow import Flow
else:
    import_on_use(globals(), asyncio="asyncio")

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Method(Protocol[P, T_co]):
    """A method with the parameters ``P`` after ``self`` that returns ``T_co``."""

    @overload
    def __get__(self, rt: None, owner: type) -> Callable[Concatenate[Any, P], T_co]: ...
    @overload
    def __get__(self, rt: object, owner: type) -> Callable[P, T_co]: ...


# ---- Flows


def blocking(verb: Callable[[], Callable[Concatenate[Host, View, P], Flow[T]]], *, opens: bool = True) -> Method[P, T]:
    """Return a method that drives a flow to its end; ``opens=False``: without opening the ledger first."""

    def made() -> Method[P, T]:
        flow, cut = verb(), trim

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                drive = self._drive if opens else self._driver.run
                return drive(flow(self._host, self._view, *args, **kwargs))
            except BaseException as error:
                cut(error)
                raise

        return _like(flow, method)

    return _OnFirstUse(made)


def awaited(
    verb: Callable[[], Callable[Concatenate[Host, View, P], Flow[T]]], *, opens: bool = True
) -> Method[P, Coroutine[Any, Any, T]]:
    """Return a coroutine function that drives a flow to its end; ``opens=False``: without opening the ledger first."""

    def made() -> Method[P, Coroutine[Any, Any, T]]:
        flow, cut = verb(), trim

        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                drive = self._drive if opens else self._driver.run
                return await drive(flow(self._host, self._view, *args, **kwargs))
            except BaseException as error:
                cut(error)
                raise

        return _like(flow, method)

    return _OnFirstUse(made)


# ---- Listings


def listed(verb: Callable[[], Callable[Concatenate[Host, View, P], Pages[T]]]) -> Method[P, Iterator[T]]:
    """Return a method that iterates over the pages of a listing."""

    def made() -> Method[P, Iterator[T]]:
        pages, cut = verb(), trim

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return self._pages(pages(self._host, self._view, *args, **kwargs))
            except BaseException as error:
                cut(error)
                raise

        return _like(pages, method, returns="Iterator")

    return _OnFirstUse(made)


def listed_async(verb: Callable[[], Callable[Concatenate[Host, View, P], Pages[T]]]) -> Method[P, AsyncIterator[T]]:
    """Return a method that iterates over the pages of a listing with ``async for``."""

    def made() -> Method[P, AsyncIterator[T]]:
        pages, cut = verb(), trim

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return self._pages(pages(self._host, self._view, *args, **kwargs))
            except BaseException as error:
                cut(error)
                raise

        return _like(pages, method, returns="AsyncIterator")

    return _OnFirstUse(made)


# ---- Decisions about a run, which returns the uid of its root


def recovering(verb: Callable[[], Callable[Concatenate[Host, View, P], Flow[str]]]) -> Method[P, Report]:
    """Return a method that drives a flow, then recovers the run whose root it returned, and reports on it."""

    def made() -> Method[P, Report]:
        flow, cut = verb(), trim

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return self._go_on(self._drive(flow(self._host, self._view, *args, **kwargs)))
            except BaseException as error:
                cut(error)
                raise

        return _like(flow, method, returns="Report")

    return _OnFirstUse(made)


def recovering_async(
    verb: Callable[[], Callable[Concatenate[Host, View, P], Flow[str]]],
) -> Method[P, Coroutine[Any, Any, Report]]:
    """Return the coroutine function that does what ``recovering`` does."""

    def made() -> Method[P, Coroutine[Any, Any, Report]]:
        flow, cut = verb(), trim

        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return await self._go_on(await self._drive(flow(self._host, self._view, *args, **kwargs)))
            except BaseException as error:
                cut(error)
                raise

        return _like(flow, method, returns="Report")

    return _OnFirstUse(made)


# ---- Functions


def direct(verb: Callable[[], Callable[Concatenate[Host, View, P], T]]) -> Method[P, T]:
    """Return a method that calls a function that neither blocks nor uses the ledger."""

    def made() -> Method[P, T]:
        fn, cut = verb(), trim

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return fn(self._host, self._view, *args, **kwargs)
            except BaseException as error:
                cut(error)
                raise

        return _like(fn, method)

    return _OnFirstUse(made)


def in_place(verb: Callable[[], Callable[Concatenate[Host, View, P], T]]) -> Method[P, T]:
    """Return a method that calls a function that blocks, and opens the ledger itself if it needs it."""

    def made() -> Method[P, T]:
        fn, refuse, cut = verb(), refuse_ledger_use, trim

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                refuse(f"rt.{fn.__name__}()")
                return fn(self._host, self._view, *args, **kwargs)
            except BaseException as error:
                cut(error)
                raise

        return _like(fn, method)

    return _OnFirstUse(made)


def in_thread(verb: Callable[[], Callable[Concatenate[Host, View, P], T]]) -> Method[P, Coroutine[Any, Any, T]]:
    """Return a coroutine function that calls a function in another thread, so that the event loop goes on."""

    def made() -> Method[P, Coroutine[Any, Any, T]]:
        fn, refuse, to_thread, cut = verb(), refuse_ledger_use, asyncio.to_thread, trim

        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                refuse(f"rt.{fn.__name__}()")
                return await to_thread(fn, self._host, self._view, *args, **kwargs)
            except BaseException as error:
                cut(error)
                raise

        return _like(fn, method)

    return _OnFirstUse(made)


class _OnFirstUse(Generic[P, T]):
    """Stands in a class for a method of it, and makes the method when somebody looks it up."""

    def __init__(self, make: Callable[[], Method[P, T]]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    @overload
    def __get__(self, rt: None, owner: type) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(self, rt: object, owner: type) -> Callable[P, T]: ...
    def __get__(self, rt: object, owner: type) -> Any:
        made: Any = vars(self._owner)[self._name]
        if made is self:  # else another thread was first, or somebody kept this descriptor
            made = self._make()
            setattr(self._owner, self._name, made)
        return made.__get__(rt, owner)


def _like(verb: Callable[..., Any], made: Any, *, returns: str = "") -> Method[P, T]:
    """Return ``made`` with the name, docstring and signature of ``verb``, with ``self`` in place of host and view.

    ``returns``: the annotation that replaces ``Pages``, or a flow's ``str``. The method gets the globals of the verb's
    module, so that frameworks can resolve its annotations. It must use none of its own.
    """
    method: Any = FunctionType(made.__code__, getattr(verb, "__globals__", globals()), closure=made.__closure__)
    functools.update_wrapper(method, verb)
    # Frameworks unwrap a function to ask whether it is a coroutine function: a flow is one, a blocking method is not.
    del method.__wrapped__
    signature = inspect.signature(verb)
    host, view, *parameters = signature.parameters.values()
    names = host.name.lstrip("_"), view.name.lstrip("_")
    assert names == ("host", "view"), f"{verb.__qualname__} takes {names} instead of the host and the view"
    annotation = signature.return_annotation
    if returns:
        annotation = annotation.replace("Pages", returns, 1) if annotation.startswith("Pages[") else returns
    self_ = inspect.Parameter("self", host.kind)
    public = signature.replace(parameters=[self_, *parameters], return_annotation=annotation)
    method.__signature__ = public
    method.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": annotation}
    if returns:  # a name that the verb's module may not have
        known = {"Iterator": Iterator, "AsyncIterator": AsyncIterator, "Report": Report}
        method.__annotations__["return"] = eval(annotation, {**method.__globals__, **known})
    result: Method[P, T] = method
    return result
