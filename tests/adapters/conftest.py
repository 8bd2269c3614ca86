"""Frameworks that are too heavy for every environment: what needs one is collected where it is."""

from __future__ import annotations

from importlib.util import find_spec

HEAVY = {"crewai": ("test_crewai.py", "test_crewai_example.py", "reports/test_crewai_5802.py")}
"""`make test-adapters` makes an environment for each, and runs these."""

collect_ignore = [name for framework, names in HEAVY.items() if find_spec(framework) is None for name in names]
