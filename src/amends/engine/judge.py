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
        "httpx.ConnectError",
        "httpx.ConnectTimeout",
        "httpx.PoolTimeout",
        "httpx.UnsupportedProtocol",
        "httpcore.ConnectError",
        "httpcore.ConnectTimeout",
        "httpcore.PoolTimeout",
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
        "http.client.RemoteDisconnected",
        "http.client.IncompleteRead",
        "httpx.TransportError",
        "httpx.StreamError",
        "httpcore.TimeoutException",
        "httpcore.NetworkError",
        "httpcore.RemoteProtocolError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "requests.exceptions.ChunkedEncodingError",
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
    }
)
"""The request may have been sent: the effect may be there."""


def judge(spec: Spec, error: Exception) -> Verdict:
    """``certain``: nothing happened. ``ordinary``: the tool's word that nothing did. ``doubt``: perhaps it did."""
    if isinstance(error, NoEffect):
        return "certain"
    if spec.doubt and isinstance(error, spec.doubt):
        return "doubt"
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__}
    if names & NEVER_SENT:
        return "certain"
    if names & PERHAPS or _server_failed(error):
        return "doubt"
    return "ordinary"


def _server_failed(error: Exception) -> bool:
    """A 5xx (or 408) answer: the server broke while it worked on the request. Other 4xx are a clear no."""
    response = getattr(error, "response", None)
    for holder, names in ((response, ("status_code", "status")), (error, ("status_code", "status", "code"))):
        for name in names:
            status = getattr(holder, name, None)
            if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
                return status >= 500 or status == 408
    return False


def why_doubtful(error: Exception) -> str:
    """One word for the record."""
    return "timeout" if isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower() else "connection"
