"""After gc: what was done stays known and is not done again; what it said is gone, and amends says so."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Runtime, tool
from amends.errors import KeyConflict, ResultGone, RunBlocked, RunConflict, ToolFailed, UsageError
from amends.host import maintenance
from amends.ledger.operations import CollectGarbage
from amends.stores.memory import MemoryStore
from tests.world import World, runtime, states, until


def test_a_replay_whose_result_is_gone_says_so_and_starts_nothing() -> None:
    world = World()
    reserve, look = world.compensatable(), world.read()
    rt = runtime(reserve, look)
    with rt.run("r", input={"card": "4111"}) as run:
        reserve(x="a")
        look()
        run.output = "shipped"
    gone = rt.gc(older_than=0)
    assert (gone.runs, gone.calls, gone.kept, gone.dry_run) == (1, 2, {}, False)
    assert gone.bytes > 0
    with rt.run("r", input={"card": "4111"}) as run:
        with pytest.raises(ResultGone, match="was done; its result was removed on") as error:
            reserve(x="a")
        with pytest.raises(ResultGone):
            look()
        answer = run.answer("reserve", {"x": "a"})
        with pytest.raises(ResultGone, match="run r was done"):
            _ = run.output
        assert run.input is None
    assert world.log == ["reserve:a", "look:1"]
    assert error.value.call.tool == "reserve"
    assert error.value.call.state == "succeeded"
    assert error.value.call.loss.startswith("removed on 2")
    assert error.value.gone_at == error.value.call.gone_at
    assert answer.text.startswith("Already done: reserve (")
    assert answer.is_error
    assert (error.value.code, error.value.to_dict()["what"]) == ("result_gone", error.value.what)


def test_a_result_that_was_none_is_still_none() -> None:
    done: list[str] = []

    @tool(kind="pivot")
    def mail(to: str) -> None:
        done.append(to)

    rt = runtime(mail)
    for _ in range(2):
        with rt.run("r"):
            assert mail(to="ann") is None  # type: ignore[func-returns-value]
        rt.gc(older_than=0)
    assert done == ["ann"]
    assert rt.report("r").calls[0].gone_at is not None


def test_a_run_that_never_had_an_output_has_none_after_gc() -> None:
    rt = runtime()
    with rt.run("r"):
        pass
    rt.gc(older_than=0)
    with rt.run("r") as run:
        assert run.output is None


def test_a_conflict_is_still_one_of_calls_and_of_inputs() -> None:
    world = World()
    reserve = world.compensatable(key="x")
    rt = runtime(reserve)
    with rt.run("r", input=1):
        reserve(x="a", n=1)
    rt.gc(older_than=0)
    with rt.run("r", input=1) as run:
        with pytest.raises(KeyConflict, match="they were removed since") as conflict:
            reserve(x="a", n=2)
        text = run.answer("reserve", {"x": "a", "n": 2}).text
    assert conflict.value.diff == {}
    assert "already done with other arguments" in text
    with pytest.raises(RunConflict, match="was removed since") as other:
        rt.open("r", input=2)
    assert (other.value.recorded, other.value.given) == (None, 2)
    assert world.log == ["reserve:a"]


def test_a_recorded_failure_stays_one_without_its_words() -> None:
    world = World()
    reserve = world.compensatable()
    world.script["reserve"] = [ValueError("card 4111 was refused")]
    rt = runtime(reserve)
    with rt.run("r"), pytest.raises(ValueError, match="4111"):
        reserve(x="a")
    rt.gc(older_than=0)
    with rt.run("r"), pytest.raises(ToolFailed, match="its message was removed") as failed:
        reserve(x="a")
    assert failed.value.type_name == "ValueError"
    assert "4111" not in rt.report("r").to_json()


def test_a_report_says_what_is_missing_and_since_when() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r", input="secret"):
        reserve(x="secret")
    rt.gc(older_than=0)
    report = rt.report("r")
    assert "(arguments and results removed on 2" in str(report)
    assert "secret" not in report.to_json()
    assert (report.run.gone_at, dict(report.calls[0].args)) == (report.calls[0].gone_at, {})
    assert rt.call(report.calls[0].id).gone_at is not None
    assert [event.what for event in rt.events("r")][-1] == "payloads removed"


def test_what_is_open_blocked_or_left_standing_is_kept_whole() -> None:
    world = World()
    reserve, wire = world.compensatable(), world.pivot()
    world.script["undo reserve"] = [RuntimeError("no")] * 9
    rt = runtime(reserve, wire)
    rt.open("open").call(reserve, x="1")
    with pytest.raises(RunBlocked), rt.run("blocked"):
        reserve(x="2")
        raise ValueError
    with pytest.raises(RunBlocked), rt.run("left"):
        reserve(x="3")
        raise ValueError
    rt.abandon("left", by="ann", why="enough")
    gone = rt.gc(older_than=0)
    assert (gone.runs, dict(gone.kept)) == (0, {"left standing": 1})
    for id in ("open", "blocked", "left"):
        assert rt.report(id).calls[0].args["x"]


def test_an_effect_that_lands_after_gc_is_a_persons_matter_and_never_compensated_with_nothing() -> None:
    """Its compensation would have to be given arguments that are no longer there."""
    world, gate = World(), threading.Event()
    given: list[Any] = []

    @tool(name="pay", timeout=0.02)
    def pay(order: str) -> str:
        gate.wait(60)
        return world.happen(f"pay:{order}")

    @pay.compensate
    def undo(order: str, result: Any) -> None:
        given.append((order, result))

    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        pay(order="7")
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Absent(), by="anna", why="surely not").state == "rolled_back"
    assert rt.gc(older_than=0).runs == 1
    gate.set()
    until(lambda: states(rt, "r") == {"pay": "succeeded"})
    (report,) = rt.recover()
    assert (report.state, given) == ("blocked", [])
    (left,) = report.residue
    assert "what its compensation needs was removed" in left.why
    assert "rt.abandon" in report.run.causes[0]
    rt.recover()
    assert given == []
    assert rt.abandon("r", by="ann", why="refunded by hand").state == "abandoned"
    assert world.log == ["pay:7"]
    assert dict(rt.gc(older_than=0).kept) == {"left standing": 1}


def test_a_probe_is_not_asked_with_nothing() -> None:
    world = World()
    reserve = world.probed(world.compensatable())
    rt = runtime(reserve)
    with rt.run("r"):
        reserve(x="a")
    rt.gc(older_than=0)
    (call,) = rt.report("r").calls
    assert "was removed" in rt.probe(call.id).why


def test_a_staged_call_whose_result_is_gone_says_so() -> None:
    world = World()
    mail = world.retriable()
    rt = runtime(mail)
    with rt.run("r"):
        staged = mail(x="a")
    rt.gc(older_than=0)
    with pytest.raises(ResultGone):
        _ = staged.result
    assert world.log == ["mail:a"]


def test_gc_is_bounded_by_age_limit_and_tenant() -> None:
    rt = runtime()
    for tenant in ("acme", "umbrella"):
        for id in "abc":
            with rt.scoped(tenant=tenant).run(id, input="x"):
                pass
    assert rt.gc(older_than="1d").runs == 0
    assert rt.gc(older_than=timedelta(hours=1), dry_run=True).runs == 0
    assert rt.gc(older_than=0, dry_run=True).runs == 6
    assert rt.gc(older_than=0, limit=1).runs == 1
    assert rt.scoped(tenant="umbrella").gc(older_than=0).runs == 3
    assert rt.gc(older_than=0, tenant="acme").runs == 2
    for wrong in ("soon", "", -1, float("inf"), True, None):
        with pytest.raises(UsageError, match="older_than"):
            rt.gc(older_than=wrong)
    with pytest.raises(UsageError, match="limit"):
        rt.gc(older_than=0, limit=0)
    with pytest.raises(UsageError, match="tenant"):
        rt.scoped(tenant="umbrella").gc(older_than=0, tenant="acme")


class Killed(MemoryStore):
    """Dies before or after so many batches of gc."""

    left = 10**9

    def perform(self, op: Any) -> Any:
        if isinstance(op, CollectGarbage):
            self.left -= 1
            if self.left == 0:
                raise SystemExit  # before it was done
        answer = super().perform(op)
        if isinstance(op, CollectGarbage):
            self.left -= 1
            if self.left == 0:
                raise SystemExit  # after it was done, before anybody heard
        return answer


@pytest.mark.parametrize("point", range(1, 9))
def test_gc_killed_at_any_point_and_repeated_ends_the_same(point: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BATCH_RUNS", 1)
    world, store = World(), Killed()
    reserve = world.compensatable()
    rt = runtime(reserve, store=store)
    for id in "abc":
        with rt.run(id, input="x"):
            reserve(x=id)
    store.left = point
    with pytest.raises(SystemExit):
        rt.gc(older_than=0)
    store.left = 10**9
    assert rt.gc(older_than=0).runs <= 3
    assert all(run.gone_at is not None for run in rt.runs())
    assert [event.what for event in rt.events()].count("payloads removed") == 3
    assert rt.gc(older_than=0).runs == 0
    assert world.log == ["reserve:a", "reserve:b", "reserve:c"]


def test_a_run_that_was_taken_back_opens_as_its_next_generation_after_gc() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with pytest.raises(ValueError, match="no"), rt.run("r"):
        reserve(x="a")
        raise ValueError("no")
    rt.gc(older_than=0)
    with rt.run("r") as run:
        reserve(x="a")
        assert run.generation == 2
        assert rt.gc(older_than=0).runs == 0
    assert world.log == ["reserve:a", "undo reserve:a", "reserve:a"]


def test_the_async_runtime_has_the_same_verbs(tmp_path: Any) -> None:
    async def main() -> None:
        rt = AsyncRuntime(f"sqlite:///{tmp_path}/ledger.db")
        assert (await rt.schema()).version == 0
        assert not list(tmp_path.iterdir())
        assert (await rt.migrate()).pending == ()
        async with rt.run("r", input="x") as run:
            run.output = "y"
        assert (await rt.gc(older_than=0, dry_run=True)).runs == 1
        assert (await rt.gc(older_than=0)).runs == 1
        async with rt.run("r") as run:
            with pytest.raises(ResultGone):
                _ = run.output
        await rt.close()

    asyncio.run(main())


def test_the_schema_is_looked_at_without_making_anything(tmp_path: Any) -> None:
    rt = Runtime(f"sqlite:///{tmp_path}/ledger.db")
    before = rt.schema()
    assert (before.version, before.needs, before.ledger) == (0, 0, "")
    assert before.pending[0] == "0001_ledger"
    assert not list(tmp_path.iterdir())
    after = rt.migrate()
    assert (after.version, after.pending) == (before.newest, ())
    assert after == rt.schema() == rt.migrate()
    rt.close()


def test_a_ledger_in_memory_says_that_it_has_no_schema() -> None:
    rt = runtime()
    for verb in (rt.schema, rt.migrate):
        with pytest.raises(UsageError, match="memory: has no schema"):
            verb()
