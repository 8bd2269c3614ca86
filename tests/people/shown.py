"""An approval as a hook gets it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from amends import Call
from amends.model import Approval

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
UNTIL = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def approval(args: dict[str, Any] | None = None, **changes: Any) -> Approval:
    """A wire that waits for a person."""
    call = Call(
        run_id="order-1042",
        tool="bank.wire",
        version="2",
        args={"iban": "DE02 1203", "cents": 420_000} if args is None else args,
        tenant="acme",
        agent="payer",
        principal="paula",
        id="call_1",
    )
    one = Approval("apr_7K2", call, "d" * 64, "pending", UNTIL, AT, rule="more than 1,000")
    return replace(one, **changes)
