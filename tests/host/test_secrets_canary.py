"""Canaries: secrets planted through every path, and looked for in every table, log, error, report and output.

Each path has a canary of its own, so that the one that sings names the path.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from amends import Absent, AsyncRuntime, Happened, NoEffect, Retry, Runtime, Unknown, tool
from amends.encoding.redaction import Redactor
from amends.encoding.secret import RedactionRules
from amends.errors import BadArguments, Error, InDoubt, KeyConflict, RolledBack, RunConflict
from amends.stores.memory import MemoryStore
from tests.cli.command import run as command
from tests.servers.databases import connect, is_postgres
from tests.stores.emptied import TABLES_OF_MYSQL, TABLES_OF_POSTGRES
from tests.world import die, until

PATHS = (
    "argument", "nested", "place", "pattern", "number", "bytes", "quoted", "lines", "error", "certain", "doubt",
    "compensation", "guard", "probe", "unknown", "result", "field", "input", "child", "output", "late", "late_error",
    "bad", "bad_nested", "conflict", "conflict_key", "run_conflict", "again", "lock", "block", "agent", "hand",
    "hand_error", "once", "plan", "plan_error", "person", "model", "commit", "rollback", "held", "asked",
)  # fmt: skip


def canary(path: str) -> str:
    assert path in PATHS, f"there is no path {path}"
    return f"cnry_{path}_{PATHS.index(path):02d}_7f3a9c"


NUMBER = 918_273_645_546
BYTES = b"\x00cnry_bytes_raw\xff"
QUOTED = "cnry_quoted_'\"\\\n\u00e9_7f3a9c"
LINES = "-----BEGIN-----\ncnry_lines_MIIEvQIBADANBg_7f3a9c\n-----END-----"
SONGS = {
    **{path: (canary(path),) for path in PATHS},
    "number": (str(NUMBER),),
    "bytes": ("cnry_bytes_raw", "AGNucnlfYnl0ZXNfcmF3/w=="),
    "quoted": ("cnry_quoted_", "cnry_quoted_%27"),
    "lines": ("cnry_lines_MIIEvQIBADANBg",),
}
PATTERNS = ["password", "*_token", r"re:cnry_(?:pattern|once)_\d\d_[0-9a-f]+"]


@dataclass
class Heard:
    """What was said, by where."""

    texts: list[tuple[str, str]] = field(default_factory=list)

    def say(self, where: str, *texts: object) -> None:
        self.texts += [(where, text if isinstance(text, str) else repr(text)) for text in texts]

    def error(self, where: str, error: BaseException) -> None:
        """An error of ours, in all its forms; a tool's own exception is its own business."""
        if isinstance(error, Error):
            facts = json.dumps(error.to_dict(), default=str)
            self.say(where, str(error), repr(error), error.hint, error.for_model(), facts)
            self.say(f"{where}, its traceback", "".join(traceback.format_exception(error)))

    def sings(self) -> list[str]:
        """Every canary that was heard, with where."""
        return [
            f"{path} in {where}: …{text[max(0, at - 60) : at + 60]}…"
            for where, text in self.texts
            for path, songs in SONGS.items()
            for song in songs
            if (at := text.find(song)) >= 0
        ]


class Customer(BaseModel):
    name: str
    iban: str = ""
    password: str = ""


@dataclass
class Shop:
    """The tools, and how each of them goes wrong."""

    fails: dict[str, Any] = field(default_factory=dict)
    probes_say: Any = field(default_factory=Absent)
    gate: threading.Event = field(default_factory=threading.Event)
    seen: list[Any] = field(default_factory=list)

    def tools(self) -> list[Any]:
        @tool(redact=("card", "customer.iban"), locks=lambda call: [f"card {call.args['card']}"], retry=1)
        def charge(card: Any, customer: Any = None, note: str = "", order: str = "1") -> dict[str, Any]:
            self._go("charge")
            self.seen.append(card)
            return {"id": "ch", "said": f"charged {card}", "list": [card, (card,)], "api_token": canary("field")}

        @charge.compensate(retry=1)
        def refund(result: dict[str, Any]) -> None:
            self._go("refund")

        @charge.guard
        def unchanged(result: dict[str, Any]) -> bool:
            self._go("guard")
            return True

        @tool(kind="pivot", key=lambda call: call.args["card"], redact="card", retry=1)
        def wire(card: str, amount: int = 1) -> str | dict[str, str]:
            self._go("wire")
            return f"wired from {card}"

        @wire.probe
        def find() -> Any:
            self._go("find")
            return self.probes_say

        @tool(kind="pivot", redact="card", timeout=0.05)
        def slow(card: str) -> str:
            self.gate.wait(60)
            self._go("slow")
            return f"slowly {card}"

        @tool(kind="read", redact="card")
        def look(card: int, login: Customer | None = None) -> str:
            return str(card)

        return [charge, wire, slow, look]

    def _go(self, name: str) -> None:
        turn = self.fails.get(name)
        if isinstance(turn, BaseException):
            raise turn
        if turn is not None:
            turn()


Dump = Callable[[], str]


@dataclass
class Place:
    """A ledger, and a way to read all of it that knows nothing of amends."""

    make: Callable[..., Runtime]
    dump: Dump
    url: str
    folder: Path


@pytest.fixture(params=["memory", "sqlite", "postgresql", pytest.param("mysql", marks=pytest.mark.rest)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("AMENDS_SECRET_KEY", "k" * 43)
    made: list[Runtime] = []
    store, url = None, f"sqlite:///{tmp_path}/l.db"
    if request.param == "memory":
        store = MemoryStore()
    elif request.param != "sqlite":
        url = request.getfixturevalue("postgres_url" if request.param == "postgresql" else "mysql_url")

    def make(**options: Any) -> Runtime:
        given: dict[str, Any] = {"wait": 0.15, "redact": PATTERNS} | options
        made.append(Runtime(None if store is not None else url, store=store, **given))
        return made[-1]

    def dump() -> str:
        if store is not None:
            return repr(store.__dict__)
        return _file(tmp_path / "l.db") if request.param == "sqlite" else _server(url)

    yield Place(make, dump, "" if store is not None else url, tmp_path)
    for rt in made:
        rt.close()


def _file(path: Path) -> str:
    raw = b"".join(one.read_bytes() for one in path.parent.glob(f"{path.name}*") if not one.name.endswith(".key"))
    connection = sqlite3.connect(path)
    try:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        rows = [repr(connection.execute(f"select * from {name}").fetchall()) for name in tables]
    finally:
        connection.close()
    return raw.decode("latin-1") + "".join(rows)


def _server(url: str) -> str:
    connection = connect(url)
    try:
        cursor = connection.cursor()
        cursor.execute(TABLES_OF_POSTGRES if is_postgres(url) else TABLES_OF_MYSQL)
        found = []
        for (name,) in cursor.fetchall():
            cursor.execute(f"select * from {name}")
            found.append(repr(cursor.fetchall()))
    finally:
        connection.close()
    assert len(found) >= 6
    return "".join(found)


# ---- planting -----------------------------------------------------------------------------


def trying(heard: Heard, where: str, act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:
        heard.error(where, error)
        return error


def arguments(rt: Runtime, heard: Heard, shop: Shop, charge: Any) -> None:
    for number, card in enumerate([canary("argument"), NUMBER, BYTES, QUOTED, LINES, {"deep": [canary("argument")]}]):
        customer = {"name": "Anna", "iban": canary("place"), "more": [{"Password": canary("nested")}]}
        with rt.run(f"arguments-{number}") as run:
            done = charge(card=card, customer=customer, note=f"see {canary('pattern')}", order=str(number))
            assert done["list"][0] == card, "the first caller gets all of it"
            replayed = charge(card=card, customer=customer, note=f"see {canary('pattern')}", order=str(number))
            if rt.settings["encrypt"].value:
                assert replayed == done, "nothing is lost"
            else:
                heard.say("a replay", replayed)
            charge.with_options(again=f"once more with {canary('again')}")(card=canary("again"))
            heard.say("a report", str(run.report()), run.report().to_json(), run.report()._repr_html_())
        assert card in shop.seen[-2:]


def results(rt: Runtime, heard: Heard, charge: Any) -> None:
    with rt.run("results") as run:
        charge(card=canary("result"))
        answer = run.answer("charge", {"card": canary("result")})
        heard.say("an answer", answer.text, repr(answer.call))
        answer = run.answer("charge", {"card": canary("model"), "order": "2"})
        heard.say("an answer", answer.text, repr(answer.call))
    heard.say("recorded results", *(call.result for call in rt.calls("run:results")))


def failures(rt: Runtime, heard: Heard, shop: Shop, charge: Any, wire: Any) -> None:
    for path, error in (
        ("error", ValueError(f"no card {canary('error')!r}")),
        ("certain", NoEffect(canary("certain"))),
        ("rollback", LookupError(canary("rollback"))),
    ):
        shop.fails = {"charge": error}
        with rt.run(path) as run:
            heard.say("an answer", run.answer("charge", {"card": canary(path)}).text)
        with suppress(type(error)), rt.run(f"{path}-block"):
            charge(card=canary(path))
    for fails, path in (("refund", "compensation"), ("guard", "guard")):
        shop.fails = {fails: ValueError(f"not this: {canary(path)}")}
        trying(heard, path, partial(_raising, rt, path, charge))
    shop.fails = {}
    trying(heard, "a block's error", lambda: _raising(rt, "block", charge))
    with suppress(RolledBack), rt.run("asked") as run:
        charge(card=canary("rollback"))
        run.rollback("asked")
    for path, says in (("unknown", Unknown(f"who knows {canary('unknown')}")), ("probe", None)):
        shop.probes_say = says
        shop.fails = {"wire": TimeoutError(f"lost {canary(path)}")}
        shop.fails |= {"find": ValueError(f"cannot ask for {canary(path)}")} if says is None else {}
        run = rt.open(f"doubt-{path}")
        doubt = trying(heard, "a doubt", partial(run.call, wire, card=canary(path)))
        assert isinstance(doubt, InDoubt)
        heard.say("a probe", rt.probe(doubt.call.id))
        trying(heard, "a commit over a doubt", run.commit)
    shop.fails, shop.probes_say = {}, Absent()


def _raising(rt: Runtime, path: str, charge: Any) -> None:
    with rt.run(f"{path}-raised"):
        charge(card=canary(path))
        raise RuntimeError(f"the block knows {canary(path)}")


def refusals(rt: Runtime, heard: Heard, charge: Any, wire: Any, look: Any) -> None:
    with rt.run("refusals") as run:
        login = {"name": "x", "password": [canary("bad_nested")]}
        for args in (
            {"card": canary("bad"), "login": login},
            {"card": 1, "login": canary("bad") if False else json.dumps(login)},
            {"card": [canary("bad")], "login": [login]},
        ):
            no = trying(heard, "bad arguments", partial(run.call, look, **args))
            assert isinstance(no, BadArguments)
            heard.say("an answer", run.answer("look", args).text, run.answer("look", json.dumps(args)).text)
            trying(heard, "a plan's bad arguments", partial(run.execute, [{"tool": "look", "args": args}]))
            heard.say("a check", *(str(no) for no in rt.check([{"tool": "look", "args": args}])))
    with rt.run("conflicts") as run:
        wire(card=canary("conflict"), amount=1)
        no = trying(heard, "a conflict", lambda: wire(card=canary("conflict"), amount=2))
        assert isinstance(no, KeyConflict)
        heard.say("an answer", run.answer("wire", {"card": canary("conflict"), "amount": 3}).text)
    keyed = {"order": "7", "card": canary("conflict_key")}
    with rt.run("keyed") as run:
        attempt = run.begin("charge", keyed, key="order")
        attempt.succeed({"said": canary("conflict_key")})
        other = {**keyed, "card": canary("conflict")}
        no = trying(heard, "a conflict by hand", lambda: run.begin("charge", other, key="order"))
        assert isinstance(no, KeyConflict)


def runs(rt: Runtime, heard: Heard, charge: Any) -> None:
    given = {"name": "x", "password": canary("input")}
    with rt.run("inputs", input=given) as run:
        assert run.input == given
        charge(card=canary("output"))
        with run.child(input={"api_token": canary("child")}) as inner:
            assert inner.input == {"api_token": canary("child")}
        run.output = {"said": f"it was {canary('output')}", "api_token": canary("output")}
    other = {**given, "password": canary("run_conflict")}
    no = trying(heard, "another input", lambda: rt.open("inputs", input=other))
    assert isinstance(no, RunConflict)
    with rt.run("hand") as run:
        with run.begin("charge", {"card": canary("hand")}) as attempt:
            heard.say("an attempt", repr(attempt.call))
            attempt.succeed({"got": canary("hand")})
        with run.begin("charge", {"card": canary("hand_error"), "order": "2"}) as attempt:
            attempt.fail(ValueError(canary("hand_error")))
        run.once("k", lambda what: what, f"with {canary('once')}")
    plan = [
        {"tool": "charge", "args": {"card": canary("plan")}},
        {"tool": "charge", "args": {"card": canary("plan_error")}},
    ]
    with rt.run("plan") as run:
        heard.say("a plan's answers", *(answer.text for answer in run.execute(plan)))


def locks(rt: Runtime, heard: Heard, charge: Any) -> None:
    run = rt.open("locks")
    run.call(charge, card=canary("lock"))
    heard.say("locks", *(lock.name for lock in rt.locks()))
    other = rt.open("locked-out", wait=0.0)
    trying(heard, "locked out", lambda: other.call(charge, card=canary("lock")))
    heard.say("an answer", other.answer("charge", {"card": canary("lock")}).text)
    run.commit()
    other.commit()


def late(rt: Runtime, heard: Heard, shop: Shop, slow: Any) -> None:
    for path, error in (("late", None), ("late_error", ValueError(f"late: {canary('late_error')}"))):
        shop.gate.clear()
        shop.fails = {} if error is None else {"slow": error}
        run = rt.open(f"slow-{path}")
        doubt = trying(heard, "a timeout", partial(run.call, slow, card=canary(path)))
        assert isinstance(doubt, InDoubt)
        shop.gate.set()
        until(partial(has_evidence, rt, doubt.call.id), seconds=60)
        trying(heard, "a commit over it", run.commit)
    shop.fails = {}


def has_evidence(rt: Runtime, call_id: str) -> bool:
    return ("evidence", call_id) in [(event.what, event.call_id) for event in rt.events()]


def people(rt: Runtime, heard: Heard, shop: Shop, wire: Any) -> None:
    shop.probes_say, shop.fails = Unknown(), {"wire": TimeoutError("lost")}
    run = rt.open("people")
    doubt = trying(heard, "a doubt", lambda: run.call(wire, card=canary("person")))
    assert isinstance(doubt, InDoubt)
    trying(heard, "a commit over a doubt", run.commit)
    heard.say("doubts", *(json.dumps(one.to_dict()) for one in rt.doubts()), *map(repr, rt.doubts()))
    heard.say("a preview", rt.preview(doubt.call.id))
    heard.say("a plan to go back", rt.plan_rollback("people"))
    wrong = partial(rt.resolve, doubt.call.id, Happened([canary("person")]), by="anna", why="mistyped")
    trying(heard, "a result of another type", wrong)
    report = rt.resolve(doubt.call.id, Happened({"api_token": canary("person")}), by="anna", why="looked")
    heard.say("a resolved report", report.to_json())
    shop.probes_say, shop.fails = Absent(), {}


def recovery(place: Place, heard: Heard, shop: Shop, tools: list[Any]) -> None:
    """What another process finds, and says, that never had the values."""
    charge = tools[0]

    def agent(run: Any) -> None:
        run.call(charge, card=canary("held"))
        run.call(charge, card=canary("agent"), order="2")
        raise ValueError(f"the agent knows {canary('agent')}")

    rt, other = (place.make(tools=tools, agents={"agent": agent}) for _ in range(2))
    for name, path, options in (("lost", "commit", {}), ("resumed", "held", {"recover": "resume", "agent": "agent"})):
        run = rt.open(name, **options)  # type: ignore[arg-type]
        run.call(charge, card=canary(path))
        die(run)
    shop.fails = {"refund": ValueError("it cannot be refunded")}
    reports = other.recover()
    assert {"lost", "resumed"} <= {report.run_id for report in reports}
    heard.say("recovered reports", *(report.to_json() + str(report) for report in reports))
    fenced = rt.open("fenced")

    def taken_over() -> None:
        die(fenced)
        other.recover()
        raise ValueError(f"too late for {canary('doubt')}")

    shop.fails = {"charge": taken_over}
    trying(heard, "a fenced call", lambda: fenced.call(charge, card=canary("doubt")))
    assert "evidence" in [event.what for event in rt.events("fenced")]
    shop.fails = {}
    resumed = rt.open("asked-again", recover="wait")
    resumed.call(charge, card=canary("asked"), order="8")
    die(resumed)
    with suppress(Error), other.run("asked-again") as run:
        answer = run.answer("charge", {"card": canary("asked"), "order": "9"})
        assert answer.status == "held", "a suspected duplicate, both shown"
        heard.say("an answer", answer.text)
        assert answer.error is not None
        heard.error("a suspected duplicate", answer.error)


def listen(rt: Runtime, heard: Heard, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    for info in rt.runs():
        report = rt.report(info.id)
        heard.say(f"report {info.id}", report.to_json(), str(report), report._repr_html_(), repr(report))
    heard.say("calls", *map(repr, rt.calls()))
    heard.say("events", *map(repr, rt.events()))
    heard.say("the log", caplog.text)
    heard.say("records of the log", *(f"{one.getMessage()} {one.args!r} {one.exc_text}" for one in caplog.records))
    heard.say("the ledger", place.dump())
    if not place.url:
        return
    for verb in (
        ("runs", "list"),
        ("runs", "show", "inputs"),
        ("runs", "show", "people"),
        ("doubts", "list"),
        ("config", "show"),
    ):
        for more in ((), ("--json",)):
            done = command(*verb, *more, cwd=place.folder, AMENDS_URL=place.url)
            assert done.returncode == 0, done.stderr
            heard.say(f"amends {' '.join(verb)}", done.stdout, done.stderr)


def sung(place: Place, caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    """Plant everything, listen everywhere."""
    caplog.set_level(logging.DEBUG)
    shop, heard = Shop(), Heard()
    tools = shop.tools()
    charge, wire, slow, look = tools
    rt = place.make(tools=tools, **options)
    arguments(rt, heard, shop, charge)
    results(rt, heard, charge)
    failures(rt, heard, shop, charge, wire)
    refusals(rt, heard, charge, wire, look)
    runs(rt, heard, charge)
    locks(rt, heard, charge)
    late(rt, heard, shop, slow)
    people(rt, heard, shop, wire)
    if not options:
        recovery(place, heard, shop, tools)
    listen(rt, heard, place, caplog)
    assert len(heard.texts) > 200, "something was said"
    return heard.sings()


def test_no_canary_sings(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    assert sung(place, caplog) == []


def test_no_canary_sings_encrypted(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    assert sung(replace(place, url=""), caplog, encrypt="A" * 43) == []


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_every_canary_would_sing(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing hidden each is heard: a path on which nothing was planted would prove nothing."""
    monkeypatch.setattr(Redactor, "hide", lambda self, value, about, **_: (value, {}))
    monkeypatch.setattr(Redactor, "scrub", lambda self, text, known=None: text)
    monkeypatch.setattr(Redactor, "kept", lambda self, stored, known, about: stored)
    monkeypatch.setattr(Redactor, "name", lambda self, text, known, about: "".join(filter(str.isprintable, text))[:200])
    monkeypatch.setattr(RedactionRules, "touches", lambda self, path, value: False)
    monkeypatch.setattr("amends.tools.signature._WHOLES", ())
    heard = {one.split(" in ")[0] for one in sung(place, caplog)}
    assert heard == set(PATHS)


def test_no_canary_sings_on_an_event_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    heard = Heard()

    @tool(redact="card", retry=Retry(attempts=2, delay=0.001))
    async def charge(card: str, fails: bool = False) -> str:
        if fails:
            raise ValueError(f"no {card}")
        return f"charged {card}"

    @charge.compensate(retry=1)
    async def refund() -> None:
        raise ValueError(f"not {canary('compensation')}")

    async def main() -> None:
        async with AsyncRuntime(f"sqlite:///{tmp_path}/l.db", tools=[charge], redact=PATTERNS) as rt:
            async with rt.run("r", input={"password": canary("input")}) as run:
                assert await charge(canary("argument")) == f"charged {canary('argument')}"
                for args in (
                    {"card": canary("model")},
                    {"card": canary("error"), "fails": True},
                    {"card": [canary("bad")]},
                ):
                    heard.say("an answer", (await run.answer("charge", args)).text)
                run.output = {"password": canary("output")}
            try:
                async with rt.run("s"):
                    await charge(canary("compensation"))
                    raise RuntimeError(f"the block knows {canary('compensation')}")
            except Exception as error:
                heard.error("a blocked run", error)
            for id in ("r", "s"):
                heard.say("a report", (await rt.report(id)).to_json())

    asyncio.run(main())
    heard.say("the ledger", _file(tmp_path / "l.db"))
    heard.say("the log", caplog.text)
    assert heard.sings() == []
