"""The adapter for Restate, on a real server: what waits, what is cancelled, what is repeated, and what is lost."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import restate

from amends import Runtime
from amends.adapters.restate import LOOK_S, RestateRuns
from amends.errors import UsageError
from tests.engines.world import FOLDER, World, blocking_runtime
from tests.servers import RestateServer
from tests.servers.asgi import AsgiServer

SOON_S = 60
REQUEST_S = 60
RESERVE = ["reserve", {"room": "12"}]
CHARGE = ["charge", {"order": "7"}]
WIRE = ["wire", {"order": "7"}]


class Place:
    """A world, the service over it, and a Restate server."""

    def __init__(self, folder: Path, server: RestateServer, **env: str) -> None:
        self.world, self.server = World(folder), server
        self.rt = blocking_runtime(self.world)
        self.service = AsgiServer("tests.engines.restate_service:app", env={FOLDER: str(folder), **env})

    def start(self, *, node: int = 0) -> None:
        self.service.start()
        assert self.server.register(self.service.url, node=node) == ["bare", "desk", "trip"]

    def ask(self, path: str, body: Any = None, *, node: int = 0, method: str | None = None) -> tuple[int, Any]:
        """Ask the ingress; return the status and the answer, or the message of the error."""
        return self._sent(f"{self.server.ingress(node)}{path}", body, method)

    def send(self, path: str, body: Any, *, node: int = 0) -> str:
        status, answer = self.ask(f"{path}/send", body, node=node)
        assert status in (200, 202), answer
        return str(answer["invocationId"])

    def attach(self, key: str, *, node: int = 0) -> tuple[int, Any]:
        return self.ask(f"/restate/workflow/trip/{key}/attach", node=node)

    def administer(self, invocation: str, verb: str) -> None:
        status, answer = self._sent(f"{self.server.admin()}/invocations/{invocation}/{verb}", None, "PATCH")
        assert status in (200, 202), answer

    def approval(self) -> Any:
        """Wait until a person is asked, and the invocation waits for the answer."""
        until(lambda: bool(self.waits()))
        [asked] = self.rt.approvals()
        assert self.waits() == [asked.digest]
        return asked

    def waits(self) -> list[str]:
        """Return the names of the waits that Restate has, whichever handler they are of."""
        rows = self.server.query("select value_utf8 from state where key like 'amends-waits:%'")
        return [name for row in rows for name in json.loads(row["value_utf8"])["waits"]]

    def promises(self) -> list[str]:
        return [str(row["key"]) for row in self.server.query("select key from sys_promise")]

    def _sent(self, url: str, body: Any, method: str | None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if data is not None else {}
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            said = error.read()
            try:
                return error.code, json.loads(said)["message"]
            except (ValueError, KeyError):
                return error.code, said.decode()

    def close(self) -> None:
        self.rt.close()
        self.service.close()


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def place(restate_server: RestateServer, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, restate_server)
    try:
        made.start()
        yield made
    finally:
        made.close()


# ---- Waiting for a person


@pytest.mark.rest
def test_an_approval_waits_over_the_death_of_the_server_and_of_the_service(place: Place) -> None:
    place.send("/trip/t/order", {"calls": [CHARGE, WIRE]})
    asked = place.approval()
    assert place.promises() == [asked.digest]
    place.service.kill()
    place.server.kill()
    place.server.start()
    place.service.start()
    assert place.ask("/trip/t/approve", "ann") == (200, {"approval": asked.id, "state": "approved", "error": None})
    assert place.attach("t") == (200, ["charged-7", "wired-7"])
    assert place.rt.report("t").state == "committed"
    assert place.world.log == ["charged 7", "wired 7"]


@pytest.mark.rest
def test_a_decision_in_the_ledger_ends_the_wait(restate_server: RestateServer, tmp_path: Path) -> None:
    place = Place(tmp_path, restate_server, INGRESS=restate_server.ingress())
    try:
        place.start()
        place.send("/trip/t/order", {"calls": [CHARGE, WIRE]})
        asked = place.approval()
        place.rt.reject(asked.id, by="ann", reason="not now")
        status, said = place.attach("t")
        assert (status, "not now" in said) == (403, True)
        assert place.rt.report("t").state == "rolled_back"
        assert place.world.log == ["charged 7", "refunded 7"]
    finally:
        place.close()


@pytest.mark.rest
def test_a_decision_in_the_ledger_ends_the_wait_of_an_object(restate_server: RestateServer, tmp_path: Path) -> None:
    """The id of its run is not the key by which it is reached."""
    place = Place(tmp_path, restate_server, INGRESS=restate_server.ingress())
    try:
        place.start()
        place.send("/desk/d/serve", {"calls": [CHARGE, WIRE], "id": "r"})
        asked = place.approval()
        began = time.monotonic()
        place.rt.approve(asked.id, digest=asked.digest, by="ann")
        until(lambda: place.rt.report("r").state == "committed")
        assert time.monotonic() - began < LOOK_S, "it was not told, and has looked by itself"
    finally:
        place.close()


@pytest.mark.rest
def test_a_decision_in_the_ledger_is_seen_without_an_ingress_too(place: Place) -> None:
    place.send("/trip/t/order", {"calls": [CHARGE, WIRE]})
    asked = place.approval()
    place.rt.approve(asked.id, digest=asked.digest, by="ann")
    assert place.attach("t") == (200, ["charged-7", "wired-7"])


@pytest.mark.rest
def test_an_object_waits_by_an_awakeable(place: Place) -> None:
    invocation = place.send("/desk/d/serve", {"calls": [CHARGE, WIRE]})
    asked = place.approval()
    assert place.promises() == []
    [listed] = place.ask("/desk/d/amends_approvals")[1]
    assert (listed["id"], listed["digest"], listed["args"]) == (asked.id, asked.digest, {"order": "7"})
    place.server.kill()
    place.server.start()
    decision = {"approval": asked.id, "digest": asked.digest, "by": "ann"}
    assert place.ask("/desk/d/amends_decide", decision)[0] == 200
    assert place.ask(f"/restate/invocation/{invocation}/attach") == (200, ["charged-7", "wired-7"])
    assert place.rt.report(invocation).state == "committed"
    assert place.ask("/desk/d/amends_approvals") == (200, [])


@pytest.mark.rest
@pytest.mark.parametrize(
    "changed, status, says",
    [
        ({"digest": "0" * 64}, 409, "ApprovalVoid"),
        ({"approval": "apr_1"}, 404, "NotFound"),
        ({"by": None}, 400, "by"),
        ({"approve": "perhaps"}, 400, "approve"),
    ],
)
def test_a_wrong_decision_decides_nothing(place: Place, changed: dict[str, Any], status: int, says: str) -> None:
    invocation = place.send("/desk/d/serve", {"calls": [CHARGE, WIRE]})
    asked = place.approval()
    told = place.ask("/desk/d/amends_decide", {"approval": asked.id, "digest": asked.digest, "by": "ann", **changed})
    assert (told[0], says in told[1]) == (status, True), told
    assert place.rt.approval(asked.id).state == "pending"
    place.administer(invocation, "cancel")
    until(lambda: place.rt.report(invocation).state == "rolled_back")


@pytest.mark.rest
def test_strangers_decide_nothing_at_the_ingress(place: Place) -> None:
    for handler in ("amends_decide", "amends_approvals"):
        status, said = place.ask(f"/trip/t/{handler}", {})
        assert (status, "private" in said or "not public" in said or "not found" in said) == (status, True), said
        assert status in (400, 403, 404)


# ---- Ends


@pytest.mark.rest
def test_a_terminal_error_rolls_back(place: Place) -> None:
    assert place.ask("/trip/t/order", {"calls": [RESERVE, CHARGE], "fail": "no"}) == (422, "no")
    assert place.rt.report("t").state == "rolled_back"
    assert place.world.log == ["reserved 12", "charged 7", "refunded 7", "unreserved 12"]


@pytest.mark.rest
def test_a_refused_call_says_why(place: Place) -> None:
    status, said = place.ask("/trip/t/order", {"calls": [WIRE]})
    assert (status, "charge" in said) == (403, True), said
    status, said = place.ask("/trip/u/order", {"calls": [["fly", {}]]})
    assert (status, "fly" in said) == (403, True), said
    assert place.world.log == []


@pytest.mark.rest
def test_a_failed_call_says_why(place: Place) -> None:
    status, said = place.ask("/trip/t/order", {"calls": [RESERVE, ["break_down", {"order": "7"}]]})
    assert (status, "cannot be done" in said) == (500, True), said
    assert place.world.log == ["reserved 12", "unreserved 12"]


@pytest.mark.rest
def test_a_cancellation_does_not_interrupt_the_rollback(place: Place) -> None:
    place.world.arm("refund: body", "server")  # the compensation waits there until it is told that a server died
    invocation = place.send("/trip/t/order", {"calls": [RESERVE, CHARGE, WIRE]})
    place.approval()
    place.administer(invocation, "cancel")
    until(lambda: place.world.is_fired)
    place.administer(invocation, "cancel")
    place.administer(invocation, "cancel")
    place.world.server_was_killed()
    assert place.attach("t") == (409, "cancelled")
    assert place.rt.report("t").state == "rolled_back"
    assert place.world.log == ["reserved 12", "charged 7", "refunded 7", "unreserved 12"]


@pytest.mark.rest
def test_a_killed_invocation_leaves_its_run_to_a_person(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(place.world.folder))  # the person's process compensates
    invocation = place.send("/trip/t/order", {"calls": [CHARGE, WIRE]})
    place.approval()
    place.administer(invocation, "kill")
    assert place.attach("t")[0] == 409
    assert place.rt.report("t").state == "open"
    place.service.stop()
    place.rt.rollback("t", by="ann", why="its invocation was killed")
    assert place.rt.report("t").state == "rolled_back"
    assert place.world.log == ["charged 7", "refunded 7"]


# ---- Repeats


@pytest.mark.rest
def test_a_workflow_is_started_once_for_each_key(place: Place) -> None:
    assert place.ask("/trip/t/order", {"calls": [CHARGE]}) == (200, ["charged-7"])
    assert place.ask("/trip/t/order", {"calls": [CHARGE, RESERVE]})[0] == 409
    assert place.world.log == ["charged 7"]


@pytest.mark.rest
def test_the_ledger_remembers_a_key_that_restate_has_forgotten(restate_server: RestateServer, tmp_path: Path) -> None:
    place = Place(tmp_path, restate_server, FORGETS="1")
    try:
        place.start()
        assert place.ask("/trip/t/order", {"calls": [CHARGE]}) == (200, ["charged-7"])
        until(lambda: place.ask("/trip/t/order", {"calls": [CHARGE]}) == (200, ["charged-7"]))  # once it is forgotten
        seen: list[tuple[int, str]] = []

        def refused() -> bool:
            seen.append(place.ask("/trip/t/order", {"calls": [CHARGE, RESERVE]}))
            return seen[-1][0] == 403 and "another input" in seen[-1][1]

        until(refused)
        assert place.world.log == ["charged 7"]
    finally:
        place.close()


@pytest.mark.rest
def test_restate_alone_repeats_an_effect_although_it_is_told_to_try_once(place: Place) -> None:
    """The page says so: it would be wrong about a version for which this fails."""
    place.world.arm("bare: effect", "worker")
    invocation = place.send("/bare/charge", "7")
    until(lambda: place.world.is_fired)
    place.service.kill()
    place.service.start()
    assert place.ask(f"/restate/invocation/{invocation}/attach")[0] == 200
    assert (place.world.folder / "bare").read_text() == "charged 7\ncharged 7\n"


# ---- Declaring it


def test_what_cannot_work_is_refused_when_it_is_declared(tmp_path: Path) -> None:
    with Runtime("memory:") as rt:
        service: Any = restate.Service("s")
        with pytest.raises(UsageError, match="Workflow or a VirtualObject"):
            RestateRuns(rt, service)
        workflow = restate.Workflow("w")
        decisions: Any = "everybody"
        with pytest.raises(UsageError, match="decisions"):
            RestateRuns(rt, workflow, decisions=decisions)
        RestateRuns(rt, workflow)
        with pytest.raises(UsageError, match="already has a handler"):
            RestateRuns(rt, workflow)


# ---- A node is lost


@pytest.mark.rest
def test_nothing_is_lost_or_repeated_when_a_node_is_lost(restate_cluster: RestateServer, tmp_path: Path) -> None:
    """Three nodes, every piece of data on two. The node is killed while a body that it asked for is at work."""
    place = Place(tmp_path, restate_cluster)
    try:
        place.start()
        place.world.arm("charge: effect", "server")
        place.send("/trip/t/order", {"calls": [RESERVE, CHARGE, ["mail", {"to": "ann"}]]})
        until(lambda: place.world.is_fired)
        lost = int((place.world.folder / "node").read_text())
        place.server.kill(lost)
        place.world.server_was_killed()
        other = (lost + 1) % 3
        assert place.attach("t", node=other) == (200, ["reserved-12", "charged-7", None])
        assert place.rt.report("t").state == "committed"
        assert place.world.log == ["reserved 12", "charged 7", "mailed ann"]
        asked_by = (place.world.folder / "node").read_text()
        assert asked_by != str(lost), "another node went on"
    finally:
        place.close()
