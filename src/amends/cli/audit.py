"""``amends audit``: verify the record, sign checkpoints, and exchange bundles with other people."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from amends import Runtime, Verified
from amends.cli.access import find_run, open_ledger, open_runtime, open_unmigrated, read_bundle, who
from amends.cli.exit_codes import CHAIN_BROKEN, DONE
from amends.cli.options import App, By, Filter, Json, LedgerOf, Tenant, Url, filter_of, group
from amends.cli.output import progress, put, put_facts, put_json, put_plain, put_table, say
from amends.cli.runs import event_facts
from amends.errors import UsageError
from amends.signing import new_key
from amends.visible import visible

verbs = group()
audit = group("Verify the record, sign it with checkpoints, and export it for others.")
verbs.add_typer(audit, name="audit")

# ---- Verification and checkpoints


@audit.command("verify")
def verify(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Only these runs. Default: the whole ledger.")
    ] = None,
    anchor: Annotated[
        Path | None, typer.Option("--anchor", metavar="FILE", help="A copy of the anchor that was kept elsewhere.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", help="A key that must have signed: ed25519-pub:KEY, or a file. Default: AMENDS_AUDIT_KEY."
        ),
    ] = None,
    app: App = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Check the record against its hashes, checkpoints and anchor; exit code 20 if it was changed."""
    if anchor is not None and not anchor.is_file():
        raise UsageError(f"there is no file {anchor}", hint="--anchor names a copy of the ledger's .anchor file")
    with open_runtime(app, url=url, tenant=None) as rt:
        ledger = str(rt.settings["url"].value)
        chosen = [find_run(rt, run) for run in runs or ()]
        with progress(f"reading {', '.join(map(visible, chosen)) or visible(ledger)}"):
            found = rt.verify(*chosen, anchor=None if anchor is None else str(anchor), keys=key or [])
    if as_json:
        put_json(found.to_dict(), id=ledger)
    else:
        _put_verified(ledger, found)
    return DONE if found.ok else CHAIN_BROKEN


@audit.command("checkpoint")
def checkpoint(app: App = None, url: Url = None, as_json: Json = False) -> int:
    """Write a signed checkpoint that covers every event so far, and write it to the anchor."""
    with open_runtime(app, url=url, tenant=None) as rt:
        with progress("writing a checkpoint"):
            newest = rt.checkpoint()
        is_signed, has_anchor = newest is not None and bool(newest.key), _has_anchor(rt)
    if newest is None:
        say("nothing has happened in this ledger yet")
        if as_json:
            put_plain("null")
        return DONE
    if as_json:
        put_json(newest.to_dict(), id=newest.n)
        return DONE
    put_facts({**newest.to_dict(), "heads": None, "prev": None})
    if not is_signed:
        say("it is not signed: amends audit keygen makes a key for AMENDS_AUDIT_KEY")
    if not has_anchor:
        say("no copy of it exists outside the ledger: set anchor, or on_checkpoint= in your program")
    return DONE


@audit.command("keygen")
def keygen(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it to this file, readable only by you.")
    ] = None,
    hmac: Annotated[
        bool,
        typer.Option(
            "--hmac", help="Make an HMAC key (standard library only): whoever can verify with it can sign, too."
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Make a key that signs checkpoints (AMENDS_AUDIT_KEY). Also show what others verify them with."""
    made = new_key("hmac" if hmac else "ed25519")
    if out is not None:
        _write_key(out, made.secret, made.public)
    if as_json:
        put_json({"public": made.public, **({"file": str(out)} if out else {"key": made.secret})}, id=made.public)
        return DONE
    if out is None:
        put(made.secret)
        say(f"keep it secret, like a password: AMENDS_AUDIT_KEY. Its public name is {made.public}")
        return DONE
    put(made.public)
    check = str(out) if hmac else made.public
    file = visible(str(out))
    say(f"{file} has the secret: AMENDS_AUDIT_KEY={file}. To verify: amends audit verify --key {check}")
    return DONE


def _put_verified(ledger: str, found: Verified) -> None:
    facts: dict[str, Any] = {
        "ledger": ledger,
        "verdict": "whole" if found.ok else "broken",
        "runs": f"{found.runs:,}",
        "events": f"{found.events:,}",
        "checkpoints": f"{found.checkpoints:,}",
        "not behind a checkpoint": f"{found.unanchored:,}",
        "known outside": f"checkpoint {found.anchored:,}" if found.anchored else "nothing",
    }
    if found.erasures:
        facts["erased on purpose"] = f"{found.erasures:,}"
    if found.unproved:
        facts["encrypted, not proved"] = f"{found.unproved:,}"
    put_facts(facts)
    if found.erased:
        put()
        said = [(one.run_id, f"{one.at:%Y-%m-%d %H:%M}", one.by, one.why, one.order) for one in found.erased]
        put_table(("erased run", "when", "by", "why", "order"), [tuple(map(_plainly, row)) for row in said])
    rows = [
        (visible(one.run_id or "-"), str(one.n or "-"), one.how, visible(one.text, prose=True))
        for one in found.problems
    ]
    if rows:
        put()
        put_table(("run", "event", "how", "what"), rows)
        say("keep a copy of the ledger as it is before you change anything")
        return
    if found.unproved:
        say("encrypted values cannot be verified without their keys: AMENDS_ENCRYPT")
    if found.checkpoints and not found.anchored:
        say(
            "there is no anchor: a ledger that was restored from a copy, or cut off with its checkpoints, looks the same"
        )
    if found.unanchored:
        say(f"the newest {found.unanchored:,} events could be removed unnoticed: amends audit checkpoint")


def _plainly(text: str) -> str:
    return visible(text, prose=True)


def _has_anchor(rt: Runtime) -> bool:
    return bool(rt.settings["anchor"].value) or str(rt.settings["url"].value).startswith("sqlite:")


def _write_key(out: Path, secret: str, public: str) -> None:
    try:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(
            f"{out} already exists, and may hold the key of a ledger", hint="name a file that does not exist"
        ) from error
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(f"# the key that signs checkpoints of amends; its public name is\n# {public}\n{secret}\n")


# ---- Bundles and events


@audit.command("export")
def export(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="The ids of the runs, or their first characters.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The bundle to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Export runs to one file that anybody can verify: python FILE."""
    with open_ledger(url, tenant, app=app) as rt:
        chosen = list(dict.fromkeys(find_run(rt, run) for run in runs))
        with progress(f"exporting {', '.join(map(visible, chosen))}"):
            bundle = rt.export(*chosen)
    _write_bundle(out, bundle, force=force)
    if as_json:
        put_json({"file": str(out), "runs": chosen, "bytes": len(bundle)}, id=str(out))
        return DONE
    put_table(("file", "runs", "bytes"), [(visible(str(out)), ", ".join(map(visible, chosen)), f"{len(bundle):,}")])
    say(f"anybody can verify it: python {visible(str(out))}")
    return DONE


@audit.command("import")
def load(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle that amends audit export wrote.")],
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    by: By = None,
    why: Annotated[str, typer.Option("--why", help="The reason; it is recorded with the import.")] = "",
    as_json: Json = False,
) -> int:
    """Import the runs of a bundle as read-only records; exit code 20 if the bundle was changed."""
    bundle = read_bundle(file)
    with (
        open_unmigrated(url, app, create=True, tenant=tenant) as rt,  # creates the ledger if there is none
        progress(f"checking {visible(str(file))}"),
    ):
        loaded = rt.load(bundle, by=who(by, rt), why=why)
        ledger = str(rt.settings["url"].value)
    if as_json:
        put_json({"ledger": ledger, "runs": loaded}, id=ledger)
        return DONE
    put_table(("ledger", "run"), [(visible(ledger), visible(run)) for run in loaded])
    say("they are read-only records here: use amends runs show, audit verify and replay; no worker continues them")
    return DONE


@audit.command("events")
def events(
    filter: Filter = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Only the events of this run and its children.")
    ] = None,
    after: Annotated[
        str,
        typer.Option(
            "--after",
            metavar="PLACE",
            help="Only events after this place (`place`), or in a run after this number (`seq`).",
        ),
    ] = "",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Show at most this many.")] = None,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
) -> int:
    """Print events as lines of JSON, oldest first. A filter is like at:>=2026-03-01 tool:pay."""
    with open_ledger(url, tenant, app=app) as rt:
        named = None if run is None else find_run(rt, run)
        # A number is one only inside of a run; in the whole ledger it is refused with a hint.
        place = int(after) if after.isdecimal() and after.isascii() else after
        for event in islice(rt.events(named, after=place, filter=filter_of(filter)), limit):
            put_json(event_facts(event), id=event.place)
    sys.stdout.flush()
    return DONE


def _write_bundle(out: Path, data: bytes, *, force: bool) -> None:
    """Write the whole file or nothing: half a bundle under its name could be taken for a whole one."""
    if out.exists() and not force:
        raise UsageError(f"{out} already exists", hint="name another file, or add --force")
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
