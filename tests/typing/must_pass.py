# pyright: strict
# Both checkers must find nothing here; see tests/surface/test_typing.py.
import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type
from uuid import UUID
from amends import Absent, Answer, Approval, AsyncRun, AsyncRuntime, Budget, BudgetState, Call, Comparison, Cost, CostLine, Happened, Probed, Replayed, Retry, Rule, RuleTest, RuleVerdict, Run, Runtime, Staged, Tool, ToolCall, Unknown, current_call, declare, spent, tool
from amends.links import Verb, sign, verify
from amends.llm import Finished, Heard, ModelServer, Reply, ScriptedModel, run_agent, run_agent_async
from amends.notify import Webhook, slack_payload

@dataclass
class Receipt:
    id: str

@tool
def plain(order_id: str, cents: int = 1) -> Receipt: return Receipt("1")

@tool(key=("order_id",))
def charge(order_id: str, cents: int) -> Receipt: return Receipt(current_call().key)

@charge.compensate
def refund(result: Receipt) -> None: ...

@charge.probe
def find(order_id: str) -> Probed[Receipt]:
    if order_id == "x": return Absent()
    return Happened(Receipt("1")) if order_id else Unknown("no")

@tool(kind="retriable")
def send_mail(to: str) -> str: return "id"

@tool(kind="pivot", needs_approval=lambda call: call.args["cents"] > 100_00)
def wire(cents: int) -> str: return "w"

@tool(kind="pivot", at="commit")
def late_wire(cents: int) -> str: return "w"

@tool
async def acharge(order_id: str) -> Receipt: return Receipt("1")

@tool(key="order_id")
async def acharge2(order_id: str) -> Receipt: return Receipt("1")

@tool(kind="retriable")
async def amail(to: str) -> str: return "id"

@tool
class Payment:
    def execute(self, order_id: str) -> Receipt: return Receipt("1")
    def compensate(self, result: Receipt) -> None: ...

@tool(key="order_id")
class Payment2:
    def execute(self, order_id: str) -> Receipt: return Receipt("1")
    def compensate(self, result: Receipt) -> None: ...

@tool
class APayment:
    async def execute(self, order_id: str) -> Receipt: return Receipt("1")
    async def compensate(self, result: Receipt) -> None: ...

class Gateway:
    def __init__(self, url: str) -> None: ...
    def execute(self, order_id: str) -> Receipt: return Receipt("1")
    def compensate(self, result: Receipt) -> None: ...
    def charge(self, order_id: str, cents: int) -> Receipt: return Receipt("1")
    def refund(self, result: Receipt) -> None: ...

inst = tool(Gateway("u"))
gw = Gateway("u")
bound = tool(gw.charge, compensate=gw.refund)

assert_type(plain("1"), Receipt)
assert_type(charge(order_id="1", cents=2), Receipt)
assert_type(send_mail(to="a"), Staged[str])
assert_type(wire(cents=1), str)
assert_type(late_wire(cents=1), Staged[str])
payment = tool(Payment())
assert_type(payment(order_id="1"), Receipt)
apayment = tool(APayment())
assert_type(inst(order_id="1"), Receipt)
assert_type(bound(order_id="1", cents=1), Receipt)
assert_type(charge.with_options(again="second box")(order_id="1", cents=2), Receipt)
assert_type(charge.with_options(connection=object())(order_id="1", cents=2), Receipt)
assert_type(refund(Receipt("1")), None)

rt = Runtime("sqlite:///x.db", tools=[plain, charge, send_mail, wire, late_wire, acharge, amail, Payment, APayment, inst, bound])
with rt.run("a") as run:
    r = run.call(charge, order_id="1", cents=2)
    assert_type(r, Receipt)
    assert_type(run.call(acharge, order_id="1"), Receipt)
    assert_type(run.call(amail, to="1"), Staged[str])
    assert_type(run.call(apayment, order_id="1"), Receipt)
    assert_type(run.once("k", Receipt, "1"), Receipt)
after = r.id   # not possibly-unbound

def agent(order: str, cents: int = 1) -> Receipt: return charge(order_id=order, cents=cents)
def of_run(run: Run) -> datetime: return run.now()
assert_type(rt.replay("a", agent, "1", cents=2), Receipt)
assert_type(rt.replay(b"bundle", agent, "1"), Receipt)
with rt.replaying("a", until="call_1", strict=False) as replayed:
    assert_type(replayed, Run)
    assert_type(of_run(replayed), datetime)
assert_type(replayed.uuid(), UUID)
assert_type(replayed.random().random(), float)
assert_type(rt.replay_each(["a"], agent), list[Replayed])

async def main() -> None:
    art = AsyncRuntime(tools=[charge, acharge])
    async with art.run("a") as run:
        assert_type(await acharge(order_id="1"), Receipt)
        assert_type(await amail(to="x"), Staged[str])
        assert_type(await run.call(charge, order_id="1", cents=2), Receipt)
        assert_type(await run.call(acharge, order_id="1"), Receipt)
        a, b = await asyncio.gather(acharge(order_id="1"), run.call(charge, order_id="1", cents=1))
        assert_type(a, Receipt); assert_type(b, Receipt)
        assert_type(await run.now(), datetime)
    async def again(n: int) -> Receipt: return await acharge(order_id=str(n))
    assert_type(await art.replay("a", again, 1), Receipt)
    async with art.replaying("a") as replayed:
        assert_type(replayed, AsyncRun)

# ---- the call form ------------------------------------------------------------------------

def mail(to: str, urgent: bool = False) -> str: return "id"
async def async_mail(to: str) -> str: return "id"

class Mailer:
    def execute(self, to: str) -> str: return "id"

class AsyncMailer:
    async def execute(self, to: str) -> str: return "id"

assert_type(tool(mail, kind="retriable", idempotent=True)(to="a"), Staged[str])
assert_type(tool(mail, kind="retriable", idempotent="24h", name="send")("a", urgent=True), Staged[str])
assert_type(tool(mail, kind="pivot", at="commit", after=["charge"])(to="a"), Staged[str])
assert_type(tool(mail, kind="pivot", after="charge", at="call")(to="a"), str)
assert_type(tool(mail, kind="read", retry=3, timeout=2, scope="run")(to="a"), str)
assert_type(tool(Mailer(), kind="retriable", idempotent=True)(to="a"), Staged[str])
assert_type(tool(Mailer(), kind="pivot", at="commit")(to="a"), Staged[str])
assert_type(tool(gw.charge, key=lambda call: call.args["order_id"], ignore="rest", compensate=gw.refund)("1", 2), Receipt)
assert_type(tool(Payment, version="2"), type[Payment])

async def call_forms() -> None:
    assert_type(await tool(async_mail, kind="retriable", idempotent=True)(to="a"), Staged[str])
    assert_type(await tool(async_mail, kind="pivot", at="commit")(to="a"), Staged[str])
    assert_type(await tool(async_mail, kind="pivot")(to="a"), str)
    assert_type(await tool(AsyncMailer(), kind="retriable", idempotent=True)(to="a"), Staged[str])
    assert_type(await tool(AsyncMailer(), kind="pivot", at="commit")(to="a"), Staged[str])

# ---- every option, and the twins with theirs ----------------------------------------------

@tool(
    name="bank.pay", kind="compensatable", version="2", key=("a",), ignore=("note",), scope="ledger", on_conflict="hold",
    on_failure="rollback", at="call", needs_approval=lambda call: call.args["cents"] > 5, retry=Retry(attempts=2, on=KeyError),
    timeout=3.0, idempotent="24h", doubt=(OSError,), cost=lambda call: call.args["cents"] / 100,
    locks=lambda call: [call.args["a"]], on_lock="raise", redact=("card",), order="advise", settle=30,
)
def pay(a: str, cents: int, card: str, note: str = "") -> Receipt: return Receipt(a)

@pay.compensate(idempotent=True, absent_ok=True, wins=True, retry=Retry(attempts=9), timeout=5, probe=find)
def unpay(result: Receipt, call: Call) -> None: ...

@pay.probe(settle=60)
async def look(call: Call) -> Probed[Receipt]: return Absent()

@pay.guard
def untouched(result: Receipt) -> bool: return True

@pay.list_effects
def listing() -> list[str]: return []

assert_type(untouched(Receipt("1")), bool)
assert_type(pay.fn, Callable[..., object])
assert_type(pay.name, str)
pay.compensate(unpay, idempotent=True)
elsewhere = declare("search", kind="read", key="q", cost=0.5)
undone = declare("book", compensate={"tool": "cancel", "args": {"id": "$result.id"}}, probe="find")
more = Runtime(tools=[pay, elsewhere, Payment])

def generic(tools: list[Tool[..., Any]]) -> None: ...
generic([pay, acharge])

@tool(kind="read", cost=0.5)
def priced(q: str) -> str: return q
@tool(kind="read", cost=lambda call: {"usd": call.args["n"], "tokens": 5})
def priced_by(n: int) -> int: return n
@tool(kind="read", cost=lambda call: (Cost(1, refundable=0.5), Cost(2, "eur")))
def priced_twice(n: int) -> int: return n
paying = Runtime("memory:", tools=[priced], budgets=[Budget(5, per="agent", every="day", then="hold")])
with paying.run("r", budgets=[Budget(1, unit="calls")]):
    spent(0.1)
    spent(5, "tokens")
assert_type(paying.budgets("unit:usd"), list[BudgetState])
assert_type(paying.costs(by="day", filter="tool:x"), list[CostLine])

def hear(approval: Approval) -> None: ...
async def ahear(approval: Approval) -> str: return approval.links.get("approve", approval.id)
hook = Webhook("https://ops.example", secret="s", body=slack_payload)
told = Runtime("memory:", on_approval_needed=hear, link_secret="a-long-secret-of-yours")
Runtime("memory:", on_approval_needed=ahear)
AsyncRuntime("memory:", on_approval_needed=hook)
assert_type(sign(told.approval("a"), "approve", secret="s", by="anna"), str)
assert_type(verify("t", secret=["s"]).verb, Verb)
assert_type(told.redeem("t", by="anna"), Approval)

def says(heard: Heard) -> str: return heard.results[-1]
turns = [("charge", {"order_id": "1", "cents": 5}), ("search", {"q": "x"})]
script = ScriptedModel(turns, ("charge", {"order_id": "1"}), ["a word", ("search", {"q": "x"})], Reply("cut", stop="length"), says, "done")
done = run_agent(paying, "do it", client=script, model="m", id="r", tools=[charge, "search"], budgets=[Budget(1)], deadline=5.0, on_text=print)
assert_type(done, Finished)
held = [one.call for one in done.waiting]
async def aagent(rt: AsyncRuntime) -> str:
    return (await run_agent_async(rt, [{"role": "user", "content": "hi"}], client=script, model="m", api="responses")).text
with paying.run() as answering:
    assert_type(answering.answer_all([ToolCall("charge", {"order_id": "1"}), ToolCall("search", "{}", "call_1")]), list[Answer])
with ModelServer(script, usage={"messages": {"input_tokens": 1}}) as server:
    assert_type(server.url, str)

def forks(rt: Runtime) -> None:
    assert_type(rt.fork("r", at="call"), str)
    assert_type(rt.fork("r", at="call", id="f"), str)
    compared = rt.compare("r", "f")
    assert_type(compared, Comparison)
    assert_type(compared.alike, bool)

async def async_forks(art: AsyncRuntime) -> None:
    assert_type(await art.fork("r", at="call"), str)
    assert_type(await art.compare("r", "f"), Comparison)

def rules(rt: Runtime) -> None:
    Runtime("memory:", rules=[Rule("charge", args={"cents": ">100", "payee": {"iban": "DE*"}})], repeats=True)
    tested = rt.test_rules("charge", {"cents": 5}, agent="planner")
    assert_type(tested, RuleTest)
    assert_type(tested.rules, tuple[RuleVerdict, ...])
    assert_type(rt.warnings, tuple[str, ...])
    assert_type(rt.may_repeat("charge"), bool)
    @tool(kind="pivot", repeats=False)
    def once() -> None: ...

async def async_rules(art: AsyncRuntime) -> None:
    assert_type(await art.test_rules("charge", '{"cents": 5}'), RuleTest)
    assert_type(art.warnings, tuple[str, ...])
