"""A table from tenants to ledgers: four PostgreSQL servers, one is killed, and only its tenant waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from amends import Runtime
from amends.errors import BadConfig
from amends.serve import Tenants, Who, app, tenants
from tests.failover.bank import Bank
from tests.failover.shop import Shop, compare, recover
from tests.serve.shop import SECRET, as_
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.postgres import PostgresServer

NAMES = ("acme", "bolt", "coil", "dyne")
PATIENCE_S = 60
SAGAS = 6


def access(request: Any) -> Who:
    return Who("bot", frozenset({"operator"}), tenant=None, token="tok-bot")


@contextmanager
def four_servers() -> Iterator[dict[str, PostgresServer]]:
    with ExitStack() as stack:
        try:
            yield {name: stack.enter_context(PostgresServer(tcp=True)) for name in NAMES}
        except Unavailable as refusal:
            unavailable(refusal)


def sent(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    """The answer to a request that is repeated, as clients do, while the ledger is away."""
    until = time.monotonic() + PATIENCE_S
    while (answer := client.post(path, json=body, headers=as_("tok-bot"))).status_code in (409, 503):
        assert time.monotonic() < until, answer.text
        time.sleep(0.05)  # as Retry-After would say, only sooner
    return answer


def buy(client: TestClient, tenant: str, id: str) -> None:
    assert sent(client, f"/{tenant}/v1/runs", {"id": id}).status_code in (200, 201)
    for name in ("reserve", "charge"):
        answer = sent(client, f"/{tenant}/v1/runs/{id}/calls", {"tool": name, "args": {"order": id}})
        assert (answer.status_code, answer.json()["status"]) == (200, "done"), answer.text
    assert sent(client, f"/{tenant}/v1/runs/{id}/commit", {}).status_code == 200


def test_of_four_ledgers_one_is_lost_and_three_tenants_go_on_and_the_fourth_waits() -> None:
    with four_servers() as servers, Bank() as bank, ExitStack() as stack:
        shop = Shop(bank)
        urls = {name: server.create_database() for name, server in servers.items()}
        runtimes = {name: shop.runtime(url) for name, url in urls.items()}
        for rt in runtimes.values():
            stack.callback(rt.close)
        client = stack.enter_context(TestClient(tenants(runtimes, access=access, secrets=SECRET)))
        done: dict[str, list[str]] = {name: [] for name in NAMES}
        down, wrong = threading.Event(), list[BaseException]()
        begun = {name: threading.Event() for name in NAMES}

        def work(name: str) -> None:
            try:
                for number in range(SAGAS):
                    buy(client, name, f"{name}-{number}")
                    done[name].append(f"{name}-{number}")
                    if number == 2:
                        begun[name].set()
                        assert down.wait(PATIENCE_S)
            except BaseException as error:
                wrong.append(error)
                begun[name].set()

        threads = {name: threading.Thread(target=work, args=(name,), daemon=True) for name in NAMES}
        for one in threads.values():
            one.start()
        assert all(one.wait(PATIENCE_S) for one in begun.values())
        # In the middle of a saga of its tenant, which has made its first call.
        assert sent(client, "/dyne/v1/runs", {"id": "dyne-half"}).status_code == 201
        sent(client, "/dyne/v1/runs/dyne-half/calls", {"tool": "reserve", "args": {"order": "half"}})
        servers["dyne"].kill()
        down.set()
        for name in NAMES[:3]:
            threads[name].join(PATIENCE_S)
            assert len(done[name]) == SAGAS, wrong
        assert threads["dyne"].is_alive()
        assert len(done["dyne"]) == 3, "the tenant whose ledger is away got an answer"
        lost = client.get("/dyne/v1/runs", headers=as_("tok-bot"))
        assert (lost.status_code, lost.json()["code"]) == (503, "LedgerUnavailable")
        assert client.get("/dyne/ready").status_code == 503
        assert client.get("/acme/ready").status_code == 200
        assert client.get("/ready").json() | {"version": ""} == {
            "status": "partial", "version": "", "ledgers": 4, "answering": 3,
        }  # fmt: skip
        servers["dyne"].start()
        threads["dyne"].join(PATIENCE_S)
        assert len(done["dyne"]) == SAGAS, wrong
        sent(client, "/dyne/v1/runs/dyne-half/commit", {})
        calls = 0
        for name, rt in runtimes.items():
            recover(rt)
            told = compare(rt, bank)
            calls += told["calls"]
            assert (told["runs"], told["duplicated"], told["lost"]) == (SAGAS + (name == "dyne"), 0, 0)
        assert calls == sum(bank.book().values()), "the bank did something that no ledger knows"


def test_a_tenant_does_not_see_the_runs_of_another(tmp_path: Path) -> None:
    runtimes = {name: Runtime(f"sqlite:///{tmp_path}/{name}.db") for name in ("acme", "bolt")}
    with TestClient(tenants(runtimes, access=access, secrets=SECRET)) as client:
        made = client.post("/acme/v1/runs", json={"id": "one"}, headers=as_("tok-bot"))
        assert (made.status_code, made.headers["location"]) == (201, "/acme/v1/runs/one")
        assert client.get("/acme/v1/runs/one", headers=as_("tok-bot")).status_code == 200
        assert client.get("/bolt/v1/runs/one", headers=as_("tok-bot")).status_code == 404
        assert client.get("/bolt/v1/runs", headers=as_("tok-bot")).json()["items"] == []
    for rt in runtimes.values():
        rt.close()


def test_a_token_of_one_tenant_is_unknown_to_the_other(tmp_path: Path) -> None:
    runtimes = {name: Runtime(f"sqlite:///{tmp_path}/{name}.db") for name in ("acme", "bolt")}
    token = runtimes["acme"].create_token("bot", scopes=["operator"], why="a test", by="me").text
    with TestClient(tenants(runtimes, secrets=SECRET)) as client:
        assert client.get("/acme/v1/runs", headers=as_(token or "")).status_code == 200
        assert client.get("/bolt/v1/runs", headers=as_(token or "")).status_code == 401
    for rt in runtimes.values():
        rt.close()


@pytest.mark.parametrize("given", [{"secrets": SECRET}, {}], ids=["argument", "settings"])
def test_a_one_time_link_of_one_tenant_lets_nobody_in_at_another(
    tmp_path: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMENDS_SECRET", SECRET)
    runtimes = {name: Runtime(f"sqlite:///{tmp_path}/{name}.db") for name in ("acme", "bolt")}
    site = tenants(runtimes, **given)
    logins = site.services["acme"].logins
    assert logins is not None
    link = logins.new_link("", name="ana").removeprefix("/")
    with TestClient(site, follow_redirects=False) as client:
        assert client.get(f"/bolt/{link}").status_code == 403
        assert runtimes["bolt"].tokens() == []
        assert client.get(f"/acme/{link}").status_code == 303
        assert client.get("/acme/v1/runs").status_code == 200
        cookie = next(iter(client.cookies.jar)).value or ""
        assert client.get("/bolt/v1/runs", headers={"cookie": f"amends_session={cookie}"}).status_code == 401
    for rt in runtimes.values():
        rt.close()


@pytest.mark.parametrize(
    "path, status, code",
    [("/", 404, "NoSuchRoute"), ("/nobody/v1/runs", 404, "NoSuchRoute"), ("/v1/runs", 404, "NoSuchRoute"),
     ("/%ff/v1/runs", 400, "BadRequest"), ("/acme%2Fv1/runs", 404, "NoSuchRoute"), ("/acme/nothing", 404, "NoSuchRoute")],
)  # fmt: skip
def test_an_address_of_no_tenant_is_a_problem_document(path: str, status: int, code: str) -> None:
    rt = Runtime("memory:")
    with TestClient(tenants({"acme": rt}, access=access, secrets=SECRET)) as client:
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert client.get("/health").json()["status"] == "ok"
        assert client.post("/health").status_code == 405
    rt.close()


def test_it_can_be_mounted_below_a_path() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    rt = Runtime("memory:")
    site = Starlette(routes=[Mount("/agents", tenants({"acme": rt}, access=access, secrets=SECRET))])
    with TestClient(site) as client:
        made = client.post("/agents/acme/v1/runs", json={"id": "one"}, headers=as_("tok-bot"))
        assert (made.status_code, made.headers["location"]) == (201, "/agents/acme/v1/runs/one")
        assert client.get("/agents/bolt/v1/runs", headers=as_("tok-bot")).status_code == 404
    rt.close()


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "health", "v1", " acme", "a\nb", "x" * 201, 7])
def test_a_name_that_cannot_be_in_an_address_is_refused_before_anything_runs(name: Any) -> None:
    with pytest.raises(BadConfig) as refused:
        tenants({name: Runtime("memory:")})
    assert refused.value.setting == "tenants"


@pytest.mark.parametrize("table", [{}, None, ["acme"], {"acme": "postgresql://host/shop"}, {"acme": None}])
def test_a_table_that_is_none_is_refused_before_anything_runs(table: Any) -> None:
    with pytest.raises(BadConfig):
        tenants(table)


def test_two_tenants_with_one_ledger_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with pytest.raises(BadConfig):
        tenants({"acme": Runtime(url), "bolt": Runtime(url)})
    one = Runtime("memory:")
    with pytest.raises(BadConfig):
        tenants({"acme": one, "bolt": one})
    assert isinstance(tenants({"acme": Runtime("memory:"), "bolt": Runtime("memory:")}), Tenants)
    with pytest.raises(TypeError):
        app(one, tenants={"acme": one})  # type: ignore[call-arg]
