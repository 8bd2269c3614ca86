"""Tools of another Python process: declared by their own schema and options, performed with their call's key."""

import sys
import time
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from amends import Absent, Happened, NoEffect, current_call, current_run, tool
from amends.client import Client, ServiceError
from amends.errors import BadConfig, BadDeclaration, Forbidden, NoRun, ToolFailed, UsageError
from tests.client.shop import Both, working
from tests.serve.shop import World

Shop = tuple[str, World]


@dataclass
class Room:
    number: int
    day: date


class Hotel:
    """What the worker's tools did."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self.keys: list[str] = []
        self.refused: list[str] = []

    def tools(self, name: str) -> list[Any]:
        @tool(name=f"book_{name}", key="guest")
        def book(guest: str, day: date, nights: int = 1) -> Room:
            """Book a room."""
            assert isinstance(day, date)
            self.keys.append(current_call().key)
            if nights == 0:
                raise NoEffect("no nights")
            if nights == 99:
                raise ValueError("too long")
            self.rooms[guest] = Room(12, day)
            if nights == 50:
                raise TimeoutError("the line was cut")
            if nights == 51:
                time.sleep(0.8)
            try:
                current_run()
            except NoRun as error:
                self.refused.append(str(error))
            return self.rooms[guest]

        @book.compensate
        async def cancel(guest: str, result: Room) -> None:
            assert isinstance(result, Room)
            self.keys.append(current_call().key)
            del self.rooms[guest]

        @book.probe(settle=0.1)
        def look(guest: str) -> Any:
            return Happened(self.rooms[guest]) if guest in self.rooms else Absent()

        return [book]


@pytest.fixture
def hotel() -> Hotel:
    return Hotel()


def test_a_saga_whose_tool_lives_in_a_worker(shop: Shop, both: Both, name: str, hotel: Hotel) -> None:
    book, client = f"book_{len(name)}", both.client(shop[0], "agent")
    with working(both, shop[0], hotel.tools(str(len(name)))) as worker:
        assert worker.tools == (book,)
        told = next(one for one in both.do(client.schemas("anthropic")) if one["name"] == book)
        assert (told["description"], told["input_schema"]["required"]) == ("Book a room.", ["guest", "day"])
        with pytest.raises(ValueError, match="changed"):
            with both.block(client.run(name)) as run:
                room = both.do(run.call(book, guest="ada", day="2026-05-01"))
                assert (room, hotel.rooms) == ({"number": 12, "day": "2026-05-01"}, {"ada": Room(12, date(2026, 5, 1))})
                assert both.do(run.answer(book, {"guest": "ada", "day": "2026-05-01"})).status == "replayed"
                raise ValueError("changed")
        assert (run.state, hotel.rooms) == ("rolled_back", {})
        report = both.do(client.report(name))
        assert hotel.keys[0] == report.calls[0].key
        assert len(set(hotel.keys)) == 2  # the compensation has a key of its own
        assert len(hotel.refused) == 1  # the run is the service's
    assert worker.performed == 2


@pytest.mark.rest
def test_errors_in_a_worker_mean_what_they_mean_in_the_runtime(shop: Shop, both: Both, name: str, hotel: Hotel) -> None:
    book, client = f"book_{len(name)}", both.client(shop[0], "agent")
    with working(both, shop[0], hotel.tools(str(len(name))), threads=2):
        run = both.do(client.open(name))
        for nights, words in ((0, "no nights"), (99, "too long")):
            with pytest.raises(ToolFailed, match=words):
                both.do(run.call(book, guest=f"ada{nights}", day="2026-05-01", nights=nights))
        refused = both.do(run.answer(book, {"guest": "ada", "day": "whenever"}))
        assert (refused.status, "day" in refused.text) == ("failed", True)  # bound in the worker
        lost = both.do(run.answer(book, {"guest": "ben", "day": "2026-05-01", "nights": 50}))
        assert (lost.status, lost.value) == ("done", {"number": 12, "day": "2026-05-01"})  # by its probe
        both.do(run.commit())


@pytest.mark.rest
def test_the_lease_is_renewed_while_a_body_runs(shop: Shop, both: Both, name: str, hotel: Hotel) -> None:
    book, client = f"book_{len(name)}", both.client(shop[0], "agent")
    with working(both, shop[0], hotel.tools(str(len(name))), lease=0.3, wait=2.0):
        with both.block(client.run(name)) as run:
            assert both.do(run.answer(book, {"guest": "ada", "day": "2026-05-01", "nights": 51})).status == "done"
    assert (run.state, len(hotel.keys)) == ("committed", 1)


@pytest.mark.rest
def test_a_worker_that_the_service_forgot_registers_again(shop: Shop, both: Both, name: str, hotel: Hotel) -> None:
    book, client = f"book_{len(name)}", both.client(shop[0], "agent")
    with working(both, shop[0], hotel.tools(str(len(name)))) as worker:
        other = Both(is_async=False)
        try:
            from amends.client.exchange import ask

            made = other.client(shop[0], "worker")
            made._driver.run(ask(made, "DELETE", f"/v1/workers/{worker._ids[0]}"))
        finally:
            other.close()
        run = both.do(client.open(name))
        assert both.do(run.call(book, guest="ada", day="2026-05-01"))["number"] == 12
        both.do(run.commit())


def test_leaving_the_block_is_quick_and_takes_the_worker_off(shop: Shop, both: Both, name: str, hotel: Hotel) -> None:
    with working(both, shop[0], hotel.tools(str(len(name))), wait=20.0):
        began = time.monotonic()
    assert time.monotonic() - began < 5.0
    assert [one for one in both.do(both.client(shop[0], "viewer").workers()) if name in one["tools"]] == []


def test_a_body_that_exits_stops_its_worker_with_a_word(shop: Shop, name: str) -> None:
    """Its thread alone would end, silently, and the process would live on without taking work."""

    @tool(name=f"quit_{name}", kind="read")
    def quit_it() -> None:
        sys.exit(3)

    with Client(shop[0], token="worker") as client:
        worker = client.worker([quit_it], name="w", lease=1.0, wait=1.0)
        with worker, Client(shop[0], token="agent") as agent:
            with pytest.raises(ToolFailed), agent.run(name) as run:
                run.call(f"quit_{name}")
            assert worker._stopped.wait(10)
        assert isinstance(worker.error, SystemExit)


# ---- What cannot be served


def test_a_name_that_the_service_has_is_refused_at_entry(shop: Shop, both: Both) -> None:
    @tool(kind="read")
    def stock(item: str) -> int:
        return 0

    with pytest.raises(ServiceError) as taken:
        with working(both, shop[0], [stock]):
            pass
    assert (taken.value.name, taken.value.status) == ("Taken", 409)
    with pytest.raises(Forbidden):
        with both.block(both.client(shop[0], "viewer").worker([stock])):
            pass


@pytest.mark.parametrize(
    "options, word",
    [
        ({"redact": ["item"]}, "redact"),
        ({"locks": lambda call: ["x"]}, "locks"),
        ({"key": lambda call: call.args["item"]}, "a key function"),
        ({"needs_approval": lambda call: True}, "needs_approval"),
        ({"cost": 1}, "cost"),
        ({"scope": "ledger"}, "scope"),
        ({"after": ["stock"]}, "after"),
        ({"at": "commit"}, "at"),
    ],
)
def test_an_option_that_would_not_hold_in_the_service_is_refused(both: Both, options: Any, word: str) -> None:
    @tool(kind="pivot", **options)
    def ship(item: str) -> int:
        return 0

    @tool(kind="pivot")
    def stock(item: str) -> int:
        return 0

    with pytest.raises(BadDeclaration, match=word) as refused:
        both.client("http://x").worker([ship, stock])
    assert refused.value.tool == "ship"


def test_a_worker_needs_a_tool_and_a_thread(both: Both) -> None:
    @tool(kind="read")
    def weigh(item: str) -> int:
        return 0

    with pytest.raises(BadConfig):
        both.client("http://x").worker([])
    with pytest.raises(UsageError):
        both.client("http://x").worker([weigh], threads=0)
