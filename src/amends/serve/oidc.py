"""Log in at a company's provider: OpenID Connect, authorization code with PKCE, state and nonce (extra ``oidc``).

The provider's answer is believed only if its signature, issuer, audience, times and nonce are right. What a login allows
comes from the setting ``login``: groups to scopes, and a tenant.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from amends.errors import BadConfig, Refused
from amends.visible import visible_log

log = visible_log("amends")

TIMEOUT_S: Final = 10.0
"""How long the provider may take for each answer."""
ANSWER_BYTES_MAX: Final = 1 << 20
KNOWN_S: Final = 3_600.0
"""How long the provider's addresses and keys are remembered."""
KEYS_AGAIN_S: Final = 10.0
"""How soon keys are read again for a token that names an unknown one."""
LEEWAY_S: Final = 60
"""How far the provider's clock may be off."""
GROUPS_MAX: Final = 10_000


class LoginRefused(Refused):
    """The provider does not vouch for this person, or nothing is allowed to them here (``why``).

    ``why``: state, issuer, provider, token, name, groups, tenant, unavailable or none.
    """

    default_hint = "log in again; if that does not help, ask whoever runs this service"

    def __init__(self, message: str, *, why: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.why = why


@dataclass(frozen=True, slots=True)
class Person:
    """Whom the provider vouches for, and what that allows."""

    name: str
    scopes: tuple[str, ...]
    tenant: str | None


class Provider:
    """A provider of OpenID Connect, as the setting ``login`` names it; ``transport``: of httpx, instead of the network."""

    def __init__(self, said: Mapping[str, Any], *, secret: str = "", transport: Any = None) -> None:
        try:
            import httpx
            import joserfc  # noqa: F401 (here: a service without a login does not need it)
        except ImportError as missing:
            raise BadConfig(
                f"a login needs the extra oidc: {missing.name} is not installed",
                setting="login", origin="login", hint="pip install 'amends[serve,oidc]'",
            ) from None  # fmt: skip
        self._said, self._secret = said, secret
        self.issuer: str = said["issuer"]
        self.session_s: float = said["session"]
        self.is_secure: bool = said["redirect_url"].startswith("https://")
        self._http, self._transport = httpx, transport
        self._known: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, Any] | None = None

    # ---- The flow

    async def begin(self, *, state: str, nonce: str, challenge: str) -> str:
        """Return the address at the provider to lead the browser to."""
        place = (await self._places())["authorization_endpoint"]
        asked = {
            "response_type": "code", "client_id": self._said["client_id"], "redirect_uri": self._said["redirect_url"],
            "scope": " ".join(self._said["request"]), "state": state, "nonce": nonce, "code_challenge": challenge,
            "code_challenge_method": "S256",
        }  # fmt: skip
        return f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(asked)}"

    async def finish(self, *, code: str, verifier: str, nonce: str) -> Person:
        """Exchange the code, and return whom the provider vouches for; raise ``LoginRefused``."""
        places = await self._places()
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self._said["redirect_url"],
            "code_verifier": verifier, "client_id": self._said["client_id"],
        }  # fmt: skip
        auth = None
        if self._secret and self._said["client_auth"] == "basic":
            auth = self._http.BasicAuth(_form_quoted(self._said["client_id"]), _form_quoted(self._secret))
        elif self._secret:
            form["client_secret"] = self._secret
        given = await self._json("POST", places["token_endpoint"], form=form, auth=auth)
        claims = await self._claims(given.get("id_token"), nonce=nonce)
        wanted = [self._said["name"], *([self._said["groups"]] if self._said["scopes"] else [])]
        wanted += [self._said["tenant_claim"]] if self._said["tenant_claim"] else []
        if any(name not in claims for name in wanted) and places.get("userinfo_endpoint") and given.get("access_token"):
            headers = {"Authorization": f"Bearer {given['access_token']}"}
            more = await self._json("GET", places["userinfo_endpoint"], headers=headers)
            if more.get("sub") != claims["sub"]:
                raise LoginRefused("the provider's answers are about different people", why="token")
            claims = {**more, **claims}
        return person_of(claims, self._said)

    async def end_address(self) -> str | None:
        """Return where to log out at the provider; None: it does not say."""
        try:
            found = (await self._places()).get("end_session_endpoint")
        except LoginRefused:
            return None
        if not isinstance(found, str):
            return None
        return f"{found}{'&' if urlsplit(found).query else '?'}{urlencode({'client_id': self._said['client_id']})}"

    # ---- What the provider says

    async def _claims(self, token: Any, *, nonce: str) -> dict[str, Any]:
        """Return the claims of an id token whose signature, issuer, audience, times and nonce are right."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        if not isinstance(token, str):
            raise LoginRefused("the provider sent no id token", why="token")
        algorithms = list(self._said["algorithms"])
        try:
            try:
                found = jwt.decode(token, await self._key_set(), algorithms=algorithms)
            except (JoseError, ValueError):
                # It may be signed with a key that is newer than what is remembered.
                found = jwt.decode(token, await self._key_set(again=True), algorithms=algorithms)
            rules = jwt.JWTClaimsRegistry(
                leeway=LEEWAY_S, iss={"essential": True, "value": self.issuer}, sub={"essential": True},
                aud={"essential": True, "value": self._said["client_id"]}, exp={"essential": True},
                iat={"essential": True}, nonce={"essential": True},
            )  # fmt: skip
            rules.validate(found.claims)
        except (JoseError, ValueError, TypeError) as error:
            log.warning("an id token of %s was refused: %s", self.issuer, type(error).__name__)
            raise LoginRefused("the provider's answer could not be verified", why="token") from None
        claims: dict[str, Any] = dict(found.claims)
        if not hmac.compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
            raise LoginRefused("the provider's answer belongs to another login", why="token")
        audience, party = claims["aud"], claims.get("azp")
        several = isinstance(audience, list) and len(audience) > 1
        if (several or party is not None) and party != self._said["client_id"]:
            raise LoginRefused("the provider's answer was made for another program", why="token")
        if not isinstance(claims["sub"], str) or not claims["sub"]:
            raise LoginRefused("the provider's answer names nobody", why="token")
        return claims

    async def _places(self) -> dict[str, Any]:
        """Return the addresses of the provider, which it publishes (discovery)."""
        if self._known is not None and time.monotonic() - self._known[0] < KNOWN_S:
            return self._known[1]
        found = await self._json("GET", f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.issuer:
            raise LoginRefused("the provider calls itself otherwise than the setting login", why="issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            place = found.get(name)
            if not isinstance(place, str) or not self._is_safe(place):
                raise LoginRefused(f"the provider has no safe {name}", why="issuer")
        if not self._is_safe(str(found.get("userinfo_endpoint", ""))):
            found.pop("userinfo_endpoint", None)
        self._known = (time.monotonic(), found)
        return found

    def _is_safe(self, place: str) -> bool:
        """Return whether an address of the provider is by https, or by http as its own on this machine."""
        return place.startswith("https://") or (self.issuer.startswith("http://") and place.startswith("http://"))

    async def _key_set(self, *, again: bool = False) -> Any:
        from joserfc.jwk import JWKRegistry, KeySet

        now = time.monotonic()
        if self._keys is not None and now - self._keys[0] < (KEYS_AGAIN_S if again else KNOWN_S):
            return self._keys[1]
        found = await self._json("GET", (await self._places())["jwks_uri"])
        keys = []
        for one in found.get("keys", ()):
            try:
                keys.append(JWKRegistry.import_key(one))
            except Exception as error:  # one that is not understood hides no other
                log.info("a key of %s is not understood: %s", self.issuer, type(error).__name__)
        self._keys = (now, KeySet([key for key in keys if key.key_type != "oct"]))
        return self._keys[1]

    async def _json(
        self,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
    ) -> dict[str, Any]:
        """Return the JSON object that the provider answers; raise ``LoginRefused`` for anything else."""
        http = self._http
        try:
            async with (
                http.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False, transport=self._transport) as client,
                client.stream(
                    method, url, data=form, headers={"Accept": "application/json", **(headers or {})}, auth=auth
                ) as answer,
            ):
                data = b""
                async for part in answer.aiter_bytes():
                    data += part
                    if len(data) > ANSWER_BYTES_MAX:
                        raise LoginRefused("the provider's answer is too large", why="unavailable")
                status = answer.status_code
        except (http.HTTPError, http.InvalidURL, OSError) as error:
            log.warning("%s cannot be reached: %s", urlsplit(url).netloc, type(error).__name__)
            raise LoginRefused("the provider cannot be reached", why="unavailable", hint="try again later") from None
        if status != 200:
            log.warning("%s answered with status %d", urlsplit(url).netloc, status)
            why = "provider" if 400 <= status < 500 else "unavailable"
            raise LoginRefused("the provider has refused the login", why=why)
        try:
            found = http.Response(200, content=data).json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise LoginRefused("the provider's answer is not JSON", why="unavailable")
        return found


def person_of(claims: Mapping[str, Any], said: Mapping[str, Any]) -> Person:
    """Return who somebody with these claims is here, and what they may do; raise ``LoginRefused``."""
    name = claims.get(said["name"])
    if not isinstance(name, str) or not name.strip():
        raise LoginRefused(
            f"the provider does not tell the claim {said['name']!r}, by which people are named", why="name"
        )
    if said["name"] == "email" and claims.get("email_verified") is not True:
        raise LoginRefused("the provider has not verified this email address", why="name")
    groups = claims.get(said["groups"], [])
    groups = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    mine = {str(one) for one in groups[:GROUPS_MAX]}
    scopes = {scope for group, scope in said["scopes"].items() if group in mine}
    scopes |= {said["everyone"]} if said["everyone"] else set()
    if not scopes:
        raise LoginRefused("none of your groups is allowed anything here", why="groups")
    tenant: str | None = said["tenant"] or None
    if said["tenant_claim"]:
        found = claims.get(said["tenant_claim"])
        if not isinstance(found, str) or not found.strip():
            raise LoginRefused(f"the provider does not tell your tenant ({said['tenant_claim']})", why="tenant")
        tenant = found
    return Person(name.strip(), tuple(sorted(scopes)), tenant)


def _form_quoted(text: str) -> str:
    """Return an id or a secret as RFC 6749 (2.3.1) writes it in the header of a client."""
    return urlencode({"": text})[1:]
