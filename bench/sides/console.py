"""Pages of the console, rendered in the process that has the ledger: what a browser waits for, without its network.

Ten requests for approval and ten doubts are added to the ledger first, so that each page has something to show.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import amends
from amends import Runtime, tool
from amends.serve import Limits, Service, Who, app
from bench.sides.ours import pay, url_of
from bench.sides.timing import Figures, asked, serve, timed_async

PAGES: Final = ("/runs", "/runs/{id}", "/approvals", "/doubts", "/costs", "/tools", "/workers", "/audit")
"""What is measured, as far as the console has it."""
WAITING: Final = 10
LOOKER: Final = Who("looker", frozenset({"operator"}), token="bench")


@tool(needs_approval=True)
def wire(order: str, cents: int) -> str:
    """Wait for a person."""
    return order


@wire.compensate
def unwire(order: str) -> None:
    """Never happens."""


@tool
def book(order: str) -> str:
    """Leave a doubt."""
    raise TimeoutError(order)


@book.compensate
def unbook(order: str) -> None:
    """Never happens."""


class Console:
    """The pages, on one ledger."""

    def __init__(self, url: str) -> None:
        self.rt = Runtime(url, tools=[pay, wire, book], wait_approval=0.0, lease=3_600.0)
        self.service: Service = app(
            self.rt, access=lambda _: LOOKER, secrets="b" * 40, worker=False, limits=Limits(requests_per_s=1e9)
        )
        self.run = self._filled()

    def works(self) -> dict[str, Any]:
        """Return the works by name: the pages that there are."""
        known = {page.path for page in self.service.pages}
        return {name: partial(self.page, name) for name in PAGES if name in known}

    async def page(self, name: str, n: int, limit_s: float) -> Figures:
        """Ask for one page again and again."""
        place = name.replace("{id}", quote(self.run, safe=""))

        async def one(_: int) -> None:
            status, size = await self._get(place)
            assert (status, size > 1_000) == (200, True), f"{place}: {status}, {size} bytes"

        return await timed_async(one, n, limit_s)

    def _filled(self) -> str:
        """Add what waits for a person, and return the newest run that has ended."""
        newest = next(one.id for one in self.rt.runs("state:committed"))
        for number in range(WAITING):
            run = self.rt.open(f"waits-{number}")
            run.answer("wire", {"order": str(number), "cents": 100})
            run.answer("book", {"order": str(number)})
            run.release()
        return newest

    async def _get(self, place: str) -> tuple[int, int]:
        """Ask the application as a server would, and return the status and the size of the answer."""
        found = [0, 0]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                found[0] = message["status"]
            else:
                found[1] += len(message.get("body", b""))

        scope = {
            "type": "http", "method": "GET", "path": place, "raw_path": place.encode(), "query_string": b"",
            "headers": [(b"accept", b"text/html")], "scheme": "http", "server": ("bench", 80), "root_path": "",
            "http_version": "1.1", "client": ("bench", 1),
        }  # fmt: skip
        await self.service(scope, receive, send)
        return found[0], found[1]


def main() -> None:
    """Serve the pages on one store."""
    said = asked()
    logging.getLogger("amends").setLevel(logging.CRITICAL)  # doubts are what is wanted here
    serve(Console(url_of(said.store, said.place)).works(), version=amends.__version__)


if __name__ == "__main__":
    main()
