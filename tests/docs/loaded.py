"""Imported by the process that the examples of pages are forked from: what amends imports, and not amends.

An example imports amends itself, as a reader's program does: one that uses what nobody imported fails.
"""

import gc
import sys
from importlib import import_module

for name in (
    "asyncio",
    "concurrent.futures.thread",
    "dataclasses",
    "email.message",
    "importlib.metadata",
    "json",
    "logging",
    "pydantic.fields",
    "pydantic.main",
    "pydantic.type_adapter",
    "rich.console",
    "rich.table",
    "sqlite3",
    "traceback",
    "typer",
    "urllib.request",
):
    import_module(name)
assert "amends" not in sys.modules
gc.collect()
gc.freeze()
