"""What every adapter must do, on its real framework with a scripted model.

An adapter's tests are a subclass with a ``Harness``::

    class TestLangChain(Conformance):
        harness = LangChainHarness()

The harness is also made in another process, by name: a class at the top of its module, without arguments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import pytest

from amends.errors import STILL_OPEN
from tests.adapters.shop import Shop
from tests.forked import run_python

CHILD_S_MAX = 120
FRAMEWORKS = "tests.adapters.loaded"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Fails:
    """A turn of the model in which asking it raises: the agent's run fails."""

    message: str


Asked: TypeAlias = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""
Turn: TypeAlias = list[Asked] | str | Fails
"""What the model says next: calls (all in one message, so in parallel), its last words, or a failure."""


@dataclass(frozen=True)
class Outcome:
    """How the framework's own run ended."""

    how: Literal["finished", "paused", "failed"]
    told: list[str] = field(default_factory=list)
    """Every result of a tool that the model was given in this conversation, in its order there."""
    error: str = ""
    """Where it failed: what came out of the framework."""


class Harness(Protocol):
    """One framework with its adapter."""

    def drive(self, shop: Shop, turns: Sequence[Turn], *, thread: str = "t1", resume: bool = False) -> Outcome:
        """Let a fresh agent, made here with fresh objects, do one turn of a conversation.

        The agent has ``shop.functions()`` as its framework's own tools and a runtime over ``shop.url`` with
        ``shop.declared()``, closed before this returns; its runs have ``shop.options``. The model says ``turns[n]`` when
        it has spoken n times since the user did (the last one again, when it has nothing more to say), whatever amends
        told it meanwhile; every call it asks for has a new id. A failure of the framework's run is caught and returned,
        after the adapter's own scope (if it needs one) has seen it.

        ``resume``: go on, in the framework's own way, with the conversation ``thread`` that another ``drive``
        (perhaps in a process that is dead) left paused or broken; what the framework needs for that it has put into
        ``shop.folder``. A value that its resume wants is one that says yes: the ledger alone must decide. Where a
        framework keeps nothing between model calls, a resumed conversation starts again with the same input.
        """
        ...


HALF_DONE: list[Turn] = [[("charge", {"order": "A1", "cents": 500})], [("ship", {"order": "nowhere"})], "sorry"]
"""The money was taken, the parcel does not go out, and the model stops."""


class Conformance:
    """The cases. Worlds are files; nothing here knows a framework."""

    harness: ClassVar[Harness]
    pauses: ClassVar[bool] = True
    """Whether the framework has a pause of its own; without one a held call is told to the model."""
    is_told: ClassVar[Literal["before the end", "with the failure", ""]] = "before the end"
    """When the model is told what an open failure means; empty: nothing of amends speaks to it."""

    @pytest.fixture
    def shop(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
        monkeypatch.chdir(tmp_path)
        return Shop(tmp_path)

    # ---- once ---------------------------------------------------------------------------------

    def test_a_fresh_call_happens_once_and_its_run_commits(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], "charged"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500"]
        assert "ch_A1" in done.told[0]
        assert shop.states() == ["committed"]

    def test_a_repeat_under_a_new_call_id_is_answered_from_the_record(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], [charge("A1", 500)], "charged"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500"]
        assert done.told[1].startswith("Already done in this task; the same result:")
        assert "ch_A1" in done.told[1]

    def test_a_reworded_repeat_is_the_same_call(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500, note="as agreed")], [charge("A1", 500, note="order A1, 5 EUR")], "ok"]
        done = self.harness.drive(shop, turns)
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500"]
        assert done.told[1].startswith("Already done")

    def test_other_arguments_under_one_key_are_a_conflict_that_the_model_sees(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], [charge("A1", 900)], "hm"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500"]
        assert "was already done with cents=500; you asked for cents=900" in done.told[1]

    def test_a_read_is_done_each_time(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[("balance", {"account": "a"})], [("balance", {"account": "a"})], "9000"])
        assert done.how == "finished", done
        assert [tool for tool, _, _ in shop.contexts()] == ["balance", "balance"]
        assert all("9000" in told for told in done.told)

    def test_a_tool_of_amends_goes_through_the_framework_as_it_is(self, shop: Shop) -> None:
        reserve: Asked = ("reserve", {"sku": "S1"})
        done = self.harness.drive(shop, [[reserve], [reserve], "reserved"])
        assert done.how == "finished", done
        assert shop.effects() == ["reserve S1"]
        assert "reserved_S1" in done.told[0]
        assert done.told[1].startswith("Already done")
        with shop.desk() as rt:
            assert [call.tool for call in rt.report(shop.runs()[0].id).calls] == ["reserve"]

    def test_two_turns_of_one_conversation_are_two_runs(self, shop: Shop) -> None:
        first = self.harness.drive(shop, [[charge("A1", 500)], "charged"])
        second = self.harness.drive(shop, [[charge("A2", 700)], "charged"])
        assert (first.how, second.how) == ("finished", "finished")
        assert shop.effects() == ["charge A1 500", "charge A2 700"]
        assert shop.states() == ["committed", "committed"]
        runs = shop.runs()
        assert runs[0].tags == runs[1].tags == ("thread:t1",)

    # ---- people -------------------------------------------------------------------------------

    def test_a_pause_for_approval_is_resumed_in_a_new_process(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500)], [wire("DE02", 4200_00)], "paid"]
        self._pauses(shop, turns)
        assert shop.effects() == ["charge A1 500"]
        self._decide(shop, approve=True)
        assert shop.effects() == ["charge A1 500"], "a yes starts nothing by itself"
        done = self.in_a_new_process(shop, turns, resume=True)
        assert done is not None
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "wire DE02 420000"]
        assert "wire_DE02" in done.told[-1]
        assert shop.states() == ["committed"]

    def test_a_resume_value_never_approves(self, shop: Shop) -> None:
        turns: list[Turn] = [[wire("DE02", 4200_00)], "paid"]
        self._pauses(shop, turns)
        again = self.harness.drive(shop, turns, resume=True)
        assert shop.effects() == []
        if self.pauses:
            assert again.how == "paused", again
        self._decide(shop, approve=True)
        self.harness.drive(shop, turns, resume=True)
        assert shop.effects() == ["wire DE02 420000"]

    def test_a_no_is_told_to_the_model_with_its_reason(self, shop: Shop) -> None:
        turns: list[Turn] = [[wire("DE02", 4200_00)], "then not"]
        self._pauses(shop, turns)
        self._decide(shop, approve=False)
        done = self.harness.drive(shop, turns, resume=True)
        assert done.how == "finished", done
        assert shop.effects() == []
        assert "A person rejected wire: wrong payee" in done.told[-1]
        assert shop.states() == ["committed"]

    def test_a_tool_that_nobody_declared_waits_for_a_person(self, shop: Shop) -> None:
        turns: list[Turn] = [[("stamp", {"text": "x"})], "stamped"]
        self._pauses(shop, turns)
        assert shop.effects() == []
        self._decide(shop, approve=True)
        done = self.harness.drive(shop, turns, resume=True)
        assert done.how == "finished", done
        assert shop.effects() == ["stamp x"]

    def test_of_parallel_calls_only_the_one_that_needs_it_waits(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500), ("stamp", {"text": "x"}), charge("A2", 700)], "done"]
        self._pauses(shop, turns)
        assert sorted(shop.effects()) == ["charge A1 500", "charge A2 700"]
        self._decide(shop, approve=True)
        done = self.harness.drive(shop, turns, resume=True)
        assert done.how == "finished", done
        assert sorted(shop.effects()) == ["charge A1 500", "charge A2 700", "stamp x"]
        assert shop.states() == ["committed"]

    # ---- failing ------------------------------------------------------------------------------

    def test_an_error_of_a_tool_is_survived_and_made_good(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500)], [("ship", {"order": "nowhere"})], [("ship", {"order": "A1"})], "sent"]
        done = self.harness.drive(shop, turns)
        assert done.how == "finished", done
        assert "address unknown" in done.told[1]
        assert shop.effects() == ["charge A1 500", "ship A1"]
        assert shop.states() == ["committed"]

    def test_a_run_that_ends_over_an_open_failure_is_taken_back(self, shop: Shop) -> None:
        done = self.harness.drive(shop, HALF_DONE)
        assert done.how == "failed", done
        assert "address unknown" in done.error
        assert shop.effects() == ["charge A1 500", "refund ch_A1"]
        assert shop.states() == ["rolled_back"]
        with shop.desk() as rt:
            [missing] = rt.report(shop.runs()[0].id).missing
        assert (missing.tool, "address unknown" in missing.why) == ("ship", True)

    def test_who_wants_it_keeps_what_was_done(self, shop: Shop) -> None:
        shop.options = {"on_open_failure": "commit"}
        done = self.harness.drive(shop, HALF_DONE)
        assert done.how == "finished", done
        assert "address unknown" in done.told[1]
        assert shop.effects() == ["charge A1 500"]
        assert shop.states() == ["committed"]
        with shop.desk() as rt:
            assert [one.tool for one in rt.report(shop.runs()[0].id).missing] == ["ship"]

    def test_a_model_that_is_about_to_stop_is_told_and_finishes(self, shop: Shop) -> None:
        turns: list[Turn] = [*HALF_DONE, [("ship", {"order": "A1"})], "sent after all"]
        done = self.harness.drive(shop, turns)
        if self.is_told == "before the end":
            assert done.how == "finished", done
            assert shop.effects() == ["charge A1 500", "ship A1"]
            assert shop.states() == ["committed"]
        else:
            assert done.how == "failed", done
        if self.is_told == "with the failure":
            assert STILL_OPEN in done.told[1]

    def test_a_run_without_what_it_requires_is_taken_back(self, shop: Shop) -> None:
        shop.options = {"requires": ["ship"]}
        done = self.harness.drive(shop, [[charge("A1", 500)], "that is all"])
        assert done.how == "failed", done
        assert shop.effects() == ["charge A1 500", "refund ch_A1"]
        assert shop.states() == ["rolled_back"]

    def test_after_the_pivot_it_is_blocked_with_what_is_missing(self, shop: Shop) -> None:
        shop.options = {"requires": ["mail"]}
        done = self.harness.drive(shop, [[charge("A1", 500)], [("ship", {"order": "A1"})], "sent"])
        assert done.how == "failed", done
        assert shop.effects() == ["charge A1 500", "ship A1"]
        [run] = shop.runs()
        assert run.state == "blocked"
        assert run.causes[0].startswith("incomplete: mail has not succeeded")

    def test_a_run_that_fails_is_taken_back(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500)], [charge("A2", 700)], Fails("the model is down")]
        done = self.harness.drive(shop, turns)
        assert done.how == "failed", done
        assert "the model is down" in done.error
        assert shop.effects() == ["charge A1 500", "charge A2 700", "refund ch_A2", "refund ch_A1"]
        assert shop.states() == ["rolled_back"]

    def test_killed_between_effect_and_record_it_is_not_done_again(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500)], [charge("A2", 700)], "charged"]
        shop.die_after("charge")
        assert self.in_a_new_process(shop, turns) is None, "it was to be killed"
        assert shop.effects() == ["charge A1 500"]
        done = self.harness.drive(shop, turns, resume=True)
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "charge A2 700"]
        assert shop.states() == ["committed"]

    # ---- order, groups, context ---------------------------------------------------------------

    def test_an_early_pivot_is_refused_in_words_that_help(self, shop: Shop) -> None:
        ship: Asked = ("ship", {"order": "A1"})
        done = self.harness.drive(shop, [[ship], [charge("A1", 500)], [ship], "shipped"])
        assert done.how == "finished", done
        assert "Call charge first" in done.told[0]
        assert shop.effects() == ["charge A1 500", "ship A1"]

    def test_parallel_calls_are_each_done_once(self, shop: Shop) -> None:
        group = [charge(order, 500) for order in ("A1", "A2", "A3", "A1")]
        done = self.harness.drive(shop, [group, "charged"])
        assert done.how == "finished", done
        assert sorted(shop.effects()) == ["charge A1 500", "charge A2 500", "charge A3 500"]
        assert len(done.told) == 4
        assert sum(told.startswith("Already done") for told in done.told) == 1

    def test_a_staged_call_is_accepted_and_done_when_the_run_commits(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[("mail", {"to": "ann"})], [charge("A1", 500)], "mailed"])
        assert done.how == "finished", done
        assert done.told[0].startswith("Accepted: mail will run once")
        assert shop.effects() == ["charge A1 500", "mail ann"]
        assert shop.states() == ["committed"]

    def test_a_staged_call_of_a_run_that_fails_never_happens(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[("mail", {"to": "ann"})], [charge("A1", 500)], Fails("down")])
        assert done.how == "failed", done
        assert shop.effects() == ["charge A1 500", "refund ch_A1"]

    def test_bodies_know_their_run_and_their_key_in_the_frameworks_own_threads(self, shop: Shop) -> None:
        self.harness.drive(shop, [[charge("A1", 500), charge("A2", 500)], [("balance", {"account": "a"})], "ok"])
        seen = shop.contexts()
        assert {run for _, run, _ in seen} == {shop.runs()[0].id}
        assert len({key for _, _, key in seen}) == 3

    # ---- inside -------------------------------------------------------------------------------

    def _pauses(self, shop: Shop, turns: Sequence[Turn]) -> None:
        done = self.harness.drive(shop, turns)
        if self.pauses:
            assert done.how == "paused", done
        else:
            assert any("needs a person's approval" in told for told in done.told), done

    def _decide(self, shop: Shop, *, approve: bool) -> None:
        with shop.desk() as rt:
            asked = list(rt.approvals())
            assert len(asked) == 1
            if approve:
                rt.approve(asked[0].id, digest=asked[0].digest, by="anna")
            else:
                rt.reject(asked[0].id, by="anna", reason="wrong payee")

    def in_a_new_process(self, shop: Shop, turns: Sequence[Turn], *, resume: bool = False) -> Outcome | None:
        """The same ``drive`` in a process of its own; None: it was killed."""
        made = type(self.harness)
        told = {
            "harness": f"{made.__module__}:{made.__qualname__}",
            "folder": str(shop.folder),
            "turns": [asdict(turn) if isinstance(turn, Fails) else turn for turn in turns],
            "resume": resume,
        }
        (shop.folder / "outcome.json").unlink(missing_ok=True)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        done = run_python(
            ["-m", "tests.adapters.child", json.dumps(told)],
            cwd=shop.folder, env=environ, timeout=CHILD_S_MAX, loaded=FRAMEWORKS,
        )  # fmt: skip
        if done.returncode == -9:
            return None
        assert done.returncode == 0, done.stderr[-4000:]
        return Outcome(**json.loads((shop.folder / "outcome.json").read_text(encoding="utf-8")))


def charge(order: str, cents: int, **more: Any) -> Asked:
    return "charge", {"order": order, "cents": cents, **more}


def wire(iban: str, cents: int) -> Asked:
    return "wire", {"iban": iban, "cents": cents}


# ---- an agent as a tool ---------------------------------------------------------------------


def asks_clerk(argument: str) -> list[Turn]:
    """What a supervisor says: it asks the clerk, hands the parcel over, and ends. ``argument``: what the clerk is told in."""
    return [[("ask_clerk", {argument: "do it"})], [("ship", {"order": "A1"})], "done"]


class SupervisorConformance(Conformance):
    """A supervisor whose tool ``ask_clerk`` is an agent, in the way that the framework's documentation shows.

    The harness drives a supervisor that says ``asks_clerk(...)``; the turns are those of the clerk. Nothing declares
    ``ask_clerk``.
    """

    __test__ = False

    def test_an_approval_inside_is_resumed_in_a_new_process(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500)], [wire("DE02", 4200_00)], "paid"]
        paused = self.harness.drive(shop, turns)
        assert paused.how == "paused", paused
        assert shop.effects() == ["charge A1 500"]
        assert shop.states() == ["open"]
        again = self.harness.drive(shop, turns, resume=True)
        assert again.how == "paused", again
        self._decide(shop, approve=True)
        done = self.in_a_new_process(shop, turns, resume=True)
        assert done is not None
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "wire DE02 420000", "ship A1"]
        assert "paid" in done.told[0]
        assert shop.states() == ["committed"]
        with shop.desk() as rt:
            assert list(rt.approvals()) == []
            [child] = rt.report(shop.runs()[0].id).children
            assert (child.state, [call.tool for call in child.calls if call.kind != "read"]) == (
                "committed",
                ["charge", "wire"],
            )

    def test_a_no_is_told_to_the_agent_inside(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500)], [wire("DE02", 4200_00)], "then not"]
        assert self.harness.drive(shop, turns).how == "paused"
        self._decide(shop, approve=False)
        done = self.harness.drive(shop, turns, resume=True)
        assert done.how == "finished", done
        assert "then not" in done.told[0]
        assert shop.effects() == ["charge A1 500", "ship A1"]
        assert shop.states() == ["committed"]

    def test_each_of_them_reaches_its_own_pivot(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], [wire("DE02", 5)], "paid"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "wire DE02 5", "ship A1"]
        assert shop.states() == ["committed"]

    def test_a_call_inside_that_was_staged_is_done_when_the_outermost_run_commits(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], [("mail", {"to": "eve"})], "paid"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "ship A1", "mail eve"]

    def test_killed_inside_it_is_not_done_again(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500)], [wire("DE02", 5)], "paid"]
        shop.die_after("charge")
        assert self.in_a_new_process(shop, turns) is None
        assert shop.effects() == ["charge A1 500"]
        done = self.in_a_new_process(shop, turns, resume=True)
        assert done is not None
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "wire DE02 5", "ship A1"]
        assert shop.states() == ["committed"]

    def test_killed_after_its_pivot_it_is_not_done_again(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500)], [wire("DE02", 5)], "paid"]
        shop.die_after("wire")
        assert self.in_a_new_process(shop, turns) is None
        self.in_a_new_process(shop, turns, resume=True)  # nobody can say whether it happened: it must not happen again
        assert [one for one in shop.effects() if one.startswith("wire")] == ["wire DE02 5"]
        assert shop.states() != ["committed"]

    def test_if_it_fails_it_is_taken_back(self, shop: Shop) -> None:
        self.harness.drive(shop, [[charge("A1", 500)], Fails("down")])
        assert shop.effects() == ["charge A1 500", "refund ch_A1"]


for _name in [one for one in vars(Conformance) if one.startswith("test_")]:
    setattr(SupervisorConformance, _name, None)  # its cases are about one agent
