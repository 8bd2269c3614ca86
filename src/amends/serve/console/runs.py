"""The list of runs: live, filtered by the grammar of the CLI, with counts by state, costs and what was not done twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from pydantic import Field

from amends import RunLine
from amends.errors import UsageError
from amends.serve.console.html import look, moment
from amends.serve.console.pages import Said
from amends.serve.exchange import Exchange

STATES: Final = ("open", "pivoted", "rolling_back", "blocked", "committed", "rolled_back", "abandoned")
COUNT_MAX: Final = 1_000
"""A higher count is shown as "1,000+"."""
WORDS: Final[tuple[tuple[str, str], ...]] = (
    *((f"state:{state}", look(state).word) for state in STATES),
    ("run:", "the run's id; * is a wildcard"),
    ("agent:", "the agent that it acts for"),
    ("principal:", "who started it"),
    ("tag:", "a tag that it was opened with"),
    ("age:<1h", "not older than an hour; also 30m, 7d"),
    ("age:>1d", "older than a day"),
    ("tool:", "a tool that it called"),
    ("kind:pivot", "the kind of a call in it"),
    ("call:", "the id of a call in it"),
    ("key:", "an idempotency key"),
    ("args.", "an argument: args.order:1042, args.cents:>1000"),
    ("cost:>5", "more than 5 usd; cost.tokens:>1000"),
    ("violation:*", "what a strict order would have refused"),
)
"""What the filter box suggests: words of the grammar, and what each means."""
_WORD: Final = re.compile(r'(?:[^\s"]|"[^"]*")+')


class RunsQuery(Said):
    """Which runs."""

    filter: str = Field("", max_length=2_000)
    after: str = Field("", max_length=1_000)
    limit: int = Field(50, ge=1, le=200)


async def runs(x: Exchange) -> dict[str, Any]:
    """Return one page of runs, newest first; a filter that cannot be understood is told beside the box."""
    query: RunsQuery = x.query
    problem: dict[str, str] | None = None
    text = query.filter.strip()
    try:
        found = await x.rt.overview(text, after=query.after, limit=query.limit)
    except UsageError as error:
        problem = {"detail": str(error), "hint": error.hint}
        found = await x.rt.overview(limit=1)
    lines = [] if problem else list(found.runs)
    others = " ".join(word for word in words_of(text) if not word.startswith(("state:", "status:")))
    return {
        "filter": query.filter,
        "problem": problem,
        "runs": [_line(one) for one in lines],
        "next": None if problem else found.next,
        "is_first": not query.after,
        "is_cut": found.is_cut and not problem,
        "looked_at": found.looked_at,
        "has_runs": found.counted > 0,
        "states": _states(text, others, found.counts, is_all=found.counted_all),
        "counted": found.counted,
        "counted_all": found.counted_all,
        "summed_all": found.summed_all,
        "costs": _sum(one.costs for one in lines if one.run.parent is None),
        "repeats": sum(one.repeats for one in lines if one.run.parent is None),
        "words": [list(one) for one in WORDS],
    }


def words_of(filter: str) -> list[str]:
    """Return the words of a filter; text in double quotes is part of its word."""
    return _WORD.findall(filter)


def count_text(count: int, *, is_all: bool, most: int = COUNT_MAX) -> str:
    """Return a count as it is shown: "12", "1,000+", or "12+" if there may be more than were counted."""
    if count >= most:
        return f"{most:,}+"
    return str(count) if is_all else (f"{count}+" if count else "")


def _states(text: str, others: str, counts: Mapping[str, int], *, is_all: bool) -> list[dict[str, Any]]:
    """Return the choices of one state; each keeps the other words of the filter. Counts are of all runs."""
    chosen = [word.partition(":")[2] for word in words_of(text) if word.startswith(("state:", "status:"))]
    total = sum(counts.values())
    made: list[dict[str, Any]] = [{"state": "", "word": "All", "filter": others, "is_on": not chosen, "count": total}]
    made += [
        {
            "state": state,
            "word": look(state).word.capitalize(),
            "filter": f"{others} state:{state}".strip(),
            "is_on": chosen == [state],
            "count": counts.get(state, 0),
        }
        for state in STATES
    ]
    for one in made:
        one["text"] = count_text(one["count"], is_all=is_all)
    return made


def _line(line: RunLine) -> dict[str, Any]:
    found = line.to_dict()
    run = found.pop("run")
    opened, closed = moment(run["opened_at"]), moment(run["closed_at"])
    took = (closed - opened).total_seconds() if opened and closed else None
    kept = (
        "id",
        "state",
        "generation",
        "agent",
        "principal",
        "parent",
        "tags",
        "opened_at",
        "closed_at",
        "now",
        "place",
    )
    return {name: run[name] for name in kept} | found | {"took": took, "key": run["place"].rpartition("/")[2]}


def _sum(costs: Iterable[Mapping[str, Decimal]]) -> dict[str, str]:
    sums: dict[str, Decimal] = {}
    for one in costs:
        for unit, amount in one.items():
            sums[unit] = sums.get(unit, Decimal(0)) + amount
    return {unit: str(amount) for unit, amount in sorted(sums.items())}
