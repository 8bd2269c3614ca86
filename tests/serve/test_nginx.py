"""Two real servers behind a real nginx that has the configuration of docs/how-to/behind-nginx.md."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from amends import Runtime
from amends.client import Client
from tests.docs.test_docs import DOCS, FENCE
from tests.serve.test_server import folder, process
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.nginx import Nginx
from tests.servers.process import free_port

__all__ = ["folder"]
pytestmark = pytest.mark.rest
PAGE = DOCS / "how-to" / "behind-nginx.md"
RETRY_S_MAX = 20.0
CHARGE = {"tool": "charge", "args": {"order": "1", "cents": 5}}


def configuration(*, port: int, servers: list[str]) -> str:
    """The page's own, with these ports, and with a header that says which server has answered."""
    [shown] = [fence["body"] for fence in FENCE.finditer(PAGE.read_text(encoding="utf-8")) if fence["lang"] == "nginx"]
    changes = {"listen 443 ssl": f"listen 127.0.0.1:{port} ssl", "127.0.0.1:8642": servers[0]}
    changes |= {"127.0.0.1:8643": servers[1], "/etc/ssl/agents.": "agents."}
    for old, new in changes.items():
        assert old in shown, f"the page has no {old} any more"
        shown = shown.replace(old, new)
    return "add_header X-Served-By $upstream_addr always;\n" + shown


def certificate(folder: Path) -> dict[str, str]:
    """A key that is thrown away, and a certificate that it signed itself."""
    if shutil.which("openssl") is None:
        unavailable("no openssl, which makes the certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=agents.example.com", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", "agents.key", "-out", "agents.pem"],
        cwd=folder, check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    return {name: (folder / name).read_text(encoding="utf-8") for name in ("agents.key", "agents.pem")}


@dataclass
class Site:
    """What a test talks to."""

    client: httpx.Client
    trusted: ssl.SSLContext
    servers: dict[str, Any]
    nginx: Nginx
    viewer: str
    link: str
    book: Path

    def until(self, wanted: int, path: str, **given: Any) -> httpx.Response:
        """Send the same request until it is answered like this."""
        end = time.monotonic() + RETRY_S_MAX
        while True:
            got = self.client.post(path, **given)
            if got.status_code == wanted or time.monotonic() > end:
                assert got.status_code == wanted, got.text
                return got
            time.sleep(0.1)


@contextmanager
def site_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("BROWSER", "true")  # the program that does nothing
    with Runtime(f"sqlite:///{folder}/l.db") as rt:
        bot = rt.create_token("bot", scopes="agent", agent="shopper", by="me", why="test").text
        vera = rt.create_token("vera", scopes="viewer", by="me", why="test").text
    keys = certificate(folder)
    port = free_port()
    trusted = ssl.create_default_context(cafile=str(folder / "agents.pem"))
    with process(folder, "--open") as (one, said), process(folder) as (two, said_two):
        places = [httpx.URL(it["url"]).netloc.decode() for it in (said, said_two)]
        try:
            nginx = Nginx(configuration(port=port, servers=places), port=port, files=keys).start()
        except Unavailable as refusal:
            unavailable(refusal)
        bearer = {"Authorization": f"Bearer {bot}"}
        try:
            with httpx.Client(
                base_url=f"https://127.0.0.1:{port}", verify=trusted, headers=bearer, timeout=60
            ) as client:
                servers = dict(zip(places, (one, two), strict=True))
                yield Site(client, trusted, servers, nginx, vera or "", said["link"], folder / "book")
        finally:
            nginx.close()


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with site_of(folder, monkeypatch) as made:
        yield made


def test_runs_go_to_their_servers_and_go_on_when_one_is_killed(site: Site) -> None:
    client, served = site.client, {}
    for number in range(20):
        id = f"run-{number}"
        opened = client.post("/v1/runs", json={}, headers={"Idempotency-Key": id})
        assert opened.status_code == 201
        served[id] = opened.headers["x-served-by"]
        made = client.post(f"/v1/runs/{id}/calls", json={"tool": "charge", "args": {"order": id, "cents": 5}})
        assert (made.json()["status"], made.headers["x-served-by"]) == ("done", served[id])
    assert set(served.values()) == set(site.servers), "one server has all runs"

    dead = served["run-0"]
    site.servers[dead].kill()
    site.servers[dead].wait(20)
    for id in served:
        call = {"tool": "charge", "args": {"order": id, "cents": 5}}
        again = site.until(200, f"/v1/runs/{id}/calls", json=call)
        assert again.json()["status"] == "replayed"
        assert again.headers["x-served-by"].rpartition(", ")[2] != dead
        assert client.post(f"/v1/runs/{id}/commit").json()["run"]["state"] == "committed"
    assert sorted(site.book.read_text().splitlines()) == sorted(f"{id} 5" for id in served)


def test_a_route_decides_for_what_names_no_run_in_its_address(site: Site) -> None:
    places = set()
    for number in range(20):
        id, route = f"order/{number} ä", {"X-Amends-Route": f"order-{number}"}
        headers = {**site.client.headers, **route}
        with httpx.Client(base_url=site.client.base_url, verify=site.trusted, headers=headers, timeout=60) as client:
            assert client.post("/v1/runs", json={"id": id}).status_code == 201
            place = f"/v1/runs/order%2F{number}%20%C3%A4"
            claim = client.post(f"{place}/claims", json={"tool": "charge", "args": {"order": id, "cents": 5}})
            assert claim.status_code == 201, claim.text
            at, token = f"/v1/claims/{claim.json()['call']}", claim.json()["token"]
            assert client.post(f"{at}/renew", json={"token": token}).status_code == 200
            assert client.post(f"{at}/succeed", json={"token": token, "result": "x"}).json()["state"] == "succeeded"
            ended = client.post(f"{place}/commit")
            assert ended.json()["run"]["state"] == "committed"
            places.add(ended.headers["x-served-by"])
    assert places == set(site.servers)


def test_events_arrive_while_the_stream_is_open(site: Site) -> None:
    client = site.client
    headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {site.viewer}"}
    with client.stream("GET", "/v1/events", headers=headers, timeout=20) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 1000"  # before there is any event
        assert client.post("/v1/runs", json={}, headers={"Idempotency-Key": "r"}).status_code == 201
        begun = time.monotonic()
        assert next(line for line in lines if line in ("event: run", ": alive")) == "event: run"
        assert client.post("/v1/runs/r/calls", json=CHARGE).json()["status"] == "done"
        assert next(line for line in lines if line in ("event: call", ": alive")) == "event: call"
        assert time.monotonic() - begun < 10, "something has buffered"


def test_it_is_https_for_cookies_and_the_service_says_itself_what_is_too_large(site: Site) -> None:
    let_in = site.client.get("/login/link?" + site.link.partition("?")[2])
    assert let_in.status_code == 303
    assert all("secure" in one.lower() for one in let_in.headers.get_list("set-cookie"))
    assert let_in.headers.get_list("set-cookie")
    large = site.client.post("/v1/runs", content=b" " * (2 << 20), headers={"Content-Type": "application/json"})
    assert (large.status_code, large.json()["code"]) == (413, "BodyTooLarge")
    end = time.monotonic() + RETRY_S_MAX
    while "/v1/runs" not in site.nginx.log and time.monotonic() < end:  # nginx writes a line after the answer
        time.sleep(0.05)
    assert "/v1/runs" in site.nginx.log
    assert "once=" not in site.nginx.log


def test_a_run_goes_on_in_a_server_that_comes_back(site: Site) -> None:
    """What the page says about a request that reaches a server which does not have the run."""
    opened = site.client.post("/v1/runs", json={"client_lease": 2.0}, headers={"Idempotency-Key": "r"})
    assert site.client.post("/v1/runs/r/calls", json=CHARGE).status_code == 200
    [other] = set(site.servers) - {opened.headers["x-served-by"]}
    with httpx.Client(base_url=f"http://{other}", headers=site.client.headers, timeout=20) as there:
        for client in (there, site.client) * 4:
            got = client.post("/v1/runs/r/calls", json=CHARGE)
            assert (got.status_code, got.json().get("status")) == (200, "replayed"), got.text
        assert there.post("/v1/runs/r/commit").json()["run"]["state"] == "committed"
    assert site.book.read_text() == "1 5\n"


def test_the_client_sends_all_requests_of_a_run_to_one_server(site: Site) -> None:
    served: dict[str, set[str]] = {}

    def note(answer: httpx.Response) -> None:
        served.setdefault(answer.request.headers["x-amends-route"], set()).add(answer.headers["x-served-by"])

    token = site.client.headers["authorization"].removeprefix("Bearer ")
    http = httpx.Client(verify=site.trusted, event_hooks={"response": [note]}, timeout=60)
    with http, Client(str(site.client.base_url), token=token, http=http) as client:
        for number in range(12):
            with client.run(f"order/{number} ä") as run:
                assert run.call("charge", order=str(number), cents=5) == f"ch_{number}"
                with run.begin("ship", {"n": number}, kind="read") as attempt:
                    attempt.renew()
                    attempt.succeed("s")
                run.renew()
    assert len(served) == 12
    assert all(len(places) == 1 for places in served.values()), served
    assert {place for places in served.values() for place in places} == set(site.servers)


def test_the_page_names_the_limits_that_its_numbers_come_from() -> None:
    from amends.serve import Limits
    from amends.serve.events import ALIVE_S
    from amends.serve.workers import TakeWork

    text, limits = PAGE.read_text(encoding="utf-8"), Limits()
    [size] = re.findall(r"client_max_body_size +(\d+)m", text)
    assert int(size) << 20 > max(limits.body_bytes_max, limits.bundle_bytes_max)
    [read_s] = re.findall(r"proxy_read_timeout +(\d+)s", text)
    longest = max(one.le for one in TakeWork.model_fields["wait"].metadata if hasattr(one, "le"))
    assert int(read_s) > max(longest, limits.answer_s_max, ALIVE_S)
