"""One filter grammar, for runs and for calls."""

from __future__ import annotations

import pytest

from amends import Runtime, UsageError, tool
from amends.host import listing
from amends.host.filters import CALL_FIELDS, RUN_FIELDS, parse_filter
from amends.ledger.operations import ListRuns
from amends.testing import runtime


@tool(key="order")
def charge(order: str, cents: int, user: dict[str, object] | None = None) -> str:
    return f"ch_{order}"


@charge.compensate
def refund(result: str) -> None: ...


@tool(kind="read")
def look(what: str) -> str:
    return what


@pytest.fixture
def rt() -> Runtime:
    rt = runtime(tools=[charge, look])
    for order, cents, agent in (("1", 400, "clerk"), ("2", 9000, "clerk"), ("3", 12_000, "boss")):
        with rt.run(f"order {order}" if order == "3" else f"order-{order}", tags=[f"t{order}", "all"], agent=agent):
            look(what="stock, *")
            charge(order=order, cents=cents, user={"plan": "pro" if order == "2" else None, "items": ["kettle"]})
        rt.clock.advance(3600)
    return rt


RUNS = [
    ("", "3 2 1"),
    ("status:committed", "3 2 1"),
    ("state:committed,open", "3 2 1"),
    ("status:blocked", ""),
    ("status:committed status:blocked", ""),
    ("status:committed,blocked status:committed,open", "3 2 1"),
    ("run:order-*", "2 1"),
    ('run:"order 3"', "3"),
    ('run:"order "*', "3"),
    ('run:"order-*"', ""),
    ("agent:boss", "3"),
    ("tag:t1,t2", "2 1"),
    ("tag:t* agent:clerk", "2 1"),
    ("tag:missing", ""),
    ("tool:charge", "3 2 1"),
    ("tool:charge args.cents:>5000", "3 2"),
    ("tool:look args.cents:>5000", ""),
    ("args.cents:>=9000 args.cents:<12000", "2"),
    ("args.cents:400", "1"),
    ("args.user.plan:pro", "2"),
    ("args.user.plan:null", "3 1"),
    ("args.user.items.0:kett*", "3 2 1"),
    ("args.user.items.7:kettle", ""),
    ("args.order:1,3", "3 1"),
    ('args.what:"stock, *"', "3 2 1"),
    ("age:<90m", "3"),
    ("age:>90m", "2 1"),
    ("age:>90m age:<150m", "2"),
    ("age:<1s", ""),
    ("kind:read tool:l*", "3 2 1"),
]


@pytest.mark.parametrize("text, wanted", RUNS)
def test_a_filter_chooses_runs_newest_first(rt: Runtime, text: str, wanted: str) -> None:
    assert [run.id[-1] for run in rt.runs(text)] == wanted.split()


@pytest.mark.parametrize("text, wanted", [(text, wanted) for text, wanted in RUNS if "look" not in text])
def test_the_same_words_choose_calls(rt: Runtime, text: str, wanted: str) -> None:
    found = {
        call.run_id[-1]
        for call in rt.calls(
            text.replace("committed,open", "succeeded").replace("committed", "succeeded").replace("blocked", "failed")
        )
    }
    assert sorted(found, reverse=True) == wanted.split()


def test_a_call_is_found_by_the_beginning_of_its_id(rt: Runtime) -> None:
    first = next(iter(rt.calls("tool:charge")))
    assert [call.id for call in rt.calls(f"call:{first.id[:-1]}*")] == [first.id]


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "colour:red",
        "status:happy",
        "status:",
        "status:,",
        "args:5",
        "args.:5",
        "tool.name:x",
        "age:1h",
        "age:<soon",
        "age:>5",
        "args.cents:>much",
        'run:"order 3',
    ],
)
@pytest.mark.parametrize("fields", [RUN_FIELDS, CALL_FIELDS], ids=["runs", "calls"])
def test_a_filter_that_is_not_understood_names_what_there_is(text: str, fields: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        parse_filter(text, fields)
    assert refused.value.hint


def test_a_listing_of_the_young_ends_where_the_old_begin(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    perform = rt._host.store.perform
    monkeypatch.setattr(listing, "PAGE", 1)

    def counted(op):
        asked.append(op)
        return perform(op)

    monkeypatch.setattr(rt._host.store, "perform", counted)
    assert len(list(rt.runs("age:<90m"))) == 1
    assert sum(isinstance(op, ListRuns) for op in asked) == 2, "the newest, and the first one that is too old"
