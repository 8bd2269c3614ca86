"""The blocking surface: ``Runtime``. Thin: it says what to do, the engine decides, the driver does."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from amends.audit.bundles import AsyncBundleDesk, BundleDesk
from amends.audit.checkpoints import AsyncCheckpointDesk, CheckpointDesk
from amends.audit.verify import AsyncAuditDesk, AuditDesk
from amends.drivers.blocking import Driver
from amends.drivers.context import refuse_reaching
from amends.drivers.event_loop import AsyncDriver
from amends.encoding.chain import Checkpoint
from amends.engine import opening, plans
from amends.engine.answers import report_of
from amends.engine.recovery import Found, recover_tree
from amends.engine.session import Session
from amends.errors import LedgerError, UsageError
from amends.host import listing, maintenance, runs
from amends.host.host import Host, View, is_settled, refuse_nested
from amends.host.requests import once_ask, tested
from amends.host.settings import DEFAULTS, Setting
from amends.ledger.flow import Flow
from amends.ledger.operations import Store
from amends.ledger.rows import RunRow
from amends.model import Approval, Budget, Call, Collected, Event, Lock, Order, Policy, RunInfo, Schema
from amends.people.approvals import ApprovalDesk, AsyncApprovalDesk, AsyncNoticeDesk, NoticeDesk
from amends.people.budgets import AsyncBudgetDesk, BudgetDesk
from amends.people.doubts import AsyncDoubtDesk, DoubtDesk
from amends.replay.forks import AsyncForkDesk, ForkDesk
from amends.replay.verbs import AsyncReplayDesk, ReplayDesk, reopened, reported
from amends.report import Report
from amends.run import AsyncEntered, AsyncRun, Entered, Run
from amends.tools.rules import Rule, RuleTest
from amends.tools.spec import schemas
from amends.visible import visible, visible_log

log = visible_log("amends")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
IfRolledBack = Literal["again", "raise"]
Style = Literal["openai", "responses", "anthropic", "mcp"]


class Runtime(
    DoubtDesk, ApprovalDesk, NoticeDesk, BudgetDesk, BundleDesk, ReplayDesk, CheckpointDesk, AuditDesk, ForkDesk
):
    """Tools bound to a ledger. Checks every declaration; does no IO until first used."""

    def __init__(
        self,
        url: str | None = None,
        *,
        tools: Iterable[object] = (),
        agents: Mapping[str, Callable[[Run], object]] | None = None,
        order: Order | None = None,
        lease: float | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        rules: Iterable[Rule] | None = None,
        approvers: Mapping[str, Iterable[str]] | None = None,
        on_approval_needed: Callable[[Approval], object] | None = None,
        link_secret: str | None = None,
        link_url: str | None = None,
        anchor: str | None = None,
        checkpoint: float | str | None = None,
        audit_key: str | None = None,
        on_checkpoint: Callable[[Checkpoint], object] | None = None,
        create: bool | None = None,
        repeats: bool | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
        budgets: Iterable[Budget] | None = None,
        redact: Sequence[str] | None = None,
        secret_key: str | None = None,
        encrypt: str | Sequence[str] | None = None,
        store: Store | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in DEFAULTS}
        given["tools"] = None  # those here are beside a file's
        self._host = Host(given, tools, store=store, hook=on_approval_needed, on_checkpoint=on_checkpoint)
        self._driver: Driver = Driver(self._host.hiding.kept, self._host.live, self._host.lease_s)
        value = self._host.value
        self._view = View(value("tenant"), value("agent"), value("principal"))
        self._agents: dict[str, Callable[[Run], object]] = dict(agents or {})
        self._host.check_agents(self._agents)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Every setting, with where it came from."""
        return self._host.settings

    # ---- running --------------------------------------------------------------------------

    def run(
        self,
        id: str | None = None,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        budgets: Iterable[Budget] = (),
        recover: Policy = "rollback",
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: IfRolledBack = "again",
        history: bool = False,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
    ) -> AbstractContextManager[Run, None]:
        """One task of an agent: leaving the block commits, an exception takes everything back. A known id resumes."""
        options = {name: value for name, value in locals().items() if name not in ("self", "id", "input")}
        return _Block(self, id, input, options)

    def open(
        self,
        id: str | None = None,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        budgets: Iterable[Budget] = (),
        recover: Policy = "rollback",
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: IfRolledBack = "again",
        history: bool = False,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
    ) -> Run:
        """The same without a block (notebooks): end it with ``commit`` or ``rollback``."""
        options = {name: value for name, value in locals().items() if name not in ("self", "id", "input")}
        replayed = reopened(id, input, is_async=False)
        if replayed is not None:
            return replayed  # type: ignore[no-any-return]
        refuse_nested(f"rt.open({id!r})")
        return self._open(id, input, options)

    def _open(self, id: str | None, input: object, options: Mapping[str, Any]) -> Run:
        runs.check_options(options)
        refuse_reaching(f"rt.run({id!r})")
        self._host.ready(run_id=id)
        wanted = self._host.opening(self._view, id, input, options)
        while True:
            opened, lease = self._driver.run(opening.take(wanted))
            if opened.how == "ended":
                over = self._host.session(opened.run, lease, resumed=True, given=input)
                return Run(self._host, self._driver, over, opened.run, over=True)
            session = self._host.session(
                opened.run, lease, resumed=opened.how == "resumed", wait_s=wanted.wait_s,
                wait_approval_s=wanted.wait_approval_s, said=wanted.said, given=input,
            )  # fmt: skip
            session.known.update(wanted.known)
            self._host.heartbeat.keep(lease)
            row = opened.run
            if opened.how == "resumed":
                row = self._owing(session, row)
                if row.state == "rolled_back":
                    self._host.heartbeat.forget(lease)
                    continue  # opened again as its next generation, or refused
            return Run(self._host, self._driver, session, row, over=is_settled(row))

    def _owing(self, session: Session, row: RunRow) -> RunRow:
        run = Run(self._host, self._driver, session, row, over=False)  # what is done on the way knows its run
        try:
            return run._ending(opening.go_on(session, row))
        except BaseException:
            self._host.heartbeat.forget(session.lease)
            raise

    @overload
    def once(self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run undeclared code once in this ledger, and answer from the record after."""
        with self.run(f"once:{key}") as run:
            return run._value(run._do(once_ask(run._session, key, fn, args, kwargs)))

    def start(self, agent: str, *, id: str | None = None, input: object = None) -> Any:
        """Open a run and give it to a registered agent; a worker can resume it."""
        fn = self._agent(agent)
        with self.run(id, input=input, agent=agent, recover="resume") as run:
            if not run._over:
                run.output = fn(run)
        return run.output

    def _agent(self, name: str) -> Callable[[Run], object]:
        if name not in self._agents:
            raise UsageError(f"there is no agent {name!r}; there are: {', '.join(self._agents) or 'none'}")
        return self._agents[name]

    def scoped(self, *, tenant: str | None = None, agent: str | None = None, principal: str | None = None) -> Runtime:
        """A view that acts for, and sees, only these; it shares the ledger and the heartbeat."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view._view = self._view.narrowed(tenant, agent, principal)
        return view

    def add(self, *tools: object) -> None:
        """Declare more tools to this runtime."""
        self._host.add(tools)

    def reach(self, bodies: Mapping[str, Callable[..., object]], /) -> None:
        """Tools that were declared and live elsewhere have these bodies here; names that were not declared are passed over."""
        self._host.reach(bodies)

    def check(self, plan_: Sequence[object], /) -> plans.Check:
        """Every violation in a plan, and a lawful order if there is one."""
        return plans.check_plan(plan_, self._host.specs)

    def schemas(self, style: Style = "openai", *, repeats: bool | None = None) -> list[dict[str, Any]]:
        """The tools as a model is told about them; ``again_because`` is among the arguments where it is honoured.

        ``repeats=False`` leaves it out. ``repeats=True`` raises where the runtime does not honour it.
        """
        return schemas(self._host.specs.values(), style, repeats=self._host.offers(repeats))

    def may_repeat(self, tool: str) -> bool:
        """Whether a model may ask for a deliberate repeat of this tool (``again_because``)."""
        return self._host.may_repeat(self._host.find(tool))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about rules, budgets and tools and may yet be meant: each was logged when the runtime was built."""
        return self._host.warnings

    def test_rules(
        self, tool: str, args: Mapping[str, Any] | str = "", *, agent: str | None = None, at: datetime | None = None
    ) -> RuleTest:
        """What the rules would make of this call, rule by rule, and which one decides; starts and records nothing.

        ``args``: as a model sends them. ``at``: when it is asked for; now where that is left out.
        """
        return self._driver.run(tested(self._host, self._view, tool, args, agent=agent, at=at))

    # ---- recovering -----------------------------------------------------------------------

    def recover(self, *, limit: int = 100) -> list[Report]:
        """Take over abandoned runs whose tools are known here, and finish or take back each; tell who was not told."""
        self._tell_due(limit)
        found = self._drive(runs.abandoned(self._host, self._view, limit, self._agents))
        return [self._recover_one(one) for one in found]

    def _recover_one(self, found: Found, *, force: bool = False) -> Report:
        if found.missing:
            return self._report(uid=found.root.uid, skipped=found.missing)
        claimed = self._drive(runs.claim(self._host, found, force=force))
        if claimed is None:
            return self._report(uid=found.root.uid)
        row, lease = claimed
        patience = runs.patience(self._host)  # for people inside a body too: other runs wait for this worker
        session = self._host.session(row, lease, resumed=True, wait_s=patience, said=(patience, patience))
        run = Run(self._host, self._driver, session, row, over=False)
        self._host.heartbeat.keep(lease)
        try:
            done = run._ending(recover_tree(session, row, has_agent=row.agent in self._agents))
            if done.how == "resume":
                self._resume(run)
        except LedgerError as error:
            log.warning("run %s could not be recovered here: %s", visible(row.id), error)
        finally:
            self._host.heartbeat.forget(lease)
            self._host.checkpointer.wake()
        return self._report(uid=row.uid)

    def _resume(self, run: Run) -> None:
        fn = self._agents[run._session.agent]
        try:
            with Entered(run):
                run.output = fn(run)
        except Exception as error:  # the block has dealt with the run; the report tells
            log.warning("%s", runs.agent_ended(run._session, error))

    # ---- reading --------------------------------------------------------------------------

    def report(self, run_id: str) -> Report:
        """One run, newest generation, as the ledger has it."""
        return reported(run_id) or self._report(run_id)

    def _report(self, run_id: str = "", *, uid: str = "", skipped: tuple[str, ...] = ()) -> Report:
        reading = runs.read(tenant=self._view.tenant or "", id=run_id, uid=uid)
        tree = runs.found(self._drive(reading), run_id or uid)
        from amends.replay import forks as fork_verbs  # with what it compares: not before it is needed

        forks = self._drive(fork_verbs.forks_on(tree))
        return report_of(self._host.reader(), tree, ledger=self._host.store.url, skipped=skipped, forks=forks)

    def runs(self, filter: str = "") -> Iterator[RunInfo]:
        """Runs, newest first; the filter is the CLI's grammar."""
        return self._pages(listing.run_pages(self._view, filter))

    def calls(self, filter: str = "") -> Iterator[Call]:
        """Calls of the whole ledger, newest first."""
        return self._pages(listing.call_pages(self._host, self._view, filter))

    def call(self, call_id: str) -> Call:
        """One call, by its id."""
        row = self._drive(runs.read_call(call_id))
        return runs.call_found(self._host, self._view, row, call_id)

    def events(self, run_id: str | None = None, *, after: int = 0, filter: str = "") -> Iterator[Event]:
        """The record, in ledger order, of one run's tree or of everything; by time, tool, agent, principal, state."""
        return self._pages(self._drive(listing.events_of(self._view, run_id, after, filter)))

    def locks(self) -> Iterator[Lock]:
        """What runs have to themselves until they have ended, by name, with who waits for it."""
        return self._pages(listing.lock_pages(self._view))

    def _pages(self, pages: listing.Pages[T]) -> Iterator[T]:
        while (page := pages.read()) is not None:
            yield from self._drive(page)

    # ---- people ---------------------------------------------------------------------------

    def decide(self, call_id: str, decision: Literal["run", "replay", "refuse"], *, by: str, why: str) -> Report:
        """A person's word on a held call: do it, answer it from its twin, or refuse it."""
        row = self._drive(runs.decide(self._view, call_id, decision, by=by, why=why))
        return self._report(uid=row.root)

    def _go_on(self, root: str) -> Report:
        found = self._drive(runs.one(self._host, root))
        return self._report(uid=root) if found is None else self._recover_one(found, force=True)

    # ---- the ledger itself ----------------------------------------------------------------

    def schema(self) -> Schema:
        """The version that the ledger has and what this amends knows; makes and changes nothing."""
        return maintenance.migrating(self._host).schema()

    def migrate(self) -> Schema:
        """Bring the ledger up to date, making it if there is none; what it has then."""
        return maintenance.migrating(self._host).migrate()

    def reencrypt(self) -> int:
        """Every argument, result, input, output and error is encrypted with the newest key; how many rows that were."""
        return maintenance.reencrypt(self._host)

    def gc(
        self,
        *,
        older_than: float | str | timedelta,
        dry_run: bool = False,
        tenant: str | None = None,
        limit: int | None = None,
    ) -> Collected:
        """Remove arguments, results and errors of trees that ended so long ago; identities and events stay."""
        return self._drive(maintenance.collect(self._view, older_than, dry_run=dry_run, tenant=tenant, limit=limit))

    # ---- inside ---------------------------------------------------------------------------

    def _drive(self, flow: Flow[T]) -> T:
        refuse_reaching("a verb of the runtime", flow)
        try:
            self._host.ready()
        except BaseException:
            flow.close()  # or Python warns of a coroutine that was never awaited
            raise
        return self._driver.run(flow)

    def close(self) -> None:
        """Give back threads and connections; runs that are still open are recovered by their policy."""
        self._host.close()
        self._driver.close()

    def __enter__(self) -> Self:
        self._host.ready()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Block:
    """``with rt.run(...)``: opened on entry, so that the line itself does nothing."""

    def __init__(self, rt: Runtime, id: str | None, input: object, options: Mapping[str, Any]) -> None:
        self._rt, self._id, self._input, self._options = rt, id, input, options
        self._entered: Entered | None = None

    def __enter__(self) -> Run:
        if self._entered is not None:
            raise UsageError(
                f"the block of rt.run({self._id!r}) was entered twice at once", hint="call rt.run for each block"
            )
        replayed = reopened(self._id, self._input, is_async=False, block=True)
        if replayed is not None:
            self._entered = Entered(replayed)
            return self._entered.__enter__()
        refuse_nested(f"rt.run({self._id!r})")
        self._entered = Entered(self._rt._open(self._id, self._input, self._options))
        return self._entered.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:  # left before, it is not left again
            entered.__exit__(kind, error, trace)


# ---- The async surface: ``AsyncRuntime``: the same names as ``Runtime``, awaited


class AsyncRuntime(
    AsyncDoubtDesk,
    AsyncApprovalDesk,
    AsyncNoticeDesk,
    AsyncBudgetDesk,
    AsyncBundleDesk,
    AsyncReplayDesk,
    AsyncCheckpointDesk,
    AsyncAuditDesk,
    AsyncForkDesk,
):
    """Tools bound to a ledger. Checks every declaration; does no IO until first used."""

    def __init__(
        self,
        url: str | None = None,
        *,
        tools: Iterable[object] = (),
        agents: Mapping[str, Callable[[AsyncRun], object]] | None = None,
        order: Order | None = None,
        lease: float | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        rules: Iterable[Rule] | None = None,
        approvers: Mapping[str, Iterable[str]] | None = None,
        on_approval_needed: Callable[[Approval], object] | None = None,
        link_secret: str | None = None,
        link_url: str | None = None,
        anchor: str | None = None,
        checkpoint: float | str | None = None,
        audit_key: str | None = None,
        on_checkpoint: Callable[[Checkpoint], object] | None = None,
        create: bool | None = None,
        repeats: bool | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
        budgets: Iterable[Budget] | None = None,
        redact: Sequence[str] | None = None,
        secret_key: str | None = None,
        encrypt: str | Sequence[str] | None = None,
        store: Store | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in DEFAULTS}
        given["tools"] = None  # those here are beside a file's
        self._host = Host(given, tools, store=store, hook=on_approval_needed, on_checkpoint=on_checkpoint)
        self._driver: AsyncDriver = AsyncDriver(self._host.hiding.kept, self._host.live, self._host.lease_s)
        value = self._host.value
        self._view = View(value("tenant"), value("agent"), value("principal"))
        self._agents: dict[str, Callable[[AsyncRun], object]] = dict(agents or {})
        self._host.check_agents(self._agents)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Every setting, with where it came from."""
        return self._host.settings

    # ---- running --------------------------------------------------------------------------

    def run(
        self,
        id: str | None = None,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        budgets: Iterable[Budget] = (),
        recover: Policy = "rollback",
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: IfRolledBack = "again",
        history: bool = False,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
    ) -> AbstractAsyncContextManager[AsyncRun, None]:
        """One task of an agent: leaving the block commits, an exception takes everything back. A known id resumes."""
        options = {name: value for name, value in locals().items() if name not in ("self", "id", "input")}
        return _AsyncBlock(self, id, input, options)

    async def open(
        self,
        id: str | None = None,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        budgets: Iterable[Budget] = (),
        recover: Policy = "rollback",
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: IfRolledBack = "again",
        history: bool = False,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
    ) -> AsyncRun:
        """The same without a block (notebooks): end it with ``commit`` or ``rollback``."""
        options = {name: value for name, value in locals().items() if name not in ("self", "id", "input")}
        replayed = reopened(id, input, is_async=True)
        if replayed is not None:
            return replayed  # type: ignore[no-any-return]
        refuse_nested(f"rt.open({id!r})")
        return await self._open(id, input, options)

    async def _open(self, id: str | None, input: object, options: Mapping[str, Any]) -> AsyncRun:
        runs.check_options(options)
        refuse_reaching(f"rt.run({id!r})")
        await self._ready(id)
        wanted = self._host.opening(self._view, id, input, options)
        while True:
            opened, lease = await self._driver.run(opening.take(wanted))
            if opened.how == "ended":
                over = self._host.session(opened.run, lease, resumed=True, given=input)
                return AsyncRun(self._host, self._driver, over, opened.run, over=True)
            session = self._host.session(
                opened.run, lease, resumed=opened.how == "resumed", wait_s=wanted.wait_s,
                wait_approval_s=wanted.wait_approval_s, said=wanted.said, given=input,
            )  # fmt: skip
            session.known.update(wanted.known)
            self._host.heartbeat.keep(lease, partial(self._driver.lose, lease.root))
            row = opened.run
            if opened.how == "resumed":
                row = await self._owing(session, row)
                if row.state == "rolled_back":
                    self._host.heartbeat.forget(lease)
                    continue  # opened again as its next generation, or refused
            return AsyncRun(self._host, self._driver, session, row, over=is_settled(row))

    async def _owing(self, session: Session, row: RunRow) -> RunRow:
        run = AsyncRun(self._host, self._driver, session, row, over=False)  # what is done on the way knows its run
        try:
            return await run._ending(opening.go_on(session, row))
        except BaseException:
            self._host.heartbeat.forget(session.lease)
            raise

    @overload
    async def once(
        self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run undeclared code once in this ledger, and answer from the record after."""
        async with self.run(f"once:{key}") as run:
            return run._value(await run._do(once_ask(run._session, key, fn, args, kwargs)))

    async def start(self, agent: str, *, id: str | None = None, input: object = None) -> Any:
        """Open a run and give it to a registered agent; a worker can resume it."""
        fn = self._agent(agent)
        async with self.run(id, input=input, agent=agent, recover="resume") as run:
            if not run._over:
                ended = fn(run)
                run.output = await ended if inspect.isawaitable(ended) else ended
        return run.output

    def _agent(self, name: str) -> Callable[[AsyncRun], object]:
        if name not in self._agents:
            raise UsageError(f"there is no agent {name!r}; there are: {', '.join(self._agents) or 'none'}")
        return self._agents[name]

    def scoped(
        self, *, tenant: str | None = None, agent: str | None = None, principal: str | None = None
    ) -> AsyncRuntime:
        """A view that acts for, and sees, only these; it shares the ledger and the heartbeat."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view._view = self._view.narrowed(tenant, agent, principal)
        return view

    def add(self, *tools: object) -> None:
        """Declare more tools to this runtime."""
        self._host.add(tools)

    def reach(self, bodies: Mapping[str, Callable[..., object]], /) -> None:
        """Tools that were declared and live elsewhere have these bodies here; names that were not declared are passed over."""
        self._host.reach(bodies)

    def check(self, plan_: Sequence[object], /) -> plans.Check:
        """Every violation in a plan, and a lawful order if there is one."""
        return plans.check_plan(plan_, self._host.specs)

    def schemas(self, style: Style = "openai", *, repeats: bool | None = None) -> list[dict[str, Any]]:
        """The tools as a model is told about them; ``again_because`` is among the arguments where it is honoured.

        ``repeats=False`` leaves it out. ``repeats=True`` raises where the runtime does not honour it.
        """
        return schemas(self._host.specs.values(), style, repeats=self._host.offers(repeats))

    def may_repeat(self, tool: str) -> bool:
        """Whether a model may ask for a deliberate repeat of this tool (``again_because``)."""
        return self._host.may_repeat(self._host.find(tool))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about rules, budgets and tools and may yet be meant: each was logged when the runtime was built."""
        return self._host.warnings

    async def test_rules(
        self, tool: str, args: Mapping[str, Any] | str = "", *, agent: str | None = None, at: datetime | None = None
    ) -> RuleTest:
        """What the rules would make of this call, rule by rule, and which one decides; starts and records nothing.

        ``args``: as a model sends them. ``at``: when it is asked for; now where that is left out.
        """
        return await self._driver.run(tested(self._host, self._view, tool, args, agent=agent, at=at))

    # ---- recovering -----------------------------------------------------------------------

    async def recover(self, *, limit: int = 100) -> list[Report]:
        """Take over abandoned runs whose tools are known here, and finish or take back each; tell who was not told."""
        await self._tell_due(limit)
        found = await self._drive(runs.abandoned(self._host, self._view, limit, self._agents))
        return [await self._recover_one(one) for one in found]

    async def _recover_one(self, found: Found, *, force: bool = False) -> Report:
        if found.missing:
            return await self._report(uid=found.root.uid, skipped=found.missing)
        claimed = await self._drive(runs.claim(self._host, found, force=force))
        if claimed is None:
            return await self._report(uid=found.root.uid)
        row, lease = claimed
        patience = runs.patience(self._host)  # for people inside a body too: other runs wait for this worker
        session = self._host.session(row, lease, resumed=True, wait_s=patience, said=(patience, patience))
        run = AsyncRun(self._host, self._driver, session, row, over=False)
        self._host.heartbeat.keep(lease, partial(self._driver.lose, lease.root))
        try:
            done = await run._ending(recover_tree(session, row, has_agent=row.agent in self._agents))
            if done.how == "resume":
                await self._resume(run)
        except LedgerError as error:
            log.warning("run %s could not be recovered here: %s", visible(row.id), error)
        finally:
            self._host.heartbeat.forget(lease)
            self._host.checkpointer.wake()
        return await self._report(uid=row.uid)

    async def _resume(self, run: AsyncRun) -> None:
        fn = self._agents[run._session.agent]
        try:
            async with AsyncEntered(run):
                ended = fn(run)
                run.output = await ended if inspect.isawaitable(ended) else ended
        except Exception as error:  # the block has dealt with the run; the report tells
            log.warning("%s", runs.agent_ended(run._session, error))

    # ---- reading --------------------------------------------------------------------------

    async def report(self, run_id: str) -> Report:
        """One run, newest generation, as the ledger has it."""
        return reported(run_id) or await self._report(run_id)

    async def _report(self, run_id: str = "", *, uid: str = "", skipped: tuple[str, ...] = ()) -> Report:
        reading = runs.read(tenant=self._view.tenant or "", id=run_id, uid=uid)
        tree = runs.found(await self._drive(reading), run_id or uid)
        from amends.replay import forks as fork_verbs  # with what it compares: not before it is needed

        forks = await self._drive(fork_verbs.forks_on(tree))
        return report_of(self._host.reader(), tree, ledger=self._host.store.url, skipped=skipped, forks=forks)

    def runs(self, filter: str = "") -> AsyncIterator[RunInfo]:
        """Runs, newest first; the filter is the CLI's grammar."""
        return self._pages(listing.run_pages(self._view, filter))

    def calls(self, filter: str = "") -> AsyncIterator[Call]:
        """Calls of the whole ledger, newest first."""
        return self._pages(listing.call_pages(self._host, self._view, filter))

    async def call(self, call_id: str) -> Call:
        """One call, by its id."""
        row = await self._drive(runs.read_call(call_id))
        return runs.call_found(self._host, self._view, row, call_id)

    async def events(self, run_id: str | None = None, *, after: int = 0, filter: str = "") -> AsyncIterator[Event]:
        """The record, in ledger order, of one run's tree or of everything; by time, tool, agent, principal, state."""
        pages = await self._drive(listing.events_of(self._view, run_id, after, filter))
        async for event in self._pages(pages):
            yield event

    def locks(self) -> AsyncIterator[Lock]:
        """What runs have to themselves until they have ended, by name, with who waits for it."""
        return self._pages(listing.lock_pages(self._view))

    async def _pages(self, pages: listing.Pages[T]) -> AsyncIterator[T]:
        while (page := pages.read()) is not None:
            for one in await self._drive(page):
                yield one

    # ---- people ---------------------------------------------------------------------------

    async def decide(self, call_id: str, decision: Literal["run", "replay", "refuse"], *, by: str, why: str) -> Report:
        """A person's word on a held call: do it, answer it from its twin, or refuse it."""
        row = await self._drive(runs.decide(self._view, call_id, decision, by=by, why=why))
        return await self._report(uid=row.root)

    async def _go_on(self, root: str) -> Report:
        found = await self._drive(runs.one(self._host, root))
        return await self._report(uid=root) if found is None else await self._recover_one(found, force=True)

    # ---- the ledger itself ----------------------------------------------------------------

    async def schema(self) -> Schema:
        """The version that the ledger has and what this amends knows; makes and changes nothing."""
        return await asyncio.to_thread(maintenance.migrating(self._host).schema)

    async def migrate(self) -> Schema:
        """Bring the ledger up to date, making it if there is none; what it has then."""
        return await asyncio.to_thread(maintenance.migrating(self._host).migrate)

    async def reencrypt(self) -> int:
        """Every argument, result, input, output and error is encrypted with the newest key; how many rows that were."""
        return await asyncio.to_thread(maintenance.reencrypt, self._host)

    async def gc(
        self,
        *,
        older_than: float | str | timedelta,
        dry_run: bool = False,
        tenant: str | None = None,
        limit: int | None = None,
    ) -> Collected:
        """Remove arguments, results and errors of trees that ended so long ago; identities and events stay."""
        return await self._drive(
            maintenance.collect(self._view, older_than, dry_run=dry_run, tenant=tenant, limit=limit)
        )

    # ---- inside ---------------------------------------------------------------------------

    async def _drive(self, flow: Flow[T]) -> T:
        refuse_reaching("a verb of the runtime", flow)
        try:
            await self._ready()
        except BaseException:
            flow.close()  # or Python warns of a coroutine that was never awaited
            raise
        return await self._driver.run(flow)

    async def _ready(self, run_id: str | None = None) -> None:
        if not self._host.is_open:
            await asyncio.to_thread(self._host.ready, run_id=run_id)

    async def close(self) -> None:
        """Give back threads and connections; runs that are still open are recovered by their policy."""
        await asyncio.to_thread(self._host.close)
        self._driver.close()

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class _AsyncBlock:
    """``async with rt.run(...)``: opened on entry, so that the line itself does nothing."""

    def __init__(self, rt: AsyncRuntime, id: str | None, input: object, options: Mapping[str, Any]) -> None:
        self._rt, self._id, self._input, self._options = rt, id, input, options
        self._entered: AsyncEntered | None = None

    async def __aenter__(self) -> AsyncRun:
        if self._entered is not None:
            raise UsageError(
                f"the block of rt.run({self._id!r}) was entered twice at once", hint="call rt.run for each block"
            )
        replayed = reopened(self._id, self._input, is_async=True, block=True)
        if replayed is not None:
            self._entered = AsyncEntered(replayed)
            return await self._entered.__aenter__()
        refuse_nested(f"rt.run({self._id!r})")
        self._entered = AsyncEntered(await self._rt._open(self._id, self._input, self._options))
        return await self._entered.__aenter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:  # left before, it is not left again
            await entered.__aexit__(kind, error, trace)
