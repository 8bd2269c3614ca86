"""After an error of the infrastructure a model is not told to correct its arguments; `x: str = None` takes null."""

from __future__ import annotations

import asyncio
import errno
import urllib.error
from email.message import Message
from types import SimpleNamespace
from typing import Annotated, Any

import httpx
import pytest
import requests

from amends import AsyncRuntime, NoEffect, Runtime, declare, tool
from amends.errors import ToolFailed

INFRASTRUCTURE: list[Exception] = [
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    OSError(errno.ENOSPC, "No space left on device"),
    MemoryError(),
    ImportError("no module named stripe"),
    AssertionError("broken"),
    NotImplementedError("soon"),
    RecursionError("too deep"),
]
ARGUMENTS: list[Exception] = [
    ValueError("address unknown"),
    KeyError("order"),
    TypeError("no"),
    FileNotFoundError(errno.ENOENT, "No such file", "/tmp/x"),
    PermissionError(errno.EACCES, "Permission denied", "/etc/shadow"),
    type("CardDeclined", (Exception,), {})("declined"),
]


def _told(error: Exception) -> str:
    @tool(kind="read")
    def ship(to: str) -> str:
        raise error

    with Runtime("memory:", tools=[ship]).run() as run:
        return run.answer("ship", {"to": "x"}).text


@pytest.mark.parametrize("error", INFRASTRUCTURE, ids=lambda one: type(one).__name__)
def test_an_error_of_the_infrastructure_is_not_blamed_on_the_arguments(error: Exception) -> None:
    text = _told(error)
    assert "correct the arguments" not in text
    assert "with the same ones, or stop and tell the user" in text


@pytest.mark.parametrize("error", ARGUMENTS, ids=lambda one: type(one).__name__)
def test_another_error_may_be_about_the_arguments(error: Exception) -> None:
    assert _told(error).endswith("You may correct the arguments and call it again.")


class Answered(Exception):
    """An error of a client that carries the status of an answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status)


def raised(error: Exception, cause: Exception | None, context: Exception | None = None) -> Exception:
    error.__context__ = context
    if cause is not None:
        error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.PoolTimeout("full"),
        requests.ConnectionError("down"),
        Answered(503),
        urllib.error.HTTPError("http://bank", 502, "Bad Gateway", Message(), None),
        urllib.error.HTTPError("http://bank", 429, "Too Many Requests", Message(), None),
        Answered(500),
        Answered(429),
        Answered(401),
        raised(RuntimeError("bank down"), httpx.ConnectError("refused")),
        raised(ValueError("bank down"), None, ConnectionResetError(errno.ECONNRESET, "reset")),
        raised(NoEffect("closed"), ConnectionRefusedError("no")),
        raised(RuntimeError("twice"), raised(RuntimeError("once"), TimeoutError("slow"))),
        ExceptionGroup("two", [httpx.ConnectError("refused"), ValueError("x")]),
    ],
    ids=repr,
)
def test_what_a_client_says_of_a_broken_service_is_not_blamed_on_the_arguments(error: Exception) -> None:
    text = _told(error)
    assert "correct the arguments" not in text
    assert "with the same ones, or stop and tell the user" in text


@pytest.mark.parametrize(
    "error",
    [
        httpx.InvalidURL("no host"),
        httpx.UnsupportedProtocol("ftp"),
        Answered(400),
        Answered(404),
        Answered(409),
        Answered(422),
        raised(Answered(422), httpx.ConnectError("of the first try")),
        raised(ValueError("unknown order"), KeyError("o-1")),
        raised(ValueError("unknown order"), FileNotFoundError(errno.ENOENT, "No such file", "/o-1")),
    ],
    ids=repr,
)
def test_a_clear_refusal_may_be_about_the_arguments(error: Exception) -> None:
    assert _told(error).endswith("You may correct the arguments and call it again.")


def test_it_holds_for_an_async_tool_and_for_a_child_run() -> None:
    @tool(kind="read")
    async def ship(to: str) -> str:
        raise httpx.ConnectError("refused")

    async def agent() -> list[str]:
        async with AsyncRuntime("memory:", tools=[ship]) as rt, rt.run() as run:
            first = (await run.answer("ship", {"to": "x"})).text
            async with run.child("c") as child:
                return [first, (await child.answer("ship", {"to": "x"})).text]

    for text in asyncio.run(agent()):
        assert "with the same ones, or stop and tell the user" in text


def test_a_recorded_failure_says_the_same() -> None:
    for name, is_infrastructure in (
        ("ConnectError", True),
        ("httpx.ReadTimeout", True),
        ("RateLimitError", True),
        ("OrderUnknown", False),
        ("ConnectionRefusedError", True),
        ("builtins.OSError", True),
        ("ValueError", False),
    ):
        text = ToolFailed("no", call=None, type_name=name).for_model()
        assert ("correct the arguments" not in text) == is_infrastructure


def test_a_default_of_none_is_optional_however_it_is_written() -> None:
    def plain(a: str = None, b: Annotated[int, "cents"] = None, c: str = None, d: Any = None, e=None) -> str:  # type: ignore[assignment, no-untyped-def]  # noqa: RUF013
        return f"{a} {b} {c} {d} {e}"

    class Kit:
        def method(self, *, a: str = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
            return str(a)

    later = declare("later", kind="read")
    rt = Runtime("memory:", tools=[tool(plain, kind="read"), tool(Kit().method, kind="read"), later])
    rt.reach({"later": plain})
    with rt.run() as run:
        for name in ("plain", "later"):
            nothing = dict.fromkeys("abcde")
            assert run.answer(name, nothing).value == "None None None None None"
            assert run.answer(name, {"b": "x"}).status == "refused"
        assert run.answer("method", {"a": None}).value == "None"
    for one in rt.schemas():
        assert {"type": "null"} in one["function"]["parameters"]["properties"]["a"]["anyOf"]


def test_a_default_of_none_makes_an_argument_optional() -> None:
    @tool(kind="read")
    def find(x: str = None, n: list[int] = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        return f"{x} {n}"

    rt = Runtime("memory:", tools=[find])
    properties = rt.schemas()[0]["function"]["parameters"]["properties"]
    assert properties["x"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    with rt.run() as run:
        assert find() == find(x=None) == "None None"  # type: ignore[arg-type]
        assert find("a", None) == "a None"  # type: ignore[arg-type]
        assert run.answer("find", {"x": None, "n": [1]}).value == "None [1]"
        assert run.answer("find", {"x": 5}).status == "refused"
