"""Notices: call the hook ``on_approval_needed`` for requests for approval.

The process that asks calls it right after the request is durable; workers call it for requests that were missed. The
hook is user code. If it fails, that is logged and it is called again later. It never fails the call that asked, and the
request stays open.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from amends.encoding.redaction import Redactor
from amends.encoding.secret import is_unreadable
from amends.engine.approvals import approval_of
from amends.engine.session import call_of
from amends.errors import LedgerError, log_error, type_name
from amends.host.settings import Setting
from amends.ledger.operations import NOTICES_MAX, ClaimNotice, DueNotices, RecordNotice
from amends.ledger.rows import ApprovalRow, RequestWithCall, Tell
from amends.ledger.world import Ended, Invoke, LazyCall, ReadClocks
from amends.links import Links
from amends.model import Approval
from amends.tools.spec import Spec
from amends.visible import story, visible, visible_log

log = visible_log("amends")
Hook: TypeAlias = Callable[[Approval], object]

HOOK_S_MAX: Final = 20.0
"""How long a hook may take: the call that asked waits meanwhile."""
PASS_S_MAX: Final = 20.0
"""How long overdue notices may take before a worker looks for runs again; the others are told in its next pass."""
CLAIM_S: Final = 60.0
"""How long one process has a notice to itself: the time for the hook, and room for the ledger."""
RETRY_S: Final = 5.0
RETRY_S_MAX: Final = 3_600.0


class Notices:
    """The hook of one runtime, if it has one, and the links that the hook gets.

    ``specs`` and ``new_id`` are functions, because tools may be added later, and a simulation has its own ids.
    """

    def __init__(
        self,
        hook: Hook | None,
        settings: dict[str, Setting],
        specs: Callable[[], Mapping[str, Spec]],
        new_id: Callable[[], Callable[[str], str]],
        redactor: Redactor,
        with_asked: Callable[[Approval, float], Approval],
    ) -> None:
        secret = settings["link_secret"]
        self.hook, self.links = hook, Links(secret.value or "", settings["link_url"].value or "")
        self.links.check()
        if secret.value:  # settings are printed: of a secret they show only that it is set
            settings["link_secret"] = Setting("(set)", secret.origin)
        self._specs, self._new_id, self._redactor = specs, new_id, redactor
        self._with_asked = with_asked

    def new_teller(self) -> str:
        """Return a new id for one claim of a notice."""
        return self._new_id()("tell")

    @property
    def tell(self) -> Tell | None:
        """The flow that calls the hook for a request at once; None if there is no hook."""
        return None if self.hook is None else partial(tell_now, self)

    def call(self, asked: RequestWithCall) -> object:
        """Call the hook with this request as users see it; only here the request has links."""
        assert self.hook is not None, "only a runtime with a hook gives notice"
        row = asked.approval
        approval = self._with_asked(approval_of(row, asked.call, self._specs().get(row.tool), asked.now), asked.now)
        # Without the key nobody can read the arguments, so nobody may decide by link; people get the notice anyway.
        links = {} if is_unreadable(approval.call.args) else self.links.of(approval)
        return self.hook(replace(approval, links=links))

    def log_failed(self, asked: RequestWithCall, error: BaseException, then: str) -> None:
        """Log how the hook failed, without what the runtime's patterns redact."""
        words = f"on_approval_needed failed for {asked.approval.id} ({visible(asked.call.tool)}); {then}"
        if not self._redactor.is_wide:
            log_error(log, logging.WARNING, words, error)
            return
        import traceback

        # No exc_info: a log handler would get the exception itself, with unredacted text.
        log.warning("%s\n%s", words, story(self._redactor.scrub("".join(traceback.format_exception(error)))))

    @property
    def is_async(self) -> bool:
        """Whether the hook must be awaited."""
        return inspect.iscoroutinefunction(self.hook) or inspect.iscoroutinefunction(type(self.hook).__call__)


async def tell_now(notices: Notices, asked: ApprovalRow) -> None:
    """Call the hook for this request if a notice is due; raise nothing, because a worker tries again."""
    if asked.tell_at is None:
        return
    try:
        await tell(notices, asked.id)
    except LedgerError as error:
        # The request and its notice are durable, so the call does not fail because of this.
        log.warning("no notice could be given here for %s (%s): %s", asked.id, visible(asked.tool), error)


async def tell_due(notices: Notices, tenant: str | None, limit: int) -> int:
    """Call the hook for requests whose notice is overdue; return how many notices were given.

    No further one is begun after ``PASS_S_MAX``: a hook that hangs must not keep a worker from recovering runs.
    """
    told = 0
    if notices.hook is None:
        return told
    begun = (await ReadClocks()).mono
    for approval in await DueNotices(tenant, limit):
        told += await tell(notices, approval)
        if (await ReadClocks()).mono - begun >= PASS_S_MAX:
            break
    return told


async def tell(notices: Notices, approval_id: str) -> bool:
    """Call the hook with this request, unless another process does; return whether it was called and succeeded."""
    teller = notices.new_teller()
    asked = await ClaimNotice(approval_id, teller, CLAIM_S)
    if asked is None:
        return False
    ended = await _fire(notices, asked)
    failed = TimeoutError(f"it did not return within {HOOK_S_MAX:.0f} s") if ended.in_flight else ended.error
    if failed is None:
        await RecordNotice(approval_id, teller, reached=asked.approval.reached)
        return True
    tells = asked.approval.tells
    retry_s = None if tells >= NOTICES_MAX else min(RETRY_S * 2.0 ** (tells - 1), RETRY_S_MAX)
    then = "it is not called again" if retry_s is None else f"it is called again in {retry_s:.0f} s"
    notices.log_failed(asked, failed, then)
    # Only the type of the error: its message may hold the URL of a service, and many such URLs are secrets.
    await RecordNotice(approval_id, teller, error=type_name(failed), retry_s=retry_s, reached=asked.approval.reached)
    return False


async def _fire(notices: Notices, asked: RequestWithCall) -> Ended:
    def on_approval_needed() -> object:
        return notices.call(asked)

    return await Invoke(
        fn=on_approval_needed,
        kwargs={},
        is_async=notices.is_async,
        timeout=HOOK_S_MAX,
        call=LazyCall(asked.call, partial(call_of, asked.call, None)),
        lease=None,
        phase="notice",
    )
