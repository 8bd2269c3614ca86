"""Imported by the process that harnesses and examples are forked from: import every framework that is here, once."""

import gc
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import tests.loaded  # noqa: F401
from tests.adapters.conftest import collect_ignore

for path in sorted(Path(__file__).parent.glob("test_*.py")):
    if path.name not in collect_ignore and "example" not in path.name:
        with suppress(ModuleNotFoundError):  # an environment for one framework does not have the others
            import_module(f"tests.adapters.{path.stem}")
gc.collect()
gc.freeze()
