"""What a person is shown before the word is what is then done, over many states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Budget, Happened, InDoubt, Next, RunBlocked, Unknown, UsageError, Waiting, tool
from amends.ledger.world import Invoke
from tests.world import ONCE, World, runtime

ANSWERS = {"happened": lambda: Happened("seen"), "absent": Absent, "unknown": Unknown}


class Scene:
    """Tools of every kind, in which ``pay`` is lost; and a runtime over them."""

    def __init__(self, **pay: Any) -> None:
        self.world = World()
        self.one = self.world.compensatable("one")
        self.two = self.world.compensatable("two")
        self.mail = self.world.retriable("mail", retry=ONCE)
        kind = pay.pop("kind", "compensatable")
        probed, blind = pay.pop("probed", False), pay.pop("twin", None)
        make = {"compensatable": self.world.compensatable, "pivot": self.world.pivot, "retriable": self.world.retriable}
        more = {"twin": blind} if blind else {}
        self.pay = make[kind]("pay", **pay, **more)
        self.other = self.world.compensatable("other")
        self.wire = self.world.pivot("wire")
        for one in [self.pay, self.other] if probed else [self.other]:
            one.probe(lambda x: Unknown("the bank sleeps"))
        self.world.script["pay"] = [(TimeoutError("lost"),)] * pay.pop("times", 9)
        self.rt = runtime(self.one, self.two, self.mail, self.pay, self.other, self.wire, wait=0.0)

    def leave(self, block: Callable[[Any], object], **options: Any) -> None:
        try:
            with self.rt.run("r", **options) as run:
                block(run)
        except (KeyError, RunBlocked, InDoubt, Waiting):
            pass
        self.world.script.pop("pay", None)  # from here on everything works


def _swallowed(run: Any, one: Any, **args: Any) -> None:
    with pytest.raises(InDoubt):
        run.call(one, **args)


def _commits(s: Scene) -> None:
    def block(run: Any) -> None:
        run.call(s.one)
        _swallowed(run, s.pay)
        run.call(s.two)

    s.leave(block)


def _commits_with_outbox(s: Scene) -> None:
    def block(run: Any) -> None:
        run.call(s.one)
        run.call(s.mail)
        _swallowed(run, s.pay)

    s.leave(block)


def _goes_back(s: Scene) -> None:
    def block(run: Any) -> None:
        run.call(s.one)
        _swallowed(run, s.pay)
        run.call(s.two)
        run.call(s.mail)
        raise KeyError

    s.leave(block)


def _another_doubt(s: Scene) -> None:
    s.world.script["other"] = [(TimeoutError("lost"),)]

    def block(run: Any) -> None:
        run.call(s.one)
        _swallowed(run, s.other)
        _swallowed(run, s.pay)
        raise KeyError

    s.leave(block)


def _in_a_child(s: Scene) -> None:
    def block(run: Any) -> None:
        run.call(s.one)
        with run.child("c") as child:
            child.call(s.two)
            _swallowed(child, s.pay)
        raise KeyError

    s.leave(block)


def _waits(s: Scene) -> None:
    def block(run: Any) -> None:
        run.call(s.one)
        _swallowed(run, s.pay)
        raise SystemExit

    with pytest.raises(SystemExit):
        s.leave(block, recover="wait")


def _after_a_pivot(s: Scene) -> None:
    def block(run: Any) -> None:
        run.call(s.one)
        run.call(s.mail, x="2")
        run.call(s.wire)
        with pytest.raises(InDoubt):
            run.call(s.pay)

    s.leave(block)


def _outbox(s: Scene) -> None:
    s.leave(lambda run: (run.call(s.one), run.call(s.pay), run.call(s.mail)))


TOOLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "probed": {"probed": True},
    "blind": {"twin": {"absent_ok": True}},
    "idempotent": {"idempotent": True, "retry": ONCE},
    "pivot": {"kind": "pivot"},
    "probed pivot": {"kind": "pivot", "probed": True},
}
STATES: dict[str, tuple[dict[str, Any], Callable[[Scene], None]]] = {
    f"{leaves.__name__}-{name}": (said, leaves)
    for name, said in TOOLS.items()
    for leaves in (_commits, _commits_with_outbox, _goes_back, _another_doubt, _in_a_child, _waits)
    # A pivot comes last, and not over a doubt.
    if not ("pivot" in name and leaves in (_commits, _goes_back, _another_doubt))
}
STATES["_after_a_pivot-retriable"] = ({"kind": "retriable", "probed": True}, _after_a_pivot)
STATES["_outbox-retriable"] = ({"kind": "retriable", "probed": True}, _outbox)
STATES["_outbox-at commit"] = ({"kind": "pivot", "at": "commit"}, _outbox)
STATES["_outbox-at commit probed"] = ({"kind": "pivot", "at": "commit", "probed": True}, _outbox)


def _told(next: Next) -> list[tuple[str, str]]:
    return [(one.what, one.call.tool) for one in next.does if one.what != "guard"]


def _causes(report: Any) -> tuple[str, ...]:
    """Where a cause quotes what the person said, a preview says so."""
    return tuple(cause.replace("(looked)", "(your reason)") for cause in report.run.causes)


def _seen(rt: Any, say: Callable[[], Any]) -> tuple[list[tuple[str, str]], Any]:
    """What really ran while the word was followed, as the driver carried it out."""
    seen: list[tuple[str, str]] = []
    perform = rt._driver.perform

    def watched(op: Any) -> Any:
        if isinstance(op, Invoke):
            seen.append(({"execute": "start"}.get(op.phase, op.phase), op.call.tool))
        return perform(op)

    rt._driver.perform = watched
    try:
        return seen, say()
    finally:
        rt._driver.perform = perform


@pytest.mark.parametrize("answer", list(ANSWERS))
@pytest.mark.parametrize("state", list(STATES))
def test_what_was_previewed_is_what_then_happens(state: str, answer: str) -> None:
    said, leaves = STATES[state]
    scene = Scene(**said)
    leaves(scene)
    doubts = [one for one in scene.rt.doubts() if one.tool == "pay"]
    if not doubts:
        pytest.skip("amends settled it alone")
    (doubt,) = doubts
    before = list(scene.rt.events())
    preview = scene.rt.preview(doubt.id)
    assert list(scene.rt.events()) == before, "a preview changes nothing"
    told: Next = getattr(preview, answer)
    seen, report = _seen(scene.rt, lambda: scene.rt.resolve(doubt.id, ANSWERS[answer](), by="anna", why="looked"))
    assert seen == _told(told)
    assert (scene.rt.call(doubt.id).state, report.state) == (told.call_state, told.run_state)
    assert _causes(report) == told.causes
    assert told.who == ("program" if told.run_state == "open" else "here")


def test_most_states_of_the_matrix_are_doubts() -> None:
    """The matrix must not pass because amends settles everything alone."""
    doubts = 0
    for said, leaves in STATES.values():
        scene = Scene(**said)
        leaves(scene)
        doubts += any(one.tool == "pay" for one in scene.rt.doubts())
    assert doubts >= 20, f"{doubts} of {len(STATES)}"


@pytest.mark.parametrize("answer", list(ANSWERS))
@pytest.mark.parametrize("lost", [True, False])
def test_a_compensations_doubt_is_previewed_as_truly(lost: bool, answer: str) -> None:
    world = World()
    one, two = world.compensatable("one"), world.compensatable("two", twin={"retry": ONCE})
    world.script["undo two"] = [(TimeoutError(),) if lost else ValueError("no")]
    rt = runtime(one, two, wait=0.0)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        run.call(one)
        run.call(two)
        raise KeyError
    (call,) = [call for call in rt.calls() if call.tool == "two"]
    assert call.state == ("compensation_in_doubt" if lost else "compensation_failed")
    told: Next = getattr(rt.preview(call.id), answer)
    seen, report = _seen(rt, lambda: rt.resolve(call.id, ANSWERS[answer](), by="anna", why="looked"))
    assert seen == _told(told)
    assert (rt.call(call.id).state, report.state, _causes(report)) == (told.call_state, told.run_state, told.causes)


def test_a_living_owner_goes_on_by_itself() -> None:
    scene = Scene()
    run = scene.rt.open("r")
    _swallowed(run, scene.pay)
    (doubt,) = scene.rt.doubts()
    preview = scene.rt.preview(doubt.id)
    assert {one.who for one in (preview.happened, preview.absent, preview.unknown)} == {"owner"}
    assert (preview.happened.call_state, preview.absent.call_state) == ("succeeded", "failed")


def test_a_process_without_the_tools_says_that_a_worker_goes_on() -> None:
    scene = Scene()
    _goes_back(scene)
    (doubt,) = [one for one in scene.rt.doubts() if one.tool == "pay"]
    from amends import Runtime

    bare = Runtime(store=scene.rt._host.store)
    preview = bare.preview(doubt.id)
    assert preview.happened.who == "worker"
    assert preview.happened.does == ()


def test_an_agent_that_would_go_on_is_named() -> None:
    scene = Scene()
    seen: list[str] = []

    def agent(run: Any) -> None:
        seen.append(run.id)
        _swallowed(run, scene.pay)
        raise SystemExit

    scene.rt._host.agents["clerk"] = agent
    with pytest.raises(SystemExit):
        scene.rt.start("clerk", id="r")
    scene.rt.recover()
    (doubt,) = scene.rt.doubts()
    assert scene.rt.preview(doubt.id).happened.who == "agent"
    assert seen == ["r"], "a preview starts no agent"


def test_there_is_nothing_to_preview_without_a_doubt() -> None:
    world = World()
    one = world.compensatable("one")
    rt = runtime(one)
    with rt.run("r"):
        one()
    (call,) = rt.calls()
    for id in (call.id, "nobody"):
        with pytest.raises(UsageError):
            rt.preview(id)
    with pytest.raises(UsageError):
        rt.scoped(tenant="b").preview(call.id)


def test_a_preview_prints_and_is_data() -> None:
    scene = Scene()
    _goes_back(scene)
    (doubt,) = [one for one in scene.rt.doubts() if one.tool == "pay"]
    preview = scene.rt.preview(doubt.id)
    assert [line.split(":")[0].strip() for line in str(preview).splitlines()[1:]] == ["Happened", "Absent", "Unknown"]
    assert preview.to_dict()["absent"]["run_state"] == "rolled_back"


def test_the_async_colour_previews() -> None:
    @tool
    async def pay(x: str) -> str:
        raise TimeoutError

    @pay.compensate
    async def refund(x: str) -> None: ...

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[pay], wait=0.0)
        with pytest.raises(RunBlocked):
            async with rt.run("r") as run:
                with pytest.raises(InDoubt):
                    await run.call(pay, x="1")
                raise KeyError
        (doubt,) = [one async for one in rt.doubts()]
        preview = await rt.preview(doubt.id)
        assert [one.by for one in preview.happened.does] == ["refund"]
        report = await rt.resolve(doubt.id, Happened("p"), by="anna", why="looked")
        assert report.state == preview.happened.run_state == "rolled_back"
        await rt.close()

    asyncio.run(main())


# ---- what others have ---------------------------------------------------------------------


@pytest.mark.parametrize("answer", list(ANSWERS))
@pytest.mark.parametrize("meets", ["a lock", "a free lock", "a spent budget", "a budget", "a request", "a yes"])
def test_what_staged_calls_meet_when_they_start_is_previewed(meets: str, answer: str) -> None:
    world = World()
    said: dict[str, dict[str, Any]] = {
        "a lock": {"locks": lambda call: ["letters"]},
        "a spent budget": {"cost": 5},
        "a budget": {"cost": 5},
        "a request": {"needs_approval": True},
        "a yes": {"needs_approval": True},
    }
    pay = world.compensatable("pay")
    mail = world.retriable("mail", **said.get(meets, {"locks": lambda call: ["letters"]}))
    other = world.compensatable("other", locks=lambda call: ["letters"])
    dear = world.compensatable("dear", cost=8)
    rt = runtime(pay, mail, other, dear, wait=0.0, budgets=[Budget(10, unit="usd", per="tenant")])
    if meets == "a lock":
        rt.open("other").call(other)
    if meets == "a spent budget":
        with rt.run("before") as run:
            run.call(dear)
    world.script["pay"] = [(TimeoutError("lost"),)]
    with suppress(RunBlocked, Waiting), rt.run("r") as run:
        with suppress(Waiting):
            run.call(mail)
        _swallowed(run, pay)
    if meets == "a yes":
        (asked,) = rt.approvals()
        rt.approve(asked.id, digest=asked.digest, by="bob", why="fine")
    (doubt,) = rt.doubts()
    told: Next = getattr(rt.preview(doubt.id), answer)
    seen, report = _seen(rt, lambda: rt.resolve(doubt.id, ANSWERS[answer](), by="anna", why="looked"))
    assert seen == _told(told)
    assert (rt.call(doubt.id).state, report.state, _causes(report)) == (told.call_state, told.run_state, told.causes)
