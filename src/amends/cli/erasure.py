"""The verb ``erase``: remove everything that is recorded about one person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from amends import ErasedRun, Erasure
from amends.cli.access import open_ledger, who
from amends.cli.exit_codes import DONE, FAILED
from amends.cli.options import By, Json, LedgerOf, Tenant, Url, Why, YesOption, group
from amends.cli.output import confirm, must_ask, progress, put_json, put_table, say
from amends.errors import UsageError
from amends.visible import visible

verbs = group()


@verbs.command()
def erase(
    why: Why,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Runs with this tag, as it is recorded: customer=7.")
    ] = None,
    principal: Annotated[str, typer.Option("--principal", help="Runs for this principal.")] = "",
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="PATH=VALUE", help="Runs with a call that has this argument: to=a@b.example."),
    ] = None,
    run: Annotated[list[str] | None, typer.Option("--run", help="The run with this id.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be erased, and erase nothing.")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Erase what can be erased, although other runs cannot be.")
    ] = False,
    residue: Annotated[
        bool, typer.Option("--residue", help="Also erase ended runs that left something standing or in doubt.")
    ] = False,
    by: By = None,
    yes: YesOption = False,
    app: LedgerOf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Erase everything recorded about one person; the record of the rest stays provable.

    Give at least one of --tag, --principal, --field and --run; several are added up.
    """
    subject: dict[str, Any] = {
        "tags": tag or (),
        "principal": principal,
        "fields": _fields(field or ()),
        "runs": run or (),
    }
    if not any(subject.values()):
        raise UsageError(
            "say whose data is to be erased", hint="give at least one of --tag, --principal, --field and --run"
        )
    options: dict[str, Any] = {"residue": residue, "why": why}
    asks = not dry_run and must_ask(yes, "erasing the data of a person")
    with open_ledger(url, tenant, app=app) as rt:
        person = who(by, rt)
        if asks:
            would = rt.erase(by=person, dry_run=True, **subject, **options)
            _put(would)
            if would.runs and not confirm(f"Erase {len(would.runs)} runs? They cannot be restored."):
                return FAILED
        with progress("looking for what is recorded about the person"):
            done = rt.erase(by=person, dry_run=dry_run, partial=partial, **subject, **options)
        ledger = rt.settings["url"].value
    if as_json:
        put_json(done.to_dict(), id=ledger)
        return DONE
    _put(done)
    if done.order:
        say(f"recorded as order {done.order}; copies elsewhere (backups, exports, logs) are not reached")
    return DONE


def _fields(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        path, mark, value = one.partition("=")
        if not mark or not path.strip() or not value:
            raise UsageError(f"--field {one} is not PATH=VALUE", hint="write --field to=a@b.example")
        if found.setdefault(path, value) != value:
            raise UsageError(f"--field {path} has two values: erase one person at a time")
    return found


def _put(found: Erasure) -> None:
    verdict = "would be erased" if found.dry_run else "erased"
    rows = [_row(verdict, one) for one in found.runs] + [_row(f"kept: {one.why}", one) for one in found.kept]
    put_table(("", "run", "state", "runs", "calls", "events", "bytes"), rows)
    for text in found.stays:
        say(f"still names the person afterwards: {visible(text, prose=True)}")


def _row(verdict: str, one: ErasedRun) -> tuple[str, ...]:
    counts = (str(one.runs), str(one.calls), str(one.events), f"{one.bytes:,}")
    return (visible(verdict, prose=True), visible(one.run_id), one.state, *counts)
