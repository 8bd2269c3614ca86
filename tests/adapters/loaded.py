"""Imported by the process that harnesses and examples are forked from: import every framework that is here, once."""

import gc
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import tests.loaded  # noqa: F401
from tests.adapters.conftest import collect_ignore

for path in sorted(Path(__file__).parent.glob("test_*.py")):
    if path.name not in collect_ignore and "example" not in path.name:
        # An environment for one framework has no others, or other versions of them. Where all are tested, collecting fails.
        with suppress(ImportError):
            import_module(f"tests.adapters.{path.stem}")
gc.collect()
gc.freeze()
