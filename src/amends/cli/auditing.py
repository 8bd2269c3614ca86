"""``amends audit``: the record held against itself and against what others know, and the keys of its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from amends import Runtime, Verified
from amends.cli.access import run_named, working
from amends.cli.codes import CHAIN_BROKEN, DONE
from amends.cli.show import progress, put, put_facts, put_json, put_table, say
from amends.errors import UsageError
from amends.signing import new_key
from amends.visible import visible


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
