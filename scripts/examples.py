#!/usr/bin/env python
"""Write the examples of the OpenAPI document: one answer of each route, as a real service gives it.

usage: examples.py [--into FILE]

It makes the tour of tests/serve/test_document.py, which visits every route, and keeps the longest answer of each status. Times, ids
and digests are replaced, so that a second run writes the same; lists are cut to their first item.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from amends.serve.openapi import EXAMPLES  # noqa: E402
from amends.serve.routes import ROUTES  # noqa: E402
from tests.serve.test_document import toured  # noqa: E402

DIGEST: Final = "9598db009f058fa57077e04a3adabd29b2ae5bd901a8b00b0d7f81e0e7660b0a"
KEPT: Final = {"tools": 2}
"""How many items of a list are kept, if not one."""
REPLACED: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), value)
    for pattern, value in (
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)", "2026-03-02T09:30:00+00:00"),
        (r"\bcall_[0-9a-f]{8,}", "call_3304762ac3cb22bb"),
        (r"\b(run|apr|tok|prm|hlt|dlg|permit|halt)_[0-9a-f]{12,}", r"\1_6608ec557f7b123313efd6a"),
        (r"\bamt_[0-9A-Za-z_]+", "amt_6608ec442fb434dc_…"),
        (r"\b(work|worker|wrk)_[-\w]{8,}", r"\1_c8nNWhSSUcv_sbgp"),
        (r"\b\d{16}\.", "1772443800000000."),
        (r"\b\d{10}\.\d{4,}", "1772443800.000000"),
        (r"[^\s\"|]+\|[^\"]*\|\d+\|\d+", "host-1|boot|4211|142394"),
        (r"^[^\s\"]+ \(\d+\)$", "host-1 (4211)"),
        (r"^[0-9a-f]{8}$", DIGEST[:8]),
        (r"sqlite:///[^\s\"]+", "sqlite:///shop.db"),
        (r"\b[0-9a-f]{64}\b", DIGEST),
        (r"\b[0-9a-f]{32}\b", DIGEST[:32]),
        (r"\b[0-9a-f]{16}\b", DIGEST[:16]),
    )
)
SECRET: Final = {"token": "WyIiLC…", "csrf": "eyJpZCI6…", "key": DIGEST}
"""What stands for a text that is signed, or made by chance, by the name of its field."""
NUMBERS: Final = {"seconds": 0.012, "lease": 30.0, "left_s": 29.5, "until_at": 1772443800.0}


def tidy(value: Any, name: str = "") -> Any:
    """Return an answer as an example: short, and the same each time."""
    if isinstance(value, dict):
        return {key: tidy(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [tidy(one, name) for one in value[: KEPT.get(name, 1)]]
    if isinstance(value, float) and name in NUMBERS:
        return NUMBERS[name]
    if not isinstance(value, str):
        return value
    if name in SECRET and len(value) > 20 and not value.startswith("tok_"):
        return SECRET[name]
    for pattern, instead in REPLACED:
        value = pattern.sub(instead, value)
    return value


def examples() -> dict[str, dict[str, Any]]:
    """Return the examples by route and status; an answer that the tour does not get is that of another with the same shape."""
    with tempfile.TemporaryDirectory() as folder:
        seen = toured(Path(folder)).answers
    shaped: dict[tuple[int, int] | int, Any] = {}
    for route in ROUTES:
        for status, shape in route.answers.items():
            if (route.name, status) in seen:
                for key in ((id(shape), status), id(shape)):
                    shaped.setdefault(key, seen[route.name, status])
    found: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        own = {id(shape): seen[route.name, one] for one, shape in route.answers.items() if (route.name, one) in seen}
        for status, shape in route.answers.items():
            alike = own.get(id(shape)) or shaped.get((id(shape), status)) or shaped.get(id(shape))
            answer = seen.get((route.name, status), alike)
            if shape is not None and answer is not None:
                found.setdefault(route.name, {})[str(status)] = tidy(answer)
    found["ready"]["503"] = {"status": "failing", "version": "0.1.0", "ledger": "LedgerUnavailable"}
    found["openapi"]["200"] = {"openapi": "3.1.0", "info": {"title": "amends", "version": "0.1.0"}, "paths": {}}
    return found


def main() -> int:
    """Write the file; return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, default=EXAMPLES, metavar="FILE", help="where to write them")
    said = parser.parse_args()
    text = json.dumps(examples(), ensure_ascii=False, indent=1, sort_keys=True)
    said.into.write_text(f"{text}\n", encoding="utf-8")
    print(f"wrote {said.into.name}: {len(text):,} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
