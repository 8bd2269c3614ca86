"""The gateway's configuration: the table ``[gateway]`` of ``amends.toml``.

Whatever is written there is checked before an upstream is started. What a catalogue says of a server comes first, and the
file's own words about a tool take its place.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from amends.errors import BadConfig
from amends.gateway import templates

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}\Z")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_CREDENTIAL: Final = re.compile(
    r"(?i)(token|secret|password|passwd|authorization|(api|access|auth|private|secret)[_-]?key)\Z"
)
"""What variables and headers with a credential are named like."""
_SECONDS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?\Z")
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
SECRET_CHARS_MIN: Final = 6
Ends = Literal["commit", "rollback", "wait"]
OF_ARGS: Final = ("args", "key", "call", "server")
OF_BEFORE: Final = ("args", "server")
OF_PROBE: Final = ("args", "before", "key", "call", "server")
OF_ANSWER: Final = ("answer", *OF_PROBE)
OF_UNDO: Final = ("args", "result", "before", "key", "call", "server")
OF_GUARD: Final = ("answer", *OF_UNDO)


class Table(BaseModel):
    """A table of the file; a word that nobody knows is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CallTable(Table):
    """One call of an upstream tool, as part of a compensation."""

    tool: str
    """A tool of the same server."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments, with paths."""
    when: dict[str, Any] | None = None
    """A condition; if it does not hold, this call is left out."""
    each: str = ""
    """A path to a list: it is made once for each item, which is ``$item`` in ``args`` and ``when``."""


class Compensation(Table):
    """How a call is compensated: calls of upstream tools in order, and what they guarantee."""

    calls: list[CallTable] = Field(min_length=1)
    """The calls, in this order. If there is only one, its words may stand in this table instead."""
    idempotent: bool | Literal["put"] = False
    """Whether it may be repeated; "put": it sets a value."""
    absent_ok: bool = False
    """Whether it is harmless if there is nothing to compensate."""
    wins: bool = False
    """Whether the server refuses a late effect of the call after this compensation."""
    attempts: int = Field(3, ge=1, le=100)
    """How often it is tried; then a person is asked."""


class Snapshot(Table):
    """A read that is made before the call, whose answer is kept for the compensation."""

    tool: str
    """A tool of the same server that only reads."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments, with paths into ``$args``."""
    value: str = "$answer"
    """What is kept of the answer."""
    missing: str = ""
    """A regular expression. If an error of the server matches it, there is nothing yet."""
    absent: dict[str, Any] | None = None
    """A condition on the answer. If it holds, there is nothing yet."""
    pattern: str = ""
    """A regular expression. If the value is a text that matches it, only the first group is kept."""
    refuse: dict[str, Any] | None = None
    """A condition on the answer. If it holds, the call is not made, because it could not be compensated."""


class Probe(Table):
    """A read that tells whether a call in doubt has happened."""

    tool: str
    """A tool of the same server that only reads."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments, with paths."""
    happened: dict[str, Any]
    """A condition on ``$answer``."""
    absent: dict[str, Any] | None = None
    """A condition; by default the opposite of ``happened``."""
    result: Any = None
    """The result to record for the call; paths may lead into ``$answer``."""
    missing: str = ""
    """A regular expression. If an error of the server matches it, the call did not happen."""
    settle: float | None = Field(None, ge=0, le=86_400)
    """Seconds in which a late effect may still arrive. Default: 1 for a command, the timeout for an address."""


class Guard(Table):
    """A read that is made before the compensation. If somebody else has changed the thing since, it is left as it is."""

    tool: str
    """A tool of the same server that only reads."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments, with paths."""
    unchanged: dict[str, Any] | None = None
    """A condition on ``$answer`` that holds if nobody else has changed the thing. Default: the same read is made right
    after the call, and ``value`` must be the same then and now."""
    value: Any = "$answer"
    """The part of the answer that is compared, if there is no ``unchanged``."""
    missing: str = ""
    """A regular expression. If an error of the server matches it, there is nothing, and ``$answer`` is null."""


class ToolTable(Table):
    """The declaration of one upstream tool."""

    kind: Literal["read", "compensatable", "pivot", "retriable"]
    """What kind of effect it has; see the tool options."""
    why: str = ""
    """Why it is of this kind, for people."""
    key: str | list[str] | None = None
    """The arguments that identify a call. Default: all of them."""
    ignore: list[str] | None = None
    """Arguments that carry no intent."""
    scope: Literal["run", "ledger"] | None = None
    """Where a call happens once: in its "run" (default), or in the whole "ledger"."""
    on_conflict: Literal["raise", "hold", "next"] | None = None
    """The same key with other arguments: "raise" (default), "hold" for a person, "next" for a tool that sets a value."""
    needs_approval: bool | dict[str, Any] = False
    """Whether a person must approve: true, or a condition on ``$args``."""
    idempotent: bool | str = False
    """Whether the server deduplicates on the key that it gets in ``_meta``."""
    timeout: float | None = Field(None, gt=0)
    """Seconds, instead of those of the server."""
    attempts: int | None = Field(None, ge=1, le=100)
    """How often it is tried, if it certainly had no effect."""
    cost: float | dict[str, float] | None = None
    """What one call costs, for budgets."""
    locks: list[str] = Field(default_factory=list)
    """Names of what only one run may change at a time; texts with paths into ``$args``."""
    redact: list[str] = Field(default_factory=list)
    """Arguments that are never stored or shown."""
    after: list[str] | None = None
    """Pivots only: tools that must have succeeded in the run before."""
    failed: dict[str, Any] | None = None
    """A condition on ``$result``. If it holds, the call failed and changed nothing, although the server did not answer with
    an error. It also applies when a compensation, a probe or a ``before`` of another tool calls this one."""
    before: Snapshot | None = None
    """A read before the call, for its compensation."""
    compensate: Compensation | None = None
    """How it is compensated: a call, a list of calls, or a table with ``calls``."""
    guard: Guard | None = None
    """How to check, before the compensation, that nobody else has changed the thing since."""
    probe: Probe | None = None
    """How to find out whether a call in doubt has happened."""
    always_new: bool = False
    """Whether every request is a new call, even if an earlier one was equal: a click, a key that is pressed."""
    hidden: bool = False
    """Whether the tool is hidden from clients: it is not listed, and its calls are refused."""

    @field_validator("compensate", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """Accept one call, or a list of calls, for a compensation without options."""
        if isinstance(value, list):
            return {"calls": value}
        if isinstance(value, Mapping) and "calls" not in value:
            options = {name: value[name] for name in ("idempotent", "absent_ok", "wins", "attempts") if name in value}
            return {"calls": [{name: one for name, one in value.items() if name not in options}], **options}
        return value

    @model_validator(mode="after")
    def _whole(self) -> ToolTable:
        if (self.kind == "compensatable") != (self.compensate is not None):
            have = "no" if self.compensate is None else "a"
            raise ValueError(
                f'it is "{self.kind}" and has {have} compensation; one with a compensation is "compensatable", and one '
                'that cannot be taken back is "pivot", "retriable" or "read"'
            )
        if self.before is not None and self.compensate is None and self.probe is None:
            raise ValueError("nothing uses what is read before: say compensate or probe")
        if self.guard is not None and self.compensate is None:
            raise ValueError("a guard is for a compensation: say compensate, too")
        return self


class ServerTable(Table):
    """One upstream server: a command that is started, or an address."""

    command: str = ""
    """The program to start."""
    args: list[str] = Field(default_factory=list)
    """Its arguments. ``${NAME}`` is a variable of the gateway; its value is hidden."""
    env: dict[str, str] = Field(default_factory=dict)
    """Its variables. ``${NAME}`` is a variable of the gateway, ``file:PATH`` the text of a file; such values are hidden, and so
    are those of variables that are named like a credential (``API_KEY``, ``TOKEN``, ``PASSWORD``)."""
    cwd: str = ""
    """Where it is started, relative to the configuration."""
    url: str = ""
    """The address of a server that is not started here (streamable HTTP); ``${NAME}`` as in ``args``."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers for every request to the address; values as in ``env``."""
    catalogue: str = ""
    """The entry of the catalogue with the declarations for this server."""
    vars: dict[str, str] = Field(default_factory=dict)
    """Values that templates name as ``$server.…``."""
    prefix: bool = False
    """Whether clients always see its tools as ``server__tool``; otherwise only if two servers have a tool of one name."""
    timeout: float = Field(60.0, gt=0, le=86_400)
    """Seconds after which a call without an answer is in doubt."""
    answer_bytes_max: int = Field(4_000_000, ge=1_000)
    """A longer answer is not passed on, and the call is in doubt."""
    doubt: str = ""
    """A regular expression. If an error of the server matches it, the call is in doubt: for example, the server lost its own
    connection. Other errors mean that nothing was changed."""
    serial: bool = False
    """Whether it gets only one request at a time: some servers lose concurrent writes."""
    tools: dict[str, ToolTable] = Field(default_factory=dict)
    """The declarations of its tools, by name. An undeclared tool needs approval for each call."""

    @model_validator(mode="after")
    def _one_way(self) -> ServerTable:
        if bool(self.command) == bool(self.url):
            raise ValueError("say either command (and args), or url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("url begins with http:// or https://")
        if self.url and (self.args or self.env or self.cwd):
            raise ValueError("args, env and cwd belong to a command")
        if self.command and self.headers:
            raise ValueError("headers belong to a url")
        return self


class GatewayTable(Table):
    """The whole table ``[gateway]``."""

    name: str = "gateway"
    """The agent's name in the runs of this gateway; give each gateway of one ledger its own."""
    runs: str = "connection"
    """The run of a call that names none: one for each "connection", one for each "request", or the name of one run."""
    idle: float = Field(1800.0, gt=0)
    """Seconds without a call after which the gateway ends a run. Also a text: "30m"."""
    on_idle: Ends = "commit"
    """How the gateway ends an idle run that the client has not begun itself: "commit", "rollback" or "wait"."""
    on_silence: Ends = "rollback"
    """How the gateway ends an idle run that the client has begun with ``amends_begin``: "commit", "rollback" or "wait"."""
    approvals: Literal["outside", "notice", "client"] = "outside"
    """Who may decide a request for approval. "outside": people in the console, at the command line or by link; "notice":
    the same, and the client's user is notified; "client": the client's user, under the name ``approver``."""
    approver: str = ""
    """The name under which the client's user approves. It must differ from the principal of the runs, because nobody may
    approve their own request."""
    undeclared: Literal["approve", "refuse"] = "approve"
    """What happens to a call of an undeclared tool: "approve" (a person must approve it) or "refuse"."""
    start: float = Field(60.0, gt=0, le=3_600)
    """Seconds that a server may take to start. A call waits as long for a server that is restarted."""
    servers: dict[str, ServerTable] = Field(min_length=1)
    """The servers by name; letters, digits, - and single _."""

    @field_validator("idle", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = _SECONDS.match(value.strip())
        if found is None:
            raise ValueError("it is a number of seconds, or a text such as 90s, 30m, 8h")
        return float(found[1]) * UNITS[found[2]]

    @model_validator(mode="after")
    def _decides(self) -> GatewayTable:
        if self.approvals == "client" and not self.approver:
            raise ValueError('approvals = "client" needs approver: under whose name does the client\'s user approve?')
        return self


class Config:
    """A checked configuration, with catalogue and secrets in place."""

    def __init__(self, table: Mapping[str, Any], *, folder: Path, origin: str) -> None:
        from amends.gateway import catalogue

        self.folder, self.origin = folder, origin
        merged = catalogue.merged(table, origin)
        try:
            self.gateway = GatewayTable.model_validate(merged)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in ("gateway", *first["loc"]))
            _refuse(origin, f"{place}: {first['msg'].removeprefix('Value error, ')}")
        for name, server in self.gateway.servers.items():
            if not NAME.match(name) or "__" in name:
                _refuse(origin, f"gateway.servers.{name}: a server is named by letters, digits, - and single _")
            _check_pattern(server.doubt, f"{origin}: gateway.servers.{name}.doubt")
            for tool, said in server.tools.items():
                _check_tool(f"{origin}: gateway.servers.{name}.tools.{tool}", said)

    def env_of(self, server: ServerTable) -> tuple[dict[str, str], frozenset[str]]:
        """Return the variables for a command, and those values of them that are secret."""
        return self._revealed(server.env, "env")

    def args_of(self, server: ServerTable) -> tuple[list[str], frozenset[str]]:
        """Return the arguments of a command, and those values in them that are secret."""
        found = [self._filled(text, "args") for text in server.args]
        return [value for value, _ in found], _secrets(one for _, hidden in found for one in hidden)

    def url_of(self, server: ServerTable) -> tuple[str, frozenset[str]]:
        """Return an address, and those values in it that are secret."""
        value, hidden = self._filled(server.url, "url")
        return value, _secrets(hidden)

    def headers_of(self, server: ServerTable) -> tuple[dict[str, str], frozenset[str]]:
        """Return the headers for an address, and those values of them that are secret."""
        return self._revealed(server.headers, "headers")

    def _revealed(self, table: Mapping[str, str], what: str) -> tuple[dict[str, str], frozenset[str]]:
        found = {name: self._value(text, f"{what}.{name}") for name, text in table.items()}
        return (
            {name: value for name, (value, _) in found.items()},
            _secrets(one for _, hidden in found.values() for one in hidden),
        )

    def _value(self, text: str, place: str) -> tuple[str, list[str]]:
        if is_plain_credential(place.rpartition(".")[2], text):
            return text, [text, *text.split()[-1:]]  # also without the word Bearer before it
        if text.startswith("file:"):
            path = self.folder / text.removeprefix("file:")
            try:
                value = path.read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                _refuse(self.origin, f"{place}: {path} cannot be read: {error}")
            return value, [value]
        return self._filled(text, place)

    def _filled(self, text: str, place: str) -> tuple[str, list[str]]:
        """Return a text with the variables that it names, and their values."""
        hidden: list[str] = []

        def put(found: re.Match[str]) -> str:
            value = os.environ.get(found[1])
            if not value:
                _refuse(self.origin, f"{place}: the variable {found[1]} is not set")
            hidden.append(value)
            return value

        return _VARIABLE.sub(put, text), hidden


def load(path: Path) -> Config:
    """Read the table ``[gateway]`` of a file; raise ``BadConfig``."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadConfig(
            f"there is no {path}",
            setting="gateway",
            origin=str(path),
            hint="write one: amends gateway add NAME -- COMMAND",
        ) from None
    except (OSError, ValueError) as error:
        raise BadConfig(f"{path} cannot be read: {error}", setting="gateway", origin=str(path)) from error
    own = table.get("gateway")
    if not isinstance(own, dict):
        raise BadConfig(
            f"{path} has no table [gateway]", setting="gateway", origin=str(path),
            hint="add a server: amends gateway add NAME -- COMMAND",
        )  # fmt: skip
    return Config(own, folder=path.resolve().parent, origin=str(path))


def is_plain_credential(name: str, value: str) -> bool:
    """Return whether a variable or header has the name of a credential, and its value is written down as it is."""
    return bool(_CREDENTIAL.search(name)) and not value.startswith("file:") and not _VARIABLE.search(value)


def _secrets(values: Iterable[str]) -> frozenset[str]:
    """Return what is hidden in answers; a shorter value would be found in ordinary words."""
    return frozenset(one for one in values if len(one) >= SECRET_CHARS_MIN)


def _check_tool(where: str, said: ToolTable) -> None:
    if isinstance(said.needs_approval, dict):
        templates.check_condition(said.needs_approval, f"{where}.needs_approval", OF_ARGS)
    if said.failed is not None:
        templates.check_condition(said.failed, f"{where}.failed", ("result", "args"))
    for lock in said.locks:
        templates.check(lock, f"{where}.locks", OF_ARGS)
    if said.before is not None:
        templates.check(said.before.args, f"{where}.before.args", OF_BEFORE)
        templates.check(said.before.value, f"{where}.before.value", ("answer",))
        _check_pattern(said.before.missing, f"{where}.before.missing")
        _check_pattern(said.before.pattern, f"{where}.before.pattern")
        if said.before.absent is not None:
            templates.check_condition(said.before.absent, f"{where}.before.absent", ("answer", "args"))
        if said.before.refuse is not None:
            templates.check_condition(said.before.refuse, f"{where}.before.refuse", ("answer", "args"))
    if said.probe is not None:
        templates.check(said.probe.args, f"{where}.probe.args", OF_PROBE)
        templates.check_condition(said.probe.happened, f"{where}.probe.happened", OF_ANSWER)
        if said.probe.absent is not None:
            templates.check_condition(said.probe.absent, f"{where}.probe.absent", OF_ANSWER)
        templates.check(said.probe.result, f"{where}.probe.result", OF_ANSWER)
        _check_pattern(said.probe.missing, f"{where}.probe.missing")
    if said.guard is not None:
        templates.check(said.guard.args, f"{where}.guard.args", OF_UNDO)
        templates.check(said.guard.value, f"{where}.guard.value", ("answer",))
        _check_pattern(said.guard.missing, f"{where}.guard.missing")
        if said.guard.unchanged is not None:
            templates.check_condition(said.guard.unchanged, f"{where}.guard.unchanged", OF_GUARD)
    for number, one in enumerate(said.compensate.calls if said.compensate else ()):
        place = f"{where}.compensate.{number + 1}"
        templates.check(one.args, f"{place}.args", (*OF_UNDO, "item") if one.each else OF_UNDO)
        templates.check(one.each, f"{place}.each", OF_UNDO)
        if one.when is not None:
            templates.check_condition(one.when, f"{place}.when", (*OF_UNDO, "item") if one.each else OF_UNDO)


def _check_pattern(text: str, where: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        _refuse(where, f"{text!r} is no regular expression: {error}")


def _refuse(origin: str, problem: str) -> NoReturn:
    raise BadConfig(f"{origin}: {problem}", setting="gateway", origin=origin)
