"""The heartbeat's own life: it begins with the first lease and ends when it is told to."""

from __future__ import annotations

import time
from typing import Any

from amends.host.heartbeat import Keeper
from amends.ledger.world import Lease


def test_closing_does_not_wait_for_a_heartbeat_that_has_not_begun() -> None:
    never: Any = None  # it is closed before it renews
    keeper: Any = Keeper(never, 30.0)
    beat = keeper._beat

    def late() -> None:
        while not keeper._closed:
            time.sleep(0.001)
        beat()

    keeper._beat = late

    keeper.keep(Lease("run_1", "me", 1, 30.0, 0.0))
    began = time.monotonic()
    keeper.close()
    assert time.monotonic() - began < 2
    assert keeper._thread is None
