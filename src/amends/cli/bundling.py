"""``amends audit export``, ``import`` and ``events``: the record in the hands of somebody else."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from amends import Runtime
from amends.cli.access import reading, run_named
from amends.cli.codes import DONE
from amends.cli.show import progress, put_json, put_table, say
from amends.cli.watching import event_facts
from amends.errors import UsageError
from amends.visible import visible

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
