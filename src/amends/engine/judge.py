"""What an error says about the effect: certainly none, or perhaps.

The table in ``docs/reference/errors-of-tools.md`` is generated from here. Classes of HTTP clients are matched
by name, so that none of them is imported.
"""

from __future__ import annotations

from typing import Final, Literal

from amends.model import NoEffect
from amends.tool import Spec

Verdict = Literal["certain", "ordinary", "doubt"]

NEVER_SENT: Final = frozenset(
    {
        "builtins.ConnectionRefusedError",
        "socket.gaierror",
        "ssl.SSLCertVerificationError",
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
    }
)
"""The request never left: nothing can have happened."""

PERHAPS: Final = frozenset(
    {
        "builtins.TimeoutError",
        "builtins.ConnectionError",
        "builtins.EOFError",
        "concurrent.futures._base.TimeoutError",
        "ssl.SSLError",
        "http.client.BadStatusLine",
        "http.client.IncompleteRead",
        "urllib.error.URLError",
        "httpx.TransportError",
        "httpx.StreamError",
        "httpx2.TransportError",
        "httpx2.StreamError",
        "httpcore.TimeoutException",
        "httpcore.NetworkError",
        "httpcore.RemoteProtocolError",
        "httpcore2.TimeoutException",
        "httpcore2.NetworkError",
        "httpcore2.RemoteProtocolError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "requests.exceptions.ChunkedEncodingError",
        "urllib3.exceptions.MaxRetryError",
        "urllib3.exceptions.TimeoutError",
        "urllib3.exceptions.ProtocolError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "botocore.exceptions.ConnectionClosedError",
        "botocore.exceptions.ReadTimeoutError",
        "stripe.APIConnectionError",
        "stripe._error.APIConnectionError",
        "stripe.error.APIConnectionError",
        "openai.APIConnectionError",
        "openai.InternalServerError",
        "anthropic.APIConnectionError",
        "anthropic.InternalServerError",
        "grpc.RpcError",
        "smtplib.SMTPServerDisconnected",
        "amends.idempotency.KeyReused",
    }
)
"""The request may have been sent: the effect may be there."""


def judge(spec: Spec, error: Exception) -> Verdict:
    """``certain``: nothing happened. ``ordinary``: the tool's word that nothing did. ``doubt``: perhaps it did."""
    if isinstance(error, NoEffect):
        return "certain"
    if spec.doubt and isinstance(error, spec.doubt):
        return "doubt"
    status = _status_of(error)
    if status is not None:
        # 5xx (or 408): the server broke while it worked on the request. Other answers are a clear no.
        return "doubt" if status >= 500 or status == 408 else "ordinary"
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__}
    if names & NEVER_SENT:
        return "certain"
    return "doubt" if names & PERHAPS else "ordinary"


def _status_of(error: Exception) -> int | None:
    """The HTTP status that the error carries, if it does: then there was an answer."""
    response = getattr(error, "response", None)
    for holder, names in ((response, ("status_code", "status")), (error, ("status_code", "status", "code"))):
        for name in names:
            status = getattr(holder, name, None)
            if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
                return status
    return None


def why_doubtful(error: Exception) -> str:
    """One word for the record."""
    return "timeout" if isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower() else "connection"
