"""``python -m tests.adapters.child '{…}'``: one ``drive`` of a harness in a process of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from tests.adapters.conformance import Fails, Harness, Turn
from tests.adapters.shop import Shop


def main(told: dict) -> None:
    module, _, name = told["harness"].partition(":")
    harness: Harness = getattr(import_module(module), name)()
    turns: list[Turn] = [_turn(one) for one in told["turns"]]
    folder = Path(told["folder"])
    outcome = harness.drive(Shop(folder), turns, resume=told["resume"])
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome)), encoding="utf-8")


def _turn(told: dict | list | str) -> Turn:
    if isinstance(told, dict):
        return Fails(told["message"])
    return told if isinstance(told, str) else [(name, args) for name, args in told]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
