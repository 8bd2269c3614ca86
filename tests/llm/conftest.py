from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from amends import Runtime
from amends.llm import record
from tests.llm.server import Server, serving

SAID: list[Any] = [{"role": "user", "content": "How many birds?"}]


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(shared: Server) -> Server:
    shared.asked.clear()
    return shared


@pytest.fixture
def rt() -> Iterator[Runtime]:
    with Runtime("memory:") as rt:
        yield rt


@pytest.fixture
def openai(server: Server) -> Iterator[OpenAI]:
    with OpenAI(**{**server.openai, "api_key": "sk-test-canary"}) as client:
        yield client


@pytest.fixture
def anthropic(server: Server) -> Iterator[Anthropic]:
    with Anthropic(**{**server.anthropic, "api_key": "sk-test-canary"}) as client:
        yield client


Ask = Callable[..., Any]
GPT, CLAUDE = "gpt-4o-mini", "claude-sonnet-5"


def chat(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": GPT, "messages": SAID, **more})


def responses(client: OpenAI, **more: Any) -> Any:
    return client.responses.create(**{"model": GPT, "input": "How many birds?", **more})


def messages(client: Anthropic, **more: Any) -> Any:
    return client.messages.create(**{"model": CLAUDE, "max_tokens": 300, "messages": SAID, **more})


APIS = {"chat.completions": chat, "responses": responses, "messages": messages}


@pytest.fixture(params=APIS, ids=lambda api: api.replace(".", "-"))
def api(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def ask(api: str, openai: OpenAI, anthropic: Anthropic) -> Ask:
    """Asks a recorded client, in one of the three wire formats."""
    client: Any = record(anthropic if api == "messages" else openai)

    def asking(*, outside: Any = None, options: dict[str, Any] | None = None, **more: Any) -> Any:
        used = client if outside is None else record(client, outside=outside)
        used = used if options is None else used.with_options(**options)
        return APIS[api](used, **more)  # type: ignore[operator]

    return asking
