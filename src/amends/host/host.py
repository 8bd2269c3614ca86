"""The host: what the runtimes of both colours share in one process (ledger, tools, settings, owner). No IO until first used."""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amends.budgets import Budget, budget_from, check_budgets_for, checked_budgets
from amends.drivers import process
from amends.drivers.blocking import Live
from amends.encoding.canonical import CHARS_MAX
from amends.encoding.dataclass import changed
from amends.encoding.ids import new_number
from amends.encoding.lazy_import import import_on_use
from amends.engine.compiled import Compiled, compiled
from amends.engine.opening import Opening
from amends.engine.session import Closing, Memory, Session, moment
from amends.errors import (
    AgentNotFound,
    BadConfig,
    BadDeclaration,
    LedgerMissing,
    NotStorable,
    UnknownTool,
    UsageError,
    close_to,
    is_swapped,
    name_for_models,
)
from amends.host.anchor import anchor_of
from amends.host.checkpoints import Checkpointer, Told
from amends.host.heartbeat import Heartbeat
from amends.host.notices import Hook, Notices
from amends.host.redaction import Hiding, recorded_input
from amends.host.settings import APPLICATION, Setting, settle_settings
from amends.host.token_cache import TokenCache
from amends.host.work_leases import WorkLeases
from amends.ledger.flow import Flow, run_flow_async
from amends.ledger.leases import Lease
from amends.ledger.operations import Opened, StoreOp
from amends.ledger.plain import PlainRun
from amends.ledger.rows import CLIENT, RunRow, counterparts_of, point_of
from amends.ledger.store import Served, Store
from amends.model import Approval, Order
from amends.stores import store_for
from amends.tools.compensation import Bodies, Body, is_compensable_here
from amends.tools.declarations import check_described, specs_of
from amends.tools.rules import Rule
from amends.tools.scope import run_around
from amends.tools.signature import hints_of
from amends.tools.spec import Declaration, Spec, declaration_of, is_elsewhere
from amends.tools.toml_tools import declared_in
from amends.visible import visible_log

if TYPE_CHECKING:
    from amends.tools import rule_checks
else:
    import_on_use(globals(), rule_checks="amends.tools.rule_checks")

log = visible_log("amends")

ALMOST: Final = 0.85
"""How alike two names are, from 0 to 1, if one is taken for a misspelling of the other."""
PLAIN_BYTES_MAX: Final = 4 * CHARS_MAX
"""The most that the arguments or the result of a plain call take; with a lower limit every call is checked."""
_NOT_YET: Final[Any] = object()
USUAL_OPTIONS: Final[Mapping[str, Any]] = {
    "tags": (), "budgets": (), "recover": "rollback", "interrupted": None, "wait": None, "wait_approval": None,
    "deadline": None, "if_rolled_back": "again", "requires": None, "on_open_failure": None, "history": False,
    "reads": "record", "client_lease": None, "tenant": None, "agent": None, "principal": None,
}  # fmt: skip
"""What ``rt.run`` is told about a run if its caller says nothing."""
T = TypeVar("T")


class Host:
    """Tools, settings and the ledger of one runtime and of all its views."""

    def __init__(
        self, given: Mapping[str, Any], tools: Iterable[object], *, store: Store | None = None, alone: bool = False,
        hook: Hook | None = None, on_checkpoint: Told | None = None,
    ) -> None:  # fmt: skip
        self.settings: dict[str, Setting] = settle_settings(given, alone=alone)
        self.store: Store = store_for(str(self.value("url"))) if store is None else store
        if store is None and not self.store.url.startswith(("sqlite:", "memory:")):
            # The URL of a server may contain a password, and settings are printed.
            self.settings["url"] = Setting(self.store.url, self.settings["url"].origin)
        elif store is not None:  # whatever url says is not used
            self.settings["url"] = Setting(store.url, "argument")
        self.order: Order = self.value("order")
        self.lease_s: float = self.value("lease")
        self.wait_s: float = self.value("wait")
        self.poll_s: float = self.value("poll")
        self.poll_approval_s: float = self.value("poll_approval")
        self.payload_bytes_max: int = self.value("payload_bytes_max")
        self.repeats: bool = self.value("repeats")
        self.hiding = Hiding(self.store, self.settings)
        self.redactor = self.hiding.redactor
        self._memories: dict[str, weakref.ref[Memory]] = {}
        """By root, as long as somebody holds them: a ``WeakValueDictionary`` does the same in Python."""
        self.budgets: tuple[Budget, ...] = self.value("budgets")
        self.wait_approval_s: float = self.value("wait_approval")
        self.rules: tuple[Rule, ...] = self.value("rules")
        self.approvers: Mapping[str, tuple[str, ...]] = self.value("approvers")
        self.anchor = anchor_of(self.store.url, self.value("anchor"))
        if self.anchor is not None and isinstance(self.store, Served):
            self.store.on_session.append(self.anchor.doubt)
        self.checkpointer = Checkpointer(self.store, self.settings, anchor=self.anchor, hook=on_checkpoint)
        self.warnings: tuple[str, ...] = ()
        """Suspicious but valid rules, budgets and tools; each was logged."""
        self.tools: list[object] = [*tools, *self._tables()]
        self.bodies: dict[str, Body] = {}
        """Bodies of tools that live in another program, and that this process can reach."""
        self.unserved: frozenset[str] = frozenset()
        """Tools that other processes perform, and that none performs now."""
        self._of_agents: set[str] = set()
        """Tools that an agent of a framework has, and those of which a warning said that it has not."""
        self.result_types: dict[str, Any] = {}
        """What tools that live elsewhere return, as the handlers of their requests said."""
        self.specs: dict[str, Spec] = self._checked(self.tools)
        self._compiled: dict[str, Compiled | None] = {}
        self.agents: dict[str, Callable[[Any], object]] = {}
        self.live = Live(self.store)
        self.heartbeat = Heartbeat(self.store.perform, self.lease_s)
        self.work_leases = WorkLeases()
        self.new_id: Callable[[str], str] = process.new_id
        self.new_number: Callable[[], int] = new_number
        """Makes the numbers of plain calls; ``new_id`` makes all other ids."""
        # Functions, because tools may be added later, and a simulation has its own ids.
        self.notices = Notices(
            hook, self.settings, lambda: self.specs, lambda: self.new_id, self.redactor, self.with_asked
        )
        self.workers = 0
        """How many workers this process has (``rt.worker()``)."""
        self.released = 0
        self.told_of_names = False
        """Whether this process was warned that the run of an agent has no name."""
        """How many blocks of this process have ended: a worker in the same process looks again at once."""
        self.token_cache = TokenCache(self.value("token_cache"))
        self._user_wait_s, self._user_wait_approval_s = self._set("wait"), self._set("wait_approval")
        self._usual: tuple[View, Opening] | None = None
        """The last request to open a run about which nothing was said, and whose view it was."""
        self._opened = False
        self.was_opened = False
        """Whether the ledger was opened, even if it is closed again."""
        self._pid = 0
        self._owner = ""
        self._lock = threading.Lock()

    def value(self, name: str) -> Any:
        """Return the value of one setting."""
        return self.settings[name].value

    def _set(self, name: str) -> float | None:
        """Return a number of seconds if it was set; None for the default."""
        setting = self.settings[name]
        return None if setting.origin == "default" else float(setting.value)

    def _tables(self) -> list[Declaration]:
        said = self.settings["tools"]
        return [declared_in(table, said.origin) for table in said.value]

    def add(self, tools: Iterable[object], *, replace: bool = False) -> None:
        """Declare more tools, all of them or none; runs that are open get them too."""
        new = list(tools)
        names = {declared.name for one in new if (declared := declaration_of(one)) is not None} if replace else set()
        kept = [one for one in self.tools if (known := declaration_of(one)) is None or known.name not in names]
        with self._lock:
            more = [*kept, *new]
            self.specs |= self._checked(more)  # in place: sessions refer to this dict
            self._compiled = {}
            self.tools = more
        if self._opened:
            self.hiding.ready()

    def reach(self, bodies: Mapping[str, Body]) -> None:
        """Give bodies to declared tools that live elsewhere, all or none; runs that are open get them too."""
        new = {
            name: body
            for name, body in bodies.items()
            if (spec := self.specs.get(name)) is not None and is_elsewhere(spec.declaration) and spec.fn is not body.fn
        }
        if not new:
            return
        for name, body in new.items():
            check_described(body.fn, name, self.specs[name].where)
        with self._lock:
            more = self.bodies | new
            self.specs |= self._checked(self.tools, more)  # in place: sessions refer to this dict
            self.bodies = more
            self._compiled = {}

    def check_arguments(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Raise ``BadDeclaration`` for a tool that was declared by name and does not fit the framework's tool.

        ``functions``: for each of the framework's tools a function with its parameters, which is never called. Declared
        tools that are not among them may be those of another agent, unless one of them almost has the name.
        """
        for name, fn in functions.items():
            spec = self.specs.get(name)
            if spec is not None and is_elsewhere(spec.declaration) and spec.declaration.like is None:
                bodies = {**self.bodies, name: Body(fn)}
                specs_of(self.tools, order=self.order, redact=self.redactor.hidden, bodies=bodies)
        with self._lock:
            self._of_agents.update(functions)
        undeclared = [name for name in functions if self.find(name) is None]
        for spec in self.specs.values():
            if spec.name in functions or spec.name in self.bodies or not is_elsewhere(spec.declaration):
                continue
            close = close_to(spec.name, undeclared, cutoff=ALMOST)
            if close := close or [name for name in undeclared if is_swapped(spec.name, name)]:
                raise BadDeclaration(
                    f'the agent has no tool "{spec.name}"; did you mean "{close[0]}"? It has: {", ".join(functions)}',
                    tool=spec.name,
                    where=spec.where,
                )

    def warn_of_unused(self, names: Collection[str]) -> None:
        """Log which tools were declared by name and are none of an agent's, each once; ``names``: the agent's tools.

        They may be those of another agent of this runtime. Tables of a settings file, which several programs may share,
        and tools that only compensate others do not count.
        """
        with self._lock:
            self._of_agents.update(names)
            if not names:
                return
            shared = {str(table.get("name")) for table in self.settings["tools"].value}
            known = self._of_agents | {name_for_models(name) for name in self._of_agents} | shared | self.bodies.keys()
            compensating = {spec.compensate.tool for spec in self.specs.values() if spec.compensate is not None}
            unused = [
                spec.name
                for spec in self.specs.values()
                if is_elsewhere(spec.declaration)
                and not {spec.name, name_for_models(spec.name)} & known
                and spec.name not in compensating
            ]
            self._of_agents |= set(unused)  # each is named once
        if unused:
            are = "is" if len(unused) == 1 else "are"
            log.warning(
                "%s %s declared, and the agent has no tool of that name; it has: %s",
                ", ".join(unused),
                are,
                ", ".join(names),
            )

    def with_result_of(self, tool: str, handler: Callable[..., Any]) -> Spec:
        """Return a tool; one that lives elsewhere is known to return what the handler of a request is annotated with.

        So its compensation gets the classes that its body returned. A handler without an annotation changes nothing.
        """
        spec = self.named(tool)
        if spec.signature is not None or spec.result_type is not Any:
            return spec
        hint = getattr(handler, "__annotations__", {}).get("return", Any)
        if isinstance(hint, str):  # as every annotation is after `from __future__ import annotations`
            hint = hints_of(handler, {}).get("return", Any)
        if hint is Any or hint is None or hint is NoneType:
            return spec
        with self._lock:
            self.result_types[spec.name] = hint
            self.specs[spec.name] = replace(spec, result_type=hint)  # in place: sessions refer to this dict
            self._compiled.pop(spec.name, None)
        return self.specs[spec.name]

    def _checked(self, tools: list[object], bodies: Bodies | None = None) -> dict[str, Spec]:
        known = self.bodies if bodies is None else bodies
        specs = specs_of(tools, order=self.order, redact=self.redactor.hidden, bodies=known)
        for name, hint in self.result_types.items():
            if name in specs and specs[name].signature is None:
                specs[name] = replace(specs[name], result_type=hint)
        self.hiding.check(specs.values())
        costs = {name: spec.cost for name, spec in specs.items()}
        self._warn(
            [
                *self._check_rules(specs),
                *check_budgets_for(self.budgets, costs, origin=self.settings["budgets"].origin),
            ]
        )
        return specs

    def _check_rules(self, specs: Mapping[str, Spec]) -> list[str]:
        if not self.rules:
            return []
        origin = self.settings["rules"].origin
        return rule_checks.check_rules_for(self.rules, specs, origin=origin, approvers=self.approvers)

    def add_agents(self, agents: Mapping[str, Callable[[Any], object]]) -> None:
        """Register agents; raise ``BadRule`` for a rule that names an agent which is not among them."""
        self.agents.update(agents)
        known = [*agents, *([str(self.value("agent"))] if self.value("agent") else [])]
        if self.rules:
            rule_checks.check_agents(self.rules, known, origin=self.settings["rules"].origin)

    def agent(self, name: str) -> Callable[[Any], object]:
        """Return the agent of this name."""
        if name not in self.agents:
            raise AgentNotFound(name, known=sorted(self.agents))
        return self.agents[name]

    def _warn(self, found: Sequence[str]) -> None:
        """Keep warnings about rules and budgets for ``doctor``, and log the new ones."""
        for text in found:
            if text not in self.warnings:
                log.warning("%s", text)
        self.warnings = tuple(found)

    @property
    def doable(self) -> frozenset[str]:
        """The tools that this process can roll back: their compensation is here, or they have none anywhere."""
        return frozenset(name for name, spec in self.specs.items() if is_compensable_here(spec)) - self.unserved

    def be(self, owner: str) -> None:
        """Act as this owner; for simulated processes."""
        self._pid, self._owner = os.getpid(), owner

    @property
    def owner(self) -> str:
        """The name of this process in the ledger; a forked child is another owner."""
        if self._pid != os.getpid():
            self._pid, self._owner = os.getpid(), process.owner_name()
        return self._owner

    @property
    def hides(self) -> bool:
        """Whether a tool or the runtime redacts something."""
        return self.hiding.hides

    @property
    def is_open(self) -> bool:
        """Whether this runtime has opened the ledger."""
        return self._opened

    def ready(self, *, run_id: str | None = None) -> None:
        """Open the ledger on first use, and log it if a new ledger was created.

        ``run_id``: the run that the caller named; then a new ledger is a warning.
        """
        if self._opened:
            return
        with self._lock:  # opening twice is harmless: the store is idempotent
            made = self._open_store()
            if made and self.store.url != "memory:":
                # A caller who names a run may have expected to resume it.
                level = logging.WARNING if run_id is not None else logging.INFO
                log.log(level, "created a new ledger at %s", self.store.url)
            self.hiding.ready()
            self.checkpointer.ready()
            self._opened = self.was_opened = True

    def _open_store(self) -> bool:
        try:
            made = bool(self.store.open(create=bool(self.value("create"))))
        except LedgerMissing as missing:
            if self.settings["create"].origin != APPLICATION:
                raise
            raise LedgerMissing(
                f"{missing} ({APPLICATION} names the application's database, where amends creates no table unasked)",
                hint="create it with amends db migrate, or name another ledger: Runtime(url), AMENDS_URL, amends.toml",
            ) from None
        most = getattr(self.store, "payload_bytes_most", self.payload_bytes_max)
        if self.payload_bytes_max > most:
            # Refused here: a result that the server refuses would leave its call in doubt, after the effect.
            raise BadConfig(
                f"payload_bytes_max is {self.payload_bytes_max}, and the server of this ledger accepts {most} at most",
                setting="payload_bytes_max",
                origin=self.settings["payload_bytes_max"].origin,
                hint="set max_allowed_packet of the server to four times the limit, or lower the limit",
            )
        return made

    def close(self) -> None:
        """Release everything; runs that are still open are recovered by their policy."""
        self.work_leases.close()
        self.heartbeat.close()
        self.checkpointer.close()
        self.store.close()
        self._opened = False

    # ---- What flows need

    def spec_for(self, declared: Declaration) -> Spec:
        """Return the checked declaration of a tool that is called directly."""
        spec = self.specs.get(declared.name)
        if spec is None:
            raise UnknownTool(declared.name, known=sorted(self.specs))
        if declared.fn is not None and spec.fn is not declared.fn:
            raise BadDeclaration(
                f"{declared.name} was declared again after the runtime was built; this call is to another function",
                tool=declared.name,
                where=declared.where,
                hint="build the runtime again, after the last declaration: in a notebook, run the cell with Runtime(...)"
                " again, and open a run of it",
            )
        return spec

    def compiled_for(self, declared: Declaration) -> Compiled | None:
        """Return a tool that is called directly, compiled; None if its calls are not plain, or it is another tool's."""
        made = self._compiled.get(declared.name, _NOT_YET)
        if made is _NOT_YET:
            spec, known = self.specs.get(declared.name), self._compiled
            made = None if spec is None else compiled(spec, advise=(spec.order or self.order) == "advise")
            known[declared.name] = made
        if made is None or made.fn is declared.fn:
            return made  # type: ignore[no-any-return]
        is_given = made.spec.signature is None and made.spec.declaration is declared  # its body was given by ``reach``
        return made if is_given else None

    def named(self, tool: str) -> Spec:
        """Return the tool of this name; raise ``UnknownTool`` if there is none."""
        spec = self.find(tool)
        if spec is None:
            raise UnknownTool(tool, known=sorted(self.specs))
        return spec

    def find(self, tool: str) -> Spec | None:
        """Return the tool of this name, as declared or as models are told it; None if none is declared."""
        found = self.specs.get(tool)
        if found is None:
            found = next((spec for name, spec in self.specs.items() if name_for_models(name) == tool), None)
        return found

    def may_repeat(self, spec: Spec | None) -> bool:
        """Return whether a model's ``again_because`` is honoured for this tool; None is an undeclared tool."""
        return self.repeats and (spec is None or spec.may_repeat)

    def offers(self, wanted: bool | None) -> bool:
        """Return whether to offer ``again_because``; raise if it was ``wanted`` and would not be honoured."""
        if wanted and not self.repeats:
            raise UsageError(
                "repeats=True offers again_because to a model, but this runtime does not honour it",
                hint="set Runtime(repeats=True), AMENDS_REPEATS=true, or repeats = true in amends.toml",
            )
        return self.repeats if wanted is None else wanted

    def opening(self, view: View, id: str | None, input: object, options: Mapping[str, Any]) -> Opening:
        """Return the request to open a run, from what the caller said about it."""
        is_usual = input is None and options == USUAL_OPTIONS
        if is_usual and self._usual is not None:
            whose, usual = self._usual
            if whose is view and usual.new_id is self.new_id and usual.owner == self.owner:  # only the id differs
                return changed(usual, {"id": self.new_id("run") if id is None else run_id_of(id)})
        tenant = name_of("tenant", view.within(options.get("tenant")) or "")
        said = recorded_input(self.redactor, tenant, input)
        agent = name_of("agent", options.get("agent") or view.agent or "")
        tags = json.dumps(_tags(options.get("tags", ())), ensure_ascii=False)
        wait, yes = options.get("wait"), options.get("wait_approval")
        completion, checks = self.completion(options)
        made = Opening(
            id=self.new_id("run") if id is None else run_id_of(id),
            tenant=tenant,
            owner=self.owner,
            lease_s=self.lease_s,
            wait_s=self.wait_s if wait is None else float(wait),
            poll_s=self.poll_s,
            wait_approval_s=self.wait_approval_s if yes is None else float(yes),
            said=(None if wait is None else float(wait), None if yes is None else float(yes)),
            anchor=self.anchor,
            input=said.text,
            input_digest=said.digest,
            given=said.shown,
            known=said.known,
            policy=self._policy(options),
            order_mode=self.order,
            agent=agent,
            principal=name_of("principal", options.get("principal") or view.principal or ""),
            tags=name_of("tags", tags),
            deadline_s=options.get("deadline"),
            if_rolled_back=options.get("if_rolled_back", "again"),
            history=bool(options.get("history", False)),
            budgets=self._written_budgets(options.get("budgets", ())),
            completion=completion,
            checks=checks,
            new_id=self.new_id,
            wants=options.get("client_lease") is not None,
        )
        if is_usual:
            self._usual = view, made
        return made

    def _policy(self, options: Mapping[str, Any]) -> str:
        """Return what recovery does with the run, as the ledger has it: see ``RunRow.policy``."""
        recover: str = options.get("recover", "rollback")
        interrupted = options.get("interrupted") or self.value("interrupted")
        again = "+again" if options.get("reads") == "again" else ""
        client = options.get("client_lease")
        lease = "" if client is None else f"{CLIENT}{float(client)!r}"
        return f"{recover}{'+commit' if interrupted == 'commit' else ''}{again}{lease}"

    def completion(self, options: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
        """Return ``requires`` and ``on_open_failure`` as they are recorded, and the functions among them."""
        requires, mode = options.get("requires"), options.get("on_open_failure")
        if requires is None and mode is None:
            return "", ()
        from amends.engine.completion import completion_of  # here: most runs say nothing

        readable = self.hiding.sealing is None
        found, checks = completion_of(requires, mode, specs=self.specs, readable=readable)
        return str(found), checks

    def _written_budgets(self, given: Iterable[object]) -> str:
        if given == ():
            return ""
        budgets = checked_budgets(given, "run")
        for text in check_budgets_for(budgets, {name: spec.cost for name, spec in self.specs.items()}, origin="run"):
            log.warning("%s", text)
        return json.dumps([budget.to_dict() for budget in budgets], ensure_ascii=False) if budgets else ""

    def session(
        self,
        row: RunRow,
        lease: Lease,
        *,
        resumed: bool,
        wait_s: float | None = None,
        wait_approval_s: float = 0.0,
        said: tuple[float | None, float | None] = (None, None),
        given: object = None,
    ) -> Session:
        """Return the session of an open root run: the run as the engine sees it.

        ``said``: ``wait`` and ``wait_approval``, if the caller set them for this run. ``given``: the input as the
        caller passed it, before redaction.
        """
        wait, yes = said
        budgets = (*self.budgets, *map(budget_from, json.loads(row.budgets))) if row.budgets else self.budgets
        # A resumed run answers most requests from its record, a fork from that of another run.
        small = self.payload_bytes_max < PLAIN_BYTES_MAX
        unusual = (
            resumed or row.uid != row.root or row.forked_from or self.rules or budgets or self.hiding.sealing or small
        )
        point = point_of(row) if row.forked_at else None
        return Session(
            uid=row.uid,
            id=row.id,
            root=row.root,
            tenant=row.tenant,
            agent=row.agent,
            principal=row.principal,
            generation=row.generation,
            lease=lease,
            specs=self.specs,
            order=self.order,
            wait_s=self.wait_s if wait_s is None else wait_s,
            new_id=self.new_id,
            resumed=resumed,
            state=row.state,
            budgets=budgets,
            rules=self.rules,
            repeats=self.repeats,
            anchor=self.anchor,
            wait_approval_s=wait_approval_s,
            user_wait_s=self._user_wait_s if wait is None else wait,
            user_wait_approval_s=self._user_wait_approval_s if yes is None else yes,
            tell=self.notices.tell,
            redactor=self.redactor,
            given=deepcopy(given) if self.redactor.is_wide else given,
            memory=self._memory_of(row.root),
            kin="" if point is None else point.kin,
            phases=() if point is None or row.history else point.phases,
            counterparts=counterparts_of(row) if row.forked_at else (),
            closing=Closing(row.completion),
            poll_s=self.poll_s,
            poll_approval_s=self.poll_approval_s,
            payload_bytes_max=self.payload_bytes_max,
            plain=None
            if unusual
            else PlainRun(row.uid, row.id, row.tenant, row.agent, row.principal, lease.owner, lease.epoch),
        )

    def roles_of(self, person: str) -> tuple[str, ...]:
        """Return the roles of a person in this runtime."""
        named = person.strip().casefold()
        return tuple(role for role, people in self.approvers.items() if named in people)

    def with_asked(self, approval: Approval, now: float) -> Approval:
        """Return a request with the people who are asked now: those on call, or all who have the role; never who made it."""
        if approval.state != "pending":
            return approval
        from amends.host.oncall import OnCall

        at = moment(now)
        assert at is not None, "ledger time is a time"
        requesters = (approval.call.principal or "", approval.call.agent or "", *approval.editors)
        table = self.value("oncall") or OnCall()
        asked = table.asked(approval.roles, self.approvers, at, requesters=requesters)
        return replace(approval, asked=asked)

    def _memory_of(self, root: str) -> Memory:
        """Return what the sessions of a tree share in this process."""
        made = Memory()
        new = weakref.ref(made, partial(_drop_memory, self._memories, root))
        kept = self._memories.setdefault(root, new)
        memory = kept()
        if memory is None:  # its last session has just ended
            self._memories[root] = new
            return made
        return memory

    def forget(self) -> None:
        """Forget all redacted values, as another process would not know them; for tests."""
        self._memories.clear()

    def reader(self, row: RunRow | None = None, *, root: str = "") -> Session:
        """Return a read-only session, for reports of runs of other owners; ``root``: the tree that it reads."""
        lease = Lease(root if row is None else row.root, "", -1, self.lease_s, 0.0, lost=True)
        empty = RunRow(uid="", id="", tenant="", generation=1, root=root, parent="", state="open", created_at=0.0)
        return self.session(empty if row is None else row, lease, resumed=False)


class View:
    """The tenant, agent and principal that a runtime acts for, and the id of the token by which somebody asked for it."""

    __slots__ = ("agent", "principal", "tenant", "token")

    def __init__(self, tenant: str | None, agent: str | None, principal: str | None, token: str = "") -> None:
        self.tenant, self.agent, self.principal, self.token = tenant, agent, principal, token

    def narrowed(self, tenant: str | None, agent: str | None, principal: str | None, token: str | None = None) -> View:
        """Return this view with the given values in place of its own."""
        return View(self.within(tenant), agent or self.agent, principal or self.principal, token or self.token)

    def signed(self, flow: Flow[T]) -> Flow[T]:
        """Return the flow; each transaction that it awaits names the token of this view, if it has one."""
        return flow if not self.token else _signed(flow, self.token)

    def within(self, tenant: str | None) -> str | None:
        """Return the tenant to act for; raise if this view belongs to another tenant."""
        if tenant and self.tenant and tenant != self.tenant:
            raise UsageError(
                f"this runtime acts for tenant {self.tenant!r} and cannot act for {tenant!r}",
                hint="make the other view from the runtime that has no tenant",
            )
        return tenant or self.tenant

    def only(self, tenant: str | None) -> str | None:
        """Return the only tenant whose things count, "" for the one without a name; None: every tenant."""
        return self.within(tenant) or tenant


def _drop_memory(memories: dict[str, weakref.ref[Memory]], root: str, gone: weakref.ref[Memory]) -> None:
    if memories.get(root) is gone:
        del memories[root]


def _signed(flow: Flow[T], token: str) -> Flow[T]:
    def noted(op: Any) -> Any:
        if isinstance(op, StoreOp):
            op.token = token
        return op

    return run_flow_async(flow, noted)


def run_id_of(id: Any) -> str:
    """Return ``id`` if it is a valid run id, else raise ``UsageError``."""
    if not isinstance(id, str) or not id or len(id) > 512:
        raise UsageError(f"a run id is a text of 1 to 512 characters, not {str(id)[:40]!r}")
    return name_of("run id", id)


def name_of(what: str, name: Any) -> str:
    """Return ``name``; raise ``NotStorable`` if it has a lone surrogate, which is no character: two are read back as one."""
    if not isinstance(name, str):
        raise UsageError(f"the {what} is a text, not {str(name)[:40]!r}")
    if not name.isascii():
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise NotStorable(
                f"the {what} {name[:40]!r} has a lone surrogate, which is no character", path=what, hint="leave it out"
            ) from None
    return name


def _tags(tags: Sequence[str]) -> list[str]:
    if isinstance(tags, str):
        return [tags]
    return [str(tag) for tag in tags]


def refuse_nested(what: str, host: Host) -> None:
    """Raise ``UsageError`` inside an open run of this runtime: a run in the same context must be a child.

    A run of another runtime is independent: what happens inside ours is no part of it.
    """
    caller = run_around(host)
    if caller is not None:
        inner = getattr(caller, "id", "?")
        raise UsageError(
            f"{what} inside run {inner}: it would not be part of that run, and not independent of it either",
            hint="use run.child() for work that belongs to this run, or leave the block first",
        )


def is_settled(row: RunRow) -> bool:
    """Return whether a reopened run needs nothing more from its caller: it is closed, or has no owner."""
    return row.closed_at is not None or not row.owner


def is_over(opened: Opened) -> bool:
    """Return whether the run has ended, so that it only answers from its record."""
    return opened.how == "ended" or opened.run.state in ("committed", "rolled_back", "abandoned")
