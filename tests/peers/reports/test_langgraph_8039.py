"""langgraph #8039: with ``durability="sync"`` a kill while a checkpoint is written runs a finished node again.

Seen on langgraph 1.2.20 with langgraph-checkpoint-sqlite 3.1.2: the process dies when the checkpoint after the payment is
to be written, and its successor pays again. With amends the successor is answered from the record.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.tools import tool as lc_tool
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import amends
from amends.adapters.langchain import AmendsMiddleware
from tests.adapters.conformance import CHILD_S_MAX, ROOT

CONFIG: Any = {"configurable": {"thread_id": "t1"}}


class Dies(SqliteSaver):
    """Kills its process where the checkpoint after the tools would be written; their own writes come too late."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if metadata.get("step") == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Sequence[Any], task_id: str, task_path: str = "") -> None:
        if any(channel == "messages" and "paid" in str(value) for channel, value in writes):
            signal.pause()  # the other thread, which writes the checkpoint, is faster
        super().put_writes(config, writes, task_id, task_path)


def graph(folder: Path, saver: Any, **options: Any) -> Any:
    @lc_tool
    def pay(order: str) -> str:
        """Pay an order."""
        with (folder / "paid").open("a", encoding="utf-8") as file:
            file.write(f"{order}\n")
        return f"paid {order}"

    asked = AIMessage("", tool_calls=[{"name": "pay", "args": {"order": "7"}, "id": "c1"}])
    made = StateGraph(MessagesState)
    made.add_node("model", lambda state: {"messages": [asked]})
    made.add_node("tools", ToolNode([pay], **options))
    made.add_edge(START, "model")
    made.add_edge("model", "tools")
    made.add_edge("tools", END)
    return made.compile(checkpointer=saver)


def go(folder: Path, *, guarded: bool, first: bool) -> None:
    """One process: the first one dies on its way, the second one resumes the thread."""
    kind = Dies if first else SqliteSaver
    given: Any = {"messages": [HumanMessage("pay order 7")]} if first else None
    with kind.from_conn_string(str(folder / "graph.db")) as saver:
        if not guarded:
            graph(folder, saver).invoke(given, CONFIG, durability="sync")
            return
        with amends.Runtime(f"sqlite:///{folder / 'ledger.db'}", tools=[amends.declare("pay", kind="pivot")]) as rt:
            guard = AmendsMiddleware(rt)
            with guard.turn(CONFIG):
                graph(folder, saver, wrap_tool_call=guard.wrap_tool_call).invoke(given, CONFIG, durability="sync")


@pytest.mark.parametrize("guarded, payments", [(False, 2), (True, 1)], ids=["bare", "with amends"])
def test_a_kill_while_the_checkpoint_is_written(tmp_path: Path, guarded: bool, payments: int) -> None:
    code = f"from {__name__} import *; go(Path({str(tmp_path)!r}), guarded={guarded}, first=True)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    died = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, timeout=CHILD_S_MAX, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert (tmp_path / "paid").read_text() == "7\n"
    go(tmp_path, guarded=guarded, first=False)
    assert (tmp_path / "paid").read_text() == "7\n" * payments
    if guarded:
        with amends.Runtime(f"sqlite:///{tmp_path / 'ledger.db'}") as rt:
            assert rt.report("t1/1").state == "committed"
