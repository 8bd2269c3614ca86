"""Judge how a body ended: success, certain failure, or doubt.

This is the only place where errors are judged: those of bodies, of compensations and of attempts by hand. Also here:
results that are none, because the MCP server that was asked says that it failed or has not done it. The tables
in ``docs/reference/errors-of-tools.md`` are generated from here. Classes of clients are matched by name, through their
base classes, so that no client is imported.
"""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

from amends.encoding.dataclass import dataclass
from amends.errors import (
    DOUBT_WORDS,
    NOT_YET_WORDS,
    OUTCOME,
    REMOTE,
    ApprovalVoid,
    Error,
    InDoubt,
    LedgerError,
    Locked,
    Refused,
    RolledBack,
    RunBlocked,
    ToolFailed,
    UsageError,
    Waiting,
    class_name,
    is_a,
    type_name,
    words_of,
)
from amends.ledger.rows import FINAL_NO
from amends.ledger.world import Ended, LazyCall
from amends.model import Call, NoEffect, WorkLost
from amends.tools.spec import Errors, Spec

# ---- Verdicts


Verdict = Literal["certain", "ordinary", "doubt"]

LINKS_MAX: Final = 1_000
"""The most errors of one group or chain that are looked at; one with more is a doubt."""

NEVER_SENT: Final = frozenset(
    {
        "builtins.ConnectionRefusedError",
        "socket.gaierror",
        "socket.herror",
        "ssl.SSLCertVerificationError",
        "http.client.CannotSendRequest",
        "http.client.InvalidURL",
        "http.client.NotConnected",
        "multiprocessing.context.AuthenticationError",
        "smtplib.SMTPConnectError",
        "httpx.ConnectError",
        "httpx.ConnectTimeout",
        "httpx.PoolTimeout",
        "httpx.UnsupportedProtocol",
        "httpx2.ConnectError",
        "httpx2.ConnectTimeout",
        "httpx2.PoolTimeout",
        "httpx2.UnsupportedProtocol",
        "httpcore.ConnectError",
        "httpcore.ConnectTimeout",
        "httpcore.PoolTimeout",
        "httpcore2.ConnectError",
        "httpcore2.ConnectTimeout",
        "httpcore2.PoolTimeout",
        "requests.exceptions.ConnectTimeout",
        "requests.exceptions.InvalidURL",
        "urllib3.exceptions.NewConnectionError",
        "urllib3.exceptions.ConnectTimeoutError",
        "aiohttp.client_exceptions.ClientConnectorError",
        "aiohttp.client_exceptions.ConnectionTimeoutError",
        "aiohttp.client_exceptions.InvalidURL",
        "aiosmtplib.errors.SMTPConnectError",
        "anyio.ConnectionFailed",
        "asyncpg.exceptions.CannotConnectNowError",
        "asyncpg.exceptions.ClientCannotConnectError",
        "asyncpg.exceptions.ConnectionRejectionError",
        "asyncssh.misc.ChannelOpenError",
        "asyncssh.misc.HostKeyNotVerifiable",
        "asyncssh.misc.PermissionDenied",
        "azure.core.exceptions.ServiceRequestError",
        "botocore.exceptions.ConnectTimeoutError",
        "botocore.exceptions.EndpointConnectionError",
        "botocore.exceptions.ProxyConnectionError",
        "nats.errors.ConnectionDrainingError",
        "nats.errors.NoRespondersError",
        "nats.errors.NoServersError",
        "paramiko.ssh_exception.AuthenticationException",
        "paramiko.ssh_exception.BadHostKeyException",
        "paramiko.ssh_exception.ChannelException",
        "paramiko.ssh_exception.NoValidConnectionsError",
        "pika.exceptions.AuthenticationError",
        "pika.exceptions.ChannelWrongStateError",
        "pika.exceptions.ConnectionWrongStateError",
        "pika.exceptions.IncompatibleProtocolError",
        "psycopg.errors.ConnectionTimeout",
        "psycopg_pool.PoolTimeout",
        "psycopg_pool.errors.PoolTimeout",
        "pymongo.errors.ServerSelectionTimeoutError",
        "pymongo.errors.WaitQueueTimeoutError",
        "redis.exceptions.AuthenticationError",
        "redis.exceptions.BusyLoadingError",
        "redis.exceptions.MaxConnectionsError",
        "sqlalchemy.exc.TimeoutError",
        "valkey.exceptions.AuthenticationError",
        "valkey.exceptions.BusyLoadingError",
        "valkey.exceptions.MaxConnectionsError",
        "websocket._exceptions.WebSocketAddressException",
        "websockets.exceptions.InvalidHandshake",
        "websockets.exceptions.InvalidURI",
    }
)
"""The request was never sent: nothing can have happened."""

MAYBE_SENT: Final = frozenset(
    {
        "builtins.TimeoutError",
        "builtins.ConnectionError",
        "builtins.EOFError",
        "builtins.InterruptedError",
        "_queue.Empty",
        "asyncio.exceptions.LimitOverrunError",
        "concurrent.futures._base.BrokenExecutor",
        "concurrent.futures._base.CancelledError",
        "concurrent.futures._base.TimeoutError",
        "ftplib.error_proto",
        "ftplib.error_reply",
        "ftplib.error_temp",
        "http.client.BadStatusLine",
        "http.client.HTTPException",
        "http.client.IncompleteRead",
        "imaplib.IMAP4.abort",
        "multiprocessing.context.BufferTooShort",
        "multiprocessing.context.TimeoutError",
        "multiprocessing.pool.MaybeEncodingError",
        "queue.Empty",
        "smtplib.SMTPServerDisconnected",
        "ssl.SSLError",
        "subprocess.TimeoutExpired",
        "xmlrpc.client.ResponseError",
        "httpx.DecodingError",
        "httpx.StreamError",
        "httpx.TooManyRedirects",
        "httpx.TransportError",
        "httpx2.DecodingError",
        "httpx2.StreamError",
        "httpx2.TooManyRedirects",
        "httpx2.TransportError",
        "httpcore.NetworkError",
        "httpcore.ProxyError",
        "httpcore.RemoteProtocolError",
        "httpcore.TimeoutException",
        "httpcore2.NetworkError",
        "httpcore2.ProxyError",
        "httpcore2.RemoteProtocolError",
        "httpcore2.TimeoutException",
        "requests.exceptions.ChunkedEncodingError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.ContentDecodingError",
        "requests.exceptions.JSONDecodeError",
        "requests.exceptions.RetryError",
        "requests.exceptions.Timeout",
        "requests.exceptions.TooManyRedirects",
        "urllib3.exceptions.DecodeError",
        "urllib3.exceptions.MaxRetryError",
        "urllib3.exceptions.ProtocolError",
        "urllib3.exceptions.ProxyError",
        "urllib3.exceptions.ResponseError",
        "urllib3.exceptions.SSLError",
        "urllib3.exceptions.TimeoutError",
        "agents.exceptions.MCPToolCancellationError",
        "agents.exceptions.ToolTimeoutError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "aiohttp.client_exceptions.InvalidUrlRedirectClientError",
        "aiohttp.client_exceptions.RedirectClientError",
        "aiohttp.client_exceptions.TooManyRedirects",
        "aiohttp.http_exceptions.HttpProcessingError",
        "aiokafka.errors.KafkaConnectionError",
        "aiokafka.errors.KafkaTimeoutError",
        "aiokafka.errors.NodeNotReadyError",
        "aiokafka.errors.NotEnoughReplicasAfterAppendError",
        "aiokafka.errors.RequestTimedOutError",
        "aiokafka.errors.UnknownError",
        "amends.idempotency.KeyReused",
        "amqp.exceptions.ConnectionError",
        "anthropic.APIConnectionError",
        "anthropic.InternalServerError",
        "anyio.BrokenResourceError",
        "anyio.BrokenWorkerInterpreter",
        "anyio.BrokenWorkerProcess",
        "anyio.ClosedResourceError",
        "anyio.DelimiterNotFound",
        "anyio.EndOfStream",
        "anyio.IncompleteRead",
        "asyncpg.exceptions._base.InternalClientError",
        "asyncpg.exceptions.ConnectionDoesNotExistError",
        "asyncpg.exceptions.ConnectionFailureError",
        "asyncpg.exceptions.PostgresConnectionError",
        "asyncssh.misc.DisconnectError",
        "azure.core.exceptions.DecodeError",
        "azure.core.exceptions.ServiceResponseError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.HTTPClientError",
        "botocore.exceptions.IncompleteReadError",
        "celery.exceptions.TimeoutError",
        "billiard.exceptions.WorkerLostError",
        "elastic_transport.ConnectionError",
        "elastic_transport.ConnectionTimeout",
        "elasticsearch.exceptions.ConnectionError",
        "elasticsearch.exceptions.ConnectionTimeout",
        "google.api_core.exceptions.Aborted",
        "google.api_core.exceptions.RetryError",
        "grpc.FutureCancelledError",
        "grpc.FutureTimeoutError",
        "grpclib.exceptions.ProtocolError",
        "grpclib.exceptions.StreamTerminatedError",
        "kafka.errors.KafkaConnectionError",
        "kafka.errors.KafkaTimeoutError",
        "kafka.errors.NetworkExceptionError",
        "kafka.errors.NodeNotReadyError",
        "kafka.errors.NotEnoughReplicasAfterAppendError",
        "kafka.errors.RequestTimedOutError",
        "kafka.errors.UnknownError",
        "kombu.exceptions.OperationalError",
        "nats.errors.ConnectionClosedError",
        "nats.errors.ConnectionReconnectingError",
        "nats.errors.StaleConnectionError",
        "openai.APIConnectionError",
        "openai.InternalServerError",
        "openai.WebSocketConnectionClosedError",
        "opensearchpy.exceptions.ConnectionError",
        "paramiko.ssh_exception.SSHException",
        "pexpect.exceptions.EOF",
        "pexpect.exceptions.TIMEOUT",
        "pika.exceptions.AMQPConnectionError",
        "pika.exceptions.ChannelClosed",
        "pymongo.errors.BulkWriteError",
        "pymongo.errors.ConnectionFailure",
        "pymongo.errors.ExecutionTimeout",
        "pymongo.errors.WriteConcernError",
        "redis.exceptions.ConnectionError",
        "redis.exceptions.TimeoutError",
        "sqlalchemy.exc.DisconnectionError",
        "stripe.APIConnectionError",
        "stripe._error.APIConnectionError",
        "stripe.error.APIConnectionError",
        "temporalio.client._exceptions.AsyncActivityCancelledError",
        "temporalio.client._exceptions.RPCTimeoutOrCancelledError",
        "temporalio.exceptions.CancelledError",
        "temporalio.exceptions.ServerError",
        "temporalio.exceptions.TerminatedError",
        "temporalio.exceptions.TimeoutError",
        "trio.BrokenResourceError",
        "trio.ClosedResourceError",
        "trio.EndOfChannel",
        "trio.TooSlowError",
        "valkey.exceptions.ConnectionError",
        "valkey.exceptions.TimeoutError",
        "websocket._exceptions.WebSocketConnectionClosedException",
        "websocket._exceptions.WebSocketTimeoutException",
        "websockets.exceptions.ConnectionClosed",
    }
)
"""The request may have been sent: the effect may exist."""

ERRNOS: Final = frozenset(
    getattr(errno, name)
    for name in (
        *("ETIMEDOUT", "ECONNRESET", "ECONNABORTED", "EPIPE", "ESHUTDOWN", "ENETRESET", "ENETDOWN", "ENETUNREACH"),
        *("EHOSTUNREACH", "EHOSTDOWN", "ENOTCONN", "ENOLINK", "ECOMM", "EPROTO", "ETIME", "EREMOTEIO", "ESTALE"),
        *("EIO", "EINTR", "ENONET", "ESTRPIPE"),
    )
    if hasattr(errno, name)
)
"""Error numbers of an ``OSError`` after which the effect may exist: the connection, the share or the disk broke."""

BUSY_STATUSES: Final = frozenset({401, 407, 425, 429})
"""HTTP statuses that no other arguments change: the program is not logged in, or asks too often."""
ABOUT_THE_ADDRESS: Final = frozenset(
    {
        "InvalidURL",
        "InvalidURI",
        "UnsupportedProtocol",
        "TooManyRedirects",
        "InvalidUrlRedirectClientError",
        "KeyReused",
    }
)
"""Errors of clients that may be about an argument, although they say something about the request."""
CLEAR_REFUSALS: Final = frozenset({"slack_sdk.errors.SlackApiError"})
"""Classes that report a clear refusal although the HTTP status is 200."""

_WRAPPERS: Final = frozenset({"urllib3.exceptions.MaxRetryError"})
"""Wrappers without a meaning of their own: under an error of ``NEVER_SENT`` they only repeat it."""
_TRANSPORT_MODULES: Final = frozenset(
    {"builtins", "socket", "_socket", "ssl", "_ssl", "asyncio", "concurrent", "anyio", "trio", "select"}
)
"""Modules whose errors are the usual causes of a client's own errors."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an error says about the effect; ``why``: the reason of a doubt, or that a no is final, for the record."""

    verdict: Verdict
    why: str = ""


def judge(
    spec: Spec,
    error: BaseException,
    *,
    around: BaseException | None = None,
    nested: bool = False,
    is_undone: Callable[[Exception], bool] | None = None,
    is_body: bool = True,
) -> Judgement:
    """Judge what an error says about the effect of the body that raised it.

    ``certain``: nothing happened. ``ordinary``: an ordinary error, by which the tool says that nothing happened.
    ``doubt``: something may have happened. A group, or an error that was raised over another one (``from``, or while
    that one was handled), is a doubt as soon as one of them is.

    ``around``: what the caller was handling when the body began, which does not count. ``nested``: a call inside the
    body had its effect, or may have. ``is_undone``: whether everything that such an error can have left behind was
    rolled back with the caller's transaction. ``is_body``: it was raised by the body, about which the tool's
    ``no_effect`` speaks, and not by a compensation.
    """
    harmless = spec.no_effect if is_body else ()
    if (
        type(error) in _ORDINARY and harmless == () and not spec.doubt and is_undone is None and _is_single(error, around)
        and not error.__dict__ and not _says_doubt(words_of(error))
    ):  # fmt: skip
        return _SAID  # as the rest would find
    if is_harmless(error, harmless):
        return Judgement("certain", FINAL_NO if is_a(error, NoEffect) and error.final is True else "")
    verdicts: dict[int, Verdict] = {}
    for count, (link, covered) in enumerate(_links(error, around, harmless)):
        if count >= LINKS_MAX:
            return Judgement("doubt", "connection")
        found = verdicts[id(link)] = _verdict_of(spec, link, harmless, nested=nested, is_undone=is_undone)
        if found == "doubt" and not (covered and _adds_nothing(link)):
            return Judgement("doubt", _doubt_reason(link))
    for leaf in _leaves(error):
        said = verdicts.get(id(leaf)) or _verdict_of(spec, leaf, harmless, nested=nested, is_undone=is_undone)
        if said != "certain":
            return Judgement("ordinary")
    return Judgement("certain")


_SAID: Final = Judgement("ordinary")


def _is_single(error: BaseException, around: BaseException | None) -> bool:
    """Return whether this error was raised over no other one that counts."""
    if _CAUSE(error) is not None:
        return False
    context = _CONTEXT(error)
    return context is None or context is around or _SUPPRESSED(error)


def is_harmless(error: BaseException, harmless: Errors) -> bool:
    """Return whether the tool says for certain that nothing happened: ``NoEffect``, or one of these classes."""
    return is_a(error, NoEffect) or (harmless != () and matches(error, harmless))


# ---- Groups and chains of errors


def lost_answer(error: BaseException) -> InDoubt | None:
    """Return the ``InDoubt`` that this error is, contains or was raised over; None if there is none."""
    for link, _ in itertools.islice(_links(error, None, ()), LINKS_MAX):
        if is_a(link, InDoubt):
            return link
    return None


def answered_status(error: BaseException) -> int | None:
    """Return the HTTP status of the answer that an error is about; None if it is about none."""
    return _status_of(error, "status_code", "status", "http_status")


def is_broken(error: BaseException) -> bool:
    """Return whether an error says that a connection or a service broke, so that other arguments do not help.

    An answer that blames the request (400, 404, 409, 422 and their kind) is believed, whatever it was raised over.
    """
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo and len(seen) < LINKS_MAX:
        link = todo.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        todo.append(_CAUSE(link) or (None if _SUPPRESSED(link) else _CONTEXT(link)))
        if is_a(link, BaseExceptionGroup):
            todo += _EXCEPTIONS(link)
            continue
        status = answered_status(link)
        if status is not None:
            return _is_broken(status) or status in BUSY_STATUSES
        name = class_name(type(link)).rpartition(".")[2]
        if name not in ABOUT_THE_ADDRESS and _verdict_by_class(link) != "ordinary":
            return True
    return False


def _links(
    error: BaseException, around: BaseException | None, harmless: Errors
) -> Iterator[tuple[BaseException, bool]]:
    """Yield every error of the group or chain once, the error itself first.

    With each: whether it is the cause of an error that says that nothing was sent. A client's "could not connect" is
    raised over the timeout or the refusal that caused it, and those add nothing to it.
    """
    seen: set[int] = set()
    todo = [(error, False)]
    while todo:
        link, covered = todo.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link, covered
        if is_harmless(link, harmless):
            continue  # whatever it was raised over: the tool says it for certain
        if is_a(link, BaseExceptionGroup):
            todo += [(leaf, covered) for leaf in _EXCEPTIONS(link)]
        cause, context = _CAUSE(link), _CONTEXT(link)
        if cause is None and context is None:
            continue
        low = _is_transport_error(link)
        covers = (covered or _verdict_by_class(link) == "certain") and not low
        if cause is not None:
            todo.append((cause, covers or (covered and low)))
        if context is not None and context is not around and not _SUPPRESSED(link):
            todo.append((context, covers))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo = [error]
    while todo:
        link = todo.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        if is_a(link, BaseExceptionGroup):
            todo += _EXCEPTIONS(link)
        else:
            yield link


# The slots themselves, whatever a class overrides.
_CAUSE: Final = BaseException.__dict__["__cause__"].__get__
_CONTEXT: Final = BaseException.__dict__["__context__"].__get__
_SUPPRESSED: Final = BaseException.__dict__["__suppress_context__"].__get__
_EXCEPTIONS: Final = BaseExceptionGroup.__dict__["exceptions"].__get__


def _is_transport_error(error: BaseException) -> bool:
    return class_name(type(error)).partition(".")[0] in _TRANSPORT_MODULES


def _adds_nothing(error: BaseException) -> bool:
    return _is_transport_error(error) or class_name(type(error)) in _WRAPPERS


# ---- One error


def _verdict_of(
    spec: Spec, error: BaseException, harmless: Errors, *, nested: bool, is_undone: Callable[[Exception], bool] | None
) -> Verdict:
    """Return what one error of a group or chain says by itself."""
    if is_harmless(error, harmless):
        return "certain"
    if not is_a(error, Exception):
        return "doubt"  # a cancellation, an interrupt, an exit
    if is_undone is not None and is_undone(error):
        return "ordinary"
    if is_a(error, Error):
        return _verdict_of_amends_error(error, nested=nested)
    if spec.doubt and matches(error, spec.doubt):
        return "doubt"
    return "doubt" if _says_doubt(words_of(error)) else _verdict_by_class(error)


def matches(error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Return whether the error is of one of these classes; by its real class if ``isinstance`` raises."""
    try:
        return isinstance(error, kinds)
    except Exception:
        return any(kind in type(error).__mro__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))


def _verdict_of_amends_error(error: Any, *, nested: bool) -> Verdict:
    """Return what an error of amends says when it passes through a body.

    It is about a call inside the body, or a run.
    """
    if is_a(error, Waiting, InDoubt, RunBlocked, LedgerError, Locked):
        return "doubt"  # the body stopped in the middle: nobody knows what it had done by then
    if is_a(error, ApprovalVoid) and error.asked:
        return "doubt"  # a person was asked anew
    if is_a(error, RolledBack) and getattr(getattr(error, "report", None), "state", "") != "rolled_back":
        return "doubt"
    return "doubt" if nested and is_a(error, Refused, UsageError, RolledBack) else "ordinary"


def _verdict_by_class(error: BaseException) -> Verdict:
    """Judge by the HTTP status that the error carries, else by its class and base classes, the nearest first."""
    if type(error) in _ORDINARY and not error.__dict__:
        return "ordinary"  # as the rest would find: it carries nothing but its message
    names = [class_name(cls) for cls in type.__dict__["__mro__"].__get__(type(error))]
    status = _status_of(error, "status_code", "status", "http_status")
    if status is not None:
        return _of_status(status, names)
    for name in names:
        if name in NEVER_SENT:
            return "certain"
        if name in MAYBE_SENT:
            return "doubt"
        if name in BY_CONTENT:
            found = BY_CONTENT[name](error)
            if found is not None:
                return found
    status = _status_of(error, "code", "errcode")  # perhaps a number of its own: only a server error is believed
    return "doubt" if status is not None and _is_broken(status) else "ordinary"


_ORDINARY: Final = frozenset({ValueError, TypeError, KeyError, IndexError, RuntimeError, ZeroDivisionError, Exception})
"""Errors of Python that no table of this module names; tests compare."""


def _of_status(status: int, names: list[str]) -> Verdict:
    """Return what an answer with this HTTP status says about the effect.

    5xx, 408 and 499: the server broke or gave up while it worked on the request. 2xx, and 3xx that do not ask for the
    same request elsewhere: it was done, and something after that failed. All others are a clear refusal.
    """
    if _is_broken(status) or status < 200:
        return "doubt"
    done = status < 400 and status not in (304, 307, 308)
    return "doubt" if done and CLEAR_REFUSALS.isdisjoint(names) else "ordinary"


def _is_broken(status: int) -> bool:
    return status >= 500 or status in (408, 499)


def _status_of(error: BaseException, *names: str) -> int | None:
    """Return the HTTP status that the error carries, if any: then there was an answer."""
    response = _peek(error, "response")
    if isinstance(response, Mapping):
        facts = response.get("ResponseMetadata")
        status = facts.get("HTTPStatusCode") if isinstance(facts, Mapping) else None
        return status if _is_status(status) else None
    for holder in (response, _peek(error, "meta"), _peek(error, "resp"), error):
        for name in names:
            status = _peek(holder, name)
            if _is_status(status):
                return int(status)
    return None


def _is_status(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599


def _peek(holder: object, name: str) -> Any:
    """Return an attribute, or None if there is none or it cannot be read."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _doubt_reason(error: BaseException) -> str:
    """Return the reason of the doubt in one word for the record."""
    if is_a(error, InDoubt) and error.why == REMOTE:
        return REMOTE
    if is_a(error, Error):
        return NESTED
    if not is_a(error, Exception):
        return "cancelled"
    if _says_doubt(words_of(error)):
        return REMOTE
    is_timeout = is_a(error, TimeoutError) or "timeout" in type_name(error).lower()
    is_timeout = is_timeout or _peek(_peek(error, "error"), "code") in MCP_TIMEOUTS
    return "timeout" if is_timeout else "connection"


def has_ended(error: BaseException | None) -> bool:
    """Return whether this error of a body means that whoever performed the work elsewhere sends nothing more.

    That process has reported the error (``ToolFailed``), or its lease has ended (``WorkLost``).
    """
    return error is not None and is_a(error, ToolFailed, WorkLost)


NESTED: Final = "nested"
"""The reason of a doubt if the body ended because of a call inside it that had not ended."""


# ---- Results that are none

OUTCOMES_MAX: Final = 20
"""How many parts of a result are searched."""
_DEPTH_MAX: Final = 3
_MARKED: Final = f'{{"{OUTCOME}"'
_RESULTS: Final = frozenset(
    {
        "fastmcp.client.client.CallToolResult",
        "fastmcp.tools.base.ToolResult",
        "langchain_core.messages.tool.ToolMessage",
        "mcp.types.CallToolResult",
        "mcp_types._types.CallToolResult",
        "pydantic_ai.messages.ToolReturn",
    }
)
"""Classes of results that may have come from an MCP server."""
_PARTS: Final = ("meta", "structured_content", "structuredContent", "artifact", "return_value", "content")
_NOT_YET: Final = frozenset({"held", "staged"})


def heard(ended: Ended, call: Call | LazyCall) -> Ended:
    """Return how a body really ended: one that returned an MCP server's "no", "not yet" or "nobody knows" has no result.

    Without it the record would say that a call succeeded which its server refused, or left to a person.
    """
    if ended.value is None or ended.error is not None or ended.in_flight:
        return ended
    error = error_in(ended.value, call)
    return ended if error is None else Ended(error=error)


def error_in(value: object, call: Call | LazyCall | None) -> Exception | None:
    """Return the error that this result of a tool stands for; None: it is a result.

    A server that is guarded by amends says what it did not execute under the key ``amends/outcome``. If only a text
    says so, it is a doubt: a text may come from anybody.
    """
    if value is None or isinstance(value, _SCALARS):
        return None
    if type(value) is dict and SAYING.isdisjoint(value):
        return None  # as the rest would find
    said = _outcome_in(value, _DEPTH_MAX)
    if said is None:
        if not _is_failed_result(value):
            return None
        return ToolFailed(_texts_in(value) or "the server sent no message", call=_whole(call), type_name="")
    executed, text = said.get("executed"), str(said.get("text") or said.get("status") or "")
    if executed is True:
        return None
    if executed is False and said.get("status") not in _NOT_YET and said.get(_FROM_TEXT) is not True:
        return NoEffect(text)
    return InDoubt(text, call=_whole(call), why=REMOTE)


_FROM_TEXT: Final = "amends/from-text"
_SCALARS: Final = (bool, int, float, bytes)
SAYING: Final = frozenset({OUTCOME, "structured_content", "text"})
"""Keys of a dict under which a client may have put what a guarded server says."""


def _whole(call: Call | LazyCall | None) -> Call | None:
    return call.whole() if isinstance(call, LazyCall) else call


def _outcome_in(value: object, depth: int) -> Mapping[str, Any] | None:
    """Return what a guarded server says about its call, wherever a client has put it."""
    if isinstance(value, str):
        return _read_outcome(value)
    if isinstance(value, dict):
        said = value.get(OUTCOME)
        if isinstance(said, dict):
            return said
        parts = [value[name] for name in ("structured_content", "text") if name in value]  # see ``SAYING``
    elif isinstance(value, list | tuple):
        parts = list(value[:OUTCOMES_MAX])
    elif _is_result(value):
        parts = [_peek(value, name) for name in _PARTS]
    else:
        text = _peek(value, "text") if _peek(value, "type") == "text" else None
        parts = [text] if isinstance(text, str) else []
    found = (_outcome_in(part, depth - 1) for part in parts if depth and part is not None)
    return next((one for one in found if one is not None), None)


def _read_outcome(text: str) -> Mapping[str, Any] | None:
    if not text.startswith(_MARKED):
        return None
    try:
        said = json.loads(text)[OUTCOME]
    except (ValueError, RecursionError):
        return None
    return {**said, _FROM_TEXT: True} if isinstance(said, dict) else None


def _is_result(value: object) -> bool:
    return any(class_name(cls) in _RESULTS for cls in type.__dict__["__mro__"].__get__(type(value)))


def _is_failed_result(value: object) -> bool:
    """Return whether it is a result of MCP by which the tool says that it failed."""
    if isinstance(value, str | list | tuple | dict) or not _is_result(value):
        return False
    return _peek(value, "is_error") is True or _peek(value, "isError") is True


def _texts_in(value: object) -> str:
    content = _peek(value, "content")
    blocks = content[:OUTCOMES_MAX] if isinstance(content, list) else []
    return "\n".join(text for block in blocks if isinstance(text := _peek(block, "text"), str))


def _says_doubt(words: str) -> bool:
    """Return whether an error repeats what a guarded server said of a call that is in doubt, or not executed yet.

    Clients turn a server's result into an error of their own and keep only its text.
    """
    if DOUBT_WORDS in words or (words.startswith(NOT_YET_WORDS) and "person's" in words):
        return True
    at = words.find(_MARKED)
    if at < 0:
        return False
    try:
        said = json.JSONDecoder().raw_decode(words, at)[0].get(OUTCOME)
    except (ValueError, RecursionError):
        return True  # cut off: nobody knows what it said
    return not isinstance(said, dict) or said.get("executed") is not False or said.get("status") in _NOT_YET


# ---- Classes whose content decides

DOUBTFUL_EXITS: Final = frozenset({124, *range(129, 193)})
"""Exit codes of a shell for a child that a signal killed (128 + its number), and of ``timeout``."""
WINDOWS_KILLED: Final = 0xC0000000


def _of_exit(error: BaseException) -> Verdict:
    """Judge the exit of a child: one that was killed may have done its work.

    An exit code of its own means no effect.
    """
    code = _peek(error, "returncode")
    if not isinstance(code, int):
        return "doubt"
    return "doubt" if code < 0 or code in DOUBTFUL_EXITS or code >= WINDOWS_KILLED else "ordinary"


def _of_errno(error: BaseException) -> Verdict | None:
    number = _peek(error, "errno")
    if number == errno.ECONNREFUSED:
        return "certain"
    return "doubt" if number in ERRNOS else None


def _of_reason(error: BaseException) -> Verdict:
    """Judge the error that urllib wraps: what broke while it connected or sent."""
    reason = _peek(error, "reason")
    return "certain" if is_a(reason, Exception) and _verdict_by_class(reason) == "certain" else "doubt"


def _of_http_code(error: BaseException) -> Verdict:
    code = _peek(error, "code")
    return _of_status(code, []) if _is_status(code) else "doubt"


GRPC_REFUSALS: Final = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "UNAUTHENTICATED",
    }
)
"""gRPC codes by which a server refuses; every other one may come from the connection."""


def _of_grpc(error: BaseException) -> Verdict:
    code = _peek(error, "code") or _peek(error, "status")
    try:
        code = code() if callable(code) else code
    except Exception:
        return "doubt"
    return "ordinary" if _peek(code, "name") in GRPC_REFUSALS else "doubt"


SQLSTATES: Final = ("08", "40003", "57P01", "57P02", "57P05", "58", "HYT")
"""Prefixes of SQLSTATEs after which nobody knows whether the statement or its commit took effect."""
SQLSTATES_UNSENT: Final = ("08001", "08004", "57P03")


def _of_sqlstate(error: BaseException) -> Verdict | None:
    """Judge by SQLSTATE: with one the server itself answered and rolled back; without one the connection broke."""
    state = _peek(error, "sqlstate") or _peek(error, "pgcode")
    if isinstance(state, str) and state:
        if state in SQLSTATES_UNSENT:
            return "certain"
        return "doubt" if state.startswith(SQLSTATES) else "ordinary"
    names = {class_name(cls).rpartition(".")[2] for cls in type(error).__mro__}
    return "doubt" if "OperationalError" in names else None


def _of_odbc(error: BaseException) -> Verdict | None:
    args = _peek(error, "args")
    state = args[0] if isinstance(args, tuple) and args else None
    if not isinstance(state, str):
        return None
    return "certain" if state in SQLSTATES_UNSENT else "doubt" if state.startswith(SQLSTATES) else "ordinary"


MYSQL_LOST: Final = frozenset({2006, 2013, 2014, 2027, 2055, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031})
MYSQL_UNSENT: Final = frozenset({2002, 2003, 2005, 1040, 1045, 1203, 1226})


def _of_mysql(error: BaseException) -> Verdict | None:
    args = _peek(error, "args")
    code = args[0] if isinstance(args, tuple) and args else None
    number = _peek(error, "errno")
    code = number if isinstance(number, int) and number > 0 else code
    if code in MYSQL_UNSENT:
        return "certain"
    return "doubt" if code in MYSQL_LOST else None


def _of_oracle(error: BaseException) -> Verdict | None:
    args = _peek(error, "args")
    return "doubt" if isinstance(args, tuple) and args and _peek(args[0], "isrecoverable") is True else None


def _of_sqlite(error: BaseException) -> Verdict | None:
    """Judge SQLITE_IOERR and its kind as doubt: the disk failed, perhaps in the middle of the commit."""
    code = _peek(error, "sqlite_errorcode")
    return "doubt" if isinstance(code, int) and code & 0xFF == 10 else None


def _of_sqlalchemy(error: BaseException) -> Verdict | None:
    if _peek(error, "connection_invalidated") is True:
        return "doubt"
    origin = _peek(error, "orig")
    return _verdict_by_class(origin) if is_a(origin, BaseException) else None


KAFKA_LOST: Final = frozenset({-1, 7, 13, 20, -185, -187, -192, -195, -196, -197})


def _of_kafka(error: BaseException) -> Verdict | None:
    args = _peek(error, "args")
    code = _peek(args[0], "code") if isinstance(args, tuple) and args else None
    try:
        number = code() if callable(code) else code
    except Exception:
        return "doubt"
    return "doubt" if number in KAFKA_LOST else None


MCP_TIMEOUTS: Final = frozenset({-32001, 408})
MCP_LOST: Final = frozenset({-32000, -32603, -32700, *MCP_TIMEOUTS})
"""Codes of MCP errors after which the effect may exist: the connection ended, the server broke (any HTTP status from
400 on, except 404, becomes -32603), its answer could not be read, there was none in time."""
_MCP_UNREADABLE: Final = "content type"


def _of_mcp(error: BaseException) -> Verdict | None:
    """Judge by the code of the error. An answer in a form that the client does not know came after the request."""
    facts = _peek(error, "error")
    if _peek(facts, "code") in MCP_LOST:
        return "doubt"
    said = _peek(facts, "message")
    return "doubt" if isinstance(said, str) and _MCP_UNREADABLE in said.lower() else None


def _of_pop(error: BaseException) -> Verdict | None:
    return "doubt" if words_of(error).endswith("-ERR EOF") else None


BY_CONTENT: Final[dict[str, Callable[[BaseException], Verdict | None]]] = {
    "MySQLdb.Error": _of_mysql,
    "MySQLdb._exceptions.Error": _of_mysql,
    "asyncmy.errors.Error": _of_mysql,
    "asyncpg.exceptions._base.PostgresError": _of_sqlstate,
    "builtins.OSError": _of_errno,
    "cimpl.KafkaException": _of_kafka,
    "fastmcp.exceptions.MCPError": _of_mcp,
    "grpc.RpcError": _of_grpc,
    "grpclib.exceptions.GRPCError": _of_grpc,
    "mcp.shared.exceptions.MCPError": _of_mcp,
    "mcp.shared.exceptions.McpError": _of_mcp,
    "mysql.connector.errors.Error": _of_mysql,
    "oracledb.exceptions.Error": _of_oracle,
    "poplib.error_proto": _of_pop,
    "psycopg.Error": _of_sqlstate,
    "psycopg2.Error": _of_sqlstate,
    "pymysql.err.Error": _of_mysql,
    "pyodbc.Error": _of_odbc,
    "sqlalchemy.exc.DBAPIError": _of_sqlalchemy,
    "sqlite3.Error": _of_sqlite,
    "subprocess.CalledProcessError": _of_exit,
    "temporalio.service.RPCError": _of_grpc,
    "urllib.error.HTTPError": _of_http_code,
    "urllib.error.URLError": _of_reason,
}
"""Classes whose content decides: a code, an exit, a state, a wrapped error; None: it says nothing."""
