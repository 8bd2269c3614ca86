"""AgentRelay on SQLite (FULL), PostgreSQL and MariaDB, with its own saga."""

import contextlib
import contextvars
import logging
from importlib.metadata import version

from agent_relay.runtime import AgentRuntime
from agent_relay.tooling import tool

from bench.sides.timing import KNOWN, args_of, asked, erased, fresh, many, serve, timed

logging.disable(logging.CRITICAL)
said = asked()
url = {
    "postgres": said.place.replace("postgresql://", "postgresql+psycopg://"),
    "mariadb": said.place.replace("mysql://", "mysql+pymysql://"),
}.get(said.store) or f"sqlite+pysqlite:///{erased(said.place)}"
rt = AgentRuntime.from_connection_string(url)


@tool(rt, name="undo")
def undo(**kwargs):
    return None


@tool(rt, name="pay", compensation="undo")
def pay(**kwargs):
    return {"ok": True}


@tool(rt, name="boom")
def boom(**kwargs):
    raise ValueError("the last of four fails")


def calls(n, limit_s):
    with rt.agent_session(name=fresh("run")):
        return timed(lambda _: pay(**args_of(fresh())), n, limit_s)


def replay(n, limit_s):
    known = [args_of(fresh()) for _ in range(KNOWN)]
    with rt.agent_session(name=fresh("run")):
        for args in known:
            pay(**args)
        return timed(lambda i: pay(**known[i % KNOWN]), n, limit_s)


def one(_):
    with contextlib.suppress(ValueError), rt.agent_session(name=fresh("saga")):
        for i in range(3):
            pay(**args_of(f"o-{i}"))
        boom(**args_of("o-3"))


@contextlib.contextmanager
def caller():
    with rt.agent_session(name=fresh("run")):
        context = contextvars.copy_context()
        yield lambda: context.run(lambda: pay(**args_of(fresh())))


works = {
    "fresh": calls,
    "many": lambda n, limit_s: many(caller, n, limit_s),
    "replay": replay,
    "saga": lambda n, limit_s: timed(one, n, limit_s),
}
serve(works, version=version("agentrelay"))
