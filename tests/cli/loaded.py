"""Imported by the process that commands are forked from: import everything that they would import."""

import contextlib
import io
from importlib import import_module
from pkgutil import iter_modules

import amends.cli
import amends.engine

for package in (amends.cli, amends.engine):
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
for name in ("amends.runtime", "amends.stores.sqlite.store", "amends.worker", "rich.console", "rich.table"):
    import_module(name)
with contextlib.redirect_stdout(io.StringIO()):
    amends.cli.main(["runs", "list", "--help"])  # typer loads more when it reads its first options
