"""``amends test``: check your own tools against your own sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree as ET

import typer

from amends.cli.access import required_app
from amends.cli.exit_codes import DONE, FAILED
from amends.cli.options import App, Json, Place, group
from amends.cli.output import BOLD, duration, progress, put, put_json, put_table, say
from amends.errors import UsageError
from amends.testing import CheckedTool, Kit
from amends.visible import printable, visible

verbs = group()


@verbs.command("test")
def check(
    place: Place = None,
    sandbox: Annotated[
        str | None,
        typer.Option(
            "--sandbox",
            metavar="PLACE",
            help="What has snapshot, reset and examples: MODULE, FILE.py, or either with :NAME. Default: as APP:RT.",
        ),
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option("--tool", metavar="NAME", help="Only this tool; may be given several times.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long the checks of one tool may take.")
    ] = 120.0,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also write the result as JUnit XML, for CI.")
    ] = None,
    app: App = None,
    as_json: Json = False,
) -> int:
    """Call your tools in your sandbox, kill them at every operation, and check what they declare; exit code 1 if one lies."""
    named, folder = required_app(place, app)
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UsageError(
            f"there is no folder {junit.absolute().parent}", hint="create it, or name another file: --junit"
        )
    kit = Kit(named, sandbox=sandbox, folder=folder, timeout_s=timeout)
    chosen = _chosen(kit, tool or [])
    found = []
    for number, name in enumerate(chosen, start=1):
        say(f"checking {visible(name)} ({number} of {len(chosen)})")
        with progress(f"checking {visible(name)}") as tell:
            checked = kit.check(name, told=tell)
        found.append(checked)
        if as_json:
            put_json(checked.to_dict(), id=checked.tool)
        else:
            _put_checked(checked)
    if junit is not None:
        _write_junit(junit, named, found)
    broken = [one.tool for one in found if one.broken]
    if not as_json:
        say(f"{len(found)} checked, broken: {', '.join(map(visible, broken))}" if broken else f"{len(found)} checked")
    return FAILED if broken else DONE


def _chosen(kit: Kit, names: Sequence[str]) -> list[str]:
    """Return the tools to check. All that is wrong with the program or the sandbox is said before one is called."""
    if not names:
        return list(kit.tools())
    for name in dict.fromkeys(names):
        kit.tools(only=name)
    return list(dict.fromkeys(names))


def _put_checked(checked: CheckedTool) -> None:
    put(f"{visible(checked.tool)}: {checked.state}, {checked.kind}, {duration(checked.seconds)}", style=BOLD)
    rows = [(one.name, one.state, f"{one.what}. To fix: {one.fix}" if one.fix else one.what) for one in checked.checks]
    put_table(("check", "state", "found"), rows, state=1)
    put()


def _write_junit(file: Path, app: str, found: Sequence[CheckedTool]) -> None:
    """Write one suite per tool and one case per check. What was not declared or not checked is skipped."""
    root = ET.Element("testsuites", name="amends test")
    for checked in found:
        skipped = sum(one.state.startswith("not ") for one in checked.checks)
        suite = ET.SubElement(
            root, "testsuite", name=f"{app} {_xml(checked.tool)}", tests=str(len(checked.checks)),
            failures=str(len(checked.broken)), errors="0", skipped=str(skipped), time=f"{checked.seconds:.3f}",
        )  # fmt: skip
        for one in checked.checks:
            case = ET.SubElement(suite, "testcase", classname=_xml(checked.tool), name=one.name)
            if one.state == "broken":
                failure = ET.SubElement(case, "failure", message=_xml(one.what))
                failure.text = _xml(f"{one.what}\nTo fix: {one.fix}\n{checked.where}")
            elif one.state.startswith("not "):
                ET.SubElement(case, "skipped", message=_xml(f"{one.state}: {one.what}"))
            elif one.what:
                ET.SubElement(case, "system-out").text = _xml(one.what)
    try:
        ET.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error


def _xml(text: str) -> str:
    """Return the text with escapes in place of what XML cannot hold; newlines stay."""
    return "\n".join(map(printable, text.split("\n")))
