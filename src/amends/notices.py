"""Telling people that they are asked: by the process that asked, right after the request is durable, and by workers.

A hook is user code beside the record. Its error is logged and it is called again later; it never fails the call that
asked, and what is asked stays asked.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from amends.approvalrows import ApprovalRow, Requested
from amends.engine.session import call_of
from amends.errors import LedgerError
from amends.links import Links
from amends.model import Approval
from amends.noticeops import TELLS_MAX, ClaimNotice, DueNotices, NoteTold
from amends.ops import Ended, Invoke, Later
from amends.record import dataclass

log = logging.getLogger("amends")

HOOK_S_MAX: Final = 20.0
"""A hook is not waited for longer: whoever asked stands still meanwhile."""
CLAIM_S: Final = 60.0
"""Whoever tells has the notice to himself for so long: what a hook may take, and room for the ledger."""
RETRY_S: Final = 5.0
RETRY_S_MAX: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Notices:
    """How one runtime tells people: its hook, how a request is shown to it, and how its links are made."""

    hook: Callable[[Approval], object]
    show: Callable[[Requested], Approval]
    new_id: Callable[[str], str]
    links: Links

    def shown(self, asked: Requested) -> Approval:
        """The approval as the hook gets it: only here it has links."""
        approval = self.show(asked)
        return replace(approval, links=self.links.of(approval))


async def tell_now(notices: Notices, asked: ApprovalRow) -> None:
    """Whoever must be told of this request has been, or will be by somebody else; raises nothing of its own."""
    if asked.tell_at is None:
        return
    try:
        await tell(notices, asked.id)
    except LedgerError as error:
        # What was asked for is durable, and so is that somebody is to be told of it: this is no fault of the call.
        log.warning("%s (%s) could not be told of here: %s", asked.id, asked.tool, error)


async def tell_due(notices: Notices, tenant: str | None, limit: int) -> int:
    """Tell of what nobody was told of in time; how many that were."""
    told = 0
    for approval in await DueNotices(tenant, limit):
        told += await tell(notices, approval)
    return told


async def tell(notices: Notices, approval_id: str) -> bool:
    """Call the hook with this request, unless somebody else does; whether it was called and came back."""
    teller = notices.new_id("tell")
    asked = await ClaimNotice(approval_id, teller, CLAIM_S)
    if asked is None:
        return False
    ended = await _fire(notices, asked)
    failed = TimeoutError(f"it did not come back within {HOOK_S_MAX:.0f} s") if ended.in_flight else ended.error
    if failed is None:
        await NoteTold(approval_id, teller)
        return True
    tells = asked.approval.tells
    retry_s = None if tells >= TELLS_MAX else min(RETRY_S * 2.0 ** (tells - 1), RETRY_S_MAX)
    then = "it is not called again" if retry_s is None else f"it is called again in {retry_s:.0f} s"
    log.warning("on_approval_needed failed for %s (%s); %s", approval_id, asked.call.tool, then, exc_info=failed)
    # Its type only: what a hook's error says may hold the address of a service, which is a secret for many of them.
    await NoteTold(approval_id, teller, error=type(failed).__qualname__, retry_s=retry_s)
    return False


async def _fire(notices: Notices, asked: Requested) -> Ended:
    def on_approval_needed() -> object:
        return notices.hook(notices.shown(asked))

    return await Invoke(
        fn=on_approval_needed,
        kwargs={},
        is_async=_is_async(notices.hook),
        timeout=HOOK_S_MAX,
        call=Later(asked.call, partial(call_of, asked.call, None)),
        lease=None,
        phase="notice",
    )


def _is_async(hook: Callable[[Approval], object]) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)
