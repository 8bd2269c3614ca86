"""Going forward: after the pivot nothing aborts; retriables are tried until they succeed."""

from __future__ import annotations

import asyncio

import pytest

from amends import AsyncRuntime, Retry, RunBlocked, Runtime, tool
from amends.errors import BadConfig, OutOfOrder, RunEnded, UsageError
from amends.ledger.flow import finish
from amends.stores.memory import MemoryStore
from tests.world import FAST, ONCE, World, die, runtime, states, twin_of, wake

SOON = Retry(attempts=50, delay=60, factor=1.0, jitter=0.0)


def test_a_retriable_that_fails_leaves_the_run_pivoted_and_recovery_finishes_it() -> None:
    world = World()
    pay, mail = world.compensatable("pay"), world.retriable(retry=SOON)
    world.script["mail"] = [ValueError("down"), ValueError("down")]
    rt = runtime(pay, mail)
    with rt.run("r") as run:
        pay()
        staged = mail()
    assert run.state == "pivoted"
    assert rt.report("r").run.goal == "commit"
    assert rt.recover() == []  # not due yet
    wake(rt._host.store)
    assert [report.state for report in rt.recover()] == ["pivoted"]
    wake(rt._host.store)
    assert [report.state for report in rt.recover()] == ["committed"]
    assert staged.result == "mail:1"
    assert world.log == ["pay:1", "mail:1"]


def test_a_retriable_without_a_word_on_retries_backs_off_and_is_never_failed() -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable()
    world.script["mail"] = [ValueError("down")]
    rt = runtime(wire, mail)
    with rt.run("r"):
        wire()
        staged = mail()
        assert not staged.done
        assert mail().call.state == "backing_off"
    assert states(rt, "r") == {"wire": "succeeded", "mail": "backing_off"}
    assert rt.report("r").state == "pivoted"


def test_a_retriable_that_gives_up_blocks_the_run_and_retry_finishes_it() -> None:
    world = World()
    wire, mail, crm = world.pivot(), world.retriable("mail", retry=ONCE), world.retriable("crm")
    world.script["mail"] = [ValueError("no such address")]
    rt = runtime(wire, mail, crm)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        mail()
        crm()
        wire()
    assert sorted(world.log) == ["crm:1", "wire:1"]
    (stuck,) = rt.calls("status:backing_off")
    assert f"rt.retry('{stuck.id}'" in blocked.value.causes[0]
    assert rt.report("r").state == "blocked"
    assert rt.retry(stuck.id, by="anna", why="address corrected").state == "committed"
    assert world.log[-1] == "mail:1"


def test_a_retriable_that_gives_up_may_be_given_up_as_its_cause_says() -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable("mail", retry=ONCE)
    world.script["mail"] = [ValueError("no such address")]
    rt = runtime(wire, mail)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        mail()
        wire()
    assert "rt.abandon('r'" in blocked.value.causes[0]
    assert rt.abandon("r", by="anna", why="nobody lives there").state == "abandoned"


def test_a_run_that_was_decided_cannot_be_taken_back_any_more() -> None:
    world = World()
    pay, mail = world.compensatable("pay"), world.retriable()
    world.script["mail"] = [ValueError("down")]
    rt = runtime(pay, mail)
    with rt.run("r"):
        pay()
        mail()
    with pytest.raises(RunEnded):
        rt.rollback("r", by="anna", why="no")
    assert world.standing == ["pay:1"]


def test_rollback_after_the_pivot_takes_nothing_back() -> None:
    world = World()
    pay, wire = world.compensatable("pay"), world.pivot()
    rt = runtime(pay, wire)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        pay()
        wire()
        run.rollback("changed my mind")
    assert world.standing == ["pay:1", "wire:1"]
    assert rt.report("r").state in ("blocked", "pivoted")


def test_on_failure_rollback_after_the_pivot_does_not_doom_the_run() -> None:
    world = World()
    wire, look = world.pivot(), world.read(on_failure="rollback")
    world.script["look"] = [ValueError()]
    rt = runtime(wire, look)
    with rt.run("r"):
        wire()
        with pytest.raises(ValueError):
            look()
    assert rt.report("r").state == "committed"


def test_an_interrupted_run_waits_and_goes_on_when_it_is_opened_again() -> None:
    world = World()
    wire, mail, crm = world.pivot(), world.retriable("mail"), world.retriable("crm")
    rt = runtime(wire, mail, crm)
    with pytest.raises(KeyError), rt.run("r"):
        mail()
        wire()
        raise KeyError
    report = rt.report("r")
    assert report.state == "blocked"
    assert "open run 'r' again" in report.run.causes[0]
    assert "rt.finish('r'" in report.run.causes[0]
    with rt.run("r") as run:
        assert run.state == "pivoted"
        assert wire() == "wire:1"
        crm()
    assert run.state == "committed"
    assert world.log == ["wire:1", "mail:1", "crm:1"]


def test_an_interrupted_run_is_closed_by_a_person_as_committed() -> None:
    world = World()
    wire = world.pivot()
    rt = runtime(wire)
    with pytest.raises(KeyError), rt.run("r"):
        wire()
        raise KeyError
    assert rt.finish("r", by="anna", why="the rest was done by hand").state == "committed"
    with pytest.raises(UsageError):
        rt.finish("r", by="anna", why="again")


def test_finish_is_only_for_interrupted_runs() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r"):
        pay()
        with pytest.raises(UsageError):
            rt.finish("r", by="anna", why="now")
    with pytest.raises(UsageError):
        rt.finish("nope", by="anna", why="now")


def test_a_retriable_in_doubt_that_is_idempotent_is_started_again() -> None:
    world = World()
    mail = world.retriable(retry=FAST)
    world.script["mail"] = [(TimeoutError(),)]
    rt = runtime(mail)
    with rt.run("r") as run:
        mail()
    assert run.state == "committed"
    assert world.log == ["mail:1", "mail:1"]


def test_a_retriable_with_a_probe_is_not_repeated_when_it_happened() -> None:
    world = World()
    mail = world.probed(world.retriable(idempotent=False))
    world.script["mail"] = [(TimeoutError(),)]
    rt = runtime(mail)
    with rt.run("r") as run:
        mail()
    assert run.state == "committed"
    assert world.log == ["mail:1"]


# ---- advise -------------------------------------------------------------------------------


def test_advise_records_a_violation_and_lets_it_pass() -> None:
    world = World()
    pay, wire = world.compensatable("pay"), world.pivot()
    rt = Runtime("memory:", tools=[pay, wire], order="advise")
    with rt.run("r"):
        wire()
        pay()
    assert [call.tool for call in rt.calls("violation:*")] == ["pay"]
    assert rt.report("r").calls[1].violation == "after_pivot"
    assert rt.report("r").state == "committed"


def test_advise_makes_effects_without_a_compensation_residue_of_a_rollback() -> None:
    log: list[str] = []

    @tool(kind="compensatable")
    def legacy() -> None:
        log.append("legacy")

    world = World()
    pay = world.compensatable("pay")
    rt = Runtime("memory:", tools=[legacy, pay], order="advise")
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        pay()
        legacy()
        raise KeyError
    assert [left.call.tool for left in blocked.value.residue] == ["legacy"]
    assert world.standing == []


def test_advise_an_early_pivot_is_residue_when_the_run_goes_back() -> None:
    world = World()
    pay, wire = world.compensatable("pay"), world.pivot(after=["pay"])
    rt = Runtime("memory:", tools=[pay, wire], order="advise")
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        wire()
        pay()
        raise KeyError
    assert [left.call.tool for left in blocked.value.residue] == ["wire"]
    assert world.standing == ["wire:1"]


def test_advise_can_be_said_of_one_tool_only() -> None:
    world = World()
    pay, hold, wire = world.compensatable("pay", order="advise"), world.compensatable("hold"), world.pivot()
    rt = runtime(pay, hold, wire)
    with rt.run("r"):
        wire()
        pay()
        with pytest.raises(OutOfOrder):
            hold()


# ---- A block that leaves its run pivoted says so


def test_a_block_that_leaves_a_retriable_backing_off_says_so(caplog) -> None:
    world = World()
    mail = world.retriable(retry=SOON)
    world.script["mail"] = [ValueError("down")]
    rt = runtime(mail)
    with rt.run("r") as run:
        mail()
    assert run.state == "pivoted"
    said = (
        "run r has pivoted and goes on: mail failed (ValueError: down) and is tried again in 60 s; "
        "a worker (amends worker, or rt.worker()) continues it"
    )
    assert run.note == f"amends: {said}"
    logged = said.replace("ValueError: down", "ValueError")  # never the message of an error
    assert [(one.name, one.levelname, one.getMessage()) for one in caplog.records] == [("amends", "WARNING", logged)]
    assert (caplog.records[0].event, caplog.records[0].run, caplog.records[0].state) == ("pivoted", "r", "pivoted")


def test_a_run_that_is_simply_committed_has_no_note(caplog) -> None:
    world = World()
    pay, mail = world.compensatable("pay"), world.retriable()
    rt = runtime(pay, mail)
    with rt.run("r") as run:
        pay()
        mail()
    assert (run.state, run.note, caplog.records) == ("committed", "", [])


def test_the_note_of_an_exception_is_the_runs_note_too() -> None:
    world = World()
    pay, wire, mail = world.compensatable("pay"), world.pivot(), world.retriable(retry=SOON)
    world.script["mail"] = [ValueError("down")]
    rt = runtime(pay, wire, mail)
    with pytest.raises(KeyError) as raised, rt.run("before") as run:
        pay()
        raise KeyError
    assert [run.note] == raised.value.__notes__ == ["amends: run before rolled back, 1 call compensated"]
    with pytest.raises(KeyError) as raised, rt.run("after") as run:
        mail()
        wire()
        raise KeyError
    assert [run.note] == raised.value.__notes__
    assert "mail failed (ValueError: down) and is tried again in 60 s" in run.note


def test_a_commit_without_a_block_says_so_in_both_colours(caplog) -> None:
    world = World()
    mail = world.retriable(retry=SOON)
    world.script["mail"] = [ValueError("down"), ValueError("down")]
    opened = runtime(mail).open("r")
    opened.call(mail)
    opened.commit()

    async def main():
        rt = AsyncRuntime("memory:", tools=[mail])
        async with rt.worker(), rt.run("r") as run:
            await run.call(mail)
        return run.note

    assert opened.note.endswith("a worker (amends worker, or rt.worker()) continues it")
    assert asyncio.run(main()).endswith("in 60 s; the worker in this process continues it")
    assert len([one for one in caplog.records if "is tried again" in one.getMessage()]) == 2


def test_a_lost_answer_of_a_retriable_is_said_too() -> None:
    world = World()
    mail = world.retriable(idempotent=True, retry=SOON)
    world.script["mail"] = [(TimeoutError("no answer"),)] * 9
    rt = runtime(mail, wait=0.01)
    with rt.run("r") as run:
        mail()
    assert "mail may have happened (timeout) and is looked at again in " in run.note


# ---- interrupted="commit": a block that ends early after its pivot


def _killed(store, *tools, after, **options):
    run = runtime(*tools, store=store).open("r", **options)
    after(run)
    die(run)


def test_a_run_that_was_killed_after_its_pivot_commits_if_it_was_told_to() -> None:
    world, store = World(), MemoryStore()
    pay, wire, mail = world.compensatable("pay"), world.pivot(), world.retriable()

    def after(run):
        run.call(pay)
        run.call(mail)
        run.call(wire)

    _killed(store, pay, wire, mail, after=after, interrupted="commit")
    worker = twin_of(store, pay, wire, mail)
    (report,) = worker.recover()
    assert report.state == "committed"
    assert (report.run.interrupted, report.run.recover, report.run.causes) == ("commit", "rollback", ())
    assert world.log == ["pay:1", "wire:1", "mail:1"]
    assert worker.recover() == []
    with worker.run("r") as run, pytest.raises(RunEnded):
        run.call(mail, x="2")


def test_the_runtime_says_it_for_all_its_runs_and_a_run_for_itself() -> None:
    for options, opened, state in (
        ({"interrupted": "commit"}, {}, "committed"),
        ({"interrupted": "commit"}, {"interrupted": "block"}, "blocked"),
        ({}, {"interrupted": "commit"}, "committed"),
        ({}, {}, "blocked"),
    ):
        world = World()
        wire = world.pivot()
        rt = runtime(wire, **options)
        with pytest.raises(ValueError, match="after it") as raised, rt.run("r", **opened):
            wire()
            raise ValueError("after it")
        report = rt.report("r")
        assert report.state == state
        assert (state in raised.value.__notes__[0]) == (state == "committed")
        assert report.run.interrupted == (opened or options).get("interrupted", "block")


@pytest.mark.parametrize("recover", ["resume", "wait"])
def test_it_goes_with_every_way_to_recover(recover) -> None:
    world, store = World(), MemoryStore()
    wire = world.pivot()
    _killed(store, wire, after=lambda run: run.call(wire), recover=recover, interrupted="commit")
    (report,) = twin_of(store, wire).recover()
    assert (report.state, report.run.recover) == ("committed", recover)


def test_an_agent_that_can_go_on_goes_on_before_its_run_commits() -> None:
    world, store = World(), MemoryStore()
    wire, mail = world.pivot(), world.retriable()

    def agent(run):
        wire()
        if not run.resumed:
            raise KeyboardInterrupt
        mail()

    rt = runtime(wire, mail, store=store, agents={"clerk": agent}, interrupted="commit")
    with pytest.raises(KeyboardInterrupt):
        rt.start("clerk", id="r")
    wake(store)
    (report,) = rt.recover()
    assert report.state == "committed"
    assert world.log == ["wire:1", "mail:1"]


def test_what_is_pending_is_done_first_and_what_needs_a_person_keeps_it_from_committing() -> None:
    world, store = World(), MemoryStore()
    wire, mail = world.pivot(), world.retriable(retry=FAST)
    world.script["mail"] = [ValueError("down"), ValueError("down"), ValueError("for good")]

    def after(run):
        run.call(mail)
        run.call(wire)

    _killed(store, wire, mail, after=after, interrupted="commit")
    worker = twin_of(store, wire, mail)
    found = []
    for _ in range(4):
        wake(store)
        found += [report.state for report in worker.recover()]
    assert found[-1] == "blocked"
    assert "committed" not in found
    (left,) = [call for call in worker.calls() if call.tool == "mail"]
    assert worker.retry(left.id, by="anna", why="up again").state == "committed"
    assert world.log == ["wire:1", "mail:1"]


def test_an_open_child_is_pending_and_keeps_its_parent_from_committing() -> None:
    world, store = World(), MemoryStore()
    pay, wire = world.compensatable("pay"), world.pivot()

    def after(run):
        run.call(wire)
        finish(run._open_child("c", None)).call(pay)

    _killed(store, pay, wire, after=after, interrupted="commit")
    (report,) = twin_of(store, pay, wire).recover()
    assert report.state == "blocked"
    assert world.log == ["wire:1", "pay:1"]


def test_before_the_pivot_it_changes_nothing() -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay")
    _killed(store, pay, after=lambda run: run.call(pay), interrupted="commit")
    (report,) = twin_of(store, pay).recover()
    assert report.state == "rolled_back"


@pytest.mark.parametrize("value", ["commits", "", 1, True, ["commit"]])
def test_another_word_is_refused_before_anything_is_opened(value) -> None:
    rt = runtime()
    with pytest.raises(UsageError, match=r"interrupted is .*block, commit"):
        rt.open("r", interrupted=value)
    with pytest.raises(BadConfig, match="interrupted"):
        runtime(interrupted=value)
    assert list(rt.runs()) == []


def test_an_async_run_is_told_the_same_way() -> None:
    world = World()
    wire = world.pivot()

    async def main():
        rt = AsyncRuntime("memory:", tools=[wire], interrupted="commit")
        with pytest.raises(ValueError, match="after it"):
            async with rt.run("r") as run:
                await run.call(wire)
                raise ValueError("after it")
        return await rt.report("r")

    assert asyncio.run(main()).state == "committed"
