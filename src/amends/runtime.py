"""The public surface: ``Runtime`` and ``AsyncRuntime``, tools bound to a ledger.

A verb that does the same in both is written once, as a flow where its concept lives; here it is one line in each class
(see ``amends.host.verbs``). What differs is written twice: blocks, running agents, replaying, threads.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeAlias, TypeVar, overload

from amends.budgets import Budget
from amends.drivers.blocking import Driver
from amends.drivers.context import refuse_ledger_use
from amends.encoding.chain import Checkpoint
from amends.encoding.lazy_import import import_on_use
from amends.engine import opening
from amends.engine.session import Session
from amends.errors import Error, LedgerError, UsageError, WrongColour, trim, trims, trims_itself
from amends.host import requests
from amends.host import runs as run_verbs
from amends.host.host import Host, View, is_settled, refuse_nested
from amends.host.settings import DEFAULTS, Setting
from amends.host.verbs import (
    awaited,
    blocking,
    direct,
    in_place,
    in_thread,
    listed,
    listed_async,
    recovering,
    recovering_async,
)
from amends.ledger.flow import Flow
from amends.ledger.rows import RunRow
from amends.ledger.store import Store
from amends.model import Approval, Event, Interrupted, Once, OnOpenFailure, Order, Policy, Shift, Token
from amends.replay.verbs import Sources, arguments, each, ended, reopened, reported, unreadable
from amends.report import Replayed, Report
from amends.run import AsyncEntered, AsyncRun, Entered, Run, refuse_async
from amends.tools.rules import Rule
from amends.tools.scope import caller_here
from amends.tools.signature import is_async_function
from amends.tools.tool import Tool
from amends.visible import visible, visible_log

# What the first call of a blocking program does not need is imported when it is first used. Some modules have other
# names here: in the body of a class, the verb of the same name would hide its module.
if TYPE_CHECKING:
    import asyncio
    from concurrent import futures

    from amends import worker as workers
    from amends.audit import bundles as run_bundles
    from amends.audit import verify as audit_verbs
    from amends.drivers import event_loop
    from amends.engine import recovery
    from amends.host import listing, maintenance, performing, recent
    from amends.host import reserved as reserved_verbs
    from amends.host import tools as declared_tools
    from amends.people import approvals as approval_verbs
    from amends.people import budgets as budget_verbs
    from amends.people import doubts as doubt_verbs
    from amends.people import erasure as erasure_verbs
    from amends.people import halts as halt_verbs
    from amends.people import inbox as inbox_verbs
    from amends.people import links, restore
    from amends.people import permits as permit_verbs
    from amends.people import precedents as precedent_verbs
    from amends.people import reconcile as reconciliation
    from amends.people import rollback as rollback_plans
    from amends.people import runs as decisions
    from amends.people import tokens as token_verbs
    from amends.people import work as work_verbs
    from amends.replay import comparison, forks
    from amends.replay import driver as replay_driver
    from amends.replay.answers import Replay
else:
    import_on_use(
        globals(),
        asyncio="asyncio",
        futures="concurrent.futures",
        run_bundles="amends.audit.bundles",
        audit_verbs="amends.audit.verify",
        event_loop="amends.drivers.event_loop",
        recovery="amends.engine.recovery",
        listing="amends.host.listing",
        maintenance="amends.host.maintenance",
        performing="amends.host.performing",
        recent="amends.host.recent",
        declared_tools="amends.host.tools",
        approval_verbs="amends.people.approvals",
        budget_verbs="amends.people.budgets",
        doubt_verbs="amends.people.doubts",
        halt_verbs="amends.people.halts",
        permit_verbs="amends.people.permits",
        precedent_verbs="amends.people.precedents",
        inbox_verbs="amends.people.inbox",
        links="amends.people.links",
        restore="amends.people.restore",
        reconciliation="amends.people.reconcile",
        rollback_plans="amends.people.rollback",
        token_verbs="amends.people.tokens",
        erasure_verbs="amends.people.erasure",
        work_verbs="amends.people.work",
        reserved_verbs="amends.host.reserved",
        decisions="amends.people.runs",
        comparison="amends.replay.comparison",
        forks="amends.replay.forks",
        replay_driver="amends.replay.driver",
        workers="amends.worker",
    )

log = visible_log("amends")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
IfRolledBack = Literal["again", "raise"]
Reads = Literal["record", "again"]
Agents: TypeAlias = Mapping[str, Callable[[Run], object] | Callable[[AsyncRun], object]]
"""Agents by name. A worker of either colour resumes agents of both."""
Requires = str | Tool[..., Any] | Mapping[str, Any] | Callable[[Report], bool] | Iterable[Any]


def shown_runtime(rt: object, host: Host, view: View) -> str:
    """Return what a debugger shows of a runtime: its ledger, its tools, and for whom it acts."""
    count = len(host.specs)
    said = {"tenant": view.tenant, "agent": view.agent, "principal": view.principal}
    acts = "".join(f", {name} {value!r}" for name, value in said.items() if value)
    return f"<{type(rt).__name__} {host.store.url!r}, {count} tool{'' if count == 1 else 's'}{acts}>"


@trims
class Runtime:
    """Tools bound to a ledger: checks every declaration at once, and does no IO until it is used.

    Every parameter that is not given comes from the environment, a settings file or its default, except ``tools``,
    ``agents``, ``store`` and the two hooks: https://amends.readthedocs.io/en/latest/reference/settings/

    ``url``: the ledger: "memory:", "sqlite:///file.db", "postgresql://…", "mysql://…". Default: ``amends.db``.
    ``tools``: the declared tools: functions, classes, instances, or modules that have some. They add to those of a
        file.
    ``agents``: functions by name, which ``rt.start`` and workers run.
    ``order``: "strict" (default) refuses what breaks the ordering law; "advise" records it and lets it pass.
    ``interrupted``: what becomes of a run whose block raises or dies after its pivot: "block" (default) or
        "commit".
    ``lease``: seconds after which a process on another host may take over from a silent owner. Default: 30.
    ``wait``: seconds to wait for a call or a run that another process has open, or for a probe. Default: 30.
    ``wait_approval``: seconds to wait in place for an approval before ``Held`` is raised. Default: 0.
    ``poll``: the longest interval in seconds between two looks at the ledger while waiting. Default: 0.25.
    ``poll_approval``: the same while waiting in place for a person. Default: 1.
    ``poll_worker``: the longest sleep in seconds of a worker that finds nothing to do. Default: 5.
    ``payload_bytes_max``: the largest arguments, and the largest result, of one call, in bytes. Default: 1 MiB.
    ``rules``: ``Rule`` objects: which calls a person must approve, and which are refused.
    ``approvers``: who has which role: ``{"finance": ["anna", "bob"]}``.
    ``oncall``: who is asked first, and when: shifts, or the path of a CSV file. It gives nobody a role.
    ``on_approval_needed``: called with each new ``Approval`` that waits for a person.
    ``link_secret``: signs the links by which people decide; at least 16 characters.
    ``link_url``: the page that receives those links; ``{token}`` is replaced.
    ``anchor``: the file outside the ledger that holds its newest consumed approval and checkpoint.
    ``checkpoint``: seconds within which events are covered by a checkpoint; 0: at the end of a block; "off".
        Default: 5.
    ``audit_key``: the key that signs checkpoints, or its file.
    ``on_checkpoint``: called with each new ``Checkpoint``.
    ``create``: whether a missing ledger may be created. Default: True; say False in production.
    ``repeats``: whether a model may repeat a call on purpose (``again_because``). Default: False.
    ``tenant``: the tenant of the runs; a tenant sees only its own.
    ``agent``: the agent's name, recorded with each run; a worker resumes a run by it.
    ``principal``: the person or system that the runs act for.
    ``budgets``: ``Budget`` objects: what may be spent.
    ``redact``: patterns of values that are never recorded: names, or after ``re:`` expressions for texts.
    ``secret_key``: the key for commitments to hidden values; at least 32 characters.
    ``encrypt``: keys that encrypt the payloads in the ledger, the newest first.
    ``token_cache``: seconds for which a server remembers a token that it found in the ledger. Default: 5.
    ``secret``: signs the cookies and links of the service; at least 32 characters.
    ``secret_file``: a file with such secrets, one on a line.
    ``login``: the company's login of the service.
    ``login_secret``: the secret of the service at the provider of that login.
    ``store``: a store to use in place of the one for ``url``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tools: Iterable[object] = (),
        agents: Agents | None = None,
        order: Order | None = None,
        interrupted: Interrupted | None = None,
        lease: float | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        poll: float | None = None,
        poll_approval: float | None = None,
        poll_worker: float | None = None,
        payload_bytes_max: int | None = None,
        rules: Iterable[Rule] | None = None,
        approvers: Mapping[str, Iterable[str]] | None = None,
        oncall: Iterable[Shift | Mapping[str, object]] | str | None = None,
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
        token_cache: float | None = None,
        secret: str | None = None,
        secret_file: str | None = None,
        login: Mapping[str, Any] | None = None,
        login_secret: str | None = None,
        store: Store | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in DEFAULTS}
        given["tools"] = None  # the tools given here add to those of a settings file and do not replace them
        self._host = Host(given, tools, store=store, hook=on_approval_needed, on_checkpoint=on_checkpoint)
        self._driver: Driver = Driver(self._host.hiding.kept, self._host.live, self._host.lease_s)
        value = self._host.value
        self._view = View(value("tenant"), value("agent"), value("principal"))
        self._host.add_agents(agents or {})

    def __repr__(self) -> str:
        return shown_runtime(self, self._host, self._view)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Every setting with its origin: argument, environment, file or default."""
        return self._host.settings

    # ---- Running

    def run(
        self,
        id: str | None = None,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        budgets: Iterable[Budget] = (),
        recover: Policy = "rollback",
        interrupted: Interrupted | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: IfRolledBack = "again",
        requires: Requires | None = None,
        on_open_failure: OnOpenFailure | None = None,
        history: bool = False,
        reads: Reads = "record",
        client_lease: float | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
    ) -> AbstractContextManager[Run, None]:
        """Open a run as a block: leaving it commits, an exception rolls everything back. A known id resumes its run.

        ``id``: makes the run resumable; made up if left out. ``input``: recorded; another input for the same id raises
        ``RunConflict``. ``tags``: to filter by. ``budgets``: of this run, beside those of the runtime. ``recover``:
        what recovery does with the run if it is interrupted before its pivot. ``interrupted``: ``"commit"`` commits it
        if it is interrupted after its pivot and nothing is pending, instead of blocking it for a person. ``wait``,
        ``wait_approval``: seconds. These three are for this run, instead of the settings. ``deadline``: seconds after
        which the run is rolled back, unless its pivot has started. ``if_rolled_back``: ``"again"`` opens an id whose
        run failed and was rolled back as its next generation, ``"raise"`` raises ``RunEnded``. ``requires``: what must
        have succeeded when the block is left: names of tools, calls (``{"tool": ..., "args": {...}}``), or a function of
        the report that returns True; without it the run is rolled back and raises ``RolledBack``, after its pivot it is
        blocked. ``on_open_failure``: whether a call with an effect that failed, and that no later success of the same
        tool made good, does the same at the end (``"rollback"``: the default of agents' runs) or not (``"commit"``).
        ``history``: after a resume the model still has the earlier results, so do not suspect its new requests to be
        repeats of old ones. ``reads``: after a resume, what was read before is answered from the record until the first
        call that the record does not have; with ``"again"`` (said when the run is first opened) every read runs.
        ``client_lease``: said when the run is first opened by a server for its client: if the server dies, recovery leaves
        the run alone for so many seconds after its last sign, so that the client can go on through another server.
        ``tenant``, ``agent``, ``principal``: for whom the run acts, instead of the settings.
        """
        options = locals().copy()
        del options["self"], options["id"], options["input"]
        return _Block(self, id, input, options)

    def open(
        self,
        id: str | None = None,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        budgets: Iterable[Budget] = (),
        recover: Policy = "rollback",
        interrupted: Interrupted | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: IfRolledBack = "again",
        requires: Requires | None = None,
        on_open_failure: OnOpenFailure | None = None,
        history: bool = False,
        reads: Reads = "record",
        client_lease: float | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
    ) -> Run:
        """Open a run without a block, as in a notebook: end it with ``commit`` or ``rollback``. Parameters as of ``run``."""
        options = locals().copy()
        del options["self"], options["id"], options["input"]
        replayed = reopened(id, input, is_async=False)
        if replayed is not None:
            replayed.say_checks(options)
            return replayed  # type: ignore[no-any-return]
        refuse_nested(f"rt.open({id!r})", self._host)
        return self._open(id, input, options)

    def _open(self, id: str | None, input: object, options: Mapping[str, Any]) -> Run:
        run_verbs.check_options(options)
        refuse_ledger_use(f"rt.run({id!r})")
        self._host.ready(run_id=id)
        wanted = self._host.opening(self._view, id, input, options)
        while True:
            opened, lease = self._driver.run(self._view.signed(opening.take(wanted)))
            if opened.how == "ended":
                over = self._host.session(opened.run, lease, resumed=True, given=input)
                return Run(self._host, self._driver, over, opened.run, over=True)
            session = self._host.session(
                opened.run, lease, resumed=opened.how == "resumed", wait_s=wanted.wait_s,
                wait_approval_s=wanted.wait_approval_s, said=wanted.said, given=input,
            )  # fmt: skip
            session.known.update(wanted.known)
            session.closing.checks = wanted.checks
            self._host.heartbeat.keep(lease)
            row = opened.run
            if opened.how == "resumed":
                row = self._finish_pending(session, row)
                if row.state == "rolled_back":
                    self._host.heartbeat.forget(lease)
                    continue  # opened again as its next generation, or refused
            return Run(self._host, self._driver, session, row, over=is_settled(row))

    def _finish_pending(self, session: Session, row: RunRow) -> RunRow:
        run = Run(self._host, self._driver, session, row, over=False)  # bodies that run meanwhile find it as their run
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
        """Run undeclared code at most once in this ledger; later calls with the same key return the recorded result."""
        return self.tell_once(key, fn, *args, **kwargs).value

    @overload
    def tell_once(
        self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Once[T]: ...
    @overload
    def tell_once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Once[R]: ...
    def tell_once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Once[Any]:
        """Do what ``once`` does, and return whether the code was executed or answered from the record."""
        with self.run(f"once:{key}") as run:
            return run._tell(requests.once_ask(run._session, key, fn, args, kwargs))

    def start(
        self,
        agent: str,
        *,
        id: str | None = None,
        input: object = None,
        reads: Reads = "record",
        requires: Requires | None = None,
        on_open_failure: OnOpenFailure | None = None,
    ) -> Any:
        """Open a run and give it to a registered agent; a worker can resume it. Parameters as of ``run``."""
        fn = self._host.agent(agent)
        if is_async_function(fn):
            raise WrongColour(
                f"agent {agent} is async; nothing was started",
                tool=agent,
                hint="start it with an AsyncRuntime; a worker of either colour resumes it",
            )
        said: Any = {"reads": reads, "requires": requires, "on_open_failure": on_open_failure}
        with self.run(id, input=input, agent=agent, recover="resume", **said) as run:
            if not run._over:
                run.output = fn(run)
        return run.output

    def scoped(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
        token: str | None = None,
    ) -> Runtime:
        """Return a view that acts for, and sees, only these; it shares the ledger and the heartbeat.

        ``token``: the id of the token by which somebody asks for it; what is then decided, and the runs that are then
        opened, say so in their events.
        """
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view._view = self._view.narrowed(tenant, agent, principal, token)
        return view

    def as_async(self) -> AsyncRuntime:
        """Return this runtime for an event loop: the same tools, ledger, settings and heartbeat. Close one of them."""
        return self._on_a_loop()

    add = direct(lambda: declared_tools.add)
    reach = direct(lambda: declared_tools.reach)
    set_unserved = direct(lambda: declared_tools.set_unserved)
    check = direct(lambda: declared_tools.check)
    schemas = direct(lambda: declared_tools.schemas)
    may_repeat = direct(lambda: declared_tools.may_repeat)
    kind_of = direct(lambda: declared_tools.kind_of)
    describe_tools = direct(lambda: declared_tools.describe_tools)
    declarations = direct(lambda: performing.declarations)
    perform = blocking(lambda: performing.perform, opens=False)

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the registered agents (``agents=``), sorted."""
        return tuple(sorted(self._host.agents))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What looks wrong about rules, budgets and tools but may be intended; each was logged when it was found."""
        return self._host.warnings

    # ---- Recovering

    def worker(
        self, *, every: float = 1.0, limit: int = 100, concurrency: int = 1
    ) -> AbstractContextManager[workers.Worker, None]:
        """Recover runs in this process: ``with rt.worker():`` does what ``amends worker`` does, in a thread.

        ``every``: seconds between two passes; ``limit``: runs per pass; ``concurrency``: runs at once. Leaving the block
        finishes the current runs first.
        Without a handler of your own, SIGTERM raises ``SystemExit`` in the main thread, so that blocks are left.
        """
        refuse_nested("rt.worker()", self._host)
        return workers.WorkerBlock(
            workers.Worker(self, every=every, limit=limit, concurrency=concurrency, is_guest=True)
        )

    def recover(self, *, limit: int = 100) -> list[Report]:
        """Take over abandoned runs whose tools are known here and finish or roll back each; send overdue notices."""
        self._send_overdue_notices(limit)
        found = self._abandoned(limit)
        return [self._recover_one(one) for one in found]

    def _recover_one(self, found: recovery.Found, *, force: bool = False) -> Report:
        if found.missing:
            return self._report(uid=found.root.uid, skipped=found.missing)
        claimed = self._drive(run_verbs.claim(self._host, found, force=force))
        if claimed is None:
            return self._report(uid=found.root.uid)
        row, lease = claimed
        patience = run_verbs.patience(self._host)  # bounds waiting for approvals too: other runs wait for this worker
        session = self._host.session(row, lease, resumed=True, wait_s=patience, said=(patience, patience))
        run = Run(self._host, self._driver, session, row, over=False)
        self._host.heartbeat.keep(lease)
        try:
            done = run._ending(recovery.recover_tree(session, row, has_agent=row.agent in self._host.agents))
            if done.how == "resume" and not self._resume(run):
                self._resume_async(session, row)
        except LedgerError as error:
            log.warning("run %s could not be recovered here: %s", visible(row.id), error)
        finally:
            self._host.heartbeat.forget(lease)
            self._host.checkpointer.wake()
        return self._report(uid=row.uid)

    def _resume(self, run: Run) -> bool:
        """Give the run to its agent again; return False if the agent is async, and nothing was done."""
        fn = self._host.agents[run._session.agent]
        if is_async_function(fn):
            return False
        run._session.waits_for_doubts = True
        block = Entered(run)
        try:
            with block:
                made = fn(run)
                if inspect.iscoroutine(made):  # of a plain function around an async one: nothing of it has run
                    made.close()
                    block.hand_over()
                    return False
                run.output = made
        except Exception as error:  # the block has already settled the run, and the report shows it
            log.warning("%s", run_verbs.agent_ended(run._session, error))
        return True

    def _resume_async(self, session: Session, row: RunRow) -> None:
        """Give the run to its agent, which is async, on an event loop of its own."""
        other = self._on_a_loop()
        self._host.heartbeat.keep(session.lease, partial(other._driver.lose, session.root))
        run = AsyncRun(self._host, other._driver, session, row, over=False)
        if event_loop.is_on_loop():  # of a notebook, for example
            with futures.ThreadPoolExecutor(1) as pool:
                pool.submit(lambda: asyncio.run(other._resume(run))).result()
        else:
            asyncio.run(other._resume(run))

    def _on_a_loop(self) -> AsyncRuntime:
        """Return this runtime in the other colour: the same tools, ledger and heartbeat."""
        other = object.__new__(AsyncRuntime)
        other._host, other._view = self._host, self._view
        other._driver = event_loop.AsyncDriver(self._driver.store, self._host.live, self._host.lease_s)
        return other

    def _go_on(self, root: str) -> Report:
        found = self._drive(run_verbs.one(self._host, root))
        return self._report(uid=root) if found is None else self._recover_one(found, force=True)

    # ---- Replaying

    def replay(self, run: str | bytes, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``fn`` with every tool, model, clock and random number answered from the record; raise ``Diverged``.

        ``run``: the id of a run of this ledger, or what ``export`` returned. No body of a tool starts, nothing is
        written, and nothing leaves the process. What ``fn`` raised then, it raises now.
        """
        refuse_async(fn, "rt.replay")
        with self.replaying(run):
            answer = fn(*args, **kwargs)
        return answer  # noqa: RET504 (inside the block it would return before the rest of the record was checked)

    @contextmanager
    def replaying(self, run: str | bytes, *, until: str | None = None, strict: bool = True) -> Iterator[Run]:
        """Replay as a block that has the recorded run: ``with rt.replaying("order-7") as run:``.

        ``until``: the id of a call; the block ends at the first request after it. ``strict=False``: another version
        of a tool, and other arguments that carry no intent (``ignore=``), are no divergence.
        """
        from amends.replay import run as replay_run  # here: few programs replay

        refuse_nested("rt.replay", self._host)
        with replay_run.opened(self._host, self._replay_of(run, until=until, strict=strict)) as opened:
            yield opened

    def replay_each(
        self, runs: Sources, fn: Callable[..., object] | str, *, until: str | None = None, strict: bool = True
    ) -> list[Replayed]:
        """Replay many runs against one function and report on each; a divergence raises nothing.

        ``runs``: ids of runs of this ledger, or bundles by the names of their files. ``fn`` gets the recorded run if
        its parameter is named ``run``, else the run's input: by the names of its parameters, or whole. A registered
        agent is named (``"shopper"``), and gets the run.
        """
        from amends.replay import run as replay_run

        agent = fn if isinstance(fn, str) else None
        fn = self._host.agent(fn) if isinstance(fn, str) else fn
        if agent is not None and is_async_function(fn):
            raise WrongColour(
                f"agent {agent} is async; nothing was replayed", tool=agent, hint="replay it with an AsyncRuntime"
            )
        found: list[Replayed] = []
        for name, record, run_id in each(runs):
            try:
                replay = self._replay_of(record, run_id, until=until, strict=strict)
            except Error as unread:
                found.append(unreadable(name, run_id, unread))
                continue
            run: Any = None
            value, error = None, None
            try:
                with replay_run.opened(self._host, replay) as run:
                    args, kwargs = ((run,), {}) if agent else arguments(fn, run, replay.record.run)
                    value = fn(*args, **kwargs)
            except (Exception, SystemExit) as raised:  # it belongs to this run: the others are still to be replayed
                error = raised
            found.append(ended(name, replay, run, value, error))
        return found

    def _replay_of(self, run: str | bytes, run_id: str = "", *, until: str | None, strict: bool) -> Replay:
        if isinstance(run, bytes):
            source = replay_driver.unpacked(self._host, run, run_id)
        else:
            source = self._drive(replay_driver.read(self._host, self._view, run))
        return replay_driver.begun(*source, until=until, strict=strict)

    # ---- Reading

    runs = listed(lambda: listing.runs)
    overview = blocking(lambda: listing.overview)
    calls = listed(lambda: listing.calls)
    info = blocking(lambda: listing.info)
    call = blocking(lambda: run_verbs.call)
    wanted = blocking(lambda: run_verbs.wanted)
    told = blocking(lambda: run_verbs.told)
    locks = listed(lambda: listing.locks)
    budgets = blocking(lambda: budget_verbs.budgets)
    costs = blocking(lambda: budget_verbs.costs)
    spending = blocking(lambda: budget_verbs.spending)
    recent_events = blocking(lambda: recent.recent_events)
    recent_calls = blocking(lambda: recent.recent_calls)
    tool_use = blocking(lambda: recent.tool_use)
    unfinished = blocking(lambda: recent.unfinished)
    checkpoints = blocking(lambda: recent.checkpoints)
    compare = blocking(lambda: comparison.compare)
    verify = blocking(lambda: audit_verbs.verify)
    test_rules = blocking(lambda: requests.test_rules, opens=False)

    # ---- The inbox and approvals

    inbox = blocking(lambda: inbox_verbs.inbox)
    approvals = listed(lambda: approval_verbs.approvals)
    approval = blocking(lambda: approval_verbs.approval)
    precedents = blocking(lambda: precedent_verbs.precedents)
    approve = blocking(lambda: approval_verbs.approve)
    reject = blocking(lambda: approval_verbs.reject)
    withdraw = blocking(lambda: approval_verbs.withdraw)
    bypass = blocking(lambda: approval_verbs.bypass)
    ask_again = blocking(lambda: approval_verbs.ask_again)
    edit = blocking(lambda: approval_verbs.edit)
    delegate = blocking(lambda: approval_verbs.delegate)
    oncall = blocking(lambda: approval_verbs.oncall, opens=False)
    check_oncall = blocking(lambda: approval_verbs.check_oncall, opens=False)
    redeem = blocking(lambda: links.redeem)

    # ---- The emergency stop

    halt = blocking(lambda: halt_verbs.halt)
    unhalt = blocking(lambda: halt_verbs.unhalt)
    halts = blocking(lambda: halt_verbs.halts)

    # ---- Approvals given ahead

    permit = blocking(lambda: permit_verbs.permit)
    permits = blocking(lambda: permit_verbs.permits)
    revoke = blocking(lambda: permit_verbs.revoke)

    # ---- Tokens of the service

    create_token = blocking(lambda: token_verbs.create_token)
    tokens = blocking(lambda: token_verbs.tokens)
    revoke_token = blocking(lambda: token_verbs.revoke_token)
    check_token = blocking(lambda: token_verbs.check_token)

    def recall_token(self, text: str) -> Token | None:
        """Return what ``check_token`` answered about this text, if that is still remembered; None: ask it. Does no IO."""
        return token_verbs.recall_token(self._host, self._view, text, mono=self._driver.mono())

    note_driver = blocking(lambda: token_verbs.note_driver)

    # ---- Tools of workers

    reserve_tools = blocking(lambda: reserved_verbs.reserve_tools)
    reserved_tools = blocking(lambda: reserved_verbs.reserved_tools)

    # ---- Doubts, and other decisions about a run

    doubts = listed(lambda: doubt_verbs.doubts)
    probe = blocking(lambda: doubt_verbs.probe)
    preview = blocking(lambda: doubt_verbs.preview)
    resolve = recovering(lambda: doubt_verbs.resolve)
    accept = recovering(lambda: doubt_verbs.accept)
    report_late = blocking(lambda: doubt_verbs.report_late)
    decide = blocking(lambda: decisions.decide)
    retry = recovering(lambda: decisions.retry)
    plan_rollback = blocking(lambda: rollback_plans.plan_rollback)
    rollback = recovering(lambda: rollback_plans.rollback)
    abandon = blocking(lambda: decisions.abandon)
    finish = blocking(lambda: decisions.finish)
    fork = blocking(lambda: forks.fork)
    reconcile = blocking(lambda: reconciliation.reconcile)

    # ---- The ledger itself

    schema = in_place(lambda: maintenance.schema)
    plan_migration = in_place(lambda: maintenance.plan_migration)
    schema_sql = in_place(lambda: maintenance.schema_sql)
    migrate = in_place(lambda: maintenance.migrate)
    reencrypt = in_place(lambda: maintenance.reencrypt)
    checkpoint = in_place(lambda: maintenance.checkpoint)
    gc = blocking(lambda: maintenance.gc)
    erase = blocking(lambda: erasure_verbs.erase)
    note_work = blocking(lambda: work_verbs.note_work)
    reconcile_restore = blocking(lambda: restore.reconcile_restore)
    check_anchor = blocking(lambda: restore.check_anchor)

    # ---- For the runtime itself and its workers

    _report = blocking(lambda: run_verbs.report)
    _abandoned = blocking(lambda: run_verbs.abandoned)
    _send_overdue_notices = blocking(lambda: approval_verbs.send_overdue_notices)

    # ---- Verbs that differ on an event loop

    def report(self, run_id: str, *, after: str = "", limit: int | None = None) -> Report:
        """Return the newest generation of a run as the ledger has it.

        ``limit``: only so many of its calls, in the order of the requests, those after the call ``after``, and what is
        left standing of them: one page of a long run.
        """
        # In a replay the ledger cannot be read: the replay itself reports on its run.
        return reported(run_id) or self._report(run_id, after=after, limit=limit)

    def events(self, run_id: str | None = None, *, after: int | str = "", filter: str = "") -> Iterator[Event]:
        """List events, oldest first, of one run's tree or of the ledger; by time, tool, agent, principal, state.

        ``after``: the ``place`` of an event, or in a run its number ``seq``. ``Feed`` follows a ledger that goes on.
        """
        return self._pages(self._drive(listing.events_of(self._view, run_id, after, filter)))

    def newest_event(self, run_id: str | None = None) -> Event | None:
        """Return the last event, of one run's tree or of the ledger; None: there is none."""
        return self._drive(listing.newest_event(self._view, run_id))

    def export(self, *run_ids: str) -> bytes:
        """Return everything that the ledger has of these runs as one file that anybody can verify: ``python FILE``."""
        self._host.ready()
        ledger = run_bundles.ledger_of(self._host)
        return run_bundles.pack_export(self._drive(run_bundles.read_export(self._view, run_ids, ledger)), ledger)

    def load(self, bundle: bytes, *, tenant: str | None = None, by: str = "", why: str = "") -> list[str]:
        """Load the runs of a bundle as records that nothing here changes; return their ids.

        ``tenant``: the only one that they may be of; "" is the one without a name. ``by``, ``why``: who loads them, and
        the reason, for the event ``runs loaded``; without ``by`` it names this process.
        """
        records = run_bundles.unpack(bundle)
        return self._drive(run_bundles.load_records(self._host, self._view, records, tenant=tenant, by=by, why=why))

    # ---- Driving flows, and closing

    def _pages(self, pages: listing.Pages[T]) -> Iterator[T]:
        try:
            while (page := pages.read()) is not None:
                yield from self._drive(page)
        except BaseException as error:
            trim(error)
            raise

    def _drive(self, flow: Flow[T]) -> T:
        refuse_ledger_use("a verb of the runtime", flow)
        try:
            self._host.ready()
        except BaseException:
            flow.close()  # otherwise Python warns that a coroutine was never awaited
            raise
        return self._driver.run(self._view.signed(flow))

    def close(self) -> None:
        """Release threads and connections; runs that are still open are recovered by their policy."""
        self._host.close()
        self._driver.close()

    def __enter__(self) -> Self:
        self._host.ready()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@trims
class _Block:
    """``with rt.run(...)``: opens the run on entry, so that calling ``run`` alone does nothing."""

    @trims_itself  # it raises nothing
    def __init__(self, rt: Runtime, id: str | None, input: object, options: Mapping[str, Any]) -> None:
        self._rt, self._id, self._input, self._options = rt, id, input, options
        self._entered: Entered | None = None

    def __repr__(self) -> str:
        return f"<a run of {self._rt!r}, {'entered' if self._entered else 'not entered yet: say with rt.run(...)'}>"

    def __enter__(self) -> Run:
        if self._entered is not None:
            raise UsageError(
                f"the block of rt.run({self._id!r}) was entered twice at once", hint="call rt.run for each block"
            )
        if caller_here() is not None:  # a replay, or another run around this one
            replayed = reopened(self._id, self._input, is_async=False, block=True)
            if replayed is not None:
                replayed.say_checks(self._options)
                self._entered = Entered(replayed)
                return self._entered.__enter__()
            refuse_nested(f"rt.run({self._id!r})", self._rt._host)
        self._entered = Entered(self._rt._open(self._id, self._input, self._options))
        return self._entered.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:  # a block that was left already is not left again
            entered.__exit__(kind, error, trace)


@trims
class AsyncRuntime:
    """``Runtime`` for an event loop: the same names and parameters, awaited.

    Every parameter that is not given comes from the environment, a settings file or its default, except ``tools``,
    ``agents``, ``store`` and the two hooks: https://amends.readthedocs.io/en/latest/reference/settings/

    ``url``: the ledger: "memory:", "sqlite:///file.db", "postgresql://…", "mysql://…". Default: ``amends.db``.
    ``tools``: the declared tools: functions, classes, instances, or modules that have some. They add to those of a
        file.
    ``agents``: functions by name, which ``rt.start`` and workers run.
    ``order``: "strict" (default) refuses what breaks the ordering law; "advise" records it and lets it pass.
    ``interrupted``: what becomes of a run whose block raises or dies after its pivot: "block" (default) or
        "commit".
    ``lease``: seconds after which a process on another host may take over from a silent owner. Default: 30.
    ``wait``: seconds to wait for a call or a run that another process has open, or for a probe. Default: 30.
    ``wait_approval``: seconds to wait in place for an approval before ``Held`` is raised. Default: 0.
    ``poll``: the longest interval in seconds between two looks at the ledger while waiting. Default: 0.25.
    ``poll_approval``: the same while waiting in place for a person. Default: 1.
    ``poll_worker``: the longest sleep in seconds of a worker that finds nothing to do. Default: 5.
    ``payload_bytes_max``: the largest arguments, and the largest result, of one call, in bytes. Default: 1 MiB.
    ``rules``: ``Rule`` objects: which calls a person must approve, and which are refused.
    ``approvers``: who has which role: ``{"finance": ["anna", "bob"]}``.
    ``oncall``: who is asked first, and when: shifts, or the path of a CSV file. It gives nobody a role.
    ``on_approval_needed``: called with each new ``Approval`` that waits for a person.
    ``link_secret``: signs the links by which people decide; at least 16 characters.
    ``link_url``: the page that receives those links; ``{token}`` is replaced.
    ``anchor``: the file outside the ledger that holds its newest consumed approval and checkpoint.
    ``checkpoint``: seconds within which events are covered by a checkpoint; 0: at the end of a block; "off".
        Default: 5.
    ``audit_key``: the key that signs checkpoints, or its file.
    ``on_checkpoint``: called with each new ``Checkpoint``.
    ``create``: whether a missing ledger may be created. Default: True; say False in production.
    ``repeats``: whether a model may repeat a call on purpose (``again_because``). Default: False.
    ``tenant``: the tenant of the runs; a tenant sees only its own.
    ``agent``: the agent's name, recorded with each run; a worker resumes a run by it.
    ``principal``: the person or system that the runs act for.
    ``budgets``: ``Budget`` objects: what may be spent.
    ``redact``: patterns of values that are never recorded: names, or after ``re:`` expressions for texts.
    ``secret_key``: the key for commitments to hidden values; at least 32 characters.
    ``encrypt``: keys that encrypt the payloads in the ledger, the newest first.
    ``token_cache``: seconds for which a server remembers a token that it found in the ledger. Default: 5.
    ``secret``: signs the cookies and links of the service; at least 32 characters.
    ``secret_file``: a file with such secrets, one on a line.
    ``login``: the company's login of the service.
    ``login_secret``: the secret of the service at the provider of that login.
    ``store``: a store to use in place of the one for ``url``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tools: Iterable[object] = (),
        agents: Agents | None = None,
        order: Order | None = None,
        interrupted: Interrupted | None = None,
        lease: float | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        poll: float | None = None,
        poll_approval: float | None = None,
        poll_worker: float | None = None,
        payload_bytes_max: int | None = None,
        rules: Iterable[Rule] | None = None,
        approvers: Mapping[str, Iterable[str]] | None = None,
        oncall: Iterable[Shift | Mapping[str, object]] | str | None = None,
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
        token_cache: float | None = None,
        secret: str | None = None,
        secret_file: str | None = None,
        login: Mapping[str, Any] | None = None,
        login_secret: str | None = None,
        store: Store | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in DEFAULTS}
        given["tools"] = None  # the tools given here add to those of a settings file and do not replace them
        self._host = Host(given, tools, store=store, hook=on_approval_needed, on_checkpoint=on_checkpoint)
        self._driver: event_loop.AsyncDriver = event_loop.AsyncDriver(
            self._host.hiding.kept, self._host.live, self._host.lease_s
        )
        value = self._host.value
        self._view = View(value("tenant"), value("agent"), value("principal"))
        self._host.add_agents(agents or {})

    def __repr__(self) -> str:
        return shown_runtime(self, self._host, self._view)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Every setting with its origin: argument, environment, file or default."""
        return self._host.settings

    # ---- Running

    def run(
        self,
        id: str | None = None,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        budgets: Iterable[Budget] = (),
        recover: Policy = "rollback",
        interrupted: Interrupted | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: IfRolledBack = "again",
        requires: Requires | None = None,
        on_open_failure: OnOpenFailure | None = None,
        history: bool = False,
        reads: Reads = "record",
        client_lease: float | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
    ) -> AbstractAsyncContextManager[AsyncRun, None]:
        """Open a run as a block: leaving it commits, an exception rolls everything back. A known id resumes its run.

        The parameters are those of ``Runtime.run``.
        """
        options = locals().copy()
        del options["self"], options["id"], options["input"]
        return _AsyncBlock(self, id, input, options)

    async def open(
        self,
        id: str | None = None,
        *,
        input: object = None,
        tags: Sequence[str] = (),
        budgets: Iterable[Budget] = (),
        recover: Policy = "rollback",
        interrupted: Interrupted | None = None,
        wait: float | None = None,
        wait_approval: float | None = None,
        deadline: float | None = None,
        if_rolled_back: IfRolledBack = "again",
        requires: Requires | None = None,
        on_open_failure: OnOpenFailure | None = None,
        history: bool = False,
        reads: Reads = "record",
        client_lease: float | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
    ) -> AsyncRun:
        """Open a run without a block, as in a notebook: end it with ``commit`` or ``rollback``. Parameters as of ``run``."""
        options = locals().copy()
        del options["self"], options["id"], options["input"]
        replayed = reopened(id, input, is_async=True)
        if replayed is not None:
            replayed.say_checks(options)
            return replayed  # type: ignore[no-any-return]
        refuse_nested(f"rt.open({id!r})", self._host)
        return await self._open(id, input, options)

    async def _open(self, id: str | None, input: object, options: Mapping[str, Any]) -> AsyncRun:
        run_verbs.check_options(options)
        refuse_ledger_use(f"rt.run({id!r})")
        await self._ready(id)
        wanted = self._host.opening(self._view, id, input, options)
        while True:
            opened, lease = await self._driver.run(self._view.signed(opening.take(wanted)))
            if opened.how == "ended":
                over = self._host.session(opened.run, lease, resumed=True, given=input)
                return AsyncRun(self._host, self._driver, over, opened.run, over=True)
            session = self._host.session(
                opened.run, lease, resumed=opened.how == "resumed", wait_s=wanted.wait_s,
                wait_approval_s=wanted.wait_approval_s, said=wanted.said, given=input,
            )  # fmt: skip
            session.known.update(wanted.known)
            session.closing.checks = wanted.checks
            self._host.heartbeat.keep(lease, partial(self._driver.lose, lease.root))
            row = opened.run
            if opened.how == "resumed":
                row = await self._finish_pending(session, row)
                if row.state == "rolled_back":
                    self._host.heartbeat.forget(lease)
                    continue  # opened again as its next generation, or refused
            return AsyncRun(self._host, self._driver, session, row, over=is_settled(row))

    async def _finish_pending(self, session: Session, row: RunRow) -> RunRow:
        run = AsyncRun(
            self._host, self._driver, session, row, over=False
        )  # bodies that run meanwhile find it as their run
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
        """Run undeclared code at most once in this ledger; later calls with the same key return the recorded result."""
        return (await self.tell_once(key, fn, *args, **kwargs)).value

    @overload
    async def tell_once(
        self, key: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Once[T]: ...
    @overload
    async def tell_once(self, key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Once[R]: ...
    async def tell_once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Once[Any]:
        """Do what ``once`` does, and return whether the code was executed or answered from the record."""
        async with self.run(f"once:{key}") as run:
            return await run._tell(requests.once_ask(run._session, key, fn, args, kwargs))

    async def start(
        self,
        agent: str,
        *,
        id: str | None = None,
        input: object = None,
        reads: Reads = "record",
        requires: Requires | None = None,
        on_open_failure: OnOpenFailure | None = None,
    ) -> Any:
        """Open a run and give it to a registered agent; a worker can resume it. Parameters as of ``run``."""
        fn = self._host.agent(agent)
        said: Any = {"reads": reads, "requires": requires, "on_open_failure": on_open_failure}
        async with self.run(id, input=input, agent=agent, recover="resume", **said) as run:
            if not run._over:
                ended = fn(run)
                run.output = await ended if inspect.isawaitable(ended) else ended
        return run.output

    def scoped(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        principal: str | None = None,
        token: str | None = None,
    ) -> AsyncRuntime:
        """Return a view that acts for, and sees, only these; it shares the ledger and the heartbeat.

        ``token``: the id of the token by which somebody asks for it; what is then decided, and the runs that are then
        opened, say so in their events.
        """
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view._view = self._view.narrowed(tenant, agent, principal, token)
        return view

    def as_async(self) -> AsyncRuntime:
        """Return this runtime itself; a blocking one returns its counterpart for an event loop."""
        return self

    add = direct(lambda: declared_tools.add)
    reach = direct(lambda: declared_tools.reach)
    set_unserved = direct(lambda: declared_tools.set_unserved)
    check = direct(lambda: declared_tools.check)
    schemas = direct(lambda: declared_tools.schemas)
    may_repeat = direct(lambda: declared_tools.may_repeat)
    kind_of = direct(lambda: declared_tools.kind_of)
    describe_tools = direct(lambda: declared_tools.describe_tools)
    declarations = direct(lambda: performing.declarations)
    perform = awaited(lambda: performing.perform, opens=False)

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the registered agents (``agents=``), sorted."""
        return tuple(sorted(self._host.agents))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What looks wrong about rules, budgets and tools but may be intended; each was logged when it was found."""
        return self._host.warnings

    # ---- Recovering

    def worker(
        self, *, every: float = 1.0, limit: int = 100, concurrency: int = 1
    ) -> AbstractAsyncContextManager[workers.Worker, None]:
        """Recover runs in this process: ``async with rt.worker():`` does what ``amends worker`` does, in a task.

        ``every``: seconds between two passes; ``limit``: runs per pass; ``concurrency``: runs at once. Leaving the block
        finishes the current runs first.
        Without a handler of your own, SIGTERM cancels the task of the block, and then raises ``SystemExit``.
        """
        refuse_nested("rt.worker()", self._host)
        return workers.AsyncWorkerBlock(
            workers.Worker(self, every=every, limit=limit, concurrency=concurrency, is_guest=True)
        )

    async def recover(self, *, limit: int = 100) -> list[Report]:
        """Take over abandoned runs whose tools are known here and finish or roll back each; send overdue notices."""
        await self._send_overdue_notices(limit)
        found = await self._abandoned(limit)
        return [await self._recover_one(one) for one in found]

    async def _recover_one(self, found: recovery.Found, *, force: bool = False) -> Report:
        if found.missing:
            return await self._report(uid=found.root.uid, skipped=found.missing)
        claimed = await self._drive(run_verbs.claim(self._host, found, force=force))
        if claimed is None:
            return await self._report(uid=found.root.uid)
        row, lease = claimed
        patience = run_verbs.patience(self._host)  # bounds waiting for approvals too: other runs wait for this worker
        session = self._host.session(row, lease, resumed=True, wait_s=patience, said=(patience, patience))
        run = AsyncRun(self._host, self._driver, session, row, over=False)
        self._host.heartbeat.keep(lease, partial(self._driver.lose, lease.root))
        try:
            done = await run._ending(recovery.recover_tree(session, row, has_agent=row.agent in self._host.agents))
            if done.how == "resume" and not await self._resume_blocking(session, row):
                await self._resume(AsyncRun(self._host, self._driver, session, row, over=False))
        except LedgerError as error:
            log.warning("run %s could not be recovered here: %s", visible(row.id), error)
        finally:
            self._host.heartbeat.forget(lease)
            self._host.checkpointer.wake()
        return await self._report(uid=row.uid)

    async def _resume_blocking(self, session: Session, row: RunRow) -> bool:
        """Give the run to its agent again, in a thread; return False if the agent is async, and nothing was done."""
        if is_async_function(self._host.agents[session.agent]):
            return False
        other = object.__new__(Runtime)
        other._host, other._view, other._driver = self._host, self._view, self._driver.blocking
        run = Run(self._host, other._driver, session, row, over=False)
        return await event_loop.shielded(asyncio.to_thread(other._resume, run))

    async def _resume(self, run: AsyncRun) -> None:
        """Give the run to its agent again."""
        fn = self._host.agents[run._session.agent]
        run._session.waits_for_doubts = True
        try:
            async with AsyncEntered(run):
                ended = fn(run)
                run.output = await ended if inspect.isawaitable(ended) else ended
        except Exception as error:  # the block has already settled the run, and the report shows it
            log.warning("%s", run_verbs.agent_ended(run._session, error))

    async def _go_on(self, root: str) -> Report:
        found = await self._drive(run_verbs.one(self._host, root))
        return await self._report(uid=root) if found is None else await self._recover_one(found, force=True)

    # ---- Replaying

    async def replay(
        self, run: str | bytes, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run ``fn`` with every tool, model, clock and random number answered from the record; raise ``Diverged``.

        ``run``: the id of a run of this ledger, or what ``export`` returned. No body of a tool starts, nothing is
        written, and nothing leaves the process. What ``fn`` raised then, it raises now.
        """
        async with self.replaying(run):
            answer = await fn(*args, **kwargs)
        return answer  # noqa: RET504 (inside the block it would return before the rest of the record was checked)

    @asynccontextmanager
    async def replaying(
        self, run: str | bytes, *, until: str | None = None, strict: bool = True
    ) -> AsyncIterator[AsyncRun]:
        """Replay as a block that has the recorded run: ``async with rt.replaying("order-7") as run:``.

        ``until``: the id of a call; the block ends at the first request after it. ``strict=False``: another version
        of a tool, and other arguments that carry no intent (``ignore=``), are no divergence.
        """
        from amends.replay import run as replay_run  # here: few programs replay

        refuse_nested("rt.replay", self._host)
        replay = await self._replay_of(run, until=until, strict=strict)
        async with replay_run.opened_async(self._host, replay) as opened:
            yield opened

    async def replay_each(
        self,
        runs: Sources,
        fn: Callable[..., Coroutine[Any, Any, object]] | str,
        *,
        until: str | None = None,
        strict: bool = True,
    ) -> list[Replayed]:
        """Replay many runs against one function and report on each; a divergence raises nothing.

        ``runs``: ids of runs of this ledger, or bundles by the names of their files. ``fn`` gets the recorded run if
        its parameter is named ``run``, else the run's input: by the names of its parameters, or whole. A registered
        agent is named (``"shopper"``), and gets the run.
        """
        from amends.replay import run as replay_run

        agent = fn if isinstance(fn, str) else None
        called: Callable[..., Any] = self._host.agent(fn) if isinstance(fn, str) else fn
        found: list[Replayed] = []
        for name, record, run_id in each(runs):
            try:
                replay = await self._replay_of(record, run_id, until=until, strict=strict)
            except Error as unread:
                found.append(unreadable(name, run_id, unread))
                continue
            run: Any = None
            value, error = None, None
            try:
                async with replay_run.opened_async(self._host, replay) as run:
                    args, kwargs = ((run,), {}) if agent else arguments(called, run, replay.record.run)
                    made = called(*args, **kwargs)
                    value = await made if agent is None or inspect.isawaitable(made) else made
            except (Exception, SystemExit) as raised:  # it belongs to this run: the others are still to be replayed
                error = raised
            found.append(ended(name, replay, run, value, error))
        return found

    async def _replay_of(self, run: str | bytes, run_id: str = "", *, until: str | None, strict: bool) -> Replay:
        if isinstance(run, bytes):
            source = replay_driver.unpacked(self._host, run, run_id)
        else:
            source = await self._drive(replay_driver.read(self._host, self._view, run))
        return replay_driver.begun(*source, until=until, strict=strict)

    # ---- Reading

    runs = listed_async(lambda: listing.runs)
    overview = awaited(lambda: listing.overview)
    calls = listed_async(lambda: listing.calls)
    info = awaited(lambda: listing.info)
    call = awaited(lambda: run_verbs.call)
    wanted = awaited(lambda: run_verbs.wanted)
    told = awaited(lambda: run_verbs.told)
    locks = listed_async(lambda: listing.locks)
    budgets = awaited(lambda: budget_verbs.budgets)
    costs = awaited(lambda: budget_verbs.costs)
    spending = awaited(lambda: budget_verbs.spending)
    recent_events = awaited(lambda: recent.recent_events)
    recent_calls = awaited(lambda: recent.recent_calls)
    tool_use = awaited(lambda: recent.tool_use)
    unfinished = awaited(lambda: recent.unfinished)
    checkpoints = awaited(lambda: recent.checkpoints)
    compare = awaited(lambda: comparison.compare)
    verify = awaited(lambda: audit_verbs.verify)
    test_rules = awaited(lambda: requests.test_rules, opens=False)

    # ---- The inbox and approvals

    inbox = awaited(lambda: inbox_verbs.inbox)
    approvals = listed_async(lambda: approval_verbs.approvals)
    approval = awaited(lambda: approval_verbs.approval)
    precedents = awaited(lambda: precedent_verbs.precedents)
    approve = awaited(lambda: approval_verbs.approve)
    reject = awaited(lambda: approval_verbs.reject)
    withdraw = awaited(lambda: approval_verbs.withdraw)
    bypass = awaited(lambda: approval_verbs.bypass)
    ask_again = awaited(lambda: approval_verbs.ask_again)
    edit = awaited(lambda: approval_verbs.edit)
    delegate = awaited(lambda: approval_verbs.delegate)
    oncall = awaited(lambda: approval_verbs.oncall, opens=False)
    check_oncall = awaited(lambda: approval_verbs.check_oncall, opens=False)
    redeem = awaited(lambda: links.redeem)

    # ---- The emergency stop

    halt = awaited(lambda: halt_verbs.halt)
    unhalt = awaited(lambda: halt_verbs.unhalt)
    halts = awaited(lambda: halt_verbs.halts)

    # ---- Approvals given ahead

    permit = awaited(lambda: permit_verbs.permit)
    permits = awaited(lambda: permit_verbs.permits)
    revoke = awaited(lambda: permit_verbs.revoke)

    # ---- Tokens of the service

    create_token = awaited(lambda: token_verbs.create_token)
    tokens = awaited(lambda: token_verbs.tokens)
    revoke_token = awaited(lambda: token_verbs.revoke_token)
    check_token = awaited(lambda: token_verbs.check_token)

    def recall_token(self, text: str) -> Token | None:
        """Return what ``check_token`` answered about this text, if that is still remembered; None: ask it. Does no IO."""
        return token_verbs.recall_token(self._host, self._view, text, mono=self._driver.mono())

    note_driver = awaited(lambda: token_verbs.note_driver)
    reserve_tools = awaited(lambda: reserved_verbs.reserve_tools)
    reserved_tools = awaited(lambda: reserved_verbs.reserved_tools)

    # ---- Doubts, and other decisions about a run

    doubts = listed_async(lambda: doubt_verbs.doubts)
    probe = awaited(lambda: doubt_verbs.probe)
    preview = awaited(lambda: doubt_verbs.preview)
    resolve = recovering_async(lambda: doubt_verbs.resolve)
    accept = recovering_async(lambda: doubt_verbs.accept)
    report_late = awaited(lambda: doubt_verbs.report_late)
    decide = awaited(lambda: decisions.decide)
    retry = recovering_async(lambda: decisions.retry)
    plan_rollback = awaited(lambda: rollback_plans.plan_rollback)
    rollback = recovering_async(lambda: rollback_plans.rollback)
    abandon = awaited(lambda: decisions.abandon)
    finish = awaited(lambda: decisions.finish)
    fork = awaited(lambda: forks.fork)
    reconcile = awaited(lambda: reconciliation.reconcile)

    # ---- The ledger itself

    schema = in_thread(lambda: maintenance.schema)
    plan_migration = in_thread(lambda: maintenance.plan_migration)
    schema_sql = in_thread(lambda: maintenance.schema_sql)
    migrate = in_thread(lambda: maintenance.migrate)
    reencrypt = in_thread(lambda: maintenance.reencrypt)
    checkpoint = in_thread(lambda: maintenance.checkpoint)
    gc = awaited(lambda: maintenance.gc)
    erase = awaited(lambda: erasure_verbs.erase)
    note_work = awaited(lambda: work_verbs.note_work)
    reconcile_restore = awaited(lambda: restore.reconcile_restore)
    check_anchor = awaited(lambda: restore.check_anchor)

    # ---- For the runtime itself and its workers

    _report = awaited(lambda: run_verbs.report)
    _abandoned = awaited(lambda: run_verbs.abandoned)
    _send_overdue_notices = awaited(lambda: approval_verbs.send_overdue_notices)

    # ---- Verbs that differ on an event loop

    async def report(self, run_id: str, *, after: str = "", limit: int | None = None) -> Report:
        """Return the newest generation of a run as the ledger has it.

        ``limit``: only so many of its calls, in the order of the requests, those after the call ``after``, and what is
        left standing of them: one page of a long run.
        """
        # In a replay the ledger cannot be read: the replay itself reports on its run.
        return reported(run_id) or await self._report(run_id, after=after, limit=limit)

    async def events(
        self, run_id: str | None = None, *, after: int | str = "", filter: str = ""
    ) -> AsyncIterator[Event]:
        """List events, oldest first, of one run's tree or of the ledger; by time, tool, agent, principal, state.

        ``after``: the ``place`` of an event, or in a run its number ``seq``. ``Feed`` follows a ledger that goes on.
        """
        pages = await self._drive(listing.events_of(self._view, run_id, after, filter))
        async for event in self._pages(pages):
            yield event

    async def newest_event(self, run_id: str | None = None) -> Event | None:
        """Return the last event, of one run's tree or of the ledger; None: there is none."""
        return await self._drive(listing.newest_event(self._view, run_id))

    async def export(self, *run_ids: str) -> bytes:
        """Return everything that the ledger has of these runs as one file that anybody can verify: ``python FILE``."""
        await self._ready()
        ledger = await asyncio.to_thread(run_bundles.ledger_of, self._host)
        export = await self._drive(run_bundles.read_export(self._view, run_ids, ledger))
        return await asyncio.to_thread(run_bundles.pack_export, export, ledger)

    async def load(self, bundle: bytes, *, tenant: str | None = None, by: str = "", why: str = "") -> list[str]:
        """Load the runs of a bundle as records that nothing here changes; return their ids.

        ``tenant``: the only one that they may be of; "" is the one without a name. ``by``, ``why``: who loads them, and
        the reason, for the event ``runs loaded``; without ``by`` it names this process.
        """
        records = await asyncio.to_thread(run_bundles.unpack, bundle)
        return await self._drive(
            run_bundles.load_records(self._host, self._view, records, tenant=tenant, by=by, why=why)
        )

    # ---- Driving flows, and closing

    async def _pages(self, pages: listing.Pages[T]) -> AsyncIterator[T]:
        try:
            while (page := pages.read()) is not None:
                for one in await self._drive(page):
                    yield one
        except BaseException as error:
            trim(error)
            raise

    async def _drive(self, flow: Flow[T]) -> T:
        refuse_ledger_use("a verb of the runtime", flow)
        try:
            await self._ready()
        except BaseException:
            flow.close()  # otherwise Python warns that a coroutine was never awaited
            raise
        return await self._driver.run(self._view.signed(flow))

    async def _ready(self, run_id: str | None = None) -> None:
        if not self._host.is_open:
            await asyncio.to_thread(self._host.ready, run_id=run_id)

    async def close(self) -> None:
        """Release threads and connections; runs that are still open are recovered by their policy."""
        await asyncio.to_thread(self._host.close)
        self._driver.close()

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@trims
class _AsyncBlock:
    """``async with rt.run(...)``: opens the run on entry, so that calling ``run`` alone does nothing."""

    @trims_itself  # it raises nothing
    def __init__(self, rt: AsyncRuntime, id: str | None, input: object, options: Mapping[str, Any]) -> None:
        self._rt, self._id, self._input, self._options = rt, id, input, options
        self._entered: AsyncEntered | None = None

    def __repr__(self) -> str:
        return (
            f"<a run of {self._rt!r}, {'entered' if self._entered else 'not entered yet: say async with rt.run(...)'}>"
        )

    async def __aenter__(self) -> AsyncRun:
        if self._entered is not None:
            raise UsageError(
                f"the block of rt.run({self._id!r}) was entered twice at once", hint="call rt.run for each block"
            )
        if caller_here() is not None:
            replayed = reopened(self._id, self._input, is_async=True, block=True)
            if replayed is not None:
                replayed.say_checks(self._options)
                self._entered = AsyncEntered(replayed)
                return await self._entered.__aenter__()
            refuse_nested(f"rt.run({self._id!r})", self._rt._host)
        self._entered = AsyncEntered(await self._rt._open(self._id, self._input, self._options))
        return await self._entered.__aenter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:  # a block that was left already is not left again
            await entered.__aexit__(kind, error, trace)
