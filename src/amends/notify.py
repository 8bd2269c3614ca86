"""Telling people that an approval is needed: a signed webhook, and the message as Slack takes it.

``on_approval_needed=Webhook("https://…", secret=…)`` on a runtime. What is sent twice, after a crash, has the same
``webhook-id``: the approval's. Signed as https://www.standardwebhooks.com says, so that receivers need no code of ours.
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
"""How old, or how far ahead, the timestamp of a webhook may be: what was overheard is worth nothing later."""
PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 5.0
ATTEMPTS_MAX: Final = 10
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which it is worth asking again soon. Any other is told at once: the outbox tries again much later."""

SLACK_HEADER_CHARS_MAX: Final = 150
SLACK_FIELD_CHARS_MAX: Final = 1_900
SLACK_TEXT_CHARS_MAX: Final = 2_900
"""Slack refuses a message with a field of more than 2,000 characters, or a text of more than 3,000."""
HEADER_CHARS_MAX: Final = 4_096
"""A header of a webhook that is longer is not ours."""
SIGNATURES_MAX: Final = 32
DIGITS_MAX: Final = 12
"""Of a timestamp in seconds: enough for 30,000 years."""


# ---- what is said -------------------------------------------------------------------------


def payload(approval: Approval) -> dict[str, Any]:
    """The approval as JSON data: what a webhook sends unless it is told otherwise.

    ``args`` are exact, in the form in which the ledger keeps them: what JSON has no word for is an object with one key
    that starts with ``$``, such as ``{"$decimal": "4.20"}`` or, for keys that are no texts, ``{"$map": [[1, "a"]]}``.
    Two different arguments are never the same here. ``card`` is for people: lines in which nothing can deceive.
    """
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
    """The approval as lines for people: all of it, each part of it visible, and every line begun by a word of ours."""
    args = [f"argument {line}" for line in _argument_lines(approval)]
    facts = [f"{name.lower()}: {text}" for name, text in _facts(approval).items()]
    return [_title(approval), *facts, *args, f"approval: {visible(approval.id)}", f"digest: {visible(approval.digest)}"]


def _title(approval: Approval) -> str:
    needs = "approval" if approval.needed <= 1 else f"{approval.needed} approvals"
    return f"{visible(approval.call.tool)} needs {needs}"


def _facts(approval: Approval) -> dict[str, str]:
    call = approval.call
    facts = {
        "Run": visible(call.run_id),
        "Asked by": visible(call.agent or call.principal or "an agent", prose=True),
        "On behalf of": visible(call.principal) if call.principal and call.agent else "",
        "Edited by": ", ".join(map(visible, approval.editors)),
        "Until": _time(approval.expires_at),
        "Tenant": visible(call.tenant) if call.tenant else "",
        "Why": visible(approval.rule, prose=True) if approval.rule else "",
    }
    return {name: text for name, text in facts.items() if text}


def _argument_lines(approval: Approval) -> list[str]:
    return visible_args(approval.call.args, approval.call.classes)


def exact(value: Any) -> Any:
    """A value as JSON data in the form of the ledger: two different values are never the same.

    What is hidden stays so. Raises nothing, which would keep people from knowing that they are asked: what cannot be
    written down is ``{"$shown": text}``.
    """
    try:
        return _masked(json.loads(encode(value, path="args")))
    except NotStorable:  # made by hand: what is in a ledger can be written down
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
    """The approval as a message for Slack: ``Webhook(url_of_the_channel, body=slack_payload)``.

    With links the buttons open them; without, they carry "id digest" as their value, for an app of yours that listens.
    A request that does not fit into one message, or that this process has no key to read, says so and has no buttons:
    nobody decides over part of it.
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
    """``verbatim``: Slack makes no links of addresses and names in it."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _coded(text: str) -> str:
    """As code, in which Slack knows no bold, no links, no names and no emoji."""
    return f"`{_code(text)}`"


def _code(text: str) -> str:
    """For the inside of code: a backtick would end it."""
    return _escaped(text.replace("`", "\\x60"))


def _fenced(text: str) -> str:
    return f"```\n{_code(text)}\n```"


def _inert(text: str) -> str:
    """For places that have no code: signs that Slack gives a meaning to are spelled out."""
    return "".join(f"\\x{ord(one):02x}" if one in "<>&*~`" else one for one in text)


def _short(text: str) -> str:
    return text if len(text) <= SLACK_HEADER_CHARS_MAX else text[: SLACK_HEADER_CHARS_MAX - 1] + "…"


def _fitting(text: str, limit: int) -> int:
    """How many characters of it are no longer than this once they are escaped."""
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
    """What Slack would take for a mention or a link is shown as it was written."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} {at:%Z}".strip()


# ---- signing ------------------------------------------------------------------------------


def signature(message_id: str, at: float, body: bytes, secret: str) -> str:
    """The header that proves who sent these bytes, and when."""
    return _mark(_signed(message_id, int(at)) + body, _key(secret))


def is_genuine(
    headers: Mapping[str, str], body: bytes, *, secret: str | Sequence[str], now: float | None = None
) -> bool:
    """Whether a webhook was sent by somebody who has one of these secrets, just now: for whoever receives it.

    Whatever the headers and the body are, it answers and raises nothing; only a secret that is none is ``BadConfig``.
    Names of headers may have capitals; a name that comes twice with different values counts as forged.
    """
    keys = _keys(secret)
    given, data = _headers(headers), _bytes(body)
    if given is None or data is None:
        return False
    message_id, at, marks = (given.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    moment = time.time() if now is None else now
    if not (at.isascii() and at.isdigit() and len(at) <= DIGITS_MAX and str(int(at)) == at):
        return False
    if not abs(moment - int(at)) <= TOLERANCE_S:  # so written that NaN is refused
        return False
    said = _signed(message_id, int(at)) + data
    wanted = [_mark(said, key).encode() for key in keys]
    known = [mark.encode("utf-8", "surrogatepass") for mark in marks.split()[:SIGNATURES_MAX]]
    # A list, so that each is compared: how long it takes does not tell which one fits.
    return any([hmac.compare_digest(one, mark) for mark in known for one in wanted])  # noqa: C419


def _headers(headers: Any) -> dict[str, str] | None:
    """The headers of ours by their names in small letters; None where they cannot be ours."""
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
    except Exception:  # whatever it is, it is no mapping of headers
        return None
    return found


def _header(text: object) -> str | None:
    if isinstance(text, bytes):
        return text.decode("latin-1")
    return str.__str__(text) if isinstance(text, str) else None  # exactly a str: a subclass may do anything


def _bytes(body: object) -> bytes | None:
    try:
        return body.encode() if isinstance(body, str) else bytes(body) if isinstance(body, _BODIES) else None
    except (ValueError, BufferError):  # a lone surrogate is no character; a view may be gone
        return None


_BODIES: Final = (bytes, bytearray, memoryview)


def _signed(message_id: str, at: int) -> bytes:
    return f"{message_id}.{at}.".encode("utf-8", "surrogatepass")


def _mark(said: bytes, key: bytes) -> str:
    return f"v1,{base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()}"


def _keys(secrets: object) -> list[bytes]:
    """The bytes of each secret of a receiver. Without any, nothing is genuine."""
    several = list(secrets) if isinstance(secrets, Iterable) and not isinstance(secrets, str) else [secrets]
    return [_key(one) for one in several]


def _key(secret: object) -> bytes:
    """The bytes of a secret: base64 where it says so, as generated ones do, else as it is written."""
    if not isinstance(secret, str) or not secret.removeprefix("whsec_"):
        raise BadConfig("the secret of the webhook is no text, or empty: anybody could sign with it", setting="secret")
    if not secret.startswith("whsec_"):
        try:
            return secret.encode()
        except UnicodeEncodeError as error:  # a lone surrogate
            raise BadConfig("the secret of the webhook cannot be written as UTF-8", setting="secret") from error
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError as error:
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
        # In ASCII: whoever logs it as it is sees nothing that a terminal obeys.
        body = ascii_json(json.dumps(self._body(approval), ensure_ascii=True, default=str)).encode()
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
        return NotDelivered(
            f"{printable(self.host)} {what} to the notice of {message_id}", status=status, passing=passing
        )
