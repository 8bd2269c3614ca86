"""The filter grammar of the CLI, the console and ``rt.runs`` / ``rt.calls``: ``status:in_doubt tool:pay_* run:order-7``.

Words are and-ed, comma-separated values or-ed, ``*`` is a wildcard.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

from amends.errors import UsageError
from amends.record import dataclass
from amends.rows import CallRow, RunRow
from amends.states import CALL_STATES, RUN_STATES

RUN_FIELDS: Final = ("status", "run", "agent", "principal", "tag")
CALL_FIELDS: Final = ("status", "tool", "run", "agent", "principal", "kind", "key", "violation")


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions by field; ``states`` is what the store can select by itself."""

    words: Mapping[str, tuple[str, ...]]

    @property
    def states(self) -> tuple[str, ...]:
        """The states asked for; empty means all."""
        return self.words.get("status", ())

    def takes_run(self, row: RunRow) -> bool:
        """Whether this run passes."""
        facts = {"status": row.state, "run": row.id, "agent": row.agent, "principal": row.principal}
        tags = self.words.get("tag", ())
        tagged = not tags or any(f'"{tag}"' in row.tags for tag in tags)
        return tagged and self._takes(facts)

    def takes_call(self, row: CallRow) -> bool:
        """Whether this call passes."""
        return self._takes(
            {
                "status": row.state,
                "tool": row.tool,
                "run": row.run_id,
                "agent": row.agent,
                "principal": row.principal,
                "kind": row.kind,
                "key": row.key,
                "violation": row.violation,
            }
        )

    def _takes(self, facts: Mapping[str, str]) -> bool:
        return all(
            bool(facts[field]) and any(fnmatchcase(facts[field], value) for value in values)
            for field, values in self.words.items()
            if field != "tag"
        )


def parse_filter(text: str, fields: tuple[str, ...]) -> Filter:
    """Read a filter; an unknown field or state is an error that names the known ones."""
    words: dict[str, tuple[str, ...]] = {}
    states = RUN_STATES if fields is RUN_FIELDS else CALL_STATES
    for word in text.split():
        field, colon, value = word.partition(":")
        if not colon or not value.strip(",") or field not in fields:
            raise UsageError(
                f"the filter {word!r} is not understood", hint=f"write field:value; fields are {', '.join(fields)}"
            )
        values = tuple(one for one in value.split(",") if one)
        if field == "status":
            unknown = [one for one in values if one not in states]
            if unknown:
                raise UsageError(f"there is no state {unknown[0]!r}", hint=f"states are {', '.join(states)}")
        words[field] = values
    return Filter(words)
