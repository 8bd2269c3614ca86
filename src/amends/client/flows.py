"""Write each verb of the client once, as a flow, and drive it in either colour.

A verb is an ``async def`` that awaits operations (``Op``) and nothing else. ``BlockingDriver`` performs them in the calling
thread, ``LoopDriver`` on an event loop::

    async def approve(client: AnyClient, approval_id: str, *, digest: str) -> Approval: ...

    class Client:
        approve = blocking(people.approve)

    class AsyncClient:
        approve = awaited(people.approve)

A listing is an async generator of the same kind (``listed``, ``listed_async``).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from amends.errors import UsageError

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Flow: TypeAlias = Coroutine[Any, Any, T]
STOP_S: Final = 10.0
"""How long to wait for a thread that was told to stop."""


# ---- Operations


class Op(Generic[T]):
    """What a flow awaits, and a driver performs."""

    def __await__(self) -> Generator[Any, Any, T]:
        answer: T = yield self
        return answer


@dataclass(frozen=True, slots=True)
class Send(Op["httpx.Response"]):
    """Send one request and read its whole answer; raises what httpx raises."""

    method: str
    url: str
    query: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class OpenStream(Op["httpx.Response"]):
    """Send one request, and return the answer before its body has arrived."""

    request: Send


@dataclass(frozen=True, slots=True)
class ReadLine(Op[str | None]):
    """Return the next line of a stream; None: it has ended."""

    lines: Any


@dataclass(frozen=True, slots=True)
class CloseStream(Op[None]):
    """Close a stream."""

    response: httpx.Response


@dataclass(frozen=True, slots=True)
class Sleep(Op[None]):
    """Wait for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Do(Op[Any]):
    """Call a function, and await what it returns if that can be awaited."""

    fn: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Repeat(Op["Repeated"]):
    """Begin to drive a flow every so many seconds, beside everything else, until it returns False or is stopped."""

    flow: Callable[[], Flow[bool]]
    every_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Stop(Op[None]):
    """Stop what ``Repeat`` began; return when nothing of it goes on."""

    repeated: Repeated


@dataclass(slots=True)
class Repeated:
    """Something that goes on beside a flow."""

    stop: threading.Event | None = None
    thread: threading.Thread | None = None
    going: asyncio.Task[None] | None = None


# ---- Driving


def package_of(http: object) -> Any:
    """Return the package that this client is of: httpx, or httpx2, which has the same classes."""
    roots = [kind.__module__.partition(".")[0] for kind in type(http).__mro__]
    found = next((root for root in roots if root in ("httpx", "httpx2")), None)
    if found is None:
        raise UsageError(f"http is a client of httpx, not {type(http).__name__}")
    return sys.modules[found]


class BlockingDriver:
    """Performs operations and blocks the calling thread meanwhile."""

    is_async: Final = False

    def __init__(self, http: Any) -> None:
        self.http, self.package = http, package_of(http)

    def run(self, flow: Any) -> Any:
        """Drive a flow, or one step of a listing, to its end."""
        try:
            op = flow.send(None)
            while True:
                try:
                    answer = self._perform(op)
                except BaseException as error:
                    op = flow.throw(error)
                else:
                    op = flow.send(answer)
        except StopIteration as end:
            return end.value

    def listed(self, found: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over a listing."""
        try:
            while True:
                try:
                    one = self.run(found.__anext__())
                except StopAsyncIteration:
                    return
                yield one
        finally:
            self.run(found.aclose())

    def _perform(self, op: Any) -> Any:
        match op:
            case Send():
                return self.http.send(self._request(op))
            case Sleep():
                return time.sleep(op.seconds)
            case OpenStream(request):
                return self.http.send(self._request(request), stream=True)
            case ReadLine(lines):
                return next(lines, None)
            case CloseStream(response):
                return response.close()
            case Do(fn):
                return fn()
            case Repeat():
                return self._repeat(op)
            case Stop(repeated):
                return self._stop(repeated)
        raise AssertionError(f"a driver cannot perform {type(op).__name__}")

    def _request(self, op: Send) -> httpx.Request:
        made: httpx.Request = self.http.build_request(op.method, op.url, **_options(op))
        return made

    def _repeat(self, op: Repeat) -> Repeated:
        stop = threading.Event()

        def go_on() -> None:
            while not stop.wait(op.every_s):
                if not self.run(op.flow()):
                    return

        thread = threading.Thread(target=go_on, name=op.name, daemon=True)
        thread.start()
        return Repeated(stop, thread)

    def _stop(self, repeated: Repeated) -> None:
        assert repeated.stop is not None, "it was begun by this driver"
        assert repeated.thread is not None, "it was begun by this driver"
        repeated.stop.set()
        if repeated.thread is not threading.current_thread():
            repeated.thread.join(STOP_S)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()


class LoopDriver:
    """Performs operations on the running event loop."""

    is_async: Final = True

    def __init__(self, http: Any) -> None:
        self.http, self.package = http, package_of(http)

    async def run(self, flow: Any) -> Any:
        """Drive a flow, or one step of a listing, to its end."""
        try:
            op = flow.send(None)
            while True:
                try:
                    answer = await self._perform(op)
                except BaseException as error:
                    op = flow.throw(error)
                else:
                    op = flow.send(answer)
        except StopIteration as end:
            return end.value

    async def listed(self, found: AsyncGenerator[T, None]) -> AsyncIterator[T]:
        """Iterate over a listing."""
        try:
            while True:
                try:
                    one = await self.run(found.__anext__())
                except StopAsyncIteration:
                    return
                yield one
        finally:
            await self.run(found.aclose())

    async def _perform(self, op: Any) -> Any:
        match op:
            case Send():
                return await self.http.send(self._request(op))
            case Sleep():
                return await asyncio.sleep(op.seconds)
            case OpenStream(request):
                return await self.http.send(self._request(request), stream=True)
            case ReadLine(lines):
                return await anext(lines, None)
            case CloseStream(response):
                return await response.aclose()
            case Do(fn):
                made = fn()
                return await made if inspect.isawaitable(made) else made
            case Repeat():
                return self._repeat(op)
            case Stop(repeated):
                return await self._stop(repeated)
        raise AssertionError(f"a driver cannot perform {type(op).__name__}")

    def _request(self, op: Send) -> httpx.Request:
        made: httpx.Request = self.http.build_request(op.method, op.url, **_options(op))
        return made

    def _repeat(self, op: Repeat) -> Repeated:
        async def go_on() -> None:
            while True:
                await asyncio.sleep(op.every_s)
                if not await self.run(op.flow()):
                    return

        return Repeated(going=asyncio.get_running_loop().create_task(go_on(), name=op.name))

    async def _stop(self, repeated: Repeated) -> None:
        assert repeated.going is not None, "it was begun by this driver"
        repeated.going.cancel()
        if repeated.going is not asyncio.current_task():
            await asyncio.wait({repeated.going}, timeout=STOP_S)

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()


def _options(op: Send) -> dict[str, Any]:
    return {"params": dict(op.query), "content": op.content, "headers": dict(op.headers), "timeout": op.timeout_s}


# ---- Verbs as methods


class Method(Protocol[P, T_co]):
    """A method with the parameters ``P`` after ``self`` that returns ``T_co``."""

    @overload
    def __get__(self, owner: None, kind: type) -> Callable[Concatenate[Any, P], T_co]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> Callable[P, T_co]: ...


def blocking(verb: Callable[Concatenate[Any, P], Flow[T]]) -> Method[P, T]:
    """Return a method that drives a flow to its end."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._driver.run(verb(self, *args, **kwargs))

    return _like(verb, method)


def awaited(verb: Callable[Concatenate[Any, P], Flow[T]]) -> Method[P, Coroutine[Any, Any, T]]:
    """Return a coroutine function that drives a flow to its end."""

    async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._driver.run(verb(self, *args, **kwargs))

    return _like(verb, method)


def listed(verb: Callable[Concatenate[Any, P], AsyncGenerator[T, None]]) -> Method[P, Iterator[T]]:
    """Return a method that iterates over a listing."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._driver.listed(verb(self, *args, **kwargs))

    return _like(verb, method, returns="Iterator")


def listed_async(verb: Callable[Concatenate[Any, P], AsyncGenerator[T, None]]) -> Method[P, AsyncIterator[T]]:
    """Return a method that iterates over a listing with ``async for``."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._driver.listed(verb(self, *args, **kwargs))

    return _like(verb, method, returns="AsyncIterator")


def _like(verb: Callable[..., Any], made: Any, *, returns: str = "") -> Method[P, T]:
    """Return ``made`` with the name, docstring and signature of ``verb``, with ``self`` as its first parameter."""
    method: Any = FunctionType(made.__code__, made.__globals__, closure=made.__closure__)
    functools.update_wrapper(method, verb)
    del method.__wrapped__  # a flow is a coroutine function, and a blocking method is not
    signature = inspect.signature(verb)
    first, *parameters = signature.parameters.values()
    annotation = signature.return_annotation
    if returns:
        annotation = f"{returns}[{annotation.removeprefix('AsyncGenerator[').removesuffix(', None]')}]"
    self_ = inspect.Parameter("self", first.kind)
    method.__signature__ = signature.replace(parameters=[self_, *parameters], return_annotation=annotation)
    method.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": annotation}
    result: Method[P, T] = method
    return result
