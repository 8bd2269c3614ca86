"""Whatever a tenant asks about an id of another tenant, the answer is that of an id which is not there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Error, Held, Runtime, tool
from amends.links import sign
from tests.cli.command import here

SECRET = "a-long-secret-of-links"
OURS = "ours"


@tool(needs_approval=True)
def secret_tool(order: str) -> str:
    return order


@tool
def lost_tool(order: str) -> str:
    raise TimeoutError(order)


@secret_tool.compensate
def back(result: str) -> None: ...


@lost_tool.compensate
def found() -> None: ...


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger in which tenant acme has a request and a doubt."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with Runtime(url, tools=[secret_tool, lost_tool], link_secret=SECRET) as rt:
        acme = rt.scoped(tenant="acme")
        with contextlib.suppress(Held), acme.run("hush-run"):
            secret_tool(order="1")
        with contextlib.suppress(Exception), acme.run("hush-lost"):
            lost_tool(order="2")
        with rt.run(OURS):
            pass
    return url


Verb = Callable[[Any, dict[str, str]], Any]
ABOUT = {"by": "bob", "why": "x"}
VERBS: dict[str, Verb] = {
    "approval": lambda rt, id: rt.approval(id["approval"]),
    "approve": lambda rt, id: rt.approve(id["approval"], digest=id["digest"], by="bob"),
    "approve, another digest": lambda rt, id: rt.approve(id["approval"], digest="0" * 64, by="bob"),
    "bypass": lambda rt, id: rt.bypass(id["approval"], digest=id["digest"], **ABOUT),
    "reject": lambda rt, id: rt.reject(id["approval"], by="bob", reason="x"),
    "withdraw": lambda rt, id: rt.withdraw(id["approval"], **ABOUT),
    "ask_again": lambda rt, id: rt.ask_again(id["approval"], **ABOUT),
    "edit": lambda rt, id: rt.edit(id["approval"], {"order": "2"}, **ABOUT),
    "edit, bad": lambda rt, id: rt.edit(id["approval"], {"nonsense": 1}, **ABOUT),
    "redeem approve": lambda rt, id: rt.redeem(id["link approve"], by="bob"),
    "redeem reject": lambda rt, id: rt.redeem(id["link reject"], by="bob", reason="x"),
    "call": lambda rt, id: rt.call(id["call"]),
    "decide": lambda rt, id: rt.decide(id["call"], "run", **ABOUT),
    "retry": lambda rt, id: rt.retry(id["call"], **ABOUT),
    "accept": lambda rt, id: rt.accept(id["call"], **ABOUT),
    "probe": lambda rt, id: rt.probe(id["call"]),
    "preview": lambda rt, id: rt.preview(id["call"]),
    "resolve": lambda rt, id: rt.resolve(id["call"], Absent(), **ABOUT),
    "report": lambda rt, id: rt.report(id["run"]),
    "events": lambda rt, id: rt.events(id["run"]),
    "plan_rollback": lambda rt, id: rt.plan_rollback(id["run"]),
    "rollback": lambda rt, id: rt.rollback(id["run"], **ABOUT),
    "abandon": lambda rt, id: rt.abandon(id["run"], **ABOUT),
    "finish": lambda rt, id: rt.finish(id["run"], **ABOUT),
    "compare": lambda rt, id: rt.compare(id["run"], OURS),
    "fork": lambda rt, id: rt.fork(id["run"], at=id["call"]),
    "fork at": lambda rt, id: rt.fork(OURS, at=id["call"]),
    "export": lambda rt, id: rt.export(id["run"]),
    "verify": lambda rt, id: rt.verify(id["run"]),
}


class Unknown:
    def __init__(self, approval: Any, id: str) -> None:
        self.id, self.digest, self.expires_at = id, approval.digest, approval.expires_at


def ids(rt: Runtime) -> tuple[dict[str, str], dict[str, str]]:
    """Those of acme, and others of the same length that nobody has."""
    acme = rt.scoped(tenant="acme")
    (asked,) = acme.approvals()
    (doubt,) = acme.doubts()
    theirs = {"approval": asked.id, "digest": asked.digest, "call": doubt.id, "run": "hush-run"}
    nobody = {**theirs, "approval": "apr_" + "z" * (len(asked.id) - 4), "call": "call_" + "z" * (len(doubt.id) - 5)}
    nobody["run"] = "zzzz-zzz"
    for known in (theirs, nobody):
        for verb in ("approve", "reject"):
            known[f"link {verb}"] = sign(Unknown(asked, known["approval"]), verb, secret=SECRET)  # type: ignore[arg-type]
    return theirs, nobody


def told(error: BaseException, known: dict[str, str]) -> tuple[Any, ...]:
    """All that an error says, with the id that was asked about left out."""
    assert isinstance(error, Error), repr(error)
    facts = str(sorted(error.to_dict().items()))
    words = [type(error).__name__, str(error), error.hint, error.for_model(), facts]
    for name in ("approval", "call", "run"):
        words = [word.replace(known[name], f"<{name}>") for word in words]
    return tuple(words)


def asked_of(rt: Runtime, verb: Verb, known: dict[str, str]) -> tuple[Any, ...]:
    with pytest.raises(Error) as no:
        found = verb(rt, known)
        list(found)
    return told(no.value, known)


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("tenant", ["", "other"])
def test_another_tenants_id_is_answered_like_none(url: str, name: str, tenant: str) -> None:
    with Runtime(url, tools=[secret_tool, lost_tool], link_secret=SECRET) as rt:
        theirs, nobody = ids(rt)
        view = rt.scoped(tenant=tenant) if tenant else rt
        with view.run(OURS):
            pass
        answers = [asked_of(view, VERBS[name], known) for known in (theirs, nobody)]
        assert answers[0] == answers[1]
        assert "secret_tool" not in str(answers)
        assert "acme" not in str(answers)


@pytest.mark.parametrize("name", VERBS)
def test_an_async_runtime_answers_the_same(url: str, name: str) -> None:
    with Runtime(url, tools=[secret_tool, lost_tool], link_secret=SECRET) as rt:
        theirs, nobody = ids(rt)

    async def asked(rt: AsyncRuntime, known: dict[str, str]) -> tuple[Any, ...]:
        with pytest.raises(Error) as no:
            found = VERBS[name](rt, known)
            if hasattr(found, "__aiter__"):
                async for _ in found:
                    pass
            else:
                await found
        return told(no.value, known)

    async def main() -> list[tuple[Any, ...]]:
        rt = AsyncRuntime(url, tools=[secret_tool, lost_tool], link_secret=SECRET)
        answers = [await asked(rt, known) for known in (theirs, nobody)]
        await rt.close()
        return answers

    answers = asyncio.run(main())
    assert answers[0] == answers[1]
    assert "secret_tool" not in str(answers)


def test_the_command_line_finds_no_beginning_of_it_either(url: str, tmp_path: Path) -> None:
    with Runtime(url, link_secret=SECRET) as rt:
        theirs, nobody = ids(rt)
    for what, noun, verb in (("approval", "approvals", "show"), ("call", "call", "show"), ("run", "runs", "show")):
        answers = []
        for known in (theirs, nobody):
            for id in (known[what], known[what][:-2]):
                done = here(noun, verb, id, "--url", url, cwd=tmp_path)
                answers.append((done.returncode, done.stdout, done.stderr.replace(id, "<id>")))
        assert len(set(answers)) == 1, answers
    listed = here("complete", "--", "approvals", "show", "", cwd=tmp_path)
    assert theirs["approval"] not in listed.stdout
