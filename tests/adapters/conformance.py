"""What every adapter must do, on its real framework with a scripted model.

An adapter's tests are a subclass with a ``Harness``::

    class TestLangChain(Conformance):
        harness = LangChainHarness()

The harness is also made in another process, by name: a class at the top of its module, without arguments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import pytest
from pydantic import BaseModel

import amends
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
STAGED: list[Turn] = [[("mail", {"to": "ann"})], [("wire", {"iban": "DE02", "cents": 4200_00})], "paid"]
"""A receipt is accepted, and the wire after it waits for a person."""


class Shape:
    """One shape of trouble: its cases on one harness. Worlds are files; nothing here knows a framework."""

    harness: ClassVar[Harness]
    pauses: ClassVar[bool] = True
    """Whether the framework has a pause of its own; without one a held call is told to the model."""

    @pytest.fixture
    def shop(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
        monkeypatch.chdir(tmp_path)
        return Shop(tmp_path)

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


class Conformance(Shape):
    """What every adapter does, whatever its framework has."""

    is_told: ClassVar[Literal["before the end", "with the failure", ""]] = "before the end"
    """When the model is told what an open failure means; empty: nothing of amends speaks to it."""

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
            calls = rt.report(shop.runs()[0].id).calls
            assert [call.tool for call in calls if not call.tool.startswith("model:")] == ["reserve"]

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

    def test_killed_an_idempotent_call_is_started_again_without_a_person(self, shop: Shop) -> None:
        turns: list[Turn] = [[("take_seat", {"seat": "12A"})], [charge("A1", 500)], "booked"]
        shop.die_after("take_seat")
        assert self.in_a_new_process(shop, turns) is None, "it was to be killed"
        assert shop.effects() == ["take_seat 12A"]
        done = self.harness.drive(shop, turns, resume=True)
        assert done.how == "finished", done
        assert shop.effects() == ["take_seat 12A", "take_seat 12A", "charge A1 500"]
        first, second, _ = (key for _, _, key in shop.contexts())
        assert first == second, "the airline is asked with the key that it knows"
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

    def test_what_was_staged_before_a_pause_goes_out_once_when_the_run_commits(self, shop: Shop) -> None:
        self._pauses(shop, STAGED)
        assert shop.effects() == []
        self._decide(shop, approve=True)
        assert shop.effects() == [], "a yes starts nothing by itself"
        done = self.in_a_new_process(shop, STAGED, resume=True)
        assert done is not None
        assert done.how == "finished", done
        assert shop.effects() == ["wire DE02 420000", "mail ann"]
        assert shop.states() == ["committed"]
        with shop.desk() as rt:
            assert rt.recover() == []
        assert shop.effects() == ["wire DE02 420000", "mail ann"]

    def test_what_was_staged_before_a_no_never_goes_out_if_the_run_is_taken_back(self, shop: Shop) -> None:
        shop.options = {"requires": ["wire"]}
        self._pauses(shop, STAGED)
        self._decide(shop, approve=False)
        done = self.harness.drive(shop, STAGED, resume=True)
        if self.pauses:
            assert done.how == "failed", done
            assert shop.states() == ["rolled_back"]
        assert shop.states()[0] == "rolled_back"  # one that begins again from the start may have a second run by now
        assert shop.effects() == []

    def test_what_was_staged_in_a_waiting_run_that_a_person_takes_back_never_goes_out(self, shop: Shop) -> None:
        self._pauses(shop, STAGED)
        [run] = shop.runs()
        with shop.desk() as rt:
            rt.rollback(run.id, by="anna", why="not wanted")
        assert shop.states() == ["rolled_back"]
        self.harness.drive(shop, [*STAGED[:2], Fails("no more words")], resume=True)
        assert shop.effects() == []

    def test_bodies_know_their_run_and_their_key_in_the_frameworks_own_threads(self, shop: Shop) -> None:
        self.harness.drive(shop, [[charge("A1", 500), charge("A2", 500)], [("balance", {"account": "a"})], "ok"])
        seen = shop.contexts()
        assert {run for _, run, _ in seen} == {shop.runs()[0].id}
        assert len({key for _, _, key in seen}) == 3


def charge(order: str, cents: int, **more: Any) -> Asked:
    return "charge", {"order": order, "cents": cents, **more}


def wire(iban: str, cents: int) -> Asked:
    return "wire", {"iban": iban, "cents": cents}


# ---- shapes that an adapter takes up besides the cases above ------------------------------------
#
# An adapter takes a shape up by inheriting it, with a harness that has the hooks which the shape names. Where its
# framework makes a shape impossible or has nothing of the kind, its module says so in ``CELLS`` (see ``cells.py``):
# a shape that is neither inherited nor said there is an error of ``scripts/docs.py --check``.


class SameRequest(Shape):
    """A request in other words is the same request: the tool's own schema or signature says so."""

    @pytest.mark.parametrize(
        "again",
        [{"cents": "500"}, {"cents": 500.0}, {"note": "as agreed"}],
        ids=["a number as text", "a whole number as a fraction", "a default"],
    )
    def test_a_request_in_other_words_is_the_same_call(self, shop: Shop, again: dict[str, Any]) -> None:
        asked: Asked = ("charge", {"order": "A1", "cents": 500, **again})
        done = self.harness.drive(shop, [[charge("A1", 500)], [asked], "charged"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500"]
        assert done.told[1].startswith("Already done in this task; the same result:"), done

    def test_a_default_that_is_said_is_the_same_request(self, shop: Shop) -> None:
        def order_courier(order: str, box: list[int] | None = None, speed: int = 1) -> str:
            """Book a courier."""
            shop._effect("book", order, speed)
            return f"booked_{order}"

        shop.more = [(order_courier, amends.declare("order_courier", compensate=print))]
        said: list[Asked] = [
            ("order_courier", {"order": "A1"}),
            ("order_courier", {"order": "A1", "speed": "1"}),
            ("order_courier", {"order": "A1", "box": None, "speed": 1}),
        ]
        done = self.harness.drive(shop, [*([one] for one in said), "booked"])
        assert done.how == "finished", done
        assert shop.effects() == ["book A1 1"]
        assert all(told.startswith("Already done") for told in done.told[1:])

    def test_an_argument_that_the_tool_does_not_have_is_no_other_request(self, shop: Shop) -> None:
        said: list[Asked] = [charge("A1", 500), charge("A1", 500, colour="red"), charge("A1", 500)]
        done = self.harness.drive(shop, [*([one] for one in said), "charged"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500"]
        is_refused = "colour" in done.told[1]  # a function without it may also refuse it
        assert is_refused or done.told[1].startswith("Already done"), done
        assert done.told[2].startswith("Already done"), done

    def test_so_is_one_for_which_a_person_was_asked(self, shop: Shop) -> None:
        turns: list[Turn] = [[wire("DE02", 4200_00)], [("wire", {"iban": "DE02", "cents": "420000"})], "paid"]
        self.harness.drive(shop, turns)
        with shop.desk() as rt:
            for asked in rt.approvals():
                rt.approve(asked.id, digest=asked.digest, by="anna")
        self.harness.drive(shop, turns, resume=True)
        assert shop.effects() == ["wire DE02 420000"]


class StoppingHarness(Harness, Protocol):
    """A framework whose agent can be stopped by whoever reads its answers."""

    def stop(self, shop: Shop, turns: Sequence[Turn], *, after: int) -> None:
        """Do as ``drive``, and stop the agent in the framework's own way when it has had ``after`` results of tools."""
        ...


class Stopped(Shape):
    """Who stops an agent suspends its run: nothing staged starts, nothing is taken back, and it goes on when resumed."""

    harness: ClassVar[StoppingHarness]
    turns: ClassVar[list[Turn]] = [[("mail", {"to": "ann"}), charge("A1", 500)], [charge("A2", 700)], "charged"]

    def test_a_stop_suspends_and_the_run_goes_on_in_a_new_process(self, shop: Shop) -> None:
        self.harness.stop(shop, self.turns, after=2)
        self._is_suspended(shop)
        done = self.in_a_new_process(shop, self.turns, resume=True)
        assert done is not None
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "charge A2 700", "mail ann"]
        assert shop.states() == ["committed"]

    def test_a_stop_between_two_messages_of_the_model_suspends_and_the_run_goes_on(self, shop: Shop) -> None:
        turns: list[Turn] = [[("mail", {"to": "ann"})], [charge("A1", 500)], [charge("A2", 700)], "done"]
        self.harness.stop(shop, turns, after=2)
        self._is_suspended(shop)
        done = self.harness.drive(shop, turns, resume=True)
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "charge A2 700", "mail ann"]
        assert shop.states() == ["committed"]

    def test_a_person_takes_a_stopped_run_back(self, shop: Shop) -> None:
        self.harness.stop(shop, self.turns, after=2)
        with shop.desk() as rt:
            rt.rollback(shop.runs()[0].id, by="anna", why="not wanted")
        assert shop.effects() == ["charge A1 500", "refund ch_A1"]
        assert shop.states() == ["rolled_back"]

    def test_killed_after_the_resume_of_a_stopped_run_nothing_is_done_twice(self, shop: Shop) -> None:
        self.harness.stop(shop, self.turns, after=2)
        shop.die_after("charge")
        assert self.in_a_new_process(shop, self.turns, resume=True) is None, "it was to be killed"
        assert shop.effects() == ["charge A1 500", "charge A2 700"]
        done = self.harness.drive(shop, self.turns, resume=True)
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "charge A2 700", "mail ann"]

    def _is_suspended(self, shop: Shop) -> None:
        assert shop.effects() == ["charge A1 500"]
        [run] = shop.runs()
        assert (run.state, run.owner) == ("open", None)
        with shop.desk() as rt:
            assert rt.recover() == [], "a worker leaves it alone"
            assert [item.what for item in rt.inbox()] == ["suspended"]


class TwoRuntimes(Shape):
    """An agent inside a run of another runtime does not work in that run, under declarations that are not its own."""

    @pytest.fixture
    def other(self, tmp_path: Path) -> Iterator[amends.Run]:
        """An open run of a runtime that takes a charge for a read."""
        declared = amends.declare("charge", kind="read")
        with amends.Runtime(f"sqlite:///{tmp_path / 'other.db'}", tools=[declared]) as rt, rt.run("other") as run:
            yield run
            assert list(run.report().calls) == []

    def test_its_calls_are_in_a_run_of_its_own(self, shop: Shop, other: amends.Run) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], [charge("A1", 500)], "charged"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500"]
        assert shop.states() == ["committed"]
        assert {run for _, run, _ in shop.contexts()} == {shop.runs()[0].id}

    def test_what_it_fails_at_is_taken_back_by_its_own_declarations(self, shop: Shop, other: amends.Run) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], Fails("the model is down")])
        assert done.how == "failed", done
        assert shop.effects() == ["charge A1 500", "refund ch_A1"]
        assert shop.states() == ["rolled_back"]


# ---- what else frameworks' own features break --------------------------------------------------


@dataclass
class Booking:
    """What a tool returns."""

    id: str
    price: Decimal


class Room(BaseModel):
    """What a tool returns."""

    id: str
    booking: Booking


RETURNED: dict[str, Any] = {
    "dataclass": Booking("b1", Decimal("1.50")),
    "dataclass whose annotation is text": Booking("b1", Decimal("1.50")),
    "model": Room(id="r1", booking=Booking("b1", Decimal("1.50"))),
    "decimal": Decimal("1.50"),
    "tuple": ("a", 1),
    "list": [Booking("b1", Decimal(2))],
    "bytes": b"\x00\xff",
    "dict": {"id": "b1", "nested": {"n": 1}},
    "none": None,
}
HINTS: dict[str, Any] = {
    "dataclass": Booking, "dataclass whose annotation is text": "Booking", "model": Room, "decimal": Decimal,
    "tuple": tuple[str, int], "list": list[Booking], "bytes": bytes, "dict": dict[str, Any], "none": None,
}  # fmt: skip


class RichResults(Shape):
    """A compensation gets what the tool returned."""

    @pytest.mark.parametrize("kind", RETURNED)
    def test_a_compensation_gets_what_the_tool_returned(self, shop: Shop, kind: str) -> None:
        handed: list[Any] = []

        def rent(room: str):  # type: ignore[no-untyped-def]
            """Book a room."""
            return RETURNED[kind]

        def cancel(result: Any) -> None:
            handed.append(result)

        rent.__annotations__["return"] = HINTS[kind]
        shop.more = [(rent, amends.declare("rent", compensate=cancel))]
        done = self.harness.drive(shop, [[("rent", {"room": "7"})], Fails("the model is down")])
        assert done.how == "failed", done
        assert handed == [RETURNED[kind]]
        assert type(handed[0]) is type(RETURNED[kind])


class SeveralAgents(Shape):
    """Two agents in one turn, as ``harness``: the first says ``turns[0]`` and its last words, the second the others."""

    def test_they_share_one_run(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], [charge("B1", 700)], "charged"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "charge B1 700"]
        assert shop.states() == ["committed"]

    def test_a_failure_of_the_second_takes_the_first_back(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], [charge("B1", 700)], Fails("the model is down")])
        assert done.how == "failed", done
        assert shop.effects() == ["charge A1 500", "charge B1 700", "refund ch_B1", "refund ch_A1"]
        assert shop.states() == ["rolled_back"]

    def test_killed_in_the_second_agent_it_goes_on_in_the_same_run(self, shop: Shop) -> None:
        turns: list[Turn] = [[("reserve", {"sku": "S1"}), ("mail", {"to": "ann"})], [charge("B1", 700)], "done"]
        shop.die_after("charge")
        assert self.in_a_new_process(shop, turns) is None, "it was to be killed"
        assert shop.effects() == ["reserve S1", "charge B1 700"]
        done = self.harness.drive(shop, turns, resume=True)
        assert done.how == "finished", done
        assert shop.effects() == ["reserve S1", "charge B1 700", "mail ann"]
        assert shop.states() == ["committed"]

    def test_an_approval_asked_in_the_second_agent_counts_in_a_new_process(self, shop: Shop) -> None:
        turns: list[Turn] = [[charge("A1", 500)], [wire("DE02", 4200_00)], "paid"]
        done = self.in_a_new_process(shop, turns)
        assert done is not None
        assert done.how == "paused", done
        self._decide(shop, approve=True)
        done = self.in_a_new_process(shop, turns, resume=True)
        assert done is not None
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "wire DE02 420000"]
        assert shop.states() == ["committed"]


class Retried(Shape):
    """The framework tries the agent again, as ``harness``: its model is down once, when it has first seen a result."""

    def test_a_second_attempt_repeats_no_effect(self, shop: Shop) -> None:
        done = self.harness.drive(shop, [[charge("A1", 500)], [charge("A2", 700)], "charged"])
        assert done.how == "finished", done
        assert shop.effects() == ["charge A1 500", "charge A2 700"]
        assert shop.states() == ["committed"]

    def test_killed_in_the_second_attempt_it_goes_on_in_the_same_run(self, shop: Shop) -> None:
        turns: list[Turn] = [[("reserve", {"sku": "S1"})], [charge("A2", 700)], "charged"]
        shop.die_after("charge")
        assert self.in_a_new_process(shop, turns) is None, "it was to be killed"
        assert shop.effects() == ["reserve S1", "charge A2 700"]
        done = self.harness.drive(shop, turns, resume=True)
        assert done.how == "finished", done
        assert shop.effects() == ["reserve S1", "charge A2 700"]
        assert shop.states() == ["committed"]


# ---- an agent as a tool ---------------------------------------------------------------------


def asks_clerk(argument: str) -> list[Turn]:
    """What a supervisor says: it asks the clerk, hands the parcel over, and ends. ``argument``: what the clerk is told in."""
    return [[("ask_clerk", {argument: "do it"})], [("ship", {"order": "A1"})], "done"]


class SupervisorConformance(Shape):
    """A supervisor whose tool ``ask_clerk`` is an agent, in the way that the framework's documentation shows.

    The harness drives a supervisor that says ``asks_clerk(...)``; the turns are those of the clerk. Nothing declares
    ``ask_clerk``.
    """

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
