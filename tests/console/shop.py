"""A shop with runs in every state, for the tests and the screenshots of the console.

``Shop`` is a runtime whose ledger has them all (``Shop.runs`` names them); ``served`` puts the service before it, and
``Site.browse`` returns a browser that somebody has logged in with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from typing import Any

from starlette.testclient import TestClient

from amends import Absent, Budget, Happened, NoEffect, Retry, Runtime, tool
from amends.errors import Error
from amends.serve import Limits, Service, app

SECRET = "s" * 40
HOSTILE = "<img src=x onerror=alert(1)>"
"""A name that is HTML."""
BIDI = "invoice-\u202egpj.exe"
"""A name that a browser would turn around."""
LOOKALIKE = "p\u0430ypal"
"""A Cyrillic letter among Latin ones."""


class World:
    """What the tools did, and what fails."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}
        self.mails: list[str] = []
        self.wires: list[str] = []
        self.tries: dict[str, int] = {}
        self.is_refund_down = True


def tools_of(world: World) -> list[Any]:
    @tool(key="order", cost=lambda call: call.args["cents"] / 100)
    def charge(order: str, cents: int) -> str:
        """Charge a card."""
        if cents < 0:
            raise NoEffect("no negative amounts")
        world.charges[order] = cents
        if order.startswith("lost"):
            raise TimeoutError("the bank did not answer in time")
        return f"ch_{order}"

    @charge.compensate(retry=Retry(attempts=2, delay=0))
    def refund(order: str) -> None:
        if order.startswith("stuck") and world.is_refund_down:
            raise NoEffect("the bank has no such charge")
        world.charges.pop(order, None)

    @charge.probe(settle=0.1)
    def find_charge(order: str) -> Any:
        return Happened(f"ch_{order}") if order in world.charges else Absent()

    @tool(key="order", retry=Retry(attempts=3, delay=0))
    def reserve(order: str, item: str) -> str:
        """Reserve an item in the stock."""
        world.tries[order] = world.tries.get(order, 0) + 1
        if item == "flaky kettle" and world.tries[order] < 3:
            raise NoEffect("the stock is busy")
        return f"{item} for {order}"

    @reserve.compensate
    def put_back(order: str) -> None:
        if order.startswith("slow"):
            raise NoEffect("the stock is busy")

    @tool(key="order")
    def book(order: str) -> str:
        """Book a courier; nobody can ask afterwards whether it worked."""
        if order.startswith("lost"):
            raise TimeoutError("connection reset by courier.example")
        return f"b_{order}"

    @book.compensate
    def unbook(order: str) -> None:
        return None

    @tool(kind="pivot", needs_approval=True, cost=lambda call: call.args["cents"] / 100)
    def wire(order: str, cents: int, note: str = "") -> str:
        """Wire money; it cannot be taken back."""
        world.wires.append(order)
        return f"w_{order}"

    @tool(kind="pivot")
    def ship(order: str, town: str) -> str:
        """Ship a parcel; it cannot be called back."""
        if town == "Atlantis":
            raise RuntimeError("no courier goes to Atlantis")
        return f"parcel-{order}"

    @tool(kind="retriable", idempotent=True, retry=Retry(attempts=3, delay=0))
    def mail(to: str, text: str = "") -> None:
        """Send a mail; tried until it works."""
        if to.startswith("flaky"):
            raise NoEffect("the mail server is busy")
        world.mails.append(to)

    @tool(kind="read")
    def stock(item: str) -> int:
        """Count the items that are left."""
        return len(item)

    return [charge, reserve, book, wire, ship, mail, stock]


class Shop:
    """A runtime whose ledger has a run in every state."""

    def __init__(self, url: str = "memory:", *, fill: bool = True, **settings: Any) -> None:
        self.world = World()
        budgets = [Budget(500, per="agent"), Budget(60, tool="charge"), Budget(1_000, every="day", per="tenant")]
        given: dict[str, Any] = {"lease": 30.0, "wait": 0.1, "wait_approval": 0.0, "budgets": budgets} | settings
        self.rt = Runtime(url, tools=tools_of(self.world), **given)
        self.left: list[Any] = []
        """Runs that this process has open."""
        if fill:
            self.fill()

    def fill(self) -> None:
        """Make every run."""
        rt = self.rt.scoped(agent="clerk", principal="ana")
        with rt.run("order-1001", input={"order": "1001"}, tags=["eu"]) as run:
            run.answer("stock", {"item": "kettle"})
            run.answer("charge", {"order": "1001", "cents": 4200})
            run.answer("charge", {"order": "1001", "cents": 4200})  # answered from the ledger
            run.answer("reserve", {"order": "1001", "item": "flaky kettle"})
            run.answer("ship", {"order": "1001", "town": "Leiden"})
            run.answer("mail", {"to": "ben@example.com", "text": "Your parcel is on its way."})
            run.output = "shipped"
        self._rolled_back(rt)
        self._waiting(rt)
        self._doubtful(rt)
        self._blocked(rt)
        self._family(rt)
        self._refused(rt)
        self._hostile()
        open_ = rt.open("order-1009", input={"order": "1009"})
        open_.answer("charge", {"order": "1009", "cents": 1900})
        self.left.append(open_)
        let_go = rt.open("order-1010", input=None, client_lease=600.0)
        let_go.answer("charge", {"order": "1010", "cents": 700})
        let_go.release()
        abandoned = rt.open("order-1011")
        abandoned.answer("charge", {"order": "1011", "cents": 300})
        abandoned.release()
        self.rt.abandon("order-1011", by="olga", why="settled by hand")

    def _rolled_back(self, rt: Runtime) -> None:
        with suppress(Error, ValueError), rt.run("order-1002") as run:
            run.answer("charge", {"order": "1002", "cents": 900})
            run.answer("reserve", {"order": "1002", "item": "lamp"})
            raise ValueError("the customer has changed their mind")

    def _waiting(self, rt: Runtime) -> None:
        for number, cents in (("1003", 125_00), ("1004", 99_00)):
            run = rt.open(f"order-{number}")
            run.answer("charge", {"order": number, "cents": 500})
            run.answer("wire", {"order": number, "cents": cents, "note": "to ACME Ltd"})
            self.left.append(run)

    def _doubtful(self, rt: Runtime) -> None:
        run = rt.open("order-1005")
        run.answer("charge", {"order": "1005", "cents": 800})
        run.answer("book", {"order": "lost-1005"})
        self.left.append(run)

    def _blocked(self, rt: Runtime) -> None:
        with suppress(Error, ValueError), rt.run("order-1006") as run:  # its compensation fails
            run.answer("charge", {"order": "stuck-1006", "cents": 2500})
            run.answer("reserve", {"order": "1006", "item": "chair"})
            raise ValueError("out of stock")
        with suppress(Error, ValueError), rt.run("order-1012") as run:  # it ends early after its pivot
            run.answer("ship", {"order": "1012", "town": "Delft"})
            raise ValueError("the agent gave up")
        run = rt.open("order-1013")  # past its pivot, and goes on
        run.answer("ship", {"order": "1013", "town": "Gouda"})
        self.left.append(run)
        with suppress(Error, ValueError), rt.run("order-1014") as run:  # blocked by a doubt
            run.answer("book", {"order": "1014"})
            run.answer("book", {"order": "lost-1014"})
            raise ValueError("the courier is gone")
        with suppress(Error, ValueError), rt.run("order-1015") as run:  # rolling back: a compensation is tried again
            run.answer("reserve", {"order": "slow-1015", "item": "desk"})
            raise ValueError("the customer has changed their mind")
        with suppress(Error), rt.run("order-1016") as run:  # past its pivot, and a mail is tried again
            run.answer("ship", {"order": "1016", "town": "Lisse"})
            run.answer("mail", {"to": "flaky@example.com"})

    def _family(self, rt: Runtime) -> None:
        with rt.run("trip-7") as run:
            for leg in ("out", "back"):
                with run.child(leg) as child:
                    child.answer("reserve", {"order": f"leg-{leg}", "item": "seat"})

    def _refused(self, rt: Runtime) -> None:
        with rt.run("order-1008", on_open_failure="commit") as run:  # its budget refuses the second charge
            run.answer("charge", {"order": "1008", "cents": 5900})
            run.answer("charge", {"order": "1008-b", "cents": 5900})

    def _hostile(self) -> None:
        rt = self.rt.scoped(agent=HOSTILE, principal=LOOKALIKE)
        with rt.run(f"a/{HOSTILE}") as run:
            run.answer("reserve", {"order": HOSTILE, "item": BIDI})
        with rt.run(BIDI) as run:
            run.answer("reserve", {"order": BIDI, "item": "x" * 3_000})
        with rt.run("report.json") as run:
            run.answer("stock", {"item": LOOKALIKE})

    def close(self) -> None:
        """Let go of what is open, and close the ledger."""
        for run in self.left:
            with suppress(Error):
                run.release()
        self.rt.close()


class Site:
    """The service before a shop, and browsers that visit it."""

    def __init__(self, shop: Shop, service: Service, client: TestClient) -> None:
        self.shop, self.service, self.client = shop, service, client

    def visit(self) -> TestClient:
        """Return a browser that nobody has logged in with; it follows no redirect by itself."""
        made = TestClient(self.service, follow_redirects=False, headers={"Accept": "text/html,*/*"})
        made.portal = self.client.portal
        return made

    def browse(self, *scopes: str, name: str = "olga", tenant: str = "") -> TestClient:
        """Return a browser that somebody has logged in with; by default an operator."""
        made = self.visit()
        assert self.service.logins is not None
        link = self.service.logins.new_link("", name=name, scopes=scopes or ("operator",), tenant=tenant)
        answer = made.get(link)
        assert answer.status_code == 303, answer.text
        return made

    def csrf(self, browser: TestClient) -> str:
        """Return the text that forms of this browser carry."""
        return str(browser.get("/login/session").json()["csrf"])

    def send(self, browser: TestClient, place: str, **fields: str) -> Any:
        """Send a form as a page of the console does."""
        return browser.post(place, data={"csrf": self.csrf(browser), **fields})


@contextmanager
def served(
    shop: Shop | None = None, *, limits: Limits | None = None, url: str = "memory:", fill: bool = True, **given: Any
) -> Iterator[Site]:
    """Serve a shop in this process."""
    shop = shop or Shop(url, fill=fill)
    options: dict[str, Any] = {"secrets": SECRET, "worker": False} | given
    service = app(shop.rt, limits=limits or Limits(requests_per_s=10_000), **options)
    try:
        with TestClient(service) as client:
            yield Site(shop, service, client)
    finally:
        shop.close()


def tags(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return every tag of a page with its attributes, in order: what a browser makes of it, and not what it looks like."""
    found: list[tuple[str, dict[str, str]]] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, {name: value or "" for name, value in attrs}))

    Parser().feed(text)
    return found


def words(text: str) -> str:
    """Return the text of a page as somebody reads it, with single spaces."""
    parts: list[str] = []

    class Parser(HTMLParser):
        def handle_data(self, data: str) -> None:
            parts.append(data)

    Parser().feed(text)
    return " ".join(" ".join(parts).split())
