"""A client that begins again, and one that goes on: which requests may be repeats in other words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from amends import Runtime, tool
from amends.serve import app
from tests.serve.shop import SECRET, access, as_

AGENT = as_("agent")


@contextmanager
def shop(url: str, notes: list[str]) -> Iterator[TestClient]:
    @tool
    def note(text: str) -> int:
        notes.append(text)
        return len(notes)

    @note.compensate
    def forget(text: str) -> None: ...

    with Runtime(url, tools=[note], lease=5.0) as rt, TestClient(app(rt, access=access, secrets=SECRET)) as client:
        yield client


def opened(client: TestClient, **said: Any) -> Any:
    answer = client.post("/v1/runs", headers=AGENT, json={"id": "r", **said})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def noted(client: TestClient, text: str) -> Any:
    answer = client.post("/v1/runs/r/calls", headers=AGENT, json={"tool": "note", "args": {"text": text}})
    assert answer.status_code in (200, 202), answer.text
    return answer.json()["status"]


def test_a_client_that_begins_again_rewords_and_a_person_is_asked(tmp_path: Any) -> None:
    notes: list[str] = []
    with shop(f"sqlite:///{tmp_path / 'l.db'}", notes) as client:
        assert opened(client)["resumed"] is False
        assert opened(client)["resumed"] is False  # the first answer was lost: nothing was asked for yet
        assert noted(client, "Call Ada") == "done"
        assert opened(client)["resumed"] is True  # the client was killed and begins again
        assert noted(client, "Phone Ada") == "held"
        assert noted(client, "Call Ada") == "replayed"
    assert notes == ["Call Ada"]


def test_a_client_that_says_that_it_still_has_the_results_goes_on(tmp_path: Any) -> None:
    notes: list[str] = []
    with shop(f"sqlite:///{tmp_path / 'l.db'}", notes) as client:
        opened(client)
        assert noted(client, "Call Ada") == "done"
        opened(client, history=True)
        assert noted(client, "Call Ben") == "done"
    assert notes == ["Call Ada", "Call Ben"]


def test_a_client_that_goes_on_after_the_server_was_started_again_is_not_suspected(tmp_path: Any) -> None:
    notes: list[str] = []
    url = f"sqlite:///{tmp_path / 'l.db'}"
    with shop(url, notes) as client:
        opened(client)
        assert noted(client, "Call Ada") == "done"
    with shop(url, notes) as client:
        assert noted(client, "Call Ben") == "done"  # it never noticed
        assert noted(client, "Call Ada") == "replayed"
        assert opened(client)["resumed"] is True
        assert noted(client, "Phone Ada") == "held"
    assert notes == ["Call Ada", "Call Ben"]
