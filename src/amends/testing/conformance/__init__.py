"""The conformance suite: what every ledger must do, so that somebody else's store can prove that it does.

``prove_store`` runs all of it. A store is ``amends.ledger.operations.Store``; what it is asked are the operations of that module.
"""

from __future__ import annotations

# Importing a module of checks adds them; this is their order.
from amends.testing.conformance import (  # isort: skip
    opening as opening,
    admission as admission,
    settlement as settlement,
    ending as ending,
    reading as reading,
    seen as seen,
    storing as storing,
    atomic as atomic,
    alike as alike,
    racing as racing,
    locks as locks,
    budgets as budgets,
    paying as paying,
    approvals as approvals,
    notices as notices,
    retention as retention,
    sealing as sealing,
    desk as desk,
    loading as loading,
    checkpoints as checkpoints,
    values as values,
    forking as forking,
    auditing as auditing,
)
from amends.testing.conformance.prove import COLOURS, Proof, check_store, prove_store
from amends.testing.conformance.registry import CHECKS, Skipped

__all__ = ["CHECKS", "COLOURS", "Proof", "Skipped", "check_store", "prove_store"]
