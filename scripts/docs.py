"""Write the generated parts of the docs again, or with ``--check`` report which of them are stale.

A generated part is between two comments; whatever is between them is replaced:

    <!-- generated: call moves -->
    <!-- end -->

Links between pages are checked too, also those by the address of the site or the repository (scripts/addresses.py): a
link to a missing page or heading is an error in both modes. So is a cell of the table of
adapters without a test or a reason (see tests/adapters/cells.py).
"""

from __future__ import annotations

import ast
import errno
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import amends
from amends import Budget, errors, states
from amends.engine import outcomes
from amends.engine.model_answers import answer_error
from amends.errors import limit_words
from amends.gateway import catalogue, setup
from amends.gateway import config as gateway_config
from amends.model import Answer
from amends.serve import Limits, problems
from amends.serve.routes import ROUTES
from amends.testing.checkers import CHECKERS

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.addresses import page_of  # noqa: E402 (found by the line above)
from tests.adapters import table  # noqa: E402 (it imports no framework)
from tests.serve import verbs  # noqa: E402

FENCES: Final = {"codex": "toml", "agents-sdk": "python"}
"""In which language the block of a client is written, if it is not JSON."""
EXAMPLES: Final = ("travel_booking", "refunds", "payouts", "release_pipeline", "inventory", "crm_campaign")
"""The programs of ``examples/`` that have a page of their own."""
PART: Final = re.compile(r"(<!-- generated: (?P<name>[\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
LINK: Final = re.compile(r"\]\((?!\w+:|#)(?P<target>[^)#\s]+)(?:#[^)\s]*)?\)")
PART_LINK: Final = re.compile(r"\]\((?!\w+:)(?P<target>[^)#\s]*)#(?P<heading>[^)\s]+)\)")
ADDRESS: Final = re.compile(r"(?:\]\(|\b(?:src|srcset|href)=\")(?P<address>https://[^)\"\s]+)")
FENCED: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def _diagram(text: str) -> str:
    return f"```mermaid\n{text}\n```\n"


def _table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = head.split(" | ")
    lines = [f"| {head} |", f"| {' | '.join('---' for _ in columns)} |"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _first_line(thing: Any) -> str:
    """Return the first paragraph of the docstring."""
    said = inspect.getdoc(thing) or ""
    return " ".join(said.partition("\n\n")[0].split()).replace("``", "`")


def _promise(checker: Any) -> str:
    """Return what must hold, without each "that" of "Check that …, and that …"."""
    said = _first_line(checker).removeprefix("Check that ").replace(" and that ", " and ")
    return said[:1].upper() + said[1:]


# ---- states -------------------------------------------------------------------------------


def _moves(moves: dict[str, Any]) -> str:
    rows = []
    for state, targets in moves.items():
        if state == states.NEW:
            continue
        sources = [f"`{frm}`" if frm != states.NEW else "*(new)*" for frm, to in moves.items() if state in to]
        rows.append((f"`{state}`", ", ".join(sources), ", ".join(f"`{one}`" for one in targets) or "nothing: final"))
    return _table("state | comes from | goes to", rows)


# ---- errors -------------------------------------------------------------------------------


def _error_tree() -> str:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    return f"```\n{tree}\n```\n"


def _kinds_of_exceptions(names: frozenset[str]) -> str:
    by_package: dict[str, list[str]] = {}
    for name in sorted(names):
        package = name.partition(".")[0]
        home = "Python" if package in {*sys.stdlib_module_names, "builtins"} else package
        by_package.setdefault(home, []).append(f"`{name.removeprefix('builtins.')}`")
    order = sorted(by_package, key=lambda home: (home != "Python", home))
    return _table("of | classes", ((home, ", ".join(by_package[home])) for home in order))


# ---- texts for a model --------------------------------------------------------------------

_CHARGE: Final = SimpleNamespace(tool="charge", result={"id": "ch_1"}, args={"order": "1042", "cents": 4200})


def _refusals() -> Iterator[tuple[str, errors.Error]]:
    yield "`UnknownTool`", errors.UnknownTool("charge_card", known=["charge", "ship", "send_mail"])
    yield "`BadArguments`", errors.BadArguments("charge", problems=['charge.cents must be an integer, not "42 EUR"'])
    early: Any = {"law": "pivot_early"}
    yield "`OutOfOrder` `pivot_early`, missing", errors.OutOfOrder("send_wire", missing=["reserve_funds"], **early)
    yield "`OutOfOrder` `pivot_early`, unsettled", errors.OutOfOrder("send_wire", unsettled=["reserve_funds"], **early)
    yield "`OutOfOrder` `pivot_twice`", errors.OutOfOrder("send_wire", law="pivot_twice", pivot="send_wire")
    yield "`OutOfOrder` `pivot_in_flight`", errors.OutOfOrder("charge", law="pivot_in_flight", pivot="send_wire")
    allowed = ["send_mail", "mark_paid"]
    yield (
        "`OutOfOrder` `after_pivot`",
        errors.OutOfOrder("charge", law="after_pivot", pivot="send_wire", allowed=allowed),
    )
    diff = {"cents": (4200, 4900)}
    yield "`KeyConflict`", errors.KeyConflict("", tool="charge", call=_CHARGE, diff=diff)
    again = errors.KeyConflict("", tool="charge", call=_CHARGE, diff=diff, may_repeat=True)
    yield "`KeyConflict`, `repeats=True`", again
    yield "`GenerationsSpent`", errors.GenerationsSpent("charge", limit=100)
    since = datetime(2024, 1, 1, tzinfo=UTC)
    yield (
        "`Locked`",
        errors.Locked("reserve", lock="stock:lamp", holder="o-1", since=since, waited=30.0, held_s=90.0, run_id=None),
    )
    budget = Budget(50)
    amounts: dict[str, Any] = {
        "spent": Decimal("41.5"),
        "reserved": Decimal(0),
        "asked": Decimal(42),
        "left": Decimal("8.5"),
    }
    yield "`BudgetExceeded`", errors.BudgetExceeded("charge", budget=budget, **amounts)
    yield "`Deadlocked`", errors.Deadlocked("reserve", why="deadlock", run_id="order-2")
    yield "`RuleRefused`", errors.RuleRefused("send_wire", why="too much for an agent")
    yield "`Rejected`", errors.Rejected("send_wire", by="ada", reason="wrong payee")
    asked: Any = SimpleNamespace(id="apr_7K2", state="pending")
    yield "`ApprovalVoid` `changed`", errors.ApprovalVoid("send_wire", why="changed", approval=asked, diff=diff)
    ran_out = datetime(2024, 1, 1, 17, tzinfo=UTC)
    yield (
        "`ApprovalVoid` `expired`",
        errors.ApprovalVoid("send_wire", why="expired", approval=asked, expired_at=ran_out),
    )
    yield "`ApprovalVoid` `used`", errors.ApprovalVoid("send_wire", why="used")


def _outcomes() -> Iterator[tuple[str, errors.Error | Exception]]:
    yield "the tool raised", RuntimeError("address unknown")
    yield (
        "`ToolFailed`",
        errors.ToolFailed("address unknown", call=SimpleNamespace(tool="ship"), type_name="ValueError"),
    )
    yield "`InDoubt`, the tool has a probe", errors.InDoubt("", call=_CHARGE, why="timeout", checked=True)
    yield "`InDoubt`, it has none", errors.InDoubt("", call=_CHARGE, why="timeout")
    unknown = SimpleNamespace(tool="charge", state="residue")
    yield "`InDoubt`, a person said `Unknown`", errors.InDoubt("", call=unknown, why="timeout")
    yield "`Held` `duplicate`", errors.Held("", call=_CHARGE, reason="duplicate", twin=_CHARGE)
    other = errors.Held("", call=_CHARGE, reason="duplicate", twin=_CHARGE, may_repeat=True)
    yield "`Held` `duplicate`, `repeats=True`", other
    yes = SimpleNamespace(id="apr_7K2", rule="")
    yield "`Held` `approval`", errors.Held("", call=_CHARGE, reason="approval", approval=yes)
    asked = SimpleNamespace(id="apr_7K2", rule=limit_words([(Decimal(50), "usd", "run", None)]))
    yield "`Held` `budget`", errors.Held("", call=_CHARGE, reason="budget", approval=asked)
    yield "`Held` `conflict`", errors.Held("", call=_CHARGE, reason="conflict")
    yield "`Busy`", errors.Busy("", owner="", retry_after=5.0)
    yield "`RunEnded`", errors.RunEnded("", state="rolled_back")
    calls = [SimpleNamespace(state="compensated")] * 3
    yield "`RolledBack`", errors.RolledBack("", report=SimpleNamespace(calls=calls), run_id="r")
    left = SimpleNamespace(call=SimpleNamespace(tool="send_mail"))
    yield "`RunBlocked`, something stands", errors.RunBlocked("", run_id="r", residue=[left])
    yield "`RunBlocked`, only doubts", errors.RunBlocked("", run_id="r")
    yield "`LedgerError`", errors.LedgerUnavailable("")
    yield "another `UsageError`", errors.NotStorable("", path="args.rows")


def _answers() -> str:
    spec: Any = amends.tool(_ship, kind="pivot", name="ship")
    declared = amends.Runtime("memory:", tools=[spec])
    told: list[tuple[str, Answer]] = []
    with declared.run() as run:
        told.append(("done", run.answer("ship", {"order": "1042"})))
        told.append(("replayed", run.answer("ship", {"order": "1042"})))
    mail: Any = amends.tool(_mail, kind="retriable", idempotent=True, name="send_mail")
    with amends.Runtime("memory:", tools=[mail]).run() as run:
        told.append(("staged", run.answer("send_mail", {"to": "ada"})))
    for case, error in (*_refusals(), *_outcomes()):
        tool = "ship" if case == "the tool raised" else "charge"
        told.append((case, answer_error(declared._host.reader(), tool, error)))
    rows = ((case, f"`{one.status}`", "yes" if one.is_error else "", f"`{one.text}`") for case, one in told)
    return _table("case | `status` | error | `text`", rows)


def _ship(order: str) -> dict[str, str]:
    return {"parcel": f"p_{order}"}


def _mail(to: str) -> str:
    return to


# ---- public names -------------------------------------------------------------------------


def _names() -> str:
    return _table("name | what it is", ((f"`{name}`", _said_of(name)) for name in amends.__all__))


def _said_of(name: str) -> str:
    if name == "Probed":
        return "What a probe returns, as a type: `Happened[R] | Absent | Unknown`."
    return _first_line(getattr(amends, name))


def _records() -> str:
    kinds = (
        *(
            amends.Request,
            amends.Call,
            amends.Answer,
            amends.Report,
            amends.RunInfo,
            amends.Now,
            amends.Residue,
            amends.Event,
        ),
        *(
            amends.InboxItem,
            amends.Doubt,
            amends.Evidence,
            amends.Preview,
            amends.Next,
            amends.Planned,
            amends.RollbackPlan,
            amends.Overview,
            amends.RunLine,
        ),
        *(amends.Reconciliation, amends.Mismatch),
    )
    return _table("record | fields", ((f"`{kind.__name__}`", _fields(kind)) for kind in kinds))


def _fields(kind: type[Any]) -> str:
    inherited = {field.name for base in kind.__mro__[1:] if is_dataclass(base) for field in fields(base)}
    own = [field.name for field in fields(kind) if field.name not in inherited]
    own += [name for name, value in vars(kind).items() if isinstance(value, property)]
    more = {amends.Call: "those of `Request`, and ", amends.Doubt: "those of `Call`, and "}.get(kind, "")
    return more + ", ".join(f"`{name}`" for name in own)


def _members(cls: type[Any]) -> Callable[[], str]:
    def made() -> str:
        rows = []
        # Inherited verbs come after the class's own.
        inherited = dict.fromkeys(name for base in cls.__mro__[1:-1] for name in vars(base))
        for name in {**vars(cls), **inherited}:
            if name.startswith("_") or name in ("is_async", "direct"):
                continue
            value = getattr(cls, name)  # a verb is made when it is first looked up
            is_value = isinstance(value, property) or not callable(value)
            said = (
                _first_line(value) if isinstance(value, property) or callable(value) else _comments(cls).get(name, "")
            )
            rows.append((f"`{name}`" if is_value else f"`{name}({_asked(value)})`", said))
        return _table("name | what it does", rows)

    return made


def _asked(method: Callable[..., Any]) -> str:
    """Return the parameters by name; optional ones with their default."""
    said: list[str] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if (
            parameter.kind is parameter.KEYWORD_ONLY
            and "*" not in said
            and not any(one.startswith("*") for one in said)
        ):
            said.append("*")
        star = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        said.append(f"{star}{parameter.name.rstrip('_')}{default}")
    return ", ".join(said)


# ---- adapters -----------------------------------------------------------------------------

SHAPES: Final = table.Table()


def _shapes() -> str:
    titles = [f"[{column.title}](../how-to/{column.page})" for column in SHAPES.columns]
    return f"{_table(' | '.join(['shape', *titles]), SHAPES.marks())}\n{table.LEGEND}\n"


# ---- the service --------------------------------------------------------------------------


def _routes() -> str:
    """Return every route: what it does, the verb that it is, and the scopes of which one is needed."""
    rows = []
    for route in ROUTES:
        needs = "public" if route.scopes is None else " or ".join(f"`{one}`" for one in route.scopes)
        answers = ", ".join(str(status) for status in route.answers)
        rows.append((f"`{route.method} {route.path}`", route.summary, f"`{route.name}`", needs, answers))
    return _table("address | what it does | verb | scope | answers", rows)


def _statuses() -> str:
    """Return the status of each branch of errors."""
    found: dict[int, list[str]] = {}
    for kind, status in problems.STATUS.items():
        found.setdefault(status, []).append(f"`{kind.__name__}`")
    return _table("status | errors", ((str(status), ", ".join(names)) for status, names in sorted(found.items())))


def _verbs() -> str:
    """Return every verb of a program, and what the clients have of it."""
    rows = []
    for one in verbs.rows():
        names = [", ".join(f"`{name}`" for name in said.split(", ") if name) for said in (one.python, one.typescript)]
        rows.append((f"`{one.verb}`", f"`{one.address}`" if one.address else one.why, *names))
    return _table("verb | address, or why there is none | Python | TypeScript", rows)


def _gateway_words() -> str:
    """Return a table of the words of each table of the gateway's configuration."""
    tables = (
        ("[gateway]", gateway_config.GatewayTable),
        ("[gateway.servers.NAME]", gateway_config.ServerTable),
        ("[gateway.servers.NAME.tools.TOOL]", gateway_config.ToolTable),
        ("before", gateway_config.Snapshot),
        ("compensate", gateway_config.Compensation),
        ("a call of compensate", gateway_config.CallTable),
        ("guard", gateway_config.Guard),
        ("probe", gateway_config.Probe),
    )
    parts = []
    for title, kind in tables:
        said = _comments(kind)
        rows = []
        for name, field in kind.model_fields.items():
            default = "needed" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
            rows.append((f"`{name}`", default, said.get(name, "")))
        name = f"`{title}`" if " " not in title else title[:1].upper() + title[1:]
        parts.append(f"## {name}\n\n{_first_line(kind)}\n\n" + _table("word | default | meaning", rows))
    return "\n".join(parts)


def _comments(table: type[Any]) -> dict[str, str]:
    """Return the text that follows each field in the source of a class."""
    body = ast.parse(inspect.getsource(table)).body[0]
    assert isinstance(body, ast.ClassDef), "a table is a class"
    found: dict[str, str] = {}
    for before, after in pairwise(body.body):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and is_text:
            found[before.target.id] = " ".join(str(after.value.value).split()).replace("``", "`")  # type: ignore[attr-defined]
    return found


TESTED: Final = {
    "server": "Tested against the real server, {package}.",
    "api": "Tools and arguments were compared with those of the real server, {package}, on {listed}. It needs an account, so "
    "that server was run against a stand-in of its API.",
    "list": "Tools and arguments were compared with those of the real server, {package}, on {listed}. It needs an account, "
    "and what its tools do and return was not tested: they are written from the published list, and a stand-in of the "
    "server was used.",
}


def _gateway_catalogue() -> str:
    """Return each entry of the catalogue: what it is, against what it was tested, and why each tool is of its kind."""
    parts = []
    for name in catalogue.names():
        said = catalogue.entry(name)
        tested = TESTED[said["tested"]].format(**said)
        rows = [(f"`{tool}`", table["kind"], table.get("why", "")) for tool, table in said["tools"].items()]
        parts.append(f"### `{name}`\n\n{said['about']} {tested}\n\n" + _table("tool | kind | why", rows))
    return "\n".join(parts)


def _gateway_client(name: str) -> str:
    """Return what ``amends gateway install`` prints for a client."""
    block = setup.client_block(name, "amends", Path("/home/ada/amends.toml"))
    return f"```{FENCES.get(name, 'json')}\n{block}\n```\n"


def _example(name: str) -> str:
    """Return a program of ``examples/`` as a block, without its docstring: the page says more than that."""
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    code = text.split('"""\n', 1)[1].lstrip("\n")
    return f"```python\n{code}```\n"


def _limits() -> str:
    return _table("limit | default", ((f"`{one.name}`", f"{one.default:,}") for one in fields(Limits)))


PARTS: Final[dict[str, Callable[[], str]]] = {
    "routes": _routes,
    "statuses": _statuses,
    "limits of the service": _limits,
    "verbs of clients": _verbs,
    "gateway words": _gateway_words,
    "gateway catalogue": _gateway_catalogue,
    **{f"gateway client {name.replace('-', ' ')}": partial(_gateway_client, name) for name in setup.CLIENTS},
    "call moves": lambda: _diagram(states.diagram(states.CALL_MOVES)),
    "run moves": lambda: _diagram(states.diagram(states.RUN_MOVES)),
    "call table": lambda: _moves(dict(states.CALL_MOVES)),
    "run table": lambda: _moves(dict(states.RUN_MOVES)),
    "error tree": _error_tree,
    "never sent": lambda: _kinds_of_exceptions(outcomes.NEVER_SENT),
    "perhaps": lambda: _kinds_of_exceptions(outcomes.MAYBE_SENT),
    "numbers of the network": lambda: (
        ", ".join(f"`{errno.errorcode[number]}`" for number in sorted(outcomes.ERRNOS)) + "\n"
    ),
    "answers of grpc": lambda: ", ".join(f"`{code}`" for code in sorted(outcomes.GRPC_REFUSALS)) + "\n",
    "answers": _answers,
    "names": _names,
    "records": _records,
    "runtime": _members(amends.Runtime),
    "run": _members(amends.Run),
    "attempt": _members(amends.Attempt),
    "shapes": _shapes,
    "shapes that do not apply": lambda: _table("shape | adapter | why", SHAPES.reasons()),
    "checkers": lambda: _table(
        "checker | what must hold", ((f"`{name}`", _promise(checker)) for name, checker in CHECKERS.items())
    ),
    **{f"example {name}": partial(_example, name) for name in EXAMPLES},
}


# ---- pages --------------------------------------------------------------------------------


def pages() -> list[Path]:
    """Return every page a reader may open."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def fresh(text: str) -> str:
    """Return the page with every generated part as the code has it now."""
    return PART.sub(lambda part: part[1] + PARTS[part["name"]]() + part[3], text)


@cache
def _headings(page: Path) -> frozenset[str]:
    """Return the headings of a page, as a link names them."""
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", prose, re.MULTILINE))
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles)


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Yield the links of the page to files and headings that do not exist."""
    prose = FENCED.sub("", text)
    for link in PART_LINK.finditer(prose):
        part = page.parent / link["target"] if link["target"] else page
        if part.suffix == ".md" and part.exists() and link["heading"] not in _headings(part.resolve()):
            yield f"{page.relative_to(ROOT)}: {link['target']} has no heading #{link['heading']}"
    for link in LINK.finditer(prose):
        if not (page.parent / link["target"]).exists():
            yield f"{page.relative_to(ROOT)}: {link['target']} does not exist"
    for link in ADDRESS.finditer(prose):
        target = page_of(link["address"])
        if target is not None and not target.exists():
            yield f"{page.relative_to(ROOT)}: {link['address']} shows {target.relative_to(ROOT)}, which does not exist"
    if page.name == "README.md" and page.parent == ROOT:
        # The package index shows this page without the files around it.
        yield from (f"README.md: {link['target']} must be an address" for link in LINK.finditer(prose))


def main() -> int:
    """Write or check every page; return 0 if the docs are right."""
    is_check = "--check" in sys.argv[1:]
    problems = list(SHAPES.problems())
    for page in pages():
        text = page.read_text(encoding="utf-8")
        wanted = fresh(text)
        if wanted != text and is_check:
            problems.append(f"{page.relative_to(ROOT)}: a generated part is stale; run make docs")
        elif wanted != text:
            page.write_text(wanted, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
        problems += broken_links(page, wanted)
    print("\n".join(problems) or "docs: generated parts and links are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
