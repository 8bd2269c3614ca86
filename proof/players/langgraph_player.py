"""LangGraph with its SQLite saver, durability="sync": a call is a node, a restart goes on with the thread's checkpoint."""

import contextlib
import logging
import sqlite3
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy

from proof.destination import Destination, die, reword
from proof.players import guarded

logging.disable(logging.CRITICAL)
VERSION = f"langgraph {version('langgraph')}"


class State(TypedDict):
    i: int


def prepare(catalogue):
    """Nothing to do."""


def play(scenario):
    there = Destination(scenario)
    resumed = scenario.has_struck

    def call(state):
        number = state["i"]
        name, args = scenario.calls[number]
        here = number == scenario.at
        if here and resumed and scenario.fault == "reworded":
            args = reword(name, args) or args
        there.perform(name, dict(args))
        if here and scenario.fault == "new id":
            there.perform(name, dict(args))
        return {"i": number + 1}

    def look(state):
        if state["i"] - 1 == scenario.at:
            if scenario.fault in ("kill after", "reworded") and scenario.strike():
                die()
            if scenario.fault == "failure" and scenario.strike():
                raise guarded.TaskFailed
        return {}

    graph = StateGraph(State)
    graph.add_node("call", call, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.01, retry_on=Exception))
    graph.add_node("look", look)
    graph.add_edge(START, "call")
    graph.add_edge("call", "look")
    graph.add_conditional_edges("look", lambda state: "call" if state["i"] < len(scenario.calls) else END)
    with contextlib.closing(sqlite3.connect(Path(scenario.folder, "graph.db"), check_same_thread=False)) as con:
        saver = SqliteSaver(con)
        saver.setup()
        app = graph.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "task"}, "recursion_limit": 200}
        known = app.get_state(config).values
        try:
            app.invoke(None if known else {"i": 0}, config, durability="sync")
        except guarded.TaskFailed:
            return 0  # it compensates nothing
    Path(scenario.folder, "done").touch()
    return 0


def finish(scenario):
    return guarded.finish(scenario)
