"""The service: a runtime behind HTTP (extra ``serve``).

``app(rt)`` returns the ASGI application: serve it with uvicorn, or mount it into a Starlette or FastAPI program.
``tenants({"acme": rt, …})`` returns one for several ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amends import AsyncRuntime, Runtime
from amends.secrets import Secrets
from amends.serve.access import Access, Accessor, Who
from amends.serve.limits import Limits
from amends.serve.service import Service
from amends.serve.tenants import Tenants, check_table

__all__ = ["Access", "Limits", "Service", "Tenants", "Who", "app", "tenants"]


def app(
    rt: Runtime | AsyncRuntime,
    *,
    access: Accessor | None = None,
    limits: Limits | None = None,
    worker: bool = True,
    read_only: bool = False,
    secrets: Secrets | str | Sequence[str] | None = None,
    metrics: bool = False,
    console: bool = True,
) -> Service:
    """Return the ASGI application that serves this runtime, of either colour.

    ``access``: from a request to a ``Who``; by default the tokens of the ledger (``amends tokens create``) and logins.
    ``limits``: sizes, times and rates. ``worker``: recover runs in this process too. ``read_only``: refuse whatever
    changes something. ``secrets``: what cookies and the tokens of claims are signed with, instead of the settings; all
    servers of one ledger share them, the first signs, and all are accepted. ``metrics``: let ``/metrics`` tell what the
    runtime does, too, and not only what the service does. ``console``: serve the pages for people, too. The application
    starts with the server's lifespan, or with its first request where it is mounted. It never closes the runtime.
    """
    given = Secrets(secrets) if isinstance(secrets, str | Sequence) else secrets
    return Service(
        rt, access=access, limits=limits, worker=worker, read_only=read_only, secrets=given, metrics=metrics,
        console=console,
    )  # fmt: skip


def tenants(table: Mapping[str, Runtime | AsyncRuntime], **options: Any) -> Tenants:
    """Return the ASGI application that serves each tenant from a ledger of its own, below ``/{tenant}``.

    ``options``: those of ``app``, for every tenant. Raises ``BadConfig``, before anything is served, if a name cannot be
    part of an address, if a value is no runtime, or if two tenants have the same ledger.
    """
    check_table(table)
    return Tenants({name: app(rt, **options) for name, rt in table.items()})
