"""Tools that live elsewhere: reached by a function, taken back by another such tool, said in a file."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from amends import AsyncRuntime, Held, NoEffect, Runtime, Waiting, current_call, declare, tool
from amends.errors import BadConfig, BadDeclaration, RolledBack, RunBlocked, UsageError
from amends.testing import runtime


class Shop:
    """A provider: what it was asked for, and what stands."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.lose = False

    def charge(self, order: str) -> dict[str, Any]:
        self.said.append(f"charge {order}")
        if self.lose:
            raise TimeoutError("no answer")
        return {"id": f"ch_{order}", "lines": [{"sku": "S1"}]}

    def refund(self, charge: str, sku: str = "", key: str = "") -> None:
        self.said.append(f"refund {charge}{sku and f' {sku}'}")

    def find(self, order: str) -> dict[str, Any]:
        return {"charge": {"id": f"ch_{order}"} if f"charge {order}" in self.said else None}


BACK = {"tool": "refund", "args": {"charge": "$result.id", "sku": "$result.lines.0.sku", "key": "$key"}}


def test_a_tool_takes_another_one_back_by_its_name_with_the_arguments_of_a_table() -> None:
    shop = Shop()
    rt = Runtime("memory:", tools=[declare("charge", compensate=BACK), declare("refund", kind="pivot")])
    rt.reach({"charge": shop.charge, "refund": shop.refund, "nobody declared this": print})
    with pytest.raises(RolledBack), rt.run() as run:
        assert run.answer("charge", {"order": "7"}).status == "done"  # no handler: it is reached
        run.rollback("enough")
    assert shop.said == ["charge 7", "refund ch_7 S1"]


def test_a_compensation_is_sent_its_own_key_and_can_name_the_call_it_takes_back() -> None:
    keys: dict[str, str] = {}
    back = {"tool": "refund", "args": {"key": "$key", "charge_key": "$call.key", "charge": "$call.id"}}
    rt = Runtime("memory:", tools=[declare("charge", compensate=back), declare("refund", kind="pivot")])

    def charge(order: str) -> None:
        keys["sent"], keys["id"] = current_call().key, current_call().id

    rt.reach({"charge": charge, "refund": lambda **given: keys.update(given)})
    with pytest.raises(RolledBack), rt.run() as run:
        run.answer("charge", {"order": "7"})
        run.rollback("enough")
    assert (keys["charge_key"], keys["charge"]) == (keys["sent"], keys["id"])
    assert keys["key"] != keys["sent"], "the provider would answer the refund from its memory of the charge"


def test_a_probe_is_asked_with_the_key_that_the_call_has_sent() -> None:
    sent: list[str] = []
    asked = ""
    probe = {"tool": "find", "args": {"key": "$key"}}
    rt = Runtime("memory:", tools=[declare("charge", kind="pivot", probe=probe), declare("find", kind="read")])

    def find(key: str) -> dict[str, int]:
        nonlocal asked
        asked = key
        return {"id": 1}

    rt.reach({"find": find})

    def charge(order: str) -> None:
        sent.append(current_call().key)
        raise TimeoutError("no answer")

    with rt.run() as run:
        assert run.answer("charge", {"order": "7"}, handler=charge).status == "done"
    assert [asked] == sent


@pytest.mark.parametrize(
    "found, status",
    [
        ({"charges": []}, "failed"),
        ({"charges": None}, "failed"),
        ({}, "failed"),
        ({"charges": [{"id": 1}]}, "done"),
        ({"error": "no such order, or a bad day"}, "in_doubt"),
        ({"charges": {"data": []}}, "in_doubt"),
    ],
)
def test_an_answer_without_the_field_that_a_probe_looks_at_says_nothing(found: object, status: str) -> None:
    probe = {"tool": "find", "args": {}, "result": "$result.charges.0"}
    tools = [declare("charge", kind="pivot", probe=probe), declare("find", kind="read")]
    rt = Runtime("memory:", tools=tools, wait=0)
    rt.reach({"find": lambda: found})

    errors: list[Exception] = [NoEffect("closed"), TimeoutError("no answer")]

    def charge(order: str) -> None:
        raise errors.pop()  # what is absent is started again

    with contextlib.suppress(RunBlocked), rt.run() as run:
        assert run.answer("charge", {"order": "7"}, handler=charge).status == status


def test_it_is_asked_by_the_names_that_it_has_where_no_table_says_otherwise() -> None:
    said: list[str] = []
    rt = Runtime("memory:", tools=[declare("book", compensate="cancel"), declare("cancel", kind="pivot")])
    rt.reach({"cancel": lambda room, result: said.append(f"cancel {room} {result}")})
    with pytest.raises(RolledBack), rt.run() as run:
        run.answer("book", {"room": 7}, handler=lambda room: f"b{room}")
        run.rollback("enough")
    assert said == ["cancel 7 b7"]


def test_both_colours_reach() -> None:
    shop = Shop()

    async def charge(order: str) -> dict[str, Any]:
        return shop.charge(order)

    async def refund(**kwargs: Any) -> None:
        shop.refund(**kwargs)

    async def main() -> None:
        tools = [declare("charge", compensate=BACK), declare("refund", kind="pivot")]
        async with AsyncRuntime("memory:", tools=tools) as rt:
            rt.reach({"charge": charge, "refund": refund})
            with pytest.raises(RolledBack):
                async with rt.run() as run:
                    await run.answer("charge", {"order": "7"})
                    await run.rollback("enough")

    asyncio.run(main())
    assert shop.said == ["charge 7", "refund ch_7 S1"]


@pytest.mark.parametrize("sent, status", [("7", "done"), ("8", "failed")])
def test_a_tool_that_finds_things_is_a_probe(sent: str, status: str) -> None:
    shop = Shop()
    probe = {"tool": "find", "args": {"order": "$args.order"}, "result": "$result.charge"}
    rt = Runtime("memory:", tools=[declare("charge", kind="pivot", probe=probe), declare("find", kind="read")])
    rt.reach({"find": shop.find})

    def charge(order: str) -> None:
        shop.said.append(f"charge {sent}")
        raise TimeoutError("no answer")

    with rt.run() as run:
        answer = run.answer("charge", {"order": "7"}, handler=charge)
    assert answer.status == status
    assert answer.value == ({"id": "ch_7"} if status == "done" else None)


def test_mere_words_are_no_answer_of_a_probe() -> None:
    rt = Runtime("memory:", tools=[declare("charge", kind="pivot", probe="find"), declare("find", kind="read")], wait=0)
    rt.reach({"find": lambda order: "No results found."})

    def charge(order: str) -> None:
        raise TimeoutError("no answer")

    with pytest.raises(RunBlocked), rt.run() as run:
        assert run.answer("charge", {"order": "7"}, handler=charge).status == "in_doubt"


def test_a_staged_call_that_outlived_its_process_is_done_where_it_is_reached(tmp_path: Path) -> None:
    mails: list[str] = []
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    tools = [declare("mail", kind="retriable", idempotent=True)]
    with Runtime(url, tools=tools) as rt:
        run = rt.open("order-7")
        assert run.answer("mail", {"to": "ann"}, handler=lambda to: mails.append(to)).status == "staged"
        run.leave(Waiting("later"))
    with Runtime(url, tools=tools) as rt:
        rt.reach({"mail": lambda to: mails.append(f"reached {to}")})
        rt.open("order-7").commit()
        assert rt.report("order-7").state == "committed"
    assert mails == ["reached ann"]


def test_a_worker_leaves_alone_what_it_cannot_take_back() -> None:
    shop = Shop()
    rt = runtime(tools=[declare("charge", compensate=BACK), declare("refund", kind="pivot")])
    run = rt.open("order-7")
    run.answer("charge", {"order": "7"}, handler=shop.charge)
    run.leave(Waiting("its process ends here"))
    rt.clock.advance(60)
    assert rt.recover()[0].skipped == ("charge",)
    rt.reach({"refund": shop.refund})
    assert rt.recover()[0].state == "rolled_back"
    assert shop.said == ["charge 7", "refund ch_7 S1"]


def test_of_two_tools_that_nobody_declared_each_is_done_when_it_may_be() -> None:
    done: list[str] = []
    rt = Runtime("memory:")
    with pytest.raises(Held), rt.run("a") as run:
        for text in ("x", "y"):
            assert run.answer("stamp", {"text": text}, handler=done.append).status == "held"
    first = next(asked for asked in rt.approvals() if asked.call.args["text"] == "x")
    rt.approve(first.id, digest=first.digest, by="anna")
    with pytest.raises(Held), rt.run("a", history=True) as run:
        answers = [run.answer("stamp", {"text": text}, handler=lambda text: done.append(text)) for text in ("y", "x")]
        assert [answer.status for answer in answers] == ["held", "done"]
    assert done == ["x"]


# ---- leaving a run that was opened by hand ------------------------------------------------


def test_an_opened_run_is_left_as_its_block_would_leave_it() -> None:
    taken: list[str] = []
    book = tool(lambda room: f"b{room}", name="book", compensate=lambda result: taken.append(result))
    rt = Runtime("memory:", tools=[book])
    for error, state in ((None, "committed"), (ValueError("no"), "rolled_back"), (Waiting("later"), "open")):
        run = rt.open(state)
        run.call(book, 7)
        run.leave(error)
        assert rt.report(state).state == state
    assert taken == ["b7"]
    rt.open("open").leave()
    assert rt.report("open").state == "committed"


def test_an_opened_async_run_too() -> None:
    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[declare("look", kind="read")]) as rt:
            run = await rt.open("a")
            await run.leave(Waiting("later"))
            assert (await rt.report("a")).state == "open"
            await (await rt.open("a")).leave()
            assert (await rt.report("a")).state == "committed"

    asyncio.run(main())


def test_a_body_cannot_leave_its_own_run() -> None:
    rt = Runtime("memory:", tools=[declare("look", kind="read")])
    run = rt.open("a")
    answer = run.answer("look", {}, handler=lambda: run.leave())
    assert isinstance(answer.error, UsageError)
    run.leave()


# ---- a tool of amends inside a handler ----------------------------------------------------


def test_a_tool_called_in_the_handler_of_its_own_call_is_its_body() -> None:
    done: list[str] = []

    @tool(kind="pivot", key="order")
    def pay(order: str) -> str:
        done.append(order)
        return f"paid_{order}"

    rt = Runtime("memory:", tools=[pay])
    with rt.run() as run:
        assert run.answer("pay", {"order": "7"}, handler=lambda order: pay(order=order)).text == '"paid_7"'
    assert done == ["7"]
    assert len(run.report().calls) == 1


def test_so_it_is_in_the_other_colour() -> None:
    @tool(kind="pivot")
    async def pay(order: str) -> str:
        return f"paid_{order}"

    async def framework(order: str) -> Any:
        return await asyncio.create_task(pay(order=order))

    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[pay]) as rt, rt.run() as run:
            assert (await run.answer("pay", {"order": "7"}, handler=framework)).value == "paid_7"
            assert len((await run.report()).calls) == 1

    asyncio.run(main())


# ---- tables -------------------------------------------------------------------------------

FILE = """
[[tools]]
name = "balance"
kind = "read"

[[tools]]
name = "charge"
key = "order"
ignore = ["note"]
cost = {usd = 0.5}
doubt = ["builtins:KeyError"]
compensate = {tool = "refund", args = {charge = "$result.id"}, absent_ok = true}
probe = "shop_of_the_test:find"

[[tools]]
name = "refund"
kind = "pivot"
needs_approval = "shop_of_the_test:is_much"
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    found: Any = ModuleType("shop_of_the_test")
    found.find = lambda order: None
    found.is_much = lambda call: True
    monkeypatch.setitem(sys.modules, "shop_of_the_test", found)
    return found


def said(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, file: str = "amends.toml") -> Runtime:
    (folder / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    return Runtime("memory:")


@pytest.mark.parametrize("file", ["amends.toml", "pyproject.toml"])
def test_a_file_declares_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, file: str) -> None:
    text = FILE if file == "amends.toml" else FILE.replace("[[tools]]", "[[tool.amends.tools]]")
    rt = said(tmp_path, monkeypatch, text, file)
    shop = Shop()
    rt.reach({"refund": lambda charge: shop.refund(charge)})
    with pytest.raises(RolledBack), rt.run() as run:
        first = run.answer("charge", {"order": "7", "note": "a"}, handler=lambda order, note: shop.charge(order))
        again = run.answer("charge", {"order": "7", "note": "b"}, handler=lambda order, note: shop.charge(order))
        assert (first.status, again.status) == ("done", "replayed")
        assert run.answer("refund", {"charge": "x"}).status == "held"
        run.rollback("enough")
    assert shop.said == ["charge 7", "refund ch_7"]
    assert rt.settings["tools"].origin == str(tmp_path / file)
    assert [table["name"] for table in rt.settings["tools"].value] == ["balance", "charge", "refund"]


def test_tools_of_a_file_stand_beside_those_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amends.toml").write_text('[[tools]]\nname = "look"\nkind = "read"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    rt = Runtime("memory:", tools=[declare("pay", kind="pivot")])
    with rt.run() as run:
        assert [run.answer(name, {}, handler=lambda: 1).status for name in ("look", "pay")] == ["done", "done"]
    with pytest.raises(BadDeclaration, match="two tools are called look"):
        Runtime("memory:", tools=[declare("look", kind="read")])


@pytest.mark.parametrize(
    "text, error, words",
    [
        ('tools = "charge"', BadConfig, "tools is a list of tables"),
        ('[[tool]]\nname = "charge"', BadConfig, "'tool' is not a setting .* did you mean 'tools'"),
        ('[[rule]]\nneeds = "approval"', BadConfig, "'rule' is not a setting .* did you mean 'rules'"),
        ("tools = [1]", BadConfig, "tool 1 is 1, which is not a table"),
        ('[[tools]]\nkind = "read"', BadConfig, "tool 1 has no name"),
        ('[[tools]]\nname = "a"\nkid = "read"', BadConfig, "did you mean 'kind'"),
        ('[[tools]]\nname = "a"\nlocks = ["x"]', BadConfig, "is a function, so it needs Python"),
        ('[[tools]]\nname = "a"\nkind = "reed"', BadDeclaration, "kind must be"),
        ('[[tools]]\nname = "a"', BadDeclaration, "neither a kind nor a compensation"),
        ('[[tools]]\nname = "a"\ncompensate = "b"', BadDeclaration, "is not a tool of this runtime"),
        ('[[tools]]\nname = "a"\ncompensate = "no.such:thing"', BadDeclaration, "cannot be imported"),
        ('[[tools]]\nname = "a"\ncompensate = "sys:nothing"', BadDeclaration, "cannot be imported"),
        ('[[tools]]\nname = "a"\ncompensate = {args = {}}', BadDeclaration, "names no tool"),
        ('[[tools]]\nname = "a"\ncompensate = {tool = "sys:exit", arg = {}}', BadDeclaration, "which is unknown"),
        (
            '[[tools]]\nname = "a"\ncompensate = {tool = "sys:exit", args = {x = "$it.id"}}',
            BadDeclaration,
            r"begins with \$result, \$before, \$args, \$key, \$call",
        ),
        (
            '[[tools]]\nname = "a"\nkind = "pivot"\nprobe = {tool = "sys:exit", args = {x = "$result.id"}}',
            BadDeclaration,
            "a call in doubt has no result",
        ),
        ('[[tools]]\nname = "a"\nkind = "pivot"\ndoubt = ["x:Y"]', BadDeclaration, "cannot be imported"),
        ('[[tools]]\nname = "a"\nkind = "pivot"\ndoubt = 5', BadDeclaration, "its doubt is 5"),
        ('[[tools]]\nname = "a"\nkind = "pivot"\ndoubt = [5]', BadDeclaration, "its doubt is 5"),
        ('[[tools]]\nname = "a"\ncompensate = ".here:f"', BadDeclaration, "cannot be imported"),
        ('[[tools]]\nname = "a"\ncompensate = {tool = "os:getcwd", wins = "no"}', BadDeclaration, "True or False"),
        ('[[tools]]\nname = "a"\ncompensate = {tool = "os:getcwd", absent_ok = 0}', BadDeclaration, "True or False"),
        (
            '[[tools]]\nname = "a"\ncompensate = {tool = "sys:exit", args = {x = {id = "$result.id"}}}',
            BadDeclaration,
            "must be the whole argument",
        ),
        (
            '[[tools]]\nname = "a"\nkind = "pivot"\nprobe = {tool = "sys:exit", result = "contact.id"}',
            BadDeclaration,
            r"result is a path in its answer, \$result",
        ),
        ('[[tools]]\nname = "a"\nkind = "pivot"\nprobe = ""', BadDeclaration, "is not a tool of this runtime"),
    ],
)
def test_a_table_that_means_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as refused:
        said(tmp_path, monkeypatch, text)
    assert str(tmp_path / "amends.toml") in str(refused.value)


def test_a_module_that_cannot_be_run_is_named_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_shop_of_the_test.py").write_text("raise RuntimeError('no such account')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadDeclaration, match=r"cannot be imported: no such account.*amends\.toml"):
        said(tmp_path, monkeypatch, '[[tools]]\nname = "a"\ncompensate = "broken_shop_of_the_test:back"')


def test_a_result_without_what_the_table_names_blocks_the_run_and_says_so() -> None:
    tools = [
        declare("charge", compensate={"tool": "refund", "args": {"charge": "$result.no"}, "retry": 1}),
        declare("refund", kind="pivot"),
    ]
    rt = Runtime("memory:", tools=tools)
    rt.reach({"refund": lambda charge: None})
    with pytest.raises(RunBlocked) as told, rt.run() as run:
        run.answer("charge", {"order": "7"}, handler=lambda order: {"id": 1})
        run.rollback("enough")
    assert "there is no 'no' in dict" in f"{told.value.hint} {told.value.residue[0].why}"
