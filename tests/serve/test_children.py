"""Child runs over HTTP: opened inside a run, driven by their own address, ended before it, taken back with it."""

from typing import Any

import pytest

from tests.serve.shop import SECRET, as_, served

BOT = as_("agent")


def post(client: Any, path: str, body: dict[str, Any], headers: dict[str, str] = BOT) -> Any:
    return client.post(path, json=body, headers=headers)


def charge(order: str) -> dict[str, Any]:
    return {"tool": "charge", "args": {"order": order, "cents": 5}}


def test_a_child_is_opened_driven_and_committed_inside_its_parent() -> None:
    with served() as (client, _, world):
        post(client, "/v1/runs", {"id": "trip"})
        made = post(client, "/v1/runs/trip/children", {"id": "leg", "input": {"leg": 1}})
        assert (made.status_code, made.json()["id"], made.headers["location"]) == (
            201,
            "trip/leg",
            "/v1/runs/trip%2Fleg",
        )
        at = made.headers["location"]
        assert post(client, f"{at}/calls", charge("1")).json()["call"]["run_id"] == "trip/leg"
        again = post(client, "/v1/runs/trip/children", {"id": "leg", "input": {"leg": 1}})
        assert again.json()["id"] == "trip/leg"
        other = post(client, "/v1/runs/trip/children", {"id": "leg", "input": {"leg": 2}})
        assert (other.status_code, other.json()["code"]) == (422, "RunConflict")
        early = post(client, "/v1/runs/trip/commit", {})
        assert (early.status_code, "trip/leg is open" in early.json()["detail"]) == (400, True)
        inner = post(client, f"{at}/children", {"id": "seat"}).headers["location"]
        assert inner == "/v1/runs/trip%2Fleg%2Fseat"
        assert post(client, f"{at}/commit", {}).status_code == 400  # its own child is open
        assert post(client, f"{inner}/calls", charge("2")).json()["status"] == "done"
        for place in (inner, at, at):  # a commit that is sent again gets the same answer
            done = post(client, f"{place}/commit", {"output": place})
            assert (done.status_code, done.json()["run"]["state"]) == (200, "committed")
        assert client.get(at, headers=BOT).json()["parent"] == "trip"
        over = post(client, "/v1/runs/trip/children", {"id": "leg"})
        assert (over.status_code, over.json()["over"]) == (200, True)
        report = post(client, "/v1/runs/trip/commit", {}).json()
        assert (report["run"]["state"], report["children"][0]["run"]["output"]) == ("committed", at)
        assert world.charges == {"1": 5, "2": 5}


def test_a_child_is_taken_back_alone_or_with_its_parent() -> None:
    with served() as (client, _, world):
        post(client, "/v1/runs", {"id": "trip"})
        for leg in ("a", "b"):
            at = post(client, "/v1/runs/trip/children", {"id": leg}).headers["location"]
            post(client, f"{at}/calls", charge(leg))
        for _ in range(2):
            back = post(client, "/v1/runs/trip%2Fa/rollback", {"why": "no seat"})
            assert (back.status_code, back.json()["run"]["state"]) == (200, "rolled_back")
        assert world.charges == {"b": 5}
        refused = post(client, "/v1/runs/trip%2Fa/calls", charge("x"))
        assert (refused.status_code, refused.json()["code"]) == (409, "RunEnded")
        assert post(client, "/v1/runs/trip/rollback", {"why": "cancelled"}).json()["run"]["state"] == "rolled_back"
        assert world.charges == {}


def test_a_claim_in_a_child_is_reported_and_its_child_goes_on_elsewhere(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with served(url, worker=False) as (client, _, world):
        post(client, "/v1/runs", {"id": "trip", "recover": "wait"})
        at = post(client, "/v1/runs/trip/children", {"id": "leg/1"}).headers["location"]
        inner = post(client, f"{at}/children", {"id": "seat"}).headers["location"]
        claim = post(client, f"{at}/claims", charge("1")).json()
        done = post(client, f"/v1/claims/{claim['call']}/succeed", {"token": claim["token"], "result": "ch_1"})
        assert (done.status_code, done.json()["state"]) == (200, "succeeded")
        assert post(client, f"{inner}/calls", charge("2")).json()["status"] == "done"
        open_ = post(client, f"{inner}/claims", charge("3")).json()
    with served(url, worker=False, world=world) as (client, _, _):  # the next server
        late = post(client, f"/v1/claims/{open_['call']}/succeed", {"token": open_["token"], "result": "ch_3"})
        assert (late.status_code, late.json()["state"]) == (200, "succeeded")
        again = post(client, f"{inner}/calls", charge("2"))
        assert (again.status_code, again.json()["status"]) == (200, "replayed")
        for place in (inner, at, "/v1/runs/trip"):
            assert post(client, f"{place}/commit", {}).json()["run"]["state"] == "committed"


def test_a_child_that_waits_for_a_person_suspends_its_parent_until_the_decision() -> None:
    with served() as (client, _, world):
        post(client, "/v1/runs", {"id": "trip"})
        at = post(client, "/v1/runs/trip/children", {"id": "leg"}).headers["location"]
        wire = {"tool": "wire", "args": {"order": "1", "cents": 5}}
        held = post(client, f"{at}/calls", wire)
        assert held.status_code == 202
        waits = post(client, f"{at}/commit", {})
        assert (waits.status_code, waits.headers["location"]) == (202, held.headers["location"])
        asked = client.get(held.headers["location"], headers=BOT).json()
        post(client, f"{held.headers['location']}/approve", {"digest": asked["digest"]}, as_("approver"))
        assert post(client, f"{at}/calls", wire).json()["value"] == "w_1"
        for place in (at, "/v1/runs/trip"):
            assert post(client, f"{place}/commit", {}).json()["run"]["state"] == "committed"
        assert world.wires == ["1"]


def test_what_is_wrong_with_a_child_is_said() -> None:
    with served() as (client, _, _):
        post(client, "/v1/runs", {"id": "trip"})
        nameless = post(client, "/v1/runs/trip/children", {})
        assert (nameless.status_code, nameless.json()["code"]) == (400, "KeyMissing")
        named = client.post("/v1/runs/trip/children", json={}, headers=BOT | {"Idempotency-Key": "leg"})
        assert (named.status_code, named.json()["id"]) == (201, "trip/leg")
        alone = post(client, "/v1/runs/trip%2Fleg/suspend", {})
        assert (alone.status_code, "with its root" in alone.json()["detail"]) == (400, True)
        assert post(client, "/v1/runs/trip%2Fleg/renew", {}).json()["state"] == "open"
        for token in ("agent2", "agent-plain", "other-agent"):
            for path, body in (("children", {"id": "x"}), ("commit", {}), ("calls", charge("1"))):
                assert post(client, f"/v1/runs/trip%2Fleg/{path}", body, as_(token)).status_code == 404, token
        theirs = post(client, "/v1/runs/trip/children", {"id": "x"}, as_("operator"))
        assert (theirs.status_code, theirs.json()["code"]) == (403, "Forbidden")
        missing = post(client, "/v1/runs/trip%2Fnone/calls", charge("1"))
        assert (missing.status_code, missing.json()["code"]) == (404, "RunNotFound")
        post(client, "/v1/runs/trip/suspend", {})
        assert post(client, "/v1/runs/trip%2Fleg/calls", charge("1")).json()["status"] == "done"


def test_an_operator_drives_children_of_a_run_of_their_own() -> None:
    with served() as (client, _, world):
        olga = as_("operator")
        post(client, "/v1/runs", {"id": "o"}, olga)
        at = post(client, "/v1/runs/o/children", {"id": "c"}, olga).headers["location"]
        post(client, f"{at}/calls", charge("1"), olga)
        assert post(client, f"{at}/rollback", {"why": "no"}, olga).json()["run"]["state"] == "rolled_back"
        assert world.charges == {}
        assert post(client, "/v1/runs/o/commit", {}, olga).json()["run"]["state"] == "committed"


@pytest.mark.parametrize("parent", ["trip", "trip/1"])
def test_a_client_that_begins_again_finds_its_children(parent: str) -> None:
    with served(secrets=SECRET) as (client, _, world):
        at = f"/v1/runs/{parent.replace('/', '%2F')}"
        for round in range(2):
            post(client, "/v1/runs", {"id": parent})
            child = post(client, f"{at}/children", {"id": "leg"})
            assert child.status_code == (200 if round else 201)
            done = post(client, f"{child.headers['location']}/calls", charge("1")).json()
            assert done["status"] == ("replayed" if round else "done")
        assert world.charges == {"1": 5}
