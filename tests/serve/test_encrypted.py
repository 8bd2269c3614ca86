"""A service whose runtime lacks the key of its ledger: it says so in words, and never fails."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from amends import Held, Runtime
from amends.serve import app
from amends.serve.routes import ROUTES
from tests.serve.shop import SECRET, World, access, as_, tools_of

KEY, OTHER = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
LACKING = pytest.mark.parametrize("key", [None, OTHER], ids=["no key", "another key"])


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """An encrypted ledger with a run that has ended, one that waits for a person, and the ids of what is in it."""
    url = f"sqlite:///{tmp_path}/l.db"
    tools = charge, wire, *_ = tools_of(World())
    with Runtime(url, tools=tools, encrypt=KEY, agent="shopper", principal="bot") as rt:
        with rt.run("done", input={"order": "1"}) as run:
            charge(order="1", cents=5)
            run.output = {"paid": True}
        with suppress(Held), rt.run("held", input={"order": "2"}, recover="wait"):
            charge(order="2", cents=5)
            wire(order="2", cents=5)
        [asked] = rt.approvals()
        call, token = rt.report("held").calls[0].id, rt.create_token("t", scopes="viewer", by="me", why="x").id
        yield url, {"run": "held", "call": call, "approval": asked.id, "digest": asked.digest, "token": token}


@contextmanager
def without(url: str, key: str | None) -> Iterator[TestClient]:
    rt = Runtime(url, tools=tools_of(World()), encrypt=key, wait=0.05, lease=5.0)
    with TestClient(app(rt, access=access, secrets=SECRET, worker=False)) as client:
        yield client
    rt.close()


@LACKING
def test_no_route_fails_without_the_key(ledger: tuple[str, dict[str, str]], key: str | None) -> None:
    url, known = ledger
    with without(url, key) as client:
        for route in ROUTES:
            for token in ("agent", "operator", "everywhere"):
                ids = {
                    "run": known["run"],
                    "call": known["call"],
                    "claim": known["call"],
                    "approval": known["approval"],
                }
                path = route.path.replace("{id}", ids.get(route.of, "x")).replace("{call}", known["call"])
                sent: dict[str, Any] = {"headers": as_(token)}
                if route.body is not None:
                    said = dict(route.example or {})
                    sent["json"] = said | ({"digest": known["digest"]} if "digest" in said else {})
                needed = [name for name, one in route.query.model_fields.items() if one.is_required()]
                sent["params"] = dict.fromkeys(needed, "done")
                answer = client.request(route.method, path, **sent)
                assert answer.status_code < 500, f"{route.name} as {token}: {answer.text}"
                if answer.status_code == 409 and answer.json()["code"] == "LedgerSealed":
                    assert "retry-after" not in answer.headers
                    assert "encrypt" in answer.json()["hint"]


@LACKING
def test_an_export_needs_no_key(ledger: tuple[str, dict[str, str]], key: str | None) -> None:
    with without(ledger[0], key) as client:
        bundle = client.post("/v1/export", json={"runs": ["done"]}, headers=as_("operator"))
        assert (bundle.status_code, bundle.headers["content-type"]) == (200, "application/zip")


@LACKING
def test_a_replay_without_the_key_is_no_divergence(ledger: tuple[str, dict[str, str]], key: str | None) -> None:
    from amends.errors import LedgerSealed

    def agent() -> None:
        raise AssertionError("nothing begins that the record cannot answer")

    url, _ = ledger
    with Runtime(url, tools=tools_of(World()), encrypt=KEY) as rt:
        bundle = rt.export("done")
    with Runtime(url, tools=tools_of(World()), encrypt=key) as rt:
        for record in ("done", bundle):
            with pytest.raises(LedgerSealed, match="encrypted"):
                rt.replay(record, agent)
            with pytest.raises(LedgerSealed, match="encrypted"), rt.replaying(record):
                raise AssertionError
        [found] = rt.replay_each(["done"], agent)
        assert (found.how, "encrypted" in found.why) == ("unreadable", True)
