"""A desk for the tests of approvals and doubts: any tools behind the console, and requests to decide about."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.testclient import TestClient

from amends import Approval, Runtime
from amends.errors import Error
from tests.console.shop import Site, served


class Desk:
    """A runtime with tools of the test's own; what it opens is let go at its end."""

    def __init__(self, *tools: Any, **settings: Any) -> None:
        given: dict[str, Any] = {"wait": 0.05, "wait_approval": 0.0, "lease": 30.0} | settings
        url = () if "store" in given else (given.pop("url", "memory:"),)
        self.rt = Runtime(*url, tools=list(tools), **given)
        self.runs: dict[str, Any] = {}

    def open(self, id: str, *, agent: str = "shopper", principal: str = "bot") -> Any:
        """Return the run of this id, which stays open."""
        if id not in self.runs:
            self.runs[id] = self.rt.scoped(agent=agent, principal=principal).open(id)
        return self.runs[id]

    def ask(self, tool: str, args: dict[str, Any], *, run: str = "r", agent: str = "shopper") -> Approval:
        """Ask for a call that needs approval, as a model does; return the request."""
        answer = self.open(run, agent=agent).answer(tool, args)
        assert answer.waits, answer
        found: Approval = answer.error.approval
        return found

    def close(self) -> None:
        for run in self.runs.values():
            with suppress(Error):
                run.release()
        self.rt.close()


@contextmanager
def at_desk(*tools: Any, serve: dict[str, Any] | None = None, **settings: Any) -> Iterator[tuple[Desk, Site]]:
    """Serve a desk."""
    desk = Desk(*tools, **settings)
    with served(desk, **(serve or {})) as site:  # type: ignore[arg-type]  # it has what is needed of a shop
        yield desk, site


def flashed(browser: TestClient, answer: Any) -> str:
    """Follow the redirect after an act; return the page that follows."""
    assert answer.status_code == 303, answer.text
    return browser.get(answer.headers["location"]).text


def fields(text: str, action: str) -> dict[str, str]:
    """Return what the form with this action sends if nobody changes anything."""
    found = re.search(rf'<form[^>]*action="[^"]*{re.escape(action)}".*?</form>', text, re.DOTALL)
    assert found is not None, f"there is no form for {action}"
    values = {
        name: html.unescape(value)
        for name, value in re.findall(r'<input[^>]* name="([^"]+)"[^>]* value="([^"]*)"', found[0])
        if name != "reason"
    }
    for name, value in re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>\n?(.*?)</textarea>', found[0], re.DOTALL):
        values[name] = html.unescape(value)
    for name, options in re.findall(r'<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>', found[0], re.DOTALL):
        chosen = re.search(r'value="([^"]*)" selected', options)
        values[name] = chosen[1] if chosen else ""
    return values
