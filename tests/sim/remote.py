"""Flows whose calls are performed outside the owner's process, and runs that belong to a client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from amends import Retry, tool
from amends.engine import ending, recovery, work
from amends.engine.doubts import settle_doubt
from amends.engine.keys import provider_key
from amends.errors import Busy, Error, LeaseLost
from amends.host import runs
from amends.ledger.operations import ListWanted, ReadCall
from amends.ledger.world import Ended, Sleep
from amends.model import Absent, Happened, NoEffect, WorkLost
from amends.people import doubts
from amends.testing.simulation import NOBODY, Crash, Inside, SimulatedRun
from amends.testing.world import result_of
from tests.sim.scenarios import SETTLE_S, Fails, Here, Scenario, Variant, do, make, traits

WORK_S = 400.0
"""Longer than a lease of an owner and a settle delay together: who forgets it, believes too early that nothing happened."""
CLIENT_S = 150.0
SOON_S = 0.001
"""So long before the end of its lease a performer acts at the latest."""

VARIANTS = (
    Variant(),
    Variant(probe=True),
    Variant(twin="absent_ok"),
    Variant(probe=True, twin="wins", comp_idempotent=True),
    Variant(repeat="idempotent", twin="absent_ok", comp_idempotent=True),
    Variant(probe=True, repeat="idempotent", comp_idempotent=True),
)
"""How a destination behaves otherwise matters little to who performs."""


# ---- Attempts by hand: claims of the service


async def claimed(run: SimulatedRun, a_tool: Any, how: str, *, stuck: bool = False, **args: Any) -> None:
    """Hand a call out, and settle it as its performer reports: in time, or not at all.

    ``stuck``: the owner's heartbeat is, and its attempt is renewed again and again.
    """
    session, world = run.session, Here.world
    ask = runs.hand_ask(run.inside.host, session, a_tool.name, args, key=None, kind=None, cost=None, lease=WORK_S)
    done = await ending.begin_by_hand(session, ask)
    if done.replayed:
        world.told(session.uid, a_tool.name, str(done.value))
        return
    lease, row = await work.grant(WORK_S), done.row
    key = provider_key(row)
    world.hand_out(row, key, "execute", until=lease.until - SOON_S)
    handed[row.id] = (row.attempt, session.lease.epoch, result_of(key))
    if stuck:
        run.inside.process.leases.pop(session.root, None)
    with suppress(LeaseLost):
        for _ in range(6 if stuck else 2):
            await Sleep(WORK_S * 0.45)
            lease.until = await work.renewal(session, row, lease)
            world.renewed(row.id, until=lease.until - SOON_S)
    if how == "silent":
        await Sleep(max(0.0, lease.over_at - run.inside.sim.clock.mono))
        await work.lapse(session, ask, row, lease)
        return
    await Sleep(WORK_S * 0.5)
    await ReadCall(row.id)  # a place to die or pause at, with the performer at work
    if world.performed(row.id):
        settled = await work.end(session, ask, row, Ended(result_of(key)))
        if settled.state == "succeeded":
            world.told(session.uid, a_tool.name, result_of(key))


handed: dict[str, tuple[int, int, str]] = {}
"""By call: attempt, epoch and answer of the newest piece of work that was handed out."""


def claims(v: Variant, how: str, ends: str) -> Scenario:
    a, b = make("a", variant=v, key="n"), make("b", variant=v, key="n")

    async def program(inside: Inside) -> None:
        handed.clear()
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await claimed(run, b, how, n=1)
            await do(run, a, n=2)
            if ends == "raises":
                raise Fails("on purpose")

    async def reports(inside: Inside) -> None:
        """Another server, to which performers report late, and again."""
        for _ in range(8):
            await Sleep(WORK_S * 0.4)
            for call_id, (attempt, epoch, answer) in list(handed.items()):
                if how != "reported late" or not Here.world.stands(call_id):
                    continue
                await doubts.report_late(
                    inside.host, NOBODY, call_id, Happened(answer), attempt=attempt, epoch=epoch, by="worker"
                )
                Here.world.reported[call_id, "execute", attempt] = True

    rest = {name: traits(v) for name in "ab"}
    return Scenario(f"W1 claimed, {how}, {ends}", program, [a, b], rest, second=reports)


def stuck_claims(v: Variant) -> Scenario:
    """The owner's heartbeat is stuck: others take the run over, and it must not keep its performer at work."""
    a, b = make("a", variant=v, key="n"), make("b", variant=v, key="n")

    async def program(inside: Inside) -> None:
        handed.clear()
        with suppress(Error):
            async with inside.run("r") as run:
                await do(run, a, n=1)
                await claimed(run, b, "silent", stuck=True, n=1)

    async def worker(inside: Inside) -> None:
        for _ in range(40):
            await Sleep(20.0)
            await inside.recover()

    rest = {name: traits(v) for name in "ab"}
    return Scenario("W2 claimed by an owner that is stuck", program, [a, b], rest, second=worker)


def twice_taken_over(v: Variant) -> Scenario:
    """The owner dies with a performer at work, and so does whoever takes the run over, each on a host of its own."""
    a, b = make("a", variant=v, key="n"), make("b", variant=v, key="n")

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            ask = runs.hand_ask(inside.host, run.session, "b", {"n": 1}, key=None, kind=None, cost=None, lease=WORK_S)
            row = (await ending.begin_by_hand(run.session, ask)).row
            key, lease = provider_key(row), await work.grant(WORK_S)
            Here.world.hand_out(row, key, "execute", until=lease.until - SOON_S)
            raise Crash

    async def heir(inside: Inside) -> None:
        for _ in range(10):
            await Sleep(15.0)
            for one in await recovery.find_abandoned(frozenset(inside.host.specs), tenant=None, limit=9):
                owner, new_id = inside.process.owner, inside.sim.new_id
                if await recovery.claim(one, owner=owner, lease_s=inside.sim.lease_s, new_id=new_id) is not None:
                    raise Crash

    rest = {name: traits(v) for name in "ab"}
    return Scenario("W5 taken over twice", program, [a, b], rest, second=heir)


# ---- Tools that another process performs whenever they are called


def remote_tool(name: str, v: Variant, undone: Callable[[], Coroutine[Any, Any, Any]] | None = None) -> Any:
    """A tool whose body and compensation hand their work out, and wait for the answer; ``undone``: how the latter does."""

    async def performed() -> str:
        world = Here.world
        answer = world.hand_out_here(world.sim.clock.mono + WORK_S - SOON_S)
        assert world.sim.current is not None, "only a body hands out"
        _, op = world.sim.current
        await ReadCall(op.call.id)  # a place to die or pause at, with the performer at work
        await Sleep(WORK_S * 0.5)
        world.performed(op.call.id)
        return answer

    def body(n: int = 0) -> Any:
        return performed()

    def undo() -> Any:
        return performed() if undone is None else undone()

    def ask() -> Any:
        return Here.world.probe()

    def ask_undo() -> Any:
        return Here.world.probe_undo()

    body.is_flow = undo.is_flow = True  # type: ignore[attr-defined]
    body.__name__, undo.__name__, ask.__name__ = name, f"undo_{name}", f"probe_{name}"
    ask_undo.__name__ = f"probe_undo_{name}"
    repeats: dict[str, bool | str] = {"": False, "idempotent": True, "window": "24h"}
    probes: dict[str, Any] = {"probe": ask_undo} if v.probe and not v.comp_idempotent else {}
    made = tool(name=name, idempotent=repeats[v.repeat], remote=WORK_S)(body)
    made.compensate(
        idempotent=v.comp_idempotent,
        absent_ok=v.twin == "absent_ok",
        wins=v.twin == "wins",
        retry=Retry(attempts=3, delay=0.1, jitter=0.0),
        **probes,
    )(undo)
    if v.probe:
        made.probe(settle=SETTLE_S)(ask)
    return made


def served(v: Variant, ends: str) -> Scenario:
    a, b = make("a", variant=v, key="n"), remote_tool("b", v)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)
            if ends == "raises":
                raise Fails("on purpose")

    return Scenario(f"W3 performed elsewhere, {ends}", program, [a, b], {name: traits(v) for name in "ab"})


# ---- Compensations that are reported while the record says that their owner waits for them


REPORTED = ("to another server", "as its lease ends", "as not done")
REFUSALS = 2
"""So many attempts are reported as not done."""


@dataclass(frozen=True, slots=True)
class Undo:
    """An attempt of a compensation that was handed out."""

    call_id: str
    attempt: int
    epoch: int
    at: float
    refused: bool
    """Whether its performer does nothing, and says so."""


def reported_undoings(v: Variant, how: str) -> Scenario:
    """The performer of a compensation reports to a server that does not have its attempt, or not any more."""
    pieces: list[Undo] = []
    a = make("a", variant=v, key="n")

    async def undone() -> None:
        world = Here.world
        assert world.sim.current is not None, "only a compensation hands out"
        _, op = world.sim.current
        assert op.lease is not None, "only an owner compensates"
        attempt = world.sim.store.calls[op.call.id].comp_attempt
        refused = how == "as not done" and attempt <= REFUSALS
        piece = Undo(op.call.id, attempt, op.lease.epoch, world.sim.clock.mono, refused)
        pieces.append(piece)
        if not refused:
            world.hand_out_here(world.sim.clock.mono + WORK_S - SOON_S)
        await ReadCall(op.call.id)  # a place to die or pause at, with the performer at work
        await Sleep(WORK_S * 0.5)
        if how == "as its lease ends":  # this server has given the attempt up, and not recorded it yet
            await _report(scenario.prepared(), piece)
            raise WorkLost("nobody reported within the work lease")
        if refused:
            raise NoEffect("its performer did nothing")
        world.performed(op.call.id)

    b = remote_tool("b", v, undone)

    async def program(inside: Inside) -> None:
        pieces.clear()
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)
            raise Fails("on purpose")

    async def reports(inside: Inside) -> None:
        """Another server, to which performers report, and again."""
        for _ in range(8):
            await Sleep(WORK_S * 0.1)
            for piece in pieces:  # more may be handed out meanwhile
                await _report(inside.host, piece)

    second = None if how == "as its lease ends" else reports
    rest = {name: traits(v) for name in "ab"}
    scenario = Scenario(f"W6 a compensation reported {how}", program, [a, b], rest, second=second)
    return scenario


# ---- Compensations that nobody takes


TRIES = 3
UNTAKEN = 4
"""So many attempts find nobody who does them: more than there are tries."""


class NobodyThere(NoEffect):
    """What the service raises if no worker takes a piece of work."""

    is_try = False


def untaken_undoings(v: Variant, first: str) -> Scenario:
    """Nobody takes a compensation for long; then a performer is lost with it, and the next one does it.

    ``first``: what the very first attempt comes to.
    """
    a = make("a", variant=v, key="n")

    async def undone() -> None:
        world = Here.world
        assert world.sim.current is not None, "only a compensation hands out"
        _, op = world.sim.current
        attempt = world.sim.store.calls[op.call.id].comp_attempt
        _, untaken = world.untaken.setdefault(op.call.id, (TRIES, set()))
        is_lost = attempt == 1 and first == "lost"
        if not is_lost and len(untaken) < UNTAKEN:
            untaken.add(attempt)
            raise NobodyThere("no worker took it")
        if is_lost or len(untaken) + 1 + (first == "lost") == attempt:
            raise WorkLost("nobody reported within the work lease")
        world.hand_out_here(world.sim.clock.mono + WORK_S - SOON_S)
        await ReadCall(op.call.id)  # a place to die or pause at, with the performer at work
        await Sleep(WORK_S * 0.5)
        world.performed(op.call.id)

    b = remote_tool("b", v, undone)

    async def program(inside: Inside) -> None:
        async with inside.run("r") as run:
            await do(run, a, n=1)
            await do(run, b, n=1)
            raise Fails("on purpose")

    return Scenario(
        f"W7 a compensation that nobody takes, first {first}", program, [a, b], {name: traits(v) for name in "ab"}
    )


async def _report(host: Any, piece: Undo) -> None:
    """Report what a performer did about a compensation: it has acted by now, unless its work never reached it."""
    world = Here.world
    if not piece.refused:
        world.performed(piece.call_id)
        if not any(
            (one.call_id, one.phase, one.at) == (piece.call_id, "compensate", piece.at) for one in world.landings
        ):
            return
    told: Any = Absent() if piece.refused else Happened(None)
    facts = {"attempt": piece.attempt, "epoch": piece.epoch}
    await doubts.report_late(host, NOBODY, piece.call_id, told, phase="compensate", by="worker", **facts)
    world.reported[piece.call_id, "compensate", piece.attempt] = not piece.refused


# ---- Runs that belong to a client


CLIENTS = ("goes", "comes back", "comes back late", "never comes back", "whose server dies", "whose server lets go")


def clients(v: Variant, how: str) -> Scenario:
    """A server dies or lets the run go; its client comes back to another one, in time, too late, or never."""
    a, b = make("a", variant=v, key="n"), make("b", variant=v, key="n")

    async def program(inside: Inside) -> None:
        run = await inside.open("r", client_lease=CLIENT_S)
        await do(run, a, n=1)
        await Sleep(20.0)
        await do(run, b, n=1)
        if how == "whose server dies":
            _jump(inside)
            raise Crash
        if how == "goes":
            await run.leave(Fails("on purpose"))
        else:
            await ending.let_go(run.session, silent_s=20.0)
        inside.process.leases.pop(run.session.root, None)
        if how == "whose server lets go":
            _jump(inside)

    rest = {name: traits(v) for name in "ab"}
    return Scenario(f"W4 a client, {how}", program, [a, b], rest, second=_client(how, a, b))


def _jump(inside: Inside) -> None:
    """Set the wall clock forward: no client lease has passed because of that."""
    inside.sim.jumped = True
    inside.sim.clock.jump(3_600.0)


def _client(how: str, a: Any, b: Any) -> Callable[[Inside], Coroutine[Any, Any, None]] | None:
    if how not in ("goes", "comes back", "comes back late"):
        return None

    async def client(inside: Inside) -> None:
        for _ in range(3):
            await Sleep(CLIENT_S * (1.5 if how == "comes back late" else 0.3))
            with suppress(Busy, Error):
                run = await inside.open("r", wait=0.5)
                if not run.over:
                    await do(run, a, n=1)
                    await do(run, b, n=2)
                    await run.leave()
                inside.process.leases.pop(run.session.root, None)
                return

    return client


MOVED = (
    "goes on", "has asked too late", "is silent then", "loses its server", "has claimed", "renews its claim",
    "renews and loses both servers",
)  # fmt: skip
CLAIMING = ("has claimed", "renews its claim", "renews and loses both servers")


def moved_clients(v: Variant, how: str) -> Scenario:
    """A client is moved to another server while the first one lives: that one asks for the run, the first one lets it go."""
    a, b = make("a", variant=v, key="n"), make("b", variant=v, key="n")

    async def program(inside: Inside) -> None:
        handed.clear()
        run = await inside.open("r", client_lease=CLIENT_S)
        await do(run, a, n=1)
        if how in CLAIMING:
            await _hand_out(run, b, n=1)
        else:
            await do(run, b, n=1)
        if how == "loses its server":
            raise Crash
        wanted: list[Any] = []
        for _ in range(8):
            await Sleep(CLIENT_S * 0.15)
            for _ in range(4):  # the other server asks, and a heartbeat comes, at any place between
                wanted = wanted or await ListWanted(inside.process.owner)
            if (wanted or run.session.lease.is_wanted) and how != "has asked too late":
                break
        await ending.let_go(run.session, silent_s=CLIENT_S)
        inside.process.leases.pop(run.session.root, None)

    async def client(inside: Inside) -> None:
        for turn in range(12):
            await Sleep(CLIENT_S * 0.15)
            try:
                run = await inside.open("r", client_lease=CLIENT_S, wait=0.0)
                if not run.over:
                    await _go_on_elsewhere(run, how, a, b)
                inside.process.leases.pop(run.session.root, None)
                return
            except Busy:
                if how == "is silent then" or (how == "loses its server" and turn):
                    return
            except Error:
                continue

    async def worker(inside: Inside) -> None:
        for _ in range(30):
            await Sleep(CLIENT_S * 0.075)
            await inside.recover()

    # Who recovers what a dead server has left, on the host of that server, comes afterwards.
    last = None if how == "loses its server" else worker
    rest = {name: traits(v) for name in "ab"}
    return Scenario(f"W7 a client that moves {how}", program, [a, b], rest, second=client, third=last)


async def _hand_out(run: SimulatedRun, a_tool: Any, **args: Any) -> None:
    """Hand a call out to a performer that reports elsewhere."""
    session = run.session
    ask = runs.hand_ask(run.inside.host, session, a_tool.name, args, key=None, kind=None, cost=None, lease=WORK_S)
    done = await ending.begin_by_hand(session, ask)
    lease, row = await work.grant(WORK_S), done.row
    key = provider_key(row)
    Here.world.hand_out(row, key, "execute", until=lease.until - SOON_S)
    handed[row.id] = (row.attempt, session.lease.epoch, result_of(key))


async def _go_on_elsewhere(run: SimulatedRun, how: str, a: Any, b: Any) -> None:
    """Go on with a run that another server had: with what a performer of that one does, and to its end."""
    host, world = run.inside.host, Here.world
    for call_id, (attempt, epoch, answer) in list(handed.items()):
        if how == "renews and loses both servers":
            await Sleep(WORK_S * 0.7)
            row = await ReadCall(call_id)
            assert row is not None, "calls are never deleted"
            await settle_doubt(run.session, host.specs["b"], row, back=True)
            with suppress(LeaseLost):
                asked_at = run.inside.sim.clock.mono
                await work.late_renewal(run.session, host.specs["b"], call_id, attempt)
                world.renewed(call_id, until=asked_at + WORK_S - SOON_S)
            raise Crash
        if how == "renews its claim":
            with suppress(LeaseLost):
                for _ in range(3):
                    asked_at = run.inside.sim.clock.mono
                    await work.late_renewal(run.session, host.specs["b"], call_id, attempt)
                    world.renewed(call_id, until=asked_at + WORK_S - SOON_S)
                    await Sleep(WORK_S * 0.6)
        elif world.performed(call_id):
            told = Happened(answer)
            await doubts.report_late(host, NOBODY, call_id, told, attempt=attempt, epoch=epoch, by="client")
            world.reported[call_id, "execute", attempt] = True
    await do(run, a, n=1)
    await do(run, b, n=2)
    await run.leave(Fails("on purpose") if how == "renews its claim" else None)


def remote_scenarios(v: Variant) -> list[Scenario]:
    """Flows with performers outside the owner's process, and with clients."""
    if v not in VARIANTS:
        return []
    return [
        *(claims(v, how, ends) for how in ("reported", "silent", "reported late") for ends in ("commits", "raises")),
        stuck_claims(v),
        twice_taken_over(v),
        *(served(v, ends) for ends in ("commits", "raises")),
        *(reported_undoings(v, how) for how in REPORTED),
        *(untaken_undoings(v, first) for first in ("untaken", "lost") if v.comp_idempotent),
        *(clients(v, how) for how in CLIENTS),
        *(moved_clients(v, how) for how in MOVED),
    ]
