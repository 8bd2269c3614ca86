"""``NoEffect(final=True)``: the call stays failed, and a repeat in this run is answered with the recorded error."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import Happened, NoEffect, Retry, Runtime, tool
from amends.errors import ToolFailed

TRIED: list[str] = []


@tool(key="card", retry=Retry(attempts=3, on=NoEffect, delay=0.0))
def charge(card: str, cents: int = 5) -> str:
    TRIED.append(f"{card} {cents}")
    if card == "stolen" and cents > 1:
        raise NoEffect("this card is stolen", final=True)
    if card == "slow":
        raise NoEffect("not now")
    return "paid"


@charge.compensate
def refund(card: str) -> None:
    TRIED.append(f"no {card}")


@tool
def probed() -> str:
    TRIED.append("probed")
    raise NoEffect("never", final=True)


@probed.compensate
def unprobed() -> None: ...


@probed.probe
def find() -> Happened[str]:
    raise AssertionError("what is certain is not probed")


@tool
def outer() -> str:
    TRIED.append("outer")
    return charge("stolen")


@outer.compensate
def unouter() -> None: ...


@tool(kind="read")
def look() -> str:
    TRIED.append("look")
    raise NoEffect("closed", final=True)


@pytest.fixture(params=["memory:", "sqlite"])
def rt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    TRIED.clear()
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url, tools=[charge, probed, outer, look]) as made:
        yield made


def test_a_final_no_is_not_retried_and_its_repeat_gets_the_recorded_error(rt: Runtime) -> None:
    with rt.run("order"):
        with pytest.raises(NoEffect):
            charge("stolen")
        for _ in range(2):
            with pytest.raises(ToolFailed) as again:
                charge("stolen")
        assert (again.value.final, again.value.message) == (True, "this card is stolen")
        assert again.value.call.state == "failed"
        assert "final" in again.value.for_model()
    assert TRIED == ["stolen 5"]
    report = rt.report("order")
    assert [call.state for call in report.calls] == ["failed"]
    assert rt.verify().ok


def test_other_arguments_under_its_key_are_its_next_generation_and_the_no_stays(rt: Runtime) -> None:
    with rt.run("order"):
        with pytest.raises(NoEffect):
            charge("stolen")
        assert charge("stolen", 1) == "paid"
    with rt.run("other"):
        with pytest.raises(NoEffect):
            charge("stolen")  # another run asks for itself
    assert TRIED == ["stolen 5", "stolen 1", "stolen 5"]


def test_an_ordinary_no_is_retried_and_frees_its_key(rt: Runtime) -> None:
    with rt.run("order"):
        for _ in range(2):
            with pytest.raises(NoEffect):
                charge("slow")
    assert TRIED == ["slow 5"] * 6


def test_a_deliberate_repeat_starts_again(rt: Runtime) -> None:
    with rt.run("order"):
        with pytest.raises(NoEffect):
            charge("stolen")
        with pytest.raises(NoEffect):
            charge.with_options(again="the bank called")("stolen")
    assert TRIED == ["stolen 5"] * 2


def test_it_is_not_probed(rt: Runtime) -> None:
    with rt.run("order"):
        with pytest.raises(NoEffect):
            probed()
        with pytest.raises(ToolFailed):
            probed()
    assert TRIED == ["probed"]


def test_a_final_no_of_a_call_inside_a_body_is_not_that_of_the_body(rt: Runtime) -> None:
    with rt.run("order"):
        with pytest.raises(NoEffect):
            outer()
        with pytest.raises(ToolFailed):
            outer()
    assert TRIED == ["outer", "stolen 5", "outer"]


def test_reads_are_asked_again(rt: Runtime) -> None:
    with rt.run("order"):
        for _ in range(2):
            with pytest.raises(NoEffect):
                look()
    assert TRIED == ["look", "look"]


def test_a_resumed_run_is_answered_too(rt: Runtime) -> None:
    with pytest.raises(KeyboardInterrupt), rt.run("order", recover="resume"):
        with pytest.raises(NoEffect):
            charge("stolen")
        raise KeyboardInterrupt
    with rt.run("order", recover="resume"):
        for _ in range(2):
            with pytest.raises(ToolFailed):
                charge("stolen")
    assert TRIED == ["stolen 5"]


def test_a_model_is_told_that_it_is_final(rt: Runtime) -> None:
    with rt.run("order") as run:
        answers = [run.answer("charge", {"card": "stolen"}) for _ in range(2)]
    assert all("final" in answer.text and answer.status == "failed" for answer in answers)
    assert TRIED == ["stolen 5"]


def test_a_replay_tells_the_same(rt: Runtime) -> None:
    def agent() -> list[str]:
        said = []
        for _ in range(2):
            try:
                charge("stolen")
            except Exception as no:
                said.append(str(no))
        return said

    with rt.run("order"):
        then = agent()
    assert len(rt.replay("order", agent)) == len(then) == 2
    assert TRIED == ["stolen 5"]


def test_it_is_an_ordinary_exception() -> None:
    no: Any = pickle.loads(pickle.dumps(NoEffect("a", "b", final=True)))
    assert (no.args, no.final, NoEffect().final) == (("a", "b"), True, False)
