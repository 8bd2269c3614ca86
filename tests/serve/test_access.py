"""Who asks: by a token or a cookie, never by a field of the request; and the one rule about scopes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, get_args

import pytest

from amends import AsyncRuntime
from amends.errors import Forbidden, Unauthorized
from amends.model import TokenScope
from amends.secrets import Secrets
from amends.serve.access import INCLUDES, SCOPES, Access, Who, allows, bearer, check_scope
from amends.serve.login import Logins

SECRET = "s" * 32


def played(flow: Callable[[AsyncRuntime], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        async with AsyncRuntime("memory:") as rt:
            await flow(rt)

    asyncio.run(play())


async def token(rt: AsyncRuntime, scopes: str = "viewer", **given: Any) -> Any:
    return await rt.create_token("ci", scopes=scopes, by="ann", why="the build", **given)


def with_token(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def test_the_scopes_are_those_of_tokens() -> None:
    assert get_args(TokenScope) == SCOPES
    assert set(INCLUDES) == set(SCOPES)


@pytest.mark.parametrize("mine", SCOPES)
@pytest.mark.parametrize("needed", SCOPES)
def test_what_each_scope_allows(mine: str, needed: str) -> None:
    who = Who("ada", frozenset({mine}))
    expected = needed == mine or mine == "operator" or (mine, needed) == ("approver", "viewer")
    assert allows(who, needed) == expected
    if expected:
        check_scope(who, needed)
    else:
        with pytest.raises(Forbidden) as caught:
            check_scope(who, needed)
        assert caught.value.needs == (needed,)


def test_one_of_several_scopes_is_enough_and_none_or_an_unknown_one_is_our_mistake() -> None:
    who = Who("ada", frozenset({"agent"}))
    assert allows(who, "viewer", "agent")
    for wrong in ((), ("root",)):
        with pytest.raises(AssertionError):
            allows(who, *wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": " "},
        {"scopes": frozenset()},
        {"scopes": frozenset({"root"})},
        {"tenant": None},
        {"scopes": frozenset({"approver"}), "tenant": None},
    ],
)
def test_whoever_makes_a_who_of_their_own_cannot_make_a_wrong_one(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Who(**{"name": "ada", "scopes": frozenset({"viewer"}), **wrong})


@pytest.mark.parametrize(
    "said", ["Bearer", "Bearer ", "Basic YTpi", "bearer", "Token x", "", "amt_x", "Digest username=x"]
)
def test_a_header_of_another_form_is_refused(said: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        bearer({"authorization": said})
    assert caught.value.why == "malformed"


def test_the_word_bearer_has_no_case_and_spaces_do_not_count() -> None:
    assert bearer({"authorization": " bEaReR   x "}) == "x"
    assert bearer({}) is None


def test_a_token_says_who_asks() -> None:
    async def flow(rt: AsyncRuntime) -> None:
        access = Access(rt)
        made = await token(rt, "agent", agent="clerk", principal="ada", tenant="acme")
        who = await access.who(with_token(made.text))
        assert who == Who("ada", frozenset({"agent"}), "acme", "clerk", made.id, "token")
        wide = await token(rt, "operator")
        assert (await access.who(with_token(wide.text))).tenant is None
        with pytest.raises(Unauthorized) as caught:
            await access.who({})
        assert caught.value.why == "missing"
        await rt.revoke_token(made.id, by="ann", why="no")
        with pytest.raises(Unauthorized) as caught:
            await access.who(with_token(made.text))
        assert caught.value.why == "revoked"

    played(flow)


def test_the_token_of_a_login_counts_in_its_cookie_only_and_another_one_not_in_a_cookie() -> None:
    async def flow(rt: AsyncRuntime) -> None:
        known = Secrets(SECRET)
        access = Access(rt, logins=Logins(rt, known))
        login = await token(rt, "operator", kind="login")
        cookies = {"amends_session": known.sign("session", {"token": login.text})}
        assert (await access.who({}, cookies)).kind == "login"
        with pytest.raises(Unauthorized):
            await access.who(with_token(login.text))
        other = await token(rt, "operator")
        with pytest.raises(Unauthorized):
            await access.who({}, {"amends_session": known.sign("session", {"token": other.text})})
        # A token counts before a cookie, also if it is wrong.
        with pytest.raises(Unauthorized):
            await access.who(with_token("amt_x"), cookies)
        with pytest.raises(Unauthorized) as caught:
            await access.who({}, {"amends_session": "x.y"})
        assert caught.value.why == "unknown"
        with pytest.raises(Unauthorized) as caught:
            await access.who({}, {"other": "x"})
        assert caught.value.why == "missing"

    played(flow)


def test_no_error_shows_a_token() -> None:
    async def flow(rt: AsyncRuntime) -> None:
        access = Access(rt)
        made = await token(rt)
        await rt.revoke_token(made.id, by="ann", why="no")
        for text in (made.text, made.text[:-1], f"{made.text} ", f"x{made.text}"):
            with pytest.raises(Unauthorized) as caught:
                await access.who(with_token(text))
            secret = made.text.split("_")[2][:20]
            assert secret not in f"{caught.value} {caught.value.hint} {caught.value.to_dict()} {caught.value!r}"

    played(flow)
