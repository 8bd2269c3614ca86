"""Telling people that an approval is needed: a signed webhook, and the message as Slack takes it.

``on_approval_needed=Webhook("https://…", secret=…)`` on a runtime. What is sent twice, after a crash, has the same
``webhook-id``: the approval's. Signed as https://www.standardwebhooks.com says, so that receivers need no code of ours.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
import json
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http.client import HTTPException
from itertools import accumulate, takewhile
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from amends.errors import BadConfig, NotDelivered, UsageError
from amends.model import Approval

TOLERANCE_S: Final = 300.0
"""How old, or how far ahead, the timestamp of a webhook may be: what was overheard is worth nothing later."""
PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 5.0
ATTEMPTS_MAX: Final = 10
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which it is worth asking again soon. Any other is told at once: the outbox tries again much later."""

SLACK_HEADER_CHARS_MAX: Final = 150
SLACK_FIELD_CHARS_MAX: Final = 1_900
SLACK_ARGS_CHARS_MAX: Final = 2_900
"""Slack refuses a message with a field of more than 2,000 characters, or a text of more than 3,000."""


# ---- what is said -------------------------------------------------------------------------


def payload(approval: Approval) -> dict[str, Any]:
    """The approval as plain JSON data: what a webhook sends unless it is told otherwise."""
    call = approval.call
    return {
        "type": "approval.needed",
        "timestamp": approval.requested_at.isoformat(),
        "data": {
            "approval": approval.id,
            "digest": approval.digest,
            "state": approval.state,
            "needed": approval.needed,
            "why": approval.rule,
            "expires_at": approval.expires_at.isoformat(),
            "links": dict(approval.links),
            "call": {
                "id": call.id,
                "run": call.run_id,
                "tool": call.tool,
                "version": call.version,
                "args": json.loads(_json(call.args)),
                "classes": dict(call.classes),
                "tenant": call.tenant,
                "agent": call.agent,
                "principal": call.principal,
            },
        },
    }


def slack_payload(approval: Approval) -> dict[str, Any]:
    """The approval as a message for Slack: ``Webhook(url_of_the_channel, body=slack_payload)``.

    With links the buttons open them; without, they carry "id digest" as their value, for an app of yours that listens.
    """
    call = approval.call
    asks = call.agent or call.principal or "an agent"
    title = f"{call.tool} needs {'approval' if approval.needed <= 1 else f'{approval.needed} approvals'}"
    facts = {"Run": call.run_id, "Asked by": asks, "Until": _time(approval.expires_at), "Tenant": call.tenant or ""}
    facts["Why"] = approval.rule
    facts["Classes"] = ", ".join(f"{place}: {name}" for place, name in call.classes.items())
    args = _visible(_json(call.args, indent=2))
    shown = _cut(args, SLACK_ARGS_CHARS_MAX)
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": _visible(title)[:SLACK_HEADER_CHARS_MAX]}},
        {"type": "section", "fields": [_field(name, text) for name, text in facts.items() if text]},
        {"type": "section", "text": {"type": "mrkdwn", "text": _fenced(shown)}},
    ]
    if shown != args:
        cut = f"{len(args) - len(shown)} more characters are not shown: read all of it before you decide."
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f":warning: {cut}"}})
    blocks.append({"type": "actions", "elements": [_button(approval, verb) for verb in ("approve", "reject")]})
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": f"{approval.id} · {approval.digest}"}]})
    return {"text": _escaped(_visible(f"{title} ({call.run_id})")), "blocks": blocks}


def _field(name: str, text: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": f"*{name}*\n{_escaped(_cut(_visible(text), SLACK_FIELD_CHARS_MAX))}"}


def _fenced(text: str) -> str:
    """As code: a fence inside it would end it, and what follows could look like words of ours."""
    return f"```\n{_escaped(text.replace('```', chr(0x2019) * 3))}\n```"


def _button(approval: Approval, verb: str) -> dict[str, Any]:
    button: dict[str, Any] = {
        "type": "button",
        "action_id": f"amends_{verb}",
        "text": {"type": "plain_text", "text": verb.capitalize()},
        "style": "primary" if verb == "approve" else "danger",
    }
    link = approval.links.get(verb, "")
    if link.startswith(("https://", "http://")):
        return button | {"url": link}
    return button | {"value": link or f"{approval.id} {approval.digest}"}


def _cut(text: str, limit: int) -> str:
    """As much of it as is no longer than this once it is escaped."""
    if len(_escaped(text)) <= limit:
        return text
    lengths = accumulate(len(_escaped(one)) for one in text)
    return text[: sum(1 for _ in takewhile(lambda length: length <= limit, lengths))]


def _escaped(text: str) -> str:
    """What Slack would take for a mention or a link is shown as it was written."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _visible(text: str) -> str:
    """What turns the direction of writing, or cannot be seen, is spelled out: a person decides by what is shown."""
    return "".join(one if one == "\n" or unicodedata.category(one)[0] != "C" else f"\\u{ord(one):04x}" for one in text)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} {at:%Z}".strip()


def _json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain, indent=indent)


def _plain(value: Any) -> Any:
    """What JSON does not have, as the nearest that it has."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


# ---- signing ------------------------------------------------------------------------------


def signature(message_id: str, at: float, body: bytes, secret: str) -> str:
    """The header that proves who sent these bytes, and when."""
    said = f"{message_id}.{int(at)}.".encode() + body
    return f"v1,{base64.b64encode(hmac.new(_key(secret), said, hashlib.sha256).digest()).decode()}"


def is_genuine(
    headers: Mapping[str, str], body: bytes, *, secret: str | Sequence[str], now: float | None = None
) -> bool:
    """Whether a webhook was sent by somebody who has one of these secrets, just now: for whoever receives it."""
    given = {name.lower(): value for name, value in headers.items()}
    message_id, at, marks = (given.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not (at.isascii() and at.isdigit()) or abs((time.time() if now is None else now) - int(at)) > TOLERANCE_S:
        return False
    secrets = [secret] if isinstance(secret, str) else secret
    wanted = [signature(message_id, int(at), body, one).encode() for one in secrets]
    return any(hmac.compare_digest(one, mark.encode()) for mark in marks.split() for one in wanted)


def _key(secret: str) -> bytes:
    """The bytes of a secret: base64 where it says so, as generated ones do, else as it is written."""
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as error:
        raise BadConfig("the secret of the webhook begins with whsec_ and is no base64", setting="secret") from error


# ---- sending ------------------------------------------------------------------------------


class _Stays(HTTPRedirectHandler):
    """A POST that is sent elsewhere would arrive there without its body."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Sends each approval that is needed to a URL; a hook for ``on_approval_needed`` of either runtime.

    ``attempts`` sends within one call, for what passes in seconds; what fails then is tried again from the outbox.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        body: Callable[[Approval], Mapping[str, Any]] = payload,
        headers: Mapping[str, str] | None = None,
        timeout: float = 5.0,
        attempts: int = 3,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise UsageError("a webhook goes to an https:// or http:// URL with a host")
        if not 1 <= attempts <= ATTEMPTS_MAX or not timeout > 0:
            raise UsageError(f"a webhook is sent 1 to {ATTEMPTS_MAX} times, with a timeout of more than nothing")
        self._url, self._secret, self._body = url, secret, body
        self._headers = dict(headers or {})
        self._timeout, self._attempts = timeout, attempts
        self._open = build_opener(_Stays()).open
        self.host = parts.hostname
        if secret is not None:
            _key(secret)

    def __repr__(self) -> str:
        return f"Webhook(to {self.host})"  # not the URL: for many a service it is the password

    def __call__(self, approval: Approval) -> None:
        """Send it; returns once the other side has said that it has it, raises ``NotDelivered`` otherwise."""
        body = _json(self._body(approval)).encode()
        for attempt in range(1, self._attempts + 1):
            failed = self._sent(approval.id, body)
            if failed is None:
                return
            if attempt == self._attempts or not failed.passing:
                raise failed
            time.sleep(min(PAUSE_S * 2 ** (attempt - 1), PAUSE_S_MAX))

    def _sent(self, message_id: str, body: bytes) -> NotDelivered | None:
        at = time.time()
        headers = {"content-type": "application/json", "user-agent": "amends", **self._headers}
        headers |= {"webhook-id": message_id, "webhook-timestamp": str(int(at))}
        if self._secret is not None:
            headers["webhook-signature"] = signature(message_id, at, body, self._secret)
        request = Request(self._url, data=body, headers=headers, method="POST")
        try:
            with self._open(request, timeout=self._timeout):
                return None
        except HTTPError as no:
            with no:
                return self._failed(f"answered {no.code}", message_id, status=no.code, passing=no.code in PASSING)
        except (OSError, HTTPException) as error:
            # The words of the error may hold the URL; its type says enough.
            reason = getattr(error, "reason", error)
            return self._failed(f"did not answer ({type(reason).__name__})", message_id, passing=True)

    def _failed(self, what: str, message_id: str, *, status: int = 0, passing: bool) -> NotDelivered:
        return NotDelivered(f"{self.host} {what} to the notice of {message_id}", status=status, passing=passing)
