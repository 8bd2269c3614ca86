"""Compute the keys and digests of a call: what makes two requests the same call.

``call_key`` finds the call in the ledger, ``identity_digest`` says whether a repeat means the same, ``request_digest``
names everything that a person approves. ``provider_key`` and ``compensation_key`` go to the destination.
"""

from __future__ import annotations

from amends.encoding.canonical import (
    digest,
    digest_of,
    head,
)
from amends.ledger.rows import CallRow


def call_key(tenant: str, scope: str, tool: str, identity: str, again: str = "") -> str:
    """Return the key of a call.

    ``scope`` is the run, or ``ledger``; ``identity`` is the canonical text of the arguments that count, or what the
    tool's ``key=`` returned; ``again`` asks for a repetition on purpose.
    """
    return digest_of(head("call", tenant, scope, tool), identity, again)


def identity_digest(meaning: str) -> str:
    """Return the digest of the arguments that carry intent: a repeat with another one is a conflict."""
    return digest_of(head("ident"), meaning)


def request_digest(tool: str, version: str, args: str) -> str:
    """Return the digest of the tool's version and all arguments."""
    return digest_of(head("digest", tool, version), args)


def provider_key(row: CallRow) -> str:
    """Return the idempotency key for the destination: of this key and this generation."""
    return digest("provider", row.key, row.generation)


def compensation_key(row: CallRow) -> str:
    """Return the idempotency key of the compensation: it is a call of its own, so it has its own key."""
    return digest("compensation", row.key, row.generation)
