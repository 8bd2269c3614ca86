"""The conformance suite: what a store can get wrong, so that a store written by somebody else can prove itself.

``prove_store`` runs all of it. A store is an ``amends.ledger.store.Store`` and performs the operations of
``amends.ledger.operations``. What a transaction *decides* is not checked here: all stores share those flows.
"""

from __future__ import annotations

# Importing a module registers its checks; this is their order.
from amends.testing.conformance import (  # isort: skip
    tables as tables,
    opening as opening,
    reading as reading,
    stale as stale,
    storing as storing,
    atomic as atomic,
    equivalence as equivalence,
    halting as halting,
    permitting as permitting,
    escalating as escalating,
    tokens as tokens,
    work as work,
    erasing as erasing,
    racing as racing,
)
from amends.testing.conformance.prove import CHECKS, COLOURS, Proof, Skipped, check_store, prove_store

__all__ = ["CHECKS", "COLOURS", "Proof", "Skipped", "check_store", "prove_store"]
