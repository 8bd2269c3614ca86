"""Tokens of the service: shown once, kept as a digest, ended for good, and named by what is done with them."""

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from amends import AsyncRuntime, Held, Runtime, Token, UsageError, tool
from amends.errors import ApprovalVoid, LinkVoid, NotFound, Unauthorized
from amends.ledger.operations import EndToken
from amends.people.tokens import DIGITS, TEXT, _base62, _checksum
from amends.testing import TestRuntime


@tool(needs_approval=True)
def wire(to: str) -> str:
    return to


@wire.compensate
def unwire(to: str) -> None: ...


@tool(kind="read")
def look(what: str) -> str:
    return what


@pytest.fixture(params=["memory:", "sqlite"])
def rt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    url = "memory:" if request.param == "memory:" else f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url, tools=[wire, look], wait_approval=0) as found:
        yield found


def create(rt: Any, name: str = "ci", scopes: Any = "viewer", **given: Any) -> Any:
    return rt.create_token(name, scopes=scopes, **{"by": "ann", "why": "the build", **given})


def why_not(rt: Runtime, text: Any) -> str:
    with pytest.raises(Unauthorized) as caught:
        rt.check_token(text)
    assert "amt_" not in str(caught.value)
    return caught.value.why


# ---- Created, shown once, checked


def test_a_token_is_shown_once_and_the_ledger_has_a_digest_of_it(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with Runtime(f"sqlite:///{file}") as rt:
        made = create(rt, scopes=["approver"], principal="ada", tenant="acme")
        assert made.text is not None
        assert (found := TEXT.fullmatch(made.text))
        assert made.id == f"tok_{found[1]}"
        assert rt.check_token(made.text) == Token(**{**fields(made), "text": None})
        assert (made.name, made.principal, made.scopes, made.tenant, made.kind) == (
            "ci",
            "ada",
            ("approver",),
            "acme",
            "token",
        )
        assert [one.id for one in rt.tokens()] == [made.id]
        assert rt.tokens()[0].text is None
        for shown in (repr(made), json.dumps(made.to_dict()), *(repr(one) for one in rt.events())):
            assert found[2] not in shown
    written = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    assert found[2].encode() not in written


def fields(one: Token) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def test_the_secret_has_256_random_bits_and_a_checksum(rt: Runtime) -> None:
    texts = [create(rt).text for _ in range(3)]
    parts = [TEXT.fullmatch(text) for text in texts]
    assert len({part[2] for part in parts if part}) == 3
    assert 62**43 >= 2**256
    assert _base62(b"\xff" * 32, 43).strip("0") == _base62(b"\xff" * 32, 1)
    for part in parts:
        assert part
        assert part[3] == _checksum(part[1], part[2])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: None,
        lambda text: text[:-1],
        lambda text: text + "0",
        lambda text: text.replace("amt_", "amt-"),
        lambda text: text[:-8] + ("0" if text[-8] != "0" else "1") + text[-7:],  # a typing mistake
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: f" {text}",
        lambda text: f"{text}\n",
        lambda text: text.encode(),
    ],
)
def test_a_mistyped_token_is_noticed_without_the_ledger(rt: Runtime, spoil: Any) -> None:
    made = create(rt)
    asked: list[object] = []
    perform = rt._host.store.perform

    def noted(op: Any) -> Any:
        asked.append(op)
        return perform(op)

    rt._driver.store = SimpleNamespace(perform=noted)  # type: ignore[assignment]
    assert why_not(rt, spoil(made.text)) == "malformed"
    assert asked == []
    rt.check_token(made.text)
    assert len(asked) == 1


def test_an_unknown_token_and_a_wrong_secret_are_told_alike(rt: Runtime) -> None:
    made, other = create(rt), create(rt)
    mine, theirs = TEXT.fullmatch(made.text), TEXT.fullmatch(other.text)
    assert mine
    assert theirs
    swapped = f"amt_{mine[1]}_{theirs[2]}{_checksum(mine[1], theirs[2])}"
    unknown = f"amt_{'0' * 23}_{mine[2]}{_checksum('0' * 23, mine[2])}"
    said = []
    for text in (swapped, unknown):
        with pytest.raises(Unauthorized) as caught:
            rt.check_token(text)
        said.append((caught.value.why, str(caught.value), caught.value.hint))
    assert said[0] == said[1]
    assert said[0][0] == "unknown"
    rt.check_token(made.text)  # remembered from now on
    assert why_not(rt, swapped) == "unknown"


# ---- What may be asked for


@pytest.mark.parametrize(
    "given",
    [
        {"scopes": []},
        {"scopes": "root"},
        {"scopes": ["viewer", "aprover"]},
        {"scopes": None},
        {"scopes": ["agent", "approver"], "agent": "clerk"},
        {"scopes": ["agent", "viewer"], "agent": "clerk"},
        {"scopes": ["worker", "operator"]},
        {"scopes": ["agent", "worker"], "agent": "clerk"},
        {"scopes": "agent"},
        {"scopes": "viewer", "agent": "clerk"},
        {"expires": 0},
        {"expires": -5},
        {"expires": "yesterday"},
        {"expires": datetime(2020, 1, 1, tzinfo=UTC)},
        {"expires": datetime(2120, 1, 1)},  # noqa: DTZ001 (a time without a zone is refused)
        {"expires": float("nan")},
        {"expires": float("inf")},
        {"expires": True},
        {"name": ""},
        {"name": " "},
        {"name": "x" * 201},
        {"name": 7},
        {"by": ""},
        {"why": ""},
        {"tenant": 7},
        {"principal": " "},
        {"kind": "magic"},
    ],
)
def test_a_wrong_token_is_refused_before_anything_is_written(rt: Runtime, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        create(rt, **given)
    assert rt.tokens(kind="all") == []
    assert list(rt.events()) == []


def test_an_unknown_scope_says_what_was_meant(rt: Runtime) -> None:
    with pytest.raises(UsageError, match="did you mean 'approver'"):
        create(rt, scopes="aprover")


def test_a_token_in_a_name_is_refused_and_not_shown(rt: Runtime) -> None:
    text = create(rt).text
    for given in ({"name": f"my {text}"}, {"principal": text}, {"agent": text, "scopes": "agent"}):
        with pytest.raises(UsageError) as caught:
            create(rt, **given)
        assert text not in str(caught.value)
    with pytest.raises(NotFound) as gone:
        rt.revoke_token(f"{text}x", by="ann", why="lost")
    assert text not in str(gone.value)
    assert rt.revoke_token(text, by="ann", why="it was in a log").ended_at is not None


@pytest.mark.parametrize(
    "scopes, tenant, expected",
    [("operator", None, None), ("operator", "acme", "acme"), ("viewer", None, ""), ("approver", "acme", "acme")],
)
def test_only_an_operator_without_a_tenant_is_for_all(
    rt: Runtime, scopes: str, tenant: str | None, expected: str | None
) -> None:
    assert create(rt, scopes=scopes, tenant=tenant).tenant == expected


def test_a_scoped_runtime_makes_sees_and_ends_tokens_of_its_tenant_only(rt: Runtime) -> None:
    acme, wide, other = rt.scoped(tenant="acme"), create(rt, scopes="operator"), create(rt, tenant="umbrella")
    mine = create(acme, scopes="operator")
    assert mine.tenant == "acme"
    with pytest.raises(UsageError):
        create(acme, tenant="umbrella")
    assert [one.id for one in acme.tokens()] == [mine.id]
    assert len(rt.tokens()) == 3
    for theirs in (wide, other):
        with pytest.raises(NotFound):
            acme.revoke_token(theirs.id, by="eve", why="mine now")
    assert why_not(acme, other.text) == "unknown"
    assert acme.check_token(wide.text).tenant == "acme"
    assert rt.check_token(wide.text).tenant is None


# ---- Ended for good


def test_a_revoked_token_counts_no_more_at_once_in_every_runtime_of_the_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url, token_cache=300) as one, Runtime(url, token_cache=300) as two:
        made = create(one)
        two.check_token(made.text)
        one.check_token(made.text)
        ended = one.revoke_token(made.id, by="ben", why="it leaked")
        assert ended.ended_at is not None
        for rt in (one, two):
            assert why_not(rt, made.text) == "revoked"
        assert one.tokens() == []
        assert one.revoke_token(made.id, by="cleo", why="again") == ended
        said = [(event.what, event.by) for event in one.events() if event.run_id == made.id]
        assert said == [("token made", "ann"), ("token revoked", "ben")]
        assert one.verify().ok


def test_a_token_is_recalled_only_as_long_as_its_check_would_answer_from_memory(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with (
        Runtime(url, token_cache=300) as one,
        Runtime(url, token_cache=300) as two,
        Runtime(url, token_cache=0) as none,
    ):
        made = create(one)
        text = made.text or ""
        assert one.recall_token(text) is None, "nobody has checked it yet"
        checked = one.check_token(text)
        assert one.recall_token(text) is checked
        with pytest.raises(Unauthorized):  # in a view of another tenant it is unknown
            one.scoped(tenant="acme").recall_token(text)
        for wrong in (text[:-1] + ("0" if text[-1] != "0" else "1"), text[:-8] + "00000000", "amt_x", ""):
            assert one.recall_token(wrong) is None
        assert two.recall_token(text) is None
        none.check_token(text)
        assert none.recall_token(text) is None, "without a cache nothing is remembered"
        two.revoke_token(made.id, by="ben", why="it leaked")
        assert one.recall_token(text) is None


def test_another_process_notices_within_the_time_of_the_cache() -> None:
    rt = TestRuntime(token_cache=5.0)
    made = create(rt, expires=100)
    rt.check_token(made.text)
    rt._host.store.perform(EndToken(made.id, None, "ben", "elsewhere"))  # as another process does it
    assert rt.check_token(made.text).id == made.id
    rt.clock.advance(5.1)
    assert why_not(rt, made.text) == "revoked"


def test_without_a_cache_every_check_reads_the_ledger() -> None:
    rt = TestRuntime(token_cache=0)
    made = create(rt)
    rt.check_token(made.text)
    rt._host.store.perform(EndToken(made.id, None, "ben", "elsewhere"))
    assert why_not(rt, made.text) == "revoked"


def test_a_check_costs_no_read_while_the_cache_lasts() -> None:
    rt = TestRuntime()
    made = create(rt)
    rt.check_token(made.text)
    asked: list[object] = []
    store = rt._host.store
    perform = store.perform

    def noted(op: Any) -> Any:
        asked.append(op)
        return perform(op)

    store.perform = noted  # type: ignore[method-assign]
    for _ in range(5):
        rt.check_token(made.text)
    assert asked == []
    rt.clock.advance(6)
    rt.check_token(made.text)
    assert len(asked) == 1


@pytest.mark.parametrize("cache", [0, 300])
def test_an_expired_token_stays_expired_when_the_clock_is_set_back(cache: float) -> None:
    rt = TestRuntime(token_cache=cache)
    made = create(rt, expires="1h")
    assert made.expires_at - made.at == timedelta(hours=1)
    rt.check_token(made.text)
    rt.clock.advance(3601)
    assert why_not(rt, made.text) == "expired"
    assert rt.tokens() == []
    rt.clock.wall -= 3600
    assert why_not(rt, made.text) == "expired"
    [event] = [one for one in rt.events() if one.what == "token expired"]
    assert (event.run_id, event.by) == (made.id, "clock")
    assert rt.verify().ok


def test_a_token_that_expired_unseen_does_not_come_back_with_the_clock() -> None:
    rt = TestRuntime()
    made = create(rt, expires="1h")
    rt.clock.advance(3601)
    rt.halt(by="ann", why="the ledger has seen this time")
    rt.clock.wall -= 3600
    assert rt.tokens() == []
    assert why_not(rt, made.text) == "expired"


def test_of_tokens_made_once_only_the_first_is(rt: Runtime) -> None:
    made = create(rt, kind="link", once="nonce-1")
    with pytest.raises(LinkVoid) as caught:
        create(rt, kind="link", once="nonce-1")
    assert caught.value.why == "used"
    assert rt.check_token(made.text).kind == "link"
    rt.revoke_token(made.id, by="ann", why="log out")
    with pytest.raises(LinkVoid):
        create(rt, kind="link", once="nonce-1")
    assert rt.verify().ok


def test_logins_are_listed_when_asked_for(rt: Runtime) -> None:
    one, two = create(rt), create(rt, kind="login")
    assert [token.id for token in rt.tokens()] == [one.id]
    assert [token.id for token in rt.tokens(kind="login")] == [two.id]
    assert [token.id for token in rt.tokens(kind="all")] == [one.id, two.id]
    with pytest.raises(UsageError):
        rt.tokens(kind="both")  # type: ignore[arg-type]


def test_logins_of_long_ago_hide_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amends.ledger.queries.DIRECTIVES_MAX", 3)
    rt = TestRuntime()
    for _ in range(4):
        create(rt, kind="login", expires=60)
    rt.clock.advance(61)
    made = create(rt)
    assert [one.id for one in rt.tokens(kind="all")] == [made.id]


# ---- By which token


def ask(rt: Runtime, run_id: str, **given: Any) -> Any:
    with pytest.raises(Held) as held, rt.run(run_id, **given):
        wire(to=run_id)
    return held.value.approval


def test_what_is_done_by_a_token_names_it_in_its_events(rt: Runtime) -> None:
    made = create(rt, scopes="operator", principal="ada")
    mine = rt.scoped(principal="ada", token=made.id)
    first, second, third = ask(rt, "r1"), ask(rt, "r2"), ask(mine, "r3")
    assert third is not None
    before = len(list(rt.events()))
    mine.approve(first.id, digest=first.digest, by="ada")
    mine.reject(second.id, by="ada", reason="no")
    mine.halt(by="ada", why="fire", tool="wire")
    mine.unhalt(by="ada", why="out", tool="wire")
    given = mine.permit("wire", {"to": "x"}, by="ada")
    mine.revoke(given.id, by="ada", why="no")
    mine.delegate(by="ada", to="bob", until=datetime.now(UTC) + timedelta(hours=1), why="away")
    new = create(mine, name="second", by="ada")
    mine.revoke_token(new.id, by="ada", why="no")
    done = list(rt.events())[before:]
    assert len(done) >= 10
    assert {event.facts.get("token") for event in done} == {made.id}
    assert {event.by for event in done} == {"ada"}
    opened = next(event for event in rt.events("r3") if event.what == "run")
    assert opened.facts["token"] == made.id
    assert "token" not in next(event for event in rt.events("r1") if event.what == "run").facts
    assert rt.verify().ok


def test_whoever_goes_on_with_a_run_by_another_token_is_recorded(rt: Runtime) -> None:
    mine, other = rt.scoped(principal="ada", token="tok_1"), rt.scoped(principal="ada", token="tok_2")
    with mine.run("r1") as run:
        run.call(look, what="a")
        assert other.note_driver("r1", by="ada")
        run.call(look, what="b")
        with pytest.raises(UsageError):
            rt.note_driver("r1", by="ada")
        with pytest.raises(NotFound):
            other.scoped(tenant="acme").note_driver("r1", by="ada")
    assert not other.note_driver("r1", by="ada")
    said = [(event.what, event.by, event.facts["token"]) for event in rt.events("r1") if "token" in event.facts]
    assert [(what, token) for what, _, token in said] == [("run", "tok_1"), ("driven", "tok_2")]
    assert said[1][1] == "ada"
    assert rt.verify().ok
    assert [call.state for call in rt.report("r1").calls] == ["succeeded"] * 2


def test_a_run_that_was_driven_by_two_tokens_is_replayed_and_exported(rt: Runtime) -> None:
    def work() -> list[str]:
        with rt.scoped(token="tok_1").run("r1") as run:
            return [run.call(look, what="a"), run.call(look, what="b")]

    with rt.scoped(token="tok_1").run("r1") as run:
        first = run.call(look, what="a")
        rt.scoped(token="tok_2").note_driver("r1", by="ada")
        done = [first, run.call(look, what="b")]
    assert rt.replay("r1", work) == done
    with Runtime("memory:") as elsewhere:
        assert elsewhere.load(rt.export("r1")) == ["r1"]
        assert elsewhere.verify().ok


def test_a_delegation_made_by_a_token_can_be_used(rt: Runtime) -> None:
    asked = ask(rt, "r1", principal="carl")
    soon = datetime.now(UTC) + timedelta(hours=1)
    rt.scoped(token="tok_1").delegate(by="ada", to="bob", until=soon, why="away")
    rt.scoped(token="tok_2").approve(asked.id, digest=asked.digest, by="bob", behalf="ada")
    assert rt.verify().ok


def test_nobody_approves_by_another_token_what_they_asked_for_by_one(rt: Runtime) -> None:
    agent = create(rt, "ada-bot", "agent", agent="clerk", principal="Ada")
    person = create(rt, "ada-desk", "approver", principal="ada ")
    asked = ask(rt.scoped(principal=agent.principal, agent=agent.agent, token=agent.id), "r1")
    who = rt.check_token(person.text)
    with pytest.raises(ApprovalVoid) as caught:
        rt.scoped(token=who.id).approve(asked.id, digest=asked.digest, by=who.principal)
    assert caught.value.why == "self"


# ---- The other colour, and many at once


def test_an_async_runtime_has_the_same_verbs(tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}") as rt:
            made = await create(rt, scopes="worker")
            assert made.text is not None
            assert (await rt.check_token(made.text)).id == made.id
            assert [one.id for one in await rt.tokens()] == [made.id]
            await rt.scoped(token="tok_x").revoke_token(made.id, by="ben", why="no")
            with pytest.raises(Unauthorized):
                await rt.check_token(made.text)
            [last] = [event async for event in rt.events() if event.what == "token revoked"]
            assert last.facts["token"] == "tok_x"
            assert (await rt.verify()).ok

    asyncio.run(use())


def test_checks_beside_a_revocation_never_bring_it_back(tmp_path: Path) -> None:
    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", token_cache=300) as rt:
        for _ in range(10):
            made = create(rt)

            def checks(text: str = made.text) -> None:
                for _ in range(20):
                    try:
                        rt.check_token(text)
                    except Unauthorized:
                        return

            threads = [Thread(target=checks) for _ in range(3)]
            for thread in threads:
                thread.start()
            rt.revoke_token(made.id, by="ben", why="no")
            assert why_not(rt, made.text) == "revoked"
            for thread in threads:
                thread.join(30)
            assert why_not(rt, made.text) == "revoked"


def test_the_form_of_a_token_is_what_the_page_says() -> None:
    assert re.fullmatch(r"[0-9A-Za-z]{62}", DIGITS)
    page = Path(__file__).parents[2] / "docs" / "how-to" / "tokens-and-login.md"
    assert "amt_[0-9A-Za-z]{4,64}_[0-9A-Za-z]{49}" in page.read_text(encoding="utf-8")
