"""Record who ordered work on the ledger. ``note_work`` is a verb of the runtime (see ``amends.host.verbs``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from amends.errors import UsageError
from amends.host.host import Host, View
from amends.ledger.operations import OrderWork

WORDS_CHARS_MAX: Final = 10_000


async def note_work(
    host: Host, view: View, what: str, *, by: str, why: str = "", about: Mapping[str, Any] | None = None
) -> str:
    """Record that a person ordered work on the ledger; return the id of that record.

    A checkpoint, gc, ``reencrypt`` and ``recover`` leave no event that names a person. Whoever serves others calls this
    before it does one of them: the event ``work ordered`` has who, why, and the token of this view.

    ``what``: the name of the verb. ``about``: its parameters, as JSON data.
    """
    _check(what, by, why)
    try:
        words = json.dumps({"what": what, **(about or {})}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"about= is JSON data: {error}") from None
    if len(words) > WORDS_CHARS_MAX:
        raise UsageError(f"about= has more than {WORDS_CHARS_MAX:,} characters as JSON")
    row = await OrderWork(host.new_id("wrk"), view.tenant or None, words, by, why)
    return row.id


def _check(what: Any, by: Any, why: Any) -> None:
    if not (isinstance(what, str) and what.strip()):
        raise UsageError("the work to record has a name, for example gc")
    if not (isinstance(by, str) and by.strip() and isinstance(why, str)):
        raise UsageError("an order of work needs who gave it (by=); the reason (why=) is a text, which may be empty")
