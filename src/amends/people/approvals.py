"""What both colours of the runtime do about approvals, as flows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from amends.engine.approvals import approval_of, need_of
from amends.engine.session import Session, ask_for, must_be_readable, request_of
from amends.errors import ApprovalVoid, BadArguments, LinkVoid, RuleRefused, TransitionRefused, UsageError
from amends.host.host import Host, View
from amends.host.listing import APPROVAL_FIELDS, PAGE, Pages, parse_filter
from amends.host.notices import tell_due
from amends.ledger.flow import Flow
from amends.ledger.operations import (
    AdmitCall,
    AskAgain,
    DecideApproval,
    Delegate,
    EditApproval,
    ReadApproval,
    ReadEvents,
    ReadRun,
    SearchApprovals,
    StoreOp,
    VoidApproval,
)
from amends.ledger.rows import APPROVAL_STATES, OPEN, ApprovalRow, Need, Requested, Ruled, lost_at
from amends.ledger.world import ReadClocks
from amends.model import AHEAD_MAX_S, Approval
from amends.tools.spec import Spec
from amends.visible import visible

Verb = Literal["approve", "bypass", "reject", "withdraw"]


async def read(host: Host, view: View, id: str) -> Approval:
    """One request."""
    return _told(host, await _found(view, id))


def pages(host: Host, view: View, text: str) -> Pages[Approval]:
    """Requests, newest first."""
    wanted = parse_filter(text, APPROVAL_FIELDS, APPROVAL_STATES)
    tenant = view.tenant or ""
    # What ran out untouched still stands as it was: the ledger is asked for those too.
    states = tuple(dict.fromkeys([*wanted.states, *(("pending", "approved") if "expired" in wanted.states else ())]))

    def then(found: Requested) -> StoreOp[Any]:
        return SearchApprovals(tenant, states, found.approval.seq, PAGE)

    def takes(found: Requested) -> bool:
        is_to_be_decided_elsewhere = found.call.is_loaded and found.approval.state in OPEN
        return not is_to_be_decided_elsewhere and wanted.takes_approval(found)

    first = SearchApprovals(tenant, states, None, PAGE)
    return Pages(first, then, takes, lambda found: _told(host, found))


async def decide(
    host: Host, view: View, id: str, verb: Verb, *, by: str, why: str, digest: str = "", behalf: str | None = None,
    roles: Sequence[str] = (),
) -> Approval:  # fmt: skip
    """A person's word on a request; raises ``ApprovalVoid`` when it counts for nothing."""
    if not by.strip() or (not why.strip() and verb != "approve"):
        raise UsageError("a person's word needs who said it (by=) and why")
    found = await _found(view, id)
    if verb in ("approve", "bypass") and not digest:
        raise UsageError("an approval needs the digest of what was shown (digest=)", hint="it is Approval.digest")
    if verb in ("approve", "bypass"):
        must_be_readable(found.call)
    declared = json.loads(found.approval.reasons)
    if verb == "reject" and declared and why not in declared:
        known = ", ".join(visible(one, prose=True) for one in declared)
        raise UsageError(f"{visible(why)} is no reason here; reasons are {known}")
    theirs = (*host.roles_of(behalf or by), *roles)
    word = DecideApproval(id, verb, by, why, digest, behalf or "", tuple(dict.fromkeys(theirs)))
    return _ruled(host, await _said(word))


async def ask_again(host: Host, view: View, id: str, *, by: str, why: str) -> Approval:
    """Ask anew for what expired."""
    if not by.strip() or not why.strip():
        raise UsageError("a person's word needs who said it (by=) and why (why=)")
    await _found(view, id)
    ruled = await _said(AskAgain(id, host.new_id("apr"), host.new_id("nonce"), by, why))
    await _tell(host, ruled)
    return _ruled(host, ruled)


async def edit(
    host: Host, view: View, id: str, args: Mapping[str, Any], *, by: str, why: str, roles: Sequence[str] = ()
) -> Approval:
    """Refuse a request and make one for these arguments instead."""
    if not by.strip() or not why.strip():
        raise UsageError("a person's word needs who said it (by=) and why (why=)")
    found = await _found(view, id)
    row, call = found.approval, found.call
    must_be_readable(call)
    spec = host.specs.get(row.tool)
    if spec is None:
        raise UsageError(f"this process does not know {row.tool}: its arguments cannot be checked here")
    tree = await ReadRun(row.tenant, uid=call.root)
    assert tree is not None, "a request names a run of this ledger"
    root = tree.run
    session = host.session(root, host.reader(root).lease, resumed=True)
    try:
        bound = spec.bind((), dict(args))
    except BadArguments as bad:
        raise UsageError(f"{spec.name} cannot be called so: {'; '.join(bad.problems)}") from bad
    if lost_at(call.args) is not None:
        raise UsageError(f"gc has removed the arguments of {spec.name}")
    ask = ask_for(session, spec, bound, fn=spec.fn or _nobody, again=call.again or None, parent=call.parent)
    need = await _need_instead(session, spec, ask.fresh(), row)
    instead = AdmitCall(
        call_id=host.new_id("call"), run=call.run, root=call.root, owner=by, epoch=root.epoch, tool=spec.name,
        version=spec.version, kind=spec.kind, key=ask.key, ident=ask.ident, digest=ask.digest, args=ask.text,
        scope=spec.scope, declared=spec.declared_key, again=ask.again, parent=ask.parent,
        at_commit=spec.at == "commit", after=spec.after, undoable=spec.compensate is not None, need=need,
    )  # fmt: skip
    theirs = tuple(dict.fromkeys((*host.roles_of(by), *roles)))
    ruled = await _said(EditApproval(id, by, why, instead, theirs))
    await _tell(host, ruled)
    return _ruled(host, ruled)


async def _need_instead(session: Session, spec: Spec, args: Mapping[str, Any], row: ApprovalRow) -> Need:
    """What is asked for with other arguments: what was asked before, and what the rules here say of these."""
    ruled = await need_of(session, spec, request_of(session, spec, args))
    if ruled is not None and ruled.decision == "refuse":
        raise RuleRefused(spec.name, why=ruled.why, run_id=row.run_id)
    need = Need(session.new_id("apr"), session.new_id("nonce"), needed=row.needed, roles=tuple(json.loads(row.roles)),
                reasons=tuple(json.loads(row.reasons)), why=row.rule, policy=row.policy,
                expires_s=row.expires_at - row.requested_at, residue=row.residue)  # fmt: skip
    if ruled is None:
        return need
    policy, why = (row.policy, row.rule) if row.is_about_money else (ruled.policy, ruled.why)
    return replace(need, needed=max(need.needed, ruled.needed), roles=ruled.roles or need.roles, policy=policy, why=why)


async def delegate(host: Host, view: View, *, by: str, to: str, until: datetime | timedelta | float, why: str) -> None:
    """Let somebody else decide for a person, for a while."""
    if not by.strip() or not to.strip() or not why.strip():
        raise UsageError("a delegation says whose word (by=), to whom (to=) and why (why=)")
    if by.strip().casefold() == to.strip().casefold():
        raise UsageError("nobody delegates to themselves")
    if isinstance(until, datetime) and until.tzinfo is None:
        raise UsageError("until= is a time with its zone, or a number of seconds from now")
    now = (await ReadClocks()).wall
    if isinstance(until, datetime):
        ends = until.timestamp()
    else:
        ends = now + (until.total_seconds() if isinstance(until, timedelta) else until)
    if not 0 < ends - now <= AHEAD_MAX_S:
        raise UsageError("a delegation ends in the future, and within a hundred years")
    await Delegate(host.new_id("dlg"), view.tenant or "", by, to, ends, why)


async def reconcile_restore(host: Host, view: View, *, by: str, why: str) -> int:
    """A person has looked at a ledger that was put back: what it still offered is void, and it starts things again."""
    if view.tenant:
        raise UsageError(
            f"a ledger is looked at as a whole, and this runtime sees only what is {view.tenant}'s",
            hint="call reconcile_restore of a runtime without a tenant",
        )
    if not by.strip() or not why.strip():
        raise UsageError("a person's word needs who said it (by=) and why (why=)")
    voided, before = 0, None
    while page := await SearchApprovals(None, ("pending", "approved"), before, PAGE):
        ours = [found.approval for found in page if not found.call.is_loaded]
        for approval in ours:
            await VoidApproval(approval.id, by, why)
        voided, before = voided + len(ours), page[-1].approval.seq
    newest = 0
    while events := await ReadEvents(None, None, newest, PAGE):
        newest = events[-1].seq
    if host.anchor is not None:
        host.anchor.reset(newest)
    return voided


def _nobody(**_: Any) -> None:
    raise AssertionError("a request that is only written down has no body that amends may run")


async def _found(view: View, id: str) -> Requested:
    found = await ReadApproval(id)
    # Of another tenant's request nothing is told, not even that there is one.
    if found is None or found.approval.tenant != (view.tenant or ""):
        raise UsageError(f"there is no approval {id!r} in this ledger", hint="rt.approvals() lists those that wait")
    return found


async def _said(word: StoreOp[Ruled]) -> Ruled:
    try:
        return await word
    except TransitionRefused as no:
        raise UsageError(str(no), hint="look at it again with rt.approval(id): it may have moved on") from no


def _ruled(host: Host, ruled: Ruled) -> Approval:
    told = _told(host, Requested(ruled.approval, ruled.call, ruled.now))
    if ruled.void:
        raise ApprovalVoid(
            told.call.tool, why=ruled.void, approval=told, call=told.call, deciding=True, run_id=told.call.run_id
        )
    return told


async def _tell(host: Host, ruled: Ruled) -> None:
    """A request that a person made anew is told like any other."""
    if host.notices.tell is not None:
        await host.notices.tell(ruled.approval)


def _told(host: Host, found: Requested) -> Approval:
    return approval_of(found.approval, found.call, host.specs.get(found.call.tool), found.now)


# ---- The runtime's verbs about approvals, in both colours: each drives one flow of ``deciding``


T = TypeVar("T")


class ApprovalDesk:
    """Blocking."""

    _host: Host
    _view: View

    if TYPE_CHECKING:

        def _drive(self, flow: Flow[T]) -> T: ...
        def _pages(self, pages: Pages[T]) -> Iterator[T]: ...

    def approvals(self, filter: str = "state:pending") -> Iterator[Approval]:
        """Requests for a person's yes, newest first."""
        return self._pages(pages(self._host, self._view, filter))

    def approval(self, approval_id: str) -> Approval:
        """One request, by its id."""
        return self._drive(read(self._host, self._view, approval_id))

    def approve(
        self,
        approval_id: str,
        *,
        digest: str,
        by: str,
        why: str = "",
        roles: Sequence[str] = (),
        behalf: str | None = None,
    ) -> Approval:
        """Say yes to exactly what ``digest`` was shown of; ``behalf``: for who delegated it."""
        return self._drive(
            decide(
                self._host,
                self._view,
                approval_id,
                "approve",
                by=by,
                why=why,
                digest=digest,
                behalf=behalf,
                roles=roles,
            )
        )

    def reject(self, approval_id: str, *, by: str, reason: str, roles: Sequence[str] = ()) -> Approval:
        """Say no; the reason reaches the model."""
        return self._drive(decide(self._host, self._view, approval_id, "reject", by=by, why=reason, roles=roles))

    def withdraw(self, approval_id: str, *, by: str, why: str) -> Approval:
        """Nobody need decide any more: the call is dropped and may be asked for anew."""
        return self._drive(decide(self._host, self._view, approval_id, "withdraw", by=by, why=why))

    def bypass(self, approval_id: str, *, digest: str, by: str, why: str) -> Approval:
        """Say yes over roles and numbers, on the record; never to one's own request."""
        return self._drive(decide(self._host, self._view, approval_id, "bypass", by=by, why=why, digest=digest))

    def ask_again(self, approval_id: str, *, by: str, why: str) -> Approval:
        """Ask anew for a call whose request expired."""
        return self._drive(ask_again(self._host, self._view, approval_id, by=by, why=why))

    def edit(
        self, approval_id: str, args: Mapping[str, Any], *, by: str, why: str, roles: Sequence[str] = ()
    ) -> Approval:
        """Refuse a request and make one for these arguments instead, which is then decided like any other."""
        return self._drive(edit(self._host, self._view, approval_id, args, by=by, why=why, roles=roles))

    def delegate(self, *, by: str, to: str, until: datetime | timedelta | float, why: str) -> None:
        """Let somebody decide for somebody else, for a while (``approve(..., behalf=)``)."""
        self._drive(delegate(self._host, self._view, by=by, to=to, until=until, why=why))

    def reconcile_restore(self, *, by: str, why: str) -> int:
        """Let a ledger that was restored from a copy start things again; how many of its approvals are void now."""
        return self._drive(reconcile_restore(self._host, self._view, by=by, why=why))


class AsyncApprovalDesk:
    """The same, awaited."""

    _host: Host
    _view: View

    if TYPE_CHECKING:

        async def _drive(self, flow: Flow[T]) -> T: ...
        def _pages(self, pages: Pages[T]) -> AsyncIterator[T]: ...

    def approvals(self, filter: str = "state:pending") -> AsyncIterator[Approval]:
        """Requests for a person's yes, newest first."""
        return self._pages(pages(self._host, self._view, filter))

    async def approval(self, approval_id: str) -> Approval:
        """One request, by its id."""
        return await self._drive(read(self._host, self._view, approval_id))

    async def approve(
        self,
        approval_id: str,
        *,
        digest: str,
        by: str,
        why: str = "",
        roles: Sequence[str] = (),
        behalf: str | None = None,
    ) -> Approval:
        """Say yes to exactly what ``digest`` was shown of; ``behalf``: for who delegated it."""
        return await self._drive(
            decide(
                self._host,
                self._view,
                approval_id,
                "approve",
                by=by,
                why=why,
                digest=digest,
                behalf=behalf,
                roles=roles,
            )
        )

    async def reject(self, approval_id: str, *, by: str, reason: str, roles: Sequence[str] = ()) -> Approval:
        """Say no; the reason reaches the model."""
        return await self._drive(decide(self._host, self._view, approval_id, "reject", by=by, why=reason, roles=roles))

    async def withdraw(self, approval_id: str, *, by: str, why: str) -> Approval:
        """Nobody need decide any more: the call is dropped and may be asked for anew."""
        return await self._drive(decide(self._host, self._view, approval_id, "withdraw", by=by, why=why))

    async def bypass(self, approval_id: str, *, digest: str, by: str, why: str) -> Approval:
        """Say yes over roles and numbers, on the record; never to one's own request."""
        return await self._drive(decide(self._host, self._view, approval_id, "bypass", by=by, why=why, digest=digest))

    async def ask_again(self, approval_id: str, *, by: str, why: str) -> Approval:
        """Ask anew for a call whose request expired."""
        return await self._drive(ask_again(self._host, self._view, approval_id, by=by, why=why))

    async def edit(
        self, approval_id: str, args: Mapping[str, Any], *, by: str, why: str, roles: Sequence[str] = ()
    ) -> Approval:
        """Refuse a request and make one for these arguments instead, which is then decided like any other."""
        return await self._drive(edit(self._host, self._view, approval_id, args, by=by, why=why, roles=roles))

    async def delegate(self, *, by: str, to: str, until: datetime | timedelta | float, why: str) -> None:
        """Let somebody decide for somebody else, for a while (``approve(..., behalf=)``)."""
        await self._drive(delegate(self._host, self._view, by=by, to=to, until=until, why=why))

    async def reconcile_restore(self, *, by: str, why: str) -> int:
        """Let a ledger that was restored from a copy start things again; how many of its approvals are void now."""
        return await self._drive(reconcile_restore(self._host, self._view, by=by, why=why))


# ---- What the runtimes of both colours do about notices: deciding by a link, and telling of what nobody w


class NoticeDesk:
    """Blocking."""

    _host: Host
    _view: View

    if TYPE_CHECKING:

        def _drive(self, flow: Flow[T]) -> T: ...

    def redeem(
        self, token: str, *, by: str = "", why: str = "", reason: str = "", roles: Sequence[str] = ()
    ) -> Approval:
        """Do what a signed link is for, to exactly what was shown with it; a rejection has a ``reason``."""
        return self._drive(redeem(self._host, self._view, token, by=by, why=why, reason=reason, roles=roles))

    def _tell_due(self, limit: int) -> int:
        return self._drive(tell_all(self._host, self._view, limit))


class AsyncNoticeDesk:
    """The same, awaited."""

    _host: Host
    _view: View

    if TYPE_CHECKING:

        async def _drive(self, flow: Flow[T]) -> T: ...

    async def redeem(
        self, token: str, *, by: str = "", why: str = "", reason: str = "", roles: Sequence[str] = ()
    ) -> Approval:
        """Do what a signed link is for, to exactly what was shown with it; a rejection has a ``reason``."""
        return await self._drive(redeem(self._host, self._view, token, by=by, why=why, reason=reason, roles=roles))

    async def _tell_due(self, limit: int) -> int:
        return await self._drive(tell_all(self._host, self._view, limit))


async def redeem(
    host: Host, view: View, token: str, *, by: str, why: str, reason: str, roles: Sequence[str]
) -> Approval:
    """What the link says, said by whoever has it."""
    clocks = await ReadClocks()
    link = host.notices.links.read(token, datetime.fromtimestamp(clocks.wall, UTC))
    if link.by and by and _named(by) != _named(link.by):
        raise LinkVoid(f"the link to {link.verb} {link.approval} was made for somebody else", why="other_person")
    who = by or link.by
    if not who.strip():
        raise UsageError("whoever uses a link says who it is (by=): this one was made for nobody in particular")
    if link.verb == "approve":
        return await decide(host, view, link.approval, "approve", by=who, why=why, digest=link.digest, roles=roles)
    shown = await read(host, view, link.approval)
    if shown.digest != link.digest:
        raise ApprovalVoid(
            shown.call.tool, why="changed", approval=shown, call=shown.call, deciding=True, run_id=shown.call.run_id
        )
    return await decide(host, view, link.approval, "reject", by=who, why=reason, roles=roles)


async def tell_all(host: Host, view: View, limit: int) -> int:
    """Tell of what nobody was told of; how many requests that were."""
    return await tell_due(host.notices, view.tenant or None, limit)


def _named(person: str) -> str:
    return person.strip().casefold()
