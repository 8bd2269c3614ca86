"""Which test shows which shape for which adapter: the table in ``docs/reference/adapters.md``, made by ``scripts/docs.py``.

A test class that inherits a shape of ``conformance.py`` fills the cell. For the other cells the first module of a column
has ``CELLS``, a literal (it is read, not imported, so that no framework is needed to write the docs)::

    CELLS: Cells = {
        "no name": Tested("test_a_turn_without_a_name_is_warned_of_once"),
        "stop": Impossible("crewai 1.15.4", "A kickoff cannot be left before its end.", "test_a_stop_is_refused"),
        "lost server": Absent("It has no client of MCP servers."),
    }

A test is named as in its column's modules, or as ``test_mcp_clients.py::test_name``, with ``[langchain]`` behind it where it
is one of the cases. A cell that is missing, that contradicts what a class inherits, or that names a test which does not
exist is an error of ``scripts/docs.py --check``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


class Tested:
    """These tests, which are the adapter's own, show the shape."""

    __test__ = False  # its name begins as that of a test class

    def __init__(self, *tests: str) -> None:
        self.tests = tests


class Impossible:
    """The framework, by name and version, makes the shape impossible; the tests show what amends says or refuses then."""

    def __init__(self, framework: str, why: str, *tests: str) -> None:
        self.framework, self.why, self.tests = framework, why, tests


class Absent:
    """The shape does not apply, and why."""

    def __init__(self, why: str) -> None:
        self.why = why


Cell = Tested | Impossible | Absent
Cells = dict[str, Cell]


@dataclass(frozen=True)
class Row:
    """One shape."""

    name: str
    says: str
    """What must hold, for a reader of the docs."""
    shown_by: tuple[str, ...] = ()
    """The shape of ``conformance.py`` that shows it, or single cases of one; empty: each adapter names tests of its own."""


@dataclass(frozen=True)
class Column:
    """One adapter."""

    title: str
    page: str
    modules: tuple[str, ...]
    """Where its tests are; the first has ``CELLS``."""


COLUMNS: Final = (
    Column(
        "LangChain, LangGraph", "langchain.md", ("test_langchain", "test_langchain_features", "test_langchain_graphs")
    ),
    Column("Pydantic AI", "pydantic-ai.md", ("test_pydantic_ai",)),
    Column("OpenAI Agents SDK", "openai-agents.md", ("test_openai_agents",)),
    Column("CrewAI", "crewai.md", ("test_crewai",)),
    Column("OpenAI SDK", "openai.md", ("test_openai",)),
    Column("Anthropic SDK", "anthropic.md", ("test_anthropic",)),
    Column("Run an agent", "run-an-agent.md", ("test_run_agent",)),
    Column("MCP server", "mcp.md", ("test_mcp", "test_mcp_wire")),
    Column("FastMCP server", "fastmcp.md", ("test_fastmcp", "test_mcp_wire")),
)

ROWS: Final = (
    Row(
        "once",
        "A call happens once, and its run commits.",
        ("Conformance.test_a_fresh_call_happens_once_and_its_run_commits",),
    ),
    Row(
        "repeat",
        "The same call under a new call id is answered from the record; other arguments under its key are a conflict.",
        (
            "Conformance.test_a_repeat_under_a_new_call_id_is_answered_from_the_record",
            "Conformance.test_a_reworded_repeat_is_the_same_call",
            "Conformance.test_other_arguments_under_one_key_are_a_conflict_that_the_model_sees",
        ),
    ),
    Row(
        "other words",
        "The same request in other words (a default that is said, a number as text, an unknown argument) is the same call.",
        ("SameRequest",),
    ),
    Row(
        "parallel",
        "Of calls in one message each happens once, and only the one that needs a person waits.",
        (
            "Conformance.test_parallel_calls_are_each_done_once",
            "Conformance.test_of_parallel_calls_only_the_one_that_needs_it_waits",
        ),
    ),
    Row(
        "pause",
        "A call that needs a person pauses the turn, which goes on in a new process; nothing but the ledger approves.",
        (
            "Conformance.test_a_pause_for_approval_is_resumed_in_a_new_process",
            "Conformance.test_a_resume_value_never_approves",
            "Conformance.test_a_no_is_told_to_the_model_with_its_reason",
        ),
    ),
    Row(
        "staged",
        "A staged call runs when the run commits, and never if it is rolled back.",
        (
            "Conformance.test_a_staged_call_is_accepted_and_done_when_the_run_commits",
            "Conformance.test_a_staged_call_of_a_run_that_fails_never_happens",
        ),
    ),
    Row(
        "staged before a pause",
        "A call staged before a pause runs once, when the resumed run commits, and never if it is rolled back.",
        (
            "Conformance.test_what_was_staged_before_a_pause_goes_out_once_when_the_run_commits",
            "Conformance.test_what_was_staged_before_a_no_never_goes_out_if_the_run_is_taken_back",
            "Conformance.test_what_was_staged_in_a_waiting_run_that_a_person_takes_back_never_goes_out",
        ),
    ),
    Row(
        "failure",
        "A run that fails, or ends over an open failure, is rolled back.",
        (
            "Conformance.test_a_run_that_fails_is_taken_back",
            "Conformance.test_a_run_that_ends_over_an_open_failure_is_taken_back",
        ),
    ),
    Row(
        "stop",
        "Stop suspends the run: nothing staged starts, nothing is rolled back, and the turn can be resumed.",
        ("Stopped",),
    ),
    Row(
        "killed",
        "Killed between effect and record, the turn goes on in a new process and the effect does not happen again.",
        ("Conformance.test_killed_between_effect_and_record_it_is_not_done_again",),
    ),
    Row(
        "killed, idempotent",
        "A killed call of an `idempotent` tool is started again with its key, without a person.",
        ("Conformance.test_killed_an_idempotent_call_is_started_again_without_a_person",),
    ),
    Row("retries", "A retry by the framework or the client repeats no effect.", ("Retried",)),
    Row(
        "sub-agent",
        "An agent that is a tool works in a child run: it waits, is killed and is rolled back together with its caller.",
        ("SupervisorConformance",),
    ),
    Row(
        "several agents",
        "Several agents of one turn share one run, also after a kill or an approval in the second.",
        ("SeveralAgents",),
    ),
    Row("rich results", "A compensation gets what the tool returned: its class, and no text of it.", ("RichResults",)),
    Row(
        "two runtimes",
        "Inside a run of another runtime, an agent works in a run of its own, or is refused.",
        ("TwoRuntimes",),
    ),
    Row("lost server", "An MCP server that is lost or does not answer in time is a doubt, and is not asked again."),
    Row("server's error", "A result of an MCP server with `isError` is a failure, not a success."),
    Row("not yet", "What a guarded MCP server has not executed is not recorded as done by a guarded client."),
    Row("unguarded", "A path past amends is named in a warning, or refused with `strict=True`."),
    Row("no name", "A run without a name, which a restart could not find again, is warned of once."),
)
