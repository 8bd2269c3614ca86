"""Verbs for whoever runs a ledger: its schema, and what may go from it."""

from __future__ import annotations

from typing import Any

from amends import Runtime, Schema
from amends.cli.access import reading, who
from amends.cli.codes import DONE, FAILED
from amends.cli.show import agrees, must_ask, progress, put_json, put_table, say
from amends.visible import visible

UP_TO_DATE, PENDING = 0, 1


def show_schema(*, url: str | None, as_json: bool) -> int:
    """See ``amends db status``. Nothing is made: not even an empty file."""
    rt = Runtime(url, create=False)
    try:
        schema = rt.schema()
    finally:
        rt.close()
    _put(rt, schema, as_json)
    if schema.version == 0:
        say("there is no ledger yet; amends db migrate makes it")
    elif schema.needs > schema.newest:
        say("a newer amends has changed this ledger: upgrade amends to use it")
        return PENDING
    elif schema.pending:
        say("amends db migrate brings it up to date; so does the first program that uses it")
    return PENDING if schema.pending else UP_TO_DATE


def migrate(*, url: str | None, as_json: bool) -> int:
    """See ``amends db migrate``."""
    rt = Runtime(url)
    try:
        before = rt.schema()
        schema = rt.migrate()
    finally:
        rt.close()
    _put(rt, schema, as_json)
    done = len(before.pending)
    say("nothing to do" if not done else f"{done} migration{'s' if done > 1 else ''} applied")
    return UP_TO_DATE


def _put(rt: Runtime, schema: Schema, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "url": rt.settings["url"].value,
        "ledger": schema.ledger or None,
        "version": schema.version,
        "newest": schema.newest,
        "needs": schema.needs,
        "pending": list(schema.pending),
    }
    if as_json:
        put_json(facts)
        return
    shown = facts | {"ledger": schema.ledger or "(none)", "pending": ", ".join(schema.pending) or "(none)"}
    put_table(("ledger's", "value"), [(name, visible(str(value), prose=True)) for name, value in shown.items()])


def restored(*, by: str | None, why: str, yes: bool, url: str | None, as_json: bool) -> int:
    """See ``amends db restored``."""
    asks = must_ask(yes, "letting a restored ledger start things")
    with reading(url, None) as rt:
        person = who(by, rt)
        if asks:
            say(
                "What was done since the copy was made is not in this ledger: compare it with the world first, for each"
            )
            say("tool with amends reconcile TOOL. Its approvals that were not used by then become void.")
            if not agrees(f"{visible(person)} has looked. Start things again?"):
                return FAILED
        voided = rt.reconcile_restore(by=person, why=why)
        ledger = rt.settings["url"].value
    if as_json:
        put_json({"voided": voided})
    else:
        put_table(("ledger", "approvals void now"), [(visible(str(ledger)), str(voided))])
    return DONE


def reencrypt(*, url: str | None, as_json: bool) -> int:
    """See ``amends db reencrypt``."""
    with reading(url, None) as rt:
        rows, keys = rt.reencrypt(), str(rt.settings["encrypt"].value)
    newest = keys.partition(",")[0]
    if as_json:
        put_json({"rows": rows, "key": newest})
    else:
        put_table(("key", "rows written"), [(visible(newest), str(rows))])
    say("everything but events is encrypted with this key; an older one is needed only to read what events quote")
    return 0


def collect(
    older_than: str,
    *,
    dry_run: bool,
    limit: int | None,
    yes: bool,
    url: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """See ``amends gc``."""
    with reading(url, tenant) as rt:
        ledger = rt.settings["url"].value
        if not dry_run and not _agreed(rt, older_than, limit=limit, yes=yes):
            return FAILED
        with progress(f"looking at runs that ended longer than {visible(older_than)} ago"):
            gone = rt.gc(older_than=older_than, dry_run=dry_run, limit=limit)
    if as_json:
        facts = {"runs": gone.runs, "calls": gone.calls, "bytes": gone.bytes, "kept": dict(gone.kept)}
        put_json(facts | {"dry_run": gone.dry_run})
        return DONE
    rows = [("would be removed" if dry_run else "removed", str(gone.runs), str(gone.calls), f"{gone.bytes:,}")]
    rows += [(f"kept: {visible(why, prose=True)}", str(count), "", "") for why, count in sorted(gone.kept.items())]
    put_table(("", "runs", "calls", "bytes"), rows)
    if not gone.runs:
        say(
            f"no run of {visible(str(ledger))} ended longer than {visible(older_than)} ago and still has something to remove"
        )
    return DONE


def _agreed(rt: Runtime, older_than: str, *, limit: int | None, yes: bool) -> bool:
    """Whether whoever is asked lets it go; where nothing would go, nobody is asked."""
    would = rt.gc(older_than=older_than, dry_run=True, limit=1)  # tells of an age that makes no sense before all else
    if not must_ask(yes, "removing what runs said") or not would.runs:
        return True
    would = rt.gc(older_than=older_than, dry_run=True, limit=limit)
    return agrees(f"Remove what {would.runs} runs said ({would.calls} calls, {would.bytes:,} bytes)?")
