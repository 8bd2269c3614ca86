"""Runs that end in every way, to make bundles of."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from amends import Retry, Rule, Runtime, tool
from amends.errors import Held, RunBlocked

ONCE = Retry(attempts=1)


@tool(retry=ONCE)
def book(what: str, note: str = "") -> str:
    if what == "bad":
        raise ValueError("no room")
    if what == "lost":
        raise TimeoutError("no answer")
    return f"booked {what}"


@book.compensate
def cancel(what: str) -> None: ...


@tool(kind="pivot")
def pay(cents: int) -> str:
    return f"paid {cents}"


@tool(kind="pivot", scope="ledger", key="to")
def wire(to: str, cents: int) -> str:
    return f"wired {cents} to {to}"


TOOLS = (book, pay, wire)
RULES = (Rule("wire", args={"cents": ">100"}),)
RUNS = ("committed", "rolled back", "in doubt", "held")


def runtime(url: str, **given: Any) -> Runtime:
    return Runtime(url, tools=TOOLS, rules=RULES, wait=0, wait_approval=0, **given)


def travel(rt: Runtime) -> tuple[str, ...]:
    """Make runs that committed, rolled back, are in doubt or wait for a person; return their ids."""
    with rt.run("committed", agent="clerk", principal="ann", input={"trip": "Bergen ☂"}) as run:
        book("train", note="☃ \x00")
        with run.child("inside"):
            book("seat")
        pay(cents=5)
        run.output = {"ok": True}
    with contextlib.suppress(ValueError), rt.run("rolled back"):
        book("room")
        book("bad")
    with contextlib.suppress(RunBlocked), rt.run("in doubt"):
        book("lost")
    with contextlib.suppress(Held), rt.run("held", principal="ann"):
        book("hotel")
        wire(to="bob", cents=500)
    return RUNS


def parts_of(bundle: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
        return {entry.filename: packed.read(entry) for entry in packed.infolist()}


def packed(parts: dict[str, bytes]) -> bytes:
    """Return a bundle of these parts, with a manifest that lists them."""
    manifest = json.loads(parts["manifest.json"])
    manifest["files"] = {name: sha256(data).hexdigest() for name, data in parts.items() if name != "manifest.json"}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, data in {**parts, "manifest.json": json.dumps(manifest).encode()}.items():
            made.writestr(name, data)
    return out.getvalue()


def changed(bundle: bytes, part: str, change: Callable[[list[dict[str, Any]]], object]) -> bytes:
    """Return the bundle with the rows of one part changed and the manifest rewritten to match."""
    parts = parts_of(bundle)
    rows = [json.loads(line) for line in parts[f"{part}.jsonl"].splitlines()]
    change(rows)
    parts[f"{part}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return packed(parts)


def with_manifest(bundle: bytes, **changes: Any) -> bytes:
    parts = parts_of(bundle)
    parts["manifest.json"] = json.dumps(json.loads(parts["manifest.json"]) | changes).encode()
    return packed(parts)
