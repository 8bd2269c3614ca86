"""What an error says of the effect: groups, chains, the standard library and the well-known clients, by name."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import ftplib
import http.client
import imaplib
import multiprocessing
import poplib
import queue
import smtplib
import socket
import sqlite3
import ssl
import subprocess
import sys
import urllib.error
import xmlrpc.client
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import BrokenThreadPool
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, InDoubt, NoEffect, RunBlocked, Runtime, tool
from amends.engine.outcomes import MAYBE_SENT, NEVER_SENT, judge
from amends.tools.declarations import specs_of
from tests.world import runtime, states


@tool(kind="pivot")
def plain() -> None: ...


SPEC = specs_of([plain], order="strict")["plain"]


def verdict(error: BaseException, **options: Any) -> str:
    return judge(SPEC, error, **options).verdict


def named(name: str, *bases: type, **facts: Any) -> Any:
    """An error of a class with this module and name."""
    module, _, qualname = name.rpartition(".")
    cls = type(qualname, bases or (Exception,), {"__module__": module, "__qualname__": qualname})
    error = cls("it broke")
    for fact, value in facts.items():
        setattr(error, fact, value)
    return error


def chained(error: Exception, cause: BaseException) -> Exception:
    try:
        raise error from cause
    except Exception as raised:
        return raised


def over(error: Exception, handled: BaseException, *, hidden: bool = False) -> Exception:
    """The error, raised while another one was handled."""
    try:
        try:
            raise handled
        except BaseException:
            if hidden:
                raise error from None
            raise error  # noqa: B904 (this is what is tried)
    except Exception as raised:
        return raised


# ---- the standard library -----------------------------------------------------------------

STANDARD: list[tuple[BaseException, str]] = [
    (subprocess.TimeoutExpired("pay", 3), "doubt"),
    (subprocess.CalledProcessError(-9, "pay"), "doubt"),
    (subprocess.CalledProcessError(-15, "pay"), "doubt"),
    (subprocess.CalledProcessError(137, "pay"), "doubt"),
    (subprocess.CalledProcessError(143, "pay"), "doubt"),
    (subprocess.CalledProcessError(124, "timeout 5 pay"), "doubt"),
    (subprocess.CalledProcessError(0xC000013A, "pay.exe"), "doubt"),
    (subprocess.CalledProcessError(1, "pay"), "ordinary"),
    (subprocess.CalledProcessError(2, "pay"), "ordinary"),
    (subprocess.CalledProcessError(127, "pay"), "ordinary"),
    (multiprocessing.TimeoutError(), "doubt"),
    (multiprocessing.BufferTooShort(b"an answer that did not fit"), "doubt"),
    (InterruptedError(), "doubt"),
    (concurrent.futures.CancelledError(), "doubt"),
    (concurrent.futures.TimeoutError(), "doubt"),
    (BrokenProcessPool(), "doubt"),
    (BrokenThreadPool(), "doubt"),
    (concurrent.futures.BrokenExecutor(), "doubt"),
    (TimeoutError(), "doubt"),
    (asyncio.IncompleteReadError(b"", 4), "doubt"),
    (asyncio.LimitOverrunError("long", 4), "doubt"),
    (asyncio.CancelledError(), "doubt"),
    (queue.Empty(), "doubt"),
    (queue.Full(), "ordinary"),
    (EOFError(), "doubt"),
    (TimeoutError(), "doubt"),
    (TimeoutError(), "doubt"),
    (ConnectionResetError(), "doubt"),
    (BrokenPipeError(), "doubt"),
    (ConnectionAbortedError(), "doubt"),
    (ConnectionError(), "doubt"),
    (ConnectionRefusedError(), "certain"),
    (socket.gaierror(-2, "unknown"), "certain"),
    (socket.herror(1, "unknown"), "certain"),
    (ssl.SSLError(1, "broken"), "doubt"),
    (ssl.SSLEOFError(8, "eof"), "doubt"),
    (ssl.SSLZeroReturnError(6, "closed"), "doubt"),
    (ssl.SSLCertVerificationError(1, "bad"), "certain"),
    (http.client.RemoteDisconnected("gone"), "doubt"),
    (http.client.IncompleteRead(b""), "doubt"),
    (http.client.BadStatusLine("?"), "doubt"),
    (http.client.LineTooLong("header"), "doubt"),
    (http.client.HTTPException("got more than 100 headers"), "doubt"),
    (http.client.InvalidURL("bad"), "certain"),
    (urllib.error.URLError(TimeoutError()), "doubt"),
    (urllib.error.URLError(ConnectionResetError()), "doubt"),
    (urllib.error.URLError("closed"), "doubt"),
    (urllib.error.URLError(ConnectionRefusedError()), "certain"),
    (urllib.error.URLError(socket.gaierror(-2, "unknown")), "certain"),
    (urllib.error.HTTPError("u", 404, "no", None, None), "ordinary"),  # type: ignore[arg-type]
    (urllib.error.HTTPError("u", 429, "no", None, None), "ordinary"),  # type: ignore[arg-type]
    (urllib.error.HTTPError("u", 408, "no", None, None), "doubt"),  # type: ignore[arg-type]
    (urllib.error.HTTPError("u", 502, "no", None, None), "doubt"),  # type: ignore[arg-type]
    (urllib.error.ContentTooShortError("short", b""), "doubt"),  # type: ignore[arg-type]
    (ftplib.error_temp("426 closed"), "doubt"),
    (ftplib.error_proto("?"), "doubt"),
    (ftplib.error_perm("550 no"), "ordinary"),
    (smtplib.SMTPServerDisconnected("gone"), "doubt"),
    (smtplib.SMTPConnectError(421, b"busy"), "certain"),
    (smtplib.SMTPDataError(554, b"no"), "ordinary"),
    (imaplib.IMAP4.abort("gone"), "doubt"),
    (imaplib.IMAP4.error("no"), "ordinary"),
    (poplib.error_proto("-ERR EOF"), "doubt"),
    (poplib.error_proto("-ERR no such message"), "ordinary"),
    (xmlrpc.client.ResponseError(), "doubt"),
    (xmlrpc.client.ProtocolError("u", 503, "busy", {}), "doubt"),
    (xmlrpc.client.Fault(1, "no"), "ordinary"),
    (sqlite3.OperationalError("database is locked"), "ordinary"),
    (ValueError("no"), "ordinary"),
    (FileNotFoundError(errno.ENOENT, "no"), "ordinary"),
    (PermissionError(errno.EACCES, "no"), "ordinary"),
]


@pytest.mark.parametrize("error, expected", STANDARD, ids=lambda value: repr(value)[:60])
def test_errors_of_the_standard_library(error: BaseException, expected: str) -> None:
    assert verdict(error) == expected


NETWORK = (
    *("ETIMEDOUT", "ECONNRESET", "ECONNABORTED", "EPIPE", "ESHUTDOWN", "ENETRESET", "ENETDOWN", "ENETUNREACH"),
    *("EHOSTUNREACH", "EHOSTDOWN", "ENOTCONN", "EIO", "ESTALE", "EINTR"),
)


@pytest.mark.parametrize("name", NETWORK)
def test_an_os_error_with_a_number_of_the_network_is_doubt(name: str) -> None:
    class Own(OSError):
        """Python maps numbers to classes for OSError itself only."""

    number = getattr(errno, name)
    assert verdict(OSError(number, "broken")) == "doubt"
    assert verdict(Own(number, "broken")) == "doubt"


def test_a_refused_connection_has_certainly_done_nothing_and_other_numbers_are_ordinary() -> None:
    class Own(OSError):
        pass

    assert verdict(Own(errno.ECONNREFUSED, "no")) == "certain"
    assert verdict(OSError(errno.ENOENT, "no")) == "ordinary"
    assert verdict(OSError("no number")) == "ordinary"


# ---- the clients --------------------------------------------------------------------------


class Code:
    def __init__(self, name: str) -> None:
        self.name = name


class Response:
    def __init__(self, status: int) -> None:
        self.status_code = status


CLIENTS: list[tuple[str, type | None, dict[str, Any], str]] = [
    ("grpc.RpcError", None, {"code": lambda: Code("DEADLINE_EXCEEDED")}, "doubt"),
    ("grpc.RpcError", None, {"code": lambda: Code("UNAVAILABLE")}, "doubt"),
    ("grpc.RpcError", None, {"code": lambda: Code("UNKNOWN")}, "doubt"),
    ("grpc.RpcError", None, {"code": lambda: Code("CANCELLED")}, "doubt"),
    ("grpc.RpcError", None, {"code": lambda: Code("ABORTED")}, "doubt"),
    ("grpc.RpcError", None, {"code": lambda: Code("INTERNAL")}, "doubt"),
    ("grpc.RpcError", None, {"code": lambda: Code("RESOURCE_EXHAUSTED")}, "doubt"),
    ("grpc.RpcError", None, {}, "doubt"),
    ("grpc.RpcError", None, {"code": lambda: Code("INVALID_ARGUMENT")}, "ordinary"),
    ("grpc.RpcError", None, {"code": lambda: Code("NOT_FOUND")}, "ordinary"),
    ("grpc.RpcError", None, {"code": lambda: Code("ALREADY_EXISTS")}, "ordinary"),
    ("grpc.RpcError", None, {"code": lambda: 1 / 0}, "doubt"),
    ("grpclib.exceptions.GRPCError", None, {"status": Code("UNAVAILABLE")}, "doubt"),
    ("grpclib.exceptions.GRPCError", None, {"status": Code("NOT_FOUND")}, "ordinary"),
    ("temporalio.service.RPCError", None, {"status": Code("DEADLINE_EXCEEDED")}, "doubt"),
    ("temporalio.service.RPCError", None, {"status": Code("ALREADY_EXISTS")}, "ordinary"),
    ("botocore.exceptions.ClientError", None, {"response": {"ResponseMetadata": {"HTTPStatusCode": 503}}}, "doubt"),
    ("botocore.exceptions.ClientError", None, {"response": {"ResponseMetadata": {"HTTPStatusCode": 404}}}, "ordinary"),
    ("botocore.exceptions.ClientError", None, {"response": {}}, "ordinary"),
    ("stripe._error.APIError", None, {"http_status": 500}, "doubt"),
    ("stripe._error.CardError", None, {"http_status": 402}, "ordinary"),
    ("stripe._error.RateLimitError", None, {"http_status": 429}, "ordinary"),
    ("google.api_core.exceptions.DeadlineExceeded", None, {"code": 504}, "doubt"),
    ("google.api_core.exceptions.ServiceUnavailable", None, {"code": 503}, "doubt"),
    ("google.api_core.exceptions.NotFound", None, {"code": 404}, "ordinary"),
    ("azure.core.exceptions.HttpResponseError", None, {"status_code": 500}, "doubt"),
    ("azure.core.exceptions.HttpResponseError", None, {"status_code": 409}, "ordinary"),
    ("twilio.base.exceptions.TwilioRestException", None, {"status": 400, "code": 21211}, "ordinary"),
    ("twilio.base.exceptions.TwilioRestException", None, {"status": 500, "code": 20500}, "doubt"),
    ("slack_sdk.errors.SlackApiError", None, {"response": Response(200)}, "ordinary"),
    ("slack_sdk.errors.SlackApiError", None, {"response": Response(503)}, "doubt"),
    ("elasticsearch.ApiError", None, {"meta": Response(502)}, "doubt"),
    ("psycopg.OperationalError", named("psycopg.Error").__class__, {"sqlstate": None}, "doubt"),
    ("psycopg.errors.AdminShutdown", named("psycopg.Error").__class__, {"sqlstate": "57P01"}, "doubt"),
    ("psycopg.errors.UniqueViolation", named("psycopg.Error").__class__, {"sqlstate": "23505"}, "ordinary"),
    ("psycopg2.OperationalError", named("psycopg2.Error").__class__, {"pgcode": None}, "doubt"),
    ("psycopg2.errors.UniqueViolation", named("psycopg2.Error").__class__, {"pgcode": "23505"}, "ordinary"),
    ("asyncpg.exceptions.AdminShutdownError", named("asyncpg.exceptions._base.PostgresError").__class__,
     {"sqlstate": "57P01"}, "doubt"),
    ("asyncpg.exceptions.UniqueViolationError", named("asyncpg.exceptions._base.PostgresError").__class__,
     {"sqlstate": "23505"}, "ordinary"),
    ("pymysql.err.OperationalError", named("pymysql.err.Error").__class__, {"args": (2013, "lost")}, "doubt"),
    ("pymysql.err.OperationalError", named("pymysql.err.Error").__class__, {"args": (2006, "gone")}, "doubt"),
    ("pymysql.err.OperationalError", named("pymysql.err.Error").__class__, {"args": (2003, "no")}, "certain"),
    ("pymysql.err.OperationalError", named("pymysql.err.Error").__class__, {"args": (1205, "lock")}, "ordinary"),
    ("sqlalchemy.exc.OperationalError", named("sqlalchemy.exc.DBAPIError").__class__,
     {"connection_invalidated": True}, "doubt"),
    ("sqlalchemy.exc.OperationalError", named("sqlalchemy.exc.DBAPIError").__class__,
     {"connection_invalidated": False, "orig": named("psycopg.OperationalError", named("psycopg.Error").__class__)},
     "doubt"),
    ("sqlalchemy.exc.IntegrityError", named("sqlalchemy.exc.DBAPIError").__class__,
     {"connection_invalidated": False}, "ordinary"),
    ("cimpl.KafkaException", None, {"args": (type("E", (), {"code": lambda self: -192})(),)}, "doubt"),
    ("cimpl.KafkaException", None, {"args": (type("E", (), {"code": lambda self: 10})(),)}, "ordinary"),
    ("requests.exceptions.HTTPError", None, {"response": Response(500)}, "doubt"),
    ("requests.exceptions.HTTPError", None, {"response": Response(429)}, "ordinary"),
    ("httpx.HTTPStatusError", None, {"response": Response(503)}, "doubt"),
    ("httpx.HTTPStatusError", None, {"response": Response(429)}, "ordinary"),
    ("httpx.HTTPStatusError", None, {"response": Response(302)}, "doubt"),
    ("aiohttp.client_exceptions.ContentTypeError", None, {"status": 200}, "doubt"),
    ("aiohttp.client_exceptions.ClientResponseError", None, {"status": 404}, "ordinary"),
    ("aiohttp.client_exceptions.TooManyRedirects", None, {"status": 0}, "doubt"),
    ("mcp.shared.exceptions.McpError", None, {"error": type("E", (), {"code": 408})}, "doubt"),
    ("mcp.shared.exceptions.MCPError", None, {"error": type("E", (), {"code": -32000}), "code": -32000}, "doubt"),
    ("mcp.shared.exceptions.MCPError", None, {"error": type("E", (), {"code": -32001}), "code": -32001}, "doubt"),
    ("mcp.shared.exceptions.MCPError", None, {"error": type("E", (), {"code": -32602}), "code": -32602}, "ordinary"),
]  # fmt: skip


@pytest.mark.parametrize("name, base, facts, expected", CLIENTS)
def test_errors_of_clients_that_have_to_be_looked_into(
    name: str, base: type | None, facts: dict[str, Any], expected: str
) -> None:
    assert verdict(named(name, *([base] if base else []), **facts)) == expected


@pytest.mark.parametrize("name", sorted(NEVER_SENT | MAYBE_SENT))
def test_every_class_of_the_tables_by_its_name_and_through_its_subclasses(name: str) -> None:
    expected = "certain" if name in NEVER_SENT else "doubt"
    if name.startswith("builtins."):
        return
    error = named(name)
    assert verdict(error) == expected
    assert verdict(named("my.shop.Own", type(error))) == expected


REAL = [
    *("httpx.ConnectError", "httpx.ConnectTimeout", "httpx.ReadTimeout", "httpx.ReadError", "httpx.DecodingError"),
    *("httpx.RemoteProtocolError", "httpx.WriteTimeout", "httpx.TooManyRedirects", "httpcore.ReadError"),
    *("httpcore.ConnectTimeout", "aiohttp.ServerDisconnectedError", "aiohttp.ClientPayloadError"),
    *("aiohttp.ServerTimeoutError", "requests.exceptions.ReadTimeout", "requests.exceptions.ConnectTimeout"),
    *("requests.exceptions.SSLError", "requests.exceptions.RetryError", "requests.exceptions.ChunkedEncodingError"),
    *("urllib3.exceptions.ReadTimeoutError", "urllib3.exceptions.ProtocolError", "psycopg.OperationalError"),
    *("anyio.BrokenResourceError", "anyio.EndOfStream", "anyio.ClosedResourceError", "anyio.BrokenWorkerProcess"),
    *("websockets.exceptions.ConnectionClosedError", "openai.APITimeoutError", "openai.APIConnectionError"),
    *("anthropic.APITimeoutError", "anthropic.APIConnectionError", "aiohttp.TooManyRedirects"),
    *("aiohttp.InvalidUrlRedirectClientError", "aiohttp.NonHttpUrlRedirectClientError"),
    *("temporalio.exceptions.CancelledError", "temporalio.exceptions.TimeoutError", "temporalio.service.RPCError"),
    *("temporalio.exceptions.TerminatedError", "temporalio.exceptions.ServerError"),
    *("temporalio.client.AsyncActivityCancelledError", "temporalio.client.RPCTimeoutOrCancelledError"),
]


@pytest.mark.parametrize("name", REAL)
def test_the_real_classes_are_called_what_the_tables_call_them(name: str) -> None:
    module, _, qualname = name.rpartition(".")
    cls = getattr(pytest.importorskip(module), qualname)
    error = cls.__new__(cls)
    assert verdict(error) == ("certain" if "Connect" in qualname and "Connection" not in qualname else "doubt")


# ---- groups and chains --------------------------------------------------------------------

LOST, NO = TimeoutError("no answer"), ValueError("no")


@pytest.mark.parametrize(
    "error, expected",
    [
        (ExceptionGroup("g", [NO, LOST]), "doubt"),
        (ExceptionGroup("g", [NO, ExceptionGroup("h", [ConnectionResetError()])]), "doubt"),
        (BaseExceptionGroup("g", [NO, asyncio.CancelledError()]), "doubt"),
        (ExceptionGroup("g", [NO, KeyError()]), "ordinary"),
        (ExceptionGroup("g", [NoEffect("none"), ConnectionRefusedError()]), "certain"),
        (ExceptionGroup("g", [NoEffect("none"), NO]), "ordinary"),
        (ExceptionGroup("g", [chained(ValueError("n"), LOST)]), "doubt"),
        (chained(RuntimeError("x"), ExceptionGroup("g", [NO, LOST])), "doubt"),
        (chained(RuntimeError("x"), LOST), "doubt"),
        (chained(RuntimeError("x"), chained(KeyError("y"), subprocess.TimeoutExpired("a", 1))), "doubt"),
        (chained(RuntimeError("x"), KeyError("y")), "ordinary"),
        (over(RuntimeError("x"), TimeoutError()), "doubt"),
        (over(RuntimeError("x"), TimeoutError(), hidden=True), "ordinary"),
        (over(RuntimeError("x"), KeyError()), "ordinary"),
        (over(ConnectionRefusedError(), TimeoutError()), "doubt"),
        (chained(NoEffect("certain"), TimeoutError()), "certain"),
        (chained(RuntimeError("x"), chained(NoEffect("certain"), TimeoutError())), "ordinary"),
        (over(RuntimeError("x"), asyncio.CancelledError()), "doubt"),
    ],
    ids=lambda value: repr(value)[:70],
)
def test_groups_and_chains(error: BaseException, expected: str) -> None:
    assert verdict(error) == expected


def test_a_chain_that_bites_its_tail_or_is_endless_is_read_to_an_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert verdict(first) == "ordinary"
    last: Exception = ValueError("end")
    for _ in range(5_000):
        link = ValueError("link")
        link.__cause__ = last
        last = link
    assert verdict(last) == "doubt", "nobody has read it to its end"


def test_a_client_that_could_not_connect_is_believed_over_what_it_was_raised_from() -> None:
    httpx = pytest.importorskip("httpx")
    low = chained(httpx.ConnectTimeout("slow"), TimeoutError())
    assert verdict(low) == "certain"
    twice = over(TimeoutError("connect"), named("httpx.ReadTimeout", named("httpx.TransportError").__class__))
    assert verdict(chained(httpx.ConnectTimeout("slow"), twice)) == "doubt", "an earlier request had been sent"


def test_what_the_caller_was_handling_is_no_part_of_the_error() -> None:
    ambient = TimeoutError("of another call")
    error = over(RuntimeError("x"), ambient)
    assert verdict(error) == "doubt"
    assert verdict(error, around=ambient) == "ordinary"


def test_doubt_of_a_tool_counts_for_leaves_and_causes_too() -> None:
    class Odd(Exception):
        pass

    @tool(kind="pivot", doubt=Odd)
    def odd() -> None: ...

    spec = specs_of([odd], order="strict")["odd"]
    for error in (Odd(), ExceptionGroup("g", [Odd()]), chained(ValueError(), Odd())):
        assert judge(spec, error).verdict == "doubt"


# ---- in a run, in both colours ------------------------------------------------------------


def _errors() -> list[Exception]:
    return [
        ExceptionGroup("g", [ValueError(), TimeoutError()]),
        subprocess.TimeoutExpired("a", 1),
        subprocess.CalledProcessError(-9, "a"),
        BrokenProcessPool(),
        OSError(errno.EHOSTUNREACH, "no route"),
        chained(RuntimeError("x"), ConnectionResetError()),
    ]


@pytest.mark.parametrize("at", range(6))
def test_a_doubt_is_in_doubt_and_not_done_again(at: int) -> None:
    done: list[str] = []

    @tool(name="pay")
    def pay() -> None:
        done.append("pay")
        raise _errors()[at]

    pay.compensate(lambda: done.append("refund"))
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        with pytest.raises(InDoubt):
            pay()
        pay()
    assert done == ["pay"]
    assert states(rt, "r") == {"pay": "in_doubt"}


@pytest.mark.parametrize("at", range(6))
def test_a_doubt_is_in_doubt_in_an_async_run(at: int) -> None:
    done: list[str] = []

    @tool(name="pay")
    async def pay() -> None:
        done.append("pay")
        raise _errors()[at]

    async def program() -> None:
        rt = AsyncRuntime("memory:", tools=[pay])
        with pytest.raises(RunBlocked):
            async with rt.run("r"):
                with pytest.raises(InDoubt):
                    await pay()
                await pay()
        assert (await rt.report("r")).calls[0].state == "in_doubt"

    pay.compensate(lambda: done.append("refund"))
    asyncio.run(program())
    assert done == ["pay"]


def test_a_task_group_with_one_lost_answer_is_doubt() -> None:
    @tool(name="pay")
    async def pay() -> None:
        async def lost() -> None:
            raise ConnectionResetError("gone")

        async def no() -> None:
            raise ValueError("no")

        async with asyncio.TaskGroup() as group:
            group.create_task(no())
            group.create_task(lost())

    pay.compensate(lambda: None)

    async def program() -> None:
        rt = AsyncRuntime("memory:", tools=[pay])
        with pytest.raises(RunBlocked):
            async with rt.run("r"):
                await pay()

    asyncio.run(program())
    rt = Runtime("memory:", tools=[pay])
    with pytest.raises(RunBlocked), rt.run("r") as run:
        run.call(pay)


def test_a_coroutine_cancelled_from_inside_is_doubt_in_a_blocking_run() -> None:
    @tool(name="pay")
    async def pay() -> None:
        raise asyncio.CancelledError

    pay.compensate(lambda: None)
    rt = Runtime("memory:", tools=[pay])
    with pytest.raises(RunBlocked), rt.run("r") as run:
        with pytest.raises(InDoubt):
            run.call(pay)
        assert states(rt, "r") == {"pay": "in_doubt"}
        raise KeyError


def test_an_answer_that_aiohttp_cannot_read_is_doubt_although_it_calls_it_a_bad_request() -> None:
    aiohttp = pytest.importorskip("aiohttp")
    parsing = aiohttp.http_exceptions.BadStatusLine("?")
    info = aiohttp.RequestInfo("http://shop.example", "POST", {}, "http://shop.example")
    raised = chained(aiohttp.ClientResponseError(info, (), status=parsing.code, message="bad"), parsing)
    assert verdict(raised) == "doubt"


@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("limits", [{}, {"timeout": 30.0}])
def test_a_coroutine_that_exits_in_a_blocking_run_is_doubt_and_the_next_one_still_runs(
    stop: type[BaseException], limits: dict[str, Any]
) -> None:
    @tool(name="pay", **limits)
    async def pay() -> None:
        await asyncio.sleep(0)
        raise stop

    @tool(name="look", kind="read")
    async def look() -> str:
        await asyncio.sleep(0)
        return "seen"

    pay.compensate(lambda: None)
    rt = Runtime("memory:", tools=[pay, look])
    with pytest.raises(RunBlocked), rt.run("r") as run:
        with pytest.raises((stop, InDoubt)):
            run.call(pay)
        assert run.call(look) == "seen"
        raise KeyError
    assert states(rt, "r")["pay"] == "in_doubt"


def test_a_coroutine_that_exited_is_over_and_its_probe_is_believed() -> None:
    @tool(name="pay")
    async def pay() -> None:
        raise SystemExit

    pay.compensate(lambda: None)
    pay.probe(settle=0)(lambda: Absent())
    rt = Runtime("memory:", tools=[pay])
    with pytest.raises(KeyError), rt.run("r") as run:
        with pytest.raises(SystemExit):
            run.call(pay)
        raise KeyError
    assert states(rt, "r") == {"pay": "failed"}


def test_a_fallback_inside_a_handler_is_not_doubted_for_what_is_handled() -> None:
    @tool(name="first")
    def first() -> None:
        raise TimeoutError

    @tool(name="second")
    def second() -> None:
        raise ValueError("declined")

    first.compensate(absent_ok=True)(lambda: None)
    second.compensate(lambda: None)
    rt = runtime(first, second)
    with rt.run("r"):
        try:
            raise TimeoutError("something of the caller's")
        except TimeoutError:
            assert sys.exception() is not None
            with pytest.raises(ValueError, match="declined"):
                second()
    assert states(rt, "r") == {"second": "failed"}

    async def program() -> None:
        @tool(name="third")
        async def third() -> None:
            raise ValueError("declined")

        third.compensate(lambda: None)
        art = AsyncRuntime("memory:", tools=[third])
        async with art.run("r"):
            try:
                raise TimeoutError("something of the caller's")
            except TimeoutError:
                with pytest.raises(ValueError, match="declined"):
                    await third()
        assert (await art.report("r")).calls[0].state == "failed"

    asyncio.run(program())


def test_a_doubtful_error_of_a_compensation_is_compensation_in_doubt() -> None:
    @tool(name="pay")
    def pay() -> None: ...

    @pay.compensate
    def refund() -> None:
        raise ExceptionGroup("g", [ValueError(), chained(KeyError(), BrokenPipeError())])

    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay()
        raise KeyError
    assert states(rt, "r") == {"pay": "compensation_in_doubt"}


def test_an_attempt_by_hand_is_judged_in_the_same_way() -> None:
    @tool(name="pay")
    def pay() -> None: ...

    pay.compensate(lambda: None)
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r") as run, run.begin("pay", {}):
        raise chained(RuntimeError("x"), ConnectionResetError())
    assert states(rt, "r") == {"pay": "in_doubt"}
    with rt.run("s") as run:
        run.begin("pay", {}).fail(TimeoutError("nothing had been sent"))
    assert states(rt, "s") == {"pay": "failed"}
