"""Erasing a person over HTTP: long work with a result, recorded with the name and the token of whoever asked."""

from __future__ import annotations

import time
from typing import Any

from tests.serve.shop import as_, served

BOT, OPERATOR = as_("agent"), as_("operator")


def ended(client: Any, body: dict[str, Any]) -> Any:
    begun = client.post("/v1/erase", json=body, headers=OPERATOR)
    assert begun.status_code == 202, begun.text
    until = time.monotonic() + 10
    while (job := client.get(begun.headers["location"], headers=OPERATOR).json())["state"] == "running":
        assert time.monotonic() < until
    return job


def test_an_operator_erases_a_person_and_the_record_names_the_operator_and_the_token() -> None:
    with served(worker=False) as (client, service, _):
        client.post("/v1/runs", json={"id": "r", "tags": ["customer=alice"]}, headers=BOT)
        charge = {"tool": "charge", "args": {"order": "alice", "cents": 5}}
        assert client.post("/v1/runs/r/calls", json=charge, headers=BOT).status_code == 200
        about = {"tags": ["customer=alice"], "fields": {"order": "alice"}, "why": "request 4711"}
        early = ended(client, about)
        assert (early["state"], early["problem"]["code"]) == ("failed", "CannotErase")
        assert client.post("/v1/runs/r/commit", json={}, headers=BOT).status_code == 200
        would = ended(client, about | {"dry_run": True})
        assert [one["run_id"] for one in would["result"]["runs"]] == ["r"]
        done = ended(client, about)
        assert (done["what"], done["state"], done["runs"]) == ("erase", "done", 1)
        again = ended(client, about)
        assert again["problem"]["code"] == "SubjectNotFound"
        events = client.get("/v1/events?run=r", headers=OPERATOR).json()["items"]
        [erased] = [one for one in events if one["what"] == "erased"]
        assert (erased["by"], erased["facts"]["why"]) == ("olga", "request 4711")
        assert erased["facts"]["order"] == done["result"]["order"]
        store: Any = service.rt._host.store
        assert "alice" not in repr((store.runs, store.calls, store.events))
        report = client.get("/v1/runs/r/report", headers=OPERATOR).json()
        assert (report["run"]["tags"], report["calls"][0]["args"]) == ([], {})


def test_wrong_bodies_are_refused_before_anything_begins() -> None:
    with served(worker=False) as (client, _, _):
        for wrong in (
            {},
            {"why": ""},
            {"why": "x", "tags": [""]},
            {"why": "x", "by": "ann"},
            {"why": "x", "fields": {"a": []}},
        ):
            assert client.post("/v1/erase", json=wrong, headers=OPERATOR).status_code == 422, wrong
        assert client.post("/v1/erase", json={"why": "x", "runs": ["r"]}, headers=BOT).status_code == 403
        assert ended(client, {"why": "request 4711"})["problem"]["code"] == "UsageError"
