"""A person's verbs over doubt, residue and rollback, in both colours. Each only drives its flow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from amends import doubting, people, planning, reconciling
from amends.doubted import Doubt
from amends.model import LOST, Probed
from amends.planned import Preview, RollbackPlan
from amends.reconciled import Reconciliation
from amends.report import Report

if TYPE_CHECKING:
    from amends.flow import Flow
    from amends.hub import Hub, View
    from amends.listing import Pages, T


class DoubtDesk:
    """What a blocking runtime lets a person see and say of what is in doubt, stands, or is to be taken back."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        def _drive(self, flow: Flow[T]) -> T: ...
        def _go_on(self, root: str) -> Report: ...
        def _report(self, run_id: str = "", *, uid: str = "", skipped: tuple[str, ...] = ()) -> Report: ...
        def _pages(self, pages: Pages[T]) -> Iterator[T]: ...

        _agents: Mapping[str, Any]

    def doubts(self, filter: str = "") -> Iterator[Doubt]:
        """Every call of which nobody here can say what became of it: what was sent, when it was lost, what is known."""
        return self._pages(doubting.doubt_pages(self._hub, self._view, filter))

    def probe(self, call_id: str) -> Probed[Any]:
        """Ask the world about a call now; decides nothing."""
        return self._drive(doubting.probe(self._hub, self._view, call_id))

    def resolve(self, call_id: str, answer: Probed[Any], *, by: str, why: str) -> Report:
        """A person's word on a doubt: it happened, it did not, or it cannot be known and stays as residue."""
        row = self._drive(doubting.resolve(self._hub, self._view, call_id, answer, by=by, why=why))
        return self._go_on(row.root)

    def preview(self, call_id: str) -> Preview:
        """What the run would do next for each of the three answers to a doubt; changes nothing."""
        return self._drive(doubting.preview(self._hub, self._view, call_id, self._agents))

    def accept(self, call_id: str, *, by: str, why: str) -> Report:
        """A person's word that an effect stays, or that nobody will know: it is residue, and named for good."""
        row = self._drive(doubting.accept(self._view, call_id, by=by, why=why))
        return self._go_on(row.root)

    def retry(self, call_id: str, *, by: str, why: str, result: object = LOST) -> Report:
        """Try a compensation or a retriable that gave up once more.

        ``result``: what the call gave back, for a compensation that was not started because nobody had it.
        """
        row = self._drive(people.retry(self._hub, self._view, call_id, by=by, why=why, result=result))
        return self._go_on(row.root)

    def plan_rollback(self, run_id: str) -> RollbackPlan:
        """What a rollback would do, in order, with what cannot be taken back; its hash binds ``rollback``."""
        return self._drive(planning.plan_rollback(self._hub, self._view, run_id))

    def rollback(self, run_id: str, *, by: str, why: str, plan: str | None = None) -> Report:
        """Take a run back from outside: its owner does it when its live calls have settled, else this process.

        With the hash of a plan only if the run still stands where it was planned: ``StalePlan`` otherwise.
        """
        if plan is None:
            root = self._drive(people.ask_rollback(self._view, run_id, by=by, why=why))
        else:
            flow = planning.rollback_planned(self._hub, self._view, run_id, plan=plan, by=by, why=why)
            root = self._drive(flow)
        return self._go_on(root)

    def abandon(self, run_id: str, *, by: str, why: str) -> Report:
        """Close a run over what stands; each effect left is named."""
        row = self._drive(people.abandon(self._view, run_id, by=by, why=why))
        return self._report(uid=row.uid)

    def finish(self, run_id: str, *, by: str, why: str) -> Report:
        """Close a run that was interrupted after its pivot as committed."""
        row = self._drive(people.finish(self._view, run_id, by=by, why=why))
        return self._report(uid=row.uid)

    def reconcile(self, tool: str | object, *, limit: int = 10_000) -> Reconciliation:
        """The ledger beside the world, for one tool: orphans on both sides, by its listing and its probe.

        Changes nothing. ``limit``: how many calls a probe is asked about, newest first.
        """
        return self._drive(reconciling.reconcile(self._hub, self._view, tool, limit=limit))


class AsyncDoubtDesk:
    """The same for an async runtime, awaited."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        async def _drive(self, flow: Flow[T]) -> T: ...
        async def _go_on(self, root: str) -> Report: ...
        async def _report(self, run_id: str = "", *, uid: str = "", skipped: tuple[str, ...] = ()) -> Report: ...
        def _pages(self, pages: Pages[T]) -> AsyncIterator[T]: ...

        _agents: Mapping[str, Any]

    def doubts(self, filter: str = "") -> AsyncIterator[Doubt]:
        """Every call of which nobody here can say what became of it: what was sent, when it was lost, what is known."""
        return self._pages(doubting.doubt_pages(self._hub, self._view, filter))

    async def probe(self, call_id: str) -> Probed[Any]:
        """Ask the world about a call now; decides nothing."""
        return await self._drive(doubting.probe(self._hub, self._view, call_id))

    async def resolve(self, call_id: str, answer: Probed[Any], *, by: str, why: str) -> Report:
        """A person's word on a doubt: it happened, it did not, or it cannot be known and stays as residue."""
        row = await self._drive(doubting.resolve(self._hub, self._view, call_id, answer, by=by, why=why))
        return await self._go_on(row.root)

    async def preview(self, call_id: str) -> Preview:
        """What the run would do next for each of the three answers to a doubt; changes nothing."""
        return await self._drive(doubting.preview(self._hub, self._view, call_id, self._agents))

    async def accept(self, call_id: str, *, by: str, why: str) -> Report:
        """A person's word that an effect stays, or that nobody will know: it is residue, and named for good."""
        row = await self._drive(doubting.accept(self._view, call_id, by=by, why=why))
        return await self._go_on(row.root)

    async def retry(self, call_id: str, *, by: str, why: str, result: object = LOST) -> Report:
        """Try a compensation or a retriable that gave up once more.

        ``result``: what the call gave back, for a compensation that was not started because nobody had it.
        """
        row = await self._drive(people.retry(self._hub, self._view, call_id, by=by, why=why, result=result))
        return await self._go_on(row.root)

    async def plan_rollback(self, run_id: str) -> RollbackPlan:
        """What a rollback would do, in order, with what cannot be taken back; its hash binds ``rollback``."""
        return await self._drive(planning.plan_rollback(self._hub, self._view, run_id))

    async def rollback(self, run_id: str, *, by: str, why: str, plan: str | None = None) -> Report:
        """Take a run back from outside: its owner does it when its live calls have settled, else this process.

        With the hash of a plan only if the run still stands where it was planned: ``StalePlan`` otherwise.
        """
        if plan is None:
            root = await self._drive(people.ask_rollback(self._view, run_id, by=by, why=why))
        else:
            flow = planning.rollback_planned(self._hub, self._view, run_id, plan=plan, by=by, why=why)
            root = await self._drive(flow)
        return await self._go_on(root)

    async def abandon(self, run_id: str, *, by: str, why: str) -> Report:
        """Close a run over what stands; each effect left is named."""
        row = await self._drive(people.abandon(self._view, run_id, by=by, why=why))
        return await self._report(uid=row.uid)

    async def finish(self, run_id: str, *, by: str, why: str) -> Report:
        """Close a run that was interrupted after its pivot as committed."""
        row = await self._drive(people.finish(self._view, run_id, by=by, why=why))
        return await self._report(uid=row.uid)

    async def reconcile(self, tool: str | object, *, limit: int = 10_000) -> Reconciliation:
        """The ledger beside the world, for one tool: orphans on both sides, by its listing and its probe.

        Changes nothing. ``limit``: how many calls a probe is asked about, newest first.
        """
        return await self._drive(reconciling.reconcile(self._hub, self._view, tool, limit=limit))
