"""For agents: the tools, and runs that a client drives call by call."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Literal
from urllib.parse import quote

from pydantic import Field

from amends import Answer, AsyncRun, Report, RunInfo, ToolCall
from amends.errors import (
    Busy,
    Error,
    Forbidden,
    Held,
    KeyConflict,
    LedgerError,
    NotFound,
    RolledBack,
    RunEnded,
    RunNotFound,
    Suspended,
    UsageError,
    Waiting,
)
from amends.serve import children
from amends.serve.children import Child, OpenChild
from amends.serve.exchange import Body, Exchange, FilterQuery, Query, Reply, page_of
from amends.serve.problems import BadRequest, Invalid, KeyMissing
from amends.serve.sessions import Session

KEY_HEADER: Final = "idempotency-key"
KEY_CHARS_MAX: Final = 255
REPLAYED: Final = {"Idempotent-Replayed": "true"}

# ---- What a client sends


class ToolsQuery(Query):
    """How to describe the tools."""

    style: Literal["openai", "responses", "anthropic", "gemini", "ollama", "mcp"] = Field(
        "openai", description="Whose model reads them"
    )
    strict: bool = Field(False, description="In the strict form of that style, if it has one")


class OpenRun(Body):
    """A new run, or the run of this id. The fields are the parameters of ``rt.open``."""

    id: str | None = Field(None, min_length=1, max_length=512, description="Else the header Idempotency-Key names it")
    input: Any = Field(None, description="Recorded; another input for the same id is a conflict")
    tags: list[str] = Field(default_factory=list, max_length=50)
    recover: Literal["rollback", "resume", "wait"] = Field("rollback", description="If the client goes silent")
    interrupted: Literal["block", "commit"] | None = None
    wait: float | None = Field(None, ge=0, le=3_600)
    wait_approval: float | None = Field(None, ge=0, le=3_600)
    deadline: float | None = Field(None, gt=0, le=3_153_600_000, description="Seconds")
    if_rolled_back: Literal["again", "raise"] = "again"
    requires: list[str] | None = Field(None, max_length=100, description="Tools that must have succeeded at the end")
    on_open_failure: Literal["rollback", "commit"] | None = None
    history: bool = False
    reads: Literal["record", "again"] = "record"
    agent: str | None = Field(None, max_length=200, description="A token that speaks for an agent decides this itself")
    client_lease: float | None = Field(None, gt=0, le=3_600, description="Seconds without a request until it is let go")


class MakeCall(Body):
    """What a model asked for."""

    tool: str = Field(min_length=1, max_length=200)
    args: dict[str, Any] = Field(default_factory=dict)
    tool_call_id: str | None = Field(None, max_length=512, description="The model's id of this request: recorded")
    again: str | None = Field(None, max_length=2_000, description="Why this is a deliberate repeat")
    key: str | None = Field(None, min_length=1, max_length=KEY_CHARS_MAX, description="Or the header Idempotency-Key")


class Foreseen(Body):
    """A call that a model is about to ask for."""

    tool: str = Field(min_length=1, max_length=200)
    args: dict[str, Any] = Field(default_factory=dict)
    tool_call_id: str | None = Field(None, max_length=512)
    key: str | None = Field(None, min_length=1, max_length=KEY_CHARS_MAX, description="As for the call itself")


class TurnCall(Body):
    """One call of a turn."""

    tool: str = Field(min_length=1, max_length=200)
    args: dict[str, Any] = Field(default_factory=dict)
    tool_call_id: str | None = Field(None, max_length=512)


class Turn(Body):
    """The calls of one turn of a model."""

    calls: list[TurnCall] = Field(min_length=1, max_length=100)


class Plan(Body):
    """A list of ``{"tool", "args"}``; the calls of an inner list run in parallel."""

    plan: list[dict[str, Any] | list[dict[str, Any]]] = Field(max_length=200)


class Commit(Body):
    """The output of the run, if it has one."""

    output: Any = Field(None, description="Recorded with the run")


class RollBack(Body):
    """Why a run is taken back; a plan, by its hash, only by an operator."""

    why: str = Field(min_length=1, max_length=2_000)
    plan: str | None = Field(None, max_length=200, description="The hash of the plan that was shown")
    accept: list[str] = Field(default_factory=list, max_length=1_000, description="Calls that stay")


# ---- Reading


async def schemas(x: Exchange) -> Reply:
    """Describe the tools as a model gets them."""
    tenant = x.service.own_tenant(x)
    found = x.rt.schemas(x.query.style, strict=x.query.strict)
    return Reply({"tools": [one for one in found if not x.service.desk.is_hidden(_name_of(one), tenant)]})


async def kind_of(x: Exchange) -> Reply:
    """Return the kind of a tool, and whether a model may repeat its calls on purpose."""
    tool = x.path["id"]
    kind = None if x.service.desk.is_hidden(tool, x.service.own_tenant(x)) else x.rt.kind_of(tool)
    if kind is None:
        raise NotFound(f"there is no tool {tool!r} here", hint="GET /v1/tools lists them")
    return Reply({"tool": tool, "kind": kind, "may_repeat": x.rt.may_repeat(tool)})


def _name_of(schema: dict[str, Any]) -> str:
    """Return the name of a tool from its description in any style."""
    return str(schema.get("name") or schema["function"]["name"])


async def runs(x: Exchange) -> Reply:
    """List runs, newest first."""
    query: FilterQuery = x.query
    return await page_of(x.rt.runs(query.filter, after=query.after), query, lambda one: one.place, keep=x.owns)


async def run(x: Exchange) -> Reply:
    """Return one run, with what happens to it at this moment."""
    found = await x.rt.info(x.path["id"])
    if not x.owns(found):
        raise RunNotFound(x.path["id"])
    return Reply(found.to_dict())


async def report(x: Exchange) -> Reply:
    """Return what a run did."""
    return Reply((await _report(x)).to_dict())


async def _report(x: Exchange) -> Any:
    found = await x.rt.report(x.path["id"])
    if not x.owns(found.run):
        raise RunNotFound(x.path["id"])
    return found


# ---- Opening


async def open(x: Exchange) -> Reply:
    """Open a run, or resume the run with this id."""
    said: OpenRun = x.body
    id = said.id or key_of(x)
    if id is None:
        raise KeyMissing("a run that is opened over HTTP needs an id, or the header Idempotency-Key")
    if (said.client_lease or 0.0) > (lease_s_max := x.service.limits.client_lease_s_max):
        wrong = f"body.client_lease: a client may be silent for at most {lease_s_max:g} s (client_lease_s_max)"
        raise Invalid(wrong, problems=(wrong,))
    if said.agent and x.who.agent and said.agent != x.who.agent:
        raise Forbidden(f"this token speaks for agent {x.who.agent}, not for {said.agent}", why="agent")
    known = await known_run(x, id)
    if x.service.sessions.found(x.tenant, id) is None:
        await _workers_back(x, id)
    options = {name: value for name, value in said if name not in ("id", "client_lease", "agent") and value is not None}
    options["input"] = said.input
    agent = x.who.agent or said.agent or ""
    # A run that this agent opened with another token of its own stays recorded under the name that it has.
    principal = x.who.name if known is None or x.is_wide else known.principal or ""
    session, was_known = await x.service.sessions.open(
        x.rt.scoped(agent=agent or None, principal=principal or None), x.tenant, id, options=options,
        lease_s=said.client_lease, agent=agent, principal=principal, begins=True,
    )  # fmt: skip
    if not x.owns(session):  # somebody else opened it in the same moment
        raise RunNotFound(id)
    x.uses.enter_context(session.request())
    await _note_driver(x, session)
    with session.request() as run:
        return Reply(_opened(run, session), 200 if was_known else 201, {"Location": place_of(x, id)})


def _opened(run: AsyncRun, session: Session) -> dict[str, Any]:
    facts = {"id": run.id, "state": run.state, "generation": run.generation, "resumed": run.resumed}
    return facts | {"input": run.input, "over": run.is_over, "client_lease": session.lease_s}


async def open_child(x: Exchange) -> Reply:
    """Open a run inside another one, or take up the child of this id; it is rolled back with its parent."""
    said: OpenChild = x.body
    name = said.id or key_of(x)
    if name is None:
        raise KeyMissing("a child run that is opened over HTTP needs an id, or the header Idempotency-Key")
    session = await session_of(x, x.path["id"], asks=True)
    child, was_known = await x.service.finished(x, session, children.opened(session, name, said.input))
    return Reply(_opened(child.run, child), 200 if was_known else 201, {"Location": place_of(x, child.run.id)})


async def known_run(x: Exchange, id: str) -> RunInfo | None:
    """Return the run of this id, if there is one; raise ``RunNotFound`` if it belongs to another agent.

    A run that is open here and was ended by somebody else, elsewhere, is not open any more.
    """
    session = x.service.sessions.found(x.tenant, id)
    if x.is_wide and session is None:
        return None
    try:
        found = (await x.rt.report(id)).run
    except RunNotFound:
        return None
    if not x.owns(found):
        raise RunNotFound(id)
    if session is not None and found.closed_at is not None:
        x.service.sessions.forget(x.tenant, id, session)
    return found


async def _workers_back(x: Exchange, id: str) -> None:
    """Give the workers of a run from before this server's start a moment to come back, with the tools of its calls."""
    if not x.service.desk.expects_workers:
        return
    try:
        found = await x.rt.report(id)
    except RunNotFound:
        return
    if found.run.closed_at is None:
        tools = await x.service.runtime(x.tenant).reserved_tools({call.tool for call in found.calls})
        await x.service.desk.await_tools(tools)


async def await_tools(x: Exchange, session: Session, tools: Iterable[str]) -> None:
    """Give the workers of these tools a moment to come back after a restart; its client is not silent meanwhile.

    A new run waits too if there are workers at all: its client may have come back before them.
    """
    if session.run.resumed or await x.service.desk.may_come():
        with session.request():
            await x.service.desk.await_tools(tools)


async def session_of(x: Exchange, id: str, *, asks: bool = False) -> Session:
    """Return the open run of this id. One that this server does not have is taken up, under its recorded names.

    ``asks``: for a call. Calls are asked for in the name of whoever the run belongs to, so nobody else makes calls in it:
    they could approve what they have asked for themselves.
    """
    tenant = x.tenant
    session = await x.service.sessions.present(tenant, id)
    if session is not None:
        if not x.owns(session):
            raise RunNotFound(id)
        _check_asks(x, id, session.principal, asks=asks)
        x.uses.enter_context(session.request())  # nobody may find it silent, or hand it over, until this is answered
        await _note_driver(x, session)
        session.has_asked = session.has_asked or asks
        return session
    if (child := children.found(x.service.sessions, tenant, id)) is not None:
        await session_of(x, child.root_id, asks=asks)
        return child
    info = (await x.rt.report(id)).run
    if not x.owns(info):
        raise RunNotFound(id)
    if info.parent is not None:
        children.refuse_ended(info)
        path = await children.path_of(x, info)
        return await children.taken_up(await session_of(x, path[0], asks=asks), path)
    _check_asks(x, id, info.principal or "", asks=asks)
    await _workers_back(x, id)
    rt = x.service.runtime(tenant).scoped(agent=info.agent, principal=info.principal, token=x.who.token or None)
    session, _ = await x.service.sessions.open(
        # Its client goes on without having opened it again, so its model still has the earlier results.
        rt, tenant, id, options={"if_rolled_back": "raise", "input": info.input, "history": True},
        lease_s=info.client_lease or None, agent=info.agent or "", principal=info.principal or "",
    )  # fmt: skip
    x.uses.enter_context(session.request())
    session.has_asked = asks
    await _note_driver(x, session)
    return session


def _check_asks(x: Exchange, id: str, principal: str, *, asks: bool) -> None:
    if asks and x.is_wide and principal and principal != x.who.name:
        raise Forbidden(
            f"calls of run {id} are asked for by {principal}, and you are {x.who.name}", why="principal",
            hint="commit it, take it back, suspend it; or open a run of your own",
        )  # fmt: skip


async def _note_driver(x: Exchange, session: Session) -> None:
    """Record by which token a run is driven from now on. Its opening names the first one."""
    if not x.who.token or session.token == x.who.token:
        return
    is_first, session.token = not session.token, x.who.token
    if not is_first:
        await x.rt.note_driver(session.run.id, by=x.who.name)


# ---- Calls


async def answer(x: Exchange) -> Reply:
    """Do what a model asked for, and say the outcome in words for the model."""
    said: MakeCall = x.body
    key = said.key or key_of(x)
    session = await session_of(x, x.path["id"], asks=True)
    given: dict[str, Any] = {"tool_call_id": said.tool_call_id, "again": said.again}
    if key is not None:
        given["key"] = lambda _: key
    await await_tools(x, session, [said.tool])
    made = session.run.answer(said.tool, said.args, **given)
    return answered(x, await x.service.finished(x, session, made))


def answered(x: Exchange, made: Answer) -> Reply:
    """Return the reply for an answer: 200 with a result or a refusal, 202 while a person is asked, else a problem."""
    error = made.error
    if isinstance(error, Held):
        place = {"Location": x.service.approval_place(x, error.approval)} if error.approval is not None else {}
        return Reply(made.to_dict(), 202, place | {"Retry-After": "5"})
    if isinstance(error, KeyConflict | Waiting | UsageError | LedgerError):
        raise error
    return Reply(made.to_dict(), 200, REPLAYED if made.status == "replayed" else {})


def key_of(x: Exchange) -> str | None:
    """Return the value of the header Idempotency-Key: a string of RFC 8941, or bare."""
    said = x.request.headers.get(KEY_HEADER)
    if said is None:
        return None
    text = said.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = re.sub(r"\\([\\\"])", r"\1", text[1:-1])
    if not text or len(text) > KEY_CHARS_MAX or not text.isprintable():
        raise BadRequest(f"the header Idempotency-Key is a text of 1 to {KEY_CHARS_MAX} printable characters")
    return text


async def approval_for(x: Exchange) -> Reply:
    """Return the approval that a call would wait for, requesting it if needed; start nothing."""
    said: Foreseen = x.body
    session = await session_of(x, x.path["id"], asks=True)
    given: dict[str, Any] = {"tool_call_id": said.tool_call_id}
    if said.key is not None:
        given["key"] = lambda _: said.key
    await await_tools(x, session, [said.tool])
    found = await x.service.finished(x, session, session.run.approval_for(said.tool, said.args, **given))
    return Reply({"approval": None if found is None else found.to_dict()})


async def answer_all(x: Exchange) -> Reply:
    """Make the calls of one turn of a model in parallel, a pivot last; each has an answer of its own."""
    said: Turn = x.body
    session = await session_of(x, x.path["id"], asks=True)
    await await_tools(x, session, [one.tool for one in said.calls])
    calls = [ToolCall(one.tool, one.args, one.tool_call_id) for one in said.calls]
    made = await x.service.finished(x, session, session.run.answer_all(calls))
    return Reply({"answers": [one.to_dict() for one in made]})


async def execute(x: Exchange) -> Reply:
    """Execute a model's plan; the calls of an inner list run in parallel."""
    said: Plan = x.body
    session = await session_of(x, x.path["id"], asks=True)
    await await_tools(x, session, _tools_of(said.plan))
    made = await x.service.finished(x, session, session.run.execute(said.plan))
    return Reply({"answers": [one.to_dict() for one in made]})


def _tools_of(plan: list[dict[str, Any] | list[dict[str, Any]]]) -> list[str]:
    """Return the tools that a plan names; what is no call is refused by whoever executes it."""
    calls = [one for item in plan for one in (item if isinstance(item, list) else [item])]
    return [tool for one in calls if isinstance(tool := one.get("tool"), str)]


async def check(x: Exchange) -> Reply:
    """Tell every violation of the ordering law in a plan, and an allowed order if there is one; start nothing."""
    await x.service.desk.check_declared(x.tenant, _tools_of(x.body.plan))
    return Reply(x.rt.check(x.body.plan).to_dict())


async def before_end(x: Exchange) -> Reply:
    """Tell what to say to a model that is about to stop: what is missing or has failed; empty if the run is complete."""
    session = await session_of(x, x.path["id"])
    return Reply({"text": await x.service.finished(x, session, session.run.before_end())})


# ---- Ending


async def commit(x: Exchange) -> Reply:
    """Commit the run: its effects stay."""
    session = await session_of(x, x.path["id"])
    children.refuse_open_children(session)
    if "output" in x.body.model_fields_set and not session.run.is_over:
        session.run.output = x.body.output
    return await _ended(x, session, session.run.commit())


async def rollback(x: Exchange) -> Reply:
    """Roll the run back: its client without a plan, a person by the plan that was shown. 202: it is not finished yet."""
    said: RollBack = x.body
    is_person = "operator" in x.who.scopes
    if (said.plan or said.accept) and not is_person:
        raise Forbidden("a plan is a person's: this needs the scope operator", needs=("operator",))
    id, tenant = x.path["id"], x.tenant
    session = x.service.sessions.found(tenant, id)
    if is_person and (said.plan or said.accept or children.found(x.service.sessions, tenant, id) is None):
        await _workers_back(x, id)
        done = await x.rt.rollback(id, by=x.who.name, why=said.why, plan=said.plan, accept=said.accept)
        if session is None or done.run.state in ("rolled_back", "abandoned"):
            x.service.sessions.forget(tenant, id)
            return _taken_back(x, done)
    try:
        session = await session_of(x, id)
    except RunEnded as ended:
        if ended.state != "rolled_back":
            raise
        return _taken_back(x, await x.rt.report(id))
    except Busy:
        found = await x.rt.report(id)
        if found.run.state != "rolling_back":
            raise
        return _taken_back(x, found)  # it is asked for again
    return await _ended(x, session, session.run.rollback(said.why), is_rollback=True)


def _taken_back(x: Exchange, done: Report) -> Reply:
    """Answer a rollback: 202 while something is still to be taken back, which whoever recovers runs goes on with."""
    if done.run.closed_at is not None:
        return Reply(done.to_dict())
    return Reply(done.to_dict(), 202, {"Location": place_of(x, done.run.id), "Retry-After": "5"})


def place_of(x: Exchange, id: str) -> str:
    """Return the address of a run."""
    return f"{x.service.base(x.request)}/v1/runs/{quote(id, safe='')}"


async def _ended(x: Exchange, session: Session, work: Any, *, is_rollback: bool = False) -> Reply:
    id, tenant = session.run.id, x.tenant
    try:
        await x.service.finished(x, session, work)
    except RolledBack as back:
        if not is_rollback:
            raise
        return _taken_back(x, back.report)
    except Held as held:
        # A child that waits for a person suspends its root, too.
        x.service.sessions.forget(tenant, session.root_id, session.root)
        place = {"Location": x.service.approval_place(x, held.approval)} if held.approval is not None else {}
        return Reply((await x.rt.report(id)).to_dict(), 202, place | {"Retry-After": "5"})
    except LedgerError:
        raise
    except Error:
        raise
    except Exception as error:
        raise await failed_with(x, id, error) from error
    finally:
        if isinstance(session, Child):
            children.forget_ended(session.root)
        elif session.run.is_over:
            x.service.sessions.forget(tenant, id, session)
    return Reply((await x.rt.report(id)).to_dict())


async def failed_with(x: Exchange, id: str, error: Exception) -> Error:
    """Return the error for a client whose run ended over a tool's own error; the report has it, redacted."""
    found = await x.rt.report(id)
    said = next((call.error for call in reversed(found.calls) if call.error), "") or type(error).__name__
    ended = UsageError(f"run {id} is {found.run.state}: a tool failed: {said}", run_id=id)
    return RunEnded(str(ended), state=found.run.state, run_id=id)


async def renew(x: Exchange) -> Reply:
    """Renew the client's lease: it is alive, and has nothing to ask."""
    session = await session_of(x, x.path["id"])
    with session.request() as run:
        return Reply({"id": run.id, "state": run.state, "client_lease": session.lease_s})


async def suspend(x: Exchange) -> Reply:
    """Let the run go: nothing staged starts, nothing is taken back, and it can be opened again."""
    session = await session_of(x, x.path["id"])
    if isinstance(session, Child):
        raise UsageError(
            f"run {session.run.id} is a child: it is suspended with its root",
            hint=f"suspend {session.root_id}", run_id=session.run.id,
        )  # fmt: skip
    stopped = Suspended(f"{x.who.name} has suspended the run", run_id=session.run.id)
    return await _ended(x, session, session.run.leave(stopped))
