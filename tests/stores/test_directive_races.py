"""Halts, permits and tokens on every store, with many at once: each use is counted, and each end counts at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

from amends import Held, Runtime, tool
from amends.errors import Halted, LinkVoid

USES = 4
ASKERS = 6
RUNS = 3
PATIENCE_S = 60.0


@tool(needs_approval=True)
def wire(to: str) -> str:
    return to


@wire.compensate
def unwire(to: str) -> None: ...


@tool
def book(n: int) -> int:
    return n


@book.compensate
def cancel(n: int) -> None: ...


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
    else:
        yield request.getfixturevalue(f"{request.param}_url")


def runtime(url: str) -> Runtime:
    return Runtime(url, tools=[wire, book], wait_approval=0)


def test_a_permit_is_used_as_often_as_it_says_by_runtimes_that_race(url: str) -> None:
    together = Barrier(ASKERS)
    with runtime(url) as first, runtime(url) as second:
        given = first.permit("wire", {"to": "bank"}, by="ann", uses=USES)

        def asks(one: int) -> int:
            rt, started = (first, second)[one % 2], 0
            together.wait(PATIENCE_S)
            for n in range(RUNS):
                try:
                    with rt.run(f"{one}-{n}"):
                        wire("bank")
                        started += 1
                except Held:
                    pass
            return started

        with ThreadPoolExecutor(ASKERS) as pool:
            assert sum(pool.map(asks, range(ASKERS))) == USES
        assert first.permits() == second.permits() == []
        used = [event.what for event in first.events() if event.run_id == given.id]
        assert used == ["permitted", *["permit used"] * USES]
        assert sum(1 for _ in first.approvals("state:used")) == USES
        assert first.verify().ok


@pytest.mark.parametrize("extent", [{}, {"tool": "book"}, {"agent": "clerk"}, {"tenant": "acme"}])
def test_a_halt_counts_at_once_for_whoever_is_at_work(url: str, extent: dict[str, Any]) -> None:
    at_work, told = Event(), Event()
    with runtime(url) as ours, runtime(url) as theirs:
        view = theirs.scoped(tenant="acme")

        def works() -> int:
            started_after = 0
            with pytest.raises(Halted), view.run("order", agent="clerk"):
                for n in range(100_000):
                    known = told.is_set()
                    book(n)
                    started_after += known
                    if n == 20:
                        at_work.set()
            return started_after

        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(works)
            assert at_work.wait(PATIENCE_S)
            ours.halt(by="ann", why="stop", **extent)
            told.set()
            assert work.result(PATIENCE_S) == 0
        assert view.report("order").state == "rolled_back"
        with pytest.raises(Halted), view.run("next", agent="clerk"):
            book(1)
        ours.unhalt(by="ann", why="go", **extent)
        with view.run("last", agent="clerk"):
            book(1)
        assert ours.verify().ok


def test_a_link_that_many_use_at_once_lets_one_in(url: str) -> None:
    together = Barrier(ASKERS)
    with runtime(url) as first, runtime(url) as second:

        def enters(one: int) -> str:
            rt = (first, second)[one % 2]
            together.wait(PATIENCE_S)
            try:
                made = rt.create_token(
                    f"b{one}", scopes="viewer", by="link", why="logged in", kind="link", once="nonce"
                )
            except LinkVoid as void:
                return void.why
            assert made.text is not None
            return rt.check_token(made.text).name

        with ThreadPoolExecutor(ASKERS) as pool:
            said = list(pool.map(enters, range(ASKERS)))
        assert said.count("used") == ASKERS - 1
        [made] = first.tokens(kind="link")
        assert made.name in said
        with ThreadPoolExecutor(ASKERS) as pool:
            ended = list(
                pool.map(lambda n: (first, second)[n % 2].revoke_token(made.id, by=f"p{n}", why="out"), range(ASKERS))
            )
        assert len({one.ended_at for one in ended}) == 1
        assert [event.what for event in first.events() if event.run_id == made.id] == ["token made", "token revoked"]
        assert first.verify().ok
