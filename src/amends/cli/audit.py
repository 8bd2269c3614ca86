"""Verbs for whoever has to prove what happened: the record held against itself, its checkpoints, its keys."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from amends import Runtime, Verified
from amends.cli.access import reading, run_named, working
from amends.cli.options import CHAIN_BROKEN, DONE, App, Filter, Json, Tenant, Url, group, said
from amends.cli.runs import event_facts
from amends.cli.show import progress, put, put_facts, put_json, put_table, say
from amends.errors import UsageError
from amends.signing import new_key
from amends.visible import visible

# ---- Verbs for handing the record to somebody else; they stand below ``amends audit``


def add_bundles_to(audit: typer.Typer) -> None:
    """Put these verbs into the group."""
    audit.command("export")(audit_export)
    audit.command("import")(audit_import)
    audit.command("events")(audit_events)


def audit_export(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="The runs' ids, or the beginnings of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The bundle to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Write all that the ledger says of these runs into one file that anybody can check: python FILE."""
    return export(runs, out=out, force=force, url=url, tenant=tenant, as_json=as_json)


def audit_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle: amends audit export wrote it.")],
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Load the runs of a bundle into a ledger, as records that nothing works with; exit code 20 if it was changed."""
    return load(file, url=url, tenant=tenant, as_json=as_json)


def audit_events(
    filter: Filter = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only the tree of this run.")] = None,
    after: Annotated[int, typer.Option("--after", min=0, metavar="SEQ", help="Only what comes after this place.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    url: Url = None,
    tenant: Tenant = None,
) -> int:
    """Print events as lines of JSON, oldest first; by time, tool, agent, principal, state: at:>=2026-03-01 tool:pay."""
    return events(said(filter), run=run, after=after, limit=limit, url=url, tenant=tenant)


# ---- Verbs for whoever has to prove what happened: the record held against itself, its checkpoints, its k


audit = group("Prove what happened, or that somebody has changed the record of it.")


def add_to(app: typer.Typer) -> None:
    """Put these verbs into the program."""
    add_bundles_to(audit)
    app.add_typer(audit, name="audit")


@audit.command("verify")
def audit_verify(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Only these runs; else the whole ledger.")
    ] = None,
    anchor: Annotated[
        Path | None, typer.Option("--anchor", metavar="FILE", help="A copy of the anchor that was kept elsewhere.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Who must have signed: ed25519-pub:…, or a file; else AMENDS_AUDIT_KEY."),
    ] = None,
    app: App = None,
    url: Url = None,
    as_json: Json = False,
) -> int:
    """Hold the record against its hashes, its checkpoints and its anchor; exit code 20 where somebody changed it."""
    return verify(runs or [], anchor=anchor, keys=key or [], app=app, url=url, as_json=as_json)


@audit.command("checkpoint")
def audit_checkpoint(app: App = None, url: Url = None, as_json: Json = False) -> int:
    """Put everything that has happened behind a checkpoint, sign it, and write it to the anchor."""
    return write_checkpoint(app=app, url=url, as_json=as_json)


@audit.command("keygen")
def audit_keygen(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it there, for its owner's eyes only.")
    ] = None,
    hmac: Annotated[
        bool, typer.Option("--hmac", help="A key of the standard library: who can check with it can sign, too.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Make a key that checkpoints are signed with (AMENDS_AUDIT_KEY), and say what others check them with."""
    return make_key(out=out, hmac=hmac, as_json=as_json)


# ---- ``amends audit``: the record held against itself and against what others know, and the keys of its c


def verify(
    runs: list[str], *, anchor: Path | None, keys: list[str], app: str | None, url: str | None, as_json: bool
) -> int:
    """See ``amends audit verify``."""
    if anchor is not None and not anchor.is_file():
        raise UsageError(f"there is no file {anchor}", hint="--anchor names a copy of the ledger's .anchor file")
    with working(app, url=url, tenant=None) as rt:
        ledger = str(rt.settings["url"].value)
        chosen = [run_named(rt, run) for run in runs]
        with progress(f"reading {', '.join(map(visible, chosen)) or visible(ledger)}"):
            found = rt.verify(*chosen, anchor=None if anchor is None else str(anchor), keys=keys)
    if as_json:
        put_json(found.to_dict())
    else:
        _put_verified(ledger, found)
    return DONE if found.ok else CHAIN_BROKEN


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
    if found.unproved:
        facts["encrypted, not proved"] = f"{found.unproved:,}"
    put_facts(facts)
    rows = [
        (visible(one.run_id or "-"), str(one.n or "-"), str(one.seq or "-"), one.how, visible(one.text, prose=True))
        for one in found.problems
    ]
    if rows:
        put()
        put_table(("run", "event", "place", "how", "what"), rows)
        say("keep a copy of the ledger as it is before anything is done to it")
        return
    if found.unproved:
        say("of what is encrypted nobody can tell without its keys whether it was changed: AMENDS_ENCRYPT")
    if found.checkpoints and not found.anchored:
        say("no anchor was there: a ledger that was put back, or cut off with its checkpoints, looks the same")
    if found.unanchored:
        say(f"the newest {found.unanchored:,} events could be cut off unseen: amends audit checkpoint")


def write_checkpoint(*, app: str | None, url: str | None, as_json: bool) -> int:
    """See ``amends audit checkpoint``."""
    with working(app, url=url, tenant=None) as rt:
        with progress("writing a checkpoint"):
            newest = rt.checkpoint()
        is_signed, has_anchor = newest is not None and bool(newest.key), _has_anchor(rt)
    if newest is None:
        say("nothing has happened in this ledger yet")
        if as_json:
            put_json(None)
        return DONE
    if as_json:
        put_json(newest.to_dict())
        return DONE
    put_facts({**newest.to_dict(), "heads": None, "prev": None})
    if not is_signed:
        say("it is not signed: amends audit keygen makes a key for AMENDS_AUDIT_KEY")
    if not has_anchor:
        say("nobody outside the ledger knows of it: set anchor, or on_checkpoint= in your program")
    return DONE


def _has_anchor(rt: Runtime) -> bool:
    return bool(rt.settings["anchor"].value) or str(rt.settings["url"].value).startswith("sqlite:")


def make_key(*, out: Path | None, hmac: bool, as_json: bool) -> int:
    """See ``amends audit keygen``."""
    made = new_key("hmac" if hmac else "ed25519")
    if out is not None:
        _write_key(out, made.secret, made.public)
    if as_json:
        put_json({"public": made.public, **({"file": str(out)} if out else {"key": made.secret})})
        return DONE
    if out is None:
        put(made.secret)
        say(f"keep it as you keep passwords: AMENDS_AUDIT_KEY. Others know it as {made.public}")
        return DONE
    put(made.public)
    check = str(out) if hmac else made.public
    file = visible(str(out))
    say(f"{file} has the secret: AMENDS_AUDIT_KEY={file}. Who is to check says: amends audit verify --key {check}")
    return DONE


def _write_key(out: Path, secret: str, public: str) -> None:
    try:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(
            f"{out} is there already, and may hold the key of a ledger", hint="name a file that is not there"
        ) from error
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(f"# the key that checkpoints of amends are signed with; others know it as\n# {public}\n{secret}\n")


# ---- ``amends audit export``, ``import`` and ``events``: the record in the hands of somebody else


FILE_BYTES_MAX: Final = 1 << 28
"""A file that is larger is no bundle of ours."""


def export(
    runs: list[str], *, out: Path, force: bool, url: str | None, tenant: str | None, as_json: bool
) -> int:  # fmt: skip
    """See ``amends audit export``."""
    with reading(url, tenant) as rt:
        chosen = list(dict.fromkeys(run_named(rt, run) for run in runs))
        with progress(f"exporting {', '.join(map(visible, chosen))}"):
            bundle = rt.export(*chosen)
    _write(out, bundle, force=force)
    if as_json:
        put_json({"file": str(out), "runs": chosen, "bytes": len(bundle)})
        return DONE
    put_table(("file", "runs", "bytes"), [(visible(str(out)), ", ".join(map(visible, chosen)), f"{len(bundle):,}")])
    say(f"whoever has it can check it: python {visible(str(out))}")
    return DONE


def _write(out: Path, data: bytes, *, force: bool) -> None:
    """All of it or nothing: half a bundle under its name would be taken for one."""
    if out.exists() and not force:
        raise UsageError(f"{out} is there already", hint="name another file, or say --force")
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


def load(file: Path, *, url: str | None, tenant: str | None, as_json: bool) -> int:
    """See ``amends audit import``. The ledger is made where there is none: an empty one is what records are put into."""
    bundle = _read(file)
    rt = Runtime(url, tenant=tenant)
    try:
        with progress(f"checking {visible(str(file))}"):
            loaded = rt.load(bundle)
        ledger = str(rt.settings["url"].value)
    finally:
        rt.close()
    if as_json:
        put_json({"ledger": ledger, "runs": loaded})
        return DONE
    put_table(("ledger", "run"), [(visible(ledger), visible(run)) for run in loaded])
    say("they are records here: nothing works with them; amends runs show, audit verify and replay read them")
    return DONE


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as packed:
            data = packed.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{file} has more than {FILE_BYTES_MAX:,} bytes: it is no bundle")
    return data


def events(
    filter: str, *, run: str | None, after: int, limit: int | None, url: str | None, tenant: str | None
) -> int:  # fmt: skip
    """See ``amends audit events``. Always lines of JSON: this is for programs, ``amends runs watch`` for eyes."""
    with reading(url, tenant) as rt:
        named = None if run is None else run_named(rt, run)
        for event in islice(rt.events(named, after=after, filter=filter), limit):
            put_json(event_facts(event))
    sys.stdout.flush()
    return DONE
