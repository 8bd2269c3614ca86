"""Notify people that an approval is needed: a signed webhook, and a message for Slack.

Pass ``on_approval_needed=Webhook("https://…", secret=…)`` to a runtime. A notice that is sent twice, after a crash, has
the same ``webhook-id``: the id of the approval, and for a reminder or an escalation also its number.
Signatures follow https://www.standardwebhooks.com, so that receivers do not need amends.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from http.client import HTTPException
from itertools import accumulate, takewhile
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from amends.encoding.canonical import encode
from amends.encoding.secret import Secret, is_unreadable
from amends.errors import BadConfig, NotDelivered, NotStorable, UsageError
from amends.model import Approval
from amends.visible import ascii_json, printable, visible, visible_args, visible_value

TOLERANCE_S: Final = 300.0
"""How old, or how far ahead, the timestamp of a webhook may be, so that an intercepted one cannot be replayed later."""
PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 5.0
ATTEMPTS_MAX: Final = 10
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which another attempt soon is useful. After any other, only the outbox tries again, much later."""

SLACK_HEADER_CHARS_MAX: Final = 150
SLACK_FIELD_CHARS_MAX: Final = 1_900
SLACK_TEXT_CHARS_MAX: Final = 2_900
"""Slack refuses a message with a field of more than 2,000 characters, or a text of more than 3,000."""
HEADER_CHARS_MAX: Final = 4_096
"""A webhook header that is longer was not made here."""
SIGNATURES_MAX: Final = 32
DIGITS_MAX: Final = 12
"""The digits of a timestamp in seconds: enough for 30,000 years."""


# ---- The content of a notice


TYPES: Final = {
    "request": "approval.needed",
    "reminder": "approval.reminder",
    "escalation": "approval.escalated",
}
"""What a webhook is about."""


def payload(approval: Approval) -> dict[str, Any]:
    """Return the approval as JSON data: the default body of a webhook.

    ``args`` are exact, in the form in which the ledger keeps them: what JSON has no type for is an object with one key
    that starts with ``$``, such as ``{"$decimal": "4.20"}`` or, for keys that are not texts, ``{"$map": [[1, "a"]]}``.
    Two different arguments never look the same. ``card`` is for people: lines in which nothing can deceive.
    """
    call = approval.call
    return {
        "type": TYPES[approval.occasion],
        "timestamp": approval.requested_at.isoformat(),
        "data": {
            "approval": approval.id,
            "digest": approval.digest,
            "state": approval.state,
            "needed": approval.needed,
            "why": approval.rule,
            "expires_at": approval.expires_at.isoformat(),
            "roles": list(approval.roles),
            "asked": list(approval.asked),
            "next": None if approval.next is None else approval.next.to_dict(),
            "links": dict(approval.links),
            "card": card(approval),
            "call": {
                "id": call.id,
                "run": call.run_id,
                "tool": call.tool,
                "version": call.version,
                "args": exact(dict(call.args)),
                "classes": dict(call.classes),
                "tenant": call.tenant,
                "agent": call.agent,
                "principal": call.principal,
            },
        },
    }


def card(approval: Approval) -> list[str]:
    """Return the approval as lines for people: complete, every character visible, each line with a fixed first word."""
    args = [f"argument {line}" for line in _argument_lines(approval)]
    facts = [f"{name.lower()}: {text}" for name, text in _facts(approval).items()]
    return [_title(approval), *facts, *args, f"approval: {visible(approval.id)}", f"digest: {visible(approval.digest)}"]


def _title(approval: Approval) -> str:
    needs = "approval" if approval.needed <= 1 else f"{approval.needed} approvals"
    again = {"request": "", "reminder": "Reminder: ", "escalation": "Escalated: "}[approval.occasion]
    return f"{again}{visible(approval.call.tool)} needs {needs}"


def _facts(approval: Approval) -> dict[str, str]:
    call = approval.call
    facts = {
        "Run": visible(call.run_id),
        "Asked by": visible(call.agent or call.principal or "an agent", prose=True),
        "On behalf of": visible(call.principal) if call.principal and call.agent else "",
        "Edited by": ", ".join(map(visible, approval.editors)),
        "Asked": ", ".join(map(visible, approval.asked)),
        "Until": _time(approval.expires_at),
        "Tenant": visible(call.tenant) if call.tenant else "",
        "Why": visible(approval.rule, prose=True) if approval.rule else "",
    }
    return {name: text for name, text in facts.items() if text}


def _argument_lines(approval: Approval) -> list[str]:
    return visible_args(approval.call.args, approval.call.classes)


def exact(value: Any) -> Any:
    """Return a value as JSON data in the form of the ledger, in which two different values never look the same.

    Redacted values stay redacted. Never raise, since that would suppress the notice: a value that cannot be stored is
    ``{"$shown": text}``.
    """
    try:
        return _masked(json.loads(encode(value, path="args")))
    except NotStorable:  # an approval made by hand: what comes from a ledger can be stored
        return {"$shown": visible_value(value)}


def _masked(found: Any) -> Any:
    if isinstance(found, list):
        return [_masked(one) for one in found]
    if not isinstance(found, dict):
        return found
    if list(found) == ["$secret"]:
        return {"$secret": str(Secret.read(found["$secret"]))}
    return {name: _masked(one) for name, one in found.items()}


def slack_payload(approval: Approval) -> dict[str, Any]:
    """Return the approval as a message for Slack: ``Webhook(url_of_the_channel, body=slack_payload)``.

    With links, the buttons open them; without, the buttons carry "id digest" as their value, for your own Slack app.
    A request that does not fit into one message, or that this process has no key to read, says so and has no buttons,
    so that nobody decides about a part of it.
    """
    call = approval.call
    title, facts = _title(approval), _facts(approval)
    long = [f"{name}: {text}" for name, text in facts.items() if len(_coded(text)) > SLACK_FIELD_CHARS_MAX]
    short = {name: text for name, text in facts.items() if len(_coded(text)) <= SLACK_FIELD_CHARS_MAX}
    if len(_inert(title)) > SLACK_HEADER_CHARS_MAX:
        long.insert(0, f"Tool: {visible(call.tool)}")
        title = title.replace(visible(call.tool), "a tool with a long name", 1)
    args = _argument_lines(approval) or ["no arguments"]
    whole = "\n".join([*long, *args])
    shown = whole[: _fitting(whole, SLACK_TEXT_CHARS_MAX)]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": _inert(title), "emoji": False}},
        {"type": "section", "fields": [_mrkdwn(f"*{name}*\n{_coded(text)}") for name, text in short.items()]},
        {"type": "section", "text": _mrkdwn(_fenced(shown))},
    ]
    look = f"`amends approvals show {_code(visible(approval.id))}`"
    if is_unreadable(call.args):
        blocks.append({"type": "section", "text": _mrkdwn(f":warning: Decide where the key is: {look}")})
    elif shown == whole:
        blocks.append({"type": "actions", "elements": [_button(approval, verb) for verb in ("approve", "reject")]})
    else:
        missing = f"{len(whole) - len(shown):,} more characters are not shown, so it cannot be decided here"
        blocks.append({"type": "section", "text": _mrkdwn(f":warning: {missing}. Read all of it first: {look}")})
    told = f"`{_code(visible(approval.id))}` · `{_code(visible(approval.digest))}`"
    blocks.append({"type": "context", "elements": [_mrkdwn(told)]})
    text = _inert(f"{title} ({_short(visible(call.run_id))})")
    return {"text": text, "mrkdwn": False, "blocks": blocks}


def _mrkdwn(text: str) -> dict[str, Any]:
    """Return a text block; ``verbatim`` keeps Slack from turning addresses and names into links."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _coded(text: str) -> str:
    """Return the text as code, in which Slack has no bold, links, mentions or emoji."""
    return f"`{_code(text)}`"


def _code(text: str) -> str:
    """Escape the text for the inside of code, which a backtick would end."""
    return _escaped(text.replace("`", "\\x60"))


def _fenced(text: str) -> str:
    return f"```\n{_code(text)}\n```"


def _inert(text: str) -> str:
    """Escape the characters that Slack interprets, for places that allow no code."""
    return "".join(f"\\x{ord(one):02x}" if one in "<>&*~`" else one for one in text)


def _short(text: str) -> str:
    return text if len(text) <= SLACK_HEADER_CHARS_MAX else text[: SLACK_HEADER_CHARS_MAX - 1] + "…"


def _fitting(text: str, limit: int) -> int:
    """Return how many characters of the text fit into the limit once they are escaped."""
    if len(_code(text)) <= limit:
        return len(text)
    lengths = accumulate(len(_code(one)) for one in text)
    return sum(1 for _ in takewhile(lambda length: length <= limit, lengths))


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


def _escaped(text: str) -> str:
    """Escape what Slack would take for a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} {at:%Z}".strip()


# ---- Signatures


def signature(message_id: str, at: float, body: bytes, secret: str) -> str:
    """Return the header that proves who sent these bytes, and when."""
    return _mark(_signed(message_id, int(at)) + body, _key(secret))


def is_genuine(
    headers: Mapping[str, str], body: bytes, *, secret: str | Sequence[str], now: float | None = None
) -> bool:
    """Return whether a received webhook was sent just now by somebody who has one of these secrets.

    Never raise for any headers or body, only ``BadConfig`` for an invalid secret. Names of headers are not case
    sensitive; a name that occurs twice with different values counts as forged.
    """
    keys = _keys(secret)
    given, data = _headers(headers), _bytes(body)
    if given is None or data is None:
        return False
    message_id, at, marks = (given.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    moment = time.time() if now is None else now
    if not (at.isascii() and at.isdigit() and len(at) <= DIGITS_MAX and str(int(at)) == at):
        return False
    if not abs(moment - int(at)) <= TOLERANCE_S:  # written so that NaN is refused
        return False
    said = _signed(message_id, int(at)) + data
    wanted = [_mark(said, key).encode() for key in keys]
    known = [mark.encode("utf-8", "surrogatepass") for mark in marks.split()[:SIGNATURES_MAX]]
    # A list, so that all are compared: the time must not reveal which one matches.
    return any([hmac.compare_digest(one, mark) for mark in known for one in wanted])  # noqa: C419


def _headers(headers: Any) -> dict[str, str] | None:
    """Return the webhook headers by their lower-case names; None if they are malformed."""
    found: dict[str, str] = {}
    try:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        for name, value in pairs:
            known = _header(name)
            if known is None or not known.lower().startswith("webhook-"):
                continue
            text = _header(value)
            if text is None or len(text) > HEADER_CHARS_MAX or found.setdefault(known.lower(), text) != text:
                return None
    except Exception:  # not a mapping of headers
        return None
    return found


def _header(text: object) -> str | None:
    if isinstance(text, bytes):
        return text.decode("latin-1")
    return str.__str__(text) if isinstance(text, str) else None  # exactly a str: a subclass may do anything


def _bytes(body: object) -> bytes | None:
    try:
        return body.encode() if isinstance(body, str) else bytes(body) if isinstance(body, _BODIES) else None
    except (ValueError, BufferError):  # a lone surrogate, or a released memoryview
        return None


_BODIES: Final = (bytes, bytearray, memoryview)


def _signed(message_id: str, at: int) -> bytes:
    return f"{message_id}.{at}.".encode("utf-8", "surrogatepass")


def _mark(said: bytes, key: bytes) -> str:
    return f"v1,{base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()}"


def _keys(secrets: object) -> list[bytes]:
    """Return the bytes of each secret of a receiver. Without any, nothing is genuine."""
    several = list(secrets) if isinstance(secrets, Iterable) and not isinstance(secrets, str) else [secrets]
    return [_key(one) for one in several]


def _key(secret: object) -> bytes:
    """Return the bytes of a secret: decoded base64 after the prefix ``whsec_``, otherwise the text as UTF-8."""
    if not isinstance(secret, str) or not secret.removeprefix("whsec_"):
        raise BadConfig(
            "the secret of the webhook is empty or not a text: anybody could sign with it", setting="secret"
        )
    if not secret.startswith("whsec_"):
        try:
            return secret.encode()
        except UnicodeEncodeError as error:  # a lone surrogate
            raise BadConfig("the secret of the webhook cannot be written as UTF-8", setting="secret") from error
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError as error:
        raise BadConfig("the secret of the webhook begins with whsec_ but is not base64", setting="secret") from error


# ---- Delivery


class _Stays(HTTPRedirectHandler):
    """Follows no redirects: a redirected POST would arrive without its body."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Sends each needed approval to a URL; a hook for ``on_approval_needed`` of either runtime.

    ``secret``: signs the webhook. ``body``: what is sent, as JSON data. ``attempts``: sends within one call, for
    failures that pass in seconds; after that the outbox tries again.
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
            raise UsageError(f"a webhook is sent 1 to {ATTEMPTS_MAX} times, with a timeout of more than zero")
        self._url, self._secret, self._body = url, secret, body
        self._headers = dict(headers or {})
        self._timeout, self._attempts = timeout, attempts
        self._open = build_opener(_Stays()).open
        self.host = parts.hostname
        if secret is not None:
            _key(secret)

    def __repr__(self) -> str:
        return f"Webhook(to {self.host})"  # not the URL, which is the password of many services

    def __call__(self, approval: Approval) -> None:
        """Send the notice and return once the receiver has confirmed it; raise ``NotDelivered`` otherwise."""
        # In ASCII, so that a receiver may log it without escape sequences reaching a terminal.
        body = ascii_json(json.dumps(self._body(approval), ensure_ascii=True, default=str)).encode()
        for attempt in range(1, self._attempts + 1):
            failed = self._sent(approval.notice_id, body)
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
            # The message of the error may hold the URL; its type is enough.
            reason = getattr(error, "reason", error)
            return self._failed(f"did not answer ({type(reason).__name__})", message_id, passing=True)

    def _failed(self, what: str, message_id: str, *, status: int = 0, passing: bool) -> NotDelivered:
        return NotDelivered(
            f"{printable(self.host)} {what} to the notice of {message_id}", status=status, passing=passing
        )
