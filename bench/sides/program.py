"""The program whose runtime ``amends serve`` serves for the bench: one tool, which the client performs itself."""

from __future__ import annotations

import os

from amends import Runtime
from bench.sides.ours import pay

rt = Runtime(os.environ["AMENDS_BENCH_LEDGER"], tools=[pay])
