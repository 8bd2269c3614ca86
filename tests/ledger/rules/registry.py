"""The registry of the checks in this folder."""

from __future__ import annotations

from typing import Final

from amends.testing.conformance.prove import Suite

RULES: Final = Suite()
check = RULES.check
check_each = RULES.check_each
