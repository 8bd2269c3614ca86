"""``amends reconcile``: the ledger beside the world."""

from __future__ import annotations

from amends.cli.access import working
from amends.cli.codes import DONE, IN_DOUBT, NEEDS_A_PERSON
from amends.cli.show import progress, put_json, put_plain
from amends.visible import visible


def reconcile(tool: str, *, limit: int, app: str | None, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends reconcile``."""
    with (
        working(app, url=url, tenant=tenant, needed="comparing the ledger with the world") as rt,
        progress(f"asking the world about {visible(tool)}"),
    ):
        found = rt.reconcile(tool, limit=limit)
    if as_json:
        put_json(found.to_dict())
    else:
        put_plain(str(found))
    if not found.agrees:
        return NEEDS_A_PERSON
    return IN_DOUBT if found.doubts else DONE
