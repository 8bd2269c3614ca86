"""Halts: from their transaction on nothing starts, neither by a plain statement nor by a flow."""

from __future__ import annotations

from typing import Any

from amends.encoding.chain import read_heads
from amends.ledger import operations as ops
from amends.ledger.plain import SettlePlain, Started
from amends.ledger.rows import DirectiveRow, RunRow
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import check, check_each


def halt(ledger: Ledger, **given: Any) -> DirectiveRow:
    """Halt the ledger, or a part of it."""
    where = {"tenant": None, "agent": "", "tool": "", "by": "ann", "why": "fire"} | given
    row: DirectiveRow = ledger(ops.Halt(ledger.new("hlt"), **where))
    return row


def lift(ledger: Ledger, **given: Any) -> list[DirectiveRow]:
    """Lift the halts of this extent."""
    where = {"tenant": None, "agent": "", "tool": "", "by": "ben", "why": "out"} | given
    rows: list[DirectiveRow] = ledger(ops.Unhalt(**where, nonce=ledger.new("nonce")))
    return rows


def starts_plain(ledger: Ledger, run: RunRow, tool: str = "charge", **given: Any) -> bool:
    """Ask for a plain call, and return whether it started."""
    answer = ledger.raw(ledger.plain_op(run, tool, args=f'{{"n": {ledger.new_number()}}}', **given))
    if isinstance(answer, ops.Admission) and answer.verdict == "refused":
        assert (answer.law, answer.halt is not None) == ("halt", True)
        return False
    assert isinstance(answer, Started) or answer.verdict == "start", answer
    return True


@check_each({"compensatable": "compensatable", "read": "read"})
def nothing_plain_starts_after_a_halt_and_everything_after_it_is_lifted(ledger: Ledger, kind: str) -> None:
    run = ledger.run()
    before = ledger.start_plain(run, "first")
    halt(ledger)
    assert not starts_plain(ledger, run, kind=kind)
    settled = ledger(SettlePlain(before, '"ok"'))
    assert settled.call.state == "succeeded", "what had started is settled"
    again = ledger(ledger.plain_op(run, "first"))
    assert (again.verdict, again.call) == ("replay", settled.call), "the record still answers"
    assert not starts_plain(ledger, run, kind=kind)
    assert [row.closed_at is not None for row in lift(ledger)] == [True]
    assert starts_plain(ledger, run, kind=kind)


@check
def a_run_that_is_opened_after_the_halt_starts_nothing(ledger: Ledger) -> None:
    halt(ledger)
    assert not starts_plain(ledger, ledger.run())


@check
def a_halt_is_seen_by_another_handle_at_once(ledger: Ledger) -> None:
    beside = ledger.beside
    run = ledger.run()
    assert starts_plain(ledger, run)
    halt(ledger if beside is None else beside)
    assert not starts_plain(ledger, run)
    lift(ledger if beside is None else beside)
    assert starts_plain(ledger, run)


@check_each(
    {
        "tenant": ({"tenant": "acme"}, {"tenant": "umbrella"}),
        "agent": ({"agent": "clerk"}, {"agent": "boss"}),
        "tool": ({"tool": "charge"}, {"tool": "refund"}),
        "tool of a tenant": ({"tool": "charge", "tenant": "acme"}, {"tool": "charge", "tenant": "umbrella"}),
    }
)
def a_halt_stops_its_part_only(ledger: Ledger, extents: tuple[dict[str, str], dict[str, str]]) -> None:
    mine, other = extents
    run = ledger.run(agent="clerk")
    halt(ledger, **other)
    assert starts_plain(ledger, run)
    halt(ledger, **mine)
    assert not starts_plain(ledger, run)
    lift(ledger, **other)
    assert not starts_plain(ledger, run)
    lift(ledger, **mine)
    assert starts_plain(ledger, run)


@check
def two_halts_of_one_extent_are_lifted_together_and_a_wider_one_stays(ledger: Ledger) -> None:
    run = ledger.run()
    halt(ledger, tool="charge"), halt(ledger, tool="charge"), halt(ledger)
    assert len(ledger(ops.ListHalts())) == 3
    assert len(lift(ledger, tool="charge")) == 2
    assert lift(ledger, tool="charge") == []
    assert not starts_plain(ledger, run)
    assert len(lift(ledger)) == 1
    assert ledger(ops.ListHalts()) == []
    assert starts_plain(ledger, run)


@check
def a_recorded_call_does_not_start_again(ledger: Ledger) -> None:
    run = ledger.run()
    call = ledger.settle(ledger.start(run), "backing_off", retry_s=0.0).call
    row = halt(ledger)
    assert ledger(ops.StartCall(call.id, "a", 1, 2)) == row
    assert ledger.look(call) == call
    lift(ledger)
    assert ledger(ops.StartCall(call.id, "a", 1, 2)).state == "started"


@check
def staged_calls_are_not_let_go(ledger: Ledger) -> None:
    run = ledger.run()
    ledger.admit(run, "mail", kind="retriable")
    row = halt(ledger)
    decided = ledger.commit(run)
    assert (decided.how, decided.halt) == ("halted", row)
    assert ledger.read(run).state == "open"
    lift(ledger)
    assert ledger.commit(run).how == "forward"


@check
def compensations_go_on_and_a_run_without_staged_calls_commits(ledger: Ledger) -> None:
    back, forth = ledger.run("back"), ledger.run("forth")
    call = ledger.do(back)
    ledger.do(forth)
    halt(ledger)
    ledger.roll_back(back)
    assert ledger.compensate(call).state == "compensated"
    assert ledger.close(back, "rolled_back").state == "rolled_back"
    assert ledger.commit(forth).how == "committed"


@check
def a_halt_and_its_end_are_events_of_a_chain_that_checkpoints_cover(ledger: Ledger) -> None:
    row = halt(ledger, tool="charge", tenant="acme")
    [made] = ledger(ops.ReadEvents(None, row.id))
    assert (made.what, made.by_whom, made.tenant) == ("halted", "ann", "acme")
    assert row in ledger(ops.ListHalts())
    ledger(ops.Halt(row.id, "acme", "", "charge", "ann", "fire", repeated=True))
    assert ledger(ops.ListHalts()) == [row], "a repeated operation gives the first answer"
    end = ops.Unhalt("acme", "", "charge", "ben", "out", "n1")
    [lifted] = ledger(end)
    assert ledger(ops.Unhalt("acme", "", "charge", "ben", "out", "n1", repeated=True)) == [lifted]
    assert [event.what for event in ledger(ops.ReadEvents(None, row.id))] == ["halted", "unhalted"]
    draft = ledger(ops.DraftCheckpoint("ledger", ""))
    assert [(root, n) for root, n, _ in read_heads(draft.heads)] == [(row.id, 2)]
    assert ledger(ops.WriteCheckpoint(draft)) is True
    assert ledger(ops.DraftCheckpoint("ledger", "")) is None, "everything is covered"
