"""The service: a runtime behind HTTP (extra ``serve``).

``app(rt)`` returns the ASGI application: serve it with uvicorn, or mount it into a Starlette or FastAPI program.
"""

from __future__ import annotations

from collections.abc import Sequence

from amends import AsyncRuntime, Runtime
from amends.serve.access import Access, Accessor, Who
from amends.serve.limits import Limits
from amends.serve.secrets import Secrets
from amends.serve.service import Service

__all__ = ["Access", "Limits", "Service", "Who", "app"]


def app(
    rt: Runtime | AsyncRuntime,
    *,
    access: Accessor | None = None,
    limits: Limits | None = None,
    worker: bool = True,
    read_only: bool = False,
    secrets: Secrets | str | Sequence[str] | None = None,
    metrics: bool = False,
) -> Service:
    """Return the ASGI application that serves this runtime, of either colour.

    ``access``: from a request to a ``Who``; by default the tokens of the ledger (``amends tokens create``) and logins.
    ``limits``: sizes, times and rates. ``worker``: recover runs in this process too. ``read_only``: refuse whatever
    changes something. ``secrets``: what cookies and the tokens of claims are signed with, instead of the settings; all
    servers of one ledger share them, the first signs, and all are accepted. ``metrics``: let ``/metrics`` tell what the
    runtime does, too, and not only what the service does. The application starts with the server's lifespan, or with
    its first request where it is mounted. It never closes the runtime.
    """
    given = Secrets(secrets) if isinstance(secrets, str | Sequence) else secrets
    return Service(rt, access=access, limits=limits, worker=worker, read_only=read_only, secrets=given, metrics=metrics)
