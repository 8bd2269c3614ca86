"""Imported by the process that programs are forked from: import everything that they would import."""

import asyncio  # noqa: F401
import contextlib
import gc
import io
import runpy  # noqa: F401
import sqlite3  # noqa: F401
from importlib import import_module
from pkgutil import iter_modules

import pydantic.fields
import pydantic.type_adapter  # noqa: F401 (what amends imports at a tool's first call)

import amends
import amends.cli
import amends.engine
import amends.host

for package in (amends.cli, amends.engine, amends.host):
    for module in iter_modules(package.__path__):
        if module.name != "live_shop":  # it brings the whole service, which the programs forked here do not need
            import_module(f"{package.__name__}.{module.name}")
for name in ("amends.runtime", "amends.stores.sqlite.store", "amends.worker", "rich.console", "rich.table"):
    import_module(name)
for name in amends.__all__:
    getattr(amends, name)
with contextlib.redirect_stdout(io.StringIO()):
    amends.cli.main(["runs", "list", "--help"])  # typer loads more when it reads its first options
gc.collect()
gc.freeze()  # no child looks through it again, or copies its pages
