"""Work on the ledger: who ordered it is an event, which checkpoints cover and audits compare with its row."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime
from amends.errors import UsageError


def orders(rt: Runtime) -> list[Any]:
    return [event for event in rt.events() if event.what == "work ordered"]


def test_an_order_says_who_why_what_and_by_which_token(tmp_path: Path) -> None:
    rt = Runtime(f"sqlite:///{tmp_path / 'a.db'}")
    mine = rt.scoped(principal="ann", token="tok_1")
    id = mine.note_work("gc", by="ann", why="the disk is full", about={"older_than": "90d"})
    (event,) = orders(rt)
    assert (event.by, event.run_id, event.facts["why"], event.facts["token"]) == (
        "ann",
        id,
        "the disk is full",
        "tok_1",
    )
    assert json.loads(event.facts["words"]) == {"what": "gc", "older_than": "90d"}
    made = rt.checkpoint()
    assert made is not None, "an order is an event like others"
    assert rt.verify().ok
    rt.close()


@pytest.mark.parametrize("column", ["by_whom", "why", "words", "made_at", "closed_at"])
def test_an_order_that_was_changed_is_found_by_the_audit(tmp_path: Path, column: str) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with_order = Runtime(url)
    with_order.note_work("checkpoint", by="ann", why="before the move")
    with_order.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        db.execute(f"update amends_directive set {column} = 7 where kind = 'work'")
    rt = Runtime(url)
    assert [one.how for one in rt.verify().problems] == ["row_changed"]
    rt.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"what": ""}, {"what": 7}, {"by": ""}, {"by": "  "}, {"by": None}, {"why": None}, {"about": {"a": object()}},
        {"about": {"a": float("nan")}}, {"about": {"a": "x" * 20_000}},
    ],
)  # fmt: skip
def test_an_order_that_says_too_little_or_too_much_is_refused(wrong: dict[str, Any]) -> None:
    rt = Runtime("memory:")
    given: dict[str, Any] = {"what": "gc", "by": "ann", "why": "", "about": None} | wrong
    with pytest.raises(UsageError):
        rt.note_work(given.pop("what"), **given)
    assert orders(rt) == []
    rt.close()


def test_a_load_names_the_person_and_the_reason_and_once_loaded_nothing_is_added(tmp_path: Path) -> None:
    rt, other = Runtime("memory:"), Runtime(f"sqlite:///{tmp_path / 'b.db'}")
    with rt.run("order"):
        pass
    bundle = rt.export("order")
    mine = other.scoped(token="tok_1")
    assert mine.load(bundle, by="ann", why="the auditor asked") == ["order"]
    before = [event.to_dict() for event in other.events()]
    assert mine.load(bundle, by="ben") == ["order"]
    assert [event.to_dict() for event in other.events()] == before
    (event,) = [one for one in other.events() if one.what == "runs loaded"]
    assert (event.by, event.facts["why"], event.facts["token"]) == ("ann", "the auditor asked", "tok_1")
    assert other.checkpoint() is not None
    assert other.verify().ok
    for wrong in ({"by": 7}, {"why": None}):
        with pytest.raises(UsageError):
            other.load(bundle, **wrong)  # type: ignore[arg-type]
    rt.close()
    other.close()


def test_an_async_runtime_records_orders_and_loads_in_the_same_way() -> None:
    rt = Runtime("memory:")
    with rt.run("order"):
        pass
    bundle = rt.export("order")
    rt.close()

    async def main() -> list[tuple[str, str]]:
        async with AsyncRuntime("memory:") as other:
            await other.note_work("recover", by="ann")
            await other.load(bundle, by="ben")
            return [(one.what, one.by) async for one in other.events() if one.what in ("work ordered", "runs loaded")]

    assert asyncio.run(main()) == [("work ordered", "ann"), ("runs loaded", "ben")]
