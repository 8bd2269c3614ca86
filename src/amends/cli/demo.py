"""``amends demo``: five orders in a shop of its own, each told from the ledger and the shop's own files."""

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
from typing import Any, Final

import amends
from amends import Call, Held, Report, Runtime
from amends.cli.access import load_module
from amends.cli.show import BOLD, DIM, GREEN, RED, STYLES, put, put_error, put_json
from amends.errors import UsageError
from amends.visible import visible

# ---- How the demonstration tells a run: a head, its calls from the ledger, and its end


WIDTH: Final = 90
GLYPHS: Final = {
    "succeeded": "✓",
    "failed": "✗",
    "in_doubt": "?",
    "compensated": "↩",
    "dropped": "–",
    "held": "…",
}


def put_head(number: int, title: str, run_id: str) -> None:
    """What is going to happen."""
    put(f"{number}  {title:<{WIDTH - 20}}run {visible(run_id)}", style=BOLD)


def put_rows(report: Report, notes: Mapping[str, str], *, untimed: str = "") -> None:
    """The calls of a run as the ledger has them, in the order in which they started."""
    for call in sorted(report.calls, key=lambda call: (call.started_at is None, str(call.started_at))):
        took = call.tool != untimed and call.state == "succeeded" and call.seconds is not None
        _put_row(call, notes.get(call.tool, ""), call.state, f"{(call.seconds or 0) * 1000:.0f} ms" if took else "")


def put_doubt(report: Report, tool: str, note: str) -> None:
    """One call as it stood when its process was dead and nobody had asked yet."""
    _put_row(next(call for call in report.calls if call.tool == tool), note, "in_doubt", "")


def _put_row(call: Call, note: str, state: str, took: str) -> None:
    words = f"{GLYPHS.get(state, '·')} {state.replace('_', ' ')}"
    told = note or (visible(call.error, prose=True) if state == "failed" and call.error else "")
    put(
        f"   {visible(call.tool):<14}  {call.kind:<14}  {words:<14} {took:>7}   {told}".rstrip(),
        style=STYLES.get(state, ""),
    )


def put_told(text: str, *, indent: int = 3) -> None:
    """What was said, in whole lines."""
    for line in textwrap.wrap(text, WIDTH - indent):
        put(" " * indent + line)


def put_end(report: Report) -> None:
    """How it ended, and that nothing is left where nothing is left."""
    standing = ", nothing left standing" if report.state == "rolled_back" and not report.residue else ""
    put(f"   = {report.state.replace('_', ' ')}{standing}", style=STYLES.get(report.state, ""))


# ---- The shop's own files against the ledger, order by order


STANDING: Final = frozenset({"succeeded"})


def differences(shop: Any, rt: Runtime) -> list[str]:
    """What the shop's files and the ledger do not agree about, in words; empty is the good case."""
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


def summary(shop: Any, rt: Runtime) -> str:
    """The end of the story in numbers, all but the last from the shop's own files."""
    payments = shop.entries("payments")
    kept = _charged(shop)
    per_order = Counter(order for order, _ in kept)
    given_back = sum("refund" in entry for entry in payments)
    double = sum(count - 1 for count in per_order.values())
    mails = len(shop.entries("mail"))
    doubts = sum(1 for _ in rt.doubts())
    bank = f"bank: {len(kept)} charges kept, {given_back} given back, {double} double"
    return f"{bank}     mail: {mails} sent     in doubt: {doubts}"


def _charged(shop: Any) -> list[tuple[str, str]]:
    """Order and receipt of every charge that was not given back."""
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


# ---- The folder of the demonstration: made, made again, and never at the cost of what somebody else put t


MARK: Final = ".amends-demo.json"
"""Says that we made this folder, and the digest of the program we put there."""
SHOP: Final = "shop.py"
MADE: Final = (
    *("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-journal"),
    *("ledger.db.anchor", "ledger.db.anchor.lock"),
    *("payments.jsonl", "stock.jsonl", "shipping.jsonl", "mail.jsonl"),
    SHOP,
)


def prepare(folder: Path, *, fresh: bool) -> Path:
    """A folder with the shop's program in it; with ``fresh`` nothing of an earlier time. Returns the program."""
    program = Path(__file__).with_name(SHOP).read_bytes()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark = _mark(folder)
        if fresh or mark is None:
            _clear(folder, mark)
            (folder / SHOP).write_bytes(program)
            (folder / MARK).write_text(json.dumps({"shop": _digest(program)}) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the demonstration cannot be made in {folder}: {error}", hint="choose another place with --dir"
        ) from error
    return folder / SHOP


def _mark(folder: Path) -> dict[str, Any] | None:
    """What we wrote there the last time; None where we never were."""
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
            hint="choose another place with --dir",
        )
    return None


def _clear(folder: Path, mark: dict[str, Any] | None) -> None:
    program = folder / SHOP
    if mark is not None and program.is_file() and _digest(program.read_bytes()) != mark.get("shop"):
        raise UsageError(
            f"{program} was changed since amends demo made it; nothing was touched",
            hint="play with it as it is: --keep; or leave it alone and choose another place: --dir",
        )
    for name in MADE:
        (folder / name).unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---- ``amends demo``: five orders in a shop of its own, each told from the ledger and the shop's own file


PATIENCE_S: Final = 50
"""A child process that takes longer has hung: the demonstration ends within a minute or says why not."""


class Failed(Exception):
    """The demonstration did not go as it should; its message says what."""


def play(folder: Path, *, fresh: bool) -> int:
    """See ``amends demo``. 0 only where the shop's files and the ledger agree."""
    began = time.monotonic()
    for name in [name for name in os.environ if name.startswith("AMENDS_")]:
        del os.environ[name]  # the shop has its own ledger, whatever is set for the user's
    file = prepare(folder, fresh=fresh)
    sys.dont_write_bytecode = True  # the folder holds what is told about it, and no caches
    shop: Any = load_module(str(file))
    rt: Runtime = shop.rt
    put(
        "amends demo   a shop with its own bank, stock, courier and mail, none of which amends can roll back",
        style=BOLD,
    )
    put(f"ledger        {_shown(folder / 'ledger.db')}      the shop: {_shown(file)}", style=DIM)
    orders = (_works, _courier_fails, _killed, _ships_first, _asks)
    with rt:
        first = sum(1 for _ in rt.runs()) + 1
        try:
            for number, order in enumerate(orders, start=first):
                put()
                order(shop, rt, f"order-{number}", number - first + 1)
        except Failed as failed:
            put_error(str(failed))
            return 1
        problems = differences(shop, rt)
        told = summary(shop, rt)
    put()
    put(f"{told}     {time.monotonic() - began:.1f} s")
    if problems:
        for problem in problems:
            put_error(problem)
        return 1
    put("checked: the shop's own files and the ledger say the same, order by order", style=GREEN)
    _put_next(folder, f"order-{first + 2}")
    return 0


def play_json(folder: Path, *, fresh: bool) -> int:
    """The same as data: the story to stderr, and each order's report, newest first, as one object per line."""
    with redirect_stdout(sys.stderr):
        code = play(folder, fresh=fresh)
    with Runtime(f"sqlite:///{folder / 'ledger.db'}", create=False) as rt:
        for info in rt.runs():
            put_json(rt.report(info.id).to_dict())
    return code


# ---- the five orders ----------------------------------------------------------------------


def _works(shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    put_head(number, "An order that works", order)
    with rt.run(order):
        shop.reserve_stock(order=order, item="kettle")
        shop.charge(order=order, cents=4200)
        shop.send_mail(order=order, text="your kettle is on its way")
        shop.ship(order=order, town="Leiden")
    report = rt.report(order)
    notes = {"charge": "42.00 EUR", "ship": "point of no return", "send_mail": "was staged until then"}
    put_rows(report, notes)
    put_end(report)
    _expect(report, "committed")


def _courier_fails(shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    put_head(number, "The courier fails", order)
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
    notes = {"reserve_stock": stock, "charge": f"{refunded / 100:.2f} EUR given back", "send_mail": "never sent"}
    put_rows(report, notes)
    put_end(report)
    _expect(report, "rolled_back")


def _killed(shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    put_head(number, "kill -9 between the charge and its record", order)
    killed, pid = _child([str(Path(shop.__file__ or "")), order], SHOP_DIES_AFTER_CHARGE=order)
    if killed.returncode != -signal.SIGKILL:
        raise Failed(
            f"the process of {order} should have been killed and ended with {killed.returncode}: {killed.stderr}"
        )
    put_told(f"process {pid} killed by SIGKILL after the bank had taken the money")
    recovered, pid = _child(["-m", "amends", "worker", "--once", f"{shop.__file__}:rt"])
    if recovered.returncode != 0:
        raise Failed(f"the second process could not recover {order}: {recovered.stderr}")
    doubt = [event for event in rt.events(order) if event.to == "in_doubt"]
    asked = [event for event in rt.events(order) if event.frm == "in_doubt" and event.by == "probe"]
    if not doubt or not asked:
        raise Failed(f"the ledger does not say that {order} was in doubt and that the bank was asked")
    report = rt.report(order)
    charge = next(call for call in report.calls if call.tool == "charge")
    put_doubt(report, "charge", "was it paid?")
    put_told(f"process {pid} took over, asked the bank (probe: Happened {charge.result}) and resumed")
    receipts = _receipts(shop, order)
    put_rows(
        report,
        {"charge": "charged once, not twice" if len(receipts) == 1 else f"charged {len(receipts)} times"},
        untimed="charge",  # from the start in one process to the probe in another says nothing
    )
    put_end(report)
    _expect(report, "committed")


def _ships_first(_shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    put_head(number, "The model ships first", order)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("ship", {"order": order, "town": "Leiden"}),
        ("charge", {"order": order, "cents": 4200}),
        ("ship", {"order": order, "town": "Leiden"}),
    ]
    with rt.run(order) as run:
        for tool, args in asked:
            answer = run.answer(tool, args)
            if answer.status == "refused":
                put(f"   {tool:<14}  {'pivot':<14}  ⊘ refused", style=RED)
                put_told(f"told to the model: {answer.text}", indent=5)
    report = rt.report(order)
    put_rows(report, {})
    put_end(report)
    _expect(report, "committed")


def _asks(shop: ModuleType, rt: Runtime, order: str, number: int) -> None:
    put_head(number, "A large order waits for a person", order)
    with suppress(Held), rt.run(order):
        shop.charge(order=order, cents=250_000)
        raise Failed(f"{order} charged 2,500.00 EUR and asked nobody")
    (asked,) = rt.approvals(f"state:pending run:{order}")
    if _receipts(shop, order):
        raise Failed(f"the bank has charged {order} before anybody said yes")
    put_rows(rt.report(order), {"charge": "2,500.00 EUR, nothing charged yet"})
    put_told(f"you approve exactly this call, once: digest {asked.digest[:12]}…")
    rt.approve(asked.id, digest=asked.digest, by="you", why="it is a demonstration")
    with rt.run(order):  # goes on where it stood
        shop.charge(order=order, cents=250_000)
        shop.ship(order=order, town="Leiden")
    report = rt.report(order)
    put_rows(report, {"charge": "approved, then charged once"}, untimed="charge")
    put_end(report)
    _expect(report, "committed")


# ---- what they share ----------------------------------------------------------------------


def _expect(report: Report, state: str) -> None:
    if report.state != state:
        raise Failed(f"{report.run_id} should be {state} and is {report.state}")


def _receipts(shop: Any, order: str) -> list[str]:
    """What the bank itself has for an order, given back or not."""
    return [entry["charge"] for entry in shop.entries("payments") if entry.get("order") == order]


def _stock(shop: Any) -> int:
    return int(shop.STOCK + sum(entry["change"] for entry in shop.entries("stock")))


def _child(args: list[str], **environment: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """A real process of this Python, to its end; with its process id."""
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
            raise Failed(f"process {child.pid} did not end within {PATIENCE_S} s: {' '.join(args)}") from None
        return subprocess.CompletedProcess(args, child.returncode, out, err), child.pid


def _shown(path: Path) -> str:
    """As short as it can be typed from here."""
    try:
        return f"./{path.resolve().relative_to(Path.cwd())}"
    except ValueError:
        return str(path.resolve())


def _put_next(folder: Path, order: str) -> None:
    url = f"sqlite:///{_shown(folder / 'ledger.db').removeprefix('./')}"
    put(f"next: {_ourselves()} runs show {order} --url {url}")
    put(f"      {_ourselves()} runs list --url {url}")
    page = Path("docs/tutorial/first-saga.md")
    put(f"      {page}" + ("" if page.exists() else " in the repository of amends"))


def _ourselves() -> str:
    """How this program was called, so that the next line can be typed as it stands."""
    from shutil import which

    called = Path(sys.argv[0])
    if called.name != "amends":
        return "python -m amends"
    found = which("amends")
    if found is not None and Path(found).resolve() == called.resolve():
        return "amends"
    return _shown(called)
