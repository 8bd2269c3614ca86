"""What a graph says of itself: its thread, its messages, whether something keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage


def thread_of(config: Mapping[str, Any]) -> str | None:
    """The conversation; None: it has no name."""
    thread = config.get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


def inside(config: Mapping[str, Any]) -> str:
    """Which graph inside another one this is; empty: the outermost."""
    return str(config.get("configurable", {}).get("checkpoint_ns", "")).rpartition("|")[0]


def is_resumable(config: Mapping[str, Any]) -> bool:
    """Whether a pause can be come back from: every graph says what keeps it, and None says that nothing does."""
    return config.get("configurable", {}).get("__pregel_checkpointer", True) is not None


def messages_of(state: Any) -> Sequence[BaseMessage]:
    """The conversation so far, whatever the state's type."""
    if isinstance(state, list):
        return state
    found: Sequence[BaseMessage]
    found = state.get("messages", ()) if isinstance(state, Mapping) else getattr(state, "messages", ())
    return found


def turns_in(state: Any) -> int:
    """How often the user has spoken."""
    return sum(isinstance(message, HumanMessage) for message in messages_of(state))


def has_answers(state: Any) -> bool:
    """Whether a tool has answered since the user spoke."""
    for message in reversed(messages_of(state)):
        if isinstance(message, HumanMessage):
            return False
        if isinstance(message, ToolMessage):
            return True
    return False


def asked_ids(state: Any) -> set[str | None]:
    """The ids of all calls that the model knows it has made."""
    return {call["id"] for one in messages_of(state) if isinstance(one, AIMessage) for call in one.tool_calls}


def neighbours(config: Mapping[str, Any], state: Any, call_id: str | None) -> set[str | None]:
    """The other calls that are done in the very same node; none where the graph gives each call one of its own."""
    path = config.get("metadata", {}).get("langgraph_path", ())
    if not path or path[0] != "__pregel_pull":
        return set()
    for message in reversed(messages_of(state)):
        if isinstance(message, AIMessage):
            return {call["id"] for call in message.tool_calls} - {call_id}
    return set()
