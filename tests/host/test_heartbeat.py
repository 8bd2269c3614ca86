"""The heartbeat's own life: it begins with the first lease and ends when it is told to."""

from __future__ import annotations

import time
from typing import Any

from amends.host.heartbeat import Heartbeat
from amends.ledger.world import Lease


def test_closing_does_not_wait_for_a_heartbeat_that_has_not_begun() -> None:
    never: Any = None  # it is closed before it renews
    heartbeat: Any = Heartbeat(never, 30.0)
    beat = heartbeat._beat

    def late() -> None:
        while not heartbeat._closed:
            time.sleep(0.001)
        beat()

    heartbeat._beat = late

    heartbeat.keep(Lease("run_1", "me", 1, 30.0, 0.0))
    began = time.monotonic()
    heartbeat.close()
    assert time.monotonic() - began < 2
    assert heartbeat._thread is None
