"""One conformance suite for embedded, Temporal and Restate: killed at every point of the shared flows, all end the same.

- ``world.py``: the outside world, tools of every kind over it, and the points at which something is killed.
- ``flows.py``: the shared flows, and what is compared: the final ledger and the final world.
- ``person.py``: whoever approves, and says what happened where nobody else can.
- ``scenario.py``: plays one flow on one engine, with one kill; restarts what was killed.
- ``on_embedded.py``, ``on_temporal.py``, ``on_restate.py``: the flow as a program of each engine, run as processes.
- ``test_conformance.py``: the table.
"""
