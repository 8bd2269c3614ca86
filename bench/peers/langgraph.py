"""LangGraph with its SQLite (synchronous=FULL) and PostgreSQL savers, durability="sync". A call is a node.

It writes a checkpoint after each node: nothing records beforehand that a call is about to happen. It compensates nothing
and does not answer repeated calls.
"""

import contextlib
import sqlite3
from importlib.metadata import version
from typing import TypedDict

from langgraph.graph import END, START, StateGraph

from bench.sides.timing import args_of, asked, erased, fresh, many, plain, serve, timed

said = asked()
CALLS_MAX = 100


class State(TypedDict):
    i: int
    n: int
    args: dict


def pay(state):
    return {"i": state["i"] + 1, "args": args_of(f"o-{state['i']}")}


def compiled(saver):
    graph = StateGraph(State)
    graph.add_node("pay", pay)
    graph.add_edge(START, "pay")
    graph.add_conditional_edges("pay", lambda state: "pay" if state["i"] < state["n"] else END)
    return graph.compile(checkpointer=saver)


def go(app, n):
    config = {"configurable": {"thread_id": fresh()}, "recursion_limit": n + 10}
    app.invoke({"i": 0, "n": n, "args": {}}, config, durability="sync")


def measured(app):
    def calls(n, limit_s):
        each = min(n, CALLS_MAX)
        figures = timed(lambda _: go(app, each), max(1, n // each), limit_s)
        return {"seconds": figures["seconds"], "count": figures["count"] * each}

    serve(
        {"fresh": calls, "many": lambda n, limit_s: many(lambda: plain(lambda: go(app, 1)), n, limit_s)},
        version=version("langgraph"),
    )


with contextlib.ExitStack() as stack:
    if said.store == "postgres":
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        saver = PostgresSaver(stack.enter_context(ConnectionPool(said.place, min_size=1, max_size=32, kwargs=options)))
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver

        con = stack.enter_context(contextlib.closing(sqlite3.connect(erased(said.place), check_same_thread=False)))
        saver = SqliteSaver(con)
    saver.setup()
    measured(compiled(saver))
