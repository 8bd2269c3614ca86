"""Say who asks and what they may do: tokens, login cookies, scopes and tenants.

``Access`` turns the headers of a request into a ``Who``. It reads the name from the token or the login, never from the
request. ``allows`` is the only rule about scopes. Whoever mounts the application may give their own function instead of an
``Access``: it takes the request and returns a ``Who``, or raises ``Unauthorized``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from amends.errors import Forbidden, Unauthorized

__all__ = [
    "SCOPES",
    "Access",
    "Accessor",
    "Asked",
    "Forbidden",
    "Scope",
    "Unauthorized",
    "Who",
    "allows",
    "check_scope",
]

Scope: TypeAlias = Literal["viewer", "agent", "worker", "approver", "operator"]
Kind: TypeAlias = Literal["token", "login", "link"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
INCLUDES: Final[Mapping[str, frozenset[str]]] = {
    "viewer": frozenset({"viewer"}),
    "agent": frozenset({"agent"}),
    "worker": frozenset({"worker"}),
    "approver": frozenset({"approver", "viewer"}),
    "operator": frozenset(SCOPES),
}
"""What each scope allows."""
KNOWN_MAX: Final = 10_000
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="amends"'}
"""The headers of an answer with status 401."""


@dataclass(frozen=True, slots=True)
class Who:
    """Whoever asks: under which name they act, what they may do, and for which tenant."""

    name: str
    """The name under which decisions are recorded (``by=``), and the principal of runs."""
    scopes: frozenset[str]
    tenant: str | None = ""
    """None: every tenant; only an operator may have that."""
    agent: str = ""
    """The agent that an agent's token speaks for."""
    token: str = ""
    """The id of the token or the login: events have it. It is no secret."""
    kind: Kind = "token"

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("whoever asks has a name")
        unknown = sorted(set(self.scopes) - set(SCOPES))
        if unknown or not self.scopes:
            raise ValueError(f"scopes are some of {', '.join(SCOPES)}" + (f", not {unknown[0]!r}" if unknown else ""))
        if self.tenant is None and "operator" not in self.scopes:
            raise ValueError("only an operator may act for every tenant")


class Asked(Protocol):
    """What is read of a request; every ``HTTPConnection`` of Starlette has it."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def cookies(self) -> Mapping[str, str]: ...

    @property
    def scope(self) -> Any: ...


Accessor: TypeAlias = Callable[[Any], Who | Awaitable[Who]]
"""What an application is given as ``access=``: from the request to whoever asks; it raises ``Unauthorized``."""


def allows(who: Who, *scopes: str) -> bool:
    """Return whether this person, agent or worker may do what needs one of these scopes."""
    unknown = [one for one in scopes if one not in INCLUDES]
    assert scopes, "whatever is not public needs a scope"
    assert not unknown, f"scopes that do not exist: {unknown}"
    return any(one in INCLUDES[mine] for mine in who.scopes for one in scopes)


def check_scope(who: Who, *scopes: str) -> None:
    """Raise ``Forbidden`` unless ``allows``."""
    if not allows(who, *scopes):
        mine = ", ".join(sorted(who.scopes))
        raise Forbidden(f"this needs the scope {' or '.join(scopes)}, and yours is {mine}", needs=scopes)


def bearer(headers: Mapping[str, str]) -> str | None:
    """Return the token of the header ``Authorization: Bearer TOKEN``; None: there is no such header."""
    said = headers.get("authorization")
    if said is None:
        return None
    scheme, _, token = said.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("the header Authorization is not of the form: Bearer TOKEN", why="malformed")
    return token.strip()


class Access:
    """Who asks, by a bearer token or by the cookie of a login.

    ``rt``: an ``AsyncRuntime`` whose ledger has the tokens. ``logins``: reads cookies (``amends.serve.login``); None:
    tokens alone are accepted.
    """

    def __init__(self, rt: Any, *, logins: Any = None) -> None:
        self._rt, self._logins = rt, logins
        self._known: dict[str, tuple[Any, Who]] = {}
        """For whom a token speaks, by its id: for the very object that the runtime remembers, and no other."""

    async def __call__(self, request: Asked) -> Who:
        """Return who sent this request; raise ``Unauthorized``, or ``Forbidden`` for a forged one of a browser."""
        headers = request.headers
        cookies = request.cookies if "cookie" in headers else None
        return await self.who(headers, cookies, method=str(request.scope.get("method", "GET")))

    async def who(
        self, headers: Mapping[str, str], cookies: Mapping[str, str] | None = None, *, method: str = "GET"
    ) -> Who:
        """Return whoever these headers and cookies name. A token counts before a cookie.

        ``method``: one that changes something needs the header ``X-CSRF-Token`` beside a cookie.
        """
        token = bearer(headers)
        if token is not None:
            found = self._rt.recall_token(token) or await self._rt.check_token(token)
            known = self._known.get(found.id)
            if known is not None and known[0] is found:
                return known[1]
            if found.kind != "token":  # it belongs into a cookie, whose requests other sites cannot forge
                raise Unauthorized("this token is that of a login, and counts in its cookie only", why="unknown")
            who = who_of(found)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[found.id] = (found, who)
            return who
        if self._logins is not None and cookies:
            person: Who | None = await self._logins.who(headers, cookies, method=method)
            if person is not None:
                return person
        raise Unauthorized("this needs a token, and none was sent", why="missing")


def who_of(token: Any) -> Who:
    """Return whom a valid token speaks for."""
    return Who(
        name=token.principal, scopes=frozenset(token.scopes), tenant=token.tenant, agent=token.agent, token=token.id,
        kind=token.kind,
    )  # fmt: skip
