"""A model's request for an ordinary tool is a plain call, and its answer is the one that the general path gives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amends import Answer, AsyncRuntime, Runtime, UsageError, declare, tool
from amends.host.requests import plain_model_request
from amends.ledger.plain import AdmitPlain
from amends.run import Run


@tool(key="order")
def pay(order: str, cents: int = 5) -> dict[str, int]:
    if cents < 0:
        raise ValueError("no such amount")
    return {"paid": cents}


@pay.compensate
def refund(order: str) -> None: ...


@tool(kind="read")
def look(order: str) -> str:
    return f"order {order}"


REQUESTS: list[tuple[str, Any, str | None]] = [
    ("pay", {"order": "a"}, "ref-1"),
    ("pay", '{"order": "b", "cents": 7}', None),
    ("pay", {"order": "a"}, "ref-2"),  # a repeat
    ("pay", {"order": "a", "cents": 6}, "ref-3"),  # another meaning
    ("pay", {"order": "c", "cents": -1}, "ref-4"),
    ("pay", {"order": "c", "cents": "x"}, "ref-5"),
    ("pay", {"order": "d", "again_because": "twice"}, "ref-6"),
    ("pay", '{"order": ', "ref-7"),
    ("pay", {"order": "é\ud800"}, "ref \ud800 'quoted'"),
    ("look", {"order": "a"}, "ref-8"),
    ("look", {"order": "a"}, "ref-8"),
]


def told(answer: Answer) -> tuple[Any, ...]:
    call = answer.call
    seen = None if call is None else (call.tool, call.args, call.result, call.state, call.tool_call_id, call.generation)
    return answer.status, answer.text, answer.value, seen, type(answer.error), answer.is_error


def answers(url: str, id: str, *, plain: bool) -> list[tuple[Any, ...]]:
    with Runtime(url, tools=[pay, look]) as rt:
        with rt.run(id) as run:
            if not plain:
                run._session.plain = None
            found = [run.answer(name, args, tool_call_id=ref) for name, args, ref in REQUESTS]
        assert rt.verify().ok
        calls = rt.report(id).calls
    return [told(one) for one in found] + [(call.tool, call.args, call.tool_call_id, call.state) for call in calls]


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_the_answers_are_those_of_the_general_path(tmp_path: Path, kind: str) -> None:
    urls = ["memory:"] * 2 if kind == "memory" else [f"sqlite:///{tmp_path / name}.db" for name in "ab"]
    assert answers(urls[0], "run", plain=True) == answers(urls[1], "run", plain=False)


def test_an_ordinary_request_of_a_model_is_a_plain_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[AdmitPlain] = []
    with Runtime("memory:", tools=[pay, look]) as rt, rt.run("run") as run:
        perform = rt._host.store.perform

        def watched(op: Any) -> Any:
            if isinstance(op, AdmitPlain):
                seen.append(op)
            return perform(op)

        monkeypatch.setattr(rt._host.store, "perform", watched)
        assert run.answer("pay", {"order": "a"}, tool_call_id="ref-1").status == "done"
        assert run.answer("pay", {"order": "a"}, tool_call_id="ref-2").status == "replayed"
        assert run.answer("pay", {"order": "b"}, handler=lambda order, cents: {"paid": 1}).value == {"paid": 1}
    assert [op.call_ref for op in seen] == ["ref-1"]


def test_an_ordinary_request_on_an_event_loop() -> None:
    async def main() -> list[str]:
        async with AsyncRuntime("memory:", tools=[pay, look]) as rt, rt.run("run") as run:
            found = [await run.answer(name, args, tool_call_id=ref) for name, args, ref in REQUESTS[:3]]
            assert found[0].call is not None
            assert found[0].call.tool_call_id == "ref-1"
            return [one.status for one in found]

    assert asyncio.run(main()) == ["done", "done", "replayed"]


async def far(**args: Any) -> dict[str, Any]:
    if args.get("cents", 0) < 0:
        raise ValueError("no such amount")
    return {"content": [{"type": "text", "text": "paid"}], "args": args}


def undo(call: Any) -> None: ...


def far_answers(url: str, *, plain: bool) -> tuple[list[tuple[Any, ...]], int]:
    """Return what requests for a tool that lives elsewhere get, and how many of them were plain calls."""
    requests: list[dict[str, Any]] = [
        {"order": "a"},
        {"order": "a"},
        {"order": "b", "n": 0.5},
        {"order": "c", "cents": -1},
        {"order": ["d"]},
    ]

    async def main() -> tuple[list[tuple[Any, ...]], int]:
        async with AsyncRuntime(url, tools=[declare("far", compensate=undo)]) as rt:
            rt.reach({"far": far}, described=False)
            async with rt.run("run") as run:
                made = [plain_model_request(rt._host, run._session, "far", one, tool_call_id=None) for one in requests]
                if not plain:
                    run._session.plain = None
                found = [await run.answer("far", one, tool_call_id="ref") for one in requests]
            assert (await rt.verify()).ok
            calls = (await rt.report("run")).calls
        told_of = [(call.tool, call.args, call.result, call.state) for call in calls]
        return [told(one) for one in found] + told_of, sum(one is not None for one in made)

    return asyncio.run(main())


def test_a_request_for_a_tool_that_lives_elsewhere_is_plain_and_answered_as_on_the_general_path(tmp_path: Path) -> None:
    short, count = far_answers(f"sqlite:///{tmp_path / 'a.db'}", plain=True)
    long, _ = far_answers(f"sqlite:///{tmp_path / 'b.db'}", plain=False)
    assert short == long
    assert count == 4  # a list is left to the general path


def test_a_run_that_has_ended_says_so_to_the_model() -> None:
    with Runtime("memory:", tools=[pay, look]) as rt:
        with rt.run("run") as run:
            pass
        assert isinstance(run, Run)
        answer = run.answer("pay", {"order": "a"})
        assert answer.is_error


def test_an_id_of_a_model_that_is_no_text_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[pay, look]) as rt:
        with rt.run("run") as run:
            answer = run.answer("pay", {"order": "a"}, tool_call_id=5)  # type: ignore[arg-type]
        assert isinstance(answer.error, UsageError)
        assert "tool_call_id= of a call of pay is a text, not int" in str(answer.error)
        assert not list(rt.calls())
        assert rt.verify().ok


@pytest.mark.parametrize("ref", ["\ud83d\ude00", "\ud800", "a\0b", "\u00e9\U0001f600", "\u2028"])
def test_an_id_of_a_model_may_have_any_character(ref: str, tmp_path: Path) -> None:
    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[pay, look]) as rt:
        with rt.run("run") as run:
            assert run.answer("pay", {"order": "a"}, tool_call_id=ref).status == "done"
            assert pay.with_options(again=f"asked {ref}")(order="a") == {"paid": 5}
        assert len(list(rt.calls())) == 2
        assert rt.verify().ok
        with Runtime(f"sqlite:///{tmp_path / 'other.db'}", tools=[pay, look]) as other:
            other.load(rt.export("run"))
