"""The service below a path of another program: its addresses have that path, and its life is the program's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from amends import AsyncRuntime, Runtime
from amends.errors import RolledBack
from amends.serve import app
from tests.serve.shop import SECRET, World, access, as_, tools_of

BOT = as_("agent")


def sites(service: Any, life: Any) -> dict[str, Any]:
    inner = Starlette(routes=[Mount("/agents", service)])
    fast = FastAPI(lifespan=life)
    fast.mount("/agents", service)
    return {
        "fastapi": (fast, "/agents"),
        "starlette": (Starlette(routes=[Mount("/agents", service)], lifespan=life), "/agents"),
        "nested": (Starlette(routes=[Mount("/a b", inner)], lifespan=life), "/a%20b/agents"),
    }


@pytest.mark.parametrize("colour", [Runtime, pytest.param(AsyncRuntime, marks=pytest.mark.rest)])
@pytest.mark.parametrize(
    "kind", ["fastapi", *(pytest.param(one, marks=pytest.mark.rest) for one in ("starlette", "nested"))]
)
def test_a_run_is_driven_below_a_path_and_let_go_at_the_end(kind: str, colour: type, tmp_path: Any) -> None:
    rt = colour(f"sqlite:///{tmp_path}/l.db", tools=tools_of(World()), lease=5.0)
    service = app(rt, access=access, secrets=SECRET)

    @asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.close()
        await service.rt.close()

    site, base = sites(service, life)[kind]
    with TestClient(site) as client:
        opened = client.post(f"{base}/v1/runs", headers=BOT, json={"id": "order/7"})
        assert (opened.status_code, opened.headers["location"]) == (201, f"{base}/v1/runs/order%2F7")
        held = client.post(
            f"{opened.headers['location']}/calls",
            headers=BOT,
            json={"tool": "wire", "args": {"order": "7", "cents": 1}},
        )
        assert held.status_code == 202
        assert held.headers["location"].startswith(f"{base}/v1/approvals/")
        assert client.get(held.headers["location"], headers=as_("approver")).status_code == 200
        assert client.get(f"{base}/v1/openapi.json").json()["servers"] == [{"url": base}]
        assert len(service.sessions) == 1
    assert len(service.sessions) == 0
    with Runtime(f"sqlite:///{tmp_path}/l.db", tools=tools_of(World()), wait=0.0) as after:
        run = after.open("order/7", input=None)  # nobody has it any more
        assert run.resumed
        with pytest.raises(RolledBack):
            run.rollback("test")


def test_a_document_that_is_not_below_a_path_names_no_server() -> None:
    with TestClient(app(Runtime("memory:"), access=access, secrets=SECRET)) as client:
        assert "servers" not in client.get("/v1/openapi.json").json()
