"""The table of routes: every route is one object that says what it is, who may use it, and what it answers.

The service, the OpenAPI document, the reference page and the tests of authorisation are all made from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel

from amends import RunInfo
from amends.serve import claims, metrics, records, runs
from amends.serve.exchange import Exchange, FilterQuery, NoBody, Query, Reply

Handler: TypeAlias = Callable[[Exchange], Awaitable[Reply]]
Thing: TypeAlias = Literal["nothing", "tenant", "run", "call", "approval", "claim", "ledger"]
READ: Final = ("viewer",)
READ_OWN: Final = ("viewer", "agent")
DRIVE: Final = ("agent",)
REPORT: Final = ("agent", "worker")
DECIDE: Final = ("approver",)
OPERATE: Final = ("operator",)
COMMON: Final = (400, 401, 403, 404, 405, 422, 429, 503)
"""What every route that needs a token may answer besides its own answers."""
WITH_BODY: Final = (408, 413, 415)


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    ``name`` is the verb of the runtime or of the run. ``scopes``: one of them is needed; None: public. ``of``: what the
    address names, and so what is looked up in the tenant of whoever asks: something of another tenant is not found, and
    an agent finds only what belongs to its own runs. ``answers``: the shape of each answer that is no problem.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    name: str
    summary: str
    scopes: tuple[str, ...] | None
    of: Thing
    handler: Handler
    answers: Mapping[int, Any]
    body: type[BaseModel] | None = None
    query: type[BaseModel] = Query
    problems: tuple[int, ...] = ()
    example: Mapping[str, Any] | None = None
    """A body that the document shows."""
    takes_key: bool = False
    """Whether the header Idempotency-Key is read."""
    media_type: str = "application/json"
    """Of the answer."""
    body_type: str = "application/json"
    tags: tuple[str, ...] = field(default=())

    @property
    def statuses(self) -> tuple[int, ...]:
        """Every status of a problem that the document names."""
        common = COMMON if self.scopes is not None else (400, 405, 422, 503)
        with_body = WITH_BODY if self.method == "POST" else ()
        return tuple(sorted({*common, *with_body, *self.problems} - set(self.answers)))


AGENTS, PEOPLE, MACHINES = ("agents",), ("people",), ("machines",)
ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/tools", "schemas", "Describe the tools as a model gets them", READ_OWN, "nothing", runs.schemas,
          {200: records.Tools}, query=runs.ToolsQuery, tags=AGENTS),
    Route("POST", "/v1/runs", "open", "Open a run, or take up the run of this id", DRIVE, "tenant", runs.open,
          {201: records.OpenedRun, 200: records.OpenedRun}, body=runs.OpenRun, problems=(409,), takes_key=True,
          example={"id": "order-1042", "input": {"order": "1042"}, "recover": "rollback"}, tags=AGENTS),
    Route("GET", "/v1/runs", "runs", "List runs, newest first", READ_OWN, "tenant", runs.runs,
          {200: records.Page[RunInfo]}, query=FilterQuery, tags=AGENTS),
    Route("GET", "/v1/runs/{id}", "run", "Return one run", READ_OWN, "run", runs.run, {200: RunInfo}, tags=AGENTS),
    Route("GET", "/v1/runs/{id}/report", "report", "Return what a run did", READ_OWN, "run", runs.report,
          {200: records.ReportRecord}, tags=AGENTS),
    Route("POST", "/v1/runs/{id}/calls", "answer", "Do the call that a model asked for", DRIVE, "run", runs.answer,
          {200: records.AnswerRecord, 202: records.AnswerRecord}, body=runs.MakeCall, problems=(409,), takes_key=True,
          example={"tool": "charge", "args": {"order": "1042", "cents": 4200}}, tags=AGENTS),
    Route("POST", "/v1/runs/{id}/commit", "commit", "Commit the run: its effects stay", DRIVE, "run", runs.commit,
          {200: records.ReportRecord, 202: records.ReportRecord}, body=NoBody, problems=(409,), tags=AGENTS),
    Route("POST", "/v1/runs/{id}/rollback", "rollback", "Take the run back", DRIVE, "run", runs.rollback,
          {200: records.ReportRecord, 202: records.ReportRecord}, body=runs.RollBack, problems=(409,),
          example={"why": "the customer has changed their mind"}, tags=AGENTS),
    Route("POST", "/v1/runs/{id}/renew", "renew", "Say that the client is alive", DRIVE, "run", runs.renew,
          {200: records.RenewedRun}, body=NoBody, problems=(409,), tags=AGENTS),
    Route("POST", "/v1/runs/{id}/suspend", "suspend", "Let the run go as it is, to be opened again", DRIVE, "run",
          runs.suspend, {200: records.ReportRecord, 202: records.ReportRecord}, body=NoBody, problems=(409,),
          tags=AGENTS),
    Route("POST", "/v1/runs/{id}/claims", "begin", "Claim a call, to make it oneself", DRIVE, "run", claims.begin,
          {201: records.ClaimRecord, 200: records.ClaimRecord, 202: records.AnswerRecord}, body=claims.MakeClaim,
          problems=(409,), takes_key=True, tags=AGENTS,
          example={"tool": "charge", "args": {"order": "1042", "cents": 4200}, "lease": 30}),
    Route("POST", "/v1/claims/{call}/succeed", "succeed", "Report that a claimed call happened", REPORT, "claim",
          claims.succeed, {200: records.ReportedRecord}, body=claims.Succeed, problems=(409,), tags=AGENTS,
          example={"token": "WyIiLC…", "result": "ch_1042"}),
    Route("POST", "/v1/claims/{call}/fail", "fail", "Report that a claimed call ended with an error", REPORT, "claim",
          claims.fail, {200: records.ReportedRecord}, body=claims.Fail, problems=(409,), tags=AGENTS,
          example={"token": "WyIiLC…", "error": "card declined", "no_effect": True}),
    Route("POST", "/v1/claims/{call}/renew", "renew_claim", "Renew the work lease of a claimed call", REPORT, "claim",
          claims.renew, {200: records.ReportedRecord}, body=claims.RenewClaim, problems=(409,), tags=AGENTS,
          example={"token": "WyIiLC…"}),
    Route("GET", "/v1/openapi.json", "openapi", "Describe every route", None, "nothing", metrics.openapi, {200: dict},
          tags=MACHINES),
    Route("GET", "/health", "health", "Say that the process runs", None, "nothing", metrics.health,
          {200: records.HealthRecord}, tags=MACHINES),
    Route("GET", "/ready", "ready", "Say whether the ledger answers", None, "nothing", metrics.ready,
          {200: records.HealthRecord, 503: records.HealthRecord}, tags=MACHINES),
)  # fmt: skip
"""Every route of the service."""
