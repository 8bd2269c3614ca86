"""The rules of the ledger: what a transaction decides, checked through the operations of a store.

Every store that uses the flows of ``amends.ledger`` shares these decisions; what a store itself can get wrong is
checked by ``amends.testing.conformance``. ``tests/ledger/test_rules.py`` runs every check of this folder.
"""

from __future__ import annotations

# Importing a module registers its checks; this is their order.
from tests.ledger.rules import (  # isort: skip
    admission as admission,
    settlement as settlement,
    ending as ending,
    locks as locks,
    before as before,
    budgets as budgets,
    approvals as approvals,
    notices as notices,
    retention as retention,
    secrets as secrets,
    people as people,
    bundles as bundles,
    checkpoints as checkpoints,
    recorded_values as recorded_values,
    forks as forks,
    audit as audit,
)
from tests.ledger.rules.registry import RULES

__all__ = ["RULES"]
