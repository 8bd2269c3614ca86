# pyright: strict
# every line marked E must be an error
from amends import AsyncRuntime, Runtime, tool
from amends.llm import ScriptedModel, run_agent
@tool(key=("order_id",))
def charge(order_id: str, cents: int) -> int: return 1
@tool
async def acharge(order_id: str) -> int: return 1
@tool(kind="retriable")
def send_mail(to: str) -> str: return "id"
charge(order="1", cents=2)  # E wrong name
charge(order_id=1, cents=2)  # E wrong type
x: str = charge(order_id="1", cents=2)  # E wrong result
m: str = send_mail(to="a")  # E Staged
rt = Runtime(tools=[charge])
art = AsyncRuntime(tools=[charge])
with rt.run() as run:
    run.call(charge, order_id="1")  # E missing cents
    run.call(charge, {"order_id": "1"})  # E dict
def agent(order: str) -> int: return 1
rt.replay("a", agent)  # E an argument is missing
rt.replay("a", agent, 1)  # E not a str
z: str = rt.replay("a", agent, "1")  # E int
rt.replay("a", agent, "1", until="call_1")  # E not an argument of agent
with art.run() as run2:  # E needs async with
    pass
async def main() -> None:
    acharge(order_id="1")  # E never awaited
    async with art.run() as run:
        run.call(charge, order_id="1", cents=1)  # E never awaited
        y: int = acharge(order_id="1")  # E
class Shop:
    @tool
    def pay(self, order_id: str) -> int: return 1
Shop().pay(order_id="1")  # E method
@tool(kind="nonsense")  # E
def g() -> None: ...
@charge.probe  # E not a probe answer
def wrong_probe(order_id: str) -> bool: return True
m2: str = tool(send_mail.fn, kind="retriable", idempotent=True)(to="a")  # E Staged
def mail(to: str) -> str: return "id"
m3: str = tool(mail, kind="retriable", idempotent=True)(to="a")  # E Staged
m4: str = tool(mail, kind="pivot", at="commit")(to="a")  # E Staged
tool(mail, kind="retriable", idempotent=True)(too="a")  # E wrong name
tool(mail, kind="retriable", compensate=mail)  # E a retriable is never taken back
tool(mail, kind="read", at="commit")  # E only a pivot waits for the commit
tool(mail, approve=True)  # E no such option
tool(mail, idempotnt=True)  # E a misspelt option
Runtime("memory:", leese=3.0)  # E a misspelt setting
AsyncRuntime("memory:", leese=3.0)  # E a misspelt setting
tool(mail, kind="read", scope="everywhere")  # E no such scope
charge.with_options(agian="second box")  # E no such option
charge.compensate(mail, idempotent="yes")  # E not a bool
charge.probe(settle="long")  # E not seconds
def deaf() -> None: ...
Runtime("memory:", on_approval_needed=deaf)  # E a hook gets the approval
run_agent(AsyncRuntime(), "x", client=ScriptedModel("x"), model="m")  # E the other colour
run_agent(Runtime(), "x", client=ScriptedModel("x"), model="m", api="graphql")  # E no such API
run_agent(Runtime(), "x", client=ScriptedModel("x"), model="m", recover="never")  # E no such policy
run_agent(Runtime(), "x", model="m")  # E nobody to ask
tool(mail, kind="read", repeats="no")  # E not a bool
Runtime("memory:", repeats="yes")  # E not a bool
