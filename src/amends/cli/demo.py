"""``amends demo``: five example orders, with a rollback and a crash.

The demo runs five orders in an example shop, and compares the ledger with the shop's own files at the end. At a terminal the
shop then stays open, with its console (``amends.cli.live_shop``).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

import typer

import amends
from amends import Call, Held, Report, Runtime
from amends.cli.exit_codes import DONE, FAILED
from amends.cli.options import Json, group
from amends.cli.output import BOLD, DIM, GREEN, RED, STYLES, put, put_error, put_json
from amends.errors import UsageError, docs_page
from amends.places import load_module
from amends.visible import visible

PATIENCE_S: Final = 50
"""A child process that takes longer hangs: the demo ends within a minute, or says why not."""
TEMPLATES: Final = Path(__file__).parent
SHOP: Final = "shop.py"

CONSOLE_NEEDS: Final = ("starlette", "uvicorn", "anyio", "h11", "jinja2")
verbs = group()


class DemoFailed(Exception):
    """The demo did not go as it should; the message says what happened instead."""


@verbs.command()
def demo(
    dir: Annotated[Path, typer.Option("--dir", help="The folder for the example shop and its ledger.")] = Path(
        "amends-demo"
    ),
    fresh: Annotated[
        bool, typer.Option("--fresh/--keep", help="Begin anew, or keep the last shop and add five orders.")
    ] = True,
    serves: Annotated[
        bool | None,
        typer.Option(
            "--serve/--no-serve", help="Then open the shop with its console, until Ctrl-C. Default: at a terminal."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="Of the console. Default: 8642, or any.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Run five example orders: a commit, a rollback, a crash, a refusal, and an approval."""
    if serves and as_json:
        raise UsageError("--json ends with the five orders, and --serve does not end", hint="leave one of them out")
    if not as_json:
        return _play(dir, fresh=fresh, serves=_has_terminal() if serves is None else serves, port=port)
    with redirect_stdout(sys.stderr):
        code = _play(dir, fresh=fresh, serves=False, port=None)
    with Runtime(f"sqlite:///{dir / 'ledger.db'}", create=False) as rt:
        for info in rt.runs():
            put_json(rt.report(info.id).to_dict(), id=info.id)
    return code


def _has_terminal() -> bool:
    """Return whether somebody sits there who can read the address and press Ctrl-C."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _play(folder: Path, *, fresh: bool, serves: bool, port: int | None) -> int:
    """Run the demo; return 0 only if the shop's files and the ledger agree. With ``serves``, open the shop then."""
    began = time.monotonic()
    for name in [name for name in os.environ if name.startswith("AMENDS_")]:
        del os.environ[name]  # the shop has its own ledger, whatever the user's settings are
    file = _prepare(folder, fresh=fresh)
    sys.dont_write_bytecode = True  # no __pycache__ in the demo's folder
    shop: Any = load_module(str(file))
    rt: Runtime = shop.rt
    put("amends demo   a shop whose bank, stock, courier and mail have no rollback", style=BOLD)
    put(f"ledger        {_shown(folder / 'ledger.db')}      shop: {_shown(file)}", style=DIM)
    with rt:
        first = sum(1 for _ in rt.runs()) + 1
        try:
            for number, order in enumerate(ORDERS, start=first):
                put()
                order(shop, rt, f"order-{number}", number - first + 1)
        except DemoFailed as failed:
            put_error(str(failed))
            return FAILED
        problems = _differences(shop, rt)
        put()
        put(f"{_totals(shop, rt)}   {time.monotonic() - began:.1f} s")
        for problem in problems:
            put_error(problem)
        if problems:
            return FAILED
        put("checked: the shop's own files and the ledger agree on every order", style=GREEN)
        _put_next(folder, f"order-{first + 2}")
        if serves:
            _serve(shop, folder, port)
    return DONE


def _serve(shop: ModuleType, folder: Path, port: int | None) -> None:
    """Open the shop with its console until Ctrl-C; say what to install if that is not possible."""
    try:
        from amends.cli.live_shop import serve_shop
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in CONSOLE_NEEDS:
            raise
        put()
        put(f"to see the shop live in your browser: pip install 'amends[serve]' ({package} is not installed)")
        return
    serve_shop(shop, folder, port=port)


# ---- The five orders


def _order_that_works(shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    _put_head(number, "An order that works", order)
    with rt.run(order):
        shop.reserve_stock(order=order, item="kettle")
        shop.charge(order=order, cents=4200)
        shop.send_mail(order=order, text="your kettle is on its way")
        shop.ship(order=order, town="Leiden")
    report = rt.report(order)
    notes = {"charge": "42.00 EUR", "ship": "no rollback after this", "send_mail": "staged until the pivot"}
    _put_rows(report, notes)
    _put_end(report)
    _expect(report, "committed")


def _courier_fails(shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    _put_head(number, "The courier fails", order)
    before = _stock(shop)
    with suppress(RuntimeError), rt.run(order):
        left = shop.reserve_stock(order=order, item="kettle")
        shop.charge(order=order, cents=4200)
        shop.send_mail(order=order, text="your kettle is on its way")
        shop.ship(order=order, town="Atlantis")
    report = rt.report(order)
    receipts = _receipts(shop, order)
    refunded = sum(entry["cents"] for entry in shop.entries("payments") if entry.get("refund") in receipts)
    stock = f"stock {before} → {left} → {_stock(shop)}"
    notes = {"reserve_stock": stock, "charge": f"{refunded / 100:.2f} EUR refunded", "send_mail": "never sent"}
    _put_rows(report, notes)
    _put_end(report)
    _expect(report, "rolled_back")


def _killed(shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    _put_head(number, "kill -9 between the charge and its record", order)
    killed, pid = _child([str(Path(shop.__file__ or "")), order], SHOP_DIES_AFTER_CHARGE=order)
    # Windows has no SIGKILL: there SIGTERM ends a process at once, and its number is the exit code.
    if killed.returncode != (-signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM):
        raise DemoFailed(
            f"the process of {order} should have been killed, but ended with {killed.returncode}: {killed.stderr}"
        )
    _put_text(f"process {pid} was killed by SIGKILL after the bank had taken the money")
    recovered, pid = _child(["-m", "amends", "worker", "--once", f"{shop.__file__}:rt"])
    if recovered.returncode != 0:
        raise DemoFailed(f"the second process could not recover {order}: {recovered.stderr}")
    doubt = [event for event in rt.events(order) if event.to == "in_doubt"]
    probed = [event for event in rt.events(order) if event.frm == "in_doubt" and event.by == "probe"]
    if not doubt or not probed:
        raise DemoFailed(f"the ledger does not show that {order} was in doubt and that the bank was asked")
    report = rt.report(order)
    charge = next(call for call in report.calls if call.tool == "charge")
    _put_doubt(report, "charge", "was it paid?")
    _put_text(f"process {pid} took over, asked the bank (probe: Happened {charge.result}) and resumed the run")
    receipts = _receipts(shop, order)
    _put_rows(
        report,
        {"charge": "charged once, not twice" if len(receipts) == 1 else f"charged {len(receipts)} times"},
        untimed="charge",  # the time from the start in one process to the probe in another means nothing
    )
    _put_end(report)
    _expect(report, "committed")


def _ships_first(_shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    _put_head(number, "The model ships first", order)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("ship", {"order": order, "town": "Leiden"}),
        ("charge", {"order": order, "cents": 4200}),
        ("ship", {"order": order, "town": "Leiden"}),
    ]
    with rt.run(order) as run:
        for tool, args in asked:
            answer = run.answer(tool, args)
            if answer.status == "refused":
                put(f"   {tool:<13}  {'pivot':<13}  ⊘ refused", style=RED)
                _put_text(f"the model is told: {answer.text}", indent=5)
    report = rt.report(order)
    _put_rows(report, {})
    _put_end(report)
    _expect(report, "committed")


def _needs_approval(shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    _put_head(number, "A large order waits for a person", order)
    with suppress(Held), rt.run(order):
        shop.charge(order=order, cents=250_000)
        raise DemoFailed(f"{order} charged 2,500.00 EUR without approval")
    (request,) = rt.approvals(f"state:pending run:{order}")
    if _receipts(shop, order):
        raise DemoFailed(f"the bank charged {order} before it was approved")
    _put_rows(rt.report(order), {"charge": "2,500.00 EUR, nothing charged yet"})
    _put_text(f"you approve exactly this call, once: digest {request.digest[:12]}…")
    rt.approve(request.id, digest=request.digest, by="you", why="it is a demo")
    with rt.run(order):  # resumes the run
        shop.charge(order=order, cents=250_000)
        shop.ship(order=order, town="Leiden")
    report = rt.report(order)
    _put_rows(report, {"charge": "approved, then charged once"}, untimed="charge")
    _put_end(report)
    _expect(report, "committed")


ORDERS: Final = (_order_that_works, _courier_fails, _killed, _ships_first, _needs_approval)


# ---- What the orders share


def _expect(report: Report, state: str) -> None:
    if report.state != state:
        raise DemoFailed(f"{report.run_id} should be {state}, but is {report.state}")


def _receipts(shop: Any, order: str) -> list[str]:
    """Return the charges of an order in the bank's own file, refunded or not."""
    return [entry["charge"] for entry in shop.entries("payments") if entry.get("order") == order]


def _stock(shop: Any) -> int:
    return int(shop.STOCK + sum(entry["change"] for entry in shop.entries("stock")))


def _child(args: list[str], **environment: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run this Python as a real process until it ends; return it and its process id."""
    source = str(Path(amends.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as child:
        try:
            out, err = child.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise DemoFailed(f"process {child.pid} did not end within {PATIENCE_S} s: {' '.join(args)}") from None
        return subprocess.CompletedProcess(args, child.returncode, out, err), child.pid


def _shown(path: Path) -> str:
    """Return the path as it can be typed in the working directory."""
    try:
        return f"./{path.resolve().relative_to(Path.cwd())}"
    except ValueError:
        return str(path.resolve())


def _put_next(folder: Path, order: str) -> None:
    url = f"sqlite:///{_shown(folder / 'ledger.db').removeprefix('./')}"
    put(f"next: {_program()} runs show {order} --url {url}")
    put(f"      {_program()} runs list --url {url}")
    put(f"      {docs_page('tutorial/first-saga.md')}")


def _program() -> str:
    """Return how this program was called, so that the suggested commands can be copied."""
    from shutil import which

    called = Path(sys.argv[0])
    if called.name != "amends":
        return "python -m amends"
    found = which("amends")
    if found is not None and Path(found).resolve() == called.resolve():
        return "amends"
    return _shown(called)


# ---- Output of one order


WIDTH: Final = 80
REMARK_CHARS_MIN: Final = 20
GLYPHS: Final = {
    "succeeded": "✓",
    "failed": "✗",
    "in_doubt": "?",
    "compensated": "↩",
    "dropped": "–",
    "held": "…",
}


def _put_head(number: int, title: str, run_id: str) -> None:
    """Print the title of an order."""
    put(f"{number}  {title:<{WIDTH - 20}}  run {visible(run_id)}", style=BOLD)


def _put_rows(report: Report, notes: Mapping[str, str], *, untimed: str = "") -> None:
    """Print the calls of a run from the ledger, in the order in which they started.

    ``notes`` has a remark for a tool; calls of ``untimed`` are printed without their duration.
    """
    for call in sorted(report.calls, key=lambda call: (call.started_at is None, str(call.started_at))):
        took = call.tool != untimed and call.state == "succeeded" and call.seconds is not None
        _put_row(call, notes.get(call.tool, ""), call.state, f"{(call.seconds or 0) * 1000:.0f} ms" if took else "")


def _put_doubt(report: Report, tool: str, note: str) -> None:
    """Print one call as it was between the crash and the probe."""
    _put_row(next(call for call in report.calls if call.tool == tool), note, "in_doubt", "")


def _put_row(call: Call, note: str, state: str, took: str) -> None:
    words = f"{GLYPHS.get(state, '·')} {state.replace('_', ' ')}"
    remark = note or (visible(call.error, prose=True) if state == "failed" and call.error else "")
    row = f"   {visible(call.tool):<13}  {call.kind:<13}  {words:<13} {took:>7}   "
    first, *rest = textwrap.wrap(remark, max(WIDTH - len(row), REMARK_CHARS_MIN)) or [""]
    put(f"{row}{first}".rstrip(), style=STYLES.get(state, ""))
    for line in rest:
        put(f"{' ' * len(row)}{line}", style=STYLES.get(state, ""))


def _put_text(text: str, *, indent: int = 3) -> None:
    """Print a text, wrapped and indented."""
    for line in textwrap.wrap(text, WIDTH - indent):
        put(" " * indent + line)


def _put_end(report: Report) -> None:
    """Print the final state, and that nothing is left standing if that is so."""
    standing = ", nothing left standing" if report.state == "rolled_back" and not report.residue else ""
    put(f"   = {report.state.replace('_', ' ')}{standing}", style=STYLES.get(report.state, ""))


# ---- The shop's own files compared with the ledger


STANDING: Final = frozenset({"succeeded"})


def _differences(shop: Any, rt: Runtime) -> list[str]:
    """Return each difference between the shop's files and the ledger, as text."""
    calls = [call for run in rt.runs() for call in rt.report(run.id).calls]
    pairs = {
        "reserve_stock": ("stock", _reserved(shop)),
        "charge": ("payments", Counter(order for order, _ in _charged(shop))),
        "ship": ("shipping", Counter(entry["order"] for entry in shop.entries("shipping"))),
        "send_mail": ("mail", Counter(entry["order"] for entry in shop.entries("mail"))),
    }
    found: list[str] = []
    for tool, (book, world) in pairs.items():
        ledger = Counter(str(call.args["order"]) for call in calls if call.tool == tool and call.state in STANDING)
        found += [
            f"{book}.jsonl has {world[order]} of {order}, the ledger {ledger[order]} {tool}"
            for order in sorted(world.keys() | ledger.keys())
            if world[order] != ledger[order]
        ]
    found += [f"{call.tool} of {call.run_id} is {call.state}" for call in calls if _is_unclear(call)]
    return found


def _totals(shop: Any, rt: Runtime) -> str:
    """Return the totals: doubts from the ledger, everything else from the shop's own files."""
    payments = shop.entries("payments")
    kept = _charged(shop)
    per_order = Counter(order for order, _ in kept)
    refunded = sum("refund" in entry for entry in payments)
    double = sum(count - 1 for count in per_order.values())
    mails = len(shop.entries("mail"))
    doubts = sum(1 for _ in rt.doubts())
    bank = f"bank: {len(kept)} charges kept, {refunded} refunded, {double} double"
    return f"{bank}   mail: {mails} sent   in doubt: {doubts}"


def _charged(shop: Any) -> list[tuple[str, str]]:
    """Return the order and receipt of every charge that was not refunded."""
    payments = shop.entries("payments")
    back = {entry["refund"] for entry in payments if "refund" in entry}
    return [
        (entry["order"], entry["charge"]) for entry in payments if "charge" in entry and entry["charge"] not in back
    ]


def _reserved(shop: Any) -> Counter[str]:
    taken: Counter[str] = Counter()
    for entry in shop.entries("stock"):
        taken[entry["order"]] -= entry["change"]
    return taken


def _is_unclear(call: Call) -> bool:
    return call.state in ("in_doubt", "started", "compensating", "compensation_failed", "compensation_in_doubt")


# ---- The folder of the demo; files that the demo did not write are never touched


MARK: Final = ".amends-demo.json"
"""Marks a folder that the demo made; has the digest of the shop.py that was written there."""
FILES: Final = (
    *("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-journal"),
    *("ledger.db.anchor", "ledger.db.anchor.lock"),
    *("payments.jsonl", "stock.jsonl", "shipping.jsonl", "mail.jsonl"),
    *(SHOP, "shop.log"),
)


def _prepare(folder: Path, *, fresh: bool) -> Path:
    """Create the folder with the shop's program, and return the program; with ``fresh``, remove an earlier demo first."""
    program = (TEMPLATES / "demo_shop.py").read_bytes()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark = _mark(folder)
        if fresh or mark is None:
            _clear(folder, mark)
            (folder / SHOP).write_bytes(program)
            (folder / MARK).write_text(json.dumps({"shop": _digest(program)}) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the demo cannot use {folder}: {error}", hint="choose another folder: --dir") from error
    return folder / SHOP


def _mark(folder: Path) -> dict[str, Any] | None:
    """Return the mark of an earlier demo, or None if the folder is empty; raise ``UsageError`` if it has other files."""
    path = folder / MARK
    if path.is_file():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        except ValueError:
            return {}
    if any(folder.iterdir()):
        raise UsageError(
            f"{folder} is not empty and was not made by amends demo; nothing in it was touched",
            hint="choose another folder: --dir",
        )
    return None


def _clear(folder: Path, mark: dict[str, Any] | None) -> None:
    program = folder / SHOP
    if mark is not None and program.is_file() and _digest(program.read_bytes()) != mark.get("shop"):
        raise UsageError(
            f"{program} was changed since amends demo wrote it; nothing was touched",
            hint="use it as it is: --keep; or choose another folder: --dir",
        )
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
