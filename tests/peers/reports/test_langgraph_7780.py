"""langgraph #7780: ``interrupt()`` in a loop replays the whole node, and every effect in it happens again.

Seen on langgraph 1.2.20: with three drafts and three answers the reviewer is told nine times. With amends, three times.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool as lc_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

import amends
from amends.adapters.langchain import AmendsMiddleware
from tests.adapters.test_langchain import Scripted, config_of

ANSWERS = ("shorter", "friendlier", "ok")


def reviewed(tell: Callable[..., object], **options: Any) -> str:
    """An agent whose one tool asks a reviewer until the reviewer says ok; ``tell`` is the effect inside the loop."""

    @lc_tool
    def review(document: str) -> str:
        """Have a document reviewed."""
        for draft in count(1):
            tell(document=document, draft=draft)
            if interrupt(f"draft {draft}: ok?") == "ok":
                return f"accepted draft {draft}"
        raise AssertionError

    model = Scripted(turns=[[("review", {"document": "d7"})], "done"])
    agent = create_agent(model, tools=[review], checkpointer=InMemorySaver(), **options)
    config = config_of("t1")
    agent.invoke({"messages": [("user", "have d7 reviewed")]}, config)
    for answer in ANSWERS:
        state = agent.invoke(Command(resume=answer), config)
    return str(state["messages"][-2].content)


def test_bare_each_answer_tells_the_reviewer_everything_again() -> None:
    told: list[int] = []
    assert reviewed(lambda document, draft: told.append(draft)) == "accepted draft 3"
    assert told == [1, 1, 2, 1, 2, 3, 1, 2, 3]


def test_with_amends_each_draft_is_told_once() -> None:
    told: list[int] = []

    @amends.tool(kind="compensatable", key=("document", "draft"), compensate=lambda draft: told.append(-draft))
    def tell(document: str, draft: int) -> None:
        told.append(draft)

    with amends.Runtime("memory:", tools=[tell, amends.declare("review", kind="read")]) as rt:
        assert reviewed(tell, middleware=[AmendsMiddleware(rt)]) == "accepted draft 3"
        assert rt.report("t1/1").state == "committed"
    assert told == [1, 2, 3]
