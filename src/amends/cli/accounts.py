"""The shop's own files against the ledger, order by order."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from amends import Call, Runtime

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
