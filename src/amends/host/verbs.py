"""Say a verb of the runtime once, for both colours.

A verb is a flow whose first two parameters are the host and the view::

    async def approve(host: Host, view: View, approval_id: str, *, digest: str, by: str) -> Approval:
        \"\"\"Approve exactly the request whose ``digest`` was shown.\"\"\"

    class Runtime:
        approve = blocking(approvals.approve)      # (approval_id: str, *, digest: str, by: str) -> Approval

    class AsyncRuntime:
        approve = awaited(approvals.approve)       # ... -> Coroutine[Any, Any, Approval]

Type checkers see a descriptor that keeps the whole signature. At run time the class gets an ordinary method with the
flow's signature and docstring.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from amends.host.host import Host, View
    from amends.host.listing import Pages
    from amends.ledger.flow import Flow

P = ParamSpec("P")
T = TypeVar("T")


class blocking(Generic[P, T]):  # noqa: N801 (reads like a decorator)
    """A verb that drives its flow to the end."""

    def __init__(self, flow: Callable[Concatenate[Host, View, P], Flow[T]]) -> None:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._drive(flow(self._host, self._view, *args, **kwargs))

        self._method = _dressed(method, flow)

    def __set_name__(self, owner: type, name: str) -> None:
        _install(owner, name, self._method)

    @overload
    def __get__(self, rt: None, owner: type) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(self, rt: object, owner: type) -> Callable[P, T]: ...
    def __get__(self, rt: object, owner: type) -> Any:
        raise AssertionError("__set_name__ has put a method in this place")


class awaited(Generic[P, T]):  # noqa: N801
    """A verb that awaits its flow."""

    def __init__(self, flow: Callable[Concatenate[Host, View, P], Flow[T]]) -> None:
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await self._drive(flow(self._host, self._view, *args, **kwargs))

        self._method = _dressed(method, flow)

    def __set_name__(self, owner: type, name: str) -> None:
        _install(owner, name, self._method)

    @overload
    def __get__(self, rt: None, owner: type) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, rt: object, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, rt: object, owner: type) -> Any:
        raise AssertionError("__set_name__ has put a method in this place")


class listed(Generic[P, T]):  # noqa: N801
    """A verb that iterates over pages."""

    def __init__(self, pages: Callable[Concatenate[Host, View, P], Pages[T]]) -> None:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._pages(pages(self._host, self._view, *args, **kwargs))

        self._method = _dressed(method, pages, "Iterator")

    def __set_name__(self, owner: type, name: str) -> None:
        _install(owner, name, self._method)

    @overload
    def __get__(self, rt: None, owner: type) -> Callable[Concatenate[Any, P], Iterator[T]]: ...
    @overload
    def __get__(self, rt: object, owner: type) -> Callable[P, Iterator[T]]: ...
    def __get__(self, rt: object, owner: type) -> Any:
        raise AssertionError("__set_name__ has put a method in this place")


class listed_async(Generic[P, T]):  # noqa: N801
    """A verb that iterates over pages with ``async for``."""

    def __init__(self, pages: Callable[Concatenate[Host, View, P], Pages[T]]) -> None:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._pages(pages(self._host, self._view, *args, **kwargs))

        self._method = _dressed(method, pages, "AsyncIterator")

    def __set_name__(self, owner: type, name: str) -> None:
        _install(owner, name, self._method)

    @overload
    def __get__(self, rt: None, owner: type) -> Callable[Concatenate[Any, P], AsyncIterator[T]]: ...
    @overload
    def __get__(self, rt: object, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, rt: object, owner: type) -> Any:
        raise AssertionError("__set_name__ has put a method in this place")


def _dressed(method: Callable[..., Any], flow: Callable[..., Any], instead_of_pages: str = "") -> Callable[..., Any]:
    """Give ``method`` the docstring and the signature of ``flow``, with ``self`` in place of host and view."""
    functools.update_wrapper(method, flow)
    del method.__wrapped__  # type: ignore[attr-defined]
    signature = inspect.signature(flow)
    _, _, *rest = signature.parameters.values()
    returns = signature.return_annotation
    if instead_of_pages and isinstance(returns, str):
        returns = returns.replace("Pages", instead_of_pages, 1)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(parameters=[itself, *rest], return_annotation=returns)  # type: ignore[attr-defined]
    return method


def _install(owner: type, name: str, method: Callable[..., Any]) -> None:
    method.__name__, method.__qualname__ = name, f"{owner.__qualname__}.{name}"
    setattr(owner, name, method)
