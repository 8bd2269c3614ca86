"""Two servers over one ledger, and a client that is moved between them at any time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from amends import Runtime
from amends.serve import Limits, Service
from tests.serve.shop import World, as_, served
from tests.serve.test_server import APP, process

pytestmark = pytest.mark.rest
BOT = as_("agent")
SHIP = {"tool": "ship", "kind": "pivot", "args": {"n": 1}}


def charge(order: int) -> dict[str, Any]:
    return {"tool": "charge", "args": {"order": str(order), "cents": 5}}


def post(client: Any, path: str, body: dict[str, Any]) -> Any:
    return client.post(path, json=body, headers=BOT)


def state(client: Any, id: str = "r") -> str:
    return str(client.get(f"/v1/runs/{id}", headers=BOT).json()["state"])


@contextmanager
def pair(tmp_path: Path, **given: Any) -> Iterator[tuple[list[Any], list[Service], World]]:
    world = World()
    url = f"sqlite:///{tmp_path}/l.db"
    given["limits"] = Limits(workers_back_s_max=0.0)
    with served(url, world=world, **given) as (one, first, _), served(url, world=world, **given) as (two, second, _):
        yield [one, two], [first, second], world


def test_a_client_alternates_between_two_servers(tmp_path: Path) -> None:
    with pair(tmp_path) as (clients, _, world):
        assert post(clients[0], "/v1/runs", {"id": "r"}).status_code == 201
        for turn in range(1, 6):
            made = post(clients[turn % 2], "/v1/runs/r/calls", charge(turn))
            assert (made.status_code, made.json().get("status")) == (200, "done"), made.text
            again = post(clients[turn % 2 - 1], "/v1/runs/r/calls", charge(turn))
            assert (again.status_code, again.json().get("status")) == (200, "replayed"), again.text
        assert post(clients[1], "/v1/runs/r/commit", {}).json()["run"]["state"] == "committed"
        assert world.charges == {str(turn): 5 for turn in range(1, 6)}


def test_a_run_stays_where_it_is_while_a_request_about_it_is_under_way(tmp_path: Path) -> None:
    with pair(tmp_path, wait=0.3) as (clients, services, world):
        assert post(clients[0], "/v1/runs", {"id": "r", "client_lease": 1.0}).status_code == 201
        session = services[0].sessions.found("", "r")
        assert session is not None
        with session.request():  # as one that takes long has it
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                busy = post(clients[1], "/v1/runs/r/calls", charge(1))
                assert (busy.status_code, busy.json()["code"]) == (409, "Busy")
                assert float(busy.headers["retry-after"]) <= 1.0
            assert services[0].sessions.found("", "r") is session
        made = post(clients[1], "/v1/runs/r/calls", charge(1))
        assert made.json()["status"] == "done", made.text
        assert (world.charges, state(clients[1])) == ({"1": 5}, "open")


def test_a_client_that_only_renews_elsewhere_is_alive(tmp_path: Path) -> None:
    with pair(tmp_path) as (clients, _, world):
        post(clients[0], "/v1/runs", {"id": "r", "client_lease": 1.0})
        assert post(clients[0], "/v1/runs/r/calls", charge(1)).json()["status"] == "done"
        for turn in range(10):
            assert post(clients[turn % 2], "/v1/runs/r/renew", {}).status_code == 200
            time.sleep(0.3)
        assert (state(clients[0]), world.charges) == ("open", {"1": 5})
        until = time.monotonic() + 10
        while state(clients[0]) != "rolled_back":  # and then it is silent, at the server that has it now
            assert time.monotonic() < until
            time.sleep(0.05)
        assert world.charges == {}


@pytest.mark.parametrize("how", ["succeed", "no_effect", "raised", "doubt"])
def test_a_claim_is_renewed_and_reported_at_another_server(tmp_path: Path, how: str) -> None:
    with pair(tmp_path) as (clients, _, _world):
        post(clients[0], "/v1/runs", {"id": "r", "wait": 0.2})
        claim = post(clients[0], "/v1/runs/r/claims", {**SHIP, "lease": 30.0}).json()
        at, token = f"/v1/claims/{claim['call']}", {"token": claim["token"]}
        for turn in (1, 0, 1):
            renewed = post(clients[turn], f"{at}/renew", token)
            assert (renewed.status_code, renewed.json().get("lease")) == (200, 30.0), renewed.text
        if how == "succeed":
            done = post(clients[0], f"{at}/succeed", {**token, "result": "sent"})
            assert (done.status_code, done.json()["state"]) == (200, "succeeded"), done.text
            again = post(clients[1], "/v1/runs/r/claims", SHIP)
            assert (again.status_code, again.json()["result"]) == (200, "sent"), again.text
            over = post(clients[0], f"{at}/renew", token)
            assert (over.status_code, over.json()["code"]) == (409, "LeaseLost")
            assert post(clients[0], "/v1/runs/r/commit", {}).json()["run"]["state"] == "committed"
            return
        said = {**token, "error": "it broke"} | ({} if how == "raised" else {how: True})
        done = post(clients[0], f"{at}/fail", said)
        assert done.status_code == 200, done.text
        ended = post(clients[1], "/v1/runs/r/rollback", {"why": "it failed"})
        assert ended.status_code == (200 if how != "doubt" else 409), ended.text
        assert state(clients[1]) == ("rolled_back" if how != "doubt" else "blocked")


def test_a_report_reaches_the_other_server_first(tmp_path: Path) -> None:
    """Nothing else was asked there before: the run is handed over for the report alone."""
    with pair(tmp_path) as (clients, services, _world):
        post(clients[0], "/v1/runs", {"id": "r"})
        claim = post(clients[0], "/v1/runs/r/claims", {**SHIP, "lease": 30.0}).json()
        done = post(clients[1], f"/v1/claims/{claim['call']}/succeed", {"token": claim["token"], "result": "sent"})
        assert (done.status_code, done.json()["state"]) == (200, "succeeded"), done.text
        assert services[0].sessions.found("", "r") is None
        assert post(clients[1], "/v1/runs/r/commit", {}).json()["run"]["state"] == "committed"


def test_another_call_while_a_claim_is_under_way(tmp_path: Path) -> None:
    with pair(tmp_path) as (clients, _, world):
        post(clients[0], "/v1/runs", {"id": "r"})
        claim = post(clients[0], "/v1/runs/r/claims", {**charge(1), "lease": 30.0}).json()
        made = post(clients[1], "/v1/runs/r/calls", charge(2))
        assert made.json()["status"] == "done", made.text
        done = post(clients[0], f"/v1/claims/{claim['call']}/succeed", {"token": claim["token"], "result": "ch"})
        assert done.json()["state"] == "succeeded", done.text
        assert post(clients[1], "/v1/runs/r/commit", {}).json()["run"]["state"] == "committed"
        assert world.charges == {"2": 5}


def test_many_requests_at_once_at_both_servers(tmp_path: Path) -> None:
    """No server keeps a run for itself because its own requests never cease."""
    with pair(tmp_path) as (clients, _, world):
        post(clients[0], "/v1/runs", {"id": "r"})
        failed: list[Any] = []

        def client(side: int) -> None:
            for turn in range(6):
                until = time.monotonic() + 60
                while True:
                    made = post(clients[side], "/v1/runs/r/calls", charge(10 * side + turn))
                    if made.status_code == 200 and made.json()["status"] == "done":
                        break
                    if made.status_code != 409 or time.monotonic() > until:
                        failed.append(made.text)
                        return

        threads = [threading.Thread(target=client, args=(side,)) for side in (0, 1)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(90)
        assert not failed
        assert post(clients[0], "/v1/runs/r/commit", {}).json()["run"]["state"] == "committed"
        assert world.charges == {str(10 * side + turn): 5 for side in (0, 1) for turn in range(6)}


def test_a_run_of_a_program_is_not_taken_from_it(tmp_path: Path) -> None:
    with served(f"sqlite:///{tmp_path}/l.db", wait=0.3) as (client, _, _world):
        with Runtime(f"sqlite:///{tmp_path}/l.db", lease=5.0) as rt, rt.run("r", agent="shopper"):
            busy = post(client, "/v1/runs/r/renew", {})
            assert (busy.status_code, busy.json()["code"]) == (409, "Busy")
            assert rt.wanted() == []


def test_a_program_that_serves_others_learns_what_is_wanted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with served(url, wait=0.3) as (client, _, _world), Runtime(url, lease=5.0) as rt:
        run = rt.open("r", client_lease=60, agent="shopper", principal="bot")
        assert rt.wanted() == []
        assert post(client, "/v1/runs/r/renew", {}).status_code == 409
        assert [one.id for one in rt.wanted()] == ["r"]
        assert rt.scoped(tenant="other").wanted() == []
        run.release()
        assert rt.wanted() == []
        assert post(client, "/v1/runs/r/renew", {}).status_code == 200


# ---- Real processes


@dataclass
class Site:
    """Two servers, which may be killed, over one ledger."""

    url: str
    folder: Path
    stack: ExitStack
    servers: list[Any] = field(default_factory=list)
    clients: list[httpx.Client] = field(default_factory=list)
    token: str = ""

    def start(self) -> int:
        server, said = self.stack.enter_context(process(self.folder))
        self.servers.append(server)
        headers = {"Authorization": f"Bearer {self.token}"}
        self.clients.append(self.stack.enter_context(httpx.Client(base_url=said["url"], headers=headers, timeout=60)))
        return len(self.servers) - 1

    def until(self, side: int, path: str, body: dict[str, Any], *, wanted: int = 200) -> Any:
        """Send a request to one server, again while that one has to wait for another one."""
        end = time.monotonic() + 60
        while True:
            got = self.clients[side].post(path, json=body)
            if got.status_code != 409 or time.monotonic() > end:
                assert got.status_code == wanted, got.text
                return got.json()
            assert got.json()["code"] == "Busy", got.text
            time.sleep(float(got.headers["retry-after"]) / 4)

    @property
    def book(self) -> list[str]:
        return (self.folder / "book").read_text().splitlines()


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path}/l.db"
    if request.param != "sqlite":
        url = request.getfixturevalue(f"{request.param}_url")
    (tmp_path / "app.py").write_text(APP.format(book=str(tmp_path / "book"), url=url))
    (tmp_path / "book").touch()
    with ExitStack() as stack:
        made = Site(url, tmp_path, stack)
        with Runtime(url) as rt:
            made.token = rt.create_token("bot", scopes="agent", agent="shopper", by="me", why="test").text or ""
        for _ in range(2):
            made.start()
        yield made


def test_a_client_alternates_between_two_processes_and_one_is_killed(site: Site) -> None:
    site.until(0, "/v1/runs", {"id": "r", "client_lease": 3.0}, wanted=201)
    for turn in range(6):
        made = site.until(turn % 2, "/v1/runs/r/calls", charge(turn))
        assert made["status"] == "done"
        site.until((turn + 1) % 2, "/v1/runs/r/renew", {})
    claim = site.until(0, "/v1/runs/r/claims", {**SHIP, "lease": 30.0}, wanted=201)
    at, token = f"/v1/claims/{claim['call']}", {"token": claim["token"]}
    assert site.until(1, f"{at}/renew", token)["lease"] == 30.0
    assert site.until(0, f"{at}/renew", token)["lease"] == 30.0  # this one has the run now
    site.servers[0].kill()
    site.servers[0].wait(20)
    assert site.until(1, f"{at}/renew", token)["lease"] == 30.0
    third = site.start()
    assert site.until(third, f"{at}/succeed", {**token, "result": "sent"})["state"] == "succeeded"
    again = site.until(1, "/v1/runs/r/claims", SHIP)
    assert (again["replayed"], again["result"]) == (True, "sent")
    for turn in range(6):
        assert site.until((1, third)[turn % 2], "/v1/runs/r/calls", charge(turn))["status"] == "replayed"
    assert site.until(1, "/v1/runs/r/commit", {})["run"]["state"] == "committed"
    assert site.book == [f"{turn} 5" for turn in range(6)]


def test_a_client_that_has_moved_and_falls_silent_is_recovered_once(site: Site) -> None:
    site.until(0, "/v1/runs", {"id": "r", "client_lease": 1.0}, wanted=201)
    site.until(0, "/v1/runs/r/calls", charge(1))
    for turn in range(8):  # longer than its lease, at each of them
        site.until(turn % 2, "/v1/runs/r/renew", {})
        time.sleep(0.25)
    assert site.book == ["1 5"]
    end = time.monotonic() + 30
    while site.clients[0].get("/v1/runs/r").json()["state"] != "rolled_back":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert site.book == ["1 5", "1 refunded"]


def test_one_is_killed_while_it_hands_over(site: Site) -> None:
    for number in range(4):
        id = f"r{number}"
        site.until(-1, "/v1/runs", {"id": id, "client_lease": 20.0}, wanted=201)
        assert site.until(-1, f"/v1/runs/{id}/calls", charge(number))["status"] == "done"
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(site.until, -2, f"/v1/runs/{id}/calls", charge(number))
            time.sleep(0.07 * number)
            site.servers[-1].kill()
            site.servers[-1].wait(20)
            assert asked.result(60)["status"] == "replayed"
        assert site.until(-2, f"/v1/runs/{id}/commit", {})["run"]["state"] == "committed"
        site.servers.pop()
        site.clients.pop()
        site.start()
    assert site.book == [f"{number} 5" for number in range(4)]
