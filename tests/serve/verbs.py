"""Which verb of a runtime, a run and an attempt is which address of the service, and what both clients call it.

A verb that has an address of the same name needs no word here. Another one is in ``ELSEWHERE``, or in ``NOT_SERVED`` with the
reason why a client has no use for it or cannot have it. ``tests/serve/test_verbs.py`` is red for a verb that is in none of them;
``scripts/docs.py`` makes the table of docs/reference/http.md of this.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import amends
from amends import client as clients
from amends.serve.routes import ROUTES

SOURCE = Path(__file__).resolve().parents[2] / "clients" / "typescript" / "src"
CLASSES: dict[str, tuple[type, type, str]] = {
    "rt": (amends.Runtime, clients.Client, "client"),
    "run": (amends.Run, clients.Run, "run"),
    "attempt": (amends.Attempt, clients.Attempt, "attempt"),
}
"""By how a program calls it: the class here, the class of the Python client, and how a client calls it."""
HERE = "it belongs to the program that has the runtime"
ELSEWHERE: dict[str, tuple[str, str, str]] = {
    "rt.run": ("open", "client.run", "client.run"),
    "rt.info": ("run", "client.info", "client.info"),
    "rt.settings": ("settings", "client.settings", "client.settings"),
    "rt.warnings": ("settings", "client.warnings", "client.settings"),
    "rt.may_repeat": ("kind_of", "client.may_repeat", "client.kind_of"),
    "rt.report_late": ("succeed", "attempt.succeed", "attempt.succeed"),
    "rt.verify": ("verify", "client.verify", "client.verify, client.long_work"),
    "rt.gc": ("gc", "client.gc", "client.gc, client.long_work"),
    "rt.erase": ("erase", "client.erase", "client.erase, client.long_work"),
    "rt.reencrypt": ("reencrypt", "client.reencrypt", "client.reencrypt, client.long_work"),
    "rt.recover": ("recover", "client.recover", "client.recover, client.long_work"),
    "rt.replay_each": ("replay_each", "client.replay_each", "client.replay_each, client.long_work"),
    "rt.events": ("events", "client.events, client.follow", "client.events"),
    "run.call": ("answer", "run.call", "run.call"),
    "run.child": ("open_child", "run.child", "run.child"),
    "run.leave": ("suspend", "run.suspend", "run.suspend"),
    "run.state": ("run", "client.info", "client.info"),
    "run.output": ("commit", "run.output", "run.commit"),
    "run.is_over": ("open", "run.is_over", "run.over"),
    "run.on_open_failure": ("open", "client.open", "client.open"),
    "attempt.spent": ("succeed", "attempt.spent", "attempt.spent"),
    "attempt.raised": ("fail", "attempt.raised", "attempt.fail"),
    "attempt.doubt": ("fail", "attempt.doubt", "attempt.fail"),
    "attempt.renew": ("renew_claim", "attempt.renew", "attempt.renew"),
    "attempt.call": ("begin", "attempt.call", "attempt.call"),
    "attempt.result": ("begin", "attempt.result", "attempt.result"),
    "attempt.lease": ("begin", "attempt.lease", "attempt.lease"),
    "attempt.call_id": ("begin", "attempt.call", "attempt.call"),
    "attempt.key": ("begin", "attempt.call", "attempt.key"),
    "attempt.number": ("begin", "attempt.call", "attempt.attempt"),
    "attempt.state": ("call", "attempt.state", "client.call"),
}
"""Verbs whose address has another name: the route, and what the clients call it."""
NOT_SERVED: dict[str, str] = {
    "rt.once": "the code is the client's: claim a call under a key of its own, `run.begin(name, key=...)`",
    "rt.tell_once": "as `rt.once`; `attempt.replayed` tells whether it was done before",
    "rt.replay": "the function is the client's: `rt.replay(client.export(id), fn)`; `replay_each` is for agents of the server",
    "rt.replaying": "as `rt.replay`; to see a run up to a call, read its report, or `fork` it there",
    "rt.agents": "`start` and `replay_each` name one; `AgentNotFound` lists those that there are",
    "rt.scoped": "the token says for whom it is; an operator of every tenant names one: `tenant=`",
    "rt.as_async": HERE,
    "rt.close": HERE,
    "rt.add": "a worker declares its tools: `client.worker`, `serve`; tools of the server are part of its program",
    "rt.reach": HERE,
    "rt.set_unserved": "the service does it, as workers come and go",
    "rt.declarations": "for a worker that performs tools: `client.worker` uses that of its own process",
    "rt.perform": "for a worker that performs tools: `client.worker` does it",
    "rt.worker": "the service recovers runs itself, unless it was started with `--no-worker`; `recover` does it once",
    "rt.recent_calls": "`calls` lists the newest first, page by page",
    "rt.wanted": "the service does it, when a client moves to another server",
    "rt.reserve_tools": "the service does it for the tools of workers",
    "rt.reserved_tools": "the service does it for the tools of workers",
    "run.renew_late": "the service does it, when a client renews a claim at another server",
    "rt.check_token": "the service does it with every request",
    "rt.recall_token": "the service does it with every request",
    "rt.note_driver": "the service does it with every request",
    "rt.note_work": "the service does it before a checkpoint, `gc`, `reencrypt` and `recover`",
    "rt.migrate": "a token is checked in the ledger itself, so before that is there nobody may ask: `amends db migrate`",
    "rt.plan_migration": "as `rt.migrate`: `amends db migrate --plan`",
    "rt.schema_sql": "it is for whoever creates the tables before a service can start: `amends db sql`",
    "rt.check_anchor": "a service whose ledger is behind its anchor answers nothing, not even whose token it is: `amends doctor`",
    "rt.reconcile_restore": "as `rt.check_anchor`: `amends db restored`",
    "run.once": "as `rt.once`",
    "run.tell_once": "as `rt.once`",
    "run.now": "a client that goes on through another server would be given the first one again; claim a call with `kind: read`",
    "run.random": "as `run.now`",
    "run.uuid": "as `run.now`",
    "run.submit": "the client's own threads and tasks ask by themselves",
    "run.bind": "as `run.submit`",
    "run.direct": "tools call it; `run.answer` and `run.call` do it for clients",
    "run.release": "the service does it when a client is silent past its lease; `run.suspend` lets go at once",
    "run.epoch": "the service puts it into the token of a claim",
    "run.awaits_opening": "it is about replays, which are the client's own",
    "run.for_agent": "`before_end` does it; or `on_open_failure` of `open`",
    "run.is_repeat": "for adapters of engines, in the process that has the run",
    "run.holds_secret": "for adapters, in the process that has the redacted values",
    "run.warned": "for adapters; a client says what its model needs to know",
    "attempt.epoch": "the token has it",
}
"""Verbs that no client has, each with the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """One verb of a program, and what clients have of it."""

    verb: str
    address: str = ""
    python: str = ""
    typescript: str = ""
    why: str = ""


def verbs_of(kind: type) -> list[str]:
    """Return the public verbs and properties of a class, in their order."""
    names = [name for base in reversed(kind.__mro__) for name in vars(base) if not name.startswith("_")]
    found = dict.fromkeys(names)
    return [name for name in found if callable(one := getattr(kind, name)) or isinstance(one, property)]


def typescript(name: str) -> set[str]:
    """Return the public members of a class of the client in TypeScript."""
    files = {"client": "client.ts", "run": "run.ts", "attempt": "run.ts"}
    text = (SOURCE / files[name]).read_text(encoding="utf-8")
    body = text[text.index(f"export class {name.capitalize()} ") :].partition("\n}\n")[0]
    return set(re.findall(r"^  (?:readonly |async \*?|get )?([a-z]\w*)(?:<[^>]*>)?(?: = |\(|: )", body, re.MULTILINE))


def rows() -> Iterator[Row]:
    """Return a row for each verb; one that nobody has said anything about has neither address nor reason."""
    routes = {route.name: route for route in ROUTES}
    for owner, (kind, _, called) in CLASSES.items():
        for name in verbs_of(kind):
            verb = f"{owner}.{name}"
            if verb in NOT_SERVED:
                yield Row(verb, why=NOT_SERVED[verb])
            elif verb in ELSEWHERE or name in routes:
                route, *names = ELSEWHERE.get(verb, (name, f"{called}.{name}", f"{called}.{name}"))
                yield Row(verb, f"{routes[route].method} {routes[route].path}", *names)
            else:
                yield Row(verb)


def has(called: str, *, in_python: bool) -> bool:
    """Return whether a client has what it is said to call a verb."""
    owner, _, name = called.partition(".")
    if not in_python:
        return name in typescript(owner)
    made: Any = next(one for _, one, other in CLASSES.values() if other == owner)
    return hasattr(made, name) or name in (inspect.getsource(made.__mro__[1]) if len(made.__mro__) > 2 else "")
