"""agent-ledger: ``ledger.run`` on its PostgreSQL store. After a crash it waits for the lost start, then says that it timed out."""

import asyncio
import logging
import os
from importlib.metadata import version

from agent_ledger import EffectLedger, EffectLedgerOptions, ToolCall
from agent_ledger.stores.postgres import SCHEMA_SQL, PostgresStore
from agent_ledger.types import ConcurrencyOptions, RunOptions
from psycopg import connect
from psycopg_pool import AsyncConnectionPool

from proof.players import guarded

logging.disable(logging.CRITICAL)
VERSION = f"agent-ledger {version('agent-ledger')}"
# Its default is 30 s. It decides how long a retry waits, not how it ends.
OPTIONS = RunOptions(concurrency=ConcurrencyOptions(effect_timeout_s=2.0))
LOCK = 7_201


def prepare(catalogue):
    with connect(os.environ["AMENDS_PROOF_POSTGRES"]) as con:
        con.execute("select pg_advisory_xact_lock(%s)", (LOCK,))  # two players begin at once
        con.execute(SCHEMA_SQL)


def play(scenario):
    def guard(key, tool, args, body):
        async def handler(_effect):
            return {"result": body()}

        async def run():
            async with AsyncConnectionPool(
                os.environ["AMENDS_PROOF_POSTGRES"], min_size=1, max_size=2, open=False
            ) as pool:
                ledger = EffectLedger(EffectLedgerOptions(store=PostgresStore(pool)))
                # The folder of the scenario is the workflow: one database serves all of them.
                call = ToolCall(workflow_id=scenario.folder, tool=tool, args=args)
                return await ledger.run(call, handler, run_options=OPTIONS)

        return asyncio.run(run())["result"]

    return guarded.play(scenario, guard)


def finish(scenario):
    return guarded.finish(scenario)
